/* few_codes_wgmma.cu - few_codes.cu for compute capability 9.0: as fast as the codes can be read.
 *
 * A block takes 64 rows of the weight, its tile, and all or a part of k, in boxes that the TMA unit fetches several steps ahead; the
 * first of them are under way before the kernels in front are done (chain.cuh). The codes are the left operand of the products: read from
 * shared memory as they lie or, of nf4, looked up into registers. The right operand are the bytes of x (few_codes.cuh), two columns for each
 * row, so that a few rows waste little.
 *
 * Sums of int8 are exact over all of k, those of nf4 over its blocks. Tensor cores keep some 13 bits of a sum of e4m3, so that such sums are
 * taken over a step and added in fp32. Where n is so small that there were too few tiles, k is cut among the blocks of a cluster, who add
 * their sums in the order of k. How k is cut follows from the weight alone: a row has the same bits beside any others. */
#include "backend/cuda/attention_wgmma.cuh"
#include "backend/cuda/few_codes.cuh"
#include "backend/cuda/tensor_map.h"

#ifdef HAVE_SM90A

namespace {

using namespace few_codes_shared;

enum {
    TILE = 64,       /* rows of the weight, of a block */
    ROW_BYTES = 128, /* of a box */
    W_BYTES = TILE * ROW_BYTES,
    CONSUMERS = 128, /* a warp group */
    THREADS = CONSUMERS + WARP,
    PITCH = TILE + 8, /* of rows of sums: neighbours lie in different banks */
    PARTS_MOST = 8,
    STAGES_MOST = 12
};

/* Up to ROWS rows of x. */
template <launch_codes FORMAT, int ROWS> struct form {
    static constexpr launch_codes F = FORMAT;
    enum {
        N = 2 * ROWS,                                                  /* columns of a product */
        BLOCKS = ROWS == FEW_ROWS_MOST ? 2 : 3,                        /* that fit on a multiprocessor */
        STEP = FORMAT == LAUNCH_CODES_NF4 ? 2 * ROW_BYTES : ROW_BYTES, /* of k */
        X_BOXES = STEP / ROW_BYTES,
        NF4_BLOCKS = STEP / LAUNCH_NF4_BLOCK
    };
};

/* How a block's memory is divided: a ring of n_stages steps, each a box of codes and X_BOXES of x; in its place, afterwards, the sums.
 * Behind it what finished sums are multiplied with and their biases, and the scales of nf4. */
struct layout {
    int n_steps, n_stages, columns; /* columns of y of a tile */
    int scale_pitch;
    uint32_t x_bytes, step_bytes, columns_at, scales_at, n_bytes; /* x_bytes: of one box */
};

#if WGMMA_HERE

/* A block's part of k. */
struct place {
    int part, n_parts, first, n;
    uint32_t full, empty;
    __device__ place(const layout &l, const uint64_t *barriers) {
        part = (int)cluster_rank(), n_parts = (int)cluster_size();
        first = l.n_steps * part / n_parts, n = l.n_steps * (part + 1) / n_parts - first;
        full = shared_address(barriers), empty = full + 8 * STAGES_MOST;
    }
};

/* The steps of this block's part of k, by one thread. */
template <typename G, bool GATED>
__device__ void produce(const few_codes_product &q, const layout &l, const CUtensorMap *w, const CUtensorMap *x,
                        const place &at, uint32_t tiles) {
    const int column = (int)blockIdx.x * l.columns;
    auto fetch_x = [&](int step, int stage) {
        const uint32_t to = tiles + stage * l.step_bytes + W_BYTES;
#pragma unroll
        for (int i = 0; i < G::X_BOXES; i++)
            fetch_box(to + i * l.x_bytes, x, ((at.first + step) * G::X_BOXES + i) * ROW_BYTES, 0, 0,
                      at.full + 8 * stage);
    };
    auto fetch_w = [&](int step, int stage) {
        const uint32_t tile = tiles + stage * l.step_bytes, full = at.full + 8 * stage;
        barrier_arrive_expecting(full, l.step_bytes);
        fetch_box_once(tile, w, (at.first + step) * ROW_BYTES, column, 0, full);
        if (GATED) fetch_box_once(tile + W_BYTES / 2, w, (at.first + step) * ROW_BYTES, (int)q.n / 2 + column, 0, full);
    };
    const int ahead = min(at.n, l.n_stages);
    for (int step = 0; step < ahead; step++) fetch_w(step, step);
    chain_wait();
    for (int step = 0; step < ahead; step++) fetch_x(step, step);
    stage_place to;
    for (int step = ahead; step < at.n; step++, to.advance(l.n_stages)) {
        barrier_wait(at.empty + 8 * to.stage, to.parity);
        fetch_w(step, to.stage);
        fetch_x(step, to.stage);
    }
}

/* ---- the product ---------------------------------------------------------------------------------------------------- */

/* A thread's numbers: rows g and g + 8 of its warp's (g = lane / 4), of every row 4 i + lane % 4 of x. */
template <typename G> struct own_sums { float of[G::N / 8][2]; };

template <int N> __device__ inline void settle(int (&c)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) asm volatile("" : "+r"(c[n][i])::"memory");
}
template <int N> __device__ inline void settle(float (&c)[N][4]) { wgmma_settle(c); }

