/* test_few_rows.c - linear layers over few rows, as decoding has them: every row is the product in double to the rounding of fp32
 * sums, and has the bits that it has beside any other rows. */
#include "op_check.h"
#include "backend_choice.h"
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct few {
    int64_t n, k;
    bool bias;
} few;

/* Parts of a tile of 64 columns and of a step of 64; k long enough to be cut among blocks; k that no 16-byte load divides; so many columns
 * that k is not cut, and more steps of k than a block holds at once. */
static const few shapes[] = {{192, 256, true},   {130, 72, false}, {64, 2048, true},
                             {2056, 520, false}, {48, 36, true},   {12744, 456, true}};
enum { ROWS_MOST = 65 };

static op_case *linear_case(const few *s, dtype t, int64_t m) {
    op_case *c = op_case_open(OP_LINEAR, &(op_attr){0});
    op_case_random(c, LINEAR_X, t, SHAPE(m, s->k), 1, 1);
    op_case_random(c, LINEAR_W, t, SHAPE(s->n, s->k), 1, 2);
    if (s->bias) op_case_random(c, LINEAR_B, t, SHAPE(s->n), 1, 3);
    op_case_output(c, LINEAR_Y, t, SHAPE(m, s->n));
    op_case_run(c, 2);
    return c;
}

static void check_rows(op_case *c, const few *s, dtype t, int64_t m) {
    const double *x = op_case_input_values(c, LINEAR_X), *w = op_case_input_values(c, LINEAR_W), *b = NULL;
    const double *y = op_case_values(c, LINEAR_Y);
    if (s->bias) b = op_case_input_values(c, LINEAR_B);
    for (int64_t i = 0; i < m * s->n; i++) {
        double sum = b ? b[i % s->n] : 0, size = fabs(sum);
        for (int64_t k = 0; k < s->k; k++) {
            double term = x[i / s->n * s->k + k] * w[i % s->n * s->k + k];
            sum += term, size += fabs(term);
        }
        check_element(y[i], sum, U32 * (double)(s->k + 2) * size, t, "linear", (size_t)i);
    }
}

static void rows_are_products(void **state) {
    static const int64_t rows[] = {1, 8, 9, 17, 33, ROWS_MOST};
    for (size_t i = 0; i < ARRAY_LENGTH(shapes); i++)
        for (size_t t = 0; t < ARRAY_LENGTH(check_types); t++)
            for (size_t r = 0; r < ARRAY_LENGTH(rows); r++) {
                op_case *c = linear_case(&shapes[i], check_types[t], rows[r]);
                check_rows(c, &shapes[i], check_types[t], rows[r]);
                op_case_close(c);
            }
}

/* A random input's first rows are the same whatever follows. Only the GPU's kernel for few rows of 16 bits promises this. */
static void rows_do_not_know_each_other(void **state) {
    static const int64_t rows[] = {1, 7, 8, 16, 17, 33};
    if (!backend_under_test()->discrete) skip();
    for (size_t i = 0; i < ARRAY_LENGTH(shapes); i++) {
        if (shapes[i].k % 8) continue;
        op_case *all = linear_case(&shapes[i], DTYPE_BF16, 64);
        for (size_t r = 0; r < ARRAY_LENGTH(rows); r++) {
            op_case *c = linear_case(&shapes[i], DTYPE_BF16, rows[r]);
            check_equal_bits(c, LINEAR_Y, all, LINEAR_Y, (size_t)(rows[r] * shapes[i].n), "a row beside others");
            op_case_close(c);
        }
        op_case_close(all);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_are_products),
                                       cmocka_unit_test(rows_do_not_know_each_other)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
