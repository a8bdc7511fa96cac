/* chat_formats.c - the built-in chat formats, for tokenizers without a template of their own.
 *
 *   chatml   <|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nHi<|im_end|>\n
 *   llama3   BOS <|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|> ...
 *   llama2   BOS [INST] <<SYS>>\nsystem\n<</SYS>>\n\nHello [/INST] Hi EOS BOS [INST] ...
 *
 * Control tokens are added by id and everything else is encoded with special tokens as text, so no content can end its
 * own turn. They write the text of system, user and assistant; what else a turn may hold is refused by name. */
#include "data/chat_parts.h"

#include <string.h>

/* ---- control tokens -------------------------------------------------------------------------------------------- */

chat_format chat_recognise_tokens(const tokenizer *t) {
    if (tokenizer_special(t, "<|im_start|>") >= 0 && tokenizer_special(t, "<|im_end|>") >= 0) return CHAT_CHATML;
    if (tokenizer_special(t, "<|start_header_id|>") >= 0 && tokenizer_special(t, "<|end_header_id|>") >= 0 &&
        tokenizer_special(t, "<|eot_id|>") >= 0)
        return CHAT_LLAMA3;
    return CHAT_NONE;
}

void chat_list_formats(const tokenizer *t, strbuf *out) {
    bool has_ends = tokenizer_bos(t) >= 0 && tokenizer_eos(t) >= 0;
    chat_format found = chat_recognise_tokens(t);
    if (found != CHAT_NONE) strbuf_add(out, chat_format_name(found));
    if (has_ends) strbuf_printf(out, "%s%s", out->length ? " or " : "", chat_format_name(CHAT_LLAMA2));
}

static status need_token(const chat *c, const char *text, int32_t *out) {
    *out = tokenizer_special(c->t, text);
    if (*out < 0)
        return ERR(ERR_INPUT,
                   "data.chat=%s: found no token '%s' in the tokenizer, expected one; choose the tokenizer of a model "
                   "with this format, or data.chat=auto",
                   chat_format_name(c->format), text);
    return OK;
}

status chat_find_control_tokens(chat *c) {
    if (c->format == CHAT_CHATML) {
        TRY(need_token(c, "<|im_start|>", &c->start));
        TRY(need_token(c, "<|im_end|>", &c->end));
    } else if (c->format == CHAT_LLAMA3) {
        TRY(need_token(c, "<|start_header_id|>", &c->start));
        TRY(need_token(c, "<|end_header_id|>", &c->end_header));
        TRY(need_token(c, "<|eot_id|>", &c->end));
    }
    if ((c->format == CHAT_LLAMA3 || c->format == CHAT_LLAMA2) && tokenizer_bos(c->t) < 0)
        return ERR(ERR_INPUT, "data.chat=%s: found a tokenizer without BOS, expected one", chat_format_name(c->format));
    if (c->format == CHAT_LLAMA2 && c->eos < 0)
        return ERR(ERR_INPUT, "data.chat=llama2: found a tokenizer without EOS, expected one");
    return OK;
}

/* ---- the formats ----------------------------------------------------------------------------------------------- */

/* What Python's str.strip takes off: White_Space and the four separators of ASCII. */
static bool is_space(const char *text) {
    int32_t ch = char_decode(text);
    return char_is_space(ch) || (ch >= 0x1c && ch <= 0x1f);
}

