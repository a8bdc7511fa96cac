#pragma once
/* dialect.h - private to migrate: what a dialect consists of, and what its translate function may call. */
#include "migrate/migrate.h"

typedef enum foreign_kind {
    FOREIGN_SET,  /* the value goes to `setting` as it stands */
    FOREIGN_OWN,  /* the dialect's translate function reads it */
    FOREIGN_IDLE, /* known, without effect here: `text` says why */
    FOREIGN_OFF,  /* off (false, 0, none, empty) is fine, on is refused: `text` says what to do */
    FOREIGN_WORD, /* `text` says which value of `setting` each word is: "adamw=fp32|adamw_8bit=int8"; "word=" has no effect */
    FOREIGN_FSDP,  /* a key of PyTorch's FSDP (fsdp.c) */
    FOREIGN_WHOLE, /* a map or list that is not read, without effect here: `text` says why */
} foreign_kind;

enum { LIST_MOST = 64 }; /* maps in a list */

typedef enum foreign_type { FT_BOOL, FT_INT, FT_REAL, FT_TEXT, FT_PAIR, FT_ANY, FT_TREE, FT_JSON } foreign_type;

/* FT_ANY: a single value or a list. FT_TREE: a map too, whose text is "". FT_JSON: a map as JSON.
 * key: dotted; of maps in a list without their places. "a.{x y z}" is three keys with one row, "a.*" all of a map. */
typedef struct foreign_row {
    const char *key;
    foreign_kind kind;
    foreign_type type;
    const char *setting;
    const char *text;
} foreign_row;

struct foreign_item {
    const char *key;
    const char *text; /* scalars as they stand; lists as "[a, b]"; "" for maps */
    int line;
    bool is_auto, is_null, is_refused;
    const foreign_row *row;
};

typedef struct foreign_reader {
    foreign *f;
    foreign_file *file;
    config *c;
} foreign_reader;

struct foreign_dialect {
    const char *name; /* "DeepSpeed" */
    const foreign_row *rows;
    size_t n_rows;
    const char *signature; /* keys that only this dialect has at the top, separated by spaces; NULL: none */
    bool is_json;          /* its files are JSON, never YAML */
    bool has_auto;         /* "auto" means: as the rest of the configuration says */
    status (*translate)(foreign_reader *r); /* every FOREIGN_OWN item, and what the file implies */
};
extern const foreign_dialect foreign_deepspeed, foreign_ralo, foreign_trl, foreign_accelerate, foreign_axolotl,
    foreign_llamafactory;

/* The item of this key; NULL if it is absent or null. Types are checked before translate is called. */
const foreign_item *foreign_find(const foreign_reader *r, const char *key);
/* The same for a key with two names; a file with both is refused. */
const foreign_item *foreign_find_either(foreign_reader *r, const char *now, const char *before);
bool foreign_has_group(const foreign_reader *r,
                       const char *prefix); /* "fp16": is there such a map, even an empty one */
bool item_is_true(const foreign_item *i);   /* absent and "auto" are not */
int64_t item_whole(const foreign_item *i);
double item_real(const foreign_item *i);
const char *foreign_where(const foreign_reader *r, const foreign_item *i); /* "ds.json:12" */
bool foreign_is_off(const foreign_item *i);                                /* absent, null, false, 0, none or empty */
/* Translates part by part; an error of the file in one part hides none of another. */
typedef status (*foreign_part)(foreign_reader *r);
status foreign_translate_parts(foreign_reader *r, const foreign_part *parts, size_t n);
/* What cannot be translated. All of it is refused at once, when everything was looked at. */
void foreign_problem(foreign *f, const char *format, ...) __attribute__((format(printf, 2, 3)));
void foreign_refuse(foreign_reader *r, const foreign_item *i, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void foreign_refuse_train(foreign_reader *r, const char *text); /* `plan` may go on with this, `train` may not */
/* Report lines. note may be NULL. An item that is not there has no line. */
void foreign_report_no_effect(foreign_reader *r, const foreign_item *i, const char *note);
void foreign_report_file(foreign_reader *r, const foreign_item *i); /* that is translated too */
void foreign_report_set(foreign_reader *r, const foreign_item *i, const char *setting, const char *note);
/* Offers a value and reports the result. i NULL: implied by the program that wrote the file, which gives way to a key
 * of another file. */
status foreign_offer(foreign_reader *r, const foreign_item *i, const char *setting, const char *value,
                     const char *note);
/* The same, but a key that is "auto" leaves the setting to the rest of the configuration. */
status foreign_offer_unless_auto(foreign_reader *r, const foreign_item *i, const char *setting, const char *value,
                                 const char *note);
/* The same of what the file says, where it says it. usual: what the program does where it does not; NULL: nothing. */
status foreign_offer_text(foreign_reader *r, const foreign_item *i, const char *setting, const char *usual);
/* A key that is on or off: value where it is on. note may be NULL. */
status foreign_offer_switch(foreign_reader *r, const foreign_item *i, const char *setting, const char *value,
                            const char *note);
status foreign_expected(const foreign_reader *r, const foreign_item *i, const char *expected); /* the error */
/* The value that a list of "word=value|word=value" gives a word; "" is no value. NULL: the word is not in the list. */
const char *foreign_word(const foreign_reader *r, const char *list, const char *word, bool any_case);
/* What another foreign file gave this setting no longer counts, and its report says which file does. */
void foreign_take_over(foreign_reader *r, const char *setting);
/* Data and sequence ranks: all ranks that are neither tensor nor pipeline ranks of each other. */
int64_t foreign_row_ranks(const foreign_reader *r);
const char *foreign_value(const foreign_reader *r, const char *setting); /* as it stands now */
const char *foreign_format(const foreign_reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Keys of PyTorch's FSDP, as training scripts and launchers spell them (distributed.fsdp.*, fsdp_config.*, fsdp.*).
 * ERR_INPUT: as in foreign_names. */
status fsdp_translate(const char *where, const char *key, const char *text, fsdp_translation *out);
