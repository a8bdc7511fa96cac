/* choose.c - how much of the forward is kept when the settings leave it open.
 *
 * Every rung keeps every bit, so the choice is one of time against memory alone, and the order of the rungs is the order
 * of their time: the first that fits is the one to take. Each is compiled for real, so what fits here fits in the run.
 * When none does, the smallest is taken; when no rung could, because what stays through the step is too much, none is.
 * Only the rungs that mean the same for every model are walked; ratio, every and keep are for hands. */
#include "plan/plan.h"

static const recompute_kind rungs[PLAN_RUNGS] = {RECOMPUTE_NONE, RECOMPUTE_NORMS, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL};

static bool fits(const plan *p) {
    return !p->request.device_limit || p->planned[TIER_DEVICE] <= p->request.device_limit;
}

static status compile_rung(plan *p, const plan_request *r, recompute_kind k) {
    plan_request fixed = *r;
    fixed.recompute = (recompute_policy){.kind = k};
    return plan_compile(p, &fixed);
}

/* Params, gradients, states and inputs stay through the whole step: no rung can do with less. */
static bool can_help(const plan *p) {
    uint64_t n_bytes = 0;
    for (value_id v = 1; v < p->program.n_values; v++) {
        const value *a = &p->program.values[v];
        if (a->persistent && !a->view_of && a->tier == TIER_DEVICE) n_bytes += value_bytes(a);
    }
    return n_bytes < p->request.device_limit;
}

status plan_choose(plan *p, const plan_request *r) {
    size_t least = 0;
    uint64_t least_bytes = UINT64_MAX;
    for (size_t i = 0; i < PLAN_RUNGS; i++) {
        TRY(compile_rung(p, r, rungs[i]));
        if (p->planned[TIER_DEVICE] < least_bytes) least = i, least_bytes = p->planned[TIER_DEVICE];
        if (fits(p) || !can_help(p) || (i + 1 == PLAN_RUNGS && least == i)) goto chosen;
        plan_close(p);
    }
    TRY(compile_rung(p, r, rungs[least]));
chosen:
    p->request.recompute = r->recompute; /* what was asked; passes.recompute is what it became */
    return OK;
}

static plan_rung rung_of(const plan *p) {
    return (plan_rung){.kind = p->passes.recompute.kind,
                       .activations = p->by_role[ROLE_ACTIVATION],
                       .device = p->planned[TIER_DEVICE],
                       .more_flops = p->flops_again / p->flops_per_step,
                       .fits = fits(p)};
}

status plan_rungs(const plan_request *r, plan_rung out[PLAN_RUNGS]) {
    for (size_t i = 0; i < PLAN_RUNGS; i++) {
        plan p;
        TRY(compile_rung(&p, r, rungs[i]));
        out[i] = rung_of(&p);
        plan_close(&p);
    }
    return OK;
}

/* The rungs, and behind them the plan itself where it is none of them. */
static size_t rows_of(const plan *p, const plan_rung list[PLAN_RUNGS], plan_rung out[PLAN_RUNGS + 1]) {
    memcpy(out, list, PLAN_RUNGS * sizeof *list);
    out[PLAN_RUNGS] = rung_of(p);
    for (size_t i = 0; i < PLAN_RUNGS; i++)
        if (list[i].kind == p->passes.recompute.kind) return PLAN_RUNGS;
    return PLAN_RUNGS + 1;
}

void plan_print_rungs(const plan *p, const plan_rung list[PLAN_RUNGS], FILE *out) {
    char a[32], b[32];
    plan_rung rows[PLAN_RUNGS + 1];
    size_t n = rows_of(p, list, rows);
    fputs("  memory.recompute  activations at peak        device   more FLOP\n", out);
    for (size_t i = 0; i < n; i++)
        fprintf(out, "    %-16s %18s %13s %9.1f %%%s%s\n", recompute_name(rows[i].kind),
                str_format_bytes(a, rows[i].activations), str_format_bytes(b, rows[i].device), 100 * rows[i].more_flops,
                rows[i].fits ? "" : "  does not fit", rows[i].kind == p->passes.recompute.kind ? "  <- this plan" : "");
}

json_t *plan_rungs_json(const plan *p, const plan_rung list[PLAN_RUNGS]) {
    plan_rung rows[PLAN_RUNGS + 1];
    size_t n = rows_of(p, list, rows);
    json_t *array = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(array,
                              json_pack("{s:s, s:I, s:I, s:f, s:b, s:b}", "rung", recompute_name(rows[i].kind),
                                        "activations", (json_int_t)rows[i].activations, "device",
                                        (json_int_t)rows[i].device, "more_flops", rows[i].more_flops, "fits",
                                        (int)rows[i].fits, "used", (int)(rows[i].kind == p->passes.recompute.kind)));
    return array;
}
