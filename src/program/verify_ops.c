/* verify_ops.c - what each op asks of its operands: dtypes that are allowed, shapes that match each other.
 *
 * One function per op, or for a few that differ in little. That required operands are there is known before (verify.c); an
 * optional one may be NO_VALUE. */
#include "program/verify.h"

/* ---- what an operand is ---------------------------------------------------------------------------------------------- */

static const shape *sh(const checker *c, value_id v) { return &c->p->values[v].shape; }

static bool is_shape2(const checker *c, value_id v, int64_t a, int64_t b) {
    const shape *s = sh(c, v);
    return s->rank == 2 && s->dim[0] == a && s->dim[1] == b;
}

static bool is_shape1(const checker *c, value_id v, int64_t a) { return sh(c, v)->rank == 1 && sh(c, v)->dim[0] == a; }
static bool has_type(const checker *c, value_id v, dtype t) { return c->p->values[v].type == t; }

static bool is_compute(const checker *c, value_id v) {
    dtype t = c->p->values[v].type;
    return t == DTYPE_F32 || t == DTYPE_BF16 || t == DTYPE_F16;
}

static bool same_type(const checker *c, value_id a, value_id b) { return c->p->values[a].type == c->p->values[b].type; }
static bool is_number(const checker *c, value_id v) { return has_type(c, v, DTYPE_F32) && is_shape1(c, v, 1); }

#define IN(i) (c->o->in[i])
#define OUT(i) (c->o->out[i])

/* x and y are both rows of activations with the same shape and dtype. */
static status check_like(const checker *c, value_id x, value_id y) {
    REQUIRE(shape_equal(sh(c, x), sh(c, y)), "shape differs from its partner", y);
    REQUIRE(same_type(c, x, y), "dtype differs from its partner", y);
    return OK;
}

static status check_rows(const checker *c, value_id x) {
    REQUIRE(sh(c, x)->rank == 2, "expected rows (N, C)", x);
    REQUIRE(is_compute(c, x), "expected fp32, bf16 or fp16", x);
    return OK;
}

static status check_tokens(const checker *c, value_id v, int64_t n) {
    REQUIRE(has_type(c, v, DTYPE_I32) && is_shape1(c, v, n), "expected int32 (N)", v);
    return OK;
}

static status check_weight_grad(const checker *c, value_id w, value_id dw) {
    REQUIRE(shape_equal(sh(c, w), sh(c, dw)), "gradient shape differs from its parameter", dw);
    REQUIRE(has_type(c, dw, DTYPE_F32) || has_type(c, dw, DTYPE_BF16), "weight gradient must be fp32 or bf16", dw);
    return OK;
}

/* gamma, beta: (C) of the compute dtype. */
static status check_gain(const checker *c, value_id x, value_id g) {
    REQUIRE(is_shape1(c, g, sh(c, x)->dim[1]), "gain does not match the rows", g);
    REQUIRE(same_type(c, x, g), "gain dtype differs from the rows", g);
    return OK;
}

/* The largest number of x, where it is asked for. */
static status check_amax(const checker *c, value_id x, value_id amax) {
    if (amax) REQUIRE(has_type(c, x, DTYPE_BF16) && is_number(c, amax), "amax is not one fp32 of a bf16 tensor", amax);
    return OK;
}

static status check_statistic(const checker *c, value_id x, value_id s) {
    REQUIRE(has_type(c, s, DTYPE_F32) && is_shape1(c, s, sh(c, x)->dim[0]), "expected fp32 (N)", s);
    return OK;
}

static status check_scalars(const checker *c, value_id v) {
    REQUIRE(has_type(c, v, DTYPE_U8) && is_shape1(c, v, sizeof(step_scalars)), "expected the step scalars", v);
    return OK;
}

/* ---- embedding ------------------------------------------------------------------------------------------------------- */

/* The ids of this rank's rows lie in the vocabulary, and the rows in the table. */
static status check_vocabulary(const checker *c, value_id table) {
    const op_attr *a = &c->o->attr;
    REQUIRE(a->vocab == 0 || (a->first_id >= 0 && a->n_ids > 0 && a->n_ids <= sh(c, table)->dim[0] &&
                              a->first_id + a->n_ids <= a->vocab),
            "its ids are not part of the vocabulary", table);
    return OK;
}

static status check_embed(const checker *c) {
    const op *o = c->o;
    TRY(check_rows(c, OUT(0)));
    TRY(check_tokens(c, IN(0), sh(c, OUT(0))->dim[0]));
    REQUIRE(sh(c, IN(1))->rank == 2 && sh(c, IN(1))->dim[1] == sh(c, OUT(0))->dim[1] && same_type(c, IN(1), OUT(0)),
            "table does not match the rows", IN(1));
    TRY(check_vocabulary(c, IN(1)));
    REQUIRE(o->attr.first_token >= 0 && o->attr.n_tokens >= 0 &&
                o->attr.first_token + o->attr.n_tokens <= sh(c, OUT(0))->dim[0],
            "these are not its tokens", OUT(0));
    REQUIRE((IN(2) == NO_VALUE) == (IN(3) == NO_VALUE), "learned positions need doc", IN(3));
    if (IN(3)) {
        TRY(check_tokens(c, IN(2), sh(c, OUT(0))->dim[0]));
        REQUIRE(sh(c, IN(3))->rank == 2 && sh(c, IN(3))->dim[1] == sh(c, OUT(0))->dim[1] &&
                    same_type(c, IN(3), OUT(0)) && sh(c, IN(3))->dim[0] >= o->attr.seq_len,
                "positions do not match the rows", IN(3));
    }
    return OK;
}

