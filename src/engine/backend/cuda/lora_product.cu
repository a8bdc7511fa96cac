/* lora_product.cu - large products of bf16 matrices with an adapter in the same sums: compute capability 9.0.
 *
 * A block has a tile of 128 x 256: two warp groups with 64 rows each, all sums in registers. One warp fetches steps of 64 along k into a
 * ring of shared memory; two blocks beside each other (a cluster) have the same columns, so each fetches half of b for both. Blocks
 * stay and take tiles in turn. A group rounds its tile and goes on with the next one at once; what is rounded is stored between the first
 * steps of that. Tiles go down a stripe of rows that the L2 cache can hold, column by column.
 *
 * The adapter is the first of a tile's steps: xa and the adapter's other matrix instead of a and b; its sums are multiplied by the scale
 * and stay where they are. What a box has outside of a tensor is zeros, so a rank need not fill a step: of the columns of xa behind those
 * of the part, which are another part's, nothing is left. */
#include "backend/cuda/attention_wgmma.cuh"
#include "backend/cuda/launch_lora_product.h"
#include "backend/cuda/lora_up.cuh"

enum { GROUP_THREADS = 128, GROUPS = 2, THREADS = (GROUPS + 1) * GROUP_THREADS, STAGES = 4, ALIGNMENT = 1024 };
enum { ROWS = 128, COLUMNS = 256, HALF = COLUMNS / 2, STEP = 64, TILES_N = COLUMNS / 8, HALF_TILES = TILES_N / 2 };
enum { ROW_BYTES = STEP * 2, A_BYTES = ROWS * ROW_BYTES, HALF_BYTES = HALF * ROW_BYTES, B_BYTES = 2 * HALF_BYTES };
enum { CLUSTER = 2 /* blocks that share b */, SHARE = COLUMNS / CLUSTER, SHARE_BYTES = SHARE * ROW_BYTES };
enum { STRIPE = 8 /* rows of tiles that go down together */ };
enum { BOX_BYTES = 64 * ROW_BYTES /* of a group's rows */, PRODUCER_REGISTERS = 24, GROUP_REGISTERS = 240 };
static_assert(COLUMNS == (int)LORA_PRODUCT_PART && ROWS == (int)LORA_PRODUCT_A_ROWS &&
                  SHARE == (int)LORA_PRODUCT_TURNED_ROWS && STEP == (int)LORA_PRODUCT_B_ROWS &&
                  BOX_BYTES == (int)LORA_PRODUCT_C_ROWS * ROW_BYTES,
              "boxes of launch_lora_product.h");

struct shared_state {
    struct stage {
        uint8_t a[A_BYTES], b[B_BYTES];
    } stages[STAGES];
    uint8_t boxes[GROUPS][2][BOX_BYTES]; /* on their way out */
    uint64_t full[STAGES], empty[STAGES];
};

/* How many there are, in rows of a cluster; those of `stripe` rows go down together. stripe is a value of the run: as a constant its
 * divisions take registers that the products need. */
struct tiles {
    int rows, columns, stripe;
};

/* Where a tile lies, and what its columns have of the adapter: the first column of xa, the first row of the other matrix; small < 0: nothing. */
struct tile {
    int row, column;
    int small, up_row;
};

#if WGMMA_HERE

template <bool TURNED> static __device__ tile tile_at(const lora_product &q, const tiles &all, int number) {
    int per_stripe = all.stripe * all.columns, first = number / per_stripe * all.stripe,
        in_stripe = number % per_stripe;
    int n = min(all.stripe, all.rows - first);
    tile t = {(first + in_stripe % n) * ROWS * CLUSTER, in_stripe / n * (int)COLUMNS, TURNED ? -1 : 0, 0};
    if (!TURNED) return t;
    int row = 0;
#pragma unroll
    for (int i = 0; i < LAUNCH_LORA_PARTS; i++) {
        int at = t.column - (int)q.parts.first[i];
        if (i < q.parts.n && at >= 0 && at < (int)q.parts.columns[i]) t.small = i * (int)q.r, t.up_row = row + at;
        if (i < q.parts.n) row += (int)q.parts.columns[i];
    }
    return t;
}

