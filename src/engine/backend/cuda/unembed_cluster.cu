/* unembed_cluster.cu - losses and gradient of rows of logits that are read once, for compute capability 9.0 and later.
 *
 * loss_grad_kernel (unembed.cu) reads a row for its sum and again for its gradient, and where the rows of all blocks exceed
 * the L2 cache both come from memory. Here a cluster of 2, 4 or 8 blocks holds a row in shared memory, each block a part
 * of its columns, between the two.
 *
 * Clusters stay and take rows in turn. A part comes in pieces, into a ring that has room for more than one part: a warp of
 * its own fetches, piece after piece and across rows, as soon as the piece that was there has become gradient. So loads of
 * the next row are under way while this row's sums travel and its gradient is stored. The other warps take maximum and sum
 * of the pieces as they come. Each sends its own to all blocks of the cluster, waits for those of all warps and merges them in
 * one order: every warp of the cluster finds the same bits. What happens to a row depends on the row alone; which cluster
 * takes it is arithmetic.
 *
 * Whoever has the sums of all warps knows that the whole row is in shared memory. A gradient may lie anywhere on the row then.
 *
 * Rows start at multiples of 16 bytes and so do parts, as the copies want it (launch_unembed.h promises the former). A copy
 * of the last columns ends at a multiple of 16 bytes too, with what lies behind them. */
#include "backend/cuda/barriers.cuh"
#include "backend/cuda/copy_async.cuh" /* shared_address */
#include "backend/cuda/unembed_row.cuh"

namespace {

enum {
    WARPS = 16, /* beside the one that fetches */
    CONSUMERS = WARPS * WARP,
    THREADS = CONSUMERS + WARP,
    VECTORS = 2, /* of 4 logits that a thread has of a piece */
    STEP = CONSUMERS * 4,
    PIECE = STEP * VECTORS, /* logits: 16 KiB */
    PIECES = 14,            /* all that fits */
    PART_PIECES = 11,       /* the others are fetched ahead while the sums of a row travel */
    PART_UNIT = 64,         /* columns: no two blocks write into one line of 128 bytes of a 16-bit gradient */
    BLOCKS_MOST = 8,        /* in a cluster, on every GPU that has them */
    /* What one block could hold: two such rows for each of 132 multiprocessors are 48 MB and stay in the L2 cache between
     * the passes of loss_grad_kernel, for the most part. Nor may a block alone send to its cluster. */
    COLUMNS_LEAST = PART_PIECES * PIECE,
};

struct shared_layout {
    float pieces[PIECES][PIECE];
    float2 sums[2][BLOCKS_MOST][WARPS]; /* (max, sum), of rows in turn */
    uint64_t full[PIECES], empty[PIECES];
    uint64_t sums_here[2];
};
static_assert(sizeof(shared_layout) <= 227 << 10, "more shared memory than a block of capability 9.0 may have");

#if BARRIERS_HERE

typedef ring_place<PIECES> piece_place;

/* The rows of this cluster, each with its target; that of the next one is on its way meanwhile. */
struct row_walk {
    const unembed_rows &r;
    int64_t row, step;
    int32_t target, next_target;
    __device__ explicit row_walk(const unembed_rows &rows)
        : r(rows), row(blockIdx.x / cluster_size()), step(gridDim.x / cluster_size()) {
        target = r.targets[row];
        look_ahead();
    }
    __device__ void look_ahead() { next_target = row + step < r.n_rows ? r.targets[row + step] : -1; }
    __device__ bool inside() const { return row < r.n_rows; }
    __device__ void advance() {
        row += step;
        target = next_target;
        look_ahead();
    }
};

struct column_part { /* of a row: this block's */
    int32_t first, n;
    __device__ column_part(const unembed_rows &r, int32_t width)
        : first((int32_t)cluster_rank() * width), n(min(width, r.n_columns - first)) {}
};

/* One thread calls. */
__device__ void fetch_rows(const unembed_rows &r, const column_part &part, shared_layout &in) {
    piece_place place;
    for (row_walk walk(r); walk.inside(); walk.advance()) {
        if (!is_id(r, walk.target)) continue;
        const float *x = r.logits + walk.row * r.ld + part.first;
        for (int32_t at = 0; at < part.n; at += PIECE, place.advance()) {
            uint32_t n_bytes = (uint32_t)(min((int32_t)PIECE, part.n - at) + 3) / 4 * 16;
            uint32_t full = shared_address(&in.full[place.stage]);
            barrier_wait(shared_address(&in.empty[place.stage]), place.parity ^ 1);
            barrier_arrive_expecting(full, n_bytes);
            copy_bulk(shared_address(in.pieces[place.stage]), x + at, n_bytes, full);
        }
    }
}

/* This thread's part of the sums, from the pieces as they come. */
__device__ row_part scan_part(const column_part &part, const shared_layout &in, piece_place place) {
    row_part p = {-CUDART_INF_F, 0, 0};
    for (int32_t at = 0; at < part.n; at += PIECE, place.advance()) {
        const float *x = in.pieces[place.stage];
        int32_t i = threadIdx.x * 4, n = part.n - at;
        float4 v[VECTORS];
        barrier_wait(shared_address(&in.full[place.stage]), place.parity);
        if (n >= PIECE) {
#pragma unroll
            for (int u = 0; u < VECTORS; u++) v[u] = *(const float4 *)(x + i + u * STEP);
        } else {
#pragma unroll
            for (int u = 0; u < VECTORS; u++)
                v[u] = i + u * STEP + 4 <= n ? *(const float4 *)(x + i + u * STEP) : load_tail(x, i + u * STEP, n);
        }
        part_add<false>(&p, v, i, STEP);
    }
    return p;
}

/* Of all warps of the cluster, known to every thread.
 *
 * Two buffers are enough. A warp that sends for row n + 2 has had all sums of row n + 1; they were sent by warps that had
 * read those of row n before. */
__device__ row_part cluster_merge(row_part p, shared_layout &in, uint32_t turn) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, n_blocks = (int)cluster_size();
    float2(&sums)[BLOCKS_MOST][WARPS] = in.sums[turn % 2];
    const uint32_t here = shared_address(&in.sums_here[turn % 2]);
    p = warp_merge<false>(p);
    if (threadIdx.x == 0) barrier_arrive_expecting(here, n_blocks * WARPS * sizeof(float2));
    if (lane < n_blocks)
        cluster_send(cluster_address(shared_address(&sums[cluster_rank()][warp]), lane), make_float2(p.max, p.sum),
                     cluster_address(here, lane));
    __syncwarp();
    barrier_wait_cluster(here, turn / 2 % 2);
    row_part all = {-CUDART_INF_F, 0, 0};
    for (int i = lane; i < n_blocks * WARPS; i += WARP) {
        float2 s = sums[i / WARPS][i % WARPS];
        all = part_merge<false>(all, row_part{s.x, s.y, 0});
    }
    return warp_merge<false>(all);
}

