#pragma once
/* paged_step.cuh - what a block of a decode step's attention has in shared memory, and how it comes there: queries, rotated; tiles of
 * keys and values out of the pages; the tokens that this step itself has for them. */
#include "backend/cuda/attention_mma.cuh"
#include "backend/cuda/chain.cuh"
#include "backend/cuda/paged_device.cuh"
#include "backend/cuda/tensor_map.h"
#include "backend/cuda/wgmma.cuh"

namespace paged_step {

using namespace attention_mma;

enum { TEAM = 4, TEAM_THREADS = TEAM * WARP, KEYS = PAGED_SPLIT, ROWS = MMA_ROWS };

#if WGMMA_HERE

template <int D> struct sizes {
    static constexpr int CHUNKS = D / 8, HALF = D / 16; /* packs of a head, of half a head */
    static constexpr int LANES = HALF <= 4 ? 4 : 8;     /* that hold a head, as in qk_norm_rope.cu */
};

/* What the warps of a block know of their rows. */
struct step_rows {
    int token, n, slot, g, part, n_rows; /* token: the first; n: tokens */
    int last, least;                     /* positions seen */
    int first_new, n_new;                /* of the slot's positions that this step brings: the earliest; how many */
};

/* A row of the block's tile: the token's position, -1: there is none, it sees nothing; its head of qkv and of y. */
struct tile_row {
    int position, q, y;
};

template <typename E> __device__ inline void widen_pack(float (&x)[8], uint4 raw) {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const E *e = (const E *)&words[i];
        x[2 * i] = widen(e[0]), x[2 * i + 1] = widen(e[1]);
    }
}
template <typename E> __device__ inline uint4 narrow_pack(const float (&x)[8]) {
    return make_uint4(pack<E>(x[0], x[1]), pack<E>(x[2], x[3]), pack<E>(x[4], x[5]), pack<E>(x[6], x[7]));
}

/* Computed where it is used: out of a loop it would go with all its kind, in front of what everything waits for. */
template <typename T> __device__ inline T kept_here(T x) {
    if constexpr (sizeof(T) == 4 && !std::is_same<T, float>::value) asm volatile("" : "+r"(x));
    else asm volatile("" : "+f"(x));
    return x;
}

/* The row of the cache that has kv head b.g's key at a position of the slot. */
__device__ inline int key_row(launch_paged a, const step_rows &b, int position) {
    a.page_size = kept_here((int)a.page_size), a.D = 1;
    return (int)key_at(a, b.slot, position, b.g);
}

/* Cosines and sines of pack j of both halves of a head. held: this lane has such packs. */
template <int D>
__device__ void load_turns(float (&turns)[16], const launch_paged_step &a, int position, int j, bool held) {
    if (!a.turns) return;
    if (held && position >= a.n_positions) __trap();
    const float4 *line = (const float4 *)(a.turns + (held ? (int64_t)position * D + j * 8 : 0));
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float4 four = line[i < 2 ? i : held ? D / 8 + i - 2 : i - 2];
        turns[4 * i] = four.x, turns[4 * i + 1] = four.y, turns[4 * i + 2] = four.z, turns[4 * i + 3] = four.w;
    }
}

/* A head as LANES neighbouring lanes hold it, pack j of both halves each: normed and rotated. The whole warp comes here. */
template <typename E, int D>
__device__ void turn_head(uint4 &low, uint4 &high, const launch_paged_step &a, const void *gain,
                          const float (&turns)[16], int j, bool held) {
    using S = sizes<D>;
    if (!a.turns) return;
    float l[8], h[8];
    widen_pack<E>(l, low);
    widen_pack<E>(h, high);
    if (gain) {
        float square = 0, g_low[8], g_high[8];
        const uint4 *gains = (const uint4 *)((const E *)gain + (held ? j * 8 : 0));
        widen_pack<E>(g_low, gains[0]);
        widen_pack<E>(g_high, gains[held ? D / 16 : 0]);
#pragma unroll
        for (int e = 0; e < 8; e++) square = fmaf(h[e], h[e], fmaf(l[e], l[e], square));
#pragma unroll
        for (int step = S::LANES / 2; step > 0; step /= 2) square += __shfl_xor_sync(0xffffffff, square, step);
        const float rstd = 1.0f / sqrtf(square / (float)D + a.eps);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            l[e] = l[e] * rstd * (g_low[e] + a.offset);
            h[e] = h[e] * rstd * (g_high[e] + a.offset);
        }
    }
#pragma unroll
    for (int e = 0; e < 8; e++) {
        const float x = l[e], y = h[e], cosine = turns[e], sine = turns[8 + e];
        l[e] = fmaf(x, cosine, -(y * sine));
        h[e] = fmaf(y, cosine, x * sine);
    }
    low = narrow_pack<E>(l), high = narrow_pack<E>(h);
}

