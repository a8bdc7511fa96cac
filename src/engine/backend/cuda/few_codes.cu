/* few_codes.cu - y = x w^T (+ bias) for few rows of x, as decoding has them, where w is stored in codes of 8 or 4 bits, on any GPU;
 * compute capability 9.0 has few_codes_wgmma.cu.
 *
 * A warp takes 16 rows of w. Its lanes load codes from memory two steps ahead, the first of them before the kernels in front are done
 * (chain.cuh). A product does not care which k its lanes call neighbours, as long as both operands agree: a lane takes codes that lie behind
 * each other. Tensor cores keep some 13 bits of a sum of e4m3, those of nf4 end with its blocks, and x has a scale for every X_BOX of k: sums
 * are taken over 64 of k and added in fp32.
 *
 * k is cut into runs, one for each group of warps: the fewer rows of w a multiprocessor has, the more runs. How k is cut follows from the
 * weight alone, and the sums of runs are added in order: a row has the same bits beside any others. Up to four rows of x are cut into bytes by
 * every block, if there is room for the bytes; more, before, by a kernel of their own. */
#include "backend/cuda/few_codes.cuh"

namespace {

using namespace few_codes_shared;

enum {
    TILE = 16,        /* rows of w of a warp */
    PRODUCT_ROWS = 4, /* of x, two columns each */
    WARPS_MOST = 16,
    THREADS_MOST = WARPS_MOST * WARP,
    STEP_BYTES = 128, /* of a row of codes */
    BOX = 64          /* elements of k that a warp takes at once */
};
template <launch_codes F> struct format {
    enum { STEP = F == LAUNCH_CODES_NF4 ? 2 * STEP_BYTES : STEP_BYTES, BOXES = STEP / BOX };
};

/* The block's part of the weight, and its shared memory: up to PRODUCT_ROWS rows of x as bytes, where the sums of all runs lie afterwards;
 * what finished sums are multiplied with and their biases; the scales of those bytes, of PRODUCT_ROWS rows for each box of x; the scales of
 * nf4. */
struct layout {
    int n_steps, columns; /* columns of y that the block makes */
    int second_at, rows;  /* row of the tile where the second half of a gated weight begins; rows in use */
    int row_groups, n_runs;
    int pitch;   /* of sums: lanes that store side by side are in different banks */
    int x_pitch; /* of bytes of x, likewise */
    int scale_pitch;
    uint32_t columns_at, x_scales_at, scales_at, n_bytes;
};

/* Where a run of k begins. */
__device__ inline int run_begin(const layout &l, int run) { return l.n_steps * run / l.n_runs; }

/* The row of w that a row of the tile is; n: none. */
template <bool GATED> __device__ inline int64_t weight_row(const few_codes_product &q, const layout &l, int row) {
    const int64_t first = (int64_t)blockIdx.x * l.columns;
    if (row >= l.rows) return q.n;
    if (!GATED) return min(first + row, q.n);
    const bool second = row >= l.second_at;
    const int64_t at = first + (second ? row - l.second_at : row);
    return at < q.n / 2 ? at + (second ? q.n / 2 : 0) : q.n;
}

/* ---- nf4 -------------------------------------------------------------------------------------------------------------- */

/* Four codes of nf4 (the lower 16 bits), of two in a byte the first in its upper half, as integers: the second of each byte first. small: the
 * codes without their highest bits; large: 4 in the place of every code that has it. */
__device__ inline uint32_t nf4_integers(const code_values &v, uint32_t small, uint32_t large) {
    const uint32_t upper = __byte_perm(0, 0xffffffffu, large);
    return (__byte_perm(v.integers[0], v.integers[1], small) & ~upper) |
           (__byte_perm(v.integers[2], v.integers[3], small) & upper);
}

/* Scales of nf4: of all blocks of these rows, rows `pitch` apart; 0 where there is no row. A warp takes rows, its lanes blocks; several
 * rows are under way at once. */
template <typename R>
__device__ inline void load_scales(const few_codes_product &q, R weight_row, int n_rows, int pitch,
                                   const float *dynamic, uint32_t scales, int n_threads) {
    enum { AHEAD = 4 };
    const int n_blocks = (int)(q.k / LAUNCH_NF4_BLOCK), n_warps = n_threads / WARP;
    for (int first = (int)threadIdx.x / WARP; first < n_rows; first += AHEAD * n_warps)
        for (int block = (int)threadIdx.x % WARP; block < n_blocks; block += WARP) {
            float scale[AHEAD], offset[AHEAD];
            uint8_t code[AHEAD];
#pragma unroll
            for (int a = 0; a < AHEAD; a++) {
                const int row = first + a * n_warps;
                const int64_t w_row = row < n_rows ? weight_row(row) : q.n;
                scale[a] = offset[a] = 0, code[a] = 0;
                if (w_row >= q.n) continue;
                const few_codes_part &part = part_of(q, w_row);
                const int64_t b = (w_row - part.first_row) * n_blocks + block;
                code[a] = part.scale_codes[b], scale[a] = part.scale[b / LAUNCH_NF4_SCALE_BLOCK];
                offset[a] = *part.offset;
            }
#pragma unroll
            for (int a = 0; a < AHEAD; a++)
                if (first + a * n_warps < n_rows)
                    store_shared_float(scales + (uint32_t)((first + a * n_warps) * pitch + block) * 4,
                                       dynamic[code[a]] * scale[a] + offset[a]);
        }
}

/* ---- the product ------------------------------------------------------------------------------------------------------- */

__device__ inline void store_shared_bytes(uint32_t to, bytes8 v) {
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(v.word[0]), "r"(v.word[1]) : "memory");
}

