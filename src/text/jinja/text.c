/* text.c - strings as Python sees them: characters, not bytes; white space and digits of Unicode. */
#define _GNU_SOURCE 1 /* memmem */
#include "jinja/render.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <utf8proc.h>

int32_t char_at(const string *s, size_t i, size_t *n_bytes) {
    unsigned char c = (unsigned char)s->text[i];
    utf8proc_int32_t decoded;
    *n_bytes = 1;
    if (c < 0x80) return c;
    utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)s->text + i,
                                          (utf8proc_ssize_t)MIN(s->length - i, (size_t)4), &decoded);
    if (n <= 0) return 0xfffd;
    *n_bytes = (size_t)n;
    return decoded;
}

size_t text_length(const string *s) {
    size_t n = 0;
    for (size_t i = 0; i < s->length; i++) n += (s->text[i] & 0xc0) != 0x80;
    return n;
}

size_t text_offset(const string *s, size_t n_chars) {
    size_t i = 0;
    for (; i < s->length; i++) {
        if ((s->text[i] & 0xc0) == 0x80) continue;
        if (n_chars-- == 0) return i;
    }
    return s->length;
}

bool space_is(int32_t c) {
    return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x1f) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

/* ---- finding -------------------------------------------------------------------------------------------------------- */

size_t text_find(const string *s, const string *wanted, size_t from) {
    if (from > s->length) return SIZE_MAX;
    if (wanted->length == 0) return from;
    if (s->length - from < wanted->length) return SIZE_MAX;
    const char *at = memmem(s->text + from, s->length - from, wanted->text, wanted->length);
    return at ? (size_t)(at - s->text) : SIZE_MAX;
}

static bool is_among(const string *chars, int32_t c) {
    if (!chars) return space_is(c);
    for (size_t i = 0, n; i < chars->length; i += n)
        if (char_at(chars, i, &n) == c) return true;
    return false;
}

value text_strip(render *r, const string *s, const string *chars, bool left, bool right) {
    size_t begin = 0, end = s->length, n;
    /* Comparing with one of chars costs as much as going over 8 bytes does elsewhere. */
    if (!bytes_take(r, chars ? s->length * (8 * chars->length + 1) : s->length)) return NONE;
    while (left && begin < end && is_among(chars, char_at(s, begin, &n))) begin += n;
    while (right && end > begin) {
        size_t last = end - 1;
        while (last > begin && (s->text[last] & 0xc0) == 0x80) last--;
        if (!is_among(chars, char_at(s, last, &n))) break;
        end = last;
    }
    return string_slice(r, s, begin, end);
}

value text_replace(render *r, const string *s, const string *old, const string *new, int64_t count) {
    builder b;
    size_t at = 0, found;
    builder_init(&b, r);
    if (count < 0) count = INT64_MAX;
    bytes_take(r, s->length);
    if (old->length == 0) { /* between all characters, and around them */
        for (size_t n; count > 0 && steps_take(r, 1); count--) {
            builder_add_string(&b, new);
            if (at >= s->length) break;
            char_at(s, at, &n);
            builder_add_part(&b, s, at, at + n);
            at += n;
        }
    }
    while (old->length && count-- > 0 && steps_take(r, 1) && (found = text_find(s, old, at)) != SIZE_MAX) {
        builder_add_part(&b, s, at, found);
        builder_add_string(&b, new);
        at = found + old->length;
    }
    builder_add_part(&b, s, at, s->length);
    return builder_take(&b);
}

value text_join(render *r, const string *separator, const list *items, bool any_kind) {
    builder b;
    builder_init(&b, r);
    for (size_t i = 0; i < items->n && steps_take(r, 1); i++) {
        value v = items->items[i];
        if (v.kind != V_STRING && !any_kind)
            fail(r, "sequence item %zu: expected str instance, %s found", i, value_type(v));
        if (i) builder_add_string(&b, separator);
        text_add(&b, v);
    }
    return builder_take(&b);
}

