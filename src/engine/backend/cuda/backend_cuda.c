/* backend_cuda.c - one NVIDIA GPU as a device: its memory, the table of kernels, and the plug-in's one symbol.
 *
 * One context is one GPU of this process. The device arena is one cudaMalloc; memory of the host stays the host's and is
 * pinned, so that copies run beside kernels.
 * Refuses: a driver older than the runtime, a GPU that none of the compiled kernels fits, several devices per process. */
#include "backend/cuda/check.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/gemm.h"
#include "backend/cuda/gpu_checks.h"
#include "backend/cuda/launch_gemm.h"
#include "backend/cuda/links.h"
#include "backend/cuda/queues.h"
#include "backend/plugin.h"

#include <stdlib.h>

launch_type launch_type_of(dtype t) {
    switch (t) {
    case DTYPE_F32: return LAUNCH_F32;
    case DTYPE_BF16: return LAUNCH_BF16;
    case DTYPE_F16: return LAUNCH_F16;
    default: ASSERT(t == DTYPE_F8E4M3); return LAUNCH_E4M3;
    }
}

/* ---- which GPU --------------------------------------------------------------------------------------------------- */

static int cuda_count(void) {
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    return n;
}

static status cuda_describe(int device, device_info *out) {
    struct cudaDeviceProp p;
    int n = 0;
    size_t free_bytes, total_bytes;
    *out = (device_info){0};
    CUDA_TRY(cudaRuntimeGetVersion(&out->runtime));
    if (cudaDriverGetVersion(&out->driver) != cudaSuccess) out->driver = 0;
    TRY(gpu_check_driver(out->driver, out->runtime));
    cudaError_t counted = cudaGetDeviceCount(&n);
    if (counted != cudaErrorNoDevice) CUDA_TRY(counted);
    TRY(gpu_check_index(device, n));
    CUDA_TRY(cudaGetDeviceProperties(&p, device));
    out->capability = p.major * 10 + p.minor;
    out->n_multiprocessors = p.multiProcessorCount;
    out->memory = p.totalGlobalMem;
    memcpy(out->id, &p.uuid, sizeof out->id);
    snprintf(out->name, sizeof out->name, "%.63s", p.name);
    cudaError_t opened = cudaSetDevice(device); /* makes the context */
    if (opened == cudaSuccess) opened = cudaMemGetInfo(&free_bytes, &total_bytes);
    if (opened == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        return gpu_error_context(device, out->name, out->memory);
    }
    CUDA_TRY(opened);
    TRY(gpu_check_kernels(device, out->name, out->capability, launch_supported()));
    out->free_memory = free_bytes;
    return OK;
}

/* ---- open and close ---------------------------------------------------------------------------------------------- */

static void cuda_close(backend_context *c) {
    if (!c) return;
    cudaSetDevice(c->device);
    cudaDeviceSynchronize();
    links_close(c);
    gemm_close(c);
    queues_close(c);
    if (c->blas) cublasLtDestroy(c->blas);
    free(c);
}

