/* task_mtp.c - multi-token prediction: every head predicts one token further ahead than the one before it (ahead.h).
 *
 * Counts the targets of each head in all rows of a step before its first micro-batch. Every rank counts the rows of all ranks:
 * the data is the same everywhere, so no message is needed, and the update may still overlap the next step's first
 * micro-batch, for which `next` is called before the step ends. Evaluation and generation use the first head. */
#include "train/ahead.h"
#include "train/row_task.h"

#include <math.h>
#include <stdlib.h>

typedef struct mtp {
    row_task rows;    /* first: row_task_* take this struct as one */
    int64_t micro;    /* of the step, that `next` writes next */
    uint64_t step_at; /* position of the step that was counted */
    float scales[MTP_HEADS_MAX];
} mtp;

enum { WEIGHTED, UNWEIGHTED, HEAD, N_METRICS = HEAD + MTP_HEADS_MAX };
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
};
_Static_assert(MTP_HEADS_MAX == 8 && (int)N_METRICS <= (int)METRICS_MOST, "a row for every head");

static status mtp_shape(train_request *r) {
    if (!r->plan.model.mtp_heads)
        return ERR(ERR_INPUT,
                   "train.task: found mtp, which needs model.mtp.heads: set model.mtp.heads=4, or train.task=sft");
    return row_task_shape(r);
}

static status mtp_open(void **out, const task_host *h) {
    mtp *t = mem_alloc(sizeof *t);
    row_task_init(&t->rows, h);
    t->step_at = UINT64_MAX;
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

static status mtp_after(void *self, train_step_report *report) {
    const mtp *t = self;
    const plan *p = t->rows.host.plan;
    float sums[MTP_HEADS_MAX][SUM_COUNT];
    double mean = 0, n_counted = 0;
    int n = n_heads(t);
    train_metrics_add(&report->metrics, &metrics[WEIGHTED], report->loss);
    if (n == 1) { /* the program of an ordinary model, which has one loss */
        train_metrics_add(&report->metrics, &metrics[UNWEIGHTED], report->loss);
        train_metrics_add(&report->metrics, &metrics[HEAD], report->loss);
        return OK;
    }
    exec_read(t->rows.host.exec, p->step.clip, CLIP_COUNT * sizeof(float), sums, (size_t)n * sizeof *sums);
    TRY(exec_check(t->rows.host.exec));
    for (int k = 0; k < n; k++) {
        double loss = sums[k][SUM_VALID] > 0 ? (double)sums[k][SUM_LOSS] / (double)sums[k][SUM_VALID] : NAN;
        if (sums[k][SUM_VALID] > 0) mean += loss, n_counted++;
        train_metrics_add(&report->metrics, &metrics[HEAD + k], loss);
    }
    train_metrics_add(&report->metrics, &metrics[UNWEIGHTED], mean / n_counted);
    return OK;
}

const task task_MTP = {
    .name = task_name_MTP,
    .metrics = metrics,
    .n_metrics = N_METRICS,
    .shape = mtp_shape,
    .open = mtp_open,
    .close = row_task_close,
    .identity = row_task_identity,
    .begin = row_task_begin,
    .step = {.next = mtp_next, .again = mtp_again, .position = row_task_position},
    .after = mtp_after,
    .evaluate = row_task_evaluate,
    .examples = row_task_examples,
    .host_bytes = row_task_host_bytes,
};
