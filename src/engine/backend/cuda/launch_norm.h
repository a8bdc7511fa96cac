#pragma once
/* launch_norm.h - launchers of norm.cu, norm_bwd.cu and column_sums.cu. */
#include "backend/cuda/launch_codes.h"
#include "backend/cuda/sum_blocks.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Longest row of a norm, longest head of a norm of heads: a block, or a warp, holds it in registers. */
enum { NORM_ROW_BYTES_MAX = 1 << 16, NORM_HEAD_BYTES_MAX = 2048 };

/* Which thread of a block sums what of a row: thread t has packs t, t + threads, ... of 16 bytes, per_thread of them at most. Two
 * packs and more keep enough bytes under way with few warps to wait for at the sum. */
enum { NORM_THREADS_MOST = 512 };
typedef struct norm_shape {
    int per_thread, threads;
} norm_shape;
static inline norm_shape norm_shape_of(int64_t n_packs) {
    int per_thread = n_packs <= 64 ? 1 : n_packs <= 512 ? 2 : n_packs <= 2048 ? 4 : 8;
    int64_t threads = ((n_packs + per_thread - 1) / per_thread + 31) / 32 * 32;
    norm_shape s = {per_thread, (int)(threads < NORM_THREADS_MOST ? threads : NORM_THREADS_MOST)};
    return s;
}

/* s = a + b where b is given, else the row is a; y = norm of that row, or NULL where only the others are wanted. beta and mean NULL: RMSNorm. */
typedef struct launch_norm_args {
    const void *a, *b, *gamma, *beta;
    void *s, *y;
    float *mean, *rstd;
    float *amax;         /* the largest |y|, or NULL */
    void *bytes;         /* or NULL: work of a few_codes_product, which gets y as bytes; y and amax are NULL */
    launch_codes format; /* of that product */
    const int32_t *rows; /* op.rows, in device memory, or NULL */
    int64_t n_rows, C;
    int64_t stride, rstd_step; /* elements from row to row of a, b, s and y; of rstd */
    float eps, offset;         /* offset: added to every gain of RMSNorm */
} launch_norm_args;
/* Can launch_norm give bytes of such rows? */
bool launch_norm_gives_bytes(launch_type t, const launch_norm_args *a);
void launch_norm(cudaStream_t s, launch_type t, const launch_norm_args *a);

/* qkv (n_rows, (n_q + n_k + n_v) D): every q and k head is a row of its own, v heads are copied. rstd (n_rows, n_q + n_k).
 * Backward: y is dqkv, dy is given; q_lines and k_lines take the sums for gq and gk, each (blocks, D), `line` floats from one
 * block to the next, or are NULL. */
typedef struct launch_heads_args {
    const void *qkv, *gq, *gk, *dy;
    void *y;
    float *rstd, *q_lines, *k_lines;
    int64_t line;
    const int32_t *rows;
    int64_t n_rows;
    int n_q, n_k, n_v, D;
    float eps, offset; /* offset: added to every gain */
} launch_heads_args;
void launch_qk_norm(cudaStream_t s, launch_type t, const launch_heads_args *a);
void launch_qk_norm_bwd(cudaStream_t s, launch_type t, const launch_heads_args *a);

/* dx = (dres +) d norm. gamma_lines and, where mean is given, beta_lines take the sums, each (blocks, C), `line` floats from one
 * block to the next, or are NULL. */
typedef struct launch_norm_bwd_args {
    const void *x, *gamma, *dy, *dres;
    const float *mean, *rstd;
    void *dx;
    float *gamma_lines, *beta_lines;
    int64_t line;
    float *amax; /* the largest |dx|, or NULL */
    int64_t n_rows, C;
    int64_t stride, rstd_step; /* elements from row to row of x, dy, dres and dx; of rstd */
    float offset;              /* added to every gain */
} launch_norm_bwd_args;
void launch_norm_bwd(cudaStream_t s, launch_type t, const launch_norm_bwd_args *a);

/* lines (blocks, C): sums of the rows of dy. */
void launch_bias_lines(cudaStream_t s, launch_type t, float *lines, const void *dy, int64_t n_rows, int64_t C);

/* out[c] = sum over lines of lines[l * line + c], for c < n. */
void launch_add_lines(cudaStream_t s, launch_type t, void *out, const float *lines, int64_t n_lines, int64_t line,
                      int64_t n);

#ifdef __cplusplus
}
#endif
