#pragma once
/* lora_units.h - how lora_bwd_tiles.cu cuts its work: one text for the kernel, and for the plan, which knows no CUDA. */
#include <stdint.h>

enum {
    LORA_BWD_RANK = 32, /* the largest */
    LORA_UNIT_TOKENS = 64,
    LORA_CHUNK_COLUMNS = 256,
    LORA_STRIPE_CHUNKS = 4,
    LORA_BLOCKS = 132 /* the multiprocessors of an H100; on other devices blocks take turns */
};

#ifdef __CUDACC__
#define LORA_COUNT static inline __host__ __device__
#else
#define LORA_COUNT static inline
#endif
/* Stripes of a part: up to LORA_STRIPE_CHUNKS chunks of columns of each, fewer where a rank of more than 16 needs the registers.
 * rank_tiles: of 16. */
LORA_COUNT int64_t lora_stripes(int64_t columns, int64_t rank_tiles) {
    int64_t chunks = (columns + LORA_CHUNK_COLUMNS - 1) / LORA_CHUNK_COLUMNS, most = LORA_STRIPE_CHUNKS / rank_tiles;
    return (chunks + most - 1) / most;
}
/* Columns of a box of xa: what an adapter's tile along r is wide. */
LORA_COUNT int lora_rank_width(int64_t r) { return r <= 16 ? 16 : r <= 32 ? 32 : 64; }
/* The block that has a unit: block b has those from b n_units / n_blocks on. */
LORA_COUNT int64_t lora_unit_block(int64_t unit, int64_t n_units, int64_t n_blocks) {
    return ((unit + 1) * n_blocks - 1) / n_units;
}
