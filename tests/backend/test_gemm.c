/* test_gemm.c - the GEMM and the linear ops on it, for every kernel this machine can run.
 *
 * Two kinds of proof. With small integers every product and every sum is exact in fp32, so any kernel in any order
 * must give exactly the integer result: one lost, doubled or misplaced product shows. With normal numbers the result
 * must lie within the rounding bound of its own sum. Every run has guard words around C and the scratch, and scratch
 * starts as NaN, so reading what was never packed shows too.
 *
 *     test_gemm [KERNEL]     only that kernel: for an emulator, which is too slow for all of them */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "backend/cpu/gemm.h"
#include <math.h>
#include <stdlib.h>

#define GUARD_BYTES 256
#define GUARD 0xa5

typedef enum order { NN, NT, TN, TT } order; /* T: that operand's col_stride is not 1 */
static const dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

typedef struct problem {
    int64_t m, n, k;
    order order;
    dtype type, c_type, bias_type;
    bool bias, accumulate, integers;
    int64_t extra; /* ld beyond the row, on all three matrices */
} problem;

/* ---- buffers with guard words ------------------------------------------------------------------------------------ */

typedef struct guarded {
    uint8_t *memory, *data;
    size_t n_bytes;
} guarded;

static guarded guarded_open(size_t n_bytes, int fill) {
    size_t total = (n_bytes + 2 * GUARD_BYTES + 63) / 64 * 64;
    guarded g = {.memory = aligned_alloc(64, total), .n_bytes = n_bytes};
    assert_non_null(g.memory);
    memset(g.memory, GUARD, total);
    g.data = g.memory + GUARD_BYTES;
    memset(g.data, fill, n_bytes);
    return g;
}

static void guarded_close(guarded *g) {
    for (size_t i = 0; i < GUARD_BYTES; i++) {
        assert_int_equal(g->memory[i], GUARD);
        assert_int_equal(g->data[g->n_bytes + i], GUARD);
    }
    free(g->memory);
}

/* ---- one problem -------------------------------------------------------------------------------------------------- */

static void *matrix(const problem *p, dtype type, int64_t n, uint64_t key) {
    void *data = malloc((size_t)n * dtype_bytes(type));
    float *numbers = malloc((size_t)n * sizeof(float));
    assert_non_null(data);
    assert_non_null(numbers);
    if (p->integers)
        for (int64_t i = 0; i < n; i++) /* -4 .. 4, scattered by a multiplication: there are millions of them */
            numbers[i] = (float)((((uint64_t)i + key * 7919) * 0x9e3779b97f4a7c15u >> 40) % 9) - 4;
    else rng_normal_fill(key, 0, numbers, (size_t)n, 0, 1);
    tensor_convert(data, type, numbers, DTYPE_F32, (size_t)n);
    free(numbers);
    return data;
}

static gemm_operand operand(const void *data, dtype type, bool transposed, int64_t rows, int64_t cols, int64_t extra) {
    gemm_operand o = {data, type, cols + extra, 1};
    if (transposed) o.row_stride = 1, o.col_stride = rows + extra;
    return o;
}

/* (rows, k) as doubles: A as it is, B turned so that both are read along k. */
static double *doubles(const gemm_operand *o, bool turned, int64_t rows, int64_t k) {
    double *out = malloc((size_t)(rows * k) * sizeof(double));
    assert_non_null(out);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t l = 0; l < k; l++) {
            int64_t row = turned ? l : i, col = turned ? i : l;
            out[i * k + l] = tensor_get_f32(o->data, o->type, (size_t)(row * o->row_stride + col * o->col_stride));
        }
    return out;
}

