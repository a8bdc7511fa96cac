/* test_ops_quantize.c - DEQUANTIZE: for every format, dtype and shape the bits that tensor/quantize.h defines, on every device. */
#include "backend/cpu/linear_int8.h"
#include "backend_choice.h"
#include "op_check.h"
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct weight {
    base_format format;
    int64_t n_out, n_in;
    base_sizes sizes;
    base_codes at;
} weight;

/* Normal numbers, with a row of zeros and one that is a thousand times as large. */
static weight weight_open(base_format f, int64_t n_out, int64_t n_in, uint64_t seed) {
    weight c = {.format = f, .n_out = n_out, .n_in = n_in, .sizes = base_sizes_of(f, n_out, n_in)};
    int64_t n = n_out * n_in;
    c.at = (base_codes){.codes = mem_alloc((size_t)c.sizes.codes),
                        .scale_codes = mem_alloc((size_t)c.sizes.scale_codes + 1),
                        .scale = mem_alloc((size_t)c.sizes.scales * 4),
                        .offset = mem_alloc(4)};
    float *w = mem_alloc((size_t)n * sizeof *w);
    rng_normal_fill(rng_key(seed, "weight"), 0, w, (size_t)n, 0.0f, 0.02f);
    for (int64_t i = 0; i < n_in; i++) {
        if (n_out > 2) w[n_in + i] = 0;
        if (n_out > 4) w[3 * n_in + i] *= 1000;
    }
    quantizer q;
    quantizer_init(
        &q,
        &(quantizer_options){
            .name = "w", .format = f, .n_out = n_out, .n_in = n_in, .absmax = quantize_absmax(0, w, n), .to = c.at});
    assert_int_equal(quantizer_add(&q, w, n_out), OK);
    assert_int_equal(quantizer_finish(&q), OK);
    quantizer_fini(&q);
    free(w);
    return c;
}

static void weight_close(weight *c) {
    free(c->at.codes);
    free(c->at.scale_codes);
    free(c->at.scale);
    free(c->at.offset);
}

static double *widened(const void *data, dtype t, int64_t n) {
    double *d = mem_alloc((size_t)n * sizeof *d);
    for (int64_t i = 0; i < n; i++) d[i] = tensor_get_f32(data, t, (size_t)i);
    return d;
}

static op_case *case_open(const weight *c, dtype type) {
    op_case *t = op_case_open(OP_DEQUANTIZE, &(op_attr){.base_format = c->format});
    double *scale = widened(c->at.scale, DTYPE_F32, c->sizes.scales), *codes = NULL;
    op_case_floats(t, DEQUANTIZE_SCALE, DTYPE_F32, SHAPE(c->sizes.scales), scale);
    if (c->format == BASE_NF4) {
        double offset = *c->at.offset;
        op_case_bytes(t, DEQUANTIZE_CODES, SHAPE(c->sizes.codes), c->at.codes);
        op_case_bytes(t, DEQUANTIZE_SCALE_CODES, SHAPE(c->sizes.scale_codes), c->at.scale_codes);
        op_case_floats(t, DEQUANTIZE_OFFSET, DTYPE_F32, SHAPE(1), &offset);
    } else {
        codes = widened(c->at.codes, base_codes_type(c->format), c->sizes.codes);
        op_case_floats(t, DEQUANTIZE_CODES, base_codes_type(c->format), SHAPE(c->n_out, c->n_in), codes);
    }
    op_case_output(t, DEQUANTIZE_W, type, SHAPE(c->n_out, c->n_in));
    free(scale);
    free(codes);
    return t;
}

static bool same(double a, double b) { return (a == b && signbit(a) == signbit(b)) || (isnan(a) && isnan(b)); }

