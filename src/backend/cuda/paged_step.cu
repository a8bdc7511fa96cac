/* paged_step.cu - attention of a decode step in one kernel: q and k are rotated (and normed before), k and v go to their pages,
 * every token attends through the page table, and the splits of its positions are joined.
 *
 * A cluster of blocks has the query heads of one kv head for one token, or for neighbouring tokens of one slot. A warp takes a split: its keys
 * are under way before the kernels in front are done, whatever lies there, and what this step itself has for the cache is
 * put over them afterwards. Splits are dealt out in rounds; after each the cluster joins them in order, every thread some
 * columns of a row. Keys of a split, their sums and the way splits join are those of paged_device.cuh and paged_mma.cu: the same bits.
 *
 * The warp that has a token's own position stores its key and value. */
#include "backend/cuda/attention_mma.cuh"
#include "backend/cuda/chain.cuh"
#include "backend/cuda/paged_device.cuh"
#include "backend/cuda/tensor_map.h"
#include "backend/cuda/wgmma.cuh"

using namespace attention_mma;

namespace {

enum { WARPS = 3, THREADS = WARPS * WARP, KEYS = PAGED_SPLIT, ROWS = MMA_ROWS, CLUSTER_MOST = 8 };
enum { BLOCKS_ENOUGH = 264, ROUNDS_MOST = 8 }; /* two blocks on each of 132 multiprocessors */

/* Query heads of a group, `parts` times, for `tokens` neighbours: ROWS rows at most. */
struct row_shape {
    int group, heads, parts, tokens;
};
__host__ __device__ inline row_shape row_shape_of(const launch_paged &a) {
    row_shape r;
    r.group = a.H / a.G;
    r.heads = r.group < ROWS ? r.group : ROWS;
    r.parts = (r.group + r.heads - 1) / r.heads;
    r.tokens = ROWS / r.heads;
    return r;
}

#if WGMMA_HERE

template <int D> struct sizes {
    static constexpr int CHUNKS = D / 8, HALF = D / 16; /* packs of a head, of half a head */
    static constexpr int LANES = HALF <= 4 ? 4 : 8;     /* that hold a head, as in qk_norm_rope.cu */
    static constexpr int LINE = D + 8;                  /* floats from row to row of a split's sums: no bank twice */
    static constexpr uint32_t STATES = ROWS * LINE * 4; /* where their states lie behind them */
    static constexpr int QUADS = (ROWS * D / 4 + THREADS - 1) / THREADS; /* of y, for a thread of a block alone */
    static_assert(STATES + ROWS * 8 <= tile_bytes<D>(KEYS), "sums lie where the values were");
};

/* What the warps of a block know of their rows. */
struct step_rows {
    int64_t token;
    int n, slot, g, part, first_head, n_heads; /* n: tokens */
    int last, least;                           /* positions seen */
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
template <typename E, int D>
__device__ void turn_head(uint4 &low, uint4 &high, const launch_paged_step &a, const E *head, const void *gain,
                          int position, int j, bool there) {
    using S = sizes<D>;
    const bool held = there && j < S::HALF;
    low = held ? *(const uint4 *)(head + j * 8) : make_uint4(0, 0, 0, 0);
    high = held ? *(const uint4 *)(head + D / 2 + j * 8) : make_uint4(0, 0, 0, 0);
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

/* The block's queries, zeros where there is no row. */
template <typename E, int D>
__device__ void fetch_queries(uint32_t q_tile, const launch_paged_step &a, const step_rows &b, const int *position) {
    using S = sizes<D>;
    const launch_paged &p = a.paged;
    const int heads = row_shape_of(p).heads;
#pragma unroll
    for (int first = 0; first < ROWS * S::LANES; first += THREADS) {
        const int item = first + (int)threadIdx.x, r = item / S::LANES, j = item % S::LANES;
        const bool there = r < ROWS && position[r % ROWS] >= 0;
        const int64_t row = there ? (b.token + r / heads) * (p.H + 2 * p.G) + b.first_head + r % heads : 0;
        uint4 low, high;
        turn_head<E, D>(low, high, a, (const E *)p.qkv + row * D, a.gq, there ? position[r] : 0, j, there);
        if (r >= ROWS || j >= S::HALF) continue;
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
    int at
        [2]; /* rows of the cache, -1: not seen. BOXES: where page `lane` of the tile begins; else the keys lane and lane + 32 */

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
                fetch_box(tile + (uint32_t)(half * KEYS + lane * box_rows) * 128, cache, half * 64, at[0] + (int)offset,
                          0, barrier);
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
            if (k0 >= b.least && k0 + KEYS - 1 <= b.last) return;
            for (int i = lane; i < KEYS * sizes<D>::CHUNKS; i += WARP) {
                const int r = i / sizes<D>::CHUNKS, position = k0 + r;
                if (position < b.least || position > b.last)
                    store_shared_16(v + key_tile_at<D, true>(r, i % sizes<D>::CHUNKS), make_uint4(0, 0, 0, 0));
            }
            __syncwarp();
        }
    }
};

/* The earliest position of this slot that this step brings. */
__device__ inline int first_new(const launch_paged &a, int slot, int64_t n_tokens, int lane) {
    int least = ATTENTION_NO_WINDOW;
#pragma unroll 4
    for (int64_t t = lane; t < n_tokens; t += WARP)
        if (a.slots[t] == slot) least = min(least, position_of(a, t));
    return __reduce_min_sync(0xffffffff, least);
}

/* Keys and values of this step over what was fetched in their place; this block's own also into the cache. The warp comes here. */
template <typename E, int D, bool BOXES>
__device__ void put_new(const key_tiles<E, D, BOXES> &tiles, const launch_paged_step &a, const step_rows &b, int k0,
                        int64_t n_tokens, int lane) {
    using S = sizes<D>;
    const launch_paged &p = a.paged;
    for (int64_t some = 0; some < n_tokens; some += WARP) {
        const int64_t mine = some + lane;
        const int position = mine < n_tokens && p.slots[mine] == b.slot ? position_of(p, mine) : -1;
        uint32_t found =
            __ballot_sync(0xffffffff, position >= max(k0, b.least) && position < k0 + KEYS && position <= b.last);
        for (; found; found &= found - 1) {
            const int from = __ffs((int)found) - 1, at = __shfl_sync(0xffffffff, position, from), r = at - k0;
            const int64_t token = some + from;
            const E *key = (const E *)p.qkv + (token * (p.H + 2 * p.G) + p.H + b.g) * D, *value = key + p.G * D;
            uint4 low, high, v = make_uint4(0, 0, 0, 0);
            const int chunk = lane - WARP / 2;
            if (chunk >= 0 && chunk < S::CHUNKS) v = *(const uint4 *)(value + chunk * 8);
            turn_head<E, D>(low, high, a, key, a.gk, at, lane % S::LANES, lane < S::LANES);
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
    }
}

/* ---- one split, and how they join ------------------------------------------------------------------------------------ */

/* Scores of the keys of a tile from k0 on, as product_of_rows has them; -inf where a row does not see one. */
template <typename E, int D, bool BOXES>
__device__ void score(float (&s)[1][KEYS / 8][4], const launch_paged &a, uint32_t q_tile, uint32_t k_tile, int k0,
                      const int *positions, int lane) {
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
    int position[2], start[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        position[half] = positions[half * 8 + lane / 4];
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

/* Sums and states of a split to where its values were. */
template <int D>
__device__ void give_split(uint32_t to, const float (&sum)[1][D / 8][4], const row_state (&state)[2], float factor,
                           int lane) {
    using S = sizes<D>;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int r = half * 8 + lane / 4;
        const float total = quad_sum(state[half].sum);
#pragma unroll
        for (int c = 0; c < D / 8; c++)
            asm volatile(
                "st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to + (uint32_t)(r * S::LINE + c * 8 + lane % 4 * 2) * 4),
                "f"(sum[0][c][2 * half]), "f"(sum[0][c][2 * half + 1])
                : "memory");
        if (lane % 4 == 0)
            asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to + S::STATES + (uint32_t)r * 8),
                         "f"(state[half].max * factor), "f"(total)
                         : "memory");
    }
}

/* One split of a warp; the keys of its next, -1: there is none, are asked for when these have been read. */
template <typename E, int D, bool BOXES>
__device__ void attend_split(key_tiles<E, D, BOXES> &tiles, const launch_paged_step &a, const step_rows &b,
                             const CUtensorMap *cache, uint32_t q_tile, const int *position, int split, int next,
                             int round, int is_new, int64_t n_tokens, int lane) {
    const int k0 = split * KEYS;
    float s[1][KEYS / 8][4], sum[1][D / 8][4] = {};
    row_state state[2] = {{-INFINITY, 0}, {-INFINITY, 0}};
    if (next >= 0) tiles.find(a.paged, b, next * KEYS, lane);
    tiles.template wait<1>(tiles.k_barrier, round);
    if (k0 + KEYS > is_new) {
        tiles.template wait<0>(tiles.v_barrier, round);
        put_new<E, D, BOXES>(tiles, a, b, k0, n_tokens, lane);
        __syncwarp();
    }
    score<E, D, BOXES>(s, a.paged, q_tile, tiles.k, k0, position, lane);
    if (BOXES) fence_bulk(); /* keys were read, and perhaps written, before others come there */
    __syncwarp();
    if (next >= 0) {
        tiles.fetch_keys(a.paged, cache, lane);
        tiles.template wait<1>(tiles.v_barrier, round);
    } else tiles.template wait<0>(tiles.v_barrier, round);
    tiles.clear_unseen(b, k0, lane);
    const float factor = score_scale(a.paged);
#pragma unroll
    for (int half = 0; half < 2; half++)
        scale_row<1, D>(sum, 0, half, softmax_row<1, KEYS>(s, 0, half, state[half], factor));
    add_values<E, D, BOXES>(sum, s, tiles.v, lane);
    __syncwarp();
    give_split<D>(tiles.v, sum, state, factor, lane);
}

/* Four columns of a row, over the splits so far. */
struct joined_quad {
    float4 sum;
    softmax_state total;
};

/* Splits [first, first + cluster size x WARPS) of one row, as far as it sees them. values: where this block's first warp has its own,
 * `stride` bytes from one warp to the next. */
template <int D>
__device__ void join_round(joined_quad &q, int row, int column, int first, int position, int start, uint32_t values,
                           uint32_t stride, int n_blocks) {
    using S = sizes<D>;
    for (int block = 0; block < n_blocks; block++) {
        float4 sum[WARPS];
        softmax_state state[WARPS];
        const int split = first + block * WARPS;
        if (split * KEYS > position) return;
#pragma unroll
        for (int w = 0; w < WARPS; w++) { /* asked for at once */
            const uint32_t from = cluster_address(values + (uint32_t)w * stride, (uint32_t)block);
            asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(sum[w].x), "=f"(sum[w].y), "=f"(sum[w].z), "=f"(sum[w].w)
                         : "r"(from + (uint32_t)(row * S::LINE + column) * 4)
                         : "memory");
            asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];"
                         : "=f"(state[w].max), "=f"(state[w].sum)
                         : "r"(from + S::STATES + (uint32_t)row * 8)
                         : "memory");
        }
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            if ((split + w) * KEYS > position || (split + w + 1) * KEYS <= start) continue;
            const join_factors f = join(q.total, state[w]);
            q.sum.x = fmaf(q.sum.x, f.total, sum[w].x * f.part);
            q.sum.y = fmaf(q.sum.y, f.total, sum[w].y * f.part);
            q.sum.z = fmaf(q.sum.z, f.total, sum[w].z * f.part);
            q.sum.w = fmaf(q.sum.w, f.total, sum[w].w * f.part);
        }
    }
}

