/* few_codes.cu - y = x w^T (+ bias) for few rows of x, as decoding has them, where w is stored in codes of 8 or 4 bits: as fast as the
 * codes can be read.
 *
 * Codes are fetched as they lie, by the TMA unit, several steps ahead; the first of them are under way before the kernels in front are
 * done (chain.cuh). A warp takes 16 rows of the tile and makes numbers of its codes in registers, as the left operand of mma: e4m3 and
 * int8 are exact in 16 bits, values of nf4 are rounded to 16 bits. The scale of a row or of the whole weight multiplies the finished
 * sum; that of a block of nf4 multiplies the sum over the block, so that nothing is rounded in between.
 *
 * mma does not care which k its lanes call neighbours, as long as both operands agree. So a lane takes codes that lie behind each other, in
 * one load, and the same k of x. Rows of a tile are dealt to lanes such that no two lanes of a load ask the same bank.
 *
 * A block has all of k, or the blocks of a cluster share it; inside a block, steps go to groups of warps in turn. How much of the weight a
 * block has and how k is cut follow from the weight alone: so that all multiprocessors read as many bytes, and a row has the same bits
 * beside any others. */
#include "backend/cuda/barriers.cuh"
#include "backend/cuda/chain.cuh"
#include "backend/cuda/gated.cuh"
#include "backend/cuda/launch_codes.h"
#include "backend/cuda/tensor_map.h"
#include "backend/cuda/wgmma.cuh"

namespace {

enum {
    WARP = 32,
    TILE = 16,       /* rows of w of a warp */
    WARPS_MOST = 11, /* with the one that fetches 12, three of which share registers: more would have 128 each */
    THREADS_MOST = (WARPS_MOST + 1) * WARP, /* and one that fetches */
    STAGES_MOST = 32,
    PARTS_MOST = 8,
    ROW_BYTES = 128, /* of a box */
    X_COLUMNS = ROW_BYTES / 2
};

template <launch_codes F> struct format {
    enum {
        STEP = F == LAUNCH_CODES_NF4 ? 2 * ROW_BYTES : ROW_BYTES, /* codes of a row in a box */
        X_BOXES = STEP / X_COLUMNS
    };
};

/* The block's part of the weight and how its memory is divided: a ring of n_stages steps, each a box of codes and X_BOXES of x; behind
 * them, where blocks share k, the sums that they send, what finished sums are multiplied with and their biases, and the scales of nf4. Where the ring was, the warps' sums lie in the end. */
struct layout {
    int n_steps, columns; /* columns of y that the block makes */
    int second_at, rows;  /* row of the tile where the second half of a gated weight begins; rows in use */
    int row_groups, k_groups, n_stages;
    int share; /* rows of y that a block of a cluster makes */
    int pitch; /* of sums: lanes that store side by side are in different banks */
    int scale_pitch;
    uint32_t w_bytes, step_bytes, received_at, columns_at, scales_at, n_bytes;
};

/* Values of codes as two words of bytes: the low bytes of all, and the high ones. */
struct code_values {
    uint32_t low[4], high[4];
    float dynamic[256];
};

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
};

struct stage_place {
    int stage;
    uint32_t parity = 0;
    __device__ stage_place(int step, int n_stages) : stage(step) { settle(n_stages); }
    __device__ void advance(int n_steps, int n_stages) {
        stage += n_steps;
        settle(n_stages);
    }
    __device__ void settle(int n_stages) {
        while (stage >= n_stages) stage -= n_stages, parity ^= 1;
    }
};

/* The row of w that a row of the tile is; n: none. */
template <bool GATED> __device__ inline int64_t weight_row(const few_codes_product &q, const layout &l, int row) {
    const int64_t first = (int64_t)blockIdx.x * l.columns;
    if (!GATED) return min(first + row, q.n);
    const bool second = row >= l.second_at;
    const int64_t at = first + (second ? row - l.second_at : row);
    return at < q.n / 2 ? at + (second ? q.n / 2 : 0) : q.n;
}