static void check_dequantize(const weight *c, dtype type) {
    int64_t n = c->n_out * c->n_in;
    op_case *t = case_open(c, type);
    op_case_run(t, 2);
    float *numbers = mem_alloc((size_t)n * sizeof *numbers);
    void *rounded = mem_alloc((size_t)n * sizeof *numbers);
    base_dequantize(c->format, c->n_out, c->n_in, &c->at, numbers, 0, n);
    tensor_convert(rounded, type, numbers, DTYPE_F32, (size_t)n);
    const double *got = op_case_values(t, DEQUANTIZE_W);
    for (int64_t i = 0; i < n; i++)
        if (!same(got[i], tensor_get_f32(rounded, type, (size_t)i)))
            fail_msg("%s (%lld, %lld) to %s [%lld]: %.9g, expected %.9g", base_format_name(c->format),
                     (long long)c->n_out, (long long)c->n_in, dtype_name(type), (long long)i, got[i],
                     (double)tensor_get_f32(rounded, type, (size_t)i));
    op_case_close(t);
    free(numbers);
    free(rounded);
}

/* Whole blocks and vectors, rows that end inside of them, tails of one element, several tasks of the CPU, several scales of scales
 * and several blocks of a GPU's grid. */
static const int64_t shapes[][2] = {{1, 1},    {1, 2},    {7, 33},   {13, 5},     {3, 64},
                                    {64, 104}, {48, 352}, {129, 77}, {300, 1000}, {1024, 1032}};

static void test_every_format_to_every_dtype(void **state) {
    for (base_format f = BASE_FP8; f < BASE_FORMAT_COUNT; f++)
        for (size_t s = 0; s < ARRAY_LENGTH(shapes); s++) {
            weight c = weight_open(f, shapes[s][0], shapes[s][1], s);
            for (size_t k = 0; k < ARRAY_LENGTH(check_types); k++) check_dequantize(&c, check_types[k]);
            weight_close(&c);
        }
}

/* Codes that no quantiser writes, from a file that something else wrote: every byte has a meaning. */
static void test_every_code_has_a_number(void **state) {
    for (base_format f = BASE_FP8; f < BASE_FORMAT_COUNT; f++)
        for (size_t k = 0; k < ARRAY_LENGTH(check_types); k++) {
            weight c = weight_open(f, 512, f == BASE_NF4 ? 64 : 1, 7); /* as many blocks as twice the scale codes */
            for (int64_t i = 0; i < c.sizes.codes; i++) ((uint8_t *)c.at.codes)[i] = (uint8_t)(i * 167 + i / 256);
            for (int64_t i = 0; i < c.sizes.scale_codes; i++) c.at.scale_codes[i] = (uint8_t)(i * 37);
            check_dequantize(&c, check_types[k]);
            weight_close(&c);
        }
}

/* Numbers beyond the range of fp16 become infinite, as every rounding to it does, and those below it 0 or subnormal. */
static void test_scales_at_the_ends(void **state) {
    static const float scales[] = {0, 1e-45f, 1e-38f, 1e-7f, 600, 1e30f};
    for (base_format f = BASE_FP8; f < BASE_FORMAT_COUNT; f++)
        for (size_t s = 0; s < ARRAY_LENGTH(scales); s++)
            for (size_t k = 0; k < ARRAY_LENGTH(check_types); k++) {
                weight c = weight_open(f, 9, 200, 9);
                for (int64_t i = 0; i < c.sizes.scales; i++) c.at.scale[i] = scales[s];
                *c.at.offset = scales[s] / 3;
                check_dequantize(&c, check_types[k]);
                weight_close(&c);
            }
}

/* ---- products with codes, on the CPU ---------------------------------------------------------------------------------------- */

enum { MOST_ROWS = 21 };
typedef struct int8_product {
    int64_t rows, n_out, n_in;
    bool bias, pick;
    bool lanes; /* codes in the order in which this processor takes them */
} int8_product;

