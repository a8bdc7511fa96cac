/* test_unembed.c - chunked cross entropy, its gradient and the sums of a step, against loops in double.
 *
 * Where the bounds come from. The reference starts from the same rounded inputs and all sums are fp32, so losses differ
 * by the rounding of one dot product and one sum of exponentials: 64 * 2^-24 of 1 + |loss|. For 16-bit types the
 * gradient of the logits is rounded once before the two products, and a 16-bit result once more: 2 u of the norm, u
 * being 2^-8 for bf16 and 2^-11 for fp16; one u where the result is fp32. fp32 gradients: 64 * 2^-24 of the norm; dh is a sum
 * over the vocabulary, whose error grows with the root of its length beyond 4096. */
#include "op_harness.h"
#include "backend_choice.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

typedef struct dims {
    int64_t N, C, V;
} dims;

static const double FP32_BOUND = 64 * 0x1p-24;
static double dh_bound(const dims *d) { return FP32_BOUND * fmax(1, sqrt((double)d->V / 4096)); }
static double unit(dtype t) { return t == DTYPE_BF16 ? 0x1p-8 : t == DTYPE_F16 ? 0x1p-11 : 0; }

static double *new_doubles(int64_t n) { return mem_alloc((size_t)n * sizeof(double)); }

/* Mostly inside the vocabulary, the first and the last id among them; every fourth and every seventh -1, so that whoever takes
 * every 2^n-th row meets both; `outside` adds targets that the loader would have refused. */
static int32_t *targets_make(const dims *d, uint64_t seed, bool outside) {
    int32_t *t = mem_alloc((size_t)d->N * sizeof *t);
    for (int64_t i = 0; i < d->N; i++) {
        t[i] = (int32_t)rng_below(seed, (uint64_t)i, (uint64_t)d->V);
        if (i < 2) t[i] = i ? (int32_t)d->V - 1 : 0;
        if (i % 4 == 3 || i % 7 == 2) t[i] = -1;
        if (outside && i % 8 == 5) t[i] = i % 16 == 5 ? (int32_t)d->V : INT32_MIN;
    }
    return t;
}

static bool trained(const dims *d, int32_t t) { return t >= 0 && t < d->V; }

static double softcap; /* of the logits of the cases at hand; 0: none */
static double
    e5m2_factor; /* what their gradients are multiplied with before they are rounded to e5m2; 0: they are not */

/* Any of the outputs may be NULL. */
static void reference(const dims *d, const double *h, const double *w, const int32_t *targets, const double *weights,
                      double seed, double *losses, int32_t *argmax, double *dh, double *dw) {
    double *x = new_doubles(d->V), *slope = new_doubles(d->V);
    if (dh) memset(dh, 0, (size_t)(d->N * d->C) * sizeof *dh);
    if (dw) memset(dw, 0, (size_t)(d->V * d->C) * sizeof *dw);
    for (int64_t i = 0; i < d->N; i++) {
        double sum = 0;
        int64_t best = 0;
        for (int64_t v = 0; v < d->V; v++) {
            x[v] = 0;
            for (int64_t c = 0; c < d->C; c++) x[v] += h[i * d->C + c] * w[v * d->C + c];
            slope[v] = 1 - (softcap ? pow(tanh(x[v] / softcap), 2) : 0);
            if (softcap) x[v] = softcap * tanh(x[v] / softcap);
            if (x[v] > x[best]) best = v;
        }
        double top = x[best];
        double target = trained(d, targets[i]) ? x[targets[i]] : 0;
        for (int64_t v = 0; v < d->V; v++) sum += x[v] = exp(x[v] - top);
        if (argmax) argmax[i] = (int32_t)best;
        if (losses) losses[i] = trained(d, targets[i]) ? top + log(sum) - target : 0;
        if (!dh || !trained(d, targets[i])) continue;
        for (int64_t v = 0; v < d->V; v++) {
            double g = (weights ? weights[i] : 1) * seed * (x[v] / sum - (v == targets[i])) * slope[v];
            if (e5m2_factor) g = e5m2_to_f32(f32_to_e5m2((float)(g * e5m2_factor))) / e5m2_factor;
            for (int64_t c = 0; c < d->C; c++) {
                dh[i * d->C + c] += g * w[v * d->C + c];
                dw[v * d->C + c] += g * h[i * d->C + c];
            }
        }
    }
    free(x);
    free(slope);
}

static const dims SHAPES[] = {{1, 8, 3}, {7, 20, 64}, {33, 65, 1000}, {12, 16, 4096}, {9, 24, 4099}, {70, 17, 130}};

/* Less than a row, three rows, everything, and between: a backend may keep the gradient in 16 bits then. */
enum { N_CHUNKINGS = 4 };
static int64_t chunk_bytes(const dims *d, int choice) {
    const int64_t bytes[N_CHUNKINGS] = {1, 3 * 4 * d->V + 5, 4 * d->V * d->N, 3 * d->V * d->N};
    return bytes[choice];
}

