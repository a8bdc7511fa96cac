/* test_ops_critic.c - VALUE and its gradient, and CRITIC: losses of solutions and the derivative by every value.
 *
 * The references are loops in double, written from the definitions. VALUE rounds once to fp32, its gradients once to their dtype;
 * sums of a few hundred products in double agree to 1e-13 before that. Derivatives of CRITIC are compared with finite differences of
 * the definition, in which the returns of lambda are constants: a step of 1e-5 and fourth order cost less than 1e-9, a
 * rounding to fp32 6e-8 of a number. */
#include "op_check.h"

#include <stdlib.h>

/* ---- the last layer ---------------------------------------------------------------------------------------------- */

static double sigma(double x) { return 1 / (1 + exp(-x)); }

static double value_of(const double *x, const double *w, double b, int64_t k, bool sigmoid) {
    double sum = b;
    for (int64_t i = 0; i < k; i++) sum += x[i] * w[i];
    return sigmoid ? sigma(sum) : sum;
}

static void values_and_gradients_are_those_of_a_loop(void **state) {
    static const struct { int64_t n, k; } sizes[] = {{1, 1}, {7, 33}, {256, 16}, {600, 5}};
    for (size_t s = 0; s < ARRAY_LENGTH(sizes); s++)
        for (size_t q = 0; q < ARRAY_LENGTH(check_types); q++)
            for (int sigmoid = 0; sigmoid < 2; sigmoid++) {
                int64_t n = sizes[s].n, k = sizes[s].k;
                dtype t = check_types[q];
                op_attr a = {.sigmoid = sigmoid};
                op_case *f = op_case_open(OP_VALUE, &a);
                op_case_random(f, VALUE_X, t, SHAPE(n, k), 1, 1);
                op_case_random(f, VALUE_W, t, SHAPE(1, k), 0.3, 2);
                op_case_random(f, VALUE_B, t, SHAPE(1), 1, 3);
                op_case_output(f, VALUE_VALUES, DTYPE_F32, SHAPE(n));
                op_case_run(f, 2);
                const double *x = op_case_input_values(f, VALUE_X), *w = op_case_input_values(f, VALUE_W);
                double *want = calloc((size_t)n, sizeof *want), *dx = calloc((size_t)(n * k), sizeof *dx),
                       *dw = calloc((size_t)k, sizeof *dw), db = 0, size = 0;
                for (int64_t i = 0; i < n; i++)
                    want[i] = value_of(x + i * k, w, op_case_input_values(f, VALUE_B)[0], k, sigmoid);
                check_output(f, VALUE_VALUES, DTYPE_F32, want, (size_t)n, 1e-13, "values");
                op_case *g = op_case_open(OP_VALUE_BWD, &a);
                dtype grad = t == DTYPE_F16 ? DTYPE_F32 : t;
                op_case_floats(g, VALUE_BWD_X, t, SHAPE(n, k), x);
                op_case_floats(g, VALUE_BWD_W, t, SHAPE(1, k), w);
                op_case_floats(g, VALUE_BWD_VALUES, DTYPE_F32, SHAPE(n), op_case_values(f, VALUE_VALUES));
                op_case_random(g, VALUE_BWD_DVALUES, DTYPE_F32, SHAPE(n), 1, 4);
                op_case_output(g, VALUE_BWD_DX, t, SHAPE(n, k));
                op_case_output(g, VALUE_BWD_DW, grad, SHAPE(1, k));
                op_case_output(g, VALUE_BWD_DB, grad, SHAPE(1));
                op_case_run(g, 2);
                const double *d = op_case_input_values(g, VALUE_BWD_DVALUES);
                for (int64_t i = 0; i < n; i++) {
                    double v = op_case_values(f, VALUE_VALUES)[i], slope = sigmoid ? d[i] * v * (1 - v) : d[i];
                    for (int64_t c = 0; c < k; c++) dx[i * k + c] = slope * w[c], dw[c] += slope * x[i * k + c];
                    db += slope, size += fabs(slope);
                }
                check_output(g, VALUE_BWD_DX, t, dx, (size_t)(n * k), 1e-13, "dx");
                check_output(g, VALUE_BWD_DW, grad, dw, (size_t)k, 1e-12 * size, "dw");
                check_output(g, VALUE_BWD_DB, grad, &db, 1, 1e-12 * size, "db");
                op_case_close(f);
                op_case_close(g);
                free(want), free(dx), free(dw);
            }
}

