#pragma once
/* state8.h - optimizer states in 8 bits: blocks of STATE_BLOCK elements with one fp32 scale each.
 *
 * The code of a number is logarithmic, the leading bits of a float, because m and v inside one block differ by many
 * powers of two and a linear code would send most of them to zero. It is plain arithmetic on bits, so vectors and GPUs
 * need no table.
 *     m   int8, sign and magnitude k: k = 0 is 0, else 2^(k / 8) (1 + k % 8 / 8), times the scale; k % 8 etc. integers.
 *         The largest |m| of the block has k = 127, so the smallest that is not 0 is 55 thousand times smaller.
 *     v   uint8, of its square root, which AdamW divides by: 2^(k / 16) (1 + k % 16 / 16), times the scale. There is no 0
 *         beside a scale that is not 0: a root that is too small is kept too large, and its updates too small, never
 *         the other way round.
 * scale = largest / (value of the largest k); a block whose largest is under 2^-100 becomes all 0 with scale 0.
 *
 * Rounding is stochastic (noise.h, states), because beta2 = 0.95 changes a root by 2.5 % per step and a code is 6 %
 * wide: rounding to nearest would give the same code back for ever. With it the mean over steps is right. What the
 * update uses is m and v before rounding. */
#include "backend/cpu/noise.h"
#include <float.h>

#define STATE8_M_LARGEST 61440.0f /* k = 127: 1.875 * 2^15 */
#define STATE8_M_LEAST 1.125f     /* k = 1 */
#define STATE8_V_LARGEST 63488.0f /* k = 255: 1.9375 * 2^15 */
enum { STATE8_GROUP = 16 };       /* bytes widened at once */
enum { STATE8_VECS = STATE8_GROUP / VEC_WIDTH };
_Static_assert(STATE_BLOCK % STATE8_GROUP == 0 && NORM_BLOCK % STATE_BLOCK == 0, "blocks are whole groups");

VEC_INLINE void state8_widen(vec_u32 codes[STATE8_VECS], const uint8_t *bytes) {
#if defined(__aarch64__)
    uint8x16_t b = vld1q_u8(bytes);
    uint16x8_t low = vmovl_u8(vget_low_u8(b)), high = vmovl_high_u8(b);
    codes[0] = (vec_u32)vmovl_u16(vget_low_u16(low)), codes[1] = (vec_u32)vmovl_high_u16(low);
    codes[2] = (vec_u32)vmovl_u16(vget_low_u16(high)), codes[3] = (vec_u32)vmovl_high_u16(high);
#else
    for (int i = 0; i < STATE8_GROUP; i++) codes[i / VEC_WIDTH][i % VEC_WIDTH] = bytes[i];
#endif
}

