/* job.c - from settings to a training job that is ready to run: request, data, plan, run directory.
 *
 * `ralo train` and the public API take the same road; they differ in who is told and who is the loop. Nothing is written
 * before job_use_dir, and that comes last. */
#include "cli/cli.h"

#include <string.h>

status job_init(job *j, const config *c, const char *hardware) {
    *j = (job){0};
    TRY(request_from_config(c, &j->request));
    TRY(machine_describe(hardware, j->request.n_threads, &j->machine));
    j->request.plan.hardware = &j->machine;
    return OK;
}

status job_open(job *j) {
    TRY(dataset_open(&j->data, &j->request.data));
    j->request.plan.host_bytes += dataset_host_bytes(j->data);
    return plan_compile(&j->plan, &j->request.plan);
}

void job_close(job *j) {
    if (j->data) dataset_close(j->data);
    plan_close(&j->plan);
    *j = (job){0};
}

status job_check(const job *j) {
    const model_config *m = &j->request.plan.model;
    int64_t n_tokens = tokenizer_vocab(dataset_tokenizer(j->data));
    TRY(plan_check_fit(&j->plan));
    TRY(train_check(&j->request, &j->plan));
    if (n_tokens <= m->vocab) return OK;
    return ERR(ERR_INPUT,
               "the tokenizer has %lld tokens, model %s only %lld; set model.vocab or choose another tokenizer",
               (long long)n_tokens, m->name, (long long)m->vocab);
}

status job_use_dir(job *j, const char *dir) {
    char newest[4096];
    TRY(checkpoint_find_newest(dir, newest, sizeof newest));
    if (newest[0] && !j->request.resume)
        return ERR(
            ERR_INPUT,
            "run.dir %s already holds a checkpoint (%s); continue it with --resume auto or choose another run.dir", dir,
            newest);
    TRY(dir_make(dir));
    j->request.run_dir = dir;
    return OK;
}

status config_save(const config *c, const char *run_dir) {
    char path[4200];
    snprintf(path, sizeof path, "%s/config.yaml", run_dir);
    FILE *f = fopen(path, "w");
    if (!f) return ERR(ERR_IO, "cannot write %s", path);
    config_write_yaml(c, f, false);
    return fclose(f) == 0 ? OK : ERR(ERR_IO, "cannot write %s", path);
}
