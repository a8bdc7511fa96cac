#pragma once
/* vector.h - fp32 SIMD for kernels of this backend: one vector type, its few operations, and loops over rows.
 *
 * The width follows the instruction set that the including file is compiled for: 16 lanes with AVX-512, 8 with AVX2 and
 * FMA, 4 with NEON, 4 through GCC's vector types anywhere else. A file that wants a wider set than the rest of the
 * program sets it before this include and is then called only where the machine has it:
 *
 *     #pragma GCC target("avx2,fma,f16c")
 *     #include "backend/cpu/vector.h"
 *
 * Everything is static and inline, so two files with different sets never share a symbol.
 *
 *     float x[100];
 *     row_load(x, src, DTYPE_BF16, 100);   // widened; exact
 *     vec_exp(x, x, 100);
 *     row_store(dst, x, DTYPE_BF16, 100);  // rounded to nearest even
 *
 * An element's result never depends on where it stands in the row: the tail runs through the same vector code. */
#include "tensor/tensor.h"

#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__))
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
#define VEC_WIDTH 16
#elif defined(__AVX2__) && defined(__FMA__)
#define VEC_WIDTH 8
#else
#define VEC_WIDTH 4
#endif

typedef float vec __attribute__((vector_size(4 * VEC_WIDTH))); /* + - * / and comparisons are the language's own */
typedef int32_t vec_i32 __attribute__((vector_size(4 * VEC_WIDTH)));
typedef uint32_t vec_u32 __attribute__((vector_size(4 * VEC_WIDTH)));
typedef uint16_t vec_u16 __attribute__((vector_size(2 * VEC_WIDTH)));

#define VEC_INLINE static inline __attribute__((always_inline, unused))

VEC_INLINE vec vec_load(const float *p) {
    vec v;
    memcpy(&v, p, sizeof v);
    return v;
}
VEC_INLINE void vec_store(float *p, vec v) { memcpy(p, &v, sizeof v); }
VEC_INLINE vec vec_set(float x) { return x - (vec){0}; }   /* x - 0, not x + 0, which would lose the sign of -0 */
VEC_INLINE vec vec_select(vec_i32 mask, vec yes, vec no) { /* mask: the result of a comparison */
    return (vec)((mask & (vec_i32)yes) | (~mask & (vec_i32)no));
}

/* a * b + c, rounded once where the machine can; the portable version rounds twice. */
VEC_INLINE vec vec_fma(vec a, vec b, vec c) {
#if defined(__AVX512F__)
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__) && defined(__FMA__)
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

/* The larger of both; where x is NaN the result is m, so a running maximum steps over NaN. */
VEC_INLINE vec vec_max(vec x, vec m) {
#if defined(__AVX512F__)
    return (vec)_mm512_max_ps((__m512)x, (__m512)m);
#elif defined(__AVX2__) && defined(__FMA__)
    return (vec)_mm256_max_ps((__m256)x, (__m256)m);
#elif defined(__aarch64__)
    return (vec)vmaxnmq_f32((float32x4_t)x, (float32x4_t)m);
#else
    return vec_select(x > m, x, m);
#endif
}

/* At least bound; NaN stays NaN. */
VEC_INLINE vec vec_at_least(vec x, vec bound) {
#if defined(__AVX512F__)
    return (vec)_mm512_max_ps((__m512)bound, (__m512)x);
#elif defined(__AVX2__) && defined(__FMA__)
    return (vec)_mm256_max_ps((__m256)bound, (__m256)x);
#elif defined(__aarch64__)
    return (vec)vmaxq_f32((float32x4_t)x, (float32x4_t)bound);
#else
    return vec_select(x < bound, bound, x);
#endif
}

/* Lanes folded in halves, a fixed tree: VEC_FOLD(v, step) applies v = step(the other half, v) down to lane 0. */
#if VEC_WIDTH == 16
#define VEC_FOLD(v, step)                                                                             \
    v = step(__builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7), v); \
    v = step(__builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11), v); \
    v = step(__builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13), v); \
    v = step(__builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14), v)
#elif VEC_WIDTH == 8
#define VEC_FOLD(v, step)                                               \
    v = step(__builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3), v); \
    v = step(__builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5), v); \
    v = step(__builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6), v)
