/* optimizer.c - what happens to gradients before AdamW: accumulation, global norm, clip factor.
 *
 * Every number here has one defined order of operations, so that host SIMD, a scalar loop and a CUDA kernel give the
 * same bits, and so that any cut of a tensor into tasks, or of a parameter into parts at multiples of NORM_BLOCK, does.
 *
 * ACCUMULATE: fp32 sums; a bf16 accumulator is rounded stochastically, with the noise of noise.h.
 *
 * GRAD_SUMSQ: per block of NORM_BLOCK elements 16 fp64 lanes, lane j adds the squares of elements j, j + 16, ... in
 * order, then lanes are folded in halves. Squares of fp32 are exact in fp64.
 *
 * CLIP: the sum of all partial sums in the same way, in CLIP_LANES lanes. */
#include "backend/cpu/noise.h"
#include "backend/cpu/update.h"

#include <math.h>

/* Rounded accumulators work in pieces that stay in L1. */
enum { PIECE = 1024 };
/* Elements of what no cache keeps until it is read again. */
enum { LARGE = 1 << 20 };
/* Bytes to fetch before a sum comes to them: one stream alone does not fill a core's share of the memory. */
enum { AHEAD = 4096 };

/* ---- accumulate ---------------------------------------------------------------------------------------------- */

typedef struct accumulate_job {
    const op *op;
    const step_scalars *scalars;
    const void *x;
    dtype x_type, acc_type;
    void *acc;
    update_cut cut;
} accumulate_job;

static void add_row(float *acc, const float *x, size_t n) {
    size_t i = 0;
    for (; i + VEC_WIDTH <= n; i += VEC_WIDTH) vec_store(acc + i, vec_load(acc + i) + vec_load(x + i));
    for (; i < n; i++) acc[i] += x[i];
}

VEC_INLINE vec_pair pair_sum(const uint16_t *x, const uint16_t *y) {
    vec_pair a = pair_load(x), b = pair_load(y);
    return (vec_pair){a.a + b.a, a.b + b.b};
}

/* dst = acc + x, rounded, PIECE of them, in one pass over registers. False: there is a NaN or an infinity among the sums, or
 * two of them multiply to one, and dst is not to be used. */
static bool add_and_round(uint16_t *dst, const uint16_t *acc, const uint16_t *x, rng_noise noise, size_t first) {
    enum { HALF = NOISE_GROUP / 2 };
    _Static_assert(PIECE % NOISE_GROUP == 0, "pieces are whole groups of noise");
    vec watch = {0};
    vec_u32 at = pair_at(noise, first / 2);
    for (size_t i = 0; i < PIECE; i += NOISE_GROUP)
        for (size_t k = i; k < i + HALF; k += PAIR, at += NOISE_WORDS(PAIR)) {
            noise_pair words = pair_words(at, noise.key);
            vec_pair low = pair_sum(acc + k, x + k), high = pair_sum(acc + k + HALF, x + k + HALF);
            watch = vec_fma(low.a, high.a, watch);
            watch = vec_fma(low.b, high.b, watch);
            pair_store_no_nan(dst + k, low, words.a.low, words.b.low);
            pair_store_no_nan(dst + k + HALF, high, words.a.high, words.b.high);
        }
    return vec_sum(watch) * 0 == 0;
}

/* What bf16 becomes by rounding it with any noise: itself, a NaN made quiet. Large ones go past the caches, where nobody
 * would find them before they are overwritten: such a store does not first fetch the line it fills. */
static void copy_rounded(uint16_t *restrict dst, const uint16_t *restrict src, size_t n, bool large) {
    size_t i = 0;
#if defined(__x86_64__) && VEC_WIDTH == 8
    const __m256i rest = _mm256_set1_epi16(0x7fff), infinity = _mm256_set1_epi16(0x7f80),
                  quiet = _mm256_set1_epi16(0x40);
    if (large && (uintptr_t)dst % sizeof rest == 0) {
        for (; i + 16 <= n; i += 16) {
            __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(src + i));
            __m256i nan = _mm256_cmpgt_epi16(_mm256_and_si256(x, rest), infinity);
            _mm256_stream_si256((__m256i *)(void *)(dst + i), _mm256_or_si256(x, _mm256_and_si256(nan, quiet)));
        }
        _mm_sfence();
    }
