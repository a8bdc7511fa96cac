#pragma once
/* launch_fp8.h - launchers of fp8.cu: bf16 numbers on their way to products of 8 bits. */
#include "backend/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* *amax = the largest |x| of n numbers; not finite where x is not. */
void launch_absmax(cudaStream_t s, float *amax, const void *x, int64_t n);

/* How ops that round by themselves know their scale (guess.cuh). Of amax and largest one is NULL: given, or found and written.
 * guess: the scale of the last run and of this one, or NULL; scale may be NULL too. */
typedef struct launch_guess {
    const float *amax;
    float *scale, *largest, *guess;
    bool power;
} launch_guess;

/* q (n_rows, n_columns) and t (n_columns, n_rows) e4m3 of x (n_rows, n_columns) bf16, either may be NULL. Where the largest number
 * is not given, sides are multiples of 16. With rstd: of the RMSNorm of x's rows, whose largest number is given and whose sides are
 * multiples of 16. */
typedef struct launch_quantize_args {
    const void *x;
    uint8_t *q, *t;
    launch_guess scale;
    int64_t n_rows, n_columns;
    const float *rstd;
    const void *gamma; /* (n_columns) bf16 */
    float offset;      /* added to every gain */
} launch_quantize_args;
void launch_quantize(cudaStream_t s, const launch_quantize_args *a);

/* fp8_blocks.cu: as QUANTIZE_BLOCKS; of q and t either may be NULL, its scales with it. Sides are multiples of 128. */
typedef struct launch_quantize_blocks_args {
    const void *x;
    uint8_t *q, *t;
    float *scale, *t_scale;
    int64_t n_rows, n_columns;
    bool square;
} launch_quantize_blocks_args;
void launch_quantize_blocks(cudaStream_t s, const launch_quantize_blocks_args *a);

/* swiglu8.cu: q and t of swiglu (n_rows, F), or with dy of its gradient (n_rows, 2F); n_rows and F are multiples of 16. */
typedef struct launch_swiglu8_args {
    const void *gu, *dy;
    uint8_t *q, *t;
    launch_guess scale;
    int64_t n_rows, F;
    bool is_gelu;
} launch_swiglu8_args;
void launch_swiglu8(cudaStream_t s, const launch_swiglu8_args *a);

#ifdef __cplusplus
}
#endif
