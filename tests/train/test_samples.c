/* test_samples.c - generation inside a training run: the completions are those of the saved run, training keeps its bits, and the
 * joint program needs what both share and the larger of the two.
 *
 * The attached generator reads the parameters of the run; `ralo generate` reads its checkpoint. Both compute in the same precision with the
 * same kernels, so tokens and log-probabilities are compared without a tolerance. */
#include "files.h"
#include "must.h"
#include "training.h"

#include <stdlib.h>

enum { STEPS = 4, N_PROMPTS = 5, NEW_TOKENS = 12 };

/* ---- a run with a generator in it ------------------------------------------------------------------------------------ */

typedef struct world {
    compiled k;
    dataset *data;
    trainer *t;
} world;

static void world_open(world *w, const training *how) {
    compiled_open(&w->k, how);
    training_must(dataset_open(&w->data, &w->k.r.data));
    training_must(trainer_open(&w->t, &w->k.r, &w->k.p, w->data, how->observer));
}

static void world_close(world *w) {
    trainer_close(w->t);
    dataset_close(w->data);
    compiled_close(&w->k);
}

static const int32_t prompt_tokens[] = {49, 50, 43, 51, 52, 61, 48, 49, 10, 65, 66, 67, 68, 69, 70, 71, 72, 73, 74, 75};
static void make_prompts(prompt out[N_PROMPTS]) {
    for (size_t i = 0; i < N_PROMPTS; i++) out[i] = (prompt){prompt_tokens + i, 1 + 3 * i};
}

static const sampling_options greedy = {.max_new = NEW_TOKENS, .top_p = 1, .repetition_penalty = 1, .n_completions = 1};
static const sampling_options sampled = {.max_new = NEW_TOKENS,
                                         .temperature = 1.2,
                                         .top_k = 50,
                                         .top_p = 0.95,
                                         .repetition_penalty = 1.1,
                                         .seed = 7,
                                         .n_completions = 2,
                                         .ignore_eos = true};

static completion *complete(generator *g, const sampling_options *how, size_t *n) {
    prompt prompts[N_PROMPTS];
    completion *c;
    make_prompts(prompts);
    *n = N_PROMPTS * (size_t)how->n_completions;
    training_must(generator_run(g, prompts, N_PROMPTS, how, NULL, &c, NULL));
    return c;
}

static void same_completions(const completion *a, const completion *b, size_t n, const char *what) {
    size_t n_tokens = 0;
    for (size_t i = 0; i < n; i++) {
        if (a[i].n_tokens != b[i].n_tokens || memcmp(a[i].tokens, b[i].tokens, a[i].n_tokens * sizeof(int32_t)) != 0)
            fail_msg("%s: completion %zu differs: '%s' and '%s'", what, i, a[i].text, b[i].text);
        if (a[i].log_probability != b[i].log_probability || a[i].stop != b[i].stop)
            fail_msg("%s: completion %zu: log-probabilities %.17g and %.17g, stops %d and %d", what, i,
                     a[i].log_probability, b[i].log_probability, a[i].stop, b[i].stop);
        n_tokens += a[i].n_tokens;
    }
    assert_true(n_tokens >= n);
}

#define SAMPLING "train.sample_every=2", "train.samples=3", "train.sample_tokens=16"

static void run_steps(world *w, bool with_samples) {
    train_step_report report;
    for (int64_t i = 0; i < STEPS; i++) {
        training_must(trainer_step(w->t, &report));
        if (with_samples) training_must(trainer_sample(w->t));
    }
}

/* Trains, saves and compares with the saved run. Returns the hash of the parameters. */
static uint64_t train_and_compare(const char *preset, precision p, const char *const *more, const char *what) {
    world w;
    uint64_t before, after;
    char *dir = training_dir();
    world_open(&w, &(training){.preset = preset, .precision = p, .steps = STEPS, .dir = dir, .more = more});
    run_steps(&w, true);
    training_must(trainer_param_hash(w.t, &before));
    training_must(trainer_save(w.t));
    training_must(trainer_wait(w.t));
    const sampling_options *hows[] = {&greedy, &sampled};
    completion *inside[2];
    size_t n[2];
    for (int i = 0; i < 2; i++) inside[i] = complete(trainer_generator(w.t), hows[i], &n[i]);
    training_must(trainer_param_hash(w.t, &after));
    assert_true(before == after);
    world_close(&w);
    generator *g;
    training_must(generator_open(&g, &(generator_options){.source = dir,
                                                          .precision = p,
                                                          .max_sequences = 4,
                                                          .context = 40,
                                                          .page_size = 8,
                                                          .n_threads = 2,
                                                          .backend = backend_cpu()}));
    for (int i = 0; i < 2; i++) {
        completion *outside = complete(g, hows[i], &n[i]);
        same_completions(inside[i], outside, n[i], what);
        completions_free(outside, n[i]);
        completions_free(inside[i], n[i]);
    }
    generator_close(g);
    training_dir_remove(dir);
    return after;
}

