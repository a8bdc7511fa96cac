/* weighting_rho1.c - Rho-1: a head trains on the share of its tokens with the largest excess loss over a reference (select.h).
 *
 * The program selects, when the losses of a head are known and before its backward; the reference is one more forward pass. The
 * threshold is that of a micro-batch and a head, so ranks need not agree on one. */
#include "train/weighting.h"

#include <string.h>

static status choose_reference(train_request *r) {
    const char *asked = r->train.rho1_reference;
    bool lora = r->plan.lora.rank > 0, is_auto = !asked || !*asked;
    if (is_auto ? lora : strcmp(asked, "base") == 0) r->plan.reference = REFERENCE_BASE;
    else r->plan.reference = REFERENCE_COPY;
    if (r->plan.reference == REFERENCE_BASE && !lora)
        return ERR(
            ERR_INPUT,
            "rho1.reference: found base, which needs model.lora.rank: without adapters the model has no frozen base; "
            "set copy, or the directory of a model");
    bool is_dir = !is_auto && strcmp(asked, "base") != 0 && strcmp(asked, "copy") != 0;
    r->reference_dir = is_dir ? asked : NULL;
    return OK;
}

static status rho1_shape(train_request *r) {
    plan_request *p = &r->plan;
    p->selection = (selection_options){.kind = SELECTION_SIGNED + (selection_kind)r->train.rho1_mode,
                                       .share = r->train.rho1_share,
                                       .first_head_all = r->train.rho1_first_head};
    p->open.sequence = p->left_open.sequence = false; /* the threshold is over whole rows */
    return choose_reference(r);
}

const weighting weighting_RHO1 = {.shape = rho1_shape};
