/* fuzz_packed.c - a file of gzip or zstd.
 *
 * The input is the file. Whatever it holds: it is refused, or ends; what was unpacked is within the limit, and a second reading in other pieces
 * gives the same bytes. */
#include "data/reader.h"
#include "fuzz/fuzz.h"

#include <string.h>

/* The text in pieces of at least `piece` bytes; false: refused. */
static bool read_all(const char *path, size_t piece, strbuf *out) {
    reader r;
    status rc = reader_open(&r, path);
    bool is_open = rc == OK;
    while (rc == OK) {
        span text;
        rc = reader_peek(&r, piece, &text);
        if (rc != OK || text.length == 0) break;
        strbuf_add_bytes(out, text.text, text.length);
        reader_consume(&r, text.length);
        ASSERT(r.packed == PACKING_NONE || r.unpack.n_out <= ((uint64_t)257 << 20) + 200 * r.n_read);
    }
    if (is_open) reader_close(&r);
    if (rc != OK) fuzz_refused(rc);
    return rc == OK;
}

void fuzz_one(const uint8_t *data, size_t size) {
    strbuf first, second;
    strbuf_init(&first);
    strbuf_init(&second);
    const char *path = fuzz_file(0, data, size);
    bool read = read_all(path, 1, &first);
    if (first.length < (1 << 20)) { /* a bomb need not go off twice */
        ASSERT(read_all(path, 100000, &second) == read);
        if (read)
            ASSERT(first.length == second.length &&
                   (!first.length || memcmp(first.text, second.text, first.length) == 0));
    }
    strbuf_fini(&first);
    strbuf_fini(&second);
}
