/* task_preference.c - learn from pairs of responses, or from single ones that are good or bad: dpo, ipo, orpo, simpo, kto.
 *
 * The program computes the loss of whole examples (PREFERENCE) and leaves its sums; this file hands it rows of whole examples,
 * and turns sums into the metrics that TRL has. Held-out examples are judged on the host, by the same formulas, from the losses
 * of their tokens. */
#include "train/batch.h"
#include "train/reference.h"

#include <math.h>
#include <stdlib.h>

_Static_assert((int)PART_CHOSEN == (int)PREFERENCE_CHOSEN && (int)PART_REJECTED == (int)PREFERENCE_REJECTED &&
                   (int)PART_MISMATCHED == (int)PREFERENCE_OTHER && (int)PART_STRIDE == (int)PREFERENCE_PARTS,
               "data and program number the parts of an example alike");

typedef struct preference {
    task_host host;
    loader *rows;            /* NULL: not begun */
    uint64_t reference_hash; /* of the frozen copy, where there is one */
    /* one micro-batch, for evaluation and for the search for a fault */
    int32_t *tokens, *targets, *doc_start, *segments;
    float *losses, *reference;
    preference_part *parts; /* of every row */
    int64_t *n_examples;    /* of every row */
} preference;

enum {
    CHOSEN,
    REJECTED,
    MARGINS,
    ACCURACIES,
    LOGPS_CHOSEN,
    LOGPS_REJECTED,
    KL,
    VAL_ACCURACIES,
    VAL_MARGINS,
    N_METRICS
};
static const task_metric metrics[N_METRICS] = {
    [CHOSEN] = {"rewards/chosen", NULL, "mean reward of chosen (kto: desirable) responses"},
    [REJECTED] = {"rewards/rejected", NULL, "mean reward of rejected (kto: undesirable) responses"},
    [MARGINS] = {"rewards/margins", "margin", "rewards/chosen less rewards/rejected"},
    [ACCURACIES] = {"rewards/accuracies", "accuracy", "share of pairs whose chosen response has the larger reward"},
    [LOGPS_CHOSEN] = {"logps/chosen", NULL, "mean log-probability of chosen responses"},
    [LOGPS_REJECTED] = {"logps/rejected", NULL, "mean log-probability of rejected responses"},
    [KL] = {"kl", NULL,
            "kto: how far the model is from the reference, in nats, from responses to other prompts; never below 0"},
    [VAL_ACCURACIES] = {"val/rewards/accuracies", "accuracy", "as rewards/accuracies, of held-out pairs"},
    [VAL_MARGINS] = {"val/rewards/margins", "margin", "as rewards/margins, of held-out pairs"},
};

static const preference_options *options_of(const preference *t) { return &t->host.plan->request.preference; }
static bool is_single(const preference *t) { return options_of(t)->kind == PREFERENCE_KTO; }
static int64_t length_of(const preference *t) { return t->host.plan->request.seq_len; }
static preference_part *parts_of(const preference *t, int64_t row) {
    return t->parts + row * length_of(t) * PREFERENCE_PARTS;
}
static int64_t rows_of(const preference *t) { return t->host.plan->request.choice.micro_batch; }

/* ---- before the plan ------------------------------------------------------------------------------------------- */

static uint64_t row_bytes(int64_t seq_len) {
    return (uint64_t)seq_len * (4 * sizeof(int32_t) + 2 * sizeof(float) + PREFERENCE_PARTS * sizeof(preference_part)) +
           sizeof(int64_t);
}

static status choose_reference(const train_request *r, reference_kind *out) {
    preference_kind k = r->preference.kind;
    *out = REFERENCE_NONE;
    if (!preference_compares(k)) return OK;
    *out = r->reference != REFERENCE_NONE ? r->reference : r->plan.lora.rank ? REFERENCE_BASE : REFERENCE_COPY;
    if (*out == REFERENCE_BASE && !r->plan.lora.rank)
        return ERR(ERR_INPUT,
                   "preference.reference: found base, which needs model.lora.rank: without adapters the model has no "
                   "frozen base; set copy or auto");
    return OK;
}

static status preference_shape(train_request *r) {
    plan_request *p = &r->plan;
    bool single = r->preference.kind == PREFERENCE_KTO;
    p->preference = r->preference;
    TRY(choose_reference(r, &p->reference));
    /* z is over the examples of a step, and a micro-batch does not see those of another. */
    if (single && (p->choice.accumulation > 1 || p->open.micro_batch))
        return ERR(ERR_INPUT,
                   "preference.loss: found kto with several micro-batches in a step, expected one: its z is over all "
                   "examples of the step; set train.accumulation=1 and train.micro_batch to the rows of a step");
    p->open.sequence = p->left_open.sequence = false; /* responses are whole on a rank */
    r->data.kind = single ? DATA_LABELLED : DATA_PAIRS;
    p->with_eval = r->train.eval_rows > 0;
    p->host_row_bytes =
        loader_host_bytes(1, p->seq_len) + loader_examples_host_bytes(1, p->seq_len) + row_bytes(p->seq_len);
    return OK;
}

