#pragma once
/* e4m3.cuh - rounding bf16 numbers to e4m3, for kernels that write 8-bit tensors together with their transposes. */
#include "backend/cuda/turn.cuh"
#include "backend/cuda/typed.cuh"
#include <cuda_fp8.h>

DEVICE uint32_t e4m3_pair(float low, float high) {
    return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
}

/* Eight bf16 numbers times factor: two words of e4m3. */
DEVICE uint2 e4m3_pack(uint4 raw, float factor) {
    pack<bf16> p = pack_widen<bf16>(raw);
#pragma unroll
    for (int e = 0; e < pack<bf16>::N; e++) p.v[e] *= factor;
    return make_uint2(e4m3_pair(p.v[0], p.v[1]) | e4m3_pair(p.v[2], p.v[3]) << 16,
                      e4m3_pair(p.v[4], p.v[5]) | e4m3_pair(p.v[6], p.v[7]) << 16);
}
