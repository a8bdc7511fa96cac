/* few_rows.cu - y = x w^T (+ bias) for few rows of x, as decoding has them: as fast as w can be read.
 *
 * A block takes 64 rows of w and a part of k, in boxes that the TMA unit fetches several steps ahead; the first of them are
 * under way before the kernels in front are done (chain.cuh), since parameters stand already. w is the left operand of the
 * products, so that a few rows of x waste little. Blocks of a cluster share k, and each adds some of the sums of all, in
 * the order of k. How k is cut follows from n and k alone, and no sum knows of other rows: a row has the same bits beside
 * any others. With 64 rows cuBLASLt is faster: there x, which every block reads, is as large as its part of w. */
#include "backend/cuda/attention_wgmma.cuh"
#include "backend/cuda/chain.cuh"
#include "backend/cuda/launch_gemm.h"
#include "backend/cuda/tensor_map.h"

namespace {

enum { WARP = 32, CONSUMERS = 128, THREADS = CONSUMERS + WARP, COLUMNS = 64, STEP = 64, PARTS_MOST = 8 };
enum { BLOCKS_ENOUGH = 396, BLOCKS_PER_MULTIPROCESSOR = 3 }; /* of a GPU with 132 multiprocessors */
constexpr uint32_t W_BYTES = COLUMNS * STEP * 2;

/* As many steps ahead as three blocks have room for. */
template <int ROWS> struct ring {
    static constexpr uint32_t X_BYTES = ROWS * STEP * 2, STEP_BYTES = W_BYTES + X_BYTES;
    static constexpr int STAGES = (int)(73 * 1024 / STEP_BYTES);
    static constexpr size_t SHARED_BYTES = STAGES * STEP_BYTES + 1024; /* boxes begin at multiples of 1024 */
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
template <int ROWS>
__device__ void produce(const CUtensorMap *w, const CUtensorMap *x, int column, int first, int n, uint32_t tiles,
                        uint32_t full, uint32_t empty) {
    using R = ring<ROWS>;
    auto fetch_x = [&](int step, int stage) {
        fetch_box(tiles + stage * R::STEP_BYTES + W_BYTES, x, (first + step) * STEP, 0, 0, full + 8 * stage);
    };
    auto fetch_w = [&](int step, int stage) {
        barrier_arrive_expecting(full + 8 * stage, R::STEP_BYTES);
        fetch_box(tiles + stage * R::STEP_BYTES, w, (first + step) * STEP, column, 0, full + 8 * stage);
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

/* sum (64, ROWS) = w x^T over n steps. */
template <typename E, int ROWS>
__device__ void consume(float (&sum)[ROWS / 8][4], int n, uint32_t tiles, uint32_t full, uint32_t empty) {
    using R = ring<ROWS>;
    ring_place<R::STAGES> place;
#pragma unroll
    for (int i = 0; i < ROWS / 8 * 4; i++) sum[i / 4][i % 4] = 0;
    uint32_t before = empty; /* the barrier of the step in front, whose product is still to end */
    for (int step = 0; step < n; step++, place.advance()) {
        barrier_wait(full + 8 * place.stage, place.parity);
        const uint32_t w = tiles + place.stage * R::STEP_BYTES, x = w + W_BYTES;
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < STEP / 16; k++)
            wgmma<E, ROWS>::shared(sum, attention_wgmma::operand(w + k * 32, 0),
                                   attention_wgmma::operand(x + k * 32, 0), 1);
        wgmma_commit();
        wgmma_wait<1>();
        if (step > 0 && threadIdx.x % WARP == 0) barrier_arrive(before);
        before = empty + 8 * place.stage;
    }
    wgmma_wait<0>();
    wgmma_settle(sum);
}

#endif

template <typename E, typename Y, int ROWS>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_MULTIPROCESSOR)
    few_rows(const __grid_constant__ few_rows_product q, const __grid_constant__ CUtensorMap w,
             const __grid_constant__ CUtensorMap x) {
#if WGMMA_HERE
    using R = ring<ROWS>;
    extern __shared__ unsigned char memory[];
    __shared__ __align__(8) uint64_t barriers[2 * R::STAGES];
    const uint32_t full = shared_address(barriers), empty = full + 8 * R::STAGES;
    const uint32_t tiles = (shared_address(memory) + 1023) & ~1023u;
    const int rank = (int)cluster_rank(), n_parts = (int)cluster_size();
    const int64_t first_column = (int64_t)blockIdx.x * COLUMNS;
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
    const uint32_t sums = tiles; /* where the tiles were: (ROWS, COLUMNS) floats */
    if (threadIdx.x >= CONSUMERS) {
        if (threadIdx.x == CONSUMERS) produce<ROWS>(&w, &x, (int)first_column, first, n, tiles, full, empty);
        else chain_wait();
        __syncwarp();
    } else {
        float sum[ROWS / 8][4];
        const int lane = (int)threadIdx.x % WARP, row = (int)threadIdx.x / WARP * 16 + lane / 4;
        chain_wait();
        consume<E, ROWS>(sum, n, tiles, full, empty);
        asm volatile("bar.sync 1, %0;" ::"n"((int)CONSUMERS) : "memory"); /* all have read the tiles */
#pragma unroll
        for (int i = 0; i < ROWS / 8; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                store_shared(sums + (uint32_t)((i * 8 + lane % 4 * 2 + e % 2) * COLUMNS + row + e / 2 * 8) * 4,
                             __float_as_uint(sum[i][e]));
    }
    cluster_sync();
    for (int i = 4 * ((int)threadIdx.x + rank * THREADS); i < q.m * COLUMNS; i += 4 * THREADS * n_parts) {
        float4 parts[PARTS_MOST], total = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int p = 0; p < PARTS_MOST; p++) /* asked for at once */
            parts[p] = p < n_parts ? load_cluster(cluster_address(sums + (uint32_t)i * 4, (uint32_t)p)) : total;
#pragma unroll
        for (int p = 0; p < PARTS_MOST; p++) {
            total.x += parts[p].x, total.y += parts[p].y;
            total.z += parts[p].z, total.w += parts[p].w;
        }
        const float sum[4] = {total.x, total.y, total.z, total.w};
        const int64_t column = first_column + i % COLUMNS;
        Y *y = (Y *)q.y + i / COLUMNS * q.ldy + column;
#pragma unroll
        for (int c = 0; c < 4; c++)
            if (column + c < q.n)
                round_to(y + c, sum[c] * q.alpha + (q.bias ? (float)((const Y *)q.bias)[column + c] : 0));
    }
    cluster_sync(); /* until all have read what lies here */
#endif
}

unsigned parts_of(const few_rows_product *q) {
    const int64_t blocks = (q->n + COLUMNS - 1) / COLUMNS, steps = (q->k + STEP - 1) / STEP;
    unsigned parts = 1;
    while (parts < PARTS_MOST && blocks * parts * 2 <= BLOCKS_ENOUGH && steps >= parts * 4) parts *= 2;
    return parts;
}

template <typename E, typename Y, int ROWS> void run(cudaStream_t s, const few_rows_product *q) {
    tensor_box w = {.data = q->w,
                    .columns = q->k,
                    .rows = q->n,
                    .sequences = 1,
                    .box_columns = STEP,
                    .box_rows = COLUMNS,
                    .type = q->type};
    tensor_box x = w;
    x.data = q->x, x.rows = q->m, x.box_rows = ROWS;
    const unsigned parts = parts_of(q), blocks = (unsigned)((q->n + COLUMNS - 1) / COLUMNS);
    launch_chained(few_rows<E, Y, ROWS>, dim3(blocks, parts), dim3(THREADS), ring<ROWS>::SHARED_BYTES, parts, s, *q,
                   tensor_map_make(&w), tensor_map_make(&x));
}

template <typename E, typename Y> void by_rows(cudaStream_t s, const few_rows_product *q) {
    if (q->m <= 8) run<E, Y, 8>(s, q);
    else if (q->m <= 16) run<E, Y, 16>(s, q);
    else run<E, Y, FEW_ROWS_MOST>(s, q);
}

template <typename E> void by_result(cudaStream_t s, const few_rows_product *q) {
    if (q->y_type == LAUNCH_F32) by_rows<E, float>(s, q);
    else by_rows<E, E>(s, q);
}

} // namespace

extern "C" void launch_few_rows(cudaStream_t s, const few_rows_product *q) {
    if (q->type == LAUNCH_BF16) by_result<__nv_bfloat16>(s, q);
    else by_result<__half>(s, q);
}
