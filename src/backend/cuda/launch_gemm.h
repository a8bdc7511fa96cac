#pragma once
/* launch_gemm.h - the plain matrix product, for the shapes that cuBLASLt does not take, and numbers to measure products on. */
#include "backend/cuda/launch.h"

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
    launch_type type, c_type; /* of a and b, of c */
} plain_product;
void launch_plain_product(cudaStream_t stream, const plain_product *q);

/* Numbers of ordinary size, read as fp32, bf16 or fp16; read as fp8 every second byte may be anything, a NaN too. Bytes
 * behind the last word of 4 stay as they are. */
void launch_fill(cudaStream_t stream, void *memory, size_t n_bytes);

#ifdef __cplusplus
}
#endif
