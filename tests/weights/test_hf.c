/* test_hf.c - Hugging Face directories: logits as transformers has them, export and reload bit for bit, what is refused.
 *
 * The fixtures are made by tools/make_hf_fixtures.py. With arguments this program is no test: it runs a directory on
 * given tokens and writes what it computed, which tools/check_export.py compares with transformers:
 *
 *     test_hf DIR IN.safetensors OUT.safetensors     in: tokens, targets (rows, T) int32; out: logits, losses */
#include "hf.h"
#include "model/model.h"
#include "must.h"
#include "training.h"
#include "weightfile/weightfile.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <math.h>
#include <stdlib.h>

static const char *const fixtures[] = {"gpt2_tied",      "gpt2_untied",          "gpt2_published",
                                       "llama_old_fp16", "llama_sharded",        "qwen2_old",
                                       "qwen2_bf16",     "qwen3_tied_with_head", "qwen3_bf16_sharded"};

/* ---- in -------------------------------------------------------------------------------------------------------- */

/* fp32 on both sides: sums of a few dozen products of about 1, in another order. */
static void logits_equal_transformers(void **state) {
    for (size_t i = 0; i < ARRAY_LENGTH(fixtures); i++) {
        char path[600];
        safetensors reference;
        hf_model m;
        const char *dir = hf_fixture_dir(fixtures[i]);
        snprintf(path, sizeof path, "%s/reference.safetensors", dir);
        must(safetensors_open(&reference, path));
        const safetensor *tokens = safetensors_find(&reference, "tokens"),
                         *logits = safetensors_find(&reference, "logits");
        assert_true(tokens && logits);
        must(hf_open(&m, dir, PRECISION_FP32, tokens->shape.dim[0], tokens->shape.dim[1]));
        must(weights_load_dir(m.e, &m.plan, dir));
        int32_t *copy = mem_alloc(tokens->n_bytes);
        float *want = mem_alloc(logits->n_bytes);
        memcpy(copy, tokens->data, tokens->n_bytes);
        memcpy(want, logits->data, logits->n_bytes);
        hf_forward(&m, copy, NULL);
        float *got = hf_logits(&m);
        double worst = 0;
        assert_int_equal(shape_count(&logits->shape), m.batch * m.seq_len * m.config.vocab);
        for (int64_t k = 0; k < shape_count(&logits->shape); k++) worst = fmax(worst, fabs((double)got[k] - want[k]));
        print_message("%-22s logits within %.1e\n", fixtures[i], worst);
        assert_true(worst < 1e-4);
        free(got);
        free(want);
        free(copy);
        hf_close(&m);
        safetensors_close(&reference);
    }
}

/* A master takes the file's numbers as they are, the parameter their rounding. */
static void masters_keep_what_the_parameters_round(void **state) {
    hf_model a, b;
    const char *dir = hf_fixture_dir("gpt2_tied");
    must(hf_open(&a, dir, PRECISION_FP32, 1, 8));
    must(hf_open(&b, dir, PRECISION_BF16, 1, 8));
    must(weights_load_dir(a.e, &a.plan, dir));
    must(weights_load_dir(b.e, &b.plan, dir));
    assert_int_equal(params_hash(a.e, &a.plan, NULL),
                     params_hash(b.e, &b.plan, NULL)); /* of the masters, where there are any */
    for (size_t i = 0; i < b.plan.net.n_params; i++) {
        size_t n = (size_t)shape_count(&program_get(&b.plan.program, b.plan.net.params[i].value)->shape);
        float *wide = mem_alloc(n * sizeof *wide);
        uint16_t *narrow = mem_alloc(n * sizeof *narrow);
        exec_read(b.e, b.plan.step.masters[i], 0, wide, n * sizeof *wide);
        exec_read(b.e, b.plan.net.params[i].value, 0, narrow, n * sizeof *narrow);
        for (size_t k = 0; k < n; k++) assert_int_equal(narrow[k], f32_to_bf16(wide[k]));
        free(wide);
        free(narrow);
    }
    hf_close(&a);
    hf_close(&b);
}

