/* attention_avx512.c - attention with 16 lanes and 32 registers; called only where the processor has them. */
#if defined(__x86_64__)
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,prefer-vector-width=512")
#define ATTENTION_FUNCTIONS attention_avx512
#define ATTENTION_NAME "avx512"
#define ATTENTION_SUPPORTED cpu_has_avx512()
#include "backend/cpu/attention_blocks.inc"
#else
typedef int attention_avx512_absent; /* an empty file is not C */
#endif
