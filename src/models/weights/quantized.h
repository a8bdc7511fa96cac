#pragma once
/* quantized.h - private to weights: frozen weights that the program holds as codes (model.base). */
#include "exec/exec.h"
#include "plan/plan.h"

/* Sum over the numbers that were quantised, as params_hash_elements gives it: the hash of a base is that of its own numbers,
 * whatever it is stored as, and nobody has them after this. */
typedef struct base_hash {
    dtype as;     /* rounded to this first */
    uint64_t sum; /* of those that this rank counts for */
} base_hash;

/* Is parameter i one of them? */
bool quantized_is(const plan *p, size_t i);
/* Rows [first, first + n) of the parameter, as fp32; columns beside it. */
typedef void quantized_rows(void *context, int64_t first, int64_t n, float *out);
/* Quantises parameter i, a part at a time: every part is a matrix of its own. Rows are asked for in order; fp8 asks for those of
 * a part twice, because its scale comes first. Holds the codes of one part and a few megabytes. hash: NULL: not asked for.
 * ERR_INPUT names a number that is not finite. */
status quantized_write(exec *e, const plan *p, size_t i, quantized_rows *read, void *context, base_hash *hash);
/* The values that hold parameter i, as at most QUANTIZED_VALUES; returns how many. */
enum { QUANTIZED_VALUES = 12 };
int quantized_values(const plan *p, size_t i, value_id out[QUANTIZED_VALUES]);
