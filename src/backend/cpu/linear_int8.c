/* linear_int8.c - LINEAR_INT8: rows of activations times a weight in 8 bits, read once as it lies.
 *
 * A row of x is rounded to integers q of 16 bits, |q| <= 127 * 256, with one scale: x' = q * a / 32512, a the largest |x| of the
 * row, so |x' - x| <= a / 65024. Products and sums of integers are exact, so an element of y is the same number whatever the
 * order of the sum, the number of rows and threads, and the instructions: all rows are computed without a thought about the
 * bits. It is scaled in fp64, the bias added in fp32, and rounded once.
 *
 * What multiplies, by processor: dot products of bytes (ARMv8.2 SDOT) with q = 256 high + low, both bytes, and for eight rows at
 * a time matrices of them (SMMLA); pairs of 16 bits (AVX2 VPMADDWD); else what the compiler makes of 16-bit integers. All that
 * matters for one row is that the weight comes from memory in one stream. For many rows a task's part of the weight stays in
 * the cache while some rows at a time pass by.
 * A row with NaN or infinity gives NaN. */
#include "backend/cpu/typed.h"

#include "backend/cpu/gemm.h"
#include <math.h>

enum {
    ROWS = 4,             /* of x at once */
    PAIRED_ROWS = 8,      /* ... where instructions multiply matrices */
    WEIGHTS = 4,          /* weight rows at once */
    UNIT = 16,            /* codes of one vector */
    HALF = UNIT / 2,      /* ... of one of its two rows, where it is a matrix */
    STEP = 2 * UNIT,      /* of k */
    HIGH = 256,           /* q = HIGH * high + low, low from -128 to 127 */
    MOST = 127 * HIGH,    /* |q| */
    TASK_CODES = 1 << 16, /* of a task: long enough to hide the claiming, short enough to stay in a cache */
};

typedef struct int8_job {
    const kernel_call *call;
    const int8_t *codes;
    const float *scale;
    int64_t m, n, k, k_padded, weights_per_task;
    int64_t n_lanes; /* weight rows in the order of lanes: a vector of each of WEIGHTS rows after the other */
    char *q; /* (m, 2 k_padded) bytes: the high bytes of a row, then the low ones; or 16-bit integers. 0 behind k */
    int64_t n_paired; /* rows of q in pairs: 8 bytes of one, 8 of the other; the high ones of both, then the low ones */
    float *q_scale;   /* (m); NaN: the row is not finite */
    bool split;       /* high and low bytes */
    dtype x_type, y_type;
} int8_job;

/* ---- rows of x as integers ------------------------------------------------------------------------------------------ */

enum { BLOCK = 256 };
typedef int16_t half_vec __attribute__((vector_size(2 * VEC_WIDTH)));

static void split_block(const int8_job *j, int64_t row, int64_t k, const int16_t *block, size_t n) {
    char *q = j->q + 2 * j->k_padded * row + k, *low = q + j->k_padded;
    for (size_t i = 0; i < n; i++) q[i] = (char)((block[i] + HIGH / 2) >> 8), low[i] = (char)block[i];
}

/* n is a multiple of HALF. */
static void split_paired(const int8_job *j, int64_t row, int64_t k, const int16_t *block, size_t n) {
    char *q = j->q + 2 * j->k_padded * (row - row % 2) + HALF * (row % 2) + 2 * k, *low = q + 2 * j->k_padded;
    for (size_t i = 0; i < n; i += HALF)
        for (size_t b = i; b < i + HALF; b++)
            q[i + b] = (char)((block[b] + HIGH / 2) >> 8), low[i + b] = (char)block[b];
}

