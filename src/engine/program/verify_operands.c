/* verify_operands.c - checks of single operands: rows, tokens, a gain, a gradient, a statistic of rows.
 *
 * The checks of whole ops are built from these (rules_layers.c, rules_step.c). */
#include "program/rules.h"

status verify_like(const checker *c, value_id x, value_id y) {
    REQUIRE(shape_equal(sh(c, x), sh(c, y)), "shape differs from its partner", y);
    REQUIRE(same_type(c, x, y), "dtype differs from its partner", y);
    return OK;
}

status verify_rows(const checker *c, value_id x) {
    REQUIRE(sh(c, x)->rank == 2, "expected rows (N, C)", x);
    REQUIRE(is_compute(c, x), "expected fp32, bf16 or fp16", x);
    return OK;
}

status verify_tokens(const checker *c, value_id v, int64_t n) {
    REQUIRE(has_type(c, v, DTYPE_I32) && is_shape1(c, v, n), "expected int32 (N)", v);
    return OK;
}

status verify_weight_grad(const checker *c, value_id w, value_id dw) {
    if (!dw) return OK; /* the parameter is not trained */
    REQUIRE(shape_equal(sh(c, w), sh(c, dw)), "gradient shape differs from its parameter", dw);
    REQUIRE(has_type(c, dw, DTYPE_F32) || has_type(c, dw, DTYPE_BF16), "weight gradient must be fp32 or bf16", dw);
    return OK;
}

status verify_gain(const checker *c, value_id x, value_id g) {
    REQUIRE(is_shape1(c, g, sh(c, x)->dim[1]), "gain does not match the rows", g);
    REQUIRE(same_type(c, x, g), "gain dtype differs from the rows", g);
    return OK;
}

status verify_amax(const checker *c, value_id x, value_id amax) {
    if (amax) REQUIRE(has_type(c, x, DTYPE_BF16) && is_number(c, amax), "amax is not one fp32 of a bf16 tensor", amax);
    return OK;
}

status verify_statistic(const checker *c, value_id x, value_id s) {
    REQUIRE(has_type(c, s, DTYPE_F32) && is_shape1(c, s, sh(c, x)->dim[0]), "expected fp32 (N)", s);
    return OK;
}

status verify_scalars(const checker *c, value_id v) {
    REQUIRE(has_type(c, v, DTYPE_U8) && is_shape1(c, v, sizeof(step_scalars)), "expected the step scalars", v);
    return OK;
}

status verify_vocabulary(const checker *c, value_id table) {
    const op_attr *a = &c->o->attr;
    REQUIRE(a->vocab == 0 || (a->first_id >= 0 && a->n_ids > 0 && a->n_ids <= sh(c, table)->dim[0] &&
                              a->first_id + a->n_ids <= a->vocab),
            "its ids are not part of the vocabulary", table);
    return OK;
}
