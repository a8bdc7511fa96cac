/* test_api_told.c - what a trainer of the public API tells: metrics, samples, its data and the warnings of `ralo train`; and adapters. */
#include "api_check.h"
#include "training.h"

#include <math.h>
#include <string.h>

/* ---- what a trainer tells ----------------------------------------------------------------------------------------- */

typedef struct told {
    int n_calls, n_samples, n_lines, n_diverged, n_long, n_sinks;
    double step, loss, val_loss;
    bool is_sample_right;
} told;

static void on_metrics(void *context, const ralo_metric *list, size_t n) {
    told *x = context;
    x->n_calls++;
    assert_string_equal(list[0].name, "step");
    x->step = list[0].value;
    for (size_t i = 0; i < n; i++) {
        if (strcmp(list[i].name, "train/loss") == 0) x->loss = list[i].value;
        if (strcmp(list[i].name, "val/loss") == 0) x->val_loss = list[i].value;
    }
}

static void on_sample(void *context, const ralo_sample *s) {
    told *x = context;
    x->is_sample_right = s->step == (int64_t)x->step && s->index == (size_t)x->n_samples && s->prompt_bytes > 0 &&
                         s->completion_bytes <= 64 && isnan(s->reward) && !s->trained;
    x->n_samples++;
}

static void on_log(void *context, ralo_log_level level, const char *line) {
    told *x = context;
    x->n_lines += level == RALO_LOG_INFO && strncmp(line, "data      ", 10) == 0;
    x->n_diverged += level == RALO_LOG_WARNING && strncmp(line, "step ", 5) == 0 &&
                     strstr(line, "the loss diverges: ") && strstr(line, "a lower train.lr");
    x->n_long += level == RALO_LOG_WARNING && strstr(line, "are longer than a row of 16 tokens");
    x->n_sinks += level == RALO_LOG_WARNING && strstr(line, "track.* has no effect");
}

static void metrics_and_samples_are_told(void **state) {
    (void)state;
    static const char *const texts[] = {"the ", "a"};
    char *dir = training_dir(), path[600];
    ralo_settings *s = settings_of(PAIRS(TINY, "train.eval_rows", "4", "train.problems", "0", "train.sample_every",
                                         "99", "train.samples", "3", "train.sample_tokens", "6"));
    ralo_trainer *t;
    ralo_step step;
    ralo_evaluation e;
    ralo_completion *attached, *alone;
    ralo_sampling how;
    size_t n;
    told x = {0};
    must(ralo_trainer_open(&t, s));
    must(ralo_trainer_on_metrics(t, on_metrics, &x));
    must(ralo_trainer_on_sample(t, on_sample, &x));
    for (int i = 0; i < 3; i++) must(ralo_trainer_step(t, &step));
    assert_true(x.n_calls == 3 && x.step == 3 && x.loss == step.loss && x.val_loss == 0);
    must(ralo_trainer_evaluate(t, &e));
    assert_true(x.n_calls == 4 && x.val_loss == e.loss);
    must(ralo_trainer_sample(t));
    assert_true(x.n_samples == 3 && x.is_sample_right);
    must(ralo_trainer_on_metrics(t, NULL, NULL));
    must(ralo_trainer_step(t, NULL));
    assert_int_equal(x.n_calls, 4);

    /* In the trainer's memory as from the exported weights, token for token. */
    ralo_sampling_init(&how);
    how.max_new = 6;
    snprintf(path, sizeof path, "%s/model", dir);
    must(ralo_trainer_generate(t, texts, 2, &how, &attached, &n));
    must(ralo_trainer_export(t, path, NULL));
    ralo_generator *g;
    must(ralo_generator_open(&g, path, NULL));
    must(ralo_generator_generate(g, texts, 2, &how, &alone, &n));
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(attached[i].n_tokens, alone[i].n_tokens);
        assert_memory_equal(attached[i].tokens, alone[i].tokens, alone[i].n_tokens * sizeof(int32_t));
    }
    ralo_completions_free(attached, n);
    ralo_completions_free(alone, n);
    ralo_generator_close(g);
    REFUSED(ralo_trainer_generate(t, texts, 0, NULL, &alone, &n), RALO_ERROR_INPUT, "ralo_trainer_generate: found no");
    ralo_trainer_close(t);
    must(ralo_settings_set(s, "train.sample_every", "0"));
    must(ralo_trainer_open(&t, s));
    REFUSED(ralo_trainer_sample(t), RALO_ERROR_INPUT, "train.sample_every is 0");
    REFUSED(ralo_trainer_generate(t, texts, 2, NULL, &alone, &n), RALO_ERROR_INPUT, "train.sample_every is 0");
    ralo_trainer_close(t);
    ralo_settings_free(s);
    training_dir_remove(dir);
}