VEC_INLINE void round_row(dtype t, const int8_job *j, const void *x, int64_t row) {
    vec most = vec_set(0), poison = vec_set(0);
    EACH_VEC(k, lanes, (size_t)j->k, {
        vec v = typed_load(x, t, k, lanes);
        most = vec_max(vec_max(v, -v), most);
        poison = poison + v * 0; /* NaN, where v is not finite */
    });
    const bool paired = row < j->n_paired; /* no bytes behind k there */
    char *q = j->q + 2 * j->k_padded * row;
    if (!paired) memset(q, 0, 2 * (size_t)j->k_padded);
    bool finite = !isnan(vec_sum(poison));
    float a = MAX(vec_max_lane(most), 0x1p-100f);
    j->q_scale[row] = finite ? a / MOST : NAN;
    if (!finite) return;
    const float by = MOST / a, to_even = 0x1.8p23f; /* adding it rounds to an integer */
    for (int64_t k = 0; k < j->k; k += BLOCK) {
        int16_t block[BLOCK];
        size_t n = (size_t)MIN((int64_t)BLOCK, j->k - k);
        EACH_VEC(i, lanes, n, {
            vec v = typed_load(x, t, (size_t)k + i, lanes) * by + to_even - to_even;
            half_vec h = __builtin_convertvector(__builtin_convertvector(v, vec_i32), half_vec);
            memcpy(block + i, &h, lanes * sizeof *block);
        });
        if (paired) split_paired(j, row, k, block, n);
        else if (j->split) split_block(j, row, k, block, n);
        else memcpy(q + 2 * k, block, n * sizeof *block);
    }
}

static void round_task(void *context, int64_t row, int thread) {
    (void)thread;
    const int8_job *j = context;
    const kernel_call *c = j->call;
    const int32_t *pick = c->in[LINEAR_INT8_PICK];
    int64_t from = pick ? pick[row] : row;
    ASSERT(from >= 0 && from < call_in(c, LINEAR_INT8_X)->shape.dim[0]);
    const void *x = element_at(c->in[LINEAR_INT8_X], j->x_type, from * j->k);
    BY_TYPE(j->x_type, round_row, j, x, row);
}

/* ---- sums of products ------------------------------------------------------------------------------------------------ */

/* Everywhere below sums[r][i] = weight row `first` + i times row `row` + r of q. */

VEC_INLINE int64_t end_of_row(const int8_job *j, const int8_t *w, int64_t row, int64_t k) {
    const int8_t *q = (const int8_t *)j->q + 2 * j->k_padded * row;
    int64_t sum = 0;
    for (; k < j->k; k++)
        sum += w[k] * (j->split ? HIGH * q[k] + q[j->k_padded + k] : ((const int16_t *)(const void *)q)[k]);
    return sum;
}

#if defined(__aarch64__)
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
VEC_INLINE void four_sums(int64_t to[4], int32x4_t h0, int32x4_t h1, int32x4_t h2, int32x4_t h3, int32x4_t l0,
                          int32x4_t l1, int32x4_t l2, int32x4_t l3) {
    int32x4_t high = vpaddq_s32(vpaddq_s32(h0, h1), vpaddq_s32(h2, h3));
    int32x4_t low = vpaddq_s32(vpaddq_s32(l0, l1), vpaddq_s32(l2, l3));
    vst1q_s64(to, vaddw_s32(vshll_n_s32(vget_low_s32(high), 8), vget_low_s32(low)));
    vst1q_s64(to + 2, vaddw_high_s32(vshll_high_n_s32(high, 8), low));
}

/* While they are computed, the weight rows that come next are asked for: they follow these in memory. In the order of lanes they
 * are one stream, which the machine follows by itself. */
DOT static inline __attribute__((always_inline)) void dot_sums(const int n_weights, const int n_rows, const int8_job *j,
                                                               int64_t first, int64_t row, int64_t (*sums)[WEIGHTS]) {
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
            for (int i = 0; i < n_weights; i++) sums[r][i] = HIGH * vaddlvq_s32(high[i][r]) + vaddlvq_s32(low[i][r]);
        }
        for (int i = 0; i < n_weights && k < j->k; i++) sums[r][i] += end_of_row(j, w + i * j->k, row + r, k);
    }
}

/* As many weight rows at once as there are registers for the sums of each with every row of q. */
DOT static void dot_tile(const int8_job *j, int64_t first, int64_t row, int n_rows, int64_t (*sums)[WEIGHTS]) {
    _Static_assert(WEIGHTS == 4 && ROWS == 4, "written out below");
    switch (n_rows) {
    case 1: dot_sums(4, 1, j, first, row, sums); break;
    case 2: dot_sums(4, 2, j, first, row, sums); break;
    default:
        for (int i = 0; i < WEIGHTS; i += 2) {
            int64_t two[ROWS][WEIGHTS];
            if (n_rows == 3) dot_sums(2, 3, j, first + i, row, two);
            else dot_sums(2, 4, j, first + i, row, two);
            for (int r = 0; r < n_rows; r++) sums[r][i] = two[r][0], sums[r][i + 1] = two[r][1];
        }
    }
}

