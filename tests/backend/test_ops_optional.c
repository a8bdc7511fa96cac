/* test_ops_optional.c - gradients of parameters that are not asked for: whichever are absent, the others and dx have the bits
 * that they have when all are there, and no scratch is taken for what is absent. */
#include "op_check.h"
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct setup {
    dtype type, grad_type;
    int64_t N, C; /* rows of a norm, or hidden states */
    int64_t V;    /* of an unembedding */
    int64_t chunk_bytes;
    bool alias; /* dx on dy */
} setup;

enum { H = 3, G = 2, RANKS = 2 }; /* heads; ranks that share a vocabulary */

/* An op with up to two gradients that may be absent: bit i of `asked` asks for the i-th. */
typedef op_case *(*make_case)(const setup *s, int asked);

static double *new_numbers(int64_t n, double from, double to) {
    double *d = mem_alloc((size_t)n * sizeof *d);
    for (int64_t i = 0; i < n; i++) d[i] = from + (to - from) * rng_uniform(7, (uint64_t)i);
    return d;
}

static void set_positive(op_case *t, int input, shape s) {
    double *d = new_numbers(shape_count(&s), 0.5, 2);
    op_case_floats(t, input, DTYPE_F32, s, d);
    free(d);
}

static void set_dx(op_case *t, const setup *s, int dx, int dy, shape shape) {
    if (s->alias) op_case_alias(t, dx, dy);
    else op_case_output(t, dx, s->type, shape);
}

static op_case *rmsnorm_case(const setup *s, int asked) {
    op_case *t = op_case_open(OP_RMSNORM_BWD, &(op_attr){.eps = 1e-5f});
    op_case_random(t, RMSNORM_BWD_X, s->type, SHAPE(s->N, s->C), 1, 1);
    op_case_random(t, RMSNORM_BWD_GAMMA, s->type, SHAPE(s->C), 1, 2);
    set_positive(t, RMSNORM_BWD_RSTD, SHAPE(s->N));
    op_case_random(t, RMSNORM_BWD_DY, s->type, SHAPE(s->N, s->C), 1, 3);
    set_dx(t, s, RMSNORM_BWD_DX, RMSNORM_BWD_DY, SHAPE(s->N, s->C));
    if (asked & 1) op_case_output(t, RMSNORM_BWD_DGAMMA, s->grad_type, SHAPE(s->C));
    op_case_run(t, 2);
    return t;
}

static op_case *layernorm_case(const setup *s, int asked) {
    op_case *t = op_case_open(OP_LAYERNORM_BWD, &(op_attr){.eps = 1e-5f});
    op_case_random(t, LAYERNORM_BWD_X, s->type, SHAPE(s->N, s->C), 1, 1);
    op_case_random(t, LAYERNORM_BWD_GAMMA, s->type, SHAPE(s->C), 1, 2);
    set_positive(t, LAYERNORM_BWD_MEAN, SHAPE(s->N));
    set_positive(t, LAYERNORM_BWD_RSTD, SHAPE(s->N));
    op_case_random(t, LAYERNORM_BWD_DY, s->type, SHAPE(s->N, s->C), 1, 3);
    op_case_random(t, LAYERNORM_BWD_DRES, s->type, SHAPE(s->N, s->C), 1, 4);
    set_dx(t, s, LAYERNORM_BWD_DX, LAYERNORM_BWD_DY, SHAPE(s->N, s->C));
    if (asked & 1) op_case_output(t, LAYERNORM_BWD_DGAMMA, s->grad_type, SHAPE(s->C));
    if (asked & 2) op_case_output(t, LAYERNORM_BWD_DBETA, s->grad_type, SHAPE(s->C));
    op_case_run(t, 2);
    return t;
}

static op_attr heads_attr(const setup *s) {
    return (op_attr){.batch = 1, .seq_len = s->N, .n_heads = H, .n_kv_heads = G, .head_dim = (int)s->C, .eps = 1e-5f};
}

