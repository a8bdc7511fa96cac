/* elementwise.cu - kernels that look at one element, or one pair of elements, at a time.
 *
 * All of them are bound by memory: a thread loads all it needs in packs of 16 bytes, then computes, then stores. An
 * element's result depends on its inputs only, never on its place or on how it was loaded. Everything an element needs is
 * read by the thread that writes it, so outputs may take the bytes of an input.
 * What GELU and SwiGLU do to an element is in gated.cuh. */
#include "backend/cuda/launch_elementwise.h"

#include "backend/cuda/absmax.cuh"
#include "backend/cuda/chain.cuh"
#include "backend/cuda/gated.cuh"
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 256 };

/* ---- maps: y[i] from a[i] and b[i] ------------------------------------------------------------------------------- */

struct map_add {
    enum { BINARY = 1 };
    static __device__ __forceinline__ float run(float a, float b) { return a + b; }
};

struct map_gelu {
    enum { BINARY = 0 };
    static __device__ __forceinline__ float run(float x, float) { return gelu(x); }
};

struct map_gelu_bwd {
    enum { BINARY = 1 };
    static __device__ __forceinline__ float run(float x, float dy) { return gelu_gradient(x, dy); }
};

/* Two packs per thread and operand, all asked for before the first is used. The last pack of an array may be short: it is
 * left to one thread, element by element. */
enum { MAP_PACKS = 2 };

template <typename T, bool VECTOR, typename MAP>
static __global__ void __launch_bounds__(THREADS)
    map_kernel(T *y, const T *a, const T *b, int64_t n_rows, int64_t width, const int32_t *rows) {
    enum { N = pack<T>::N };
    chain_enter();
    int64_t n = rows_held(rows, n_rows) * width, first = ((int64_t)blockIdx.x * MAP_PACKS * THREADS + threadIdx.x) * N;
    uint4 x[MAP_PACKS], other[MAP_PACKS];
#pragma unroll
    for (int k = 0; k < MAP_PACKS; k++) {
        int64_t i = first + (int64_t)k * THREADS * N, left = n - i;
        bool whole = VECTOR && left >= N;
        x[k] = whole ? raw_load<true>(a + i, left) : raw_load<false>(a + i, left);
        if (MAP::BINARY) other[k] = whole ? raw_load<true>(b + i, left) : raw_load<false>(b + i, left);
    }
#pragma unroll
    for (int k = 0; k < MAP_PACKS; k++) {
        int64_t i = first + (int64_t)k * THREADS * N, left = n - i;
        pack<T> p = pack_widen<T>(x[k]), q = pack_widen<T>(MAP::BINARY ? other[k] : x[k]);
#pragma unroll
        for (int e = 0; e < N; e++) p.v[e] = MAP::run(p.v[e], q.v[e]);
        if (VECTOR && left >= N) pack_store<true>(y + i, p, left);
        else pack_store<false>(y + i, p, left);
    }
}

template <typename MAP>
static void map_launch(cudaStream_t s, launch_type t, void *y, const void *a, const void *b, int64_t n_rows,
                       int64_t width, const int32_t *rows) {
    by_type(t, [&](auto zero) {
        using T = decltype(zero);
        int64_t blocks = divide_up(n_rows * width, (int64_t)MAP_PACKS * THREADS * pack<T>::N);
        by_flag(aligned(y, 16) && aligned(a, 16) && aligned(b, 16), [&](auto vector) {
            launch_chained(map_kernel<T, decltype(vector)::value, MAP>, dim3((unsigned)blocks), dim3(THREADS), 0, 1, s,
                           (T *)y, (const T *)a, (const T *)b, n_rows, width, rows);
        });
    });
}

void launch_map(cudaStream_t s, launch_op op, launch_type t, void *y, const void *a, const void *b, int64_t n_rows,
                int64_t width, const int32_t *rows) {
    switch (op) {
    case LAUNCH_ADD: map_launch<map_add>(s, t, y, a, b, n_rows, width, rows); break;
    case LAUNCH_GELU: map_launch<map_gelu>(s, t, y, a, b, n_rows, width, rows); break;
    case LAUNCH_GELU_BWD: map_launch<map_gelu_bwd>(s, t, y, a, b, n_rows, width, rows); break;
    default: fprintf(stderr, "launch_map: op %d is not a map\n", op); abort();
    }
}

