/* rules_step.c - what the ops around the layers ask of their operands, and what each costs: loss and logits, gradients and
 * update, messages between ranks, copies. The layers themselves are in rules_layers.c. */
#include "program/rules.h"

/* ---- loss and logits ------------------------------------------------------------------------------------------------- */

static status check_unembedding(const checker *c, value_id h, value_id w) {
    TRY(verify_rows(c, h));
    REQUIRE(sh(c, w)->rank == 2 && sh(c, w)->dim[1] == sh(c, h)->dim[1], "unembedding does not match the rows", w);
    REQUIRE(same_type(c, h, w), "unembedding dtype differs from the rows", w);
    return OK;
}

static status check_loss(const checker *c, value_id h, value_id w, value_id targets) {
    TRY(check_unembedding(c, h, w));
    TRY(verify_tokens(c, targets, sh(c, h)->dim[0]));
    REQUIRE(c->o->attr.chunk_bytes > 0, "needs a byte budget for its logits", h);
    return OK;
}

static status check_loss_grad(const checker *c, value_id h, value_id w, value_id weights, value_id scalars, value_id dh,
                              value_id dw) {
    if (weights) TRY(verify_statistic(c, h, weights));
    TRY(verify_scalars(c, scalars));
    TRY(verify_like(c, h, dh));
    return verify_weight_grad(c, w, dw);
}

static double logits(const program *p, const op *o) { /* h (N, C), w (V, C) */
    return 2.0 * rows_of(p, o->in[LOGITS_H]) * count_of(p, o->in[LOGITS_W]);
}
/* dh and dw, where it is asked for; its logits are those of STATS once more, which the model does not ask for. */
static double logits_grad(const program *p, const op *o) {
    return (o->out[UNEMBED_GRAD_DW] ? 4.0 : 2.0) * rows_of(p, o->in[UNEMBED_GRAD_H]) *
           count_of(p, o->in[UNEMBED_GRAD_W]);
}
static double logits_and_grad(const program *p, const op *o) {
    return (o->out[UNEMBED_LOSS_GRAD_DW] ? 6.0 : 4.0) * rows_of(p, o->in[UNEMBED_LOSS_GRAD_H]) *
           count_of(p, o->in[UNEMBED_LOSS_GRAD_W]);
}
static double picked_logits(const program *p, const op *o) { /* only the rows that are sampled */
    return 2.0 * rows_of(p, o->out[UNEMBED_LOGITS_LOGITS]) * count_of(p, o->in[UNEMBED_LOGITS_W]);
}

status verify_UNEMBED_LOSS(const checker *c) {
    value_id h = IN(UNEMBED_LOSS_H), argmax = OUT(UNEMBED_LOSS_ARGMAX);
    TRY(check_loss(c, h, IN(UNEMBED_LOSS_W), IN(UNEMBED_LOSS_TARGETS)));
    TRY(verify_statistic(c, h, OUT(UNEMBED_LOSS_LOSSES)));
    return argmax ? verify_tokens(c, argmax, sh(c, h)->dim[0]) : OK;
}
const op_cost cost_UNEMBED_LOSS = {FLOPS(logits)};
const op_logits logits_UNEMBED_LOSS = {.dw = -1};

status verify_UNEMBED_LOSS_GRAD(const checker *c) {
    value_id h = IN(UNEMBED_LOSS_GRAD_H), w = IN(UNEMBED_LOSS_GRAD_W);
    TRY(check_loss(c, h, w, IN(UNEMBED_LOSS_GRAD_TARGETS)));
    TRY(verify_statistic(c, h, OUT(UNEMBED_LOSS_GRAD_LOSSES)));
    return check_loss_grad(c, h, w, IN(UNEMBED_LOSS_GRAD_WEIGHTS), IN(UNEMBED_LOSS_GRAD_SCALARS),
                           OUT(UNEMBED_LOSS_GRAD_DH), OUT(UNEMBED_LOSS_GRAD_DW));
}
const op_cost cost_UNEMBED_LOSS_GRAD = {FLOPS(logits_and_grad)};
const op_logits logits_UNEMBED_LOSS_GRAD = {.dw = UNEMBED_LOSS_GRAD_DW};

