/* joined.c - neighbouring ops as one kernel.
 *
 * A decode step is hundreds of kernels of few microseconds, and what lies between two of them is as much as either. So where ops
 * stand behind each other in the program as a layer has them, one kernel does several:
 *
 *   ROPE or QK_NORM_ROPE, KV_STORE, ATTENTION_PAGED       paged_step.cu
 *   LINEAR, SWIGLU                                        few_rows.cu
 *   LINEAR_CODES, SWIGLU                                  few_codes.cu, few_codes_wgmma.cu
 *   a norm, LINEAR_CODES                                  norm.cu gives y as bytes, few_codes_wgmma.cu takes them: two kernels instead of three
 *
 * Training has many tensors in one launch of GRAD_SUMSQ or ADAMW, and products that add to a weight's accumulator:
 *
 *   LINEAR_DW or LINEAR8, ACCUMULATE                      gemm.c
 *
 * The program and its plan know nothing of this. A value between two of the ops is left out, so nothing else may read it; and
 * since a plan may give the bytes of an input to the output of a later op, none is joined where a kernel would write what it
 * reads. The bits are those of the ops one by one, as a traced run has them. */
#include "backend/cuda/joined.h"
#include "backend/adapted.h"
#include "backend/apart.h"
#include "backend/cuda/codes.h"
#include "backend/cuda/gemm.h"
#include "backend/cuda/launch_optimizer.h"
#include "backend/cuda/norm.h"
#include "backend/cuda/paged.h"

enum { STEP_CAPABILITY = 90 };

/* ---- what may be joined ---------------------------------------------------------------------------------------------- */

/* Is the value read by none but the n ops from k on, and gone after them? Walks the whole program: asked last. */
static bool is_between(const kernel_call *k, size_t n, value_id v) {
    const program *p = k->program;
    if (v == NO_VALUE) return true;
    value_id root = program_root(p, v, NULL);
    if (p->values[root].persistent || p->values[root].of_generation) return false;
    for (const op *o = p->ops; o < p->ops + p->n_ops; o++) {
        if (o >= k->op && o < k->op + n) continue;
        for (int i = 0; i < op_input_count(o->kind); i++)
            if (o->in[i] != NO_VALUE && program_root(p, o->in[i], NULL) == root) return false;
    }
    return true;
}

static bool are_kinds(const kernel_call *k, size_t n, const op_kind *kinds, size_t n_kinds) {
    if (n < n_kinds) return false;
    for (size_t i = 0; i < n_kinds; i++)
        if (k[i].op->kind != kinds[i]) return false;
    return true;
}
#define ARE(k, n, ...) are_kinds(k, n, (const op_kind[]){__VA_ARGS__}, ARRAY_LENGTH(((const op_kind[]){__VA_ARGS__})))

/* ---- attention ------------------------------------------------------------------------------------------------------- */

SAME_PLACE(ROPE_QKV, QK_NORM_ROPE_QKV);
SAME_PLACE(ROPE_Y, QK_NORM_ROPE_Y);

/* Rotation, store and attention behind each other, of the same rows. */
static bool is_step(const kernel_call *k, size_t n) {
    bool rope = ARE(k, n, OP_ROPE, OP_KV_STORE, OP_ATTENTION_PAGED);
    if (!rope && !ARE(k, n, OP_QK_NORM_ROPE, OP_KV_STORE, OP_ATTENTION_PAGED)) return false;
    const op *turn = k[0].op, *store = k[1].op, *attend = k[2].op;
    value_id turned = turn->out[ROPE_Y];
    const op_attr *a = &turn->attr, *b = &attend->attr;
    return store->in[KV_STORE_QKV] == turned && attend->in[ATTENTION_PAGED_QKV] == turned &&
           attend->in[ATTENTION_PAGED_CACHE] == store->out[KV_STORE_CACHE] &&
           attend->in[ATTENTION_PAGED_SLOTS] == store->in[KV_STORE_SLOTS] &&
           attend->in[ATTENTION_PAGED_TABLE] == store->in[KV_STORE_TABLE] &&
           attend->in[ATTENTION_PAGED_DOC_START] == store->in[KV_STORE_DOC_START] &&
           turn->in[rope ? ROPE_DOC_START : QK_NORM_ROPE_DOC_START] == store->in[KV_STORE_DOC_START] &&
           turn->rows == attend->rows && store->rows == attend->rows && a->seq_len == 1 && !a->inverse && !a->wide &&
           a->n_heads == b->n_heads && a->n_kv_heads == b->n_kv_heads && a->head_dim == b->head_dim &&
           is_between(k, 3, turned) && (rope || is_between(k, 3, turn->out[QK_NORM_ROPE_RSTD]));
}

