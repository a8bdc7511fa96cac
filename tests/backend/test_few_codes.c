/* test_few_codes.c - LINEAR_CODES: rows times a weight that is stored in codes are, to the rounding of fp32 sums, the products in double
 * with the numbers that the codes stand for; a row has the bits that it has beside any others. */
#include "backend_choice.h"
#include "op_check.h"
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct weight {
    int64_t k;
    int64_t parts[3]; /* rows of each, 0: no more */
    bool bias;
} weight;

/* Half a step; parts that end inside a tile; k in as many runs as there are, and in parts of steps; many rows of w, in several rounds. */
static const weight shapes[] = {{64, {24}, true},     {192, {50, 18, 18}, true}, {1536, {192, 64}, false},
                                {29568, {36}, false}, {4160, {96}, false},       {320, {3000, 3001}, true},
                                {8960, {160}, false}, {192, {12900}, false}};
static const base_format formats[] = {BASE_INT8, BASE_FP8, BASE_NF4};
static const dtype types[] = {DTYPE_BF16, DTYPE_F16};
static const int64_t rows_of[] = {1, 4, 5, 8, 9, 16, 17, 33, 64, 65};
enum { ROWS_MOST = 65, CODES_ROWS = 64 /* that a GPU multiplies with codes; of logits, which are fp32, any number */ };

/* A CPU has one kernel for all rows, and takes long. */
static bool is_asked(int64_t rows) { return backend_under_test()->discrete || rows == 1 || rows == 9; }

typedef struct codes {
    op_attr attr;
    base_codes at;
    base_sizes all;
    int64_t n, k;
    float *numbers; /* what the codes stand for */
} codes;

/* Normal numbers; some rows are zeros, some a hundred times as large. int8 has one part, whatever the weight's are. */
static codes codes_open(base_format f, const weight *w) {
    codes c = {.k = w->k, .attr = {.base_format = f}};
    for (int i = 0; i < 3 && w->parts[i]; i++) {
        c.attr.part_first[i] = c.n, c.attr.part_columns[i] = w->parts[i], c.attr.n_parts = i + 1;
        c.n += w->parts[i];
    }
    if (f == BASE_INT8) c.attr.n_parts = 1, c.attr.part_columns[0] = c.n;
    c.at = (base_codes){.codes = mem_alloc((size_t)(c.n * c.k)),
                        .scale_codes = mem_alloc((size_t)(c.n * c.k)),
                        .scale = mem_alloc((size_t)c.n * 4 + 4096),
                        .offset = mem_alloc(3 * 4)};
    c.numbers = mem_alloc((size_t)(c.n * c.k) * sizeof(float));
    float *numbers = mem_alloc((size_t)(c.n * c.k) * sizeof(float));
    rng_normal_fill(rng_key(7, "weight"), 0, numbers, (size_t)(c.n * c.k), 0.0f, 0.02f);
    for (int64_t row = 0; row < c.n; row++)
        for (int64_t i = 0; i < c.k && row % 7 < 2; i++) numbers[row * c.k + i] *= row % 7 ? 100.0f : 0.0f;
    for (int i = 0; i < c.attr.n_parts; i++) {
        int64_t n_rows = c.attr.part_columns[i], first = c.attr.part_first[i] * c.k;
        base_sizes n = base_sizes_of(f, n_rows, c.k);
        base_codes part = {.codes = (char *)c.at.codes + c.all.codes,
                           .scale_codes = c.at.scale_codes + c.all.scale_codes,
                           .scale = c.at.scale + c.all.scales,
                           .offset = c.at.offset + c.all.offsets};
        quantizer q;
        quantizer_init(&q, &(quantizer_options){.name = "w",
                                                .format = f,
                                                .n_out = n_rows,
                                                .n_in = c.k,
                                                .absmax = quantize_absmax(0, numbers + first, n_rows * c.k),
                                                .to = part});
        assert_int_equal(quantizer_add(&q, numbers + first, n_rows), OK);
        assert_int_equal(quantizer_finish(&q), OK);
        quantizer_fini(&q);
        base_dequantize(f, n_rows, c.k, &part, c.numbers + first, 0, n_rows * c.k);
        c.all.codes += n.codes, c.all.scales += n.scales, c.all.scale_codes += n.scale_codes,
            c.all.offsets += n.offsets;
    }
    free(numbers);
    return c;
}

static void codes_close(codes *c) {
    free(c->at.codes);
    free(c->at.scale_codes);
    free(c->at.scale);
    free(c->at.offset);
    free(c->numbers);
}

