/* test_quantize.c - weights in fewer bits: nf4 equals bitsandbytes bit for bit, int8 and fp8 keep their bounds, and what is not a
 * number is refused. Fixtures come from tools/make_quantize_fixtures.py. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "weightfile/weightfile.h"

#include <math.h>
#include <stdlib.h>

/* ---- a weight and its codes ------------------------------------------------------------------------------------------ */

enum { GUARD = 64, GUARD_BYTE = 0xa5 };

typedef struct coded {
    base_format format;
    int64_t n_out, n_in;
    base_sizes sizes;
    base_codes at;
} coded;

static void *guarded(int64_t n_bytes) {
    uint8_t *p = mem_alloc((size_t)n_bytes + GUARD);
    memset(p, 0x5a, (size_t)n_bytes);
    memset(p + n_bytes, GUARD_BYTE, GUARD);
    return p;
}

static void check_guard(const void *p, int64_t n_bytes) {
    for (int i = 0; i < GUARD; i++) assert_int_equal(((const uint8_t *)p)[n_bytes + i], GUARD_BYTE);
}

static coded coded_open(base_format f, int64_t n_out, int64_t n_in) {
    coded c = {.format = f, .n_out = n_out, .n_in = n_in, .sizes = base_sizes_of(f, n_out, n_in)};
    c.at = (base_codes){.codes = guarded(c.sizes.codes),
                        .scale_codes = guarded(c.sizes.scale_codes),
                        .scale = guarded(c.sizes.scales * 4),
                        .offset = guarded(c.sizes.offsets * 4)};
    return c;
}

static void coded_close(coded *c) {
    check_guard(c->at.codes, c->sizes.codes);
    check_guard(c->at.scale_codes, c->sizes.scale_codes);
    check_guard(c->at.scale, c->sizes.scales * 4);
    check_guard(c->at.offset, c->sizes.offsets * 4);
    free(c->at.codes);
    free(c->at.scale_codes);
    free(c->at.scale);
    free(c->at.offset);
}

/* So many rows at a time. */
static status coded_write(coded *c, const float *w, int64_t rows_at_once) {
    float absmax = 0;
    for (int64_t r = 0; r < c->n_out; r++) absmax = quantize_absmax(absmax, w + r * c->n_in, c->n_in);
    quantizer q;
    status rc = OK;
    quantizer_init(&q, &(quantizer_options){.name = "layers.0.mlp.up",
                                            .format = c->format,
                                            .n_out = c->n_out,
                                            .n_in = c->n_in,
                                            .absmax = absmax,
                                            .to = c->at});
    for (int64_t r = 0, m; r < c->n_out && rc == OK; r += m) {
        m = MIN(rows_at_once, c->n_out - r);
        float *rows = mem_alloc((size_t)(m * c->n_in) * sizeof *rows); /* exact: reading past the end is seen */
        memcpy(rows, w + r * c->n_in, (size_t)(m * c->n_in) * sizeof *rows);
        rc = quantizer_add(&q, rows, m);
        free(rows);
    }
    if (rc == OK) rc = quantizer_finish(&q);
    quantizer_fini(&q);
    return rc;
}

static float *coded_read(const coded *c) {
    float *w = mem_alloc((size_t)(c->n_out * c->n_in) * sizeof *w);
    base_dequantize(c->format, c->n_out, c->n_in, &c->at, w, 0, c->n_out * c->n_in);
    return w;
}

/* ---- fixtures -------------------------------------------------------------------------------------------------------- */

static safetensors fixtures;

static int open_fixtures(void **state) {
    return safetensors_open(&fixtures, TEST_FIXTURES "/quantize.safetensors") == OK ? 0 : -1;
}
static int close_fixtures(void **state) {
    safetensors_close(&fixtures);
    return 0;
}

static const safetensor *fixture(const char *name, const char *part) {
    char full[64];
    snprintf(full, sizeof full, "%s.%s", name, part);
    return safetensors_find(&fixtures, full);
}