static op_case *qk_norm_case(const setup *s, int asked) {
    op_attr a = heads_attr(s);
    shape rows = SHAPE(s->N, (H + 2 * G) * s->C);
    op_case *t = op_case_open(OP_QK_NORM_BWD, &a);
    op_case_random(t, QK_NORM_BWD_QKV, s->type, rows, 1, 1);
    op_case_random(t, QK_NORM_BWD_GQ, s->type, SHAPE(s->C), 1, 2);
    op_case_random(t, QK_NORM_BWD_GK, s->type, SHAPE(s->C), 1, 3);
    set_positive(t, QK_NORM_BWD_RSTD, SHAPE(s->N, H + G));
    op_case_random(t, QK_NORM_BWD_DY, s->type, rows, 1, 4);
    set_dx(t, s, QK_NORM_BWD_DQKV, QK_NORM_BWD_DY, rows);
    if (asked & 1) op_case_output(t, QK_NORM_BWD_DGQ, s->grad_type, SHAPE(s->C));
    if (asked & 2) op_case_output(t, QK_NORM_BWD_DGK, s->grad_type, SHAPE(s->C));
    op_case_run(t, 2);
    return t;
}

static op_case *qk_norm_rope_case(const setup *s, int asked) {
    op_attr a = heads_attr(s);
    shape rows = SHAPE(s->N, (H + 2 * G) * s->C);
    int32_t *doc_start = mem_alloc((size_t)s->N * sizeof *doc_start);
    op_case *t = op_case_open(OP_QK_NORM_ROPE_BWD, &a);
    op_case_random(t, QK_NORM_ROPE_BWD_QKV, s->type, rows, 1, 1);
    op_case_random(t, QK_NORM_ROPE_BWD_GQ, s->type, SHAPE(s->C), 1, 2);
    op_case_random(t, QK_NORM_ROPE_BWD_GK, s->type, SHAPE(s->C), 1, 3);
    op_case_random(t, QK_NORM_ROPE_BWD_TABLE, DTYPE_F32, SHAPE(s->N, s->C), 1, 5);
    op_case_ints(t, QK_NORM_ROPE_BWD_DOC_START, SHAPE(s->N), doc_start);
    set_positive(t, QK_NORM_ROPE_BWD_RSTD, SHAPE(s->N, H + G));
    op_case_random(t, QK_NORM_ROPE_BWD_DY, s->type, rows, 1, 4);
    set_dx(t, s, QK_NORM_ROPE_BWD_DQKV, QK_NORM_ROPE_BWD_DY, rows);
    if (asked & 1) op_case_output(t, QK_NORM_ROPE_BWD_DGQ, s->grad_type, SHAPE(s->C));
    if (asked & 2) op_case_output(t, QK_NORM_ROPE_BWD_DGK, s->grad_type, SHAPE(s->C));
    op_case_run(t, 2);
    free(doc_start);
    return t;
}

static void set_targets(op_case *t, int input, const setup *s) {
    int32_t *targets = mem_alloc((size_t)s->N * sizeof *targets);
    for (int64_t i = 0; i < s->N; i++)
        targets[i] = i % 5 == 3 ? -1 : (int32_t)rng_below(9, (uint64_t)i, (uint64_t)s->V);
    op_case_ints(t, input, SHAPE(s->N), targets);
    free(targets);
}

static const step_scalars scalars = {.seed = 0.5f};

