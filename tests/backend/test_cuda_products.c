/* test_cuda_products.c - the pure half of the CUDA products: shapes, scratch and how an unembedding is cut. No GPU needed. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "backend/cuda/products.h"
#include "backend/cuda/unembed8.h"
#include "backend/cuda/work.h"

#define MIB ((int64_t)1 << 20)

static void check_product(const product *q, int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc) {
    assert_int_equal(q->m, m);
    assert_int_equal(q->n, n);
    assert_int_equal(q->k, k);
    assert_int_equal(q->lda, lda);
    assert_int_equal(q->ldb, ldb);
    assert_int_equal(q->ldc, ldc);
}

static product linear(program *p, op_kind kind, shape first, shape second, shape out, bool bias) {
    op *o = program_emit(p, kind, SECTION_MICRO);
    char name[8] = "a";
    value_id v[4];
    const shape shapes[4] = {first, second, out, SHAPE(out.dim[1])};
    for (int i = 0; i < 4; i++) {
        name[0] = (char)('a' + i);
        name[1] = (char)('a' + kind);
        v[i] =
            program_persistent(p, name, i == 2 && kind == OP_LINEAR_DW ? DTYPE_F32 : DTYPE_BF16, shapes[i], ROLE_INPUT);
    }
    op_in(o, LINEAR_X, v[0]), op_in(o, LINEAR_W, v[1]), op_out(o, LINEAR_Y, v[2]); /* or what has their places */
    if (bias) op_in(o, LINEAR_B, v[3]);
    product q = linear_product(p, o);
    assert_int_equal(cuda_work_bytes(p, o, 1), product_work_bytes(&q));
    return q;
}

static void linear_ops_are_the_products_they_say(void **state) {
    enum { N = 37, IN = 29, OUT = 51 };
    program p;
    program_init(&p);
    product y = linear(&p, OP_LINEAR, SHAPE(N, IN), SHAPE(OUT, IN), SHAPE(N, OUT), true);
    check_product(&y, N, OUT, IN, IN, IN, OUT);
    assert_true(!y.a_turned && y.b_turned && y.bias && !y.accumulate && !y.inside && y.c_type == DTYPE_BF16);
    product dx = linear(&p, OP_LINEAR_DX, SHAPE(N, OUT), SHAPE(OUT, IN), SHAPE(N, IN), false);
    check_product(&dx, N, IN, OUT, OUT, IN, IN);
    assert_true(!dx.a_turned && !dx.b_turned && !dx.bias);
    product dw = linear(&p, OP_LINEAR_DW, SHAPE(N, OUT), SHAPE(N, IN), SHAPE(OUT, IN), false);
    check_product(&dw, OUT, IN, N, OUT, IN, IN);
    assert_true(dw.a_turned && !dw.b_turned && dw.c_type == DTYPE_F32);
    program_fini(&p);
}

/* Rows times rows, whatever it is for; sums over tokens take no shortcut. */
static void products_of_8_bits_are_rows_times_rows(void **state) {
    enum { N = 48, IN = 32, OUT = 80 };
    program p;
    program_init(&p);
    const shape shapes[] = {SHAPE(N, IN), SHAPE(1), SHAPE(OUT, IN), SHAPE(1), SHAPE(OUT), SHAPE(N, OUT)};
    const dtype types[] = {DTYPE_F8E4M3, DTYPE_F32, DTYPE_F8E4M3, DTYPE_F32, DTYPE_BF16, DTYPE_BF16};
    const char *const names[] = {"x", "x_scale", "w", "w_scale", "b", "y"};
    value_id v[6];
    for (int i = 0; i < 6; i++) v[i] = program_persistent(&p, names[i], types[i], shapes[i], ROLE_INPUT);
    op *o = program_emit(&p, OP_LINEAR8, SECTION_MICRO);
    for (int i = 0; i < 5; i++) op_in(o, i, v[i]);
    op_out(o, LINEAR8_Y, v[5]);
    product q = linear8_product(&p, o);
    check_product(&q, N, OUT, IN, IN, IN, OUT);
    assert_true(!q.a_turned && q.b_turned && q.bias && q.short_sums && q.type == DTYPE_F8E4M3);
    assert_false(product_may_split(&q));
    assert_int_equal(cuda_work_bytes(&p, o, 1), product_work_bytes(&q));
    o->attr.over_tokens = true;
    assert_false(linear8_product(&p, o).short_sums);
    program_fini(&p);
}

