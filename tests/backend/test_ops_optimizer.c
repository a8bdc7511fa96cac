/* test_ops_optimizer.c - accumulation, norm, clipping and AdamW.
 *
 * Everything here promises bits, not bounds: the kernels are held against scalar loops that follow the order of
 * operations written at the top of optimizer.c and adamw.c, for every length of tail, every alignment and every dtype. That order
 * is in turn held against the textbook formula in double. */
#include "backend/cpu/adamw.h"
#include "op_check.h"
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* Tails of every kind, pieces of 1024, tasks of 65536. */
static const int64_t sizes[] = {1, 2, 3, 5, 8, 15, 17, 1023, 1024, 1031, 65537, 140001};

static step_scalars make_scalars(void) {
    return (step_scalars){.lr = 1e-3f,
                          .seed = 1,
                          .grad_unscale = 1,
                          .bias1 = 1 - 0.9f * 0.9f,
                          .bias2 = 1 - 0.95f * 0.95f,
                          .step = 2,
                          .micro = 0,
                          .noise_lo = 0x12345678u,
                          .noise_hi = 0x9abcdef0u};
}

/* A word of noise, as noise.h lays it out; 16 bits of it round one number. */
static uint32_t noise_word(uint64_t noise_key, const step_scalars *s, uint32_t what, size_t element, size_t word) {
    rng_noise n = rng_noise_block(noise_key ^ ((uint64_t)s->noise_hi << 32 | s->noise_lo),
                                  (uint64_t)what << 32 | s->step, element / RNG_NOISE_BLOCK);
    return rng_noise_word(n, (uint32_t)word);
}
static uint16_t value_noise(uint64_t noise_key, const step_scalars *s, uint32_t what, size_t element) {
    size_t r = element % RNG_NOISE_BLOCK;
    return (uint16_t)(noise_word(noise_key, s, what, element, r / 32 * 16 + r % 16) >> (r % 32 < 16 ? 0 : 16));
}
static uint16_t state_noise(uint64_t noise_key, const step_scalars *s, size_t element, bool variance) {
    return (uint16_t)(noise_word(noise_key, s, 2, element, element % RNG_NOISE_BLOCK) >> (variance ? 16 : 0));
}

/* ---- accumulate ---------------------------------------------------------------------------------------------- */

static void test_accumulate_restarts_at_the_first_micro_batch_and_adds_after_it(void **state) {
    for (size_t ti = 0; ti < ARRAY_LENGTH(check_types); ti++)
        for (size_t si = 0; si < ARRAY_LENGTH(sizes); si++)
            for (uint32_t micro = 0; micro < 3; micro++)
                for (int bf16 = 0; bf16 < 2; bf16++) {
                    size_t n = (size_t)sizes[si];
                    dtype acc_type = bf16 ? DTYPE_BF16 : DTYPE_F32;
                    step_scalars s = make_scalars();
                    s.micro = micro;
                    op_attr attr = {.noise_key = 77};
                    op_case *t = op_case_open(OP_ACCUMULATE, &attr);
                    op_case_random(t, ACCUMULATE_X, check_types[ti], SHAPE(sizes[si]), 1, 1);
                    op_case_bytes(t, ACCUMULATE_SCALARS, SHAPE(sizeof s), &s);
                    double *before = mem_alloc(n * sizeof *before);
                    for (size_t i = 0; i < n; i++) before[i] = bf16_to_f32(f32_to_bf16((float)sin((double)i)));
                    if (micro == 0)
                        op_case_output(t, ACCUMULATE_ACC, acc_type,
                                       SHAPE(sizes[si])); /* what was there must not matter */
                    else op_case_output_floats(t, ACCUMULATE_ACC, acc_type, SHAPE(sizes[si]), before);
                    op_case_run(t, 2);
                    const double *x = op_case_input_values(t, ACCUMULATE_X), *acc = op_case_values(t, ACCUMULATE_ACC);
                    for (size_t i = 0; i < n; i++) {
                        float sum = micro == 0 ? (float)x[i] : (float)before[i] + (float)x[i];
                        if (bf16) sum = bf16_to_f32(f32_to_bf16_stochastic(sum, value_noise(77, &s, micro << 8, i)));
                        if (!(acc[i] == sum)) fail_msg("acc[%zu] = %.9g, not %.9g", i, acc[i], sum);
                    }
                    op_case_close(t);
                    free(before);
                }
}

/* What a rank or a slice has of a parameter begins inside a block of noise and ends anywhere, and threads share it out as it
 * suits them: an element takes the noise of its place in the whole parameter all the same. */
