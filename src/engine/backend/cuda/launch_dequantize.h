#pragma once
/* launch_dequantize.h - launcher of dequantize.cu: frozen weights from their codes to numbers. */
#include "backend/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum launch_codes { LAUNCH_CODES_FP8, LAUNCH_CODES_INT8, LAUNCH_CODES_NF4 } launch_codes;
enum { LAUNCH_NF4_BLOCK = 64, LAUNCH_NF4_SCALE_BLOCK = 256 };

/* The values that codes of nf4 and of its scales stand for. By value: kernels get them with their arguments. */
typedef struct launch_nf4_tables {
    float nf4[16], dynamic[256];
} launch_nf4_tables;

/* w (n_out, n_in) of the type; scale_codes and offset: nf4 alone. */
typedef struct launch_dequantize_args {
    void *w;
    const uint8_t *codes, *scale_codes;
    const float *scale, *offset;
    int64_t n_out, n_in;
} launch_dequantize_args;
void launch_dequantize(cudaStream_t s, launch_type t, launch_codes f, const launch_dequantize_args *a,
                       const launch_nf4_tables *tables);

#ifdef __cplusplus
}
#endif