/* ---- open, close ----------------------------------------------------------------------------------------------- */

static status preference_open(void **out, const task_host *h) {
    preference *t = mem_alloc(sizeof *t);
    *t = (preference){.host = *h};
    size_t n = (size_t)(rows_of(t) * length_of(t));
    int32_t **arrays[] = {&t->tokens, &t->targets, &t->doc_start, &t->segments};
    for (size_t i = 0; i < ARRAY_LENGTH(arrays); i++) *arrays[i] = mem_alloc(n * sizeof(int32_t));
    t->losses = mem_alloc(n * sizeof *t->losses);
    t->reference = mem_alloc(n * sizeof *t->reference);
    t->parts = mem_alloc(n * PREFERENCE_PARTS * sizeof *t->parts);
    t->n_examples = mem_alloc((size_t)rows_of(t) * sizeof *t->n_examples);
    *out = t;
    return OK;
}

static void preference_close(void *self) {
    preference *t = self;
    loader_close(t->rows);
    free(t->tokens);
    free(t->targets);
    free(t->doc_start);
    free(t->segments);
    free(t->losses);
    free(t->reference);
    free(t->parts);
    free(t->n_examples);
    free(t);
}

static const char *preference_identity(void *self, arena *memory) {
    const preference *t = self;
    const data_options *d = &t->host.request->data;
    const preference_options *o = options_of(t);
    return arena_format(
        memory,
        "%s with beta %g, smoothing %g, gamma %g, lambda %g, weights %g and %g; data %s as %s, rows of %lld, "
        "%s, %g for evaluation, chat %s, tokens %016llx",
        preference_name(o->kind), (double)o->beta, (double)o->smoothing, (double)o->gamma, (double)o->lambda,
        (double)o->lambda_good, (double)o->lambda_bad, d->source, d->tokenizer ? d->tokenizer : "byte",
        (long long)d->seq_len, d->pack ? "packed" : "one example each", d->eval_fraction, chat_format_name(d->chat),
        (unsigned long long)dataset_fingerprint(t->host.data));
}

/* ---- the reference of a resumed run ---------------------------------------------------------------------------- */

static json_t *preference_save(void *self) { return reference_save(((preference *)self)->reference_hash); }

static status preference_load(void *self, const json_t *state, const char *where) {
    const preference *t = self;
    return reference_check(&t->host, state, where, "model.path, its init or preference.reference");
}

/* ---- steps ----------------------------------------------------------------------------------------------------- */

static status preference_begin(void *self, uint64_t position) {
    preference *t = self;
    const plan_request *q = &t->host.plan->request;
    t->reference_hash = reference_hash(&t->host);
    return loader_open(&t->rows, t->host.data, SPLIT_TRAIN, rows_of(t), position, q->mesh.index[AXIS_DATA],
                       mesh_size(&q->mesh, AXIS_DATA));
}

static status write_rows(const preference *t, const micro_inputs *to, const batch_rows *rows, const int32_t *segments) {
    TRY(batch_write(t->host.exec, t->host.plan, to, rows));
    exec_write(t->host.exec, to->segments, 0, segments, (size_t)(rows_of(t) * length_of(t)) * sizeof *segments);
    return OK;
}

static status preference_next(void *self, const micro_inputs *to) {
    preference *t = self;
    const batch *b = loader_next(t->rows);
    return write_rows(t, to, &(batch_rows){b->tokens, b->targets, b->doc_start, .first_row = b->first_row},
                      b->segments);
}

/* Row `row` of a split to place b of the buffers. */
static void read_row(const preference *t, split s, uint64_t row, int64_t b) {
    int64_t at = b * length_of(t);
    dataset_row_get(t->host.data, s, row,
                    &(data_row){t->tokens + at, t->targets + at, t->doc_start + at, t->segments + at, NULL});
}

static status preference_again(void *self, uint64_t position, int64_t micro, const micro_inputs *to) {
    preference *t = self;
    const mesh *m = &t->host.plan->request.mesh;
    uint64_t number = (uint64_t)(micro * mesh_size(m, AXIS_DATA) + m->index[AXIS_DATA]);
    uint64_t first = position + number * (uint64_t)rows_of(t);
    for (int64_t b = 0; b < rows_of(t); b++) read_row(t, SPLIT_TRAIN, first + (uint64_t)b, b);
    return write_rows(t, to, &(batch_rows){t->tokens, t->targets, t->doc_start, .first_row = first}, t->segments);
}

static uint64_t preference_position(const void *self) { return loader_position(((const preference *)self)->rows); }

/* side: CHOSEN or REJECTED. NaN where there is none. */
static double mean_reward(const double *sums, int side) {
    return sums[SUM_REWARD_CHOSEN + side] / sums[SUM_CHOSEN + side];
}
static double accuracy(const preference *t, const double *sums) {
    return is_single(t) ? NAN : sums[SUM_ACCURATE] / sums[SUM_VALID];
}

