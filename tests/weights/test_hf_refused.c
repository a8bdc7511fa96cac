/* test_hf_refused.c - Hugging Face directories that are refused by name: a config.json, weights, an index, settings; and what
 * changes nothing is taken. The fixtures are made by tools/make_hf_fixtures.py. */
#include "hf.h"
#include "must.h"
#include "training.h"

#include <stdlib.h>

/* ---- config.json that is refused --------------------------------------------------------------------------------- */

typedef struct bad_config {
    const char *fixture;
    const char *patch; /* members that replace those of the fixture */
    const char *remove;
    const char *words[4];
} bad_config;

static const bad_config bad_configs[] = {
    {"llama_old_fp16", "{\"model_type\": \"mixtral\"}", NULL, {"'model_type'", "mixtral", "\"qwen3\""}},
    {"llama_old_fp16", "{\"model_type\": 7}", NULL, {"'model_type'", "found 7"}},
    {"llama_old_fp16", "{}", "model_type", {"'model_type'", "found nothing"}},
    {"llama_old_fp16", "{\"hidden_size\": -16}", NULL, {"'hidden_size'", "-16", "whole number from 1"}},
    {"llama_old_fp16", "{\"hidden_size\": \"16\"}", NULL, {"'hidden_size'", "\"16\""}},
    {"llama_old_fp16", "{\"hidden_size\": 16.5}", NULL, {"'hidden_size'", "16.5"}},
    {"llama_old_fp16", "{}", "hidden_size", {"'hidden_size'", "nothing"}},
    {"llama_old_fp16",
     "{\"num_hidden_layers\": 9223372036854775807}",
     NULL,
     {"'num_hidden_layers'", "9223372036854775807"}},
    {"llama_old_fp16", "{\"num_hidden_layers\": 0}", NULL, {"'num_hidden_layers'", "found 0"}},
    {"llama_old_fp16", "{\"vocab_size\": []}", NULL, {"'vocab_size'", "[]"}},
    {"llama_old_fp16", "{\"vocab_size\": 99999999999}", NULL, {"'vocab_size'", "99999999999"}},
    {"llama_old_fp16", "{\"num_key_value_heads\": 3}", NULL, {"'num_key_value_heads'", "found 3", "divisor"}},
    {"llama_old_fp16", "{\"num_attention_heads\": 6}", NULL, {"'num_attention_heads'", "divisor of hidden_size"}},
    {"llama_old_fp16", "{\"head_dim\": 5}", NULL, {"head_dim", "5", "even"}},
    {"llama_old_fp16", "{\"rms_norm_eps\": 0}", NULL, {"'rms_norm_eps'", "above 0"}},
    {"llama_old_fp16", "{\"rms_norm_eps\": \"small\"}", NULL, {"'rms_norm_eps'", "small"}},
    {"llama_old_fp16", "{\"tie_word_embeddings\": 1}", NULL, {"'tie_word_embeddings'", "true or false"}},
    {"llama_old_fp16", "{\"hidden_act\": \"relu\"}", NULL, {"'hidden_act'", "relu", "silu"}},
    {"llama_old_fp16", "{\"attention_bias\": true}", NULL, {"'attention_bias'", "found true", "false"}},
    {"llama_old_fp16", "{\"mlp_bias\": true}", NULL, {"'mlp_bias'", "found true"}},
    {"llama_old_fp16", "{\"rope_theta\": -1}", NULL, {"'rope_theta'", "-1"}},
    {"llama_old_fp16",
     "{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4}}",
     NULL,
     {"'rope_scaling.type'", "yarn", "llama3"}},
    {"llama_old_fp16",
     "{\"rope_scaling\": {\"rope_type\": \"dynamic\", \"factor\": 4}}",
     NULL,
     {"'rope_scaling.rope_type'", "dynamic"}},
    {"llama_old_fp16", "{\"rope_scaling\": {\"type\": \"linear\"}}", NULL, {"'rope_scaling.factor'", "nothing"}},
    {"llama_old_fp16",
     "{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 0}}",
     NULL,
     {"'rope_scaling.factor'", "above 0"}},
    {"llama_old_fp16", "{\"rope_scaling\": \"linear\"}", NULL, {"'rope_scaling'", "an object or null"}},
    {"llama_old_fp16",
     "{\"rope_scaling\": {\"type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, \"high_freq_factor\": 1}}",
     NULL,
     {"'rope_scaling.high_freq_factor'", "above 4"}},
    {"llama_sharded",
     "{\"rope_parameters\": {\"rope_type\": \"longrope\"}}",
     NULL,
     {"'rope_parameters.rope_type'", "longrope"}},
    {"llama_sharded",
     "{\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"default\"}}}",
     NULL,
     {"'rope_parameters.full_attention'", "all layers"}},
    {"llama_sharded", "{\"partial_rotary_factor\": 0.5}", NULL, {"'partial_rotary_factor'", "0.5", "expected 1"}},
    {"llama_sharded", "{\"quantization_config\": {\"bits\": 4}}", NULL, {"'quantization_config'", "bits"}},
    {"llama_sharded", "{\"num_local_experts\": 8}", NULL, {"'num_local_experts'", "found 8", "experts"}},
    {"qwen2_old",
     "{\"use_sliding_window\": true, \"sliding_window\": 64, \"max_window_layers\": 1}",
     NULL,
     {"'use_sliding_window'", "sliding windows"}},
    {"qwen2_old",
     "{\"use_sliding_window\": true, \"sliding_window\": 64, \"max_window_layers\": 0}",
     NULL,
     {"'use_sliding_window'", "sliding windows"}},
    {"qwen2_old",
     "{\"use_sliding_window\": true, \"max_window_layers\": 1}", /* absent, the window is 4096 tokens wide */
     "sliding_window",
     {"'use_sliding_window'", "sliding windows"}},
    {"qwen2_old", "{}", "num_key_value_heads", {"'num_key_value_heads'", "nothing"}},
    {"qwen2_old", "{\"is_causal\": false}", NULL, {"'is_causal'", "found false"}},
    {"gpt2_tied", "{\"is_causal\": false}", NULL, {"'is_causal'", "found false"}},
    {"qwen3_bf16_sharded",
     "{\"layer_types\": [\"full_attention\", \"sliding_attention\"]}",
     NULL,
     {"'layer_types'", "sliding_attention"}},
    {"qwen3_bf16_sharded", "{\"layer_types\": 3}", NULL, {"'layer_types'", "a list"}},
    {"qwen3_bf16_sharded", "{\"attention_bias\": true}", NULL, {"'attention_bias'"}},
    {"gpt2_tied", "{\"activation_function\": \"gelu\"}", NULL, {"'activation_function'", "\"gelu\"", "gelu_new"}},
    {"gpt2_tied", "{\"scale_attn_weights\": false}", NULL, {"'scale_attn_weights'", "found false"}},
    {"gpt2_tied", "{\"scale_attn_by_inverse_layer_idx\": true}", NULL, {"'scale_attn_by_inverse_layer_idx'"}},
    {"gpt2_tied", "{\"add_cross_attention\": true}", NULL, {"'add_cross_attention'"}},
    {"gpt2_tied", "{\"n_head\": 5}", NULL, {"'n_head'", "divisor of n_embd"}},
    {"gpt2_tied", "{\"n_inner\": 0}", NULL, {"'n_inner'", "found 0"}},
};

