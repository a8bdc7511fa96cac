/* work_gemm.c - the products of the ops that are products, and their scratch: pure, so that a plan needs no GPU.
 *
 * Rows of logits are padded to LD_UNIT floats, so that every row of them and of their gradient is aligned for the widest
 * loads whatever the vocabulary is (50257, 151669).
 *
 * The budget of an unembedding (attr.chunk_bytes) covers the logits and what is kept of their gradient; scratch of the
 * products comes on top. A gradient that is rounded to 16 bits is kept whole where the budget allows it in at most
 * LOGITS_CHUNKS_MOST chunks: then dh and dw are one product each. */
#include "backend/adapted.h"
#include "backend/cuda/products.h"
#include "backend/cuda/work.h"

enum {
    LD_UNIT = LOGITS_UNIT, /* floats: 128 bytes, one line of the cache */
    V_BLOCK_MIN = 128,     /* columns: one tile of a product; narrower ones read all of h for almost nothing */
    SPLIT_TILES = 64,      /* products of fewer tiles of 128 x 128 leave half of a large GPU idle ... */
    SPLIT_K = 512,         /* ... and are worth cutting where k is long */
    SPLIT_PARTS = 8,
    WORK_ALIGNMENT = 256, /* of what lies behind something else in scratch: cuBLASLt wants that of its own */
};
#define WORK_LEAST ((size_t)1 << 20)
#define WORK_MOST ((size_t)16 << 20)
#define SPLIT_WORK_MOST ((size_t)32 << 20)

static int64_t ld_up(int64_t n) { return round_up(n, LD_UNIT); }
static size_t bytes_up(size_t n) { return align_up(n, WORK_ALIGNMENT); }

bool product_equal(const product *a, const product *b) {
    return a->m == b->m && a->n == b->n && a->k == b->k && a->lda == b->lda && a->ldb == b->ldb && a->ldc == b->ldc &&
           a->a_turned == b->a_turned && a->b_turned == b->b_turned && a->type == b->type && a->c_type == b->c_type &&
           a->bias == b->bias && a->accumulate == b->accumulate && a->short_sums == b->short_sums &&
           a->inside == b->inside && a->add == b->add && a->a_e5m2 == b->a_e5m2 && a->blocks == b->blocks &&
           a->square == b->square;
}

/* Never a weight gradient (A is turned in those alone, and e4m3 always lies the same way): it is one sum over all tokens. Nor
 * one that adds to something. */
bool product_may_split(const product *q) {
    return !q->accumulate && !q->add && q->type != DTYPE_F8E4M3 && !q->a_turned && q->k >= SPLIT_K &&
           divide_up(q->m, 128) * divide_up(q->n, 128) <= SPLIT_TILES;
}

/* A split product keeps its parts in fp32. Others need little or nothing; what they are offered is small beside C. */
size_t product_work_bytes(const product *q) {
    size_t c = (size_t)q->m * (size_t)q->n * sizeof(float);
    if (product_may_split(q)) return MIN(MAX(SPLIT_PARTS * c, WORK_LEAST), SPLIT_WORK_MOST);
    return MIN(MAX(c, WORK_LEAST), WORK_MOST);
}

/* ---- linear ----------------------------------------------------------------------------------------------------- */

SAME_PLACE(LINEAR_X, LINEAR_DX_DY, LINEAR_DW_DY, LINEAR_DW_ADD_DY);
SAME_PLACE(LINEAR_W, LINEAR_DX_W, LINEAR_DW_X, LINEAR_DW_ADD_X);
SAME_PLACE(LINEAR_Y, LINEAR_DX_DX, LINEAR_DW_DW, LINEAR_DW_ADD_DW);

