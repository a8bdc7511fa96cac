/* work_fp8.c - scratch of ops that round by themselves: none on a GPU, which keeps the 16-bit numbers in registers. */
#include "backend/cuda/work.h"

const cuda_work cuda_work_SWIGLU8 = {cuda_no_work, NO_PRODUCTS};
const cuda_work cuda_work_RMSNORM8 = {cuda_no_work, NO_PRODUCTS};
