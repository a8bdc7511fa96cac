/* string.c - growable text, and string helpers that several rooms use.
 *
 * Numbers are parsed by hand and not with strtod: the result must not depend on the locale, must be exact, and
 * "0x10", "1e9", "nan" or "-1" must not pass as a number of bytes. */
#include "base/base.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void strbuf_init(strbuf *b) { *b = (strbuf){0}; }

void strbuf_fini(strbuf *b) {
    free(b->text);
    strbuf_init(b);
}

void strbuf_add_bytes(strbuf *b, const void *bytes, size_t n) {
    ASSERT(n < SIZE_MAX - b->length - 1);
    b->text = array_grow(b->text, &b->capacity, b->length + n + 1, 1);
    if (n) memcpy(b->text + b->length, bytes, n);
    b->length += n;
    b->text[b->length] = 0;
}

void strbuf_add(strbuf *b, const char *s) { strbuf_add_bytes(b, s, strlen(s)); }

void strbuf_printf(strbuf *b, const char *fmt, ...) {
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    ASSERT(length >= 0);
    b->text = array_grow(b->text, &b->capacity, b->length + (size_t)length + 1, 1);
    vsnprintf(b->text + b->length, (size_t)length + 1, fmt, again);
    va_end(again);
    b->length += (size_t)length;
}

void strbuf_add_word(strbuf *b, const char *text) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-+=:@%,";
    if (*text && text[strspn(text, plain)] == 0) {
        strbuf_add(b, text);
        return;
    }
    strbuf_add(b, "'");
    for (; *text; text++) {
        if (*text == '\'') strbuf_add(b, "'\\''");
        else strbuf_add_bytes(b, text, 1);
    }
    strbuf_add(b, "'");
}

char *strbuf_take(strbuf *b) {
    char *text = b->text ? b->text : mem_alloc(1);
    strbuf_init(b);
    return text;
}

bool str_ends_with(const char *s, const char *suffix) {
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && memcmp(s + n - m, suffix, m) == 0;
}

bool str_starts_with(const char *s, const char *prefix) { return strncmp(s, prefix, strlen(prefix)) == 0; }

/* Edit distance: insertions, deletions, replacements, and swaps of two neighbours (one typing error, so one edit).
 * If it is more than `most`, any number above that. Names longer than 255 are never typing errors of each other. */