static void test_accumulate_of_a_part_takes_the_noise_of_the_whole(void **state) {
    enum { N = 3 * RNG_NOISE_BLOCK + 4567, FIRST = RNG_NOISE_BLOCK + 5 * NORM_BLOCK };
    step_scalars s = make_scalars();
    s.micro = 1;
    op_case *t = op_case_open(OP_ACCUMULATE, &(op_attr){.noise_key = 77, .first_element = FIRST});
    double *before = mem_alloc(N * sizeof *before);
    for (size_t i = 0; i < N; i++) before[i] = bf16_to_f32(f32_to_bf16((float)sin((double)i)));
    op_case_random(t, ACCUMULATE_X, DTYPE_BF16, SHAPE(N), 1, 1);
    op_case_bytes(t, ACCUMULATE_SCALARS, SHAPE(sizeof s), &s);
    op_case_output_floats(t, ACCUMULATE_ACC, DTYPE_BF16, SHAPE(N), before);
    op_case_run(t, 5);
    const double *x = op_case_input_values(t, ACCUMULATE_X), *acc = op_case_values(t, ACCUMULATE_ACC);
    for (size_t i = 0; i < N; i++) {
        uint16_t noise = value_noise(77, &s, 1 << 8, FIRST + i);
        float want = bf16_to_f32(f32_to_bf16_stochastic((float)before[i] + (float)x[i], noise));
        if (!(acc[i] == want)) fail_msg("acc[%zu] = %.9g, not %.9g", i, acc[i], want);
    }
    op_case_close(t);
    free(before);
}

/* A piece with one of these takes another way through the kernel; what was there before must still be there then. */
static void test_accumulate_keeps_nan_and_infinity(void **state) {
    enum { N = 3000 }; /* two whole pieces and a short one */
    double x[N], before[N];
    for (int i = 0; i < N; i++) x[i] = cos(i), before[i] = sin(i);
    x[7] = INFINITY, before[1000] = -INFINITY, x[1500] = NAN, x[N - 1] = INFINITY, before[N - 1] = -INFINITY;
    step_scalars s = make_scalars();
    s.micro = 1;
    op_case *t = op_case_open(OP_ACCUMULATE, &(op_attr){.noise_key = 77});
    op_case_floats(t, ACCUMULATE_X, DTYPE_BF16, SHAPE(N), x);
    op_case_bytes(t, ACCUMULATE_SCALARS, SHAPE(sizeof s), &s);
    op_case_output_floats(t, ACCUMULATE_ACC, DTYPE_BF16, SHAPE(N), before);
    op_case_run(t, 2);
    const double *acc = op_case_values(t, ACCUMULATE_ACC);
    for (size_t i = 0; i < N; i++) {
        float sum = bf16_to_f32(f32_to_bf16((float)before[i])) + bf16_to_f32(f32_to_bf16((float)x[i]));
        float want = bf16_to_f32(f32_to_bf16_stochastic(sum, value_noise(77, &s, 1 << 8, i)));
        if (!(acc[i] == want || (isnan(acc[i]) && isnan(want)))) fail_msg("acc[%zu] = %.9g, not %.9g", i, acc[i], want);
    }
    op_case_close(t);
}

/* The first micro-batch of a step, to a bf16 accumulator, run; the caller closes it. */
static op_case *first_accumulate(dtype type, const double *x, int64_t n) {
    step_scalars s = make_scalars();
    op_case *t = op_case_open(OP_ACCUMULATE, &(op_attr){.noise_key = 5});
    op_case_floats(t, ACCUMULATE_X, type, SHAPE(n), x);
    op_case_bytes(t, ACCUMULATE_SCALARS, SHAPE(sizeof s), &s);
    op_case_output(t, ACCUMULATE_ACC, DTYPE_BF16, SHAPE(n));
    op_case_run(t, 2);
    return t;
}

/* No noise moves a number that is bf16 already: all of them, and what is none stays none. Few, and too many for a cache. */
static void check_first_accumulate(int n) {
    double *x = mem_alloc((size_t)n * sizeof *x);
    for (int i = 0; i < n; i++) x[i] = bf16_to_f32((uint16_t)i);
    op_case *t = first_accumulate(DTYPE_BF16, x, n);
    const double *acc = op_case_values(t, ACCUMULATE_ACC);
    for (int i = 0; i < n; i++)
        if (isnan(x[i]) ? !isnan(acc[i]) : acc[i] != x[i] || signbit(acc[i]) != signbit(x[i]))
            fail_msg("0x%04x becomes %g", (unsigned)i & 0xffff, acc[i]);
    op_case_close(t);
    free(x);
}

