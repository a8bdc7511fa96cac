#pragma once
/* launch_critic.h - the launchers of critic.cu. */
#include "backend/cuda/launch.h"
#include "program/critic.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The last layer of a value head: x (n_rows, width), w (1, width) and b (1) of one type. */
typedef struct launch_value {
    launch_type type, dw_type; /* dw_type: of dw and db */
    const void *x, *w, *b;
    float *values;        /* (n_rows); of the backward what the forward gave */
    const float *dvalues; /* backward */
    void *dx, *dw, *db;   /* backward; dw, db: NULL where they are not asked for */
    double *lines;        /* backward: value_lines_bytes */
    int64_t n_rows, width;
    bool sigmoid;
} launch_value;
void launch_value_run(cudaStream_t s, const launch_value *p);
void launch_value_bwd(cudaStream_t s, const launch_value *p);

typedef struct launch_critic {
    critic_options options;
    const float *values; /* of rows */
    const int32_t *segments;
    const uint32_t *micro; /* of step_scalars, in device memory */
    const float *seed;     /* ... */
    float *dvalues;
    double *sums; /* CRITIC_SUM_COUNT */
    preference_rows rows;
    int rank;   /* that has a part of each; the first adds to the sums */
    void *work; /* critic_layout_of */
} launch_critic;
void launch_critic_run(cudaStream_t s, const launch_critic *p);

#ifdef __cplusplus
}
#endif
