/* answer.c - see answer.h. Every search is one walk over the text, so hostile completions cost no more than long ones. */
#define _GNU_SOURCE 1 /* memmem */
#include "reward/answer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NESTED_MOST = 4, NUMBER_MOST = 320 };

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
static char at(span s, size_t i) { return i < s.length ? s.text[i] : 0; }
static span from(span s, size_t i) { return (span){s.text + i, s.length - i}; }

static bool begins(span s, size_t i, const char *word) {
    size_t n = strlen(word);
    return i <= s.length && s.length - i >= n && memcmp(s.text + i, word, n) == 0;
}

/* ---- marks ------------------------------------------------------------------------------------------------------- */

static span strip(span s) {
    while (s.length && (is_space(*s.text) || strchr("*$`", *s.text)) && *s.text) s = from(s, 1);
    while (s.length) {
        char c = s.text[s.length - 1];
        if (!c || !(is_space(c) || strchr("*$`.", c))) break;
        s.length--;
    }
    return s;
}

static span until(span s, char stop) {
    const char *end = s.length ? memchr(s.text, stop, s.length) : NULL;
    return end ? (span){s.text, (size_t)(end - s.text)} : s;
}

/* The last place of a word; -1: nowhere. */
static int64_t find_last(span s, const char *word) {
    size_t n = strlen(word);
    for (size_t i = s.length >= n ? s.length - n + 1 : 0; i-- > 0;)
        if (s.text[i] == *word && memcmp(s.text + i, word, n) == 0) return (int64_t)i;
    return -1;
}

/* "answer is" or "answer:", in any case. */
static size_t answer_word(span s, size_t i) {
    static const char word[] = "answer";
    size_t n = sizeof word - 1;
    if (s.length - i < n) return 0;
    for (size_t k = 0; k < n; k++)
        if ((s.text[i + k] | 0x20) != word[k]) return 0;
    while (at(s, i + n) == '*') n++;
    if (at(s, i + n) == ':') return n + 1;
    if (at(s, i + n) == ' ' && (at(s, i + n + 1) | 0x20) == 'i' && (at(s, i + n + 2) | 0x20) == 's' &&
        !is_letter(at(s, i + n + 3)))
        return n + 3;
    return 0;
}

typedef struct mark {
    int64_t place; /* of marks with an end, the end: what stands inside does not count; -1: none */
    span answer;
} mark;

static void take_later(mark *best, int64_t place, span answer) {
    if (place > best->place) *best = (mark){place, answer};
}

static void find_hashes(span s, mark *best) {
    int64_t i = find_last(s, "####");
    if (i >= 0) take_later(best, i, until(from(s, (size_t)i + 4), '\n'));
}

/* Without its closing brace it was cut off, and no answer. */
static void find_boxed(span s, mark *best) {
    static const char word[] = "\\boxed{";
    int64_t i = find_last(s, word);
    int depth = 1;
    if (i < 0) return;
    size_t begin = (size_t)i + sizeof word - 1, end = begin;
    for (; end < s.length && depth > 0; end++) depth += (s.text[end] == '{') - (s.text[end] == '}');
    if (depth == 0) take_later(best, (int64_t)end - 1, (span){s.text + begin, end - 1 - begin});
}

static void find_tag(span s, mark *best) {
    static const char open[] = "<answer>", close[] = "</answer>";
    int64_t i = find_last(s, open);
    if (i < 0) return;
    span rest = from(s, (size_t)i + sizeof open - 1);
    const char *end = memmem(rest.text, rest.length, close, sizeof close - 1);
    if (end) take_later(best, end - s.text, (span){rest.text, (size_t)(end - rest.text)});
}

/* To the end of the line or the sentence: a full stop with a space after it. */
static void find_sentence(span s, mark *best) {
    for (size_t i = s.length; i-- > 0;) {
        size_t n = answer_word(s, i);
        if (n == 0) continue;
        span rest = from(s, i + n);
        while (rest.length && (is_space(*rest.text) || *rest.text == ':' || *rest.text == '*')) rest = from(rest, 1);
        rest = until(rest, '\n');
        for (size_t k = 0; k + 1 < rest.length; k++)
            if (rest.text[k] == '.' && rest.text[k + 1] == ' ') rest.length = k;
        take_later(best, (int64_t)i, rest);
        return;
    }
}

