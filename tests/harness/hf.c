/* hf.c - open a Hugging Face directory as training would, and look at what it computes. */
#include "backend_choice.h"
#include "hf.h"
#include "model/model.h"
#include "programs.h"
#include "training.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>

const char *hf_fixture_dir(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/hf/%s", TEST_FIXTURES, name);
    return path;
}

json_t *hf_fixture_config(const char *name) {
    json_t *root;
    char path[600];
    snprintf(path, sizeof path, "%s/config.json", hf_fixture_dir(name));
    if (json_read_file(path, 1 << 20, &root) != OK) fail_msg("%s", error_message());
    return root;
}

void hf_same_config(const model_config *a, const model_config *b) {
    model_config x = *a, y = *b;
    x.name = y.name = NULL;
    x.is_16_bit = y.is_16_bit = false; /* model_config_to_json leaves that to whoever writes the numbers */
    assert_memory_equal(&x, &y, sizeof x);
}

status hf_open(hf_model *m, const char *dir, precision q, int64_t batch, int64_t seq_len) {
    return hf_open_adapted(m, dir, &(lora_options){0}, q, batch, seq_len);
}

status hf_open_adapted(hf_model *m, const char *dir, const lora_options *lora, precision q, int64_t batch,
                       int64_t seq_len) {
    const backend *b = backend_under_test();
    *m = (hf_model){.batch = batch, .seq_len = seq_len};
    TRY(model_config_read(&m->config, dir));
    plan_request r = {.source = net_source_of(&m->config),
                      .lora = *lora,
                      .choice.micro_batch = batch,
                      .choice.accumulation = 1,
                      .seq_len = seq_len,
                      .choice.precision = q,
                      .with_eval = true,
                      .verify = true,
                      .optimizer = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .clip = 1},
                      .target = backend_target(backend_kind(b), 2)};
    TRY(plan_build(&m->plan, &r));
    status rc = exec_open(&m->e, &m->plan.program, &(exec_options){.backend = b, .n_threads = 2});
    if (rc != OK) plan_close(&m->plan);
    return rc;
}

void hf_close(hf_model *m) {
    exec_close(m->e);
    plan_close(&m->plan);
}

static void run(hf_model *m, section s, const int32_t *tokens, const int32_t *targets) {
    size_t n = (size_t)(m->batch * m->seq_len);
    int32_t *none = mem_alloc(n * sizeof *none),
            *doc_start = mem_alloc(n * sizeof *doc_start); /* documents start at 0 */
    for (size_t i = 0; i < n; i++) none[i] = -1;
    exec_write(m->e, m->plan.net.tokens, 0, tokens, n * sizeof *tokens);
    exec_write(m->e, m->plan.net.targets, 0, targets ? targets : none, n * sizeof *none);
    exec_write(m->e, m->plan.net.doc_start, 0, doc_start, n * sizeof *doc_start);
    step_scalars scalars = step_scalars_of(1, 0);
    exec_write(m->e, m->plan.net.scalars, 0, &scalars, sizeof scalars);
    exec_run(m->e, s);
    free(none);
    free(doc_start);
}

void hf_forward(hf_model *m, const int32_t *tokens, const int32_t *targets) { run(m, SECTION_EVAL, tokens, targets); }
void hf_backward(hf_model *m, const int32_t *tokens, const int32_t *targets) { run(m, SECTION_MICRO, tokens, targets); }

static float *read_f32(hf_model *m, const char *name) {
    return value_read_f32(m->e, &m->plan.program, program_find(&m->plan.program, name));
}

float *hf_logits(hf_model *m) {
    int64_t N = m->batch * m->seq_len, V = m->config.vocab, C = m->config.hidden;
    float *h = read_f32(m, "eval.final_norm"), *w = read_f32(m, m->config.tied ? "embed.w" : "unembed.w");
    float *out = mem_alloc((size_t)(N * V) * sizeof *out);
    for (int64_t t = 0; t < N; t++)
        for (int64_t v = 0; v < V; v++) {
            double sum = 0;
            for (int64_t k = 0; k < C; k++) sum += (double)h[t * C + k] * w[v * C + k];
            out[t * V + v] = (float)sum;
        }
    free(h);
    free(w);
    return out;
}

void hf_write_model(const char *dir, const model_config *c, void (*fill)(hf_model *m)) {
    char path[600], *description;
    hf_model m;
    export_report report;
    json_t *config = model_config_to_json(c);
    snprintf(path, sizeof path, "%s/description", dir);
    training_must(dir_make(path));
    snprintf(path, sizeof path, "%s/description/config.json", dir);
    training_must(json_write_file(path, config));
    json_decref(config);
    snprintf(path, sizeof path, "%s/description", dir);
    training_must(hf_open(&m, path, PRECISION_FP32, 1, 8));
    fill(&m);
    train_request r = {.plan = m.plan.request, .model_dir = path, .data = {.tokenizer = "byte"}};
    training_must(export_describe(model_of(&r.plan.source), r.model_dir, &r.data, NULL, &description));
    snprintf(path, sizeof path, "%s/model", dir);
    training_must(
        export_running(m.e, &m.plan, description, NULL, &(export_options){.dir = path, .type = DTYPE_F32}, &report));
    free(description);
    hf_close(&m);
}
