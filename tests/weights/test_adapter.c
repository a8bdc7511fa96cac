/* test_adapter.c - LoRA adapters as PEFT stores them: logits as PEFT has them, unmerged and merged; written as PEFT reads them;
 * what is refused. The fixtures are made by tools/make_lora_fixtures.py. */
#include "files.h"
#include "hf.h"
#include "model/model.h"
#include "must.h"
#include "training.h"
#include "weightfile/weightfile.h"

#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const fixtures[] = {"qwen3_tied_with_head", "llama_sharded", "gpt2_tied"};

static const char *adapter_dir(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/lora/%s", TEST_FIXTURES, name);
    return path;
}

static json_t *adapter_json(const char *name) {
    char path[600];
    json_t *root;
    snprintf(path, sizeof path, "%s/adapter_config.json", adapter_dir(name));
    must(json_read_file(path, 1 << 20, &root));
    return root;
}

/* The base with the adapter's options; its parameters are still to be loaded. */
static void open_adapted(hf_model *m, const char *name, precision q, int64_t batch, int64_t seq_len) {
    model_config c;
    adapter_config a;
    must(model_config_read(&c, hf_fixture_dir(name)));
    must(adapter_config_read(&a, &c, adapter_dir(name)));
    must(hf_open_adapted(m, hf_fixture_dir(name), &a.lora, q, batch, seq_len));
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

/* The largest difference between the model's logits and PEFT's. */
static double logits_error(hf_model *m, const char *name) {
    char path[600];
    safetensors reference;
    double worst = 0;
    snprintf(path, sizeof path, "%s/reference.safetensors", adapter_dir(name));
    must(safetensors_open(&reference, path));
    const safetensor *tokens = safetensors_find(&reference, "tokens"), *logits = safetensors_find(&reference, "logits");
    assert_true(tokens && logits);
    assert_int_equal(shape_count(&tokens->shape), m->batch * m->seq_len);
    int32_t *copy = mem_alloc(tokens->n_bytes);
    float *want = mem_alloc(logits->n_bytes);
    memcpy(copy, tokens->data, tokens->n_bytes);
    memcpy(want, logits->data, logits->n_bytes);
    hf_forward(m, copy, NULL);
    float *got = hf_logits(m);
    for (int64_t k = 0; k < shape_count(&logits->shape); k++) worst = fmax(worst, fabs((double)got[k] - want[k]));
    free(got);
    free(want);
    free(copy);
    safetensors_close(&reference);
    return worst;
}

/* fp32 on both sides: sums of a few dozen products of about 1, in another order. */
static void logits_of_base_and_adapter_equal_peft(void **state) {
    for (size_t i = 0; i < ARRAY_LENGTH(fixtures); i++) {
        hf_model m;
        open_adapted(&m, fixtures[i], PRECISION_FP32, 2, 14);
        must(weights_load_dir(m.e, &m.plan, hf_fixture_dir(fixtures[i])));
        must(adapter_load_dir(m.e, &m.plan, adapter_dir(fixtures[i])));
        double worst = logits_error(&m, fixtures[i]);
        print_message("%-22s unmerged logits within %.1e\n", fixtures[i], worst);
        assert_true(worst < 1e-4);
        hf_close(&m);
    }
}

static void merged_model_has_the_logits_too(void **state) {
    for (size_t i = 0; i < ARRAY_LENGTH(fixtures); i++) {
        hf_model m;
        export_report report;
        char base[600], out[600];
        snprintf(base, sizeof base, "%s", hf_fixture_dir(fixtures[i]));
        snprintf(out, sizeof out, "%s", path_of(fixtures[i]));
        must(export_checkpoint(base,
                               &(export_options){.dir = out,
                                                 .type = DTYPE_COUNT,
                                                 .merge = true,
                                                 .adapter = adapter_dir(fixtures[i]),
                                                 .tokenizer = "none"},
                               &report));
        assert_int_equal(report.type, DTYPE_F32); /* of the base */
        must(hf_open(&m, out, PRECISION_FP32, 2, 14));
        assert_int_equal(report.n_parameters, model_param_count(&m.config));
        must(weights_load_dir(m.e, &m.plan, out));
        double worst = logits_error(&m, fixtures[i]);
        print_message("%-22s merged logits within %.1e\n", fixtures[i], worst);
        assert_true(worst < 1e-4);
        hf_close(&m);
    }
}

/* Merged in bf16: every element is W + scale B A in double, rounded once. */
static void merging_rounds_once(void **state) {
    const char *name = "llama_sharded", *module = "model.layers.1.self_attn.q_proj";
    char path[700], tensor[200];
    export_report report;
    weight_files base, merged;
    safetensors adapter;
    must(export_checkpoint(hf_fixture_dir(name),
                           &(export_options){.dir = path_of("bf16"),
                                             .type = DTYPE_BF16,
                                             .merge = true,
                                             .adapter = adapter_dir(name),
                                             .tokenizer = "none"},
                           &report));
    must(weight_files_open(&base, hf_fixture_dir(name)));
    must(weight_files_open(&merged, path_of("bf16")));
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", adapter_dir(name));
    must(safetensors_open(&adapter, path));
    snprintf(tensor, sizeof tensor, "%s.weight", module);
    const safetensor *w = NULL, *got = safetensors_find(&merged.files[0], tensor);
    for (size_t i = 0; i < base.n_files && !w; i++) w = safetensors_find(&base.files[i], tensor);
    snprintf(tensor, sizeof tensor, "base_model.model.%s.lora_A.weight", module);
    const safetensor *a = safetensors_find(&adapter, tensor);
    snprintf(tensor, sizeof tensor, "base_model.model.%s.lora_B.weight", module);
    const safetensor *b = safetensors_find(&adapter, tensor);
    assert_true(w && got && a && b);
    int64_t rows = w->shape.dim[0], columns = w->shape.dim[1], rank = a->shape.dim[0];
    double scale = 6 / sqrt(3);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++) {
            double sum = 0;
            float x;
            uint16_t bits;
            for (int64_t j = 0; j < rank; j++) {
                uint16_t p, q;
                memcpy(&p, (const uint16_t *)b->data + r * rank + j, 2);
                memcpy(&q, (const uint16_t *)a->data + j * columns + c, 2);
                sum += (double)bf16_to_f32(p) * bf16_to_f32(q);
            }
            memcpy(&x, (const float *)w->data + r * columns + c, 4);
            memcpy(&bits, (const uint16_t *)got->data + r * columns + c, 2);
            double want = x + scale * sum, unit = ldexp(1, ilogb(want) - 7);
            assert_true(fabs(bf16_to_f32(bits) - want) <= 0.5001 * unit); /* 0.5 but for the fp32 on the way */
        }
    safetensors_close(&adapter);
    weight_files_close(&base);
    weight_files_close(&merged);
}

