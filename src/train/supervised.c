/* supervised.c - the trainer: micro-batches, one update per step, evaluation, checkpoints; and the loop of `ralo train`
 * with a clean stop.
 *
 * The program does the step itself: forward, backward, norm, clip, AdamW, and the decision to skip a step that is not
 * finite. This file decides which rows and scalars it gets and when to save. Between two steps nothing is allocated.
 *
 * If the program has SECTION_TURN, a step that is directly followed by another ends with it: the update overlaps the
 * next step's first micro-batch, which is "carried". All interruptions between steps are known beforehand, except a
 * signal: a run that stops then drops the carried micro-batch, and no checkpoint contains anything of it. */
#include "train/batch.h"
#include "train/evaluate.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>

#define EXAMPLES 4         /* shown at most */
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
    bool has_prepare; /* does the program have a prepare section? */
    bool carried;     /* the first micro-batch of the next step has already run, in the last turn ... */
    double carried_s; /* ... and took so much of that step's time */
    loader *l;
    checkpointer *checkpoints;
    checkpoint_tensor *tensors;
    size_t n_tensors;
    evaluator eval;
    double eval_reported_s; /* when the evaluation began or last reported progress */
    train_state state;
    double seconds;                       /* spent in steps since the start of this process */
    double micro_seconds, kernel_seconds; /* of them in forward and backward alone; and there in kernels */
    uint64_t n_micro_runs;                /* in these */
    uint64_t timed_tokens;
    double busy_seconds[OP_COUNT]; /* in steps, by kind of op */
    lora_base base;                /* under adapters; all 0: there are none */
    char *description;             /* of the model, for export */
    tokenizer_files tokenizer;     /* on the rank that writes */
    arena memory;
};

