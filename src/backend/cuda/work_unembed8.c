/* work_unembed8.c - the products of UNEMBED8_LOSS_GRAD and their scratch: pure, so that a plan needs no GPU.
 *
 * The budget (attr.chunk_bytes) covers fp32 logits, their gradient in 8 bits and its transpose; states of tokens and scratch of the
 * products come on top. The transpose is kept of all tokens where the budget allows it in at most CHUNKS_MOST chunks: then
 * dw is one product. Chunks start at multiples of ROWS_UNIT tokens where they are that large, so that a chunk of the transposed
 * hidden states is aligned. */
#include "backend/cuda/unembed8.h"
#include "backend/cuda/work.h"

enum {
    LD_UNIT = 32,      /* floats: 128 bytes, one line of the cache */
    BYTES_UNIT = 128,  /* likewise, of rows of 8 bits */
    CHUNKS_MOST = 16,  /* thinner chunks would read the unembedding too often */
    V_BLOCK_MIN = 128, /* columns: one tile of a product */
    ROWS_UNIT = 128,
    ROWS_LEAST = 16, /* of a product of 8 bits */
    WORK_ALIGNMENT = 256,
};

static size_t bytes_up(int64_t n) { return align_up((size_t)n, WORK_ALIGNMENT); }

product unembed8_logits_product(const unembed8_plan *u, int64_t n_rows, int64_t n_columns, int64_t ld) {
    product q = chunk_logits_product(u->C, DTYPE_F8E4M3, n_rows, n_columns, ld);
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

/* Rows of `bytes` each that fit, cut evenly. */
static void cut_rows(unembed8_plan *u, int64_t budget, int64_t bytes) {
    int64_t fit = budget / bytes, unit = fit >= ROWS_UNIT ? ROWS_UNIT : ROWS_LEAST;
    fit = MIN(MAX(fit / unit * unit, ROWS_LEAST), u->N);
    u->rows = MIN(round_up(divide_up(u->N, divide_up(u->N, fit)), unit), u->N);
    u->n_chunks = divide_up(u->N, u->rows);
}

/* dw over several chunks: one product over a transpose that is kept, sums in fp32, or blocks of the vocabulary. */
static void plan_dw(unembed8_plan *u, int64_t budget) {
    int64_t all = round_up(u->N, BYTES_UNIT), left = budget - u->V * all;
    int64_t row = u->ld * (int64_t)sizeof(float) + u->q_ld;
    if (left > 0 && left / row >= divide_up(u->N, CHUNKS_MOST)) {
        u->stored = true;
        u->t_ld = all;
        cut_rows(u, left, row);
    } else if (u->dw_type != DTYPE_F32) {
        int64_t fit = budget / (all * (int64_t)(sizeof(float) + 1)) / V_BLOCK_MIN * V_BLOCK_MIN;
        u->v_block = MIN(MAX(fit, V_BLOCK_MIN), u->V);
        u->v_ld = round_up(u->v_block, LD_UNIT);
        u->t_ld = all;
        cut_rows(u, budget, row);
    }
}

static size_t chunk_bytes(const unembed8_plan *u, int64_t n_rows) {
    product logits = unembed8_logits_product(u, n_rows, u->V, u->ld), dh = unembed8_dh_product(u, n_rows);
    size_t n = MAX(product_work_bytes(&logits), product_work_bytes(&dh));
    if (!u->has_dw || u->v_block) return n;
    product dw = unembed8_dw_product(u, u->stored ? u->N : n_rows, u->V);
    return MAX(n, product_work_bytes(&dw));
}

static size_t products_bytes(const unembed8_plan *u) {
    size_t n = MAX(chunk_bytes(u, u->rows), chunk_bytes(u, u->N - (u->n_chunks - 1) * u->rows));
    for (int last = 0; last < 2 && u->v_block; last++) {
        int64_t v = last ? u->V - (divide_up(u->V, u->v_block) - 1) * u->v_block : u->v_block;
        product logits = unembed8_logits_product(u, u->N, v, u->v_ld), dw = unembed8_dw_product(u, u->N, v);
        n = MAX(n, MAX(product_work_bytes(&logits), product_work_bytes(&dw)));
    }
    return n;
}

unembed8_plan unembed8_plan_make(const program *p, const op *o) {
    const shape *h = &program_get(p, o->in[UNEMBED8_LOSS_GRAD_H])->shape;
    value_id dw = o->out[UNEMBED8_LOSS_GRAD_DW];
    unembed8_plan u = {.N = h->dim[0], .C = h->dim[1], .has_dw = dw != NO_VALUE};
    u.V = program_get(p, o->in[UNEMBED8_LOSS_GRAD_W])->shape.dim[0];
    ASSERT(o->attr.vocab == 0); /* ranks that share the vocabulary do not come here */
    if (u.has_dw) u.dw_type = program_get(p, dw)->type;
    u.ld = round_up(u.V, LD_UNIT), u.q_ld = round_up(u.V, BYTES_UNIT);
    cut_rows(&u, o->attr.chunk_bytes, u.ld * (int64_t)sizeof(float) + u.q_ld + (u.has_dw ? u.V : 0));
    u.t_ld = round_up(u.rows, BYTES_UNIT);
    if (u.has_dw && u.n_chunks > 1) plan_dw(&u, o->attr.chunk_bytes);
    int64_t n_floats = MAX(u.rows * u.ld, u.v_block ? u.N * u.v_ld : 0);
    u.at_q = bytes_up(n_floats * (int64_t)sizeof(float));
    u.at_t = u.at_q + bytes_up(u.rows * u.q_ld);
    u.at_states = u.at_t + (u.has_dw ? bytes_up((u.v_block ? u.v_block : u.V) * u.t_ld) : 0);
    u.at_scales = u.at_states + bytes_up(u.N * 2 * (int64_t)sizeof(float));
    u.at_products = u.at_scales + WORK_ALIGNMENT;
    u.n_bytes = u.at_products + products_bytes(&u);
    return u;
}

static size_t unembed8_bytes(const program *p, const op *o) { return unembed8_plan_make(p, o).n_bytes; }

const cuda_work cuda_work_UNEMBED8_LOSS_GRAD = {unembed8_bytes, PRODUCTS};