/* Sides are multiples of 16, as products of 8 bits need them; the transposes repeat the tensors. */
status verify_UNEMBED8_LOSS_GRAD(const checker *c) {
    value_id h = IN(UNEMBED8_LOSS_GRAD_H), w = IN(UNEMBED8_LOSS_GRAD_W), dh = OUT(UNEMBED8_LOSS_GRAD_DH);
    value_id h_turned = IN(UNEMBED8_LOSS_GRAD_H_TURNED), w_turned = IN(UNEMBED8_LOSS_GRAD_W_TURNED);
    value_id weights = IN(UNEMBED8_LOSS_GRAD_WEIGHTS), dw = OUT(UNEMBED8_LOSS_GRAD_DW);
    const shape *rows = sh(c, h), *words = sh(c, w);
    REQUIRE(has_type(c, h, DTYPE_F8E4M3) && rows->rank == 2, "expected rows of e4m3", h);
    REQUIRE(has_type(c, w, DTYPE_F8E4M3) && words->rank == 2 && words->dim[1] == rows->dim[1],
            "unembedding is not e4m3 (V, C)", w);
    REQUIRE(rows->dim[0] % 16 == 0 && rows->dim[1] % 16 == 0 && words->dim[0] % 16 == 0,
            "tokens, width or vocabulary is no multiple of 16", w);
    REQUIRE(is_number(c, IN(UNEMBED8_LOSS_GRAD_H_SCALE)), "scale is not one fp32", IN(UNEMBED8_LOSS_GRAD_H_SCALE));
    REQUIRE(is_number(c, IN(UNEMBED8_LOSS_GRAD_W_SCALE)), "scale is not one fp32", IN(UNEMBED8_LOSS_GRAD_W_SCALE));
    REQUIRE(has_type(c, w_turned, DTYPE_F8E4M3) && is_shape2(c, w_turned, words->dim[1], words->dim[0]),
            "the turned unembedding is not e4m3 (C, V)", w_turned);
    REQUIRE(!dw || h_turned, "dw needs the turned rows", h);
    if (h_turned)
        REQUIRE(has_type(c, h_turned, DTYPE_F8E4M3) && is_shape2(c, h_turned, rows->dim[1], rows->dim[0]),
                "the turned rows are not e4m3 (C, N)", h_turned);
    TRY(verify_tokens(c, IN(UNEMBED8_LOSS_GRAD_TARGETS), rows->dim[0]));
    REQUIRE(c->o->attr.chunk_bytes > 0, "needs a byte budget for its logits", h);
    if (weights) TRY(verify_statistic(c, h, weights));
    TRY(verify_scalars(c, IN(UNEMBED8_LOSS_GRAD_SCALARS)));
    TRY(verify_statistic(c, h, OUT(UNEMBED8_LOSS_GRAD_LOSSES)));
    REQUIRE(has_type(c, dh, DTYPE_BF16) && shape_equal(sh(c, dh), rows), "dh is not bf16 (N, C)", dh);
    return verify_weight_grad(c, w, dw);
}
SAME_PLACE(UNEMBED_LOSS_GRAD_DW, UNEMBED8_LOSS_GRAD_DW);
const op_cost cost_UNEMBED8_LOSS_GRAD = {FLOPS(logits_and_grad)};
const op_logits logits_UNEMBED8_LOSS_GRAD = {.dw = UNEMBED8_LOSS_GRAD_DW};

/* Of n_rows tokens of this rank; 0: of all ranks, behind each other. */
static bool is_stats(const checker *c, value_id v, int64_t n_rows) {
    const shape *s = sh(c, v);
    int r = s->rank;
    if (!has_type(c, v, DTYPE_F64) || r < 2 || r > 3 || (r == 2) != (n_rows > 0)) return false;
    return (n_rows == 0 || s->dim[0] == n_rows) && (s->dim[r - 1] == 3 || s->dim[r - 1] == 4);
}

static status check_shared_loss(const checker *c, value_id h, value_id w, value_id targets) {
    TRY(check_loss(c, h, w, targets));
    REQUIRE(c->o->attr.vocab > 0, "needs to know which ids it has", w);
    return verify_vocabulary(c, w);
}

status verify_UNEMBED_STATS(const checker *c) {
    value_id h = IN(UNEMBED_STATS_H), stats = OUT(UNEMBED_STATS_STATS);
    TRY(check_shared_loss(c, h, IN(UNEMBED_STATS_W), IN(UNEMBED_STATS_TARGETS)));
    REQUIRE(is_stats(c, stats, sh(c, h)->dim[0]), "expected fp64 (N, 3 or 4)", stats);
    return OK;
}
const op_cost cost_UNEMBED_STATS = {FLOPS(logits)};
const op_logits logits_UNEMBED_STATS = {.dw = -1};

