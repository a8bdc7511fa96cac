/* fp8_blocks.cu - a bf16 tensor in e4m3, as it lies and turned, with a scale for each of their blocks, in one pass over it.
 *
 * A block of threads takes a tile of 128 x 128 numbers, which has whole blocks of both results: no pass looks for largest numbers
 * before. A thread loads four rows of 16 numbers, eight loads of 16 bytes before the first is used. The largest of a row is found
 * by the eight threads that have it, that of a column in registers, then over the lanes of a warp that have it, then in shared
 * memory. Rounded for t, words of four rows are turned in registers and gathered in shared memory: t is written in lines of 128
 * bytes, as q is. */
#include "backend/cuda/launch_fp8.h"

#include "backend/cuda/absmax.cuh"
#include "backend/cuda/e4m3.cuh"
#include "program/fp8_scale.h"

enum { TILE = FP8_BLOCK, THREADS = 256, WARPS = THREADS / WARP, COLUMNS = 16, ROWS = 4, ACROSS = TILE / COLUMNS };
enum { PAIRS = TILE / 2, OWN_PAIRS = COLUMNS / 2 };

struct tile_memory {
    uint4 columns[turned_tile<COLUMNS>::WORDS / 4];
    uint32_t pairs[WARPS][PAIRS]; /* the largest of two columns each, of the rows of a warp */
    float factors[TILE];          /* of columns */
    uint32_t mosts[WARPS];        /* square blocks */
};

using tile_of_bytes = turned_tile<COLUMNS>;

DEVICE uint32_t pair_max(uint32_t a, uint32_t b) { return __vmaxu2(a, b); }

/* Factors of the four rows of a thread; those of a row also write its scale. */
DEVICE void row_scales(const launch_quantize_blocks_args &g, float (&factor)[ROWS], const uint4 (&raw)[ROWS][2],
                       int64_t row, int64_t column0) {
    float scales[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        uint32_t most = absmax_of_words(absmax_words(absmax_words(0, raw[r][0]), raw[r][1]));
#pragma unroll
        for (int step = 1; step < ACROSS; step *= 2) most = max(most, __shfl_xor_sync(0xffffffffu, most, step));
        fp8_scale s = fp8_scale_of(__uint_as_float(most), true);
        factor[r] = s.factor;
        scales[r] = s.scale;
    }
    if (g.q && threadIdx.x % ACROSS == 0)
        *(float4 *)(g.scale + column0 / TILE * g.n_rows + row) =
            make_float4(scales[0], scales[1], scales[2], scales[3]);
}

/* Factors of the tile's columns into shared memory, their scales into t_scale. All threads come along. */
DEVICE void column_scales(const launch_quantize_blocks_args &g, tile_memory *m, const uint4 (&raw)[ROWS][2],
                          int64_t row0, int64_t column0) {
    const uint32_t sizes = 0x7fff7fffu;
    uint32_t most[OWN_PAIRS];
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int w = 0; w < 4; w++) {
            uint32_t x = 0;
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const uint32_t words[4] = {raw[r][h].x, raw[r][h].y, raw[r][h].z, raw[r][h].w};
                x = pair_max(x, words[w] & sizes);
            }
            x = pair_max(x, __shfl_xor_sync(0xffffffffu, x, 8)); /* the rows of a warp: four threads have a column */
            most[h * 4 + w] = pair_max(x, __shfl_xor_sync(0xffffffffu, x, 16));
        }
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll
    for (int i = 0; i < OWN_PAIRS; i++)
        if (lane < ACROSS) m->pairs[warp][lane * OWN_PAIRS + i] = most[i];
    __syncthreads();
    if (threadIdx.x < TILE) {
        int c = threadIdx.x;
        uint32_t x = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) x = pair_max(x, m->pairs[w][c / 2]);
        fp8_scale s = fp8_scale_of(__uint_as_float(c % 2 ? x & 0xffff0000u : x << 16), true);
        m->factors[c] = s.factor;
        if (g.t) g.t_scale[row0 / TILE * g.n_columns + column0 + c] = s.scale;
    }
    __syncthreads();
}

