/* task_mtp.c - multi-token prediction: every head predicts one token further ahead than the one before it (ahead.h).
 *
 * Counts the targets of each head in all rows of a step before its first micro-batch. Every rank counts the rows of all ranks:
 * the data is the same everywhere, so no message is needed, and the update may still overlap the next step's first
 * micro-batch, for which `next` is called before the step ends. Evaluation and generation use the first head. */
#include "train/ahead.h"
#include "train/row_task.h"
#include "train/weighting.h"

#include <math.h>
#include <stdlib.h>

typedef struct mtp {
    row_task rows;    /* first: row_task_* take this struct as one */
    int64_t micro;    /* of the step, that `next` writes next */
    uint64_t step_at; /* position of the step that was counted */
    float scales[MTP_HEADS_MAX];
    uint64_t reference_hash; /* of the frozen copy, where there is one */
} mtp;

enum { WEIGHTED, UNWEIGHTED, HEAD, SELECTION_RATIO = HEAD + MTP_HEADS_MAX, AVG_HEADS, EXCESS, THRESHOLD, N_METRICS };
#define HEAD_METRIC(k, label)                            \
    [HEAD + k - 1] = {"train/head" #k "_ce_loss", label, \
                      "mean cross entropy of head " #k ", which predicts token t + " #k}
static const task_metric metrics[N_METRICS] = {
    [WEIGHTED] = {"train/weighted_ce_loss", NULL, "the loss: mean over heads of their weighted cross entropy"},
    [UNWEIGHTED] = {"train/unweighted_ce_loss", NULL, "mean over heads of their cross entropy without weights"},
    HEAD_METRIC(1, "head 1"),
    HEAD_METRIC(2, "head 2"),
    HEAD_METRIC(3, NULL),
    HEAD_METRIC(4, NULL),
    HEAD_METRIC(5, NULL),
    HEAD_METRIC(6, NULL),
    HEAD_METRIC(7, NULL),
    HEAD_METRIC(8, NULL),
    [SELECTION_RATIO] = {"train/selection_ratio", "selected",
                         "rho1: share of the tokens that are trained on, over all heads"},
    [AVG_HEADS] = {"train/avg_heads_per_position", NULL, "rho1: heads that train at a position, in the mean"},
    [EXCESS] = {"train/excess_loss", NULL, "rho1: mean excess loss of all tokens, selected or not, over all heads"},
    [THRESHOLD] = {"train/threshold", NULL, "rho1: mean excess loss from which on tokens were selected"},
};
_Static_assert(MTP_HEADS_MAX == 8 && (int)N_METRICS <= (int)METRICS_MOST, "a row for every head");

static status mtp_shape(train_request *r) {
    if (!r->plan.model.mtp_heads)
        return ERR(ERR_INPUT,
                   "train.task: found mtp, which needs model.mtp.heads: set model.mtp.heads=4, or train.task=sft");
    const weighting *w = weighting_of(r->train.weighting);
    if (w->shape) TRY(w->shape(r));
    TRY(row_task_shape(r));
    if (w->weigh) r->plan.host_row_bytes += (uint64_t)r->plan.seq_len * sizeof(float);
    return OK;
}

static status mtp_open(void **out, const task_host *h) {
    mtp *t = mem_alloc(sizeof *t);
    row_task_init(&t->rows, h);
    t->step_at = UINT64_MAX;
    t->rows.weigh = weighting_of(h->request->train.weighting)->weigh;
    const plan_request *q = &h->plan->request;
    if (t->rows.weigh)
        t->rows.weights = mem_alloc((size_t)(q->choice.micro_batch * q->seq_len) * sizeof *t->rows.weights);
    *out = t;
    return OK;
}

/* ---- steps ----------------------------------------------------------------------------------------------------- */

static int n_heads(const mtp *t) { return t->rows.host.plan->model.n_losses; }

/* The targets of the step that begins at this position, of all micro-batches and ranks. */
static void count_step(mtp *t, uint64_t position) {
    const plan_request *q = &t->rows.host.plan->request;
    evaluator *v = &t->rows.eval;
    uint64_t counts[MTP_HEADS_MAX] = {0};
    uint64_t n = (uint64_t)(q->choice.micro_batch * q->choice.accumulation * mesh_size(&q->mesh, AXIS_DATA));
    if (position == t->step_at) return;
    for (uint64_t row = 0; row < n; row++) {
        dataset_row(t->rows.host.data, SPLIT_TRAIN, position + row, v->tokens, v->targets, v->doc_start);
        ahead_count(v->targets, v->doc_start, q->seq_len, n_heads(t), counts);
    }
    ahead_scales(counts, n_heads(t), t->scales);
    t->step_at = position;
}

static status mtp_next(void *self, const micro_inputs *to) {
    mtp *t = self;
    int64_t n = t->rows.host.plan->request.choice.accumulation;
    if (t->micro == 0) count_step(t, row_task_position(self));
    t->micro = (t->micro + 1) % n;
    return row_task_write(&t->rows, to, t->scales);
}

static status mtp_again(void *self, uint64_t position, int64_t micro, const micro_inputs *to) {
    mtp *t = self;
    count_step(t, position);
    return row_task_write_again(&t->rows, position, micro, to, t->scales);
}

/* What selection left of the step, behind the sums of all losses. */
static status report_selection(const mtp *t, double n_valid, double n_positions, train_metrics *to) {
    const plan *p = t->rows.host.plan;
    float sums[MTP_HEADS_MAX][SELECT_SUM_COUNT];
    double all[SELECT_SUM_COUNT] = {0};
    int n = n_heads(t);
    exec_read(t->rows.host.exec, p->step.clip, (size_t)(CLIP_COUNT + n * SUM_COUNT) * sizeof(float), sums,
              (size_t)n * sizeof *sums);
    TRY(exec_check(t->rows.host.exec));
    for (int k = 0; k < n; k++)
        for (int i = 0; i < SELECT_SUM_COUNT; i++) all[i] += (double)sums[k][i];
    train_metrics_add(to, &metrics[SELECTION_RATIO], all[SELECT_COUNT] / n_valid);
    train_metrics_add(to, &metrics[AVG_HEADS], all[SELECT_COUNT] / n_positions);
    train_metrics_add(to, &metrics[EXCESS], all[SELECT_EXCESS] / n_valid);
    train_metrics_add(to, &metrics[THRESHOLD], all[SELECT_THRESHOLD] / all[SELECT_MICROS]);
    return OK;
}

static status mtp_after(void *self, train_step_report *report) {
    const mtp *t = self;
    const plan *p = t->rows.host.plan;
    float sums[MTP_HEADS_MAX][SUM_COUNT];
    double mean = 0, n_counted = 0, n_valid = 0;
    int n = n_heads(t);
    bool selects = p->model.selection.kind != SELECTION_NONE;
    train_metrics_add(&report->metrics, &metrics[WEIGHTED], report->loss);
    if (n == 1 && !selects) { /* the program of an ordinary model, which has one loss */
        train_metrics_add(&report->metrics, &metrics[UNWEIGHTED], report->loss);
        train_metrics_add(&report->metrics, &metrics[HEAD], report->loss);
        return OK;
    }
    exec_read(t->rows.host.exec, p->step.clip, CLIP_COUNT * sizeof(float), sums, (size_t)n * sizeof *sums);
    TRY(exec_check(t->rows.host.exec));
    for (int k = 0; k < n; k++) {
        double loss = sums[k][SUM_VALID] > 0 ? (double)sums[k][SUM_LOSS] / (double)sums[k][SUM_VALID] : NAN;
        if (sums[k][SUM_VALID] > 0) mean += loss, n_counted++;
        n_valid += (double)sums[k][SUM_VALID];
        train_metrics_add(&report->metrics, &metrics[HEAD + k], loss);
    }
    train_metrics_add(&report->metrics, &metrics[UNWEIGHTED], mean / n_counted);
    return selects ? report_selection(t, n_valid, (double)sums[0][SUM_VALID], &report->metrics) : OK;
}

static uint64_t mtp_host_bytes(const void *self) {
    const mtp *t = self;
    const plan_request *q = &t->rows.host.plan->request;
    uint64_t weights = t->rows.weigh ? (uint64_t)(q->choice.micro_batch * q->seq_len) * sizeof(float) : 0;
    return row_task_host_bytes(self) + weights;
}

/* ---- state ----------------------------------------------------------------------------------------------------- */

static uint64_t hash_reference(const mtp *t) {
    const task_host *h = &t->rows.host;
    if (h->plan->request.reference != REFERENCE_COPY) return 0;
    return params_reference_hash(h->exec, h->plan, h->request->comm);
}

static status mtp_begin(void *self, uint64_t position) {
    mtp *t = self;
    t->reference_hash = hash_reference(t);
    return row_task_begin(self, position);
}

static json_t *mtp_save(void *self) {
    char hash[20];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)((mtp *)self)->reference_hash);
    return json_pack("{s:s}", "reference", hash);
}

