/* test_logits.c - how much of the logits is there at once where no setting says so: from shapes alone. */
#include "backend/backend.h"
#include "change_model.h"
#include "must.h"
#include "plan/plan.h"

typedef enum kept { CHUNKS, ALL_GRADIENTS } kept;

/* Rows of 1024 tokens, on a GPU. */
static const struct {
    const char *preset;
    precision precision;
    int64_t rows;
    int lora_rank;
    kept expected;
} cases[] = {
    {"qwen2.5-7b", PRECISION_BF16_SR, 7, 0, ALL_GRADIENTS}, /* up to 7,280 tokens: whatever the model */
    {"qwen2.5-0.5b", PRECISION_BF16_SR, 7, 0, ALL_GRADIENTS},
    {"qwen2.5-0.5b", PRECISION_BF16_SR, 8, 0, CHUNKS},
    {"qwen2.5-1.5b", PRECISION_BF16_SR, 8, 0, CHUNKS},
    {"qwen2.5-7b", PRECISION_BF16_SR, 8, 0, ALL_GRADIENTS}, /* up to 2.7 times the hidden size: 9,557 tokens */
    {"qwen2.5-7b", PRECISION_BF16_SR, 9, 0, ALL_GRADIENTS},
    {"qwen2.5-7b", PRECISION_BF16_SR, 10, 0, CHUNKS},
    {"qwen2.5-7b", PRECISION_FP8_SR, 8, 0, ALL_GRADIENTS},
    {"qwen2.5-14b", PRECISION_BF16_SR, 12, 0, ALL_GRADIENTS},
    {"qwen2.5-7b", PRECISION_BF16, 8, 0, CHUNKS},     /* an fp32 gradient takes the chunks one after the other */
    {"qwen2.5-7b", PRECISION_BF16_SR, 8, 16, CHUNKS}, /* no gradient of the weight */
};

static plan_request request_of(size_t i) {
    plan_request r = {.source = net_source_of(model_preset_find(cases[i].preset)),
                      .choice.micro_batch = cases[i].rows,
                      .choice.accumulation = 2,
                      .seq_len = 1024,
                      .choice.precision = cases[i].precision,
                      .optimizer = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .clip = 1},
                      .target = backend_target(DEVICE_CUDA, 1),
                      .lora = {.rank = cases[i].lora_rank, .alpha = 16, .modules = 1u << LORA_MODULE_DOWN}};
    CHANGE_MODEL(r.source, c.n_layers = 1);
    return r;
}

static const op *loss_of(const program *p) {
    for (size_t i = 0; i < p->n_ops; i++)
        if (op_is_loss_gradient(p->ops[i].kind)) return &p->ops[i];
    fail_msg("no gradient of a loss");
    return NULL;
}

static void shapes_decide(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        plan_request r = request_of(i);
        plan p;
        must(plan_build(&p, &r));
        int64_t rows = 0;
        bool stored = op_logits_stored(&p.program, loss_of(&p.program), &rows);
        if (stored != (cases[i].expected == ALL_GRADIENTS))
            fail_msg("%s, %lld rows: %s", cases[i].preset, (long long)cases[i].rows, stored ? "all" : "chunks");
        plan_close(&p);
    }
}

/* Chunks decide the order of a sum, so memory must not decide on chunks. */
static void memory_decides_nothing(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        plan_request r = request_of(i);
        plan large, small;
        must(plan_build(&large, &r));
        r.device_limit = 1ull << 30;
        r.choice.offload = (offload_tiers)OFFLOAD(TIER_HOST, TIER_HOST, TIER_HOST, TIER_HOST);
        r.choice.recompute.kind = RECOMPUTE_FULL;
        must(plan_build(&small, &r));
        assert_true(large.request.logits_chunk_bytes == small.request.logits_chunk_bytes);
        plan_close(&large);
        plan_close(&small);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_decide),
        cmocka_unit_test(memory_decides_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
