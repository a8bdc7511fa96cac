/* test_ops_fp8.c - ABSMAX, QUANTIZE and LINEAR8, and the largest number that other ops hand out.
 *
 * Rounding to e4m3 is defined by tensor.h to the bit, so q, t and scale are compared for equality on every device. Products
 * of e4m3 numbers are exact; what is left are fp32 sums, whose bound is that of their length. */
#include "norm_places.h"
#include "op_check.h"
#include "backend_choice.h"
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

static double largest(const double *x, int64_t n) {
    double most = 0;
    for (int64_t i = 0; i < n; i++) most = isnan(x[i]) || fabs(x[i]) > most ? fabs(x[i]) : most;
    return most;
}

static void test_absmax_finds_the_largest_wherever_it_is(void **state) {
    static const int64_t sizes[] = {1, 7, 16, 4097, 300001};
    for (size_t s = 0; s < ARRAY_LENGTH(sizes); s++)
        for (int place = 0; place < 4; place++) { /* nowhere in particular, first, middle, last */
            int64_t n = sizes[s];
            double *x = mem_alloc((size_t)n * sizeof *x);
            for (int64_t i = 0; i < n; i++) x[i] = (double)(i % 251) / 256 - 0.5;
            if (place) x[(n - 1) * (place - 1) / 2] = -3.5;
            op_case *t = op_case_open(OP_ABSMAX, &(op_attr){0});
            op_case_floats(t, ABSMAX_X, DTYPE_BF16, SHAPE(n), x);
            op_case_output(t, ABSMAX_AMAX, DTYPE_F32, SHAPE(1));
            op_case_run(t, 2);
            assert_true(op_case_values(t, ABSMAX_AMAX)[0] == largest(op_case_input_values(t, ABSMAX_X), n));
            op_case_close(t);
            free(x);
        }
}

static void test_absmax_is_not_finite_where_a_number_is_not(void **state) {
    static const double bad[] = {INFINITY, -INFINITY, NAN};
    for (size_t k = 0; k < ARRAY_LENGTH(bad); k++) {
        double x[1000] = {[3] = 7, [777] = bad[k]};
        op_case *t = op_case_open(OP_ABSMAX, &(op_attr){0});
        op_case_floats(t, ABSMAX_X, DTYPE_BF16, SHAPE(10, 100), x);
        op_case_output(t, ABSMAX_AMAX, DTYPE_F32, SHAPE(1));
        op_case_run(t, 2);
        assert_false(isfinite(op_case_values(t, ABSMAX_AMAX)[0]));
        op_case_close(t);
    }
}

static bool power; /* scales of the cases at hand are powers of two */

/* In words that are not the kernels': the largest number becomes 448, or the power of two is looked for. */
static double scale_of(double amax) {
    float a = (float)amax < 0x1p-100f ? 0x1p-100f : (float)amax;
    if (!power || !isfinite(a)) return a / 448.0f;
    double scale = 0x1p-110;
    while (448 * scale < a) scale *= 2;
    return scale;
}

/* What tensor.h says of one number. */
static double rounded(double x, double amax) {
    float a = (float)amax < 0x1p-100f ? 0x1p-100f : (float)amax,
          factor = power ? 1 / (float)scale_of(amax) : 448.0f / a;
    return e4m3_to_f32(f32_to_e4m3((float)x * factor));
}

static bool same(double a, double b) { return a == b || (isnan(a) && isnan(b)); }

typedef struct quantize_case {
    int64_t N, C;
    double amax; /* 0: the tensor's own */
    bool q, t, scale;
    double scale_of_x;
    bool finds;   /* the op finds the largest number ... */
    double guess; /* ... with a guess; NAN: without one */
} quantize_case;

static void check_quantize(const quantize_case *c) {
    int64_t N = c->N, C = c->C;
    op_case *t = op_case_open(OP_QUANTIZE, &(op_attr){.power = power});
    op_case_random(t, QUANTIZE_X, DTYPE_BF16, SHAPE(N, C), c->scale_of_x, 5);
    const double *x = op_case_input_values(t, QUANTIZE_X);
    double amax = c->amax > 0 ? c->amax : largest(x, N * C);
    if (!c->finds) op_case_floats(t, QUANTIZE_AMAX, DTYPE_F32, SHAPE(1), &amax);
    else op_case_output(t, QUANTIZE_LARGEST, DTYPE_F32, SHAPE(1));
    if (c->finds && !isnan(c->guess)) op_case_output_floats(t, QUANTIZE_GUESS, DTYPE_F32, SHAPE(1), &c->guess);
    if (c->q) op_case_output(t, QUANTIZE_Q, DTYPE_F8E4M3, SHAPE(N, C));
    if (c->t) op_case_output(t, QUANTIZE_T, DTYPE_F8E4M3, SHAPE(C, N));
    if (c->scale) op_case_output(t, QUANTIZE_SCALE, DTYPE_F32, SHAPE(1));
    op_case_run(t, 2);
    const double *q = c->q ? op_case_values(t, QUANTIZE_Q) : NULL,
                 *turned = c->t ? op_case_values(t, QUANTIZE_T) : NULL;
    for (int64_t i = 0; i < N; i++)
        for (int64_t j = 0; j < C; j++) {
            double want = rounded(x[i * C + j], amax);
            if (q && !same(q[i * C + j], want))
                fail_msg("q (%lld, %lld) [%lld, %lld] of %g: %g, expected %g", (long long)N, (long long)C, (long long)i,
                         (long long)j, x[i * C + j], q[i * C + j], want);
            if (turned && !same(turned[j * N + i], want))
                fail_msg("t (%lld, %lld) [%lld, %lld] of %g: %g, expected %g", (long long)C, (long long)N, (long long)j,
                         (long long)i, x[i * C + j], turned[j * N + i], want);
        }
    if (c->scale) assert_true(op_case_values(t, QUANTIZE_SCALE)[0] == scale_of(amax));
    if (c->finds) assert_true(op_case_values(t, QUANTIZE_LARGEST)[0] == amax);
    if (c->finds && !isnan(c->guess)) assert_true(op_case_values(t, QUANTIZE_GUESS)[0] == scale_of(amax));
    op_case_close(t);
}

