#pragma once
/* chain.cuh - kernels that start before the one in front of them has ended.
 *
 * A decode step is hundreds of kernels of few microseconds each; what a launch costs between two of them is then as much as the
 * kernels. In a recorded section a chained kernel is put on the multiprocessors as soon as those of the kernel in front have
 * said chain_next, and waits there.
 *
 * Rules of a chained kernel
 *   - Every thread calls chain_wait, whatever else it does: then all kernels in front are done and seen.
 *   - Before that it writes nothing, and reads nothing that kernels of the section write unless those never say chain_next: so
 *     parameters, inputs, and of caches what earlier runs left there.
 *   - Kernels that write parameters never say chain_next: theirs are over before any kernel behind them starts. */
#include <cuda_runtime.h>

__device__ inline void chain_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ inline void chain_next() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* For kernels that read nothing ahead. */
__device__ inline void chain_enter() {
    chain_next();
    chain_wait();
}

/* May the next kernel of this stream be chained? Only in a recorded section, behind one kernel and nothing else: what other
 * queues do before it must be over. */
static inline bool chain_possible(cudaStream_t s) {
    cudaStreamCaptureStatus recording;
    const cudaGraphNode_t *before = NULL;
    const cudaGraphEdgeData *edges = NULL;
    size_t n_before = 0;
    cudaGraphNodeType kind;
    int device, major = 0;
#if CUDART_VERSION >= 13000
    cudaError_t rc = cudaStreamGetCaptureInfo(s, &recording, NULL, NULL, &before, &edges, &n_before);
#else
    cudaError_t rc = cudaStreamGetCaptureInfo_v3(s, &recording, NULL, NULL, &before, &edges, &n_before);
#endif
    if (rc != cudaSuccess) return false;
    if (recording != cudaStreamCaptureStatusActive || n_before != 1) return false;
    if (cudaGraphNodeGetType(before[0], &kind) != cudaSuccess || kind != cudaGraphNodeTypeKernel) return false;
    if (cudaGetDevice(&device) != cudaSuccess) return false;
    return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major >= 9;
}

/* Blocks of one column of the grid, cluster_y of them, form a cluster; 1: none does. */
template <typename... P, typename... A>
static void launch_chained(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, unsigned cluster_y,
                           cudaStream_t s, A... arguments) {
    if (grid.x == 0 || grid.y == 0) return;
    cudaLaunchAttribute attributes[2];
    cudaLaunchConfig_t c = {};
    c.gridDim = grid, c.blockDim = block, c.dynamicSmemBytes = shared_bytes, c.stream = s, c.attrs = attributes;
    if (cluster_y > 1) {
        attributes[c.numAttrs].id = cudaLaunchAttributeClusterDimension;
        attributes[c.numAttrs].val.clusterDim.x = attributes[c.numAttrs].val.clusterDim.z = 1;
        attributes[c.numAttrs++].val.clusterDim.y = cluster_y;
    }
    if (chain_possible(s)) {
        attributes[c.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[c.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes);
    /* A multiprocessor divides its memory between L1 and shared for all kernels on it: one that wants another division waits until
     * the others have left. */
    cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    cudaLaunchKernelEx(&c, kernel, P(arguments)...);
}