/* Runs p with n_threads and returns C with its ld; the caller frees. */
static void *run(const problem *p, const gemm_operand *a, const gemm_operand *b, const void *bias, const void *before,
                 int n_threads) {
    int64_t ldc = p->n + p->extra;
    size_t c_bytes = (size_t)(p->m * ldc) * dtype_bytes(p->c_type);
    guarded c = guarded_open(c_bytes, 0);
    memcpy(c.data, before, c_bytes);
    /* 0xff: NaN in every type */
    guarded work = guarded_open(gemm_work_bytes(p->m, p->n, p->k, p->type, p->c_type, n_threads), 0xff);
    pool *threads;
    assert_int_equal(pool_open(&threads, n_threads, false), OK);
    backend_context context = {.threads = threads, .n_threads = n_threads};
    gemm_call g = {.m = p->m,
                   .n = p->n,
                   .k = p->k,
                   .a = *a,
                   .b = *b,
                   .c = c.data,
                   .c_type = p->c_type,
                   .ldc = ldc,
                   .bias = bias,
                   .bias_type = p->bias_type,
                   .accumulate = p->accumulate};
    gemm_run(&context, &g, work.n_bytes ? work.data : NULL);
    pool_close(threads);
    void *out = malloc(c_bytes);
    assert_non_null(out);
    memcpy(out, c.data, c_bytes);
    guarded_close(&c);
    guarded_close(&work);
    return out;
}

static double unit_roundoff(dtype t) { return t == DTYPE_BF16 ? 0x1p-8 : t == DTYPE_F16 ? 0x1p-11 : 0x1p-24; }

static void check(const problem *p, const char *kernel) {
    int64_t ldc = p->n + p->extra, n_c = p->m * ldc;
    bool a_t = p->order == TN || p->order == TT, b_t = p->order == NT || p->order == TT;
    void *a_data = matrix(p, p->type, (a_t ? p->k : p->m) * ((a_t ? p->m : p->k) + p->extra), 1);
    void *b_data = matrix(p, p->type, (b_t ? p->n : p->k) * ((b_t ? p->k : p->n) + p->extra), 2);
    void *bias = p->bias ? matrix(p, p->bias_type, p->n, 3) : NULL;
    void *before = matrix(p, p->c_type, n_c, 4);
    gemm_operand a = operand(a_data, p->type, a_t, p->m, p->k, p->extra);
    gemm_operand b = operand(b_data, p->type, b_t, p->k, p->n, p->extra);
    void *c = run(p, &a, &b, bias, before, 1);

    double *a_rows = doubles(&a, false, p->m, p->k), *b_cols = doubles(&b, true, p->n, p->k);
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t j = 0; j < ldc; j++) {
            size_t e = (size_t)(i * ldc + j);
            double got = tensor_get_f32(c, p->c_type, e), old = tensor_get_f32(before, p->c_type, e);
            if (j >= p->n) { /* between the rows */
                assert_true(got == old);
                continue;
            }
            double sum = 0, size = 0;
            for (int64_t l = 0; l < p->k; l++) {
                double product = a_rows[i * p->k + l] * b_cols[j * p->k + l];
                sum += product, size += fabs(product);
            }
            if (bias) sum += tensor_get_f32(bias, p->bias_type, (size_t)j), size += fabs(sum);
            if (p->accumulate) sum += old, size += fabs(old);
            double bound;
            if (p->integers) {
                /* Exact sums; the one rounding to C's type must be the nearest-even one of the exact value. */
                uint32_t one;
                tensor_set_f32(&one, p->c_type, 0, (float)sum);
                sum = tensor_get_f32(&one, p->c_type, 0);
                bound = 0;
            } else {
                /* k products and sums, each within 2^-23 of the terms so far (the bf16 instructions need not round to
                 * nearest, so twice the half unit), and one rounding to C's type. */
                bound = (double)(p->k + 2) * 0x1p-23 * size;
                bound += unit_roundoff(p->c_type) * (fabs(sum) + bound);
            }
            if (!(fabs(got - sum) <= bound))
                fail_msg("%s %s->%s order %d m %d n %d k %d bias %d acc %d: C[%d,%d] = %.9g, expected %.9g +- %.3g",
                         kernel, dtype_name(p->type), dtype_name(p->c_type), p->order, (int)p->m, (int)p->n, (int)p->k,
                         p->bias, p->accumulate, (int)i, (int)j, got, sum, bound);
        }

    free(a_rows), free(b_cols);

    static const int thread_counts[] = {2, 3, 5};
    for (size_t t = 0; t < ARRAY_LENGTH(thread_counts); t++) {
        void *again = run(p, &a, &b, bias, before, thread_counts[t]);
        if (memcmp(again, c, (size_t)n_c * dtype_bytes(p->c_type)) != 0)
            fail_msg("%s %s m %d n %d k %d: %d threads give other bits than 1", kernel, dtype_name(p->type), (int)p->m,
                     (int)p->n, (int)p->k, thread_counts[t]);
        free(again);
    }
    free(a_data), free(b_data), free(bias), free(before), free(c);
}

