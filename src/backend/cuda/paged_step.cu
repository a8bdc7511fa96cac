/* paged_step.cu - attention of a decode step in one kernel: q and k are rotated (and normed before), k and v go to their pages,
 * every token attends through the page table, and the splits of its positions are joined.
 *
 * The query heads of one kv head, for one token or for neighbouring tokens of one slot, are the rows of a tile. A team of four warps takes a
 * split: each has the scores of a quarter of its keys, tells the others, and then sums a quarter of the columns of the values. Two ways to
 * deal out the splits, by shape alone:
 *   side by side  few tokens: a cluster of blocks with three teams each has the splits of a tile, and joins them when all are there
 *   walking       many tokens: one team walks the splits of a tile, with the keys of the next under way, and joins as it goes
 * Keys are under way before the kernels in front are done, whatever lies there; what this step itself has for the cache is
 * put over them afterwards. Scores of a split, their sums and the way splits join are those of paged_device.cuh and paged_mma.cu: the
 * same bits.
 *
 * Few multiprocessors run this once a layer, so its code comes from far away: as few instructions as possible behind the wait. */
#include "backend/cuda/attention_mma.cuh"
#include "backend/cuda/chain.cuh"
#include "backend/cuda/paged_device.cuh"
#include "backend/cuda/tensor_map.h"
#include "backend/cuda/wgmma.cuh"

using namespace attention_mma;