__device__ inline const few_codes_part &part_of(const few_codes_product &q, int64_t row) {
    int i = 0;
    while (i + 1 < q.n_parts && row >= q.parts[i + 1].first_row) i++;
    return q.parts[i];
}

/* The steps of this block's part of k, by one thread. */
template <launch_codes F, int NT, bool GATED>
__device__ void produce(const few_codes_product &q, const layout &l, const CUtensorMap *w, const CUtensorMap *x,
                        const place_of_block &at, uint32_t ring) {
    constexpr int X_BOXES = format<F>::X_BOXES, STEP = format<F>::STEP, X_BYTES = NT * 8 * ROW_BYTES;
    const int column = (int)blockIdx.x * l.columns;
    const uint32_t expected = (uint32_t)((GATED ? 2 : 1) * l.columns * ROW_BYTES + X_BOXES * X_BYTES);
    auto fetch_x = [&](int step, int stage) {
        const uint32_t to = ring + stage * l.step_bytes + l.w_bytes;
        for (int i = 0; i < X_BOXES; i++)
            fetch_box(to + i * X_BYTES, x, (at.first + step) * STEP + i * X_COLUMNS, 0, 0, at.full + 8 * stage);
    };
    auto fetch_w = [&](int step, int stage) {
        const uint32_t tile = ring + stage * l.step_bytes, full = at.full + 8 * stage;
        barrier_arrive_expecting(full, expected);
        fetch_box_once(tile, w, (at.first + step) * ROW_BYTES, column, 0, full);
        if (GATED)
            fetch_box_once(tile + l.second_at * ROW_BYTES, w, (at.first + step) * ROW_BYTES, (int)(q.n / 2) + column, 0,
                           full);
    };
    const int ahead = min(at.n, l.n_stages);
    for (int step = 0; step < ahead; step++) fetch_w(step, step);
    chain_wait();
    for (int step = 0; step < ahead; step++) fetch_x(step, step);
    stage_place place(0, l.n_stages);
    for (int step = ahead; step < at.n; step++, place.advance(1, l.n_stages)) {
        barrier_wait(at.empty + 8 * place.stage, place.parity);
        fetch_w(step, place.stage);
        fetch_x(step, place.stage);
    }
}

/* ---- codes to numbers -------------------------------------------------------------------------------------------------- */

/* a * b and a - b of two numbers each, exact where they are used. */
template <typename E> __device__ inline uint32_t times(uint32_t a, uint32_t b);
template <> __device__ inline uint32_t times<__nv_bfloat16>(uint32_t a, uint32_t b) {
    uint32_t y;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}
template <> __device__ inline uint32_t times<__half>(uint32_t a, uint32_t b) {
    uint32_t y;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}
template <typename E> __device__ inline uint32_t less(uint32_t a, uint32_t b);
template <> __device__ inline uint32_t less<__nv_bfloat16>(uint32_t a, uint32_t b) {
    uint32_t y;
    asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}
template <> __device__ inline uint32_t less<__half>(uint32_t a, uint32_t b) {
    uint32_t y;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}

/* Four codes of 8 bits, the first lowest, as two pairs. */
template <launch_codes F, typename E> __device__ inline void numbers_of(uint32_t (&pair)[2], uint32_t codes) {
    constexpr bool BF16 = std::is_same<E, __nv_bfloat16>::value;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (F == LAUNCH_CODES_FP8) {
            /* Exponent and mantissa where those of E begin; a power of two then moves the exponent's bias. */
            const uint32_t high = __byte_perm(codes, 0, i ? 0x3424 : 0x1404), sign = high & 0x80008000u;
            pair[i] = BF16 ? times<E>((high >> 4 & 0x07f007f0u) | sign, 0x7b807b80u)  /* 2^120 */
                           : times<E>((high >> 1 & 0x3f803f80u) | sign, 0x5c005c00u); /* 2^8 */
        } else {
            const uint32_t low = __byte_perm(codes, 0, i ? 0x4342 : 0x4140);
            /* bf16: 128 + the lower 7 bits, less 128 or, of a negative one, 256. fp16: 1024 + 128 + code, less 1152. */
            pair[i] = BF16 ? less<E>((low & 0x007f007fu) | 0x43004300u, (low & 0x00800080u) | 0x43004300u)
                           : less<E>((low ^ 0x00800080u) | 0x64006400u, 0x64806480u);
        }
    }
}

