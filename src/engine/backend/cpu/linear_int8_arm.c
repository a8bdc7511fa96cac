/* linear_int8_arm.c - dot products of bytes (ARMv8.2 SDOT), and matrices of them for eight rows at a time (SMMLA).
 *
 * q is taken as two bytes. Weights in the order of lanes come as one stream: a vector of each of four rows after the other. Those that lie
 * as rows are four streams, of which the next ones are asked for ahead. */
#if defined(__aarch64__)
#include "backend/cpu/linear_int8.h"
#include "backend/cpu/vector.h"

enum {
    ROWS = 4,        /* of x at once */
    PAIRED_ROWS = 8, /* ... where instructions multiply matrices */
    WEIGHTS = 4,     /* weight rows at once */
    UNIT = 16,       /* codes of one vector */
    STEP = 2 * UNIT, /* of k */
};

VEC_INLINE int64_t end_of_row(const int8_job *j, const int8_t *w, int64_t row, int64_t k) {
    const int8_t *q = (const int8_t *)j->q + 2 * j->k_padded * row;
    int64_t sum = 0;
    for (; k < j->k; k++) sum += w[k] * (INT8_HIGH * q[k] + q[j->k_padded + k]);
    return sum;
}

#if defined(__clang__) /* whose header has no intrinsics for a function with the attribute */
#define WITH(feature) __attribute__((target(feature)))
#define INSTRUCTION(name, text, feature)                                                                   \
    WITH(feature)                                                                                          \
    static inline __attribute__((always_inline)) int32x4_t name(int32x4_t sum, int8x16_t a, int8x16_t b) { \
        __asm__(text " %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(a), "w"(b));                               \
        return sum;                                                                                        \
    }
INSTRUCTION(dot, "sdot", "dotprod")
INSTRUCTION(matrix_dot, "smmla", "i8mm")
#else
#define WITH(feature) __attribute__((target("arch=armv8.2-a+" feature)))
#define dot vdotq_s32
#define matrix_dot vmmlaq_s32
#endif
#define DOT WITH("dotprod")
#define MATRIX_DOT WITH("i8mm")
static bool has_dot(void) { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }
static bool has_matrix_dot(void) { return has_dot() && (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0; }

/* The lanes of four vectors added up, twice. */
VEC_INLINE void four_sums(double to[4], int32x4_t h0, int32x4_t h1, int32x4_t h2, int32x4_t h3, int32x4_t l0,
                          int32x4_t l1, int32x4_t l2, int32x4_t l3) {
    int32x4_t high = vpaddq_s32(vpaddq_s32(h0, h1), vpaddq_s32(h2, h3));
    int32x4_t low = vpaddq_s32(vpaddq_s32(l0, l1), vpaddq_s32(l2, l3));
    vst1q_f64(to, vcvtq_f64_s64(vaddw_s32(vshll_n_s32(vget_low_s32(high), 8), vget_low_s32(low))));
    vst1q_f64(to + 2, vcvtq_f64_s64(vaddw_high_s32(vshll_high_n_s32(high, 8), low)));
}

/* While they are computed, the weight rows that come next are asked for: they follow these in memory. In the order of lanes they
 * are one stream, which the machine follows by itself. */
DOT static inline __attribute__((always_inline)) void dot_sums(const int n_weights, const int n_rows, const int8_job *j,
                                                               int64_t first, int64_t row, int8_sums sums) {
    const bool lanes = first < j->n_lanes;
    const int64_t in_lanes = lanes ? first % WEIGHTS : 0, weight_step = lanes ? UNIT : j->k,
                  k_step = lanes ? WEIGHTS : 1;
    const int8_t *w = j->codes + (first - in_lanes) * j->k + in_lanes * UNIT,
                 *q = (const int8_t *)j->q + 2 * j->k_padded * row;
    const int8_t *next = first + 2 * n_weights <= j->n ? w + n_weights * j->k : w;
    int32x4_t high[WEIGHTS][ROWS], low[WEIGHTS][ROWS];
    for (int i = 0; i < n_weights; i++)
        for (int r = 0; r < n_rows; r++) high[i][r] = low[i][r] = vdupq_n_s32(0);
    int64_t k = 0;
    for (; k + STEP <= j->k; k += STEP) {
        for (int line = 0; !lanes && line < n_weights * STEP; line += 64)
            __builtin_prefetch(next + n_weights * k + line);
        for (int64_t at = k; at < k + STEP; at += UNIT) {
            int8x16_t v[WEIGHTS];
            for (int i = 0; i < n_weights; i++) v[i] = vld1q_s8(w + i * weight_step + at * k_step);
            for (int r = 0; r < n_rows; r++) {
                int8x16_t h = vld1q_s8(q + 2 * r * j->k_padded + at), l = vld1q_s8(q + (2 * r + 1) * j->k_padded + at);
                for (int i = 0; i < n_weights; i++) {
                    high[i][r] = dot(high[i][r], v[i], h);
                    low[i][r] = dot(low[i][r], v[i], l);
                }
            }
        }
    }
    for (int r = 0; r < n_rows; r++) {
        if (n_weights == 4) {
            four_sums(sums[r], high[0][r], high[1][r], high[2][r], high[3][r], low[0][r], low[1][r], low[2][r],
                      low[3][r]);
        } else {
            for (int i = 0; i < n_weights; i++)
                sums[r][i] = (double)(INT8_HIGH * vaddlvq_s32(high[i][r]) + vaddlvq_s32(low[i][r]));
        }
        for (int i = 0; i < n_weights && k < j->k; i++) sums[r][i] += (double)end_of_row(j, w + i * j->k, row + r, k);
    }
}

/* As many weight rows at once as there are registers for the sums of each with every row of q. */
DOT static void dot_tile(const int8_job *j, int64_t first, int64_t row, int n_rows, int8_sums sums) {
    _Static_assert(WEIGHTS == 4 && ROWS == 4, "written out below");
    switch (n_rows) {
    case 1: dot_sums(4, 1, j, first, row, sums); break;
    case 2: dot_sums(4, 2, j, first, row, sums); break;
    default:
        for (int i = 0; i < WEIGHTS; i += 2) {
            int8_sums two;
            if (n_rows == 3) dot_sums(2, 3, j, first + i, row, two);
            else dot_sums(2, 4, j, first + i, row, two);
            for (int r = 0; r < n_rows; r++) sums[r][i] = two[r][0], sums[r][i + 1] = two[r][1];
        }
    }
}

/* Fewer weight rows, at the end of them. */
DOT static void dot_rest(const int8_job *j, int64_t first, int64_t row, int n_weights, int n_rows, int8_sums sums) {
    for (int i = 0; i < n_weights; i++)
        for (int r = 0; r < n_rows; r++) {
            int8_sums one;
            dot_sums(1, 1, j, first + i, row + r, one);
            sums[r][i] = one[0][0];
        }
}

/* PAIRED_ROWS rows: 2 x 8 codes times 8 x 2 of q at once. The weights are in the order of lanes. */
MATRIX_DOT static void matrix_tile(const int8_job *j, int64_t first, int64_t row, int8_sums sums) {
    enum { PAIRS = PAIRED_ROWS / 2, WEIGHT_PAIRS = WEIGHTS / 2 };
    const int8_t *w = j->codes + first * j->k, *q = (const int8_t *)j->q + 2 * j->k * row;
    int32x4_t high[WEIGHT_PAIRS][PAIRS], low[WEIGHT_PAIRS][PAIRS];
    for (int i = 0; i < WEIGHT_PAIRS; i++)
        for (int p = 0; p < PAIRS; p++) high[i][p] = low[i][p] = vdupq_n_s32(0);
    for (int64_t k = 0; k < j->k; k += UNIT, w += WEIGHTS * UNIT, q += 2 * UNIT) {
        int8x16_t front[WEIGHT_PAIRS], back[WEIGHT_PAIRS];
        for (int i = 0; i < WEIGHT_PAIRS; i++) {
            int64x2_t a = vreinterpretq_s64_s8(vld1q_s8(w + 2 * i * UNIT)),
                      b = vreinterpretq_s64_s8(vld1q_s8(w + (2 * i + 1) * UNIT));
            front[i] = vreinterpretq_s8_s64(vzip1q_s64(a, b)), back[i] = vreinterpretq_s8_s64(vzip2q_s64(a, b));
        }
        for (int p = 0; p < PAIRS; p++) {
            const int8_t *h = q + 4 * p * j->k, *l = h + 2 * j->k;
            for (int i = 0; i < WEIGHT_PAIRS; i++) {
                high[i][p] = matrix_dot(matrix_dot(high[i][p], front[i], vld1q_s8(h)), back[i], vld1q_s8(h + UNIT));
                low[i][p] = matrix_dot(matrix_dot(low[i][p], front[i], vld1q_s8(l)), back[i], vld1q_s8(l + UNIT));
            }
        }
    }
    for (int i = 0; i < WEIGHT_PAIRS; i++)
        for (int p = 0; p < PAIRS; p++) {
            int32_t h[4], l[4]; /* of (weight, row) 0 0, 0 1, 1 0, 1 1 */
            vst1q_s32(h, high[i][p]), vst1q_s32(l, low[i][p]);
            for (int e = 0; e < 4; e++) sums[2 * p + e % 2][2 * i + e / 2] = (double)((int64_t)INT8_HIGH * h[e] + l[e]);
        }
}

static void sdot_tile(const int8_job *j, int64_t first, int64_t row, int n_weights, int n_rows, int8_sums sums) {
    if (n_weights == WEIGHTS) dot_tile(j, first, row, n_rows, sums);
    else dot_rest(j, first, row, n_weights, n_rows, sums);
}

static void smmla_tile(const int8_job *j, int64_t first, int64_t row, int n_weights, int n_rows, int8_sums sums) {
    if (row < j->n_paired) matrix_tile(j, first, row, sums);
    else sdot_tile(j, first, row, n_weights, n_rows, sums);
}

const int8_kernel int8_sdot = {
    .name = "sdot",
    .supported = has_dot,
    .split = true,
    .rows = ROWS,
    .weights = WEIGHTS,
    .lanes = {.panel = WEIGHTS, .group = UNIT},
    .lanes_k = STEP,
    .tile = sdot_tile,
};
const int8_kernel int8_smmla = {
    .name = "smmla",
    .supported = has_matrix_dot,
    .split = true,
    .rows = ROWS,
    .paired_rows = PAIRED_ROWS,
    .weights = WEIGHTS,
    .lanes = {.panel = WEIGHTS, .group = UNIT},
    .lanes_k = STEP,
    .tile = smmla_tile,
};
#else
typedef int linear_int8_arm_is_for_aarch64; /* ISO C wants a declaration in every file */
#endif
