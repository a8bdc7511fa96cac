/* tokenizer_variants.c - see the header; tools/make_tokenizer_fixtures.py made the fixture. */
#include "tokenizer_variants.h"

#include <stdlib.h>

#include <setjmp.h>
#include <cmocka.h>

json_t *fixture;

bool tokenizer_cases_open(void) {
    json_error_t error;
    fixture = json_load_file(TEST_FIXTURES "/tokenizer_cases.json", JSON_ALLOW_NUL, &error);
    if (!fixture) fprintf(stderr, "%s: %s\n", TEST_FIXTURES "/tokenizer_cases.json", error.text);
    return fixture;
}

static json_t *legacy_merges(const json_t *merges) {
    json_t *out = json_array();
    for (size_t i = 0; i < json_array_size(merges); i++) {
        const json_t *m = json_array_get(merges, i);
        json_array_append_new(out, json_sprintf("%s %s", json_string_value(json_array_get(m, 0)),
                                                json_string_value(json_array_get(m, 1))));
    }
    return out;
}

json_t *compose(const json_t *variant) {
    json_t *root = json_deep_copy(json_object_get(variant, "patch"));
    const char *base = json_string_value(json_object_get(variant, "base"));
    json_t *model = json_deep_copy(json_object_get(json_object_get(fixture, "bases"), base));
    json_t *patch = json_object_get(variant, "model");
    json_object_update(model, patch);
    if (json_object_del(model, "legacy") == 0)
        json_object_set_new(model, "merges", legacy_merges(json_object_get(model, "merges")));
    json_object_set_new(root, "version", json_string("1.0"));
    json_object_set_new(root, "model", model);
    return root;
}

void write_json(const char *path, const json_t *root) {
    char *text = json_dumps(root, 0);
    assert_non_null(text);
    write_bytes(path, text, strlen(text));
    free(text);
}

const json_t *variant_named(const char *name) {
    const json_t *all = json_object_get(fixture, "variants");
    for (size_t i = 0; i < json_array_size(all); i++) {
        const json_t *v = json_array_get(all, i);
        if (strcmp(json_string_value(json_object_get(v, "name")), name) == 0) return v;
    }
    fail_msg("no variant %s", name);
    return NULL;
}

tokenizer *open_variant(const json_t *variant) {
    json_t *root = compose(variant);
    tokenizer *t;
    write_json(path_of("variant.json"), root);
    json_decref(root);
    if (tokenizer_open(&t, path_of("variant.json")) != OK) fail_msg("%s", error_message());
    return t;
}
