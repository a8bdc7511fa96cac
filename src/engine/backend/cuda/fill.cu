/* fill.cu - what products are measured on: numbers of ordinary size all over fresh memory, and an L2 cache that holds something else.
 *
 * Products are measured on it before a step has written anything. Of zeros a product draws little power, and the GPU runs it
 * faster than it ever will in a step; which of two algorithms is faster turns out differently, too.
 *
 * A word is two bf16 between 1/8 and 2, of either sign, which makes an ordinary fp32, and read as fp16 two ordinary ones; as 8-bit numbers
 * it is four that are finite. */
#include "backend/cuda/launch_gemm.h"

enum { THREADS = 256, BLOCKS = 2048 };

/* murmur3's finalizer: neighbours have nothing in common. */
static __device__ uint32_t scatter(uint32_t x) {
    x ^= x >> 16;
    x *= 0x85ebca6bu;
    x ^= x >> 13;
    x *= 0xc2b2ae35u;
    return x ^ x >> 16;
}

static __global__ void __launch_bounds__(THREADS) fill_kernel(uint32_t *out, size_t n_words) {
    size_t step = (size_t)gridDim.x * THREADS;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n_words; i += step) {
        uint32_t noise = scatter((uint32_t)i ^ scatter((uint32_t)(i >> 32)));
        uint32_t word = (noise & 0x81ff81ffu) | 0x3e003e00u; /* sign, two bits of exponent and seven of significand */
        if ((word & 0x7cu) == 0x7cu) word ^= 0x40u;           /* a low byte that is no number as e5m2 or e4m3 */
        if ((word & 0x7c0000u) == 0x7c0000u) word ^= 0x400000u;
        out[i] = word;
    }
}

/* never is NULL, which the compiler does not know: it must read. */
static __global__ void __launch_bounds__(THREADS) read_kernel(const uint4 *from, size_t n, uint32_t *never) {
    uint32_t sum = 0;
    size_t step = (size_t)gridDim.x * THREADS;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += step) {
        uint4 v = from[i];
        sum += v.x ^ v.y ^ v.z ^ v.w;
    }
    if (never && sum == 1) *never = sum;
}

extern "C" void launch_read(cudaStream_t stream, const void *memory, size_t n_bytes) {
    read_kernel<<<BLOCKS, THREADS, 0, stream>>>((const uint4 *)memory, n_bytes / sizeof(uint4), NULL);
}

extern "C" void launch_fill(cudaStream_t stream, void *memory, size_t n_bytes) {
    size_t n_words = n_bytes / sizeof(uint32_t);
    if (n_words > 0) fill_kernel<<<BLOCKS, THREADS, 0, stream>>>((uint32_t *)memory, n_words);
}
