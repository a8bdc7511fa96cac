/* tensor_map.c - tensors for the TMA unit. */
#include "backend/cuda/tensor_map.h"

#include "base/base.h"

CUtensorMap tensor_map_make(const tensor_box *b) {
    CUtensorMap map;
    cuuint64_t dims[] = {(cuuint64_t)b->columns, (cuuint64_t)b->rows, (cuuint64_t)b->sequences};
    cuuint64_t strides[] = {(cuuint64_t)b->columns * 2,
                            (cuuint64_t)(b->columns * b->rows) * 2}; /* bytes, of all but the first */
    cuuint32_t box[] = {(cuuint32_t)b->box_columns, (cuuint32_t)b->box_rows, 1}, step[] = {1, 1, 1};
    CUtensorMapSwizzle swizzle = b->box_columns == 64   ? CU_TENSOR_MAP_SWIZZLE_128B
                                 : b->box_columns == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                        : CU_TENSOR_MAP_SWIZZLE_32B;
    CUtensorMapDataType type =
        b->type == LAUNCH_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    CUresult rc =
        cuTensorMapEncodeTiled(&map, type, 3, (void *)b->data, dims, strides, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                               swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    ASSERT(rc == CUDA_SUCCESS && (b->box_columns == 64 || b->box_columns == 32 || b->box_columns == 16));
    return map;
}