static void floats_in(op_case *t, int input, const float *v, int64_t n) {
    double *wide = mem_alloc((size_t)n * sizeof *wide);
    for (int64_t i = 0; i < n; i++) wide[i] = v[i];
    op_case_floats(t, input, DTYPE_F32, SHAPE(n), wide);
    free(wide);
}

static void weight_in(op_case *o, const codes *c) {
    base_format f = c->attr.base_format;
    if (f == BASE_NF4) {
        op_case_bytes(o, LINEAR_CODES_CODES, SHAPE(c->all.codes), c->at.codes);
        op_case_bytes(o, LINEAR_CODES_SCALE_CODES, SHAPE(c->all.scale_codes), c->at.scale_codes);
        floats_in(o, LINEAR_CODES_OFFSET, c->at.offset, c->all.offsets);
    } else {
        double *wide = mem_alloc((size_t)c->all.codes * sizeof *wide);
        for (int64_t i = 0; i < c->all.codes; i++) wide[i] = tensor_get_f32(c->at.codes, base_codes_type(f), (size_t)i);
        op_case_floats(o, LINEAR_CODES_CODES, base_codes_type(f), SHAPE(c->n, c->k), wide);
        free(wide);
    }
    floats_in(o, LINEAR_CODES_SCALE, c->at.scale, c->all.scales);
}

static op_case *filled_case(const codes *c, dtype t, dtype y_type, int64_t m, const double *x) {
    op_case *o = op_case_open(OP_LINEAR_CODES, &c->attr);
    op_case_floats(o, LINEAR_CODES_X, t, SHAPE(m, c->k), x);
    weight_in(o, c);
    op_case_output(o, LINEAR_CODES_Y, y_type, SHAPE(m, c->n));
    op_case_run(o, 2);
    return o;
}

/* picked: every second row of twice as many. */
static op_case *product_case(const codes *c, dtype t, dtype y_type, int64_t m, bool bias, bool picked) {
    op_case *o = op_case_open(OP_LINEAR_CODES, &c->attr);
    op_case_random(o, LINEAR_CODES_X, t, SHAPE(picked ? 2 * m : m, c->k), 1, 1);
    weight_in(o, c);
    if (bias) op_case_random(o, LINEAR_CODES_B, y_type, SHAPE(c->n), 1, 3);
    if (picked) {
        int32_t pick[ROWS_MOST];
        for (int64_t i = 0; i < m; i++) pick[i] = (int32_t)(2 * i + 1);
        op_case_ints(o, LINEAR_CODES_PICK, SHAPE(m), pick);
    }
    op_case_output(o, LINEAR_CODES_Y, y_type, SHAPE(m, c->n));
    op_case_run(o, 2);
    return o;
}

/* What the op may round, beside fp32 sums: every X_BOX of a row of x to their largest / 32512, of fp8 to two numbers of 4 bits (and sums of 64
 * to 13 bits); values of nf4 to 1/127 of their block's largest. */
static void check_rows(op_case *o, const codes *c, dtype y_type, int64_t m, bool bias, bool picked) {
    enum { X_BOX = 128 };
    const double *x = op_case_input_values(o, LINEAR_CODES_X), *y = op_case_values(o, LINEAR_CODES_Y);
    const double *b = bias ? op_case_input_values(o, LINEAR_CODES_B) : NULL;
    const base_format f = c->attr.base_format;
    for (int64_t row = 0; row < m; row++) {
        const double *from = x + (picked ? 2 * row + 1 : row) * c->k;
        for (int64_t n = 0; n < c->n; n++) {
            const float *w = c->numbers + n * c->k;
            double sum = b ? b[n] : 0, size = fabs(sum), rounded = 0, values = 0;
            for (int64_t first = 0; first < c->k; first += X_BOX) {
                double most = 0, weights = 0;
                for (int64_t k = first; k < MIN(first + X_BOX, c->k); k++)
                    most = fmax(most, fabs(from[k])), weights += fabs(w[k]);
                rounded += most * weights;
            }
            for (int64_t first = 0; first < c->k; first += NF4_BLOCK) {
                double block = 0, xs = 0;
                for (int64_t k = first; k < first + NF4_BLOCK; k++) {
                    double term = from[k] * (double)w[k];
                    sum += term, size += fabs(term), xs += fabs(from[k]);
                    block = fmax(block, fabs(w[k]));
                }
                values += xs * block;
            }
            double bound = U32 * (double)(c->k + 4) * size;
            bound += f == BASE_FP8 ? (0x1p-8 + 0x1p-10) * size : 0x1.01p-16 * rounded;
            if (f == BASE_NF4) bound += 0.5 / 127 * values;
            check_element(y[row * c->n + n], sum, bound, y_type, "linear_codes", (size_t)(row * c->n + n));
        }
    }
}

