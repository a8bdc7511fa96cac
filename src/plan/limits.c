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

bool plan_limits_hold(const plan_limits *limits, const uint64_t planned[TIER_COUNT]) {
    for (tier t = 0; t < TIER_COUNT; t++)
        if (tier_is_device(t) && limits->device && planned[t] > limits->device) return false;
    if (limits->host && planned[TIER_HOST] > limits->host) return false;
    return !limits->together || sum_device_and_host(planned) <= limits->together;
}

plan_limits plan_limits_of(const plan_request *r) {
    return (plan_limits){.device = r->device_limit, .host = r->host_limit, .together = r->together_limit};
}