namespace {

enum { TEAM = 4, TEAM_THREADS = TEAM * WARP, TEAMS_MOST = 3, KEYS = PAGED_SPLIT, ROWS = MMA_ROWS, CLUSTER_MOST = 4 };
enum { MULTIPROCESSORS = 132, BLOCKS_ENOUGH = 2 * MULTIPROCESSORS, ROUNDS_MOST = 8 };
enum { STAGES_MOST = 6, WALK_TILES = 100 }; /* tiles of keys and of values that the walking teams of a multiprocessor have under way; from so many tiles of rows on they walk */
enum { SCORES_BYTES = ROWS * KEYS * (int)sizeof(float) }; /* of a split */

/* What a block has in shared memory, in this order: stages of keys and values of every team, queries, scores of every team, the
 * slot's token, rows of the tile, barriers. */
template <int D> constexpr uint32_t shared_bytes(int n_teams, int n_stages) {
    return (uint32_t)(n_teams * n_stages) * (2 * tile_bytes<D>(KEYS) + 16) + tile_bytes<D>(ROWS) +
           (uint32_t)n_teams * SCORES_BYTES + 4 * D + ROWS * 12;
}

#if WGMMA_HERE

template <int D> struct sizes {
    static constexpr int CHUNKS = D / 8, HALF = D / 16; /* packs of a head, of half a head */
    static constexpr int LANES = HALF <= 4 ? 4 : 8;     /* that hold a head, as in qk_norm_rope.cu */
};

/* What the warps of a block know of their rows. */
struct step_rows {
    int token, n, slot, g, part, n_rows; /* token: the first; n: tokens */
    int last, least;                       /* positions seen */
    int first_new, n_new;                  /* of the slot's positions that this step brings: the earliest; how many */
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
template <typename E, int D>
__device__ void keep_token(E *to, const launch_paged &p, const token_packs &t, int lane) {
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
    const int r = (int)threadIdx.x / S::LANES, j = (int)threadIdx.x % S::LANES;
    const bool asks = (int)threadIdx.x / WARP * (WARP / S::LANES) < b.n_rows; /* the warp */
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

/* ---- one split, and how they join ------------------------------------------------------------------------------------ */

/* One value after the other: few models have a cap, and for all of them its code would lie in the way. */
__device__ inline void cap_quarter(float softcap, float scale, float (&s)[2][4]) {
    const struct {
        float softcap, scale;
    } a = {kept_here(softcap), kept_here(scale)};
#pragma unroll 1
    for (int n = 0; n < 8; n++) {
        const float capped = cap_score(a, s[0][0]);
#pragma unroll
        for (int i = 0; i < 7; i++) s[i / 4][i % 4] = s[(i + 1) / 4][(i + 1) % 4];
        s[1][3] = capped;
    }
}

/* Scores of this warp's quarter of a tile's keys from k0 on, as product_of_rows has them; -inf where a row does not see one. */
template <typename E, int D, bool BOXES>
__device__ void score_quarter(float (&s)[2][4], const launch_paged &a, uint32_t q_tile, uint32_t k_tile, int k0,
                              const tile_row *rows, bool all_seen, const team_place &t) {
    const int lane = t.lane;
#pragma unroll
    for (int i = 0; i < 8; i++) s[i / 4][i % 4] = 0;
    const int row = t.warp * 16 + lane % 8 + lane / 16 * 8, odd = lane / 8 % 2;
    const uint32_t k_start = kept_here(k_tile + key_tile_at<D, BOXES>(row, odd)),
                   q_start = kept_here(q_tile + tile_at<D>(lane % 16, lane / 16));
#pragma unroll
    for (int step = 0; step < D / 16; step++) {
        uint32_t q[4], k[4];
        if constexpr (D % 64 == 0) {
            load_matrices(q, step_at<false>(q_start, step));
            load_matrices(k, step_at<BOXES>(k_start, step));
        } else {
            fragment_rows<D>(q, q_tile, 0, step, lane);
            load_matrices(k, k_tile + key_tile_at<D, BOXES>(row, 2 * step + odd));
        }
        mma<E>(s[0], q, k[0], k[1]);
        mma<E>(s[1], q, k[2], k[3]);
    }
    if (a.softcap > 0) cap_quarter(a.softcap, a.scale, s);
    if (all_seen) return; /* by every row that there is */
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int position = rows[half * 8 + lane / 4].position, start = first_seen(a, position);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int key = k0 + t.warp * 16 + i / 2 * 8 + lane % 4 * 2 + i % 2;
            if (key > position || key < start) s[i / 2][2 * half + i % 2] = -INFINITY;
        }
    }
}

/* Scores of a team: lane by lane what each warp has of half a tile's rows; so a lane finds those of its own rows. */
__device__ inline uint32_t scores_at(const team_place &t, int half, int warp) {
    return t.scores + (uint32_t)((half * TEAM + warp) * WARP + t.lane) * 16;
}
__device__ inline void give_scores(const float (&s)[2][4], const team_place &t, bool upper) {
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (half == 0 || upper)
            store_shared_16(scores_at(t, half, t.warp),
                            make_uint4(__float_as_uint(s[0][2 * half]), __float_as_uint(s[0][2 * half + 1]),
                                       __float_as_uint(s[1][2 * half]), __float_as_uint(s[1][2 * half + 1])));
}

/* Weights of all keys of the split for half the rows, rounded, as a left operand has them. */
template <typename E>
__device__ softmax_state take_weights(uint32_t (&weights)[KEYS / 16][4], const team_place &t, int half, float factor) {
    float s[1][KEYS / 8][4];
    row_state state = {-INFINITY, 0};
#pragma unroll
    for (int w = 0; w < TEAM; w++) {
        const uint4 raw = load_shared_16(scores_at(t, half, w));
        s[0][2 * w][2 * half] = __uint_as_float(raw.x), s[0][2 * w][2 * half + 1] = __uint_as_float(raw.y);
        s[0][2 * w + 1][2 * half] = __uint_as_float(raw.z), s[0][2 * w + 1][2 * half + 1] = __uint_as_float(raw.w);
    }
    softmax_row<1, KEYS>(s, 0, half, state, factor);
#pragma unroll
    for (int step = 0; step < KEYS / 16; step++) {
        weights[step][half] = pack<E>(s[0][2 * step][2 * half], s[0][2 * step][2 * half + 1]);
        weights[step][2 + half] = pack<E>(s[0][2 * step + 1][2 * half], s[0][2 * step + 1][2 * half + 1]);
    }
    return {state.max * factor, quad_sum(state.sum)};
}

/* Sums of a split: pieces of 16 columns, the team's warps in turn. */
template <int D> struct split_sums {
    enum { PIECES = (D / 16 + TEAM - 1) / TEAM };
    float sum[PIECES][2][4];
    softmax_state state[2];

    static __device__ bool has(int piece, int warp) { return D / 16 % TEAM == 0 || piece * TEAM + warp < D / 16; }
    /* Where a lane's pair of the piece's columns begins. */
    static __device__ int column(int piece, int n, const team_place &t) {
        return (piece * TEAM + t.warp) * 16 + n * 8 + t.lane % 4 * 2;
    }
};

/* sum = w v, as product_with_rows has it. */
template <typename E, int D, bool BOXES>
__device__ void sum_values(split_sums<D> &out, const uint32_t (&weights)[KEYS / 16][4], uint32_t v_tile,
                           const team_place &t) {
#pragma unroll
    for (int i = 0; i < split_sums<D>::PIECES * 8; i++) out.sum[i / 8][i / 4 % 2][i % 4] = 0;
#pragma unroll
    for (int step = 0; step < KEYS / 16; step++)
#pragma unroll
        for (int piece = 0; piece < split_sums<D>::PIECES; piece++) {
            if (!out.has(piece, t.warp)) continue;
            uint32_t v[4];
            load_matrices_transposed(v, v_tile + key_tile_at<D, BOXES>(step * 16 + t.lane % 16,
                                                                       2 * (piece * TEAM + t.warp) + t.lane / 16));
            mma<E>(out.sum[piece][0], weights[step], v[0], v[1]);
            mma<E>(out.sum[piece][1], weights[step], v[2], v[3]);
        }
}

/* What a team does with a split. */
struct split_task {
    int split, later; /* later: whose keys and values come where these were, -1: none */
    bool more;        /* the team has another one */
};

/* READY: all that belongs to the tile is there. */
template <bool READY, typename E, int D, bool BOXES>
__device__ void attend_split(split_sums<D> &out, const key_tiles<E, D, BOXES> &tiles, const launch_paged_step &a,
                             const step_rows &b, const CUtensorMap *cache, uint32_t q_tile, const tile_row *rows,
                             const split_task &task, int n_tokens, uint32_t aside, const team_place &t) {
    const int k0 = task.split * KEYS;
    const bool whole = k0 >= b.least && k0 + KEYS - 1 <= b.last, upper = b.n_rows > 8;
    const bool has_new = !READY && k0 + KEYS > b.first_new;
    if (!READY) tiles.wait_keys();
    if (has_new) {
        tiles.wait_values();
        if (!BOXES) t.meet(); /* zeros are written where keys were not seen */
        if (t.warp == TEAM - 1) {
            if (b.n_new == 1) put_aside<E, D, BOXES>(tiles, aside, b.last - k0, t.lane);
            else put_several<E, D, BOXES>(tiles, a, b, k0, n_tokens, t.lane);
        }
    }
    if (has_new || (!BOXES && !READY)) t.meet();
    const key_places<D, BOXES> later(a.paged, b, task.later >= 0 ? task.later * KEYS : -1, t);
    float s[2][4];
    score_quarter<E, D, BOXES>(s, a.paged, q_tile, tiles.k, k0, rows, whole && b.n == 1, t);
    give_scores(s, t, upper);
    if (!READY) {
        tiles.wait_values();
        if (!whole) tiles.clear_unseen(b, k0, t.thread);
    }
    if (BOXES && task.later >= 0) fence_bulk(); /* keys were read, and perhaps written, before others come there */
    t.meet();
    if (task.later >= 0) tiles.fetch(false, later, a.paged, cache, t);
    uint32_t weights[KEYS / 16][4];
    const float factor = score_scale(a.paged);
    out.state[0] = take_weights<E>(weights, t, 0, factor);
    if (upper) out.state[1] = take_weights<E>(weights, t, 1, factor);
    else
#pragma unroll
        for (int step = 0; step < KEYS / 16; step++) weights[step][1] = weights[step][3] = 0;
    sum_values<E, D, BOXES>(out, weights, tiles.v(), t);
    if (!task.more) return;
    if (BOXES && task.later >= 0) fence_bulk();
    t.meet(); /* all have read scores and values */
    if (task.later >= 0) tiles.fetch(true, later, a.paged, cache, t);
}

/* Where the sums of splits meet. A cluster that has all of them at once leaves them in shared memory, where the keys of each were:
 * rows of D floats, then their states. Else they go to scratch. */
template <int D> struct shared_sums {
    enum { STRIDE = D + 8, STATES = ROWS * STRIDE }; /* floats; 8 more, so that rows are in different banks */
    static_assert((STATES + 2 * ROWS) * 4 <= tile_bytes<D>(KEYS), "they have the room of the keys");
};

/* Sums and states of a split, for the rows that see it. here: in shared memory, or NULL. */
template <int D>
__device__ void give_split(const launch_paged &a, const step_rows &b, const tile_row *rows, int split, int n_splits,
                           float *here, const split_sums<D> &of, const team_place &t) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (half == 1 && b.n_rows <= 8) return;
        const int r = half * 8 + t.lane / 4, position = rows[r].position;
        if (split * KEYS > position || (split + 1) * KEYS <= first_seen(a, position)) continue;
        const int64_t partial = (int64_t)rows[r].y * n_splits + split; /* as partial_of */
        float *values = here ? here + r * shared_sums<D>::STRIDE : partial_values(a, partial);
#pragma unroll
        for (int i = 0; i < 2 * split_sums<D>::PIECES; i++)
            if (of.has(i / 2, t.warp))
                *(float2 *)(values + of.column(i / 2, i % 2, t)) =
                    make_float2(of.sum[i / 2][i % 2][2 * half], of.sum[i / 2][i % 2][2 * half + 1]);
        if (t.warp == 0 && t.lane % 4 == 0)
            *(here ? (softmax_state *)(here + shared_sums<D>::STATES) + r : partial_state(a, partial, n_splits)) =
                of.state[half];
    }
}

