/* step.c - one optimizer step: micro-batches, one update, and what is known after it.
 *
 * The program does the step itself: forward, backward, norm, clip, AdamW, and the decision to skip a step that is not
 * finite. This file gives it the scalars, and the inputs of a step_source. Between two steps nothing is allocated.
 *
 * If the program has SECTION_TURN, a step that is directly followed by another ends with it: the update overlaps the
 * next step's first micro-batch, which is "carried". All interruptions between steps are known beforehand, except a
 * signal: a run that stops then drops the carried micro-batch, and no checkpoint contains anything of it. */
#include "train/step.h"

#include <math.h>
#include <string.h>

#define DRIVER_INTERVAL_NS 1000000000ull

/* Where a micro-batch stands among those that one run of the section takes. */
static const micro_inputs *inputs_of(const stepper *s, int64_t micro) {
    return &s->plan->step.inputs[micro % s->plan->step.micros_per_run];
}

static bool is_last_of_run(const stepper *s, int64_t micro) { return (micro + 1) % s->plan->step.micros_per_run == 0; }

/* fp16 gradients need a scale. Before the step only an upper bound of the token count is known, so the seed is the
 * scale over the next power of two of that bound: exact to undo, and about the magnitude of a mean loss. */
static float loss_seed(const stepper *s) {
    if (s->plan->request.choice.precision != PRECISION_FP16) return 1;
    int exponent;
    frexp((double)plan_tokens_per_step(s->plan), &exponent);
    return (float)ldexp(s->state->scaler.scale, -exponent);
}

/* The update that a step makes, from 1. A step that is skipped makes none, so neither warmup nor schedule moves on, as
 * in accelerate and DeepSpeed. */
static int64_t update_of(const train_state *state) { return state->updates + 1; }

static void write_scalars(const stepper *s, value_id to, int64_t step, int64_t micro) {
    const train_options *o = s->options;
    const mesh *m = &s->plan->request.mesh;
    double update = (double)update_of(s->state);
    uint64_t noise = rng_key(s->state->seed, "stochastic rounding");
    step_scalars x = step_scalars_of((uint32_t)step, (uint32_t)micro);
    x.lr = (float)schedule_lr(o, update_of(s->state));
    x.seed = loss_seed(s);
    x.micro_of_all = (uint32_t)(micro * mesh_size(m, AXIS_DATA) + m->index[AXIS_DATA]);
    x.bias1 = (float)(1 - pow(o->beta1, update));
    x.bias2 = (float)(1 - pow(o->beta2, update));
    x.noise_lo = (uint32_t)noise;
    x.noise_hi = (uint32_t)(noise >> 32);
    x.grad_unscale = 1 / x.seed;
    exec_write(s->exec, to, 0, &x, sizeof x);
}

/* NaN of x86 has a sign, which printf would show: -nan. */
static double without_sign_of_nan(double number) { return isnan(number) ? NAN : number; }
static double loss_of(const step_outcome *r) { return without_sign_of_nan(r->clip[CLIP_LOSS]); }
static double norm_of(const step_outcome *r) { return without_sign_of_nan(r->clip[CLIP_NORM]); }

/* ---- a step that is not finite --------------------------------------------------------------------------------- */

/* Non-finite numbers spread to all ranks. The rank that saw one first reports where; the others wait at a barrier
 * that fails with its error. Clocks of different machines cannot be compared: there, any rank that saw one reports. */
static status let_first_rank_report(comm *ranks, uint64_t seen_ns) {
    uint64_t first_ns = seen_ns;
    TRY(comm_least(ranks, &first_ns));
    return seen_ns == first_ns ? OK : comm_barrier(ranks);
}