/* The block of token `first` serves it and its neighbours of the same slot up to the next multiple of `most`; blocks of those
 * find here that there is nothing to do. */
__device__ inline int tokens_of(const launch_paged &a, int64_t first, int64_t n_tokens, int most) {
    if (first >= n_tokens || (first % most != 0 && a.slots[first - 1] == a.slots[first])) return 0;
    int n = 1;
    while (n < most - first % most && first + n < n_tokens && a.slots[first + n] == a.slots[first]) n++;
    return n;
}

/* False: there is nothing to attend to, and rows without a slot are zeros. The same for all blocks of a cluster. */
template <typename E, int D>
__device__ bool rows_find(step_rows &b, int *position, const launch_paged &a, int64_t n_tokens) {
    const row_shape shape = row_shape_of(a);
    const int64_t task = blockIdx.x;
    b.part = (int)(task % shape.parts);
    b.g = (int)(task / shape.parts % a.G);
    b.token = task / shape.parts / a.G;
    b.n = tokens_of(a, b.token, n_tokens, shape.tokens);
    if (b.n == 0) {
        chain_wait();
        return false;
    }
    b.slot = a.slots[b.token];
    b.first_head = b.g * shape.group + b.part * shape.heads;
    b.n_heads = min(shape.heads, shape.group - b.part * shape.heads);
    const int r = (int)threadIdx.x;
    const bool there = r / shape.heads < b.n && r % shape.heads < b.n_heads;
    if (b.slot < 0) {
        chain_wait();
        if (cluster_rank() == 0 && r < ROWS && there)
            for (int i = 0; i < D / 8; i++)
                *(uint4 *)((E *)a.y + ((b.token + r / shape.heads) * a.H + b.first_head + r % shape.heads) * D +
                           i * 8) = make_uint4(0, 0, 0, 0);
        return false;
    }
    if (r < ROWS) position[r] = there ? position_of(a, b.token + r / shape.heads) : -1;
    b.last = 0, b.least = ATTENTION_NO_WINDOW;
    for (int i = 0; i < b.n; i++) {
        b.last = max(b.last, position_of(a, b.token + i));
        b.least = min(b.least, first_seen(a, position_of(a, b.token + i)));
    }
    return true;
}