/* The reference is loaded already: no checkpoint holds it, so it could have become another model. */
static status mtp_load(void *self, const json_t *state, const char *where) {
    char now[20];
    const char *then = json_string_value(json_object_get(state, "reference"));
    snprintf(now, sizeof now, "%016llx", (unsigned long long)hash_reference(self));
    if (!then || strlen(then) != 16)
        return ERR(ERR_INPUT, "%s: key 'reference': found no hash, expected 16 hexadecimal digits", where);
    if (strcmp(now, then) == 0) return OK;
    return ERR(ERR_INPUT,
               "%s: the run compares with a reference whose parameters have the hash %s; those loaded now have %s. "
               "train.weighting, rho1.reference or model.path has changed: bring the old one back, or start a new run",
               where, then, now);
}

/* Other weights of tokens train another model. */
static const char *mtp_identity(void *self, arena *memory) {
    const mtp *t = self;
    const train_options *o = &t->rows.host.request->train;
    const char *rows = row_task_identity(self, memory);
    if (o->weighting == WEIGHTING_BASELINE) return rows;
    const char *name = weighting_name(o->weighting);
    if (o->weighting != WEIGHTING_RHO1) return arena_format(memory, "%s, weighting %s", rows, name);
    return arena_format(memory, "%s, weighting %s, k_percent %g, mode %d%s", rows, name, o->rho1_share, o->rho1_mode,
                        o->rho1_first_head ? ", all of the first head" : "");
}

const task task_MTP = {
    .name = task_name_MTP,
    .metrics = metrics,
    .n_metrics = N_METRICS,
    .shape = mtp_shape,
    .open = mtp_open,
    .close = row_task_close,
    .identity = mtp_identity,
    .save = mtp_save,
    .load = mtp_load,
    .begin = mtp_begin,
    .step = {.next = mtp_next, .again = mtp_again, .position = row_task_position},
    .after = mtp_after,
    .evaluate = row_task_evaluate,
    .examples = row_task_examples,
    .host_bytes = mtp_host_bytes,
};