static double *ordered_codes(const weight *c, bool lanes) {
    int8_t *codes = malloc((size_t)c->sizes.codes);
    memcpy(codes, c->at.codes, (size_t)c->sizes.codes);
    if (lanes) {
        backend_context context = {.n_threads = 2};
        assert_int_equal(pool_open(&context.threads, 2, false), OK);
        gemm_lanes_order(&context, codes, DTYPE_I8, c->n_out, c->n_in);
        pool_close(context.threads);
    }
    double *wide = widened(codes, DTYPE_I8, c->sizes.codes);
    free(codes);
    return wide;
}

/* Element (r, n) as linear_int8.c defines it: integers as they are, one scaling, one sum, one rounding. */
static float int8_element(const double *x, const weight *c, int64_t n, const double *bias) {
    float a = 0x1p-100f;
    for (int64_t k = 0; k < c->n_in; k++) a = fmaxf(a, fabsf((float)x[k]));
    int64_t sum = 0;
    for (int64_t k = 0; k < c->n_in; k++)
        sum += (int64_t)rintf((float)x[k] * (32512 / a)) * ((const int8_t *)c->at.codes)[n * c->n_in + k];
    float y = (float)((double)sum * ((double)(a / 32512) * (double)c->at.scale[n]));
    return bias ? y + (float)bias[n] : y;
}

/* x: NULL for random numbers. */
static op_case *int8_open(const weight *c, const int8_product *s, dtype t, dtype y_type, const double *x) {
    op_case *o = op_case_open(OP_LINEAR_INT8, &(op_attr){.lanes = s->lanes});
    double *scale = widened(c->at.scale, DTYPE_F32, c->n_out), *codes = ordered_codes(c, s->lanes);
    int32_t pick[MOST_ROWS];
    assert_true(s->rows <= MOST_ROWS);
    for (int64_t r = 0; r < s->rows; r++) pick[r] = (int32_t)(r * 7 % (s->rows + 3));
    shape rows = SHAPE(s->pick ? s->rows + 3 : s->rows, s->n_in);
    if (x) op_case_floats(o, LINEAR_INT8_X, t, rows, x);
    else op_case_random(o, LINEAR_INT8_X, t, rows, 1, 5);
    op_case_floats(o, LINEAR_INT8_CODES, DTYPE_I8, SHAPE(s->n_out, s->n_in), codes);
    op_case_floats(o, LINEAR_INT8_SCALE, DTYPE_F32, SHAPE(s->n_out), scale);
    if (s->bias) op_case_random(o, LINEAR_INT8_B, y_type, SHAPE(s->n_out), 1, 6);
    if (s->pick) op_case_ints(o, LINEAR_INT8_PICK, SHAPE(s->rows), pick);
    op_case_output(o, LINEAR_INT8_Y, y_type, SHAPE(s->rows, s->n_out));
    free(scale);
    free(codes);
    return o;
}

static void check_int8(const int8_product *s, dtype t, dtype y_type) {
    weight c = weight_open(BASE_INT8, s->n_out, s->n_in, 11);
    op_case *o = int8_open(&c, s, t, y_type, NULL);
    op_case_run(o, 2);
    const double *x = op_case_input_values(o, LINEAR_INT8_X), *y = op_case_values(o, LINEAR_INT8_Y), *b = NULL;
    if (s->bias) b = op_case_input_values(o, LINEAR_INT8_B);
    for (int64_t i = 0; i < s->rows * s->n_out; i++) {
        int64_t row = i / s->n_out, from = s->pick ? row * 7 % (s->rows + 3) : row;
        uint32_t one;
        tensor_set_f32(&one, y_type, 0, int8_element(x + from * s->n_in, &c, i % s->n_out, b));
        if (!same(y[i], tensor_get_f32(&one, y_type, 0)))
            fail_msg("int8 (%lld, %lld), %lld rows of %s [%lld]: %.9g, expected %.9g", (long long)s->n_out,
                     (long long)s->n_in, (long long)s->rows, dtype_name(t), (long long)i, y[i],
                     (double)tensor_get_f32(&one, y_type, 0));
    }
    op_case_close(o);
    weight_close(&c);
}

