/* test_chunk.c - long rows: an MLP that takes its tokens in chunks, layers that keep their activations on the device, and
 * a plan that comes to both where nothing else fits.
 *
 * Chunks change the order in which weight gradients are summed and nothing else. So runs with the same chunks have the same
 * bits whatever else is recomputed or offloaded, and losses stay near those without chunks: a sum of N = 256 products in
 * fp32 is off by at most N 2^-24 = 1.5e-5 of its terms in either order, and 4 steps with AdamW's bounded updates move a
 * loss by less than ten times that. */
#include "backend_choice.h"
#include "model/model.h"
#include "op_harness.h"
#include "training.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

#define NEAR (10 * 256 * 0x1p-24)

/* ---- one product in parts ---------------------------------------------------------------------------------------------- */

/* dw += dy^T x against a loop in double. Sums of 100 products in fp32: bound as the products' own. */
static void products_are_added_to_what_is_there(void **state) {
    (void)state;
    enum { N = 100, OUT = 40, IN = 24 };
    static const dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    for (size_t t = 0; t < ARRAY_LENGTH(types); t++) {
        double before[OUT * IN], expected[OUT * IN], largest;
        for (int i = 0; i < OUT * IN; i++) expected[i] = before[i] = (double)(i % 17) - 8;
        op_case *c = op_case_open(OP_LINEAR_DW_ADD, &(op_attr){0});
        op_case_random(c, LINEAR_DW_ADD_DY, types[t], SHAPE(N, OUT), 1.0, 3);
        op_case_random(c, LINEAR_DW_ADD_X, types[t], SHAPE(N, IN), 1.0, 4);
        op_case_output_floats(c, LINEAR_DW_ADD_DW, DTYPE_F32, SHAPE(OUT, IN), before);
        op_case_run(c, 2);
        const double *dy = op_case_input_values(c, LINEAR_DW_ADD_DY), *x = op_case_input_values(c, LINEAR_DW_ADD_X);
        for (int n = 0; n < N; n++)
            for (int o = 0; o < OUT; o++)
                for (int i = 0; i < IN; i++) expected[o * IN + i] += dy[n * OUT + o] * x[n * IN + i];
        double error = op_case_error(c, LINEAR_DW_ADD_DW, expected, &largest);
        if (error > N * 0x1p-24) fail_msg("%s: error %g", dtype_name(types[t]), error);
        op_case_close(c);
    }
}

/* ---- whole runs ---------------------------------------------------------------------------------------------------------- */

enum { TOKENS = 256 }; /* of a micro-batch: 2 rows of 128 */

typedef struct variant {
    const char *recompute, *offload, *keep;
} variant;

static void run(training t, const char *chunk, const variant *v, train_result *r) {
    char recompute[64], params[64], grads[64], activations[64], path[600], *dir = training_dir();
    snprintf(path, sizeof path, "memory.nvme_path=%s", dir);
    snprintf(recompute, sizeof recompute, "memory.recompute=%s", v->recompute);
    snprintf(params, sizeof params, "memory.offload.params=%s", v->offload);
    snprintf(grads, sizeof grads, "memory.offload.grads=%s", v->offload);
    snprintf(activations, sizeof activations, "memory.offload.activations=%s", v->offload);
    t.seq_len = TOKENS / 2;
    const char *more[SETTINGS_MOST];
    settings_join(more,
                  SETTINGS("model.layers=4", "memory.strategy=manual", "train.eval_rows=2", chunk, recompute, params,
                           grads, activations, v->keep, path),
                  t.more);
    t.more = more;
    training_must(training_run(&t, r));
    training_dir_remove(dir);
    char name[160];
    snprintf(name, sizeof name, "%s %s %s %s", t.preset, chunk, v->recompute, v->offload);
    training_as_planned(r, name);
}

