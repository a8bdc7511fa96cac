/* paged_step.cu - attention of a decode step in one kernel: q and k are rotated (and normed before), k and v go to their pages,
 * every token attends through the page table, and the splits of its positions are joined.
 *
 * A cluster of blocks has the query heads of one kv head for one token, or for neighbouring tokens of one slot. A warp takes a split: its keys
 * are under way before the kernels in front are done, whatever lies there, and what this step itself has for the cache is
 * put over them afterwards. When the sums of all splits are there the cluster joins them in order, every thread some columns of a row. Keys of a split, their sums and the way splits join are those of paged_device.cuh and paged_mma.cu: the same bits.
 *
 * The warp that has a token's own position stores its key and value. */
#include "backend/cuda/attention_mma.cuh"
#include "backend/cuda/chain.cuh"
#include "backend/cuda/paged_device.cuh"
#include "backend/cuda/tensor_map.h"
#include "backend/cuda/wgmma.cuh"

using namespace attention_mma;

namespace {

enum { WARPS = 3, THREADS = WARPS * WARP, KEYS = PAGED_SPLIT, ROWS = MMA_ROWS, CLUSTER_MOST = 4 };
enum { BLOCKS_ENOUGH = 264, ROUNDS_MOST = 8 }; /* two blocks on each of 132 multiprocessors */

#if WGMMA_HERE

template <int D> struct sizes {
    static constexpr int CHUNKS = D / 8, HALF = D / 16; /* packs of a head, of half a head */
    static constexpr int LANES = HALF <= 4 ? 4 : 8;     /* that hold a head, as in qk_norm_rope.cu */
};

/* What the warps of a block know of their rows. */
struct step_rows {
    int64_t token;
    int n, slot, g, part, n_rows; /* n: tokens */
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

/* A head as LANES neighbouring lanes hold it, pack j of both halves each: normed and rotated. The whole warp comes here. */
template <typename E, int D> __device__ void load_head(uint4 &low, uint4 &high, const E *head, int j, bool there) {
    const bool held = there && j < sizes<D>::HALF;
    low = held ? *(const uint4 *)(head + j * 8) : make_uint4(0, 0, 0, 0);
    high = held ? *(const uint4 *)(head + D / 2 + j * 8) : make_uint4(0, 0, 0, 0);
}
template <typename E, int D>
__device__ void turn_head(uint4 &low, uint4 &high, const launch_paged_step &a, const void *gain, int position, int j,
                          bool there) {
    using S = sizes<D>;
    const bool held = there && j < S::HALF;
    if (!a.turns) return;
    if (held && position >= a.n_positions) __trap();
    const float4 *line = (const float4 *)(a.turns + (held ? (int64_t)position * D + j * 8 : 0));
    float l[8], h[8];
    alignas(16) float turns[16];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        *(float4 *)(turns + 4 * i) = line[i];
        *(float4 *)(turns + 8 + 4 * i) = line[held ? D / 8 + i : i];
    }
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
    if (held) low = narrow_pack<E>(l), high = narrow_pack<E>(h);
}

/* Zeros where the block's tile has no query: nothing to wait for. */
template <int D> __device__ void clear_queries(uint32_t q_tile, const tile_row *rows) {
    using S = sizes<D>;
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < ROWS * S::CHUNKS; i += THREADS)
        if (rows[i / S::CHUNKS].position < 0)
            store_shared_16(q_tile + tile_at<D>(i / S::CHUNKS, i % S::CHUNKS), make_uint4(0, 0, 0, 0));
}

