#pragma once
/* unembed_row.cuh - what the kernels over rows of logits share: maximum and sum of exponentials found together and merged,
 * losses, gradients four at a time. Blocks are of one dimension, and a warp's threads stand together. */
#include "backend/cuda/launch_unembed.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math_constants.h>

enum { WARP = 32 };

typedef struct row_part {
    float max, sum; /* of exp(logit - max) */
    int32_t argmax;
} row_part;

/* ---- maximum and sum -------------------------------------------------------------------------------------------- */

/* -inf - -inf would make a NaN of logits that only weigh nothing. */
static __device__ float base_of(float max) { return max == -CUDART_INF_F ? 0.0f : max; }

template <bool ARGMAX> static __device__ row_part part_merge(row_part a, row_part b) {
    row_part m = {fmaxf(a.max, b.max), 0, 0};
    m.sum = a.sum * (a.max == m.max ? 1.0f : __expf(a.max - m.max)) +
            b.sum * (b.max == m.max ? 1.0f : __expf(b.max - m.max));
    if (ARGMAX) m.argmax = a.max > b.max ? a.argmax : b.max > a.max ? b.argmax : min(a.argmax, b.argmax);
    return m;
}

/* Every lane has the same bits then: the two sides of a merge may change places. */
template <bool ARGMAX> static __device__ row_part warp_merge(row_part p) {
#pragma unroll
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        row_part other;
        other.max = __shfl_xor_sync(0xffffffffu, p.max, distance);
        other.sum = __shfl_xor_sync(0xffffffffu, p.sum, distance);
        other.argmax = ARGMAX ? __shfl_xor_sync(0xffffffffu, p.argmax, distance) : 0;
        p = part_merge<ARGMAX>(p, other);
    }
    return p;
}

/* Of the whole block, known to every thread; once in a kernel. */
template <bool ARGMAX> static __device__ row_part block_merge(row_part p) {
    __shared__ row_part parts[WARP];
    int lane = threadIdx.x % WARP, n_warps = blockDim.x / WARP;
    p = warp_merge<ARGMAX>(p);
    if (lane == 0) parts[threadIdx.x / WARP] = p;
    __syncthreads();
    row_part none = {-CUDART_INF_F, 0, 0x7fffffff};
    return warp_merge<ARGMAX>(lane < n_warps ? parts[lane] : none);
}

static __device__ float max4(float4 v) { return fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)); }
static __device__ float exp_sum4(float4 v, float base) {
    return (__expf(v.x - base) + __expf(v.y - base)) + (__expf(v.z - base) + __expf(v.w - base));
}

/* The four logits at x + i; those from n on are -inf. */
static __device__ float4 load_tail(const float *x, int32_t i, int32_t n) {
    float4 v = {-CUDART_INF_F, -CUDART_INF_F, -CUDART_INF_F, -CUDART_INF_F};
    if (i < n) v.x = x[i];
    if (i + 1 < n) v.y = x[i + 1];
    if (i + 2 < n) v.z = x[i + 2];
    if (i + 3 < n) v.w = x[i + 3];
    return v;
}

/* N x 4 logits join a thread's part, the first of them at i, then i + step ... */
template <bool ARGMAX, int N>
static __device__ void part_add(row_part *p, const float4 (&v)[N], int32_t i, int32_t step) {
    float top = max4(v[0]);
#pragma unroll
    for (int u = 1; u < N; u++) top = fmaxf(top, max4(v[u]));
    if (top > p->max) {
        p->sum *= __expf(p->max - top);
        p->max = top;
#pragma unroll
        for (int u = N - 1; ARGMAX && u >= 0; u--) { /* downwards: the lowest of equals is written last */
            if (v[u].w == top) p->argmax = i + u * step + 3;
            if (v[u].z == top) p->argmax = i + u * step + 2;
            if (v[u].y == top) p->argmax = i + u * step + 1;
            if (v[u].x == top) p->argmax = i + u * step;
        }
    }
    float base = base_of(p->max), sum = exp_sum4(v[0], base);
#pragma unroll
    for (int u = 1; u < N; u++) sum += exp_sum4(v[u], base);
    p->sum += sum;
}

/* ---- loss and gradient ------------------------------------------------------------------------------------------ */

static __device__ bool is_id(const unembed_rows &r, int32_t target) { return target >= 0 && target < r.n_vocabulary; }
static __device__ bool trained(const unembed_rows &r, int64_t row, int32_t *target) {
    *target = r.targets[row];
    return is_id(r, *target);
}

/* Neither term is negative: nothing cancels, fp32 is enough. */
static __device__ float loss_of(row_part p, float logit) { return (p.max - logit) + logf(p.sum); }

/* What is taken off at the target. */
static __device__ float onehot_of(const unembed_rows &r, int64_t row) {
    return (r.weights ? r.weights[row] : 1.0f) * *r.seed;
}

/* Of the four logits from column `at` on: factor * exp(logit - max), less onehot at the target. */
static __device__ float4 gradient4(float4 v, int32_t at, int32_t target, unembed_state s, float onehot, float softcap) {
    float4 g = make_float4(__expf(v.x - s.max) * s.factor, __expf(v.y - s.max) * s.factor,
                           __expf(v.z - s.max) * s.factor, __expf(v.w - s.max) * s.factor);
    uint32_t hit = (uint32_t)(target - at);
    if (hit < 4) {
        if (hit == 0) g.x -= onehot;
        else if (hit == 1) g.y -= onehot;
        else if (hit == 2) g.z -= onehot;
        else g.w -= onehot;
    }
    if (softcap > 0) { /* of capped logits to that of the logits before */
        float by = 1.0f / softcap;
        v.x *= by, v.y *= by, v.z *= by, v.w *= by;
        g.x *= 1.0f - v.x * v.x, g.y *= 1.0f - v.y * v.y, g.z *= 1.0f - v.z * v.z, g.w *= 1.0f - v.w * v.w;
    }
    return g;
}

static __device__ void store4(float *out, float4 v) { *(float4 *)out = v; }
static __device__ void store4(__nv_bfloat16 *out, float4 v) {
    __nv_bfloat162 pair[2] = {__floats2bfloat162_rn(v.x, v.y), __floats2bfloat162_rn(v.z, v.w)};
    *(uint2 *)out = *(uint2 *)pair;
}
static __device__ void store4(__half *out, float4 v) {
    __half2 pair[2] = {__floats2half2_rn(v.x, v.y), __floats2half2_rn(v.z, v.w)};
    *(uint2 *)out = *(uint2 *)pair;
}

/* By the first n_threads of the block. */
template <typename T> static __device__ void zero_row(T *out, int32_t n, int32_t n_threads) {
    for (int32_t i = threadIdx.x * 4; i < n; i += n_threads * 4) store4(out + i, make_float4(0, 0, 0, 0));
}

/* ---- another kernel for the same ---------------------------------------------------------------------------------- */

/* unembed_cluster.cu: launch_unembed_loss_grad where it is faster; false, and nothing done, where it is not or the GPU
 * cannot. */
bool unembed_loss_grad_cluster(cudaStream_t stream, const unembed_rows *r);
