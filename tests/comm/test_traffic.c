/* test_traffic.c - the bytes that a rank takes from others in each kind of exchange, as a run reports them. */
#include "comm/comm_state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

enum { BYTES = 4 * 2000 }; /* of the operand that each kind names */

static uint64_t taken(op_kind kind, int n, int index, size_t x_bytes, size_t y_bytes) {
    return collective_bytes_taken(
        &(collective){.kind = kind, .n = n, .index = index, .x_bytes = x_bytes, .y_bytes = y_bytes, .type = DTYPE_F32});
}

/* Its own part no rank takes from another. */
static void a_rank_takes_what_the_others_have(void **state) {
    (void)state;
    for (int n = 2; n <= 8; n++) {
        uint64_t others = (uint64_t)n - 1, all = (uint64_t)n * BYTES;
        for (int i = 0; i < n; i++) {
            assert_int_equal(taken(OP_ALL_GATHER, n, i, BYTES, all), others * BYTES);
            assert_int_equal(taken(OP_REDUCE_SCATTER, n, i, all, BYTES), others * BYTES);
            assert_int_equal(taken(OP_ALL_TO_ALL, n, i, all, all), others * BYTES);
            assert_int_equal(taken(OP_SHIFT, n, i, BYTES, BYTES), BYTES);
            assert_int_equal(taken(OP_RECV, n, i, 0, BYTES), BYTES);
            assert_int_equal(taken(OP_SEND, n, i, BYTES, 0), 0);
        }
    }
}

/* A sum over all is a reduce-scatter and an all-gather: together the ranks take twice what all but one hold, also where
 * elements do not divide by the ranks. */
static void a_sum_over_all_takes_twice_what_all_but_one_hold(void **state) {
    (void)state;
    for (size_t bytes = BYTES; bytes < BYTES + 8 * sizeof(float); bytes += sizeof(float))
        for (int n = 2; n <= 8; n++) {
            uint64_t together = 0, most = 0, least = UINT64_MAX;
            for (int i = 0; i < n; i++) {
                uint64_t one = taken(OP_ALL_REDUCE, n, i, bytes, bytes);
                together += one, most = MAX(most, one), least = MIN(least, one);
            }
            assert_int_equal(together, 2 * ((uint64_t)n - 1) * bytes);
            assert_true(most - least <= (uint64_t)n * sizeof(float));
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_takes_what_the_others_have),
        cmocka_unit_test(a_sum_over_all_takes_twice_what_all_but_one_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