/* The block's queries. */
template <typename E, int D>
__device__ void fetch_queries(uint32_t q_tile, const launch_paged_step &a, int n_rows, const tile_row *rows) {
    using S = sizes<D>;
#pragma unroll 1
    for (int first = 0; first < n_rows * S::LANES; first += THREADS) {
        const int item = first + (int)threadIdx.x, r = item / S::LANES, j = item % S::LANES;
        const tile_row row = rows[r % ROWS];
        const bool there = r < n_rows && row.position >= 0;
        uint4 low, high;
        load_head<E, D>(low, high, (const E *)a.paged.qkv + (int64_t)row.q * D, j, there);
        turn_head<E, D>(low, high, a, a.gq, row.position, j, there);
        if (!there || j >= S::HALF) continue;
        store_shared_16(q_tile + tile_at<D>(r, j), low);
        store_shared_16(q_tile + tile_at<D>(r, j + S::HALF), high);
    }
}

/* ---- keys and values ------------------------------------------------------------------------------------------------ */

/* Tiles of keys and of values. Where heads are whole boxes of 64 columns and pages divide a tile or are divided by it, the TMA unit
 * fetches each page of a tile as one box a half (BOXES): a row of a half is 128 bytes, and the halves lie behind each other. Else
 * every lane copies packs of 16 bytes. */
template <int D, bool BOXES> __device__ inline uint32_t key_tile_at(int row, int chunk) {
    if (!BOXES) return tile_at<D>(row, chunk);
    return (uint32_t)(chunk / 8 * (KEYS * 128) + row * 128 + ((chunk % 8 ^ (row & 7)) << 4));
}

template <typename E, int D, bool BOXES> struct key_tiles {
    uint32_t k, v;                 /* in shared memory */
    uint32_t k_barrier, v_barrier; /* BOXES */
    int box_rows;
    /* Rows of the cache, -1: not seen. BOXES: where page `lane` of the tile begins; else the keys lane and lane + 32. */
    int at[2];

    /* Through the page table. */
    __device__ void find(const launch_paged &a, const step_rows &b, int k0, int lane) {
#pragma unroll
        for (int half = 0; half < (BOXES ? 1 : 2); half++) {
            const int n = BOXES ? box_rows : 1, first = k0 + (lane + half * WARP) * n;
            const bool seen = first < k0 + KEYS && first + n > b.least && first <= b.last;
            at[half] = seen ? (int)(key_at(a, b.slot, first, b.g) / D) : -1;
        }
    }
    /* offset: of values from keys, in rows. */
    __device__ void fetch(uint32_t tile, uint32_t barrier, const launch_paged &a, const CUtensorMap *cache,
                          int64_t offset, int lane) {
        if constexpr (BOXES) {
            const int n = __popc(__ballot_sync(0xffffffff, at[0] >= 0));
            if (lane == 0) barrier_arrive_expecting(barrier, (uint32_t)(n * box_rows * D * 2));
            __syncwarp();
            if (at[0] < 0) return;
            for (int half = 0; half < D / 64; half++)
                fetch_box_once(tile + (uint32_t)(half * KEYS + lane * box_rows) * 128, cache, half * 64,
                               at[0] + (int)offset, 0, barrier);
        } else {
            constexpr int CHUNKS = sizes<D>::CHUNKS;
#pragma unroll 8
            for (int i = lane; i < KEYS * CHUNKS; i += WARP) {
                const int r = i / CHUNKS, chunk = i % CHUNKS;
                const int low = __shfl_sync(0xffffffff, at[0], r % WARP),
                          high = __shfl_sync(0xffffffff, at[1], r % WARP);
                const int row = r < WARP ? low : high;
                copy_async_16(tile + tile_at<D>(r, chunk),
                              (const E *)a.cache + (row < 0 ? 0 : (row + offset) * D + chunk * 8), row >= 0);
            }
            copy_async_commit();
        }
    }
    __device__ void fetch_keys(const launch_paged &a, const CUtensorMap *cache, int lane) {
        fetch(k, k_barrier, a, cache, 0, lane);
    }
    __device__ void fetch_values(const launch_paged &a, const CUtensorMap *cache, int lane) {
        fetch(v, v_barrier, a, cache, (int64_t)a.G * a.page_size, lane);
    }
    /* Until keys, or values, of this round are there; `later` copies of the lane may still be under way. */
    template <int LATER> __device__ void wait(uint32_t barrier, int round) const {
        if constexpr (BOXES) barrier_wait(barrier, (uint32_t)round & 1);
        else copy_async_wait<LATER>();
        __syncwarp();
    }
    /* A page comes whole, and what it holds behind the last position or before the first may be anything: values of weight 0 must
     * still be numbers. */
    __device__ void clear_unseen(const step_rows &b, int k0, int lane) const {
        if constexpr (BOXES) {
            constexpr int CHUNKS = sizes<D>::CHUNKS;
            const int n_before = max(b.least - k0, 0), n_seen = max(min(b.last + 1 - k0, KEYS) - n_before, 0);
#pragma unroll 1
            for (int i = lane; i < (KEYS - n_seen) * CHUNKS; i += WARP) {
                const int at = i / CHUNKS, r = at < n_before ? at : at + n_seen;
                store_shared_16(v + key_tile_at<D, true>(r, i % CHUNKS), make_uint4(0, 0, 0, 0));
            }
            __syncwarp();
        }
    }
};

