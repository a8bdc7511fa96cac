/* test_frozen_bytes.c - what frozen parameters cost, by hand: bytes of parameters for all of the model, gradients and states for
 * its adapters alone, and a frozen copy costs its parameters. Plans of qwen2.5-7b for an H200; nothing is allocated. */
#include "must.h"
#include "settings/settings.h"

/* qwen2.5-7b: width 3584, 28 layers, 28 heads and 4 kv heads of 128, feed-forward 18944, vocabulary 152064, not tied. */
enum { C = 3584, L = 28, Q = 28 * 128, KV = 4 * 128, F = 18944, V = 152064, RANK = 16 };

/* Two tables, the final norm; per layer q, k, v with biases, o, gate, up, down, two norms: 7 615 616 512. */
static uint64_t base_params(void) {
    uint64_t layer = (uint64_t)Q * C + Q + 2 * ((uint64_t)KV * C + KV) + (uint64_t)C * Q + 3 * (uint64_t)F * C + 2 * C;
    return 2 * (uint64_t)V * C + C + L * layer;
}

/* A module from `in` to `out` has (rank, in) and (out, rank): 40 370 176 with all of a block. */
static uint64_t adapter(uint64_t in, uint64_t out) { return RANK * (in + out); }
static uint64_t all_adapters(void) {
    return L * (adapter(C, Q) + 2 * adapter(C, KV) + adapter(Q, C) + 2 * adapter(C, F) + adapter(F, C));
}
static uint64_t q_and_v_adapters(void) { return L * (adapter(C, Q) + adapter(C, KV)); }

typedef struct bytes {
    uint64_t params, grads, states;
} bytes;

static bytes planned_bytes(const char *const *settings) {
    static const char *const common[] = {"model.preset=qwen2.5-7b", "data.seq_len=2048",     "train.micro_batch=1",
                                         "memory.strategy=manual",  "memory.recompute=full", "train.eval_rows=0",
                                         "train.problems=0",        "run.threads=2"};
    config c;
    train_request r;
    hardware machine;
    plan p;
    config_init(&c);
    for (size_t i = 0; i < ARRAY_LENGTH(common); i++) must(config_set(&c, common[i], "test"));
    for (; *settings; settings++) must(config_set(&c, *settings, "test"));
    must(config_check(&c));
    must(request_for_plan(&r, &c, "h200", 0, &machine));
    must(plan_choose(&p, &r.plan));
    assert_string_equal(p.request.target.name, "cuda");
    bytes b = {p.by_role[ROLE_PARAM], p.by_role[ROLE_GRAD], p.by_role[ROLE_STATE]};
    plan_close(&p);
    config_fini(&c);
    return b;
}

static void check(const char *const *settings, bytes expected) {
    bytes found = planned_bytes(settings);
    if (found.params != expected.params || found.grads != expected.grads || found.states != expected.states)
        fail_msg("%s: params %llu, grads %llu, states %llu, expected %llu, %llu, %llu", settings[0],
                 (unsigned long long)found.params, (unsigned long long)found.grads, (unsigned long long)found.states,
                 (unsigned long long)expected.params, (unsigned long long)expected.grads,
                 (unsigned long long)expected.states);
}
#define SET(...) ((const char *const[]){__VA_ARGS__, NULL})

static void a_frozen_base_needs_neither_gradients_nor_states(void **state) {
    uint64_t base = base_params(), all = all_adapters(), some = q_and_v_adapters();
    assert_true(base == 7615616512 && all == 40370176);
    /* bf16: 2 bytes of everything; of adapters fp32 gradients, and fp32 master, m and v. */
    check(SET("precision=bf16", "model.lora.rank=16"), (bytes){2 * (base + all), 4 * all, 12 * all});
    check(SET("precision=bf16", "model.lora.rank=16", "model.lora.targets=q,v"),
          (bytes){2 * (base + some), 4 * some, 12 * some});
    check(SET("precision=bf16", "model.lora.rank=16", "model.lora.dropout=0.1", "model.lora.rslora=true"),
          (bytes){2 * (base + all), 4 * all, 12 * all});
    check(SET("precision=fp32", "model.lora.rank=16"), (bytes){4 * (base + all), 4 * all, 8 * all});
    /* All trained: what freezing saves. */
    check(SET("precision=bf16"), (bytes){2 * base, 4 * base, 12 * base});
}

/* The model without its adapters is the reference for nothing; a copy costs its parameters, and no gradient or state. */
static void a_reference_costs_its_parameters_at_most(void **state) {
    uint64_t base = base_params(), all = all_adapters();
    check(SET("precision=bf16", "model.lora.rank=16", "train.task=preference", "preference.reference=base"),
          (bytes){2 * (base + all), 4 * all, 12 * all});
    check(SET("precision=bf16", "model.lora.rank=16", "train.task=preference", "preference.reference=copy"),
          (bytes){2 * (2 * base + all), 4 * all, 12 * all});
    check(SET("precision=bf16", "train.task=preference", "preference.reference=copy"),
          (bytes){2 * 2 * base, 4 * base, 12 * base});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_frozen_base_needs_neither_gradients_nor_states),
        cmocka_unit_test(a_reference_costs_its_parameters_at_most),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
