#pragma once
/* moves.h - private to pass: copies between tiers, their place in the list of ops, and the blocks that prefetch counts in.
 *
 * A place in the list is a key: 2 i is before op i of the section's old list, 2 i + 1 after it. Copies are collected with
 * their keys and merged in at the end; those with the same key keep the order in which they were added.
 *
 * A copy's place in the list is not when it runs. It runs on a stream of its own, as soon as its source is written and its
 * destination is free. The place decides how long its bytes are reserved: a fetch some blocks before its use and a store some
 * blocks after it let the copy overlap with kernels. */
#include "pass/pass.h"

typedef struct moves {
    program *p;
    section section;
    const op *ops; /* of the section, before anything is added */
    size_t n_ops;
    int prefetch;
    size_t *block;       /* of each op */
    size_t *block_first; /* of each block: its first op */
    size_t n_blocks;
    struct pending_copy *copies;
    size_t n_copies, capacity;
} moves;

/* What the host does for blocks of the device: it adds gradients, and sends. Other ops on the host are of layers that are placed
 * there. */
static inline bool moves_serves_block(const op *o) {
    return o->at == TIER_HOST && (o->kind == OP_ACCUMULATE || op_is_comm(o->kind));
}
/* Blocks are runs of ops of one layer; in the update every op is its own. What serves blocks belongs to the one around it.
 * Does a block begin with o? *layer: of the current block, kept up to date. */
static inline bool moves_begins_block(const op *o, bool is_first, int *layer) {
    bool serves = moves_serves_block(o);
    bool begins = is_first || o->section == SECTION_UPDATE || (!serves && o->layer != *layer);
    if (is_first || !serves) *layer = o->layer;
    return begins;
}
void moves_open(moves *m, program *p, section s, const op *ops, size_t n_ops, int prefetch);
void moves_add(moves *m, size_t key, const op *o); /* any op, at that place */
/* Appends the section with its copies to the program. */
void moves_close(moves *m);

size_t moves_fetch_key(const moves *m, size_t block, int distance); /* before the block `distance` blocks earlier */
size_t moves_store_key(const moves *m, size_t block, int distance); /* after the block `distance` blocks later */

/* A new value with the bytes of `from` in another tier, copied before its use in `block` (through host memory where one side
 * is nvme), at key `earliest` or later. */
value_id moves_fetch(moves *m, value_id from, tier to, size_t block, size_t earliest);
/* A new value like `offloaded` in tier `at`, for an op to write; moves_store copies it to `offloaded`. */
value_id moves_window(moves *m, value_id offloaded, tier at);
/* Copies a window to `offloaded` after its use in `block`. Returns a handle for moves_limit_store. */
size_t moves_store(moves *m, value_id window, value_id offloaded, size_t block);
void moves_limit_store(moves *m, size_t handle, size_t latest); /* the store must be at or before that key */
/* Offloads `value` after op `last_use` and fetches it before op `next_use`: returns the fetched value. */
value_id moves_spill(moves *m, value_id value, tier to, size_t last_use, size_t next_use);
