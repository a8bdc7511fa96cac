#pragma once
/* wgmma.cuh - the instructions of compute capability 9.0 that a warp group (128 threads) works with, as functions: tiles
 * fetched by the TMA unit, and products whose right operand stays in shared memory. Their barriers are those of barriers.cuh.
 *
 * Accumulators and left operands in registers are laid out as in mma.cuh, warp w of the group holding rows 16 w to 16 w + 15.
 * They exist for sm_90a alone; WGMMA_HERE says whether the code being compiled is for it. */
#include "backend/cuda/barriers.cuh"
#include "backend/cuda/mma.cuh"
#include <cuda.h>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define WGMMA_HERE 1
#else
#define WGMMA_HERE 0
#endif

#if WGMMA_HERE

/* ---- tiles ------------------------------------------------------------------------------------------------------ */

/* One box of a (columns, rows, sequences) tensor; zeros outside it. */
__device__ inline void fetch_box(uint32_t to, const CUtensorMap *map, int column, int row, int sequence,
                                 uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, "
                 "%4}], [%5];" ::"r"(to),
                 "l"(map), "r"(column), "r"(row), "r"(sequence), "r"(barrier)
                 : "memory");
}

/* The same of what is read once for a long time, as weights are in a decode step: the L2 cache keeps it shorter than the rest, whose
 * code, arguments and activations it would otherwise push out in every layer. */
__device__ inline void fetch_box_once(uint32_t to, const CUtensorMap *map, int column, int row, int sequence,
                                      uint32_t barrier) {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
        "[%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
        "l"(map), "r"(column), "r"(row), "r"(sequence), "r"(barrier), "l"(policy)
        : "memory");
}

/* What the TMA unit is to know of a tensor comes from memory, too; asked for before the first box. */
__device__ inline void prefetch_map(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* The way back; what lies outside of the tensor is left out. In groups of a thread, as copy_bulk_commit says. */
__device__ inline void store_box(const CUtensorMap *map, int column, int row, int sequence, uint32_t from) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(map),
                 "r"(column), "r"(row), "r"(sequence), "r"(from)
                 : "memory");
}

/* Four 8 x 8 matrices of 16-bit elements, as load_matrices has them, each transposed: lanes 8 i to 8 i + 7 give where the columns of
 * matrix i go. */
__device__ inline void store_matrices_transposed(uint32_t column, const uint32_t (&m)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(column), "r"(m[0]),
                 "r"(m[1]), "r"(m[2]), "r"(m[3])
                 : "memory");
}

/* The same, not transposed: lanes 8 i to 8 i + 7 give where the rows of matrix i go. */
__device__ inline void store_matrices(uint32_t row, const uint32_t (&m)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(m[0]), "r"(m[1]),
                 "r"(m[2]), "r"(m[3])
                 : "memory");
}

/* ---- products --------------------------------------------------------------------------------------------------- */

/* Registers given to wgmma are ready (before the first of a batch). */
__device__ inline void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ inline void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
/* Accumulators are read after this point: without it the compiler may move a use above the wait. */
template <int N> __device__ inline void wgmma_settle(float (&c)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) asm volatile("" : "+f"(c[n][i])::"memory");
}

template <int N> __device__ inline void registers_take() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ inline void registers_give() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

// clang-format off
#define WGMMA_LIST_4 "{%0, %1, %2, %3}"
#define WGMMA_LIST_8 "{%0, %1, %2, %3, %4, %5, %6, %7}"
#define WGMMA_LIST_16 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}"
#define WGMMA_LIST_24 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
    "%19, %20, %21, %22, %23}"
#define WGMMA_LIST_32 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
    "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define WGMMA_LIST_36 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
    "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35}"
#define WGMMA_LIST_48 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
    "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, "    \
    "%43, %44, %45, %46, %47}"
#define WGMMA_LIST_64 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
    "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, "    \
    "%43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"
#define WGMMA_LIST_128 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
    "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, " \
    "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, " \
    "%63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, " \
    "%84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, " \
    "%105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, " \
    "%126, %127}"
