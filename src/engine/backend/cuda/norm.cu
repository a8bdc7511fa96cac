/* norm.cu - RMSNorm and LayerNorm over rows, and RMSNorm over the q and k heads of packed rows.
 *
 * A block holds one row in registers: read once, summed, written once. Which thread sums which elements follows from the
 * length and type of the row alone, so the norm of a stored sum has the bits of the fused one that stored it. LayerNorm
 * takes the variance around the mean, from the registers.
 * A head is short: a power of two of neighbouring lanes holds it, and several share a warp. */
#include "backend/cuda/launch_norm.h"

#include "backend/cuda/absmax.cuh"
#include "backend/cuda/chain.cuh"
#include "backend/cuda/heads.cuh"
#include "backend/cuda/x_bytes.cuh"

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static_assert(NORM_ROW_BYTES_MAX == NORM_THREADS_MOST * 8 * 16, "norm_shape_of knows up to eight packs per thread");

/* What becomes of y: numbers; and the largest of them; bytes for a product with codes. */
enum norm_result { NUMBERS, NUMBERS_AND_MOST, BYTES };

template <typename T> using native = std::conditional_t<std::is_same_v<T, bf16>, __nv_bfloat16, __half>;

/* PACKS per thread; thread t holds packs t, t + blockDim, ... */
template <typename T, bool VECTOR, int PACKS, bool CENTERED, norm_result RESULT>
static __global__ void __launch_bounds__(NORM_THREADS_MOST) norm_kernel(launch_norm_args n) {
    enum { N = pack<T>::N };
    __shared__ float sums[2][WARP];
    __shared__ uint32_t mosts[WARP];
    int64_t row = blockIdx.x, start = row * n.stride;
    /* Parameters stand before the kernels in front are done; long rows have no registers for them. */
    constexpr bool AHEAD = PACKS <= 2;
    uint4 gains[AHEAD ? PACKS : 1];
    chain_next();
#pragma unroll
    for (int k = 0; AHEAD && k < PACKS; k++) {
        int64_t i = (int64_t)(threadIdx.x + k * blockDim.x) * N;
        gains[k] = raw_load<VECTOR>((const T *)n.gamma + i, n.C - i);
    }
    chain_wait();
    if (row >= rows_held(n.rows, n.n_rows)) return;

    pack<T> x[PACKS];
    if (n.b) {
        uint4 a[PACKS], b[PACKS];
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            int64_t i = (int64_t)(threadIdx.x + k * blockDim.x) * N;
            a[k] = raw_load<VECTOR>((const T *)n.a + start + i, n.C - i);
            b[k] = raw_load<VECTOR>((const T *)n.b + start + i, n.C - i);
        }
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            int64_t i = (int64_t)(threadIdx.x + k * blockDim.x) * N;
            pack<T> p = pack_widen<T>(a[k]), q = pack_widen<T>(b[k]);
#pragma unroll
            for (int e = 0; e < N; e++) p.v[e] += q.v[e];
            uint4 rounded = pack_narrow<T>(p);
            raw_store<VECTOR>((T *)n.s + start + i, rounded, n.C - i);
            x[k] = pack_widen<T>(rounded);
        }
    } else {
        uint4 a[PACKS];
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            int64_t i = (int64_t)(threadIdx.x + k * blockDim.x) * N;
            a[k] = raw_load<VECTOR>((const T *)n.a + start + i, n.C - i);
        }
