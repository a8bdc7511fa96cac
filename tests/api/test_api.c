/* test_api.c - the public API does what ralo.h says, and what `ralo train` does. */
#include "api_check.h"
#include "training.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- settings -------------------------------------------------------------------------------------------------- */

static void settings_read_back_as_they_were_set(void **state) {
    (void)state;
    ralo_settings *s;
    const char *value;
    must(ralo_settings_new(&s));
    must(ralo_settings_get(s, "train.lr", &value));
    assert_string_equal(value, "0.003");
    must(ralo_settings_set(s, "train.learning_rate", "1e-3"));
    must(ralo_settings_get(s, "train.lr", &value));
    assert_string_equal(value, "0.001");
    must(ralo_settings_set(s, "train.adam_beta2", "0.5"));
    must(ralo_settings_get(s, "train.betas", &value));
    assert_string_equal(value, "[0.9, 0.5]");
    must(ralo_settings_get(s, "train.beta2", &value));
    assert_string_equal(value, "0.5");
    must(ralo_settings_set(s, "run.dir", "a = \"b\": c"));
    must(ralo_settings_get(s, "run.dir", &value));
    assert_string_equal(value, "a = \"b\": c");
    must(ralo_settings_set(s, "memory.device", "24G"));

    size_t n = 0;
    for (const char *key; (key = ralo_settings_key(n)); n++) { /* what is got can be set, and is then got again */
        must(ralo_settings_get(s, key, &value));
        char *before = strdup(value);
        must(ralo_settings_set(s, key, before));
        must(ralo_settings_get(s, key, &value));
        assert_string_equal(value, before);
        free(before);
    }
    assert_int_equal(n, config_count());
    ralo_settings_free(s);
}

static void wrong_settings_are_refused(void **state) {
    (void)state;
    ralo_settings *s;
    const char *value;
    must(ralo_settings_new(&s));
    REFUSED(ralo_settings_set(s, "train.stepz", "3"), RALO_ERROR_INPUT, "did you mean 'train.steps'");
    REFUSED(ralo_settings_set(s, "train", "3"), RALO_ERROR_INPUT, "group");
    REFUSED(ralo_settings_set(s, "train.lr=1", "3"), RALO_ERROR_INPUT, "'='");
    REFUSED(ralo_settings_set(s, "train.lr", "20"), RALO_ERROR_INPUT, "(0, 10]");
    REFUSED(ralo_settings_get(s, "train.stepz", &value), RALO_ERROR_INPUT, "did you mean 'train.steps'");
    assert_null(value);
    REFUSED(ralo_settings_get(s, "train", &value), RALO_ERROR_INPUT, "group");
    REFUSED(ralo_settings_load_file(s, "/nowhere.yaml"), RALO_ERROR_IO, "/nowhere.yaml");
    must(ralo_settings_get(s, "train.lr", &value));
    assert_string_equal(value, "0.003");
    ralo_settings_free(s);
}

static void a_file_of_settings_is_read(void **state) {
    (void)state;
    char *dir = training_dir(), path[600];
    ralo_settings *s;
    const char *value;
    snprintf(path, sizeof path, "%s/a.yaml", dir);
    FILE *f = fopen(path, "w");
    fputs("train: {steps: 7}\nmodel.preset: gpt2\n", f);
    fclose(f);
    must(ralo_settings_new(&s));
    must(ralo_settings_load_file(s, path));
    must(ralo_settings_get(s, "train.steps", &value));
    assert_string_equal(value, "7");
    must(ralo_settings_get(s, "model.preset", &value));
    assert_string_equal(value, "gpt2");
    ralo_settings_free(s);
    training_dir_remove(dir);
}

