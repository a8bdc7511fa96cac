/* test_hf_config.c - a config.json: what is not computed is refused by name, what changes nothing is taken, and what is not said
 * is what transformers takes. The fixtures are made by tools/make_hf_fixtures.py. */
#include "hf.h"
#include "model/model.h"
#include "must.h"

/* ---- config.json that is refused --------------------------------------------------------------------------------- */

typedef struct bad_config {
    const char *fixture;
    const char *patch; /* members that replace those of the fixture */
    const char *remove;
    const char *words[4];
} bad_config;

static const bad_config bad_configs[] = {
    {"llama_old_fp16",
     "{\"model_type\": \"mixtral\"}",
     NULL,
     {"'model_type'", "mixtral", "mixture of experts is not supported yet"}},
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
     "{\"rope_scaling\": {\"type\": \"longrope\", \"factor\": 4}}",
     NULL,
     {"'rope_scaling.short_factor'", "nothing", "a list of"}},
    {"llama_old_fp16", "{\"rope_scaling\": {\"type\": \"yarn\"}}", NULL, {"'rope_scaling.factor'", "nothing"}},
    {"llama_old_fp16",
     "{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, \"beta_fast\": -1}}",
     NULL,
     {"'rope_scaling.beta_fast'", "-1"}},
    {"llama_old_fp16",
     "{\"model_type\": \"phi3\", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4}}",
     NULL,
     {"'rope_scaling.short_factor'", "nothing"}},
    {"llama_old_fp16",
     "{\"model_type\": \"phi3\", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}}",
     NULL,
     {"'rope_scaling.type'", "linear", "this family"}},
    {"llama_old_fp16",
     "{\"model_type\": \"phi3\", \"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1, 2, 3], "
     "\"long_factor\": [1, 2]}}",
     NULL,
     {"'rope_scaling.short_factor'", "[1,2,3]", "a list of 2"}},
    {"llama_old_fp16",
     "{\"model_type\": \"phi3\", \"rope_scaling\": {\"type\": \"su\", \"short_factor\": [1, 2], \"long_factor\": [1, "
     "-2]}}",
     NULL,
     {"'rope_scaling.long_factor'", "-2", "above 0"}},
    {"llama_old_fp16",
     "{\"model_type\": \"phi3\", \"original_max_position_embeddings\": 1, \"rope_scaling\": {\"type\": \"longrope\", "
     "\"short_factor\": [1, 2], \"long_factor\": [1, 2]}}",
     NULL,
     {"'original_max_position_embeddings'", "at least 2"}},
    {"llama_old_fp16",
     "{\"model_type\": \"phi3\", \"rope_scaling\": null, \"partial_rotary_factor\": 0.9}",
     NULL,
     {"'partial_rotary_factor'", "0.9", "a multiple of 2"}},
    {"llama_old_fp16",
     "{\"model_type\": \"phi3\", \"rope_scaling\": null, \"partial_rotary_factor\": 1.5}",
     NULL,
     {"'partial_rotary_factor'", "1.5", "at most 1"}},
    {"llama_old_fp16", "{\"final_logit_softcapping\": 30}", NULL, {"'final_logit_softcapping'", "found 30"}},
    {"llama_old_fp16",
     "{\"model_type\": \"gemma2\", \"hidden_activation\": \"silu\"}",
     NULL,
     {"'hidden_activation'", "silu", "gelu_pytorch_tanh"}},
    {"llama_old_fp16",
     "{\"model_type\": \"gemma2\", \"attn_logit_softcapping\": -1}",
     NULL,
     {"'attn_logit_softcapping'", "-1"}},
    {"llama_old_fp16",
     "{\"model_type\": \"gemma3_text\", \"attn_logit_softcapping\": 50}",
     NULL,
     {"'attn_logit_softcapping'", "found 50"}},
    {"llama_old_fp16", "{\"model_type\": \"gemma3\"}", NULL, {"'model_type'", "gemma3", "gemma3_text"}},
    {"llama_old_fp16", "{\"rope_scaling\": {\"rope_type\": \"dynamic\"}}", NULL, {"'rope_scaling.factor'", "nothing"}},
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
     {"'rope_parameters.short_factor'", "nothing"}},
    {"llama_sharded",
     "{\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"default\"}}}",
     NULL,
     {"'rope_parameters.full_attention'", "all layers"}},
    {"llama_sharded", "{\"partial_rotary_factor\": 0.5}", NULL, {"'partial_rotary_factor'", "0.5", "expected 1"}},
    {"llama_sharded", "{\"quantization_config\": {\"bits\": 4}}", NULL, {"'quantization_config'", "bits"}},
    {"llama_sharded", "{\"num_local_experts\": 8}", NULL, {"'num_local_experts'", "found 8", "experts"}},
    {"qwen2_old", "{\"use_sliding_window\": true, \"sliding_window\": 0}", NULL, {"'sliding_window'", "found 0"}},
    {"qwen2_old",
     "{\"use_sliding_window\": true, \"sliding_window\": 64, \"max_window_layers\": -1}",
     NULL,
     {"'max_window_layers'", "found -1"}},
    {"qwen2_old", "{}", "num_key_value_heads", {"'num_key_value_heads'", "nothing"}},
    {"qwen2_old", "{\"is_causal\": false}", NULL, {"'is_causal'", "found false"}},
    {"gpt2_tied", "{\"is_causal\": false}", NULL, {"'is_causal'", "found false"}},
    {"qwen3_bf16_sharded",
     "{\"layer_types\": [\"full_attention\", \"sliding_attention\"]}",
     NULL,
     {"'layer_types'", "sliding_attention", "no window"}},
    {"qwen3_bf16_sharded", "{\"layer_types\": [\"full_attention\", \"chunked\"]}", NULL, {"'layer_types'", "chunked"}},
    {"qwen3_bf16_sharded", "{\"layer_types\": [\"full_attention\"]}", NULL, {"'layer_types'", "a word per layer"}},
    {"qwen3_bf16_sharded", "{\"layer_types\": 3}", NULL, {"'layer_types'", "a list"}},
    {"qwen3_bf16_sharded", "{\"attention_bias\": true}", NULL, {"'attention_bias'"}},
    {"gpt2_tied", "{\"activation_function\": \"gelu\"}", NULL, {"'activation_function'", "\"gelu\"", "gelu_new"}},
    {"gpt2_tied", "{\"scale_attn_weights\": false}", NULL, {"'scale_attn_weights'", "found false"}},
    {"gpt2_tied", "{\"scale_attn_by_inverse_layer_idx\": true}", NULL, {"'scale_attn_by_inverse_layer_idx'"}},
    {"gpt2_tied", "{\"add_cross_attention\": true}", NULL, {"'add_cross_attention'"}},
    {"gpt2_tied", "{\"n_head\": 5}", NULL, {"'n_head'", "divisor of n_embd"}},
    {"gpt2_tied", "{\"n_inner\": 0}", NULL, {"'n_inner'", "found 0"}},
};