#define KEEP(n) "memory.offload.keep_layers=" #n
static const variant variants[] = {
    {"none", "none", KEEP(0)},      {"none", "host", KEEP(0)},     {"norms", "host", KEEP(2)},
    {"selective", "none", KEEP(0)}, {"full", "none", KEEP(0)},     {"full", "host", KEEP(0)},
    {"full", "host", KEEP(3)},      {"nested:2", "none", KEEP(0)}, {"nested:3", "host", KEEP(1)},
    {"none", "nvme", KEEP(0)},      {"full", "nvme", KEEP(1)},
};

static void chunks_are_equal_among_themselves(void **state) {
    (void)state;
    static const precision kinds[] = {PRECISION_FP32, PRECISION_BF16, PRECISION_BF16_SR};
    static const char *const presets[] = {"test-gpt2", "test-llama"};
    for (size_t m = 0; m < ARRAY_LENGTH(presets); m++)
        for (size_t k = 0; k < ARRAY_LENGTH(kinds); k++) {
            training t = {.preset = presets[m], .precision = kinds[k], .accumulation = 1 + (int64_t)(m + k) % 2};
            train_result plain, first, r;
            if (SANITIZED && (m + k) % 2) continue;
            run(t, "memory.chunk_tokens=0", &variants[0], &plain);
            for (size_t i = 0; i < ARRAY_LENGTH(variants); i++) {
                run(t, "memory.chunk_tokens=96", &variants[i], &r); /* 128 tokens: two chunks */
                if (i == 0) first = r;
                if (r.param_hash != first.param_hash || r.last_loss != first.last_loss ||
                    r.eval.loss != first.eval.loss)
                    fail_msg("%s %s: recompute %s offload %s %s ends with other bits", presets[m],
                             precision_name(kinds[k]), variants[i].recompute, variants[i].offload, variants[i].keep);
            }
            if (kinds[k] == PRECISION_FP32 && fabs(first.last_loss / plain.last_loss - 1) > NEAR)
                fail_msg("%s: loss %.9g in chunks, %.9g at once", presets[m], first.last_loss, plain.last_loss);
        }
}

/* The same with adapters, on all linear layers or some, with dropout, over a base of codes, under recompute and offload. */
static void chunks_of_adapters_are_equal_among_themselves(void **state) {
    (void)state;
    static const struct {
        const char *preset, *more[4];
        precision precision;
    } models[] = {{"test-llama", {"model.lora.rank=4"}, PRECISION_FP32},
                  {"test-gpt2", {"model.lora.rank=4", "model.lora.dropout=0.2"}, PRECISION_FP32},
                  {"test-qwen3", {"model.lora.rank=3", "model.lora.dropout=0.1", "model.base=nf4"}, PRECISION_BF16},
                  {"test-llama", {"model.lora.rank=4", "model.lora.targets=up,q"}, PRECISION_BF16_SR}};
    for (size_t m = 0; m < ARRAY_LENGTH(models); m++) {
        train_result plain, first, r;
        training t = {.preset = models[m].preset, .precision = models[m].precision, .accumulation = 1 + (int64_t)m % 2};
        t.more = models[m].more;
        run(t, "memory.chunk_tokens=0", &variants[0], &plain);
        for (size_t i = 0; i < ARRAY_LENGTH(variants); i++) {
            if (i % 2 != m % 2 && i > 0) continue;
            run(t, "memory.chunk_tokens=96", &variants[i], &r);
            if (i == 0) first = r;
            if (r.param_hash != first.param_hash || r.last_loss != first.last_loss || r.eval.loss != first.eval.loss)
                fail_msg("%s %s: recompute %s offload %s %s ends with other bits", models[m].preset, models[m].more[1],
                         variants[i].recompute, variants[i].offload, variants[i].keep);
        }
        if (models[m].precision != PRECISION_FP32) continue;
        if (fabs(first.last_loss / plain.last_loss - 1) > NEAR || first.param_hash == plain.param_hash)
            fail_msg("%s: loss %.9g in chunks, %.9g at once", models[m].preset, first.last_loss, plain.last_loss);
    }
}

