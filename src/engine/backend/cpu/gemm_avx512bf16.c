/* gemm_avx512bf16.c - the AVX512-BF16 kernel: dot products of bf16 pairs on 512 bits, 12 x 32.
 *
 * The tile of gemm_avx512.c with two steps of k per instruction. VDPBF16PS reads subnormals as zero, flushes tiny sums
 * and rounds to nearest after each of its two additions, whatever MXCSR says. */
#if defined(__x86_64__)
#include "backend/cpu/gemm_kernels.h"
#include <immintrin.h>
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,f16c")
#include "backend/cpu/gemm_pack.h"

#define MR 12
#define NR 32
#define KR 2
#define FEW 4 /* rows */

static bool avx512bf16_supported(void) { return cpu_has_avx512() && __builtin_cpu_supports("avx512bf16"); }
static void avx512bf16_pack_a(void *panel, const gemm_slice *s) { pack_u16(panel, MR, KR, *s); }
static void avx512bf16_pack_b(void *panel, const gemm_slice *s) { pack_u16(panel, NR, KR, *s); }

static void avx512bf16_multiply(int64_t k, const void *pa, const void *pb, float *tile, int64_t ld, bool first) {
    const uint16_t *a = pa, *b = pb;
    __m512 c[MR][2];
    for (int i = 0; i < MR; i++) c[i][0] = c[i][1] = _mm512_setzero_ps();
    for (; k > 0; k -= KR, a += MR * KR, b += NR * KR) {
        __m512bh b0 = (__m512bh)_mm512_loadu_si512(b), b1 = (__m512bh)_mm512_loadu_si512(b + 32), v;
        int32_t pair; /* two steps of k of one row */
#define ROW(i)                                                                          \
    memcpy(&pair, a + KR * i, sizeof pair), v = (__m512bh)_mm512_set1_epi32(pair),      \
                                            c[i][0] = _mm512_dpbf16_ps(c[i][0], v, b0), \
                                            c[i][1] = _mm512_dpbf16_ps(c[i][1], v, b1)
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

/* The first rows: a third of the products, as fast as B comes from memory, which is asked for ahead. Reads on into the next panel. */
static void avx512bf16_multiply_few(int64_t k, const void *pa, const void *pb, float *tile, int64_t ld, bool first) {
    enum { AHEAD = 2048, LINE = 64 };
    const uint16_t *a = pa, *b = pb;
    __m512 c[FEW][2];
    for (int i = 0; i < FEW; i++) c[i][0] = c[i][1] = _mm512_setzero_ps();
    for (; k > 0; k -= KR, a += MR * KR, b += NR * KR) {
        __m512bh b0 = (__m512bh)_mm512_loadu_si512(b), b1 = (__m512bh)_mm512_loadu_si512(b + 32);
        __builtin_prefetch((const char *)b + AHEAD), __builtin_prefetch((const char *)b + AHEAD + LINE);
        for (int i = 0; i < FEW; i++) {
            int32_t pair;
            memcpy(&pair, a + KR * i, sizeof pair);
            __m512bh v = (__m512bh)_mm512_set1_epi32(pair);
            c[i][0] = _mm512_dpbf16_ps(c[i][0], v, b0), c[i][1] = _mm512_dpbf16_ps(c[i][1], v, b1);
        }
    }
    for (int i = 0; i < FEW; i++)
        for (int j = 0; j < 2; j++) {
            float *to = tile + i * ld + 16 * j;
            _mm512_storeu_ps(to, first ? c[i][j] : _mm512_add_ps(_mm512_loadu_ps(to), c[i][j]));
        }
}

const gemm_kernel gemm_avx512bf16 = {
    .name = "avx512bf16",
    .supported = avx512bf16_supported,
    .types = GEMM_BIT(DTYPE_BF16),
    .mr = MR,
    .nr = NR,
    .kr = KR,
    .kc = 512,
    .element_bytes = 2,
    .pack_a = avx512bf16_pack_a,
    .pack_b = avx512bf16_pack_b,
    .multiply = avx512bf16_multiply,
    .multiply_few = avx512bf16_multiply_few,
    .few_rows = FEW,
    .few_passes = 2,
};
#else
typedef int gemm_avx512bf16_is_for_x86_64; /* ISO C wants a declaration in every file */
#endif
