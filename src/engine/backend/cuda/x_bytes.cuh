#pragma once
/* x_bytes.cuh - numbers of 16 bits as bytes, for products with weights in codes (few_codes.cuh).
 *
 * x is cut into two bytes: integers up to 32512 as 256 h + l for int8 and nf4, whose sixteen values are looked up as multiples of 1 / 127, or
 * e4m3 numbers h + l / 16 for fp8. Every X_BOX neighbours of a row have a scale of their own, so that nobody has to see all of a row first. */
#include "backend/cuda/launch_codes.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

namespace few_codes_shared {

constexpr float INTEGERS = 127 * 256, E4M3_MOST = 448;

template <typename E> struct alignas(16) pack8 { E e[8]; };
struct bytes8 {
    uint32_t word[2];
};

/* The scale of numbers of which the largest is that; NaN where it is not finite. */
template <launch_codes F> __device__ inline float scale_of(float largest) {
    constexpr float MOST = F == LAUNCH_CODES_FP8 ? E4M3_MOST : INTEGERS;
    return isfinite(largest) ? fmaxf(largest, 0x1p-100f) * (1 / MOST) : __int_as_float(0x7fffffff);
}

/* Eight neighbours as their upper and lower bytes; pairs in the order of codes of nf4. by: what they are multiplied with first. */
template <launch_codes F, typename E>
__device__ inline void cut_x(bytes8 &high, bytes8 &low, const pack8<E> &x, float by) {
#pragma unroll
    for (int w = 0; w < 2; w++) {
        if constexpr (F == LAUNCH_CODES_FP8) {
            high.word[w] = low.word[w] = 0;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float v = (float)x.e[4 * w + i] * by;
                const __nv_fp8_e4m3 first(v), second((v - (float)first) * 16.0f);
                high.word[w] |= (uint32_t)first.__x << 8 * i, low.word[w] |= (uint32_t)second.__x << 8 * i;
            }
        } else {
            /* Of such a sum the lower 16 bits are the integer + 128: the upper byte is h, the lower l with its highest bit turned over. */
            constexpr float ROUND = 0x1.8p23f + 128;
            uint32_t v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) v[i] = __float_as_uint(fmaf((float)x.e[4 * w + i], by, ROUND));
            const uint32_t a = __byte_perm(v[0], v[1], 0x5410), b = __byte_perm(v[2], v[3], 0x5410);
            constexpr bool SWAP = F == LAUNCH_CODES_NF4;
            high.word[w] = __byte_perm(a, b, SWAP ? 0x5713 : 0x7531);
            low.word[w] = __byte_perm(a, b, SWAP ? 0x4602 : 0x6420) ^ 0x80808080u;
        }
    }
}

/* The largest |x| of each of two neighbours in a word, as their bits; what is not finite has larger bits than what is. */
template <typename E> __device__ inline uint32_t largest_bits(const pack8<E> &v) {
    const uint4 w = *(const uint4 *)&v;
    const uint32_t sizes = 0x7fff7fffu;
    return __vmaxu2(__vmaxu2(w.x & sizes, w.y & sizes), __vmaxu2(w.z & sizes, w.w & sizes));
}
__device__ inline float float_of_bits(uint32_t bits, __nv_bfloat16) { return __uint_as_float(bits << 16); }
__device__ inline float float_of_bits(uint32_t bits, __half) {
    return __half2float(__ushort_as_half((unsigned short)bits));
}

enum { X_BOX = FEW_CODES_BOX, X_LANES = X_BOX / 8 };

/* Of a box X_LANES neighbouring lanes have eight numbers each, in the order of lanes; zeros where the row has ended. Its scale. Every lane
 * of a warp calls. */
template <launch_codes F, typename E> __device__ inline float cut_box(bytes8 &high, bytes8 &low, const pack8<E> &x) {
    uint32_t most = largest_bits(x);
#pragma unroll
    for (int d = X_LANES / 2; d; d /= 2) most = __vmaxu2(most, __shfl_xor_sync(0xffffffffu, most, d));
    const float scale = scale_of<F>(float_of_bits(max(most & 0xffff, most >> 16), x.e[0]));
    cut_x<F>(high, low, x, __fdividef(1, scale));
    return scale;
}

/* Eight neighbours from k on go where they were (AS_IS), or where wgmma reads them beside codes of nf4: a lane has sixteen neighbours of a block
 * of 64, of which a product takes four and four. */
template <bool AS_IS> __device__ inline void store_bytes(unsigned char *row, int64_t k, bytes8 v) {
    unsigned char *to = row + (AS_IS ? k : k / 64 * 64 + k / 8 % 2 * 32 + k / 16 % 4 * 4);
    *(uint32_t *)to = v.word[0], *(uint32_t *)(to + (AS_IS ? 4 : 16)) = v.word[1];
}

/* Scratch: scales (boxes of k, FEW_ROWS_MOST), then bytes (m, 2, k). */
__host__ __device__ inline unsigned char *bytes_in(void *work, int64_t k) {
    return (unsigned char *)work + FEW_CODES_SCALES(k);
}

/* A lane's eight neighbours from `at` on of a row of x, as they lie, go to scratch, and with them the scale of their box; zeros where the row has
 * ended. Every lane of a warp calls. */
template <launch_codes F, bool AS_IS, typename E>
__device__ inline void give_bytes(void *work, int64_t row, int64_t at, int64_t k, uint4 numbers) {
    bytes8 high, low;
    const float scale = cut_box<F>(high, low, *(const pack8<E> *)&numbers);
    if (at >= k) return;
    unsigned char *high_row = bytes_in(work, k) + 2 * row * k;
    store_bytes<AS_IS>(high_row, at, high), store_bytes<AS_IS>(high_row + k, at, low);
    if (at % X_BOX == 0) ((float *)work)[at / X_BOX * FEW_ROWS_MOST + row] = scale;
}

/* Does wgmma read bytes beside these codes where the numbers were? */
constexpr bool wgmma_reads_as_is(launch_codes f) { return f != LAUNCH_CODES_NF4; }

/* The same for few_codes_wgmma.cu. */
template <typename E>
__device__ inline void give_bytes_to_wgmma(launch_codes f, void *work, int64_t row, int64_t at, int64_t k, uint4 numbers) {
    if (f == LAUNCH_CODES_INT8)
        give_bytes<LAUNCH_CODES_INT8, wgmma_reads_as_is(LAUNCH_CODES_INT8), E>(work, row, at, k, numbers);
    else if (f == LAUNCH_CODES_FP8)
        give_bytes<LAUNCH_CODES_FP8, wgmma_reads_as_is(LAUNCH_CODES_FP8), E>(work, row, at, k, numbers);
    else give_bytes<LAUNCH_CODES_NF4, wgmma_reads_as_is(LAUNCH_CODES_NF4), E>(work, row, at, k, numbers);
}

} // namespace few_codes_shared
