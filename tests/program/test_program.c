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

/* ---- the columns of ops.def: the ops that have each property ------------------------------------------------------------ */

static bool is_product(op_kind k) { return op_class_of(k) == OP_CLASS_PRODUCT; }
static bool is_logits(op_kind k) { return op_class_of(k) == OP_CLASS_LOGITS; }
static bool is_attention(op_kind k) { return op_class_of(k) == OP_CLASS_ATTENTION; }
static bool is_activation(op_kind k) { return op_class_of(k) == OP_CLASS_ACTIVATION; }
static bool is_embedding(op_kind k) { return op_class_of(k) == OP_CLASS_EMBEDDING; }
static bool is_rounding(op_kind k) { return op_class_of(k) == OP_CLASS_ROUNDING; }
static bool is_update(op_kind k) { return op_class_of(k) == OP_CLASS_UPDATE; }
static bool is_copying(op_kind k) { return op_class_of(k) == OP_CLASS_COPYING; }
static bool is_norm(op_kind k) { return op_norm_output(k) >= 0; }
static bool adds_then_norms(op_kind k) { return op_norm_output(k) > 0; }
static bool has_lanes(op_kind k) { return op_lanes_input(k) >= 0; }
static bool finishes_sums(op_kind k) {
    bool any = false;
    for (int i = 0; i < op_output_count(k); i++) any |= op_output_is_sum(k, i);
    return any;
}
/* With every operand there. */
static op whole(op_kind k) {
    op o = {.kind = k};
    for (int i = 0; i < op_input_count(k); i++) o.in[i] = 1;
    for (int i = 0; i < op_output_count(k); i++) o.out[i] = 1;
    return o;
}
static bool has_home(op_kind k) { return op_home(&(op[]){whole(k)}[0]); }
static bool is_sliced(op_kind k) { return op_in_slices(&(op[]){whole(k)}[0]); }
static bool adds_if_told(op_kind k) {
    op o = whole(k), adds = o;
    bool any = false;
    adds.attr.adds = true;
    for (int i = 0; i < op_output_count(k); i++) any |= op_reads_output(&adds, i) && !op_reads_output(&o, i);
    return any;
}

static void every_column_of_the_op_table_has_its_members(void **state) {
    (void)state;
    static const struct {
        const char *column;
        bool (*has)(op_kind k);
        const char *members; /* in the order of ops.def */
    } columns[] = {
        {"class product", is_product,
         "linear lora_up unembed_logits linear_dx linear_dw linear_dw_add lora_bwd linear8 linear_codes linear_int8"},
        {"class logits", is_logits, "unembed_loss unembed_loss_grad unembed_stats unembed_grad unembed8_loss_grad"},
        {"class attention", is_attention, "attention attention_ring attention_ring_bwd attention_paged attention_bwd"},
        {"class activation", is_activation, "swiglu gelu swiglu_bwd gelu_bwd swiglu8"},
        {"class embedding", is_embedding, "embed embed_bwd embed_bwd_add position_bwd embed_int8"},
        {"class rounding", is_rounding, "quantize quantize_blocks"},
        {"class update", is_update, "accumulate adamw"},
        {"class copying", is_copying, "copy"},
        {"class message", op_is_comm, "all_gather reduce_scatter all_reduce all_to_all shift send recv"},
        {"class norm with y", is_norm, "rmsnorm layernorm add_rmsnorm add_layernorm"},
        {"class norm behind a sum", adds_then_norms, "add_rmsnorm add_layernorm"},
        {"cheap", op_is_cheap,
         "rmsnorm layernorm add add_rmsnorm add_layernorm dropout add_bias qk_norm rope qk_norm_rope swiglu gelu "
         "quantize quantize_blocks"},
        {"loss gradient", op_is_loss_gradient, "unembed_loss_grad critic unembed_grad unembed8_loss_grad"},
        {"ring", op_goes_round, "all_gather reduce_scatter all_reduce"},
        {"sums", op_sums_ranks, "reduce_scatter all_reduce"},
        {"one to one", op_is_one_to_one, "send recv"},
        {"mark %", has_lanes, "embed linear unembed_logits linear_int8 embed_int8"},
        {"mark &", adds_if_told, "unembed_loss_grad unembed_grad unembed8_loss_grad"},
        {"mark /", finishes_sums,
         "loss_reduce bias_grad rmsnorm_bwd layernorm_bwd qk_norm_bwd qk_norm_rope_bwd embed_bwd embed_bwd_add "
         "position_bwd grad_sumsq"},
        {"mark @", has_home, "accumulate grad_sumsq norm_sum clip adamw"},
        {"marks @ and #", is_sliced, "accumulate grad_sumsq adamw"},
    };
    char all[4096] = " cast "; /* with the ops that a list names; one that is added later needs none */
    for (size_t i = 0; i < ARRAY_LENGTH(columns); i++) strcat(strcat(all, columns[i].members), " ");
    for (op_kind k = 0; k < OP_COUNT; k++) /* by whose rows and dtype cost.c counts */
        if (is_product(k) && op_rows_input(k) != 0) fail_msg("%s: the first operand has no rows", op_name(k));
    for (size_t i = 0; i < ARRAY_LENGTH(columns); i++) {
        char found[512] = "", word[32];
        for (op_kind k = 0; k < OP_COUNT; k++) {
            snprintf(word, sizeof word, " %s ", op_name(k));
            if (columns[i].has(k) && strstr(all, word)) strcat(strcat(found, found[0] ? " " : ""), op_name(k));
        }
        if (strcmp(found, columns[i].members) != 0)
            fail_msg("%s: expected '%s', found '%s'", columns[i].column, columns[i].members, found);
    }
}

/* What chunk cuts into rows: the first operand, and all that have as many rows. */
static void rows_are_marked_in_the_ops_of_an_mlp(void **state) {
    (void)state;
    static const struct {
        op_kind kind;
        const char *operands;
    } ops[] = {
        {OP_LINEAR, "x xa : y"},      {OP_LINEAR_DX, "dy add dxa : dx"},
        {OP_LINEAR_DW, "dy x :"},     {OP_LORA_UP, "base xa : y"},
        {OP_LORA_BWD, "dy xa : dxa"}, {OP_BIAS_GRAD, "dy :"},
        {OP_DROPOUT, "x : y"},        {OP_SWIGLU, "gu : y"},
        {OP_GELU, "x : y"},           {OP_SWIGLU_BWD, "gu dy : dgu y"},
        {OP_GELU_BWD, "x dy : dx"},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(ops); i++) {
        op_kind k = ops[i].kind;
        char found[64] = "";
        for (int n = 0; n < op_input_count(k); n++)
            if (op_input_has_rows(k, n)) strcat(strcat(found, op_input_name(k, n)), " ");
        strcat(found, ":");
        for (int n = 0; n < op_output_count(k); n++)
            if (op_output_has_rows(k, n)) strcat(strcat(found, " "), op_output_name(k, n));
        if (strcmp(found, ops[i].operands) != 0 || op_rows_input(k) != 0)
            fail_msg("%s: expected '%s', found '%s'", op_name(k), ops[i].operands, found);
    }
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
        cmocka_unit_test(every_column_of_the_op_table_has_its_members),
        cmocka_unit_test(rows_are_marked_in_the_ops_of_an_mlp),
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
