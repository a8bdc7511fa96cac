/* test_preference_run.c - runs of the task preference: techniques of memory change no bit, a stopped run ends with the bits of one
 * that never stopped, pairs are learned beyond those that were shown, and what cannot be is refused by name. */
#include "files.h"
#include "model/model.h"
#include "must.h"
#include "training.h"

#include <math.h>
#include <stdlib.h>

enum { SEQ_LEN = 64 };

/* One way to learn from preferences, as settings. */
typedef struct way {
    const char *loss, *reference, *lora;
} way;
static const way ways[] = {{"dpo", "copy", "none"}, {"dpo", "base", "4"},    {"kto", "copy", "none"},
                           {"kto", "base", "4"},    {"ipo", "copy", "4"},    {"orpo", "auto", "none"},
                           {"simpo", "auto", "4"},  {"dpo", "disk", "none"}, {"kto", "disk", "4"}};

static training way_training(arena *memory, const way *w, precision q, const char *const *more) {
    const char **all = arena_array(memory, const char *, SETTINGS_MOST);
    settings_join(all,
                  SETTINGS("train.task=preference", "data.difficulty=1", "train.lr=0.01",
                           arena_format(memory, "preference.loss=%s", w->loss),
                           arena_format(memory, "preference.reference=%s", w->reference),
                           arena_format(memory, "model.lora.rank=%s", w->lora)),
                  more);
    static int n_dirs; /* a reference on disk needs a directory, and each run one of its own */
    bool disk = strcmp(w->reference, "disk") == 0;
    return (training){.preset = "test-qwen3",
                      .source = "builtin:preferences",
                      .precision = q,
                      .seq_len = SEQ_LEN,
                      .dir = disk ? arena_format(memory, "%s/disk-%d", test_dir, n_dirs++) : NULL,
                      .more = all};
}

/* ---- the same bits --------------------------------------------------------------------------------------------- */

static const char *const *const techniques[] = {
    SETTINGS("memory.recompute=full"),
    SETTINGS("memory.recompute=selective", "memory.offload.activations=host"),
    SETTINGS("memory.recompute=every:2", "memory.offload.params=host", "memory.offload.grads=host",
             "memory.offload.states=host"),
    SETTINGS("memory.offload.params=nvme", "memory.offload.grads=nvme", "memory.offload.states=nvme",
             "memory.nvme_path=.", "memory.prefetch=2"),
    SETTINGS("memory.offload.reference=host"),
    SETTINGS("memory.offload.reference=nvme", "memory.offload.params=host", "memory.nvme_path=."),
    SETTINGS("memory.offload.params=host", "memory.offload.states=host", "memory.overlap_update=true",
             "memory.bucket=256K"),
};

static void techniques_of_memory_keep_the_bits(void **state) {
    static const precision precisions[] = {PRECISION_FP32, PRECISION_BF16};
    for (size_t i = 0; i < ARRAY_LENGTH(ways); i++)
        for (size_t q = 0; q < ARRAY_LENGTH(precisions); q++) {
            arena memory;
            train_result plain, r;
            arena_init(&memory);
            training t = way_training(&memory, &ways[i], precisions[q], NULL);
            must(training_run(&t, &plain));
            training_as_planned(&plain, ways[i].loss);
            for (size_t k = 0; k < ARRAY_LENGTH(techniques); k++) {
                if ((i + q + k) % 3 && !matrix_is_large()) continue;
                char name[200];
                snprintf(name, sizeof name, "%s, reference %s, lora %s, %s, technique %zu", ways[i].loss,
                         ways[i].reference, ways[i].lora, precision_name(precisions[q]), k);
                t = way_training(&memory, &ways[i], precisions[q], techniques[k]);
                must(training_run(&t, &r));
                if (r.param_hash != plain.param_hash || r.last_loss != plain.last_loss)
                    fail_msg("%s: param_hash %016llx, plain %016llx", name, (unsigned long long)r.param_hash,
                             (unsigned long long)plain.param_hash);
                training_as_planned(&r, name);
            }
            arena_fini(&memory);
        }
}

