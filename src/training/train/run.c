/* run.c - the trainer: opened and resumed, one step after the other, evaluation, checkpoints, export; and the loop of
 * `ralo train` with a clean stop.
 *
 * What a step is for is the task's business (task.h), how it is computed the stepper's (step.h). This file decides when
 * to stop, evaluate, save and export. */
#include "train/best.h"
#include "train/frozen.h"
#include "train/samples.h"
#include "train/task.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#define WORTH_SAYING_S 2.0 /* a start that takes longer is explained */
#define EVAL_REPORT_S 5.0  /* a longer evaluation reports its progress this often */

static volatile sig_atomic_t interrupt_requested;
void train_interrupt(void) { interrupt_requested = 1; }

struct trainer {
    const train_request *r;
    const plan *p;
    const dataset *d;
    const train_observer *o;
    exec *e;
    const task *task;
    void *self; /* of the task; NULL: not open */
    stepper step;
    samples *samples; /* NULL: none are asked for */
    checkpointer *checkpoints;
    best best;
    checkpoint_tensor *tensors;
    size_t n_tensors;
    uint64_t rows_per_epoch; /* 0: the data is endless */
    bool has_stepped;        /* since it was opened */
    bool save_is_due;        /* train.save_every came, and no save since */
    double eval_reported_s;  /* when the evaluation, or what comes before the run, began or last reported progress */
    train_state state;
    lora_base base;            /* under adapters; all 0: there are none */
    char *description;         /* of the model, for export */
    tokenizer_files tokenizer; /* on the rank that writes */
    arena memory;
};

static bool saves_after(const train_options *o, int64_t step) { return o->save_every && step % o->save_every == 0; }

static status run_step(trainer *t, bool next_step_follows, train_step_report *report) {
    step_outcome o;
    TRY(stepper_run(&t->step, next_step_follows, &o));
    /* All ranks see this and may end here: they finish an earlier save together. */
    if (o.skipped && t->r->comm && t->checkpoints) TRY(checkpointer_wait(t->checkpoints));
    TRY(stepper_finish(&t->step, &o, report));
    report->epoch = t->rows_per_epoch ? (double)t->state.data_row / (double)t->rows_per_epoch : 0;
    if (t->task->after) TRY(t->task->after(t->self, report));
    if (report->step == 1) t->state.first_loss = report->loss;
    if (isfinite(report->loss)) t->state.last_loss = report->loss;
    t->has_stepped = true;
    t->save_is_due |= saves_after(&t->r->train, report->step);
    return OK;
}

status trainer_step(trainer *t, train_step_report *report) { return run_step(t, false, report); }

/* A signal reaches one rank or all; all ranks stop after the same step. */
static status ask_for_stop(const trainer *t, bool *stop) {
    *stop = interrupt_requested;
    return t->r->comm ? comm_any(t->r->comm, *stop, stop) : OK;
}

static status interrupted(const trainer *t, const char *where, bool saved) {
    long long step = t->state.step, steps = t->r->train.steps;
    const char *dir = t->r->run_dir;
    if (!saved)
        return ERR(ERR_INTERRUPTED, "interrupted %s step %lld of %lld, which is not saved: %s", where, step, steps,
                   dir ? "run.save_last is false" : "no run.dir");
    strbuf command;
    strbuf_init(&command);
    strbuf_add_word(&command, t->r->program ? t->r->program : "ralo");
    strbuf_add(&command, " train ");
    int n_ranks = t->r->comm ? comm_size(t->r->comm) : 1; /* fewer ranks would take fewer rows per step */
    if (n_ranks > 1) strbuf_printf(&command, "--ranks %d ", n_ranks);
    strbuf_add_word(&command, dir);
    status rc = ERR(ERR_INTERRUPTED, "interrupted %s step %lld of %lld; the state is saved, continue with: %s", where,
                    step, steps, command.text);
    strbuf_fini(&command);
    return rc;
}