static void test_accumulate_of_bf16_begins_with_a_copy(void **state) {
    check_first_accumulate(1 << 16);
    check_first_accumulate((1 << 20) + 77);
}

/* 1 + 2^-10 is an eighth of the way from 1 to the next bf16: repeated over many elements, one in eight rounds up. */
static void test_stochastic_rounding_is_right_on_average(void **state) {
    enum { N = 80000 };
    double *x = mem_alloc(N * sizeof *x), sum = 0;
    for (int i = 0; i < N; i++) x[i] = 1 + 0x1p-10;
    op_case *t = first_accumulate(DTYPE_F32, x, N);
    const double *acc = op_case_values(t, ACCUMULATE_ACC);
    for (int i = 0; i < N; i++) {
        assert_true(acc[i] == 1 || acc[i] == 1 + 0x1p-7);
        sum += acc[i] - 1;
    }
    double up = sum / 0x1p-7, deviation = sqrt(N * (1.0 / 8) * (7.0 / 8));
    assert_true(fabs(up - N / 8.0) < 5 * deviation); /* 5 sigma; the noise is fixed, so this cannot flicker */
    op_case_close(t);
    free(x);
}

/* ---- norm and clip ------------------------------------------------------------------------------------------- */

static void test_grad_sumsq_has_the_documented_shape(void **state) {
    for (size_t ti = 0; ti < ARRAY_LENGTH(check_types); ti++)
        for (size_t si = 0; si < ARRAY_LENGTH(sizes); si++) {
            int64_t n = sizes[si], P = (n + NORM_BLOCK - 1) / NORM_BLOCK;
            op_case *t = op_case_open(OP_GRAD_SUMSQ, &(op_attr){0});
            op_case_random(t, GRAD_SUMSQ_G, check_types[ti], SHAPE(n), 1, 2);
            op_case_output(t, GRAD_SUMSQ_PARTIALS, DTYPE_F64, SHAPE(P));
            op_case_run(t, 2);
            const double *g = op_case_input_values(t, GRAD_SUMSQ_G), *partials = op_case_values(t, GRAD_SUMSQ_PARTIALS);
            for (int64_t p = 0; p < P; p++) {
                double lane[16] = {0};
                for (int64_t i = p * NORM_BLOCK; i < n && i < (p + 1) * NORM_BLOCK; i++) lane[i % 16] += g[i] * g[i];
                for (int half = 8; half > 0; half /= 2)
                    for (int i = 0; i < half; i++) lane[i] += lane[i + half];
                assert_true(partials[p] == lane[0]);
            }
            op_case_close(t);
        }
}

typedef struct clip_result {
    double norm, factor, skip, loss;
} clip_result;

static clip_result clip_run(double sum_of_squares, const double sums[SUM_COUNT], float unscale, float clip,
                            bool by_weights) {
    const double partials[] = {sum_of_squares / 2, sum_of_squares / 4, sum_of_squares / 4};
    step_scalars s = make_scalars();
    s.grad_unscale = unscale;
    op_case *t = op_case_open(OP_CLIP, &(op_attr){.clip = clip, .normalize_by_weights = by_weights});
    op_case_floats(t, CLIP_PARTIALS, DTYPE_F64, SHAPE(3), partials);
    op_case_floats(t, CLIP_SUMS, DTYPE_F64, SHAPE(SUM_COUNT), sums);
    op_case_bytes(t, CLIP_SCALARS, SHAPE(sizeof s), &s);
    op_case_output(t, CLIP_CLIP, DTYPE_F32, SHAPE(CLIP_COUNT));
    op_case_run(t, 2);
    const double *c = op_case_values(t, CLIP_CLIP);
    clip_result r = {c[CLIP_NORM], c[CLIP_FACTOR], c[CLIP_SKIP], c[CLIP_LOSS]};
    op_case_close(t);
    return r;
}

static void assert_near(double got, double want) {
    if (!(fabs(got - want) <= U32 * fabs(want))) fail_msg("%.9g instead of %.9g", got, want);
}