static op_case *forward_case(const dims *d, dtype t, int64_t bytes, const int32_t *targets, bool argmax) {
    op_case *f = op_case_open(OP_UNEMBED_LOSS, &(op_attr){.chunk_bytes = bytes, .logits_softcap = (float)softcap});
    op_case_random(f, UNEMBED_LOSS_H, t, SHAPE(d->N, d->C), 1.0, 11);
    op_case_random(f, UNEMBED_LOSS_W, t, SHAPE(d->V, d->C), 0.5, 12);
    op_case_ints(f, UNEMBED_LOSS_TARGETS, SHAPE(d->N), targets);
    op_case_output(f, UNEMBED_LOSS_LOSSES, DTYPE_F32, SHAPE(d->N));
    if (argmax) op_case_output(f, UNEMBED_LOSS_ARGMAX, DTYPE_I32, SHAPE(d->N));
    op_case_run(f, 2);
    return f;
}

static void check_losses(const dims *d, dtype t, int chunking, bool odd) {
    int32_t *targets = targets_make(d, (uint64_t)d->V, odd), *best = mem_alloc((size_t)d->N * sizeof *best);
    op_case *f = forward_case(d, t, chunk_bytes(d, chunking), targets, odd);
    double *losses = new_doubles(d->N), largest;
    reference(d, op_case_input_values(f, UNEMBED_LOSS_H), op_case_input_values(f, UNEMBED_LOSS_W), targets, NULL, 1,
              losses, best, NULL, NULL);
    op_case_error(f, UNEMBED_LOSS_LOSSES, losses, &largest);
    if (!(largest <= FP32_BOUND))
        fail_msg("N=%d C=%d V=%d %s chunking %d: losses differ by %g", (int)d->N, (int)d->C, (int)d->V, dtype_name(t),
                 chunking, largest);
    for (int64_t r = 0; r < d->N; r++) {
        if (!trained(d, targets[r])) assert_true(op_case_values(f, UNEMBED_LOSS_LOSSES)[r] == 0);
        if (odd) assert_int_equal(op_case_ints_out(f, UNEMBED_LOSS_ARGMAX)[r], best[r]); /* masked rows too */
    }
    op_case_close(f);
    free(targets);
    free(best);
    free(losses);
}

typedef struct gradient_setup {
    dims d;
    dtype type, dw_type;
    int64_t chunk_bytes;
    bool weighted;
    float seed;
} gradient_setup;

/* Every fifth token weighs nothing: it has a loss all the same. */
static void set_weights(op_case *c, int64_t N) {
    double *weights = new_doubles(N);
    for (int64_t i = 0; i < N; i++) weights[i] = i % 5 == 4 ? 0 : 2 * rng_uniform(23, (uint64_t)i) - 1;
    op_case_floats(c, UNEMBED_LOSS_GRAD_WEIGHTS, DTYPE_F32, SHAPE(N), weights);
    free(weights);
}

static op_case *gradient_case(const gradient_setup *g, const int32_t *targets) {
    const dims *d = &g->d;
    op_case *c =
        op_case_open(OP_UNEMBED_LOSS_GRAD, &(op_attr){.chunk_bytes = g->chunk_bytes, .logits_softcap = (float)softcap});
    op_case_random(c, UNEMBED_LOSS_GRAD_H, g->type, SHAPE(d->N, d->C), 1.0, 21);
    op_case_random(c, UNEMBED_LOSS_GRAD_W, g->type, SHAPE(d->V, d->C), 0.5, 22);
    op_case_ints(c, UNEMBED_LOSS_GRAD_TARGETS, SHAPE(d->N), targets);
    if (g->weighted) set_weights(c, d->N);
    op_case_bytes(c, UNEMBED_LOSS_GRAD_SCALARS, SHAPE((int64_t)sizeof(step_scalars)), &(step_scalars){.seed = g->seed});
    op_case_output(c, UNEMBED_LOSS_GRAD_LOSSES, DTYPE_F32, SHAPE(d->N));
    op_case_output(c, UNEMBED_LOSS_GRAD_DH, g->type, SHAPE(d->N, d->C));
    op_case_output(c, UNEMBED_LOSS_GRAD_DW, g->dw_type, SHAPE(d->V, d->C));
    op_case_run(c, 2);
    return c;
}

static void check_gradient(const gradient_setup *g, bool outside) {
    const dims *d = &g->d;
    int32_t *targets = targets_make(d, 77, outside);
    op_case *c = gradient_case(g, targets);
    double *losses = new_doubles(d->N), *dh = new_doubles(d->N * d->C), *dw = new_doubles(d->V * d->C), largest;
    reference(d, op_case_input_values(c, UNEMBED_LOSS_GRAD_H), op_case_input_values(c, UNEMBED_LOSS_GRAD_W), targets,
              g->weighted ? op_case_input_values(c, UNEMBED_LOSS_GRAD_WEIGHTS) : NULL, g->seed, losses, NULL, dh, dw);
    op_case_error(c, UNEMBED_LOSS_GRAD_LOSSES, losses, &largest);
    double dh_error = op_case_error(c, UNEMBED_LOSS_GRAD_DH, dh, NULL),
           dw_error = op_case_error(c, UNEMBED_LOSS_GRAD_DW, dw, NULL), u = unit(g->type);
    if (!(largest <= FP32_BOUND && dh_error <= dh_bound(d) + 2 * u && dw_error <= FP32_BOUND + u + unit(g->dw_type)))
        fail_msg("N=%d C=%d V=%d %s dw %s chunk %lld: losses %g dh %g dw %g", (int)d->N, (int)d->C, (int)d->V,
                 dtype_name(g->type), dtype_name(g->dw_type), (long long)g->chunk_bytes, largest, dh_error, dw_error);
    for (int64_t i = 0; i < d->N; i++)
        for (int64_t j = 0; j < d->C; j++)
            if (!trained(d, targets[i])) assert_true(op_case_values(c, UNEMBED_LOSS_GRAD_DH)[i * d->C + j] == 0);
    op_case_close(c);
    free(targets);
    free(losses);
    free(dh);
    free(dw);
}

