#pragma once
/* weighted_task.h - private to train: next-token losses of one or several heads on the rows of the data, weighed (weighting.h).
 *
 * train.task mtp, and sft with a weighting, take these functions into their tables. Before the first micro-batch of a step all its
 * rows are read once, those of other ranks too: the data is the same everywhere, so counts and statistics need no message,
 * and the update may still overlap the next step's first micro-batch, for which `next` is called before the step ends. */
#include "train/numbers_file.h"
#include "train/row_task.h"
#include "train/weighting.h"

/* What follows from the rows of a step. */
typedef struct weighted_step {
    uint64_t position; /* of its first row; UINT64_MAX: none */
    float scales[MTP_HEADS_MAX];
    value_ema before, after;
    value_sums sums;
} weighted_step;

typedef struct weighted_task {
    row_task rows; /* first: row_task_* take this struct as one */
    const weighting *how;
    int64_t micro;           /* of the step, that `next` writes next */
    weighted_step steps[2];  /* the one that was looked at last, and the one before it */
    int latest;              /* of these */
    uint64_t finished_at;    /* position of the step that ends next */
    value_ema ema;           /* after the last step that ended */
    uint64_t reference_hash; /* of the frozen model, where there is one */
    numbers_file *file;      /* of the frozen model; NULL: there is none */
    /* of one micro-batch; NULL where there are none */
    float *weights, *numbers, *advantages;
    int32_t *marks;
} weighted_task;

enum {
    METRIC_WEIGHTED,
    METRIC_UNWEIGHTED,
    METRIC_HEAD,
    METRIC_SELECTION_RATIO = METRIC_HEAD + MTP_HEADS_MAX,
    METRIC_AVG_HEADS,
    METRIC_EXCESS,
    METRIC_THRESHOLD,
    METRIC_HEAD_SELECTED,
    METRIC_WEIGHT_MEAN = METRIC_HEAD_SELECTED + MTP_HEADS_MAX,
    METRIC_WEIGHT_STD,
    METRIC_WEIGHT_LEAST,
    METRIC_WEIGHT_MOST,
    METRIC_WEIGHT_ENTROPY,
    METRIC_TD_MEAN,
    METRIC_TD_STD,
    METRIC_TD_EMA_MEAN,
    METRIC_TD_EMA_STD,
    WEIGHTED_METRICS
};
extern const task_metric weighted_metrics[WEIGHTED_METRICS];

/* As task.h has them; self is a weighted_task. */
status weighted_shape(train_request *r);
status weighted_open(void **out, const task_host *h);
void weighted_close(void *self);
const char *weighted_identity(void *self, arena *memory);
json_t *weighted_save(void *self);
status weighted_load(void *self, const json_t *state, const char *where);
status weighted_begin(void *self, uint64_t position);
status weighted_next(void *self, const micro_inputs *to);
status weighted_again(void *self, uint64_t position, int64_t micro, const micro_inputs *to);
status weighted_after(void *self, train_step_report *report);
uint64_t weighted_host_bytes(const void *self);
/* All rows of a task's table but its name and shape. */
#define WEIGHTED_TASK                                                                                                 \
    .metrics = weighted_metrics, .n_metrics = WEIGHTED_METRICS, .open = weighted_open, .close = weighted_close,       \
    .identity = weighted_identity, .save = weighted_save, .load = weighted_load, .begin = weighted_begin,             \
    .step = {.next = weighted_next, .again = weighted_again, .position = row_task_position}, .after = weighted_after, \
    .evaluate = row_task_evaluate, .examples = row_task_examples, .host_bytes = weighted_host_bytes
/* Writes what a step reported to its metrics (weighted_metrics.c). */
status weighted_report(const weighted_task *t, const weighted_step *s, train_step_report *report);
