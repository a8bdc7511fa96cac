/* tensor_map.c - tensors for the TMA unit. */
#include "backend/cuda/tensor_map.h"

#include "base/base.h"

static CUtensorMapDataType data_type(launch_type t) {
    switch (t) {
    case LAUNCH_E4M3: return CU_TENSOR_MAP_DATA_TYPE_UINT8;
    case LAUNCH_BF16: return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    default: ASSERT(t == LAUNCH_F16); return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    }
}

CUtensorMap tensor_map_make(const tensor_box *b) {
    CUtensorMap map;
    const int width = b->type == LAUNCH_E4M3 ? 1 : 2, row_bytes = b->box_columns * width;
    cuuint64_t dims[] = {(cuuint64_t)b->columns, (cuuint64_t)b->rows, (cuuint64_t)b->sequences};
    cuuint64_t strides[] = {(cuuint64_t)(b->columns * width),
                            (cuuint64_t)(b->columns * b->rows * width)}; /* bytes, of all but the first */
    cuuint32_t box[] = {(cuuint32_t)b->box_columns, (cuuint32_t)b->box_rows, 1}, step[] = {1, 1, 1};
    CUtensorMapSwizzle swizzle = row_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                 : row_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                   : CU_TENSOR_MAP_SWIZZLE_32B;
    CUresult rc = cuTensorMapEncodeTiled(&map, data_type(b->type), 3, (void *)b->data, dims, strides, box, step,
                                         CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                         CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    ASSERT(rc == CUDA_SUCCESS && (row_bytes == 128 || row_bytes == 64 || row_bytes == 32));
    return map;
}