/* Two columns of a row over all splits that it sees, in order. tiles: of a cluster whose sums are in shared memory, else 0; what
 * other blocks wrote to scratch is in L2. */
template <typename E, int D>
__device__ void join_pair(const launch_paged &a, const step_rows &b, uint32_t tiles, const tile_row *rows, int r,
                          int column, int n_splits) {
    enum { ASKED = CLUSTER_MOST * TEAMS_MOST }; /* at once */
    using S = shared_sums<D>;
    const int position = rows[r].position, last = position / KEYS;
    const int64_t first = (int64_t)rows[r].y * n_splits;
    softmax_state total = {-INFINITY, 0};
    float2 sum = make_float2(0, 0);
#pragma unroll 1
    for (int some = first_seen(a, position) / KEYS; some <= last; some += ASKED) {
        float2 values[ASKED], states[ASKED];
#pragma unroll
        for (int i = 0; i < ASKED; i++) {
            const int split = min(some + i, last), place = split - b.least / KEYS;
            if (tiles) {
                const uint32_t at = cluster_address(tiles + (uint32_t)(place % TEAMS_MOST) * (2 * tile_bytes<D>(KEYS)),
                                                    (uint32_t)(place / TEAMS_MOST));
                values[i] = cluster_load2(at + (uint32_t)(r * S::STRIDE + column) * 4);
                states[i] = cluster_load2(at + (uint32_t)(S::STATES + 2 * r) * 4);
                continue;
            }
            values[i] = __ldcg((const float2 *)(partial_values(a, first + split) + column));
            states[i] = __ldcg((const float2 *)partial_state(a, first + split, n_splits));
        }
#pragma unroll
        for (int i = 0; i < ASKED; i++) {
            if (some + i > last) break;
            const join_factors f = join(total, softmax_state{states[i].x, states[i].y});
            sum.x = fmaf(sum.x, f.total, values[i].x * f.part);
            sum.y = fmaf(sum.y, f.total, values[i].y * f.part);
        }
    }
    *(uint32_t *)((E *)a.y + (int64_t)rows[r].y * D + column) = pack<E>(sum.x / total.sum, sum.y / total.sum);
}

