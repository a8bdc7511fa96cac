/* test_ops_embed.c - token and position tables forward and backward, against loops in double. */
#include "op_check.h"
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct setup {
    int64_t B, T, V, C;
} setup;

/* Few and many ids, absent ids, widths around 512 columns, more ids than one task of zeros. */
static const setup setups[] = {{1, 1, 1, 1}, {2, 5, 3, 7}, {3, 40, 11, 33}, {1, 64, 3000, 130}, {2, 100, 50, 1027}};

/* Ids cluster, so some repeat often and some never occur. */
static int32_t *make_tokens(const setup *s) {
    int32_t *tokens = mem_alloc((size_t)(s->B * s->T) * sizeof *tokens);
    for (int64_t i = 0; i < s->B * s->T; i++) {
        uint64_t r = rng_below(5, (uint64_t)i, (uint64_t)s->V);
        tokens[i] = (int32_t)(i % 3 == 0 ? s->V - 1 : (int64_t)r / 2 * 2);
    }
    return tokens;
}

/* A second document starts in the middle of every row. */
static int32_t *make_doc_start(const setup *s) {
    int32_t *doc_start = mem_alloc((size_t)(s->B * s->T) * sizeof *doc_start);
    for (int64_t i = 0; i < s->B * s->T; i++) doc_start[i] = (int32_t)(i % s->T >= s->T / 2 ? s->T / 2 : 0);
    return doc_start;
}

static void test_embed_takes_rows_and_adds_positions(void **state) {
    for (size_t ti = 0; ti < ARRAY_LENGTH(check_types); ti++)
        for (size_t si = 0; si < ARRAY_LENGTH(setups); si++)
            for (int variant = 0; variant < 3; variant++) { /* alone, with positions, with positions and documents */
                setup s = setups[si];
                dtype type = check_types[ti];
                int64_t N = s.B * s.T;
                int32_t *tokens = make_tokens(&s), *doc_start = make_doc_start(&s);
                op_case *t = op_case_open(OP_EMBED, &(op_attr){.batch = s.B, .seq_len = s.T});
                op_case_ints(t, EMBED_TOKENS, SHAPE(N), tokens);
                op_case_random(t, EMBED_TABLE, type, SHAPE(s.V, s.C), 1, 1);
                if (variant == 2) op_case_ints(t, EMBED_DOC_START, SHAPE(N), doc_start);
                if (variant >= 1) op_case_random(t, EMBED_POSITIONS, type, SHAPE(s.T, s.C), 1, 2);
                op_case_output(t, EMBED_X, type, SHAPE(N, s.C));
                op_case_run(t, 2);
                const double *table = op_case_input_values(t, EMBED_TABLE), *x = op_case_values(t, EMBED_X);
                const double *positions = variant >= 1 ? op_case_input_values(t, EMBED_POSITIONS) : NULL;
                for (int64_t i = 0; i < N * s.C; i++) {
                    int64_t n = i / s.C, c = i % s.C, p = n % s.T - (variant == 2 ? doc_start[n] : 0);
                    double want = table[tokens[n] * s.C + c];
                    if (!positions) assert_true(x[i] == want); /* a copy */
                    else check_element(x[i], want + positions[p * s.C + c], 4 * U32, type, "x", (size_t)i);
                }
                op_case_close(t);
                free(tokens);
                free(doc_start);
            }
}