static uint64_t hash_without_samples(const char *preset, precision p, const char *const *more) {
    world w;
    uint64_t hash;
    world_open(&w, &(training){.preset = preset, .precision = p, .steps = STEPS, .more = more});
    assert_null(trainer_generator(w.t));
    run_steps(&w, false);
    training_must(trainer_param_hash(w.t, &hash));
    world_close(&w);
    return hash;
}

static void completions_are_those_of_the_saved_run(void **state) {
    static const char *const lora[] = {"model.lora.rank=4", "model.lora.dropout=0.1", "train.lr=0.05", NULL};
    static const char *const high[] = {"train.lr=0.01", NULL};
    for (int i = 0; i < 4; i++)
        for (int adapters = 0; adapters < 2; adapters++)
            for (int half = 0; half < 2; half++) {
                const char *preset = training_presets[i], *with[SETTINGS_MOST];
                const char *const *more = adapters ? lora : high;
                precision p = half ? PRECISION_BF16 : PRECISION_FP32;
                if (half && i != 1) continue; /* one family in 16 bits: what differs is the dtype alone */
                char what[128];
                snprintf(what, sizeof what, "%s %s%s", preset, precision_name(p), adapters ? " lora" : "");
                settings_join(with, more, SETTINGS(SAMPLING));
                uint64_t hash = train_and_compare(preset, p, with, what);
                if (hash != hash_without_samples(preset, p, more))
                    fail_msg("%s: sampling changed the parameters", what);
            }
}

/* A frozen base in fewer bits: both dequantize the same codes. */
static void a_quantised_base_completes_as_its_saved_run(void **state) {
    static const char *const bases[] = {"model.base=nf4", "model.base=int8", "model.base=fp8"};
    for (size_t i = 0; i < ARRAY_LENGTH(bases); i++)
        train_and_compare("test-llama", PRECISION_BF16,
                          SETTINGS(SAMPLING, "model.lora.rank=4", "train.lr=0.05", bases[i]), bases[i]);
}

/* ---- techniques: the same texts, the same parameters ---------------------------------------------------------------- */

typedef struct texts {
    strbuf all;
    int n;
} texts;
static void keep_sample(void *context, const train_sample *s) {
    texts *t = context;
    strbuf_printf(&t->all, "%lld %zu %s ", (long long)s->step, s->index, stop_reason_name(s->stop));
    strbuf_add_bytes(&t->all, s->prompt.text, s->prompt.length);
    strbuf_add(&t->all, ">");
    strbuf_add_bytes(&t->all, s->completion.text, s->completion.length);
    strbuf_add(&t->all, "\n");
    t->n++;
}

static char *run_with(const char *const *more, uint64_t *hash, const char *what) {
    texts t = {0};
    train_result r;
    const char *with[SETTINGS_MOST];
    strbuf_init(&t.all);
    train_observer o = {.context = &t, .on_sample = keep_sample};
    settings_join(with, SETTINGS(SAMPLING, "train.lr=0.01", "memory.strategy=manual", "train.eval_rows=4"), more);
    training_must(training_run(&(training){.precision = PRECISION_BF16, .steps = 5, .more = with, .observer = &o}, &r));
    training_as_planned(&r, what);
    assert_int_equal(t.n, 3 * 3); /* after steps 2, 4 and 5 */
    assert_true(r.host_peak <= r.host_planned);
    *hash = r.param_hash;
    return strbuf_take(&t.all);
}

static void techniques_change_no_sample(void **state) {
    const char *const *const lists[] = {
        SETTINGS("memory.recompute=full"),
        SETTINGS("memory.offload.params=host", "memory.offload.states=host", "memory.offload.grads=host"),
        SETTINGS("memory.offload.activations=host"),
        SETTINGS("memory.overlap_update=true", "memory.offload.states=host"),
        SETTINGS("memory.place=embed=cpu:0, layers.0=cpu:1"),
        SETTINGS("memory.chunk_tokens=8"),
    };
    uint64_t first, hash;
    char *plain = run_with(NULL, &first, "plain");
    for (size_t i = 0; i < ARRAY_LENGTH(lists); i++) {
        char *got = run_with(lists[i], &hash, lists[i][0]);
        if (strcmp(plain, got) != 0) fail_msg("%s: other samples:\n%s\n%s", lists[i][0], plain, got);
        if (hash != first) fail_msg("%s: other parameters", lists[i][0]);
        free(got);
    }
    free(plain);
}

/* ---- bytes ------------------------------------------------------------------------------------------------------------- */

static uint64_t aligned(const plan *p, value_id v) {
    return align_up(value_bytes(program_get(&p->program, v)), p->request.target.alignment);
}

