/* test_ops_lora.c - LORA_UP, LORA_BWD, LINEAR_DX that adds, products with an adapter in their sums, and DROPOUT, against their definitions in double.
 *
 * Sums are fp32, in an order that is the backend's: the bound of one is two roundings for each of its terms, of the sum of
 * their sizes. Tensor cores may cut a product off instead of rounding it, which the second rounding covers. */
#include "backend/cpu/gemm.h"
#include "backend_choice.h"
#include "op_check.h"
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define SCALE 0.75f

typedef struct lora_case {
    int64_t N, out, r;
    int n_parts;
    int64_t first[LORA_PARTS], columns[LORA_PARTS];
} lora_case;

/* Odd and even everything; parts with gaps before, between and behind; whole packs of a GPU, of more rows and columns than
 * one of its blocks or runs takes; ranks below, at and above what a tile holds. */
static const lora_case cases[] = {
    {1, 1, 1, 1, {0}, {1}},
    {5, 13, 3, 1, {0}, {13}},
    {7, 29, 5, 2, {2, 17}, {11, 9}},
    {33, 40, 2, 3, {0, 16, 24}, {16, 7, 16}},
    {19, 48, 8, 2, {8, 32}, {16, 8}},
    {130, 72, 16, 3, {0, 24, 56}, {24, 24, 16}},
    {70, 328, 10, 2, {0, 168}, {160, 160}},
    {67, 264, 24, 1, {8}, {248}},
    {1100, 136, 8, 2, {0, 72}, {64, 64}},
    {65, 1200, 16, 2, {16, 1096}, {1080, 96}},
    {40, 96, 72, 1, {0}, {96}},
    {200, 2400, 32, 2, {0, 1216}, {1152, 1088}},
    {200, 2400, 16, 2, {64, 1280}, {1152, 1088}},
    {9000, 192, 8, 2, {0, 128}, {64, 64}},
    {300, 1600, 64, 1, {64}, {1472}},
    {77, 640, 24, 3, {0, 128, 320}, {128, 192, 320}},
    {9, 88, 512, 1, {8}, {64}},
};

static op_attr attr_of(const lora_case *k) {
    op_attr a = {.scale = SCALE, .n_parts = k->n_parts};
    for (int i = 0; i < k->n_parts; i++) a.part_first[i] = k->first[i], a.part_columns[i] = k->columns[i];
    return a;
}

static int64_t rows_of_b(const lora_case *k) {
    int64_t n = 0;
    for (int i = 0; i < k->n_parts; i++) n += k->columns[i];
    return n;
}

static double *new_doubles(int64_t n) { return mem_alloc((size_t)n * sizeof(double)); }

/* ---- the definition: y from base, xa and b; sizes: of the terms of each sum ------------------------------------- */

static void define_up(const lora_case *k, const double *base, const double *xa, const double *b, double *y,
                      double *sizes) {
    int64_t wide = k->n_parts * k->r;
    memcpy(y, base, (size_t)(k->N * k->out) * sizeof *y);
    for (int64_t i = 0; i < k->N * k->out; i++) sizes[i] = fabs(base[i]);
    for (int64_t n = 0; n < k->N; n++) {
        const double *row = b;
        for (int p = 0; p < k->n_parts; p++)
            for (int64_t c = 0; c < k->columns[p]; c++, row += k->r)
                for (int64_t j = 0; j < k->r; j++) {
                    double term = (double)SCALE * xa[n * wide + p * k->r + j] * row[j];
                    y[n * k->out + k->first[p] + c] += term;
                    sizes[n * k->out + k->first[p] + c] += fabs(term);
                }
    }
}

