/* attention_avx2.c - attention with 8 lanes and fma; called only where the processor has them. */
#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c")
#define ATTENTION_FUNCTIONS attention_avx2
#define ATTENTION_NAME "avx2"
#define ATTENTION_SUPPORTED \
    (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
#include "backend/cpu/attention_blocks.inc"
#else
typedef int attention_avx2_absent; /* an empty file is not C */
#endif