template <typename G> struct steps_of_int8 {
    int sum[G::N / 8][4];
    __device__ void begin() {
#pragma unroll
        for (int i = 0; i < G::N / 8 * 4; i++) sum[i / 4][i % 4] = 0;
    }
    __device__ void queue(uint32_t w, uint32_t x, uint32_t, const code_values &) {
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < ROW_BYTES / 32; k++)
            wgmma_int8<G::N>::shared(sum, attention_wgmma::operand(w + k * 32, 0),
                                     attention_wgmma::operand(x + k * 32, 0), 1);
        wgmma_commit();
        wgmma_wait<1>();
    }
    __device__ void end(own_sums<G> &out) {
        wgmma_wait<0>();
        settle(sum);
#pragma unroll
        for (int i = 0; i < G::N / 8 * 2; i++)
            out.of[i / 2][i % 2] = fmaf((float)sum[i / 2][i % 2 * 2], 256, (float)sum[i / 2][i % 2 * 2 + 1]);
    }
    enum { BEHIND = 1 }; /* steps whose products are still under way behind queue */
};

template <typename G> struct steps_of_fp8 {
    float step[G::N / 8][4], sum[G::N / 8][2];
    __device__ void begin() {
#pragma unroll
        for (int i = 0; i < G::N / 8 * 2; i++) sum[i / 2][i % 2] = 0;
    }
    __device__ void queue(uint32_t w, uint32_t x, uint32_t, const code_values &) {
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < ROW_BYTES / 32; k++)
            wgmma8<G::N>::shared(step, attention_wgmma::operand(w + k * 32, 0), attention_wgmma::operand(x + k * 32, 0),
                                 k > 0);
        wgmma_commit();
        wgmma_wait<0>();
        settle(step);
#pragma unroll
        for (int i = 0; i < G::N / 8 * 2; i++)
            sum[i / 2][i % 2] += fmaf(step[i / 2][i % 2 * 2 + 1], 0.0625f, step[i / 2][i % 2 * 2]);
    }
    __device__ void end(own_sums<G> &out) {
#pragma unroll
        for (int i = 0; i < G::N / 8 * 2; i++) out.of[i / 2][i % 2] = sum[i / 2][i % 2];
    }
    enum { BEHIND = 0 };
};

