/* unicode.c - characters: their bytes, their classes, and valid text out of any bytes.
 *
 * Classes come from a table of our own (unicode_table.c), whatever libraries are installed. Its version, 16.0, is that of
 * the reference's expressions and word characters; for the normal forms and punctuation the reference is older (9 and 8),
 * and lists tell the characters apart that came later. */
#include "data/encode.h"
#include "data/unicode_table.h"

#include <pthread.h>
#include <utf8proc.h>

/* ---- the table ----------------------------------------------------------------------------------------------- */

enum { PAGE_BITS = 7, N_PAGES = 0x110000 >> PAGE_BITS };
static uint16_t pages[N_PAGES]; /* the run of each page's first character */
static pthread_once_t pages_once = PTHREAD_ONCE_INIT;

static void fill_pages(void) {
    size_t run = 0;
    for (int32_t page = 0; page < N_PAGES; page++) {
        while (unicode_run_end(run) <= page << PAGE_BITS) run++;
        pages[page] = (uint16_t)run;
    }
}

size_t unicode_run_of(int32_t c) {
    pthread_once(&pages_once, fill_pages);
    size_t run = pages[c >> PAGE_BITS];
    while (unicode_run_end(run) <= c) run++;
    return run;
}

unicode_category char_category(int32_t c) { return unicode_run_category(unicode_run_of(c)); }

/* ---- characters ---------------------------------------------------------------------------------------------- */

int32_t char_decode(const char *text) {
    const unsigned char *s = (const unsigned char *)text;
    if (s[0] < 0x80) return s[0];
    if (s[0] < 0xe0) return (s[0] & 31) << 6 | (s[1] & 63);
    if (s[0] < 0xf0) return (s[0] & 15) << 12 | (s[1] & 63) << 6 | (s[2] & 63);
    return (s[0] & 7) << 18 | (s[1] & 63) << 12 | (s[2] & 63) << 6 | (s[3] & 63);
}

size_t char_encode(int32_t c, char out[4]) { return (size_t)utf8proc_encode_char(c, (utf8proc_uint8_t *)out); }

bool char_is_space(int32_t c) {
    if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

/* Characters that have a combining class, a decomposition or the category of a mark, and came into Unicode after version
 * 9. The reference normalizes with the tables of that version, in which they are unassigned. Made by comparing all
 * characters of Unicode 18 with the reference, so any utf8proc up to that version gives the same normal forms. */
/* clang-format off */
static const int32_t younger[][2] = {
    {0x558, 0x558}, {0x58b, 0x58c}, {0x5c8, 0x5c9}, {0x7fd, 0x7fd}, {0x897, 0x89f}, {0x8ca, 0x8d3}, {0x9fe, 0x9fe},
    {0xafa, 0xaff}, {0xb53, 0xb55}, {0xc04, 0xc04}, {0xc3c, 0xc3c}, {0xcf3, 0xcf3}, {0xd00, 0xd00}, {0xd3b, 0xd3c},
    {0xd81, 0xd81}, {0xeba, 0xeba}, {0xece, 0xece}, {0x1715, 0x1715}, {0x180f, 0x180f}, {0x1abf, 0x1af0},
    {0x1cf7, 0x1cf7}, {0x1df6, 0x1dfa}, {0x209d, 0x209f}, {0x32ff, 0x32ff}, {0xa7f1, 0xa7f4}, {0xa82c, 0xa82c},
    {0xa8ff, 0xa8ff}, {0xab69, 0xab69}, {0x105c9, 0x105c9}, {0x105e4, 0x105e4}, {0x10781, 0x10785},
    {0x10787, 0x107b0}, {0x107b2, 0x107bf}, {0x10d24, 0x10d27}, {0x10d69, 0x10d6d}, {0x10eab, 0x10eac},
    {0x10ecb, 0x10ecf}, {0x10ef0, 0x10eff}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85}, {0x11070, 0x11070},
    {0x11073, 0x11074}, {0x110c2, 0x110c2}, {0x11145, 0x11146}, {0x111c9, 0x111c9}, {0x111ce, 0x111cf},
    {0x11241, 0x11241}, {0x1133b, 0x1133b}, {0x11383, 0x11383}, {0x11385, 0x11385}, {0x1138e, 0x1138e},
    {0x11391, 0x11391}, {0x113b8, 0x113c0}, {0x113c2, 0x113c2}, {0x113c5, 0x113c5}, {0x113c7, 0x113ca},
    {0x113cc, 0x113d0}, {0x113d2, 0x113d2}, {0x113e1, 0x113e2}, {0x1145e, 0x1145e}, {0x1182c, 0x1183a},
    {0x11930, 0x11935}, {0x11937, 0x11938}, {0x1193b, 0x1193e}, {0x11940, 0x11940}, {0x11942, 0x11943},
    {0x119d1, 0x119d7}, {0x119da, 0x119e0}, {0x119e4, 0x119e4}, {0x11a01, 0x11a0a}, {0x11a33, 0x11a39},
    {0x11a3b, 0x11a3e}, {0x11a47, 0x11a47}, {0x11a51, 0x11a5b}, {0x11a8a, 0x11a99}, {0x11b60, 0x11b67},
    {0x11d31, 0x11d36}, {0x11d3a, 0x11d3a}, {0x11d3c, 0x11d3d}, {0x11d3f, 0x11d45}, {0x11d47, 0x11d47},
    {0x11d8a, 0x11d8e}, {0x11d90, 0x11d91}, {0x11d93, 0x11d97}, {0x11df0, 0x11df0}, {0x11ef3, 0x11ef6},
    {0x11f00, 0x11f01}, {0x11f03, 0x11f03}, {0x11f34, 0x11f3a}, {0x11f3e, 0x11f42}, {0x11f5a, 0x11f5a},
    {0x13440, 0x13440}, {0x13447, 0x13455}, {0x1611e, 0x1612f}, {0x16d68, 0x16d6a}, {0x16f4f, 0x16f4f},
    {0x16f7f, 0x16f87}, {0x16fe4, 0x16fe4}, {0x16ff0, 0x16ff1}, {0x1b123, 0x1b126}, {0x1ccd6, 0x1ccf9},
    {0x1cf00, 0x1cf2d}, {0x1cf30, 0x1cf46}, {0x1d127, 0x1d128}, {0x1d250, 0x1d252}, {0x1d25b, 0x1d25c},
    {0x1d25f, 0x1d25f}, {0x1d280, 0x1d281}, {0x1d6a6, 0x1d6a6}, {0x1df95, 0x1df95}, {0x1dfcd, 0x1dfff},
    {0x1e030, 0x1e06d}, {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef},
    {0x1e4ec, 0x1e4ef}, {0x1e5ee, 0x1e5ef}, {0x1e6e3, 0x1e6e3}, {0x1e6e6, 0x1e6e6}, {0x1e6ee, 0x1e6ef},
    {0x1e6f5, 0x1e6f5}, {0x1f16c, 0x1f16c}, {0x1fbf0, 0x1fbf9},
};

