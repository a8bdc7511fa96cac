/* work.c - scratch of the CUDA kernels: pure, so that a plan for a GPU can be made where there is none. */
#include "backend/cuda/work.h"

static const cuda_work *const WORK[OP_COUNT] = {
#define COMM_OP(id, in, out, inplace, doc)
#define RING_OP(id, in, out, inplace, doc)
#define OP(id, in, out, inplace, doc) [OP_##id] = &cuda_work_##id,
#include "program/ops.def"
#undef OP
};

size_t cuda_work_bytes(const program *p, const op *o, int n_threads) {
    (void)n_threads;       /* of the host; a GPU's kernels have as many as they like */
    ASSERT(WORK[o->kind]); /* messages are not asked for here: comm sizes theirs; a plan for a GPU has no ring */
    return WORK[o->kind]->bytes(p, o);
}

bool cuda_has_products(op_kind k) { return WORK[k] && WORK[k]->products == PRODUCTS; }

/* ---- kernels without scratch ------------------------------------------------------------------------------------- */

size_t cuda_no_work(const program *p, const op *o) { return 0; }

const cuda_work cuda_work_ROPE_TABLE = {cuda_no_work, NO_PRODUCTS};
const cuda_work cuda_work_EMBED = {cuda_no_work, NO_PRODUCTS};
const cuda_work cuda_work_RMSNORM = {cuda_no_work, NO_PRODUCTS};
const cuda_work cuda_work_LAYERNORM = {cuda_no_work, NO_PRODUCTS};
const cuda_work cuda_work_ADD = {cuda_no_work, NO_PRODUCTS};
const cuda_work cuda_work_ADD_RMSNORM = {cuda_no_work, NO_PRODUCTS};
const cuda_work cuda_work_ADD_LAYERNORM = {cuda_no_work, NO_PRODUCTS};
const cuda_work cuda_work_ADD_BIAS = {cuda_no_work, NO_PRODUCTS};
const cuda_work cuda_work_QK_NORM = {cuda_no_work, NO_PRODUCTS};
const cuda_work cuda_work_ROPE = {cuda_no_work, NO_PRODUCTS};
const cuda_work cuda_work_QK_NORM_ROPE = {cuda_no_work, NO_PRODUCTS};
const cuda_work cuda_work_SWIGLU = {cuda_no_work, NO_PRODUCTS};
const cuda_work cuda_work_GELU = {cuda_no_work, NO_PRODUCTS};
const cuda_work cuda_work_HEAD_PARTS = {cuda_no_work, NO_PRODUCTS};
const cuda_work cuda_work_TOKEN_PARTS = {cuda_no_work, NO_PRODUCTS};
const cuda_work cuda_work_KV_STORE = {cuda_no_work, NO_PRODUCTS};
const cuda_work cuda_work_LOGITS_TOP = {cuda_no_work, NO_PRODUCTS};
const cuda_work cuda_work_LOSS_REDUCE = {cuda_no_work, NO_PRODUCTS};
const cuda_work cuda_work_UNEMBED_JOIN = {cuda_no_work, NO_PRODUCTS};
const cuda_work cuda_work_SWIGLU_BWD = {cuda_no_work, NO_PRODUCTS};
const cuda_work cuda_work_GELU_BWD = {cuda_no_work, NO_PRODUCTS};
const cuda_work cuda_work_ABSMAX = {cuda_no_work, NO_PRODUCTS};
const cuda_work cuda_work_QUANTIZE = {cuda_no_work, NO_PRODUCTS};
const cuda_work cuda_work_ACCUMULATE = {cuda_no_work, NO_PRODUCTS};
const cuda_work cuda_work_SUM_PARTS = {cuda_no_work, NO_PRODUCTS};
const cuda_work cuda_work_GRAD_SUMSQ = {cuda_no_work, NO_PRODUCTS};
const cuda_work cuda_work_NORM_SUM = {cuda_no_work, NO_PRODUCTS};
const cuda_work cuda_work_CLIP = {cuda_no_work, NO_PRODUCTS};
const cuda_work cuda_work_ADAMW = {cuda_no_work, NO_PRODUCTS};
const cuda_work cuda_work_CAST = {cuda_no_work, NO_PRODUCTS};
const cuda_work cuda_work_COPY = {cuda_no_work, NO_PRODUCTS};