/* Every number of rows at once, tails of every length, several tasks. */
static void check_int8_kernel(void) {
    static const int64_t sizes[][2] = {{1, 1},     {4, 16},   {5, 33},   {7, 47},   {130, 96}, {9, 2100},
                                       {300, 520}, {132, 96}, {8, 2112}, {50, 128}, {17, 64},  {96, 4}};
    for (size_t i = 0; i < ARRAY_LENGTH(sizes); i++)
        for (int64_t rows = 1; rows <= MOST_ROWS; rows += rows < 9 ? 1 : 4) { /* 17, 21: twice eight and some */
            int8_product s = {rows, sizes[i][0], sizes[i][1], rows % 2 == 0, rows % 3 == 0, false};
            dtype t = check_types[(i + (size_t)rows) % 3];
            check_int8(&s, t, s.pick ? DTYPE_F32 : t);
            s.lanes = true;
            check_int8(&s, t, s.pick ? DTYPE_F32 : t);
        }
}

static void test_products_with_codes_are_exact_sums(void **state) {
    if (backend_under_test()->discrete) skip();
    for (int i = 0; int8_kernel_list(i); i++) {
        if (!int8_force_kernel(int8_kernel_list(i))) {
            print_message("this machine cannot run %s\n", int8_kernel_list(i));
            continue;
        }
        check_int8_kernel();
    }
    assert_true(int8_force_kernel(NULL));
}

/* The largest numbers there are, all of one sign or in turns: no sum of bytes overflows where it counts. */
static void test_products_of_the_largest_codes(void **state) {
    enum { ROWS = 9, OUT = 32, IN = 8192 };
    if (backend_under_test()->discrete) skip();
    weight c = weight_open(BASE_INT8, OUT, IN, 3);
    for (int64_t i = 0; i < OUT * IN; i++)
        ((int8_t *)c.at.codes)[i] = i / IN % 3 == 0 ? -127 : i / IN % 3 == 1 ? 127 : i % 2 ? 127 : -127;
    double *x = malloc(ROWS * IN * sizeof *x);
    for (int i = 0; i < ROWS * IN; i++) x[i] = i / IN % 3 == 0 ? -1 : i / IN % 3 == 1 ? 1 : i % 2 ? 1 : -1;
    for (int k = 0; int8_kernel_list(k); k++) {
        if (!int8_force_kernel(int8_kernel_list(k))) continue;
        op_case *o = int8_open(&c, &(int8_product){ROWS, OUT, IN, false, false, true}, DTYPE_F32, DTYPE_F32, x);
        op_case_run(o, 2);
        const double *y = op_case_values(o, LINEAR_INT8_Y);
        for (int i = 0; i < ROWS * OUT; i++) assert_true(same(y[i], int8_element(x + i / OUT * IN, &c, i % OUT, NULL)));
        op_case_close(o);
    }
    assert_true(int8_force_kernel(NULL));
    free(x);
    weight_close(&c);
}

static void test_a_row_that_is_not_finite_spoils_itself_alone(void **state) {
    static const double bad[] = {NAN, INFINITY, -INFINITY};
    if (backend_under_test()->discrete) skip();
    weight c = weight_open(BASE_INT8, 6, 40, 3);
    for (size_t k = 0; k < ARRAY_LENGTH(bad); k++) {
        double x[3 * 40];
        for (int i = 0; i < 3 * 40; i++) x[i] = i < 40 ? 0 : i - 60; /* a row of zeros first */
        x[40 + 17] = bad[k];
        op_case *o = int8_open(&c, &(int8_product){3, 6, 40, false, false, false}, DTYPE_F32, DTYPE_F32, x);
        op_case_run(o, 2);
        const double *y = op_case_values(o, LINEAR_INT8_Y);
        for (int i = 0; i < 18; i++) assert_true(i / 6 == 1 ? isnan(y[i]) : i / 6 == 0 ? y[i] == 0 : isfinite(y[i]));
        op_case_close(o);
    }
    weight_close(&c);
}