span chat_strip(span s) {
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

static status chatml_turn(const chat *c, const char *role, span content, chat_tokens *out) {
    strbuf text;
    strbuf_init(&text);
    strbuf_printf(&text, "%s\n", role);
    strbuf_add_bytes(&text, content.text, content.length);
    chat_add_id(out, c->start, false);
    status rc = chat_add_text(c, (span){text.text, text.length}, ENCODE_SPECIALS_AS_TEXT, false, out);
    strbuf_fini(&text);
    TRY(rc);
    chat_add_id(out, c->end, false);
    return chat_add_string(c, "\n", false, out);
}

static status chatml(const chat *c, const turns *t, chat_tokens *out) {
    static const span head = {"assistant\n", 10};
    for (size_t i = 0; i < t->n; i++) {
        const record_message *m = &t->messages[i];
        if (m->role != TURN_ASSISTANT) {
            TRY(chatml_turn(c, turn_role_name(m->role), m->content, out));
            continue;
        }
        bool trained = chat_is_response(t, i);
        chat_add_id(out, c->start, false);
        TRY(chat_add_answer(c, head, m->content, trained, out));
        chat_add_id(out, c->end, trained);
        TRY(chat_add_string(c, "\n", trained && c->trains_newline, out));
    }
    if (!t->open) return OK;
    chat_add_id(out, c->start, false);
    return chat_add_text(c, head, ENCODE_SPECIALS_AS_TEXT, false, out);
}

static status llama3_header(const chat *c, const char *role, chat_tokens *out) {
    chat_add_id(out, c->start, false);
    TRY(chat_add_string(c, role, false, out));
    chat_add_id(out, c->end_header, false);
    return OK;
}

static status llama3(const chat *c, const turns *t, chat_tokens *out) {
    static const span gap = {"\n\n", 2};
    chat_add_id(out, tokenizer_bos(c->t), false);
    for (size_t i = 0; i < t->n; i++) {
        const record_message *m = &t->messages[i];
        span content = chat_strip(m->content);
        TRY(llama3_header(c, turn_role_name(m->role), out));
        if (m->role == TURN_ASSISTANT) {
            TRY(chat_add_answer(c, gap, content, chat_is_response(t, i), out));
        } else {
            strbuf text;
            strbuf_init(&text);
            strbuf_add_bytes(&text, gap.text, gap.length);
            strbuf_add_bytes(&text, content.text, content.length);
            status rc = chat_add_text(c, (span){text.text, text.length}, ENCODE_SPECIALS_AS_TEXT, false, out);
            strbuf_fini(&text);
            TRY(rc);
        }
        chat_add_id(out, c->end, chat_is_response(t, i));
    }
    if (!t->open) return OK;
    TRY(llama3_header(c, "assistant", out));
    return chat_add_text(c, gap, ENCODE_SPECIALS_AS_TEXT, false, out);
}

/* An optional system message comes first and becomes part of the first question; then user and assistant alternate. */
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
            span asked = chat_strip((span){answer.text, answer.length});
            strbuf_add(&question, "[INST] ");
            strbuf_add_bytes(&question, asked.text, asked.length);
            strbuf_add(&question, " [/INST]");
            chat_add_id(out, tokenizer_bos(c->t), false);
            if (i + 1 < t->n) continue; /* its answer is encoded with it */
            TRY_GOTO(rc, chat_add_text(c, (span){question.text, question.length}, ENCODE_SPECIALS_AS_TEXT, false, out),
                     done);
            continue;
        }
        span content = chat_strip(m->content);
        answer.length = 0;
        strbuf_add(&answer, " ");
        strbuf_add_bytes(&answer, content.text, content.length);
        strbuf_add(&answer, " ");
        TRY_GOTO(rc,
                 chat_add_answer(c, (span){question.text, question.length}, (span){answer.text, answer.length},
                                 chat_is_response(t, i), out),
                 done);
        chat_add_id(out, c->eos, chat_is_response(t, i));
    }
done:
    strbuf_fini(&question);
    strbuf_fini(&answer);
    return rc;
}

static status refuse_without(const chat *c, const data_record *r) {
    strbuf formats;
    strbuf_init(&formats);
    chat_list_formats(c->t, &formats);
    status rc = ERR(ERR_INPUT,
                    "%s:%llu: turns need a chat template: found data.chat=none, or a tokenizer without one; put a "
                    "chat_template.jinja into the tokenizer's directory%s%s%s",
                    r->path, (unsigned long long)r->line,
                    formats.length ? ", or set data.chat (generate and eval: --chat) to " : "",
                    formats.length ? formats.text : "", formats.length ? ", whose control tokens it has" : "");
    strbuf_fini(&formats);
    return rc;
}

status chat_write_format(const chat *c, const turns *t, chat_tokens *out) {
    switch (c->format) {
    case CHAT_CHATML: return chatml(c, t, out);
    case CHAT_LLAMA3: return llama3(c, t, out);
    case CHAT_LLAMA2: return llama2(c, t, out);
    default: return refuse_without(c, t->record);
    }
}
