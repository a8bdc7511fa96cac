/* norm.c - the C side of norm.cu, norm_bwd.cu, qk_norm_rope.cu and column_sums.cu. Sums over rows take two launches: lines
 * into work, then their sum. */
#include "backend/cuda/cuda.h"

#include "backend/cuda/launch_heads.h"

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static void norm_run(backend_context *c, const kernel_call *k, launch_norm_args a, const value *gamma) {
    const value *x = call_in(k, 0);
    a.C = shape_count(&gamma->shape);
    a.n_rows = shape_count(&x->shape) / a.C;
    a.rows = k->rows;
    a.eps = k->op->attr.eps;
    ASSERT(gamma->type == x->type && call_out(k, 0)->type == x->type);
    ASSERT((size_t)a.C * dtype_bytes(x->type) <= NORM_ROW_BYTES_MAX);
    launch_norm(c->stream, launch_type_of(x->type), &a);
}

void cuda_kernel_RMSNORM(backend_context *c, const kernel_call *k) {
    norm_run(c, k,
             (launch_norm_args){.a = k->in[0], .gamma = k->in[1], .y = k->out[0], .rstd = k->out[1], .amax = k->out[2]},
             call_in(k, 1));
}

void cuda_kernel_LAYERNORM(backend_context *c, const kernel_call *k) {
    launch_norm_args a = {.a = k->in[0],
                          .gamma = k->in[1],
                          .beta = k->in[2],
                          .y = k->out[0],
                          .mean = k->out[1],
                          .rstd = k->out[2],
                          .amax = k->out[3]};
    norm_run(c, k, a, call_in(k, 1));
}

void cuda_kernel_ADD_RMSNORM(backend_context *c, const kernel_call *k) {
    launch_norm_args a = {.a = k->in[0],
                          .b = k->in[1],
                          .gamma = k->in[2],
                          .s = k->out[0],
                          .y = k->out[1],
                          .rstd = k->out[2],
                          .amax = k->out[3]};
    norm_run(c, k, a, call_in(k, 2));
}

