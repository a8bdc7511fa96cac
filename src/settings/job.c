/* job.c - from settings to a training job that is ready to run: request, data, plan, run directory.
 *
 * `ralo train` and the public API take the same road; they differ in who is told and who is the loop. Nothing is written
 * before job_use_dir, and that comes last. */
#include "settings/settings.h"

#include <stdlib.h>
#include <string.h>

status job_init(job *j, const config *c, const char *hardware) {
    *j = (job){0};
    TRY(request_from_config(c, &j->request));
    if (!j->request.backend) TRY(backend_choose(c->run.device, j->request.gpu.index, &j->request.backend));
    if (backend_kind(j->request.backend) == DEVICE_CPU) config_name_idle_on_cpu(c);
    TRY(machine_describe(hardware, &j->request, &j->machine));
    j->request.plan.hardware = &j->machine;
    return OK;
}

/* Ranks must mean the same step, and each sees its own machine: the first chooses for all, with the most that any of them holds
 * beside the plan. (Limits are the least of all ranks since request_use_comm.) Stages of a pipeline differ, and nothing that
 * they have to agree on is open there. */
static status plan_together(job *j, comm *ranks) {
    plan_request *r = &j->request.plan;
    if (!plan_is_open(r) || mesh_size(&r->mesh, AXIS_PIPELINE) > 1) return plan_choose(&j->plan, r);
    TRY(comm_most(ranks, &r->host_bytes));
    bool first = comm_rank(ranks) == 0;
    step_choice chosen = {0};
    if (first) {
        TRY(plan_choose(&j->plan, r));
        chosen = j->plan.request.choice;
    }
    TRY(comm_broadcast(ranks, &chosen, sizeof chosen, 0));
    if (first) return OK;
    if (r->choice.recompute.kind != RECOMPUTE_AUTO)
        chosen.recompute = r->choice.recompute; /* its names are the first rank's memory */
    plan_request one = plan_request_of(r, &chosen);
    TRY(plan_build(&j->plan, &one));
    plan_remember(&j->plan, r); /* what does not fit is told alike on every rank */
    return OK;
}

status job_open(job *j) {
    double begin = clock_s();
    TRY(dataset_open(&j->data, &j->request.data));
    j->read_seconds = clock_s() - begin;
    j->request.plan.host_bytes += dataset_host_bytes(j->data);
    if (j->request.comm) return plan_together(j, j->request.comm);
    return plan_choose(&j->plan, &j->request.plan);
}

void job_close(job *j) {
    if (j->data) dataset_close(j->data);
    plan_close(&j->plan);
    *j = (job){0};
}

/* A tokenizer of another model gives ids that the model has no row for, or trains only the first of its rows. */
static status check_vocabulary(const dataset *d, const train_request *r) {
    if (strcmp(r->data.source, "builtin:random") == 0) return OK; /* draws from the model's own vocabulary */
    long long tokens = tokenizer_vocab(dataset_tokenizer(d)), rows = r->plan.model.vocab;
    const char *name = r->data.tokenizer ? r->data.tokenizer : "byte";
    if (tokens > rows)
        return ERR(
            ERR_INPUT,
            "data.tokenizer %s has %lld tokens, model %s has a vocabulary of %lld, expected at least as many: is "
            "it the tokenizer of another model? Set data.tokenizer to the model's own, or model.vocab=%lld for a "
            "model that is not pretrained",
            name, tokens, r->plan.model.name, rows, tokens);
    if (r->pretrained && str_starts_with(r->data.source, "builtin:") && tokens < rows)
        log_warn("data.source %s is made of bytes, which the weights of %s do not know; set data.source to a text or "
                 "JSON lines",
                 r->data.source, r->plan.model.name);
    else if (tokens < rows / 2)
        log_warn(
            "data.tokenizer %s has %lld tokens, model %s has a vocabulary of %lld: the other rows are never trained; "
            "set data.tokenizer to the model's own, or model.vocab=%lld for a model that is not pretrained",
            name, tokens, r->plan.model.name, rows, tokens);
    return OK;
}

void note_say(const plan *p) {
    strbuf note;
    strbuf_init(&note);
    plan_note(p, &note);
    if (note.length > 0) log_warn("%s", note.text);
    strbuf_fini(&note);
}

status job_check(const job *j) {
    TRY(plan_check_fit(&j->plan));
    TRY(train_check(&j->request, &j->plan));
    if (!j->request.comm || comm_rank(j->request.comm) == 0) note_say(&j->plan);
    return check_vocabulary(j->data, &j->request);
}

status job_use_dir(job *j, const char *dir) {
    char newest[4096];
    TRY(checkpoint_find_newest_quietly(dir, newest, sizeof newest));
    if (newest[0] && !j->request.resume)
        return ERR(
            ERR_INPUT,
            "run.dir %s already holds a checkpoint (%s); continue it with --resume auto or choose another run.dir", dir,
            newest);
    TRY(train_check_disk(&j->request, &j->plan, dir));
    TRY(dir_make(dir));
    j->request.run_dir = dir;
    return OK;
}

status config_save(const config *c, const char *run_dir) {
    char path[4200];
    memstream text;
    snprintf(path, sizeof path, "%s/config.yaml", run_dir);
    config_write_yaml(c, memstream_open(&text), false);
    char *yaml = memstream_take(&text);
    status rc = file_replace(path, yaml, text.n_bytes); /* the run's own name: what has it is no wish of the user's */
    free(yaml);
    return rc;
}