/* ---- out --------------------------------------------------------------------------------------------------------- */

/* What PEFT reads: the keys that it computes with are those of its own file. */
static void same_meaning(const json_t *a, const json_t *b) {
    static const char *const keys[] = {"peft_type",      "task_type",     "r", "use_rslora", "lora_dropout", "bias",
                                       "fan_in_fan_out", "inference_mode"};
    for (size_t i = 0; i < ARRAY_LENGTH(keys); i++)
        if (!json_equal(json_object_get(a, keys[i]), json_object_get(b, keys[i]))) fail_msg("key %s differs", keys[i]);
    assert_true(json_number_value(json_object_get(a, "lora_alpha")) ==
                json_number_value(json_object_get(b, "lora_alpha")));
}

static void written_adapters_are_peft_s(void **state) {
    for (size_t i = 0; i < ARRAY_LENGTH(fixtures); i++) {
        char out[600], path[700], *description;
        hf_model m, again;
        export_report report;
        snprintf(out, sizeof out, "%s/written-%s", test_dir, fixtures[i]);
        open_adapted(&m, fixtures[i], PRECISION_BF16, 1, 8);
        lora_base base = {.dir = hf_fixture_dir(fixtures[i]), .type = DTYPE_BF16};
        must(weights_load_dir(m.e, &m.plan, base.dir));
        must(adapter_load_dir(m.e, &m.plan, adapter_dir(fixtures[i])));
        must(export_describe(&m.config, base.dir, &(data_options){.tokenizer = "byte"}, NULL, &description));
        must(lora_describe(&m.plan, &base, &description));
        must(export_running(m.e, &m.plan, description, NULL, &(export_options){.dir = out, .type = DTYPE_COUNT},
                            &report));
        assert_true(report.is_adapter);
        assert_int_equal(report.type, DTYPE_F32); /* the masters' */
        assert_int_equal(report.n_parameters, lora_param_count(&m.config, &m.plan.request.lora));
        assert_int_equal(files_in(out), 3); /* weights, config, README.md */
        json_t *own, *theirs = adapter_json(fixtures[i]);
        snprintf(path, sizeof path, "%s/adapter_config.json", out);
        must(json_read_file(path, 1 << 20, &own));
        same_meaning(own, theirs);
        safetensors a, b;
        snprintf(path, sizeof path, "%s/adapter_model.safetensors", out);
        must(safetensors_open(&a, path));
        snprintf(path, sizeof path, "%s/adapter_model.safetensors", adapter_dir(fixtures[i]));
        must(safetensors_open(&b, path));
        assert_int_equal(a.n_tensors, b.n_tensors);
        for (size_t k = 0; k < a.n_tensors; k++) { /* both are sorted by name */
            assert_string_equal(a.tensors[k].name, b.tensors[k].name);
            assert_true(shape_equal(&a.tensors[k].shape, &b.tensors[k].shape));
        }
        open_adapted(&again, fixtures[i], PRECISION_BF16, 1, 8); /* and back to the same bits, masters included */
        must(weights_load_dir(again.e, &again.plan, base.dir));
        must(adapter_load_dir(again.e, &again.plan, out));
        assert_int_equal(params_hash(m.e, &m.plan, NULL), params_hash(again.e, &again.plan, NULL));
        json_decref(own);
        json_decref(theirs);
        safetensors_close(&a);
        safetensors_close(&b);
        free(description);
        hf_close(&m);
        hf_close(&again);
    }
}

