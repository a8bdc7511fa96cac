#pragma once
/* gemm_kernels.h - private to the GEMM: what a micro-kernel is, and the list of those compiled in.
 *
 * A micro-kernel multiplies one packed panel of A (mr rows) with one packed panel of B (nr columns) over at most kc
 * steps of k and adds the product into an fp32 tile. A packed panel is
 *
 *     [k / kr][rows of the panel][kr]     elements of element_bytes, zeros where the matrix ends
 *
 * so a kernel only ever sees whole panels: edges of any size are the packers' and the writer's business. The value
 * of one element of C is a function of its row of A, its column of B and the kernel, never of where it stands in C:
 * kc is a constant of the kernel, and the driver walks k in blocks of kc from 0 upwards. */
#include "backend/cpu/gemm.h"

/* rows x k elements of one operand, seen so that both operands look alike: `row` is a row of A or a column of B. */
typedef struct gemm_slice {
    const void *data;
    dtype type;
    int64_t row_stride, k_stride; /* in elements; one of them is 1 */
    int64_t rows;                 /* 1 .. panel rows */
    int64_t k;
} gemm_slice;

typedef struct gemm_kernel {
    const char *name;
    bool (*supported)(void); /* on the machine that runs this */
    unsigned types;          /* a bit per dtype it can read */
    int mr, nr, kr;
    int kc; /* steps of k between two adds into the fp32 tile; a multiple of kr */
    int element_bytes;
    int group; /* steps of k side by side in a panel of B, where that is not kr; else 0 */
    /* an element is one chain of fp32 fma over kc steps, from 0 up, and these sums added: gemm_rows.c can follow */
    bool chain;
    void (*pack_a)(void *panel, const gemm_slice *s);
    void (*pack_b)(void *panel, const gemm_slice *s);
    /* tile (mr, nr) of floats with row stride ld: = A B when first, else += A B. k is a multiple of kr. */
    void (*multiply)(int64_t k, const void *a, const void *b, float *tile, int64_t ld, bool first);
    /* The same for few_rows rows of the panel and tile alone, where that is faster; or NULL */
    void (*multiply_few)(int64_t k, const void *a, const void *b, float *tile, int64_t ld, bool first);
    int few_rows;
    int few_passes; /* so often for a panel of A: a block of B is in L1 after the first; more rows are faster all at once */
    /* For gemm_rows.c, of a chain kernel: sums [rows][panel] of a few rows of A, as fp32, with a panel in the order of lanes of type t;
     * or NULL, where the vectors of gemm_rows.c are as wide as the machine's */
    void (*lanes_few)(dtype t, int rows, int64_t k, const float *x, int64_t ldx, const void *panel, float *sums);
    void (*begin)(void); /* per task, where the thread needs a state of its own (AMX); or NULL */
    void (*end)(void);
} gemm_kernel;

#define GEMM_BIT(type) (1u << (type))
#define GEMM_FLOATS (GEMM_BIT(DTYPE_F32) | GEMM_BIT(DTYPE_BF16) | GEMM_BIT(DTYPE_F16))

/* Limits that every kernel keeps: the scratch of a call is planned before the machine that runs it is known.
 * Tiles of C are cut in multiples of GEMM_UNIT, so mr and nr divide it, and kr divides GEMM_K_UNIT. */
#define GEMM_UNIT 96
#define GEMM_K_UNIT 32
#define GEMM_ROW_BYTES 4      /* element_bytes at most */
#define GEMM_BLOCK_BYTES 1536 /* kc * element_bytes at most */

#if defined(__aarch64__)
extern const gemm_kernel gemm_bfmmla, gemm_neon;
#elif defined(__x86_64__)
extern const gemm_kernel gemm_amx, gemm_avx512bf16, gemm_avx512, gemm_avx2;
#endif
extern const gemm_kernel gemm_portable;

/* Rows of A that gemm_rows.c takes without packing: at 7 the GEMM is as fast, above it is faster (bench_rows on Neoverse-N1). */
#define GEMM_FEW_ROWS 6

/* The kernel that serves a type where a row of C must have the same bits for every m: one of ours, since OpenBLAS takes
 * other ways through other shapes. */
const gemm_kernel *gemm_kernel_by_row(dtype type);

/* fp32 on tiles by OpenBLAS; needs no scratch of ours. */
void gemm_openblas_run(backend_context *c, const gemm_call *g);