static void define_gradients(const lora_case *k, const double *dy, const double *xa, const double *b, double *dxa,
                             double *dxa_sizes, double *db, double *db_sizes) {
    int64_t wide = k->n_parts * k->r, R = rows_of_b(k);
    for (int64_t i = 0; i < k->N * wide; i++) dxa[i] = dxa_sizes[i] = 0;
    for (int64_t i = 0; i < R * k->r; i++) db[i] = db_sizes[i] = 0;
    for (int64_t n = 0; n < k->N; n++)
        for (int64_t p = 0, row = 0; p < k->n_parts; p++)
            for (int64_t c = 0; c < k->columns[p]; c++, row++)
                for (int64_t j = 0; j < k->r; j++) {
                    double d = (double)SCALE * dy[n * k->out + k->first[p] + c];
                    int64_t at = n * wide + p * k->r + j;
                    dxa[at] += d * b[row * k->r + j];
                    dxa_sizes[at] += fabs(d * b[row * k->r + j]);
                    db[row * k->r + j] += d * xa[at];
                    db_sizes[row * k->r + j] += fabs(d * xa[at]);
                }
}

static double dot(const double *a, const double *b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static double *random_doubles(int64_t n, uint64_t seed) {
    float *f = mem_alloc((size_t)n * sizeof *f);
    double *d = new_doubles(n);
    rng_normal_fill(rng_key(seed, "lora"), 0, f, (size_t)n, 0, 1);
    for (int64_t i = 0; i < n; i++) d[i] = f[i];
    free(f);
    return d;
}

/* y is linear in xa and in b, so that a central difference is exact but for double's own rounding. */
static void test_the_gradients_are_the_slopes_of_the_definition(void **state) {
    const lora_case k = {4, 19, 3, 2, {2, 11}, {7, 6}};
    int64_t wide = k.n_parts * k.r, R = rows_of_b(&k), n_y = k.N * k.out;
    double *base = random_doubles(n_y, 1), *xa = random_doubles(k.N * wide, 2), *b = random_doubles(R * k.r, 3),
           *dy = random_doubles(n_y, 4), *y = new_doubles(n_y), *sizes = new_doubles(n_y);
    double *dxa = new_doubles(k.N * wide), *db = new_doubles(R * k.r), *s1 = new_doubles(k.N * wide),
           *s2 = new_doubles(R * k.r);
    define_gradients(&k, dy, xa, b, dxa, s1, db, s2);
    double *inputs[] = {xa, b}, *slopes[] = {dxa, db};
    for (int which = 0; which < 2; which++)
        for (int64_t i = 0; i < (which ? R * k.r : k.N * wide); i++) {
            double kept = inputs[which][i], loss[2];
            for (int side = 0; side < 2; side++) {
                inputs[which][i] = kept + (side ? -0.5 : 0.5);
                define_up(&k, base, xa, b, y, sizes);
                loss[side] = dot(y, dy, n_y);
            }
            inputs[which][i] = kept;
            assert_true(fabs(loss[0] - loss[1] - slopes[which][i]) <= 1e-12 * (1 + fabs(loss[0])));
        }
    double *all[] = {base, xa, b, dy, y, sizes, dxa, db, s1, s2};
    for (size_t i = 0; i < ARRAY_LENGTH(all); i++) free(all[i]);
}

/* ---- the kernels --------------------------------------------------------------------------------------------------- */

static double arithmetic(int64_t n_terms, double sizes) { return (double)(2 * n_terms + 8) * U32 * sizes; }

static void check_values(op_case *t, int output, dtype type, const double *want, const double *sizes, int64_t n,
                         int64_t n_terms, const char *what) {
    const double *got = op_case_values(t, output);
    for (int64_t i = 0; i < n; i++)
        check_element(got[i], want[i], arithmetic(n_terms, sizes[i]), type, what, (size_t)i);
}

static op_case *up_case(const lora_case *k, dtype type, bool in_place, int32_t rows) {
    op_attr a = attr_of(k);
    op_case *t = op_case_open(OP_LORA_UP, &a);
    op_case_random(t, LORA_UP_BASE, type, SHAPE(k->N, k->out), 1, 11);
    op_case_random(t, LORA_UP_XA, type, SHAPE(k->N, k->n_parts * k->r), 1, 12);
    op_case_random(t, LORA_UP_B, type, SHAPE(rows_of_b(k), k->r), 1, 13);
    if (in_place) op_case_alias(t, LORA_UP_Y, LORA_UP_BASE);
    else if (rows < 0) op_case_output(t, LORA_UP_Y, type, SHAPE(k->N, k->out));
    else {
        double *zeros = new_doubles(k->N * k->out);
        op_case_output_floats(t, LORA_UP_Y, type, SHAPE(k->N, k->out), zeros);
        free(zeros);
    }
    if (rows >= 0) op_case_rows(t, rows);
    op_case_run(t, 2);
    return t;
}

/* The first n rows. */
static void check_up(op_case *t, const lora_case *k, dtype type, int64_t n) {
    double *want = new_doubles(k->N * k->out), *sizes = new_doubles(k->N * k->out);
    const double *base = op_case_input_values(t, LORA_UP_BASE), *y = op_case_values(t, LORA_UP_Y);
    define_up(k, base, op_case_input_values(t, LORA_UP_XA), op_case_input_values(t, LORA_UP_B), want, sizes);
    check_values(t, LORA_UP_Y, type, want, sizes, n * k->out, k->r, "lora_up");
    for (int64_t c = 0; c < k->out; c++) { /* what no part has is not touched */
        bool inside = false;
        for (int p = 0; p < k->n_parts; p++) inside |= c >= k->first[p] && c < k->first[p] + k->columns[p];
        for (int64_t i = 0; i < n && !inside; i++) assert_true(y[i * k->out + c] == base[i * k->out + c]);
    }
    free(want);
    free(sizes);
}

static void check_gradients(const lora_case *k, dtype type, dtype db_type) {
    op_attr a = attr_of(k);
    int64_t wide = k->n_parts * k->r, R = rows_of_b(k);
    op_case *t = op_case_open(OP_LORA_BWD, &a);
    op_case_random(t, LORA_BWD_DY, type, SHAPE(k->N, k->out), 1, 21);
    op_case_random(t, LORA_BWD_XA, type, SHAPE(k->N, wide), 1, 23);
    op_case_random(t, LORA_BWD_B, type, SHAPE(R, k->r), 1, 22);
    op_case_output(t, LORA_BWD_DXA, type, SHAPE(k->N, wide));
    op_case_output(t, LORA_BWD_DB, db_type, SHAPE(R, k->r));
    op_case_run(t, 2);
    double *dxa = new_doubles(k->N * wide), *s1 = new_doubles(k->N * wide), *db = new_doubles(R * k->r),
           *s2 = new_doubles(R * k->r);
    define_gradients(k, op_case_input_values(t, LORA_BWD_DY), op_case_input_values(t, LORA_BWD_XA),
                     op_case_input_values(t, LORA_BWD_B), dxa, s1, db, s2);
    check_values(t, LORA_BWD_DXA, type, dxa, s1, k->N * wide, k->out, "dxa");
    check_values(t, LORA_BWD_DB, db_type, db, s2, R * k->r, k->N, "db");
    double *all[] = {dxa, s1, db, s2};
    for (size_t i = 0; i < ARRAY_LENGTH(all); i++) free(all[i]);
    op_case_close(t);
}

static void check_lora(dtype type) {
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        op_case *own = up_case(&cases[i], type, false, -1), *in_place = up_case(&cases[i], type, true, -1);
        check_up(own, &cases[i], type, cases[i].N);
        check_equal_bits(own, LORA_UP_Y, in_place, LORA_UP_Y, (size_t)(cases[i].N * cases[i].out), "in place");
        op_case_close(own);
        op_case_close(in_place);
        check_gradients(&cases[i], type, DTYPE_F32);
        if (type == DTYPE_BF16) check_gradients(&cases[i], type, DTYPE_BF16);
    }
}

