#pragma once
/* migrate.h - configurations of others become settings of ralo, row by row: DeepSpeed's JSON, YAML of RALO, TRL,
 * accelerate, Axolotl and LLaMA-Factory.
 *
 * A dialect is a table with one row per key it knows (deepspeed.c, trl.c ...); the engine (read.c, foreign.c) reads the
 * file, finds each key's row and offers values to the ordinary config reader, so that ranges and messages are those of
 * any setting, with the foreign file, line and key in them.
 *
 * Promises
 *   - Every key of the file appears in the report: as a setting with its value, or as "no effect here" with the reason.
 *   - A key that no row knows is an error with the nearest known key; so is a value that cannot hold here. All errors
 * of the files are
 *     reported at once, by foreign_apply.
 *   - What the command line or a CONFIG of ralo says wins; where it differs, the report shows both.
 *
 *     foreign f;
 *     foreign_init(&f);
 *     TRY(foreign_read_deepspeed(&f, "ds.json"));
 *     TRY(foreign_apply(&f, &config));        // after files and command line
 *     foreign_print(&f, &config, stderr);
 *     foreign_fini(&f);
 */
#include "settings/settings.h"

typedef struct foreign_dialect foreign_dialect;
typedef struct foreign_item foreign_item;

typedef struct foreign_file {
    const foreign_dialect *dialect;
    const char *path;
    foreign_item *items; /* every key with a value, in file order */
    size_t n_items, capacity;
} foreign_file;

/* One line of the report. */
typedef struct foreign_entry {
    const foreign_file *file;
    size_t place;      /* index of the item it came from; entries are shown in file order, implied ones last */
    const char *key;   /* as in the file, dotted; NULL: not in the file, but what the program that wrote it does */
    const char *given; /* its text */
    int line;
    const char *setting; /* NULL: no effect */
    const char *note;    /* why, or how the value was found; NULL: nothing to say */
    bool is_file;        /* it names a file whose keys are entries of their own */
} foreign_entry;

enum { FOREIGN_FILES = 2 };     /* a CONFIG and a --deepspeed file */
enum { FOREIGN_PROBLEMS = 64 }; /* more than one error message holds */

typedef struct foreign {
    foreign_file files[FOREIGN_FILES];
    size_t n_files;
    foreign_entry *entries;
    size_t n_entries, capacity;
    const char *stage, *stages_dir;         /* --stage and --dir: of a CONFIG with stages (stages.h); NULL: not given */
    int n_ranks;                            /* that run, or are planned for; 0: one */
    const char *refusal;                    /* why `train` must not run with this, though `plan` may; NULL: it may */
    const char *problems[FOREIGN_PROBLEMS]; /* why the files cannot be translated; foreign_apply refuses with them */
    size_t n_problems;                      /* also those that are not kept */
    arena memory;
} foreign;

void foreign_init(foreign *f);
void foreign_fini(foreign *f);
/* A CONFIG: a file of foreign shape is kept for foreign_apply, any other goes into c at once. */
status foreign_read_config(foreign *f, config *c, const char *path);
status foreign_read_deepspeed(foreign *f, const char *path);
status foreign_apply(foreign *f, config *c);
bool foreign_was_read(const foreign *f);
void foreign_print(const foreign *f, const config *c, FILE *out); /* nothing where nothing was read */
json_t *foreign_json(const foreign *f, const config *c);          /* "translated"; the caller takes it */
status foreign_check_train(const foreign *f);                     /* what only `train` has to refuse */