/* ---- rows: bias, swiglu ------------------------------------------------------------------------------------------ */

/* Blocks along x go over the packs of a row, along y over rows: no division finds the place of an element. A row whose
 * bytes are no multiple of 16 starts unaligned, and then all packs go element by element. */

/* The threads of a row are shared out evenly: blocks of THREADS would leave most of the last one idle in every row. */
static unsigned row_threads(int64_t width, int pack) {
    int64_t packs = divide_up(width, pack);
    return block_threads(divide_up(packs, divide_up(packs, THREADS)), THREADS);
}
static dim3 row_grid(int64_t n_rows, int64_t width, int pack) {
    return dim3((unsigned)divide_up(width, (int64_t)row_threads(width, pack) * pack), grid_rows(n_rows));
}

template <typename T> DEVICE int64_t row_column() {
    return ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * pack<T>::N;
}

template <typename T, bool VECTOR>
static __global__ void __launch_bounds__(THREADS)
    add_bias_kernel(T *y, const T *x, const T *bias, int64_t n_rows, int64_t width, const int32_t *rows) {
    int64_t column = row_column<T>(), left = width - column, held = rows_held(rows, n_rows);
    if (left <= 0) return;
    pack<T> b = pack_load<VECTOR>(bias + column, left);
    for (int64_t row = blockIdx.y; row < held; row += gridDim.y) {
        pack<T> p = pack_load<VECTOR>(x + row * width + column, left);
#pragma unroll
        for (int e = 0; e < pack<T>::N; e++) p.v[e] += b.v[e];
        pack_store<VECTOR>(y + row * width + column, p, left);
    }
}

/* Two rows at once: one row's 32 bytes per thread are too few to keep memory busy. */
enum { SWIGLU_ROWS = 2 };

template <typename T, bool VECTOR, bool AMAX, bool GELU>
static __global__ void __launch_bounds__(THREADS)
    swiglu_kernel(T *y, float *amax, const T *gu, int64_t n_rows, int64_t F, const int32_t *rows) {
    __shared__ uint32_t mosts[WARP];
    uint32_t most = 0;
    chain_enter();
    int64_t column = row_column<T>(), held = rows_held(rows, n_rows);
    for (int64_t first = blockIdx.y; first < held; first += SWIGLU_ROWS * gridDim.y) {
        uint4 gate[SWIGLU_ROWS], up[SWIGLU_ROWS];
#pragma unroll
        for (int r = 0; r < SWIGLU_ROWS; r++) {
            int64_t row = first + r * gridDim.y, left = row < held ? F - column : 0;
            gate[r] = raw_load<VECTOR>(gu + row * 2 * F + column, left);
            up[r] = raw_load<VECTOR>(gu + row * 2 * F + F + column, left);
        }
        asm volatile("" ::: "memory"); /* or the compiler asks for the second row after the first is computed */
#pragma unroll
        for (int r = 0; r < SWIGLU_ROWS; r++) {
            int64_t row = first + r * gridDim.y, left = row < held ? F - column : 0;
            pack<T> g = pack_widen<T>(gate[r]), u = pack_widen<T>(up[r]);
#pragma unroll
            for (int e = 0; e < pack<T>::N; e++) g.v[e] = gated<T>(g.v[e], u.v[e], GELU);
            uint4 rounded = pack_narrow<T>(g);
            raw_store<VECTOR>(y + row * F + column, rounded, left);
            if (AMAX) most = absmax_pack<T>(most, rounded, left);
        }
    }
    if (AMAX) absmax_give(amax, most, mosts);
}