status verify_UNEMBED_JOIN(const checker *c) {
    value_id stats = IN(UNEMBED_JOIN_STATS), losses = OUT(UNEMBED_JOIN_LOSSES), argmax = OUT(UNEMBED_JOIN_ARGMAX);
    REQUIRE(is_stats(c, stats, 0), "expected fp64 (R, N, 3 or 4)", stats);
    REQUIRE(c->o->attr.vocab > 0, "needs to know the vocabulary", stats);
    int64_t n = sh(c, stats)->dim[1];
    TRY(verify_tokens(c, IN(UNEMBED_JOIN_TARGETS), n));
    REQUIRE(has_type(c, losses, DTYPE_F32) && is_shape1(c, losses, n), "expected fp32 (N)", losses);
    REQUIRE(!argmax || sh(c, stats)->dim[2] == 4, "the largest logits are not known", stats);
    return argmax ? verify_tokens(c, argmax, n) : OK;
}
const op_cost cost_UNEMBED_JOIN = {PER_INPUT(20, UNEMBED_JOIN_STATS)};

status verify_UNEMBED_GRAD(const checker *c) {
    value_id h = IN(UNEMBED_GRAD_H), w = IN(UNEMBED_GRAD_W), stats = IN(UNEMBED_GRAD_STATS);
    TRY(check_shared_loss(c, h, w, IN(UNEMBED_GRAD_TARGETS)));
    REQUIRE(is_stats(c, stats, 0) && sh(c, stats)->dim[1] == sh(c, h)->dim[0], "expected fp64 (R, N, 3 or 4)", stats);
    return check_loss_grad(c, h, w, IN(UNEMBED_GRAD_WEIGHTS), IN(UNEMBED_GRAD_SCALARS), OUT(UNEMBED_GRAD_DH),
                           OUT(UNEMBED_GRAD_DW));
}
const op_cost cost_UNEMBED_GRAD = {FLOPS(logits_grad)};
const op_logits logits_UNEMBED_GRAD = {.dw = UNEMBED_GRAD_DW, .again = true};

/* per_loss numbers of each of several losses, of which this op is one. */
static status check_sums(const checker *c, value_id sums, int64_t per_loss) {
    const op_attr *a = &c->o->attr;
    int64_t n = MAX(a->n_losses, 1);
    REQUIRE(has_type(c, sums, DTYPE_F64) && sh(c, sums)->rank == 1 && sh(c, sums)->dim[0] >= per_loss * n,
            "expected the loss sums", sums);
    REQUIRE(a->loss >= 0 && a->loss < n, "there is no such loss", sums);
    return OK;
}

status verify_SELECT_TOKENS(const checker *c) {
    value_id losses = IN(SELECT_TOKENS_LOSSES), before = IN(SELECT_TOKENS_BEFORE);
    value_id weights = OUT(SELECT_TOKENS_WEIGHTS);
    const op_attr *a = &c->o->attr;
    REQUIRE(a->selection.kind > SELECTION_NONE && a->selection.kind < SELECTION_KIND_COUNT, "no such selection",
            losses);
    REQUIRE(a->selection.share > 0 && a->selection.share <= 1, "selects no share of its tokens", losses);
    int64_t own = a->batch * a->seq_len, ranks = MAX(a->group_size, 1);
    REQUIRE(has_type(c, losses, DTYPE_F32) && is_shape1(c, losses, ranks * own), "losses are fp32 (N), of every rank",
            losses);
    REQUIRE(a->index >= 0 && a->index < ranks && (ranks == 1 || a->seq_len % 2 == 0), "there is no such rank", losses);
    TRY(verify_like(c, losses, IN(SELECT_TOKENS_REFERENCE)));
    TRY(verify_tokens(c, IN(SELECT_TOKENS_TARGETS), ranks * own));
    REQUIRE(has_type(c, weights, DTYPE_F32) && is_shape1(c, weights, own), "weights are fp32 (N)", weights);
    if (before) TRY(verify_like(c, weights, before));
    TRY(verify_scalars(c, IN(SELECT_TOKENS_SCALARS)));
    return check_sums(c, OUT(SELECT_TOKENS_SUMS), SUM_COUNT + SELECT_SUM_COUNT);
}
const op_cost cost_SELECT_TOKENS = {PER_INPUT(10, SELECT_TOKENS_LOSSES)};