static op_case *loss_case(const setup *s, int asked) {
    op_case *t = op_case_open(OP_UNEMBED_LOSS_GRAD, &(op_attr){.chunk_bytes = s->chunk_bytes});
    op_case_random(t, UNEMBED_LOSS_GRAD_H, s->type, SHAPE(s->N, s->C), 1, 1);
    op_case_random(t, UNEMBED_LOSS_GRAD_W, s->type, SHAPE(s->V, s->C), 0.5, 2);
    set_targets(t, UNEMBED_LOSS_GRAD_TARGETS, s);
    op_case_bytes(t, UNEMBED_LOSS_GRAD_SCALARS, SHAPE((int64_t)sizeof scalars), &scalars);
    op_case_output(t, UNEMBED_LOSS_GRAD_LOSSES, DTYPE_F32, SHAPE(s->N));
    op_case_output(t, UNEMBED_LOSS_GRAD_DH, s->type, SHAPE(s->N, s->C));
    if (asked & 1) op_case_output(t, UNEMBED_LOSS_GRAD_DW, s->grad_type, SHAPE(s->V, s->C));
    op_case_run(t, 2);
    return t;
}

/* The second of RANKS ranks, with three rows of padding. The sums of exponentials are not those of the logits: dlogits is a
 * number like any other. */
static op_case *shared_loss_case(const setup *s, int asked) {
    op_attr a = {.chunk_bytes = s->chunk_bytes, .vocab = 2 * s->V, .first_id = s->V, .n_ids = s->V};
    op_case *t = op_case_open(OP_UNEMBED_GRAD, &a);
    double *stats = new_numbers(RANKS * s->N * 3, 3, 9);
    op_case_random(t, UNEMBED_GRAD_H, s->type, SHAPE(s->N, s->C), 1, 1);
    op_case_random(t, UNEMBED_GRAD_W, s->type, SHAPE(s->V + 3, s->C), 0.5, 2);
    set_targets(t, UNEMBED_GRAD_TARGETS, s);
    op_case_bytes(t, UNEMBED_GRAD_SCALARS, SHAPE((int64_t)sizeof scalars), &scalars);
    op_case_floats(t, UNEMBED_GRAD_STATS, DTYPE_F64, SHAPE(RANKS, s->N, 3), stats);
    op_case_output(t, UNEMBED_GRAD_DH, s->type, SHAPE(s->N, s->C));
    if (asked & 1) op_case_output(t, UNEMBED_GRAD_DW, s->grad_type, SHAPE(s->V + 3, s->C));
    op_case_run(t, 2);
    free(stats);
    return t;
}

/* outputs: those that are always there, then the optional ones; -1 ends a list. */
static void check_absent(const setup *s, make_case make, const int always[2], const int optional[2]) {
    int n_optional = optional[1] >= 0 ? 2 : 1, all = (1 << n_optional) - 1;
    int64_t n_always[2] = {s->N * s->C, s->N * s->C}, n_grad = s->C;
    if (make == qk_norm_case || make == qk_norm_rope_case) n_always[0] = s->N * (H + 2 * G) * s->C;
    if (make == loss_case) n_always[0] = s->N;
    if (make == loss_case || make == shared_loss_case) n_grad = s->V * s->C;
    op_case *full = make(s, all);
    for (int asked = 0; asked < all; asked++) {
        op_case *t = make(s, asked);
        for (int i = 0; i < 2 && always[i] >= 0; i++)
            check_equal_bits(t, always[i], full, always[i], (size_t)n_always[i], "always there");
        for (int i = 0; i < n_optional; i++)
            if (asked >> i & 1) check_equal_bits(t, optional[i], full, optional[i], (size_t)n_grad, "asked for");
        op_case_close(t);
    }
    op_case_close(full);
}

static void check_norms(make_case make, const int always[2], const int optional[2], const int64_t (*shapes)[2],
                        size_t n_shapes) {
    for (size_t ti = 0; ti < ARRAY_LENGTH(check_types); ti++)
        for (size_t i = 0; i < n_shapes; i++)
            for (int alias = 0; alias < 2; alias++) {
                setup s = {.type = check_types[ti],
                           .grad_type = i % 2 ? DTYPE_BF16 : DTYPE_F32,
                           .N = shapes[i][0],
                           .C = shapes[i][1],
                           .alias = alias};
                check_absent(&s, make, always, optional);
            }
}

