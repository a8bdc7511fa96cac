/* attention_base.c - attention for the instruction set that the whole program is compiled for: NEON on arm64, SSE2 on
 * x86-64 unless the build asks for more. */
#define ATTENTION_FUNCTIONS attention_base
#define ATTENTION_NAME "base"
#define ATTENTION_SUPPORTED true
#include "backend/cpu/attention_blocks.inc"
