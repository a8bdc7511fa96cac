#pragma once
/* check.h - private to the CUDA backend: what CUDA's calls return, as ralo's errors. */
#include "base/base.h"

#include <cublasLt.h>
#include <cuda.h>
#include <cuda_runtime_api.h>

status cuda_error(cudaError_t e, const char *call, const char *file, int line, const char *func);
status cuda_driver_error(CUresult e, const char *call, const char *file, int line, const char *func);
status cublas_error(cublasStatus_t e, const char *call, const char *file, int line, const char *func);

#define CUDA_TRY(call)                                                                                 \
    do {                                                                                               \
        cudaError_t cuda_rc_ = (call);                                                                 \
        if (cuda_rc_ != cudaSuccess) return cuda_error(cuda_rc_, #call, __FILE__, __LINE__, __func__); \
    } while (0)
#define CUDA_DRIVER_TRY(call)                                                                                  \
    do {                                                                                                       \
        CUresult cuda_rc_ = (call);                                                                            \
        if (cuda_rc_ != CUDA_SUCCESS) return cuda_driver_error(cuda_rc_, #call, __FILE__, __LINE__, __func__); \
    } while (0)