/* Packs of a head, zeros where the lane holds none. */
template <typename E, int D> __device__ void load_head(uint4 &low, uint4 &high, const E *head, int j, bool held) {
    low = held ? *(const uint4 *)(head + j * 8) : make_uint4(0, 0, 0, 0);
    high = held ? *(const uint4 *)(head + D / 2 + j * 8) : make_uint4(0, 0, 0, 0);
}

/* Zeros where the block's tile has no query: nothing to wait for. */
template <int D> __device__ void clear_queries(uint32_t q_tile, const tile_row *rows) {
    using S = sizes<D>;
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < ROWS * S::CHUNKS; i += (int)blockDim.x)
        if (rows[i / S::CHUNKS].position < 0)
            store_shared_16(q_tile + tile_at<D>(i / S::CHUNKS, i % S::CHUNKS), make_uint4(0, 0, 0, 0));
}

/* Key and value of a token, rotated: the first lanes have the key, the upper half the value. */
struct token_packs {
    uint4 low, high, v;
};
template <typename E, int D>
__device__ void load_token(token_packs &t, const launch_paged &p, const step_rows &b, int64_t token, int lane) {
    const E *key = (const E *)p.qkv + (token * (p.H + 2 * p.G) + p.H + b.g) * D, *value = key + p.G * D;
    const int chunk = lane - WARP / 2;
    t.v = chunk >= 0 && chunk < sizes<D>::CHUNKS ? *(const uint4 *)(value + chunk * 8) : make_uint4(0, 0, 0, 0);
    load_head<E, D>(t.low, t.high, key, lane, lane < sizes<D>::HALF);
}

/* Into the cache. to: the key's place, or NULL. */
template <typename E, int D> __device__ void keep_token(E *to, const launch_paged &p, const token_packs &t, int lane) {
    using S = sizes<D>;
    const int chunk = lane - WARP / 2;
    if (!to) return;
    if (lane < S::HALF) *(uint4 *)(to + lane * 8) = t.low, *(uint4 *)(to + D / 2 + lane * 8) = t.high;
    if (chunk >= 0 && chunk < S::CHUNKS) *(uint4 *)(to + value_offset(p) + chunk * 8) = t.v;
}

/* ---- keys and values ------------------------------------------------------------------------------------------------ */

/* What a warp knows of its team. */
struct team_place {
    int nth, warp, lane, thread; /* nth: of the block; the others of the team, and of the warp */
    uint32_t scores;
    __device__ void meet() const { threads_meet(1 + nth, TEAM_THREADS); }
};

/* Tiles of keys and of values. Where heads are whole boxes of 64 columns and pages divide a tile or are divided by it, the TMA unit
 * fetches each page of a tile as one box a half (BOXES): a row of a half is 128 bytes, and the halves lie behind each other. Else
 * every lane copies packs of 16 bytes. */
template <int D, bool BOXES> __device__ inline uint32_t key_tile_at(int row, int chunk) {
    if (!BOXES) return tile_at<D>(row, chunk);
    return (uint32_t)(chunk / 8 * (KEYS * 128) + row * 128 + ((chunk % 8 ^ (row & 7)) << 4));
}

/* The address of chunk 2 step + first of a row, first 0 or 1, where `start` is that of step 0; heads of whole boxes. */
template <bool BOXES> __device__ inline uint32_t step_at(uint32_t start, int step) {
    return (start ^ (uint32_t)(step % 4 << 5)) + (uint32_t)(step / 4 * (BOXES ? KEYS * 128 : 128));
}
/* Where a team finds the keys of a tile, as rows of the cache; -1: not seen. BOXES: one warp, a lane has a page; else the keys lane and
 * lane + 32. */
template <int D, bool BOXES> struct key_places {
    int at[BOXES ? 1 : 2], n; /* n: rows of a box */

    /* k0: -1: there is no tile */
    __device__ key_places(const launch_paged &a, const step_rows &b, int k0, const team_place &t) {
        n = BOXES ? min((int)a.page_size, (int)KEYS) : 1;
#pragma unroll
        for (int half = 0; half < (BOXES ? 1 : 2); half++) {
            const int in_tile = (t.lane + half * WARP) * n, first = k0 + in_tile;
            const bool seen = k0 >= 0 && in_tile < KEYS && first + n > b.least && first <= b.last;
            at[half] = seen && (!BOXES || t.warp == 0) ? key_row(a, b, first) : -1;
        }
    }
};

