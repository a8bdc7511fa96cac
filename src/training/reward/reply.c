/* reply.c - see reply.h. */
#include "reward/reply.h"

#include <math.h>
#include <string.h>

static void show(const char *text, size_t n_bytes, char *out, size_t room) {
    size_t taken, n = text_escape(text, n_bytes, false, out, room - 1, &taken);
    out[n] = 0;
    for (size_t i = 0; i < n; i++)
        if (out[i] == '\n' || out[i] == '\t') out[i] = ' ';
}

/* As Python, C and JavaScript print them; no JSON, but an answer. */
static bool is_not_finite(const char *text, size_t n) {
    static const char *const words[] = {"nan", "inf", "infinity"};
    if (n > 0 && (*text == '-' || *text == '+')) text++, n--;
    for (size_t i = 0; i < ARRAY_LENGTH(words); i++) {
        size_t k = 0;
        while (k < n && words[i][k] && (text[k] | 0x20) == words[i][k]) k++;
        if (k == n && !words[i][k]) return true;
    }
    return false;
}

static reply reply_of(const json_t *v) {
    if (json_is_object(v)) {
        v = json_object_get(v, "score");
        if (!v) return (reply){.kind = REPLY_VALUE, .found = "an object without score"};
    }
    if (json_is_null(v)) return (reply){.kind = REPLY_NULL};
    reply r = {.kind = REPLY_NUMBER, .score = json_number_value(v)};
    if (json_is_number(v) && isfinite(r.score)) return r;
    r = (reply){.kind = REPLY_VALUE};
    if (json_is_string(v)) show(json_string_value(v), json_string_length(v), r.found, sizeof r.found);
    else
        snprintf(r.found, sizeof r.found, "%s",
                 json_is_array(v)    ? "a list"
                 : json_is_object(v) ? "an object"
                 : json_is_true(v)   ? "true"
                                     : "false");
    return r;
}

enum { JSON_FLAGS = JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL };

reply reply_parse(const char *text, size_t n_bytes) {
    while (n_bytes && strchr(" \t\r\n", *text) && *text) text++, n_bytes--;
    while (n_bytes && strchr(" \t\r\n", text[n_bytes - 1]) && text[n_bytes - 1]) n_bytes--;
    json_error_t error;
    json_t *v = n_bytes ? json_loadb(text, n_bytes, JSON_FLAGS, &error) : NULL;
    reply r = {.kind = REPLY_NOISE};
    if (v) {
        r = reply_of(v);
        json_decref(v);
        return r;
    }
    bool huge = n_bytes && json_error_code(&error) == json_error_numeric_overflow;
    if (huge || is_not_finite(text, n_bytes)) r.kind = REPLY_VALUE;
    if (n_bytes) show(text, n_bytes, r.found, sizeof r.found);
    else snprintf(r.found, sizeof r.found, "an empty line");
    return r;
}

/* Is this the end of a JSON value or the beginning of one? */
static bool is_edge(char c) { return !c || strchr(" \t\r\n,:[]{}", c); }

/* As Python writes lists, with NaN and Infinity between the numbers, which JSON lacks: those become texts, which are no scores. */
static json_t *load_loosely(const char *text, size_t n_bytes) {
    json_error_t error;
    json_t *root = json_loadb(text, n_bytes, JSON_FLAGS, &error);
    strbuf b;
    bool quoted = false;
    if (root) return root;
    strbuf_init(&b);
    for (size_t i = 0, k; i < n_bytes; i = k) {
        bool begins = !quoted && !is_edge(text[i]) && (i == 0 || is_edge(text[i - 1]));
        k = i + 1;
        while (begins && k < n_bytes && !is_edge(text[k])) k++;
        bool replaced = begins && is_not_finite(text + i, k - i);
        if (!replaced) k = i + 1;
        if (quoted && text[i] == '\\' && k < n_bytes) k++;
        else if (text[i] == '"') quoted = !quoted;
        if (replaced) strbuf_add(&b, "\"");
        strbuf_add_bytes(&b, text + i, k - i);
        if (replaced) strbuf_add(&b, "\"");
    }
    root = json_loadb(b.text ? b.text : "", b.length, JSON_FLAGS, &error);
    strbuf_fini(&b);
    return root;
}

bool replies_parse(const char *text, size_t n_bytes, size_t n, reply *out, char found[128]) {
    json_t *root = load_loosely(text, n_bytes);
    const json_t *scores = json_object_get(root, "scores");
    bool fits = json_is_array(scores) && json_array_size(scores) == n;
    for (size_t i = 0; fits && i < n; i++) out[i] = reply_of(json_array_get(scores, i));
    char shown[64];
    show(text, n_bytes, shown, sizeof shown);
    if (!fits && json_is_array(scores)) snprintf(found, 128, "%zu scores, expected %zu", json_array_size(scores), n);
    else if (!fits) snprintf(found, 128, "'%s', expected {\"scores\": [...]}", shown);
    json_decref(root);
    return fits;
}
