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

/* ---- few rows, a weight in the order of lanes ------------------------------------------------------------------------ */

enum { LANES = 16, KC = 256, AHEAD = 2048, LINE = 64 };

#define INLINE static inline __attribute__((always_inline))

INLINE __m512 widen(const dtype t, const void *w, int64_t i) {
    if (t == DTYPE_F32) return _mm512_loadu_ps((const float *)w + i);
    __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)((const uint16_t *)w + i));
    return t == DTYPE_F16 ? _mm512_cvtph_ps(h) : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* A panel is one stream; what is asked for behind its end is the next one. */
INLINE void few_sums(const dtype t, const int vecs, const int rows, int64_t k, const float *x, int64_t ldx,
                     const void *panel, float *sums) {
    const int64_t step = vecs * LANES, step_bytes = step * (t == DTYPE_F32 ? 4 : 2);
    __m512 total[GEMM_FEW_ROWS][4];
    int64_t k0 = 0;
    do {
        __m512 sum[GEMM_FEW_ROWS][4];
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < vecs; v++) sum[r][v] = _mm512_setzero_ps();
        for (int64_t i = k0, end = MIN(k0 + KC, k); i < end; i++) {
            for (int line = 0; line < step_bytes; line += LINE)
                __builtin_prefetch((const char *)panel + i * step_bytes + AHEAD + line);
            for (int v = 0; v < vecs; v++) {
                __m512 w = widen(t, panel, i * step + v * LANES);
                for (int r = 0; r < rows; r++)
                    sum[r][v] = _mm512_fmadd_ps(_mm512_set1_ps(x[r * ldx + i]), w, sum[r][v]);
            }
        }
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < vecs; v++) total[r][v] = k0 == 0 ? sum[r][v] : _mm512_add_ps(total[r][v], sum[r][v]);
        k0 += KC;
    } while (k0 < k);
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vecs; v++) _mm512_storeu_ps(sums + r * step + v * LANES, total[r][v]);
}

#define FEW(type, vecs)                                                                                        \
    static void few_##type(int rows, int64_t k, const float *x, int64_t ldx, const void *panel, float *sums) { \
        switch (rows) {                                                                                        \
        case 1: few_sums(DTYPE_##type, vecs, 1, k, x, ldx, panel, sums); break;                                \
        case 2: few_sums(DTYPE_##type, vecs, 2, k, x, ldx, panel, sums); break;                                \
        case 3: few_sums(DTYPE_##type, vecs, 3, k, x, ldx, panel, sums); break;                                \
        case 4: few_sums(DTYPE_##type, vecs, 4, k, x, ldx, panel, sums); break;                                \
        case 5: few_sums(DTYPE_##type, vecs, 5, k, x, ldx, panel, sums); break;                                \
        default: few_sums(DTYPE_##type, vecs, 6, k, x, ldx, panel, sums); break;                               \
        }                                                                                                      \
    }
_Static_assert(GEMM_FEW_ROWS == 6, "written out above");
/* A panel of 16-bit numbers is twice as wide as one of the matrix kernel (gemm_lanes_of). */
FEW(F32, NR / LANES)
FEW(BF16, 2 * NR / LANES)
FEW(F16, 2 * NR / LANES)

static void avx512_lanes_few(dtype t, int rows, int64_t k, const float *x, int64_t ldx, const void *panel,
                             float *sums) {
    if (t == DTYPE_F32) few_F32(rows, k, x, ldx, panel, sums);
    else if (t == DTYPE_BF16) few_BF16(rows, k, x, ldx, panel, sums);
    else few_F16(rows, k, x, ldx, panel, sums);
}

const gemm_kernel gemm_avx512 = {
    .name = "avx512",
    .supported = cpu_has_avx512,
    .types = GEMM_FLOATS,
    .mr = MR,
    .nr = NR,
    .kr = 1,
    .kc = KC,
    .element_bytes = 4,
    .chain = true,
    .pack_a = avx512_pack_a,
    .pack_b = avx512_pack_b,
    .multiply = avx512_multiply,
    .lanes_few = avx512_lanes_few,
};
#else
typedef int gemm_avx512_is_for_x86_64; /* ISO C wants a declaration in every file */
#endif
