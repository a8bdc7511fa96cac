/* test_lora_run.c - runs that train adapters: 20 steps as PEFT and torch's AdamW do them, resume, generation and export.
 *
 * The fixtures are made by tools/make_lora_fixtures.py. With arguments this program is no test but prints for scripts:
 *
 *     test_lora_run rows BASE OUT.safetensors                        tokens, targets, doc_start (20, 2, T) of the steps
 *     test_lora_run logits MODEL [ADAPTER] IN.safetensors OUT.safetensors    tokens (T) in, logits (T, V) out */
#include "backend_choice.h"
#include "files.h"
#include "must.h"
#include "training.h"
#include "weightfile/weightfile.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

enum { STEPS = 20, ROWS = 2, SEQ_LEN = 32 };
static const char *const fixtures[] = {"train_qwen3", "train_llama"};

static const char *fixture(const char *name) {
    static char path[4][512];
    static int n;
    char *out = path[n++ % 4];
    snprintf(out, sizeof path[0], "%s/lora/%s", TEST_FIXTURES, name);
    return out;
}

/* The larger; NaN stays. Not fmax: gcc 12 does not compile that in a loop over two arrays. */
static double larger(double a, double b) { return !(b <= a) ? b : a; }

/* ---- runs -------------------------------------------------------------------------------------------------------- */

/* Settings of a run over a base directory; more: NULL at the end. */
static const char *const *over_base(arena *memory, const char *base, const char *const *more) {
    const char **out = arena_array(memory, const char *, SETTINGS_MOST);
    const char *own[] = {"model.preset=auto",
                         arena_format(memory, "model.path=%s", base),
                         arena_format(memory, "data.source=%s", fixture("text.txt")),
                         "data.tokenizer=byte",
                         "data.eval_fraction=0",
                         "train.schedule=constant",
                         "train.lr=0.01",
                         "train.weight_decay=0.01",
                         NULL};
    settings_join(out, own, more);
    return out;
}

static training lora_training(const char *const *more) {
    return (training){.precision = PRECISION_FP32, .seq_len = SEQ_LEN, .micro_batch = ROWS, .steps = 4, .more = more};
}

/* ---- against PEFT ------------------------------------------------------------------------------------------------ */

static double worst_difference(const safetensors *reference, const char *dir) {
    char path[700];
    safetensors own;
    double worst = 0;
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", dir);
    must(safetensors_open(&own, path));
    assert_int_equal(own.n_tensors + 2, reference->n_tensors); /* losses and tokens */
    for (size_t i = 0; i < own.n_tensors; i++) {
        const safetensor *a = &own.tensors[i], *b = safetensors_find(reference, a->name);
        assert_true(b && shape_equal(&a->shape, &b->shape) && a->type == DTYPE_F32);
        for (int64_t k = 0; k < shape_count(&a->shape); k++) {
            float x, y;
            memcpy(&x, (const float *)a->data + k, sizeof x);
            memcpy(&y, (const float *)b->data + k, sizeof y);
            worst = larger(worst, fabs((double)x - y));
        }
    }
    safetensors_close(&own);
    return worst;
}

/* fp32 on both sides, sums in another order. AdamW divides by the root of the second moment, so the rounding of a gradient
 * near 0 is seen as a part of the learning rate: 1 % of the 0.01 that a step may move a parameter. */
static void twenty_steps_equal_peft(void **state) {
    for (size_t i = 0; i < ARRAY_LENGTH(fixtures); i++) {
        arena memory;
        safetensors reference;
        step_losses l = {0};
        train_result r;
        train_observer o = {.context = &l, .on_step = keep_step_loss};
        arena_init(&memory);
        const char *base = fixture(fixtures[i]), *out = arena_format(&memory, "%s/peft-%s", test_dir, fixtures[i]);
        must(safetensors_open(&reference, arena_format(&memory, "%s/reference.safetensors", base)));
        training t = lora_training(over_base(&memory, base,
                                             SETTINGS(arena_format(&memory, "model.adapter=%s/adapter", base),
                                                      arena_format(&memory, "run.export=%s", out))));
        t.steps = STEPS;
        t.observer = &o;
        must(training_run(&t, &r));
        training_as_planned(&r, fixtures[i]);
        float want[STEPS];
        memcpy(want, safetensors_find(&reference, "losses")->data, sizeof want);
        double worst = 0;
        for (int k = 0; k < STEPS; k++) worst = larger(worst, fabs(l.of[k] - want[k]));
        double moved = worst_difference(&reference, out);
        print_message("%s: losses within %.1e, adapters within %.1e; loss %.4f to %.4f\n", fixtures[i], worst, moved,
                      l.of[0], l.of[STEPS - 1]);
        assert_int_equal(l.n, STEPS);
        assert_true(worst < 1e-4);
        assert_true(moved < 1e-4);
        safetensors_close(&reference);
        arena_fini(&memory);
    }
}