/* Codes are read once for a long time: no cache is to keep them for others' sake. */
__device__ inline uint64_t read_once() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ inline uint4 load_codes(const unsigned char *from, uint64_t policy, uint4) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from), "l"(policy));
    return v;
}
__device__ inline uint2 load_codes(const unsigned char *from, uint64_t policy, uint2) {
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v2.b32 {%0, %1}, [%2], %3;"
                 : "=r"(v.x), "=r"(v.y)
                 : "l"(from), "l"(policy));
    return v;
}

/* What a lane has of a step: of each box 16 neighbours of k, of the rows g and g + 8 of the tile (g = lane / 4). */
template <launch_codes F> struct step_codes {
    typedef typename std::conditional<F == LAUNCH_CODES_NF4, uint2, uint4>::type pack;
    enum { BOXES = format<F>::BOXES };
    pack codes[2][BOXES];

    /* at: where the lane's codes of the first box begin in each row; left: bytes of the row from there on. */
    __device__ void load(const unsigned char *const (&at)[2], int offset, int left, uint64_t policy) {
#pragma unroll
        for (int i = 0; i < 2 * BOXES; i++) {
            const int box = i % BOXES, half = i / BOXES, from = box * (int)sizeof(pack) * 4;
            codes[half][box] = pack();
            if (from < left) codes[half][box] = load_codes(at[half] + offset + from, policy, pack());
        }
    }
};

