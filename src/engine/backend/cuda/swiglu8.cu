/* swiglu8.cu - SwiGLU, or its gradient, as e4m3 numbers and their transpose, without writing the 16-bit numbers.
 *
 * The scale is guessed and checked (guess.cuh). Without a guess, try only finds the largest number.
 *
 * A block takes tiles of 128 rows x 64 columns of F. A thread has four rows of 8 numbers and asks for all operands before it uses
 * the first. Every number is rounded to bf16 as SWIGLU and SWIGLU_BWD write it, then to e4m3 as QUANTIZE does: the bits are
 * those of the two ops. Words of four rows are turned in registers and gathered in shared memory, so that t is written
 * in lines of 128 bytes. */
#include "backend/cuda/launch_fp8.h"

#include "backend/cuda/e4m3.cuh"
#include "backend/cuda/gated.cuh"
#include "backend/cuda/guess.cuh"

enum { TILE_ROWS = 128, TILE_COLUMNS = 64, THREADS = 256, COLUMNS = 8, ROWS = 4, ACROSS = TILE_COLUMNS / COLUMNS };
enum { COLUMN_WORDS = TILE_ROWS / 4, AGAIN_BLOCKS = 2048, BLOCKS = 4 /* on a multiprocessor */ };

/* Where four words of a column begin, by their number: threads that store side by side across columns, and those that load
 * a column, both find all banks. */
DEVICE int group_at(int column, int group) { return column * COLUMN_WORDS + 4 * (group ^ (column / COLUMNS)); }

/* The tile of one half of the results: columns from `first` on, of n_rows rows of `width`. All threads come along. */
DEVICE void store_tile(const launch_swiglu8_args &g, uint32_t *columns, const uint2 (&word)[ROWS], int64_t row0,
                       int64_t first, int64_t first_end, int64_t width, bool inside) {
    int across = threadIdx.x % ACROSS, down = threadIdx.x / ACROSS;
    int64_t row = row0 + down * ROWS, column = first + across * COLUMNS;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        if (g.q && inside) *(uint2 *)(g.q + (row + r) * width + column) = word[r];
    if (!g.t) return;
#pragma unroll
    for (int w = 0; w < 2; w++) {
        uint32_t turned[4];
        if (w == 0) turn(turned, word[0].x, word[1].x, word[2].x, word[3].x);
        else turn(turned, word[0].y, word[1].y, word[2].y, word[3].y);
#pragma unroll
        for (int e = 0; e < 4; e++) columns[group_at(across * COLUMNS + w * 4 + e, down / 4) + down % 4] = turned[e];
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < TILE_COLUMNS * (TILE_ROWS / 16) / THREADS; k++) {
        int i = k * THREADS + threadIdx.x, c = i / (TILE_ROWS / 16), group = i % (TILE_ROWS / 16);
        int64_t to = row0 + group * 16;
        if (first + c < first_end && to < g.n_rows)
            *(uint4 *)(g.t + (first + c) * g.n_rows + to) = *(const uint4 *)(columns + group_at(c, group));
    }
    __syncthreads(); /* the next tile takes their place */
}

/* One tile: rounds with `factor` where it stores, and returns the largest numbers (absmax_words). */
template <bool BACKWARD, bool GELU, bool STORES>
DEVICE uint32_t tile(const launch_swiglu8_args &g, uint32_t *columns, int64_t row0, int64_t column0, float factor,
                     uint32_t most) {
    typedef pack<bf16> numbers;
    int64_t row = row0 + threadIdx.x / ACROSS * ROWS, column = column0 + threadIdx.x % ACROSS * COLUMNS, F = g.F;
    bool inside = row < g.n_rows && column < F; /* multiples of 16: a thread has all of its numbers or none */
    const bf16 *gu = (const bf16 *)g.gu, *dy = (const bf16 *)g.dy;
    uint4 gate[ROWS], up[ROWS], d[BACKWARD ? ROWS : 1];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        gate[r] = raw_load<true>(gu + (row + r) * 2 * F + column, inside ? COLUMNS : 0);
        up[r] = raw_load<true>(gu + (row + r) * 2 * F + F + column, inside ? COLUMNS : 0);
        if (BACKWARD) d[r] = raw_load<true>(dy + (row + r) * F + column, inside ? COLUMNS : 0);
    }
    uint2 first[ROWS], second[BACKWARD ? ROWS : 1];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        numbers a = pack_widen<bf16>(gate[r]), b = pack_widen<bf16>(up[r]), e, da, db;
        if (BACKWARD) e = pack_widen<bf16>(d[r]);
