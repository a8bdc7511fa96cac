/* gemm_avx512.c - the AVX-512 kernel without bf16 instructions: fp32 multiply-add on 512 bits, 12 x 32, for fp32, bf16
 * and fp16 (widened while packing).
 *
 * 24 of the 32 registers hold the tile: two pipes of latency four need eight, the rest keeps loads at 14 per 24
 * multiply-adds. */
#if defined(__x86_64__)
#include "backend/cpu/gemm_kernels.h"
#include <immintrin.h>
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")
#include "backend/cpu/gemm_pack.h"

#define MR 12
#define NR 32

static void avx512_pack_a(void *panel, const gemm_slice *s) { pack_f32(panel, MR, *s); }
static void avx512_pack_b(void *panel, const gemm_slice *s) { pack_f32(panel, NR, *s); }

static void avx512_multiply(int64_t k, const void *pa, const void *pb, float *tile, int64_t ld, bool first) {
    const float *a = pa, *b = pb;
    __m512 c[MR][2];
    for (int i = 0; i < MR; i++) c[i][0] = c[i][1] = _mm512_setzero_ps();
    for (; k > 0; k--, a += MR, b += NR) {
        __m512 b0 = _mm512_loadu_ps(b), b1 = _mm512_loadu_ps(b + 16), v;
#define ROW(i) \
    v = _mm512_set1_ps(a[i]), c[i][0] = _mm512_fmadd_ps(v, b0, c[i][0]), c[i][1] = _mm512_fmadd_ps(v, b1, c[i][1])
        ROW(0), ROW(1), ROW(2), ROW(3), ROW(4), ROW(5);
        ROW(6), ROW(7), ROW(8), ROW(9), ROW(10), ROW(11);
#undef ROW
    }
    /* Written out: with a loop here gcc keeps the tile in memory throughout. */
#define PUT(i, j)                            \
    _mm512_storeu_ps(tile + i * ld + 16 * j, \
                     first ? c[i][j] : _mm512_add_ps(_mm512_loadu_ps(tile + i * ld + 16 * j), c[i][j]))
#define PUT_ROW(i) PUT(i, 0), PUT(i, 1)
    PUT_ROW(0), PUT_ROW(1), PUT_ROW(2), PUT_ROW(3), PUT_ROW(4), PUT_ROW(5);
    PUT_ROW(6), PUT_ROW(7), PUT_ROW(8), PUT_ROW(9), PUT_ROW(10), PUT_ROW(11);
#undef PUT_ROW
#undef PUT
}

const gemm_kernel gemm_avx512 = {
    .name = "avx512",
    .supported = cpu_has_avx512,
    .types = GEMM_FLOATS,
    .mr = MR,
    .nr = NR,
    .kr = 1,
    .kc = 256,
    .element_bytes = 4,
    .chain = true,
    .pack_a = avx512_pack_a,
    .pack_b = avx512_pack_b,
    .multiply = avx512_multiply,
};
#else
typedef int gemm_avx512_is_for_x86_64; /* ISO C wants a declaration in every file */
#endif
