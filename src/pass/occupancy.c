/* occupancy.c - bytes by moments, as a segment tree over the moments.
 *
 * A node stands for a stretch of moments and has two sets of bytes: `throughout`, taken by blocks that live through the whole
 * stretch and are kept at no node above it, and `within`, taken at some moment of it by a block that is kept here or below. A
 * block is kept at the O(log n) largest stretches that make up its life. Whoever lives beside it finds it there: in
 * `throughout` of a stretch that is longer than what he needs, or in `within` of one that is not.
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
} node;

enum { SETS_MOST = 4 * 64 }; /* that one search meets: at most four nodes of each level */

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
    while (low < high) { /* the first run that does not end before it */
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

/* A node and the moments it stands for, which overlap those from first to last. */
static void take(occupancy *o, size_t i, size_t begin, size_t end, size_t first, size_t last, run r) {
    add_run(&o->nodes[i].within, r);
    if (first <= begin && end - 1 <= last) {
        if (i < o->n_leaves) add_run(&o->nodes[i].throughout, r); /* nobody needs less than one moment */
        return;
    }
    size_t middle = begin + (end - begin) / 2;
    if (first < middle) take(o, 2 * i, begin, middle, first, last, r);
    if (last >= middle) take(o, 2 * i + 1, middle, end, first, last, r);
}

static void meet(occupancy *o, const run_set *s) {
    if (s->n == 0) return;
    o->met[o->n_met] = s;
    o->seen[o->n_met++] = 0;
}

static void meet_all(occupancy *o, size_t i, size_t begin, size_t end, size_t first, size_t last) {
    if (first <= begin && end - 1 <= last) {
        meet(o, &o->nodes[i].within);
        return;
    }
    meet(o, &o->nodes[i].throughout);
    size_t middle = begin + (end - begin) / 2;
    if (first < middle) meet_all(o, 2 * i, begin, middle, first, last);
    if (last >= middle) meet_all(o, 2 * i + 1, middle, end, first, last);
}

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
    meet_all(o, 1, 0, o->n_leaves, first, last);
    do {
        before = at;
        for (size_t k = 0; k < o->n_met; k++) at = pass_runs(o, k, at, n_bytes, alignment);
    } while (at != before);
    take(o, 1, 0, o->n_leaves, first, last, (run){at, round_up(at + n_bytes, o->grain)});
    return at;
}
