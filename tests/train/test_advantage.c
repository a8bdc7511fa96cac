/* test_advantage.c - advantages of the rows of rl.loss against vectors computed by hand and by TRL's formulas. */
#include "train/advantage.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void near(const double *got, const double *want, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= 1e-12 * (1 + fabs(want[i]))))
            fail_msg("[%zu] is %.17g, expected %.17g", i, got[i], want[i]);
}

static void the_table_has_the_rows_of_the_setting(void **state) {
    static const char *const names[] = {"rloo", "grpo", "dr_grpo", "dapo", "reinforce++", "reinforce++_baseline",
                                        "gspo"};
    for (size_t i = 0; i < ARRAY_LENGTH(names); i++) assert_string_equal(rl_loss_at(i)->name, names[i]);
    assert_null(rl_loss_at(ARRAY_LENGTH(names)));
}

/* Rewards 1, 0, 0.5, 0: the others' means are 1/6, 0.5, 1/3, 0.5. Mean 0.375, squares 0.6875, std sqrt(0.6875 / 3). */
static void groups_by_hand(void **state) {
    static const double r[] = {1, 0, 0.5, 0, 2, 2, 2, 2};
    double out[8], std = sqrt(0.6875 / 3) + 1e-4;
    advantage_groups(ADVANTAGE_LEAVE_ONE_OUT, r, 2, 4, out);
    near(out, (const double[]){5.0 / 6, -0.5, 1.0 / 6, -0.5, 0, 0, 0, 0}, 8);
    advantage_groups(ADVANTAGE_GROUP_STD, r, 2, 4, out);
    near(out, (const double[]){0.625 / std, -0.375 / std, 0.125 / std, -0.375 / std, 0, 0, 0, 0}, 8);
    advantage_groups(ADVANTAGE_GROUP_MEAN, r, 2, 4, out);
    near(out, (const double[]){0.625, -0.375, 0.125, -0.375, 0, 0, 0, 0}, 8);
    advantage_groups(ADVANTAGE_RETURN, r, 2, 4, out);
    near(out, r, 8);
    advantage_groups(ADVANTAGE_RETURN_MEAN, r, 2, 4, out);
    near(out, (const double[]){0.625, -0.375, 0.125, -0.375, 0, 0, 0, 0}, 8);
}

/* TRL: A = G / (G - 1) (r - mean), for any group without unscorable ones. */
static void leave_one_out_is_a_scaled_deviation(void **state) {
    double r[6], out[6], want[6];
    for (int i = 0; i < 6; i++) r[i] = sin(i * 1.7) * 3;
    advantage_groups(ADVANTAGE_LEAVE_ONE_OUT, r, 1, 6, out);
    for (int i = 0; i < 6; i++) want[i] = 6.0 / 5 * (r[i] - mean_of(r, 6));
    near(out, want, 6);
}

/* Unscorable ones are neither compared nor trained on; one scorable completion alone has nobody to compare with. */
static void unscorable_rows_are_left_out(void **state) {
    static const double r[] = {1, NAN, 0, NAN, NAN, 3, NAN, NAN, NAN};
    double out[9];
    advantage_groups(ADVANTAGE_LEAVE_ONE_OUT, r, 3, 3, out);
    near(out, (const double[]){1, 0, -1, 0, 0, 0, 0, 0, 0}, 9);
    advantage_groups(ADVANTAGE_GROUP_STD, r, 3, 3, out);
    double a = 0.5 / (sqrt(0.5) + 1e-4);
    near(out, (const double[]){a, 0, -a, 0, 0, 0, 0, 0, 0}, 9);
}

/* To the last bit, for numbers that no sum represents exactly. */
static void equal_rewards_are_exactly_zero(void **state) {
    double r[7], out[7];
    for (int i = 0; i < 7; i++) r[i] = 0.1;
    for (advantage_kind k = 0; k < ADVANTAGE_KIND_COUNT; k++) {
        moments m = {.from = r[0]};
        if (k == ADVANTAGE_RETURN) continue;
        advantage_groups(k, r, 1, 7, out);
        for (int i = 0; i < 7; i++) assert_true(out[i] == 0);
        advantage_normalize(out, r, 7);
        for (int i = 0; i < 7; i++) assert_true(out[i] == 0);
        moments_add(&m, r, 7);
        for (int i = 0; i < 7; i++) out[i] = r[i];
        moments_apply(&m, out, 7);
        for (int i = 0; i < 7; i++) assert_true(out[i] == 0);
    }
    assert_true(advantage_is_flat(r, 7));
    r[3] = NAN;
    assert_true(advantage_is_flat(r, 7));
    r[6] = 0.2;
    assert_false(advantage_is_flat(r, 7));
}

/* 1, -1, 3 over the scorable ones: mean 1, std 2. */
static void normalized_over_the_batch(void **state) {
    static const double r[] = {5, NAN, 7, 1};
    double a[] = {1, 0, -1, 3};
    advantage_normalize(a, r, 4);
    near(a, (const double[]){0, 0, -2 / 2.0001, 2 / 2.0001}, 4);
}

/* Reward 1, KL 0.5, -0.25, 1 at beta 0.1: to come at each token 1.25, 0.75, 1. */
static void returns_by_hand(void **state) {
    static const double kl[] = {0.5, -0.25, 1};
    double out[3];
    advantage_returns(1, kl, 3, 0.1, out);
    near(out, (const double[]){0.875, 0.925, 0.9}, 3);
    advantage_returns(1, NULL, 3, 0, out);
    near(out, (const double[]){1, 1, 1}, 3);
}

/* Of 1, 2, 3, 6 the mean is 3 and the variance 3.5, however they are added. */
static void moments_join_parts(void **state) {
    double x[] = {1, 2, 3, 6};
    moments a = {.from = 2}, b = {.from = 2};
    moments_add(&a, x, 1);
    moments_add(&b, x + 1, 3);
    moments_join(&a, &b);
    moments_apply(&a, x, 4);
    near(x, (const double[]){-2 / sqrt(3.5), -1 / sqrt(3.5), 0, 3 / sqrt(3.5)}, 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_has_the_rows_of_the_setting),
        cmocka_unit_test(groups_by_hand),
        cmocka_unit_test(leave_one_out_is_a_scaled_deviation),
        cmocka_unit_test(unscorable_rows_are_left_out),
        cmocka_unit_test(equal_rewards_are_exactly_zero),
        cmocka_unit_test(normalized_over_the_batch),
        cmocka_unit_test(returns_by_hand),
        cmocka_unit_test(moments_join_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