/* Rows that a processor takes eight at a time. */
static void test_a_row_among_eight_spoils_itself_alone(void **state) {
    enum { ROWS = 10, OUT = 8, IN = 64 };
    if (backend_under_test()->discrete) skip();
    weight c = weight_open(BASE_INT8, OUT, IN, 3);
    for (int bad = 0; bad < ROWS; bad++) {
        double x[ROWS * IN];
        for (int i = 0; i < ROWS * IN; i++) x[i] = i % 41 - 20;
        x[bad * IN + 17] = NAN;
        op_case *o = int8_open(&c, &(int8_product){ROWS, OUT, IN, false, false, true}, DTYPE_F32, DTYPE_F32, x);
        op_case_run(o, 2);
        const double *y = op_case_values(o, LINEAR_INT8_Y);
        for (int i = 0; i < ROWS * OUT; i++) assert_true(i / OUT == bad ? isnan(y[i]) : isfinite(y[i]));
        op_case_close(o);
    }
    weight_close(&c);
}

static void test_rows_of_a_table_of_codes(void **state) {
    static const int32_t tokens[] = {3, 0, 6, 3};
    const size_t orders = backend_under_test()->discrete ? 1 : 2; /* a CPU's products have an order of their own */
    enum { C = 320 };
    weight c = weight_open(BASE_INT8, 7, C, 4);
    float numbers[7 * C];
    base_dequantize(BASE_INT8, 7, C, &c.at, numbers, 0, 7 * C);
    double *scale = widened(c.at.scale, DTYPE_F32, 7), *codes[] = {ordered_codes(&c, false), ordered_codes(&c, true)};
    for (size_t i = 0; i < orders * ARRAY_LENGTH(check_types); i++) {
        size_t k = i / orders, lanes = i % orders;
        op_case *o = op_case_open(OP_EMBED_INT8, &(op_attr){.seq_len = 4, .lanes = lanes});
        op_case_ints(o, EMBED_INT8_TOKENS, SHAPE(4), tokens);
        op_case_floats(o, EMBED_INT8_CODES, DTYPE_I8, SHAPE(7, C), codes[lanes]);
        op_case_floats(o, EMBED_INT8_SCALE, DTYPE_F32, SHAPE(7), scale);
        op_case_output(o, EMBED_INT8_X, check_types[k], SHAPE(4, C));
        op_case_run(o, 2);
        const double *x = op_case_values(o, EMBED_INT8_X);
        for (int e = 0; e < 4 * C; e++) {
            uint32_t one;
            tensor_set_f32(&one, check_types[k], 0, numbers[tokens[e / C] * C + e % C]);
            assert_true(same(x[e], tensor_get_f32(&one, check_types[k], 0)));
        }
        op_case_close(o);
    }
    free(scale);
    free(codes[0]);
    free(codes[1]);
    weight_close(&c);
}

/* ---- what a program may not say -------------------------------------------------------------------------------------------- */

typedef struct wrong {
    const char *what;
    base_format format;
    dtype codes, w;
    int64_t n_codes, n_scales, n_scale_codes; /* of a weight (6, 50) */
    bool offset;
} wrong;