static float *fixture_floats(const safetensor *t) { /* at an alignment that floats need; the caller frees */
    assert_true(t && t->type == DTYPE_F32);
    return memcpy(mem_alloc(t->n_bytes), t->data, t->n_bytes);
}

static void check_bytes(const char *name, const char *part, const void *got, size_t n_bytes) {
    const safetensor *want = fixture(name, part);
    assert_non_null(want);
    assert_int_equal(want->n_bytes, n_bytes);
    for (size_t i = 0; i < n_bytes; i++)
        if (((const uint8_t *)got)[i] != ((const uint8_t *)want->data)[i])
            fail_msg("%s.%s: byte %zu of %zu is %#x, expected %#x", name, part, i, n_bytes, ((const uint8_t *)got)[i],
                     ((const uint8_t *)want->data)[i]);
}

static const char *const names[] = {"two_scale_blocks", "odd",      "one_more", "one",  "some_zeros",
                                    "all_zeros",        "outliers", "tiny",     "huge", "middles"};

static void test_tables_are_those_of_bitsandbytes(void **state) {
    const safetensor *dynamic = safetensors_find(&fixtures, "dynamic"), *nf4 = safetensors_find(&fixtures, "nf4");
    assert_true(dynamic && nf4 && dynamic->n_bytes == sizeof DYNAMIC_VALUES && nf4->n_bytes == sizeof NF4_VALUES);
    assert_memory_equal(DYNAMIC_VALUES, dynamic->data, sizeof DYNAMIC_VALUES);
    assert_memory_equal(NF4_VALUES, nf4->data, sizeof NF4_VALUES);
}

/* A last block whose scales are all the mean has scale 0 here and on bitsandbytes' GPU, and 1e-38 on its CPU, which makes no
 * difference to the numbers. */
static void check_scales(const char *name, const float *scale, int64_t n) {
    float *want = fixture_floats(fixture(name, "nf4.scale"));
    assert_int_equal(fixture(name, "nf4.scale")->n_bytes, n * 4);
    for (int64_t i = 0; i < n; i++)
        if (scale[i] != want[i] && !(i == n - 1 && scale[i] == 0 && want[i] == 1e-38f))
            fail_msg("%s: scale %lld is %.9g, expected %.9g", name, (long long)i, (double)scale[i], (double)want[i]);
    free(want);
}

static void test_nf4_equals_bitsandbytes(void **state) {
    for (size_t k = 0; k < ARRAY_LENGTH(names); k++)
        for (int64_t rows_at_once = 1; rows_at_once < 100; rows_at_once *= 5) {
            const safetensor *t = fixture(names[k], "w");
            float *w = fixture_floats(t);
            coded c = coded_open(BASE_NF4, t->shape.dim[0], t->shape.dim[1]);
            assert_int_equal(coded_write(&c, w, rows_at_once), OK);
            check_bytes(names[k], "nf4.codes", c.at.codes, (size_t)c.sizes.codes);
            check_bytes(names[k], "nf4.scale_codes", c.at.scale_codes, (size_t)c.sizes.scale_codes);
            check_bytes(names[k], "nf4.offset", c.at.offset, 4);
            check_scales(names[k], c.at.scale, c.sizes.scales);
            float *back = coded_read(&c);
            check_bytes(names[k], "nf4.back", back, (size_t)(c.n_out * c.n_in) * 4);
            free(back);
            free(w);
            coded_close(&c);
        }
}

static void test_int8_equals_torch(void **state) {
    int n_compared = 0;
    for (size_t k = 0; k < ARRAY_LENGTH(names); k++) {
        const safetensor *t = fixture(names[k], "w");
        if (!fixture(names[k], "int8.codes")) continue; /* of rows of zeros, or too small for its own scale */
        float *w = fixture_floats(t), *largest = fixture_floats(fixture(names[k], "int8.largest"));
        coded c = coded_open(BASE_INT8, t->shape.dim[0], t->shape.dim[1]);
        assert_int_equal(coded_write(&c, w, 3), OK);
        check_bytes(names[k], "int8.codes", c.at.codes, (size_t)c.sizes.codes);
        for (int64_t r = 0; r < c.n_out; r++) assert_true(c.at.scale[r] == largest[r] / 127.0f);
        coded_close(&c);
        free(w);
        free(largest);
        n_compared++;
    }
    assert_int_equal(n_compared, 7);
}

