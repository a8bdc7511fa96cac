/* test_pissa.c - model.lora.init=pissa: what is taken out of the weights is what numpy finds, the model is the same before the first
 * step, a run, its export over the original base and the merged model are one model, and what cannot be is refused.
 *
 * The fixture is made by tools/make_pissa_fixtures.py. */
#include "files.h"
#include "must.h"
#include "training.h"
#include "weightfile/weightfile.h"

#include <math.h>
#include <stdlib.h>

enum { RANK = 4 };
#define MODEL TEST_FIXTURES "/lora/train_qwen3"

static training pissa_training(arena *memory, const char *model, const char *const *more) {
    const char **all = arena_array(memory, const char *, SETTINGS_MOST);
    settings_join(all,
                  SETTINGS("model.preset=auto", arena_format(memory, "model.path=%s", model), "data.tokenizer=byte",
                           "model.lora.rank=4", "train.lr=0.01", "train.schedule=constant"),
                  more);
    return (training){.source = "builtin:arithmetic", .seq_len = 32, .more = all};
}

static float number(const safetensor *t, int64_t i) {
    float x;
    memcpy(&x, (const float *)t->data + i, sizeof x);
    return x;
}

/* The second half of an exported adapter is what was taken out: scale B0 A0. numpy has it as a sum in double of exact triples;
 * here factors are rounded to fp32 once each: 1e-6 of weights below 1. */
static void check_against_numpy(const char *dir, double scale) {
    safetensors own, numpy;
    size_t n_checked = 0;
    char path[700];
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", dir);
    must(safetensors_open(&own, path));
    must(safetensors_open(&numpy, TEST_FIXTURES "/lora/pissa_qwen3.safetensors"));
    for (size_t i = 0; i < numpy.n_tensors; i++, n_checked++) {
        const safetensor *w = &numpy.tensors[i];
        char name[300];
        int stem = (int)(strlen(w->name) - strlen(".weight"));
        snprintf(name, sizeof name, "base_model.model.%.*s.lora_A.weight", stem, w->name);
        const safetensor *a = safetensors_find(&own, name);
        snprintf(name, sizeof name, "base_model.model.%.*s.lora_B.weight", stem, w->name);
        const safetensor *b = safetensors_find(&own, name);
        assert_true(a && b && a->shape.dim[0] == 2 * RANK && b->shape.dim[1] == 2 * RANK);
        int64_t n = w->shape.dim[0], m = w->shape.dim[1];
        for (int64_t r = 0; r < n; r++)
            for (int64_t c = 0; c < m; c++) {
                double sum = 0;
                for (int64_t k = RANK; k < 2 * RANK; k++)
                    sum -= (double)number(b, r * 2 * RANK + k) * (double)number(a, k * m + c);
                assert_true(fabs(scale * sum - (double)number(w, r * m + c)) < 1e-6);
            }
    }
    assert_int_equal(n_checked, 14); /* seven of each of two layers */
    safetensors_close(&own);
    safetensors_close(&numpy);
}

static void the_principal_part_is_that_of_numpy(void **state) {
    static const struct {
        const char *alpha, *rslora;
        double scale;
    } cases[] = {{"model.lora.alpha=8", "model.lora.rslora=false", 2},
                 {"model.lora.alpha=6", "model.lora.rslora=true", 3}};
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        arena memory;
        train_result r;
        arena_init(&memory);
        const char *dir = path_of("export");
        must(dir_remove_all(dir));
        training t = pissa_training(&memory, MODEL,
                                    SETTINGS("model.lora.init=pissa", cases[i].alpha, cases[i].rslora,
                                             arena_format(&memory, "run.export=%s", dir)));
        must(training_run(&t, &r));
        training_as_planned(&r, "pissa");
        check_against_numpy(dir, cases[i].scale);
        arena_fini(&memory);
    }
}

/* W - s B0 A0 + s B0 A0 is W but for rounding: of fp32, and of weights and factors to bf16. */
static void the_model_is_the_same_before_the_first_step(void **state) {
    static const double bounds[] = {[PRECISION_FP32] = 2e-6, [PRECISION_BF16] = 2e-2};
    for (precision q = PRECISION_FP32; q <= PRECISION_BF16; q++) {
        arena memory;
        train_result plain, pissa;
        arena_init(&memory);
        training t = pissa_training(&memory, MODEL, NULL);
        t.precision = q;
        must(training_run(&t, &plain));
        t = pissa_training(&memory, MODEL, SETTINGS("model.lora.init=pissa"));
        t.precision = q;
        must(training_run(&t, &pissa));
        print_message("%s: first loss %.9g, without adapters %.9g\n", precision_name(q), pissa.first_loss,
                      plain.first_loss);
        assert_true(fabs(plain.first_loss - pissa.first_loss) < bounds[q]);
        assert_true(plain.last_loss != pissa.last_loss);
        arena_fini(&memory);
    }
}

