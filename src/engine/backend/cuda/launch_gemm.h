#pragma once
/* launch_gemm.h - products of our own: of few rows, and the plain one for shapes that cuBLASLt does not take; and numbers to
 * measure products on. */
#include "backend/cuda/launch.h"
#include "program/fp8_scale.h"

#ifdef __cplusplus
extern "C" {
#endif

/* c (m, n) = alpha a (m, k) b (k, n) (times scales) (+ bias (n)) (+ add (m, n)); element (i, j) of an operand lies at i * row + j * col. */
typedef struct plain_operand {
    const void *data;
    int64_t row, col;
} plain_operand;
typedef struct plain_product {
    int64_t m, n, k;
    plain_operand a, b;
    void *c;
    int64_t ldc;
    const void *bias; /* of c_type, or NULL */
    const void *add;  /* of c_type, or NULL; may be c */
    int64_t ld_add;
    float alpha;
    const float *scales[2];   /* of a and b, in device memory, or NULL */
    fp8_blocks blocks[2];     /* ... of blocks of rows of a and of columns of b along k; height 0: one scale each */
    launch_type type, c_type; /* of a and b, of c */
    bool a_e5m2;              /* e4m3: a alone is e5m2 */
} plain_product;
void launch_plain_product(cudaStream_t stream, const plain_product *q);

/* y (m, n) = alpha x (m, k) w (n, k)^T (+ bias (n)), m at most FEW_ROWS_MOST, on compute capability 9.0. 16-bit x and w, k a
 * multiple of 8; y of their type or fp32. A row's bits do not depend on m.
 *
 * With 16-bit y and gated, y (m, n / 2) = SWIGLU of the product, which is rounded before as the op alone would. */
enum { FEW_ROWS_MOST = 64 };
typedef struct few_rows_product {
    int64_t m, n, k;
    const void *x, *w;
    void *y;
    int64_t ldy;
    const void *bias; /* of y_type, or NULL */
    float alpha;
    launch_type type, y_type;
    bool gated, gelu; /* gelu: the gate has GELU in the place of SiLU */
} few_rows_product;
void launch_few_rows(cudaStream_t stream, const few_rows_product *q);

/* Numbers of ordinary size, read as fp32, bf16 or fp16; read as fp8 every second byte may be anything, a NaN too. Bytes
 * behind the last word of 4 stay as they are. */
void launch_fill(cudaStream_t stream, void *memory, size_t n_bytes);
/* Reads memory, so that the L2 cache holds nothing else; memory is aligned to 16 bytes. */
void launch_read(cudaStream_t stream, const void *memory, size_t n_bytes);

#ifdef __cplusplus
}
#endif
