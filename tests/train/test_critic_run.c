/* test_critic_run.c - runs of the task critic: techniques of memory change no bit, a stopped run ends with the bits of one that never
 * stopped, a saved critic gives the values of the run, it begins from an ordinary model, it
 * learns to find mistakes, and what cannot be is refused by name. */
#include "files.h"
#include "model/model.h"
#include "must.h"
#include "training.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

enum { SEQ_LEN = 72 };

static training critic_training(arena *memory, const char *preset, precision q, const char *const *more) {
    const char **all = arena_array(memory, const char *, SETTINGS_MOST);
    settings_join(all, SETTINGS("train.task=critic", "data.difficulty=1", "train.lr=0.01"), more);
    return (training){.preset = preset, .source = "builtin:solutions", .precision = q, .seq_len = SEQ_LEN, .more = all};
}

/* ---- the same bits --------------------------------------------------------------------------------------------- */

static void techniques_of_memory_keep_the_bits(void **state) {
    const char *const *const ways[] = {SETTINGS("critic.head=mlp", "critic.dropout=0.2", "critic.head_lr=0.03"),
                                       SETTINGS("critic.head=linear"),
                                       SETTINGS("critic.head=sigmoid", "critic.loss=lambda", "critic.error=smooth_l1")};
    const char *const *const techniques[] = {
        SETTINGS("memory.recompute=full"), SETTINGS("memory.recompute=selective", "memory.offload.activations=host"),
        SETTINGS("memory.recompute=every:2", "memory.offload.params=host", "memory.offload.grads=host",
                 "memory.offload.states=host"),
        SETTINGS("memory.offload.params=nvme", "memory.offload.grads=nvme", "memory.offload.states=nvme",
                 "memory.nvme_path=.", "memory.prefetch=2"),
        SETTINGS("memory.offload.params=host", "memory.offload.states=host", "memory.overlap_update=true",
                 "memory.bucket=256K")};
    static const precision precisions[] = {PRECISION_FP32, PRECISION_BF16};
    static const char *const presets[] = {"test-llama", "test-gpt2"}; /* tied and untied, both norms */
    for (size_t i = 0; i < ARRAY_LENGTH(ways); i++)
        for (size_t q = 0; q < ARRAY_LENGTH(precisions); q++) {
            arena memory;
            train_result plain, r;
            arena_init(&memory);
            training t = critic_training(&memory, presets[q], precisions[q], ways[i]);
            t.accumulation = 2;
            must(training_run(&t, &plain));
            training_as_planned(&plain, "critic");
            assert_true(plain.last_loss != plain.first_loss);
            for (size_t k = 0; k < ARRAY_LENGTH(techniques); k++) {
                const char *more[SETTINGS_MOST];
                settings_join(more, ways[i], techniques[k]);
                t = critic_training(&memory, presets[q], precisions[q], more);
                t.accumulation = 2;
                must(training_run(&t, &r));
                if (r.param_hash != plain.param_hash || r.last_loss != plain.last_loss)
                    fail_msg("way %zu, %s, technique %zu: other bits", i, precision_name(precisions[q]), k);
                training_as_planned(&r, "critic");
            }
            arena_fini(&memory);
        }
}

/* Values begin equal, so a pair has the loss log 2; a sigmoid begins at 1/2, so a return of lambda 1 and gamma 1 has 1/4. */
static void the_first_losses_are_known(void **state) {
    arena memory;
    train_result r;
    arena_init(&memory);
    training t = critic_training(&memory, "test-llama", PRECISION_FP32, NULL);
    must(training_run(&t, &r));
    assert_true(fabs(r.first_loss - log(2)) < 1e-6);
    t = critic_training(&memory, "test-qwen3", PRECISION_FP32,
                        SETTINGS("critic.head=sigmoid", "critic.loss=lambda", "critic.lam=1"));
    must(training_run(&t, &r));
    assert_true(fabs(r.first_loss - 0.25) < 1e-6);
    arena_fini(&memory);
}

static double metric(const train_metrics *m, const char *name) {
    for (int i = 0; i < m->n; i++)
        if (strcmp(m->list[i].row->name, name) == 0) return m->list[i].value;
    fail_msg("no metric %s", name);
    return 0;
}

typedef struct seen_steps {
    double loss[8], margin[8];
    int n;
} seen_steps;
static void keep_step(void *context, const train_step_report *r) {
    seen_steps *s = context;
    s->loss[s->n] = r->loss;
    s->margin[s->n++] = metric(&r->metrics, "value/margin");
    assert_true(metric(&r->metrics, "value/margin") ==
                metric(&r->metrics, "value/mean_pos") - metric(&r->metrics, "value/mean_neg"));
    double accuracy = metric(&r->metrics, "train/pairwise_accuracy");
    assert_true(accuracy >= 0 && accuracy <= 1);
}

