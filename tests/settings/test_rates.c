/* test_rates.c - learning rates of every schedule, ours and DeepSpeed's.
 *
 * The rates of DeepSpeed's schedulers are checked against its definitions, written here once more as what they are: an
 * object that is moved after each optimizer step. Numbers in the tables were worked out from those definitions. */
#include "foreign_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>

typedef struct rates {
    schedule_kind schedule;
    warmup_kind rise;
    double at[13];
} rates;
/* warmup 10, total 100, rate 1e-3, lowest 1e-5 (cosine: warmup_min_ratio 0.01, cos_min_ratio 1e-4) */
static const int64_t steps_at[13] = {1, 2, 3, 6, 11, 12, 13, 50, 100, 101, 102, 103, 200};
static const rates golden[] = {
    {SCHEDULE_CONSTANT,
     WARMUP_LOG,
     {1e-5, 1e-5, 0.000308019695707, 0.000701980304293, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3}},
    {SCHEDULE_CONSTANT,
     WARMUP_LINEAR,
     {1e-5, 1e-5, 0.000109, 0.000406, 0.000901, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3}},
    {SCHEDULE_LINEAR,
     WARMUP_LOG,
     {1e-5, 1e-5, 0.000308019695707, 0.000701980304293, 1e-3, 1e-3, 0.000989, 0.000582, 3.2e-5, 2.1e-5, 1e-5, 1e-5,
      1e-5}},
    {SCHEDULE_LINEAR,
     WARMUP_LINEAR,
     {1e-5, 1e-5, 0.000109, 0.000406, 0.000901, 1e-3, 0.000989, 0.000582, 3.2e-5, 2.1e-5, 1e-5, 1e-5, 1e-5}},
    {SCHEDULE_COSINE,
     WARMUP_LOG,
     {0, 1e-5, 0.000308019695707, 0.000701980304293, 1e-3, 0.000999695443968, 0.000998782146927, 0.000603995449824,
      4.04556031803e-07, 1e-7, 1e-7, 1e-7, 1e-7}},
    {SCHEDULE_COSINE,
     WARMUP_LINEAR,
     {0, 1e-5, 0.000109, 0.000406, 0.000901, 0.000999695443968, 0.000998782146927, 0.000603995449824, 4.04556031803e-07,
      1e-7, 1e-7, 1e-7, 1e-7}},
};

static void assert_rate(const train_options *o, int64_t step, double expected) {
    double got = schedule_lr(o, step);
    if (!(fabs(got - expected) <= 1e-11 * fabs(expected) + 1e-18)) /* the table has 12 digits */
        fail_msg("schedule %d, step %lld: %.17g, expected %.17g", (int)o->schedule, (long long)step, got, expected);
}

static void test_rates_are_those_of_deepspeed(void **state) {
    for (size_t i = 0; i < ARRAY_LENGTH(golden); i++) {
        train_options o = {.steps = 200,
                           .schedule_steps = 100,
                           .lr = 1e-3,
                           .warmup_min_lr = 1e-5,
                           .warmup = 10,
                           .style = STYLE_DEEPSPEED,
                           .schedule = golden[i].schedule,
                           .warmup_kind = golden[i].rise,
                           .min_lr_ratio = golden[i].schedule == SCHEDULE_COSINE ? 1e-4 : 1e-2};
        for (size_t k = 0; k < ARRAY_LENGTH(steps_at); k++) assert_rate(&o, steps_at[k], golden[i].at[k]);
    }
}

/* A scheduler as DeepSpeed has it: its count starts at -1 and is moved after each optimizer step. */
static double moved(const train_options *o, int64_t i) {
    int64_t w = o->warmup > 2 ? o->warmup : 2, t = o->schedule_steps;
    double low = o->warmup_min_lr, high = o->lr;
    if (i < 0) return o->schedule == SCHEDULE_COSINE ? 0 : low;
    double g = o->warmup_kind == WARMUP_LOG ? log((double)(i + 1)) * (1 / log((double)w)) : (double)i / (double)w;
    if (i < w) return low + (high - low) * g;
    double span = (double)(t - w > 1 ? t - w : 1);
    if (o->schedule == SCHEDULE_CONSTANT) return high;
    if (o->schedule == SCHEDULE_LINEAR) return low + (high - low) * fmax(0, (double)(t - i) / span);
    double c = o->min_lr_ratio, share = fmin(1, (double)(i - w + 1) / span);
    return high * fmax(0, c + (1 - c) * (1 + cos(M_PI * share)) / 2);
}

