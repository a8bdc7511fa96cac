/* test_families.c - every family against PyTorch: logits, losses, every gradient, 20 AdamW steps.
 *
 * The fixtures are tiny random models with two or more packed documents per row, made by tools/make_family_fixtures.py;
 * their metadata holds the shapes and the versions that made them. The comparison goes through the whole house: config ->
 * model -> passes -> layout -> exec -> CPU kernels. */
#include "backend_choice.h"
#include "family_fixtures.h"
#include "model/model.h"
#include "must.h"
#include "programs.h"
#include "weightfile/weightfile.h"
#include "weights/load.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

#define LR 1e-3f
#define BETA1 0.9
#define BETA2 0.95

static const char *const fixtures[] = {
    "gpt2_tied",      "gpt2_untied",  "llama_untied_gqa", "llama_tied_rope3", "qwen2_tied_gqa", "qwen2_untied",
    "qwen3_tied_gqa", "qwen3_untied", "mistral_window",   "qwen2_window",     "phi3",           "olmo2",
    "gemma2",         "gemma3",       "llama_yarn",       "phi3_long",        "phi4_mini",      "llama_longrope"};

typedef struct family {
    const char *name;
    safetensors file;
    model_config config;
    plan plan;
    exec *e;
    int64_t n_tokens;
} family;

static const safetensor *get(const family *f, const char *name) {
    const safetensor *t = safetensors_find(&f->file, name);
    if (!t) fail_msg("%s: fixture has no tensor '%s'", f->name, name);
    return t;
}

/* base: how the linear layers are stored; in fewer bits beside adapters that add nothing, for weights that are trained have numbers. */
static void family_open_base(family *f, const char *name, precision q, base_format base) {
    char path[512];
    *f = (family){.name = name};
    snprintf(path, sizeof path, "%s/%s.safetensors", TEST_FIXTURES, name);
    must(safetensors_open(&f->file, path));
    f->config = family_config(&f->file, f->name);
    const safetensor *tokens = get(f, "tokens");
    f->n_tokens = shape_count(&tokens->shape);
    const backend *b = backend_under_test();
    plan_request r = {
        .source = net_source_of(&f->config),
        .choice.micro_batch = tokens->shape.dim[0],
        .choice.accumulation = 1,
        .seq_len = tokens->shape.dim[1],
        .choice.precision = q,
        .with_eval = true,
        .verify = true,
        .base = base,
        .optimizer = {.beta1 = (float)BETA1, .beta2 = (float)BETA2, .eps = 1e-8f, .weight_decay = 0.1f, .clip = 1.0f},
        .logits_chunk_bytes = 4096, /* several chunks even for these small models */
        .target = backend_target(backend_kind(b), 2)};
    if (base != BASE_COMPUTE) r.lora = (lora_options){.rank = 1, .alpha = 1, .modules = (1u << LORA_MODULE_COUNT) - 1};
    must(plan_build(&f->plan, &r));
    must(exec_open(&f->e, &f->plan.program, &(exec_options){.backend = b, .n_threads = 2}));
    must(weights_load(f->e, &f->plan, &f->file, 1, "w/"));
    size_t n = (size_t)f->n_tokens * 4;
    exec_write(f->e, f->plan.net.tokens, 0, tokens->data, n);
    exec_write(f->e, f->plan.net.targets, 0, get(f, "targets")->data, n);
    exec_write(f->e, f->plan.net.doc_start, 0, get(f, "doc")->data, n);
}

static void family_open(family *f, const char *name, precision q) { family_open_base(f, name, q, BASE_COMPUTE); }

static void family_close(family *f) {
    exec_close(f->e);
    plan_close(&f->plan);
    safetensors_close(&f->file);
}

static float *read_f32(const family *f, value_id v) { return value_read_f32(f->e, &f->plan.program, v); }

static void write_scalars(const family *f, int step) {
    step_scalars s = step_scalars_of((uint32_t)step, 0);
    s.lr = LR;
    s.bias1 = (float)(1 - pow(BETA1, step));
    s.bias2 = (float)(1 - pow(BETA2, step));
    exec_write(f->e, f->plan.net.scalars, 0, &s, sizeof s);
}