#define WGMMA_QUAD(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define WGMMA_4 WGMMA_QUAD(0)
#define WGMMA_8 WGMMA_4, WGMMA_QUAD(1)
#define WGMMA_16 WGMMA_8, WGMMA_QUAD(2), WGMMA_QUAD(3)
#define WGMMA_24 WGMMA_16, WGMMA_QUAD(4), WGMMA_QUAD(5)
#define WGMMA_32 WGMMA_16, WGMMA_QUAD(4), WGMMA_QUAD(5), WGMMA_QUAD(6), WGMMA_QUAD(7)
#define WGMMA_36 WGMMA_32, WGMMA_QUAD(8)
#define WGMMA_48 WGMMA_32, WGMMA_QUAD(8), WGMMA_QUAD(9), WGMMA_QUAD(10), WGMMA_QUAD(11)
#define WGMMA_64 WGMMA_48, WGMMA_QUAD(12), WGMMA_QUAD(13), WGMMA_QUAD(14), WGMMA_QUAD(15)
#define WGMMA_128 WGMMA_64, WGMMA_QUAD(16), WGMMA_QUAD(17), WGMMA_QUAD(18), WGMMA_QUAD(19), WGMMA_QUAD(20), WGMMA_QUAD(21), WGMMA_QUAD(22), \
    WGMMA_QUAD(23), WGMMA_QUAD(24), WGMMA_QUAD(25), WGMMA_QUAD(26), WGMMA_QUAD(27), WGMMA_QUAD(28), WGMMA_QUAD(29), WGMMA_QUAD(30), WGMMA_QUAD(31)
// clang-format on

/* c (64, N) = or += a (64, 16) b (16, N). shared: both from shared memory; neighbours there are 16 of a row of a and 16 of a column of b, or,
 * where A_TURNED or B_TURNED, 64 of a column of a and N of a row of b. registers: a from registers, b turned. */
template <typename E, int N> struct wgmma;