static const int64_t rows[][2] = {{1, 1}, {37, 33}, {300, 48}, {18, 1536}, {3, 8200}};
static const int64_t heads[][2] = {{3, 6}, {50, 64}, {300, 8}, {21, 80}};

static void test_rmsnorm_without_dgamma(void **state) {
    check_norms(rmsnorm_case, (int[]){RMSNORM_BWD_DX, -1}, (int[]){RMSNORM_BWD_DGAMMA, -1}, rows, ARRAY_LENGTH(rows));
}
static void test_layernorm_without_dgamma_or_dbeta(void **state) {
    check_norms(layernorm_case, (int[]){LAYERNORM_BWD_DX, -1}, (int[]){LAYERNORM_BWD_DGAMMA, LAYERNORM_BWD_DBETA}, rows,
                ARRAY_LENGTH(rows));
}
static void test_qk_norm_without_dgq_or_dgk(void **state) {
    check_norms(qk_norm_case, (int[]){QK_NORM_BWD_DQKV, -1}, (int[]){QK_NORM_BWD_DGQ, QK_NORM_BWD_DGK}, heads,
                ARRAY_LENGTH(heads));
}
static void test_qk_norm_rope_without_dgq_or_dgk(void **state) {
    check_norms(qk_norm_rope_case, (int[]){QK_NORM_ROPE_BWD_DQKV, -1},
                (int[]){QK_NORM_ROPE_BWD_DGQ, QK_NORM_ROPE_BWD_DGK}, heads, ARRAY_LENGTH(heads));
}

/* Less than a row of logits at once, three rows, all of them, and between: each another way to dw. */
static void check_losses(make_case make, const int always[2], const int optional[2]) {
    const int64_t shapes[][3] = {{7, 20, 64}, {33, 65, 300}, {64, 64, 512}};
    for (size_t ti = 0; ti < ARRAY_LENGTH(check_types); ti++)
        for (size_t i = 0; i < ARRAY_LENGTH(shapes); i++)
            for (int way = 0; way < 8; way++) {
                setup s = {.type = check_types[ti], .N = shapes[i][0], .C = shapes[i][1], .V = shapes[i][2]};
                const int64_t bytes[] = {1, 3 * 4 * s.V + 5, 3 * s.V * s.N, 4 * s.V * s.N};
                s.chunk_bytes = bytes[way / 2];
                s.grad_type = way % 2 && s.type == DTYPE_BF16 ? DTYPE_BF16 : DTYPE_F32;
                check_absent(&s, make, always, optional);
            }
}

static void test_the_loss_without_dw(void **state) {
    check_losses(loss_case, (int[]){UNEMBED_LOSS_GRAD_LOSSES, UNEMBED_LOSS_GRAD_DH}, (int[]){UNEMBED_LOSS_GRAD_DW, -1});
}
static void test_the_shared_loss_without_dw(void **state) {
    check_losses(shared_loss_case, (int[]){UNEMBED_GRAD_DH, -1}, (int[]){UNEMBED_GRAD_DW, -1});
}

/* ---- scratch and costs ------------------------------------------------------------------------------------------------ */

typedef struct sizes {
    size_t cpu, cuda;
    double flops, bytes;
} sizes;

static sizes layernorm_sizes(int asked) {
    program p;
    program_init(&p);
    op *o = program_emit(&p, OP_LAYERNORM_BWD, SECTION_MICRO);
    int64_t N = 4096, C = 512;
    op_in(o, LAYERNORM_BWD_X, program_persistent(&p, "x", DTYPE_BF16, SHAPE(N, C), ROLE_INPUT));
    op_in(o, LAYERNORM_BWD_GAMMA, program_persistent(&p, "gamma", DTYPE_BF16, SHAPE(C), ROLE_PARAM));
    op_out(o, LAYERNORM_BWD_DX, program_persistent(&p, "dx", DTYPE_BF16, SHAPE(N, C), ROLE_GRAD));
    value_id dgamma = program_persistent(&p, "dgamma", DTYPE_F32, SHAPE(C), ROLE_GRAD);
    value_id dbeta = program_persistent(&p, "dbeta", DTYPE_F32, SHAPE(C), ROLE_GRAD);
    if (asked & 1) op_out(o, LAYERNORM_BWD_DGAMMA, dgamma);
    if (asked & 2) op_out(o, LAYERNORM_BWD_DBETA, dbeta);
    sizes s = {backend_cpu()->work_bytes(&p, o, 4), cuda_work_bytes(&p, o, 4), op_flops(&p, o), op_bytes(&p, o)};
    program_fini(&p);
    return s;
}