static void test_lora_of_fp32_matches_its_definition(void **state) { check_lora(DTYPE_F32); }
static void test_lora_of_bf16_matches_its_definition(void **state) { check_lora(DTYPE_BF16); }
static void test_lora_of_fp16_matches_its_definition(void **state) { check_lora(DTYPE_F16); }

/* On the host, with every kernel of products that it has, that of the BLAS among them. */
static void test_every_kernel_of_products_scales_and_adds(void **state) {
    if (backend_under_test()->discrete) return;
    const lora_case k = {150, 40, 6, 2, {3, 21}, {14, 17}};
    for (int i = 0; gemm_kernel_list(i); i++)
        for (size_t ti = 0; ti < ARRAY_LENGTH(check_types) && gemm_force_kernel(gemm_kernel_list(i)); ti++)
            for (int in_place = 0; in_place < 2; in_place++) {
                op_case *t = up_case(&k, check_types[ti], in_place, -1);
                check_up(t, &k, check_types[ti], k.N);
                op_case_close(t);
                check_gradients(&k, check_types[ti], DTYPE_F32);
            }
    gemm_force_kernel(NULL);
}

/* Generation: as many rows as hold something, and the bits of a row whatever else is there. */
static void test_rows_of_generation_do_not_know_each_other(void **state) {
    const lora_case some[] = {{12, 40, 16, 2, {8, 24}, {16, 16}}, {11, 37, 7, 3, {1, 12, 30}, {9, 13, 5}}};
    for (size_t s = 0; s < ARRAY_LENGTH(some); s++)
        for (size_t ti = 0; ti < ARRAY_LENGTH(check_types); ti++) {
            dtype type = check_types[ti];
            const lora_case *k = &some[s];
            op_case *all = up_case(k, type, true, (int32_t)k->N);
            check_up(all, k, type, k->N);
            for (int32_t n = 0; n <= (int32_t)k->N; n++) {
                op_case *few = up_case(k, type, n % 2, n);
                check_equal_bits(few, LORA_UP_Y, all, LORA_UP_Y, (size_t)(n * k->out), "rows");
                op_case_close(few);
            }
            op_case_close(all);
        }
}