static void say(const trainer *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void say(const trainer *t, const char *fmt, ...) {
    if (!t->o->on_message) return;
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    t->o->on_message(t->o->context, text);
}

/* Where a micro-batch stands among those that one run of the section takes. */
static const micro_inputs *inputs_of(const trainer *t, int64_t micro) {
    return &t->p->step.inputs[micro % t->p->step.micros_per_run];
}

static bool is_last_of_run(const trainer *t, int64_t micro) { return (micro + 1) % t->p->step.micros_per_run == 0; }

/* fp16 gradients need a scale. Before the step only an upper bound of the token count is known, so the seed is the
 * scale over the next power of two of that bound: exact to undo, and about the magnitude of a mean loss. */
static float loss_seed(const trainer *t) {
    if (t->p->request.choice.precision != PRECISION_FP16) return 1;
    int exponent;
    frexp((double)plan_tokens_per_step(t->p), &exponent);
    return (float)ldexp(t->state.scaler.scale, -exponent);
}

static void write_scalars(const trainer *t, value_id to, int64_t step, int64_t micro) {
    const train_options *o = &t->r->train;
    const plan_request *q = &t->p->request;
    double update = (double)(t->state.updates + 1);
    uint64_t noise = rng_key(t->state.seed, "stochastic rounding");
    step_scalars s = {.lr = (float)schedule_lr(o, step),
                      .seed = loss_seed(t),
                      .step = (uint32_t)step,
                      .micro = (uint32_t)micro,
                      .micro_of_all = (uint32_t)(micro * mesh_size(&q->mesh, AXIS_DATA) + q->mesh.index[AXIS_DATA]),
                      .bias1 = (float)(1 - pow(o->beta1, update)),
                      .bias2 = (float)(1 - pow(o->beta2, update)),
                      .noise_lo = (uint32_t)noise,
                      .noise_hi = (uint32_t)(noise >> 32)};
    s.grad_unscale = 1 / s.seed;
    exec_write(t->e, to, 0, &s, sizeof s);
}

/* Non-finite numbers spread to all ranks. The rank that saw one first reports where; the others wait at a barrier
 * that fails with its error. Clocks of different machines cannot be compared: there, any rank that saw one reports. */
static status let_first_rank_report(comm *ranks, uint64_t seen_ns) {
    uint64_t first_ns = seen_ns;
    TRY(comm_least(ranks, &first_ns));
    return seen_ns == first_ns ? OK : comm_barrier(ranks);
}

/* Finds where the first non-finite number appeared, by running the step's micro-batches again. */
static status explain_fault(trainer *t, int64_t step, uint64_t first_row, double loss, double norm) {
    const plan_request *q = &t->p->request;
    int64_t T = q->seq_len;
    exec_fault f = {0};
    uint64_t seen_ns = UINT64_MAX;
    evaluator *v = &t->eval; /* its buffers are free between evaluations */
    /* Other ranks search as well and take part in every message: no rank stops at what it found. */
    for (int64_t micro = 0; micro < q->choice.accumulation && (t->r->comm || !f.found); micro++) {
        int64_t batch = micro * mesh_size(&q->mesh, AXIS_DATA) + q->mesh.index[AXIS_DATA];
        exec_fault found;
        for (int64_t b = 0; b < q->choice.micro_batch; b++)
            dataset_row(t->d, SPLIT_TRAIN, first_row + (uint64_t)(batch * q->choice.micro_batch + b), v->tokens + b * T,
                        v->targets + b * T, v->doc_start + b * T);
        batch_write(t->e, t->p, inputs_of(t, micro), v->tokens, v->targets, v->doc_start);
        write_scalars(t, inputs_of(t, micro)->scalars, step, micro);
        if (!is_last_of_run(t, micro)) continue;
        exec_find_fault(t->e, SECTION_MICRO, &found);
        if (!f.found && found.found) f = found, seen_ns = found.seen_ns;
    }
    if (t->r->comm) TRY(let_first_rank_report(t->r->comm, seen_ns));
    if (!f.found)
        return ERR(ERR_RUN,
                   "step %lld: loss %g, gradient norm %g is not finite; all tensors of the step are finite, so a sum "
                   "overflowed",
                   (long long)step, loss, norm);
    const value *w = program_get(&t->p->program, f.value);
    const op *o = &t->p->program.ops[f.op_index];
    char where[32] = "outside the layers";
    if (o->layer >= 0) snprintf(where, sizeof where, "layer %d", o->layer);
    return ERR(ERR_RUN,
               "step %lld: loss %g, gradient norm %g is not finite. First seen in %s, tensor '%s' element %lld = %g "
               "(op %s). Lower train.lr, check the data, or set train.nonfinite=skip to skip such steps",
               (long long)step, loss, norm, where, w->name, (long long)f.element, (double)f.number, op_name(o->kind));
}

static double kernel_seconds(const trainer *t) {
    double sum = 0;
    for (op_kind k = 0; k < OP_COUNT; k++)
        if (k != OP_COPY && !op_is_comm(k)) sum += exec_busy_seconds(t->e, k);
    return sum;
}

static status run_micro(trainer *t) {
    double begin = clock_s();
    double kernels = kernel_seconds(t);
    TRY(exec_run(t->e, SECTION_MICRO));
    t->micro_seconds += clock_s() - begin;
    t->n_micro_runs++;
    t->kernel_seconds += kernel_seconds(t) - kernels;
    return OK;
}

static void write_next_batch(trainer *t, int64_t micro) {
    const batch *b = loader_next(t->l);
    batch_write(t->e, t->p, inputs_of(t, micro), b->tokens, b->targets, b->doc_start);
}

/* Forward and backward of a step. If the first micro-batch was carried, only its scalars are missing: the update
 * reads them. */
static status run_micros(trainer *t, int64_t step) {
    if (t->carried) write_scalars(t, inputs_of(t, 0)->scalars, step, 0);
    for (int64_t micro = t->carried; micro < t->p->request.choice.accumulation; micro++) {
        write_next_batch(t, micro);
        write_scalars(t, inputs_of(t, micro)->scalars, step, micro);
        if (micro == 0 && t->has_prepare) TRY(exec_run(t->e, SECTION_PREPARE));
        if (is_last_of_run(t, micro)) TRY(run_micro(t));
    }
    return OK;
}

/* The update, overlapped with the first micro-batch of the next step if that follows directly. No scalar that a
 * micro-batch reads depends on whether this update is skipped. The carried micro-batch counts for its own step, with
 * the time that it would take alone. */
static status run_update(trainer *t, int64_t step, bool next_step_follows) {
    value_id turn = t->p->step.turn_scalars;
    t->carried = next_step_follows && turn;
    t->carried_s = 0;
    if (!t->carried) return exec_run(t->e, SECTION_UPDATE);
    double begin = clock_s();
    write_next_batch(t, 0);
    write_scalars(t, turn, step + 1, 0);
    TRY(exec_run(t->e, SECTION_TURN));
    t->carried_s = fmin(clock_s() - begin, t->micro_seconds / (double)t->n_micro_runs);
    return OK;
}

static status run_step(trainer *t, bool next_step_follows, train_step_report *report) {
    const train_options *o = &t->r->train;
    if (t->state.step >= o->steps)
        return ERR(ERR_INPUT, "all %lld steps are done; raise train.steps for more", (long long)o->steps);
    int64_t step = t->state.step + 1;
    if (t->r->comm) comm_note_step(t->r->comm, step);
    uint64_t first_row = t->state.data_row;
    double begin = clock_s(), own_before = t->carried_s;
    TRY(run_micros(t, step));
    uint64_t next_row = loader_position(t->l); /* a resumed run computes the carried micro-batch again */
    TRY(run_update(t, step, next_step_follows));
    float clip[CLIP_COUNT];
    exec_read(t->e, t->p->step.clip, 0, clip, sizeof clip);
    TRY(exec_check(t->e));
    double seconds = clock_s() - begin + own_before - t->carried_s;

    bool skipped = clip[CLIP_SKIP] != 0, fp16 = t->p->request.choice.precision == PRECISION_FP16;
    double scale = t->state.scaler.scale;
    /* All ranks see this and may end here: they finish an earlier save together. */
    if (skipped && t->r->comm && t->checkpoints) TRY(checkpointer_wait(t->checkpoints));
    if (skipped && !fp16 && o->nonfinite == NONFINITE_STOP)
        return explain_fault(t, step, first_row, clip[CLIP_LOSS], clip[CLIP_NORM]);
    if (fp16) TRY(scaler_update(&t->state.scaler, o, skipped));
    if (skipped && fp16)
        say(t, "step %lld: gradients overflow at loss scale %g, step skipped, scale now %g", (long long)step, scale,
            t->state.scaler.scale);
    else if (skipped)
        say(t, "step %lld: loss %g, gradient norm %g is not finite, step skipped", (long long)step,
            (double)clip[CLIP_LOSS], (double)clip[CLIP_NORM]);

    uint64_t tokens = (uint64_t)plan_tokens_per_step(t->p);
    t->state.step = step;
    t->state.updates += !skipped;
    t->state.data_row = next_row;
    t->state.tokens += tokens;
    if (step == 1) t->state.first_loss = clip[CLIP_LOSS];
    if (isfinite(clip[CLIP_LOSS])) t->state.last_loss = clip[CLIP_LOSS];
    t->seconds += seconds;
    t->timed_tokens += tokens;
    ledger memory;
    exec_ledger(t->e, &memory);
    *report = (train_step_report){.device_bytes = memory.peak[TIER_DEVICE],
                                  .step = step,
                                  .steps = o->steps,
                                  .loss = clip[CLIP_LOSS],
                                  .grad_norm = clip[CLIP_NORM],
                                  .lr = schedule_lr(o, step),
                                  .tokens_per_second = (double)tokens / seconds,
                                  .step_ms = seconds * 1e3,
                                  .loss_scale = fp16 ? scale : 0,
                                  .flops_per_second = t->p->flops_per_step / seconds,
                                  .tokens = t->state.tokens,
                                  .skipped = skipped};
    return OK;
}

/* Op times count for the step in which they ran, even if they belong to the next one. */
static status run_timed_step(trainer *t, bool next_step_follows, train_step_report *report) {
    for (op_kind k = 0; k < OP_COUNT; k++) t->busy_seconds[k] -= exec_busy_seconds(t->e, k);
    status rc = run_step(t, next_step_follows, report);
    for (op_kind k = 0; k < OP_COUNT; k++) t->busy_seconds[k] += exec_busy_seconds(t->e, k);
    return rc;
}

status trainer_step(trainer *t, train_step_report *report) { return run_timed_step(t, false, report); }

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
    strbuf command, word;
    strbuf_init(&command);
    strbuf_init(&word);
    strbuf_add(&command, "ralo train ");
    int n_ranks = t->r->comm ? comm_size(t->r->comm) : 1; /* fewer ranks would take fewer rows per step */
    if (n_ranks > 1) strbuf_printf(&command, "--ranks %d ", n_ranks);
    strbuf_printf(&word, "%s/config.yaml", dir);
    strbuf_add_word(&command, word.text);
    word.length = 0;
    strbuf_printf(&word, "run.dir=%s", dir);
    strbuf_add(&command, " --set ");
    strbuf_add_word(&command, word.text);
    status rc =
        ERR(ERR_INTERRUPTED, "interrupted %s step %lld of %lld; the state is saved, continue with: %s --resume auto",
            where, step, steps, command.text);
    strbuf_fini(&word);
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
    say(t, "eval at step %lld  %s %lld/%lld", (long long)t->state.step, what, (long long)done, (long long)n);
    return OK;
}

