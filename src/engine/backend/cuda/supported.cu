/* supported.cu - is there code for the GPU that is current? Asks for a kernel's attributes, which fails where none of the
 * compiled ones fits. */
#include "backend/cuda/launch.h"

static __global__ void any_kernel() {}

extern "C" bool launch_supported(void) {
    cudaFuncAttributes a;
    bool found = cudaFuncGetAttributes(&a, any_kernel) == cudaSuccess;
    cudaGetLastError();
    return found;
}