/* ---- every kernel -------------------------------------------------------------------------------------------------- */

static const char *only_kernel; /* NULL: all */

/* Calls fn for each kernel of this machine and each type it serves; says which kernels were not tried. */
static void each_kernel(void (*fn)(const char *kernel, dtype type)) {
    int n_tried = 0;
    for (int i = 0; gemm_kernel_list(i); i++) {
        const char *name = gemm_kernel_list(i);
        if (only_kernel && strcmp(only_kernel, name) != 0) continue;
        if (!gemm_force_kernel(name)) {
            print_message("          kernel %s: not on this machine, skipped\n", name);
            continue;
        }
        for (size_t t = 0; t < ARRAY_LENGTH(types); t++)
            if (strcmp(gemm_kernel_name(types[t]), name) == 0) fn(name, types[t]), n_tried++;
        gemm_force_kernel(NULL);
    }
    /* OpenBLAS for fp32 and portable for three types run everywhere. */
    if (n_tried < (only_kernel ? 1 : 4)) fail_msg("only %d kernels and types tried", n_tried);
}

static void small_sizes(const char *kernel, dtype type) {
    static const int64_t sizes[] = {1, 2, 3, 5, 7, 8, 11, 13, 16, 17, 31, 33, 47, 65, 97};
    int n_sizes = ARRAY_LENGTH(sizes);
    for (int i = 0; i < 60; i++) { /* each size meets each place, orders and options in turn */
        problem p = {.m = sizes[i % n_sizes],
                     .n = sizes[(i * 4 + 1) % n_sizes],
                     .k = sizes[(i * 7 + i / n_sizes) % n_sizes],
                     .order = (order)(i % 4),
                     .type = type,
                     .c_type = i % 3 ? type : DTYPE_F32,
                     .extra = i % 5,
                     .bias = i % 2 == 0,
                     .bias_type = types[i % 3],
                     .integers = i % 2 == 1 || i % 7 == 0};
        p.accumulate = p.c_type == DTYPE_F32 && i % 4 < 2;
        check(&p, kernel);
    }
}

static void edges_of_blocks(const char *kernel, dtype type) {
    /* Around the tile of C (96, 192, 384), the OpenBLAS tile and every kernel's block of k (256 ... 768). */
    static const problem cases[] = {
        {.m = 95, .n = 193, .k = 769, .order = NT},   {.m = 97, .n = 96, .k = 513, .order = NN},
        {.m = 193, .n = 101, .k = 385, .order = TN},  {.m = 385, .n = 191, .k = 257, .order = TT},
        {.m = 17, .n = 389, .k = 1543, .order = NT},  {.m = 400, .n = 9, .k = 1025, .order = TN},
        {.m = 130, .n = 131, .k = 1024, .order = NN}, {.m = 3, .n = 1201, .k = 64, .order = NT},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++)
        for (int integers = 0; integers < 2; integers++) {
            problem p = cases[i];
            p.type = type, p.c_type = i % 2 ? type : DTYPE_F32, p.integers = integers, p.extra = (int64_t)i % 3;
            p.bias = i % 3 == 0, p.bias_type = type, p.accumulate = p.c_type == DTYPE_F32 && i % 4 == 0;
            check(&p, kernel);
        }
}

