/* paged.cu - keys and values into pages; attention through a page table in fp32 arithmetic, for every dtype and head_dim.
 *
 * A warp serves one token and head: each lane takes the score of one key of 32, then the lanes turn and take columns of
 * the values. Where tokens are few their splits run side by side and a second kernel joins them in order. */
#include "backend/cuda/chain.cuh"
#include "backend/cuda/paged_device.cuh"

namespace {

enum { WARP = 32, WARPS = 4, THREADS = WARP * WARPS, COLUMNS = ATTENTION_HEAD_DIM_MOST / WARP };

/* ---- store ------------------------------------------------------------------------------------------------------ */

/* One block per token; V is the widest word that divides a head's row. */
template <typename V>
__global__ void __launch_bounds__(THREADS) kv_store(const __grid_constant__ launch_paged a, int words_per_head) {
    const int64_t token = blockIdx.x;
    chain_next();
    const bool there = token < token_count(a) && a.slots[token] >= 0;
    const int64_t first = there ? key_at(a, a.slots[token], position_of(a, token), 0) / a.D * words_per_head : 0;
    chain_wait();
    if (!there) return;
    const V *in = (const V *)a.qkv + (token * (a.H + 2 * a.G) + a.H) * words_per_head;
    for (int i = (int)threadIdx.x; i < 2 * a.G * words_per_head; i += THREADS) {
        int head = i / words_per_head, word = i % words_per_head;
        ((V *)a.cache)[first + head * a.page_size * words_per_head + word] = in[i];
    }
}

/* ---- attend ----------------------------------------------------------------------------------------------------- */

__device__ float warp_max(float x) {
    for (int n = WARP / 2; n > 0; n /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, n));
    return x;
}
__device__ float warp_sum(float x) {
    for (int n = WARP / 2; n > 0; n /= 2) x += __shfl_xor_sync(0xffffffff, x, n);
    return x;
}

/* Positions [first, end) of one split: sum = the weighted values, this lane's columns lane + 32 i. */
template <typename E>
__device__ softmax_state attend_split(float (&sum)[COLUMNS], const launch_paged &a, const float *q, int slot, int g,
                                      int first, int end) {
    const int lane = (int)threadIdx.x % WARP;
    const E *cache = (const E *)a.cache;
    softmax_state state = {-INFINITY, 0};
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) sum[i] = 0;
    for (int key = first; key < end; key += WARP) {
        const bool there = key + lane < end;
        const int64_t at = there ? key_at(a, slot, key + lane, g) : 0;
        float score = there ? 0.0f : -INFINITY;
        if (there)
            for (int d = 0; d < a.D; d++) score = fmaf(q[d], widen(cache[at + d]), score);
        if (there && a.softcap > 0) { /* in units of log 2 */
            const float cap = a.softcap * 1.44269504088896341f;
            score = cap * tanhf(score / cap);
        }
        float max = fmaxf(state.max, warp_max(score)), from = anchor(max), decay = exp2f(state.max - from);
        float weight = exp2f(score - from);
        state.sum = fmaf(state.sum, decay, warp_sum(weight));
        state.max = max;
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) sum[i] *= decay;
        for (int n = 0; n < min(WARP, end - key); n++) {
            const E *value = cache + __shfl_sync(0xffffffff, at, n) + value_offset(a);
            float w = __shfl_sync(0xffffffff, weight, n);
#pragma unroll
            for (int i = 0; i < COLUMNS; i++)
                if (lane + WARP * i < a.D) sum[i] = fmaf(w, widen(value[lane + WARP * i]), sum[i]);
        }
    }
    return state;
}

template <typename E> __device__ void store_row(E *y, int D, const float (&sum)[COLUMNS], float divisor) {
    const int lane = (int)threadIdx.x % WARP;
#pragma unroll
    for (int i = 0; i < COLUMNS; i++)
        if (lane + WARP * i < D) y[lane + WARP * i] = narrow<E>(sum[i] / divisor);
}

