#pragma once
/* format.h - files that others wrote: JSON, YAML, safetensors, tokenizer.json; GGUF (gguf.h), which is only written. Bytes in, views out, nothing trusted.
 *
 * Promises
 *   - Every error names the file, where in it (line and column, or tensor name), what was found, what was expected.
 *   - No length, offset or nesting in a file is trusted before it was checked against the file's real size.
 *
 *     safetensors st;
 *     TRY(safetensors_open(&st, "model.safetensors"));
 *     const safetensor *t = safetensors_find(&st, "wte.weight");
 *     ... t->data, t->type, t->shape ...
 *     safetensors_close(&st);
 */
#include "format/gguf.h"
#include "tensor/tensor.h"
#include <jansson.h>

/* A clone without Git LFS leaves a few lines where a large file should be. */
bool format_is_lfs_pointer(const void *bytes, size_t n_bytes);

/* ---- JSON (jansson: strict, no duplicate keys) --------------------------------------------------------------- */

status json_read_file(const char *path, size_t max_bytes, json_t **out); /* the caller calls json_decref */
status json_write_file(const char *path, const json_t *root); /* whole or not at all: temp + fsync + rename */
/* Members of an object; `where` is the file, for the message. Missing or mistyped members are ERR_INPUT. */
status json_get_int(const json_t *object, const char *key, int64_t min, int64_t max, const char *where, int64_t *out);
status json_get_real(const json_t *object, const char *key, const char *where, double *out);
status json_get_string(const json_t *object, const char *key, const char *where, const char **out); /* borrowed */
json_t *json_text(const char *text, size_t n_bytes); /* bytes that are not UTF-8 become U+FFFD */
bool json_has_number(const json_t *v);               /* itself, or anywhere inside */
json_t *json_real_or_null(double x);                 /* null where x is not finite, which JSON cannot say */

/* ---- YAML (libyaml), as a tree; JSON is a subset of it ------------------------------------------------------- */

typedef enum yaml_kind { YAML_SCALAR, YAML_MAP, YAML_LIST } yaml_kind;
typedef struct yaml_node {
    yaml_kind kind;
    const char *key;                      /* inside a map; else NULL */
    const char *text;                     /* scalars */
    bool quoted;                          /* "8" in quotes is a string, 8 is a number */
    int line, column;                     /* 1-based, of the key inside a map, else of the value */
    struct yaml_node *first_child, *next; /* maps and lists, in file order */
} yaml_node;
/* Refuses duplicate keys, aliases and anchors, several documents, nesting deeper than 32, invalid UTF-8 and files over
 * 4 MiB. An empty file is an empty map. The tree lives in `memory`. */
status yaml_read_file(const char *path, arena *memory, yaml_node **out);
status yaml_read_text(const char *text, size_t n_bytes, const char *where, arena *memory, yaml_node **out);
/* The same tree as JSON: what is not quoted and reads as a number, true, false or null is one. The caller ends the reference. */
json_t *yaml_to_json(const yaml_node *n);
/* The text in double quotes, so that it reads back as it is. Bytes that are not UTF-8 become U+0080 to U+00FF. */
void yaml_write_quoted(const char *text, strbuf *out);

/* ---- SVG (svg.c): what pictures share --------------------------------------------------------------------------- */

/* At most `most` characters of untrusted text, escaped, without those that XML forbids. */
void svg_add_escaped(strbuf *b, const char *text, size_t most);
/* Ticks at steps of 1, 2 or 5 times a power of ten; of bytes in the largest unit below the top. */
typedef struct svg_axis {
    double unit, step; /* a tick stands at i * step * unit */
    const char *name;  /* of the unit; "" */
    int n_ticks;       /* with the one at 0 */
} svg_axis;
svg_axis svg_axis_make(double top, int most_ticks, bool of_bytes);
const char *svg_axis_label(const svg_axis *a, int tick, char out[48]);

/* A number as any program reads it back to the same bits: a point in every locale, no more digits than needed. */
void svg_add_number(strbuf *b, double x);

/* ---- charts (chart.c): bars, lines, areas and lanes as one SVG file ---------------------------------------------- */

/* Light or dark as the viewer is; nothing from elsewhere: no font, no script, no link. All text is escaped. Every number that is
 * drawn also stands in its element, as data-x and data-y, with the series in data-name.
 *
 *     chart_series s = {.color = 0, .y = bytes, .n = 3};
 *     chart_panel p = {.title = "peak", .series = &s, .n_series = 1, .groups = (const char *[]){"k = 2", "k = 4", "k = 8"}};
 *     chart c = {.title = "Memory", .names = (const char *[]){"ours"}, .n_names = 1, .panels = &p, .n_panels = 1, .columns = 1};
 *     chart_draw(&c, &svg); */
enum { CHART_COLORS = 12, CHART_ROLES = 9, CHART_COLORS_ALL = CHART_COLORS + CHART_ROLES };
/* Roles of memory have colours of their own, the same in every picture; a series that is no role has one of the first
 * CHART_COLORS. */
