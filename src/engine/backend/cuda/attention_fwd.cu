/* attention_fwd.cu - causal attention inside documents on tensor cores (mma.sync), bf16 and fp16.
 *
 * A block of four warps takes QUERIES rows of one head and walks key tiles of KEYS from the first one that any of its
 * documents reaches to the diagonal; the next tile is fetched while this one is used. A warp has 32 rows, so each fragment
 * of k and v it reads serves two products. Scores, weights and sums stay in registers, in fp32 but for the weights' one
 * rounding before they meet v. Masks are applied in tiles that a document's start, a window or the diagonal cuts, for this warp.
 * A step of a ring does the same with the keys of one rank and joins what the steps before it found. */
#include "backend/cuda/attention_mma.cuh"

using namespace attention_mma;

namespace {

enum { WARPS = 4, THREADS = WARPS * WARP, M = 2, QUERIES = WARPS * M * MMA_ROWS, KEYS = 64 };

template <int D> constexpr size_t shared_bytes() {
    return tile_bytes<D>(QUERIES) + 4 * tile_bytes<D>(KEYS) + 2 * WARPS * sizeof(int);
}
static_assert(shared_bytes<128>() <= 99 << 10, "more shared memory than a block of capability 8.9 may have");
static_assert(QUERIES == THREADS, "every thread knows the document of one query");

template <typename E, int D, bool RING>
__global__ void __launch_bounds__(THREADS, 1) attention_forward(const __grid_constant__ launch_attention a) {
    extern __shared__ __align__(128) unsigned char shared[];
    const uint32_t q_tile = shared_address(shared), kv_tiles = q_tile + tile_bytes<D>(QUERIES); /* (stage, k or v) */
    int *scratch = (int *)(shared + tile_bytes<D>(QUERIES) + 4 * tile_bytes<D>(KEYS));
    const int T = (int)a.T, n_tiles = (T + QUERIES - 1) / QUERIES;
    const tile_task task = tile_task_of(blockIdx.x, n_tiles, a.B, a.H);
    const int q0 = task.tile * QUERIES, g = task.head / (a.H / a.G), n_q = min((int)QUERIES, T - q0);
    const int stride = (int)a.kv_stride;
    const int64_t base = task.b * a.T;
    const E *queries = (const E *)a.q + (base + q0) * a.q_stride + task.head * D;
    const E *keys = (const E *)a.kv + base * stride + g * D, *values = keys + (int64_t)a.G * D;
    const int32_t *doc_start = a.doc_start + base;
    const int lane = (int)threadIdx.x % WARP,
              row = (int)threadIdx.x / WARP * M * MMA_ROWS; /* of the warp, in the tile */

    tile_load<E, D, QUERIES, THREADS>(q_tile, queries, (int)a.q_stride, n_q);
    const key_span mine = keys_seen<RING>(a, doc_start, min(q0 + (int)threadIdx.x, T - 1)); /* query q0 + threadIdx.x */
    const int latest_start = __reduce_max_sync(0xffffffff, mine.first);                     /* of this warp's rows */
    const int least_end = RING ? __reduce_min_sync(0xffffffff, mine.end) : q0 + row + 1;
    const int most_end = RING ? __reduce_max_sync(0xffffffff, mine.end) : q0 + row + M * MMA_ROWS;
    const range walk = range_of<THREADS>({mine.first, mine.end}, scratch);
    const int first = walk.least / KEYS * KEYS, end = RING ? walk.most : q0 + n_q;

    auto fetch = [&](int k0, int stage) {
        const int n_k = min((int)KEYS, T - k0);
        const uint32_t at = kv_tiles + stage * 2 * tile_bytes<D>(KEYS);
        tile_load<E, D, KEYS, THREADS>(at, keys + (int64_t)k0 * stride, stride, n_k);
        tile_load<E, D, KEYS, THREADS>(at + tile_bytes<D>(KEYS), values + (int64_t)k0 * stride, stride, n_k);
        copy_async_commit();
    };

    int query[M][2], last[M][2], start[M][2]; /* last, start: keys it sees */
    row_state state[M][2];
    float sum[M][D / 8][4] = {};
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            query[m][half] = q0 + row + m * MMA_ROWS + half * 8 + lane / 4;
            const key_span seen = keys_seen<RING>(a, doc_start, min(query[m][half], T - 1));
            start[m][half] = seen.first, last[m][half] = RING ? seen.end - 1 : query[m][half];
            state[m][half] = {-INFINITY, 0};
        }
    const float factor = a.scale * LOG2_E;
    if (!RING || first < end) fetch(first, 0);
    for (int k0 = first, stage = 0; k0 < end; k0 += KEYS, stage ^= 1) {
        copy_async_wait<0>();
        __syncthreads(); /* this tile is there, the one before is no longer read */
        if (k0 + KEYS < end) fetch(k0 + KEYS, stage ^ 1);
        if (k0 >= most_end) continue; /* right of every query of this warp */
        const uint32_t k_tile = kv_tiles + stage * 2 * tile_bytes<D>(KEYS);
        float s[M][KEYS / 8][4];
        product_of_rows<E, D, M, KEYS>(s, q_tile, row, k_tile, lane);
        if (a.softcap > 0) cap_scores<M, KEYS>(a, s);
        if (k0 + KEYS > least_end || k0 < latest_start) mask_scores<M, KEYS>(s, k0, last, start, lane);
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                scale_row<M, D>(sum, m, half, softmax_row<M, KEYS>(s, m, half, state[m][half], factor));
        product_with_rows<E, D, M, KEYS>(sum, s, k_tile + tile_bytes<D>(KEYS), lane);
    }
    if constexpr (RING) ring_store<E, D, M>(a, task, query, sum, state, lane);
    else {
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float total = quad_sum(state[m][half].sum);
                scale_row<M, D>(sum, m, half, 1 / total);
                if (lane % 4 == 0 && query[m][half] < T)
                    a.lse[(task.b * a.H + task.head) * a.T + query[m][half]] =
                        fmaf(state[m][half].max, a.scale, logf(total));
            }
        store_sums<E, D, M>((E *)a.y + ((base + q0) * a.H + task.head) * D, (int64_t)a.H * D, n_q, q_tile, row, sum,
                            lane);
    }
}

template <typename E, int D, bool RING> void forward(const launch_attention *a, cudaStream_t s) {
    int64_t n_tiles = (a->T + QUERIES - 1) / QUERIES;
    launch_kernel(attention_forward<E, D, RING>, a->B * a->H * n_tiles, THREADS, shared_bytes<D>(), s, *a);
}

} // namespace

extern "C" void launch_attention_mma(const launch_attention *a, cudaStream_t s) {
    by_head(a->type, a->D,
            [&](auto zero, auto length) { forward<decltype(zero), decltype(length)::value, false>(a, s); });
}
extern "C" void launch_ring_mma(const launch_attention *a, cudaStream_t s) {
    by_head(a->type, a->D,
            [&](auto zero, auto length) { forward<decltype(zero), decltype(length)::value, true>(a, s); });
}
