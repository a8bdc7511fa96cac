#pragma once
/* launch_lora_product.h - launcher of lora_product.cu: large products of bf16 matrices with an adapter in the same sums, on compute
 * capability 9.0. */
#include "backend/cuda/launch.h"
#include "backend/cuda/launch_lora.h"
#include <cuda.h>

#ifdef __cplusplus
extern "C" {
#endif

/* b turned, it lies as (n, k):   c (m, n) = a (m, k) b^T + bias (n) + scale xa_i up_i^T in the columns of part i; xa (m, G r), up (R, r)
 * else, it lies as (k, n):       c = a b + xa up; xa (m, r), up (r, n); no scale, no bias, no parts
 *
 * Sums in fp32, one rounding. Everything in bf16 and behind each other, n, k and r multiples of 8, all data aligned to 16 bytes; parts
 * begin and end at multiples of LORA_PRODUCT_PART. */
enum { LORA_PRODUCT_PART = 256 };
typedef struct lora_product {
    int64_t m, n, k, r;
    const void *bias; /* or NULL */
    bool b_turned;
    float scale;
    launch_lora_parts parts;
    int n_multiprocessors;
} lora_product;

/* The tensors as the TMA unit knows them, in boxes of 64 columns and of so many rows. */
enum {
    LORA_PRODUCT_A_ROWS = 128,      /* a and xa */
    LORA_PRODUCT_TURNED_ROWS = 128, /* b and up, turned */
    LORA_PRODUCT_B_ROWS = 64,       /* ... and not */
    LORA_PRODUCT_C_ROWS = 64
};
typedef struct lora_product_maps {
    CUtensorMap a, b, c, xa, up;
} lora_product_maps;
void launch_lora_product(cudaStream_t s, const lora_product *q, const lora_product_maps *m);

#ifdef __cplusplus
}
#endif
