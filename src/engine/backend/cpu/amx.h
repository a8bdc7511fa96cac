#pragma once
/* amx.h - the tile registers of AMX: whether this process may use them, and the one configuration that kernels here share.
 *
 * The configuration belongs to the thread, so every task loads it and releases it: released tiles cost nothing at a context switch.
 * Linux hands out the tile state only to a process that asked for it. */
#if defined(__x86_64__)
#pragma GCC target("amx-tile")
#include <cpuid.h>
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

/* CPUID leaf 7, EDX */
enum { AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24, AMX_INT8 = 1 << 25 };

/* `products`: AMX_BF16 or AMX_INT8. */
static inline bool amx_allowed(unsigned products) {
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* arch_prctl(2), for a component of the extended state */
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & AMX_TILE) || !(d & products)) return false;
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0; /* for every thread of the process */
}

/* As LDTILECFG reads it: palette 1, eight tiles of 16 rows x 64 bytes. */
typedef struct amx_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} amx_config;
_Static_assert(sizeof(amx_config) == 64, "the size the instruction loads");

static inline void amx_begin(void) {
    static const amx_config config = {
        .palette = 1,
        .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
        .rows = {16, 16, 16, 16, 16, 16, 16, 16},
    };
    _tile_loadconfig(&config);
}
static inline void amx_end(void) { _tile_release(); }
#endif