/* The same of a team that has the total of all splits so far. */
template <int D> __device__ void join_split(split_sums<D> &total, const split_sums<D> &of, bool upper) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (half == 1 && !upper) return;
        const join_factors f = join(total.state[half], of.state[half]);
#pragma unroll
        for (int i = 0; i < split_sums<D>::PIECES * 4; i++) {
            float &sum = total.sum[i / 4][i / 2 % 2][2 * half + i % 2];
            sum = fmaf(sum, f.total, of.sum[i / 4][i / 2 % 2][2 * half + i % 2] * f.part);
        }
    }
}
template <typename E, int D>
__device__ void store_joined(const launch_paged &a, const tile_row *rows, const split_sums<D> &total, bool upper,
                             const team_place &t) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const tile_row row = rows[half * 8 + t.lane / 4];
        if (half == 1 && !upper) return;
        if (row.position < 0) continue;
        const float sum = total.state[half].sum;
#pragma unroll
        for (int i = 0; i < 2 * split_sums<D>::PIECES; i++)
            if (total.has(i / 2, t.warp))
                *(uint32_t *)((E *)a.y + (int64_t)row.y * D + total.column(i / 2, i % 2, t)) =
                    pack<E>(total.sum[i / 2][i % 2][2 * half] / sum, total.sum[i / 2][i % 2][2 * half + 1] / sum);
    }
}