/* Too large for a full reference. C x = A (B x) for a random x, in integers that a double holds exactly: a row of C
 * with any wrong element fails, unless its errors cancel against x. */
static void check_rows(const char *kernel, problem p) {
    p.c_type = DTYPE_F32, p.integers = true;
    bool a_t = p.order == TN || p.order == TT, b_t = p.order == NT || p.order == TT;
    void *a_data = matrix(&p, p.type, p.m * p.k, 1), *b_data = matrix(&p, p.type, p.k * p.n, 2);
    float *before = calloc((size_t)(p.m * p.n), sizeof(float));
    double *bx = calloc((size_t)p.k, sizeof(double)), *x = malloc((size_t)p.n * sizeof(double));
    assert_true(before && bx && x);
    for (int64_t j = 0; j < p.n; j++) x[j] = (double)rng_below(5, (uint64_t)j, 1000);
    gemm_operand a = operand(a_data, p.type, a_t, p.m, p.k, 0), b = operand(b_data, p.type, b_t, p.k, p.n, 0);
    float *c = run(&p, &a, &b, NULL, before, 2), *again = run(&p, &a, &b, NULL, before, 3);
    assert_memory_equal(c, again, (size_t)(p.m * p.n) * sizeof(float));
    for (int64_t l = 0; l < p.k; l++)
        for (int64_t j = 0; j < p.n; j++)
            bx[l] += tensor_get_f32(b_data, p.type, (size_t)(l * b.row_stride + j * b.col_stride)) * x[j];
    for (int64_t i = 0; i < p.m; i++) {
        double got = 0, expected = 0;
        for (int64_t l = 0; l < p.k; l++)
            expected += tensor_get_f32(a_data, p.type, (size_t)(i * a.row_stride + l * a.col_stride)) * bx[l];
        for (int64_t j = 0; j < p.n; j++) got += c[i * p.n + j] * x[j];
        if (got != expected)
            fail_msg("%s %s m %d n %d k %d: row %d sums to %.17g, expected %.17g", kernel, dtype_name(p.type), (int)p.m,
                     (int)p.n, (int)p.k, (int)i, got, expected);
    }
    free(a_data), free(b_data), free(before), free(bx), free(x), free(c), free(again);
}

/* k so long that tasks pack both sides for themselves, and shared sides that take several passes: 8 MiB hold 1024
 * rows of k = 2048 as fp32 and 2048 as bf16, 262 and 524 of k = 8000. */
static void shapes_beyond_the_scratch(const char *kernel, dtype type) {
    check_rows(kernel, (problem){.m = 99, .n = 100, .k = 21001, .order = TN, .type = type});
    check_rows(kernel, (problem){.m = 129, .n = 113, .k = 21001, .order = NT, .type = type});
    if (strcmp(kernel, "portable") == 0) return; /* the same driver again, slowly */
    check_rows(kernel, (problem){.m = 601, .n = 603, .k = 8000, .order = NT, .type = type});
    check_rows(kernel, (problem){.m = 2070, .n = 2061, .k = 2048, .order = NN, .type = type});
}

static void test_small_and_odd_sizes_in_every_order(void **state) { each_kernel(small_sizes); }
static void test_sizes_around_tiles_and_blocks(void **state) { each_kernel(edges_of_blocks); }
static void test_shapes_larger_than_the_scratch(void **state) { each_kernel(shapes_beyond_the_scratch); }

