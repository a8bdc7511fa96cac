/* gemm_neon.c - the ARMv8 kernel: fp32 multiply-add, 8 x 12, for fp32, bf16 and fp16 (widened while packing).
 *
 * 24 of the 32 vector registers hold the tile, so that two or four pipes of latency four stay full. The loop is
 * assembly because gcc 12 spills when it may order it, and moves registers about when four steps are written in C. Runs on
 * every aarch64 machine; 16-bit types take it where the processor has no BFMMLA. */
#if defined(__aarch64__)
#include "backend/cpu/gemm_pack.h"

#define MR 8
#define NR 12

static bool neon_supported(void) { return true; }
static void neon_pack_a(void *panel, const gemm_slice *s) { pack_f32(panel, MR, *s); }
static void neon_pack_b(void *panel, const gemm_slice *s) { pack_f32(panel, NR, *s); }

/* clang-format off */
#define ZERO(r) "movi v" #r ".4s, #0\n"
#define ROW(c0, c1, c2, a, lane)                         \
    "fmla v" #c0 ".4s, v2.4s, v" #a ".s[" #lane "]\n" \
    "fmla v" #c1 ".4s, v3.4s, v" #a ".s[" #lane "]\n" \
    "fmla v" #c2 ".4s, v4.4s, v" #a ".s[" #lane "]\n"
/* One step of k, from so many bytes behind a and b on. */
#define STEP(at_a, at_b)                   \
    "ldp q0, q1, [%[a], #" #at_a "]\n"     \
    "ldp q2, q3, [%[b], #" #at_b "]\n"     \
    "ldr q4, [%[b], #" #at_b " + 32]\n"    \
    ROW(8, 9, 10, 0, 0) ROW(11, 12, 13, 0, 1) ROW(14, 15, 16, 0, 2) ROW(17, 18, 19, 0, 3) \
    ROW(20, 21, 22, 1, 0) ROW(23, 24, 25, 1, 1) ROW(26, 27, 28, 1, 2) ROW(29, 30, 31, 1, 3)
/* A row of the tile, and on to the next. */
#define PUT(c0, c1, c2)                          \
    "stp q" #c0 ", q" #c1 ", [%[tile]]\n"        \
    "str q" #c2 ", [%[tile], #32]\n"             \
    "add %[tile], %[tile], %[stride]\n"
#define ADD_PUT(c0, c1, c2)                      \
    "ldp q0, q1, [%[tile]]\n"                    \
    "ldr q2, [%[tile], #32]\n"                   \
    "fadd v" #c0 ".4s, v0.4s, v" #c0 ".4s\n"     \
    "fadd v" #c1 ".4s, v1.4s, v" #c1 ".4s\n"     \
    "fadd v" #c2 ".4s, v2.4s, v" #c2 ".4s\n"     \
    PUT(c0, c1, c2)

/* Four steps per turn: one at a time is 9 % slower where four pipes leave no slot for the loop, eight 1 % faster. */
__attribute__((noinline)) static void neon_tile(int64_t k, const void *a, const void *b, float *tile, int64_t stride,
                                                bool first) {
    int64_t fours = k / 4, ones = k % 4;
    __asm__ volatile(
        ZERO(8) ZERO(9) ZERO(10) ZERO(11) ZERO(12) ZERO(13) ZERO(14) ZERO(15) ZERO(16) ZERO(17) ZERO(18) ZERO(19)
        ZERO(20) ZERO(21) ZERO(22) ZERO(23) ZERO(24) ZERO(25) ZERO(26) ZERO(27) ZERO(28) ZERO(29) ZERO(30) ZERO(31)
        "cbz %[fours], 2f\n"
        "1:\n"
        STEP(0, 0)
        "prfm pldl1keep, [%[a], #2048]\n" /* reads on into the next panel of A, which otherwise starts with a wait for L2 */
        STEP(32, 48)
        STEP(64, 96)
        "prfm pldl1keep, [%[a], #2112]\n"
        STEP(96, 144)
        "add %[a], %[a], #128\n"
        "add %[b], %[b], #192\n"
        "subs %[fours], %[fours], #1\n"
        "b.ne 1b\n"
        "2:\n"
        "cbz %[ones], 4f\n"
        "3:\n"
        STEP(0, 0)
        "add %[a], %[a], #32\n"
        "add %[b], %[b], #48\n"
        "subs %[ones], %[ones], #1\n"
        "b.ne 3b\n"
        "4:\n"
        "cbz %w[first], 5f\n"
        PUT(8, 9, 10) PUT(11, 12, 13) PUT(14, 15, 16) PUT(17, 18, 19)
        PUT(20, 21, 22) PUT(23, 24, 25) PUT(26, 27, 28) PUT(29, 30, 31)
        "b 6f\n"
        "5:\n"
        ADD_PUT(8, 9, 10) ADD_PUT(11, 12, 13) ADD_PUT(14, 15, 16) ADD_PUT(17, 18, 19)
        ADD_PUT(20, 21, 22) ADD_PUT(23, 24, 25) ADD_PUT(26, 27, 28) ADD_PUT(29, 30, 31)
        "6:\n"
        : [fours] "+r"(fours), [ones] "+r"(ones), [a] "+r"(a), [b] "+r"(b), [tile] "+r"(tile)
        : [stride] "r"(stride), [first] "r"((int)first)
        : "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16",
          "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31");
}
/* clang-format on */

static void neon_multiply(int64_t k, const void *a, const void *b, float *tile, int64_t ld, bool first) {
    /* The tile is wanted only after the loop, but then all at once. */
    for (int i = 0; i < MR; i++) __builtin_prefetch(tile + i * ld, 1), __builtin_prefetch(tile + i * ld + NR - 1, 1);
    neon_tile(k, a, b, tile, ld * (int64_t)sizeof *tile, first);
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
