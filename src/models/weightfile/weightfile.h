#pragma once
/* weightfile.h - files of weights: safetensors, read and written; GGUF (gguf.h), written.
 *
 * Promises
 *   - Every error names the file, where in it (the tensor), what was found, what was expected.
 *   - No length and no offset in a file is trusted before it was checked against the file's real size.
 *
 *     safetensors st;
 *     TRY(safetensors_open(&st, "model.safetensors"));
 *     const safetensor *t = safetensors_find(&st, "wte.weight");
 *     ... t->data, t->type, t->shape ...
 *     safetensors_close(&st);
 */
#include "format/format.h"
#include "tensor/tensor.h"
#include "weightfile/gguf.h"

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