/* ---- names and shapes -------------------------------------------------------------------------------------------- */

typedef struct change {
    const char *prefix, *name; /* instead of base_model.model.; the adapter's name in every tensor's */
    const char *drop, *add;    /* a tensor */
    bool truncate;
    bool nan;
} change;

/* A copy of an adapter with something changed. */
static const char *write_changed(const char *fixture, const change *c) {
    static char dir[600];
    static int n_made;
    char path[700];
    safetensors st;
    safetensors_writer w;
    arena memory;
    size_t n = 0;
    snprintf(dir, sizeof dir, "%s/changed-%d", test_dir, n_made++);
    must(dir_make(dir));
    json_t *config = adapter_json(fixture);
    snprintf(path, sizeof path, "%s/adapter_config.json", dir);
    must(json_write_file(path, config));
    json_decref(config);
    arena_init(&memory);
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", adapter_dir(fixture));
    must(safetensors_open(&st, path));
    safetensors_entry *entries = mem_alloc((st.n_tensors + 1) * sizeof *entries);
    const safetensor **from = mem_alloc((st.n_tensors + 1) * sizeof *from);
    for (size_t i = 0; i < st.n_tensors; i++) {
        const char *name = st.tensors[i].name;
        if (c->drop && strcmp(name, c->drop) == 0) continue;
        if (c->prefix) name = arena_format(&memory, "%s%s", c->prefix, name + strlen("base_model.model."));
        if (c->name)
            name = arena_format(&memory, "%.*s.%s.weight", (int)(strlen(name) - strlen(".weight")), name, c->name);
        from[n] = &st.tensors[i];
        entries[n++] = (safetensors_entry){name, st.tensors[i].type, st.tensors[i].shape};
    }
    if (c->add)
        from[n] = &st.tensors[0], entries[n++] = (safetensors_entry){c->add, st.tensors[0].type, st.tensors[0].shape};
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", dir);
    must(safetensors_writer_open(&w, path, entries, n, NULL));
    for (size_t i = 0; i < n; i++) must(safetensors_writer_put(&w, i, 0, from[i]->data, from[i]->n_bytes));
    if (c->nan) must(safetensors_writer_put(&w, 0, 0, &(float){NAN}, sizeof(float)));
    must(safetensors_writer_close(&w));
    if (c->truncate) {
        struct stat s;
        assert_int_equal(stat(path, &s), 0);
        assert_int_equal(truncate(path, s.st_size - 10), 0);
    }
    free(entries);
    free(from);
    safetensors_close(&st);
    arena_fini(&memory);
    return dir;
}