/* Finds where the first non-finite number appeared, by running the step's micro-batches again. */
static status explain_fault(const stepper *s, const step_outcome *step) {
    exec_fault f = {0};
    uint64_t seen_ns = UINT64_MAX;
    double loss = loss_of(step), norm = norm_of(step);
    /* Other ranks search as well and take part in every message: no rank stops at what it found. */
    for (int64_t micro = 0; micro < step->n_micros && (s->comm || !f.found); micro++) {
        exec_fault found;
        TRY(s->source->again(s->context, step->first_row, micro, inputs_of(s, micro)));
        write_scalars(s, inputs_of(s, micro)->scalars, step->step, micro);
        if (!is_last_of_run(s, micro)) continue;
        exec_find_fault(s->exec, SECTION_MICRO, &found);
        if (!f.found && found.found) f = found, seen_ns = found.seen_ns;
    }
    if (s->comm) TRY(let_first_rank_report(s->comm, seen_ns));
    if (!f.found)
        return ERR(ERR_RUN,
                   "step %lld: loss %g, gradient norm %g is not finite; all tensors of the step are finite, so a sum "
                   "overflowed",
                   (long long)step->step, loss, norm);
    const value *w = program_get(&s->plan->program, f.value);
    const op *o = &s->plan->program.ops[f.op_index];
    char where[32] = "outside the layers";
    if (o->layer >= 0) snprintf(where, sizeof where, "layer %d", o->layer);
    return ERR(ERR_RUN,
               "step %lld: loss %g, gradient norm %g is not finite. First seen in %s, tensor '%s' element %lld = %g "
               "(op %s). Lower train.lr, check the data, or set train.nonfinite=skip to skip such steps",
               (long long)step->step, loss, norm, where, w->name, (long long)f.element, without_sign_of_nan(f.number),
               op_name(o->kind));
}

/* ---- micro-batches and update ---------------------------------------------------------------------------------- */

static double kernel_seconds(const stepper *s) {
    double sum = 0;
    for (op_kind k = 0; k < OP_COUNT; k++)
        if (k != OP_COPY && !op_is_comm(k)) sum += exec_busy_seconds(s->exec, k);
    return sum;
}

/* last: of the micro-batches that this run takes. */
static status run_micro(stepper *s, int64_t last) {
    int64_t n = s->plan->step.micros_per_run;
    double begin = clock_s();
    double kernels = kernel_seconds(s);
    TRY(exec_run(s->exec, SECTION_MICRO));
    s->micro_seconds += clock_s() - begin;
    s->n_micro_runs++;
    s->kernel_seconds += kernel_seconds(s) - kernels;
    return s->source->ran ? s->source->ran(s->context, last + 1 - n, n) : OK;
}

/* Sections that come before the micro-batches of a step. */
static status run_before_micros(stepper *s) {
    if (!s->is_loaded) TRY(exec_run(s->exec, SECTION_LOADED));
    s->is_loaded = true;
    return s->has_prepare ? exec_run(s->exec, SECTION_PREPARE) : OK;
}

/* Forward and backward of a step. If the first micro-batch was carried, only its scalars are missing: the update
 * reads them. */
static status run_micros(stepper *s, int64_t step, int64_t *n) {
    if (s->source->before) TRY(s->source->before(s->context, step));
    *n = s->source->micros ? s->source->micros(s->context) : s->plan->request.choice.accumulation;
    ASSERT(*n >= 1 && *n <= s->plan->request.choice.accumulation);
    if (s->carried) write_scalars(s, inputs_of(s, 0)->scalars, step, 0);
    for (int64_t micro = s->carried; micro < *n; micro++) {
        TRY(s->source->next(s->context, inputs_of(s, micro)));
        write_scalars(s, inputs_of(s, micro)->scalars, step, micro);
        if (micro == 0) TRY(run_before_micros(s));
        if (is_last_of_run(s, micro)) TRY(run_micro(s, micro));
    }
    return OK;
}

/* The update, overlapped with the first micro-batch of the next step if that follows directly. No scalar that a
 * micro-batch reads depends on whether this update is skipped. The carried micro-batch counts for its own step, with
 * the time that it would take alone. */
static status run_update(stepper *s, int64_t step, bool next_step_follows) {
    value_id turn = s->plan->step.turn_scalars;
    s->carried = next_step_follows && turn;
    s->carried_s = 0;
    if (!s->carried) return exec_run(s->exec, SECTION_UPDATE);
    double begin = clock_s();
    TRY(s->source->next(s->context, inputs_of(s, 0)));
    write_scalars(s, turn, step + 1, 0);
    TRY(exec_run(s->exec, SECTION_TURN));
    s->carried_s = fmin(clock_s() - begin, s->micro_seconds / (double)s->n_micro_runs);
    return OK;
}

static status run_step(stepper *s, bool next_step_follows, step_outcome *out) {
    *out = (step_outcome){.step = s->state->step + 1, .first_row = s->state->data_row};
    if (s->comm) comm_note_step(s->comm, out->step);
    double begin = clock_s(), own_before = s->carried_s;
    TRY(run_micros(s, out->step, &out->n_micros));
    out->next_row = s->source->position(s->context); /* a resumed run computes the carried micro-batch again */
    TRY(run_update(s, out->step, next_step_follows));
    exec_read(s->exec, s->plan->step.clip, 0, out->clip, sizeof out->clip);
    TRY(exec_check(s->exec));
    out->seconds = clock_s() - begin + own_before - s->carried_s;
    out->skipped = out->clip[CLIP_SKIP] != 0;
    return OK;
}

