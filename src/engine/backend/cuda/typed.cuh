#pragma once
/* typed.cuh - fp32, bf16 and fp16 elements on the device, and what the memory-bound kernels share.
 *
 * A kernel is a template over the element type; by_type picks the instance. Elements move in packs of 16 bytes or, where
 * operands of different types go side by side, in quads of four elements. Both have a version for operands that are not
 * aligned and for the end of a row, which reads and writes element by element; VECTOR says which. What a pack holds, and
 * so the shape of every sum, is the same for both.
 *
 * Arithmetic is fp32. narrow rounds with the hardware's instruction, whose NaN is always the same one; narrow_exact and
 * widen_exact give the bits of tensor.h, payloads of NaN included, for the kernels that promise the bits of the host. */
#include "backend/cuda/launch.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <type_traits>

struct bf16 {
    uint16_t bits;
};
struct f16 {
    uint16_t bits;
};

#define DEVICE static __device__ __forceinline__

/* ---- one element ------------------------------------------------------------------------------------------------ */

DEVICE float widen(float x) { return x; }
DEVICE float widen(bf16 x) { return __uint_as_float((uint32_t)x.bits << 16); }
DEVICE float widen(f16 x) { return __half2float(__ushort_as_half(x.bits)); }

DEVICE void narrow(float *y, float x) { *y = x; }
DEVICE void narrow(bf16 *y, float x) { y->bits = __bfloat16_as_ushort(__float2bfloat16_rn(x)); }
DEVICE void narrow(f16 *y, float x) { y->bits = __half_as_ushort(__float2half_rn(x)); }

DEVICE bool bits_are_nan(uint32_t u) { return (u & 0x7fffffffu) > 0x7f800000u; }

DEVICE float widen_exact(float x) { return x; }
DEVICE float widen_exact(bf16 x) { return widen(x); }
DEVICE float widen_exact(f16 x) {
    uint32_t size = x.bits & 0x7fffu;
    if (size > 0x7c00u) return __uint_as_float((x.bits & 0x8000u) << 16 | 0x7fc00000u | size << 13);
    return widen(x);
}

DEVICE void narrow_exact(float *y, float x) { *y = x; }
DEVICE void narrow_exact(bf16 *y, float x) {
    uint32_t u = __float_as_uint(x);
    y->bits = (uint16_t)(bits_are_nan(u) ? u >> 16 | 0x40u : (u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}
DEVICE void narrow_exact(f16 *y, float x) {
    uint32_t u = __float_as_uint(x);
    if (bits_are_nan(u)) y->bits = (uint16_t)((u >> 16 & 0x8000u) | 0x7e00u | (u >> 13 & 0x1ffu));
    else narrow(y, x);
}

/* ---- packs: 16 bytes -------------------------------------------------------------------------------------------- */

template <typename T> struct pack {
    enum { N = 16 / sizeof(T) };
    float v[N];
};

/* Elements 0 .. n of p, zeros after them. VECTOR: p is aligned, and n is a whole pack, more, or nothing. */
template <bool VECTOR, typename T> DEVICE uint4 raw_load(const T *p, int64_t n) {
    if (VECTOR) return n > 0 ? *(const uint4 *)p : make_uint4(0, 0, 0, 0);
    union {
        uint4 raw;
        T e[pack<T>::N];
    } u;
    u.raw = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < pack<T>::N; i++)
        if (i < n) u.e[i] = p[i];
    return u.raw;
}

template <bool VECTOR, typename T> DEVICE void raw_store(T *p, uint4 raw, int64_t n) {
    if (VECTOR) {
        if (n > 0) *(uint4 *)p = raw;
        return;
    }
    union {
        uint4 raw;
        T e[pack<T>::N];
    } u;
    u.raw = raw;
#pragma unroll
    for (int i = 0; i < pack<T>::N; i++)
        if (i < n) p[i] = u.e[i];
}

template <typename T> DEVICE pack<T> pack_widen(uint4 raw) {
    const uint32_t w[4] = {raw.x, raw.y, raw.z, raw.w};
    pack<T> r;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if constexpr (std::is_same_v<T, float>) {
            r.v[i] = __uint_as_float(w[i]);
        } else if constexpr (std::is_same_v<T, bf16>) {
            r.v[2 * i] = __uint_as_float(w[i] << 16);
            r.v[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
        } else {
            r.v[2 * i] = widen(f16{(uint16_t)w[i]});
            r.v[2 * i + 1] = widen(f16{(uint16_t)(w[i] >> 16)});
        }
    }
    return r;
}

/* Two elements in one instruction, with narrow's bits: one by one they take turns in a unit that has an eighth of the speed. */
template <typename T> DEVICE uint32_t pair_narrow(float low, float high) {
    uint32_t w;
    if constexpr (std::is_same_v<T, bf16>) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(high), "f"(low));
    else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(high), "f"(low));
    return w;
}