product linear_product(const program *p, const op *o) {
    const value *first = program_get(p, o->in[LINEAR_X]), *second = program_get(p, o->in[LINEAR_W]);
    product q = {.lda = shape_row_length(&first->shape),
                 .ldb = shape_row_length(&second->shape),
                 .type = first->type,
                 .c_type = program_get(p, o->out[LINEAR_Y])->type};
    ASSERT(first->type == second->type);
    switch (o->kind) {
    case OP_LINEAR: /* x (N, in), w (out, in) */
        q.m = shape_row_count(&first->shape), q.n = shape_row_count(&second->shape), q.k = q.lda;
        q.b_turned = true;
        q.bias = o->in[LINEAR_B] != NO_VALUE;
        ASSERT(q.lda == q.ldb);
        ASSERT(!q.bias || program_get(p, o->in[LINEAR_B])->type == q.c_type);
        break;
    case OP_LINEAR_DX: /* dy (N, out), w (out, in) */
        q.m = shape_row_count(&first->shape), q.n = q.ldb, q.k = q.lda;
        q.add = o->in[LINEAR_DX_ADD] != NO_VALUE;
        ASSERT(q.k == shape_row_count(&second->shape));
        break;
    default: /* dy (N, out), x (N, in) */
        ASSERT(o->kind == OP_LINEAR_DW || o->kind == OP_LINEAR_DW_ADD);
        q.m = q.lda, q.n = q.ldb, q.k = shape_row_count(&first->shape);
        q.a_turned = true;
        q.accumulate = o->kind == OP_LINEAR_DW_ADD;
        ASSERT(q.k == shape_row_count(&second->shape));
    }
    q.ldc = q.n;
    return q;
}

product linear8_product(const program *p, const op *o) {
    const value *x = program_get(p, o->in[LINEAR8_X]), *w = program_get(p, o->in[LINEAR8_W]),
                *y = program_get(p, o->out[LINEAR8_Y]);
    product q = {.m = x->shape.dim[0],
                 .n = w->shape.dim[0],
                 .k = x->shape.dim[1],
                 .b_turned = true,
                 .type = x->type,
                 .c_type = y->type,
                 .bias = o->in[LINEAR8_B] != NO_VALUE,
                 .blocks = shape_count(&program_get(p, o->in[LINEAR8_X_SCALE])->shape) > 1};
    q.square = q.blocks && !o->attr.over_tokens;
    q.short_sums = !q.blocks && !o->attr.over_tokens; /* cuBLASLt has no others for blocks */
    ASSERT(x->type == w->type && q.k == w->shape.dim[1]);
    ASSERT(!q.bias || program_get(p, o->in[LINEAR8_B])->type == q.c_type);
    q.lda = q.ldb = q.k;
    q.ldc = q.n;
    return q;
}

/* ---- unembedding ------------------------------------------------------------------------------------------------- */

product chunk_logits_product(int64_t C, dtype type, int64_t n_rows, int64_t n_columns, int64_t ld) {
    return (product){.m = n_rows,
                     .n = n_columns,
                     .k = C,
                     .lda = C,
                     .ldb = C,
                     .ldc = ld,
                     .b_turned = true,
                     .type = type,
                     .c_type = DTYPE_F32,
                     .inside = true};
}

product unembed_logits_product(const unembed_plan *u, int64_t n_rows, int64_t n_columns, int64_t ld) {
    return chunk_logits_product(u->C, u->type, n_rows, n_columns, ld);
}

product unembed_dh_product(const unembed_plan *u, int64_t n_rows, int64_t ld) {
    return (product){.m = n_rows,
                     .n = u->C,
                     .k = u->V,
                     .lda = ld,
                     .ldb = u->C,
                     .ldc = u->C,
                     .type = u->type,
                     .c_type = u->dh_type,
                     .inside = true};
}

product unembed_dw_product(const unembed_plan *u, int64_t n_rows, int64_t n_columns, int64_t ld) {
    return (product){.m = n_columns,
                     .n = u->C,
                     .k = n_rows,
                     .lda = ld,
                     .ldb = u->C,
                     .ldc = u->C,
                     .a_turned = true,
                     .type = u->type,
                     .c_type = u->dw_type,
                     .inside = true};
}

int64_t unembed_gradient_ld(const unembed_plan *u, int64_t ld) {
    return ld * (int64_t)(sizeof(float) / dtype_bytes(u->type));
}

/* Scratch of the largest product among those of n_rows tokens. */
static size_t chunk_products_bytes(const unembed_plan *u, int64_t n_rows) {
    product logits = unembed_logits_product(u, n_rows, u->V, u->ld);
    size_t n = product_work_bytes(&logits);
    if (!u->gradient) return n;
    product dh = unembed_dh_product(u, n_rows, u->ld), dw = unembed_dw_product(u, n_rows, u->V, u->ld);
    n = MAX(n, product_work_bytes(&dh));
    return u->has_dw ? MAX(n, product_work_bytes(&dw)) : n;
}