/* One thread of one block calls. */
__device__ void report(const unembed_rows &r, int64_t row, float loss, unembed_state s) {
    r.losses[row] = loss;
    if (r.states) r.states[row] = s;
}

/* This thread has read all it will of a piece. */
__device__ void release(shared_layout &in, uint32_t stage) { barrier_arrive(shared_address(&in.empty[stage])); }

/* out and target count from the part's first column. Gives back where the next row's pieces are. */
template <typename T>
__device__ piece_place gradient_part(T *out, const column_part &part, shared_layout &in, piece_place place,
                                     int32_t target, unembed_state s, float onehot, float softcap) {
    for (int32_t at = 0; at < part.n; at += PIECE, place.advance()) {
        const float *x = in.pieces[place.stage];
        int32_t i = threadIdx.x * 4, n = part.n - at;
        float4 v[VECTORS];
#pragma unroll
        for (int u = 0; u < VECTORS; u++)
            if (i + u * STEP < n) v[u] = *(const float4 *)(x + i + u * STEP);
        release(in, place.stage);
#pragma unroll
        for (int u = 0; u < VECTORS; u++) {
            int32_t column = at + i + u * STEP;
            if (column < part.n) store4(out + column, gradient4(v[u], column, target, s, onehot, softcap));
        }
    }
    return place;
}