/* dtable[id] = sum of the rows of dy whose id it is, in order, + before; error bound from the fp32 sum of its rows. */
static void check_scatter(op_case *t, dtype grad_type, const int32_t *ids, const double *dy, const double *before,
                          int64_t N, int64_t V, int64_t C) {
    double *want = mem_alloc((size_t)(V * C) * 8), *size = mem_alloc((size_t)(V * C) * 8);
    int64_t *count = mem_alloc((size_t)V * sizeof *count);
    for (int64_t n = 0; n < N; n++) {
        count[ids[n]]++;
        for (int64_t c = 0; c < C; c++) {
            want[ids[n] * C + c] += dy[n * C + c];
            size[ids[n] * C + c] += fabs(dy[n * C + c]);
        }
    }
    const double *got = op_case_values(t, EMBED_BWD_DTABLE);
    bool absent = false;
    for (int64_t i = 0; i < V * C; i++) {
        if (count[i / C] == 0) {
            assert_true(got[i] == (before ? before[i] : 0));
            absent = true;
            continue;
        }
        double sum = want[i] + (before ? before[i] : 0), terms = size[i] + (before ? fabs(before[i]) : 0);
        check_element(got[i], sum, terms * (double)count[i / C] * U32, grad_type, "dtable", (size_t)i);
    }
    assert_true(absent || V < 4); /* the setups do have ids that never occur */
    free(want);
    free(size);
    free(count);
}

static void test_embed_bwd_sums_rows_by_id_and_zeroes_the_rest(void **state) {
    for (size_t ti = 0; ti < ARRAY_LENGTH(check_types); ti++)
        for (size_t si = 0; si < ARRAY_LENGTH(setups); si++)
            for (int variant = 0; variant < 4; variant++) {
                setup s = setups[si];
                bool add = variant & 1;
                dtype grad_type = variant & 2 ? DTYPE_BF16 : DTYPE_F32;
                int64_t N = s.B * s.T;
                int32_t *tokens = make_tokens(&s);
                op_case *t = op_case_open(add ? OP_EMBED_BWD_ADD : OP_EMBED_BWD, &(op_attr){0});
                op_case_ints(t, EMBED_BWD_TOKENS, SHAPE(N), tokens);
                op_case_random(t, EMBED_BWD_DY, check_types[ti], SHAPE(N, s.C), 1, 3);
                float *normal = mem_alloc((size_t)(s.V * s.C) * sizeof *normal);
                double *before = mem_alloc((size_t)(s.V * s.C) * sizeof *before);
                rng_normal_fill(4, 0, normal, (size_t)(s.V * s.C), 0, 1);
                for (int64_t i = 0; i < s.V * s.C; i++) before[i] = bf16_to_f32(f32_to_bf16(normal[i]));
                if (add) op_case_output_floats(t, EMBED_BWD_DTABLE, grad_type, SHAPE(s.V, s.C), before);
                else op_case_output(t, EMBED_BWD_DTABLE, grad_type, SHAPE(s.V, s.C));
                op_case_run(t, 2);
                check_scatter(t, grad_type, tokens, op_case_input_values(t, EMBED_BWD_DY), add ? before : NULL, N, s.V,
                              s.C);
                op_case_close(t);
                free(tokens);
                free(normal);
                free(before);
            }
}

static void test_position_bwd_sums_rows_by_position_in_the_document(void **state) {
    for (size_t ti = 0; ti < ARRAY_LENGTH(check_types); ti++)
        for (size_t si = 0; si < ARRAY_LENGTH(setups); si++) {
            setup s = setups[si];
            int64_t N = s.B * s.T, P = s.T + 3; /* the table may be longer than the rows */
            int32_t *doc_start = make_doc_start(&s), *positions = make_doc_start(&s);
            for (int64_t i = 0; i < N; i++) positions[i] = (int32_t)(i % s.T) - doc_start[i];
            op_case *t = op_case_open(OP_POSITION_BWD, &(op_attr){.batch = s.B, .seq_len = s.T});
            op_case_ints(t, POSITION_BWD_DOC_START, SHAPE(N), doc_start);
            op_case_random(t, POSITION_BWD_DY, check_types[ti], SHAPE(N, s.C), 1, 6);
            op_case_output(t, POSITION_BWD_DTABLE, DTYPE_F32, SHAPE(P, s.C));
            op_case_run(t, 2);
            check_scatter(t, DTYPE_F32, positions, op_case_input_values(t, POSITION_BWD_DY), NULL, N, P, s.C);
            op_case_close(t);
            free(doc_start);
            free(positions);
        }
}

