/* test_ops_norm.c - RMSNorm, LayerNorm, the norm of q and k heads with and without rope, their backward, and bias gradients.
 *
 * The reference is the definition in double. Its backward is the analytic formula, and that formula is itself held
 * against central differences of the definition. */
#include "norm_places.h"
#include "op_check.h"
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define EPS 1e-5f

/* One row, odd widths, widths over several vectors, more rows than one block of a gradient sum, many blocks. Then widths
 * of models, and around them those at which a GPU cuts a row in another way; few rows and more than it reads ahead. */
static const int64_t shapes[][2] = {{1, 1},    {3, 7},     {5, 64},   {37, 33},  {2, 4097}, {300, 48}, {2100, 5},
                                    {1, 1536}, {18, 1536}, {3, 1537}, {6, 3584}, {5, 5120}, {3, 5124}, {3, 8200}};

/* ---- the definition ------------------------------------------------------------------------------------------ */

typedef struct reference {
    int64_t N, C;
    bool centered;
    double *y, *mean, *rstd; /* forward */
    double *dx, *dgamma, *dbeta;
} reference;

static reference reference_open(int64_t N, int64_t C, bool centered) {
    size_t n = (size_t)(N * C);
    reference r = {.N = N,
                   .C = C,
                   .centered = centered,
                   .y = mem_alloc(n * 8),
                   .mean = mem_alloc((size_t)N * 8),
                   .rstd = mem_alloc((size_t)N * 8),
                   .dx = mem_alloc(n * 8),
                   .dgamma = mem_alloc((size_t)C * 8),
                   .dbeta = mem_alloc((size_t)C * 8)};
    return r;
}

static void reference_close(reference *r) {
    double *all[] = {r->y, r->mean, r->rstd, r->dx, r->dgamma, r->dbeta};
    for (size_t i = 0; i < ARRAY_LENGTH(all); i++) free(all[i]);
}

static void reference_forward(reference *r, const double *x, const double *gamma, const double *beta) {
    for (int64_t n = 0; n < r->N; n++) {
        double mean = 0, square = 0;
        for (int64_t c = 0; c < r->C && r->centered; c++) mean += x[n * r->C + c] / (double)r->C;
        for (int64_t c = 0; c < r->C; c++) square += pow(x[n * r->C + c] - mean, 2) / (double)r->C;
        r->mean[n] = mean;
        r->rstd[n] = 1 / sqrt(square + EPS);
        for (int64_t c = 0; c < r->C; c++)
            r->y[n * r->C + c] = (x[n * r->C + c] - mean) * r->rstd[n] * gamma[c] + (beta ? beta[c] : 0);
    }
}

/* Uses r->mean and r->rstd; dres may be NULL. */
static void reference_backward(reference *r, const double *x, const double *gamma, const double *dy,
                               const double *dres) {
    memset(r->dgamma, 0, (size_t)r->C * 8);
    memset(r->dbeta, 0, (size_t)r->C * 8);
    for (int64_t n = 0; n < r->N; n++) {
        double mean_a = 0, mean_axh = 0;
        for (int64_t c = 0; c < r->C; c++) {
            double xh = (x[n * r->C + c] - r->mean[n]) * r->rstd[n], d = dy[n * r->C + c];
            mean_a += d * gamma[c] / (double)r->C;
            mean_axh += d * gamma[c] * xh / (double)r->C;
            r->dgamma[c] += d * xh;
            r->dbeta[c] += d;
        }
        for (int64_t c = 0; c < r->C; c++) {
            int64_t i = n * r->C + c;
            double xh = (x[i] - r->mean[n]) * r->rstd[n];
            r->dx[i] =
                r->rstd[n] * (dy[i] * gamma[c] - (r->centered ? mean_a : 0) - xh * mean_axh) + (dres ? dres[i] : 0);
        }
    }
}