#endif

template <typename E, int D, bool BOXES>
__global__ void __launch_bounds__(THREADS, 2)
    attention_step(const __grid_constant__ launch_paged_step a, const __grid_constant__ CUtensorMap cache) {
#if WGMMA_HERE
    using S = sizes<D>;
    extern __shared__ unsigned char shared[];
    __shared__ int position[ROWS]; /* of each row; -1: there is none, it sees nothing */
    __shared__ __align__(8) uint64_t barriers[2 * WARPS];
    const launch_paged &p = a.paged;
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int rank = (int)cluster_rank(), n_blocks = (int)cluster_size();
    constexpr uint32_t STRIDE = 2 * tile_bytes<D>(KEYS);
    const uint32_t first_tile = (shared_address(shared) + 1023) & ~1023u, q_tile = first_tile + WARPS * STRIDE;
    const int64_t n_tokens = token_count(p);
    step_rows b;
    key_tiles<E, D, BOXES> tiles;
    tiles.k = first_tile + (uint32_t)warp * STRIDE, tiles.v = tiles.k + tile_bytes<D>(KEYS);
    tiles.k_barrier = shared_address(barriers + 2 * warp), tiles.v_barrier = tiles.k_barrier + 8;
    tiles.box_rows = (int)min(p.page_size, (int64_t)KEYS);
    chain_next();
    if (!rows_find<E, D>(b, position, p, n_tokens)) return;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2 * WARPS; i++) barrier_init(shared_address(barriers + i), 1);
        barriers_publish();
    }
    __syncthreads();

    const int begin = b.least / KEYS, in_round = n_blocks * WARPS, n_rounds = (b.last / KEYS - begin) / in_round + 1;
    int split = begin + rank * WARPS + warp;
    const int last_split = b.last / KEYS;
    if (split <= last_split) {
        tiles.find(p, b, split * KEYS, lane);
        tiles.fetch_keys(p, &cache, lane);
        tiles.fetch_values(p, &cache, lane);
    }
    const int is_new = first_new(p, b.slot, n_tokens, lane);
    chain_wait();
    fetch_queries<E, D>(q_tile, a, b, position);
    __syncthreads();

    const int heads = row_shape_of(p).heads;
    joined_quad joined[S::QUADS];
