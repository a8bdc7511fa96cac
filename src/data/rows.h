#pragma once
/* rows.h - private to data: the documents of some files laid out in rows.
 *
 * Text is one stream: documents follow each other, a row takes the next T tokens, and a document that is longer
 * continues in the next row. A record with a prompt is always in one row: an answer without its question would teach
 * nothing. A record longer than a row is cut at its end. */
#include "data/source.h"
#include "data/store.h"

/* Neighbouring documents of one store. */
typedef struct segment {
    const token_store *store;
    data_report *report; /* of their file */
    uint64_t first_document, n_documents;
    uint64_t begin, n_tokens; /* in the store; n_tokens with the EOS that is not stored */
    bool adds_eos;            /* a text file: one document */
    uint64_t place, number;   /* tokens and documents of the segments before it */
} segment;

typedef struct row_space {
    segment *texts, *records;
    size_t n_texts, n_records, texts_capacity, records_capacity;
    uint64_t n_text_tokens, n_text_documents, n_record_documents;
    uint64_t *text_rows; /* one document per row: the first row of each text document, and the end */
    row_packing packing; /* of the records */
    uint64_t n_text_rows, n_rows;
    uint64_t n_placed; /* tokens in rows */
    uint64_t n_heap_bytes;
    uint64_t order_key;
    int64_t T;
    bool pack;
    int32_t eos;
} row_space;
void row_space_init(row_space *r, int64_t T, bool pack, int32_t eos, uint64_t order_key);
void row_space_fini(row_space *r);
void row_space_add(row_space *r, segment s); /* empty ones are skipped */
status row_space_lay_out(row_space *r);      /* after the last segment; counts into their reports */
/* Row `index`, counting on through shuffled epochs; returns the first place that holds no token. */
int64_t row_space_fill(const row_space *r, uint64_t index, int32_t *tokens, int32_t *targets, int32_t *doc_start);