status trainer_evaluate(trainer *t, train_eval_report *out) {
    const train_options *o = &t->r->train;
    train_eval_report r = {.step = t->state.step, .n_rows = o->eval_rows};
    t->eval_reported_s = clock_s();
    TRY(evaluator_loss(&t->eval, o->eval_rows, &r.loss));
    TRY(evaluator_exact_match(&t->eval, o->problems, &r.n_problems, &r.exact_match));
    *out = r;
    if (t->o->on_eval) t->o->on_eval(t->o->context, out);
    return OK;
}

/* Other columns, formats and files give other tokens: the fingerprint covers them all, and edited files too. The
 * options before it tell the reader what differs. */
static const char *data_identity(trainer *t) {
    const data_options *d = &t->r->data;
    return arena_format(
        &t->memory,
        "data %s as %s, rows of %lld, %s, %g for evaluation, difficulty %lld, loss on %s, chat %s, tokens "
        "%016llx",
        d->source, d->tokenizer ? d->tokenizer : "byte", (long long)d->seq_len,
        d->pack ? "packed" : "one document each", d->eval_fraction, (long long)d->difficulty,
        d->train_on == TRAIN_ON_ALL ? "all" : "responses", chat_format_name(d->chat),
        (unsigned long long)dataset_fingerprint(t->d));
}