#pragma unroll
    for (int i = 0; i < S::QUADS; i++) joined[i] = {make_float4(0, 0, 0, 0), {-INFINITY, 0}};
    for (int round = 0; round < n_rounds; round++) {
        const int first = begin + round * in_round, next = split + in_round;
        if (split <= last_split) {
            attend_split<E, D, BOXES>(tiles, a, b, &cache, q_tile, position, split, next <= last_split ? next : -1,
                                      round, is_new, n_tokens, lane);
        }
        cluster_sync();
#pragma unroll
        for (int i = 0; i < S::QUADS; i++) {
            const int quad = (i * n_blocks + rank) * THREADS + (int)threadIdx.x, r = quad / (D / 4);
            if (r < ROWS && position[r] >= 0)
                join_round<D>(joined[i], r, quad % (D / 4) * 4, first, position[r], first_seen(p, position[r]),
                              first_tile + tile_bytes<D>(KEYS), STRIDE, n_blocks);
        }
        if (BOXES) fence_bulk();
        cluster_sync(); /* all have read what lies where values go next */
        if (next <= last_split) tiles.fetch_values(p, &cache, lane);
        split = next;
    }
#pragma unroll
    for (int i = 0; i < S::QUADS; i++) {
        const int quad = (i * n_blocks + rank) * THREADS + (int)threadIdx.x, r = quad / (D / 4);
        if (r >= ROWS || position[r] < 0) continue;
        const float by = joined[i].total.sum;
        const float4 sum = joined[i].sum;
        E *y = (E *)p.y + ((b.token + r / heads) * p.H + b.first_head + r % heads) * D + quad % (D / 4) * 4;
        *(uint2 *)y = make_uint2(pack<E>(sum.x / by, sum.y / by), pack<E>(sum.z / by, sum.w / by));
    }
