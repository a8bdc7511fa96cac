/* task_sft.c - next-token prediction on the rows of the data set. With train.weighting the same task has more functions: weights
 * of tokens, their numbers, and a state in checkpoints (weighted_task.h). */
#include "train/weighted_task.h"

static const task weighted_sft = {.name = task_name_SFT, .shape = weighted_shape, WEIGHTED_TASK};

static status sft_shape(train_request *r) {
    if (r->train.weighting == WEIGHTING_BASELINE) return row_task_shape(r);
    r->task = &weighted_sft;
    return weighted_shape(r);
}

static status sft_open(void **out, const task_host *h) {
    row_task *t = mem_alloc(sizeof *t);
    row_task_init(t, h);
    *out = t;
    return OK;
}

static status sft_next(void *self, const micro_inputs *to) { return row_task_write(self, to, NULL); }

static status sft_again(void *self, uint64_t position, int64_t micro, const micro_inputs *to) {
    return row_task_write_again(self, position, micro, to, NULL);
}

const task task_SFT = {
    .name = task_name_SFT,
    .metrics = weighted_metrics, /* of which it reports none without a weighting */
    .n_metrics = WEIGHTED_METRICS,
    .shape = sft_shape,
    .open = sft_open,
    .close = row_task_close,
    .identity = row_task_identity,
    .begin = row_task_begin,
    .step = {.next = sft_next, .again = sft_again, .position = row_task_position},
    .evaluate = row_task_evaluate,
    .examples = row_task_examples,
    .host_bytes = row_task_host_bytes,
};
