#pragma once
/* weights.h - private to train: parameters from safetensors files, by Hugging Face name. */
#include "train/train.h"

/* Fills every parameter (and its fp32 master) from `files`. Names in the files are `prefix` + the Hugging Face name. A
 * tensor that is missing or has another shape is an error that names it; dtypes fp32, bf16 and fp16 are read. Optimizer
 * state is left as it is. */
status weights_load(exec *e, const plan *p, const safetensors *files, size_t n_files, const char *prefix);
