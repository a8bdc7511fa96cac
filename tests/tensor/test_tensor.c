/* test_tensor.c - dtypes, shapes, and conversions that round to nearest even and agree bit for bit however they run. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "tensor/tensor.h"

#include <math.h>
#include <stdlib.h>

static float from_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static uint32_t to_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

/* ---- the table ----------------------------------------------------------------------------------------------- */

static void test_dtype_table(void **state) {
    assert_string_equal(dtype_name(DTYPE_BF16), "bf16");
    assert_string_equal(dtype_file_name(DTYPE_F8E4M3), "F8_E4M3");
    assert_int_equal(dtype_bytes(DTYPE_F32), 4);
    assert_int_equal(dtype_bytes(DTYPE_F64), 8);
    assert_int_equal(dtype_bytes(DTYPE_I8), 1);
    assert_true(dtype_is_float(DTYPE_F16));
    assert_false(dtype_is_float(DTYPE_I32));
    for (int t = 0; t < DTYPE_COUNT; t++) {
        dtype found;
        assert_true(dtype_from_file_name(dtype_file_name((dtype)t), &found));
        assert_int_equal(found, t);
    }
    dtype kept = DTYPE_U8;
    assert_false(dtype_from_file_name("F4", &kept));
    assert_false(dtype_from_file_name("", &kept));
    assert_false(dtype_from_file_name("f32", &kept));
    assert_int_equal(kept, DTYPE_U8);
}

static void test_shapes(void **state) {
    char buf[64];
    shape s = SHAPE(2, 3), scalar = {0}, empty = SHAPE(4, 0), large = SHAPE(151669, 1 << 20, 7);
    assert_int_equal(shape_count(&s), 6);
    assert_int_equal(shape_row_length(&s), 3);
    assert_int_equal(shape_row_count(&s), 2);
    assert_int_equal(shape_bytes(&s, DTYPE_BF16), 12);
    assert_int_equal(shape_count(&scalar), 1);
    assert_int_equal(shape_count(&empty), 0);
    assert_int_equal(shape_bytes(&empty, DTYPE_F64), 0);
    assert_int_equal(shape_bytes(&large, DTYPE_F32), 4ull * 151669 * (1 << 20) * 7);
    assert_string_equal(shape_format(buf, &s), "(2, 3)");
    assert_string_equal(shape_format(buf, &scalar), "()");
    assert_string_equal(shape_format(buf, &(shape){1, {5}}), "(5)");
    assert_string_equal(shape_format(buf, &SHAPE(1, 2, 3, 4)), "(1, 2, 3, 4)");
    assert_int_equal(strlen(shape_format(buf, &SHAPE(INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX))), 63);
    assert_true(str_ends_with(buf, "..."));

    assert_true(shape_equal(&s, &SHAPE(2, 3)));
    assert_false(shape_equal(&s, &SHAPE(3, 2)));
    assert_false(shape_equal(&s, &SHAPE(2, 3, 1)));
    shape junk = SHAPE(2, 3);
    junk.dim[3] = 9; /* beyond its rank */
    assert_true(shape_equal(&s, &junk));
}

/* ---- scalars ------------------------------------------------------------------------------------------------- */

/* Independent of bit tricks: the value of a half by its definition. */
static double half_value(uint16_t h) {
    int e = (h >> 10) & 31, m = h & 0x3ff;
    double v = e == 0 ? ldexp(m, -24) : e == 31 ? (m ? (double)NAN : (double)INFINITY) : ldexp(1024 + m, e - 25);
    return h & 0x8000 ? -v : v;
}

