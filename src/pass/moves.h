#pragma once
/* moves.h - private to pass: copies between tiers, where they stand in the list, and the blocks they count in.
 *
 * A place in the list is a key: 2 i is before op i of the section's old list, 2 i + 1 behind it. Copies are gathered
 * with their keys and merged in at the end; those with one key keep the order in which they were asked for.
 *
 * A copy's place in the list is not when it runs. It runs on a stream of its own, as soon as what it reads is there and
 * the bytes it writes are free. The place says how long its bytes are taken: a fetch some blocks before its use and a
 * store some blocks behind are what lets a copy run beside the kernels. */
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

/* Blocks are runs of ops of one layer; in the update every op is its own. Work on host memory joins the block it is in.
 * Does one begin with o? *layer: of the block so far, kept up to date. */
static inline bool moves_begins_block(const op *o, bool is_first, int *layer) {
    bool begins = is_first || o->section == SECTION_UPDATE || (o->at != TIER_HOST && o->layer != *layer);
    if (is_first || o->at != TIER_HOST) *layer = o->layer;
    return begins;
}
void moves_open(moves *m, program *p, section s, const op *ops, size_t n_ops, int prefetch);
void moves_add(moves *m, size_t key, const op *o); /* any op, at that place */
/* Appends the section with its copies to the program. */
void moves_close(moves *m);

size_t moves_fetch_key(const moves *m, size_t block, int distance); /* before the block that many blocks earlier */
size_t moves_store_key(const moves *m, size_t block, int distance); /* behind the block that many blocks later */

/* A new value with the bytes of `from` in another tier, copied before its use in `block` (through host memory where one
 * side is nvme), at or behind key `earliest`. */
value_id moves_fetch(moves *m, value_id from, tier to, size_t block, size_t earliest);
/* A new value like `home` in tier `at`, to be written by an op and stored home. */
value_id moves_window(moves *m, value_id home, tier at);
/* Stores a window behind its use in `block`. Returns a handle for moves_hurry. */
size_t moves_store(moves *m, value_id window, value_id home, size_t block);
void moves_hurry(moves *m, size_t handle, size_t latest); /* the store must stand at or before that key */
/* Leaves with `value` behind `last_use` and comes back before `next_use` (ops): returns the value that came back. */
value_id moves_spill(moves *m, value_id value, tier to, size_t last_use, size_t next_use);
