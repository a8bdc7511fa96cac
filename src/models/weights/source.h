#pragma once
/* source.h - private to weights, part of its face: a model to be run, from a Hugging Face directory, a run, or a
 * checkpoint; with an adapter or without. */
#include "weights/base.h"

/* Where parameters come from: one of these. */
typedef struct param_origin {
    const char *dir;           /* Hugging Face directory; of adapters: PEFT's */
    checkpoint_reader *reader; /* a checkpoint; owned by the source */
    bool drawn;                /* random values */
    uint64_t seed;
} param_origin;

typedef struct model_source {
    char dir[4096];            /* the Hugging Face directory or the checkpoint */
    model_config config;       /* of the ordinary model: with prediction heads, trunk and first head */
    model_config all_heads;    /* the same with every head that is there */
    lora_options lora;         /* for the plan: adapters are applied unmerged, as in training; rank 0: none */
    param_origin base;         /* of all parameters but adapters */
    param_origin adapters;     /* rank > 0 */
    char adapters_dir[4096];   /* the checkpoint or PEFT's directory */
    lora_base trained_over;    /* adapters of a checkpoint: their base */
    const char *tokenizer;     /* for tokenizer_open */
    chat_format chat;          /* its turns were trained in; CHAT_AUTO: not given */
    const char *chat_kwargs;   /* of its template then; NULL: none */
    const char *template;      /* of the built-in format then; NULL: the tokenizer's own, or none */
    json_t *generation;        /* generation_config.json, or what config.json says of it; NULL: nothing */
    bool adapters_name_ends;   /* it is that of PEFT's directory */
    const json_t *description; /* of the checkpoint; NULL: a Hugging Face directory */
    json_t *own_description;   /* of a running model; NULL: it is not one */
    const json_t *kept;        /* tokenizer files of the checkpoint, for tokenizer_files_load; NULL: none */
    arena memory;
} model_source;

/* Reads everything but the weights. path: a Hugging Face directory, a run, a checkpoint, or PEFT's directory of an
 * adapter whose base is a directory here. adapter: PEFT's directory, or a run or checkpoint with adapters, to be used over
 * the model; NULL: none. The model's name points into `path`. tokenizer: to be used instead of its own; NULL: that of the
 * adapter if it has one, else of the model. */
status model_source_open(model_source *s, const char *path, const char *adapter, const char *tokenizer);
void model_source_close(model_source *s);
/* A running model, from the description that its checkpoints get (export_describe): for model_source_eos and the chat format.
 * It has no weights and no tokenizer. */
void model_source_describe(model_source *s, const model_config *c, const char *description);
/* Its tokenizer, checked to have no token without an embedding; the caller closes it. */
status model_source_tokenizer(const model_source *s, tokenizer **out);
/* Every parameter of p, rounded once to its dtype. ERR_INPUT if the adapters were trained over another base. */
status model_source_load(const model_source *s, exec *e, const plan *p);
/* The adapters alone, where the base of s is in p already and was loaded with model_source_load of a source that model_source_shares_base
 * accepts; or none of them: p computes what the base computes. */
status model_source_load_adapters(const model_source *s, exec *e, const plan *p);
void model_source_clear_adapters(exec *e, const plan *p);
/* May the adapters of `other` take the place of those of s in a program for s? ERR_INPUT names what differs: rank, alpha, modules, or
 * the base that they were trained over. Both have adapters over the same model. */
status model_source_shares_base(const model_source *s, const model_source *other);
/* The tokens that end a text: eos_token_id of generation_config.json (a number or a list) or, where there is no such file, of
 * config.json, with those that a run has trained; else the tokenizer's. The caller frees; none at all is possible. */
status model_source_eos(const model_source *s, const tokenizer *t, int32_t **ids, size_t *n);