static void on_trained(void *context, const ralo_sample *s) {
    if (s->trained && s->step == 1 && isfinite(s->reward) && isfinite(s->advantage) &&
        s->prompt_bytes == strlen("12+34="))
        ++*(int *)context;
}

static void completions_that_are_trained_on_are_told(void **state) {
    (void)state;
    int n = 0;
    ralo_settings *s = settings_of(PAIRS(TINY, "data.source", "builtin:arithmetic", "data.seq_len", "48", "train.task",
                                         "rloo", "rl.prompts", "2", "rl.k", "4", "rl.max_completion", "6",
                                         "rl.log_prompts", "1", "train.eval_rows", "0", "train.problems", "0"));
    ralo_trainer *t;
    must(ralo_trainer_open(&t, s));
    must(ralo_trainer_on_sample(t, on_trained, &n));
    must(ralo_trainer_step(t, NULL));
    assert_int_equal(n, 4);
    ralo_trainer_close(t);
    ralo_settings_free(s);
}

static void the_data_and_its_warnings_are_told(void **state) {
    (void)state;
    enum { N = 20, TOKENS = 3 + 2 + 1 }; /* and one of 40 tokens; each ends with EOS */
    char *dir = training_dir(), path[600];
    snprintf(path, sizeof path, "%s/records.jsonl", dir);
    FILE *f = fopen(path, "w");
    for (int i = 0; i < N - 1; i++) fputs("{\"prompt\": \"abc\", \"completion\": \"de\"}\n", f);
    fputs("{\"prompt\": \"abc\", \"completion\": \"012345678901234567890123456789012345\"}\n", f);
    fclose(f);
    told x = {0};
    ralo_data d;
    ralo_trainer *t;
    ralo_settings *s = settings_of(PAIRS(
        TINY, "train.lr", "10", "train.clip", "none", "train.schedule", "constant", "train.steps", "60",
        "train.micro_batch", "1", "data.source", path, "data.cache", "none", "data.seq_len", "16", "data.eval_fraction",
        "0", "train.problems", "0", "train.eval_rows", "0", "data.allow_cut", "true", "track.to", "tensorboard"));
    ralo_set_log(on_log, &x);
    must(ralo_trainer_open(&t, s));
    must(ralo_trainer_data(t, &d));
    assert_true(d.n_records == N && d.n_trained == N && d.min == TOKENS && d.median == TOKENS && d.max == 40);
    assert_true(d.n_cut == 1 && d.n_dropped == 0 && d.covered == 0.95 && d.seq_len == 16 && !d.seq_len_auto);
    assert_true(d.rows_per_epoch > 0 && fabs(d.epochs - 60 / (double)d.rows_per_epoch) < 1e-12);
    assert_non_null(strstr(ralo_trainer_data_text(t), "20 records to train"));
    assert_non_null(strstr(ralo_trainer_data_text(t), "median 6"));
    assert_non_null(strstr(ralo_plan_json(ralo_trainer_plan(t)), "\"per_epoch\": 20, \"unit\": \"records\""));
    assert_true(x.n_lines == 1 && x.n_long == 1 && x.n_diverged == 0 && x.n_sinks == 1);
    run_to_end(t, NULL);
    assert_int_equal(x.n_diverged, 1);
    ralo_trainer_close(t);
    ralo_plan *p;
    must(ralo_settings_set(s, "data.allow_cut", "false")); /* a plan refuses what training refuses */
    REFUSED(ralo_plan_open(&p, s), RALO_ERROR_INPUT, "are longer than a row of 16 tokens");
    REFUSED(ralo_trainer_open(&t, s), RALO_ERROR_INPUT, "are longer than a row of 16 tokens");
    ralo_set_log(NULL, NULL);
    ralo_settings_free(s);
    training_dir_remove(dir);
}