/* An update that overlaps the next step has begun the sums of that by the time of the report. */
static void numbers_of_a_step_are_its_own(void **state) {
    seen_steps seen[2] = {0};
    for (int k = 0; k < 2; k++) {
        arena memory;
        train_result r;
        arena_init(&memory);
        train_observer o = {.context = &seen[k], .on_step = keep_step};
        training t = critic_training(
            &memory, "test-llama", PRECISION_FP32,
            k ? SETTINGS("memory.offload.params=host", "memory.offload.states=host", "memory.overlap_update=true")
              : NULL);
        t.observer = &o;
        must(training_run(&t, &r));
        arena_fini(&memory);
    }
    assert_int_equal(seen[0].n, 4);
    assert_memory_equal(&seen[0], &seen[1], sizeof seen[0]);
    assert_true(seen[0].margin[0] == 0 && seen[0].margin[3] != 0);
}

/* ---- a saved critic -------------------------------------------------------------------------------------------- */

static void stop_after_two(void *context, const train_step_report *r) {
    if (r->step == 2) train_interrupt();
}

static void resumed_runs_end_with_the_same_bits(void **state) {
    arena memory;
    train_result whole, parts;
    arena_init(&memory);
    const char *const *more = SETTINGS("train.eval_rows=4", "critic.dropout=0.1");
    training t = critic_training(&memory, "test-qwen3", PRECISION_BF16, more);
    train_observer o = {.on_step = stop_after_two};
    must(training_run(&t, &whole));
    t.dir = arena_format(&memory, "%s/resumed", test_dir), t.resume = "auto", t.observer = &o;
    assert_int_equal(training_run(&t, &parts), ERR_INTERRUPTED);
    t.observer = NULL;
    must(training_run(&t, &parts));
    assert_int_equal(whole.param_hash, parts.param_hash);
    assert_true(whole.last_loss == parts.last_loss && whole.eval.loss == parts.eval.loss);
    assert_true(metric(&whole.eval.metrics, "val/pairwise_accuracy") ==
                metric(&parts.eval.metrics, "val/pairwise_accuracy"));
    t = critic_training(&memory, "test-qwen3", PRECISION_BF16, SETTINGS("train.eval_rows=4", "critic.head=linear"));
    t.dir = arena_format(&memory, "%s/resumed", test_dir), t.resume = "auto";
    assert_int_equal(training_run(&t, &parts), ERR_INPUT); /* another head: another model */
    arena_fini(&memory);
}

/* A held-out row, and the values that a frozen critic gives it. */
typedef struct scored_row {
    int32_t tokens[SEQ_LEN], targets[SEQ_LEN], doc_start[SEQ_LEN], segments[SEQ_LEN];
    float values[SEQ_LEN];
} scored_row;

/* By a program that only evaluates, with the parameters of a run or of an exported model. */
static void score_rows(const char *dir, int64_t T, int64_t n_rows, void (*see)(void *, const scored_row *),
                       void *context) {
    model_source s;
    plan p;
    exec *e;
    dataset *d;
    const backend *b;
    scored_row row;
    size_t n_bytes = (size_t)T * sizeof(int32_t);
    must(model_source_open(&s, dir, NULL, "byte"));
    assert_true(s.config.value_head == VALUE_HEAD_MLP);
    plan_request r = {.source = net_source_of(&s.config),
                      .seq_len = T,
                      .lora = s.lora,
                      .choice = {.precision = PRECISION_FP32, .micro_batch = 2, .accumulation = 1},
                      .with_eval = true,
                      .no_training = true,
                      .target = backend_target(DEVICE_CPU, 2)};
    must(plan_build(&p, &r));
    must(backend_choose(DEVICE_CPU, 0, &b));
    must(exec_open(&e, &p.program, &(exec_options){.backend = b, .n_threads = 2}));
    must(model_source_load(&s, e, &p));
    data_options data = {.kind = DATA_SOLUTIONS, .source = "builtin:solutions", .seq_len = T, .difficulty = 1};
    data.pack = true, data.pairs_per_problem = 4, data.seed = 1;
    must(dataset_open(&d, &data));
    for (int64_t i = 0; i < n_rows; i++) { /* each twice, as a batch of two */
        dataset_row_get(d, SPLIT_EVAL, (uint64_t)i,
                        &(data_row){row.tokens, row.targets, row.doc_start, row.segments, NULL, NULL});
        for (size_t k = 0; k < 2; k++) {
            exec_write(e, p.net.tokens, k * n_bytes, row.tokens, n_bytes);
            exec_write(e, p.net.targets, k * n_bytes, row.targets, n_bytes);
            exec_write(e, p.net.doc_start, k * n_bytes, row.doc_start, n_bytes);
        }
        must(exec_run(e, SECTION_EVAL));
        exec_read(e, p.net.eval_values, n_bytes, row.values, n_bytes);
        must(exec_check(e));
        see(context, &row);
    }
    dataset_close(d);
    exec_close(e);
    plan_close(&p);
    model_source_close(&s);
}