static bool reset_peak(void) {
#ifdef __SANITIZE_THREAD__
    return false; /* its shadow is several times the memory it watches, and resident too */
#endif
    FILE *f = fopen("/proc/self/clear_refs", "w");
    if (!f) return false;
    bool written = fputs("5", f) >= 0;
    return fclose(f) == 0 && written;
}

/* One layer whose tensors are all of 16 MiB and take several blocks, half of them turned in the file. What loading holds
 * beside the arenas, which are all touched before, stays below twice the largest tensor. */
static void loading_holds_little_beside_the_model(void **state) {
    char *dir = training_dir(), path[600], out[600], *description;
    hf_model m, again;
    export_report report;
    const model_config c = {.name = "large",
                            .family = FAMILY_GPT2,
                            .vocab = 65536,
                            .hidden = 64,
                            .n_layers = 1,
                            .n_heads = 4,
                            .n_kv_heads = 4,
                            .head_dim = 16,
                            .ffn = 65536,
                            .max_positions = 16,
                            .norm_eps = 1e-5,
                            .tied = true};
    const uint64_t largest = 65536ull * 64 * sizeof(float);
    json_t *config = model_config_to_json(&c);
    snprintf(path, sizeof path, "%s/config.json", dir);
    snprintf(out, sizeof out, "%s/out", dir);
    must(json_write_file(path, config));
    json_decref(config);
    must(hf_open(&m, dir, PRECISION_FP32, 1, 8));
    hf_same_config(&c, &m.config);
    params_initialize(m.e, &m.plan, 1);
    train_request r = {.plan = m.plan.request, .model_dir = dir, .data = {.tokenizer = "byte"}};
    must(export_describe(model_of(&r.plan.source), r.model_dir, &r.data, NULL, &description));
    must(export_running(m.e, &m.plan, description, NULL, &(export_options){.dir = out, .type = DTYPE_F32}, &report));
    uint64_t hash = params_hash(m.e, &m.plan, NULL);
    hf_close(&m);
    must(hf_open(&again, out, PRECISION_FP32, 1, 8));
    params_initialize(again.e, &again.plan, 2);
    bool measured = reset_peak();
    uint64_t before = sys_rss_bytes();
    must(weights_load_dir(again.e, &again.plan, out));
    uint64_t peak = sys_rss_peak_bytes(), more = peak > before ? peak - before : 0;
    assert_int_equal(params_hash(again.e, &again.plan, NULL), hash);
    if (measured)
        print_message("loading held %.1f MiB, the largest tensor has %.1f MiB\n", (double)more / 0x1p20,
                      (double)largest / 0x1p20);
    else print_message("the peak of resident memory cannot be told here: not measured\n");
    assert_true(!measured || more < 2 * largest);
    free(description);
    hf_close(&again);
    training_dir_remove(dir);
}

/* ---- out ------------------------------------------------------------------------------------------------------- */

static uint64_t hash_of_dir(const char *dir) {
    hf_model m;
    must(hf_open(&m, dir, PRECISION_FP32, 1, 8));
    must(weights_load_dir(m.e, &m.plan, dir));
    uint64_t hash = params_hash(m.e, &m.plan, NULL);
    hf_close(&m);
    return hash;
}

static int count_files(const char *dir, const char *ending) {
    int n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) n += str_ends_with(e->d_name, ending);
    closedir(d);
    return n;
}

static void export_then_reload_gives_the_same_bits(void **state) {
    for (size_t i = 0; i < ARRAY_LENGTH(fixtures); i++)
        for (int sharded = 0; sharded < 2; sharded++) {
            char *dir = training_dir(), out[600];
            hf_model m, again;
            export_report report;
            char *description;
            snprintf(out, sizeof out, "%s/new/model/", dir);
            must(hf_open(&m, hf_fixture_dir(fixtures[i]), PRECISION_FP32, 1, 8));
            must(weights_load_dir(m.e, &m.plan, hf_fixture_dir(fixtures[i])));
            train_request r = {
                .plan = m.plan.request, .model_dir = hf_fixture_dir(fixtures[i]), .data = {.tokenizer = "byte"}};
            must(export_describe(model_of(&r.plan.source), r.model_dir, &r.data, NULL, &description));
            export_options o = {.dir = out, .type = DTYPE_COUNT, .shard_bytes = sharded ? 3000 : 0};
            must(export_running(m.e, &m.plan, description, NULL, &o, &report));
            assert_int_equal(report.type, DTYPE_F32);
            assert_int_equal(report.n_parameters, model_param_count(&m.config));
            assert_int_equal(report.n_files, count_files(out, ".safetensors"));
            assert_int_equal(sharded, report.n_files > 1);
            must(hf_open(&again, out, PRECISION_FP32, 1, 8));
            hf_same_config(&m.config, &again.config);
            assert_int_equal(hash_of_dir(out), params_hash(m.e, &m.plan, NULL));
            free(description);
            hf_close(&again);
            hf_close(&m);
            training_dir_remove(dir);
        }
}