/* Identity of a checkpoint. The data is part of it: a position has a meaning in one data set only. */
static const char *identity(trainer *t) {
    const model_config *c = &t->p->request.model;
    precision q = t->p->request.choice.precision;
    state_format states = state_format_of(q, t->p->request.choice.states);
    bool usual = states == state_format_of(q, STATES_AUTO);
    return arena_format(&t->memory,
                        "%s: vocab %lld, hidden %lld, %lld layers, %lld/%lld heads of %lld, ffn %lld, %s, %s%s%s%s; %s",
                        model_family_traits(c->family)->name, (long long)c->vocab, (long long)c->hidden,
                        (long long)c->n_layers, (long long)c->n_heads, (long long)c->n_kv_heads, (long long)c->head_dim,
                        (long long)c->ffn, c->tied ? "tied" : "untied", precision_name(q), usual ? "" : ", states ",
                        usual ? "" : state_format_name(states),
                        lora_identity(&t->memory, c, &t->p->request.lora), data_identity(t));
}

/* The checkpoint to continue from; empty: auto, and there is none yet. */
static status find_resumed(const train_request *r, char *out, size_t n) {
    if (strcmp(r->resume, "auto") == 0) return checkpoint_find_newest(r->run_dir, out, n);
    return checkpoint_locate("resume", r->resume, "a run or a checkpoint directory", out, n);
}

