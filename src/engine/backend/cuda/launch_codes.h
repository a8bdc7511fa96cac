#pragma once
/* launch_codes.h - launcher of few_codes.cu: a few rows times a weight that is stored in codes. */
#include "backend/cuda/launch_dequantize.h"
#include "backend/cuda/launch_gemm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of the weight that were quantised together, from first_row to the next part's. */
typedef struct few_codes_part {
    int64_t first_row;
    const uint8_t *scale_codes; /* nf4 */
    const float *scale;  /* int8: one per row; fp8: one; nf4: of the scales, one per LAUNCH_NF4_SCALE_BLOCK of them */
    const float *offset; /* nf4 */
} few_codes_part;

/* y (m, n) = x (m, k) w (n, k)^T (+ bias (n)), m at most FEW_ROWS_MOST. 16-bit x, y of its type or fp32; k a multiple of FEW_CODES_UNIT;
 * codes of all parts one behind the other. A row's bits do not depend on m. gated, gelu: as few_rows_product has them. */
enum { FEW_CODES_PARTS = 3, FEW_CODES_UNIT = 64, FEW_CODES_BOX = 128 /* neighbours of a row of x with one scale */ };
#define FEW_CODES_SCALES(k) (((size_t)(k) + FEW_CODES_BOX - 1) / FEW_CODES_BOX * FEW_ROWS_MOST * sizeof(float))
#define FEW_CODES_WORK(k) (FEW_CODES_SCALES(k) + (size_t)FEW_ROWS_MOST * 2 * (size_t)(k))
typedef struct few_codes_product {
    int64_t m, n, k;
    const void *x, *codes;
    void *y;
    int64_t ldy;
    const void *bias; /* of y_type, or NULL */
    launch_codes format;
    launch_type type, y_type;
    bool gated, gelu;
    void *work; /* FEW_CODES_WORK(k) bytes, at a multiple of 16 bytes */
    bool cut;   /* work has x as bytes already (launch_norm); for launch_few_codes_wgmma alone */
    int n_parts;
    few_codes_part parts[FEW_CODES_PARTS];
} few_codes_product;
void launch_few_codes(cudaStream_t s, const few_codes_product *q, const launch_nf4_tables *tables);
/* The same on compute capability 9.0, where HAVE_SM90A. */
void launch_few_codes_wgmma(cudaStream_t s, const few_codes_product *q, const launch_nf4_tables *tables);

#ifdef __cplusplus
}
#endif
