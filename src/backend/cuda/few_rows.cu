/* few_rows.cu - y = x w^T (+ bias) for few rows of x, as decoding has them: as fast as w can be read.
 *
 * A block takes 64 rows of w and a part of k, in boxes that the TMA unit fetches several steps ahead; the first of them are
 * under way before the kernels in front are done (chain.cuh), since parameters stand already. w is the left operand of the
 * products, so that a few rows of x waste little. Blocks of a cluster share k, and each adds some of the sums of all, in
 * the order of k. How k is cut follows from n and k alone, and no sum knows of other rows: a row has the same bits beside
 * any others. Beyond 64 rows cuBLASLt is faster: there x, which every block reads, is larger than its part of w.
 *
 * A kernel more costs a decode step as much as reading some megabytes of weights, so that the gate behind a product is done in it: a
 * block then has 32 rows of both halves of w. */
#include "backend/cuda/attention_wgmma.cuh"
#include "backend/cuda/chain.cuh"
#include "backend/cuda/gated.cuh"
#include "backend/cuda/launch_gemm.h"
#include "backend/cuda/tensor_map.h"

namespace {

enum { WARP = 32, GROUP = 128, COLUMNS = 64, STEP = 64, PARTS_MOST = 8 };
enum { BLOCKS_ENOUGH = 396, BLOCKS_PER_MULTIPROCESSOR = 3 }; /* of a GPU with 132 multiprocessors */
enum { RING_BYTES = 73 * 1024 };                             /* as many steps ahead as three blocks have room for */
constexpr uint32_t W_BYTES = COLUMNS * STEP * 2;

/* Warp groups that consume: two share many rows. */
template <int ROWS> struct threads_of {
    enum {
        GROUPS = ROWS >= 32 ? 2 : 1,
        CONSUMERS = GROUPS * GROUP,
        THREADS = CONSUMERS + WARP,
        GROUP_ROWS = ROWS / GROUPS
    };
};

template <int ROWS> struct ring {
    static constexpr uint32_t X_BYTES = ROWS * STEP * 2, STEP_BYTES = W_BYTES + X_BYTES;
    static constexpr int STAGES = (int)(RING_BYTES / STEP_BYTES);
};

/* What a block of n steps needs of it: short ones leave room for the kernels behind them. */
template <typename R> size_t shared_bytes_of(int64_t n_steps) {
    const size_t n = (size_t)(n_steps < R::STAGES ? n_steps : R::STAGES);
    return n * R::STEP_BYTES + 1024; /* boxes begin at multiples of 1024 */
}

/* What is done beside the product. */
template <bool IS_GATED> struct beside {
    enum { GATED = IS_GATED, Y_COLUMNS = IS_GATED ? COLUMNS / 2 : COLUMNS /* of a block */ };
};

#if WGMMA_HERE

/* Steps [first, first + n) of k, by one thread. */
template <int ROWS, typename B>
__device__ void produce(const few_rows_product &q, const CUtensorMap *w, const CUtensorMap *x, int first, int n,
                        uint32_t tiles, uint32_t full, uint32_t empty) {
    using R = ring<ROWS>;
    const int column = (int)blockIdx.x * B::Y_COLUMNS;
    auto fetch_x = [&](int step, int stage) {
        fetch_box(tiles + stage * R::STEP_BYTES + W_BYTES, x, (first + step) * STEP, 0, 0, full + 8 * stage);
    };
    auto fetch_w = [&](int step, int stage) {
        const uint32_t tile = tiles + stage * R::STEP_BYTES;
        barrier_arrive_expecting(full + 8 * stage, R::STEP_BYTES);
        fetch_box_once(tile, w, (first + step) * STEP, column, 0, full + 8 * stage);
        if (B::GATED)
            fetch_box_once(tile + W_BYTES / 2, w, (first + step) * STEP, (int)q.n / 2 + column, 0, full + 8 * stage);
    };
    const int ahead = min(n, R::STAGES);
    for (int step = 0; step < ahead; step++) fetch_w(step, step);
    chain_wait();
    for (int step = 0; step < ahead; step++) fetch_x(step, step);
    ring_place<R::STAGES> place;
    for (int step = ahead; step < n; step++, place.advance()) {
        barrier_wait(empty + 8 * place.stage, place.parity);
        fetch_w(step, (int)place.stage);
        fetch_x(step, (int)place.stage);
    }
}

/* ---- the product ---------------------------------------------------------------------------------------------------- */

/* sum (64, ROWS) = w x^T over n steps, of the rows of this warp group. */
template <typename E, int BLOCK_ROWS, int ROWS = threads_of<BLOCK_ROWS>::GROUP_ROWS>
__device__ void consume(float (&sum)[ROWS / 8][4], int n, uint32_t tiles, uint32_t full, uint32_t empty) {
    using R = ring<BLOCK_ROWS>;
    const uint32_t own = (uint32_t)attention_wgmma::warp_group() * (ROWS * STEP * 2);
    ring_place<R::STAGES> place;
#pragma unroll
    for (int i = 0; i < ROWS / 8 * 4; i++) sum[i / 4][i % 4] = 0;
    uint32_t before = empty; /* the barrier of the step in front, whose product is still to end */
    for (int step = 0; step < n; step++, place.advance()) {
        barrier_wait(full + 8 * place.stage, place.parity);
        const uint32_t w = tiles + place.stage * R::STEP_BYTES, x = w + W_BYTES + own;
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < STEP / 16; k++)
            wgmma<E, ROWS>::template shared<0, 0>(sum, attention_wgmma::operand(w + k * 32, 0),
                                                  attention_wgmma::operand(x + k * 32, 0), 1);
        wgmma_commit();
        wgmma_wait<1>();
        if (step > 0 && threadIdx.x % WARP == 0) barrier_arrive(before);
        before = empty + 8 * place.stage;
    }
    wgmma_wait<0>();
    wgmma_settle(sum);
}