/* NaN and infinity must come through, and only in the rows and columns they belong to. */
static void nan_stays(const char *kernel, dtype type) {
    problem p = {.m = 21, .n = 27, .k = 37, .order = NT, .type = type, .c_type = type, .integers = true};
    void *a_data = matrix(&p, type, p.m * p.k, 1), *b_data = matrix(&p, type, p.n * p.k, 2);
    void *before = matrix(&p, type, p.m * p.n, 4);
    for (int64_t i = 0; i < p.n * p.k; i++) tensor_set_f32(b_data, type, (size_t)i, 1);
    tensor_set_f32(a_data, type, (size_t)(20 * p.k + 36), NAN);
    tensor_set_f32(a_data, type, (size_t)(3 * p.k + 1), INFINITY);
    gemm_operand a = operand(a_data, type, false, p.m, p.k, 0), b = operand(b_data, type, true, p.k, p.n, 0);
    void *c = run(&p, &a, &b, NULL, before, 2);
    for (int64_t i = 0; i < p.m; i++)
        for (int64_t j = 0; j < p.n; j++) {
            float got = tensor_get_f32(c, type, (size_t)(i * p.n + j));
            if (i == 20 ? !isnan(got) : i == 3 ? got != INFINITY : !isfinite(got))
                fail_msg("%s %s: C[%d,%d] = %g", kernel, dtype_name(type), (int)i, (int)j, got);
        }
    free(a_data), free(b_data), free(before), free(c);
}
static void test_nan_and_infinity_stay_in_their_rows(void **state) { each_kernel(nan_stays); }

/* Chunks of a vocabulary must give the bits of the whole: our own kernels promise it. */
static void columns_alone(const char *kernel, dtype type) {
    if (strcmp(kernel, "openblas") == 0) return; /* promises it for equal shapes only */
    problem whole = {.m = 70, .n = 300, .k = 801, .order = NT, .type = type, .c_type = DTYPE_F32};
    problem part = whole;
    part.n = 101;
    void *a_data = matrix(&whole, type, whole.m * whole.k, 1), *b_data = matrix(&whole, type, whole.n * whole.k, 2);
    float *before = calloc((size_t)(whole.m * whole.n), sizeof(float));
    gemm_operand a = operand(a_data, type, false, whole.m, whole.k, 0);
    gemm_operand b = operand(b_data, type, true, whole.k, whole.n, 0), b_part = b;
    b_part.data = (const uint8_t *)b_data + (size_t)(57 * whole.k) * dtype_bytes(type);
    b_part.col_stride = whole.k;
    b.col_stride = whole.k;
    float *c = run(&whole, &a, &b, NULL, before, 2), *c_part = run(&part, &a, &b_part, NULL, before, 1);
    for (int64_t i = 0; i < whole.m; i++)
        assert_memory_equal(c + i * whole.n + 57, c_part + i * part.n, (size_t)part.n * sizeof(float));
    free(a_data), free(b_data), free(before), free(c), free(c_part);
}
static void test_a_part_of_the_columns_has_the_bits_of_the_whole(void **state) { each_kernel(columns_alone); }

/* Few rows are multiplied without packing. They have the bits of the GEMM. */
static void few_rows(const char *kernel, dtype type) {
    static const int64_t shapes[][2] = {{37, 801}, {64, 384}, {5, 3}, {19, 390}}; /* n, k */
    if (strcmp(kernel, "openblas") == 0) return;                                  /* never by rows */
    pool *threads;
    assert_int_equal(pool_open(&threads, 2, false), OK);
    backend_context context = {.threads = threads, .n_threads = 2};
    for (size_t i = 0; i < ARRAY_LENGTH(shapes); i++)
        for (int64_t m = 1; m <= 9; m++) {
            int64_t n = shapes[i][0], k = shapes[i][1];
            void *a = matrix(&(problem){0}, type, m * k, 1), *b = matrix(&(problem){0}, type, n * k, 2);
            void *bias = matrix(&(problem){0}, type, n, 3);
            size_t c_bytes = (size_t)(m * n) * dtype_bytes(type);
            guarded work = guarded_open(gemm_rows_work_bytes(m, n, k, type, false, 2), 0xff);
            guarded c = guarded_open(c_bytes, 0), c_rows = guarded_open(c_bytes, 0);
            gemm_call g = {.m = m, .n = n, .k = k, .a = {a, type, k, 1}, .b = {b, type, 1, k}};
            g.c = c.data, g.c_type = type, g.ldc = n, g.bias = bias, g.bias_type = type, g.by_row = true;
            gemm_run(&context, &g, work.data);
            g.c = c_rows.data;
            gemm_rows_run(&context, &g, work.data);
            if (memcmp(c.data, c_rows.data, c_bytes) != 0)
                fail_msg("%s %s m %d n %d k %d: other bits without packing", kernel, dtype_name(type), (int)m, (int)n,
                         (int)k);
            guarded_close(&work), guarded_close(&c), guarded_close(&c_rows);
            free(a), free(b), free(bias);
        }
    pool_close(threads);
}
static void test_few_rows_have_the_bits_of_many(void **state) { each_kernel(few_rows); }

