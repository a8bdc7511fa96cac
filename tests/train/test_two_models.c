/* test_two_models.c - a policy and a reference with other weights in one program, and weights of tokens, against PyTorch in
 * fp64: losses of both models, losses of pairs, and every gradient.
 *
 * The fixtures are made by tools/make_two_model_fixtures.py. fp32 sums of some hundred products differ from them by a few
 * 1e-7 of their size; the bound is 1e-5. */
#include "backend_choice.h"
#include "family_fixtures.h"
#include "must.h"
#include "param_fixtures.h"
#include "programs.h"
#include "train/batch.h"
#include "weightfile/weightfile.h"
#include "weights/load.h"
#include "weights/params.h"

#include <math.h>
#include <stdlib.h>

static const char *const fixtures[] = {"llama_untied_gqa", "qwen3_tied_gqa"};

typedef struct machine {
    safetensors file;
    plan plan;
    exec *e;
} machine;

static const safetensor *get(const machine *m, const char *name) { return fixture_tensor(&m->file, "", name); }

static void write_input(const machine *m, value_id v, const char *name) {
    const safetensor *t = get(m, name);
    exec_write(m->e, v, 0, t->data, t->n_bytes);
}

static void machine_open(machine *m, const char *name, bool pairs, int accumulation, recompute_kind recompute) {
    char path[512];
    const backend *b = backend_under_test();
    snprintf(path, sizeof path, "%s/two_models/%s.safetensors", TEST_FIXTURES, name);
    must(safetensors_open(&m->file, path));
    const safetensor *tokens = get(m, "tokens");
    model_config config = family_config(&m->file, name);
    plan_request r = {.source = net_source_of(&config),
                      .choice.micro_batch = tokens->shape.dim[0],
                      .choice.accumulation = accumulation,
                      .choice.recompute.kind = recompute,
                      .seq_len = tokens->shape.dim[1],
                      .with_eval = true,
                      .verify = true,
                      .token_weights = !pairs,
                      .optimizer = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .clip = 1},
                      .logits_chunk_bytes = 4096, /* several chunks even for these small models */
                      .target = backend_target(backend_kind(b), 2)};
    if (pairs) r.preference = (preference_options){.kind = PREFERENCE_DPO, .beta = 0.1f}, r.reference = REFERENCE_COPY;
    must(plan_build(&m->plan, &r));
    must(exec_open(&m->e, &m->plan.program, &(exec_options){.backend = b, .n_threads = 2}));
    must(weights_load(m->e, &m->plan, &m->file, 1, "w/"));
    fixture_load(m->e, &m->plan, &m->file, "r/", true); /* the weights of the policy were loaded for both */
}

static void machine_close(machine *m) {
    exec_close(m->e);
    plan_close(&m->plan);
    safetensors_close(&m->file);
}

static void write_inputs(const machine *m) {
    const net *to = &m->plan.net;
    step_scalars s = step_scalars_of(1, 0);
    write_input(m, to->tokens, "tokens");
    write_input(m, to->targets, "targets");
    write_input(m, to->doc_start, "doc");
    if (to->segments) write_input(m, to->segments, "segments");
    if (to->weights) write_input(m, to->weights, "weights");
    exec_write(m->e, to->scalars, 0, &s, sizeof s);
}

static double largest_difference(const float *found, const float *want, int64_t n) {
    double worst = 0;
    for (int64_t i = 0; i < n; i++)
        if (!(fabs((double)found[i] - want[i]) <= worst)) worst = fabs((double)found[i] - want[i]);
    return worst;
}

/* Losses of evaluation: of the policy, and of the reference with its own weights. */
static void check_losses(const machine *m) {
    const safetensor *losses = get(m, "losses"), *reference = get(m, "losses_r");
    int64_t n = shape_count(&losses->shape);
    must(exec_run(m->e, SECTION_EVAL));
    float *found = value_read_f32(m->e, &m->plan.program, m->plan.net.eval_losses);
    float *other = value_read_f32(m->e, &m->plan.program, m->plan.net.eval_reference);
    assert_true(largest_difference(found, losses->data, n) < 1e-5);
    assert_true(largest_difference(other, reference->data, n) < 1e-5);
    free(found);
    free(other);
}

/* Two models in one program: the gradient of the loss over pairs goes to one of them. */
static void pairs_of_two_models_equal_pytorch(void **state) {
    for (size_t i = 0; i < ARRAY_LENGTH(fixtures); i++)
        for (recompute_kind k = RECOMPUTE_NONE; k <= RECOMPUTE_FULL; k += RECOMPUTE_FULL - RECOMPUTE_NONE) {
            machine m;
            double sums[PREFERENCE_SUM_COUNT], want = 0;
            size_t n;
            machine_open(&m, fixtures[i], true, 1, k);
            write_inputs(&m);
            uint64_t before = params_hash(m.e, &m.plan, NULL);
            must(exec_run(m.e, SECTION_MICRO));
            exec_read(m.e, m.plan.step.loss_sums, 0, sums, sizeof sums);
            const safetensor *dpo = get(&m, "dpo");
            for (int64_t p = 0; p < shape_count(&dpo->shape); p++) want += ((const float *)dpo->data)[p];
            double error = fixture_gradient_error(m.e, &m.plan, &m.file, "gd/", 1, &n);
            print_message("%-18s %zu gradients of pairs within %.1e, loss within %.1e\n", fixtures[i], n, error,
                          fabs(sums[SUM_WEIGHTED_LOSS] / want - 1));
            assert_true(sums[SUM_VALID] == (double)shape_count(&dpo->shape));
            assert_true(fabs(sums[SUM_WEIGHTED_LOSS] / want - 1) < 1e-5);
            assert_true(n > 0 && error < 1e-5);
            check_losses(&m);
            assert_true(params_hash(m.e, &m.plan, NULL) == before);
            machine_close(&m);
        }
}

/* Weights 0, 0.3 and 2: the sum is divided by the valid tokens after the step, so here it is not divided yet. */
static void weights_of_tokens_equal_pytorch(void **state) {
    for (size_t i = 0; i < ARRAY_LENGTH(fixtures); i++)
        for (int accumulation = 1; accumulation <= 2; accumulation++) {
            machine m;
            double sums[SUM_COUNT];
            size_t n;
            float want;
            machine_open(&m, fixtures[i], false, accumulation, RECOMPUTE_NONE);
            write_inputs(&m);
            must(exec_run(m.e, SECTION_MICRO));
            exec_read(m.e, m.plan.step.loss_sums, 0, sums, sizeof sums);
            memcpy(&want, get(&m, "weighted")->data, sizeof want);
            double error = fixture_gradient_error(m.e, &m.plan, &m.file, "gw/", sums[SUM_VALID], &n);
            print_message("%-18s %zu weighted gradients within %.1e\n", fixtures[i], n, error);
            assert_true(fabs(sums[SUM_WEIGHTED_LOSS] / sums[SUM_VALID] / (double)want - 1) < 1e-5);
            assert_true(n > 0 && error < 1e-5);
            machine_close(&m);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs_of_two_models_equal_pytorch),
        cmocka_unit_test(weights_of_tokens_equal_pytorch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