/* A bf16 file exported as bf16 holds the very numbers it held. */
static void sixteen_bits_survive_the_way_in_and_out(void **state) {
    char *dir = training_dir(), out[600];
    hf_model m;
    export_report report;
    char *description;
    snprintf(out, sizeof out, "%s/model", dir);
    must(hf_open(&m, hf_fixture_dir("qwen2_bf16"), PRECISION_BF16_SR, 1, 8));
    must(weights_load_dir(m.e, &m.plan, hf_fixture_dir("qwen2_bf16")));
    train_request r = {
        .plan = m.plan.request, .model_dir = hf_fixture_dir("qwen2_bf16"), .data = {.tokenizer = "byte"}};
    must(export_describe(model_of(&r.plan.source), r.model_dir, &r.data, NULL, &description));
    must(export_running(m.e, &m.plan, description, NULL, &(export_options){.dir = out, .type = DTYPE_COUNT}, &report));
    assert_int_equal(report.type, DTYPE_BF16);
    assert_int_equal(hash_of_dir(out), hash_of_dir(hf_fixture_dir("qwen2_bf16")));
    free(description);
    hf_close(&m);
    training_dir_remove(dir);
}

/* run.export, `ralo export RUN` and `ralo export CHECKPOINT` write the same bytes, and they are the trained ones. */
static void trained_models_are_exported_from_everywhere(void **state) {
    static const precision kinds[] = {PRECISION_FP32, PRECISION_BF16, PRECISION_BF16_SR, PRECISION_FP16};
    for (size_t k = 0; k < ARRAY_LENGTH(training_presets); k++) {
        char *dir = training_dir(), setting[700], direct[600], later[600], single[700];
        snprintf(direct, sizeof direct, "%s/direct", dir);
        snprintf(later, sizeof later, "%s/later", dir);
        snprintf(single, sizeof single, "%s/single", dir);
        snprintf(setting, sizeof setting, "run.export=%s", direct);
        train_result result;
        training t = {.preset = training_presets[k], .precision = kinds[k], .dir = dir, .more = SETTINGS(setting)};
        must(training_run(&t, &result));
        export_report report;
        must(export_checkpoint(dir, &(export_options){.dir = later, .type = DTYPE_COUNT}, &report));
        assert_int_equal(report.step, 4);
        assert_int_equal(report.type, precision_compute(kinds[k]));
        assert_int_equal(hash_of_dir(direct), hash_of_dir(later));
        char checkpoint[4096];
        snprintf(checkpoint, sizeof checkpoint, "%s", report.from);
        must(export_checkpoint(checkpoint, &(export_options){.dir = single, .type = DTYPE_F32}, &report));
        if (kinds[k] != PRECISION_BF16_SR) assert_int_equal(hash_of_dir(single), result.param_hash);
        else assert_int_equal(hash_of_dir(single), hash_of_dir(direct)); /* its hash is of bf16 bytes */
        must_refuse(export_checkpoint(dir, &(export_options){.dir = later, .type = DTYPE_COUNT}, &report),
                    WORDS(later, "holds files already", "new or an empty"));
        training_dir_remove(dir);
    }
}

