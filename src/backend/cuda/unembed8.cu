/* unembed8.cu - losses of fp16 logits; their gradient in e5m2, as it lies and turned, in one pass over the logits.
 *
 * Losses and states: a block per row, as in unembed.cu. The gradient: a block takes a tile of 128 x 128 logits. A thread has
 * four rows of twice eight logits, 64 apart, so that threads side by side load 128 bytes of a row; all 8 loads are under
 * way before the first is used. Rounded, four words of four rows are turned in registers and the words of a column go to
 * shared memory side by side, so that t is written 16 bytes at a time, in lines of 128. Tiles go from the last rows to the first:
 * the last were read last, and L2 still has some of them. */
#include "backend/cuda/launch_unembed8.h"

#include "backend/cuda/turn.cuh"
#include "backend/cuda/unembed_row.cuh"
#include <cuda_fp8.h>

enum { TILE = 128, THREADS = 256, ROWS = 4, ACROSS = 8, RUN = 8, RUNS = TILE / (RUN * ACROSS) };
enum { SCALE_THREADS = 1024 };
enum { LOSS_THREADS = 512, LOSS_VECTORS = 2 /* of 8 logits that a thread has in flight */ };

static __device__ float4 widen4(uint32_t low, uint32_t high) {
    float2 a = __half22float2(*(const __half2 *)&low), b = __half22float2(*(const __half2 *)&high);
    return make_float4(a.x, a.y, b.x, b.y);
}

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

/* ---- losses ---------------------------------------------------------------------------------------------------------- */

/* This thread's part of a row of n logits. */
static __device__ row_part scan_row(const uint16_t *x, int32_t n) {
    const uint4 nothing = {0xfc00fc00u, 0xfc00fc00u, 0xfc00fc00u, 0xfc00fc00u}; /* -inf */
    row_part p = {-CUDART_INF_F, 0, 0};
    for (int32_t i = threadIdx.x * RUN; i < n; i += LOSS_THREADS * RUN * LOSS_VECTORS) {
        uint4 raw[LOSS_VECTORS];
        float4 v[LOSS_VECTORS * 2];
#pragma unroll
        for (int u = 0; u < LOSS_VECTORS; u++) {
            int32_t at = i + u * LOSS_THREADS * RUN;
            raw[u] = at < n ? *(const uint4 *)(x + at) : nothing;
        }
#pragma unroll
        for (int u = 0; u < LOSS_VECTORS; u++)
            v[2 * u] = widen4(raw[u].x, raw[u].y), v[2 * u + 1] = widen4(raw[u].z, raw[u].w);
        part_add<false>(&p, v, 0, 0);
    }
    return p;
}

static __global__ void __launch_bounds__(LOSS_THREADS, 3) loss_kernel(const __grid_constant__ launch_unembed8_args a) {
    const unembed_rows &r = a.r;
    int64_t row = blockIdx.x;
    int32_t target;
    if (!trained(r, row, &target)) {
        if (threadIdx.x == 0) r.losses[row] = 0, r.states[row] = {0, 0};
        return;
    }
    const uint16_t *x = a.logits + row * r.ld;
    row_part p = block_merge<false>(scan_row(x, r.n_columns));
    if (threadIdx.x != 0) return;
    r.losses[row] = loss_of(p, __half2float(*(const __half *)(x + target)));
    r.states[row] = {p.max, onehot_of(r, row) / p.sum};
}

void launch_unembed8_loss(cudaStream_t s, const launch_unembed8_args *a) {
    if (a->r.n_rows > 0) loss_kernel<<<(unsigned)a->r.n_rows, LOSS_THREADS, 0, s>>>(*a);
}

/* ---- the gradient --------------------------------------------------------------------------------------------------- */

using tile_of_bytes = turned_tile<RUN>;

static __device__ uint32_t e5m2_word(float4 g, float factor) {
    uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(g.x * factor, g.y * factor), __NV_SATFINITE, __NV_E5M2);
    uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(g.z * factor, g.w * factor), __NV_SATFINITE, __NV_E5M2);
    return low | high << 16;
}

template <bool Q, bool TURNED>
static __global__ void __launch_bounds__(THREADS) gradient_kernel(const __grid_constant__ launch_unembed8_args a) {
    __shared__ __align__(16) uint32_t columns[TURNED ? tile_of_bytes::WORDS : 4];
    const unembed_rows &g = a.r;
    const float factor = a.scales->factor;
    int across = threadIdx.x % ACROSS, down = threadIdx.x / ACROSS; /* which 8 columns of 64, which 4 rows */
    int32_t column0 = blockIdx.x * TILE, column = column0 + across * RUN;
    for (int64_t tile = (g.n_rows - 1) / TILE - blockIdx.y; tile >= 0; tile -= gridDim.y) {
        int64_t row0 = tile * TILE, row = row0 + down * ROWS;
        uint4 raw[ROWS][RUNS]; /* rows and columns are multiples of 16: a thread has all of a run or none */
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int u = 0; u < RUNS; u++)
                if (row < g.n_rows && column + u * RUN * ACROSS < g.n_columns)
                    raw[r][u] = __ldcs((const uint4 *)(a.logits + (row + r) * g.ld + column + u * RUN * ACROSS));
        uint32_t word[ROWS][4] = {};
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            unembed_state s = row < g.n_rows ? g.states[row + r] : unembed_state{0, 0};
            int32_t target = row < g.n_rows ? g.targets[row + r] - g.first_column : -1;
            float onehot = row < g.n_rows ? onehot_of(g, row + r) : 0;
#pragma unroll
            for (int u = 0; u < RUNS; u++) {
                int32_t at = column + u * RUN * ACROSS;
                uint32_t *to = &word[r][2 * u];
                if (row >= g.n_rows || at >= g.n_columns) continue;
                if (s.factor != 0) {
                    float4 low = widen4(raw[r][u].x, raw[r][u].y), high = widen4(raw[r][u].z, raw[r][u].w);
                    to[0] = e5m2_word(gradient4(low, at, target, s, onehot, g.softcap), factor);
                    to[1] = e5m2_word(gradient4(high, at + 4, target, s, onehot, g.softcap), factor);
                }
                if (Q) *(uint2 *)(a.q + (row + r) * a.q_ld + at) = make_uint2(to[0], to[1]);
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

void launch_unembed8_grad(cudaStream_t s, const launch_unembed8_args *a) {
    int64_t down = (a->r.n_rows + TILE - 1) / TILE;
    if (down == 0) return;
    dim3 grid((unsigned)((a->r.n_columns + TILE - 1) / TILE), (unsigned)(down < 65535 ? down : 65535));
    if (!a->t) gradient_kernel<true, false><<<grid, THREADS, 0, s>>>(*a);
    else if (!a->q) gradient_kernel<false, true><<<grid, THREADS, 0, s>>>(*a);
    else gradient_kernel<true, true><<<grid, THREADS, 0, s>>>(*a);
}
