/* rules_attention.c - what the ops of heads ask of their operands and what each costs: rotation, norms of q and of k, attention with rows
 * whole, shared among ranks, or in pages. */
#include "program/rules.h"

/* ---- heads ----------------------------------------------------------------------------------------------------------- */

static status check_heads(const checker *c, value_id qkv) {
    const op_attr *a = &c->o->attr;
    TRY(verify_rows(c, qkv));
    REQUIRE(a->n_heads > 0 && a->n_kv_heads > 0 && a->n_heads % a->n_kv_heads == 0 && a->head_dim > 0, "bad heads",
            qkv);
    REQUIRE(is_shape2(c, qkv, a->batch * a->seq_len, (int64_t)(a->n_heads + 2 * a->n_kv_heads) * a->head_dim),
            "expected packed rows (N, (H + 2G) D)", qkv);
    return OK;
}

/* The norm of q and k heads, forward or backward: y is what it wrote, or that one's gradient. */
static status check_qk_norm(const checker *c, value_id qkv, value_id gq, value_id gk, value_id y, value_id rstd) {
    const op_attr *a = &c->o->attr;
    const value_id gains[] = {gq, gk};
    TRY(check_heads(c, qkv));
    for (int i = 0; i < 2; i++) {
        int64_t width = a->head_dim * (int64_t)(!a->wide ? 1 : i ? a->n_kv_heads : a->n_heads);
        REQUIRE(is_shape1(c, gains[i], width) && same_type(c, qkv, gains[i]),
                "gain is not (D), or wide (H D) and (G D), of the rows' dtype", gains[i]);
    }
    TRY(verify_like(c, qkv, y));
    int64_t n_norms = a->wide ? 2 : a->n_heads + a->n_kv_heads;
    REQUIRE(has_type(c, rstd, DTYPE_F32) && is_shape2(c, rstd, sh(c, qkv)->dim[0], n_norms),
            "rstd is not (N, H + G), or wide (N, 2)", rstd);
    return OK;
}

status verify_ROPE_TABLE(const checker *c) {
    const op *o = c->o;
    value_id table = OUT(ROPE_TABLE_TABLE);
    REQUIRE(has_type(c, table, DTYPE_F32) && sh(c, table)->rank == 2 && sh(c, table)->dim[0] == o->attr.seq_len,
            "expected fp32 (T, R)", table);
    int64_t R = sh(c, table)->dim[1];
    REQUIRE(R > 0 && R % 2 == 0 && R <= o->attr.head_dim, "R is not an even part of D", table);
    REQUIRE(o->attr.rope.type != ROPE_LONG || o->attr.rope.pair_factors, "longrope without factors", table);
    return OK;
}
const op_cost cost_ROPE_TABLE = {PER_OUTPUT(20, ROPE_TABLE_TABLE)};

/* The rotation of the heads of qkv, of their first dimensions alone where `partly`. The table is longer than a row where rows are
 * single tokens of a long sequence, as in generation. */
static status check_rotation(const checker *c, value_id qkv, value_id table, value_id doc_start, bool partly) {
    const op_attr *a = &c->o->attr;
    REQUIRE(has_type(c, table, DTYPE_F32) && sh(c, table)->rank == 2 && sh(c, table)->dim[0] >= a->seq_len,
            "table is not (T, R) or longer", table);
    int64_t R = sh(c, table)->dim[1];
    REQUIRE(R > 0 && (R == a->head_dim || (partly && R < a->head_dim)), "R is not D, or of rope a part of D", table);
    REQUIRE(R % 2 == 0, "rope turns an even number of dimensions", qkv);
    return verify_tokens(c, doc_start, sh(c, qkv)->dim[0]);
}

status verify_QK_NORM(const checker *c) {
    return check_qk_norm(c, IN(QK_NORM_QKV), IN(QK_NORM_GQ), IN(QK_NORM_GK), OUT(QK_NORM_Y), OUT(QK_NORM_RSTD));
}
const op_cost cost_QK_NORM = {PER_INPUT(4, QK_NORM_QKV)};

status verify_ROPE(const checker *c) {
    value_id qkv = IN(ROPE_QKV);
    TRY(check_heads(c, qkv));
    TRY(check_rotation(c, qkv, IN(ROPE_TABLE), IN(ROPE_DOC_START), true));
    TRY(verify_amax(c, OUT(ROPE_Y), OUT(ROPE_AMAX)));
    return verify_like(c, qkv, OUT(ROPE_Y));
}
const op_cost cost_ROPE = {PER_INPUT(3, ROPE_QKV)}; /* two products and a sum; v passes */

