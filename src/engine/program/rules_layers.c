/* rules_layers.c - what the ops of the layers ask of their operands, forward and backward (dtypes that are allowed, shapes that
 * match each other), and what each costs. From the embedding to the last norm; heads and
 * attention are in rules_attention.c, the rest of a step in rules_step.c. */
#include "program/rules.h"

/* ---- embedding ------------------------------------------------------------------------------------------------------- */

/* Of the tables only the rows of these tokens are read. */
static double embed_saved(const program *p, const op *o) {
    double row_bytes = bytes_of(p, o->out[EMBED_X]), n = bytes_of(p, o->in[EMBED_TABLE]) - row_bytes;
    return o->in[EMBED_POSITIONS] ? n + (bytes_of(p, o->in[EMBED_POSITIONS]) - row_bytes) : n;
}

SAME_PLACE(EMBED_TOKENS, EMBED_INT8_TOKENS);
SAME_PLACE(EMBED_TABLE, EMBED_INT8_CODES);
SAME_PLACE(EMBED_DOC_START, EMBED_INT8_DOC_START);
SAME_PLACE(EMBED_POSITIONS, EMBED_INT8_POSITIONS);
SAME_PLACE(EMBED_X, EMBED_INT8_X);

static status check_embedding(const checker *c) {
    const op_attr *a = &c->o->attr;
    value_id tokens = IN(EMBED_TOKENS), table = IN(EMBED_TABLE), doc_start = IN(EMBED_DOC_START),
             positions = IN(EMBED_POSITIONS);
    value_id x = OUT(EMBED_X);
    TRY(verify_rows(c, x));
    TRY(verify_tokens(c, tokens, sh(c, x)->dim[0]));
    REQUIRE(sh(c, table)->rank == 2 && sh(c, table)->dim[1] == sh(c, x)->dim[1], "table does not match the rows",
            table);
    TRY(verify_vocabulary(c, table));
    REQUIRE(a->first_token >= 0 && a->n_tokens >= 0 && a->first_token + a->n_tokens <= sh(c, x)->dim[0],
            "these are not its tokens", x);
    REQUIRE((doc_start == NO_VALUE) == (positions == NO_VALUE), "learned positions need doc_start", positions);
    if (positions) {
        TRY(verify_tokens(c, doc_start, sh(c, x)->dim[0]));
        REQUIRE(sh(c, positions)->rank == 2 && sh(c, positions)->dim[1] == sh(c, x)->dim[1] &&
                    same_type(c, positions, x) && sh(c, positions)->dim[0] >= a->seq_len,
                "positions do not match the rows", positions);
    }
    return OK;
}

status verify_EMBED(const checker *c) {
    REQUIRE(same_type(c, IN(EMBED_TABLE), OUT(EMBED_X)), "table does not match the rows", IN(EMBED_TABLE));
    return check_embedding(c);
}
const op_cost cost_EMBED = {PER_OUTPUT(1, EMBED_X), .saved = embed_saved};

static status check_int8(const checker *c, value_id codes, value_id scale) {
    REQUIRE(has_type(c, codes, DTYPE_I8) && sh(c, codes)->rank == 2, "expected rows of int8", codes);
    REQUIRE(has_type(c, scale, DTYPE_F32) && is_shape1(c, scale, sh(c, codes)->dim[0]), "not one fp32 scale per row",
            scale);
    return OK;
}

status verify_EMBED_INT8(const checker *c) {
    TRY(check_int8(c, IN(EMBED_INT8_CODES), IN(EMBED_INT8_SCALE)));
    return check_embedding(c);
}
static double embed_int8_saved(const program *p, const op *o) { /* codes of other tokens, and other positions */
    double n = count_of(p, o->in[EMBED_INT8_CODES]) - count_of(p, o->out[EMBED_INT8_X]);
    value_id positions = o->in[EMBED_INT8_POSITIONS];
    return positions ? n + bytes_of(p, positions) - bytes_of(p, o->out[EMBED_INT8_X]) : n;
}
const op_cost cost_EMBED_INT8 = {PER_OUTPUT(2, EMBED_INT8_X), .saved = embed_int8_saved};

/* One row of the table's gradient per id, or per position. */
static status check_table_grad(const checker *c, value_id ids, value_id dy, value_id dtable, const char *what) {
    TRY(verify_rows(c, dy));
    TRY(verify_tokens(c, ids, sh(c, dy)->dim[0]));
    REQUIRE(sh(c, dtable)->rank == 2 && sh(c, dtable)->dim[1] == sh(c, dy)->dim[1], what, dtable);
    return verify_weight_grad(c, dtable, dtable);
}

status verify_EMBED_BWD(const checker *c) {
    TRY(verify_vocabulary(c, OUT(EMBED_BWD_DTABLE)));
    return check_table_grad(c, IN(EMBED_BWD_TOKENS), IN(EMBED_BWD_DY), OUT(EMBED_BWD_DTABLE), "dtable is not (V, C)");
}
const op_cost cost_EMBED_BWD = {PER_INPUT(1, EMBED_BWD_DY)};

/* Rows without a token stay as they are. */
static double embed_add_saved(const program *p, const op *o) {
    const value *table = program_get(p, o->out[EMBED_BWD_ADD_DTABLE]);
    double touched = count_of(p, o->in[EMBED_BWD_ADD_DY]) * (double)dtype_bytes(table->type);
    double whole = (double)value_bytes(table);
    return touched < whole ? 2 * (whole - touched) : 0;
}

status verify_EMBED_BWD_ADD(const checker *c) {
    TRY(verify_vocabulary(c, OUT(EMBED_BWD_ADD_DTABLE)));
    return check_table_grad(c, IN(EMBED_BWD_ADD_TOKENS), IN(EMBED_BWD_ADD_DY), OUT(EMBED_BWD_ADD_DTABLE),
                            "dtable is not (V, C)");
}
const op_cost cost_EMBED_BWD_ADD = {PER_INPUT(1, EMBED_BWD_ADD_DY), .saved = embed_add_saved};

