#pragma once
/* absmax.cuh - the largest number of a tensor, gathered by the kernel that writes it.
 *
 * Numbers without their sign are in the order of their bits, with infinity and NaN above all, so that integers are compared:
 * the result is the same in whatever order blocks come. It is cleared before the kernel and grows while it runs. */
#include "backend/cuda/typed.cuh"

/* Of eight bf16 numbers as they are stored, two at a time; absmax_of_words gives what absmax_give takes. */
DEVICE uint32_t absmax_words(uint32_t most, uint4 stored) {
    const uint32_t sizes = 0x7fff7fffu;
    most = __vimax3_u16x2(most, stored.x & sizes, stored.y & sizes);
    return __vimax3_u16x2(most, stored.z & sizes, stored.w & sizes);
}
DEVICE uint32_t absmax_of_words(uint32_t most) { return max(most << 16, most & 0xffff0000u); }

/* Of the first n numbers of a pack as they are stored: what was rounded to T is not what was computed. */
template <typename T> DEVICE uint32_t absmax_pack(uint32_t most, uint4 stored, int64_t n) {
    if (std::is_same_v<T, bf16> && n >= pack<T>::N) return max(most, absmax_of_words(absmax_words(0, stored)));
    pack<T> p = pack_widen<T>(stored);
#pragma unroll
    for (int e = 0; e < pack<T>::N; e++)
        if (e < n) most = max(most, __float_as_uint(p.v[e]) & 0x7fffffffu);
    return most;
}

/* All threads of the block take part; one of them writes. `shared` has a place for every warp. */
DEVICE void absmax_give(float *amax, uint32_t most, uint32_t *shared) {
    most = __reduce_max_sync(0xffffffffu, most);
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = most;
    __syncthreads();
    if (threadIdx.x >= WARP) return;
    most = __reduce_max_sync(0xffffffffu, threadIdx.x < blockDim.x / WARP ? shared[threadIdx.x] : 0u);
    /* It only grows. Atomics on one address queue up, loads do not, and most blocks have nothing to add. */
    if (threadIdx.x == 0 && most > *(volatile unsigned *)amax) atomicMax((unsigned *)amax, most);
}

/* The largest number of what the threads of a block hold, for all of them; mosts is room for a word of each warp. All threads come along. */
template <int WARPS, int ROWS> DEVICE uint32_t absmax_of_block(uint32_t *mosts, const uint4 (&raw)[ROWS][2]) {
    uint32_t most = 0;
#pragma unroll
    for (int r = 0; r < ROWS; r++) most = absmax_words(absmax_words(most, raw[r][0]), raw[r][1]);
    most = __reduce_max_sync(0xffffffffu, absmax_of_words(most));
    if (threadIdx.x % WARP == 0) mosts[threadIdx.x / WARP] = most;
    __syncthreads();
    for (int w = 0; w < WARPS; w++) most = max(most, mosts[w]);
    return most;
}

/* A kernel that can also hand out a largest number is made twice, and only of bf16, which alone needs it: without it the
 * kernel has the registers that it had. */
template <typename T, typename F> static void by_amax(const float *amax, F run) {
    if constexpr (std::is_same_v<T, bf16>) {
        by_flag(amax != NULL, run);
    } else {
        run(std::false_type{});
    }
}

static inline void absmax_clear(cudaStream_t s, float *amax) {
    if (amax) cudaMemsetAsync(amax, 0, sizeof *amax, s);
}