static void test_clip_divides_by_tokens_or_weights_and_limits_the_norm(void **state) {
    const double sums[SUM_COUNT] = {[SUM_WEIGHTED_LOSS] = 30, [SUM_VALID] = 10, [SUM_WEIGHTS] = 5, [SUM_LOSS] = 25};
    clip_result r = clip_run(1600, sums, 1, 0, false); /* never clips */
    assert_near(r.norm, 4);
    assert_near(r.factor, 0.1);
    assert_near(r.loss, 3);
    assert_true(r.skip == 0);
    r = clip_run(1600, sums, 1, 1, false);
    assert_near(r.norm, 4); /* before clipping */
    assert_near(r.factor, 0.1 * 1 / (4 + 1e-6));
    r = clip_run(1600, sums, 1, 5, false); /* already below */
    assert_near(r.factor, 0.1);
    r = clip_run(1600, sums, 1, 1, true);
    assert_near(r.norm, 8);
    assert_near(r.factor, 0.2 / (8 + 1e-6));
    assert_near(r.loss, 6);
    r = clip_run(1600.0 * 65536 * 65536, sums, 1.0f / 65536, 1, false); /* a loss scale is undone */
    assert_near(r.norm, 4);
    assert_near(r.factor, 0.1 / 65536 / (4 + 1e-6));
    const double none[SUM_COUNT] = {0}; /* no valid token */
    r = clip_run(0, none, 1, 1, false);
    assert_true(r.norm == 0 && r.factor == 1 && r.skip == 0 && r.loss == 0);
}

static void test_clip_skips_a_step_that_is_not_finite(void **state) {
    const double good[SUM_COUNT] = {30, 10, 5, 25}, nan_loss[SUM_COUNT] = {NAN, 10, 5, 25},
                 inf_loss[SUM_COUNT] = {INFINITY, 10, 5, 25};
    assert_true(clip_run(INFINITY, good, 1, 1, false).skip == 1);
    assert_true(clip_run(NAN, good, 1, 0, false).skip == 1);
    assert_true(clip_run(1, nan_loss, 1, 1, false).skip == 1);
    assert_true(clip_run(1, inf_loss, 1, 1, false).skip == 1);
    assert_true(clip_run(INFINITY, good, 1, 1, false).factor == 0);
}

/* ---- AdamW --------------------------------------------------------------------------------------------------- */

typedef enum update_mode { FP32, BF16_MASTER, FP16_MASTER, BF16_STOCHASTIC, MODE_COUNT } update_mode;
typedef struct element {
    float p, master, m, v;
} element;

static const op_attr adamw_attr = {.eps = 1e-8f, .beta1 = 0.9f, .beta2 = 0.95f, .weight_decay = 0.1f, .noise_key = 99};

/* The order of operations at the top of adamw.c, one element at a time. */
static element adamw_scalar(element e, float g, float factor, const op_attr *a, const step_scalars *s, update_mode mode,
                            size_t i) {
    float s2 = sqrtf(s->bias2), rate = s->lr * s2 / s->bias1, eps2 = a->eps * s2,
          decay = a->weight_decay * s->bias1 / s2;
    float gm = (1.0f - a->beta1) * factor, gv = sqrtf(1.0f - a->beta2) * factor;
    bool master = mode == BF16_MASTER || mode == FP16_MASTER;
    float x = master ? e.master : e.p, t = gv * g;
    float m = fmaf(a->beta1, e.m, gm * g), v = fmaf(t, t, a->beta2 * e.v);
    float u = fmaf(decay, x, m / (sqrtf(v) + eps2));
    x = fmaf(-rate, u, x);
    if (mode == BF16_STOCHASTIC)
        return (element){.p = bf16_to_f32(f32_to_bf16_stochastic(x, value_noise(a->noise_key, s, 1, i))),
                         .m = bf16_to_f32(f32_to_bf16_stochastic(m, state_noise(a->noise_key, s, i, false))),
                         .v = bf16_to_f32(f32_to_bf16_stochastic(v, state_noise(a->noise_key, s, i, true)))};
    float p = mode == FP32 ? x : mode == BF16_MASTER ? bf16_to_f32(f32_to_bf16(x)) : f16_to_f32(f32_to_f16(x));
    return (element){.p = p, .master = x, .m = m, .v = v};
}