/* ---- resume ------------------------------------------------------------------------------------------------------ */

static void stop_after_two(void *context, const train_step_report *r) {
    if (r->step == 2) train_interrupt();
}

static void resumed_runs_end_with_the_same_bits(void **state) {
    for (precision q = PRECISION_FP32; q <= PRECISION_BF16; q++) {
        const char *const *more =
            SETTINGS("model.lora.rank=4", "model.lora.dropout=0.1", "model.lora.targets=q,v,down");
        training t = {.preset = "test-qwen3", .precision = q, .steps = 4, .more = more};
        train_result whole, parts;
        char dir[200];
        must(training_run(&t, &whole));
        snprintf(dir, sizeof dir, "%s/resumed-%d", test_dir, (int)q);
        t.dir = dir;
        t.resume = "auto";
        train_observer o = {.on_step = stop_after_two};
        t.observer = &o;
        assert_int_equal(training_run(&t, &parts), ERR_INTERRUPTED);
        t.observer = NULL;
        must(training_run(&t, &parts));
        assert_int_equal(whole.param_hash, parts.param_hash);
        assert_true(whole.last_loss == parts.last_loss);
        /* Nothing of the base is in the checkpoint. */
        char from[4096];
        checkpoint_reader *reader;
        checkpoint_found found;
        must(checkpoint_find_newest(dir, from, sizeof from));
        must(checkpoint_reader_open(&reader, from));
        assert_false(checkpoint_reader_find(reader, "param/embed.w", &found));
        assert_false(checkpoint_reader_find(reader, "param/layers.0.attn.qkv.w", &found));
        assert_true(checkpoint_reader_find(reader, "param/layers.0.attn.qkv.lora_a", &found));
        assert_true(checkpoint_reader_find(reader, "m/layers.1.mlp.down.lora_b", &found));
        checkpoint_reader_close(reader);
        /* Other adapters are another run. */
        t.steps = 6;
        t.more = SETTINGS("model.lora.rank=8", "model.lora.dropout=0.1", "model.lora.targets=q,v,down");
        must_refuse(training_run(&t, &parts), WORDS("lora rank 4", "lora rank 8"));
        t.more = SETTINGS("model.lora.rank=4", "model.lora.dropout=0.1", "model.lora.targets=q,v");
        must_refuse(training_run(&t, &parts), WORDS("down_proj", "lora rank 4"));
        t.more = NULL;
        must_refuse(training_run(&t, &parts), WORDS("lora rank 4"));
    }
}

/* ---- one model from many places ---------------------------------------------------------------------------------- */

static status logits_of(const char *source, const char *adapter, const int32_t *tokens, size_t n, float **out) {
    generator *g;
    generator_options o = {.source = source,
                           .adapter = adapter,
                           .backend = backend_under_test(),
                           .n_threads = 2,
                           .max_sequences = 1,
                           .context = 32};
    TRY(generator_open(&g, &o));
    *out = mem_alloc(n * (size_t)generator_plan(g)->net.source.vocab * sizeof **out);
    status rc = generator_logits(g, tokens, n, false, *out);
    generator_close(g);
    return rc;
}

static const int32_t prompt_tokens[] = {116, 104, 101, 32, 99, 97, 116};
enum { N_PROMPT = ARRAY_LENGTH(prompt_tokens), VOCAB = 260 };

static double compare_logits(const char *source, const char *adapter, const float *want) {
    float *got;
    double worst = 0;
    must(logits_of(source, adapter, prompt_tokens, N_PROMPT, &got));
    for (size_t i = 0; i < N_PROMPT * VOCAB; i++) worst = larger(worst, fabs((double)got[i] - want[i]));
    free(got);
    return worst;
}

/* The run, its base with the run as adapter, its base with the exported adapter, and the exported adapter alone are one
 * model, bit for bit; merged it differs by the rounding of W + BA. */