static void null_is_refused_everywhere(void **state) {
    (void)state;
    ralo_settings *s;
    ralo_plan *p = (ralo_plan *)&s;
    ralo_trainer *t = (ralo_trainer *)&s;
    ralo_tokenizer *k, *none;
    ralo_evaluation e;
    double number;
    uint64_t n;
    int32_t *tokens;
    char *text;
    size_t count;
    must(ralo_settings_new(&s));
    must(ralo_tokenizer_open(&k, "byte"));
    REFUSED(ralo_settings_new(NULL), RALO_ERROR_INPUT, "ralo_settings_new");
    REFUSED(ralo_settings_set(NULL, "a", "b"), RALO_ERROR_INPUT, "'s'");
    REFUSED(ralo_settings_set(s, NULL, "b"), RALO_ERROR_INPUT, "'key'");
    REFUSED(ralo_settings_set(s, "train.lr", NULL), RALO_ERROR_INPUT, "'value'");
    REFUSED(ralo_settings_get(s, "train.lr", NULL), RALO_ERROR_INPUT, "'out'");
    const char *value = "left";
    REFUSED(ralo_settings_get(NULL, "train.lr", &value), RALO_ERROR_INPUT, "'s'");
    assert_null(value);
    REFUSED(ralo_settings_load_file(s, NULL), RALO_ERROR_INPUT, "'path'");
    REFUSED(ralo_plan_open(&p, NULL), RALO_ERROR_INPUT, "'s'");
    assert_null(p);
    REFUSED(ralo_plan_bytes(NULL, "device", NULL, &n), RALO_ERROR_INPUT, "'p'");
    REFUSED(ralo_plan_check(NULL), RALO_ERROR_INPUT, "'p'");
    assert_null(ralo_plan_text(NULL));
    assert_null(ralo_plan_json(NULL));
    REFUSED(ralo_trainer_open(&t, NULL), RALO_ERROR_INPUT, "'s'");
    assert_null(t);
    REFUSED(ralo_trainer_open(NULL, s), RALO_ERROR_INPUT, "'out'");
    REFUSED(ralo_trainer_step(NULL, NULL), RALO_ERROR_INPUT, "'t'");
    REFUSED(ralo_trainer_evaluate(NULL, &e), RALO_ERROR_INPUT, "'t'");
    REFUSED(ralo_trainer_metric(NULL, "step", &number), RALO_ERROR_INPUT, "'t'");
    REFUSED(ralo_trainer_save(NULL), RALO_ERROR_INPUT, "'t'");
    REFUSED(ralo_trainer_export(NULL, "a", NULL), RALO_ERROR_INPUT, "'t'");
    REFUSED(ralo_trainer_param_hash(NULL, &n), RALO_ERROR_INPUT, "'t'");
    assert_int_equal(ralo_trainer_steps_left(NULL), 0);
    assert_null(ralo_trainer_plan(NULL));
    assert_null(ralo_trainer_data_text(NULL));
    REFUSED(ralo_trainer_data(NULL, &(ralo_data){0}), RALO_ERROR_INPUT, "'t'");
    REFUSED(ralo_trainer_on_metrics(NULL, NULL, NULL), RALO_ERROR_INPUT, "'t'");
    REFUSED(ralo_trainer_on_sample(NULL, NULL, NULL), RALO_ERROR_INPUT, "'t'");
    REFUSED(ralo_trainer_sample(NULL), RALO_ERROR_INPUT, "'t'");
    REFUSED(ralo_tokenizer_open(&none, NULL), RALO_ERROR_INPUT, "'name'");
    assert_null(none);
    REFUSED(ralo_tokenizer_encode(k, NULL, 1, &tokens, &count), RALO_ERROR_INPUT, "'text'");
    REFUSED(ralo_tokenizer_decode(k, NULL, 1, &text, NULL), RALO_ERROR_INPUT, "'tokens'");
    REFUSED(ralo_tokenizer_encode(NULL, "a", 1, &tokens, &count), RALO_ERROR_INPUT, "'t'");
    REFUSED(ralo_tokenizer_decode(NULL, NULL, 0, &text, NULL), RALO_ERROR_INPUT, "'t'");
    assert_int_equal(ralo_tokenizer_vocab(NULL), 0);
    assert_int_equal(ralo_tokenizer_eos(NULL), -1);
    ralo_settings_free(NULL);
    ralo_plan_close(NULL);
    ralo_trainer_close(NULL);
    ralo_tokenizer_close(NULL);
    ralo_free(NULL);
    ralo_tokenizer_close(k);
    ralo_settings_free(s);
}

/* ---- plan ------------------------------------------------------------------------------------------------------ */

