/* unicode.c - characters: their bytes, their classes, and valid text out of any bytes.
 *
 * Classes come from utf8proc's general categories. They follow the Unicode version of that library (15 in Debian 12),
 * the reference those of several Rust crates: characters that came into Unicode in between may be classed differently. */
#include "data/encode.h"

#include <utf8proc.h>

int32_t char_decode(const char *text) {
    const unsigned char *s = (const unsigned char *)text;
    if (s[0] < 0x80) return s[0];
    if (s[0] < 0xe0) return (s[0] & 31) << 6 | (s[1] & 63);
    if (s[0] < 0xf0) return (s[0] & 15) << 12 | (s[1] & 63) << 6 | (s[2] & 63);
    return (s[0] & 7) << 18 | (s[1] & 63) << 12 | (s[2] & 63) << 6 | (s[3] & 63);
}

size_t char_encode(int32_t c, char out[4]) {
    return (size_t)utf8proc_encode_char(c, (utf8proc_uint8_t *)out);
}

bool char_is_space(int32_t c) {
    if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

bool char_is_numeric(int32_t c) {
    if (c < 0x80) return c >= '0' && c <= '9';
    utf8proc_category_t k = utf8proc_category(c);
    return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

bool char_is_punctuation(int32_t c) {
    if (c < 0x80) return (c > 32 && c < '0') || (c > '9' && c < 'A') || (c > 'Z' && c < 'a') || (c > 'z' && c < 127);
    utf8proc_category_t k = utf8proc_category(c);
    return k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO;
}

bool char_is_mark(int32_t c) {
    if (c < 0x300) return false;
    utf8proc_category_t k = utf8proc_category(c);
    return k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_MC || k == UTF8PROC_CATEGORY_ME;
}

bool char_is_word(int32_t c) {
    if (c < 0x80) return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME: return true;
    default: break;
    }
    /* The joiners, and the letters in circles and squares that are symbols by category. */
    return c == 0x200c || c == 0x200d || (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) ||
           (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189);
}

void text_make_valid(const char *text, size_t n_bytes, strbuf *out) {
    for (;;) {
        utf8_scan s = utf8_check(text, n_bytes);
        strbuf_add_bytes(out, text, s.n_valid);
        if (s.n_bad == 0) return;
        strbuf_add_bytes(out, "\xef\xbf\xbd", 3);
        text += s.n_valid + s.n_bad;
        n_bytes -= s.n_valid + s.n_bad;
    }
}

/* Printable bytes of Latin-1 stand for themselves; the others follow from U+0100 on, in order. */
#define SELF(b) (((b) >= '!' && (b) <= '~') || ((b) >= 0xa1 && (b) <= 0xac) || (b) >= 0xae)
#define BEFORE(b) ((b) < '!' ? (b) : (b) < 0xa1 ? (b) - 127 + 33 : 33 + 34)
#define CHAR(b) (SELF(b) ? (b) : 256 + BEFORE(b))
#define ROW4(b) CHAR(b), CHAR(b + 1), CHAR(b + 2), CHAR(b + 3)
#define ROW16(b) ROW4(b), ROW4(b + 4), ROW4(b + 8), ROW4(b + 12)
#define ROW64(b) ROW16(b), ROW16(b + 16), ROW16(b + 32), ROW16(b + 48)
const uint16_t byte_chars[256] = {ROW64(0), ROW64(64), ROW64(128), ROW64(192)};

int byte_of_char(int32_t c) {
    if (c < 0x100) return SELF(c) ? c : -1;
    if (c >= 0x100 + 68) return -1;
    int i = c - 0x100;
    return i < 33 ? i : i < 67 ? 127 + i - 33 : 0xad;
}
