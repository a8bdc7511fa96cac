#pragma once
/* perplexity.h - how well a model predicts a text: loss, perplexity and bits per byte over windows that do not overlap.
 *
 * The text is cut into windows of seq_len tokens; every token but the first of the text is predicted once, from the tokens
 * before it in its window. The program is the evaluation section of training and nothing else: parameters and one forward.
 *
 * Of records the loss counts the responses alone, as training does: whole records stand in rows, each a document of its own.
 *
 *     perplexity_report r;
 *     TRY(perplexity_measure(&(perplexity_options){.source = "models/qwen", .path = "text.txt", ...}, NULL, &r));
 */
#include "weights/weights.h"

typedef struct perplexity_options {
    const char *source;         /* as generator_options.source */
    const char *adapter;        /* likewise */
    const char *tokenizer;      /* likewise */
    const char *path;           /* of the text, or of the records in messages */
    const chat_tokens *records; /* borrowed; NULL: the text is read */
    size_t n_records;
    double last;     /* share of its bytes that is taken, from the end; 1: all. A cut character is left out */
    int64_t seq_len; /* 0: 512, of records as many as the longest needs; at most the model's positions */
    int64_t batch;   /* windows at once; 0: 8 */
    precision precision;
    uint64_t device_limit; /* 0: what the machine has */
    int n_threads;
    bool bind;
    const backend *backend;
    gpu_options gpu;
} perplexity_options;

typedef struct perplexity_report {
    uint64_t n_bytes, n_tokens; /* of the text that was taken; of records, bytes 0 */
    uint64_t n_predicted;       /* tokens: all but the first; of records, those of responses */
    uint64_t n_too_long;        /* records longer than the model's positions: they are not counted */
    int64_t seq_len;
    double loss;          /* nats per predicted token */
    double perplexity;    /* e^loss */
    double bits_per_byte; /* the whole loss over the bytes of the text; NaN of records */
    double seconds;
    ledger memory;
} perplexity_report;

typedef struct perplexity_observer {
    void *context;
    void (*on_plan)(void *context, const plan *p); /* before anything is allocated */
    void (*on_windows)(void *context, uint64_t done, uint64_t all, double loss_so_far);
} perplexity_observer;
/* observer may be NULL, and so may its functions. */
status perplexity_measure(const perplexity_options *o, const perplexity_observer *observer, perplexity_report *out);