static void a_pretrained_model_is_trained_on(void **state) {
    char *dir = training_dir(), export_to[600], set_path[700], *half = training_dir();
    train_result first, whole, again;
    snprintf(export_to, sizeof export_to, "run.export=%s/model", dir);
    snprintf(set_path, sizeof set_path, "model.path=%s/model/", dir);
    must(training_run(&(training){.steps = 30, .more = SETTINGS(export_to, "train.lr=1e-2")}, &first));
    must(training_run(&(training){.preset = "auto", .more = SETTINGS(set_path)}, &whole));
    assert_true(whole.first_loss < first.first_loss - 0.5); /* it starts from what was learned ... */
    must(training_run(&(training){.preset = "auto", .more = SETTINGS(set_path, "model.init=random")}, &again));
    assert_true(again.first_loss > whole.first_loss + 0.5); /* ... unless told not to */
    /* Resumed, the weights are the checkpoint's: the same bits as the run that never stopped. */
    const char *const *more = SETTINGS(set_path, "train.schedule=constant");
    must(training_run(&(training){.preset = "auto", .dir = half, .steps = 2, .more = more}, &again));
    must(training_run(&(training){.preset = "auto", .dir = half, .resume = "auto", .more = more}, &again));
    must(training_run(&(training){.preset = "auto", .more = more}, &whole));
    assert_int_equal(again.param_hash, whole.param_hash);
    training_dir_remove(half);
    training_dir_remove(dir);
}

static void tokenizer_files_come_along(void **state) {
    char *dir = training_dir(), out[600], file[700];
    hf_model m;
    export_report report;
    char *description;
    must(hf_open(&m, hf_fixture_dir("qwen2_old"), PRECISION_FP32, 1, 8));
    must(weights_load_dir(m.e, &m.plan, hf_fixture_dir("qwen2_old")));
    snprintf(file, sizeof file, "%s/tokenizer.json", dir);
    json_t *anything = json_pack("{s:s}", "version", "1.0");
    must(json_write_file(file, anything));
    json_decref(anything);
    train_request r = {.plan = m.plan.request, .model_dir = hf_fixture_dir("qwen2_old"), .data = {.tokenizer = dir}};
    must(export_describe(model_of(&r.plan.source), r.model_dir, &r.data, NULL, &description));
    snprintf(out, sizeof out, "%s/out", dir);
    tokenizer_files files;
    must(tokenizer_files_read(&files, dir));
    must(export_running(m.e, &m.plan, description, &files, &(export_options){.dir = out, .type = DTYPE_F32}, &report));
    assert_int_equal(count_files(out, "tokenizer.json"), 1);
    assert_int_equal(count_files(dir, ".tmp"), 0);
    tokenizer_files_fini(&files);
    free(description);
    hf_close(&m);
    training_dir_remove(dir);
}

static void without_an_end_token_there_is_none_in_the_files(void **state) {
    char *dir = training_dir(), file[600], text[600], *description;
    dataset *d;
    snprintf(file, sizeof file, "%s/tokenizer.json", dir);
    snprintf(text, sizeof text, "%s/text.txt", dir);
    json_t *root =
        json_pack("{s:{s:s, s:{s:i, s:i}, s:[]}}", "model", "type", "BPE", "vocab", "a", 0, "b", 1, "merges");
    must(json_write_file(file, root));
    FILE *f = fopen(text, "w");
    assert_non_null(f);
    fputs("abbaabbabbaababbabab", f);
    assert_int_equal(fclose(f), 0);
    train_request r = {.data = {.source = text, .tokenizer = file, .seq_len = 4, .n_threads = 1}};
    must(dataset_open(&d, &r.data));
    must(export_describe(model_of(&r.plan.source), r.model_dir, &r.data, d, &description));
    json_decref(root);
    assert_non_null(root = json_loads(description, 0, NULL));
    const char *const parts[] = {"config", "generation"};
    for (size_t i = 0; i < ARRAY_LENGTH(parts); i++)
        assert_true(json_is_null(json_object_get(json_object_get(root, parts[i]), "eos_token_id")));
    json_decref(root);
    free(description);
    dataset_close(d);
    training_dir_remove(dir);
}