static json_t *fixture_config(const char *name) {
    json_t *root;
    char path[600];
    snprintf(path, sizeof path, "%s/config.json", hf_fixture_dir(name));
    must(json_read_file(path, 1 << 20, &root));
    return root;
}

static void what_is_not_computed_is_refused_by_name(void **state) {
    for (size_t i = 0; i < ARRAY_LENGTH(bad_configs); i++) {
        const bad_config *b = &bad_configs[i];
        json_t *root = fixture_config(b->fixture), *patch = json_loads(b->patch, 0, NULL);
        model_config c;
        assert_non_null(patch);
        must(model_config_from_json(&c, root, "m", "dir/config.json"));
        json_object_update(root, patch);
        if (b->remove) json_object_del(root, b->remove);
        status rc = model_config_from_json(&c, root, "m", "dir/config.json");
        if (rc == OK) fail_msg("taken: %s %s", b->fixture, b->patch);
        assert_int_equal(rc, ERR_INPUT);
        must_refuse(rc, b->words);
        json_decref(patch);
        json_decref(root);
    }
    json_t *list = json_array();
    model_config c;
    must_refuse(model_config_from_json(&c, list, "m", "dir/config.json"), WORDS("dir/config.json", "no object"));
    json_decref(list);
}

static void what_changes_nothing_is_taken(void **state) {
    static const struct {
        const char *fixture, *patch;
    } good[] = {
        {"gpt2_tied", "{\"reorder_and_upcast_attn\": true, \"attn_pdrop\": 0.1, \"n_inner\": null}"},
        {"llama_old_fp16", "{\"pretraining_tp\": 2, \"num_experts\": null, \"quantization_config\": null}"},
        {"llama_old_fp16", "{\"sliding_window\": 4096}"}, /* Llama has no such thing, whatever the file says */
        {"qwen2_old", "{\"use_sliding_window\": true, \"sliding_window\": 64, \"max_window_layers\": 2}"},
        {"qwen2_old", "{\"use_sliding_window\": false, \"sliding_window\": 64}"},
        {"qwen2_old", "{\"use_sliding_window\": true, \"sliding_window\": null, \"max_window_layers\": 0}"},
        {"qwen2_old", "{\"original_max_position_embeddings\": 8}"}, /* only rope types that stretch ask for it */
        {"qwen3_bf16_sharded", "{\"layer_types\": [\"full_attention\", \"full_attention\"]}"},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(good); i++) {
        json_t *root = fixture_config(good[i].fixture), *patch = json_loads(good[i].patch, 0, NULL);
        model_config before, after;
        must(model_config_from_json(&before, root, "m", "config.json"));
        json_object_update(root, patch);
        must(model_config_from_json(&after, root, "m", "config.json"));
        hf_same_config(&before, &after);
        json_decref(patch);
        json_decref(root);
    }
}

