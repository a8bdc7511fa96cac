/* chat.c - conversations to tokens, in the formats that published models were trained with.
 *
 * A format is code here, not a template: Jinja is a language of its own, and a template that is run as far as we
 * understand it would give tokens that are nearly right. The tokenizer's own template is looked at only to tell which
 * of the known formats it is, by the markers that it writes and what stands around them; any other is refused by name
 * where it would be needed.
 *
 *   chatml   [BOS] <|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nHi<|im_end|>\n
 *   llama3   BOS <|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|> ...
 *   llama2   BOS [INST] <<SYS>>\nsystem\n<</SYS>>\n\nHello [/INST] Hi EOS BOS [INST] ...
 *
 * Control tokens are added by id and everything else is encoded with special tokens as text, so no content can end its
 * own turn. Where a trained text follows text that is not (the header before an answer, a prompt before its
 * completion), both are encoded together when that leaves the tokens of the first part as they are alone - those are
 * the ids of the reference - and apart when it does not, because alone is how the model will meet them. */
#include "data/encode.h"
#include "data/source.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define CONFIG_MAX_BYTES ((size_t)16 << 20)

struct chat {
    chat_format format;
    const tokenizer *t;
    int32_t bos, eos;               /* -1: none. bos: what stands before a document */
    int32_t start, end_header, end; /* control tokens of the format */
    strbuf default_system;          /* of conversations that have none; empty: none */
    bool leads;                     /* ChatML: BOS before the first turn */
    bool thinks;                    /* Qwen3: the last answer carries its thoughts, empty ones too */
    bool keeps_spaces;              /* Llama 3: the template does not strip what is said */
    strbuf unknown;                 /* CHAT_AUTO met a template that is none of these: the file it stands in */
};

static const char *const format_names[CHAT_COUNT] = {"auto", "none", "chatml", "llama3", "llama2"};
const char *chat_format_name(chat_format f) { return format_names[f]; }
chat_format chat_format_of(const chat *c) { return c->format; }
int32_t chat_document_bos(const chat *c) { return c->bos; }
int32_t chat_end_of_turn(const chat *c) { return c->end >= 0 ? c->end : c->eos; }
const char *chat_unknown_template(const chat *c) { return c->unknown.length ? c->unknown.text : NULL; }

/* ---- which format -------------------------------------------------------------------------------------------- */

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

/* BOS once, before the first turn: so begin ChatML templates of models whose texts begin with it. */
static bool begins_with_bos(const char *template) {
    const char *bos = strstr(template, "bos_token"), *turn = strstr(template, "<|im_start|>");
    return bos && turn && bos < turn && !strstr(bos + 1, "bos_token");
}

/* Templates are not run, but read at the markers: what stands right before and behind them. A newline is one of the text,
 * or \n in one of Jinja's strings; {%- and {{- take those of the text before them away. */
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

