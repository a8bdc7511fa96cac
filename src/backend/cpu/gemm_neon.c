/* gemm_neon.c - the ARMv8 kernel: fp32 multiply-add, 8 x 12, for fp32, bf16 and fp16 (widened while packing).
 *
 * 24 of the 32 vector registers hold the tile, so that two pipes of latency four stay full. Runs on every aarch64
 * machine; 16-bit types take it where the processor has no BFMMLA. */
#if defined(__aarch64__)
#include "backend/cpu/gemm_pack.h"

#define MR 8
#define NR 12
#define PREFETCH 512 /* floats: reads on into the next panel of A, which otherwise starts with a wait for L2 */

static bool neon_supported(void) { return true; }
static void neon_pack_a(void *panel, const gemm_slice *s) { pack_f32(panel, MR, *s); }
static void neon_pack_b(void *panel, const gemm_slice *s) { pack_f32(panel, NR, *s); }

/* The first scheduling pass of gcc 12 hoists the loads of the next steps over the multiply-adds and then spills the
 * tile; the source order below is the one wanted. */
__attribute__((optimize("no-schedule-insns"))) static void neon_multiply(int64_t k, const void *pa, const void *pb,
                                                                         float *tile, int64_t ld, bool first) {
    const float *a = pa, *b = pb;
    float32x4_t c[MR][3];
    for (int i = 0; i < MR; i++)
        for (int j = 0; j < 3; j++) c[i][j] = vdupq_n_f32(0);
    /* The tile is wanted only after the loop, but then all at once. */
    for (int i = 0; i < MR; i++) __builtin_prefetch(tile + i * ld, 1), __builtin_prefetch(tile + i * ld + NR - 1, 1);
    for (; k > 0; k--, a += MR, b += NR) {
        __builtin_prefetch(a + PREFETCH);
        float32x4_t a0 = vld1q_f32(a), a1 = vld1q_f32(a + 4);
        float32x4_t b0 = vld1q_f32(b), b1 = vld1q_f32(b + 4), b2 = vld1q_f32(b + 8);
#define ROW(i, v, lane)                                                                               \
    c[i][0] = vfmaq_laneq_f32(c[i][0], b0, v, lane), c[i][1] = vfmaq_laneq_f32(c[i][1], b1, v, lane), \
    c[i][2] = vfmaq_laneq_f32(c[i][2], b2, v, lane)
        ROW(0, a0, 0), ROW(1, a0, 1), ROW(2, a0, 2), ROW(3, a0, 3);
        ROW(4, a1, 0), ROW(5, a1, 1), ROW(6, a1, 2), ROW(7, a1, 3);
#undef ROW
    }
    /* Written out: with a loop here gcc keeps the tile in memory throughout. */
#define PUT(i, j) \
    vst1q_f32(tile + i * ld + 4 * j, first ? c[i][j] : vaddq_f32(vld1q_f32(tile + i * ld + 4 * j), c[i][j]))
#define PUT_ROW(i) PUT(i, 0), PUT(i, 1), PUT(i, 2)
    PUT_ROW(0), PUT_ROW(1), PUT_ROW(2), PUT_ROW(3), PUT_ROW(4), PUT_ROW(5), PUT_ROW(6), PUT_ROW(7);
#undef PUT_ROW
#undef PUT
}

const gemm_kernel gemm_neon = {
    .name = "neon",
    .supported = neon_supported,
    .types = GEMM_FLOATS,
    .mr = MR,
    .nr = NR,
    .kr = 1,
    .kc = 384,
    .element_bytes = 4,
    .chain = true,
    .pack_a = neon_pack_a,
    .pack_b = neon_pack_b,
    .multiply = neon_multiply,
};
#else
typedef int gemm_neon_is_for_aarch64; /* ISO C wants a declaration in every file */
#endif