template <typename T, bool VECTOR, bool AMAX, bool GELU, bool AGAIN>
static __global__ void __launch_bounds__(THREADS)
    swiglu_bwd_kernel(T *dgu, float *amax, T *y, const T *gu, const T *dy, int64_t n_rows, int64_t F) {
    __shared__ uint32_t mosts[WARP];
    uint32_t most = 0;
    int64_t column = row_column<T>(), left = F - column;
    for (int64_t row = blockIdx.y; row < n_rows && left > 0; row += gridDim.y) {
        int64_t gate = row * 2 * F + column, up = gate + F;
        uint4 g_raw = raw_load<VECTOR>(gu + gate, left), u_raw = raw_load<VECTOR>(gu + up, left),
              d_raw = raw_load<VECTOR>(dy + row * F + column, left);
        pack<T> g = pack_widen<T>(g_raw), u = pack_widen<T>(u_raw), d = pack_widen<T>(d_raw), dg, du, again;
#pragma unroll
        for (int e = 0; e < pack<T>::N; e++) {
            if (AGAIN) again.v[e] = gated<T>(g.v[e], u.v[e], GELU);
            gated_gradient<T>(&dg.v[e], &du.v[e], g.v[e], u.v[e], d.v[e], GELU);
        }
        uint4 gate_rounded = pack_narrow<T>(dg), up_rounded = pack_narrow<T>(du);
        raw_store<VECTOR>(dgu + gate, gate_rounded, left);
        raw_store<VECTOR>(dgu + up, up_rounded, left);
        if (AGAIN) raw_store<VECTOR>(y + row * F + column, pack_narrow<T>(again), left);
        if (AMAX) most = absmax_pack<T>(absmax_pack<T>(most, gate_rounded, left), up_rounded, left);
    }
    if (AMAX) absmax_give(amax, most, mosts);
}

void launch_add_bias(cudaStream_t s, launch_type t, void *y, const void *x, const void *bias, int64_t n_rows,
                     int64_t width, const int32_t *rows) {
    by_type(t, [&](auto zero) {
        using T = decltype(zero);
        bool whole = width % pack<T>::N == 0 && aligned(y, 16) && aligned(x, 16) && aligned(bias, 16);
        by_flag(whole, [&](auto vector) {
            launch(add_bias_kernel<T, decltype(vector)::value>, row_grid(n_rows, width, pack<T>::N),
                   dim3(row_threads(width, pack<T>::N)), s, (T *)y, (const T *)x, (const T *)bias, n_rows, width, rows);
        });
    });
}

/* Blocks along y where each takes `rows` rows; one that is to hand out a largest number takes more: it does that once. */
enum { AMAX_ROWS = 8 };
static int64_t rows_of_blocks(int64_t n_rows, int rows, const float *amax) {
    return divide_up(n_rows, amax ? (int)AMAX_ROWS : rows);
}

void launch_swiglu(cudaStream_t s, launch_type t, void *y, float *amax, const void *gu, int64_t n_rows, int64_t F,
                   const int32_t *rows, bool is_gelu) {
    absmax_clear(s, amax);
    by_type(t, [&](auto zero) {
        using T = decltype(zero);
        bool whole = F % pack<T>::N == 0 && aligned(y, 16) && aligned(gu, 16);
        by_flag(whole, [&](auto vector) {
            by_amax<T>(amax, [&](auto asked) {
                by_flag(is_gelu, [&](auto gelu) {
                    launch_chained(
                        swiglu_kernel<T, decltype(vector)::value, decltype(asked)::value, decltype(gelu)::value>,
                        row_grid(rows_of_blocks(n_rows, SWIGLU_ROWS, amax), F, pack<T>::N),
                        dim3(row_threads(F, pack<T>::N)), 0, 1, s, (T *)y, amax, (const T *)gu, n_rows, F, rows);
                });
            });
        });
    });
}