/* ---- LINEAR_DX that adds --------------------------------------------------------------------------------------------- */

static op_case *dx_case(dtype type, int64_t N, int64_t in, int64_t out, bool add, bool in_place) {
    op_case *t = op_case_open(OP_LINEAR_DX, &(op_attr){0});
    op_case_random(t, LINEAR_DX_DY, type, SHAPE(N, out), 1, 31);
    op_case_random(t, LINEAR_DX_W, type, SHAPE(out, in), 1, 32);
    if (add) op_case_random(t, LINEAR_DX_ADD, type, SHAPE(N, in), 8, 33);
    if (in_place) op_case_alias(t, LINEAR_DX_DX, LINEAR_DX_ADD);
    else op_case_output(t, LINEAR_DX_DX, type, SHAPE(N, in));
    op_case_run(t, 2);
    return t;
}

static void test_linear_dx_adds(void **state) {
    const int64_t shapes[][3] = {{1, 1, 1}, {7, 13, 5}, {64, 96, 32}, {150, 200, 64}, {40, 64, 1024}};
    for (size_t ti = 0; ti < ARRAY_LENGTH(check_types); ti++)
        for (size_t s = 0; s < ARRAY_LENGTH(shapes); s++) {
            dtype type = check_types[ti];
            int64_t N = shapes[s][0], in = shapes[s][1], out = shapes[s][2];
            op_case *own = dx_case(type, N, in, out, true, false), *in_place = dx_case(type, N, in, out, true, true);
            op_case *alone = dx_case(type, N, in, out, false, false);
            const double *dy = op_case_input_values(own, LINEAR_DX_DY), *w = op_case_input_values(own, LINEAR_DX_W),
                         *add = op_case_input_values(own, LINEAR_DX_ADD);
            const double *dx = op_case_values(own, LINEAR_DX_DX), *without = op_case_values(alone, LINEAR_DX_DX);
            for (int64_t i = 0; i < N * in; i++) {
                double sum = 0, size = 0;
                for (int64_t j = 0; j < out; j++) {
                    double term = dy[i / in * out + j] * w[j * in + i % in];
                    sum += term, size += fabs(term);
                }
                double rounded =
                    backend_under_test()->discrete ? check_roundoff(type) * fabs(sum) : 0; /* before it is added */
                check_element(dx[i], sum + add[i], arithmetic(out, size + fabs(add[i])) + rounded, type, "dx",
                              (size_t)i);
                check_element(without[i], sum, arithmetic(out, size), type, "dx alone", (size_t)i);
            }
            check_equal_bits(own, LINEAR_DX_DX, in_place, LINEAR_DX_DX, (size_t)(N * in), "in place");
            op_case_close(own);
            op_case_close(in_place);
            op_case_close(alone);
        }
}

