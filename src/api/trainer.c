/* trainer.c - ralo_trainer: the job and the trainer of `ralo train`, with the caller as the loop. */
#include "api/api.h"
#include "track/track.h"

#include <stdlib.h>
#include <string.h>

struct ralo_trainer {
    config config; /* the job points into it */
    job job;
    trainer *trainer;
    ralo_plan plan;
    train_step_report last_step; /* step 0: none yet */
    train_eval_report last_eval;
    bool evaluated;
    bool failed; /* a step went wrong: parameters and data no longer belong together */
};

static void on_message(void *context, const char *text) {
    (void)context;
    log_info("%s", text);
}

/* Between any two steps the caller may look at the run, or change what comes next. */
static status never_overlap(plan_request *p) {
    if (p->choice.overlap_update == OVERLAP_TRUE)
        return ERR(
            ERR_INPUT,
            "memory.overlap_update: found true, expected auto or false: a step of ralo_trainer_step ends with its "
            "update, and the next micro-batch is begun by the next call");
    p->choice.overlap_update = OVERLAP_FALSE;
    return OK;
}

/* The library starts no ranks and does not speak to those that a launcher started. */
static status need_one_rank(const config *c) {
    mesh m = {0};
    memcpy(m.size, c->parallel.size, sizeof m.size);
    if (mesh_world(&m) == 1) return OK;
    return ERR(ERR_INPUT,
               "parallel.*: found data %d x tensor %d x pipeline %d x sequence %d ranks, expected 1: a trainer of the "
               "library is one rank; leave parallel.* out, or start many with ralo train --ranks %d",
               mesh_size(&m, AXIS_DATA), mesh_size(&m, AXIS_TENSOR), mesh_size(&m, AXIS_PIPELINE),
               mesh_size(&m, AXIS_SEQUENCE), mesh_world(&m));
}

static status open_job(ralo_trainer *t, const ralo_settings *s) {
    static const train_observer observer = {.on_message = on_message};
    TRY(api_config(&t->config, s));
    config *c = &t->config;
    TRY(need_one_rank(c));
    config_resolve_fine_tune(c);
    TRY(config_fit_data(c, false));
    TRY(job_init(&t->job, c, NULL));
    train_request *r = &t->job.request;
    TRY(never_overlap(&r->plan));
    r->train.save_every = 0; /* the caller saves, and waits for it: nothing is staged for background writing */
    r->plan.state_copies = 0;
    r->export_dir = NULL;
    r->version = RALO_VERSION;
    TRY(job_open(&t->job));
    TRY(job_check(&t->job));
    if (*c->run.dir) TRY(job_use_dir(&t->job, c->run.dir));
    TRY(trainer_open(&t->trainer, r, &t->job.plan, t->job.data, &observer));
    if (*c->run.dir) TRY(config_save(c, c->run.dir));
    t->plan = (ralo_plan){.borrowed = true, .plan = &t->job.plan};
    api_plan_describe(&t->plan);
    return OK;
}

ralo_status ralo_trainer_open(ralo_trainer **out, const ralo_settings *s) {
    API_NEED(out);
    *out = NULL;
    API_NEED(s);
    api_call call = api_enter();
    ralo_trainer *t = mem_alloc(sizeof *t);
    status rc = open_job(t, s);
    if (rc == OK) {
        *out = t;
        return api_leave(call, OK);
    }
    error_record why; /* closing must not replace it */
    error_take(&why);
    ralo_trainer_close(t);
    return api_leave(call, error_give(&why));
}

void ralo_trainer_close(ralo_trainer *t) {
    if (!t) return;
    api_call call = api_enter();
    trainer_close(t->trainer);
    free(t->plan.text);
    free(t->plan.json);
    job_close(&t->job);
    config_fini(&t->config);
    free(t);
    api_leave(call, OK);
}

static status need_whole(const ralo_trainer *t, const char *function) {
    return t->failed ? ERR(ERR_INPUT, "%s: an earlier step failed; close this trainer", function) : OK;
}

static status step(ralo_trainer *t, ralo_step *out) {
    train_step_report r;
    TRY(need_whole(t, "ralo_trainer_step"));
    if (ralo_trainer_steps_left(t) > 0) t->failed = true; /* until it went well */
    TRY(trainer_step(t->trainer, &r));
    t->failed = false;
    t->last_step = r;
    *out = (ralo_step){.step = r.step,
                       .loss = r.loss,
                       .grad_norm = r.grad_norm,
                       .lr = r.lr,
                       .tokens = r.tokens,
                       .seconds = r.step_ms * 1e-3,
                       .loss_scale = r.loss_scale,
                       .skipped = r.skipped};
    return OK;
}