static status check_embed_bwd(const checker *c) {
    TRY(check_rows(c, IN(1)));
    TRY(check_tokens(c, IN(0), sh(c, IN(1))->dim[0]));
    REQUIRE(sh(c, OUT(0))->rank == 2 && sh(c, OUT(0))->dim[1] == sh(c, IN(1))->dim[1], "dtable is not (V, C)", OUT(0));
    TRY(check_vocabulary(c, OUT(0)));
    return check_weight_grad(c, OUT(0), OUT(0));
}

static status check_position_bwd(const checker *c) {
    TRY(check_rows(c, IN(1)));
    TRY(check_tokens(c, IN(0), sh(c, IN(1))->dim[0]));
    REQUIRE(sh(c, OUT(0))->rank == 2 && sh(c, OUT(0))->dim[1] == sh(c, IN(1))->dim[1], "dtable is not (P, C)", OUT(0));
    return check_weight_grad(c, OUT(0), OUT(0));
}

/* ---- norms ----------------------------------------------------------------------------------------------------------- */

static status check_norm(const checker *c, value_id x, value_id gamma, value_id beta, value_id y, value_id mean,
                         value_id rstd) {
    TRY(check_rows(c, x));
    TRY(check_gain(c, x, gamma));
    if (beta) TRY(check_gain(c, x, beta));
    TRY(check_like(c, x, y));
    if (mean) TRY(check_statistic(c, x, mean));
    return check_statistic(c, x, rstd);
}

static status check_rmsnorm(const checker *c) {
    TRY(check_amax(c, OUT(0), OUT(2)));
    return check_norm(c, IN(0), IN(1), NO_VALUE, OUT(0), NO_VALUE, OUT(1));
}

static status check_layernorm(const checker *c) {
    TRY(check_amax(c, OUT(0), OUT(3)));
    return check_norm(c, IN(0), IN(1), IN(2), OUT(0), OUT(1), OUT(2));
}

static status check_add_rmsnorm(const checker *c) {
    TRY(check_like(c, IN(0), IN(1)));
    TRY(check_like(c, IN(0), OUT(0)));
    TRY(check_amax(c, OUT(1), OUT(3)));
    return check_norm(c, IN(0), IN(2), NO_VALUE, OUT(1), NO_VALUE, OUT(2));
}

static status check_add_layernorm(const checker *c) {
    TRY(check_like(c, IN(0), IN(1)));
    TRY(check_like(c, IN(0), OUT(0)));
    TRY(check_amax(c, OUT(1), OUT(4)));
    return check_norm(c, IN(0), IN(2), IN(3), OUT(1), OUT(2), OUT(3));
}

static status check_rmsnorm_bwd(const checker *c) {
    TRY(check_norm(c, IN(0), IN(1), NO_VALUE, IN(3), NO_VALUE, IN(2)));
    if (IN(4)) TRY(check_like(c, IN(0), IN(4)));
    TRY(check_like(c, IN(0), OUT(0)));
    TRY(check_amax(c, OUT(0), OUT(2)));
    return check_weight_grad(c, IN(1), OUT(1));
}

static status check_layernorm_bwd(const checker *c) {
    TRY(check_norm(c, IN(0), IN(1), NO_VALUE, IN(4), IN(2), IN(3)));
    if (IN(5)) TRY(check_like(c, IN(0), IN(5)));
    TRY(check_like(c, IN(0), OUT(0)));
    TRY(check_amax(c, OUT(0), OUT(3)));
    TRY(check_weight_grad(c, IN(1), OUT(1)));
    return check_weight_grad(c, IN(1), OUT(2));
}

/* ---- products -------------------------------------------------------------------------------------------------------- */

static status check_linear(const checker *c) {
    TRY(check_rows(c, IN(0)));
    REQUIRE(sh(c, IN(1))->rank == 2 && sh(c, IN(1))->dim[1] == sh(c, IN(0))->dim[1], "weight is not (out, in)", IN(1));
    REQUIRE(same_type(c, IN(0), IN(1)) && same_type(c, IN(0), OUT(0)), "dtypes differ", OUT(0));
    REQUIRE(is_shape2(c, OUT(0), sh(c, IN(0))->dim[0], sh(c, IN(1))->dim[0]), "output is not (N, out)", OUT(0));
    if (IN(2))
        REQUIRE(is_shape1(c, IN(2), sh(c, IN(1))->dim[0]) && same_type(c, IN(0), IN(2)), "bias is not (out)", IN(2));
    return OK;
}

static status check_linear_dx(const checker *c) {
    TRY(check_rows(c, IN(0)));
    REQUIRE(sh(c, IN(1))->rank == 2 && sh(c, IN(1))->dim[0] == sh(c, IN(0))->dim[1], "weight is not (out, in)", IN(1));
    REQUIRE(is_shape2(c, OUT(0), sh(c, IN(0))->dim[0], sh(c, IN(1))->dim[1]) && same_type(c, IN(0), OUT(0)),
            "dx is not (N, in)", OUT(0));
    return OK;
}

