#pragma once
/* lora_product.h - private to the CUDA backend: LINEAR and LINEAR_DX with an adapter as lora_product.cu computes them. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/launch_lora.h"

launch_lora_parts lora_parts_of(const op *o);

/* false: there is no kernel for it on this GPU, or of these sizes, and nothing is done. Follows from the op and its sizes alone. */
bool lora_product_run(backend_context *c, const kernel_call *k);