static void test_quantize_rounds_and_turns_every_shape(void **state) {
    /* One tile of a GPU's kernel, less, several with short ends, and sides that are no multiple of 16. */
    static const int64_t shapes[][2] = {{16, 16}, {128, 128}, {48, 272}, {400, 144},
                                        {1, 1},   {7, 33},    {129, 16}, {64, 100}};
    for (size_t s = 0; s < ARRAY_LENGTH(shapes); s++)
        for (int outputs = 1; outputs < 4; outputs++)
            check_quantize(&(quantize_case){.N = shapes[s][0],
                                            .C = shapes[s][1],
                                            .q = outputs & 1,
                                            .t = outputs & 2,
                                            .scale = outputs != 2, /* made again for the backward, it is kept */
                                            .scale_of_x = 3});
}

/* Without a largest number QUANTIZE has the bits of ABSMAX and QUANTIZE, whatever the guess was. */
static void test_quantize_finds_its_scale(void **state) {
    static const double guesses[] = {NAN,    0,      0x1p-4,  0x1p-5,
                                     0x1p-6, 0x1p-7, INFINITY}; /* the right one is among them */
    power = true;
    for (size_t g = 0; g < ARRAY_LENGTH(guesses); g++)
        for (int outputs = 1; outputs < 4; outputs++)
            check_quantize(&(quantize_case){.N = 144,
                                            .C = 272,
                                            .q = outputs & 1,
                                            .t = outputs & 2,
                                            .scale = true,
                                            .scale_of_x = 3,
                                            .finds = true,
                                            .guess = guesses[g]});
    power = false;
}

/* Numbers beyond the range stop at 448, zeros stay zero under any scale, and what is not finite stays so. */
static void test_quantize_at_the_ends(void **state) {
    check_quantize(&(quantize_case){.N = 32, .C = 48, .amax = 0.01, .q = true, .t = true, .scale_of_x = 5});
    check_quantize(&(quantize_case){.N = 32, .C = 48, .amax = 1e30, .q = true, .t = true, .scale_of_x = 5});
    check_quantize(&(quantize_case){.N = 32, .C = 48, .amax = 1e-37, .q = true, .scale = true, .scale_of_x = 1e-37});
    check_quantize(&(quantize_case){.N = 32, .C = 48, .amax = INFINITY, .q = true, .t = true, .scale_of_x = 5});
    double zeros[256] = {0}, none = 0;
    op_case *t = op_case_open(OP_QUANTIZE, &(op_attr){0});
    op_case_floats(t, QUANTIZE_X, DTYPE_BF16, SHAPE(16, 16), zeros);
    op_case_floats(t, QUANTIZE_AMAX, DTYPE_F32, SHAPE(1), &none);
    op_case_output(t, QUANTIZE_Q, DTYPE_F8E4M3, SHAPE(16, 16));
    op_case_output(t, QUANTIZE_SCALE, DTYPE_F32, SHAPE(1));
    op_case_run(t, 2);
    for (int i = 0; i < 256; i++) assert_true(op_case_values(t, QUANTIZE_Q)[i] == 0);
    assert_true(op_case_values(t, QUANTIZE_SCALE)[0] > 0); /* a product with it is 0 and not NaN */
    op_case_close(t);
}

/* The power of two is the smallest that holds the largest number: exactly 448 times it, one unit more, and the ends. */
static void test_scales_of_powers_of_two(void **state) {
    static const double largest[] = {448, 448 * (1 + 0x1p-23), 447, 256, 0x1p-60 * 448, 1e30, 1e-37, 3.4e38, INFINITY};
    power = true;
    for (size_t i = 0; i < ARRAY_LENGTH(largest); i++)
        check_quantize(&(quantize_case){.N = 32,
                                        .C = 48,
                                        .amax = largest[i],
                                        .q = true,
                                        .t = true,
                                        .scale = true,
                                        .scale_of_x = isfinite(largest[i]) ? largest[i] / 4 : 1});
    check_quantize(&(quantize_case){.N = 7, .C = 33, .q = true, .t = true, .scale = true, .scale_of_x = 3});
    power = false;
}