static void equality_looks_at_every_field(void **state) {
    const product q = {.m = 2, .n = 3, .k = 4, .lda = 4, .ldb = 3, .ldc = 3};
    assert_true(product_equal(&q, &(product){.m = 2, .n = 3, .k = 4, .lda = 4, .ldb = 3, .ldc = 3}));
    product other[15];
    for (int i = 0; i < 15; i++) other[i] = q;
    other[0].m++, other[1].n++, other[2].k++, other[3].lda++, other[4].ldb++, other[5].ldc++;
    other[6].a_turned = other[7].b_turned = other[8].bias = other[9].accumulate = true;
    other[10].type = other[11].c_type = DTYPE_BF16;
    other[12].inside = other[13].short_sums = other[14].add = true;
    for (int i = 0; i < 15; i++) assert_false(product_equal(&q, &other[i]));
}

static void only_short_products_that_are_no_weight_gradient_are_split(void **state) {
    const product decode = {.m = 16, .n = 1536, .k = 8960, .b_turned = true};
    assert_true(product_may_split(&decode));
    product q = decode;
    q.m = 8192; /* fills the GPU */
    assert_false(product_may_split(&q));
    q = decode, q.k = 64;
    assert_false(product_may_split(&q));
    q = decode, q.a_turned = true;
    assert_false(product_may_split(&q));
    q = decode, q.accumulate = true;
    assert_false(product_may_split(&q));
}

static void scratch_of_a_product_is_bounded(void **state) {
    static const int64_t sizes[] = {1, 7, 33, 128, 1024, 8192, 151936};
    for (size_t i = 0; i < ARRAY_LENGTH(sizes); i++)
        for (size_t j = 0; j < ARRAY_LENGTH(sizes); j++) {
            product q = {.m = sizes[i], .n = sizes[j], .k = 4096, .b_turned = true};
            assert_in_range(product_work_bytes(&q), MIB, 32 * MIB);
            q.a_turned = true;
            assert_in_range(product_work_bytes(&q), MIB, 16 * MIB);
        }
}

/* ---- unembedding ----------------------------------------------------------------------------------------------------- */

typedef struct unembed_case {
    int64_t N, C, V;
    dtype type, dw_type;
    int64_t budget;
    bool gradient;
} unembed_case;

static unembed_plan plan_of(const unembed_case *k) {
    program p;
    program_init(&p);
    op *o = program_emit(&p, k->gradient ? OP_UNEMBED_LOSS_GRAD : OP_UNEMBED_LOSS, SECTION_MICRO);
    o->attr.chunk_bytes = k->budget;
    op_in(o, UNEMBED_LOSS_H, program_persistent(&p, "h", k->type, SHAPE(k->N, k->C), ROLE_INPUT));
    op_in(o, UNEMBED_LOSS_W, program_persistent(&p, "w", k->type, SHAPE(k->V, k->C), ROLE_PARAM));
    if (k->gradient) {
        op_out(o, UNEMBED_LOSS_GRAD_DH, program_persistent(&p, "dh", k->type, SHAPE(k->N, k->C), ROLE_GRAD));
        op_out(o, UNEMBED_LOSS_GRAD_DW, program_persistent(&p, "dw", k->dw_type, SHAPE(k->V, k->C), ROLE_GRAD));
    }
    unembed_plan u = unembed_plan_make(&p, o);
    assert_int_equal(cuda_work_bytes(&p, o, 1), u.n_bytes);
    program_fini(&p);
    return u;
}