/* A test for each type: under a sanitizer of the device one of them takes minutes. Half of the cases ask for the argmax, half have
 * weights; between them the types meet every chunking of every shape either way. */
#define EVERY_CHUNKING(name, type)                                                                           \
    static void losses_and_argmax_match_in_##name(void **state) {                                            \
        (void)state;                                                                                         \
        for (size_t i = 0; i < ARRAY_LENGTH(SHAPES) * N_CHUNKINGS; i++)                                      \
            check_losses(&SHAPES[i / N_CHUNKINGS], type, i % N_CHUNKINGS, (i + i / N_CHUNKINGS + type) % 2); \
    }                                                                                                        \
    static void gradients_match_for_every_chunking_in_##name(void **state) {                                 \
        (void)state;                                                                                         \
        for (size_t i = 0; i < ARRAY_LENGTH(SHAPES) * N_CHUNKINGS; i++) {                                    \
            const dims *d = &SHAPES[i / N_CHUNKINGS];                                                        \
            bool odd = (i + i / N_CHUNKINGS + type) % 2;                                                     \
            gradient_setup g = {*d, type, DTYPE_F32, chunk_bytes(d, i % N_CHUNKINGS), odd, 1.0f};            \
            check_gradient(&g, !odd);                                                                        \
        }                                                                                                    \
    }
EVERY_CHUNKING(fp32, DTYPE_F32)
EVERY_CHUNKING(bf16, DTYPE_BF16)
EVERY_CHUNKING(fp16, DTYPE_F16)
#undef EVERY_CHUNKING

static void check_wide(dims d, dtype type, dtype dw_type, int chunking, bool weighted, bool outside) {
    gradient_setup g = {d, type, dw_type, chunk_bytes(&d, chunking), weighted, 1.0f};
    check_gradient(&g, outside);
}

/* A GPU may hold a row of so many logits in the shared memory of 2, 4 or 8 blocks that stay and take rows in turn: more rows
 * than it takes at once, and few; rows whose end is no multiple of four; the shortest such row, and one that is too long. A
 * test each: under a sanitizer of the device one of them takes minutes. */
#define WIDE(name, N, V, ...)                              \
    static void gradients_match_for_##name(void **state) { \
        (void)state;                                       \
        check_wide((dims){N, 8, V}, __VA_ARGS__);          \
    }
WIDE(45057_fp32, 6, 45057, DTYPE_F32, DTYPE_F32, 1, true, false)
WIDE(32003_bf16_of_many_rows, 400, 32003, DTYPE_BF16, DTYPE_F32, 2, true, true)
WIDE(32003_bf16_alone, 9, 32003, DTYPE_BF16, DTYPE_BF16, 3, true, false)
WIDE(50257_fp16, 160, 50257, DTYPE_F16, DTYPE_F32, 2, false, true)
WIDE(151936_fp32, 9, 151936, DTYPE_F32, DTYPE_F32, 2, true, false)
WIDE(151936_bf16_alone, 9, 151936, DTYPE_BF16, DTYPE_BF16, 1, true, true)
WIDE(151936_bf16_of_many_rows, 100, 151936, DTYPE_BF16, DTYPE_F32, 2, true, false)
WIDE(200003_fp16, 5, 200003, DTYPE_F16, DTYPE_F32, 0, true, false)
WIDE(200003_bf16, 56, 200003, DTYPE_BF16, DTYPE_F32, 2, true, true)
WIDE(370000_bf16, 5, 370000, DTYPE_BF16, DTYPE_F32, 2, true, false)

/* bf16_sr keeps no fp32 gradient: one chunk writes it directly, more chunks take the second walk over the vocabulary. */
static void bf16_weight_gradient_is_rounded_once(void **state) {
    (void)state;
    for (size_t s = 0; s < ARRAY_LENGTH(SHAPES); s++)
        for (int choice = 0; choice < N_CHUNKINGS; choice++) {
            gradient_setup g = {SHAPES[s], DTYPE_BF16, DTYPE_BF16, chunk_bytes(&SHAPES[s], choice), true, 1.0f};
            check_gradient(&g, true);
        }
}

/* fp16 with a loss scale of 2^12: everything is 2^12 times larger, nothing else changes. */
static void seed_scales_the_gradient(void **state) {
    (void)state;
    gradient_setup g = {{33, 65, 1000}, DTYPE_F16, DTYPE_F32, 40000, true, 0x1p12f};
    check_gradient(&g, false);
    g.type = DTYPE_F32;
    check_gradient(&g, false);
}

/* (f(x + e) - f(x - e)) / 2e of the loop in double, f = sum of weight * loss: truncation e^2 and rounding 1e-11 are far
 * under fp32's own error. */
