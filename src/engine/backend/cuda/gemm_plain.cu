/* gemm_plain.cu - C = A B for any shape, stride and alignment.
 *
 * Only for what cuBLASLt refuses, such as 16-bit rows of odd length: small models and tests. So it is written to be plainly
 * right, not fast: a block computes TILE x TILE elements through shared memory, a thread 4 x 4 of them. Sums are fp32, in
 * order of k, in runs of RUN products that are added up in order: a long chain would lose what short ones keep. */
#include "backend/cuda/launch_gemm.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

enum { TILE = 64, STEP = 16, THREADS = 256, PER_THREAD = 4, RUN = 128 };

static __device__ float to_float(float x) { return x; }
static __device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
static __device__ float to_float(__half x) { return __half2float(x); }
static __device__ float to_float(__nv_fp8_e4m3 x) { return (float)x; }
static __device__ float to_float(__nv_fp8_e5m2 x) { return (float)x; }
static __device__ void from_float(float *out, float x) { *out = x; }
static __device__ void from_float(__nv_bfloat16 *out, float x) { *out = __float2bfloat16_rn(x); }
static __device__ void from_float(__half *out, float x) { *out = __float2half_rn(x); }

/* TILE rows from `first` (of n) and STEP columns from k0 (of K) into tile[column][row], zeros outside. Neighbouring
 * threads take what lies side by side in memory: along the columns, or along the rows where the operand is turned. */
template <typename T>
static __device__ void tile_load(float tile[STEP][TILE + 1], const T *x, int64_t row, int64_t col, int64_t first,
                                 int64_t n, int64_t k0, int64_t K, const float *scales, const fp8_blocks &b) {
    for (int e = threadIdx.x; e < TILE * STEP; e += THREADS) {
        int i = col == 1 ? e / STEP : e % TILE, l = col == 1 ? e % STEP : e / TILE;
        bool inside = first + i < n && k0 + l < K;
        tile[l][i] = inside ? to_float(x[(first + i) * row + (k0 + l) * col]) : 0.0f;
        if (inside && b.height) /* powers of two: exact */
            tile[l][i] *= scales[(first + i) / b.height * b.row_step + (k0 + l) / FP8_BLOCK * b.column_step];
    }
}

template <typename A, typename T, typename U>
static __global__ void __launch_bounds__(THREADS) plain_kernel(plain_product q) {
    __shared__ float a[STEP][TILE + 1], b[STEP][TILE + 1];
    int64_t n_across = (q.n + TILE - 1) / TILE;
    int64_t i0 = blockIdx.x / n_across * TILE, j0 = blockIdx.x % n_across * TILE;
    int ti = threadIdx.x / (TILE / PER_THREAD), tj = threadIdx.x % (TILE / PER_THREAD);
    float sum[PER_THREAD][PER_THREAD] = {}, run[PER_THREAD][PER_THREAD] = {};

    for (int64_t k0 = 0; k0 < q.k; k0 += STEP) {
        tile_load(a, (const A *)q.a.data, q.a.row, q.a.col, i0, q.m, k0, q.k, q.scales[0], q.blocks[0]);
        tile_load(b, (const T *)q.b.data, q.b.col, q.b.row, j0, q.n, k0, q.k, q.scales[1], q.blocks[1]); /* (n, k) */
        __syncthreads();
        for (int l = 0; l < STEP; l++)
            for (int i = 0; i < PER_THREAD; i++)
                for (int j = 0; j < PER_THREAD; j++)
                    run[i][j] = fmaf(a[l][ti + i * (TILE / PER_THREAD)], b[l][tj + j * (TILE / PER_THREAD)], run[i][j]);
        bool run_ends = (k0 + STEP) % RUN == 0 || k0 + STEP >= q.k;
        for (int i = 0; i < PER_THREAD && run_ends; i++)
            for (int j = 0; j < PER_THREAD; j++) sum[i][j] += run[i][j], run[i][j] = 0;
        __syncthreads();
    }

    float scale = q.scales[0] && !q.blocks[0].height ? *q.scales[0] * *q.scales[1] * q.alpha : q.alpha;
    for (int i = 0; i < PER_THREAD; i++)
        for (int j = 0; j < PER_THREAD; j++) {
            int64_t row = i0 + ti + i * (TILE / PER_THREAD), col = j0 + tj + j * (TILE / PER_THREAD);
            if (row >= q.m || col >= q.n) continue;
            U *c = (U *)q.c + row * q.ldc + col;
            float x = sum[i][j] * scale;
            if (q.bias) x += to_float(((const U *)q.bias)[col]);
            if (q.add) x += to_float(((const U *)q.add)[row * q.ld_add + col]);
            from_float(c, x);
        }
}

template <typename A, typename T>
static void launch_for(cudaStream_t stream, const plain_product *q, unsigned n_blocks) {
    switch (q->c_type) {
    case LAUNCH_BF16: plain_kernel<A, T, __nv_bfloat16><<<n_blocks, THREADS, 0, stream>>>(*q); break;
    case LAUNCH_F16: plain_kernel<A, T, __half><<<n_blocks, THREADS, 0, stream>>>(*q); break;
    default: plain_kernel<A, T, float><<<n_blocks, THREADS, 0, stream>>>(*q);
    }
}

extern "C" void launch_plain_product(cudaStream_t stream, const plain_product *q) {
    int64_t n_blocks = (q->m + TILE - 1) / TILE * ((q->n + TILE - 1) / TILE);
    if (n_blocks == 0) return;
    switch (q->type) {
    case LAUNCH_BF16: launch_for<__nv_bfloat16, __nv_bfloat16>(stream, q, (unsigned)n_blocks); break;
    case LAUNCH_F16: launch_for<__half, __half>(stream, q, (unsigned)n_blocks); break;
    case LAUNCH_E4M3:
        if (q->a_e5m2) launch_for<__nv_fp8_e5m2, __nv_fp8_e4m3>(stream, q, (unsigned)n_blocks);
        else launch_for<__nv_fp8_e4m3, __nv_fp8_e4m3>(stream, q, (unsigned)n_blocks);
        break;
    default: launch_for<float, float>(stream, q, (unsigned)n_blocks);
    }
}
