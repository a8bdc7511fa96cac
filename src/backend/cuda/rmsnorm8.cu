/* rmsnorm8.cu - RMSNorm of rows, or of their sum with others, as e4m3 numbers and their transpose, without writing the 16-bit numbers.
 *
 * The scale is guessed and checked (guess.cuh). A block takes 32 rows one after the other and keeps them in shared memory as e4m3
 * numbers, until their columns can be written in runs of 32 bytes. A row is summed by the threads that norm.cu gives it, in that
 * order, so that all numbers have the bits of the ops alone; two rows together wait for their sums. Rows ahead are copied into a ring in shared memory, of which a
 * thread copies and reads its own columns alone: it needs no barrier. s may be a or b for the same reason. */
#include "backend/cuda/launch_norm.h"

#include "backend/cuda/copy_async.cuh"
#include "backend/cuda/e4m3.cuh"
#include "backend/cuda/guess.cuh"
#include "backend/cuda/launch_kernel.cuh"

enum { ROWS = 32, TOGETHER = 2, STAGES = 2, PACKS = 2, C_MOST = 4096, THREADS_MOST = C_MOST / 8 / PACKS };
enum { AGAIN_BLOCKS = 396 }; /* that mostly end at once */

/* Where pack k of this thread begins in its row. */
DEVICE int pack_at(int k) { return (int)(threadIdx.x + k * blockDim.x) * pack<bf16>::N; }

DEVICE void row_ask(const launch_rmsnorm8_args &g, uint4 *stage, int64_t row) {
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        int i = pack_at(k);
        bool there = i < g.C;
        int64_t from = row * g.C + (there ? i : 0);
        copy_async_16(shared_address(stage + k * blockDim.x + threadIdx.x), (const bf16 *)g.a + from, there);
        if (g.b)
            copy_async_16(shared_address(stage + (PACKS + k) * blockDim.x + threadIdx.x), (const bf16 *)g.b + from,
                          there);
    }
}

/* This thread's packs of a row from the ring: a, or a + b as it is stored to s. */
DEVICE void row_take(const launch_rmsnorm8_args &g, pack<bf16> (&x)[PACKS], const uint4 *stage, int64_t row) {
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        x[k] = pack_widen<bf16>(stage[k * blockDim.x + threadIdx.x]);
        if (!g.b) continue;
        pack<bf16> b = pack_widen<bf16>(stage[(PACKS + k) * blockDim.x + threadIdx.x]);
#pragma unroll
        for (int e = 0; e < pack<bf16>::N; e++) x[k].v[e] += b.v[e];
        uint4 rounded = pack_narrow<bf16>(x[k]);
        raw_store<true>((bf16 *)g.s + row * g.C + pack_at(k), rounded, g.C - pack_at(k));
        x[k] = pack_widen<bf16>(rounded);
    }
}

/* Columns of the tile to t: a thread has four of them at a time. */
DEVICE void tile_store(const launch_rmsnorm8_args &g, const uint32_t *tile, int64_t row0) {
    int width = (int)(g.C / 4);
    for (int c = threadIdx.x; c < width; c += blockDim.x) {
        uint32_t turned[ROWS / 4][4];
#pragma unroll
        for (int r = 0; r < ROWS / 4; r++) {
            const uint32_t *from = tile + r * 4 * width + c;
            turn(turned[r], from[0], from[width], from[2 * width], from[3 * width]);
        }
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
            for (int h = 0; h < ROWS / 16; h++)
                if (row0 + h * 16 < g.n_rows)
                    *(uint4 *)(g.t + ((int64_t)c * 4 + e) * g.n_rows + row0 + h * 16) =
                        make_uint4(turned[h * 4][e], turned[h * 4 + 1][e], turned[h * 4 + 2][e], turned[h * 4 + 3][e]);
    }
}

/* TOGETHER rows from row0 + r on: a group of copies also where they are not there. */
DEVICE void rows_ask(const launch_rmsnorm8_args &g, uint4 *ring, int row_packs, int64_t row0, int r, int n) {
#pragma unroll
    for (int p = 0; p < TOGETHER; p++)
        if (r + p < n) row_ask(g, ring + (r + p) % (STAGES * TOGETHER) * row_packs, row0 + r + p);
    copy_async_commit();
}

/* block_sum of several, with one barrier. */
DEVICE void rows_sum(float (&x)[TOGETHER], float (*shared)[WARP]) {
#pragma unroll
    for (int p = 0; p < TOGETHER; p++) {
        x[p] = lanes_sum(x[p]);
        if (threadIdx.x % WARP == 0) shared[p][threadIdx.x / WARP] = x[p];
    }
    __syncthreads();
#pragma unroll
    for (int p = 0; p < TOGETHER; p++)
        x[p] = lanes_sum(threadIdx.x % WARP < blockDim.x / WARP ? shared[p][threadIdx.x % WARP] : 0.0f);
}

