/* test_watch.c - the watch over losses names real spikes and real divergence, and stays silent on noise of every kind. */
#include "track/watch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 3000, EVENTS_MOST = 64 };

typedef enum noise_kind { NOISE_GAUSS, NOISE_UNIFORM, NOISE_EXPONENTIAL, NOISE_LOGNORMAL, NOISE_STUDENT } noise_kind;

static uint64_t key, drawn;
static void begin_noise(uint64_t seed) { key = rng_key(seed, "noise"), drawn = 0; }
static double uniform(void) { return (rng_uniform(key, drawn++) + 0x1p-40) / (1 + 0x1p-39); }
static double gauss(void) { return sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform()); }

static double noise(noise_kind k) {
    double a = gauss(), b = gauss(), c = gauss(), d = gauss(), e = gauss();
    switch (k) {
    case NOISE_UNIFORM: return 2 * uniform() - 1;
    case NOISE_EXPONENTIAL: return -log(uniform());
    case NOISE_LOGNORMAL: return exp(0.7 * a);
    case NOISE_STUDENT: return gauss() / sqrt((a * a + b * b + c * c + d * d + e * e) / 5);
    default: return a;
    }
}

/* A loss that falls from 5.5 to about 1.2, fast and then slowly, as that of the built-in example does. */
static double falling(int64_t step) { return 1.2 + 4.3 * exp(-(double)step / 30) + 0.5 / (1 + (double)step / 300); }

typedef struct found {
    loss_event list[EVENTS_MOST];
    int n;
} found;

static void watch(const double *losses, int64_t n, loss_watch w, found *out) {
    out->n = 0;
    for (int64_t i = 0; i < n; i++) {
        train_step_report r = {.step = i + 1, .steps = n, .loss = losses[i]};
        if (loss_watch_step(&w, &r, &out->list[out->n])) out->n++;
        assert_true(out->n < EVENTS_MOST);
    }
}

static loss_watch usual(void) { return (loss_watch){.spikes = 4, .advice = "try a lower train.lr"}; }

static void noise_is_no_alarm(void **state) {
    static const struct {
        noise_kind kind;
        double scale;
        int most; /* in ten runs of 3,000 steps: only tails that grow with the number of steps have any */
    } kinds[] = {{NOISE_GAUSS, 0.02, 0},      {NOISE_GAUSS, 0.4, 0},      {NOISE_UNIFORM, 0.5, 0},
                 {NOISE_EXPONENTIAL, 0.3, 0}, {NOISE_LOGNORMAL, 0.1, 10}, {NOISE_STUDENT, 0.1, 10}};
    begin_noise(1);
    for (size_t k = 0; k < ARRAY_LENGTH(kinds); k++) {
        int n = 0;
        for (int run = 0; run < 10; run++) {
            double losses[STEPS];
            found f;
            for (int64_t i = 0; i < STEPS; i++) losses[i] = falling(i) + kinds[k].scale * noise(kinds[k].kind);
            watch(losses, STEPS, usual(), &f);
            for (int i = 0; i < f.n; i++) assert_string_equal(f.list[i].name, "spike");
            n += f.n;
        }
        if (n > kinds[k].most) fail_msg("noise %zu: %d spikes were named, expected at most %d", k, n, kinds[k].most);
    }
}

static void spikes_are_named_with_their_numbers(void **state) {
    double losses[STEPS];
    found f;
    begin_noise(2);
    for (int64_t i = 0; i < STEPS; i++) losses[i] = falling(i) + 0.03 * gauss();
    losses[599] += 1;                                                         /* alone */
    for (int i = 0; i < 10; i++) losses[999 + i] += 3 * (1 - (double)i / 10); /* ten steps long: named once */
    losses[1029] += 5;                                                        /* within 50 steps of it: not named */
    for (int i = 0; i < 3; i++) losses[1999 + i] += 0.5;
    watch(losses, STEPS, usual(), &f);
    assert_int_equal(f.n, 3);
    const int64_t steps[] = {600, 1000, 2000};
    for (int i = 0; i < 3; i++) {
        assert_string_equal(f.list[i].name, "spike");
        assert_int_equal(f.list[i].step, steps[i]);
        assert_true(f.list[i].loss == losses[steps[i] - 1]);
        assert_true(fabs(f.list[i].median - falling(steps[i])) < 0.1);
        char begin[64];
        snprintf(begin, sizeof begin, "step %lld: loss spike %.4g, ", (long long)steps[i], f.list[i].loss);
        assert_non_null(strstr(f.list[i].message, begin));
    }
    watch(losses, STEPS, (loss_watch){.spikes = 0}, &f);
    assert_int_equal(f.n, 0);
    watch(losses, STEPS, (loss_watch){.spikes = 1e6}, &f);
    assert_int_equal(f.n, 0);
}

