/* task_mtp.c - multi-token prediction: every head predicts one token further ahead than the one before it (ahead.h), with
 * weights of tokens or without (weighted_task.h). Evaluation and generation use the first head. */
#include "train/weighted_task.h"

static status mtp_shape(train_request *r) {
    if (!r->plan.model.mtp_heads)
        return ERR(ERR_INPUT,
                   "train.task: found mtp, which needs model.mtp.heads: set model.mtp.heads=4, or train.task=sft");
    return weighted_shape(r);
}

const task task_MTP = {
    .name = task_name_MTP,
    .metrics = weighted_metrics,
    .n_metrics = WEIGHTED_METRICS,
    .shape = mtp_shape,
    .open = weighted_open,
    .close = weighted_close,
    .identity = weighted_identity,
    .save = weighted_save,
    .load = weighted_load,
    .begin = weighted_begin,
    .step = {.next = weighted_next, .again = weighted_again, .position = row_task_position},
    .after = weighted_after,
    .evaluate = row_task_evaluate,
    .examples = row_task_examples,
    .host_bytes = weighted_host_bytes,
};
