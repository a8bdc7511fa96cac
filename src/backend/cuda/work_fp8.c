/* work_fp8.c - scratch of SWIGLU8: none on a GPU, which keeps the 16-bit numbers in registers. */
#include "backend/cuda/work.h"

const cuda_work cuda_work_SWIGLU8 = {cuda_no_work, NO_PRODUCTS};
