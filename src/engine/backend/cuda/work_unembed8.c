/* work_unembed8.c - the products of UNEMBED8_LOSS_GRAD and their scratch: pure, so that a plan needs no GPU.
 *
 * The budget (attr.chunk_bytes) covers fp16 logits, their gradient in 8 bits and its transpose, cut by op_logits8_cut; states of
 * tokens and scratch of the products come on top. */
#include "backend/cuda/unembed8.h"
#include "backend/cuda/work.h"

enum { WORK_ALIGNMENT = 256 };

static size_t bytes_up(int64_t n) { return align_up((size_t)n, WORK_ALIGNMENT); }

product unembed8_logits_product(const unembed8_plan *u, int64_t n_rows, int64_t n_columns, int64_t ld) {
    product q = chunk_logits_product(u->C, DTYPE_F8E4M3, n_rows, n_columns, ld);
    q.c_type = DTYPE_F16;
    q.short_sums = true;
    return q;
}

/* Full sums: beside the target's element those of most words are too small for a short one. */
product unembed8_dh_product(const unembed8_plan *u, int64_t n_rows) {
    return (product){.m = n_rows,
                     .n = u->C,
                     .k = u->V,
                     .lda = u->q_ld,
                     .ldb = u->V,
                     .ldc = u->C,
                     .b_turned = true,
                     .type = DTYPE_F8E4M3,
                     .a_e5m2 = true,
                     .c_type = DTYPE_BF16,
                     .inside = true};
}

product unembed8_dw_product(const unembed8_plan *u, int64_t n_rows, int64_t n_columns) {
    return (product){.m = n_columns,
                     .n = u->C,
                     .k = n_rows,
                     .lda = u->t_ld,
                     .ldb = u->N,
                     .ldc = u->C,
                     .b_turned = true,
                     .type = DTYPE_F8E4M3,
                     .a_e5m2 = true,
                     .c_type = u->dw_type,
                     .inside = true};
}

/* A product of fewer rows or columns never takes more. */
static size_t products_bytes(const unembed8_plan *u) {
    const logits8_cut *c = &u->cut;
    product logits = unembed8_logits_product(u, c->rows, u->V, u->ld), dh = unembed8_dh_product(u, c->group);
    size_t n = MAX(product_work_bytes(&logits), product_work_bytes(&dh));
    if (!u->has_dw) return n;
    product dw = unembed8_dw_product(u, c->stored || c->v_block ? u->N : c->group, c->v_block ? c->v_block : u->V);
    n = MAX(n, product_work_bytes(&dw));
    if (!c->v_block) return n;
    product block = unembed8_logits_product(u, u->N, c->v_block, u->v_ld);
    return MAX(n, product_work_bytes(&block));
}

unembed8_plan unembed8_plan_make(const program *p, const op *o) {
    const shape *h = &program_get(p, o->in[UNEMBED8_LOSS_GRAD_H])->shape;
    value_id dw = o->out[UNEMBED8_LOSS_GRAD_DW];
    unembed8_plan u = {.N = h->dim[0], .C = h->dim[1], .has_dw = dw != NO_VALUE, .cut = op_logits8_cut(p, o)};
    const logits8_cut *c = &u.cut;
    u.V = program_get(p, o->in[UNEMBED8_LOSS_GRAD_W])->shape.dim[0];
    ASSERT(o->attr.vocab == 0); /* ranks that share the vocabulary do not come here */
    if (u.has_dw) u.dw_type = program_get(p, dw)->type;
    u.ld = round_up(u.V, LOGITS8_UNIT), u.v_ld = round_up(c->v_block, LOGITS8_UNIT);
    u.q_ld = round_up(u.V, GRADIENT8_UNIT);
    u.t_ld = round_up(c->stored || c->v_block ? u.N : c->group, GRADIENT8_UNIT);
    u.at_q = bytes_up(MAX(c->rows * u.ld, u.N * u.v_ld) * (int64_t)dtype_bytes(DTYPE_F16));
    u.at_t = u.at_q + bytes_up(c->group * u.q_ld);
    u.at_states = u.at_t + (u.has_dw ? bytes_up((c->v_block ? c->v_block : u.V) * u.t_ld) : 0);
    u.at_scales = u.at_states + bytes_up(u.N * 2 * (int64_t)sizeof(float));
    u.at_products = u.at_scales + WORK_ALIGNMENT;
    u.n_bytes = u.at_products + products_bytes(&u);
    return u;
}

static size_t unembed8_bytes(const program *p, const op *o) { return unembed8_plan_make(p, o).n_bytes; }

const cuda_work cuda_work_UNEMBED8_LOSS_GRAD = {unembed8_bytes, PRODUCTS};
