/* case.c - upper, lower and title case, and the classes of characters that Python's str methods ask for.
 *
 * Simple mappings come from utf8proc. Characters that become several (sharp s, ligatures) stand in a table, made from
 * Python's str.upper and str.title. A character of the result has the marks of the one it came from. */
#include "jinja/render.h"

#include <utf8proc.h>

typedef struct special_case {
    int32_t c, upper[3], title[3];
} special_case;
/* clang-format off */
static const special_case special_cases[] = {
    {0xdf, {0x53, 0x53}, {0x53, 0x73}}, {0x149, {0x2bc, 0x4e}, {0x2bc, 0x4e}}, {0x1f0, {0x4a, 0x30c}, {0x4a, 0x30c}},
    {0x390, {0x399, 0x308, 0x301}, {0x399, 0x308, 0x301}}, {0x3b0, {0x3a5, 0x308, 0x301}, {0x3a5, 0x308, 0x301}},
    {0x587, {0x535, 0x552}, {0x535, 0x582}}, {0x1e96, {0x48, 0x331}, {0x48, 0x331}},
    {0x1e97, {0x54, 0x308}, {0x54, 0x308}}, {0x1e98, {0x57, 0x30a}, {0x57, 0x30a}},
    {0x1e99, {0x59, 0x30a}, {0x59, 0x30a}}, {0x1e9a, {0x41, 0x2be}, {0x41, 0x2be}},
    {0x1f50, {0x3a5, 0x313}, {0x3a5, 0x313}}, {0x1f52, {0x3a5, 0x313, 0x300}, {0x3a5, 0x313, 0x300}},
    {0x1f54, {0x3a5, 0x313, 0x301}, {0x3a5, 0x313, 0x301}}, {0x1f56, {0x3a5, 0x313, 0x342}, {0x3a5, 0x313, 0x342}},
    {0x1f80, {0x1f08, 0x399}, {0x1f88}}, {0x1f81, {0x1f09, 0x399}, {0x1f89}}, {0x1f82, {0x1f0a, 0x399}, {0x1f8a}},
    {0x1f83, {0x1f0b, 0x399}, {0x1f8b}}, {0x1f84, {0x1f0c, 0x399}, {0x1f8c}}, {0x1f85, {0x1f0d, 0x399}, {0x1f8d}},
    {0x1f86, {0x1f0e, 0x399}, {0x1f8e}}, {0x1f87, {0x1f0f, 0x399}, {0x1f8f}}, {0x1f88, {0x1f08, 0x399}, {0x1f88}},
    {0x1f89, {0x1f09, 0x399}, {0x1f89}}, {0x1f8a, {0x1f0a, 0x399}, {0x1f8a}}, {0x1f8b, {0x1f0b, 0x399}, {0x1f8b}},
    {0x1f8c, {0x1f0c, 0x399}, {0x1f8c}}, {0x1f8d, {0x1f0d, 0x399}, {0x1f8d}}, {0x1f8e, {0x1f0e, 0x399}, {0x1f8e}},
    {0x1f8f, {0x1f0f, 0x399}, {0x1f8f}}, {0x1f90, {0x1f28, 0x399}, {0x1f98}}, {0x1f91, {0x1f29, 0x399}, {0x1f99}},
    {0x1f92, {0x1f2a, 0x399}, {0x1f9a}}, {0x1f93, {0x1f2b, 0x399}, {0x1f9b}}, {0x1f94, {0x1f2c, 0x399}, {0x1f9c}},
    {0x1f95, {0x1f2d, 0x399}, {0x1f9d}}, {0x1f96, {0x1f2e, 0x399}, {0x1f9e}}, {0x1f97, {0x1f2f, 0x399}, {0x1f9f}},
    {0x1f98, {0x1f28, 0x399}, {0x1f98}}, {0x1f99, {0x1f29, 0x399}, {0x1f99}}, {0x1f9a, {0x1f2a, 0x399}, {0x1f9a}},
    {0x1f9b, {0x1f2b, 0x399}, {0x1f9b}}, {0x1f9c, {0x1f2c, 0x399}, {0x1f9c}}, {0x1f9d, {0x1f2d, 0x399}, {0x1f9d}},
    {0x1f9e, {0x1f2e, 0x399}, {0x1f9e}}, {0x1f9f, {0x1f2f, 0x399}, {0x1f9f}}, {0x1fa0, {0x1f68, 0x399}, {0x1fa8}},
    {0x1fa1, {0x1f69, 0x399}, {0x1fa9}}, {0x1fa2, {0x1f6a, 0x399}, {0x1faa}}, {0x1fa3, {0x1f6b, 0x399}, {0x1fab}},
    {0x1fa4, {0x1f6c, 0x399}, {0x1fac}}, {0x1fa5, {0x1f6d, 0x399}, {0x1fad}}, {0x1fa6, {0x1f6e, 0x399}, {0x1fae}},
    {0x1fa7, {0x1f6f, 0x399}, {0x1faf}}, {0x1fa8, {0x1f68, 0x399}, {0x1fa8}}, {0x1fa9, {0x1f69, 0x399}, {0x1fa9}},
    {0x1faa, {0x1f6a, 0x399}, {0x1faa}}, {0x1fab, {0x1f6b, 0x399}, {0x1fab}}, {0x1fac, {0x1f6c, 0x399}, {0x1fac}},
    {0x1fad, {0x1f6d, 0x399}, {0x1fad}}, {0x1fae, {0x1f6e, 0x399}, {0x1fae}}, {0x1faf, {0x1f6f, 0x399}, {0x1faf}},
    {0x1fb2, {0x1fba, 0x399}, {0x1fba, 0x345}}, {0x1fb3, {0x391, 0x399}, {0x1fbc}},
    {0x1fb4, {0x386, 0x399}, {0x386, 0x345}}, {0x1fb6, {0x391, 0x342}, {0x391, 0x342}},
    {0x1fb7, {0x391, 0x342, 0x399}, {0x391, 0x342, 0x345}}, {0x1fbc, {0x391, 0x399}, {0x1fbc}},
    {0x1fc2, {0x1fca, 0x399}, {0x1fca, 0x345}}, {0x1fc3, {0x397, 0x399}, {0x1fcc}},
    {0x1fc4, {0x389, 0x399}, {0x389, 0x345}}, {0x1fc6, {0x397, 0x342}, {0x397, 0x342}},
    {0x1fc7, {0x397, 0x342, 0x399}, {0x397, 0x342, 0x345}}, {0x1fcc, {0x397, 0x399}, {0x1fcc}},
    {0x1fd2, {0x399, 0x308, 0x300}, {0x399, 0x308, 0x300}}, {0x1fd3, {0x399, 0x308, 0x301}, {0x399, 0x308, 0x301}},
    {0x1fd6, {0x399, 0x342}, {0x399, 0x342}}, {0x1fd7, {0x399, 0x308, 0x342}, {0x399, 0x308, 0x342}},
    {0x1fe2, {0x3a5, 0x308, 0x300}, {0x3a5, 0x308, 0x300}}, {0x1fe3, {0x3a5, 0x308, 0x301}, {0x3a5, 0x308, 0x301}},
    {0x1fe4, {0x3a1, 0x313}, {0x3a1, 0x313}}, {0x1fe6, {0x3a5, 0x342}, {0x3a5, 0x342}},
    {0x1fe7, {0x3a5, 0x308, 0x342}, {0x3a5, 0x308, 0x342}}, {0x1ff2, {0x1ffa, 0x399}, {0x1ffa, 0x345}},
    {0x1ff3, {0x3a9, 0x399}, {0x1ffc}}, {0x1ff4, {0x38f, 0x399}, {0x38f, 0x345}},
    {0x1ff6, {0x3a9, 0x342}, {0x3a9, 0x342}}, {0x1ff7, {0x3a9, 0x342, 0x399}, {0x3a9, 0x342, 0x345}},
    {0x1ffc, {0x3a9, 0x399}, {0x1ffc}}, {0xfb00, {0x46, 0x46}, {0x46, 0x66}}, {0xfb01, {0x46, 0x49}, {0x46, 0x69}},
    {0xfb02, {0x46, 0x4c}, {0x46, 0x6c}}, {0xfb03, {0x46, 0x46, 0x49}, {0x46, 0x66, 0x69}},
    {0xfb04, {0x46, 0x46, 0x4c}, {0x46, 0x66, 0x6c}}, {0xfb05, {0x53, 0x54}, {0x53, 0x74}},
    {0xfb06, {0x53, 0x54}, {0x53, 0x74}}, {0xfb13, {0x544, 0x546}, {0x544, 0x576}},
    {0xfb14, {0x544, 0x535}, {0x544, 0x565}}, {0xfb15, {0x544, 0x53b}, {0x544, 0x56b}},
    {0xfb16, {0x54e, 0x546}, {0x54e, 0x576}}, {0xfb17, {0x544, 0x53d}, {0x544, 0x56d}},
};
/* clang-format on */