static status check_linear_dw(const checker *c) {
    const op *o = c->o;
    TRY(check_rows(c, IN(0)));
    TRY(check_rows(c, IN(1)));
    REQUIRE(sh(c, IN(0))->dim[0] == sh(c, IN(1))->dim[0] && same_type(c, IN(0), IN(1)), "rows differ", IN(1));
    REQUIRE(is_shape2(c, OUT(0), sh(c, IN(0))->dim[1], sh(c, IN(1))->dim[1]), "dw is not (out, in)", OUT(0));
    REQUIRE(o->kind == OP_LINEAR_DW || has_type(c, OUT(0), DTYPE_F32), "sums of products are fp32", OUT(0));
    return check_weight_grad(c, OUT(0), OUT(0));
}

static status check_add_bias(const checker *c) {
    TRY(check_rows(c, IN(0)));
    TRY(check_gain(c, IN(0), IN(1)));
    return check_like(c, IN(0), OUT(0));
}

static status check_bias_grad(const checker *c) {
    TRY(check_rows(c, IN(0)));
    REQUIRE(is_shape1(c, OUT(0), sh(c, IN(0))->dim[1]), "db is not (out)", OUT(0));
    return check_weight_grad(c, OUT(0), OUT(0));
}

static status check_quantize(const checker *c) {
    const shape *x = sh(c, IN(0));
    REQUIRE(has_type(c, IN(0), DTYPE_BF16) && x->rank == 2, "expected rows of bf16", IN(0));
    REQUIRE(is_number(c, IN(1)), "amax is not one fp32", IN(1));
    REQUIRE(OUT(0) || OUT(1), "neither q nor t is asked for", IN(0));
    if (OUT(0))
        REQUIRE(has_type(c, OUT(0), DTYPE_F8E4M3) && shape_equal(sh(c, OUT(0)), x), "q is not e4m3 (N, C)", OUT(0));
    if (OUT(1))
        REQUIRE(has_type(c, OUT(1), DTYPE_F8E4M3) && is_shape2(c, OUT(1), x->dim[1], x->dim[0]), "t is not e4m3 (C, N)",
                OUT(1));
    if (OUT(2)) REQUIRE(is_number(c, OUT(2)), "scale is not one fp32", OUT(2));
    return OK;
}

static status check_linear8(const checker *c) {
    for (int i = 0; i <= 2; i += 2) {
        REQUIRE(has_type(c, IN(i), DTYPE_F8E4M3) && sh(c, IN(i))->rank == 2, "expected rows of e4m3", IN(i));
        REQUIRE(is_number(c, IN(i + 1)), "scale is not one fp32", IN(i + 1));
    }
    REQUIRE(sh(c, IN(0))->dim[1] == sh(c, IN(2))->dim[1], "weight is not (out, in)", IN(2));
    REQUIRE(is_shape2(c, OUT(0), sh(c, IN(0))->dim[0], sh(c, IN(2))->dim[0]), "output is not (N, out)", OUT(0));
    REQUIRE(has_type(c, OUT(0), DTYPE_BF16) || has_type(c, OUT(0), DTYPE_F32), "output is not bf16 or fp32", OUT(0));
    if (IN(4))
        REQUIRE(is_shape1(c, IN(4), sh(c, IN(2))->dim[0]) && same_type(c, IN(4), OUT(0)), "bias is not (out)", IN(4));
    return OK;
}

/* ---- heads ----------------------------------------------------------------------------------------------------------- */

static status check_heads(const checker *c, value_id qkv) {
    const op_attr *a = &c->o->attr;
    TRY(check_rows(c, qkv));
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
    for (int i = 0; i < 2; i++)
        REQUIRE(is_shape1(c, gains[i], a->head_dim) && same_type(c, qkv, gains[i]),
                "gain is not (D) of the rows' dtype", gains[i]);
    TRY(check_like(c, qkv, y));
    REQUIRE(has_type(c, rstd, DTYPE_F32) && is_shape2(c, rstd, sh(c, qkv)->dim[0], a->n_heads + a->n_kv_heads),
            "rstd is not (N, H + G)", rstd);
    return OK;
}

static status check_rope_table(const checker *c) {
    const op *o = c->o;
    REQUIRE(has_type(c, OUT(0), DTYPE_F32) && is_shape2(c, OUT(0), o->attr.seq_len, o->attr.head_dim),
            "expected fp32 (T, D)", OUT(0));
    return OK;
}

/* What turns the heads of qkv. The table is longer than a row where rows are single tokens of a long sequence, as in
 * generation. */
static status check_rotation(const checker *c, value_id qkv, value_id table, value_id doc) {
    const op_attr *a = &c->o->attr;
    REQUIRE(has_type(c, table, DTYPE_F32) && sh(c, table)->rank == 2 && sh(c, table)->dim[0] >= a->seq_len &&
                sh(c, table)->dim[1] == a->head_dim,
            "table is not (T, D) or longer", table);
    REQUIRE(a->head_dim % 2 == 0, "rope needs an even head_dim", qkv);
    return check_tokens(c, doc, sh(c, qkv)->dim[0]);
}

static status check_rope(const checker *c) {
    TRY(check_heads(c, IN(0)));
    TRY(check_rotation(c, IN(0), IN(1), IN(2)));
    return check_like(c, IN(0), OUT(0));
}

