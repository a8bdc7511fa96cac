#pragma once
/* dequantize.h - what all kernels that read codes are told of them. */
#include "backend/backend.h"
#include "backend/cuda/launch_dequantize.h"

launch_codes dequantize_codes(base_format f);
launch_nf4_tables dequantize_tables(void);