/* How long the line break is that begins here. */
static size_t line_break(const string *s, size_t i) {
    size_t n;
    int32_t c = char_at(s, i, &n);
    if (c == '\r') return i + 1 < s->length && s->text[i + 1] == '\n' ? 2 : 1;
    bool is_break = (c >= 10 && c <= 12) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
    return is_break ? n : 0;
}

list *text_lines(render *r, const string *s, bool keep_ends) {
    list *l = list_new(r, 0);
    size_t begin = 0;
    bytes_take(r, s->length);
    for (size_t i = 0, n, end; i < s->length && !failed(r); i += n) {
        char_at(s, i, &n);
        if (!(end = line_break(s, i))) continue;
        n = end;
        list_add(r, l, string_slice(r, s, begin, keep_ends ? i + n : i));
        begin = i + n;
    }
    if (begin < s->length) list_add(r, l, string_slice(r, s, begin, s->length));
    return l;
}

value text_pad(render *r, const string *s, int64_t width, const string *fill, int align) {
    int64_t n = (int64_t)text_length(s), missing = width - n;
    bytes_take(r, s->length);
    builder b;
    builder_init(&b, r);
    if (missing <= 0) missing = 0;
    /* Python's way of halving an odd number */
    int64_t before = align < 0 ? 0 : align > 0 ? missing : missing / 2 + (missing & width & 1);
    uint8_t marks = string_marks(fill);
    builder_fill(&b, fill->text, fill->length, marks, before);
    builder_add_string(&b, s);
    builder_fill(&b, fill->text, fill->length, marks, missing - before);
    return builder_take(&b);
}

/* ---- numbers -------------------------------------------------------------------------------------------------------- */

/* The text without white space around it and without single underscores between digits; false: they stand wrong. */
static bool number_text(const string *s, char out[400], size_t *n) {
    size_t begin = 0, end = s->length, k;
    while (begin < end && space_is(char_at(s, begin, &k))) begin += k;
    while (end > begin && space_is((unsigned char)s->text[end - 1])) end--;
    *n = 0;
    for (size_t i = begin; i < end; i++) {
        char c = s->text[i];
        if (c == '_') {
            bool between = i > begin && i + 1 < end && strchr("0123456789abcdefABCDEF", s->text[i - 1]) &&
                           strchr("0123456789abcdefABCDEF", s->text[i + 1]) && s->text[i + 1] && s->text[i - 1];
            if (!between) return false;
            continue;
        }
        if (*n >= 398 || !c || c & 0x80) return false;
        out[(*n)++] = c;
    }
    out[*n] = 0;
    return *n > 0;
}

bool number_parse(const string *s, int base, value *out) {
    char text[400], *at = text, *end;
    size_t n;
    if (!number_text(s, text, &n)) return false;
    bool is_negative = *at == '-';
    if (*at == '+' || *at == '-') at++;
    int letter = at[0] == '0' ? at[1] | 0x20 : 0;
    int prefixed = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    if (prefixed && (base == prefixed || base == 0)) {
        at += 2;
        base = prefixed;
    }
    if (base == 0) base = 10;
    if (!((*at >= '0' && *at <= '9') || ((*at | 0x20) >= 'a' && (*at | 0x20) <= 'z'))) return false;
    errno = 0;
    unsigned long long magnitude = strtoull(at, &end, base);
    if (*end || errno == ERANGE || magnitude > (unsigned long long)INT64_MAX) return false;
    *out = int_value(is_negative ? -(int64_t)magnitude : (int64_t)magnitude);
    return true;
}

bool float_parse(const string *s, double *out) {
    static const char *const words[] = {"inf", "infinity", "nan"};
    char text[400], *at = text, *end;
    size_t n;
    if (!number_text(s, text, &n)) return false;
    at += *at == '+' || *at == '-';
    for (size_t i = 0; i < ARRAY_LENGTH(words); i++)
        if (strcasecmp(at, words[i]) == 0) {
            *out = i == 2 ? (double)NAN : *text == '-' ? -(double)INFINITY : (double)INFINITY;
            return true;
        }
    if (strspn(at, "0123456789.eE+-") != strlen(at) || !strpbrk(at, "0123456789")) return false;
    *out = strtod(text, &end);
    return !*end;
}
