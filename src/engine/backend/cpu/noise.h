#pragma once
/* noise.h - stochastic rounding to bf16 in vectors, with the noise of base.h's rng_noise.
 *
 * Which noise an element takes, e its index in the whole parameter, b = e / RNG_NOISE_BLOCK and r = e % RNG_NOISE_BLOCK:
 *     block key   rng_noise_block(attr.noise_key ^ noise_hi:noise_lo, (what | micro << 8) << 32 | step, b)
 *                 with `what` below; micro counts only for the accumulator, and micro_of_all
 *                 stands there for dropout
 *     values      (the accumulator, the parameter): word r / 32 * 16 + r % 16, its low half where r % 32 < 16, else its
 *                 high half. So a vector of words serves two vectors of elements and no lane moves.
 *     states      word r: the low half rounds m, the high half v
 *     dropout     word r, whole: the element is 0 where it is below op_dropout_limit
 * so that any cut of a parameter at multiples of NORM_BLOCK gives the same bits, on any width of vector. */
#include "backend/cpu/typed.h"
#include "backend/cpu/cpu.h"

enum { NOISE_ACCUMULATE, NOISE_PARAM, NOISE_STATES, NOISE_DROPOUT };
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

/* Where the noise of element `at` ends: at the end of its block, or of what is asked for. */
static inline size_t noise_end(const op *o, size_t at, size_t end) {
    return MIN(at + RNG_NOISE_BLOCK - noise_place(o, at), end);
}

/* Words i, i + step, ...: their places in the Weyl sequence, where n words further is NOISE_WORDS(n), and the mixer.
 * Nobody takes a word whole: out come its halves, numbers below 2^16, the high one of which the mixer's last step makes. */