/* The copy alone leaves the device, with every byte of it, where the model stays. */
static void a_reference_may_lie_on_the_host_alone(void **state) {
    arena memory;
    train_result here, there;
    arena_init(&memory);
    training t =
        way_training(&memory, &(way){"dpo", "copy", "none"}, PRECISION_FP32, SETTINGS("memory.strategy=manual"));
    must(training_run(&t, &here));
    t = way_training(&memory, &(way){"dpo", "copy", "none"}, PRECISION_FP32,
                     SETTINGS("memory.strategy=manual", "memory.offload.reference=host"));
    must(training_run(&t, &there));
    assert_int_equal(there.param_hash, here.param_hash);
    assert_int_equal(here.memory.planned[TIER_HOST], 0);
    uint64_t bytes = model_param_count(model_preset_find("test-qwen3")) * sizeof(float),
             host = there.memory.planned[TIER_HOST];
    assert_true(host >= bytes && host < bytes + bytes / 8); /* values begin at multiples of the alignment */
    assert_true(there.memory.planned[TIER_DEVICE] < here.memory.planned[TIER_DEVICE]);
    arena_fini(&memory);
}

/* A model that compares with itself as it was has the loss log 2 at first, whatever the reference is made of; base and copy are
 * then the same numbers. */
static void base_and_copy_are_one_reference(void **state) {
    arena memory;
    train_result base, copy;
    arena_init(&memory);
    training t = way_training(&memory, &(way){"dpo", "base", "4"}, PRECISION_FP32, NULL);
    must(training_run(&t, &base));
    t = way_training(&memory, &(way){"dpo", "copy", "4"}, PRECISION_FP32, NULL);
    must(training_run(&t, &copy));
    assert_true(fabs(base.first_loss - log(2)) < 1e-6 && copy.first_loss == base.first_loss);
    assert_true(base.last_loss == copy.last_loss && base.last_loss != base.first_loss);
    assert_int_equal(base.param_hash, copy.param_hash); /* of the model alone */
    arena_fini(&memory);
}

/* Pairs of different sizes, so that rows hold different numbers of them. */
static const char *write_pairs(arena *memory, bool labelled) {
    const char *path = arena_format(memory, "%s/%s.jsonl", test_dir, labelled ? "labelled" : "pairs");
    strbuf text;
    strbuf_init(&text);
    for (int i = 0; i < 23; i++) {
        strbuf_printf(&text, "{\"prompt\": \"%.*s=\", ", 2 + i % 7, "abcdefghij");
        if (labelled)
            strbuf_printf(&text, "\"completion\": \"%.*s\", \"label\": %s}\n", 1 + i % 5, "vwxyz",
                          i % 3 ? "true" : "false");
        else
            strbuf_printf(&text, "\"chosen\": \"%.*s\", \"rejected\": \"%.*s\"}\n", 1 + i % 5, "vwxyz", 1 + i % 3,
                          "klm");
    }
    write_text(path, text.text);
    strbuf_fini(&text);
    return path;
}

/* What was computed once is what a copy of the model would say in every epoch; and no second set of parameters is there. */
static void a_reference_on_disk_has_the_bits_of_a_copy(void **state) {
    static const char *const losses[] = {"dpo", "ipo", "kto"}, *const loras[] = {"none", "4"};
    for (size_t l = 0; l < ARRAY_LENGTH(losses); l++)
        for (precision q = PRECISION_FP32; q <= PRECISION_BF16; q++)
            for (size_t a = 0; a < ARRAY_LENGTH(loras); a++) {
                arena memory;
                train_result copy, disk;
                arena_init(&memory);
                const char *const *more = SETTINGS("data.eval_fraction=0.2", "train.eval_rows=8", "data.difficulty=2");
                training t = way_training(&memory, &(way){losses[l], "copy", loras[a]}, q, more);
                t.source = write_pairs(&memory, strcmp(losses[l], "kto") == 0);
                t.steps = 12, t.micro_batch = 1, t.accumulation = 2; /* more than two epochs */
                must(training_run(&t, &copy));
                const char *source = t.source;
                t = way_training(&memory, &(way){losses[l], "disk", loras[a]}, q, more);
                t.source = source, t.steps = 12, t.micro_batch = 1, t.accumulation = 2;
                must(training_run(&t, &disk));
                if (copy.param_hash != disk.param_hash || copy.last_loss != disk.last_loss ||
                    copy.eval.loss != disk.eval.loss)
                    fail_msg("%s, lora %s: loss %.9g, held out %.9g; with a copy %.9g, %.9g", losses[l], loras[a],
                             disk.last_loss, disk.eval.loss, copy.last_loss, copy.eval.loss);
                assert_true(isfinite(disk.eval.loss));
                training_as_planned(&disk, "disk");
                assert_true(disk.memory.planned[TIER_DEVICE] < copy.memory.planned[TIER_DEVICE]);
                arena_fini(&memory);
            }
}

