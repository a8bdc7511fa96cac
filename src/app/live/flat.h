#pragma once
/* flat.h - private to live: a line of metrics.jsonl, {"key": number, ...}, as pairs.
 *
 *     flat_pair pairs[FLAT_MOST];
 *     json_t *root = NULL;
 *     size_t n = flat_read(line, n_bytes, pairs, &root);
 *     ... pairs[i].name, pairs[i].value: good as long as line and root are
 *     json_decref(root); */
#include "format/format.h"

enum { FLAT_MOST = 512 }; /* pairs of a line; more are left out */
typedef struct flat_pair {
    span name;
    double value; /* true is 1; NAN: null, a text, or anything else that is no number */
} flat_pair;
/* How many; 0: the line is no JSON object. *root: what the names point into, where they do not point into the line. */
size_t flat_read(const char *line, size_t n_bytes, flat_pair *pairs, json_t **root);
/* The same for lines that are written as runs write them, ten times faster; 0: it is another one. */
size_t flat_read_plain(const char *line, size_t n_bytes, flat_pair *pairs);
