/* test_resume.c - stop anywhere, go on anywhere: the parameters end with the same bits as the run that never stopped.
 *
 * And what must not be resumed is refused: another model, another precision, another seed, a damaged file. */
#include "training.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STEPS = 12 };

/* Asks for a stop after a step, as a signal would. */
typedef struct stopper {
    int64_t after; /* 0: never */
    int64_t first_step;
    int n_steps;
} stopper;
static void stop_after(void *context, const train_step_report *r) {
    stopper *s = context;
    if (s->n_steps++ == 0) s->first_step = r->step;
    if (r->step == s->after) train_interrupt();
}

static status run(training *t, int64_t stop, int64_t *first_step, train_result *r) {
    stopper s = {.after = stop};
    train_observer o = {.context = &s, .on_step = stop_after};
    t->observer = &o;
    status rc = training_run(t, r);
    t->observer = NULL;
    if (first_step) *first_step = s.first_step;
    return rc;
}

/* Runs to the end with a stop after each of `stops` (ascending, 0 at the end), each part resuming the one before. */
static void run_in_parts(training *t, const int64_t *stops, train_result *r) {
    char *dir = training_dir();
    int64_t done = 0, first;
    t->dir = dir;
    t->resume = "auto"; /* nothing there yet: starts at step 0 */
    for (;; stops++) {
        status rc = run(t, *stops, &first, r);
        assert_int_equal(first, done + 1);
        if (!*stops) {
            training_must(rc);
            break;
        }
        assert_int_equal(rc, ERR_INTERRUPTED);
        assert_non_null(strstr(error_message(), dir)); /* how to go on */
        assert_int_equal(r->steps, *stops);
        done = *stops;
    }
    assert_int_equal(r->steps, STEPS);
    t->dir = t->resume = NULL;
    training_dir_remove(dir);
}

static void compare(const training *t, const train_result *whole, const train_result *parts) {
    if (whole->param_hash == parts->param_hash && whole->last_loss == parts->last_loss &&
        whole->first_loss == parts->first_loss && whole->tokens == parts->tokens)
        return;
    fail_msg(
        "%s %s: stopped and resumed run ends with %016llx, loss %.9g -> %.9g, %llu tokens; the whole one with %016llx, "
        "%.9g -> %.9g, %llu",
        t->preset, precision_name(t->precision), (unsigned long long)parts->param_hash, parts->first_loss,
        parts->last_loss, (unsigned long long)parts->tokens, (unsigned long long)whole->param_hash, whole->first_loss,
        whole->last_loss, (unsigned long long)whole->tokens);
}

static void stopped_and_resumed_is_the_same_run(void **state) {
    (void)state;
    uint64_t key = rng_key(11, "test.stops"), n = 0;
    for (size_t m = 0; m < ARRAY_LENGTH(training_presets); m++)
        for (precision q = 0; q < PRECISION_COUNT; q++) {
            training t = {.preset = training_presets[m],
                          .precision = q,
                          .micro_batch = 3,
                          .accumulation = 1 + (int64_t)(m % 2),
                          .steps = STEPS,
                          .more = SETTINGS("train.warmup=5",
                                           q == PRECISION_FP16 ? "train.fp16.initial_scale_power=24" : "train.seed=9")};
            train_result whole, parts;
            training_must(training_run(&t, &whole));
            int64_t at = 1 + (int64_t)rng_below(key, n++, STEPS - 1), stops[] = {at, 0};
            print_message("%s %s: stop after %lld\n", t.preset, precision_name(q), (long long)at);
            run_in_parts(&t, stops, &parts);
            compare(&t, &whole, &parts);
        }
}

static void states_of_every_format_are_resumed(void **state) {
    (void)state;
    static const char *const settings[] = {"memory.states=fp32", "memory.states=bf16", "memory.states=int8"};
    for (precision q = 0; q < PRECISION_COUNT; q++)
        for (size_t f = 0; f < ARRAY_LENGTH(settings); f++) {
            training t = {.preset = training_presets[(q + f) % ARRAY_LENGTH(training_presets)],
                          .precision = q,
                          .steps = STEPS,
                          .more = SETTINGS(settings[f])};
            train_result whole, parts;
            training_must(training_run(&t, &whole));
            run_in_parts(&t, (const int64_t[]){2, 0}, &parts);
            compare(&t, &whole, &parts);
        }
}

/* Between two skipped steps, right behind the last of them, and later: the schedule goes on where it was. */
static void the_schedule_is_resumed_over_skipped_steps(void **state) {
    (void)state;
    training t = {.precision = PRECISION_FP16,
                  .steps = STEPS,
                  .more = SETTINGS("train.warmup=4", "train.fp16.initial_scale_power=22", "train.fp16.hysteresis=1")};
    train_result whole, parts;
    training_must(training_run(&t, &whole));
    for (int64_t at = 1; at < STEPS; at++) {
        run_in_parts(&t, (int64_t[]){at, 0}, &parts);
        compare(&t, &whole, &parts);
    }
}