#endif
}

/* Blocks for one token and kv head: as many as keep the machine busy, and no more than have a split. Changes no bit. */
unsigned cluster_of(const launch_paged *a) {
    const int64_t pairs = a->N * a->G * row_shape_of(*a).parts;
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
    launch_chained(attention_step<E, D, BOXES>, dim3((unsigned)(p->N * p->G * row_shape_of(*p).parts), cluster),
                   dim3(THREADS), 1024 + tile_bytes<D>(ROWS) + WARPS * 2 * tile_bytes<D>(KEYS), cluster, s, *a,
                   BOXES ? tensor_map_make(&cache) : CUtensorMap{});
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

/* Many positions of few tokens need more blocks than a cluster has. */
extern "C" bool paged_step_takes(const launch_paged *a) {
    const int64_t pairs = a->N * a->G * row_shape_of(*a).parts;
    const int64_t n_splits = (a->page_size * a->pages_per_slot + KEYS - 1) / KEYS;
    const bool shaped = a->type != LAUNCH_F32 && (a->D == 64 || a->D == 80 || a->D == 96 || a->D == 128);
    return shaped && a->N <= a->n_slots && a->H % a->G == 0 &&
           (n_splits <= (int64_t)cluster_of(a) * WARPS * ROUNDS_MOST || pairs * 2 > BLOCKS_ENOUGH);
}

extern "C" void launch_attention_step(const launch_paged_step *a, cudaStream_t s) {
    by_head(a->paged.type, a->paged.D,
            [&](auto zero, auto length) { attend<decltype(zero), decltype(length)::value>(a, s); });
}
