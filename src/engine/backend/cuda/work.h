#pragma once
/* work.h - what a plan and gemm_prepare must know of the CUDA kernel of an op before it runs; no CUDA in here. */
#include "backend/backend.h"

/* Does the kernel run matrix products? Then gemm_prepare chooses their algorithms before the first run. */
typedef enum cuda_products { NO_PRODUCTS, PRODUCTS } cuda_products;

typedef struct cuda_work {
    size_t (*bytes)(const program *p, const op *o); /* of scratch */
    cuda_products products;
} cuda_work;

/* One per op with SCRATCH, in the work*.c of its family: an op without one does not link. Products need scratch. */
#define DECLARE_NO_SCRATCH(id)
#define DECLARE_SCRATCH(id) extern const cuda_work cuda_work_##id;
#define COMM_OP(...)
#define CPU_OP(...)
#define OP(id, in, out, inplace, scratch, ...) DECLARE_##scratch(id)
#include "program/ops.def"
#undef OP
#undef DECLARE_SCRATCH
#undef DECLARE_NO_SCRATCH

size_t cuda_no_work(const program *p, const op *o); /* 0 */
bool cuda_has_products(op_kind k);
