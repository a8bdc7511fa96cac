#pragma once
/* joined.h - private to the CUDA backend: ops that follow each other as fewer kernels (joined.c). */
#include "backend/cuda/cuda.h"

/* As backend_queues.join. */
size_t joined_run(backend_context *c, const kernel_call *calls, size_t n);