status verify_POSITION_BWD(const checker *c) {
    return check_table_grad(c, IN(POSITION_BWD_DOC_START), IN(POSITION_BWD_DY), OUT(POSITION_BWD_DTABLE),
                            "dtable is not (P, C)");
}
const op_cost cost_POSITION_BWD = {PER_INPUT(1, POSITION_BWD_DY)};

/* ---- norms ----------------------------------------------------------------------------------------------------------- */

static status check_norm(const checker *c, value_id x, value_id gamma, value_id beta, value_id y, value_id mean,
                         value_id rstd) {
    TRY(verify_rows(c, x));
    TRY(verify_gain(c, x, gamma));
    if (beta) TRY(verify_gain(c, x, beta));
    TRY(verify_like(c, x, y));
    if (mean) TRY(verify_statistic(c, x, mean));
    return verify_statistic(c, x, rstd);
}

status verify_RMSNORM(const checker *c) {
    TRY(verify_amax(c, OUT(RMSNORM_Y), OUT(RMSNORM_AMAX)));
    return check_norm(c, IN(RMSNORM_X), IN(RMSNORM_GAMMA), NO_VALUE, OUT(RMSNORM_Y), NO_VALUE, OUT(RMSNORM_RSTD));
}
const op_cost cost_RMSNORM = {PER_INPUT(4, RMSNORM_X)};

status verify_LAYERNORM(const checker *c) {
    TRY(verify_amax(c, OUT(LAYERNORM_Y), OUT(LAYERNORM_AMAX)));
    return check_norm(c, IN(LAYERNORM_X), IN(LAYERNORM_GAMMA), IN(LAYERNORM_BETA), OUT(LAYERNORM_Y),
                      OUT(LAYERNORM_MEAN), OUT(LAYERNORM_RSTD));
}
const op_cost cost_LAYERNORM = {PER_INPUT(7, LAYERNORM_X)};

status verify_ADD_RMSNORM(const checker *c) {
    value_id a = IN(ADD_RMSNORM_A), y = OUT(ADD_RMSNORM_Y);
    TRY(verify_like(c, a, IN(ADD_RMSNORM_B)));
    TRY(verify_like(c, a, OUT(ADD_RMSNORM_S)));
    TRY(verify_amax(c, y, OUT(ADD_RMSNORM_AMAX)));
    return check_norm(c, a, IN(ADD_RMSNORM_GAMMA), NO_VALUE, y, NO_VALUE, OUT(ADD_RMSNORM_RSTD));
}
const op_cost cost_ADD_RMSNORM = {PER_INPUT(5, ADD_RMSNORM_A)};

status verify_ADD_LAYERNORM(const checker *c) {
    value_id a = IN(ADD_LAYERNORM_A), y = OUT(ADD_LAYERNORM_Y);
    TRY(verify_like(c, a, IN(ADD_LAYERNORM_B)));
    TRY(verify_like(c, a, OUT(ADD_LAYERNORM_S)));
    TRY(verify_amax(c, y, OUT(ADD_LAYERNORM_AMAX)));
    return check_norm(c, a, IN(ADD_LAYERNORM_GAMMA), IN(ADD_LAYERNORM_BETA), y, OUT(ADD_LAYERNORM_MEAN),
                      OUT(ADD_LAYERNORM_RSTD));
}
const op_cost cost_ADD_LAYERNORM = {PER_INPUT(8, ADD_LAYERNORM_A)};

status verify_RMSNORM_BWD(const checker *c) {
    value_id x = IN(RMSNORM_BWD_X), gamma = IN(RMSNORM_BWD_GAMMA), dx = OUT(RMSNORM_BWD_DX);
    TRY(check_norm(c, x, gamma, NO_VALUE, IN(RMSNORM_BWD_DY), NO_VALUE, IN(RMSNORM_BWD_RSTD)));
    if (IN(RMSNORM_BWD_DRES)) TRY(verify_like(c, x, IN(RMSNORM_BWD_DRES)));
    TRY(verify_like(c, x, dx));
    TRY(verify_amax(c, dx, OUT(RMSNORM_BWD_AMAX)));
    return verify_weight_grad(c, gamma, OUT(RMSNORM_BWD_DGAMMA));
}
const op_cost cost_RMSNORM_BWD = {PER_INPUT(9, RMSNORM_BWD_X)};

status verify_LAYERNORM_BWD(const checker *c) {
    value_id x = IN(LAYERNORM_BWD_X), gamma = IN(LAYERNORM_BWD_GAMMA), dx = OUT(LAYERNORM_BWD_DX);
    TRY(check_norm(c, x, gamma, NO_VALUE, IN(LAYERNORM_BWD_DY), IN(LAYERNORM_BWD_MEAN), IN(LAYERNORM_BWD_RSTD)));
    if (IN(LAYERNORM_BWD_DRES)) TRY(verify_like(c, x, IN(LAYERNORM_BWD_DRES)));
    TRY(verify_like(c, x, dx));
    TRY(verify_amax(c, dx, OUT(LAYERNORM_BWD_AMAX)));
    TRY(verify_weight_grad(c, gamma, OUT(LAYERNORM_BWD_DGAMMA)));
    return verify_weight_grad(c, gamma, OUT(LAYERNORM_BWD_DBETA));
}
const op_cost cost_LAYERNORM_BWD = {PER_INPUT(12, LAYERNORM_BWD_X)};

/* ---- products -------------------------------------------------------------------------------------------------------- */

