/* export_align.c - make the files of an export name the end token and the chat template that were trained.
 *
 * A model's files may name another end token than the tokenizer, and a base model trained with a built-in chat format
 * has neither its template nor its end token in any file: then nothing stops what the export generates. The description
 * of a run says which tokens its data trained as ends (dataset_ending). A list of the model's files stays as it is if
 * it names them all; else it becomes them. tokenizer_config.json follows where a list changed, the run was given
 * data.eos_token, or a built-in format was trained, unless the tokenizer's own template writes eos_token. The template
 * of a built-in format replaces the tokenizer's own. tokenizer_config.json is edited as text: it holds numbers that are
 * no integers of 64 bits. */
#include "weights/export_job.h"

#include <stdlib.h>

/* ---- token ids --------------------------------------------------------------------------------------------------- */

static const json_t *ending_of(const json_t *description) { return json_object_get(description, "end"); }
static const json_t *ids_of(const json_t *description) { return json_object_get(ending_of(description), "ids"); }

static bool names(const json_t *value, json_int_t id) {
    size_t i;
    const json_t *v;
    if (json_is_integer(value)) return json_integer_value(value) == id;
    json_array_foreach((json_t *)(uintptr_t)value, i,
                       v) if (json_is_integer(v) && json_integer_value(v) == id) return true;
    return false;
}

static bool names_all(const json_t *value, const json_t *ids) {
    size_t i;
    const json_t *id;
    json_array_foreach((json_t *)(uintptr_t)ids, i, id) if (!names(value, json_integer_value(id))) return false;
    return true;
}

static json_t *ends_as_value(const json_t *ids) {
    return json_array_size(ids) == 1 ? json_incref(json_array_get(ids, 0)) : json_copy((json_t *)(uintptr_t)ids);
}

static const json_t *eos_of(const json_t *description, const char *part) {
    return json_object_get(json_object_get(description, part), "eos_token_id");
}

bool export_eos_changes(const json_t *description) {
    return !names_all(eos_of(description, "generation"), ids_of(description));
}

json_t *export_aligned(const json_t *description, const char *part) {
    const json_t *given = json_object_get(description, part), *ids = ids_of(description);
    if (!json_is_object(given)) return NULL;
    json_t *out = json_copy((json_t *)(uintptr_t)given); /* shallow: only its own members change */
    if (names_all(json_object_get(given, "eos_token_id"), ids)) return out;
    const json_t *generation = eos_of(description, "generation"); /* if right, config.json takes its whole list */
    if (!export_eos_changes(description)) json_object_set(out, "eos_token_id", (json_t *)(uintptr_t)generation);
    else json_object_set_new(out, "eos_token_id", ends_as_value(ids));
    return out;
}

/* ---- the tokenizer's files ----------------------------------------------------------------------------------------- */

static size_t skip_space(const char *text, size_t at) { return at + strspn(text + at, " \t\r\n"); }

static size_t skip_string(const char *text, size_t at) {
    for (at++; text[at] && text[at] != '"'; at++)
        if (text[at] == '\\' && text[at + 1]) at++;
    return text[at] ? at + 1 : at;
}

/* Behind the value at `at` of valid JSON. */
static size_t skip_value(const char *text, size_t at) {
    int depth = 0;
    do {
        if (text[at] == '"') {
            at = skip_string(text, at);
            continue;
        }
        if (depth == 0 && !strchr("{[", text[at])) return at + strcspn(text + at, ",]} \t\r\n");
        depth += text[at] == '{' || text[at] == '[';
        depth -= text[at] == '}' || text[at] == ']';
        at++;
    } while (depth > 0 && text[at]);
    return at;
}

/* Sets a key of the object in `text`, which is valid JSON. */
static void set_key(strbuf *text, const char *key, const char *value) {
    strbuf out;
    const char *t = text->text;
    size_t open = skip_space(t, 0) + 1, at = skip_space(t, open), n = strlen(key), begin = open, end = open;
    while (t[at] == '"') {
        size_t name = at + 1, behind = skip_string(t, at);
        at = skip_space(t, skip_space(t, behind) + 1);
        size_t stop = skip_value(t, at);
        if (behind - name == n + 1 && memcmp(t + name, key, n) == 0) begin = at, end = stop;
        at = skip_space(t, stop);
        if (t[at] == ',') at = skip_space(t, at + 1);
    }
    strbuf_init(&out);
    strbuf_add_bytes(&out, t, begin);
    if (begin == open) strbuf_printf(&out, "\n  \"%s\": ", key);
    strbuf_add(&out, value);
    if (begin == open && t[skip_space(t, open)] != '}') strbuf_add(&out, ",");
    strbuf_add(&out, t + end);
    strbuf_fini(text);
    *text = out;
}

static void set_text(strbuf *text, const char *key, const char *value) {
    json_t *v = json_string(value);
    char *quoted = json_dumps(v, JSON_ENCODE_ANY);
    set_key(text, key, quoted);
    free(quoted);
    json_decref(v);
}