static void test_fp8_equals_torch(void **state) {
    int n_compared = 0;
    for (size_t k = 0; k < ARRAY_LENGTH(names); k++) {
        const safetensor *t = fixture(names[k], "w");
        if (!fixture(names[k], "fp8.codes")) continue;
        float *w = fixture_floats(t);
        coded c = coded_open(BASE_FP8, t->shape.dim[0], t->shape.dim[1]);
        assert_int_equal(coded_write(&c, w, 3), OK);
        check_bytes(names[k], "fp8.codes", c.at.codes, (size_t)c.sizes.codes);
        coded_close(&c);
        free(w);
        n_compared++;
    }
    assert_int_equal(n_compared, 8);
}

/* ---- bounds ---------------------------------------------------------------------------------------------------------- */

/* Normal numbers times a magnitude, with zeros among them; row r is 10^-r times as large. */
static float *random_weight(int64_t n_out, int64_t n_in, float magnitude, uint64_t seed) {
    float *w = mem_alloc((size_t)(n_out * n_in) * sizeof *w);
    rng_normal_fill(rng_key(seed, "quantize"), 0, w, (size_t)(n_out * n_in), 0.0f, 1.0f);
    for (int64_t i = 0; i < n_out * n_in; i++)
        w[i] = i % 97 == 5 ? 0 : w[i] / 6 * magnitude * powf(10, (float)-(i / n_in));
    return w;
}

static const float magnitudes[] = {1, 0.02f, 1e4f, 1e-20f, 3e-38f, 1e-44f, 3e38f};

/* The bounds of quantize.h: half a step of int8 is 0.5 scale, and fp32 adds less than a hundredth of one. Where the largest number
 * is below 2^-100 the scale is that of 2^-100. */
static void test_int8_is_within_its_bound(void **state) {
    for (size_t k = 0; k < ARRAY_LENGTH(magnitudes); k++) {
        float *w = random_weight(5, 1000, magnitudes[k], k);
        coded c = coded_open(BASE_INT8, 5, 1000);
        assert_int_equal(coded_write(&c, w, 2), OK);
        float *back = coded_read(&c);
        for (int64_t r = 0; r < 5; r++) {
            float largest = quantize_absmax(0, w + r * 1000, 1000);
            assert_true(c.at.scale[r] == fmaxf(largest, 0x1p-100f) / 127.0f);
            for (int64_t i = r * 1000; i < (r + 1) * 1000; i++) {
                assert_true(fabs((double)back[i] - (double)w[i]) <= 0.51 * (double)c.at.scale[r]);
                assert_true(w[i] != 0 || back[i] == 0);
            }
        }
        free(back);
        free(w);
        coded_close(&c);
    }
}

static void test_fp8_is_within_its_bound(void **state) {
    for (size_t k = 0; k < ARRAY_LENGTH(magnitudes); k++) {
        float *w = random_weight(5, 1000, magnitudes[k], 10 + k);
        coded c = coded_open(BASE_FP8, 5, 1000);
        assert_int_equal(coded_write(&c, w, 2), OK);
        assert_true(*c.at.scale == fmaxf(quantize_absmax(0, w, 5000), 0x1p-100f) / 448.0f);
        float *back = coded_read(&c);
        for (int64_t i = 0; i < 5000; i++) {
            double bound = fmax(fabs((double)w[i]) / 15.9, (double)*c.at.scale / 1000);
            assert_true(fabs((double)back[i] - (double)w[i]) <= bound);
            assert_true(w[i] != 0 || back[i] == 0);
        }
        free(back);
        free(w);
        coded_close(&c);
    }
}

