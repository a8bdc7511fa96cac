#pragma once
/* launch.h - the seam between C and CUDA C: one launcher per kernel, plain numbers and device pointers.
 *
 * Rules for every launcher
 *   - Counts are 64 bits; a count of 0 launches nothing.
 *   - Rows are contiguous and 16-byte aligned at their start only where the row's bytes are a multiple of 16: kernels that
 *     load vectors look first.
 *   - Sums are fp32 (fp64 where said) in a fixed shape that depends on the operand shapes alone. */
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* E4M3 is for the operands of products alone; by_type does not know it. */
typedef enum launch_type { LAUNCH_F32, LAUNCH_BF16, LAUNCH_F16, LAUNCH_E4M3, LAUNCH_TYPE_COUNT } launch_type;

bool launch_supported(void); /* has this build code for the current GPU? */

#ifdef __cplusplus
}
#endif
