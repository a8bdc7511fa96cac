#pragma once
/* noise.h - stochastic rounding to bf16 in vectors, with the noise of base.h's rng_noise.
 *
 * Which noise an element takes, e its index in the whole parameter, b = e / RNG_NOISE_BLOCK and r = e % RNG_NOISE_BLOCK:
 *     block key   rng_noise_block(attr.noise_key ^ noise_hi:noise_lo, (what | micro << 8) << 32 | step, b)
 *                 with `what` below; micro counts only for the accumulator
 *     values      (the accumulator, the parameter): word r / 32 * 16 + r % 16, its low half where r % 32 < 16, else its
 *                 high half. So a vector of words serves two vectors of elements and no lane moves.
 *     states      word r: the low half rounds m, the high half v
 * so that any cut of a parameter at multiples of NORM_BLOCK gives the same bits, on any width of vector. Work on a part
 * is cut into tasks where its blocks of noise end. */
#include "backend/cpu/typed.h"
#include "backend/cpu/cpu.h"

enum { NOISE_ACCUMULATE, NOISE_PARAM, NOISE_STATES };
enum { NOISE_GROUP = 32 }; /* rows are computed in whole groups */
_Static_assert(RNG_NOISE_BLOCK % NORM_BLOCK == 0 && NORM_BLOCK % NOISE_GROUP == 0,
               "a part starts with a group of noise");
_Static_assert(NOISE_GROUP % (2 * VEC_WIDTH) == 0, "a group is whole vectors");

/* The noise of the block that element `first` of this op's part lies in, and the place of an element in its block. */
static inline rng_noise noise_open(const op *o, const step_scalars *s, uint32_t what, size_t first) {
    uint64_t key = o->attr.noise_key ^ ((uint64_t)s->noise_hi << 32 | s->noise_lo);
    return rng_noise_block(key, (uint64_t)what << 32 | s->step,
                           ((uint64_t)o->attr.first_element + first) / RNG_NOISE_BLOCK);
}
static inline size_t noise_place(const op *o, size_t i) {
    return ((size_t)o->attr.first_element + i) % RNG_NOISE_BLOCK;
}

/* One task is what lies in one block of noise. Long, because the memory controller likes few long streams: 4 Ki elements
 * reach three quarters of the bandwidth that 64 Ki do. */
static inline int64_t noise_task_count(const op *o, size_t n) {
    return (int64_t)((noise_place(o, 0) + n + RNG_NOISE_BLOCK - 1) / RNG_NOISE_BLOCK);
}
static inline void noise_task(const op *o, size_t n, int64_t task, size_t *begin, size_t *end) {
    size_t before = noise_place(o, 0), block = (size_t)task * RNG_NOISE_BLOCK;
    *begin = MAX(block, before) - before;
    *end = MIN(block + RNG_NOISE_BLOCK - before, n);
}

/* Words i, i + 1, ...: the place in the Weyl sequence, which moves on by NOISE_STEP, and the mixer. */
VEC_INLINE vec_u32 noise_at(rng_noise n, size_t i) {
    vec_u32 lane;
    for (uint32_t k = 0; k < VEC_WIDTH; k++) lane[k] = k * 0x9e3779b9u;
    return lane + (n.start + (uint32_t)i * 0x9e3779b9u);
}
#define NOISE_STEP (VEC_WIDTH * 0x9e3779b9u)
VEC_INLINE vec_u32 noise_words(vec_u32 x, uint32_t key) {
    x = (x ^ x >> 16) * 0x7feb352du;
    x = ((x ^ x >> 15) + key) * 0x846ca68bu;
    return x ^ x >> 16;
}

/* f32_to_bf16_stochastic in every lane, noise below 2^16: none for infinity and NaN, and a NaN is made quiet. */
VEC_INLINE void store_stochastic(uint16_t *dst, vec x, vec_u32 noise) {
#if defined(__aarch64__)
    uint32x4_t u = (uint32x4_t)x, largest = vdupq_n_u32(0x7f800000);
    uint32x4_t finite = (uint32x4_t)vcaltq_f32((float32x4_t)x, (float32x4_t)largest);
    uint32x4_t number = vceqq_f32((float32x4_t)x, (float32x4_t)x);
    u = vorrq_u32(u, vbicq_u32(vdupq_n_u32(0x400000), number));
    vst1_u16(dst, vaddhn_u32(u, vandq_u32((uint32x4_t)noise, finite)));
#else
    vec_u32 u = (vec_u32)x, magnitude = u & 0x7fffffffu;
    vec_u32 finite = (vec_u32)(magnitude < 0x7f800000u), nan = (vec_u32)(magnitude > 0x7f800000u);
    u = (u | (nan & 0x400000u)) + (noise & finite);
    vec_u16 h = __builtin_convertvector(u >> 16, vec_u16);
    memcpy(dst, &h, sizeof h);
#endif
}

