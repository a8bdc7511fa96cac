/* unpack_absent.c - in the place of the methods whose library's header was not there to build with. */
#include "data/unpack.h"

#if !defined HAVE_ZLIB || !defined HAVE_ZSTD
static void close_nothing(void *self) { (void)self; }

static status run_nothing(void *self, const char *path, span *in, char *out, size_t capacity, size_t *n_out,
                          bool *at_edge) {
    (void)self, (void)in, (void)out, (void)capacity, (void)n_out, (void)at_edge;
    return ERR(ERR_BUG, "%s: unpacking was not built in", path);
}
#endif

#ifndef HAVE_ZLIB
static status refuse_gzip(void **out, const char *path) {
    *out = NULL;
    return ERR(
        ERR_INPUT,
        "%s: found gzip, and this ralo was built without zlib; unpack it (gzip -dk FILE), or run: apt-get install "
        "zlib1g-dev && make",
        path);
}
const unpack_method unpack_gzip = {"gzip", "gzip -dk FILE", refuse_gzip, run_nothing, close_nothing};
#endif

#ifndef HAVE_ZSTD
static status refuse_zstd(void **out, const char *path) {
    *out = NULL;
    return ERR(ERR_INPUT,
               "%s: found zstd, and this ralo was built without libzstd; unpack it (zstd -d FILE), or run: apt-get "
               "install libzstd-dev && make",
               path);
}
const unpack_method unpack_zstd = {"zstd", "zstd -d FILE", refuse_zstd, run_nothing, close_nothing};
#endif
