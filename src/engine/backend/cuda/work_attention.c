/* work_attention.c - scratch of the attention kernels: forward what is rounded to 8 bits, backward one number per token and head, and sums
 * of dq, generation the parts of tokens whose positions are split. Never anything of size T x T. */
#include "backend/cuda/attention_sizes.h"
#include "backend/cuda/work.h"

_Static_assert((int)ATTENTION_HEAD_DIM_MOST == (int)CUDA_HEAD_DIM_MOST, "plans know the limit of the kernels");

SAME_PLACE(ATTENTION_BWD_QKV, ATTENTION_RING_BWD_QKV);

static size_t backward_bytes(const program *p, const op *o) {
    const op_attr *a = &o->attr;
    bool narrow = program_get(p, o->in[ATTENTION_BWD_QKV])->type != DTYPE_F32;
    return attention_scratch_of(a->batch, a->seq_len, a->n_heads, a->n_kv_heads, a->head_dim, narrow, a->softcap != 0,
                                o->kind == OP_ATTENTION_RING_BWD)
        .bytes;
}

/* Of products of 8-bit numbers alone. */
static size_t forward_bytes(const program *p, const op *o) {
    const op_attr *a = &o->attr;
    return a->fp8 ? attention8_scratch_of(a->batch, a->seq_len, a->n_heads, a->n_kv_heads, a->head_dim).bytes : 0;
}

static size_t paged_bytes(const program *p, const op *o) {
    const value *qkv = program_get(p, o->in[ATTENTION_PAGED_QKV]),
                *cache = program_get(p, o->in[ATTENTION_PAGED_CACHE]);
    const value *table = program_get(p, o->in[ATTENTION_PAGED_TABLE]);
    int64_t capacity = cache->shape.dim[2] * table->shape.dim[1];
    int64_t n_floats =
        paged_partial_count(qkv->shape.dim[0], table->shape.dim[0], o->attr.n_heads, o->attr.head_dim, capacity);
    return (size_t)n_floats * sizeof(float);
}

const cuda_work cuda_work_ATTENTION = {forward_bytes, NO_PRODUCTS};
const cuda_work cuda_work_ATTENTION_BWD = {backward_bytes, NO_PRODUCTS};
const cuda_work cuda_work_ATTENTION_RING = {cuda_no_work, NO_PRODUCTS};
const cuda_work cuda_work_ATTENTION_RING_BWD = {backward_bytes, NO_PRODUCTS};
const cuda_work cuda_work_ATTENTION_PAGED = {paged_bytes, NO_PRODUCTS};
