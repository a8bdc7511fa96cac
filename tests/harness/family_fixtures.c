/* family_fixtures.c - see family_fixtures.h. */
#include "family_fixtures.h"
#include "model/model.h"
#include "weightfile/weightfile.h"

#include "must.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static int64_t json_int(const json_t *o, const char *key) { return json_integer_value(json_object_get(o, key)); }
static double json_num(const json_t *o, const char *key) { return json_number_value(json_object_get(o, key)); }

model_config family_config(const safetensors *file, const char *name) {
    json_t *c = json_loads(json_string_value(json_object_get(file->metadata, "config")), 0, NULL);
    assert_non_null(c);
    if (json_object_get(c, "hf")) {
        model_config read;
        must(model_config_from_json(&read, json_object_get(c, "hf"), name, name));
        json_decref(c);
        return read;
    }
    model_config m = {.name = name,
                      .vocab = json_int(c, "vocab"),
                      .hidden = json_int(c, "hidden"),
                      .n_layers = json_int(c, "layers"),
                      .n_heads = json_int(c, "heads"),
                      .n_kv_heads = json_int(c, "kv_heads"),
                      .head_dim = json_int(c, "head_dim"),
                      .ffn = json_int(c, "ffn"),
                      .max_positions = json_int(c, "max_positions"),
                      .norm_eps = json_num(c, "norm_eps"),
                      .tied = json_is_true(json_object_get(c, "tied"))};
    const char *family = json_string_value(json_object_get(c, "family"));
    m.family = FAMILY_COUNT;
    for (model_family i = 0; i < FAMILY_COUNT; i++)
        if (strcmp(model_family_traits(i)->name, family) == 0) m.family = i;
    assert_true(m.family < FAMILY_COUNT);
    m.rope.theta = json_num(c, "rope_theta");
    const json_t *s = json_object_get(c, "rope_scaling");
    const char *rope = json_string_value(json_object_get(s, "type"));
    if (rope && strcmp(rope, "default") != 0) {
        assert_string_equal(rope, "llama3");
        m.rope = (rope_options){.type = ROPE_LLAMA3,
                                .theta = m.rope.theta,
                                .factor = json_num(s, "factor"),
                                .low_freq_factor = json_num(s, "low_freq_factor"),
                                .high_freq_factor = json_num(s, "high_freq_factor"),
                                .original_max_positions = json_int(s, "original_max_positions")};
    }
    json_decref(c);
    return m;
}