static status pause_evaluation(void *context, const char *what, int64_t done, int64_t n) {
    trainer *t = context;
    bool stop;
    TRY(ask_for_stop(t, &stop));
    if (stop) return ERR(ERR_INTERRUPTED, "interrupted in the evaluation after step %lld", (long long)t->state.step);
    if (clock_s() - t->eval_reported_s < EVAL_REPORT_S) return OK;
    t->eval_reported_s = clock_s();
    train_say(t->o, "eval at step %lld  %s %lld/%lld", (long long)t->state.step, what, (long long)done, (long long)n);
    return OK;
}

static status pause_numbers(void *context, const char *what, int64_t done, int64_t n) {
    trainer *t = context;
    bool stop;
    TRY(ask_for_stop(t, &stop));
    if (stop) return ERR(ERR_INTERRUPTED, "interrupted before the first step, while %s was computed", what);
    if (clock_s() - t->eval_reported_s < EVAL_REPORT_S) return OK;
    t->eval_reported_s = clock_s();
    train_say(t->o, "%s  row %lld/%lld", what, (long long)done, (long long)n);
    return OK;
}

/* Is everything that the next steps follow from in a checkpoint? */
static bool may_save(const trainer *t) { return !t->task->may_save || t->task->may_save(t->self); }

status trainer_evaluate(trainer *t, train_eval_report *out) {
    train_eval_report r = {.step = t->state.step, .loss = NAN, .exact_match = NAN};
    t->eval_reported_s = clock_s();
    TRY(t->task->evaluate(t->self, &r));
    *out = r;
    if (t->o->on_eval) t->o->on_eval(t->o->context, out);
    return may_save(t) ? best_offer(&t->best, t->e, &t->state, out) : OK;
}

status trainer_sample(trainer *t) { return t->samples ? samples_run(t->samples, t->state.step) : OK; }

generator *trainer_generator(trainer *t) { return samples_generator(t->samples); }

/* Identity of a checkpoint. The data is part of it: a position has a meaning in one data set only. */
static const char *identity(trainer *t) {
    const model_config *c = model_of(&t->p->request.source);
    precision q = t->p->request.choice.precision;
    state_format states = state_format_of(q, t->p->request.choice.states);
    bool usual = states == state_format_of(q, STATES_AUTO);
    const char *heads =
        c->mtp_heads > 1 ? arena_format(&t->memory, " with %lld prediction heads", (long long)c->mtp_heads) : "";
    if (c->value_head) heads = arena_format(&t->memory, " with a value head (%s)", value_head_name(c->value_head));
    return arena_format(
        &t->memory, "%s: vocab %lld, hidden %lld, %lld layers%s, %lld/%lld heads of %lld, ffn %lld, %s, %s%s%s%s; %s",
        model_family_traits(c->family)->name, (long long)c->vocab, (long long)c->hidden, (long long)c->n_layers, heads,
        (long long)c->n_heads, (long long)c->n_kv_heads, (long long)c->head_dim, (long long)c->ffn,
        c->tied ? "tied" : "untied", precision_name(q), usual ? "" : ", states ",
        usual ? "" : state_format_name(states), lora_identity(&t->memory, c, &t->p->request.lora, t->p->request.base),
        t->task->identity(t->self, &t->memory));
}

/* The task's part of a checkpoint. */
static checkpoint_task checkpoint_task_of(const trainer *t) {
    return (checkpoint_task){t->task->name, t->self, t->task->save, t->task->load};
}

/* The checkpoint to continue from; empty: auto, and there is none yet. */
static status find_resumed(const train_request *r, char *out, size_t n) {
    checkpoint_survey found;
    if (strcmp(r->resume, "auto") != 0)
        return checkpoint_locate("resume", r->resume, "a run or a checkpoint directory", out, n);
    TRY(checkpoint_find_newest(r->run_dir, out, n));
    TRY(checkpoint_survey_make(&found, r->run_dir));
    if (out[0] || !found.n_broken) return OK;
    /* Not a run that has none yet: to begin anew would cost all of its steps, and then replace what may be mended. */
    return ERR(ERR_INPUT,
               "%s/checkpoints: found no complete checkpoint among %lld, expected one to continue from; copy the run "
               "again from where it was "
               "whole, or remove that directory to start from step 0",
               r->run_dir, (long long)found.n_broken);
}