typedef struct product_case {
    int64_t N, in, out;
    dtype type;
    bool bias, over_tokens;
} product_case;

/* The CPU sums fp32 numbers: 2 k U32 of the sum of sizes bounds any order. Tensor cores keep fewer bits of a short sum, about
 * 14 in the worst case known, and for sums over tokens promote them before they are lost. */
static void check_product(const product_case *c) {
    op_case *t = op_case_open(OP_LINEAR8, &(op_attr){.over_tokens = c->over_tokens});
    double x_scale = 0.037, w_scale = 1.7e-3;
    op_case_random(t, LINEAR8_X, DTYPE_F8E4M3, SHAPE(c->N, c->in), 60, 11);
    op_case_floats(t, LINEAR8_X_SCALE, DTYPE_F32, SHAPE(1), &x_scale);
    op_case_random(t, LINEAR8_W, DTYPE_F8E4M3, SHAPE(c->out, c->in), 90, 12);
    op_case_floats(t, LINEAR8_W_SCALE, DTYPE_F32, SHAPE(1), &w_scale);
    if (c->bias) op_case_random(t, LINEAR8_B, c->type, SHAPE(c->out), 20, 13);
    op_case_output(t, LINEAR8_Y, c->type, SHAPE(c->N, c->out));
    op_case_run(t, 2);
    const double *x = op_case_input_values(t, LINEAR8_X), *w = op_case_input_values(t, LINEAR8_W),
                 *y = op_case_values(t, LINEAR8_Y);
    const double *b = c->bias ? op_case_input_values(t, LINEAR8_B) : NULL;
    double scale = (double)(float)x_scale * (double)(float)w_scale;
    double unit = backend_under_test()->discrete ? 0x1p-13 : 2 * (double)c->in * U32;
    for (int64_t i = 0; i < c->N; i++)
        for (int64_t j = 0; j < c->out; j++) {
            double sum = 0, size = 0;
            for (int64_t k = 0; k < c->in; k++) {
                double p = x[i * c->in + k] * w[j * c->in + k];
                sum += p, size += fabs(p);
            }
            double want = sum * scale + (b ? b[j] : 0);
            check_element(y[i * c->out + j], want, unit * size * scale + 4 * U32 * fabs(want), c->type, "linear8",
                          (size_t)(i * c->out + j));
        }
    op_case_close(t);
}

static void test_linear8_is_the_scaled_product(void **state) {
    check_product(&(product_case){.N = 16, .in = 16, .out = 16, .type = DTYPE_BF16});
    check_product(&(product_case){.N = 48, .in = 64, .out = 80, .type = DTYPE_BF16, .bias = true});
    check_product(&(product_case){.N = 144, .in = 272, .out = 128, .type = DTYPE_BF16});
    check_product(&(product_case){.N = 64, .in = 528, .out = 96, .type = DTYPE_F32, .over_tokens = true});
    check_product(&(product_case){.N = 64, .in = 48, .out = 32, .type = DTYPE_BF16, .over_tokens = true});
}

static void test_linear8_is_not_finite_where_a_scale_is_not(void **state) {
    double infinite = INFINITY, one = 1;
    op_case *t = op_case_open(OP_LINEAR8, &(op_attr){0});
    op_case_random(t, LINEAR8_X, DTYPE_F8E4M3, SHAPE(16, 16), 60, 11);
    op_case_floats(t, LINEAR8_X_SCALE, DTYPE_F32, SHAPE(1), &infinite);
    op_case_random(t, LINEAR8_W, DTYPE_F8E4M3, SHAPE(16, 16), 60, 12);
    op_case_floats(t, LINEAR8_W_SCALE, DTYPE_F32, SHAPE(1), &one);
    op_case_output(t, LINEAR8_Y, DTYPE_BF16, SHAPE(16, 16));
    op_case_run(t, 2);
    for (int i = 0; i < 256; i++) assert_false(isfinite(op_case_values(t, LINEAR8_Y)[i]));
    op_case_close(t);
}

/* ---- scales of blocks ------------------------------------------------------------------------------------------------ */

enum { BLOCK = 128 };

/* Where the scale of element (i, k) of (n, m) lies, in words that are not the kernels'. */
static int64_t scale_at(int64_t i, int64_t k, int64_t n, int64_t m, bool square) {
    if (!square) return k / BLOCK * n + i;
    return i / BLOCK * ((m / BLOCK + 3) / 4 * 4) + k / BLOCK;
}

/* The largest number of the block of element (i, k) of x (n, m), or of its transpose. */
static double block_largest(const double *x, int64_t i, int64_t k, int64_t n, int64_t m, bool square, bool turned) {
    double most = 0;
    int64_t first = square ? i / BLOCK * BLOCK : i, end = square ? first + BLOCK : i + 1;
    for (int64_t r = first; r < end; r++)
        for (int64_t c = k / BLOCK * BLOCK; c < k / BLOCK * BLOCK + BLOCK; c++) {
            double y = fabs(turned ? x[c * n + r] : x[r * m + c]);
            most = isnan(y) || y > most ? y : most;
        }
    return most;
}