#pragma unroll
        for (int k = 0; k < PACKS; k++) x[k] = pack_widen<T>(a[k]);
    }

    float mean = 0;
    if (CENTERED) {
        float sum = 0;
#pragma unroll
        for (int k = 0; k < PACKS; k++)
#pragma unroll
            for (int e = 0; e < N; e++) sum += x[k].v[e];
        mean = block_sum(sum, sums[0]) / (float)n.C;
    }
    float square = 0;
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        int64_t left = n.C - (int64_t)(threadIdx.x + k * blockDim.x) * N;
#pragma unroll
        for (int e = 0; e < N; e++) {
            float d = x[k].v[e];
            if (CENTERED) d = e < left ? d - mean : 0.0f; /* past the end of the row 0 - mean is not 0 */
            square = fmaf(d, d, square);
        }
    }
    float rstd = 1.0f / sqrtf(block_sum(square, sums[1]) / (float)n.C + n.eps);

    uint32_t most = 0;
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        int64_t i = (int64_t)(threadIdx.x + k * blockDim.x) * N;
        uint4 gain = AHEAD ? gains[AHEAD ? k : 0] : raw_load<VECTOR>((const T *)n.gamma + i, n.C - i);
        pack<T> gamma = pack_widen<T>(gain), y;
        if (CENTERED) {
            pack<T> beta = pack_load<VECTOR>((const T *)n.beta + i, n.C - i);
#pragma unroll
            for (int e = 0; e < N; e++) y.v[e] = fmaf((x[k].v[e] - mean) * rstd, gamma.v[e], beta.v[e]);
        } else {
#pragma unroll
            for (int e = 0; e < N; e++) y.v[e] = x[k].v[e] * rstd * (gamma.v[e] + n.offset);
        }
        uint4 rounded = pack_narrow<T>(y);
        if constexpr (RESULT == BYTES) /* neighbouring lanes have neighbouring packs */
            few_codes_shared::give_bytes_to_wgmma<native<T>>(n.format, n.bytes, row, i, n.C, rounded);
        else if (n.y) raw_store<VECTOR>((T *)n.y + start + i, rounded, n.C - i);
        if (RESULT == NUMBERS_AND_MOST) most = absmax_pack<T>(most, rounded, n.C - i);
    }
    if (threadIdx.x == 0) {
        if (CENTERED) n.mean[row] = mean;
        n.rstd[row * n.rstd_step] = rstd;
    }
    if (RESULT == NUMBERS_AND_MOST) absmax_give(n.amax, most, mosts);
}

template <typename F> static void by_row_packs(int per_thread, F run) {
    if (per_thread == 1) run(std::integral_constant<int, 1>{});
    else if (per_thread == 2) run(std::integral_constant<int, 2>{});
    else if (per_thread == 4) run(std::integral_constant<int, 4>{});
    else run(std::integral_constant<int, 8>{});
}

static bool in_whole_packs(launch_type t, const launch_norm_args *a) {
    const void *operands[] = {a->a, a->b, a->gamma, a->beta, a->s, a->y};
    const int64_t in_pack = 16 / (int64_t)type_bytes(t);
    bool whole = a->C % in_pack == 0 && a->stride % in_pack == 0;
    for (const void *p : operands) whole = whole && aligned(p, 16);
    return whole;
}

bool launch_norm_gives_bytes(launch_type t, const launch_norm_args *a) {
    return t != LAUNCH_F32 && a->C % FEW_CODES_UNIT == 0 && a->n_rows <= FEW_ROWS_MOST && in_whole_packs(t, a);
}

/* A kernel for bytes is made of 16-bit numbers in whole packs alone. */
template <typename T, bool VECTOR, typename F> static void by_result(const launch_norm_args *a, F run) {
    if constexpr (VECTOR && sizeof(T) == 2) {
        if (a->bytes) {
            run(std::integral_constant<norm_result, BYTES>{});
            return;
        }
    }
    by_amax<T>(a->amax, [&](auto amax) {
        run(std::integral_constant<norm_result, decltype(amax)::value ? NUMBERS_AND_MOST : NUMBERS>{});
    });
}