static weights_origin origin_of(const train_request *r) {
    return (weights_origin){r->pretrained ? r->model_dir : NULL, r->adapter, r->train.seed, r->comm,
                            r->plan.reference_dir};
}

/* Initial parameters; states are zero already. */
static status initialize_params(trainer *t) {
    weights_origin from = origin_of(t->r);
    double begin = clock_s();
    char count[32];
    str_format_count(count, (double)plan_trained_params(&t->p->request));
    TRY(weights_start_trained(t->e, t->p, &from));
    const char *dir = t->p->request.lora.rank ? from.adapter : from.model_dir;
    if (dir) train_say(t->o, "weights of %s loaded: %s parameters in %.1f s", dir, count, clock_s() - begin);
    else if (clock_s() - begin > WORTH_SAYING_S)
        train_say(t->o, "parameters initialized: %s in %.1f s", count, clock_s() - begin);
    return OK;
}

static status resume(trainer *t, const char *id, bool *resumed) {
    comm *ranks = t->r->comm;
    char from[4096];
    *resumed = false;
    if (!t->r->resume) return OK;
    if (!ranks || comm_rank(ranks) == 0) TRY(find_resumed(t->r, from, sizeof from));
    if (ranks) TRY(comm_broadcast(ranks, from, sizeof from, 0)); /* the same on all */
    if (!from[0]) {
        train_say(t->o, "no checkpoint in %s yet: starting from step 0", t->r->run_dir);
        return OK;
    }
    /* A copy to compare with is where the run began, and no checkpoint holds it; the rest is replaced at once. */
    if (t->p->request.reference == REFERENCE_COPY && !t->p->request.lora.rank) TRY(initialize_params(t));
    checkpoint_task task = checkpoint_task_of(t);
    TRY(checkpoint_load(from, t->e, t->tensors, t->n_tensors, id, &task, &t->state));
    if (t->state.seed != t->r->train.seed) /* the data order and the rounding noise follow the seed */
        return ERR(ERR_INPUT, "%s was made with train.seed %llu, this run has %llu; set train.seed=%llu to continue it",
                   from, (unsigned long long)t->state.seed, (unsigned long long)t->r->train.seed,
                   (unsigned long long)t->state.seed);
    if (t->p->request.lora.rank) TRY(lora_base_check(from, model_of(&t->p->request.source), &t->base));
    if (t->checkpoints && strcmp(t->r->resume, "auto") == 0) checkpointer_prune(t->checkpoints, t->state.step);
    train_say(t->o, "resumed from %s: step %lld, %llu tokens seen", from, (long long)t->state.step,
              (unsigned long long)t->state.tokens);
    *resumed = true;
    return OK;
}

/* The base under adapters, which no checkpoint holds. */
static status load_frozen(trainer *t) {
    weights_origin from = origin_of(t->r);
    double begin = clock_s();
    TRY(weights_start_frozen(t->e, t->p, &from, &t->base));
    if (t->base.dir || clock_s() - begin > WORTH_SAYING_S)
        train_say(t->o, "frozen base %s loaded in %.1f s", t->base.dir ? t->base.dir : "of random values",
                  clock_s() - begin);
    return OK;
}

static status open_memory(trainer *t, const exec_options *o) {
    double begin = clock_s();
    const size_t *n = t->p->program.arena_bytes;
    char device[32], host[32];
    TRY(exec_open(&t->e, &t->p->program, o));
    if (clock_s() - begin > WORTH_SAYING_S)
        train_say(t->o, "memory ready: %s on the device, %s on the host in %.1f s",
                  str_format_bytes(device, n[TIER_DEVICE]), str_format_bytes(host, n[TIER_HOST]), clock_s() - begin);
    return OK;
}

