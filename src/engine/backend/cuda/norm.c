/* norm.c - the C side of norm.cu, norm_bwd.cu, qk_norm_rope.cu and column_sums.cu. Sums over rows take two launches: lines
 * into work, then their sum. */
#include "backend/cuda/norm.h"
#include "backend/cuda/launch_heads.h"

/* ---- forward ----------------------------------------------------------------------------------------------------- */

SAME_PLACE(RMSNORM_X, LAYERNORM_X, ADD_RMSNORM_A, ADD_LAYERNORM_A);

static launch_norm_args args_alone(const kernel_call *k) {
    switch (k->op->kind) {
    case OP_RMSNORM:
        return (launch_norm_args){.a = k->in[RMSNORM_X],
                                  .gamma = k->in[RMSNORM_GAMMA],
                                  .y = k->out[RMSNORM_Y],
                                  .rstd = k->out[RMSNORM_RSTD],
                                  .amax = k->out[RMSNORM_AMAX]};
    case OP_LAYERNORM:
        return (launch_norm_args){.a = k->in[LAYERNORM_X],
                                  .gamma = k->in[LAYERNORM_GAMMA],
                                  .beta = k->in[LAYERNORM_BETA],
                                  .y = k->out[LAYERNORM_Y],
                                  .mean = k->out[LAYERNORM_MEAN],
                                  .rstd = k->out[LAYERNORM_RSTD],
                                  .amax = k->out[LAYERNORM_AMAX]};
    case OP_ADD_RMSNORM:
        return (launch_norm_args){.a = k->in[ADD_RMSNORM_A],
                                  .b = k->in[ADD_RMSNORM_B],
                                  .gamma = k->in[ADD_RMSNORM_GAMMA],
                                  .s = k->out[ADD_RMSNORM_S],
                                  .y = k->out[ADD_RMSNORM_Y],
                                  .rstd = k->out[ADD_RMSNORM_RSTD],
                                  .amax = k->out[ADD_RMSNORM_AMAX]};
    default:
        ASSERT(k->op->kind == OP_ADD_LAYERNORM);
        return (launch_norm_args){.a = k->in[ADD_LAYERNORM_A],
                                  .b = k->in[ADD_LAYERNORM_B],
                                  .gamma = k->in[ADD_LAYERNORM_GAMMA],
                                  .beta = k->in[ADD_LAYERNORM_BETA],
                                  .s = k->out[ADD_LAYERNORM_S],
                                  .y = k->out[ADD_LAYERNORM_Y],
                                  .mean = k->out[ADD_LAYERNORM_MEAN],
                                  .rstd = k->out[ADD_LAYERNORM_RSTD],
                                  .amax = k->out[ADD_LAYERNORM_AMAX]};
    }
}

SAME_PLACE(RMSNORM_GAMMA, LAYERNORM_GAMMA);
SAME_PLACE(ADD_RMSNORM_GAMMA, ADD_LAYERNORM_GAMMA);

launch_norm_args norm_args_of(const kernel_call *k) {
    launch_norm_args a = args_alone(k);
    const value *x = call_in(k, RMSNORM_X), *gamma = call_in(k, a.b ? (int)ADD_RMSNORM_GAMMA : (int)RMSNORM_GAMMA);
    a.C = shape_count(&gamma->shape);
    a.n_rows = shape_count(&x->shape) / a.C;
    a.stride = a.C, a.rstd_step = 1;
    a.rows = k->rows;
    a.eps = k->op->attr.eps;
    a.offset = k->op->attr.gain_offset;
    ASSERT(gamma->type == x->type && call_out(k, op_norm_output(k->op->kind))->type == x->type);
    ASSERT((size_t)a.C * dtype_bytes(x->type) <= NORM_ROW_BYTES_MAX);
    return a;
}

static void norm_run(backend_context *c, const kernel_call *k) {
    const launch_norm_args a = norm_args_of(k);
    launch_norm(c->stream, launch_type_of(call_in(k, RMSNORM_X)->type), &a);
}

void cuda_kernel_RMSNORM(backend_context *c, const kernel_call *k) { norm_run(c, k); }
void cuda_kernel_LAYERNORM(backend_context *c, const kernel_call *k) { norm_run(c, k); }
void cuda_kernel_ADD_RMSNORM(backend_context *c, const kernel_call *k) { norm_run(c, k); }
void cuda_kernel_ADD_LAYERNORM(backend_context *c, const kernel_call *k) { norm_run(c, k); }

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* Adds n lines, `line` floats from one to the next, into one output; nothing where it is absent. */
static void add_lines(backend_context *c, const kernel_call *k, int output, const float *lines, int64_t n_lines,
                      int64_t line) {
    if (!k->out[output]) return;
    const value *v = call_out(k, output);
    launch_add_lines(c->stream, launch_type_of(v->type), k->out[output], lines, n_lines, line, shape_count(&v->shape));
}

