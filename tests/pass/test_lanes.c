/* test_lanes.c - which weights of a program that generates are put into the order of lanes: those that products and the embedding
 * alone read, and no byte more or less than without it. */
#include "model/model.h"
#include "must.h"
#include "training.h"

static void generation_plan(plan *p, const char *preset, int64_t rank, bool lanes, base_format weights) {
    plan_request r = {.seq_len = 1, .choice = {.precision = PRECISION_BF16, .micro_batch = 1, .accumulation = 1}};
    r.source = net_source_of(model_preset_find(preset));
    r.target = backend_target(DEVICE_CPU, 2);
    r.device_limit = (uint64_t)1 << 40;
    r.generation = (generation_shape){.slots = 2, .pages = 8, .page_size = 16, .context = 64, .prefill_tokens = 32};
    r.generation.lanes = lanes, r.generation.weights = weights;
    if (rank) r.lora = (lora_options){.rank = rank, .alpha = 16, .modules = (1u << LORA_MODULE_COUNT) - 1};
    must(plan_build(p, &r));
}

/* Every reader of a weight must agree on its order. */
static void readers_agree(const program *p, size_t *n_lanes) {
    *n_lanes = 0;
    for (size_t i = 0; i < p->n_ops; i++) {
        const op *o = &p->ops[i];
        *n_lanes += o->attr.lanes;
        if (!o->attr.lanes) continue;
        value_id w = o->in[op_lanes_input(o->kind)];
        assert_int_equal(program_get(p, w)->role, ROLE_PARAM);
        assert_false(o->attr.adapter);
        for (size_t k = 0; k < p->n_ops; k++)
            for (int q = 0; q < op_input_count(p->ops[k].kind); q++)
                if (p->ops[k].in[q] == w) assert_true(p->ops[k].attr.lanes && q == op_lanes_input(p->ops[k].kind));
    }
}

static void weights_that_are_only_multiplied_are_ordered(void **state) {
    static const struct {
        const char *preset;
        int64_t rank;
        base_format weights;
    } cases[] = {{"test-gpt2", 0, BASE_COMPUTE},
                 {"test-llama", 0, BASE_COMPUTE},
                 {"test-llama", 4, BASE_COMPUTE},
                 {"test-llama", 0, BASE_INT8}};
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        plan with, without;
        size_t n_with, n_without, n_products = 0;
        generation_plan(&with, cases[i].preset, cases[i].rank, true, cases[i].weights);
        generation_plan(&without, cases[i].preset, cases[i].rank, false, cases[i].weights);
        readers_agree(&with.program, &n_with);
        readers_agree(&without.program, &n_without);
        for (size_t k = 0; k < with.program.n_ops; k++) {
            const op *o = &with.program.ops[k];
            n_products += op_lanes_input(o->kind) >= 0 && !o->attr.adapter;
        }
        assert_int_equal(n_with, n_products);
        assert_true(n_with > 0);
        assert_int_equal(n_without, 0);
        assert_int_equal(with.by_role[ROLE_PARAM], without.by_role[ROLE_PARAM]);
        plan_close(&with);
        plan_close(&without);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(weights_that_are_only_multiplied_are_ordered)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
