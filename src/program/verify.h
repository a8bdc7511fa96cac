/* verify.h - an op under examination (private to the room).
 *
 * A check ends at the first thing that does not hold:
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

/* ---- verify_ops.c ------------------------------------------------------------------------------------------------- */

status verify_op(const checker *c); /* operands against each other; required ones are there */
