/* chat.c - conversations to tokens: the model's own chat template, or a built-in format, or none.
 *
 * A tokenizer's template is rendered (chat_render.c); built-in formats are code (chat_formats.c) and serve tokenizers
 * without one, or whoever names them. Without either a pair is prompt, response, end of text.
 *
 * Where a trained text follows text that is not (the header before an answer, a prompt before its completion), both are
 * encoded together when that leaves the tokens of the first part as they are alone - those are the ids of the reference -
 * and apart when it does not, because alone is how the model will meet them. */
#include "data/chat_parts.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *const format_names[CHAT_COUNT] = {"auto", "none", "chatml", "llama3", "llama2", "template"};
const char *chat_format_name(chat_format f) { return format_names[f]; }
chat_format chat_format_of(const chat *c) { return c->format; }
int32_t chat_document_bos(const chat *c) { return c->bos; }
int32_t chat_end_of_turn(const chat *c) { return c->end >= 0 ? c->end : c->eos; }

/* ---- opening --------------------------------------------------------------------------------------------------- */

/* BOS before a document: if the file's own template puts it before a text. */
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

/* A broken template matters only to records that need it, not to plain text. */
static status open_template(chat *c, const char *tokenizer_name, chat_format wanted) {
    bool found = false;
    if (!tokenizer_is_byte(c->t) && chat_template_open(&c->own, tokenizer_name, &found) != OK) {
        if (wanted == CHAT_TEMPLATE) return error_code();
        c->broken = mem_string(error_message());
        error_clear();
        found = true;
    }
    if (!found && wanted == CHAT_TEMPLATE)
        return ERR(ERR_INPUT,
                   "data.chat=template: found no chat template beside the tokenizer '%.200s' (chat_template.jinja, or "
                   "chat_template in tokenizer_config.json), expected one; data.chat=auto takes what the tokenizer has",
                   tokenizer_name);
    if (found) c->format = CHAT_TEMPLATE;
    else c->format = chat_recognise_tokens(c->t);
    return found && !c->broken ? chat_render_probe(c) : OK;
}

static status read_kwargs(chat *c, const char *text) {
    json_error_t error;
    if (!text || !*text) return OK;
    c->kwargs = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(c->kwargs))
        return ERR(ERR_INPUT,
                   "data.chat_kwargs (--chat-kwargs): found '%.200s'%s%s, expected a JSON object: "
                   "{\"enable_thinking\": false}",
                   text, c->kwargs ? "" : ", which is not JSON: ", c->kwargs ? "" : error.text);
    const char *reserved = template_kwargs_reserved(c->kwargs);
    if (reserved)
        return ERR(ERR_INPUT,
                   "data.chat_kwargs (--chat-kwargs): found '%.50s', which ralo sets itself, expected other variables "
                   "of the template",
                   reserved);
    return OK;
}

static status open_format(chat *c, const char *tokenizer_name, const chat_options *o) {
    TRY(read_kwargs(c, o->kwargs));
    if (o->format == CHAT_AUTO || o->format == CHAT_TEMPLATE) TRY(open_template(c, tokenizer_name, o->format));
    if (c->kwargs && c->format != CHAT_TEMPLATE)
        return ERR(ERR_INPUT,
                   "data.chat_kwargs (--chat-kwargs): found variables for a template and data.chat=%s, expected a "
                   "tokenizer with a chat "
                   "template (data.chat=auto)",
                   format_names[c->format]);
    TRY(chat_find_control_tokens(c));
    return find_document_bos(c);
}

status chat_open(chat **out, const tokenizer *t, const char *tokenizer_name, const chat_options *o) {
    chat *c = mem_alloc(sizeof *c);
    *out = NULL;
    *c = (chat){.format = o->format,
                .t = t,
                .eos = tokenizer_eos(t),
                .start = -1,
                .end_header = -1,
                .end = -1,
                .trains_newline = o->train_on_newline};
    status rc = open_format(c, tokenizer_name, o);
    if (rc == OK) *out = c;
    else chat_close(c);
    return rc;
}