static void check_finite_differences(void) {
    gradient_setup g = {{9, 10, 50}, DTYPE_F32, DTYPE_F32, 800, true, 1.0f};
    const dims *d = &g.d;
    int32_t *targets = targets_make(d, 5, false);
    op_case *c = gradient_case(&g, targets);
    double *x[2] = {op_case_input_values(c, UNEMBED_LOSS_GRAD_H), op_case_input_values(c, UNEMBED_LOSS_GRAD_W)},
           *weights = op_case_input_values(c, UNEMBED_LOSS_GRAD_WEIGHTS);
    double *losses = new_doubles(d->N), e = 1e-5;
    for (int n = 0; n < 80; n++) {
        int which = n % 2;
        int64_t at = (int64_t)rng_below(3, (uint64_t)n, (uint64_t)((which ? d->V : d->N) * d->C));
        double kept = x[which][at], f[2] = {0};
        for (int side = 0; side < 2; side++) {
            x[which][at] = kept + (side ? e : -e);
            reference(d, x[0], x[1], targets, NULL, 1, losses, NULL, NULL, NULL);
            for (int64_t i = 0; i < d->N; i++) f[side] += weights[i] * losses[i];
        }
        x[which][at] = kept;
        double slope = (f[1] - f[0]) / (2 * e),
               dx = op_case_values(c, which ? UNEMBED_LOSS_GRAD_DW : UNEMBED_LOSS_GRAD_DH)[at];
        if (!(fabs(dx - slope) <= 1e-5 * (1 + fabs(slope))))
            fail_msg("%s element %d: gradient %.8g, slope %.8g", which ? "dw" : "dh", (int)at, dx, slope);
    }
    op_case_close(c);
    free(targets);
    free(losses);
}

static void gradient_matches_finite_differences(void **state) {
    (void)state;
    check_finite_differences();
}

/* A cap under most logits, so that every one is bent: losses, and gradients in one piece and in chunks. */
static void a_soft_cap_bends_logits_and_their_gradients(void **state) {
    (void)state;
    softcap = 1.5;
    for (size_t t = 0; t < 2; t++)
        for (int k = 0; k < N_CHUNKINGS; k++) {
            dtype type = t ? DTYPE_BF16 : DTYPE_F32;
            check_losses(&SHAPES[2], type, k, false);
            gradient_setup g = {SHAPES[2], type, type, chunk_bytes(&SHAPES[2], k), true, 1.0f};
            check_gradient(&g, false);
        }
    check_finite_differences();
    softcap = 0;
}

/* ---- in 8 bits ------------------------------------------------------------------------------------------------------ */

static double *turned(const double *x, int64_t rows, int64_t columns) {
    double *t = new_doubles(rows * columns);
    for (int64_t i = 0; i < rows * columns; i++) t[i % columns * rows + i / columns] = x[i];
    return t;
}

static double largest_logit(const dims *d, const double *h, const double *w) {
    double most = 0;
    for (int64_t i = 0; i < d->N * d->V; i++) {
        double logit = 0;
        for (int64_t k = 0; k < d->C; k++) logit += h[i / d->V * d->C + k] * w[i % d->V * d->C + k];
        most = fmax(most, fabs(logit));
    }
    return most;
}

/* h and w in e4m3 with scales, and their transposes; no dw where dw_type is that of the codes. */
static op_case *gradient8_case(const gradient_setup *g, const int32_t *targets, double h_scale, double w_scale) {
    const dims *d = &g->d;
    bool has_dw = g->dw_type != DTYPE_F8E4M3;
    op_case *c = op_case_open(OP_UNEMBED8_LOSS_GRAD,
                              &(op_attr){.chunk_bytes = g->chunk_bytes, .logits_softcap = (float)softcap});
    op_case_random(c, UNEMBED8_LOSS_GRAD_H, DTYPE_F8E4M3, SHAPE(d->N, d->C), 60, 21);
    op_case_random(c, UNEMBED8_LOSS_GRAD_W, DTYPE_F8E4M3, SHAPE(d->V, d->C), 90, 22);
    double *h = turned(op_case_input_values(c, UNEMBED8_LOSS_GRAD_H), d->N, d->C);
    double *w = turned(op_case_input_values(c, UNEMBED8_LOSS_GRAD_W), d->V, d->C);
    if (has_dw) op_case_floats(c, UNEMBED8_LOSS_GRAD_H_TURNED, DTYPE_F8E4M3, SHAPE(d->C, d->N), h);
    op_case_floats(c, UNEMBED8_LOSS_GRAD_W_TURNED, DTYPE_F8E4M3, SHAPE(d->C, d->V), w);
    op_case_floats(c, UNEMBED8_LOSS_GRAD_H_SCALE, DTYPE_F32, SHAPE(1), &h_scale);
    op_case_floats(c, UNEMBED8_LOSS_GRAD_W_SCALE, DTYPE_F32, SHAPE(1), &w_scale);
    op_case_ints(c, UNEMBED8_LOSS_GRAD_TARGETS, SHAPE(d->N), targets);
    if (g->weighted) set_weights(c, d->N);
    op_case_bytes(c, UNEMBED8_LOSS_GRAD_SCALARS, SHAPE((int64_t)sizeof(step_scalars)),
                  &(step_scalars){.seed = g->seed});
    op_case_output(c, UNEMBED8_LOSS_GRAD_LOSSES, DTYPE_F32, SHAPE(d->N));
    op_case_output(c, UNEMBED8_LOSS_GRAD_DH, DTYPE_BF16, SHAPE(d->N, d->C));
    if (has_dw) op_case_output(c, UNEMBED8_LOSS_GRAD_DW, g->dw_type, SHAPE(d->V, d->C));
    op_case_run(c, 2);
    free(h);
    free(w);
    return c;
}