static status verify(const wrong *g) {
    program p;
    program_init(&p);
    program_emit(&p, OP_DEQUANTIZE, SECTION_MICRO)->attr.base_format = g->format;
    bool flat = g->format == BASE_NF4;
    value_id codes =
        program_persistent(&p, "codes", g->codes, flat ? SHAPE(g->n_codes) : SHAPE(6, g->n_codes / 6), ROLE_PARAM);
    value_id scale = program_persistent(&p, "scale", DTYPE_F32, SHAPE(g->n_scales), ROLE_PARAM), w;
    op *o = &p.ops[0];
    op_in(o, DEQUANTIZE_CODES, codes), op_in(o, DEQUANTIZE_SCALE, scale);
    if (g->n_scale_codes)
        op_in(o, DEQUANTIZE_SCALE_CODES,
              program_persistent(&p, "scale_codes", DTYPE_U8, SHAPE(g->n_scale_codes), ROLE_PARAM));
    if (g->offset) op_in(o, DEQUANTIZE_OFFSET, program_persistent(&p, "offset", DTYPE_F32, SHAPE(1), ROLE_PARAM));
    w = program_value(&p, "w", g->w, SHAPE(6, 50), ROLE_WORK, SECTION_MICRO);
    op_out(o, DEQUANTIZE_W, w);
    status rc = program_verify(&p);
    program_fini(&p);
    return rc;
}

static void test_operands_of_another_size_or_dtype_are_refused(void **state) {
    static const wrong right[] = {
        {"", BASE_NF4, DTYPE_U8, DTYPE_BF16, 150, 1, 5, true},
        {"", BASE_INT8, DTYPE_I8, DTYPE_F32, 300, 6, 0, false},
        {"", BASE_FP8, DTYPE_F8E4M3, DTYPE_F16, 300, 1, 0, false},
    };
    static const wrong bad[] = {
        {"without codes", BASE_COMPUTE, DTYPE_U8, DTYPE_BF16, 300, 1, 0, false},
        {"two codes per byte", BASE_NF4, DTYPE_U8, DTYPE_BF16, 300, 1, 5, true},
        {"dtype of another format", BASE_NF4, DTYPE_I8, DTYPE_BF16, 150, 1, 5, true},
        {"scale code per block", BASE_NF4, DTYPE_U8, DTYPE_BF16, 150, 1, 4, true},
        {"scale code per block", BASE_NF4, DTYPE_U8, DTYPE_BF16, 150, 1, 0, true},
        {"offset of nf4", BASE_NF4, DTYPE_U8, DTYPE_BF16, 150, 1, 5, false},
        {"fp32 scales", BASE_NF4, DTYPE_U8, DTYPE_BF16, 150, 2, 5, true},
        {"fp32 scales", BASE_INT8, DTYPE_I8, DTYPE_BF16, 300, 1, 0, false},
        {"only nf4", BASE_INT8, DTYPE_I8, DTYPE_BF16, 300, 6, 0, true},
        {"codes are not", BASE_INT8, DTYPE_I8, DTYPE_BF16, 306, 6, 0, false},
        {"dtype of another format", BASE_FP8, DTYPE_U8, DTYPE_BF16, 300, 1, 0, false},
        {"w is not", BASE_FP8, DTYPE_F8E4M3, DTYPE_F64, 300, 1, 0, false},
    };
    for (size_t k = 0; k < ARRAY_LENGTH(right); k++) assert_int_equal(verify(&right[k]), OK);
    for (size_t k = 0; k < ARRAY_LENGTH(bad); k++) {
        assert_int_equal(verify(&bad[k]), ERR_BUG);
        if (!strstr(error_message(), bad[k].what)) fail_msg("expected '%s' in: %s", bad[k].what, error_message());
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_format_to_every_dtype),
        cmocka_unit_test(test_every_code_has_a_number),
        cmocka_unit_test(test_scales_at_the_ends),
        cmocka_unit_test(test_products_with_codes_are_exact_sums),
        cmocka_unit_test(test_products_of_the_largest_codes),
        cmocka_unit_test(test_a_row_that_is_not_finite_spoils_itself_alone),
        cmocka_unit_test(test_a_row_among_eight_spoils_itself_alone),
        cmocka_unit_test(test_rows_of_a_table_of_codes),
        cmocka_unit_test(test_operands_of_another_size_or_dtype_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
