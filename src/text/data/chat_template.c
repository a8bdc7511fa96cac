/* chat_template.c - a tokenizer's chat templates: where they stand, and the special tokens that they may name.
 *
 * As transformers reads them: chat_template.jinja and additional_chat_templates/tool_use.jinja beside the tokenizer come
 * before `chat_template` of tokenizer_config.json, which is one template or a list of named ones. "tool_use" is for
 * conversations with tools, "default" for the others. */
#include "data/chat_template.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#define CONFIG_MAX_BYTES ((size_t)16 << 20)

/* ---- files ----------------------------------------------------------------------------------------------------- */

/* "DIR/name" for a tokenizer given as DIR or DIR/tokenizer.json. */
static void sibling(const char *tokenizer_name, const char *name, strbuf *out) {
    struct stat info;
    const char *slash = strrchr(tokenizer_name, '/');
    out->length = 0;
    if (stat(tokenizer_name, &info) == 0 && S_ISDIR(info.st_mode)) strbuf_printf(out, "%s/%s", tokenizer_name, name);
    else strbuf_printf(out, "%.*s%s", slash ? (int)(slash + 1 - tokenizer_name) : 0, tokenizer_name, name);
}

static bool exists(const char *path) {
    struct stat info;
    return stat(path, &info) == 0;
}

static void add_hash(chat_template *t, const void *bytes, size_t n_bytes) {
    t->hash = XXH3_64bits_withSeed(bytes, n_bytes, t->hash);
}

static status open_source(chat_template *t, jinja **out, const char *text, size_t n_bytes, const char *name) {
    if (*out)
        return ERR(ERR_INPUT, "%s: found two templates for the same conversations, expected one of each name", name);
    if (utf8_check(text, n_bytes).n_bad)
        return ERR(ERR_INPUT, "%s: byte %zu is not valid UTF-8", name, utf8_check(text, n_bytes).n_valid + 1);
    add_hash(t, text, n_bytes);
    return jinja_open(out, text, n_bytes, name);
}

static status open_file(chat_template *t, jinja **out, const char *tokenizer_name, const char *name) {
    char *text;
    size_t n_bytes;
    strbuf path;
    strbuf_init(&path);
    sibling(tokenizer_name, name, &path);
    status rc = OK;
    if (exists(path.text)) {
        TRY_GOTO(rc, file_read_all(path.text, JINJA_MAX_SOURCE_BYTES, &text, &n_bytes), done);
        rc = open_source(t, out, text, n_bytes, path.text);
        free(text);
    }
done:
    strbuf_fini(&path);
    return rc;
}

/* chat_template of tokenizer_config.json: a string, or a list of {"name", "template"}. */
static status open_named(chat_template *t, const json_t *config, const char *path) {
    const json_t *v = json_object_get(config, "chat_template"), *entry;
    size_t i;
    if (!v || json_is_null(v)) return OK;
    if (json_is_string(v)) return open_source(t, &t->usual, json_string_value(v), json_string_length(v), path);
    if (!json_is_array(v))
        return ERR(ERR_INPUT, "%s: chat_template: found neither a string nor a list, expected one of them", path);
    json_array_foreach((json_t *)(uintptr_t)v, i, entry) {
        const char *name = json_string_value(json_object_get(entry, "name"));
        const json_t *text = json_object_get(entry, "template");
        if (!name || !json_is_string(text))
            return ERR(ERR_INPUT, "%s: chat_template[%zu]: found no name with a template, expected both", path, i);
        jinja **out = strcmp(name, "default") == 0 ? &t->usual : strcmp(name, "tool_use") == 0 ? &t->with_tools : NULL;
        if (out) TRY(open_source(t, out, json_string_value(text), json_string_length(text), path));
    }
    return OK;
}

/* ---- special tokens -------------------------------------------------------------------------------------------- */

/* "bos_token": "<s>", or {"content": "<s>"}; every such key is a variable of the template. */
static void take_token(chat_template *t, const char *key, const json_t *v) {
    if (json_is_object(v)) v = json_object_get(v, "content");
    if (!json_is_string(v)) return;
    json_object_set_new(t->tokens, key, json_stringn(json_string_value(v), json_string_length(v)));
}

