#pragma once
/* gemm.h - matrix products by cuBLASLt: one plan per product, its algorithm measured once.
 *
 * Promises
 *   - The algorithm follows from the product alone (products.h), never from an address or a place in the program: the same
 *     product has the same bits wherever it runs.
 *   - Only algorithms with one order of summation: none that adds with atomics, none that cuts k but for
 *     product_may_split, and then in parts that are kept in fp32 and added in a second step.
 *   - After gemm_prepare of an op, its kernel allocates nothing and waits for nothing: it can be recorded.
 *
 *     TRY(gemm_open(c, NULL));
 *     TRY(gemm_prepare(c, &call));               // for each op, before the first run
 *     gemm_call g = {.q = linear_product(p, o), .a = x, .b = w, .c = y, .work = work};
 *     gemm_launch(c, &g);                           // queues it on c->stream
 *     gemm_close(c); */
#include "backend/cuda/cuda.h"
#include "backend/cuda/launch_gemm.h"
#include "backend/cuda/products.h"

typedef struct gemm_call {
    product q;
    const void *a, *b; /* start at a multiple of 64 bytes, as all here; where q.inside, at any of their rows */
    void *c;           /* likewise */
    const void *bias;  /* where q.bias */
    const float *a_scale, *b_scale; /* of e4m3 operands: what multiplies them, in device memory */
    float alpha;                    /* multiplies the product; 0: 1 */
    void *work;                     /* product_work_bytes(&q), at a multiple of 256 bytes */
} gemm_call;

/* c->blas, c->stream and c->device are there. cache_directory: as gemm_cache_open. */
status gemm_open(backend_context *c, const char *cache_directory);
void gemm_close(backend_context *c);

/* Chooses for every product of this op by running it on its own buffers, whose contents do not matter; outputs and scratch
 * are overwritten. Nothing for ops that are no products. Waits for the stream. */
status gemm_prepare(backend_context *c, const kernel_call *k);

/* A product that was not prepared gets what the cache says or cuBLASLt's own first choice, unmeasured. */
void gemm_launch(backend_context *c, const gemm_call *g);

/* C = product + keep * C, for an fp32 product and factors in device memory (one is 1): the product has the algorithm of
 * gemm_launch, and C the bits of a sum behind it. false: cuBLASLt does not take it so, and nothing is done. */
bool gemm_launch_onto(backend_context *c, const gemm_call *g, const float *one, const float *keep);

/* Is this a product of few_rows.cu, and what that is told of one. */
/* May kernels of ralo's own for capability 9.0 do products here? RALO_CUDA_PRODUCTS can say no. */
bool gemm_has_own(const backend_context *c);
bool gemm_is_few_rows(const backend_context *c, const product *q);

/* Two ways to compute a product, with what a library cannot add to it. Bits may differ, so the choice is kept as that of an algorithm is: by
 * the product and `what` else it does. */
typedef struct gemm_ways {
    const char *what;
    void (*own)(backend_context *c, const kernel_call *k);
    void (*library)(backend_context *c, const kernel_call *k);
} gemm_ways;
/* Runs the one that was measured faster in gemm_prepare, or is in the cache; else the own one. has_own: there is one for these sizes. */
void gemm_run_faster(backend_context *c, const kernel_call *k, const product *q, const gemm_ways *w, bool has_own);
few_rows_product gemm_few_rows(const gemm_call *g);
