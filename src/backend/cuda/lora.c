/* lora.c - the C side of lora_up.cu, lora_grad.cu and dropout.cu. What their packs of 16 bytes do not fit, fp32 and odd sizes,
 * goes to the plain product of gemm_plain.cu, part by part; which one follows from shapes. */
#include "backend/cuda/cuda.h"

#include "backend/cuda/launch_gemm.h"
#include "backend/cuda/launch_lora.h"
#include "backend/cuda/lora_sizes.h"

_Static_assert((int)LAUNCH_LORA_PARTS == LORA_PARTS, "parts of an adapter");

static launch_lora_parts parts_of(const op *o) {
    launch_lora_parts p = {.n = o->attr.n_parts};
    for (int i = 0; i < p.n; i++) p.first[i] = o->attr.part_first[i], p.columns[i] = o->attr.part_columns[i];
    return p;
}

static const void *element(const void *data, dtype t, int64_t i) {
    return (const char *)data + (size_t)i * dtype_bytes(t);
}
static void *element_of(void *data, dtype t, int64_t i) { return (char *)data + (size_t)i * dtype_bytes(t); }

static bool in_packs(const void *a, const void *b) { return ((uintptr_t)a | (uintptr_t)b) % 16 == 0; }

/* ---- plain --------------------------------------------------------------------------------------------------------- */

static plain_product plain_make(const op *o, dtype t, dtype c_type) {
    return (plain_product){.alpha = o->attr.scale, .type = launch_type_of(t), .c_type = launch_type_of(c_type)};
}

static void plain_up(backend_context *c, const kernel_call *k, const lora_shape *s, dtype t, int i) {
    lora_part p = op_lora_part(k->op, s->r, i);
    plain_product q = plain_make(k->op, t, t);
    q.m = s->N, q.n = p.columns, q.k = s->r;
    q.a = (plain_operand){element(k->in[LORA_UP_XA], t, p.small), k->op->attr.n_parts * s->r, 1};
    q.b = (plain_operand){element(k->in[LORA_UP_B], t, p.row * s->r), 1, s->r};
    q.add = element(k->in[LORA_UP_BASE], t, p.first);
    q.c = element_of(k->out[LORA_UP_Y], t, p.first);
    q.ldc = q.ld_add = s->out;
    launch_plain_product(c->stream, &q);
}

static void plain_dxa(backend_context *c, const kernel_call *k, const lora_shape *s, dtype t, int i) {
    lora_part p = op_lora_part(k->op, s->r, i);
    plain_product q = plain_make(k->op, t, t);
    q.m = s->N, q.n = s->r, q.k = p.columns;
    q.a = (plain_operand){element(k->in[LORA_DXA_DY], t, p.first), s->out, 1};
    q.b = (plain_operand){element(k->in[LORA_DXA_B], t, p.row * s->r), s->r, 1};
    q.c = element_of(k->out[LORA_DXA_DXA], t, p.small);
    q.ldc = k->op->attr.n_parts * s->r;
    launch_plain_product(c->stream, &q);
}

static void plain_db(backend_context *c, const kernel_call *k, const lora_shape *s, dtype t, int i) {
    lora_part p = op_lora_part(k->op, s->r, i);
    dtype db = call_out(k, LORA_DB_DB)->type;
    plain_product q = plain_make(k->op, t, db);
    q.m = p.columns, q.n = s->r, q.k = s->N;
    q.a = (plain_operand){element(k->in[LORA_DB_DY], t, p.first), 1, s->out};
    q.b = (plain_operand){element(k->in[LORA_DB_XA], t, p.small), k->op->attr.n_parts * s->r, 1};
    q.c = element_of(k->out[LORA_DB_DB], db, p.row * s->r);
    q.ldc = s->r;
    launch_plain_product(c->stream, &q);
}

/* ---- the ops -------------------------------------------------------------------------------------------------------- */

static void copy_columns(backend_context *c, const kernel_call *k, const lora_shape *s, dtype t, int64_t first,
                         int64_t end) {
    size_t row_bytes = (size_t)s->out * dtype_bytes(t), n_bytes = (size_t)(end - first) * dtype_bytes(t);
    if (end > first)
        cudaMemcpy2DAsync(element_of(k->out[LORA_UP_Y], t, first), row_bytes, element(k->in[LORA_UP_BASE], t, first),
                          row_bytes, n_bytes, (size_t)s->N, cudaMemcpyDeviceToDevice, c->stream);
}