/* 3 chunks of which the last is short, against one. The sums of fp32 differ in their last bits, and in no more. */
static void an_uneven_last_chunk_counts_once(void **state) {
    (void)state;
    training t = {.preset = "test-llama"};
    train_result plain, uneven;
    t.micro_batch = 3; /* 384 tokens */
    run(t, "memory.chunk_tokens=0", &variants[0], &plain);
    run(t, "memory.chunk_tokens=320", &variants[0], &uneven);
    assert_true(fabs(uneven.last_loss / plain.last_loss - 1) < NEAR);
    assert_true(uneven.param_hash != plain.param_hash);
}

/* ---- programs ------------------------------------------------------------------------------------------------------------ */

static void compile(compiled *k, training t, const char *const *more) {
    t.more = more;
    compiled_open(k, &t);
}

static int64_t widest_rows(const program *p, int64_t width, section s) {
    int64_t rows = 0;
    for (size_t i = 0; i < p->n_ops; i++)
        for (int k = 0; k < op_output_count(p->ops[i].kind); k++) {
            const value *v = &p->values[program_root(p, p->ops[i].out[k], NULL)];
            if (p->ops[i].section == s && v->role == ROLE_ACTIVATION && v->shape.rank == 2 && v->shape.dim[1] >= width)
                rows = MAX(rows, v->shape.dim[0]);
        }
    return rows;
}

static void wide_values_exist_for_one_chunk_alone(void **state) {
    (void)state;
    for (size_t m = 0; m < ARRAY_LENGTH(training_presets); m++) {
        compiled k;
        training t = {.preset = training_presets[m], .seq_len = 128, .micro_batch = 3};
        compile(&k, t,
                SETTINGS("memory.strategy=manual", "memory.recompute=full", "memory.chunk_tokens=64",
                         "train.eval_rows=2", "model.ffn=4096"));
        assert_int_equal(widest_rows(&k.p.program, 4096, SECTION_MICRO), 64);
        assert_int_equal(widest_rows(&k.p.program, 4096, SECTION_EVAL), 64);
        uint64_t chunked = k.p.planned[TIER_DEVICE];
        double flops = k.p.flops_per_step, again = k.p.flops_again;
        compiled_close(&k);
        compile(&k, t,
                SETTINGS("memory.strategy=manual", "memory.recompute=full", "memory.chunk_tokens=0",
                         "train.eval_rows=2", "model.ffn=4096"));
        assert_int_equal(widest_rows(&k.p.program, 4096, SECTION_MICRO), 384);
        /* gate|up and act of 384 tokens against 64 in fp32, or up and act; less a gradient or two for their sums */
        assert_true(chunked + (4u << 20) < k.p.planned[TIER_DEVICE]);
        assert_true(fabs(flops / k.p.flops_per_step - 1) < 0.01 && fabs(again / k.p.flops_again - 1) < 1e-9);
        compiled_close(&k);
    }
}

static void wide_values_beside_adapters_exist_for_one_chunk_alone(void **state) {
    (void)state;
    static const char *const ways[] = {"model.lora.dropout=0", "model.lora.dropout=0.1", "model.lora.targets=up",
                                       "model.lora.targets=down"};
    for (size_t m = 0; m < ARRAY_LENGTH(training_presets); m++)
        for (size_t i = 0; i < ARRAY_LENGTH(ways); i++) {
            compiled k;
            training t = {.preset = training_presets[m], .seq_len = 128, .micro_batch = 3};
            compile(&k, t,
                    SETTINGS("memory.strategy=manual", "memory.recompute=full", "memory.chunk_tokens=64",
                             "train.eval_rows=2", "model.ffn=4096", "model.lora.rank=4", ways[i]));
            if (widest_rows(&k.p.program, 4096, SECTION_MICRO) != 64 ||
                widest_rows(&k.p.program, 4096, SECTION_EVAL) != 64)
                fail_msg("%s %s: wide values of %lld tokens", t.preset, ways[i],
                         (long long)widest_rows(&k.p.program, 4096, SECTION_MICRO));
            compiled_close(&k);
        }
}

