#pragma once
/* copy_async.cuh - copies from memory into shared memory that pass by the registers: the instructions as functions. */
#include <stdint.h>

/* Addresses inside shared memory are 32 bits wide. */
__device__ inline uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* Copies past the registers; zeros where there is nothing (the address must be valid all the same). */
__device__ inline void copy_async_16(uint32_t to, const void *from, bool there) {
    int n_bytes = there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(n_bytes) : "memory");
}
__device__ inline void copy_async_4(uint32_t to, const void *from, bool there) {
    int n_bytes = there ? 4 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(n_bytes) : "memory");
}
__device__ inline void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* Until at most PENDING of this thread's groups are on their way. */
template <int PENDING> __device__ inline void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