/* y =; rows that op.rows leaves out may be computed too. */
void cuda_kernel_LORA_UP(backend_context *c, const kernel_call *k) {
    const op *o = k->op;
    lora_shape s = lora_shape_make(k->program, o);
    dtype t = call_out(k, LORA_UP_Y)->type;
    if (k->out[LORA_UP_Y] != k->in[LORA_UP_BASE]) { /* what no part has */
        int64_t done = 0;
        for (int i = 0; i < o->attr.n_parts; i++) {
            copy_columns(c, k, &s, t, done, o->attr.part_first[i]);
            done = o->attr.part_first[i] + o->attr.part_columns[i];
        }
        copy_columns(c, k, &s, t, done, s.out);
    }
    launch_lora_up_args a = {.base = k->in[LORA_UP_BASE],
                             .xa = k->in[LORA_UP_XA],
                             .b = k->in[LORA_UP_B],
                             .y = k->out[LORA_UP_Y],
                             .rows = k->rows,
                             .N = s.N,
                             .out = s.out,
                             .r = s.r,
                             .scale = o->attr.scale,
                             .parts = parts_of(o)};
    if (s.fast && in_packs(a.base, a.y)) {
        launch_lora_up(c->stream, launch_type_of(t), &a);
        return;
    }
    for (int i = 0; i < o->attr.n_parts; i++) plain_up(c, k, &s, t, i);
}

static launch_lora_grad_args grad_make(const kernel_call *k, const lora_shape *s) {
    return (launch_lora_grad_args){.runs = k->work,
                                   .N = s->N,
                                   .out = s->out,
                                   .r = s->r,
                                   .run = s->run,
                                   .scale = k->op->attr.scale,
                                   .parts = parts_of(k->op)};
}

void cuda_kernel_LORA_DXA(backend_context *c, const kernel_call *k) { /* dxa = */
    lora_shape s = lora_shape_make(k->program, k->op);
    dtype t = call_in(k, LORA_DXA_DY)->type;
    launch_lora_grad_args a = grad_make(k, &s);
    a.dy = k->in[LORA_DXA_DY], a.small = k->in[LORA_DXA_B], a.result = k->out[LORA_DXA_DXA];
    if (s.fast && in_packs(a.dy, a.small)) {
        launch_lora_grad(c->stream, launch_type_of(t), launch_type_of(t), &a);
        return;
    }
    for (int i = 0; i < k->op->attr.n_parts; i++) plain_dxa(c, k, &s, t, i);
}

void cuda_kernel_LORA_DB(backend_context *c, const kernel_call *k) { /* db = */
    lora_shape s = lora_shape_make(k->program, k->op);
    dtype t = call_in(k, LORA_DB_DY)->type;
    launch_lora_grad_args a = grad_make(k, &s);
    a.dy = k->in[LORA_DB_DY], a.small = k->in[LORA_DB_XA], a.result = k->out[LORA_DB_DB];
    a.over_tokens = true;
    if (s.fast && in_packs(a.dy, a.small)) {
        launch_lora_grad(c->stream, launch_type_of(t), launch_type_of(call_out(k, LORA_DB_DB)->type), &a);
        return;
    }
    for (int i = 0; i < k->op->attr.n_parts; i++) plain_db(c, k, &s, t, i);
}

void cuda_kernel_DROPOUT(backend_context *c, const kernel_call *k) {
    const value *y = call_out(k, DROPOUT_Y);
    const op_attr *a = &k->op->attr;
    ASSERT(call_in(k, DROPOUT_X)->type == y->type && a->first_element >= 0);
    launch_dropout_args d = {
        .x = k->in[DROPOUT_X],
        .y = k->out[DROPOUT_Y],
        .scalars = k->in[DROPOUT_SCALARS],
        .noise = {.key = a->noise_key, .first_element = a->first_element, .block = RNG_NOISE_BLOCK},
        .n = shape_count(&y->shape),
        .limit = op_dropout_limit(k->op),
        .factor = op_dropout_factor(k->op)};
    if (op_dropout_in_rows(k->op)) {
        d.columns = y->shape.dim[1];
        d.all_columns = a->all_columns ? a->all_columns : d.columns, d.first_column = a->first_column;
        d.seq_len = a->seq_len, d.rank = a->index, d.n_ranks = a->group_size;
    }
    launch_dropout(c->stream, launch_type_of(y->type), &d);
}