static double linear(const program *p, const op *o) { /* x (N, in), w (out, in) */
    double adapter = o->in[LINEAR_UP] ? count_of(p, o->in[LINEAR_UP]) : 0;
    return 2.0 * rows_of(p, o->in[LINEAR_X]) * (count_of(p, o->in[LINEAR_W]) + adapter);
}
static double linear_dx(const program *p, const op *o) { /* dy (N, out), w (out, in) */
    double adapter = o->in[LINEAR_DX_DOWN] ? count_of(p, o->in[LINEAR_DX_DOWN]) : 0;
    return 2.0 * rows_of(p, o->in[LINEAR_DX_DY]) * (count_of(p, o->in[LINEAR_DX_W]) + adapter);
}
static double linear_dw(const program *p, const op *o) { /* dy (N, out), x (N, in) */
    SAME_PLACE(LINEAR_DW_DY, LINEAR_DW_ADD_DY);
    SAME_PLACE(LINEAR_DW_X, LINEAR_DW_ADD_X);
    return 2.0 * count_of(p, o->in[LINEAR_DW_DY]) * (double)program_get(p, o->in[LINEAR_DW_X])->shape.dim[1];
}
static double linear8(const program *p, const op *o) { /* x (N, in), w (out, in) */
    return 2.0 * rows_of(p, o->in[LINEAR8_X]) * count_of(p, o->in[LINEAR8_W]);
}

/* y or dy, rows of out columns; small, xa or dxa, of G r; b or db (R, r). */
static status check_lora(const checker *c, value_id y, value_id small, value_id b) {
    const op_attr *a = &c->o->attr;
    int64_t end = 0, n_rows = 0;
    TRY(verify_rows(c, y));
    TRY(verify_rows(c, small));
    REQUIRE(a->n_parts >= 1 && a->n_parts <= LORA_PARTS, "bad number of parts", y);
    for (int i = 0; i < a->n_parts; i++) {
        REQUIRE(a->part_first[i] >= end && a->part_columns[i] > 0 &&
                    a->part_columns[i] <= sh(c, y)->dim[1] - a->part_first[i],
                "parts are not columns of it in ascending order", y);
        end = a->part_first[i] + a->part_columns[i];
        n_rows += a->part_columns[i];
    }
    REQUIRE(sh(c, b)->rank == 2 && sh(c, b)->dim[0] == n_rows, "expected a row for every column of the parts", b);
    int64_t r = sh(c, b)->dim[1];
    REQUIRE(r >= 1 && r <= LORA_RANK_MOST, "bad rank", b);
    REQUIRE(is_shape2(c, small, sh(c, y)->dim[0], a->n_parts * r) && same_type(c, y, small), "expected rows (N, G r)",
            small);
    return OK;
}
static status check_adapter(const checker *c, value_id y, value_id xa, value_id up) {
    TRY(check_lora(c, y, xa, up));
    REQUIRE(same_type(c, y, up), "dtypes differ", up);
    return OK;
}

status verify_LINEAR(const checker *c) {
    value_id x = IN(LINEAR_X), w = IN(LINEAR_W), b = IN(LINEAR_B), y = OUT(LINEAR_Y);
    TRY(verify_rows(c, x));
    REQUIRE(sh(c, w)->rank == 2 && sh(c, w)->dim[1] == sh(c, x)->dim[1], "weight is not (out, in)", w);
    REQUIRE(same_type(c, x, w) && same_type(c, x, y), "dtypes differ", y);
    REQUIRE(is_shape2(c, y, sh(c, x)->dim[0], sh(c, w)->dim[0]), "output is not (N, out)", y);
    if (b) REQUIRE(is_shape1(c, b, sh(c, w)->dim[0]) && same_type(c, x, b), "bias is not (out)", b);
    REQUIRE(!IN(LINEAR_XA) == !IN(LINEAR_UP), "an adapter has two operands", y);
    return IN(LINEAR_XA) ? check_adapter(c, y, IN(LINEAR_XA), IN(LINEAR_UP)) : OK;
}
const op_cost cost_LINEAR = {FLOPS(linear)};
op_product product_LINEAR(const program *p, const op *o) {
    return (op_product){
        .m = rows_in(p, o->in[LINEAR_X]), .n = rows_in(p, o->in[LINEAR_W]), .k = columns_in(p, o->in[LINEAR_W])};
}

status verify_LINEAR_DX(const checker *c) {
    value_id dy = IN(LINEAR_DX_DY), w = IN(LINEAR_DX_W), add = IN(LINEAR_DX_ADD), dx = OUT(LINEAR_DX_DX);
    TRY(verify_rows(c, dy));
    REQUIRE(sh(c, w)->rank == 2 && sh(c, w)->dim[0] == sh(c, dy)->dim[1], "weight is not (out, in)", w);
    REQUIRE(is_shape2(c, dx, sh(c, dy)->dim[0], sh(c, w)->dim[1]) && same_type(c, dy, dx), "dx is not (N, in)", dx);
    if (add) TRY(verify_like(c, dx, add));
    value_id dxa = IN(LINEAR_DX_DXA), down = IN(LINEAR_DX_DOWN);
    REQUIRE(!dxa == !down, "an adapter has two operands", dx);
    if (!dxa) return OK;
    TRY(verify_rows(c, dxa));
    REQUIRE(same_type(c, dy, dxa) && sh(c, dxa)->dim[0] == sh(c, dy)->dim[0], "expected rows (N, R)", dxa);
    REQUIRE(is_shape2(c, down, sh(c, dxa)->dim[1], sh(c, w)->dim[1]) && same_type(c, dy, down), "is not (R, in)", down);
    return OK;
}
const op_cost cost_LINEAR_DX = {FLOPS(linear_dx)};
op_product product_LINEAR_DX(const program *p, const op *o) {
    value_id w = o->in[LINEAR_DX_W];
    return (op_product){.m = rows_in(p, o->in[LINEAR_DX_DY]), .n = columns_in(p, w), .k = rows_in(p, w)};
}