static void a_plan_adds_up(void **state) {
    (void)state;
    static const char *const roles[] = {"inputs", "params", "grads", "states", "activations",
                                        "work",   "comm",   "cache", "gaps"};
    ralo_settings *s = settings_of(PAIRS(TINY));
    ralo_plan *p;
    uint64_t device, host, nvme, one, sum = 0;
    must(ralo_plan_open(&p, s));
    ralo_settings_free(s); /* copied */
    must(ralo_plan_check(p));
    must(ralo_plan_bytes(p, "device", NULL, &device));
    must(ralo_plan_bytes(p, "host", NULL, &host));
    must(ralo_plan_bytes(p, "nvme", NULL, &nvme));
    for (size_t i = 0; i < ARRAY_LENGTH(roles); i++) {
        must(ralo_plan_bytes(p, "device", roles[i], &one));
        sum += one;
    }
    assert_true(device > 0 && host > 0 && sum == device);
    REFUSED(ralo_plan_bytes(p, "disk", NULL, &one), RALO_ERROR_INPUT, "'disk'");
    REFUSED(ralo_plan_bytes(p, "device", "parms", &one), RALO_ERROR_INPUT, "params, ");
    REFUSED(ralo_plan_bytes(p, "host", "params", &one), RALO_ERROR_INPUT, "no roles");

    json_t *root = json_loads(ralo_plan_json(p), 0, NULL);
    assert_non_null(root);
    json_t *memory = json_object_get(root, "memory");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(memory, "device"), "planned")), device);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(memory, "nvme"), "planned")), nvme);
    assert_true(json_is_true(json_object_get(root, "fits")));
    json_decref(root);
    assert_non_null(strstr(ralo_plan_text(p), "test-llama"));
    ralo_plan_close(p);
}

/* Ranks that are not here can be planned for; a trainer that took such settings would train something else. */
static void many_ranks_are_planned_and_not_trained(void **state) {
    (void)state;
    ralo_settings *s =
        settings_of(PAIRS(TINY, "parallel.tensor", "2", "parallel.pipeline", "2", "train.accumulation", "2"));
    ralo_plan *p;
    ralo_trainer *t;
    must(ralo_plan_open(&p, s));
    assert_non_null(strstr(ralo_plan_text(p), "ranks     4, this is rank 0"));
    json_t *root = json_loads(ralo_plan_json(p), 0, NULL); /* as ralo plan --json */
    assert_true(json_is_object(json_object_get(root, "pipeline")) && json_is_object(json_object_get(root, "disk")));
    json_decref(root);
    ralo_plan_close(p);
    REFUSED(ralo_trainer_open(&t, s), RALO_ERROR_INPUT, "found data 1 x tensor 2 x pipeline 2 x sequence 1 ranks");
    assert_null(t);
    must(ralo_settings_set(s, "parallel.tensor", "1"));
    must(ralo_settings_set(s, "parallel.pipeline", "1"));
    must(ralo_settings_set(s, "parallel.data", "1"));
    must(ralo_trainer_open(&t, s));
    ralo_trainer_close(t);
    ralo_settings_free(s);
}

static void what_does_not_fit_is_told(void **state) {
    (void)state;
    ralo_settings *s =
        settings_of(PAIRS("model.preset", "gpt2", "train.micro_batch", "16", "memory.device", "1500M", "memory.strategy", "manual"));
    ralo_plan *p;
    ralo_trainer *t;
    must(ralo_plan_open(&p, s));
    REFUSED(ralo_plan_check(p), RALO_ERROR_FIT, "Fits with: ");
    assert_non_null(strstr(ralo_plan_json(p), "\"fits\": false"));
    ralo_plan_close(p);
    REFUSED(ralo_trainer_open(&t, s), RALO_ERROR_FIT, "Fits with: ");
    assert_null(t);
    must(ralo_settings_set(s, "model.preset", "gtp2"));
    REFUSED(ralo_plan_open(&p, s), RALO_ERROR_INPUT, "did you mean 'gpt2'");
    ralo_settings_free(s);
}

/* ---- trainer --------------------------------------------------------------------------------------------------- */

