/* tensor_map.c - tensors for the TMA unit. */
#include "backend/cuda/tensor_map.h"

#include "base/base.h"

CUtensorMap tensor_map_make(const tensor_box *b) {
    CUtensorMap map;
    cuuint64_t n = b->type == LAUNCH_E4M3 ? 1 : 2; /* bytes of a number */
    cuuint64_t dims[] = {(cuuint64_t)b->columns, (cuuint64_t)b->rows, (cuuint64_t)b->sequences};
    cuuint64_t strides[] = {(cuuint64_t)b->columns * n,
                            (cuuint64_t)(b->columns * b->rows) * n}; /* bytes, of all but the first */
    cuuint32_t box[] = {(cuuint32_t)b->box_columns, (cuuint32_t)b->box_rows, 1}, step[] = {1, 1, 1};
    int row_bytes = b->box_columns * (int)n;
    CUtensorMapSwizzle swizzle = row_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                 : row_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                   : CU_TENSOR_MAP_SWIZZLE_32B;
    CUtensorMapDataType type = b->type == LAUNCH_E4M3   ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                               : b->type == LAUNCH_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                        : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    CUresult rc =
        cuTensorMapEncodeTiled(&map, type, 3, (void *)b->data, dims, strides, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                               swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    ASSERT(rc == CUDA_SUCCESS && (row_bytes == 128 || row_bytes == 64 || row_bytes == 32));
    return map;
}
