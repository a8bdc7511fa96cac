/* unpack_gzip.c - gzip through zlib, which is loaded when the first such file is read. */
#ifdef HAVE_ZLIB
#include "data/unpack.h"

#include <limits.h>
#include <stdlib.h>
#include <zlib.h>

#define LIBRARY "libz.so.1"
enum { GZIP_ONLY = 16 }; /* added to the window: no bare deflate, no zlib header */

/* clang-format off */
#define FUNCTIONS(X) X(inflateInit2_) X(inflate) X(inflateReset) X(inflateEnd)
/* clang-format on */

typedef struct gzip {
    z_stream stream;
#define X(name) __typeof__(&name) name;
    FUNCTIONS(X)
#undef X
} gzip;

static status load(gzip *g, const char *path) {
    char why[400];
#define X(name) {#name, &g->name},
    const library_symbol symbols[] = {FUNCTIONS(X)};
#undef X
    if (library_load(LIBRARY, symbols, ARRAY_LENGTH(symbols), why, sizeof why)) return OK;
    return ERR(ERR_INPUT, "%s: found gzip, but %s; install zlib1g, or unpack the file: gzip -dk FILE", path, why);
}

static status open_gzip(void **out, const char *path) {
    gzip *g = mem_alloc(sizeof *g);
    status rc = load(g, path);
    if (rc == OK && g->inflateInit2_(&g->stream, MAX_WBITS + GZIP_ONLY, ZLIB_VERSION, (int)sizeof g->stream) != Z_OK)
        rc = ERR(ERR_RUN, "%s: zlib cannot be started: %s", path, g->stream.msg ? g->stream.msg : "no memory");
    if (rc == OK) *out = g;
    else free(g);
    return rc;
}

static void close_gzip(void *self) {
    gzip *g = self;
    g->inflateEnd(&g->stream);
    free(g);
}

static status run_gzip(void *self, const char *path, span *in, char *out, size_t capacity, size_t *n_out,
                       bool *at_edge) {
    gzip *g = self;
    z_stream *z = &g->stream;
    if (*at_edge && g->inflateReset(z) != Z_OK) return ERR(ERR_BUG, "%s: zlib cannot begin a member", path);
    unsigned n_in = (unsigned)MIN(in->length, (size_t)UINT_MAX), room = (unsigned)MIN(capacity, (size_t)UINT_MAX);
    z->next_in = (Bytef *)(uintptr_t)in->text;
    z->avail_in = n_in;
    z->next_out = (Bytef *)out;
    z->avail_out = room;
    int rc = g->inflate(z, Z_NO_FLUSH);
    *n_out = room - z->avail_out;
    in->text += n_in - z->avail_in;
    in->length -= n_in - z->avail_in;
    *at_edge = rc == Z_STREAM_END;
    if (rc == Z_OK || rc == Z_STREAM_END || rc == Z_BUF_ERROR) return OK;
    return ERR(ERR_INPUT, "%s: found damaged gzip data (%s), expected a whole file; copy or download it again", path,
               z->msg ? z->msg : "zlib gives no reason");
}

const unpack_method unpack_gzip = {"gzip", "gzip -dk FILE", open_gzip, run_gzip, close_gzip};
#endif