/* Four codes of nf4 (the lower 16 bits), of two in a byte the first in its upper half, as two pairs. small: the codes without their highest
 * bits; large: 4 in the place of every code that has it. */
__device__ inline void nf4_numbers(uint32_t (&pair)[2], const code_values &v, uint32_t small, uint32_t large) {
    const uint32_t upper = __byte_perm(0, 0xffffffffu, large);
    const uint32_t low =
        (__byte_perm(v.low[0], v.low[1], small) & ~upper) | (__byte_perm(v.low[2], v.low[3], small) & upper);
    const uint32_t high =
        (__byte_perm(v.high[0], v.high[1], small) & ~upper) | (__byte_perm(v.high[2], v.high[3], small) & upper);
    pair[0] = __byte_perm(low, high, 0x4051);
    pair[1] = __byte_perm(low, high, 0x6273);
}

/* ---- the product ------------------------------------------------------------------------------------------------------- */

__device__ inline uint2 load_shared_8(uint32_t from) {
    uint2 v;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(from) : "memory");
    return v;
}
__device__ inline float load_shared_float(uint32_t from) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(from) : "memory");
    return v;
}
__device__ inline void store_shared_float(uint32_t to, float v) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(v) : "memory");
}
/* Where the TMA unit has put a chunk of 16 bytes of a row. */
__device__ inline uint32_t chunk_at(uint32_t tile, int row, int chunk) {
    return tile + (uint32_t)(row * ROW_BYTES + ((chunk ^ (row & 7)) << 4));
}

/* The row of a half tile whose codes a lane reads: rows that are read in one phase of a load lie in different banks. */
template <launch_codes F> __device__ inline int row_of_lane(int lane) {
    const int g = lane / 4;
    return F == LAUNCH_CODES_NF4 ? (g & 3) * 2 + (g >> 2) : (g >> 1) + (g & 1) * 4;
}

/* 16 neighbours of k of a row of x for each of NT rows, from 16 t on in the box. */
template <int NT> __device__ inline void load_x(uint32_t (&x)[NT][8], uint32_t box, int lane) {
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < NT; i++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint4 v = load_shared_16(chunk_at(box, i * 8 + g, 2 * t + h));
            x[i][4 * h] = v.x, x[i][4 * h + 1] = v.y, x[i][4 * h + 2] = v.z, x[i][4 * h + 3] = v.w;
        }
    }
}