/* ---- dropout ------------------------------------------------------------------------------------------------------- */

typedef struct drop {
    float rate;
    step_scalars scalars;
    uint64_t key;
    int64_t first;
} drop;

static const drop plain = {
    .rate = 0.25f, .scalars = {.step = 3, .micro = 1, .micro_of_all = 5, .noise_lo = 11, .noise_hi = 7}, .key = 99};

static op_case *drop_case(const drop *d, dtype type, int64_t N, int64_t C, bool in_place, uint64_t seed) {
    op_attr a = {.rate = d->rate, .noise_key = d->key, .first_element = d->first};
    op_case *t = op_case_open(OP_DROPOUT, &a);
    op_case_random(t, DROPOUT_X, type, SHAPE(N, C), 1, seed);
    op_case_bytes(t, DROPOUT_SCALARS, SHAPE((int64_t)sizeof d->scalars), &d->scalars);
    if (in_place) op_case_alias(t, DROPOUT_Y, DROPOUT_X);
    else op_case_output(t, DROPOUT_Y, type, SHAPE(N, C));
    op_case_run(t, 2);
    return t;
}

/* By the words of base.h, one by one. `what` of dropout is 3, above it the micro-batch. */
static bool stays(const drop *d, int64_t i) {
    uint64_t e = (uint64_t)(d->first + i), key = d->key ^ ((uint64_t)d->scalars.noise_hi << 32 | d->scalars.noise_lo);
    rng_noise n =
        rng_noise_block(key, (uint64_t)(3 | d->scalars.micro_of_all << 8) << 32 | d->scalars.step, e / RNG_NOISE_BLOCK);
    return rng_noise_word(n, (uint32_t)(e % RNG_NOISE_BLOCK)) >= (uint32_t)((double)d->rate * 0x1p32);
}

static void test_dropout_keeps_what_its_noise_says(void **state) {
    const int64_t shapes[][2] = {{1, 1}, {3, 7}, {65, 1024}, {37, 5001}};
    const int64_t firsts[] = {0, 5, RNG_NOISE_BLOCK - 13, 3 * RNG_NOISE_BLOCK + 8192};
    for (size_t ti = 0; ti < ARRAY_LENGTH(check_types); ti++)
        for (size_t s = 0; s < ARRAY_LENGTH(shapes); s++)
            for (size_t f = 0; f < ARRAY_LENGTH(firsts); f++)
                for (int in_place = 0; in_place < 2; in_place++) {
                    dtype type = check_types[ti];
                    drop d = plain;
                    d.first = firsts[f];
                    op_case *t = drop_case(&d, type, shapes[s][0], shapes[s][1], in_place, 41);
                    const double *x = op_case_input_values(t, DROPOUT_X), *y = op_case_values(t, DROPOUT_Y);
                    for (int64_t i = 0; i < shapes[s][0] * shapes[s][1]; i++) {
                        uint32_t rounded;
                        tensor_set_f32(&rounded, type, 0, (float)x[i] * (1.0f / 0.75f));
                        assert_true(y[i] == (stays(&d, i) ? tensor_get_f32(&rounded, type, 0) : 0));
                    }
                    op_case_close(t);
                }
}

/* Ranks that have some columns, or some tokens of each row, drop what one rank with the whole tensor (2 x 24 tokens, 3003
 * columns: no row begins with a block of noise) would. */
