/* rmsnorm8.cu - RMSNorm of rows, or of their sum with others, as e4m3 numbers and their transpose, without writing the 16-bit numbers.
 *
 * The scale is guessed and checked (guess.cuh). A block takes 32 rows and keeps them in shared memory as e4m3 numbers, until
 * their columns can be written in runs of 32 bytes. So few blocks go on a multiprocessor, and one has four groups of threads, which
 * take rows in turn. A row is summed by as many threads as norm.cu gives it, in that order, so that all numbers have the bits of
 * the ops alone. A thread asks for its packs of the next row before it computes this one; s may be a or b, because it alone
 * reads and writes them. */
#include "backend/cuda/launch_norm.h"

#include "backend/cuda/e4m3.cuh"
#include "backend/cuda/guess.cuh"
#include "backend/cuda/launch_kernel.cuh"

enum { ROWS = 32, GROUPS = 4, PACKS = 2, C_MOST = 4096, THREADS_MOST = C_MOST / 8 / PACKS };
enum { AGAIN_BLOCKS = 264 }; /* that mostly end at once */

struct norm_memory {
    float sums[2][GROUPS][THREADS_MOST / WARP];
    uint32_t mosts[GROUPS][WARP];
};

/* Where pack k of this thread begins in its row. */
DEVICE int pack_at(int k) { return (int)(threadIdx.x + k * blockDim.x) * pack<bf16>::N; }

/* This thread's packs of a row as they lie. */
struct row_packs {
    uint4 a[PACKS], b[PACKS];
};

DEVICE void row_load(const launch_rmsnorm8_args &g, row_packs *p, int64_t row) {
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        int64_t from = row * g.C + pack_at(k), left = g.C - pack_at(k);
        p->a[k] = raw_load<true>((const bf16 *)g.a + from, left);
        if (g.b) p->b[k] = raw_load<true>((const bf16 *)g.b + from, left);
    }
}

/* a, or a + b as it is stored to s. */
DEVICE void row_take(const launch_rmsnorm8_args &g, pack<bf16> (&x)[PACKS], const row_packs &p, int64_t row) {
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        x[k] = pack_widen<bf16>(p.a[k]);
        if (!g.b) continue;
        pack<bf16> b = pack_widen<bf16>(p.b[k]);
#pragma unroll
        for (int e = 0; e < pack<bf16>::N; e++) x[k].v[e] += b.v[e];
        uint4 rounded = pack_narrow<bf16>(x[k]);
        raw_store<true>((bf16 *)g.s + row * g.C + pack_at(k), rounded, g.C - pack_at(k));
        x[k] = pack_widen<bf16>(rounded);
    }
}

/* block_sum over the threads of a group. */
DEVICE float group_sum(float x, float *shared) {
    x = lanes_sum(x);
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = x;
    asm volatile("bar.sync %0, %1;" ::"r"(threadIdx.y + 1), "r"(blockDim.x) : "memory");
    return lanes_sum(threadIdx.x % WARP < blockDim.x / WARP ? shared[threadIdx.x % WARP] : 0.0f);
}

/* Columns of the tile to t: a thread has four of them at a time. */
DEVICE void tile_store(const launch_rmsnorm8_args &g, const uint32_t *tile, int64_t row0) {
    int width = (int)(g.C / 4);
    for (int c = threadIdx.y * blockDim.x + threadIdx.x; c < width; c += blockDim.x * GROUPS) {
#pragma unroll
        for (int h = 0; h < ROWS / 16; h++) {
            if (row0 + h * 16 >= g.n_rows) break;
            uint32_t turned[4][4];
#pragma unroll
            for (int r = 0; r < 4; r++) {
                const uint32_t *from = tile + (h * 16 + r * 4) * width + c;
                turn(turned[r], from[0], from[width], from[2 * width], from[3 * width]);
            }
#pragma unroll
            for (int e = 0; e < 4; e++)
                *(uint4 *)(g.t + ((int64_t)c * 4 + e) * g.n_rows + row0 + h * 16) =
                    make_uint4(turned[0][e], turned[1][e], turned[2][e], turned[3][e]);
        }
    }
}