/* ---- losses ------------------------------------------------------------------------------------------------------ */

enum { ROWS = 3, T = 40, N = ROWS * T };
typedef struct response {
    int row, example, part, start, n; /* start: the target before the first token */
} response;
/* Two pairs, one with single tokens; nothing; a correct solution alone beside a pair that ends with the row. */
static const response solutions[] = {{0, 0, PREFERENCE_CHOSEN, 2, 6},  {0, 0, PREFERENCE_REJECTED, 10, 9},
                                     {0, 1, PREFERENCE_CHOSEN, 22, 1}, {0, 1, PREFERENCE_REJECTED, 30, 1},
                                     {2, 0, PREFERENCE_CHOSEN, 0, 12}, {2, 0, PREFERENCE_REJECTED, 14, 25}};

typedef struct loss_case {
    critic_options o;
    double values[N], returns[N]; /* returns: by token, as the values that were given make them */
} loss_case;

static double value_at(const loss_case *c, const response *r, int t) {
    return c->values[r->row * T + r->start + 1 + t];
}

static void find_returns(loss_case *c) {
    for (size_t i = 0; i < ARRAY_LENGTH(solutions); i++) {
        const response *r = &solutions[i];
        double gamma = (double)c->o.gamma, lam = (double)c->o.lam, next = 0;
        for (int t = r->n; t-- > 0;) {
            next = t == r->n - 1 ? r->part == PREFERENCE_CHOSEN
                                 : (1 - lam) * gamma * value_at(c, r, t + 1) + lam * gamma * next;
            c->returns[r->row * T + r->start + 1 + t] = next;
        }
    }
}

static double mean_of(const loss_case *c, const response *r) {
    double sum = 0;
    for (int t = 0; t < r->n; t++) sum += value_at(c, r, t);
    return sum / r->n;
}

static double error_of(const loss_case *c, double x) {
    if (!c->o.smooth) return x * x;
    return fabs(x) < 0.5 ? x * x / (2 * 0.5) : fabs(x) - 0.5 / 2;
}

static double loss_of(const loss_case *c, double *n) {
    double sum = 0;
    *n = 0;
    for (size_t i = 0; i < ARRAY_LENGTH(solutions); i++) {
        const response *r = &solutions[i];
        if (c->o.kind == CRITIC_PAIRWISE) {
            if (r->part == PREFERENCE_REJECTED) continue;
            sum += -log(sigma(mean_of(c, r) - mean_of(c, r + 1))), ++*n;
            continue;
        }
        for (int t = 0; t < r->n; t++) {
            double x = value_at(c, r, t) - c->returns[r->row * T + r->start + 1 + t];
            sum += error_of(c, x) / r->n;
        }
        ++*n;
    }
    return sum;
}

static void segments_of(int32_t segments[N]) {
    for (int i = 0; i < N; i++) segments[i] = -1;
    for (size_t i = 0; i < ARRAY_LENGTH(solutions); i++)
        for (int t = 0; t < solutions[i].n; t++)
            segments[solutions[i].row * T + solutions[i].start + t] =
                PREFERENCE_PARTS * solutions[i].example + solutions[i].part;
}

static op_case *run_op(const op_attr *a, const double *values, const int32_t *segments, uint32_t micro, float seed,
                       const double *sums) {
    op_case *o = op_case_open(OP_CRITIC, a);
    op_case_floats(o, CRITIC_VALUES, DTYPE_F32, SHAPE(N), values);
    op_case_ints(o, CRITIC_SEGMENTS, SHAPE(N), segments);
    op_case_bytes(o, CRITIC_SCALARS, SHAPE((int64_t)sizeof(step_scalars)),
                  &(step_scalars){.micro = micro, .seed = seed});
    op_case_output(o, CRITIC_DVALUES, DTYPE_F32, SHAPE(N));
    op_case_output_floats(o, CRITIC_SUMS, DTYPE_F64, SHAPE(CRITIC_SUM_COUNT), sums);
    op_case_run(o, 2);
    return o;
}

