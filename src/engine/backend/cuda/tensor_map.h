#pragma once
/* tensor_map.h - how the TMA unit is told of a tensor in memory, of 16-bit numbers or of bytes (LAUNCH_E4M3): (sequences, rows,
 * columns), columns behind each other. A box that reaches behind a dimension is filled with zeros, or cut where it is stored. */
#include "backend/cuda/launch.h"
#include <cuda.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tensor_box {
    const void *data; /* aligned to 16 bytes; rows are a multiple of 16 bytes long */
    int64_t columns, rows, sequences;
    int box_columns, box_rows; /* a row of the box has 32, 64 or 128 bytes; in shared memory it is as long */
    launch_type type;
} tensor_box;
/* Rows of a box lie swizzled: packs of 16 bytes change places, so that packs above each other are in different banks. A box in
 * shared memory begins at a multiple of 1024 bytes. */
CUtensorMap tensor_map_make(const tensor_box *b);

#ifdef __cplusplus
}
#endif
