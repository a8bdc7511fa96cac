/* moves.c - write the copies between tiers.
 *
 * nvme exchanges data with host memory only, in whole sectors: such a copy goes through a staging value on the host that is
 * aligned and padded to sectors. The copies between device and staging and between staging and file are on two streams, so
 * that the drive works on one block while the bus carries the next. */
#include "pass/moves.h"

#include <stdlib.h>

struct pending_copy {
    size_t key, sequence;
    bool second; /* second copy of a store through staging */
    op op;
};

void moves_open(moves *m, program *p, section s, const op *ops, size_t n_ops, int prefetch) {
    *m = (moves){.p = p, .section = s, .ops = ops, .n_ops = n_ops, .prefetch = prefetch};
    m->block = mem_alloc((n_ops + 1) * sizeof *m->block);
    m->block_first = mem_alloc((n_ops + 1) * sizeof *m->block_first);
    int layer = 0;
    for (size_t i = 0; i < n_ops; i++) {
        if (moves_begins_block(&ops[i], i == 0, &layer)) m->block_first[m->n_blocks++] = i;
        m->block[i] = m->n_blocks - 1;
    }
}

static int by_key(const void *a, const void *b) {
    const struct pending_copy *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return x->sequence < y->sequence ? -1 : x->sequence > y->sequence;
}

void moves_close(moves *m) {
    if (m->n_copies) qsort(m->copies, m->n_copies, sizeof *m->copies, by_key);
    size_t next = 0;
    for (size_t i = 0; i < m->n_ops; i++) {
        for (; next < m->n_copies && m->copies[next].key <= 2 * i; next++) program_append(m->p, &m->copies[next].op);
        program_append(m->p, &m->ops[i]);
    }
    for (; next < m->n_copies; next++) program_append(m->p, &m->copies[next].op);
    free(m->block);
    free(m->block_first);
    free(m->copies);
    *m = (moves){0};
}

size_t moves_fetch_key(const moves *m, size_t block, int distance) {
    return 2 * m->block_first[block > (size_t)distance ? block - (size_t)distance : 0];
}

size_t moves_store_key(const moves *m, size_t block, int distance) {
    size_t next = block + (size_t)distance + 1;
    return next < m->n_blocks ? 2 * m->block_first[next] - 1 : 2 * m->n_ops;
}

void moves_add(moves *m, size_t key, const op *o) {
    m->copies = array_grow(m->copies, &m->capacity, m->n_copies + 1, sizeof *m->copies);
    m->copies[m->n_copies] = (struct pending_copy){.key = key, .sequence = m->n_copies, .op = *o};
    m->n_copies++;
}

static void add_copy(moves *m, size_t key, value_id from, value_id to) {
    op o = {.kind = OP_COPY, .section = m->section, .layer = m->p->values[to].layer};
    o.in[COPY_X] = from;
    o.out[COPY_Y] = to;
    moves_add(m, key, &o);
}

static value_id add_like(moves *m, const char *why, value_id like, tier where) {
    program *p = m->p;
    value v = p->values[like]; /* the table may move when a value is added */
    char name[256];
    snprintf(name, sizeof name, "%s.%zu.%.180s", why, p->n_values, v.name);
    value_id id = program_value(p, name, v.type, v.shape, v.role, m->section);
    p->values[id].tier = where;
    p->values[id].layer = v.layer;
    return id;
}

/* A host value that a file can be read into. */
static value_id add_staging(moves *m, value_id like) {
    program *p = m->p;
    value v = p->values[like];
    char name[256];
    snprintf(name, sizeof name, "sectors.%zu.%.180s", p->n_values, v.name);
    size_t n = sectors_up(value_bytes(&v));
    value_id bytes = program_value(p, name, DTYPE_U8, SHAPE((int64_t)n), v.role, m->section);
    p->values[bytes].tier = TIER_HOST;
    p->values[bytes].layer = v.layer;
    p->values[bytes].alignment = NVME_SECTOR;
    snprintf(name, sizeof name, "staged.%zu.%.180s", p->n_values, v.name);
    value_id id = program_view(p, name, bytes, 0, v.shape);
    p->values[id].type = v.type;
    return id;
}

/* The host fetches values that the device has just written, and the next kernels of the device soon need their bytes: half of
 * the distance, or all of a distance of one, is left for the copy to be late. */
static int fetch_distance(const moves *m, value_id from, tier to) {
    bool leaves_device = to == TIER_HOST && tier_is_device(program_tier(m->p, from));
    return leaves_device ? m->prefetch / 2 : m->prefetch;
}

value_id moves_fetch(moves *m, value_id from, tier to, size_t block, size_t earliest) {
    size_t key = MAX(moves_fetch_key(m, block, fetch_distance(m, from, to)), earliest);
    if (program_tier(m->p, from) != TIER_NVME) {
        value_id window = add_like(m, "fetched", from, to);
        add_copy(m, key, from, window);
        return window;
    }
    value_id staged = add_staging(m, from);
    if (to == TIER_HOST) {
        add_copy(m, key, from, staged);
        return staged;
    }
    value_id window = add_like(m, "fetched", from, to);
    add_copy(m, MAX(moves_fetch_key(m, block, 2 * m->prefetch), earliest), from, staged);
    add_copy(m, key, staged, window);
    return window;
}

value_id moves_window(moves *m, value_id offloaded, tier at) {
    bool to_file = program_tier(m->p, offloaded) == TIER_NVME && at == TIER_HOST;
    return to_file ? add_staging(m, offloaded) : add_like(m, "made", offloaded, at);
}

size_t moves_store(moves *m, value_id window, value_id offloaded, size_t block) {
    size_t handle = m->n_copies, key = moves_store_key(m, block, m->prefetch);
    if (program_tier(m->p, offloaded) == TIER_NVME && program_tier(m->p, window) != TIER_HOST) {
        value_id staged = add_staging(m, offloaded);
        add_copy(m, key, window, staged);
        add_copy(m, moves_store_key(m, block, 2 * m->prefetch), staged, offloaded);
        m->copies[m->n_copies - 1].second = true;
    } else {
        add_copy(m, key, window, offloaded);
    }
    return handle;
}

void moves_limit_store(moves *m, size_t handle, size_t latest) {
    m->copies[handle].key = MIN(m->copies[handle].key, latest);
    if (handle + 1 < m->n_copies && m->copies[handle + 1].second)
        m->copies[handle + 1].key = MIN(m->copies[handle + 1].key, latest);
}

value_id moves_spill(moves *m, value_id value, tier to, size_t last_use, size_t next_use) {
    value_id offloaded = add_like(m, "spilled", value, to);
    moves_store(m, value, offloaded, m->block[last_use]);
    return moves_fetch(m, offloaded, program_tier(m->p, value), m->block[next_use], 0);
}
