/* test_mtp_run.c - runs with several prediction heads: techniques of memory change no bit, every tier uses exactly the bytes
 * that were planned for it, a run stops and goes on with another strategy to the same parameters, and what it reports is what its
 * heads lost. */
#include "queued_backend.h"
#include "training.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>

#define HEADS "train.task=mtp", "model.layers=5", "model.mtp.heads=3", "train.lr=0.01"
#define OFFLOADED(where)                                                                           \
    "memory.offload.params=" where, "memory.offload.grads=" where, "memory.offload.states=" where, \
        "memory.offload.activations=" where

/* Every rung and every place in some cell; each family and precision meets all of them. */
static const char *const *const techniques[] = {
    SETTINGS("memory.recompute=full"),
    SETTINGS("memory.recompute=selective", "memory.offload.states=host", "memory.overlap_update=false"),
    SETTINGS("memory.recompute=every:2", OFFLOADED("host"), "memory.prefetch=0"),
    SETTINGS("memory.recompute=nested:2", OFFLOADED("host"), "memory.prefetch=2", "memory.offload.keep_layers=1"),
    SETTINGS("memory.recompute=mix:full,2,norms", OFFLOADED("nvme"), "memory.bucket=256K"),
    SETTINGS("memory.recompute=keep:attn.qkv,attn.y", "memory.offload.grads=host", "memory.offload.activations=nvme"),
    SETTINGS("memory.recompute=norms", "memory.offload.params=host", "memory.offload.keep_states=2"),
};
static const precision precisions[] = {PRECISION_FP32, PRECISION_BF16, PRECISION_BF16_SR, PRECISION_FP8};

static void run_cell(char *dir, const char *preset, precision q, int accumulation, const char *const *more,
                     train_result *out) {
    const char *all[SETTINGS_MOST];
    char nvme[600], name[200];
    snprintf(nvme, sizeof nvme, "memory.nvme_path=%s", dir);
    settings_join(all, SETTINGS(HEADS, nvme), more);
    training t = {.preset = preset, .precision = q, .accumulation = accumulation, .steps = 3, .more = all};
    snprintf(name, sizeof name, "%s %s accumulation %d %s", preset, precision_name(q), accumulation,
             more ? more[0] : "plain");
    status rc = training_run(&t, out);
    if (rc != OK) fail_msg("%s: %s", name, error_message());
    training_as_planned(out, name);
}

static void techniques_change_no_bit(void **state) {
    char *dir = training_dir();
    int n = 0;
    for (size_t m = 0; m < ARRAY_LENGTH(training_presets); m++)
        for (size_t q = 0; q < ARRAY_LENGTH(precisions); q++) {
            int accumulation = 1 + 2 * (int)((m + q) % 2);
            train_result plain, r;
            run_cell(dir, training_presets[m], precisions[q], accumulation, NULL, &plain);
            for (size_t k = (m + q) % 2; k < ARRAY_LENGTH(techniques); k += SANITIZED ? 4 : 2, n++) {
                run_cell(dir, training_presets[m], precisions[q], accumulation, techniques[k], &r);
                if (r.param_hash != plain.param_hash || r.last_loss != plain.last_loss)
                    fail_msg("%s %s: %s changes the result: loss %.9g, expected %.9g", training_presets[m],
                             precision_name(precisions[q]), techniques[k][0], r.last_loss, plain.last_loss);
            }
        }
    print_message("%d runs with the bits of the plain ones\n", n);
    training_dir_remove(dir);
}

/* The update beside the next step's first micro-batch, for which the task counts ahead. */
static void turns_change_no_bit(void **state) {
    char *dir = training_dir();
    train_result plain, r;
    run_cell(dir, "test-qwen3", PRECISION_BF16, 3, SETTINGS("memory.overlap_update=false"), &plain);
    run_cell(dir, "test-qwen3", PRECISION_BF16, 3, SETTINGS("memory.offload.states=host", "memory.overlap_update=true"),
             &r);
    assert_true(r.param_hash == plain.param_hash);
    training_dir_remove(dir);
}