static size_t products_bytes(const unembed_plan *u) {
    size_t n = chunk_products_bytes(u, u->rows);
    n = MAX(n, chunk_products_bytes(u, u->N - (u->n_chunks - 1) * u->rows)); /* the last chunk may be shorter */
    if (u->stored) n = MAX(n, chunk_products_bytes(u, u->N));
    if (u->v_block == 0) return n;
    for (int last = 0; last < 2; last++) {
        int64_t v = last ? u->V - (divide_up(u->V, u->v_block) - 1) * u->v_block : u->v_block;
        product logits = unembed_logits_product(u, u->N, v, u->v_ld), dw = unembed_dw_product(u, u->N, v, u->v_ld);
        n = MAX(n, MAX(product_work_bytes(&logits), product_work_bytes(&dw)));
    }
    return n;
}

SAME_PLACE(UNEMBED_LOSS_H, UNEMBED_LOSS_GRAD_H, UNEMBED_STATS_H, UNEMBED_GRAD_H);
SAME_PLACE(UNEMBED_LOSS_W, UNEMBED_LOSS_GRAD_W, UNEMBED_STATS_W, UNEMBED_GRAD_W);

unembed_plan unembed_plan_make(const program *p, const op *o) {
    const value *h = program_get(p, o->in[UNEMBED_LOSS_H]), *w = program_get(p, o->in[UNEMBED_LOSS_W]);
    unembed_plan u = {.N = h->shape.dim[0], .C = h->shape.dim[1], .V = w->shape.dim[0], .type = h->type};
    ASSERT(h->type == w->type);
    u.vocab = u.V;
    if (o->attr.vocab > 0) u.vocab = o->attr.vocab, u.first_id = o->attr.first_id, u.V = o->attr.n_ids;
    u.gradient = op_is_loss_gradient(o->kind);
    bool shared = o->kind == OP_UNEMBED_GRAD;
    int at_dh = shared ? UNEMBED_GRAD_DH : UNEMBED_LOSS_GRAD_DH;
    int at_dw = shared ? UNEMBED_GRAD_DW : UNEMBED_LOSS_GRAD_DW;
    u.dh_type = u.gradient ? program_get(p, o->out[at_dh])->type : u.type;
    u.has_dw = u.gradient && o->out[at_dw];
    u.dw_type = u.has_dw ? program_get(p, o->out[at_dw])->type : u.type;
    u.rows = op_logits_rows(p, o);
    u.n_chunks = divide_up(u.N, u.rows);
    u.ld = ld_up(u.V);
    u.stored = op_logits_stored(p, o, &u.rows);
    if (u.stored) u.n_chunks = divide_up(u.N, u.rows);
    int64_t n_floats = u.rows * u.ld;
    if (u.has_dw && u.n_chunks > 1 && !u.stored && u.dw_type != DTYPE_F32) {
        int64_t fit = o->attr.chunk_bytes / (u.N * (int64_t)sizeof(float)) / LD_UNIT * LD_UNIT;
        u.v_block = MIN(MAX(fit, V_BLOCK_MIN), u.V);
        u.v_ld = ld_up(u.v_block);
        n_floats = MAX(n_floats, u.N * u.v_ld);
    }
    u.at_stored = bytes_up((size_t)n_floats * sizeof(float));
    u.at_states = u.at_stored + bytes_up(u.stored ? (size_t)(u.N * u.ld) * dtype_bytes(u.type) : 0);
    u.keeps_states = u.v_block > 0 || shared;
    u.at_products = u.at_states + bytes_up(u.keeps_states ? (size_t)u.N * 2 * sizeof(float) : 0);
    u.n_bytes = u.at_products + products_bytes(&u);
    return u;
}

product logits_product(const program *p, const op *o) {
    const value *h = program_get(p, o->in[UNEMBED_LOGITS_H]), *logits = program_get(p, o->out[UNEMBED_LOGITS_LOGITS]);
    int64_t C = h->shape.dim[1];
    return (product){.m = logits->shape.dim[0],
                     .n = logits->shape.dim[1],
                     .k = C,
                     .lda = C,
                     .ldb = C,
                     .ldc = logits->shape.dim[1],
                     .b_turned = true,
                     .type = h->type,
                     .c_type = DTYPE_F32};
}