static void a_run_is_the_same_model_wherever_it_is_read_from(void **state) {
    for (size_t i = 0; i < ARRAY_LENGTH(fixtures); i++) {
        arena memory;
        train_result r;
        export_report report;
        float *want, *plain;
        arena_init(&memory);
        const char *base = fixture(fixtures[i]), *dir = arena_format(&memory, "%s/run-%s", test_dir, fixtures[i]);
        const char *peft = arena_format(&memory, "%s.peft", dir), *merged = arena_format(&memory, "%s.merged", dir);
        training t = lora_training(over_base(&memory, base, SETTINGS("model.lora.rank=4")));
        t.dir = dir;
        must(training_run(&t, &r));
        must(export_checkpoint(dir, &(export_options){.dir = peft, .type = DTYPE_COUNT}, &report));
        assert_true(report.is_adapter && report.type == DTYPE_F32);
        must(export_checkpoint(dir, &(export_options){.dir = merged, .type = DTYPE_COUNT, .merge = true}, &report));
        assert_false(report.is_adapter);
        must(logits_of(dir, NULL, prompt_tokens, N_PROMPT, &want));
        must(logits_of(base, NULL, prompt_tokens, N_PROMPT, &plain));
        assert_memory_not_equal(want, plain, N_PROMPT * VOCAB * sizeof *want); /* it did learn something */
        free(plain);
        assert_true(compare_logits(base, dir, want) == 0);
        assert_true(compare_logits(base, peft, want) == 0);
        assert_true(compare_logits(peft, NULL, want) == 0);
        double worst = compare_logits(merged, NULL, want);
        print_message("%s: merged logits within %.1e of the unmerged\n", fixtures[i], worst);
        assert_true(worst < 1e-4);
        perplexity_report a, b;
        perplexity_options o = {.source = dir,
                                .path = fixture("text.txt"),
                                .last = 0.1,
                                .seq_len = 32,
                                .n_threads = 2,
                                .backend = backend_under_test()};
        must(perplexity_measure(&o, NULL, &a));
        o.source = base, o.adapter = peft;
        must(perplexity_measure(&o, NULL, &b));
        assert_true(a.loss == b.loss);
        must_refuse(logits_of(dir, peft, prompt_tokens, N_PROMPT, &plain), WORDS("adapters of its own"));
        must_refuse(export_checkpoint(
                        base, &(export_options){.dir = arena_format(&memory, "%s.x", dir), .adapter = peft}, &report),
                    WORDS("--merge"));
        must_refuse(logits_of(fixture(fixtures[1 - i]), dir, prompt_tokens, N_PROMPT, &plain),
                    WORDS("adapter of another model"));
        free(want);
        arena_fini(&memory);
    }
}

/* A base of random values is drawn again from its seed. */
static void a_random_base_is_drawn_again(void **state) {
    train_result r;
    export_report report;
    float *want;
    char dir[200], merged[220];
    snprintf(dir, sizeof dir, "%s/drawn", test_dir);
    snprintf(merged, sizeof merged, "%s.merged", dir);
    training t = {
        .preset = "test-gpt2", .steps = 3, .dir = dir, .more = SETTINGS("model.lora.rank=2", "train.lr=0.01")};
    must(training_run(&t, &r));
    must(logits_of(dir, NULL, prompt_tokens, N_PROMPT, &want));
    must(export_checkpoint(dir, &(export_options){.dir = merged, .type = DTYPE_COUNT, .merge = true}, &report));
    assert_true(compare_logits(merged, NULL, want) < 1e-4);
    free(want);
}

/* ---- a base that changed ----------------------------------------------------------------------------------------- */

static void copy_base(const char *from, const char *to) {
    static const char *const names[] = {"config.json", "model.safetensors"};
    must(dir_make(to));
    for (size_t i = 0; i < ARRAY_LENGTH(names); i++) {
        char path[700], *bytes;
        size_t n;
        snprintf(path, sizeof path, "%s/%s", from, names[i]);
        must(file_read_all(path, 1 << 24, &bytes, &n));
        snprintf(path, sizeof path, "%s/%s", to, names[i]);
        write_bytes(path, bytes, n);
        free(bytes);
    }
}