__device__ inline void find_new(step_rows &b, const launch_paged &a, int64_t n_tokens, int lane) {
    int least = ATTENTION_NO_WINDOW, n = 0;
#pragma unroll 4
    for (int64_t t = lane; t < n_tokens; t += WARP)
        if (a.slots[t] == b.slot) least = min(least, position_of(a, t)), n++;
    b.first_new = __reduce_min_sync(0xffffffff, least);
    b.n_new = __reduce_add_sync(0xffffffff, n);
}

/* Key and value of a token as its product left them: the first lanes have the key, the upper half the value. */
struct token_packs {
    uint4 low, high, v;
};
template <typename E, int D>
__device__ token_packs load_token(const launch_paged &p, const step_rows &b, int64_t token, int lane) {
    using S = sizes<D>;
    const E *key = (const E *)p.qkv + (token * (p.H + 2 * p.G) + p.H + b.g) * D, *value = key + p.G * D;
    const int chunk = lane - WARP / 2;
    token_packs t;
    t.v = chunk >= 0 && chunk < S::CHUNKS ? *(const uint4 *)(value + chunk * 8) : make_uint4(0, 0, 0, 0);
    load_head<E, D>(t.low, t.high, key, lane % S::LANES, lane < S::LANES);
    return t;
}

/* A token of this step at a position of the tile, over what was fetched there; this block's own also into the cache. The warp
 * comes here. */
template <typename E, int D, bool BOXES>
__device__ void put_token(const key_tiles<E, D, BOXES> &tiles, const launch_paged_step &a, const step_rows &b, int k0,
                          int64_t token, const token_packs &t, int at, int lane) {
    using S = sizes<D>;
    const launch_paged &p = a.paged;
    uint4 low = t.low, high = t.high;
    const uint4 v = t.v;
    const int chunk = lane - WARP / 2, r = at - k0;
    turn_head<E, D>(low, high, a, a.gk, at, lane % S::LANES, lane < S::LANES);
    const bool own = b.part == 0 && token >= b.token && token < b.token + b.n;
    E *to = (E *)p.cache + key_at(p, b.slot, at, b.g);
    if (lane < S::HALF) {
        store_shared_16(tiles.k + key_tile_at<D, BOXES>(r, lane), low);
        store_shared_16(tiles.k + key_tile_at<D, BOXES>(r, lane + S::HALF), high);
        if (own) *(uint4 *)(to + lane * 8) = low, *(uint4 *)(to + D / 2 + lane * 8) = high;
    }
    if (chunk >= 0 && chunk < S::CHUNKS) {
        store_shared_16(tiles.v + key_tile_at<D, BOXES>(r, chunk), v);
        if (own) *(uint4 *)(to + value_offset(p) + chunk * 8) = v;
    }
}