static status load_over(const char *fixture, const char *dir, uint64_t *hash) {
    hf_model m;
    open_adapted(&m, fixture, PRECISION_FP32, 1, 8);
    params_initialize(m.e, &m.plan, 1);
    uint64_t before = params_hash(m.e, &m.plan, NULL);
    status rc = adapter_load_dir(m.e, &m.plan, dir);
    *hash = params_hash(m.e, &m.plan, NULL);
    if (rc != OK) assert_int_equal(before, *hash); /* refused before anything was loaded */
    hf_close(&m);
    return rc;
}

static void names_may_have_a_prefix_and_the_adapter_s_name(void **state) {
    uint64_t want, got;
    must(load_over("gpt2_tied", adapter_dir("gpt2_tied"), &want));
    const change all[] = {{.prefix = ""}, {.name = "default"}, {.prefix = "", .name = "my.name"}};
    for (size_t i = 0; i < ARRAY_LENGTH(all); i++) {
        must(load_over("gpt2_tied", write_changed("gpt2_tied", &all[i]), &got));
        assert_int_equal(want, got);
    }
    must(load_over("gpt2_tied", write_changed("gpt2_tied", &(change){.nan = true}), &got)); /* as weights may have it */
    assert_int_not_equal(want, got);
}

static void wrong_adapters_are_refused_by_name(void **state) {
    uint64_t hash;
    const char *first = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight";
    must_refuse(load_over("llama_sharded", write_changed("llama_sharded", &(change){.drop = first}), &hash),
                WORDS("model.layers.0.self_attn.q_proj.lora_B.weight is missing", "tests/fixtures/hf/llama_sharded"));
    must_refuse(load_over("llama_sharded", write_changed("llama_sharded", &(change){.add = "x.lora_A.weight"}), &hash),
                WORDS("x.lora_A.weight is not part of this adapter"));
    must_refuse(load_over("llama_sharded", write_changed("llama_sharded", &(change){.truncate = true}), &hash),
                WORDS("adapter_model.safetensors"));
    must_refuse(
        load_over("llama_sharded",
                  write_changed("llama_sharded", &(change){.add = "model.layers.0.self_attn.q_proj.lora_B.weight"}),
                  &hash),
        WORDS("are the same tensor"));
    /* Two models with the same modules and other sizes. */
    hf_model m;
    model_config c;
    adapter_config a;
    must(model_config_read(&c, hf_fixture_dir("qwen2_old")));
    must(adapter_config_read(&a, &c, adapter_dir("qwen3_tied_with_head")));
    must(hf_open_adapted(&m, hf_fixture_dir("qwen2_old"), &a.lora, PRECISION_FP32, 1, 8));
    must_refuse(adapter_load_dir(m.e, &m.plan, adapter_dir("qwen3_tied_with_head")),
                WORDS("adapter of another model", "tests/fixtures/hf/qwen3_tied_with_head", "has shape"));
    hf_close(&m);
    must(model_config_read(&c, hf_fixture_dir("qwen2_old")));
    must_refuse(adapter_config_read(&a, &c, adapter_dir("gpt2_tied")),
                WORDS("target_modules", "c_attn", "no linear layer", "self_attn.q_proj"));
}

