/* few_codes_wgmma.cu - few_codes.cu for compute capability 9.0: as fast as the codes can be read.
 *
 * A block takes 64 rows of the weight, its tile, and all or a part of k, in boxes that the TMA unit fetches several steps ahead; the
 * first of them are under way before the kernels in front are done (chain.cuh). The codes are the left operand of the products: read from
 * shared memory as they lie or, of nf4, looked up into registers. The right operand are the bytes of x (few_codes.cuh), two columns for each
 * row, so that a few rows waste little.
 *
 * Sums are taken over a step of int8 and fp8 and over a block of nf4, and added in fp32. Where n is so small that there were too few tiles, k
 * is cut among the blocks of a cluster, who add their sums in the order of k. How k is cut follows from the weight alone: a row has the same
 * bits beside any others. */
#include "backend/cuda/attention_wgmma.cuh"
#include "backend/cuda/few_codes.cuh"
#include "backend/cuda/tensor_map.h"

#ifdef HAVE_SM90A

namespace {

using namespace few_codes_shared;

enum {
    TILE = 64,       /* rows of the weight, of a block */
    CONSUMERS = 128, /* a warp group */
    THREADS = CONSUMERS + WARP,
    PITCH = TILE + 8, /* of rows of sums: neighbours lie in different banks */
    PARTS_MOST = 8,
    STAGES_MOST = 16
};

/* Up to ROWS rows of x. A step is a box of x, and as much of k of the tile. */
template <launch_codes FORMAT, int ROWS> struct form {
    static constexpr launch_codes F = FORMAT;
    static constexpr int BLOCKS = ROWS <= 4 ? 5 : ROWS <= 8 ? 4 : 3; /* that a multiprocessor has room for, at most */
    enum {
        N = 2 * ROWS,                                               /* columns of x */
        X_SCALE_BYTES = ROWS * 4,                                   /* of a step */
        ROW_BYTES = FORMAT == LAUNCH_CODES_NF4 ? X_BOX / 2 : X_BOX, /* of a row of the tile, in a step */
        W_BYTES = TILE * ROW_BYTES
    };
};

/* How a block's memory is divided: a ring of n_stages steps, each a box of codes and one of x; in its place, afterwards, the sums. Behind it
 * what finished sums are multiplied with and their biases, and the scales of x of each step in the ring. */
struct layout {
    int n_steps, n_stages, columns;                                 /* columns of y of a tile */
    uint32_t x_bytes, step_bytes, columns_at, x_scales_at, n_bytes; /* x_bytes: of a box */
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
        const uint32_t full = at.full + 8 * stage;
        fetch_box(tiles + stage * l.step_bytes + G::W_BYTES, x, (at.first + step) * X_BOX, 0, 0, full);
        copy_bulk(tiles + l.x_scales_at + stage * G::X_SCALE_BYTES,
                  (const float *)q.work + (at.first + step) * FEW_ROWS_MOST, G::X_SCALE_BYTES, full);
    };
    auto fetch_w = [&](int step, int stage) {
        const uint32_t tile = tiles + stage * l.step_bytes, full = at.full + 8 * stage;
        const int from = (at.first + step) * G::ROW_BYTES;
        barrier_arrive_expecting(full, l.step_bytes + G::X_SCALE_BYTES);
        fetch_box_once(tile, w, from, column, 0, full);
        if (GATED) fetch_box_once(tile + G::W_BYTES / 2, w, from, (int)q.n / 2 + column, 0, full);
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

/* The scales of this thread's rows of x. */
template <int N> struct x_scales {
    float of[N / 8];
    __device__ void load(uint32_t from) {
#pragma unroll
        for (int i = 0; i < N / 8; i++) of[i] = load_shared_float(from + (uint32_t)(i * 4 + threadIdx.x % 4) * 4);
    }
};

template <typename T, int N> struct byte_products : wgmma_int8<N> {};
template <int N> struct byte_products<float, N> : wgmma8<N> {};

/* Codes that are operands as they are: integers, whose sums are exact, or e4m3 numbers, of whose sums tensor cores keep some 13 bits. */
template <typename G, typename T> struct steps_of_bytes {
    __device__ steps_of_bytes(const code_values &, const float *) {}
    template <typename R> __device__ void begin(const few_codes_product &, const place &, R) {}
    __device__ void add(own_sums<G> &sum, uint32_t w, uint32_t x, uint32_t scales) {
        T step[G::N / 8][4];
        x_scales<G::N> scale;
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < X_BOX / 32; k++)
            byte_products<T, G::N>::shared(step, attention_wgmma::operand(w + k * 32, 0),
                                           attention_wgmma::operand(x + k * 32, 0), k > 0);
        wgmma_commit();
        scale.load(scales);
        wgmma_wait<0>();
        settle(step);
#pragma unroll
        for (int i = 0; i < G::N / 8 * 2; i++)
            sum.of[i / 2][i % 2] =
                fmaf(scale.of[i / 2], sum_of_bytes(step[i / 2][i % 2 * 2], step[i / 2][i % 2 * 2 + 1]),
                     sum.of[i / 2][i % 2]);
    }
};

/* The scales of nf4 that the lanes of a thread's four neighbours need in a step, each lane one of them: of row g or g + 8, of the first
 * or the second block. They are loaded some steps ahead, as the codes are. */
struct nf4_scales {
    enum { AHEAD = 4 };
    const uint8_t *codes;
    const float *scales;
    float offset;
    int first_code, block, n_blocks; /* first_code: among those of the part; n_blocks: 0 where there is no row */
    uint8_t code[AHEAD];
    float scale[AHEAD];