/* All that this step has for the tile from k0 on. */
template <typename E, int D, bool BOXES>
__device__ void put_new(const key_tiles<E, D, BOXES> &tiles, const launch_paged_step &a, const step_rows &b, int k0,
                        int64_t n_tokens, const token_packs &own, int lane) {
    const launch_paged &p = a.paged;
    if (b.n_new == 1) { /* a decode step: it is this block's own */
        put_token<E, D, BOXES>(tiles, a, b, k0, b.token, own, b.last, lane);
        return;
    }
    for (int64_t some = 0; some < n_tokens; some += WARP) {
        const int64_t mine = some + lane;
        const int position = mine < n_tokens && p.slots[mine] == b.slot ? position_of(p, mine) : -1;
        uint32_t found =
            __ballot_sync(0xffffffff, position >= max(k0, b.least) && position < k0 + KEYS && position <= b.last);
        for (; found; found &= found - 1) {
            const int from = __ffs((int)found) - 1;
            put_token<E, D, BOXES>(tiles, a, b, k0, some + from, load_token<E, D>(p, b, some + from, lane),
                                   __shfl_sync(0xffffffff, position, from), lane);
        }
    }
}

/* ---- one split, and how they join ------------------------------------------------------------------------------------ */

/* Scores of the keys of a tile from k0 on, as product_of_rows has them; -inf where a row does not see one. */
template <typename E, int D, bool BOXES>
__device__ void score(float (&s)[1][KEYS / 8][4], const launch_paged &a, uint32_t q_tile, uint32_t k_tile, int k0,
                      const tile_row *rows, bool all_seen, int lane) {
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) s[0][i / 4][i % 4] = 0;
#pragma unroll
    for (int step = 0; step < D / 16; step++) {
        uint32_t q[4];
        fragment_rows<D>(q, q_tile, 0, step, lane);
#pragma unroll
        for (int n = 0; n < KEYS / 16; n++) {
            uint32_t k[4];
            load_matrices(k,
                          k_tile + key_tile_at<D, BOXES>(n * 16 + lane % 8 + lane / 16 * 8, 2 * step + lane / 8 % 2));
            mma<E>(s[0][2 * n], q, k[0], k[1]);
            mma<E>(s[0][2 * n + 1], q, k[2], k[3]);
        }
    }
    if (a.softcap > 0) cap_scores<1, KEYS>(a, s);
    if (all_seen) return; /* by every row that there is */
    int position[2], start[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        position[half] = rows[half * 8 + lane / 4].position;
        start[half] = first_seen(a, position[half]);
    }
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) {
        const int key = k0 + i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (key > position[i / 2 % 2] || key < start[i / 2 % 2]) s[0][i / 4][i % 4] = -INFINITY;
    }
}

/* sum += w v, as product_with_rows has it. */
template <typename E, int D, bool BOXES>
__device__ void add_values(float (&sum)[1][D / 8][4], const float (&w)[1][KEYS / 8][4], uint32_t v_tile, int lane) {
#pragma unroll
    for (int step = 0; step < KEYS / 16; step++) {
        uint32_t weights[4];
        pack_rows<E>(weights, w[0], step);
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            uint32_t v[4];
            load_matrices_transposed(v, v_tile + key_tile_at<D, BOXES>(step * 16 + lane % 16, 2 * n + lane / 16));
            mma<E>(sum[0][2 * n], weights, v[0], v[1]);
            mma<E>(sum[0][2 * n + 1], weights, v[2], v[3]);
        }
    }
}

/* Where the sums of splits meet. A cluster that has all of them at once leaves them in shared memory, where the keys of each were:
 * rows of D floats, then their states. Else they go to scratch. */
template <int D> struct shared_sums {
    enum { STRIDE = D + 8, STATES = ROWS * STRIDE }; /* floats; 8 more, so that rows are in different banks */
    static_assert((STATES + 2 * ROWS) * 4 <= tile_bytes<D>(KEYS), "they have the room of the keys");
};