/* Lines of up to two gradients of `width` numbers in scratch, side by side; NULL for one that is absent. */
typedef struct line_pair {
    float *first, *second;
    int64_t line;
} line_pair;

static line_pair lines_place(const kernel_call *k, const void *first, const void *second, int64_t width) {
    float *at = k->work;
    line_pair p = {.line = (!!first + !!second) * width};
    if (first) p.first = at, at += width;
    if (second) p.second = at;
    return p;
}

SAME_PLACE(RMSNORM_BWD_X, LAYERNORM_BWD_X);
SAME_PLACE(RMSNORM_BWD_GAMMA, LAYERNORM_BWD_GAMMA);
SAME_PLACE(RMSNORM_BWD_DX, LAYERNORM_BWD_DX);

/* dgamma, dbeta: outputs, the second NO_OUTPUT of RMSNorm. */
enum { NO_OUTPUT = -1 };
static void backward_run(backend_context *c, const kernel_call *k, launch_norm_bwd_args a, int dgamma, int dbeta) {
    const value *x = call_in(k, RMSNORM_BWD_X), *gamma = call_in(k, RMSNORM_BWD_GAMMA);
    a.C = shape_count(&gamma->shape);
    a.n_rows = shape_count(&x->shape) / a.C;
    a.stride = a.C, a.rstd_step = 1;
    a.offset = k->op->attr.gain_offset;
    line_pair lines = lines_place(k, k->out[dgamma], dbeta == NO_OUTPUT ? NULL : k->out[dbeta], a.C);
    a.gamma_lines = lines.first, a.beta_lines = lines.second, a.line = lines.line;
    ASSERT(gamma->type == x->type && call_out(k, RMSNORM_BWD_DX)->type == x->type);
    ASSERT((size_t)a.C * dtype_bytes(x->type) <= NORM_ROW_BYTES_MAX);
    launch_norm_bwd(c->stream, launch_type_of(x->type), &a);
    add_lines(c, k, dgamma, a.gamma_lines, sum_block_count(a.n_rows), a.line);
    if (dbeta != NO_OUTPUT) add_lines(c, k, dbeta, a.beta_lines, sum_block_count(a.n_rows), a.line);
}

void cuda_kernel_RMSNORM_BWD(backend_context *c, const kernel_call *k) {
    launch_norm_bwd_args a = {.x = k->in[RMSNORM_BWD_X],
                              .gamma = k->in[RMSNORM_BWD_GAMMA],
                              .rstd = k->in[RMSNORM_BWD_RSTD],
                              .dy = k->in[RMSNORM_BWD_DY],
                              .dres = k->in[RMSNORM_BWD_DRES],
                              .dx = k->out[RMSNORM_BWD_DX],
                              .amax = k->out[RMSNORM_BWD_AMAX]};
    backward_run(c, k, a, RMSNORM_BWD_DGAMMA, NO_OUTPUT);
}

void cuda_kernel_LAYERNORM_BWD(backend_context *c, const kernel_call *k) {
    launch_norm_bwd_args a = {.x = k->in[LAYERNORM_BWD_X],
                              .gamma = k->in[LAYERNORM_BWD_GAMMA],
                              .mean = k->in[LAYERNORM_BWD_MEAN],
                              .rstd = k->in[LAYERNORM_BWD_RSTD],
                              .dy = k->in[LAYERNORM_BWD_DY],
                              .dres = k->in[LAYERNORM_BWD_DRES],
                              .dx = k->out[LAYERNORM_BWD_DX],
                              .amax = k->out[LAYERNORM_BWD_AMAX]};
    backward_run(c, k, a, LAYERNORM_BWD_DGAMMA, LAYERNORM_BWD_DBETA);
}

void cuda_kernel_BIAS_GRAD(backend_context *c, const kernel_call *k) {
    const value *dy = call_in(k, BIAS_GRAD_DY);
    int64_t C = shape_count(&call_out(k, BIAS_GRAD_DB)->shape), n_rows = shape_count(&dy->shape) / C;
    launch_bias_lines(c->stream, launch_type_of(dy->type), k->work, k->in[BIAS_GRAD_DY], n_rows, C);
    add_lines(c, k, BIAS_GRAD_DB, k->work, bias_block_count(n_rows), C);
}

/* ---- heads ------------------------------------------------------------------------------------------------------- */

