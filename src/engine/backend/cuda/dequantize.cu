/* dequantize.cu - DEQUANTIZE: codes of a frozen weight to numbers, with the host's bits.
 *
 * Nearly all bytes are those that are written, so the kernels are built around stores: a thread writes packs of 16 bytes, a warp
 * neighbouring ones, and the codes of several packs are under way before the first is used. All elements of a pack have one scale:
 * blocks of nf4 are whole packs, and rows are wherever the vector kernel is taken. The values of nf4 lie in shared memory, where
 * 16 words are 16 banks: no two lanes ever wait for each other.
 * A weight whose rows or address are no multiple of 16 bytes takes a kernel that goes element by element: small tests. */
#include "backend/cuda/launch_dequantize.h"

#include "backend/cuda/typed.cuh"
#include <cuda_fp8.h>

enum { THREADS = 256, PACKS = 4, BLOCKS_MOST = 132 * 32 };

struct nf4_shared {
    float nf4[16], dynamic[256];
};

/* The expressions of base_dequantize. */
DEVICE float nf4_scale(const launch_dequantize_args &g, const nf4_shared &s, uint32_t block, uint8_t scale_code) {
    return s.dynamic[scale_code] * g.scale[block / LAUNCH_NF4_SCALE_BLOCK] + *g.offset;
}
DEVICE float fp8_number(uint32_t code) {
    return __half2float(__half(__nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)code, __NV_E4M3)));
}

template <launch_codes F> DEVICE void shared_fill(nf4_shared *s, const launch_nf4_tables &t) {
    if (F != LAUNCH_CODES_NF4) return;
    s->dynamic[threadIdx.x] = t.dynamic[threadIdx.x];
    if (threadIdx.x < 16) s->nf4[threadIdx.x] = t.nf4[threadIdx.x];
    __syncthreads();
}
static_assert(THREADS == 256, "one value of the table each");

/* The codes of one pack, as one load. */
template <launch_codes F, typename T> struct pack_codes {
    enum { N = pack<T>::N, BYTES = F == LAUNCH_CODES_NF4 ? N / 2 : N };
    typedef typename std::conditional<BYTES == 8, uint2,
                                      typename std::conditional<BYTES == 4, uint32_t, uint16_t>::type>::type raw;
};
DEVICE uint32_t word(uint2 raw, int i) { return i ? raw.y : raw.x; }
DEVICE uint32_t word(uint32_t raw, int) { return raw; }
DEVICE uint32_t word(uint16_t raw, int) { return raw; }

template <launch_codes F, typename T>
static __global__ void __launch_bounds__(THREADS)
    dequantize_kernel(launch_dequantize_args g, const __grid_constant__ launch_nf4_tables tables, uint32_t n_packs,
                      uint32_t packs_per_row) {
    enum { N = pack<T>::N, PACKS_PER_BLOCK = LAUNCH_NF4_BLOCK / N };
    typedef typename pack_codes<F, T>::raw raw_codes;
    __shared__ nf4_shared shared;
    shared_fill<F>(&shared, tables);
    const raw_codes *codes = (const raw_codes *)g.codes;
    for (uint64_t first = (uint64_t)blockIdx.x * (PACKS * THREADS) + threadIdx.x; first < n_packs;
         first += (uint64_t)gridDim.x * (PACKS * THREADS)) {
        raw_codes raw[PACKS];
        uint8_t scale_code[PACKS];
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            uint64_t p = first + k * THREADS;
            if (p >= n_packs) continue;
            raw[k] = codes[p];
            if (F == LAUNCH_CODES_NF4) scale_code[k] = g.scale_codes[p / PACKS_PER_BLOCK];
        }
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            uint64_t p = first + k * THREADS;
            if (p >= n_packs) continue;
            float scale;
            if (F == LAUNCH_CODES_NF4) scale = nf4_scale(g, shared, (uint32_t)p / PACKS_PER_BLOCK, scale_code[k]);
            else scale = F == LAUNCH_CODES_INT8 ? g.scale[(uint32_t)p / packs_per_row] : *g.scale;
            pack<T> w;
#pragma unroll
            for (int e = 0; e < N; e++) {
                if (F == LAUNCH_CODES_NF4) { /* the first of two in the high half of a byte */
                    uint32_t code = word(raw[k], 0) >> (e / 2 * 8 + (e % 2 ? 0 : 4)) & 15;
                    w.v[e] = shared.nf4[code] * scale;
                } else {
                    uint32_t code = word(raw[k], e / 4) >> (e % 4 * 8) & 255;
                    w.v[e] = (F == LAUNCH_CODES_INT8 ? (float)(int8_t)code : fp8_number(code)) * scale;
                }
            }
            *(uint4 *)((T *)g.w + p * N) = pack_narrow<T>(w);
        }
    }
}

template <launch_codes F, typename T>
static __global__ void __launch_bounds__(THREADS)
    dequantize_any_kernel(launch_dequantize_args g, const __grid_constant__ launch_nf4_tables tables) {
    __shared__ nf4_shared shared;
    shared_fill<F>(&shared, tables);
    int64_t n = g.n_out * g.n_in;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (int64_t)gridDim.x * THREADS) {
        float w;
        if (F == LAUNCH_CODES_NF4) {
            int64_t block = i / LAUNCH_NF4_BLOCK;
            uint32_t code = g.codes[i / 2] >> (i % 2 ? 0 : 4) & 15;
            w = shared.nf4[code] * nf4_scale(g, shared, (uint32_t)block, g.scale_codes[block]);
        } else if (F == LAUNCH_CODES_INT8) {
            w = (float)(int8_t)g.codes[i] * g.scale[i / g.n_in];
        } else {
            w = fp8_number(g.codes[i]) * *g.scale;
        }
        narrow((T *)g.w + i, w);
    }
}

template <launch_codes F, typename T>
static void dequantize(cudaStream_t s, const launch_dequantize_args &a, const launch_nf4_tables &tables) {
    enum { N = pack<T>::N };
    int64_t n = a.n_out * a.n_in, n_packs = n / N;
    bool whole = F == LAUNCH_CODES_INT8 ? a.n_in % N == 0 : n % N == 0;
    bool vector = whole && n_packs <= UINT32_MAX && aligned(a.w, 16) && aligned(a.codes, pack_codes<F, T>::BYTES);
    int64_t blocks = vector ? divide_up(n_packs, PACKS * THREADS) : divide_up(n, THREADS);
    dim3 grid((unsigned)(blocks < BLOCKS_MOST ? blocks : BLOCKS_MOST));
    if (vector)
        launch(dequantize_kernel<F, T>, grid, dim3(THREADS), s, a, tables, (uint32_t)n_packs, (uint32_t)(a.n_in / N));
    else launch(dequantize_any_kernel<F, T>, grid, dim3(THREADS), s, a, tables);
}

void launch_dequantize(cudaStream_t s, launch_type t, launch_codes f, const launch_dequantize_args *a,
                       const launch_nf4_tables *tables) {
    by_type(t, [&](auto element) {
        typedef decltype(element) T;
        if (f == LAUNCH_CODES_NF4) dequantize<LAUNCH_CODES_NF4, T>(s, *a, *tables);
        else if (f == LAUNCH_CODES_INT8) dequantize<LAUNCH_CODES_INT8, T>(s, *a, *tables);
        else dequantize<LAUNCH_CODES_FP8, T>(s, *a, *tables);
    });
}