/* Codes of m and of v, which are below 256, to bytes. */
VEC_INLINE void state8_narrow(uint8_t *m_bytes, uint8_t *v_bytes, const vec_u32 m[STATE8_VECS],
                              const vec_u32 v[STATE8_VECS]) {
#if defined(__aarch64__)
    const vec_u32 *codes[2] = {m, v};
    uint8_t *bytes[2] = {m_bytes, v_bytes};
    for (int i = 0; i < 2; i++) {
        uint16x8_t low = vuzp1q_u16((uint16x8_t)codes[i][0], (uint16x8_t)codes[i][1]);
        uint16x8_t high = vuzp1q_u16((uint16x8_t)codes[i][2], (uint16x8_t)codes[i][3]);
        vst1q_u8(bytes[i], vuzp1q_u8((uint8x16_t)low, (uint8x16_t)high));
    }
#elif VEC_WIDTH == 8
    /* Packing works in halves of 128 bits: m[0], m[1], v[0] and v[1] come out with four of each in either half. */
    __m256i halves = _mm256_packus_epi16(_mm256_packus_epi32((__m256i)m[0], (__m256i)m[1]),
                                         _mm256_packus_epi32((__m256i)v[0], (__m256i)v[1]));
    __m256i ordered = _mm256_permutevar8x32_epi32(halves, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm_storeu_si128((__m128i *)m_bytes, _mm256_castsi256_si128(ordered));
    _mm_storeu_si128((__m128i *)v_bytes, _mm256_extracti128_si256(ordered, 1));
#else
    for (int i = 0; i < STATE8_GROUP; i++) {
        m_bytes[i] = (uint8_t)m[i / VEC_WIDTH][i % VEC_WIDTH];
        v_bytes[i] = (uint8_t)v[i / VEC_WIDTH][i % VEC_WIDTH];
    }
#endif
}

/* One block: m and v, as numbers. Reads and writes whole groups. */
static void state8_load(float *m, float *v, const uint8_t *m_codes, const uint8_t *v_codes, float m_scale,
                        float v_scale, size_t n) {
    vec_u32 mc[STATE8_VECS], vc[STATE8_VECS];
    for (size_t i = 0; i < n; i += STATE8_GROUP) {
        state8_widen(mc, m_codes + i);
        state8_widen(vc, v_codes + i);
        for (int k = 0; k < STATE8_VECS; k++) {
            vec_u32 size = mc[k] & 127u, there = (vec_u32)((vec_i32)size > 0);
            vec_u32 bits = ((size << 20) + 0x3f800000u) & there;
            vec_store(m + i + k * VEC_WIDTH, (vec)(bits | (mc[k] & 128u) << 24) * m_scale);
            vec root = (vec)((vc[k] << 19) + 0x3f800000u) * v_scale;
            vec_store(v + i + k * VEC_WIDTH, root * root);
        }
    }
}

/* The scale of a block whose largest magnitude this is; *inverse turns numbers into multiples of it. */
static inline float state8_scale(float largest, float code_largest, float *inverse) {
    if (largest > FLT_MAX) largest = FLT_MAX; /* an infinity takes the largest code and no neighbour with it */
    *inverse = largest < 0x1p-100f ? 0 : code_largest / largest;
    return largest < 0x1p-100f ? 0 : largest / code_largest;
}

VEC_INLINE vec_u32 state8_at_most(vec_u32 code, uint32_t most) {
#if VEC_WIDTH == 8
    return (vec_u32)_mm256_min_epu32((__m256i)code, _mm256_set1_epi32((int)most));
#else
    vec_u32 fits = (vec_u32)(code <= most);
    return (code & fits) | (most & ~fits);
#endif
}

/* Stochastic rounding to the leading bits of a float: `drop` low bits fall, the noise has 16. */
VEC_INLINE vec_u32 state8_round(vec x, vec_u32 noise, int drop, uint32_t code_largest) {
    vec_u32 code = (((vec_u32)x + (noise << (drop - 16))) >> drop) - (0x3f800000u >> drop);
    return state8_at_most(code, code_largest); /* the rounding of a scale may lift the largest by one */
}

/* One block of m and of roots of v, rounded; `first` is its place in its block of noise. Reads and writes whole groups;
 * what lies past n must be 0. */
static void state8_store(uint8_t *m_codes, uint8_t *v_codes, float *m_scale, float *v_scale, const float *m,
                         const float *root, size_t n, rng_noise noise, size_t first) {
    vec m_most[STATE8_VECS], v_most[STATE8_VECS]; /* several, because each waits for itself */
    for (int k = 0; k < STATE8_VECS; k++) m_most[k] = v_most[k] = (vec){0};
    for (size_t i = 0; i < n; i += STATE8_GROUP)
        for (int k = 0; k < STATE8_VECS; k++) {
            m_most[k] = vec_max((vec)((vec_u32)vec_load(m + i + k * VEC_WIDTH) & 0x7fffffffu), m_most[k]);
            v_most[k] = vec_max(vec_load(root + i + k * VEC_WIDTH), v_most[k]);
        }
    for (int k = 1; k < STATE8_VECS; k++) {
        m_most[0] = vec_max(m_most[k], m_most[0]);
        v_most[0] = vec_max(v_most[k], v_most[0]);
    }
    float m_inverse, v_inverse;
    *m_scale = state8_scale(vec_max_lane(m_most[0]), STATE8_M_LARGEST, &m_inverse);
    *v_scale = state8_scale(vec_max_lane(v_most[0]), STATE8_V_LARGEST, &v_inverse);
    vec_u32 mc[STATE8_VECS], vc[STATE8_VECS], at = noise_at(noise, first, 1);
    for (size_t i = 0; i < n; i += STATE8_GROUP) {
        for (int k = 0; k < STATE8_VECS; k++, at += NOISE_WORDS(VEC_WIDTH)) {
            noise_halves words = noise_words(at, noise.key); /* low: for m, high: for v */
            vec_u32 bits = (vec_u32)vec_load(m + i + k * VEC_WIDTH), size = bits & 0x7fffffffu;
            vec x = (vec)size * m_inverse;
            /* between 0 and the smallest code: up with the chance x / smallest */
            vec_u32 small = (vec_u32)(x < STATE8_M_LEAST);
            vec_u32 up = (vec_u32)(__builtin_convertvector((vec_i32)words.low, vec) < x * (65536 / STATE8_M_LEAST));
            vec_u32 code = (~small & state8_round(x, words.low, 20, 127)) - (small & up); /* minus a mask: plus 1 */
            mc[k] = code | (bits ^ size) >> 24;
            vc[k] = state8_round(vec_at_least(vec_load(root + i + k * VEC_WIDTH) * v_inverse, vec_set(1)), words.high,
                                 19, 255);
        }
        state8_narrow(m_codes + i, v_codes + i, mc, vc);
    }
}
