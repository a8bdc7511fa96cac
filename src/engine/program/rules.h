/* rules.h - what each op asks of its operands, and what it costs (private to program).
 *
 * Every op has a function verify_<OP> and after it a row cost_<OP>, in rules_layers.c or rules_step.c. Beside the row, an op of
 * class PRODUCT has product_<OP> and one of class LOGITS has logits_<OP>; a message has sent_<OP> instead of the row. What is
 * missing does not link. A check ends at the first condition that does not hold:
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

/* What an op costs. exp, tanh and the like count as the ten or so operations of their polynomials, a root or a division as a
 * few. */
typedef struct op_cost {
    double per_element; /* operations for each element of the operand that gives the op its size */
    int operand;
    bool is_output;                                 /* is that operand an output */
    double (*flops)(const program *p, const op *o); /* instead, where a product is counted by its shapes */
    double (*again)(const program *p, const op *o); /* of its arithmetic, what repeats the forward; NULL: none */
    double (*saved)(const program *p, const op *o); /* of its operands' bytes, those that are not moved; NULL: none */
    double (*twice)(const program *p, const op *o); /* ... and those that a GPU reads twice; NULL: none */
} op_cost;
typedef struct op_logits {
    int dw;     /* its output that is the gradient of the unembedding; -1: none */
    bool again; /* op_logits_again */
} op_logits;
#define PER_INPUT(n, name) .per_element = (n), .operand = (name)
#define PER_OUTPUT(n, name) .per_element = (n), .operand = (name), .is_output = true
#define NO_ARITHMETIC .per_element = 0
#define FLOPS(function) .flops = (function)

/* Operands against each other. That required ones are there is known before (verify.c); others may be NO_VALUE. */
#define OP(id, ...)                                         \
    status verify_##id(const checker *c);                   \
    extern const op_cost cost_##id;                         \
    op_product product_##id(const program *p, const op *o); \
    extern const op_logits logits_##id;                     \
    double sent_##id(const program *p, const op *o);
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
status verify_weight_grad(const checker *c, value_id w, value_id dw); /* dw may be absent */
status verify_gain(const checker *c, value_id x, value_id g);         /* gamma, beta: (C) of the compute dtype */
status verify_amax(const checker *c, value_id x, value_id amax);   /* the largest number of x, where it is asked for */
status verify_statistic(const checker *c, value_id x, value_id s); /* one fp32 per row of x */
status verify_scalars(const checker *c, value_id v);
/* The ids of this rank's rows lie in the vocabulary, and the rows in the table. */
status verify_vocabulary(const checker *c, value_id table);

/* ---- for costs; of an operand that is absent: 0 ----------------------------------------------------------------------- */

static inline double count_of(const program *p, value_id v) {
    return v ? (double)shape_count(&program_get(p, v)->shape) : 0;
}
static inline double bytes_of(const program *p, value_id v) { return v ? (double)value_bytes(program_get(p, v)) : 0; }
static inline int64_t rows_in(const program *p, value_id v) { return program_get(p, v)->shape.dim[0]; }
static inline int64_t columns_in(const program *p, value_id v) { return program_get(p, v)->shape.dim[1]; }
static inline double rows_of(const program *p, value_id v) { return (double)program_get(p, v)->shape.dim[0]; }