/* Four neighbours of a row of sums, over all parts of k in order. */
__device__ inline void total_of(float (&out)[4], uint32_t address, int n_parts) {
    float4 parts[PARTS_MOST], total = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int p = 0; p < PARTS_MOST; p++) /* asked for at once */
        parts[p] = p < n_parts ? cluster_load4(cluster_address(address, (uint32_t)p)) : total;
#pragma unroll
    for (int p = 0; p < PARTS_MOST; p++) {
        total.x += parts[p].x, total.y += parts[p].y;
        total.z += parts[p].z, total.w += parts[p].w;
    }
    out[0] = total.x, out[1] = total.y, out[2] = total.z, out[3] = total.w;
}

/* Four neighbours of y that a thread makes. Their biases come from memory and are asked for before the sums are there. */
template <typename Y, typename B> struct quad_of_y {
    int row, c0; /* c0: the first column, in the block */
    int64_t column, at, left;
    Y bias[4], up_bias[4];

    __device__ void begin(const few_rows_product &q, int i) {
        const int64_t n = B::GATED ? q.n / 2 : q.n;
        row = i / B::Y_COLUMNS, c0 = i % B::Y_COLUMNS;
        column = (int64_t)blockIdx.x * B::Y_COLUMNS + c0;
        at = row * q.ldy + column;
        left = row < q.m ? n - column : 0;
#pragma unroll
        for (int c = 0; c < 4; c++) {
            if (c >= left) continue;
            if (q.bias) bias[c] = ((const Y *)q.bias)[column + c];
            if (q.bias && B::GATED) up_bias[c] = ((const Y *)q.bias)[n + column + c];
        }
    }
    __device__ void finish(const few_rows_product &q, uint32_t sums, int n_parts) const {
        float sum[4], up[4];
        total_of(sum, sums + (uint32_t)(row * COLUMNS + c0) * 4, n_parts);
        if (B::GATED) total_of(up, sums + (uint32_t)(row * COLUMNS + B::Y_COLUMNS + c0) * 4, n_parts);
#pragma unroll
        for (int c = 0; c < 4; c++) {
            if (c >= left) continue;
            Y y, other;
            round_to(&y, sum[c] * q.alpha + (q.bias ? (float)bias[c] : 0));
            if (B::GATED) {
                round_to(&other, up[c] * q.alpha + (q.bias ? (float)up_bias[c] : 0));
                round_to(&y, gated<Y>((float)y, (float)other, q.gelu));
            }
            ((Y *)q.y)[at + c] = y;
        }
    }
};

#endif

