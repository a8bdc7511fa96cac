#pragma once
/* lora_up.cuh - what the kernels of LORA_UP share: a warp's 32 columns of b, and the sum with base.
 *
 * Which of a warp's columns is which of a tensor core's tile is free to choose: lane 4 g + t gets columns 8 t .. 8 t + 7 of rows g and
 * g + 8, so that base and y move in packs of 16 bytes. */
#include "backend/cuda/launch_kernel.cuh"
#include "backend/cuda/launch_lora.h"
#include "backend/cuda/mma.cuh"

enum { TILES = 4 }; /* of 8 columns, of a warp */

/* The two numbers of a word, the first in the lower half. */
template <typename E> static __device__ float2 unpack(uint32_t word);
template <> __device__ float2 unpack<__nv_bfloat16>(uint32_t word) {
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}
template <> __device__ float2 unpack<__half>(uint32_t word) {
    return make_float2(__half2float(__ushort_as_half((uint16_t)word)),
                       __half2float(__ushort_as_half((uint16_t)(word >> 16))));
}

/* Elements k and k + 1 of a row of r as one word, zeros where they are not there. */
template <typename E> static __device__ uint32_t pair_load(const E *row, int k, int r, bool there) {
    if (!there || k >= r) return 0;
    if (r % 2 == 0) return *(const uint32_t *)(row + k);
    const uint16_t *p = (const uint16_t *)row;
    return p[k] | (k + 1 < r ? (uint32_t)p[k + 1] << 16 : 0);
}

/* Two columns of one row: base + scale * sums. */
template <typename E> static __device__ uint32_t add_pair(uint32_t base, float scale, float first, float second) {
    float2 x = unpack<E>(base);
    return pack<E>(fmaf(scale, first, x.x), fmaf(scale, second, x.y));
}

/* Eight of them; half: the upper or lower eight rows of the tiles. */
template <typename E>
static __device__ uint4 add_pack(uint4 base, float scale, const float (&acc)[TILES][4], int half) {
    return make_uint4(add_pair<E>(base.x, scale, acc[0][half * 2], acc[0][half * 2 + 1]),
                      add_pair<E>(base.y, scale, acc[1][half * 2], acc[1][half * 2 + 1]),
                      add_pair<E>(base.z, scale, acc[2][half * 2], acc[2][half * 2 + 1]),
                      add_pair<E>(base.w, scale, acc[3][half * 2], acc[3][half * 2 + 1]));
}
static_assert(TILES == 4, "a word of a pack for each tile");

/* What a warp multiplies with: b0 and b1 of its TILES tiles, of one step of 16 along r. Column n of tile j is the warp's column
 * 8 (n / 2) + 2 j + n % 2. */
template <typename E> struct b_step { uint32_t b[TILES][2]; };
template <typename E> static __device__ b_step<E> b_load(const E *b, int64_t column, int64_t columns, int k, int r) {
    b_step<E> s;
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < TILES; j++) {
        int64_t c = column + g / 2 * 8 + 2 * j + g % 2;
        const E *row = b + c * r;
        s.b[j][0] = pair_load(row, k + 2 * t, r, c < columns);
        s.b[j][1] = pair_load(row, k + 2 * t + 8, r, c < columns);
    }
    return s;
}
