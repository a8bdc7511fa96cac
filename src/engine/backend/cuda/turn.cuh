#pragma once
/* turn.cuh - transposing bytes in registers, and tiles of them in shared memory, for kernels that write 8-bit
 * tensors together with their transposes. */
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

/* A tile of 128 x 128 bytes, of which each of 256 threads has four rows of four words. A thread's words stand in runs of RUN bytes, and
 * runs of 8 threads side by side. */
template <int RUN> struct turned_tile {
    enum { SIDE = 128, THREADS = 256, ACROSS = 8, COLUMN_WORDS = SIDE / 4, WORDS = SIDE * COLUMN_WORDS };

    /* Where four words of a column begin, by their number: threads that store side by side across columns, and those that load
     * a column, both find all banks. */
    static __device__ __forceinline__ int group_at(int column, int group) {
        int run = RUN * ACROSS == SIDE ? column / RUN : column / RUN % ACROSS;
        return column * COLUMN_WORDS + 4 * (group ^ run);
    }

    /* The words of this thread as columns into shared memory; visible to others after __syncthreads. */
    static __device__ __forceinline__ void put(uint32_t *columns, const uint32_t (&word)[4][4]) {
        int across = threadIdx.x % ACROSS, down = threadIdx.x / ACROSS;
#pragma unroll
        for (int w = 0; w < 4; w++) {
            uint32_t turned[4];
            turn(turned, word[0][w], word[1][w], word[2][w], word[3][w]);
            int column = w * 4 / RUN * (RUN * ACROSS) + across * RUN + w * 4 % RUN;
#pragma unroll
            for (int e = 0; e < 4; e++) columns[group_at(column + e, down / 4) + down % 4] = turned[e];
        }
    }

    /* give(column, row, 16 bytes of that column from that row on) for all of the tile, by all threads. */
    template <typename F> static __device__ __forceinline__ void each(const uint32_t *columns, F give) {
#pragma unroll
        for (int k = 0; k < SIDE * ACROSS / THREADS; k++) {
            int i = k * THREADS + threadIdx.x, column = i / ACROSS, group = i % ACROSS;
            give(column, group * 16, (const uint4 *)(columns + group_at(column, group)));
        }
    }
};