/* The same box into every block of the cluster, at the same place; each one's barrier is told. */
static __device__ void fetch_box_for_all(uint32_t to, const CUtensorMap *map, int column, int row, uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
                 " [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
                 "l"(map), "r"(column), "r"(row), "r"(0), "r"(barrier), "h"((uint16_t)((1 << CLUSTER) - 1))
                 : "memory");
}
/* Without a scope, which would be a fence over the whole GPU in every step: what is told is that wgmma has read the stage. */
static __device__ void arrive_at(uint32_t barrier, uint32_t rank) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(cluster_address(barrier, rank)) : "memory");
}

/* A block's share of b for one step: rows of b as (n, k), else columns of b as (k, n) in boxes of 64. */
template <bool TURNED>
static __device__ void fetch_share(uint32_t to, const CUtensorMap *map, int n, int k, uint32_t barrier) {
    if (TURNED) fetch_box_for_all(to, map, k, n, barrier);
    else
#pragma unroll
        for (int i = 0; i < SHARE / 64; i++) fetch_box_for_all(to + i * BOX_BYTES, map, n + i * 64, k, barrier);
}

/* Walks of producer and groups: tiles of a cluster in turn. */
#define FOR_TILES(number) \
    for (int number = (int)blockIdx.x / CLUSTER; number < all.rows * all.columns; number += (int)gridDim.x / CLUSTER)

/* Steps of a tile that are the adapter's. */
static __device__ int adapter_steps(const lora_product &q, const tile &t) {
    return t.small < 0 ? 0 : ((int)q.r + STEP - 1) / STEP;
}

template <bool TURNED>
static __device__ void produce(const lora_product &q, const lora_product_maps &m, shared_state &s, const tiles &all) {
    const int rank = (int)cluster_rank(), n_steps = ((int)q.k + STEP - 1) / STEP;
    ring_place<STAGES> to;
    FOR_TILES(number) {
        tile t = tile_at<TURNED>(q, all, number);
        int row = t.row + rank * ROWS, share = rank * SHARE;
        const int n_first = adapter_steps(q, t);
        for (int step = -n_first; step < n_steps; step++, to.advance()) {
            uint32_t a = shared_address(s.stages[to.stage].a),
                     b = shared_address(s.stages[to.stage].b) + rank * SHARE_BYTES;
            uint32_t full = shared_address(&s.full[to.stage]);
            barrier_wait(shared_address(&s.empty[to.stage]), to.parity ^ 1);
            barrier_arrive_expecting(full, A_BYTES + B_BYTES);
            if (step < 0) {
                const int k = (step + n_first) * STEP;
                fetch_box(a, &m.xa, t.small + k, row, 0, full);
                fetch_share<TURNED>(b, &m.up, (TURNED ? t.up_row : t.column) + share, k, full);
            } else {
                fetch_box(a, &m.a, step * STEP, row, 0, full);
                fetch_share<TURNED>(b, &m.b, t.column + share, step * STEP, full);
            }
        }
    }
}

/* The stage is used up: said to every block that writes into it. */
static __device__ void release(shared_state &s, uint32_t stage) {
    int warp = threadIdx.x % GROUP_THREADS / 32, lane = threadIdx.x % 32;
    if (lane == 0 && warp < CLUSTER) arrive_at(shared_address(&s.empty[stage]), (uint32_t)warp);
}

/* The pack of columns `column` to column + 7 of a row in a box of 64 columns. */
static __device__ uint32_t box_place(int row, int column) {
    return (uint32_t)row * ROW_BYTES + (uint32_t)((column / 8 ^ row % 8) * 16);
}

static __device__ void add_bias(float (&acc)[TILES_N][4], const lora_product &q, int column) {
    column += threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < TILES_N; j++) {
        float2 bias = unpack<__nv_bfloat16>(
            *(const uint32_t *)((const __nv_bfloat16 *)q.bias + min(column + j * 8, (int)q.n - 2)));
        acc[j][0] += bias.x, acc[j][1] += bias.y, acc[j][2] += bias.x, acc[j][3] += bias.y;
    }
}