static void add_loss(void *context, const scored_row *r) {
    critic_part parts[SEQ_LEN * PREFERENCE_PARTS];
    critic_row(&(critic_options){.kind = CRITIC_PAIRWISE}, parts, &(preference_rows){1, SEQ_LEN, 1}, 0, r->segments,
               r->values, 1, NULL, context);
}

static double frozen_loss(const char *dir, int64_t n_rows) {
    double sums[CRITIC_SUM_COUNT] = {0};
    score_rows(dir, SEQ_LEN, n_rows, add_loss, sums);
    return sums[SUM_LOSS] / sums[SUM_VALID];
}

static void a_saved_critic_gives_the_values_of_the_run(void **state) {
    arena memory;
    train_result r, again;
    arena_init(&memory);
    const char *dir = arena_format(&memory, "%s/saved", test_dir),
               *out = arena_format(&memory, "%s/exported", test_dir);
    training t = critic_training(&memory, "test-llama", PRECISION_FP32,
                                 SETTINGS("train.eval_rows=6", "data.pairs_per_problem=4", "train.seed=1",
                                          arena_format(&memory, "run.export=%s", out)));
    t.dir = dir, t.steps = 8;
    must(training_run(&t, &r));
    assert_true(r.eval.loss != log(2));
    if (frozen_loss(dir, r.eval.n_rows) != r.eval.loss)
        fail_msg("%.17g, expected %.17g", frozen_loss(dir, r.eval.n_rows), r.eval.loss);
    assert_true(frozen_loss(out, r.eval.n_rows) == r.eval.loss);
    /* It can be trained further, and no other task goes on with it. */
    t = critic_training(&memory, NULL, PRECISION_FP32, SETTINGS(arena_format(&memory, "model.path=%s", out)));
    t.preset = "auto";
    t.seq_len = SEQ_LEN;
    must(training_run(&t, &again));
    assert_true(again.first_loss != log(2));
    const struct {
        const char *const *more;
        const char *error;
    } refused[] = {
        {SETTINGS("critic.head=linear", arena_format(&memory, "model.path=%s", out)), "critic.head|linear|mlp"},
        {SETTINGS("train.task=sft", arena_format(&memory, "model.path=%s", out)), "model.path|is a critic|sft"},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(refused); i++) {
        t = critic_training(&memory, NULL, PRECISION_FP32, refused[i].more);
        t.preset = "auto";
        expect_error(training_run(&t, &again), ERR_INPUT, refused[i].error);
    }
    arena_fini(&memory);
}

/* ---- adapters -------------------------------------------------------------------------------------------------- */

/* The decoder is frozen under its adapters, the head is trained whole. The run, PEFT's files and the merged model are one critic; it resumes to the
 * same bits, with any technique, and can be trained further. */
