/* attention_fwd.cu - causal attention inside documents on tensor cores (mma.sync), bf16 and fp16.
 *
 * A block of four warps takes QUERIES rows of one head and walks key tiles of KEYS from the first one that any of its
 * documents reaches to the diagonal; the next tile is fetched while this one is used. A warp has 32 rows, so each fragment
 * of k and v it reads serves two products. Scores, weights and sums stay in registers, in fp32 but for the weights' one
 * rounding before they meet v. Masks are applied in tiles that a document's start or the diagonal cuts, for this warp. */
#include "backend/cuda/attention_mma.cuh"

using namespace attention_mma;

namespace {

enum { WARPS = 4, THREADS = WARPS * WARP, M = 2, QUERIES = WARPS * M * MMA_ROWS, KEYS = 64 };

template <int D> constexpr size_t shared_bytes() {
    return tile_bytes<D>(QUERIES) + 4 * tile_bytes<D>(KEYS) + 2 * WARPS * sizeof(int);
}
static_assert(shared_bytes<128>() <= 99 << 10, "more shared memory than a block of capability 8.9 may have");
static_assert(QUERIES == THREADS, "every thread knows the document of one query");

template <typename E, int D>
__global__ void __launch_bounds__(THREADS, 1) attention_forward(const __grid_constant__ launch_attention a) {
    extern __shared__ __align__(128) unsigned char shared[];
    const uint32_t q_tile = shared_address(shared), kv_tiles = q_tile + tile_bytes<D>(QUERIES); /* (stage, k or v) */
    int *scratch = (int *)(shared + tile_bytes<D>(QUERIES) + 4 * tile_bytes<D>(KEYS));
    const int T = (int)a.T, n_tiles = (T + QUERIES - 1) / QUERIES;
    const tile_task task = tile_task_of(blockIdx.x, n_tiles, a.B, a.H);
    const int q0 = task.tile * QUERIES, g = task.head / (a.H / a.G), n_q = min((int)QUERIES, T - q0);
    const int stride = (a.H + 2 * a.G) * D;
    const int64_t base = task.b * a.T;
    const E *qkv = (const E *)a.qkv + base * stride, *keys = qkv + (a.H + g) * D, *values = keys + (int64_t)a.G * D;
    const int32_t *doc_start = a.doc_start + base;
    const int lane = (int)threadIdx.x % WARP,
              row = (int)threadIdx.x / WARP * M * MMA_ROWS; /* of the warp, in the tile */

    tile_load<E, D, QUERIES, THREADS>(q_tile, qkv + (int64_t)q0 * stride + task.head * D, stride, n_q);
    const int mine = document_start(doc_start, min(q0 + (int)threadIdx.x, T - 1)); /* of query q0 + threadIdx.x */
    const int latest_start = __reduce_max_sync(0xffffffff, mine);                  /* of this warp's rows */
    const int first = range_of<THREADS>({mine, mine}, scratch).least / KEYS * KEYS;

    auto fetch = [&](int k0, int stage) {
        const int n_k = min((int)KEYS, T - k0);
        const uint32_t at = kv_tiles + stage * 2 * tile_bytes<D>(KEYS);
        tile_load<E, D, KEYS, THREADS>(at, keys + (int64_t)k0 * stride, stride, n_k);
        tile_load<E, D, KEYS, THREADS>(at + tile_bytes<D>(KEYS), values + (int64_t)k0 * stride, stride, n_k);
        copy_async_commit();
    };

    int query[M][2], start[M][2];
    row_state state[M][2];
    float sum[M][D / 8][4] = {};
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            query[m][half] = q0 + row + m * MMA_ROWS + half * 8 + lane / 4;
            start[m][half] = document_start(doc_start, min(query[m][half], T - 1));
            state[m][half] = {-INFINITY, 0};
        }
    const float factor = a.scale * LOG2_E;
    fetch(first, 0);
    for (int k0 = first, stage = 0; k0 < q0 + n_q; k0 += KEYS, stage ^= 1) {
        copy_async_wait<0>();
        __syncthreads(); /* this tile is there, the one before is no longer read */
        if (k0 + KEYS < q0 + n_q) fetch(k0 + KEYS, stage ^ 1);
        if (k0 > q0 + row + M * MMA_ROWS - 1) continue; /* right of every query of this warp */
        const uint32_t k_tile = kv_tiles + stage * 2 * tile_bytes<D>(KEYS);
        float s[M][KEYS / 8][4];
        product_of_rows<E, D, M, KEYS>(s, q_tile, row, k_tile, lane);
        if (k0 + KEYS - 1 > q0 + row || k0 < latest_start) mask_scores<M, KEYS>(s, k0, query, start, lane);
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                scale_row<M, D>(sum, m, half, softmax_row<M, KEYS>(s, m, half, state[m][half], factor));
        product_with_rows<E, D, M, KEYS>(sum, s, k_tile + tile_bytes<D>(KEYS), lane);
    }

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
    store_sums<E, D, M>((E *)a.y + ((base + q0) * a.H + task.head) * D, (int64_t)a.H * D, n_q, q_tile, row, sum, lane);
}

template <typename E, int D> void forward(const launch_attention *a, cudaStream_t s) {
    int64_t n_tiles = (a->T + QUERIES - 1) / QUERIES;
    launch_kernel(attention_forward<E, D>, a->B * a->H * n_tiles, THREADS, shared_bytes<D>(), s, *a);
}

} // namespace

extern "C" void launch_attention_mma(const launch_attention *a, cudaStream_t s) {
    by_head(a->type, a->D, [&](auto zero, auto length) { forward<decltype(zero), decltype(length)::value>(a, s); });
}
