#pragma once
/* paged.h - private to the CUDA backend: an ATTENTION_PAGED as its kernels are told of it. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/launch_attention.h"

launch_paged paged_attention_of(const kernel_call *k);
