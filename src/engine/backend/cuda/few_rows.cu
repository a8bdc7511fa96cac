/* few_rows.cu - y = x w^T (+ bias) for few rows of x, as decoding has them: as fast as w can be read.
 *
 * A block takes some rows of w, its tile, and all or a part of k, in boxes that the TMA unit fetches several steps ahead; the first of
 * them are under way before the kernels in front are done (chain.cuh), since parameters stand already. There are two forms.
 *
 * cut: k is cut among the blocks of a cluster, where n is so small that there were too few of them. w is the left operand of the
 *   products, so that a few rows of x waste little. Each block has some rows of y, is sent their sums by all and adds them in the order of
 *   k. Three blocks fit on a multiprocessor.
 * whole: k is not. x is the left operand, 64 rows whether there are so many or not, and w the right one, whose width is any multiple of
 *   8: tiles are as wide as it takes to give every multiprocessor the same share of w, because all wait for the one that has the most;
 *   and wide tiles read x less often.
 *
 * How k is cut follows from n and k alone, no sum knows of other rows, and a sum has the same bits whichever operand is left: a row has
 * the same bits beside any others.
 *
 * A kernel more costs a decode step as much as reading some megabytes of weights, so that the gate behind a product is done in it: a
 * tile is then as many rows of both halves of w. */
#include "backend/cuda/attention_wgmma.cuh"
#include "backend/cuda/chain.cuh"
#include "backend/cuda/gated.cuh"
#include "backend/cuda/launch_gemm.h"
#include "backend/cuda/tensor_map.h"