#endif
    for (; i < n; i++) dst[i] = (uint16_t)(src[i] | ((src[i] & 0x7fff) > 0x7f80 ? 0x40 : 0));
}

/* Elements that take their noise from one block. */
static void accumulate_run(const accumulate_job *j, size_t begin, size_t end) {
    bool restart = j->scalars->micro == 0;
    if (restart && j->x_type == DTYPE_BF16 && j->acc_type == DTYPE_BF16) {
        copy_rounded((uint16_t *)j->acc + begin, (const uint16_t *)j->x + begin, end - begin, j->cut.n >= LARGE);
        return;
    }
    rng_noise noise = noise_open(j->op, j->scalars, NOISE_ACCUMULATE | j->scalars->micro << 8, begin);
    float sum[PIECE], x[PIECE];
    uint16_t rounded[PIECE];
    for (size_t i = begin; i < end; i += PIECE) {
        size_t n = MIN((size_t)PIECE, end - i);
        const char *x_data = (const char *)j->x + i * dtype_bytes(j->x_type);
        if (j->acc_type == DTYPE_F32) {
            float *acc = (float *)j->acc + i;
            if (restart) {
                typed_row_load(acc, x_data, j->x_type, n);
            } else if (j->x_type == DTYPE_F32) {
                add_row(acc, (const float *)x_data, n);
            } else {
                typed_row_load(x, x_data, j->x_type, n);
                add_row(acc, x, n);
            }
            continue;
        }
        uint16_t *acc = (uint16_t *)j->acc + i;
        bool in_one = n == PIECE && j->x_type == DTYPE_BF16;
        if (in_one && add_and_round(rounded, acc, (const uint16_t *)x_data, noise, noise_place(j->op, i))) {
            pair_copy(acc, rounded, PIECE);
            continue;
        }
        if (n < PIECE) memset(sum, 0, sizeof sum); /* the rest of a group is rounded too, and thrown away */
        typed_row_load(sum, x_data, j->x_type, n);
        if (!restart) {
            typed_row_load(x, acc, DTYPE_BF16, n);
            add_row(sum, x, n);
        }
        noise_round_row(rounded, sum, n, noise, noise_place(j->op, i));
        memcpy(acc, rounded, n * sizeof *acc);
    }
}

static void accumulate_task(void *context, int64_t task, int thread) {
    const accumulate_job *j = context;
    update_range r = update_task_range(&j->cut, task);
    for (size_t at = r.begin, stop; at < r.end; at = stop) accumulate_run(j, at, stop = noise_end(j->op, at, r.end));
}

void cpu_kernel_ACCUMULATE(backend_context *c, const kernel_call *k) {
    const value *x = call_in(k, ACCUMULATE_X), *acc = call_out(k, ACCUMULATE_ACC);
    accumulate_job j = {.op = k->op,
                        .scalars = k->in[ACCUMULATE_SCALARS],
                        .x = k->in[ACCUMULATE_X],
                        .x_type = x->type,
                        .acc_type = acc->type,
                        .acc = k->out[ACCUMULATE_ACC],
                        .cut = update_cut_for((size_t)shape_count(&acc->shape), pool_threads(c->threads))};
    ASSERT(acc->type == DTYPE_F32 || acc->type == DTYPE_BF16);
    pool_run(c->threads, accumulate_task, &j, j.cut.n_tasks);
}

/* ---- parts of several ranks ------------------------------------------------------------------------------------ */

typedef struct parts_job {
    dtype type;
    const char *x, *parts;
    char *y;
    int64_t n, n_end; /* elements, and how many of them at the end are sums */
    int first, n_parts;
} parts_job;