static status check_linear_dw(const checker *c, value_id dy, value_id x, value_id dw) {
    TRY(verify_rows(c, dy));
    TRY(verify_rows(c, x));
    REQUIRE(sh(c, dy)->dim[0] == sh(c, x)->dim[0] && same_type(c, dy, x), "rows differ", x);
    REQUIRE(is_shape2(c, dw, sh(c, dy)->dim[1], sh(c, x)->dim[1]), "dw is not (out, in)", dw);
    return verify_weight_grad(c, dw, dw);
}

status verify_LINEAR_DW(const checker *c) {
    return check_linear_dw(c, IN(LINEAR_DW_DY), IN(LINEAR_DW_X), OUT(LINEAR_DW_DW));
}
const op_cost cost_LINEAR_DW = {FLOPS(linear_dw)};
op_product product_LINEAR_DW(const program *p, const op *o) {
    value_id dy = o->in[LINEAR_DW_DY];
    return (op_product){.m = columns_in(p, dy), .n = columns_in(p, o->in[LINEAR_DW_X]), .k = rows_in(p, dy)};
}

status verify_LINEAR_DW_ADD(const checker *c) {
    value_id dw = OUT(LINEAR_DW_ADD_DW);
    TRY(check_linear_dw(c, IN(LINEAR_DW_ADD_DY), IN(LINEAR_DW_ADD_X), dw));
    REQUIRE(has_type(c, dw, DTYPE_F32), "sums of products are fp32", dw);
    return OK;
}
const op_cost cost_LINEAR_DW_ADD = {FLOPS(linear_dw)};
op_product product_LINEAR_DW_ADD(const program *p, const op *o) { return product_LINEAR_DW(p, o); }

static double lora_product(const program *p, value_id rows, value_id b) {
    return 2.0 * rows_of(p, rows) * count_of(p, b);
}
static double lora_up(const program *p, const op *o) { return lora_product(p, o->in[LORA_UP_BASE], o->in[LORA_UP_B]); }
static double lora_bwd(const program *p, const op *o) {
    return 2 * lora_product(p, o->in[LORA_BWD_DY], o->in[LORA_BWD_B]);
}

/* Of rows `wide`, the columns that no part has. */
static double other_columns(const program *p, const op *o, value_id wide) {
    const value *v = program_get(p, wide);
    int64_t n = v->shape.dim[1];
    for (int i = 0; i < o->attr.n_parts; i++) n -= o->attr.part_columns[i];
    return (double)(n * v->shape.dim[0]) * (double)dtype_bytes(v->type);
}
static double lora_dy_saved(const program *p, const op *o) { return other_columns(p, o, o->in[LORA_BWD_DY]); }

status verify_LORA_UP(const checker *c) {
    value_id base = IN(LORA_UP_BASE), b = IN(LORA_UP_B);
    TRY(check_adapter(c, base, IN(LORA_UP_XA), b));
    return verify_like(c, base, OUT(LORA_UP_Y));
}
const op_cost cost_LORA_UP = {FLOPS(lora_up)};
op_product product_LORA_UP(const program *p, const op *o) {
    value_id b = o->in[LORA_UP_B];
    return (op_product){.m = rows_in(p, o->in[LORA_UP_BASE]), .n = rows_in(p, b), .k = columns_in(p, b)};
}

status verify_LORA_BWD(const checker *c) {
    value_id dy = IN(LORA_BWD_DY), b = IN(LORA_BWD_B);
    REQUIRE(same_type(c, dy, b), "dtypes differ", b);
    TRY(check_lora(c, dy, IN(LORA_BWD_XA), b));
    TRY(verify_like(c, IN(LORA_BWD_XA), OUT(LORA_BWD_DXA)));
    return verify_weight_grad(c, b, OUT(LORA_BWD_DB));
}
const op_cost cost_LORA_BWD = {FLOPS(lora_bwd), .saved = lora_dy_saved};
op_product product_LORA_BWD(const program *p, const op *o) { /* two products in one: dy is read once */
    value_id b = o->in[LORA_BWD_B];
    return (op_product){.m = rows_in(p, o->in[LORA_BWD_DY]), .n = 2 * columns_in(p, b), .k = rows_in(p, b)};
}

status verify_ADD_BIAS(const checker *c) {
    TRY(verify_rows(c, IN(ADD_BIAS_X)));
    TRY(verify_gain(c, IN(ADD_BIAS_X), IN(ADD_BIAS_B)));
    return verify_like(c, IN(ADD_BIAS_X), OUT(ADD_BIAS_Y));
}
const op_cost cost_ADD_BIAS = {PER_INPUT(1, ADD_BIAS_X)};

status verify_BIAS_GRAD(const checker *c) {
    value_id dy = IN(BIAS_GRAD_DY), db = OUT(BIAS_GRAD_DB);
    TRY(verify_rows(c, dy));
    REQUIRE(is_shape1(c, db, sh(c, dy)->dim[1]), "db is not (out)", db);
    return verify_weight_grad(c, db, db);
}
const op_cost cost_BIAS_GRAD = {PER_INPUT(1, BIAS_GRAD_DY)};

static status check_value_layer(const checker *c, value_id x, value_id w, value_id values) {
    TRY(verify_rows(c, x));
    REQUIRE(is_shape2(c, w, 1, sh(c, x)->dim[1]) && same_type(c, x, w), "w is (1, K) of x's dtype", w);
    return verify_statistic(c, x, values);
}

