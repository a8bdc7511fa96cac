/* few_rows.cu - y = x w^T (+ bias) for few rows of x, as decoding has them: as fast as w can be read.
 *
 * A block takes 64 rows of w and a part of k, in boxes that the TMA unit fetches several steps ahead; the first of them are
 * under way before the kernels in front are done (chain.cuh), since parameters stand already. w is the left operand of the
 * products, so that a few rows of x waste little. Blocks of a cluster share k, and each adds some of the sums of all, in
 * the order of k. How k is cut follows from n and k alone, and no sum knows of other rows: a row has the same bits beside
 * any others. Beyond 64 rows cuBLASLt is faster: there x, which every block reads, is larger than its part of w.
 *
 * A kernel more costs a decode step as much as reading some megabytes of weights, so that small ops around a product are done
 * in it where they may: each block takes the norm of x again, in shared memory; a block whose product is gated has 32
 * rows of both halves of w; what is added to the product waits in its place. */
#include "backend/cuda/attention_wgmma.cuh"
#include "backend/cuda/chain.cuh"
#include "backend/cuda/gated.cuh"
#include "backend/cuda/launch_gemm.h"
#include "backend/cuda/launch_norm.h"
#include "backend/cuda/tensor_map.h"

namespace {

enum { WARP = 32, CONSUMERS = 128, THREADS = CONSUMERS + WARP, COLUMNS = 64, STEP = 64, PARTS_MOST = 8 };
enum { BLOCKS_ENOUGH = 396, BLOCKS_PER_MULTIPROCESSOR = 3 }; /* of a GPU with 132 multiprocessors */
enum { RING_BYTES = 73 * 1024 };                             /* as many steps ahead as three blocks have room for */
constexpr uint32_t W_BYTES = COLUMNS * STEP * 2;

/* X is in the ring, or (NORMED) all of a block's part of it lies behind the ring. */
template <int ROWS, bool NORMED> struct ring {
    static constexpr uint32_t X_BYTES = ROWS * STEP * 2, STEP_BYTES = W_BYTES + (NORMED ? 0 : X_BYTES);
    static constexpr uint32_t NORMED_BYTES = NORMED ? FEW_ROWS_NORMED_K / STEP * X_BYTES : 0;
    static constexpr int STAGES = (int)((RING_BYTES - NORMED_BYTES) / STEP_BYTES);
};

/* What a block of n steps needs of it: short ones leave room for the kernels behind them. */
struct ring_use {
    uint32_t normed_at; /* where x lies that is not in the ring, from its beginning */
    size_t shared_bytes;
};
template <typename R> ring_use ring_use_of(int64_t n_steps, bool normed) {
    const uint32_t n = (uint32_t)(n_steps < R::STAGES ? n_steps : R::STAGES), ring_bytes = n * R::STEP_BYTES;
    /* boxes begin at multiples of 1024 */
    return {ring_bytes, ring_bytes + (normed ? (size_t)n_steps * R::X_BYTES : 0) + 1024};
}

/* What is done beside the product. */
template <bool IS_GATED, bool IS_NORMED> struct beside {
    enum { GATED = IS_GATED, NORMED = IS_NORMED, Y_COLUMNS = IS_GATED ? COLUMNS / 2 : COLUMNS /* of a block */ };
};

#if WGMMA_HERE

/* Four floats of another block of the cluster. */
__device__ inline float4 load_cluster(uint32_t address) {
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}

/* Steps [first, first + n) of k, by one thread. */
template <int ROWS, typename B>
__device__ void produce(const few_rows_product &q, const CUtensorMap *w, const CUtensorMap *x, int first, int n,
                        uint32_t tiles, uint32_t full, uint32_t empty) {
    using R = ring<ROWS, B::NORMED>;
    const int column = (int)blockIdx.x * B::Y_COLUMNS;
    auto fetch_x = [&](int step, int stage) {
        if (B::NORMED) return;
        fetch_box(tiles + stage * R::STEP_BYTES + W_BYTES, x, (first + step) * STEP, 0, 0, full + 8 * stage);
    };
    auto fetch_w = [&](int step, int stage) {
        const uint32_t tile = tiles + stage * R::STEP_BYTES;
        barrier_arrive_expecting(full + 8 * stage, R::STEP_BYTES);
        fetch_box(tile, w, (first + step) * STEP, column, 0, full + 8 * stage);
        if (B::GATED)
            fetch_box(tile + W_BYTES / 2, w, (first + step) * STEP, (int)q.n / 2 + column, 0, full + 8 * stage);
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

__device__ inline void consumers_sync() { asm volatile("bar.sync 1, %0;" ::"n"((int)CONSUMERS) : "memory"); }

/* ---- the norm of x ------------------------------------------------------------------------------------------------- */

template <typename E> __device__ inline void widen_pair(uint32_t word, float &low, float &high) {
    const E *e = (const E *)&word;
    low = widen(e[0]), high = widen(e[1]);
}

template <typename E> __device__ inline float add_squares(float sum, uint4 raw) {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float low, high;
        widen_pair<E>(words[i], low, high);
        sum = fmaf(high, high, fmaf(low, low, sum));
    }
    return sum;
}

__device__ inline float warp_sum(float x) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

/* Norms the rows of x, a warp for each, into tiles as the TMA unit would lay them: steps [first, first + n) of k. Lane l sums what
 * thread 32 i + l of norm.cu does, for all i. Rows that are not there stay what they are: nothing reads their sums. */
template <typename E> struct row_norm {
    enum { WARPS_MOST = FEW_ROWS_NORMED_K / 8 / 2 / WARP }; /* of norm.cu, two packs a thread */
    uint4 gains[WARPS_MOST][2];

    /* The number of a pack of this lane; -1: there is none. */
    __device__ static int pack_at(int w, int p, norm_shape shape, int n_packs) {
        const int thread = w * WARP + (int)threadIdx.x % WARP, at = thread + p * shape.threads;
        return thread < shape.threads && p < shape.per_thread && at < n_packs ? at : -1;
    }
    __device__ static void load(uint4 (&to)[WARPS_MOST][2], const void *row, norm_shape shape, int n_packs) {
#pragma unroll
        for (int i = 0; i < 2 * WARPS_MOST; i++) {
            const int at = pack_at(i / 2, i % 2, shape, n_packs);
            to[i / 2][i % 2] = at >= 0 ? ((const uint4 *)row)[at] : make_uint4(0, 0, 0, 0);
        }
    }
    __device__ static uint32_t pair(uint32_t x, uint32_t gain, float rstd, float offset) {
        float x0, x1, g0, g1;
        widen_pair<E>(x, x0, x1);
        widen_pair<E>(gain, g0, g1);
        return pack<E>(x0 * rstd * (g0 + offset), x1 * rstd * (g1 + offset));
    }
    __device__ void run(uint32_t tiles, const few_rows_product &q, norm_shape shape, int first, int n) const {
        const int n_packs = (int)(q.k / 8), lane = (int)threadIdx.x % WARP;
        for (int row = (int)threadIdx.x / WARP; row < q.m; row += CONSUMERS / WARP) {
            uint4 x[WARPS_MOST][2];
            load(x, (const E *)q.x + row * q.k, shape, n_packs);
            float of_warp = 0; /* lane w: the sum of norm.cu's warp w */
#pragma unroll
            for (int w = 0; w < WARPS_MOST; w++) {
                const float sum = warp_sum(add_squares<E>(add_squares<E>(0, x[w][0]), x[w][1]));
                if (lane == w) of_warp = sum;
            }
            const float rstd = 1.0f / sqrtf(warp_sum(of_warp) / (float)q.k + q.eps);
#pragma unroll
            for (int i = 0; i < 2 * WARPS_MOST; i++) {
                const int at = pack_at(i / 2, i % 2, shape, n_packs) - first * (STEP / 8);
                const uint4 a = x[i / 2][i % 2], g = gains[i / 2][i % 2];
                if (at < 0 || at >= n * (STEP / 8)) continue;
                store_shared_16(
                    tiles + (uint32_t)(at / 8 * (FEW_ROWS_NORMED * STEP * 2) + row * STEP * 2 + ((at % 8 ^ row) << 4)),
                    make_uint4(pair(a.x, g.x, rstd, q.offset), pair(a.y, g.y, rstd, q.offset),
                               pair(a.z, g.z, rstd, q.offset), pair(a.w, g.w, rstd, q.offset)));
            }
        }
        fence_bulk(); /* wgmma reads it */
        consumers_sync();
    }
};

/* ---- the product ---------------------------------------------------------------------------------------------------- */

/* sum (64, ROWS) = w x^T over n steps. */
template <typename E, int ROWS, bool NORMED>
__device__ void consume(float (&sum)[ROWS / 8][4], int n, uint32_t tiles, uint32_t normed, uint32_t full,
                        uint32_t empty) {
    using R = ring<ROWS, NORMED>;
    ring_place<R::STAGES> place;
#pragma unroll
    for (int i = 0; i < ROWS / 8 * 4; i++) sum[i / 4][i % 4] = 0;
    uint32_t before = empty; /* the barrier of the step in front, whose product is still to end */
    for (int step = 0; step < n; step++, place.advance()) {
        barrier_wait(full + 8 * place.stage, place.parity);
        const uint32_t w = tiles + place.stage * R::STEP_BYTES;
        const uint32_t x = NORMED ? normed + step * R::X_BYTES : w + W_BYTES;
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
        parts[p] = p < n_parts ? load_cluster(cluster_address(address, (uint32_t)p)) : total;
#pragma unroll
    for (int p = 0; p < PARTS_MOST; p++) {
        total.x += parts[p].x, total.y += parts[p].y;
        total.z += parts[p].z, total.w += parts[p].w;
    }
    out[0] = total.x, out[1] = total.y, out[2] = total.z, out[3] = total.w;
}

/* Four neighbours of y that a thread makes, and what is added to them. That comes from memory and is asked for before the sums
 * are there. */
template <typename Y, typename B> struct quad_of_y {
    int row, c0; /* c0: the first column, in the block */
    int64_t column, at, left;
    Y bias[4], up_bias[4], add[4];

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
            if (q.add) add[c] = ((const Y *)q.add)[at + c];
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
                round_to(&y, gated((float)y, (float)other, q.gelu));
            }
            if (q.add) round_to(&y, (float)y + (float)add[c]);
            ((Y *)q.y)[at + c] = y;
        }
    }
};

