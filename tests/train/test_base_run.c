/* test_base_run.c - runs that train adapters over a base in fewer bits (model.base): the numbers are those of the base
 * dequantised, whatever techniques of memory there are; resume, generation, evaluation, merging and refusals. */
#include "backend_choice.h"
#include "files.h"
#include "must.h"
#include "training.h"
#include "weightfile/weightfile.h"

#include <math.h>
#include <stdlib.h>

enum { SEQ_LEN = 32, MOST_TENSORS = 64, STEPS = 3 };
static const char *const fixtures[] = {"train_qwen3", "train_llama"};
static const base_format formats[] = {BASE_FP8, BASE_INT8, BASE_NF4};

static const char *fixture(arena *memory, const char *name) {
    return arena_format(memory, "%s/lora/%s", TEST_FIXTURES, name);
}

/* ---- a base of dequantised numbers ------------------------------------------------------------------------------- */

static float *numbers_of(const safetensor *t) {
    int64_t n = shape_count(&t->shape);
    float *out = mem_alloc((size_t)n * sizeof *out);
    void *aligned = mem_alloc(t->n_bytes);
    memcpy(aligned, t->data, t->n_bytes);
    tensor_convert(out, DTYPE_F32, aligned, t->type, (size_t)n);
    free(aligned);
    return out;
}

/* Codes of one tensor alone, with tensor's own functions. */
static base_codes quantize(base_format f, int64_t n_out, int64_t n_in, const float *w) {
    base_sizes n = base_sizes_of(f, n_out, n_in);
    base_codes to = {mem_alloc((size_t)n.codes), mem_alloc((size_t)n.scale_codes + 1),
                     mem_alloc((size_t)n.scales * sizeof(float)), mem_alloc(sizeof(float))};
    quantizer q;
    quantizer_init(&q, &(quantizer_options){.name = "w",
                                            .format = f,
                                            .n_out = n_out,
                                            .n_in = n_in,
                                            .absmax = quantize_absmax(0, w, n_out * n_in),
                                            .to = to});
    must(quantizer_add(&q, w, n_out));
    must(quantizer_finish(&q));
    quantizer_fini(&q);
    return to;
}

static void codes_free(base_codes *c) {
    free(c->codes);
    free(c->scale_codes);
    free(c->scale);
    free(c->offset);
}

static bool is_linear(const char *name) { return str_ends_with(name, "_proj.weight"); }