SAME_PLACE(QK_NORM_QKV, QK_NORM_ROPE_QKV, QK_NORM_BWD_QKV, QK_NORM_ROPE_BWD_QKV);
SAME_PLACE(QK_NORM_GQ, QK_NORM_ROPE_GQ, QK_NORM_BWD_GQ, QK_NORM_ROPE_BWD_GQ);
SAME_PLACE(QK_NORM_GK, QK_NORM_ROPE_GK, QK_NORM_BWD_GK, QK_NORM_ROPE_BWD_GK);
SAME_PLACE(QK_NORM_Y, QK_NORM_ROPE_Y, QK_NORM_BWD_DQKV, QK_NORM_ROPE_BWD_DQKV);

static launch_heads_args heads_make(const kernel_call *k) {
    const op_attr *a = &k->op->attr;
    const value *qkv = call_in(k, QK_NORM_QKV);
    launch_heads_args h = {.qkv = k->in[QK_NORM_QKV],
                           .gq = k->in[QK_NORM_GQ],
                           .gk = k->in[QK_NORM_GK],
                           .y = k->out[QK_NORM_Y],
                           .rows = k->rows,
                           .n_q = a->n_heads,
                           .n_k = a->n_kv_heads,
                           .n_v = a->n_kv_heads,
                           .D = a->head_dim,
                           .eps = a->eps,
                           .offset = a->gain_offset};
    h.n_rows = shape_count(&qkv->shape) / ((int64_t)(h.n_q + h.n_k + h.n_v) * h.D);
    ASSERT(call_in(k, QK_NORM_GQ)->type == qkv->type && call_in(k, QK_NORM_GK)->type == qkv->type &&
           call_out(k, QK_NORM_Y)->type == qkv->type);
    ASSERT(a->wide || (size_t)h.D * dtype_bytes(qkv->type) <= NORM_HEAD_BYTES_MAX);
    return h;
}

/* Wide: all q heads of a row are one norm, all k heads another, as rows of their own inside the packed ones. */
typedef struct wide_norm {
    int64_t first, C; /* columns */
} wide_norm;
enum { WIDE_Q, WIDE_K, WIDE_COUNT };
static wide_norm wide_at(const launch_heads_args *h, int which) {
    int64_t q = (int64_t)h->n_q * h->D, k = (int64_t)h->n_k * h->D;
    return which == WIDE_Q ? (wide_norm){0, q} : (wide_norm){q, k};
}

/* v of every row, where the result is not in its place already. */
static void wide_copy_v(backend_context *c, const launch_heads_args *h, const void *from, size_t element) {
    size_t pitch = (size_t)((h->n_q + h->n_k + h->n_v) * h->D) * element,
           v = (size_t)((h->n_q + h->n_k) * h->D) * element;
    if (from != h->y)
        cudaMemcpy2DAsync((char *)h->y + v, pitch, (const char *)from + v, pitch, (size_t)(h->n_v * h->D) * element,
                          (size_t)h->n_rows, cudaMemcpyDeviceToDevice, c->stream);
}

static void wide_run(backend_context *c, const launch_heads_args *h, dtype type) {
    size_t element = dtype_bytes(type);
    for (int i = 0; i < WIDE_COUNT; i++) {
        wide_norm w = wide_at(h, i);
        ASSERT((size_t)w.C * element <= NORM_ROW_BYTES_MAX);
        launch_norm_args a = {.a = (const char *)h->qkv + (size_t)w.first * element,
                              .gamma = i == WIDE_Q ? h->gq : h->gk,
                              .y = (char *)h->y + (size_t)w.first * element,
                              .rstd = h->rstd + i,
                              .rows = h->rows,
                              .n_rows = h->n_rows,
                              .C = w.C,
                              .stride = (int64_t)(h->n_q + h->n_k + h->n_v) * h->D,
                              .rstd_step = WIDE_COUNT,
                              .eps = h->eps,
                              .offset = h->offset};
        launch_norm(c->stream, launch_type_of(type), &a);
    }
    wide_copy_v(c, h, h->qkv, element);
}

