/* fp8.cu - the largest number of a bf16 tensor, and the tensor in e4m3, as it lies and turned, in one pass over it.
 *
 * A block takes a tile of 128 x 128 numbers. A thread loads four rows of 16 numbers: eight loads of 16 bytes are under way
 * before the first is used. Rounded, its four words of 4 x 4 bytes are turned in registers, and the words of a column go to
 * shared memory side by side, so that q and t are both written 16 bytes at a time, in lines of 128.
 * Where the largest number is not given, the scale is guessed and checked (guess.cuh). Tiles go from the last rows to the first: what was
 * written last may still be in L2. Rows that are to be normed before are, as norm.cu does it, rounded to bf16 as it writes them.
 * Tensors whose sides are no multiples of 16 take a kernel that goes byte by byte: small tests. */
#include "backend/cuda/launch_fp8.h"

#include "backend/cuda/e4m3.cuh"
#include "backend/cuda/guess.cuh"

/* ---- the largest number -------------------------------------------------------------------------------------------- */

enum { ABSMAX_THREADS = 512, ABSMAX_PACKS = 4, ABSMAX_BLOCKS_MOST = 2048 };

template <bool VECTOR>
static __global__ void __launch_bounds__(ABSMAX_THREADS) absmax_kernel(float *amax, const bf16 *x, int64_t n) {
    enum { N = pack<bf16>::N };
    __shared__ uint32_t shared[WARP];
    uint32_t most = 0;
    const int64_t run = (int64_t)ABSMAX_PACKS * ABSMAX_THREADS * N;
    for (int64_t first = blockIdx.x * run + threadIdx.x * N; first < n; first += gridDim.x * run) {
        uint4 raw[ABSMAX_PACKS];
#pragma unroll
        for (int k = 0; k < ABSMAX_PACKS; k++) {
            int64_t i = first + (int64_t)k * ABSMAX_THREADS * N, left = n - i;
            raw[k] = VECTOR && left >= N ? raw_load<true>(x + i, left) : raw_load<false>(x + i, left);
        }
#pragma unroll
        for (int k = 0; k < ABSMAX_PACKS; k++) most = absmax_words(most, raw[k]); /* zeros behind the end */
    }
    absmax_give(amax, absmax_of_words(most), shared);
}

void launch_absmax(cudaStream_t s, float *amax, const void *x, int64_t n) {
    int64_t blocks = divide_up(n, (int64_t)ABSMAX_PACKS * ABSMAX_THREADS * pack<bf16>::N);
    absmax_clear(s, amax);
    by_flag(aligned(x, 16), [&](auto vector) {
        launch(absmax_kernel<decltype(vector)::value>, dim3((unsigned)min(blocks, (int64_t)ABSMAX_BLOCKS_MOST)),
               dim3(ABSMAX_THREADS), s, amax, (const bf16 *)x, n);
    });
}

/* ---- rounding ------------------------------------------------------------------------------------------------------ */

enum { AGAIN_BLOCKS = 2048, TILE = 128, TILE_THREADS = 256, COLUMNS = 16, ROWS = 4, ACROSS = TILE / COLUMNS };

using tile_of_bytes = turned_tile<COLUMNS>;

enum quantize_mode { GIVEN, TRY, AGAIN };

DEVICE uint4 normed(uint4 raw, uint4 gain, float rstd, float offset) {
    pack<bf16> x = pack_widen<bf16>(raw), gamma = pack_widen<bf16>(gain), y;
#pragma unroll
    for (int e = 0; e < pack<bf16>::N; e++) y.v[e] = x.v[e] * rstd * (gamma.v[e] + offset);
    return pack_narrow<bf16>(y);
}