status verify_LOSS_REDUCE(const checker *c) {
    value_id losses = IN(LOSS_REDUCE_LOSSES), sums = OUT(LOSS_REDUCE_SUMS);
    REQUIRE(has_type(c, losses, DTYPE_F32), "losses are fp32", losses);
    TRY(verify_tokens(c, IN(LOSS_REDUCE_TARGETS), sh(c, losses)->dim[0]));
    TRY(verify_scalars(c, IN(LOSS_REDUCE_SCALARS)));
    return check_sums(c, sums, SUM_COUNT);
}
const op_cost cost_LOSS_REDUCE = {PER_INPUT(4, LOSS_REDUCE_LOSSES)};

status verify_PREFERENCE(const checker *c) {
    value_id losses = IN(PREFERENCE_LOSSES), reference = IN(PREFERENCE_REFERENCE), sums = OUT(PREFERENCE_SUMS);
    const op_attr *a = &c->o->attr;
    preference_kind k = a->preference.kind;
    value_id weights = OUT(PREFERENCE_WEIGHTS);
    int64_t own = a->batch * a->seq_len, ranks = MAX(a->group_size, 1), N = ranks * own;
    REQUIRE(k > PREFERENCE_NONE && k < PREFERENCE_KIND_COUNT, "no such loss", losses);
    REQUIRE(has_type(c, losses, DTYPE_F32) && is_shape1(c, losses, N), "losses are fp32 (N), of whole rows", losses);
    REQUIRE(a->index >= 0 && a->index < ranks && (ranks == 1 || a->seq_len % 2 == 0), "there is no such rank", losses);
    REQUIRE(preference_compares(k) == (reference != NO_VALUE), "a reference where the loss has none, or the reverse",
            losses);
    if (reference) TRY(verify_like(c, losses, reference));
    TRY(verify_tokens(c, IN(PREFERENCE_SEGMENTS), N));
    TRY(verify_scalars(c, IN(PREFERENCE_SCALARS)));
    REQUIRE(has_type(c, weights, DTYPE_F32) && is_shape1(c, weights, own), "weights are fp32, of this rank's tokens",
            weights);
    value_id z = IN(PREFERENCE_Z);
    REQUIRE(!z || (k == PREFERENCE_KTO && has_type(c, z, DTYPE_F64) && is_shape1(c, z, 1)), "z is fp64 (1), of kto", z);
    REQUIRE(has_type(c, sums, DTYPE_F64) && is_shape1(c, sums, PREFERENCE_SUM_COUNT), "expected the loss sums", sums);
    return OK;
}
const op_cost cost_PREFERENCE = {PER_INPUT(4, PREFERENCE_LOSSES)};

status verify_CRITIC(const checker *c) {
    value_id values = IN(CRITIC_VALUES), sums = OUT(CRITIC_SUMS);
    const op_attr *a = &c->o->attr;
    REQUIRE(a->critic.kind > CRITIC_NONE && a->critic.kind < CRITIC_KIND_COUNT, "no such loss", values);
    int64_t ranks = MAX(a->group_size, 1);
    REQUIRE(has_type(c, values, DTYPE_F32) && is_shape1(c, values, ranks * a->batch * a->seq_len),
            "values are fp32 (N), of whole rows", values);
    REQUIRE(a->index >= 0 && a->index < ranks && (ranks == 1 || a->seq_len % 2 == 0), "there is no such rank", values);
    TRY(verify_tokens(c, IN(CRITIC_SEGMENTS), sh(c, values)->dim[0]));
    TRY(verify_scalars(c, IN(CRITIC_SCALARS)));
    TRY(verify_like(c, values, OUT(CRITIC_DVALUES)));
    REQUIRE(has_type(c, sums, DTYPE_F64) && is_shape1(c, sums, CRITIC_SUM_COUNT), "expected the loss sums", sums);
    return OK;
}
const op_cost cost_CRITIC = {PER_INPUT(10, CRITIC_VALUES)};

