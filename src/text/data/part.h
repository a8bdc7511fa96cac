#pragma once
/* part.h - private to data: a part of a text through the tokenizer, so that parts give the ids of the whole.
 *
 *     text_part p = {.text = text, .n_bytes = n, .is_first = true, .is_open = true, .zone = n / 2};
 *     TRY(tokenizer_encode_part(t, &p, &ids, &n_ids, &capacity));
 *     if (p.last.found) the first p.last.n_ids ids are those of the first p.last.place bytes, and the next part begins
 *     there with p.last.level; else no place after `zone` is proven: give more text.
 *
 * cuts.c says what is proven and how. */
#include "data/data.h"

typedef struct text_boundary {
    bool found;
    size_t place; /* bytes of the part before it */
    size_t n_ids; /* of those bytes */
    size_t level; /* for the part that begins there */
} text_boundary;
typedef struct text_part {
    const char *text;
    size_t n_bytes;
    bool is_first; /* nothing comes before it */
    bool is_open;  /* text follows that is not given */
    /* How many stages have the text as the continuation of a piece that began before it: 0 at the beginning and after
     * an added token; 1: the normalizers; 2 + k: also the pre-tokenizers 0..k. */
    size_t level;
    size_t zone;   /* boundaries are looked for after this place */
    size_t wanted; /* the place of most interest; 0: none */
    text_boundary at_wanted, last;
} text_part;
/* Appends the ids of the part; after the last boundary they may not be those of the whole text. */
status tokenizer_encode_part(const tokenizer *t, text_part *part, int32_t **tokens, size_t *n, size_t *capacity);
size_t tokenizer_deepest_level(const tokenizer *t); /* of a part that begins anywhere but at an added token */