static double n_valid(const family *f) {
    const int32_t *targets = get(f, "targets")->data;
    double n = 0;
    for (int64_t i = 0; i < f->n_tokens; i++) n += targets[i] >= 0;
    return n;
}

/* Fixtures that the device can run. */
static bool runs_here(const char *name) { return !backend_under_test()->discrete || strcmp(name, "olmo2") != 0; }

static double capped(const model_config *c, double logit) {
    return c->final_softcap > 0 ? c->final_softcap * tanh(logit / c->final_softcap) : logit;
}

/* The program never holds (tokens, vocabulary); the test multiplies the last hidden states itself. */
static double largest_logit_error(const family *f, const float *want) {
    const model_config *c = &f->config;
    float *h = read_f32(f, program_find(&f->plan.program, "eval.final_norm"));
    float *w = read_f32(f, program_find(&f->plan.program, c->tied ? "embed.w" : "unembed.w"));
    double worst = 0;
    for (int64_t t = 0; t < f->n_tokens; t++)
        for (int64_t v = 0; v < c->vocab; v++) {
            double sum = 0;
            for (int64_t k = 0; k < c->hidden; k++) sum += (double)h[t * c->hidden + k] * w[v * c->hidden + k];
            worst = fmax(worst, fabs(capped(c, sum) - want[t * c->vocab + v]));
        }
    free(h);
    free(w);
    return worst;
}

static double largest_loss_error(const family *f, const char *reference) {
    float *losses = read_f32(f, f->plan.net.eval_losses);
    const float *want = get(f, reference)->data;
    const int32_t *targets = get(f, "targets")->data;
    double worst = 0;
    for (int64_t t = 0; t < f->n_tokens; t++) {
        if (targets[t] < 0) assert_true(losses[t] == 0);
        else worst = fmax(worst, fabs((double)losses[t] - want[t]));
    }
    free(losses);
    return worst;
}

static void logits_and_losses_equal_pytorch(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LENGTH(fixtures); i++) {
        if (!runs_here(fixtures[i])) continue;
        family f;
        family_open(&f, fixtures[i], PRECISION_FP32);
        exec_run(f.e, SECTION_EVAL);
        double logits = largest_logit_error(&f, get(&f, "logits")->data), losses = largest_loss_error(&f, "losses");
        print_message("%-18s fp32: logits within %.1e, losses within %.1e\n", f.name, logits, losses);
        assert_true(logits < 1e-4);
        assert_true(losses < 1e-4);
        family_close(&f);
    }
}

/* A base in fewer bits against bitsandbytes (tools/make_quantized_logits.py): nf4 is its Linear4bit with blocks of 64 and double
 * quantisation, int8 its codes and scales with products of whole activations, fp8 torch's numbers. Logits are of size 5 and equal but for the
 * rounding of fp32. LLM.int8() also rounds activations to 8 bits, by the largest of a token: 1/254 of that for each input of every layer,
 * which these models bring to 0.1 in the logits; so it is near, and not equal. */
static void logits_of_bases_in_fewer_bits_equal_bitsandbytes(void **state) {
    static const char *const models[] = {"llama_untied_gqa", "qwen3_untied"};
    static const struct {
        const char *name;
        base_format format;
        double least, most;
    } cases[] = {{"nf4", BASE_NF4, 0, 1e-4},
                 {"int8", BASE_INT8, 0, 1e-4},
                 {"fp8", BASE_FP8, 0, 1e-4},
                 {"llm_int8", BASE_INT8, 1e-3, 0.15}};
    char name[600];
    safetensors file;
    (void)state;
    snprintf(name, sizeof name, "%s/quantized_logits.safetensors", TEST_FIXTURES);
    must(safetensors_open(&file, name));
    for (size_t m = 0; m < ARRAY_LENGTH(models); m++)
        for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
            family f;
            family_open_base(&f, models[m], PRECISION_FP32, cases[i].format);
            must(exec_run(f.e, SECTION_EVAL));
            snprintf(name, sizeof name, "%s.%s", models[m], cases[i].name);
            const safetensor *want = safetensors_find(&file, name);
            assert_non_null(want);
            assert_int_equal(shape_count(&want->shape), f.n_tokens * f.config.vocab);
            double error = largest_logit_error(&f, want->data),
                   whole = largest_logit_error(&f, get(&f, "logits")->data);
            print_message("%-26s logits within %.1e; of the model in fp32 within %.2f\n", name, error, whole);
            if (!(error >= cases[i].least && error < cases[i].most)) fail_msg("%s: logits differ by %g", name, error);
            family_close(&f);
        }
    safetensors_close(&file);
}