static status open_checkpoints(trainer *t, const char *id) {
    const train_request *r = t->r;
    checkpoint_task task = checkpoint_task_of(t);
    checkpoint_options o = {.run_dir = r->run_dir,
                            .keep = r->keep,
                            .identity = id,
                            .model = t->description,
                            .tokenizer = &t->tokenizer,
                            .background = r->plan.state_copies > 0,
                            .comm = r->comm,
                            .task = &task,
                            .fresh = !r->resume,
                            .locked = r->run_dir_is_locked};
    if (r->run_dir) TRY(checkpointer_open(&t->checkpoints, &o, t->tensors, t->n_tensors));
    return best_open(&t->best, r, t->o, &o, t->tensors, t->n_tensors, &t->memory);
}

static status open_parts(trainer *t) {
    const train_request *r = t->r;
    exec_options eo = {.backend = r->backend,
                       .n_threads = r->n_threads,
                       .bind = r->bind,
                       .gpu = r->gpu,
                       .trace_path = r->trace_path,
                       .timed = r->timed,
                       .nvme_path = r->nvme_path ? r->nvme_path : r->run_dir,
                       .comm = r->comm};
    t->eval_reported_s = clock_s();
    data_survey survey;
    dataset_survey(t->d, &survey);
    t->rows_per_epoch = survey.rows_per_epoch;
    TRY(frozen_prepare(&(frozen_job){r, t->p, t->d, t->o, pause_numbers, t}));
    TRY(open_memory(t, &eo));
    if (exec_disk_method(t->e)) train_say(t->o, "nvme offload in %s: %s", eo.nvme_path, exec_disk_method(t->e));
    TRY(t->task->open(&t->self, &(task_host){r, t->p, t->d, t->o, t->e, pause_evaluation, t, &t->description}));
    t->state = (train_state){.seed = r->train.seed, .first_loss = NAN, .last_loss = NAN};
    scaler_init(&t->state.scaler, &r->train);
    t->step = (stepper){.plan = t->p,
                        .exec = t->e,
                        .options = &r->train,
                        .observer = t->o,
                        .comm = r->comm,
                        .source = &t->task->step,
                        .context = t->self,
                        .state = &t->state};
    TRY(stepper_init(&t->step));
    t->tensors = params_checkpoint_tensors(t->p, &t->memory, &t->n_tensors);
    const char *id = identity(t);
    TRY(load_frozen(t));
    TRY(export_describe(model_of(&r->plan.source), r->model_dir, &r->data, t->d, &t->description));
    TRY(lora_describe(t->p, &t->base, &t->description));
    if (r->train.sample_every)
        TRY(samples_open(&t->samples, &(samples_host){r, t->p, t->d, t->o, t->e, t->description}));
    if (!r->comm || comm_rank(r->comm) == 0) TRY(tokenizer_files_read(&t->tokenizer, r->data.tokenizer));
    TRY(open_checkpoints(t, id)); /* first: repairs what a crash left */
    bool resumed = false;
    TRY(resume(t, id, &resumed));
    if (!resumed) TRY(initialize_params(t));
    TRY(best_begin(&t->best, &t->state));
    t->state.micro_batch = t->p->request.choice.micro_batch;
    t->state.accumulation = t->p->request.choice.accumulation;
    t->state.placed = 1 + t->p->request.choice.cpu_layers;
    return t->task->begin(t->self, t->state.data_row);
}

/* Ranks stop together but fail one by one. The others must learn of a failure before this rank hashes or closes
 * anything: they would take that exchange for theirs, and device links close only if all ranks take part. */
static status tell_ranks(const train_request *r, status rc) {
    if (rc != OK && rc != ERR_INTERRUPTED && r->comm) comm_fail(r->comm, rc, error_message());
    return rc;
}

