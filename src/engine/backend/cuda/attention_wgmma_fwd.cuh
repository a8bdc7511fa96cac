#pragma once
/* attention_wgmma_fwd.cuh - what the forwards of attention in 16 and in 8 bits have in common: the barriers between the warp group that fetches
 * and those that multiply. */
#include "backend/cuda/attention_wgmma.cuh"

namespace attention_wgmma {

/* Of a tile of queries, and of each stage of the rings of keys and values: that it is there, and that all have read it. */
template <int STAGES> struct forward_barriers {
    enum {
        Q_FULL,
        Q_EMPTY,
        K_FULL,
        K_EMPTY = K_FULL + STAGES,
        V_FULL = K_EMPTY + STAGES,
        V_EMPTY = V_FULL + STAGES,
        N_BARRIERS = V_EMPTY + STAGES
    };
    uint32_t barriers;
    __device__ uint32_t barrier(int which) const { return barriers + which * 8; }
#if WGMMA_HERE
    /* By one thread, before __syncthreads. */
    __device__ void init(int n_consumer_warps) const {
        barrier_init(barrier(Q_FULL), 1);
        barrier_init(barrier(Q_EMPTY), n_consumer_warps);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(barrier(K_FULL + i), 1);
            barrier_init(barrier(K_EMPTY + i), n_consumer_warps);
            barrier_init(barrier(V_FULL + i), 1);
            barrier_init(barrier(V_EMPTY + i), n_consumer_warps);
        }
        barriers_publish();
    }
#endif
};

} // namespace attention_wgmma