status verify_POLICY(const checker *c) {
    const policy_options *o = &c->o->attr.policy;
    value_id losses = IN(POLICY_LOSSES), sums = OUT(POLICY_SUMS);
    const value_id like[] = {IN(POLICY_OLD), IN(POLICY_REFERENCE), IN(POLICY_ADVANTAGES), IN(POLICY_ROLLOUT),
                             OUT(POLICY_WEIGHTS)};
    int64_t N = sh(c, losses)->dim[0];
    REQUIRE(o->on && o->level < POLICY_LEVEL_COUNT && o->mean < POLICY_MEAN_COUNT && o->temperature > 0, "no such loss",
            losses);
    REQUIRE(has_type(c, losses, DTYPE_F32) && is_shape1(c, losses, N), "losses are fp32 (N)", losses);
    REQUIRE(N == c->o->attr.batch * c->o->attr.seq_len, "losses are not of whole rows", losses);
    REQUIRE(o->is_old == (IN(POLICY_OLD) != NO_VALUE), "old log-probabilities where there are none, or the reverse",
            losses);
    REQUIRE((o->beta > 0) == (IN(POLICY_REFERENCE) != NO_VALUE), "a reference where the loss has none, or the reverse",
            losses);
    REQUIRE((o->cap > 0) == (IN(POLICY_ROLLOUT) != NO_VALUE), "importance without a rollout, or the reverse", losses);
    for (size_t i = 0; i < ARRAY_LENGTH(like); i++)
        if (like[i]) TRY(verify_like(c, losses, like[i]));
    TRY(verify_tokens(c, IN(POLICY_SEGMENTS), N));
    TRY(verify_scalars(c, IN(POLICY_SCALARS)));
    REQUIRE(has_type(c, sums, DTYPE_F64) && is_shape1(c, sums, POLICY_SUM_COUNT), "expected the loss sums", sums);
    return OK;
}
const op_cost cost_POLICY = {PER_INPUT(12, POLICY_LOSSES)};

status verify_UNEMBED_LOGITS(const checker *c) {
    value_id h = IN(UNEMBED_LOGITS_H), w = IN(UNEMBED_LOGITS_W), pick = IN(UNEMBED_LOGITS_PICK);
    value_id logits = OUT(UNEMBED_LOGITS_LOGITS);
    TRY(check_unembedding(c, h, w));
    REQUIRE(has_type(c, logits, DTYPE_F32) && sh(c, logits)->rank == 2 && sh(c, logits)->dim[1] == sh(c, w)->dim[0],
            "expected fp32 (R, V)", logits);
    if (pick) return verify_tokens(c, pick, sh(c, logits)->dim[0]);
    REQUIRE(sh(c, logits)->dim[0] == sh(c, h)->dim[0], "without pick there are as many rows as in h", logits);
    return OK;
}
const op_cost cost_UNEMBED_LOGITS = {FLOPS(picked_logits)};
op_product product_UNEMBED_LOGITS(const program *p, const op *o) {
    value_id w = o->in[UNEMBED_LOGITS_W];
    return (op_product){.m = rows_in(p, o->out[UNEMBED_LOGITS_LOGITS]), .n = rows_in(p, w), .k = columns_in(p, w)};
}

status verify_DRAW_TOKENS(const checker *c) {
    value_id logits = IN(DRAW_TOKENS_LOGITS), draws = IN(DRAW_TOKENS_DRAWS), drawn = OUT(DRAW_TOKENS_DRAWN);
    REQUIRE(has_type(c, logits, DTYPE_F32) && sh(c, logits)->rank == 2, "expected fp32 (R, V)", logits);
    int64_t R = sh(c, logits)->dim[0];
    REQUIRE(has_type(c, draws, DTYPE_F64) && is_shape2(c, draws, R, DRAW_COUNT), "expected fp64 (R, 2)", draws);
    REQUIRE(has_type(c, drawn, DTYPE_F64) && is_shape2(c, drawn, R, DRAWN_COUNT), "expected fp64 (R, 6)", drawn);
    return OK;
}
const op_cost cost_DRAW_TOKENS = {PER_INPUT(12, DRAW_TOKENS_LOGITS)};

/* ---- gradients and update -------------------------------------------------------------------------------------------- */

/* An op on part of a parameter: blocks of the norm and of the rounding noise are never cut. */
static status check_part(const checker *c, value_id v) {
    int64_t first = c->o->attr.first_element;
    REQUIRE(first >= 0 && first % NORM_BLOCK == 0, "a part must start at a multiple of NORM_BLOCK", v);
    return OK;
}

