/* lora_grad.cu - scale dy b and scale dy^T xa: products with few columns, in which reading dy is all the work.
 *
 * A block computes 64 rows of the result, columns of dy or tokens, and up to 64 columns of r, over one run of the sum: tiles of
 * dy and of the other operand pass through a ring in shared memory, so that enough of them are on their way. dy^T is turned
 * by the instruction that loads fragments. A run is summed in order by one warp per 16 rows; where there are several, their
 * parts are added in order by a second kernel. No atomics: one order of summation, from shapes alone. */
#include "backend/cuda/launch_lora.h"

#include "backend/cuda/mma.cuh"

enum { WARPS = 4, THREADS = WARPS * 32, ROWS = WARPS * 16, DEPTH = 64, STAGES = 4, PAD = 8, LD = DEPTH + PAD };
static_assert(ROWS == DEPTH, "a tile of dy is a square, turned or not");

template <typename E> static __device__ E zero_of() {
    E e;
    *(uint16_t *)&e = 0;
    return e;
}
/* What a block works on. */
template <typename E> struct job {
    const E *dy;         /* its first column */
    const E *small;      /* first row of the sum, first column of r */
    int64_t small_ld;    /* elements from one row of it to the next */
    int64_t rows, first; /* of the result, of this part; where the tile begins */
    int64_t k, k_end;    /* of the sum */
    int columns;         /* of r */
};

/* ROWS x DEPTH of dy into a stage: rows of it are tokens, whichever of the two they are. */
template <typename E, bool TURNED>
static __device__ void wide_ask(const launch_lora_grad_args &a, const job<E> &j, E *to, int64_t k) {
    int64_t token = TURNED ? k : j.first, token_end = TURNED ? j.k_end : j.rows;
    int64_t column = TURNED ? j.first : k, column_end = TURNED ? j.rows : j.k_end;
#pragma unroll
    for (int e = threadIdx.x; e < ROWS * DEPTH / 8; e += THREADS) {
        int row = e / (DEPTH / 8), at = e % (DEPTH / 8) * 8;
        bool there = token + row < token_end && column + at < column_end;
        copy_async_16(shared_address(to + row * LD + at), there ? j.dy + (token + row) * a.out + column + at : j.dy,
                      there);
    }
}

/* DEPTH rows of the other operand, 16 NT columns. Rows of a rank that is no multiple of 8 are not aligned. */
template <typename E, int NT> static __device__ void small_ask(const job<E> &j, E *to, int64_t k, bool packs) {
    enum { WIDTH = 16 * NT, SMALL_LD = WIDTH + PAD };
    if (packs) {
#pragma unroll
        for (int e = threadIdx.x; e < DEPTH * WIDTH / 8; e += THREADS) {
            int row = e / (WIDTH / 8), at = e % (WIDTH / 8) * 8;
            bool there = k + row < j.k_end && at < j.columns;
            copy_async_16(shared_address(to + row * SMALL_LD + at),
                          there ? j.small + (k + row) * j.small_ld + at : j.small, there);
        }
        return;
    }
    for (int e = threadIdx.x; e < DEPTH * WIDTH; e += THREADS) {
        int row = e / WIDTH, at = e % WIDTH;
        bool there = k + row < j.k_end && at < j.columns;
        to[row * SMALL_LD + at] = there ? j.small[(k + row) * j.small_ld + at] : zero_of<E>();
    }
}

/* acc += tile of dy times tile of the other. */
template <typename E, bool TURNED, int NT>
static __device__ void tile_multiply(float (&acc)[2 * NT][4], const E *wide, const E *small) {
    enum { SMALL_LD = 16 * NT + PAD };
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, i = lane / 8;
#pragma unroll
    for (int k = 0; k < DEPTH; k += 16) {
        uint32_t x[4];
        if (TURNED)
            load_matrices_transposed(x, shared_address(wide + (k + i / 2 * 8 + lane % 8) * LD + warp * 16 + i % 2 * 8));
        else load_matrices(x, shared_address(wide + (warp * 16 + lane % 16) * LD + k + lane / 16 * 8));
#pragma unroll
        for (int n = 0; n < NT; n++) {
            uint32_t b[4];
            load_matrices_transposed(
                b, shared_address(small + (k + i % 2 * 8 + lane % 8) * SMALL_LD + n * 16 + i / 2 * 8));
            mma<E>(acc[2 * n], x, b[0], b[1]);
            mma<E>(acc[2 * n + 1], x, b[2], b[3]);
        }
    }
}

