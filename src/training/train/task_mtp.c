/* task_mtp.c - multi-token prediction: every head predicts one token further ahead than the one before it (ahead.h), with
 * weights of tokens or without (weighted_task.h). Evaluation and generation use the first head. */
#include "train/weighted_task.h"

static status mtp_shape(train_request *r) {
    if (!model_of(&r->plan.source)->mtp_heads)
        return ERR(ERR_INPUT,
                   "train.task: found mtp, which needs model.mtp.heads: set model.mtp.heads=4, or train.task=sft");
    return weighted_shape(r);
}

const task task_MTP = {.name = task_name_MTP, .shape = mtp_shape, WEIGHTED_TASK};
