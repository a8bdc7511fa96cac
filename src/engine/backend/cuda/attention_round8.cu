/* attention_round8.cu - q, k and v of attention in e4m3, with a scale for each block of 128 tokens of a head, in one pass over qkv.
 *
 * A block of 256 threads takes one such block, 16 columns and four rows a thread, as fp8_blocks.cu: eight loads of 16 bytes before the first is used. q and k are
 * written as they lie, v transposed, where every 16 keys stand in the order in which attention_wgmma_fwd8.cu has the
 * probabilities of 16 keys in its lanes: place 4 t + e is key 2 t + e % 2 + 8 (e / 2). Tokens behind the row are zeros. */
#include "backend/cuda/absmax.cuh"
#include "backend/cuda/e4m3.cuh"
#include "backend/cuda/launch_attention.h"

enum { THREADS = 256, WARPS = THREADS / WARP, COLUMNS = 16, ROWS = 4, ACROSS = 8 };
static_assert(THREADS / ACROSS * ROWS == FP8_BLOCK, "a block of threads has a block of tokens");

using tile_of_bytes = turned_tile<COLUMNS>;

struct tile_memory {
    uint4 columns[tile_of_bytes::WORDS / 4];
    uint32_t mosts[WARPS];
};

/* Sixteen keys in the order of the lanes that have their probabilities. */
DEVICE uint4 in_order_of_lanes(uint4 keys) {
    return make_uint4(__byte_perm(keys.x, keys.z, 0x5410), __byte_perm(keys.x, keys.z, 0x7632),
                      __byte_perm(keys.y, keys.w, 0x5410), __byte_perm(keys.y, keys.w, 0x7632));
}

static __global__ void __launch_bounds__(THREADS) attention_round_kernel(launch_attention a, launch_attention8 r) {
    __shared__ __align__(16) tile_memory m;
    const int slots = a.H + 2 * a.G, block = (int)(blockIdx.x % r.n_blocks);
    const int slot = (int)(blockIdx.x / r.n_blocks % slots); /* heads of q, of k, of v */
    const int64_t b = blockIdx.x / r.n_blocks / slots;
    const int column = threadIdx.x % ACROSS * COLUMNS, row = block * FP8_BLOCK + threadIdx.x / ACROSS * ROWS;
    const uint16_t *from = (const uint16_t *)a.q + (b * a.T + row) * a.q_stride + (int64_t)slot * a.D + column;
    uint4 raw[ROWS][2];
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            raw[i][h] = row + i < a.T && column < a.D ? *(const uint4 *)(from + i * a.q_stride + h * 8) : uint4{};
    const fp8_scale scale = fp8_attention_scale(__uint_as_float(absmax_of_block<WARPS>(m.mosts, raw)));
    uint32_t word[ROWS][4];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const uint2 low = e4m3_pack(raw[i][0], scale.factor), high = e4m3_pack(raw[i][1], scale.factor);
        word[i][0] = low.x, word[i][1] = low.y, word[i][2] = high.x, word[i][3] = high.y;
    }
    const int g = slot - a.H - a.G; /* of a head of v */
    if (g < 0) {
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            if (row + i < a.T && column < a.D)
                *(uint4 *)(r.qk + ((b * a.T + row + i) * (a.H + a.G) + slot) * a.D + column) =
                    make_uint4(word[i][0], word[i][1], word[i][2], word[i][3]);
        if (threadIdx.x > 0) return;
        if (slot < a.H) r.q_scales[(b * a.H + slot) * r.n_blocks + block] = scale.scale;
        else r.kv_scales[(b * a.G + slot - a.H) * r.n_blocks + block].k = scale.scale;
        return;
    }
    uint32_t *columns = (uint32_t *)m.columns;
    tile_of_bytes::put(columns, word);
    __syncthreads();
    tile_of_bytes::each(columns, [&](int c, int key, const uint4 *bytes) {
        if (c < a.D)
            *(uint4 *)(r.v + ((b * a.G + g) * a.D + c) * r.padded + block * FP8_BLOCK + key) =
                in_order_of_lanes(*bytes);
    });
    if (threadIdx.x > 0) return;
    r.kv_scales[(b * a.G + g) * r.n_blocks + block].v = scale.scale;
}

extern "C" void launch_attention_round8(const launch_attention *a, const launch_attention8 *r, cudaStream_t s) {
    int64_t n_blocks = r->n_blocks * (a->H + 2 * a->G) * a->B;
    if (n_blocks > 0) attention_round_kernel<<<(unsigned)n_blocks, THREADS, 0, s>>>(*a, *r);
}