template <typename G> struct steps_of_nf4 {
    int block[G::N / 8][4];
    float sum[G::N / 8][2];
    uint32_t x_bytes, pitch;
    __device__ void begin() {
#pragma unroll
        for (int i = 0; i < G::N / 8 * 2; i++) sum[i / 2][i % 2] = 0;
    }
    /* The left operand of a block's two products: of rows g and g + 8, eight and eight neighbours. */
    static __device__ void look_up(uint32_t (&left)[2][4], uint32_t w, int b, const code_values &v) {
        const int lane = (int)threadIdx.x % WARP, g = lane / 4, t = lane % 4;
        const uint32_t row = w + (uint32_t)((int)threadIdx.x / WARP * 16 + g) * ROW_BYTES;
        const uint32_t from = row + (uint32_t)(((2 * b + t / 2) ^ g) * 16 + t % 2 * 8); /* as the TMA unit swizzles */
        uint2 codes[2];
#pragma unroll
        for (int half = 0; half < 2; half++)
            asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
                         : "=r"(codes[half].x), "=r"(codes[half].y)
                         : "r"(from + half * 8 * ROW_BYTES)
                         : "memory");
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t c = i < 2 ? (i % 2 ? codes[1].x : codes[0].x) : (i % 2 ? codes[1].y : codes[0].y);
            const uint32_t small = c & 0x77777777u, large = c >> 1 & 0x44444444u;
            left[i / 2][i % 2] = nf4_integers(v, small, large);
            left[i / 2][i % 2 + 2] = nf4_integers(v, small >> 16, large >> 16);
        }
    }
    /* scales: of row g, of the first block of the step. */
    __device__ void queue(uint32_t w, uint32_t x, uint32_t scales, const code_values &v) {
        uint32_t left[2][2][4];
        look_up(left[0], w, 0, v);
#pragma unroll
        for (int b = 0; b < G::NF4_BLOCKS; b++) {
            const uint32_t from = x + b / 2 * x_bytes + b % 2 * 64;
            wgmma_begin();
#pragma unroll
            for (int k = 0; k < 2; k++)
                wgmma_int8<G::N>::registers(block, left[b % 2][k], attention_wgmma::operand(from + k * 32, 0), k > 0);
            wgmma_commit();
            if (b + 1 < G::NF4_BLOCKS) look_up(left[(b + 1) % 2], w, b + 1, v);
            const float scale[2] = {load_shared_float(scales + b * 4), load_shared_float(scales + (8 * pitch + b) * 4)};
            wgmma_wait<0>();
            settle(block);
#pragma unroll
            for (int i = 0; i < G::N / 8 * 2; i++)
                sum[i / 2][i % 2] =
                    fmaf(scale[i % 2], (float)(block[i / 2][i % 2 * 2] * 256 + block[i / 2][i % 2 * 2 + 1]),
                         sum[i / 2][i % 2]);
        }
    }
    __device__ void end(own_sums<G> &out) {
#pragma unroll
        for (int i = 0; i < G::N / 8 * 2; i++) out.of[i / 2][i % 2] = sum[i / 2][i % 2];
    }
    enum { BEHIND = 0 };
};

template <typename G> struct steps_for;
template <int R> struct steps_for<form<LAUNCH_CODES_INT8, R>> {
    typedef steps_of_int8<form<LAUNCH_CODES_INT8, R>> type;
};
template <int R> struct steps_for<form<LAUNCH_CODES_FP8, R>> { typedef steps_of_fp8<form<LAUNCH_CODES_FP8, R>> type; };
template <int R> struct steps_for<form<LAUNCH_CODES_NF4, R>> { typedef steps_of_nf4<form<LAUNCH_CODES_NF4, R>> type; };

template <typename G>
__device__ void consume(own_sums<G> &out, const layout &l, const place &at, uint32_t tiles, uint32_t scales,
                        const code_values &v) {
    typedef typename steps_for<G>::type steps;
    const int lane = (int)threadIdx.x % WARP;
    steps s;
    if constexpr (G::F == LAUNCH_CODES_NF4) {
        s.x_bytes = l.x_bytes, s.pitch = (uint32_t)l.scale_pitch;
        scales += (uint32_t)(((int)threadIdx.x / WARP * 16 + lane / 4) * l.scale_pitch) * 4;
    }
    s.begin();
    stage_place from;
    uint32_t before = 0; /* the barrier of the step in front, whose products are still to end */
    for (int step = 0; step < at.n; step++, from.advance(l.n_stages)) {
        barrier_wait(at.full + 8 * from.stage, from.parity);
        const uint32_t tile = tiles + from.stage * l.step_bytes, empty = at.empty + 8 * from.stage;
        s.queue(tile, tile + W_BYTES, scales + step * G::NF4_BLOCKS * 4, v);
        if (lane == 0 && (steps::BEHIND == 0 || step > 0)) barrier_arrive(steps::BEHIND == 0 ? empty : before);
        before = empty;
    }
    s.end(out);
}

