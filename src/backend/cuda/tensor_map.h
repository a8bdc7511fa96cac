#pragma once
/* tensor_map.h - how the TMA unit is told of a tensor of 16- or 8-bit numbers in memory: (sequences, rows, columns), columns behind each
 * other. A box that reaches behind a dimension is filled with zeros, or cut where it is stored. */
#include "backend/cuda/launch.h"
#include <cuda.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tensor_box {
    const void *data; /* aligned to 16 bytes; rows are a multiple of 16 bytes long */
    int64_t columns, rows, sequences;
    int box_columns, box_rows; /* box_columns: 16, 32 or 64, 128 of e4m3; a row of the box in shared memory is as long */
    launch_type type; /* BF16, F16 or E4M3 */
} tensor_box;
/* Rows of a box lie swizzled: packs of 16 bytes change places, so that packs above each other are in different banks. A box in
 * shared memory begins at a multiple of 1024 bytes. */
CUtensorMap tensor_map_make(const tensor_box *b);

#ifdef __cplusplus
}
#endif
