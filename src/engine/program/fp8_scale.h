#pragma once
/* fp8_scale.h - the scale of numbers in e4m3 from the largest of them, and where scales of blocks lie: one text for every backend. */
#include <stdint.h>
#ifdef __CUDACC__
#define FP8_SCALE_FUNCTION static __device__ __forceinline__
#else
#include <math.h>
#define FP8_SCALE_FUNCTION static inline
#endif

typedef struct fp8_scale {
    float factor, scale; /* what numbers are multiplied with before they are rounded, and what undoes it */
} fp8_scale;

/* The largest number becomes 448 or, where scales are powers of two, at most that. Of an amax below 2^-100 as of 2^-100, so that
 * factors are numbers; NaN and infinity stay in the scale. */
FP8_SCALE_FUNCTION fp8_scale fp8_scale_of(float amax, int power) {
    float a = amax < 0x1p-100f ? 0x1p-100f : amax;
    fp8_scale s;
    if (power && a <= 0x1.fffffep127f) {
        int exponent;
        float fraction = frexpf(a, &exponent); /* a = fraction 2^exponent, fraction in [0.5, 1); 448 = 0.875 2^9 */
        exponent -= fraction <= 0.875f ? 9 : 8;
        s.factor = ldexpf(1.0f, -exponent);
        s.scale = ldexpf(1.0f, exponent);
    } else {
        s.factor = 448.0f / a;
        s.scale = a / 448.0f;
    }
    return s;
}

/* Of a block of FP8_BLOCK tokens of a head of q, k or v, in ATTENTION with attr.fp8: a power of two, never below 2^-30, so that products
 * and quotients of a few of them are numbers. In a block with a number that is not finite all are NaN when they are rounded: infinity
 * alone would become 448. */
FP8_SCALE_FUNCTION fp8_scale fp8_attention_scale(float amax) {
    fp8_scale s = fp8_scale_of(amax < 448 * 0x1p-30f ? 448 * 0x1p-30f : amax, 1);
    if (!(amax <= 0x1.fffffep127f)) s.factor = amax - amax, s.scale = 1; /* NaN */
    return s;
}

/* Scales of blocks: 128 numbers of a row share one or, where blocks are square, those of 128 rows. That of element (i, k) lies at
 * i / height * row_step + k / FP8_BLOCK * column_step, which is what cuBLASLt reads. */
enum { FP8_BLOCK = 128 };
typedef struct fp8_blocks {
    int64_t height, row_step, column_step;
} fp8_blocks;
