#pragma once
/* fp8.h - what kernels that hand out the largest number of their result share with fp8.c. */
#include "backend/cpu/cpu.h"

/* Output `amax` of a call, where it is asked for: the largest number of its output `of`, bf16; not finite where that is not. */
void cpu_absmax(backend_context *c, const kernel_call *k, int amax, int of);
