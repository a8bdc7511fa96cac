/* test_adapter_ops.c - what passes make of the ops of adapters and of gradients that are not asked for: a LINEAR_DX that adds
 * under fp8 and in chunks, the joined backward of norm and rope without the gains' gradients, and what the hash of a program
 * sees. Programs are made by hand here, because each is about one op. */
#include "pass/pass.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static value_id input(program *p, const char *name, dtype t, shape s) {
    return program_persistent(p, name, t, s, ROLE_INPUT);
}
static value_id activation(program *p, const char *name, shape s) {
    return program_value(p, name, DTYPE_BF16, s, ROLE_ACTIVATION, SECTION_MICRO);
}

static int count_kind(const program *p, op_kind k) {
    int n = 0;
    for (size_t i = 0; i < p->n_ops; i++) n += p->ops[i].kind == k;
    return n;
}

static const op *find_kind(const program *p, op_kind k) {
    for (size_t i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == k) return &p->ops[i];
    return NULL;
}

/* y = x w^T, dx = add + dy w, both in layer 0. */
static void fp8_adds_behind_the_product(void **state) {
    program p;
    program_init(&p);
    p.current_layer = 0;
    value_id x = input(&p, "x", DTYPE_BF16, SHAPE(32, 48)), dy = input(&p, "dy", DTYPE_BF16, SHAPE(32, 64));
    value_id add = input(&p, "add", DTYPE_BF16, SHAPE(32, 48));
    value_id w = program_persistent(&p, "w", DTYPE_BF16, SHAPE(64, 48), ROLE_PARAM);
    value_id y = activation(&p, "y", SHAPE(32, 64)), dx = activation(&p, "dx", SHAPE(32, 48));
    op *o = program_emit(&p, OP_LINEAR, SECTION_MICRO);
    op_in(o, LINEAR_X, x), op_in(o, LINEAR_W, w), op_out(o, LINEAR_Y, y);
    o = program_emit(&p, OP_LINEAR_DX, SECTION_MICRO);
    op_in(o, LINEAR_DX_DY, dy), op_in(o, LINEAR_DX_W, w), op_in(o, LINEAR_DX_ADD, add), op_out(o, LINEAR_DX_DX, dx);
    p.current_layer = -1;
    step_interface step = {.grads = &add};
    net none = {0};
    pass_options options = {.choice = {.precision = PRECISION_FP8}, .net = &none};
    assert_int_equal(pass_fp8(&p, &options, &step), OK);
    assert_int_equal(program_verify(&p), OK);
    assert_int_equal(count_kind(&p, OP_LINEAR8), 2);
    assert_int_equal(count_kind(&p, OP_LINEAR_DX), 0);
    const op *sum = find_kind(&p, OP_ADD);
    assert_non_null(sum);
    assert_true(sum->in[ADD_A] == add && sum->out[ADD_Y] == dx && sum->layer == 0);
    assert_true(find_kind(&p, OP_LINEAR8) < sum);
    program_fini(&p);
}