#define NOISE_WORDS(n) ((uint32_t)(n)*0x9e3779b9u)
VEC_INLINE vec_u32 noise_at(rng_noise n, size_t i, uint32_t step) {
    vec_u32 lane;
    for (uint32_t k = 0; k < VEC_WIDTH; k++) lane[k] = NOISE_WORDS(k * step);
    return lane + (n.start + NOISE_WORDS(i));
}
typedef struct noise_halves {
    vec_u32 low, high;
} noise_halves;
VEC_INLINE noise_halves noise_words(vec_u32 x, uint32_t key) {
    x = (x ^ x >> 16) * 0x7feb352du;
    x = ((x ^ x >> 15) + key) * 0x846ca68bu;
    vec_u32 high = x >> 16;
    return (noise_halves){(x ^ high) & 0xffffu, high};
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

/* ---- two vectors of bf16 at once ------------------------------------------------------------------------------- */

/* 2 VEC_WIDTH bf16 elements in a row, widened, or their words of noise. On arm64 a holds the first half and b the
 * second: one instruction widens or rounds either. Elsewhere a holds the even ones and b the odd ones, which shifts and
 * masks widen and round; in order all of them would queue for the one unit of x86-64 that moves numbers between lanes. */
typedef struct vec_pair {
    vec a, b;
} vec_pair;
typedef struct noise_pair {
    noise_halves a, b;
} noise_pair;
enum { PAIR = 2 * VEC_WIDTH };
#if defined(__aarch64__)
enum { PAIR_LANE = 1, PAIR_B = VEC_WIDTH }; /* elements from lane to lane, and from a to b */
#else
enum { PAIR_LANE = 2, PAIR_B = 1 };
#endif
_Static_assert(NOISE_GROUP / 2 % PAIR == 0, "half a group is whole pairs");

VEC_INLINE vec_pair pair_load(const uint16_t *p) {
#if defined(__aarch64__)
    uint16x8_t u = vld1q_u16(p);
    return (vec_pair){(vec)vshll_n_u16(vget_low_u16(u), 16), (vec)vshll_high_n_u16(u, 16)};
#else
    vec_u32 u;
    memcpy(&u, p, sizeof u);
    return (vec_pair){(vec)(u << 16), (vec)(u & 0xffff0000u)};
#endif
}

/* The words of as many elements; the places are a's. */
VEC_INLINE vec_u32 pair_at(rng_noise n, size_t i) { return noise_at(n, i, PAIR_LANE); }
VEC_INLINE noise_pair pair_words(vec_u32 at, uint32_t key) {
    return (noise_pair){noise_words(at, key), noise_words(at + NOISE_WORDS(PAIR_B), key)};
}

/* Numbers and infinities, rounded with noise below 2^16. A NaN may become anything. */
VEC_INLINE void pair_store_no_nan(uint16_t *dst, vec_pair x, vec_u32 noise_a, vec_u32 noise_b) {
#if defined(__aarch64__)
    uint16x4_t a = vaddhn_u32((uint32x4_t)x.a, (uint32x4_t)noise_a);
    vst1q_u16(dst, vaddhn_high_u32(a, (uint32x4_t)x.b, (uint32x4_t)noise_b));
#else
    vec_u32 even = ((vec_u32)x.a + noise_a) >> 16, odd = (vec_u32)x.b + noise_b;
#if VEC_WIDTH == 8
    vec_u32 both = (vec_u32)_mm256_blend_epi16((__m256i)even, (__m256i)odd, 0xaa);
#else
    vec_u32 both = even | (odd & 0xffff0000u);
#endif
    memcpy(dst, &both, sizeof both);
#endif
}

/* dst = src, n of them, whole pairs: a piece that was computed aside. Of a memcpy of some hundred bytes gcc makes
 * `rep movs` on x86-64, whose start takes longer than the copy, and of a loop it makes a memcpy unless something stands
 * between load and store. */
VEC_INLINE void pair_copy(uint16_t *dst, const uint16_t *src, size_t n) {
#if defined(__x86_64__)
    for (size_t i = 0; i < n; i += PAIR) {
        vec_u32 u;
        memcpy(&u, src + i, sizeof u);
        __asm__("" : "+x"(u));
        memcpy(dst + i, &u, sizeof u);
    }
#else
    memcpy(dst, src, n * sizeof *dst);
#endif
}

/* ---- rows ------------------------------------------------------------------------------------------------------ */

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
    vec_u32 at = noise_at(noise, first / 2, 1);
    for (size_t i = 0; i < n; i += NOISE_GROUP)
        for (size_t k = i; k < i + HALF; k += VEC_WIDTH, at += NOISE_WORDS(VEC_WIDTH)) {
            noise_halves words = noise_words(at, noise.key);
            vec a = vec_load(src + k), b = vec_load(src + k + HALF);
            if (tame) {
                store_stochastic_no_nan(dst + k, a, words.low);
                store_stochastic_no_nan(dst + k + HALF, b, words.high);
            } else {
                store_stochastic(dst + k, a, words.low);
                store_stochastic(dst + k + HALF, b, words.high);
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
    vec_u32 at = noise_at(noise, first, 1);
    for (size_t i = 0; i < n; i += VEC_WIDTH, at += NOISE_WORDS(VEC_WIDTH)) {
        noise_halves words = noise_words(at, noise.key);
        if (tame) {
            store_stochastic_no_nan(m_out + i, vec_load(m + i), words.low);
            store_stochastic_no_nan(v_out + i, vec_load(v + i), words.high);
        } else {
            store_stochastic(m_out + i, vec_load(m + i), words.low);
            store_stochastic(v_out + i, vec_load(v + i), words.high);
        }
    }
}

/* The same for states: one word of noise rounds m and v. */
static inline __attribute__((unused)) void noise_round_states(uint16_t *m_out, uint16_t *v_out, const float *m,
                                                              const float *v, size_t n, rng_noise noise, size_t first) {
    if (row_is_tame(m, n) && row_is_tame(v, n)) noise_round_pairs(m_out, v_out, m, v, n, noise, first, true);
    else noise_round_pairs(m_out, v_out, m, v, n, noise, first, false);
}