/* The same for numbers and infinity. A NaN may become anything. */
VEC_INLINE void store_stochastic_no_nan(uint16_t *dst, vec x, vec_u32 noise) {
#if defined(__aarch64__)
    vst1_u16(dst, vaddhn_u32((uint32x4_t)x, (uint32x4_t)noise));
#else
    vec_u16 h = __builtin_convertvector(((vec_u32)x + noise) >> 16, vec_u16);
    memcpy(dst, &h, sizeof h);
#endif
}

/* False when there is a NaN or an infinity in the row, or when two numbers multiply to one: then be careful. One
 * instruction per vector here saves five per store. Reads whole groups. */
VEC_INLINE bool row_is_tame(const float *x, size_t n) {
    vec watch = {0}; /* turns NaN or infinite, for good */
    for (size_t i = 0; i < n; i += 2 * VEC_WIDTH) watch = vec_fma(vec_load(x + i), vec_load(x + i + VEC_WIDTH), watch);
    return vec_sum(watch) * 0 == 0;
}

VEC_INLINE void noise_round_groups(uint16_t *dst, const float *src, size_t n, rng_noise noise, size_t first,
                                   bool tame) {
    enum { HALF = NOISE_GROUP / 2 };
    vec_u32 at = noise_at(noise, first / 2);
    for (size_t i = 0; i < n; i += NOISE_GROUP)
        for (size_t k = i; k < i + HALF; k += VEC_WIDTH, at += NOISE_STEP) {
            vec_u32 words = noise_words(at, noise.key);
            vec a = vec_load(src + k), b = vec_load(src + k + HALF);
            if (tame) {
                store_stochastic_no_nan(dst + k, a, words & 0xffffu);
                store_stochastic_no_nan(dst + k + HALF, b, words >> 16);
            } else {
                store_stochastic(dst + k, a, words & 0xffffu);
                store_stochastic(dst + k + HALF, b, words >> 16);
            }
        }
}

/* dst[i] = src[i] rounded with the noise of value `first + i` of its block; first is a multiple of NOISE_GROUP. Writes
 * and reads whole groups: both rows have room for n rounded up to NOISE_GROUP. */
static inline __attribute__((unused)) void noise_round_row(uint16_t *dst, const float *src, size_t n, rng_noise noise,
                                                           size_t first) {
    if (row_is_tame(src, n)) noise_round_groups(dst, src, n, noise, first, true);
    else noise_round_groups(dst, src, n, noise, first, false);
}

VEC_INLINE void noise_round_pairs(uint16_t *m_out, uint16_t *v_out, const float *m, const float *v, size_t n,
                                  rng_noise noise, size_t first, bool tame) {
    vec_u32 at = noise_at(noise, first);
    for (size_t i = 0; i < n; i += VEC_WIDTH, at += NOISE_STEP) {
        vec_u32 words = noise_words(at, noise.key);
        if (tame) {
            store_stochastic_no_nan(m_out + i, vec_load(m + i), words & 0xffffu);
            store_stochastic_no_nan(v_out + i, vec_load(v + i), words >> 16);
        } else {
            store_stochastic(m_out + i, vec_load(m + i), words & 0xffffu);
            store_stochastic(v_out + i, vec_load(v + i), words >> 16);
        }
    }
}

/* The same for states: one word of noise rounds m and v. */
static inline __attribute__((unused)) void noise_round_states(uint16_t *m_out, uint16_t *v_out, const float *m,
                                                              const float *v, size_t n, rng_noise noise, size_t first) {
    if (row_is_tame(m, n) && row_is_tame(v, n)) noise_round_pairs(m_out, v_out, m, v, n, noise, first, true);
    else noise_round_pairs(m_out, v_out, m, v, n, noise, first, false);
}