void chat_close(chat *c) {
    if (!c) return;
    chat_template_close(&c->own);
    json_decref(c->kwargs);
    free(c->header);
    free(c->broken);
    free(c);
}

/* A template that writes the date gives other tokens tomorrow: the date is part of the cache key. */
void chat_describe(const chat *c, strbuf *out) {
    strbuf_printf(out, "chat %s, bos %d, eos %d%s", format_names[c->format], c->bos, c->eos,
                  c->trains_newline ? ", newline" : "");
    if (c->format != CHAT_TEMPLATE) return;
    strbuf_printf(out, ", template %016llx", (unsigned long long)c->own.hash);
    char *kwargs = c->kwargs ? json_dumps(c->kwargs, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    strbuf_printf(out, ", kwargs %s", kwargs ? kwargs : "{}");
    free(kwargs);
    if (!chat_writes_date(c)) return;
    char day[32] = "";
    struct tm now;
    time_t seconds = time(NULL);
    if (localtime_r(&seconds, &now)) strftime(day, sizeof day, "%Y-%m-%d", &now);
    strbuf_printf(out, ", on %s", day);
}

bool chat_lacks_end(const chat *c) { return c->format == CHAT_TEMPLATE && !c->broken && c->end < 0; }

bool chat_writes_date(const chat *c) {
    return c->format == CHAT_TEMPLATE && !c->broken && chat_template_reads(&c->own, "strftime_now");
}

/* ---- tokens ---------------------------------------------------------------------------------------------------- */

void chat_tokens_free(chat_tokens *t) {
    free(t->ids);
    free(t->trained);
    *t = (chat_tokens){0};
}

void chat_mark(chat_tokens *out, size_t from, bool trained) {
    out->trained = array_grow(out->trained, &out->trained_capacity, out->n, 1);
    if (out->n > from) memset(out->trained + from, trained, out->n - from);
}

void chat_add_id(chat_tokens *out, int32_t id, bool trained) {
    out->ids = array_grow(out->ids, &out->capacity, out->n + 1, sizeof *out->ids);
    out->ids[out->n++] = id;
    chat_mark(out, out->n - 1, trained);
}

status chat_add_text(const chat *c, span text, unsigned flags, bool trained, chat_tokens *out) {
    size_t from = out->n;
    TRY(tokenizer_encode_with(c->t, text.text, text.length, flags, &out->ids, &out->n, &out->capacity));
    chat_mark(out, from, trained);
    return OK;
}

status chat_add_string(const chat *c, const char *text, bool trained, chat_tokens *out) {
    return chat_add_text(c, (span){text, strlen(text)}, ENCODE_SPECIALS_AS_TEXT, trained, out);
}

status chat_add_answer(const chat *c, span head, span answer, bool trained, chat_tokens *out) {
    status rc = OK;
    size_t from = out->n, n = 0, capacity = 0;
    int32_t *both = NULL;
    strbuf text;
    strbuf_init(&text);
    strbuf_add_bytes(&text, head.text, head.length);
    strbuf_add_bytes(&text, answer.text, answer.length);
    TRY_GOTO(rc, chat_add_text(c, head, ENCODE_SPECIALS_AS_TEXT, false, out), done);
    TRY_GOTO(rc, tokenizer_encode_with(c->t, text.text, text.length, ENCODE_SPECIALS_AS_TEXT, &both, &n, &capacity),
             done);
    size_t n_head = out->n - from;
    if (n > n_head && (n_head == 0 || memcmp(both, out->ids + from, n_head * sizeof *both) == 0)) {
        for (size_t i = n_head; i < n; i++) chat_add_id(out, both[i], trained);
    } else {
        TRY_GOTO(rc, chat_add_text(c, answer, ENCODE_SPECIALS_AS_TEXT, trained, out), done);
    }
done:
    free(both);
    strbuf_fini(&text);
    return rc;
}

/* ---- records --------------------------------------------------------------------------------------------------- */

static status encode_text(const chat *c, span text, bool ends, chat_tokens *out) {
    if (c->bos >= 0) chat_add_id(out, c->bos, true);
    TRY(chat_add_text(c, text, 0, true, out));
    if (ends && c->eos >= 0) chat_add_id(out, c->eos, true);
    return OK;
}

static status encode_plain_pair(const chat *c, const data_record *r, bool open, chat_tokens *out) {
    if (c->bos >= 0) chat_add_id(out, c->bos, false);
    if (open) return chat_add_text(c, r->prompt, ENCODE_SPECIALS_AS_TEXT, false, out);
    TRY(chat_add_answer(c, r->prompt, r->response, true, out));
    if (c->eos >= 0) chat_add_id(out, c->eos, true);
    return OK;
}

/* A pair can be written without a format, turns cannot. */
static status refuse_broken(const chat *c, const data_record *r) {
    strbuf formats;
    strbuf_init(&formats);
    chat_list_formats(c->t, &formats);
    if (r->kind == RECORD_PAIR) strbuf_printf(&formats, "%snone", formats.length ? " or " : "");
    status rc = ERR(ERR_INPUT, "%s:%llu: the tokenizer's chat template cannot be rendered: %s; mend it%s%s", r->path,
                    (unsigned long long)r->line, c->broken,
                    formats.length ? ", or write turns without it: data.chat (--chat) " : "",
                    formats.length ? formats.text : "");
    strbuf_fini(&formats);
    return rc;
}

static status encode_turns(const chat *c, const turns *t, data_train_on on, chat_tokens *out) {
    const data_record *r = t->record;
    if (c->broken) return refuse_broken(c, r);
    if (c->format == CHAT_TEMPLATE) return chat_render(c, t, on, out);
    TRY(record_check_plain(r));
    return chat_write_format(c, t, out);
}

static status encode_record(const chat *c, const data_record *r, data_train_on on, bool open, chat_tokens *out) {
    record_message pair[2] = {{.role = TURN_USER, .content = r->prompt},
                              {.role = TURN_ASSISTANT, .content = r->response}};
    turns t = {.record = r, .messages = pair, .n = open ? 1 : 2, .open = open};
    if (r->kind == RECORD_TEXT) return encode_text(c, r->text, !open, out);
    if (r->kind == RECORD_PAIR && c->format == CHAT_NONE) {
        TRY(record_check_plain(r));
        return encode_plain_pair(c, r, open, out);
    }
    if (r->kind == RECORD_MESSAGES) {
        t.messages = r->messages;
        t.n = r->n_messages;
        if (open && chat_is_response(&t, t.n - 1)) t.n--;
        if (t.n == 0)
            return ERR(ERR_INPUT, "%s:%llu: found only messages of the assistant, expected a message to answer",
                       r->path, (unsigned long long)r->line);
    }
    return encode_turns(c, &t, on, out);
}

status chat_encode(const chat *c, const data_record *r, data_train_on on, chat_tokens *out) {
    size_t from = out->n;
    status rc = encode_record(c, r, on, false, out);
    if (rc != OK) {
        out->n = from;
        return error_trail(rc, __FILE__, __LINE__, __func__);
    }
    if (on == TRAIN_ON_ALL) chat_mark(out, from, true);
    return OK;
}

status chat_encode_prompt(const chat *c, const data_record *r, chat_tokens *out) {
    size_t from = out->n;
    status rc = encode_record(c, r, TRAIN_ON_RESPONSE, true, out);
    if (rc != OK) {
        out->n = from;
        return error_trail(rc, __FILE__, __LINE__, __func__);
    }
    chat_mark(out, from, false);
    return OK;
}
