/* chat_template.c - a tokenizer's chat template: where it stands, and which of our formats it writes.
 *
 * It is not run, but read at the markers: what stands right before and behind them tells whether its turns are ours to the
 * byte. Whatever looks different is none of ours: tokens that are nearly right train a model to be nearly right. */
#include "data/chat_template.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define CONFIG_MAX_BYTES ((size_t)16 << 20)

/* ---- the file -------------------------------------------------------------------------------------------------- */

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

/* chat_template is a string, or a list of {"name", "template"} of which "default" counts. */
static const char *template_in(const json_t *config) {
    const json_t *v = json_object_get(config, "chat_template"), *entry;
    size_t i;
    if (json_is_string(v)) return json_string_value(v);
    json_array_foreach((json_t *)(uintptr_t)v, i, entry) {
        const char *name = json_string_value(json_object_get(entry, "name"));
        if (name && strcmp(name, "default") == 0) return json_string_value(json_object_get(entry, "template"));
    }
    return NULL;
}

/* The tokenizer's own template and the file it stands in; empty when it has none. */
static status read_template(const char *tokenizer_name, strbuf *out, strbuf *path) {
    char *text;
    size_t n_bytes;
    sibling(tokenizer_name, "chat_template.jinja", path);
    if (exists(path->text)) {
        TRY(file_read_all(path->text, CONFIG_MAX_BYTES, &text, &n_bytes));
        strbuf_add_bytes(out, text, n_bytes);
        free(text);
        return OK;
    }
    sibling(tokenizer_name, "tokenizer_config.json", path);
    if (!exists(path->text)) return OK;
    json_error_t error;
    TRY(file_read_all(path->text, CONFIG_MAX_BYTES, &text, &n_bytes));
    json_t *config = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, &error);
    free(text);
    if (!config)
        return ERR(ERR_INPUT, "%s:%d:%d: %s", path->text, MAX(error.line, 1), MAX(error.column, 1), error.text);
    const char *template = template_in(config);
    if (template) strbuf_add(out, template);
    json_decref(config);
    return OK;
}

/* ---- the markers ----------------------------------------------------------------------------------------------- */

/* BOS once, before the first turn: so begin ChatML templates of models whose texts begin with it. */
static bool begins_with_bos(const char *template) {
    const char *bos = strstr(template, "bos_token"), *turn = strstr(template, "<|im_start|>");
    return bos && turn && bos < turn && !strstr(bos + 1, "bos_token");
}

/* A newline is one of the text, or \n in one of Jinja's strings; {%- and {{- take those of the text before them away. */
static const char *skip_newlines(const char *at, int n) {
    for (; n > 0; n--) {
        if (at[0] == '\\' && at[1] == 'n') at += 2;
        else if (at[0] == '\n' && strncmp(at + 1 + strspn(at + 1, " \n"), "{%-", 3) != 0 &&
                 strncmp(at + 1 + strspn(at + 1, " \n"), "{{-", 3) != 0)
            at++;
        else return NULL;
    }
    return at;
}

static bool is_quote(char c) { return c == '\'' || c == '"'; }

/* What is written next: "' + next", "' ~ next", "{{ next", "{{- next"; NULL where nothing is put behind it there. */
static const char *skip_join(const char *at) {
    bool ends = is_quote(*at);
    if (!ends && strncmp(at, "{{", 2) != 0) return NULL;
    at += ends ? 1 + strspn(at + 1, " ") : 2;
    if (ends && *at != '+' && *at != '~') return NULL;
    if (ends || *at == '-') at++;
    return at + strspn(at, " ");
}

/* Newlines behind a marker, in its string, in the next one, or in the text behind the braces. */
static const char *behind_marker(const char *at, int n) {
    const char *direct = skip_newlines(at, n), *next = skip_join(at);
    if (direct) return direct;
    if (next) return is_quote(*next) ? skip_newlines(next + 1, n) : NULL;
    if (!is_quote(*at)) return NULL;
    at += 1 + strspn(at + 1, " ");
    return strncmp(at, "}}", 2) == 0 ? skip_newlines(at + 2, n) : NULL;
}

/* Behind the role that stands at a marker: the message's, or one by name. NULL: it is something else. */
static const char *skip_role(const char *at, bool *is_any, bool *is_system) {
    static const char *const any[] = {"message.role", "message['role']", "message[\"role\"]"};
    static const char *const named[] = {"system", "user", "assistant", "tool"};
    const char *next = skip_join(at);
    *is_any = next != NULL;
    *is_system = false;
    for (size_t i = 0; next && i < ARRAY_LENGTH(any); i++)
        if (str_starts_with(next, any[i])) {
            next += strlen(any[i]);
            return next + strspn(next, " ");
        }
    for (size_t i = 0; !next && i < ARRAY_LENGTH(named); i++)
        if (str_starts_with(at, named[i])) {
            *is_system = i == 0;
            return at + strlen(named[i]);
        }
    return NULL;
}

/* Of a system turn: what follows its header is a message's, or ends there. Else a system message of the template's own
 * stands there, or comes from elsewhere. */
static bool is_said(const char *at) {
    const char *next = skip_join(at);
    return next ? str_starts_with(next, "message") : is_quote(*at);
}