/* A group's 64 rows and HALF columns through its shared memory into memory, as boxes of 64 columns. */
static __device__ void store_half(const CUtensorMap *map, int column, int row, uint8_t (&boxes)[2][BOX_BYTES],
                                  const uint32_t (&y)[HALF_TILES][2], int group) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x % GROUP_THREADS / 32;
    const bool stores = threadIdx.x % GROUP_THREADS == 0;
    if (stores) copy_bulk_wait_read<0>(); /* what was stored from here is gone */
    threads_meet(1 + group, GROUP_THREADS);
#pragma unroll
    for (int j = 0; j < HALF_TILES; j += 2) {
        uint32_t at = shared_address(boxes[j / 8]) + box_place(warp * 16 + lane % 16, j % 8 * 8 + lane / 16 * 8);
        store_matrices(at, {y[j][0], y[j][1], y[j + 1][0], y[j + 1][1]});
    }
    fence_bulk();
    threads_meet(1 + group, GROUP_THREADS);
    if (stores) {
        store_box(map, column, row, 0, shared_address(boxes[0]));
        store_box(map, column + 64, row, 0, shared_address(boxes[1]));
        copy_bulk_commit();
    }
}

/* A rounded tile of a group: its way out is done between the steps of the next tile. */
struct rounded {
    uint32_t y[2][HALF_TILES][2];
    int row, column, next = 2; /* next: the half to store */

    __device__ void store_next(const lora_product_maps &m, shared_state &s, int group) {
        if (next == 0) store_half(&m.c, column, row, s.boxes[group], y[0], group);
        else if (next == 1) store_half(&m.c, column + HALF, row, s.boxes[group], y[1], group);
        next++;
    }
    __device__ void store_all(const lora_product_maps &m, shared_state &s, int group) {
        while (next < 2) store_next(m, s, group);
    }
};

/* One step of the ring. Queued, not finished. */
template <bool TURNED, int N>
static __device__ void queue_step(float (&acc)[TILES_N][4], shared_state::stage &from, int group, bool more) {
    using attention_wgmma::operand, attention_wgmma::behind;
    const uint64_t a = operand(shared_address(from.a) + group * BOX_BYTES, 0);
    const uint64_t b = operand(shared_address(from.b), TURNED ? 0 : BOX_BYTES);
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < N; k++)
        wgmma<__nv_bfloat16, COLUMNS>::template shared<0, !TURNED>(
            acc, behind(a, k * 32), behind(b, TURNED ? k * 32 : k * 16 * ROW_BYTES), more || k > 0);
    wgmma_commit();
}

/* acc = scale xa up. */
template <bool TURNED, int N>
static __device__ void begin_with_adapter(float (&acc)[TILES_N][4], int n_steps, ring_place<STAGES> &now,
                                          const lora_product &q, shared_state &s, int group) {
    for (int step = 0; step < n_steps; step++, now.advance()) {
        barrier_wait(shared_address(&s.full[now.stage]), now.parity);
        queue_step<TURNED, N>(acc, s.stages[now.stage], group, step > 0);
        wgmma_wait<0>();
        release(s, now.stage);
    }
    wgmma_settle(acc);
    if constexpr (TURNED)
#pragma unroll
        for (int j = 0; j < TILES_N; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) acc[j][i] *= q.scale;
}

/* All steps along k of a tile; between them the tile before is stored. */
template <bool TURNED>
static __device__ void multiply_tile(float (&acc)[TILES_N][4], bool more, rounded &last, ring_place<STAGES> &now,
                                     const lora_product &q, const lora_product_maps &m, shared_state &s, int group) {
    const int n_steps = ((int)q.k + STEP - 1) / STEP;
    uint32_t before = 0;
    for (int step = 0; step < n_steps; step++, now.advance()) {
        barrier_wait(shared_address(&s.full[now.stage]), now.parity);
        queue_step<TURNED, STEP / 16>(acc, s.stages[now.stage], group, more || step > 0);
        if (step > 0) {
            wgmma_wait<1>();
            release(s, before);
            last.store_next(m, s, group);
        }
        before = now.stage;
    }
    last.store_all(m, s, group);
    wgmma_wait<0>();
    wgmma_settle(acc);
    release(s, before);
}

