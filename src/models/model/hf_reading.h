#pragma once
/* hf_reading.h - private to model: values of a config.json by their key, refused by name where they are not what is expected.
 *
 * Absent and null are the same to every reader of this format. */
#include "model/model.h"

typedef struct hf_reading {
    const char *path; /* shown in messages */
    const json_t *root;
} hf_reading;

#define NAMES(...) ((const char *const[]){__VA_ARGS__, NULL})

status hf_refuse(const char *path, const char *key, const json_t *found, const char *expected);
const json_t *hf_get(const json_t *object, const char *key); /* NULL: absent or null */
/* The first of the names that is there, and which it was; where none is, NULL and the last name. */
const json_t *hf_get_any(const json_t *object, const char *const *names, const char **name);
status hf_read_size(const hf_reading *r, const char *const *names, int64_t max, int64_t *out); /* from 1 to max */
status hf_read_size_or(const hf_reading *r, const char *key, int64_t max, int64_t otherwise, int64_t *out);
status hf_read_bool(const hf_reading *r, const char *key, bool otherwise, bool *out);
/* A number above `above`; absent: `otherwise`, and where that is NAN the key is needed. `where` is shown before it. */
status hf_read_real(const hf_reading *r, const json_t *object, const char *where, const char *key, double above,
                    double otherwise, double *out);
/* A flag that must have the one value ralo computes. */
status hf_demand_bool(const hf_reading *r, const char *key, bool wanted, const char *why);
status hf_demand_word(const hf_reading *r, const char *key, const char *const *words, const char *expected);
status hf_demand_absent(const hf_reading *r, const char *key, const char *why); /* or false, 0 or empty */

/* ---- hf_rope.c ------------------------------------------------------------------------------------------------------- */

status hf_read_rope(const hf_reading *r, model_config *c); /* the sizes were read before */
void hf_put_rope(json_t *o, const model_config *c);