/* Nothing was kept on disk: what helps is the reference that it was made with. */
static void a_run_with_another_reference_does_not_resume_from_disk(void **state) {
    static const way made[] = {{"dpo", "copy", "none"}, {"dpo", "base", "4"}};
    for (size_t i = 0; i < ARRAY_LENGTH(made); i++) {
        arena memory;
        train_result r;
        arena_init(&memory);
        const char *dir = arena_format(&memory, "%s/not-on-disk-%zu", test_dir, i);
        const char *was = arena_format(&memory, "made with preference.reference=%s", made[i].reference);
        const char *set = arena_format(&memory, "set it to %s", made[i].reference);
        training t = way_training(&memory, &made[i], PRECISION_FP32, NULL);
        t.dir = dir;
        must(training_run(&t, &r));
        training on_disk = way_training(&memory, &(way){"dpo", "disk", made[i].lora}, PRECISION_FP32, NULL);
        on_disk.dir = dir, on_disk.resume = "auto", on_disk.steps = 6;
        must_refuse(training_run(&on_disk, &r), WORDS(was, "found preference.reference=disk", set));
        t.resume = "auto", t.steps = 6;
        must(training_run(&t, &r));
        arena_fini(&memory);
    }
}

static void a_reference_on_disk_must_be_that_of_the_run(void **state) {
    arena memory;
    train_result r;
    char *bytes;
    size_t n;
    arena_init(&memory);
    training t = way_training(&memory, &(way){"dpo", "disk", "none"}, PRECISION_FP32, NULL);
    must(training_run(&t, &r));
    const char *file = arena_format(&memory, "%s/reference.losses", t.dir);
    must(file_read_all(file, 1 << 24, &bytes, &n));
    t.resume = "auto", t.steps = 6;
    must(training_run(&t, &r));
    bytes[n - 1] ^= 1;
    write_bytes(file, bytes, n);
    t.steps = 8;
    must_refuse(training_run(&t, &r), WORDS("reference.losses", "checksum"));
    bytes[n - 1] ^= 1;
    write_bytes(file, bytes, n - 4);
    must_refuse(training_run(&t, &r), WORDS("reference.losses", "size"));
    must(dir_remove_all(file));
    must_refuse(training_run(&t, &r), WORDS("reference.losses", "start a new run"));
    write_bytes(file, bytes, n);
    must(training_run(&t, &r));
    t.dir = NULL, t.resume = NULL;
    must_refuse(training_run(&t, &r), WORDS("preference.reference", "run.dir"));
    free(bytes);
    arena_fini(&memory);
}

typedef struct kto_steps {
    step_losses losses;
    double most_kl;
} kto_steps;
static void keep_kto_step(void *context, const train_step_report *r) {
    kto_steps *k = context;
    keep_step_loss(&k->losses, r);
    for (int i = 0; i < r->metrics.n; i++)
        if (strcmp(r->metrics.list[i].row->name, "kl") == 0) k->most_kl = fmax(k->most_kl, r->metrics.list[i].value);
}

/* kto's z is over all examples of a step: however they are split into micro-batches, the losses are the same but for the order in
 * which fp32 gradients are added, and for z's own losses, which another op computes in another order: 1e-6 of losses near 1 in the
 * first step, and some steps of AdamW behind that. */
static void z_is_over_all_examples_of_a_step(void **state) {
    static const struct { int64_t micro_batch, accumulation; } splits[] = {{4, 1}, {2, 2}, {1, 4}};
    static const char *const loras[] = {"none", "4"};
    for (size_t l = 0; l < ARRAY_LENGTH(loras); l++) {
        kto_steps steps[ARRAY_LENGTH(splits)] = {0};
        for (size_t i = 0; i < ARRAY_LENGTH(splits); i++) {
            arena memory;
            train_result r;
            arena_init(&memory);
            train_observer o = {.context = &steps[i], .on_step = keep_kto_step};
            training t =
                way_training(&memory, &(way){"kto", "auto", loras[l]}, PRECISION_FP32, SETTINGS("preference.beta=0.5"));
            t.micro_batch = splits[i].micro_batch, t.accumulation = splits[i].accumulation, t.steps = 6;
            t.observer = &o;
            must(training_run(&t, &r));
            training_as_planned(&r, "kto");
            arena_fini(&memory);
        }
        for (size_t i = 1; i < ARRAY_LENGTH(splits); i++)
            for (int s = 0; s < steps[0].losses.n; s++)
                assert_true(fabs(steps[i].losses.of[s] - steps[0].losses.of[s]) < (s ? 2e-5 : 1e-6));
        assert_true(steps[0].most_kl > 0.01);
    }
}