static void a_critic_with_adapters_keeps_its_head_beside_them(void **state) {
    arena memory;
    train_result whole, r;
    arena_init(&memory);
    const char *names[] = {"lm", "run", "parts", "peft", "merged"}, *path[ARRAY_LENGTH(names)];
    enum { LM, RUN, PARTS, PEFT, MERGED };
    for (size_t i = 0; i < ARRAY_LENGTH(names); i++) path[i] = arena_format(&memory, "%s/lora-%s", test_dir, names[i]);
    training t = {.preset = "test-llama",
                  .source = "builtin:solutions",
                  .seq_len = SEQ_LEN,
                  .more = SETTINGS("data.difficulty=1", arena_format(&memory, "run.export=%s", path[LM]))};
    must(training_run(&t, &r));
    const char *base = arena_format(&memory, "model.path=%s", path[LM]), *export = "run.export=none";
    for (int k = 0; k < 3; k++) { /* in one go; stopped and resumed; another way through memory */
        train_observer o = {.on_step = stop_after_two};
        if (k == 0) export = arena_format(&memory, "run.export=%s", path[PEFT]);
        t = critic_training(&memory, NULL, PRECISION_FP32,
                            SETTINGS(base, "model.lora.rank=4", "model.lora.dropout=0.1", "critic.dropout=0.1",
                                     "train.eval_rows=6", "data.pairs_per_problem=4", "train.seed=1", export,
                                     k == 2 ? "memory.recompute=full" : "memory.recompute=none",
                                     k == 2 ? "memory.offload.params=host" : "memory.prefetch=1",
                                     k == 2 ? "memory.offload.states=host" : "memory.prefetch=1"));
        t.preset = "auto", t.accumulation = 2, t.dir = k == 0 ? path[RUN] : k == 1 ? path[PARTS] : NULL;
        export = "run.export=none";
        if (k == 1) {
            t.resume = "auto", t.observer = &o;
            assert_int_equal(training_run(&t, &r), ERR_INTERRUPTED);
            t.observer = NULL;
        }
        must(training_run(&t, k == 0 ? &whole : &r));
        if (k == 0) training_as_planned(&whole, "critic with adapters");
        else if (r.param_hash != whole.param_hash || r.eval.loss != whole.eval.loss) fail_msg("way %d: other bits", k);
    }
    assert_true(fabs(whole.first_loss - log(2)) < 1e-6 && whole.eval.loss != log(2));
    assert_true(frozen_loss(path[RUN], whole.eval.n_rows) == whole.eval.loss);
    assert_true(frozen_loss(path[PEFT], whole.eval.n_rows) == whole.eval.loss);
    export_report report;
    must(export_checkpoint(path[RUN], &(export_options){.dir = path[MERGED], .type = DTYPE_F32, .merge = true},
                           &report));
    assert_true(fabs(frozen_loss(path[MERGED], whole.eval.n_rows) - whole.eval.loss) <
                1e-5); /* sums in another order */
    /* further: from the files of the adapter, and new adapters over a critic, whose head they begin with */
    t = critic_training(&memory, NULL, PRECISION_FP32,
                        SETTINGS(base, arena_format(&memory, "model.adapter=%s", path[PEFT])));
    t.preset = "auto";
    must(training_run(&t, &r));
    assert_true(fabs(r.first_loss - log(2)) > 1e-4);
    const char *merged = arena_format(&memory, "model.path=%s", path[MERGED]);
    for (int k = 0; k < 2; k++) {
        t = critic_training(&memory, NULL, PRECISION_FP32,
                            SETTINGS(merged, "critic.dropout=0", k ? "model.lora.rank=2" : "model.lora.rank=none"));
        t.preset = "auto";
        must(training_run(&t, k ? &r : &whole));
    }
    assert_true(fabs(r.first_loss - whole.first_loss) < 1e-6 && fabs(r.first_loss - log(2)) > 1e-4);
    const struct {
        const char *task, *head, *error;
    } refused[] = {{"train.task=sft", "critic.head=mlp", "adapter_config.json|value_head|mlp|no critic"},
                   {"train.task=critic", "critic.head=linear", "adapter_config.json|value_head|mlp|linear"}};
    for (size_t i = 0; i < ARRAY_LENGTH(refused); i++) {
        t = critic_training(
            &memory, NULL, PRECISION_FP32,
            SETTINGS(base, arena_format(&memory, "model.adapter=%s", path[PEFT]), refused[i].task, refused[i].head));
        t.preset = "auto";
        expect_error(training_run(&t, &r), ERR_INPUT, refused[i].error);
    }
    arena_fini(&memory);
}

/* Adapters that began by PiSSA are exported with twice the rank, the head as it is. */
static void the_head_beside_adapters_of_pissa_is_exported(void **state) {
    arena memory;
    train_result r;
    arena_init(&memory);
    const char *dir = arena_format(&memory, "%s/pissa-run", test_dir),
               *out = arena_format(&memory, "%s/pissa", test_dir);
    training t = critic_training(&memory, "test-llama", PRECISION_FP32,
                                 SETTINGS("model.lora.rank=4", "model.lora.init=pissa", "train.eval_rows=6",
                                          "data.pairs_per_problem=4", "train.seed=1"));
    t.dir = dir, t.steps = 8;
    must(training_run(&t, &r));
    assert_true(fabs(r.eval.loss - log(2)) > 1e-4);
    assert_true(frozen_loss(dir, r.eval.n_rows) == r.eval.loss);
    export_report report;
    must(export_checkpoint(dir, &(export_options){.dir = out, .type = DTYPE_F32, .merge = true}, &report));
    assert_true(fabs(frozen_loss(out, r.eval.n_rows) - r.eval.loss) < 1e-5); /* as above */
    arena_fini(&memory);
}

/* ---- learning -------------------------------------------------------------------------------------------------- */