namespace {

enum { WARP = 32, GROUP = 128, STEP = 64, PARTS_MOST = 8, STAGES_MOST = 12, ROW_BYTES = STEP * 2 /* of a box */ };

/* What the forms have in common. GROUPS warp groups consume; products read as many rows of x as OPERAND_ROWS says. */
template <bool IS_CUT, int GROUPS, int COLUMNS_, int OPERAND_ROWS_> struct form {
    enum {
        CUT = IS_CUT,
        COLUMNS = COLUMNS_,
        OPERAND_ROWS = OPERAND_ROWS_,
        CONSUMERS = GROUPS * GROUP,
        THREADS = CONSUMERS + WARP,
        PITCH = COLUMNS + 8 /* of rows of sums: neighbours lie in different banks */
    };
    static constexpr uint32_t W_BYTES = COLUMNS * ROW_BYTES;
};

/* Two groups share many rows of x. */
template <int ROWS> struct cut_tile : form<true, ROWS >= 32 ? 2 : 1, 64, ROWS> {
    enum { BLOCKS = 3, WIDTH = ROWS / (ROWS >= 32 ? 2 : 1) /* of the right operand of a group */ };
    static __device__ uint32_t left_at(uint32_t) { return 0; }
    static __device__ uint32_t right_at(uint32_t group) { return cut_tile::W_BYTES + group * (WIDTH * ROW_BYTES); }
};

/* Two groups share the columns. */
template <int GROUP_COLUMNS> struct whole_tile : form<false, 2, 2 * GROUP_COLUMNS, 64> {
    enum { BLOCKS = 2, WIDTH = GROUP_COLUMNS };
    static __device__ uint32_t left_at(uint32_t) { return whole_tile::W_BYTES; }
    static __device__ uint32_t right_at(uint32_t group) { return group * (WIDTH * ROW_BYTES); }
};

/* What is done beside the product. */
template <bool IS_GATED> struct beside {
    enum { GATED = IS_GATED };
    /* Of a block. */
    template <typename F> static constexpr int y_columns() { return IS_GATED ? F::COLUMNS / 2 : F::COLUMNS; }
};

/* How a block's memory is divided: a ring of n_stages steps, each a box of w and one of x_bytes; then the sums that are sent. Where
 * none are, a block's own lie in the place of the ring. */
struct layout {
    int n_steps, n_stages, share; /* share: rows of y that a block makes */
    uint32_t x_bytes, step_bytes, sums_at, n_bytes;
};

template <typename F> layout layout_of(const few_rows_product *q, int n_parts, uint32_t ring_bytes) {
    layout l = {};
    l.n_steps = (int)((q->k + STEP - 1) / STEP);
    l.share = F::CUT ? F::OPERAND_ROWS / n_parts : (int)q->m;
    l.x_bytes = (uint32_t)((q->m + 7) / 8 * 8 * ROW_BYTES);
    l.step_bytes = F::W_BYTES + l.x_bytes;
    const int longest = (l.n_steps + n_parts - 1) / n_parts, room = (int)(ring_bytes / l.step_bytes);
    l.n_stages = room < STAGES_MOST ? room : STAGES_MOST;
    if (l.n_stages > longest) l.n_stages = longest; /* short ones leave room for the kernels behind them */
    /* Products read rows behind those of x, too: whatever lies there, it ends in rows of sums that nobody reads. */
    const uint32_t ring = (uint32_t)l.n_stages * l.step_bytes, read = ring - l.x_bytes + F::OPERAND_ROWS * ROW_BYTES;
    l.sums_at = F::CUT ? ring : 0;
    l.n_bytes = l.sums_at + (uint32_t)(n_parts * l.share * F::PITCH) * 4;
    if (l.n_bytes < read) l.n_bytes = read;
    l.n_bytes += 1024; /* boxes begin at multiples of 1024 */
    return l;
}

#if WGMMA_HERE

/* A block's part of k, and its barriers: a box is full, a place of the ring is empty, all sums are there. */
struct place_of_block {
    int part, n_parts, first, n;
    uint32_t full, empty, sums_here;
    __device__ place_of_block(const layout &l, const uint64_t *barriers) {
        part = (int)cluster_rank(), n_parts = (int)cluster_size();
        first = l.n_steps * part / n_parts, n = l.n_steps * (part + 1) / n_parts - first;
        full = shared_address(barriers), empty = full + 8 * STAGES_MOST, sums_here = empty + 8 * STAGES_MOST;
    }
    __device__ void barriers_init(const layout &l, int n_warps) const {
        for (int i = 0; i < l.n_stages; i++) {
            barrier_init(full + 8 * i, 1);
            barrier_init(empty + 8 * i, n_warps);
        }
        barrier_init(sums_here, 1);
        barriers_publish();
    }
};

/* The steps of this block's part of k, by one thread. */
template <typename F, typename B>
__device__ void produce(const few_rows_product &q, const layout &l, const CUtensorMap *w, const CUtensorMap *x,
                        const place_of_block &at, uint32_t tiles) {
    const int column = (int)blockIdx.x * B::template y_columns<F>();
    auto fetch_x = [&](int step, int stage) {
        fetch_box(tiles + stage * l.step_bytes + F::W_BYTES, x, (at.first + step) * STEP, 0, 0, at.full + 8 * stage);
    };
    auto fetch_w = [&](int step, int stage) {
        const uint32_t tile = tiles + stage * l.step_bytes, full = at.full + 8 * stage;
        barrier_arrive_expecting(full, l.step_bytes);
        fetch_box_once(tile, w, (at.first + step) * STEP, column, 0, full);
        if (B::GATED)
            fetch_box_once(tile + F::W_BYTES / 2, w, (at.first + step) * STEP, (int)q.n / 2 + column, 0, full);
    };
    const int ahead = min(at.n, l.n_stages);
    for (int step = 0; step < ahead; step++) fetch_w(step, step);
    chain_wait();
    for (int step = 0; step < ahead; step++) fetch_x(step, step);
    stage_place place;
    for (int step = ahead; step < at.n; step++, place.advance(l.n_stages)) {
        barrier_wait(at.empty + 8 * place.stage, place.parity);
        fetch_w(step, place.stage);
        fetch_x(step, place.stage);
    }
}

/* ---- the product ---------------------------------------------------------------------------------------------------- */

/* sum (64, WIDTH) = left right^T over the steps of the block, of this warp group. */
template <typename E, typename F>
__device__ void consume(float (&sum)[F::WIDTH / 8][4], const layout &l, const place_of_block &at, uint32_t tiles) {
    const uint32_t group = (uint32_t)attention_wgmma::warp_group();
    const uint32_t own_left = tiles + F::left_at(group), own_right = tiles + F::right_at(group);
    stage_place place;
#pragma unroll
    for (int i = 0; i < F::WIDTH / 8 * 4; i++) sum[i / 4][i % 4] = 0;
    uint32_t before = 0; /* the barrier of the step in front, whose product is still to end */
    for (int step = 0; step < at.n; step++, place.advance(l.n_stages)) {
        barrier_wait(at.full + 8 * place.stage, place.parity);
        const uint32_t left = own_left + place.stage * l.step_bytes, right = own_right + place.stage * l.step_bytes;
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < STEP / 16; k++)
            wgmma<E, F::WIDTH>::template shared<0, 0>(sum, attention_wgmma::operand(left + k * 32, 0),
                                                      attention_wgmma::operand(right + k * 32, 0), 1);
        wgmma_commit();
        wgmma_wait<1>();
        if (step > 0 && threadIdx.x % WARP == 0) barrier_arrive(before);
        before = at.empty + 8 * place.stage;
    }
    wgmma_wait<0>();
    wgmma_settle(sum);
}