/* sum += w x^T over a box, of this warp's rows of w. scales: nf4, of this lane's first row and of the box's first block. */
template <launch_codes F, typename E, int NT>
__device__ inline void multiply(float (&sum)[NT][4], const code_values &v, uint32_t tile, uint32_t x_boxes,
                                int first_row, uint32_t scales, int scale_pitch) {
    constexpr int X_BYTES = NT * 8 * ROW_BYTES;
    const int lane = (int)threadIdx.x % WARP, t = lane % 4, row = first_row + row_of_lane<F>(lane);
#pragma unroll
    for (int box = 0; box < format<F>::X_BOXES; box++) {
        uint32_t x[NT][8];
        if (F == LAUNCH_CODES_NF4) {
            const uint2 above = load_shared_8(chunk_at(tile, row, 2 * box + t / 2) + t % 2 * 8);
            const uint2 below = load_shared_8(chunk_at(tile, row + 8, 2 * box + t / 2) + t % 2 * 8);
            const float scale = load_shared_float(scales + box * 4);
            const float scale_below = load_shared_float(scales + (uint32_t)(8 * scale_pitch + box) * 4);
            load_x<NT>(x, x_boxes + box * X_BYTES, lane);
            float block[NT][4];
#pragma unroll
            for (int i = 0; i < NT * 4; i++) block[i / 4][i % 4] = 0;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint32_t a = half ? above.y : above.x, b = half ? below.y : below.x;
                const uint32_t a_small = a & 0x77777777u, a_large = a >> 1 & 0x44444444u;
                const uint32_t b_small = b & 0x77777777u, b_large = b >> 1 & 0x44444444u;
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    uint32_t p[2], r[2];
                    nf4_numbers(p, v, a_small >> 16 * j, a_large >> 16 * j);
                    nf4_numbers(r, v, b_small >> 16 * j, b_large >> 16 * j);
                    const uint32_t left[4] = {p[0], r[0], p[1], r[1]};
#pragma unroll
                    for (int i = 0; i < NT; i++)
                        mma<E>(block[i], left, x[i][4 * half + 2 * j], x[i][4 * half + 2 * j + 1]);
                }
            }
#pragma unroll
            for (int i = 0; i < NT; i++)
#pragma unroll
                for (int c = 0; c < 4; c++) sum[i][c] = fmaf(c < 2 ? scale : scale_below, block[i][c], sum[i][c]);
        } else {
            const uint4 above = load_shared_16(chunk_at(tile, row, 4 * box + t));
            const uint4 below = load_shared_16(chunk_at(tile, row + 8, 4 * box + t));
            const uint32_t a[4] = {above.x, above.y, above.z, above.w}, b[4] = {below.x, below.y, below.z, below.w};
            load_x<NT>(x, x_boxes + box * X_BYTES, lane);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                uint32_t p[2], r[2];
                numbers_of<F, E>(p, a[j]);
                numbers_of<F, E>(r, b[j]);
                const uint32_t left[4] = {p[0], r[0], p[1], r[1]};
#pragma unroll
                for (int i = 0; i < NT; i++) mma<E>(sum[i], left, x[i][2 * j], x[i][2 * j + 1]);
            }
        }
    }
}

/* What the finished sum of each row of the tile is multiplied with, and its bias, by all who consume: behind the sums they would be waited
 * for. */
template <launch_codes F, typename Y, bool GATED>
__device__ void load_columns(const few_codes_product &q, const layout &l, uint32_t columns, int n_threads) {
    for (int row = (int)threadIdx.x; row < l.rows; row += n_threads) {
        const int64_t w_row = weight_row<GATED>(q, l, row);
        float scale = 1, bias = 0;
        if (w_row < q.n) {
            if (F == LAUNCH_CODES_INT8) scale = q.parts[0].scale[w_row];
            if (F == LAUNCH_CODES_FP8) scale = *part_of(q, w_row).scale;
            if (q.bias) bias = (float)((const Y *)q.bias)[w_row];
        }
        store_shared_float(columns + row * 4, scale);
        store_shared_float(columns + (l.row_groups * TILE + row) * 4, bias);
    }
}

/* The scales of nf4 of all rows of the tile and all blocks of this block's part of k, by all who consume; several of a thread are under
 * way at once. */
template <bool GATED>
__device__ void make_scales(const few_codes_product &q, const layout &l, const code_values &v, const place_of_block &at,
                            uint32_t scales, float *dynamic, int n_threads) {
    enum { BLOCKS = format<LAUNCH_CODES_NF4>::STEP / LAUNCH_NF4_BLOCK, AHEAD = 8 };
    for (int i = (int)threadIdx.x; i < 256; i += n_threads) dynamic[i] = v.dynamic[i];
    threads_meet(1, n_threads);
    const int n = at.n * BLOCKS, n_all = l.row_groups * TILE * n;
    const int64_t of_row = q.k / LAUNCH_NF4_BLOCK;
    for (int i = (int)threadIdx.x; i < n_all; i += AHEAD * n_threads) {
        float scale[AHEAD], offset[AHEAD];
        uint8_t code[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            const int row = (i + a * n_threads) / n, block = at.first * BLOCKS + (i + a * n_threads) % n;
            const int64_t w_row = row < l.rows ? weight_row<GATED>(q, l, row) : q.n;
            scale[a] = offset[a] = 0, code[a] = 0;
            if (w_row >= q.n || block >= of_row) continue;
            const few_codes_part &part = part_of(q, w_row);
            const int64_t b = (w_row - part.first_row) * of_row + block;
            code[a] = part.scale_codes[b], scale[a] = part.scale[b / LAUNCH_NF4_SCALE_BLOCK], offset[a] = *part.offset;
        }
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            const int at_row = (i + a * n_threads) / n, at_block = (i + a * n_threads) % n;
            if (i + a * n_threads >= n_all) continue;
            store_shared_float(scales + (uint32_t)(at_row * l.scale_pitch + at_block) * 4,
                               dynamic[code[a]] * scale[a] + offset[a]);
        }
    }
    threads_meet(1, n_threads);
}