static void many_stops_are_the_same_run(void **state) {
    (void)state;
    training t = {.preset = "test-qwen2", .precision = PRECISION_BF16_SR, .steps = STEPS};
    train_result whole, parts;
    training_must(training_run(&t, &whole));
    run_in_parts(&t, (int64_t[]){1, 2, 5, 6, 11, 0}, &parts);
    compare(&t, &whole, &parts);
}

static void a_stop_before_the_first_step_loses_nothing(void **state) {
    (void)state;
    training t = {.preset = "test-llama", .steps = STEPS};
    train_result whole, r;
    training_must(training_run(&t, &whole));
    char *dir = training_dir();
    t.dir = dir;
    t.resume = "auto";
    train_interrupt(); /* as a signal while the run is being set up would */
    assert_int_equal(run(&t, 0, NULL, &r), ERR_INTERRUPTED);
    assert_int_equal(r.steps, 0);
    training_must(run(&t, 0, NULL, &r));
    compare(&t, &whole, &r);
    training_dir_remove(dir);
}

/* The steps of which a run reported an evaluation, and their losses. */
typedef struct evaluations {
    int64_t stop_after, step[8];
    double loss[8];
    size_t n;
} evaluations;
static void stop_before_evaluation(void *context, const train_step_report *r) {
    if (r->step == ((evaluations *)context)->stop_after) train_interrupt();
}
static void note_evaluation(void *context, const train_eval_report *r) {
    evaluations *e = context;
    assert_true(e->n < ARRAY_LENGTH(e->step));
    e->step[e->n] = r->step;
    e->loss[e->n++] = r->loss;
}

/* A signal interrupts the evaluation after a step: the resumed run makes it before its next step, so that no number, and no best
 * checkpoint, is missing. One after a step that has no evaluation makes none. */
static void an_interrupted_evaluation_is_made_up_for(void **state) {
    (void)state;
    for (int64_t stop = 3; stop <= 5; stop++) {
        training t = {.preset = "test-llama",
                      .steps = STEPS,
                      .more = SETTINGS("train.eval_every=4", "train.eval_rows=4", "train.save_best=loss")};
        train_result r;
        evaluations whole = {0}, parts = {.stop_after = stop};
        train_observer o = {.context = &whole, .on_step = stop_before_evaluation, .on_eval = note_evaluation};
        char *dir = training_dir();
        t.dir = dir;
        t.observer = &o;
        training_must(training_run(&t, &r));
        training_dir_remove(dir);

        t.dir = dir = training_dir();
        t.resume = "auto";
        o.context = &parts;
        assert_int_equal(training_run(&t, &r), ERR_INTERRUPTED);
        assert_int_equal(r.steps, stop);
        parts.stop_after = 0;
        training_must(training_run(&t, &r));
        training_dir_remove(dir);
        assert_int_equal(parts.n, whole.n);
        for (size_t i = 0; i < whole.n; i++) {
            assert_int_equal(parts.step[i], whole.step[i]);
            assert_true(parts.loss[i] == whole.loss[i]);
        }
    }
}

/* Also with another number of threads than the first part had. */
static void saving_in_the_background_changes_no_bit(void **state) {
    (void)state;
    training t = {.preset = "test-qwen3", .precision = PRECISION_BF16, .accumulation = 2, .steps = STEPS};
    train_result whole, r;
    char newest[4096];
    int64_t first;
    training_must(training_run(&t, &whole));
    char *dir = training_dir();
    t.dir = dir;
    t.more = SETTINGS("train.save_every=5", "run.keep=all");
    training_must(run(&t, 0, NULL, &r));
    compare(&t, &whole, &r);

    /* Every one of its checkpoints leads to the same end. */
    static const int64_t saved[] = {5, 10, 12};
    for (size_t i = 0; i < ARRAY_LENGTH(saved); i++) {
        char *other = training_dir();
        snprintf(newest, sizeof newest, "%s/checkpoints/step-%08lld", dir, (long long)saved[i]);
        t.dir = other;
        t.resume = newest;
        t.threads = 1 + (int)i;
        training_must(run(&t, 0, &first, &r));
        assert_int_equal(first, saved[i] < STEPS ? saved[i] + 1 : 0);
        compare(&t, &whole, &r);
        training_dir_remove(other);
    }

    training_must(checkpoint_find_newest(dir, newest, sizeof newest));
    assert_non_null(strstr(newest, "step-00000012"));
    training_dir_remove(dir);
}

/* As after a crash: the newest checkpoint was never finished, an older one is. */
static void a_half_written_checkpoint_is_passed_over(void **state) {
    (void)state;
    training t = {.preset = "test-llama", .steps = STEPS};
    train_result whole, r;
    char path[4096], junk[4096];
    int64_t first;
    training_must(training_run(&t, &whole));
    char *dir = training_dir();
    t.dir = dir;
    t.more = SETTINGS("train.save_every=4", "run.keep=all");
    assert_int_equal(run(&t, 9, NULL, &r), ERR_INTERRUPTED); /* 4, 8 and, at the stop, 9 */
    snprintf(path, sizeof path, "%s/checkpoints/step-00000009/tensors-00001-of-00001.safetensors", dir);
    struct stat s;
    assert_int_equal(stat(path, &s), 0);
    assert_int_equal(truncate(path, s.st_size / 2), 0);
    snprintf(junk, sizeof junk, "%s/checkpoints/.tmp-step-00000010", dir);
    training_must(dir_make(junk));
    t.resume = "auto";
    training_must(run(&t, 0, &first, &r));
    assert_int_equal(first, 9); /* goes on after 8 */
    compare(&t, &whole, &r);
    assert_int_not_equal(access(junk, F_OK), 0);
    training_dir_remove(dir);
}