/* The model in `from` with every linear layer of its blocks quantised and dequantised, in fp32. */
static void write_dequantized(arena *memory, const char *from, const char *to, base_format f) {
    safetensors st;
    safetensors_writer w;
    safetensors_entry entries[MOST_TENSORS];
    char *config;
    size_t n;
    must(dir_make(to));
    must(file_read_all(arena_format(memory, "%s/config.json", from), 1 << 20, &config, &n));
    write_bytes(arena_format(memory, "%s/config.json", to), config, n);
    free(config);
    must(safetensors_open(&st, arena_format(memory, "%s/model.safetensors", from)));
    assert_true(st.n_tensors <= MOST_TENSORS);
    for (size_t i = 0; i < st.n_tensors; i++)
        entries[i] = (safetensors_entry){st.tensors[i].name, DTYPE_F32, st.tensors[i].shape};
    must(safetensors_writer_open(&w, arena_format(memory, "%s/model.safetensors", to), entries, st.n_tensors, NULL));
    for (size_t i = 0; i < st.n_tensors; i++) {
        const shape *s = &entries[i].shape;
        float *x = numbers_of(&st.tensors[i]);
        if (is_linear(entries[i].name)) {
            base_codes c = quantize(f, s->dim[0], s->dim[1], x);
            base_dequantize(f, s->dim[0], s->dim[1], &c, x, 0, shape_count(s));
            codes_free(&c);
        }
        must(safetensors_writer_put(&w, i, 0, x, (size_t)shape_count(s) * sizeof *x));
        free(x);
    }
    must(safetensors_writer_close(&w));
    safetensors_close(&st);
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

static const char *const *settings_over(arena *memory, const char *base, const char *const *more) {
    const char **out = arena_array(memory, const char *, SETTINGS_MOST);
    const char *own[] = {"model.preset=auto",
                         arena_format(memory, "model.path=%s", base),
                         arena_format(memory, "data.source=%s", fixture(memory, "text.txt")),
                         "data.tokenizer=byte",
                         "data.eval_fraction=0",
                         "model.lora.rank=4",
                         "train.schedule=constant",
                         "train.lr=0.01",
                         NULL};
    settings_join(out, own, more);
    return out;
}

static const char *named(arena *memory, base_format f) {
    return arena_format(memory, "model.base=%s", base_format_name(f));
}

static const int32_t prompt_tokens[] = {116, 104, 101, 32, 99, 97, 116};
enum { N_PROMPT = ARRAY_LENGTH(prompt_tokens), VOCAB = 260 };

static status logits_of(const char *source, const char *adapter, float *out) {
    generator *g;
    generator_options o = {.source = source,
                           .adapter = adapter,
                           .backend = backend_under_test(),
                           .n_threads = 2,
                           .max_sequences = 1,
                           .context = 32};
    TRY(generator_open(&g, &o));
    status rc = generator_logits(g, prompt_tokens, N_PROMPT, false, out);
    generator_close(g);
    return rc;
}

/* A run over codes and a plain one over the numbers that they stand for: losses, gradients (by the adapters that they make),
 * generation and evaluation have the same bits. Quantising each tensor of the files by itself is part of it: q, k and v are
 * one matrix in the program. */
static void codes_compute_as_the_numbers_they_stand_for(void **state) {
    static const precision precisions[] = {PRECISION_FP32, PRECISION_BF16, PRECISION_FP8};
    for (size_t i = 0; i < ARRAY_LENGTH(fixtures) * ARRAY_LENGTH(formats) * ARRAY_LENGTH(precisions); i++) {
        const char *name = fixtures[i % 2];
        base_format f = formats[i / 2 % 3];
        precision q = precisions[i / 6];
        arena memory;
        step_losses l[2] = {0};
        float logits[3][N_PROMPT * VOCAB];
        perplexity_report p[2];
        arena_init(&memory);
        const char *base = fixture(&memory, name), *plain = arena_format(&memory, "%s/plain-%zu", test_dir, i);
        const char *run[2], *peft[2], *bytes[2];
        size_t n[2];
        write_dequantized(&memory, base, plain, f);
        for (int k = 0; k < 2; k++) {
            train_result r;
            train_observer o = {.context = &l[k], .on_step = keep_step_loss};
            run[k] = arena_format(&memory, "%s/run-%zu-%d", test_dir, i, k);
            peft[k] = arena_format(&memory, "%s.peft", run[k]);
            const char *export = arena_format(&memory, "run.export=%s", peft[k]);
            training t = {.precision = q, .seq_len = SEQ_LEN, .steps = STEPS, .dir = run[k], .observer = &o};
            t.more = k ? settings_over(&memory, plain, SETTINGS(export))
                       : settings_over(&memory, base, SETTINGS(export, named(&memory, f)));
            must(training_run(&t, &r));
            training_as_planned(&r, base_format_name(f));
            must(logits_of(run[k], NULL, logits[k]));
            perplexity_options eval = {.source = run[k],
                                       .path = fixture(&memory, "text.txt"),
                                       .last = 0.1,
                                       .seq_len = 32,
                                       .n_threads = 2,
                                       .backend = backend_under_test()};
            must(perplexity_measure(&eval, NULL, &p[k]));
            must(file_read_all(arena_format(&memory, "%s/adapter_model.safetensors", peft[k]), 1 << 24,
                               (char **)&bytes[k], &n[k]));
        }
        assert_memory_equal(l[0].of, l[1].of, sizeof l[0].of);
        assert_true(n[0] == n[1] && memcmp(bytes[0], bytes[1], n[0]) == 0);
        assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
        assert_true(p[0].loss == p[1].loss);
        must(logits_of(base, run[0], logits[2])); /* the run as an adapter: over the base as it was stored then */
        assert_memory_equal(logits[0], logits[2], sizeof logits[0]);
        must(logits_of(base, peft[0],
                       logits[2])); /* PEFT's files do not say how the base was stored: over its own numbers */
        assert_memory_not_equal(logits[0], logits[2], sizeof logits[0]);
        free((void *)bytes[0]);
        free((void *)bytes[1]);
        arena_fini(&memory);
    }
}

/* ---- techniques of memory ---------------------------------------------------------------------------------------- */

static const char *const *const techniques[] = {
    SETTINGS("memory.recompute=full"),
    SETTINGS("memory.recompute=selective"),
    SETTINGS("memory.recompute=every:2", "memory.offload.params=host"),
    SETTINGS("memory.offload.params=host"),
    SETTINGS("memory.offload.params=nvme", "memory.nvme_path=.", "memory.prefetch=2"),
    SETTINGS("memory.offload.params=host", "memory.offload.grads=host", "memory.offload.states=host",
             "memory.offload.activations=host", "memory.recompute=norms"),
    SETTINGS("memory.offload.states=host", "memory.overlap_update=true"),
    SETTINGS("memory.place=embed=cpu:0, layers.0=cpu:1, layers.1=cpu:0, head=cpu:2"),
};

static void techniques_change_no_bit(void **state) {
    static const char *const presets[] = {"test-qwen3", "test-gpt2"};
    for (size_t i = 0; i < ARRAY_LENGTH(formats) * 2; i++) {
        arena memory;
        train_result whole, r;
        arena_init(&memory);
        const char *const own[] = {"model.lora.rank=4", "model.lora.dropout=0.1", named(&memory, formats[i / 2]), NULL};
        training t = {.preset = presets[i % 2], .precision = PRECISION_BF16, .accumulation = 2, .more = own};
        must(training_run(&t, &whole));
        training_as_planned(&whole, t.preset);
        for (size_t k = 0; k < ARRAY_LENGTH(techniques); k++) {
            const char *more[SETTINGS_MOST];
            settings_join(more, own, techniques[k]);
            t.more = more;
            must(training_run(&t, &r));
            training_as_planned(&r, techniques[k][0]);
            assert_int_equal(r.param_hash, whole.param_hash);
            assert_true(r.last_loss == whole.last_loss);
        }
        arena_fini(&memory);
    }
}

/* ---- resume, merge ----------------------------------------------------------------------------------------------- */

static void stop_after_two(void *context, const train_step_report *r) {
    if (r->step == 2) train_interrupt();
}

static void resumed_runs_end_with_the_same_bits(void **state) {
    for (size_t i = 0; i < ARRAY_LENGTH(formats); i++) {
        arena memory;
        train_result whole, parts;
        arena_init(&memory);
        const char *dir = arena_format(&memory, "%s/resumed-%zu", test_dir, i);
        training t = {.preset = "test-llama", .steps = 4};
        t.more = SETTINGS("model.lora.rank=4", named(&memory, formats[i]));
        must(training_run(&t, &whole));
        t.dir = dir;
        t.resume = "auto";
        t.observer = &(train_observer){.on_step = stop_after_two};
        assert_int_equal(training_run(&t, &parts), ERR_INTERRUPTED);
        t.observer = NULL;
        must(training_run(&t, &parts));
        assert_int_equal(whole.param_hash, parts.param_hash);
        t.steps = 6; /* another base is another run */
        t.more = SETTINGS("model.lora.rank=4");
        must_refuse(training_run(&t, &parts), WORDS(arena_format(&memory, "over %s", base_format_name(formats[i]))));
        arena_fini(&memory);
    }
}

/* Merged into the base's own numbers, not into those that codes stand for: the run over codes and a run over the plain base
 * whose adapters are the same give the same files. */
static void adapters_are_merged_into_the_base_of_the_files(void **state) {
    arena memory;
    train_result r;
    export_report report;
    arena_init(&memory);
    const char *base = fixture(&memory, "train_llama"), *run = arena_format(&memory, "%s/merge", test_dir);
    const char *peft = arena_format(&memory, "%s.peft", run);
    const char *merged[] = {arena_format(&memory, "%s.a", run), arena_format(&memory, "%s.b", run)};
    char *bytes[2];
    size_t n[2];
    training t = {.precision = PRECISION_BF16, .seq_len = SEQ_LEN, .steps = STEPS, .dir = run};
    t.more = settings_over(&memory, base, SETTINGS("model.base=nf4"));
    must(training_run(&t, &r));
    must(export_checkpoint(run, &(export_options){.dir = peft, .type = DTYPE_COUNT}, &report));
    assert_true(report.is_adapter);
    must(export_checkpoint(run, &(export_options){.dir = merged[0], .type = DTYPE_BF16, .merge = true}, &report));
    must(export_checkpoint(
        base, &(export_options){.dir = merged[1], .type = DTYPE_BF16, .adapter = peft, .merge = true}, &report));
    for (int k = 0; k < 2; k++)
        must(file_read_all(arena_format(&memory, "%s/model.safetensors", merged[k]), 1 << 24, &bytes[k], &n[k]));
    assert_true(n[0] == n[1] && memcmp(bytes[0], bytes[1], n[0]) == 0);
    free(bytes[0]);
    free(bytes[1]);
    arena_fini(&memory);
}

/* ---- refused ----------------------------------------------------------------------------------------------------- */

static void what_cannot_be_is_refused_by_name(void **state) {
    train_result r;
    training t = {.preset = "test-llama", .more = SETTINGS("model.base=nf4")};
    must_refuse(training_run(&t, &r), WORDS("model.base", "nf4", "model.lora.rank"));
    t.more = SETTINGS("model.base=nf2", "model.lora.rank=4");
    must_refuse(training_run(&t, &r), WORDS("model.base", "nf2", "nf4"));
    compiled k;
    t.more = SETTINGS("model.base=nf4", "model.lora.rank=4");
    compiled_request(&k, &t);
    k.r.plan.mesh.size[AXIS_TENSOR] = 2;
    must_refuse(plan_choose(&k.p, &k.r.plan), WORDS("model.base", "nf4", "parallel.tensor 2"));
    config_fini(&k.c);
}

/* The last number of the last linear layer. */
static void a_number_that_is_not_finite_is_named(void **state) {
    arena memory;
    train_result r;
    arena_init(&memory);
    const char *from = fixture(&memory, "train_llama"), *base = arena_format(&memory, "%s/broken", test_dir);
    write_dequantized(&memory, from, base, BASE_INT8);
    const char *path = arena_format(&memory, "%s/model.safetensors", base);
    char *bytes;
    size_t n, at = 0;
    safetensors st;
    must(file_read_all(path, 1 << 24, &bytes, &n));
    must(safetensors_open(&st, path));
    const safetensor *t = safetensors_find(&st, "model.layers.1.self_attn.v_proj.weight");
    assert_non_null(t);
    for (at = 0; at + t->n_bytes <= n && memcmp(bytes + at, t->data, t->n_bytes) != 0;) at++;
    const float nan = NAN;
    memcpy(bytes + at + t->n_bytes - sizeof nan, &nan, sizeof nan);
    const char *row =
        arena_format(&memory, "row %lld, column %lld", (long long)t->shape.dim[0] - 1, (long long)t->shape.dim[1] - 1);
    safetensors_close(&st);
    write_bytes(path, bytes, n);
    for (size_t i = 0; i < ARRAY_LENGTH(formats); i++) {
        training run = {.seq_len = SEQ_LEN, .more = settings_over(&memory, base, SETTINGS(named(&memory, formats[i])))};
        must_refuse(training_run(&run, &r), WORDS("model.layers.1.self_attn.v_proj.weight", "nan", row));
    }
    free(bytes);
    arena_fini(&memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_compute_as_the_numbers_they_stand_for),
        cmocka_unit_test(techniques_change_no_bit),
        cmocka_unit_test(resumed_runs_end_with_the_same_bits),
        cmocka_unit_test(adapters_are_merged_into_the_base_of_the_files),
        cmocka_unit_test(what_cannot_be_is_refused_by_name),
        cmocka_unit_test(a_number_that_is_not_finite_is_named),
    };
    return cmocka_run_group_tests(tests, test_dir_open, test_dir_close);
}