/* Along x: tiles of rows; y: runs; z: parts times pieces of r. TURNED: rows are columns of dy, the sum is over tokens. */
template <typename E, typename R, bool TURNED, int NT>
static __global__ void __launch_bounds__(THREADS) grad_kernel(launch_lora_grad_args a, int n_pieces) {
    enum { WIDTH = 16 * NT, SMALL_LD = WIDTH + PAD, STAGE = ROWS * LD + DEPTH * SMALL_LD };
    extern __shared__ uint4 shared[];
    E *ring = (E *)shared;
    int part = blockIdx.z / n_pieces, r0 = blockIdx.z % n_pieces * WIDTH;
    int64_t wide = a.parts.n * a.r, b_row = 0, columns = a.parts.columns[part];
    for (int i = 0; i < part; i++) b_row += a.parts.columns[i];
    int64_t depth = TURNED ? a.N : columns, n_runs = (depth + a.run - 1) / a.run;
    job<E> j = {.dy = (const E *)a.dy + a.parts.first[part],
                .small = (const E *)a.small + (TURNED ? part * a.r : b_row * a.r) + r0,
                .small_ld = TURNED ? wide : a.r,
                .rows = TURNED ? columns : a.N,
                .first = (int64_t)blockIdx.x * ROWS,
                .k = blockIdx.y * a.run,
                .k_end = min((blockIdx.y + 1) * a.run, depth),
                .columns = (int)a.r - r0};
    if (j.first >= j.rows || j.k >= depth) return;
    bool packs = a.r % 8 == 0;
    int n_tiles = (int)((j.k_end - j.k + DEPTH - 1) / DEPTH);
    float acc[2 * NT][4] = {};
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < n_tiles) {
            wide_ask<E, TURNED>(a, j, ring + s * STAGE, j.k + s * DEPTH);
            small_ask<E, NT>(j, ring + s * STAGE + ROWS * LD, j.k + s * DEPTH, packs);
        }
        copy_async_commit();
    }
    for (int i = 0; i < n_tiles; i++) {
        copy_async_wait<STAGES - 2>();
        __syncthreads(); /* this tile is there for all, and the one before it is used up */
        int ahead = i + STAGES - 1;
        if (ahead < n_tiles) {
            E *stage = ring + ahead % STAGES * STAGE;
            wide_ask<E, TURNED>(a, j, stage, j.k + (int64_t)ahead * DEPTH);
            small_ask<E, NT>(j, stage + ROWS * LD, j.k + (int64_t)ahead * DEPTH, packs);
        }
        copy_async_commit();
        const E *stage = ring + i % STAGES * STAGE;
        tile_multiply<E, TURNED, NT>(acc, stage, stage + ROWS * LD);
    }
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t ld = TURNED ? a.r : wide, total = TURNED ? 0 : a.N * wide;
    for (int i = 0; TURNED && i < a.parts.n; i++) total += a.parts.columns[i] * a.r;
#pragma unroll
    for (int e = 0; e < 8 * NT; e++) {
        int64_t row = j.first + warp * 16 + lane / 4 + e % 4 / 2 * 8;
        int column = e / 4 * 8 + lane % 4 * 2 + e % 2;
        if (row >= j.rows || column >= j.columns) continue;
        int64_t at = (TURNED ? b_row + row : row) * ld + (TURNED ? 0 : part * a.r) + r0 + column;
        float x = acc[e / 4][e % 4];
        if (n_runs > 1) a.runs[blockIdx.y * total + at] = x;
        else round_to((R *)a.result + at, a.scale * x);
    }
}

/* result = scale times the sum of the runs, in order; parts of one run are finished. */
template <typename R>
static __global__ void __launch_bounds__(256) runs_kernel(launch_lora_grad_args a, int64_t total) {
    int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x, depth = a.N;
    if (i >= total) return;
    if (!a.over_tokens) depth = a.parts.columns[i % (a.parts.n * a.r) / a.r];
    int n_runs = (int)((depth + a.run - 1) / a.run);
    if (n_runs == 1) return;
    float sum = 0;
#pragma unroll 4
    for (int k = 0; k < n_runs; k++) sum += a.runs[k * total + i];
    round_to((R *)a.result + i, a.scale * sum);
}

template <typename E, typename R, bool TURNED, int NT>
static void launch_tiles(cudaStream_t s, const launch_lora_grad_args *a) {
    enum { STAGE = ROWS * LD + DEPTH * (16 * NT + PAD) };
    int64_t widest = 0, n_pieces = (a->r + 16 * NT - 1) / (16 * NT), total = a->N * a->parts.n * a->r, R_rows = 0;
    for (int i = 0; i < a->parts.n; i++) {
        widest = widest > a->parts.columns[i] ? widest : a->parts.columns[i];
        R_rows += a->parts.columns[i];
    }
    int64_t rows = TURNED ? widest : a->N, depth = TURNED ? a->N : widest, n_runs = (depth + a->run - 1) / a->run;
    if (TURNED) total = R_rows * a->r;
    dim3 grid((unsigned)((rows + ROWS - 1) / ROWS), (unsigned)n_runs, (unsigned)(a->parts.n * n_pieces));
    size_t shared_bytes = (size_t)STAGES * STAGE * sizeof(E);
    cudaFuncSetAttribute(grad_kernel<E, R, TURNED, NT>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes);
    grad_kernel<E, R, TURNED, NT><<<grid, THREADS, shared_bytes, s>>>(*a, (int)n_pieces);
    if (n_runs > 1) runs_kernel<R><<<(unsigned)((total + 255) / 256), 256, 0, s>>>(*a, total);
}

template <typename E, typename R, bool TURNED> static void launch_rank(cudaStream_t s, const launch_lora_grad_args *a) {
    if (a->r <= 16) launch_tiles<E, R, TURNED, 1>(s, a);
    else if (a->r <= 32) launch_tiles<E, R, TURNED, 2>(s, a);
    else launch_tiles<E, R, TURNED, 4>(s, a);
}

template <typename E> static void launch_for(cudaStream_t s, launch_type result, const launch_lora_grad_args *a) {
    if (!a->over_tokens) launch_rank<E, E, false>(s, a);
    else if (result == LAUNCH_BF16) launch_rank<E, __nv_bfloat16, true>(s, a);
    else launch_rank<E, float, true>(s, a);
}

void launch_lora_grad(cudaStream_t s, launch_type t, launch_type result_type, const launch_lora_grad_args *a) {
    if (a->N == 0) return;
    if (t == LAUNCH_BF16) launch_for<__nv_bfloat16>(s, result_type, a);
    else launch_for<__half>(s, result_type, a);
}
