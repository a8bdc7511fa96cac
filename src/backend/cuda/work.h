#pragma once
/* work.h - what a plan and gemm_prepare must know of the CUDA kernel of an op before it runs; no CUDA in here. */
#include "backend/backend.h"

/* Does the kernel run matrix products? Then gemm_prepare chooses their algorithms before the first run. */
typedef enum cuda_products { NO_PRODUCTS, PRODUCTS } cuda_products;

typedef struct cuda_work {
    size_t (*bytes)(const program *p, const op *o); /* of scratch */
    cuda_products products;
} cuda_work;

/* One per op that has a kernel, in the work*.c of its family: an op without one does not link. */
#define COMM_OP(id, in, out, inplace, doc)
#define RING_OP(id, in, out, inplace, doc)
#define OP(id, in, out, inplace, doc) extern const cuda_work cuda_work_##id;
#include "program/ops.def"
#undef OP

size_t cuda_no_work(const program *p, const op *o); /* 0 */
bool cuda_has_products(op_kind k);