status verify_QK_NORM_ROPE(const checker *c) {
    value_id qkv = IN(QK_NORM_ROPE_QKV);
    TRY(check_qk_norm(c, qkv, IN(QK_NORM_ROPE_GQ), IN(QK_NORM_ROPE_GK), OUT(QK_NORM_ROPE_Y), OUT(QK_NORM_ROPE_RSTD)));
    return check_rotation(c, qkv, IN(QK_NORM_ROPE_TABLE), IN(QK_NORM_ROPE_DOC_START), false);
}
const op_cost cost_QK_NORM_ROPE = {PER_INPUT(7, QK_NORM_ROPE_QKV)};

status verify_QK_NORM_BWD(const checker *c) {
    value_id qkv = IN(QK_NORM_BWD_QKV), gq = IN(QK_NORM_BWD_GQ), gk = IN(QK_NORM_BWD_GK);
    TRY(check_qk_norm(c, qkv, gq, gk, IN(QK_NORM_BWD_DY), IN(QK_NORM_BWD_RSTD)));
    TRY(verify_like(c, qkv, OUT(QK_NORM_BWD_DQKV)));
    TRY(verify_weight_grad(c, gq, OUT(QK_NORM_BWD_DGQ)));
    return verify_weight_grad(c, gk, OUT(QK_NORM_BWD_DGK));
}
const op_cost cost_QK_NORM_BWD = {PER_INPUT(9, QK_NORM_BWD_QKV)};

status verify_QK_NORM_ROPE_BWD(const checker *c) {
    value_id qkv = IN(QK_NORM_ROPE_BWD_QKV), gq = IN(QK_NORM_ROPE_BWD_GQ), gk = IN(QK_NORM_ROPE_BWD_GK);
    TRY(check_qk_norm(c, qkv, gq, gk, IN(QK_NORM_ROPE_BWD_DY), IN(QK_NORM_ROPE_BWD_RSTD)));
    TRY(check_rotation(c, qkv, IN(QK_NORM_ROPE_BWD_TABLE), IN(QK_NORM_ROPE_BWD_DOC_START), false));
    TRY(verify_like(c, qkv, OUT(QK_NORM_ROPE_BWD_DQKV)));
    TRY(verify_weight_grad(c, gq, OUT(QK_NORM_ROPE_BWD_DGQ)));
    return verify_weight_grad(c, gk, OUT(QK_NORM_ROPE_BWD_DGK));
}
const op_cost cost_QK_NORM_ROPE_BWD = {PER_INPUT(12, QK_NORM_ROPE_BWD_QKV)};

/* ---- attention ------------------------------------------------------------------------------------------------------- */

static status check_lse(const checker *c, value_id v) {
    const op_attr *a = &c->o->attr;
    REQUIRE(has_type(c, v, DTYPE_F32) && shape_count(sh(c, v)) == a->batch * a->seq_len * a->n_heads,
            "lse is not (B, H, T)", v);
    return OK;
}

static status check_query(const checker *c, value_id v, dtype t) {
    const op_attr *a = &c->o->attr;
    REQUIRE(has_type(c, v, t) && is_shape2(c, v, a->batch * a->seq_len, (int64_t)a->n_heads * a->head_dim),
            "expected (N, H D)", v);
    return OK;
}

static status check_kv(const checker *c, value_id v, dtype t) {
    const op_attr *a = &c->o->attr;
    REQUIRE(has_type(c, v, t) && is_shape2(c, v, a->batch * a->seq_len, 2 * (int64_t)a->n_kv_heads * a->head_dim),
            "expected (N, 2G D)", v);
    return OK;
}

/* Heads, the window and the soft cap. */
static status check_attention(const checker *c, value_id qkv) {
    TRY(check_heads(c, qkv));
    REQUIRE(c->o->attr.window >= 0, "a window of fewer than no keys", qkv);
    REQUIRE(c->o->attr.softcap >= 0 && c->o->attr.softcap < 1e30f, "expected a finite soft cap, or 0 for none", qkv);
    return OK;
}

static status check_attended(const checker *c, value_id qkv, value_id y) {
    const op_attr *a = &c->o->attr;
    REQUIRE(is_shape2(c, y, sh(c, qkv)->dim[0], (int64_t)a->n_heads * a->head_dim) && same_type(c, qkv, y),
            "output is not (N, H D)", y);
    return OK;
}

