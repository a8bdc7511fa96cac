/* json_keys.c - json_keys.def as a table, and how an object is compared with it. */
#include "cli/json_keys.h"

#include <string.h>

#define JSON_OBJECT(kind, what) {kind, NULL, NULL, what},
#define JSON_KEY(key, type, help) {NULL, key, type, help},
static const json_key rows[] = {
#include "cli/json_keys.def"
};
#undef JSON_OBJECT
#undef JSON_KEY

const json_key *json_key_at(size_t i) { return i < ARRAY_LENGTH(rows) ? &rows[i] : NULL; }

/* The row that opens a kind; NULL: there is none. */
static const json_key *kind_find(const char *kind) {
    for (size_t i = 0; i < ARRAY_LENGTH(rows); i++)
        if (rows[i].kind && strcmp(rows[i].kind, kind) == 0) return &rows[i];
    return NULL;
}

static const json_key *key_find(const json_key *kind, const char *key) {
    const json_key *any = NULL;
    for (const json_key *row = kind + 1; row < rows + ARRAY_LENGTH(rows) && row->key; row++) {
        if (strcmp(row->key, key) == 0) return row;
        if (strcmp(row->key, "*") == 0) any = row;
    }
    return any;
}

static bool value_check(const json_t *value, const char *type, strbuf *wrong) {
    char inner[64];
    size_t n = strlen(type);
    if (type[n - 1] == '?') {
        snprintf(inner, sizeof inner, "%.*s", (int)n - 1, type);
        return json_is_null(value) || value_check(value, inner, wrong);
    }
    if (type[0] == '[') {
        snprintf(inner, sizeof inner, "%.*s", (int)n - 2, type + 1);
        for (size_t i = 0; i < json_array_size(value); i++)
            if (!value_check(json_array_get(value, i), inner, wrong)) return false;
        return json_is_array(value);
    }
    if (strcmp(type, "text") == 0) return json_is_string(value) || json_is_null(value);
    if (strcmp(type, "whole") == 0) return json_is_integer(value);
    if (strcmp(type, "real") == 0) return json_is_number(value) || json_is_null(value);
    if (strcmp(type, "flag") == 0) return json_is_boolean(value);
    return json_keys_check(value, type, wrong);
}

bool json_keys_check(const json_t *object, const char *kind, strbuf *wrong) {
    const json_key *opened = kind_find(kind);
    const char *key;
    json_t *value;
    if (!opened || !json_is_object(object)) {
        strbuf_printf(wrong, "the object '%s'", kind);
        return false;
    }
    json_object_foreach((json_t *)object, key, value) {
        const json_key *row = key_find(opened, key);
        if (row && value_check(value, row->type, wrong)) continue;
        if (!wrong->length) strbuf_printf(wrong, "key '%.100s' of '%s'", key, kind);
        return false;
    }
    return true;
}
