/* lora.c - the C side of lora_up*.cu, lora_bwd_tiles.cu, lora_grad.cu and dropout.cu. What their packs of 16 bytes do not fit, fp32 and odd sizes,
 * goes to the plain product of gemm_plain.cu, part by part; which one follows from shapes. */
#include "backend/cuda/cuda.h"

#include "backend/cuda/launch_gemm.h"
#include "backend/cuda/launch_lora.h"
#include "backend/cuda/lora_product.h"
#include "backend/cuda/lora_sizes.h"
#include "backend/cuda/tensor_map.h"

_Static_assert((int)LAUNCH_LORA_PARTS == LORA_PARTS, "parts of an adapter");

launch_lora_parts lora_parts_of(const op *o) {
    launch_lora_parts p = {.n = o->attr.n_parts};
    for (int i = 0; i < p.n; i++) p.first[i] = o->attr.part_first[i], p.columns[i] = o->attr.part_columns[i];
    return p;
}

static const void *element(const void *data, dtype t, int64_t i) {
    return (const char *)data + (size_t)i * dtype_bytes(t);
}
static void *element_of(void *data, dtype t, int64_t i) { return (char *)data + (size_t)i * dtype_bytes(t); }

/* A matrix of `rows` rows in boxes of a tile. */
static CUtensorMap map_of(const void *data, dtype t, int64_t columns, int64_t rows, int box_columns, int box_rows) {
    return tensor_map_make(&(tensor_box){.data = data,
                                         .columns = columns,
                                         .rows = rows,
                                         .sequences = 1,
                                         .box_columns = box_columns,
                                         .box_rows = box_rows,
                                         .type = launch_type_of(t)});
}

/* Do tiles that the TMA unit fetches hold whole parts? */
static bool in_tiles(const backend_context *c, const op *o, const lora_shape *s) {
#ifdef HAVE_SM90A
    bool whole = c->capability == 90 && s->r % 8 == 0;
#else
    bool whole = false;
#endif
    for (int i = 0; i < o->attr.n_parts; i++)
        whole = whole && o->attr.part_first[i] % LAUNCH_LORA_BOX == 0 && o->attr.part_columns[i] % LAUNCH_LORA_BOX == 0;
    return whole;
}

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
    q.a = (plain_operand){element(k->in[LORA_BWD_DY], t, p.first), s->out, 1};
    q.b = (plain_operand){element(k->in[LORA_BWD_B], t, p.row * s->r), s->r, 1};
    q.c = element_of(k->out[LORA_BWD_DXA], t, p.small);
    q.ldc = k->op->attr.n_parts * s->r;
    launch_plain_product(c->stream, &q);
}

static void plain_db(backend_context *c, const kernel_call *k, const lora_shape *s, dtype t, int i) {
    lora_part p = op_lora_part(k->op, s->r, i);
    dtype db = call_out(k, LORA_BWD_DB)->type;
    plain_product q = plain_make(k->op, t, db);
    q.m = p.columns, q.n = s->r, q.k = s->N;
    q.a = (plain_operand){element(k->in[LORA_BWD_DY], t, p.first), 1, s->out};
    q.b = (plain_operand){element(k->in[LORA_BWD_XA], t, p.small), k->op->attr.n_parts * s->r, 1};
    q.c = element_of(k->out[LORA_BWD_DB], db, p.row * s->r);
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
    lora_shape s = lora_shape_make(call_in(k, LORA_UP_BASE), call_in(k, LORA_UP_B), &o->attr);
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
                             .parts = lora_parts_of(o)};
    if (!s.fast || !in_packs(a.base, a.y)) {
        for (int i = 0; i < o->attr.n_parts; i++) plain_up(c, k, &s, t, i);
    } else if (in_tiles(c, o, &s) && s.r <= LORA_UP_TILES_RANK && in_packs(a.xa, a.xa)) {
        launch_lora_up_maps m = {.base = map_of(a.base, t, s.out, s.N, LAUNCH_LORA_BOX, LORA_UP_ROWS),
                                 .xa = map_of(a.xa, t, o->attr.n_parts * s.r, s.N, lora_rank_width(s.r), LORA_UP_ROWS),
                                 .y = map_of(a.y, t, s.out, s.N, LAUNCH_LORA_BOX, LORA_UP_ROWS)};
        launch_lora_up_tiles(c->stream, launch_type_of(t), &a, &m);
    } else launch_lora_up(c->stream, launch_type_of(t), &a);
}

