/* rank_sum.cu - parts of several ranks, added in rank order, one element after the other: memory bounds it, so a thread
 * takes four elements and the parts pass by. The result may lie on one of the parts: it is stored when all were read.
 *
 * A bf16 accumulator is rounded after every part, as ACCUMULATE does after every micro-batch: part p of n in micro-batch m
 * takes the noise of micro-batch m * n + p (comm/sum.c says why). Keys of 32 parts are made by the lanes of a warp, one
 * each, and handed round. */
#include "backend/cuda/launch_rank_sum.h"

#include "backend/cuda/noise.cuh"

enum { THREADS = 256 };

template <typename T> DEVICE const T *part_at(const launch_rank_sum &a, int p) {
    return p == a.own ? (const T *)a.mine : (const T *)a.others + p * a.stride;
}

template <typename T, bool VECTOR>
static __global__ void __launch_bounds__(THREADS) rank_sum_kernel(launch_rank_sum a) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 4, left = a.n - i;
    if (left <= 0) return;
    bool begun = a.scalars && a.scalars->micro > 0;
    float sum[4] = {};
    quad<T> q;
    if (begun) {
        q = quad_load<VECTOR>((const T *)a.out + i, left);
#pragma unroll
        for (int e = 0; e < 4; e++) sum[e] = widen_exact(q.e[e]);
    }
    for (int p = 0; p < a.n_parts; p++) {
        q = quad_load<VECTOR>(part_at<T>(a, p) + i, left);
#pragma unroll
        for (int e = 0; e < 4; e++) { /* the first as it is: 0 + -0 would lose the sign */
            float x = widen_exact(q.e[e]);
            sum[e] = begun ? sum[e] + x : x;
        }
        begun = true;
    }
#pragma unroll
    for (int e = 0; e < 4; e++) narrow_exact(&q.e[e], sum[e]);
    quad_store<VECTOR>((T *)a.out + i, q, left);
}

static __global__ void __launch_bounds__(THREADS) rank_sum_f64_kernel(launch_rank_sum a) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= a.n) return;
    bool begun = a.scalars && a.scalars->micro > 0;
    double sum = begun ? ((const double *)a.out)[i] : 0;
    for (int p = 0; p < a.n_parts; p++) {
        double x = part_at<double>(a, p)[i];
        sum = begun ? sum + x : x;
        begun = true;
    }
    ((double *)a.out)[i] = sum;
}

/* The key of every part, lane by lane: lane l has that of part `first` + l. */
DEVICE noise_key part_key(const launch_rank_sum &a, int first, int64_t noise_block) {
    uint32_t micro = a.scalars->micro * (uint32_t)a.n_parts + (uint32_t)(first + threadIdx.x % WARP);
    return noise_open(a.noise, *a.scalars, NOISE_ACCUMULATE | micro << 8, noise_block);
}

template <bool VECTOR>
static __global__ void __launch_bounds__(CHUNK_THREADS) rank_sum_noisy_kernel(launch_rank_sum a) {
    chunk_place chunk = chunk_open(a.noise);
    bool from_out = a.scalars->micro > 0;
    for (int turn = 0; turn < CHUNK_TURNS; turn++) {
        tile_place at = tile_at(chunk, turn);
        if (at.begin < 0 || at.begin >= a.n) continue; /* of the whole warp */
        quad<bf16> sum[2] = {};
        if (from_out)
#pragma unroll
            for (int q = 0; q < 2; q++)
                sum[q] = quad_load<VECTOR>((const bf16 *)a.out + at.first + 16 * q, a.n - at.first - 16 * q);
        noise_key keys = {};
        for (int p = 0; p < a.n_parts; p++) {
            if (p % WARP == 0) keys = part_key(a, p, chunk.noise_block);
            noise_key key = {__shfl_sync(0xffffffffu, keys.start, p % WARP),
                             __shfl_sync(0xffffffffu, keys.key, p % WARP)};
            const bf16 *part = part_at<bf16>(a, p) + at.first;
            quad<bf16> read[2];
#pragma unroll
            for (int q = 0; q < 2; q++) read[q] = quad_load<VECTOR>(part + 16 * q, a.n - at.first - 16 * q);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                uint32_t word = noise_value_word(key, at.r + e);
#pragma unroll
                for (int q = 0; q < 2; q++) {
                    float next = widen(read[q].e[e]);
                    if (from_out || p > 0) next += widen(sum[q].e[e]);
                    sum[q].e[e] = round_stochastic(next, q ? word >> 16 : word & 0xffffu);
                }
            }
        }
#pragma unroll
        for (int q = 0; q < 2; q++)
            quad_store<VECTOR>((bf16 *)a.out + at.first + 16 * q, sum[q], a.n - at.first - 16 * q);
    }
}

/* Do all quads of the parts and of the result begin at a multiple of their size? */
static bool whole_quads(const launch_rank_sum *a, size_t element) {
    return aligned(a->out, 4 * element) && aligned(a->mine, 4 * element) && aligned(a->others, 4 * element) &&
           a->stride % 4 == 0;
}

void launch_rank_sum_typed(cudaStream_t s, launch_type t, const launch_rank_sum *a) {
    by_type(t, [&](auto zero) {
        using T = decltype(zero);
        by_flag(whole_quads(a, sizeof(T)), [&](auto vector) {
            launch(rank_sum_kernel<T, decltype(vector)::value>, dim3((unsigned)divide_up(a->n, THREADS * 4)),
                   dim3(THREADS), s, *a);
        });
    });
}

void launch_rank_sum_f64(cudaStream_t s, const launch_rank_sum *a) {
    launch(rank_sum_f64_kernel, dim3((unsigned)divide_up(a->n, THREADS)), dim3(THREADS), s, *a);
}

void launch_rank_sum_noisy(cudaStream_t s, const launch_rank_sum *a) {
    by_flag(whole_quads(a, sizeof(bf16)), [&](auto vector) {
        launch(rank_sum_noisy_kernel<decltype(vector)::value>, dim3(chunk_count(a->noise, a->n)), dim3(CHUNK_THREADS),
               s, *a);
    });
}
