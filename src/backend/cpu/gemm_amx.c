/* gemm_amx.c - the AMX kernel: 32 x 32 as 2 x 2 tile registers of 16 x 16 sums, 32 steps of k per instruction.
 *
 * A panel of A is 32 rows of 64 bytes per 32 steps of k; a panel of B holds pairs of k, 32 columns wide, and its two
 * halves are loaded with a stride. Four loads feed four TDPBF16PS. The tile configuration belongs to the thread, so
 * every task loads it and releases it: released tiles cost nothing at a context switch. Linux hands out the tile state
 * only to a process that asked for it. The instruction reads subnormals as zero and flushes tiny sums. */
#if defined(__x86_64__)
#include "backend/cpu/gemm_kernels.h"
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#pragma GCC target("avx2,amx-tile,amx-bf16")
#include "backend/cpu/gemm_pack.h"

#define MR 32
#define NR 32
#define KR 32
#define PAIR 2 /* of k, as B is packed */

/* CPUID leaf 7, EDX */
#define CPUID_AMX_BF16 (1u << 22)
#define CPUID_AMX_TILE (1u << 24)
/* arch_prctl(2): permission for the tile data, a component of the extended state */
#define REQUEST_PERMISSION 0x1023
#define TILE_DATA 18

static bool amx_supported(void) {
    unsigned a, b, c, d;
    if (!__builtin_cpu_supports("avx2") || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    if (!(d & CPUID_AMX_TILE) || !(d & CPUID_AMX_BF16)) return false;
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0; /* for every thread of the process */
}

/* As LDTILECFG reads it: palette 1, eight tiles of 16 rows x 64 bytes. */
typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;
_Static_assert(sizeof(tile_config) == 64, "the size the instruction loads");

static void amx_begin(void) {
    static const tile_config config = {
        .palette = 1,
        .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
        .rows = {16, 16, 16, 16, 16, 16, 16, 16},
    };
    _tile_loadconfig(&config);
}
static void amx_end(void) { _tile_release(); }

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
    .begin = amx_begin,
    .end = amx_end,
};
#else
typedef int gemm_amx_is_for_x86_64; /* ISO C wants a declaration in every file */
#endif
