#pragma once
/* work.h - scratch bytes of the CUDA kernels by family; no CUDA in here. */
#include "backend/backend.h"

size_t cuda_work_bytes(const program *p, const op *o, int n_threads);
