#pragma once
/* lora_sizes.h - how the sums of LORA_DXA and LORA_DB are cut. C and no CUDA: the plan counts scratch with it.
 *
 * Both are products with few columns and a long sum, over the columns of dy or over the tokens. The sum is cut into runs, so
 * that there are blocks for the whole GPU; each run leaves its part in fp32 in scratch, and the parts are added in order. A
 * run is long enough that writing and reading the parts is a sixteenth of reading dy. Where there is one run it writes the
 * result itself. Everything follows from shapes and attributes alone. */
#include "program/program.h"

typedef struct lora_shape {
    int64_t N, out, r, R; /* dy (N, out), b (R, r) */
    bool fast;            /* what the tensor cores' kernels take: 16 bits, columns in packs of 16 bytes */
    int64_t run;          /* elements of one run */
} lora_shape;

lora_shape lora_shape_make(const program *p, const op *o);
/* Runs of part i: of LORA_DXA those over its columns, of LORA_DB those over all tokens, the same for every part. */
int64_t lora_runs(const lora_shape *s, const op *o, int i);
int64_t lora_runs_most(const lora_shape *s, const op *o);
