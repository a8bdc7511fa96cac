/* fuzz_utf8.c - bytes as text: where they stop being UTF-8, and text made valid.
 *
 * The scanner is held against one that decodes character by character; valid text stays as it is. */
#include "data/encode.h"
#include "fuzz/fuzz.h"

#include <string.h>

/* Bytes of the character that begins here, or 0: by its number, which must be in range and need so many bytes. */
static size_t character_bytes(const uint8_t *s, size_t n) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (n == 0) return 0;
    if (s[0] < 0x80) return 1;
    size_t length = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc0 || s[0] > 0xf7 || length > n) return 0;
    uint32_t c = s[0] & (0xffu >> (length + 1));
    for (size_t i = 1; i < length; i++) {
        if ((s[i] & 0xc0) != 0x80) return 0;
        c = c << 6 | (s[i] & 0x3fu);
    }
    return c >= least[length] && c <= 0x10ffff && (c < 0xd800 || c > 0xdfff) ? length : 0;
}

void fuzz_one(const uint8_t *data, size_t size) {
    size_t at = 0, n_pieces = 0;
    while (at < size) {
        utf8_scan u = utf8_check((const char *)data + at, size - at);
        size_t valid = 0;
        for (size_t n; (n = character_bytes(data + at + valid, size - at - valid));) valid += n;
        ASSERT(u.n_valid == valid);
        ASSERT((u.n_bad == 0) == (at + valid == size) && u.n_bad <= 3);
        ASSERT(!u.is_cut || at + valid + u.n_bad == size);
        at += u.n_valid + u.n_bad;
        n_pieces += u.n_bad > 0;
    }
    strbuf out;
    strbuf_init(&out);
    text_make_valid((const char *)data, size, &out);
    ASSERT(out.length == 0 || utf8_check(out.text, out.length).n_bad == 0);
    if (n_pieces == 0) ASSERT(out.length == size && (size == 0 || memcmp(out.text, data, size) == 0));
    ASSERT(utf8_mark_bytes((const char *)data, size) <= size);
    strbuf_fini(&out);
}