static void test_dropout_of_a_part_is_that_of_the_whole(void **state) {
    enum { B = 2, T = 24, W = 3003 };
    static const struct { int columns, n_sequence; } parts[] = {{3, 1}, {1, 3}, {3, 2}};
    for (size_t p = 0; p < ARRAY_LENGTH(parts); p++)
        for (int rank = 0; rank < parts[p].columns * parts[p].n_sequence; rank++) {
            int S = parts[p].n_sequence, index = rank % S, column = rank / S;
            int64_t C = W / parts[p].columns, own = T / S;
            op_attr a = {.rate = plain.rate, .noise_key = plain.key, .batch = B, .seq_len = own};
            if (C < W) a.all_columns = W, a.first_column = column * C;
            if (S > 1) a.group_size = S, a.index = index;
            op_case *t = op_case_open(OP_DROPOUT, &a);
            op_case_random(t, DROPOUT_X, DTYPE_F32, SHAPE(B * own, C), 1, 43);
            op_case_bytes(t, DROPOUT_SCALARS, SHAPE((int64_t)sizeof plain.scalars), &plain.scalars);
            op_case_output(t, DROPOUT_Y, DTYPE_F32, SHAPE(B * own, C));
            op_case_run(t, 2);
            const double *x = op_case_input_values(t, DROPOUT_X), *y = op_case_values(t, DROPOUT_Y);
            for (int64_t i = 0; i < B * own * C; i++) {
                int64_t row = i / C, token = row / own * T + sequence_token(row % own, index, S, T);
                bool kept = stays(&plain, token * W + column * C + i % C);
                assert_true(y[i] == (kept ? (double)((float)x[i] * (1.0f / 0.75f)) : 0));
            }
            op_case_close(t);
        }
}

static void test_dropout_of_rate_0_changes_nothing(void **state) {
    drop d = plain;
    d.rate = 0;
    op_case *t = drop_case(&d, DTYPE_BF16, 33, 129, false, 42);
    const double *x = op_case_input_values(t, DROPOUT_X), *y = op_case_values(t, DROPOUT_Y);
    for (int64_t i = 0; i < 33 * 129; i++) assert_true(x[i] == y[i]);
    op_case_close(t);
}

/* The mask of dy is that of x: the op is its own backward. Another step, micro-batch, tensor or run has another mask: then as
 * many agree as chance has it, (1 - p)^2 + p^2 of them, within six standard deviations. So many stay as the rate says. */
static void test_masks_repeat_and_are_independent(void **state) {
    enum { N = 512, C = 512, COUNT = N * C };
    drop others[6];
    for (int i = 0; i < 6; i++) others[i] = plain;
    others[1].scalars.step++, others[2].scalars.micro_of_all++, others[3].key++, others[4].scalars.noise_lo++;
    others[5].first = COUNT;
    op_case *x = drop_case(&plain, DTYPE_BF16, N, C, false, 51);
    const double *y = op_case_values(x, DROPOUT_Y);
    double p = (double)plain.rate, kept = 0;
    for (int64_t i = 0; i < COUNT; i++) kept += y[i] != 0;
    assert_true(fabs(kept - COUNT * (1 - p)) <= 6 * sqrt(COUNT * p * (1 - p)));
    for (int k = 0; k < 6; k++) {
        op_case *t = drop_case(&others[k], DTYPE_F32, N, C, true, 52);
        const double *dx = op_case_values(t, DROPOUT_Y);
        double same = 0, chance = (1 - p) * (1 - p) + p * p;
        for (int64_t i = 0; i < COUNT; i++) same += (y[i] != 0) == (dx[i] != 0);
        if (k == 0) assert_true(same == COUNT);
        else assert_true(fabs(same - COUNT * chance) <= 6 * sqrt(COUNT * chance * (1 - chance)));
        op_case_close(t);
    }
    op_case_close(x);
}

/* ---- products with an adapter ---------------------------------------------------------------------------------------- */

typedef struct adapted_case {
    lora_case k;
    int64_t in;
    bool bias;
    bool one_rounding; /* on compute capability 9.0 in bf16 */
} adapted_case;

/* Tiles of 128 x 256 and steps of 64 along k that are not filled; columns without an adapter; ranks of less than a step, of a step and of
 * several; and sizes that no such kernel takes. */
static const adapted_case adapted_cases[] = {
    {{300, 512, 16, 2, {0, 256}, {256, 256}}, 136, true, true},
    {{300, 776, 24, 2, {0, 512}, {256, 256}}, 104, false, true},
    {{70, 520, 8, 1, {256}, {256}}, 64, true, true},
    {{257, 256, 72, 1, {0}, {256}}, 264, false, true},
    {{129, 768, 64, 3, {0, 256, 512}, {256, 256, 256}}, 72, true, true},
    {{130, 320, 16, 2, {0, 160}, {160, 160}}, 96, true, false},
    {{33, 40, 2, 3, {0, 16, 24}, {16, 7, 16}}, 21, true, false},
};