/* As in transformers 5: what stands beside the rotary parameters wins over what stands in them, GPT-2's long names over its
 * short ones. */
static void of_two_values_it_is_the_one_that_transformers_takes(void **state) {
    json_t *root = fixture_config("llama_sharded"),
           *patch = json_loads("{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1,"
                               "\"high_freq_factor\": 4}, \"original_max_position_embeddings\": 16}",
                               0, NULL);
    model_config c;
    json_object_update(root, patch);
    must(model_config_from_json(&c, root, "m", "config.json"));
    assert_int_equal(c.rope.original_max_positions, 16);
    json_object_set_new(json_object_get(root, "rope_scaling"), "original_max_position_embeddings", json_integer(32));
    must(model_config_from_json(&c, root, "m", "config.json"));
    assert_int_equal(c.rope.original_max_positions, 16);
    json_object_del(root, "original_max_position_embeddings");
    must(model_config_from_json(&c, root, "m", "config.json"));
    assert_int_equal(c.rope.original_max_positions, 32);
    json_decref(patch);
    json_decref(root);
    root = fixture_config("gpt2_tied");
    json_object_set_new(root, "num_attention_heads", json_integer(1));
    must(model_config_from_json(&c, root, "m", "config.json"));
    assert_int_equal(c.n_heads, 1);
    json_decref(root);
}

/* What is absent is what transformers 5 would put there. */
static void defaults_are_those_of_transformers(void **state) {
    static const char *const optional[] = {"tie_word_embeddings", "rms_norm_eps", "layer_norm_epsilon", "head_dim",
                                           "rope_theta",          "rope_scaling", "rope_parameters",    "hidden_act"};
    static const struct {
        const char *fixture;
        bool tied;
        double eps;
        int64_t head_dim;
    } want[] = {{"gpt2_untied", true, 1e-5, 6},
                {"llama_sharded", false, 1e-6, 4},
                {"qwen2_old", false, 1e-6, 4},
                {"qwen3_tied_with_head", false, 1e-6, 128}};
    for (size_t i = 0; i < ARRAY_LENGTH(want); i++) {
        json_t *root = fixture_config(want[i].fixture);
        for (size_t k = 0; k < ARRAY_LENGTH(optional); k++) json_object_del(root, optional[k]);
        model_config c;
        must(model_config_from_json(&c, root, "m", "config.json"));
        assert_int_equal(c.tied, want[i].tied);
        assert_true(c.norm_eps == want[i].eps);
        assert_int_equal(c.head_dim, want[i].head_dim);
        if (c.family != FAMILY_GPT2) assert_true(c.rope.theta == 10000 && c.rope.type == ROPE_DEFAULT);
        json_decref(root);
    }
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
    json_t *config = fixture_config(fixture);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_not_computed_is_refused_by_name),
        cmocka_unit_test(what_changes_nothing_is_taken),
        cmocka_unit_test(of_two_values_it_is_the_one_that_transformers_takes),
        cmocka_unit_test(defaults_are_those_of_transformers),
        cmocka_unit_test(wrong_tensors_are_named),
        cmocka_unit_test(a_tied_model_may_have_its_matrix_under_the_name_of_the_head),
        cmocka_unit_test(an_index_stays_inside_its_directory),
        cmocka_unit_test(an_index_that_lies_is_refused),
        cmocka_unit_test(a_path_says_all_about_its_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