/* ---- the config -------------------------------------------------------------------------------------------------- */

static status config_with(const char *change, adapter_config *out) {
    model_config c;
    json_t *root = adapter_json("llama_sharded"), *more = json_loads(change, 0, NULL);
    assert_non_null(more);
    json_object_update(root, more);
    must(model_config_read(&c, hf_fixture_dir("llama_sharded")));
    status rc = adapter_config_from_json(out, &c, root, "adapter_config.json");
    json_decref(root);
    json_decref(more);
    return rc;
}

static void what_is_not_computed_is_refused_by_key(void **state) {
    adapter_config a;
    static const struct {
        const char *change, *key, *says;
    } refused[] = {
        {"{\"peft_type\": \"IA3\"}", "peft_type", "IA3"},
        {"{\"bias\": \"all\"}", "bias", "none"},
        {"{\"task_type\": \"SEQ_CLS\"}", "task_type", "CAUSAL_LM"},
        {"{\"modules_to_save\": [\"lm_head\"]}", "modules_to_save", "lm_head"},
        {"{\"rank_pattern\": {\"q_proj\": 4}}", "rank_pattern", "empty"},
        {"{\"alpha_pattern\": {\"q_proj\": 4}}", "alpha_pattern", "empty"},
        {"{\"use_dora\": true}", "use_dora", "true"},
        {"{\"layers_to_transform\": [0]}", "layers_to_transform", "[0]"},
        {"{\"layer_replication\": [[0, 1]]}", "layer_replication", "empty"},
        {"{\"trainable_token_indices\": [1]}", "trainable_token_indices", "[1]"},
        {"{\"target_parameters\": [\"x\"]}", "target_parameters", "empty"},
        {"{\"exclude_modules\": [\"q_proj\"]}", "exclude_modules", "empty"},
        {"{\"lora_bias\": true}", "lora_bias", "true"},
        {"{\"init_lora_weights\": \"pissa\"}", "init_lora_weights", "base model"},
        {"{\"target_modules\": \".*proj\"}", "target_modules", "regular expression"},
        {"{\"target_modules\": []}", "target_modules", "all-linear"},
        {"{\"target_modules\": [\"lm_head\"]}", "target_modules", "lm_head"},
        {"{\"target_modules\": null}", "target_modules", "null"},
        {"{\"target_modules\": [\"model.layers.0.self_attn.q_proj\"]}", "target_modules", "layer 1"},
        {"{\"target_modules\": [\"model.layers.9.self_attn.q_proj\"]}", "target_modules", "layers.9"},
        {"{\"r\": 0}", "'r'", "1 to 512"},
        {"{\"r\": \"8\"}", "'r'", "integer"},
        {"{\"lora_alpha\": -1}", "lora_alpha", "above 0"},
        {"{\"lora_dropout\": 1}", "lora_dropout", "up to 1"},
        {"{\"use_rslora\": 3}", "use_rslora", "true or false"},
        {"{\"something_new\": {\"x\": 1}}", "something_new", "does not compute"},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(refused); i++)
        must_refuse(config_with(refused[i].change, &a), WORDS("adapter_config.json", refused[i].key, refused[i].says));
    must(config_with("{\"something_new\": null, \"other\": false, \"third\": {}, \"init_lora_weights\": \"gaussian\", "
                     "\"qalora_group_size\": 16, \"peft_version\": \"9.9\"}",
                     &a));
    assert_int_equal(a.lora.rank, 3);
    assert_true(a.lora.alpha == 6 && a.lora.rslora);
    assert_string_equal(a.base, "tests/fixtures/hf/llama_sharded");
    must(config_with("{\"target_modules\": \"all-linear\"}", &a));
    assert_int_equal(a.lora.modules, (1u << LORA_MODULE_COUNT) - 1);
}