/* Sums go to (row of x, row of the tile), where the tiles were. */
template <typename G> __device__ void keep(const own_sums<G> &sum, int64_t m, uint32_t sums) {
    const int lane = (int)threadIdx.x % WARP, row = lane % 4, column = (int)threadIdx.x / WARP * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < G::N / 8; i++) {
        if (i * 4 + row >= m) break;
#pragma unroll
        for (int half = 0; half < 2; half++)
            store_shared_float(sums + (uint32_t)((i * 4 + row) * PITCH + column + half * 8) * 4, sum.of[i][half]);
    }
}

/* ---- y --------------------------------------------------------------------------------------------------------------- */

/* The row of the weight that a row of the tile is; n: none. */
template <typename G, bool GATED>
__device__ inline int64_t weight_row(const few_codes_product &q, const layout &l, int row) {
    const int64_t first = (int64_t)blockIdx.x * l.columns;
    const bool second = GATED && row >= TILE / 2;
    const int64_t at = first + (second ? row - TILE / 2 : row), n = GATED ? q.n / 2 : q.n;
    return at < n ? at + (second ? n : 0) : q.n;
}

/* What a LINEAR gives: a row of x, four neighbouring rows of the tile, over all parts of k in order. */
template <typename G, typename Y>
__device__ inline void finish(Y (&y)[4], const place &at, uint32_t sums, uint32_t columns, float x_scale, int row,
                              int column) {
    const uint32_t own = sums + (uint32_t)(row * PITCH + column) * 4;
    const uint4 scales = load_shared_16(columns + column * 4), biases = load_shared_16(columns + (TILE + column) * 4);
    const uint32_t scale[4] = {scales.x, scales.y, scales.z, scales.w},
                   bias[4] = {biases.x, biases.y, biases.z, biases.w};
    float4 parts[PARTS_MOST];
#pragma unroll
    for (int p = 0; p < PARTS_MOST; p++)
        if (p < at.n_parts) parts[p] = cluster_load4(cluster_address(own, (uint32_t)p));
    float total[4] = {0, 0, 0, 0};
#pragma unroll
    for (int p = 0; p < PARTS_MOST; p++)
        if (p < at.n_parts)
            total[0] += parts[p].x, total[1] += parts[p].y, total[2] += parts[p].z, total[3] += parts[p].w;
#pragma unroll
    for (int c = 0; c < 4; c++)
        round_to(&y[c], total[c] * (x_scale * __uint_as_float(scale[c])) + __uint_as_float(bias[c]));
}

/* The blocks of a cluster take turns with the quads of a row. */
template <typename G, typename Y, bool GATED>
__device__ void write_y(const few_codes_product &q, const layout &l, const place &at, uint32_t sums, uint32_t columns) {
    const int quads = (l.columns / 4 + at.n_parts - 1) / at.n_parts;
    const int64_t n = GATED ? q.n / 2 : q.n;
    for (int i = (int)threadIdx.x; i < (int)q.m * quads; i += THREADS) {
        const int row = i / quads, c0 = (i % quads * at.n_parts + at.part) * 4;
        const int64_t column = (int64_t)blockIdx.x * l.columns + c0;
        const int n_left = (int)min(n - column, (int64_t)4);
        if (c0 >= l.columns || n_left <= 0) continue;
        struct alignas(4 * sizeof(Y)) four {
            Y e[4];
        } y;
        const float x_scale = ((const float *)q.work)[row];
        finish<G>(y.e, at, sums, columns, x_scale, row, c0);
        if (GATED) {
            Y up[4];
            finish<G>(up, at, sums, columns, x_scale, row, TILE / 2 + c0);
#pragma unroll
            for (int c = 0; c < 4; c++) round_to(&y.e[c], gated<Y>((float)y.e[c], (float)up[c], q.gelu));
        }
        Y *to = (Y *)q.y + row * q.ldy + column;
        if (n_left == 4 && (uintptr_t)to % sizeof y == 0) *(four *)to = y;
        else
            for (int c = 0; c < 4; c++)
                if (c < n_left) to[c] = y.e[c];
    }
}