/* Whole: a thread's sums, pairs of neighbours of a row, go where the tiles were. */
template <typename F>
__device__ void keep(const float (&sum)[F::WIDTH / 8][4], const few_rows_product &q, uint32_t sums) {
    const int lane = (int)threadIdx.x % WARP, row = (int)threadIdx.x % GROUP / WARP * 16 + lane / 4;
    const int column = (int)threadIdx.x / GROUP * F::WIDTH + lane % 4 * 2;
    const uint32_t to = sums + (uint32_t)(row * F::PITCH + column) * 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (row + half * 8 >= q.m) break;
#pragma unroll
        for (int i = 0; i < F::WIDTH / 8; i++)
            store_shared_8(to + (half * 8 * F::PITCH + i * 8) * 4, make_float2(sum[i][2 * half], sum[i][2 * half + 1]));
    }
}

/* What the lane that has the neighbouring columns gives away. */
template <int DISTANCE> __device__ inline float swap_lanes(float give) {
    return __shfl_xor_sync(0xffffffffu, give, DISTANCE);
}

/* Cut: sums go to the blocks that have their rows, four neighbours of a row at once: lanes have two rows of two columns that are 8
 * apart, and swap with those that have the columns beside. */
template <typename F>
__device__ void send(const float (&sum)[F::WIDTH / 8][4], const few_rows_product &q, const layout &l,
                     const place_of_block &at, uint32_t sums) {
    const int lane = (int)threadIdx.x % WARP;
    const bool odd = lane / 4 % 2, upper = lane / 8 % 2;
    const int first_row = (int)threadIdx.x / GROUP * F::WIDTH + lane % 4 * 2 + odd;
    const int column = (int)threadIdx.x % GROUP / WARP * 16 + upper * 8 + lane / 16 * 4;
#pragma unroll
    for (int i = 0; i < F::WIDTH / 8; i++) {
        float2 pair[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float even_row = sum[i][2 * half], odd_row = sum[i][2 * half + 1];
            const float other = swap_lanes<4>(odd ? even_row : odd_row);
            pair[half] = odd ? make_float2(other, odd_row) : make_float2(even_row, other);
        }
        const float2 own = upper ? pair[1] : pair[0], give = upper ? pair[0] : pair[1];
        const float2 got = make_float2(swap_lanes<8>(give.x), swap_lanes<8>(give.y));
        const float4 v = upper ? make_float4(got.x, got.y, own.x, own.y) : make_float4(own.x, own.y, got.x, got.y);
        const int row = first_row + i * 8, owner = row * at.n_parts / F::OPERAND_ROWS; /* row / share */
        if (row >= q.m) continue;
        const uint32_t to = sums + (uint32_t)(((at.part - owner) * l.share + row) * F::PITCH + column) * 4;
        cluster_send(cluster_address(to, (uint32_t)owner), v, cluster_address(at.sums_here, (uint32_t)owner));
    }
}

/* ---- y --------------------------------------------------------------------------------------------------------------- */

/* Four neighbours of a row of sums, over all parts of k in order. */
template <typename F>
__device__ inline void total_of(float (&out)[4], uint32_t address, const layout &l, const place_of_block &at) {
    constexpr int MOST = F::CUT ? PARTS_MOST : 1;
    const uint32_t between = (uint32_t)(l.share * F::PITCH) * 4;
    uint4 parts[MOST];
    out[0] = out[1] = out[2] = out[3] = 0;
#pragma unroll
    for (int p = 0; p < MOST; p++)
        if (!F::CUT || p < at.n_parts) parts[p] = load_shared_16(address + p * between);
#pragma unroll
    for (int p = 0; p < MOST; p++)
        if (!F::CUT || p < at.n_parts) {
            out[0] += __uint_as_float(parts[p].x), out[1] += __uint_as_float(parts[p].y);
            out[2] += __uint_as_float(parts[p].z), out[3] += __uint_as_float(parts[p].w);
        }
}

template <typename Y> struct alignas(4 * sizeof(Y)) four { Y e[4]; };