void launch_swiglu_bwd(cudaStream_t s, launch_type t, void *dgu, float *amax, void *y, const void *gu, const void *dy,
                       int64_t n_rows, int64_t F, bool is_gelu) {
    absmax_clear(s, amax);
    by_type(t, [&](auto zero) {
        using T = decltype(zero);
        bool whole = F % pack<T>::N == 0 && aligned(dgu, 16) && aligned(gu, 16) && aligned(dy, 16) && aligned(y, 16);
        by_flag(whole, [&](auto vector) {
            by_amax<T>(amax, [&](auto asked) {
                by_flag(is_gelu, [&](auto gelu) {
                    by_flag(y != NULL, [&](auto again) {
                        launch(swiglu_bwd_kernel<T, decltype(vector)::value, decltype(asked)::value,
                                                 decltype(gelu)::value, decltype(again)::value>,
                               row_grid(rows_of_blocks(n_rows, 1, amax), F, pack<T>::N),
                               dim3(row_threads(F, pack<T>::N)), s, (T *)dgu, amax, (T *)y, (const T *)gu,
                               (const T *)dy, n_rows, F);
                    });
                });
            });
        });
    });
}

/* ---- rope -------------------------------------------------------------------------------------------------------- */

/* A thread turns one pack of the first half of a head with its partner in the second half, so that it reads both before
 * it writes one; behind the dimensions that are turned it keeps every packs-th pack. Blocks along y go over rows; along x over
 * the packs of a row, those of the value heads last. In place what is kept is read for the largest number alone. */
template <typename T, bool VECTOR, bool AMAX>
static __global__ void __launch_bounds__(THREADS) rope_kernel(launch_rope_args a) {
    enum { N = pack<T>::N };
    int half = a.rotary / 2, packs = (half + N - 1) / N; /* of half of what is turned */
    __shared__ uint32_t mosts[WARP];
    uint32_t most = 0;
    bool keeps = AMAX || a.y != a.qkv;
    int kept = keeps ? a.head_dim - a.rotary : 0;
    chain_enter();
    int64_t width = (int64_t)(a.n_turned + a.n_kept) * a.head_dim, held = rows_held(a.rows, a.n_rows);
    int item = (int)(blockIdx.x * blockDim.x + threadIdx.x), head = item / packs, i = item % packs * N;
    if (head >= a.n_turned + (keeps ? a.n_kept : 0)) held = 0; /* it stays for the largest number */
    for (int64_t row = blockIdx.y; row < held; row += gridDim.y) {
        int64_t at = row * width + (int64_t)head * a.head_dim + i;
        const T *x = (const T *)a.qkv + at;
        T *y = (T *)a.y + at;
        uint4 raw_low = raw_load<VECTOR>(x, half - i), raw_high = raw_load<VECTOR>(x + half, half - i);
        for (int k = i; k < kept; k += packs * N) {
            uint4 raw = raw_load<VECTOR>(x + a.rotary - i + k, kept - k);
            if (a.y != a.qkv) raw_store<VECTOR>(y + a.rotary - i + k, raw, kept - k);
            if (AMAX) most = absmax_pack<T>(most, raw, kept - k);
        }
        if (head >= a.n_turned) {
            if (a.y != a.qkv) raw_store<VECTOR>(y, raw_low, half - i), raw_store<VECTOR>(y + half, raw_high, half - i);
            if (AMAX) most = absmax_pack<T>(absmax_pack<T>(most, raw_low, half - i), raw_high, half - i);
            continue;
        }
        int64_t position = row % a.seq_len - a.doc_start[row];
        if (position < 0 || position >= a.n_positions) __trap();
        const float *cosine = a.table + position * a.rotary + i, *sine = cosine + half;
        pack<T> low = pack_widen<T>(raw_low), high = pack_widen<T>(raw_high);
#pragma unroll
        for (int q = 0; q < N / 4; q++) {
            pack<float> c = pack_load<VECTOR>(cosine + 4 * q, half - i - 4 * q),
                        s = pack_load<VECTOR>(sine + 4 * q, half - i - 4 * q);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float l = low.v[4 * q + e], h = high.v[4 * q + e], turn = a.sign * s.v[e];
                low.v[4 * q + e] = fmaf(l, c.v[e], -(h * turn));
                high.v[4 * q + e] = fmaf(h, c.v[e], l * turn);
            }
        }
        raw_low = pack_narrow<T>(low), raw_high = pack_narrow<T>(high);
        raw_store<VECTOR>(y, raw_low, half - i);
        raw_store<VECTOR>(y + half, raw_high, half - i);
        if (AMAX) most = absmax_pack<T>(absmax_pack<T>(most, raw_low, half - i), raw_high, half - i);
    }
    if (AMAX) absmax_give(a.amax, most, mosts);
}