/* A weight in the order of lanes gives the bits that it gives as rows, and its rows can be taken out again. */
static void lanes(const char *kernel, dtype type) {
    /* n: no whole panel, some and rows behind them, many tiles; k: of a part of a block, of several, and one that matrix units refuse. */
    static const int64_t shapes[][2] = {{11, 96}, {101, 1600}, {192, 768}, {300, 33}, {97, 390}};
    static const int64_t rows[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 33, 120, 400};
    if (strcmp(kernel, "openblas") == 0) return; /* never by rows */
    pool *threads;
    assert_int_equal(pool_open(&threads, 2, false), OK);
    backend_context context = {.threads = threads, .n_threads = 2};
    for (size_t i = 0; i < ARRAY_LENGTH(shapes); i++) {
        int64_t n = shapes[i][0], k = shapes[i][1];
        size_t row_bytes = (size_t)k * dtype_bytes(type);
        char *b = matrix(&(problem){0}, type, n * k, 2), *bias = matrix(&(problem){0}, type, n, 3),
             *row = malloc(row_bytes);
        guarded ordered = guarded_open((size_t)n * row_bytes, 0);
        memcpy(ordered.data, b, (size_t)n * row_bytes);
        gemm_lanes_order(&context, ordered.data, type, n, k);
        for (int64_t r = 0; r < n; r++) {
            gemm_lanes_row(row, ordered.data, type, n, k, r, 0, k);
            assert_memory_equal(row, b + (size_t)r * row_bytes, row_bytes);
        }
        for (size_t q = 0; q < ARRAY_LENGTH(rows); q++) {
            int64_t m = rows[q];
            void *a = matrix(&(problem){0}, type, m * k, 1);
            size_t c_bytes = (size_t)(m * n) * dtype_bytes(type);
            guarded work = guarded_open(gemm_rows_work_bytes(m, n, k, type, true, 2), 0xff);
            guarded c = guarded_open(c_bytes, 0), c_lanes = guarded_open(c_bytes, 0);
            gemm_call g = {.m = m, .n = n, .k = k, .a = {a, type, k, 1}, .b = {b, type, 1, k}};
            g.c = c.data, g.c_type = type, g.ldc = n, g.bias = bias, g.bias_type = type;
            gemm_rows_run(&context, &g, work.data);
            g.c = c_lanes.data, g.b.data = ordered.data, g.lanes = true;
            gemm_rows_run(&context, &g, work.data);
            if (memcmp(c.data, c_lanes.data, c_bytes) != 0)
                fail_msg("%s %s m %d n %d k %d: other bits in the order of lanes", kernel, dtype_name(type), (int)m,
                         (int)n, (int)k);
            guarded_close(&work), guarded_close(&c), guarded_close(&c_lanes);
            free(a);
        }
        guarded_close(&ordered);
        free(b), free(bias), free(row);
    }
    pool_close(threads);
}
static void test_the_order_of_lanes_changes_no_bit(void **state) { each_kernel(lanes); }