static void steps_of_the_caller_are_the_steps_of_train_run(void **state) {
    (void)state;
    train_result r;
    training_must(training_run(&(training){.steps = 6}, &r));
    ralo_settings *s = settings_of(PAIRS(TINY, "train.save_every", "2", "train.eval_rows", "4"));
    ralo_trainer *t;
    ralo_step step = {0};
    ralo_evaluation e;
    double x;
    must(ralo_trainer_open(&t, s));
    ralo_settings_free(s);
    assert_int_equal(ralo_trainer_steps_left(t), 6);
    REFUSED(ralo_trainer_metric(t, "train/loss", &x), RALO_ERROR_INPUT, "none yet");
    must(ralo_trainer_step(t, &step));
    must(ralo_trainer_metric(t, "train/loss", &x));
    assert_true(x == step.loss);
    must(ralo_trainer_metric(t, "tokens", &x));
    assert_true(x == 48);
    REFUSED(ralo_trainer_metric(t, "val/loss", &x), RALO_ERROR_INPUT, "'val/loss'");
    REFUSED(ralo_trainer_metric(t, "train/skipped", &x), RALO_ERROR_INPUT, "'train/skipped'"); /* it was not */
    assert_int_equal(step.step, 1);
    assert_true(step.loss == r.first_loss && step.grad_norm > 0 && step.lr > 0 && step.seconds > 0 && !step.skipped);
    assert_int_equal(step.tokens, 48);
    must(ralo_trainer_step(t, NULL));
    assert_true(run_to_end(t, &step) == r.param_hash);
    assert_int_equal(step.step, 6);
    assert_true(step.loss == r.last_loss);
    REFUSED(ralo_trainer_step(t, &step), RALO_ERROR_INPUT, "train.steps");
    must(ralo_trainer_evaluate(t, &e)); /* that was no failure: the trainer lives on */
    assert_true(isfinite(e.loss) && isnan(e.exact_match) && e.n_problems == 0);
    must(ralo_trainer_metric(t, "val/loss", &x));
    assert_true(x == e.loss);
    must(ralo_trainer_metric(t, "train/loss", &x)); /* still that of the last step */
    assert_true(x == step.loss);
    REFUSED(ralo_trainer_metric(t, "val/exact_match", &x), RALO_ERROR_INPUT, "metrics.md");
    REFUSED(ralo_trainer_save(t), RALO_ERROR_INPUT, "run.dir");
    uint64_t device;
    must(ralo_plan_bytes(ralo_trainer_plan(t), "device", NULL, &device));
    assert_true(device > 0);
    ralo_plan_close((ralo_plan *)ralo_trainer_plan(t)); /* borrowed: closing it does nothing */
    ralo_trainer_close(t);
}

/* A caller may look at the run between any two steps: nothing of the next one has begun. */
static void steps_of_the_caller_do_not_overlap(void **state) {
    (void)state;
    ralo_settings *s = settings_of(PAIRS(TINY, "memory.offload.states", "host", "memory.overlap_update", "true"));
    ralo_plan *p;
    ralo_trainer *t;
    must(ralo_plan_open(&p, s)); /* as `ralo train` would run it */
    assert_non_null(strstr(ralo_plan_json(p), "\"overlap_update\": true"));
    ralo_plan_close(p);
    REFUSED(ralo_trainer_open(&t, s), RALO_ERROR_INPUT, "memory.overlap_update: found true, expected auto or false");
    must(ralo_settings_set(s, "memory.overlap_update", "auto"));
    must(ralo_trainer_open(&t, s));
    assert_non_null(strstr(ralo_plan_json(ralo_trainer_plan(t)), "\"overlap_update\": false"));
    ralo_trainer_close(t);
    ralo_settings_free(s);
}