static void check_rounded_blocks(const double *x, const double *q, const double *scale, int64_t n, int64_t m,
                                 bool square, bool turned) {
    power = true;
    for (int64_t k = 0; k < m; k += BLOCK)
        for (int64_t i = 0; i < n; i++) {
            double amax = square && i % BLOCK ? NAN : block_largest(x, i, k, n, m, square, turned);
            static double last; /* of a square block: that of its first row */
            if (square && i % BLOCK) amax = last;
            last = amax;
            double got = scale[scale_at(i, k, n, m, square)];
            if (!same(got, scale_of(amax)))
                fail_msg("scale of block (%lld, %lld): %g, expected %g", (long long)i, (long long)k, got,
                         scale_of(amax));
            for (int64_t c = k; c < k + BLOCK; c++) {
                double want = rounded(turned ? x[c * n + i] : x[i * m + c], amax);
                if (!same(q[i * m + c], want))
                    fail_msg("%s [%lld, %lld]: %g, expected %g", turned ? "t" : "q", (long long)i, (long long)c,
                             q[i * m + c], want);
            }
        }
    power = false;
}

/* Rows and columns of very different sizes, a row of zeros and, where `bad`, a number that is not one. */
static void check_blocks(int64_t N, int64_t C, bool square, int outputs, double bad) {
    double *x = mem_alloc((size_t)(N * C) * sizeof *x);
    for (int64_t i = 0; i < N; i++)
        for (int64_t j = 0; j < C; j++)
            x[i * C + j] = i == 5 ? 0 : sin((double)(i * 37 + j * 11)) * ldexp(1, (int)(i % 19) - (int)(j % 7));
    if (bad != 0) x[7 * C + 9] = bad;
    op_case *t = op_case_open(OP_QUANTIZE_BLOCKS, &(op_attr){.square = square});
    op_case_floats(t, QUANTIZE_BLOCKS_X, DTYPE_BF16, SHAPE(N, C), x);
    if (outputs & 1) {
        op_case_output(t, QUANTIZE_BLOCKS_Q, DTYPE_F8E4M3, SHAPE(N, C));
        op_case_output(t, QUANTIZE_BLOCKS_SCALE, DTYPE_F32, fp8_scales_shape(N, C, square));
    }
    if (outputs & 2) {
        op_case_output(t, QUANTIZE_BLOCKS_T, DTYPE_F8E4M3, SHAPE(C, N));
        op_case_output(t, QUANTIZE_BLOCKS_T_SCALE, DTYPE_F32, fp8_scales_shape(C, N, square));
    }
    op_case_run(t, 2);
    const double *stored = op_case_input_values(t, QUANTIZE_BLOCKS_X);
    if (outputs & 1)
        check_rounded_blocks(stored, op_case_values(t, QUANTIZE_BLOCKS_Q), op_case_values(t, QUANTIZE_BLOCKS_SCALE), N,
                             C, square, false);
    if (outputs & 2)
        check_rounded_blocks(stored, op_case_values(t, QUANTIZE_BLOCKS_T), op_case_values(t, QUANTIZE_BLOCKS_T_SCALE),
                             C, N, square, true);
    op_case_close(t);
    free(x);
}

static void test_blocks_have_their_own_scales(void **state) {
    static const int64_t shapes[][2] = {{128, 128}, {256, 128}, {128, 640}, {384, 256}};
    for (size_t s = 0; s < ARRAY_LENGTH(shapes); s++)
        for (int square = 0; square < 2; square++)
            for (int outputs = 1; outputs < 4; outputs++) check_blocks(shapes[s][0], shapes[s][1], square, outputs, 0);
    check_blocks(256, 256, false, 3, INFINITY);
    check_blocks(256, 256, true, 3, NAN);
}

/* As check_product, with scales that are powers of two and far apart from block to block. Tensor cores keep about 14 bits of the sum
 * of a block and cut off the rest, which is then added in fp32: twice the bound of a short sum. */