static void parts_task(void *context, int64_t task, int thread) {
    const parts_job *j = context;
    size_t width = dtype_bytes(j->type);
    int64_t begin = task * PIECE, end = MIN(begin + PIECE, j->n), head = j->n - j->n_end;
    if (begin < head && j->x != j->y)
        memcpy(j->y + (size_t)begin * width, j->x + (size_t)begin * width, (size_t)(MIN(end, head) - begin) * width);
    begin = MAX(begin, head);
    if (begin >= end) return;
    size_t n = (size_t)(end - begin);
    float sum[PIECE], part[PIECE];
    for (int i = 0; i < j->n_parts; i++) {
        const char *from = j->parts + (size_t)((j->first + i) * j->n_end + begin - head) * width;
        typed_row_load(i == 0 ? sum : part, from, j->type, n);
        if (i > 0) add_row(sum, part, n);
    }
    typed_row_store(j->y + (size_t)begin * width, sum, j->type, n);
}

void cpu_kernel_SUM_PARTS(backend_context *c, const kernel_call *k) {
    parts_job j = {.type = call_in(k, SUM_PARTS_X)->type,
                   .x = k->in[SUM_PARTS_X],
                   .parts = k->in[SUM_PARTS_PARTS],
                   .y = k->out[SUM_PARTS_Y],
                   .n = shape_count(&call_in(k, SUM_PARTS_X)->shape),
                   .n_end = call_in(k, SUM_PARTS_PARTS)->shape.dim[1],
                   .first = k->op->attr.first_part,
                   .n_parts = k->op->attr.n_parts};
    pool_run(c->threads, parts_task, &j, divide_up(j.n, PIECE));
}

/* ---- global norm --------------------------------------------------------------------------------------------- */

enum { NORM_LANES = 16 };
_Static_assert(NORM_BLOCK % NORM_LANES == 0, "only the end of a tensor has a short group of lanes");
typedef double double_vec __attribute__((vector_size(4 * VEC_WIDTH)));
enum { DOUBLES = VEC_WIDTH / 2, NORM_SUMS = NORM_LANES / DOUBLES };

typedef struct sumsq_job {
    const void *g;
    dtype type;
    double *partials;
    size_t n_counted;
    update_cut cut;
} sumsq_job;

VEC_INLINE double_vec widen_half(const float *x) { /* by hand: gcc would convert lanes or halves apart */
#if defined(__aarch64__)
    return (double_vec)vcvt_f64_f32(vld1_f32(x));
#elif defined(__x86_64__)
    return (double_vec)_mm256_cvtps_pd(_mm_loadu_ps(x));
#else
    typedef float half_vec __attribute__((vector_size(2 * VEC_WIDTH)));
    half_vec h;
    memcpy(&h, x, sizeof h);
    return __builtin_convertvector(h, double_vec);
#endif
}

/* sum + d^2. d has 24 bits and its square is exact, so one rounding or two is the same; one instruction is faster. */
VEC_INLINE double_vec add_square(double_vec sum, double_vec d) {
#if defined(__aarch64__)
    sum = (double_vec)vfmaq_f64((float64x2_t)sum, (float64x2_t)d, (float64x2_t)d);
    /* Keeps conversions and products taking turns: only one of the two vector units converts, and after a run of
     * conversions the products would queue behind them (measured on Neoverse-N1: 0.29 against 0.21 ns). */
    __asm__ volatile("" : "+w"(sum));
    return sum;
#elif defined(__x86_64__)
    return (double_vec)_mm256_fmadd_pd((__m256d)d, (__m256d)d, (__m256d)sum);
#else
    return sum + d * d;
#endif
}

VEC_INLINE void sumsq_group(double_vec sum[NORM_SUMS], const float *x) {
    for (int s = 0; s < NORM_SUMS; s++) sum[s] = add_square(sum[s], widen_half(x + s * DOUBLES));
}

/* Whole groups of a row. The sums are a copy in here, so that they stay in registers: through the pointer they would be
 * stored after every group. */