template <typename E, typename Y, int ROWS, typename B>
__global__ void __launch_bounds__(threads_of<ROWS>::THREADS, BLOCKS_PER_MULTIPROCESSOR)
    few_rows(const __grid_constant__ few_rows_product q, const __grid_constant__ CUtensorMap w,
             const __grid_constant__ CUtensorMap x) {
#if WGMMA_HERE
    using R = ring<ROWS>;
    using T = threads_of<ROWS>;
    extern __shared__ unsigned char memory[];
    __shared__ __align__(8) uint64_t barriers[2 * R::STAGES];
    const uint32_t full = shared_address(barriers), empty = full + 8 * R::STAGES;
    const uint32_t tiles = (shared_address(memory) + 1023) & ~1023u;
    const int rank = (int)cluster_rank(), n_parts = (int)cluster_size();
    const int n_steps = (int)((q.k + STEP - 1) / STEP);
    const int first = n_steps * rank / n_parts, n = n_steps * (rank + 1) / n_parts - first;

    chain_next();
    if (threadIdx.x == 0) {
        for (int i = 0; i < R::STAGES; i++) {
            barrier_init(full + 8 * i, 1);
            barrier_init(empty + 8 * i, T::CONSUMERS / WARP);
        }
        barriers_publish();
    }
    __syncthreads();
    const uint32_t sums = tiles; /* where the tiles were */
    if (threadIdx.x >= T::CONSUMERS) {
        if (threadIdx.x == T::CONSUMERS) produce<ROWS, B>(q, &w, &x, first, n, tiles, full, empty);
        else chain_wait();
        __syncwarp();
    } else {
        float sum[T::GROUP_ROWS / 8][4];
        const int lane = (int)threadIdx.x % WARP, column = (int)threadIdx.x % GROUP / WARP * 16 + lane / 4;
        const int row = (int)threadIdx.x / GROUP * T::GROUP_ROWS + lane % 4 * 2;
        chain_wait();
        consume<E, ROWS>(sum, n, tiles, full, empty);
        threads_meet(1, T::CONSUMERS); /* all have read the tiles */
#pragma unroll
        for (int i = 0; i < T::GROUP_ROWS / 8; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                store_shared(sums + (uint32_t)((row + i * 8 + e % 2) * COLUMNS + column + e / 2 * 8) * 4,
                             __float_as_uint(sum[i][e]));
    }
    quad_of_y<Y, B> quad;
    int i = 4 * ((int)threadIdx.x + rank * T::THREADS); /* this block's share of the sums of the cluster */
    quad.begin(q, i);
    cluster_sync_shared();
    while (quad.row < q.m) {
        quad.finish(q, sums, n_parts);
        quad.begin(q, i += 4 * T::THREADS * n_parts);
    }
    cluster_sync_shared(); /* until all have read what lies here */
#endif
}

/* By n and k alone. */
unsigned parts_of(const few_rows_product *q) {
    const int64_t blocks = (q->n + COLUMNS - 1) / COLUMNS, steps = (q->k + STEP - 1) / STEP;
    unsigned parts = 1;
    while (parts < PARTS_MOST && blocks * parts * 2 <= BLOCKS_ENOUGH && steps >= parts * 4) parts *= 2;
    return parts;
}

template <typename E, typename Y, int ROWS, typename B> void run(cudaStream_t s, const few_rows_product *q) {
    tensor_box w = {.data = q->w,
                    .columns = q->k,
                    .rows = q->n,
                    .sequences = 1,
                    .box_columns = STEP,
                    .box_rows = B::Y_COLUMNS,
                    .type = q->type};
    tensor_box x = w;
    x.data = q->x, x.rows = q->m, x.box_rows = ROWS;
    const int64_t columns = B::GATED ? q->n / 2 : q->n;
    const unsigned parts = parts_of(q), blocks = (unsigned)((columns + B::Y_COLUMNS - 1) / B::Y_COLUMNS);
    const int64_t n_steps = (q->k + STEP - 1) / STEP;
    const size_t shared_bytes = shared_bytes_of<ring<ROWS>>((n_steps + parts - 1) / parts);
    launch_chained(few_rows<E, Y, ROWS, B>, dim3(blocks, parts), dim3(threads_of<ROWS>::THREADS), shared_bytes, parts,
                   s, *q, tensor_map_make(&w), tensor_map_make(&x));
}

template <typename E, typename Y, typename B> void by_rows(cudaStream_t s, const few_rows_product *q) {
    if (q->m <= 8) run<E, Y, 8, B>(s, q);
    else if (q->m <= 16) run<E, Y, 16, B>(s, q);
    else if (q->m <= 32) run<E, Y, 32, B>(s, q);
    else run<E, Y, FEW_ROWS_MOST, B>(s, q);
}

template <typename E> void by_result(cudaStream_t s, const few_rows_product *q) {
    if (q->y_type == LAUNCH_F32) by_rows<E, float, beside<false>>(s, q);
    else if (q->gated) by_rows<E, E, beside<true>>(s, q);
    else by_rows<E, E, beside<false>>(s, q);
}

} // namespace

extern "C" void launch_few_rows(cudaStream_t s, const few_rows_product *q) {
    if (q->type == LAUNCH_BF16) by_result<__nv_bfloat16>(s, q);
    else by_result<__half>(s, q);
}
