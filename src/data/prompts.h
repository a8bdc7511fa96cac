#pragma once
/* prompts.h - prompts without completions, with everything else that their records say: what a model is to answer in
 * reinforcement learning.
 *
 * A prompt is rendered and encoded exactly as `ralo generate` would (chat format, or plain text). None is ever cut: one that has
 * more than `longest` tokens is an error, or is skipped and counted, as asked. The order is a permutation for every epoch, drawn
 * from the seed alone, so a position says it all. */
#include "data/data.h"

typedef struct prompt_options {
    const data_options *data; /* source, fields, chat, eval_fraction, seed, digits ... as for training */
    int64_t longest;          /* tokens of a prompt */
    bool skip_long;           /* else an error */
} prompt_options;

typedef struct prompt_record {
    span text; /* as rendered */
    const int32_t *tokens;
    size_t n_tokens;
    const json_t *columns; /* all fields of the record but the prompt; an object; lives as long as the set */
} prompt_record;

typedef struct prompts_report {
    uint64_t n[2];      /* by split */
    uint64_t n_skipped; /* too long */
    size_t longest;     /* tokens, of those kept */
    uint64_t bytes;     /* on the host */
} prompts_report;

typedef struct prompt_set prompt_set;
status prompts_open(prompt_set **out, const tokenizer *t, const char *tokenizer_name, const prompt_options *o);
void prompts_close(prompt_set *s);
void prompts_report_get(const prompt_set *s, prompts_report *out);
uint64_t prompts_fingerprint(const prompt_set *s); /* of all tokens and columns */
/* Number `position` of an endless walk: epoch after epoch of the train split, each in an order of its own; of the eval split in the
 * order of the file. */
prompt_record prompts_get(const prompt_set *s, split which, uint64_t position);
