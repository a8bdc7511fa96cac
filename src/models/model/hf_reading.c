/* hf_reading.c - see hf_reading.h. */
#include "model/hf_reading.h"

#include <math.h>
#include <stdlib.h>

status hf_refuse(const char *path, const char *key, const json_t *found, const char *expected) {
    char *text = found ? json_dumps(found, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    status rc = ERR(ERR_INPUT, "%s: key '%s': found %.120s, expected %s", path, key,
                    !found ? "nothing"
                    : text ? text
                           : "something that is no JSON",
                    expected);
    free(text);
    return rc;
}

const json_t *hf_get(const json_t *object, const char *key) {
    const json_t *v = json_object_get(object, key);
    return json_is_null(v) ? NULL : v;
}

const json_t *hf_get_any(const json_t *object, const char *const *names, const char **name) {
    for (;; names++) {
        *name = *names;
        const json_t *v = hf_get(object, *names);
        if (v || !names[1]) return v;
    }
}

status hf_read_size(const hf_reading *r, const char *const *names, int64_t max, int64_t *out) {
    const char *name;
    const json_t *v = hf_get_any(r->root, names, &name);
    char expected[96];
    snprintf(expected, sizeof expected, "a whole number from 1 to %lld", (long long)max);
    if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > max)
        return hf_refuse(r->path, v ? name : names[0], v, expected);
    *out = json_integer_value(v);
    return OK;
}

status hf_read_size_or(const hf_reading *r, const char *key, int64_t max, int64_t otherwise, int64_t *out) {
    if (hf_get(r->root, key)) return hf_read_size(r, NAMES(key), max, out);
    *out = otherwise;
    return OK;
}

status hf_read_bool(const hf_reading *r, const char *key, bool otherwise, bool *out) {
    const json_t *v = hf_get(r->root, key);
    if (v && !json_is_boolean(v)) return hf_refuse(r->path, key, v, "true or false");
    *out = v ? json_is_true(v) : otherwise;
    return OK;
}

status hf_read_real(const hf_reading *r, const json_t *object, const char *where, const char *key, double above,
                    double otherwise, double *out) {
    const json_t *v = hf_get(object, key);
    char full[96], expected[64];
    snprintf(full, sizeof full, "%s%s", where, key);
    snprintf(expected, sizeof expected, "a finite number above %g", above);
    *out = otherwise;
    if (!v && !isnan(otherwise)) return OK;
    if (!json_is_number(v)) return hf_refuse(r->path, full, v, expected);
    *out = json_number_value(v);
    if (!isfinite(*out) || *out <= above) return hf_refuse(r->path, full, v, expected);
    return OK;
}

status hf_demand_bool(const hf_reading *r, const char *key, bool wanted, const char *why) {
    bool found = wanted;
    TRY(hf_read_bool(r, key, wanted, &found));
    if (found != wanted) return hf_refuse(r->path, key, json_object_get(r->root, key), why);
    return OK;
}

status hf_demand_word(const hf_reading *r, const char *key, const char *const *words, const char *expected) {
    const json_t *v = hf_get(r->root, key);
    if (!v) return OK;
    for (; *words; words++)
        if (json_is_string(v) && strcmp(json_string_value(v), *words) == 0) return OK;
    return hf_refuse(r->path, key, v, expected);
}

status hf_demand_absent(const hf_reading *r, const char *key, const char *why) {
    const json_t *v = hf_get(r->root, key);
    bool none = !v || json_is_false(v) || (json_is_integer(v) && json_integer_value(v) == 0) ||
                (json_is_array(v) && json_array_size(v) == 0) || (json_is_object(v) && json_object_size(v) == 0);
    return none ? OK : hf_refuse(r->path, key, v, why);
}