/* The gradient of the logits is rounded where the reference rounds it. What is left: fp32 sums, or on a GPU the 14 bits or so that
 * tensor cores keep of a logit, of the sum of sizes, which is below 32 in these cases, and its rounding to fp16, which moves
 * the target's and the sum of all by 2^-11 of the largest each, and the cap by as much again; a gradient so near the middle of two
 * e5m2 numbers that it goes to the other, an eighth of it, one in some hundred; the rounding of results. */
static void check_gradient8(const gradient_setup *g) {
    const dims *d = &g->d;
    bool gpu = backend_under_test()->discrete;
    double h_scale = 1.0 / 64, w_scale = 1.0 / 256, bound = fabs((double)g->seed), most = 0, largest;
    int32_t *targets = targets_make(d, 77, true);
    op_case *c = gradient8_case(g, targets, h_scale, w_scale);
    double *h = op_case_input_values(c, UNEMBED8_LOSS_GRAD_H), *w = op_case_input_values(c, UNEMBED8_LOSS_GRAD_W);
    double *weights = g->weighted ? op_case_input_values(c, UNEMBED8_LOSS_GRAD_WEIGHTS) : NULL;
    for (int64_t i = 0; i < d->N && weights; i++) most = fmax(most, fabs(weights[i]));
    if (weights) bound = (float)most * (float)bound;
    double *losses = new_doubles(d->N), *dh = new_doubles(d->N * d->C), *dw = new_doubles(d->V * d->C);
    for (int64_t i = 0; i < d->N * d->C; i++) h[i] *= h_scale;
    for (int64_t i = 0; i < d->V * d->C; i++) w[i] *= w_scale;
    e5m2_factor = 0x1p15 / bound;
    reference(d, h, w, targets, weights, g->seed, losses, NULL, dh, dw);
    e5m2_factor = 0;
    op_case_error(c, UNEMBED8_LOSS_GRAD_LOSSES, losses, &largest);
    bool has_dw = g->dw_type != DTYPE_F8E4M3;
    double limit = gpu ? 0x1p-6 : 0x1p-7, dh_error = op_case_error(c, UNEMBED8_LOSS_GRAD_DH, dh, NULL),
           dw_error = has_dw ? op_case_error(c, UNEMBED8_LOSS_GRAD_DW, dw, NULL) : 0;
    double losses_bound = gpu ? 32 * 0x1p-13 + 4 * 0x1p-11 * largest_logit(d, h, w) : FP32_BOUND;
    if (!(largest <= losses_bound && dh_error <= limit && dw_error <= limit))
        fail_msg("N=%d C=%d V=%d dw %s chunk %lld: losses %g dh %g dw %g", (int)d->N, (int)d->C, (int)d->V,
                 dtype_name(g->dw_type), (long long)g->chunk_bytes, largest, dh_error, dw_error);
    const double *found = op_case_values(c, UNEMBED8_LOSS_GRAD_DH);
    for (int64_t i = 0; i < d->N * d->C; i++)
        if (!trained(d, targets[i / d->C])) assert_true(found[i] == 0);
    op_case_close(c);
    free(targets);
    free(losses);
    free(dh);
    free(dw);
}

/* One chunk and several, several of a group, dw summed over groups, in blocks of the vocabulary, from a transpose that is kept, and not asked for; sides
 * that are tiles of a GPU's kernels and such as are not. */
static void gradients_in_8_bits_match_for_every_chunking(void **state) {
    (void)state;
    static const dims shapes[] = {{16, 16, 16}, {48, 64, 1008}, {256, 64, 640}, {272, 32, 400}, {2064, 16, 144}};
    static const dtype results[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F8E4M3};
    for (size_t i = 0; i < ARRAY_LENGTH(shapes); i++)
        for (size_t k = 0; k < ARRAY_LENGTH(results); k++) {
            int64_t logits = shapes[i].N * shapes[i].V, bytes[] = {1, 8 * logits, 2 * logits, 3 * logits};
            for (size_t b = (i + k) % 2; b < ARRAY_LENGTH(bytes); b += 2) {
                gradient_setup g = {shapes[i], DTYPE_F8E4M3, results[k], bytes[b], (i + b) % 4 < 2, b ? 0.5f : 1.0f};
                check_gradient8(&g);
            }
        }
    softcap = 1.5;
    gradient_setup g = {shapes[1], DTYPE_F8E4M3, DTYPE_F32, 100000, true, 1.0f};
    check_gradient8(&g);
    softcap = 0;
}

/* A weight that is no number reaches every gradient, so that the step is found and skipped. */
static void a_weight_that_is_not_finite_reaches_gradients_in_8_bits(void **state) {
    (void)state;
    gradient_setup g = {{16, 16, 32}, DTYPE_F8E4M3, DTYPE_F32, 1 << 20, false, INFINITY};
    int32_t *targets = targets_make(&g.d, 77, false);
    op_case *c = gradient8_case(&g, targets, 1, 1);
    assert_false(isfinite(op_case_values(c, UNEMBED8_LOSS_GRAD_DH)[0]));
    assert_false(isfinite(op_case_values(c, UNEMBED8_LOSS_GRAD_DW)[0]));
    op_case_close(c);
    free(targets);
}