static status preference_after(void *self, train_step_report *report) {
    const preference *t = self;
    double sums[PREFERENCE_SUM_COUNT];
    exec_read(t->host.exec, t->host.plan->step.loss_sums, 0, sums, sizeof sums);
    train_metrics *m = &report->metrics;
    double chosen = mean_reward(sums, CHOSEN), rejected = mean_reward(sums, REJECTED);
    train_metrics_add(m, &metrics[CHOSEN], chosen);
    train_metrics_add(m, &metrics[REJECTED], rejected);
    train_metrics_add(m, &metrics[MARGINS], chosen - rejected);
    train_metrics_add(m, &metrics[ACCURACIES], accuracy(t, sums));
    train_metrics_add(m, &metrics[LOGPS_CHOSEN], sums[SUM_LOGP_CHOSEN] / sums[SUM_CHOSEN]);
    train_metrics_add(m, &metrics[LOGPS_REJECTED], sums[SUM_LOGP_REJECTED] / sums[SUM_REJECTED]);
    train_metrics_add(m, &metrics[KL],
                      is_single(t) ? sums[SUM_KL] / sums[SUM_VALID] / (double)options_of(t)->beta : NAN);
    return exec_check(t->host.exec);
}

static uint64_t preference_host_bytes(const void *self) {
    const preference *t = self;
    return loader_host_bytes(rows_of(t), length_of(t)) + loader_examples_host_bytes(rows_of(t), length_of(t)) +
           (uint64_t)rows_of(t) * row_bytes(length_of(t));
}

/* ---- evaluation ------------------------------------------------------------------------------------------------ */

/* One batch of held-out rows; those from n_rows on are not counted. */
static status evaluate_batch(preference *t, int64_t first, int64_t n_rows, double *sums) {
    const model *m = &t->host.plan->model;
    for (int64_t b = 0; b < rows_of(t); b++) read_row(t, SPLIT_EVAL, (uint64_t)MIN(first + b, n_rows - 1), b);
    TRY(t->host.pause(t->host.pause_context, "row", first, n_rows));
    TRY(write_rows(t, &t->host.plan->step.inputs[0],
                   &(batch_rows){t->tokens, t->targets, t->doc_start, .first_row = (uint64_t)first}, t->segments));
    TRY(exec_run(t->host.exec, SECTION_EVAL));
    TRY(exec_check(t->host.exec));
    batch_read(t->host.exec, t->host.plan, m->eval_losses, t->losses);
    if (m->eval_reference) batch_read(t->host.exec, t->host.plan, m->eval_reference, t->reference);
    preference_gains gains = {0, 0};
    int64_t T = length_of(t), n = MIN(rows_of(t), n_rows - first);
    for (int64_t b = 0; b < n; b++) {
        t->n_examples[b] =
            preference_add_row(parts_of(t, b), T, t->segments + b * T, t->losses + b * T, t->reference + b * T);
        preference_add_gains(&gains, parts_of(t, b), t->n_examples[b]);
    }
    double z = preference_z(options_of(t), gains);
    for (int64_t b = 0; b < n; b++) preference_judge(options_of(t), parts_of(t, b), t->n_examples[b], z, sums);
    return OK;
}

static status preference_evaluate(void *self, train_eval_report *out) {
    preference *t = self;
    double sums[PREFERENCE_SUM_COUNT] = {0};
    data_report report;
    dataset_report(t->host.data, SPLIT_EVAL, &report);
    out->n_rows = t->host.request->train.eval_rows;
    if (report.rows_per_epoch) out->n_rows = MIN(out->n_rows, (int64_t)report.rows_per_epoch);
    for (int64_t first = 0; first < out->n_rows; first += rows_of(t)) TRY(evaluate_batch(t, first, out->n_rows, sums));
    out->loss = sums[SUM_VALID] > 0 ? sums[SUM_LOSS] / sums[SUM_VALID] : NAN;
    out->exact_match = NAN;
    train_metrics_add(&out->metrics, &metrics[VAL_ACCURACIES], accuracy(t, sums));
    train_metrics_add(&out->metrics, &metrics[VAL_MARGINS], mean_reward(sums, CHOSEN) - mean_reward(sums, REJECTED));
    return OK;
}

const task task_PREFERENCE = {
    .name = task_name_PREFERENCE,
    .metrics = metrics,
    .n_metrics = N_METRICS,
    .shape = preference_shape,
    .open = preference_open,
    .close = preference_close,
    .identity = preference_identity,
    .save = preference_save,
    .load = preference_load,
    .begin = preference_begin,
    .step = {.next = preference_next, .again = preference_again, .position = preference_position},
    .after = preference_after,
    .evaluate = preference_evaluate,
    .host_bytes = preference_host_bytes,
};