/* ---- the face -------------------------------------------------------------------------------------------------- */

status stepper_init(stepper *s) {
    size_t first, end;
    program_section(&s->plan->program, SECTION_PREPARE, &first, &end);
    s->has_prepare = first < end;
    program_section(&s->plan->program, SECTION_LOADED, &first, &end);
    s->is_loaded = first == end;
    if (s->source->micros && s->plan->step.micros_per_run > 1)
        return ERR(ERR_BUG, "the task has steps of several lengths, but a pipeline runs all micro-batches at once");
    if ((s->source->before || s->source->ran) && s->plan->step.turn_scalars)
        return ERR(ERR_BUG, "the task reads results between update and micro-batch, but the plan overlaps the two; its "
                            "shape must set overlap_update to false");
    return OK;
}

/* Op times count for the step in which they ran, even if they belong to the next one. */
status stepper_run(stepper *s, bool next_step_follows, step_outcome *out) {
    if (s->state->step >= s->options->steps)
        return ERR(ERR_INPUT, "all %lld steps are done; raise train.steps for more", (long long)s->options->steps);
    for (op_kind k = 0; k < OP_COUNT; k++) s->busy_seconds[k] -= exec_busy_seconds(s->exec, k);
    status rc = run_step(s, next_step_follows, out);
    for (op_kind k = 0; k < OP_COUNT; k++) s->busy_seconds[k] += exec_busy_seconds(s->exec, k);
    return rc;
}

/* Between steps, on the thread that runs them: a call of the driver from another thread would wait for locks that a step holds.
 * Rarely, because it may cost a millisecond. */
static uint64_t read_driver(stepper *s) {
    uint64_t now = clock_ns(), context, in_use;
    if (s->driver_read_ns && now - s->driver_read_ns < DRIVER_INTERVAL_NS) return s->driver_bytes;
    s->driver_read_ns = now;
    s->driver_bytes = exec_driver_memory(s->exec, &context, &in_use) ? in_use : 0;
    return s->driver_bytes;
}

status stepper_finish(stepper *s, const step_outcome *r, train_step_report *report) {
    const train_options *o = s->options;
    bool fp16 = s->plan->request.choice.precision == PRECISION_FP16;
    train_state *state = s->state;
    double loss = loss_of(r), norm = norm_of(r), scale = state->scaler.scale, lr = schedule_lr(o, update_of(state));
    if (r->skipped && !fp16 && o->nonfinite == NONFINITE_STOP) return explain_fault(s, r);
    if (fp16) TRY(scaler_update(&state->scaler, o, r->skipped));
    if (r->skipped && fp16)
        train_say(s->observer, "step %lld: gradients overflow at loss scale %g, step skipped, scale now %g",
                  (long long)r->step, scale, state->scaler.scale);
    else if (r->skipped)
        train_say(s->observer, "step %lld: loss %g, gradient norm %g is not finite, step skipped", (long long)r->step,
                  loss, norm);
    double share = (double)r->n_micros / (double)s->plan->request.choice.accumulation; /* of the planned step */
    uint64_t tokens = (uint64_t)plan_tokens_per_step(s->plan) / (uint64_t)s->plan->request.choice.accumulation *
                      (uint64_t)r->n_micros;
    state->step = r->step;
    state->updates += !r->skipped;
    state->data_row = r->next_row;
    state->tokens += tokens;
    s->seconds += r->seconds;
    s->timed_tokens += tokens;
    s->timed_steps++;
    ledger memory;
    exec_ledger(s->exec, &memory);
    *report = (train_step_report){.device_bytes = memory.peak[TIER_DEVICE],
                                  .on_gpu = s->plan->request.target.discrete,
                                  .step = r->step,
                                  .steps = o->steps,
                                  .loss = loss,
                                  .grad_norm = norm,
                                  .lr = lr,
                                  .tokens_per_second = (double)tokens / r->seconds,
                                  .step_ms = r->seconds * 1e3,
                                  .loss_scale = fp16 ? scale : 0,
                                  .flops_per_second = share * s->plan->flops_per_step / r->seconds,
                                  .tokens = state->tokens,
                                  .driver_bytes = read_driver(s),
                                  .skipped = r->skipped};
    memcpy(report->tier_bytes, memory.peak, sizeof report->tier_bytes);
    return OK;
}
