/* stages.c - the pipeline part of a plan: layers, memory and arithmetic of every stage, and the bubble. */
#include "plan/search.h"

#include <math.h>
#include <stdlib.h>

static int n_stages(const plan_request *r) { return mesh_size(&r->mesh, AXIS_PIPELINE); }

double plan_micro_runs(const plan *p) {
    return (double)p->request.choice.accumulation / (double)p->step.micros_per_run;
}

static int n_chunks_of(const plan_request *r) { return n_stages(r) * MAX(r->virtual_stages, 1); }

double plan_bubble(const plan_request *r) {
    double behind = n_stages(r) - 1, turns = (double)(r->choice.accumulation * MAX(r->virtual_stages, 1));
    return behind / (turns + behind);
}

double plan_waiting(const plan_request *r) {
    int S = n_stages(r);
    if (S == 1) return 0;
    double slowest =
        r->source.by->slowest_stage(&r->source, r->seq_len, S, n_chunks_of(r), r->mesh.index[AXIS_PIPELINE]);
    return slowest / (1 - plan_bubble(r)) - 1;
}

/* As many as are in flight at the first stage, plus one; with several chunks a multiple of the stages. */
int64_t plan_built_micros(const plan_request *r) {
    int S = n_stages(r);
    if (S == 1 || !r->shorten) return r->choice.accumulation;
    return MIN(r->choice.accumulation, (int64_t)(r->virtual_stages > 1 ? 2 * S : S + 1));
}

/* Each stage may choose for itself: used where the choices of the plan do not fit this stage. */
static status choose_for_stage(const plan *of, int stage, plan_stage *s) {
    plan p;
    plan_request r = plan_request_reopen(of);
    r.mesh.index[AXIS_PIPELINE] = stage;
    r.compare = false;
    TRY(plan_choose(&p, &r));
    s->numbers = plan_chosen(&p);
    plan_candidate_set_numbers(&s->numbers, &p);
    s->by_itself = true;
    plan_close(&p);
    return OK;
}

status plan_stages(const plan *of, plan_stage **out) {
    const plan_request reopened = plan_request_reopen(of);
    plan_request r = of->request;
    int n = n_stages(&r);
    r.open = (plan_open){0}; /* as this stage was planned */
    *out = mem_alloc((size_t)n * sizeof **out);
    status rc = OK;
    for (int i = 0; i < n && rc == OK; i++) {
        plan_stage *s = &(*out)[i];
        r.mesh.index[AXIS_PIPELINE] = i;
        s->load = 1 / r.source.by->slowest_stage(&r.source, r.seq_len, n, n_chunks_of(&r), i);
        rc = plan_evaluate(&r, &s->numbers);
        if (rc == OK && !s->numbers.fits && plan_is_open(&reopened)) rc = choose_for_stage(of, i, s);
    }
    if (rc == OK) return OK;
    free(*out);
    *out = NULL;
    return rc;
}

int plan_stage_without_room(const plan *p, const plan_stage *list) {
    for (int i = 0; i < n_stages(&p->request); i++)
        if (!list[i].numbers.fits) return i;
    return -1;
}

status plan_check_stages(const plan *p, const plan_stage *list) {
    const plan_request *r = &p->request;
    char device[32], host[32], device_limit[32], host_limit[32];
    int i = plan_stage_without_room(p, list);
    if (i < 0) return OK;
    const uint64_t *needed = list[i].numbers.planned;
    return ERR(
        ERR_FIT,
        "stage %d of %d does not fit: it needs %s of device memory and %s of host memory, the limits are %s and %s; "
        "raise them%s",
        i, n_stages(r), str_format_bytes(device, needed[TIER_DEVICE]), str_format_bytes(host, needed[TIER_HOST]),
        r->device_limit ? str_format_bytes(device_limit, r->device_limit) : "none",
        r->host_limit ? str_format_bytes(host_limit, r->host_limit) : "none",
        r->manual ? ", or let every stage choose for itself with memory.strategy=auto"
                  : ", use more stages, or lower train.micro_batch");
}

double plan_stages_seconds(const plan *p, const plan_stage *list) {
    double most = p->request.hardware && !p->cost.missing ? p->cost.step_s : NAN;
    for (int i = 0; i < n_stages(&p->request); i++) most = fmax(most, list[i].numbers.step_s);
    return most;
}