#endif

template <typename E, typename Y, int ROWS, typename B>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_MULTIPROCESSOR)
    few_rows(const __grid_constant__ few_rows_product q, const __grid_constant__ CUtensorMap w,
             const __grid_constant__ CUtensorMap x, norm_shape shape, uint32_t normed_at) {
#if WGMMA_HERE
    using R = ring<ROWS, B::NORMED>;
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
            barrier_init(empty + 8 * i, CONSUMERS / WARP);
        }
        barriers_publish();
    }
    __syncthreads();
    const uint32_t sums = tiles; /* where the tiles were */
    if (threadIdx.x >= CONSUMERS) {
        if (threadIdx.x == CONSUMERS) produce<ROWS, B>(q, &w, &x, first, n, tiles, full, empty);
        else chain_wait();
        __syncwarp();
    } else {
        float sum[ROWS / 8][4];
        const int lane = (int)threadIdx.x % WARP, row = (int)threadIdx.x / WARP * 16 + lane / 4;
        if constexpr (B::NORMED) {
            row_norm<E> norm;
            norm.load(norm.gains, q.gamma, shape, (int)(q.k / 8)); /* parameters stand already */
            chain_wait();
            norm.run(tiles + normed_at, q, shape, first, n);
        } else chain_wait();
        consume<E, ROWS, B::NORMED>(sum, n, tiles, tiles + normed_at, full, empty);
        consumers_sync(); /* all have read the tiles */
#pragma unroll
        for (int i = 0; i < ROWS / 8; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                store_shared(sums + (uint32_t)((i * 8 + lane % 4 * 2 + e % 2) * COLUMNS + row + e / 2 * 8) * 4,
                             __float_as_uint(sum[i][e]));
    }
    quad_of_y<Y, B> quad;
    int i = 4 * ((int)threadIdx.x + rank * THREADS); /* this block's share of the sums of the cluster */
    quad.begin(q, i);
    cluster_sync();
    while (quad.row < q.m) {
        quad.finish(q, sums, n_parts);
        quad.begin(q, i += 4 * THREADS * n_parts);
    }
    cluster_sync(); /* until all have read what lies here */
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
    const ring_use use = ring_use_of<ring<ROWS, B::NORMED>>((n_steps + parts - 1) / parts, B::NORMED);
    launch_chained(few_rows<E, Y, ROWS, B>, dim3(blocks, parts), dim3(THREADS), use.shared_bytes, parts, s, *q,
                   tensor_map_make(&w), tensor_map_make(&x), norm_shape_of(q->k / 8), use.normed_at);
}

