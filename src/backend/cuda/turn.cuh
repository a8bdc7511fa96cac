#pragma once
/* turn.cuh - transposing bytes in registers, for kernels that write 8-bit tensors together with their transposes. */
#include <stdint.h>

/* Four rows of four bytes become four columns of them. */
static __device__ __forceinline__ void turn(uint32_t turned[4], uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    uint32_t low_ab = __byte_perm(a, b, 0x5140), high_ab = __byte_perm(a, b, 0x7362); /* a0 b0 a1 b1, a2 b2 a3 b3 */
    uint32_t low_cd = __byte_perm(c, d, 0x5140), high_cd = __byte_perm(c, d, 0x7362);
    turned[0] = __byte_perm(low_ab, low_cd, 0x5410);
    turned[1] = __byte_perm(low_ab, low_cd, 0x7632);
    turned[2] = __byte_perm(high_ab, high_cd, 0x5410);
    turned[3] = __byte_perm(high_ab, high_cd, 0x7632);
}
