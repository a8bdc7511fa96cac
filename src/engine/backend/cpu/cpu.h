#pragma once
/* cpu.h - private to backend/cpu: the context, the kernels, and what they share.
 *
 * Rules for kernels here
 *   - The cut into tasks depends on shapes only, never on the number of threads: same bits for 1 and 64 threads.
 *   - A reduction has one fixed shape. fp32 sums over long rows are blocked or kept in double.
 *   - No allocation: scratch comes from call->work, sized by the op's cpu_work_* (per-thread scratch is indexed by the
 *     `thread` that pool_run hands to the task).
 *   - 16-bit inputs are widened to fp32, computed, and rounded once. What a product in 16 bits takes over from before it is
 *     rounded there too: gradients of logits (unembed.c), probabilities (attention_matrix.c).
 *   - Outputs listed as in-place in ops.def may share bytes with that input: read a row before writing it. */
#include "backend/backend.h"
#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
static inline bool cpu_has_bf16(void) { return (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0; }
/* Assembly with instructions for bf16 begins with the directive, in a function with the attribute: gcc's assembler goes by
 * the one, clang by the other. */
#define CPU_BF16_DIRECTIVE ".arch armv8.6-a\n"
#if defined(__clang__)
#define CPU_BF16_FUNCTION __attribute__((target("bf16")))
#else
#define CPU_BF16_FUNCTION
#endif
#else
#define CPU_BF16_FUNCTION
#endif

#if defined(__x86_64__)
/* What the files for AVX-512 are compiled for. */
static inline bool cpu_has_avx512(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
           __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

struct backend_context {
    pool *threads;
    int n_threads;
};

/* Element i of the data of a tensor. */
static inline void *element_at(const void *data, dtype t, int64_t i) {
    return (char *)data + (size_t)i * dtype_bytes(t);
}

/* The rows that an op has to compute: all n, or as many as op.rows says hold something. */
static inline int64_t cpu_rows(const kernel_call *k, int64_t n) {
    if (!k->rows) return n;
    ASSERT(*k->rows >= 0 && *k->rows <= n);
    return *k->rows;
}

/* n logits become softcap * tanh(logit / softcap). */
void cpu_cap_logits(backend_context *c, float *logits, int64_t n, float softcap);

/* Bytes of scratch that the kernel of an op needs. */
typedef size_t (*cpu_work_fn)(const program *p, const op *o, int n_threads);

/* One kernel per op, and beside that of one with SCRATCH how much: an op without either does not link. */
#define DECLARE_NO_SCRATCH(id)
#define DECLARE_SCRATCH(id) extern const cpu_work_fn cpu_work_##id;
#define OP(id, in, out, inplace, scratch, ...)                      \
    void cpu_kernel_##id(backend_context *c, const kernel_call *k); \
    DECLARE_##scratch(id)
#define COMM_OP(...)
#include "program/ops.def"
#undef OP
#undef DECLARE_SCRATCH
#undef DECLARE_NO_SCRATCH
