/* attention_bwd.cu - the backward of attention on tensor cores (mma.sync), bf16 and fp16.
 *
 * Two kernels of four warps, 16 rows each, over tiles of 64 queries and 64 keys:
 *   dq    one query tile of a head, walking key tiles:  s = q k^T, dp = dy v^T, dq += ds k
 *   dkv   one key tile of a kv head, walking the query tiles of every head of its group in order. It computes the
 *         transposed tiles s^T = k q^T and dp^T = v dy^T, so that p^T and ds^T are left operands of dv += p^T dy and
 *         dk += ds^T q as they stand in registers.
 * Probabilities come from lse again: p = exp(s - lse), ds = p (dp - delta). Seven products instead of five, and nothing that
 * two blocks add to: the same bits every time without a buffer of dq in fp32. A step of a ring has the queries of one rank and the
 * keys of one rank, and adds to sums in fp32. */
#include "backend/cuda/attention_mma.cuh"

using namespace attention_mma;

namespace {

enum { WARPS = 4, THREADS = WARPS * WARP, TILE = WARPS * MMA_ROWS };

/* What a query tile brings along besides q and dy. */
struct query_statistics {
    float lse[TILE], delta[TILE];
    int32_t doc_start[TILE]; /* of a ring: the first key it sees ... */
    int32_t end[TILE];       /* ... and where they end */
};

/* Two tiles that stay, two stages of two tiles that pass. */
template <int D> constexpr size_t dq_bytes() { return 6 * tile_bytes<D>(TILE) + 2 * WARPS * sizeof(int); }
template <int D> constexpr size_t dkv_bytes() {
    return 6 * tile_bytes<D>(TILE) + 2 * sizeof(query_statistics) + 2 * WARPS * sizeof(int);
}
static_assert(dkv_bytes<128>() <= 99 << 10, "more shared memory than a block of capability 8.9 may have");

/* s and dp -> p and ds, of the elements of one row of queries, or of one column when the tiles are transposed. */
__device__ inline void gradient_of(const launch_attention &a, float &s, float &dp, float factor, float lse_2,
                                   float delta) {
    const float capped = a.softcap > 0 ? cap_score(a, s) : s;
    s = power_of_2(fmaf(capped, factor, -lse_2));
    dp = s * (dp - delta);
    if (a.softcap > 0) dp *= cap_gradient(a, capped);
}

template <int D> __device__ inline void scale_all(float (&sum)[1][D / 8][4], float by) {
    scale_row<1, D>(sum, 0, 0, by);
    scale_row<1, D>(sum, 0, 1, by);
}

/* dq = */
template <typename E, int D, bool RING>
__global__ void __launch_bounds__(THREADS, 1) attention_dq(const __grid_constant__ launch_attention a) {
    extern __shared__ __align__(128) unsigned char shared[];
    const uint32_t q_tile = shared_address(shared), dy_tile = q_tile + tile_bytes<D>(TILE);
    const uint32_t kv_tiles = dy_tile + tile_bytes<D>(TILE); /* (stage, k or v) */
    int *scratch = (int *)(shared + 6 * tile_bytes<D>(TILE));
    const int T = (int)a.T, n_tiles = (T + TILE - 1) / TILE;
    const tile_task task = tile_task_of(blockIdx.x, n_tiles, a.B, a.H);
    const int q0 = task.tile * TILE, g = task.head / (a.H / a.G), n_q = min((int)TILE, T - q0);
    const int stride = (int)a.kv_stride, y_stride = a.H * D;
    const int64_t base = task.b * a.T;
    const E *queries = (const E *)a.q + (base + q0) * a.q_stride + task.head * D;
    const E *keys = (const E *)a.kv + base * stride + g * D, *values = keys + (int64_t)a.G * D;
    const int32_t *doc_start = a.doc_start + base;
    const int lane = (int)threadIdx.x % WARP, row = (int)threadIdx.x / WARP * MMA_ROWS;

    tile_load<E, D, TILE, THREADS>(q_tile, queries, (int)a.q_stride, n_q);
    tile_load<E, D, TILE, THREADS>(dy_tile, (const E *)a.dy + (base + q0) * y_stride + task.head * D, y_stride, n_q);
    auto fetch = [&](int k0, int stage) {
        const int n_k = min((int)TILE, T - k0);
        const uint32_t at = kv_tiles + stage * 2 * tile_bytes<D>(TILE);
        tile_load<E, D, TILE, THREADS>(at, keys + (int64_t)k0 * stride, stride, n_k);
        tile_load<E, D, TILE, THREADS>(at + tile_bytes<D>(TILE), values + (int64_t)k0 * stride, stride, n_k);
        copy_async_commit();
    };

    int last[2], start[2];    /* keys that a query sees */
    float lse_2[2], delta[2]; /* lse in units of log 2 */
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int query = q0 + row + half * 8 + lane / 4, there = min(query, T - 1);
        const int64_t at = (task.b * a.H + task.head) * a.T + there;
        const key_span seen = keys_seen<RING>(a, doc_start, there);
        start[half] = seen.first, last[half] = RING ? seen.end - 1 : query;
        lse_2[half] = a.lse[at] * LOG2_E;
        delta[half] = a.delta[at];
    }
    const int latest_start = __reduce_max_sync(0xffffffff, max(start[0], start[1]));
    const int least_last = RING ? __reduce_min_sync(0xffffffff, min(last[0], last[1])) : q0 + row;
    const range walk = range_of<THREADS>({min(start[0], start[1]), max(last[0], last[1]) + 1}, scratch);
    const int first = walk.least / TILE * TILE, end = RING ? walk.most : q0 + n_q;
    const float factor = a.scale * LOG2_E;
    float dq[1][D / 8][4] = {};
    if (!RING || first < end) fetch(first, 0);
    for (int k0 = first, stage = 0; k0 < end; k0 += TILE, stage ^= 1) {
        copy_async_wait<0>();
        __syncthreads();
        if (k0 + TILE < end) fetch(k0 + TILE, stage ^ 1);
        const uint32_t k_tile = kv_tiles + stage * 2 * tile_bytes<D>(TILE);
        float s[1][TILE / 8][4], dp[1][TILE / 8][4];
        product_of_rows<E, D, 1, TILE>(s, q_tile, row, k_tile, lane);
        product_of_rows<E, D, 1, TILE>(dp, dy_tile, row, k_tile + tile_bytes<D>(TILE), lane);
        const bool cut = k0 + TILE - 1 > least_last || k0 < latest_start;
#pragma unroll
        for (int n = 0; n < TILE / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                gradient_of(a, s[0][n][i], dp[0][n][i], factor, lse_2[i / 2], delta[i / 2]);
                const int key = k0 + n * 8 + lane % 4 * 2 + i % 2;
                if (cut && (key > last[i / 2] || key < start[i / 2])) dp[0][n][i] = 0;
            }
        product_with_rows<E, D, 1, TILE>(dq, dp, k_tile, lane);
    }
    scale_all<D>(dq, a.scale);
    if constexpr (RING)
        ring_sums<D>(a, (float *)a.dq + (base + q0) * y_stride + task.head * D, y_stride, n_q, row, dq, lane);
    else
        store_sums<E, D, 1>((E *)a.dq + (base + q0) * a.q_stride + task.head * D, a.q_stride, n_q, q_tile, row, dq,
                            lane);
}

