/* test_exact.c - the square root that is made of products has the bits of the one that the processor makes.
 *
 * Two powers of two have every significand there is, and every other number in range is one of these times a power of
 * four; edges of the range and numbers outside of it are tried beside ordinary ones, because a vector is finished as a
 * whole. Where there is no such root the two are the same function and this file says little. */
#include "backend/cpu/exact.h"
#include "op_check.h"
#include <stdint.h>

/* As a kernel calls it. */
static vec root_of(vec a) { return sqrt_finish(a, sqrt_start(a)); }

static void assert_root(vec a) {
    vec got = root_of(a);
    for (int i = 0; i < VEC_WIDTH; i++) {
        float want = sqrtf(a[i]), have = got[i];
        if (memcmp(&have, &want, sizeof want) != 0 && !(isnan(have) && isnan(want)))
            fail_msg("the root of %a in lane %d is %a, not %a", a[i], i, have, want);
    }
}

static vec from_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return vec_set(f);
}

/* sqrt_start alone: a wrong root must not be saved by sqrt_finish. */
static void test_every_significand_has_the_right_root(void **state) {
    vec_u32 lanes;
    for (uint32_t i = 0; i < VEC_WIDTH; i++) lanes[i] = i;
    for (uint32_t bits = 0x3f800000u; bits < 0x40800000u; bits += VEC_WIDTH) { /* 1 up to 4 */
        vec a = (vec)(lanes + bits);
        vec_i32 same = sqrt_start(a) == sqrt_exact(a);
        for (int i = 0; i < VEC_WIDTH; i++)
            if (!same[i]) fail_msg("the root of %a is not rounded to nearest", a[i]);
    }
}

/* Significands that are hard to round, or at the ends, at every exponent there is. */
static void test_every_exponent_has_the_right_root(void **state) {
    static const uint32_t significands[] = {0,        1,        2,        3,        0x3504f2, 0x3504f3,
                                            0x3504f4, 0x400000, 0x7ffffd, 0x7ffffe, 0x7fffff};
    for (uint32_t exponent = 0; exponent < 256; exponent++)
        for (size_t i = 0; i < ARRAY_LENGTH(significands); i++) {
            assert_root(from_bits(exponent << 23 | significands[i]));
            assert_root(from_bits(1u << 31 | exponent << 23 | significands[i]));
        }
    for (uint32_t bits = 0x0d000000u; bits < 0x0e000000u; bits += 61)
        assert_root(from_bits(bits)); /* 2^-101 to 2^-99 */
}

/* One lane that only the divider can do, in every place, beside ordinary ones. */
static void test_a_strange_lane_spoils_no_other(void **state) {
    const float strange[] = {0, -0.0f, INFINITY, -INFINITY, NAN, -1, 0x1p-149f, 0x1p-126f, 0x1p-100f, 0x1.fffffep+127f};
    for (size_t s = 0; s < ARRAY_LENGTH(strange); s++)
        for (int lane = 0; lane < VEC_WIDTH; lane++) {
            vec a;
            for (int i = 0; i < VEC_WIDTH; i++) a[i] = 1e-9f * (float)(i + 1);
            a[lane] = strange[s];
            assert_root(a);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_significand_has_the_right_root),
        cmocka_unit_test(test_every_exponent_has_the_right_root),
        cmocka_unit_test(test_a_strange_lane_spoils_no_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