/* Half the widest gap between values, 0.152 of the block's scale, and what the scale itself loses in 8 bits: half a gap of the
 * dynamic values, 0.0071 of the largest difference from the mean. */
static void test_nf4_is_within_its_bound(void **state) {
    float *w = random_weight(3, 6400, 1, 21);
    coded c = coded_open(BASE_NF4, 3, 6400);
    assert_int_equal(coded_write(&c, w, 1), OK);
    float *back = coded_read(&c);
    for (int64_t i = 0; i < 3 * 6400; i++) {
        float a = quantize_absmax(0, w + i / NF4_BLOCK * NF4_BLOCK, NF4_BLOCK);
        double lost = 0.0071 * (double)c.at.scale[i / NF4_BLOCK / NF4_SCALE_BLOCK];
        assert_true(fabs((double)back[i] - (double)w[i]) <= 0.1520 * (double)a + lost + 1e-6 * (double)a);
    }
    free(back);
    free(w);
    coded_close(&c);
}

static void test_zeros_stay_zeros(void **state) {
    static const int64_t shapes[][2] = {{1, 1}, {3, 5}, {2, 64}, {13, 5}, {3, 67}};
    float zeros[256] = {0};
    for (base_format f = BASE_FP8; f < BASE_FORMAT_COUNT; f++)
        for (size_t s = 0; s < ARRAY_LENGTH(shapes); s++) {
            coded c = coded_open(f, shapes[s][0], shapes[s][1]);
            assert_int_equal(coded_write(&c, zeros, 2), OK);
            float *back = coded_read(&c);
            for (int64_t i = 0; i < c.n_out * c.n_in; i++) assert_true(back[i] == 0);
            free(back);
            coded_close(&c);
        }
}

static void test_any_part_can_be_read(void **state) {
    for (base_format f = BASE_FP8; f < BASE_FORMAT_COUNT; f++) {
        float *w = random_weight(7, 33, 1, 31), part[231];
        coded c = coded_open(f, 7, 33);
        assert_int_equal(coded_write(&c, w, 7), OK);
        float *back = coded_read(&c);
        for (int64_t first = 0; first < 231; first += 23) {
            base_dequantize(f, 7, 33, &c.at, part, first, 231 - first);
            assert_memory_equal(part, back + first, (size_t)(231 - first) * 4);
        }
        free(back);
        free(w);
        coded_close(&c);
    }
}

/* ---- what is refused --------------------------------------------------------------------------------------------------- */

static void test_numbers_that_are_not_finite_are_refused_by_place(void **state) {
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    static const int64_t places[] = {0, 64, 33 * 5 + 32, 230};
    for (base_format f = BASE_FP8; f < BASE_FORMAT_COUNT; f++)
        for (size_t b = 0; b < ARRAY_LENGTH(bad); b++)
            for (size_t p = 0; p < ARRAY_LENGTH(places); p++) {
                float *w = random_weight(7, 33, 1, 41);
                w[places[p]] = bad[b];
                coded c = coded_open(f, 7, 33);
                char place[64];
                snprintf(place, sizeof place, "row %d, column %d", (int)(places[p] / 33), (int)(places[p] % 33));
                assert_int_equal(coded_write(&c, w, 2), ERR_INPUT);
                assert_non_null(strstr(error_message(), "'layers.0.mlp.up'"));
                assert_non_null(strstr(error_message(), place));
                assert_non_null(strstr(error_message(), base_format_name(f)));
                assert_non_null(strstr(error_message(), isnan(bad[b]) ? "nan" : "inf"));
                free(w);
                coded_close(&c);
            }
}

