/* test_ops_elementwise.c - ADD, ADD_BIAS, SWIGLU, GELU, ROPE, CAST, COPY and their backward, against loops in double. */
#include "op_check.h"
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* Below, at and above vector widths, and over one task of 32768 elements. */
static const int64_t sizes[] = {1, 3, 4, 17, 64, 1000, 70001};

static void test_add_is_the_rounded_sum_and_works_in_place(void **state) {
    for (size_t ti = 0; ti < ARRAY_LENGTH(check_types); ti++)
        for (size_t s = 0; s < ARRAY_LENGTH(sizes); s++)
            for (int alias = -1; alias < 2; alias++) {
                dtype type = check_types[ti];
                size_t n = (size_t)sizes[s];
                op_case *t = op_case_open(OP_ADD, &(op_attr){0});
                op_case_random(t, ADD_A, type, SHAPE(sizes[s]), 1, 1);
                op_case_random(t, ADD_B, type, SHAPE(sizes[s]), 1, 2);
                if (alias < 0) op_case_output(t, ADD_Y, type, SHAPE(sizes[s]));
                else op_case_alias(t, ADD_Y, alias ? ADD_B : ADD_A);
                op_case_run(t, 2);
                const double *a = op_case_input_values(t, ADD_A), *b = op_case_input_values(t, ADD_B),
                             *y = op_case_values(t, ADD_Y);
                for (size_t i = 0; i < n; i++) {
                    uint32_t rounded;
                    tensor_set_f32(&rounded, type, 0, (float)a[i] + (float)b[i]);
                    assert_true(y[i] == tensor_get_f32(&rounded, type, 0)); /* one fp32 sum, one rounding: exact */
                }
                op_case_close(t);
            }
}

static void test_add_bias_adds_the_same_row_everywhere(void **state) {
    const int64_t shapes[][2] = {{1, 1}, {7, 33}, {5, 4097}, {300, 256}, {3, 2056}};
    for (size_t ti = 0; ti < ARRAY_LENGTH(check_types); ti++)
        for (size_t s = 0; s < ARRAY_LENGTH(shapes); s++)
            for (int alias = 0; alias < 2; alias++) {
                dtype type = check_types[ti];
                int64_t N = shapes[s][0], C = shapes[s][1];
                op_case *t = op_case_open(OP_ADD_BIAS, &(op_attr){0});
                op_case_random(t, ADD_BIAS_X, type, SHAPE(N, C), 1, 3);
                op_case_random(t, ADD_BIAS_B, type, SHAPE(C), 1, 4);
                if (alias) op_case_alias(t, ADD_BIAS_Y, ADD_BIAS_X);
                else op_case_output(t, ADD_BIAS_Y, type, SHAPE(N, C));
                op_case_run(t, 2);
                const double *x = op_case_input_values(t, ADD_BIAS_X), *b = op_case_input_values(t, ADD_BIAS_B),
                             *y = op_case_values(t, ADD_BIAS_Y);
                for (int64_t i = 0; i < N * C; i++)
                    check_element(y[i], x[i] + b[i % C], 4 * U32, type, "add_bias", (size_t)i);
                op_case_close(t);
            }
}

/* ---- activations --------------------------------------------------------------------------------------------- */

