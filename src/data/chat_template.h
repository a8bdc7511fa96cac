/* chat_template.h - what a tokenizer's own chat template says, as far as it writes one of our formats. */
#pragma once
#include "data/data.h"

typedef struct chat_template {
    chat_format format;    /* CHAT_NONE: there is no template, CHAT_AUTO: it is none of ours */
    strbuf path;           /* the file it stands in */
    strbuf default_system; /* of conversations that have none; empty: none */
    bool leads;            /* ChatML: BOS before the first turn */
    bool thinks;           /* Qwen3: the last answer carries its thoughts, empty ones too */
    bool keeps_spaces;     /* Llama 3: what is said is not stripped */
} chat_template;

/* tokenizer_name: a directory, or the tokenizer.json in it. Into a zeroed struct, which chat_template_fini ends, also after
 * an error. */
status chat_template_read(chat_template *out, const char *tokenizer_name);
void chat_template_ignore(chat_template *t); /* another format is asked for: only the path stays */
void chat_template_fini(chat_template *t);
