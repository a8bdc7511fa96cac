#pragma once
/* launch_elementwise.h - launchers of elementwise.cu. `rows` is op.rows: NULL, or the number of leading rows to compute,
 * in device memory. Outputs may take the bytes of an input where ops.def says so. */
#include "backend/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Ops by name, where one launcher serves several. */
typedef enum launch_op {
#define OP(id, ...) LAUNCH_##id,
#include "program/ops.def"
#undef OP
} launch_op;

/* An op that makes element i of y from a[i], or from a[i] and b[i]: all inputs and y have one type and n_rows * width elements.
 * b: NULL for an op with one input. */
void launch_map(cudaStream_t s, launch_op op, launch_type t, void *y, const void *a, const void *b, int64_t n_rows,
                int64_t width, const int32_t *rows);

void launch_add_bias(cudaStream_t s, launch_type t, void *y, const void *x, const void *bias, int64_t n_rows,
                     int64_t width, const int32_t *rows);
/* gu (n_rows, 2F), y (n_rows, F); is_gelu: the gate has gelu in the place of silu. amax: the largest |y|, |dgu|, or NULL.
 * Of the backward y is what the forward wrote, once more, or NULL; it may be dy. */
void launch_swiglu(cudaStream_t s, launch_type t, void *y, float *amax, const void *gu, int64_t n_rows, int64_t F,
                   const int32_t *rows, bool is_gelu);
void launch_swiglu_bwd(cudaStream_t s, launch_type t, void *dgu, float *amax, void *y, const void *gu, const void *dy,
                       int64_t n_rows, int64_t F, bool is_gelu);

typedef struct launch_rope_args {
    void *y;
    const void *qkv;
    const float *table; /* (n_positions, rotary) */
    const int32_t *doc_start, *rows;
    int64_t n_rows, seq_len, n_positions;
    int n_turned;         /* query and key heads */
    int n_kept;           /* value heads, copied unless y is qkv */
    int head_dim, rotary; /* of a head the first `rotary` dimensions are turned; the others are kept */
    float sign;           /* -1 turns back */
    float *amax;          /* the largest |y|, or NULL */
} launch_rope_args;
void launch_rope(cudaStream_t s, launch_type t, const launch_rope_args *a);

/* Columns first .. first + n of both halves of table (n_positions, 2 * half). The frequencies travel with the launch. */
enum { ROPE_FREQUENCIES = 256 };
void launch_rope_table(cudaStream_t s, float *table, int64_t n_positions, int half, int first, int n,
                       const double frequencies[ROPE_FREQUENCIES], double amplitude);

void launch_cast(cudaStream_t s, launch_type y_type, launch_type x_type, void *y, const void *x, int64_t n);

#ifdef __cplusplus
}
#endif
