#pragma once
/* attention_mma.cuh - products of tiles on tensor cores, one warp at a time, for attention.
 *
 * A tile is some rows of one head: D 16-bit elements, 16 bytes a chunk. In shared memory its chunks are swizzled: eight rows
 * that ldmatrix reads at one chunk column lie in eight different groups of banks, without padding.
 * Scores never touch memory: the accumulators of one product are, two by two, the left operand of the next. */
#include "backend/cuda/attention_device.cuh"
#include "backend/cuda/mma.cuh"
#include <type_traits>

namespace attention_mma {

enum { WARP = 32, MMA_ROWS = 16 };
constexpr float LOG2_E = 1.44269504088896341f;

template <int D> constexpr uint32_t tile_bytes(int n_rows) { return (uint32_t)n_rows * D * 2; }

/* Byte of a chunk in a tile. Rows begin at D / 8 chunks modulo the 8 of a bank line: what that leaves equal, the exclusive
 * or spreads. It stays inside the row because D / 8 is a multiple of the power of two it works on. */
template <int D> __device__ inline uint32_t tile_at(int row, int chunk) {
    static_assert(D % 16 == 0, "a head is whole fragments");
    int spread = D % 64 == 0 ? row & 7 : D % 32 == 0 ? row >> 1 & 3 : row >> 2 & 1;
    return (uint32_t)(row * D * 2 + ((chunk ^ spread) << 4));
}

/* Starts the copy of N_ROWS rows; those from n_rows on become zeros. */
template <typename E, int D, int N_ROWS, int N_THREADS>
__device__ void tile_load(uint32_t tile, const E *from, int stride, int n_rows) {
    constexpr int CHUNKS = D / 8;
#pragma unroll
    for (int i = (int)threadIdx.x; i < N_ROWS * CHUNKS; i += N_THREADS) {
        int row = i / CHUNKS, chunk = i % CHUNKS;
        bool there = row < n_rows;
        copy_async_16(tile + tile_at<D>(row, chunk), from + (there ? row * stride : 0) + chunk * 8, there);
    }
}

/* The left operand: 16 rows of a tile from `row`, columns 16 step. */
template <int D> __device__ inline void fragment_rows(uint32_t (&a)[4], uint32_t tile, int row, int step, int lane) {
    load_matrices(a, tile + tile_at<D>(row + lane % 16, 2 * step + lane / 16));
}

/* acc (16 M, N) = A B^T: A the rows of a tile from `row`, B the first N rows of another. */
template <typename E, int D, int M, int N>
__device__ void product_of_rows(float (&acc)[M][N / 8][4], uint32_t a_tile, int row, uint32_t b_tile, int lane) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) acc[m][n][i] = 0;
#pragma unroll
    for (int step = 0; step < D / 16; step++) {
        uint32_t a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) fragment_rows<D>(a[m], a_tile, row + m * MMA_ROWS, step, lane);
