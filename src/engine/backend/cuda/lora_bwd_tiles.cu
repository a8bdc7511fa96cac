/* lora_bwd_tiles.cu - scale dy b and scale dy^T xa in one reading of dy, in tiles that the TMA unit fetches: capability 9.0.
 *
 * A tile is 64 tokens of 256 columns of a part, a chunk of columns. One thread asks for tiles in a ring of stages; eight warps
 * multiply them twice. For db each has 32 of the columns, and keeps their sums over all tokens that its block sees; for dxa each
 * has 16 of the tokens and half of the columns, and a block leaves the sum over its stripe, a few chunks side by side. A
 * unit of work is a stripe and 64 tokens; a block takes a run of units down the stripes. So db has as many parts as blocks
 * share a stripe, dxa as many as a part has stripes; a second kernel adds both in order. What is summed in which order
 * follows from shapes alone (lora_units.h): the number of blocks is no property of the device. */
#include "backend/cuda/lora_tiles.cuh"

enum { WARPS = 8, THREADS = (WARPS + 1) * 32, TOKENS = LORA_UNIT_TOKENS, COLUMNS = LORA_CHUNK_COLUMNS, STAGES = 4 };
enum { SUM_BARRIER = 1, ALIGNMENT = 1024, BOX_BYTES = TOKENS * LORA_BOX_ROW };
static_assert(COLUMNS == WARPS * 32 && TOKENS == 64, "a warp has 32 columns; two warps share 16 tokens");

/* NT: tiles of 16 along r. */
template <int NT> struct layout {
    enum { CHUNKS = LORA_STRIPE_CHUNKS / NT, RANK = 16 * NT, B_PITCH = RANK * 2 + 16, XA_BYTES = TOKENS * RANK * 2 };
};
template <int NT> struct shared_state {
    struct stage {
        uint8_t dy[TOKENS * COLUMNS * 2], xa[layout<NT>::XA_BYTES]; /* both multiples of ALIGNMENT */
    } stages[STAGES];
    uint8_t b[layout<NT>::CHUNKS * COLUMNS * layout<NT>::B_PITCH];
    float halves[2][TOKENS * layout<NT>::RANK]; /* of dxa, from the upper half of the columns, by turns */
    uint64_t full[STAGES], empty[STAGES];
};

/* Some chunks of a part side by side: what a unit is wide. */
struct stripe {
    int part, chunks;
    int64_t first, columns, b_row; /* in dy; of the stripe; in b */
};
template <int NT> static __device__ stripe stripe_at(const launch_lora_bwd_args &a, int64_t number) {
    int64_t b_row = 0;
    for (int part = 0;; part++) {
        int64_t columns = a.parts.columns[part], chunks = (columns + COLUMNS - 1) / COLUMNS;
        int64_t n = (chunks + layout<NT>::CHUNKS - 1) / layout<NT>::CHUNKS;
        if (number < n || part + 1 == a.parts.n) {
            int64_t begin = number * chunks / n, end = (number + 1) * chunks / n, at = begin * COLUMNS;
            int64_t wide = min(end * COLUMNS, columns) - at;
            return {part, (int)(end - begin), a.parts.first[part] + at, wide, b_row + at};
        }
        number -= n, b_row += columns;
    }
}

#if WGMMA_HERE

/* The first unit of a block, of as many as there are. */
static __device__ int64_t unit_begin(const launch_lora_bwd_args &a, int64_t block) {
    return block * a.n_units / a.n_blocks;
}