/* ---- adapters --------------------------------------------------------------------------------------------------- */

static double completed(const char *source, const char *adapter, int32_t tokens[8]) {
    static const char *const texts[] = {"the "};
    ralo_generator_options o;
    ralo_generator *g;
    ralo_sampling how;
    ralo_completion *c;
    size_t n;
    ralo_generator_options_init(&o);
    o.adapter = adapter;
    o.context = 32;
    ralo_sampling_init(&how);
    how.max_new = 8;
    how.ignore_eos = 1;
    must(ralo_generator_open(&g, source, &o));
    must(ralo_generator_generate(g, texts, 1, &how, &c, &n));
    double log_probability = c[0].log_probability;
    memcpy(tokens, c[0].tokens, 8 * sizeof *tokens);
    ralo_completions_free(c, n);
    ralo_generator_close(g);
    return log_probability;
}

static void adapters_are_trained_saved_loaded_and_merged(void **state) {
    (void)state;
    char *dir = training_dir(), model[600], run[600], adapter[600], merged[600];
    int32_t base[8], with[8], of_run[8], of_merged[8];
    uint64_t trained, loaded;
    ralo_trainer *t;
    snprintf(model, sizeof model, "%s/model", dir);
    export_trained(model);
    snprintf(run, sizeof run, "%s/run", dir);
    snprintf(adapter, sizeof adapter, "%s/adapter", dir);
    snprintf(merged, sizeof merged, "%s/merged", dir);
    ralo_settings *s = settings_of(PAIRS(TINY, "model.preset", "auto", "model.path", model, "model.lora.rank", "4",
                                         "train.lr", "0.05", "run.dir", run));
    must(ralo_trainer_open(&t, s));
    assert_non_null(strstr(ralo_plan_text(ralo_trainer_plan(t)), "lora      rank 4"));
    trained = run_to_end(t, NULL);
    must(ralo_trainer_save(t));
    must(ralo_trainer_export(t, adapter, NULL));
    ralo_trainer_close(t);
    double alone = completed(model, NULL, base), adapted = completed(model, adapter, with);
    assert_true(fabs(alone - adapted) > 1e-3); /* it has learned something */
    assert_true(completed(run, NULL, of_run) == adapted);
    assert_memory_equal(of_run, with, sizeof with);
    must(ralo_export(run, merged, &(ralo_export_options){.merge = 1, .dtype = "fp32"}));
    /* W + BA is rounded once in fp32, and so is what it multiplies. */
    assert_true(fabs(completed(merged, NULL, of_merged) - adapted) < 1e-4);
    assert_memory_equal(of_merged, with, sizeof with);
    REFUSED(ralo_export(run, merged, NULL), RALO_ERROR_INPUT, "holds files already");
    REFUSED(ralo_export(run, "x", &(ralo_export_options){.dtype = "fp8"}), RALO_ERROR_INPUT,
            "ralo_export: found the dtype");
    REFUSED(ralo_export(NULL, "x", NULL), RALO_ERROR_INPUT, "'from'");

    must(ralo_settings_set(s, "run.dir", "auto")); /* trained further: it begins where the other ended */
    must(ralo_settings_set(s, "model.lora.rank", "none"));
    must(ralo_settings_set(s, "model.adapter", adapter));
    must(ralo_trainer_open(&t, s));
    must(ralo_trainer_param_hash(t, &loaded));
    assert_true(loaded == trained);
    ralo_trainer_close(t);
    ralo_settings_free(s);
    training_dir_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(metrics_and_samples_are_told),
        cmocka_unit_test(completions_that_are_trained_on_are_told),
        cmocka_unit_test(the_data_and_its_warnings_are_told),
        cmocka_unit_test(adapters_are_trained_saved_loaded_and_merged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