static const special_case *special_find(int32_t c) {
    size_t low = 0, high = ARRAY_LENGTH(special_cases);
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (special_cases[middle].c == c) return &special_cases[middle];
        if (special_cases[middle].c < c) low = middle + 1;
        else high = middle;
    }
    return NULL;
}

/* ---- classes -------------------------------------------------------------------------------------------------------- */

bool char_is_upper(int32_t c) {
    if (c < 0x80) return c >= 'A' && c <= 'Z';
    return utf8proc_category(c) == UTF8PROC_CATEGORY_LU || (c >= 0x2160 && c <= 0x216f) ||
           (c >= 0x24b6 && c <= 0x24cf) || (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
           (c >= 0x1f170 && c <= 0x1f189);
}
bool char_is_lower(int32_t c) {
    if (c < 0x80) return c >= 'a' && c <= 'z';
    return utf8proc_category(c) == UTF8PROC_CATEGORY_LL || c == 0xaa || c == 0xba || (c >= 0x2b0 && c <= 0x2b8) ||
           c == 0x2c0 || c == 0x2c1 || (c >= 0x2e0 && c <= 0x2e4) || c == 0x345 || c == 0x37a ||
           (c >= 0x1d2c && c <= 0x1d6a) || c == 0x1d78 || (c >= 0x1d9b && c <= 0x1dbf) || c == 0x2071 || c == 0x207f ||
           (c >= 0x2090 && c <= 0x209c) || (c >= 0x2170 && c <= 0x217f) || (c >= 0x24d0 && c <= 0x24e9) ||
           c == 0x2c7c || c == 0x2c7d || c == 0xa69c || c == 0xa69d || c == 0xa770 || c == 0xa7f8 || c == 0xa7f9 ||
           (c >= 0xab5c && c <= 0xab5f);
}
bool char_is_title(int32_t c) { return c >= 0x80 && utf8proc_category(c) == UTF8PROC_CATEGORY_LT; }
bool char_is_alpha(int32_t c) {
    utf8proc_category_t k = utf8proc_category(c);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}
bool char_is_decimal(int32_t c) { return utf8proc_category(c) == UTF8PROC_CATEGORY_ND; }
bool char_is_digit(int32_t c) {
    return char_is_decimal(c) || c == 0xb2 || c == 0xb3 || c == 0xb9 || c == 0x2070 || (c >= 0x2074 && c <= 0x2079) ||
           (c >= 0x2080 && c <= 0x2089) || (c >= 0x2460 && c <= 0x2468) || (c >= 0x2474 && c <= 0x247c) ||
           (c >= 0x2488 && c <= 0x2490) || c == 0x24ea || (c >= 0x24f5 && c <= 0x24fd) || c == 0x24ff ||
           (c >= 0x2776 && c <= 0x277e) || (c >= 0x2780 && c <= 0x2788) || (c >= 0x278a && c <= 0x2792);
}
bool char_is_numeral(int32_t c) {
    utf8proc_category_t k = utf8proc_category(c);
    return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}
bool char_is_printable(int32_t c) {
    if (c < 0x7f) return c >= ' ';
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
    }
}

