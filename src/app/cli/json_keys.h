#pragma once
/* json_keys.h - private to cli: what --json prints, as json_keys.def lists it. */
#include "cli/cli.h"

typedef struct json_key {
    const char *kind; /* in the row that opens an object, with `help` saying what it is; NULL: one of its keys */
    const char *key;  /* NULL: the former */
    const char *type, *help;
} json_key;
const json_key *json_key_at(size_t i); /* NULL past the end */

/* Whether an object has only listed keys, and each of its type; if not, `wrong` says which. */
bool json_keys_check(const json_t *object, const char *kind, strbuf *wrong);