/* Punctuation that came after version 8, whose tables the reference uses for that class; made in the same way. */
static const int32_t younger_punctuation[][2] = {
    {0x61d, 0x61d}, {0x9fd, 0x9fd}, {0xa76, 0xa76}, {0xc77, 0xc77}, {0xc84, 0xc84}, {0x1b4e, 0x1b4f},
    {0x1b7d, 0x1b7f}, {0x2e43, 0x2e4f}, {0x2e52, 0x2e5d}, {0x2e60, 0x2e63}, {0x10d6e, 0x10d6e}, {0x10ead, 0x10ead},
    {0x10ed0, 0x10ed0}, {0x10f55, 0x10f59}, {0x10f86, 0x10f89}, {0x111c9, 0x111c9}, {0x113d4, 0x113d5},
    {0x113d7, 0x113d8}, {0x1144b, 0x1144f}, {0x1145a, 0x1145b}, {0x1145d, 0x1145d}, {0x11660, 0x1166c},
    {0x116b9, 0x116b9}, {0x1183b, 0x1183b}, {0x11944, 0x11946}, {0x119e2, 0x119e2}, {0x11a3f, 0x11a46},
    {0x11a9a, 0x11a9c}, {0x11a9e, 0x11aa2}, {0x11b00, 0x11b09}, {0x11be1, 0x11be1}, {0x11c41, 0x11c45},
    {0x11c70, 0x11c71}, {0x11ef7, 0x11ef8}, {0x11f43, 0x11f4f}, {0x11fff, 0x11fff}, {0x12ff1, 0x12ff2},
    {0x16d6d, 0x16d6f}, {0x16e97, 0x16e9a}, {0x16fe2, 0x16fe2}, {0x1e5ff, 0x1e5ff}, {0x1e95e, 0x1e95f},
};
/* clang-format on */

static bool in_ranges(int32_t c, const int32_t (*ranges)[2], size_t n) {
    size_t low = 0, high = n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (c > ranges[middle][1]) low = middle + 1;
        else if (c < ranges[middle][0]) high = middle;
        else return true;
    }
    return false;
}

bool char_is_younger(int32_t c) { return c >= younger[0][0] && in_ranges(c, younger, ARRAY_LENGTH(younger)); }

bool char_is_numeric(int32_t c) {
    if (c < 0x80) return c >= '0' && c <= '9';
    unicode_category k = char_category(c);
    return k >= CATEGORY_ND && k <= CATEGORY_NO;
}

bool char_is_punctuation(int32_t c) {
    if (c < 0x80) return (c > 32 && c < '0') || (c > '9' && c < 'A') || (c > 'Z' && c < 'a') || (c > 'z' && c < 127);
    unicode_category k = char_category(c);
    if (c == 0x166d || c == 0x111c9) return true; /* a symbol and a mark by now */
    return k >= CATEGORY_PC && k <= CATEGORY_PS &&
           !in_ranges(c, younger_punctuation, ARRAY_LENGTH(younger_punctuation));
}

bool char_is_mark(int32_t c) {
    if (c < 0x300 || char_is_younger(c)) return false;
    if (c == 0x1cf2 || c == 0x1cf3) return true; /* letters by now */
    unicode_category k = char_category(c);
    return k >= CATEGORY_MC && k <= CATEGORY_MN;
}

bool char_is_word(int32_t c) {
    if (c < 0x80) return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
    switch (char_category(c)) {
    case CATEGORY_LU:
    case CATEGORY_LL:
    case CATEGORY_LT:
    case CATEGORY_LM:
    case CATEGORY_LO:
    case CATEGORY_NL:
    case CATEGORY_ND:
    case CATEGORY_PC:
    case CATEGORY_MN:
    case CATEGORY_MC:
    case CATEGORY_ME: return true;
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
#define BEFORE(b) ((b) < '!' ? (b) : (b) < 0xa1 ? (b)-127 + 33 : 33 + 34)
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
