#pragma once
/* chat_parts.h - private to data: what the files of conversations share. */
#include "data/chat_template.h"
#include "data/encode.h"
#include "data/source.h"

struct chat {
    chat_format format; /* never CHAT_AUTO */
    const tokenizer *t;
    int32_t bos, eos;               /* -1: none. bos: what comes before a document */
    int32_t start, end_header, end; /* control tokens of a built-in format; end: also the one that a template writes */
    bool trains_newline;
    chat_template own; /* CHAT_TEMPLATE */
    char *broken;      /* with CHAT_AUTO, why the template cannot be rendered; NULL: it can */
    json_t *kwargs;    /* variables of the template that every record gets; NULL: none */
    char *header;      /* CHAT_TEMPLATE: what comes before an answer that is still to come */
    bool asks_always;  /* it writes the same with add_generation_prompt and without */
};

typedef struct turns {
    const data_record *record;
    const record_message *messages;
    size_t n;
    bool open; /* ends with the header of an answer that is still to come */
} turns;

/* An answer of the assistant inside the prompt is context, like what the user says. */
static inline bool chat_is_response(const turns *t, size_t i) {
    return t->messages[i].role == TURN_ASSISTANT && i >= t->record->n_context;
}

/* ---- chat.c: tokens ---- */
void chat_mark(chat_tokens *out, size_t from, bool trained); /* everything after the first `from` tokens */
void chat_add_id(chat_tokens *out, int32_t id, bool trained);
status chat_add_text(const chat *c, span text, unsigned flags, bool trained, chat_tokens *out);
status chat_add_string(const chat *c, const char *text, bool trained, chat_tokens *out);
/* Encodes a head that is not trained and the answer after it. See the top of chat.c. */
status chat_add_answer(const chat *c, span head, span answer, bool trained, chat_tokens *out);

/* ---- chat_formats.c ---- */
chat_format chat_recognise_tokens(const tokenizer *t);
/* The built-in formats that can be written with this tokenizer, as "chatml or llama2"; nothing: none. */
void chat_list_formats(const tokenizer *t, strbuf *out);
status chat_find_control_tokens(chat *c);
span chat_strip(span s); /* as Python's str.strip */
status chat_write_format(const chat *c, const turns *t, chat_tokens *out);

/* A conversation while it is rendered. */
typedef struct rendering {
    const chat *c;
    const turns *t;
    const jinja *template;
    json_t *messages;  /* (t->n) as the template gets them */
    json_t *variables; /* its globals; "messages" and "add_generation_prompt" change from render to render */
    jinja_output whole, part, own; /* own: the whole with one turn's bytes marked */
    text_cut *cuts;                /* begin and end of each trained stretch */
    size_t n_cuts, cuts_capacity;
    struct written_part *parts; /* what the record holds (chat_written.c) */
    size_t n_parts, parts_capacity;
} rendering;

/* ---- ending.c ---- */
char *chat_format_template(
    const chat *c); /* a built-in format in the language of templates; NULL: it is none. The caller frees */

/* ---- chat_written.c ---- */
void chat_written_collect(rendering *s);
status chat_written_render(rendering *s); /* s->whole, with s->variables as they are */
status chat_written_check(rendering *s);  /* ERR_INPUT for the first thing of the record that the whole does not show */

/* ---- chat_render.c ---- */
status chat_render_probe(chat *c); /* finds c->end and c->header in a short conversation */
/* A record as the template writes it. on: which tokens are trained; open: none, it ends with the assistant's header. */
status chat_render(const chat *c, const turns *t, data_train_on on, chat_tokens *out);