status trainer_open(trainer **out, const train_request *r, const plan *p, const dataset *d, const train_observer *o) {
    static const train_observer silent;
    trainer *t = mem_alloc(sizeof *t);
    *t = (trainer){.r = r, .p = p, .d = d, .o = o ? o : &silent, .task = r->task ? r->task : task_of(TASK_SFT)};
    arena_init(&t->memory);
    *out = NULL;
    status rc = tell_ranks(r, open_parts(t));
    if (rc == OK) *out = t;
    else trainer_close(t);
    return rc;
}

void trainer_close(trainer *t) {
    if (!t) return;
    samples_close(t->samples);
    if (t->self) t->task->close(t->self);
    best_close(&t->best);
    if (t->checkpoints) checkpointer_close(t->checkpoints);
    if (t->e) exec_close(t->e);
    free(t->tensors);
    free(t->description);
    tokenizer_files_fini(&t->tokenizer);
    arena_fini(&t->memory);
    free(t);
}

const train_state *trainer_state(const trainer *t) { return &t->state; }

status trainer_save(trainer *t) {
    if (!t->checkpoints) return OK;
    if (!may_save(t))
        return ERR(
            ERR_INPUT,
            "step %lld: found a request to save between two updates of a rollout, expected one after the last of "
            "them; save when the step is a multiple of rl.updates",
            (long long)t->state.step);
    if (t->o->on_save) t->o->on_save(t->o->context);
    t->save_is_due = false;
    return checkpointer_save(t->checkpoints, t->e, &t->state);
}

status trainer_wait(trainer *t) { return t->checkpoints ? checkpointer_wait(t->checkpoints) : OK; }

/* From the checkpoint, as `ralo export`. Of several ranks each holds only a part; and of a GGUF file, which has the whole model, one
 * program may hold the base as codes: its files have the numbers. */
static status export_saved(trainer *t, const export_options *o, export_report *out) {
    if (!t->r->run_dir)
        return ERR(ERR_INPUT, "export %s needs a checkpoint: set run.dir",
                   export_is_gguf_name(o->dir) ? "to a GGUF file" : "with several ranks");
    TRY(trainer_wait(t));
    if (!t->r->comm) return export_checkpoint(t->r->run_dir, o, out);
    if (comm_rank(t->r->comm) == 0) TRY(export_checkpoint(t->r->run_dir, o, out));
    TRY(comm_barrier(t->r->comm));
    return comm_broadcast(t->r->comm, out, sizeof *out, 0);
}

status trainer_param_hash(trainer *t, uint64_t *out) {
    *out = params_hash(t->e, t->p, t->r->comm);
    return exec_check(t->e);
}

/* result: NULL: the run has not ended, and its evaluations are not known. */
static status export_with_card(trainer *t, export_options *o, const train_result *result, export_report *out) {
    strbuf settings;
    export_card card = {.version = t->r->version,
                        .task = t->task->name,
                        .data = t->r->data.source,
                        .steps = t->state.step,
                        .loss = t->state.last_loss,
                        .eval_loss = result ? result->eval.loss : NAN};
    TRY(trainer_param_hash(t, &card.param_hash));
    strbuf_init(&settings);
    if (t->r->write_settings) t->r->write_settings(t->r->settings, &settings);
    card.settings = settings.text;
    o->card = &card;
    bool from_checkpoint = t->r->comm || export_is_gguf_name(o->dir);
    status rc =
        from_checkpoint ? export_saved(t, o, out) : export_running(t->e, t->p, t->description, &t->tokenizer, o, out);
    o->card = NULL;
    strbuf_fini(&settings);
    return rc;
}

status trainer_export(trainer *t, const export_options *o, export_report *out) {
    export_options own = *o;
    if (export_is_gguf_name(o->dir)) {
        own.gguf = t->r->export_gguf;
        TRY(trainer_save(t));
    }
    return export_with_card(t, &own, NULL, out);
}