/* Over the causal half of each row, as if it held one document: where documents begin is known only with the data,
 * and shorter ones cost less; under a window over the band below the diagonal. In a ring, a run of tokens from the front and
 * one from the back see half of any rank's keys, and the window is a part of the row that all ranks share. */
static double attention_square(const op_attr *a) {
    double T = (double)a->seq_len, keys = T; /* twice the mean number of keys that a query sees */
    double row = T * MAX(a->group_size, 1), W = a->window ? MIN((double)a->window, row) : row;
    if (W < row) keys *= (2 - W / row) * W / row;
    return (double)a->batch * a->n_heads * T * keys * a->head_dim;
}
static double attention(const program *p, const op *o) { return 2.0 * attention_square(&o->attr); } /* two products */
static double attention_bwd(const program *p, const op *o) { return 5.0 * attention_square(&o->attr); } /* five */
/* Both steps by spans together see what one over whole rows could: how much is in the second is a matter of the data. */
static double step_share(const op *o) { return o->attr.spans ? 0.5 : 1; }
static double attention_ring(const program *p, const op *o) { return step_share(o) * attention(p, o); }
static double attention_ring_bwd(const program *p, const op *o) { return step_share(o) * attention_bwd(p, o); }

status verify_ATTENTION(const checker *c) {
    value_id qkv = IN(ATTENTION_QKV);
    TRY(check_attention(c, qkv));
    TRY(verify_tokens(c, IN(ATTENTION_DOC_START), sh(c, qkv)->dim[0]));
    TRY(check_attended(c, qkv, OUT(ATTENTION_Y)));
    REQUIRE(!c->o->attr.fp8 || has_type(c, qkv, DTYPE_BF16), "products of 8-bit numbers are of bf16", qkv);
    REQUIRE(!c->o->attr.fp8 || !(c->o->attr.softcap > 0), "products of 8-bit numbers know no soft cap", qkv);
    return check_lse(c, OUT(ATTENTION_LSE));
}
const op_cost cost_ATTENTION = {FLOPS(attention)};

status verify_ATTENTION_BWD(const checker *c) {
    value_id qkv = IN(ATTENTION_BWD_QKV);
    TRY(check_attention(c, qkv));
    TRY(verify_tokens(c, IN(ATTENTION_BWD_DOC_START), sh(c, qkv)->dim[0]));
    TRY(verify_like(c, IN(ATTENTION_BWD_Y), IN(ATTENTION_BWD_DY)));
    return verify_like(c, qkv, OUT(ATTENTION_BWD_DQKV));
}
const op_cost cost_ATTENTION_BWD = {FLOPS(attention_bwd)};

/* One step of a ring. The first uses the rank's own keys, the last those of the next rank in the ring. */
static status check_ring_step(const checker *c, value_id qkv, value_id kv, value_id doc_start) {
    const op_attr *a = &c->o->attr;
    TRY(check_attention(c, qkv));
    TRY(check_kv(c, kv, type_of(c, qkv)));
    TRY(verify_tokens(c, doc_start, sh(c, qkv)->dim[0] * (a->spans ? 2 : 1)));
    REQUIRE(!a->spans || (a->group_size == 2 && a->index == 0 && !a->window),
            "keys by spans are two steps without a window", qkv);
    REQUIRE(a->group_size > 1 && (a->spans || a->seq_len % 2 == 0) && a->index >= 0 && a->index < a->group_size &&
                a->peer >= 0 && a->peer < a->group_size,
            "expected a rank of a group, with two runs of tokens", qkv);
    return OK;
}

status verify_ATTENTION_RING(const checker *c) {
    const op_attr *a = &c->o->attr;
    value_id qkv = IN(ATTENTION_RING_QKV), before = IN(ATTENTION_RING_BEFORE), lse = IN(ATTENTION_RING_LSE_BEFORE);
    TRY(check_ring_step(c, qkv, IN(ATTENTION_RING_KV), IN(ATTENTION_RING_DOC_START)));
    bool first = a->peer == a->index, last = a->peer == (a->index + 1) % a->group_size;
    REQUIRE(!before == first && !lse == first, "the first step, and no other, follows none", qkv);
    if (!first) {
        TRY(check_query(c, before, DTYPE_F32));
        TRY(check_lse(c, lse));
    }
    TRY(check_query(c, OUT(ATTENTION_RING_Y), last ? type_of(c, qkv) : DTYPE_F32));
    return check_lse(c, OUT(ATTENTION_RING_LSE));
}
const op_cost cost_ATTENTION_RING = {FLOPS(attention_ring)};

