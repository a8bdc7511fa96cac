/* waits.c - what every op must wait for on the other streams.
 *
 * Ops of one stream run in list order. Across streams an op waits for the last earlier op of each stream that writes bytes it
 * touches or touches bytes it writes. Bytes, not values: two values with disjoint lifetimes may share them, and then the
 * second must wait for the first. The list order satisfies every such pair, so no two streams can wait for each other.
 *
 * op.wait counts ops of a stream within the section: 3 means its third op must be done. An op does not wait again for what an
 * earlier op of its stream has waited for.
 *
 * Each stream has a tree over the bytes, cut where any value begins or ends, which records the numbers of its ops. Numbers
 * only grow, so the last recorded one is the largest, and the search skips nodes that the op has already waited for. */
#include "pass/pass.h"

#include <stdlib.h>

/* A range of pieces of memory, by their numbers. */
typedef struct pieces {
    size_t begin, end;
} pieces;

/* ---- a tree over the pieces ---------------------------------------------------------------------------------------------- */

enum { TOUCHED, WRITTEN, ACCESS_KINDS };

/* Of the pieces below a node: the last op that touched or wrote any of them, and the last that did so to all of them. */
typedef struct mark {
    uint32_t any[ACCESS_KINDS], all[ACCESS_KINDS];
} mark;

/* Ops of one stream in one section, in order. */
typedef struct lane {
    uint32_t n;
    uint32_t waited[STREAM_COUNT]; /* what its ops so far have waited for */
    mark *marks;                   /* of the tree: the children of node i are 2 i and 2 i + 1, the root is 1 */
} lane;

static void mark_access(lane *l, size_t n_leaves, pieces at, int access) {
    mark *marks = l->marks;
    for (size_t i = at.begin + n_leaves, end = at.end + n_leaves; i < end; i /= 2, end /= 2) {
        if (i % 2) marks[i].any[access] = marks[i].all[access] = l->n, i++;
        if (end % 2) end--, marks[end].any[access] = marks[end].all[access] = l->n;
    }
    for (size_t i = (at.begin + n_leaves) / 2; i; i /= 2) marks[i].any[access] = l->n;
    for (size_t i = (at.end - 1 + n_leaves) / 2; i; i /= 2) marks[i].any[access] = l->n;
}

/* The last op with this access to one of these pieces, if it is later than `known`; else known. Node i covers the pieces
 * `here`. */
static uint32_t last_access(const mark *marks, size_t i, pieces here, pieces at, int access, uint32_t known) {
    if (marks[i].any[access] <= known) return known;
    if (at.begin <= here.begin && here.end <= at.end) return marks[i].any[access];
    known = MAX(known, marks[i].all[access]);
    size_t middle = here.begin + (here.end - here.begin) / 2;
    if (at.begin < middle) known = last_access(marks, 2 * i, (pieces){here.begin, middle}, at, access, known);
    if (at.end > middle) known = last_access(marks, 2 * i + 1, (pieces){middle, here.end}, at, access, known);
    return known;
}

/* ---- the bytes of an op ----------------------------------------------------------------------------------------------- */

typedef struct waiter {
    program *p;
    size_t first, end;        /* ops of the section */
    size_t begin[TIER_COUNT]; /* start of each tier, as if the tiers were one address range */
    sort_row *points; /* addresses where values begin or end, sorted and unique; a piece reaches from one to the next */
    size_t n_points, capacity;
    pieces *of_value; /* per value that the section uses */
    size_t *seen;     /* per value: the section's first op and one; smaller: not seen there */
    size_t n_leaves;
    lane lanes[STREAM_COUNT];
} waiter;

enum { OPERANDS_MOST = OP_MAX_IN + OP_MAX_OUT + 2 };
typedef struct operand {
    value_id value;
    bool written;
} operand;

static int list_operands(const op *o, operand out[OPERANDS_MOST]) {
    int n = 0;
    for (int k = 0; k < op_input_count(o->kind); k++)
        if (o->in[k]) out[n++] = (operand){o->in[k], false};
    for (int k = 0; k < op_output_count(o->kind); k++)
        if (o->out[k]) out[n++] = (operand){o->out[k], true};
    if (o->work) out[n++] = (operand){o->work, true};
    if (o->rows) out[n++] = (operand){o->rows, false};
    return n;
}

/* A file is read and written in whole sectors. */
static bool moves_sectors(const op *o) { return o->stream == STREAM_READ || o->stream == STREAM_WRITE; }

/* Each tier begins after all bytes that an op may touch of the tier before it: the last sector of a value may reach past its
 * end. */
static void assign_tier_ranges(waiter *w) {
    size_t n_bytes[TIER_COUNT] = {0};
    for (value_id v = 1; v < w->p->n_values; v++) {
        const value *a = &w->p->values[v];
        if (a->view_of || a->offset == VALUE_NOT_PLACED) continue;
        n_bytes[a->tier] = MAX(n_bytes[a->tier], a->offset + value_bytes(a) + NVME_SECTOR);
    }
    for (tier t = 1; t < TIER_COUNT; t++) w->begin[t] = w->begin[t - 1] + n_bytes[t - 1];
}

typedef struct bytes {
    size_t begin, end;
} bytes;

static bytes find_bytes(const waiter *w, value_id v, bool in_sectors) {
    const program *p = w->p;
    size_t inside, n_bytes = value_bytes(&p->values[v]);
    const value *root = &p->values[program_root(p, v, &inside)];
    size_t begin = w->begin[root->tier] + root->offset + inside;
    return (bytes){begin, begin + (in_sectors ? sectors_up(n_bytes) : n_bytes)};
}