/* A stage of a team: keys, values behind them; BOXES: barriers of both, and how often they were waited for. */
template <typename E, int D, bool BOXES> struct key_tiles {
    enum { TILE = tile_bytes<D>(KEYS) };
    uint32_t k, barrier;
    int round;
    __device__ uint32_t v() const { return k + TILE; }

    /* Keys, or values. The team comes here. */
    __device__ void fetch(bool values, const key_places<D, BOXES> &from, const launch_paged &a,
                          const CUtensorMap *cache, const team_place &t) const {
        constexpr int CHUNKS = sizes<D>::CHUNKS;
        const uint32_t tile = values ? v() : k;
        const int offset = values ? a.G * (int)a.page_size : 0;
        if constexpr (BOXES) {
            if (t.warp > 0) return;
            const uint32_t on = barrier + (values ? 8 : 0);
            const int n_seen = __popc(__ballot_sync(0xffffffff, from.at[0] >= 0));
            if (t.lane == 0) barrier_arrive_expecting(on, (uint32_t)(n_seen * from.n * D * 2));
            __syncwarp();
            if (from.at[0] < 0) return;
#pragma unroll 1
            for (int half = 0; half < D / 64; half++)
                fetch_box_once(tile + (uint32_t)(half * KEYS + t.lane * from.n) * 128, cache, half * 64,
                               from.at[0] + offset, 0, on);
        } else {
#pragma unroll 2
            for (int i = t.thread; i < KEYS * CHUNKS; i += TEAM_THREADS) {
                const int r = i / CHUNKS, chunk = i % CHUNKS;
                const int low = __shfl_sync(0xffffffff, from.at[0], r % WARP),
                          high = __shfl_sync(0xffffffff, from.at[1], r % WARP);
                const int row = r < WARP ? low : high;
                copy_async_16(tile + tile_at<D>(r, chunk),
                              (const E *)a.cache + (row < 0 ? 0 : (int64_t)(row + offset) * D + chunk * 8), row >= 0);
            }
            copy_async_commit();
        }
    }
    __device__ void fetch_both(const launch_paged &a, const step_rows &b, const CUtensorMap *cache, int k0,
                               const team_place &t) const {
        const key_places<D, BOXES> from(a, b, k0, t);
#pragma unroll 1
        for (int values = 0; values < 2; values++) fetch(values, from, a, cache, t);
    }
    /* Until this thread's keys, or also its values, are there; what others copied, after they have met. */
    __device__ void wait_keys() const {
        if constexpr (BOXES) barrier_wait(barrier, (uint32_t)round & 1);
        else copy_async_wait<1>();
    }
    __device__ void wait_values() const {
        if constexpr (BOXES) barrier_wait(barrier + 8, (uint32_t)round & 1);
        else copy_async_wait<0>();
    }
    /* A page comes whole, and what it holds behind the last position or before the first may be anything: values of weight 0 must
     * still be numbers. */
    __device__ void clear_unseen(const step_rows &b, int k0, int thread) const {
        if constexpr (BOXES) {
            constexpr int CHUNKS = sizes<D>::CHUNKS;
            const int n_before = max(b.least - k0, 0), n_seen = max(min(b.last + 1 - k0, KEYS) - n_before, 0);
#pragma unroll 1
            for (int i = thread; i < (KEYS - n_seen) * CHUNKS; i += TEAM_THREADS) {
                const int at = i / CHUNKS, r = at < n_before ? at : at + n_seen;
                store_shared_16(v() + key_tile_at<D, true>(r, i % CHUNKS), make_uint4(0, 0, 0, 0));
            }
        }
    }
};

__device__ inline void find_new(step_rows &b, const launch_paged &a, int n_tokens, int lane) {
    int least = ATTENTION_NO_WINDOW, n = 0;
#pragma unroll 4
    for (int t = lane; t < n_tokens; t += WARP)
        if (a.slots[t] == b.slot) least = min(least, -a.doc_start[t]), n++;
    b.first_new = __reduce_min_sync(0xffffffff, least);
    b.n_new = __reduce_add_sync(0xffffffff, n);
}

/* A token of this step at a position of the tile, over what was fetched there. The warp comes here. */
template <typename E, int D, bool BOXES>
__device__ void put_token(const key_tiles<E, D, BOXES> &tiles, const token_packs &t, int r, int lane) {
    using S = sizes<D>;
    const int chunk = lane - WARP / 2;
    if (lane < S::HALF) {
        store_shared_16(tiles.k + key_tile_at<D, BOXES>(r, lane), t.low);
        store_shared_16(tiles.k + key_tile_at<D, BOXES>(r, lane + S::HALF), t.high);
    }
    if (chunk >= 0 && chunk < S::CHUNKS) store_shared_16(tiles.v() + key_tile_at<D, BOXES>(r, chunk), t.v);
}