span answer_extract(span text, bool *is_marked) {
    *is_marked = false;
    for (int depth = 0; depth < NESTED_MOST; depth++) {
        mark best = {.place = -1};
        find_hashes(text, &best);
        find_boxed(text, &best);
        find_tag(text, &best);
        find_sentence(text, &best);
        if (best.place < 0) break;
        *is_marked = true;
        text = best.answer;
    }
    return strip(text);
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

/* What separates thousands: a comma, and as LaTeX writes it. */
static size_t separator(span s, size_t i) {
    if (at(s, i) == ',') return 1;
    if (begins(s, i, "{,}")) return 3;
    return begins(s, i, "\\,") ? 2 : 0;
}

/* Digits with separators before each three, from i on, copied without them. */
static size_t read_whole(span s, size_t i, strbuf *out) {
    size_t begin = i;
    while (is_digit(at(s, i))) i++;
    strbuf_add_bytes(out, s.text + begin, i - begin);
    if (i - begin > 3 || i == begin) return i;
    for (;;) {
        size_t n = separator(s, i), k = i + n;
        bool three = n && is_digit(at(s, k)) && is_digit(at(s, k + 1)) && is_digit(at(s, k + 2));
        if (!three || is_digit(at(s, k + 3))) return i;
        strbuf_add_bytes(out, s.text + k, 3);
        i = k + 3;
    }
}

/* A number without sign; returns where it ends, or i. */
static size_t read_unsigned(span s, size_t i, double *out) {
    char text[NUMBER_MOST], *end;
    strbuf digits;
    strbuf_init(&digits);
    size_t begin = i;
    i = read_whole(s, i, &digits);
    if (at(s, i) == '.' && is_digit(at(s, i + 1))) {
        size_t k = i++;
        while (is_digit(at(s, i))) i++;
        strbuf_add_bytes(&digits, s.text + k, i - k);
    }
    size_t k = i + 1 + (at(s, i + 1) == '-' || at(s, i + 1) == '+');
    if (i > begin && (at(s, i) | 0x20) == 'e' && is_digit(at(s, k))) {
        while (is_digit(at(s, k))) k++;
        if (!is_letter(at(s, k))) {
            strbuf_add_bytes(&digits, s.text + i, k - i);
            i = k;
        }
    }
    bool fits = i > begin && digits.length < sizeof text;
    if (fits) {
        memcpy(text, digits.text, digits.length + 1);
        *out = strtod(text, &end);
        fits = isfinite(*out);
    }
    strbuf_fini(&digits);
    if (!fits && i > begin) *out = NAN; /* it is there, and no finite number */
    return i;
}

/* A minus directly before place i, or before a currency sign there; after a letter, digit or bracket it subtracts. */
static bool is_negative(span s, size_t i) {
    if (i >= 1 && s.text[i - 1] == '$') i -= i >= 2 && s.text[i - 2] == '\\' ? 2 : 1;
    else if (i >= 2 && memcmp(s.text + i - 2, "\xc2\xa3", 2) == 0) i -= 2;     /* pound */
    else if (i >= 3 && memcmp(s.text + i - 3, "\xe2\x82\xac", 3) == 0) i -= 3; /* euro */
    size_t n = i >= 1 && s.text[i - 1] == '-' ? 1 : i >= 3 && memcmp(s.text + i - 3, "\xe2\x88\x92", 3) == 0 ? 3 : 0;
    if (n == 0) return false;
    char before = i > n ? s.text[i - n - 1] : ' ';
    return !is_letter(before) && !is_digit(before) && !strchr(")]}.", before);
}

/* \frac{3}{4} at place i; returns where it ends, or i. */
static size_t read_frac(span s, size_t i, double *out) {
    static const char *const names[] = {"\\frac{", "\\dfrac{", "\\tfrac{"};
    double part[2];
    size_t k = 0, j;
    while (k < ARRAY_LENGTH(names) && !begins(s, i, names[k])) k++;
    if (k == ARRAY_LENGTH(names)) return i;
    size_t end = i + strlen(names[k]);
    for (k = 0; k < 2; k++) {
        bool minus = at(s, end) == '-';
        j = end + minus;
        end = read_unsigned(s, j, &part[k]);
        if (end == j || at(s, end) != '}' || (k == 0 && at(s, end + 1) != '{')) return i;
        if (minus) part[k] = -part[k];
        end += k == 0 ? 2 : 1;
    }
    *out = part[0] / part[1];
    return end;
}

/* The number that begins at i; returns where it ends, or i. */
static size_t read_number(span s, size_t i, double *out) {
    double divisor;
    size_t end = read_frac(s, i, out);
    if (end == i) {
        end = read_unsigned(s, i, out);
        if (end == i) return i;
        size_t k = at(s, end) == '/' ? read_unsigned(s, end + 1, &divisor) : end;
        if (k > end + 1) {
            *out /= divisor;
            end = k;
        }
    }
    if (is_negative(s, i)) *out = -*out;
    return end;
}

bool answer_extract_number(span text, double *out) {
    bool is_marked, found = false;
    span s = answer_extract(text, &is_marked);
    int64_t equals = is_marked ? find_last(s, "=") : -1;
    *out = NAN;
    for (size_t i = equals >= 0 ? (size_t)equals + 1 : 0; i < s.length && !(is_marked && found);) {
        size_t end = i;
        double x;
        if (is_digit(s.text[i]) || s.text[i] == '\\' || (s.text[i] == '.' && is_digit(at(s, i + 1))))
            end = read_number(s, i, &x);
        if (end > i) {
            *out = x;
            found = true;
        }
        i = MAX(end, i + 1);
    }
    return found && isfinite(*out);
}