    template <typename R> __device__ void begin(const few_codes_product &q, const place &at, R weight_row) {
        const int lane = (int)threadIdx.x % WARP;
        const int64_t row = weight_row((int)threadIdx.x / WARP * 16 + lane / 4 + lane % 4 / 2 * 8);
        const few_codes_part &part = part_of(q, row);
        n_blocks = row < q.n ? (int)(q.k / LAUNCH_NF4_BLOCK) : 0;
        block = at.first * 2 + lane % 2;
        first_code = (int)(row - part.first_row) * n_blocks;
        codes = part.scale_codes, scales = part.scale, offset = n_blocks ? *part.offset : 0;
#pragma unroll
        for (int a = 0; a < AHEAD; a++) load(a);
    }
    __device__ void load(int a) {
        code[a] = 0, scale[a] = 0;
        if (block < n_blocks) {
            code[a] = codes[first_code + block];
            scale[a] = scales[(first_code + block) / LAUNCH_NF4_SCALE_BLOCK];
        }
        block += 2;
    }
    /* Of the next step. */
    __device__ float next(const float *dynamic) {
        const float v = fmaf(dynamic[code[0]], scale[0], offset);
#pragma unroll
        for (int a = 0; a + 1 < AHEAD; a++) code[a] = code[a + 1], scale[a] = scale[a + 1];
        load(AHEAD - 1);
        return v;
    }
};

template <typename G> struct steps_of_nf4 {
    enum {
        N = G::N < 128 ? G::N : 32, /* columns of a product: with all 128 there are too few registers */
        KS = LAUNCH_NF4_BLOCK / 32
    };
    nf4_scales scales;
    const float *dynamic;
    uint32_t below[2], above[2]; /* eight values each, in registers */
    __device__ steps_of_nf4(const code_values &v, const float *dynamic) : dynamic(dynamic) {
#pragma unroll
        for (int i = 0; i < 2; i++)
            asm volatile("mov.b32 %0, %2;\n"
                         "mov.b32 %1, %3;"
                         : "=r"(below[i]), "=r"(above[i])
                         : "r"(v.integers[i]), "r"(v.integers[2 + i]));
    }

    /* The left operands of a block's products: of rows g and g + 8, eight and eight neighbours. Values are sums of two, each of which
     * a lookup gives: `below` has those of codes without their highest bit, `above` of others, and a lookup whose code is of the other kind
     * gives the sign of what it finds, -1 or 0 (code_halves). */
    struct operands {
        uint32_t of[KS][2][4];
    };
    static __device__ uint32_t look_up(const uint32_t (&values)[2], uint32_t codes) { /* __byte_perm knows no signs */
        uint32_t found;
        asm("prmt.b32 %0, %1, %2, %3;" : "=r"(found) : "r"(values[0]), "r"(values[1]), "r"(codes));
        return found;
    }
    __device__ void look_up(operands &left, uint32_t w, int b) const {
        const int lane = (int)threadIdx.x % WARP, g = lane / 4, t = lane % 4;
        const uint32_t row = w + (uint32_t)((int)threadIdx.x / WARP * 16 + g) * G::ROW_BYTES;
        const uint32_t from =
            row + (uint32_t)(((2 * b + t / 2) ^ g / 2) * 16 + t % 2 * 8); /* as the TMA unit swizzles */
        uint2 codes[2];
#pragma unroll
        for (int half = 0; half < 2; half++)
            asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
                         : "=r"(codes[half].x), "=r"(codes[half].y)
                         : "r"(from + half * 8 * G::ROW_BYTES)
                         : "memory");
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t c = i < 2 ? (i % 2 ? codes[1].x : codes[0].x) : (i % 2 ? codes[1].y : codes[0].y);
            const uint32_t other = c ^ 0x88888888u;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                left.of[i / 2][0][i % 2 + 2 * half] = look_up(below, c >> 16 * half);
                left.of[i / 2][1][i % 2 + 2 * half] = look_up(above, other >> 16 * half);
            }
        }
    }
    template <typename R> __device__ void begin(const few_codes_product &q, const place &at, R weight_row) {
        scales.begin(q, at, weight_row);
    }
    __device__ void add(own_sums<G> &sum, uint32_t w, uint32_t x, uint32_t x_scale) {
        const float own = scales.next(dynamic);
        const int four = (int)threadIdx.x % WARP / 4 * 4;
        operands left[2];
        look_up(left[0], w, 0);
#pragma unroll
        for (int part = 0; part < G::N / N; part++) {
            float step[N / 8][2];
            x_scales<N> xs;
            xs.load(x_scale + part * N * 2);
#pragma unroll
            for (int b = 0; b < 2; b++) {
                const float scale[2] = {__shfl_sync(0xffffffffu, own, four + b),
                                        __shfl_sync(0xffffffffu, own, four + 2 + b)};
                int block[N / 8][4];
                wgmma_begin();
#pragma unroll
                for (int k = 0; k < KS; k++)
#pragma unroll
                    for (int half = 0; half < 2; half++)
                        wgmma_int8<N>::registers(
                            block, left[b].of[k][half],
                            attention_wgmma::operand(x + part * N * X_BOX + b * LAUNCH_NF4_BLOCK + k * 32, 0),
                            k + half > 0);
                wgmma_commit();
                if (b == 0 && part == 0) look_up(left[1], w, 1);
                wgmma_wait<0>();
                settle(block);
#pragma unroll
                for (int i = 0; i < N / 8 * 2; i++) {
                    const float v = sum_of_bytes(block[i / 2][i % 2 * 2], block[i / 2][i % 2 * 2 + 1]);
                    float &to = step[i / 2][i % 2];
                    to = b == 0 ? scale[i % 2] * v : fmaf(scale[i % 2], v, to);
                }
            }
#pragma unroll
            for (int i = 0; i < N / 8 * 2; i++) {
                float &to = sum.of[part * N / 8 + i / 2][i % 2];
                to = fmaf(xs.of[i / 2], step[i / 2][i % 2], to);
            }
        }
    }
};

