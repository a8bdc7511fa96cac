#pragma once
/* cuda.h - private to the CUDA backend: its context, and the C side of every kernel.
 *
 * The plug-in has two halves. Files in C know the program: they take a kernel_call apart and hand plain numbers and
 * pointers to a launcher. Files in CUDA C (*.cu) hold the launchers and kernels and know nothing of programs; launch.h is
 * all they share. A launcher queues its work on the stream it is given and returns; it never allocates, never waits and
 * uses no atomics on floating-point numbers, so the same call gives the same bits every time. */
#include "backend/backend.h"
#include "backend/cuda/launch.h"

#include <cublasLt.h>

struct gemm_plans;

struct backend_context {
    cudaStream_t stream; /* of the kernels called next */
    stream selected;     /* which of the program's streams that is */
    int device;          /* CUDA ordinal */
    int n_multiprocessors;
    int capability;    /* 90: compute capability 9.0 */
    bool tf32;         /* fp32 products may run on tensor cores with 10 bits of mantissa */
    const void *block; /* the largest of memory_open, or NULL: read to clear the L2 cache */
    size_t n_block;    /* its bytes */
    cublasLtHandle_t blas;
    struct gemm_plans *gemms; /* gemm.c: what was chosen for each shape */
    struct queues *queues;    /* queues.c: streams, events, recorded sections */
    struct links *links;      /* links.c: groups of ranks; NULL: this rank is alone, or its messages are the host's */
};

/* One per op: unpack and launch. An op without one does not link. */
#define COMM_OP(...)
#define CPU_OP(...)
#define OP(id, ...) void cuda_kernel_##id(backend_context *c, const kernel_call *k);
#include "program/ops.def"
#undef OP

extern const kernel_fn cuda_kernels[OP_COUNT];

/* Ops of one kind, at most so many, that touch nothing of each other: many small tensors in few launches. */
enum { CALLS_MOST = 64 };
void cuda_kernels_GRAD_SUMSQ(backend_context *c, const kernel_call *calls, size_t n);
void cuda_kernels_ADAMW(backend_context *c, const kernel_call *calls, size_t n);

launch_type launch_type_of(dtype t);
