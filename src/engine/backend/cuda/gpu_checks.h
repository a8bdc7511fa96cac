#pragma once
/* gpu_checks.h - which drivers and GPUs are refused, and in which words; no CUDA in here, so that a test can ask without a
 * GPU. Every refusal says what to do. Versions are CUDA's numbers: 13010 is 13.1. */
#include "base/base.h"

/* driver 0: none is running. */
status gpu_check_driver(int driver, int runtime);
status gpu_check_index(int device, int n_devices);
/* capability 90: compute capability 9.0; compiled: has this build kernels for it? */
status gpu_check_kernels(int device, const char *name, int capability, bool compiled);
/* There is no room for the driver's context of this process. */
status gpu_error_context(int device, const char *name, uint64_t total);
/* The plan's arena was refused. */
status gpu_error_memory(uint64_t needed, uint64_t free_bytes, uint64_t total);