static double dot(const double *a, const double *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static double *random_values(size_t n, uint64_t seed, double mean) {
    double *d = mem_alloc(n * sizeof *d);
    float *f = mem_alloc(n * sizeof *f);
    rng_normal_fill(rng_key(seed, "norm"), 0, f, n, (float)mean, 1);
    for (size_t i = 0; i < n; i++) d[i] = f[i];
    free(f);
    return d;
}

static void test_the_backward_formula_is_the_slope_of_the_definition(void **state) {
    enum { N = 3, C = 7 };
    for (int centered = 0; centered < 2; centered++) {
        double *x = random_values(N * C, 1, 0.5), *gamma = random_values(C, 2, 1), *beta = random_values(C, 3, 0);
        double *dy = random_values(N * C, 4, 0);
        reference r = reference_open(N, C, centered);
        reference_forward(&r, x, gamma, beta);
        reference_backward(&r, x, gamma, dy, NULL);
        double *inputs[] = {x, gamma, beta}, *slopes[] = {r.dx, r.dgamma, r.dbeta}, h = 1e-5;
        for (int k = 0; k < 3; k++)
            for (int i = 0; i < (k == 0 ? N * C : C); i++) {
                double kept = inputs[k][i];
                inputs[k][i] = kept + h;
                reference_forward(&r, x, gamma, beta);
                double up = dot(r.y, dy, N * C);
                inputs[k][i] = kept - h;
                reference_forward(&r, x, gamma, beta);
                double down = dot(r.y, dy, N * C);
                inputs[k][i] = kept;
                assert_true(fabs((up - down) / (2 * h) - slopes[k][i]) <= 1e-8 * (1 + fabs(slopes[k][i])));
            }
        reference_close(&r);
        free(x);
        free(gamma);
        free(beta);
        free(dy);
    }
}

/* ---- forward ------------------------------------------------------------------------------------------------- */

/* A sum of squares of C terms in fixed lanes, then the root: relative error below (C / lanes + 6) U32 with 4 lanes or
 * more; twice that covers the division and the mean. */
static double stats_error(int64_t C) { return ((double)C / 2 + 16) * U32; }

/* kinds: 0 RMSNORM, 1 LAYERNORM; with `add` the ADD_ variant with s in the bytes of a, b or its own. */
static void norm_case(bool centered, int add, dtype type, int64_t N, int64_t C) {
    static const op_kind kinds[2][2] = {{OP_RMSNORM, OP_LAYERNORM}, {OP_ADD_RMSNORM, OP_ADD_LAYERNORM}};
    op_case *t = op_case_open(kinds[add > 0][centered], &(op_attr){.eps = EPS});
    norm_places at = norm_places_of(centered, add > 0);
    op_case_random(t, at.x, type, SHAPE(N, C), 2, 11);
    if (add) op_case_random(t, at.b, type, SHAPE(N, C), 1, 12);
    op_case_random(t, at.gamma, type, SHAPE(C), 1, 13);
    if (centered) op_case_random(t, at.beta, type, SHAPE(C), 1, 14);
    if (add > 1) op_case_alias(t, at.s, add == 2 ? at.x : at.b);
    else if (add) op_case_output(t, at.s, type, SHAPE(N, C));
    op_case_output(t, at.y, type, SHAPE(N, C));
    if (centered) op_case_output(t, at.mean, DTYPE_F32, SHAPE(N));
    op_case_output(t, at.rstd, DTYPE_F32, SHAPE(N));
    op_case_run(t, 2);

    const double *x = op_case_input_values(t, at.x);
    if (add) {
        const double *b = op_case_input_values(t, at.b), *s = op_case_values(t, at.s);
        for (int64_t i = 0; i < N * C; i++) {
            uint32_t rounded;
            tensor_set_f32(&rounded, type, 0, (float)x[i] + (float)b[i]);
            assert_true(s[i] == tensor_get_f32(&rounded, type, 0));
        }
        x = s; /* the norm is that of the rounded sum */
    }
    const double *gamma = op_case_input_values(t, at.gamma);
    const double *beta = centered ? op_case_input_values(t, at.beta) : NULL;
    reference r = reference_open(N, C, centered);
    reference_forward(&r, x, gamma, beta);
    const double *got = op_case_values(t, at.y), *rstd = op_case_values(t, at.rstd);
    const double *mean = centered ? op_case_values(t, at.mean) : NULL;
    for (int64_t n = 0; n < N; n++) {
        /* One column: x - mean is all rounding, and rstd makes it large. */
        double size = centered && C == 1 ? 4 / sqrt(EPS) : 1 + fabs(r.mean[n]) * r.rstd[n];
        check_element(rstd[n], r.rstd[n], r.rstd[n] * stats_error(C) * size, DTYPE_F32, "rstd", (size_t)n);
        if (centered) check_element(mean[n], r.mean[n], stats_error(C) * 6, DTYPE_F32, "mean", (size_t)n);
        for (int64_t c = 0; c < C; c++) {
            int64_t i = n * C + c;
            double terms = (fabs(x[i]) + fabs(r.mean[n])) * r.rstd[n] * fabs(gamma[c]) + (beta ? fabs(beta[c]) : 0);
            check_element(got[i], r.y[i], terms * stats_error(C) * size, type, "y", (size_t)i);
        }
    }

    if (add) { /* recompute: the plain norm of the stored sum gives the same bits */
        op_case *plain = op_case_open(kinds[0][centered], &(op_attr){.eps = EPS});
        norm_places to = norm_places_of(centered, false);
        op_case_floats(plain, to.x, type, SHAPE(N, C), x);
        op_case_floats(plain, to.gamma, type, SHAPE(C), gamma);
        if (centered) op_case_floats(plain, to.beta, type, SHAPE(C), beta);
        op_case_output(plain, to.y, type, SHAPE(N, C));
        if (centered) op_case_output(plain, to.mean, DTYPE_F32, SHAPE(N));
        op_case_output(plain, to.rstd, DTYPE_F32, SHAPE(N));
        op_case_run(plain, 2);
        check_equal_bits(t, at.y, plain, to.y, (size_t)(N * C), "recomputed norm");
        check_equal_bits(t, at.rstd, plain, to.rstd, (size_t)N, "recomputed rstd");
        op_case_close(plain);
    }
    reference_close(&r);
    op_case_close(t);
}

static void test_norms_match_their_definition(void **state) {
    for (size_t ti = 0; ti < ARRAY_LENGTH(check_types); ti++)
        for (size_t s = 0; s < ARRAY_LENGTH(shapes); s++)
            for (int centered = 0; centered < 2; centered++)
                norm_case(centered, 0, check_types[ti], shapes[s][0], shapes[s][1]);
}

static void check_add_norms(bool centered, dtype type) {
    for (size_t s = 0; s < ARRAY_LENGTH(shapes); s++)
        for (int add = 1; add <= 3; add++) norm_case(centered, add, type, shapes[s][0], shapes[s][1]);
}

static void test_add_rmsnorms_of_fp32_round_the_sum_first(void **state) { check_add_norms(false, DTYPE_F32); }
static void test_add_rmsnorms_of_bf16_round_the_sum_first(void **state) { check_add_norms(false, DTYPE_BF16); }
static void test_add_rmsnorms_of_fp16_round_the_sum_first(void **state) { check_add_norms(false, DTYPE_F16); }

static void test_add_layernorms_of_fp32_round_the_sum_first(void **state) { check_add_norms(true, DTYPE_F32); }
static void test_add_layernorms_of_bf16_round_the_sum_first(void **state) { check_add_norms(true, DTYPE_BF16); }
static void test_add_layernorms_of_fp16_round_the_sum_first(void **state) { check_add_norms(true, DTYPE_F16); }

/* ---- backward ------------------------------------------------------------------------------------------------ */

/* alias: -1 own bytes, 0 dx = dy, 1 dx = dres. */
static void backward_case(bool centered, dtype type, dtype grad_type, bool with_dres, int alias, int64_t N, int64_t C) {
    op_case *t = op_case_open(centered ? OP_LAYERNORM_BWD : OP_RMSNORM_BWD, &(op_attr){.eps = EPS});
    double *x = random_values((size_t)(N * C), 21, 0.3), *gamma = random_values((size_t)C, 22, 1);
    norm_bwd_places at = norm_bwd_places_of(centered);
    op_case_floats(t, at.x, type, SHAPE(N, C), x);
    op_case_floats(t, at.gamma, type, SHAPE(C), gamma);
    /* Statistics of the rounded x, rounded to fp32 as the forward would hand them over. */
    reference r = reference_open(N, C, centered);
    reference_forward(&r, op_case_input_values(t, at.x), op_case_input_values(t, at.gamma), NULL);
    for (int64_t n = 0; n < N; n++) r.rstd[n] = (float)r.rstd[n], r.mean[n] = (float)r.mean[n];
    if (centered) op_case_floats(t, at.mean, DTYPE_F32, SHAPE(N), r.mean);
    op_case_floats(t, at.rstd, DTYPE_F32, SHAPE(N), r.rstd);
    op_case_random(t, at.dy, type, SHAPE(N, C), 1, 23);
    if (with_dres) op_case_random(t, at.dres, type, SHAPE(N, C), 1, 24);
    if (alias >= 0) op_case_alias(t, at.dx, alias ? at.dres : at.dy);
    else op_case_output(t, at.dx, type, SHAPE(N, C));
    op_case_output(t, at.dgamma, grad_type, SHAPE(C));
    if (centered) op_case_output(t, at.dbeta, grad_type, SHAPE(C));
    op_case_run(t, 2);

    const double *rx = op_case_input_values(t, at.x), *rgamma = op_case_input_values(t, at.gamma),
                 *rdy = op_case_input_values(t, at.dy);
    const double *rdres = with_dres ? op_case_input_values(t, at.dres) : NULL;
    reference_backward(&r, rx, rgamma, rdy, rdres);
    const double *dx = op_case_values(t, at.dx);
    for (int64_t n = 0; n < N; n++) {
        double largest = 0; /* of the terms that are summed and cancelled in this row */
        for (int64_t c = 0; c < C; c++) {
            double xh = (fabs(rx[n * C + c]) + fabs(r.mean[n])) * r.rstd[n];
            largest = fmax(largest, fabs(rdy[n * C + c] * rgamma[c]) * (1 + xh));
        }
        for (int64_t c = 0; c < C; c++) {
            int64_t i = n * C + c;
            double xh = (fabs(rx[i]) + fabs(r.mean[n])) * r.rstd[n];
            double arithmetic =
                r.rstd[n] * largest * (2 + xh) * stats_error(C) + (rdres ? 2 * U32 * fabs(rdres[i]) : 0);
            check_element(dx[i], r.dx[i], arithmetic, type, "dx", (size_t)i);
        }
    }
    const double *dgamma = op_case_values(t, at.dgamma), *dbeta = centered ? op_case_values(t, at.dbeta) : NULL;
    for (int64_t c = 0; c < C; c++) {
        double terms = 0, rows = 0; /* fp32 sums of at most a block of rows, then double */
        for (int64_t n = 0; n < N; n++) {
            terms += fabs(rdy[n * C + c]) * (fabs(rx[n * C + c]) + fabs(r.mean[n])) * r.rstd[n];
            rows += fabs(rdy[n * C + c]);
        }
        double error = (4 + fmax(16, (double)N / 128 + 1)) * U32;
        check_element(dgamma[c], r.dgamma[c], terms * error, grad_type, "dgamma", (size_t)c);
        if (centered) check_element(dbeta[c], r.dbeta[c], rows * error, grad_type, "dbeta", (size_t)c);
    }
    reference_close(&r);
    free(x);
    free(gamma);
    op_case_close(t);
}

static void check_backward(dtype type) {
    for (size_t s = 0; s < ARRAY_LENGTH(shapes); s++)
        for (int centered = 0; centered < 2; centered++)
            backward_case(centered, type, s % 2 ? DTYPE_BF16 : DTYPE_F32, s % 3 == 0, -1, shapes[s][0], shapes[s][1]);
}

static void test_norm_backward_of_fp32_matches_the_formula(void **state) { check_backward(DTYPE_F32); }
static void test_norm_backward_of_bf16_matches_the_formula(void **state) { check_backward(DTYPE_BF16); }
static void test_norm_backward_of_fp16_matches_the_formula(void **state) { check_backward(DTYPE_F16); }

static void test_norm_backward_of_rows_longer_than_a_ring_can_be(void **state) {
    for (int centered = 0; centered < 2; centered++)
        for (int64_t C = 16390; C <= 16392; C += 2) backward_case(centered, DTYPE_BF16, DTYPE_F32, true, -1, 3, C);
}

static void test_norm_backward_works_in_the_bytes_of_dy_and_of_dres(void **state) {
    for (size_t ti = 0; ti < ARRAY_LENGTH(check_types); ti++)
        for (int centered = 0; centered < 2; centered++)
            for (int alias = 0; alias < 2; alias++) {
                const int64_t more[][2] = {{37, 33}, {18, 1536}, {5, 5120}, {3, 8200}};
                for (size_t s = 0; s < ARRAY_LENGTH(more); s++) {
                    backward_case(centered, check_types[ti], DTYPE_F32, true, alias, more[s][0], more[s][1]);
                    if (alias == 0)
                        backward_case(centered, check_types[ti], DTYPE_F32, false, alias, more[s][0], more[s][1]);
                }
            }
}

static void test_bias_grad_is_the_sum_of_rows(void **state) {
    const int64_t more[][2] = {{1, 1}, {17, 3}, {40, 4099}, {5000, 7}, {1, 1536}, {64, 264}, {67, 1544}, {16500, 3}};
    for (size_t ti = 0; ti < ARRAY_LENGTH(check_types); ti++)
        for (size_t s = 0; s < ARRAY_LENGTH(more); s++)
            for (int g = 0; g < 2; g++) {
                int64_t N = more[s][0], C = more[s][1];
                dtype grad_type = g ? DTYPE_BF16 : DTYPE_F32;
                op_case *t = op_case_open(OP_BIAS_GRAD, &(op_attr){0});
                op_case_random(t, BIAS_GRAD_DY, check_types[ti], SHAPE(N, C), 1, 31);
                op_case_output(t, BIAS_GRAD_DB, grad_type, SHAPE(C));
                op_case_run(t, 2);
                const double *dy = op_case_input_values(t, BIAS_GRAD_DY), *db = op_case_values(t, BIAS_GRAD_DB);
                for (int64_t c = 0; c < C; c++) {
                    double sum = 0, size = 0;
                    for (int64_t n = 0; n < N; n++) sum += dy[n * C + c], size += fabs(dy[n * C + c]);
                    check_element(db[c], sum, size * fmax(16, (double)N / 128 + 1) * U32, grad_type, "db", (size_t)c);
                }
                op_case_close(t);
            }
}

/* ---- q and k heads ------------------------------------------------------------------------------------------- */

static const int heads[][4] = {{3, 2, 1, 6}, {50, 4, 2, 64}, {9, 1, 1, 33}, {300, 3, 3, 8}}; /* N, H, G, D */

/* Heads of one tensor as rows of one norm: fills `rows` with `width` columns of every row from `first` on. */
static void gather_heads(double *rows, const double *qkv, int64_t N, int64_t Q, int64_t first, int64_t width) {
    for (int64_t n = 0; n < N; n++) memcpy(rows + n * width, qkv + n * Q + first, (size_t)width * 8);
}

/* Every head is a row of a norm, or, wide, all heads of q and all of k. */
static void check_qk_norm(bool wide) {
    for (size_t ti = 0; ti < ARRAY_LENGTH(check_types); ti++)
        for (size_t s = 0; s < ARRAY_LENGTH(heads); s++) {
            dtype type = check_types[ti];
            int64_t N = heads[s][0], H = heads[s][1], G = heads[s][2], head_dim = heads[s][3],
                    Q = (H + 2 * G) * head_dim;
            int64_t n_q = wide ? 1 : H, n_norms = wide ? 2 : H + G;
            int64_t q_width = wide ? H * head_dim : head_dim, k_width = wide ? G * head_dim : head_dim;
            op_attr attr = {.batch = 1,
                            .seq_len = N,
                            .n_heads = (int)H,
                            .n_kv_heads = (int)G,
                            .head_dim = (int)head_dim,
                            .eps = EPS,
                            .wide = wide};
            op_case *t = op_case_open(OP_QK_NORM, &attr);
            op_case_random(t, QK_NORM_QKV, type, SHAPE(N, Q), 2, 41);
            op_case_random(t, QK_NORM_GQ, type, SHAPE(q_width), 1, 42);
            op_case_random(t, QK_NORM_GK, type, SHAPE(k_width), 1, 43);
            op_case_output(t, QK_NORM_Y, type, SHAPE(N, Q));
            op_case_output(t, QK_NORM_RSTD, DTYPE_F32, SHAPE(N, n_norms));
            op_case_run(t, 2);
            const double *qkv = op_case_input_values(t, QK_NORM_QKV), *y = op_case_values(t, QK_NORM_Y),
                         *rstd = op_case_values(t, QK_NORM_RSTD);

            for (int alias = 0; alias < 2; alias++) {
                op_case *b = op_case_open(OP_QK_NORM_BWD, &attr);
                op_case_random(b, QK_NORM_BWD_QKV, type, SHAPE(N, Q), 2, 41);
                op_case_random(b, QK_NORM_BWD_GQ, type, SHAPE(q_width), 1, 42);
                op_case_random(b, QK_NORM_BWD_GK, type, SHAPE(k_width), 1, 43);
                op_case_floats(b, QK_NORM_BWD_RSTD, DTYPE_F32, SHAPE(N, n_norms), rstd);
                op_case_random(b, QK_NORM_BWD_DY, type, SHAPE(N, Q), 1, 44);
                if (alias) op_case_alias(b, QK_NORM_BWD_DQKV, QK_NORM_BWD_DY);
                else op_case_output(b, QK_NORM_BWD_DQKV, type, SHAPE(N, Q));
                op_case_output(b, QK_NORM_BWD_DGQ, alias ? DTYPE_BF16 : DTYPE_F32, SHAPE(q_width));
                op_case_output(b, QK_NORM_BWD_DGK, DTYPE_F32, SHAPE(k_width));
                op_case_run(b, 2);
                const double *dy = op_case_input_values(b, QK_NORM_BWD_DY), *dqkv = op_case_values(b, QK_NORM_BWD_DQKV);

                for (int k = 0; k < 2; k++) { /* queries, then keys */
                    int64_t D = k ? k_width : q_width, first = k ? H * head_dim : 0, count = (k ? G : H) * head_dim / D,
                            rows = N * count;
                    reference r = reference_open(rows, D, false);
                    double *x = mem_alloc((size_t)(rows * D) * 8), *g = mem_alloc((size_t)(rows * D) * 8);
                    gather_heads(x, qkv, N, Q, first, count * D);
                    gather_heads(g, dy, N, Q, first, count * D);
                    const double *gamma = op_case_input_values(t, k ? QK_NORM_GK : QK_NORM_GQ);
                    reference_forward(&r, x, gamma, NULL);
                    reference_backward(&r, x, gamma, g, NULL);
                    double *terms = mem_alloc((size_t)D * 8);
                    for (int64_t row = 0; row < rows; row++) {
                        int64_t n = row / count, h = row % count;
                        check_element(rstd[n * n_norms + (k ? n_q : 0) + h], r.rstd[row], r.rstd[row] * stats_error(D),
                                      DTYPE_F32, "rstd", (size_t)row);
                        double largest = 0;
                        for (int64_t d = 0; d < D; d++) {
                            double xh = fabs(x[row * D + d]) * r.rstd[row];
                            largest = fmax(largest, fabs(g[row * D + d] * gamma[d]) * (1 + xh));
                            terms[d] += fabs(g[row * D + d]) * xh;
                        }
                        for (int64_t d = 0; d < D; d++) {
                            int64_t i = n * Q + first + h * D + d;
                            double xh = fabs(x[row * D + d]) * r.rstd[row];
                            check_element(y[i], r.y[row * D + d], fabs(r.y[row * D + d]) * stats_error(D), type, "y",
                                          (size_t)i);
                            check_element(dqkv[i], r.dx[row * D + d], r.rstd[row] * largest * (2 + xh) * stats_error(D),
                                          type, "dqkv", (size_t)i);
                        }
                    }
                    for (int64_t d = 0; d < D; d++) /* a block holds 16 rows of `count` heads here */
                        check_element(op_case_values(b, k ? QK_NORM_BWD_DGK : QK_NORM_BWD_DGQ)[d], r.dgamma[d],
                                      terms[d] * ((double)(16 * count) + stats_error(D) / U32) * U32,
                                      k == 0 && alias ? DTYPE_BF16 : DTYPE_F32, "dgamma", (size_t)d);
                    reference_close(&r);
                    free(x);
                    free(g);
                    free(terms);
                }
                for (int64_t n = 0; n < N; n++) /* v passes through, both ways */
                    for (int64_t c = (H + G) * head_dim; c < Q; c++) {
                        assert_true(y[n * Q + c] == qkv[n * Q + c]);
                        assert_true(dqkv[n * Q + c] == dy[n * Q + c]);
                    }
                op_case_close(b);
            }
            op_case_close(t);
        }
}

static void test_qk_norm_and_its_backward_norm_every_head(void **state) { check_qk_norm(false); }
static void test_wide_qk_norm_and_its_backward_norm_all_heads_at_once(void **state) { check_qk_norm(true); }

/* ---- q and k heads, normed and turned ------------------------------------------------------------------------ */

/* B, T, H, G, D: halves of an odd number of elements, of whole vectors, of more than a warp holds at 16 bytes a lane; many
 * rows. The longest head is for 16 bits alone. */
static const int turned[][5] = {{1, 3, 2, 1, 6},    {2, 9, 4, 2, 64},  {3, 5, 2, 2, 34},
                                {1, 300, 3, 3, 8},  {1, 17, 1, 1, 2},  {2, 21, 3, 1, 80},
                                {1, 40, 6, 2, 128}, {1, 3, 1, 1, 512}, {1, 3, 1, 1, 1024}};
enum { LONGEST_F32 = 512, MORE_POSITIONS = 2 };

/* Two documents in every row, cut at another place in each; positions of the second batch row begin at 1. */
static int32_t *turned_docs(int64_t B, int64_t T) {
    int32_t *doc_start = mem_alloc((size_t)(B * T) * sizeof *doc_start);
    for (int64_t i = 0; i < B * T; i++) {
        int64_t cut = T / 2 + i / T;
        doc_start[i] = i % T >= cut ? (int32_t)cut : i / T == 1 ? -1 : 0;
    }
    return doc_start;
}

/* One turn of rows (N count, D), all heads of a token by the same line of the table. `size` takes the sum of the absolute
 * terms of every element, or is NULL. */
static void turn_rows(double *out, double *size, const double *rows, const double *table, const int32_t *doc_start,
                      int64_t N, int64_t T, int64_t count, int64_t D, double sign) {
    for (int64_t row = 0; row < N * count; row++) {
        int64_t n = row / count;
        const double *x = rows + row * D, *cosine = table + (n % T - doc_start[n]) * D, *sine = cosine + D / 2;
        for (int64_t i = 0; i < D / 2; i++) {
            double a = x[i], b = x[D / 2 + i], c = cosine[i], s = sign * sine[i];
            out[row * D + i] = a * c - b * s;
            out[row * D + D / 2 + i] = b * c + a * s;
            if (size)
                size[row * D + i] = fabs(a * c) + fabs(b * s), size[row * D + D / 2 + i] = fabs(b * c) + fabs(a * s);
        }
    }
}

/* The table need not hold cosines for this: the backward is the transpose of whatever it says. */
static void test_turning_back_before_the_norm_is_the_slope_of_norm_and_turn(void **state) {
    enum { N = 3, COUNT = 2, D = 6, ROWS = N * COUNT };
    const int32_t doc_start[N] = {0, -1, 2};
    double *x = random_values(ROWS * D, 51, 0.5), *gamma = random_values(D, 52, 1),
           *dy = random_values(ROWS * D, 53, 0);
    double *table = random_values(N * D, 54, 0), y[ROWS * D], d[ROWS * D], h = 1e-5;
    reference r = reference_open(ROWS, D, false);
    reference_forward(&r, x, gamma, NULL);
    turn_rows(d, NULL, dy, table, doc_start, N, N, COUNT, D, -1);
    reference_backward(&r, x, gamma, d, NULL);
    double *inputs[] = {x, gamma}, *slopes[] = {r.dx, r.dgamma};
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < (k == 0 ? ROWS * D : D); i++) {
            double kept = inputs[k][i], at[2];
            for (int side = 0; side < 2; side++) {
                inputs[k][i] = side ? kept + h : kept - h;
                reference_forward(&r, x, gamma, NULL);
                turn_rows(y, NULL, r.y, table, doc_start, N, N, COUNT, D, 1);
                at[side] = dot(y, dy, ROWS * D);
            }
            inputs[k][i] = kept;
            assert_true(fabs((at[1] - at[0]) / (2 * h) - slopes[k][i]) <= 1e-8 * (1 + fabs(slopes[k][i])));
        }
    reference_close(&r);
    free(x);
    free(gamma);
    free(dy);
    free(table);
}