/* What may be lost of a number where the product, or the adapter, is rounded before the other is added. */
static double rounded_between(const adapted_case *a, dtype type) {
    device_info gpu = {0};
    const backend *b = backend_under_test();
    if (b->discrete) assert_int_equal(b->describe(0, &gpu), OK);
    const char *products = getenv("RALO_CUDA_PRODUCTS");
    bool once =
        type == DTYPE_BF16 && a->one_rounding && gpu.capability == 90 && products && strcmp(products, "own") == 0;
    return once || type == DTYPE_F32 ? 0 : type == DTYPE_BF16 ? 0x1p-8 : 0x1p-11;
}

static void check_adapted_linear(const adapted_case *a, dtype type) {
    const lora_case *k = &a->k;
    op_attr attr = attr_of(k);
    int64_t n = k->N * k->out;
    double between = rounded_between(a, type);
    op_case *t = op_case_open(OP_LINEAR, &attr);
    op_case_random(t, LINEAR_X, type, SHAPE(k->N, a->in), 1, 41);
    op_case_random(t, LINEAR_W, type, SHAPE(k->out, a->in), 1, 42);
    if (a->bias) op_case_random(t, LINEAR_B, type, SHAPE(k->out), 1, 43);
    op_case_random(t, LINEAR_XA, type, SHAPE(k->N, k->n_parts * k->r), 1, 44);
    op_case_random(t, LINEAR_UP, type, SHAPE(rows_of_b(k), k->r), 1, 45);
    op_case_output(t, LINEAR_Y, type, SHAPE(k->N, k->out));
    op_case_run(t, 2);
    const double *x = op_case_input_values(t, LINEAR_X), *w = op_case_input_values(t, LINEAR_W);
    const double *bias = a->bias ? op_case_input_values(t, LINEAR_B) : NULL, *got = op_case_values(t, LINEAR_Y);
    double *base = new_doubles(n), *product = new_doubles(n), *want = new_doubles(n), *sizes = new_doubles(n);
    for (int64_t i = 0; i < n; i++) {
        base[i] = product[i] = bias ? bias[i % k->out] : 0;
        for (int64_t j = 0; j < a->in; j++) {
            double term = x[i / k->out * a->in + j] * w[i % k->out * a->in + j];
            base[i] += term, product[i] = fabs(product[i]) + fabs(term);
        }
    }
    define_up(k, base, op_case_input_values(t, LINEAR_XA), op_case_input_values(t, LINEAR_UP), want, sizes);
    for (int64_t i = 0; i < n; i++) {
        double sums = arithmetic(a->in + k->r, sizes[i] + product[i]);
        check_element(got[i], want[i], sums + between * fabs(base[i]), type, "linear", (size_t)i);
    }
    double *all[] = {base, product, want, sizes};
    for (size_t i = 0; i < ARRAY_LENGTH(all); i++) free(all[i]);
    op_case_close(t);
}

static void check_adapted_dx(const adapted_case *a, dtype type) {
    int64_t N = a->k.N, in = a->in, out = a->k.out, R = a->k.n_parts * a->k.r;
    double between = rounded_between(a, type);
    op_case *t = op_case_open(OP_LINEAR_DX, &(op_attr){0});
    op_case_random(t, LINEAR_DX_DY, type, SHAPE(N, out), 1, 51);
    op_case_random(t, LINEAR_DX_W, type, SHAPE(out, in), 1, 52);
    op_case_random(t, LINEAR_DX_DXA, type, SHAPE(N, R), 1, 53);
    op_case_random(t, LINEAR_DX_DOWN, type, SHAPE(R, in), 1, 54);
    op_case_output(t, LINEAR_DX_DX, type, SHAPE(N, in));
    op_case_run(t, 2);
    const double *dy = op_case_input_values(t, LINEAR_DX_DY), *w = op_case_input_values(t, LINEAR_DX_W);
    const double *dxa = op_case_input_values(t, LINEAR_DX_DXA), *down = op_case_input_values(t, LINEAR_DX_DOWN);
    const double *got = op_case_values(t, LINEAR_DX_DX);
    for (int64_t i = 0; i < N * in; i++) {
        double product = 0, adapter = 0, size = 0;
        for (int64_t j = 0; j < out; j++) {
            double term = dy[i / in * out + j] * w[j * in + i % in];
            product += term, size += fabs(term);
        }
        for (int64_t j = 0; j < R; j++) {
            double term = dxa[i / in * R + j] * down[j * in + i % in];
            adapter += term, size += fabs(term);
        }
        double loss = between * (fabs(product) + fabs(adapter));
        check_element(got[i], product + adapter, arithmetic(out + R, size) + loss, type, "linear_dx", (size_t)i);
    }
    op_case_close(t);
}