static void sumsq_row(double_vec sums[NORM_SUMS], const float *x, size_t n_groups) {
    double_vec sum[NORM_SUMS];
    memcpy(sum, sums, sizeof sum);
    for (size_t i = 0; i < n_groups; i++) sumsq_group(sum, x + i * NORM_LANES);
    memcpy(sums, sum, sizeof sum);
}

static void sumsq_lanes(double lane[NORM_LANES], const sumsq_job *j, size_t begin, size_t end) {
    double_vec sum[NORM_SUMS];
    for (int s = 0; s < NORM_SUMS; s++) sum[s] = (double_vec){0};
    float buffer[PIECE];
    for (size_t i = begin; i < end; i += PIECE) {
        size_t n = MIN((size_t)PIECE, end - i), whole = n / NORM_LANES * NORM_LANES;
        const float *x = buffer;
        if (j->type == DTYPE_F32) x = (const float *)j->g + i;
        else typed_row_load(buffer, (const uint16_t *)j->g + i, j->type, n);
        sumsq_row(sum, x, n / NORM_LANES);
        if (whole < n) { /* adding zero squares changes no lane */
            float tail[NORM_LANES] = {0};
            memcpy(tail, x + whole, (n - whole) * sizeof(float));
            sumsq_row(sum, tail, 1);
        }
    }
    memcpy(lane, sum, sizeof sum);
}

/* The same for bf16, widened in registers. On x86-64 even and odd elements apart, by a shift and a mask. */
VEC_INLINE void sumsq_group_bf16(double_vec sum[NORM_SUMS], const uint16_t *x) {
#if defined(__aarch64__)
    for (int s = 0; s < NORM_SUMS; s += 2) {
        float32x4_t four = (float32x4_t)vec_from_bf16(x + s * DOUBLES);
        sum[s] = add_square(sum[s], (double_vec)vcvt_f64_f32(vget_low_f32(four)));
        sum[s + 1] = add_square(sum[s + 1], (double_vec)vcvt_high_f64_f32(four));
    }
#elif defined(__x86_64__)
    for (int s = 0; s < NORM_SUMS; s += 2) {
        __m128i eight = _mm_loadu_si128((const __m128i *)(x + s * DOUBLES));
        __m128i even = _mm_slli_epi32(eight, 16), odd = _mm_and_si128(eight, _mm_set1_epi32((int)0xffff0000u));
        sum[s] = add_square(sum[s], (double_vec)_mm256_cvtps_pd((__m128)even));
        sum[s + 1] = add_square(sum[s + 1], (double_vec)_mm256_cvtps_pd((__m128)odd));
    }
#else
    float wide[NORM_LANES];
    for (int l = 0; l < NORM_LANES; l++) wide[l] = bf16_to_f32(x[l]);
    sumsq_group(sum, wide);
#endif
}

static void sumsq_lanes_bf16(double lane[NORM_LANES], const uint16_t *g, size_t n) {
    double_vec sum[NORM_SUMS];
    for (int s = 0; s < NORM_SUMS; s++) sum[s] = (double_vec){0};
    size_t i = 0;
    for (; i + NORM_LANES <= n; i += NORM_LANES) {
        __builtin_prefetch((const char *)(g + i) + AHEAD);
        sumsq_group_bf16(sum, g + i);
    }
    if (i < n) {
        uint16_t tail[NORM_LANES] = {0};
        memcpy(tail, g + i, (n - i) * sizeof *g);
        sumsq_group_bf16(sum, tail);
    }
#if defined(__x86_64__) /* of 8 elements the even ones lie in one vector, the odd ones in the next */
    for (int l = 0; l < NORM_LANES; l++) lane[l] = sum[l / 8 * 2 + l % 2][l % 8 / 2];
#else
    memcpy(lane, sum, sizeof sum);
#endif
}

