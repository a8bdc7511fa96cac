#pragma once
/* lora_tiles.cuh - tiles of the kernels of adapters that are fetched by the TMA unit: where it puts what.
 *
 * A tile of wide rows is boxes of 64 columns beside each other, a row of 128 bytes in each. A tile of narrow rows is one box of
 * 16, 32 or 64 columns. In both the packs of 16 bytes of eight rows change places (tensor_map.h). */
#include "backend/cuda/launch_kernel.cuh"
#include "backend/cuda/launch_lora.h"
#include "backend/cuda/wgmma.cuh"

enum { LORA_BOX_COLUMNS = LAUNCH_LORA_BOX, LORA_BOX_ROW = LORA_BOX_COLUMNS * 2 };

/* Where the pack of columns `column` to column + 7 of a row lies in a tile of wide rows. */
template <int ROWS> static __device__ inline uint32_t wide_place(int row, int column) {
    uint32_t pack = column % LORA_BOX_COLUMNS / 8 ^ row % 8;
    return (uint32_t)(column / LORA_BOX_COLUMNS * ROWS + row) * LORA_BOX_ROW + pack * 16;
}
/* The same in one box of WIDTH columns: the TMA unit changes places by bits 7 and up of the address. */
template <int WIDTH> static __device__ inline uint32_t narrow_place(int row, int column) {
    uint32_t place = (uint32_t)(row * WIDTH + column) * 2;
    return place ^ (place >> 7 & (WIDTH / 8 - 1)) << 4;
}