static status resume(trainer *t, const char *id, bool *resumed) {
    comm *ranks = t->r->comm;
    char from[4096];
    *resumed = false;
    if (!t->r->resume) return OK;
    if (!ranks || comm_rank(ranks) == 0) TRY(find_resumed(t->r, from, sizeof from));
    if (ranks) TRY(comm_broadcast(ranks, from, sizeof from, 0)); /* the same on all */
    if (!from[0]) {
        say(t, "no checkpoint in %s yet: starting from step 0", t->r->run_dir);
        return OK;
    }
    if (t->p->request.lora.rank) TRY(lora_base_check(from, &t->p->request.model, &t->base));
    TRY(checkpoint_load(from, t->e, t->tensors, t->n_tensors, id, &t->state));
    if (t->state.seed != t->r->train.seed) /* the data order and the rounding noise follow the seed */
        return ERR(ERR_INPUT, "%s was made with train.seed %llu, this run has %llu; set train.seed=%llu to continue it",
                   from, (unsigned long long)t->state.seed, (unsigned long long)t->r->train.seed,
                   (unsigned long long)t->state.seed);
    say(t, "resumed from %s: step %lld, %llu tokens seen", from, (long long)t->state.step,
        (unsigned long long)t->state.tokens);
    *resumed = true;
    return OK;
}

static weights_origin origin_of(const train_request *r) {
    return (weights_origin){r->pretrained ? r->model_dir : NULL, r->adapter, r->train.seed, r->comm};
}

/* The base under adapters, which no checkpoint holds. */
static status load_frozen(trainer *t) {
    weights_origin from = origin_of(t->r);
    double begin = clock_s();
    TRY(weights_start_frozen(t->e, t->p, &from, &t->base));
    if (t->base.dir || clock_s() - begin > WORTH_SAYING_S)
        say(t, "frozen base %s loaded in %.1f s", t->base.dir ? t->base.dir : "of random values", clock_s() - begin);
    return OK;
}

/* Initial parameters of a run that is not resumed; states are zero already. */
static status initialize_params(trainer *t) {
    weights_origin from = origin_of(t->r);
    double begin = clock_s();
    char count[32];
    str_format_count(count, (double)plan_trained_params(&t->p->request));
    TRY(weights_start_trained(t->e, t->p, &from));
    const char *dir = t->p->request.lora.rank ? from.adapter : from.model_dir;
    if (dir) say(t, "weights of %s loaded: %s parameters in %.1f s", dir, count, clock_s() - begin);
    else if (clock_s() - begin > WORTH_SAYING_S)
        say(t, "parameters initialized: %s in %.1f s", count, clock_s() - begin);
    return OK;
}

static status open_memory(trainer *t, const exec_options *o) {
    double begin = clock_s();
    const size_t *n = t->p->program.arena_bytes;
    char device[32], host[32];
    TRY(exec_open(&t->e, &t->p->program, o));
    if (clock_s() - begin > WORTH_SAYING_S)
        say(t, "memory ready: %s on the device, %s on the host in %.1f s", str_format_bytes(device, n[TIER_DEVICE]),
            str_format_bytes(host, n[TIER_HOST]), clock_s() - begin);
    return OK;
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
    TRY(open_memory(t, &eo));
    size_t first, end;
    program_section(&t->p->program, SECTION_PREPARE, &first, &end);
    t->has_prepare = first < end;
    if (exec_disk_method(t->e)) say(t, "nvme offload in %s: %s", eo.nvme_path, exec_disk_method(t->e));
    evaluator_init(&t->eval, t->e, t->p, t->d, pause_evaluation, t);
    t->state = (train_state){.seed = r->train.seed, .first_loss = NAN, .last_loss = NAN};
    scaler_init(&t->state.scaler, &r->train);
    t->tensors = params_checkpoint_tensors(t->p, &t->memory, &t->n_tensors);
    const char *id = identity(t);
    TRY(load_frozen(t));
    TRY(export_describe(&r->plan.model, r->model_dir, &r->data, t->d, &t->description));
    TRY(lora_describe(t->p, &t->base, &t->description));
    if (!r->comm || comm_rank(r->comm) == 0) TRY(tokenizer_files_read(&t->tokenizer, r->data.tokenizer));
    if (r->run_dir) { /* first: repairs what a crash left */
        checkpoint_options co = {.run_dir = r->run_dir,
                                 .keep = r->keep,
                                 .identity = id,
                                 .model = t->description,
                                 .tokenizer = &t->tokenizer,
                                 .background = r->train.save_every > 0,
                                 .comm = r->comm,
                                 .fresh = !r->resume};
        TRY(checkpointer_open(&t->checkpoints, &co, t->tensors, t->n_tensors));
    }
    bool resumed = false;
    TRY(resume(t, id, &resumed));
    if (!resumed) TRY(initialize_params(t));
    const mesh *m = &t->p->request.mesh;
    return loader_open(&t->l, t->d, SPLIT_TRAIN, t->p->request.choice.micro_batch, t->state.data_row,
                       m->index[AXIS_DATA], mesh_size(m, AXIS_DATA));
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
    *t = (trainer){.r = r, .p = p, .d = d, .o = o ? o : &silent};
    arena_init(&t->memory);
    *out = NULL;
    status rc = tell_ranks(r, open_parts(t));
    if (rc == OK) *out = t;
    else trainer_close(t);
    return rc;
}

