/* work_attention.c - scratch of the attention kernels: backward one number per token and head, generation the parts of
 * tokens whose positions are split. Never anything of size T x T. */
#include "backend/cuda/attention_sizes.h"
#include "backend/cuda/work.h"

size_t cuda_attention_work_bytes(const program *p, const op *o) {
    const op_attr *a = &o->attr;
    if (o->kind == OP_ATTENTION_BWD) return (size_t)(a->batch * a->seq_len * a->n_heads) * sizeof(float);
    if (o->kind != OP_ATTENTION_PAGED) return 0;
    int64_t capacity = program_get(p, o->in[1])->shape.dim[2] * program_get(p, o->in[3])->shape.dim[1];
    int64_t n_tokens = program_get(p, o->in[0])->shape.dim[0];
    return (size_t)paged_partial_count(n_tokens, a->n_heads, a->head_dim, capacity) * sizeof(float);
}
