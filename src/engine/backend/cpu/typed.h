#pragma once
/* typed.h - vectors of fp32, bf16 or fp16 elements: whole ones, and the short one at the end of a row.
 *
 * A kernel is written once with the dtype as its first, constant argument and inlined three times by BY_TYPE, so the
 * widening and rounding happen in registers and fp32 is never copied. EACH_VEC writes its body twice, for whole vectors
 * and for the end of the row; both are the same arithmetic.
 *
 *     VEC_INLINE void twice_row(dtype t, void *y, const void *x, size_t n) {
 *         EACH_VEC(i, lanes, n, { typed_store(y, t, i, lanes, 2.0f * typed_load(x, t, i, lanes)); });
 *     }
 *     BY_TYPE(type, twice_row, y, x, n);
 *
 * On x86-64 the including file is compiled for AVX2, FMA and F16C, which backend_cpu asks of the machine at open. */
#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c")
#endif
#include "backend/cpu/vector.h"

#define EACH_VEC(i, lanes, n, ...)                     \
    do {                                               \
        size_t i = 0;                                  \
        for (; i + VEC_WIDTH <= (n); i += VEC_WIDTH) { \
            enum { lanes = VEC_WIDTH };                \
            __VA_ARGS__                                \
        }                                              \
        if (i < (n)) {                                 \
            const size_t lanes = (n)-i;                \
            __VA_ARGS__                                \
        }                                              \
    } while (0)

#define BY_TYPE(t, fn, ...)              \
    do {                                 \
        if ((t) == DTYPE_F32) {          \
            fn(DTYPE_F32, __VA_ARGS__);  \
        } else if ((t) == DTYPE_BF16) {  \
            fn(DTYPE_BF16, __VA_ARGS__); \
        } else {                         \
            ASSERT((t) == DTYPE_F16);    \
            fn(DTYPE_F16, __VA_ARGS__);  \
        }                                \
    } while (0)

/* bf16 in and out, the bits of vec_from_bf16 and vec_to_bf16: gcc 12 takes those apart lane by lane on NEON, which makes
 * them ten times slower. */
#if defined(__aarch64__)
VEC_INLINE vec typed_from_bf16(const uint16_t *p) { return (vec)vshll_n_u16(vld1_u16(p), 16); }
VEC_INLINE void typed_to_bf16(uint16_t *p, vec v) {
    uint32x4_t u = (uint32x4_t)v, number = vceqq_f32((float32x4_t)v, (float32x4_t)v);
    /* 0x7fff + the lowest bit that stays, rounds half to even; nothing is added to a NaN, it is made quiet */
    uint32x4_t half = vsubq_u32(vdupq_n_u32(0x7fff), vtstq_u32(u, vdupq_n_u32(0x10000)));
    u = vorrq_u32(u, vbicq_u32(vdupq_n_u32(0x400000), number));
    vst1_u16(p, vaddhn_u32(u, vandq_u32(half, number)));
}
#else
VEC_INLINE vec typed_from_bf16(const uint16_t *p) { return vec_from_bf16(p); }
VEC_INLINE void typed_to_bf16(uint16_t *p, vec v) { vec_to_bf16(p, v); }
#endif

/* Elements i .. i + lanes of data; the other lanes are 0. */
VEC_INLINE vec typed_load(const void *data, dtype t, size_t i, size_t lanes) {
    const float *f = (const float *)data + i;
    const uint16_t *h = (const uint16_t *)data + i;
    float f_end[VEC_WIDTH] = {0};
    uint16_t h_end[VEC_WIDTH] = {0};
    if (lanes < VEC_WIDTH) {
        if (t == DTYPE_F32) f = memcpy(f_end, f, lanes * sizeof *f);
        else h = memcpy(h_end, h, lanes * sizeof *h);
    }
    return t == DTYPE_F32 ? vec_load(f) : t == DTYPE_BF16 ? typed_from_bf16(h) : vec_from_f16(h);
}

VEC_INLINE void typed_store(void *data, dtype t, size_t i, size_t lanes, vec v) {
    float *f = (float *)data + i;
    uint16_t *h = (uint16_t *)data + i;
    float f_end[VEC_WIDTH];
    uint16_t h_end[VEC_WIDTH];
    bool whole = lanes >= VEC_WIDTH;
    if (t == DTYPE_F32) {
        vec_store(whole ? f : f_end, v);
        if (!whole) memcpy(f, f_end, lanes * sizeof *f);
        return;
    }
    if (t == DTYPE_BF16) typed_to_bf16(whole ? h : h_end, v);
    else vec_to_f16(whole ? h : h_end, v);
    if (!whole) memcpy(h, h_end, lanes * sizeof *h);
}

/* Rows between fp32 memory and any dtype. */
VEC_INLINE void typed_widen(dtype t, float *dst, const void *src, size_t n) {
    EACH_VEC(i, lanes, n, { typed_store(dst, DTYPE_F32, i, lanes, typed_load(src, t, i, lanes)); });
}
VEC_INLINE void typed_round(dtype t, void *dst, const float *src, size_t n) {
    EACH_VEC(i, lanes, n, { typed_store(dst, t, i, lanes, typed_load(src, DTYPE_F32, i, lanes)); });
}
static inline __attribute__((unused)) void typed_row_load(float *dst, const void *src, dtype t, size_t n) {
    BY_TYPE(t, typed_widen, dst, src, n);
}
static inline __attribute__((unused)) void typed_row_store(void *dst, const float *src, dtype t, size_t n) {
    BY_TYPE(t, typed_round, dst, src, n);
}
