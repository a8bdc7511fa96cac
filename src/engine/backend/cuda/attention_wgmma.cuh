#pragma once
/* attention_wgmma.cuh - tiles and products of attention for warp groups (compute capability 9.0).
 *
 * A tile is n_rows rows of one head, as boxes of 64 rows and 64 columns: first the left half of the columns of all rows, then
 * the right half. A row of a half is 128 bytes, its chunks swizzled by the TMA unit the way wgmma reads them. Of heads of 96 columns
 * the right half has 32 more, of whatever is behind in the row: no product reads them, or what it makes of them is left out.
 * Both readings of a tile come from the same bytes: by rows (k of q k^T) or by columns (v of p v). */
#include "backend/cuda/attention_mma.cuh"
#include "backend/cuda/wgmma.cuh"

namespace attention_wgmma {

using namespace attention_mma;

enum {
    GROUP = 128,
    GROUP_ROWS = 64,
    BOX_ROWS = ATTENTION_BOX_ROWS,
    BOX_COLUMNS = ATTENTION_BOX_COLUMNS,
    ROW_BYTES = 128
};
constexpr uint32_t BOX_BYTES = BOX_ROWS * ROW_BYTES;

template <int D> constexpr int halves() { return (D + BOX_COLUMNS - 1) / BOX_COLUMNS; }
template <int D> constexpr uint32_t boxes_bytes(int n_rows) { return (uint32_t)n_rows * halves<D>() * ROW_BYTES; }

#if WGMMA_HERE

/* Rows [row, row + n_rows) of the head that begins at `column`; the barrier is told how many bytes. One thread calls. */
template <int D>
__device__ void tile_fetch(uint32_t tile, const CUtensorMap *map, int column, int row, int sequence, int n_rows,
                           uint32_t barrier) {
    barrier_arrive_expecting(barrier, boxes_bytes<D>(n_rows));
    for (int half = 0; half < halves<D>(); half++)
        for (int box = 0; box < n_rows / BOX_ROWS; box++)
            fetch_box(tile + (half * (n_rows / BOX_ROWS) + box) * BOX_BYTES, map, column + half * BOX_COLUMNS,
                      row + box * BOX_ROWS, sequence, barrier);
}

/* What wgmma is told of an operand: where it begins, how far apart its blocks of 64 columns and of 8 rows are. */
__device__ inline uint64_t operand(uint32_t address, uint32_t between_halves) {
    constexpr uint64_t SWIZZLE_128 = 1;
    return (uint64_t)(address >> 4 & 0x3fff) | (uint64_t)(between_halves >> 4 & 0x3fff) << 16 |
           (uint64_t)(8 * ROW_BYTES >> 4) << 32 | SWIZZLE_128 << 62;
}
/* The operand `bytes` behind another: one addition, where making it anew takes three. No address reaches the bits above its own. */
__device__ inline uint64_t behind(uint64_t operand, uint32_t bytes) {
    return operand >> 32 << 32 | (uint32_t)((uint32_t)operand + (bytes >> 4));
}
/* The warp group of this thread. Every lane says the same, which the compiler does not see in threadIdx: with it what is computed from
 * a group's number lies in registers of the warp, and operands need none of the threads'. */
__device__ inline int warp_group() { return __shfl_sync(0xffffffff, (int)threadIdx.x / GROUP, 0); }

/* acc (64, N) = A B^T: A the rows of a tile from a_row on, B the first N rows of another. Queued, not finished. */
template <typename E, int D, int N>
__device__ inline void queue_product_of_rows(float (&acc)[N / 8][4], uint32_t a_tile, int a_rows, int a_row,
                                             uint32_t b_tile) {
    const uint64_t a = operand(a_tile + a_row * ROW_BYTES, 0), b = operand(b_tile, 0);
#pragma unroll
    for (int step = 0; step < D / 16; step++) {
        const uint32_t half = step / 4, column = step % 4 * 32;
        wgmma<E, N>::template shared<0, 0>(acc, behind(a, half * a_rows * ROW_BYTES + column),
                                           behind(b, half * N * ROW_BYTES + column), step > 0);
    }
}

/* sum (64, D) += W B: W (64, N) packed, B a tile of N rows. Queued, not finished. */
template <typename E, int D, int N>
__device__ inline void queue_product_with_rows(float (&sum)[D / 8][4], const uint32_t (&w)[N / 16][4],
                                               uint32_t b_tile) {
    const uint64_t b = operand(b_tile, N * ROW_BYTES);
#pragma unroll
    for (int step = 0; step < N / 16; step++) wgmma<E, D>::registers(sum, w[step], behind(b, step * 16 * ROW_BYTES), 1);
}

/* The tasks of a block that stays, longest first: rounds go forth and back over the blocks, which evens out their loads. */
__device__ inline int task_of_round(int round) {
    const int n = (int)gridDim.x, block = (int)blockIdx.x;
    return round * n + (round % 2 ? n - 1 - block : block);
}

/* The key tiles that a tile of queries walks: from the first document's to the diagonal; of a ring those that its queries see, perhaps
 * none. Every lane of a warp calls. */
struct key_walk {
    int first, n;
};
template <int QUERIES, int KEYS, bool RING>
__device__ inline key_walk key_walk_of(const launch_attention &a, const int32_t *doc_start, int q0, int lane) {
    const int T = (int)a.T;
    int least = T, most = 0;
#pragma unroll
    for (int i = 0; i < QUERIES / WARP; i++) {
        const key_span seen = keys_seen<RING>(a, doc_start, min(q0 + lane + i * WARP, T - 1));
        least = min(least, seen.first), most = max(most, seen.end);
    }
    const int first = __reduce_min_sync(0xffffffff, least) / KEYS * KEYS;
    const int end = RING ? __reduce_max_sync(0xffffffff, most) : min(q0 + QUERIES, T);
    return {first, max(end - first + KEYS - 1, 0) / KEYS};
}

/* Where k begins in the rows that keys and values are fetched from. */
template <int D, bool RING> __device__ inline int key_column(const launch_attention &a, int g) {
    return ((RING ? 0 : a.H) + g) * D;
}

#endif

} // namespace attention_wgmma