/* Elements with zeros, tiny and huge numbers among ordinary ones. */
static element make_element(size_t i, update_mode mode) {
    float r[3];
    rng_normal_fill(17, 3 * i, r, 3, 0, 1);
    element e = {.p = r[0], .m = 0.01f * r[1], .v = 1e-4f * r[2] * r[2]};
    if (i % 11 == 3) e.m = e.v = 0;
    if (i % 13 == 5) e.p = 0;
    if (i % 29 == 7) e.v = 1e-30f;
    if (i % 101 == 50) e.p = 30000.0f;
    if (mode == BF16_STOCHASTIC)
        e.p = bf16_to_f32(f32_to_bf16(e.p)), e.m = bf16_to_f32(f32_to_bf16(e.m)), e.v = bf16_to_f32(f32_to_bf16(e.v));
    e.master = e.p;
    return e;
}

static float make_gradient(size_t i, update_mode mode) {
    float g;
    rng_normal_fill(18, i, &g, 1, 0, 0.1f);
    if (i % 7 == 2) g = 0;
    if (i % 31 == 9) g = 1e-20f;
    if (i % 37 == 11) g = -1e12f;
    if (i % 43 == 17) g = 1e25f; /* its square is infinite */
    return mode == BF16_STOCHASTIC ? bf16_to_f32(f32_to_bf16(g)) : g;
}

static op_case *adamw_open(update_mode mode, int64_t n, const float clip[CLIP_COUNT], const step_scalars *s,
                           const element *e, const float *g) {
    static const dtype p_types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_BF16};
    dtype state_type = mode == BF16_STOCHASTIC ? DTYPE_BF16 : DTYPE_F32;
    double *column = mem_alloc((size_t)n * sizeof *column), clip_values[CLIP_COUNT];
    for (int i = 0; i < CLIP_COUNT; i++) clip_values[i] = clip[i];
    op_case *t = op_case_open(OP_ADAMW, &adamw_attr);
    for (int64_t i = 0; i < n; i++) column[i] = g[i];
    op_case_floats(t, ADAMW_G, state_type, SHAPE(n), column);
    op_case_floats(t, ADAMW_CLIP, DTYPE_F32, SHAPE(CLIP_COUNT), clip_values);
    op_case_bytes(t, ADAMW_SCALARS, SHAPE(sizeof *s), s);
    for (int64_t i = 0; i < n; i++) column[i] = e[i].p;
    op_case_output_floats(t, ADAMW_P, p_types[mode], SHAPE(n), column);
    for (int64_t i = 0; i < n; i++) column[i] = e[i].master;
    if (mode == BF16_MASTER || mode == FP16_MASTER) op_case_output_floats(t, ADAMW_MASTER, DTYPE_F32, SHAPE(n), column);
    for (int64_t i = 0; i < n; i++) column[i] = e[i].m;
    op_case_output_floats(t, ADAMW_M, state_type, SHAPE(n), column);
    for (int64_t i = 0; i < n; i++) column[i] = e[i].v;
    op_case_output_floats(t, ADAMW_V, state_type, SHAPE(n), column);
    free(column);
    op_case_run(t, 2);
    return t;
}

static void same_bits(double got, float want, const char *what, update_mode mode, size_t i) {
    float f = (float)got;
    if (memcmp(&f, &want, sizeof f) != 0 && !(isnan(f) && isnan(want)))
        fail_msg("%s[%zu] = %.9g, scalar loop %.9g (mode %d)", what, i, got, want, (int)mode);
}

static void check_adamw_against_the_scalar_loop(void) {
    float clip[CLIP_COUNT] = {[CLIP_FACTOR] = 0.37f};
    step_scalars s = make_scalars();
    for (update_mode mode = 0; mode < MODE_COUNT; mode++)
        for (size_t si = 0; si < ARRAY_LENGTH(sizes); si++) {
            size_t n = (size_t)sizes[si];
            element *e = mem_alloc(n * sizeof *e);
            float *g = mem_alloc(n * sizeof *g);
            for (size_t i = 0; i < n; i++) e[i] = make_element(i, mode), g[i] = make_gradient(i, mode);
            op_case *t = adamw_open(mode, sizes[si], clip, &s, e, g);
            const double *p = op_case_values(t, ADAMW_P), *m = op_case_values(t, ADAMW_M),
                         *v = op_case_values(t, ADAMW_V);
            bool master = mode == BF16_MASTER || mode == FP16_MASTER;
            const double *x = master ? op_case_values(t, ADAMW_MASTER) : NULL;
            for (size_t i = 0; i < n; i++) {
                element want = adamw_scalar(e[i], g[i], clip[CLIP_FACTOR], &adamw_attr, &s, mode, i);
                same_bits(p[i], want.p, "p", mode, i);
                same_bits(m[i], want.m, "m", mode, i);
                same_bits(v[i], want.v, "v", mode, i);
                if (master) same_bits(x[i], want.master, "master", mode, i);
            }
            op_case_close(t);
            free(e);
            free(g);
        }
}