/* ---- blocks ------------------------------------------------------------------------------------------------------- */

/* What this block has to do: the token `b.token` and its neighbours of the same slot up to the next multiple of shape.tokens;
 * blocks of those find that there is nothing to do. All that is known of tokens is asked for at once, a lane has one of them, the
 * first the one before. False: there is nothing to attend to, and rows without a slot are zeros. The same for all blocks of a cluster. */
template <typename E, int D>
__device__ bool rows_find(step_rows &b, tile_row *rows, const launch_paged &a, const row_shape &shape, int n_tokens,
                          int lane) {
    const int task = (int)blockIdx.x, first = task / shape.parts / a.G, nth = first % shape.tokens;
    b.part = task % shape.parts;
    b.g = task / shape.parts % a.G;
    b.token = first;
    const int token = first - 1 + lane;
    const bool held = token >= 0 && token < n_tokens && lane <= shape.tokens;
    const int slot = held ? a.slots[token] : -2, at = held ? -a.doc_start[token] : 0; /* -2: no token */
    b.slot = __shfl_sync(0xffffffff, slot, 1);
    const bool served = first >= n_tokens || (nth != 0 && __shfl_sync(0xffffffff, slot, 0) == b.slot);
    const uint32_t others = ~(__ballot_sync(0xffffffff, slot == b.slot) >> 1); /* bit n: token + n is of another slot */
    b.n = served ? 0 : min(__ffs((int)others) - 1, shape.tokens - nth);
    if (b.n == 0) {
        chain_wait();
        return false;
    }
    const int n_heads = min(shape.heads, shape.group - b.part * shape.heads);
    const int r = (int)threadIdx.x, nth_token = r / shape.heads, nth_head = r % shape.heads;
    const bool there = nth_token < b.n && nth_head < n_heads;
    const int head = b.g * shape.group + b.part * shape.heads + nth_head;
    const int y = (first + nth_token) * a.H + head;
    b.n_rows = (b.n - 1) * shape.heads + n_heads;
    if (b.slot < 0) {
        chain_wait();
        if (cluster_rank() == 0 && r < ROWS && there)
            for (int i = 0; i < D / 8; i++) *(uint4 *)((E *)a.y + (int64_t)y * D + i * 8) = make_uint4(0, 0, 0, 0);
        return false;
    }
    const bool own = lane >= 1 && lane <= b.n;
    if (own && (at < 0 || at >= a.pages_per_slot * a.page_size || b.slot >= a.n_slots)) __trap();
    b.last = __reduce_max_sync(0xffffffff, own ? at : 0);
    b.least = __reduce_min_sync(0xffffffff, own ? first_seen(a, at) : ATTENTION_NO_WINDOW);
    const int position = __shfl_sync(0xffffffff, at, 1 + min(nth_token, b.n - 1));
    if (r < ROWS) rows[r] = {there ? position : -1, y + (first + nth_token) * 2 * a.G, y};
    return true;
}