static void check_block_product(const product_case *c) {
    int64_t N = c->N, in = c->in, out = c->out;
    bool square = !c->over_tokens;
    shape x_shape = fp8_scales_shape(N, in, false), w_shape = fp8_scales_shape(out, in, square);
    double *x_scale = mem_alloc((size_t)shape_count(&x_shape) * sizeof *x_scale),
           *w_scale = mem_alloc((size_t)shape_count(&w_shape) * sizeof *w_scale);
    for (int64_t i = 0; i < shape_count(&x_shape); i++) x_scale[i] = ldexp(1, (int)(i * 5 % 9) - 4);
    for (int64_t i = 0; i < shape_count(&w_shape); i++) w_scale[i] = ldexp(1, (int)(i * 7 % 11) - 12);
    op_case *t = op_case_open(OP_LINEAR8, &(op_attr){.over_tokens = c->over_tokens});
    op_case_random(t, LINEAR8_X, DTYPE_F8E4M3, SHAPE(N, in), 60, 11);
    op_case_floats(t, LINEAR8_X_SCALE, DTYPE_F32, x_shape, x_scale);
    op_case_random(t, LINEAR8_W, DTYPE_F8E4M3, SHAPE(out, in), 90, 12);
    op_case_floats(t, LINEAR8_W_SCALE, DTYPE_F32, w_shape, w_scale);
    if (c->bias) op_case_random(t, LINEAR8_B, c->type, SHAPE(out), 20, 13);
    op_case_output(t, LINEAR8_Y, c->type, SHAPE(N, out));
    op_case_run(t, 2);
    const double *x = op_case_input_values(t, LINEAR8_X), *w = op_case_input_values(t, LINEAR8_W),
                 *y = op_case_values(t, LINEAR8_Y), *b = c->bias ? op_case_input_values(t, LINEAR8_B) : NULL;
    double unit = backend_under_test()->discrete ? 0x1p-12 : 2 * (double)in * U32;
    for (int64_t i = 0; i < N; i++)
        for (int64_t j = 0; j < out; j++) {
            double sum = 0, size = 0;
            for (int64_t k = 0; k < in; k++) {
                double p = x[i * in + k] * x_scale[scale_at(i, k, N, in, false)] * w[j * in + k] *
                           w_scale[scale_at(j, k, out, in, square)];
                sum += p, size += fabs(p);
            }
            double want = sum + (b ? b[j] : 0);
            check_element(y[i * out + j], want, unit * size + 4 * U32 * fabs(want), c->type, "linear8 in blocks",
                          (size_t)(i * out + j));
        }
    op_case_close(t);
    free(x_scale);
    free(w_scale);
}

static void test_linear8_multiplies_blocks(void **state) {
    check_block_product(&(product_case){.N = 128, .in = 128, .out = 128, .type = DTYPE_BF16});
    check_block_product(&(product_case){.N = 256, .in = 640, .out = 384, .type = DTYPE_BF16, .bias = true});
    check_block_product(&(product_case){.N = 128, .in = 384, .out = 256, .type = DTYPE_F32, .over_tokens = true});
    check_block_product(&(product_case){.N = 384, .in = 256, .out = 128, .type = DTYPE_BF16, .over_tokens = true});
}

/* ---- RMSNorm that rounds ---------------------------------------------------------------------------------------------- */

typedef struct norm8_case {
    int64_t N, C;
    bool add, q, t, known;
} norm8_case;

static op_case *norm8_open(op_kind k, const norm8_case *n, int gamma) {
    op_case *t = op_case_open(k, &(op_attr){.eps = 1e-5f, .gain_offset = 0.25f, .power = true});
    SAME_PLACE(RMSNORM8_A, RMSNORM_X, ADD_RMSNORM_A);
    SAME_PLACE(RMSNORM8_B, ADD_RMSNORM_B);
    op_case_random(t, RMSNORM8_A, DTYPE_BF16, SHAPE(n->N, n->C), 2, 71);
    if (n->add) op_case_random(t, RMSNORM8_B, DTYPE_BF16, SHAPE(n->N, n->C), 1, 72);
    op_case_random(t, gamma, DTYPE_BF16, SHAPE(n->C), 1, 73);
    return t;
}

static void check_same_values(op_case *a, int i, op_case *b, int j, int64_t n, const char *what) {
    const double *x = op_case_values(a, i), *y = op_case_values(b, j);
    for (int64_t e = 0; e < n; e++)
        if (x[e] != y[e]) fail_msg("%s [%lld]: %.9g, expected %.9g", what, (long long)e, x[e], y[e]);
}

/* RMSNORM8 has the bits of RMSNORM or ADD_RMSNORM and QUANTIZE. */
static void check_norm8(const norm8_case *n) {
    int64_t N = n->N, C = n->C;
    int y = n->add ? (int)ADD_RMSNORM_Y : (int)RMSNORM_Y, rstd = n->add ? (int)ADD_RMSNORM_RSTD : (int)RMSNORM_RSTD;
    op_case *plain =
        norm8_open(n->add ? OP_ADD_RMSNORM : OP_RMSNORM, n, n->add ? (int)ADD_RMSNORM_GAMMA : (int)RMSNORM_GAMMA);
    if (n->add) op_case_output(plain, ADD_RMSNORM_S, DTYPE_BF16, SHAPE(N, C));
    op_case_output(plain, y, DTYPE_BF16, SHAPE(N, C));
    op_case_output(plain, rstd, DTYPE_F32, SHAPE(N));
    op_case_run(plain, 2);
    const double *numbers = op_case_values(plain, y);
    double amax = largest(numbers, N * C);
    op_case *t = norm8_open(OP_RMSNORM8, n, RMSNORM8_GAMMA);
    if (n->add) op_case_output(t, RMSNORM8_S, DTYPE_BF16, SHAPE(N, C));
    op_case_output(t, RMSNORM8_RSTD, DTYPE_F32, SHAPE(N));
    if (n->known) op_case_floats(t, RMSNORM8_AMAX, DTYPE_F32, SHAPE(1), &amax);
    else op_case_output(t, RMSNORM8_LARGEST, DTYPE_F32, SHAPE(1));
    if (n->q) op_case_output(t, RMSNORM8_Q, DTYPE_F8E4M3, SHAPE(N, C));
    if (n->t) op_case_output(t, RMSNORM8_T, DTYPE_F8E4M3, SHAPE(C, N));
    op_case_output(t, RMSNORM8_SCALE, DTYPE_F32, SHAPE(1));
    op_case_run(t, 2);
    check_same_values(t, RMSNORM8_RSTD, plain, rstd, N, "rstd");
    if (n->add) check_same_values(t, RMSNORM8_S, plain, ADD_RMSNORM_S, N * C, "s");
    const double *q = n->q ? op_case_values(t, RMSNORM8_Q) : NULL,
                 *turned = n->t ? op_case_values(t, RMSNORM8_T) : NULL;
    power = true;
    for (int64_t i = 0; i < N; i++)
        for (int64_t j = 0; j < C; j++) {
            double want = rounded(numbers[i * C + j], amax);
            if (q) assert_true(q[i * C + j] == want);
            if (turned) assert_true(turned[j * N + i] == want);
        }
    if (!n->known) assert_true(op_case_values(t, RMSNORM8_LARGEST)[0] == amax);
    assert_true(op_case_values(t, RMSNORM8_SCALE)[0] == scale_of(amax));
    power = false;
    op_case_close(t);
    op_case_close(plain);
}

