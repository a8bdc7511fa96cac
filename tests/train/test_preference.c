/* test_preference.c - the losses over preferences against TRL: losses, rewards, log-probabilities and gradients of one batch.
 *
 * The fixtures are made by tools/make_preference_fixtures.py, which says where TRL's own definition is another and what is
 * compared instead. fp32 on both sides, sums in another order; ipo's squares are about 25, so bounds are of 1 + the size. */
#include "backend_choice.h"
#include "hf.h"
#include "model/model.h"
#include "must.h"
#include "programs.h"
#include "weightfile/weightfile.h"
#include "weights/adapter.h"

#include <math.h>
#include <stdlib.h>

static const char *const families[] = {"qwen3", "llama"};
enum { ROWS = 2 };

typedef struct trl_case {
    const char *name, *rows;
    preference_options options;
    reference_kind reference;
} trl_case;
#define PAIR(k, b) \
    { .kind = k, .beta = b }
static const trl_case cases[] = {
    {"dpo", "pairs", PAIR(PREFERENCE_DPO, 0.1f), REFERENCE_COPY},
    {"dpo_smooth", "pairs", {.kind = PREFERENCE_DPO, .beta = 0.1f, .smoothing = 0.2f}, REFERENCE_COPY},
    {"ipo", "pairs", PAIR(PREFERENCE_IPO, 0.1f), REFERENCE_COPY},
    {"orpo", "pairs", {.kind = PREFERENCE_ORPO, .beta = 0.1f, .lambda = 0.1f}, REFERENCE_NONE},
    {"simpo", "pairs", {.kind = PREFERENCE_SIMPO, .beta = 2, .gamma = 1}, REFERENCE_NONE},
    {"kto",
     "single",
     {.kind = PREFERENCE_KTO, .beta = 0.1f, .lambda_good = 1.25f, .lambda_bad = 0.75f},
     REFERENCE_COPY},
    {"lora_dpo", "pairs", PAIR(PREFERENCE_DPO, 0.1f), REFERENCE_BASE},
    {"lora_kto",
     "single",
     {.kind = PREFERENCE_KTO, .beta = 0.1f, .lambda_good = 1.25f, .lambda_bad = 0.75f},
     REFERENCE_BASE},
};

typedef struct bench {
    const trl_case *c;
    const char *family;
    char dir[512];
    safetensors trl;
    plan plan;
    exec *e;
} bench;

static const safetensor *get(const bench *b, const char *group, const char *name) {
    char full[256];
    snprintf(full, sizeof full, "%s/%s", group, name);
    const safetensor *t = safetensors_find(&b->trl, full);
    if (!t) fail_msg("%s: the fixture has no tensor '%s'", b->dir, full);
    return t;
}

static double number(const bench *b, const char *name, int i) {
    float x;
    memcpy(&x, (const float *)get(b, b->c->name, name)->data + i, sizeof x);
    return x;
}

/* The frozen copy begins as the model does, so: the reference, kept aside, then the policy. */
static void load_models(bench *b) {
    const net *m = &b->plan.net;
    float **kept = mem_alloc(m->n_params * sizeof *kept);
    if (b->c->reference == REFERENCE_COPY) must(weights_load(b->e, &b->plan, &b->trl, 1, "reference/"));
    for (size_t i = 0; i < m->n_params; i++)
        if (m->params[i].of_reference) kept[i] = value_read_f32(b->e, &b->plan.program, m->params[i].value);
    must(weights_load_dir(b->e, &b->plan, b->dir));
    for (size_t i = 0; i < m->n_params; i++) {
        if (!kept[i]) continue;
        assert_true(m->params[i].frozen);
        exec_write(b->e, m->params[i].value, 0, kept[i],
                   value_bytes(program_get(&b->plan.program, m->params[i].value)));
        free(kept[i]);
    }
    free(kept);
}

static void bench_open(bench *b, const char *family, const trl_case *c) {
    char path[600];
    *b = (bench){.c = c, .family = family};
    snprintf(b->dir, sizeof b->dir, "%s/preference/%s", TEST_FIXTURES, family);
    snprintf(path, sizeof path, "%s/trl.safetensors", b->dir);
    must(safetensors_open(&b->trl, path));
    snprintf(path, sizeof path, "%s/adapter", b->dir);
    bool lora = c->reference == REFERENCE_BASE;
    plan_request r = {.choice.micro_batch = ROWS,
                      .choice.accumulation = 1,
                      .seq_len = get(b, c->rows, "tokens")->shape.dim[1],
                      .choice.precision = PRECISION_FP32,
                      .preference = c->options,
                      .reference = c->reference,
                      .verify = true,
                      .optimizer = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .clip = 1},
                      .target = backend_target(backend_kind(backend_under_test()), 2)};
    model_config config;
    must(model_config_read(&config, b->dir));
    r.source = net_source_of(&config);
    if (lora) {
        adapter_config a;
        must(adapter_config_read(&a, model_of(&r.source), path));
        r.lora = a.lora;
    }
    must(plan_build(&b->plan, &r));
    must(exec_open(&b->e, &b->plan.program, &(exec_options){.backend = backend_under_test(), .n_threads = 2}));
    load_models(b);
    if (lora) must(adapter_load_dir(b->e, &b->plan, path));
}

