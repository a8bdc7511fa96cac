#pragma once
/* encode.h - private to data: the stages between a text and its ids.
 *
 *   text -> UTF-8 made valid -> added tokens -> normalizers -> added tokens again -> pre-tokenizers -> BPE -> ids
 *
 * Stages push: each calls the next for every piece it makes, so the order of ids is the order of calls, no list of
 * pieces is kept, and a piece that is not changed is never copied.
 * What a tokenizer knows is read-only after it was opened. What one call changes (buffers, the regex library's state,
 * the cache of words) is an encoder; a call borrows one, so calls from several threads share only the tokenizer. */
#include "data/data.h"
#include "data/part.h"
#include "jinja/jinja.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* ---- text ---------------------------------------------------------------------------------------------------- */

/* A stretch of text on its way. `at_start` and n_start exist for one rule of Metaspace ("first"): does the piece come
 * from the very beginning of the input, and how many of its leading bytes stem from the input's first character.
 * The last two exist for texts that are encoded in parts (see cuts.c): `open` says that the piece may continue after its
 * last byte, and stages with a number below `n_continued` began with it in the part before. */
typedef struct piece {
    const char *text;
    size_t length;
    size_t n_start;
    bool at_start;
    bool open;
    size_t n_continued;
} piece;

/* Steps that put text in multiply it, and steps follow each other: a file of 2 KB could make gigabytes of one letter.
 * No step of published files makes more than 33 bytes of 3. */
static inline size_t growth_most(size_t n_bytes) { return 4096 + 64 * n_bytes; }

/* The part [from, to) of a piece; it ends there. */
static inline piece piece_part(const piece *p, size_t from, size_t to) {
    bool at_start = p->at_start && from < p->n_start;
    return (piece){p->text + from, to - from, at_start ? MIN(p->n_start - from, to - from) : 0,
                   at_start,       false,     from == 0 ? p->n_continued : 0};
}

/* The same piece with other text. */
static inline piece piece_with(const piece *p, const char *text, size_t length, size_t n_start) {
    return (piece){text, length, n_start, p->at_start, p->open, p->n_continued};
}

