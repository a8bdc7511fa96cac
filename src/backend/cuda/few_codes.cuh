#pragma once
/* few_codes.cuh - what both kernels for few rows of x and a weight in codes have in common: x as bytes, values of nf4.
 *
 * To make 16-bit numbers of codes takes a GPU longer than to read them: integer instructions have half the rate of others. So the codes
 * themselves are operands of 8-bit products, and x is cut into two bytes: integers up to 32512 as 256 h + l for int8 and nf4, whose sixteen
 * values are looked up as multiples of 1 / 127, or e4m3 numbers h + l / 16 for fp8. Each row of x is two columns of a product. */
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

/* Four codes of nf4 (the lower 16 bits), of two in a byte the first in its upper half, as integers: the second of each byte first. small: the
 * codes without their highest bits; large: 4 in the place of every code that has it. */
__device__ inline uint32_t nf4_integers(const code_values &v, uint32_t small, uint32_t large) {
    const uint32_t upper = __byte_perm(0, 0xffffffffu, large);
    return (__byte_perm(v.integers[0], v.integers[1], small) & ~upper) |
           (__byte_perm(v.integers[2], v.integers[3], small) & upper);
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

/* Scales of nf4: of the n blocks of k from `first` on of these rows, rows `pitch` apart; 0 where there is none. Several of a thread are
 * under way at once. */
template <typename R>
__device__ inline void load_scales(const few_codes_product &q, R weight_row, int n_rows, int first, int n, int pitch,
                                   const float *dynamic, uint32_t scales, int n_threads) {
    enum { AHEAD = 8 };
    const int n_blocks = (int)(q.k / LAUNCH_NF4_BLOCK);
    for (int i = (int)threadIdx.x; i < n_rows * n; i += AHEAD * n_threads) {
        float scale[AHEAD], offset[AHEAD];
        uint8_t code[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            const int row = (i + a * n_threads) / n, block = first + (i + a * n_threads) % n;
            const int64_t w_row = row < n_rows ? weight_row(row) : q.n;
            scale[a] = offset[a] = 0, code[a] = 0;
            if (w_row >= q.n || block >= n_blocks) continue;
            const few_codes_part &part = part_of(q, w_row);
            const int64_t b = (w_row - part.first_row) * n_blocks + block;
            code[a] = part.scale_codes[b], scale[a] = part.scale[b / LAUNCH_NF4_SCALE_BLOCK], offset[a] = *part.offset;
        }
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            const int row = (i + a * n_threads) / n, block = (i + a * n_threads) % n;
            if (row < n_rows)
                store_shared_float(scales + (uint32_t)(row * pitch + block) * 4,
                                   dynamic[code[a]] * scale[a] + offset[a]);
        }
    }
}

/* ---- x as bytes --------------------------------------------------------------------------------------------------------- */

template <typename E> struct alignas(16) pack8 { E e[8]; };
struct bytes8 {
    uint32_t word[2];
};

/* The scale of a row whose largest number is that; NaN where it is not finite. */
template <launch_codes F> __device__ inline float scale_of(float largest) {
    constexpr float MOST = F == LAUNCH_CODES_FP8 ? E4M3_MOST : INTEGERS;
    return isfinite(largest) ? fmaxf(largest, 0x1p-100f) / MOST : __int_as_float(0x7fffffff);
}

/* Eight neighbours as their upper and lower bytes; pairs in the order of codes of nf4. by: what they are multiplied with first. */
template <launch_codes F, typename E>
__device__ inline void cut_x(bytes8 &high, bytes8 &low, const pack8<E> &x, float by) {
#pragma unroll
    for (int w = 0; w < 2; w++) {
        high.word[w] = low.word[w] = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float v = (float)x.e[4 * w + i] * by;
            uint32_t h, l;
            if (F == LAUNCH_CODES_FP8) {
                const __nv_fp8_e4m3 first(v), second((v - (float)first) * 16.0f);
                h = first.__x, l = second.__x;
            } else {
                const int integer = __float2int_rn(v), upper = (integer + 128) >> 8;
                h = (uint32_t)upper & 255, l = (uint32_t)(integer - upper * 256) & 255;
            }
            const int at = F == LAUNCH_CODES_NF4 ? i ^ 1 : i;
            high.word[w] |= h << 8 * at, low.word[w] |= l << 8 * at;
        }
    }
}