static void nothing_trained_on_gives_zeros(void **state) {
    (void)state;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        gradient_setup g = {{10, 8, 40}, bf16 ? DTYPE_BF16 : DTYPE_F32, bf16 ? DTYPE_BF16 : DTYPE_F32, 500, false,
                            1.0f};
        int32_t targets[10];
        for (int i = 0; i < 10; i++) targets[i] = -1;
        op_case *c = gradient_case(&g, targets);
        for (int i = 0; i < 10; i++) assert_true(op_case_values(c, UNEMBED_LOSS_GRAD_LOSSES)[i] == 0);
        for (int i = 0; i < 80; i++) assert_true(op_case_values(c, UNEMBED_LOSS_GRAD_DH)[i] == 0);
        for (int i = 0; i < 320; i++) assert_true(op_case_values(c, UNEMBED_LOSS_GRAD_DW)[i] == 0);
        op_case_close(c);

        /* Only the last chunk is trained on: what the skipped ones left in dw must not be there. */
        targets[9] = 7;
        c = gradient_case(&g, targets);
        double losses[10], dh[80], dw[320];
        reference(&g.d, op_case_input_values(c, UNEMBED_LOSS_GRAD_H), op_case_input_values(c, UNEMBED_LOSS_GRAD_W),
                  targets, NULL, 1, losses, NULL, dh, dw);
        double limit = FP32_BOUND + 2 * unit(g.type);
        assert_true(op_case_error(c, UNEMBED_LOSS_GRAD_DH, dh, NULL) <= limit &&
                    op_case_error(c, UNEMBED_LOSS_GRAD_DW, dw, NULL) <= limit);
        op_case_close(c);
    }
}

/* One row of logits given by hand: h = e_0, so logit v is w[v][0]. */
static op_case *logits_case(const double *logits, int64_t V, int32_t target) {
    double *h = new_doubles(8), *w = new_doubles(V * 8);
    h[0] = 1;
    for (int64_t v = 0; v < V; v++) w[v * 8] = logits[v];
    op_case *f = op_case_open(OP_UNEMBED_LOSS, &(op_attr){.chunk_bytes = 1 << 20});
    op_case_floats(f, UNEMBED_LOSS_H, DTYPE_F32, SHAPE(1, 8), h);
    op_case_floats(f, UNEMBED_LOSS_W, DTYPE_F32, SHAPE(V, 8), w);
    op_case_ints(f, UNEMBED_LOSS_TARGETS, SHAPE(1), &target);
    op_case_output(f, UNEMBED_LOSS_LOSSES, DTYPE_F32, SHAPE(1));
    op_case_output(f, UNEMBED_LOSS_ARGMAX, DTYPE_I32, SHAPE(1));
    op_case_run(f, 1);
    free(h);
    free(w);
    return f;
}

static void argmax_takes_the_lowest_of_equals(void **state) {
    (void)state;
    static const int32_t places[][2] = {{3, 4}, {0, 9000}, {4095, 4096}, {4096, 8192}, {8999, 8999}};
    double *x = new_doubles(9001);
    for (size_t i = 0; i < ARRAY_LENGTH(places); i++)
        for (int target = -1; target < 1; target++) {
            for (int64_t v = 0; v < 9001; v++) x[v] = -1 - (double)(v % 7);
            x[places[i][0]] = x[places[i][1]] = 2;
            op_case *f = logits_case(x, 9001, target);
            assert_int_equal(op_case_ints_out(f, UNEMBED_LOSS_ARGMAX)[0], places[i][0]);
            op_case_close(f);
        }
    free(x);
}

/* A logit of -inf weighs nothing, also when it fills a whole segment; as the target it costs infinitely much. */
static void minus_infinity_is_a_weight_of_zero(void **state) {
    (void)state;
    int64_t V = 9000;
    double *x = new_doubles(V), sum = 0;
    for (int64_t v = 0; v < V; v++) {
        x[v] = v < 4096 || v % 3 == 0 ? -INFINITY : (double)(v % 5);
        sum += exp(x[v]);
    }
    op_case *f = logits_case(x, V, 4097);
    assert_true(fabs(op_case_values(f, UNEMBED_LOSS_LOSSES)[0] - (log(sum) - x[4097])) < FP32_BOUND * log(sum));
    assert_int_equal(op_case_ints_out(f, UNEMBED_LOSS_ARGMAX)[0], 4099);
    op_case_close(f);
    f = logits_case(x, V, 0);
    assert_true(op_case_values(f, UNEMBED_LOSS_LOSSES)[0] == INFINITY);
    op_case_close(f);
    free(x);
}