template <typename E, typename Y, typename B> void by_rows(cudaStream_t s, const few_rows_product *q) {
    if (q->m <= 8) run<E, Y, 8, B>(s, q);
    else if (q->m <= 16) run<E, Y, 16, B>(s, q);
    else if (q->m <= 32) run<E, Y, 32, B>(s, q);
    else run<E, Y, FEW_ROWS_MOST, B>(s, q);
}

template <typename E> void by_result(cudaStream_t s, const few_rows_product *q) {
    static_assert(FEW_ROWS_NORMED == 8, "the norm is of tiles of eight rows");
    if (q->y_type == LAUNCH_F32) by_rows<E, float, beside<false, false>>(s, q);
    else if (q->gamma && q->gated) run<E, E, FEW_ROWS_NORMED, beside<true, true>>(s, q);
    else if (q->gamma) run<E, E, FEW_ROWS_NORMED, beside<false, true>>(s, q);
    else if (q->gated) by_rows<E, E, beside<true, false>>(s, q);
    else by_rows<E, E, beside<false, false>>(s, q);
}

} // namespace

extern "C" void launch_few_rows(cudaStream_t s, const few_rows_product *q) {
    if (q->type == LAUNCH_BF16) by_result<__nv_bfloat16>(s, q);
    else by_result<__half>(s, q);
}
