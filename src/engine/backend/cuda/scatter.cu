/* scatter.cu - gradient rows back into a table: rows with the same id are added in order, and nothing is added twice at
 * once.
 *
 * The ids are sorted together with their places by a radix sort that keeps the order of equals (lowest bits first, a few
 * passes of SCATTER_BITS). Then blocks go over the sorted places: a run of equal ids is added in fp32, in order, by one
 * of them, and the row of the table is written once. The sort moves a few hundred kilobytes; the sum reads dy once, wherever the rows lie.
 *
 * A pass is three kernels: count the bins of every tile, turn the counts into places (bins in order, tiles in order
 * within a bin), move. Inside a tile warps take pieces in order, and within a warp lanes with equal bins find each other
 * with a match: so an id's place depends on ids before it alone, not on who runs first. Integer counts only. */
#include "backend/cuda/launch_embed.h"

#include "backend/cuda/typed.cuh"

enum { TILE_WARPS = 8, TILE_THREADS = TILE_WARPS * WARP, PIECE = SCATTER_TILE / TILE_WARPS };

/* ---- sort -------------------------------------------------------------------------------------------------------- */

/* What a pass reads: the ids as they came (order NULL), or the lists of the pass before. */
struct sort_source {
    const int32_t *ids, *order;
    int64_t n, V, seq_len, first_token;
    launch_ids held;
    int shift;
    uint32_t mask;
};

/* The row of the table; V where it is another rank's, so that those come last. */
DEVICE int32_t source_id(const sort_source &s, int64_t i) {
    if (s.order) return s.ids[i];
    if (s.seq_len) {
        int32_t position = (int32_t)((s.first_token + i) % s.seq_len) - s.ids[i];
        if (position < 0 || position >= s.V) __trap();
        return position;
    }
    int32_t token = s.ids[i];
    if (token < 0 || token >= s.held.vocab) __trap();
    int64_t id = token - s.held.first_id;
    return (int32_t)(id >= 0 && id < s.held.n_ids ? id : s.V);
}
DEVICE uint32_t bin_of(const sort_source &s, int32_t id) { return (uint32_t)id >> s.shift & s.mask; }

/* Adds the piece of this warp, 32 ids at a time, to its counts. */
DEVICE void count_piece(const sort_source &s, int64_t first, uint32_t *counts) {
    int lane = threadIdx.x % WARP;
    for (int64_t i = first + lane; i - lane < first + PIECE; i += WARP) {
        bool there = i < s.n;
        uint32_t bin = there ? bin_of(s, source_id(s, i)) : SCATTER_BINS;
        uint32_t equals = __match_any_sync(0xffffffffu, bin);
        if (there && lane == __ffs((int)equals) - 1) counts[bin] += __popc(equals);
        __syncwarp();
    }
}

/* counts (bins, tiles). */
static __global__ void __launch_bounds__(TILE_THREADS) count_kernel(sort_source s, uint32_t *counts) {
    __shared__ uint32_t by_warp[TILE_WARPS][SCATTER_BINS];
    int warp = threadIdx.x / WARP;
    for (int bin = threadIdx.x % WARP; bin < SCATTER_BINS; bin += WARP) by_warp[warp][bin] = 0;
    __syncwarp();
    count_piece(s, (int64_t)blockIdx.x * SCATTER_TILE + warp * PIECE, by_warp[warp]);
    __syncthreads();
    for (int bin = threadIdx.x; bin <= s.mask; bin += TILE_THREADS) {
        uint32_t sum = 0;
        for (int w = 0; w < TILE_WARPS; w++) sum += by_warp[w][bin];
        counts[(int64_t)bin * gridDim.x + blockIdx.x] = sum;
    }
}

/* counts become sums of all before, in one block: every thread adds a stretch, the stretches are summed, and the thread
 * goes over its stretch again. */
enum { SCAN_THREADS = 1024 };