/* A warp per (token, head, split); with n_splits 1 it walks all splits of the token itself. */
template <typename E>
__global__ void __launch_bounds__(THREADS) attention_paged_plain(const __grid_constant__ launch_paged a, int n_splits) {
    extern __shared__ __align__(16) unsigned char shared[];
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int64_t task = (int64_t)blockIdx.x * WARPS + warp, token = task / n_splits / a.H;
    const int split = (int)(task % n_splits), head = (int)(task / n_splits % a.H), g = head / (a.H / a.G);
    if (token >= token_count(a)) return;
    E *y = (E *)a.y + (token * a.H + head) * a.D;
    const int slot = a.slots[token];
    float sum[COLUMNS] = {}, part[COLUMNS];
    if (slot < 0) {
        if (n_splits == 1) store_row(y, a.D, sum, 1);
        return;
    }
    const int end = position_of(a, token) + 1, begin = first_seen(a, end - 1);
    float *q = (float *)shared + warp * ATTENTION_HEAD_DIM_MOST;
    for (int d = lane; d < a.D; d += WARP)
        q[d] = widen(((const E *)a.qkv)[(token * (a.H + 2 * a.G) + head) * a.D + d]) * score_scale(a);
    __syncwarp();
    if (n_splits > 1) {
        const int first = split * PAGED_SPLIT;
        if (first >= end || first + PAGED_SPLIT <= begin) return;
        softmax_state state = attend_split<E>(part, a, q, slot, g, max(first, begin), min(first + PAGED_SPLIT, end));
        const int64_t partial = partial_of(a, token, head, split, n_splits);
        float *values = partial_values(a, partial);
        for (int i = 0; i < COLUMNS; i++)
            if (lane + WARP * i < a.D) values[lane + WARP * i] = part[i];
        if (lane == 0) *partial_state(a, partial, n_splits) = state;
        return;
    }
    softmax_state total = {-INFINITY, 0};
    for (int first = begin / PAGED_SPLIT * PAGED_SPLIT; first < end; first += PAGED_SPLIT) {
        join_factors f =
            join(total, attend_split<E>(part, a, q, slot, g, max(first, begin), min(first + PAGED_SPLIT, end)));
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) sum[i] = fmaf(sum[i], f.total, part[i] * f.part);
    }
    store_row(y, a.D, sum, total.sum);
}

/* A warp per (token, head). */
template <typename E>
__global__ void __launch_bounds__(THREADS) paged_join(const __grid_constant__ launch_paged a, int n_splits) {
    const int lane = (int)threadIdx.x % WARP;
    const int64_t task = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP, token = task / a.H;
    const int head = (int)(task % a.H);
    chain_next();
    const bool held = token < token_count(a), there = held && a.slots[token] >= 0;
    const int position = there ? position_of(a, token) : 0, skipped = first_seen(a, position) / PAGED_SPLIT;
    const int n = there ? position / PAGED_SPLIT + 1 - skipped : 0;
    chain_wait();
    if (!held) return;
    float sum[COLUMNS] = {};
    softmax_state total = {-INFINITY, 0};
    const int64_t first = partial_of(a, token, head, skipped, n_splits);
    for (int some = 0; some < n; some += WARP) { /* a lane fetches a state, so that they come all at once */
        const softmax_state mine =
            some + lane < n ? *partial_state(a, first + some + lane, n_splits) : softmax_state{-INFINITY, 0};
#pragma unroll 4
        for (int split = 0; split < min(WARP, n - some); split++) {
            const float *values = partial_values(a, first + some + split);
            const softmax_state state = {__shfl_sync(0xffffffff, mine.max, split),
                                         __shfl_sync(0xffffffff, mine.sum, split)};
            const join_factors f = join(total, state);
#pragma unroll
            for (int i = 0; i < COLUMNS; i++)
                if (lane + WARP * i < a.D) sum[i] = fmaf(sum[i], f.total, values[lane + WARP * i] * f.part);
        }
    }
    store_row((E *)a.y + task * a.D, a.D, sum, there ? total.sum : 1.0f);
}

template <typename V> void store(const launch_paged *a, int64_t row_bytes, cudaStream_t s) {
    launch_chained(kv_store<V>, dim3((unsigned)a->N), dim3(THREADS), 0, 1, s, *a,
                   (int)(row_bytes / (int64_t)sizeof(V)));
}

template <typename E> void attend(const launch_paged *a, cudaStream_t s) {
    int64_t n_splits = paged_split_count(a->N, a->n_slots, a->page_size * a->pages_per_slot);
    launch_kernel(attention_paged_plain<E>, (a->N * a->H * n_splits + WARPS - 1) / WARPS, THREADS,
                  WARPS * ATTENTION_HEAD_DIM_MOST * sizeof(float), s, *a, (int)n_splits);
    if (n_splits > 1) launch_paged_join(a, (int)n_splits, s);
}

template <typename E> void join_all(const launch_paged *a, int n_splits, cudaStream_t s) {
    launch_chained(paged_join<E>, dim3((unsigned)((a->N * a->H + WARPS - 1) / WARPS)), dim3(THREADS), 0, 1, s, *a,
                   n_splits);
}

} // namespace

extern "C" void launch_kv_store(const launch_paged *a, cudaStream_t s) {
    int64_t row_bytes = a->D * (a->type == LAUNCH_F32 ? 4 : 2);
    if (row_bytes % 16 == 0) store<uint4>(a, row_bytes, s);
    else if (row_bytes % 4 == 0) store<uint32_t>(a, row_bytes, s);
    else store<uint16_t>(a, row_bytes, s);
}

void launch_paged_join(const launch_paged *a, int n_splits, cudaStream_t s) {
    if (a->type == LAUNCH_F32) join_all<float>(a, n_splits, s);
    else if (a->type == LAUNCH_BF16) join_all<__nv_bfloat16>(a, n_splits, s);
    else join_all<__half>(a, n_splits, s);
}

extern "C" void launch_paged_plain(const launch_paged *a, cudaStream_t s) {
    if (a->type == LAUNCH_F32) attend<float>(a, s);
    else if (a->type == LAUNCH_BF16) attend<__nv_bfloat16>(a, s);
    else attend<__half>(a, s);
}