static void test_scratch_is_bounded_for_any_shape(void **state) {
    /* 8 MiB shared, and per thread a strip, a tile and, for long k, a second strip: below 1 MiB. */
    static const int64_t shapes[][3] = {{256, 151936, 896}, {151936, 896, 256},   {8192, 8192, 8192},
                                        {768, 768, 131072}, {65536, 65536, 1024}, {1, 1, 1}};
    for (size_t i = 0; i < ARRAY_LENGTH(shapes); i++)
        for (int n_threads = 1; n_threads <= 64; n_threads *= 4) {
            size_t n = gemm_work_bytes(shapes[i][0], shapes[i][1], shapes[i][2], DTYPE_BF16, DTYPE_BF16, n_threads);
            assert_true(n <= (8u << 20) + ((size_t)n_threads << 20));
        }
    assert_true(gemm_force_kernel("openblas"));
    assert_int_equal(gemm_work_bytes(1024, 1024, 1024, DTYPE_F32, DTYPE_F32, 8), 0); /* OpenBLAS brings its own */
    assert_true(gemm_force_kernel(NULL));
}

static void test_unknown_kernel_is_refused(void **state) {
    const char *before = gemm_kernel_name(DTYPE_BF16), *before_f32 = gemm_kernel_name(DTYPE_F32);
    assert_false(gemm_force_kernel("abacus"));
    assert_string_equal(gemm_kernel_name(DTYPE_BF16), before);
    assert_string_equal(gemm_kernel_name(DTYPE_F32), before_f32);
    assert_true(gemm_force_kernel("portable"));
    assert_string_equal(gemm_kernel_name(DTYPE_BF16), "portable");
    assert_true(gemm_force_kernel(NULL));
    assert_string_equal(gemm_kernel_name(DTYPE_BF16), before);
}

/* ---- the linear ops: the same products, through op and values ------------------------------------------------------ */

enum { TOKENS = 37, IN = 29, OUT = 51 };
enum { V_X = 1, V_W, V_B, V_Y, V_DY, V_DX, V_DW, V_COUNT };

typedef struct linear_case {
    value values[V_COUNT];
    program program;
    void *data[V_COUNT];
} linear_case;

static void linear_case_open(linear_case *t, dtype type) {
    static const int64_t rows[] = {0, TOKENS, OUT, OUT, TOKENS, TOKENS, TOKENS, OUT};
    static const int64_t cols[] = {0, IN, IN, 0, OUT, OUT, IN, IN};
    memset(t, 0, sizeof *t);
    for (int v = 1; v < V_COUNT; v++) {
        t->values[v].type = v == V_DW ? DTYPE_F32 : type;
        t->values[v].shape = cols[v] ? SHAPE(rows[v], cols[v]) : SHAPE(rows[v]);
        t->data[v] =
            matrix(&(problem){.integers = true}, t->values[v].type, shape_count(&t->values[v].shape), (uint64_t)v);
    }
    t->program.values = t->values;
    t->program.n_values = V_COUNT;
}

static void linear_case_run(linear_case *t, void (*kernel)(backend_context *, const kernel_call *), op o,
                            int n_threads) {
    pool *threads;
    assert_int_equal(pool_open(&threads, n_threads, false), OK);
    backend_context context = {.threads = threads, .n_threads = n_threads};
    guarded work = guarded_open(cpu_work_LINEAR(&t->program, &o, n_threads), 0xff);
    kernel_call call = {.program = &t->program, .op = &o, .work = work.n_bytes ? work.data : NULL};
    for (int i = 0; i < op_input_count(o.kind); i++)
        if (o.in[i] != NO_VALUE) call.in[i] = t->data[o.in[i]];
    for (int i = 0; i < op_output_count(o.kind); i++) call.out[i] = t->data[o.out[i]];
    kernel(&context, &call);
    guarded_close(&work);
    pool_close(threads);
}