static bool is_cased(int32_t c) { return char_is_upper(c) || char_is_lower(c) || char_is_title(c); }
/* Marks, modifiers and a few signs do not end a word for the sake of its case. */
static bool is_case_ignorable(int32_t c) {
    utf8proc_category_t k = utf8proc_category(c);
    return c == '\'' || c == '.' || c == ':' || c == '^' || c == '`' || c == 0xad || c == 0xb7 || c == 0x2019 ||
           k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_ME || k == UTF8PROC_CATEGORY_CF ||
           k == UTF8PROC_CATEGORY_LM || k == UTF8PROC_CATEGORY_SK;
}

/* ---- mappings ------------------------------------------------------------------------------------------------------- */

static void put(builder *b, int32_t c, uint8_t marks) {
    utf8proc_uint8_t out[4];
    builder_add(b, (char *)out, (size_t)utf8proc_encode_char(c, out), marks);
}

static void put_upper(builder *b, int32_t c, uint8_t marks, bool as_title) {
    const special_case *special = c < 0x80 ? NULL : special_find(c);
    if (!special) put(b, as_title ? utf8proc_totitle(c) : utf8proc_toupper(c), marks);
    for (int i = 0; special && i < 3; i++) {
        int32_t part = as_title ? special->title[i] : special->upper[i];
        if (part) put(b, part, marks);
    }
}

