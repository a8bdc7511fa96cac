#pragma once
/* op_check.h - bounds for op tests.
 *
 * A kernel may be wrong by two things: the one rounding of its result to the output dtype, at most half a unit in the
 * last place, and the fp32 arithmetic before it, which each test bounds itself as `arithmetic`, in absolute terms, from
 * the number of operations and the size of the terms. */
#include "op_harness.h"
#include <math.h>
#include <setjmp.h>

#include <cmocka.h>

#define U32 0x1p-24 /* half a unit in the last place of an fp32 in [1, 2) */

static const dtype check_types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

/* Largest relative error of one rounding to nearest. */
static inline double check_roundoff(dtype t) {
    return t == DTYPE_BF16 ? 0x1p-8 : t == DTYPE_F16 ? 0x1p-11 : t == DTYPE_F64 ? 0x1p-53 : U32;
}
/* Largest absolute error of one rounding of a number below the normal range. */
static inline double check_tiny(dtype t) { return t == DTYPE_F16 ? 0x1p-25 : 0x1p-126; }

static inline void check_element(double got, double want, double arithmetic, dtype t, const char *what, size_t i) {
    double bound = check_roundoff(t) * (fabs(want) + arithmetic) + arithmetic + check_tiny(t);
    if (!(fabs(got - want) <= bound))
        fail_msg("%s (%s) [%zu] = %.9g, reference %.9g, error %.3g, bound %.3g", what, dtype_name(t), i, got, want,
                 fabs(got - want), bound);
}

/* Every element of an output, one bound for the arithmetic of all. */
static inline void check_output(op_case *c, int output, dtype t, const double *want, size_t n, double arithmetic,
                                const char *what) {
    const double *got = op_case_values(c, output);
    for (size_t i = 0; i < n; i++) check_element(got[i], want[i], arithmetic, t, what, i);
}

static inline void check_equal_bits(op_case *a, int output_a, op_case *b, int output_b, size_t n, const char *what) {
    const double *x = op_case_values(a, output_a), *y = op_case_values(b, output_b);
    for (size_t i = 0; i < n; i++)
        if (memcmp(&x[i], &y[i], sizeof *x) != 0) fail_msg("%s [%zu]: %.17g and %.17g differ", what, i, x[i], y[i]);
}