/* One row of logits given by hand: h = e_0, so the gradient of logit v is dw[v][0]. */
static void minus_infinity_has_no_gradient(void **state) {
    (void)state;
    static const int64_t sizes[] = {9000, 151936};
    for (size_t i = 0; i < ARRAY_LENGTH(sizes); i++) {
        int64_t V = sizes[i];
        int32_t target = (int32_t)V - 1;
        double *h = new_doubles(8), *w = new_doubles(V * 8), sum = 0;
        h[0] = 1;
        for (int64_t v = 0; v < V; v++) {
            w[v * 8] = v < V / 2 || v % 3 == 0 ? -INFINITY : (double)(v % 5);
            if (v == target) w[v * 8] = 3;
            sum += exp(w[v * 8]);
        }
        op_case *c = op_case_open(OP_UNEMBED_LOSS_GRAD, &(op_attr){.chunk_bytes = 1 << 20});
        op_case_floats(c, UNEMBED_LOSS_GRAD_H, DTYPE_F32, SHAPE(1, 8), h);
        op_case_floats(c, UNEMBED_LOSS_GRAD_W, DTYPE_F32, SHAPE(V, 8), w);
        op_case_ints(c, UNEMBED_LOSS_GRAD_TARGETS, SHAPE(1), &target);
        op_case_bytes(c, UNEMBED_LOSS_GRAD_SCALARS, SHAPE((int64_t)sizeof(step_scalars)), &(step_scalars){.seed = 1});
        op_case_output(c, UNEMBED_LOSS_GRAD_LOSSES, DTYPE_F32, SHAPE(1));
        op_case_output(c, UNEMBED_LOSS_GRAD_DH, DTYPE_F32, SHAPE(1, 8)); /* 0 * -inf: not looked at */
        op_case_output(c, UNEMBED_LOSS_GRAD_DW, DTYPE_F32, SHAPE(V, 8));
        op_case_run(c, 2);
        const double *dw = op_case_values(c, UNEMBED_LOSS_GRAD_DW);
        assert_true(fabs(op_case_values(c, UNEMBED_LOSS_GRAD_LOSSES)[0] - (log(sum) - 3)) <= FP32_BOUND * log(sum));
        for (int64_t v = 0; v < V; v++) {
            double g = exp(w[v * 8]) / sum, found = dw[v * 8] + (v == target);
            if (!(fabs(found - g) <= (v == target ? FP32_BOUND : FP32_BOUND * g)))
                fail_msg("V=%d: gradient of logit %d is %g, not %g", (int)V, (int)v, found, g);
        }
        op_case_close(c);
        free(h);
        free(w);
    }
}

static void nan_and_infinity_reach_the_loss(void **state) {
    (void)state;
    int64_t V = 5000;
    double *x = new_doubles(V);
    for (int bad = 0; bad < 2; bad++)
        for (int64_t at = 0; at < V; at += 1666) {
            for (int64_t v = 0; v < V; v++) x[v] = (double)(v % 3);
            x[at] = bad ? INFINITY : NAN;
            op_case *f = logits_case(x, V, 7);
            assert_true(isnan(op_case_values(f, UNEMBED_LOSS_LOSSES)[0]));
            op_case_close(f);
        }
    free(x);
}

/* h of token 2 has a NaN: its loss and dh have one, those of the others do not, and dw does. */
static void nan_stays_in_its_row(void **state) {
    (void)state;
    enum { N = 6, C = 8 };
    static const int64_t sizes[] = {30, 151936};
    for (size_t s = 0; s < ARRAY_LENGTH(sizes); s++) {
        int64_t V = sizes[s];
        int32_t targets[N] = {1, 2, 3, 4, 5, 6};
        double h[N * C], *w = new_doubles(V * C);
        for (int i = 0; i < N * C; i++) h[i] = i == 17 ? NAN : 0.1 * i - 2;
        for (int64_t i = 0; i < V * C; i++) w[i] = 0.01 * (double)(i % 240) - 1;
        op_case *c = op_case_open(OP_UNEMBED_LOSS_GRAD, &(op_attr){.chunk_bytes = 8 * V});
        op_case_floats(c, UNEMBED_LOSS_GRAD_H, DTYPE_F32, SHAPE(N, C), h);
        op_case_floats(c, UNEMBED_LOSS_GRAD_W, DTYPE_F32, SHAPE(V, C), w);
        op_case_ints(c, UNEMBED_LOSS_GRAD_TARGETS, SHAPE(N), targets);
        op_case_bytes(c, UNEMBED_LOSS_GRAD_SCALARS, SHAPE((int64_t)sizeof(step_scalars)), &(step_scalars){.seed = 1});
        op_case_output(c, UNEMBED_LOSS_GRAD_LOSSES, DTYPE_F32, SHAPE(N));
        op_case_output(c, UNEMBED_LOSS_GRAD_DH, DTYPE_F32, SHAPE(N, C));
        op_case_output(c, UNEMBED_LOSS_GRAD_DW, DTYPE_F32, SHAPE(V, C));
        op_case_run(c, 2);
        for (int i = 0; i < N; i++) {
            assert_true(isnan(op_case_values(c, UNEMBED_LOSS_GRAD_LOSSES)[i]) == (i == 2));
            assert_true(isnan(op_case_values(c, UNEMBED_LOSS_GRAD_DH)[i * C]) == (i == 2));
        }
        assert_true(isnan(op_case_values(c, UNEMBED_LOSS_GRAD_DW)[0]));
        op_case_close(c);
        free(w);
    }
}

