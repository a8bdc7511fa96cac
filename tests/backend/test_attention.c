/* test_attention.c - attention forward and backward against a loop in double, on every instruction set of this machine.
 *
 * Where the bounds come from. Outputs are compared by ||out - ref|| / ||ref||, the reference starting from the same
 * rounded inputs. 16-bit results are rounded once, so the error stays under half a unit in the last place: 2^-8 for
 * bf16, 2^-11 for fp16. In fp32 the scores dominate: |s| reaches about 16 here, a dot product leaves a few 2^-24 |s| and
 * the exponential turns that into a relative error, hence 64 * 2^-24. */
#include "backend/cpu/attention.h"
#include "backend_choice.h"
#include "op_harness.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

typedef struct dims {
    int64_t B, T;
    int H, G, D;
} dims;

static double bound(dtype t) { return t == DTYPE_BF16 ? 0x1p-8 : t == DTYPE_F16 ? 0x1p-11 : 64 * 0x1p-24; }

/* What the cases at hand have beside their shapes; none of it unless a test says so. */
static struct {
    int64_t window;
    double softcap;
} limits;

static int64_t first_seen(int64_t doc_start, int64_t query) {
    return limits.window ? MAX(doc_start, query + 1 - limits.window) : doc_start;
}
static double capped(double score) { return limits.softcap ? limits.softcap * tanh(score / limits.softcap) : score; }
static double cap_slope(double score) {
    double t = limits.softcap ? tanh(score / limits.softcap) : 0;
    return 1 - t * t;
}

static op_attr attr_of(const dims *d) {
    return (op_attr){.batch = d->B,
                     .seq_len = d->T,
                     .n_heads = d->H,
                     .n_kv_heads = d->G,
                     .head_dim = d->D,
                     .scale = (float)(1 / sqrt((double)d->D)),
                     .window = limits.window,
                     .softcap = (float)limits.softcap};
}

/* Documents of random length, many of length 1 and some longer than a block; never across rows. */
static int32_t *documents(const dims *d, uint64_t seed) {
    int32_t *doc_start = mem_alloc((size_t)(d->B * d->T) * sizeof *doc_start);
    uint64_t n = 0;
    for (int64_t b = 0; b < d->B; b++)
        for (int64_t t = 0, start = 0, left = 0; t < d->T; t++, left--) {
            if (left == 0) {
                static const int64_t longest[] = {1, 4, 30, 200};
                left = 1 + (int64_t)rng_below(seed, n, (uint64_t)longest[rng_below(seed + 1, n, 4)]);
                start = t;
                n++;
            }
            doc_start[b * d->T + t] = (int32_t)start;
        }
    return doc_start;
}

static int32_t *one_document(const dims *d) { return mem_alloc((size_t)(d->B * d->T) * sizeof(int32_t)); }

/* ---- the loops in double -------------------------------------------------------------------------------------- */

static void reference_forward(const dims *d, const double *qkv, const int32_t *doc_start, double scale, double *y,
                              double *lse) {
    int64_t Q = (int64_t)(d->H + 2 * d->G) * d->D, Y = (int64_t)d->H * d->D;
    double *p = mem_alloc((size_t)d->T * sizeof *p);
    for (int64_t b = 0; b < d->B; b++)
        for (int h = 0; h < d->H; h++)
            for (int64_t i = 0; i < d->T; i++) {
                int g = h / (d->H / d->G);
                const double *q = qkv + (b * d->T + i) * Q + h * d->D;
                double top = -INFINITY, sum = 0, *out = y + (b * d->T + i) * Y + h * d->D;
                for (int64_t j = first_seen(doc_start[b * d->T + i], i); j <= i; j++) {
                    const double *k = qkv + (b * d->T + j) * Q + (d->H + g) * d->D;
                    p[j] = 0;
                    for (int c = 0; c < d->D; c++) p[j] += q[c] * k[c] * scale;
                    p[j] = capped(p[j]);
                    top = fmax(top, p[j]);
                }
                for (int64_t j = first_seen(doc_start[b * d->T + i], i); j <= i; j++) sum += exp(p[j] - top);
                if (lse) lse[(b * d->H + h) * d->T + i] = top + log(sum);
                for (int c = 0; c < d->D; c++) out[c] = 0;
                for (int64_t j = first_seen(doc_start[b * d->T + i], i); j <= i; j++) {
                    const double *v = qkv + (b * d->T + j) * Q + (d->H + d->G + g) * d->D;
                    for (int c = 0; c < d->D; c++) out[c] += exp(p[j] - top) / sum * v[c];
                }
            }
    free(p);
}

/* y is the one the kernel was given, rounded as it was. */
static void reference_backward(const dims *d, const double *qkv, const int32_t *doc_start, double scale,
                               const double *y, const double *lse, const double *dy, double *dqkv) {
    int64_t Q = (int64_t)(d->H + 2 * d->G) * d->D, Y = (int64_t)d->H * d->D;
    memset(dqkv, 0, (size_t)(d->B * d->T * Q) * sizeof *dqkv);
    for (int64_t b = 0; b < d->B; b++)
        for (int h = 0; h < d->H; h++)
            for (int64_t i = 0; i < d->T; i++) {
                int g = h / (d->H / d->G);
                int64_t at_q = (b * d->T + i) * Q + h * d->D, at_y = (b * d->T + i) * Y + h * d->D;
                double delta = 0;
                for (int c = 0; c < d->D; c++) delta += dy[at_y + c] * y[at_y + c];
                for (int64_t j = first_seen(doc_start[b * d->T + i], i); j <= i; j++) {
                    int64_t at_k = (b * d->T + j) * Q + (d->H + g) * d->D, at_v = at_k + d->G * d->D;
                    double s = 0, dp = 0;
                    for (int c = 0; c < d->D; c++) s += qkv[at_q + c] * qkv[at_k + c] * scale;
                    for (int c = 0; c < d->D; c++) dp += dy[at_y + c] * qkv[at_v + c];
                    double p = exp(capped(s) - lse[(b * d->H + h) * d->T + i]);
                    double ds = p * (dp - delta) * cap_slope(s) * scale;
                    for (int c = 0; c < d->D; c++) {
                        dqkv[at_q + c] += ds * qkv[at_k + c];
                        dqkv[at_k + c] += ds * qkv[at_q + c];
                        dqkv[at_v + c] += p * dy[at_y + c];
                    }
                }
            }
}

