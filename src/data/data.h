#pragma once
/* data.h - text and problems in, packed micro-batches out, with an exact position to resume from.
 *
 * Promises
 *   - Row i of epoch e is a pure function of (source, options, seed): any number of readers, any resume, same rows.
 *   - A row never mixes documents: `doc` marks where each token's document starts and attention stops there.
 *   - Nothing is dropped silently: data_report counts documents, tokens, cut and dropped tokens.
 *   - A source that is too small, unreadable or not UTF-8 where that matters is an error, never an endless loop.
 *
 *     dataset *d;
 *     TRY(dataset_open(&d, &(data_options){.source = "builtin:arithmetic", .seq_len = 256, .difficulty = 2}, 1));
 *     dataset_row(d, SPLIT_TRAIN, 0, tokens, targets, doc);
 *     dataset_close(d);
 */
#include "format/format.h"

typedef struct data_options {
    const char *source;     /* builtin:arithmetic | builtin:grammar | a text file (several: comma separated) */
    const char *tokenizer;  /* byte */
    int64_t seq_len;
    bool pack;              /* several documents per row; false: one document per row, padded */
    int64_t difficulty;     /* builtin:arithmetic: digits of the operands, 1..6 */
    double eval_fraction;   /* of a file's tail kept for evaluation */
    uint64_t seed;
} data_options;

typedef enum split { SPLIT_TRAIN, SPLIT_EVAL } split;

/* ---- tokenizer: bytes 0..255, then the specials -------------------------------------------------------------- */

enum { TOKEN_BOS = 256, TOKEN_EOS = 257, TOKEN_PAD = 258, BYTE_VOCAB = 260 }; /* rounded up to a multiple of 4 */
typedef struct tokenizer tokenizer;
status tokenizer_open(tokenizer **out, const char *name);
void tokenizer_close(tokenizer *t);
int64_t tokenizer_vocab(const tokenizer *t);
int32_t tokenizer_eos(const tokenizer *t);
/* Appends to tokens (grown with array_grow rules); never fails on any bytes. */
void tokenizer_encode(const tokenizer *t, const char *text, size_t n_bytes, int32_t **tokens, size_t *n, size_t *capacity);
void tokenizer_decode(const tokenizer *t, const int32_t *tokens, size_t n, strbuf *out);

/* ---- data sets ----------------------------------------------------------------------------------------------- */

typedef struct dataset dataset;
typedef struct data_report {
    uint64_t n_documents, n_tokens, n_cut_tokens, n_dropped_tokens; /* cut: a document longer than a row goes on in the next */
    uint64_t rows_per_epoch;                                        /* 0: the source is endless */
    double fill;                                                    /* share of row positions that hold a token */
    double entropy_per_token; /* nats, of the trained tokens, where it is known exactly (builtin:grammar); else NaN */
} data_report;
status dataset_open(dataset **out, const data_options *o, int n_threads);
/* Host memory the source will hold, from the sizes of its files: part of the plan. 0 for files that cannot be seen. */
uint64_t dataset_host_bytes(const data_options *o);
void dataset_close(dataset *d);
const tokenizer *dataset_tokenizer(const dataset *d);
void dataset_report(const dataset *d, split s, data_report *out);
/* Row `index` of a split, counting on through shuffled epochs: seq_len tokens, targets (-1: not trained on), doc. */
void dataset_row(const dataset *d, split s, uint64_t index, int32_t *tokens, int32_t *targets, int32_t *doc);
/* Checkable problems: prompt and answer of held-out problem `index`. False when the source has none. Training rows
 * never contain a held-out problem. */
bool dataset_problem(const dataset *d, uint64_t index, strbuf *prompt, strbuf *answer);

/* ---- loader: fills micro-batches ahead of the step on its own thread ----------------------------------------- */

typedef struct batch {
    int32_t *tokens, *targets, *doc; /* (batch * seq_len) */
    int64_t n_valid;                 /* targets that are not -1 */
    uint64_t first_row;
} batch;
typedef struct loader loader;
status loader_open(loader **out, const dataset *d, split s, int64_t rows_per_batch, uint64_t first_row);
void loader_close(loader *l);
/* The next micro-batch, borrowed until the next call; allocates nothing. */
const batch *loader_next(loader *l);
uint64_t loader_host_bytes(int64_t rows_per_batch, int64_t seq_len); /* what its ring holds: part of the plan */
uint64_t loader_position(const loader *l); /* the row after the last batch handed out: what a checkpoint stores */
