#pragma once
/* chat_template.h - private to data: a tokenizer's own chat templates and the special tokens that they may name. */
#include "data/data.h"
#include "jinja/jinja.h"

typedef struct chat_template {
    jinja *usual,
        *with_tools; /* with_tools: for conversations that have tools; NULL: `usual` does both, and the reverse */
    json_t *tokens;  /* {"bos_token": "<s>", ...} */
    uint64_t hash;   /* of all of it */
} chat_template;

/* tokenizer_name: a directory, or the tokenizer.json in it. Into a zeroed struct, which chat_template_close ends, also after
 * an error. */
status chat_template_open(chat_template *out, const char *tokenizer_name, bool *found);
void chat_template_close(chat_template *t);
/* The one for a conversation with or without tools, as transformers chooses; NULL: none. */
const jinja *chat_template_choose(const chat_template *t, bool has_tools);
bool chat_template_reads(const chat_template *t, const char *variable); /* does any of them? */
