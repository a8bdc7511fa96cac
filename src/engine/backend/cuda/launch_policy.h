#pragma once
/* launch_policy.h - the launcher of policy.cu. */
#include "backend/cuda/launch.h"
#include "program/policy.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct launch_policy {
    policy_options options;
    const float *losses, *old, *reference, *rollout, *advantages; /* (batch, seq_len); NULL where the loss has none */
    const int32_t *segments;
    const uint32_t *micro; /* of step_scalars, in device memory */
    float *weights;
    double *sums; /* POLICY_SUM_COUNT */
    int64_t batch, seq_len;
    void *work; /* policy_layout_of */
} launch_policy;
void launch_policy_run(cudaStream_t s, const launch_policy *p);

#ifdef __cplusplus
}
#endif