static void test_adamw_gives_the_bits_of_the_scalar_loop(void **state) {
    for (int i = 0; adamw_variant_name(i); i++) {
        assert_true(adamw_force_variant(adamw_variant_name(i)));
        check_adamw_against_the_scalar_loop();
    }
    assert_false(adamw_force_variant("abacus"));
    assert_true(adamw_force_variant(NULL));
}

/* A payload of ones in a NaN, and infinities, must not turn into numbers when the parameter is rounded. */
static void test_adamw_keeps_nan_and_infinity(void **state) {
    enum { N = 2100 };
    float clip[CLIP_COUNT] = {[CLIP_FACTOR] = 1}, g[N] = {0};
    step_scalars s = make_scalars();
    for (update_mode mode = 0; mode < MODE_COUNT; mode++) {
        element e[N];
        for (size_t i = 0; i < N; i++) e[i] = make_element(i, mode);
        uint32_t ones = 0x7fffffffu;
        float nan_of_ones;
        memcpy(&nan_of_ones, &ones, 4);
        const size_t bad[] = {0, 5, 1030, N - 1};
        for (size_t b = 0; b < ARRAY_LENGTH(bad); b++) e[bad[b]].p = e[bad[b]].master = b == 1 ? INFINITY : nan_of_ones;
        op_case *t = adamw_open(mode, N, clip, &s, e, g);
        const double *p = op_case_values(t, ADAMW_P);
        for (size_t b = 0; b < ARRAY_LENGTH(bad); b++)
            if (isfinite(p[bad[b]])) fail_msg("mode %d: element %zu became %g", (int)mode, bad[b], p[bad[b]]);
        for (size_t i = 0; i < N; i++) { /* and nothing else is touched by it */
            element want = adamw_scalar(e[i], 0, 1, &adamw_attr, &s, mode, i);
            if (!isnan(want.p)) same_bits(p[i], want.p, "p", mode, i);
        }
        op_case_close(t);
    }
}

/* A step of length 0 leaves a master half way between two numbers of its copy: the even one is nearest, above and below,
 * wherever in a piece it stands, and alone among others or not. */
static void test_adamw_rounds_half_to_even(void **state) {
    enum { N = 3001 };
    float clip[CLIP_COUNT] = {[CLIP_FACTOR] = 1}, g[N];
    step_scalars s = make_scalars();
    s.lr = 0;
    for (update_mode mode = BF16_MASTER; mode <= FP16_MASTER; mode++)
        for (size_t apart = 1; apart < 3000; apart = apart * 5 + 2) {
            element e[N];
            for (size_t i = 0; i < N; i++) {
                e[i] = make_element(i, mode), g[i] = make_gradient(i, mode);
                float last = mode == BF16_MASTER ? 0x1p-7f : 0x1p-10f, sign = i % 2 ? -1 : 1;
                if (i % apart == 0) e[i].master = sign * (1 + ((float)(i / apart % 8) + 0.5f) * last);
            }
            op_case *t = adamw_open(mode, N, clip, &s, e, g);
            const double *p = op_case_values(t, ADAMW_P), *x = op_case_values(t, ADAMW_MASTER);
            for (size_t i = 0; i < N; i += apart) {
                element want = adamw_scalar(e[i], g[i], 1, &adamw_attr, &s, mode, i);
                same_bits(x[i], e[i].master, "master", mode, i);
                same_bits(p[i], want.p, "p", mode, i);
            }
            op_case_close(t);
        }
}

/* But for the copy of a master: where the parameter lives elsewhere, its place here holds something else. */
static void test_adamw_changes_nothing_when_the_step_is_skipped(void **state) {
    enum { N = 1031 };
    float clip[CLIP_COUNT] = {[CLIP_FACTOR] = 1, [CLIP_SKIP] = 1}, g[N];
    step_scalars s = make_scalars();
    for (update_mode mode = 0; mode < MODE_COUNT; mode++) {
        bool master = mode == BF16_MASTER || mode == FP16_MASTER;
        element e[N];
        for (size_t i = 0; i < N; i++) {
            e[i] = make_element(i, mode), g[i] = NAN;
            if (master) e[i].p = NAN;
        }
        op_case *t = adamw_open(mode, N, clip, &s, e, g);
        const double *m = op_case_values(t, ADAMW_M), *v = op_case_values(t, ADAMW_V), *p = op_case_values(t, ADAMW_P);
        const double *x = master ? op_case_values(t, ADAMW_MASTER) : NULL;
        for (size_t i = 0; i < N; i++) {
            same_bits(m[i], e[i].m, "m", mode, i);
            same_bits(v[i], e[i].v, "v", mode, i);
            if (master) same_bits(x[i], e[i].master, "master", mode, i);
            float want = mode == BF16_MASTER   ? bf16_to_f32(f32_to_bf16(e[i].master))
                         : mode == FP16_MASTER ? f16_to_f32(f32_to_f16(e[i].master))
                                               : e[i].p;
            same_bits(p[i], want, "p", mode, i);
        }
        op_case_close(t);
    }
}