/* dx = dxa a + dy w: the product goes first, and the adapter adds to it in place of an ADD. */
static void fp8_lets_an_adapter_add_to_the_product(void **state) {
    program p;
    program_init(&p);
    p.current_layer = 0;
    value_id x = input(&p, "x", DTYPE_BF16, SHAPE(32, 48)), dy = input(&p, "dy", DTYPE_BF16, SHAPE(32, 64));
    value_id dxa = input(&p, "dxa", DTYPE_BF16, SHAPE(32, 16));
    value_id w = program_persistent(&p, "w", DTYPE_BF16, SHAPE(64, 48), ROLE_PARAM);
    value_id a = program_persistent(&p, "a", DTYPE_BF16, SHAPE(16, 48), ROLE_PARAM);
    value_id y = activation(&p, "y", SHAPE(32, 64)), dx = activation(&p, "dx", SHAPE(32, 48));
    value_id small = activation(&p, "small", SHAPE(32, 48));
    op *o = program_emit(&p, OP_LINEAR, SECTION_MICRO);
    op_in(o, LINEAR_X, x), op_in(o, LINEAR_W, w), op_out(o, LINEAR_Y, y);
    o = program_emit(&p, OP_LINEAR_DX, SECTION_MICRO);
    o->attr.adapter = true;
    op_in(o, LINEAR_DX_DY, dxa), op_in(o, LINEAR_DX_W, a), op_out(o, LINEAR_DX_DX, small);
    o = program_emit(&p, OP_LINEAR_DX, SECTION_MICRO);
    op_in(o, LINEAR_DX_DY, dy), op_in(o, LINEAR_DX_W, w), op_in(o, LINEAR_DX_ADD, small), op_out(o, LINEAR_DX_DX, dx);
    p.current_layer = -1;
    step_interface step = {.grads = &dx};
    net none = {0};
    pass_options options = {.choice = {.precision = PRECISION_FP8}, .net = &none};
    assert_int_equal(pass_fp8(&p, &options, &step), OK);
    assert_int_equal(program_verify(&p), OK);
    assert_int_equal(count_kind(&p, OP_LINEAR8), 2);
    assert_int_equal(count_kind(&p, OP_ADD), 0);
    const op *last = &p.ops[p.n_ops - 1], *product = last - 1;
    assert_true(last->kind == OP_LINEAR_DX && last->attr.adapter && product->kind == OP_LINEAR8);
    assert_true(last->in[LINEAR_DX_ADD] == product->out[LINEAR8_Y] && last->out[LINEAR_DX_DX] == dx);
    assert_true(last->in[LINEAR_DX_DY] == dxa && last->in[LINEAR_DX_W] == a && last->layer == 0);
    program_fini(&p);
}

/* dgu of an activation function, and dx = add + dgu w behind it. */
static void chunks_cut_what_is_added(void **state) {
    enum { N = 192, F = 32, C = 16, CHUNK = 64 };
    program p;
    program_init(&p);
    p.current_layer = 0;
    value_id gu = input(&p, "gu", DTYPE_BF16, SHAPE(N, 2 * F)), dy = input(&p, "dy", DTYPE_BF16, SHAPE(N, F));
    value_id add = input(&p, "add", DTYPE_BF16, SHAPE(N, C));
    value_id w = program_persistent(&p, "w", DTYPE_BF16, SHAPE(2 * F, C), ROLE_PARAM);
    value_id dgu = activation(&p, "dgu", SHAPE(N, 2 * F)), dx = activation(&p, "dx", SHAPE(N, C));
    op *o = program_emit(&p, OP_SWIGLU_BWD, SECTION_MICRO);
    op_in(o, SWIGLU_BWD_GU, gu), op_in(o, SWIGLU_BWD_DY, dy), op_out(o, SWIGLU_BWD_DGU, dgu);
    o = program_emit(&p, OP_LINEAR_DX, SECTION_MICRO);
    op_in(o, LINEAR_DX_DY, dgu), op_in(o, LINEAR_DX_W, w), op_in(o, LINEAR_DX_ADD, add), op_out(o, LINEAR_DX_DX, dx);
    p.current_layer = -1;
    const net none = {0}; /* without adapters, which are refused */
    pass_options options = {.net = &none, .choice = {.precision = PRECISION_BF16, .chunk_tokens = CHUNK}};
    assert_int_equal(pass_chunk(&p, &options, &(step_interface){0}), OK);
    assert_int_equal(program_verify(&p), OK);
    assert_int_equal(count_kind(&p, OP_LINEAR_DX), N / CHUNK);
    for (size_t i = 0; i < p.n_ops; i++) {
        if (p.ops[i].kind != OP_LINEAR_DX) continue;
        size_t at_add, at_dx;
        assert_true(program_root(&p, p.ops[i].in[LINEAR_DX_ADD], &at_add) == add);
        assert_true(program_root(&p, p.ops[i].out[LINEAR_DX_DX], &at_dx) == dx);
        assert_int_equal(at_add, at_dx); /* the same rows */
        assert_int_equal(program_get(&p, p.ops[i].in[LINEAR_DX_ADD])->shape.dim[0], CHUNK);
    }
    program_fini(&p);
}