/* Until the tile is there it lies aside: the packs of its key, then those of its value. */
template <int D> __device__ void lay_aside(uint32_t aside, const token_packs &t, int lane) {
    using S = sizes<D>;
    const int chunk = lane - WARP / 2;
    if (lane < S::HALF) {
        store_shared_16(aside + (uint32_t)lane * 16, t.low);
        store_shared_16(aside + (uint32_t)(lane + S::HALF) * 16, t.high);
    }
    if (chunk >= 0 && chunk < S::CHUNKS) store_shared_16(aside + (uint32_t)(S::CHUNKS + chunk) * 16, t.v);
}
template <typename E, int D, bool BOXES>
__device__ void put_aside(const key_tiles<E, D, BOXES> &tiles, uint32_t aside, int r, int lane) {
    constexpr int CHUNKS = sizes<D>::CHUNKS;
    const int chunk = lane % 16;
    if (chunk < CHUNKS)
        store_shared_16((lane < 16 ? tiles.k : tiles.v()) + key_tile_at<D, BOXES>(r, chunk),
                        load_shared_16(aside + (uint32_t)(lane / 16 * CHUNKS + chunk) * 16));
}

/* Waits for the kernels in front; then the block's queries go to their tile. has_key: this warp also takes the only token that the step
 * has for the slot, stores it, and puts it into row in_tile of its tile, -1: lays it aside. Most warps have one of the two, and ask for its
 * cosines before the wait. */
template <typename E, int D, bool BOXES>
__device__ void bring_heads(const key_tiles<E, D, BOXES> &tiles, uint32_t q_tile, uint32_t aside,
                            const launch_paged_step &a, const step_rows &b, const tile_row *rows, bool has_key,
                            int in_tile, int lane) {
    using S = sizes<D>;
    const int r = (int)(threadIdx.x / S::LANES), j = (int)(threadIdx.x % S::LANES);
    const bool asks = (int)(threadIdx.x / WARP * (WARP / S::LANES)) < b.n_rows; /* the warp */
    const tile_row row = rows[min(r, ROWS - 1)];
    const bool is_query = r < b.n_rows && row.position >= 0 && j < S::HALF, is_key = lane < S::HALF;
    const E *query = (const E *)a.paged.qkv + (int64_t)row.q * D;
    E *kept = has_key && b.part == 0 ? (E *)a.paged.cache + (int64_t)key_row(a.paged, b, b.last) * D : NULL;
    float turns[16];
    load_turns<D>(turns, a, asks ? row.position : b.last, j, asks ? is_query : is_key);
    chain_wait();
#pragma unroll 1
    for (int job = asks ? 0 : 1; job < (has_key ? 2 : 1); job++) {
        const bool held = job ? is_key : is_query;
        token_packs own;
        if (job) load_token<E, D>(own, a.paged, b, b.token, lane);
        else load_head<E, D>(own.low, own.high, query, j, held);
        if (job && asks) load_turns<D>(turns, a, b.last, j, held);
        turn_head<E, D>(own.low, own.high, a, job ? a.gk : a.gq, turns, j, held);
        if (job) {
            if (in_tile >= 0) put_token<E, D, BOXES>(tiles, own, in_tile, lane);
            else lay_aside<D>(aside, own, lane);
            keep_token<E, D>(kept, a.paged, own, lane);
        }
        if (job || !held) continue;
        store_shared_16(q_tile + tile_at<D>(r, j), own.low);
        store_shared_16(q_tile + tile_at<D>(r, j + S::HALF), own.high);
    }
}

/* All that this step has for the tile from k0 on, where a slot has several tokens. A warp of the team comes here. */
template <typename E, int D, bool BOXES>
__device__ void put_several(const key_tiles<E, D, BOXES> &tiles, const launch_paged_step &a, const step_rows &b, int k0,
                            int n_tokens, int lane) {
    const launch_paged &p = a.paged;
#pragma unroll 1
    for (int some = 0; some < n_tokens; some += WARP) {
        const int mine = some + lane;
        const int position = mine < n_tokens && p.slots[mine] == b.slot ? position_of(p, mine) : -1;
        uint32_t found =
            __ballot_sync(0xffffffff, position >= max(k0, b.least) && position < k0 + KEYS && position <= b.last);
#pragma unroll 1
        for (; found; found &= found - 1) {
            const int from = __ffs((int)found) - 1, at = __shfl_sync(0xffffffff, position, from);
            const bool held = lane < sizes<D>::HALF;
            token_packs t;
            float turns[16];
            load_token<E, D>(t, p, b, some + from, lane);
            load_turns<D>(turns, a, at, lane, held);
            turn_head<E, D>(t.low, t.high, a, a.gk, turns, held ? lane : 0, held);
            put_token<E, D, BOXES>(tiles, t, at - k0, lane);
            const bool ours = b.part == 0 && some + from >= b.token && some + from < b.token + b.n;
            keep_token<E, D>(ours ? (E *)p.cache + (int64_t)key_row(p, b, at) * D : NULL, p, t, lane);
        }
    }
}

#endif

} // namespace paged_step