void cuda_kernel_ADD_LAYERNORM(backend_context *c, const kernel_call *k) {
    launch_norm_args a = {.a = k->in[0],
                          .b = k->in[1],
                          .gamma = k->in[2],
                          .beta = k->in[3],
                          .s = k->out[0],
                          .y = k->out[1],
                          .mean = k->out[2],
                          .rstd = k->out[3],
                          .amax = k->out[4]};
    norm_run(c, k, a, call_in(k, 2));
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* Adds the columns of all lines, starting at `column`, into one output. */
static void add_lines(backend_context *c, const kernel_call *k, int output, int64_t n_lines, int64_t line,
                      int64_t column) {
    const value *v = call_out(k, output);
    launch_add_lines(c->stream, launch_type_of(v->type), k->out[output], (const float *)k->work + column, n_lines, line,
                     shape_count(&v->shape));
}

static launch_norm_bwd_args backward_run(backend_context *c, const kernel_call *k, launch_norm_bwd_args a) {
    const value *x = call_in(k, 0), *gamma = call_in(k, 1);
    a.C = shape_count(&gamma->shape);
    a.n_rows = shape_count(&x->shape) / a.C;
    a.lines = k->work;
    ASSERT(gamma->type == x->type && call_out(k, 0)->type == x->type);
    ASSERT((size_t)a.C * dtype_bytes(x->type) <= NORM_ROW_BYTES_MAX);
    launch_norm_bwd(c->stream, launch_type_of(x->type), &a);
    return a;
}

void cuda_kernel_RMSNORM_BWD(backend_context *c, const kernel_call *k) {
    launch_norm_bwd_args a = {.x = k->in[0],
                              .gamma = k->in[1],
                              .rstd = k->in[2],
                              .dy = k->in[3],
                              .dres = k->in[4],
                              .dx = k->out[0],
                              .amax = k->out[2]};
    a = backward_run(c, k, a);
    add_lines(c, k, 1, sum_block_count(a.n_rows), a.C, 0);
}

void cuda_kernel_LAYERNORM_BWD(backend_context *c, const kernel_call *k) {
    launch_norm_bwd_args a = {.x = k->in[0],
                              .gamma = k->in[1],
                              .mean = k->in[2],
                              .rstd = k->in[3],
                              .dy = k->in[4],
                              .dres = k->in[5],
                              .dx = k->out[0],
                              .amax = k->out[3]};
    a = backward_run(c, k, a);
    add_lines(c, k, 1, sum_block_count(a.n_rows), 2 * a.C, 0);
    add_lines(c, k, 2, sum_block_count(a.n_rows), 2 * a.C, a.C);
}

void cuda_kernel_BIAS_GRAD(backend_context *c, const kernel_call *k) {
    const value *dy = call_in(k, 0);
    int64_t C = shape_count(&call_out(k, 0)->shape), n_rows = shape_count(&dy->shape) / C;
    launch_bias_lines(c->stream, launch_type_of(dy->type), k->work, k->in[0], n_rows, C);
    add_lines(c, k, 0, bias_block_count(n_rows), C, 0);
}

/* ---- heads ------------------------------------------------------------------------------------------------------- */

static launch_heads_args heads_make(const kernel_call *k) {
    const op_attr *a = &k->op->attr;
    const value *qkv = call_in(k, 0);
    launch_heads_args h = {.qkv = k->in[0],
                           .gq = k->in[1],
                           .gk = k->in[2],
                           .y = k->out[0],
                           .rows = k->rows,
                           .n_q = a->n_heads,
                           .n_k = a->n_kv_heads,
                           .n_v = a->n_kv_heads,
                           .D = a->head_dim,
                           .eps = a->eps};
    h.n_rows = shape_count(&qkv->shape) / ((int64_t)(h.n_q + h.n_k + h.n_v) * h.D);
    ASSERT(call_in(k, 1)->type == qkv->type && call_in(k, 2)->type == qkv->type && call_out(k, 0)->type == qkv->type);
    ASSERT((size_t)h.D * dtype_bytes(qkv->type) <= NORM_HEAD_BYTES_MAX);
    return h;
}

void cuda_kernel_QK_NORM(backend_context *c, const kernel_call *k) {
    launch_heads_args h = heads_make(k);
    h.rstd = k->out[1];
    launch_qk_norm(c->stream, launch_type_of(call_in(k, 0)->type), &h);
}

void cuda_kernel_QK_NORM_BWD(backend_context *c, const kernel_call *k) {
    launch_heads_args h = heads_make(k);
    h.rstd = k->in[3];
    h.dy = k->in[4];
    h.lines = k->work;
    launch_qk_norm_bwd(c->stream, launch_type_of(call_in(k, 0)->type), &h);
    add_lines(c, k, 1, sum_block_count(h.n_rows), 2 * h.D, 0);
    add_lines(c, k, 2, sum_block_count(h.n_rows), 2 * h.D, h.D);
}

/* Table and doc are inputs 3 and 4, forward and backward. */
static launch_turned_args turned_make(const kernel_call *k) {
    const op_attr *a = &k->op->attr;
    launch_turned_args t = {.heads = heads_make(k),
                            .table = k->in[3],
                            .doc = k->in[4],
                            .n_positions = call_in(k, 3)->shape.dim[0],
                            .seq_len = (uint32_t)a->seq_len};
    ASSERT(t.heads.n_rows == a->batch * a->seq_len && t.heads.n_rows <= UINT32_MAX);
    ASSERT(a->head_dim % 2 == 0 && t.n_positions >= a->seq_len);
    return t;
}

void cuda_kernel_QK_NORM_ROPE(backend_context *c, const kernel_call *k) {
    launch_turned_args t = turned_make(k);
    t.heads.rstd = k->out[1];
    launch_qk_norm_rope(c->stream, launch_type_of(call_in(k, 0)->type), &t);
}

void cuda_kernel_QK_NORM_ROPE_BWD(backend_context *c, const kernel_call *k) {
    launch_turned_args t = turned_make(k);
    t.heads.rstd = k->in[5];
    t.heads.dy = k->in[6];
    t.heads.lines = k->work;
    launch_qk_norm_rope_bwd(c->stream, launch_type_of(call_in(k, 0)->type), &t);
    add_lines(c, k, 1, sum_block_count(t.heads.n_rows), 2 * t.heads.D, 0);
    add_lines(c, k, 2, sum_block_count(t.heads.n_rows), 2 * t.heads.D, t.heads.D);
}