/* A capital sigma at the end of a word has a form of its own. */
static bool is_final_sigma(const string *s, size_t at) {
    size_t n, i = at;
    bool has_before = false, has_behind = false;
    while (i > 0) {
        do i--;
        while (i > 0 && (s->text[i] & 0xc0) == 0x80);
        int32_t c = char_at(s, i, &n);
        if (is_case_ignorable(c)) continue;
        has_before = is_cased(c);
        break;
    }
    for (i = at + 2; i < s->length; i += n) {
        int32_t c = char_at(s, i, &n);
        if (is_case_ignorable(c)) continue;
        has_behind = is_cased(c);
        break;
    }
    return has_before && !has_behind;
}

static void put_lower(builder *b, const string *s, size_t at, int32_t c, uint8_t marks) {
    if (c == 0x3a3) put(b, is_final_sigma(s, at) ? 0x3c2 : 0x3c3, marks);
    else if (c == 0x130) {
        put(b, 'i', marks);
        put(b, 0x307, marks);
    } else put(b, utf8proc_tolower(c), marks);
}

/* The title filter of Jinja begins words behind white space and these. */
static bool splits_words(int32_t c) { return space_is(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<'; }

value text_case(render *r, const string *s, letter_case to) {
    builder b;
    bool was_cased = false, begins = true;
    builder_init(&b, r);
    bytes_take(r, s->length * 8);
    for (size_t i = 0, n; i < s->length && !failed(r); i += n) {
        int32_t c = char_at(s, i, &n);
        uint8_t marks = string_mark(s, i);
        switch (to) {
        case CASE_UPPER: put_upper(&b, c, marks, false); break;
        case CASE_LOWER: put_lower(&b, s, i, c, marks); break;
        case CASE_TITLE:
            if (was_cased) put_lower(&b, s, i, c, marks);
            else put_upper(&b, c, marks, true);
            was_cased = is_cased(c);
            break;
        case CASE_CAPITALIZE:
            if (i == 0) put_upper(&b, c, marks, true);
            else put_lower(&b, s, i, c, marks);
            break;
        case CASE_SWAP:
            if (char_is_upper(c)) put_lower(&b, s, i, c, marks);
            else if (char_is_lower(c)) put_upper(&b, c, marks, false);
            else put(&b, c, marks);
            break;
        case CASE_TITLE_FILTER:
            if (splits_words(c)) put(&b, c, marks);
            else if (begins) put_upper(&b, c, marks, false);
            else put_lower(&b, s, i, c, marks);
            begins = splits_words(c);
            break;
        }
    }
    return builder_take(&b);
}