status verify_VALUE(const checker *c) {
    value_id x = IN(VALUE_X), b = IN(VALUE_B);
    REQUIRE(is_shape1(c, b, 1) && same_type(c, x, b), "b is (1) of x's dtype", b);
    return check_value_layer(c, x, IN(VALUE_W), OUT(VALUE_VALUES));
}
const op_cost cost_VALUE = {PER_INPUT(2, VALUE_X)};

status verify_VALUE_BWD(const checker *c) {
    value_id x = IN(VALUE_BWD_X), w = IN(VALUE_BWD_W), dw = OUT(VALUE_BWD_DW), db = OUT(VALUE_BWD_DB);
    TRY(check_value_layer(c, x, w, IN(VALUE_BWD_VALUES)));
    TRY(verify_like(c, IN(VALUE_BWD_VALUES), IN(VALUE_BWD_DVALUES)));
    TRY(verify_like(c, x, OUT(VALUE_BWD_DX)));
    if (dw) TRY(verify_weight_grad(c, w, dw));
    if (!db) return OK;
    REQUIRE(is_shape1(c, db, 1) && (!dw || same_type(c, dw, db)), "db is (1) of dw's dtype", db);
    return verify_weight_grad(c, db, db);
}
const op_cost cost_VALUE_BWD = {PER_INPUT(4, VALUE_BWD_X)};

status verify_ABSMAX(const checker *c) { return verify_amax(c, IN(ABSMAX_X), OUT(ABSMAX_AMAX)); }
const op_cost cost_ABSMAX = {PER_INPUT(1, ABSMAX_X)};

/* What ops that round by themselves share: e4m3 (N, width) and its transpose, and single numbers, of which `given` and `found` are
 * the largest: one of them. */
static status check_rounding(const checker *c, value_id x, int64_t N, int64_t width, value_id q, value_id t,
                             value_id given, value_id found, value_id scale, value_id guess) {
    const value_id numbers[] = {given, found, scale, guess};
    REQUIRE(q || t, "neither q nor t is asked for", x);
    REQUIRE(!given != !found, "the largest number is either given or asked for", x);
    if (q) REQUIRE(has_type(c, q, DTYPE_F8E4M3) && is_shape2(c, q, N, width), "q is not e4m3 (N, width)", q);
    if (t) REQUIRE(has_type(c, t, DTYPE_F8E4M3) && is_shape2(c, t, width, N), "t is not e4m3 (width, N)", t);
    for (size_t i = 0; i < ARRAY_LENGTH(numbers); i++)
        if (numbers[i]) REQUIRE(is_number(c, numbers[i]), "not one fp32", numbers[i]);
    return OK;
}

status verify_QUANTIZE(const checker *c) {
    value_id x = IN(QUANTIZE_X), amax = IN(QUANTIZE_AMAX);
    value_id q = OUT(QUANTIZE_Q), t = OUT(QUANTIZE_T), scale = OUT(QUANTIZE_SCALE);
    REQUIRE(has_type(c, x, DTYPE_BF16) && sh(c, x)->rank == 2, "expected rows of bf16", x);
    int64_t N = sh(c, x)->dim[0], C = sh(c, x)->dim[1];
    REQUIRE(!OUT(QUANTIZE_LARGEST) || (N % 16 == 0 && C % 16 == 0), "tokens or columns are no multiples of 16", x);
    return check_rounding(c, x, N, C, q, t, amax, OUT(QUANTIZE_LARGEST), scale, OUT(QUANTIZE_GUESS));
}
const op_cost cost_QUANTIZE = {PER_INPUT(2, QUANTIZE_X)}; /* a product, a rounding */

shape fp8_scales_shape(int64_t n_rows, int64_t n_columns, bool square) {
    if (square) return SHAPE(n_rows / FP8_BLOCK, round_up(n_columns / FP8_BLOCK, 4));
    return SHAPE(n_columns / FP8_BLOCK, n_rows);
}

fp8_blocks fp8_blocks_of(int64_t n_rows, int64_t n_columns, bool square) {
    if (square) return (fp8_blocks){FP8_BLOCK, round_up(n_columns / FP8_BLOCK, 4), 1};
    return (fp8_blocks){1, 1, n_rows};
}

/* e4m3 (n_rows, n_columns), in blocks of `scale`; both or neither. */
static status check_blocks(const checker *c, value_id q, value_id scale, int64_t n_rows, int64_t n_columns,
                           bool square) {
    if (!q && !scale) return OK;
    REQUIRE(q && scale, "numbers and their scales come together", q ? q : scale);
    shape s = fp8_scales_shape(n_rows, n_columns, square);
    REQUIRE(has_type(c, q, DTYPE_F8E4M3) && is_shape2(c, q, n_rows, n_columns), "not e4m3 of this shape", q);
    REQUIRE(n_rows % FP8_BLOCK == 0 && n_columns % FP8_BLOCK == 0, "sides are no multiples of 128", q);
    REQUIRE(has_type(c, scale, DTYPE_F32) && shape_equal(sh(c, scale), &s), "not a scale for every block", scale);
    return OK;
}

status verify_QUANTIZE_BLOCKS(const checker *c) {
    value_id x = IN(QUANTIZE_BLOCKS_X), q = OUT(QUANTIZE_BLOCKS_Q), t = OUT(QUANTIZE_BLOCKS_T);
    bool square = c->o->attr.square;
    REQUIRE(has_type(c, x, DTYPE_BF16) && sh(c, x)->rank == 2, "expected rows of bf16", x);
    REQUIRE(q || t, "neither q nor t is asked for", x);
    TRY(check_blocks(c, q, OUT(QUANTIZE_BLOCKS_SCALE), sh(c, x)->dim[0], sh(c, x)->dim[1], square));
    return check_blocks(c, t, OUT(QUANTIZE_BLOCKS_T_SCALE), sh(c, x)->dim[1], sh(c, x)->dim[0], square);
}
const op_cost cost_QUANTIZE_BLOCKS = {PER_INPUT(3, QUANTIZE_BLOCKS_X)}; /* two products, a rounding */