static void test_norm_that_rounds_has_the_bits_of_two_ops(void **state) {
    static const int64_t shapes[][2] = {{16, 16}, {48, 272}, {272, 512}, {80, 1536}, {16, 4096}, {32, 8192}};
    for (size_t s = 0; s < ARRAY_LENGTH(shapes); s++)
        for (int add = 0; add < 2; add++)
            for (int without = 0; without < 3; without++)
                check_norm8(&(norm8_case){
                    .N = shapes[s][0], .C = shapes[s][1], .add = add, .q = without != 1, .t = without != 2});
    check_norm8(&(norm8_case){.N = 48, .C = 272, .q = true, .t = true, .known = true});
    check_norm8(&(norm8_case){.N = 48, .C = 272, .add = true, .t = true, .known = true});
}

/* ---- ops that hand out their largest number ------------------------------------------------------------------------- */

/* The largest number is that of the tensor as it was written. */
static void check_amax(op_case *t, int of, int amax, int64_t n, const char *what) {
    op_case_output(t, amax, DTYPE_F32, SHAPE(1));
    op_case_run(t, 2);
    double got = op_case_values(t, amax)[0], want = largest(op_case_values(t, of), n);
    if (!(got == want) || !(want > 0)) fail_msg("amax of %s: %.9g, expected %.9g", what, got, want);
    op_case_close(t);
}

static const int64_t rows[][2] = {{1, 8}, {5, 33}, {64, 256}, {300, 1536}, {17, 4096}};

static void test_norms_hand_out_their_largest_number(void **state) {
    for (size_t s = 0; s < ARRAY_LENGTH(rows); s++)
        for (int layernorm = 0; layernorm < 2; layernorm++)
            for (int add = 0; add < 2; add++) {
                int64_t N = rows[s][0], C = rows[s][1];
                op_kind k = layernorm ? add ? OP_ADD_LAYERNORM : OP_LAYERNORM : add ? OP_ADD_RMSNORM : OP_RMSNORM;
                op_case *t = op_case_open(k, &(op_attr){.eps = 1e-5f});
                norm_places at = norm_places_of(layernorm, add);
                op_case_random(t, at.x, DTYPE_BF16, SHAPE(N, C), 1, 20);
                if (add) op_case_random(t, at.b, DTYPE_BF16, SHAPE(N, C), 1, 21);
                op_case_random(t, at.gamma, DTYPE_BF16, SHAPE(C), 1, 30);
                if (layernorm) op_case_random(t, at.beta, DTYPE_BF16, SHAPE(C), 1, 31);
                if (add) op_case_output(t, at.s, DTYPE_BF16, SHAPE(N, C));
                op_case_output(t, at.y, DTYPE_BF16, SHAPE(N, C));
                if (layernorm) op_case_output(t, at.mean, DTYPE_F32, SHAPE(N));
                op_case_output(t, at.rstd, DTYPE_F32, SHAPE(N));
                check_amax(t, at.y, at.amax, N * C, op_name(k));
            }
}