/* Every set of modules of every family comes back from the names that stand for it. */
static void targets_read_back(void **state) {
    for (size_t i = 0; i < ARRAY_LENGTH(fixtures); i++) {
        model_config c;
        must(model_config_read(&c, hf_fixture_dir(fixtures[i])));
        uint32_t all, got;
        must(lora_modules_parse(&c, "all-linear", "test", &all));
        for (uint32_t set = 1; set < 1u << LORA_MODULE_COUNT; set++) {
            const char *names[LORA_MODULE_COUNT];
            strbuf text;
            if (set & ~all) continue;
            strbuf_init(&text);
            size_t n = lora_targets(&c, set, names);
            for (size_t k = 0; k < n; k++) strbuf_printf(&text, "%s%s", k ? "," : "", names[k]);
            must(lora_modules_parse(&c, text.text, "test", &got));
            assert_int_equal(got, set);
            strbuf_fini(&text);
        }
    }
}

/* ---- sources ----------------------------------------------------------------------------------------------------- */

static void adapters_by_name_are_listed(void **state) {
    char parent[200], path[300], file[400];
    model_source s;
    snprintf(parent, sizeof parent, "%s/many", test_dir);
    for (int i = 0; i < 2; i++) {
        json_t *config = adapter_json("qwen3_tied_with_head");
        json_object_set_new(config, "base_model_name_or_path", json_string("hub/qwen3"));
        snprintf(path, sizeof path, "%s/%s", parent, i ? "poems" : "code");
        must(dir_make(path));
        snprintf(file, sizeof file, "%s/adapter_config.json", path);
        must(json_write_file(file, config));
        json_decref(config);
    }
    char base[600];
    snprintf(base, sizeof base, "%s", hf_fixture_dir("qwen3_tied_with_head"));
    must_refuse(model_source_open(&s, base, parent, "byte"), WORDS("2 adapters", "code", "poems", "NAME"));
    must_refuse(model_source_open(&s, base, path_of("nothing"), "byte"), WORDS("adapter_config.json", "checkpoint"));
    snprintf(path, sizeof path, "%s/code", parent);
    must(model_source_open(&s, base, path, "byte"));
    assert_int_equal(s.lora.rank, 4);
    model_source_close(&s);
    /* An adapter as the model: its base is named, and here or not. */
    must_refuse(model_source_open(&s, path, NULL, "byte"), WORDS("is an adapter", "--adapter", "hub/qwen3"));
    json_t *config = adapter_json("qwen3_tied_with_head");
    json_object_set_new(config, "base_model_name_or_path", json_string(base));
    snprintf(file, sizeof file, "%s/adapter_config.json", path);
    must(json_write_file(file, config));
    json_decref(config);
    must(model_source_open(&s, path, NULL, "byte"));
    assert_int_equal(s.lora.rank, 4);
    assert_string_equal(s.base.dir, base);
    assert_string_equal(s.config.name, "code");
    model_source_close(&s);
    must_refuse(model_source_open(&s, path, path, "byte"), WORDS("is an adapter itself"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_of_base_and_adapter_equal_peft),
        cmocka_unit_test(merged_model_has_the_logits_too),
        cmocka_unit_test(merging_rounds_once),
        cmocka_unit_test(written_adapters_are_peft_s),
        cmocka_unit_test(names_may_have_a_prefix_and_the_adapter_s_name),
        cmocka_unit_test(wrong_adapters_are_refused_by_name),
        cmocka_unit_test(what_is_not_computed_is_refused_by_key),
        cmocka_unit_test(targets_read_back),
        cmocka_unit_test(adapters_by_name_are_listed),
    };
    return cmocka_run_group_tests(tests, test_dir_open, test_dir_close);
}