static op_case *run_case(const loss_case *c, uint32_t micro, float seed, const double *sums) {
    op_attr a = {.batch = ROWS, .seq_len = T, .critic = c->o};
    int32_t segments[N];
    segments_of(segments);
    return run_op(&a, c->values, segments, micro, seed, sums);
}

static void check_case(loss_case *c) {
    double poison[CRITIC_SUM_COUNT], before[CRITIC_SUM_COUNT], want[CRITIC_SUM_COUNT] = {0}, n;
    for (int i = 0; i < CRITIC_SUM_COUNT; i++) poison[i] = NAN, before[i] = i;
    find_returns(c);
    want[SUM_LOSS] = want[SUM_WEIGHTED_LOSS] = loss_of(c, &n);
    want[SUM_VALID] = want[SUM_WEIGHTS] = n;
    for (size_t i = 0; i < ARRAY_LENGTH(solutions); i++) {
        bool wrong = solutions[i].part == PREFERENCE_REJECTED;
        want[wrong ? SUM_VALUE_WRONG : SUM_VALUE_CORRECT] += mean_of(c, &solutions[i]);
        want[wrong ? SUM_WRONG : SUM_CORRECT] += 1;
        if (wrong) want[SUM_PAIRS] += 1, want[SUM_RANKED] += mean_of(c, &solutions[i - 1]) > mean_of(c, &solutions[i]);
    }
    op_case *first = run_case(c, 0, 1, poison), *second = run_case(c, 1, 8, before);
    for (int i = 0; i < CRITIC_SUM_COUNT; i++) {
        assert_true(fabs(op_case_values(first, CRITIC_SUMS)[i] - want[i]) < 1e-12 * (1 + fabs(want[i])));
        assert_true(fabs(op_case_values(second, CRITIC_SUMS)[i] - want[i] - i) < 1e-12 * (1 + fabs(want[i]) + i));
    }
    for (int i = 0; i < N; i++) {
        static const double weights[] = {1.0 / 12, -8.0 / 12, 0, 8.0 / 12, -1.0 / 12};
        double at = c->values[i], slope = 0, step = 1e-5;
        for (int k = 0; k < 5; k++) {
            c->values[i] = at + (k - 2) * step;
            slope += weights[k] * loss_of(c, &n) / step;
        }
        c->values[i] = at;
        double got = op_case_values(first, CRITIC_DVALUES)[i];
        if (!(fabs(got - slope) < 1e-9 + 1e-7 * fabs(slope))) fail_msg("token %d: %.9g, expected %.9g", i, got, slope);
        assert_true(op_case_values(second, CRITIC_DVALUES)[i] == 8 * got);
    }
    op_case_close(first);
    op_case_close(second);
}

static void losses_and_derivatives_are_those_of_the_definitions(void **state) {
    static const critic_options options[] = {{.kind = CRITIC_PAIRWISE},
                                             {.kind = CRITIC_LAMBDA, .gamma = 1, .lam = 0.95f},
                                             {.kind = CRITIC_LAMBDA, .gamma = 0.5f, .lam = 0},
                                             {.kind = CRITIC_LAMBDA, .gamma = 1, .lam = 1},
                                             {.kind = CRITIC_LAMBDA, .gamma = 0.9f, .lam = 0.5f, .smooth = true}};
    for (size_t i = 0; i < ARRAY_LENGTH(options); i++) {
        loss_case c = {.o = options[i]};
        for (int t = 0; t < N; t++) c.values[t] = (float)(3 * ((double)rng_below(31, (uint64_t)t, 1000) / 1000 - 0.4));
        check_case(&c);
    }
}

/* Rows as two sequence ranks have gathered them: derivatives of every token with the bits of one rank, and the sums at
 * the first alone. */
