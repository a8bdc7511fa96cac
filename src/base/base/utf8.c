/* utf8.c - find where bytes stop being UTF-8.
 *
 * One scanner for all text from outside: it reports how many bytes are valid and how many bytes form the invalid piece
 * after them. The pieces are the "maximal subparts" of the Unicode standard, so replacing each by one U+FFFD gives the
 * same result as other programs (Python's errors="replace", Rust's from_utf8_lossy). A piece at the very end that is
 * only the beginning of a character is marked: a stream keeps it instead of replacing it.
 *
 * Also text_escape, the one rule for showing text from outside: what would control a terminal, or turn text around
 * (marks of writing direction), becomes visible. error.c, log.c, progress lines and the program's stdout and stderr all
 * use it. */
#include "base/base.h"

#include <string.h>

/* The number of bytes that a character with this first byte has, and the range of its second byte; 0: none begins so.
 * The ranges keep out overlong forms, surrogates and what lies above U+10FFFF. */
static int lead_length(unsigned char c, unsigned char *low, unsigned char *high) {
    *low = 0x80;
    *high = 0xbf;
    if (c < 0xc2) return 0;
    if (c < 0xe0) return 2;
    if (c < 0xf0) {
        if (c == 0xe0) *low = 0xa0;
        if (c == 0xed) *high = 0x9f;
        return 3;
    }
    if (c > 0xf4) return 0;
    if (c == 0xf0) *low = 0x90;
    if (c == 0xf4) *high = 0x8f;
    return 4;
}

size_t utf8_mark_bytes(const char *text, size_t n_bytes) {
    return n_bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

utf8_scan utf8_check(const char *text, size_t n_bytes) {
    const unsigned char *s = (const unsigned char *)text;
    size_t i = 0;
    while (i < n_bytes) {
        uint64_t word;
        if (n_bytes - i >= sizeof word) { /* eight ASCII bytes at a time: most text is that */
            memcpy(&word, s + i, sizeof word);
            if (!(word & UINT64_C(0x8080808080808080))) {
                i += sizeof word;
                continue;
            }
        }
        if (s[i] < 0x80) {
            i++;
            continue;
        }
        unsigned char low, high;
        int length = lead_length(s[i], &low, &high), k = 1;
        if (length == 0) return (utf8_scan){.n_valid = i, .n_bad = 1};
        for (; k < length && i + (size_t)k < n_bytes; k++) {
            unsigned char c = s[i + (size_t)k];
            if (c < (k == 1 ? low : 0x80) || c > (k == 1 ? high : 0xbf)) break;
        }
        if (k < length) return (utf8_scan){.n_valid = i, .n_bad = (size_t)k, .is_cut = i + (size_t)k == n_bytes};
        i += (size_t)length;
    }
    return (utf8_scan){.n_valid = n_bytes};
}

/* ---- shown ------------------------------------------------------------------------------------------------------- */

enum { ESCAPE_BYTES = 6 }; /* the longest: \u009b */

static size_t put_digits(char *out, unsigned char c) {
    static const char digits[] = "0123456789abcdef";
    out[0] = digits[c >> 4];
    out[1] = digits[c & 15];
    return 2;
}

static size_t put_code_point(char *out, unsigned c) {
    out[0] = '\\';
    out[1] = 'u';
    put_digits(out + 2, (unsigned char)(c >> 8));
    put_digits(out + 4, (unsigned char)c);
    return ESCAPE_BYTES;
}

/* Bytes of the character that begins here; 0: none does. */
static size_t character_bytes(const unsigned char *s, size_t n, utf8_scan *scan) {
    *scan = utf8_check((const char *)s, MIN(n, (size_t)4));
    if (scan->n_valid == 0) return 0;
    return *s < 0x80 ? 1 : *s < 0xe0 ? 2 : *s < 0xf0 ? 3 : 4;
}

/* Characters that change the order in which the text around them is shown: a name could be read as another. */
static bool is_bidi_control(const unsigned char *s, size_t width) {
    if (width == 2) return s[0] == 0xd8 && s[1] == 0x9c; /* U+061C */
    if (width != 3 || s[0] != 0xe2) return false;
    if (s[1] == 0x80)
        return s[2] == 0x8e || s[2] == 0x8f || (s[2] >= 0xaa && s[2] <= 0xae); /* U+200E, F, U+202A to E */
    return s[1] == 0x81 && s[2] >= 0xa6 && s[2] <= 0xa9;                       /* U+2066 to 9 */
}

size_t text_escape(const char *text, size_t n_bytes, bool more, char *out, size_t room, size_t *taken) {
    size_t at = 0, n = 0;
    while (at < n_bytes) {
        const unsigned char *s = (const unsigned char *)text + at;
        utf8_scan scan;
        size_t width = character_bytes(s, n_bytes - at, &scan);
        if (width == 0 && scan.is_cut && more) break;
        bool c0 = width == 1 && *s < 0x20 && *s != '\n' && *s != '\t', delete = width == 1 && *s == 0x7f;
        bool c1 = width == 2 && *s == 0xc2 && s[1] < 0xa0, bidi = is_bidi_control(s, width);
        if (room - n < (width && !c0 && !delete &&!c1 && !bidi ? width : ESCAPE_BYTES)) break;
        if (width == 0 || c0) {
            out[n++] = '\\';
            out[n++] = 'x';
            n += put_digits(out + n, *s);
            at++;
        } else if (delete || c1) {
            n += put_code_point(out + n, s[width - 1]);
            at += width;
        } else if (bidi) {
            n += put_code_point(out + n, width == 2 ? 0x61c : 0x2000 | (s[1] & 0x3fu) << 6 | (s[2] & 0x3fu));
            at += width;
        } else {
            memcpy(out + n, s, width);
            n += width;
            at += width;
        }
    }
    *taken = at;
    return n;
}

void strbuf_add_escaped(strbuf *b, const char *text, size_t n_bytes) {
    char piece[1024];
    for (size_t at = 0, taken; at < n_bytes; at += taken) {
        size_t n = text_escape(text + at, n_bytes - at, false, piece, sizeof piece, &taken);
        strbuf_add_bytes(b, piece, n);
    }
}

int32_t utf8_next(const char **p) {
    const uint8_t *s = (const uint8_t *)*p;
    if (s[0] < 0x80) {
        *p += 1;
        return s[0];
    }
    int n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    static const int32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (s[0] < 0xc0 || s[0] > 0xf4) return -1;
    int32_t c = s[0] & (0xff >> (n + 1));
    for (int i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80) return -1;
        c = c << 6 | (s[i] & 0x3f);
    }
    if (c < least[n] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff)) return -1;
    *p += n;
    return c;
}