template <typename G>
using steps_for = std::conditional_t<G::F == LAUNCH_CODES_NF4, steps_of_nf4<G>,
                                     steps_of_bytes<G, std::conditional_t<G::F == LAUNCH_CODES_INT8, int, float>>>;

template <typename G>
__device__ void consume(own_sums<G> &sum, steps_for<G> &steps, const layout &l, const place &at, uint32_t tiles) {
    stage_place from;
    for (int step = 0; step < at.n; step++, from.advance(l.n_stages)) {
        barrier_wait(at.full + 8 * from.stage, from.parity);
        const uint32_t tile = tiles + from.stage * l.step_bytes;
        steps.add(sum, tile, tile + G::W_BYTES, tiles + l.x_scales_at + from.stage * G::X_SCALE_BYTES);
        barrier_arrive(at.empty + 8 * from.stage);
    }
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
__device__ inline void finish(Y (&y)[4], const place &at, uint32_t sums, uint32_t columns, int row, int column) {
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
    for (int c = 0; c < 4; c++) round_to(&y[c], total[c] * __uint_as_float(scale[c]) + __uint_as_float(bias[c]));
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
        finish<G>(y.e, at, sums, columns, row, c0);
        if (GATED) {
            Y up[4];
            finish<G>(up, at, sums, columns, row, TILE / 2 + c0);
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
    const uint32_t tiles = (shared_address(memory) + 1023) & ~1023u, columns = tiles + l.columns_at;

    chain_next();
    if (threadIdx.x == CONSUMERS) {
        prefetch_map(&x); /* or its first box waits for it */
        for (int i = 0; i < l.n_stages; i++) {
            barrier_init(at.full + 8 * i, 1);
            barrier_init(at.empty + 8 * i, CONSUMERS);
        }
        barriers_publish();
    }
    if constexpr (G::F == LAUNCH_CODES_NF4) /* by all: behind a barrier of the consumers alone racecheck loses track */
        for (int i = (int)threadIdx.x; i < 256; i += THREADS) dynamic[i] = values.dynamic[i];
    __syncthreads();
    if (threadIdx.x >= CONSUMERS) {
        if (threadIdx.x == CONSUMERS) produce<G, GATED>(q, l, &w, &x, at, tiles);
        else chain_wait();
        __syncwarp();
        __syncthreads();
    } else {
        own_sums<G> sum = {};
        steps_for<G> steps(values, dynamic);
        auto row_of = [&](int row) { return weight_row<G, GATED>(q, l, row); };
        steps.begin(q, at, row_of);
        load_columns<G::F, Y>(q, row_of, TILE, columns, CONSUMERS);
        chain_wait();
        consume<G>(sum, steps, l, at, tiles);
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

enum { MULTIPROCESSORS = 132 };

/* Parts of k, by the weight alone. */
int parts_of(const few_codes_product *q, int n_steps) {
    enum { BLOCKS_ENOUGH = 3 * MULTIPROCESSORS, STEPS_LEAST = 3 };
    const int64_t blocks = (q->n + TILE - 1) / TILE;
    int parts = 1;
    while (parts < PARTS_MOST && blocks * parts * 2 <= BLOCKS_ENOUGH && n_steps >= parts * 2 * STEPS_LEAST) parts *= 2;
    return parts;
}

/* Blocks on a multiprocessor at once, of so many in all: the more, the more is under way, unless too many places stay empty in the last
 * round. */
int blocks_at_once(int n_blocks, int most) {
    enum { LEAST = 3 };
    const int on_one = (n_blocks + MULTIPROCESSORS - 1) / MULTIPROCESSORS;
    if (on_one <= most) return on_one;
    int n = most;
    while (n > LEAST && 5 * ((on_one + n - 1) / n * n) > 6 * on_one) n--;
    return n;
}

template <typename G> layout layout_of(const few_codes_product *q, int n_steps, int n_blocks, int parts) {
    enum {
        SHARED_BYTES = 228 * 1024, /* of a multiprocessor */
        /* Room in which blocks of the kernels behind begin while these end; of many rows every step ahead is worth more. */
        FOR_NEXT = G::N <= 32 ? 8 * 1024 : 0,
        /* Of a block: static memory, what the system takes, up to the first box. */
        BESIDE = G::F == LAUNCH_CODES_NF4 ? 3584 : 2560
    };
    const int longest = (n_steps + parts - 1) / parts;
    layout l = {};
    l.n_steps = n_steps;
    l.columns = q->gated ? TILE / 2 : TILE;
    l.x_bytes = (uint32_t)((2 * q->m + 7) / 8 * 8 * X_BOX);
    l.step_bytes = G::W_BYTES + l.x_bytes;
    /* Products read rows behind those of x, too: whatever lies there, it ends in sums that nobody reads. */
    const uint32_t behind = G::N * X_BOX - l.x_bytes, columns = 2 * TILE * 4, sums = (uint32_t)(q->m * PITCH * 4);
    const uint32_t room =
        (SHARED_BYTES - FOR_NEXT) / (uint32_t)blocks_at_once(n_blocks, G::BLOCKS) - BESIDE - columns - behind;
    l.n_stages = (int)(room / (l.step_bytes + G::X_SCALE_BYTES));
    if (l.n_stages > STAGES_MOST) l.n_stages = STAGES_MOST;
    if (l.n_stages > longest) l.n_stages = longest;
    l.columns_at = (uint32_t)l.n_stages * l.step_bytes + behind;
    if (l.columns_at < sums) l.columns_at = sums;
    l.x_scales_at = l.columns_at + columns;
    l.n_bytes = l.x_scales_at + (uint32_t)l.n_stages * G::X_SCALE_BYTES + 1024; /* boxes begin at multiples of 1024 */
    return l;
}

/* The values of codes with their highest bit, such that a value is the sum of what both lookups give (steps_of_nf4): the other lookup
 * gives -1 for those whose counterpart is negative. */
code_values code_halves(code_values v) {
    int8_t value[16];
    memcpy(value, v.integers, sizeof value);
    for (int i = 0; i < 8; i++) value[8 + i] = (int8_t)(value[8 + i] - (value[i] < 0 ? -1 : 0));
    memcpy(v.integers, value, sizeof value);
    return v;
}

template <typename G, typename E, typename Y, bool GATED>
void launch(cudaStream_t s, const few_codes_product *q, const code_values &values) {
    const int columns_of_tile = GATED ? TILE / 2 : TILE;
    const int64_t columns = GATED ? q->n / 2 : q->n, n_tiles = (columns + columns_of_tile - 1) / columns_of_tile;
    const int n_steps = (int)((q->k + X_BOX - 1) / X_BOX), parts = parts_of(q, n_steps);
    const layout l = layout_of<G>(q, n_steps, (int)n_tiles * parts, parts);
    tensor_box w = {.data = q->codes,
                    .columns = G::F == LAUNCH_CODES_NF4 ? q->k / 2 : q->k,
                    .rows = q->n,
                    .sequences = 1,
                    .box_columns = G::ROW_BYTES,
                    .box_rows = l.columns,
                    .type = LAUNCH_E4M3};
    tensor_box x = w;
    x.data = bytes_in(q->work, q->k), x.columns = q->k, x.rows = 2 * q->m;
    x.box_columns = X_BOX, x.box_rows = (int)(l.x_bytes / X_BOX);
    if (!q->cut) launch_round<G::F, wgmma_reads_as_is(G::F), E>(s, q);
    launch_chained(few_codes_wgmma<G, Y, GATED>, dim3((unsigned)n_tiles, (unsigned)parts), dim3(THREADS), l.n_bytes,
                   (unsigned)parts, s, *q, l, G::F == LAUNCH_CODES_NF4 ? code_halves(values) : values,
                   tensor_map_make(&w), tensor_map_make(&x));
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

extern "C" void launch_few_codes_wgmma(cudaStream_t s, const few_codes_product *q, const launch_nf4_tables *tables) {
    by_format<by_rows>(s, q, tables);
}

#endif