/* ---- one case both ways ---------------------------------------------------------------------------------------- */

static void check_error(const char *what, const dims *d, dtype t, op_case *c, int output, const double *reference,
                        double limit) {
    double e = op_case_error(c, output, reference, NULL);
    if (!(e <= limit))
        fail_msg("%s %s %s B=%d T=%d H=%d G=%d D=%d window %d softcap %g: error %g over %g", what, dtype_name(t),
                 attention_functions_name(t, d->D), (int)d->B, (int)d->T, d->H, d->G, d->D, (int)limits.window,
                 limits.softcap, e, limit);
}

static void check(const dims *d, dtype t, const int32_t *doc_start, double size, uint64_t seed) {
    int64_t N = d->B * d->T, Q = (int64_t)(d->H + 2 * d->G) * d->D, Y = (int64_t)d->H * d->D;
    op_attr a = attr_of(d);
    double *y = mem_alloc((size_t)(N * Y) * 8), *lse = mem_alloc((size_t)(d->B * d->H * d->T) * 8);
    double *dqkv = mem_alloc((size_t)(N * Q) * 8);

    op_case *f = op_case_open(OP_ATTENTION, &a);
    op_case_random(f, ATTENTION_QKV, t, SHAPE(N, Q), size, seed);
    op_case_ints(f, ATTENTION_DOC_START, SHAPE(N), doc_start);
    op_case_output(f, ATTENTION_Y, t, SHAPE(N, Y));
    op_case_output(f, ATTENTION_LSE, DTYPE_F32, SHAPE(d->B, d->H, d->T));
    op_case_run(f, 2);
    reference_forward(d, op_case_input_values(f, ATTENTION_QKV), doc_start, a.scale, y, lse);
    check_error("y", d, t, f, ATTENTION_Y, y, bound(t));
    check_error("lse", d, t, f, ATTENTION_LSE, lse, bound(DTYPE_F32));
    op_case_close(f);

    op_case *g = op_case_open(OP_ATTENTION_BWD, &a);
    op_case_random(g, ATTENTION_BWD_QKV, t, SHAPE(N, Q), size, seed);
    op_case_ints(g, ATTENTION_BWD_DOC_START, SHAPE(N), doc_start);
    op_case_floats(g, ATTENTION_BWD_Y, t, SHAPE(N, Y), y);
    op_case_floats(g, ATTENTION_BWD_LSE, DTYPE_F32, SHAPE(d->B, d->H, d->T), lse);
    op_case_random(g, ATTENTION_BWD_DY, t, SHAPE(N, Y), 1.0, seed + 1);
    op_case_output(g, ATTENTION_BWD_DQKV, t, SHAPE(N, Q));
    op_case_run(g, 2);
    reference_backward(d, op_case_input_values(g, ATTENTION_BWD_QKV), doc_start, a.scale,
                       op_case_input_values(g, ATTENTION_BWD_Y), op_case_input_values(g, ATTENTION_BWD_LSE),
                       op_case_input_values(g, ATTENTION_BWD_DY), dqkv);
    check_error("dqkv", d, t, g, ATTENTION_BWD_DQKV, dqkv, bound(t));
    op_case_close(g);
    free(y);
    free(lse);
    free(dqkv);
}

/* Those that tensor cores take have rows that are no whole number of their tiles. */
static const dims SHORT_ROWS[] = {{1, 1, 1, 1, 8},    {3, 2, 2, 1, 16},   {2, 7, 3, 3, 10},
                                  {1, 64, 2, 2, 64},  {2, 65, 4, 2, 24},  {9, 66, 4, 4, 16},
                                  {1, 80, 1, 1, 256}, {1, 97, 2, 1, 100}, {1, 97, 2, 1, 80}},
                  ROWS[] = {{1, 129, 3, 1, 33},
                            {2, 130, 2, 2, 48},
                            {1, 130, 2, 2, 96},
                            {1, 190, 8, 1, 32},
                            {1, 200, 6, 2, 72}},
                  LONGER_ROWS[] = {{1, 257, 3, 1, 128}, {2, 300, 4, 2, 64}, {1, 330, 4, 2, 96}};

static void every_shape(const dims *shapes, size_t n, dtype type) {
    for (size_t i = 0; i < n; i++) {
        int32_t *packed = documents(&shapes[i], 40 + i), *one = one_document(&shapes[i]);
        check(&shapes[i], type, packed, 1.5, 7 * i + type);
        check(&shapes[i], type, one, 1.5, 7 * i + type);
        free(packed);
        free(one);
    }
}

