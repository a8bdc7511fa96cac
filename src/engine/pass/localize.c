/* localize.c - bring every operand to where its op runs.
 *
 * Place and offload only set where values are stored (value.tier) and where ops run (op.at). This pass inserts the copies: an
 * operand in another tier is fetched into a window of the op's tier before its block; a result is written into a window and
 * stored after its block. One window serves all readers of a block. Parameters, gradients and states are fetched again by
 * every block that needs them, because freeing their bytes is the purpose; any other value that crosses tiers (tokens, the
 * residual stream between two devices) is fetched once.
 *
 * Byte ranges of the value that owns the bytes decide what may be reordered: two slices of one tensor are independent, and a
 * fetch never comes before the last store of its bytes. */
#include "pass/moves.h"

#include <stdlib.h>

enum { NO_STORE = -1 };

/* A write or a window of a range of a value's bytes, in this section. */
typedef struct event {
    size_t begin, end;
    bool is_write;
    size_t op;       /* writes: which */
    int64_t store;   /* writes: handle of the store to its tier; NO_STORE: written in place */
    tier at;         /* windows: where ... */
    value_id window; /* ... which value; NO_VALUE: stale */
    size_t block;
    size_t next[2]; /* by link; 0: the last */
} event;

/* Events are in two linked lists, the newest first: all of a root, and those of the root as a whole or of one of its cells. */
enum { LINK_ROOT, LINK_NEAR };

/* A root of which ops use slices is divided into cells no smaller than any slice. An event is in the cell in which its slice
 * begins, so those that overlap a slice are in three cells: with one list per root, a tensor with a slice for every layer
 * (the partial sums of the norm) would take time quadratic in the layers. */
typedef struct root_chains {
    size_t all, whole;   /* heads */
    size_t n_slices;     /* that ops take of it; 0: it has no cells */
    size_t n_cell_bytes; /* while they are counted: of the largest slice */
    size_t first_cell;
} root_chains;

typedef struct localizer {
    moves m;
    program *p;
    event *events; /* [0] is unused */
    size_t n_events, capacity;
    root_chains *roots; /* of the old table */
    size_t n_roots;
    size_t *cells; /* heads */
    size_t n_cells;
    op *ops; /* of the section, rewritten */
} localizer;

typedef struct range {
    value_id root;
    size_t begin, end;
} range;

static range range_of(const program *p, value_id v) {
    range r;
    r.root = program_root(p, v, &r.begin);
    r.end = r.begin + value_bytes(&p->values[v]);
    return r;
}

static bool overlaps(const event *e, const range *r) { return e->begin < r->end && r->begin < e->end; }

static bool is_whole(const program *p, const range *r) {
    return r->begin == 0 && r->end == value_bytes(&p->values[r->root]);
}

static size_t *cell_at(localizer *l, value_id root, size_t byte) {
    return &l->cells[l->roots[root].first_cell + byte / l->roots[root].n_cell_bytes];
}

static event *add_event(localizer *l, const range *r) {
    l->events = array_grow(l->events, &l->capacity, l->n_events + 1, sizeof *l->events);
    size_t *all = &l->roots[r->root].all;
    size_t *near = is_whole(l->p, r) ? &l->roots[r->root].whole : cell_at(l, r->root, r->begin);
    event *e = &l->events[l->n_events];
    *e = (event){.begin = r->begin, .end = r->end, .store = NO_STORE, .next = {*all, *near}};
    *all = *near = l->n_events++;
    return e;
}

/* Heads of the chains that hold every event that overlaps r; all have the same link. */
enum { CHAINS_MOST = 4 };
static int find_chains(localizer *l, const range *r, size_t heads[CHAINS_MOST], int *link) {
    const root_chains *c = &l->roots[r->root];
    int n = 0;
    *link = is_whole(l->p, r) ? LINK_ROOT : LINK_NEAR;
    heads[n++] = *link == LINK_ROOT ? c->all : c->whole;
    if (*link == LINK_ROOT) return n;
    size_t *last = cell_at(l, r->root, MAX(r->end, (size_t)1) - 1);
    for (size_t *k = cell_at(l, r->root, r->begin - MIN(r->begin, c->n_cell_bytes - 1)); k <= last; k++)
        heads[n++] = *k;
    return n;
}