static void another_base_is_refused(void **state) {
    arena memory;
    train_result r;
    export_report report;
    float *logits;
    arena_init(&memory);
    const char *base = arena_format(&memory, "%s/base", test_dir), *dir = arena_format(&memory, "%s/over", test_dir);
    const char *merged = arena_format(&memory, "%s/never", test_dir);
    copy_base(fixture("train_llama"), base);
    training t = lora_training(over_base(&memory, base, SETTINGS("model.lora.rank=2")));
    t.precision = PRECISION_BF16; /* generation in fp32 tells it all the same */
    t.dir = dir;
    must(training_run(&t, &r));
    must(logits_of(dir, NULL, prompt_tokens, N_PROMPT, &logits));
    free(logits);
    const char *path = arena_format(&memory, "%s/model.safetensors", base);
    char *bytes;
    size_t n;
    must(file_read_all(path, 1 << 24, &bytes, &n));
    bytes[n - 1] ^= 0x40; /* the exponent of the last element */
    write_bytes(path, bytes, n);
    t.steps = 6;
    t.resume = "auto";
    must_refuse(training_run(&t, &r), WORDS("base has changed", base));
    must_refuse(logits_of(dir, NULL, prompt_tokens, N_PROMPT, &logits), WORDS("base has changed", base));
    must_refuse(export_checkpoint(dir, &(export_options){.dir = merged, .type = DTYPE_COUNT, .merge = true}, &report),
                WORDS("base has changed"));
    assert_int_not_equal(access(merged, F_OK), 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(unlink(arena_format(&memory, "%s/config.json", base)), 0);
    must_refuse(logits_of(dir, NULL, prompt_tokens, N_PROMPT, &logits),
                WORDS("holds adapters only", base, "--adapter"));
    free(bytes);
    arena_fini(&memory);
}

static void an_adapter_to_train_further_says_what_it_is(void **state) {
    arena memory;
    train_result r;
    arena_init(&memory);
    const char *base = fixture("train_qwen3"), *adapter = arena_format(&memory, "model.adapter=%s/adapter", base);
    training t = lora_training(over_base(&memory, base, SETTINGS(adapter, "model.lora.rank=7")));
    must_refuse(training_run(&t, &r), WORDS("model.lora.rank", "found 7", "4"));
    t = lora_training(over_base(&memory, base, SETTINGS(adapter, "model.lora.alpha=7")));
    must_refuse(training_run(&t, &r), WORDS("model.lora.alpha", "found 7"));
    t = lora_training(over_base(&memory, base, SETTINGS(arena_format(&memory, "model.adapter=%s", base))));
    must_refuse(training_run(&t, &r), WORDS("1 adapter", "adapter"));
    arena_fini(&memory);
}

/* ---- for scripts ------------------------------------------------------------------------------------------------- */

static status write_file(const char *path, const safetensors_entry *entries, const void *const *data, size_t n) {
    safetensors_writer w;
    TRY(safetensors_writer_open(&w, path, entries, n, NULL));
    for (size_t i = 0; i < n; i++)
        TRY(safetensors_writer_put(&w, i, 0, data[i], shape_bytes(&entries[i].shape, entries[i].type)));
    return safetensors_writer_close(&w);
}

static status print_rows(const char *base, const char *path) {
    static int32_t tokens[STEPS * ROWS * SEQ_LEN], targets[STEPS * ROWS * SEQ_LEN], doc_start[STEPS * ROWS * SEQ_LEN];
    arena memory;
    config c;
    train_request r;
    dataset *d;
    arena_init(&memory);
    training t = lora_training(over_base(&memory, base, NULL));
    TRY(training_request(&t, &c, &r));
    TRY(dataset_open(&d, &r.data));
    for (uint64_t i = 0; i < STEPS * ROWS; i++)
        dataset_row(d, SPLIT_TRAIN, i, tokens + i * SEQ_LEN, targets + i * SEQ_LEN, doc_start + i * SEQ_LEN);
    const shape s = SHAPE(STEPS, ROWS, SEQ_LEN);
    const safetensors_entry entries[] = {
        {"tokens", DTYPE_I32, s}, {"targets", DTYPE_I32, s}, {"doc_start", DTYPE_I32, s}};
    return write_file(path, entries, (const void *const[]){tokens, targets, doc_start}, 3);
}

static status print_logits(const char *model, const char *adapter, const char *in, const char *path) {
    safetensors st;
    float *logits;
    TRY(safetensors_open(&st, in));
    const safetensor *t = safetensors_find(&st, "tokens");
    if (!t || t->type != DTYPE_I32) return ERR(ERR_INPUT, "%s: expected int32 tokens", in);
    int32_t *tokens = mem_alloc(t->n_bytes);
    memcpy(tokens, t->data, t->n_bytes);
    int64_t n = shape_count(&t->shape);
    TRY(logits_of(model, adapter, tokens, (size_t)n, &logits));
    return write_file(path, &(safetensors_entry){"logits", DTYPE_F32, SHAPE(n, VOCAB)}, (const void *const[]){logits},
                      1);
}

int main(int argc, char **argv) {
    status rc = OK;
    if (argc == 4 && strcmp(argv[1], "rows") == 0) rc = print_rows(argv[2], argv[3]);
    else if (argc == 5) rc = print_logits(argv[2], NULL, argv[3], argv[4]);
    else if (argc == 6) rc = print_logits(argv[2], argv[3], argv[4], argv[5]);
    if (rc != OK) fprintf(stderr, "%s\n", error_message());
    if (argc > 1) return rc != OK;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(twenty_steps_equal_peft),
        cmocka_unit_test(resumed_runs_end_with_the_same_bits),
        cmocka_unit_test(a_run_is_the_same_model_wherever_it_is_read_from),
        cmocka_unit_test(a_random_base_is_drawn_again),
        cmocka_unit_test(another_base_is_refused),
        cmocka_unit_test(an_adapter_to_train_further_says_what_it_is),
    };
    return cmocka_run_group_tests(tests, test_dir_open, test_dir_close);
}
