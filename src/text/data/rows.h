#pragma once
/* rows.h - private to data: the documents of some files laid out in rows.
 *
 * Text is one stream: documents follow each other, a row takes the next T tokens, and a document that is longer
 * continues in the next row. A record with a prompt is always in one row: an answer without its question would teach
 * nothing. A record longer than a row is cut at its end. Examples of preferences are records too, one or two documents
 * each, that are never cut (example_rows.c). */
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
    data_kind kind;
    bool share_prompts;           /* of examples */
    uint64_t first_example;       /* the number in the split of its first example */
    uint32_t *mismatched;         /* DATA_LABELLED: per example, whose response the mismatched part has */
    uint64_t size_half, size_all; /* rows of which size would hold half of the examples, and all */
} row_space;
void row_space_init(row_space *r, int64_t T, bool pack, int32_t eos, uint64_t order_key);
void row_space_fini(row_space *r);
void row_space_add(row_space *r, segment s); /* empty ones are skipped */
status row_space_lay_out(row_space *r);      /* after the last segment; counts into their reports */
/* Of its records or examples, as many as row_space_n_lengths: the tokens of each. Before it is laid out. */
void row_space_lengths(row_space *r, uint64_t *lengths);
/* Row `index`, counting on through shuffled epochs; returns the first place that holds no token. */
int64_t row_space_fill(const row_space *r, uint64_t index, const data_row *out);
uint64_t row_space_place(const row_space *r,
                         uint64_t index); /* of a row that is not empty: below n_rows in every epoch */

/* ---- documents ---- */
typedef struct document {
    const token_store *store;
    uint64_t begin, n; /* n with the EOS that is not stored */
    bool adds_eos;
} document;
static inline document document_of(const segment *s, uint64_t i) {
    if (s->store->is_text) return (document){s->store, s->begin, s->n_tokens, s->adds_eos};
    uint64_t k = s->first_document + i, begin = store_document_begin(s->store, k);
    return (document){s->store, begin, s->store->documents[k].end - begin, false};
}
static inline int32_t token_at(const document *d, uint64_t i, int32_t eos) {
    return d->adds_eos && i + 1 == d->n ? eos : store_token(d->store, d->begin + i);
}
static inline bool trained_at(const document *d, uint64_t i) {
    return (d->adds_eos && i + 1 == d->n) || store_trained(d->store, d->begin + i);
}
const segment *row_space_record(const row_space *r, uint64_t number); /* the segment that has document `number` */
/* Tokens of a document from `offset` on into the row at place `at`; returns the place after them. */
int64_t row_fill_document(const row_space *r, const document *d, uint64_t offset, int64_t at, const data_row *out);

/* ---- examples: example_rows.c ---- */
static inline uint64_t documents_per_example(data_kind k) { return k == DATA_PAIRS ? 2 : 1; }
static inline uint64_t row_space_n_examples(const row_space *r) {
    return r->kind == DATA_TEXT ? 0 : r->n_record_documents / documents_per_example(r->kind);
}
static inline uint64_t row_space_n_lengths(const row_space *r) {
    return r->kind == DATA_TEXT ? r->n_record_documents : row_space_n_examples(r);
}
status row_space_lay_out_examples(row_space *r);
/* Tokens that each example needs in a row, as far as that does not depend on the row. */
void row_space_example_sizes(row_space *r, uint64_t *sizes);
int64_t row_space_fill_examples(const row_space *r, uint64_t row, const data_row *out);
/* The error for a split of which no example fits in a row. positions: of the model, 0: any number. */
status row_space_none_fits(const row_space *r, const char *name, split which, int64_t positions);
