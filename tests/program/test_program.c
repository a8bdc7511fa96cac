/* test_program.c - the op table, the builder and the verifier: every kind of broken program is refused by name. */
#include "model/model.h"
#include "plan/plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>

static void every_op_has_names_and_a_doc_line(void **state) {
    (void)state;
    for (op_kind k = 0; k < OP_COUNT; k++) {
        assert_true(op_name(k)[0] != 0);
        assert_true(op_summary(k)[0] != 0);
        assert_true(op_output_count(k) >= 1 || k == OP_SEND);
        for (int i = 0; i < op_input_count(k); i++) assert_true(op_input_name(k, i)[0] != 0);
    }
    assert_string_equal(op_name(OP_RMSNORM_BWD), "rmsnorm_bwd");
    assert_true(op_input_optional(OP_LINEAR, 2));
    assert_false(op_input_optional(OP_LINEAR, 1));
    assert_true(op_output_updates(OP_ADAMW, 1) && op_output_optional(OP_ADAMW, 1));
    assert_true(op_in_place(OP_ADD, 0, 1) && !op_in_place(OP_LINEAR, 0, 0));
}

/* x -> gelu -> y -> gelu -> z */
typedef struct chain {
    program p;
    value_id x, y, z;
} chain;

static void chain_init(chain *c) {
    program_init(&c->p);
    c->x = program_persistent(&c->p, "x", DTYPE_F32, SHAPE(4, 8), ROLE_INPUT);
    c->y = program_value(&c->p, "y", DTYPE_F32, SHAPE(4, 8), ROLE_ACTIVATION, SECTION_MICRO);
    c->z = program_value(&c->p, "z", DTYPE_F32, SHAPE(4, 8), ROLE_ACTIVATION, SECTION_MICRO);
    op *o = program_emit(&c->p, OP_GELU, SECTION_MICRO);
    op_in(o, GELU_X, c->x), op_out(o, GELU_Y, c->y);
    o = program_emit(&c->p, OP_GELU, SECTION_MICRO);
    op_in(o, GELU_X, c->y), op_out(o, GELU_Y, c->z);
}

static void expect_bug(program *p, const char *what) {
    assert_int_equal(program_verify(p), ERR_BUG);
    if (!strstr(error_message(), what)) fail_msg("expected '%s' in: %s", what, error_message());
    program_fini(p);
}

static void a_sound_program_verifies(void **state) {
    (void)state;
    chain c;
    chain_init(&c);
    assert_int_equal(program_verify(&c.p), OK);
    program_fini(&c.p);
}

static void wrong_shape_is_refused(void **state) {
    (void)state;
    chain c;
    chain_init(&c);
    c.p.values[c.z].shape = SHAPE(4, 9);
    expect_bug(&c.p, "'z'");
}

static void wrong_dtype_is_refused(void **state) {
    (void)state;
    chain c;
    chain_init(&c);
    c.p.values[c.y].type = DTYPE_BF16;
    expect_bug(&c.p, "dtype");
}

static void use_before_definition_is_refused(void **state) {
    (void)state;
    chain c;
    chain_init(&c);
    op first = c.p.ops[0];
    c.p.ops[0] = c.p.ops[1];
    c.p.ops[1] = first;
    expect_bug(&c.p, "before it is defined");
}

static void double_write_is_refused(void **state) {
    (void)state;
    chain c;
    chain_init(&c);
    program_append(&c.p, &c.p.ops[1]);
    expect_bug(&c.p, "written twice");
}

static void missing_operand_is_refused(void **state) {
    (void)state;
    chain c;
    chain_init(&c);
    c.p.ops[1].in[GELU_X] = NO_VALUE;
    expect_bug(&c.p, "x");
}

static void value_of_another_section_is_refused(void **state) {
    (void)state;
    chain c;
    chain_init(&c);
    c.p.ops[1].section = SECTION_EVAL;
    expect_bug(&c.p, "outside its section");
}

static plan_request small_request(const char *preset) {
    return (plan_request){.source = net_source_of(model_preset_find(preset)),
                          .choice.micro_batch = 2,
                          .choice.accumulation = 2,
                          .seq_len = 16,
                          .choice.precision = PRECISION_BF16,
                          .with_eval = true,
                          .verify = true,
                          .logits_chunk_bytes = 1 << 16,
                          .target = {"cpu", 2, 64, NULL}};
}