/* Each set of instructions that the machine has; at least the one for everyone. */
static void every_instruction_set(const dims *shapes, size_t n_shapes, dtype type) {
    int n = 0;
    for (int i = 0; attention_functions_list(i); i++) {
        if (!attention_force_functions(attention_functions_list(i))) continue;
        every_shape(shapes, n_shapes, type);
        n++;
        if (backend_under_test()->discrete) break; /* which has none of them */
    }
    assert_true(attention_force_functions(NULL));
    assert_true(n > 0);
}

static void an_unknown_instruction_set_is_refused(void **state) {
    (void)state;
    assert_false(attention_force_functions("abacus"));
    assert_true(attention_force_functions(NULL));
}

/* A test each: under a sanitizer of the device one of them takes minutes. */
#define MATCHES(name, shapes, type)                                \
    static void name##_match_double_reference(void **state) {      \
        (void)state;                                               \
        every_instruction_set(shapes, ARRAY_LENGTH(shapes), type); \
    }
MATCHES(short_rows_of_fp32, SHORT_ROWS, DTYPE_F32)
MATCHES(short_rows_of_bf16, SHORT_ROWS, DTYPE_BF16)
MATCHES(short_rows_of_fp16, SHORT_ROWS, DTYPE_F16)
MATCHES(rows_of_fp32, ROWS, DTYPE_F32)
MATCHES(rows_of_bf16, ROWS, DTYPE_BF16)
MATCHES(rows_of_fp16, ROWS, DTYPE_F16)
MATCHES(longer_rows_of_fp32, LONGER_ROWS, DTYPE_F32)
MATCHES(longer_rows_of_bf16, LONGER_ROWS, DTYPE_BF16)
MATCHES(longer_rows_of_fp16, LONGER_ROWS, DTYPE_F16)

/* Wider than one block of steps of the instructions that multiply matrices: 512 with AMX, 768 with BFMMLA. A GPU's
 * kernels take 256. */
static void the_widest_heads_match_double_reference(void **state) {
    (void)state;
    static const dims WIDE[] = {{1, 98, 2, 1, 512}, {1, 98, 2, 1, 514}, {2, 33, 1, 1, 770}, {1, 40, 1, 1, 1024}};
    static const dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    if (backend_under_test()->discrete) skip();
    for (size_t i = 0; i < ARRAY_LENGTH(types); i++) every_instruction_set(WIDE, ARRAY_LENGTH(WIDE), types[i]);
}

/* Windows of one key, shorter than a block, longer than one, as long as a row and longer; soft caps that bend every score and
 * hardly any; each alone and both. */
static void windows_and_caps(dtype type, const dims *shapes, size_t n) {
    static const struct {
        int64_t window;
        double softcap;
    } all[] = {{1, 0}, {5, 0}, {70, 2.5}, {0, 2.5}, {129, 0}, {1000, 50}};
    for (size_t i = 0; i < ARRAY_LENGTH(all); i++) {
        limits.window = all[i].window, limits.softcap = all[i].softcap;
        every_instruction_set(shapes, n, type);
    }
    limits.window = 0, limits.softcap = 0;
}

#define LIMITED(name, type)                                                                     \
    static void windows_and_soft_caps_of_##name##_match_double_reference(void **state) {        \
        static const dims shapes[] = {{2, 7, 3, 3, 10}, {2, 65, 4, 2, 24}, {1, 190, 8, 1, 32}}; \
        windows_and_caps(type, shapes, ARRAY_LENGTH(shapes));                                   \
    }
LIMITED(fp32, DTYPE_F32)
LIMITED(bf16, DTYPE_BF16)
LIMITED(fp16, DTYPE_F16)

/* Rows whose keys are taken in segments: pieces of the queries begin before, inside and behind them, and documents end there.
 * A GPU has no segments, and shorter rows show as much of it. */
static int64_t long_row(int64_t n) { return backend_under_test()->discrete ? n / 4 : n; }

/* A window over the edges of the pieces and segments that a long row is taken in. */
static void long_rows_with_a_window_are_cut_and_added(void **state) {
    const dims pieces = {1, 1100, 2, 1, 8}, segments = {1, long_row(4500), 2, 1, 4};
    int32_t *packed = documents(&pieces, 3), *one = one_document(&segments);
    limits.window = 300, limits.softcap = 3;
    check(&pieces, DTYPE_F32, packed, 1.5, 90);
    check(&pieces, DTYPE_BF16, one, 1.5, 91);
    limits.window = 700;
    check(&segments, DTYPE_F32, one, 1.0, 92);
    limits.window = 0, limits.softcap = 0;
    free(packed);
    free(one);
}

/* Few (sequence, head) pairs and many queries: backward cuts the sequence, here into 2 and 4 pieces, and adds. */
static void backward_of_long_sequences_is_cut_and_added(void **state) {
    (void)state;
    static const dims longer[] = {{1, 520, 1, 1, 16}, {1, 1100, 2, 1, 8}, {2, 530, 2, 2, 20}};
    for (size_t i = 0; i < ARRAY_LENGTH(longer); i++) {
        int32_t *packed = documents(&longer[i], i), *one = one_document(&longer[i]);
        check(&longer[i], DTYPE_F32, one, 1.5, 90 + i);
        check(&longer[i], DTYPE_BF16, packed, 1.5, 91 + i);
        free(packed);
        free(one);
    }
}

static void long_rows_are_taken_in_segments(void **state) {
    (void)state;
    const dims d = {1, long_row(4500), 2, 1, 4};
    int32_t *doc_start = one_document(&d);
    check(&d, DTYPE_F32, doc_start, 1.0, 77);
    check(&d, DTYPE_BF16, doc_start, 1.0, 78);
    free(doc_start);
}