static void bwd_in_one_reading(backend_context *c, const kernel_call *k, const lora_shape *s, const lora_units *u) {
    float *parts = k->work;
    dtype t = call_in(k, LORA_BWD_DY)->type;
    launch_lora_bwd_maps m = {
        .dy = map_of(k->in[LORA_BWD_DY], t, s->out, s->N, LAUNCH_LORA_BOX, LORA_UNIT_TOKENS),
        .xa = map_of(k->in[LORA_BWD_XA], t, k->op->attr.n_parts * s->r, s->N, lora_rank_width(s->r), LORA_UNIT_TOKENS)};
    launch_lora_bwd_args a = {.b = k->in[LORA_BWD_B],
                              .dxa = k->out[LORA_BWD_DXA],
                              .db = k->out[LORA_BWD_DB],
                              .dxa_parts = parts,
                              .db_parts = parts + u->n_stripes * s->N * s->r,
                              .N = s->N,
                              .r = s->r,
                              .R = s->R,
                              .n_units = u->n_units,
                              .units_per_stripe = u->units_per_stripe,
                              .n_blocks = u->n_blocks,
                              .scale = k->op->attr.scale,
                              .parts = lora_parts_of(k->op)};
    launch_lora_bwd(c->stream, launch_type_of(t), launch_type_of(call_out(k, LORA_BWD_DB)->type), &a, &m);
}

static void bwd_in_two(backend_context *c, const kernel_call *k, const lora_shape *s) {
    launch_type t = launch_type_of(call_in(k, LORA_BWD_DY)->type);
    launch_lora_grad_args a = {.dy = k->in[LORA_BWD_DY],
                               .small = k->in[LORA_BWD_B],
                               .result = k->out[LORA_BWD_DXA],
                               .runs = k->work,
                               .N = s->N,
                               .out = s->out,
                               .r = s->r,
                               .run = s->run,
                               .scale = k->op->attr.scale,
                               .parts = lora_parts_of(k->op)};
    launch_lora_grad(c->stream, t, t, &a);
    a.small = k->in[LORA_BWD_XA], a.result = k->out[LORA_BWD_DB], a.over_tokens = true;
    launch_lora_grad(c->stream, t, launch_type_of(call_out(k, LORA_BWD_DB)->type), &a);
}

void cuda_kernel_LORA_BWD(backend_context *c, const kernel_call *k) { /* dxa =, db = */
    const value *dy = call_in(k, LORA_BWD_DY), *db = call_out(k, LORA_BWD_DB);
    lora_shape s = lora_shape_make(dy, call_in(k, LORA_BWD_B), &k->op->attr);
    lora_units u = lora_units_make(&s, &k->op->attr);
    bool aligned = in_packs(k->in[LORA_BWD_DY], k->in[LORA_BWD_XA]) && in_packs(k->in[LORA_BWD_B], k->work);
    ASSERT(db->type == DTYPE_F32 || db->type == dy->type);
    if (!s.fast || !aligned)
        for (int i = 0; i < k->op->attr.n_parts; i++) {
            plain_dxa(c, k, &s, dy->type, i);
            plain_db(c, k, &s, dy->type, i);
        }
    else if (u.n_units && in_tiles(c, k->op, &s)) bwd_in_one_reading(c, k, &s, &u);
    else bwd_in_two(c, k, &s);
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
