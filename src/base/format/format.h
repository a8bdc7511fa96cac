#pragma once
/* format.h - JSON and YAML that others wrote: bytes in, views out, nothing trusted.
 *
 * Promises
 *   - Every error names the file, where in it (line and column), what was found, what was expected.
 *   - No length and no nesting in a file is trusted before it was checked against the file's real size. */
#include "base/base.h"
#include <jansson.h>

/* A clone without Git LFS leaves a few lines where a large file should be. */
bool format_is_lfs_pointer(const void *bytes, size_t n_bytes);

/* ---- JSON (jansson: strict, no duplicate keys) --------------------------------------------------------------- */

status json_read_file(const char *path, size_t max_bytes, json_t **out); /* the caller calls json_decref */
status json_write_file(const char *path, const json_t *root); /* whole or not at all: temp + fsync + rename */
/* Members of an object; `where` is the file, for the message. Missing or mistyped members are ERR_INPUT. */
status json_get_int(const json_t *object, const char *key, int64_t min, int64_t max, const char *where, int64_t *out);
status json_get_real(const json_t *object, const char *key, const char *where, double *out);
status json_get_string(const json_t *object, const char *key, const char *where, const char **out); /* borrowed */
json_t *json_text(const char *text, size_t n_bytes); /* bytes that are not UTF-8 become U+FFFD */
bool json_has_number(const json_t *v);               /* itself, or anywhere inside */
json_t *json_real_or_null(double x);                 /* null where x is not finite, which JSON cannot say */

/* ---- YAML (libyaml), as a tree; JSON is a subset of it ------------------------------------------------------- */

typedef enum yaml_kind { YAML_SCALAR, YAML_MAP, YAML_LIST } yaml_kind;
typedef struct yaml_node {
    yaml_kind kind;
    const char *key;                      /* inside a map; else NULL */
    const char *text;                     /* scalars */
    bool quoted;                          /* "8" in quotes is a string, 8 is a number */
    int line, column;                     /* 1-based, of the key inside a map, else of the value */
    struct yaml_node *first_child, *next; /* maps and lists, in file order */
} yaml_node;
/* Refuses duplicate keys, aliases and anchors, several documents, nesting deeper than 32, invalid UTF-8 and files over
 * 4 MiB. An empty file is an empty map. The tree lives in `memory`. */
status yaml_read_file(const char *path, arena *memory, yaml_node **out);
status yaml_read_text(const char *text, size_t n_bytes, const char *where, arena *memory, yaml_node **out);
/* The same tree as JSON: what is not quoted and reads as a number, true, false or null is one. The caller ends the reference. */
json_t *yaml_to_json(const yaml_node *n);
/* The text in double quotes, so that it reads back as it is. Bytes that are not UTF-8 become U+0080 to U+00FF. */
void yaml_write_quoted(const char *text, strbuf *out);