#pragma unroll
        for (int n = 0; n < N / 16; n++) {
            uint32_t b[4];
            load_matrices(b, b_tile + tile_at<D>(n * 16 + lane % 8 + lane / 16 * 8, 2 * step + lane / 8 % 2));
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma<E>(acc[m][2 * n], a[m], b[0], b[1]);
                mma<E>(acc[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/* Columns 16 step of 16 rows of accumulators, rounded: a left operand. */
template <typename E, int N> __device__ inline void pack_rows(uint32_t (&a)[4], const float (&w)[N][4], int step) {
    a[0] = pack<E>(w[2 * step][0], w[2 * step][1]);
    a[1] = pack<E>(w[2 * step][2], w[2 * step][3]);
    a[2] = pack<E>(w[2 * step + 1][0], w[2 * step + 1][1]);
    a[3] = pack<E>(w[2 * step + 1][2], w[2 * step + 1][3]);
}

/* sum (16 M, D) += W B: W (16 M, N) in accumulators, rounded here; B the first N rows of a tile. */
template <typename E, int D, int M, int N>
__device__ void product_with_rows(float (&sum)[M][D / 8][4], const float (&w)[M][N / 8][4], uint32_t b_tile, int lane) {
#pragma unroll
    for (int step = 0; step < N / 16; step++) {
        uint32_t a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) pack_rows<E>(a[m], w[m], step);
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            uint32_t b[4];
            load_matrices_transposed(b, b_tile + tile_at<D>(step * 16 + lane % 16, 2 * n + lane / 16));
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma<E>(sum[m][2 * n], a[m], b[0], b[1]);
                mma<E>(sum[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/* 16 M rows of sums, rounded, into a tile from `row` on, which only this warp still uses there. */
template <typename E, int D, int M>
__device__ void stage_sums(uint32_t tile, int row, const float (&sum)[M][D / 8][4], int lane) {
    __syncwarp();
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                store_shared(tile + tile_at<D>(row + m * MMA_ROWS + half * 8 + lane / 4, n) + lane % 4 * 4,
                             pack<E>(sum[m][n][2 * half], sum[m][n][2 * half + 1]));
    __syncwarp();
}

/* The same on to a tensor, in whole chunks: fragments would be written four bytes at a time. */
template <typename E, int D, int M>
__device__ void store_sums(E *to, int64_t stride, int n_rows, uint32_t tile, int row, const float (&sum)[M][D / 8][4],
                           int lane) {
    constexpr int CHUNKS = D / 8;
    stage_sums<E, D, M>(tile, row, sum, lane);
    for (int i = lane; i < M * MMA_ROWS * CHUNKS; i += WARP) {
        int r = row + i / CHUNKS, chunk = i % CHUNKS;
        if (r < n_rows) *(uint4 *)(to + r * stride + chunk * 8) = load_shared_16(tile + tile_at<D>(r, chunk));
    }
}

/* Over the four lanes that hold a row of accumulators. */
__device__ inline float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}
__device__ inline float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}

template <int M, int N, typename A> __device__ inline void cap_scores(const A &a, float (&s)[M][N / 8][4]) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) s[m][n][i] = cap_score(a, s[m][n][i]);
}

/* Keys right of the last or left of the first that a query sees, in a tile of N keys from k0. */
template <int M, int N>
__device__ inline void mask_scores(float (&s)[M][N / 8][4], int k0, const int (&last)[M][2], const int (&start)[M][2],
                                   int lane) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int key = k0 + n * 8 + lane % 4 * 2 + i % 2;
                if (key > last[m][i / 2] || key < start[m][i / 2]) s[m][n][i] = -INFINITY;
            }
}

/* The running softmax of one row of a warp's scores. Maxima are of raw scores: scale > 0. */
struct row_state {
    float max, sum; /* sum: of this lane's columns only, until the end */
};

/* Scores of row (m, half) -> weights 2^(factor (s - max)); returns what the sums of values so far must be multiplied by. */
template <int M, int N>
__device__ inline float softmax_row(float (&s)[M][N / 8][4], int m, int half, row_state &state, float factor) {
    float top = state.max;
#pragma unroll
    for (int n = 0; n < N / 8; n++) top = fmaxf(top, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
    top = quad_max(top);
    /* The decay is exactly 1 where the maximum stays, whatever else is in the tile. */
    const float from = anchor(top) * factor, decay = power_of_2((state.max - anchor(top)) * factor);
    float total = 0;
#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; i++) {
            s[m][n][i] = power_of_2(fmaf(s[m][n][i], factor, -from));
            total += s[m][n][i];
        }
    state.sum = fmaf(state.sum, decay, total);
    state.max = top;
    return decay;
}

template <int M, int D> __device__ inline void scale_row(float (&sum)[M][D / 8][4], int m, int half, float by) {
#pragma unroll
    for (int n = 0; n < D / 8; n++) {
        sum[m][n][2 * half] *= by;
        sum[m][n][2 * half + 1] *= by;
    }
}