static void test_rates_of_odd_lengths(void **state) {
    static const int64_t warmups[] = {0, 1, 2, 3, 7, 40}, ends[] = {1, 2, 3, 9, 40, 41, 60};
    for (size_t a = 0; a < ARRAY_LENGTH(warmups); a++)
        for (size_t b = 0; b < ARRAY_LENGTH(ends); b++)
            for (schedule_kind k = SCHEDULE_COSINE; k <= SCHEDULE_CONSTANT; k++)
                for (warmup_kind rise = 0; rise < WARMUP_KIND_COUNT; rise++) {
                    train_options o = {.steps = 60,
                                       .schedule_steps = ends[b],
                                       .lr = 0.5,
                                       .warmup_min_lr = 0.125,
                                       .warmup = warmups[a],
                                       .style = STYLE_DEEPSPEED,
                                       .schedule = k,
                                       .warmup_kind = rise,
                                       .min_lr_ratio = k == SCHEDULE_LINEAR ? 0.25 : 0.1};
                    int64_t i = -1;
                    for (int64_t step = 1; step <= o.steps; step++, i++) assert_rate(&o, step, moved(&o, i));
                }
}

static void test_own_warmup_by_logarithm(void **state) {
    train_options o = {.steps = 100, .lr = 1, .warmup = 7, .warmup_kind = WARMUP_LOG, .schedule = SCHEDULE_CONSTANT};
    assert_rate(&o, 1, 1.0 / 3); /* ln 2 / ln 8 */
    assert_rate(&o, 3, 2.0 / 3);
    assert_rate(&o, 7, 1);
    assert_rate(&o, 8, 1);
    o.warmup_min_lr = 0.25;
    assert_rate(&o, 1, 0.5);
    o.warmup_kind = WARMUP_LINEAR;
    assert_rate(&o, 1, 0.25 + 0.75 / 7);
    o = (train_options){.steps = 100, .schedule_steps = 50, .lr = 1, .schedule = SCHEDULE_LINEAR, .min_lr_ratio = 0.1};
    assert_rate(&o, 25, 0.55); /* a run that is longer than its schedule stays at the end of it */
    assert_rate(&o, 50, 0.1);
    assert_rate(&o, 100, 0.1);
    o.schedule = SCHEDULE_WSD;
    o.decay_share = 0.2;
    assert_rate(&o, 40, 1);
    assert_rate(&o, 45, 0.55);
    assert_rate(&o, 60, 0.1);
}

static void test_consecutive_hysteresis(void **state) {
    train_options o = {.initial_scale_power = 4, .loss_scale_window = 100, .hysteresis = 2, .min_loss_scale = 1};
    for (int consecutive = 0; consecutive < 2; consecutive++) {
        loss_scaler s;
        o.consecutive_hysteresis = consecutive;
        scaler_init(&s, &o);
        assert_int_equal(scaler_update(&s, &o, true), OK); /* the first overflow is forgiven */
        assert_true(s.scale == 16);
        assert_int_equal(scaler_update(&s, &o, false), OK);
        assert_int_equal(scaler_update(&s, &o, true), OK);
        assert_true(s.scale == (consecutive ? 16 : 8)); /* a clean step in between forgives again, if asked */
    }
}

static void test_settings_that_do_not_go_together(void **state) {
    static const struct {
        const char *set[3], *says;
    } wrong[] = {
        {{"train.schedule=wsd", "train.schedule_style=deepspeed"}, "train.schedule_style"},
        {{"train.warmup_min_lr=0.5", "train.lr=0.1"}, "train.warmup_min_lr"},
        {{"train.schedule_steps=20", "train.warmup=30"}, "train.schedule_steps"},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(wrong); i++) {
        config c;
        config_init(&c);
        for (size_t k = 0; k < 3 && wrong[i].set[k]; k++)
            assert_int_equal(config_set(&c, wrong[i].set[k], "--set"), OK);
        assert_int_equal(config_check(&c), ERR_INPUT);
        assert_in(error_message(), wrong[i].says);
        config_fini(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rates_are_those_of_deepspeed),     cmocka_unit_test(test_rates_of_odd_lengths),
        cmocka_unit_test(test_own_warmup_by_logarithm),          cmocka_unit_test(test_consecutive_hysteresis),
        cmocka_unit_test(test_settings_that_do_not_go_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