static void a_saved_run_goes_on_where_it_stopped(void **state) {
    (void)state;
    char *dir = training_dir(), path[600];
    ralo_settings *s = settings_of(PAIRS(TINY, "train.eval_rows", "0", "train.problems", "0"));
    ralo_trainer *t;
    ralo_evaluation e;
    uint64_t whole;
    struct stat info;
    must(ralo_trainer_open(&t, s));
    whole = run_to_end(t, NULL);
    REFUSED(ralo_trainer_evaluate(t, &e), RALO_ERROR_INPUT, "train.eval_rows");
    ralo_trainer_close(t);

    snprintf(path, sizeof path, "%s/run", dir);
    must(ralo_settings_set(s, "run.dir", path));
    must(ralo_settings_set(s, "train.save_every", "3"));
    must(ralo_trainer_open(&t, s));
    for (int i = 0; i < 4; i++) must(ralo_trainer_step(t, NULL));
    must(ralo_trainer_save(t));
    must(ralo_trainer_step(t, NULL)); /* lost with the trainer */
    ralo_trainer_close(t);
    snprintf(path, sizeof path, "%s/run/checkpoints/step-00000004/checkpoint.json", dir);
    assert_int_equal(stat(path, &info), 0);
    REFUSED(ralo_trainer_open(&t, s), RALO_ERROR_INPUT, "already holds a checkpoint");

    must(ralo_settings_set(s, "run.resume", "auto"));
    must(ralo_trainer_open(&t, s));
    assert_int_equal(ralo_trainer_steps_left(t), 2);
    assert_true(run_to_end(t, NULL) == whole);

    /* Exported and loaded as a model, it starts from the same parameters. */
    uint64_t reloaded;
    snprintf(path, sizeof path, "%s/model", dir);
    REFUSED(ralo_trainer_export(t, path, "fp8"), RALO_ERROR_INPUT, "'fp8'");
    assert_int_not_equal(stat(path, &info), 0);
    must(ralo_trainer_export(t, path, "fp32"));
    REFUSED(ralo_trainer_export(t, path, NULL), RALO_ERROR_INPUT, "holds files already");
    ralo_trainer_close(t);
    must(ralo_settings_set(s, "model.preset", "auto"));
    must(ralo_settings_set(s, "model.path", path));
    must(ralo_settings_set(s, "run.dir", "auto"));
    must(ralo_settings_set(s, "run.resume", "none"));
    must(ralo_trainer_open(&t, s));
    must(ralo_trainer_param_hash(t, &reloaded));
    assert_true(reloaded == whole);
    ralo_trainer_close(t);
    /* The settings that were saved are those that were given, also where the caller's loop passes them over. */
    snprintf(path, sizeof path, "%s/run/config.yaml", dir);
    const char *value;
    must(ralo_settings_load_file(s, path));
    must(ralo_settings_get(s, "train.save_every", &value));
    assert_string_equal(value, "3");
    ralo_settings_free(s);
    training_dir_remove(dir);
}

static void a_step_that_fails_ends_the_trainer(void **state) {
    (void)state;
    char *dir = training_dir(), path[600];
    snprintf(path, sizeof path, "%s/run", dir);
    /* Steps so large that the loss is soon no number. */
    ralo_settings *s = settings_of(PAIRS(TINY, "train.lr", "10", "train.clip", "none", "train.steps", "200",
                                         "train.schedule", "constant", "train.eps", "1e-30", "run.dir", path,
                                         "precision", "fp16", "train.fp16.min_loss_scale", "65536"));
    ralo_trainer *t;
    ralo_status rc = RALO_OK;
    must(ralo_trainer_open(&t, s));
    while (rc == RALO_OK && ralo_trainer_steps_left(t) > 0) rc = ralo_trainer_step(t, NULL);
    assert_int_equal(rc, RALO_ERROR_RUN);
    REFUSED(ralo_trainer_step(t, NULL), RALO_ERROR_INPUT, "close this trainer");
    REFUSED(ralo_trainer_save(t), RALO_ERROR_INPUT, "close this trainer");
    /* Its parameters are between two steps: no model, no number comes out of it. */
    ralo_evaluation e;
    uint64_t hash;
    struct stat info;
    snprintf(path, sizeof path, "%s/model", dir);
    REFUSED(ralo_trainer_export(t, path, NULL), RALO_ERROR_INPUT, "close this trainer");
    assert_int_not_equal(stat(path, &info), 0);
    REFUSED(ralo_trainer_evaluate(t, &e), RALO_ERROR_INPUT, "close this trainer");
    REFUSED(ralo_trainer_param_hash(t, &hash), RALO_ERROR_INPUT, "close this trainer");
    ralo_trainer_close(t);
    ralo_settings_free(s);
    training_dir_remove(dir);
}

/* ---- tokenizer ------------------------------------------------------------------------------------------------- */