static status export_model(trainer *t, const train_result *result) {
    export_options o = {.dir = t->r->export_dir, .type = DTYPE_COUNT};
    if (export_is_gguf_name(o.dir)) o.gguf = t->r->export_gguf;
    export_report report;
    char size[32];
    TRY(export_with_card(t, &o, result, &report));
    train_say(t->o, "exported to %s: %s in %s", o.dir, str_format_bytes(size, report.n_bytes), report.format);
    return OK;
}

/* A program may have SECTION_EVAL for its task alone. */
static bool evaluates(const trainer *t) {
    return t->p->request.with_eval && (t->r->train.eval_rows > 0 || t->r->train.problems > 0);
}

static bool evaluates_after(const trainer *t, int64_t step) {
    const train_options *o = &t->r->train;
    return evaluates(t) && o->eval_every && step % o->eval_every == 0 && step < o->steps;
}

static bool samples_after(const train_options *o, int64_t step) {
    return o->sample_every && (step % o->sample_every == 0 || step == o->steps);
}

static bool is_over(const trainer *t) {
    return t->state.step >= t->r->train.steps || best_gave_up(&t->best, &t->state);
}

unsigned trainer_due(const trainer *t) {
    int64_t step = t->state.step;
    if (!t->has_stepped) return 0;
    return (evaluates_after(t, step) ? TRAIN_DUE_EVALUATION : 0U) |
           (samples_after(&t->r->train, step) ? TRAIN_DUE_SAMPLES : 0U) |
           (t->checkpoints && t->save_is_due && may_save(t) ? TRAIN_DUE_SAVE : 0U) | (is_over(t) ? TRAIN_DUE_END : 0U);
}

/* Does the next step follow directly? Decided by the schedule alone, so that all ranks agree. */
static bool next_step_follows(const trainer *t, int64_t step) {
    const train_options *o = &t->r->train;
    return step < o->steps && !evaluates_after(t, step) && !samples_after(o, step) && !saves_after(o, step);
}

/* An evaluation that a signal interrupts gives no result; the next step handles the signal. */
static status evaluate_between(trainer *t, train_result *out) {
    status rc = trainer_evaluate(t, &out->eval);
    t->state.unevaluated = rc == ERR_INTERRUPTED;
    if (rc != ERR_INTERRUPTED) return rc;
    error_clear();
    return OK;
}

/* An evaluation that a signal interrupted was not counted, and comes before the next step: its numbers are in no file, and it may be the
 * best one. Checkpoints of an older ralo know of it only where train.patience counts. */
static status catch_up(trainer *t, train_result *out) {
    const checkpoint_patience *p = &t->state.patience;
    bool uncounted = *p->metric && p->evaluated != t->state.step;
    if (!(t->state.unevaluated || uncounted) || !evaluates_after(t, t->state.step)) return OK;
    return evaluate_between(t, out);
}

/* Skipped steps count for train.steps and not for the schedule, so a run may end before the schedule does. */
static void report_skipped(const trainer *t) {
    const train_state *s = &t->state;
    int64_t skipped = s->step - s->updates;
    if (skipped == 0) return;
    train_say(t->o,
              "%lld of %lld steps were skipped and did not advance the schedule: it ended after update %lld, at "
              "learning rate "
              "%g; raise train.steps by %lld to make as many updates",
              (long long)skipped, (long long)s->step, (long long)s->updates,
              schedule_lr(&t->r->train, MAX(s->updates, (int64_t)1)), (long long)skipped);
}