void launch_norm(cudaStream_t s, launch_type t, const launch_norm_args *a) {
    absmax_clear(s, a->amax);
    by_type(t, [&](auto zero) {
        using T = decltype(zero);
        const bool whole = in_whole_packs(t, a);
        const norm_shape shape = norm_shape_of(divide_up(a->C, pack<T>::N));
        by_row_packs(shape.per_thread, [&](auto per_thread) {
            constexpr int PACKS = decltype(per_thread)::value;
            by_flag(whole, [&](auto vector) {
                by_flag(a->mean != NULL, [&](auto centered) {
                    by_result<T, decltype(vector)::value>(a, [&](auto result) {
                        launch_chained(norm_kernel<T, decltype(vector)::value, PACKS, decltype(centered)::value,
                                                   decltype(result)::value>,
                                       dim3((unsigned)a->n_rows), dim3((unsigned)shape.threads), 0, 1, s, *a);
                    });
                });
            });
        });
    });
}

/* ---- heads ------------------------------------------------------------------------------------------------------- */

/* LANES lanes hold a head, PACKS packs each. Blocks along x go over the heads of a row, along y over rows. */
template <typename T, bool VECTOR, int LANES, int PACKS>
static __global__ void __launch_bounds__(HEAD_THREADS) qk_norm_kernel(launch_heads_args n) {
    enum { N = pack<T>::N };
    int head = (int)((blockIdx.x * blockDim.x + threadIdx.x) / LANES), n_normed = n.n_q + n.n_k;
    int lane = threadIdx.x % LANES, n_heads = n_normed + n.n_v;
    int64_t held = rows_held(n.rows, n.n_rows);
    const T *gain = (const T *)(head < n.n_q ? n.gq : n.gk);
    for (int64_t row = blockIdx.y; row < held; row += gridDim.y) {
        int64_t start = (row * n_heads + head) * n.D;
        pack<T> x[PACKS];
        float square = 0;
#pragma unroll
        for (int k = 0; k < PACKS; k++) { /* lanes without a head stay for the sum, with zeros */
            int i = (lane + k * LANES) * N;
            x[k] = pack_load<VECTOR>((const T *)n.qkv + start + i, head < n_heads ? n.D - i : 0);
        }
#pragma unroll
        for (int k = 0; k < PACKS; k++)
#pragma unroll
            for (int e = 0; e < N; e++) square = fmaf(x[k].v[e], x[k].v[e], square);
        float rstd = 1.0f / sqrtf(lanes_sum<LANES>(square) / (float)n.D + n.eps);
        if (head >= n_heads) continue;
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            int i = (lane + k * LANES) * N;
            if (head < n_normed) {
                pack<T> g = pack_load<VECTOR>(gain + i, n.D - i);
#pragma unroll
                for (int e = 0; e < N; e++) x[k].v[e] = x[k].v[e] * rstd * (g.v[e] + n.offset);
            }
            pack_store<VECTOR>((T *)n.y + start + i, x[k], n.D - i);
        }
        if (head < n_normed && lane == 0) n.rstd[row * n_normed + head] = rstd;
    }
}

void launch_qk_norm(cudaStream_t s, launch_type t, const launch_heads_args *a) {
    by_type(t, [&](auto zero) {
        using T = decltype(zero);
        bool whole = a->D % pack<T>::N == 0 && aligned(a->qkv, 16) && aligned(a->gq, 16) && aligned(a->gk, 16) &&
                     aligned(a->y, 16);
        by_head_lanes<HEAD_PACKS_MOST>(divide_up(a->D, pack<T>::N), [&](auto n_lanes, auto per_lane) {
            constexpr int LANES = decltype(n_lanes)::value, PACKS = decltype(per_lane)::value;
            int64_t threads = (int64_t)(a->n_q + a->n_k + a->n_v) * LANES;
            unsigned block = block_threads(threads, HEAD_THREADS);
            by_flag(whole, [&](auto vector) {
                launch(qk_norm_kernel<T, decltype(vector)::value, LANES, PACKS>,
                       dim3((unsigned)divide_up(threads, block), grid_rows(a->n_rows)), dim3(block), s, *a);
            });
        });
    });
}
