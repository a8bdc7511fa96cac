/* chat.c - conversations to tokens, in the formats that published models were trained with.
 *
 * A format is code here, not a template: Jinja is a language of its own, and a template that is run as far as we
 * understand it would give tokens that are nearly right. The tokenizer's own template only tells which of the known
 * formats it is (chat_template.c); any other is refused by name where it would be needed.
 *
 *   chatml   [BOS] <|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nHi<|im_end|>\n
 *   llama3   BOS <|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|> ...
 *   llama2   BOS [INST] <<SYS>>\nsystem\n<</SYS>>\n\nHello [/INST] Hi EOS BOS [INST] ...
 *
 * Control tokens are added by id and everything else is encoded with special tokens as text, so no content can end its
 * own turn. Where a trained text follows text that is not (the header before an answer, a prompt before its
 * completion), both are encoded together when that leaves the tokens of the first part as they are alone - those are
 * the ids of the reference - and apart when it does not, because alone is how the model will meet them. */
#include "data/chat_template.h"
#include "data/encode.h"
#include "data/source.h"

#include <stdlib.h>
#include <string.h>

struct chat {
    chat_format format;
    const tokenizer *t;
    int32_t bos, eos;               /* -1: none. bos: what stands before a document */
    int32_t start, end_header, end; /* control tokens of the format */
    chat_template own;              /* the tokenizer's, as far as this format is its format */
    bool is_unknown;                /* CHAT_AUTO met a template that is none of ours */
};

static const char *const format_names[CHAT_COUNT] = {"auto", "none", "chatml", "llama3", "llama2"};
const char *chat_format_name(chat_format f) { return format_names[f]; }
chat_format chat_format_of(const chat *c) { return c->format; }
int32_t chat_document_bos(const chat *c) { return c->bos; }
int32_t chat_end_of_turn(const chat *c) { return c->end >= 0 ? c->end : c->eos; }
const char *chat_unknown_template(const chat *c) { return c->is_unknown ? c->own.path.text : NULL; }

/* ---- which format -------------------------------------------------------------------------------------------- */

static chat_format recognise_tokens(const tokenizer *t) {
    if (tokenizer_special(t, "<|im_start|>") >= 0 && tokenizer_special(t, "<|im_end|>") >= 0) return CHAT_CHATML;
    if (tokenizer_special(t, "<|start_header_id|>") >= 0 && tokenizer_special(t, "<|end_header_id|>") >= 0 &&
        tokenizer_special(t, "<|eot_id|>") >= 0)
        return CHAT_LLAMA3;
    return CHAT_NONE;
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
    *c = (chat){.format = wanted,
                .t = t,
                .eos = tokenizer_eos(t),
                .start = -1,
                .end_header = -1,
                .end = -1,
                .own = {.format = CHAT_NONE}};
    if (!tokenizer_is_byte(t)) TRY_GOTO(rc, chat_template_read(&c->own, tokenizer_name), done);
    if (wanted == CHAT_AUTO) {
        c->format = c->own.format == CHAT_NONE ? recognise_tokens(t) : c->own.format;
        c->is_unknown = c->format == CHAT_AUTO;
        if (c->is_unknown) c->format = CHAT_NONE;
    }
    if (c->format != c->own.format) chat_template_ignore(&c->own);
    c->own.leads = c->own.leads && tokenizer_bos(t) >= 0;
    TRY_GOTO(rc, find_control_tokens(c), done);
    TRY_GOTO(rc, find_document_bos(c), done);
done:
    if (rc == OK) *out = c;
    else chat_close(c);
    return rc;
}

void chat_close(chat *c) {
    if (!c) return;
    chat_template_fini(&c->own);
    free(c);
}

void chat_describe(const chat *c, strbuf *out) {
    strbuf_printf(out, "chat %s, bos %d, eos %d%s%s%s, system '", format_names[c->format], c->bos, c->eos,
                  c->own.leads ? ", leads" : "", c->own.thinks ? ", thinks" : "",
                  c->own.keeps_spaces ? ", keeps spaces" : "");
    strbuf_add_bytes(out, c->own.default_system.text, c->own.default_system.length);
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
    if (!c->own.thinks) {
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
    if (c->own.leads) add_id(out, tokenizer_bos(c->t), false);
    if (c->own.default_system.length > 0 && t->messages[0].role != TURN_SYSTEM)
        TRY_GOTO(rc, chatml_turn(c, "system", (span){c->own.default_system.text, c->own.default_system.length}, out),
                 done);
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
        TRY_GOTO(rc, add_string(c, c->own.thinks ? "assistant\n<think>\n\n</think>\n\n" : "assistant\n", false, out),
                 done);
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
        span content = c->own.keeps_spaces ? m->content : strip(m->content);
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
    if (c->is_unknown)
        return ERR(ERR_INPUT,
                   "%s:%llu: turns need a chat template: found one in %s that is not chatml, llama3 or llama2; set "
                   "data.chat to the format to use",
                   r->path, (unsigned long long)r->line, c->own.path.text);
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