#else
#define VEC_FOLD(v, step)                                   \
    v = step(__builtin_shufflevector(v, v, 2, 3, 0, 1), v); \
    v = step(__builtin_shufflevector(v, v, 1, 0, 3, 2), v)
#endif
VEC_INLINE vec vec_add(vec a, vec b) { return a + b; }
VEC_INLINE float vec_sum(vec v) {
    VEC_FOLD(v, vec_add);
    return v[0];
}
VEC_INLINE float vec_max_lane(vec v) { /* steps over NaN as vec_max does */
    VEC_FOLD(v, vec_max);
    return v[0];
}

/* e^r - 1 for |r| <= ln 2 / 2: Cephes expf coefficients. */
VEC_INLINE vec vec_exp_core(vec r) {
    vec p = vec_set(1.9875691500e-4f);
    p = vec_fma(p, r, vec_set(1.3981999507e-3f));
    p = vec_fma(p, r, vec_set(8.3334519073e-3f));
    p = vec_fma(p, r, vec_set(4.1665795894e-2f));
    p = vec_fma(p, r, vec_set(1.6666665459e-1f));
    p = vec_fma(p, r, vec_set(5.0000001201e-1f));
    return vec_fma(p, r * r, r);
}
/* x - n ln 2 in two parts; the first has 9 bits, so n times it is exact. */
VEC_INLINE vec vec_exp_reduce(vec x, vec n) {
    return vec_fma(n, vec_set(2.12194440e-4f), vec_fma(n, vec_set(-0.693359375f), x));
}

/* e^x within 2 ulp (1.01 at worst with fma) for every float, subnormal results included: inf -> inf, -inf -> 0,
 * NaN -> NaN. x = n ln 2 + r, then 2^n in two exact factors so that results below the normal range round once. */
VEC_INLINE vec vec_exp1(vec x) {
    const vec highest = vec_set(89.0f), magic = vec_set(0x1.8p23f);
    x = vec_at_least(x, vec_set(-104.0f));
    x = vec_select(x > highest, highest, x);                 /* NaN compares false and stays */
    vec shifted = vec_fma(x, vec_set(0x1.715476p0f), magic); /* n in the low bits: round to nearest */
    vec_u32 k = (vec_u32)shifted - (vec_u32)magic; /* unsigned: garbage from NaN wraps, and NaN * garbage is NaN */
    vec y = vec_exp_core(vec_exp_reduce(x, shifted - magic)) + 1.0f;
    vec_u32 half = (vec_u32)((vec_i32)k >> 1);
    vec_u32 a = (half + 127u) << 23, b = (k - half + 127u) << 23;
    return y * (vec)a * (vec)b;
}

/* e^x for x <= 0, a softmax's case, in two thirds of the work: as vec_exp1, but results under 2^-126 are 0. Right up
 * to x = 88, for arguments that rounding left above 0; NaN -> NaN; inf -> NaN. */
VEC_INLINE vec vec_exp_down(vec x) {
    const vec magic = vec_set(0x1.8p23f + 127); /* the exponent of 2^n, bias included, ends in the low bits */
    x = vec_at_least(x, vec_set(-88.0f));
    vec shifted = vec_fma(x, vec_set(0x1.715476p0f), magic);
    vec y = vec_exp_core(vec_exp_reduce(x, shifted - magic)) + 1.0f;
    return y * (vec)((vec_u32)shifted << 23); /* n = -127: times 0 */
}

/* tanh within 3 ulp. Cephes tanhf: an odd polynomial where 1 - 2 / (e^2x + 1) would lose the digits of a small x. */
VEC_INLINE vec vec_tanh(vec x) {
    vec square = x * x, size = (vec)((vec_u32)x & 0x7fffffffu), p = vec_set(-5.70498872745e-3f);
    p = vec_fma(p, square, vec_set(2.06390887954e-2f));
    p = vec_fma(p, square, vec_set(-5.37397155531e-2f));
    p = vec_fma(p, square, vec_set(1.33314422036e-1f));
    p = vec_fma(p, square, vec_set(-3.33332819422e-1f));
    vec small = vec_fma(p * square, x, x), large = 1.0f - 2.0f / (vec_exp1(size + size) + 1.0f);
    large = (vec)((vec_u32)large | ((vec_u32)x & 0x80000000u));
    return vec_select(size < 0.625f, small, large);
}