template <int NT>
static __device__ void load_tiles(const launch_lora_bwd_args &a, const launch_lora_bwd_maps &m, shared_state<NT> &s) {
    int64_t end = unit_begin(a, blockIdx.x + 1);
    ring_place<STAGES> to;
    for (int64_t unit = unit_begin(a, blockIdx.x); unit < end; unit++) {
        stripe at = stripe_at<NT>(a, unit / a.units_per_stripe);
        int token = (int)(unit % a.units_per_stripe) * TOKENS;
        for (int chunk = 0; chunk < at.chunks; chunk++, to.advance()) {
            uint32_t dy = shared_address(s.stages[to.stage].dy), full = shared_address(&s.full[to.stage]);
            int first = chunk * COLUMNS, n_boxes = min(COLUMNS, (int)at.columns - first) / LORA_BOX_COLUMNS;
            barrier_wait(shared_address(&s.empty[to.stage]), to.parity ^ 1);
            barrier_arrive_expecting(full, n_boxes * BOX_BYTES + layout<NT>::XA_BYTES);
            for (int box = 0; box < n_boxes; box++)
                fetch_box(dy + box * BOX_BYTES, &m.dy, (int)at.first + first + box * LORA_BOX_COLUMNS, token, 0, full);
            fetch_box(shared_address(s.stages[to.stage].xa), &m.xa, at.part * (int)a.r, token, 0, full);
        }
    }
}

static __device__ void sum_barrier() { asm volatile("bar.sync %0, %1;" ::"n"((int)SUM_BARRIER), "n"(WARPS * 32) : "memory"); }

/* The rows of b of a stripe, zeros behind r and behind the columns. */
template <typename E, int NT>
static __device__ void load_b(const launch_lora_bwd_args &a, const stripe &at, shared_state<NT> &s) {
    using L = layout<NT>;
    sum_barrier(); /* the stripe before is used up */
    for (int e = threadIdx.x; e < at.chunks * COLUMNS * 2 * NT; e += WARPS * 32) {
        int row = e / (2 * NT), k = e % (2 * NT) * 8;
        bool there = row < at.columns && k < a.r;
        uint4 v = there ? *(const uint4 *)((const E *)a.b + (at.b_row + row) * a.r + k) : make_uint4(0, 0, 0, 0);
        store_shared_16(shared_address(s.b) + row * L::B_PITCH + k * 2, v);
    }
    sum_barrier();
}

/* The last tile of a part may have fewer boxes: the others become 0, for what lay there before may be no number. */
static __device__ void clear_boxes(uint32_t dy, int n_boxes) {
    for (int at = n_boxes * BOX_BYTES + threadIdx.x * 16; at < TOKENS * COLUMNS * 2; at += WARPS * 32 * 16)
        store_shared_16(dy + at, make_uint4(0, 0, 0, 0));
    sum_barrier();
}

/* db += dy^T xa for the warp's 32 columns of a tile. */
template <typename E, int NT> static __device__ void add_db(float (&acc)[2][2 * NT][4], uint32_t dy, uint32_t xa) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, i = lane / 8;
#pragma unroll
    for (int k = 0; k < TOKENS; k += 16) {
        uint32_t x[2][4];
#pragma unroll
        for (int m = 0; m < 2; m++)
            load_matrices_transposed(
                x[m], dy + wide_place<TOKENS>(k + i / 2 * 8 + lane % 8, warp * 32 + m * 16 + i % 2 * 8));
#pragma unroll
        for (int n = 0; n < NT; n++) {
            uint32_t b[4];
            load_matrices_transposed(
                b, xa + narrow_place<layout<NT>::RANK>(k + i % 2 * 8 + lane % 8, n * 16 + i / 2 * 8));
#pragma unroll
            for (int m = 0; m < 2; m++) {
                mma<E>(acc[m][2 * n], x[m], b[0], b[1]);
                mma<E>(acc[m][2 * n + 1], x[m], b[2], b[3]);
            }
        }
    }
}

/* dxa += dy b for the warp's 16 tokens and half of the columns. */
template <typename E, int NT>
static __device__ void add_dxa(float (&acc)[2 * NT][4], uint32_t dy, uint32_t b_rows) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, i = lane / 8, first = warp / 4 * (COLUMNS / 2);
#pragma unroll
    for (int k = 0; k < COLUMNS / 2; k += 16) {
        uint32_t x[4];
        load_matrices(x, dy + wide_place<TOKENS>(warp % 4 * 16 + lane % 16, first + k + lane / 16 * 8));
#pragma unroll
        for (int n = 0; n < NT; n++) {
            uint32_t b[4];
            load_matrices_transposed(b, b_rows + (first + k + i % 2 * 8 + lane % 8) * layout<NT>::B_PITCH +
                                            (n * 16 + i / 2 * 8) * 2);
            mma<E>(acc[2 * n], x, b[0], b[1]);
            mma<E>(acc[2 * n + 1], x, b[2], b[3]);
        }
    }
}