/* Neither ChatML nor Llama 3 ends a conversation with EOS. */
static bool ends_with_eos(const char *template) { return strstr(template, "eos_token"); }

static bool strips(const char *template) {
    return strstr(template, "| trim") || strstr(template, "|trim") || strstr(template, ".strip()");
}

/* Where a system message ends that the template holds as a literal: '<|im_start|>system\nYou are ...<|im_end|>\n'. Text
 * that is put together there has quotes in it. */
static const char *literal_end(const char *text) {
    const char *end = strstr(text, "<|im_end|>");
    bool plain = end && end != text && !memchr(text, '\'', (size_t)(end - text)) &&
                 !memchr(text, '"', (size_t)(end - text)) && !memchr(text, '{', (size_t)(end - text));
    return plain ? end : NULL;
}

static bool is_chatml(const char *template) {
    static const char start[] = "<|im_start|>", end[] = "<|im_end|>";
    bool any_role, is_system, has_system = false;
    if (strstr(template, "<|im_sep|>") || strips(template) || ends_with_eos(template)) return false;
    for (const char *at = template; (at = strstr(at, end));)
        if (!behind_marker(at += sizeof end - 1, 1)) return false;
    for (const char *at = template; (at = strstr(at, start));) {
        const char *role = skip_role(at += sizeof start - 1, &any_role, &is_system);
        if (!role) return false;
        const char *next = any_role && *role == '+' ? role + 1 + strspn(role + 1, " ") : NULL;
        if (next && !(is_quote(*next) && skip_newlines(next + 1, 1))) return false;
        const char *text = any_role ? NULL : skip_newlines(role, 1);
        if (!any_role && !text && !is_quote(*role)) return false;
        if (is_system && text && !is_said(text) && !literal_end(text)) return false;
        has_system |= any_role || is_system;
    }
    return has_system && (!strstr(template, "bos_token") || begins_with_bos(template));
}

static bool is_llama3(const char *template) {
    static const char start[] = "<|start_header_id|>", end[] = "<|end_header_id|>";
    bool any_role, is_system, has_system = false;
    if (strstr(template, "Cutting Knowledge Date") || ends_with_eos(template)) return false;
    if (!strstr(template, "bos_token") && !strstr(template, "<|begin_of_text|>")) return false;
    for (const char *at = template; (at = strstr(at, end));)
        if (!behind_marker(at += sizeof end - 1, 2)) return false;
    for (const char *at = template; (at = strstr(at, start));) {
        const char *role = skip_role(at += sizeof start - 1, &any_role, &is_system);
        if (!role) return false;
        if (is_system && (!str_starts_with(role, end) || !is_said(behind_marker(role + sizeof end - 1, 2))))
            return false;
        has_system |= any_role || is_system;
    }
    return has_system;
}

/* CHAT_AUTO: none of ours. Llama 3.1 and later, and SmolLM3, write dates into the system message, Phi puts <|im_sep|>
 * where ChatML has a line end, Yi has system messages without a header, Mistral has [INST] without <<SYS>>. */
static chat_format recognise(const char *template) {
    if (strstr(template, "strftime_now")) return CHAT_AUTO;
    if (strstr(template, "<|im_start|>") && strstr(template, "<|im_end|>"))
        return is_chatml(template) ? CHAT_CHATML : CHAT_AUTO;
    if (strstr(template, "<|start_header_id|>") && strstr(template, "<|eot_id|>"))
        return is_llama3(template) ? CHAT_LLAMA3 : CHAT_AUTO;
    if (strstr(template, "[INST]") && strstr(template, "<<SYS>>")) return CHAT_LLAMA2;
    return CHAT_AUTO;
}

/* Qwen's templates hold the system message of conversations without one. */
static void find_default_system(const char *template, strbuf *out) {
    static const char head[] = "<|im_start|>system";
    for (const char *at = template; (at = strstr(at, head));) {
        const char *text = skip_newlines(at += sizeof head - 1, 1), *end = text ? literal_end(text) : NULL;
        if (!end) continue;
        strbuf_add_bytes(out, text, (size_t)(end - text));
        return;
    }
}

/* ---- what it says ---------------------------------------------------------------------------------------------- */

static void describe(chat_template *t, const char *text) {
    t->format = recognise(text);
    if (t->format == CHAT_CHATML) {
        find_default_system(text, &t->default_system);
        t->leads = begins_with_bos(text);
        t->thinks = strstr(text, "last_query_index") && strstr(text, "</think>");
    }
    t->keeps_spaces = t->format == CHAT_LLAMA3 && !strips(text);
}

status chat_template_read(chat_template *out, const char *tokenizer_name) {
    strbuf text;
    strbuf_init(&text);
    *out = (chat_template){.format = CHAT_NONE};
    status rc = read_template(tokenizer_name, &text, &out->path);
    if (rc == OK && text.length > 0) describe(out, text.text);
    strbuf_fini(&text);
    return rc;
}

void chat_template_ignore(chat_template *t) {
    t->format = CHAT_NONE;
    t->default_system.length = 0;
    t->leads = t->thinks = t->keeps_spaces = false;
}

void chat_template_fini(chat_template *t) {
    strbuf_fini(&t->default_system);
    strbuf_fini(&t->path);
}