/* Four neighbours of y that a thread makes. Their biases come from memory and are asked for before the sums are there. */
template <typename Y, typename F, typename B> struct quad_of_y {
    enum { COLUMNS = B::template y_columns<F>() };
    int row, c0; /* of the rows and columns of the block */
    int64_t column;
    int left; /* columns of y from here on, at most 4 */
    Y bias[4], up_bias[4];

    __device__ void begin(const few_rows_product &q, int i) {
        const int64_t n = B::GATED ? q.n / 2 : q.n;
        row = 4 * i / COLUMNS, c0 = 4 * i % COLUMNS;
        column = (int64_t)blockIdx.x * COLUMNS + c0;
        left = (int)min(max(n - column, (int64_t)0), (int64_t)4);
        if (!q.bias) return;
#pragma unroll
        for (int c = 0; c < 4; c++) {
            if (c >= left) continue;
            bias[c] = ((const Y *)q.bias)[column + c];
            if (B::GATED) up_bias[c] = ((const Y *)q.bias)[n + column + c];
        }
    }
    /* What a LINEAR gives. */
    __device__ void product(Y (&y)[4], const float (&sum)[4], const Y (&added)[4], const few_rows_product &q) const {
#pragma unroll
        for (int c = 0; c < 4; c++) round_to(&y[c], sum[c] * q.alpha + (q.bias && c < left ? (float)added[c] : 0));
    }
    __device__ void finish(const few_rows_product &q, const layout &l, const place_of_block &at, uint32_t sums) const {
        const uint32_t own = sums + (uint32_t)(row * F::PITCH + c0) * 4;
        four<Y> y;
        float sum[4];
        total_of<F>(sum, own, l, at);
        product(y.e, sum, bias, q);
        if (B::GATED) {
            Y up[4];
            total_of<F>(sum, own + COLUMNS * 4, l, at);
            product(up, sum, up_bias, q);
            /* One question for all four: between them they would be done one behind the other. */
            auto gate = [&](bool gelu) {
#pragma unroll
                for (int c = 0; c < 4; c++) round_to(&y.e[c], gated<Y>((float)y.e[c], (float)up[c], gelu));
            };
            if (q.gelu) gate(true);
            else gate(false);
        }
        Y *to = (Y *)q.y + (at.part * l.share + row) * q.ldy + column;
        if (left == 4 && (uintptr_t)to % sizeof y == 0) *(four<Y> *)to = y;
        else
            for (int c = 0; c < 4; c++)
                if (c < left) to[c] = y.e[c];
    }
};

#endif

template <typename E, typename Y, typename F, typename B>
__global__ void __launch_bounds__(F::THREADS, F::BLOCKS)
    few_rows(const __grid_constant__ few_rows_product q, const __grid_constant__ layout l,
             const __grid_constant__ CUtensorMap w, const __grid_constant__ CUtensorMap x) {
#if WGMMA_HERE
    extern __shared__ unsigned char memory[];
    __shared__ __align__(8) uint64_t barriers[2 * STAGES_MOST + 1];
    const place_of_block at(l, barriers);
    const uint32_t tiles = (shared_address(memory) + 1023) & ~1023u, sums = tiles + l.sums_at;
    const int n_rows = min(max((int)q.m - at.part * l.share, 0), l.share); /* that this block makes */

    chain_next();
    if (threadIdx.x == F::CONSUMERS) {
        prefetch_map(&x); /* or its first box waits for it */
        at.barriers_init(l, F::CONSUMERS / WARP);
        if (F::CUT) barrier_arrive_expecting(at.sums_here, (uint32_t)(n_rows * at.n_parts * F::COLUMNS) * 4);
    }
    __syncthreads();
    if (F::CUT) cluster_arrive_relaxed();
    if (threadIdx.x >= F::CONSUMERS) {
        if (threadIdx.x == F::CONSUMERS) produce<F, B>(q, l, &w, &x, at, tiles);
        else chain_wait();
        __syncwarp();
        if (F::CUT) cluster_wait();
        else threads_meet(1, F::THREADS);
    } else {
        float sum[F::WIDTH / 8][4];
        chain_wait();
        if (F::CUT) cluster_wait(); /* nobody sends to a block whose barrier is not there yet */
        consume<E, F>(sum, l, at, tiles);
        if (F::CUT) send<F>(sum, q, l, at, sums);
        else {
            threads_meet(1, F::THREADS); /* all have read the tiles; racecheck loses track where only consumers meet */
            keep<F>(sum, q, sums);
        }
    }
    const int n_quads = n_rows * (B::template y_columns<F>() / 4);
    int i = (int)threadIdx.x;
    quad_of_y<Y, F, B> quad;
    quad.begin(q, i);
    if (!F::CUT) __syncthreads();
    else if (n_rows > 0) barrier_wait_cluster(at.sums_here, 0);
    for (; i < n_quads; quad.begin(q, i)) {
        quad.finish(q, l, at, sums);
        i += F::THREADS;
    }
#endif
}

