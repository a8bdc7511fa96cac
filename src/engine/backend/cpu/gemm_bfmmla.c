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
/* Blocks of two rows of the tile, side by side: the even row in v0, v2, v4, the odd one in v1, v3, v5. */
#define ROWS(b0, b1, b2, b3, b4, b5)                         \
    "zip1 v0.2d, v" #b0 ".2d, v" #b1 ".2d\n"                 \
    "zip2 v1.2d, v" #b0 ".2d, v" #b1 ".2d\n"                 \
    "zip1 v2.2d, v" #b2 ".2d, v" #b3 ".2d\n"                 \
    "zip2 v3.2d, v" #b2 ".2d, v" #b3 ".2d\n"                 \
    "zip1 v4.2d, v" #b4 ".2d, v" #b5 ".2d\n"                 \
    "zip2 v5.2d, v" #b4 ".2d, v" #b5 ".2d\n"
#define ADD(c0, c1, c2)                                      \
    "ldp q6, q7, [%[tile]]\n"                                \
    "fadd v" #c0 ".4s, v6.4s, v" #c0 ".4s\n"                 \
    "ldr q6, [%[tile], #32]\n"                               \
    "fadd v" #c1 ".4s, v7.4s, v" #c1 ".4s\n"                 \
    "fadd v" #c2 ".4s, v6.4s, v" #c2 ".4s\n"
#define PUT(c0, c1, c2)                                      \
    "stp q" #c0 ", q" #c1 ", [%[tile]]\n"                    \
    "str q" #c2 ", [%[tile], #32]\n"                         \
    "add %[tile], %[tile], %[stride]\n"
#define SET_ROWS(b0, b1, b2, b3, b4, b5) ROWS(b0, b1, b2, b3, b4, b5) PUT(0, 2, 4) PUT(1, 3, 5)
#define ADD_ROWS(b0, b1, b2, b3, b4, b5) ROWS(b0, b1, b2, b3, b4, b5) ADD(0, 2, 4) PUT(0, 2, 4) ADD(1, 3, 5) PUT(1, 3, 5)

/* Registers v8 to v31 hold the 2 x 2 blocks, row by row. Two groups of steps per turn: one at a time is 7 % slower, four 3 %. */
__attribute__((noinline)) CPU_BF16_FUNCTION
static void bfmmla_tile(int64_t groups, const void *a, const void *b, float *tile, int64_t stride, bool first) {
    __asm__ volatile(
        CPU_BF16_DIRECTIVE
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
        "cbz %w[first], 4f\n"
        SET_ROWS(8, 9, 10, 11, 12, 13) SET_ROWS(14, 15, 16, 17, 18, 19)
        SET_ROWS(20, 21, 22, 23, 24, 25) SET_ROWS(26, 27, 28, 29, 30, 31)
        "b 5f\n"
        "4:\n"
        ADD_ROWS(8, 9, 10, 11, 12, 13) ADD_ROWS(14, 15, 16, 17, 18, 19)
        ADD_ROWS(20, 21, 22, 23, 24, 25) ADD_ROWS(26, 27, 28, 29, 30, 31)
        "5:\n"
        : [groups] "+r"(groups), [a] "+r"(a), [b] "+r"(b), [tile] "+r"(tile)
        : [stride] "r"(stride), [first] "r"((int)first)
        : "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14",
          "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29",
          "v30", "v31");
}
/* clang-format on */

static void bfmmla_multiply(int64_t k, const void *a, const void *b, float *tile, int64_t ld, bool first) {
    for (int i = 0; i < MR; i++) __builtin_prefetch(tile + i * ld, 1), __builtin_prefetch(tile + i * ld + NR - 1, 1);
    bfmmla_tile(k / KR, a, b, tile, ld * (int64_t)sizeof *tile, first);
}

/* The first two rows: a quarter of the products, as fast as B comes from memory. */
CPU_BF16_FUNCTION static inline __attribute__((always_inline)) float32x4_t block(float32x4_t sum, uint16x8_t a,
                                                                                 uint16x8_t b) {
    __asm__(CPU_BF16_DIRECTIVE "bfmmla %0.4s, %1.8h, %2.8h" : "+w"(sum) : "w"(a), "w"(b));
    return sum;
}

CPU_BF16_FUNCTION static void bfmmla_multiply_few(int64_t k, const void *a, const void *b, float *tile, int64_t ld,
                                                  bool first) {
    enum { BLOCKS = NR / 2 };
    const uint16_t *pa = a, *pb = b;
    float32x4_t sum[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) sum[i] = vdupq_n_f32(0);
    for (; k > 0; k -= KR, pa += MR * KR, pb += NR * KR) {
        uint16x8_t rows = vld1q_u16(pa);
        for (int i = 0; i < BLOCKS; i++) sum[i] = block(sum[i], rows, vld1q_u16(pb + 8 * i));
    }
    for (int i = 0; i < BLOCKS; i++) { /* two columns of both rows */
        float32x2_t even = vget_low_f32(sum[i]), odd = vget_high_f32(sum[i]);
        if (!first) even = vadd_f32(vld1_f32(tile + 2 * i), even), odd = vadd_f32(vld1_f32(tile + ld + 2 * i), odd);
        vst1_f32(tile + 2 * i, even), vst1_f32(tile + ld + 2 * i, odd);
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
    .multiply_few = bfmmla_multiply_few,
    .few_rows = 2,
    .few_passes = 1,
};
#else
typedef int gemm_bfmmla_is_for_aarch64; /* ISO C wants a declaration in every file */
#endif