status verify_SWIGLU8(const checker *c) {
    value_id gu = IN(SWIGLU8_GU), dy = IN(SWIGLU8_DY);
    REQUIRE(has_type(c, gu, DTYPE_BF16) && sh(c, gu)->rank == 2, "expected rows of bf16", gu);
    int64_t N = sh(c, gu)->dim[0], F = sh(c, gu)->dim[1] / 2;
    REQUIRE(sh(c, gu)->dim[1] % 32 == 0, "gate or up are no multiples of 16", gu);
    REQUIRE(N % 16 == 0, "tokens are no multiple of 16", gu);
    if (dy) REQUIRE(is_shape2(c, dy, N, F) && same_type(c, gu, dy), "dy is not (N, F)", dy);
    return check_rounding(c, gu, N, dy ? 2 * F : F, OUT(SWIGLU8_Q), OUT(SWIGLU8_T), IN(SWIGLU8_AMAX),
                          OUT(SWIGLU8_LARGEST), OUT(SWIGLU8_SCALE), OUT(SWIGLU8_GUESS));
}
const op_cost cost_SWIGLU8 = {PER_INPUT(10, SWIGLU8_GU)};

status verify_RMSNORM8(const checker *c) {
    value_id a = IN(RMSNORM8_A), b = IN(RMSNORM8_B), s = OUT(RMSNORM8_S), gamma = IN(RMSNORM8_GAMMA);
    REQUIRE(has_type(c, a, DTYPE_BF16) && sh(c, a)->rank == 2, "expected rows of bf16", a);
    REQUIRE(sh(c, a)->dim[0] % 16 == 0 && sh(c, a)->dim[1] % 16 == 0, "tokens or columns are no multiples of 16", a);
    REQUIRE(!b == !s, "a sum has a second operand", a);
    if (b) TRY(verify_like(c, a, b));
    if (s) TRY(verify_like(c, a, s));
    TRY(verify_gain(c, a, gamma));
    TRY(verify_statistic(c, a, OUT(RMSNORM8_RSTD)));
    return check_rounding(c, a, sh(c, a)->dim[0], sh(c, a)->dim[1], OUT(RMSNORM8_Q), OUT(RMSNORM8_T), IN(RMSNORM8_AMAX),
                          OUT(RMSNORM8_LARGEST), OUT(RMSNORM8_SCALE), NO_VALUE);
}
/* A GPU reads the rows once for their largest number and once to round them. */
static double rmsnorm8_twice(const program *p, const op *o) { return bytes_of(p, o->in[RMSNORM8_A]); }
const op_cost cost_RMSNORM8 = {PER_INPUT(7, RMSNORM8_A), .twice = rmsnorm8_twice};

static status check_e4m3(const checker *c, value_id v, value_id scale) {
    REQUIRE(has_type(c, v, DTYPE_F8E4M3) && sh(c, v)->rank == 2, "expected rows of e4m3", v);
    REQUIRE(is_number(c, scale), "scale is not one fp32", scale);
    return OK;
}

status verify_LINEAR8(const checker *c) {
    value_id x = IN(LINEAR8_X), w = IN(LINEAR8_W), b = IN(LINEAR8_B), y = OUT(LINEAR8_Y);
    if (is_number(c, IN(LINEAR8_X_SCALE))) {
        TRY(check_e4m3(c, x, IN(LINEAR8_X_SCALE)));
        TRY(check_e4m3(c, w, IN(LINEAR8_W_SCALE)));
    } else {
        REQUIRE(sh(c, x)->rank == 2 && sh(c, w)->rank == 2, "expected rows", x);
        TRY(check_blocks(c, x, IN(LINEAR8_X_SCALE), sh(c, x)->dim[0], sh(c, x)->dim[1], false));
        TRY(check_blocks(c, w, IN(LINEAR8_W_SCALE), sh(c, w)->dim[0], sh(c, w)->dim[1], !c->o->attr.over_tokens));
    }
    REQUIRE(sh(c, x)->dim[1] == sh(c, w)->dim[1], "weight is not (out, in)", w);
    REQUIRE(is_shape2(c, y, sh(c, x)->dim[0], sh(c, w)->dim[0]), "output is not (N, out)", y);
    REQUIRE(has_type(c, y, DTYPE_BF16) || has_type(c, y, DTYPE_F32), "output is not bf16 or fp32", y);
    if (b) REQUIRE(is_shape1(c, b, sh(c, w)->dim[0]) && same_type(c, b, y), "bias is not (out)", b);
    return OK;
}
const op_cost cost_LINEAR8 = {FLOPS(linear8)};
op_product product_LINEAR8(const program *p, const op *o) {
    value_id w = o->in[LINEAR8_W];
    return (op_product){.m = rows_in(p, o->in[LINEAR8_X]),
                        .n = rows_in(p, w),
                        .k = columns_in(p, w),
                        .blocks = count_of(p, o->in[LINEAR8_X_SCALE]) > 1};
}

static double linear_int8(const program *p, const op *o) { /* y (N, out), codes (out, in) */
    return 2.0 * rows_of(p, o->out[LINEAR_INT8_Y]) * count_of(p, o->in[LINEAR_INT8_CODES]);
}