static __global__ void __launch_bounds__(SCAN_THREADS) scan_kernel(uint32_t *counts, int64_t n) {
    __shared__ uint32_t totals[SCAN_THREADS / WARP];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int64_t stretch = (n + SCAN_THREADS - 1) / SCAN_THREADS, first = min(threadIdx.x * stretch, n),
            end = min(first + stretch, n);
    uint32_t sum = 0;
    for (int64_t i = first; i < end; i++) sum += counts[i];
    uint32_t upto = sum; /* of this warp's threads, this one included */
    for (int step = 1; step < WARP; step *= 2) {
        uint32_t before = __shfl_up_sync(0xffffffffu, upto, step);
        if (lane >= step) upto += before;
    }
    if (lane == WARP - 1) totals[warp] = upto;
    __syncthreads();
    uint32_t place = upto - sum;
    for (int w = 0; w < warp; w++) place += totals[w];
    for (int64_t i = first; i < end; i++) {
        uint32_t count = counts[i];
        counts[i] = place;
        place += count;
    }
}

/* places (bins, tiles): where the first id of a bin in a tile goes. */
static __global__ void __launch_bounds__(TILE_THREADS)
    move_kernel(sort_source s, const uint32_t *places, int32_t *ids_out, int32_t *order_out) {
    __shared__ uint32_t by_warp[TILE_WARPS][SCATTER_BINS];
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int64_t first = (int64_t)blockIdx.x * SCATTER_TILE + warp * PIECE;
    for (int bin = threadIdx.x % WARP; bin < SCATTER_BINS; bin += WARP) by_warp[warp][bin] = 0;
    __syncwarp();
    count_piece(s, first, by_warp[warp]);
    __syncthreads();
    for (int bin = threadIdx.x; bin <= s.mask; bin += TILE_THREADS) {
        uint32_t place = places[(int64_t)bin * gridDim.x + blockIdx.x];
        for (int w = 0; w < TILE_WARPS; w++) {
            uint32_t count = by_warp[w][bin];
            by_warp[w][bin] = place;
            place += count;
        }
    }
    __syncthreads();
    for (int64_t i = first + lane; i - lane < first + PIECE; i += WARP) {
        bool there = i < s.n;
        int32_t id = there ? source_id(s, i) : 0;
        uint32_t bin = there ? bin_of(s, id) : SCATTER_BINS, equals = __match_any_sync(0xffffffffu, bin);
        uint32_t place = there ? by_warp[warp][bin] + __popc(equals & ((1u << lane) - 1)) : 0;
        __syncwarp();
        if (there) {
            ids_out[place] = id;
            order_out[place] = s.order ? s.order[i] : (int32_t)i;
            if (lane == __ffs((int)equals) - 1) by_warp[warp][bin] += __popc(equals);
        }
        __syncwarp();
    }
}

/* ---- sum --------------------------------------------------------------------------------------------------------- */

enum { SUM_PLACES = 64, SUM_THREADS = 256 };

/* What was added for one id, to its row of the table. */
template <bool VECTOR, typename G> DEVICE void sum_flush(G *row, const float sum[4], int64_t left, bool add, float scale) {
    quad<G> q = {};
    if (add) q = quad_load<VECTOR>(row, left);
#pragma unroll
    for (int e = 0; e < 4; e++) {
        float whole = scale > 0 ? sum[e] * scale : sum[e];
        narrow(&q.e[e], add ? widen(q.e[e]) + whole : whole);
    }
    quad_store<VECTOR>(row, q, left);
}

/* A block owns the runs of equal ids that begin at its SUM_PLACES sorted places, and follows the last one to its end,
 * wherever that is. Ids from V on belong to nobody here. Threads own columns, blocks along y own slabs of them. Rows are
 * asked for ROWS at a time, whatever runs they belong to: a frequent id has thousands of rows, which must be added one after
 * the other, and then this block is the one that all wait for. */