template <bool Q, bool TURNED, quantize_mode MODE, bool NORMED>
static __global__ void __launch_bounds__(TILE_THREADS, NORMED ? 3 : 4) quantize_kernel(launch_quantize_args g) {
    __shared__ __align__(16) uint32_t columns[TURNED ? tile_of_bytes::WORDS : 4];
    __shared__ uint32_t mosts[WARP];
    uint32_t most = 0;
    float factor;
    if (MODE == TRY) {
        factor = guess_factor(g.scale);
    } else {
        const fp8_scale scale = guess_scale(g.scale);
        if (MODE == AGAIN && guess_is(g.scale, scale)) return;
        if (MODE == GIVEN && g.scale.scale && blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0)
            *g.scale.scale = scale.scale;
        factor = scale.factor;
    }
    int across = threadIdx.x % ACROSS, down = threadIdx.x / ACROSS; /* which 16 columns, which 4 rows */
    int64_t column0 = (int64_t)blockIdx.x * TILE, column = column0 + across * COLUMNS;
    uint4 gains[2];
#pragma unroll
    for (int h = 0; NORMED && h < 2; h++)
        gains[h] = raw_load<true>((const bf16 *)g.gamma + column + h * pack<bf16>::N, g.n_columns - column);
    for (int64_t tile = (g.n_rows - 1) / TILE - blockIdx.y; tile >= 0; tile -= gridDim.y) {
        int64_t row0 = tile * TILE,
                row = row0 + down * ROWS; /* sides are multiples of 16: a thread has all of its numbers or none */
        bool inside = column < g.n_columns && row < g.n_rows;
        uint4 raw[ROWS][2];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const bf16 *from = (const bf16 *)g.x + (row + r) * g.n_columns + column + h * pack<bf16>::N;
                raw[r][h] = inside ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
            }
        uint32_t word[ROWS][4];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float rstd = NORMED && inside ? g.rstd[row + r] : 0;
#pragma unroll
            for (int h = 0; NORMED && h < 2; h++) raw[r][h] = normed(raw[r][h], gains[h], rstd, g.offset);
            if (MODE == TRY) most = absmax_words(absmax_words(most, raw[r][0]), raw[r][1]);
            uint2 low = e4m3_pack(raw[r][0], factor), high = e4m3_pack(raw[r][1], factor);
            word[r][0] = low.x, word[r][1] = low.y, word[r][2] = high.x, word[r][3] = high.y;
            if (Q && inside)
                *(uint4 *)(g.q + (row + r) * g.n_columns + column) = make_uint4(low.x, low.y, high.x, high.y);
        }
        if constexpr (TURNED) {
            tile_of_bytes::put(columns, word);
            __syncthreads();
            tile_of_bytes::each(columns, [&](int c, int r, const uint4 *bytes) {
                int64_t to = row0 + r;
                if (column0 + c < g.n_columns && to < g.n_rows)
                    *(uint4 *)(g.t + (column0 + c) * g.n_rows + to) = *bytes;
            });
            __syncthreads(); /* the next tile takes their place */
        }
    }
    if (MODE == TRY) absmax_give(g.scale.largest, absmax_of_words(most), mosts);
}

static __global__ void __launch_bounds__(TILE_THREADS) quantize_any_kernel(launch_quantize_args g) {
    const fp8_scale scale = guess_scale(g.scale);
    int64_t i = (int64_t)blockIdx.x * TILE_THREADS + threadIdx.x;
    if (i == 0 && g.scale.scale) *g.scale.scale = scale.scale;
    if (i >= g.n_rows * g.n_columns) return;
    uint8_t e = (uint8_t)e4m3_pair(widen(((const bf16 *)g.x)[i]) * scale.factor, 0.0f);
    if (g.q) g.q[i] = e;
    if (g.t) g.t[i % g.n_columns * g.n_rows + i / g.n_columns] = e;
}

template <quantize_mode MODE, bool NORMED = false>
static void launch_mode(cudaStream_t s, const launch_quantize_args *a, dim3 grid) {
    if (!a->t) launch(quantize_kernel<true, false, MODE, NORMED>, grid, dim3(TILE_THREADS), s, *a);
    else if (!a->q) launch(quantize_kernel<false, true, MODE, NORMED>, grid, dim3(TILE_THREADS), s, *a);
    else launch(quantize_kernel<true, true, MODE, NORMED>, grid, dim3(TILE_THREADS), s, *a);
}

void launch_quantize(cudaStream_t s, const launch_quantize_args *a) {
    if (a->n_rows % 16 || a->n_columns % 16 || !aligned(a->x, 16) || !aligned(a->q, 16) || !aligned(a->t, 16)) {
        launch(quantize_any_kernel, dim3((unsigned)divide_up(a->n_rows * a->n_columns, TILE_THREADS)),
               dim3(TILE_THREADS), s, *a);
        return;
    }
    dim3 grid((unsigned)divide_up(a->n_columns, TILE), grid_rows(divide_up(a->n_rows, TILE)));
    if (a->scale.amax) {
        if (a->rstd) launch_mode<GIVEN, true>(s, a, grid);
        else launch_mode<GIVEN>(s, a, grid);
        return;
    }
    absmax_clear(s, a->scale.largest);
    launch_mode<TRY>(s, a, grid);
    unsigned few = (unsigned)divide_up((int64_t)AGAIN_BLOCKS, (int64_t)grid.x); /* blocks that mostly end at once */
    if (a->scale.guess && few < grid.y) grid.y = few;
    launch_mode<AGAIN>(s, a, grid);
    guess_settle(s, &a->scale);
}