static void long_rows_of_documents_are_taken_in_segments(void **state) {
    (void)state;
    const dims d = {2, long_row(4097), 1, 1, 5};
    int32_t *doc_start = one_document(&d), second = (int32_t)long_row(1500), third = (int32_t)long_row(4000);
    for (int64_t t = 0; t < d.B * d.T; t++) doc_start[t] = t % d.T < second ? 0 : t % d.T < third ? second : third;
    check(&d, DTYPE_F32, doc_start, 1.0, 77);
    check(&d, DTYPE_BF16, doc_start, 1.0, 78);
    free(doc_start);
}

/* The gradient against (f(x + e) - f(x - e)) / 2e of the forward loop in double, f = sum of dy * y. With e = 1e-4 the
 * truncation is e^2 / 6 times a third derivative of order 1 and rounding is 1e-12, so fp32's own error rules. */
static void check_finite_differences(void) {
    dims d = {1, 70, 4, 2, 12};
    int64_t N = d.B * d.T, Q = (int64_t)(d.H + 2 * d.G) * d.D, Y = (int64_t)d.H * d.D;
    op_attr a = attr_of(&d);
    int32_t *doc_start = documents(&d, 5);
    op_case *g = op_case_open(OP_ATTENTION_BWD, &a);
    op_case_random(g, ATTENTION_BWD_QKV, DTYPE_F32, SHAPE(N, Q), 1.0, 3);
    double *x = op_case_input_values(g, ATTENTION_BWD_QKV), *y = mem_alloc((size_t)(N * Y) * 8);
    double *lse = mem_alloc((size_t)(d.B * d.H * d.T) * 8);
    reference_forward(&d, x, doc_start, a.scale, y, lse);
    op_case_ints(g, ATTENTION_BWD_DOC_START, SHAPE(N), doc_start);
    op_case_floats(g, ATTENTION_BWD_Y, DTYPE_F32, SHAPE(N, Y), y);
    op_case_floats(g, ATTENTION_BWD_LSE, DTYPE_F32, SHAPE(d.B, d.H, d.T), lse);
    op_case_random(g, ATTENTION_BWD_DY, DTYPE_F32, SHAPE(N, Y), 1.0, 4);
    op_case_output(g, ATTENTION_BWD_DQKV, DTYPE_F32, SHAPE(N, Q));
    op_case_run(g, 2);
    const double *dy = op_case_input_values(g, ATTENTION_BWD_DY), *dx = op_case_values(g, ATTENTION_BWD_DQKV), e = 1e-4;
    for (int n = 0; n < 60; n++) {
        int64_t at = (int64_t)rng_below(8, (uint64_t)n, (uint64_t)(N * Q));
        double kept = x[at], f[2];
        for (int side = 0; side < 2; side++) {
            x[at] = kept + (side ? e : -e);
            reference_forward(&d, x, doc_start, a.scale, y, NULL);
            f[side] = 0;
            for (int64_t i = 0; i < N * Y; i++) f[side] += dy[i] * y[i];
        }
        x[at] = kept;
        double slope = (f[1] - f[0]) / (2 * e);
        if (!(fabs(dx[at] - slope) <= 2e-5 * (1 + fabs(slope))))
            fail_msg("element %d: gradient %.8g, slope %.8g", (int)at, dx[at], slope);
    }
    op_case_close(g);
    free(doc_start);
    free(y);
    free(lse);
}

static void backward_matches_finite_differences(void **state) {
    (void)state;
    check_finite_differences();
    limits.window = 9, limits.softcap = 1.5;
    check_finite_differences();
    limits.window = 0, limits.softcap = 0;
}

static void *forward_bits(const dims *d, dtype t, const double *qkv, const int32_t *doc_start, double **lse) {
    int64_t N = d->B * d->T, Y = (int64_t)d->H * d->D;
    op_attr a = attr_of(d);
    op_case *f = op_case_open(OP_ATTENTION, &a);
    op_case_floats(f, ATTENTION_QKV, t, SHAPE(N, (int64_t)(d->H + 2 * d->G) * d->D), qkv);
    op_case_ints(f, ATTENTION_DOC_START, SHAPE(N), doc_start);
    op_case_output(f, ATTENTION_Y, t, SHAPE(N, Y));
    op_case_output(f, ATTENTION_LSE, DTYPE_F32, SHAPE(d->B, d->H, d->T));
    op_case_run(f, 2);
    double *y = mem_alloc((size_t)(N * Y) * 8);
    memcpy(y, op_case_values(f, ATTENTION_Y), (size_t)(N * Y) * 8);
    if (lse) {
        *lse = mem_alloc((size_t)(d->B * d->H * d->T) * 8);
        memcpy(*lse, op_case_values(f, ATTENTION_LSE), (size_t)(d->B * d->H * d->T) * 8);
    }
    op_case_close(f);
    return y;
}

static double *random_doubles(int64_t n, uint64_t seed) {
    float *f = mem_alloc((size_t)n * sizeof *f);
    double *x = mem_alloc((size_t)n * sizeof *x);
    rng_normal_fill(rng_key(seed, "test"), 0, f, (size_t)n, 0, 1);
    for (int64_t i = 0; i < n; i++) x[i] = f[i];
    free(f);
    return x;
}