static void text_comes_back_from_tokens(void **state) {
    (void)state;
    static const char text[] = "a\0\xff\xc3\xa9";
    ralo_tokenizer *t;
    int32_t *tokens;
    size_t n, n_bytes;
    char *back;
    must(ralo_tokenizer_open(&t, "byte"));
    assert_int_equal(ralo_tokenizer_vocab(t), BYTE_VOCAB);
    assert_int_equal(ralo_tokenizer_eos(t), TOKEN_EOS);
    must(ralo_tokenizer_encode(t, text, 5, &tokens, &n));
    assert_int_equal(n, 5);
    assert_int_equal(tokens[2], 0xff);
    must(ralo_tokenizer_decode(t, tokens, n, &back, &n_bytes));
    assert_int_equal(n_bytes, 5);
    assert_memory_equal(back, text, 6);
    ralo_free(back);
    ralo_free(tokens);
    must(ralo_tokenizer_encode(t, NULL, 0, &tokens, &n));
    assert_true(tokens == NULL && n == 0);
    must(ralo_tokenizer_decode(t, NULL, 0, &back, NULL));
    assert_string_equal(back, "");
    ralo_free(back);
    ralo_tokenizer_close(t);
    REFUSED(ralo_tokenizer_open(&t, "/nowhere"), RALO_ERROR_INPUT, "/nowhere");
    assert_null(t);
}

/* ---- generation -------------------------------------------------------------------------------------------------- */

static char *model_dir(void) {
    char *dir = training_dir(), path[600];
    snprintf(path, sizeof path, "%s/model", dir);
    export_trained(path);
    return dir;
}

static void completions_are_those_of_the_generator(void **state) {
    (void)state;
    static const char *const texts[] = {"the ", "a", "some longer prompt"};
    enum { N = 3, EACH = 2 };
    char *dir = model_dir(), path[600];
    snprintf(path, sizeof path, "%s/model", dir);
    generator *inner;
    training_must(generator_open(
        &inner, &(generator_options){
                    .source = path, .max_sequences = 2, .context = 64, .n_threads = 1, .backend = backend_cpu()}));
    prompt prompts[N] = {{0}};
    int32_t *tokens[N] = {NULL};
    for (size_t i = 0; i < N; i++) {
        size_t capacity = 0;
        training_must(generator_encode(inner, texts[i], strlen(texts[i]), &tokens[i], &prompts[i].n_tokens, &capacity));
        prompts[i].tokens = tokens[i];
    }
    ralo_generator *g;
    ralo_generator_options o;
    ralo_generator_options_init(&o);
    o.max_sequences = 5; /* the number of slots changes nothing */
    o.context = 64;
    o.threads = 2;
    must(ralo_generator_open(&g, path, &o));
    for (int sampled = 0; sampled < 2; sampled++) {
        sampling_options want = SAMPLING_DEFAULTS;
        ralo_sampling s;
        completion *expected;
        ralo_completion *got;
        size_t n;
        ralo_sampling_init(&s);
        s.max_new = want.max_new = 12;
        s.n_completions = want.n_completions = sampled ? EACH : 1;
        s.temperature = want.temperature = sampled ? 0.9 : 0;
        s.top_k = want.top_k = 40;
        s.seed = want.seed = 7;
        s.ignore_eos = want.ignore_eos = true;
        training_must(generator_run(inner, prompts, N, &want, NULL, &expected, NULL));
        must(ralo_generator_generate(g, texts, N, &s, &got, &n));
        assert_int_equal(n, sampled ? N * EACH : N);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(got[i].n_tokens, 12);
            assert_memory_equal(got[i].tokens, expected[i].tokens, 12 * sizeof(int32_t));
            assert_int_equal(got[i].n_bytes, expected[i].text_bytes);
            assert_memory_equal(got[i].text, expected[i].text, got[i].n_bytes + 1);
            assert_int_equal(got[i].stop, RALO_STOP_LENGTH);
            assert_true(got[i].log_probability == expected[i].log_probability && got[i].log_probability < 0);
        }
        ralo_completions_free(got, n);
        completions_free(expected, n);
    }
    uint64_t cache;
    must(ralo_plan_bytes(ralo_generator_plan(g), "device", "cache", &cache));
    assert_true(cache > 0);
    generator_close(inner);
    for (size_t i = 0; i < N; i++) free(tokens[i]);
    ralo_generator_close(g);
    training_dir_remove(dir);
}

