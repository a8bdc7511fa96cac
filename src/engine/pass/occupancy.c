/* occupancy.c - which bytes are taken when, as a segment tree over time.
 *
 * A lifetime is split into the O(log n) largest tree nodes that cover it, its stretches; its block is stored at these. A node
 * has two sets of bytes: `throughout`, of the blocks stored at it, and `within`, of those stored at it or below. To place a
 * lifetime, search `within` at its stretches and `throughout` at all nodes above them: together these are all blocks alive at
 * one of its moments. Most high nodes are no lifetime's stretch and have no `within`.
 *
 * A set is a sorted list of byte ranges. Adjacent blocks form one range, so lists stay short where packing is good. Ends are
 * rounded up to the grain: no block can begin in between. */
#include "pass/occupancy.h"

#include <stdlib.h>
#include <string.h>

typedef struct run {
    size_t begin, end;
} run;

typedef struct run_set {
    run *runs;
    uint32_t n, capacity;
} run_set;

enum { LEVELS_MOST = 64, FIRST_CAPACITY = 4 };

/* The nodes of a lifetime: its stretches, and the nodes above them. */
typedef struct life_nodes {
    size_t stretches[2 * LEVELS_MOST], above[2 * LEVELS_MOST];
    int n_stretches, n_above;
} life_nodes;

struct occupancy {
    size_t grain, n_leaves;       /* a power of two; the children of node i are 2 i and 2 i + 1, the root is 1 */
    run_set *throughout, *within; /* of each node; within.capacity 0: no stretch of any lifetime */
    arena memory;                 /* runs of all sets: they only grow, and are freed together */
    life_nodes at;                /* of the current lifetime */
    const run_set *searched[4 * LEVELS_MOST];
    uint32_t seen[4 * LEVELS_MOST]; /* runs of each that the search has passed */
    int n_searched;
};

occupancy *occupancy_open(size_t n_moments, size_t grain) {
    occupancy *o = mem_alloc(sizeof *o);
    o->grain = grain;
    o->n_leaves = 1;
    while (o->n_leaves < n_moments) o->n_leaves *= 2;
    o->throughout = mem_alloc(2 * o->n_leaves * sizeof *o->throughout);
    o->within = mem_alloc(2 * o->n_leaves * sizeof *o->within);
    arena_init(&o->memory);
    return o;
}

void occupancy_close(occupancy *o) {
    arena_fini(&o->memory);
    free(o->throughout);
    free(o->within);
    free(o);
}

void occupancy_clear(occupancy *o) {
    for (size_t i = 0; i < 2 * o->n_leaves; i++) o->throughout[i].n = o->within[i].n = 0;
}

/* ---- sets ------------------------------------------------------------------------------------------------------------ */

static void reserve(occupancy *o, run_set *s, uint32_t capacity) {
    run *runs = arena_array(&o->memory, run, capacity);
    if (s->n) memcpy(runs, s->runs, s->n * sizeof *runs);
    s->runs = runs;
    s->capacity = capacity;
}

/* Joins the new run with those that it touches. */
static void add_run(occupancy *o, run_set *s, run r) {
    uint32_t low = 0, high = s->n;
    while (low < high) { /* for the first run that does not end before it */
        uint32_t middle = low + (high - low) / 2;
        if (s->runs[middle].end < r.begin) low = middle + 1;
        else high = middle;
    }
    for (high = low; high < s->n && s->runs[high].begin <= r.end; high++) {
        r.begin = MIN(r.begin, s->runs[high].begin);
        r.end = MAX(r.end, s->runs[high].end);
    }
    if (low == high) {
        if (s->n == s->capacity) reserve(o, s, MAX(2 * s->capacity, (uint32_t)FIRST_CAPACITY));
        memmove(s->runs + low + 1, s->runs + low, (s->n - low) * sizeof *s->runs);
        s->n++;
    } else if (high > low + 1) {
        memmove(s->runs + low + 1, s->runs + high, (s->n - high) * sizeof *s->runs);
        s->n -= high - low - 1;
    }
    s->runs[low] = r;
}

/* ---- lifetimes ------------------------------------------------------------------------------------------------------- */

/* Adds the ancestors of leaf `moment` that are not fully inside the lifetime, up to `stop`. */
static void find_above(occupancy *o, size_t moment, size_t first, size_t last, size_t stop) {
    size_t i = (moment + o->n_leaves) / 2, length = 2;
    for (; i != stop && i; i /= 2, length *= 2) {
        size_t begin = i * length - o->n_leaves;
        if (begin < first || begin + length - 1 > last) o->at.above[o->at.n_above++] = i;
    }
}

static void find_nodes(occupancy *o, size_t first, size_t last) {
    life_nodes *at = &o->at;
    at->n_stretches = at->n_above = 0;
    size_t low = first + o->n_leaves, high = last + o->n_leaves, meeting = low;
    for (size_t other = high; meeting != other; meeting /= 2, other /= 2) {}
    for (size_t end = high + 1; low < end; low /= 2, end /= 2) {
        if (low % 2) at->stretches[at->n_stretches++] = low++;
        if (end % 2) at->stretches[at->n_stretches++] = --end;
    }
    find_above(o, first, first, last, 0);
    if (first < last) find_above(o, last, first, last, meeting); /* the ancestors above are the same */
}

void occupancy_expect(occupancy *o, size_t first, size_t last) {
    find_nodes(o, first, last);
    for (int i = 0; i < o->at.n_stretches; i++) {
        run_set *s = &o->within[o->at.stretches[i]];
        if (s->capacity == 0) reserve(o, s, FIRST_CAPACITY);
    }
}

static void mark_taken(occupancy *o, run r) {
    for (int i = 0; i < o->at.n_stretches; i++) {
        add_run(o, &o->within[o->at.stretches[i]], r);
        if (o->at.stretches[i] < o->n_leaves)
            add_run(o, &o->throughout[o->at.stretches[i]], r); /* a leaf has none below */
    }
    for (int i = 0; i < o->at.n_above; i++)
        if (o->within[o->at.above[i]].capacity) add_run(o, &o->within[o->at.above[i]], r);
}

static void add_searched(occupancy *o, const run_set *s) {
    if (s->n == 0) return;
    o->searched[o->n_searched] = s;
    o->seen[o->n_searched++] = 0;
}

/* The first address from `at` on where n_bytes overlap no run of set k. */
static size_t skip_runs(occupancy *o, int k, size_t at, size_t n_bytes, size_t alignment) {
    const run_set *s = o->searched[k];
    uint32_t i = o->seen[k];
    for (; i < s->n && s->runs[i].begin < at + n_bytes; i++)
        if (s->runs[i].end > at) at = align_up(s->runs[i].end, alignment);
    o->seen[k] = i;
    return at;
}

size_t occupancy_place(occupancy *o, size_t first, size_t last, size_t base, size_t n_bytes, size_t alignment) {
    size_t at = align_up(base, alignment), before;
    o->n_searched = 0;
    find_nodes(o, first, last);
    for (int i = o->at.n_above; i-- > 0;) add_searched(o, &o->throughout[o->at.above[i]]);
    for (int i = o->at.n_stretches; i-- > 0;) add_searched(o, &o->within[o->at.stretches[i]]);
    do {
        before = at;
        for (int k = 0; k < o->n_searched; k++) at = skip_runs(o, k, at, n_bytes, alignment);
    } while (at != before);
    mark_taken(o, (run){at, align_up(at + n_bytes, o->grain)});
    return at;
}
