/* rungs.c - what each level of recompute would save and cost, with everything else unchanged. */
#include "plan/search.h"

static const recompute_kind rungs[PLAN_RUNGS] = {RECOMPUTE_NONE, RECOMPUTE_NORMS, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL};

plan_rung plan_rung_of(const plan *p) {
    return (plan_rung){.kind = p->request.choice.recompute.kind,
                       .activations = p->by_role[ROLE_ACTIVATION],
                       .device = p->planned[TIER_DEVICE],
                       .more_flops = p->flops_again / p->flops_per_step,
                       .fits = plan_fits(p),
                       .host_is_short = plan_host_is_short(&p->request, p->planned)};
}

status plan_rungs(const plan *of, plan_rung out[PLAN_RUNGS]) {
    for (size_t i = 0; i < PLAN_RUNGS; i++) {
        if (of->request.choice.recompute.kind == rungs[i]) {
            out[i] = plan_rung_of(of);
            continue;
        }
        plan_request r = of->request;
        plan_candidate c;
        r.open = (plan_open){0};
        r.choice.recompute = (recompute_policy){.kind = rungs[i]};
        TRY(plan_evaluate(&r, &c));
        out[i] = (plan_rung){.kind = rungs[i],
                             .activations = c.by_role[ROLE_ACTIVATION],
                             .device = c.planned[TIER_DEVICE],
                             .more_flops = c.more_flops,
                             .fits = c.fits,
                             .host_is_short = plan_host_is_short(&r, c.planned)};
    }
    return OK;
}