void launch_rope(cudaStream_t s, launch_type t, const launch_rope_args *a) {
    absmax_clear(s, a->amax);
    by_type(t, [&](auto zero) {
        using T = decltype(zero);
        int half = a->rotary / 2;
        int64_t items = (a->n_turned + (a->y == a->qkv && !a->amax ? 0 : a->n_kept)) * divide_up(half, pack<T>::N);
        unsigned threads = block_threads(items, THREADS);
        bool whole = half % pack<T>::N == 0 && a->head_dim % pack<T>::N == 0 && aligned(a->y, 16) &&
                     aligned(a->qkv, 16) && aligned(a->table, 16);
        by_flag(whole, [&](auto vector) {
            by_amax<T>(a->amax, [&](auto amax) {
                launch_chained(rope_kernel<T, decltype(vector)::value, decltype(amax)::value>,
                               dim3((unsigned)divide_up(items, threads), grid_rows(a->n_rows)), dim3(threads), 0, 1, s,
                               *a);
            });
        });
    });
}

struct rope_frequencies {
    double f[ROPE_FREQUENCIES];
};

/* In double to the end: at position 100,000 a float angle is off by 0.004. */
static __global__ void __launch_bounds__(THREADS)
    rope_table_kernel(float *table, int64_t n_positions, int half, int first, int n, rope_frequencies frequencies,
                      double amplitude) {
    int64_t position = blockIdx.x;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        double sine, cosine;
        sincos((double)position * frequencies.f[i], &sine, &cosine);
        table[position * 2 * half + first + i] = (float)(cosine * amplitude);
        table[position * 2 * half + half + first + i] = (float)(sine * amplitude);
    }
}

void launch_rope_table(cudaStream_t s, float *table, int64_t n_positions, int half, int first, int n,
                       const double frequencies[ROPE_FREQUENCIES], double amplitude) {
    rope_frequencies f = {};
    for (int i = 0; i < n; i++) f.f[i] = frequencies[i];
    launch(rope_table_kernel, dim3((unsigned)n_positions), dim3(block_threads(n, THREADS)), s, table, n_positions, half,
           first, n, f, amplitude);
}

/* ---- cast -------------------------------------------------------------------------------------------------------- */

enum { CAST_QUADS = 4 };

/* The bits of the host, NaN included. */
template <typename Y, typename X, bool VECTOR>
static __global__ void __launch_bounds__(THREADS) cast_kernel(Y *y, const X *x, int64_t n) {
    int64_t first = ((int64_t)blockIdx.x * CAST_QUADS * THREADS + threadIdx.x) * 4;
    quad<X> in[CAST_QUADS];
#pragma unroll
    for (int k = 0; k < CAST_QUADS; k++) {
        int64_t i = first + (int64_t)k * THREADS * 4;
        in[k] = quad_load<VECTOR>(x + i, n - i);
    }
#pragma unroll
    for (int k = 0; k < CAST_QUADS; k++) {
        int64_t i = first + (int64_t)k * THREADS * 4;
        quad<Y> out;
#pragma unroll
        for (int e = 0; e < 4; e++) narrow_exact(&out.e[e], widen_exact(in[k].e[e]));
        quad_store<VECTOR>(y + i, out, n - i);
    }
}

void launch_cast(cudaStream_t s, launch_type y_type, launch_type x_type, void *y, const void *x, int64_t n) {
    by_type(y_type, [&](auto y_zero) {
        by_type(x_type, [&](auto x_zero) {
            using Y = decltype(y_zero);
            using X = decltype(x_zero);
            by_flag(aligned(y, 4 * sizeof(Y)) && aligned(x, 4 * sizeof(X)), [&](auto vector) {
                launch(cast_kernel<Y, X, decltype(vector)::value>,
                       dim3((unsigned)divide_up(n, (int64_t)CAST_QUADS * THREADS * 4)), dim3(THREADS), s, (Y *)y,
                       (const X *)x, n);
            });
        });
    });
}
