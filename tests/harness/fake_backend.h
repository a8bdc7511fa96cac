#pragma once
/* fake_backend.h - a backend for tests of the rooms above it: plain memory, the thread pool, and a few kernels whose
 * results are known without thinking. Kernels ignore what the op means elsewhere.
 *
 *     ADD   y = a + b, fp32                       GELU  y = log(x), fp32: NaN for negative numbers
 *     COPY  y = x, bytes                          SWIGLU  allocates once in each of FAKE_TASKS pool tasks, on more
 *                                                         than one thread
 *     CAST  allocates once on the calling thread  ROPE_TABLE  table = 1, fp32
 * All others are NULL. */
#include "backend/backend.h"

enum { FAKE_TASKS = 64, FAKE_WORK_BYTES = 128 }; /* GELU asks for FAKE_WORK_BYTES of scratch, the others for none */
const backend *fake_backend(void);
void fake_allocate(void); /* malloc and free that no compiler removes */
/* Values one after the other, 64-byte aligned, and the arenas that long. Views are left to their roots. */
void fake_layout(program *p);
