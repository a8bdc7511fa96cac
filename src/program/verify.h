/* verify.h - private to program: the op that is checked.
 *
 * Every op has a function verify_<OP>: one that is missing does not link. A check ends at the first condition that does not
 * hold:
 *     REQUIRE(has_type(c, v, DTYPE_F32), "expected fp32", v); */
#pragma once

#include "program/program.h"

typedef struct checker {
    const program *p;
    const op *o;
    size_t index; /* of the op */
} checker;

/* ERR_BUG that names the op, what is wrong, and the value with its dtype and shape; v: NO_VALUE where none is to blame. */
status verify_fail(const checker *c, const char *what, value_id v);

#define REQUIRE(cond, what, v)                       \
    do {                                             \
        if (!(cond)) return verify_fail(c, what, v); \
    } while (0)
#define IN(name) (c->o->in[name])
#define OUT(name) (c->o->out[name])

/* Checks operands against each other. verify.c has checked that required ones are present; others may be NO_VALUE. */
#define OP(id, in, out, inplace, doc) status verify_##id(const checker *c);
#include "program/ops.def"
#undef OP

/* ---- of one operand, or a pair: verify_operands.c ------------------------------------------------------------------ */

static inline const shape *sh(const checker *c, value_id v) { return &c->p->values[v].shape; }
static inline dtype type_of(const checker *c, value_id v) { return c->p->values[v].type; }
static inline bool has_type(const checker *c, value_id v, dtype t) { return type_of(c, v) == t; }
static inline bool same_type(const checker *c, value_id a, value_id b) { return type_of(c, a) == type_of(c, b); }
static inline bool is_shape1(const checker *c, value_id v, int64_t a) {
    return sh(c, v)->rank == 1 && sh(c, v)->dim[0] == a;
}
static inline bool is_shape2(const checker *c, value_id v, int64_t a, int64_t b) {
    return sh(c, v)->rank == 2 && sh(c, v)->dim[0] == a && sh(c, v)->dim[1] == b;
}
static inline bool is_number(const checker *c, value_id v) { return has_type(c, v, DTYPE_F32) && is_shape1(c, v, 1); }
static inline bool is_compute(const checker *c, value_id v) {
    return has_type(c, v, DTYPE_F32) || has_type(c, v, DTYPE_BF16) || has_type(c, v, DTYPE_F16);
}

status verify_like(const checker *c, value_id x, value_id y); /* equal shape and dtype */
status verify_rows(const checker *c, value_id x);
status verify_tokens(const checker *c, value_id v, int64_t n);
status verify_weight_grad(const checker *c, value_id w, value_id dw);
status verify_gain(const checker *c, value_id x, value_id g);      /* gamma, beta: (C) of the compute dtype */
status verify_amax(const checker *c, value_id x, value_id amax);   /* the largest number of x, where it is asked for */
status verify_statistic(const checker *c, value_id x, value_id s); /* one fp32 per row of x */
status verify_scalars(const checker *c, value_id v);
/* The ids of this rank's rows lie in the vocabulary, and the rows in the table. */
status verify_vocabulary(const checker *c, value_id table);