static void test_norms_take_a_line_of_scratch_for_each_gradient(void **state) {
    sizes none = layernorm_sizes(0), gamma = layernorm_sizes(1), beta = layernorm_sizes(2), both = layernorm_sizes(3);
    assert_true(none.cpu == 0 && none.cuda == 0 && gamma.cpu > 0 && gamma.cuda > 0);
    assert_true(gamma.cpu == beta.cpu && gamma.cuda == beta.cuda);
    assert_true(both.cpu == 2 * gamma.cpu && both.cuda == 2 * gamma.cuda);
    assert_true(both.bytes - none.bytes == 2 * 512 * 4);
}

static sizes loss_sizes(dtype dw, bool asked) {
    program p;
    program_init(&p);
    op *o = program_emit(&p, OP_UNEMBED_LOSS_GRAD, SECTION_MICRO);
    int64_t N = 4096, C = 512, V = 50000;
    o->attr.chunk_bytes = 8 << 20;
    op_in(o, UNEMBED_LOSS_GRAD_H, program_persistent(&p, "h", DTYPE_BF16, SHAPE(N, C), ROLE_INPUT));
    op_in(o, UNEMBED_LOSS_GRAD_W, program_persistent(&p, "w", DTYPE_BF16, SHAPE(V, C), ROLE_PARAM));
    op_out(o, UNEMBED_LOSS_GRAD_DH, program_persistent(&p, "dh", DTYPE_BF16, SHAPE(N, C), ROLE_GRAD));
    value_id to = program_persistent(&p, "dw", dw, SHAPE(V, C), ROLE_GRAD);
    if (asked) op_out(o, UNEMBED_LOSS_GRAD_DW, to);
    sizes s = {backend_cpu()->work_bytes(&p, o, 4), cuda_work_bytes(&p, o, 4), op_flops(&p, o), op_bytes(&p, o)};
    program_fini(&p);
    return s;
}

static void test_the_loss_takes_no_scratch_or_time_for_dw(void **state) {
    static const dtype types[] = {DTYPE_F32, DTYPE_BF16};
    for (size_t i = 0; i < ARRAY_LENGTH(types); i++) {
        sizes with = loss_sizes(types[i], true), without = loss_sizes(types[i], false);
        assert_true(without.cpu <= with.cpu && without.cuda <= with.cuda);
        assert_true(without.cpu == loss_sizes(DTYPE_F32, false).cpu);
        assert_true(without.flops * 6 == with.flops * 4);
        assert_true(with.bytes - without.bytes == 50000.0 * 512 * (double)dtype_bytes(types[i]));
    }
    assert_true(loss_sizes(DTYPE_BF16, false).cpu <
                loss_sizes(DTYPE_BF16, true).cpu); /* 8 bytes per token are not kept */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rmsnorm_without_dgamma),
        cmocka_unit_test(test_layernorm_without_dgamma_or_dbeta),
        cmocka_unit_test(test_qk_norm_without_dgq_or_dgk),
        cmocka_unit_test(test_qk_norm_rope_without_dgq_or_dgk),
        cmocka_unit_test(test_the_loss_without_dw),
        cmocka_unit_test(test_the_shared_loss_without_dw),
        cmocka_unit_test(test_norms_take_a_line_of_scratch_for_each_gradient),
        cmocka_unit_test(test_the_loss_takes_no_scratch_or_time_for_dw),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