static void test_backward_of_norms_hands_out_its_largest_number(void **state) {
    for (size_t s = 0; s < ARRAY_LENGTH(rows); s++)
        for (int layernorm = 0; layernorm < 2; layernorm++)
            for (int residual = 0; residual < 2; residual++) {
                int64_t N = rows[s][0], C = rows[s][1];
                double *ones = mem_alloc((size_t)N * sizeof *ones);
                for (int64_t i = 0; i < N; i++) ones[i] = 1 + (double)(i % 7) / 8;
                op_kind k = layernorm ? OP_LAYERNORM_BWD : OP_RMSNORM_BWD;
                op_case *t = op_case_open(k, &(op_attr){.eps = 1e-5f});
                norm_bwd_places at = norm_bwd_places_of(layernorm);
                op_case_random(t, at.x, DTYPE_BF16, SHAPE(N, C), 1, 41);
                op_case_random(t, at.gamma, DTYPE_BF16, SHAPE(C), 1, 42);
                if (layernorm) op_case_floats(t, at.mean, DTYPE_F32, SHAPE(N), ones);
                op_case_floats(t, at.rstd, DTYPE_F32, SHAPE(N), ones);
                op_case_random(t, at.dy, DTYPE_BF16, SHAPE(N, C), 1, 43);
                if (residual) op_case_random(t, at.dres, DTYPE_BF16, SHAPE(N, C), 1, 44);
                op_case_output(t, at.dx, DTYPE_BF16, SHAPE(N, C));
                op_case_output(t, at.dgamma, DTYPE_F32, SHAPE(C));
                if (layernorm) op_case_output(t, at.dbeta, DTYPE_F32, SHAPE(C));
                check_amax(t, at.dx, at.amax, N * C, op_name(k));
                free(ones);
            }
}

/* In v heads, which the rotation leaves alone, and in dimensions behind those that are turned too; in place and not. */
static void test_rope_hands_out_its_largest_number(void **state) {
    enum { B = 2, T = 24, H = 3, G = 2, D = 32, Q = (H + 2 * G) * D };
    for (int rotary = 16; rotary <= D; rotary += 16)
        for (int where = 0; where < 6; where++) {
            op_attr a = {.batch = B, .seq_len = T, .n_heads = H, .n_kv_heads = G, .head_dim = D, .inverse = where & 1};
            double *x = mem_alloc((size_t)(B * T * Q) * sizeof *x),
                   *table = mem_alloc((size_t)(T * rotary) * sizeof *table);
            for (int i = 0; i < B * T * Q; i++) x[i] = sin(i * 0.7);
            x[where / 2 == 0 ? 17 * Q + 5 : where / 2 == 1 ? 17 * Q + D - 1 : 47 * Q + Q - 3] = -7;
            for (int i = 0; i < T * rotary; i++) table[i] = i % rotary < rotary / 2 ? cos(i) : sin(i);
            op_case *t = op_case_open(OP_ROPE, &a);
            op_case_floats(t, ROPE_QKV, DTYPE_BF16, SHAPE(B * T, Q), x);
            op_case_floats(t, ROPE_TABLE, DTYPE_F32, SHAPE(T, rotary), table);
            op_case_ints(t, ROPE_DOC_START, SHAPE(B * T), (const int32_t[B * T]){0});
            if (where % 3) op_case_output(t, ROPE_Y, DTYPE_BF16, SHAPE(B * T, Q));
            else op_case_alias(t, ROPE_Y, ROPE_QKV);
            check_amax(t, ROPE_Y, ROPE_AMAX, B * T * Q, "rope");
            free(x);
            free(table);
        }
}

static void test_swiglu_hands_out_its_largest_number(void **state) {
    for (size_t s = 0; s < ARRAY_LENGTH(rows); s++) {
        int64_t N = rows[s][0], F = rows[s][1];
        op_case *t = op_case_open(OP_SWIGLU, &(op_attr){0});
        op_case_random(t, SWIGLU_GU, DTYPE_BF16, SHAPE(N, 2 * F), 2, 51);
        op_case_output(t, SWIGLU_Y, DTYPE_BF16, SHAPE(N, F));
        check_amax(t, SWIGLU_Y, SWIGLU_AMAX, N * F, "swiglu");
        t = op_case_open(OP_SWIGLU_BWD, &(op_attr){0});
        op_case_random(t, SWIGLU_BWD_GU, DTYPE_BF16, SHAPE(N, 2 * F), 2, 52);
        op_case_random(t, SWIGLU_BWD_DY, DTYPE_BF16, SHAPE(N, F), 1, 53);
        op_case_output(t, SWIGLU_BWD_DGU, DTYPE_BF16, SHAPE(N, 2 * F));
        check_amax(t, SWIGLU_BWD_DGU, SWIGLU_BWD_AMAX, 2 * N * F, "swiglu_bwd");
    }
}

/* ---- SwiGLU that rounds ---------------------------------------------------------------------------------------------- */

typedef struct gated_case {
    int64_t N, F;
    bool backward, gelu, q, t;
    int known;    /* 0: the op finds the largest number; 1: it is given */
    double guess; /* NAN: none */
} gated_case;

static op_case *gated_open(op_kind k, const gated_case *g) {
    op_case *t = op_case_open(k, &(op_attr){.gelu_gate = g->gelu, .power = true});
    op_case_random(t, SWIGLU8_GU, DTYPE_BF16, SHAPE(g->N, 2 * g->F), 2, 61);
    if (g->backward) op_case_random(t, SWIGLU8_DY, DTYPE_BF16, SHAPE(g->N, g->F), 1, 62);
    return t;
}