static void wrong_requests_for_generation_are_refused(void **state) {
    (void)state;
    static const char *const texts[] = {"a", NULL};
    char *dir = model_dir(), path[600];
    ralo_generator *g;
    ralo_generator_options o;
    ralo_sampling s;
    ralo_completion *c;
    size_t n;
    snprintf(path, sizeof path, "%s/model", dir);
    ralo_generator_options_init(&o);
    o.precision = "fp8";
    REFUSED(ralo_generator_open(&g, path, &o), RALO_ERROR_INPUT, "'fp8'");
    assert_null(g);
    ralo_generator_options_init(&o);
    o.weights = "int4";
    REFUSED(ralo_generator_open(&g, path, &o), RALO_ERROR_INPUT, "'int4', expected int8, fp8 or nf4");
    o = (ralo_generator_options){0};
    REFUSED(ralo_generator_open(&g, path, &o), RALO_ERROR_INPUT, "ralo_generator_options_init");
    o = (ralo_generator_options){.precision = "fp32"};
    REFUSED(ralo_generator_open(&g, path, &o), RALO_ERROR_INPUT, "ralo_generator_options_init");
    ralo_generator_options_init(&o);
    o.context = 32;
    o.device_memory = 4096;
    REFUSED(ralo_generator_open(&g, path, &o), RALO_ERROR_FIT, "device");
    REFUSED(ralo_generator_open(&g, "/nowhere", NULL), RALO_ERROR_INPUT, "/nowhere");
    REFUSED(ralo_generator_open(&g, NULL, NULL), RALO_ERROR_INPUT, "'source'");
    o.device_memory = 0;
    must(ralo_generator_open(&g, path, &o));
    REFUSED(ralo_generator_generate(g, texts, 2, NULL, &c, &n), RALO_ERROR_INPUT, "prompt 1");
    assert_true(c == NULL && n == 0);
    REFUSED(ralo_generator_generate(g, texts, 0, NULL, &c, &n), RALO_ERROR_INPUT, "no prompt");
    REFUSED(ralo_generator_generate(g, NULL, 1, NULL, &c, &n), RALO_ERROR_INPUT, "'prompts'");
    REFUSED(ralo_generator_generate(NULL, texts, 1, NULL, &c, &n), RALO_ERROR_INPUT, "'g'");
    ralo_sampling_init(&s);
    s.top_p = 0;
    REFUSED(ralo_generator_generate(g, texts, 1, &s, &c, &n), RALO_ERROR_INPUT, "top_p");
    ralo_sampling_init(&s);
    s.n_stops = 1;
    REFUSED(ralo_generator_generate(g, texts, 1, &s, &c, &n), RALO_ERROR_INPUT, "stops");
    ralo_sampling_init(&s);
    s.chat = 3;
    REFUSED(ralo_generator_generate(g, texts, 1, &s, &c, &n), RALO_ERROR_INPUT, "found 3 for sampling->chat");
    s.chat = RALO_CHAT_USER;
    REFUSED(ralo_generator_generate(g, texts, 1, &s, &c, &n), RALO_ERROR_INPUT, "no chat format");
    ralo_generator_close(g);
    ralo_generator_close(NULL);
    assert_null(ralo_generator_plan(NULL));
    ralo_completions_free(NULL, 3);
    training_dir_remove(dir);
}

static void versions_agree(void **state) {
    (void)state;
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", RALO_VERSION_MAJOR, RALO_VERSION_MINOR, RALO_VERSION_PATCH);
    assert_string_equal(text, RALO_VERSION);
    assert_string_equal(ralo_version(), RALO_VERSION);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(versions_agree),
        cmocka_unit_test(settings_read_back_as_they_were_set),
        cmocka_unit_test(wrong_settings_are_refused),
        cmocka_unit_test(a_file_of_settings_is_read),
        cmocka_unit_test(null_is_refused_everywhere),
        cmocka_unit_test(a_plan_adds_up),
        cmocka_unit_test(many_ranks_are_planned_and_not_trained),
        cmocka_unit_test(what_does_not_fit_is_told),
        cmocka_unit_test(steps_of_the_caller_are_the_steps_of_train_run),
        cmocka_unit_test(steps_of_the_caller_do_not_overlap),
        cmocka_unit_test(a_saved_run_goes_on_where_it_stopped),
        cmocka_unit_test(a_step_that_fails_ends_the_trainer),
        cmocka_unit_test(text_comes_back_from_tokens),
        cmocka_unit_test(completions_are_those_of_the_generator),
        cmocka_unit_test(wrong_requests_for_generation_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