/* The sums of a warp's rows go to (k group, row of x, row of the tile). */
template <launch_codes F, int NT>
__device__ void keep(const float (&sum)[NT][4], const layout &l, int first_row, int k_group, uint32_t sums) {
    const int lane = (int)threadIdx.x % WARP, row = first_row + row_of_lane<F>(lane);
    const uint32_t to = sums + (uint32_t)((k_group * NT * 8 + lane % 4 * 2) * l.pitch + row) * 4;
#pragma unroll
    for (int i = 0; i < NT; i++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            store_shared_float(to + (uint32_t)((i * 8 + c % 2) * l.pitch + c / 2 * 8) * 4, sum[i][c]);
}

/* ---- y ------------------------------------------------------------------------------------------------------------------ */

/* Four neighbours of a row of sums, over n parts in order. */
__device__ inline float4 total_of(uint32_t address, int n, uint32_t between) {
    float4 all = make_float4(0, 0, 0, 0);
    for (int p = 0; p < n; p++) {
        const uint4 v = load_shared_16(address + p * between);
        all.x += __uint_as_float(v.x), all.y += __uint_as_float(v.y);
        all.z += __uint_as_float(v.z), all.w += __uint_as_float(v.w);
    }
    return all;
}

/* What a LINEAR gives, of four neighbouring rows of the tile. */
template <typename Y> __device__ inline void finish(Y (&y)[4], float4 sum, const layout &l, uint32_t columns, int row) {
    const uint4 scale = load_shared_16(columns + row * 4),
                bias = load_shared_16(columns + (l.row_groups * TILE + row) * 4);
    round_to(&y[0], sum.x * __uint_as_float(scale.x) + __uint_as_float(bias.x));
    round_to(&y[1], sum.y * __uint_as_float(scale.y) + __uint_as_float(bias.y));
    round_to(&y[2], sum.z * __uint_as_float(scale.z) + __uint_as_float(bias.z));
    round_to(&y[3], sum.w * __uint_as_float(scale.w) + __uint_as_float(bias.w));
}

#endif

template <launch_codes F, typename E, typename Y, int NT, bool GATED>
__global__ void __launch_bounds__(THREADS_MOST, NT <= 2 ? 2 : 1)
    few_codes(const __grid_constant__ few_codes_product q, const __grid_constant__ layout l,
              const __grid_constant__ code_values values, const __grid_constant__ CUtensorMap w,
              const __grid_constant__ CUtensorMap x) {
#if WGMMA_HERE
    extern __shared__ unsigned char memory[];
    __shared__ __align__(8) uint64_t barriers[2 * STAGES_MOST + 1];
    __shared__ float dynamic[F == LAUNCH_CODES_NF4 ? 256 : 1];
    const place_of_block at(l, barriers);
    const uint32_t ring = (shared_address(memory) + 1023) & ~1023u, sums = ring, received = ring + l.received_at,
                   columns = ring + l.columns_at;
    const int warp = (int)threadIdx.x / WARP, n_warps = l.row_groups * l.k_groups, n_quads = (l.rows + 3) / 4;
    const int n_rows = min(max((int)q.m - at.part * l.share, 0), l.share); /* that this block makes */
    const bool shared_k = at.n_parts > 1;

    chain_next();
    if ((int)threadIdx.x == n_warps * WARP) {
        prefetch_map(&x); /* or its first box waits for it */
        for (int i = 0; i < l.n_stages; i++) {
            barrier_init(at.full + 8 * i, 1);
            barrier_init(at.empty + 8 * i, l.row_groups);
        }
        barrier_init(at.sums_here, 1);
        barriers_publish();
        if (shared_k) barrier_arrive_expecting(at.sums_here, (uint32_t)(n_rows * at.n_parts * n_quads) * 16);
    }
    __syncthreads();
    if (shared_k) cluster_arrive_relaxed();
    float sum[NT][4];
    const int first_row = warp % l.row_groups * TILE, k_group = warp / l.row_groups;
    if (warp == n_warps) {
        if (threadIdx.x % WARP == 0) produce<F, NT, GATED>(q, l, &w, &x, at, ring);
        else chain_wait();
        __syncwarp();
    } else {
        const uint32_t scales = ring + l.scales_at;
        load_columns<F, Y, GATED>(q, l, columns, n_warps * WARP);
        if (F == LAUNCH_CODES_NF4) make_scales<GATED>(q, l, values, at, scales, dynamic, n_warps * WARP);
        chain_wait();
#pragma unroll
        for (int i = 0; i < NT * 4; i++) sum[i / 4][i % 4] = 0;
        const uint32_t own_scales =
            scales + (uint32_t)((first_row + row_of_lane<F>((int)threadIdx.x % WARP)) * l.scale_pitch) * 4;
        stage_place place(k_group, l.n_stages);
        for (int step = k_group; step < at.n; step += l.k_groups, place.advance(l.k_groups, l.n_stages)) {
            const uint32_t tile = ring + place.stage * l.step_bytes;
            barrier_wait(at.full + 8 * place.stage, place.parity);
            multiply<F, E, NT>(sum, values, tile, tile + l.w_bytes, first_row,
                               own_scales + (uint32_t)(step * format<F>::X_BOXES) * 4, l.scale_pitch);
            __syncwarp();
            if (threadIdx.x % WARP == 0) barrier_arrive(at.empty + 8 * place.stage);
        }
    }
    __syncthreads(); /* all have read the ring */
    if (warp < n_warps) keep<F, NT>(sum, l, first_row, k_group, sums);
    __syncthreads();

    const int n_threads = (n_warps + 1) * WARP;
    const uint32_t row_bytes = (uint32_t)l.pitch * 4;
    uint32_t from = sums, between = NT * 8 * row_bytes;
    int n_sums = l.k_groups;
    if (shared_k) {
        cluster_wait(); /* nobody sends to a block whose barrier is not there yet */
        for (int i = (int)threadIdx.x; i < (int)q.m * n_quads; i += n_threads) {
            const int row = i / n_quads, quad = i % n_quads, owner = row / l.share;
            const float4 v = total_of(sums + row * row_bytes + quad * 16, l.k_groups, between);
            const uint32_t to =
                received + (uint32_t)(at.part * l.share + row - owner * l.share) * row_bytes + quad * 16;
            cluster_send(cluster_address(to, (uint32_t)owner), v, cluster_address(at.sums_here, (uint32_t)owner));
        }
        from = received, between = l.share * row_bytes, n_sums = at.n_parts;
        if (n_rows > 0) barrier_wait_cluster(at.sums_here, 0);
    }
    const int quads = l.columns / 4;
    const int64_t n_columns = GATED ? q.n / 2 : q.n;
    for (int i = (int)threadIdx.x; i < n_rows * quads; i += n_threads) {
        const int row = i / quads, c0 = i % quads * 4;
        const int64_t column = (int64_t)blockIdx.x * l.columns + c0;
        const int n = (int)min(n_columns - column, (int64_t)4);
        if (n <= 0) continue;
        Y y[4], up[4];
        finish(y, total_of(from + row * row_bytes + c0 * 4, n_sums, between), l, columns, c0);
        if (GATED) {
            const int second = l.second_at + c0;
            finish(up, total_of(from + row * row_bytes + second * 4, n_sums, between), l, columns, second);
#pragma unroll
            for (int c = 0; c < 4; c++)
                if (c < n) round_to(&y[c], gated<Y>((float)y[c], (float)up[c], q.gelu));
        }
        Y *to = (Y *)q.y + (at.part * l.share + row) * q.ldy + column;
        if (n == 4 && (uintptr_t)to % sizeof y == 0) {
            struct alignas(sizeof y) four {
                Y e[4];
            };
            *(four *)to = {y[0], y[1], y[2], y[3]};
            continue;
        }
#pragma unroll
        for (int c = 0; c < 4; c++)
            if (c < n) to[c] = y[c];
    }
#endif
}

/* ---- the choice --------------------------------------------------------------------------------------------------------- */

/* Columns of y of a block, and blocks that share k. */
struct cut {
    int columns, parts;
};

int64_t row_bytes_of(const few_codes_product *q) { return q->format == LAUNCH_CODES_NF4 ? q->k / 2 : q->k; }

/* By the weight alone: such that the multiprocessor that reads most reads least; of equals the widest, which read x less often. */
cut cut_of(const few_codes_product *q) {
    enum {
        MULTIPROCESSORS = 132,
        ROWS_MOST = 9 * TILE, /* their steps are long enough to be fetched behind each other */
        BLOCK_COST = 4096,    /* bytes that could be read while a block begins and ends ... */
        SHARED_COST = 2048    /* ... and while blocks exchange their sums */
    };
    const int halves = q->gated ? 2 : 1;
    const int64_t columns = q->n / halves, steps = (row_bytes_of(q) + ROW_BYTES - 1) / ROW_BYTES;
    cut best = {};
    int64_t least = INT64_MAX;
    for (int parts = 1; parts <= PARTS_MOST && (parts == 1 || steps >= 2 * parts); parts *= 2)
        for (int c = ROWS_MOST / halves / 4 * 4; c >= 8; c -= 4) {
            const int64_t blocks = (columns + c - 1) / c * parts,
                          rounds = (blocks + MULTIPROCESSORS - 1) / MULTIPROCESSORS;
            const int64_t of_block = (int64_t)c * halves * ((steps + parts - 1) / parts) * ROW_BYTES;
            const int64_t cost = rounds * (of_block + BLOCK_COST + (parts > 1 ? SHARED_COST : 0));
            if (cost < least) least = cost, best = {c, parts};
        }
    return best;
}

template <launch_codes F, int NT> layout layout_of(const few_codes_product *q, const cut &c) {
    /* Two blocks share a multiprocessor's memory: another of this product, or the first of the next. Of many rows one has it. */
    enum { RING_BYTES = NT <= 2 ? 92 * 1024 : 176 * 1024 };
    layout l = {};
    l.columns = c.columns;
    l.n_steps = (int)((row_bytes_of(q) + ROW_BYTES - 1) / ROW_BYTES);
    l.second_at = q->gated ? (c.columns + 7) / 8 * 8 : c.columns;
    l.rows = q->gated ? l.second_at + c.columns : c.columns;
    l.row_groups = (l.rows + TILE - 1) / TILE;
    const int longest = (l.n_steps + c.parts - 1) / c.parts, groups = WARPS_MOST / l.row_groups;
    l.k_groups = groups < longest ? groups : longest;
    l.w_bytes = (uint32_t)(l.row_groups * TILE * ROW_BYTES);
    l.step_bytes = l.w_bytes + (uint32_t)(format<F>::X_BOXES * NT * 8 * ROW_BYTES);
    l.n_stages = RING_BYTES / (int)l.step_bytes;
    if (l.n_stages < 2) l.n_stages = 2;
    if (l.n_stages > STAGES_MOST) l.n_stages = STAGES_MOST;
    if (l.n_stages > longest) l.n_stages = longest;
    l.pitch = (l.row_groups * TILE + 31) / 32 * 32 + 4;
    l.share = (NT * 8 + c.parts - 1) / c.parts;
    const uint32_t ring = (uint32_t)l.n_stages * l.step_bytes, own = (uint32_t)(l.k_groups * NT * 8 * l.pitch) * 4;
    l.received_at = ring > own ? ring : own;
    l.columns_at = l.received_at + (c.parts > 1 ? (uint32_t)(c.parts * l.share * l.pitch) * 4 : 0);
    l.scales_at = l.columns_at + (uint32_t)(2 * l.row_groups * TILE) * 4;
    l.n_bytes = l.scales_at + 1024; /* boxes begin at multiples of 1024 */
    if (F != LAUNCH_CODES_NF4) return l;
    l.scale_pitch = longest * (format<F>::STEP / LAUNCH_NF4_BLOCK) | 1;
    l.n_bytes += (uint32_t)(l.row_groups * TILE * l.scale_pitch) * 4;
    return l;
}

template <launch_codes F, typename E, typename Y, int NT, bool GATED>
void run(cudaStream_t s, const few_codes_product *q, const code_values &values) {
    const cut c = cut_of(q);
    const layout l = layout_of<F, NT>(q, c);
    tensor_box w = {.data = q->codes,
                    .columns = row_bytes_of(q),
                    .rows = q->n,
                    .sequences = 1,
                    .box_columns = ROW_BYTES,
                    .box_rows = c.columns,
                    .type = LAUNCH_E4M3};
    tensor_box x = {.data = q->x,
                    .columns = q->k,
                    .rows = q->m,
                    .sequences = 1,
                    .box_columns = X_COLUMNS,
                    .box_rows = NT * 8,
                    .type = q->type};
    const int64_t columns = GATED ? q->n / 2 : q->n;
    launch_chained(few_codes<F, E, Y, NT, GATED>,
                   dim3((unsigned)((columns + c.columns - 1) / c.columns), (unsigned)c.parts),
                   dim3((unsigned)(l.row_groups * l.k_groups + 1) * WARP), l.n_bytes, (unsigned)c.parts, s, *q, l,
                   values, tensor_map_make(&w), tensor_map_make(&x));
}

template <launch_codes F, typename E, typename Y, bool GATED>
void by_rows(cudaStream_t s, const few_codes_product *q, const code_values &values) {
    if (q->m <= 8) run<F, E, Y, 1, GATED>(s, q, values);
    else if (q->m <= 16) run<F, E, Y, 2, GATED>(s, q, values);
    else if (q->m <= 32) run<F, E, Y, 4, GATED>(s, q, values);
    else run<F, E, Y, FEW_ROWS_MOST / 8, GATED>(s, q, values);
}

void put_value(__nv_bfloat16 *to, float v) { *to = __float2bfloat16(v); }
void put_value(__half *to, float v) { *to = __float2half(v); }

template <launch_codes F, typename E>
void by_result(cudaStream_t s, const few_codes_product *q, const launch_nf4_tables *tables) {
    code_values values = {};
    if (F == LAUNCH_CODES_NF4) {
        for (int i = 0; i < 16; i++) {
            E number;
            uint16_t bits;
            put_value(&number, tables->nf4[i]);
            memcpy(&bits, &number, sizeof bits);
            values.low[i / 4] |= (uint32_t)(bits & 255) << i % 4 * 8;
            values.high[i / 4] |= (uint32_t)(bits >> 8) << i % 4 * 8;
        }
        memcpy(values.dynamic, tables->dynamic, sizeof values.dynamic);
    }
    if (q->y_type == LAUNCH_F32) by_rows<F, E, float, false>(s, q, values);
    else if (q->gated) by_rows<F, E, E, true>(s, q, values);
    else by_rows<F, E, E, false>(s, q, values);
}

template <launch_codes F> void by_type(cudaStream_t s, const few_codes_product *q, const launch_nf4_tables *tables) {
    if (q->type == LAUNCH_BF16) by_result<F, __nv_bfloat16>(s, q, tables);
    else by_result<F, __half>(s, q, tables);
}

} // namespace

extern "C" void launch_few_codes(cudaStream_t s, const few_codes_product *q, const launch_nf4_tables *tables) {
    if (q->format == LAUNCH_CODES_NF4) by_type<LAUNCH_CODES_NF4>(s, q, tables);
    else if (q->format == LAUNCH_CODES_INT8) by_type<LAUNCH_CODES_INT8>(s, q, tables);
    else by_type<LAUNCH_CODES_FP8>(s, q, tables);
}
