/* json.c - JSON as DeepSpeed's reader (hjson) takes it: comments and trailing commas are no errors.
 *
 * Comments (//, # and those of C) and a comma before a closing bracket become blanks in place, so that every line and
 * column stays where it is. What is left must be strict JSON for jansson, without duplicate keys. hjson also takes
 * strings without quotes, to which a comment behind them belongs; those stay errors here, so that two readers never
 * disagree. */
#include "migrate/json.h"

#include <string.h>

/* The end of the comment that begins at text[at]; at itself where none does. *open: a C comment that never ends. */
static size_t comment_end(const char *text, size_t n_bytes, size_t at, bool *open) {
    bool is_line = text[at] == '#' || (at + 1 < n_bytes && text[at] == '/' && text[at + 1] == '/');
    *open = false;
    if (is_line) {
        while (at < n_bytes && text[at] != '\n' && text[at] != '\r') at++;
        return at;
    }
    if (at + 1 >= n_bytes || text[at] != '/' || text[at + 1] != '*') return at;
    for (size_t end = at + 2; end + 1 < n_bytes; end++)
        if (text[end] == '*' && text[end + 1] == '/') return end + 2;
    *open = true;
    return n_bytes;
}

static size_t string_end(const char *text, size_t n_bytes, size_t at) {
    for (at++; at < n_bytes && text[at] != '"'; at++)
        if (text[at] == '\\') at++;
    return MIN(at + 1, n_bytes);
}

static void blank(char *text, size_t from, size_t to) {
    for (size_t i = from; i < to; i++)
        if (text[i] != '\n' && text[i] != '\r') text[i] = ' ';
}

static int line_at(const char *text, size_t offset) {
    int line = 1;
    for (size_t i = 0; i < offset; i++) line += text[i] == '\n';
    return line;
}

bool foreign_json_begins(const char *text, size_t n_bytes) {
    bool open;
    for (size_t at = utf8_mark_bytes(text, n_bytes); at < n_bytes;) {
        size_t end = comment_end(text, n_bytes, at, &open);
        if (end == at && !strchr(" \t\r\n", text[at])) return text[at] == '{';
        at = MAX(end, at + 1);
    }
    return false;
}

status foreign_json_clean(const char *path, char *text, size_t n_bytes) {
    enum { NONE = -1 };
    ptrdiff_t comma = NONE; /* where the last token is one behind a value; else NONE */
    char last = 0;          /* the last token's last character */
    for (size_t at = 0; at < n_bytes;) {
        bool open;
        size_t end = comment_end(text, n_bytes, at, &open);
        if (open) return ERR(ERR_INPUT, "%s:%d: found /* without */; close the comment", path, line_at(text, at));
        if (end > at) {
            blank(text, at, end);
            at = end;
            continue;
        }
        char c = text[at];
        if (c == '"') {
            at = string_end(text, n_bytes, at);
            comma = NONE;
            last = c;
            continue;
        }
        if ((c == '}' || c == ']') && comma != NONE) text[comma] = ' ';
        if (c == '\t') text[at] = ' '; /* a blank in JSON, but YAML takes offence at some */
        if (c && !strchr(" \t\r\n", c)) {
            comma = c == ',' && last && !strchr("{[,:", last) ? (ptrdiff_t)at : NONE;
            last = c;
        }
        at++;
    }
    json_error_t error;
    json_t *root = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        return ERR(ERR_INPUT,
                   "%s:%d:%d: %s (expected one JSON object, in UTF-8, without duplicate keys; comments and trailing "
                   "commas are fine)",
                   path, MAX(error.line, 1), MAX(error.column, 1), error.text);
    json_decref(root);
    return OK;
}