void trainer_close(trainer *t) {
    if (!t) return;
    if (t->l) loader_close(t->l);
    if (t->checkpoints) checkpointer_close(t->checkpoints);
    if (t->e) {
        evaluator_fini(&t->eval);
        exec_close(t->e);
    }
    free(t->tensors);
    free(t->description);
    tokenizer_files_fini(&t->tokenizer);
    arena_fini(&t->memory);
    free(t);
}

const train_state *trainer_state(const trainer *t) { return &t->state; }

status trainer_save(trainer *t) {
    if (!t->checkpoints) return OK;
    if (t->o->on_save) t->o->on_save(t->o->context);
    return checkpointer_save(t->checkpoints, t->e, &t->state);
}

status trainer_wait(trainer *t) { return t->checkpoints ? checkpointer_wait(t->checkpoints) : OK; }

/* Each rank holds only a part: the first rank exports from the checkpoint that all saved. */
static status export_saved(trainer *t, const export_options *o, export_report *out) {
    if (!t->r->run_dir) return ERR(ERR_INPUT, "export with several ranks needs a checkpoint: set run.dir");
    TRY(trainer_wait(t));
    if (comm_rank(t->r->comm) == 0) TRY(export_checkpoint(t->r->run_dir, o, out));
    TRY(comm_barrier(t->r->comm));
    return comm_broadcast(t->r->comm, out, sizeof *out, 0);
}

status trainer_export(trainer *t, const export_options *o, export_report *out) {
    if (t->r->comm) return export_saved(t, o, out);
    return export_running(t->e, t->p, t->description, &t->tokenizer, o, out);
}

status trainer_param_hash(trainer *t, uint64_t *out) {
    *out = params_hash(t->e, t->p, t->r->comm);
    return exec_check(t->e);
}

static status export_model(trainer *t) {
    export_options o = {.dir = t->r->export_dir, .type = DTYPE_COUNT};
    export_report report;
    char size[32];
    TRY(trainer_export(t, &o, &report));
    say(t, "exported to %s: %s in %s", o.dir, str_format_bytes(size, report.n_bytes), dtype_name(report.type));
    return OK;
}

static bool evaluates_after(const trainer *t, int64_t step) {
    const train_options *o = &t->r->train;
    return t->p->request.with_eval && o->eval_every && step % o->eval_every == 0 && step < o->steps;
}

static bool saves_after(const train_options *o, int64_t step) { return o->save_every && step % o->save_every == 0; }

/* Does the next step follow directly? Decided by the schedule alone, so that all ranks agree. */
static bool next_step_follows(const trainer *t, int64_t step) {
    const train_options *o = &t->r->train;
    return step < o->steps && !evaluates_after(t, step) && !saves_after(o, step);
}

/* An evaluation that a signal interrupts gives no result; the next step handles the signal. */
static status evaluate_between(trainer *t, train_result *out) {
    status rc = trainer_evaluate(t, &out->eval);
    if (rc != ERR_INTERRUPTED) return rc;
    error_clear();
    return OK;
}