static void rows_are_products(void **state) {
    for (size_t i = 0; i < ARRAY_LENGTH(shapes); i++)
        for (size_t f = 0; f < ARRAY_LENGTH(formats); f++) {
            codes c = codes_open(formats[f], &shapes[i]);
            for (size_t t = 0; t < ARRAY_LENGTH(types); t++)
                for (size_t r = 0; r < ARRAY_LENGTH(rows_of); r++) {
                    dtype y_type =
                        r % 3 == 2 || rows_of[r] > CODES_ROWS ? DTYPE_F32 : types[t]; /* else by way of numbers */
                    bool picked = r % 4 == 1;
                    if (!is_asked(rows_of[r]) || (r > 5 && (i + f + t) % 3))
                        continue; /* the product in double takes long */
                    op_case *o = product_case(&c, types[t], y_type, rows_of[r], shapes[i].bias, picked);
                    check_rows(o, &c, y_type, rows_of[r], shapes[i].bias, picked);
                    op_case_close(o);
                }
            codes_close(&c);
        }
}

static void rows_do_not_know_each_other(void **state) {
    for (size_t i = 0; i < ARRAY_LENGTH(shapes); i++)
        for (size_t f = 0; f < ARRAY_LENGTH(formats); f++) {
            codes c = codes_open(formats[f], &shapes[i]);
            op_case *all = product_case(&c, DTYPE_BF16, DTYPE_F32, ROWS_MOST, false, false);
            for (size_t r = 0; r + 1 < ARRAY_LENGTH(rows_of); r++) {
                if (!is_asked(rows_of[r])) continue;
                op_case *o = product_case(&c, DTYPE_BF16, DTYPE_F32, rows_of[r], false, false);
                check_equal_bits(o, LINEAR_CODES_Y, all, LINEAR_CODES_Y, (size_t)(rows_of[r] * c.n),
                                 "a row beside others");
                op_case_close(o);
            }
            op_case_close(all);
            codes_close(&c);
        }
}

/* A row with a number that is not finite gives none that is; others are as they were. */
static void what_is_not_finite_stays_in_its_row(void **state) {
    enum { ROWS = 6, BAD = 2 };
    for (size_t f = 0; f < ARRAY_LENGTH(formats); f++) {
        codes c = codes_open(formats[f], &shapes[1]);
        op_case *o = product_case(&c, DTYPE_BF16, DTYPE_F32, ROWS, false, false);
        double *x = mem_alloc((size_t)(ROWS * c.k) * sizeof *x);
        memcpy(x, op_case_input_values(o, LINEAR_CODES_X), (size_t)(ROWS * c.k) * sizeof *x);
        x[BAD * c.k + 77] = f % 2 ? INFINITY : NAN;
        op_case_close(o);
        o = filled_case(&c, DTYPE_BF16, DTYPE_F32, ROWS, x);
        const double *y = op_case_values(o, LINEAR_CODES_Y);
        for (int64_t i = 0; i < ROWS * c.n; i++) {
            bool zero_row = i % c.n % 7 ==
                            0; /* of the weight: infinity times 0 is NaN, but codes of zeros are left to the kernel */
            if (i / c.n == BAD) assert_true(zero_row || !isfinite(y[i]));
            else assert_true(isfinite(y[i]));
        }
        op_case_close(o);
        codes_close(&c);
        free(x);
    }
}

/* More rows than the codes are read for: by way of numbers, on a GPU rounded to 16 bits. */
static void many_rows_are_products(void **state) {
    enum { MANY = 300 };
    for (size_t f = 0; f < ARRAY_LENGTH(formats); f++) {
        codes c = codes_open(formats[f], &shapes[1]);
        op_case *o = product_case(&c, DTYPE_BF16, DTYPE_BF16, MANY, true, false);
        const double *x = op_case_input_values(o, LINEAR_CODES_X), *y = op_case_values(o, LINEAR_CODES_Y);
        const double *b = op_case_input_values(o, LINEAR_CODES_B);
        for (int64_t i = 0; i < MANY * c.n; i++) {
            double sum = b[i % c.n], size = fabs(sum);
            for (int64_t k = 0; k < c.k; k++) {
                double term = x[i / c.n * c.k + k] * (double)c.numbers[i % c.n * c.k + k];
                sum += term, size += fabs(term);
            }
            check_element(y[i], sum, (U32 * (double)(c.k + 4) + 0x1p-9) * size, DTYPE_BF16, "linear_codes", (size_t)i);
        }
        op_case_close(o);
        codes_close(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_products), cmocka_unit_test(rows_do_not_know_each_other),
        cmocka_unit_test(what_is_not_finite_stays_in_its_row), cmocka_unit_test(many_rows_are_products)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