static void as_many_tokens_as_there_are_is_no_chunk(void **state) {
    (void)state;
    compiled a, b;
    training t = {.preset = "test-qwen3", .seq_len = 64, .micro_batch = 2};
    compile(&a, t, SETTINGS("memory.strategy=manual", "memory.chunk_tokens=0"));
    compile(&b, t, SETTINGS("memory.strategy=manual", "memory.chunk_tokens=128"));
    assert_true(program_hash(&a.p.program) == program_hash(&b.p.program));
    compiled_close(&b);
    compile(&b, t, SETTINGS("memory.strategy=manual", "memory.chunk_tokens=65")); /* a multiple of 64: 128 */
    assert_true(program_hash(&a.p.program) == program_hash(&b.p.program));
    compiled_close(&b);
    compile(&b, t, SETTINGS("memory.strategy=manual", "memory.chunk_tokens=64"));
    assert_true(program_hash(&a.p.program) != program_hash(&b.p.program));
    compiled_close(&b);
    compiled_close(&a);
}

static void one_scale_for_all_tokens_refuses_chunks(void **state) {
    (void)state;
    compiled k;
    training t = {.preset = "test-llama", .seq_len = 128, .precision = PRECISION_FP8};
    t.more = SETTINGS("memory.strategy=manual", "memory.chunk_tokens=64");
    training_must(training_request(&t, &k.c, &k.r));
    assert_int_equal(plan_choose(&k.p, &k.r.plan), ERR_INPUT);
    assert_non_null(strstr(error_message(), "memory.chunk_tokens"));
    config_fini(&k.c);
}

/* A program of millions of ops would be the answer to a small number beside many tokens. */
static void more_chunks_than_a_program_holds_are_refused(void **state) {
    (void)state;
    compiled k;
    training t = {.preset = "test-llama", .seq_len = 128, .micro_batch = MLP_CHUNKS_MOST * 64 / 128};
    compile(&k, t, SETTINGS("memory.strategy=manual", "memory.chunk_tokens=64", "model.layers=1"));
    compiled_close(&k);
    t.micro_batch++;
    t.more = SETTINGS("memory.strategy=manual", "memory.chunk_tokens=64", "model.layers=1");
    training_must(training_request(&t, &k.c, &k.r));
    assert_int_equal(plan_choose(&k.p, &k.r.plan), ERR_INPUT);
    assert_non_null(strstr(error_message(), "memory.chunk_tokens: found 64, expected at least 128"));
    config_fini(&k.c);
}

/* With full recompute a layer keeps its input: (N, C) on the host, or on the device where it is one of the last. */
static void kept_layers_move_their_bytes_from_host_to_device(void **state) {
    (void)state;
    enum { LAYERS = 12, MOST = 9 };
    uint64_t host[MOST + 1], device[MOST + 1];
    training t = {.preset = "test-llama", .seq_len = 128, .micro_batch = 2};
    for (int n = 0; n <= MOST; n++) {
        compiled k;
        char keep[64];
        snprintf(keep, sizeof keep, "memory.offload.keep_layers=%d", n);
        compile(&k, t,
                SETTINGS("model.layers=12", "memory.strategy=manual", "memory.recompute=full",
                         "memory.offload.activations=host", keep));
        host[n] = k.p.planned[TIER_HOST];
        device[n] = k.p.planned[TIER_DEVICE];
        uint64_t layer = TOKENS * (uint64_t)model_of(&k.p.request.source)->hidden * sizeof(float);
        if (n > 3) { /* the last ones would not have left anyway */
            assert_true(host[n] < host[n - 1] && host[n - 1] - host[n] <= 2 * layer);
            assert_true(device[n] > device[n - 1] && device[n] - device[n - 1] <= 2 * layer);
        }
        compiled_close(&k);
    }
}

/* ---- the plan's own choice ------------------------------------------------------------------------------------------------- */

