#pragma once
/* launch_preference.h - the launcher of preference.cu. */
#include "backend/cuda/launch.h"
#include "program/preference.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct launch_preference {
    preference_options options;
    preference_rows rows;
    int rank;                        /* of rows.n_ranks: whose tokens are weighed; the first one has the sums */
    const float *losses, *reference; /* of all tokens; reference: NULL where the loss has none */
    const int32_t *segments;
    const uint32_t *micro; /* of step_scalars, in device memory */
    const double *z;       /* kto's, in device memory; NULL: that of these rows */
    float *weights;
    double *sums; /* PREFERENCE_SUM_COUNT */
    void *work;   /* preference_layout_of */
} launch_preference;
void launch_preference_run(cudaStream_t s, const launch_preference *p);

#ifdef __cplusplus
}
#endif
