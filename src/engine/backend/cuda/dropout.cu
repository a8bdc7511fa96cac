/* dropout.cu - elements that become 0 at random, by the words of noise.cuh: the mask of the host, bit for bit.
 *
 * A block of threads takes one chunk, which lies in one block of noise, so that Philox runs once for 8192 elements. */
#include "backend/cuda/launch_lora.h"

#include "backend/cuda/noise.cuh"

template <typename T, bool VECTOR>
static __global__ void __launch_bounds__(CHUNK_THREADS) dropout_kernel(launch_dropout_args a) {
    enum { N = pack<T>::N };
    __shared__ noise_key shared_key;
    chunk_place chunk = chunk_open(a.noise);
    if (threadIdx.x == 0)
        shared_key = noise_open(a.noise, *a.scalars, NOISE_DROPOUT | a.scalars->micro_of_all << 8, chunk.noise_block);
    __syncthreads();
    noise_key key = shared_key;
    for (int at = threadIdx.x * N; at < CHUNK; at += CHUNK_THREADS * N) {
        int64_t i = chunk.begin + at;
        if (i + N <= 0 || i >= a.n) continue;
        if (VECTOR) {
            pack<T> x = pack_load<true>((const T *)a.x + i, a.n - i);
#pragma unroll
            for (int e = 0; e < N; e++) x.v[e] = noise_word(key, chunk.r + at + e) >= a.limit ? x.v[e] * a.factor : 0;
            pack_store<true>((T *)a.y + i, x, a.n - i);
        } else {
            for (int e = 0; e < N; e++) {
                if (i + e < 0 || i + e >= a.n) continue;
                float x = widen(((const T *)a.x)[i + e]) * a.factor;
                narrow((T *)a.y + i + e, noise_word(key, chunk.r + at + e) >= a.limit ? x : 0);
            }
        }
    }
}

/* One row of a part per block of threads. A thread opens a block of noise where its elements enter one: once, or twice. */
template <typename T>
static __global__ void __launch_bounds__(CHUNK_THREADS) dropout_rows_kernel(launch_dropout_args a) {
    int64_t row = blockIdx.x, token = row + a.noise.first_element / a.columns;
    if (a.n_ranks > 1) {
        int64_t half = a.seq_len / 2, i = token % a.seq_len;
        int64_t first = i < half ? a.rank * half : (2 * a.n_ranks - 2 - a.rank) * half;
        token = (token - i) * a.n_ranks + first + i;
    }
    int64_t at = token * a.all_columns + a.first_column, opened = -1;
    noise_key key = {0, 0};
    for (int64_t c = threadIdx.x; c < a.columns; c += CHUNK_THREADS) {
        int64_t block = (at + c) / a.noise.block;
        if (block != opened) key = noise_open(a.noise, *a.scalars, NOISE_DROPOUT | a.scalars->micro_of_all << 8, block);
        opened = block;
        float x = widen(((const T *)a.x)[row * a.columns + c]) * a.factor;
        narrow((T *)a.y + row * a.columns + c,
               noise_word(key, (uint32_t)((at + c) % a.noise.block)) >= a.limit ? x : 0);
    }
}

void launch_dropout(cudaStream_t s, launch_type t, const launch_dropout_args *a) {
    by_type(t, [&](auto zero) {
        using T = decltype(zero);
        if (a->columns > 0) {
            launch(dropout_rows_kernel<T>, dim3((unsigned)(a->n / a->columns)), dim3(CHUNK_THREADS), s, *a);
            return;
        }
        bool whole = a->n % pack<T>::N == 0 && a->noise.first_element % pack<T>::N == 0 && aligned(a->x, 16) &&
                     aligned(a->y, 16);
        by_flag(whole, [&](auto vector) {
            launch(dropout_kernel<T, decltype(vector)::value>, dim3(chunk_count(a->noise, a->n)), dim3(CHUNK_THREADS),
                   s, *a);
        });
    });
}