static plan_candidate choose(const char *device, const char *host, const char *chunk, bool *fits) {
    compiled k;
    training t = {.preset = "test-llama", .seq_len = 4096, .micro_batch = 1};
    compile(&k, t, SETTINGS("model.layers=12", "model.max_positions=4096", "model.ffn=2048", device, host, chunk));
    *fits = plan_fits(&k.p);
    plan_candidate c = plan_chosen(&k.p);
    memcpy(c.planned, k.p.planned, sizeof c.planned);
    compiled_close(&k);
    return c;
}

static void chunks_come_where_nothing_else_fits(void **state) {
    (void)state;
    bool fits;
    plan_candidate c = choose("memory.device=4G", "memory.host=4G", "memory.chunk_tokens=auto", &fits);
    assert_true(fits && c.choice.chunk_tokens == 0 && c.choice.recompute.kind == RECOMPUTE_NONE);
    /* gate|up and act of 4096 tokens alone: 100 MB */
    c = choose("memory.device=64M", "memory.host=4G", "memory.chunk_tokens=auto", &fits);
    assert_true(fits);
    assert_int_equal(c.choice.chunk_tokens, 1024);
    assert_true(c.planned[TIER_DEVICE] <= 64u << 20);
    c = choose("memory.device=64M", "memory.host=4G", "memory.chunk_tokens=0", &fits);
    assert_false(fits);
    assert_int_equal(c.choice.chunk_tokens, 0);
}

static void a_small_host_keeps_few_layers(void **state) {
    (void)state;
    bool fits;
    plan_candidate all = choose("memory.device=64M", "memory.host=4G", "memory.chunk_tokens=auto", &fits);
    assert_true(fits && all.choice.offload.activations == TIER_HOST && all.choice.keep_layers == 0);
    char host[64];
    uint64_t limit = all.planned[TIER_HOST] - (3u << 20); /* three layers' inputs of 4096 x 64 fp32 */
    snprintf(host, sizeof host, "memory.host=%llu", (unsigned long long)limit);
    plan_candidate c = choose("memory.device=66M", host, "memory.chunk_tokens=auto", &fits);
    assert_true(fits);
    assert_true(c.planned[TIER_HOST] <= limit && c.planned[TIER_DEVICE] <= 66u << 20);
    assert_true(c.choice.keep_layers > 0 || c.choice.recompute.kind == RECOMPUTE_NESTED);
}

/* Whether anything fits is asked for the ranks that there are: what one cannot hold four that share a row can. */
static void ranks_that_share_a_row_hold_a_longer_one(void **state) {
    (void)state;
    compiled k;
    training t = {.preset = "test-gpt2", .seq_len = 4096, .micro_batch = 1};
    compile(&k, t, SETTINGS("model.max_positions=4096", "memory.device=4G", "memory.host=4G"));
    plan_request r = k.r.plan;
    bool fits;
    r.hardware = NULL;
    r.device_limit = 12u << 20;
    training_must(plan_can_fit(&r, &fits));
    assert_false(fits);
    r.mesh.size[AXIS_SEQUENCE] = 4;
    training_must(plan_can_fit(&r, &fits));
    assert_true(fits);
    compiled_close(&k);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_added_to_what_is_there),
        cmocka_unit_test(chunks_are_equal_among_themselves),
        cmocka_unit_test(chunks_of_adapters_are_equal_among_themselves),
        cmocka_unit_test(an_uneven_last_chunk_counts_once),
        cmocka_unit_test(wide_values_exist_for_one_chunk_alone),
        cmocka_unit_test(wide_values_beside_adapters_exist_for_one_chunk_alone),
        cmocka_unit_test(as_many_tokens_as_there_are_is_no_chunk),
        cmocka_unit_test(one_scale_for_all_tokens_refuses_chunks),
        cmocka_unit_test(more_chunks_than_a_program_holds_are_refused),
        cmocka_unit_test(kept_layers_move_their_bytes_from_host_to_device),
        cmocka_unit_test(chunks_come_where_nothing_else_fits),
        cmocka_unit_test(a_small_host_keeps_few_layers),
        cmocka_unit_test(ranks_that_share_a_row_hold_a_longer_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
