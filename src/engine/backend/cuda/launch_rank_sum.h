#pragma once
/* launch_rank_sum.h - parts of several ranks, added in rank order: the bits of comm/sum.c. */
#include "backend/cuda/launch_optimizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* out[i] = (out[i] +) the parts' i-th elements in order, in fp32 (fp64 for fp64), rounded once. Part `own` lies at `mine`,
 * part p of the others at `others` + p * stride elements. out may lie on `mine`. */
typedef struct launch_rank_sum {
    void *out;
    const void *mine, *others;
    int64_t n, stride;
    int n_parts, own;
    const launch_scalars *scalars; /* with it: begins with what out holds, but at the first micro-batch of a step */
    launch_noise noise;            /* launch_rank_sum_noisy: element 0 of out is its first_element */
} launch_rank_sum;

void launch_rank_sum_typed(cudaStream_t s, launch_type t, const launch_rank_sum *a);
void launch_rank_sum_f64(cudaStream_t s, const launch_rank_sum *a);
/* bf16 with scalars: rounded after every part with the noise of the micro-batch that one rank would have had it in. */
void launch_rank_sum_noisy(cudaStream_t s, const launch_rank_sum *a);

#ifdef __cplusplus
}
#endif
