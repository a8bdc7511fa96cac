#pragma once
/* scatter_sort.h - the cut and the scratch of the sort in scatter.cu. C, C++ and no CUDA: the plan counts scratch with it. */
#include <stddef.h>
#include <stdint.h>

/* The ids are sorted with their places, SCATTER_BITS at a time, by blocks of SCATTER_TILE ids. */
enum { SCATTER_BITS = 9, SCATTER_BINS = 1 << SCATTER_BITS, SCATTER_TILE = 1024 };
static inline int64_t scatter_tiles(int64_t n) { return (n + SCATTER_TILE - 1) / SCATTER_TILE; }
/* Two lists of (id, place), taking turns, and how many ids of each tile fall into each bin. */
static inline size_t scatter_work_bytes(int64_t n) {
    return (size_t)(4 * n + SCATTER_BINS * scatter_tiles(n)) * sizeof(int32_t);
}
