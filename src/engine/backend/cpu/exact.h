#pragma once
/* exact.h - fma and square root that round once, as IEEE asks, on every machine: the same bits from any of them.
 *
 *     vec r = sqrt_exact(a);                      // the divider's instruction
 *
 *     vec r = sqrt_start(a);                      // the same root from the multipliers
 *     ... roots and divisions of other vectors ...
 *     r = sqrt_finish(a, r);
 *
 * Why there are two on arm64: one slow unit makes both roots and quotients there (Neoverse-N1: four of them in 7 and 6
 * cycles, one after the other), so a loop with one of each per element waits for it. A root by products now and then
 * shortens that queue; roots by products everywhere would only move it to the multipliers. Elsewhere sqrt_start is
 * sqrt_exact and sqrt_finish returns its operand.
 *
 * The root by products. With y an estimate of 1 / sqrt(a) that is right to 8 bits, g = a y and h = y / 2, the error
 * r = 1/2 - g h is small, and g and h times 1 + r + 3/2 r^2 are sqrt(a) and 1 / (2 sqrt(a)) to about the last bit. One
 * more step, g + (a - g^2) h, has the difference exact (an fma of numbers that agree in their leading half) and rounds
 * once. No root of a 24-bit number lies on the middle of two such numbers, but some lie within 2^-25 of a last bit of
 * it, so that this rounds right is no consequence of error bounds alone: it was tried for all 2^24 significands of two
 * powers of two, which test_exact repeats. The estimate's bits are part of the architecture, not of one processor.
 *
 * Any other power of four shifts every intermediate's exponent and no bit, until something leaves fp32's range: above,
 * nothing does; below, a - g^2 needs steps of g's last bit squared, 2^-146 for a = 2^-100. What is smaller has a root of
 * 2^-50 or less. 0, infinity, NaN and negative numbers all give NaN, because the estimate is infinite, 0 or NaN. So a
 * root above 2^-50 is right, and sqrt_finish hands the vector to the divider when a lane has none: one comparison and
 * one branch, which a whole row of zeros (an embedding that got no gradient) predicts well. */
#include "backend/cpu/typed.h"
#include <math.h>

#if VEC_WIDTH > 4 || defined(__aarch64__)
VEC_INLINE vec fma_exact(vec a, vec b, vec c) { return vec_fma(a, b, c); }
#else /* vec_fma rounds twice here */
VEC_INLINE vec fma_exact(vec a, vec b, vec c) {
    for (int i = 0; i < VEC_WIDTH; i++) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
}
#endif

VEC_INLINE vec sqrt_exact(vec a) {
#if VEC_WIDTH == 16
    return (vec)_mm512_sqrt_ps((__m512)a);
#elif VEC_WIDTH == 8
    return (vec)_mm256_sqrt_ps((__m256)a);
#elif defined(__aarch64__)
    return (vec)vsqrtq_f32((float32x4_t)a);
#else
    for (int i = 0; i < VEC_WIDTH; i++) a[i] = sqrtf(a[i]);
    return a;
#endif
}

#if defined(__aarch64__)
VEC_INLINE vec sqrt_start(vec a) {
    const vec half = vec_set(0.5f);
    vec y = (vec)vrsqrteq_f32((float32x4_t)a), g = a * y, h = y * half;
    vec r = fma_exact(-g, h, half), p = fma_exact(r * r, vec_set(1.5f), r);
    g = fma_exact(g, p, g), h = fma_exact(h, p, h);
    return fma_exact(fma_exact(-g, g, a), h, g);
}

VEC_INLINE vec sqrt_finish(vec a, vec root) {
    uint32x4_t right = vcgtq_f32((float32x4_t)root, vdupq_n_f32(0x1p-50f));
    return __builtin_expect(vminvq_u32(right) != 0, 1) ? root : sqrt_exact(a);
}
#else
VEC_INLINE vec sqrt_start(vec a) { return sqrt_exact(a); }
VEC_INLINE vec sqrt_finish(vec a, vec root) { return root; }
#endif
