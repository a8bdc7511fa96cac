/* elementwise.c - the C side of elementwise.cu: takes calls apart, checks what the kernels rely on, launches. */
#include "backend/cuda/cuda.h"

#include "backend/cuda/launch_elementwise.h"

/* Maps: y[i] from a[i], or from a[i] and b[i]. */
enum { NO_INPUT = -1 };
static void map(backend_context *c, const kernel_call *k, launch_op op, int y, int a, int b) {
    const value *out = call_out(k, y);
    ASSERT(call_in(k, a)->type == out->type && (b == NO_INPUT || call_in(k, b)->type == out->type));
    launch_map(c->stream, op, launch_type_of(out->type), k->out[y], k->in[a], b == NO_INPUT ? NULL : k->in[b],
               shape_row_count(&out->shape), shape_row_length(&out->shape), k->rows);
}
void cuda_kernel_ADD(backend_context *c, const kernel_call *k) { map(c, k, LAUNCH_ADD, ADD_Y, ADD_A, ADD_B); }
void cuda_kernel_GELU(backend_context *c, const kernel_call *k) { map(c, k, LAUNCH_GELU, GELU_Y, GELU_X, NO_INPUT); }
void cuda_kernel_GELU_BWD(backend_context *c, const kernel_call *k) {
    map(c, k, LAUNCH_GELU_BWD, GELU_BWD_DX, GELU_BWD_X, GELU_BWD_DY);
}

void cuda_kernel_ADD_BIAS(backend_context *c, const kernel_call *k) {
    const value *y = call_out(k, ADD_BIAS_Y), *b = call_in(k, ADD_BIAS_B);
    ASSERT(call_in(k, ADD_BIAS_X)->type == y->type && b->type == y->type &&
           shape_count(&b->shape) == shape_row_length(&y->shape));
    launch_add_bias(c->stream, launch_type_of(y->type), k->out[ADD_BIAS_Y], k->in[ADD_BIAS_X], k->in[ADD_BIAS_B],
                    shape_row_count(&y->shape), shape_row_length(&y->shape), k->rows);
}

void cuda_kernel_SWIGLU(backend_context *c, const kernel_call *k) {
    const value *gu = call_in(k, SWIGLU_GU), *y = call_out(k, SWIGLU_Y);
    ASSERT(gu->type == y->type && shape_count(&gu->shape) == 2 * shape_count(&y->shape));
    launch_swiglu(c->stream, launch_type_of(y->type), k->out[SWIGLU_Y], k->out[SWIGLU_AMAX], k->in[SWIGLU_GU],
                  shape_row_count(&y->shape), shape_row_length(&y->shape), k->rows, k->op->attr.gelu_gate);
}

void cuda_kernel_SWIGLU_BWD(backend_context *c, const kernel_call *k) {
    const value *gu = call_in(k, SWIGLU_BWD_GU), *dy = call_in(k, SWIGLU_BWD_DY);
    ASSERT(gu->type == dy->type && call_out(k, SWIGLU_BWD_DGU)->type == gu->type);
    ASSERT(shape_count(&gu->shape) == 2 * shape_count(&dy->shape));
    launch_swiglu_bwd(c->stream, launch_type_of(gu->type), k->out[SWIGLU_BWD_DGU], k->out[SWIGLU_BWD_AMAX],
                      k->out[SWIGLU_BWD_Y], k->in[SWIGLU_BWD_GU], k->in[SWIGLU_BWD_DY], shape_row_count(&dy->shape),
                      shape_row_length(&dy->shape), k->op->attr.gelu_gate);
}

void cuda_kernel_ROPE(backend_context *c, const kernel_call *k) {
    const value *qkv = call_in(k, ROPE_QKV), *table = call_in(k, ROPE_TABLE);
    const op_attr *a = &k->op->attr;
    launch_rope_args r = {.y = k->out[ROPE_Y],
                          .qkv = k->in[ROPE_QKV],
                          .table = k->in[ROPE_TABLE],
                          .doc_start = k->in[ROPE_DOC_START],
                          .rows = k->rows,
                          .n_rows = a->batch * a->seq_len,
                          .seq_len = a->seq_len,
                          .n_positions = table->shape.dim[0],
                          .n_turned = a->n_heads + a->n_kv_heads,
                          .n_kept = a->n_kv_heads,
                          .head_dim = a->head_dim,
                          .rotary = (int)table->shape.dim[1],
                          .sign = a->inverse ? -1.0f : 1.0f,
                          .amax = k->out[ROPE_AMAX]};
    ASSERT(call_out(k, ROPE_Y)->type == qkv->type && r.n_positions >= a->seq_len);
    ASSERT(r.rotary % 2 == 0 && r.rotary <= a->head_dim);
    ASSERT(shape_count(&qkv->shape) == r.n_rows * (r.n_turned + r.n_kept) * a->head_dim);
    launch_rope(c->stream, launch_type_of(qkv->type), &r);
}

/* The frequencies are those of the host, to the bit; the device multiplies and takes sine and cosine. */
void cuda_kernel_ROPE_TABLE(backend_context *c, const kernel_call *k) {
    const shape *s = &call_out(k, ROPE_TABLE_TABLE)->shape;
    int rotary = (int)s->dim[1], half = rotary / 2;
    for (int first = 0; first < half; first += ROPE_FREQUENCIES) {
        double frequencies[ROPE_FREQUENCIES];
        int n = MIN((int)ROPE_FREQUENCIES, half - first);
        const rope_options *rope = &k->op->attr.rope;
        for (int i = 0; i < n; i++) frequencies[i] = rope_inverse_frequency(rope, rotary, s->dim[0], first + i);
        launch_rope_table(c->stream, k->out[ROPE_TABLE_TABLE], s->dim[0], half, first, n, frequencies,
                          rope_amplitude(rope));
    }
}

void cuda_kernel_CAST(backend_context *c, const kernel_call *k) {
    const value *x = call_in(k, CAST_X), *y = call_out(k, CAST_Y);
    ASSERT(shape_count(&x->shape) == shape_count(&y->shape));
    launch_cast(c->stream, launch_type_of(y->type), launch_type_of(x->type), k->out[CAST_Y], k->in[CAST_X],
                shape_count(&y->shape));
}

/* Between places of this device. Errors of a queued copy are found where the stream is next waited for. */
void cuda_kernel_COPY(backend_context *c, const kernel_call *k) {
    size_t n_bytes = value_bytes(call_out(k, COPY_Y));
    ASSERT(value_bytes(call_in(k, COPY_X)) == n_bytes);
    cudaMemcpyAsync(k->out[COPY_Y], k->in[COPY_X], n_bytes, cudaMemcpyDeviceToDevice, c->stream);
}
