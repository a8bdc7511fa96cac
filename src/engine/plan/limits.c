/* limits.c - the memory that a rank may plan with: of its device, of the host, and of both together.
 *
 * A GPU has its own memory: its ranks share the GPU and the node's host memory, each divided separately. On a CPU device and
 * host are one memory: the host gets what the limit of the device leaves, the ranks of a node divide it, and both together
 * never exceed a rank's part, whatever the settings say. A setting above that has no effect; plan_note says so.
 *
 * Settings of both amounts for a plan that does not run here describe another machine, and are used unchanged. */
#include "plan/plan.h"

plan_limits plan_limits_find(const plan_memory *m, uint64_t device, uint64_t host) {
    uint64_t part = m->host_bytes / (uint64_t)MAX(m->n_ranks, 1);
    if (!m->unified || part == 0 || (device && host && !m->is_run_here))
        return (plan_limits){.device = device ? device : m->device_bytes, .host = host ? host : part};
    plan_limits out = {.device = MIN(device ? device : m->device_bytes, part), .host = part, .together = part};
    if (out.device == 0) out.device = part;
    if (device && device < part) out.host = part - device;
    if (host) out.host = MIN(host, part);
    return out;
}

static uint64_t sum_device_and_host(const uint64_t planned[TIER_COUNT]) {
    uint64_t n = planned[TIER_HOST];
    for (tier t = 0; t < TIER_COUNT; t++)
        if (tier_is_device(t)) n += planned[t];
    return n;
}

uint64_t plan_joint_bytes(const plan *p) { return sum_device_and_host(p->planned); }

/* Beyond a limit, where there is one. */
static uint64_t beyond(uint64_t n_bytes, uint64_t limit) { return limit && n_bytes > limit ? n_bytes - limit : 0; }

plan_excess plan_limits_excess(const plan_limits *limits, const uint64_t planned[TIER_COUNT]) {
    plan_excess out = {
        .host = MAX(beyond(planned[TIER_HOST], limits->host), beyond(sum_device_and_host(planned), limits->together))};
    for (tier t = 0; t < TIER_COUNT; t++)
        if (tier_is_device(t)) out.device = MAX(out.device, beyond(planned[t], limits->device));
    return out;
}

bool plan_limits_hold(const plan_limits *limits, const uint64_t planned[TIER_COUNT]) {
    plan_excess e = plan_limits_excess(limits, planned);
    return e.device == 0 && e.host == 0;
}

plan_limits plan_limits_of(const plan_request *r) {
    return (plan_limits){.device = r->device_limit, .host = r->host_limit, .together = r->together_limit};
}

bool plan_host_is_short(const plan_request *r, const uint64_t planned[TIER_COUNT]) {
    plan_limits limits = plan_limits_of(r);
    return plan_limits_excess(&limits, planned).device == 0 && beyond(planned[TIER_HOST], limits.host) > 0;
}