static void what_is_not_computed_is_refused_by_name(void **state) {
    for (size_t i = 0; i < ARRAY_LENGTH(bad_configs); i++) {
        const bad_config *b = &bad_configs[i];
        json_t *root = hf_fixture_config(b->fixture), *patch = json_loads(b->patch, 0, NULL);
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
        json_t *root = hf_fixture_config(good[i].fixture), *patch = json_loads(good[i].patch, 0, NULL);
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
    json_t *root = hf_fixture_config("llama_sharded"),
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
    root = hf_fixture_config("gpt2_tied");
    json_object_set_new(root, "num_attention_heads", json_integer(1));
    must(model_config_from_json(&c, root, "m", "config.json"));
    assert_int_equal(c.n_heads, 1);
    json_decref(root);
}

/* Longrope of Phi-3: original positions beside the rotary parameters, 4096 where there are none, whatever those say. What a
 * file does not say of the attention factor follows from the positions, and is not written either: transformers 4 takes a
 * rope_scaling of three keys. */
static void longrope_is_written_as_it_was_read(void **state) {
    static const struct {
        const char *more;
        int64_t original;
        double amplitude;
        size_t n_keys;
    } all[] = {
        {"{}", 4096, 1, 3},
        {"{\"original_max_position_embeddings\": 16}", 16, 1.224744871391589, 3}, /* sqrt(1 + ln 4 / ln 16) */
        {"{\"original_max_position_embeddings\": 16, \"partial_rotary_factor\": 0.5, \"rope_scaling\": {\"type\": "
         "\"su\", \"short_factor\": [1.1], \"long_factor\": [2.3], \"attention_factor\": 1.5}}",
         16, 1.5, 4}};
    for (size_t i = 0; i < ARRAY_LENGTH(all); i++) {
        json_t *root = hf_fixture_config("llama_old_fp16"),
               *patch = json_loads(
                   "{\"model_type\": \"phi3\", \"max_position_embeddings\": 64, \"rope_scaling\": {\"type\": "
                   "\"longrope\", \"short_factor\": [1, 1.0800000429153442], \"long_factor\": [1.7, 3]}}",
                   0, NULL),
               *more = json_loads(all[i].more, 0, NULL);
        model_config c, again;
        json_object_update(root, patch), json_object_update(root, more);
        must(model_config_from_json(&c, root, "m", "config.json"));
        assert_int_equal(c.rope.type, ROPE_LONG);
        assert_int_equal(c.rope.original_max_positions, all[i].original);
        assert_true(fabs(c.rope.attention_factor - all[i].amplitude) < 1e-15);
        assert_int_equal(c.long_rope.n, model_rotary_dim(&c) / 2);
        json_t *written = model_config_to_json(&c), *scaling = json_object_get(written, "rope_scaling");
        assert_int_equal(json_object_size(scaling), all[i].n_keys);
        must(model_config_from_json(&again, written, "m", "config.json"));
        hf_same_config(&c, &again);
        json_object_del(written, "rope_scaling"); /* transformers 5 has the other one alone */
        must(model_config_from_json(&again, written, "m", "config.json"));
        hf_same_config(&c, &again);
        json_decref(written);
        json_decref(more);
        json_decref(patch);
        json_decref(root);
    }
}

/* Which layers have a window, from every spelling; and config.json says the same of what was read. */
static void windows_are_those_of_each_layer(void **state) {
    static const struct {
        const char *fixture, *patch;
        int64_t want[6];
    } all[] = {
        {"llama_sharded", "{\"model_type\": \"mistral\"}", {4096, 4096, 4096, 4096, 4096, 4096}},
        {"llama_sharded", "{\"model_type\": \"mistral\", \"sliding_window\": null}", {0}},
        {"llama_sharded", "{\"model_type\": \"mistral\", \"sliding_window\": 9}", {9, 9, 9, 9, 9, 9}},
        {"qwen2_old",
         "{\"use_sliding_window\": true, \"sliding_window\": 64, \"max_window_layers\": 4}",
         {0, 0, 0, 0, 64, 64}},
        {"qwen2_old", "{\"use_sliding_window\": true, \"max_window_layers\": 0}", {4096, 4096, 4096, 4096, 4096, 4096}},
        {"qwen3_bf16_sharded",
         "{\"use_sliding_window\": true, \"sliding_window\": 5, \"layer_types\": [\"sliding_attention\","
         "\"sliding_attention\", \"full_attention\", \"sliding_attention\", \"sliding_attention\", "
         "\"full_attention\"]}",
         {5, 5, 0, 5, 5, 0}},
        {"qwen3_bf16_sharded",
         "{\"use_sliding_window\": true, \"sliding_window\": 5, \"layer_types\": [\"full_attention\","
         "\"full_attention\", \"full_attention\", \"sliding_attention\", \"sliding_attention\", "
         "\"sliding_attention\"]}",
         {0, 0, 0, 5, 5, 5}},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(all); i++) {
        json_t *root = hf_fixture_config(all[i].fixture), *patch = json_loads(all[i].patch, 0, NULL);
        model_config c, again;
        json_object_del(root, "layer_types"), json_object_del(root, "sliding_window");
        json_object_set_new(root, "num_hidden_layers", json_integer(6));
        json_object_update(root, patch);
        must(model_config_from_json(&c, root, "m", "config.json"));
        for (int l = 0; l < 6; l++) assert_int_equal(model_layer_window(&c, l), all[i].want[l]);
        json_t *written = model_config_to_json(&c);
        must(model_config_from_json(&again, written, "m", "config.json"));
        hf_same_config(&c, &again);
        json_decref(written);
        json_decref(patch);
        json_decref(root);
    }
    json_t *root = hf_fixture_config("qwen3_bf16_sharded"),
           *patch = json_loads(
               "{\"num_hidden_layers\": 4, \"use_sliding_window\": true, \"sliding_window\": 5, \"layer_types\": ["
               "\"sliding_attention\", \"full_attention\", \"full_attention\", \"sliding_attention\"]}",
               0, NULL);
    model_config c;
    json_object_update(root, patch);
    must_refuse(model_config_from_json(&c, root, "m", "config.json"), WORDS("'layer_types'", "every n-th layer"));
    json_decref(patch);
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
        json_t *root = hf_fixture_config(want[i].fixture);
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

/* Old configs write torch_dtype, new ones dtype; one that says neither counts as 32 bits, as transformers loads it. */
static void a_config_says_whether_its_model_was_published_in_16_bits(void **state) {
    static const struct {
        const char *fixture, *patch;
        bool is_16_bit;
    } cases[] = {{"qwen2_bf16", "{}", true},
                 {"llama_old_fp16", "{}", true},
                 {"qwen2_old", "{}", false},
                 {"qwen2_old", "{\"torch_dtype\": \"bfloat16\"}", true},
                 {"qwen2_bf16", "{\"dtype\": null}", false},
                 {"qwen2_bf16", "{\"dtype\": \"float32\"}", false},
                 {"qwen2_bf16", "{\"dtype\": [16]}", false}};
    (void)state;
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        json_t *root = hf_fixture_config(cases[i].fixture), *patch = json_loads(cases[i].patch, 0, NULL);
        json_object_update(root, patch);
        model_config c;
        must(model_config_from_json(&c, root, "m", "config.json"));
        if (c.is_16_bit != cases[i].is_16_bit) fail_msg("%s with %s", cases[i].fixture, cases[i].patch);
        json_decref(patch);
        json_decref(root);
    }
    assert_true(model_preset_find("llama3-8b")->is_16_bit);
    assert_true(model_preset_find("qwen3-8b")->is_16_bit);
    assert_false(model_preset_find("gpt2")->is_16_bit);
    assert_false(model_preset_find("arithmetic-tiny")->is_16_bit);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_not_computed_is_refused_by_name),
        cmocka_unit_test(what_changes_nothing_is_taken),
        cmocka_unit_test(of_two_values_it_is_the_one_that_transformers_takes),
        cmocka_unit_test(longrope_is_written_as_it_was_read),
        cmocka_unit_test(windows_are_those_of_each_layer),
        cmocka_unit_test(defaults_are_those_of_transformers),
        cmocka_unit_test(a_config_says_whether_its_model_was_published_in_16_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