/* Sums and states of a split, for the rows that see it. here: in shared memory, or NULL. */
template <int D>
__device__ void give_split(const launch_paged &a, const tile_row *rows, int split, int n_splits, float *here,
                           const float (&sum)[1][D / 8][4], const row_state (&state)[2], float factor, int lane) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int r = half * 8 + lane / 4, position = rows[r].position;
        const softmax_state of_split = {state[half].max * factor, quad_sum(state[half].sum)};
        if (split * KEYS > position || (split + 1) * KEYS <= first_seen(a, position)) continue;
        const int64_t partial = (int64_t)rows[r].y * n_splits + split; /* as partial_of */
        float *values = (here ? here + r * shared_sums<D>::STRIDE : partial_values(a, partial)) + lane % 4 * 2;
#pragma unroll
        for (int c = 0; c < D / 8; c++)
            *(float2 *)(values + c * 8) = make_float2(sum[0][c][2 * half], sum[0][c][2 * half + 1]);
        if (lane % 4 == 0)
            *(here ? (softmax_state *)(here + shared_sums<D>::STATES) + r : partial_state(a, partial, n_splits)) =
                of_split;
    }
}

/* One split of a warp. The keys of its next, -1: there is none, are asked for when these have been read, and so the values. */
template <typename E, int D, bool BOXES>
__device__ void attend_split(key_tiles<E, D, BOXES> &tiles, const launch_paged_step &a, const step_rows &b,
                             const CUtensorMap *cache, uint32_t q_tile, const tile_row *rows, int split, int next,
                             int round, int n_splits, int64_t n_tokens, const token_packs &own, float *here, int lane) {
    const int k0 = split * KEYS;
    float s[1][KEYS / 8][4], sum[1][D / 8][4] = {};
    row_state state[2] = {{-INFINITY, 0}, {-INFINITY, 0}};
    if (next >= 0) tiles.find(a.paged, b, next * KEYS, lane);
    tiles.template wait<1>(tiles.k_barrier, round);
    if (k0 + KEYS > b.first_new) {
        tiles.template wait<0>(tiles.v_barrier, round);
        put_new<E, D, BOXES>(tiles, a, b, k0, n_tokens, own, lane);
        __syncwarp();
    }
    score<E, D, BOXES>(s, a.paged, q_tile, tiles.k, k0, rows, b.n == 1 && k0 >= b.least && k0 + KEYS - 1 <= b.last,
                       lane);
    if (BOXES) fence_bulk(); /* keys were read, and perhaps written, before others come there */
    __syncwarp();
    if (next >= 0) {
        tiles.fetch_keys(a.paged, cache, lane);
        tiles.template wait<1>(tiles.v_barrier, round);
    } else tiles.template wait<0>(tiles.v_barrier, round);
    if (round > 0) tiles.clear_unseen(b, k0, lane);
    const float factor = score_scale(a.paged);
#pragma unroll
    for (int half = 0; half < 2; half++) softmax_row<1, KEYS>(s, 0, half, state[half], factor);
    add_values<E, D, BOXES>(sum, s, tiles.v, lane);
    if (BOXES) fence_bulk();
    __syncwarp();
    if (next >= 0) tiles.fetch_values(a.paged, cache, lane);
    give_split<D>(a.paged, rows, split, n_splits, here, sum, state, factor, lane);
}

/* Four columns of a row over all splits that it sees, in order. tiles: of a cluster whose sums are in shared memory, else 0; what
 * other blocks wrote to scratch is in L2. */