/* Tiles of queries that see a tile of keys. */
struct query_walk {
    int first, n;
};
template <bool RING>
__device__ query_walk query_walk_of(const launch_attention &a, const int32_t *doc_start, int k0, int *scratch) {
    const int T = (int)a.T;
    if (!RING) { /* from its own on; queries after the last one that reaches these keys see none of them */
        int last = k0;
        for (int q = k0 + (int)threadIdx.x; q < min(T, k0 + TILE - 1 + a.window); q += THREADS)
            if (first_key(a, doc_start, q) < k0 + TILE) last = q;
        return {k0, (range_of<THREADS>({last, last}, scratch).most - k0) / TILE + 1};
    }
    range seen = {T, -1};
    for (int q = (int)threadIdx.x; q < T; q += THREADS) {
        const key_span keys = keys_seen<true>(a, doc_start, q);
        if (keys.first < k0 + TILE && keys.end > k0 && keys.first < keys.end)
            seen = {min(seen.least, q), max(seen.most, q)};
    }
    seen = range_of<THREADS>(seen, scratch);
    const int first = seen.least / TILE * TILE;
    return {first, seen.most < 0 ? 0 : (seen.most - first) / TILE + 1};
}

/* dk =, dv = */
template <typename E, int D, bool RING>
__global__ void __launch_bounds__(THREADS, 1) attention_dkv(const __grid_constant__ launch_attention a) {
    extern __shared__ __align__(128) unsigned char shared[];
    const uint32_t k_tile = shared_address(shared), v_tile = k_tile + tile_bytes<D>(TILE);
    const uint32_t q_tiles = v_tile + tile_bytes<D>(TILE);                                 /* (stage, q or dy) */
    query_statistics *statistics = (query_statistics *)(shared + 6 * tile_bytes<D>(TILE)); /* (stage) */
    int *scratch = (int *)(statistics + 2);
    const int T = (int)a.T, group = a.H / a.G;
    const int64_t pair = blockIdx.x % (a.B * a.G), b = pair / a.G,
                  base = b * a.T; /* the first key tiles walk longest */
    const int g = (int)(pair % a.G), k0 = (int)(blockIdx.x / (a.B * a.G)) * TILE, n_k = min((int)TILE, T - k0);
    const int stride = (int)a.q_stride, kv_stride = (int)a.kv_stride, y_stride = a.H * D;
    const E *queries = (const E *)a.q + base * stride, *dy = (const E *)a.dy + base * y_stride;
    const E *keys = (const E *)a.kv + (base + k0) * kv_stride + g * D;
    const int32_t *doc_start = a.doc_start + base;
    const int lane = (int)threadIdx.x % WARP, row = (int)threadIdx.x / WARP * MMA_ROWS;

    tile_load<E, D, TILE, THREADS>(k_tile, keys, kv_stride, n_k);
    tile_load<E, D, TILE, THREADS>(v_tile, keys + (int64_t)a.G * D, kv_stride, n_k);
    const query_walk walk = query_walk_of<RING>(a, doc_start, k0, scratch);
    const int n_tiles = walk.n;

    auto fetch = [&](int i,
                     int stage) { /* tile i % n_tiles of head i / n_tiles */
                                  const int head = g * group + i / n_tiles, q0 = walk.first + i % n_tiles * TILE,
                                            n_q = min((int)TILE, T - q0);
                                  const uint32_t at = q_tiles + stage * 2 * tile_bytes<D>(TILE);
                                  tile_load<E, D, TILE, THREADS>(at, queries + (int64_t)q0 * stride + head * D, stride,
                                                                 n_q);
                                  tile_load<E, D, TILE, THREADS>(at + tile_bytes<D>(TILE),
                                                                 dy + (int64_t)q0 * y_stride + head * D, y_stride, n_q);
                                  const int q = (int)threadIdx.x % TILE;
                                  const bool there = q < n_q;
                                  const int64_t of = (b * a.H + head) * a.T + q0 + (there ? q : 0);
                                  if (threadIdx.x < TILE) {
                                      copy_async_4(shared_address(&statistics[stage].lse[q]), &a.lse[of], there);
                                      copy_async_4(shared_address(&statistics[stage].delta[q]), &a.delta[of], there);
                                  } else if (RING) {
                                      const key_span seen = keys_seen<true>(a, doc_start, q0 + (there ? q : 0));
                                      statistics[stage].doc_start[q] = seen.first;
                                      statistics[stage].end[q] = there ? seen.end : 0;
                                  } else {
                                      copy_async_4(shared_address(&statistics[stage].doc_start[q]),
                                                   &doc_start[q0 + (there ? q : 0)], there);
                                  }
                                  copy_async_commit();
    };

    const float factor = a.scale * LOG2_E;
    float dk[1][D / 8][4] = {}, dv[1][D / 8][4] = {};
    if (!RING || n_tiles > 0) fetch(0, 0);
    for (int i = 0, stage = 0; i < group * n_tiles; i++, stage ^= 1) {
        copy_async_wait<0>();
        __syncthreads();
        if (i + 1 < group * n_tiles) fetch(i + 1, stage ^ 1);
        const uint32_t q_tile = q_tiles + stage * 2 * tile_bytes<D>(TILE), dy_tile = q_tile + tile_bytes<D>(TILE);
        const query_statistics &of = statistics[stage];
        const int q0 = walk.first + i % n_tiles * TILE;
        float s[1][TILE / 8][4], dp[1][TILE / 8][4];
        product_of_rows<E, D, 1, TILE>(s, k_tile, row, q_tile, lane);
        product_of_rows<E, D, 1, TILE>(dp, v_tile, row, dy_tile, lane);
        const int latest_start = __reduce_max_sync(0xffffffff, max(of.doc_start[lane], of.doc_start[lane + WARP]));
        const int least_end = RING ? __reduce_min_sync(0xffffffff, min(of.end[lane], of.end[lane + WARP])) : q0 + 1;
        const bool cut = least_end <= k0 + TILE - 1 || q0 + TILE > T || latest_start > k0 + row ||
                         (!RING && q0 + TILE - a.window > k0 + row);
#pragma unroll
        for (int n = 0; n < TILE / 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) { /* a column: one query, two keys */
                const int column = n * 8 + lane % 4 * 2 + e, query = q0 + column;
                const float lse_2 = of.lse[column] * LOG2_E, delta = of.delta[column];
                const int end = RING ? of.end[column] : query < T ? query + 1 : 0;
                const int start =
                    RING ? of.doc_start[column] : max(min(of.doc_start[column], query), query + 1 - a.window);
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float &p = s[0][n][2 * half + e], &ds = dp[0][n][2 * half + e];
                    gradient_of(a, p, ds, factor, lse_2, delta);
                    const int key = k0 + row + half * 8 + lane / 4;
                    if (cut && (key >= end || key < start)) p = ds = 0;
                }
            }
        product_with_rows<E, D, 1, TILE>(dv, s, dy_tile, lane);
        product_with_rows<E, D, 1, TILE>(dk, dp, q_tile, lane);
    }
    scale_all<D>(dk, a.scale);
    const int64_t at = (base + k0) * kv_stride + g * D, v = (int64_t)a.G * D;
    if constexpr (RING) {
        ring_sums<D>(a, (float *)a.dkv + at, kv_stride, n_k, row, dk, lane);
        ring_sums<D>(a, (float *)a.dkv + at + v, kv_stride, n_k, row, dv, lane);
    } else {
        store_sums<E, D, 1>((E *)a.dkv + at, kv_stride, n_k, k_tile, row, dk, lane);
        store_sums<E, D, 1>((E *)a.dkv + at + v, kv_stride, n_k, v_tile, row, dv, lane);
    }
}

template <typename E, int D, bool RING> void backward(const launch_attention *a, cudaStream_t s) {
    int64_t n_tiles = (a->T + TILE - 1) / TILE;
    launch_kernel(attention_dq<E, D, RING>, a->B * a->H * n_tiles, THREADS, dq_bytes<D>(), s, *a);
    launch_kernel(attention_dkv<E, D, RING>, a->B * a->G * n_tiles, THREADS, dkv_bytes<D>(), s, *a);
}

} // namespace

extern "C" void launch_attention_mma_backward(const launch_attention *a, cudaStream_t s) {
    by_head(a->type, a->D,
            [&](auto zero, auto length) { backward<decltype(zero), decltype(length)::value, false>(a, s); });
}
extern "C" void launch_ring_mma_backward(const launch_attention *a, cudaStream_t s) {
    by_head(a->type, a->D,
            [&](auto zero, auto length) { backward<decltype(zero), decltype(length)::value, true>(a, s); });
}