status verify_LINEAR_INT8(const checker *c) {
    value_id x = IN(LINEAR_INT8_X), codes = IN(LINEAR_INT8_CODES), b = IN(LINEAR_INT8_B), pick = IN(LINEAR_INT8_PICK);
    value_id y = OUT(LINEAR_INT8_Y);
    TRY(verify_rows(c, x));
    TRY(check_int8(c, codes, IN(LINEAR_INT8_SCALE)));
    REQUIRE(sh(c, codes)->dim[1] == sh(c, x)->dim[1], "codes are not (out, in)", codes);
    REQUIRE(sh(c, y)->rank == 2 && sh(c, y)->dim[1] == sh(c, codes)->dim[0], "output is not (N, out)", y);
    REQUIRE(same_type(c, x, y) || has_type(c, y, DTYPE_F32), "output is neither fp32 nor of the type of x", y);
    if (b) REQUIRE(is_shape1(c, b, sh(c, codes)->dim[0]) && same_type(c, b, y), "bias is not (out)", b);
    if (pick) return verify_tokens(c, pick, sh(c, y)->dim[0]);
    REQUIRE(sh(c, y)->dim[0] == sh(c, x)->dim[0], "without pick there are as many rows as in x", y);
    return OK;
}
const op_cost cost_LINEAR_INT8 = {FLOPS(linear_int8)};
op_product product_LINEAR_INT8(const program *p, const op *o) {
    value_id codes = o->in[LINEAR_INT8_CODES];
    return (op_product){.m = rows_in(p, o->out[LINEAR_INT8_Y]), .n = rows_in(p, codes), .k = columns_in(p, codes)};
}

/* The codes of all parts as one weight; every part begins where a block of nf4 does. */
static status check_codes(const checker *c, base_format f, int64_t n_out, int64_t n_in) {
    value_id codes = IN(LINEAR_CODES_CODES), scale = IN(LINEAR_CODES_SCALE), scale_codes = IN(LINEAR_CODES_SCALE_CODES);
    value_id offset = IN(LINEAR_CODES_OFFSET);
    const op_attr *a = &c->o->attr;
    base_sizes all = {0};
    int64_t next = 0;
    REQUIRE(f > BASE_COMPUTE && f < BASE_FORMAT_COUNT && a->n_parts >= 1 && a->n_parts <= 3,
            "not codes of 1 to 3 parts", codes);
    REQUIRE(f != BASE_INT8 || a->n_parts == 1, "rows of int8 are one part", codes);
    REQUIRE(f != BASE_NF4 || n_in % NF4_BLOCK == 0, "blocks of nf4 go across the ends of rows", codes);
    for (int i = 0; i < a->n_parts; i++) {
        REQUIRE(a->part_first[i] == next && a->part_columns[i] > 0, "parts are not one under the other", codes);
        next += a->part_columns[i];
        base_sizes n = base_sizes_of(f, a->part_columns[i], n_in);
        all.codes += n.codes, all.scales += n.scales, all.scale_codes += n.scale_codes, all.offsets += n.offsets;
    }
    REQUIRE(next == n_out, "parts are not the whole weight", codes);
    REQUIRE(has_type(c, codes, base_codes_type(f)), "codes have the dtype of another format", codes);
    REQUIRE(f == BASE_NF4 ? is_shape1(c, codes, all.codes) : is_shape2(c, codes, n_out, n_in),
            "codes are not (out, in)", codes);
    REQUIRE(has_type(c, scale, DTYPE_F32) && is_shape1(c, scale, all.scales),
            "not as many fp32 scales as the parts have", scale);
    REQUIRE(!!scale_codes == (f == BASE_NF4) && !!offset == (f == BASE_NF4), "only nf4 has scale codes and offsets",
            codes);
    if (f != BASE_NF4) return OK;
    REQUIRE(has_type(c, scale_codes, DTYPE_U8) && is_shape1(c, scale_codes, all.scale_codes),
            "nf4 has one uint8 scale code per block of 64", scale_codes);
    REQUIRE(has_type(c, offset, DTYPE_F32) && is_shape1(c, offset, all.offsets), "not one fp32 offset per part",
            offset);
    return OK;
}

static double linear_codes(const program *p, const op *o) { /* x (N, in), y (M, out) */
    return 2.0 * count_of(p, o->out[LINEAR_CODES_Y]) * (double)program_get(p, o->in[LINEAR_CODES_X])->shape.dim[1];
}

status verify_LINEAR_CODES(const checker *c) {
    value_id x = IN(LINEAR_CODES_X), b = IN(LINEAR_CODES_B), pick = IN(LINEAR_CODES_PICK), y = OUT(LINEAR_CODES_Y);
    TRY(verify_rows(c, x));
    REQUIRE(has_type(c, x, DTYPE_BF16) || has_type(c, x, DTYPE_F16), "expected 16 bits", x);
    REQUIRE(sh(c, y)->rank == 2, "output is not (N, out)", y);
    TRY(check_codes(c, c->o->attr.base_format, sh(c, y)->dim[1], sh(c, x)->dim[1]));
    REQUIRE(same_type(c, x, y) || has_type(c, y, DTYPE_F32), "output is neither fp32 nor of the type of x", y);
    if (b) REQUIRE(is_shape1(c, b, sh(c, y)->dim[1]) && same_type(c, b, y), "bias is not (out)", b);
    if (pick) return verify_tokens(c, pick, sh(c, y)->dim[0]);
    REQUIRE(sh(c, y)->dim[0] == sh(c, x)->dim[0], "without pick there are as many rows as in x", y);
    return OK;
}
const op_cost cost_LINEAR_CODES = {FLOPS(linear_codes)};
op_product product_LINEAR_CODES(const program *p, const op *o) {
    value_id y = o->out[LINEAR_CODES_Y];
    return (op_product){.m = rows_in(p, y), .n = columns_in(p, y), .k = columns_in(p, o->in[LINEAR_CODES_X])};
}