#pragma unroll
        for (int i = 0; i < numbers::N; i++) {
            if (BACKWARD) gated_gradient<bf16>(&da.v[i], &db.v[i], a.v[i], b.v[i], e.v[i], GELU);
            else da.v[i] = gated<bf16>(a.v[i], b.v[i], GELU);
        }
        uint4 rounded = pack_narrow<bf16>(da);
        most = absmax_words(most, rounded); /* zeros outside */
        if (STORES) first[r] = e4m3_pack(rounded, factor);
        if (BACKWARD) {
            rounded = pack_narrow<bf16>(db);
            most = absmax_words(most, rounded);
            if (STORES) second[r] = e4m3_pack(rounded, factor);
        }
    }
    if constexpr (STORES) {
        int64_t width = BACKWARD ? 2 * F : F;
        store_tile(g, columns, first, row0, column0, F, width, inside);
        if constexpr (BACKWARD) store_tile(g, columns, second, row0, F + column0, 2 * F, width, inside);
    }
    return most;
}

template <bool BACKWARD, bool GELU, bool STORES>
static __global__ void __launch_bounds__(THREADS, BLOCKS) try_kernel(launch_swiglu8_args g) {
    __shared__ __align__(16) uint32_t columns[STORES ? TILE_COLUMNS * COLUMN_WORDS : 4];
    __shared__ uint32_t mosts[WARP];
    uint32_t most = 0;
    float factor = guess_factor(g.scale);
    for (int64_t row0 = (int64_t)blockIdx.y * TILE_ROWS; row0 < g.n_rows; row0 += (int64_t)gridDim.y * TILE_ROWS)
        most = tile<BACKWARD, GELU, STORES>(g, columns, row0, (int64_t)blockIdx.x * TILE_COLUMNS, factor, most);
    absmax_give(g.scale.largest, absmax_of_words(most), mosts);
}

template <bool BACKWARD, bool GELU>
static __global__ void __launch_bounds__(THREADS, BLOCKS) again_kernel(launch_swiglu8_args g) {
    __shared__ __align__(16) uint32_t columns[TILE_COLUMNS * COLUMN_WORDS];
    fp8_scale s = guess_scale(g.scale);
    if (guess_is(g.scale, s)) return;
    for (int64_t row0 = (int64_t)blockIdx.y * TILE_ROWS; row0 < g.n_rows; row0 += (int64_t)gridDim.y * TILE_ROWS)
        tile<BACKWARD, GELU, true>(g, columns, row0, (int64_t)blockIdx.x * TILE_COLUMNS, s.factor, 0);
}

template <bool BACKWARD, bool GELU> static void launch_all(cudaStream_t s, const launch_swiglu8_args *a) {
    unsigned across = (unsigned)divide_up(a->F, TILE_COLUMNS), down = grid_rows(divide_up(a->n_rows, TILE_ROWS));
    unsigned few = (unsigned)divide_up((int64_t)AGAIN_BLOCKS, (int64_t)across); /* blocks that mostly end at once */
    if (a->scale.largest) {
        absmax_clear(s, a->scale.largest);
        if (a->scale.guess) launch(try_kernel<BACKWARD, GELU, true>, dim3(across, down), dim3(THREADS), s, *a);
        else launch(try_kernel<BACKWARD, GELU, false>, dim3(across, down), dim3(THREADS), s, *a);
    }
    launch(again_kernel<BACKWARD, GELU>, dim3(across, a->scale.guess && few < down ? few : down), dim3(THREADS), s, *a);
    guess_settle(s, &a->scale);
}

void launch_swiglu8(cudaStream_t s, const launch_swiglu8_args *a) {
    by_flag(a->dy != NULL, [&](auto backward) {
        by_flag(a->is_gelu, [&](auto gelu) { launch_all<decltype(backward)::value, decltype(gelu)::value>(s, a); });
    });
}
