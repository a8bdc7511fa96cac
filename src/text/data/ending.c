/* ending.c - how a model that is trained on a data set ends its answers and texts, for those who load it elsewhere.
 *
 * Built-in chat formats are code here; other programs need them as templates. Each is written with the texts of the
 * tokenizer's own tokens, and gives the ids of chat_formats.c. */
#include "data/chat_parts.h"

#include <stdlib.h>
#include <string.h>

/* ---- built-in formats as templates ------------------------------------------------------------------------------- */

static json_t *token_text(const tokenizer *t, int32_t id) {
    strbuf text;
    strbuf_init(&text);
    json_t *out = NULL;
    if (tokenizer_decode_with(t, &id, 1, DECODE_KEEP_SPECIALS, &text) == OK && text.length)
        out = json_stringn(text.text, text.length);
    else error_clear();
    strbuf_fini(&text);
    return out ? out : json_string("");
}

/* A string of the template's language. */
static void add_literal(strbuf *out, const tokenizer *t, int32_t id) {
    json_t *text = token_text(t, id);
    strbuf_add(out, "'");
    for (const char *c = json_string_value(text); *c; c++) {
        if (*c == '\'' || *c == '\\') strbuf_add(out, "\\");
        strbuf_add_bytes(out, c, 1);
    }
    strbuf_add(out, "'");
    json_decref(text);
}

static void write_llama3(strbuf *out, const tokenizer *t) {
    strbuf_add(out, "{{ ");
    add_literal(out, t, tokenizer_bos(t));
    strbuf_add(
        out, " }}{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + "
             "message['content'] | trim + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
             "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}");
}

static void write_llama2(strbuf *out, const tokenizer *t) {
    strbuf_add(out, "{% set first = 1 if messages[0]['role'] == 'system' else 0 %}{% for message in messages[first:] %}"
                    "{% if message['role'] == 'user' %}{{ ");
    add_literal(out, t, tokenizer_bos(t));
    strbuf_add(out,
               " + '[INST] ' + (('<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' if first and loop.first "
               "else '') + message['content']) | trim + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
               "{{ ' ' + message['content'] | trim + ' ' + ");
    add_literal(out, t, tokenizer_eos(t));
    strbuf_add(out, " }}{% endif %}{% endfor %}");
}

char *chat_format_template(const chat *c) {
    strbuf out;
    strbuf_init(&out);
    switch (c->format) {
    case CHAT_CHATML:
        strbuf_add(
            &out,
            "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
            "'<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}");
        break;
    case CHAT_LLAMA3: write_llama3(&out, c->t); break;
    case CHAT_LLAMA2: write_llama2(&out, c->t); break;
    default: return NULL;
    }
    return strbuf_take(&out);
}

/* ---- what a data set trains ---------------------------------------------------------------------------------------- */

/* Does it have plain texts, which the tokenizer's end token ends, and turns, which that of the chat format ends? */
static void find_kinds(const dataset *d, bool *texts, bool *turns) {
    const char *path;
    double share;
    data_report r;
    *texts = *turns = false;
    for (size_t i = 0; dataset_file_report(d, SPLIT_TRAIN, i, &path, &share, &r); i++) {
        *turns |= r.n_documents > 0 && r.chat != CHAT_AUTO;
        *texts |= r.n_documents > 0 && r.chat == CHAT_AUTO;
    }
    if (dataset_kind(d) == DATA_PROMPTS) *turns = true;
    if (!*turns) *texts = true;
}

static void add_end(json_t *ending, const tokenizer *t, int32_t id) {
    if (id < 0) return;
    json_array_append_new(json_object_get(ending, "ids"), json_integer(id));
    json_array_append_new(json_object_get(ending, "texts"), token_text(t, id));
}

static json_t *ending_of(const chat *c, const tokenizer *t, bool texts, bool turns) {
    bool keeps = c && c->format == CHAT_TEMPLATE && (c->broken || chat_template_reads(&c->own, "eos_token"));
    json_t *out = json_pack("{s:[], s:[], s:b}", "ids", "texts", "keeps_eos", keeps);
    int32_t end = turns && !chat_lacks_end(c) ? chat_end_of_turn(c) : -1;
    add_end(out, t, end);
    if (texts && tokenizer_eos(t) != end) add_end(out, t, tokenizer_eos(t));
    char *template = turns ? chat_format_template(c) : NULL;
    if (template)
        json_object_update_new(out,
                               json_pack("{s:s, s:s}", "template", template, "format", chat_format_name(c->format)));
    if (tokenizer_bos(t) >= 0) json_object_set_new(out, "bos", token_text(t, tokenizer_bos(t)));
    free(template);
    return out;
}

status dataset_ending(const dataset *d, const data_options *o, json_t **out) {
    const tokenizer *t = dataset_tokenizer(d);
    chat *c = NULL;
    bool texts, turns;
    *out = NULL;
    if (o->source && !str_starts_with(o->source, "builtin:")) /* where data.chat has no effect */
        TRY(chat_open(&c, t, o->tokenizer ? o->tokenizer : "byte",
                      &(chat_options){.format = o->chat, .kwargs = o->chat_kwargs}));
    find_kinds(d, &texts, &turns);
    *out = ending_of(c, t, texts || !c, c && turns);
    bool plain = c && turns && c->format == CHAT_NONE && !tokenizer_is_byte(t);
    chat_close(c);
    char *own = NULL;
    status rc = plain ? tokenizer_chat_template(o->tokenizer, &own) : OK;
    if (own) json_object_set_new(*out, "template_is_unused", json_true());
    free(own);
    return rc;
}
