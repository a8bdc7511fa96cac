/* unembed8.cu - the gradient of logits in e5m2, as it lies and turned, in one pass over the logits.
 *
 * A block takes a tile of 128 x 128 logits; losses and the states of rows are known before (launch_unembed_loss). A thread has
 * four rows of four times four logits, 32 apart, so that threads side by side load 128 bytes of a row; all 16 loads are under
 * way before the first is used. Rounded, four words of four rows are turned in registers and the words of a column go to
 * shared memory side by side, so that t is written 16 bytes at a time, in lines of 128. */
#include "backend/cuda/launch_unembed8.h"

#include "backend/cuda/turn.cuh"
#include "backend/cuda/unembed_row.cuh"
#include <cuda_fp8.h>

enum { TILE = 128, THREADS = 256, ROWS = 4, ACROSS = 8, WORDS = 4, WORD_STEP = TILE / WORDS };
enum { SCALE_THREADS = 1024 };

/* ---- the scale ------------------------------------------------------------------------------------------------------ */

/* Numbers without their sign are in the order of their bits, infinity and NaN above all. */
static __global__ void __launch_bounds__(SCALE_THREADS)
    scales_kernel(unembed8_scales *scales, const float *weights, int64_t n, const float *seed) {
    __shared__ uint32_t parts[SCALE_THREADS / WARP];
    uint32_t most = 0;
    for (int64_t i = threadIdx.x; weights && i < n; i += SCALE_THREADS)
        most = max(most, __float_as_uint(weights[i]) & 0x7fffffffu);
    most = __reduce_max_sync(0xffffffffu, most);
    if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = most;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int i = 1; i < SCALE_THREADS / WARP; i++) most = max(most, parts[i]);
    float bound = (weights ? __uint_as_float(most) : 1.0f) * fabsf(*seed);
    bound = bound < 0x1p-100f ? 0x1p-100f : bound; /* NaN stays */
    *scales = {bound * 0x1p-15f, 0x1p15f / bound};
}

void launch_unembed8_scales(cudaStream_t s, unembed8_scales *scales, const float *weights, int64_t n,
                            const float *seed) {
    scales_kernel<<<1, SCALE_THREADS, 0, s>>>(scales, weights, n, seed);
}

/* ---- the gradient --------------------------------------------------------------------------------------------------- */

using tile_of_bytes = turned_tile<4>;

static __device__ uint32_t e5m2_word(float4 g, float factor) {
    uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(g.x * factor, g.y * factor), __NV_SATFINITE, __NV_E5M2);
    uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(g.z * factor, g.w * factor), __NV_SATFINITE, __NV_E5M2);
    return low | high << 16;
}

template <bool Q, bool TURNED> static __global__ void __launch_bounds__(THREADS) dlogits_kernel(launch_dlogits_args a) {
    __shared__ __align__(16) uint32_t columns[TURNED ? tile_of_bytes::WORDS : 4];
    const unembed_rows &g = a.r;
    const float factor = a.scales->factor;
    int across = threadIdx.x % ACROSS, down = threadIdx.x / ACROSS; /* which 4 columns of 32, which 4 rows */
    int32_t column0 = blockIdx.x * TILE, column = column0 + across * 4;
    for (int64_t row0 = (int64_t)blockIdx.y * TILE; row0 < g.n_rows; row0 += (int64_t)gridDim.y * TILE) {
        int64_t row = row0 + down * ROWS; /* rows and columns are multiples of 16: a thread has all of a word or none */
        float4 v[ROWS][WORDS];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int w = 0; w < WORDS; w++)
                if (row < g.n_rows && column + w * WORD_STEP < g.n_columns)
                    v[r][w] = __ldcs((const float4 *)(g.logits + (row + r) * g.ld + column + w * WORD_STEP));
        uint32_t word[ROWS][WORDS] = {};
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            unembed_state s = row < g.n_rows ? g.states[row + r] : unembed_state{0, 0};
            int32_t target = row < g.n_rows ? g.targets[row + r] - g.first_column : -1;
            float onehot = row < g.n_rows ? onehot_of(g, row + r) : 0;
#pragma unroll
            for (int w = 0; w < WORDS; w++) {
                int32_t at = column + w * WORD_STEP;
                if (row >= g.n_rows || at >= g.n_columns) continue;
                if (s.factor != 0) word[r][w] = e5m2_word(gradient4(v[r][w], at, target, s, onehot, g.softcap), factor);
                if (Q) *(uint32_t *)(a.q + (row + r) * a.q_ld + at) = word[r][w];
            }
        }
        if constexpr (TURNED) {
            tile_of_bytes::put(columns, word);
            __syncthreads();
            tile_of_bytes::each(columns, [&](int c, int r, const uint4 *bytes) {
                int64_t to = row0 + r;
                if (column0 + c < g.n_columns && to < g.n_rows) *(uint4 *)(a.t + (column0 + c) * a.t_ld + to) = *bytes;
            });
            __syncthreads(); /* the next tile takes their place */
        }
    }
}

void launch_dlogits(cudaStream_t s, const launch_dlogits_args *a) {
    int64_t down = (a->r.n_rows + TILE - 1) / TILE;
    if (down == 0) return;
    dim3 grid((unsigned)((a->r.n_columns + TILE - 1) / TILE), (unsigned)(down < 65535 ? down : 65535));
    if (!a->t) dlogits_kernel<true, false><<<grid, THREADS, 0, s>>>(*a);
    else if (!a->q) dlogits_kernel<false, true><<<grid, THREADS, 0, s>>>(*a);
    else dlogits_kernel<true, true><<<grid, THREADS, 0, s>>>(*a);
}