static void bench_close(bench *b) {
    exec_close(b->e);
    plan_close(&b->plan);
    safetensors_close(&b->trl);
}

static void run_micro_batch(bench *b) {
    const net *m = &b->plan.net;
    const struct {
        const char *name;
        value_id to;
    } inputs[] = {
        {"tokens", m->tokens}, {"targets", m->targets}, {"doc_start", m->doc_start}, {"segments", m->segments}};
    for (size_t i = 0; i < ARRAY_LENGTH(inputs); i++) {
        const safetensor *t = get(b, b->c->rows, inputs[i].name);
        exec_write(b->e, inputs[i].to, 0, t->data, t->n_bytes);
    }
    exec_write(b->e, m->scalars, 0, &(step_scalars[]){step_scalars_of(1, 0)}, sizeof(step_scalars));
    must(exec_run(b->e, SECTION_MICRO));
}

static double check_number(const bench *b, const char *what, double got, double want) {
    double error = fabs(got - want) / (1 + fabs(want));
    if (!(error < 1e-5)) fail_msg("%s %s: %s is %.7f, TRL has %.7f", b->family, b->c->name, what, got, want);
    return error;
}

/* The largest error of the loss, rewards, and log-probabilities; orpo and simpo of TRL report the latter per token. */
static double check_sums(bench *b) {
    double sums[PREFERENCE_SUM_COUNT];
    exec_read(b->e, b->plan.step.loss_sums, 0, sums, sizeof sums);
    assert_true(sums[SUM_VALID] == 3);
    double worst = check_number(b, "the loss", sums[SUM_LOSS] / sums[SUM_VALID], number(b, "loss", 0));
    for (int side = 0; side < 2; side++) {
        double n = sums[SUM_CHOSEN + side];
        worst = fmax(worst, check_number(b, side ? "rewards/rejected" : "rewards/chosen",
                                         sums[SUM_REWARD_CHOSEN + side] / n, number(b, "rewards", side)));
        if (!preference_compares(b->c->options.kind)) continue;
        worst = fmax(worst, check_number(b, side ? "logps/rejected" : "logps/chosen", sums[SUM_LOGP_CHOSEN + side] / n,
                                         number(b, "logps", side)));
    }
    if (b->c->options.kind == PREFERENCE_KTO)
        worst = fmax(worst, check_number(b, "kl", sums[SUM_KL] / sums[SUM_VALID] / (double)b->c->options.beta,
                                         number(b, "kl", 0)));
    return worst;
}

/* ||ours - TRL's|| / ||TRL's|| of one Hugging Face tensor, which lies in rows of a packed parameter; -1: not in the fixture. */
static double part_error(const bench *b, const net_param *q, const param_part *part, const float *grad) {
    char name[256];
    snprintf(name, sizeof name, "%s/g/%s%s", b->c->name, q->adapter ? "base_model.model." : "", part->file_name);
    const safetensor *t = safetensors_find(&b->trl, name);
    if (!t) return -1;
    int64_t columns = q->shape.rank == 2 ? q->shape.dim[1] : 1;
    assert_int_equal(shape_count(&t->shape), part->n_rows * columns);
    double distance = 0, norm = 0;
    for (int64_t i = 0; i < part->n_rows * columns; i++) {
        float want;
        memcpy(&want, (const float *)t->data + i, sizeof want);
        double got = grad[part->first_row * columns + i] / 3.0; /* the mean over three examples */
        distance += pow(got - want, 2), norm += (double)want * want;
    }
    assert_true(norm > 0);
    return sqrt(distance / norm);
}

static double check_gradients(bench *b) {
    double worst = 0;
    int n = 0;
    for (size_t i = 0; i < b->plan.net.n_params; i++) {
        const net_param *q = &b->plan.net.params[i];
        if (q->frozen) {
            assert_true(b->plan.step.grads[i] == NO_VALUE);
            continue;
        }
        float *grad = value_read_f32(b->e, &b->plan.program, b->plan.step.grads[i]);
        for (int k = 0; k < q->n_parts; k++) {
            double error = part_error(b, q, &q->parts[k], grad);
            if (error < 0) continue;
            if (!(error < 1e-4))
                fail_msg("%s %s: the gradient of %s is off by %g", b->family, b->c->name, q->parts[k].file_name, error);
            worst = fmax(worst, error);
            n++;
        }
        free(grad);
    }
    assert_int_equal(n, b->c->reference == REFERENCE_BASE ? 8 : 5); /* all of the fixture were met */
    return worst;
}

static void losses_rewards_and_gradients_equal_trl(void **state) {
    for (size_t f = 0; f < ARRAY_LENGTH(families); f++)
        for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
            bench b;
            bench_open(&b, families[f], &cases[i]);
            run_micro_batch(&b);
            double sums = check_sums(&b), gradients = check_gradients(&b);
            print_message("%-5s %-10s loss %.4f; loss and rewards within %.0e, gradients within %.0e\n", families[f],
                          cases[i].name, number(&b, "loss", 0), sums, gradients);
            bench_close(&b);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_rewards_and_gradients_equal_trl),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
