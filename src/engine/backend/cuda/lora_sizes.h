#pragma once
/* lora_sizes.h - how the sums of LORA_BWD are cut. C and no CUDA: the plan counts scratch with it.
 *
 * Its two results are products with few columns and a long sum, over the columns of dy or over the tokens. Sums are cut, so that
 * there are blocks for the whole GPU; each leaves its part in fp32 in scratch, and the parts are added in order. Parts are
 * long enough that writing and reading them is little beside reading dy. Everything follows from shapes and attributes alone.
 *
 * Two ways. In one reading of dy (lora_bwd_tiles.cu), cut into units; or one result at a time (lora_grad.cu), cut into runs,
 * where a result of one run is written at once. Which one depends on the device too; scratch is enough for either. */
#include "program/program.h"

typedef struct lora_shape {
    int64_t N, out, r, R; /* dy (N, out), b (R, r) */
    bool fast;            /* what the tensor cores' kernels take: 16 bits, columns in packs of 16 bytes */
    int64_t run;          /* elements of one run */
} lora_shape;
lora_shape lora_shape_make(const value *wide, const value *b, const op_attr *a);

/* Runs of one result: over all tokens (db), else over the columns of the widest part (dxa). */
int64_t lora_runs(const lora_shape *s, const op_attr *a, bool over_tokens);

/* One reading. Without one, where the rank is too large for it: no units. */
typedef struct lora_units {
    int64_t n_units, units_per_stripe, n_blocks;
    int64_t n_stripes, n_segments; /* parts of dxa; of db, where a stripe has most */
} lora_units;
lora_units lora_units_make(const lora_shape *s, const op_attr *a);