static status loop(trainer *t, train_result *out) {
    const train_options *o = &t->r->train;
    int64_t saved_at = -1;
    bool stop = false;
    TRY(catch_up(t, out));
    if (t->state.step >= o->steps)
        train_say(t->o, "nothing is left to train: step %lld of %lld was reached; raise %s to continue",
                  (long long)t->state.step, (long long)o->steps, o->epochs > 0 ? "train.epochs" : "train.steps");
    bool trains = !is_over(t);
    while (!is_over(t)) {
        TRY(ask_for_stop(t, &stop));
        if (stop && may_save(t)) break;
        train_step_report report;
        TRY(run_step(t, next_step_follows(t, t->state.step + 1), &report));
        t->state.unevaluated = 0;
        if (t->o->on_step) t->o->on_step(t->o->context, &report);
        if (t->checkpoints) TRY(checkpointer_poll(t->checkpoints));
        unsigned due = trainer_due(t);
        if (due & TRAIN_DUE_EVALUATION) TRY(evaluate_between(t, out));
        if (due & TRAIN_DUE_SAMPLES) TRY(trainer_sample(t));
        if (due & TRAIN_DUE_SAVE) {
            TRY(trainer_save(t));
            saved_at = report.step;
        }
    }
    if (trains && t->state.step == o->steps) report_skipped(t);
    bool wanted = !t->r->no_last_checkpoint || stop; /* the same on all ranks, unlike the flag itself */
    if (saved_at != t->state.step && wanted) TRY(trainer_save(t));
    TRY(trainer_wait(t));
    out->saved = t->checkpoints && (saved_at == t->state.step || wanted);
    if (t->state.step == o->steps || !best_gave_up(&t->best, &t->state))
        return t->state.step < o->steps ? interrupted(t, "after", t->r->run_dir) : OK;
    const checkpoint_patience *p = &t->state.patience;
    train_say(t->o,
              "stopped after step %lld of %lld: %s has not been better than %.6g, of step %lld, in %lld evaluations "
              "(train.patience)",
              (long long)t->state.step, (long long)o->steps, p->metric, p->value, (long long)p->step,
              (long long)p->worse);
    return OK;
}

/* The steps are done and saved as the request wants it. */
static status finish(trainer *t, train_result *out) {
    const train_request *r = t->r;
    bool is_known = out->eval.step == t->state.step && best_gave_up(&t->best, &t->state);
    if (evaluates(t)) {
        if (!is_known) TRY(trainer_evaluate(t, &out->eval));
        if (t->task->examples) TRY(t->task->examples(t->self));
    }
    return r->export_dir ? export_model(t, out) : OK;
}

/* Now, not after hours of training. */
static status check_export(const train_request *r) {
    static const char setting[] = "run.export";
    if (!export_is_gguf_name(r->export_dir)) return export_check_dir(setting, r->export_dir);
    if (r->no_last_checkpoint)
        return ERR(ERR_INPUT,
                   "%s: found %s with run.save_last=false, but a GGUF file is made from the last checkpoint; set "
                   "run.save_last=true, or leave %s out",
                   setting, r->export_dir, setting);
    return export_check_gguf(setting, r->export_dir, model_of(&r->plan.source), r->data.tokenizer);
}

status train_check_reference(const train_request *r) {
    const char *dir = r->plan.reference_dir;
    return dir ? weights_check_reference(model_of(&r->plan.source), dir) : OK;
}

status train_check_places(const train_request *r) {
    char found[4096];
    if (r->export_dir) TRY(check_export(r));
    if (r->export_dir && r->comm) TRY(comm_barrier(r->comm)); /* before one rank writes what another still reads */
    const char *prompts = r->train.sample_every > 0 ? r->train.sample_prompts : NULL;
    if (prompts && *prompts && access(prompts, R_OK) != 0)
        return ERR(ERR_INPUT, "train.sample_prompts: found no file %s (%s), expected prompts, one on each line",
                   prompts, strerror(errno));
    if (!r->resume || strcmp(r->resume, "auto") == 0) return OK;
    TRY(checkpoint_find_newest_quietly(r->resume, found, sizeof found));
    return found[0] ? OK : find_resumed(r, found, sizeof found); /* which says what is wrong with it */
}

status train_check_weights(const train_request *r, const plan *p) {
    weights_origin from = origin_of(r);
    return weights_start_check(p, &from, r->resume != NULL);
}

status train_check(const train_request *r, const plan *p) {
    TRY(train_check_weights(r, p));
    return frozen_check(r, p);
}