static void test_f16_to_f32_all_halves(void **state) {
    for (uint32_t h = 0; h < 65536; h++) {
        float f = f16_to_f32((uint16_t)h);
        double want = half_value((uint16_t)h);
        assert_int_equal(to_bits(f) >> 31, h >> 15);
        if (isnan(want)) { /* quiet, payload kept */
            assert_int_equal(to_bits(f), (h & 0x8000u) << 16 | 0x7fc00000u | (h & 0x3ffu) << 13);
        } else {
            assert_true((double)f == want);
            assert_int_equal(f32_to_f16(f), h);
        }
#if defined(__aarch64__)
        __fp16 native;
        uint16_t bits = (uint16_t)h;
        memcpy(&native, &bits, 2);
        assert_int_equal(to_bits((float)native), to_bits(f));
#endif
    }
}

/* Between two neighbouring halves the midpoint goes to the even one, and one step to either side goes that way. */
static void test_f32_to_f16_at_every_midpoint(void **state) {
    for (uint32_t h = 0; h < 0x7c00; h++) {
        double low = half_value((uint16_t)h), high = h == 0x7bff ? 65536 : half_value((uint16_t)(h + 1));
        float middle = (float)((low + high) / 2); /* exact: one bit more than a half has */
        assert_true((double)middle == (low + high) / 2);
        uint16_t even = (uint16_t)(h & 1 ? h + 1 : h);
        for (uint32_t sign = 0; sign < 2; sign++) {
            uint32_t s = sign << 31, m = to_bits(middle);
            assert_int_equal(f32_to_f16(from_bits(s | m)), sign << 15 | even);
            assert_int_equal(f32_to_f16(from_bits(s | (m - 1))), sign << 15 | h);
            assert_int_equal(f32_to_f16(from_bits(s | (m + 1))), sign << 15 | (h + 1));
        }
    }
}