static void check_plan(const unembed_case *k) {
    unembed_plan u = plan_of(k);
    int64_t width = (int64_t)dtype_bytes(k->type);
    assert_true(u.rows >= 1 && u.rows * u.n_chunks >= k->N && u.rows * (u.n_chunks - 1) < k->N);
    assert_true(u.ld >= k->V && u.ld < k->V + 32 && u.ld % 32 == 0);
    assert_true((int64_t)u.at_stored >= u.rows * u.ld * 4);
    assert_true((int64_t)(u.at_states - u.at_stored) >= (u.stored ? k->N * u.ld * width : 0));
    assert_true(u.at_stored % 128 == 0 && u.at_states % 128 == 0);
    assert_int_equal(u.at_products % 256, 0); /* as cuBLASLt wants it */
    /* One way to dw and no other. */
    if (!k->gradient || u.n_chunks == 1) assert_true(!u.stored && u.v_block == 0);
    if (u.stored) assert_true(width == 2 && u.v_block == 0 && u.n_chunks <= 16);
    if (k->gradient && u.n_chunks > 1 && !u.stored) assert_true((u.v_block > 0) == (k->dw_type != DTYPE_F32));
    if (u.v_block > 0) {
        assert_true(u.v_block <= k->V && u.v_ld >= u.v_block && u.v_ld % 32 == 0);
        assert_true((int64_t)u.at_stored >= k->N * u.v_ld * 4);
        assert_true((int64_t)(u.at_products - u.at_states) >= k->N * 8);
    }
    /* Every product that unembed.c runs finds its scratch. */
    for (int64_t rows = u.rows; rows > 0; rows = rows == u.rows ? k->N - (u.n_chunks - 1) * u.rows : 0) {
        product q[3] = {unembed_logits_product(&u, rows, u.V, u.ld), unembed_dh_product(&u, rows, u.ld),
                        unembed_dw_product(&u, rows, u.V, u.ld)};
        for (int i = 0; i < (k->gradient ? 3 : 1); i++)
            assert_true(u.n_bytes - u.at_products >= product_work_bytes(&q[i]));
        if (rows == k->N - (u.n_chunks - 1) * u.rows) break;
    }
    /* Logits and gradient keep to the budget, but for padding, one row and one narrow block at least. */
    int64_t least = MAX(u.ld * 4, u.v_block > 0 ? k->N * u.v_ld * 4 : 0);
    if (u.v_block > 128) least = u.ld * 4;
    int64_t used = (int64_t)u.at_states, padding = u.rows * 31 * 4 + k->N * 4 + 256;
    assert_true(used <= MAX(k->budget + padding, least + padding));
}

static void every_cut_covers_all_tokens_and_keeps_to_its_budget(void **state) {
    static const int64_t dims[][3] = {
        {1, 8, 3},           {7, 20, 64},          {33, 65, 1000},       {70, 17, 130},
        {8192, 1536, 50257}, {8192, 1536, 151936}, {16384, 512, 150000}, {4097, 64, 32000}};
    static const dtype types[][2] = {
        {DTYPE_F32, DTYPE_F32}, {DTYPE_BF16, DTYPE_F32}, {DTYPE_BF16, DTYPE_BF16}, {DTYPE_F16, DTYPE_F32}};
    for (size_t d = 0; d < ARRAY_LENGTH(dims); d++)
        for (size_t t = 0; t < ARRAY_LENGTH(types); t++)
            for (int64_t budget = 1; budget <= (int64_t)16 << 30; budget *= 3)
                for (int gradient = 0; gradient < 2; gradient++)
                    check_plan(&(unembed_case){dims[d][0], dims[d][1], dims[d][2], types[t][0], types[t][1], budget,
                                               gradient});
}

static void the_gradient_is_kept_where_the_budget_holds_it(void **state) {
    unembed_case k = {8192, 1536, 151936, DTYPE_BF16, DTYPE_BF16, 4096 * MIB, true};
    unembed_plan u = plan_of(&k);
    assert_true(u.stored && u.v_block == 0); /* 2.5 GB and three chunks of 1.7 GB */
    assert_int_equal(u.n_chunks, 3);
    k.budget = 1024 * MIB;
    u = plan_of(&k);
    assert_true(!u.stored && u.v_block > 0);
    k.dw_type = DTYPE_F32;
    u = plan_of(&k);
    assert_true(!u.stored && u.v_block == 0);
    k.type = DTYPE_F32, k.budget = 4096 * MIB; /* fp32 lies on its logits and needs no keeping */
    assert_false(plan_of(&k).stored);
}

/* ---- unembedding in 8 bits ----------------------------------------------------------------------------------------- */

static unembed8_plan plan8_of(const unembed_case *k) {
    program p;
    program_init(&p);
    op *o = program_emit(&p, OP_UNEMBED8_LOSS_GRAD, SECTION_MICRO);
    o->attr.chunk_bytes = k->budget;
    op_in(o, UNEMBED8_LOSS_GRAD_H, program_persistent(&p, "h", DTYPE_F8E4M3, SHAPE(k->N, k->C), ROLE_INPUT));
    op_in(o, UNEMBED8_LOSS_GRAD_W, program_persistent(&p, "w", DTYPE_F8E4M3, SHAPE(k->V, k->C), ROLE_PARAM));
    op_out(o, UNEMBED8_LOSS_GRAD_DH, program_persistent(&p, "dh", DTYPE_BF16, SHAPE(k->N, k->C), ROLE_GRAD));
    if (k->gradient)
        op_out(o, UNEMBED8_LOSS_GRAD_DW, program_persistent(&p, "dw", k->dw_type, SHAPE(k->V, k->C), ROLE_GRAD));
    unembed8_plan u = unembed8_plan_make(&p, o);
    assert_int_equal(cuda_work_bytes(&p, o, 1), u.n_bytes);
    program_fini(&p);
    return u;
}

