#pragma once
/* adamw_formats.h - for tests: every combination of dtypes that the program makes AdamW with. */
#include "tensor/tensor.h"

typedef struct adamw_format {
    const char *name;
    dtype p, g, states;
    bool master;
} adamw_format;

static const adamw_format adamw_formats[] = {
    {"fp32", DTYPE_F32, DTYPE_F32, DTYPE_F32, false},
    {"fp32, bf16 states", DTYPE_F32, DTYPE_F32, DTYPE_BF16, false},
    {"fp32, int8 states", DTYPE_F32, DTYPE_F32, DTYPE_I8, false},
    {"bf16", DTYPE_BF16, DTYPE_F32, DTYPE_F32, true},
    {"bf16, bf16 states", DTYPE_BF16, DTYPE_F32, DTYPE_BF16, true},
    {"bf16, int8 states", DTYPE_BF16, DTYPE_F32, DTYPE_I8, true},
    {"fp16", DTYPE_F16, DTYPE_F32, DTYPE_F32, true},
    {"fp16, bf16 states", DTYPE_F16, DTYPE_F32, DTYPE_BF16, true},
    {"fp16, int8 states", DTYPE_F16, DTYPE_F32, DTYPE_I8, true},
    {"bf16_sr, fp32 states", DTYPE_BF16, DTYPE_BF16, DTYPE_F32, false},
    {"bf16_sr", DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, false},
    {"bf16_sr, int8 states", DTYPE_BF16, DTYPE_BF16, DTYPE_I8, false},
};