typedef struct turned_case {
    dtype type;
    int64_t B, T, H, G, D;
    int32_t *doc_start;
    op_attr attr;
} turned_case;

static void turned_inputs(op_case *t, const turned_case *s) {
    int64_t N = s->B * s->T;
    op_case_random(t, QK_NORM_ROPE_QKV, s->type, SHAPE(N, (s->H + 2 * s->G) * s->D), 2, 61);
    op_case_random(t, QK_NORM_ROPE_GQ, s->type, SHAPE(s->D), 1, 62);
    op_case_random(t, QK_NORM_ROPE_GK, s->type, SHAPE(s->D), 1, 63);
    op_case_random(t, QK_NORM_ROPE_TABLE, DTYPE_F32, SHAPE(s->T + MORE_POSITIONS, s->D), 1, 64);
    op_case_ints(t, QK_NORM_ROPE_DOC_START, SHAPE(N), s->doc_start);
}

/* Queries (key false) or keys of one run, forward t and backward b. */
static void check_turned(const turned_case *s, op_case *t, op_case *b, bool key, dtype grad_type) {
    int64_t N = s->B * s->T, D = s->D, n_normed = s->H + s->G, Q = (s->H + 2 * s->G) * D;
    int64_t first = key ? s->H : 0, count = key ? s->G : s->H, rows = N * count;
    size_t n_bytes = (size_t)(rows * D) * 8;
    const double *qkv = op_case_input_values(b, QK_NORM_ROPE_BWD_QKV),
                 *gamma = op_case_input_values(b, key ? QK_NORM_ROPE_BWD_GK : QK_NORM_ROPE_BWD_GQ);
    const double *table = op_case_input_values(b, QK_NORM_ROPE_BWD_TABLE),
                 *dy = op_case_input_values(b, QK_NORM_ROPE_BWD_DY);
    const double *y = op_case_values(t, QK_NORM_ROPE_Y), *rstd = op_case_values(t, QK_NORM_ROPE_RSTD),
                 *dqkv = op_case_values(b, QK_NORM_ROPE_BWD_DQKV);
    double *x = mem_alloc(n_bytes), *g = mem_alloc(n_bytes), *want = mem_alloc(n_bytes),
           *want_size = mem_alloc(n_bytes);
    double *d = mem_alloc(n_bytes), *d_size = mem_alloc(n_bytes), *terms = mem_alloc((size_t)D * 8);
    reference r = reference_open(rows, D, false);
    gather_heads(x, qkv, N, Q, first * D, count * D);
    gather_heads(g, dy, N, Q, first * D, count * D);
    reference_forward(&r, x, gamma, NULL);
    turn_rows(want, want_size, r.y, table, s->doc_start, N, s->T, count, D, 1);
    turn_rows(d, d_size, g, table, s->doc_start, N, s->T, count, D, -1);
    reference_backward(&r, x, gamma, d, NULL);
    double error = stats_error(D) + 3 * U32; /* a turn is two products and a sum more */
    for (int64_t row = 0; row < rows; row++) {
        int64_t n = row / count, h = first + row % count;
        check_element(rstd[n * n_normed + h], r.rstd[row], r.rstd[row] * stats_error(D), DTYPE_F32, "rstd",
                      (size_t)row);
        double largest = 0;
        for (int64_t c = 0; c < D; c++) {
            double xh = fabs(x[row * D + c]) * r.rstd[row];
            largest = fmax(largest, fabs(d_size[row * D + c] * gamma[c]) * (1 + xh));
            terms[c] += d_size[row * D + c] * xh;
        }
        for (int64_t c = 0; c < D; c++) {
            int64_t i = n * Q + h * D + c, e = row * D + c;
            double xh = fabs(x[e]) * r.rstd[row];
            check_element(y[i], want[e], want_size[e] * error, s->type, "y", (size_t)i);
            check_element(dqkv[i], r.dx[e], r.rstd[row] * largest * (2 + xh) * error, s->type, "dqkv", (size_t)i);
        }
    }
    for (int64_t c = 0; c < D; c++) /* a block holds 16 rows of `count` heads here */
        check_element(op_case_values(b, key ? QK_NORM_ROPE_BWD_DGK : QK_NORM_ROPE_BWD_DGQ)[c], r.dgamma[c],
                      terms[c] * ((double)(16 * count) * U32 + error), grad_type, "dgamma", (size_t)c);
    reference_close(&r);
    double *all[] = {x, g, want, want_size, d, d_size, terms};
    for (size_t i = 0; i < ARRAY_LENGTH(all); i++) free(all[i]);
}