/* The sum of one id is a chain in order of occurrence: bit-equal to a scalar loop. */
static void test_rows_of_one_id_are_added_in_order_of_occurrence(void **state) {
    enum { N = 37, C = 5 };
    int32_t tokens[N];
    for (int i = 0; i < N; i++) tokens[i] = i % 2;
    op_case *t = op_case_open(OP_EMBED_BWD, &(op_attr){0});
    op_case_ints(t, EMBED_BWD_TOKENS, SHAPE(N), tokens);
    op_case_random(t, EMBED_BWD_DY, DTYPE_F32, SHAPE(N, C), 1, 7);
    op_case_output(t, EMBED_BWD_DTABLE, DTYPE_F32, SHAPE(2, C));
    op_case_run(t, 2);
    const double *dy = op_case_input_values(t, EMBED_BWD_DY), *got = op_case_values(t, EMBED_BWD_DTABLE);
    for (int id = 0; id < 2; id++)
        for (int c = 0; c < C; c++) {
            float sum = (float)dy[id * C + c];
            for (int n = id + 2; n < N; n += 2) sum += (float)dy[n * C + c];
            assert_true(got[id * C + c] == sum);
        }
    op_case_close(t);
}

/* EMBED_BWD is the transpose of EMBED: <embed(table), w> = <table, embed_bwd(w)>, which for a linear op is the whole
 * of what finite differences could show. */
static void check_transpose(float scale) {
    setup s = setups[2];
    int64_t N = s.B * s.T;
    int32_t *tokens = make_tokens(&s);
    op_case *f = op_case_open(OP_EMBED, &(op_attr){.batch = s.B, .seq_len = s.T, .scale = scale}),
            *b = op_case_open(OP_EMBED_BWD, &(op_attr){.scale = scale});
    op_case_ints(f, EMBED_TOKENS, SHAPE(N), tokens);
    op_case_random(f, EMBED_TABLE, DTYPE_F32, SHAPE(s.V, s.C), 1, 8);
    op_case_output(f, EMBED_X, DTYPE_F32, SHAPE(N, s.C));
    op_case_run(f, 2);
    op_case_ints(b, EMBED_BWD_TOKENS, SHAPE(N), tokens);
    op_case_random(b, EMBED_BWD_DY, DTYPE_F32, SHAPE(N, s.C), 1, 9);
    op_case_output(b, EMBED_BWD_DTABLE, DTYPE_F32, SHAPE(s.V, s.C));
    op_case_run(b, 2);
    const double *x = op_case_values(f, EMBED_X), *w = op_case_input_values(b, EMBED_BWD_DY),
                 *table = op_case_input_values(f, EMBED_TABLE);
    const double *dtable = op_case_values(b, EMBED_BWD_DTABLE);
    double left = 0, right = 0, size = 0;
    for (int64_t i = 0; i < N * s.C; i++) {
        double want = table[tokens[i / s.C] * s.C + i % s.C] * (scale > 0 ? (double)scale : 1);
        assert_true(fabs(x[i] - want) <= U32 * fabs(want));
    }
    for (int64_t i = 0; i < N * s.C; i++) left += x[i] * w[i], size += fabs(x[i] * w[i]);
    for (int64_t i = 0; i < s.V * s.C; i++) right += table[i] * dtable[i];
    assert_true(fabs(left - right) <= 64 * U32 * size); /* chains of up to N / 2 = 60 fp32 additions */
    assert_true(fabs(left) > 1e-4 * size);
    op_case_close(f);
    op_case_close(b);
    free(tokens);
}

static void test_embed_bwd_is_the_transpose_of_embed(void **state) { check_transpose(0); }
static void test_scaled_rows_have_scaled_gradients(void **state) { check_transpose(5.65f); }

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_embed_takes_rows_and_adds_positions),
        cmocka_unit_test(test_embed_bwd_sums_rows_by_id_and_zeroes_the_rest),
        cmocka_unit_test(test_position_bwd_sums_rows_by_position_in_the_document),
        cmocka_unit_test(test_rows_of_one_id_are_added_in_order_of_occurrence),
        cmocka_unit_test(test_embed_bwd_is_the_transpose_of_embed),
        cmocka_unit_test(test_scaled_rows_have_scaled_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