/* What a block of n_teams teams with n_stages stages each has in shared memory. */
template <typename E, int D, bool BOXES> struct block_memory {
    enum { STAGE = 2 * tile_bytes<D>(KEYS) };
    uint32_t tiles, queries, scores, barriers, aside;
    tile_row *rows;
    int n_stages;

    __device__ block_memory(unsigned char *shared, int n_teams, int stages) : n_stages(stages) {
        const uint32_t n = (uint32_t)(n_teams * n_stages) * STAGE, q = tile_bytes<D>(ROWS),
                       s = (uint32_t)n_teams * SCORES_BYTES;
        tiles = shared_address(shared), queries = tiles + n, scores = queries + q, aside = scores + s;
        rows = (tile_row *)(shared + n + q + s + 4 * D);
        barriers = aside + 4 * D + ROWS * (uint32_t)sizeof(tile_row);
    }
    __device__ key_tiles<E, D, BOXES> stage(int team, int nth, int round) const {
        const uint32_t k = tiles + (uint32_t)(team * n_stages + nth) * STAGE,
                       barrier = barriers + (uint32_t)(team * n_stages + nth) * 16;
        return {k, barrier, round};
    }
    /* Rows were written, too: all threads come here. */
    __device__ void open(int n_teams) const {
        if (BOXES && (int)threadIdx.x < 2 * n_teams * n_stages) {
            barrier_init(barriers + threadIdx.x * 8, 1);
            barriers_publish();
        }
        __syncthreads();
    }
};

__device__ inline team_place team_of(uint32_t scores) {
    const int thread = (int)threadIdx.x, nth = thread / TEAM_THREADS, in_team = thread % TEAM_THREADS;
    return {nth, in_team / WARP, in_team % WARP, in_team, scores + (uint32_t)nth * SCORES_BYTES};
}

#endif

