#pragma once
/* attention_device.cuh - what all attention kernels share: elements as fp32, which keys a query sees, and in which order the
 * tiles of a launch are taken. */
#include "backend/cuda/launch_attention.h"
#include "backend/cuda/launch_kernel.cuh"
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float widen(__half x) { return __half2float(x); }
template <typename E> __device__ inline E narrow(float x);
template <> __device__ inline float narrow<float>(float x) { return x; }
template <> __device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float x) { return __float2bfloat16_rn(x); }
template <> __device__ inline __half narrow<__half>(float x) { return __float2half_rn(x); }

/* doc_start is checked by the loader; a value outside [0, i] is read as the nearest one, so every query sees itself. */
__device__ inline int document_start(const int32_t *doc_start, int i) { return min(max(doc_start[i], 0), i); }

/* A maximum that exponents can be taken from: where nothing was seen yet it is -inf, and -inf - -inf is not a number. */
__device__ inline float anchor(float max) { return max == -INFINITY ? 0.0f : max; }

/* The tasks of one row of tiles, longest walk first, so that no multiprocessor starts one when the others are done.
 * Neighbours share a kv head, whose keys they find in L2. */
struct tile_task {
    int tile;  /* of queries */
    int64_t b; /* sequence */
    int head;
};
__device__ inline tile_task tile_task_of(int64_t task, int n_tiles, int64_t B, int n_heads) {
    int64_t pairs = B * n_heads, pair = task % pairs;
    return {(int)(n_tiles - 1 - task / pairs), pair / n_heads, (int)(pair % n_heads)};
}
