#pragma once
/* gated.cuh - GELU, SwiGLU and their derivatives of one element, one text for the ops alone, in 16 and in 8
 * bits, and for SWIGLU behind its product.
 *
 * GELU and SiLU both end in x / (1 + e^-a), as on the host: 1 + tanh(z) would lose all digits for z < -9. Of SiLU's gates so few bytes
 * to so much arithmetic leave no time for exact divisions and exponentials: with them the kernels of 8 bits wait for instructions, not
 * for memory. What is rounded to 16 bits does not show the difference; T = float keeps every digit. */
#include <type_traits>

static __device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

/* To one unit in the last place and without the branch of a division. Past 2^126 it gives 0. */
static __device__ __forceinline__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Within |x| 2^-24 of itself; past the range of fp32 infinity or 0. */
static __device__ __forceinline__ float exponential(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f)); /* log2(e) */
    return y;
}

/* 0 where x is below -87, not 1e-38. */
static __device__ __forceinline__ float gate_sigmoid(float x) { return reciprocal(1.0f + exponential(-x)); }

#define GELU_SLOPE 1.5957691216057308f /* 2 sqrt(2 / pi) */
#define GELU_CUBIC 0.044715f

static __device__ __forceinline__ float gelu(float x) {
    float a = x * GELU_SLOPE * fmaf(x * x, GELU_CUBIC, 1.0f);
    return x / (1.0f + expf(-a));
}

/* d/dx x s(a(x)) = s + x s (1 - s) a'. Beyond |x| = 30 the answer is 0 or 1; the clamp keeps inf * 0 out, and lets NaN
 * pass, which fminf would not. */
static __device__ __forceinline__ float gelu_gradient(float x, float dy) {
    x = x > 30.0f ? 30.0f : x;
    x = x < -30.0f ? -30.0f : x;
    float square = x * x, s = sigmoid(x * GELU_SLOPE * fmaf(square, GELU_CUBIC, 1.0f));
    float slope = GELU_SLOPE * fmaf(square, 3 * GELU_CUBIC, 1.0f);
    return dy * fmaf(x * s * (1.0f - s), slope, s);
}

/* gelu(g) u or silu(g) u, of elements of type T. */
template <typename T> static __device__ __forceinline__ float gated(float g, float u, bool is_gelu) {
    if (is_gelu) return gelu(g) * u;
    return g * (std::is_same_v<T, float> ? reciprocal(1.0f + expf(-g)) : gate_sigmoid(g)) * u;
}

/* silu(g) = g s: d gate = dy up s (1 + g (1 - s)), d up = dy g s. */
template <typename T>
static __device__ __forceinline__ void gated_gradient(float *dg, float *du, float g, float u, float dy, bool is_gelu) {
    if (is_gelu) {
        *dg = gelu_gradient(g, dy * u);
        *du = dy * gelu(g);
        return;
    }
    float s = std::is_same_v<T, float> ? sigmoid(g) : gate_sigmoid(g);
    *dg = dy * u * s * fmaf(g, 1.0f - s, 1.0f);
    *du = dy * (g * s);
}