/* ---- one step of a ring ------------------------------------------------------------------------------------------- */

/* Joins what the keys of other ranks gave: fp32 while more follow. */
template <typename E, int D, int M>
__device__ void ring_store(const launch_attention &a, const tile_task &task, const int (&query)[M][2],
                           float (&sum)[M][D / 8][4], const row_state (&state)[M][2], int lane) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float total = quad_sum(state[m][half].sum);
            const bool there = query[m][half] < a.T;
            const int64_t row = task.b * a.T + (there ? query[m][half] : 0);
            const int64_t at = (task.b * a.H + task.head) * a.T + (there ? query[m][half] : 0);
            const float own = total > 0 ? fmaf(state[m][half].max, a.scale, logf(total)) : -INFINITY;
            const float old = a.before ? a.lse_before[at] : -INFINITY, most = fmaxf(own, old), from = anchor(most);
            const float lse = most == -INFINITY ? most : from + logf(expf(own - from) + expf(old - from));
            const float own_share = total > 0 ? expf(own - anchor(lse)) / total : 0,
                        old_share = expf(old - anchor(lse));
            __syncwarp(); /* lse may lie on lse_before, which other lanes read */
            if (lane % 4 == 0 && there) a.lse[at] = lse;
            const int64_t first = (row * a.H + task.head) * D + lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                float2 y = {sum[m][n][2 * half] * own_share, sum[m][n][2 * half + 1] * own_share};
                if (a.before && there) {
                    const float2 b = *(const float2 *)(a.before + first + n * 8);
                    y.x = fmaf(b.x, old_share, y.x), y.y = fmaf(b.y, old_share, y.y);
                }
                if (!there) continue;
                if (a.more) *(float2 *)((float *)a.y + first + n * 8) = y;
                else *(uint32_t *)((E *)a.y + first + n * 8) = pack<E>(y.x, y.y);
            }
        }
}

/* 16 rows of sums to or on to fp32. */
template <int D>
__device__ void ring_sums(const launch_attention &a, float *to, int64_t stride, int n_rows, int row,
                          const float (&sum)[1][D / 8][4], int lane) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int r = row + half * 8 + lane / 4;
        if (r >= n_rows) continue;
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            float2 *at = (float2 *)(to + r * stride + n * 8 + lane % 4 * 2);
            float2 x = {sum[0][n][2 * half], sum[0][n][2 * half + 1]};
            if (a.adds) x.x += at->x, x.y += at->y;
            *at = x;
        }
    }
}

/* ------------------------------------------------------------------------------------------------------------------ */

/* The smallest and the largest of one number per thread, known to all threads; scratch holds two ints per warp. */
struct range {
    int least, most;
};
template <int N_THREADS> __device__ inline range range_of(range mine, int *scratch) {
    const int warp = (int)threadIdx.x / WARP;
    mine.least = __reduce_min_sync(0xffffffff, mine.least);
    mine.most = __reduce_max_sync(0xffffffff, mine.most);
    if (threadIdx.x % WARP == 0) {
        scratch[2 * warp] = mine.least;
        scratch[2 * warp + 1] = mine.most;
    }
    __syncthreads();
    for (int i = 0; i < N_THREADS / WARP; i++) {
        mine.least = min(mine.least, scratch[2 * i]);
        mine.most = max(mine.most, scratch[2 * i + 1]);
    }
    return mine;
}

/* Picks the instance of a launcher: run(E{}, D). Heads of other lengths do not come here. */
template <typename F> void by_head(launch_type type, int D, F run) {
    auto by_type = [&](auto length) {
        if (type == LAUNCH_BF16) run(__nv_bfloat16{}, length);
        else run(__half{}, length);
    };
    if (D == 64) by_type(std::integral_constant<int, 64>{});
    else if (D == 80) by_type(std::integral_constant<int, 80>{});
    else if (D == 96) by_type(std::integral_constant<int, 96>{});
    else by_type(std::integral_constant<int, 128>{});
}

} // namespace attention_mma