/* Fewer weight rows, at the end of them. */
DOT static void dot_rest(const int8_job *j, int64_t first, int64_t row, int n_weights, int n_rows,
                         int64_t (*sums)[WEIGHTS]) {
    for (int i = 0; i < n_weights; i++)
        for (int r = 0; r < n_rows; r++) {
            int64_t one[1][WEIGHTS];
            dot_sums(1, 1, j, first + i, row + r, one);
            sums[r][i] = one[0][0];
        }
}

/* PAIRED_ROWS rows: 2 x 8 codes times 8 x 2 of q at once. The weights are in the order of lanes. */
MATRIX_DOT static void matrix_tile(const int8_job *j, int64_t first, int64_t row, int64_t (*sums)[WEIGHTS]) {
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
            for (int e = 0; e < 4; e++) sums[2 * p + e % 2][2 * i + e / 2] = (int64_t)HIGH * h[e] + l[e];
        }
}
#else
static bool has_dot(void) { return false; }
static bool has_matrix_dot(void) { return false; }
#endif

/* 16-bit integers. A lane of 32 bits takes 2^31 / (127 * 32512) = 520 products. */
VEC_INLINE int64_t pair_sum(const int8_t *w, const int16_t *q, int64_t n) {
    enum { CODES = 2048 };
    int64_t sum = 0, k = 0;
#if defined(__AVX2__)
    for (; k + UNIT <= n;) {
        __m256i lanes = _mm256_setzero_si256();
        for (int64_t end = MIN(n - n % UNIT, k + CODES); k < end; k += UNIT) {
            __m256i v = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(w + k)));
            __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(q + k));
            lanes = _mm256_add_epi32(lanes, _mm256_madd_epi16(v, x));
        }
        int32_t each[8];
        memcpy(each, &lanes, sizeof each);
        for (int i = 0; i < 8; i++) sum += each[i];
    }
#endif
    for (; k < n; k++) sum += w[k] * q[k];
    return sum;
}

static void pair_rest(const int8_job *j, int64_t first, int64_t row, int n_weights, int n_rows,
                      int64_t (*sums)[WEIGHTS]) {
    for (int i = 0; i < n_weights; i++)
        for (int r = 0; r < n_rows; r++)
            sums[r][i] = pair_sum(j->codes + (first + i) * j->k,
                                  (const int16_t *)(const void *)(j->q + 2 * j->k_padded * (row + r)), j->k);
}

static void tile_sums(const int8_job *j, int64_t first, int64_t row, int n_weights, int n_rows,
                      int64_t (*sums)[WEIGHTS]) {
#if defined(__aarch64__)
    if (row < j->n_paired) {
        matrix_tile(j, first, row, sums);
        return;
    }
    if (j->split) {
        if (n_weights == WEIGHTS) dot_tile(j, first, row, n_rows, sums);
        else dot_rest(j, first, row, n_weights, n_rows, sums);
        return;
    }
#endif
    pair_rest(j, first, row, n_weights, n_rows, sums);
}

/* ---- the op ----------------------------------------------------------------------------------------------------------- */

VEC_INLINE void put(dtype t, void *y, int64_t at, const float *v, size_t n) {
    if (n == WEIGHTS) typed_round(t, element_at(y, t, at), v, WEIGHTS);
    else typed_round(t, element_at(y, t, at), v, n);
}

/* Values of WEIGHTS columns, with room for a whole vector. */
enum { PLACES = (int)WEIGHTS > (int)VEC_WIDTH ? (int)WEIGHTS : (int)VEC_WIDTH };

