/* attention.c - attention over whole rows: which kernels serve a call, and where their scratch lies. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/launch_attention.h"

static launch_attention attention_of(const kernel_call *k) {
    const op_attr *a = &k->op->attr;
    ASSERT(a->head_dim <= ATTENTION_HEAD_DIM_MOST);
    return (launch_attention){.type = launch_type_of(call_in(k, 0)->type),
                              .B = a->batch,
                              .T = a->seq_len,
                              .H = a->n_heads,
                              .G = a->n_kv_heads,
                              .D = a->head_dim,
                              .scale = a->scale,
                              .qkv = k->in[0],
                              .doc = k->in[1]};
}

/* Tensor cores serve 16 bits, and heads that are whole fragments; the sizes that models have are compiled. */
static bool on_tensor_cores(const launch_attention *a) {
    return a->type != LAUNCH_F32 && (a->D == 64 || a->D == 80 || a->D == 96 || a->D == 128);
}

void cuda_kernel_ATTENTION(backend_context *c, const kernel_call *k) {
    launch_attention a = attention_of(k);
    a.y = k->out[0];
    a.lse = k->out[1];
    (on_tensor_cores(&a) ? launch_attention_mma : launch_attention_plain)(&a, c->stream);
}

/* dqkv = (written in full) */
void cuda_kernel_ATTENTION_BWD(backend_context *c, const kernel_call *k) {
    launch_attention a = attention_of(k);
    a.y = k->in[2];
    a.lse = k->in[3];
    a.dy = k->in[4];
    a.dqkv = k->out[0];
    a.delta = k->work;
    launch_attention_delta(&a, c->stream);
    (on_tensor_cores(&a) ? launch_attention_mma_backward : launch_attention_plain_backward)(&a, c->stream);
}
