#pragma once
/* setting.h - part of the face of settings: one value that a user may give, as a row of config.def or of commands.def describes
 * it.
 *
 * Settings and flags are read by one parser, so that `--top-p 2` and `--set train.lr=20` give the same kind of
 * message. */
#include "format/format.h"

typedef enum setting_type {
    TYPE_BOOL,
    TYPE_INT,
    TYPE_REAL,
    TYPE_BYTES,
    TYPE_CHOICE,
    TYPE_TEXT,
    TYPE_PAIR,
    TYPE_FORM
} setting_type;
typedef enum storage { STORE_BOOL, STORE_I32, STORE_I64, STORE_U64, STORE_F64, STORE_TEXT, STORE_LIST } storage;

typedef struct setting {
    const char *key;
    size_t offset;
    storage storage;
    setting_type type;
    const char *range, *initial, *word, *aliases, *help;
} setting;

/* Texts of a flag that may be repeated; the texts themselves are borrowed. */
typedef struct text_list {
    const char **items;
    size_t n, capacity;
} text_list;

/* Enums are unsigned here unless they have negative members; both are 32 bits. */
#define STORAGE_OF(type, field) \
    _Generic(((type *)0)->field, bool: STORE_BOOL, int: STORE_I32, unsigned: STORE_I32, int64_t: STORE_I64,           \
             uint64_t: STORE_U64, double: STORE_F64, const char *: STORE_TEXT, text_list: STORE_LIST)

/* Parses `text` as the row says into its field of the struct at `base`; text is copied into `memory`. element: which
 * half of a PAIR, or -1. quoted: the text is literal, "auto" in quotes is not the word auto. Errors begin with where
 * and key. */
status setting_store(const setting *s, void *base, arena *memory, int element, const char *text, bool quoted,
                     const char *where, const char *key);

const setting *setting_at(size_t row);                      /* of config.def; NULL past the end */
const setting *setting_find(const char *key, int *element); /* by key or alias; NULL: there is none */
static inline void *setting_field(const void *base, const setting *s) { return (char *)base + s->offset; }
int64_t setting_whole(const void *base, const setting *s); /* of a row that holds whole numbers or choices */
/* The word of a row, such as auto, and the text it stands for; false when it has none. */
bool setting_word(const setting *s, char word[32], const char **means);
void setting_expected(const setting *s, strbuf *out); /* "a whole number in [0, 3], or auto" */
/* The value as text. yaml: quoted where a reader of YAML would take the text for something else. */
void setting_write(const void *base, const setting *s, bool yaml, strbuf *out);
void real_write(double x, strbuf *out); /* the shortest decimal that reads back to the same double */

bool text_is_null(const char *text); /* as YAML says it: nothing, ~, null */
/* Copies the part of `list` that ends at `stop` and returns what follows it; NULL when nothing is left. */
const char *part_next(const char *list, char stop, char *out, size_t n);

/* Values as text. Numbers are decimal and finite; whole numbers may be written as 1e5. */
bool real_read(const char *text, double *out);
bool int_read(const char *text, int64_t *out);
bool bool_read(const char *text, bool *out);
/* A map of a file, whatever is in it, as one line of JSON; NULL: it is none. */
const char *map_json(const yaml_node *map, arena *memory);