/* A jump to another level that is no divergence is one spike, and the watch works on the new level. */
static void a_new_level_is_one_spike(void **state) {
    double losses[STEPS];
    found f;
    begin_noise(3);
    for (int64_t i = 0; i < STEPS; i++) losses[i] = falling(i) + 0.03 * gauss() + (i >= 1000 ? 0.7 : 0);
    losses[1500] += 1;
    watch(losses, STEPS, usual(), &f);
    assert_int_equal(f.n, 2);
    assert_int_equal(f.list[0].step, 1001);
    assert_int_equal(f.list[1].step, 1501);
}

static void divergence_is_warned_of_once(void **state) {
    double losses[STEPS];
    found f;
    begin_noise(4);
    /* Falls and comes back, but not to where it began. */
    for (int64_t i = 0; i < STEPS; i++)
        losses[i] = falling(i) + 0.05 * gauss() + (i > 500 ? fmin(3, 0.03 * (double)(i - 500)) : 0);
    watch(losses, STEPS, usual(), &f);
    assert_int_equal(f.n, 1);
    assert_string_equal(f.list[0].name, "divergence");
    assert_true(f.list[0].step > 550 && f.list[0].step < 640);
    assert_non_null(strstr(f.list[0].message, "was down to 1."));
    assert_non_null(strstr(f.list[0].message, "try a lower train.lr"));
    /* Rises from its first steps. */
    for (int64_t i = 0; i < 300; i++) losses[i] = 2 + 0.1 * gauss() + 0.02 * (double)i;
    watch(losses, 300, usual(), &f);
    assert_true(f.n >= 1);
    assert_string_equal(f.list[0].name, "divergence");
    assert_true(f.list[0].step >= 40 && f.list[0].step < 100);
    assert_non_null(strstr(f.list[0].message, "it began at "));
    /* A task whose loss says nothing. */
    watch(losses, 300, (loss_watch){.spikes = 4, .is_no_objective = true}, &f);
    assert_int_equal(f.n, 0);
}

static void losses_that_are_not_finite_are_warned_of_once(void **state) {
    double losses[STEPS];
    found f;
    begin_noise(5);
    for (int64_t i = 0; i < STEPS; i++) losses[i] = falling(i) + 0.05 * gauss();
    for (int i = 0; i < 40; i++) losses[100 + 60 * i] = NAN; /* one now and then */
    watch(losses, STEPS, usual(), &f);
    assert_int_equal(f.n, 0);
    for (int64_t i = 2500; i < STEPS; i++) losses[i] = i % 2 ? NAN : INFINITY;
    watch(losses, STEPS, usual(), &f);
    assert_int_equal(f.n, 1);
    assert_string_equal(f.list[0].name, "not-finite");
    assert_int_equal(f.list[0].step, 2505);
}

static void epochs_end_where_they_end(void **state) {
    epoch_watch w = {.steps = 12.5};
    char text[160];
    int64_t ends[8], n = 0;
    for (int64_t step = 1; step <= 50; step++) {
        train_step_report r = {.step = step, .steps = 50, .loss = step == 3 ? NAN : (double)step};
        if (epoch_watch_step(&w, &r, text, sizeof text)) ends[n++] = step;
        if (step == 13) assert_string_equal(text, "epoch 1 done at step 13 of 50: mean loss 7.3333 of 12 steps");
    }
    assert_int_equal(n, 4);
    assert_true(ends[0] == 13 && ends[1] == 25 && ends[2] == 38 && ends[3] == 50);
    for (int k = 1; k < 400; k++) { /* whole epochs end with their last step, whatever the division gives */
        double per_epoch = 7.0 / (3.0 / (double)k);
        int found = 0;
        for (int64_t step = 1; step <= 7 * k; step++) {
            epoch_watch one = {.steps = per_epoch};
            train_step_report r = {.step = step, .steps = 7 * k};
            found += epoch_watch_step(&one, &r, text, sizeof text);
        }
        if (per_epoch >= 1 && found != 3) fail_msg("%d epochs of %g steps in %d", found, per_epoch, 7 * k);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(noise_is_no_alarm),
        cmocka_unit_test(spikes_are_named_with_their_numbers),
        cmocka_unit_test(a_new_level_is_one_spike),
        cmocka_unit_test(divergence_is_warned_of_once),
        cmocka_unit_test(losses_that_are_not_finite_are_warned_of_once),
        cmocka_unit_test(epochs_end_where_they_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
