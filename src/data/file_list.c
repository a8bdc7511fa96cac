/* file_list.c - data.source as a list of files with weights.
 *
 *     corpus.txt, chat.jsonl              counted by their size
 *     corpus.txt:0.3, chat.jsonl:0.7      three rows of ten, seven rows of ten
 *     odd\:name\:1, with\,comma.txt       a backslash takes the character after it as it is
 * Spaces around a name do not belong to it. A ":" with a number after it at the end of a name is a weight; any other
 * ":" is part of the name. */
#include "data/source.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void file_list_free(file_entry *entries, size_t n) {
    for (size_t i = 0; i < n; i++) free(entries[i].path);
    free(entries);
}

/* Takes ":0.7" off the end of the text; false: it has no weight. */
static bool take_weight(span *text, double *out) {
    char number[64], *end;
    size_t colon = text->length;
    while (colon > 0 && text->text[colon - 1] != ':') colon--;
    size_t n = text->length - colon;
    if (colon < 2 || text->text[colon - 2] == '\\' || n == 0 || n >= sizeof number) return false;
    memcpy(number, text->text + colon, n);
    number[n] = 0;
    if (number[strspn(number, "0123456789.eE+-")] || !strpbrk(number, "0123456789")) return false;
    *out = strtod(number, &end);
    if (*end) return false;
    text->length = colon - 1;
    return true;
}

static span trim(span s) {
    while (s.length && (s.text[0] == ' ' || s.text[0] == '\t')) s.text++, s.length--;
    while (s.length && (s.text[s.length - 1] == ' ' || s.text[s.length - 1] == '\t') &&
           !(s.length > 1 && s.text[s.length - 2] == '\\'))
        s.length--;
    return s;
}

static char *unescape(span s) {
    char *out = mem_alloc(s.length + 1);
    size_t n = 0;
    for (size_t i = 0; i < s.length; i++) {
        if (s.text[i] == '\\' && i + 1 < s.length) i++;
        out[n++] = s.text[i];
    }
    return out;
}

static status add_entry(const char *source, span text, file_entry *out) {
    text = trim(text);
    bool weighted = take_weight(&text, &out->weight);
    text = trim(text);
    if (text.length == 0)
        return ERR(ERR_INPUT, "data source '%.500s': found an empty name, expected files separated by single commas",
                   source);
    if (weighted && !(out->weight > 0 && isfinite(out->weight)))
        return ERR(ERR_INPUT, "data source '%.500s': found the weight %g of '%.*s', expected a number above 0", source,
                   out->weight, (int)MIN(text.length, 200), text.text);
    if (!weighted) out->weight = 0;
    out->path = unescape(text);
    if (str_starts_with(out->path, "builtin:"))
        return ERR(ERR_INPUT,
                   "data source '%.500s': found %s in a list, expected files: a built-in source must be the only one",
                   source, out->path);
    return OK;
}

status file_list_parse(const char *source, file_entry **out, size_t *n) {
    size_t capacity = 0;
    *out = NULL;
    *n = 0;
    for (const char *at = source;; at++) {
        const char *end = at;
        while (*end && *end != ',') end += end[0] == '\\' && end[1] ? 2 : 1;
        *out = array_grow(*out, &capacity, *n + 1, sizeof **out);
        (*out)[*n] = (file_entry){0};
        TRY(add_entry(source, (span){at, (size_t)(end - at)}, &(*out)[(*n)++]));
        if (!*end) break;
        at = end;
    }
    for (size_t i = 1; i < *n; i++)
        if (((*out)[i].weight > 0) != ((*out)[0].weight > 0))
            return ERR(
                ERR_INPUT,
                "data source '%.500s': found a weight for '%s' and none for '%s', expected weights for all files "
                "or for none",
                source, (*out)[(*out)[0].weight > 0 ? 0 : i].path, (*out)[(*out)[0].weight > 0 ? i : 0].path);
    return OK;
}

status file_list_parse_eval(const char *source, file_entry **out, size_t *n) {
    TRY(file_list_parse(source, out, n));
    if ((*out)[0].weight > 0)
        return ERR(ERR_INPUT, "data.eval_source '%.500s': found a weight for '%s', expected files without weights",
                   source, (*out)[0].path);
    return OK;
}