static void sequence_ranks_judge_whole_rows(void **state) {
    enum { RANKS = 2 };
    const preference_rows rows = {ROWS, T, RANKS};
    double zeros[CRITIC_SUM_COUNT] = {0};
    for (int kind = CRITIC_PAIRWISE; kind <= CRITIC_LAMBDA; kind++) {
        loss_case c = {.o = {.kind = (critic_kind)kind, .gamma = 0.9f, .lam = 0.5f}}, gathered = c;
        int32_t segments[N], moved[N];
        segments_of(segments);
        for (int t = 0; t < N; t++) c.values[t] = (float)(3 * ((double)rng_below(32, (uint64_t)t, 1000) / 1000 - 0.4));
        for (int i = 0; i < N; i++) {
            int64_t at = preference_token(&rows, i / T, i % T);
            gathered.values[at] = c.values[i], moved[at] = segments[i];
        }
        op_case *whole = run_case(&c, 0, 1, zeros);
        for (int rank = 0; rank < RANKS; rank++) {
            op_attr a = {.batch = ROWS, .seq_len = T / RANKS, .group_size = RANKS, .index = rank, .critic = c.o};
            op_case *o = run_op(&a, gathered.values, moved, 0, 1, zeros);
            for (int i = 0; i < CRITIC_SUM_COUNT; i++)
                assert_true(op_case_values(o, CRITIC_SUMS)[i] == (rank ? 0 : op_case_values(whole, CRITIC_SUMS)[i]));
            for (int i = 0; i < N; i++)
                assert_true(op_case_values(o, CRITIC_DVALUES)[preference_token(&rows, i / T, i % T)] ==
                            op_case_values(whole, CRITIC_DVALUES)[i]);
            op_case_close(o);
        }
        op_case_close(whole);
    }
}

/* Three tokens of a wrong solution and of a correct one, by hand. */
static void returns_by_hand(void **state) {
    critic_options o = {.kind = CRITIC_LAMBDA, .gamma = 1, .lam = 0.5f};
    const float values[8] = {9, 0.5f, 0.75f, 0.25f, 9, 0.5f, 0.25f, 0.5f};
    const int32_t segments[8] = {0, 0, 0, -1, 1, 1, 1, -1};
    critic_part parts[8 * PREFERENCE_PARTS];
    double sums[CRITIC_SUM_COUNT] = {0};
    float d[8];
    critic_row(&o, parts, &(preference_rows){1, 8, 1}, 0, segments, values, 1, d, sums);
    /* correct: G = 0.5 * 0.75 + 0.5 * G_2, G_2 = 0.5 * 0.25 + 0.5 * 1, G_3 = 1: 0.6875, 0.625, 1 */
    double correct[3] = {0.5 - 0.6875, 0.75 - 0.625, 0.25 - 1}, loss = 0;
    /* wrong: G_3 = 0, G_2 = 0.5 * 0.5, G_1 = 0.5 * 0.25 + 0.5 * 0.25 */
    double wrong[3] = {0.5 - 0.25, 0.25 - 0.25, 0.5 - 0};
    for (int i = 0; i < 3; i++) {
        loss += (correct[i] * correct[i] + wrong[i] * wrong[i]) / 3;
        assert_true(d[1 + i] == (float)(2 * correct[i] / 3) && d[5 + i] == (float)(2 * wrong[i] / 3));
    }
    assert_true(fabs(sums[SUM_LOSS] - loss) < 1e-15 && sums[SUM_VALID] == 2);
    assert_true(d[0] == 0 && d[4] == 0);
}

static void values_of_targets_are_those_behind_them(void **state) {
    const float values[6] = {1, 2, 3, 4, 5, 6}, want[6] = {0, 3, 4, 0, 6, 6};
    const int32_t targets[6] = {-1, 7, 8, -1, 9, 7};
    float out[6];
    critic_target_values(6, targets, values, out);
    for (int t = 0; t < 6; t++) assert_true(out[t] == want[t]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_and_gradients_are_those_of_a_loop),
        cmocka_unit_test(losses_and_derivatives_are_those_of_the_definitions),
        cmocka_unit_test(sequence_ranks_judge_whole_rows),
        cmocka_unit_test(returns_by_hand),
        cmocka_unit_test(values_of_targets_are_those_behind_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
