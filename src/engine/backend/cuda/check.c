/* check.c - CUDA's errors in words. The name of the call says what was tried; its arguments say nothing to a user. */
#include "backend/cuda/check.h"

#include <string.h>

static int name_length(const char *call) {
    const char *end = strchr(call, '(');
    return end ? (int)(end - call) : (int)strlen(call);
}

status cuda_error(cudaError_t e, const char *call, const char *file, int line, const char *func) {
    cudaGetLastError(); /* so that one that is over is not found again */
    status code = e == cudaErrorMemoryAllocation ? ERR_FIT : ERR_RUN;
    return error_set(code, file, line, func, "the GPU: %.*s: %s (%s)", name_length(call), call, cudaGetErrorString(e),
                     cudaGetErrorName(e));
}

status cuda_driver_error(CUresult e, const char *call, const char *file, int line, const char *func) {
    const char *text = NULL;
    if (cuGetErrorString(e, &text) != CUDA_SUCCESS || !text) text = "an error the driver has no words for";
    return error_set(ERR_RUN, file, line, func, "the GPU: %.*s: %s (%d)", name_length(call), call, text, (int)e);
}

status cublas_error(cublasStatus_t e, const char *call, const char *file, int line, const char *func) {
    return error_set(ERR_RUN, file, line, func, "cuBLAS: %.*s: %s (%d)", name_length(call), call,
                     cublasLtGetStatusString(e), (int)e);
}
