/* xml.c - see xml.h. */
#include "xml.h"
#include "base/base.h"

#include <stdio.h>
#include <string.h>

static const char *skip_text(const char *s, char until) {
    static const char *const entities[] = {"&amp;", "&lt;", "&gt;", "&quot;"};
    while (*s && *s != until) {
        if (*s == '<' || ((unsigned char)*s < ' ' && *s != '\n')) return s;
        if (*s == '&') {
            size_t k = 0;
            while (k < ARRAY_LENGTH(entities) && !str_starts_with(s, entities[k])) k++;
            if (k == ARRAY_LENGTH(entities)) return s;
        }
        if (str_starts_with(s, "\xef\xbf\xbe") || str_starts_with(s, "\xef\xbf\xbf")) return s;
        s++;
    }
    return s;
}

static size_t name_length(const char *s) {
    size_t n = 0;
    while ((s[n] >= 'a' && s[n] <= 'z') || (s[n] >= 'A' && s[n] <= 'Z') || (n && s[n] == '-')) n++;
    return n;
}

const char *find_xml_error(const char *text) {
    struct {
        const char *name;
        size_t length;
    } open[16];
    size_t depth = 0, n_roots = 0;
    if (utf8_check(text, strlen(text)).n_bad) return text;
    for (const char *s = text; *s;) {
        if (*s != '<') {
            const char *end = skip_text(s, '<');
            if (*end && *end != '<') return end;
            if (depth == 0 && strspn(s, "\n") < (size_t)(end - s)) return s;
            s = end;
            continue;
        }
        bool closes = s[1] == '/';
        const char *name = s + 1 + closes;
        size_t n = name_length(name);
        if (n == 0) return s;
        s = name + n;
        if (closes) {
            if (depth == 0 || open[depth - 1].length != n || memcmp(open[depth - 1].name, name, n) || *s != '>')
                return s;
            depth--, s++;
            continue;
        }
        if (depth == 0 && n_roots++) return s;
        const char *first_attribute = s;
        while (*s == ' ') {
            const char *key = s + 1;
            size_t k = name_length(key);
            char again[40];
            if (k == 0) {
                s++;
                break;
            }
            snprintf(again, sizeof again, " %.*s=", (int)k, key);
            const char *found = strstr(first_attribute, again);
            if (key[k] != '=' || key[k + 1] != '"' || !found || found + 1 != key) return key;
            s = skip_text(key + k + 2, '"');
            if (*s++ != '"') return s - 1;
        }
        if (s[0] == '/' && s[1] == '>') s += 2;
        else if (*s == '>' && depth < ARRAY_LENGTH(open)) open[depth].name = name, open[depth++].length = n, s++;
        else return s;
    }
    return depth == 0 && n_roots == 1 ? NULL : text + strlen(text);
}
