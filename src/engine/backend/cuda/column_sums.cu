/* column_sums.cu - sums over all rows of a matrix, in one fixed shape: lines of fp32 sums, then their sum in double. */
#include "backend/cuda/launch_norm.h"

#include "backend/cuda/typed.cuh"

/* ---- rows into lines --------------------------------------------------------------------------------------------- */

/* A warp's lanes own neighbouring packs of columns, the warps of a block take its rows in turn. A thread asks for
 * BIAS_AHEAD rows at once: four blocks to a multiprocessor have 128 KiB on their way. */
enum { BIAS_WARPS = 8, BIAS_AHEAD = 8 };

template <typename T, bool VECTOR>
static __global__ void __launch_bounds__(BIAS_WARPS *WARP, 4)
    bias_kernel(float *lines, const T *dy, int64_t n_rows, int64_t C, int64_t block_rows) {
    /* From element e of the lanes to element e + 1. Not WARP: those that follow each other in a line would share a bank. */
    enum { N = pack<T>::N, STRIDE = WARP + 4 };
    __shared__ float parts[BIAS_WARPS][N * STRIDE];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int64_t first_column = (int64_t)blockIdx.x * WARP * N, column = first_column + lane * N, left = C - column;
    int64_t first = (int64_t)blockIdx.y * block_rows, end = min(first + block_rows, n_rows);
    int rows = (int)(end - first) - warp; /* from this warp's first one to the end of the block */
    const T *from = dy + (first + warp) * C + column;
    float sum[N] = {};
    for (; rows > 0; rows -= BIAS_WARPS * BIAS_AHEAD, from += BIAS_WARPS * BIAS_AHEAD * C) {
        uint4 ahead[BIAS_AHEAD];
#pragma unroll
        for (int k = 0; k < BIAS_AHEAD; k++) /* zeros where there is no row: they change no sum */
            ahead[k] = raw_load<VECTOR>(from + k * BIAS_WARPS * C, k * BIAS_WARPS < rows ? left : 0);
#pragma unroll
        for (int k = 0; k < BIAS_AHEAD; k++) {
            pack<T> d = pack_widen<T>(ahead[k]);
#pragma unroll
            for (int e = 0; e < N; e++) sum[e] += d.v[e];
        }
    }
#pragma unroll
    for (int e = 0; e < N; e++) parts[warp][e * STRIDE + lane] = sum[e];
    __syncthreads();
    for (int c = threadIdx.x; c < WARP * N && first_column + c < C; c += BIAS_WARPS * WARP) {
        float total = 0;
        for (int w = 0; w < BIAS_WARPS; w++) total += parts[w][c % N * STRIDE + c / N];
        lines[blockIdx.y * C + first_column + c] = total;
    }
}

void launch_bias_lines(cudaStream_t s, launch_type t, float *lines, const void *dy, int64_t n_rows, int64_t C) {
    by_type(t, [&](auto zero) {
        using T = decltype(zero);
        dim3 grid((unsigned)divide_up(C, WARP * pack<T>::N), (unsigned)bias_block_count(n_rows));
        by_flag(C % pack<T>::N == 0 && aligned(dy, 16), [&](auto vector) {
            launch(bias_kernel<T, decltype(vector)::value>, grid, dim3(BIAS_WARPS * WARP), s, lines, (const T *)dy,
                   n_rows, C, bias_block_rows(n_rows));
        });
    });
}

/* ---- lines into one ---------------------------------------------------------------------------------------------- */

/* LINE_COLUMNS columns to a block: few, so that there are blocks for all multiprocessors. Thread (x, y) adds lines y,
 * y + LINE_WAYS, ... of column x, LINE_AHEAD of them asked for at once: all, where there are a thousand. Then the sums of
 * a column are folded in halves, the two of each warp first, then those of the 32 warps by one warp. */
enum { LINE_COLUMNS = WARP / 2, LINE_THREADS = WARP * WARP, LINE_WAYS = LINE_THREADS / LINE_COLUMNS, LINE_AHEAD = 16 };

template <typename T>
static __global__ void __launch_bounds__(LINE_THREADS, 1)
    add_lines_kernel(T *out, const float *lines, int64_t n_lines, int64_t line, int64_t n) {
    __shared__ double sums[WARP][LINE_COLUMNS + 1]; /* + 1: the sums of a column lie in different banks */
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int64_t first_column = (int64_t)blockIdx.x * LINE_COLUMNS, column = first_column + threadIdx.x % LINE_COLUMNS;
    int way = threadIdx.x / LINE_COLUMNS, left = column < n ? (int)n_lines - way : 0;
    const float *from = lines + way * line + column;
    double sum = 0;
    for (; left > 0; left -= LINE_WAYS * LINE_AHEAD, from += LINE_WAYS * LINE_AHEAD * line) {
        float ahead[LINE_AHEAD];
#pragma unroll
        for (int k = 0; k < LINE_AHEAD; k++) ahead[k] = k * LINE_WAYS < left ? from[k * LINE_WAYS * line] : 0;
#pragma unroll
        for (int k = 0; k < LINE_AHEAD; k++) sum += ahead[k];
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, LINE_COLUMNS);
    if (lane < LINE_COLUMNS) sums[warp][lane] = sum;
    __syncthreads();
    if (warp >= LINE_COLUMNS || first_column + warp >= n) return;
    sum = lanes_sum(sums[lane][warp]);
    if (lane == 0) narrow(&out[first_column + warp], (float)sum);
}

void launch_add_lines(cudaStream_t s, launch_type t, void *out, const float *lines, int64_t n_lines, int64_t line,
                      int64_t n) {
    by_type(t, [&](auto zero) {
        using T = decltype(zero);
        launch(add_lines_kernel<T>, dim3((unsigned)divide_up(n, LINE_COLUMNS)), dim3(LINE_THREADS), s, (T *)out, lines,
               n_lines, line, n);
    });
}
