#pragma once
/* few_codes.cuh - what both kernels for few rows of x and a weight in codes have in common: rounding of x, values of nf4.
 *
 * To make 16-bit numbers of codes takes a GPU longer than to read them: integer instructions have half the rate of others. So the codes
 * themselves are operands of 8-bit products, and x is cut into two bytes (x_bytes.cuh): each row of x is two columns of a product. */
#include "backend/cuda/chain.cuh"
#include "backend/cuda/gated.cuh"
#include "backend/cuda/mma.cuh"
#include "backend/cuda/x_bytes.cuh"

namespace few_codes_shared {

enum { WARP = 32 };

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

/* ---- rounding rows -------------------------------------------------------------------------------------------------------- */

enum { ROUND_THREADS = 128 };

/* Rows of x to bytes and scales in scratch. */
template <launch_codes F, bool AS_IS, typename E>
__global__ void __launch_bounds__(ROUND_THREADS) round_rows(const E *x, int64_t k, void *work) {
    const int64_t row = blockIdx.y, at = ((int64_t)blockIdx.x * ROUND_THREADS + threadIdx.x) * 8;
    uint4 numbers = make_uint4(0, 0, 0, 0);
    chain_enter();
    if (at < k) numbers = *(const uint4 *)(x + row * k + at);
    give_bytes<F, AS_IS, E>(work, row, at, k, numbers);
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
