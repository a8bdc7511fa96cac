/* weighting_rho1.c - Rho-1: a head trains on the share of its tokens with the largest excess loss over a reference (select.h).
 *
 * The program selects, when the losses of a head are known and before its backward; the reference is one more forward pass, or
 * its losses were computed before the run and are an input (frozen.h). The threshold is that of a micro-batch and a head, so data ranks need not agree on one; sequence ranks
 * gather the losses of the micro-batch that they share. */
#include "train/weighting.h"

#include <string.h>

/* Which model directory has the losses that are kept on disk: one that is given, or where the run begins, if that is one. */
static status choose_on_disk(train_request *r, const char *dir) {
    bool plain = r->pretrained && !r->adapter && r->plan.base == BASE_COMPUTE && !r->plan.lora.pissa;
    r->plan.reference = REFERENCE_INPUT;
    r->plan.reference_dir = NULL;
    r->frozen = (frozen_model){.dir = dir ? dir : r->model_dir, .key = "rho1.reference", .output = FROZEN_LOSSES};
    if (dir || plain) return OK;
    return ERR(ERR_INPUT,
               "rho1.reference_on: found disk with a reference that is no directory: the run does not begin with the "
               "parameters of model.path as they are; set rho1.reference to the directory of a model, or memory");
}

static status choose_reference(train_request *r) {
    const char *asked = r->train.rho1_reference;
    bool lora = r->plan.lora.rank > 0, is_auto = !asked || !*asked;
    if (is_auto ? lora_base_is_beginning(&r->plan.lora) : strcmp(asked, "base") == 0)
        r->plan.reference = REFERENCE_BASE;
    else r->plan.reference = REFERENCE_COPY;
    if (r->plan.reference == REFERENCE_BASE && !lora)
        return ERR(
            ERR_INPUT,
            "rho1.reference: found base, which needs model.lora.rank: without adapters the model has no frozen base; "
            "set copy, or the directory of a model");
    if (r->plan.reference == REFERENCE_BASE && r->plan.lora.pissa)
        return ERR(ERR_INPUT,
                   "rho1.reference: found base with model.lora.init pissa, whose base is not the model that the run "
                   "begins with; set copy, auto, or the directory of a model");
    bool is_dir = !is_auto && strcmp(asked, "base") != 0 && strcmp(asked, "copy") != 0;
    r->plan.reference_dir = is_dir ? asked : NULL;
    return r->train.rho1_reference_on == REFERENCE_ON_DISK ? choose_on_disk(r, r->plan.reference_dir) : OK;
}

static status rho1_shape(train_request *r) {
    plan_request *p = &r->plan;
    p->selection = (selection_options){.kind = SELECTION_SIGNED + (selection_kind)r->train.rho1_mode,
                                       .share = r->train.rho1_share,
                                       .first_head_all = r->train.rho1_first_head};
    return choose_reference(r);
}

const weighting weighting_RHO1 = {.shape = rho1_shape};