/* 32 rows from row0 on. Returns the largest numbers (absmax_words). All threads come along. */
DEVICE uint32_t rows_run(const launch_rmsnorm8_args &g, uint8_t *tile, norm_memory *m, const uint4 (&gains)[PACKS],
                         int64_t row0, float factor, uint32_t most) {
    enum { N = pack<bf16>::N };
    int n = (int)min((int64_t)ROWS, g.n_rows - row0); /* a multiple of 16 */
    row_packs next;
    row_load(g, &next, row0 + threadIdx.y);
    for (int r = threadIdx.y; r < n; r += GROUPS) {
        pack<bf16> x[PACKS];
        row_take(g, x, next, row0 + r);
        if (r + GROUPS < n) row_load(g, &next, row0 + r + GROUPS);
        float square = 0;
#pragma unroll
        for (int k = 0; k < PACKS; k++)
#pragma unroll
            for (int e = 0; e < N; e++) square = fmaf(x[k].v[e], x[k].v[e], square); /* zeros past the end */
        float sum = group_sum(square, m->sums[r / GROUPS & 1][threadIdx.y]);
        float rstd = 1.0f / sqrtf(sum / (float)g.C + g.eps);
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            int i = pack_at(k);
            pack<bf16> gamma = pack_widen<bf16>(gains[k]), y;
            if (i >= g.C) continue;
#pragma unroll
            for (int e = 0; e < N; e++) y.v[e] = x[k].v[e] * rstd * (gamma.v[e] + g.offset);
            uint4 rounded = pack_narrow<bf16>(y);
            most = absmax_words(most, rounded);
            uint2 word = e4m3_pack(rounded, factor);
            if (g.q) *(uint2 *)(g.q + (row0 + r) * g.C + i) = word;
            *(uint2 *)(tile + r * g.C + i) = word;
        }
        if (threadIdx.x == 0) g.rstd[row0 + r] = rstd;
    }
    __syncthreads();
    if (g.t) tile_store(g, (const uint32_t *)tile, row0);
    __syncthreads(); /* the next rows take their place */
    return most;
}

/* AGAIN: where the guess was not the scale, with a what was summed. Else with the guess, or the scale of a largest number that is given. */
template <bool AGAIN>
static __global__ void __launch_bounds__(THREADS_MOST *GROUPS) rmsnorm8_kernel(launch_rmsnorm8_args g) {
    extern __shared__ uint4 tile[];
    __shared__ norm_memory m;
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
        most = rows_run(g, (uint8_t *)tile, &m, gains, row0, factor, most);
    if (!AGAIN && g.scale.largest) absmax_give(g.scale.largest, absmax_of_words(most), m.mosts[threadIdx.y]);
}

void launch_rmsnorm8(cudaStream_t s, const launch_rmsnorm8_args *a) {
    const norm_shape shape = norm_shape_of(a->C / pack<bf16>::N); /* per_thread is 1 or 2 */
    dim3 threads((unsigned)shape.threads, GROUPS);
    int64_t n_blocks = divide_up(a->n_rows, (int64_t)ROWS);
    absmax_clear(s, a->scale.largest);
    launch_kernel(rmsnorm8_kernel<false>, n_blocks, threads, (size_t)(ROWS * a->C), s, *a);
    if (a->scale.largest) {
        launch_rmsnorm8_args again = *a;
        if (a->b) again.a = a->s, again.b = NULL, again.s = NULL;
        int64_t few = a->scale.guess ? min(n_blocks, (int64_t)AGAIN_BLOCKS) : n_blocks;
        launch_kernel(rmsnorm8_kernel<true>, few, threads, (size_t)(ROWS * a->C), s, again);
    }
    guess_settle(s, &a->scale);
}