static void product_task(void *context, int64_t task, int thread) {
    (void)thread;
    const int8_job *j = context;
    const void *bias = j->call->in[LINEAR_INT8_B];
    int64_t begin = task * j->weights_per_task, end = MIN(begin + j->weights_per_task, j->n);
    for (int64_t row = 0, next; row < j->m; row = next) {
        next = row + (row < j->n_paired ? PAIRED_ROWS : MIN((int64_t)ROWS, j->m - row));
        for (int64_t n = begin; n < end; n += WEIGHTS) {
            int64_t sums[PAIRED_ROWS][WEIGHTS] = {0};
            int n_weights = (int)MIN((int64_t)WEIGHTS, end - n), n_rows = (int)(next - row);
            double scale[WEIGHTS] = {0};
            float offset[PLACES] = {0}, v[PLACES];
            tile_sums(j, n, row, n_weights, n_rows, sums);
            for (int i = 0; i < n_weights; i++) scale[i] = j->scale[n + i];
            if (bias) typed_row_load(offset, element_at(bias, j->y_type, n), j->y_type, (size_t)n_weights);
            for (int r = 0; r < n_rows; r++) {
                double by = j->q_scale[row + r];
                for (int i = 0; i < WEIGHTS; i++) v[i] = (float)((double)sums[r][i] * (by * scale[i]));
                for (int i = 0; bias && i < WEIGHTS; i++) v[i] += offset[i];
                BY_TYPE(j->y_type, put, j->call->out[LINEAR_INT8_Y], (row + r) * j->n + n, v, (size_t)n_weights);
            }
        }
    }
}

gemm_lanes int8_lanes_of(int64_t k) {
    return has_dot() && k % STEP == 0 ? (gemm_lanes){.panel = WEIGHTS, .group = UNIT} : (gemm_lanes){.group = 1};
}

static int64_t padded(int64_t k) { return round_up(k, (int64_t)UNIT); }

static size_t scale_bytes(int64_t m) { return align_up((size_t)m * sizeof(float), 64); }

static size_t int8_work_bytes(const program *p, const op *o, int n_threads) {
    (void)n_threads;
    int64_t m = program_get(p, o->out[LINEAR_INT8_Y])->shape.dim[0];
    return scale_bytes(m) + (size_t)(2 * m * padded(program_get(p, o->in[LINEAR_INT8_X])->shape.dim[1]));
}

const cpu_work_fn cpu_work_LINEAR_INT8 = int8_work_bytes;

void cpu_kernel_LINEAR_INT8(backend_context *c, const kernel_call *k) { /* y = */
    const value *x = call_in(k, LINEAR_INT8_X), *codes = call_in(k, LINEAR_INT8_CODES), *y = call_out(k, LINEAR_INT8_Y);
    int8_job j = {.call = k,
                  .codes = k->in[LINEAR_INT8_CODES],
                  .scale = k->in[LINEAR_INT8_SCALE],
                  .m = cpu_rows(k, y->shape.dim[0]),
                  .n = codes->shape.dim[0],
                  .k = codes->shape.dim[1],
                  .split = has_dot(),
                  .q_scale = k->work,
                  .x_type = x->type,
                  .y_type = y->type};
    ASSERT(j.k <= INT32_MAX / (HIGH / 2 * (HIGH / 2))); /* sums of bytes in 32 bits */
    j.k_padded = padded(j.k);
    if (k->op->attr.lanes && int8_lanes_of(j.k).panel > 0) j.n_lanes = j.n / WEIGHTS * WEIGHTS;
    if (j.n_lanes == j.n && has_matrix_dot()) j.n_paired = j.m / PAIRED_ROWS * PAIRED_ROWS;
    j.q = (char *)k->work + scale_bytes(y->shape.dim[0]);
    int64_t weights = MAX(TASK_CODES / j.k, (int64_t)1);
    j.weights_per_task = round_up(j.m <= ROWS ? gemm_stream_rows(c, j.n, weights) : weights, (int64_t)WEIGHTS);
    pool_run(c->threads, round_task, &j, j.m);
    pool_run(c->threads, product_task, &j, divide_up(j.n, j.weights_per_task));
    float softcap = k->op->attr.logits_softcap;
    if (softcap > 0) cpu_cap_logits(c, k->out[LINEAR_INT8_Y], j.m * j.n, softcap);
}