static status loop(trainer *t, train_result *out) {
    const train_options *o = &t->r->train;
    int64_t saved_at = -1;
    bool stop = false;
    if (t->state.step >= o->steps)
        say(t, "nothing is left to train: step %lld was reached and train.steps is %lld; raise it to continue",
            (long long)t->state.step, (long long)o->steps);
    while (t->state.step < o->steps) {
        TRY(ask_for_stop(t, &stop));
        if (stop) break;
        train_step_report report;
        TRY(run_timed_step(t, next_step_follows(t, t->state.step + 1), &report));
        if (t->o->on_step) t->o->on_step(t->o->context, &report);
        if (t->checkpoints) TRY(checkpointer_poll(t->checkpoints));
        if (evaluates_after(t, report.step)) TRY(evaluate_between(t, out));
        if (saves_after(o, report.step)) {
            TRY(trainer_save(t));
            saved_at = report.step;
        }
    }
    bool wanted = !t->r->no_last_checkpoint || stop; /* the same on all ranks, unlike the flag itself */
    if (saved_at != t->state.step && wanted) TRY(trainer_save(t));
    TRY(trainer_wait(t));
    out->saved = t->checkpoints && (saved_at == t->state.step || wanted);
    return t->state.step < o->steps ? interrupted(t, "after", t->r->run_dir) : OK;
}

/* The steps are done and saved as the request wants it. */
static status finish(trainer *t, train_result *out) {
    const train_request *r = t->r;
    if (t->p->request.with_eval) {
        TRY(trainer_evaluate(t, &out->eval));
        /* Also on ranks that print nothing: evaluation may gather parameters, and that needs all ranks. */
        if ((t->o->on_example || r->comm) && r->train.problems > 0)
            TRY(evaluator_examples(&t->eval, MIN(r->train.problems, (int64_t)EXAMPLES), t->o));
    }
    return r->export_dir ? export_model(t) : OK;
}

status train_check(const train_request *r, const plan *p) {
    if (r->export_dir) TRY(export_check_dir(r->export_dir));  /* now, not after hours of training */
    if (r->export_dir && r->comm) TRY(comm_barrier(r->comm)); /* before one rank writes what another still reads */
    weights_origin from = origin_of(r);
    TRY(weights_start_check(p, &from, r->resume != NULL));
    char found[4096]; /* before a run directory is made for a run that cannot resume */
    if (!r->resume || strcmp(r->resume, "auto") == 0) return OK;
    TRY(checkpoint_find_newest_quietly(r->resume, found, sizeof found));
    return found[0] ? OK : find_resumed(r, found, sizeof found); /* which says what is wrong with it */
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
    if (o->on_start) TRY_GOTO(rc, o->on_start(o->context), done);
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
    if (t->seconds > 0) {
        out->tokens_per_second = (double)t->timed_tokens / t->seconds;
        out->step_ms = t->seconds * 1e3 * (double)plan_tokens_per_step(p) / (double)t->timed_tokens;
    }
    if (rc == OK && (rc = finish(t, out)) == ERR_INTERRUPTED) {
        error_clear();
        rc = interrupted(t, "in the evaluation after", out->saved);
    }
    rc = tell_ranks(r, failed_after(out->steps, rc));
    rc = failed_after(out->steps, hash_params(t, rc, &out->param_hash));
    exec_ledger(t->e, &out->memory);
    bool timed = exec_is_timed(t->e) && t->timed_tokens > 0;
    out->idle = timed ? 1 - t->kernel_seconds / t->micro_seconds : NAN;
    double n_steps = (double)t->timed_tokens / (double)plan_tokens_per_step(p);
    for (op_kind k = 0; k < OP_COUNT && timed; k++) out->step_seconds[k] = t->busy_seconds[k] / n_steps;
    out->host_planned = p->planned[TIER_HOST] - p->program.arena_bytes[TIER_HOST];
    out->host_peak = loader_host_bytes(p->request.choice.micro_batch, p->request.seq_len) +
                     (uint64_t)p->request.choice.micro_batch * train_host_row_bytes(&p->request) +
                     dataset_host_bytes(d) + (t->checkpoints ? checkpointer_staged_bytes(t->checkpoints) : 0);
    out->rss_peak = sys_rss_peak_bytes();
    if (rc == OK) rc = measure_driver(t, out);
done:
    interrupt_requested = 0; /* here, not at the start: a signal may come before the first step */
    trainer_close(t);
    return rc;
}