static status cuda_open(backend_context **out, const backend_options *o) {
    device_info info;
    TRY(cuda_describe(o->gpu.index, &info));
    status rc = OK;
    backend_context *c = mem_alloc(sizeof *c);
    *c = (backend_context){.device = o->gpu.index,
                           .n_multiprocessors = info.n_multiprocessors,
                           .capability = info.capability,
                           .tf32 = o->gpu.tf32};
    cublasStatus_t made = cublasLtCreate(&c->blas);
    if (made != CUBLAS_STATUS_SUCCESS) {
        rc = cublas_error(made, "cublasLtCreate", __FILE__, __LINE__, __func__);
        goto fail;
    }
    TRY_GOTO(rc, queues_open(c), fail);
    TRY_GOTO(rc, gemm_open(c, NULL), fail);
    *out = c;
    return OK;
fail:
    cuda_close(c);
    return rc;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static status cuda_memory_open(backend_context *c, tier t, size_t n_bytes, void **out) {
    size_t free_bytes = 0, total_bytes = 0;
    ASSERT(t == TIER_DEVICE); /* a process drives one GPU: place_tier */
    cudaError_t e = cudaMalloc(out, n_bytes);
    if (e == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        CUDA_TRY(cudaMemGetInfo(&free_bytes, &total_bytes));
        return gpu_error_memory(n_bytes, free_bytes, total_bytes);
    }
    CUDA_TRY(e);
    launch_fill(c->stream, *out, n_bytes); /* for the products of gemm_prepare */
    CUDA_TRY(cudaStreamSynchronize(c->stream));
    if (n_bytes > c->n_block) c->block = *out, c->n_block = n_bytes;
    return OK;
}

static void cuda_memory_close(backend_context *c, tier t, void *memory, size_t n_bytes) {
    if (memory == c->block) c->block = NULL, c->n_block = 0;
    cudaFree(memory);
}

static status cuda_pin(backend_context *c, void *memory, size_t n_bytes) {
    char size[32];
    cudaError_t e = cudaHostRegister(memory, n_bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (e == cudaSuccess) return OK;
    cudaGetLastError();
    return ERR(ERR_FIT,
               "%s of host memory cannot be pinned for the GPU: %s; the limit on locked memory (ulimit -l) or the "
               "memory of this machine is too small",
               str_format_bytes(size, n_bytes), cudaGetErrorString(e));
}

static void cuda_unpin(backend_context *c, void *memory) { cudaHostUnregister(memory); }

/* From and to memory that need not be pinned; these wait for themselves and for nothing else. A copy from memory that is
 * not pinned returns when its bytes have left that memory, which is before they have arrived: hence the second wait. */
static status cuda_write(backend_context *c, void *device_dst, const void *host_src, size_t n_bytes) {
    CUDA_TRY(cudaSetDevice(c->device));
    CUDA_TRY(cudaMemcpy(device_dst, host_src, n_bytes, cudaMemcpyHostToDevice));
    CUDA_TRY(cudaStreamSynchronize(cudaStreamLegacy));
    return OK;
}

static status cuda_read(backend_context *c, void *host_dst, const void *device_src, size_t n_bytes) {
    CUDA_TRY(cudaSetDevice(c->device));
    CUDA_TRY(cudaMemcpy(host_dst, device_src, n_bytes, cudaMemcpyDeviceToHost));
    return OK;
}

static status cuda_clear(backend_context *c, void *device_dst, size_t n_bytes) {
    CUDA_TRY(cudaSetDevice(c->device));
    CUDA_TRY(cudaMemset(device_dst, 0, n_bytes));
    CUDA_TRY(cudaStreamSynchronize(cudaStreamLegacy));
    return OK;
}

static uint64_t cuda_used_bytes(const backend_context *c) {
    size_t free_bytes, total_bytes;
    cudaSetDevice(c->device);
    return cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess ? total_bytes - free_bytes : 0;
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

static const char *cuda_kernel_name(dtype t) { return t == DTYPE_F32 ? "cuBLASLt fp32" : "cuBLASLt tensor cores"; }

const kernel_fn cuda_kernels[OP_COUNT] = {
#define COMM_OP(...)
#define CPU_OP(...)
#define OP(id, ...) [OP_##id] = cuda_kernel_##id,
#include "program/ops.def"
#undef OP
};

__attribute__((visibility("default"))) const backend_plugin *ralo_backend_plugin(void) {
    static backend b;
    static backend_plugin p;
    b = (backend){
        .name = "cuda",
        .open = cuda_open,
        .close = cuda_close,
        .memory_open = cuda_memory_open,
        .memory_close = cuda_memory_close,
        .write = cuda_write,
        .read = cuda_read,
        .clear = cuda_clear,
        .synchronize = queues_check,
        .queues = queues_table(),
        .links = links_table(),
        .pin = cuda_pin,
        .unpin = cuda_unpin,
        .prepare = gemm_prepare,
        .work_bytes = cuda_work_bytes,
        .kernel_name = cuda_kernel_name,
        .kernels = cuda_kernels,
        .alignment = CUDA_ALIGNMENT,
        .discrete = true,
        .describe = cuda_describe,
        .count = cuda_count,
        .used_bytes = cuda_used_bytes,
    };
    plugin_stamp(p.stamp);
    p.backend = &b;
    p.take_error = error_take;
    p.set_log_sink = log_set_sink;
    p.set_log_level = log_set_level;
    return &p;
}
