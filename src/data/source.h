#pragma once
/* source.h - private to data: one kind of source as a small table, and the row it fills.
 *
 * A source is immutable after it was opened, so any number of threads may ask it for rows. */
#include "data/data.h"

typedef struct source source;
typedef struct source_kind {
    /* Fills the whole row; see dataset_row. */
    void (*row)(const source *s, split which, uint64_t index, int32_t *tokens, int32_t *targets, int32_t *doc);
    void (*report)(const source *s, split which, data_report *out); /* out arrives zeroed, entropy NaN */
    bool (*problem)(const source *s, uint64_t index, strbuf *prompt, strbuf *answer); /* NULL: it has none */
    void (*close)(source *s);
} source_kind;

/* The first member of every source. */
struct source {
    const source_kind *kind;
    int64_t seq_len;
    bool pack;
    int32_t pad;      /* what fills the rest of a row */
    uint64_t n_bytes; /* of host memory held for the text */
};

status arithmetic_open(source **out, const data_options *o);
status grammar_open(source **out, const data_options *o);
status text_open(source **out, const data_options *o, const tokenizer *t);
uint64_t text_file_bytes(const data_options *o);

int64_t dataset_seq_len(const dataset *d);

/* Fills positions at.. with padding: one document of its own that is not trained on. */
static inline void row_pad(const source *s, int64_t at, int32_t *tokens, int32_t *targets, int32_t *doc) {
    for (int64_t t = at; t < s->seq_len; t++) {
        tokens[t] = s->pad;
        targets[t] = -1;
        doc[t] = (int32_t)at;
    }
}