static void stop_after_two(void *context, const train_step_report *r) {
    if (r->step == 2) train_interrupt();
}

static void resumed_runs_end_with_the_same_bits(void **state) {
    for (precision q = PRECISION_FP32; q <= PRECISION_BF16; q++) {
        arena memory;
        train_result whole, parts, offloaded;
        arena_init(&memory);
        training t = pissa_training(&memory, MODEL, SETTINGS("model.lora.init=pissa", "model.lora.dropout=0.1"));
        train_observer o = {.on_step = stop_after_two};
        t.precision = q;
        must(training_run(&t, &whole));
        t.dir = arena_format(&memory, "%s/run-%d", test_dir, (int)q), t.resume = "auto", t.observer = &o;
        assert_int_equal(training_run(&t, &parts), ERR_INTERRUPTED);
        t.observer = NULL;
        must(training_run(&t, &parts));
        assert_int_equal(whole.param_hash, parts.param_hash);
        t = pissa_training(&memory, MODEL,
                           SETTINGS("model.lora.init=pissa", "model.lora.dropout=0.1", "memory.offload.params=host",
                                    "memory.offload.states=host", "memory.recompute=full"));
        t.precision = q, t.threads = 1;
        must(training_run(&t, &offloaded));
        assert_int_equal(whole.param_hash, offloaded.param_hash);
        t = pissa_training(&memory, MODEL, NULL);
        t.precision = q, t.dir = arena_format(&memory, "%s/run-%d", test_dir, (int)q), t.resume = "auto", t.steps = 6;
        must_refuse(training_run(&t, &parts), WORDS("by pissa"));
        arena_fini(&memory);
    }
}

static void copy_file(const char *to, const char *name, char flip) {
    char path[700], *bytes;
    size_t n;
    snprintf(path, sizeof path, "%s/%s", MODEL, name);
    must(file_read_all(path, 1 << 24, &bytes, &n));
    bytes[n - 1] ^= flip;
    snprintf(path, sizeof path, "%s/%s", to, name);
    write_bytes(path, bytes, n);
    free(bytes);
}

/* An export is made from the base too: another one gives another model. */
static void another_base_is_not_exported_over(void **state) {
    arena memory;
    train_result r;
    export_report report;
    arena_init(&memory);
    const char *base = arena_format(&memory, "%s/base", test_dir), *run = arena_format(&memory, "%s/over", test_dir);
    const char *to = arena_format(&memory, "%s/to", test_dir);
    must(dir_make(base));
    copy_file(base, "config.json", 0);
    copy_file(base, "model.safetensors", 0);
    training t = pissa_training(&memory, base, SETTINGS("model.lora.init=pissa"));
    t.dir = run;
    must(training_run(&t, &r));
    must(export_checkpoint(run, &(export_options){.dir = to, .type = DTYPE_COUNT}, &report));
    assert_true(report.is_adapter);
    must(dir_remove_all(to));
    copy_file(base, "model.safetensors", 0x40);
    must_refuse(export_checkpoint(run, &(export_options){.dir = to, .type = DTYPE_COUNT}, &report),
                WORDS("The base has changed"));
    must_refuse(export_checkpoint(run, &(export_options){.dir = to, .type = DTYPE_COUNT, .merge = true}, &report),
                WORDS("The base has changed"));
    arena_fini(&memory);
}

static void refused(const char *const *more, const char *const *words) {
    arena memory;
    train_result r;
    arena_init(&memory);
    training t = pissa_training(&memory, MODEL, more);
    must_refuse(training_run(&t, &r), words);
    arena_fini(&memory);
}

static void what_cannot_be_is_refused_by_name(void **state) {
    refused(SETTINGS("model.lora.init=pissa", "model.base=nf4"), WORDS("model.base", "model.lora.init"));
    refused(SETTINGS("model.lora.init=pissa", "model.lora.rank=17"), WORDS("model.lora.rank 17", "at most 16"));
    refused(SETTINGS("model.lora.init=pissa", "model.lora.rank=300"), WORDS("model.lora.rank 300", "twice the rank"));
    refused(SETTINGS("model.lora.init=pissa", "train.task=preference", "data.source=builtin:preferences",
                     "preference.reference=base", "data.seq_len=64"),
            WORDS("preference.reference", "pissa"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_principal_part_is_that_of_numpy),
        cmocka_unit_test(the_model_is_the_same_before_the_first_step),
        cmocka_unit_test(resumed_runs_end_with_the_same_bits),
        cmocka_unit_test(another_base_is_not_exported_over),
        cmocka_unit_test(what_cannot_be_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, test_dir_open, test_dir_close);
}