static chat_format recognise_tokens(const tokenizer *t) {
    if (tokenizer_special(t, "<|im_start|>") >= 0 && tokenizer_special(t, "<|im_end|>") >= 0) return CHAT_CHATML;
    if (tokenizer_special(t, "<|start_header_id|>") >= 0 && tokenizer_special(t, "<|end_header_id|>") >= 0 &&
        tokenizer_special(t, "<|eot_id|>") >= 0)
        return CHAT_LLAMA3;
    return CHAT_NONE;
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

static status need_token(const chat *c, const char *text, int32_t *out) {
    *out = tokenizer_special(c->t, text);
    if (*out < 0)
        return ERR(ERR_INPUT,
                   "data.chat=%s: found no token '%s' in the tokenizer, expected one; choose the tokenizer of a model "
                   "with this format, or data.chat=none",
                   format_names[c->format], text);
    return OK;
}

static status find_control_tokens(chat *c) {
    if (c->format == CHAT_CHATML) {
        TRY(need_token(c, "<|im_start|>", &c->start));
        TRY(need_token(c, "<|im_end|>", &c->end));
    } else if (c->format == CHAT_LLAMA3) {
        TRY(need_token(c, "<|start_header_id|>", &c->start));
        TRY(need_token(c, "<|end_header_id|>", &c->end_header));
        TRY(need_token(c, "<|eot_id|>", &c->end));
    }
    if ((c->format == CHAT_LLAMA3 || c->format == CHAT_LLAMA2) && tokenizer_bos(c->t) < 0)
        return ERR(ERR_INPUT, "data.chat=%s: found a tokenizer without BOS, expected one", format_names[c->format]);
    if (c->format == CHAT_LLAMA2 && c->eos < 0)
        return ERR(ERR_INPUT, "data.chat=llama2: found a tokenizer without EOS, expected one");
    return OK;
}

/* BOS before a document: where the file's own template puts it before a text. */
static status find_document_bos(chat *c) {
    int32_t *ids = NULL;
    size_t n = 0, capacity = 0;
    c->bos = -1;
    if (tokenizer_is_byte(c->t)) return OK;
    TRY(tokenizer_encode_with(c->t, "", 0, ENCODE_ADD_SPECIALS, &ids, &n, &capacity));
    if (n > 0 && ids[0] == tokenizer_bos(c->t)) c->bos = ids[0];
    free(ids);
    return OK;
}

status chat_open(chat **out, const tokenizer *t, const char *tokenizer_name, chat_format wanted) {
    status rc = OK;
    chat *c = mem_alloc(sizeof *c);
    *out = NULL;
    *c = (chat){.format = wanted, .t = t, .eos = tokenizer_eos(t), .start = -1, .end_header = -1, .end = -1};
    strbuf template, path;
    strbuf_init(&template);
    strbuf_init(&path);
    if (!tokenizer_is_byte(t)) TRY_GOTO(rc, read_template(tokenizer_name, &template, &path), done);
    if (wanted == CHAT_AUTO && template.length > 0) {
        c->format = recognise(template.text);
        if (c->format == CHAT_AUTO) {
            c->format = CHAT_NONE;
            strbuf_add(&c->unknown, path.text);
        }
    } else if (wanted == CHAT_AUTO) {
        c->format = recognise_tokens(t);
    }
    if (c->format == CHAT_CHATML && template.length > 0 && recognise(template.text) == CHAT_CHATML) {
        find_default_system(template.text, &c->default_system);
        c->leads = begins_with_bos(template.text) && tokenizer_bos(t) >= 0;
        c->thinks = strstr(template.text, "last_query_index") && strstr(template.text, "</think>");
    }
    if (c->format == CHAT_LLAMA3 && template.length > 0 && recognise(template.text) == CHAT_LLAMA3)
        c->keeps_spaces = !strips(template.text);
    TRY_GOTO(rc, find_control_tokens(c), done);
    TRY_GOTO(rc, find_document_bos(c), done);
done:
    strbuf_fini(&template);
    strbuf_fini(&path);
    if (rc == OK) *out = c;
    else chat_close(c);
    return rc;
}

void chat_close(chat *c) {
    if (!c) return;
    strbuf_fini(&c->default_system);
    strbuf_fini(&c->unknown);
    free(c);
}

void chat_describe(const chat *c, strbuf *out) {
    strbuf_printf(out, "chat %s, bos %d, eos %d%s%s%s, system '", format_names[c->format], c->bos, c->eos,
                  c->leads ? ", leads" : "", c->thinks ? ", thinks" : "", c->keeps_spaces ? ", keeps spaces" : "");
    strbuf_add_bytes(out, c->default_system.text, c->default_system.length);
    strbuf_add(out, "'");
}

/* ---- tokens -------------------------------------------------------------------------------------------------- */

void chat_tokens_free(chat_tokens *t) {
    free(t->ids);
    free(t->trained);
    *t = (chat_tokens){0};
}

/* Everything behind the first `from` tokens has just been added. */
static void mark(chat_tokens *out, size_t from, bool trained) {
    out->trained = array_grow(out->trained, &out->trained_capacity, out->n, 1);
    if (out->n > from) memset(out->trained + from, trained, out->n - from);
}

static void add_id(chat_tokens *out, int32_t id, bool trained) {
    out->ids = array_grow(out->ids, &out->capacity, out->n + 1, sizeof *out->ids);
    out->ids[out->n++] = id;
    mark(out, out->n - 1, trained);
}

static status add_text(const chat *c, span text, unsigned flags, bool trained, chat_tokens *out) {
    size_t from = out->n;
    TRY(tokenizer_encode_with(c->t, text.text, text.length, flags, &out->ids, &out->n, &out->capacity));
    mark(out, from, trained);
    return OK;
}

static status add_string(const chat *c, const char *text, bool trained, chat_tokens *out) {
    return add_text(c, (span){text, strlen(text)}, ENCODE_SPECIALS_AS_TEXT, trained, out);
}

/* head and, behind it, an answer. See the top of this file. */
static status add_answer(const chat *c, span head, span answer, bool trained, chat_tokens *out) {
    status rc = OK;
    size_t from = out->n, n = 0, capacity = 0;
    int32_t *both = NULL;
    strbuf text;
    strbuf_init(&text);
    strbuf_add_bytes(&text, head.text, head.length);
    strbuf_add_bytes(&text, answer.text, answer.length);
    TRY_GOTO(rc, add_text(c, head, ENCODE_SPECIALS_AS_TEXT, false, out), done);
    TRY_GOTO(rc, tokenizer_encode_with(c->t, text.text, text.length, ENCODE_SPECIALS_AS_TEXT, &both, &n, &capacity),
             done);
    size_t n_head = out->n - from;
    if (n > n_head && (n_head == 0 || memcmp(both, out->ids + from, n_head * sizeof *both) == 0)) {
        for (size_t i = n_head; i < n; i++) add_id(out, both[i], trained);
    } else {
        TRY_GOTO(rc, add_text(c, answer, ENCODE_SPECIALS_AS_TEXT, trained, out), done);
    }
done:
    free(both);
    strbuf_fini(&text);
    return rc;
}

/* What Python's str.strip takes off: White_Space and the four separators of ASCII. */
static bool is_space(const char *text) {
    int32_t ch = char_decode(text);
    return char_is_space(ch) || (ch >= 0x1c && ch <= 0x1f);
}

static span strip(span s) {
    while (s.length > 0 && is_space(s.text)) {
        size_t n = char_length(s.text[0]);
        s.text += n;
        s.length -= n;
    }
    while (s.length > 0) {
        size_t last = s.length - 1;
        while (last > 0 && ((unsigned char)s.text[last] & 0xc0) == 0x80) last--;
        if (!is_space(s.text + last)) break;
        s.length = last;
    }
    return s;
}

static span strip_newlines(span s, bool left, bool right) {
    while (left && s.length > 0 && s.text[0] == '\n') s.text++, s.length--;
    while (right && s.length > 0 && s.text[s.length - 1] == '\n') s.length--;
    return s;
}

/* ---- the formats --------------------------------------------------------------------------------------------- */

typedef struct turns {
    const data_record *record;
    const record_message *messages;
    size_t n;
    bool open; /* ends with the header of an answer that is still to come */
} turns;

/* What the assistant says in a prompt is context, as what the user says is. */
static bool is_response(const turns *t, size_t i) {
    return t->messages[i].role == TURN_ASSISTANT && i >= t->record->n_context;
}

static const char *find_in(span text, const char *what) {
    size_t n = strlen(what);
    for (size_t i = 0; i + n <= text.length; i++)
        if (memcmp(text.text + i, what, n) == 0) return text.text + i;
    return NULL;
}

/* What follows the last `what` of a text; the text itself where it has none. */
static span behind_last(span text, const char *what) {
    for (const char *at; (at = find_in(text, what));) {
        size_t n = (size_t)(at - text.text) + strlen(what);
        text = (span){text.text + n, text.length - n};
    }
    return text;
}

/* Thoughts and the answer behind them, as Qwen3's template takes "<think>...</think>" apart. */
static void split_thoughts(span content, span *thoughts, span *answer) {
    const char *close = find_in(content, "</think>");
    *thoughts = (span){content.text, 0};
    *answer = content;
    if (!close) return;
    *answer = strip_newlines(behind_last(content, "</think>"), true, false);
    *thoughts = strip_newlines((span){content.text, (size_t)(close - content.text)}, false, true);
    *thoughts = strip_newlines(behind_last(*thoughts, "<think>"), true, false);
}

/* The answer's text, and the header that stands before it. Empty thoughts belong to the header: a model that is asked
 * not to think is given them. */
static void chatml_answer(const chat *c, const turns *t, size_t i, size_t last_user, strbuf *head, strbuf *answer) {
    strbuf_add(head, "assistant\n");
    if (!c->thinks) {
        strbuf_add_bytes(answer, t->messages[i].content.text, t->messages[i].content.length);
        return;
    }
    span thoughts, rest;
    split_thoughts(t->messages[i].content, &thoughts, &rest);
    bool is_last = i + 1 == t->n;
    if (i > last_user && (is_last || thoughts.length > 0)) {
        rest = strip_newlines(rest, true, false);
        thoughts = strip_newlines(thoughts, true, true);
        strbuf *where = thoughts.length > 0 ? answer : head;
        strbuf_add(where, "<think>\n");
        strbuf_add_bytes(where, thoughts.text, thoughts.length);
        strbuf_add(where, "\n</think>\n\n");
    }
    strbuf_add_bytes(answer, rest.text, rest.length);
}

static status chatml_turn(const chat *c, const char *role, span content, chat_tokens *out) {
    strbuf text;
    strbuf_init(&text);
    strbuf_printf(&text, "%s\n", role);
    strbuf_add_bytes(&text, content.text, content.length);
    add_id(out, c->start, false);
    status rc = add_text(c, (span){text.text, text.length}, ENCODE_SPECIALS_AS_TEXT, false, out);
    strbuf_fini(&text);
    TRY(rc);
    add_id(out, c->end, false);
    return add_string(c, "\n", false, out);
}

static status chatml(const chat *c, const turns *t, chat_tokens *out) {
    status rc = OK;
    strbuf head, answer;
    strbuf_init(&head);
    strbuf_init(&answer);
    size_t last_user = t->n - 1;
    for (size_t i = t->n; i-- > 0;)
        if (t->messages[i].role == TURN_USER) {
            last_user = i;
            break;
        }
    if (c->leads) add_id(out, tokenizer_bos(c->t), false);
    if (c->default_system.length > 0 && t->messages[0].role != TURN_SYSTEM)
        TRY_GOTO(rc, chatml_turn(c, "system", (span){c->default_system.text, c->default_system.length}, out), done);
    for (size_t i = 0; i < t->n; i++) {
        const record_message *m = &t->messages[i];
        if (m->role != TURN_ASSISTANT) {
            TRY_GOTO(rc, chatml_turn(c, turn_role_name(m->role), m->content, out), done);
            continue;
        }
        head.length = answer.length = 0;
        chatml_answer(c, t, i, last_user, &head, &answer);
        add_id(out, c->start, false);
        TRY_GOTO(
            rc,
            add_answer(c, (span){head.text, head.length}, (span){answer.text, answer.length}, is_response(t, i), out),
            done);
        add_id(out, c->end, is_response(t, i));
        TRY_GOTO(rc, add_string(c, "\n", false, out), done);
    }
    if (t->open) {
        add_id(out, c->start, false);
        TRY_GOTO(rc, add_string(c, c->thinks ? "assistant\n<think>\n\n</think>\n\n" : "assistant\n", false, out), done);
    }
done:
    strbuf_fini(&head);
    strbuf_fini(&answer);
    return rc;
}

static status llama3_header(const chat *c, const char *role, chat_tokens *out) {
    add_id(out, c->start, false);
    TRY(add_string(c, role, false, out));
    add_id(out, c->end_header, false);
    return OK;
}

static status llama3(const chat *c, const turns *t, chat_tokens *out) {
    static const span gap = {"\n\n", 2};
    add_id(out, tokenizer_bos(c->t), false);
    for (size_t i = 0; i < t->n; i++) {
        const record_message *m = &t->messages[i];
        span content = c->keeps_spaces ? m->content : strip(m->content);
        TRY(llama3_header(c, turn_role_name(m->role), out));
        if (m->role == TURN_ASSISTANT) {
            TRY(add_answer(c, gap, content, is_response(t, i), out));
        } else {
            strbuf text;
            strbuf_init(&text);
            strbuf_add_bytes(&text, gap.text, gap.length);
            strbuf_add_bytes(&text, content.text, content.length);
            status rc = add_text(c, (span){text.text, text.length}, ENCODE_SPECIALS_AS_TEXT, false, out);
            strbuf_fini(&text);
            TRY(rc);
        }
        add_id(out, c->end, is_response(t, i));
    }
    if (!t->open) return OK;
    TRY(llama3_header(c, "assistant", out));
    return add_text(c, gap, ENCODE_SPECIALS_AS_TEXT, false, out);
}

/* A system message may stand first and becomes part of the first question; then user and assistant take turns. */
static status llama2(const chat *c, const turns *t, chat_tokens *out) {
    status rc = OK;
    size_t first = t->messages[0].role == TURN_SYSTEM;
    strbuf question, answer;
    strbuf_init(&question);
    strbuf_init(&answer);
    for (size_t i = first; i < t->n; i++) {
        const record_message *m = &t->messages[i];
        turn_role expected = (i - first) % 2 ? TURN_ASSISTANT : TURN_USER;
        if (m->role != expected)
            TRY_GOTO(rc,
                     ERR(ERR_INPUT,
                         "%s:%llu: turn %zu: found role '%s', expected '%s': in data.chat=llama2 user "
                         "and assistant take turns",
                         t->record->path, (unsigned long long)t->record->line, i + 1, turn_role_name(m->role),
                         turn_role_name(expected)),
                     done);
        if (m->role == TURN_USER) {
            question.length = answer.length = 0;
            if (i == first && first) {
                strbuf_add(&answer, "<<SYS>>\n");
                strbuf_add_bytes(&answer, t->messages[0].content.text, t->messages[0].content.length);
                strbuf_add(&answer, "\n<</SYS>>\n\n");
            }
            strbuf_add_bytes(&answer, m->content.text, m->content.length);
            span asked = strip((span){answer.text, answer.length});
            strbuf_add(&question, "[INST] ");
            strbuf_add_bytes(&question, asked.text, asked.length);
            strbuf_add(&question, " [/INST]");
            add_id(out, tokenizer_bos(c->t), false);
            if (i + 1 < t->n) continue; /* its answer is encoded with it */
            TRY_GOTO(rc, add_text(c, (span){question.text, question.length}, ENCODE_SPECIALS_AS_TEXT, false, out),
                     done);
            continue;
        }
        span said = strip(m->content);
        answer.length = 0;
        strbuf_add(&answer, " ");
        strbuf_add_bytes(&answer, said.text, said.length);
        strbuf_add(&answer, " ");
        TRY_GOTO(rc,
                 add_answer(c, (span){question.text, question.length}, (span){answer.text, answer.length},
                            is_response(t, i), out),
                 done);
        add_id(out, c->eos, is_response(t, i));
    }
done:
    strbuf_fini(&question);
    strbuf_fini(&answer);
    return rc;
}

/* ---- records ------------------------------------------------------------------------------------------------- */

static status no_template(const chat *c, const data_record *r) {
    if (c->unknown.length > 0)
        return ERR(ERR_INPUT,
                   "%s:%llu: turns need a chat template: found one in %s that is not chatml, llama3 or llama2; set "
                   "data.chat to the format to use",
                   r->path, (unsigned long long)r->line, c->unknown.text);
    return ERR(ERR_INPUT,
               "%s:%llu: turns need a chat template: found data.chat=none, or a tokenizer without one; set data.chat "
               "to chatml, llama3 or llama2 with a tokenizer that has its control tokens",
               r->path, (unsigned long long)r->line);
}

static status encode_turns(const chat *c, const turns *t, chat_tokens *out) {
    switch (c->format) {
    case CHAT_CHATML: return chatml(c, t, out);
    case CHAT_LLAMA3: return llama3(c, t, out);
    case CHAT_LLAMA2: return llama2(c, t, out);
    default: return no_template(c, t->record);
    }
}

static status encode_text(const chat *c, span text, bool ends, chat_tokens *out) {
    if (c->bos >= 0) add_id(out, c->bos, true);
    TRY(add_text(c, text, 0, true, out));
    if (ends && c->eos >= 0) add_id(out, c->eos, true);
    return OK;
}

static status encode_plain_pair(const chat *c, const data_record *r, bool open, chat_tokens *out) {
    if (c->bos >= 0) add_id(out, c->bos, false);
    if (open) return add_text(c, r->prompt, ENCODE_SPECIALS_AS_TEXT, false, out);
    TRY(add_answer(c, r->prompt, r->response, true, out));
    if (c->eos >= 0) add_id(out, c->eos, true);
    return OK;
}

static status encode_record(const chat *c, const data_record *r, bool open, chat_tokens *out) {
    record_message pair[2] = {{TURN_USER, r->prompt}, {TURN_ASSISTANT, r->response}};
    turns t = {.record = r, .messages = pair, .n = open ? 1 : 2, .open = open};
    if (r->kind == RECORD_TEXT) return encode_text(c, r->text, !open, out);
    if (r->kind == RECORD_PAIR && c->format == CHAT_NONE) return encode_plain_pair(c, r, open, out);
    if (r->kind == RECORD_MESSAGES) {
        t.messages = r->messages;
        t.n = r->n_messages;
        if (open && is_response(&t, t.n - 1)) t.n--;
        if (t.n == 0)
            return ERR(ERR_INPUT, "%s:%llu: found messages of the assistant alone, expected something to answer",
                       r->path, (unsigned long long)r->line);
    }
    return encode_turns(c, &t, out);
}

status chat_encode(const chat *c, const data_record *r, data_train_on on, chat_tokens *out) {
    size_t from = out->n;
    status rc = encode_record(c, r, false, out);
    if (rc != OK) {
        out->n = from;
        return error_trail(rc, __FILE__, __LINE__, __func__);
    }
    if (on == TRAIN_ON_ALL) mark(out, from, true);
    return OK;
}

status chat_encode_prompt(const chat *c, const data_record *r, chat_tokens *out) {
    size_t from = out->n;
    status rc = encode_record(c, r, true, out);
    if (rc != OK) {
        out->n = from;
        return error_trail(rc, __FILE__, __LINE__, __func__);
    }
    mark(out, from, false);
    return OK;
}