static double sumsq_block(const sumsq_job *j, size_t begin) {
    size_t end = MIN(begin + NORM_BLOCK, j->n_counted);
    if (begin >= end) return 0;
    double lane[NORM_LANES];
    if (j->type == DTYPE_BF16) sumsq_lanes_bf16(lane, (const uint16_t *)j->g + begin, end - begin);
    else sumsq_lanes(lane, j, begin, end);
    for (int half = NORM_LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    return lane[0];
}

static void sumsq_task(void *context, int64_t task, int thread) {
    const sumsq_job *j = context;
    update_range r = update_task_range(&j->cut, task);
    for (size_t i = r.begin; i < r.end; i += NORM_BLOCK) j->partials[i / NORM_BLOCK] = sumsq_block(j, i);
}

void cpu_kernel_GRAD_SUMSQ(backend_context *c, const kernel_call *k) {
    const value *g = call_in(k, GRAD_SUMSQ_G);
    int64_t n = shape_count(&g->shape);
    const op_attr *a = &k->op->attr;
    ASSERT(shape_count(&call_out(k, GRAD_SUMSQ_PARTIALS)->shape) == divide_up(n, NORM_BLOCK));
    sumsq_job j = {.g = k->in[GRAD_SUMSQ_G],
                   .type = g->type,
                   .partials = k->out[GRAD_SUMSQ_PARTIALS],
                   .n_counted = (size_t)(a->counts_part ? MIN(MAX(a->counted - a->first_element, 0), n) : n),
                   .cut = update_cut_for((size_t)n, pool_threads(c->threads))};
    pool_run(c->threads, sumsq_task, &j, j.cut.n_tasks);
}

/* A few thousand numbers: one thread, in order. */
void cpu_kernel_NORM_SUM(backend_context *c, const kernel_call *k) {
    const double *partials = k->in[NORM_SUM_PARTIALS];
    double sum = 0;
    int64_t n = shape_count(&call_in(k, NORM_SUM_PARTIALS)->shape);
    for (int64_t i = 0; i < n; i++) sum += partials[i];
    *(double *)k->out[NORM_SUM_SUM] = sum;
}

/* In double to the end: the factor multiplies every gradient of the step. */
void cpu_kernel_CLIP(backend_context *c, const kernel_call *k) {
    const double *partials = k->in[CLIP_PARTIALS], *sums = k->in[CLIP_SUMS];
    const step_scalars *s = k->in[CLIP_SCALARS];
    float *clip = k->out[CLIP_CLIP];
    int64_t n = shape_count(&call_in(k, CLIP_PARTIALS)->shape);
    double lane[CLIP_LANES] = {0}, divisor = sums[k->op->attr.normalize_by_weights ? SUM_WEIGHTS : SUM_VALID];
    double loss = sums[SUM_WEIGHTED_LOSS]; /* those after the first are scaled to its divisor by their weights */
    for (int i = 1; i < k->op->attr.n_losses; i++) loss += sums[i * SUM_COUNT + SUM_WEIGHTED_LOSS];
    for (int64_t i = 0; i < n; i++) lane[i % CLIP_LANES] += partials[i];
    for (int half = CLIP_LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    if (divisor == 0) divisor = 1; /* no token was valid: the gradient is zero, and stays zero */
    double factor = s->grad_unscale / divisor, norm = sqrt(lane[0]) * factor;
    if (k->op->attr.clip > 0) factor *= fmin(1, k->op->attr.clip / (norm + 1e-6));
    bool skip = !isfinite(norm) || !isfinite(loss);
    memset(clip, 0, CLIP_COUNT * sizeof *clip);
    clip[CLIP_NORM] = (float)norm;
    clip[CLIP_FACTOR] = skip ? 0 : (float)factor;
    clip[CLIP_SKIP] = skip;
    clip[CLIP_LOSS] = (float)(loss / divisor);
    int64_t n_sums = shape_count(&call_out(k, CLIP_CLIP)->shape) - CLIP_COUNT; /* that are reported */
    for (int64_t i = 0; i < n_sums; i++) clip[CLIP_COUNT + i] = (float)sums[i];
}