/* 32 rows from row0 on. Returns the largest numbers (absmax_words). All threads come along. */
DEVICE uint32_t rows_run(const launch_rmsnorm8_args &g, uint4 *memory, const uint4 (&gains)[PACKS],
                         float (*sums)[TOGETHER][WARP], int64_t row0, float factor, uint32_t most) {
    enum { N = pack<bf16>::N };
    uint8_t *tile = (uint8_t *)memory;
    uint4 *ring = memory + ROWS * g.C / 16;
    int row_packs = (g.b ? 2 : 1) * PACKS * (int)blockDim.x;
    int n = (int)min((int64_t)ROWS, g.n_rows - row0); /* a multiple of 16 */
#pragma unroll
    for (int ahead = 0; ahead < STAGES; ahead++) rows_ask(g, ring, row_packs, row0, ahead * TOGETHER, n);
    for (int r = 0; r < n; r += TOGETHER) {
        copy_async_wait<STAGES - 1>();
        pack<bf16> x[TOGETHER][PACKS];
        float rstd[TOGETHER];
#pragma unroll
        for (int p = 0; p < TOGETHER; p++)
            row_take(g, x[p], ring + (r + p) % (STAGES * TOGETHER) * row_packs, row0 + r + p);
        rows_ask(g, ring, row_packs, row0, r + STAGES * TOGETHER, n); /* in the places of these, which are read */
#pragma unroll
        for (int p = 0; p < TOGETHER; p++) {
            rstd[p] = 0;
#pragma unroll
            for (int k = 0; k < PACKS; k++)
#pragma unroll
                for (int e = 0; e < N; e++)
                    rstd[p] = fmaf(x[p][k].v[e], x[p][k].v[e], rstd[p]); /* zeros past the end */
        }
        rows_sum(rstd, sums[r / TOGETHER & 1]);
#pragma unroll
        for (int p = 0; p < TOGETHER; p++) rstd[p] = 1.0f / sqrtf(rstd[p] / (float)g.C + g.eps);
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            int i = pack_at(k);
            pack<bf16> gamma = pack_widen<bf16>(gains[k]), y;
            if (i >= g.C) continue;
#pragma unroll
            for (int p = 0; p < TOGETHER; p++) {
#pragma unroll
                for (int e = 0; e < N; e++) y.v[e] = x[p][k].v[e] * rstd[p] * (gamma.v[e] + g.offset);
                uint4 rounded = pack_narrow<bf16>(y);
                most = absmax_words(most, rounded);
                uint2 word = e4m3_pack(rounded, factor);
                if (g.q) *(uint2 *)(g.q + (row0 + r + p) * g.C + i) = word;
                *(uint2 *)(tile + (r + p) * g.C + i) = word;
            }
        }
        if (threadIdx.x == 0)
            for (int p = 0; p < TOGETHER; p++) g.rstd[row0 + r + p] = rstd[p];
    }
    copy_async_wait<0>();
    __syncthreads();
    if (g.t) tile_store(g, (const uint32_t *)tile, row0);
    __syncthreads(); /* the next rows take their place */
    return most;
}

/* AGAIN: where the guess was not the scale, with a what was summed. Else with the guess, or the scale of a largest number that is given. */
template <bool AGAIN> static __global__ void __launch_bounds__(THREADS_MOST) rmsnorm8_kernel(launch_rmsnorm8_args g) {
    extern __shared__ uint4 memory[];
    __shared__ float sums[2][TOGETHER][WARP];
    __shared__ uint32_t mosts[WARP];
    float factor;
    if (AGAIN || g.scale.amax) {
        fp8_scale s = guess_scale(g.scale);
        if (AGAIN && guess_is(g.scale, s)) return;
        factor = s.factor;
    } else {
        factor = guess_factor(g.scale);
    }
    uint4 gains[PACKS];
#pragma unroll
    for (int k = 0; k < PACKS; k++) gains[k] = raw_load<true>((const bf16 *)g.gamma + pack_at(k), g.C - pack_at(k));
    uint32_t most = 0;
    for (int64_t row0 = (int64_t)blockIdx.x * ROWS; row0 < g.n_rows; row0 += (int64_t)gridDim.x * ROWS)
        most = rows_run(g, memory, gains, sums, row0, factor, most);
    if (!AGAIN && g.scale.largest) absmax_give(g.scale.largest, absmax_of_words(most), mosts);
}

void launch_rmsnorm8(cudaStream_t s, const launch_rmsnorm8_args *a) {
    const norm_shape shape = norm_shape_of(a->C / pack<bf16>::N);
    int threads = shape.threads; /* per_thread is 1 or 2 */
    size_t n_bytes = (size_t)(ROWS * a->C) + (size_t)STAGES * TOGETHER * (a->b ? 2 : 1) * PACKS * (size_t)threads * 16;
    int64_t n_blocks = divide_up(a->n_rows, (int64_t)ROWS);
    absmax_clear(s, a->scale.largest);
    launch_kernel(rmsnorm8_kernel<false>, n_blocks, threads, n_bytes, s, *a);
    if (a->scale.largest) {
        launch_rmsnorm8_args again = *a;
        if (a->b) again.a = a->s, again.b = NULL, again.s = NULL;
        launch_kernel(rmsnorm8_kernel<true>, a->scale.guess ? min(n_blocks, (int64_t)AGAIN_BLOCKS) : n_blocks, threads,
                      n_bytes, s, again);
    }
    guess_settle(s, &a->scale);
}
