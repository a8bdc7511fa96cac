/* work.c - scratch of the CUDA kernels: pure, so that a plan for a GPU can be made where there is none. */
#include "backend/cuda/work.h"

size_t cuda_no_work(const program *p, const op *o) { return 0; }

static const cuda_work none = {cuda_no_work, NO_PRODUCTS};
static const cuda_work *const WORK[OP_COUNT] = {
#define WORK_NO_SCRATCH(id) &none
#define WORK_SCRATCH(id) &cuda_work_##id
#define COMM_OP(...)
#define CPU_OP(...)
#define OP(id, in, out, inplace, scratch, ...) [OP_##id] = WORK_##scratch(id),
#include "program/ops.def"
#undef OP
};

size_t cuda_work_bytes(const program *p, const op *o, int n_threads) {
    (void)n_threads;       /* of the host; a GPU's kernels have as many as they like */
    ASSERT(WORK[o->kind]); /* messages are not asked for here: comm sizes theirs */
    return WORK[o->kind]->bytes(p, o);
}

bool cuda_has_products(op_kind k) { return WORK[k] && WORK[k]->products == PRODUCTS; }