static void techniques_keep_the_bits_of_kto_in_parts(void **state) {
    arena memory;
    train_result plain, r;
    arena_init(&memory);
    training t = way_training(&memory, &(way){"kto", "copy", "none"}, PRECISION_BF16, NULL);
    t.accumulation = 2;
    must(training_run(&t, &plain));
    for (size_t k = 0; k + 1 < ARRAY_LENGTH(techniques); k++) { /* the last one overlaps the update */
        t = way_training(&memory, &(way){"kto", "copy", "none"}, PRECISION_BF16, techniques[k]);
        t.accumulation = 2;
        must(training_run(&t, &r));
        if (r.param_hash != plain.param_hash || r.last_loss != plain.last_loss) fail_msg("technique %zu", k);
        training_as_planned(&r, "kto");
    }
    arena_fini(&memory);
}

/* ---- what is reported ------------------------------------------------------------------------------------------ */

typedef struct margins {
    double of[8];
    int n;
} margins;
static void keep_margin(void *context, const train_step_report *r) {
    margins *m = context;
    for (int i = 0; i < r->metrics.n; i++)
        if (strcmp(r->metrics.list[i].row->name, "rewards/margins") == 0) m->of[m->n++] = r->metrics.list[i].value;
}

/* An update that overlaps the next step's first micro-batch reports its own step all the same. */
static void metrics_are_those_of_their_step(void **state) {
    static const char *const overlap[] = {"memory.overlap_update=false", "memory.overlap_update=true"};
    margins kept[2] = {0};
    for (int i = 0; i < 2; i++) {
        arena memory;
        train_result r;
        train_observer o = {.context = &kept[i], .on_step = keep_margin};
        arena_init(&memory);
        training t = way_training(&memory, &(way){"dpo", "copy", "none"}, PRECISION_FP32, SETTINGS(overlap[i]));
        t.observer = &o, t.accumulation = 2;
        must(training_run(&t, &r));
        arena_fini(&memory);
    }
    assert_true(kept[0].n > 2 && kept[0].of[1] != 0);
    assert_int_equal(kept[1].n, kept[0].n);
    for (int i = 0; i < kept[0].n; i++) assert_true(kept[1].of[i] == kept[0].of[i]);
}

/* ---- resume ---------------------------------------------------------------------------------------------------- */

static void stop_after_two(void *context, const train_step_report *r) {
    if (r->step == 2) train_interrupt();
}

/* The reference is where the run began, not where it was stopped. */
static void resumed_runs_end_with_the_same_bits(void **state) {
    for (size_t i = 0; i < ARRAY_LENGTH(ways); i++)
        for (precision q = PRECISION_FP32; q <= PRECISION_BF16; q++) {
            if ((i + (size_t)q) % 2 && !matrix_is_large()) continue;
            arena memory;
            train_result whole, parts;
            arena_init(&memory);
            const char *dir = arena_format(&memory, "%s/resumed-%zu-%d", test_dir, i, (int)q);
            training t = way_training(&memory, &ways[i], q, SETTINGS("train.eval_rows=4"));
            train_observer o = {.on_step = stop_after_two};
            must(training_run(&t, &whole));
            t.dir = dir, t.resume = "auto", t.observer = &o;
            assert_int_equal(training_run(&t, &parts), ERR_INTERRUPTED);
            t.observer = NULL;
            must(training_run(&t, &parts));
            if (whole.param_hash != parts.param_hash || whole.last_loss != parts.last_loss ||
                whole.eval.loss != parts.eval.loss)
                fail_msg("%s, reference %s, lora %s: a resumed run ends with loss %.9g, held out %.9g; the whole one "
                         "with %.9g, "
                         "%.9g",
                         ways[i].loss, ways[i].reference, ways[i].lora, parts.last_loss, parts.eval.loss,
                         whole.last_loss, whole.eval.loss);
            arena_fini(&memory);
        }
}

static void another_loss_is_another_run(void **state) {
    arena memory;
    train_result r;
    arena_init(&memory);
    const char *dir = arena_format(&memory, "%s/other", test_dir);
    training t = way_training(&memory, &ways[0], PRECISION_FP32, NULL);
    t.dir = dir;
    must(training_run(&t, &r));
    t = way_training(&memory, &(way){"ipo", "copy", "none"}, PRECISION_FP32, NULL);
    t.dir = dir, t.resume = "auto", t.steps = 6;
    must_refuse(training_run(&t, &r),
                WORDS("other settings of its task: 'dpo with beta", "this run has 'ipo with beta"));
    arena_fini(&memory);
}

