/* trainer.c - ralo_trainer: the job and the trainer of `ralo train`, with the caller as the loop. */
#include "api/api.h"
#include "track/track.h"

#include <math.h>
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
    train_observer observer;
    ralo_metrics_function on_metrics; /* NULL: nobody listens */
    void *metrics_context;
    ralo_sample_function on_sample; /* NULL: nobody listens */
    void *sample_context;
    data_survey survey;
    char *data_text;
    loss_watch losses;
    epoch_watch epochs;
    char advice[256]; /* of the watch */
};

/* ---- what a trainer has to say -------------------------------------------------------------------------------------- */

/* Text for a terminal has its level in front; the log has it beside the line. */
static void say(const char *text) {
    static const char warning[] = "warning: ";
    if (str_starts_with(text, warning)) log_warn("%s", text + strlen(warning));
    else log_info("%s", text);
}

static void on_message(void *context, const char *text) {
    (void)context;
    say(text);
}

static void on_sample(void *context, const train_sample *s) {
    ralo_trainer *t = context;
    if (!t->on_sample) return;
    t->on_sample(t->sample_context, &(ralo_sample){.step = s->step,
                                                   .index = s->index,
                                                   .prompt = s->prompt.text,
                                                   .prompt_bytes = s->prompt.length,
                                                   .completion = s->completion.text,
                                                   .completion_bytes = s->completion.length,
                                                   .reward = NAN,
                                                   .advantage = NAN,
                                                   .stop = (ralo_stop)s->stop});
}

static void on_completion(void *context, const train_completion *c) {
    ralo_trainer *t = context;
    if (!t->on_sample) return;
    t->on_sample(t->sample_context, &(ralo_sample){.step = c->step,
                                                   .prompt = c->prompt.text,
                                                   .prompt_bytes = c->prompt.length,
                                                   .completion = c->completion.text,
                                                   .completion_bytes = c->completion.length,
                                                   .reward = c->reward,
                                                   .advantage = c->advantage,
                                                   .stop = (ralo_stop)c->stop,
                                                   .trained = 1});
}

/* The lines that `ralo train` shows, and its warnings. */
static void say_lines(const char *text) {
    while (*text) {
        size_t n = strcspn(text, "\n");
        log_info("%.*s", (int)n, text);
        text += n + (text[n] != 0);
    }
}

static void say_data(ralo_trainer *t) {
    const job *j = &t->job;
    strbuf weights;
    memstream text;
    dataset_survey(j->data, &t->survey);
    t->survey.is_chosen = j->request.survey.is_chosen;
    train_data_print(j->data, &j->request, &j->plan, memstream_open(&text));
    t->data_text = memstream_take(&text);
    say_lines(t->data_text);
    train_data_warn(j->data, &j->request, &j->plan);
    strbuf_init(&weights);
    weights_describe(&t->config, &j->request, &weights);
    if (weights.length) log_info("%s", weights.text);
    strbuf_fini(&weights);
}

static void start_watch(ralo_trainer *t) {
    const train_options *o = &t->job.request.train;
    double epochs = train_epochs(t->job.data, &t->job.plan, o->steps),
           steps = epochs > 0 ? (double)o->steps / epochs : 0;
    t->losses = (loss_watch){.spikes = t->config.track.spikes,
                             .is_no_objective = t->job.plan.request.policy.on,
                             .advice = train_divergence_advice(o, t->advice, sizeof t->advice)};
    if (steps >= (double)o->log_every) t->epochs.steps = steps;
}

static void watch(ralo_trainer *t, const train_step_report *r) {
    char line[256];
    loss_event e;
    if (epoch_watch_step(&t->epochs, r, line, sizeof line)) log_info("%s", line);
    if (!loss_watch_step(&t->losses, r, &e)) return;
    if (strcmp(e.name, "spike") == 0) log_warn("%s", e.message);
    else say(e.message);
}

static void tell_metrics(const ralo_trainer *t, const metric_value *list, size_t n) {
    ralo_metric out[METRIC_VALUES];
    for (size_t i = 0; i < n; i++) out[i] = (ralo_metric){list[i].name, list[i].value};
    t->on_metrics(t->metrics_context, out, n);
}

