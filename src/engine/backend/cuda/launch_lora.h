#pragma once
/* launch_lora.h - launchers of lora_up.cu, lora_up_tiles.cu, lora_bwd_tiles.cu, lora_grad.cu and dropout.cu. */
#include "backend/cuda/launch.h"
#include "backend/cuda/launch_optimizer.h"
#include "backend/cuda/lora_units.h"
#include <cuda.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Parts of a packed row: columns first[i] .. + columns[i] of the wide rows, r columns of the small ones, and the next
 * columns[i] rows of b. All of them multiples of 8, and wide rows too. */
enum { LAUNCH_LORA_PARTS = 3 };
typedef struct launch_lora_parts {
    int n;
    int64_t first[LAUNCH_LORA_PARTS], columns[LAUNCH_LORA_PARTS];
} launch_lora_parts;

/* y (N, out) = base + scale xa_i b_i^T in the columns of the parts; others are not written. 16 bits; base and y aligned to 16
 * bytes, and one may be the other. */
typedef struct launch_lora_up_args {
    const void *base, *xa, *b;
    void *y;
    const int32_t *rows; /* op.rows, in device memory, or NULL */
    int64_t N, out, r;
    float scale;
    launch_lora_parts parts;
} launch_lora_up_args;
void launch_lora_up(cudaStream_t s, launch_type t, const launch_lora_up_args *a);
/* The same on compute capability 9.0: parts begin and end at multiples of LAUNCH_LORA_BOX, r is a multiple of 8 and at most
 * LORA_UP_TILES_RANK. The tensors as the TMA unit knows them, in boxes of LAUNCH_LORA_BOX columns and LORA_UP_ROWS rows; those of xa
 * are as wide as lora_rank_width says. */
enum { LAUNCH_LORA_BOX = 64, LORA_UP_ROWS = 32, LORA_UP_TILES_RANK = 64 };
typedef struct launch_lora_up_maps {
    CUtensorMap base, xa, y;
} launch_lora_up_maps;
void launch_lora_up_tiles(cudaStream_t s, launch_type t, const launch_lora_up_args *a, const launch_lora_up_maps *m);

/* over_tokens: result (R, r) = scale dy_i^T small_i, small (N, G r) is xa; else result (N, G r) = scale dy_i small_i, small (R,
 * r) is b. The sum is cut into runs of `run`; where there are several, `runs` takes their parts, as many times the result. dy
 * aligned to 16 bytes. */
typedef struct launch_lora_grad_args {
    const void *dy, *small;
    void *result;
    float *runs;
    int64_t N, out, r, run;
    float scale;
    launch_lora_parts parts;
    bool over_tokens;
} launch_lora_grad_args;
void launch_lora_grad(cudaStream_t s, launch_type t, launch_type result_type, const launch_lora_grad_args *a);

/* dxa (N, G r) = scale dy_i b_i and db (R, r) = scale dy_i^T xa_i in one reading of dy, on compute capability 9.0: parts as for
 * launch_lora_up_tiles, r a multiple of 8 and at most LORA_BWD_RANK; b aligned to 16 bytes. Sums are left in parts, which are added
 * in order; lora_units says into how many. Boxes have LORA_UNIT_TOKENS rows. */
typedef struct launch_lora_bwd_args {
    const void *b;
    void *dxa, *db;
    float *dxa_parts, *db_parts; /* (stripes, N, r), (segments, R, r) */
    int64_t N, r, R;
    int64_t n_units, units_per_stripe, n_blocks;
    float scale;
    launch_lora_parts parts;
} launch_lora_bwd_args;
typedef struct launch_lora_bwd_maps {
    CUtensorMap dy, xa;
} launch_lora_bwd_maps;
void launch_lora_bwd(cudaStream_t s, launch_type t, launch_type db_type, const launch_lora_bwd_args *a,
                     const launch_lora_bwd_maps *m);

/* y = x * factor, or 0 where the element's word of noise is below limit. columns > 0: rows of so many elements of a tensor with
 * rows of all_columns, which begin at first_column; n_ranks > 1: of each seq_len rows in turn, those that this rank has of
 * n_ranks seq_len, two runs as sequence_token says; noise.first_element / columns rows of this rank come before. Else n elements in
 * one run from noise.first_element on. */
typedef struct launch_dropout_args {
    const void *x;
    void *y;
    const launch_scalars *scalars;
    launch_noise noise;
    int64_t n;
    int64_t columns, all_columns, first_column, seq_len;
    int rank, n_ranks;
    uint32_t limit;
    float factor;
} launch_dropout_args;
void launch_dropout(cudaStream_t s, launch_type t, const launch_dropout_args *a);

#ifdef __cplusplus
}
#endif
