/* weighted_task.c - rows, weights and state of next-token losses that are weighed. */
#include "train/weighted_task.h"
#include "train/ahead.h"
#include "train/frozen.h"
#include "train/reference.h"

#include <math.h>
#include <stdlib.h>

/* ---- before the plan, open, close ------------------------------------------------------------------------------ */

/* Per token of a micro-batch, on the host. */
static uint64_t token_bytes(const train_request *r) {
    const weighting *w = weighting_of(r->train.weighting);
    uint64_t n = w->weigh ? sizeof(float) : 0;
    if (r->frozen.dir) n += sizeof(float) + sizeof(int32_t); /* numbers, marks */
    return n + (w->by_value ? sizeof(float) : 0);
}

status weighted_shape(train_request *r) {
    const weighting *w = weighting_of(r->train.weighting);
    if (w->shape) TRY(w->shape(r));
    TRY(row_task_shape(r));
    r->plan.host_row_bytes += (uint64_t)r->plan.seq_len * token_bytes(r);
    return OK;
}

static status fill_rows(void *self, uint64_t first_row, const int32_t *targets, const int32_t *doc_start);

status weighted_open(void **out, const task_host *h) {
    const train_request *r = h->request;
    const plan_request *q = &h->plan->request;
    size_t n = (size_t)(q->choice.micro_batch * q->seq_len);
    weighted_task *t = mem_alloc(sizeof *t);
    row_task_init(&t->rows, h);
    t->how = weighting_of(r->train.weighting);
    t->ema = value_ema_start();
    for (int i = 0; i < 2; i++) t->steps[i].position = UINT64_MAX;
    if (t->how->weigh) t->weights = mem_alloc(n * sizeof *t->weights);
    if (t->how->by_value) t->advantages = mem_alloc(n * sizeof *t->advantages);
    if (r->frozen.dir) {
        t->numbers = mem_alloc(n * sizeof *t->numbers);
        t->marks = mem_alloc(n * sizeof *t->marks);
    }
    t->rows.weights = t->weights;
    if (q->reference == REFERENCE_INPUT) t->rows.reference = t->numbers;
    if (t->weights || t->numbers) t->rows.fill = fill_rows;
    status rc = r->frozen.dir ? frozen_file_open(&t->file, r, h->plan, h->data) : OK;
    if (rc != OK) {
        weighted_close(t);
        return error_trail(rc, __FILE__, __LINE__, __func__);
    }
    *out = t;
    return OK;
}

void weighted_close(void *self) {
    weighted_task *t = self;
    numbers_file_close(t->file);
    free(t->weights);
    free(t->numbers);
    free(t->advantages);
    free(t->marks);
    row_task_close(self);
}

uint64_t weighted_host_bytes(const void *self) {
    const weighted_task *t = self;
    const plan_request *q = &t->rows.host.plan->request;
    uint64_t n = (uint64_t)(q->choice.micro_batch * q->seq_len);
    return row_task_host_bytes(self) + n * token_bytes(t->rows.host.request);
}

/* ---- the rows of a step ---------------------------------------------------------------------------------------- */

static int n_heads(const weighted_task *t) { return t->rows.host.plan->net.n_losses; }

/* Numbers, advantages and weights of one row, at row b of the buffers. */
static status fill_row(weighted_task *t, const weighted_step *s, uint64_t row, const int32_t *targets,
                       const int32_t *doc_start, int64_t b) {
    const task_host *h = &t->rows.host;
    int64_t T = h->plan->request.seq_len, at = b * T;
    if (t->file) TRY(frozen_file_row(t->file, h->data, row, targets, t->marks + at, T, t->numbers + at));
    if (t->advantages)
        value_advantages(&h->request->train.value, targets, doc_start, T, t->numbers + at, t->advantages + at);
    if (!t->weights) return OK;
    t->how->weigh(&(weighting_row){.request = h->request,
                                   .row = row,
                                   .T = T,
                                   .targets = targets,
                                   .doc_start = doc_start,
                                   .advantages = t->advantages ? t->advantages + at : NULL,
                                   .ema = &s->before},
                  t->weights + at);
    return OK;
}

static status fill_rows(void *self, uint64_t first_row, const int32_t *targets, const int32_t *doc_start) {
    weighted_task *t = self;
    const plan_request *q = &t->rows.host.plan->request;
    for (int64_t b = 0; b < q->choice.micro_batch; b++)
        TRY(fill_row(t, &t->steps[t->latest], first_row + (uint64_t)b, targets + b * q->seq_len,
                     doc_start + b * q->seq_len, b));
    return OK;
}

static uint64_t rows_per_step(const weighted_task *t) {
    const plan_request *q = &t->rows.host.plan->request;
    return (uint64_t)(q->choice.micro_batch * q->choice.accumulation * mesh_size(&q->mesh, AXIS_DATA));
}