ralo_status ralo_trainer_on_metrics(ralo_trainer *t, ralo_metrics_function function, void *context) {
    API_NEED(t);
    t->on_metrics = function;
    t->metrics_context = context;
    return RALO_OK;
}

ralo_status ralo_trainer_on_sample(ralo_trainer *t, ralo_sample_function function, void *context) {
    API_NEED(t);
    t->on_sample = function;
    t->sample_context = context;
    return RALO_OK;
}

ralo_status ralo_trainer_data(const ralo_trainer *t, ralo_data *out) {
    API_NEED(t);
    API_NEED(out);
    const data_survey *s = &t->survey;
    uint64_t longer = s->n_cut + s->n_dropped;
    *out = (ralo_data){.n_records = s->n,
                       .n_trained = s->n_trained,
                       .min = s->min,
                       .median = s->median,
                       .p95 = s->p95,
                       .p99 = s->p99,
                       .max = s->max,
                       .n_cut = s->n_cut,
                       .n_dropped = s->n_dropped,
                       .covered = s->n ? (double)(s->n - MIN(longer, s->n)) / (double)s->n : NAN,
                       .seq_len = t->job.plan.request.seq_len,
                       .rows_per_epoch = (int64_t)s->rows_per_epoch,
                       .epochs = t->plan.outlook.epochs,
                       .seq_len_auto = s->is_chosen};
    return RALO_OK;
}

const char *ralo_trainer_data_text(const ralo_trainer *t) { return t ? t->data_text : NULL; }

/* ---- open and close ---------------------------------------------------------------------------------------------------- */

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

/* What the environment asks for (MLFLOW_TRACKING_URI) is for ralo train, and no request of this caller. */
static void warn_of_sinks(const config *c) {
    bool asked = (*c->track.to && strcmp(c->track.to, "none") != 0) || *c->track.mlflow || *c->track.tensorboard ||
                 *c->track.trackio;
    if (asked)
        log_warn("track.* has no effect: a trainer of the library sends nothing, its caller gets the numbers; "
                 "ralo train sends them");
}

/* `ralo train` always has a run directory. */
static status need_run_for_gguf(const config *c) {
    if (!export_is_gguf_name(c->run.export_dir) || *c->run.dir) return OK;
    return ERR(ERR_INPUT, "run.export: found %s and no run.dir, but a GGUF file is made from a checkpoint; set run.dir",
               c->run.export_dir);
}