static void test_qk_norm_rope_and_its_backward_norm_and_turn_every_head(void **state) {
    for (size_t ti = 0; ti < ARRAY_LENGTH(check_types); ti++)
        for (size_t i = 0; i < ARRAY_LENGTH(turned); i++)
            for (int alias = 0; alias < 2; alias++) {
                const int *k = turned[i];
                turned_case s = {.type = check_types[ti], .B = k[0], .T = k[1], .H = k[2], .G = k[3], .D = k[4]};
                if (s.type == DTYPE_F32 && s.D > LONGEST_F32) continue;
                int64_t N = s.B * s.T, Q = (s.H + 2 * s.G) * s.D;
                dtype grad_type = alias ? DTYPE_BF16 : DTYPE_F32;
                s.doc_start = turned_docs(s.B, s.T);
                s.attr = (op_attr){
                    .batch = s.B, .seq_len = s.T, .n_heads = k[2], .n_kv_heads = k[3], .head_dim = k[4], .eps = EPS};
                op_case *t = op_case_open(OP_QK_NORM_ROPE, &s.attr);
                turned_inputs(t, &s);
                if (alias) op_case_alias(t, QK_NORM_ROPE_Y, QK_NORM_ROPE_QKV);
                else op_case_output(t, QK_NORM_ROPE_Y, s.type, SHAPE(N, Q));
                op_case_output(t, QK_NORM_ROPE_RSTD, DTYPE_F32, SHAPE(N, s.H + s.G));
                op_case_run(t, 2);

                op_case *b = op_case_open(OP_QK_NORM_ROPE_BWD, &s.attr);
                turned_inputs(b, &s);
                op_case_floats(b, QK_NORM_ROPE_BWD_RSTD, DTYPE_F32, SHAPE(N, s.H + s.G),
                               op_case_values(t, QK_NORM_ROPE_RSTD));
                op_case_random(b, QK_NORM_ROPE_BWD_DY, s.type, SHAPE(N, Q), 1, 65);
                if (alias) op_case_alias(b, QK_NORM_ROPE_BWD_DQKV, QK_NORM_ROPE_BWD_DY);
                else op_case_output(b, QK_NORM_ROPE_BWD_DQKV, s.type, SHAPE(N, Q));
                op_case_output(b, QK_NORM_ROPE_BWD_DGQ, grad_type, SHAPE(s.D));
                op_case_output(b, QK_NORM_ROPE_BWD_DGK, grad_type, SHAPE(s.D));
                op_case_run(b, 2);

                for (int key = 0; key < 2; key++) check_turned(&s, t, b, key, grad_type);
                const double *qkv = op_case_input_values(b, QK_NORM_ROPE_BWD_QKV),
                             *y = op_case_values(t, QK_NORM_ROPE_Y);
                const double *dy = op_case_input_values(b, QK_NORM_ROPE_BWD_DY),
                             *dqkv = op_case_values(b, QK_NORM_ROPE_BWD_DQKV);
                for (int64_t n = 0; n < N; n++) /* v passes through, both ways */
                    for (int64_t c = (s.H + s.G) * s.D; c < Q; c++) {
                        assert_true(y[n * Q + c] == qkv[n * Q + c]);
                        assert_true(dqkv[n * Q + c] == dy[n * Q + c]);
                    }
                op_case_close(t);
                op_case_close(b);
                free(s.doc_start);
            }
}

