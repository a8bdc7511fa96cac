#pragma once
/* launch_optimizer.h - launchers of optimizer.cu and adamw.cu.
 *
 * What they compute has the bits of the host's kernels, for the same inputs: an update may run on either side. Sizes of
 * blocks come from program.h through the arguments; the numbers of a step are read in device memory, so that a recorded
 * step can be replayed with new ones. */
#include "backend/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* step_scalars of program.h, field by field (optimizer.c compares the two). */
typedef struct launch_scalars {
    float lr, seed, grad_unscale, bias1, bias2;
    uint32_t step, micro, noise_lo, noise_hi, micro_of_all;
    float one, keep;
    uint32_t reserved[4];
} launch_scalars;

/* Which noise rounds an element: see noise.h of the host. A part starts at first_element of the parameter, a multiple of
 * PART_ALIGNMENT. */
enum { PART_ALIGNMENT = 256 };
typedef struct launch_noise {
    uint64_t key;
    int64_t first_element;
    int64_t block; /* elements per block of noise, a multiple of NOISE_BLOCK_MULTIPLE */
} launch_noise;
enum { NOISE_BLOCK_MULTIPLE = 8192 };

/* acc = x at the first micro-batch of a step, acc += x after it. acc is fp32, or bf16 and rounded stochastically. */
void launch_accumulate(cudaStream_t s, launch_type acc_type, launch_type x_type, void *acc, const void *x,
                       const launch_scalars *scalars, launch_noise noise, int64_t n);

/* partials[b] = sum of squares of elements b * block .. (b + 1) * block, in fp64 and the shape of the host. Elements from
 * n_counted on add nothing. */
typedef struct launch_sumsq_args {
    double *partials;
    const void *g;
    int64_t n, n_counted;
    launch_type type;
} launch_sumsq_args;
/* n_args tensors, in as few launches as their types allow: a launch takes longer than the work of a small one. */
void launch_grad_sumsq(cudaStream_t s, const launch_sumsq_args *a, int n_args, int64_t block);
/* *sum = all partials, in order. */
void launch_norm_sum(cudaStream_t s, double *sum, const double *partials, int64_t n);
/* y = x, but for its last n_end elements: those are the sums of n_parts rows of parts (.., n_end), in order, in fp32. */
void launch_sum_parts(cudaStream_t s, launch_type t, void *y, const void *x, const void *parts, int64_t n,
                      int64_t n_end, int n_parts);

/* sums: loss * weight, valid tokens, weights, loss. clip: norm, factor, skip, loss, zeros to `n_clip`. */
typedef struct launch_clip_args {
    const double *partials, *sums;
    const launch_scalars *scalars;
    float *clip;
    int64_t n_partials;
    int n_clip;
    float limit; /* of the norm; 0: none */
    bool by_weights;
    int n_losses; /* whose sums lie one behind the other; 0: one */
    int n_sums;   /* that are copied behind clip */
} launch_clip_args;
enum { LAUNCH_SUM_WEIGHTED_LOSS, LAUNCH_SUM_VALID, LAUNCH_SUM_WEIGHTS, LAUNCH_SUM_LOSS, LAUNCH_SUM_COUNT };
enum { LAUNCH_CLIP_NORM, LAUNCH_CLIP_FACTOR, LAUNCH_CLIP_SKIP, LAUNCH_CLIP_LOSS };
enum { CLIP_THREADS = 1024 }; /* CLIP_LANES of program.h */
void launch_clip(cudaStream_t s, const launch_clip_args *a);

/* sums = or += those of n tokens; a target below 0 does not count; weights NULL: all 1. */
void launch_loss_reduce(cudaStream_t s, double *sums, const float *losses, const int32_t *targets, const float *weights,
                        const launch_scalars *scalars, int64_t n);

typedef enum launch_states { LAUNCH_STATES_F32, LAUNCH_STATES_BF16, LAUNCH_STATES_8 } launch_states;

/* One step of AdamW on n elements. master NULL: p is fp32, or bf16 rounded stochastically, and g has its type; else g is
 * fp32 and p the rounded copy of the master. 8-bit states have a scale for every STATES_8_BLOCK elements. */
enum { STATES_8_BLOCK = 256 };
typedef struct launch_adamw_args {
    void *p, *m, *v;
    float *master, *m_scale, *v_scale;
    const void *g;
    const float *clip;
    const launch_scalars *scalars;
    launch_noise noise;
    int64_t n;
    float beta1, beta2, eps, weight_decay;
    float lr_scale; /* multiplies the learning rate */
    launch_type p_type;
    launch_states states;
} launch_adamw_args;
/* n_args tensors of one step, which have clip, scalars, betas and eps in common, in as few launches as their types allow. */
void launch_adamw(cudaStream_t s, const launch_adamw_args *a, int n_args);

#ifdef __cplusplus
}
#endif