/* c += a b of bytes; fragments as mma.cuh has them, with two numbers for each that it has in a row of a and a column of b. */
__device__ inline void mma8(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
/* Two e4m3 numbers, the lower half of a word, in 16 bits. */
__device__ inline uint32_t halves(uint32_t two) {
    const uint32_t v = __byte_perm(two, 0, 0x1404); /* in the upper byte of each half */
    const uint32_t small = (v & 0x80008000u) | (v >> 1 & 0x3f803f80u);
    const __half2 wide = __hmul2(*(const __half2 *)&small, __float2half2_rn(256));
    return *(const uint32_t *)&wide;
}
__device__ inline void mma8(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const uint32_t b = i ? b1 : b0;
        const uint32_t left[4] = {halves(a[i]), halves(a[i + 1]), halves(a[i] >> 16), halves(a[i + 1] >> 16)};
        mma<__half>(c, left, halves(b), halves(b >> 16));
    }
}
#else
__device__ inline void mma8(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, "
        "%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

/* A warp's sums over its run: of each row of x that a lane has, of two rows of w. */
template <int NT> struct warp_sums { float of[NT][2]; };

/* sum += w x^T over a box: x_of(i) are 16 bytes of each of this lane's columns, x_scale(i) their scale. scale: nf4, of both rows of w. */
template <launch_codes F, int NT, typename X, typename S>
__device__ inline void multiply(warp_sums<NT> &sum, const code_values &v, const typename step_codes<F>::pack &above,
                                const typename step_codes<F>::pack &below, X x_of, S x_scale, const float (&scale)[2]) {
    uint32_t left[2][4];
    if constexpr (F == LAUNCH_CODES_NF4) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t a = half ? above.y : above.x, b = half ? below.y : below.x;
            const uint32_t a_small = a & 0x77777777u, a_large = a >> 1 & 0x44444444u;
            const uint32_t b_small = b & 0x77777777u, b_large = b >> 1 & 0x44444444u;
            left[half][0] = nf4_integers(v, a_small, a_large),
            left[half][2] = nf4_integers(v, a_small >> 16, a_large >> 16);
            left[half][1] = nf4_integers(v, b_small, b_large),
            left[half][3] = nf4_integers(v, b_small >> 16, b_large >> 16);
        }
    } else {
        left[0][0] = above.x, left[0][1] = below.x, left[0][2] = above.y, left[0][3] = below.y;
        left[1][0] = above.z, left[1][1] = below.z, left[1][2] = above.w, left[1][3] = below.w;
    }
#pragma unroll
    for (int i = 0; i < NT; i++) {
        const uint4 x = x_of(i);
        const float by = x_scale(i);
        typename std::conditional<F == LAUNCH_CODES_FP8, float, int>::type box[4] = {0, 0, 0, 0};
        mma8(box, left[0], x.x, x.y);
        mma8(box, left[1], x.z, x.w);
#pragma unroll
        for (int half = 0; half < 2; half++)
            sum.of[i][half] = fmaf(F == LAUNCH_CODES_NF4 ? scale[half] * by : by,
                                   sum_of_bytes(box[2 * half], box[2 * half + 1]), sum.of[i][half]);
    }
}