template <typename T> __device__ void take_rows(const unembed_rows &r, const column_part &part, shared_layout &in) {
    piece_place place;
    uint32_t turn = 0;
    for (row_walk walk(r); walk.inside(); walk.advance()) {
        T *out = (T *)r.gradient + walk.row * r.gradient_ld + part.first;
        if (!is_id(r, walk.target)) {
            zero_row(out, part.n, CONSUMERS);
            if (threadIdx.x == 0 && part.first == 0) report(r, walk.row, 0, {0, 0});
            continue;
        }
        const float onehot = onehot_of(r, walk.row); /* on its way during the scan */
        const row_part p = cluster_merge(scan_part(part, in, place), in, turn++);
        const unembed_state s = {p.max, onehot / p.sum};
        const int32_t target = walk.target - part.first;
        if (threadIdx.x == 0 && target >= 0 && target < part.n)
            report(r, walk.row, loss_of(p, in.pieces[(place.stage + target / PIECE) % PIECES][target % PIECE]), s);
        if (s.factor == 0) {
            zero_row(out, part.n, CONSUMERS);
            for (int32_t at = 0; at < part.n; at += PIECE, place.advance()) release(in, place.stage);
        } else {
            place = gradient_part(out, part, in, place, target, s, onehot, r.softcap);
        }
    }
}
#endif

template <typename T>
__global__ void __launch_bounds__(THREADS, 1)
    loss_grad_cluster_kernel(const __grid_constant__ unembed_rows r, const int32_t part_width) {
#if BARRIERS_HERE
    extern __shared__ __align__(128) unsigned char shared[];
    shared_layout &in = *(shared_layout *)shared;
    const column_part part(r, part_width);
    if (threadIdx.x == 0) {
        for (int i = 0; i < PIECES; i++) {
            barrier_init(shared_address(&in.full[i]), 1);
            barrier_init(shared_address(&in.empty[i]), CONSUMERS);
        }
        for (int i = 0; i < 2; i++) barrier_init(shared_address(&in.sums_here[i]), 1);
        barriers_publish();
    }
    cluster_sync(); /* nobody sends to a block whose barriers are not there yet ... */
    if (threadIdx.x < CONSUMERS) take_rows<T>(r, part, in);
    else if (threadIdx.x == CONSUMERS) fetch_rows(r, part, in);
    __syncwarp();
    cluster_sync(); /* ... or to one that has ended */
#else
    __trap();
#endif
}

int64_t part_width_for(int64_t n_columns, int n_blocks) {
    int64_t n_units = (n_columns + PART_UNIT - 1) / PART_UNIT;
    return (n_units + n_blocks - 1) / n_blocks * PART_UNIT;
}

/* In a cluster, as few as hold a row; 0: rows this short (COLUMNS_LEAST) or this long are not for this kernel. */
int blocks_for(int64_t n_columns) {
    if (n_columns <= COLUMNS_LEAST) return 0;
    int n = 2;
    while (n <= BLOCKS_MOST && part_width_for(n_columns, n) > PART_PIECES * PIECE) n *= 2;
    return n <= BLOCKS_MOST ? n : 0;
}

/* GPUs that have clusters need not have that much shared memory (12.0 has 99 KB). */
bool gpu_can() {
    int device = 0, clusters = 0, shared_bytes = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&clusters, cudaDevAttrClusterLaunch, device);
    cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    return clusters && shared_bytes >= (int)sizeof(shared_layout);
}

template <typename T> bool launch(cudaStream_t stream, const unembed_rows *r, int n_blocks) {
    auto kernel = loss_grad_cluster_kernel<T>;
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {(unsigned)n_blocks, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(n_blocks);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = sizeof(shared_layout);
    config.stream = stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(shared_layout));
    /* Not the multiprocessors over n_blocks: a cluster lives in one group of them, and one too many would run alone at the
     * end. An error is not taken back: whoever asks for those of launches finds it. */
    int n_clusters = 0;
    if (cudaOccupancyMaxActiveClusters(&n_clusters, kernel, &config) != cudaSuccess || n_clusters == 0) return false;
    if (n_clusters > r->n_rows) n_clusters = (int)r->n_rows;
    config.gridDim = dim3(n_clusters * n_blocks);
    cudaLaunchKernelEx(&config, kernel, *r, (int32_t)part_width_for(r->n_columns, n_blocks));
    return true;
}

} // namespace

bool unembed_loss_grad_cluster(cudaStream_t stream, const unembed_rows *r) {
    int n_blocks = blocks_for(r->n_columns);
    if (n_blocks == 0 || !gpu_can()) return false;
    switch (r->type) {
    case LAUNCH_BF16: return launch<__nv_bfloat16>(stream, r, n_blocks);
    case LAUNCH_F16: return launch<__half>(stream, r, n_blocks);
    default: return launch<float>(stream, r, n_blocks);
    }
}
