/* weighting_verifiable.c - tokens that make a solution better, as a critic sees it, count more (value_weights.h).
 *
 * The critic is a run of train.task=critic. It is frozen: its values are computed once, before the run (frozen.h). */
#include "train/weighting_verifiable.h"

status verifiable_shape(train_request *r) {
    const char *dir = r->train.critic_dir;
    if (!dir || !*dir)
        return ERR(ERR_INPUT,
                   "train.weighting: found %s, which needs verifiable.critic, the run directory of a critic "
                   "(train.task=critic)",
                   weighting_name(r->train.weighting));
    r->frozen = (frozen_model){.dir = dir, .key = "verifiable.critic", .output = FROZEN_VALUES};
    r->plan.token_weights = true;
    return OK;
}

static void verifiable_weigh(const weighting_row *from, float *out) {
    for (int64_t t = 0; t < from->T; t++)
        out[t] = from->targets[t] < 0 ? 1 : value_weight(&from->request->train.value, from->ema, from->advantages[t]);
}

const weighting weighting_VERIFIABLE = {.shape = verifiable_shape, .weigh = verifiable_weigh, .by_value = true};