/* A gain and an offset that is added to it give the bits of their sum as the gain. */
static void test_an_offset_of_gains_is_a_gain(void **state) {
    enum { N = 37, H = 3, G = 1, D = 24, C = (H + 2 * G) * D, P = 40 };
    static const op_kind kinds[] = {OP_RMSNORM,     OP_RMSNORM_BWD,  OP_QK_NORM,
                                    OP_QK_NORM_BWD, OP_QK_NORM_ROPE, OP_QK_NORM_ROPE_BWD};
    static const char *const outputs[] = {"y rstd", "dx dgamma", "y rstd", "dqkv dgq dgk", "y rstd", "dqkv dgq dgk"};
    int32_t doc_start[N];
    double gains[2][C];
    for (int i = 0; i < N; i++) doc_start[i] = i / 5 * 5;
    for (int i = 0; i < C; i++)
        gains[0][i] = 0.125 * (i % 13 - 6), gains[1][i] = gains[0][i] + 1; /* exact in every type */
    for (size_t k = 0; k < ARRAY_LENGTH(kinds) * ARRAY_LENGTH(check_types); k++) {
        op_kind kind = kinds[k / ARRAY_LENGTH(check_types)];
        dtype type = check_types[k % ARRAY_LENGTH(check_types)];
        bool heads = k / ARRAY_LENGTH(check_types) > 1;
        op_case *t[2];
        for (int whole = 0; whole < 2; whole++) {
            op_attr a = {.batch = 1, .seq_len = N, .n_heads = H, .n_kv_heads = G, .head_dim = D, .eps = EPS};
            a.gain_offset = whole ? 0 : 1;
            op_case *c = t[whole] = op_case_open(kind, &a);
            for (int n = 0; n < op_input_count(kind); n++) {
                const char *name = op_input_name(kind, n);
                if (name[0] == 'g') op_case_floats(c, n, type, SHAPE(heads ? D : C), gains[whole]);
                else if (!strcmp(name, "doc_start")) op_case_ints(c, n, SHAPE(N), doc_start);
                else if (!strcmp(name, "table")) op_case_random(c, n, DTYPE_F32, SHAPE(P, D), 1, 4);
                else if (!strcmp(name, "rstd"))
                    op_case_random(c, n, DTYPE_F32, heads ? SHAPE(N, H + G) : SHAPE(N), 1, 5);
                else if (strcmp(name, "dres")) op_case_random(c, n, type, SHAPE(N, C), 1, 6 + (uint64_t)n);
            }
            for (int n = 0; n < op_output_count(kind); n++) {
                const char *name = op_output_name(kind, n);
                bool gain = name[0] == 'd' && name[1] == 'g', stat = !strcmp(name, "rstd");
                if (!strstr(outputs[k / ARRAY_LENGTH(check_types)], name)) continue;
                op_case_output(c, n, gain || stat ? DTYPE_F32 : type,
                               gain   ? SHAPE(heads ? D : C)
                               : stat ? (heads ? SHAPE(N, H + G) : SHAPE(N))
                                      : SHAPE(N, C));
            }
            op_case_run(c, 2);
        }
        check_equal_bits(t[0], 0, t[1], 0, (size_t)(N * C), op_name(kind));
        op_case_close(t[0]);
        op_case_close(t[1]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_offset_of_gains_is_a_gain),
        cmocka_unit_test(test_the_backward_formula_is_the_slope_of_the_definition),
        cmocka_unit_test(test_norms_match_their_definition),
        cmocka_unit_test(test_add_rmsnorms_of_fp32_round_the_sum_first),
        cmocka_unit_test(test_add_rmsnorms_of_bf16_round_the_sum_first),
        cmocka_unit_test(test_add_rmsnorms_of_fp16_round_the_sum_first),
        cmocka_unit_test(test_add_layernorms_of_fp32_round_the_sum_first),
        cmocka_unit_test(test_add_layernorms_of_bf16_round_the_sum_first),
        cmocka_unit_test(test_add_layernorms_of_fp16_round_the_sum_first),
        cmocka_unit_test(test_norm_backward_of_fp32_matches_the_formula),
        cmocka_unit_test(test_norm_backward_of_bf16_matches_the_formula),
        cmocka_unit_test(test_norm_backward_of_fp16_matches_the_formula),
        cmocka_unit_test(test_norm_backward_of_rows_longer_than_a_ring_can_be),
        cmocka_unit_test(test_norm_backward_works_in_the_bytes_of_dy_and_of_dres),
        cmocka_unit_test(test_bias_grad_is_the_sum_of_rows),
        cmocka_unit_test(test_qk_norm_and_its_backward_norm_every_head),
        cmocka_unit_test(test_wide_qk_norm_and_its_backward_norm_all_heads_at_once),
        cmocka_unit_test(test_turning_back_before_the_norm_is_the_slope_of_norm_and_turn),
        cmocka_unit_test(test_qk_norm_rope_and_its_backward_norm_and_turn_every_head),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
