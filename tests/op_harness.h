#pragma once
/* op_harness.h - run one op of one backend on buffers with guard words, and read the result as doubles.
 *
 *     op_case *t = op_case_open(OP_GELU, &(op_attr){0});
 *     op_case_random(t, GELU_X, DTYPE_BF16, SHAPE(7, 33), 1.0, 42);   // normal numbers, rounded to the dtype
 *     op_case_output(t, GELU_Y, DTYPE_BF16, SHAPE(7, 33));            // poisoned before the run
 *     op_case_run(t, 2);                                    // 2 threads; fails the test if a guard word changed
 *     double *x = op_case_input_values(t, GELU_X), *y = op_case_values(t, GELU_Y);   // owned by the case
 *     ...
 *     op_case_close(t);
 *
 * op_case_run also runs the op again with 1 and 3 threads on fresh copies of the inputs and fails the test when any
 * output bit differs. */
#include "backend/backend.h"

typedef struct op_case op_case;
op_case *op_case_open(op_kind kind, const op_attr *attr);
void op_case_close(op_case *t);
void op_case_random(op_case *t, int input, dtype type, shape s, double scale, uint64_t seed);
void op_case_floats(op_case *t, int input, dtype type, shape s, const double *values); /* rounded to type */
void op_case_ints(op_case *t, int input, shape s, const int32_t *values);
void op_case_bytes(op_case *t, int input, shape s, const void *bytes); /* DTYPE_U8: scalars */
void op_case_output(op_case *t, int output, dtype type, shape s);
void op_case_output_floats(op_case *t, int output, dtype type, shape s, const double *values); /* a `+` output */
void op_case_alias(op_case *t, int output, int input); /* in place: the output uses the input's buffer */
/* Only the first n rows hold something (op.rows). The others of an output are compared too: give them contents. */
void op_case_rows(op_case *t, int32_t n);
void op_case_run(op_case *t, int n_threads);
double *op_case_input_values(op_case *t, int input); /* what the kernel was given, after rounding */
double *op_case_values(op_case *t, int output);      /* what it wrote */
int32_t *op_case_ints_out(op_case *t, int output);
/* Relative error of the whole output: ||out - ref|| / ||ref||, and the largest |out - ref| / (1 + |ref|). */
double op_case_error(op_case *t, int output, const double *reference, double *largest);
