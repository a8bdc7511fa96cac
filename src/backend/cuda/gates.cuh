#pragma once
/* gates.cuh - GELU and SiLU of one number: one text for the ops alone and for SWIGLU behind its product.
 *
 * Both end in x / (1 + e^-a), as on the host: 1 + tanh(z) would lose all digits for z < -9. */

#define GELU_SLOPE 1.5957691216057308f /* 2 sqrt(2 / pi) */
#define GELU_CUBIC 0.044715f

static __device__ __forceinline__ float gelu(float x) {
    float a = x * GELU_SLOPE * fmaf(x * x, GELU_CUBIC, 1.0f);
    return x / (1.0f + expf(-a));
}

/* To one unit in the last place and without the branch of a division. Past 2^126 it gives 0. */
static __device__ __forceinline__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Few bytes to much arithmetic leave no time for exact divisions: silu(g) = g / (1 + e^-g) is 0 here where g is below -87, not 1e-36. */
static __device__ __forceinline__ float gated(float gate, float up, bool is_gelu) {
    return (is_gelu ? gelu(gate) : gate * reciprocal(1.0f + expf(-gate))) * up;
}