size_t logits_picked_bytes(const program *p, const op *o) {
    const value *h = program_get(p, o->in[UNEMBED_LOGITS_H]);
    if (o->in[UNEMBED_LOGITS_PICK] == NO_VALUE) return 0;
    return bytes_up((size_t)(program_get(p, o->out[UNEMBED_LOGITS_LOGITS])->shape.dim[0] * h->shape.dim[1]) *
                    dtype_bytes(h->type));
}

/* ---- codes -------------------------------------------------------------------------------------------------------- */

bool codes_are_numbers(const program *p, const op *o) {
    const value *y = program_get(p, o->out[LINEAR_CODES_Y]);
    return y->shape.dim[0] > CODES_ROWS_MOST && y->type != DTYPE_F32;
}

product codes_numbers_product(const program *p, const op *o) {
    const value *x = program_get(p, o->in[LINEAR_CODES_X]), *y = program_get(p, o->out[LINEAR_CODES_Y]);
    int64_t k = x->shape.dim[1], n = y->shape.dim[1];
    return (product){.m = y->shape.dim[0],
                     .n = n,
                     .k = k,
                     .lda = k,
                     .ldb = k,
                     .ldc = n,
                     .b_turned = true,
                     .type = x->type,
                     .c_type = y->type,
                     .bias = o->in[LINEAR_CODES_B] != NO_VALUE};
}

size_t codes_picked_bytes(const program *p, const op *o) {
    product q = codes_numbers_product(p, o);
    return o->in[LINEAR_CODES_PICK] ? bytes_up((size_t)(q.m * q.k) * dtype_bytes(q.type)) : 0;
}

size_t codes_numbers_bytes(const product *q) { return bytes_up((size_t)(q->n * q->k) * dtype_bytes(q->type)); }

/* ---- scratch ------------------------------------------------------------------------------------------------------ */

static size_t linear_bytes(const program *p, const op *o) {
    if (op_is_adapted(o)) {
        op parts[ADAPTED_CALLS];
        adapted_ops(o, parts);
        return MAX(linear_bytes(p, &parts[0]), parts[1].kind == OP_LORA_UP ? 0 : linear_bytes(p, &parts[1]));
    }
    product q = linear_product(p, o);
    return product_work_bytes(&q);
}

static size_t linear8_bytes(const program *p, const op *o) {
    product q = linear8_product(p, o);
    return product_work_bytes(&q);
}

static size_t logits_bytes(const program *p, const op *o) {
    product q = logits_product(p, o);
    return logits_picked_bytes(p, o) + product_work_bytes(&q);
}

static size_t codes_bytes(const program *p, const op *o) {
    product q = codes_numbers_product(p, o);
    if (codes_are_numbers(p, o)) return codes_numbers_bytes(&q) + product_work_bytes(&q);
    return codes_picked_bytes(p, o) + CODES_WORK(q.k);
}

static size_t unembed_bytes(const program *p, const op *o) { return unembed_plan_make(p, o).n_bytes; }

const cuda_work cuda_work_LINEAR = {linear_bytes, PRODUCTS};
const cuda_work cuda_work_LINEAR_DX = {linear_bytes, PRODUCTS};
const cuda_work cuda_work_LINEAR_DW = {linear_bytes, PRODUCTS};
const cuda_work cuda_work_LINEAR_DW_ADD = {linear_bytes, PRODUCTS};
const cuda_work cuda_work_LINEAR8 = {linear8_bytes, PRODUCTS};
const cuda_work cuda_work_LINEAR_CODES = {codes_bytes, PRODUCTS};
const cuda_work cuda_work_UNEMBED_LOGITS = {logits_bytes, PRODUCTS};
const cuda_work cuda_work_UNEMBED_LOSS = {unembed_bytes, PRODUCTS};
const cuda_work cuda_work_UNEMBED_LOSS_GRAD = {unembed_bytes, PRODUCTS};
const cuda_work cuda_work_UNEMBED_STATS = {unembed_bytes, PRODUCTS};
const cuda_work cuda_work_UNEMBED_GRAD = {unembed_bytes, PRODUCTS};