/* By n and k alone. */
unsigned parts_of(const few_rows_product *q) {
    enum { TILE = 64, BLOCKS_ENOUGH = 396 /* three on each of 132 multiprocessors */ };
    const int64_t blocks = (q->n + TILE - 1) / TILE, steps = (q->k + STEP - 1) / STEP;
    unsigned parts = 1;
    while (parts < PARTS_MOST && blocks * parts * 2 <= BLOCKS_ENOUGH && steps >= parts * 4) parts *= 2;
    return parts;
}

template <typename E, typename Y, typename F, typename B>
void run(cudaStream_t s, const few_rows_product *q, uint32_t ring_bytes) {
    constexpr int COLUMNS = B::template y_columns<F>();
    const unsigned parts = parts_of(q);
    const layout l = layout_of<F>(q, (int)parts, ring_bytes);
    tensor_box w = {.data = q->w,
                    .columns = q->k,
                    .rows = q->n,
                    .sequences = 1,
                    .box_columns = STEP,
                    .box_rows = COLUMNS,
                    .type = q->type};
    tensor_box x = w;
    x.data = q->x, x.rows = q->m, x.box_rows = (int)(l.x_bytes / ROW_BYTES);
    const int64_t columns = B::GATED ? q->n / 2 : q->n;
    launch_chained(few_rows<E, Y, F, B>, dim3((unsigned)((columns + COLUMNS - 1) / COLUMNS), parts), dim3(F::THREADS),
                   l.n_bytes, parts, s, *q, l, tensor_map_make(&w), tensor_map_make(&x));
}

/* ---- the choice ------------------------------------------------------------------------------------------------------ */

template <typename E, typename Y, typename B> void run_cut(cudaStream_t s, const few_rows_product *q) {
    enum { RING_BYTES = 73 * 1024 }; /* three blocks have room for it, and most of them for their sums */
    if (q->m <= 8) run<E, Y, cut_tile<8>, B>(s, q, RING_BYTES);
    else if (q->m <= 16) run<E, Y, cut_tile<16>, B>(s, q, RING_BYTES);
    else if (q->m <= 32) run<E, Y, cut_tile<32>, B>(s, q, RING_BYTES);
    else run<E, Y, cut_tile<FEW_ROWS_MOST>, B>(s, q, RING_BYTES);
}

/* Tiles so wide that the multiprocessor that has the most has least; of equals the widest. Where each has one tile it leaves room beside it
 * for a block of the product behind, whose weights are then asked for earlier; otherwise two blocks share the memory. */
template <typename E, typename Y, typename B> void run_whole(cudaStream_t s, const few_rows_product *q) {
    enum { ALONE_BYTES = 137 * 1024, SHARED_BYTES = 108 * 1024 };
    static const int widths[] = {72, 64, 48, 32}; /* of a warp group */
    int device = 0, n_multiprocessors = 132, best = 0;
    int64_t least = INT64_MAX, rounds = 0;
    if (cudaGetDevice(&device) == cudaSuccess)
        cudaDeviceGetAttribute(&n_multiprocessors, cudaDevAttrMultiProcessorCount, device);
    for (int width : widths) {
        const int64_t columns = B::GATED ? q->n / 2 : q->n, of_block = B::GATED ? width : 2 * width;
        const int64_t blocks = (columns + of_block - 1) / of_block;
        const int64_t turns = (blocks + n_multiprocessors - 1) / n_multiprocessors;
        if (turns * width < least) least = turns * width, best = width, rounds = turns;
    }
    const uint32_t ring_bytes = rounds == 1 ? ALONE_BYTES : SHARED_BYTES;
    if (best == 72) run<E, Y, whole_tile<72>, B>(s, q, ring_bytes);
    else if (best == 64) run<E, Y, whole_tile<64>, B>(s, q, ring_bytes);
    else if (best == 48) run<E, Y, whole_tile<48>, B>(s, q, ring_bytes);
    else run<E, Y, whole_tile<32>, B>(s, q, ring_bytes);
}

template <typename E, typename Y, typename B> void by_parts(cudaStream_t s, const few_rows_product *q) {
    if (parts_of(q) > 1) run_cut<E, Y, B>(s, q);
    else run_whole<E, Y, B>(s, q);
}

template <typename E> void by_result(cudaStream_t s, const few_rows_product *q) {
    if (q->y_type == LAUNCH_F32) by_parts<E, float, beside<false>>(s, q);
    else if (q->gated) by_parts<E, E, beside<true>>(s, q);
    else by_parts<E, E, beside<false>>(s, q);
}

} // namespace

extern "C" void launch_few_rows(cudaStream_t s, const few_rows_product *q) {
    if (q->type == LAUNCH_BF16) by_result<__nv_bfloat16>(s, q);
    else by_result<__half>(s, q);
}