static double gelu(double x) { return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
static double silu(double x) { return x / (1 + exp(-x)); }
static double slope(double (*f)(double), double x) { /* central difference: error about 1e-10 */
    double h = 1e-5 * fmax(1, fabs(x));
    return (f(x + h) - f(x - h)) / (2 * h);
}

/* Values that meet every regime: a dense sweep over the interesting range, then far outside. */
static double *sweep(size_t n, double reach) {
    double *x = mem_alloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = reach * (2.0 * (double)i / (double)n - 1);
    const double far[] = {0, -0.0, 1e-6, -1e-6, 1e-30, 30, -30, 100, -100, 60000, -60000};
    for (size_t i = 0; i < ARRAY_LENGTH(far) && i < n; i++) x[i * MAX(n / ARRAY_LENGTH(far), (size_t)1)] = far[i];
    return x;
}

/* x / (1 + e^-a): three roundings in a give e^-a a relative error of 3 |a| U32, exp 2 ulp, the rest 3 more. Where the
 * result is below 1e-37 fp32 has no relative precision left; 1e-37 covers it. */
static void test_gelu_is_within_a_few_ulp_of_the_tanh_form(void **state) {
    enum { N = 20011 };
    double *x = sweep(N, 12);
    for (size_t ti = 0; ti < ARRAY_LENGTH(check_types); ti++) {
        dtype type = check_types[ti];
        op_case *t = op_case_open(OP_GELU, &(op_attr){0});
        op_case_floats(t, GELU_X, type, SHAPE(N), x);
        op_case_output(t, GELU_Y, type, SHAPE(N));
        op_case_run(t, 2);
        const double *in = op_case_input_values(t, GELU_X), *y = op_case_values(t, GELU_Y);
        for (size_t i = 0; i < N; i++) {
            double a = 2 * sqrt(2 / M_PI) * (in[i] + 0.044715 * in[i] * in[i] * in[i]), want = in[i] / (1 + exp(-a));
            /* the identity the kernel uses, checked where the tanh form still has digits */
            if (fabs(in[i]) < 4) assert_true(fabs(want - gelu(in[i])) <= 1e-14);
            check_element(y[i], want, (7 + 3 * fabs(a)) * U32 * fabs(want) + 1e-37, type, "gelu", i);
        }
        op_case_close(t);
    }
    free(x);
}

static void test_gelu_bwd_is_the_slope_of_gelu(void **state) {
    enum { N = 20011 };
    double *x = sweep(N, 12);
    for (size_t ti = 0; ti < ARRAY_LENGTH(check_types); ti++)
        for (int alias = -1; alias < 2; alias++) {
            dtype type = check_types[ti];
            op_case *t = op_case_open(OP_GELU_BWD, &(op_attr){0});
            op_case_floats(t, GELU_BWD_X, type, SHAPE(N), x);
            op_case_random(t, GELU_BWD_DY, type, SHAPE(N), 1, 5);
            if (alias < 0) op_case_output(t, GELU_BWD_DX, type, SHAPE(N));
            else op_case_alias(t, GELU_BWD_DX, alias ? GELU_BWD_DY : GELU_BWD_X);
            op_case_run(t, 2);
            const double *in = op_case_input_values(t, GELU_BWD_X), *dy = op_case_input_values(t, GELU_BWD_DY),
                         *dx = op_case_values(t, GELU_BWD_DX);
            for (size_t i = 0; i < N; i++) /* slope is at most 1.13, built from terms below 6 in about 10 operations */
                check_element(dx[i], dy[i] * slope(gelu, in[i]), fabs(dy[i]) * (80 * U32 + 1e-9), type, "gelu_bwd", i);
            op_case_close(t);
        }
    free(x);
}

static double gelu_of_gate(double x) { /* without the cancellation of 1 + tanh */
    return x / (1 + exp(-2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

/* Of gelu the exponent is a cubic, whose relative error the exponential multiplies by its size: up to 70 here. */
static void check_gated(bool is_gelu) {
    double (*act)(double) = is_gelu ? gelu_of_gate : silu, more = is_gelu ? 20 : 1;
    const op_attr attr = {.gelu_gate = is_gelu};
    const int64_t shapes[][2] = {{1, 1}, {3, 7}, {5, 33}, {2, 4099}, {41, 256}, {1, 8960}, {3, 8960}, {2, 2056}};
    for (size_t ti = 0; ti < ARRAY_LENGTH(check_types); ti++)
        for (size_t s = 0; s < ARRAY_LENGTH(shapes); s++) {
            dtype type = check_types[ti];
            int64_t N = shapes[s][0], F = shapes[s][1];
            op_case *t = op_case_open(OP_SWIGLU, &attr);
            op_case_random(t, SWIGLU_GU, type, SHAPE(N, 2 * F), 3, 6);
            op_case_output(t, SWIGLU_Y, type, SHAPE(N, F));
            op_case_run(t, 2);
            const double *gu = op_case_input_values(t, SWIGLU_GU), *y = op_case_values(t, SWIGLU_Y);
            for (int64_t i = 0; i < N * F; i++) {
                double g = gu[i / F * 2 * F + i % F], want = act(g) * gu[i / F * 2 * F + F + i % F];
                check_element(y[i], want, (8 + fabs(g)) * more * U32 * fabs(want) + 1e-37, type, "swiglu", (size_t)i);
            }
            op_case_close(t);

            for (int alias = 0; alias < 2; alias++) {
                t = op_case_open(OP_SWIGLU_BWD, &attr);
                op_case_random(t, SWIGLU_BWD_GU, type, SHAPE(N, 2 * F), 3, 6);
                op_case_random(t, SWIGLU_BWD_DY, type, SHAPE(N, F), 1, 7);
                if (alias) op_case_alias(t, SWIGLU_BWD_DGU, SWIGLU_BWD_GU);
                else op_case_output(t, SWIGLU_BWD_DGU, type, SHAPE(N, 2 * F));
                op_case_run(t, 2);
                gu = op_case_input_values(t, SWIGLU_BWD_GU);
                const double *dy = op_case_input_values(t, SWIGLU_BWD_DY), *d = op_case_values(t, SWIGLU_BWD_DGU);
                for (int64_t i = 0; i < N * F; i++) {
                    int64_t gate = i / F * 2 * F + i % F, up = gate + F;
                    double size = fabs(dy[i]) * (1 + fabs(gu[gate])); /* of the terms; about 10 operations */
                    check_element(d[gate], dy[i] * gu[up] * slope(act, gu[gate]),
                                  size * fabs(gu[up]) * (20 * more * U32 + 1e-9), type, "dgate", (size_t)i);
                    check_element(d[up], dy[i] * act(gu[gate]), size * 20 * more * U32, type, "dup", (size_t)i);
                }
                op_case_close(t);
            }
        }
}

/* The backward that also writes what the forward wrote: the bits of both are those of the separate ops, on bytes of their own and on
 * those of gu and dy. */
static void check_gated_again(bool is_gelu, dtype type, int64_t N, int64_t F) {
    const op_attr attr = {.gelu_gate = is_gelu};
    op_case *forward = op_case_open(OP_SWIGLU, &attr), *alone = op_case_open(OP_SWIGLU_BWD, &attr);
    op_case_random(forward, SWIGLU_GU, type, SHAPE(N, 2 * F), 3, 6);
    op_case_output(forward, SWIGLU_Y, type, SHAPE(N, F));
    op_case_run(forward, 2);
    op_case_random(alone, SWIGLU_BWD_GU, type, SHAPE(N, 2 * F), 3, 6);
    op_case_random(alone, SWIGLU_BWD_DY, type, SHAPE(N, F), 1, 7);
    op_case_output(alone, SWIGLU_BWD_DGU, type, SHAPE(N, 2 * F));
    op_case_run(alone, 2);
    const double *y = op_case_values(forward, SWIGLU_Y), *dgu = op_case_values(alone, SWIGLU_BWD_DGU);
    for (int alias = 0; alias < 2; alias++) {
        op_case *t = op_case_open(OP_SWIGLU_BWD, &attr);
        op_case_random(t, SWIGLU_BWD_GU, type, SHAPE(N, 2 * F), 3, 6);
        op_case_random(t, SWIGLU_BWD_DY, type, SHAPE(N, F), 1, 7);
        if (alias) op_case_alias(t, SWIGLU_BWD_DGU, SWIGLU_BWD_GU), op_case_alias(t, SWIGLU_BWD_Y, SWIGLU_BWD_DY);
        else
            op_case_output(t, SWIGLU_BWD_DGU, type, SHAPE(N, 2 * F)),
                op_case_output(t, SWIGLU_BWD_Y, type, SHAPE(N, F));
        op_case_run(t, 2);
        assert_memory_equal(op_case_values(t, SWIGLU_BWD_Y), y, (size_t)(N * F) * sizeof *y);
        assert_memory_equal(op_case_values(t, SWIGLU_BWD_DGU), dgu, (size_t)(2 * N * F) * sizeof *dgu);
        op_case_close(t);
    }
    op_case_close(forward);
    op_case_close(alone);
}

static void test_a_gate_computed_again_by_its_backward(void **state) {
    const int64_t shapes[][2] = {{3, 7}, {2, 4099}, {5, 1024}, {3, 8960}};
    for (size_t i = 0; i < ARRAY_LENGTH(check_types) * ARRAY_LENGTH(shapes); i++) {
        const int64_t *shape = shapes[i % ARRAY_LENGTH(shapes)];
        dtype type = check_types[i / ARRAY_LENGTH(shapes)];
        check_gated_again(false, type, shape[0], shape[1]);
        check_gated_again(true, type, shape[0], shape[1]);
    }
}

static void test_swiglu_and_its_backward(void **state) { check_gated(false); }
static void test_a_gate_with_gelu_and_its_backward(void **state) { check_gated(true); }

SAME_PLACE(GELU_X, GELU_BWD_X, SWIGLU_GU, SWIGLU_BWD_GU);
SAME_PLACE(GELU_BWD_DY, SWIGLU_BWD_DY);
SAME_PLACE(GELU_Y, GELU_BWD_DX, SWIGLU_Y, SWIGLU_BWD_DGU);

static void test_nan_stays_nan_and_large_values_stay_finite(void **state) {
    const double x[] = {NAN, 3e38, -3e38, 1e20, -1e20, 200, -200, 1};
    const op_kind kinds[] = {OP_GELU, OP_GELU_BWD, OP_SWIGLU, OP_SWIGLU_BWD};
    const double ones[] = {1, 1, 1, 1, 1, 1, 1, 1};
    for (size_t k = 0; k < ARRAY_LENGTH(kinds); k++) {
        op_case *t = op_case_open(kinds[k], &(op_attr){0});
        double gu[16];
        for (int i = 0; i < 16; i++) gu[i] = i < 8 ? x[i] : 1;
        bool pair = kinds[k] == OP_SWIGLU || kinds[k] == OP_SWIGLU_BWD;
        bool backward = kinds[k] == OP_GELU_BWD || kinds[k] == OP_SWIGLU_BWD;
        op_case_floats(t, GELU_X, DTYPE_F32, pair ? SHAPE(1, 16) : SHAPE(1, 8), pair ? gu : x);
        if (backward) op_case_floats(t, GELU_BWD_DY, DTYPE_F32, SHAPE(1, 8), ones);
        op_case_output(t, GELU_Y, DTYPE_F32, kinds[k] == OP_SWIGLU_BWD ? SHAPE(1, 16) : SHAPE(1, 8));
        op_case_run(t, 1);
        const double *y = op_case_values(t, GELU_Y);
        assert_true(isnan(y[0]));
        for (int i = 1; i < 8; i++)
            if (!isfinite(y[i])) fail_msg("%s of %g is %g", op_name(kinds[k]), x[i], y[i]);
        op_case_close(t);
    }
}

/* ---- rope ---------------------------------------------------------------------------------------------------- */

/* Of D / 2 = 35 pairs and less. */
static const double pair_factors[35] = {1,  1.25, 1.5, 1.75, 2,  2.5, 3.1, 4.7, 5.9, 6.1, 7.3, 8.8,
                                        9,  9.5,  10,  11,   12, 13,  14,  15,  16,  17,  18,  19,
                                        20, 21,   22,  23,   24, 25,  26,  27,  28,  29,  30};
static const rope_options rope_kinds[] = {
    {.type = ROPE_DEFAULT, .theta = 10000},
    {.type = ROPE_LINEAR, .theta = 10000, .factor = 4},
    {.type = ROPE_LLAMA3,
     .theta = 500000,
     .factor = 8,
     .low_freq_factor = 1,
     .high_freq_factor = 4,
     .original_max_positions = 64},
    {.type = ROPE_LONG, .theta = 10000, .attention_factor = 1.1902380714238083, .pair_factors = pair_factors},
};

static void test_rope_table_is_cos_and_sin_of_the_exact_angle(void **state) {
    for (size_t r = 0; r < ARRAY_LENGTH(rope_kinds); r++)
        for (int D = 2; D <= 70; D += 34) {
            const int64_t T = 301;
            op_case *t = op_case_open(OP_ROPE_TABLE, &(op_attr){.rope = rope_kinds[r], .head_dim = D + 6});
            op_case_output(t, ROPE_TABLE_TABLE, DTYPE_F32, SHAPE(T, D));
            op_case_run(t, 2);
            const double *y = op_case_values(t, ROPE_TABLE_TABLE);
            for (int64_t p = 0; p < T; p++)
                for (int i = 0; i < D / 2; i++) {
                    double angle = (double)p * rope_inverse_frequency(&rope_kinds[r], D, 1, i);
                    assert_true(y[p * D + i] == (float)(cos(angle) * rope_amplitude(&rope_kinds[r])));
                    assert_true(y[p * D + D / 2 + i] == (float)(sin(angle) * rope_amplitude(&rope_kinds[r])));
                }
            op_case_close(t);
        }
}

typedef struct rope_setup {
    op_attr attr;
    int64_t N, Q, T, R;
    int32_t *doc_start;
    double *table;
} rope_setup;

/* Two documents in every row, cut at a different place; the first R of D dimensions are turned. */
static rope_setup rope_make(int B, int T, int H, int G, int D, int R) {
    rope_setup s = {.attr = {.batch = B, .seq_len = T, .n_heads = H, .n_kv_heads = G, .head_dim = D},
                    .N = B * T,
                    .Q = (H + 2 * G) * D,
                    .T = T,
                    .R = R};
    s.doc_start = mem_alloc((size_t)s.N * sizeof *s.doc_start);
    s.table = mem_alloc((size_t)(T * R) * sizeof *s.table);
    for (int i = 0; i < B * T; i++) s.doc_start[i] = i % T >= i / T + 2 ? i / T + 2 : 0;
    for (int p = 0; p < T; p++)
        for (int i = 0; i < R / 2; i++) {
            double angle = p * rope_inverse_frequency(&rope_kinds[0], R, 1, i);
            s.table[p * R + i] = cos(angle);
            s.table[p * R + R / 2 + i] = sin(angle);
        }
    return s;
}

static op_case *rope_run(const rope_setup *s, dtype type, const double *qkv, bool inverse, bool alias) {
    op_attr a = s->attr;
    a.inverse = inverse;
    op_case *t = op_case_open(OP_ROPE, &a);
    op_case_floats(t, ROPE_QKV, type, SHAPE(s->N, s->Q), qkv);
    op_case_floats(t, ROPE_TABLE, DTYPE_F32, SHAPE(s->T, s->R), s->table);
    op_case_ints(t, ROPE_DOC_START, SHAPE(s->N), s->doc_start);
    if (alias) op_case_alias(t, ROPE_Y, ROPE_QKV);
    else op_case_output(t, ROPE_Y, type, SHAPE(s->N, s->Q));
    op_case_run(t, 2);
    return t;
}

static void test_rope_turns_q_and_k_by_the_position_in_the_document(void **state) {
    const int dims[][2] = {{2, 2}, {6, 6}, {64, 64}, {80, 80}, {6, 4}, {64, 48}, {128, 96}, {80, 26}, {96, 16}};
    for (size_t ti = 0; ti < ARRAY_LENGTH(check_types); ti++)
        for (size_t di = 0; di < ARRAY_LENGTH(dims); di++)
            for (int variant = 0; variant < 4; variant++) {
                bool inverse = variant & 1, alias = variant & 2;
                int D = dims[di][0], R = dims[di][1], H = 3, G = 2;
                dtype type = check_types[ti];
                rope_setup s = rope_make(3, 11, H, G, D, R);
                float *normal = mem_alloc((size_t)(s.N * s.Q) * sizeof *normal);
                double *qkv = mem_alloc((size_t)(s.N * s.Q) * sizeof *qkv);
                rng_normal_fill(8, 0, normal, (size_t)(s.N * s.Q), 0, 1);
                for (int64_t i = 0; i < s.N * s.Q; i++) qkv[i] = normal[i];
                op_case *t = rope_run(&s, type, qkv, inverse, alias);
                const double *x = op_case_input_values(t, ROPE_QKV), *y = op_case_values(t, ROPE_Y),
                             *table = op_case_input_values(t, ROPE_TABLE);
                for (int64_t n = 0; n < s.N; n++)
                    for (int64_t c = 0; c < s.Q; c++) {
                        int64_t h = c / D, i = c % D % (R / 2), p = n % s.T - s.doc_start[n];
                        double cosine = table[p * R + i], sine = table[p * R + R / 2 + i] * (inverse ? -1 : 1);
                        double a = x[n * s.Q + h * D + i], b = x[n * s.Q + h * D + R / 2 + i];
                        bool kept = h >= H + G || c % D >= R;
                        double want = kept            ? x[n * s.Q + c]
                                      : c % D < R / 2 ? a * cosine - b * sine
                                                      : b * cosine + a * sine;
                        if (kept) assert_true(y[n * s.Q + c] == want);
                        check_element(y[n * s.Q + c], want, 3 * U32 * (fabs(a) + fabs(b)), type, "rope",
                                      (size_t)(n * s.Q + c));
                    }
                op_case_close(t);
                free(normal);
                free(qkv);
                free(s.doc_start);
                free(s.table);
            }
}

/* The backward of a rotation is its inverse: <rope(x), w> = <x, inverse(w)> for any w. */
static void test_inverse_rope_is_the_backward_of_rope(void **state) {
    rope_setup s = rope_make(2, 9, 2, 1, 16, 12);
    size_t n = (size_t)(s.N * s.Q);
    float *normal = mem_alloc(2 * n * sizeof *normal);
    double *x = mem_alloc(2 * n * sizeof *x), *w = x + n, left = 0, right = 0, size = 0;
    rng_normal_fill(9, 0, normal, 2 * n, 0, 1);
    for (size_t i = 0; i < 2 * n; i++) x[i] = normal[i];
    op_case *forward = rope_run(&s, DTYPE_F32, x, false, false), *backward = rope_run(&s, DTYPE_F32, w, true, false);
    const double *y = op_case_values(forward, ROPE_Y), *dx = op_case_values(backward, ROPE_Y);
    for (size_t i = 0; i < n; i++) {
        left += y[i] * w[i];
        right += x[i] * dx[i];
        size += fabs(x[i] * w[i]);
    }
    assert_true(fabs(left - right) <= 8 * U32 * size);
    assert_true(fabs(left) > 1e-3 * size); /* not zero against zero */
    op_case_close(forward);
    op_case_close(backward);
    free(normal);
    free(x);
    free(s.doc_start);
    free(s.table);
}

/* ---- data movement ------------------------------------------------------------------------------------------- */

static void test_cast_rounds_each_element_once(void **state) {
    for (size_t from = 0; from < ARRAY_LENGTH(check_types); from++)
        for (size_t to = 0; to < ARRAY_LENGTH(check_types); to++)
            for (size_t s = 0; s < ARRAY_LENGTH(sizes); s++) {
                size_t n = (size_t)sizes[s];
                double *x = sweep(n, 7);
                if (n > 20) {
                    const double edge[] = {65519.9, 65520, 1e-7, 5.96e-8, 2.98e-8, 3.4e38, INFINITY, -INFINITY};
                    memcpy(x + 5, edge, sizeof edge);
                }
                op_case *t = op_case_open(OP_CAST, &(op_attr){0});
                op_case_floats(t, CAST_X, check_types[from], SHAPE(sizes[s]), x);
                op_case_output(t, CAST_Y, check_types[to], SHAPE(sizes[s]));
                op_case_run(t, 2);
                const double *in = op_case_input_values(t, CAST_X), *y = op_case_values(t, CAST_Y);
                for (size_t i = 0; i < n; i++) {
                    uint32_t rounded;
                    tensor_set_f32(&rounded, check_types[to], 0, (float)in[i]);
                    double want = tensor_get_f32(&rounded, check_types[to], 0);
                    if (!(y[i] == want)) fail_msg("cast of %.9g gives %.9g, not %.9g", in[i], y[i], want);
                }
                op_case_close(t);
                free(x);
            }
}

static void test_copy_keeps_every_byte(void **state) {
    const int64_t counts[] = {1, 63, 1000003};
    for (size_t s = 0; s < ARRAY_LENGTH(counts); s++) {
        uint8_t *bytes = mem_alloc((size_t)counts[s]);
        for (int64_t i = 0; i < counts[s]; i++) bytes[i] = (uint8_t)rng_u64(1, (uint64_t)i);
        op_case *t = op_case_open(OP_COPY, &(op_attr){0});
        op_case_bytes(t, COPY_X, SHAPE(counts[s]), bytes);
        op_case_output(t, COPY_Y, DTYPE_U8, SHAPE(counts[s]));
        op_case_run(t, 2);
        const double *y = op_case_values(t, COPY_Y);
        for (int64_t i = 0; i < counts[s]; i++) assert_true(y[i] == bytes[i]);
        op_case_close(t);
        free(bytes);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_add_is_the_rounded_sum_and_works_in_place),
        cmocka_unit_test(test_add_bias_adds_the_same_row_everywhere),
        cmocka_unit_test(test_gelu_is_within_a_few_ulp_of_the_tanh_form),
        cmocka_unit_test(test_gelu_bwd_is_the_slope_of_gelu),
        cmocka_unit_test(test_swiglu_and_its_backward),
        cmocka_unit_test(test_a_gate_computed_again_by_its_backward),
        cmocka_unit_test(test_a_gate_with_gelu_and_its_backward),
        cmocka_unit_test(test_nan_stays_nan_and_large_values_stay_finite),
        cmocka_unit_test(test_rope_table_is_cos_and_sin_of_the_exact_angle),
        cmocka_unit_test(test_rope_turns_q_and_k_by_the_position_in_the_document),
        cmocka_unit_test(test_inverse_rope_is_the_backward_of_rope),
        cmocka_unit_test(test_cast_rounds_each_element_once),
        cmocka_unit_test(test_copy_keeps_every_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
