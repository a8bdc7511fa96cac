/* embed.cu - rows out of the token and position tables. A token outside the vocabulary or a position outside its table
 * stops the program. */
#include "backend/cuda/launch_embed.h"

#include "backend/cuda/typed.cuh"

enum { THREADS = 256 };

/* N codes of a row as numbers, rounded once. */
template <typename T> DEVICE uint4 row_of_codes(const launch_embed_args &a, int64_t id, int64_t i, int64_t left) {
    enum { N = pack<T>::N };
    const int8_t *codes = (const int8_t *)a.table + id * a.C + i;
    const float scale = a.code_scale[id];
    pack<T> x;
#pragma unroll
    for (int e = 0; e < N; e++) x.v[e] = e < left ? (float)codes[e] * scale : 0;
    return pack_narrow<T>(x);
}

template <typename T, bool VECTOR> static __global__ void __launch_bounds__(THREADS) embed_kernel(launch_embed_args a) {
    enum { N = pack<T>::N };
    int64_t held = rows_held(a.rows, a.n);
    for (int64_t row = blockIdx.y; row < held; row += gridDim.y) {
        int32_t token = a.tokens[row];
        if (token < 0 || token >= a.ids.vocab) __trap();
        int64_t id = token - a.ids.first_id;
        bool held_here = id >= 0 && id < a.ids.n_ids;
        bool placed = a.positions && row >= a.first_token && row - a.first_token < a.n_tokens;
        int64_t position = placed ? row % a.seq_len - (a.doc_start ? a.doc_start[row] : 0) : 0;
        if (placed && (position < 0 || position >= a.n_positions)) __trap();
        int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N, left = a.C - i;
        uint4 entry = make_uint4(0, 0, 0, 0);
        if (held_here && a.code_scale) entry = row_of_codes<T>(a, id, i, left);
        else if (held_here) entry = raw_load<VECTOR>((const T *)a.table + id * a.C + i, left);
        if (a.scale > 0) {
            pack<T> x = pack_widen<T>(entry);
#pragma unroll
            for (int e = 0; e < N; e++) x.v[e] *= a.scale;
            entry = pack_narrow<T>(x);
        }
        if (placed) {
            pack<T> x = pack_widen<T>(entry), p = pack_load<VECTOR>((const T *)a.positions + position * a.C + i, left);
#pragma unroll
            for (int e = 0; e < N; e++) x.v[e] += p.v[e];
            entry = pack_narrow<T>(x);
        }
        raw_store<VECTOR>((T *)a.x + row * a.C + i, entry, left);
    }
}

void launch_embed(cudaStream_t s, launch_type t, const launch_embed_args *a) {
    by_type(t, [&](auto zero) {
        using T = decltype(zero);
        int64_t packs = divide_up(a->C, pack<T>::N);
        unsigned threads = block_threads(packs, THREADS);
        bool whole = a->C % pack<T>::N == 0 && aligned(a->table, 16) && aligned(a->positions, 16) && aligned(a->x, 16);
        by_flag(whole, [&](auto vector) {
            launch(embed_kernel<T, decltype(vector)::value>, dim3((unsigned)divide_up(packs, threads), grid_rows(a->n)),
                   dim3(threads), s, *a);
        });
    });
}
