/* gemm_avx2.c - the x86-64-v3 kernel: fp32 multiply-add on 256 bits, 4 x 24, for fp32, bf16 and fp16 (widened while
 * packing).
 *
 * 12 of the 16 registers hold the tile. 4 x 24 instead of the usual 6 x 16 loads 7 vectors per 12 multiply-adds
 * instead of 8, and its rows divide the common tile unit. */
#if defined(__x86_64__)
#include "backend/cpu/gemm_kernels.h"
#include <immintrin.h>
#pragma GCC target("avx2,fma,f16c")
#include "backend/cpu/gemm_pack.h"

#define MR 4
#define NR 24

static bool avx2_supported(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
static void avx2_pack_a(void *panel, const gemm_slice *s) { pack_f32(panel, MR, *s); }
static void avx2_pack_b(void *panel, const gemm_slice *s) { pack_f32(panel, NR, *s); }

static void avx2_multiply(int64_t k, const void *pa, const void *pb, float *tile, int64_t ld, bool first) {
    const float *a = pa, *b = pb;
    __m256 c[MR][3];
    for (int i = 0; i < MR; i++)
        for (int j = 0; j < 3; j++) c[i][j] = _mm256_setzero_ps();
    for (; k > 0; k--, a += MR, b += NR) {
        __m256 b0 = _mm256_loadu_ps(b), b1 = _mm256_loadu_ps(b + 8), b2 = _mm256_loadu_ps(b + 16), v;
#define ROW(i)                                 \
    v = _mm256_broadcast_ss(a + i);            \
    c[i][0] = _mm256_fmadd_ps(v, b0, c[i][0]); \
    c[i][1] = _mm256_fmadd_ps(v, b1, c[i][1]); \
    c[i][2] = _mm256_fmadd_ps(v, b2, c[i][2])
        ROW(0);
        ROW(1);
        ROW(2);
        ROW(3);
#undef ROW
    }
    /* Written out: with a loop here gcc keeps the tile in memory throughout. */
#define PUT(i, j)                           \
    _mm256_storeu_ps(tile + i * ld + 8 * j, \
                     first ? c[i][j] : _mm256_add_ps(_mm256_loadu_ps(tile + i * ld + 8 * j), c[i][j]))
#define PUT_ROW(i) PUT(i, 0), PUT(i, 1), PUT(i, 2)
    PUT_ROW(0), PUT_ROW(1), PUT_ROW(2), PUT_ROW(3);
#undef PUT_ROW
#undef PUT
}

const gemm_kernel gemm_avx2 = {
    .name = "avx2",
    .supported = avx2_supported,
    .types = GEMM_FLOATS,
    .mr = MR,
    .nr = NR,
    .kr = 1,
    .kc = 256,
    .element_bytes = 4,
    .chain = true,
    .pack_a = avx2_pack_a,
    .pack_b = avx2_pack_b,
    .multiply = avx2_multiply,
};
#else
typedef int gemm_avx2_is_for_x86_64; /* ISO C wants a declaration in every file */
#endif
