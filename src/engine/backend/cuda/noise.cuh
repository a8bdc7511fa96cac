#pragma once
/* noise.cuh - the noise of stochastic rounding, word for word that of the host (base/rng.c, backend/cpu/noise.h), and
 * the way the kernels that use it go over a parameter.
 *
 * A block of threads takes one chunk of CHUNK elements, counted from the start of the whole parameter, so that a chunk
 * lies in one block of noise wherever a part begins. A warp takes a tile of 256 elements at a time, which is also what
 * one scale of 8-bit states serves. Its lanes hold two quads each, 16 elements apart: for these two one word of noise
 * has a half each, so the noise of a value is made once.
 *
 *     lane = 4 row + column:   quads at 32 row + 4 column and 32 row + 16 + 4 column */
#include "backend/cuda/launch_optimizer.h"

#include "backend/cuda/typed.cuh"

enum { TILE = 256, CHUNK_WARPS = 8, CHUNK_THREADS = CHUNK_WARPS * WARP, CHUNK = NOISE_BLOCK_MULTIPLE };
static_assert(CHUNK % (CHUNK_WARPS * TILE) == 0 && TILE == WARP * 8 && PART_ALIGNMENT % TILE == 0, "tiles are whole");

enum { NOISE_ACCUMULATE, NOISE_PARAM, NOISE_STATES, NOISE_DROPOUT };

struct noise_key { /* of one block of noise */
    uint32_t start, key;
};

/* Philox4x32-10; two of its four words. */
DEVICE noise_key noise_open(const launch_noise &n, const launch_scalars &s, uint32_t what, int64_t block) {
    uint64_t key = n.key ^ ((uint64_t)s.noise_hi << 32 | s.noise_lo);
    uint32_t c[4] = {(uint32_t)block, (uint32_t)((uint64_t)block >> 32), s.step, what};
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t x0 = (uint32_t)(b >> 32) ^ c[1] ^ k0, x2 = (uint32_t)(a >> 32) ^ c[3] ^ k1;
        c[0] = x0;
        c[1] = (uint32_t)b;
        c[2] = x2;
        c[3] = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {c[0], c[1]};
}

DEVICE uint32_t noise_word(noise_key n, uint32_t i) {
    uint32_t x = n.start + i * 0x9e3779b9u;
    x = (x ^ x >> 16) * 0x7feb352du;
    x = ((x ^ x >> 15) + n.key) * 0x846ca68bu;
    return x ^ x >> 16;
}

/* The word whose low half rounds value r of a block, r % 32 < 16, and whose high half rounds value r + 16. */
DEVICE uint32_t noise_value_word(noise_key n, uint32_t r) { return noise_word(n, r / 32 * 16 + r % 16); }

/* f32_to_bf16_stochastic, noise below 2^16: none for infinity and NaN, and a NaN is made quiet. */
DEVICE bf16 round_stochastic(float x, uint32_t noise) {
    uint32_t u = __float_as_uint(x);
    if ((u & 0x7f800000u) == 0x7f800000u) return bf16{(uint16_t)(u >> 16 | (bits_are_nan(u) ? 0x40u : 0u))};
    return bf16{(uint16_t)((u + noise) >> 16)};
}

/* The chunk of this block of threads. It may begin before the part or end after it. */
struct chunk_place {
    int64_t begin;       /* in this part */
    int64_t noise_block; /* that it lies in, */
    uint32_t r;          /* and where it begins in there */
};
DEVICE chunk_place chunk_open(const launch_noise &n, unsigned index) {
    int64_t in_whole = (n.first_element / CHUNK + index) * CHUNK;
    return {in_whole - n.first_element, in_whole / n.block, (uint32_t)(in_whole % n.block)};
}
DEVICE chunk_place chunk_open(const launch_noise &n) { return chunk_open(n, blockIdx.x); }
/* Are all of its elements there? Loads that need no check of bounds are issued together, which makes AdamW up to 1.8 times as fast. */
DEVICE bool chunk_is_whole(const chunk_place &c, int64_t n) { return c.begin >= 0 && c.begin + CHUNK <= n; }

/* Turn after turn, the tile of this warp and the first quad of this lane. */
enum { CHUNK_TURNS = CHUNK / (CHUNK_WARPS * TILE) };
struct tile_place {
    int64_t begin; /* in this part: outside of it there is nothing to do */
    int64_t first; /* the first quad; the second is 16 further on */
    uint32_t r;    /* of the first quad in its block of noise */
};
DEVICE tile_place tile_at(const chunk_place &c, int turn) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int tile = (turn * CHUNK_WARPS + warp) * TILE, offset = lane / 4 * 32 + lane % 4 * 4;
    return {c.begin + tile, c.begin + tile + offset, c.r + tile + offset};
}
static inline unsigned chunk_count(const launch_noise &n, int64_t n_elements) {
    return (unsigned)(divide_up(n.first_element + n_elements, CHUNK) - n.first_element / CHUNK);
}
