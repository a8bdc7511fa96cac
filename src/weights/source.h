#pragma once
/* source.h - private to weights, part of its face: a model to be run, from a Hugging Face directory, a run, or a
 * checkpoint. */
#include "checkpoint/checkpoint.h"

typedef struct model_source {
    char dir[4096]; /* the Hugging Face directory or the checkpoint */
    model_config config;
    const char *tokenizer;     /* for tokenizer_open */
    chat_format chat;          /* its turns were trained in; CHAT_AUTO: not given */
    const char *chat_kwargs;   /* of its template then; NULL: none */
    json_t *generation;        /* generation_config.json, or what config.json says of it; NULL: nothing */
    checkpoint_reader *reader; /* NULL: a Hugging Face directory */
    arena memory;
} model_source;

/* Reads everything but the weights. The model's name points into `path`. tokenizer: to be used instead of its own; NULL: that. */
status model_source_open(model_source *s, const char *path, const char *tokenizer);
void model_source_close(model_source *s);
/* Its tokenizer, checked to have no token without an embedding; the caller closes it. */
status model_source_tokenizer(const model_source *s, tokenizer **out);
/* Every parameter of p, rounded once to its dtype. */
status model_source_load(const model_source *s, exec *e, const plan *p);
/* The tokens that end a text: eos_token_id of generation_config.json (a number or a list) or, where there is no such file, of
 * config.json; else the tokenizer's. The caller frees; none at all is possible. */
status model_source_eos(const model_source *s, const tokenizer *t, int32_t **ids, size_t *n);