static void test_missing_rows_and_a_wrong_largest_number_are_refused(void **state) {
    float w[4 * 8] = {[20] = 2};
    quantizer q;
    coded c = coded_open(BASE_NF4, 4, 8);
    quantizer_options o = {.name = "w", .format = BASE_NF4, .n_out = 4, .n_in = 8, .to = c.at};
    quantizer_init(&q, &o);
    assert_int_equal(quantizer_add(&q, w, 3), OK);
    assert_int_equal(quantizer_finish(&q), ERR_BUG);
    assert_non_null(strstr(error_message(), "3 of 4 rows"));
    quantizer_fini(&q);
    coded_close(&c);

    c = coded_open(BASE_FP8, 4, 8);
    o.format = BASE_FP8, o.absmax = 1, o.to = c.at;
    quantizer_init(&q, &o);
    assert_int_equal(quantizer_add(&q, w, 2), OK);
    assert_int_equal(quantizer_add(&q, w + 16, 2), ERR_BUG);
    quantizer_fini(&q);
    coded_close(&c);
}

/* ---- names and sizes ------------------------------------------------------------------------------------------------- */

static void test_names_and_dtypes(void **state) {
    base_format f;
    for (int k = 0; k < BASE_FORMAT_COUNT; k++) {
        assert_true(base_format_from_name(base_format_name((base_format)k), &f));
        assert_int_equal(f, k);
    }
    assert_string_equal(base_format_name(BASE_COMPUTE), "bf16");
    f = BASE_INT8;
    assert_false(base_format_from_name("fp4", &f));
    assert_false(base_format_from_name("", &f));
    assert_int_equal(f, BASE_INT8);
    assert_int_equal(base_codes_type(BASE_NF4), DTYPE_U8);
    assert_int_equal(base_codes_type(BASE_INT8), DTYPE_I8);
    assert_int_equal(base_codes_type(BASE_FP8), DTYPE_F8E4M3);
}

static void test_sizes(void **state) {
    base_sizes n = base_sizes_of(BASE_NF4, 4096, 4096);
    assert_int_equal(n.codes, 1 << 23);
    assert_int_equal(n.scale_codes, 1 << 18);
    assert_int_equal(n.scales, 1 << 10);
    assert_int_equal(n.offsets, 1);
    double bits = (double)base_bytes_of(BASE_NF4, 4096, 4096) * 8 / (4096.0 * 4096);
    assert_true(bits > 4.1268 && bits < 4.1271); /* 4 + 8 / 64 + 32 / (64 * 256) */
    n = base_sizes_of(BASE_NF4, 1, 1);
    assert_true(n.codes == 1 && n.scale_codes == 1 && n.scales == 1 && n.offsets == 1);
    n = base_sizes_of(BASE_NF4, 257, 64);
    assert_true(n.codes == 257 * 32 && n.scale_codes == 257 && n.scales == 2);
    n = base_sizes_of(BASE_INT8, 7, 33);
    assert_true(n.codes == 231 && n.scales == 7 && n.scale_codes == 0 && n.offsets == 0);
    assert_int_equal(base_bytes_of(BASE_FP8, 7, 33), 235);
}

static void test_absmax(void **state) {
    const float x[] = {1, -3, NAN, 2, -INFINITY};
    assert_true(quantize_absmax(0, x, 2) == 3);
    assert_true(quantize_absmax(4, x, 2) == 4);
    assert_true(quantize_absmax(0, x, 0) == 0);
    assert_true(quantize_absmax(0, x, 5) == 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tables_are_those_of_bitsandbytes),
        cmocka_unit_test(test_nf4_equals_bitsandbytes),
        cmocka_unit_test(test_int8_equals_torch),
        cmocka_unit_test(test_fp8_equals_torch),
        cmocka_unit_test(test_int8_is_within_its_bound),
        cmocka_unit_test(test_fp8_is_within_its_bound),
        cmocka_unit_test(test_nf4_is_within_its_bound),
        cmocka_unit_test(test_zeros_stay_zeros),
        cmocka_unit_test(test_any_part_can_be_read),
        cmocka_unit_test(test_numbers_that_are_not_finite_are_refused_by_place),
        cmocka_unit_test(test_missing_rows_and_a_wrong_largest_number_are_refused),
        cmocka_unit_test(test_names_and_dtypes),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_absmax),
    };
    return cmocka_run_group_tests(tests, open_fixtures, close_fixtures);
}