ralo_status ralo_trainer_step(ralo_trainer *t, ralo_step *out) {
    API_NEED(t);
    api_call call = api_enter();
    ralo_step unasked;
    return api_leave(call, step(t, out ? out : &unasked));
}

int64_t ralo_trainer_steps_left(const ralo_trainer *t) {
    return t ? MAX(t->job.request.train.steps - trainer_state(t->trainer)->step, 0) : 0;
}

static status evaluate(ralo_trainer *t, ralo_evaluation *out) {
    train_eval_report r;
    TRY(need_whole(t, "ralo_trainer_evaluate"));
    if (!t->job.plan.request.with_eval)
        return ERR(ERR_INPUT, "ralo_trainer_evaluate: nothing is held out: train.eval_rows (or data.eval_fraction) and "
                              "train.problems are 0; set one of them before the trainer is opened");
    TRY(trainer_evaluate(t->trainer, &r));
    t->last_eval = r;
    t->evaluated = true;
    *out = (ralo_evaluation){.loss = r.loss, .exact_match = r.exact_match, .n_problems = r.n_problems};
    return OK;
}

ralo_status ralo_trainer_evaluate(ralo_trainer *t, ralo_evaluation *out) {
    API_NEED(t);
    API_NEED(out);
    api_call call = api_enter();
    *out = (ralo_evaluation){0};
    return api_leave(call, evaluate(t, out));
}

static status find_metric(const ralo_trainer *t, const char *key, double *out) {
    if (t->last_step.step > 0 && metric_of_step(&t->last_step, key, out)) return OK;
    if (t->evaluated && metric_of_eval(&t->last_eval, key, out)) return OK;
    return ERR(ERR_INPUT,
               "ralo_trainer_metric: found '%.100s', expected a key that the last step (%s) or evaluation (%s) has in "
               "metrics.jsonl; docs/reference/metrics.md lists them",
               key, t->last_step.step > 0 ? "there was one" : "none yet", t->evaluated ? "there was one" : "none yet");
}

ralo_status ralo_trainer_metric(const ralo_trainer *t, const char *key, double *out) {
    API_NEED(t);
    API_NEED(key);
    API_NEED(out);
    api_call call = api_enter();
    return api_leave(call, find_metric(t, key, out));
}

static status save(ralo_trainer *t) {
    TRY(need_whole(t, "ralo_trainer_save"));
    if (!*t->config.run.dir)
        return ERR(ERR_INPUT, "ralo_trainer_save: run.dir is not given; set it before the trainer is opened");
    TRY(trainer_save(t->trainer));
    return trainer_wait(t->trainer);
}

ralo_status ralo_trainer_save(ralo_trainer *t) {
    API_NEED(t);
    api_call call = api_enter();
    return api_leave(call, save(t));
}

static status export_as(ralo_trainer *t, const char *dir, const char *type) {
    static const dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    export_options o = {.dir = dir, .type = DTYPE_COUNT};
    export_report report;
    TRY(need_whole(t, "ralo_trainer_export"));
    for (size_t i = 0; type && i < ARRAY_LENGTH(types); i++)
        if (strcmp(dtype_name(types[i]), type) == 0) o.type = types[i];
    if (type && o.type == DTYPE_COUNT)
        return ERR(ERR_INPUT, "ralo_trainer_export: found the dtype '%.100s', expected fp32, bf16, fp16 or NULL", type);
    return trainer_export(t->trainer, &o, &report);
}

ralo_status ralo_trainer_export(ralo_trainer *t, const char *dir, const char *dtype) {
    API_NEED(t);
    API_NEED(dir);
    api_call call = api_enter();
    return api_leave(call, export_as(t, dir, dtype));
}

static status param_hash(ralo_trainer *t, uint64_t *out) {
    TRY(need_whole(t, "ralo_trainer_param_hash"));
    return trainer_param_hash(t->trainer, out);
}

ralo_status ralo_trainer_param_hash(ralo_trainer *t, uint64_t *out) {
    API_NEED(t);
    API_NEED(out);
    api_call call = api_enter();
    return api_leave(call, param_hash(t, out));
}

const ralo_plan *ralo_trainer_plan(const ralo_trainer *t) { return t ? &t->plan : NULL; }
