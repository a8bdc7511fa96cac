#pragma once
/* few_codes.cuh - what both kernels for few rows of x and a weight in codes have in common: x as bytes, values of nf4.
 *
 * To make 16-bit numbers of codes takes a GPU longer than to read them: integer instructions have half the rate of others. So the codes
 * themselves are operands of 8-bit products, and x is cut into two bytes: integers up to 32512 as 256 h + l for int8 and nf4, whose sixteen
 * values are looked up as multiples of 1 / 127, or e4m3 numbers h + l / 16 for fp8. Each row of x is two columns of a product. Every
 * X_BOX neighbours of a row have a scale of their own, so that nobody has to see all of a row first. */
#include "backend/cuda/chain.cuh"
#include "backend/cuda/gated.cuh"
#include "backend/cuda/launch_codes.h"
#include "backend/cuda/mma.cuh"
#include <cuda_fp8.h>

namespace few_codes_shared {

enum { WARP = 32 };
constexpr float INTEGERS = 127 * 256, E4M3_MOST = 448;

/* Four of the sixteen values of nf4 in each word; the values that codes of scales stand for. */
struct code_values {
    uint32_t integers[4];
    float dynamic[256];
};

/* For a kernel's arguments. */
inline code_values code_values_of(launch_codes format, const launch_nf4_tables *tables) {
    code_values v = {};
    if (format != LAUNCH_CODES_NF4) return v;
    for (int i = 0; i < 16; i++) {
        const int integer = (int)lrintf(127 * tables->nf4[i]);
        v.integers[i / 4] |= (uint32_t)(integer & 255) << i % 4 * 8;
    }
    memcpy(v.dynamic, tables->dynamic, sizeof v.dynamic);
    return v;
}

__device__ inline const few_codes_part &part_of(const few_codes_product &q, int64_t row) {
    int i = 0;
    while (i + 1 < q.n_parts && row >= q.parts[i + 1].first_row) i++;
    return q.parts[i];
}

__device__ inline float load_shared_float(uint32_t from) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(from) : "memory");
    return v;
}
__device__ inline void store_shared_float(uint32_t to, float v) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(v) : "memory");
}

/* ---- what sums are multiplied with --------------------------------------------------------------------------------------- */

/* Of the n_rows rows of a block's tile: scales, and behind them biases. weight_row(i) is the row of the weight, n where there is none. */
template <launch_codes F, typename Y, typename R>
__device__ inline void load_columns(const few_codes_product &q, R weight_row, int n_rows, uint32_t columns,
                                    int n_threads) {
    for (int row = (int)threadIdx.x; row < n_rows; row += n_threads) {
        const int64_t w_row = weight_row(row);
        float scale = 1.0f / 127, bias = 0;
        if (w_row < q.n) {
            if (F == LAUNCH_CODES_INT8) scale = q.parts[0].scale[w_row];
            if (F == LAUNCH_CODES_FP8) scale = *part_of(q, w_row).scale;
            if (q.bias) bias = (float)((const Y *)q.bias)[w_row];
        }
        store_shared_float(columns + row * 4, scale);
        store_shared_float(columns + (n_rows + row) * 4, bias);
    }
}

/* ---- x as bytes --------------------------------------------------------------------------------------------------------- */

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

enum { ROUND_THREADS = 128 };

/* Scratch: scales (boxes of k, FEW_ROWS_MOST), then bytes (m, 2, k). */
__host__ __device__ inline unsigned char *bytes_in(void *work, int64_t k) {
    return (unsigned char *)work + FEW_CODES_SCALES(k);
}

/* Rows of x to bytes and scales in scratch. */
template <launch_codes F, bool AS_IS, typename E>
__global__ void __launch_bounds__(ROUND_THREADS) round_rows(const E *x, int64_t k, void *work) {
    const int64_t row = blockIdx.y, at = ((int64_t)blockIdx.x * ROUND_THREADS + threadIdx.x) * 8;
    pack8<E> v = {};
    bytes8 high, low;
    chain_enter();
    if (at < k) v = *(const pack8<E> *)(x + row * k + at);
    const float scale = cut_box<F>(high, low, v);
    if (at >= k) return;
    unsigned char *high_row = bytes_in(work, k) + 2 * row * k;
    store_bytes<AS_IS>(high_row, at, high), store_bytes<AS_IS>(high_row + k, at, low);
    if (at % X_BOX == 0) ((float *)work)[at / X_BOX * FEW_ROWS_MOST + row] = scale;
}

template <launch_codes F, bool AS_IS, typename E> void launch_round(cudaStream_t s, const few_codes_product *q) {
    enum { OF_BLOCK = ROUND_THREADS * 8 };
    launch_chained(round_rows<F, AS_IS, E>, dim3((unsigned)((q->k + OF_BLOCK - 1) / OF_BLOCK), (unsigned)q->m),
                   dim3(ROUND_THREADS), 0, 1, s, (const E *)q->x, q->k, q->work);
}

/* Of the sums of both bytes one. */
__device__ inline float sum_of_bytes(int high, int low) { return (float)(high * 256 + low); }
__device__ inline float sum_of_bytes(float high, float low) { return fmaf(low, 0.0625f, high); }

/* ---- by types ----------------------------------------------------------------------------------------------------------- */

/* RUN<format, type of x, type of y, gated>::run, as the product says. */
template <template <launch_codes, typename, typename, bool> class RUN, launch_codes F, typename E>
void by_result(cudaStream_t s, const few_codes_product *q, const launch_nf4_tables *tables) {
    const code_values values = code_values_of(F, tables);
    if (q->y_type == LAUNCH_F32) RUN<F, E, float, false>::run(s, q, values);
    else if (q->gated) RUN<F, E, E, true>::run(s, q, values);
    else RUN<F, E, E, false>::run(s, q, values);
}

template <template <launch_codes, typename, typename, bool> class RUN, launch_codes F>
void by_type(cudaStream_t s, const few_codes_product *q, const launch_nf4_tables *tables) {
    if (q->type == LAUNCH_BF16) by_result<RUN, F, __nv_bfloat16>(s, q, tables);
    else by_result<RUN, F, __half>(s, q, tables);
}

template <template <launch_codes, typename, typename, bool> class RUN>
void by_format(cudaStream_t s, const few_codes_product *q, const launch_nf4_tables *tables) {
    if (q->format == LAUNCH_CODES_NF4) by_type<RUN, LAUNCH_CODES_NF4>(s, q, tables);
    else if (q->format == LAUNCH_CODES_INT8) by_type<RUN, LAUNCH_CODES_INT8>(s, q, tables);
    else by_type<RUN, LAUNCH_CODES_FP8>(s, q, tables);
}

} // namespace few_codes_shared