/* Returns the key after the last write of these bytes; moves every store of them to `latest` or earlier. */
static size_t order_after_writes(localizer *l, const range *r, size_t latest) {
    size_t earliest = 0, heads[CHAINS_MOST];
    int link, n = find_chains(l, r, heads, &link);
    for (int k = 0; k < n; k++)
        for (size_t i = heads[k]; i; i = l->events[i].next[link]) {
            const event *e = &l->events[i];
            if (!e->is_write || !overlaps(e, r)) continue;
            size_t behind = 2 * e->op + 1;
            earliest = MAX(earliest, behind);
            if (e->store != NO_STORE) moves_limit_store(&l->m, (size_t)e->store, MAX(behind, latest));
        }
    return earliest;
}

static void note_write(localizer *l, const range *r, size_t op_index, int64_t store) {
    size_t heads[CHAINS_MOST];
    int link, n = find_chains(l, r, heads, &link);
    for (int k = 0; k < n; k++)
        for (size_t i = heads[k]; i; i = l->events[i].next[link])
            if (!l->events[i].is_write && overlaps(&l->events[i], r)) l->events[i].window = NO_VALUE;
    event *e = add_event(l, r);
    e->is_write = true;
    e->op = op_index;
    e->store = store;
}

static void note_window(localizer *l, const range *r, tier at, value_id window, size_t block) {
    event *e = add_event(l, r);
    e->at = at;
    e->window = window;
    e->block = block;
}

static bool is_fetched_again(const value *v) {
    return v->persistent && (v->role == ROLE_PARAM || v->role == ROLE_GRAD || v->role == ROLE_STATE);
}

/* The value that op i reads instead of v. */
static value_id local_input(localizer *l, size_t i, value_id v) {
    tier at = l->ops[i].at;
    range r = range_of(l->p, v);
    size_t block = l->m.block[i];
    if (l->p->values[r.root].tier == at) {
        order_after_writes(l, &r, i ? 2 * i - 1 : 0);
        return v;
    }
    bool again = is_fetched_again(&l->p->values[r.root]);
    size_t newest = is_whole(l->p, &r) ? l->roots[r.root].whole : *cell_at(l, r.root, r.begin);
    for (size_t k = newest; k; k = l->events[k].next[LINK_NEAR]) {
        const event *e = &l->events[k];
        if (e->is_write || !e->window || e->at != at || e->begin != r.begin || e->end != r.end) continue;
        if (!again || e->block == block) return e->window;
    }
    /* After the last write, even if the fetch is then late; its stores have the same key, but were added before. */
    size_t earliest = order_after_writes(l, &r, 0);
    value_id window = moves_fetch(&l->m, v, at, block, earliest);
    note_window(l, &r, at, window, block);
    return window;
}

/* The value in tier `at` that op i writes instead of v; `reads`: its old content is needed. */
static value_id local_output(localizer *l, size_t i, value_id v, tier at, bool reads) {
    range r = range_of(l->p, v);
    size_t block = l->m.block[i];
    if (l->p->values[r.root].tier == at) {
        order_after_writes(l, &r, i ? 2 * i - 1 : 0);
        note_write(l, &r, i, NO_STORE);
        return v;
    }
    value_id window;
    if (reads) window = local_input(l, i, v);
    else {
        order_after_writes(l, &r, i ? 2 * i - 1 : 0); /* two stores to the same bytes keep their order */
        window = moves_window(&l->m, v, at);
    }
    note_write(l, &r, i, (int64_t)moves_store(&l->m, window, v, block));
    note_window(l, &r, at, window, block);
    return window;
}

