/* training.c - drive the whole house from a few settings, as the command line would. */
#include "training.h"
#include "backend_choice.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <unistd.h>

bool matrix_is_large(void) {
    const char *asked = getenv("RALO_MATRIX");
    return asked && strcmp(asked, "large") == 0;
}

const char *const training_presets[4] = {"test-gpt2", "test-llama", "test-qwen2", "test-qwen3"};

void training_must(status rc) {
    if (rc != OK) fail_msg("%s", error_message());
}

void keep_step_loss(void *context, const train_step_report *r) {
    step_losses *l = context;
    if (l->n < (int)ARRAY_LENGTH(l->of)) l->of[l->n++] = r->loss;
}

void settings_join(const char *out[SETTINGS_MOST], const char *const *a, const char *const *b) {
    int n = 0;
    for (; a && *a; a++) out[n++] = *a;
    for (; b && *b; b++) out[n++] = *b;
    ASSERT(n < SETTINGS_MOST);
    out[n] = NULL;
}

static int64_t or_default(int64_t given, int64_t otherwise) { return given ? given : otherwise; }

static status set_all(config *c, const training *t) {
    const char *text[] = {t->preset ? t->preset : "test-llama", t->source ? t->source : "builtin:grammar",
                          precision_name(t->precision)};
    static const char *const text_keys[] = {"model.preset", "data.source", "precision"};
    const int64_t whole[] = {or_default(t->seq_len, 24),
                             or_default(t->micro_batch, 2),
                             or_default(t->accumulation, 1),
                             or_default(t->steps, 4),
                             or_default(t->threads, 2),
                             0,
                             0,
                             0};
    static const char *const whole_keys[] = {"data.seq_len",    "train.micro_batch", "train.accumulation",
                                             "train.steps",     "run.threads",       "train.warmup",
                                             "train.eval_rows", "train.problems"};
    char line[512];
    for (size_t i = 0; i < ARRAY_LENGTH(text); i++) {
        snprintf(line, sizeof line, "%s=%s", text_keys[i], text[i]);
        TRY(config_set(c, line, "test"));
    }
    for (size_t i = 0; i < ARRAY_LENGTH(whole); i++) {
        snprintf(line, sizeof line, "%s=%lld", whole_keys[i], (long long)whole[i]);
        TRY(config_set(c, line, "test"));
    }
    TRY(config_set(c, "run.bind=false", "test")); /* tests run side by side: a fixed core may be a busy one */
    char device[32];
    snprintf(device, sizeof device, "run.device=%s", backend_under_test()->name);
    TRY(config_set(c, device, "test"));
    for (const char *const *s = t->more; s && *s; s++) TRY(config_set(c, *s, "test"));
    return config_check(c);
}

status training_request(const training *t, config *c, train_request *out) {
    config_init(c);
    TRY(set_all(c, t));
    TRY(config_fit_data(c, false));
    TRY(request_from_config(c, out));
    if (t->backend) out->backend = t->backend;
    out->plan.target.discrete |= strstr(c->memory.place, "cuda") != NULL;
    if (t->task) TRY(task_shape(t->task, out));
    if (t->comm) TRY(request_use_comm(out, c, t->comm));
    out->plan.verify = true;
    out->run_dir = t->dir;
    out->resume = t->resume;
    return OK;
}

void compiled_request(compiled *k, const training *t) {
    k->p = (plan){0};
    training_must(training_request(t, &k->c, &k->r));
}

void compiled_plan(compiled *k) {
    training_must(plan_choose(&k->p, &k->r.plan));
    training_must(program_verify(&k->p.program));
}

void compiled_open(compiled *k, const training *t) {
    compiled_request(k, t);
    compiled_plan(k);
}

void compiled_close(compiled *k) {
    plan_close(&k->p);
    config_fini(&k->c);
}

status training_run(const training *t, train_result *out) {
    static const train_observer silent;
    status rc;
    config c;
    train_request r;
    plan p = {0};
    dataset *d = NULL;
    *out = (train_result){0};
    TRY_GOTO(rc, training_request(t, &c, &r), done);
    TRY_GOTO(rc, plan_choose(&p, &r.plan), done);
    TRY_GOTO(rc, dataset_open(&d, &r.data), done);
    rc = train_run(&r, &p, d, t->observer ? t->observer : &silent, out);
done:
    if (d) dataset_close(d);
    plan_close(&p);
    config_fini(&c);
    return rc;
}

const char *ledger_problem(const ledger *l) {
    static char text[128];
    for (tier k = 0; k < TIER_COUNT; k++)
        if (l->planned[k] != l->peak[k]) {
            snprintf(text, sizeof text, "%s planned %llu, used %llu", tier_name(k), (unsigned long long)l->planned[k],
                     (unsigned long long)l->peak[k]);
            return text;
        }
    if (l->n_allocations == 0) return NULL;
    snprintf(text, sizeof text, "%llu allocations in steps", (unsigned long long)l->n_allocations);
    return text;
}

void training_as_planned(const train_result *r, const char *name) {
    const char *problem = ledger_problem(&r->memory);
    if (problem) fail_msg("%s: %s", name, problem);
}

char *training_dir(void) {
    const char *base = getenv("TMPDIR");
    char *path = mem_alloc(512);
    snprintf(path, 512, "%s/ralo-test-XXXXXX", base && *base ? base : "/tmp");
    if (!mkdtemp(path)) fail_msg("cannot make a directory like %s", path);
    return path;
}

void training_dir_remove(char *dir) {
    training_must(dir_remove_all(dir));
    free(dir);
}