static double accumulate(const program *p, const op *o) {
    return count_of(p, o->in[ACCUMULATE_X]) + NOISE_FLOPS * op_noise(p, o);
}

status verify_ACCUMULATE(const checker *c) {
    value_id acc = OUT(ACCUMULATE_ACC);
    REQUIRE(shape_equal(sh(c, IN(ACCUMULATE_X)), sh(c, acc)), "shapes differ", acc);
    TRY(verify_scalars(c, IN(ACCUMULATE_SCALARS)));
    TRY(check_part(c, acc));
    return verify_weight_grad(c, acc, acc);
}
const op_cost cost_ACCUMULATE = {FLOPS(accumulate)};

status verify_SUM_PARTS(const checker *c) {
    const op_attr *a = &c->o->attr;
    value_id x = IN(SUM_PARTS_X), parts = IN(SUM_PARTS_PARTS), y = OUT(SUM_PARTS_Y);
    TRY(verify_weight_grad(c, x, y));
    REQUIRE(same_type(c, x, y) && same_type(c, x, parts), "dtypes differ", parts);
    REQUIRE(sh(c, parts)->rank == 2 && sh(c, parts)->dim[1] <= shape_count(sh(c, x)), "parts are not (P, end of x)",
            parts);
    REQUIRE(a->first_part >= 0 && a->n_parts > 0 && a->first_part + a->n_parts <= sh(c, parts)->dim[0],
            "there are not so many parts", parts);
    return OK;
}
const op_cost cost_SUM_PARTS = {PER_INPUT(1, SUM_PARTS_X)};

status verify_GRAD_SUMSQ(const checker *c) {
    value_id g = IN(GRAD_SUMSQ_G), partials = OUT(GRAD_SUMSQ_PARTIALS);
    TRY(check_part(c, g));
    REQUIRE(has_type(c, partials, DTYPE_F64) && is_shape1(c, partials, divide_up(shape_count(sh(c, g)), NORM_BLOCK)),
            "one fp64 sum per block", partials);
    return OK;
}
const op_cost cost_GRAD_SUMSQ = {PER_INPUT(2, GRAD_SUMSQ_G)};

status verify_NORM_SUM(const checker *c) {
    value_id sum = OUT(NORM_SUM_SUM);
    REQUIRE(has_type(c, IN(NORM_SUM_PARTIALS), DTYPE_F64) && has_type(c, sum, DTYPE_F64) && is_shape1(c, sum, 1),
            "expected fp64 partials and one fp64", sum);
    return OK;
}
const op_cost cost_NORM_SUM = {PER_INPUT(1, NORM_SUM_PARTIALS)};

static status check_clip_value(const checker *c, value_id clip) {
    REQUIRE(has_type(c, clip, DTYPE_F32) && sh(c, clip)->rank == 1 && sh(c, clip)->dim[0] >= CLIP_COUNT,
            "expected the clip value", clip);
    return OK;
}

status verify_CLIP(const checker *c) {
    value_id sums = IN(CLIP_SUMS);
    REQUIRE(has_type(c, IN(CLIP_PARTIALS), DTYPE_F64) && has_type(c, sums, DTYPE_F64) && sh(c, sums)->rank == 1 &&
                sh(c, sums)->dim[0] >= SUM_COUNT * MAX(c->o->attr.n_losses, 1),
            "expected fp64 sums", sums);
    TRY(verify_scalars(c, IN(CLIP_SCALARS)));
    REQUIRE(is_shape1(c, OUT(CLIP_CLIP), CLIP_COUNT) || is_shape1(c, OUT(CLIP_CLIP), CLIP_COUNT + sh(c, sums)->dim[0]),
            "expected the clip value, or the sums behind it", OUT(CLIP_CLIP));
    return check_clip_value(c, OUT(CLIP_CLIP));
}
const op_cost cost_CLIP = {PER_INPUT(2, CLIP_PARTIALS)};