template <typename E, int D>
__device__ void join_quad(const launch_paged &a, const step_rows &b, uint32_t tiles, const tile_row *rows, int r,
                          int column, int n_splits) {
    enum { ASKED = 6 }; /* at once */
    using S = shared_sums<D>;
    const int position = rows[r].position, last = position / KEYS;
    const int64_t first = (int64_t)rows[r].y * n_splits;
    softmax_state total = {-INFINITY, 0};
    float4 sum = make_float4(0, 0, 0, 0);
    for (int some = first_seen(a, position) / KEYS; some <= last; some += ASKED) {
        float4 values[ASKED];
        float2 states[ASKED];
#pragma unroll
        for (int i = 0; i < ASKED; i++) {
            const int split = min(some + i, last), place = split - b.least / KEYS;
            if (tiles) {
                const uint32_t at =
                    cluster_address(tiles + place % WARPS * (2 * tile_bytes<D>(KEYS)), (uint32_t)(place / WARPS));
                values[i] = cluster_load4(at + (uint32_t)(r * S::STRIDE + column) * 4);
                states[i] = cluster_load2(at + (uint32_t)(S::STATES + 2 * r) * 4);
                continue;
            }
            values[i] = __ldcg((const float4 *)(partial_values(a, first + split) + column));
            states[i] = __ldcg((const float2 *)partial_state(a, first + split, n_splits));
        }
#pragma unroll
        for (int i = 0; i < ASKED; i++) {
            if (some + i > last) break;
            const join_factors f = join(total, softmax_state{states[i].x, states[i].y});
            sum.x = fmaf(sum.x, f.total, values[i].x * f.part);
            sum.y = fmaf(sum.y, f.total, values[i].y * f.part);
            sum.z = fmaf(sum.z, f.total, values[i].z * f.part);
            sum.w = fmaf(sum.w, f.total, values[i].w * f.part);
        }
    }
    E *y = (E *)a.y + (int64_t)rows[r].y * D + column;
    *(uint2 *)y =
        make_uint2(pack<E>(sum.x / total.sum, sum.y / total.sum), pack<E>(sum.z / total.sum, sum.w / total.sum));
}

/* What this block has to do: the token `b.token` and its neighbours of the same slot up to the next multiple of shape.tokens;
 * blocks of those find that there is nothing to do. All that is known of tokens is asked for at once, a lane has one of them, the
 * first the one before. False: there is nothing to attend to, and rows without a slot are zeros. The same for all blocks of a cluster. */
template <typename E, int D>
__device__ bool rows_find(step_rows &b, tile_row *rows, const launch_paged &a, int n_tokens, int lane) {
    const row_shape shape = row_shape_of(a, ROWS);
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

#endif

template <typename E, int D, bool BOXES>
__global__ void __launch_bounds__(THREADS, 2) attention_step(const __grid_constant__ launch_paged_step a,
                                                             const __grid_constant__ CUtensorMap cache, int n_splits) {
#if WGMMA_HERE
    extern __shared__ unsigned char shared[];
    __shared__ tile_row rows[ROWS];
    __shared__ __align__(8) uint64_t barriers[2 * WARPS];
    const launch_paged &p = a.paged;
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int rank = (int)cluster_rank(), n_blocks = (int)cluster_size();
    constexpr uint32_t STRIDE = 2 * tile_bytes<D>(KEYS);
    const uint32_t first_tile = (shared_address(shared) + 1023) & ~1023u, q_tile = first_tile + WARPS * STRIDE;
    const int n_tokens = (int)token_count(p);
    step_rows b;
    key_tiles<E, D, BOXES> tiles;
    tiles.k = first_tile + (uint32_t)warp * STRIDE, tiles.v = tiles.k + tile_bytes<D>(KEYS);
    tiles.k_barrier = shared_address(barriers + 2 * warp), tiles.v_barrier = tiles.k_barrier + 8;
    tiles.box_rows = (int)min(p.page_size, (int64_t)KEYS);
    chain_next();
    if (!rows_find<E, D>(b, rows, p, n_tokens, lane)) return;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2 * WARPS; i++) barrier_init(shared_address(barriers + i), 1);
        barriers_publish();
    }
    __syncthreads();

    const int last_split = b.last / KEYS, in_round = n_blocks * WARPS;
    int split = b.least / KEYS + rank * WARPS + warp;
    if (split <= last_split) {
        tiles.find(p, b, split * KEYS, lane);
        tiles.fetch_keys(p, &cache, lane);
        tiles.fetch_values(p, &cache, lane);
    }
    const bool at_once = last_split - b.least / KEYS < in_round;
    float *here = at_once ? (float *)__cvta_shared_to_generic(tiles.k) : NULL;
    find_new(b, p, n_tokens, lane);
    clear_queries<D>(q_tile, rows);
    if (split <= last_split) {
        tiles.template wait<0>(tiles.v_barrier, 0);
        tiles.clear_unseen(b, split * KEYS, lane);
    }
    chain_wait();
    const token_packs own = load_token<E, D>(p, b, b.token, lane); /* asked for together with the queries */
    fetch_queries<E, D>(q_tile, a, b.n_rows, rows);
    __syncthreads();
    for (int round = 0; split <= last_split; round++, split += in_round)
        attend_split<E, D, BOXES>(tiles, a, b, &cache, q_tile, rows, split,
                                  split + in_round <= last_split ? split + in_round : -1, round, n_splits, n_tokens,
                                  own, here, lane);
    if (at_once) cluster_sync_shared();
    else cluster_sync();
    for (int i = rank * THREADS + (int)threadIdx.x; i < ROWS * D / 4; i += n_blocks * THREADS)
        if (rows[i / (D / 4)].position >= 0)
            join_quad<E, D>(p, b, at_once ? first_tile : 0, rows, i / (D / 4), i % (D / 4) * 4, n_splits);
    if (at_once) cluster_sync_shared(); /* until all have read what lies here */
