#pragma once
/* format.h - files that others wrote: JSON, YAML, safetensors. Bytes in, views out, nothing trusted.
 *
 * Promises
 *   - Every error names the file, where in it (line and column, or tensor name), what was found, what was expected.
 *   - No length, offset or nesting in a file is believed before it was checked against the file's real size.
 *
 *     safetensors st;
 *     TRY(safetensors_open(&st, "model.safetensors"));
 *     const safetensor *t = safetensors_find(&st, "wte.weight");
 *     ... t->data, t->type, t->shape ...
 *     safetensors_close(&st);
 */
#include "tensor/tensor.h"
#include <jansson.h>

/* ---- JSON (jansson: strict, no duplicate keys) --------------------------------------------------------------- */

status json_read_file(const char *path, size_t max_bytes, json_t **out); /* the caller calls json_decref */
status json_write_file(const char *path, const json_t *root);            /* whole or not at all: temp + fsync + rename */
/* Members of an object; `where` is the file, for the message. Missing or mistyped members are ERR_INPUT. */
status json_get_int(const json_t *object, const char *key, int64_t min, int64_t max, const char *where, int64_t *out);
status json_get_real(const json_t *object, const char *key, const char *where, double *out);
status json_get_string(const json_t *object, const char *key, const char *where, const char **out); /* borrowed */

/* ---- YAML (libyaml), as a tree; JSON is a subset of it ------------------------------------------------------- */

typedef enum yaml_kind { YAML_SCALAR, YAML_MAP, YAML_LIST } yaml_kind;
typedef struct yaml_node {
    yaml_kind kind;
    const char *key;   /* inside a map; else NULL */
    const char *text;  /* scalars */
    bool quoted;       /* "8" in quotes is a string, 8 is a number */
    int line, column;  /* 1-based, of the key inside a map, else of the value */
    struct yaml_node *first_child, *next; /* maps and lists, in file order */
} yaml_node;
/* Refuses duplicate keys, aliases and anchors, several documents, nesting deeper than 32, invalid UTF-8 and files over
 * 4 MiB. An empty file is an empty map. The tree lives in `memory`. */
status yaml_read_file(const char *path, arena *memory, yaml_node **out);
status yaml_read_text(const char *text, size_t n_bytes, const char *where, arena *memory, yaml_node **out);

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
status safetensors_writer_put(safetensors_writer *w, size_t entry, uint64_t byte_offset, const void *data, size_t n_bytes);
status safetensors_writer_close(safetensors_writer *w); /* fsync + close; also frees after a failure */
void safetensors_writer_abort(safetensors_writer *w);   /* close and remove the file */