static double linear_get(const linear_case *t, int v, int64_t row, int64_t col) {
    int64_t width = t->values[v].shape.rank == 2 ? t->values[v].shape.dim[1] : 1;
    return tensor_get_f32(t->data[v], t->values[v].type, (size_t)(row * width + col));
}

/* Integers: the sums stay below 2^11 by far, only bf16 rounds. */
static void linear_expect(const linear_case *t, int v, int64_t row, int64_t col, double sum) {
    uint32_t one;
    tensor_set_f32(&one, t->values[v].type, 0, (float)sum);
    assert_true(linear_get(t, v, row, col) == tensor_get_f32(&one, t->values[v].type, 0));
}

static void test_linear_ops_forward_and_both_gradients(void **state) {
    for (size_t i = 0; i < ARRAY_LENGTH(types); i++)
        for (int with_bias = 0; with_bias < 2; with_bias++) {
            linear_case t;
            linear_case_open(&t, types[i]);
            op forward = {.kind = OP_LINEAR,
                          .in = {[LINEAR_X] = V_X, [LINEAR_W] = V_W, [LINEAR_B] = with_bias ? V_B : NO_VALUE},
                          .out = {[LINEAR_Y] = V_Y}};
            op dx = {.kind = OP_LINEAR_DX,
                     .in = {[LINEAR_DX_DY] = V_DY, [LINEAR_DX_W] = V_W},
                     .out = {[LINEAR_DX_DX] = V_DX}};
            op dw = {.kind = OP_LINEAR_DW,
                     .in = {[LINEAR_DW_DY] = V_DY, [LINEAR_DW_X] = V_X},
                     .out = {[LINEAR_DW_DW] = V_DW}};
            linear_case_run(&t, cpu_kernel_LINEAR, forward, 2);
            linear_case_run(&t, cpu_kernel_LINEAR_DX, dx, 3);
            linear_case_run(&t, cpu_kernel_LINEAR_DW, dw, 1);
            for (int64_t n = 0; n < TOKENS; n++) {
                for (int64_t o = 0; o < OUT; o++) {
                    double sum = with_bias ? linear_get(&t, V_B, o, 0) : 0;
                    for (int64_t j = 0; j < IN; j++) sum += linear_get(&t, V_X, n, j) * linear_get(&t, V_W, o, j);
                    linear_expect(&t, V_Y, n, o, sum);
                }
                for (int64_t j = 0; j < IN; j++) {
                    double sum = 0;
                    for (int64_t o = 0; o < OUT; o++) sum += linear_get(&t, V_DY, n, o) * linear_get(&t, V_W, o, j);
                    linear_expect(&t, V_DX, n, j, sum);
                }
            }
            for (int64_t o = 0; o < OUT; o++)
                for (int64_t j = 0; j < IN; j++) {
                    double sum = 0;
                    for (int64_t n = 0; n < TOKENS; n++) sum += linear_get(&t, V_DY, n, o) * linear_get(&t, V_X, n, j);
                    linear_expect(&t, V_DW, o, j, sum);
                }
            for (int v = 1; v < V_COUNT; v++) free(t.data[v]);
        }
}

int main(int argc, char **argv) {
    only_kernel = argc > 1 ? argv[1] : NULL;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_and_odd_sizes_in_every_order),
        cmocka_unit_test(test_sizes_around_tiles_and_blocks),
        cmocka_unit_test(test_shapes_larger_than_the_scratch),
        cmocka_unit_test(test_nan_and_infinity_stay_in_their_rows),
        cmocka_unit_test(test_a_part_of_the_columns_has_the_bits_of_the_whole),
        cmocka_unit_test(test_few_rows_have_the_bits_of_many),
        cmocka_unit_test(test_the_order_of_lanes_changes_no_bit),
        cmocka_unit_test(test_scratch_is_bounded_for_any_shape),
        cmocka_unit_test(test_unknown_kernel_is_refused),
        cmocka_unit_test(test_linear_ops_forward_and_both_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
