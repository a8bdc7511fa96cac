#pragma once
/* prompts.h - prompts without completions, with everything else that their records say: what a model is to answer in
 * reinforcement learning.
 *
 * A prompt is rendered and encoded exactly as `ralo generate` would (chat format, or plain text). None is ever cut: one that has
 * more than `longest` tokens is an error, or is skipped and counted, as asked. The order is a permutation for every epoch, drawn
 * from the seed alone, so a position says it all.
 *
 * Sources: files of JSON Lines without weights (records.h says which keys hold the prompt), whose last records are for evaluation
 * as in data.h; or builtin:arithmetic, whose prompts are those that are trained on and held out there, with the column "answer".
 * A set is immutable: any number of threads may read it. */
#include "data/data.h"

typedef struct prompt_options {
    const data_options *data; /* source, fields, chat, eval_fraction, seed, digits ... as for training */
    int64_t longest;          /* tokens of a prompt */
    bool skip_long;           /* else an error */
    const char
        *advice; /* what to do about a prompt that is too long, with names of settings: "raise rl.x"; NULL: nothing */
    const char *advice_all; /* the same where all of them are, and are skipped */
} prompt_options;

typedef struct prompt_record {
    span text; /* as rendered; what special tokens a chat format writes are in it as text */
    const int32_t *tokens;
    size_t n_tokens;
    const json_t *columns; /* all fields of the record but the prompt; an object; lives as long as the set */
} prompt_record;

typedef struct prompts_report {
    uint64_t n[2];      /* by split */
    uint64_t n_skipped; /* too long */
    uint64_t n_invalid; /* lines that are no record, skipped with RECORDS_SKIP */
    size_t longest;     /* tokens, of those kept */
    uint64_t bytes;     /* on the host */
} prompts_report;

typedef struct prompt_set prompt_set;
status prompts_open(prompt_set **out, const tokenizer *t, const char *tokenizer_name, const prompt_options *o);
void prompts_close(prompt_set *s);
void prompts_report_get(const prompt_set *s, prompts_report *out);
uint64_t prompts_fingerprint(const prompt_set *s); /* of all tokens and columns */
int32_t
prompts_end(const prompt_set *s); /* the token that ends an answer to them (EOS, or the end of a turn); -1: none */
/* Number `position` of an endless walk: epoch after epoch of the train split, each in an order of its own; of the eval split in the
 * order of the file, again and again. The split has prompts. */
prompt_record prompts_get(const prompt_set *s, split which, uint64_t position);
/* Of a data set that was opened with DATA_PROMPTS, as long as that lives. */
const prompt_set *dataset_prompts(const dataset *d);