static uint64_t lasting(const plan *p, bool of_generation) {
    uint64_t n = 0;
    for (value_id v = 1; v < p->program.n_values; v++) {
        const value *a = program_get(&p->program, v);
        if (!a->view_of && (of_generation ? a->of_generation : a->persistent)) n += aligned(p, v);
    }
    return n;
}

/* The joint program needs what is shared, and the larger of training's activations and generation's cache with its activations. */
static void check_peak(const char *preset, const char *const *more, section expected) {
    compiled training_alone, joint;
    const char *with[SETTINGS_MOST];
    settings_join(with, SETTINGS("memory.strategy=manual", "train.sample_every=2"), more);
    compiled_open(&joint, &(training){.preset = preset, .more = with});
    settings_join(with, SETTINGS("memory.strategy=manual"), more);
    compiled_open(&training_alone, &(training){.preset = preset, .more = with});
    plan_request r = joint.r.plan;
    plan alone;
    r.generation.beside_training = false;
    training_must(plan_build(&alone, &r));

    const plan *t = &training_alone.p, *j = &joint.p;
    assert_int_equal(lasting(t, true), 0);
    assert_int_equal(lasting(&alone, true), 0);
    value_id long_table = program_find(&j->program, "rope.table"), table = program_find(&t->program, "rope.table");
    uint64_t shared = lasting(j, false), longer = table ? aligned(j, long_table) - aligned(t, table) : 0;
    assert_int_equal(shared,
                     lasting(t, false) + longer); /* parameters, gradients, states, inputs; positions of the context */
    uint64_t cache = lasting(j, true), of_training = t->program.arena_bytes[TIER_DEVICE] - lasting(t, false);
    uint64_t of_generation = alone.program.arena_bytes[TIER_DEVICE] - lasting(&alone, false);
    assert_true(cache > 0);
    assert_int_equal(j->program.arena_bytes[TIER_DEVICE], shared + MAX(of_training, cache + of_generation));
    assert_int_equal(j->program.ops[j->peak_op].section, expected);
    assert_int_equal(expected == SECTION_MICRO, of_training > cache + of_generation);
    plan_close(&alone);
    compiled_close(&training_alone);
    compiled_close(&joint);
}

static void peak_is_what_is_shared_and_the_larger_part(void **state) {
    for (int i = 0; i < 4; i++) {
        check_peak(training_presets[i], SETTINGS("train.micro_batch=16", "train.sample_tokens=8", "train.samples=1"),
                   SECTION_MICRO);
        check_peak(training_presets[i], SETTINGS("train.micro_batch=1", "train.sample_tokens=40", "train.samples=16"),
                   SECTION_PREFILL);
    }
    check_peak("test-llama", SETTINGS("model.lora.rank=4", "train.micro_batch=16", "train.samples=1"), SECTION_MICRO);
}

/* ---- requests that are refused ----------------------------------------------------------------------------------------- */

static void refused(const char *const *more, const char *expected) {
    train_result r;
    const char *with[SETTINGS_MOST];
    settings_join(with, SETTINGS(SAMPLING), more);
    status rc = training_run(&(training){.steps = 2, .more = with}, &r);
    if (rc == OK || !strstr(error_message(), expected))
        fail_msg("expected '%s', found %s", expected, rc == OK ? "no error" : error_message());
    error_clear();
}

static void prompts_come_from_files_and_are_never_cut(void **state) {
    char *dir = training_dir(), file[600];
    uint64_t hash;
    snprintf(file, sizeof file, "train.sample_prompts=%s/p.txt", dir);
    const char *path = file + strlen("train.sample_prompts=");
    refused(SETTINGS(file), "p.txt");
    write_text(path, "one\n\ntwo words\r\nthree\nfour\n");
    char *got = run_with(SETTINGS(file), &hash, "file of prompts");
    assert_non_null(strstr(got, "2 0 "));
    assert_non_null(strstr(got, " one>"));
    assert_non_null(strstr(got, " two words>"));
    assert_non_null(strstr(got, " three>"));
    assert_null(strstr(got, "four"));
    free(got);
    write_text(path,
               "short\n0123456789012345678901234567890123456789\n"); /* 40 tokens: all of seq_len 24 and 16 new ones */
    refused(SETTINGS(file), "p.txt:2: the prompt has 40 tokens, expected 1 to 39");
    write_text(path, "\n");
    refused(SETTINGS(file), "found no prompt");
    training_dir_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(completions_are_those_of_the_saved_run),
        cmocka_unit_test(a_quantised_base_completes_as_its_saved_run),
        cmocka_unit_test(techniques_change_no_sample),
        cmocka_unit_test(peak_is_what_is_shared_and_the_larger_part),
        cmocka_unit_test(prompts_come_from_files_and_are_never_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