enum { PAIR = 46 }; /* tokens of a pair of difficulty 1 */
typedef struct value_drop {
    double before, after, correct; /* mistakes of wrong solutions; at the same places of the correct ones beside them */
    int n;
} value_drop;

static void add_drop(void *context, const scored_row *r) {
    value_drop *d = context;
    int64_t half = PAIR / 2, at = data_solution_wrong_at(r->tokens + half, half, 1);
    assert_true(at > 0 && data_solution_wrong_at(r->tokens, half, 1) == -1);
    d->before += (double)r->values[half + at - 1];
    d->after += (double)r->values[half + at];
    d->correct += (double)r->values[at];
    d->n++;
}

/* Problems that were never trained on: pairs are ranked, and the value falls at the very token that is wrong, as that of a correct
 * solution does not. Measured: 0.96 of the pairs. */
static void mistakes_are_found_where_they_are(void **state) {
    arena memory;
    train_result r;
    value_drop d = {0};
    if (SANITIZED) skip(); /* hundreds of the same steps as above */
    arena_init(&memory);
    const char *dir = arena_format(&memory, "%s/learned", test_dir);
    training t =
        critic_training(&memory, "test-llama", PRECISION_FP32, SETTINGS("train.eval_rows=200", "train.seed=1"));
    t.seq_len = PAIR, t.micro_batch = 16, t.steps = 200, t.dir = dir;
    must(training_run(&t, &r));
    double accuracy = metric(&r.eval.metrics, "val/pairwise_accuracy");
    if (!(accuracy >= 0.9)) fail_msg("%.3f of the held-out pairs", accuracy);
    score_rows(dir, PAIR, 100, add_drop, &d);
    d.before /= d.n, d.after /= d.n, d.correct /= d.n;
    if (!(d.before - d.after > 1 && d.correct - d.after > 1))
        fail_msg("values before, at a mistake, and of correct solutions: %.3f, %.3f, %.3f", d.before, d.after,
                 d.correct);
    arena_fini(&memory);
}

/* ---- ordinary models, refusals ----------------------------------------------------------------------------------- */

/* All of the decoder comes from the files, tied or not; the head is drawn, and the loss begins at log 2. */
static void a_critic_begins_from_an_ordinary_model(void **state) {
    static const char *const presets[] = {"test-llama", "test-gpt2", "test-qwen3"};
    for (size_t i = 0; i < ARRAY_LENGTH(presets); i++) {
        arena memory;
        train_result r;
        arena_init(&memory);
        const char *out = arena_format(&memory, "%s/ordinary-%zu", test_dir, i);
        training t = {.preset = presets[i],
                      .source = "builtin:solutions",
                      .seq_len = SEQ_LEN,
                      .more = SETTINGS("data.difficulty=1", arena_format(&memory, "run.export=%s", out))};
        must(training_run(&t, &r));
        t = critic_training(&memory, NULL, PRECISION_FP32, SETTINGS(arena_format(&memory, "model.path=%s", out)));
        t.preset = "auto";
        must(training_run(&t, &r));
        assert_true(fabs(r.first_loss - log(2)) < 1e-6 && r.last_loss != r.first_loss);
        arena_fini(&memory);
    }
}

static void what_cannot_be_is_refused(void **state) {
    const struct {
        const char *const *more;
        const char *error;
    } cases[] = {
        {SETTINGS("model.mtp.heads=2", "model.layers=4"), "train.task|critic|model.mtp.heads"},
        {SETTINGS("train.sample_every=2"), "critic|train.sample_every=none"},
        {SETTINGS("data.source=builtin:arithmetic"), "data.source|builtin:solutions"},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        arena memory;
        train_result r;
        arena_init(&memory);
        training t = critic_training(&memory, "test-llama", PRECISION_FP32, cases[i].more);
        expect_error(training_run(&t, &r), ERR_INPUT, cases[i].error);
        arena_fini(&memory);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(techniques_of_memory_keep_the_bits),
        cmocka_unit_test(the_first_losses_are_known),
        cmocka_unit_test(numbers_of_a_step_are_its_own),
        cmocka_unit_test(resumed_runs_end_with_the_same_bits),
        cmocka_unit_test(a_saved_critic_gives_the_values_of_the_run),
        cmocka_unit_test(a_critic_with_adapters_keeps_its_head_beside_them),
        cmocka_unit_test(the_head_beside_adapters_of_pissa_is_exported),
        cmocka_unit_test(mistakes_are_found_where_they_are),
        cmocka_unit_test(a_critic_begins_from_an_ordinary_model),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, test_dir_open, test_dir_close);
}