static void wide_bwd_run(backend_context *c, const kernel_call *k, const launch_heads_args *h, dtype type) {
    const int outputs[WIDE_COUNT] = {QK_NORM_BWD_DGQ, QK_NORM_BWD_DGK};
    size_t element = dtype_bytes(type);
    int64_t line = 0, first[WIDE_COUNT];
    for (int i = 0; i < WIDE_COUNT; i++) {
        first[i] = line;
        if (k->out[outputs[i]]) line += wide_at(h, i).C;
    }
    for (int i = 0; i < WIDE_COUNT; i++) {
        wide_norm w = wide_at(h, i);
        size_t at = (size_t)w.first * element;
        launch_norm_bwd_args a = {.x = (const char *)h->qkv + at,
                                  .gamma = i == WIDE_Q ? h->gq : h->gk,
                                  .dy = (const char *)h->dy + at,
                                  .rstd = h->rstd + i,
                                  .dx = (char *)h->y + at,
                                  .gamma_lines = k->out[outputs[i]] ? (float *)k->work + first[i] : NULL,
                                  .line = line,
                                  .n_rows = h->n_rows,
                                  .C = w.C,
                                  .stride = (int64_t)(h->n_q + h->n_k + h->n_v) * h->D,
                                  .rstd_step = WIDE_COUNT,
                                  .offset = h->offset};
        launch_norm_bwd(c->stream, launch_type_of(type), &a);
        add_lines(c, k, outputs[i], a.gamma_lines, sum_block_count(a.n_rows), line);
    }
    wide_copy_v(c, h, h->dy, element);
}

void cuda_kernel_QK_NORM(backend_context *c, const kernel_call *k) {
    launch_heads_args h = heads_make(k);
    h.rstd = k->out[QK_NORM_RSTD];
    if (k->op->attr.wide) {
        wide_run(c, &h, call_in(k, QK_NORM_QKV)->type);
        return;
    }
    launch_qk_norm(c->stream, launch_type_of(call_in(k, QK_NORM_QKV)->type), &h);
}

SAME_PLACE(QK_NORM_BWD_DGQ, QK_NORM_ROPE_BWD_DGQ);
SAME_PLACE(QK_NORM_BWD_DGK, QK_NORM_ROPE_BWD_DGK);

static void heads_lines(const kernel_call *k, launch_heads_args *h) {
    line_pair lines = lines_place(k, k->out[QK_NORM_BWD_DGQ], k->out[QK_NORM_BWD_DGK], h->D);
    h->q_lines = lines.first, h->k_lines = lines.second, h->line = lines.line;
}

static void heads_sums(backend_context *c, const kernel_call *k, const launch_heads_args *h) {
    add_lines(c, k, QK_NORM_BWD_DGQ, h->q_lines, sum_block_count(h->n_rows), h->line);
    add_lines(c, k, QK_NORM_BWD_DGK, h->k_lines, sum_block_count(h->n_rows), h->line);
}

void cuda_kernel_QK_NORM_BWD(backend_context *c, const kernel_call *k) {
    launch_heads_args h = heads_make(k);
    h.rstd = k->in[QK_NORM_BWD_RSTD];
    h.dy = k->in[QK_NORM_BWD_DY];
    if (k->op->attr.wide) {
        wide_bwd_run(c, k, &h, call_in(k, QK_NORM_BWD_QKV)->type);
        return;
    }
    heads_lines(k, &h);
    launch_qk_norm_bwd(c->stream, launch_type_of(call_in(k, QK_NORM_BWD_QKV)->type), &h);
    heads_sums(c, k, &h);
}

SAME_PLACE(QK_NORM_ROPE_TABLE, QK_NORM_ROPE_BWD_TABLE);
SAME_PLACE(QK_NORM_ROPE_DOC_START, QK_NORM_ROPE_BWD_DOC_START);

static launch_turned_args turned_make(const kernel_call *k) {
    const op_attr *a = &k->op->attr;
    launch_turned_args t = {.heads = heads_make(k),
                            .table = k->in[QK_NORM_ROPE_TABLE],
                            .doc_start = k->in[QK_NORM_ROPE_DOC_START],
                            .n_positions = call_in(k, QK_NORM_ROPE_TABLE)->shape.dim[0],
                            .seq_len = (uint32_t)a->seq_len};
    ASSERT(t.heads.n_rows == a->batch * a->seq_len && t.heads.n_rows <= UINT32_MAX);
    ASSERT(a->head_dim % 2 == 0 && t.n_positions >= a->seq_len);
    return t;
}

void cuda_kernel_QK_NORM_ROPE(backend_context *c, const kernel_call *k) {
    launch_turned_args t = turned_make(k);
    t.heads.rstd = k->out[QK_NORM_ROPE_RSTD];
    launch_qk_norm_rope(c->stream, launch_type_of(call_in(k, QK_NORM_ROPE_QKV)->type), &t);
}

void cuda_kernel_QK_NORM_ROPE_BWD(backend_context *c, const kernel_call *k) {
    launch_turned_args t = turned_make(k);
    t.heads.rstd = k->in[QK_NORM_ROPE_BWD_RSTD];
    t.heads.dy = k->in[QK_NORM_ROPE_BWD_DY];
    heads_lines(k, &t.heads);
    launch_qk_norm_rope_bwd(c->stream, launch_type_of(call_in(k, QK_NORM_ROPE_BWD_QKV)->type), &t);
    heads_sums(c, k, &t.heads);
}