int chart_role_color(const char *role);         /* of params, grads, states ...; of what is none, that of gaps */
const char *chart_color(int color, bool dark);  /* "#3b6fb6" */
/* How a panel without groups is drawn. */
typedef enum chart_kind {
    CHART_STEPS, /* y holds from its x to the next; both axes begin at 0 */
    CHART_LINES, /* from point to point; axes as the numbers need them */
    CHART_AREAS, /* as CHART_STEPS, each series on top of those before it */
    CHART_LANES, /* a lane per series: busy from x to y */
} chart_kind;
typedef struct chart_series {
    int color;           /* into chart.names: a thing has one colour in all panels */
    const char *name;    /* data-name; NULL: that of the colour */
    const double *x, *y; /* by kind; bars: x is NULL, y of each group, NAN: no bar */
    size_t n;
    const char *const *labels; /* bars: text above each, NULL where there is none; lines: one, above the highest point; or NULL */
    const bool *hollow;        /* bars: drawn as an outline; or NULL */
    bool faint;                /* lines: thin and pale, behind the others: the raw numbers of a smoothed line */
    bool dashed;
} chart_series;
typedef struct chart_mark { /* a triangle above a point, with a text */
    double x, y;
    const char *label; /* NULL: no mark */
} chart_mark;
typedef struct chart_panel {
    const char *title; /* "": none, and no room for it */
    const chart_series *series;
    size_t n_series;
    const char *const *groups;       /* bars: names of the groups; NULL: by kind */
    bool rows;                       /* bars lie one below the other, series end to end: for long names and narrow pages */
    const char *const *group_labels; /* rows: text behind each bar, NULL where there is none; or NULL */
    chart_kind kind;
    bool numbers;       /* y is a number, else bytes */
    bool log_y;         /* CHART_LINES with y above 0 */
    const char *x_unit; /* "s" */
    const char *x_name; /* below the axis; or NULL */
    bool x_whole;       /* x counts something: no ticks between whole numbers */
    double x_end;       /* where the last y ends; 0: at its own x */
    double limit;       /* a line across at this y; 0: none */
    const char *limit_name;
    chart_mark mark;
} chart_panel;
typedef struct chart {
    const char *title;
    const char *const *notes; /* lines of text below the title */
    size_t n_notes;
    const char *const *names; /* legend, by colour, at most CHART_COLORS_ALL; NULL: that colour is not used */
    size_t n_names;
    const chart_panel *panels;
    size_t n_panels;
    int columns;   /* panels side by side */
    int width;     /* pixels; 0: 980 */
    bool embedded; /* part of a page that has chart_style: without a background of its own */
} chart;
void chart_draw(const chart *c, strbuf *out);
void chart_style(strbuf *out); /* the style sheet of all charts, which every file of its own carries */

/* ---- safetensors --------------------------------------------------------------------------------------------- */

typedef struct safetensor {
    const char *name;
    dtype type;
    shape shape;
    const void *data; /* into the mapped file, at any alignment: copy it, do not cast the pointer */
    size_t n_bytes;
    uint64_t file_offset;
} safetensor;
typedef struct safetensors {
    const char *path;
    safetensor *tensors; /* sorted by name */
    size_t n_tensors;
    json_t *metadata; /* the __metadata__ object, or NULL */
    void *map;
    size_t map_bytes;
    arena memory;
} safetensors;
/* Checks header length, JSON, dtype names, shapes (overflow), offsets (range, overlap, holes at most padding), total
 * size. Ranks above SHAPE_MAX_RANK are refused by name. */
status safetensors_open(safetensors *st, const char *path);
void safetensors_close(safetensors *st);
/* The part of the file before its tensors. Where there are no holes, nothing else is outside of them. */
size_t safetensors_header_bytes(const safetensors *st);
const safetensor *safetensors_find(const safetensors *st, const char *name); /* NULL when absent */

typedef struct safetensors_entry {
    const char *name;
    dtype type;
    shape shape;
} safetensors_entry;
typedef struct safetensors_writer {
    int fd;
    const char *path;
    uint64_t data_start;
    uint64_t *offsets; /* of each entry, from data_start; offsets[n] is the end */
    size_t n_entries;
    arena memory;
} safetensors_writer;
/* Writes the header (data begins 64-byte aligned) and reserves the file; entries may then be written in any order and
 * in pieces. metadata: string pairs key, value, ..., NULL; or NULL. The file is whole only after close returned OK. */
status safetensors_writer_open(safetensors_writer *w, const char *path, const safetensors_entry *entries, size_t n,
                               const char *const *metadata);
status safetensors_writer_put(safetensors_writer *w, size_t entry, uint64_t byte_offset, const void *data,
                              size_t n_bytes);
status safetensors_writer_close(safetensors_writer *w); /* fsync + close; also frees after a failure */
void safetensors_writer_abort(safetensors_writer *w);   /* close and remove the file */

/* ---- tokenizer.json (Hugging Face), the BPE kind --------------------------------------------------------------- */

typedef struct span {
    const char *text; /* not NUL terminated */
    size_t length;
} span;
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
