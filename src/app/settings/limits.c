/* limits.c - the memory that a request may plan with: of this machine, or of one that was described (plan/limits.c). */
#include "settings/limits.h"

static void use_limits(plan_request *p, const config *c, const plan_memory *m) {
    plan_limits l = plan_limits_find(m, c->memory.device, c->memory.host);
    p->device_limit = l.device;
    p->host_limit = l.host;
    p->together_limit = l.together;
    p->device_asked = c->memory.device;
}

status limits_of_machine(train_request *r, const config *c, limits_ranks ranks, bool is_run_here) {
    sys_info machine;
    sys_info_get(&machine);
    plan_memory m = {.host_bytes = machine.memory_available,
                     .n_ranks = ranks.on_node,
                     .unified = r->backend && !r->backend->discrete,
                     .is_run_here = is_run_here};
    int n_sharing = m.unified ? ranks.on_node : ranks.on_device;
    if (r->backend && (m.unified || !c->memory.device))
        TRY(backend_memory_limit(r->backend, r->gpu.index, n_sharing, &m.device_bytes));
    use_limits(&r->plan, c, &m);
    return OK;
}

void limits_of_hardware(train_request *r, const config *c, const hardware *h) {
    int n_ranks = (int)MIN(mesh_world(&r->plan.mesh), h->devices_per_node);
    plan_memory m = {
        .device_bytes = h->device_bytes, .host_bytes = h->host_bytes, .n_ranks = n_ranks, .unified = h->unified};
    if (h->unified) m.device_bytes /= (uint64_t)n_ranks;
    use_limits(&r->plan, c, &m);
    r->plan.host_is_assumed = !c->memory.host && h->host_bytes > 0;
}
