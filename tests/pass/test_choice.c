/* test_choice.c - the choice of a step: every field of choice.def is compared, copied, printed and written. */
#include "must.h"
#include "pass/pass.h"

/* The first byte of a field decides in every type that there is: a number, an enum, or a struct that begins with one. */
static step_choice changed(step_choice c, choice_field field) {
    static const size_t offsets[] = {
#define CHOICE(NAME, type, field, ...) offsetof(step_choice, field),
#include "pass/choice.def"
#undef CHOICE
    };
    ((uint8_t *)&c)[offsets[field]] ^= 1;
    return c;
}

static void a_difference_in_any_field_is_seen(void **state) {
    (void)state;
    step_choice a = {.micro_batch = 2, .accumulation = 4};
    assert_true(step_choice_equal(&a, &a, CHOICE_NONE));
    for (choice_field i = 0; i < CHOICE_FIELD_COUNT; i++) {
        step_choice b = changed(a, i);
        assert_false(step_choice_equal(&a, &b, CHOICE_NONE));
        assert_true(step_choice_equal(&a, &b, 1u << i));
        assert_false(step_choice_equal(&a, &b, CHOICE_ALL & ~(1u << i)));
    }
}

static void names_that_are_kept_are_compared_as_text(void **state) {
    (void)state;
    char name[] = "attn.y";
    step_choice a = {.recompute = {.kind = RECOMPUTE_KEEP, .keep = "attn.y"}}, b = a;
    b.recompute.keep = name;
    assert_true(step_choice_equal(&a, &b, CHOICE_NONE));
    name[0] = 'b';
    assert_false(step_choice_equal(&a, &b, CHOICE_NONE));
    b.recompute.keep = NULL;
    assert_false(step_choice_equal(&a, &b, CHOICE_NONE));
}

static void memory_is_copied_and_the_step_stays(void **state) {
    (void)state;
    step_choice a = {.precision = PRECISION_BF16, .micro_batch = 2, .accumulation = 4, .sequence = 2}, b = {0};
    a.shard.zero = 3;
    b.recompute.kind = RECOMPUTE_FULL;
    b.offload.states = TIER_HOST;
    b.prefetch = 2;
    b.chunk_tokens = 64;
    step_choice c = a;
    step_choice_copy_memory(&c, &b);
    const unsigned memory = CHOICE_RECOMPUTE | CHOICE_OFFLOAD | CHOICE_PREFETCH | CHOICE_CHUNK_TOKENS;
    assert_true(step_choice_equal(&a, &c, memory));
    assert_true(step_choice_equal(&b, &c, CHOICE_ALL & ~memory));
}

static void it_is_printed_in_words(void **state) {
    (void)state;
    strbuf text;
    step_choice c = {.precision = PRECISION_BF16, .micro_batch = 4, .accumulation = 2};
    c.recompute.kind = RECOMPUTE_FULL;
    strbuf_init(&text);
    step_choice_print(&c, CHOICE_ALL, &text);
    assert_string_equal(text.text, "bf16, micro-batch 4, accumulation 2, zero 0, recompute full, nothing offloaded");
    strbuf_fini(&text);
    c.offload = (offload_tiers){.params = TIER_HOST, .states = TIER_HOST, .activations = TIER_NVME};
    c.keep_states = 1;
    c.keep_layers = 3;
    c.keep_params = 5;
    c.keep_embed = 1;
    c.prefetch = 2;
    c.chunk_tokens = 128;
    c.sequence = 2;
    strbuf_init(&text);
    step_choice_print(&c, CHOICE_ALL & ~(CHOICE_PRECISION | CHOICE_MICRO_BATCH | CHOICE_SHARD), &text);
    assert_string_equal(text.text,
                        "2 ranks share a row, recompute full, params + states on host except params of 5 layers and "
                        "states of the first 1 layer and the embedding, activations on nvme except activations of the "
                        "last 3 layers, copies 2 layers ahead, MLP in chunks of 128 tokens");
    strbuf_fini(&text);
    c.prefetch = 1;
    strbuf_init(&text);
    step_choice_print(&c, CHOICE_ALL, &text);
    assert_non_null(strstr(text.text, ", copies 1 layer ahead, "));
    strbuf_fini(&text);
}

static void it_is_written_as_json(void **state) {
    (void)state;
    step_choice c = {.precision = PRECISION_BF16_SR, .micro_batch = 4, .recompute.kind = RECOMPUTE_NORMS};
    json_t *j = json_object();
    step_choice_json(&c, CHOICE_ALL, j);
    assert_int_equal(json_object_size(j), CHOICE_FIELD_COUNT);
    assert_string_equal(json_string_value(json_object_get(j, "states")), "bf16");
    assert_string_equal(json_string_value(json_object_get(j, "recompute")), "norms");
    json_object_clear(j);
    step_choice_json(&c, CHOICE_MICRO_BATCH, j);
    assert_int_equal(json_object_size(j), 1);
    assert_int_equal(json_integer_value(json_object_get(j, "micro_batch")), 4);
    json_decref(j);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_difference_in_any_field_is_seen),
        cmocka_unit_test(names_that_are_kept_are_compared_as_text),
        cmocka_unit_test(memory_is_copied_and_the_step_stays),
        cmocka_unit_test(it_is_printed_in_words),
        cmocka_unit_test(it_is_written_as_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