static void a_number_beyond_fp16_is_not_exported_as_infinity(void **state) {
    char *dir = training_dir(), out[600];
    hf_model m;
    export_report report;
    char *description;
    float large = 70000;
    must(hf_open(&m, hf_fixture_dir("llama_sharded"), PRECISION_FP32, 1, 8));
    must(weights_load_dir(m.e, &m.plan, hf_fixture_dir("llama_sharded")));
    exec_write(m.e, program_find(&m.plan.program, "layers.1.attn.qkv.w"), 4, &large, sizeof large);
    train_request r = {
        .plan = m.plan.request, .model_dir = hf_fixture_dir("llama_sharded"), .data = {.tokenizer = "byte"}};
    must(export_describe(model_of(&r.plan.source), r.model_dir, &r.data, NULL, &description));
    snprintf(out, sizeof out, "%s/model", dir);
    must_refuse(
        export_running(m.e, &m.plan, description, NULL, &(export_options){.dir = out, .type = DTYPE_F16}, &report),
        WORDS("model.layers.1.self_attn.q_proj.weight", "70000", "bf16"));
    assert_int_equal(count_files(dir, ""), 2); /* "." and "..": nothing half written stays */
    free(description);
    hf_close(&m);
    training_dir_remove(dir);
}

/* ---- weights that are refused ------------------------------------------------------------------------------------ */

typedef struct change {
    const char *rename, *new_name; /* a tensor under another name */
    const char *drop_like;         /* tensors whose name holds this are left out */
    const char *add;               /* a tensor of this name and of shape (3) is added */
    const char *reshape;           /* this tensor gets shape (1, n) */
    const char *retype;            /* this tensor says it is int32 */
} change;

/* A copy of a one-file fixture with something changed. */
static void write_changed(const char *dir, const char *fixture, const change *c) {
    char path[700];
    safetensors st;
    safetensors_writer w;
    json_t *config = hf_fixture_config(fixture);
    snprintf(path, sizeof path, "%s/config.json", dir);
    must(json_write_file(path, config));
    json_decref(config);
    snprintf(path, sizeof path, "%s/model.safetensors", hf_fixture_dir(fixture));
    must(safetensors_open(&st, path));
    safetensors_entry *entries = mem_alloc((st.n_tensors + 1) * sizeof *entries);
    const void **data = mem_alloc((st.n_tensors + 1) * sizeof *data);
    static const float three[3] = {1, 2, 3};
    size_t n = 0;
    for (size_t i = 0; i < st.n_tensors; i++) {
        const safetensor *t = &st.tensors[i];
        if (c->drop_like && strstr(t->name, c->drop_like)) continue;
        data[n] = t->data;
        entries[n] = (safetensors_entry){t->name, t->type, t->shape};
        if (c->reshape && strcmp(t->name, c->reshape) == 0) entries[n].shape = SHAPE(1, shape_count(&t->shape));
        if (c->retype && strcmp(t->name, c->retype) == 0) entries[n].type = DTYPE_I32;
        if (c->rename && strcmp(t->name, c->rename) == 0) entries[n].name = c->new_name;
        n++;
    }
    if (c->add) entries[n] = (safetensors_entry){c->add, DTYPE_F32, SHAPE(3)}, data[n++] = three;
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    must(safetensors_writer_open(&w, path, entries, n, NULL));
    for (size_t i = 0; i < n; i++)
        must(safetensors_writer_put(&w, i, 0, data[i], shape_bytes(&entries[i].shape, entries[i].type)));
    must(safetensors_writer_close(&w));
    free(entries);
    free(data);
    safetensors_close(&st);
}

static status load_changed(const char *fixture, const change *c) {
    char *dir = training_dir();
    hf_model m;
    write_changed(dir, fixture, c);
    must(hf_open(&m, dir, PRECISION_FP32, 1, 8));
    params_initialize(m.e, &m.plan, 1);
    uint64_t before = params_hash(m.e, &m.plan, NULL);
    status rc = weights_load_dir(m.e, &m.plan, dir);
    if (rc != OK) assert_int_equal(before, params_hash(m.e, &m.plan, NULL)); /* refused before anything was loaded */
    hf_close(&m);
    error_record why;
    error_take(&why);
    training_dir_remove(dir);
    return rc == OK ? OK : error_give(&why);
}