#define WGMMA_FUNCTIONS(E, type, N, L, A0, A1, A2, A3, A4, A5)                                                       \
    template <> struct wgmma<E, N> {                                                                                 \
        template <int A_TURNED, int B_TURNED>                                                                        \
        static __device__ inline void shared(float (&c)[N / 8][4], uint64_t a, uint64_t b, int add) {                \
            asm volatile("{\n"                                                                                       \
                         ".reg .pred p;\n"                                                                           \
                         "setp.ne.b32 p, %" A2 ", 0;\n"                                                              \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type " " WGMMA_LIST_##L          \
                         ", %" A0 ", %" A1 ", p, 1, 1, %" A3 ", %" A4 ";\n"                                          \
                         "}\n"                                                                                       \
                         : WGMMA_##L                                                                                 \
                         : "l"(a), "l"(b), "r"(add), "n"(A_TURNED), "n"(B_TURNED));                                  \
        }                                                                                                            \
        static __device__ inline void registers(float (&c)[N / 8][4], const uint32_t (&a)[4], uint64_t b, int add) { \
            asm volatile("{\n"                                                                                       \
                         ".reg .pred p;\n"                                                                           \
                         "setp.ne.b32 p, %" A5 ", 0;\n"                                                              \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type " " WGMMA_LIST_##L          \
                         ", {%" A0 ", %" A1 ", %" A2 ", %" A3 "}, %" A4 ", p, 1, 1, 1;\n"                            \
                         "}\n"                                                                                       \
                         : WGMMA_##L                                                                                 \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                            \
        }                                                                                                            \
    }
WGMMA_FUNCTIONS(__nv_bfloat16, "bf16", 8, 4, "4", "5", "6", "7", "8", "9");
WGMMA_FUNCTIONS(__nv_bfloat16, "bf16", 16, 8, "8", "9", "10", "11", "12", "13");
WGMMA_FUNCTIONS(__nv_bfloat16, "bf16", 32, 16, "16", "17", "18", "19", "20", "21");
WGMMA_FUNCTIONS(__nv_bfloat16, "bf16", 48, 24, "24", "25", "26", "27", "28", "29");
WGMMA_FUNCTIONS(__nv_bfloat16, "bf16", 64, 32, "32", "33", "34", "35", "36", "37");
WGMMA_FUNCTIONS(__nv_bfloat16, "bf16", 72, 36, "36", "37", "38", "39", "40", "41");
WGMMA_FUNCTIONS(__nv_bfloat16, "bf16", 96, 48, "48", "49", "50", "51", "52", "53");
WGMMA_FUNCTIONS(__nv_bfloat16, "bf16", 128, 64, "64", "65", "66", "67", "68", "69");
WGMMA_FUNCTIONS(__nv_bfloat16, "bf16", 256, 128, "128", "129", "130", "131", "132", "133");
WGMMA_FUNCTIONS(__half, "f16", 8, 4, "4", "5", "6", "7", "8", "9");
WGMMA_FUNCTIONS(__half, "f16", 16, 8, "8", "9", "10", "11", "12", "13");
WGMMA_FUNCTIONS(__half, "f16", 32, 16, "16", "17", "18", "19", "20", "21");
WGMMA_FUNCTIONS(__half, "f16", 48, 24, "24", "25", "26", "27", "28", "29");
WGMMA_FUNCTIONS(__half, "f16", 64, 32, "32", "33", "34", "35", "36", "37");
WGMMA_FUNCTIONS(__half, "f16", 72, 36, "36", "37", "38", "39", "40", "41");
WGMMA_FUNCTIONS(__half, "f16", 96, 48, "48", "49", "50", "51", "52", "53");
WGMMA_FUNCTIONS(__half, "f16", 128, 64, "64", "65", "66", "67", "68", "69");

/* The same of e4m3 numbers, c (64, N) = or += a (64, 32) b (32, N): neighbours in shared memory are 32 of a row of a and 32 of a column
 * of b, there is no other reading of 8 bits. In registers a lane has columns 4 (lane % 4) to + 3 of a in words 0 and 1, those 16 behind in 2 and 3. */
template <int N> struct wgmma8;

/* The same of signed bytes, exact sums. */
template <int N> struct wgmma_int8;

// clang-format off
#define WGMMA_INTEGERS(n) "+r"(c[n][0]), "+r"(c[n][1]), "+r"(c[n][2]), "+r"(c[n][3])
#define WGMMA_INTEGERS_4 WGMMA_INTEGERS(0)
#define WGMMA_INTEGERS_8 WGMMA_INTEGERS_4, WGMMA_INTEGERS(1)
#define WGMMA_INTEGERS_16 WGMMA_INTEGERS_8, WGMMA_INTEGERS(2), WGMMA_INTEGERS(3)
#define WGMMA_INTEGERS_32 WGMMA_INTEGERS_16, WGMMA_INTEGERS(4), WGMMA_INTEGERS(5), WGMMA_INTEGERS(6), WGMMA_INTEGERS(7)
#define WGMMA_INTEGERS_64 WGMMA_INTEGERS_32, WGMMA_INTEGERS(8), WGMMA_INTEGERS(9), WGMMA_INTEGERS(10), WGMMA_INTEGERS(11), \
    WGMMA_INTEGERS(12), WGMMA_INTEGERS(13), WGMMA_INTEGERS(14), WGMMA_INTEGERS(15)
#define WGMMA8_FUNCTIONS(NAME, TYPE, KINDS, TAIL, OUT, N, L, A0, A1, A2, A3, A4, A5)                                  \
    template <> struct NAME<N> {                                                                                      \
        static __device__ inline void shared(TYPE (&c)[N / 8][4], uint64_t a, uint64_t b, int add) {                  \
            asm volatile("{\n"                                                                                        \
                         ".reg .pred p;\n"                                                                            \
                         "setp.ne.b32 p, %" A2 ", 0;\n"                                                               \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k32." KINDS " " WGMMA_LIST_##L                       \
                         ", %" A0 ", %" A1 ", p" TAIL ";\n"                                                           \
                         "}\n"                                                                                        \
                         : OUT##L                                                                                     \
                         : "l"(a), "l"(b), "r"(add));                                                                 \
        }                                                                                                             \
        static __device__ inline void registers(TYPE (&c)[N / 8][4], const uint32_t (&a)[4], uint64_t b, int add) {   \
            asm volatile("{\n"                                                                                        \
                         ".reg .pred p;\n"                                                                            \
                         "setp.ne.b32 p, %" A5 ", 0;\n"                                                               \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k32." KINDS " " WGMMA_LIST_##L                       \
                         ", {%" A0 ", %" A1 ", %" A2 ", %" A3 "}, %" A4 ", p" TAIL ";\n"                              \
                         "}\n"                                                                                        \
                         : OUT##L                                                                                     \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                             \
        }                                                                                                             \
    }
#define WGMMA_E4M3(...) WGMMA8_FUNCTIONS(wgmma8, float, "f32.e4m3.e4m3", ", 1, 1", WGMMA_, __VA_ARGS__)
#define WGMMA_INT8(...) WGMMA8_FUNCTIONS(wgmma_int8, int, "s32.s8.s8", "", WGMMA_INTEGERS_, __VA_ARGS__)
// clang-format on
WGMMA_E4M3(8, 4, "4", "5", "6", "7", "8", "9");
WGMMA_E4M3(16, 8, "8", "9", "10", "11", "12", "13");
WGMMA_E4M3(32, 16, "16", "17", "18", "19", "20", "21");
WGMMA_E4M3(64, 32, "32", "33", "34", "35", "36", "37");
WGMMA_E4M3(96, 48, "48", "49", "50", "51", "52", "53");
WGMMA_E4M3(128, 64, "64", "65", "66", "67", "68", "69");
WGMMA_INT8(8, 4, "4", "5", "6", "7", "8", "9");
WGMMA_INT8(16, 8, "8", "9", "10", "11", "12", "13");
WGMMA_INT8(32, 16, "16", "17", "18", "19", "20", "21");
WGMMA_INT8(64, 32, "32", "33", "34", "35", "36", "37");
WGMMA_INT8(128, 64, "64", "65", "66", "67", "68", "69");

#endif