static uint64_t hash_of(const char *preset, const backend *b, const char *const *weighting,
                        const char *const *technique, const char *dir) {
    const char *all[SETTINGS_MOST], *most[SETTINGS_MOST];
    char nvme[600];
    train_result r;
    snprintf(nvme, sizeof nvme, "memory.nvme_path=%s", dir);
    settings_join(most, SETTINGS(HEADS, nvme), weighting);
    settings_join(all, most, technique);
    training t = {
        .preset = preset, .precision = PRECISION_BF16, .accumulation = 2, .steps = 3, .more = all, .backend = b};
    status rc = training_run(&t, &r);
    if (rc != OK) fail_msg("%s %s: %s", preset, technique ? technique[0] : "plain", error_message());
    training_as_planned(&r, preset);
    return r.param_hash;
}

/* Kernels that are queued, as on a GPU, and copies beside them: nothing reads what is not written yet. */
static void queues_change_no_bit(void **state) {
    char *dir = training_dir();
    uint64_t plain = hash_of("test-qwen2", NULL, NULL, NULL, dir);
    assert_true(hash_of("test-qwen2", backend_queued(), NULL, NULL, dir) == plain);
    for (size_t k = 0; k < ARRAY_LENGTH(techniques); k += SANITIZED ? 3 : 1)
        assert_true(hash_of("test-qwen2", backend_queued(), NULL, techniques[k], dir) == plain);
    training_dir_remove(dir);
}

/* Selected tokens and random weights, too; every weighting trains another model. */
static void weightings_keep_their_bits(void **state) {
    const char *const *const weightings[] = {
        SETTINGS("train.weighting=rho1"), SETTINGS("train.weighting=rho1", "rho1.mode=absolute", "rho1.k_percent=0.4"),
        SETTINGS("train.weighting=rho1", "rho1.mode=difficult", "rho1.first_head_all=true"),
        SETTINGS("train.weighting=rho1", "model.lora.rank=4"), SETTINGS("train.weighting=random")};
    char *dir = training_dir();
    uint64_t seen[ARRAY_LENGTH(weightings)];
    for (size_t w = 0; w < ARRAY_LENGTH(weightings); w++) {
        const char *preset = training_presets[w % ARRAY_LENGTH(training_presets)];
        uint64_t plain = seen[w] = hash_of(preset, NULL, weightings[w], NULL, dir);
        assert_true(plain != hash_of(preset, NULL, NULL, NULL, dir));
        for (size_t k = w % 2; k < ARRAY_LENGTH(techniques); k += SANITIZED ? 4 : 2)
            if (hash_of(preset, k % 3 ? NULL : backend_queued(), weightings[w], techniques[k], dir) != plain)
                fail_msg("%s, weighting %zu: %s changes the result", preset, w, techniques[k][0]);
        for (size_t k = 0; k < w; k++) assert_true(seen[k] != plain);
    }
    training_dir_remove(dir);
}

typedef struct weighted_numbers {
    int n;
    double of[64];
} weighted_numbers;
static void keep_weighted(void *context, const train_step_report *r) {
    weighted_numbers *w = context;
    for (int i = 0; i < r->metrics.n; i++) w->of[w->n++] = r->metrics.list[i].value;
}