static int distance_within(const char *a, const char *b, int most) {
    enum { LONGEST = 255 };
    size_t n = strlen(a), m = strlen(b);
    if (n > LONGEST || m > LONGEST) return strcmp(a, b) == 0 ? 0 : (int)MIN(MAX(n, m), (size_t)INT32_MAX);

    int rows[3][LONGEST + 1]; /* this row of the table, the one above, the one above that */
    int *row = rows[0], *above = rows[1], *above2 = rows[2], least_above = 0;
    for (size_t j = 0; j <= m; j++) above[j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        int least = row[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            int best = MIN(above[j], row[j - 1]) + 1;
            best = MIN(best, above[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) best = MIN(best, above2[j - 2] + 1);
            row[j] = best;
            least = MIN(least, best);
        }
        if (least > most && least_above >= most) return least; /* a swap comes from the row above, and is one edit */
        least_above = least;
        int *recycled = above2;
        above2 = above;
        above = row;
        row = recycled;
    }
    return above[m];
}

int str_edit_distance(const char *a, const char *b) { return distance_within(a, b, INT32_MAX); }

const char *str_after_last_dot(const char *key) {
    const char *dot = strrchr(key, '.');
    return dot ? dot + 1 : key;
}

/* Typing errors between the wanted text and name, plus those before it; INT32_MAX: too many. Allowed are two, or one
 * in three characters of a long name, one in a short name, but never every character. A prefix counts as one. */
static int typing_errors(const char *name, const char *wanted, int before) {
    enum { BEGINNING = 3, SHORT = 3 }; /* characters that make a prefix recognizable */
    int n = (int)MIN(strlen(wanted), (size_t)INT32_MAX), length = (int)MIN(strlen(name), (size_t)INT32_MAX);
    int most = MIN(MAX(n > SHORT ? 2 : 1, n / 3), n - 1), d = INT32_MAX;
    /* The difference in length is a lower bound: most names need no table. */
    if (before + abs(n - length) <= most) d = before + distance_within(wanted, name, most - before);
    if (n >= BEGINNING && str_starts_with(name, wanted) && !strchr(name + n, '.')) d = MIN(d, before + 1);
    return d <= most ? d : INT32_MAX;
}

static int count_dots(const char *key) {
    int n = 0;
    for (; *key; key++) n += *key == '.';
    return n;
}

/* If two keys have equally many groups, the last parts must be near each other: "model.lora" is not near
 * "model.vocab". */
static int typing_errors_of_key(const char *name, const char *wanted) {
    const char *last = str_after_last_dot(name), *wanted_last = str_after_last_dot(wanted);
    int behind = typing_errors(last, wanted_last, 1);
    if (count_dots(name) == count_dots(wanted) && typing_errors(last, wanted_last, 0) == INT32_MAX) return behind;
    return MIN(behind, typing_errors(name, wanted, 0));
}

bool str_nearest_try(str_nearest *n, const char *name) {
    int d = n->has_groups ? typing_errors_of_key(name, n->wanted) : typing_errors(name, n->wanted, 0);
    if (d == INT32_MAX || (*n->name && d >= n->distance) || strlen(name) >= sizeof n->name) return false;
    snprintf(n->name, sizeof n->name, "%s", name);
    n->distance = d;
    return true;
}

static const char *skip_spaces(const char *s) {
    while (*s == ' ' || *s == '\t') s++;
    return s;
}

static char to_upper(char c) { return c >= 'a' && c <= 'z' ? (char)(c - 'a' + 'A') : c; }

status str_parse_bytes(const char *s, uint64_t *out) {
    static const char units[] = "KMGTPE";
    const char *p = skip_spaces(s);
    uint64_t whole = 0, fraction = 0, scale = 1;
    bool digits = false, fits = true;

    for (; *p >= '0' && *p <= '9'; p++, digits = true)
        if (__builtin_mul_overflow(whole, 10u, &whole) || __builtin_add_overflow(whole, (uint64_t)(*p - '0'), &whole))
            fits = false;
    bool point = digits && *p == '.' && p[1] >= '0' && p[1] <= '9';
    if (point) {
        for (p++; *p >= '0' && *p <= '9'; p++) {
            if (scale == 1000000000000000000u) continue; /* far below one byte */
            fraction = fraction * 10 + (uint64_t)(*p - '0');
            scale *= 10;
        }
    }
    p = skip_spaces(p);
    int shift = 0;
    const char *unit = *p ? strchr(units, to_upper(*p)) : NULL;
    if (unit) {
        shift = 10 * (int)(unit - units + 1);
        p++;
        if (to_upper(*p) == 'I') p++;
    }
    if (to_upper(*p) == 'B') p++;
    p = skip_spaces(p);
    if (!digits || *p || (point && shift == 0))
        return ERR(ERR_INPUT, "'%s' is not a number of bytes; write it like 4096, 512M, 8G or 1.5 GiB", s);

    __extension__ typedef unsigned __int128 wide;
    wide total = ((wide)whole << shift) + ((wide)fraction << shift) / scale;
    if (!fits || total > UINT64_MAX) return ERR(ERR_INPUT, "'%s' is more bytes than 64 bits can count", s);
    *out = (uint64_t)total;
    return OK;
}

char *str_format_bytes(char buf[32], uint64_t n_bytes) {
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (n_bytes < 1024) {
        snprintf(buf, 32, "%u B", (unsigned)n_bytes);
        return buf;
    }
    double value = (double)n_bytes / 1024;
    size_t i = 0;
    /* 1023.95 would print as 1024.0 of the smaller unit. */
    for (; value >= 1023.95 && i + 1 < ARRAY_LENGTH(units); i++) value /= 1024;
    snprintf(buf, 32, "%.1f %s", value, units[i]);
    return buf;
}

char *str_format_limit(char buf[32], uint64_t n_bytes) {
    static const char units[] = "KMGT";
    uint64_t unit = 1024;
    size_t i = 0;
    for (; n_bytes / unit >= 1024 && units[i + 1]; i++) unit *= 1024;
    uint64_t tenths = n_bytes / unit * 10 + divide_up((int64_t)(n_bytes % unit * 10), (int64_t)unit);
    snprintf(buf, 32, "%llu.%llu%c", (unsigned long long)(tenths / 10), (unsigned long long)(tenths % 10), units[i]);
    return buf;
}

char *str_format_seconds(char buf[32], double s) {
    if (s < 10) snprintf(buf, 32, "%.4g ms", 1e3 * s);
    else if (s < 600) snprintf(buf, 32, "%.1f s", s);
    else if (s < 36000) snprintf(buf, 32, "%.1f min", s / 60);
    else snprintf(buf, 32, "%.1f h", s / 3600);
    return buf;
}

char *str_format_duration(char buf[32], double s) {
    if (s < 90) snprintf(buf, 32, "%.0f s", s);
    else if (s < 90 * 60) snprintf(buf, 32, "%.0f min", s / 60);
    else if (s < 48 * 3600) snprintf(buf, 32, "%.1f h", s / 3600);
    else snprintf(buf, 32, "%.1f days", s / 86400);
    return buf;
}

char *str_format_count(char buf[32], double n) {
    static const char *const units[] = {"", "K", "M", "B", "T"};
    double value = n;
    size_t i = 0;
    if (fabs(n) < 999.95) {
        snprintf(buf, 32, n == rint(n) ? "%.0f" : "%.1f", n);
        return buf;
    }
    for (; isfinite(value) && fabs(value) >= 999.95 && i + 1 < ARRAY_LENGTH(units); i++) value /= 1000;
    if (fabs(value) < 999.95) snprintf(buf, 32, "%.1f%s", value, units[i]);
    else snprintf(buf, 32, "%.3g", n); /* beyond what has a common letter */
    return buf;
}