status verify_ATTENTION_RING_BWD(const checker *c) {
    value_id qkv = IN(ATTENTION_RING_BWD_QKV);
    TRY(check_ring_step(c, qkv, IN(ATTENTION_RING_BWD_KV), IN(ATTENTION_RING_BWD_DOC_START)));
    TRY(check_query(c, IN(ATTENTION_RING_BWD_Y), type_of(c, qkv)));
    TRY(check_lse(c, IN(ATTENTION_RING_BWD_LSE)));
    TRY(check_query(c, IN(ATTENTION_RING_BWD_DY), type_of(c, qkv)));
    TRY(check_query(c, OUT(ATTENTION_RING_BWD_DQ), DTYPE_F32));
    return check_kv(c, OUT(ATTENTION_RING_BWD_DKV), DTYPE_F32);
}
const op_cost cost_ATTENTION_RING_BWD = {FLOPS(attention_ring_bwd)};

status verify_KV_PART(const checker *c) {
    TRY(check_heads(c, IN(KV_PART_QKV)));
    return check_kv(c, OUT(KV_PART_KV), type_of(c, IN(KV_PART_QKV)));
}
const op_cost cost_KV_PART = {NO_ARITHMETIC};

status verify_QKV_JOIN(const checker *c) {
    TRY(check_heads(c, OUT(QKV_JOIN_QKV)));
    TRY(check_query(c, IN(QKV_JOIN_Q), DTYPE_F32));
    return check_kv(c, IN(QKV_JOIN_KV), DTYPE_F32);
}
const op_cost cost_QKV_JOIN = {NO_ARITHMETIC};

/* Pages of keys and values, and what finds a token in them. */
static status check_paged(const checker *c, value_id qkv, value_id cache, value_id slots, value_id table,
                          value_id doc_start) {
    const op *o = c->o;
    int64_t n = sh(c, qkv)->dim[0];
    REQUIRE(o->attr.seq_len == 1, "every token is a row of its own: seq_len is 1", qkv);
    REQUIRE(sh(c, cache)->rank == 4 && sh(c, cache)->dim[1] == 2 * (int64_t)o->attr.n_kv_heads &&
                sh(c, cache)->dim[2] > 0 && sh(c, cache)->dim[3] == o->attr.head_dim && same_type(c, qkv, cache),
            "cache is not (pages, 2 G, S, D) of the rows' dtype", cache);
    TRY(verify_tokens(c, slots, n));
    TRY(verify_tokens(c, doc_start, n));
    REQUIRE(has_type(c, table, DTYPE_I32) && sh(c, table)->rank == 2, "expected int32 (slots, pages of a slot)", table);
    return OK;
}

status verify_KV_STORE(const checker *c) {
    TRY(check_heads(c, IN(KV_STORE_QKV)));
    return check_paged(c, IN(KV_STORE_QKV), OUT(KV_STORE_CACHE), IN(KV_STORE_SLOTS), IN(KV_STORE_TABLE),
                       IN(KV_STORE_DOC_START));
}
const op_cost cost_KV_STORE = {NO_ARITHMETIC};

/* Two products over as many positions as the page table can hold, or a window. */
static double attention_paged(const program *p, const op *o) {
    double keys = (double)program_get(p, o->in[ATTENTION_PAGED_TABLE])->shape.dim[1] *
                  (double)program_get(p, o->in[ATTENTION_PAGED_CACHE])->shape.dim[2];
    if (o->attr.window) keys = MIN(keys, (double)o->attr.window);
    return 4.0 * rows_of(p, o->in[ATTENTION_PAGED_QKV]) * o->attr.n_heads * o->attr.head_dim * keys;
}

status verify_ATTENTION_PAGED(const checker *c) {
    value_id qkv = IN(ATTENTION_PAGED_QKV);
    TRY(check_attention(c, qkv));
    TRY(check_attended(c, qkv, OUT(ATTENTION_PAGED_Y)));
    return check_paged(c, qkv, IN(ATTENTION_PAGED_CACHE), IN(ATTENTION_PAGED_SLOTS), IN(ATTENTION_PAGED_TABLE),
                       IN(ATTENTION_PAGED_DOC_START));
}
const op_cost cost_ATTENTION_PAGED = {FLOPS(attention_paged)};