/* Reads all rows of the step that begins at this position: targets of each head, and statistics of the weights. */
static status measure_step(weighted_task *t, weighted_step *s) {
    const plan_request *q = &t->rows.host.plan->request;
    evaluator *v = &t->rows.eval;
    uint64_t counts[MTP_HEADS_MAX] = {0};
    for (uint64_t row = 0; row < rows_per_step(t); row++) {
        dataset_row(t->rows.host.data, SPLIT_TRAIN, s->position + row, v->tokens, v->targets, v->doc_start);
        ahead_count(v->targets, v->doc_start, q->seq_len, n_heads(t), counts);
        if (!t->weights) continue;
        TRY(fill_row(t, s, s->position + row, v->targets, v->doc_start, 0));
        value_sums_add(&s->sums, v->targets, q->seq_len, t->advantages, t->weights);
    }
    ahead_scales(counts, n_heads(t), s->scales);
    if (t->how->by_value && s->sums.n > 0)
        value_ema_update(&s->after, value_mean(s->sums.n, s->sums.advantage),
                         value_deviation(s->sums.n, s->sums.advantage, s->sums.advantage_squares), VALUE_WARMUP,
                         VALUE_MOMENTUM);
    return OK;
}

/* The step that begins at this position becomes the latest one. Steps follow each other, and one may be asked for again. */
static status find_step(weighted_task *t, uint64_t position) {
    for (int i = 0; i < 2; i++)
        if (t->steps[i].position == position) {
            t->latest = i;
            return OK;
        }
    const weighted_step *before = &t->steps[t->latest];
    value_ema ema = before->position == UINT64_MAX ? t->ema : before->after;
    t->latest = 1 - t->latest;
    t->steps[t->latest] = (weighted_step){.position = position, .before = ema, .after = ema};
    return measure_step(t, &t->steps[t->latest]);
}

status weighted_next(void *self, const micro_inputs *to) {
    weighted_task *t = self;
    if (t->micro == 0) TRY(find_step(t, row_task_position(self)));
    t->micro = (t->micro + 1) % t->rows.host.plan->request.choice.accumulation;
    return row_task_write(&t->rows, to, t->steps[t->latest].scales);
}

status weighted_again(void *self, uint64_t position, int64_t micro, const micro_inputs *to) {
    weighted_task *t = self;
    TRY(find_step(t, position));
    return row_task_write_again(&t->rows, position, micro, to, t->steps[t->latest].scales);
}

/* The next step may have been looked at already, to overlap the update of this one. */
status weighted_after(void *self, train_step_report *report) {
    weighted_task *t = self;
    const weighted_step *s = &t->steps[t->steps[0].position == t->finished_at ? 0 : 1];
    ASSERT(s->position == t->finished_at);
    t->finished_at += rows_per_step(t);
    t->ema = s->after;
    return weighted_report(t, s, report);
}

/* ---- state ----------------------------------------------------------------------------------------------------- */

static uint64_t hash_frozen(const weighted_task *t) {
    return t->file ? numbers_file_model(t->file) : reference_hash(&t->rows.host);
}

status weighted_begin(void *self, uint64_t position) {
    weighted_task *t = self;
    t->reference_hash = hash_frozen(t);
    t->finished_at = position;
    return row_task_begin(self, position);
}

json_t *weighted_save(void *self) {
    const weighted_task *t = self;
    json_t *state = reference_save(t->reference_hash);
    if (t->how->by_value)
        json_object_set_new(state, "ema",
                            json_pack("{s:I, s:f, s:f}", "updates", (json_int_t)t->ema.updates, "mean", t->ema.mean,
                                      "std", t->ema.deviation));
    return state;
}

static status read_ema(const json_t *state, const char *where, value_ema *out) {
    const json_t *ema = json_object_get(state, "ema");
    TRY(json_get_int(ema, "updates", 0, INT64_MAX / 2, where, &out->updates));
    TRY(json_get_real(ema, "mean", where, &out->mean));
    TRY(json_get_real(ema, "std", where, &out->deviation));
    if (isfinite(out->mean) && isfinite(out->deviation) && out->deviation >= 0) return OK;
    return ERR(ERR_INPUT, "%s: task: ema: found mean %g and std %g, expected finite numbers, std not below 0", where,
               out->mean, out->deviation);
}

/* The frozen model is known already: no checkpoint holds it, so it could have become another one. */
status weighted_load(void *self, const json_t *state, const char *where) {
    weighted_task *t = self;
    const char *settings = t->how->by_value ? "verifiable.critic" : "train.weighting, rho1.reference or model.path";
    TRY(reference_compare(hash_frozen(t), state, where, settings));
    return t->how->by_value ? read_ema(state, where, &t->ema) : OK;
}

/* Other weights of tokens train another model. */
const char *weighted_identity(void *self, arena *memory) {
    const weighted_task *t = self;
    const train_options *o = &t->rows.host.request->train;
    const char *rows = row_task_identity(self, memory);
    if (o->weighting == WEIGHTING_BASELINE) return rows;
    const char *text = arena_format(memory, "%s, weighting %s", rows, weighting_name(o->weighting));
    if (t->how->by_value)
        return arena_format(memory, "%s, lambda %g, beta %g%s", text, o->value.lambda, o->value.beta,
                            o->value.terminal ? ", terminal" : "");
    if (o->weighting != WEIGHTING_RHO1) return text;
    return arena_format(memory, "%s, k_percent %g, mode %d%s", text, o->rho1_share, o->rho1_mode,
                        o->rho1_first_head ? ", all of the first head" : "");
}
