/* json.c - JSON files in through jansson, out whole or not at all.
 *
 * jansson is strict (UTF-8, one root, integers of 64 bits, no NaN) and stops at 2048 levels of nesting; duplicate keys
 * are refused here because two readers of such a file may believe different things. */
#include "format/format.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading ------------------------------------------------------------------------------------------------- */

bool format_is_lfs_pointer(const void *bytes, size_t n_bytes) {
    static const char first[] = "version https://git-lfs.github.com/spec/";
    return n_bytes >= sizeof first - 1 && memcmp(bytes, first, sizeof first - 1) == 0;
}

status json_read_file(const char *path, size_t max_bytes, json_t **out) {
    char *text;
    size_t n_bytes;
    json_error_t error;
    *out = NULL;
    TRY(file_read_all(path, max_bytes, &text, &n_bytes));
    json_t *root = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &error);
    bool pointer = format_is_lfs_pointer(text, n_bytes);
    free(text);
    if (pointer)
        return ERR(ERR_INPUT, "%s: found a Git LFS pointer, expected JSON; fetch the file itself: git lfs pull", path);
    if (!root)
        return ERR(ERR_INPUT, "%s:%d:%d: %s (expected one JSON object or array, in UTF-8, without duplicate keys)",
                   path, MAX(error.line, 1), MAX(error.column, 1), error.text);
    *out = root;
    return OK;
}

static const char *kind_of(const json_t *v) {
    static const char *const kinds[] = {
        [JSON_OBJECT] = "an object",   [JSON_ARRAY] = "an array",     [JSON_STRING] = "a string",
        [JSON_INTEGER] = "an integer", [JSON_REAL] = "a real number", [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",        [JSON_NULL] = "null"};
    return v ? kinds[json_typeof(v)] : "nothing";
}

static status member(const json_t *object, const char *key, const char *where, const char *expected,
                     const json_t **out) {
    if (!json_is_object(object))
        return ERR(ERR_INPUT, "%s: found %s where an object with the key '%s' was expected", where, kind_of(object),
                   key);
    *out = json_object_get(object, key);
    if (!*out) return ERR(ERR_INPUT, "%s: the key '%s' is missing, expected %s", where, key, expected);
    return OK;
}

status json_get_int(const json_t *object, const char *key, int64_t min, int64_t max, const char *where, int64_t *out) {
    const json_t *v;
    TRY(member(object, key, where, "an integer", &v));
    if (!json_is_integer(v))
        return ERR(ERR_INPUT, "%s: key '%s': found %s, expected an integer", where, key, kind_of(v));
    int64_t n = json_integer_value(v);
    if (n < min || n > max)
        return ERR(ERR_INPUT, "%s: key '%s': found %lld, expected an integer from %lld to %lld", where, key,
                   (long long)n, (long long)min, (long long)max);
    *out = n;
    return OK;
}

status json_get_real(const json_t *object, const char *key, const char *where, double *out) {
    const json_t *v;
    TRY(member(object, key, where, "a number", &v));
    if (!json_is_number(v)) return ERR(ERR_INPUT, "%s: key '%s': found %s, expected a number", where, key, kind_of(v));
    *out = json_number_value(v);
    return OK;
}

status json_get_string(const json_t *object, const char *key, const char *where, const char **out) {
    const json_t *v;
    TRY(member(object, key, where, "a string", &v));
    if (!json_is_string(v)) return ERR(ERR_INPUT, "%s: key '%s': found %s, expected a string", where, key, kind_of(v));
    *out = json_string_value(v);
    return OK;
}

json_t *json_real_or_null(double x) { return isfinite(x) ? json_real(x) : json_null(); }

json_t *json_text(const char *text, size_t n_bytes) {
    strbuf b;
    strbuf_init(&b);
    strbuf_add(&b, "");
    for (size_t at = 0; at < n_bytes;) {
        utf8_scan s = utf8_check(text + at, n_bytes - at);
        strbuf_add_bytes(&b, text + at, s.n_valid);
        if (s.n_bad) strbuf_add(&b, "\xef\xbf\xbd");
        at += s.n_valid + s.n_bad;
    }
    json_t *out = json_stringn(b.text, b.length);
    strbuf_fini(&b);
    return out ? out : json_null();
}

/* ---- writing ------------------------------------------------------------------------------------------------- */

status json_write_file(const char *path, const json_t *root) {
    strbuf text;
    char *dumped = json_dumps(root, JSON_INDENT(2)); /* reals with 17 digits: they read back to the same bits */
    if (!dumped)
        return ERR(ERR_INPUT, "write %s: this is not a JSON document (%s is not a root, or a string is not UTF-8)",
                   path, kind_of(root));
    strbuf_init(&text);
    strbuf_printf(&text, "%s\n", dumped);
    free(dumped);
    status rc = file_write_whole(path, text.text, text.length);
    strbuf_fini(&text);
    return rc;
}

bool json_has_number(const json_t *v) {
    size_t i;
    const char *key;
    json_t *part, *own = (json_t *)(uintptr_t)v;
    if (json_is_number(v)) return true;
    json_array_foreach(own, i, part) if (json_has_number(part)) return true;
    json_object_foreach(own, key, part) if (json_has_number(part)) return true;
    return false;
}