/* The kernel on n numbers of one type where they lie; x: the parameter. */
static void adamw_directly(const backend *b, backend_context *c, const op_attr *attr, dtype type, size_t n, void *g,
                           float *clip, step_scalars *s, void *x, void *m, void *v) {
    program p;
    program_init(&p);
    op *o = program_emit(&p, OP_ADAMW, SECTION_UPDATE);
    o->attr = *attr;
    const char *names[] = {"p", "m", "v", "g"};
    value_id ids[4];
    for (int i = 0; i < 4; i++) ids[i] = program_persistent(&p, names[i], type, SHAPE((int64_t)n), ROLE_STATE);
    op_in(o, ADAMW_G, ids[3]);
    op_out(o, ADAMW_P, ids[0]);
    op_out(o, ADAMW_M, ids[1]);
    op_out(o, ADAMW_V, ids[2]);
    kernel_call call = {.program = &p,
                        .op = o,
                        .in = {[ADAMW_G] = g, [ADAMW_CLIP] = clip, [ADAMW_SCALARS] = s},
                        .out = {[ADAMW_P] = x, [ADAMW_M] = m, [ADAMW_V] = v}};
    b->kernels[OP_ADAMW](c, &call);
    program_fini(&p);
}

/* Any cut of a tensor at a multiple of the noise piece, and any alignment, gives the same bits: the kernel is run on
 * pieces that start at odd addresses. Deterministic modes may be cut anywhere. */
static void test_adamw_does_not_care_where_a_tensor_lies(void **state) {
    enum { N = 3001 };
    float clip[CLIP_COUNT] = {[CLIP_FACTOR] = 0.5f};
    step_scalars s = make_scalars();
    const backend *b = backend_cpu();
    backend_context *c;
    assert_int_equal(b->open(&c, &(backend_options){.n_threads = 2}), OK);
    float *block = mem_alloc((4 * (N + 16)) * sizeof *block);
    for (size_t cut = 1; cut < 40; cut += 3) {
        float *x = block + 1, *m = block + (N + 16) + 3, *v = block + 2 * (N + 16) + 2, *g = block + 3 * (N + 16) + 1;
        for (size_t i = 0; i < N; i++) {
            element e = make_element(i, FP32);
            x[i] = e.p, m[i] = e.m, v[i] = e.v, g[i] = make_gradient(i, FP32);
        }
        const size_t ends[] = {0, cut, 3 * cut + 1, N};
        for (int part = 0; part < 3; part++) {
            size_t first = ends[part], n = ends[part + 1] - first;
            adamw_directly(b, c, &adamw_attr, DTYPE_F32, n, g + first, clip, &s, x + first, m + first, v + first);
        }
        for (size_t i = 0; i < N; i++) {
            element want = adamw_scalar(make_element(i, FP32), make_gradient(i, FP32), 0.5f, &adamw_attr, &s, FP32, i);
            same_bits(x[i], want.p, "p", FP32, i);
            same_bits(m[i], want.m, "m", FP32, i);
            same_bits(v[i], want.v, "v", FP32, i);
        }
    }
    free(block);
    b->close(c);
}

