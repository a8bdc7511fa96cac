#pragma once
/* gemm.h - C (m, n) = A (m, k) B (k, n) [* scale] [+ bias] [+ C or another matrix], fp32 sums, for fp32, bf16 and fp16.
 *
 * The kernel is chosen once at run time, by dtype and processor: BFMMLA, AMX, AVX512-BF16, AVX512, NEON, AVX2, portable,
 * or OpenBLAS for fp32 on fixed tiles of C, one call per task, where ours is not faster. The bits depend
 * on m, n, k and the dtypes only.
 *
 *     gemm_call g = {.m = N, .n = M, .k = K, .a = {x, DTYPE_BF16, K, 1}, .b = {w, DTYPE_BF16, 1, K},
 *                    .c = y, .c_type = DTYPE_BF16, .ldc = M};
 *     gemm_run(c, &g, work);
 */
#include "backend/cpu/cpu.h"

typedef struct gemm_operand {
    const void *data;
    dtype type;                     /* a and b have the same type */
    int64_t row_stride, col_stride; /* in elements; one of them is 1 */
} gemm_operand;

typedef struct gemm_call {
    int64_t m, n, k;
    gemm_operand a, b;
    void *c; /* fp32, or the type of a and b */
    dtype c_type;
    int64_t ldc;
    const float *scale; /* of the sums, before bias and rounding; NULL = 1 */
    const void *bias;   /* (n), of bias_type; NULL = none; added in fp32 before the one rounding */
    dtype bias_type;
    const void
        *add; /* (m, n), of c_type, rows of ld_add; NULL = none; added in fp32 before the one rounding. May be c */
    int64_t ld_add;
    bool lanes;      /* b is a weight (n, k) in the order of lanes, see below; for gemm_rows_run */
    bool by_row;     /* a row of C has the same bits for every m; see gemm_rows_run */
    bool accumulate; /* c += A B (c_type fp32 only), in an order fixed by the shape */
} gemm_call;

/* The same for a few rows of activations and a weight (n, k) with rows contiguous, as generation needs it: a row of C has
 * the same bits for every m and at every place. A weight row is read once for all rows. m_most: the largest m to come. */
void gemm_rows_run(backend_context *c, const gemm_call *g, void *work);
size_t gemm_rows_work_bytes(int64_t m_most, int64_t n, int64_t k, dtype type, bool lanes, int n_threads);

/* The order of lanes: a weight (n, k) of a program that only reads it, put in the order in which the kernel of its type takes
 * it, so that a product of few rows reads it as one stream and no product turns it. Every `panel` rows lie as
 * [k / group][panel][group] elements of their type; rows behind the last whole panel lie as before. The bytes are as many, the
 * sums are the same. Which order it is depends on the processor: it is made in memory and never written to a file. */
typedef struct gemm_lanes {
    int64_t panel, group; /* panel 0: no kernel takes such rows as they are, the weight stays as it is */
} gemm_lanes;
gemm_lanes gemm_lanes_of(dtype type, int64_t k);
void gemm_lanes_order(backend_context *c, void *w, dtype type, int64_t n,
                      int64_t k); /* in place; takes a panel per thread */
/* Elements [first, first + count) of a row; both are whole groups, or the end of the row. */
void gemm_lanes_row(void *to, const void *w, dtype type, int64_t n, int64_t k, int64_t row, int64_t first,
                    int64_t count);
gemm_lanes int8_lanes_of(int64_t k); /* of codes, which linear_int8.c multiplies */

size_t gemm_work_bytes(int64_t m, int64_t n, int64_t k, dtype type, dtype c_type, int n_threads);
void gemm_run(backend_context *c, const gemm_call *g, void *work);
size_t gemm_cut_bytes(int64_t m, int64_t n, int64_t k, bool lanes, int n_threads); /* of every kernel of ours */

/* How many of a weight's n rows one task takes, in a product of few rows, which reading the weight limits: at least `least`, and as many as
 * leave every thread some tasks. One long stream from memory is faster than many short ones. */
int64_t gemm_stream_rows(const backend_context *c, int64_t n, int64_t least);

/* The name of the kernel that will serve this type on this machine: "openblas", "bfmmla", "amx" ... */
const char *gemm_kernel_name(dtype type);
/* For tests and benches: force a kernel by name (NULL = automatic). False when this machine cannot run it. */
bool gemm_force_kernel(const char *name);
const char *gemm_kernel_list(int i); /* every name compiled in; NULL at the end */
