#pragma once
/* store.h - private to data: the tokens of one file, in memory or mapped from the token cache.
 *
 * Tokens lie one after the other, with the end of each document. They have 1 byte where bytes are the tokens and the
 * file is text, else 2 where the vocabulary fits, else 4; of 2 and 4 bytes the highest bit says "not trained on".
 * A store is built front to back by a builder, which keeps what it is given in memory or writes it to the cache. */
#include "data/data.h"
#include "data/reader.h"

typedef struct store_document {
    uint64_t end;                                /* one past its last token */
    uint64_t n_trained : 63, is_undesirable : 1; /* DATA_LABELLED: its label is false */
} store_document;
_Static_assert(sizeof(store_document) == 16, "the cache holds these");

typedef struct token_store {
    uint32_t width;
    bool is_text;     /* one document out of a text file: cut anywhere, and its EOS is not stored */
    bool has_prompts; /* documents are records that stand in one row */
    data_kind kind;   /* of pairs two documents each, chosen and rejected */
    bool from_cache;
    uint64_t n_tokens, n_documents, n_skipped, n_replaced;
    uint64_t n_incorrect, n_problems, n_unpaired, n_unused_pairs; /* as in data_report */
    const void *tokens;
    const store_document *documents;
    hash128 hash;        /* of the tokens and documents */
    uint64_t heap_bytes; /* 0: mapped */
    void *map;
    size_t map_bytes;
} token_store;
void store_close(token_store *s);

uint32_t store_width(const tokenizer *t, bool is_text);

static inline int32_t store_token(const token_store *s, uint64_t i) {
    switch (s->width) {
    case 1: return ((const unsigned char *)s->tokens)[i];
    case 2: return ((const uint16_t *)s->tokens)[i] & 0x7fff;
    default: return (int32_t)(((const uint32_t *)s->tokens)[i] & 0x7fffffff);
    }
}
static inline bool store_trained(const token_store *s, uint64_t i) {
    switch (s->width) {
    case 1: return true;
    case 2: return !(((const uint16_t *)s->tokens)[i] >> 15);
    default: return !(((const uint32_t *)s->tokens)[i] >> 31);
    }
}
static inline uint64_t store_document_begin(const token_store *s, uint64_t i) {
    return i ? s->documents[i - 1].end : 0;
}

/* ---- the cache ----------------------------------------------------------------------------------------------- */

/* Where tokens of one file may be kept between runs. One file per (path, tokenizer, options); see cache.c. */
typedef struct cache_slot {
    strbuf path, temporary;
    hash128 key;
    int fd; /* being written; -1: not */
    uint64_t n_written;
    bool failed;    /* a write did: the cache is at fault, not the data */
    data_kind kind; /* of the tokens that it may hold */
} cache_slot;
/* The directory that the setting means; false: none, with a message where one was wanted. */
bool cache_directory(const char *setting, strbuf *out);
void cache_slot_init(cache_slot *c, const char *directory, hash128 key);
void cache_slot_fini(cache_slot *c); /* what was begun and not committed is removed */
/* Fills the store if the slot holds the tokens of this file as it is now. A damaged or foreign slot is named in the
 * log. strict: stores with skipped records do not count. */
status cache_load(cache_slot *c, const char *source, const file_stamp *stamp, int64_t vocab, bool strict,
                  token_store *out, bool *found);
status cache_begin(cache_slot *c);
status cache_write(cache_slot *c, const void *bytes, size_t n_bytes);
/* The store's counts and hash are final and everything was written: makes it the slot's content and maps it. */
status cache_commit(cache_slot *c, const file_stamp *stamp, hash128 source_hash, token_store *s);

/* ---- building ------------------------------------------------------------------------------------------------ */

typedef struct store_builder {
    token_store *store;
    cache_slot *slot; /* NULL: memory */
    unsigned char *bytes;
    size_t n_bytes, capacity; /* memory: everything; else what waits to be written */
    store_document *documents;
    size_t documents_capacity;
    uint64_t n_trained; /* of the open document */
    struct XXH3_state_s *hash;
} store_builder;
status store_builder_open(store_builder *b, token_store *s, uint32_t width, cache_slot *slot, uint64_t n_bytes_hint);
void store_builder_close(store_builder *b);                            /* frees what was not finished */
status store_add_bytes(store_builder *b, const char *bytes, size_t n); /* width 1 */
status store_add(store_builder *b, const int32_t *ids, const unsigned char *trained, size_t n); /* NULL: all */
void store_end_document(store_builder *b);
void store_mark_undesirable(store_builder *b); /* the document that was ended last */
/* Documents are written and the hash is final; with a slot, cache_commit follows. */
status store_builder_finish(store_builder *b);

/* ---- a file through the tokenizer ----------------------------------------------------------------------------- */

typedef struct tokenize_job {
    const data_options *options;
    const tokenizer *tokenizer;
    const chat *chat;
    pool *threads;          /* opened when first needed */
    strbuf cache_directory; /* "": none */
    bool cache_is_auto;
    hash128 identity;      /* of tokenizer and options */
    size_t block_bytes;    /* of text that is encoded at once */
    size_t overlap_bytes;  /* of text around the end of a block, in which it is looked for */
    double report_every_s; /* a file that takes longer says so often how far it is ... */
    double reported_s;     /* ... last, or when it was begun */
} tokenize_job;
status tokenize_job_open(tokenize_job *j, const data_options *o, const tokenizer *t, const chat *c);
void tokenize_job_close(tokenize_job *j);
void tokenize_say_how_far(tokenize_job *j, const reader *in);
status tokenize_blocks(tokenize_job *j, reader *in, store_builder *out); /* text; the job's threads are open */
status tokenize_ids(tokenize_job *j, reader *in, store_builder *out);    /* token_file.c */
status tokenize_file(tokenize_job *j, const char *path, data_format format, token_store *out);
