#pragma once
/* examples.h - private to data: one line of a file of preferences as one record per answer.
 *
 *     {"prompt", "chosen", "rejected"}      DATA_PAIRS
 *     {"prompt", "completion", "label"}     DATA_LABELLED; label is true or false
 * The answers are texts, or lists of turns; the prompt is the same. A pair may have no prompt: its answers then repeat it,
 * and it is what they have in common (TRL's implicit prompt): their first turns, or the beginning of their texts. Lists that
 * begin with all turns of a prompt beside them repeat it too, and so do lists beside a prompt that is one text; that text
 * must then be one of the common turns.
 * A record of an example is what an sft record with that prompt and that answer is, so its tokens are the same. */
#include "data/solutions.h"

enum { EXAMPLE_RECORDS = 2 };
typedef struct data_example {
    data_record records[EXAMPLE_RECORDS]; /* chosen, rejected; labelled: one */
    size_t n;
    bool is_undesirable; /* DATA_LABELLED: label is false; DATA_SOLUTIONS: is_correct is false */
    solution_keys keys;  /* DATA_SOLUTIONS */
} data_example;

/* Memory of one example at a time: zero it, use it for many lines, close it. */
typedef struct example_parser {
    record_parser parsers[EXAMPLE_RECORDS];
} example_parser;
void example_parser_close(example_parser *p);
/* kind: not DATA_TEXT. The views of `out` live until the parser is used again. */
status example_parse(example_parser *p, const char *text, size_t n_bytes, const char *path, uint64_t line,
                     const data_options *o, data_example *out);
/* Columns that do not belong to the kind are errors; ... */
status example_columns_check(const data_options *o);
status example_options_check(const data_options *o); /* ... and everything else that does not */

/* An example as tokens: one document per record. Checks what is known of tokens alone: something comes before each answer,
 * and the two answers of a pair differ. */
status example_encode(const chat *c, const data_example *e, chat_tokens out[EXAMPLE_RECORDS]);