/* |x|, and infinity for what is not finite. */
__device__ inline float size_of(float x) { return isfinite(x) ? fabsf(x) : __int_as_float(0x7f800000); }
template <typename E> __device__ inline float largest_of(const pack8<E> &v, float most) {
#pragma unroll
    for (int e = 0; e < 8; e++) most = fmaxf(most, size_of((float)v.e[e]));
    return most;
}
/* Over the warps of a block, for all of its threads; `warps` is room for a number of each. */
__device__ inline float largest_of_block(float most, int n_warps, float *warps) {
#pragma unroll
    for (int d = WARP / 2; d; d /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, d));
    if (threadIdx.x % WARP == 0) warps[threadIdx.x / WARP] = most;
    __syncthreads();
    most = 0;
    for (int i = 0; i < n_warps; i++) most = fmaxf(most, warps[i]);
    return most;
}

/* Where eight neighbours from k on go. AS_IS: where they were. Else as wgmma reads them beside codes of nf4: a lane has sixteen neighbours
 * of a block of 64, of which a product takes four and four. */
template <bool AS_IS> __device__ inline void store_bytes(unsigned char *row, int64_t k, bytes8 v) {
    if (AS_IS) {
        *(bytes8 *)(row + k) = v;
        return;
    }
    unsigned char *to = row + k / 64 * 64 + k / 8 % 2 * 32 + k / 16 % 4 * 4;
    *(uint32_t *)to = v.word[0], *(uint32_t *)(to + 16) = v.word[1];
}

enum { ROUND_THREADS = 1024, ROUND_AHEAD = 3 };

/* Rows of x to bytes (m, 2, k) and scales (m). */
template <launch_codes F, bool AS_IS, typename E>
__global__ void __launch_bounds__(ROUND_THREADS)
    round_rows(const E *x, int64_t k, unsigned char *bytes, float *scales) {
    __shared__ float warps[ROUND_THREADS / WARP];
    const int64_t row = blockIdx.x, first = (int64_t)threadIdx.x * 8, stride = ROUND_THREADS * 8;
    const E *from = x + row * k;
    unsigned char *high_row = bytes + 2 * row * k, *low_row = high_row + k;
    pack8<E> ahead[ROUND_AHEAD]; /* what all read at once, and need not read again */
    float most = 0;
    chain_enter();
#pragma unroll
    for (int a = 0; a < ROUND_AHEAD; a++)
        if (first + a * stride < k) ahead[a] = *(const pack8<E> *)(from + first + a * stride);
#pragma unroll
    for (int a = 0; a < ROUND_AHEAD; a++)
        if (first + a * stride < k) most = largest_of(ahead[a], most);
    for (int64_t i = first + ROUND_AHEAD * stride; i < k; i += stride)
        most = largest_of(*(const pack8<E> *)(from + i), most);
    const float scale = scale_of<F>(largest_of_block(most, ROUND_THREADS / WARP, warps)), by = 1 / scale;
    auto put = [&](int64_t i, const pack8<E> &v) {
        bytes8 high, low;
        cut_x<F>(high, low, v, by);
        store_bytes<AS_IS>(high_row, i, high), store_bytes<AS_IS>(low_row, i, low);
    };
#pragma unroll
    for (int a = 0; a < ROUND_AHEAD; a++)
        if (first + a * stride < k) put(first + a * stride, ahead[a]);
    for (int64_t i = first + ROUND_AHEAD * stride; i < k; i += stride) put(i, *(const pack8<E> *)(from + i));
    if (threadIdx.x == 0) scales[row] = scale;
}

/* Scratch: FEW_ROWS_MOST scales, then the bytes. */
__host__ __device__ inline unsigned char *bytes_in(void *work) {
    return (unsigned char *)work + FEW_ROWS_MOST * sizeof(float);
}

template <launch_codes F, bool AS_IS, typename E> void launch_round(cudaStream_t s, const few_codes_product *q) {
    launch_chained(round_rows<F, AS_IS, E>, dim3((unsigned)q->m), dim3(ROUND_THREADS), 0, 1, s, (const E *)q->x, q->k,
                   bytes_in(q->work), (float *)q->work);
}

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