/* The point of the op: scratch follows the budget, whatever N and V are. */
static void scratch_follows_the_budget(void **state) {
    (void)state;
    static const dtype dw_types[] = {DTYPE_F32, DTYPE_BF16};
    for (size_t i = 0; i < ARRAY_LENGTH(dw_types); i++)
        for (int64_t budget = 8 << 20; budget <= 64 << 20; budget *= 8) {
            program p;
            program_init(&p);
            int64_t N = 16384, C = 512, V = 150000;
            op *o = program_emit(&p, OP_UNEMBED_LOSS_GRAD, SECTION_MICRO);
            o->attr.chunk_bytes = budget;
            op_in(o, UNEMBED_LOSS_GRAD_H, program_persistent(&p, "h", DTYPE_BF16, SHAPE(N, C), ROLE_INPUT));
            op_in(o, UNEMBED_LOSS_GRAD_W, program_persistent(&p, "w", DTYPE_BF16, SHAPE(V, C), ROLE_PARAM));
            op_out(o, UNEMBED_LOSS_GRAD_DH, program_persistent(&p, "dh", DTYPE_BF16, SHAPE(N, C), ROLE_GRAD));
            op_out(o, UNEMBED_LOSS_GRAD_DW, program_persistent(&p, "dw", dw_types[i], SHAPE(V, C), ROLE_GRAD));
            size_t n = backend_cpu()->work_bytes(&p, o, 4);
            assert_true(n >= (size_t)budget / 2);
            assert_true(n <= (size_t)budget + (24u << 20)); /* the products pack into scratch of their own */
            program_fini(&p);
        }
}

static void sums_of_the_step_add_up(void **state) {
    (void)state;
    enum { N = 5 };
    const double losses[N] = {1.5, 2.25, 100, 0.5, 4}, weights[N] = {1, 0.5, 7, 0, -2},
                 before[SUM_COUNT] = {10, 20, 30, 40};
    const int32_t targets[N] = {3, 0, -1, 9, 2};
    for (int i = 0; i < 4; i++) {
        bool weighted = i % 2;
        step_scalars s = {.micro = (uint32_t)(i / 2)};
        op_case *c = op_case_open(OP_LOSS_REDUCE, &(op_attr){0});
        op_case_floats(c, LOSS_REDUCE_LOSSES, DTYPE_F32, SHAPE(N), losses);
        op_case_ints(c, LOSS_REDUCE_TARGETS, SHAPE(N), targets);
        if (weighted) op_case_floats(c, LOSS_REDUCE_WEIGHTS, DTYPE_F32, SHAPE(N), weights);
        op_case_bytes(c, LOSS_REDUCE_SCALARS, SHAPE((int64_t)sizeof s), &s);
        op_case_output_floats(c, LOSS_REDUCE_SUMS, DTYPE_F64, SHAPE(SUM_COUNT), before);
        op_case_run(c, 2);
        const double *sums = op_case_values(c, LOSS_REDUCE_SUMS);
        const double part[SUM_COUNT] = {weighted ? -5.375 : 8.25, 4, weighted ? -0.5 : 4, 8.25};
        for (int j = 0; j < SUM_COUNT; j++) assert_true(sums[j] == part[j] + (s.micro ? before[j] : 0));
        op_case_close(c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_and_argmax_match_in_fp32),
        cmocka_unit_test(losses_and_argmax_match_in_bf16),
        cmocka_unit_test(losses_and_argmax_match_in_fp16),
        cmocka_unit_test(gradients_match_for_every_chunking_in_fp32),
        cmocka_unit_test(gradients_match_for_every_chunking_in_bf16),
        cmocka_unit_test(gradients_match_for_every_chunking_in_fp16),
        cmocka_unit_test(gradients_match_for_45057_fp32),
        cmocka_unit_test(gradients_match_for_32003_bf16_of_many_rows),
        cmocka_unit_test(gradients_match_for_32003_bf16_alone),
        cmocka_unit_test(gradients_match_for_50257_fp16),
        cmocka_unit_test(gradients_match_for_151936_fp32),
        cmocka_unit_test(gradients_match_for_151936_bf16_alone),
        cmocka_unit_test(gradients_match_for_151936_bf16_of_many_rows),
        cmocka_unit_test(gradients_match_for_200003_fp16),
        cmocka_unit_test(gradients_match_for_200003_bf16),
        cmocka_unit_test(gradients_match_for_370000_bf16),
        cmocka_unit_test(bf16_weight_gradient_is_rounded_once),
        cmocka_unit_test(seed_scales_the_gradient),
        cmocka_unit_test(gradient_matches_finite_differences),
        cmocka_unit_test(a_soft_cap_bends_logits_and_their_gradients),
        cmocka_unit_test(gradients_in_8_bits_match_for_every_chunking),
        cmocka_unit_test(a_weight_that_is_not_finite_reaches_gradients_in_8_bits),
        cmocka_unit_test(nothing_trained_on_gives_zeros),
        cmocka_unit_test(argmax_takes_the_lowest_of_equals),
        cmocka_unit_test(minus_infinity_is_a_weight_of_zero),
        cmocka_unit_test(minus_infinity_has_no_gradient),
        cmocka_unit_test(nan_and_infinity_reach_the_loss),
        cmocka_unit_test(nan_stays_in_its_row),
        cmocka_unit_test(scratch_follows_the_budget),
        cmocka_unit_test(sums_of_the_step_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