static void wrong_tensors_are_named(void **state) {
    must_refuse(load_changed("qwen2_old", &(change){.drop_like = "layers.1.mlp.up_proj"}),
                WORDS("model.safetensors", "model.layers.1.mlp.up_proj.weight is missing"));
    must_refuse(load_changed("qwen2_old", &(change){.add = "model.layers.2.self_attn.q_proj.weight"}),
                WORDS("model.layers.2.self_attn.q_proj.weight is not part of this model"));
    must_refuse(load_changed("qwen2_old", &(change){.reshape = "model.norm.weight"}),
                WORDS("model.norm.weight has shape (1, 16), expected (16)"));
    must_refuse(load_changed("qwen2_old", &(change){.retype = "model.norm.weight"}),
                WORDS("model.norm.weight is int32", "fp32, bf16 or fp16"));
    must_refuse(load_changed("qwen2_old", &(change){.add = "lm_head.weight"}),
                WORDS("lm_head.weight", "tie_word_embeddings"));
    must_refuse(load_changed("gpt2_tied", &(change){.reshape = "transformer.h.0.mlp.c_fc.weight"}),
                WORDS("transformer.h.0.mlp.c_fc.weight has shape (1, 1024), expected (16, 64)"));
    /* Two layers of seven weights and three biases are gone with the norms left: ten are named, the rest counted. */
    must_refuse(load_changed("qwen2_old", &(change){.drop_like = "proj"}),
                WORDS("q_proj.weight is missing", "and 10 more"));
    must(load_changed("qwen2_old", &(change){0}));
    must(load_changed("qwen2_old", &(change){.add = "model.rotary_emb.inv_freq"}));
    must(load_changed("qwen2_old", &(change){.add = "model.layers.0.self_attn.rotary_emb.inv_freq"}));
}

/* transformers ties what the file has to what it lacks. */
static void a_tied_model_may_have_its_matrix_under_the_name_of_the_head(void **state) {
    static const struct {
        const char *fixture, *embedding;
    } models[] = {{"qwen2_old", "model.embed_tokens.weight"}, {"gpt2_tied", "transformer.wte.weight"}};
    for (size_t i = 0; i < ARRAY_LENGTH(models); i++) {
        uint64_t hash[2];
        for (int k = 0; k < 2; k++) {
            char *dir = training_dir();
            hf_model m;
            write_changed(dir, models[i].fixture,
                          &(change){.rename = k ? models[i].embedding : NULL, .new_name = "lm_head.weight"});
            must(hf_open(&m, dir, PRECISION_FP32, 1, 8));
            must(weights_load_dir(m.e, &m.plan, dir));
            hash[k] = params_hash(m.e, &m.plan, NULL);
            hf_close(&m);
            training_dir_remove(dir);
        }
        assert_true(hash[0] == hash[1]);
    }
    must_refuse(load_changed("qwen2_old", &(change){.drop_like = "embed_tokens"}),
                WORDS("model.embed_tokens.weight is missing"));
}