/* Other documents and later tokens, however large, change no bit of what a query returns. */
static void invisible_keys_change_no_bit(void **state) {
    (void)state;
    dims d = {1, 150, 2, 1, 16};
    int64_t N = d.T, Q = (int64_t)(d.H + 2 * d.G) * d.D, Y = (int64_t)d.H * d.D;
    int32_t *doc_start = mem_alloc((size_t)N * sizeof *doc_start);
    for (int64_t i = 0; i < N; i++) doc_start[i] = i < 50 ? 0 : i < 103 ? 50 : 103;
    double *x = random_doubles(N * Q, 1), *before = forward_bits(&d, DTYPE_F32, x, doc_start, NULL);
    for (int64_t i = 0; i < N; i++)
        if (i < 50 || i > 80)
            for (int64_t c = 0; c < Q; c++) x[i * Q + c] = 1e4 * x[i * Q + c] + 3;
    double *after = forward_bits(&d, DTYPE_F32, x, doc_start, NULL);
    for (int64_t i = 50; i <= 80; i++)
        for (int64_t c = 0; c < Y; c++) assert_true(before[i * Y + c] == after[i * Y + c]);
    int changed = 0;
    for (int64_t c = 0; c < Y; c++) changed += before[81 * Y + c] != after[81 * Y + c];
    assert_true(changed > 0);
    free(x);
    free(doc_start);
    free(before);
    free(after);
}

/* q = 0: every visible key weighs the same, so y is the mean of v and lse the logarithm of their number. */
static void zero_queries_average(void **state) {
    (void)state;
    dims d = {1, 140, 1, 1, 8};
    int64_t Q = 3 * d.D;
    int32_t *doc_start = one_document(&d);
    double *x = random_doubles(d.T * Q, 2), *lse;
    for (int64_t i = 0; i < d.T; i++)
        for (int c = 0; c < d.D; c++) x[i * Q + c] = 0;
    double *y = forward_bits(&d, DTYPE_F32, x, doc_start, &lse), sum[8] = {0};
    for (int64_t i = 0; i < d.T; i++) {
        assert_true(fabs(lse[i] - log((double)(i + 1))) < 1e-6);
        for (int c = 0; c < d.D; c++) {
            sum[c] += x[i * Q + 2 * d.D + c];
            assert_true(fabs(y[i * d.D + c] - sum[c] / (double)(i + 1)) < 1e-5);
        }
    }
    free(x);
    free(y);
    free(lse);
    free(doc_start);
}

/* Scores of +-1e5 leave one key with all the weight: no overflow, and that key's v comes back unchanged. */
static void huge_scores_stay_finite(void **state) {
    (void)state;
    dims d = {1, 90, 1, 1, 8};
    int64_t Q = 3 * d.D;
    int32_t *doc_start = one_document(&d);
    double *x = random_doubles(d.T * Q, 3), *lse;
    for (int64_t i = 0; i < d.T; i++)
        for (int c = 0; c < d.D; c++) {
            x[i * Q + c] = c == 0 ? 1000 : 0;
            x[i * Q + d.D + c] = c == 0 ? (i == 40 ? 300 : -300) : 0;
        }
    double *y = forward_bits(&d, DTYPE_F32, x, doc_start, &lse);
    for (int64_t i = 40; i < d.T; i++)
        for (int c = 0; c < d.D; c++)
            assert_true(y[i * d.D + c] == (double)(float)x[40 * Q + 2 * d.D + c] && isfinite(lse[i]));
    free(x);
    free(y);
    free(lse);
    free(doc_start);
}

/* A NaN in q spoils its own row alone, one in k every later row of its document; forward and backward. */
static void nan_is_never_hidden(void **state) {
    (void)state;
    dims d = {1, 160, 1, 1, 8};
    int64_t N = d.T, Q = 3 * d.D, bad = 70;
    int32_t *doc_start = mem_alloc((size_t)N * sizeof *doc_start);
    for (int64_t i = 0; i < N; i++) doc_start[i] = i < 30 ? 0 : i < 140 ? 30 : 140;
    for (int part = 0; part < 3; part++) {
        double *x = random_doubles(N * Q, 6), *lse;
        x[bad * Q + part * d.D + 3] = NAN;
        double *y = forward_bits(&d, DTYPE_F32, x, doc_start, &lse);
        for (int64_t i = 0; i < N; i++) {
            bool sees = part == 0 ? i == bad : i >= bad && i < 140;
            if (sees) assert_true(isnan(y[i * d.D + 3]));
            if (part < 2) assert_true(isnan(lse[i]) == sees);
            if (i < 30) assert_true(isfinite(y[i * d.D + 3])); /* a document that ended before it */
        }
        free(x);
        free(y);
        free(lse);
    }
    free(doc_start);

    op_attr a = attr_of(&d);
    op_case *g = op_case_open(OP_ATTENTION_BWD, &a);
    double *dy = random_doubles(N * d.D, 7), *lse = mem_alloc((size_t)N * 8);
    dy[bad * d.D] = NAN;
    int32_t *one = one_document(&d);
    op_case_random(g, ATTENTION_BWD_QKV, DTYPE_F32, SHAPE(N, Q), 1.0, 3);
    op_case_ints(g, ATTENTION_BWD_DOC_START, SHAPE(N), one);
    op_case_random(g, ATTENTION_BWD_Y, DTYPE_F32, SHAPE(N, d.D), 1.0, 4);
    op_case_floats(g, ATTENTION_BWD_LSE, DTYPE_F32, SHAPE(1, 1, N), lse);
    op_case_floats(g, ATTENTION_BWD_DY, DTYPE_F32, SHAPE(N, d.D), dy);
    op_case_output(g, ATTENTION_BWD_DQKV, DTYPE_F32, SHAPE(N, Q));
    op_case_run(g, 2);
    const double *dx = op_case_values(g, ATTENTION_BWD_DQKV);
    assert_true(isnan(dx[bad * Q])); /* dq of the row itself */
    for (int64_t i = 0; i <= bad; i++) assert_true(isnan(dx[i * Q + 2 * d.D]) && isnan(dx[i * Q + d.D]));
    assert_true(isfinite(dx[(N - 1) * Q]));
    op_case_close(g);
    free(dy);
    free(lse);
    free(one);
}