/* The sums of a warp's rows go to (run, row of x, row of the tile). */
template <int NT>
__device__ void keep(const warp_sums<NT> &sum, const layout &l, int first_row, int run, uint32_t sums) {
    const int lane = (int)threadIdx.x % WARP;
    const uint32_t to = sums + (uint32_t)((run * NT * PRODUCT_ROWS + lane % 4) * l.pitch + first_row + lane / 4) * 4;
#pragma unroll
    for (int i = 0; i < NT; i++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            store_shared_float(to + (uint32_t)(i * PRODUCT_ROWS * l.pitch + half * 8) * 4, sum.of[i][half]);
}

/* ---- y ------------------------------------------------------------------------------------------------------------------ */

/* What a LINEAR gives: row `row` of x, four neighbouring rows of the tile. */
template <int NT, typename Y>
__device__ inline void finish(Y (&y)[4], const layout &l, uint32_t sums, uint32_t columns, int row, int column) {
    const uint4 scales = load_shared_16(columns + column * 4),
                biases = load_shared_16(columns + (l.row_groups * TILE + column) * 4);
    const uint32_t scale[4] = {scales.x, scales.y, scales.z, scales.w},
                   bias[4] = {biases.x, biases.y, biases.z, biases.w};
    float total[4] = {0, 0, 0, 0};
    for (int run = 0; run < l.n_runs; run++) {
        const uint4 v = load_shared_16(sums + (uint32_t)((run * NT * PRODUCT_ROWS + row) * l.pitch + column) * 4);
        total[0] += __uint_as_float(v.x), total[1] += __uint_as_float(v.y);
        total[2] += __uint_as_float(v.z), total[3] += __uint_as_float(v.w);
    }
#pragma unroll
    for (int c = 0; c < 4; c++) round_to(&y[c], total[c] * __uint_as_float(scale[c]) + __uint_as_float(bias[c]));
}

template <launch_codes F, typename E, typename Y, int NT, bool GATED>
__global__ void __launch_bounds__(THREADS_MOST, NT == 1 ? 2 : 1)
    few_codes(const __grid_constant__ few_codes_product q, const __grid_constant__ layout l,
              const __grid_constant__ code_values values) {
    typedef step_codes<F> codes;
    enum { STEP = format<F>::STEP, BOXES = format<F>::BOXES, LANE_BYTES = sizeof(typename codes::pack) };
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ float dynamic[F == LAUNCH_CODES_NF4 ? 256 : 1];
    const uint32_t sums = shared_address(memory), columns = sums + l.columns_at, x_scales = sums + l.x_scales_at,
                   scales = sums + l.scales_at;
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int n_threads = l.row_groups * l.n_runs * WARP, first_row = warp % l.row_groups * TILE,
              run = warp / l.row_groups;
    const int begin = run_begin(l, run), n = run_begin(l, run + 1) - begin;
    const int64_t row_bytes = F == LAUNCH_CODES_NF4 ? q.k / 2 : q.k;
    const float *row_scales = (const float *)q.work;
    const unsigned char *row_bytes_of_x = bytes_in(q.work, q.k);

    chain_next();
    const uint64_t policy = read_once();
    const unsigned char *rows[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int64_t row = min(weight_row<GATED>(q, l, first_row + i * 8 + g), q.n - 1); /* any, where there is none */
        rows[i] = (const unsigned char *)q.codes + row * row_bytes + (int64_t)begin * STEP_BYTES + t * LANE_BYTES;
    }
    auto fetch = [&](codes &c, int step) {
        int left = 0;
        if (step < n)
            left = (int)min(row_bytes - (int64_t)(begin + step) * STEP_BYTES - t * LANE_BYTES, (int64_t)STEP_BYTES);
        c.load(rows, step * STEP_BYTES, left, policy);
    };
    codes even, odd;
    fetch(even, 0);
    fetch(odd, 1);
    const int n_rows = l.row_groups * TILE;
    auto row_of = [&](int row) { return weight_row<GATED>(q, l, row); };
    load_columns<F, Y>(q, row_of, n_rows, columns, n_threads);
    if constexpr (F == LAUNCH_CODES_NF4) {
        for (int i = (int)threadIdx.x; i < 256; i += n_threads) dynamic[i] = values.dynamic[i];
        __syncthreads();
        load_scales(q, row_of, n_rows, l.scale_pitch, dynamic, scales, n_threads);
    }
    chain_wait();
    if constexpr (NT == 1) {
        for (int row = 0; row < (int)q.m; row++)
            for (int first = 0; first < (int)q.k; first += n_threads * 8) {
                const int i = first + (int)threadIdx.x * 8;
                const uint32_t to = sums + (uint32_t)(2 * row * l.x_pitch);
                pack8<E> v = {};
                bytes8 high, low;
                if (i < (int)q.k) v = *(const pack8<E> *)((const E *)q.x + row * q.k + i);
                const float scale = cut_box<F>(high, low, v);
                if (i >= (int)q.k) continue;
                store_shared_bytes(to + i, high);
                store_shared_bytes(to + l.x_pitch + i, low);
                if (i % X_BOX == 0)
                    store_shared_float(x_scales + (uint32_t)(i / X_BOX * PRODUCT_ROWS + row) * 4, scale);
            }
    }
    __syncthreads();

    warp_sums<NT> sum = {};
    const uint32_t own_scales = scales + (uint32_t)((first_row + g) * l.scale_pitch + begin * BOXES) * 4;
    auto take = [&](const codes &c, int step) {
#pragma unroll
        for (int box = 0; box < BOXES; box++) {
            const int64_t k = (int64_t)(begin + step) * STEP + box * BOX + t * 16;
            float scale[2] = {1, 1};
            if (k >= q.k) continue;
            if constexpr (F == LAUNCH_CODES_NF4) {
                scale[0] = load_shared_float(own_scales + (uint32_t)(step * BOXES + box) * 4);
                scale[1] = load_shared_float(own_scales + (uint32_t)(step * BOXES + box + 8 * l.scale_pitch) * 4);
            }
            auto x_of = [&](int i) {
                const int column = i * 2 * PRODUCT_ROWS + g;
                if (column >= 2 * (int)q.m) return make_uint4(0, 0, 0, 0);
                if constexpr (NT == 1) return load_shared_16(sums + (uint32_t)(column * l.x_pitch + k));
                else return *(const uint4 *)(row_bytes_of_x + column * q.k + k);
            };
            auto x_scale = [&](int i) {
                const int row = i * PRODUCT_ROWS + t, x_box = (int)(k / X_BOX);
                if constexpr (NT == 1) return load_shared_float(x_scales + (uint32_t)(x_box * PRODUCT_ROWS + row) * 4);
                else return row_scales[x_box * FEW_ROWS_MOST + row];
            };
            multiply<F, NT>(sum, values, c.codes[0][box], c.codes[1][box], x_of, x_scale, scale);
        }
    };
    for (int step = 0; step < n; step += 2) {
        take(even, step);
        fetch(even, step + 2);
        if (step + 1 < n) take(odd, step + 1);
        fetch(odd, step + 3);
    }
    if constexpr (NT == 1) __syncthreads(); /* all have read the bytes of x */
    keep<NT>(sum, l, first_row, run, sums);
    __syncthreads();

    const int quads = l.columns / 4;
    const int64_t n_columns = GATED ? q.n / 2 : q.n;
    for (int i = (int)threadIdx.x; i < (int)q.m * quads; i += n_threads) {
        const int row = i / quads, c0 = i % quads * 4;
        const int64_t column = (int64_t)blockIdx.x * l.columns + c0;
        const int n_left = (int)min(n_columns - column, (int64_t)4);
        if (n_left <= 0) continue;
        Y y[4], up[4];
        finish<NT>(y, l, sums, columns, row, c0);
        if (GATED) {
            finish<NT>(up, l, sums, columns, row, l.second_at + c0);
#pragma unroll
            for (int c = 0; c < 4; c++) round_to(&y[c], gated<Y>((float)y[c], (float)up[c], q.gelu));
        }
        Y *to = (Y *)q.y + row * q.ldy + column;
        if (n_left == 4 && (uintptr_t)to % sizeof y == 0) {
            struct alignas(sizeof y) four {
                Y e[4];
            };
            *(four *)to = {y[0], y[1], y[2], y[3]};
            continue;
        }
#pragma unroll
        for (int c = 0; c < 4; c++)
            if (c < n_left) to[c] = y[c];
    }
}

/* ---- the choice --------------------------------------------------------------------------------------------------------- */

/* What a block may have, but for what kernels have beside their layout. */
int shared_bytes_of_gpu() {
    enum { BESIDE = 3 * 1024 };
    int device = 0, bytes = 48 * 1024;
    if (cudaGetDevice(&device) == cudaSuccess)
        cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    return bytes - BESIDE;
}

/* For so many columns of y. NT: products of x's rows. */
template <launch_codes F> layout layout_for(const few_codes_product *q, int columns, int NT, int shared_bytes) {
    layout l = {};
    l.columns = columns;
    l.n_steps = (int)(((F == LAUNCH_CODES_NF4 ? q->k / 2 : q->k) + STEP_BYTES - 1) / STEP_BYTES);
    l.second_at = q->gated ? (columns + 7) / 8 * 8 : columns;
    l.rows = l.second_at + (q->gated ? columns : 0);
    l.row_groups = (l.rows + TILE - 1) / TILE;
    l.pitch = (l.row_groups * TILE + 31) / 32 * 32 + 4;
    if (F == LAUNCH_CODES_NF4) l.scale_pitch = (int)(q->k / LAUNCH_NF4_BLOCK) | 1;
    const int x_scales = (int)(q->k + X_BOX - 1) / X_BOX * PRODUCT_ROWS * 4,
              beside = (2 + l.scale_pitch) * l.row_groups * TILE * 4 + x_scales, run_bytes = PRODUCT_ROWS * l.pitch * 4;
    /* As many runs as warps can be, as have a step, and as there is room for with the most rows of x. */
    const int room = (shared_bytes - beside) / (run_bytes * (FEW_ROWS_MOST / PRODUCT_ROWS));
    l.n_runs = WARPS_MOST / l.row_groups;
    if (l.n_runs > l.n_steps) l.n_runs = l.n_steps;
    if (l.n_runs > room) l.n_runs = room;
    l.x_pitch = (int)((q->k + 127) / 128 * 128 + 64);
    const int x_bytes = NT == 1 ? 2 * (int)q->m * l.x_pitch : 0, sums = l.n_runs * NT * run_bytes;
    l.columns_at = (uint32_t)(x_bytes > sums ? x_bytes : sums);
    l.x_scales_at = l.columns_at + (uint32_t)(2 * l.row_groups * TILE) * 4;
    l.scales_at = l.x_scales_at + (uint32_t)x_scales;
    l.n_bytes = l.columns_at + (uint32_t)beside;
    return l;
}

/* Columns of y of a block, by the weight and the GPU: such that the multiprocessor that reads most reads least; of equals the most. */
template <launch_codes F> int columns_of(const few_codes_product *q, int shared_bytes) {
    enum {
        MULTIPROCESSORS = 132,
        TILES_MOST = WARPS_MOST / 3, /* three runs at least: it takes so many warps to keep loads under way */
        BLOCK_COST = 4096            /* bytes that could be read while a block begins and ends */
    };
    const int halves = q->gated ? 2 : 1;
    const int64_t columns = q->n / halves;
    int64_t least = INT64_MAX;
    int best = 4;
    for (int c = TILES_MOST * TILE / halves; c >= 4; c -= 4) {
        const layout l = layout_for<F>(q, c, 1, shared_bytes);
        const int64_t rounds = ((columns + c - 1) / c + MULTIPROCESSORS - 1) / MULTIPROCESSORS;
        const int64_t cost = rounds * (c * halves * l.n_steps * STEP_BYTES + BLOCK_COST);
        if (l.row_groups <= TILES_MOST && l.n_runs > 0 && cost < least) least = cost, best = c;
    }
    return best;
}

template <launch_codes F, typename E, typename Y, int NT, bool GATED>
void launch(cudaStream_t s, const few_codes_product *q, const code_values &values, const layout &l) {
    const int64_t columns = GATED ? q->n / 2 : q->n;
    if (NT > 1) launch_round<F, true, E>(s, q);
    launch_chained(few_codes<F, E, Y, NT, GATED>, dim3((unsigned)((columns + l.columns - 1) / l.columns)),
                   dim3((unsigned)(l.row_groups * l.n_runs) * WARP), l.n_bytes, 1, s, *q, l, values);
}

template <launch_codes F, typename E, typename Y, bool GATED> struct by_rows {
    static void run(cudaStream_t s, const few_codes_product *q, const code_values &values) {
        const int shared_bytes = shared_bytes_of_gpu(), columns = columns_of<F>(q, shared_bytes);
        auto of = [&](int NT) { return layout_for<F>(q, columns, NT, shared_bytes); };
        const layout l = of(1);
        if (q->m <= PRODUCT_ROWS && l.n_bytes <= (uint32_t)shared_bytes) launch<F, E, Y, 1, GATED>(s, q, values, l);
        else if (q->m <= 8) launch<F, E, Y, 2, GATED>(s, q, values, of(2));
        else if (q->m <= 16) launch<F, E, Y, 4, GATED>(s, q, values, of(4));
        else if (q->m <= 32) launch<F, E, Y, 8, GATED>(s, q, values, of(8));
        else launch<F, E, Y, FEW_ROWS_MOST / PRODUCT_ROWS, GATED>(s, q, values, of(FEW_ROWS_MOST / PRODUCT_ROWS));
    }
};

} // namespace

extern "C" void launch_few_codes(cudaStream_t s, const few_codes_product *q, const launch_nf4_tables *tables) {
    by_format<by_rows>(s, q, tables);
}