/* Cosine of one Hugging Face tensor's gradient with ours, which lies in rows of a packed and maybe turned parameter. */
static double part_cosine(const family *f, const net_param *q, const param_part *part, const float *grad, double scale,
                          double *worst) {
    char name[256];
    snprintf(name, sizeof name, "g/%s", part->file_name);
    const float *want = get(f, name)->data;
    const shape *s = &program_get(&f->plan.program, q->value)->shape;
    int64_t columns = s->rank == 2 ? s->dim[1] : 1;
    double ab = 0, aa = 0, bb = 0;
    for (int64_t r = 0; r < part->n_rows; r++)
        for (int64_t c = 0; c < columns; c++) {
            double a = grad[(part->first_row + r) * columns + c] * scale;
            double b = q->transposed && s->rank == 2 ? want[c * part->n_rows + r] : want[r * columns + c];
            ab += a * b, aa += a * a, bb += b * b;
            *worst = fmax(*worst, fabs(a - b));
        }
    return ab / sqrt(aa * bb);
}

static double smallest_gradient_cosine(const family *f, double *worst) {
    double smallest = 1, scale = 1 / n_valid(f);
    *worst = 0;
    for (size_t i = 0; i < f->plan.net.n_params; i++) {
        const net_param *q = &f->plan.net.params[i];
        float *grad = read_f32(f, f->plan.step.grads[i]);
        for (int k = 0; k < q->n_parts; k++)
            smallest = fmin(smallest, part_cosine(f, q, &q->parts[k], grad, scale, worst));
        free(grad);
    }
    return smallest;
}

static void every_gradient_equals_pytorch(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LENGTH(fixtures); i++) {
        if (!runs_here(fixtures[i])) continue;
        family f;
        double worst;
        family_open(&f, fixtures[i], PRECISION_FP32);
        write_scalars(&f, 1);
        exec_run(f.e, SECTION_MICRO);
        double cosine = smallest_gradient_cosine(&f, &worst);
        print_message("%-18s fp32: gradient cosine at least 1 - %.1e, entries within %.1e\n", f.name, 1 - cosine,
                      worst);
        assert_true(cosine > 0.99999);
        family_close(&f);
    }
}

static void twenty_adamw_steps_equal_pytorch(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LENGTH(fixtures); i++) {
        if (!runs_here(fixtures[i])) continue;
        family f;
        family_open(&f, fixtures[i], PRECISION_FP32);
        const float *want = get(&f, "loss_steps")->data, *norms = get(&f, "norm_steps")->data;
        double worst = 0, worst_norm = 0;
        for (int step = 1; step <= 20; step++) {
            float clip[CLIP_COUNT];
            write_scalars(&f, step);
            exec_run(f.e, SECTION_MICRO);
            exec_run(f.e, SECTION_UPDATE);
            exec_read(f.e, f.plan.step.clip, 0, clip, sizeof clip);
            worst = fmax(worst, fabs((double)clip[CLIP_LOSS] - want[step - 1]));
            worst_norm = fmax(worst_norm, fabs((double)clip[CLIP_NORM] / norms[step - 1] - 1));
        }
        print_message("%-18s fp32: losses of 20 steps within %.1e, norms within %.1e of their size\n", f.name, worst,
                      worst_norm);
        assert_true(worst < 1e-4);
        assert_true(worst_norm < 1e-3);
        family_close(&f);
    }
}

/* bf16 keeps 8 bits: one rounding is 2^-9 = 0.002 relative. Two or three blocks of a dozen roundings each leave losses of
 * about 5 within 0.15 of the fp32 ones; PyTorch's own bf16 losses stray as far. Gradients keep their direction. */