/* doc_start is checked where it is read; a bad one here must still stay inside the arrays. */
static void wrong_documents_stay_in_bounds(void **state) {
    (void)state;
    dims d = {2, 70, 2, 2, 8};
    int32_t *doc_start = one_document(&d);
    for (int64_t i = 0; i < d.B * d.T; i++) doc_start[i] = i % 3 == 0 ? -1000000 : i % 3 == 1 ? 1000000 : 0;
    double *x = random_doubles(d.B * d.T * 6 * d.D, 9), *y = forward_bits(&d, DTYPE_F32, x, doc_start, NULL);
    for (int64_t i = 0; i < d.B * d.T * 2 * d.D; i++) assert_true(isfinite(y[i]));
    free(x);
    free(y);
    free(doc_start);
}

/* ---- products of 8-bit numbers ------------------------------------------------------------------------------------ */

enum { BLOCK = 128 };

/* Rounded to e4m3 over the least power of two, not below 2^-30, with which 448 holds the largest number of a block: of 128 tokens of a
 * head. In words that are not the kernels'. */
static void round_blocks(const dims *d, double *x) {
    int64_t Q = (int64_t)(d->H + 2 * d->G) * d->D;
    for (int64_t b = 0; b < d->B; b++)
        for (int64_t first = 0; first < d->T; first += BLOCK)
            for (int64_t head = 0; head < Q; head += d->D) {
                double most = 0, scale = 0x1p-30;
                for (int pass = 0; pass < 2; pass++) {
                    for (int64_t i = first; i < MIN(first + BLOCK, d->T); i++)
                        for (int c = 0; c < d->D; c++) {
                            double *at = &x[(b * d->T + i) * Q + head + c];
                            if (pass == 0) most = fmax(most, fabs(*at));
                            else *at = e4m3_to_f32(f32_to_e4m3((float)(*at / scale))) * scale;
                        }
                    while (448 * scale < most) scale *= 2;
                }
            }
}

/* The largest ||y - reference|| / ||reference|| of a block of tokens. */
static double worst_block(const dims *d, const double *y, const double *reference) {
    int64_t Y = (int64_t)d->H * d->D;
    double worst = 0;
    for (int64_t b = 0; b < d->B; b++)
        for (int64_t first = 0; first < d->T; first += BLOCK) {
            double off = 0, all = 0;
            for (int64_t i = (b * d->T + first) * Y; i < (b * d->T + MIN(first + BLOCK, d->T)) * Y; i++) {
                off += (y[i] - reference[i]) * (y[i] - reference[i]);
                all += reference[i] * reference[i];
            }
            double e = sqrt(off / all);
            if (!(e <= worst)) worst = e;
        }
    return worst;
}

/* Numbers whose blocks differ in size: scales change from block to block, those of v by much. */
static double *blocks_of_sizes(const dims *d, uint64_t seed) {
    static const double q_size[] = {1.5, 0.2, 2}, k_size[] = {1, 3, 0.1, 1.5},
                        v_size[] = {1, 0x1p-20, 0x1p25, 3, 0x1p-9};
    int64_t Q = (int64_t)(d->H + 2 * d->G) * d->D, n = d->B * d->T * Q;
    double *x = random_doubles(n, seed);
    for (int64_t i = 0; i < n; i++) {
        int64_t block = i / Q % d->T / BLOCK, head = i % Q / d->D;
        x[i] *= head < d->H          ? q_size[(block + head) % 3]
                : head < d->H + d->G ? k_size[(block + head) % 4]
                                     : v_size[(block + head) % 5];
    }
    return x;
}

/* A kernel that rounds probabilities to e4m3 moves each by up to 2^-4 of itself, on average by 2.7 %. Values that know nothing of that
 * make of it sqrt(sum p^2 e^2 / sum p^2) of y, on average 2.7 %, in a row of few keys at most 2^-4; rounding y is 2^-9 beside it. Its scores
 * are sums of 14 bits, of four runs of columns: 2^-12 of the largest run. The CPU rounds neither. */
static void check8(const dims *d, const int32_t *doc_start, const double *x, bool exact_values) {
    int64_t N = d->B * d->T, Q = (int64_t)(d->H + 2 * d->G) * d->D, Y = (int64_t)d->H * d->D;
    op_attr a = attr_of(d);
    a.fp8 = true;
    bool rounds = backend_under_test()->discrete;
    double *y = mem_alloc((size_t)(N * Y) * 8), *lse = mem_alloc((size_t)(d->B * d->H * d->T) * 8);
    op_case *f = op_case_open(OP_ATTENTION, &a);
    op_case_floats(f, ATTENTION_QKV, DTYPE_BF16, SHAPE(N, Q), x);
    op_case_ints(f, ATTENTION_DOC_START, SHAPE(N), doc_start);
    op_case_output(f, ATTENTION_Y, DTYPE_BF16, SHAPE(N, Y));
    op_case_output(f, ATTENTION_LSE, DTYPE_F32, SHAPE(d->B, d->H, d->T));
    op_case_run(f, 2);
    double *seen = op_case_input_values(f, ATTENTION_QKV);
    round_blocks(d, seen);
    reference_forward(d, seen, doc_start, a.scale, y, lse);
    double e = worst_block(d, op_case_values(f, ATTENTION_Y), y),
           limit = rounds && !exact_values ? 0x1p-4 : bound(DTYPE_BF16);
    if (!(e <= limit))
        fail_msg("y of 8 bits B=%d T=%d H=%d G=%d D=%d window %d: error %g of a block over %g", (int)d->B, (int)d->T,
                 d->H, d->G, d->D, (int)limits.window, e, limit);
    check_error("lse of 8 bits", d, DTYPE_BF16, f, ATTENTION_LSE, lse, rounds ? 0x1p-9 : bound(DTYPE_F32));
    op_case_close(f);
    free(y);
    free(lse);
}

