#pragma once
/* curve.h - private to live: a metric over time in bounded memory, thinned without losing an extreme.
 *
 *     curve c;
 *     curve_init(&c, 2048);
 *     curve_add(&c, step, loss);
 *     curve_write_json(&c, 800, -INFINITY, &out);    {"x": [...], "y": [...]}, at most 2 * 800 + 2 points
 *     curve_fini(&c); */
#include "base/base.h"

typedef struct curve_point {
    double x, y;
} curve_point;
typedef struct curve_bucket {
    curve_point first, last, low, high;
} curve_bucket;
typedef struct curve {
    curve_bucket *buckets;
    size_t n, room, most; /* most: even; more points than this share buckets */
    uint64_t per;         /* points of a full bucket: a power of two */
    uint64_t in_last;     /* points of the last bucket */
} curve;

void curve_init(curve *c, size_t most);
void curve_fini(curve *c);
void curve_clear(curve *c);
void curve_add(curve *c, double x, double y); /* both finite; x does not fall */
static inline const curve_point *curve_last(const curve *c) { return c->n ? &c->buckets[c->n - 1].last : NULL; }
/* Points with x > after, of `width` columns: the lowest and the highest of each, and the first and the last of all. */
void curve_write_json(const curve *c, size_t width, double after, strbuf *out);