static void sixteen_bit_losses_and_gradients_stay_close(void **state) {
    (void)state;
    static const precision kinds[] = {PRECISION_BF16, PRECISION_FP16};
    for (size_t k = 0; k < ARRAY_LENGTH(kinds); k++)
        for (size_t i = 0; i < ARRAY_LENGTH(fixtures); i++) {
            if (!runs_here(fixtures[i])) continue;
            family f;
            double worst, bound = kinds[k] == PRECISION_BF16 ? 0.15 : 0.02,
                          cosine_bound = kinds[k] == PRECISION_BF16 ? 0.995 : 0.9999;
            family_open(&f, fixtures[i], kinds[k]);
            exec_run(f.e, SECTION_EVAL);
            double losses = largest_loss_error(&f, "losses");
            write_scalars(&f, 1);
            exec_run(f.e, SECTION_MICRO);
            double cosine = smallest_gradient_cosine(&f, &worst);
            print_message("%-18s %s: losses within %.1e, gradient cosine at least 1 - %.1e\n", f.name,
                          precision_name(kinds[k]), losses, 1 - cosine);
            assert_true(losses < bound);
            assert_true(cosine > cosine_bound);
            family_close(&f);
        }
}

/* What config.json says of a model that was read from one says it again. */
static void config_json_is_written_as_it_was_read(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LENGTH(fixtures); i++) {
        char path[512];
        safetensors file;
        snprintf(path, sizeof path, "%s/%s.safetensors", TEST_FIXTURES, fixtures[i]);
        must(safetensors_open(&file, path));
        model_config c = family_config(&file, fixtures[i]), again;
        json_t *written = model_config_to_json(&c);
        must(model_config_from_json(&again, written, fixtures[i], path));
        assert_memory_equal(&c, &again, sizeof c);
        json_decref(written);
        safetensors_close(&file);
    }
}

/* Which factors of longrope a program has: those of its rows, also where samples beside the training may grow longer; of
 * generation alone those of its context. */
static void longrope_factors_follow_the_rows(void **state) {
    (void)state;
    static const struct {
        int64_t seq_len, context;
        bool trains, is_long;
    } all[] = {
        {16, 0, true, false}, {17, 0, true, true}, {16, 40, true, false}, {1, 16, false, false}, {1, 17, false, true}};
    char path[512];
    safetensors file;
    snprintf(path, sizeof path, "%s/phi3_long.safetensors", TEST_FIXTURES);
    must(safetensors_open(&file, path));
    model_config c = family_config(&file, "phi3_long");
    for (size_t i = 0; i < ARRAY_LENGTH(all); i++) {
        program p;
        net m;
        net_options o = {.batch = 1, .seq_len = all[i].seq_len, .compute = DTYPE_F32};
        if (all[i].context)
            o.generation = (generation_shape){.slots = 1,
                                              .pages = 8,
                                              .page_size = 8,
                                              .context = all[i].context,
                                              .prefill_tokens = 8,
                                              .beside_training = all[i].trains};
        program_init(&p);
        must(model_build(&m, &p, &c, &o));
        size_t k = 0;
        while (k < p.n_ops && p.ops[k].kind != OP_ROPE_TABLE) k++;
        assert_true(k < p.n_ops);
        const double *want = all[i].is_long ? c.long_rope.long_factors : c.long_rope.short_factors;
        assert_memory_equal(p.ops[k].attr.rope.pair_factors, want, (size_t)c.long_rope.n * sizeof *want);
        net_fini(&m);
        program_fini(&p);
    }
    safetensors_close(&file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(config_json_is_written_as_it_was_read),
        cmocka_unit_test(longrope_factors_follow_the_rows),
        cmocka_unit_test(logits_and_losses_equal_pytorch),
        cmocka_unit_test(logits_of_bases_in_fewer_bits_equal_bitsandbytes),
        cmocka_unit_test(every_gradient_equals_pytorch),
        cmocka_unit_test(twenty_adamw_steps_equal_pytorch),
        cmocka_unit_test(sixteen_bit_losses_and_gradients_stay_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
