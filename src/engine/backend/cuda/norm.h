#pragma once
/* norm.h - private to the CUDA backend: RMSNORM, LAYERNORM, ADD_RMSNORM and ADD_LAYERNORM as their kernel is told of them. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/launch_norm.h"

launch_norm_args norm_args_of(const kernel_call *k);