template <typename T> DEVICE uint4 pack_narrow(const pack<T> &p) {
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if constexpr (std::is_same_v<T, float>) w[i] = __float_as_uint(p.v[i]);
        else w[i] = pair_narrow<T>(p.v[2 * i], p.v[2 * i + 1]);
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

template <bool VECTOR, typename T> DEVICE pack<T> pack_load(const T *p, int64_t n) {
    return pack_widen<T>(raw_load<VECTOR>(p, n));
}
template <bool VECTOR, typename T> DEVICE void pack_store(T *p, const pack<T> &x, int64_t n) {
    raw_store<VECTOR>(p, pack_narrow<T>(x), n);
}

/* ---- quads: four elements ---------------------------------------------------------------------------------------- */

/* Elements 0 .. n of p as they lie, zeros after them. VECTOR: p is aligned to four elements; n may be anything, and with WHOLE is 4 or more. */
template <typename T> struct alignas(4 * sizeof(T)) quad { T e[4]; };

template <bool VECTOR, bool WHOLE = false, typename T> DEVICE quad<T> quad_load(const T *p, int64_t n) {
    if constexpr (VECTOR && WHOLE) return *(const quad<T> *)p;
    else {
        quad<T> q = {};
        if (VECTOR && n >= 4) return *(const quad<T> *)p;
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (i < n) q.e[i] = p[i];
        return q;
    }
}

template <bool VECTOR, bool WHOLE = false, typename T> DEVICE void quad_store(T *p, const quad<T> &q, int64_t n) {
    if constexpr (VECTOR && WHOLE) *(quad<T> *)p = q;
    else {
        if (VECTOR && n >= 4) {
            *(quad<T> *)p = q;
            return;
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (i < n) p[i] = q.e[i];
    }
}

/* ---- sums over threads ------------------------------------------------------------------------------------------- */

enum { WARP = 32 };

/* Over WIDTH neighbouring lanes, a power of two; every lane gets the result. The whole warp takes part. */
template <int WIDTH = WARP, typename X> DEVICE X lanes_sum(X x) {
#pragma unroll
    for (int step = WIDTH / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

/* Over the block, whose threads are whole warps. `shared` has a place for every warp and is not read again by an
 * earlier sum: two sums in a row need two of them. */
template <typename X> DEVICE X block_sum(X x, X *shared) {
    x = lanes_sum(x);
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = x;
    __syncthreads();
    return lanes_sum(threadIdx.x % WARP < blockDim.x / WARP ? shared[threadIdx.x % WARP] : X(0));
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* How many rows hold something: op.rows, in device memory, or all. */
DEVICE int64_t rows_held(const int32_t *rows, int64_t n_rows) { return rows && *rows < n_rows ? *rows : n_rows; }

template <typename... P> static void launch(void (*kernel)(P...), dim3 grid, dim3 block, cudaStream_t stream, P... p) {
    if (grid.x > 0 && grid.y > 0) kernel<<<grid, block, 0, stream>>>(p...);
}

template <typename F> static void by_type(launch_type t, F run) {
    if (t == LAUNCH_F32) run(float{});
    else if (t == LAUNCH_BF16) run(bf16{});
    else run(f16{});
}
template <typename F> static void by_flag(bool flag, F run) {
    if (flag) run(std::true_type{});
    else run(std::false_type{});
}

static inline int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }
static inline bool aligned(const void *p, size_t n_bytes) { return (uintptr_t)p % n_bytes == 0; } /* so is NULL */
static inline size_t type_bytes(launch_type t) { return t == LAUNCH_F32 ? 4 : 2; }
/* Blocks along y beyond the hardware's limit take turns: such kernels step over rows by gridDim.y. */
static inline unsigned grid_rows(int64_t n_rows) { return (unsigned)(n_rows < 65535 ? n_rows : 65535); }
/* Threads of a block for so many items: whole warps, and no more than `most`. */
static inline unsigned block_threads(int64_t n_items, int64_t most) {
    int64_t whole = divide_up(n_items, WARP) * WARP;
    return (unsigned)(whole < most ? whole : most);
}