static size_t try_step(backend_context *c, const kernel_call *k, size_t n) {
    if (c->capability != STEP_CAPABILITY || !is_step(k, n)) return 0;
    bool rope = k[0].op->kind == OP_ROPE;
    int table = rope ? ROPE_TABLE : QK_NORM_ROPE_TABLE;
    launch_paged_step a = {.paged = paged_attention_of(&k[2]),
                           .turns = k[0].in[table],
                           .n_positions = call_in(&k[0], table)->shape.dim[0],
                           .gq = rope ? NULL : k[0].in[QK_NORM_ROPE_GQ],
                           .gk = rope ? NULL : k[0].in[QK_NORM_ROPE_GK],
                           .eps = k[0].op->attr.eps,
                           .offset = k[0].op->attr.gain_offset};
    a.paged.qkv = k[0].in[ROPE_QKV];
    if (!paged_step_takes(&a.paged) || values_overlap(k[2].out[ATTENTION_PAGED_Y], call_out(&k[2], ATTENTION_PAGED_Y),
                                                      a.paged.qkv, call_in(&k[0], ROPE_QKV)))
        return 0;
    launch_attention_step(&a, c->stream);
    return 3;
}

/* ---- products -------------------------------------------------------------------------------------------------------- */

/* A LINEAR as few_rows.cu does it, with 16-bit y; false: it is none of those. */
static bool take_linear(const backend_context *c, const kernel_call *k, few_rows_product *out) {
    gemm_call g = {.q = linear_product(k->program, k->op),
                   .a = k->in[LINEAR_X],
                   .b = k->in[LINEAR_W],
                   .c = k->out[LINEAR_Y],
                   .bias = k->in[LINEAR_B]};
    if (!gemm_is_few_rows(c, &g.q) || g.q.c_type != g.q.type || op_is_adapted(k->op)) return false;
    *out = gemm_few_rows(&g);
    return true;
}

SAME_PLACE(LINEAR_X, LINEAR_CODES_X);
SAME_PLACE(LINEAR_Y, LINEAR_CODES_Y);

/* A product and the gate of what it gives, which nothing else reads. */
static bool is_gated(const kernel_call *k) {
    const kernel_call *g = &k[1];
    return g->op->in[SWIGLU_GU] == k->op->out[LINEAR_Y] && !g->out[SWIGLU_AMAX] &&
           call_out(g, SWIGLU_Y)->type == call_in(g, SWIGLU_GU)->type && is_between(k, 2, g->op->in[SWIGLU_GU]) &&
           !values_overlap(g->out[SWIGLU_Y], call_out(g, SWIGLU_Y), k->in[LINEAR_X], call_in(k, LINEAR_X));
}

static size_t try_gated(backend_context *c, const kernel_call *k, size_t n) {
    few_rows_product q;
    if (!ARE(k, n, OP_LINEAR, OP_SWIGLU) || !take_linear(c, k, &q) || !is_gated(k)) return 0;
    q.gated = true, q.gelu = k[1].op->attr.gelu_gate;
    q.y = k[1].out[SWIGLU_Y], q.ldy = q.n / 2;
    launch_few_rows(c->stream, &q);
    return 2;
}

/* Blocks of this kernel read the rounded x in scratch while others write. */
static bool writes_scratch_of_first(const kernel_call *k) {
    return values_overlap(k[1].out[SWIGLU_Y], call_out(&k[1], SWIGLU_Y), k->work, &k->program->values[k->op->work]);
}

/* A LINEAR_CODES with 16-bit y, as its kernels for few rows do it, with its gate where there is one; how many ops that are, 0: it is none
 * of those. */
static size_t take_codes(const kernel_call *k, size_t n, few_codes_product *out) {
    if (!ARE(k, n, OP_LINEAR_CODES) || codes_are_numbers(k->program, k->op) || k->in[LINEAR_CODES_PICK] ||
        call_out(k, LINEAR_CODES_Y)->type == DTYPE_F32)
        return 0;
    *out = codes_product(k);
    if (!ARE(k, n, OP_LINEAR_CODES, OP_SWIGLU) || !is_gated(k) || writes_scratch_of_first(k)) return 1;
    out->gated = true, out->gelu = k[1].op->attr.gelu_gate;
    out->y = k[1].out[SWIGLU_Y], out->ldy = out->n / 2;
    return 2;
}

/* Does this norm touch nothing of the scratch of the product behind it, which alone reads its y? */
static bool norm_may_write_scratch(const kernel_call *k) {
    const kernel_call *product = &k[1];
    const value *work = &k->program->values[product->op->work];
    const int y = op_norm_output(k->op->kind);
    for (int i = 0; i < op_input_count(k->op->kind); i++)
        if (values_overlap(product->work, work, k->in[i], call_in(k, i))) return false;
    for (int i = 0; i < op_output_count(k->op->kind); i++)
        if (i != y && values_overlap(product->work, work, k->out[i], call_out(k, i))) return false;
    return is_between(k, 2, k->op->out[y]);
}

