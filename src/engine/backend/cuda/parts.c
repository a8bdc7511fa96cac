/* parts.c - the C side of parts.cu. */
#include "backend/cuda/cuda.h"

#include "backend/cuda/launch_parts.h"

SAME_PLACE(HEAD_PARTS_X, TOKEN_PARTS_X);
SAME_PLACE(HEAD_PARTS_Y, TOKEN_PARTS_Y);

/* What both ops have: x is the side in one piece. */
static launch_parts parts_of(const kernel_call *k) {
    const op_attr *a = &k->op->attr;
    const value *x = a->inverse ? call_out(k, HEAD_PARTS_Y) : call_in(k, HEAD_PARTS_X);
    ASSERT(x->shape.rank == 2 && a->n_parts > 0 &&
           value_bytes(call_in(k, HEAD_PARTS_X)) == value_bytes(call_out(k, HEAD_PARTS_Y)));
    return (launch_parts){.in = k->in[HEAD_PARTS_X],
                          .out = k->out[HEAD_PARTS_Y],
                          .inverse = a->inverse,
                          .n_rows = x->shape.dim[0],
                          .row_bytes = x->shape.dim[1] * (int64_t)dtype_bytes(x->type),
                          .n_parts = a->n_parts};
}

void cuda_kernel_HEAD_PARTS(backend_context *c, const kernel_call *k) {
    const op_attr *a = &k->op->attr;
    launch_parts p = parts_of(k);
    int64_t head_bytes = a->head_dim * (int64_t)dtype_bytes(call_in(k, HEAD_PARTS_X)->type);
    ASSERT(a->n_heads % a->n_parts == 0 && a->n_kv_heads % a->n_parts == 0);
    ASSERT(p.row_bytes == (a->n_heads + 2 * a->n_kv_heads) * head_bytes);
    launch_head_parts(c->stream, &p, a->n_heads, a->n_kv_heads, head_bytes);
}

void cuda_kernel_TOKEN_PARTS(backend_context *c, const kernel_call *k) {
    const op_attr *a = &k->op->attr;
    launch_parts p = parts_of(k);
    ASSERT(p.n_rows == a->batch * a->seq_len && a->seq_len % (2 * a->n_parts) == 0);
    launch_token_parts(c->stream, &p, a->batch, a->seq_len);
}