static void copy_file(const char *from, const char *to, const char *name, char *flip) {
    char path[700], *bytes;
    size_t n;
    snprintf(path, sizeof path, "%s/%s", from, name);
    must(file_read_all(path, 1 << 24, &bytes, &n));
    if (flip) bytes[n - 1] ^= *flip;
    snprintf(path, sizeof path, "%s/%s", to, name);
    write_bytes(path, bytes, n);
    free(bytes);
}

/* No checkpoint holds the reference, so the model that it comes from must not change under a run. */
static void another_reference_is_refused(void **state) {
    static const char *const loras[] = {"none", "4"};
    for (size_t i = 0; i < ARRAY_LENGTH(loras); i++) {
        arena memory;
        train_result r;
        arena_init(&memory);
        const char *from = TEST_FIXTURES "/lora/train_qwen3", *to = arena_format(&memory, "%s/model-%zu", test_dir, i);
        must(dir_make(to));
        copy_file(from, to, "config.json", NULL);
        copy_file(from, to, "model.safetensors", NULL);
        const char *const *more =
            SETTINGS("model.preset=auto", arena_format(&memory, "model.path=%s", to), "data.tokenizer=byte");
        training t = way_training(&memory, &(way){"dpo", "copy", loras[i]}, PRECISION_FP32, more);
        t.dir = arena_format(&memory, "%s/over-%zu", test_dir, i);
        t.resume = "auto";
        must(training_run(&t, &r));
        t.steps = 6;
        must(training_run(&t, &r));                              /* the same one */
        copy_file(from, to, "model.safetensors", &(char){0x40}); /* the exponent of the last element */
        t.steps = 8;
        must_refuse(training_run(&t, &r), WORDS("now have", "start a new run"));
        arena_fini(&memory);
    }
}

/* ---- what is refused ------------------------------------------------------------------------------------------- */

static void refused(const char *source, const char *const *more, const char *const *words) {
    const char *all[SETTINGS_MOST];
    train_result r;
    settings_join(all, SETTINGS("train.task=preference", "data.difficulty=1"), more);
    training t = {.preset = "test-qwen3", .source = source, .seq_len = SEQ_LEN, .more = all};
    must_refuse(training_run(&t, &r), words);
}

static void what_cannot_be_is_refused_by_name(void **state) {
    const char *pairs = "builtin:preferences";
    refused(pairs, SETTINGS("preference.reference=base"), WORDS("preference.reference: found base", "model.lora.rank"));
    refused(pairs, SETTINGS("preference.loss=kto", "train.accumulation=2", "memory.overlap_update=true"),
            WORDS("memory.overlap_update", "kto"));
    refused("builtin:arithmetic", NULL, WORDS("data.source", "preference"));
    refused("builtin:grammar", NULL, WORDS("data.source", "preference"));

    char path[300];
    snprintf(path, sizeof path, "%s/pairs.jsonl", test_dir);
    write_text(path,
               "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n{\"prompt\": \"a\", \"chosen\": \"b\"}\n");
    refused(path, NULL, WORDS("pairs.jsonl", "rejected"));
    write_text(path, "{\"prompt\": \"a\", \"completion\": \"b\"}\n");
    refused(path, NULL, WORDS("pairs.jsonl", "chosen"));
    refused(path, SETTINGS("preference.loss=kto"), WORDS("pairs.jsonl", "label"));

    write_text(path, "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n");
    train_result r;
    training t = {.preset = "test-qwen3", .source = path};
    must_refuse(training_run(&t, &r), WORDS("train.task=preference"));
    t.source = pairs;
    must_refuse(training_run(&t, &r), WORDS("train.task=preference"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reference_on_disk_has_the_bits_of_a_copy),
        cmocka_unit_test(a_run_with_another_reference_does_not_resume_from_disk),
        cmocka_unit_test(a_reference_on_disk_must_be_that_of_the_run),
        cmocka_unit_test(z_is_over_all_examples_of_a_step),
        cmocka_unit_test(techniques_keep_the_bits_of_kto_in_parts),
        cmocka_unit_test(metrics_are_those_of_their_step),
        cmocka_unit_test(techniques_of_memory_keep_the_bits),
        cmocka_unit_test(a_reference_may_lie_on_the_host_alone),
        cmocka_unit_test(base_and_copy_are_one_reference),
        cmocka_unit_test(resumed_runs_end_with_the_same_bits),
        cmocka_unit_test(another_loss_is_another_run),
        cmocka_unit_test(another_reference_is_refused),
        cmocka_unit_test(what_cannot_be_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, test_dir_open, test_dir_close);
}