/* gradient: of w, too. */
static void check_plan8(const unembed_case *k) {
    unembed8_plan u = plan8_of(k);
    const logits8_cut *c = &u.cut;
    assert_true(c->rows >= 16 && c->rows <= c->group && c->group <= k->N && c->rows <= MAX(LOGITS8_ROWS, 16));
    assert_true(c->rows % 16 == 0 && (c->group % 16 == 0 || c->group == k->N));
    if (c->rows < c->group && c->rows >= 128) assert_true(c->rows % 128 == 0); /* where the next chunk is aligned */
    if (c->group < k->N && c->group >= 128) assert_true(c->group % 128 == 0);
    bool in_groups = k->gradient && k->dw_type == DTYPE_F32;
    if (in_groups || !k->gradient || c->group == k->N) assert_true(!c->stored && !c->v_block);
    else assert_true(c->stored == !c->v_block && c->v_block <= k->V);
    int64_t tokens = c->stored || c->v_block ? k->N : c->group, columns = c->v_block ? c->v_block : k->V;
    assert_true(u.ld % 64 == 0 && u.q_ld % 128 == 0 && u.t_ld % 128 == 0 && u.t_ld >= tokens);
    assert_true((int64_t)u.at_q >= MAX(c->rows * u.ld, k->N * u.v_ld) * 2);
    assert_true((int64_t)(u.at_t - u.at_q) >= c->group * u.q_ld);
    assert_true((int64_t)(u.at_states - u.at_t) >= (k->gradient ? columns * u.t_ld : 0));
    assert_true((int64_t)(u.at_scales - u.at_states) >= k->N * 8 && u.at_products % 256 == 0);
    /* Logits and gradients keep to the budget, but for padding, the fewest rows and one narrow block. */
    int64_t least = 16 * (u.ld * 2 + u.q_ld + k->V) + (c->v_block == 128 || c->v_block == k->V ? k->N * 128 * 3 : 0);
    int64_t padding = 128 * (k->V + c->group + k->N) + k->N * 128 + 1024;
    if (!c->v_block) assert_true((int64_t)u.at_states <= MAX(k->budget, least) + padding);
}

static void every_cut_of_8_bit_logits_covers_all_tokens(void **state) {
    static const int64_t dims[][3] = {{16, 16, 16},    {48, 32, 1008},        {272, 64, 400},
                                      {2064, 16, 144}, {32768, 1536, 151936}, {8192, 3584, 152064}};
    for (size_t d = 0; d < ARRAY_LENGTH(dims); d++)
        for (int64_t budget = 1; budget <= (int64_t)16 << 30; budget *= 3)
            for (int way = 0; way < 3; way++)
                check_plan8(&(unembed_case){dims[d][0], dims[d][1], dims[d][2], DTYPE_F8E4M3,
                                            way == 1 ? DTYPE_BF16 : DTYPE_F32, budget, way < 2});
}

/* What the plan gives where nobody asks: groups of 8,192 tokens from chunks of 1,024, and a 7B's dw in one product. */
static void the_budget_of_8_bit_logits_holds_a_group(void **state) {
    unembed_case k = {32768, 1536, 151936, DTYPE_F8E4M3, DTYPE_F32, logits8_bytes(32768, 151936), true};
    unembed8_plan u = plan8_of(&k);
    assert_true(u.cut.group == 8192 && u.cut.rows == 1024);
    k = (unembed_case){8192, 3584, 152064, DTYPE_F8E4M3, DTYPE_BF16, logits8_bytes(8192, 152064), true};
    u = plan8_of(&k);
    assert_true(u.cut.group == 8192 && u.cut.rows == 1024 && !u.cut.v_block && !u.cut.stored);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_ops_are_the_products_they_say),
        cmocka_unit_test(products_of_8_bits_are_rows_times_rows),
        cmocka_unit_test(equality_looks_at_every_field),
        cmocka_unit_test(only_short_products_that_are_no_weight_gradient_are_split),
        cmocka_unit_test(scratch_of_a_product_is_bounded),
        cmocka_unit_test(every_cut_covers_all_tokens_and_keeps_to_its_budget),
        cmocka_unit_test(the_gradient_is_kept_where_the_budget_holds_it),
        cmocka_unit_test(every_cut_of_8_bit_logits_covers_all_tokens),
        cmocka_unit_test(the_budget_of_8_bit_logits_holds_a_group),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