static status check_nf4_scales(const checker *c, const base_sizes *n) {
    value_id scale_codes = IN(DEQUANTIZE_SCALE_CODES), offset = IN(DEQUANTIZE_OFFSET);
    REQUIRE(scale_codes && has_type(c, scale_codes, DTYPE_U8) && is_shape1(c, scale_codes, n->scale_codes),
            "nf4 has one uint8 scale code per block of 64", scale_codes);
    REQUIRE(offset && is_number(c, offset), "the offset of nf4 is not one fp32", offset);
    return OK;
}

status verify_DEQUANTIZE(const checker *c) {
    value_id codes = IN(DEQUANTIZE_CODES), scale = IN(DEQUANTIZE_SCALE), w = OUT(DEQUANTIZE_W);
    base_format f = c->o->attr.base_format;
    REQUIRE(f > BASE_COMPUTE && f < BASE_FORMAT_COUNT, "a weight without codes is not dequantised", codes);
    REQUIRE(is_compute(c, w) && sh(c, w)->rank == 2, "w is not (out, in) of fp32, bf16 or fp16", w);
    base_sizes n = base_sizes_of(f, sh(c, w)->dim[0], sh(c, w)->dim[1]);
    REQUIRE(has_type(c, codes, base_codes_type(f)), "codes have the dtype of another format", codes);
    REQUIRE(f == BASE_NF4 ? is_shape1(c, codes, n.codes) : shape_equal(sh(c, codes), sh(c, w)),
            f == BASE_NF4 ? "nf4 has two codes per byte" : "codes are not (out, in)", codes);
    REQUIRE(has_type(c, scale, DTYPE_F32) && is_shape1(c, scale, n.scales), "not as many fp32 scales as the format has",
            scale);
    if (f == BASE_NF4) return check_nf4_scales(c, &n);
    REQUIRE(!IN(DEQUANTIZE_SCALE_CODES) && !IN(DEQUANTIZE_OFFSET), "only nf4 has scale codes and an offset",
            IN(DEQUANTIZE_SCALE_CODES) ? IN(DEQUANTIZE_SCALE_CODES) : IN(DEQUANTIZE_OFFSET));
    return OK;
}
const op_cost cost_DEQUANTIZE = {PER_OUTPUT(2, DEQUANTIZE_W)}; /* a product, a rounding */

/* ---- elementwise ----------------------------------------------------------------------------------------------------- */

status verify_ADD(const checker *c) {
    if (sh(c, IN(ADD_A))->rank != 1) TRY(verify_rows(c, IN(ADD_A))); /* 1: gradients of a norm */
    TRY(verify_like(c, IN(ADD_A), IN(ADD_B)));
    return verify_like(c, IN(ADD_A), OUT(ADD_Y));
}
const op_cost cost_ADD = {PER_INPUT(1, ADD_A)};

status verify_DROPOUT(const checker *c) {
    const op_attr *a = &c->o->attr;
    value_id x = IN(DROPOUT_X);
    TRY(verify_rows(c, x));
    TRY(verify_scalars(c, IN(DROPOUT_SCALARS)));
    REQUIRE(a->rate >= 0 && a->rate < 1 && a->first_element >= 0, "bad rate", x);
    return verify_like(c, x, OUT(DROPOUT_Y));
}
const op_cost cost_DROPOUT = {PER_INPUT(13, DROPOUT_X)}; /* a word of noise, a comparison, a product */

status verify_SWIGLU(const checker *c) {
    value_id gu = IN(SWIGLU_GU), y = OUT(SWIGLU_Y);
    TRY(verify_rows(c, gu));
    REQUIRE(is_shape2(c, y, sh(c, gu)->dim[0], sh(c, gu)->dim[1] / 2) && same_type(c, gu, y), "output is not (N, F)",
            y);
    return verify_amax(c, y, OUT(SWIGLU_AMAX));
}
#define SWIGLU_FLOPS 8 /* per element of gate and up: one exp for two */
const op_cost cost_SWIGLU = {PER_INPUT(SWIGLU_FLOPS, SWIGLU_GU)};

status verify_SWIGLU_BWD(const checker *c) {
    value_id gu = IN(SWIGLU_BWD_GU), dy = IN(SWIGLU_BWD_DY), dgu = OUT(SWIGLU_BWD_DGU);
    TRY(verify_rows(c, gu));
    REQUIRE(is_shape2(c, dy, sh(c, gu)->dim[0], sh(c, gu)->dim[1] / 2), "dy is not (N, F)", dy);
    TRY(verify_amax(c, dgu, OUT(SWIGLU_BWD_AMAX)));
    if (OUT(SWIGLU_BWD_Y)) TRY(verify_like(c, dy, OUT(SWIGLU_BWD_Y)));
    return verify_like(c, gu, dgu);
}
static double swiglu_again(const program *p, const op *o) {
    return o->out[SWIGLU_BWD_Y] ? SWIGLU_FLOPS * count_of(p, o->in[SWIGLU_BWD_GU]) : 0;
}
static double swiglu_bwd(const program *p, const op *o) {
    return 11 * count_of(p, o->in[SWIGLU_BWD_GU]) + swiglu_again(p, o);
}
const op_cost cost_SWIGLU_BWD = {FLOPS(swiglu_bwd), .again = swiglu_again};

status verify_GELU(const checker *c) {
    TRY(verify_rows(c, IN(GELU_X)));
    return verify_like(c, IN(GELU_X), OUT(GELU_Y));
}
const op_cost cost_GELU = {PER_INPUT(20, GELU_X)};

status verify_GELU_BWD(const checker *c) {
    TRY(verify_like(c, IN(GELU_BWD_X), IN(GELU_BWD_DY)));
    return verify_like(c, IN(GELU_BWD_X), OUT(GELU_BWD_DX));
}
const op_cost cost_GELU_BWD = {PER_INPUT(30, GELU_BWD_X)};