/* One factor for all of the tile, and its scale for q and t, with the ones behind rows of scales. All threads come along. */
DEVICE float square_scale(const launch_quantize_blocks_args &g, tile_memory *m, const uint4 (&raw)[ROWS][2],
                          int64_t row0, int64_t column0) {
    fp8_scale s = fp8_scale_of(__uint_as_float(absmax_of_block<WARPS>(m->mosts, raw)), true);
    if (threadIdx.x == 0) {
        int64_t down = g.n_rows / TILE, across = g.n_columns / TILE, i = row0 / TILE, j = column0 / TILE;
        int64_t row = (across + 3) / 4 * 4, t_row = (down + 3) / 4 * 4;
        if (g.q) g.scale[i * row + j] = s.scale;
        if (g.t) g.t_scale[j * t_row + i] = s.scale;
        for (int64_t p = across; g.q && j == 0 && p < row; p++) g.scale[i * row + p] = 1;
        for (int64_t p = down; g.t && i == 0 && p < t_row; p++) g.t_scale[j * t_row + p] = 1;
    }
    return s.factor;
}

/* Sixteen numbers of a row as four words of e4m3, each times its column's factor. */
DEVICE void round_columns(uint32_t (&word)[4], const uint4 (&raw)[2], const float *factors) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        pack<bf16> p = pack_widen<bf16>(raw[h]);
#pragma unroll
        for (int e = 0; e < 8; e++) p.v[e] *= factors[h * 8 + e];
        word[h * 2] = e4m3_pair(p.v[0], p.v[1]) | e4m3_pair(p.v[2], p.v[3]) << 16;
        word[h * 2 + 1] = e4m3_pair(p.v[4], p.v[5]) | e4m3_pair(p.v[6], p.v[7]) << 16;
    }
}

/* The tile of t from the words of each thread. All threads come along. */
DEVICE void store_turned(const launch_quantize_blocks_args &g, tile_memory *m, const uint32_t (&word)[ROWS][4],
                         int64_t row0, int64_t column0) {
    uint32_t *columns = (uint32_t *)m->columns;
    tile_of_bytes::put(columns, word);
    __syncthreads();
    tile_of_bytes::each(columns, [&](int c, int r, const uint4 *bytes) {
        *(uint4 *)(g.t + (column0 + c) * g.n_rows + row0 + r) = *bytes;
    });
}

template <bool SQUARE>
static __global__ void __launch_bounds__(THREADS) quantize_blocks_kernel(launch_quantize_blocks_args g) {
    __shared__ __align__(16) tile_memory m;
    int across = threadIdx.x % ACROSS, down = threadIdx.x / ACROSS; /* which 16 columns, which 4 rows */
    int64_t column0 = (int64_t)blockIdx.x * TILE, column = column0 + across * COLUMNS;
    for (int64_t row0 = (int64_t)blockIdx.y * TILE; row0 < g.n_rows; row0 += (int64_t)gridDim.y * TILE) {
        int64_t row = row0 + down * ROWS;
        uint4 raw[ROWS][2];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                raw[r][h] = *(const uint4 *)((const bf16 *)g.x + (row + r) * g.n_columns + column + h * pack<bf16>::N);
        float factor[ROWS];
        uint32_t word[ROWS][4];
        if constexpr (SQUARE) {
            float all = square_scale(g, &m, raw, row0, column0);
            for (int r = 0; r < ROWS; r++) factor[r] = all;
        } else {
            row_scales(g, factor, raw, row, column0);
            if (g.t) column_scales(g, &m, raw, row0, column0);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            uint2 low = e4m3_pack(raw[r][0], factor[r]), high = e4m3_pack(raw[r][1], factor[r]);
            word[r][0] = low.x, word[r][1] = low.y, word[r][2] = high.x, word[r][3] = high.y;
            if (g.q) *(uint4 *)(g.q + (row + r) * g.n_columns + column) = make_uint4(low.x, low.y, high.x, high.y);
            if (!SQUARE && g.t) round_columns(word[r], raw[r], m.factors + across * COLUMNS);
        }
        if (g.t) store_turned(g, &m, word, row0, column0);
        __syncthreads(); /* the next tile takes their place */
    }
}

void launch_quantize_blocks(cudaStream_t s, const launch_quantize_blocks_args *a) {
    dim3 grid((unsigned)(a->n_columns / TILE), grid_rows(a->n_rows / TILE));
    if (a->square) launch(quantize_blocks_kernel<true>, grid, dim3(THREADS), s, *a);
    else launch(quantize_blocks_kernel<false>, grid, dim3(THREADS), s, *a);
}
