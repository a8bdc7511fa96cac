/* gemm_portable.c - the kernel for machines we know nothing about: plain C, 4 x 8, fp32 multiply and add.
 *
 * Also the kernel that the others can be compared with on any machine. The products are not fused: without an fma
 * instruction a fused multiply-add is a library call. */
#include "backend/cpu/gemm_pack.h"

#define MR 4
#define NR 8

static bool portable_supported(void) { return true; }
static void portable_pack_a(void *panel, const gemm_slice *s) { pack_f32(panel, MR, *s); }
static void portable_pack_b(void *panel, const gemm_slice *s) { pack_f32(panel, NR, *s); }

static void portable_multiply(int64_t k, const void *pa, const void *pb, float *tile, int64_t ld, bool first) {
    const float *a = pa, *b = pb;
    float c[MR][NR] = {{0}};
    for (; k > 0; k--, a += MR, b += NR)
        for (int i = 0; i < MR; i++)
            for (int j = 0; j < NR; j++) c[i][j] += a[i] * b[j];
    for (int i = 0; i < MR; i++)
        for (int j = 0; j < NR; j++) tile[i * ld + j] = first ? c[i][j] : tile[i * ld + j] + c[i][j];
}

const gemm_kernel gemm_portable = {
    .name = "portable",
    .supported = portable_supported,
    .types = GEMM_FLOATS,
    .mr = MR,
    .nr = NR,
    .kr = 1,
    .kc = 256,
    .element_bytes = 4,
    .pack_a = portable_pack_a,
    .pack_b = portable_pack_b,
    .multiply = portable_multiply,
};
