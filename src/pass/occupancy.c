/* occupancy.c - bytes by moments, as a segment tree over the moments.
 *
 * A life is cut into the O(log n) largest stretches of the tree that make it up; a block is kept at these. A node has two sets
 * of bytes: `throughout`, of the blocks that are kept at it, and `within`, of those that are kept at it or below. Who looks for
 * a place for a life asks for `within` at its stretches and for `throughout` at all stretches above them: there is everybody who
 * lives at one of its moments. Most stretches are nobody's, but for the shortest, and have no `within`.
 *
 * A set is a sorted list of runs. Blocks that lie against each other are one run, so that lists stay short where packing is
 * good. Ends are rounded up to the grain: no block can begin in between. */
#include "pass/occupancy.h"

#include <stdlib.h>
#include <string.h>

typedef struct run {
    size_t begin, end;
} run;

typedef struct run_set {
    run *runs;
    size_t n, capacity;
} run_set;

typedef struct node {
    run_set throughout, within;
    bool is_asked; /* for `within`, by some life */
} node;

enum { SETS_MOST = 4 * 64 }; /* that one search meets: of at most four nodes of each level */

struct occupancy {
    size_t grain, n_leaves; /* a power of two; the children of node i are 2 i and 2 i + 1, the root is 1 */
    node *nodes;
    const run_set *met[SETS_MOST];
    size_t seen[SETS_MOST]; /* runs of each that are behind the search */
    size_t n_met;
};

static size_t round_up(size_t n, size_t alignment) { return (n + alignment - 1) & ~(alignment - 1); }

occupancy *occupancy_open(size_t n_moments, size_t grain) {
    occupancy *o = mem_alloc(sizeof *o);
    o->grain = grain;
    o->n_leaves = 1;
    while (o->n_leaves < n_moments) o->n_leaves *= 2;
    o->nodes = mem_alloc(2 * o->n_leaves * sizeof *o->nodes);
    return o;
}

void occupancy_close(occupancy *o) {
    for (size_t i = 0; i < 2 * o->n_leaves; i++) {
        free(o->nodes[i].throughout.runs);
        free(o->nodes[i].within.runs);
    }
    free(o->nodes);
    free(o);
}

void occupancy_clear(occupancy *o) {
    for (size_t i = 0; i < 2 * o->n_leaves; i++) o->nodes[i].throughout.n = o->nodes[i].within.n = 0;
}

/* Joins the new run with those that it touches. */
static void add_run(run_set *s, run r) {
    size_t low = 0, high = s->n;
    while (low < high) { /* for the first run that does not end before it */
        size_t middle = low + (high - low) / 2;
        if (s->runs[middle].end < r.begin) low = middle + 1;
        else high = middle;
    }
    for (high = low; high < s->n && s->runs[high].begin <= r.end; high++) {
        r.begin = MIN(r.begin, s->runs[high].begin);
        r.end = MAX(r.end, s->runs[high].end);
    }
    if (low == high) s->runs = array_grow(s->runs, &s->capacity, s->n + 1, sizeof *s->runs);
    memmove(s->runs + low + 1, s->runs + high, (s->n - high) * sizeof *s->runs);
    s->runs[low] = r;
    s->n = s->n + 1 + low - high;
}

typedef struct span {
    size_t first, last;
} span;

static bool covers(span life, span here) { return life.first <= here.first && here.last <= life.last; }
static span left_of(span here) { return (span){here.first, here.first + (here.last - here.first) / 2}; }
static span right_of(span here) { return (span){here.first + (here.last - here.first) / 2 + 1, here.last}; }

/* In these three node i stands for the moments `here`, of which life has one or more. */
static void expect(occupancy *o, size_t i, span here, span life) {
    if (covers(life, here)) {
        o->nodes[i].is_asked = true;
        return;
    }
    if (life.first <= left_of(here).last) expect(o, 2 * i, left_of(here), life);
    if (life.last >= right_of(here).first) expect(o, 2 * i + 1, right_of(here), life);
}

static void take(occupancy *o, size_t i, span here, span life, run r) {
    if (o->nodes[i].is_asked) add_run(&o->nodes[i].within, r);
    if (covers(life, here)) {
        if (i < o->n_leaves) add_run(&o->nodes[i].throughout, r); /* nobody asks above less than a moment */
        return;
    }
    if (life.first <= left_of(here).last) take(o, 2 * i, left_of(here), life, r);
    if (life.last >= right_of(here).first) take(o, 2 * i + 1, right_of(here), life, r);
}

static void meet(occupancy *o, const run_set *s) {
    if (s->n == 0) return;
    o->met[o->n_met] = s;
    o->seen[o->n_met++] = 0;
}

static void meet_all(occupancy *o, size_t i, span here, span life) {
    if (covers(life, here)) {
        meet(o, &o->nodes[i].within);
        return;
    }
    meet(o, &o->nodes[i].throughout);
    if (life.first <= left_of(here).last) meet_all(o, 2 * i, left_of(here), life);
    if (life.last >= right_of(here).first) meet_all(o, 2 * i + 1, right_of(here), life);
}

static span all_moments(const occupancy *o) { return (span){0, o->n_leaves - 1}; }

void occupancy_expect(occupancy *o, size_t first, size_t last) { expect(o, 1, all_moments(o), (span){first, last}); }

/* Behind every run of set k that is in the way of n_bytes at `at`. */
static size_t pass_runs(occupancy *o, size_t k, size_t at, size_t n_bytes, size_t alignment) {
    const run_set *s = o->met[k];
    size_t i = o->seen[k];
    for (; i < s->n && s->runs[i].begin < at + n_bytes; i++)
        if (s->runs[i].end > at) at = round_up(s->runs[i].end, alignment);
    o->seen[k] = i;
    return at;
}

size_t occupancy_place(occupancy *o, size_t first, size_t last, size_t base, size_t n_bytes, size_t alignment) {
    size_t at = round_up(base, alignment), before;
    o->n_met = 0;
    meet_all(o, 1, all_moments(o), (span){first, last});
    do {
        before = at;
        for (size_t k = 0; k < o->n_met; k++) at = pass_runs(o, k, at, n_bytes, alignment);
    } while (at != before);
    take(o, 1, all_moments(o), (span){first, last}, (run){at, round_up(at + n_bytes, o->grain)});
    return at;
}
