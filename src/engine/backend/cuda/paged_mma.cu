/* paged_mma.cu - attention through a page table on tensor cores (mma.sync), bf16 and fp16.
 *
 * The rows of a block are the query heads of one kv head, for as many neighbouring tokens of one slot as fit. Two shapes of
 * the same walk:
 *   one warp    16 rows and one split: a decode step, where each token has its own keys and the splits of all tokens fill
 *               the machine; paged.cu joins them
 *   four warps  64 rows that share each tile of keys and walk all splits: chunks of prompts
 * What a row computes is the same in both, see paged_device.cuh. Keys that no token of the block sees are zeros, so
 * whatever a page still holds there is never multiplied. */
#include "backend/cuda/attention_mma.cuh"
#include "backend/cuda/chain.cuh"
#include "backend/cuda/paged_device.cuh"

using namespace attention_mma;

namespace {

enum { KEYS = 64 };
static_assert((int)PAGED_SPLIT == (int)KEYS, "a split is one tile: a block of one split needs one stage");

template <int D> constexpr size_t shared_bytes(int n_warps) {
    const int n_stages = n_warps == 1 ? 1 : 2;
    return tile_bytes<D>(n_warps * MMA_ROWS) + n_stages * 2 * tile_bytes<D>(KEYS);
}

/* The block of token `first` serves it and its neighbours of the same slot up to the next multiple of shape.tokens; blocks
 * of those find here that there is nothing to do. */
__device__ inline int tokens_of(const launch_paged &a, int64_t first, int64_t n_tokens, int most) {
    if (first >= n_tokens || (first % most != 0 && a.slots[first - 1] == a.slots[first])) return 0;
    int n = 1;
    while (n < most - first % most && first + n < n_tokens && a.slots[first + n] == a.slots[first]) n++;
    return n;
}

template <typename E, int D, int WARPS>
__global__ void __launch_bounds__(WARPS *WARP, 1)
    attention_paged(const __grid_constant__ launch_paged a, int n_splits) {
    constexpr int THREADS = WARPS * WARP, ROWS = WARPS * MMA_ROWS, CHUNKS = D / 8;
    constexpr bool ONE_SPLIT = WARPS == 1; /* of n_splits; else all of them */
    extern __shared__ __align__(128) unsigned char shared[];
    const uint32_t q_tile = shared_address(shared), kv_tiles = q_tile + tile_bytes<D>(ROWS); /* (stage, k or v) */
    const row_shape shape = row_shape_of(a, ROWS);
    chain_next();
    if (!ONE_SPLIT) chain_wait();
    const int64_t task = blockIdx.x;
    const int split = (int)(task % n_splits), part = (int)(task / n_splits % shape.parts);
    const int g = (int)(task / n_splits / shape.parts % a.G);
    const int64_t token = task / n_splits / shape.parts / a.G;
    const int n = tokens_of(a, token, token_count(a), shape.tokens);
    if (n == 0) {
        chain_wait();
        return;
    }
    const int lane = (int)threadIdx.x % WARP, row = (int)threadIdx.x / WARP * MMA_ROWS, slot = a.slots[token];
    const int first_head = g * shape.group + part * shape.heads,
              n_heads = min(shape.heads, shape.group - part * shape.heads);
    auto there = [&](int r) { return r / shape.heads < n && r % shape.heads < n_heads; };
    /* as (token, head) */
    auto y_row = [&](int r) { return (token + r / shape.heads) * a.H + first_head + r % shape.heads; };

    if (slot < 0) {
        chain_wait();
        if (!ONE_SPLIT) /* else joined from nothing */
            for (int i = (int)threadIdx.x; i < ROWS * CHUNKS; i += THREADS)
                if (there(i / CHUNKS))
                    *(uint4 *)((E *)a.y + y_row(i / CHUNKS) * D + i % CHUNKS * 8) = make_uint4(0, 0, 0, 0);
        return;
    }
    int last = 0, least = ATTENTION_NO_WINDOW; /* positions that are seen */
    for (int i = 0; i < n; i++) {
        last = max(last, position_of(a, token + i));
        least = min(least, first_seen(a, position_of(a, token + i)));
    }
    const int begin = ONE_SPLIT ? split * PAGED_SPLIT : least / PAGED_SPLIT * PAGED_SPLIT;
    const int end = ONE_SPLIT ? min(begin + PAGED_SPLIT, last + 1) : last + 1;
    if (begin >= end || end <= least) {
        chain_wait();
        return;
    }

    auto fetch_q = [&]() {
        for (int i = (int)threadIdx.x; i < ROWS * CHUNKS; i += THREADS) {
            const int r = i / CHUNKS, chunk = i % CHUNKS;
            const int64_t from =
                there(r) ? (token + r / shape.heads) * (a.H + 2 * a.G) + first_head + r % shape.heads : 0;
            copy_async_16(q_tile + tile_at<D>(r, chunk), (const E *)a.qkv + from * D + chunk * 8, there(r));
        }
    };
    /* Every lane finds two keys of the tile through the page table and tells the others. */
    auto fetch = [&](int k0, int stage) {
        int64_t at[2];
        for (int half = 0; half < 2; half++) {
            const int position = k0 + lane + half * WARP;
            at[half] = position >= least && position < end ? key_at(a, slot, position, g) : -1;
        }
        const uint32_t tile = kv_tiles + stage * 2 * tile_bytes<D>(KEYS);
#pragma unroll 4
        for (int i = (int)threadIdx.x; i < KEYS * CHUNKS; i += THREADS) {
            const int r = i / CHUNKS, chunk = i % CHUNKS;
            const int64_t low = __shfl_sync(0xffffffff, at[0], r % WARP),
                          high = __shfl_sync(0xffffffff, at[1], r % WARP);
            const int64_t from = r < WARP ? low : high;
            const E *key = (const E *)a.cache + (from < 0 ? 0 : from + chunk * 8);
            const uint32_t to = tile + tile_at<D>(r, chunk);
            copy_async_16(to, key, from >= 0);
            copy_async_16(to + tile_bytes<D>(KEYS), from < 0 ? key : key + value_offset(a), from >= 0);
        }
    };

    int position[2], start[2]; /* of this lane's rows; -1: no row, sees nothing */
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int r = row + half * 8 + lane / 4;
        position[half] = there(r) ? position_of(a, token + r / shape.heads) : -1;
        start[half] = first_seen(a, position[half]);
    }
    const float factor = score_scale(a);
    float total[1][D / 8][4] = {};
    softmax_state joined[2] = {{-INFINITY, 0}, {-INFINITY, 0}};
    /* Inputs and what earlier runs stored stand already. This run stores at most the last a.N positions of a slot. */
    const bool stored_before = ONE_SPLIT && end <= last + 1 - (int)a.N;
    if (stored_before) fetch(begin, 0);
    if (ONE_SPLIT) chain_wait();
    if (!stored_before) fetch(begin, 0);
    fetch_q();
    copy_async_commit();
    int stage = 0;
    for (int first = begin; first < end; first += PAGED_SPLIT) {
        const int split_end = min(first + PAGED_SPLIT, end);
        float sum[1][D / 8][4] = {};
        row_state state[2] = {{-INFINITY, 0}, {-INFINITY, 0}};
        for (int k0 = first; k0 < split_end; k0 += KEYS, stage ^= 1) {
            copy_async_wait<0>();
            __syncthreads();
            if (k0 + KEYS < end) {
                fetch(k0 + KEYS, stage ^ 1);
                copy_async_commit();
            }
            const uint32_t k_tile = kv_tiles + stage * 2 * tile_bytes<D>(KEYS);
            float s[1][KEYS / 8][4];
            product_of_rows<E, D, 1, KEYS>(s, q_tile, row, k_tile, lane);
            if (a.softcap > 0) cap_scores<1, KEYS>(a, s);
#pragma unroll
            for (int i = 0; i < KEYS / 2; i++) {
                const int key = k0 + i / 4 * 8 + lane % 4 * 2 + i % 2;
                if (key > position[i / 2 % 2] || key < start[i / 2 % 2]) s[0][i / 4][i % 4] = -INFINITY;
            }
#pragma unroll
            for (int half = 0; half < 2; half++)
                scale_row<1, D>(sum, 0, half, softmax_row<1, KEYS>(s, 0, half, state[half], factor));
            product_with_rows<E, D, 1, KEYS>(sum, s, k_tile + tile_bytes<D>(KEYS), lane);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const softmax_state of_split = {state[half].max * factor, quad_sum(state[half].sum)};
            if (ONE_SPLIT) {
                const int r = row + half * 8 + lane / 4;
                if (!there(r) || first > position[half] || first + PAGED_SPLIT <= start[half]) continue;
                const int64_t partial = y_row(r) * n_splits + split;
                float *values = partial_values(a, partial) + lane % 4 * 2;
#pragma unroll
                for (int c = 0; c < D / 8; c++)
                    *(float2 *)(values + c * 8) = make_float2(sum[0][c][2 * half], sum[0][c][2 * half + 1]);
                if (lane % 4 == 0) *partial_state(a, partial, n_splits) = of_split;
                continue;
            }
            const join_factors f = join(joined[half], of_split);
#pragma unroll
            for (int c = 0; c < D / 8; c++)
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++)
                    total[0][c][i] = fmaf(total[0][c][i], f.total, sum[0][c][i] * f.part);
        }
    }
    if constexpr (!ONE_SPLIT) {
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int c = 0; c < D / 8; c++) {
                total[0][c][2 * half] /= joined[half].sum;
                total[0][c][2 * half + 1] /= joined[half].sum;
            }
        stage_sums<E, D, 1>(q_tile, row, total, lane);
        for (int i = lane; i < MMA_ROWS * CHUNKS; i += WARP) {
            const int r = row + i / CHUNKS, chunk = i % CHUNKS;
            if (there(r))
                *(uint4 *)((E *)a.y + y_row(r) * D + chunk * 8) = load_shared_16(q_tile + tile_at<D>(r, chunk));
        }
    }
}

template <typename E, int D> void attend(const launch_paged *a, cudaStream_t s) {
    const int n_splits = (int)paged_split_count(a->N, a->n_slots, a->page_size * a->pages_per_slot);
    if (n_splits == 1) {
        launch_chained(attention_paged<E, D, 4>, dim3((unsigned)(a->N * a->G * row_shape_of(*a, 4 * MMA_ROWS).parts)),
                       dim3(4 * WARP), shared_bytes<D>(4), 1, s, *a, 1);
        return;
    }
    const int64_t n_blocks = a->N * a->G * row_shape_of(*a, MMA_ROWS).parts * n_splits;
    launch_chained(attention_paged<E, D, 1>, dim3((unsigned)n_blocks), dim3(WARP), shared_bytes<D>(1), 1, s, *a,
                   n_splits);
    launch_paged_join(a, n_splits, s);
}

} // namespace

extern "C" void launch_paged_mma(const launch_paged *a, cudaStream_t s) {
    by_head(a->type, a->D, [&](auto zero, auto length) { attend<decltype(zero), decltype(length)::value>(a, s); });
}
