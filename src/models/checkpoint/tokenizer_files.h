#pragma once
/* tokenizer_files.h - private to checkpoint, part of its face: the files of a run's tokenizer, as copied into
 * checkpoints and exports.
 *
 * A run reads them once when it starts, from the directory that its user named, and keeps them in memory; every
 * checkpoint has its own copy in tokenizer/, under checksums. So a run can be exported, used for generation and
 * moved without the directory it was trained with, and nothing is ever copied from a path that a checkpoint names. */
#include "format/format.h"

typedef struct tokenizer_copy {
    const char *name; /* tokenizer.json, additional_chat_templates/tool.jinja */
    char *bytes;      /* NULL: only looked at */
    size_t n_bytes;
} tokenizer_copy;
typedef struct tokenizer_files {
    tokenizer_copy *items;
    size_t n;
    arena memory;
} tokenizer_files;

/* Reads the files of the tokenizer that a user named: a directory, or a file in one. NULL and "byte": none. A link
 * must point to a file of the same directory or, as in a Hugging Face cache, of its blobs; only the tokenizer's own
 * file may lie anywhere. Call fini also after an error. */
status tokenizer_files_read(tokenizer_files *t, const char *tokenizer);
/* Reads the files that checkpoint.json lists. Each must be a regular file of CHECKPOINT/tokenizer with the listed
 * size and checksum, not a link, and there must be no other files. contents false: only sizes are compared. */
status tokenizer_files_load(tokenizer_files *t, const char *checkpoint_dir, const json_t *list, bool contents);
void tokenizer_files_fini(tokenizer_files *t);

json_t *tokenizer_files_json(const tokenizer_files *t); /* [{name, bytes, xxh3_128}], for load */
/* Into the directory `dir`, which is there; every file is new, and on disk. */
status tokenizer_files_write(const tokenizer_files *t, const char *dir);
uint64_t tokenizer_files_bytes(const char *tokenizer); /* that read would hold, by sizes alone */
