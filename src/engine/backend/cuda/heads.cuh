#pragma once
/* heads.cuh - kernels in which some lanes of a warp hold a head: how many lanes that takes, and how the groups of lanes of a
 * block add up what they have for a gain. */
#include "backend/cuda/launch_norm.h"
#include "backend/cuda/typed.cuh"

enum { HEAD_THREADS = 256 };
enum { HEAD_PACKS_MOST = NORM_HEAD_BYTES_MAX / (WARP * 16) }; /* of the largest head, per lane */

/* Lanes, a power of two, and packs per lane that hold so many packs: one per lane, and PACKS_MOST where a warp has too few lanes
 * for that. */
template <int PACKS_MOST, typename F> static void by_head_lanes(int64_t packs, F run) {
    using std::integral_constant;
    if (packs <= 4) run(integral_constant<int, 4>{}, integral_constant<int, 1>{});
    else if (packs <= 8) run(integral_constant<int, 8>{}, integral_constant<int, 1>{});
    else if (packs <= 16) run(integral_constant<int, 16>{}, integral_constant<int, 1>{});
    else if (packs <= 32) run(integral_constant<int, 32>{}, integral_constant<int, 1>{});
    else run(integral_constant<int, 32>{}, integral_constant<int, PACKS_MOST>{});
}

/* Sums of the groups of lanes, in order, to two lines: for the gains of q and k, or for the halves of one. NULL: not wanted.
 * Pack k of a lane is number lane + k LANES of the `width` elements of a line. `parts` is shared memory for a pack of every
 * thread; all threads of the block come here. */
template <typename T, int LANES, int PACKS>
DEVICE void give_lines(float *const (&lines)[2], const float (&sums)[2][PACKS][pack<T>::N], int width, float *parts) {
    enum { N = pack<T>::N, GROUPS = HEAD_THREADS / LANES };
    int group = threadIdx.x / LANES, lane = threadIdx.x % LANES;
#pragma unroll
    for (int which = 0; which < 2; which++)
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            if (!lines[which]) continue;
            __syncthreads(); /* parts are read to the end of the turn before */
#pragma unroll
            for (int e = 0; e < N; e++) parts[(e * GROUPS + group) * LANES + lane] = sums[which][k][e];
            __syncthreads();
            for (int c = threadIdx.x; c < LANES * N; c += HEAD_THREADS) {
                int column = k * LANES * N + c;
                float total = 0;
                for (int other = 0; other < GROUPS; other++) total += parts[(c % N * GROUPS + other) * LANES + c / N];
                if (column < width) lines[which][column] = total;
            }
        }
}
