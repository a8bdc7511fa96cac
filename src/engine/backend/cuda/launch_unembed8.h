#pragma once
/* launch_unembed8.h - launchers of unembed8.cu: losses of fp16 logits, and their gradient in 8 bits (e5m2). */
#include "backend/cuda/launch_unembed.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What gradients of logits are multiplied with before they are rounded (factor), and what undoes it: 2^15 / a and a / 2^15, where
 * a = |seed| times the largest |weight| (1 without weights), at least 2^-100, bounds every gradient. */
typedef struct unembed8_scales {
    float scale; /* first, so that it is aligned as the scales of other products are */
    float factor;
} unembed8_scales;
void launch_unembed8_scales(cudaStream_t s, unembed8_scales *scales, const float *weights, int64_t n,
                            const float *seed);

/* Rows and columns come in multiples of 16, ld in multiples of 16 bytes. */
typedef struct launch_unembed8_args {
    unembed_rows r;         /* without logits ... */
    const uint16_t *logits; /* ... which are fp16, (n_rows, r.ld) */
    const unembed8_scales *scales;
    uint8_t *q, *t; /* the gradient (n_rows, q_ld) and its transpose (n_columns, t_ld); either may be NULL */
    int64_t q_ld, t_ld;
} launch_unembed8_args;
/* All columns at once: losses and states. */
void launch_unembed8_loss(cudaStream_t s, const launch_unembed8_args *a);
/* Some columns: q and t from the states. */
void launch_unembed8_grad(cudaStream_t s, const launch_unembed8_args *a);

#ifdef __cplusplus
}
#endif
