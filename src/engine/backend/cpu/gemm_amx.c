/* gemm_amx.c - the AMX kernel: 32 x 32 as 2 x 2 tile registers of 16 x 16 sums, 32 steps of k per instruction.
 *
 * A panel of A is 32 rows of 64 bytes per 32 steps of k; a panel of B holds pairs of k, 32 columns wide, and its two
 * halves are loaded with a stride. Four loads feed four TDPBF16PS, which reads subnormals as zero and flushes tiny sums. */
#if defined(__x86_64__)
#include "backend/cpu/gemm_kernels.h"
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c,amx-tile,amx-bf16")
#include "backend/cpu/amx.h"
#include "backend/cpu/gemm_pack.h"

#define MR 32
#define NR 32
#define KR 32
#define PAIR 2 /* of k, as B is packed */

static bool amx_supported(void) { return cpu_has_avx512() && amx_allowed(AMX_BF16); }

static void amx_pack_a(void *panel, const gemm_slice *s) { pack_u16(panel, MR, KR, *s); }
static void amx_pack_b(void *panel, const gemm_slice *s) {
    pack_u16(panel, NR, PAIR, *s);
    /* k is padded to whole tiles, beyond the whole pairs that the packer knows about */
    int64_t packed = round_up(s->k, PAIR), padded = round_up(s->k, KR);
    memset((uint16_t *)panel + packed * NR, 0, (size_t)(padded - packed) * NR * sizeof(uint16_t));
}

static void amx_multiply(int64_t k, const void *pa, const void *pb, float *tile, int64_t ld, bool first) {
    /* The tile intrinsics of gcc do not say that they read and write memory. */
    __asm__ volatile("" ::: "memory");
    const uint16_t *a = pa, *b = pb;
    int64_t row = ld * (int64_t)sizeof(float);
    if (first) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, tile, row);
        _tile_loadd(1, tile + 16, row);
        _tile_loadd(2, tile + 16 * ld, row);
        _tile_loadd(3, tile + 16 * ld + 16, row);
    }
    for (; k > 0; k -= KR, a += MR * KR, b += NR * KR) {
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, 128);
        _tile_loadd(7, b + 32, 128);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, a + 16 * KR, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, tile, row);
    _tile_stored(1, tile + 16, row);
    _tile_stored(2, tile + 16 * ld, row);
    _tile_stored(3, tile + 16 * ld + 16, row);
    __asm__ volatile("" ::: "memory");
}

/* The first 16 rows: half the products. Weights that come from memory are asked for ahead, because tile loads alone leave a quarter of
 * the bandwidth unused; reads on into the next panel. */
static void amx_multiply_few(int64_t k, const void *pa, const void *pb, float *tile, int64_t ld, bool first) {
    __asm__ volatile("" ::: "memory");
    enum { AHEAD = 1024, TURN = NR * KR * 2 }; /* bytes */
    const uint16_t *a = pa, *b = pb;
    int64_t row = ld * (int64_t)sizeof(float);
    if (first) {
        _tile_zero(0);
        _tile_zero(1);
    } else {
        _tile_loadd(0, tile, row);
        _tile_loadd(1, tile + 16, row);
    }
    for (; k > 0; k -= KR, a += MR * KR, b += NR * KR) {
        for (int line = 0; line < TURN; line += 64) __builtin_prefetch((const char *)b + AHEAD + line);
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, 128);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + 32, 128);
        _tile_dpbf16ps(1, 4, 7);
    }
    _tile_stored(0, tile, row);
    _tile_stored(1, tile + 16, row);
    __asm__ volatile("" ::: "memory");
}

const gemm_kernel gemm_amx = {
    .name = "amx",
    .supported = amx_supported,
    .types = GEMM_BIT(DTYPE_BF16),
    .mr = MR,
    .nr = NR,
    .kr = KR,
    .kc = 512,
    .element_bytes = 2,
    .group = PAIR,
    .pack_a = amx_pack_a,
    .pack_b = amx_pack_b,
    .multiply = amx_multiply,
    .multiply_few = amx_multiply_few,
    .few_rows = 16,
    .few_passes = 2,
    .begin = amx_begin,
    .end = amx_end,
};
#else
typedef int gemm_amx_is_for_x86_64; /* ISO C wants a declaration in every file */
#endif
