/* test_critic.c - a critic against PyTorch: values of all tokens, three losses, and the gradients of every parameter of decoder and
 * head, of a model with a value head that is read from its files.
 *
 * The fixtures are made by tools/make_critic_fixtures.py. fp32 on both sides, sums in another order. */
#include "backend_choice.h"
#include "hf.h"
#include "model/model.h"
#include "must.h"
#include "programs.h"
#include "weightfile/weightfile.h"

#include <math.h>
#include <stdlib.h>

enum { ROWS = 2 };
static const char *const families[] = {"llama", "qwen3"}; /* heads: mlp, sigmoid */
static const struct {
    const char *name;
    critic_options options;
    double n; /* pairs, or solutions */
} cases[] = {{"pairwise", {.kind = CRITIC_PAIRWISE}, 3},
             {"lambda", {.kind = CRITIC_LAMBDA, .gamma = 0.9f, .lam = 0.8f}, 6},
             {"lambda_smooth", {.kind = CRITIC_LAMBDA, .gamma = 0.9f, .lam = 0.8f, .smooth = true}, 6}};

static const safetensor *get(const safetensors *f, const char *name) {
    const safetensor *t = safetensors_find(f, name);
    if (!t) fail_msg("%s has no tensor '%s'", f->path, name);
    return t;
}

static void open_critic(plan *p, exec **e, const char *dir, const safetensors *torch, const critic_options *o) {
    plan_request r = {.choice = {.micro_batch = ROWS, .accumulation = 1, .precision = PRECISION_FP32},
                      .seq_len = get(torch, "tokens")->shape.dim[1],
                      .critic = *o,
                      .with_eval = true,
                      .verify = true,
                      .optimizer = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .clip = 1},
                      .target = backend_target(backend_kind(backend_under_test()), 2)};
    model_config c;
    must(model_config_read(&c, dir));
    r.source = net_source_of(&c);
    assert_true(model_of(&r.source)->value_head != VALUE_HEAD_NONE);
    must(plan_build(p, &r));
    must(exec_open(e, &p->program, &(exec_options){.backend = backend_under_test(), .n_threads = 2}));
    must(weights_load_dir(*e, p, dir));
    const struct {
        const char *name;
        value_id to;
    } inputs[] = {{"tokens", p->net.tokens},
                  {"targets", p->net.targets},
                  {"doc_start", p->net.doc_start},
                  {"segments", p->net.segments}};
    for (size_t i = 0; i < ARRAY_LENGTH(inputs); i++) {
        const safetensor *t = get(torch, inputs[i].name);
        exec_write(*e, inputs[i].to, 0, t->data, t->n_bytes);
    }
    exec_write(*e, p->net.scalars, 0, &(step_scalars[]){step_scalars_of(1, 0)}, sizeof(step_scalars));
}

/* As a share of the size; of numbers that cancel, such as the gradient of a pair by the last bias, of 5e-3: 2e-5 of that is the
 * rounding of one or two terms of size one. */
static double distance(const float *got, const safetensor *t, int64_t n, double divided) {
    double d = 0, norm = 0;
    assert_int_equal(shape_count(&t->shape), n);
    for (int64_t i = 0; i < n; i++) {
        float want;
        memcpy(&want, (const float *)t->data + i, sizeof want);
        d += pow((double)got[i] / divided - (double)want, 2), norm += (double)want * (double)want;
    }
    return sqrt(d) / fmax(sqrt(norm), 5e-3);
}

static double check_gradients(exec *e, const plan *p, const safetensors *torch, size_t c) {
    double worst = 0;
    size_t n = 0;
    for (size_t i = 0; i < p->net.n_params; i++) {
        const net_param *q = &p->net.params[i];
        float *grad = value_read_f32(e, &p->program, p->step.grads[i]);
        int64_t columns = q->shape.rank == 2 ? q->shape.dim[1] : 1;
        for (int k = 0; k < q->n_parts; k++, n++) {
            char name[256];
            snprintf(name, sizeof name, "%s/g/%s", cases[c].name, q->parts[k].file_name);
            double error = distance(grad + q->parts[k].first_row * columns, get(torch, name),
                                    q->parts[k].n_rows * columns, cases[c].n);
            if (!(error < 2e-5)) fail_msg("the gradient of %s is off by %g", name, error);
            worst = fmax(worst, error);
        }
        free(grad);
    }
    assert_int_equal(n, (torch->n_tensors - 5 - ARRAY_LENGTH(cases)) / ARRAY_LENGTH(cases)); /* all of the fixture */
    return worst;
}

static void values_losses_and_gradients_equal_pytorch(void **state) {
    for (size_t f = 0; f < ARRAY_LENGTH(families); f++)
        for (size_t c = 0; c < ARRAY_LENGTH(cases); c++) {
            char dir[512], path[600], name[64];
            safetensors torch;
            plan p;
            exec *e;
            double sums[CRITIC_SUM_COUNT];
            float want;
            snprintf(dir, sizeof dir, "%s/critic/%s", TEST_FIXTURES, families[f]);
            snprintf(path, sizeof path, "%s/torch.safetensors", dir);
            must(safetensors_open(&torch, path));
            open_critic(&p, &e, dir, &torch, &cases[c].options);
            must(exec_run(e, SECTION_EVAL));
            float *values = value_read_f32(e, &p.program, p.net.eval_values);
            double of_values = distance(values, get(&torch, "values"), ROWS * p.request.seq_len, 1);
            assert_true(of_values < 1e-6);
            free(values);
            must(exec_run(e, SECTION_MICRO));
            exec_read(e, p.step.loss_sums, 0, sums, sizeof sums);
            snprintf(name, sizeof name, "%s/loss", cases[c].name);
            memcpy(&want, get(&torch, name)->data, sizeof want);
            assert_true(sums[SUM_VALID] == cases[c].n);
            assert_true(fabs(sums[SUM_LOSS] / sums[SUM_VALID] - (double)want) < 1e-6);
            double worst = check_gradients(e, &p, &torch, c);
            print_message("%-5s %-13s loss %.4f; values within %.0e, gradients within %.0e\n", families[f],
                          cases[c].name, (double)want, of_values, worst);
            exec_close(e);
            plan_close(&p);
            safetensors_close(&torch);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(values_losses_and_gradients_equal_pytorch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
