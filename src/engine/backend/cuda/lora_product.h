#pragma once
/* lora_product.h - private to the CUDA backend: LINEAR and LINEAR_DX with an adapter as lora_product.cu computes them. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/launch_lora.h"

launch_lora_parts lora_parts_of(const op *o);

/* Is there a kernel for it, on this GPU and for these sizes? */
bool lora_product_takes(const backend_context *c, const kernel_call *k);
void lora_product_run(backend_context *c, const kernel_call *k);
