#pragma once
/* launch_fp8.h - launchers of fp8.cu: bf16 numbers on their way to products of 8 bits. */
#include "backend/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* *amax = the largest |x| of n numbers; not finite where x is not. */
void launch_absmax(cudaStream_t s, float *amax, const void *x, int64_t n);

/* q (n_rows, n_columns) and t (n_columns, n_rows) e4m3 of x (n_rows, n_columns) bf16, either may be NULL; scale may too. */
typedef struct launch_quantize_args {
    const void *x;
    const float *amax;
    uint8_t *q, *t;
    float *scale;
    int64_t n_rows, n_columns;
} launch_quantize_args;
void launch_quantize(cudaStream_t s, const launch_quantize_args *a);

#ifdef __cplusplus
}
#endif
