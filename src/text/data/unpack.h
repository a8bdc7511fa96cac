#pragma once
/* unpack.h - private to data: gzip and zstd, a piece at a time.
 *
 * A file may have several gzip members or zstd frames, one after the other: they are one text. Whatever follows the last one must be
 * zeros, as tar leaves them after gzip; a file that ends within one is an error. What comes out has a limit (unpacker_run), so a file of a
 * megabyte cannot fill a disk. zlib and libzstd are loaded when the first such file is read. */
#include "format/format.h"

typedef enum packing { PACKING_NONE, PACKING_GZIP, PACKING_ZSTD, PACKING_COUNT } packing;
enum { PACKING_MAGIC_BYTES = 4 };
packing packing_of(const char *head, size_t n_bytes); /* by the first bytes */
packing packing_of_name(const char *path);            /* .gz, .zst, .zstd */
size_t packing_name_bytes(const char *path);          /* of the name without that ending */
const char *packing_name(packing p);                  /* "gzip" */

/* One method. Takes what it can of `in`, gives what it has room for; *at_edge: a member or frame has just ended. */
typedef struct unpack_method {
    const char *name, *command; /* that unpacks a file */
    status (*open)(void **out, const char *path);
    status (*run)(void *self, const char *path, span *in, char *out, size_t capacity, size_t *n_out, bool *at_edge);
    void (*close)(void *self);
} unpack_method;
extern const unpack_method unpack_gzip, unpack_zstd;

typedef struct unpacker {
    const unpack_method *method;
    void *state;
    const char *path; /* for messages */
    uint64_t n_in, n_out;
    bool at_edge, is_padding; /* between members; zeros after the last one */
} unpacker;
status unpacker_open(unpacker *u, packing p, const char *path);
void unpacker_close(unpacker *u); /* also of a zeroed one */
/* in: is moved behind what was taken. Nothing taken and nothing given: it needs more. */
status unpacker_run(unpacker *u, span *in, char *out, size_t capacity, size_t *n_out);
status unpacker_end(const unpacker *u); /* there is no more input: was it whole? */