static void test_f32_to_f16_specials(void **state) {
    assert_int_equal(f32_to_f16(0.0f), 0);
    assert_int_equal(f32_to_f16(-0.0f), 0x8000);
    assert_int_equal(f32_to_f16(1.0f), 0x3c00);
    assert_int_equal(f32_to_f16(65504.0f), 0x7bff);
    assert_int_equal(f32_to_f16(65519.996f), 0x7bff);
    assert_int_equal(f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(f32_to_f16(-1e30f), 0xfc00);
    assert_int_equal(f32_to_f16(INFINITY), 0x7c00);
    assert_int_equal(f32_to_f16(-INFINITY), 0xfc00);
    assert_int_equal(f32_to_f16(0x1p-24f), 1);
    assert_int_equal(f32_to_f16(0x1p-25f), 0);
    assert_int_equal(f32_to_f16(from_bits(0x33000001)), 1);
    assert_int_equal(f32_to_f16(from_bits(1)), 0);
    assert_int_equal(f32_to_f16(from_bits(0x7fc00000)), 0x7e00);
    assert_int_equal(f32_to_f16(from_bits(0x7f800001)), 0x7e00); /* a signalling NaN must not become inf */
    assert_int_equal(f32_to_f16(from_bits(0xffffffff)), 0xffff);
}

static void test_f32_to_f16_random_floats(void **state) {
    for (uint64_t i = 0; i < 400000; i++) {
        uint32_t u = (uint32_t)rng_u64(1, i);
        if (i & 1) u = (u & 0x807fffffu) | (uint32_t)(100 + rng_below(2, i, 50)) << 23; /* where halves live */
        float f = from_bits(u);
        uint16_t got = f32_to_f16(f);
        if (isnan(f)) {
            assert_true((got & 0x7fff) > 0x7c00);
        } else if ((got & 0x7fff) < 0x7c00) { /* no neighbour is closer */
            double off = fabs(half_value(got) - (double)f);
            if ((got & 0x7fff) < 0x7bff) assert_true(off <= fabs(half_value((uint16_t)(got + 1)) - (double)f));
            if ((got & 0x7fff) > 0) assert_true(off <= fabs(half_value((uint16_t)(got - 1)) - (double)f));
        } else {
            assert_true(fabsf(f) >= 65520);
        }
#if defined(__aarch64__)
        __fp16 native = (__fp16)f;
        uint16_t bits;
        memcpy(&bits, &native, 2);
        assert_int_equal(got, bits);
#endif
    }
}

static void test_bf16_rounds_to_nearest_even(void **state) {
    for (uint32_t h = 0; h < 65536; h++) {
        uint32_t u = h << 16;
        bool nan = (u & 0x7fffffffu) > 0x7f800000u;
        assert_int_equal(to_bits(bf16_to_f32((uint16_t)h)), u);
        assert_int_equal(f32_to_bf16(from_bits(u)), nan ? (h | 0x40) : h);
        if ((u & 0x7f800000u) == 0x7f800000u) continue;
        assert_int_equal(f32_to_bf16(from_bits(u | 0x7fff)), h);
        assert_int_equal(f32_to_bf16(from_bits(u | 0x8000)), h + (h & 1));
        assert_int_equal(f32_to_bf16(from_bits(u | 0x8001)), h + 1);       /* the largest rounds to inf */
        assert_int_equal(f32_to_bf16_stochastic(from_bits(u), 0xffff), h); /* what is exact stays */
        assert_int_equal(f32_to_bf16_stochastic(from_bits(u | 0x4000), 0xbfff), h);
        assert_int_equal(f32_to_bf16_stochastic(from_bits(u | 0x4000), 0xc000), h + 1);
    }
    assert_int_equal(f32_to_bf16(from_bits(0x7f800001)), 0x7fc0);
    assert_int_equal(f32_to_bf16_stochastic(INFINITY, 0xffff), 0x7f80);
    assert_int_equal(f32_to_bf16_stochastic(from_bits(0xff800001), 0xffff), 0xffc0);
}

/* ---- arrays -------------------------------------------------------------------------------------------------- */

static const dtype training_types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

/* Inputs that hold every pattern: all 16-bit ones, or for fp32 random bits and every half with its neighbours. */
static size_t make_inputs(dtype t, void **out) {
    size_t n = 65536 * 4;
    unsigned char *bytes = mem_alloc(n * dtype_bytes(t));
    for (size_t i = 0; i < n; i++) {
        uint16_t h = (uint16_t)i;
        uint32_t u;
        switch (i >> 16) {
        case 0: u = to_bits(f16_to_f32(h)); break;
        case 1: u = to_bits(f16_to_f32(h)) + 0x1000 - (i & 1) + (i >> 1 & 1); break; /* midpoints and beside them */
        case 2: u = (uint32_t)h << 16 | (0x7fff + (uint32_t)rng_below(1, i, 3)); break;
        default: u = (uint32_t)rng_u64(3, i); break;
        }
        if (t == DTYPE_F32) memcpy(bytes + 4 * i, &u, 4);
        else memcpy(bytes + 2 * i, &h, 2);
    }
    *out = bytes;
    return n;
}

/* Against the definition: sign, 4 exponent bits of bias 7, 3 bits of fraction. */
static void test_e4m3_to_f32_all_codes(void **state) {
    (void)state;
    for (int e = 0; e < 256; e++) {
        int exponent = e >> 3 & 15, fraction = e & 7;
        float found = e4m3_to_f32((uint8_t)e);
        if ((e & 0x7f) == 0x7f) {
            assert_true(isnan(found));
            continue;
        }
        double size = exponent ? ldexp(1 + fraction / 8.0, exponent - 7) : ldexp(fraction / 8.0, -6);
        assert_true((double)found == (e & 0x80 ? -size : size));
        assert_int_equal(signbit(found) != 0, e >> 7);
        assert_int_equal(f32_to_e4m3(found), e);
    }
}

/* Every float that has the first 16 bits of some float, its neighbours included: the nearest code, ties to the even one. */
static void test_f32_to_e4m3_is_the_nearest_code(void **state) {
    (void)state;
    for (uint32_t high = 0; high < 0x7f80u; high++)
        for (int step = -1; step <= 1; step++) {
            uint32_t u = (high << 16) + (uint32_t)step, found;
            float f;
            if (u > 0x7f800000u) continue; /* one below zero */
            memcpy(&f, &u, 4);
            int best = 0;
            for (int e = 1; e < 0x7f; e++) {
                double was = fabs((double)f - (double)e4m3_to_f32((uint8_t)best));
                double is = fabs((double)f - (double)e4m3_to_f32((uint8_t)e));
                if (is < was || (is == was && e % 2 == 0)) best = e;
            }
            found = f32_to_e4m3(f);
            if (found != (uint32_t)best) fail_msg("%a became %02x, expected %02x", (double)f, found, (unsigned)best);
            assert_int_equal(f32_to_e4m3(-f), best | 0x80);
        }
    assert_int_equal(f32_to_e4m3(INFINITY), 0x7e);
    assert_int_equal(f32_to_e4m3(-INFINITY), 0xfe);
    assert_int_equal(f32_to_e4m3(NAN), 0x7f);
    assert_int_equal(f32_to_e4m3(-NAN), 0x7f);
}

/* e5m2 likewise, against its definition: 5 exponent bits of bias 15, 2 bits of fraction, infinity and three NaN. Codes of numbers
 * are ordered, so the nearest is one of two neighbours. */
static void test_f32_to_e5m2_is_the_nearest_code(void **state) {
    (void)state;
    double size[0x7c];
    for (int e = 0; e < 0x7c; e++) {
        size[e] = e >> 2 ? ldexp(1 + (e & 3) / 4.0, (e >> 2) - 15) : ldexp(e / 4.0, -14);
        assert_true((double)e5m2_to_f32((uint8_t)e) == size[e] && (double)e5m2_to_f32((uint8_t)(e | 0x80)) == -size[e]);
    }
    for (int e = 0x7d; e < 0x80; e++) assert_true(isnan(e5m2_to_f32((uint8_t)e)));
    int below = 0;
    for (uint32_t high = 0; high < 0x7f80u; high++)
        for (int step = -1; step <= 1; step++) {
            uint32_t u = (high << 16) + (uint32_t)step;
            float f;
            if (u > 0x7f800000u) continue; /* one below zero */
            memcpy(&f, &u, 4);
            while (below < 0x7b && size[below + 1] <= (double)f) below++;
            while (below > 0 && size[below] > (double)f) below--;
            double down = (double)f - size[below], up = below < 0x7b ? size[below + 1] - (double)f : INFINITY;
            int best = up < down || (up == down && below % 2) ? below + 1 : below;
            if (f32_to_e5m2(f) != best)
                fail_msg("%a became %02x, expected %02x", (double)f, f32_to_e5m2(f), (unsigned)best);
            assert_int_equal(f32_to_e5m2(-f), best | 0x80);
        }
    assert_int_equal(f32_to_e5m2(INFINITY), 0x7b);
    assert_int_equal(f32_to_e5m2(NAN), 0x7f);
}

static void convert_one(void *dst, dtype dst_type, const void *src, dtype src_type, size_t i) {
    float f = src_type == DTYPE_F32    ? ((const float *)src)[i]
              : src_type == DTYPE_BF16 ? bf16_to_f32(((const uint16_t *)src)[i])
                                       : f16_to_f32(((const uint16_t *)src)[i]);
    if (dst_type == src_type)
        memcpy((char *)dst + i * dtype_bytes(dst_type), (const char *)src + i * dtype_bytes(src_type),
               dtype_bytes(dst_type));
    else if (dst_type == DTYPE_F32) ((float *)dst)[i] = f;
    else ((uint16_t *)dst)[i] = dst_type == DTYPE_BF16 ? f32_to_bf16(f) : f32_to_f16(f);
}

static void test_convert_equals_the_scalar_functions(void **state) {
    for (size_t a = 0; a < ARRAY_LENGTH(training_types); a++) {
        void *src;
        dtype from = training_types[a];
        size_t n = make_inputs(from, &src);
        for (size_t b = 0; b < ARRAY_LENGTH(training_types); b++) {
            dtype to = training_types[b];
            size_t n_bytes = n * dtype_bytes(to);
            unsigned char *want = mem_alloc(n_bytes), *got = mem_alloc(n_bytes);
            for (size_t i = 0; i < n; i++) convert_one(want, to, src, from, i);
            tensor_convert(got, to, src, from, n);
            if (memcmp(got, want, n_bytes) != 0) fail_msg("%s -> %s differs", dtype_name(from), dtype_name(to));
            free(want);
            free(got);
        }
        free(src);
    }
}

static void test_convert_takes_any_length_and_touches_nothing_else(void **state) {
    enum { LONGEST = 70, GUARD = 16 };
    for (size_t a = 0; a < ARRAY_LENGTH(training_types); a++) {
        void *src;
        dtype from = training_types[a];
        make_inputs(from, &src);
        for (size_t b = 0; b < ARRAY_LENGTH(training_types); b++) {
            dtype to = training_types[b];
            size_t width = dtype_bytes(to);
            for (size_t n = 0; n <= LONGEST; n++) {
                size_t at = 15360 + n % 5; /* ordinary numbers, odd alignments */
                unsigned char got[GUARD + LONGEST * 4 + GUARD], want[sizeof got];
                const unsigned char *in = (const unsigned char *)src + at * dtype_bytes(from);
                memset(got, 0xa5, sizeof got);
                memset(want, 0xa5, sizeof want);
                for (size_t i = 0; i < n; i++) convert_one(want + GUARD, to, in, from, i);
                tensor_convert(got + GUARD, to, in, from, n);
                assert_memory_equal(got, want, sizeof got);
                assert_int_equal(got[GUARD + n * width], 0xa5);
            }
        }
        free(src);
    }
}

static void test_get_and_set(void **state) {
    for (size_t a = 0; a < ARRAY_LENGTH(training_types); a++) {
        unsigned char data[32] = {0};
        tensor_set_f32(data, training_types[a], 3, -1.5f);
        assert_true(tensor_get_f32(data, training_types[a], 3) == -1.5f);
        assert_true(tensor_get_f32(data, training_types[a], 2) == 0.0f);
        tensor_set_f32(data, training_types[a], 0, NAN);
        assert_true(isnan(tensor_get_f32(data, training_types[a], 0)));
    }
    static const dtype whole[] = {DTYPE_I32, DTYPE_I64, DTYPE_I8, DTYPE_F64};
    for (size_t a = 0; a < ARRAY_LENGTH(whole); a++) {
        _Alignas(8) unsigned char data[32] = {0};
        tensor_set_f32(data, whole[a], 1, -128.0f);
        assert_true(tensor_get_f32(data, whole[a], 1) == -128.0f);
        assert_true(tensor_get_f32(data, whole[a], 0) == 0.0f);
    }
    uint8_t byte;
    tensor_set_f32(&byte, DTYPE_U8, 0, 255.0f);
    assert_int_equal(byte, 255);
    int32_t token;
    tensor_set_f32(&token, DTYPE_I32, 0, -0x1p31f);
    assert_int_equal(token, INT32_MIN);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dtype_table),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_f16_to_f32_all_halves),
        cmocka_unit_test(test_f32_to_f16_at_every_midpoint),
        cmocka_unit_test(test_f32_to_f16_specials),
        cmocka_unit_test(test_f32_to_f16_random_floats),
        cmocka_unit_test(test_bf16_rounds_to_nearest_even),
        cmocka_unit_test(test_e4m3_to_f32_all_codes),
        cmocka_unit_test(test_f32_to_e4m3_is_the_nearest_code),
        cmocka_unit_test(test_f32_to_e5m2_is_the_nearest_code),
        cmocka_unit_test(test_convert_equals_the_scalar_functions),
        cmocka_unit_test(test_convert_takes_any_length_and_touches_nothing_else),
        cmocka_unit_test(test_get_and_set),
    };
    return cmocka_run_group_tests_name("tensor", tests, NULL, NULL);
}
