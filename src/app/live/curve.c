/* curve.c - min/max buckets. When they are full, two neighbours become one: a million steps cost what two thousand do, every
 * minimum and maximum keeps its value and its step, and what is lost is only what lay between them. */
#include "live/curve.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void curve_init(curve *c, size_t most) {
    ASSERT(most >= 2 && most % 2 == 0);
    *c = (curve){.most = most, .per = 1};
}

void curve_fini(curve *c) {
    free(c->buckets);
    c->buckets = NULL;
}

void curve_clear(curve *c) { c->n = 0, c->per = 1, c->in_last = 0; }

static void join(curve_bucket *b, const curve_bucket *next) {
    b->last = next->last;
    if (next->low.y < b->low.y) b->low = next->low;
    if (next->high.y > b->high.y) b->high = next->high;
}

void curve_add(curve *c, double x, double y) {
    curve_bucket one = {.first = {x, y}, .last = {x, y}, .low = {x, y}, .high = {x, y}};
    if (c->n && c->in_last < c->per) {
        join(&c->buckets[c->n - 1], &one);
        c->in_last++;
        return;
    }
    if (c->n == c->most) {
        for (size_t i = 0; i < c->n / 2; i++) {
            c->buckets[i] = c->buckets[2 * i];
            join(&c->buckets[i], &c->buckets[2 * i + 1]);
        }
        c->n /= 2;
        c->per *= 2;
    }
    c->buckets = array_grow(c->buckets, &c->room, c->n + 1, sizeof *c->buckets);
    c->buckets[c->n++] = one;
    c->in_last = 1;
}

/* ---- as JSON ------------------------------------------------------------------------------------------------------ */

typedef struct point_list {
    curve_point *points;
    size_t n;
    double after;
} point_list;

static void put(point_list *l, curve_point p) {
    if (!(p.x > l->after)) return;
    const curve_point *before = l->n ? &l->points[l->n - 1] : NULL;
    if (before && (p.x < before->x || (p.x == before->x && p.y == before->y))) return;
    l->points[l->n++] = p;
}

void curve_write_json(const curve *c, size_t width, double after, strbuf *out) {
    width = MAX(width, (size_t)1);
    size_t per = (c->n + width - 1) / width;
    point_list l = {.points = mem_alloc((2 * MIN(width, c->n) + 2) * sizeof(curve_point)), .after = after};
    if (c->n) put(&l, c->buckets[0].first);
    for (size_t i = 0; i < c->n; i += per) {
        curve_bucket b = c->buckets[i];
        for (size_t j = i + 1; j < MIN(i + per, c->n); j++) join(&b, &c->buckets[j]);
        bool falls = b.high.x < b.low.x;
        put(&l, falls ? b.high : b.low);
        put(&l, falls ? b.low : b.high);
    }
    if (c->n) put(&l, c->buckets[c->n - 1].last);
    strbuf_add(out, "{\"x\":[");
    for (size_t i = 0; i < l.n; i++) strbuf_printf(out, "%s%.15g", i ? "," : "", l.points[i].x);
    strbuf_add(out, "],\"y\":[");
    for (size_t i = 0; i < l.n; i++) strbuf_printf(out, "%s%.9g", i ? "," : "", l.points[i].y);
    strbuf_add(out, "]}");
    free(l.points);
}