static inline size_t char_length(char lead) {
    unsigned char c = (unsigned char)lead;
    return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

/* Where the character begins that ends at `end`, which is not 0. */
static inline size_t char_before(const char *text, size_t end) {
    do end--;
    while (((unsigned char)text[end] & 0xc0) == 0x80);
    return end;
}

int32_t char_decode(const char *text);      /* of valid UTF-8 */
size_t char_encode(int32_t c, char out[4]); /* the number of bytes */
bool char_is_space(int32_t c);              /* White_Space */
bool char_is_numeric(int32_t c);            /* Nd, Nl, No */
bool char_is_punctuation(int32_t c);        /* P*, and what ASCII calls punctuation */
bool char_is_word(int32_t c);               /* \w: letters, marks, decimal digits, connectors, joiners */
bool char_is_mark(int32_t c);               /* Mn, Mc, Me of Unicode 9 */
bool char_is_younger(int32_t c);            /* no normal form changes it: it is not in Unicode 9 */
/* Appends the bytes with every ill-formed piece replaced by U+FFFD. */
void text_make_valid(const char *text, size_t n_bytes, strbuf *out);

/* The characters that ByteLevel writes bytes as: their code points, all below 0x180; and back, -1 for others. */
extern const uint16_t byte_chars[256];
int byte_of_char(int32_t c);

/* ---- cuts: places where a text may end and be continued by another call; see cuts.c -------------------------- */

typedef struct cut {
    size_t at;    /* in the text of the stage */
    size_t index; /* among all cuts of the call */
} cut;
typedef struct cut_list { /* by place */
    cut *cuts;
    size_t n;
    const char *base; /* what `at` is counted from */
} cut_list;
typedef struct cut_search {
    cut_list list; /* in the text of the stage that runs */
    bool *is_dead; /* (n of the first list) a part cannot begin there */
    int n_muted;   /* above 0: what runs cannot be continued from inside */

    size_t *places;
    text_part *part;
    size_t n_ids_before;
} cut_search;
void cut_search_begin(cut_search *s, text_part *part, const char *text, size_t length, size_t zone, size_t n_ids);
void cut_search_end(cut_search *s);
/* A piece of the stage's text ends at `at`, and the ids of all text before it are there: level as in text_part. */
void cut_note(cut_search *s, const char *at, size_t level, size_t n_ids);
static inline void cut_reached(cut_search *s, const char *at, size_t level, size_t n_ids) {
    if (s->list.n && at >= s->list.base + s->list.cuts[0].at) cut_note(s, at, level, n_ids);
}
/* No part begins strictly between the two. */
void cut_kill(cut_search *s, const char *from, const char *to);
/* No part begins after a character of a word. */
void cut_kill_in_words(cut_search *s, const piece *p);

/* For a stage that changes text: the cuts of its piece, to be mapped, and the list that is put back after it. */
cut_list cut_list_of(const cut_search *s, const piece *p);
void cut_list_free(cut_list *l);
/* Mapping, from left to right: what is not mapped is no place to cut any more. */
typedef struct cut_mapper {
    cut_list *list;
    size_t at, n_kept;
} cut_mapper;
void cut_map(cut_mapper *m, size_t from, size_t to, size_t new_from); /* [from, to) stands at new_from now */
static inline void cut_map_end(cut_mapper *m) { m->list->n = m->n_kept; }

/* ---- classes of characters: see substitute.c ------------------------------------------------------------------ */

typedef struct substitute_range {
    int32_t first, last, substitute;
} substitute_range;
typedef struct substitutes { /* of one expression */
    substitute_range *ranges;
    size_t n;
} substitutes;
void substitutes_open(substitutes *s, const char *expression, size_t length); /* as PCRE2 gets it */
void substitutes_close(substitutes *s);
/* The text to match instead, as long as this one; NULL: it may be matched as it is. The caller frees. */
char *substitutes_copy(const substitutes *s, const char *text, size_t length);

/* ---- patterns ------------------------------------------------------------------------------------------------ */

typedef struct pattern {
    pcre2_code *code; /* NULL: a literal */
    span literal;
    substitutes substitutes;
    bool has_jit, has_open_jit;
    size_t window; /* bytes; see pattern.c */
    uint64_t steps_per_byte_read;
    /* Matching may begin at any place where no match is in progress: nothing looks back, and no match is empty. */
    bool restarts;
    const char *file, *where; /* for messages */
} pattern;
typedef struct matcher { /* one per encoder */
    pcre2_match_context *context;
    pcre2_match_data *data;
    pcre2_jit_stack *stack;
    uint64_t n_steps_left; /* for matches that need many */
} matcher;
/* The places where a pattern matches in one text, from left to right, as the reference finds them. */
typedef struct pattern_walk {
    const pattern *p;
    matcher *m;
    const char *text;
    char *copy; /* what is matched instead, where PCRE2 classes a character of the text otherwise than our table */
    size_t length, from, last_end;
    bool has_last;
    bool open;        /* more text follows that is not known */
    size_t undecided; /* open, after the last match: from here on that text decides; at most length */
} pattern_walk;
status pattern_open(pattern *p, const tokenizer_pattern *source, const char *file, const char *where);
void pattern_close(pattern *p);
void matcher_open(matcher *m);
void matcher_close(matcher *m);
/* What may be spent on matching: for a new text, and more for each of its bytes. */
void matcher_begin(matcher *m);
void matcher_allow(matcher *m, size_t n_bytes);
void pattern_begin(pattern_walk *w, const pattern *p, matcher *m, const char *text, size_t length);
void pattern_end(pattern_walk *w);
status pattern_next(pattern_walk *w, size_t *start, size_t *end, bool *found);

/* ---- normalizers --------------------------------------------------------------------------------------------- */

typedef struct normalizer {
    const tokenizer_normalizer *source;
    pattern pattern; /* of Replace */
} normalizer;
/* p becomes its normal form, which lies in one of the two buffers or, unchanged, where it was. Of an open piece only
 * what no further text can change is left. cuts: those of the piece, mapped. */
status normalize(const normalizer *steps, size_t n_steps, matcher *m, strbuf buffers[2], piece *p, cut_list *cuts);

/* ---- added tokens -------------------------------------------------------------------------------------------- */

typedef struct trie_node {
    uint32_t first_child; /* children lie together, sorted by byte */
    uint16_t n_children;
    unsigned char byte;
    int32_t added; /* the token that ends here, an index; -1: none */
} trie_node;
typedef struct added_set {
    trie_node *nodes;
    size_t n_nodes;
    bool begins[256]; /* first bytes */
    int n_first;      /* how many; one is searched with memchr */
    unsigned char first;
    bool any_single_word, any_lstrip;
} added_set;
typedef struct added_text {
    span text;
    int32_t added;
} added_text;
status added_set_open(added_set *s, added_text *texts, size_t n, const char *file);
void added_set_close(added_set *s);
/* The leftmost longest match at or after `from`; -1: none. open: text follows that is not known, and -2 means that it
 * decides from *start on. */
enum { ADDED_NONE = -1, ADDED_UNDECIDED = -2 };
int32_t added_set_find(const added_set *s, const char *text, size_t length, size_t from, bool open, size_t *start,
                       size_t *end);

/* ---- BPE ----------------------------------------------------------------------------------------------------- */

typedef struct merge_slot {
    int32_t left, right; /* left -1: free */
    int32_t rank, result;
} merge_slot;
typedef struct bpe {
    const tokenizer_file *file;
    bool is_bytes;          /* words are bytes, each standing for its character of ByteLevel */
    bool cuts_at_metaspace; /* no merge crosses from another character to U+2581: words may be cut there */
    int32_t byte_ids[256];  /* is_bytes: the token of each byte, else the token <0x..> of each; -1: none */
    merge_slot *merges;
    size_t n_slots;
} bpe;
typedef struct bpe_scratch bpe_scratch;
typedef struct id_list { /* grows as array_grow says */
    int32_t **ids;
    size_t *n, *capacity;
} id_list;
static inline void id_list_add(id_list *out, int32_t id) {
    *out->ids = array_grow(*out->ids, out->capacity, *out->n + 1, sizeof **out->ids);
    (*out->ids)[(*out->n)++] = id;
}
void bpe_open(bpe *b, const tokenizer_file *f, bool is_bytes);
void bpe_close(bpe *b);
bpe_scratch *bpe_scratch_open(void);
void bpe_scratch_close(bpe_scratch *s);
status bpe_encode(const bpe *b, bpe_scratch *s, const char *text, size_t length, id_list *out);
/* The end of the word at `from` within a word of cuts_at_metaspace. */
size_t bpe_word_end(const char *text, size_t from, size_t length);

/* ---- the tokenizer of a file --------------------------------------------------------------------------------- */

typedef struct pretokenizer {
    const tokenizer_pretokenizer *source;
    pattern pattern; /* of Split and ByteLevel */
    bool has_pattern;
} pretokenizer;
typedef struct encoder {
    struct encoder *next; /* in the tokenizer's list of free ones */
    matcher matcher;
    bpe_scratch *bpe;
    strbuf valid, normal[2];
    strbuf *stage;         /* one per pre-tokenizer, for those that change text */
    size_t n_written_left; /* bytes that ByteLevel may still write out in this call */
    cut_search cuts;       /* empty unless a part of a text is encoded */
} encoder;
typedef struct decoder {
    const tokenizer_decoder *source;
    pattern pattern; /* of Replace */
} decoder;
typedef struct file_tokenizer {
    tokenizer_file file;
    normalizer *normalizers;
    pretokenizer *pretokenizers;
    decoder *decoders;
    added_set plain, normalized;         /* added tokens that match the text as it is, and its normal form */
    const tokenizer_added **added_by_id; /* (n_ids) NULL: not an added token */
    span *shown;                         /* (n_ids) what decoders see: for normalized added tokens their normal form */
    bool *is_special;                    /* (n_ids) left out when decoding */
    bpe bpe;
    arena memory;
} file_tokenizer;
/* What the beginning of a piece makes different: the level that a part may as well have. */
size_t file_tokenizer_level(const file_tokenizer *t, size_t level);
status file_tokenizer_open(file_tokenizer **out, const char *path);
void file_tokenizer_close(file_tokenizer *t);
encoder *encoder_open(const file_tokenizer *t);
void encoder_close(const file_tokenizer *t, encoder *e);
/* specials_as_text: special tokens in the text are text. */
status file_tokenizer_encode(const file_tokenizer *t, encoder *e, const char *text, size_t n_bytes,
                             bool specials_as_text, id_list *out);
status file_tokenizer_encode_part(const file_tokenizer *t, encoder *e, text_part *part, id_list *out);

/* A place in a text, and how many of its ids lie before it. */
typedef struct text_cut {
    size_t at;       /* byte */
    bool splits;     /* the text after it is encoded apart where the ids of the text before it would change otherwise */
    size_t n_before; /* out; a token across a place that does not split lies behind it */
} text_cut;
typedef struct text_marks {
    const jinja_range *content; /* ascending, apart: special tokens that touch these bytes are text */
    size_t n_content;
    text_cut *cuts; /* ascending */
    size_t n_cuts;
} text_marks;
/* UTF-8 as one text: the ids are those of the plain text as long as no content holds a special token and nothing splits. */
status file_tokenizer_encode_marked(const file_tokenizer *t, encoder *e, const char *text, size_t n_bytes,
                                    const text_marks *m, id_list *out);
status tokenizer_encode_marked(const tokenizer *t, const char *text, size_t n_bytes, const text_marks *m,
                               int32_t **tokens, size_t *n, size_t *capacity);
/* The first special token of the text as it is written, -1: none. any: also added tokens that are not special. */
int32_t tokenizer_find_special(const tokenizer *t, const char *text, size_t n_bytes, bool any, size_t *start,
                               size_t *end);
/* Pre-tokenizers from number `stage` on, then BPE. */
status pretokenize(const file_tokenizer *t, encoder *e, size_t stage, const piece *p, id_list *out);

/* Text out of ids, stage by stage; what cannot be decided yet is held back. */
typedef struct decode_chain decode_chain;
decode_chain *decode_chain_open(const file_tokenizer *t);
void decode_chain_close(decode_chain *c);
status decode_chain_push(decode_chain *c, int32_t id, bool keep_specials, strbuf *out);
status decode_chain_end(decode_chain *c, strbuf *out);
