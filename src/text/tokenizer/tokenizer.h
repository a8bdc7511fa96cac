#pragma once
/* tokenizer.h - Hugging Face's tokenizer.json, the BPE kind, as it stands in its file. data turns texts into tokens by
 * it. */
#include "format/format.h"

typedef struct tokenizer_pattern {
    span text;
    bool is_regex; /* in the syntax of Oniguruma (Ruby); else a literal */
} tokenizer_pattern;

typedef enum normalizer_kind {
    NORMALIZE_NFC,
    NORMALIZE_NFD,
    NORMALIZE_NFKC,
    NORMALIZE_NFKD,
    NORMALIZE_LOWERCASE,
    NORMALIZE_PREPEND,
    NORMALIZE_REPLACE,
    NORMALIZE_STRIP,
    NORMALIZE_STRIP_ACCENTS,
} normalizer_kind;
typedef struct tokenizer_normalizer {
    normalizer_kind kind;
    const char *where;         /* the place in the file: "normalizer.normalizers[1]" */
    tokenizer_pattern pattern; /* REPLACE */
    span content;              /* PREPEND, REPLACE */
    bool left, right;          /* STRIP */
} tokenizer_normalizer;

typedef enum delimiter_behavior {
    DELIMITER_REMOVED,
    DELIMITER_ISOLATED,
    DELIMITER_MERGED_WITH_PREVIOUS,
    DELIMITER_MERGED_WITH_NEXT,
    DELIMITER_CONTIGUOUS,
} delimiter_behavior;
typedef enum metaspace_prepend { PREPEND_FIRST, PREPEND_NEVER, PREPEND_ALWAYS } metaspace_prepend;
typedef enum pretokenizer_kind {
    PRETOKENIZE_SPLIT,
    PRETOKENIZE_BYTE_LEVEL,
    PRETOKENIZE_DIGITS,
    PRETOKENIZE_METASPACE,
    PRETOKENIZE_WHITESPACE,
    PRETOKENIZE_WHITESPACE_SPLIT,
    PRETOKENIZE_PUNCTUATION,
} pretokenizer_kind;
typedef struct tokenizer_pretokenizer {
    pretokenizer_kind kind;
    const char *where;
    tokenizer_pattern pattern;        /* SPLIT */
    delimiter_behavior behavior;      /* SPLIT, PUNCTUATION */
    bool invert;                      /* SPLIT: what the pattern does not match is the delimiter */
    bool add_prefix_space, use_regex; /* BYTE_LEVEL */
    bool individual_digits;           /* DIGITS */
    span replacement;                 /* METASPACE: one character */
    metaspace_prepend prepend;        /* METASPACE */
    bool split;                       /* METASPACE */
} tokenizer_pretokenizer;

typedef enum decoder_kind {
    DECODE_BYTE_LEVEL,
    DECODE_METASPACE,
    DECODE_BYTE_FALLBACK,
    DECODE_FUSE,
    DECODE_REPLACE,
    DECODE_STRIP,
} decoder_kind;
typedef struct tokenizer_decoder {
    decoder_kind kind;
    const char *where;
    tokenizer_pattern pattern; /* REPLACE */
    span content;              /* REPLACE; STRIP, METASPACE: one character */
    metaspace_prepend prepend; /* METASPACE */
    uint32_t start, stop;      /* STRIP: how many at either end, at most */
} tokenizer_decoder;

typedef struct tokenizer_added {
    span content;
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
} tokenizer_added;
typedef struct tokenizer_merge {
    int32_t left, right, result;
} tokenizer_merge;

enum { TOKENIZER_TEXT = -1 }; /* in a template: here stands the text */
typedef struct tokenizer_vocab_slot {
    uint32_t hash;
    int32_t id; /* -1: free */
} tokenizer_vocab_slot;
/* Everything below is checked: ids are from 0 to n_ids - 1, texts are UTF-8, nested sequences are laid out flat. */
typedef struct tokenizer_file {
    const char *path;
    int32_t n_ids;           /* one more than the largest id of the model's vocabulary and the added tokens */
    int32_t n_vocab;         /* tokens of the model's vocabulary */
    span *tokens;            /* (n_ids) by id; text NULL: no token of the model's vocabulary has that id */
    size_t longest;          /* bytes of the longest of them */
    tokenizer_merge *merges; /* in order of rank; of equal pairs the last one counts */
    size_t n_merges;
    const char *unk_name; /* NULL: what is not in the vocabulary is left out */
    int32_t unk;          /* -1: unk_name is NULL or not in the vocabulary */
    bool fuse_unk, byte_fallback, ignore_merges;
    tokenizer_added *added; /* every content once */
    size_t n_added;
    tokenizer_normalizer *normalizers;
    size_t n_normalizers;
    tokenizer_pretokenizer *pretokenizers;
    size_t n_pretokenizers;
    tokenizer_decoder *decoders;
    size_t n_decoders;
    bool has_decoder;  /* without one, tokens are joined with spaces */
    int32_t *template; /* what surrounds a text: ids and TOKENIZER_TEXT; at least one of the latter */
    size_t n_template;
    tokenizer_vocab_slot *slots; /* see tokenizer_file_find */
    size_t n_slots;
    arena memory;
} tokenizer_file;
/* Refuses models other than BPE, components it does not know by name, ids above 2^24 (above 2^20 where there are more
 * than 16 ids for each token), merges of unknown tokens, chains of more than 32 components, added tokens of more than
 * 1024 bytes.
 * `truncation` and `padding` belong to one call of the library that wrote the file and are not read. */
status tokenizer_file_open(tokenizer_file *f, const char *path);
void tokenizer_file_close(tokenizer_file *f);
int32_t tokenizer_file_find(const tokenizer_file *f, const char *text, size_t length); /* in the vocabulary; or -1 */
