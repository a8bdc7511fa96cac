/* column_sums.cu - sums over all rows of a matrix, in one fixed shape: lines of fp32 sums, then their sum in double. */
#include "backend/cuda/launch_norm.h"

#include "backend/cuda/typed.cuh"

/* ---- rows into lines --------------------------------------------------------------------------------------------- */

/* A warp's lanes own neighbouring packs of columns, the warps of a block take its rows in turn. */
enum { BIAS_WARPS = 8 };

template <typename T, bool VECTOR>
static __global__ void __launch_bounds__(BIAS_WARPS *WARP) bias_kernel(float *lines, const T *dy, int64_t n_rows,
                                                                      int64_t C, int64_t block_rows) {
    enum { N = pack<T>::N };
    __shared__ float parts[BIAS_WARPS][WARP * N];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int64_t first_column = (int64_t)blockIdx.x * WARP * N, column = first_column + lane * N, left = C - column;
    int64_t first = (int64_t)blockIdx.y * block_rows, end = min(first + block_rows, n_rows);
    float sum[N] = {};
#pragma unroll 4
    for (int64_t row = first + warp; row < end; row += BIAS_WARPS) {
        pack<T> d = pack_load<VECTOR>(dy + row * C + column, left);
#pragma unroll
        for (int e = 0; e < N; e++) sum[e] += d.v[e];
    }
#pragma unroll
    for (int e = 0; e < N; e++) parts[warp][e * WARP + lane] = sum[e]; /* not lane * N + e: banks */
    __syncthreads();
    for (int c = threadIdx.x; c < WARP * N && first_column + c < C; c += BIAS_WARPS * WARP) {
        float total = 0;
        for (int w = 0; w < BIAS_WARPS; w++) total += parts[w][c % N * WARP + c / N];
        lines[blockIdx.y * C + first_column + c] = total;
    }
}

void launch_bias_lines(cudaStream_t s, launch_type t, float *lines, const void *dy, int64_t n_rows, int64_t C) {
    by_type(t, [&](auto zero) {
        using T = decltype(zero);
        dim3 grid((unsigned)divide_up(C, WARP * pack<T>::N), (unsigned)sum_block_count(n_rows));
        by_flag(C % pack<T>::N == 0 && aligned(dy, 16), [&](auto vector) {
            launch(bias_kernel<T, decltype(vector)::value>, grid, dim3(BIAS_WARPS * WARP), s, lines, (const T *)dy,
                   n_rows, C, sum_block_rows(n_rows));
        });
    });
}

/* ---- lines into one ---------------------------------------------------------------------------------------------- */

/* 32 columns to a block; thread (x, y) adds lines y, y + 32, ... of column x, then the 32 sums are folded in halves. */
template <typename T>
static __global__ void __launch_bounds__(WARP *WARP) add_lines_kernel(T *out, const float *lines, int64_t n_lines,
                                                                     int64_t line, int64_t n) {
    __shared__ double sums[WARP][WARP + 1];
    int x = threadIdx.x % WARP, y = threadIdx.x / WARP;
    int64_t column = (int64_t)blockIdx.x * WARP + x;
    double sum = 0;
    if (column < n) {
#pragma unroll 8
        for (int64_t l = y; l < n_lines; l += WARP) sum += lines[l * line + column];
    }
    sums[y][x] = sum;
    for (int half = WARP / 2; half > 0; half /= 2) {
        __syncthreads();
        if (y < half) sums[y][x] += sums[y + half][x];
    }
    if (y == 0 && column < n) narrow(&out[column], (float)sums[0][x]);
}

void launch_add_lines(cudaStream_t s, launch_type t, void *out, const float *lines, int64_t n_lines, int64_t line,
                      int64_t n) {
    by_type(t, [&](auto zero) {
        using T = decltype(zero);
        launch(add_lines_kernel<T>, dim3((unsigned)divide_up(n, WARP)), dim3(WARP * WARP), s, (T *)out, lines, n_lines,
               line, n);
    });
}