static void joined_norm_and_rope_keep_what_is_absent(void **state) {
    enum { N = 8, H = 2, G = 1, D = 4, Q = (H + 2 * G) * D };
    for (int asked = 0; asked < 4; asked++) {
        program p;
        program_init(&p);
        op_attr a = {.batch = 1, .seq_len = N, .n_heads = H, .n_kv_heads = G, .head_dim = D};
        value_id qkv = input(&p, "qkv", DTYPE_BF16, SHAPE(N, Q)), dy = input(&p, "dy", DTYPE_BF16, SHAPE(N, Q));
        value_id gq = input(&p, "gq", DTYPE_BF16, SHAPE(D)), gk = input(&p, "gk", DTYPE_BF16, SHAPE(D));
        value_id table = input(&p, "table", DTYPE_F32, SHAPE(N, D)), doc = input(&p, "doc", DTYPE_I32, SHAPE(N));
        value_id rstd = input(&p, "rstd", DTYPE_F32, SHAPE(N, H + G)), dgains[2];
        value_id back = activation(&p, "back", SHAPE(N, Q)), dqkv = activation(&p, "dqkv", SHAPE(N, Q));
        dgains[0] = program_persistent(&p, "dgq", DTYPE_F32, SHAPE(D), ROLE_GRAD);
        dgains[1] = program_persistent(&p, "dgk", DTYPE_F32, SHAPE(D), ROLE_GRAD);
        op *o = program_emit(&p, OP_ROPE, SECTION_MICRO);
        o->attr = a;
        o->attr.inverse = true;
        op_in(o, ROPE_QKV, dy), op_in(o, ROPE_TABLE, table), op_in(o, ROPE_DOC_START, doc), op_out(o, ROPE_Y, back);
        o = program_emit(&p, OP_QK_NORM_BWD, SECTION_MICRO);
        o->attr = a;
        op_in(o, QK_NORM_BWD_QKV, qkv), op_in(o, QK_NORM_BWD_GQ, gq), op_in(o, QK_NORM_BWD_GK, gk);
        op_in(o, QK_NORM_BWD_RSTD, rstd), op_in(o, QK_NORM_BWD_DY, back), op_out(o, QK_NORM_BWD_DQKV, dqkv);
        if (asked & 1) op_out(o, QK_NORM_BWD_DGQ, dgains[0]);
        if (asked & 2) op_out(o, QK_NORM_BWD_DGK, dgains[1]);
        assert_int_equal(pass_fuse(&p, &(pass_options){0}, &(step_interface){0}), OK);
        assert_int_equal(program_verify(&p), OK);
        assert_int_equal(p.n_ops, 1);
        assert_int_equal(p.ops[0].kind, OP_QK_NORM_ROPE_BWD);
        assert_int_equal(p.ops[0].out[QK_NORM_ROPE_BWD_DGQ], asked & 1 ? dgains[0] : NO_VALUE);
        assert_int_equal(p.ops[0].out[QK_NORM_ROPE_BWD_DGK], asked & 2 ? dgains[1] : NO_VALUE);
        program_fini(&p);
    }
}

static uint64_t hash_of(op_kind k, const op_attr *a) {
    program p;
    program_init(&p);
    program_emit(&p, k, SECTION_MICRO)->attr = *a;
    uint64_t h = program_hash(&p);
    program_fini(&p);
    return h;
}

static void the_hash_sees_the_constants_of_adapters(void **state) {
    const op_attr a = {
        .scale = 2, .n_parts = 2, .part_first = {0, 8}, .part_columns = {4, 4}, .noise_key = 1, .rate = 0.5f};
    op_attr other[4] = {a, a, a, a}, drops[3] = {a, a, a};
    other[0].scale = 1, other[1].n_parts = 1, other[2].part_first[1] = 9, other[3].part_columns[0] = 5;
    drops[0].rate = 0.25f, drops[1].noise_key = 2, drops[2].all_columns = 64;
    for (int i = 0; i < 4; i++) {
        assert_true(hash_of(OP_LORA_UP, &a) != hash_of(OP_LORA_UP, &other[i]));
        assert_true(hash_of(OP_LORA_BWD, &a) != hash_of(OP_LORA_BWD, &other[i]));
    }
    for (int i = 0; i < 3; i++) assert_true(hash_of(OP_DROPOUT, &a) != hash_of(OP_DROPOUT, &drops[i]));
    assert_true(hash_of(OP_LORA_UP, &a) == hash_of(OP_LORA_UP, &a));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fp8_adds_behind_the_product),
        cmocka_unit_test(fp8_lets_an_adapter_add_to_the_product),
        cmocka_unit_test(chunks_cut_what_is_added),
        cmocka_unit_test(joined_norm_and_rope_keep_what_is_absent),
        cmocka_unit_test(the_hash_sees_the_constants_of_adapters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
