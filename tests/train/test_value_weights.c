/* test_value_weights.c - weights from the values of a critic: advantages, moving averages and weights of known numbers, responses
 * inside rows, statistics, and the control that shuffles within responses. */
#include "train/weighting.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static void near(double got, double want, double bound) {
    if (!(fabs(got - want) <= bound)) fail_msg("found %.9g, expected %.9g", got, want);
}

static void advantages_of_known_values(void **state) {
    static const int32_t targets[] = {5, 6, 7}, doc_start[] = {0, 0, 0};
    static const float values[] = {.5f, .7f, .9f};
    static const struct {
        value_options o;
        float want[3];
    } cases[] = {{{.lambda = .95, .beta = 1}, {.3705f, .39f, .2f}},
                 {{.lambda = 0, .beta = 1}, {0, .2f, .2f}},
                 {{.lambda = 1, .beta = 1}, {.4f, .4f, .2f}},
                 {{.lambda = .95, .beta = 1, .terminal = true}, {.95f * (.2f + .95f * .1f), .2f + .95f * .1f, .1f}}};
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        float out[3];
        value_advantages(&cases[i].o, targets, doc_start, 3, values, out);
        for (int t = 0; t < 3; t++)
            near((double)out[t], (double)cases[i].want[t], 1e-6); /* fp32 sums of three numbers */
    }
}

/* Each response begins anew with 0.5: after a prompt, and after the end of a document that has no prompt in between. */
static void responses_are_runs_of_targets_in_one_document(void **state) {
    static const int32_t targets[] = {-1, 4, 4, -1, 4, 4, 4, 4, -1}, doc_start[] = {0, 0, 0, 0, 0, 0, 6, 6, 6};
    static const float values[] = {9, .6f, .8f, 9, .1f, .2f, 1, .5f, 9};
    static const float want[] = {0, .1f + .2f, .2f, 0, -.4f + .1f, .1f, .5f - .5f, -.5f, 0};
    float out[9];
    value_advantages(&(value_options){.lambda = 1, .beta = 1}, targets, doc_start, 9, values, out);
    for (int t = 0; t < 9; t++) near((double)out[t], (double)want[t], 1e-6);
}

static void moving_averages_of_known_means(void **state) {
    value_ema e = value_ema_start();
    assert_true(e.mean == 0 && e.deviation == 1 && e.updates == 0);
    value_ema_update(&e, 1, 3, 4, .1);
    assert_true(e.mean == 1 && e.deviation == 3);
    value_ema_update(&e, 2, 3, 4, .1);
    near(e.mean, 1.75, 1e-12);
    e = value_ema_start();
    for (int i = 0; i < 3; i++) value_ema_update(&e, i < 2 ? 1 : 2, 1, 2, .1);
    near(e.mean, 1.1, 1e-12);
    assert_int_equal(e.updates, 3);
}

static void weights_are_clamped(void **state) {
    value_ema e = {1, .2, .1};
    value_options o = {.lambda = .95, .beta = 1};
    near((double)value_weight(&o, &e, .2f), 1, 1e-6);
    near((double)value_weight(&o, &e, .25f), exp(.05 / (.1 + 1e-8)), 1e-5);
    o.beta = 2;
    near((double)value_weight(&o, &e, .25f), exp(.25), 1e-5);
    assert_true(value_weight(&o, &e, 5) == WEIGHT_MOST && value_weight(&o, &e, -5) == WEIGHT_LEAST);
    e.deviation = 0; /* equal advantages: e^(huge) and e^-(huge) stay finite weights */
    assert_true(value_weight(&o, &e, 1) == WEIGHT_MOST && value_weight(&o, &e, -1) == WEIGHT_LEAST);
}

static void statistics_are_those_of_the_targets(void **state) {
    static const int32_t targets[] = {1, -1, 1, 1};
    static const float advantages[] = {1, 50, 2, 3}, weights[] = {.5f, 50, 1, 2.5f};
    value_sums s = {0};
    value_sums_add(&s, targets, 2, advantages, weights);
    value_sums_add(&s, targets + 2, 2, advantages + 2, weights + 2);
    near(value_mean(s.n, s.advantage), 2, 1e-12);
    near(value_deviation(s.n, s.advantage, s.advantage_squares), sqrt(2.0 / 3), 1e-12);
    near(value_mean(s.n, s.weight), 4.0 / 3, 1e-12);
    assert_true(s.weight_least == .5 && s.weight_most == 2.5);
    double entropy = 0;
    for (int t = 0; t < 4; t++)
        if (targets[t] >= 0) entropy -= (double)weights[t] / 4 * log((double)weights[t] / 4);
    near(value_entropy(&s), entropy, 1e-12);
    near(value_deviation(4, 4, 4), 1e-4, 1e-12); /* the variance is at least 1e-8 */
    value_sums none = {0};
    assert_true(isnan(value_mean(none.n, none.weight)) && isnan(value_entropy(&none)));
}