static status check_qk_norm_rope(const checker *c) {
    TRY(check_qk_norm(c, IN(0), IN(1), IN(2), OUT(0), OUT(1)));
    return check_rotation(c, IN(0), IN(3), IN(4));
}

static status check_qk_norm_bwd(const checker *c) {
    TRY(check_qk_norm(c, IN(0), IN(1), IN(2), IN(4), IN(3)));
    TRY(check_like(c, IN(0), OUT(0)));
    TRY(check_weight_grad(c, IN(1), OUT(1)));
    return check_weight_grad(c, IN(2), OUT(2));
}

static status check_qk_norm_rope_bwd(const checker *c) {
    TRY(check_qk_norm(c, IN(0), IN(1), IN(2), IN(6), IN(5)));
    TRY(check_rotation(c, IN(0), IN(3), IN(4)));
    TRY(check_like(c, IN(0), OUT(0)));
    TRY(check_weight_grad(c, IN(1), OUT(1)));
    return check_weight_grad(c, IN(2), OUT(2));
}

/* ---- attention ------------------------------------------------------------------------------------------------------- */

static bool is_lse(const checker *c, value_id v) {
    const op_attr *a = &c->o->attr;
    return has_type(c, v, DTYPE_F32) && shape_count(sh(c, v)) == a->batch * a->seq_len * a->n_heads;
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

static status check_attention(const checker *c) {
    const op *o = c->o;
    TRY(check_heads(c, IN(0)));
    TRY(check_tokens(c, IN(1), sh(c, IN(0))->dim[0]));
    REQUIRE(is_shape2(c, OUT(0), sh(c, IN(0))->dim[0], (int64_t)o->attr.n_heads * o->attr.head_dim) &&
                same_type(c, IN(0), OUT(0)),
            "output is not (N, H D)", OUT(0));
    REQUIRE(has_type(c, OUT(1), DTYPE_F32) && shape_count(sh(c, OUT(1))) == sh(c, IN(0))->dim[0] * o->attr.n_heads,
            "lse is not (B, H, T)", OUT(1));
    return OK;
}

static status check_attention_bwd(const checker *c) {
    TRY(check_heads(c, IN(0)));
    TRY(check_tokens(c, IN(1), sh(c, IN(0))->dim[0]));
    TRY(check_like(c, IN(2), IN(4)));
    return check_like(c, IN(0), OUT(0));
}

/* One step of a ring. The first is with the rank's own keys, the last with those of the rank behind it. */
static status check_ring(const checker *c) {
    const op *o = c->o;
    const op_attr *a = &o->attr;
    TRY(check_heads(c, IN(0)));
    dtype t = program_get(c->p, IN(0))->type;
    TRY(check_kv(c, IN(1), t));
    TRY(check_tokens(c, IN(2), sh(c, IN(0))->dim[0]));
    REQUIRE(a->group_size > 1 && a->seq_len % 2 == 0 && a->index >= 0 && a->index < a->group_size && a->peer >= 0 &&
                a->peer < a->group_size,
            "expected a rank of a group, with two runs of tokens", IN(0));
    if (o->kind == OP_ATTENTION_RING_BWD) {
        TRY(check_query(c, IN(3), t));
        REQUIRE(is_lse(c, IN(4)), "lse is not (B, H, T)", IN(4));
        TRY(check_query(c, IN(5), t));
        TRY(check_query(c, OUT(0), DTYPE_F32));
        return check_kv(c, OUT(1), DTYPE_F32);
    }
    bool first = a->peer == a->index, last = a->peer == (a->index + 1) % a->group_size;
    REQUIRE(!IN(3) == first && !IN(4) == first, "the first step, and no other, follows none", IN(0));
    if (!first) TRY(check_query(c, IN(3), DTYPE_F32));
    REQUIRE(first || is_lse(c, IN(4)), "lse is not (B, H, T)", IN(4));
    TRY(check_query(c, OUT(0), last ? t : DTYPE_F32));
    REQUIRE(is_lse(c, OUT(1)), "lse is not (B, H, T)", OUT(1));
    return OK;
}

static status check_kv_part(const checker *c) {
    TRY(check_heads(c, IN(0)));
    return check_kv(c, OUT(0), program_get(c->p, IN(0))->type);
}

static status check_qkv_join(const checker *c) {
    TRY(check_heads(c, OUT(0)));
    TRY(check_query(c, IN(0), DTYPE_F32));
    return check_kv(c, IN(1), DTYPE_F32);
}

/* Pages of keys and values, and what finds a token in them. */
static status check_paged(const checker *c, value_id cache, value_id slots, value_id table, value_id doc) {
    const op *o = c->o;
    int64_t n = sh(c, IN(0))->dim[0];
    REQUIRE(o->attr.seq_len == 1, "every token is a row of its own: seq_len is 1", IN(0));
    REQUIRE(sh(c, cache)->rank == 4 && sh(c, cache)->dim[1] == 2 * (int64_t)o->attr.n_kv_heads &&
                sh(c, cache)->dim[2] > 0 && sh(c, cache)->dim[3] == o->attr.head_dim && same_type(c, IN(0), cache),
            "cache is not (pages, 2 G, S, D) of the rows' dtype", cache);
    TRY(check_tokens(c, slots, n));
    TRY(check_tokens(c, doc, n));
    REQUIRE(has_type(c, table, DTYPE_I32) && sh(c, table)->rank == 2, "expected int32 (slots, pages of a slot)", table);
    return OK;
}

static status check_kv_store(const checker *c) {
    TRY(check_heads(c, IN(0)));
    return check_paged(c, OUT(0), IN(1), IN(2), IN(3));
}

static status check_attention_paged(const checker *c) {
    const op *o = c->o;
    TRY(check_heads(c, IN(0)));
    REQUIRE(is_shape2(c, OUT(0), sh(c, IN(0))->dim[0], (int64_t)o->attr.n_heads * o->attr.head_dim) &&
                same_type(c, IN(0), OUT(0)),
            "output is not (N, H D)", OUT(0));
    return check_paged(c, IN(1), IN(2), IN(3), IN(4));
}

/* ---- elementwise ----------------------------------------------------------------------------------------------------- */

static status check_add(const checker *c) {
    TRY(check_rows(c, IN(0)));
    TRY(check_like(c, IN(0), IN(1)));
    return check_like(c, IN(0), OUT(0));
}

static status check_swiglu(const checker *c) {
    TRY(check_rows(c, IN(0)));
    REQUIRE(is_shape2(c, OUT(0), sh(c, IN(0))->dim[0], sh(c, IN(0))->dim[1] / 2) && same_type(c, IN(0), OUT(0)),
            "output is not (N, F)", OUT(0));
    return check_amax(c, OUT(0), OUT(1));
}

static status check_swiglu_bwd(const checker *c) {
    TRY(check_rows(c, IN(0)));
    REQUIRE(is_shape2(c, IN(1), sh(c, IN(0))->dim[0], sh(c, IN(0))->dim[1] / 2), "dy is not (N, F)", IN(1));
    TRY(check_amax(c, OUT(0), OUT(1)));
    return check_like(c, IN(0), OUT(0));
}

static status check_gelu(const checker *c) {
    TRY(check_rows(c, IN(0)));
    return check_like(c, IN(0), OUT(0));
}

static status check_gelu_bwd(const checker *c) {
    TRY(check_like(c, IN(0), IN(1)));
    return check_like(c, IN(0), OUT(0));
}

static status check_cast(const checker *c) {
    REQUIRE(shape_equal(sh(c, IN(0)), sh(c, OUT(0))), "shapes differ", OUT(0));
    REQUIRE(is_compute(c, IN(0)) && is_compute(c, OUT(0)), "cast is for fp32, bf16, fp16", OUT(0));
    return OK;
}

/* The same bytes may have two shapes: a rank's part of a bucket can be exactly one parameter. */
static status check_copy(const checker *c) {
    REQUIRE(shape_count(sh(c, IN(0))) == shape_count(sh(c, OUT(0))), "not as many elements as its partner", OUT(0));
    REQUIRE(same_type(c, IN(0), OUT(0)), "dtype differs from its partner", OUT(0));
    return OK;
}

/* ---- loss and logits ------------------------------------------------------------------------------------------------- */

static status check_loss(const checker *c) {
    const op *o = c->o;
    bool grad = o->kind == OP_UNEMBED_LOSS_GRAD;
    value_id h = IN(0), w = IN(1);
    TRY(check_rows(c, h));
    REQUIRE(sh(c, w)->rank == 2 && sh(c, w)->dim[1] == sh(c, h)->dim[1], "unembedding does not match the rows", w);
    REQUIRE(same_type(c, h, w), "unembedding dtype differs from the rows", w);
    TRY(check_tokens(c, IN(2), sh(c, h)->dim[0]));
    TRY(check_statistic(c, h, OUT(0)));
    REQUIRE(o->attr.chunk_bytes > 0, "needs a byte budget for its logits", h);
    if (!grad) {
        if (OUT(1)) TRY(check_tokens(c, OUT(1), sh(c, h)->dim[0]));
        return OK;
    }
    if (IN(3)) TRY(check_statistic(c, h, IN(3)));
    TRY(check_scalars(c, IN(4)));
    TRY(check_like(c, h, OUT(1)));
    return check_weight_grad(c, w, OUT(2));
}

static bool is_stats(const checker *c, value_id v, int64_t n_rows) {
    const shape *s = sh(c, v);
    int r = s->rank;
    if (!has_type(c, v, DTYPE_F64) || r < 2 || r > 3 || (r == 2) != (n_rows > 0)) return false;
    return (n_rows == 0 || s->dim[0] == n_rows) && (s->dim[r - 1] == 3 || s->dim[r - 1] == 4);
}

static status check_shared_loss(const checker *c) {
    const op *o = c->o;
    if (o->kind == OP_UNEMBED_JOIN) {
        REQUIRE(is_stats(c, IN(0), 0), "expected fp64 (R, N, 3 or 4)", IN(0));
        REQUIRE(o->attr.vocab > 0, "needs to know the vocabulary", IN(0));
        int64_t n = sh(c, IN(0))->dim[1];
        TRY(check_tokens(c, IN(1), n));
        REQUIRE(has_type(c, OUT(0), DTYPE_F32) && is_shape1(c, OUT(0), n), "expected fp32 (N)", OUT(0));
        REQUIRE(!OUT(1) || sh(c, IN(0))->dim[2] == 4, "the largest logits are not known", IN(0));
        return OUT(1) ? check_tokens(c, OUT(1), n) : OK;
    }
    value_id h = IN(0), w = IN(1);
    TRY(check_rows(c, h));
    REQUIRE(sh(c, w)->rank == 2 && sh(c, w)->dim[1] == sh(c, h)->dim[1] && same_type(c, h, w),
            "unembedding does not match the rows", w);
    TRY(check_tokens(c, IN(2), sh(c, h)->dim[0]));
    REQUIRE(o->attr.chunk_bytes > 0, "needs a byte budget for its logits", h);
    REQUIRE(o->attr.vocab > 0, "needs to know which ids it has", w);
    TRY(check_vocabulary(c, w));
    if (o->kind == OP_UNEMBED_STATS) {
        REQUIRE(is_stats(c, OUT(0), sh(c, h)->dim[0]), "expected fp64 (N, 3 or 4)", OUT(0));
        return OK;
    }
    if (IN(3)) TRY(check_statistic(c, h, IN(3)));
    TRY(check_scalars(c, IN(4)));
    REQUIRE(is_stats(c, IN(5), 0) && sh(c, IN(5))->dim[1] == sh(c, h)->dim[0], "expected fp64 (R, N, 3 or 4)", IN(5));
    TRY(check_like(c, h, OUT(0)));
    return check_weight_grad(c, w, OUT(1));
}

static status check_loss_reduce(const checker *c) {
    REQUIRE(has_type(c, IN(0), DTYPE_F32), "losses are fp32", IN(0));
    TRY(check_tokens(c, IN(1), sh(c, IN(0))->dim[0]));
    TRY(check_scalars(c, IN(3)));
    REQUIRE(has_type(c, OUT(0), DTYPE_F64) && is_shape1(c, OUT(0), SUM_COUNT), "expected the loss sums", OUT(0));
    return OK;
}

static status check_unembed_logits(const checker *c) {
    TRY(check_rows(c, IN(0)));
    REQUIRE(sh(c, IN(1))->rank == 2 && sh(c, IN(1))->dim[1] == sh(c, IN(0))->dim[1] && same_type(c, IN(0), IN(1)),
            "unembedding does not match the rows", IN(1));
    REQUIRE(has_type(c, OUT(0), DTYPE_F32) && sh(c, OUT(0))->rank == 2 && sh(c, OUT(0))->dim[1] == sh(c, IN(1))->dim[0],
            "expected fp32 (R, V)", OUT(0));
    if (IN(2)) return check_tokens(c, IN(2), sh(c, OUT(0))->dim[0]);
    REQUIRE(sh(c, OUT(0))->dim[0] == sh(c, IN(0))->dim[0], "without pick there are as many rows as in h", OUT(0));
    return OK;
}

static status check_logits_top(const checker *c) {
    REQUIRE(has_type(c, IN(0), DTYPE_F32) && sh(c, IN(0))->rank == 2, "expected fp32 (R, V)", IN(0));
    TRY(check_tokens(c, OUT(0), sh(c, IN(0))->dim[0]));
    REQUIRE(has_type(c, OUT(1), DTYPE_F64) && is_shape2(c, OUT(1), sh(c, IN(0))->dim[0], 2), "expected fp64 (R, 2)",
            OUT(1));
    return OK;
}

/* ---- update ---------------------------------------------------------------------------------------------------------- */

/* An op on part of a parameter: blocks of the norm and of the rounding noise are never cut. */
static status check_part(const checker *c, value_id v) {
    int64_t first = c->o->attr.first_element;
    REQUIRE(first >= 0 && first % NORM_BLOCK == 0, "a part must start at a multiple of NORM_BLOCK", v);
    return OK;
}

static status check_accumulate(const checker *c) {
    REQUIRE(shape_equal(sh(c, IN(0)), sh(c, OUT(0))), "shapes differ", OUT(0));
    TRY(check_scalars(c, IN(1)));
    TRY(check_part(c, OUT(0)));
    return check_weight_grad(c, OUT(0), OUT(0));
}

static status check_grad_sumsq(const checker *c) {
    TRY(check_part(c, IN(0)));
    REQUIRE(has_type(c, OUT(0), DTYPE_F64) && is_shape1(c, OUT(0), divide_up(shape_count(sh(c, IN(0))), NORM_BLOCK)),
            "one fp64 sum per block", OUT(0));
    return OK;
}

static status check_norm_sum(const checker *c) {
    REQUIRE(has_type(c, IN(0), DTYPE_F64) && has_type(c, OUT(0), DTYPE_F64) && is_shape1(c, OUT(0), 1),
            "expected fp64 partials and one fp64", OUT(0));
    return OK;
}

static status check_clip(const checker *c) {
    REQUIRE(has_type(c, IN(0), DTYPE_F64) && has_type(c, IN(1), DTYPE_F64) && is_shape1(c, IN(1), SUM_COUNT),
            "expected fp64 sums", IN(1));
    TRY(check_scalars(c, IN(2)));
    REQUIRE(has_type(c, OUT(0), DTYPE_F32) && is_shape1(c, OUT(0), CLIP_COUNT), "expected the clip value", OUT(0));
    return OK;
}

static status check_adamw(const checker *c) {
    TRY(check_part(c, OUT(0)));
    value_id g = IN(0), p = OUT(0), master = OUT(1), m = OUT(2), v = OUT(3), m_scale = OUT(4), v_scale = OUT(5);
    REQUIRE(has_type(c, IN(1), DTYPE_F32) && is_shape1(c, IN(1), CLIP_COUNT), "expected the clip value", IN(1));
    TRY(check_scalars(c, IN(2)));
    REQUIRE(shape_equal(sh(c, g), sh(c, p)), "gradient shape differs from the parameter", g);
    if (master) {
        REQUIRE(has_type(c, master, DTYPE_F32) && shape_equal(sh(c, master), sh(c, p)), "master must be fp32", master);
        REQUIRE(has_type(c, p, DTYPE_BF16) || has_type(c, p, DTYPE_F16), "only a 16-bit parameter has a master", p);
        REQUIRE(has_type(c, g, DTYPE_F32), "with a master, the gradient is fp32", g);
    } else {
        REQUIRE(same_type(c, p, g), "without a master parameter and gradient have one dtype", g);
        REQUIRE(has_type(c, p, DTYPE_F32) || has_type(c, p, DTYPE_BF16), "fp16 parameters need a master", p);
    }
    REQUIRE(shape_equal(sh(c, m), sh(c, p)) && shape_equal(sh(c, v), sh(c, p)),
            "state shape differs from the parameter", m);
    if (!has_type(c, m, DTYPE_I8)) {
        REQUIRE(same_type(c, m, v), "m and v differ in dtype", v);
        REQUIRE(has_type(c, m, DTYPE_F32) || has_type(c, m, DTYPE_BF16), "states are fp32, bf16 or int8", m);
        REQUIRE(!m_scale && !v_scale, "only 8-bit states have scales", m_scale ? m_scale : v_scale);
        return OK;
    }
    int64_t n_blocks = divide_up(shape_count(sh(c, p)), STATE_BLOCK);
    REQUIRE(has_type(c, v, DTYPE_U8), "v beside an int8 m is uint8", v);
    REQUIRE(m_scale && has_type(c, m_scale, DTYPE_F32) && is_shape1(c, m_scale, n_blocks), "one fp32 scale per block",
            m_scale);
    REQUIRE(v_scale && has_type(c, v_scale, DTYPE_F32) && is_shape1(c, v_scale, n_blocks), "one fp32 scale per block",
            v_scale);
    return OK;
}

/* ---- ranks ----------------------------------------------------------------------------------------------------------- */

static status check_sum_parts(const checker *c) {
    const op *o = c->o;
    const shape *parts = sh(c, IN(1));
    TRY(check_weight_grad(c, IN(0), OUT(0)));
    REQUIRE(same_type(c, IN(0), OUT(0)) && same_type(c, IN(0), IN(1)), "dtypes differ", IN(1));
    REQUIRE(parts->rank == 2 && parts->dim[1] <= shape_count(sh(c, IN(0))), "parts are not (P, end of x)", IN(1));
    REQUIRE(o->attr.first_part >= 0 && o->attr.n_parts > 0 && o->attr.first_part + o->attr.n_parts <= parts->dim[0],
            "there are not so many parts", IN(1));
    return OK;
}

static status check_parts(const checker *c) {
    const op *o = c->o;
    const op_attr *a = &o->attr;
    value_id x = a->inverse ? OUT(0) : IN(0), y = a->inverse ? IN(0) : OUT(0); /* x: in one piece */
    TRY(check_rows(c, x));
    REQUIRE(same_type(c, x, y), "dtypes differ", y);
    REQUIRE(a->n_parts > 1, "expected several parts", y);
    if (o->kind == OP_TOKEN_PARTS) {
        REQUIRE(a->seq_len % (2 * a->n_parts) == 0 && sh(c, x)->dim[0] == a->batch * a->seq_len,
                "expected rows (B T, W), two chunks of T for each part", x);
        return check_like(c, x, y);
    }
    REQUIRE(a->n_heads % a->n_parts == 0 && a->n_kv_heads % a->n_parts == 0 &&
                sh(c, x)->dim[1] == (int64_t)(a->n_heads + 2 * a->n_kv_heads) * a->head_dim,
            "expected heads that can be shared", x);
    REQUIRE(is_shape2(c, y, sh(c, x)->dim[0] * a->n_parts, sh(c, x)->dim[1] / a->n_parts), "expected (P N, W / P)", y);
    return OK;
}

/* Groups of one rank are none: such an op is not written. */
static status check_comm(const checker *c) {
    const op *o = c->o;
    int64_t n = o->attr.group_size;
    REQUIRE(n > 1 && o->attr.axis < AXIS_COUNT, "communication needs a group of two ranks or more", IN(0));
    switch (o->kind) {
    case OP_SEND:
    case OP_RECV:
        REQUIRE(o->attr.peer >= 0 && o->attr.peer < n, "the peer is no rank of the group", NO_VALUE);
        return OK;
    case OP_ALL_GATHER:
        REQUIRE(shape_count(sh(c, OUT(0))) == n * shape_count(sh(c, IN(0))), "expected one part per rank", OUT(0));
        break;
    case OP_REDUCE_SCATTER:
        if (IN(1)) TRY(check_scalars(c, IN(1)));
        REQUIRE(shape_count(sh(c, IN(0))) == n * shape_count(sh(c, OUT(0))), "expected one part per rank", IN(0));
        break;
    default:
        REQUIRE(shape_equal(sh(c, IN(0)), sh(c, OUT(0))), "shapes differ", OUT(0));
        REQUIRE(o->kind != OP_ALL_TO_ALL || shape_count(sh(c, IN(0))) % n == 0, "expected one part per rank", IN(0));
    }
    REQUIRE(same_type(c, IN(0), OUT(0)), "dtypes differ", OUT(0));
    bool sums = o->kind == OP_REDUCE_SCATTER || o->kind == OP_ALL_REDUCE;
    REQUIRE(!sums || is_compute(c, IN(0)) || has_type(c, IN(0), DTYPE_F64), "sums are of floats", IN(0));
    return OK;
}

/* ---- all of them ----------------------------------------------------------------------------------------------------- */

/* How many rows there are, where that is known only when it runs. */
static status check_row_count(const checker *c) {
    value_id rows = c->o->rows;
    REQUIRE(!rows || (has_type(c, rows, DTYPE_I32) && is_shape1(c, rows, 1) && c->p->values[rows].persistent),
            "rows is not a persistent int32 (1)", rows);
    return OK;
}

status verify_op(const checker *c) {
    TRY(check_row_count(c));
    switch (c->o->kind) {
    case OP_ROPE_TABLE: return check_rope_table(c);
    case OP_EMBED: return check_embed(c);
    case OP_RMSNORM: return check_rmsnorm(c);
    case OP_LAYERNORM: return check_layernorm(c);
    case OP_ADD: return check_add(c);
    case OP_ADD_RMSNORM: return check_add_rmsnorm(c);
    case OP_ADD_LAYERNORM: return check_add_layernorm(c);
    case OP_LINEAR: return check_linear(c);
    case OP_ADD_BIAS: return check_add_bias(c);
    case OP_QK_NORM: return check_qk_norm(c, IN(0), IN(1), IN(2), OUT(0), OUT(1));
    case OP_ROPE: return check_rope(c);
    case OP_QK_NORM_ROPE: return check_qk_norm_rope(c);
    case OP_ATTENTION: return check_attention(c);
    case OP_KV_PART: return check_kv_part(c);
    case OP_ATTENTION_RING:
    case OP_ATTENTION_RING_BWD: return check_ring(c);
    case OP_QKV_JOIN: return check_qkv_join(c);
    case OP_KV_STORE: return check_kv_store(c);
    case OP_ATTENTION_PAGED: return check_attention_paged(c);
    case OP_UNEMBED_LOGITS: return check_unembed_logits(c);
    case OP_LOGITS_TOP: return check_logits_top(c);
    case OP_SWIGLU: return check_swiglu(c);
    case OP_GELU: return check_gelu(c);
    case OP_UNEMBED_LOSS:
    case OP_UNEMBED_LOSS_GRAD: return check_loss(c);
    case OP_UNEMBED_STATS:
    case OP_UNEMBED_JOIN:
    case OP_UNEMBED_GRAD: return check_shared_loss(c);
    case OP_SUM_PARTS: return check_sum_parts(c);
    case OP_HEAD_PARTS:
    case OP_TOKEN_PARTS: return check_parts(c);
    case OP_NORM_SUM: return check_norm_sum(c);
    case OP_LOSS_REDUCE: return check_loss_reduce(c);
    case OP_LINEAR_DX: return check_linear_dx(c);
    case OP_LINEAR_DW:
    case OP_LINEAR_DW_ADD: return check_linear_dw(c);
    case OP_BIAS_GRAD: return check_bias_grad(c);
    case OP_RMSNORM_BWD: return check_rmsnorm_bwd(c);
    case OP_LAYERNORM_BWD: return check_layernorm_bwd(c);
    case OP_QK_NORM_BWD: return check_qk_norm_bwd(c);
    case OP_QK_NORM_ROPE_BWD: return check_qk_norm_rope_bwd(c);
    case OP_ATTENTION_BWD: return check_attention_bwd(c);
    case OP_SWIGLU_BWD: return check_swiglu_bwd(c);
    case OP_GELU_BWD: return check_gelu_bwd(c);
    case OP_EMBED_BWD:
    case OP_EMBED_BWD_ADD: return check_embed_bwd(c);
    case OP_POSITION_BWD: return check_position_bwd(c);
    case OP_ACCUMULATE: return check_accumulate(c);
    case OP_GRAD_SUMSQ: return check_grad_sumsq(c);
    case OP_CLIP: return check_clip(c);
    case OP_ADAMW: return check_adamw(c);
    case OP_ABSMAX: return check_amax(c, IN(0), OUT(0));
    case OP_QUANTIZE: return check_quantize(c);
    case OP_LINEAR8: return check_linear8(c);
    case OP_CAST: return check_cast(c);
    case OP_COPY: return check_copy(c);
    case OP_ALL_GATHER:
    case OP_REDUCE_SCATTER:
    case OP_ALL_REDUCE:
    case OP_ALL_TO_ALL:
    case OP_SHIFT:
    case OP_SEND:
    case OP_RECV: return check_comm(c);
    case OP_COUNT: break;
    }
    return verify_fail(c, "unknown op", NO_VALUE);
}