static void count_slice(localizer *l, value_id v) {
    if (v == NO_VALUE) return;
    range r = range_of(l->p, v);
    root_chains *c = &l->roots[r.root];
    if (is_whole(l->p, &r)) return;
    c->n_slices++;
    c->n_cell_bytes = MAX(c->n_cell_bytes, MAX(r.end - r.begin, (size_t)1));
}

/* No more cells than slices, and one. */
static void open_cells(localizer *l, const op *ops, size_t n_ops) {
    memset(l->roots, 0, l->n_roots * sizeof *l->roots);
    l->n_cells = 0;
    for (size_t i = 0; i < n_ops; i++) {
        for (int k = 0; k < op_input_count(ops[i].kind); k++) count_slice(l, ops[i].in[k]);
        for (int k = 0; k < op_output_count(ops[i].kind); k++) count_slice(l, ops[i].out[k]);
    }
    for (value_id v = 1; v < l->n_roots; v++) {
        root_chains *c = &l->roots[v];
        if (c->n_slices == 0) continue;
        size_t n_bytes = value_bytes(&l->p->values[v]);
        c->n_cell_bytes = MAX(c->n_cell_bytes, (n_bytes + c->n_slices - 1) / c->n_slices);
        c->first_cell = l->n_cells;
        l->n_cells += n_bytes / c->n_cell_bytes + 1;
    }
    l->cells = mem_alloc((l->n_cells + 1) * sizeof *l->cells);
}

static void localize_section(localizer *l, section s, op *ops, size_t n_ops, int prefetch) {
    l->ops = ops;
    l->n_events = 1;
    open_cells(l, ops, n_ops);
    moves_open(&l->m, l->p, s, ops, n_ops, prefetch);
    for (size_t i = 0; i < n_ops; i++) {
        op *o = &ops[i];
        if (o->kind == OP_COPY) { /* written by another pass: it names both tiers */
            range from = range_of(l->p, o->in[COPY_X]), to = range_of(l->p, o->out[COPY_Y]);
            order_after_writes(l, &from, i ? 2 * i - 1 : 0);
            /* nvme exchanges data with host memory only. */
            if (l->p->values[to.root].tier == TIER_NVME && l->p->values[from.root].tier != TIER_HOST) {
                o->out[COPY_Y] = local_output(l, i, o->out[COPY_Y], TIER_HOST, false);
                continue;
            }
            order_after_writes(l, &to, i ? 2 * i - 1 : 0);
            note_write(l, &to, i, NO_STORE);
            continue;
        }
        for (int k = 0; k < op_input_count(o->kind); k++)
            if (o->in[k]) o->in[k] = local_input(l, i, o->in[k]);
        if (o->rows) o->rows = local_input(l, i, o->rows);
        for (int k = 0; k < op_output_count(o->kind); k++)
            if (o->out[k]) o->out[k] = local_output(l, i, o->out[k], o->at, op_reads_output(o, k));
    }
    moves_close(&l->m);
    free(l->cells);
}

status pass_localize(program *p, const pass_options *options, step_interface *step) {
    bool local = true;
    for (value_id v = 1; v < p->n_values && local; v++) local = p->values[v].tier == TIER_DEVICE;
    for (size_t i = 0; i < p->n_ops && local; i++) local = p->ops[i].at == TIER_DEVICE;
    if (local) return OK;
    localizer l = {.p = p, .n_roots = p->n_values};
    l.roots = mem_alloc(p->n_values * sizeof *l.roots);
    size_t n_ops;
    op *ops = program_take_ops(p, &n_ops);
    for (size_t first = 0, end; first < n_ops; first = end) {
        for (end = first; end < n_ops && ops[end].section == ops[first].section;) end++;
        localize_section(&l, ops[first].section, ops + first, end - first, options->choice.prefetch);
    }
    free(ops);
    free(l.roots);
    free(l.events);
    return OK;
}