/* Both halves of the columns, the lower first, into the part of the stripe. */
template <int NT>
static __device__ void store_dxa(const launch_lora_bwd_args &a, const float (&acc)[2 * NT][4], float *halves,
                                 int64_t number, int64_t token) {
    enum { RANK = layout<NT>::RANK };
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    float *mine = halves + warp % 4 * 16 * RANK;
    if (warp >= 4)
#pragma unroll
        for (int e = 0; e < 8 * NT; e++) mine[(g + e % 4 / 2 * 8) * RANK + e / 4 * 8 + 2 * t + e % 2] = acc[e / 4][e % 4];
    sum_barrier();
    if (warp >= 4) return;
#pragma unroll
    for (int e = 0; e < 8 * NT; e++) {
        int row = g + e % 4 / 2 * 8, column = e / 4 * 8 + 2 * t + e % 2;
        int64_t at = token + warp * 16 + row;
        if (at < a.N && column < a.r)
            a.dxa_parts[(number * a.N + at) * a.r + column] = acc[e / 4][e % 4] + mine[row * RANK + column];
    }
}

template <int NT>
static __device__ void store_db(const launch_lora_bwd_args &a, const float (&acc)[layout<NT>::CHUNKS][2][2 * NT][4],
                                const stripe &at, int64_t number) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    int64_t segment = blockIdx.x - lora_unit_block(number * a.units_per_stripe, a.n_units, a.n_blocks);
#pragma unroll
    for (int chunk = 0; chunk < layout<NT>::CHUNKS; chunk++)
#pragma unroll
        for (int e = 0; e < 16 * NT; e++) {
            int m = e / (8 * NT), n = e % (8 * NT) / 4, i = e % 4;
            int row = chunk * COLUMNS + warp * 32 + m * 16 + g + i / 2 * 8, column = n * 8 + 2 * t + i % 2;
            if (chunk < at.chunks && row < at.columns && column < a.r)
                a.db_parts[(segment * a.R + at.b_row + row) * a.r + column] = acc[chunk][m][n][i];
        }
}

template <typename E, int NT> static __device__ void multiply_tiles(const launch_lora_bwd_args &a, shared_state<NT> &s) {
    using L = layout<NT>;
    int lane = threadIdx.x % 32;
    int64_t unit = unit_begin(a, blockIdx.x), end = unit_begin(a, blockIdx.x + 1);
    ring_place<STAGES> now;
    while (unit < end) {
        int64_t number = unit / a.units_per_stripe, stripe_end = min(end, (number + 1) * a.units_per_stripe);
        stripe at = stripe_at<NT>(a, number);
        float db[L::CHUNKS][2][2 * NT][4] = {};
        load_b<E, NT>(a, at, s);
        for (; unit < stripe_end; unit++) {
            int64_t token = unit % a.units_per_stripe * TOKENS;
            float dxa[2 * NT][4] = {};
#pragma unroll
            for (int chunk = 0; chunk < L::CHUNKS; chunk++) {
                if (chunk >= at.chunks) break;
                int n_boxes = ((int)at.columns - chunk * COLUMNS) / LORA_BOX_COLUMNS;
                uint32_t dy = shared_address(s.stages[now.stage].dy), xa = shared_address(s.stages[now.stage].xa);
                barrier_wait(shared_address(&s.full[now.stage]), now.parity);
                if (n_boxes * LORA_BOX_COLUMNS < COLUMNS) clear_boxes(dy, n_boxes);
                add_db<E, NT>(db[chunk], dy, xa);
                add_dxa<E, NT>(dxa, dy, shared_address(s.b) + chunk * COLUMNS * L::B_PITCH);
                __syncwarp();
                if (lane == 0) barrier_arrive(shared_address(&s.empty[now.stage]));
                now.advance();
            }
            store_dxa<NT>(a, dxa, s.halves[unit % 2], number, token);
        }
        store_db<NT>(a, db, at, number);
    }
}