/* dst = e^src; dst may be src. */
static inline __attribute__((unused)) void vec_exp(float *dst, const float *src, size_t n) {
    size_t i = 0;
    for (; i + VEC_WIDTH <= n; i += VEC_WIDTH) vec_store(dst + i, vec_exp1(vec_load(src + i)));
    if (i < n) {
        float tail[VEC_WIDTH] = {0};
        memcpy(tail, src + i, (n - i) * sizeof(float));
        vec_store(tail, vec_exp1(vec_load(tail)));
        memcpy(dst + i, tail, (n - i) * sizeof(float));
    }
}

/* ---- one vector of 16-bit elements ---------------------------------------------------------------------------- */

/* By hand, because gcc 12 makes two halves of it on x86-64, and four single elements on arm64. */
VEC_INLINE vec vec_from_bf16(const uint16_t *p) {
#if defined(__AVX512F__)
    return (vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16);
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
    return (vec)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16);
#elif defined(__aarch64__)
    return (vec)vshll_n_u16(vld1_u16(p), 16);
#else
    vec_u16 h;
    memcpy(&h, p, sizeof h);
    return (vec)(__builtin_convertvector(h, vec_u32) << 16);
#endif
}
VEC_INLINE void vec_to_bf16(uint16_t *p, vec v) { /* nearest even; NaN stays NaN, as f32_to_bf16 */
    vec_u32 u = (vec_u32)v;
    vec_u32 rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16, quiet = (u >> 16) | 0x40u;
    vec_u32 nan = (vec_u32)((u & 0x7fffffffu) > 0x7f800000u);
    vec_u16 h = __builtin_convertvector((nan & quiet) | (~nan & rounded), vec_u16);
    memcpy(p, &h, sizeof h);
}
VEC_INLINE vec vec_from_f16(const uint16_t *p) {
#if defined(__AVX512F__)
    return (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
    return (vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
#elif defined(__aarch64__)
    return (vec)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
#else
    vec v = vec_set(0);
    for (int i = 0; i < VEC_WIDTH; i++) v[i] = f16_to_f32(p[i]);
    return v;
#endif
}
VEC_INLINE void vec_to_f16(uint16_t *p, vec v) {
#if defined(__AVX512F__)
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__aarch64__)
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)v)));
#else
    for (int i = 0; i < VEC_WIDTH; i++) p[i] = f32_to_f16(v[i]);
#endif
}

/* ---- rows ----------------------------------------------------------------------------------------------------- */

/* dst[i] = src[i] widened, exact. t is fp32, bf16 or fp16. */
static inline __attribute__((unused)) void row_load(float *dst, const void *src, dtype t, size_t n) {
    const uint16_t *h = src;
    size_t i = 0;
    if (t == DTYPE_F32) {
        memcpy(dst, src, n * sizeof(float));
    } else if (t == DTYPE_BF16) {
        for (; i + VEC_WIDTH <= n; i += VEC_WIDTH) vec_store(dst + i, vec_from_bf16(h + i));
        for (; i < n; i++) dst[i] = bf16_to_f32(h[i]);
    } else {
        ASSERT(t == DTYPE_F16);
        for (; i + VEC_WIDTH <= n; i += VEC_WIDTH) vec_store(dst + i, vec_from_f16(h + i));
        for (; i < n; i++) dst[i] = f16_to_f32(h[i]);
    }
}

/* dst[i] = src[i] rounded once to t, nearest even. */
static inline __attribute__((unused)) void row_store(void *dst, const float *src, dtype t, size_t n) {
    uint16_t *h = dst;
    size_t i = 0;
    if (t == DTYPE_F32) {
        memcpy(dst, src, n * sizeof(float));
    } else if (t == DTYPE_BF16) {
        for (; i + VEC_WIDTH <= n; i += VEC_WIDTH) vec_to_bf16(h + i, vec_load(src + i));
        for (; i < n; i++) h[i] = f32_to_bf16(src[i]);
    } else {
        ASSERT(t == DTYPE_F16);
        for (; i + VEC_WIDTH <= n; i += VEC_WIDTH) vec_to_f16(h + i, vec_load(src + i));
        for (; i < n; i++) h[i] = f32_to_f16(src[i]);
    }
}