template <bool TURNED, int N>
static __device__ void multiply(const lora_product &q, const lora_product_maps &m, shared_state &s, const tiles &all) {
    const int group = attention_wgmma::warp_group(), rank = (int)cluster_rank();
    ring_place<STAGES> now;
    rounded last;
    FOR_TILES(number) {
        tile t = tile_at<TURNED>(q, all, number);
        float acc[TILES_N][4];
        const int n_first = adapter_steps(q, t);
        if (n_first > 0) begin_with_adapter<TURNED, N>(acc, n_first, now, q, s, group);
        multiply_tile<TURNED>(acc, n_first > 0, last, now, q, m, s, group);
        if (TURNED && q.bias) add_bias(acc, q, t.column);
        last.row = t.row + rank * ROWS + group * 64, last.column = t.column, last.next = 0;
#pragma unroll
        for (int i = 0; i < TILES_N * 2; i++) {
            const float *sum = &acc[i / 2][i % 2 * 2];
            last.y[i / 2 / HALF_TILES][i / 2 % HALF_TILES][i % 2] = pack<__nv_bfloat16>(sum[0], sum[1]);
        }
    }
    last.store_all(m, s, group);
    if (threadIdx.x % GROUP_THREADS == 0) copy_bulk_wait_all();
}

#endif

/* N: of 16 along k, in a step of the adapter. */
template <bool TURNED, int N>
static __global__ void __launch_bounds__(THREADS, 1)
    lora_product_kernel(const __grid_constant__ lora_product q, const __grid_constant__ lora_product_maps m,
                        const __grid_constant__ tiles all) {
#if WGMMA_HERE
    extern __shared__ uint8_t shared[];
    auto &s = *(shared_state *)(((uintptr_t)shared + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    if (threadIdx.x < STAGES) {
        barrier_init(shared_address(&s.full[threadIdx.x]), 1);
        barrier_init(shared_address(&s.empty[threadIdx.x]), GROUPS * CLUSTER);
        barriers_publish();
    }
    cluster_sync();
    if (threadIdx.x >= GROUPS * GROUP_THREADS) {
        registers_give<PRODUCER_REGISTERS>();
        if (threadIdx.x == GROUPS * GROUP_THREADS) produce<TURNED>(q, m, s, all);
    } else {
        registers_take<GROUP_REGISTERS>();
        multiply<TURNED, N>(q, m, s, all);
    }
    cluster_sync(); /* nobody leaves while another still sends to it */
#endif
}

template <bool TURNED, int N> static void launch_as(cudaStream_t s, const lora_product *q, const lora_product_maps *m) {
    int rows = ROWS * CLUSTER;
    tiles all = {(int)((q->m + rows - 1) / rows), (int)((q->n + COLUMNS - 1) / COLUMNS), STRIPE};
    int n_clusters = q->n_multiprocessors / CLUSTER, n_tiles = all.rows * all.columns;
    cudaLaunchAttribute cluster = {.id = cudaLaunchAttributeClusterDimension};
    cluster.val.clusterDim = {CLUSTER, 1, 1};
    cudaLaunchConfig_t how = {};
    how.gridDim = dim3((unsigned)((n_clusters < n_tiles ? n_clusters : n_tiles) * CLUSTER));
    how.blockDim = dim3(THREADS);
    how.dynamicSmemBytes = sizeof(shared_state) + ALIGNMENT;
    how.stream = s;
    how.attrs = &cluster, how.numAttrs = 1;
    auto kernel = lora_product_kernel<TURNED, N>;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)how.dynamicSmemBytes);
    cudaLaunchKernelEx(&how, kernel, *q, *m, all);
}

template <bool TURNED> static void launch(cudaStream_t s, const lora_product *q, const lora_product_maps *m) {
    if (q->r <= 16) launch_as<TURNED, 1>(s, q, m);
    else if (q->r <= 32) launch_as<TURNED, 2>(s, q, m);
    else if (q->r <= 48) launch_as<TURNED, 3>(s, q, m);
    else launch_as<TURNED, 4>(s, q, m);
}

void launch_lora_product(cudaStream_t s, const lora_product *q, const lora_product_maps *m) {
    (q->b_turned ? launch<true> : launch<false>)(s, q, m);
}