static void test_products_add_an_adapter(void **state) {
    for (size_t i = 0; i < ARRAY_LENGTH(adapted_cases); i++)
        for (size_t ti = 0; ti < ARRAY_LENGTH(check_types); ti++) {
            check_adapted_linear(&adapted_cases[i], check_types[ti]);
            check_adapted_dx(&adapted_cases[i], check_types[ti]);
        }
}

/* ---- rules ----------------------------------------------------------------------------------------------------------- */

static status verify_parts(const lora_case *k, int64_t wide) {
    program p;
    program_init(&p);
    op *o = program_emit(&p, OP_LORA_UP, SECTION_EVAL);
    o->attr = attr_of(k);
    value_id base = program_persistent(&p, "base", DTYPE_BF16, SHAPE(k->N, k->out), ROLE_INPUT);
    op_in(o, LORA_UP_BASE, base);
    op_in(o, LORA_UP_XA, program_persistent(&p, "xa", DTYPE_BF16, SHAPE(k->N, wide), ROLE_INPUT));
    op_in(o, LORA_UP_B, program_persistent(&p, "b", DTYPE_BF16, SHAPE(rows_of_b(k), k->r), ROLE_INPUT));
    op_out(o, LORA_UP_Y, program_value(&p, "y", DTYPE_BF16, SHAPE(k->N, k->out), ROLE_ACTIVATION, SECTION_EVAL));
    status rc = program_verify(&p);
    program_fini(&p);
    return rc;
}

static void test_parts_that_are_no_columns_are_refused(void **state) {
    const lora_case good = {4, 20, 2, 2, {0, 12}, {8, 8}};
    assert_int_equal(verify_parts(&good, 4), OK);
    assert_int_not_equal(verify_parts(&good, 5), OK);
    lora_case bad[5];
    for (int i = 0; i < 5; i++) bad[i] = good;
    bad[0].columns[1] = 9;                     /* past the end */
    bad[1].first[1] = 7;                       /* over the first */
    bad[2].first[0] = 12, bad[2].first[1] = 0; /* not in order */
    bad[3].columns[0] = 0;
    bad[4].r = LORA_RANK_MOST + 1;
    for (int i = 0; i < 5; i++) assert_int_not_equal(verify_parts(&bad[i], 2 * bad[i].r), OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_gradients_are_the_slopes_of_the_definition),
        cmocka_unit_test(test_lora_of_fp32_matches_its_definition),
        cmocka_unit_test(test_lora_of_bf16_matches_its_definition),
        cmocka_unit_test(test_lora_of_fp16_matches_its_definition),
        cmocka_unit_test(test_every_kernel_of_products_scales_and_adds),
        cmocka_unit_test(test_rows_of_generation_do_not_know_each_other),
        cmocka_unit_test(test_linear_dx_adds),
        cmocka_unit_test(test_products_add_an_adapter),
        cmocka_unit_test(test_dropout_keeps_what_its_noise_says),
        cmocka_unit_test(test_dropout_of_a_part_is_that_of_the_whole),
        cmocka_unit_test(test_dropout_of_rate_0_changes_nothing),
        cmocka_unit_test(test_masks_repeat_and_are_independent),
        cmocka_unit_test(test_parts_that_are_no_columns_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