#endif

template <typename G, typename Y, bool GATED>
__global__ void __launch_bounds__(THREADS, G::BLOCKS)
    few_codes_wgmma(const __grid_constant__ few_codes_product q, const __grid_constant__ layout l,
                    const __grid_constant__ code_values values, const __grid_constant__ CUtensorMap w,
                    const __grid_constant__ CUtensorMap x) {
#if WGMMA_HERE
    extern __shared__ unsigned char memory[];
    __shared__ __align__(8) uint64_t barriers[2 * STAGES_MOST];
    __shared__ float dynamic[G::F == LAUNCH_CODES_NF4 ? 256 : 1];
    const place at(l, barriers);
    const uint32_t tiles = (shared_address(memory) + 1023) & ~1023u, columns = tiles + l.columns_at,
                   scales = tiles + l.scales_at;

    chain_next();
    if (threadIdx.x == CONSUMERS) {
        prefetch_map(&x); /* or its first box waits for it */
        for (int i = 0; i < l.n_stages; i++) {
            barrier_init(at.full + 8 * i, 1);
            barrier_init(at.empty + 8 * i, CONSUMERS / WARP);
        }
        barriers_publish();
    }
    __syncthreads();
    if (threadIdx.x >= CONSUMERS) {
        if (threadIdx.x == CONSUMERS) produce<G, GATED>(q, l, &w, &x, at, tiles);
        else chain_wait();
        __syncwarp();
        __syncthreads();
    } else {
        own_sums<G> sum;
        auto row_of = [&](int row) { return weight_row<G, GATED>(q, l, row); };
        load_columns<G::F, Y>(q, row_of, TILE, columns, CONSUMERS);
        if constexpr (G::F == LAUNCH_CODES_NF4) {
            for (int i = (int)threadIdx.x; i < 256; i += CONSUMERS) dynamic[i] = values.dynamic[i];
            threads_meet(2, CONSUMERS);
            load_scales(q, row_of, TILE, at.first * G::NF4_BLOCKS, at.n * G::NF4_BLOCKS, l.scale_pitch, dynamic, scales,
                        CONSUMERS);
            threads_meet(2, CONSUMERS);
        }
        chain_wait();
        consume<G>(sum, l, at, tiles, scales, values);
        __syncthreads(); /* all have read the tiles */
        keep<G>(sum, q.m, tiles);
    }
    if (at.n_parts > 1) cluster_sync_shared();
    else __syncthreads();
    write_y<G, Y, GATED>(q, l, at, tiles, columns);
    if (at.n_parts > 1) cluster_sync_shared(); /* no block goes while others read its sums */
#endif
}

/* ---- the choice ------------------------------------------------------------------------------------------------------ */

/* Parts of k, by the weight alone. */
unsigned parts_of(const few_codes_product *q, int row_bytes) {
    enum { BLOCKS_ENOUGH = 396 /* three on each of 132 multiprocessors */, STEPS_LEAST = 3 };
    const int64_t blocks = (q->n + TILE - 1) / TILE, steps = (row_bytes + ROW_BYTES - 1) / ROW_BYTES;
    unsigned parts = 1;
    while (parts < PARTS_MOST && blocks * parts * 2 <= BLOCKS_ENOUGH && steps >= parts * 2 * STEPS_LEAST) parts *= 2;
    return parts;
}