/* Splits side by side: the teams of a cluster have one each. */
template <typename E, int D, bool BOXES>
__global__ void __launch_bounds__(TEAMS_MOST *TEAM_THREADS, 2)
    attention_step(const __grid_constant__ launch_paged_step a, const __grid_constant__ CUtensorMap cache,
                   const __grid_constant__ row_shape shape, int n_splits) {
#if WGMMA_HERE
    extern __shared__ __align__(1024) unsigned char shared[];
    const launch_paged &p = a.paged;
    const block_memory<E, D, BOXES> m(shared, TEAMS_MOST, 1);
    const team_place t = team_of(m.scores);
    const int rank = (int)cluster_rank(), n_blocks = (int)cluster_size(), n_tokens = (int)token_count(p);
    step_rows b;
    chain_next();
    if (!rows_find<E, D>(b, m.rows, p, shape, n_tokens, t.lane)) return;
    m.open(TEAMS_MOST);

    key_tiles<E, D, BOXES> tiles = m.stage(t.nth, 0, 0);
    const int last_split = b.last / KEYS, in_round = n_blocks * TEAMS_MOST;
    int split = b.least / KEYS + rank * TEAMS_MOST + t.nth;
    const bool at_once = last_split - b.least / KEYS < in_round;
    if (split <= last_split) tiles.fetch_both(p, b, &cache, split * KEYS, t);
    find_new(b, p, n_tokens, t.lane);
    clear_queries<D>(m.queries, m.rows);
    if (split <= last_split) {
        if (BOXES) tiles.wait_keys();
        tiles.wait_values();
        tiles.clear_unseen(b, split * KEYS, t.thread);
    }
    const bool has_key = t.warp == TEAM - 1 && b.n_new == 1 && split <= last_split && (last_split - split) % in_round == 0;
    bring_heads<E, D, BOXES>(tiles, m.queries, m.aside, a, b, m.rows, has_key,
                             split == last_split ? b.last - split * KEYS : -1, t.lane);
    if (t.warp == TEAM - 1 && b.n_new > 1 && split <= last_split && (split + 1) * KEYS > b.first_new)
        put_several<E, D, BOXES>(tiles, a, b, split * KEYS, n_tokens, t.lane);
    __syncthreads();
    split_sums<D> of;
    if (at_once) {
        if (split <= last_split) {
            attend_split<true, E, D, BOXES>(of, tiles, a, b, &cache, m.queries, m.rows, {split, -1, false}, n_tokens,
                                            m.aside, t);
            give_split<D>(p, b, m.rows, split, n_splits, (float *)__cvta_shared_to_generic(tiles.k), of, t);
        }
    } else {
        for (; split <= last_split; tiles.round++, split += in_round) {
            const bool more = split + in_round <= last_split;
            attend_split<false, E, D, BOXES>(of, tiles, a, b, &cache, m.queries, m.rows,
                                             {split, more ? split + in_round : -1, more}, n_tokens, m.aside, t);
            give_split<D>(p, b, m.rows, split, n_splits, NULL, of, t);
        }
    }
    if (at_once) cluster_sync_shared();
    else cluster_sync();
    for (int i = (((int)threadIdx.x / WARP) * n_blocks + rank) * WARP + t.lane; i < b.n_rows * (D / 2);
         i += n_blocks * (int)blockDim.x)
        join_pair<E, D>(p, b, at_once ? m.tiles : 0, m.rows, i / (D / 2), i % (D / 2) * 2, n_splits);
    if (at_once) cluster_sync_shared(); /* until all have read what lies here */
#endif
}

/* A team walks all splits of its tile. */
template <typename E, int D, bool BOXES>
__global__ void __launch_bounds__(TEAM_THREADS, 4)
    attention_walk(const __grid_constant__ launch_paged_step a, const __grid_constant__ CUtensorMap cache,
                   const __grid_constant__ row_shape shape, int n_stages) {
#if WGMMA_HERE
    extern __shared__ __align__(1024) unsigned char shared[];
    const launch_paged &p = a.paged;
    const block_memory<E, D, BOXES> m(shared, 1, n_stages);
    const team_place t = team_of(m.scores);
    const int n_tokens = (int)token_count(p);
    step_rows b;
    chain_next();
    if (!rows_find<E, D>(b, m.rows, p, shape, n_tokens, t.lane)) return;
    m.open(1);

    const int first_split = b.least / KEYS, last_split = b.last / KEYS;
    for (int i = 0; i < n_stages && first_split + i <= last_split; i++)
        m.stage(0, i, 0).fetch_both(p, b, &cache, (first_split + i) * KEYS, t);
    find_new(b, p, n_tokens, t.lane);
    clear_queries<D>(m.queries, m.rows);
    const bool has_key = t.warp == TEAM - 1 && b.n_new == 1;
    bring_heads<E, D, BOXES>(m.stage(0, 0, 0), m.queries, m.aside, a, b, m.rows, has_key, -1, t.lane);
    __syncthreads();
    split_sums<D> total = {};
    total.state[0] = total.state[1] = {-INFINITY, 0};
    for (int split = first_split, stage = 0, round = 0; split <= last_split; split++) {
        split_sums<D> of;
        const split_task task = {split, split + n_stages <= last_split ? split + n_stages : -1, split < last_split};
        attend_split<false, E, D, BOXES>(of, m.stage(0, stage, round), a, b, &cache, m.queries, m.rows, task, n_tokens,
                                  m.aside, t);
        join_split(total, of, b.n_rows > 8);
        if (++stage == n_stages) stage = 0, round++;
    }
    store_joined<E, D>(p, m.rows, total, b.n_rows > 8, t);
#endif
}

/* ---- launches ------------------------------------------------------------------------------------------------------- */

