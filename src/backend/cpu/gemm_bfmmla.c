/* gemm_bfmmla.c - the ARMv8.6 kernel: bf16 matrix multiply-add, 8 x 12, four steps of k per instruction.
 *
 * One BFMMLA multiplies 2 x 4 by 4 x 2 into a 2 x 2 block, so the tile is 4 x 6 blocks in 24 registers; the other
 * eight hold 4 row pairs of A and, in turns, 6 column pairs of B. The loop is assembly because gcc 12 spills here.
 * Where FPCR.EBF is 0, as the kernel leaves it, the instruction reads subnormals as zero, flushes tiny sums and
 * rounds to odd; exact sums stay exact. */
#if defined(__aarch64__)
#include "backend/cpu/gemm_pack.h"

#define MR 8
#define NR 12
#define KR 4

static void bfmmla_pack_a(void *panel, const gemm_slice *s) { pack_u16(panel, MR, KR, *s); }
static void bfmmla_pack_b(void *panel, const gemm_slice *s) { pack_u16(panel, NR, KR, *s); }

/* clang-format off */
#define ZERO(r) "movi v" #r ".4s, #0\n"
#define PAIR(c0, c1, c2, c3, b)               \
    "bfmmla v" #c0 ".4s, v0.8h, v" #b ".8h\n" \
    "bfmmla v" #c1 ".4s, v1.8h, v" #b ".8h\n" \
    "bfmmla v" #c2 ".4s, v2.8h, v" #b ".8h\n" \
    "bfmmla v" #c3 ".4s, v3.8h, v" #b ".8h\n"
/* Four steps of k, from so many bytes behind a and b on. */
#define STEPS(at_a, at_b)                        \
    "ldp q0, q1, [%[a], #" #at_a "]\n"           \
    "ldp q2, q3, [%[a], #" #at_a " + 32]\n"      \
    "ldp q4, q5, [%[b], #" #at_b "]\n"           \
    "ldp q6, q7, [%[b], #" #at_b " + 32]\n"      \
    PAIR(8, 14, 20, 26, 4) PAIR(9, 15, 21, 27, 5) \
    "ldp q4, q5, [%[b], #" #at_b " + 64]\n"      \
    PAIR(10, 16, 22, 28, 6) PAIR(11, 17, 23, 29, 7) PAIR(12, 18, 24, 30, 4) PAIR(13, 19, 25, 31, 5)
#define STORE(r0, r1, at) "stp q" #r0 ", q" #r1 ", [%[out], #" #at "]\n"

/* blocks[i][j]: rows 2i, 2i + 1 and columns 2j, 2j + 1 of the tile. Two groups of steps per turn: one at a time is 7 % slower, four 3 %. */
__attribute__((target("+bf16"), noinline)) static void bfmmla_blocks(int64_t groups, const void *a, const void *b,
                                                                     float32x4_t blocks[4][6]) {
    __asm__ volatile(
        ZERO(8) ZERO(9) ZERO(10) ZERO(11) ZERO(12) ZERO(13) ZERO(14) ZERO(15) ZERO(16) ZERO(17) ZERO(18) ZERO(19)
        ZERO(20) ZERO(21) ZERO(22) ZERO(23) ZERO(24) ZERO(25) ZERO(26) ZERO(27) ZERO(28) ZERO(29) ZERO(30) ZERO(31)
        "tbz %[groups], #0, 1f\n"
        STEPS(0, 0)
        "add %[a], %[a], #64\n"
        "add %[b], %[b], #96\n"
        "1:\n"
        "lsr %[groups], %[groups], #1\n"
        "cbz %[groups], 3f\n"
        "2:\n"
        STEPS(0, 0)
        "prfm pldl1keep, [%[a], #2048]\n" /* reads on into the next panel of A */
        STEPS(64, 96)
        "prfm pldl1keep, [%[a], #2112]\n"
        "add %[a], %[a], #128\n"
        "add %[b], %[b], #192\n"
        "subs %[groups], %[groups], #1\n"
        "b.ne 2b\n"
        "3:\n"
        STORE(8, 9, 0) STORE(10, 11, 32) STORE(12, 13, 64) STORE(14, 15, 96) STORE(16, 17, 128) STORE(18, 19, 160)
        STORE(20, 21, 192) STORE(22, 23, 224) STORE(24, 25, 256) STORE(26, 27, 288) STORE(28, 29, 320) STORE(30, 31, 352)
        : [groups] "+r"(groups), [a] "+r"(a), [b] "+r"(b)
        : [out] "r"(blocks)
        : "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14",
          "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29",
          "v30", "v31");
}
/* clang-format on */

static void bfmmla_multiply(int64_t k, const void *a, const void *b, float *tile, int64_t ld, bool first) {
    float32x4_t blocks[4][6];
    for (int i = 0; i < MR; i++) __builtin_prefetch(tile + i * ld, 1), __builtin_prefetch(tile + i * ld + NR - 1, 1);
    bfmmla_blocks(k / KR, a, b, blocks);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 6; j += 2) {
            float64x2_t p = vreinterpretq_f64_f32(blocks[i][j]), q = vreinterpretq_f64_f32(blocks[i][j + 1]);
            float32x4_t even = vreinterpretq_f32_f64(vzip1q_f64(p, q)), odd = vreinterpretq_f32_f64(vzip2q_f64(p, q));
            float *to = tile + 2 * i * ld + 2 * j;
            vst1q_f32(to, first ? even : vaddq_f32(vld1q_f32(to), even));
            vst1q_f32(to + ld, first ? odd : vaddq_f32(vld1q_f32(to + ld), odd));
        }
}

const gemm_kernel gemm_bfmmla = {
    .name = "bfmmla",
    .supported = cpu_has_bf16,
    .types = GEMM_BIT(DTYPE_BF16),
    .mr = MR,
    .nr = NR,
    .kr = KR,
    .kc = 768,
    .element_bytes = 2,
    .pack_a = bfmmla_pack_a,
    .pack_b = bfmmla_pack_b,
    .multiply = bfmmla_multiply,
};
#else
typedef int gemm_bfmmla_is_for_aarch64; /* ISO C wants a declaration in every file */
#endif
