#pragma once
/* launch_unembed.h - rows of fp32 logits to losses and gradients, and the gathering of picked rows. */
#include "backend/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct unembed_state { /* what the gradient of one token's logits needs */
    float max;
    float factor; /* weight * seed / sum of exp(logit - max); 0: no gradient */
} unembed_state;

/* n_rows tokens and n_columns logits of each, from column first_column of the vocabulary on. Rows of logits start at a
 * multiple of 16 bytes; what lies between n_columns and ld may be read and written and means nothing. */
typedef struct unembed_rows {
    int64_t n_rows;
    int32_t n_columns, first_column;
    float *logits; /* (n_rows, ld) */
    int64_t ld;
    const int32_t *targets; /* (n_rows); outside [0, n_vocabulary): not trained on */
    int32_t n_vocabulary;   /* of all ranks that share it */
    int32_t first_id;       /* the id of column 0 */
    const float *weights;   /* (n_rows) or NULL */
    const float *seed;      /* one number */
    float *losses;          /* (n_rows) */
    int32_t *argmax;        /* (n_rows) or NULL */
    unembed_state *states;  /* (n_rows) or NULL */
    float softcap;          /* that the logits have had, as launch_cap_logits does it; 0: none */
    launch_type type;       /* of the gradient */
    void *gradient;         /* (n_rows, gradient_ld); rows start at a multiple of 16 bytes */
    int64_t gradient_ld;
} unembed_rows;

/* A gradient may lie on the logits it is made from: an fp32 one exactly, a 16-bit one in the second half of each row.
 * unembed.cu says why that half. */
static inline void *unembed_gradient_place(float *logits, int64_t ld, launch_type type) {
    return type == LAUNCH_F32 ? (void *)logits : (void *)(logits + ld / 2);
}

/* Logits, fp32 or fp16, become softcap * tanh(logit / softcap): n_rows of n_columns, `ld` from one to the next. */
void launch_cap_logits(cudaStream_t stream, launch_type type, void *logits, int64_t n_rows, int64_t n_columns,
                       int64_t ld, float softcap);
/* All columns at once: losses, argmax and states where asked. */
void launch_unembed_loss(cudaStream_t stream, const unembed_rows *r);
/* All columns at once: losses, states where asked, gradient. */
void launch_unembed_loss_grad(cudaStream_t stream, const unembed_rows *r);
/* Some columns: gradient, from the states. */
void launch_unembed_grad(cudaStream_t stream, const unembed_rows *r);

/* Where ranks share the vocabulary: numbers of each token, n_stats of them in fp64 (program.h, STAT_*): the largest logit,
 * the sum of exp(logit - largest), the target's logit or 0; with 4 of them the id of the largest. */
enum { LAUNCH_STAT_MAX, LAUNCH_STAT_SUM, LAUNCH_STAT_TARGET, LAUNCH_STAT_ARGMAX };
/* All columns of this rank at once: stats (n_rows, n_stats). */
void launch_unembed_stats(cudaStream_t stream, const unembed_rows *r, double *stats, int n_stats);
/* Of all ranks: stats (n_ranks, n_tokens, n_stats), of r->n_rows = n_tokens tokens: losses, argmax where asked. */
void launch_unembed_join(cudaStream_t stream, const unembed_rows *r, const double *stats, int n_ranks, int n_stats);
/* ... or states, for launch_unembed_grad. */
void launch_unembed_states(cudaStream_t stream, const unembed_rows *r, const double *stats, int n_ranks, int n_stats);

/* dst[i] = src[pick[i]], zeros where pick[i] is outside [0, n_src). */
void launch_gather_rows(cudaStream_t stream, void *dst, const void *src, const int32_t *pick, int64_t n_rows,
                        int64_t n_src, int64_t row_bytes);

#ifdef __cplusplus
}
#endif