/* SWIGLU8 has the bits of SWIGLU or SWIGLU_BWD and QUANTIZE, whatever the guess was. */
static void check_gated(const gated_case *g) {
    SAME_PLACE(SWIGLU8_GU, SWIGLU_GU);
    SAME_PLACE(SWIGLU8_GU, SWIGLU_BWD_GU);
    SAME_PLACE(SWIGLU8_DY, SWIGLU_BWD_DY);
    SAME_PLACE(SWIGLU_Y, SWIGLU_BWD_DGU);
    int64_t width = g->backward ? 2 * g->F : g->F, N = g->N;
    op_case *wide = gated_open(g->backward ? OP_SWIGLU_BWD : OP_SWIGLU, g);
    op_case_output(wide, SWIGLU_Y, DTYPE_BF16, SHAPE(N, width));
    op_case_run(wide, 2);
    const double *y = op_case_values(wide, SWIGLU_Y);
    double amax = largest(y, N * width);
    op_case *t = gated_open(OP_SWIGLU8, g);
    if (g->known) op_case_floats(t, SWIGLU8_AMAX, DTYPE_F32, SHAPE(1), &amax);
    else op_case_output(t, SWIGLU8_LARGEST, DTYPE_F32, SHAPE(1));
    if (g->q) op_case_output(t, SWIGLU8_Q, DTYPE_F8E4M3, SHAPE(N, width));
    if (g->t) op_case_output(t, SWIGLU8_T, DTYPE_F8E4M3, SHAPE(width, N));
    if (!g->known) op_case_output(t, SWIGLU8_SCALE, DTYPE_F32, SHAPE(1));
    if (!isnan(g->guess)) op_case_output_floats(t, SWIGLU8_GUESS, DTYPE_F32, SHAPE(1), &g->guess);
    op_case_run(t, 2);
    const double *q = g->q ? op_case_values(t, SWIGLU8_Q) : NULL, *turned = g->t ? op_case_values(t, SWIGLU8_T) : NULL;
    power = true;
    for (int64_t i = 0; i < N * width; i++) {
        double want = rounded(y[i], amax);
        if (q && !same(q[i], want)) fail_msg("q[%lld]", (long long)i);
        if (turned && !same(turned[i % width * N + i / width], want))
            fail_msg("N=%lld F=%lld t[%lld]", (long long)N, (long long)g->F, (long long)i);
    }
    if (!g->known) {
        assert_true(op_case_values(t, SWIGLU8_LARGEST)[0] == amax);
        assert_true(op_case_values(t, SWIGLU8_SCALE)[0] == scale_of(amax));
    }
    if (!isnan(g->guess)) assert_true(op_case_values(t, SWIGLU8_GUESS)[0] == scale_of(amax));
    power = false;
    op_case_close(t);
    op_case_close(wide);
}

static void test_swiglu_that_rounds_has_the_bits_of_two_ops(void **state) {
    static const int64_t sides[][2] = {{16, 16}, {128, 64}, {48, 272}, {400, 144}};
    static const double guesses[] = {NAN,    0,      0x1p-5,  0x1p-6,
                                     0x1p-7, 0x1p-8, INFINITY}; /* the right ones are among them */
    for (size_t s = 0; s < ARRAY_LENGTH(sides); s++)
        for (int k = 0; k < 8; k++)
            check_gated(&(gated_case){.N = sides[s][0],
                                      .F = sides[s][1],
                                      .backward = k & 1,
                                      .gelu = k == 5 || k == 6,
                                      .q = k != 2 && k != 3,
                                      .t = k != 4 && k != 5,
                                      .known = k < 4 && k > 1,
                                      .guess = k < 4 && k > 1 ? NAN : guesses[(s + (size_t)k) % 7]});
    for (size_t i = 0; i < ARRAY_LENGTH(guesses); i++)
        for (int backward = 0; backward < 2; backward++)
            check_gated(
                &(gated_case){.N = 144, .F = 80, .backward = backward, .q = true, .t = true, .guess = guesses[i]});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_absmax_finds_the_largest_wherever_it_is),
        cmocka_unit_test(test_absmax_is_not_finite_where_a_number_is_not),
        cmocka_unit_test(test_quantize_rounds_and_turns_every_shape),
        cmocka_unit_test(test_quantize_at_the_ends),
        cmocka_unit_test(test_scales_of_powers_of_two),
        cmocka_unit_test(test_quantize_finds_its_scale),
        cmocka_unit_test(test_blocks_have_their_own_scales),
        cmocka_unit_test(test_linear8_multiplies_blocks),
        cmocka_unit_test(test_norm_that_rounds_has_the_bits_of_two_ops),
        cmocka_unit_test(test_swiglu_that_rounds_has_the_bits_of_two_ops),
        cmocka_unit_test(test_linear8_is_the_scaled_product),
        cmocka_unit_test(test_linear8_is_not_finite_where_a_scale_is_not),
        cmocka_unit_test(test_norms_hand_out_their_largest_number),
        cmocka_unit_test(test_backward_of_norms_hands_out_its_largest_number),
        cmocka_unit_test(test_rope_hands_out_its_largest_number),
        cmocka_unit_test(test_swiglu_hands_out_its_largest_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
