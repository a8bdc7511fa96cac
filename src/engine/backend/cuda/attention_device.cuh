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

/* The first key that a query of whole rows sees. */
__device__ inline int first_key(const launch_attention &a, const int32_t *doc_start, int i) {
    return max(document_start(doc_start, i), i + 1 - a.window);
}

/* Keys [first, end) that a query sees; both grow with the query. */
struct key_span {
    int first, end;
};

/* Keys of the other rank of a ring that stand before a place in the row: it has a run from the front and one from the back. */
__device__ inline int keys_before(const launch_attention &a, int place) {
    const int run = (int)a.T / 2, front = a.key_rank * run, back = (2 * a.n_ranks - 1 - a.key_rank) * run;
    return min(max(place - front, 0), run) + min(max(place - back, 0), run);
}

template <bool RING> __device__ inline key_span keys_seen(const launch_attention &a, const int32_t *doc_start, int i) {
    if (!RING) return {first_key(a, doc_start, i), i + 1};
    if (a.spans) { /* doc_start is that of the query's row */
        const int first = min(max(doc_start[i], 0), (int)a.T);
        return {first, min(max(doc_start[a.B * a.T + i], first), (int)a.T)};
    }
    const int run = (int)a.T / 2;
    const int place = i < run ? a.rank * run + i : (2 * a.n_ranks - 1 - a.rank) * run + i - run;
    const int64_t in_document = min(max((int64_t)i - doc_start[i], (int64_t)0), (int64_t)place);
    const int behind = min((int)in_document, a.window - 1); /* keys before itself */
    return {keys_before(a, place - behind), keys_before(a, place + 1)};
}

/* Raw scores so that scale times them is capped; what a gradient is multiplied by for that, from the capped score. */
template <typename A> __device__ inline float cap_score(const A &a, float s) {
    return a.softcap / a.scale * tanhf(s * a.scale / a.softcap);
}
__device__ inline float cap_gradient(const launch_attention &a, float capped) {
    const float t = capped * a.scale / a.softcap;
    return 1 - t * t;
}

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