/* One head is the ordinary model: the same selection and weights, the same bits, the same metrics; and a state to resume from. */
static void one_head_is_supervised_fine_tuning(void **state) {
    const char *const *const weightings[] = {SETTINGS("train.weighting=rho1", "train.lr=0.01"),
                                             SETTINGS("train.weighting=random", "train.lr=0.01")};
    for (size_t w = 0; w < ARRAY_LENGTH(weightings); w++) {
        const char *all[SETTINGS_MOST];
        char *dir = training_dir();
        train_result sft, mtp, r;
        weighted_numbers found[2] = {0};
        train_observer watch = {.context = &found[0], .on_step = keep_weighted};
        training t = {
            .precision = PRECISION_BF16, .accumulation = 2, .steps = 4, .more = weightings[w], .observer = &watch};
        training_must(training_run(&t, &sft));
        training_as_planned(&sft, weightings[w][0]);
        watch.context = &found[1];
        settings_join(all, weightings[w], SETTINGS("train.task=mtp", "model.mtp.heads=1"));
        t.more = all;
        training_must(training_run(&t, &mtp));
        assert_true(sft.param_hash == mtp.param_hash);
        assert_int_equal(found[0].n, 8 * 4);
        assert_memory_equal(&found[0], &found[1], sizeof found[0]);
        t.dir = dir, t.steps = 2;
        settings_join(all, weightings[w], SETTINGS("train.schedule_steps=4"));
        training_must(training_run(&t, &r));
        t.steps = 4, t.resume = "auto";
        training_must(training_run(&t, &r));
        assert_true(r.param_hash == sft.param_hash);
        t.steps = 5, t.more = SETTINGS("train.lr=0.01");
        assert_true(training_run(&t, &r) == ERR_INPUT); /* without the weighting it is another run */
        if (!strstr(error_message(), "other settings of its task") || !strstr(error_message(), "weighting"))
            fail_msg("%s", error_message());
        training_dir_remove(dir);
    }
}

static void a_run_goes_on_with_another_strategy(void **state) {
    char *dir = training_dir();
    train_result whole, first, r;
    training t = {
        .preset = "test-llama", .precision = PRECISION_BF16, .accumulation = 2, .steps = 6, .more = SETTINGS(HEADS)};
    training_must(training_run(&t, &whole));
    t.dir = dir;
    t.steps = 3;
    t.more = SETTINGS(HEADS, "train.schedule_steps=6");
    training_must(training_run(&t, &first));
    assert_true(first.param_hash != whole.param_hash);
    t.steps = 6;
    t.resume = "auto";
    t.more = SETTINGS(HEADS, "memory.recompute=full", "memory.offload.states=host", "memory.offload.params=host");
    training_must(training_run(&t, &r));
    assert_true(r.param_hash == whole.param_hash);
    t.steps = 7;
    t.more = SETTINGS("train.task=mtp", "model.layers=5", "model.mtp.heads=2", "train.lr=0.01");
    assert_true(training_run(&t, &r) == ERR_INPUT); /* the heads of another model */
    if (!strstr(error_message(), "prediction heads")) fail_msg("%s", error_message());
    training_dir_remove(dir);
}

/* ---- what is reported ---------------------------------------------------------------------------------------------- */

static double metric_of(const train_step_report *r, const char *name) {
    for (int i = 0; i < r->metrics.n; i++)
        if (strcmp(r->metrics.list[i].row->name, name) == 0) return r->metrics.list[i].value;
    fail_msg("no metric %s", name);
    return NAN;
}

static void check_step(void *context, const train_step_report *r) {
    double heads[3], mean;
    int *n = context;
    for (int k = 0; k < 3; k++) {
        char name[32];
        snprintf(name, sizeof name, "train/head%d_ce_loss", k + 1);
        heads[k] = metric_of(r, name);
    }
    mean = (heads[0] + heads[1] + heads[2]) / 3;
    assert_true(metric_of(r, "train/weighted_ce_loss") == r->loss);
    /* fp32 numbers of sums that were made in fp64 */
    assert_true(fabs(metric_of(r, "train/unweighted_ce_loss") - mean) < 1e-6);
    assert_true(fabs(r->loss - mean) < 1e-5 * mean);
    ++*n;
}

static void reports_are_those_of_the_heads(void **state) {
    int n = 0;
    train_result r;
    train_observer watch = {.context = &n, .on_step = check_step};
    training t = {.preset = "test-gpt2", .accumulation = 3, .steps = 5, .more = SETTINGS(HEADS), .observer = &watch};
    training_must(training_run(&t, &r));
    assert_int_equal(n, 5);
    assert_true(r.last_loss < r.first_loss);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(techniques_change_no_bit),
        cmocka_unit_test(turns_change_no_bit),
        cmocka_unit_test(queues_change_no_bit),
        cmocka_unit_test(weightings_keep_their_bits),
        cmocka_unit_test(one_head_is_supervised_fine_tuning),
        cmocka_unit_test(a_run_goes_on_with_another_strategy),
        cmocka_unit_test(reports_are_those_of_the_heads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