static void take_tokens(chat_template *t, const json_t *config) {
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)config, key, v) {
        if (str_ends_with(key, "_token")) take_token(t, key, v);
    }
    json_object_foreach(json_object_get(config, "extra_special_tokens"), key, v) {
        if (str_ends_with(key, "_token")) take_token(t, key, v);
    }
}

/* Integers as reals: configs say model_max_length: 1000000000000000019884624838656. */
static status load_json(const char *path, json_t **out) {
    json_error_t error;
    char *text;
    size_t n_bytes;
    TRY(file_read_all(path, CONFIG_MAX_BYTES, &text, &n_bytes));
    *out = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, &error);
    free(text);
    if (*out) return OK;
    return ERR(ERR_INPUT, "%s:%d:%d: %s", path, MAX(error.line, 1), MAX(error.column, 1), error.text);
}

/* special_tokens_map.json counts where tokenizer_config.json is of the old kind. */
static status read_token_map(chat_template *t, const char *tokenizer_name, strbuf *path) {
    json_t *map;
    sibling(tokenizer_name, "special_tokens_map.json", path);
    if (!exists(path->text)) return OK;
    TRY(load_json(path->text, &map));
    take_tokens(t, map);
    json_decref(map);
    return OK;
}

static status read_config(chat_template *t, const char *tokenizer_name) {
    status rc = OK;
    json_t *config = NULL;
    strbuf path;
    strbuf_init(&path);
    sibling(tokenizer_name, "tokenizer_config.json", &path);
    if (exists(path.text)) {
        TRY_GOTO(rc, load_json(path.text, &config), done);
        take_tokens(t, config);
        if (!t->usual && !t->with_tools) TRY_GOTO(rc, open_named(t, config, path.text), done);
    }
    if (!json_object_get(config, "added_tokens_decoder")) rc = read_token_map(t, tokenizer_name, &path);
done:
    json_decref(config);
    strbuf_fini(&path);
    return rc;
}

/* ---- opening --------------------------------------------------------------------------------------------------- */

status chat_template_open(chat_template *t, const char *tokenizer_name, bool *found) {
    *found = false;
    t->tokens = json_object();
    TRY(open_file(t, &t->usual, tokenizer_name, "chat_template.jinja"));
    TRY(open_file(t, &t->with_tools, tokenizer_name, "additional_chat_templates/tool_use.jinja"));
    TRY(read_config(t, tokenizer_name));
    char *tokens = json_dumps(t->tokens, JSON_COMPACT | JSON_SORT_KEYS);
    add_hash(t, tokens, strlen(tokens));
    free(tokens);
    *found = t->usual || t->with_tools;
    return OK;
}

/* The one that transformers takes for conversations without tools. */
static const char *usual_text(const json_t *v) {
    size_t i;
    json_t *entry;
    if (json_is_string(v)) return json_string_value(v);
    json_array_foreach((json_t *)(uintptr_t)v, i, entry) {
        const char *name = json_string_value(json_object_get(entry, "name"));
        if (name && strcmp(name, "default") == 0) return json_string_value(json_object_get(entry, "template"));
    }
    return NULL;
}

status tokenizer_chat_template(const char *name, char **out) {
    status rc = OK;
    size_t n_bytes;
    json_t *config = NULL;
    strbuf path;
    *out = NULL;
    strbuf_init(&path);
    sibling(name, "chat_template.jinja", &path);
    if (exists(path.text)) {
        rc = file_read_all(path.text, JINJA_MAX_SOURCE_BYTES, out, &n_bytes);
        goto done;
    }
    sibling(name, "tokenizer_config.json", &path);
    if (exists(path.text)) TRY_GOTO(rc, load_json(path.text, &config), done);
    const char *text = usual_text(json_object_get(config, "chat_template"));
    if (text) *out = mem_string(text);
done:
    json_decref(config);
    strbuf_fini(&path);
    return rc;
}

void chat_template_close(chat_template *t) {
    jinja_close(t->usual);
    jinja_close(t->with_tools);
    json_decref(t->tokens);
    *t = (chat_template){0};
}

const jinja *chat_template_choose(const chat_template *t, bool has_tools) {
    return has_tools && t->with_tools ? t->with_tools : t->usual;
}

bool chat_template_reads(const chat_template *t, const char *variable) {
    return (t->usual && jinja_reads(t->usual, variable)) || (t->with_tools && jinja_reads(t->with_tools, variable));
}