static status open_job(ralo_trainer *t, const ralo_settings *s) {
    t->observer = (train_observer){
        .context = t, .on_message = on_message, .on_sample = on_sample, .on_completion = on_completion};
    TRY(api_config(&t->config, s));
    config *c = &t->config;
    TRY(need_one_rank(c));
    warn_of_sinks(c);
    config_resolve_model(c, NULL, true);
    TRY(config_fit_data(c, false));
    TRY(job_init(&t->job, c, NULL));
    train_request *r = &t->job.request;
    TRY(never_overlap(&r->plan));
    r->plan.state_copies = 0; /* the caller waits for a save: nothing is staged for background writing */
    r->version = RALO_VERSION;
    TRY(need_run_for_gguf(c));
    TRY(job_open(&t->job));
    job_keep_choice(&t->job, c);
    TRY(job_check(&t->job));
    r->export_dir = NULL; /* checked, before hours of training; the caller makes it */
    if (*c->run.dir) TRY(job_use_dir(&t->job, c->run.dir));
    say_data(t);
    TRY(trainer_open(&t->trainer, r, &t->job.plan, t->job.data, &t->observer));
    if (*c->run.dir) TRY(config_save(c, c->run.dir));
    start_watch(t);
    if (!r->resume) plan_find_faster(&t->job.plan); /* a run that goes on keeps its precision */
    t->plan =
        (ralo_plan){.borrowed = true, .plan = &t->job.plan, .outlook = plan_outlook_of(r, &t->job.plan, &t->survey)};
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
    free(t->data_text);
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
    watch(t, &r);
    metric_value list[METRIC_VALUES];
    if (t->on_metrics) tell_metrics(t, list, metrics_of_step(&r, list));
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

_Static_assert((int)RALO_DUE_EVALUATION == TRAIN_DUE_EVALUATION && (int)RALO_DUE_SAMPLES == TRAIN_DUE_SAMPLES &&
                   (int)RALO_DUE_SAVE == TRAIN_DUE_SAVE && (int)RALO_DUE_END == TRAIN_DUE_END,
               "the flags of ralo.h are those of train.h");
uint32_t ralo_trainer_due(const ralo_trainer *t) { return t ? trainer_due(t->trainer) : 0; }

static status evaluate(ralo_trainer *t, ralo_evaluation *out) {
    train_eval_report r;
    TRY(need_whole(t, "ralo_trainer_evaluate"));
    if (!t->job.plan.request.with_eval)
        return ERR(ERR_INPUT, "ralo_trainer_evaluate: nothing is held out: train.eval_rows (or data.eval_fraction) and "
                              "train.problems are 0; set one of them before the trainer is opened");
    TRY(trainer_evaluate(t->trainer, &r));
    t->last_eval = r;
    t->evaluated = true;
    metric_value list[METRIC_VALUES];
    if (t->on_metrics) tell_metrics(t, list, metrics_of_eval(&r, list));
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

status api_dtype(const char *function, const char *name, dtype *out) {
    static const dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    *out = DTYPE_COUNT;
    for (size_t i = 0; name && i < ARRAY_LENGTH(types); i++)
        if (strcmp(dtype_name(types[i]), name) == 0) *out = types[i];
    if (!name || *out != DTYPE_COUNT) return OK;
    return ERR(ERR_INPUT, "%s: found the dtype '%.100s', expected fp32, bf16, fp16 or NULL", function, name);
}

static status export_as(ralo_trainer *t, const char *dir, const char *type) {
    export_options o = {.dir = dir};
    export_report report;
    TRY(need_whole(t, "ralo_trainer_export"));
    TRY(api_dtype("ralo_trainer_export", type, &o.type));
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

ralo_status ralo_export(const char *from, const char *dir, const ralo_export_options *options) {
    API_NEED(from);
    API_NEED(dir);
    api_call call = api_enter();
    ralo_export_options given = options ? *options : (ralo_export_options){0};
    export_options o = {.dir = dir, .adapter = given.adapter, .merge = given.merge != 0};
    export_report report;
    status rc = api_dtype(__func__, given.dtype, &o.type);
    if (rc == OK) rc = export_checkpoint(from, &o, &report);
    return api_leave(call, rc);
}

/* ---- completions --------------------------------------------------------------------------------------------------------- */

static status find_generator(ralo_trainer *t, const char *function, generator **out) {
    TRY(need_whole(t, function));
    *out = trainer_generator(t->trainer);
    if (*out) return OK;
    return ERR(
        ERR_INPUT,
        "%s: the trainer has no room for completions: train.sample_every is 0; set it before the trainer is opened",
        function);
}

static status sample(ralo_trainer *t) {
    generator *g;
    TRY(find_generator(t, "ralo_trainer_sample", &g));
    return trainer_sample(t->trainer);
}

ralo_status ralo_trainer_sample(ralo_trainer *t) {
    API_NEED(t);
    api_call call = api_enter();
    return api_leave(call, sample(t));
}

ralo_status ralo_trainer_generate(ralo_trainer *t, const char *const *prompts, size_t n_prompts,
                                  const ralo_sampling *sampling, ralo_completion **out, size_t *n_out) {
    generator *g;
    API_NEED(out);
    API_NEED(n_out);
    *out = NULL;
    *n_out = 0;
    API_NEED(t);
    api_call call = api_enter();
    status rc = find_generator(t, __func__, &g);
    if (rc == OK) rc = api_generate(g, __func__, prompts, n_prompts, sampling, out, n_out);
    return api_leave(call, rc);
}