/* Parts that begin inside a block of noise have the bits of the whole, for any number of threads. */
static void test_adamw_of_parts_is_adamw_of_the_whole(void **state) {
    enum { N = 2 * RNG_NOISE_BLOCK + 9 * NORM_BLOCK + 77, CUT = 13 * NORM_BLOCK };
    float clip[CLIP_COUNT] = {[CLIP_FACTOR] = 0.5f};
    step_scalars s = make_scalars();
    const backend *b = backend_cpu();
    uint16_t *want = mem_alloc(4 * N * sizeof *want), *got = mem_alloc(4 * N * sizeof *got); /* p, m, v, g */
    for (size_t i = 0; i < N; i++) {
        element e = make_element(i, BF16_STOCHASTIC);
        const float all[] = {e.p, e.m, fabsf(e.v), make_gradient(i, BF16_STOCHASTIC)};
        for (size_t k = 0; k < 4; k++) want[k * N + i] = got[k * N + i] = f32_to_bf16(all[k]);
    }
    for (int whole = 1; whole >= 0; whole--) {
        backend_context *c;
        uint16_t *x = whole ? want : got;
        assert_int_equal(b->open(&c, &(backend_options){.n_threads = whole ? 1 : 5}), OK);
        for (size_t first = 0, n = whole ? N : CUT; first < N; first += n, n = N - first) {
            op_attr attr = adamw_attr;
            attr.noise_key = 77;
            attr.first_element = (int64_t)first;
            adamw_directly(b, c, &attr, DTYPE_BF16, n, x + 3 * N + first, clip, &s, x + first, x + N + first,
                           x + 2 * N + first);
        }
        b->close(c);
    }
    assert_memory_equal(got, want, 4 * N * sizeof *got);
    free(want);
    free(got);
}

/* The folded constants are still AdamW: against the textbook in double, over 50 steps of one parameter. Each step rounds
 * about 10 times; the update is at most lr (1 + weight_decay |p|) per step. */
static void test_adamw_follows_the_textbook_for_many_steps(void **state) {
    enum { STEPS = 50, N = 8 };
    element e[N];
    double p[N], m[N] = {0}, v[N] = {0};
    for (size_t i = 0; i < N; i++) e[i] = (element){.p = (float)i - 3.5f}, p[i] = e[i].p;
    for (int step = 1; step <= STEPS; step++) {
        float clip[CLIP_COUNT] = {[CLIP_FACTOR] = 0.25f}, g[N];
        step_scalars s = make_scalars();
        s.step = (uint32_t)step;
        s.lr = 0.01f;
        s.bias1 = (float)(1 - pow(adamw_attr.beta1, step));
        s.bias2 = (float)(1 - pow(adamw_attr.beta2, step));
        for (size_t i = 0; i < N; i++) g[i] = (float)(sin(step * 0.7 + (double)i) * pow(10, (double)i - 4));
        op_case *t = adamw_open(FP32, N, clip, &s, e, g);
        for (size_t i = 0; i < N; i++) {
            e[i] = (element){.p = (float)op_case_values(t, ADAMW_P)[i],
                             .m = (float)op_case_values(t, ADAMW_M)[i],
                             .v = (float)op_case_values(t, ADAMW_V)[i]};
            double grad = 0.25 * g[i], b1 = adamw_attr.beta1, b2 = adamw_attr.beta2;
            m[i] = b1 * m[i] + (1 - b1) * grad;
            v[i] = b2 * v[i] + (1 - b2) * grad * grad;
            double update = m[i] / (1 - pow(b1, step)) / (sqrt(v[i] / (1 - pow(b2, step))) + adamw_attr.eps);
            p[i] -= s.lr * (update + adamw_attr.weight_decay * p[i]);
            assert_true(fabs(e[i].p - p[i]) <= step * (U32 * fabs(p[i]) + 0.01 * 32 * U32));
        }
        op_case_close(t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accumulate_restarts_at_the_first_micro_batch_and_adds_after_it),
        cmocka_unit_test(test_accumulate_of_a_part_takes_the_noise_of_the_whole),
        cmocka_unit_test(test_accumulate_keeps_nan_and_infinity),
        cmocka_unit_test(test_accumulate_of_bf16_begins_with_a_copy),
        cmocka_unit_test(test_stochastic_rounding_is_right_on_average),
        cmocka_unit_test(test_grad_sumsq_has_the_documented_shape),
        cmocka_unit_test(test_clip_divides_by_tokens_or_weights_and_limits_the_norm),
        cmocka_unit_test(test_clip_skips_a_step_that_is_not_finite),
        cmocka_unit_test(test_adamw_gives_the_bits_of_the_scalar_loop),
        cmocka_unit_test(test_adamw_keeps_nan_and_infinity),
        cmocka_unit_test(test_adamw_rounds_half_to_even),
        cmocka_unit_test(test_adamw_changes_nothing_when_the_step_is_skipped),
        cmocka_unit_test(test_adamw_does_not_care_where_a_tensor_lies),
        cmocka_unit_test(test_adamw_of_parts_is_adamw_of_the_whole),
        cmocka_unit_test(test_adamw_follows_the_textbook_for_many_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