/* The norm in front of a product with codes gives bytes. */
static bool launch_norm_of_bytes(backend_context *c, const kernel_call *k, const few_codes_product *q) {
    launch_norm_args a = norm_args_of(k);
    const launch_type t = launch_type_of(call_out(k, op_norm_output(k->op->kind))->type);
    if (k[1].op->in[LINEAR_CODES_X] != k->op->out[op_norm_output(k->op->kind)] || !codes_take_bytes(c) || a.amax ||
        !launch_norm_gives_bytes(t, &a) || !norm_may_write_scratch(k))
        return false;
    a.y = NULL, a.bytes = q->work, a.format = q->format;
    launch_norm(c->stream, t, &a);
    return true;
}

static size_t try_codes(backend_context *c, const kernel_call *k, size_t n) {
    few_codes_product q;
    const size_t n_norms = n > 1 && op_norm_output(k->op->kind) >= 0,
                 n_product = take_codes(k + n_norms, n - n_norms, &q);
    if (n_norms + n_product < 2) return 0;
    if (n_norms) {
        if (!n_product || !launch_norm_of_bytes(c, k, &q)) return 0;
        q.cut = true;
    }
    codes_launch(c, q);
    return n_norms + n_product;
}

/* ---- sums of gradients ------------------------------------------------------------------------------------------------ */

SAME_PLACE(LINEAR_X, LINEAR_DW_DY);
SAME_PLACE(LINEAR_W, LINEAR_DW_X);
SAME_PLACE(LINEAR_Y, LINEAR_DW_DW, LINEAR8_Y);

/* Is this scale a power of two? Then it rounds nothing, wherever it is multiplied with. */
static bool is_power(const program *p, value_id scale) {
    for (const op *o = p->ops; o < p->ops + p->n_ops; o++)
        for (int i = 0; i < op_output_count(o->kind); i++)
            if (o->out[i] == scale && !o->attr.power) return false;
    return true;
}

/* The product that a weight's gradient is; false: this is none, or not in fp32. */
static bool take_dw(const kernel_call *k, gemm_call *out) {
    bool eight = k->op->kind == OP_LINEAR8;
    if (!eight && k->op->kind != OP_LINEAR_DW) return false;
    *out = (gemm_call){.q = eight ? linear8_product(k->program, k->op) : linear_product(k->program, k->op),
                       .a = k->in[eight ? (int)LINEAR8_X : (int)LINEAR_X],
                       .b = k->in[eight ? (int)LINEAR8_W : (int)LINEAR_W],
                       .a_scale = eight ? k->in[LINEAR8_X_SCALE] : NULL,
                       .b_scale = eight ? k->in[LINEAR8_W_SCALE] : NULL,
                       .work = k->work};
    return out->q.c_type == DTYPE_F32 && !out->q.bias;
}

/* A product without a scale, or with powers of two, has the bits of a product that ACCUMULATE adds; other scales would be multiplied
 * and added with one rounding. Accumulators are persistent: no operand of a product lies on one. */
static size_t try_sum(backend_context *c, const kernel_call *k, size_t n) {
    gemm_call g;
    if (n < 2 || k[1].op->kind != OP_ACCUMULATE || !take_dw(k, &g) ||
        k[1].op->in[ACCUMULATE_X] != k->op->out[LINEAR_Y] || call_out(&k[1], ACCUMULATE_ACC)->type != DTYPE_F32 ||
        !is_between(k, 2, k->op->out[LINEAR_Y]))
        return 0;
    if (g.a_scale &&
        (!is_power(k->program, k->op->in[LINEAR8_X_SCALE]) || !is_power(k->program, k->op->in[LINEAR8_W_SCALE])))
        return 0;
    const launch_scalars *scalars = k[1].in[ACCUMULATE_SCALARS];
    g.c = k[1].out[ACCUMULATE_ACC];
    return gemm_launch_onto(c, &g, &scalars->one, &scalars->keep) ? 2 : 0;
}

/* ---- many small tensors ---------------------------------------------------------------------------------------------- */

static size_t try_many(backend_context *c, const kernel_call *k, size_t n) {
    op_kind kind = k[0].op->kind;
    if (kind != OP_GRAD_SUMSQ && kind != OP_ADAMW) return 0;
    size_t n_apart = calls_apart(k, MIN(n, (size_t)CALLS_MOST));
    (kind == OP_ADAMW ? cuda_kernels_ADAMW : cuda_kernels_GRAD_SUMSQ)(c, k, n_apart);
    return n_apart;
}

size_t joined_run(backend_context *c, const kernel_call *k, size_t n) {
    size_t n_done = try_many(c, k, n);
    if (!n_done) n_done = try_step(c, k, n);
    if (!n_done) n_done = try_gated(c, k, n);
    if (!n_done) n_done = try_codes(c, k, n);
    if (!n_done) n_done = try_sum(c, k, n);
    return n_done;
}