static status load_with_index(const char *index, bool pickled) {
    char *dir = training_dir(), path[700];
    weight_files w;
    snprintf(path, sizeof path,
             index     ? "%s/model.safetensors.index.json"
             : pickled ? "%s/pytorch_model.bin"
                       : "%s/README",
             dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(index ? index : "", f);
    fclose(f);
    status rc = weight_files_open(&w, dir);
    if (rc == OK) weight_files_close(&w);
    error_record why;
    error_take(&why);
    training_dir_remove(dir);
    return rc == OK ? OK : error_give(&why);
}

static void an_index_stays_inside_its_directory(void **state) {
    static const char *const names[] = {
        "../model.safetensors", "/etc/passwd", "a/../../b.safetensors", "..", "", ".hidden"};
    for (size_t i = 0; i < ARRAY_LENGTH(names); i++) {
        char index[256];
        snprintf(index, sizeof index, "{\"weight_map\": {\"a.weight\": \"%s\"}}", names[i]);
        must_refuse(load_with_index(index, false), WORDS("weight_map", "a.weight", "plain name"));
    }
    must_refuse(load_with_index("{\"weight_map\": {\"a.weight\": 3}}", false), WORDS("a.weight", "no string"));
    must_refuse(load_with_index("{\"weight_map\": []}", false), WORDS("weight_map"));
    must_refuse(load_with_index("{}", false), WORDS("weight_map", "nothing"));
    must_refuse(load_with_index("{", false), WORDS("index.json:1"));
    must_refuse(load_with_index("{\"weight_map\": {\"a.weight\": \"gone.safetensors\"}}", false),
                WORDS("gone.safetensors"));
    must_refuse(load_with_index(NULL, true), WORDS("no model.safetensors", "pytorch_model.bin"));
    must_refuse(load_with_index(NULL, false), WORDS("no model.safetensors", "model.init=random"));
}

static void an_index_that_lies_is_refused(void **state) {
    char *dir = training_dir(), path[700];
    weight_files w;
    write_changed(dir, "qwen2_old", &(change){0});
    snprintf(path, sizeof path, "%s/one.safetensors", dir);
    char from[700];
    snprintf(from, sizeof from, "%s/model.safetensors", dir);
    assert_int_equal(rename(from, path), 0);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    json_t *index = json_pack("{s:{s:s, s:s}}", "weight_map", "model.norm.weight", "one.safetensors", "model.other",
                              "one.safetensors");
    must(json_write_file(path, index));
    json_decref(index);
    must_refuse(weight_files_open(&w, dir), WORDS("one.safetensors", "model.other", "is missing"));
    training_dir_remove(dir);
}

/* ---- settings ---------------------------------------------------------------------------------------------------- */

static status check_settings(const char *const *settings) {
    config c;
    config_init(&c);
    status rc = OK;
    for (; *settings && rc == OK; settings++) rc = config_set(&c, *settings, "test");
    if (rc == OK) rc = config_check(&c);
    config_fini(&c);
    return rc;
}

static void a_path_says_all_about_its_model(void **state) {
    must(check_settings(WORDS("model.path=m")));
    must(check_settings(WORDS("model.path=m", "model.init=random", "model.preset=auto", "model.layers=auto")));
    must_refuse(check_settings(WORDS("model.path=m", "model.preset=gpt2")),
                WORDS("model.path (m)", "model.preset (gpt2)"));
    must_refuse(check_settings(WORDS("model.init=pretrained")), WORDS("model.init", "model.path is not given"));
    static const char *const sizes[] = {"layers=2",   "hidden=2", "heads=2", "kv_heads=2",
                                        "head_dim=2", "ffn=2",    "vocab=2", "tied=false"};
    for (size_t i = 0; i < ARRAY_LENGTH(sizes); i++) {
        char setting[64];
        snprintf(setting, sizeof setting, "model.%s", sizes[i]);
        must_refuse(check_settings(WORDS("model.path=m", setting)), WORDS("m/config.json", "leave model."));
    }
}

/* ---- as a program ------------------------------------------------------------------------------------------------ */

/* Gradients of the sum of all losses, each under its Hugging Face name, rows as ralo keeps them. */
static status write_gradients(const char *dir, const char *out, const int32_t *tokens, const int32_t *targets,
                              int64_t rows, int64_t T) {
    hf_model m;
    TRY(hf_open(&m, dir, PRECISION_FP32, rows, T));
    TRY(weights_load_dir(m.e, &m.plan, dir));
    hf_backward(&m, tokens, targets);
    const net *built = &m.plan.net;
    safetensors_entry *entries = mem_alloc(3 * built->n_params * sizeof *entries);
    size_t n = 0;
    for (size_t i = 0; i < built->n_params; i++)
        for (int k = 0; k < built->params[i].n_parts; k++) {
            const param_part *part = &built->params[i].parts[k];
            shape s = program_get(&m.plan.program, built->params[i].value)->shape;
            s.dim[0] = part->n_rows;
            entries[n++] = (safetensors_entry){part->file_name, DTYPE_F32, s};
        }
    safetensors_writer w;
    TRY(safetensors_writer_open(&w, out, entries, n, NULL));
    n = 0;
    for (size_t i = 0; i < built->n_params; i++)
        for (int k = 0; k < built->params[i].n_parts; k++, n++) {
            const shape *whole = &program_get(&m.plan.program, built->params[i].value)->shape;
            size_t row_bytes = (size_t)(shape_count(whole) / whole->dim[0]) * sizeof(float);
            size_t n_bytes = (size_t)shape_count(&entries[n].shape) * sizeof(float);
            void *bytes = mem_alloc(n_bytes);
            exec_read(m.e, m.plan.step.grads[i], (size_t)built->params[i].parts[k].first_row * row_bytes, bytes,
                      n_bytes);
            TRY(safetensors_writer_put(&w, n, 0, bytes, n_bytes));
            free(bytes);
        }
    free(entries);
    hf_close(&m);
    return safetensors_writer_close(&w);
}

static status run_directory(const char *dir, const char *in, const char *out, const char *gradients) {
    safetensors st;
    hf_model m;
    TRY(safetensors_open(&st, in));
    const safetensor *tokens = safetensors_find(&st, "tokens"), *targets = safetensors_find(&st, "targets");
    if (!tokens || !targets || tokens->type != DTYPE_I32 || tokens->shape.rank != 2 ||
        !shape_equal(&tokens->shape, &targets->shape))
        return ERR(ERR_INPUT, "%s: expected tokens and targets, (rows, T) of int32", in);
    int64_t rows = tokens->shape.dim[0], T = tokens->shape.dim[1];
    TRY(hf_open(&m, dir, PRECISION_FP32, 1, T));
    TRY(weights_load_dir(m.e, &m.plan, dir));
    safetensors_entry entries[] = {{"logits", DTYPE_F32, SHAPE(rows, T, m.config.vocab)},
                                   {"losses", DTYPE_F32, SHAPE(rows, T)}};
    safetensors_writer w;
    TRY(safetensors_writer_open(&w, out, entries, ARRAY_LENGTH(entries), NULL));
    size_t row_bytes = (size_t)T * 4, logit_bytes = row_bytes * (size_t)m.config.vocab;
    int32_t *row = mem_alloc(2 * row_bytes);
    float *losses = mem_alloc(row_bytes);
    for (int64_t r = 0; r < rows; r++) {
        memcpy(row, (const char *)tokens->data + (size_t)r * row_bytes, row_bytes);
        memcpy(row + T, (const char *)targets->data + (size_t)r * row_bytes, row_bytes);
        hf_forward(&m, row, row + T);
        float *logits = hf_logits(&m);
        exec_read(m.e, m.plan.net.eval_losses, 0, losses, row_bytes);
        TRY(safetensors_writer_put(&w, 0, (uint64_t)r * logit_bytes, logits, logit_bytes));
        TRY(safetensors_writer_put(&w, 1, (uint64_t)r * row_bytes, losses, row_bytes));
        free(logits);
    }
    free(row);
    free(losses);
    hf_close(&m);
    TRY(safetensors_writer_close(&w));
    if (gradients) TRY(write_gradients(dir, gradients, tokens->data, targets->data, rows, T));
    safetensors_close(&st);
    return OK;
}

int main(int argc, char **argv) {
    if (argc == 4 || argc == 5) {
        status rc = run_directory(argv[1], argv[2], argv[3], argv[4]);
        if (rc != OK) error_print(stderr);
        return error_exit_code(rc);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_equal_transformers),
        cmocka_unit_test(masters_keep_what_the_parameters_round),
        cmocka_unit_test(loading_holds_little_beside_the_model),
        cmocka_unit_test(export_then_reload_gives_the_same_bits),
        cmocka_unit_test(sixteen_bits_survive_the_way_in_and_out),
        cmocka_unit_test(trained_models_are_exported_from_everywhere),
        cmocka_unit_test(a_pretrained_model_is_trained_on),
        cmocka_unit_test(tokenizer_files_come_along),
        cmocka_unit_test(without_an_end_token_there_is_none_in_the_files),
        cmocka_unit_test(a_number_beyond_fp16_is_not_exported_as_infinity),
        cmocka_unit_test(wrong_tensors_are_named),
        cmocka_unit_test(a_tied_model_may_have_its_matrix_under_the_name_of_the_head),
        cmocka_unit_test(an_index_stays_inside_its_directory),
        cmocka_unit_test(an_index_that_lies_is_refused),
        cmocka_unit_test(a_path_says_all_about_its_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
