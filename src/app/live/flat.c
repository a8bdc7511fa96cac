/* flat.c - a million lines are read when a page of a long run is opened; building a tree of each would take ten seconds. What is not a plain
 * list of numbers goes through jansson, which decides what JSON is. */
#include "live/flat.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DIGITS_MOST = 18 }; /* of a whole number: jansson refuses those beyond 64 bits */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static const char *skip_digits(const char *at) {
    while (is_digit(*at)) at++;
    return at;
}
static const char *skip_space(const char *at) {
    while (*at == ' ' || *at == '\t') at++;
    return at;
}

/* A number as JSON has it; NULL: none, or one that does not fit. */
static const char *take_number(const char *at, double *out) {
    const char *start = at, *digits = at + (*at == '-');
    at = skip_digits(digits);
    if (at == digits || (*digits == '0' && at > digits + 1) || at - digits > DIGITS_MOST) return NULL;
    if (*at == '.') {
        const char *fraction = at + 1;
        if ((at = skip_digits(fraction)) == fraction) return NULL;
    }
    if (*at == 'e' || *at == 'E') {
        const char *exponent = at + 1 + (at[1] == '+' || at[1] == '-');
        if ((at = skip_digits(exponent)) == exponent) return NULL;
    }
    *out = strtod(start, NULL);
    return isfinite(*out) ? at : NULL;
}

static const char *take_value(const char *at, double *out) {
    *out = NAN;
    if (strncmp(at, "null", 4) == 0) return at + 4;
    if (strncmp(at, "true", 4) == 0) {
        *out = 1;
        return at + 4;
    }
    return take_number(at, out);
}

/* A name without escapes, and the colon behind it. */
static const char *take_name(const char *at, span *out) {
    if (*at++ != '"') return NULL;
    const char *start = at;
    while (*at >= ' ' && *at < 127 && *at != '"' && *at != '\\') at++;
    if (*at != '"') return NULL;
    *out = (span){start, (size_t)(at - start)};
    at = skip_space(at + 1);
    return *at == ':' ? skip_space(at + 1) : NULL;
}

static bool is_there(const flat_pair *pairs, size_t n, span name) {
    for (size_t i = 0; i < n; i++)
        if (pairs[i].name.length == name.length && memcmp(pairs[i].name.text, name.text, name.length) == 0) return true;
    return false;
}

size_t flat_read_plain(const char *line, size_t n_bytes, flat_pair *pairs) {
    const char *at = skip_space(line);
    size_t n = 0;
    if (*at++ != '{') return 0;
    for (;;) {
        flat_pair p;
        if (n == FLAT_MOST || !(at = take_name(skip_space(at), &p.name)) || !(at = take_value(at, &p.value))) return 0;
        if (is_there(pairs, n, p.name)) return 0;
        pairs[n++] = p;
        at = skip_space(at);
        if (*at == '}') break;
        if (*at++ != ',') return 0;
    }
    at = skip_space(at + 1);
    return at == line + n_bytes || (*at == '\r' && at + 1 == line + n_bytes) ? n : 0;
}

size_t flat_read(const char *line, size_t n_bytes, flat_pair *pairs, json_t **root) {
    size_t n = flat_read_plain(line, n_bytes, pairs);
    if (n) return n;
    *root = json_loadb(line, n_bytes, JSON_REJECT_DUPLICATES, NULL);
    const char *key;
    json_t *value;
    json_object_foreach(*root, key, value) {
        if (n == FLAT_MOST) break;
        double x = json_is_true(value) ? 1 : json_is_number(value) ? json_number_value(value) : NAN;
        pairs[n++] = (flat_pair){{key, strlen(key)}, x};
    }
    return n;
}
