#pragma once
/* unembed8.h - how UNEMBED8_LOSS_GRAD cuts its work, where in its scratch things lie, and its products; no CUDA in here.
 * unembed8.c explains the walks. */
#include "backend/cuda/products.h"

typedef struct unembed8_plan {
    int64_t N, C, V;
    bool has_dw;
    dtype dw_type; /* only where has_dw */
    logits8_cut cut;
    int64_t ld;   /* halves from one row of logits to the next ... */
    int64_t v_ld; /* ... and of a block of the vocabulary */
    int64_t q_ld; /* bytes from one row of their gradient to the next ... */
    int64_t t_ld; /* ... and of its transpose */
    size_t at_q, at_t, at_states, at_scales, at_products, n_bytes; /* logits, then these */
} unembed8_plan;

unembed8_plan unembed8_plan_make(const program *p, const op *o);
/* The three products, for a number of tokens and of columns of the vocabulary. */
product unembed8_logits_product(const unembed8_plan *u, int64_t n_rows, int64_t n_columns, int64_t ld);
product unembed8_dh_product(const unembed8_plan *u, int64_t n_rows);
product unembed8_dw_product(const unembed8_plan *u, int64_t n_rows, int64_t n_columns);
