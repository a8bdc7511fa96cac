#pragma once
/* fp8.h - what kernels that hand out the largest number of their result share with fp8.c. */
#include "backend/cpu/cpu.h"

/* *amax = the largest |x| of n elements; not finite where x is not. */
void cpu_absmax(backend_context *c, float *amax, const void *x, dtype type, int64_t n);