static status check_states(const checker *c, value_id p) {
    value_id m = OUT(ADAMW_M), v = OUT(ADAMW_V), m_scale = OUT(ADAMW_M_SCALE), v_scale = OUT(ADAMW_V_SCALE);
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

static double adamw(const program *p, const op *o) {
    return 14 * count_of(p, o->in[ADAMW_G]) + NOISE_FLOPS * op_noise(p, o);
}

/* Beside a master the parameter is written, not read. */
static double adamw_saved(const program *p, const op *o) {
    return o->out[ADAMW_MASTER] ? bytes_of(p, o->out[ADAMW_P]) : 0;
}

status verify_ADAMW(const checker *c) {
    value_id g = IN(ADAMW_G), p = OUT(ADAMW_P), master = OUT(ADAMW_MASTER);
    TRY(check_part(c, p));
    TRY(check_clip_value(c, IN(ADAMW_CLIP)));
    TRY(verify_scalars(c, IN(ADAMW_SCALARS)));
    REQUIRE(shape_equal(sh(c, g), sh(c, p)), "gradient shape differs from the parameter", g);
    if (master) {
        REQUIRE(has_type(c, master, DTYPE_F32) && shape_equal(sh(c, master), sh(c, p)), "master must be fp32", master);
        REQUIRE(has_type(c, p, DTYPE_BF16) || has_type(c, p, DTYPE_F16), "only a 16-bit parameter has a master", p);
        REQUIRE(has_type(c, g, DTYPE_F32), "with a master, the gradient is fp32", g);
    } else {
        REQUIRE(same_type(c, p, g), "without a master parameter and gradient have one dtype", g);
        REQUIRE(has_type(c, p, DTYPE_F32) || has_type(c, p, DTYPE_BF16), "fp16 parameters need a master", p);
    }
    return check_states(c, p);
}
const op_cost cost_ADAMW = {FLOPS(adamw), .saved = adamw_saved};

/* ---- between ranks --------------------------------------------------------------------------------------------------- */

/* x is one piece, y its parts. */
static status check_parts(const checker *c, value_id x, value_id y) {
    TRY(verify_rows(c, x));
    REQUIRE(same_type(c, x, y), "dtypes differ", y);
    REQUIRE(c->o->attr.n_parts > 1, "expected several parts", y);
    return OK;
}

status verify_TOKEN_PARTS(const checker *c) {
    const op_attr *a = &c->o->attr;
    value_id x = a->inverse ? OUT(TOKEN_PARTS_Y) : IN(TOKEN_PARTS_X);
    value_id y = a->inverse ? IN(TOKEN_PARTS_X) : OUT(TOKEN_PARTS_Y);
    TRY(check_parts(c, x, y));
    REQUIRE(a->seq_len % (2 * a->n_parts) == 0 && sh(c, x)->dim[0] == a->batch * a->seq_len,
            "expected rows (B T, W), two chunks of T for each part", x);
    return verify_like(c, x, y);
}
const op_cost cost_TOKEN_PARTS = {NO_ARITHMETIC};

status verify_HEAD_PARTS(const checker *c) {
    const op_attr *a = &c->o->attr;
    value_id x = a->inverse ? OUT(HEAD_PARTS_Y) : IN(HEAD_PARTS_X);
    value_id y = a->inverse ? IN(HEAD_PARTS_X) : OUT(HEAD_PARTS_Y);
    TRY(check_parts(c, x, y));
    REQUIRE(a->n_heads % a->n_parts == 0 && a->n_kv_heads % a->n_parts == 0 &&
                sh(c, x)->dim[1] == (int64_t)(a->n_heads + 2 * a->n_kv_heads) * a->head_dim,
            "expected heads that can be shared", x);
    REQUIRE(is_shape2(c, y, sh(c, x)->dim[0] * a->n_parts, sh(c, x)->dim[1] / a->n_parts), "expected (P N, W / P)", y);
    return OK;
}
const op_cost cost_HEAD_PARTS = {NO_ARITHMETIC};

/* A group has at least two ranks: such ops are not written for one. */
static status check_group(const checker *c) {
    REQUIRE(c->o->attr.group_size > 1 && c->o->attr.axis < AXIS_COUNT,
            "communication needs a group of two ranks or more", IN(MESSAGE_SENT));
    return OK;
}

static status check_peer(const checker *c) {
    const op_attr *a = &c->o->attr;
    TRY(check_group(c));
    REQUIRE(a->peer >= 0 && a->peer < a->group_size, "the peer is no rank of the group", NO_VALUE);
    return OK;
}

/* `parts` has one part per rank, and each is as large as `one`. */
static status check_cut(const checker *c, value_id parts, value_id one) {
    TRY(check_group(c));
    REQUIRE(shape_count(sh(c, parts)) == c->o->attr.group_size * shape_count(sh(c, one)), "expected one part per rank",
            parts);
    REQUIRE(same_type(c, parts, one), "dtypes differ", OUT(MESSAGE_RECEIVED));
    return OK;
}

static status check_exchange(const checker *c, value_id x, value_id y) {
    TRY(check_group(c));
    REQUIRE(shape_equal(sh(c, x), sh(c, y)), "shapes differ", y);
    REQUIRE(same_type(c, x, y), "dtypes differ", y);
    return OK;
}

static status check_summed(const checker *c, value_id x) {
    REQUIRE(is_compute(c, x) || has_type(c, x, DTYPE_F64), "sums are of floats", x);
    return OK;
}

/* What a rank sends. Sums on the way count as time of the message. */
static double share_of_others(const op *o) {
    double n = o->attr.group_size;
    return n > 1 ? (n - 1) / n : 0;
}
status verify_SEND(const checker *c) { return check_peer(c); }
status verify_RECV(const checker *c) { return check_peer(c); }
status verify_ALL_GATHER(const checker *c) { return check_cut(c, OUT(ALL_GATHER_Y), IN(ALL_GATHER_X)); }
status verify_SHIFT(const checker *c) { return check_exchange(c, IN(SHIFT_X), OUT(SHIFT_Y)); }
double sent_SEND(const program *p, const op *o) { return bytes_of(p, o->in[SEND_X]); }
double sent_RECV(const program *p, const op *o) { return 0; }
double sent_ALL_GATHER(const program *p, const op *o) { return share_of_others(o) * bytes_of(p, o->out[ALL_GATHER_Y]); }
double sent_SHIFT(const program *p, const op *o) { return bytes_of(p, o->in[SHIFT_X]); }

status verify_REDUCE_SCATTER(const checker *c) {
    TRY(check_cut(c, IN(REDUCE_SCATTER_X), OUT(REDUCE_SCATTER_ACC)));
    if (IN(REDUCE_SCATTER_SCALARS)) TRY(verify_scalars(c, IN(REDUCE_SCATTER_SCALARS)));
    return check_summed(c, IN(REDUCE_SCATTER_X));
}
double sent_REDUCE_SCATTER(const program *p, const op *o) {
    return share_of_others(o) * bytes_of(p, o->in[REDUCE_SCATTER_X]);
}

status verify_ALL_REDUCE(const checker *c) {
    TRY(check_exchange(c, IN(ALL_REDUCE_X), OUT(ALL_REDUCE_Y)));
    return check_summed(c, IN(ALL_REDUCE_X));
}
double sent_ALL_REDUCE(const program *p, const op *o) { /* there and back */
    return 2 * share_of_others(o) * bytes_of(p, o->in[ALL_REDUCE_X]);
}

status verify_ALL_TO_ALL(const checker *c) {
    value_id x = IN(ALL_TO_ALL_X);
    TRY(check_exchange(c, x, OUT(ALL_TO_ALL_Y)));
    REQUIRE(shape_count(sh(c, x)) % c->o->attr.group_size == 0, "expected one part per rank", x);
    return OK;
}
double sent_ALL_TO_ALL(const program *p, const op *o) { return share_of_others(o) * bytes_of(p, o->in[ALL_TO_ALL_X]); }

/* ---- data movement --------------------------------------------------------------------------------------------------- */

status verify_CAST(const checker *c) {
    value_id x = IN(CAST_X), y = OUT(CAST_Y);
    REQUIRE(shape_equal(sh(c, x), sh(c, y)), "shapes differ", y);
    REQUIRE(is_compute(c, x) && is_compute(c, y), "cast is for fp32, bf16, fp16", y);
    return OK;
}
const op_cost cost_CAST = {PER_INPUT(1, CAST_X)};

/* The same bytes may have two shapes: a rank's part of a bucket can be exactly one parameter. */
status verify_COPY(const checker *c) {
    value_id x = IN(COPY_X), y = OUT(COPY_Y);
    REQUIRE(shape_count(sh(c, x)) == shape_count(sh(c, y)), "not as many elements as its partner", y);
    REQUIRE(same_type(c, x, y), "dtype differs from its partner", y);
    return OK;
}
const op_cost cost_COPY = {NO_ARITHMETIC};