/* Both ends of a value are numbered 2 v and 2 v + 1; ends of sectors are looked up when needed. */
static void add_points(waiter *w, value_id v, bool in_sectors) {
    bytes b = find_bytes(w, v, in_sectors);
    w->points = array_grow(w->points, &w->capacity, w->n_points + 2, sizeof *w->points);
    w->points[w->n_points++] = (sort_row){b.begin, in_sectors ? 0 : 2 * (size_t)v};
    w->points[w->n_points++] = (sort_row){b.end, in_sectors ? 0 : 2 * (size_t)v + 1};
}

static void collect_points(waiter *w) {
    operand list[OPERANDS_MOST];
    w->n_points = 0;
    for (size_t i = w->first; i < w->end; i++) {
        const op *o = &w->p->ops[i];
        bool in_sectors = moves_sectors(o);
        for (int k = 0, n = list_operands(o, list); k < n; k++) {
            value_id v = list[k].value;
            if (in_sectors) add_points(w, v, true);
            if (w->seen[v] == w->first + 1) continue;
            w->seen[v] = w->first + 1;
            add_points(w, v, false);
        }
    }
}

/* Sorts the points and looks up every value. */
static void number_points(waiter *w) {
    size_t n = 0;
    sort_rows(w->points, w->n_points);
    for (size_t i = 0; i < w->n_points; i++) {
        sort_row x = w->points[i];
        if (n == 0 || x.key != w->points[n - 1].key) w->points[n++] = x;
        pieces *of = &w->of_value[x.item / 2]; /* not set for the end of a sector */
        *(x.item % 2 ? &of->end : &of->begin) = n - 1;
    }
    w->n_points = n;
}

static int compare_points(const void *a, const void *b) {
    const sort_row *x = a, *y = b;
    return x->key < y->key ? -1 : x->key > y->key;
}

static size_t find_point(const waiter *w, size_t byte) {
    const sort_row *found =
        bsearch(&(sort_row){.key = byte}, w->points, w->n_points, sizeof *w->points, compare_points);
    return (size_t)(found - w->points);
}

static pieces find_sectors(const waiter *w, value_id v) {
    bytes b = find_bytes(w, v, true);
    return (pieces){find_point(w, b.begin), find_point(w, b.end)};
}

/* ---- the waits --------------------------------------------------------------------------------------------------------- */

/* Allocates the trees of streams that have ops; a single stream needs none. */
static bool open_section(waiter *w) {
    bool used[STREAM_COUNT] = {false};
    int n_used = 0;
    for (size_t i = w->first; i < w->end; i++) used[w->p->ops[i].stream] = true;
    for (stream s = 0; s < STREAM_COUNT; s++) n_used += used[s];
    if (n_used < 2) return false;
    collect_points(w);
    number_points(w);
    for (w->n_leaves = 1; w->n_leaves < w->n_points;) w->n_leaves *= 2;
    for (stream s = 0; s < STREAM_COUNT; s++)
        w->lanes[s] = (lane){.marks = used[s] ? mem_alloc(2 * w->n_leaves * sizeof(mark)) : NULL};
    return true;
}

static void close_section(waiter *w) {
    for (stream s = 0; s < STREAM_COUNT; s++) free(w->lanes[s].marks);
}

static void find_op_waits(waiter *w, op *o) {
    operand list[OPERANDS_MOST];
    pieces at[OPERANDS_MOST], root = {0, w->n_leaves};
    lane *mine = &w->lanes[o->stream];
    int n = list_operands(o, list);
    for (int k = 0; k < n; k++) at[k] = moves_sectors(o) ? find_sectors(w, list[k].value) : w->of_value[list[k].value];
    for (stream s = 0; s < STREAM_COUNT; s++) {
        if (s == o->stream || w->lanes[s].n == 0) continue;
        uint32_t last = mine->waited[s];
        for (int k = 0; k < n; k++)
            if (at[k].begin < at[k].end)
                last = last_access(w->lanes[s].marks, 1, root, at[k], list[k].written ? TOUCHED : WRITTEN, last);
        if (last > mine->waited[s]) o->wait[s] = mine->waited[s] = last;
    }
    mine->n++;
    for (int k = 0; k < n; k++) {
        if (at[k].begin == at[k].end) continue;
        mark_access(mine, w->n_leaves, at[k], TOUCHED);
        if (list[k].written) mark_access(mine, w->n_leaves, at[k], WRITTEN);
    }
}

static void find_section_waits(waiter *w) {
    for (size_t i = w->first; i < w->end; i++) memset(w->p->ops[i].wait, 0, sizeof w->p->ops[i].wait);
    if (!open_section(w)) return;
    for (size_t i = w->first; i < w->end; i++) find_op_waits(w, &w->p->ops[i]);
    close_section(w);
}

status pass_waits(program *p, const pass_options *options, step_interface *step) {
    waiter w = {.p = p};
    w.of_value = mem_alloc(p->n_values * sizeof *w.of_value);
    w.seen = mem_alloc(p->n_values * sizeof *w.seen);
    assign_tier_ranges(&w);
    for (w.first = 0; w.first < p->n_ops; w.first = w.end) {
        for (w.end = w.first; w.end < p->n_ops && p->ops[w.end].section == p->ops[w.first].section;) w.end++;
        find_section_waits(&w);
    }
    free(w.points);
    free(w.of_value);
    free(w.seen);
    return OK;
}