static void refuse(training *t, const char *const *parts) {
    train_result r;
    status rc = run(t, 0, NULL, &r);
    if (rc != ERR_INPUT && rc != ERR_IO) fail_msg("status %d instead of a refusal", (int)rc);
    for (; *parts; parts++)
        if (!strstr(error_message(), *parts)) fail_msg("'%s' is not in the message: %s", *parts, error_message());
}

static void another_model_precision_or_seed_is_refused(void **state) {
    (void)state;
    training t = {.preset = "test-llama", .steps = 6}, other;
    train_result r, end;
    char *dir = training_dir();
    t.dir = dir;
    assert_int_equal(run(&t, 3, NULL, &r), ERR_INTERRUPTED);
    t.resume = "auto";

    other = t;
    other.preset = "test-qwen3";
    refuse(&other, SETTINGS("step-00000003", "llama", "qwen3"));
    other = t;
    other.more = SETTINGS("model.ffn=96");
    refuse(&other, SETTINGS("step-00000003", "another model", "ffn 160", "ffn 96"));
    other = t;
    other.more = SETTINGS("data.difficulty=3");
    refuse(&other, SETTINGS("step-00000003", "other data", "difficulty 3"));
    other = t;
    other.precision = PRECISION_BF16;
    refuse(&other, SETTINGS("step-00000003", "fp32", "bf16"));
    other = t;
    other.more = SETTINGS("memory.states=int8");
    refuse(&other, SETTINGS("step-00000003", "states int8"));
    other = t;
    other.more = SETTINGS("train.seed=5");
    refuse(&other, SETTINGS("step-00000003", "train.seed=1", "5"));
    other = t;
    other.resume = "/nowhere/at/all";
    refuse(&other, SETTINGS("/nowhere/at/all"));

    training_must(run(&t, 0, NULL, &end)); /* none of that hurt the checkpoint */
    assert_int_equal(end.steps, 6);
    training_dir_remove(dir);
}

static void flip_bit(const char *path, long at) { /* counted from the end */
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, at, SEEK_END);
    int c = fgetc(f);
    assert_int_not_equal(c, EOF);
    fseek(f, -1, SEEK_CUR);
    fputc(c ^ 1, f);
    fclose(f);
}

static void one_flipped_bit_is_refused(void **state) {
    (void)state;
    training t = {.preset = "test-gpt2", .precision = PRECISION_BF16, .steps = 6};
    train_result whole, r;
    char path[4096];
    training_must(training_run(&t, &whole));
    char *dir = training_dir();
    t.dir = dir;
    assert_int_equal(run(&t, 3, NULL, &r), ERR_INTERRUPTED);
    t.resume = "auto";
    snprintf(path, sizeof path, "%s/checkpoints/step-00000003/tensors-00001-of-00001.safetensors", dir);
    struct stat s;
    assert_int_equal(stat(path, &s), 0);
    const long places[] = {-1, -(long)s.st_size / 2, -(long)s.st_size / 3};
    for (size_t i = 0; i < ARRAY_LENGTH(places); i++) {
        flip_bit(path, places[i]);
        refuse(&t, SETTINGS("step-00000003", "checksum"));
        flip_bit(path, places[i]);
    }
    training_must(run(&t, 0, NULL, &r)); /* flipped back it is whole again */
    compare(&t, &whole, &r);
    training_dir_remove(dir);
}

static void two_runs_in_one_directory_are_refused(void **state) {
    (void)state;
    char *dir = training_dir();
    training t = {.preset = "test-llama", .steps = 2, .dir = dir};
    checkpointer *held;
    checkpoint_options o = {.run_dir = dir, .identity = "another run"};
    training_must(checkpointer_open(&held, &o, NULL, 0));
    refuse(&t, SETTINGS(dir, "in use"));
    checkpointer_close(held);
    train_result r;
    training_must(run(&t, 0, NULL, &r));
    training_dir_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stopped_and_resumed_is_the_same_run),
        cmocka_unit_test(states_of_every_format_are_resumed),
        cmocka_unit_test(the_schedule_is_resumed_over_skipped_steps),
        cmocka_unit_test(many_stops_are_the_same_run),
        cmocka_unit_test(a_stop_before_the_first_step_loses_nothing),
        cmocka_unit_test(an_interrupted_evaluation_is_made_up_for),
        cmocka_unit_test(saving_in_the_background_changes_no_bit),
        cmocka_unit_test(a_half_written_checkpoint_is_passed_over),
        cmocka_unit_test(another_model_precision_or_seed_is_refused),
        cmocka_unit_test(one_flipped_bit_is_refused),
        cmocka_unit_test(two_runs_in_one_directory_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
