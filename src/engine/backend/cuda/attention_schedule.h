#pragma once
/* attention_schedule.h - which block takes which tiles of keys in the backward of attention by wgmma, and in which order they add to dq.
 *
 * A unit is a row and a kv head with some heads of its group. `width` blocks serve a unit, `units` units at once. Of n tiles of keys a block takes tile i, walks
 * the queries from the last to its own, and then tile n - 1 - i: together these are as long for every i, so that blocks stay side by side and find the same
 * queries in the cache. `rounds` rounds of that make a unit.
 *
 * To a tile of queries the tiles of earlier rounds add first, then of this round the first tiles of the blocks, then their second tiles, each in ascending
 * order: about when they come there. All blocks are resident, and a tile waits only for tiles that are done, or on their way and further: nothing waits in
 * a circle (test_attention_schedule). */
#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDACC__
#define ATTENTION_ORDER static inline __host__ __device__
#else
#define ATTENTION_ORDER static inline
#endif

enum { ATTENTION_KEY_ROWS = 128 }; /* of a tile of keys */

typedef struct key_schedule {
    int n_tiles, n_long; /* of keys: of a row; those that are the first of a block */
    int width, units, rounds;
    int n_parts, heads, n_units; /* parts of a group's heads, heads of each, units in all */
} key_schedule;

/* The cheapest by a count of steps, a step being a tile of keys and one of queries: what a block walks, what its tiles cost beside that, and how long
 * the last block of a unit waits for its first turn. Few blocks of a unit side by side share little of what comes from memory, many wait for each other more often.
 * By shape and for a GPU of 132 multiprocessors, so that orders of sums, and scratch, do not depend
 * on the machine; a GPU that is smaller than `width` has an order of its own. */
static inline key_schedule attention_schedule_of(int64_t batch, int64_t seq_len, int n_heads, int n_kv_heads,
                                                 bool ring) {
    enum { BLOCKS = 132 };
    const double TURN = 1.2, TILE = 3, JOIN = 3; /* in steps, each about 2.5 us */
    const double FETCH = 0.22,
                 WAIT =
                     0.0006; /* of a step, of one block of a unit, for each block of it: from 8 rows of 8,192 tokens */
    int group = n_heads / n_kv_heads, n = (int)((seq_len + ATTENTION_KEY_ROWS - 1) / ATTENTION_KEY_ROWS);
    key_schedule best = {.n_tiles = n, .n_long = (n + 1) / 2};
    double least = 0;
    for (int parts = 1; parts <= (ring ? 1 : group); parts++) {
        if (group % parts) continue;
        for (int rounds = (best.n_long + BLOCKS - 1) / BLOCKS, width; rounds <= best.n_long; rounds++) {
            width = (best.n_long + rounds - 1) / rounds;
            if (rounds > 1 && (best.n_long + rounds - 2) / (rounds - 1) == width)
                continue; /* no narrower than before */
            int64_t n_units = batch * n_kv_heads * parts, units = BLOCKS / width;
            int64_t times = (n_units + units - 1) / units * rounds;
            double steps = (double)times * (2.0 * (n + 1) * (group / parts) * (1 + FETCH / width + WAIT * width) +
                                            2 * (TILE + (parts > 1 ? JOIN : 0))) +
                           TURN * (width - 1);
            if (least != 0 && steps >= least) continue;
            least = steps;
            best.width = width, best.rounds = rounds, best.units = (int)units;
            best.n_parts = parts, best.heads = group / parts, best.n_units = (int)n_units;
        }
    }
    return best;
}

/* The same on a GPU of so many multiprocessors: all blocks must be resident at once, because they wait for each other. */
static inline key_schedule attention_schedule_on(key_schedule s, int n_multiprocessors) {
    if (s.width > n_multiprocessors) {
        s.width = n_multiprocessors;
        s.rounds = (s.n_long + s.width - 1) / s.width;
    }
    s.units = n_multiprocessors / s.width;
    if (s.units > s.n_units) s.units = s.n_units;
    return s;
}

/* The next tile of a block: moves `at` on to it, from 0 and then from the one behind the last. False: there is none. */
typedef struct key_place {
    int unit, tile;
} key_place;
ATTENTION_ORDER bool attention_next_tile(const key_schedule *s, int block, int *at, key_place *place) {
    for (int slot = block / s->width, column = block % s->width;; ++*at) {
        const int round = *at / 2, i = round % s->rounds * s->width + column;
        place->unit = round / s->rounds * s->units + slot;
        if (place->unit >= s->n_units) return false;
        place->tile = *at % 2 ? s->n_tiles - 1 - i : i;
        if (i < s->n_long && (*at % 2 == 0 || place->tile != i)) return true;
    }
}

ATTENTION_ORDER int attention_most(int a, int b) { return a > b ? a : b; }

/* How many of the tiles of keys [first, end) that a tile of queries sees add to it before `tile` does. */
ATTENTION_ORDER int attention_adds_before(const key_schedule *s, int tile, int first, int end) {
    const bool is_long = tile < s->n_long;
    const int round = (is_long ? tile : s->n_tiles - 1 - tile) / s->width;
    const int short_before = attention_most(end - attention_most(first, s->n_tiles - round * s->width), 0);
    if (is_long) return tile - first + short_before;
    /* The long ones up to this round, and the short ones of this round. */
    const int behind = round * s->width + s->width, n_long = behind < s->n_long ? behind : s->n_long;
    const int low = attention_most(attention_most(first, s->n_long), s->n_tiles - behind);
    return attention_most(n_long - first, 0) + short_before + tile - low;
}