/* Device memory as the driver counts it. Ranks that share a GPU see the sum of all: each has its own arena and an
 * equal part of the rest. */
static status measure_driver(trainer *t, train_result *out) {
    comm *ranks = t->r->comm;
    uint64_t arena = t->p->program.arena_bytes[TIER_DEVICE], arenas = arena;
    if (ranks) TRY(comm_device_sum(ranks, &arenas));
    bool known = exec_driver_memory(t->e, &out->gpu_context, &out->gpu_in_use);
    if (ranks) TRY(comm_barrier(ranks)); /* no rank closes before all have read it */
    int sharing = ranks ? comm_device_sharing(ranks) : 1;
    if (!known || sharing == 1) return OK;
    out->gpu_context = (out->gpu_in_use - MIN(arenas, out->gpu_in_use)) / (uint64_t)sharing;
    out->gpu_in_use = arena + out->gpu_context;
    return OK;
}

/* Also after a failure rc: an error of hashing is then not the cause to report. */
static status hash_params(trainer *t, status rc, uint64_t *out) {
    error_record why;
    if (rc != OK) error_take(&why);
    status read = trainer_param_hash(t, out);
    return rc == OK ? read : error_give(&why);
}

/* After the first step the request was right: a disk error is then a failed run, which may be started again
 * unchanged. */
static status failed_after(int64_t steps, status rc) {
    error_record why;
    if (rc != ERR_IO || steps == 0) return rc;
    error_take(&why);
    why.code = ERR_RUN;
    return error_give(&why);
}

status train_run(const train_request *r, const plan *p, const dataset *d, const train_observer *o, train_result *out) {
    status rc;
    trainer *t;
    *out = (train_result){.eval = {.loss = NAN, .exact_match = NAN}};
    TRY_GOTO(rc, trainer_open(&t, r, p, d, o), done);
    if (o->on_start) TRY_GOTO(rc, o->on_start(o->context, t->state.step), done);
    sys_cores before, after;
    sys_cores_get(&before);
    rc = loop(t, out);
    sys_cores_get(&after);
    out->contention = sys_contention_between(&before, &after);
    if (r->comm) out->contention.others = 0;
    out->steps = t->state.step;
    out->first_loss = t->state.first_loss;
    out->last_loss = t->state.last_loss;
    out->tokens = t->state.tokens;
    if (t->step.seconds > 0) {
        out->tokens_per_second = (double)t->step.timed_tokens / t->step.seconds;
        out->step_ms = t->step.seconds * 1e3 / (double)t->step.timed_steps;
    }
    if (rc == OK && (rc = finish(t, out)) == ERR_INTERRUPTED) {
        error_clear();
        rc = interrupted(t, "in the evaluation after", out->saved);
    }
    out->best = t->state.best;
    rc = tell_ranks(r, failed_after(out->steps, rc));
    rc = failed_after(out->steps, hash_params(t, rc, &out->param_hash));
    exec_ledger(t->e, &out->memory);
    bool timed = exec_is_timed(t->e) && t->step.timed_steps > 0;
    out->idle = timed ? 1 - t->step.kernel_seconds / t->step.micro_seconds : NAN;
    double n_steps = (double)t->step.timed_steps;
    for (op_kind k = 0; k < OP_COUNT && timed; k++) out->step_seconds[k] = t->step.busy_seconds[k] / n_steps;
    out->host_planned = p->planned[TIER_HOST] - p->program.arena_bytes[TIER_HOST];
    out->host_peak = t->task->host_bytes(t->self) + dataset_host_bytes(d) +
                     (t->samples ? samples_host_bytes(t->samples) : 0) +
                     (t->checkpoints ? checkpointer_staged_bytes(t->checkpoints) : 0);
    out->rss_peak = sys_rss_peak_bytes();
    if (rc == OK) rc = measure_driver(t, out);
done:
    interrupt_requested = 0; /* here, not at the start: a signal may come before the first step */
    trainer_close(t);
    return rc;
}