#endif

template <typename E, int NT>
static __global__ void __launch_bounds__(THREADS, 1)
    bwd_kernel(const __grid_constant__ launch_lora_bwd_args a, const __grid_constant__ launch_lora_bwd_maps m) {
#if WGMMA_HERE
    extern __shared__ uint8_t shared[];
    auto &s = *(shared_state<NT> *)(((uintptr_t)shared + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    if (threadIdx.x < STAGES) {
        barrier_init(shared_address(&s.full[threadIdx.x]), 1);
        barrier_init(shared_address(&s.empty[threadIdx.x]), WARPS);
        barriers_publish();
    }
    __syncthreads();
    if (threadIdx.x / 32 < WARPS) multiply_tiles<E, NT>(a, s);
    else if (threadIdx.x % 32 == 0) load_tiles<NT>(a, m, s);
#endif
}

static __device__ float sum_parts(const float *x, int64_t step, int64_t n) {
    float sum = x[0];
#pragma unroll 4
    for (int64_t i = 1; i < n; i++) sum += x[i * step];
    return sum;
}

/* Threads for the numbers of dxa, then for those of db. */
template <typename E, typename R, int NT> static __global__ void __launch_bounds__(256) sum_kernel(launch_lora_bwd_args a) {
    int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x, wide = a.parts.n * a.r, n_dxa = a.N * wide;
    if (i < n_dxa) {
        int64_t part = i % wide / a.r, first = 0;
        for (int p = 0; p < part; p++) first += lora_stripes(a.parts.columns[p], NT);
        const float *x = a.dxa_parts + (first * a.N + i / wide) * a.r + i % a.r;
        round_to((E *)a.dxa + i, a.scale * sum_parts(x, a.N * a.r, lora_stripes(a.parts.columns[part], NT)));
        return;
    }
    i -= n_dxa;
    if (i >= a.R * a.r) return;
    int64_t row = i / a.r, number = 0;
    int part = 0;
    while (row >= a.parts.columns[part]) row -= a.parts.columns[part], number += lora_stripes(a.parts.columns[part++], NT);
    int64_t chunks = (a.parts.columns[part] + COLUMNS - 1) / COLUMNS, n = lora_stripes(a.parts.columns[part], NT);
    number += ((row / COLUMNS + 1) * n - 1) / chunks; /* the stripe whose chunks reach over it */
    int64_t begin = number * a.units_per_stripe, last = begin + a.units_per_stripe - 1;
    int64_t n_segments =
        lora_unit_block(last, a.n_units, a.n_blocks) - lora_unit_block(begin, a.n_units, a.n_blocks) + 1;
    round_to((R *)a.db + i, a.scale * sum_parts(a.db_parts + i, a.R * a.r, n_segments));
}

template <typename E, typename R, int NT>
static void launch_tiles(cudaStream_t s, const launch_lora_bwd_args *a, const launch_lora_bwd_maps *m) {
    int64_t n = a->N * a->parts.n * a->r + a->R * a->r;
    launch_kernel(bwd_kernel<E, NT>, a->n_blocks, THREADS, sizeof(shared_state<NT>) + ALIGNMENT, s, *a, *m);
    launch_kernel(sum_kernel<E, R, NT>, (n + 255) / 256, 256, 0, s, *a);
}

template <typename E, typename R>
static void launch_rank(cudaStream_t s, const launch_lora_bwd_args *a, const launch_lora_bwd_maps *m) {
    if (lora_rank_width(a->r) == 16) launch_tiles<E, R, 1>(s, a, m);
    else launch_tiles<E, R, 2>(s, a, m);
}

void launch_lora_bwd(cudaStream_t s, launch_type t, launch_type db_type, const launch_lora_bwd_args *a,
                     const launch_lora_bwd_maps *m) {
    if (t == LAUNCH_F16) launch_rank<__half, float>(s, a, m);
    else if (db_type == LAUNCH_BF16) launch_rank<__nv_bfloat16, __nv_bfloat16>(s, a, m);
    else launch_rank<__nv_bfloat16, float>(s, a, m);
}