#endif
}

/* Blocks for one token and kv head: as many as keep the machine busy, and no more than have a split. Changes no bit. */
unsigned cluster_of(const launch_paged *a) {
    const int64_t pairs = a->N * a->G * row_shape_of(*a, ROWS).parts;
    const int64_t n_splits = (a->page_size * a->pages_per_slot + KEYS - 1) / KEYS;
    unsigned n = 1;
    while (n < CLUSTER_MOST && pairs * n * 2 <= BLOCKS_ENOUGH && n * WARPS < n_splits) n *= 2;
    return n;
}

template <typename E, int D, bool BOXES> void launch_step(const launch_paged_step *a, cudaStream_t s) {
    const launch_paged *p = &a->paged;
    const unsigned cluster = cluster_of(p);
    tensor_box cache = {.data = p->cache,
                        .columns = D,
                        .rows = p->n_pages * 2 * p->G * p->page_size,
                        .sequences = 1,
                        .box_columns = 64,
                        .box_rows = (int)(p->page_size < KEYS ? p->page_size : KEYS),
                        .type = p->type};
    launch_chained(attention_step<E, D, BOXES>, dim3((unsigned)(p->N * p->G * row_shape_of(*p, ROWS).parts), cluster),
                   dim3(THREADS), 1024 + tile_bytes<D>(ROWS) + WARPS * 2 * tile_bytes<D>(KEYS), cluster, s, *a,
                   BOXES ? tensor_map_make(&cache) : CUtensorMap{},
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

/* Many positions of few tokens need more blocks than a cluster has; many tokens fill the machine without splits. */
extern "C" bool paged_step_takes(const launch_paged *a) {
    const int64_t pairs = a->N * a->G * row_shape_of(*a, ROWS).parts;
    const int64_t n_splits = (a->page_size * a->pages_per_slot + KEYS - 1) / KEYS;
    const bool shaped = a->type != LAUNCH_F32 && (a->D == 64 || a->D == 80 || a->D == 96 || a->D == 128);
    return shaped && a->N <= a->n_slots && a->H % a->G == 0 &&
           paged_split_count(a->N, a->n_slots, a->page_size * a->pages_per_slot) > 1 && /* else there is no scratch */
           n_splits <= (int64_t)cluster_of(a) * WARPS * ROUNDS_MOST && pairs <= BLOCKS_ENOUGH;
}

extern "C" void launch_attention_step(const launch_paged_step *a, cudaStream_t s) {
    by_head(a->paged.type, a->paged.D,
            [&](auto zero, auto length) { attend<decltype(zero), decltype(length)::value>(a, s); });
}