/* An object, as text and parsed; NULL: it is none, and is left alone. */
static json_t *read_object(const tokenizer_copy *file) {
    json_t *root = json_loadb(file->bytes, file->n_bytes, JSON_DECODE_INT_AS_REAL, NULL);
    if (json_is_object(root) && !memchr(file->bytes, 0, file->n_bytes)) return root;
    json_decref(root);
    return NULL;
}

static const char *token_of(const json_t *config, const char *key) {
    const json_t *v = json_object_get(config, key);
    return json_string_value(json_is_object(v) ? json_object_get(v, "content") : v);
}

/* What tokenizer_config.json must name; NULL: what it names already. */
static const char *trained_eos(const json_t *description) {
    const json_t *end = ending_of(description);
    bool follows = export_eos_changes(description) || json_is_true(json_object_get(end, "is_given")) ||
                   json_object_get(end, "template");
    if (!follows || json_is_true(json_object_get(end, "keeps_eos"))) return NULL;
    const char *text = json_string_value(json_array_get(json_object_get(end, "texts"), 0));
    return text && *text ? text : NULL;
}

static const char *trained_template(const json_t *description) {
    return json_string_value(json_object_get(ending_of(description), "template"));
}

static void align_file(const json_t *description, const tokenizer_copy *file, bool is_config, strbuf *out) {
    const char *eos = trained_eos(description), *template = trained_template(description);
    json_t *config = read_object(file);
    strbuf_add_bytes(out, file->bytes, file->n_bytes);
    const char *named = token_of(config, "eos_token");
    bool sets_eos = config && eos && (is_config || named) && !(named && strcmp(named, eos) == 0);
    if (sets_eos) set_text(out, "eos_token", eos);
    if (config && is_config && template && json_object_get(config, "chat_template"))
        set_text(out, "chat_template", template);
    json_decref(config);
}

static const tokenizer_copy *find(const tokenizer_files *t, const char *name) {
    for (size_t i = 0; i < t->n; i++)
        if (strcmp(t->items[i].name, name) == 0) return &t->items[i];
    return NULL;
}

status export_write_tokenizer(const json_t *description, const tokenizer_files *t, const char *dir, arena *memory) {
    static const char *const configs[] = {"tokenizer_config.json", "special_tokens_map.json"};
    const char *template = trained_template(description), *eos = trained_eos(description);
    tokenizer_files own = {.items = arena_array(memory, tokenizer_copy, t->n + 2)};
    for (size_t i = 0; i < t->n; i++) {
        tokenizer_copy *item = &own.items[own.n];
        *item = t->items[i];
        if (template && str_ends_with(item->name, ".jinja"))
            continue; /* its own templates are not those that were trained */
        own.n++;
        for (size_t k = 0; k < ARRAY_LENGTH(configs); k++) {
            if (strcmp(item->name, configs[k]) != 0) continue;
            strbuf text;
            strbuf_init(&text);
            align_file(description, item, k == 0, &text);
            item->bytes = arena_copy(memory, text.text, text.length);
            item->n_bytes = text.length;
            strbuf_fini(&text);
        }
    }
    if (t->n > 0 && template)
        own.items[own.n++] = (tokenizer_copy){"chat_template.jinja", arena_string(memory, template), strlen(template)};
    if (t->n > 0 && eos && !find(t, configs[0])) {
        json_t *config =
            json_pack("{s:s, s:O*}", "eos_token", eos, "bos_token", json_object_get(ending_of(description), "bos"));
        char *text = json_dumps(config, JSON_INDENT(2));
        own.items[own.n++] = (tokenizer_copy){configs[0], arena_string(memory, text), strlen(text)};
        free(text);
        json_decref(config);
    }
    return tokenizer_files_write(&own, dir);
}

/* ---- the words ------------------------------------------------------------------------------------------------------- */

static void add_value(strbuf *out, const json_t *value) {
    char *text = value && !json_is_null(value) ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
    strbuf_add(out, text ? text : "none");
    free(text);
}

void export_say_aligned(const json_t *description, bool with_tokenizer) {
    const json_t *texts = json_object_get(ending_of(description), "texts");
    if (export_eos_changes(description)) {
        strbuf was, ends;
        strbuf_init(&was);
        strbuf_init(&ends);
        add_value(&was, eos_of(description, "generation"));
        for (size_t i = 0; i < json_array_size(texts); i++)
            strbuf_printf(&ends, "%s%lld %s", i ? ", " : "",
                          (long long)json_integer_value(json_array_get(ids_of(description), i)),
                          json_string_value(json_array_get(texts, i)));
        log_info("the export names %s as end token, which was trained, instead of %s", ends.text, was.text);
        strbuf_fini(&was);
        strbuf_fini(&ends);
    }
    if (with_tokenizer && json_object_get(ending_of(description), "template_is_unused"))
        log_info(
            "the export has the tokenizer's own chat template, but the run was trained without it (data.chat=none)");
    if (with_tokenizer && trained_template(description))
        log_info("the export has the chat template of data.chat=%s, in which the turns were trained",
                 json_string_value(json_object_get(ending_of(description), "format")));
}
