/* policy.c - the C side of policy.cu. */
#include "backend/cuda/cuda.h"

#include "backend/cuda/launch_policy.h"

void cuda_kernel_POLICY(backend_context *c, const kernel_call *k) {
    const op_attr *a = &k->op->attr;
    launch_policy p = {.options = a->policy,
                       .losses = k->in[POLICY_LOSSES],
                       .old = k->in[POLICY_OLD],
                       .reference = k->in[POLICY_REFERENCE],
                       .rollout = k->in[POLICY_ROLLOUT],
                       .advantages = k->in[POLICY_ADVANTAGES],
                       .segments = k->in[POLICY_SEGMENTS],
                       .micro = (const uint32_t *)((const char *)k->in[POLICY_SCALARS] + offsetof(step_scalars, micro)),
                       .weights = k->out[POLICY_WEIGHTS],
                       .sums = k->out[POLICY_SUMS],
                       .batch = a->batch,
                       .seq_len = a->seq_len,
                       .work = k->work};
    launch_policy_run(c->stream, &p);
}