int64_t tiles_of(const launch_paged *a) { return a->N * a->G * row_shape_of(*a, ROWS).parts; }
int64_t splits_of(const launch_paged *a) { return (a->page_size * a->pages_per_slot + KEYS - 1) / KEYS; }

/* Enough tiles that a team each keeps memory busy. */
bool walks(const launch_paged *a) { return tiles_of(a) >= WALK_TILES; }

/* Blocks for one tile: as many as keep the machine busy, and no more than have a split. Changes no bit. */
unsigned cluster_of(const launch_paged *a) {
    unsigned n = 1;
    while (n < CLUSTER_MOST && tiles_of(a) * n * 2 <= BLOCKS_ENOUGH && n * TEAMS_MOST < splits_of(a)) n *= 2;
    return n;
}

/* Of a walking team: as many as fit beside those of the other teams of a multiprocessor. */
int stages_of(const launch_paged *a, bool boxes) {
    const int64_t teams = (tiles_of(a) + MULTIPROCESSORS - 1) / MULTIPROCESSORS;
    if (!boxes) return 1; /* copies of lanes are waited for in the order of one */
    return (int)(STAGES_MOST / teams > 1 ? STAGES_MOST / teams : 1);
}

template <typename E, int D, bool BOXES> void launch_step(const launch_paged_step *a, cudaStream_t s) {
    const launch_paged *p = &a->paged;
    const row_shape shape = row_shape_of(*p, ROWS);
    tensor_box box = {.data = p->cache,
                      .columns = D,
                      .rows = p->n_pages * 2 * p->G * p->page_size,
                      .sequences = 1,
                      .box_columns = 64,
                      .box_rows = (int)(p->page_size < KEYS ? p->page_size : KEYS),
                      .type = p->type};
    const CUtensorMap cache = BOXES ? tensor_map_make(&box) : CUtensorMap{};
    if (walks(p)) {
        const int n_stages = stages_of(p, BOXES);
        launch_chained(attention_walk<E, D, BOXES>, dim3((unsigned)tiles_of(p)), dim3(TEAM_THREADS),
                       shared_bytes<D>(1, n_stages), 1, s, *a, cache, shape, n_stages);
        return;
    }
    const unsigned cluster = cluster_of(p);
    launch_chained(attention_step<E, D, BOXES>, dim3((unsigned)tiles_of(p), cluster), dim3(TEAMS_MOST * TEAM_THREADS),
                   shared_bytes<D>(TEAMS_MOST, 1), cluster, s, *a, cache, shape,
                   (int)paged_split_count(p->N, p->n_slots, p->page_size * p->pages_per_slot));
}

template <typename E, int D> void attend(const launch_paged_step *a, cudaStream_t s) {
    const int64_t page = a->paged.page_size;
    if constexpr (D % 64 == 0) {
        if (page % KEYS == 0 ||
            (KEYS % page == 0 && page % 8 == 0)) { /* whole pages, of whole groups of swizzled rows */
            launch_step<E, D, true>(a, s);
            return;
        }
    }
    launch_step<E, D, false>(a, s);
}

} // namespace

/* Side by side, many positions of few tokens need more blocks than a cluster has, and scratch where they do not have all at once. */
extern "C" bool paged_step_takes(const launch_paged *a) {
    const bool shaped = a->type != LAUNCH_F32 && (a->D == 64 || a->D == 80 || a->D == 96 || a->D == 128);
    if (!shaped || a->N > a->n_slots || a->H % a->G != 0) return false;
    return walks(a) || (paged_split_count(a->N, a->n_slots, a->page_size * a->pages_per_slot) > 1 &&
                        splits_of(a) <= (int64_t)cluster_of(a) * TEAMS_MOST * ROUNDS_MOST);
}

extern "C" void launch_attention_step(const launch_paged_step *a, cudaStream_t s) {
    by_head(a->paged.type, a->paged.D,
            [&](auto zero, auto length) { attend<decltype(zero), decltype(length)::value>(a, s); });
}
