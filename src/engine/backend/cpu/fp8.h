#pragma once
/* fp8.h - what kernels that hand out the largest number of their result, or multiply 8-bit numbers, share with fp8.c. */
#include "backend/cpu/cpu.h"

/* Output `amax` of a call, where it is asked for: the largest number of its output `of`, bf16; not finite where that is not. */
void cpu_absmax(backend_context *c, const kernel_call *k, int amax, int of);
/* n e4m3 numbers as bf16, which holds all of them. */
void cpu_widen_e4m3(backend_context *c, uint16_t *to, const uint8_t *from, int64_t n);
void cpu_absmax_of(backend_context *c, float *amax, const uint16_t *x, int64_t n); /* of n bf16 numbers */

/* Rounding with a largest number that is known; q, t and scale may be NULL. */
typedef struct cpu_quantize_call {
    const uint16_t *x; /* (n_rows, n_columns) bf16 */
    float amax;
    bool power;
    uint8_t *q, *t;
    float *scale;
    int64_t n_rows, n_columns;
} cpu_quantize_call;
void cpu_quantize(backend_context *c, const cpu_quantize_call *k);

/* QUANTIZE, and the end of an op that rounds by itself: x (n_rows, n_columns) bf16 becomes q and t. amax NULL: the largest number is
 * looked for, and written where largest is given. Nothing is guessed: guess gets the scale. */
typedef struct cpu_round_call {
    const uint16_t *x;
    const float *amax;
    uint8_t *q, *t;
    float *scale, *largest, *guess;
    int64_t n_rows, n_columns;
    bool power;
} cpu_round_call;
void cpu_round(backend_context *c, const cpu_round_call *k);