/* The same weights in every response, in an order that row and seed give. */
static void shuffled_weights_stay_in_their_response(void **state) {
    enum { T = 64 };
    int32_t targets[T], doc_start[T];
    float advantages[T], plain[T], first[T], again[T], other[T];
    train_request r = {.train = {.seed = 7, .value = {.lambda = .95, .beta = 1}}};
    value_ema e = {3, 0, 1};
    for (int t = 0; t < T; t++) {
        targets[t] = t % 16 < 4 ? -1 : t;
        doc_start[t] = t / 32 * 32;
        advantages[t] = (float)sin(t) / 2;
    }
    weighting_row row = {&r, 5, T, targets, doc_start, advantages, &e};
    weighting_VERIFIABLE.weigh(&row, plain);
    weighting_SHUFFLED.weigh(&row, first);
    weighting_SHUFFLED.weigh(&row, again);
    assert_memory_equal(first, again, sizeof first);
    row.row = 6;
    weighting_SHUFFLED.weigh(&row, other);
    assert_memory_not_equal(first, other, sizeof first);
    int moved = 0;
    for (int from = 4; from < T; from += 16) {
        bool used[12] = {false};
        for (int i = 0; i < 12; i++) {
            int found = -1;
            for (int k = 0; k < 12 && found < 0; k++)
                if (!used[k] && plain[from + k] == first[from + i]) found = k;
            if (found < 0) fail_msg("weight %g at %d is none of its response", (double)first[from + i], from + i);
            used[found] = true;
            moved += found != i;
        }
    }
    assert_true(moved > 24);
    for (int t = 0; t < T; t++)
        if (targets[t] < 0) assert_true(plain[t] == 1 && first[t] == 1);
}

/* A correct response, whose value rises at two tokens, and a wrong one, whose value falls at one: from values to weights as a step makes
 * them. Weights grow towards the tokens that decide, and the wrong token has the smallest of all. */
static void weights_are_largest_where_it_is_decided(void **state) {
    enum { T = 17, N = 8, RIGHT = 0, WRONG = 8, FIRST_RISE = 3, SECOND_RISE = 6, FALL = 4 };
    int32_t targets[T], doc_start[T];
    float values[T] = {.5f, .5f, .5f, .65f, .65f, .65f, .9f, .9f, .5f, .5f, .5f, .5f, .1f, .1f, .1f, .1f, 7};
    float advantages[T], w[T];
    train_request r = {.train = {.value = {.lambda = .95, .beta = 4}}}; /* no weight is cut off */
    for (int t = 0; t < T; t++) targets[t] = t < T - 1 ? t : -1, doc_start[t] = t < WRONG ? RIGHT : WRONG;
    value_advantages(&r.train.value, targets, doc_start, T, values, advantages);
    value_sums s = {0};
    for (int t = 0; t < T; t++) w[t] = 1;
    value_sums_add(&s, targets, N, advantages, w); /* a policy learns from correct ones: their mean and deviation */
    value_ema e = value_ema_start();
    value_ema_update(&e, value_mean(s.n, s.advantage), value_deviation(s.n, s.advantage, s.advantage_squares),
                     VALUE_WARMUP, VALUE_MOMENTUM);
    weighting_VERIFIABLE.weigh(&(weighting_row){&r, 0, T, targets, doc_start, advantages, &e}, w);
    for (int t = RIGHT; t + 1 < N; t++) {
        bool decided = t == FIRST_RISE || t == SECOND_RISE;
        if ((w[t + 1] > w[t]) == decided) fail_msg("weights %g and %g at %d", (double)w[t], (double)w[t + 1], t);
    }
    double before = 0, after = 0;
    for (int t = WRONG; t < WRONG + FALL; t++) before += (double)w[t] / FALL;
    for (int t = WRONG + FALL + 1; t < WRONG + N; t++) after += (double)w[t] / (N - FALL - 1);
    for (int t = 0; t < T - 1; t++) assert_true(w[t] >= w[WRONG + FALL]);
    assert_true((double)w[WRONG + FALL] < before && before < after); /* what leads to a mistake counts less, too */
    assert_true(w[WRONG + FALL] > WEIGHT_LEAST && w[T - 1] == 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(advantages_of_known_values),
        cmocka_unit_test(responses_are_runs_of_targets_in_one_document),
        cmocka_unit_test(moving_averages_of_known_means),
        cmocka_unit_test(weights_are_clamped),
        cmocka_unit_test(statistics_are_those_of_the_targets),
        cmocka_unit_test(weights_are_largest_where_it_is_decided),
        cmocka_unit_test(shuffled_weights_stay_in_their_response),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
