/* record_refuse.c - what is said of a record that cannot be read: the keys that it has, and the setting or the command that helps. */
#include "data/record_parts.h"

/* 'input', 'output' */
static void list_keys(const json_t *object, strbuf *out) {
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)object, key, v) {
        if (out->length > 200) break;
        strbuf_printf(out, "%s'%.50s'", out->length ? ", " : "", key);
    }
    if (out->length == 0) strbuf_add(out, "no key");
}

/* A setting names a key that the record does not have: on the first line that is a slip in the setting, not in the data. */
status record_need_column(const json_t *object, const char *setting, const char *key, place at) {
    if (json_object_get(object, key)) return OK;
    strbuf keys;
    strbuf_init(&keys);
    list_keys(object, &keys);
    status rc = ERR(ERR_INPUT, "%s: the record at %s:%llu has no key '%.100s'; it has %s%s", setting, at.path, at.line,
                    key, keys.text, at.line > 1 ? SKIP_HINT : "");
    strbuf_fini(&keys);
    return rc;
}

/* The chosen answer can be trained on, if its keys are given. */
status record_refuse_preference(const json_t *root, place at) {
    const json_t *prompt = json_object_get(root, "prompt"), *chosen = json_object_get(root, "chosen");
    const char *advice = json_is_array(chosen)
                             ? "write each whole conversation as messages (jq -c '{messages: .chosen}' IN >OUT)"
                             : "write it as text (jq -c '{text: .chosen}' IN >OUT)";
    if (prompt && json_is_array(prompt) == json_is_array(chosen))
        advice = "set data.prompt_column=prompt and data.response_column=chosen";
    return ERR(
        ERR_INPUT,
        "%s:%llu: found a preference (chosen and rejected), expected one answer; train.task=preference learns from "
        "both; to learn what was chosen alone, %s" SKIP_HINT,
        at.path, at.line, advice);
}

status record_unknown_shape(const json_t *root, place at, const char *expected) {
    strbuf keys;
    strbuf_init(&keys);
    list_keys(root, &keys);
    status rc = ERR(ERR_INPUT, "%s:%llu: found %s%s, expected %s" SKIP_HINT, at.path, at.line,
                    json_object_size(root) ? "the keys " : "", keys.text, expected);
    strbuf_fini(&keys);
    return rc;
}

/* The first two keys with texts, as settings; without two, only the names of the settings. */
static void advise_columns(const json_t *root, const record_options *o, strbuf *out) {
    const char *key, *found[2];
    json_t *v;
    size_t n = 0;
    json_object_foreach((json_t *)(uintptr_t)root, key, v) if (n < ARRAY_LENGTH(found) && json_is_string(v))
        found[n++] = key;
    if (n > 0 && o->may_lack_response) strbuf_printf(out, "name yours with data.prompt_column=%.50s", found[0]);
    else if (n == ARRAY_LENGTH(found))
        strbuf_printf(out, "name yours with data.prompt_column=%.50s and data.response_column=%.50s", found[0],
                      found[1]);
    else strbuf_add(out, "data.prompt_column and data.response_column name others");
}

/* The first line tells how all are written: leaving it out would leave out every record. */
status record_refuse_shape(const json_t *root, const record_options *o, place at) {
    strbuf keys, advice;
    strbuf_init(&keys);
    strbuf_init(&advice);
    list_keys(root, &keys);
    advise_columns(root, o, &advice);
    data_format f = data_format_of(at.path, o->format);
    bool is_table = f == FORMAT_CSV || f == FORMAT_TSV;
    status rc =
        ERR(ERR_INPUT,
            "%s:%llu: found the keys %s, expected text, prompt and completion, question and answer, instruction "
            "and output, messages, or conversations; %s%s%s",
            at.path, at.line, keys.text, advice.text, is_table ? " (the first row of a table names its columns)" : "",
            at.line > 1 + (unsigned)is_table ? SKIP_HINT : "");
    strbuf_fini(&advice);
    strbuf_fini(&keys);
    return rc;
}

/* Data sets are often one list, on one line or over many. */
status record_refuse_list(const char *text, size_t n_bytes, place at) {
    size_t i = 0;
    while (i < n_bytes && (text[i] == ' ' || text[i] == '\t' || text[i] == '\r')) i++;
    if (i == n_bytes || text[i] != '[') return OK;
    return ERR(
        ERR_INPUT,
        "%s:%llu: found a line that begins with '[', expected one JSON object on each line (jq -c '.[]' LIST.json "
        ">LINES.jsonl makes lines of a list of records)" SKIP_HINT,
        at.path, at.line);
}

/* A comma after the object, or a second one: what stands there is shown. */
status record_refuse_rest(const char *text, size_t n_bytes, place at) {
    json_error_t error;
    json_t *first = json_loadb(text, n_bytes, JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, &error);
    if (!first) return OK;
    json_decref(first);
    size_t i = (size_t)MAX(error.position, 0);
    while (i < n_bytes && strchr(" \t\r", text[i]) && text[i]) i++;
    if (i >= n_bytes) return OK;
    return ERR(ERR_INPUT,
               "%s:%llu: found text after the object: '%.*s', expected one JSON object on each line" SKIP_HINT, at.path,
               at.line, (int)MIN(n_bytes - i, (size_t)20), text + i);
}