static void rows_of_8_bits_match_double_reference(void **state) {
    (void)state;
    /* The last is a long row, of which a GPU has kernels of their own. */
    static const dims shapes[] = {{1, 1, 1, 1, 64},    {3, 77, 2, 1, 128}, {1, 128, 1, 1, 128},  {2, 200, 6, 2, 96},
                                  {2, 300, 4, 4, 128}, {1, 389, 8, 1, 64}, {2, 1000, 4, 2, 128}, {1, 4170, 1, 1, 64}};
    for (size_t i = 0; i < ARRAY_LENGTH(shapes); i++) {
        const dims *d = &shapes[i];
        int32_t *packed = documents(d, 60 + i), *one = one_document(d);
        double *x = blocks_of_sizes(d, 20 + i);
        check8(d, packed, x, false);
        check8(d, one, x, false);
        free(x);
        free(packed);
        free(one);
    }
}

static void windows_of_8_bits_match_double_reference(void **state) {
    (void)state;
    static const int64_t windows[] = {1, 5, 129, 300, 2000};
    const dims d = {2, 530, 4, 2, 128};
    int32_t *packed = documents(&d, 71), *one = one_document(&d);
    double *x = blocks_of_sizes(&d, 31);
    for (size_t i = 0; i < ARRAY_LENGTH(windows); i++) {
        limits.window = windows[i];
        check8(&d, one, x, windows[i] == 1);
        check8(&d, packed, x, windows[i] == 1);
    }
    limits.window = 0;
    free(x);
    free(packed);
    free(one);
}

/* One key of a block has all the weight: its v comes back, rounded, whatever place it has among the keys of a tile. */
static void every_key_of_8_bits_finds_its_value(void **state) {
    (void)state;
    const dims d = {1, 256, 1, 1, 128};
    int64_t Q = 3 * d.D;
    int32_t *one = one_document(&d);
    double *x = mem_alloc((size_t)(d.T * Q) * sizeof *x);
    /* Signs of a Walsh function: a query agrees with itself in 128 columns, with any other key of its block in 64. */
    for (int64_t i = 0; i < d.T; i++)
        for (int c = 0; c < d.D; c++) {
            double sign = __builtin_popcount((unsigned)(i % BLOCK) & (unsigned)c) % 2 ? -1 : 1;
            x[i * Q + c] = 4 * sign, x[i * Q + d.D + c] = (i < BLOCK ? 2 : 4) * sign;
            x[i * Q + 2 * d.D + c] = (double)((i * 7 + c * 3) % 15 + 1) * (c % 2 ? -1 : 1);
        }
    check8(&d, one, x, true);
    free(x);
    free(one);
}

/* Nothing but zeros: every key weighs the same and no scale is 0 or beyond what fp32 has. */
static void zeros_of_8_bits_average(void **state) {
    (void)state;
    const dims d = {1, 300, 2, 1, 64};
    int64_t N = d.T, Q = 4 * d.D;
    int32_t *one = one_document(&d);
    double *x = mem_alloc((size_t)(N * Q) * sizeof *x);
    op_attr a = attr_of(&d);
    a.fp8 = true;
    op_case *f = op_case_open(OP_ATTENTION, &a);
    op_case_floats(f, ATTENTION_QKV, DTYPE_BF16, SHAPE(N, Q), x);
    op_case_ints(f, ATTENTION_DOC_START, SHAPE(N), one);
    op_case_output(f, ATTENTION_Y, DTYPE_BF16, SHAPE(N, 2 * d.D));
    op_case_output(f, ATTENTION_LSE, DTYPE_F32, SHAPE(1, 2, N));
    op_case_run(f, 2);
    const double *y = op_case_values(f, ATTENTION_Y), *lse = op_case_values(f, ATTENTION_LSE);
    for (int64_t i = 0; i < N * 2 * d.D; i++) assert_true(y[i] == 0);
    for (int64_t i = 0; i < 2 * N; i++) assert_true(fabs(lse[i] - log((double)(i % N + 1))) < 1e-5);
    op_case_close(f);
    free(x);
    free(one);
}

