/* test_policy_trl.c - one update on completions against TRL: its own loss functions, and the gradient by every parameter, for five
 * rows of rl.loss.
 *
 * The fixture is made by tools/make_policy_fixtures.py, in fp64 with TRL 1.16.0; models and rows are those of two_models. fp32 sums of
 * some hundred products differ from them by a few 1e-7 of their size; the bound is 1e-5. */
#include "backend_choice.h"
#include "family_fixtures.h"
#include "must.h"
#include "param_fixtures.h"
#include "programs.h"
#include "weightfile/weightfile.h"
#include "weights/load.h"
#include "weights/params.h"

#include <math.h>
#include <stdlib.h>

#define NAME "llama_untied_gqa"
enum { LENGTH = 16 };

/* As CASES of the script. */
typedef struct policy_case {
    const char *name;
    policy_options o;
} policy_case;
static const policy_case cases[] = {
    {"rloo", {true, true, POLICY_SEQUENCE, POLICY_OF_COMPLETIONS, 0.2f, 0.28f, 0, 0, LENGTH, 0.7f}},
    {"grpo", {true, true, POLICY_TOKEN, POLICY_OF_COMPLETIONS, 0.2f, 0.2f, 0.1f, 1.1f, LENGTH, 1}},
    {"dr_grpo", {true, true, POLICY_TOKEN, POLICY_OF_LENGTH, 0.2f, 0.2f, 0, 0, LENGTH, 1}},
    {"dapo", {true, true, POLICY_TOKEN, POLICY_OF_TOKENS, 0.2f, 0.28f, 0.05f, 0, LENGTH, 1.3f}},
    {"gspo", {true, true, POLICY_MEAN, POLICY_OF_COMPLETIONS, 0.05f, 0.1f, 0, 0, LENGTH, 1}},
};

typedef struct machine {
    safetensors model, file;
    plan plan;
    exec *e;
} machine;

static void write_input(const machine *m, const safetensors *f, value_id v, const char *prefix, const char *name) {
    const safetensor *t = fixture_tensor(f, prefix, name);
    if (v) exec_write(m->e, v, 0, t->data, t->n_bytes);
}

static void machine_open(machine *m, const policy_case *c, recompute_kind recompute) {
    const backend *b = backend_under_test();
    must(safetensors_open(&m->model, TEST_FIXTURES "/two_models/" NAME ".safetensors"));
    must(safetensors_open(&m->file, TEST_FIXTURES "/policy/" NAME ".safetensors"));
    const safetensor *tokens = safetensors_find(&m->model, "tokens");
    model_config config = family_config(&m->model, NAME);
    plan_request r = {.source = net_source_of(&config),
                      .choice.micro_batch = tokens->shape.dim[0],
                      .choice.accumulation = 1,
                      .choice.recompute.kind = recompute,
                      .seq_len = tokens->shape.dim[1],
                      .verify = true,
                      .policy = c->o,
                      .reference = c->o.beta > 0 ? REFERENCE_COPY : REFERENCE_NONE,
                      .optimizer = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .clip = 1},
                      .logits_chunk_bytes = 4096, /* several chunks even for these small models */
                      .target = backend_target(backend_kind(b), 2)};
    must(plan_build(&m->plan, &r));
    must(exec_open(&m->e, &m->plan.program, &(exec_options){.backend = b, .n_threads = 2}));
    must(weights_load(m->e, &m->plan, &m->model, 1, "w/"));
    fixture_load(m->e, &m->plan, &m->model, "r/", true);
}

static void machine_close(machine *m) {
    exec_close(m->e);
    plan_close(&m->plan);
    safetensors_close(&m->file);
    safetensors_close(&m->model);
}

static void run_update(const machine *m, const char *prefix) {
    const net *to = &m->plan.net;
    step_scalars s = step_scalars_of(1, 0);
    write_input(m, &m->model, to->tokens, "", "tokens");
    write_input(m, &m->model, to->targets, "", "targets");
    write_input(m, &m->model, to->doc_start, "", "doc");
    write_input(m, &m->file, to->segments, "", "segments");
    write_input(m, &m->file, to->advantages, "", "advantages");
    write_input(m, &m->file, to->rollout, "", "rollout");
    write_input(m, &m->file, to->old, prefix, "old");
    exec_write(m->e, to->scalars, 0, &s, sizeof s);
    must(exec_run(m->e, SECTION_MICRO));
}

static void updates_equal_those_of_trl(void **state) {
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++)
        for (recompute_kind k = RECOMPUTE_NONE; k <= RECOMPUTE_FULL; k += RECOMPUTE_FULL - RECOMPUTE_NONE) {
            machine m;
            double sums[POLICY_SUM_COUNT];
            size_t n;
            char prefix[32], gradients[40];
            snprintf(prefix, sizeof prefix, "%s/", cases[i].name);
            snprintf(gradients, sizeof gradients, "%s/g/", cases[i].name);
            machine_open(&m, &cases[i], k);
            run_update(&m, prefix);
            exec_read(m.e, m.plan.step.loss_sums, 0, sums, sizeof sums);
            double loss = (double)*(const float *)fixture_tensor(&m.file, prefix, "loss")->data,
                   found = sums[SUM_LOSS] / sums[SUM_VALID];
            double error = fixture_gradient_error(m.e, &m.plan, &m.file, gradients, sums[SUM_VALID], &n);
            print_message("%-8s loss %.6f, TRL %.6f; %zu gradients within %.1e\n", cases[i].name, found, loss, n,
                          error);
            /* Terms of size one that cancel: an advantage times a ratio. Of a whole completion that is the exponential of a sum of
             * log-probabilities, whose rounding is some 1e-6. */
            assert_true(fabs(found - loss) <= 5e-6);
            assert_true(n > 0 && error < 1e-5);
            const float *clip = fixture_tensor(&m.file, prefix, "clip")->data; /* low, high, kl */
            double of = cases[i].o.level == POLICY_TOKEN ? sums[SUM_POLICY_TOKENS] : sums[SUM_POLICY_COMPLETIONS];
            assert_true(fabs(sums[SUM_POLICY_LOW] / of - (double)clip[0]) < 1e-6);
            assert_true(fabs(sums[SUM_POLICY_HIGH] / of - (double)clip[1]) < 1e-6);
            assert_true(fabs(sums[SUM_POLICY_KL] / sums[SUM_POLICY_TOKENS] - (double)clip[2]) < 1e-5);
            machine_close(&m);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(updates_equal_those_of_trl)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
