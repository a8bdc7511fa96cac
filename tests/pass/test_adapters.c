/* test_adapters.c - adapters as operands of the products beside them: which ops the pass joins, that later passes take them along, and
 * that a run has the bits of separate ops where a backend adds the adapter behind the product, as the CPU does. */
#include "must.h"
#include "training.h"

#include <stdlib.h>

enum { LINEARS = 4, TOKENS = 1024 };

typedef struct counts {
    int up, linear, linear_adapted, linear_again, dx, dx_adapted;
} counts;

static counts count_ops(const program *p) {
    counts n = {0};
    for (size_t i = 0; i < p->n_ops; i++) {
        const op *o = &p->ops[i];
        if (o->section != SECTION_MICRO) continue;
        bool adapted = o->kind == OP_LINEAR && o->in[LINEAR_XA];
        n.up += o->kind == OP_LORA_UP;
        n.linear += o->kind == OP_LINEAR;
        n.linear_adapted += adapted && !o->again;
        n.linear_again += adapted && o->again;
        n.dx += o->kind == OP_LINEAR_DX;
        n.dx_adapted += o->kind == OP_LINEAR_DX && o->in[LINEAR_DX_DXA];
    }
    return n;
}

/* Of a plan for a GPU, or for a processor; settings as --set takes them. */
static counts counts_of(bool gpu, precision q, int64_t tokens, const char *const *more, int *layers) {
    compiled k;
    training t = {.preset = "test-qwen3", .precision = q, .seq_len = tokens / 2, .micro_batch = 2, .more = more};
    compiled_request(&k, &t);
    if (gpu) k.r.plan.target = backend_target(DEVICE_CUDA, 2);
    compiled_plan(&k);
    *layers = (int)k.r.plan.source.n_layers;
    counts n = count_ops(&k.p.program);
    compiled_close(&k);
    return n;
}

/* y = x w^T + an adapter and its gradient are one op each; the first layer's q|k|v has no dx: the embedding is frozen. */
static void adapters_are_operands_of_the_products(void **state) {
    const char *const *const settings[] = {
        SETTINGS("model.lora.rank=4", "memory.recompute=none"),
        SETTINGS("model.lora.rank=4", "memory.recompute=none", "model.base=nf4"),
        SETTINGS("model.lora.rank=4", "memory.recompute=none", "memory.offload.params=host"),
    };
    for (size_t i = 0; i < ARRAY_LENGTH(settings); i++) {
        int layers;
        counts n = counts_of(true, PRECISION_BF16, TOKENS, settings[i], &layers);
        assert_int_equal(n.up, 0);
        assert_int_equal(n.linear, 2 * LINEARS * layers); /* and xa of each */
        assert_int_equal(n.linear_adapted, LINEARS * layers);
        assert_int_equal(n.dx, LINEARS * layers - 1);
        assert_int_equal(n.dx_adapted, n.dx);
    }
}

static void what_is_computed_again_is_the_same_op(void **state) {
    int layers;
    counts n = counts_of(true, PRECISION_BF16, TOKENS, SETTINGS("model.lora.rank=4", "memory.recompute=full"), &layers);
    assert_int_equal(n.up, 0);
    assert_int_equal(n.linear_adapted, LINEARS * layers);
    assert_true(n.linear_again > 0);
    n = counts_of(true, PRECISION_BF16, TOKENS, SETTINGS("model.lora.rank=4", "memory.chunk_tokens=128"), &layers);
    assert_int_equal(n.up, 0);
    assert_true(n.linear_adapted + n.linear_again > 8 * layers); /* of every chunk of the MLP */
}

/* On a processor, for few tokens and with 32 bits nothing is joined; dropout stands between an adapter's gradient and dx. */
static void other_programs_keep_their_ops(void **state) {
    const char *const *const plain = SETTINGS("model.lora.rank=4", "memory.recompute=none");
    int layers;
    const counts kept[] = {counts_of(false, PRECISION_BF16, TOKENS, plain, &layers),
                           counts_of(true, PRECISION_BF16, TOKENS / 2, plain, &layers),
                           counts_of(true, PRECISION_FP32, TOKENS, plain, &layers)};
    for (size_t i = 0; i < ARRAY_LENGTH(kept); i++) {
        assert_int_equal(kept[i].up, LINEARS * layers);
        assert_int_equal(kept[i].linear_adapted + kept[i].dx_adapted, 0);
    }
    counts dropped =
        counts_of(true, PRECISION_BF16, TOKENS,
                  SETTINGS("model.lora.rank=4", "model.lora.dropout=0.1", "memory.recompute=none"), &layers);
    assert_int_equal(dropped.linear_adapted, LINEARS * layers);
    assert_int_equal(dropped.dx_adapted, 0);
}

/* A processor plays the GPU. */
static void runs_have_the_bits_of_separate_ops(void **state) {
    static const char *const placed = "memory.place=embed=cuda, layers.0=cuda, layers.1=cuda, head=cuda";
    static const char *const policies[] = {"memory.recompute=none", "memory.recompute=full",
                                           "memory.recompute=selective"};
    training t = {.preset = "test-qwen3",
                  .precision = PRECISION_BF16,
                  .seq_len = TOKENS / 2,
                  .micro_batch = 2,
                  .steps = SANITIZED ? 1 : 3,
                  .more = SETTINGS("model.lora.rank=4")};
    train_result separate, joined;
    training_must(training_run(&t, &separate));
    for (size_t i = 0; i < ARRAY_LENGTH(policies); i++) {
        t.more = SETTINGS("model.lora.rank=4", placed, policies[i]);
        compiled k;
        compiled_open(&k, &t);
        assert_int_equal(count_ops(&k.p.program).up, 0);
        compiled_close(&k);
        training_must(training_run(&t, &joined));
        training_as_planned(&joined, policies[i]);
        assert_true(joined.param_hash == separate.param_hash && joined.last_loss == separate.last_loss);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adapters_are_operands_of_the_products),
        cmocka_unit_test(what_is_computed_again_is_the_same_op),
        cmocka_unit_test(other_programs_keep_their_ops),
        cmocka_unit_test(runs_have_the_bits_of_separate_ops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