/* What is not finite spoils all of its block, and with it every query that sees a key of that; no other block of queries. */
static void nan_of_8_bits_is_never_hidden(void **state) {
    (void)state;
    const dims d = {1, 500, 1, 1, 64};
    static const double bad_numbers[] = {NAN, INFINITY, -INFINITY};
    int64_t N = d.T, Q = 3 * d.D, bad = 200;
    int32_t *doc_start = mem_alloc((size_t)N * sizeof *doc_start);
    for (int64_t i = 0; i < N; i++) doc_start[i] = i < 150 ? 0 : i < 400 ? 150 : 400;
    op_attr a = attr_of(&d);
    a.fp8 = true;
    for (int part = 0; part < 3; part++)
        for (size_t k = 0; k < ARRAY_LENGTH(bad_numbers); k++) {
            double *x = random_doubles(N * Q, 6);
            x[bad * Q + part * d.D + 3] = bad_numbers[k];
            op_case *f = op_case_open(OP_ATTENTION, &a);
            op_case_floats(f, ATTENTION_QKV, DTYPE_BF16, SHAPE(N, Q), x);
            op_case_ints(f, ATTENTION_DOC_START, SHAPE(N), doc_start);
            op_case_output(f, ATTENTION_Y, DTYPE_BF16, SHAPE(N, d.D));
            op_case_output(f, ATTENTION_LSE, DTYPE_F32, SHAPE(1, 1, N));
            op_case_run(f, 2);
            const double *y = op_case_values(f, ATTENTION_Y), *lse = op_case_values(f, ATTENTION_LSE);
            for (int64_t i = 0; i < N; i++) {
                bool sees = part == 0 ? i == bad : i >= bad && i < 400;
                if (sees && !isnan(y[i * d.D + 3]))
                    fail_msg("part %d, %g: y of %d is %g", part, bad_numbers[k], (int)i, y[i * d.D + 3]);
                if (sees && part < 2) assert_true(isnan(lse[i]));
                if (i < BLOCK) assert_true(isfinite(y[i * d.D + 3]));
            }
            op_case_close(f);
            free(x);
        }
    free(doc_start);
}

/* The plan counts on this: scratch grows with T, never with T squared, and forward not at all. */
static void scratch_is_linear_in_sequence_length(void **state) {
    (void)state;
    size_t bytes[2][2];
    for (int longer = 0; longer < 2; longer++)
        for (int backward = 0; backward < 2; backward++) {
            dims d = {8, longer ? 16384 : 4096, 8, 8, 64};
            program p;
            program_init(&p);
            op_attr a = attr_of(&d);
            op *o = program_emit(&p, backward ? OP_ATTENTION_BWD : OP_ATTENTION, SECTION_MICRO);
            o->attr = a;
            op_in(o, ATTENTION_QKV, program_persistent(&p, "qkv", DTYPE_BF16, SHAPE(d.B * d.T, 24 * 64), ROLE_INPUT));
            bytes[longer][backward] = backend_cpu()->work_bytes(&p, o, 4);
            program_fini(&p);
        }
    assert_true(bytes[0][0] == bytes[1][0]);
    assert_true(bytes[1][1] <= 4 * bytes[0][1]);
    assert_true(bytes[1][1] <= 4 * (size_t)(8 * 16384 * 64) + (4u << 20));
    /* Few heads: pieces have sums of their own, of a segment. */
    dims few = {1, 16384, 1, 1, 64};
    program p;
    program_init(&p);
    op *o = program_emit(&p, OP_ATTENTION_BWD, SECTION_MICRO);
    o->attr = attr_of(&few);
    op_in(o, ATTENTION_BWD_QKV, program_persistent(&p, "qkv", DTYPE_BF16, SHAPE(few.T, 3 * 64), ROLE_INPUT));
    assert_true(backend_cpu()->work_bytes(&p, o, 4) <= (size_t)(32 * 2 * 2048 + 16384) * 64 * 4 + (4u << 20));
    program_fini(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_rows_of_fp32_match_double_reference),
        cmocka_unit_test(short_rows_of_bf16_match_double_reference),
        cmocka_unit_test(short_rows_of_fp16_match_double_reference),
        cmocka_unit_test(rows_of_fp32_match_double_reference),
        cmocka_unit_test(rows_of_bf16_match_double_reference),
        cmocka_unit_test(rows_of_fp16_match_double_reference),
        cmocka_unit_test(longer_rows_of_fp32_match_double_reference),
        cmocka_unit_test(longer_rows_of_bf16_match_double_reference),
        cmocka_unit_test(longer_rows_of_fp16_match_double_reference),
        cmocka_unit_test(the_widest_heads_match_double_reference),
        cmocka_unit_test(an_unknown_instruction_set_is_refused),
        cmocka_unit_test(backward_of_long_sequences_is_cut_and_added),
        cmocka_unit_test(long_rows_are_taken_in_segments),
        cmocka_unit_test(long_rows_of_documents_are_taken_in_segments),
        cmocka_unit_test(windows_and_soft_caps_of_fp32_match_double_reference),
        cmocka_unit_test(windows_and_soft_caps_of_bf16_match_double_reference),
        cmocka_unit_test(windows_and_soft_caps_of_fp16_match_double_reference),
        cmocka_unit_test(long_rows_with_a_window_are_cut_and_added),
        cmocka_unit_test(backward_matches_finite_differences),
        cmocka_unit_test(invisible_keys_change_no_bit),
        cmocka_unit_test(zero_queries_average),
        cmocka_unit_test(huge_scores_stay_finite),
        cmocka_unit_test(nan_is_never_hidden),
        cmocka_unit_test(wrong_documents_stay_in_bounds),
        cmocka_unit_test(rows_of_8_bits_match_double_reference),
        cmocka_unit_test(windows_of_8_bits_match_double_reference),
        cmocka_unit_test(every_key_of_8_bits_finds_its_value),
        cmocka_unit_test(zeros_of_8_bits_average),
        cmocka_unit_test(nan_of_8_bits_is_never_hidden),
        cmocka_unit_test(scratch_is_linear_in_sequence_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
