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

enum { BLOCKS = 3 /* of the gradient, on a multiprocessor */ };
static const float LOG2E = 1.4426950408889634f;

static __device__ float2 widen2(uint32_t word) { return __half22float2(*(const __half2 *)&word); }
/* Nothing here is so small that its exponential would be denormal and still count. */
static __device__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
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

static __device__ __half2 max2(uint32_t a, uint32_t b) { return __hmax2(*(const __half2 *)&a, *(const __half2 *)&b); }

/* Eight logits more: the largest is found among halves, and a sum is of powers of two, one product and sum for each argument. */
static __device__ void part_add8(row_part *p, const uint4 (&raw)[LOSS_VECTORS]) {
    __half2 most = __hmax2(max2(raw[0].x, raw[0].y), max2(raw[0].z, raw[0].w));
#pragma unroll
    for (int u = 1; u < LOSS_VECTORS; u++)
        most = __hmax2(most, __hmax2(max2(raw[u].x, raw[u].y), max2(raw[u].z, raw[u].w)));
    float top = __half2float(__hmax(__low2half(most), __high2half(most)));
    if (top > p->max) {
        p->sum *= __expf(p->max - top);
        p->max = top;
    }
    float shift = -base_of(p->max) * LOG2E, sum = 0;
#pragma unroll
    for (int u = 0; u < LOSS_VECTORS; u++) {
        const uint32_t words[4] = {raw[u].x, raw[u].y, raw[u].z, raw[u].w};
#pragma unroll
        for (int w = 0; w < 4; w++) {
            float2 x = widen2(words[w]);
            sum += power_of_two(__fmaf_rn(x.x, LOG2E, shift)) + power_of_two(__fmaf_rn(x.y, LOG2E, shift));
        }
    }
    p->sum += sum;
}

/* This thread's part of a row of n logits. */
static __device__ row_part scan_row(const uint16_t *x, int32_t n) {
    const uint4 nothing = {0xfc00fc00u, 0xfc00fc00u, 0xfc00fc00u, 0xfc00fc00u}; /* -inf */
    row_part p = {-CUDART_INF_F, 0, 0};
    for (int32_t i = threadIdx.x * RUN; i < n; i += LOSS_THREADS * RUN * LOSS_VECTORS) {
        uint4 raw[LOSS_VECTORS];
#pragma unroll
        for (int u = 0; u < LOSS_VECTORS; u++) {
            int32_t at = i + u * LOSS_THREADS * RUN;
            raw[u] = at < n ? *(const uint4 *)(x + at) : nothing;
        }
        part_add8(&p, raw);
    }
    return p;
}

static __global__ void __launch_bounds__(LOSS_THREADS, 4) loss_kernel(const __grid_constant__ launch_unembed8_args a) {
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

static __device__ uint32_t e5m2_pair(float low, float high) {
    return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E5M2);
}

/* Of capped logits to that of the logits before. */
static __device__ float slope_of_cap(float logit, float softcap) {
    float part = logit / softcap;
    return 1.0f - part * part;
}

/* The gradient at all columns but the target's. What multiplies a power of two is in its exponent, but for the sign. */
template <bool CAPPED> struct gradient_row {
    float shift, softcap;
    uint32_t keep, sign; /* of a word's bytes: all or none; which they have */
    __device__ gradient_row(const unembed_rows &g, int64_t row, float factor) : softcap(g.softcap) {
        unembed_state state = g.states[row];
        float all = state.factor * factor;
        shift = __log2f(fabsf(all)) - state.max * LOG2E;
        keep = state.factor == 0 ? 0 : 0xffffffffu;
        sign = all < 0 ? 0x80808080u : 0;
    }
    __device__ float at(float x) const {
        float y = power_of_two(__fmaf_rn(x, LOG2E, shift));
        return CAPPED ? y * slope_of_cap(x, softcap) : y;
    }
    __device__ uint32_t word(uint32_t low, uint32_t high) const { /* of four logits */
        float2 a = widen2(low), b = widen2(high);
        return (sign ^ (e5m2_pair(at(a.x), at(a.y)) | e5m2_pair(at(b.x), at(b.y)) << 16)) & keep;
    }
};

template <bool Q, bool TURNED, bool CAPPED>
static __global__ void __launch_bounds__(THREADS, BLOCKS)
    gradient_kernel(const __grid_constant__ launch_unembed8_args a) {
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
            if (row >= g.n_rows) continue;
            const gradient_row<CAPPED> of(g, row + r, factor);
#pragma unroll
            for (int u = 0; u < RUNS; u++) {
                const int32_t at = column + u * RUN * ACROSS;
                uint32_t *to = &word[r][2 * u];
                if (at >= g.n_columns) continue;
                to[0] = of.word(raw[r][u].x, raw[r][u].y), to[1] = of.word(raw[r][u].z, raw[r][u].w);
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

/* The gradient at the target, a byte for each row, behind gradient_kernel. */
static __global__ void __launch_bounds__(THREADS) target_kernel(const __grid_constant__ launch_unembed8_args a) {
    const unembed_rows &g = a.r;
    int64_t row = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (row >= g.n_rows) return;
    const unembed_state s = g.states[row];
    const int32_t target = g.targets[row] - g.first_column;
    if (s.factor == 0 || target < 0 || target >= g.n_columns) return;
    float x = __half2float(*(const __half *)(a.logits + row * g.ld + target));
    float d = __expf(x - s.max) * s.factor - onehot_of(g, row);
    if (g.softcap > 0) d *= slope_of_cap(x, g.softcap);
    uint8_t byte = (uint8_t)e5m2_pair(d * a.scales->factor, 0);
    if (a.q) a.q[row * a.q_ld + target] = byte;
    if (a.t) a.t[target * a.t_ld + row] = byte;
}

template <bool CAPPED> static void launch_gradient(cudaStream_t s, const launch_unembed8_args *a, dim3 grid) {
    if (!a->t) gradient_kernel<true, false, CAPPED><<<grid, THREADS, 0, s>>>(*a);
    else if (!a->q) gradient_kernel<false, true, CAPPED><<<grid, THREADS, 0, s>>>(*a);
    else gradient_kernel<true, true, CAPPED><<<grid, THREADS, 0, s>>>(*a);
}

void launch_unembed8_grad(cudaStream_t s, const launch_unembed8_args *a) {
    int64_t down = (a->r.n_rows + TILE - 1) / TILE;
    if (down == 0) return;
    dim3 grid((unsigned)((a->r.n_columns + TILE - 1) / TILE), (unsigned)(down < 65535 ? down : 65535));
    if (a->r.softcap > 0) launch_gradient<true>(s, a, grid);
    else launch_gradient<false>(s, a, grid);
    target_kernel<<<(unsigned)((a->r.n_rows + THREADS - 1) / THREADS), THREADS, 0, s>>>(*a);
}
