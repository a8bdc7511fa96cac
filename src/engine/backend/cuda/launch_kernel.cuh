#pragma once
/* launch_kernel.cuh - one way to launch a kernel that may need much shared memory. */
#include <cuda_runtime.h>
#include <stdint.h>

/* More than 48 KiB of shared memory must be asked for; the attribute belongs to the kernel, so asking again is free. */
template <typename... P, typename... A>
static void launch_kernel(void (*kernel)(P...), int64_t n_blocks, int n_threads, size_t shared_bytes, cudaStream_t s,
                          A... arguments) {
    if (n_blocks == 0) return;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes);
    kernel<<<(unsigned)n_blocks, n_threads, shared_bytes, s>>>(arguments...);
}
