#pragma once
/* source.h - private to data: one kind of source as a small table, and the row it fills.
 *
 * A source is immutable after it was opened, so any number of threads may ask it for rows. */
#include "data/data.h"

typedef struct source source;
typedef struct source_kind {
    /* Fills the whole row; segments and examples arrive as -1, or NULL. See dataset_row_get. */
    void (*row)(const source *s, split which, uint64_t index, const data_row *out);
    void (*report)(const source *s, split which, data_report *out); /* out arrives zeroed, entropy NaN */
    bool (*problem)(const source *s, uint64_t index, strbuf *prompt, strbuf *answer); /* NULL: it has none */
    /* See dataset_answer. NULL: a problem has one right answer. */
    bool (*answer)(const source *s, uint64_t index, const char *begun, size_t n_begun, strbuf *answer);
    void (*close)(source *s);
    /* See dataset_file_report. NULL: it has no files. */
    bool (*file_report)(const source *s, split which, size_t file, const char **path, double *share, data_report *out);
    uint64_t (*n_examples)(const source *s, split which); /* NULL: it has none */
    /* See dataset_place. Both NULL: the source is endless. */
    uint64_t (*place)(const source *s, split which, uint64_t index);
    uint64_t (*n_places)(const source *s, split which);
} source_kind;

/* The first member of every source. */
struct source {
    const source_kind *kind;
    int64_t seq_len;
    bool pack;
    int32_t pad;          /* what fills the rest of a row */
    uint64_t n_bytes;     /* of host memory held for the text */
    uint64_t fingerprint; /* of the tokens */
    data_survey survey;   /* of the lengths alone: what rows do to them is in the reports */
};

/* ---- survey.c ---- */
/* Lengths into the survey, which is zeroed but for `unit`, and the seq_len that holds them, at most `positions` (0: any).
 * beside: tokens that a row needs beside one of them, -1 for records, whose last token is only a target. Sorts. */
void survey_lengths(data_survey *s, uint64_t *lengths, size_t n, int64_t beside, int64_t positions);
int64_t survey_row(int64_t n_tokens, int64_t positions); /* seq_len that holds them, at most `positions` (0: any) */
int64_t survey_text_row(uint64_t n_tokens, const data_options *o); /* seq_len of plain text */
int64_t survey_row_most(const data_options *o);                    /* tokens of a row that is chosen; 0: any */

status arithmetic_open(source **out, const data_options *o);
status grammar_open(source **out, const data_options *o);
status random_open(source **out, const data_options *o);
status preferences_open(source **out, const data_options *o);
status files_open(source **out, const data_options *o, const tokenizer *t);
uint64_t files_host_bytes_at_most(const data_options *o);
/* DATA_PROMPTS, of files or built in. */
typedef struct prompt_set prompt_set;
status prompt_source_open(source **out, const data_options *o, const tokenizer *t);
const prompt_set *prompt_source_set(const source *s);

/* What a file of this kind is stored and laid out as. */
static inline data_kind data_stored_kind(data_kind k) { return k == DATA_SOLUTIONS ? DATA_PAIRS : k; }

/* One entry of data.source. */
typedef struct file_entry {
    char *path;
    double weight; /* 0: none was given */
} file_entry;
/* "a.jsonl:0.7, b.txt:0.3"; a backslash takes the character after it as it is. All have weights or none has. */
bool data_is_record_file(const data_options *o, const char *path); /* does it hold JSON Lines? */
status file_list_parse(const char *source, file_entry **out, size_t *n);
status file_list_parse_eval(const char *source, file_entry **out, size_t *n); /* data.eval_source: no weights */
void file_list_free(file_entry *entries, size_t n);

int32_t chat_document_bos(const chat *c); /* what comes before a document; -1: nothing */

/* Whole documents to rows of T places: best fit, largest first, so that rows are nearly full. */
typedef struct row_packing {
    uint32_t *documents; /* by row */
    uint64_t *row_begin; /* (n_rows + 1) in documents */
    uint64_t n_rows;
} row_packing;
/* sizes: at most T; 0: not to be packed. one_each: a row per document, in order. */
void pack_rows(const uint32_t *sizes, uint32_t n, uint32_t T, bool one_each, row_packing *out);
void row_packing_free(row_packing *p);

int64_t dataset_seq_len(const dataset *d);

/* Fills positions at.. with padding: one document of its own that is not trained on. */
static inline void row_pad(const source *s, int64_t at, const data_row *out) {
    for (int64_t t = at; t < s->seq_len; t++) {
        out->tokens[t] = s->pad;
        out->targets[t] = -1;
        out->doc_start[t] = (int32_t)at;
    }
}

/* Names the segment of the targets from one place of a row to another. */
static inline void row_mark_segment(const data_row *out, int64_t from, int64_t to, uint64_t slot, data_part part) {
    for (int64_t t = from; out->segments && t < to; t++)
        if (out->targets[t] >= 0) out->segments[t] = (int32_t)(PART_STRIDE * slot) + (int32_t)part;
}