template <typename G> layout layout_of(const few_codes_product *q, int row_bytes, int parts) {
    enum { SHARED_BYTES = 227 * 1024, BESIDE = 3 * 1024 /* of a block: static memory and what the system takes */ };
    layout l = {};
    l.n_steps = (row_bytes + ROW_BYTES - 1) / ROW_BYTES;
    l.columns = q->gated ? TILE / 2 : TILE;
    l.x_bytes = (uint32_t)((2 * q->m + 7) / 8 * 8 * ROW_BYTES);
    l.step_bytes = W_BYTES + G::X_BOXES * l.x_bytes;
    const int longest = (l.n_steps + parts - 1) / parts;
    if (G::F == LAUNCH_CODES_NF4) l.scale_pitch = longest * G::NF4_BLOCKS | 1;
    const uint32_t beside = (uint32_t)((2 + l.scale_pitch) * TILE * 4), sums = (uint32_t)(q->m * PITCH * 4);
    /* Products read rows behind those of x, too: whatever lies there, it ends in sums that nobody reads. */
    const uint32_t behind = G::N * ROW_BYTES - l.x_bytes;
    uint32_t room = SHARED_BYTES / G::BLOCKS - BESIDE;
    room = room > beside + behind ? room - beside - behind : 0;
    l.n_stages = (int)(room / l.step_bytes);
    if (l.n_stages > STAGES_MOST) l.n_stages = STAGES_MOST;
    if (l.n_stages < 2) l.n_stages = 2; /* fewer blocks fit, then */
    if (l.n_stages > longest) l.n_stages = longest;
    uint32_t ring = (uint32_t)l.n_stages * l.step_bytes + behind;
    if (ring < sums) ring = sums;
    l.columns_at = (ring + 15) / 16 * 16;
    l.scales_at = l.columns_at + 2 * TILE * 4;
    l.n_bytes = l.columns_at + beside + 1024; /* boxes begin at multiples of 1024 */
    return l;
}

template <launch_codes F> int row_bytes_of(const few_codes_product *q) {
    return (int)(F == LAUNCH_CODES_NF4 ? q->k / 2 : q->k);
}

/* For scales of nf4 of such long rows, by the weight alone: with the most rows of x. */
bool has_room(const few_codes_product *q) {
    enum { SHARED_MOST = 224 * 1024 };
    const int row_bytes = row_bytes_of<LAUNCH_CODES_NF4>(q), parts = (int)parts_of(q, row_bytes);
    few_codes_product most = *q;
    most.m = FEW_ROWS_MOST;
    return layout_of<form<LAUNCH_CODES_NF4, FEW_ROWS_MOST>>(&most, row_bytes, parts).n_bytes <= SHARED_MOST;
}

template <typename G, typename E, typename Y, bool GATED>
void launch(cudaStream_t s, const few_codes_product *q, const code_values &values) {
    const int row_bytes = row_bytes_of<G::F>(q);
    const unsigned parts = parts_of(q, row_bytes);
    const layout l = layout_of<G>(q, row_bytes, (int)parts);
    tensor_box w = {.data = q->codes,
                    .columns = row_bytes,
                    .rows = q->n,
                    .sequences = 1,
                    .box_columns = ROW_BYTES,
                    .box_rows = l.columns,
                    .type = LAUNCH_E4M3};
    tensor_box x = w;
    x.data = bytes_in(q->work), x.columns = q->k, x.rows = 2 * q->m, x.box_rows = (int)(l.x_bytes / ROW_BYTES);
    const int64_t columns = GATED ? q->n / 2 : q->n;
    launch_round<G::F, G::F != LAUNCH_CODES_NF4, E>(s, q);
    launch_chained(few_codes_wgmma<G, Y, GATED>, dim3((unsigned)((columns + l.columns - 1) / l.columns), parts),
                   dim3(THREADS), l.n_bytes, parts, s, *q, l, values, tensor_map_make(&w), tensor_map_make(&x));
}

template <launch_codes F, typename E, typename Y, bool GATED> struct by_rows {
    static void run(cudaStream_t s, const few_codes_product *q, const code_values &values) {
        if (q->m <= 4) launch<form<F, 4>, E, Y, GATED>(s, q, values);
        else if (q->m <= 8) launch<form<F, 8>, E, Y, GATED>(s, q, values);
        else if (q->m <= 16) launch<form<F, 16>, E, Y, GATED>(s, q, values);
        else if (q->m <= 32) launch<form<F, 32>, E, Y, GATED>(s, q, values);
        else launch<form<F, FEW_ROWS_MOST>, E, Y, GATED>(s, q, values);
    }
};

} // namespace

extern "C" bool launch_few_codes_wgmma(cudaStream_t s, const few_codes_product *q, const launch_nf4_tables *tables) {
    if (q->format == LAUNCH_CODES_NF4 && !has_room(q)) return false;
    by_format<by_rows>(s, q, tables);
    return true;
}

#endif