template <typename T, typename G, bool VECTOR>
static __global__ void __launch_bounds__(SUM_THREADS)
    sum_kernel(G *dtable, const T *dy, const int32_t *ids, const int32_t *order, int64_t n, int64_t V, int64_t C,
               bool add, float scale) {
    enum {
        ROWS = 64 / sizeof(T)
    }; /* 64 registers of them: two blocks of such threads hold enough under way for an SM */
    __shared__ int32_t id[ROWS], place[ROWS];
    int64_t begin = (int64_t)blockIdx.x * SUM_PLACES, end = min(begin + SUM_PLACES, n);
    int64_t column = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * 4, left = C - column;
    int32_t before = begin > 0 ? ids[begin - 1] : -1, last = ids[end - 1];
    if (last == before) return; /* inside one long run */

    int32_t next_id = -1, next_place = 0;
    auto fetch = [&](int64_t first) {
        int64_t i = first + threadIdx.x;
        next_id = -1;
        if (threadIdx.x >= ROWS || i >= n) return;
        int32_t found = ids[i];
        next_place = order[i];
        if (found < V && found != before && (i < end || found == last)) next_id = found;
    };
    fetch(begin);
    float sum[4] = {};
    int32_t current = -1;
    bool more = true;
    for (int64_t i = begin; more; i += ROWS) {
        __syncthreads(); /* the rows before are asked for and added */
        if (threadIdx.x < ROWS) {
            id[threadIdx.x] = next_id;
            place[threadIdx.x] = next_place;
        }
        __syncthreads();
        fetch(i + ROWS);
        more = i + ROWS < end || id[ROWS - 1] >= 0;
        quad<T> row[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if (id[r] >= 0) row[r] = quad_load<VECTOR>(dy + (int64_t)place[r] * C + column, left);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (id[r] < 0) continue;
            bool first = id[r] != current;
            if (first && current >= 0) sum_flush<VECTOR>(dtable + (int64_t)current * C + column, sum, left, add, scale);
            current = id[r];
#pragma unroll
            for (int e = 0; e < 4; e++) { /* the first as it is: 0 + -0 would lose the sign */
                float x = widen(row[r].e[e]);
                sum[e] = first ? x : sum[e] + x;
            }
        }
    }
    if (current >= 0) sum_flush<VECTOR>(dtable + (int64_t)current * C + column, sum, left, add, scale);
}

template <typename T, typename G>
static void sum_launch(cudaStream_t s, const launch_scatter_args *a, const int32_t *ids, const int32_t *order) {
    int64_t quads = divide_up(a->C, 4), slabs = divide_up(quads, SUM_THREADS);
    dim3 grid((unsigned)divide_up(a->n, SUM_PLACES), (unsigned)slabs);
    bool whole = a->C % 4 == 0 && aligned(a->dy, 4 * sizeof(T)) && aligned(a->dtable, 4 * sizeof(G));
    by_flag(whole, [&](auto vector) {
        launch(sum_kernel<T, G, decltype(vector)::value>, grid,
               dim3(block_threads(divide_up(quads, slabs), SUM_THREADS)), s, (G *)a->dtable, (const T *)a->dy, ids,
               order, a->n, a->V, a->C, a->add, a->scale);
    });
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static int bits_of(int64_t n) { /* to count to n - 1; at least one */
    int bits = 1;
    while ((int64_t)1 << bits < n) bits++;
    return bits;
}

void launch_scatter(cudaStream_t s, const launch_scatter_args *a) {
    if (a->n == 0) {
        if (!a->add) cudaMemsetAsync(a->dtable, 0, (size_t)(a->V * a->C) * type_bytes(a->table_type), s);
        return;
    }
    int32_t *lists[2] = {(int32_t *)a->work, (int32_t *)a->work + 2 * a->n};
    uint32_t *counts = (uint32_t *)a->work + 4 * a->n;
    int64_t tiles = scatter_tiles(a->n);
    int id_bits = bits_of(a->V + (a->held.n_ids < a->held.vocab)); /* with a place for tokens of other ranks */
    int passes = (int)divide_up(id_bits, SCATTER_BITS), bits = (int)divide_up(id_bits, passes);
    sort_source source = {a->ids, NULL, a->n, a->V, a->seq_len, a->first_token, a->held, 0, (1u << bits) - 1};
    for (int pass = 0; pass < passes; pass++) {
        int32_t *out = lists[pass % 2];
        launch(count_kernel, dim3((unsigned)tiles), dim3(TILE_THREADS), s, source, counts);
        launch(scan_kernel, dim3(1), dim3(SCAN_THREADS), s, counts, (int64_t)(source.mask + 1) * tiles);
        launch(move_kernel, dim3((unsigned)tiles), dim3(TILE_THREADS), s, source, (const uint32_t *)counts, out,
               out + a->n);
        source.ids = out;
        source.order = out + a->n;
        source.shift += bits;
    }
    if (!a->add) cudaMemsetAsync(a->dtable, 0, (size_t)(a->V * a->C) * type_bytes(a->table_type), s);
    by_type(a->type, [&](auto zero) {
        using T = decltype(zero);
        if (a->table_type == LAUNCH_F32) sum_launch<T, float>(s, a, source.ids, source.order);
        else sum_launch<T, bf16>(s, a, source.ids, source.order);
    });
}
