/* unpack_zstd.c - zstd through libzstd, which is loaded when the first such file is read. A frame that asks for a window of more than
 * 128 MiB (zstd --long=28 and above) is refused by the library. */
#ifdef HAVE_ZSTD
#include "data/unpack.h"

#include <stdlib.h>
#include <zstd.h>

#define LIBRARY "libzstd.so.1"

/* clang-format off */
#define FUNCTIONS(X) X(ZSTD_createDStream) X(ZSTD_freeDStream) X(ZSTD_decompressStream) X(ZSTD_isError) X(ZSTD_getErrorName)
/* clang-format on */

typedef struct zstd {
    ZSTD_DStream *stream;
#define X(name) __typeof__(&name) name;
    FUNCTIONS(X)
#undef X
} zstd;

static status load(zstd *z, const char *path) {
    char why[400];
#define X(name) {#name, &z->name},
    const library_symbol symbols[] = {FUNCTIONS(X)};
#undef X
    if (library_load(LIBRARY, symbols, ARRAY_LENGTH(symbols), why, sizeof why)) return OK;
    return ERR(ERR_INPUT, "%s: found zstd, but %s; install libzstd1, or unpack the file: zstd -d FILE", path, why);
}

static status open_zstd(void **out, const char *path) {
    zstd *z = mem_alloc(sizeof *z);
    status rc = load(z, path);
    if (rc == OK && !(z->stream = z->ZSTD_createDStream()))
        rc = ERR(ERR_RUN, "%s: libzstd cannot be started: no memory", path);
    if (rc == OK) *out = z;
    else free(z);
    return rc;
}

static void close_zstd(void *self) {
    zstd *z = self;
    z->ZSTD_freeDStream(z->stream);
    free(z);
}

static status run_zstd(void *self, const char *path, span *in, char *out, size_t capacity, size_t *n_out,
                       bool *at_edge) {
    zstd *z = self;
    ZSTD_inBuffer from = {in->text, in->length, 0};
    ZSTD_outBuffer to = {out, capacity, 0};
    size_t rc = z->ZSTD_decompressStream(z->stream, &to, &from);
    in->text += from.pos;
    in->length -= from.pos;
    *n_out = to.pos;
    if (z->ZSTD_isError(rc))
        return ERR(
            ERR_INPUT,
            "%s: found zstd data that cannot be unpacked (%s), expected whole frames with a window of at most 128 "
            "MiB; copy or download it again, or try: zstd -d --long=31 FILE",
            path, z->ZSTD_getErrorName(rc));
    *at_edge = rc == 0;
    return OK;
}

const unpack_method unpack_zstd = {"zstd", "zstd -d FILE", open_zstd, run_zstd, close_zstd};
#endif
