#pragma once
/* launch_select.h - the launcher of select.cu. */
#include "backend/cuda/launch.h"
#include "program/select.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct launch_select {
    selection_options options;
    const float *losses, *reference; /* (n); the reference's loss for a target is that `loss` tokens behind it */
    const int32_t *targets;
    select_tokens tokens;
    const float *before;   /* weights of the tokens; NULL: 1 */
    const uint32_t *micro; /* of step_scalars, in device memory */
    float *weights;        /* as before: of this rank's tokens */
    double *sums;          /* SELECT_SUM_COUNT, of this loss */
    int64_t n;             /* of all ranks */
    int loss;
} launch_select;
void launch_select_run(cudaStream_t s, const launch_select *p);

#ifdef __cplusplus
}
#endif
