#pragma once
/* fp8.h - what kernels that hand out the largest number of their result, or multiply 8-bit numbers, share with fp8.c. */
#include "backend/cpu/cpu.h"

/* Output `amax` of a call, where it is asked for: the largest number of its output `of`, bf16; not finite where that is not. */
void cpu_absmax(backend_context *c, const kernel_call *k, int amax, int of);
/* n e4m3 numbers as bf16, which holds all of them. */
void cpu_widen_e4m3(backend_context *c, uint16_t *to, const uint8_t *from, int64_t n);
