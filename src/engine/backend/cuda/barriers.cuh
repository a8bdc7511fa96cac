#pragma once
/* barriers.cuh - barriers in shared memory that count bytes, the copies that report to them, and clusters of blocks that see
 * each other's shared memory: instructions of compute capability 9.0 and later, as functions.
 *
 * BARRIERS_HERE says whether the code being compiled has them. */
#include <stdint.h>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define BARRIERS_HERE 1
#else
#define BARRIERS_HERE 0
#endif

#if BARRIERS_HERE

/* ---- barriers in shared memory ---------------------------------------------------------------------------------- */

__device__ inline void barrier_init(uint32_t barrier, int n_arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(n_arrivals) : "memory");
}
/* After the last barrier_init, before __syncthreads: the TMA unit sees them too. */
__device__ inline void barriers_publish() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/* Arrives, and the phase ends only when so many bytes have come as well. */
__device__ inline void barrier_arrive_expecting(uint32_t barrier, uint32_t n_bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(n_bytes) : "memory");
}
#define BARRIER_WAIT(NAME, ORDER)                                                           \
    __device__ inline void NAME(uint32_t barrier, uint32_t parity) {                        \
        uint32_t done;                                                                      \
        do {                                                                                \
            asm volatile("{\n"                                                              \
                         ".reg .pred p;\n"                                                  \
                         "mbarrier.try_wait.parity" ORDER ".shared::cta.b64 p, [%1], %2;\n" \
                         "selp.u32 %0, 1, 0, p;\n"                                          \
                         "}\n"                                                              \
                         : "=r"(done)                                                       \
                         : "r"(barrier), "r"(parity)                                        \
                         : "memory");                                                       \
        } while (!done);                                                                    \
    }
/* Until the phase of this parity has ended; a new barrier counts as having ended parity 1. */
BARRIER_WAIT(barrier_wait, "")
/* The same where other blocks of the cluster wrote what was waited for. */
BARRIER_WAIT(barrier_wait_cluster, ".acquire.cluster")
#undef BARRIER_WAIT

/* So many threads of the block, whole warps, come here; barriers 1 to 15 are for this. */
__device__ inline void threads_meet(int barrier, int n_threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(n_threads) : "memory");
}

/* The same without waiting for the others. */
__device__ inline void threads_come(int barrier, int n_threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(n_threads) : "memory");
}

/* A ring of STAGES buffers between the producer and the consumers: which one is next, and in which round. */
template <int STAGES> struct ring_place {
    uint32_t stage = 0, parity = 0;
    __device__ void advance() {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

/* The same of as many buffers as is known when the kernel runs. */
struct stage_place {
    int stage = 0;
    uint32_t parity = 0;
    __device__ void advance(int n_stages) {
        if (++stage == n_stages) stage = 0, parity ^= 1;
    }
};

/* n_bytes behind each other, into this block; both addresses and n_bytes are multiples of 16. */
__device__ inline void copy_bulk(uint32_t to, const void *from, uint32_t n_bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "r"(n_bytes), "r"(barrier)
                 : "memory");
}

/* The way back, n_bytes of shared memory into memory, or added there as floats. In groups of a thread, as copy_bulk_commit says. */
__device__ inline void store_bulk(void *to, uint32_t from, uint32_t n_bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(to)),
                 "r"(from), "r"(n_bytes)
                 : "memory");
}
__device__ inline void add_bulk(float *to, uint32_t from, uint32_t n_bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(
                     __cvta_generic_to_global(to)),
                 "r"(from), "r"(n_bytes)
                 : "memory");
}

/* Copies out of shared memory go in groups of a thread. What threads stored there is seen by them after fence_bulk. */
__device__ inline void fence_bulk() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ inline void copy_bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/* Until at most PENDING of this thread's groups are still to be read from shared memory. */
template <int PENDING> __device__ inline void copy_bulk_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

/* Until all of them are in memory. */
__device__ inline void copy_bulk_wait_all() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

/* ---- turns of blocks --------------------------------------------------------------------------------------------- */

/* One thread at a time: what bulk copies of this thread have written is there for whoever sees the turn. The fence between the two
 * kinds of access is of global memory alone: without `.global` it waits for all that the GPU has under way. */
__device__ inline void turn_pass(int32_t *turn, int32_t next) {
    asm volatile("fence.proxy.async.global;\n"
                 "st.release.gpu.global.b32 [%0], %1;" ::"l"(__cvta_generic_to_global(turn)),
                 "r"(next)
                 : "memory");
}
__device__ inline void turn_await(const int32_t *turn, int32_t wanted) {
    int32_t seen;
    do
        asm volatile("ld.acquire.gpu.global.b32 %0, [%1];"
                     : "=r"(seen)
                     : "l"(__cvta_generic_to_global(turn))
                     : "memory");
    while (seen != wanted);
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

/* ---- clusters --------------------------------------------------------------------------------------------------- */

__device__ inline uint32_t cluster_rank() {
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
__device__ inline uint32_t cluster_size() {
    uint32_t n;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(n));
    return n;
}
/* Every thread of every block of the cluster comes here. */
__device__ inline void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;\n"
                 "barrier.cluster.wait.acquire;" ::
                     : "memory");
}
/* The same, where what was stored in shared memory is all that others are to see: cluster_sync is a fence over the memory of the
 * whole GPU, which takes microseconds while others use it. */
__device__ inline void cluster_sync_shared() {
#if __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1208
    asm volatile("fence.release.sync_restrict::shared::cta.cluster;\n"
                 "barrier.cluster.arrive.relaxed;\n"
                 "barrier.cluster.wait;\n"
                 "fence.acquire.sync_restrict::shared::cluster.cluster;" ::
                     : "memory");
#else
    cluster_sync();
#endif
}
/* The same in two halves with other work between them, for barriers alone: after barriers_publish those of all blocks are there. What else
 * was written is not seen; a release would wait for all memory of the GPU. */
__device__ inline void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
/* Where that block of the cluster has what lies at `address` here. */
__device__ inline uint32_t cluster_address(uint32_t address, uint32_t rank) {
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
/* Floats of a block of the cluster, at such an address. */
__device__ inline float2 cluster_load2(uint32_t address) {
    float2 v;
    asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address) : "memory");
    return v;
}
__device__ inline float4 cluster_load4(uint32_t address) {
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}
/* Two or four floats for a block of the cluster; its barrier counts their bytes when they are there. */
__device__ inline void cluster_send(uint32_t to, float2 v, uint32_t barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to),
                 "f"(v.x), "f"(v.y), "r"(barrier)
                 : "memory");
}
__device__ inline void cluster_send(uint32_t to, float4 v, uint32_t barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
                 "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier)
                 : "memory");
}

#endif