static void lost_gradient_is_refused(void **state) {
    (void)state;
    plan_request r = small_request("test-qwen3");
    plan p;
    assert_int_equal(plan_build(&p, &r), OK);
    size_t n = 0;
    for (size_t i = 0; i < p.program.n_ops; i++) { /* drop the readers of one gradient in the update */
        const op *o = &p.program.ops[i];
        bool reads = (o->kind == OP_ADAMW && o->in[ADAMW_G] == p.step.grads[3]) ||
                     (o->kind == OP_GRAD_SUMSQ && o->in[GRAD_SUMSQ_G] == p.step.grads[3]);
        if (!reads) p.program.ops[n++] = *o;
    }
    p.program.n_ops = n;
    assert_int_equal(program_verify(&p.program), ERR_BUG);
    assert_non_null(strstr(error_message(), "lost"));
    plan_close(&p);
}

static void equal_programs_hash_equal_and_others_differ(void **state) {
    (void)state;
    plan_request r = small_request("test-llama");
    plan a, b, c;
    assert_int_equal(plan_build(&a, &r), OK);
    assert_int_equal(plan_build(&b, &r), OK);
    r.choice.micro_batch = 3;
    assert_int_equal(plan_build(&c, &r), OK);
    assert_true(program_hash(&a.program) == program_hash(&b.program));
    assert_true(program_hash(&a.program) != program_hash(&c.program));
    plan_close(&a), plan_close(&b), plan_close(&c);
}

/* The number of transformers' _compute_dynamic_ntk_parameters for rows of 24 in a model of 16 positions. */
static void dynamic_rope_stretches_for_rows_that_are_too_long(void **state) {
    (void)state;
    rope_options plain = {.type = ROPE_DEFAULT, .theta = 10000};
    rope_options r = {.type = ROPE_DYNAMIC, .theta = 10000, .factor = 2, .original_max_positions = 16};
    for (int i = 0; i < 8; i++)
        assert_true(rope_inverse_frequency(&r, 16, 16, i) == rope_inverse_frequency(&plain, 16, 16, i));
    assert_true(fabs(rope_inverse_frequency(&r, 16, 24, 1) - 0.28641497097875973) < 1e-15);
    assert_true(fabs(rope_inverse_frequency(&r, 16, 24, 7) - 0.00015811388300841897) < 1e-18);
}

static void llama3_rope_blends_between_kept_and_stretched(void **state) {
    (void)state;
    rope_options plain = {.type = ROPE_DEFAULT, .theta = 500000};
    rope_options r = {.type = ROPE_LLAMA3,
                      .theta = 500000,
                      .factor = 8,
                      .low_freq_factor = 1,
                      .high_freq_factor = 4,
                      .original_max_positions = 8192};
    assert_true(rope_inverse_frequency(&r, 128, 1, 0) ==
                rope_inverse_frequency(&plain, 128, 1, 0)); /* short wave kept */
    double last = rope_inverse_frequency(&plain, 128, 1, 63);
    assert_true(fabs(rope_inverse_frequency(&r, 128, 1, 63) - last / 8) < 1e-18); /* long wave stretched */
    for (int i = 1; i < 64; i++)
        assert_true(rope_inverse_frequency(&r, 128, 1, i) < rope_inverse_frequency(&r, 128, 1, i - 1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_has_names_and_a_doc_line),
        cmocka_unit_test(a_sound_program_verifies),
        cmocka_unit_test(wrong_shape_is_refused),
        cmocka_unit_test(wrong_dtype_is_refused),
        cmocka_unit_test(use_before_definition_is_refused),
        cmocka_unit_test(double_write_is_refused),
        cmocka_unit_test(missing_operand_is_refused),
        cmocka_unit_test(value_of_another_section_is_refused),
        cmocka_unit_test(lost_gradient_is_refused),
        cmocka_unit_test(equal_programs_hash_equal_and_others_differ),
        cmocka_unit_test(llama3_rope_blends_between_kept_and_stretched),
        cmocka_unit_test(dynamic_rope_stretches_for_rows_that_are_too_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
