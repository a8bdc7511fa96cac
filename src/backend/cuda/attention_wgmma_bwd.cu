/* attention_wgmma_bwd.cu - the backward of attention for compute capability 9.0, bf16 and fp16.
 *
 * One block per multiprocessor stays there and takes tiles of 128 keys in turn; tiles of 64 queries pass. Two warp groups have 64 keys
 * each and sum dk and dv in registers. ds goes through shared memory to both, and each multiplies it with the keys for half of the columns
 * of dq. So scores are computed once: five products per pair of tiles. Of the first warp group one warp fetches tiles, one what the queries
 * bring along, and two take turns to add dq to fp32 sums in memory: with one, the steps of an addition (wait for the turn, add, wait until
 * it is there, pass the turn on) took longer than the products.
 *
 * Every sum is made in one order. The tiles of keys that a tile of queries sees add their parts of its dq from the first to the last: a
 * count per tile says whose turn it is. Blocks take tiles of keys in ascending order and walk queries from the last to their own, all heads
 * of a group at each, so the block in front is always where this one will be, or further. A block waits only for tiles of lower index,
 * which are under way or done: the grid is no larger than what is resident at once. A kernel
 * behind rounds the sums: done by the block that adds last, it cost the products more registers than it saved time. */
#include "backend/cuda/attention_wgmma.cuh"

namespace {

enum { CONSUMERS = 2, ROWS = CONSUMERS * 64, THREADS = (1 + CONSUMERS) * 128, CONSUMER_WARPS = CONSUMERS * 4 };
enum { QUERIES = ATTENTION_DQ_ROWS, Q_STAGES = 3, DY_STAGES = 2, DS_STAGES = 2, ADDERS = 2, DQ_THREADS = 128 };
enum {
    KV_FULL,
    KV_EMPTY,
    Q_FULL,
    Q_EMPTY = Q_FULL + Q_STAGES,
    STATISTICS_EMPTY = Q_EMPTY + Q_STAGES,
    DY_FULL = STATISTICS_EMPTY + Q_STAGES,
    DY_EMPTY = DY_FULL + DY_STAGES,
    DQ_FULL = DY_EMPTY + DY_STAGES,          /* (who adds, consumer) */
    DQ_EMPTY = DQ_FULL + ADDERS * CONSUMERS, /* (consumer) */
    N_BARRIERS = DQ_EMPTY + CONSUMERS
};
struct query_statistics {
    float lse_2[QUERIES], delta[QUERIES]; /* lse in units of log 2 */
    int32_t start[QUERIES], end[QUERIES]; /* keys that a query sees; end: of a ring */
    int32_t latest_start, least_end;      /* 8 bytes, for the barriers behind */
};
template <int D> constexpr uint32_t dq_part_floats() { return QUERIES * D / CONSUMERS; } /* of a consumer */
template <int D> constexpr uint32_t dq_part_bytes() { return dq_part_floats<D>() * (uint32_t)sizeof(float); }
template <int D> constexpr size_t tiles_bytes() {
    return (2 * ROWS + (Q_STAGES + DY_STAGES) * QUERIES) * D * 2 + DS_STAGES * QUERIES * ROWS * 2 +
           CONSUMERS * dq_part_bytes<D>();
}
template <int D> constexpr size_t shared_bytes() {
    return tiles_bytes<D>() + Q_STAGES * sizeof(query_statistics) + N_BARRIERS * 8;
}
static_assert(shared_bytes<128>() <= 227 << 10, "more shared memory than a block of capability 9.0 may have");

#if WGMMA_HERE
using namespace attention_wgmma;

template <int D> struct shared_layout {
    uint32_t k, v, q, dy, ds, dq, barriers; /* q, dy, ds: (stage); dq: (consumer) */
    query_statistics *statistics;           /* (stage of q) */
    __device__ explicit shared_layout(unsigned char *shared) {
        k = shared_address(shared);
        v = k + tile_bytes<D>(ROWS);
        q = v + tile_bytes<D>(ROWS);
        dy = q + Q_STAGES * tile_bytes<D>(QUERIES);
        ds = dy + DY_STAGES * tile_bytes<D>(QUERIES);
        dq = ds + DS_STAGES * QUERIES * ROWS * 2;
        statistics = (query_statistics *)(shared + tiles_bytes<D>());
        barriers = shared_address(statistics + Q_STAGES);
    }
    __device__ uint32_t barrier(int which) const { return barriers + which * 8; }
};

__device__ inline void release(uint32_t barrier, int lane) { /* by warp: this one has read all it will */
    if (lane == 0) barrier_arrive(barrier);
}

template <int N> __device__ inline void clear(float (&sum)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) sum[n][i] = 0;
}

template <typename E, int N> __device__ inline void pack_all(uint32_t (&packed)[N / 2][4], const float (&w)[N][4]) {
#pragma unroll
    for (int step = 0; step < N / 2; step++) pack_rows<E>(packed[step], w, step);
}

/* ---- who meets whom ---------------------------------------------------------------------------------------------- */

/* Tiles of keys [first, end) that a tile of queries sees, or whose neighbours on both sides it sees; both grow with the tile. */
template <bool RING>
__device__ inline int first_key_tile(const launch_attention &a, const int32_t *doc_start, int tile) {
    return keys_seen<RING>(a, doc_start, tile * QUERIES).first / ROWS;
}
template <bool RING> __device__ inline int end_key_tile(const launch_attention &a, const int32_t *doc_start, int tile) {
    return (keys_seen<RING>(a, doc_start, min(tile * QUERIES + QUERIES, (int)a.T) - 1).end + ROWS - 1) / ROWS;
}

/* A tile of keys of a kv head and the tiles of queries that see it, of every head of the group. */
struct key_task {
    int b, g, tile, first, end; /* tiles of queries [first, end) */
};
/* The i-th pair that they make: from the last tile to the first, all heads of each. */
struct tile_pair {
    int head, tile; /* of queries */
};
__device__ inline tile_pair pair_of(const launch_attention &a, const key_task &t, int i) {
    const int group = a.H / a.G;
    return {t.g * group + i % group, t.end - 1 - i / group};
}
__device__ inline int pair_count(const launch_attention &a, const key_task &t) {
    return max(t.end - t.first, 0) * (a.H / a.G);
}

/* Pairs of row and kv head whose tiles are under way at once. With all of them no two blocks would walk the same queries, and queries and
 * sums would come from memory instead of the cache; with few, the tiles of keys of a pair all begin at once and each waits for the one
 * before, which short rows never make up for. So a pair has at most an eighth of its tiles under way on a GPU of 132 multiprocessors. */
__device__ inline int pairs_at_once(int n_key_tiles) { return max(16, 8 * 132 / n_key_tiles); }

template <bool RING> __device__ inline key_task key_task_of(const launch_attention &a, int task) {
    const int n_tiles = ((int)a.T + QUERIES - 1) / QUERIES, n_key_tiles = ((int)a.T + ROWS - 1) / ROWS;
    const int most = pairs_at_once(n_key_tiles);
    const int first = task / (most * n_key_tiles) * most, rest = task - first * n_key_tiles;
    const int n_pairs = min(most, (int)a.B * a.G - first), pair = first + rest % n_pairs;
    key_task t = {pair / a.G, pair % a.G, rest / n_pairs, 0, n_tiles};
    const int32_t *doc_start = a.doc_start + t.b * a.T;
    if (RING) { /* the first tile whose span ends behind this one */
        int high = n_tiles;
        while (t.first < high) {
            const int middle = (t.first + high) / 2;
            if (end_key_tile<RING>(a, doc_start, middle) > t.tile) high = middle;
            else t.first = middle + 1;
        }
    } else t.first = t.tile * (ROWS / QUERIES);
    /* The first whose span begins behind it; most often there is none. */
    int low = first_key_tile<RING>(a, doc_start, n_tiles - 1) <= t.tile ? n_tiles : t.first;
    while (low < t.end) {
        const int middle = (low + t.end) / 2;
        if (first_key_tile<RING>(a, doc_start, middle) > t.tile) t.end = middle;
        else low = middle + 1;
    }
    return t;
}

/* Index of a tile of queries of a head, in the sums of dq and in the turns. */
__device__ inline int64_t dq_tile(const launch_attention &a, int b, const tile_pair &p) {
    const int64_t n_tiles = (a.T + QUERIES - 1) / QUERIES;
    return ((int64_t)b * a.H + p.head) * n_tiles + p.tile;
}

/* ---- the first warp group: what comes and goes -------------------------------------------------------------------- */

/* One warp: tiles. */
template <int D, bool RING>
__device__ void fetch_tiles(const launch_attention &a, const CUtensorMap *queries, const CUtensorMap *keys,
                            const CUtensorMap *dy, const shared_layout<D> &in, int n_tasks) {
    const int lane = (int)threadIdx.x % WARP;
    ring_place<Q_STAGES> q_place;
    ring_place<DY_STAGES> dy_place;
    for (int round = 0, i; (i = task_of_round(round)) < n_tasks; round++) {
        const key_task task = key_task_of<RING>(a, i);
        if (lane == 0) {
            const int n_pairs = pair_count(a, task), k0 = task.tile * ROWS;
            barrier_wait(in.barrier(KV_EMPTY), ~round & 1);
            tile_fetch<D>(in.k, keys, key_column<D, RING>(a, task.g), k0, task.b, ROWS, in.barrier(KV_FULL));
            tile_fetch<D>(in.v, keys, key_column<D, RING>(a, a.G + task.g), k0, task.b, ROWS, in.barrier(KV_FULL));
            for (int n = 0; n < n_pairs; n++, q_place.advance(), dy_place.advance()) {
                const tile_pair pair = pair_of(a, task, n);
                barrier_wait(in.barrier(Q_EMPTY + q_place.stage), q_place.parity ^ 1);
                tile_fetch<D>(in.q + q_place.stage * tile_bytes<D>(QUERIES), queries, pair.head * D,
                              pair.tile * QUERIES, task.b, QUERIES, in.barrier(Q_FULL + q_place.stage));
                barrier_wait(in.barrier(DY_EMPTY + dy_place.stage), dy_place.parity ^ 1);
                tile_fetch<D>(in.dy + dy_place.stage * tile_bytes<D>(QUERIES), dy, pair.head * D, pair.tile * QUERIES,
                              task.b, QUERIES, in.barrier(DY_FULL + dy_place.stage));
            }
        }
        __syncwarp();
    }
}

/* Another: what the queries of a tile bring along; they need not lie where the TMA unit could fetch them. */
template <int D, bool RING>
__device__ void fetch_statistics(const launch_attention &a, const shared_layout<D> &in, int n_tasks) {
    const int T = (int)a.T, lane = (int)threadIdx.x % WARP;
    ring_place<Q_STAGES> place;
    for (int round = 0, i; (i = task_of_round(round)) < n_tasks; round++) {
        const key_task task = key_task_of<RING>(a, i);
        const int n_pairs = pair_count(a, task);
        for (int n = 0; n < n_pairs; n++, place.advance()) {
            const tile_pair pair = pair_of(a, task, n);
            query_statistics &of = in.statistics[place.stage];
            float lse_2[2], delta[2];
            int start[2], end[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int query = pair.tile * QUERIES + lane + half * WARP, q = min(query, T - 1);
                const int64_t at = ((int64_t)task.b * a.H + pair.head) * a.T + q;
                lse_2[half] = a.lse[at] * LOG2_E;
                delta[half] = a.delta[at];
                const key_span seen = keys_seen<RING>(a, a.doc_start + task.b * a.T, q);
                start[half] = seen.first, end[half] = query < T ? seen.end : 0;
            }
            const int latest = __reduce_max_sync(0xffffffff, max(start[0], start[1]));
            const int least_end = __reduce_min_sync(0xffffffff, min(end[0], end[1]));
            barrier_wait(in.barrier(STATISTICS_EMPTY + place.stage), place.parity ^ 1);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                of.lse_2[lane + half * WARP] = lse_2[half];
                of.delta[lane + half * WARP] = delta[half];
                of.start[lane + half * WARP] = start[half];
                if (RING) of.end[lane + half * WARP] = end[half];
            }
            if (lane == 0) of.latest_start = latest, of.least_end = least_end;
            barrier_arrive(in.barrier(Q_FULL + place.stage));
        }
    }
}

/* Two in turn: dq of every other pair on to the sums, when the tiles of keys before have added theirs. */
template <int D, bool RING>
__device__ void add_dq(const launch_attention &a, const shared_layout<D> &in, int n_tasks, int adder) {
    uint32_t parity = 0;
    int next = adder; /* pair of the task that this one adds */
    for (int round = 0, i; (i = task_of_round(round)) < n_tasks; round++) {
        const key_task task = key_task_of<RING>(a, i);
        const int32_t *doc_start = a.doc_start + task.b * a.T;
        const int n_pairs = pair_count(a, task);
        if (threadIdx.x % WARP == 0) {
            for (int n = next; n < n_pairs; n += ADDERS, parity ^= 1) {
                const tile_pair pair = pair_of(a, task, n);
                const int before = task.tile - first_key_tile<RING>(a, doc_start, pair.tile);
                const int64_t tile = dq_tile(a, task.b, pair);
                float *to = a.dq_sums + tile * (QUERIES * D);
                if (before > 0) turn_await(a.turns + tile, before);
#pragma unroll
                for (int c = 0; c < CONSUMERS; c++, to += dq_part_floats<D>()) {
                    const uint32_t part = in.dq + c * dq_part_bytes<D>();
                    barrier_wait(in.barrier(DQ_FULL + adder * CONSUMERS + c), parity);
                    if (before > 0) add_bulk(to, part, dq_part_bytes<D>());
                    else store_bulk(to, part, dq_part_bytes<D>());
                }
                copy_bulk_commit();
                copy_bulk_wait_read<0>();
                for (int c = 0; c < CONSUMERS; c++) barrier_arrive(in.barrier(DQ_EMPTY + c));
                copy_bulk_wait_all();
                turn_pass(a.turns + tile, before + 1);
            }
        }
        next ^= n_pairs % ADDERS;
        __syncwarp();
    }
}

/* ---- the others: products ----------------------------------------------------------------------------------------- */

/* ds, of this consumer's keys, for both: rows are queries, a box of 64 keys for each. */
template <int N> __device__ inline void share_ds(uint32_t box, int row, const uint32_t (&ds)[N][4], int lane) {
#pragma unroll
    for (int step = 0; step < N; step++) {
        const int query = step * 16 + lane / 16 * 8 + lane % 8, chunk = row / 8 + lane / 8 % 2;
        store_matrices_transposed(box + query * ROW_BYTES + ((chunk ^ (query & 7)) << 4), ds[step]);
    }
    fence_bulk();
    threads_meet(1, CONSUMERS * GROUP);
}

/* acc (64, D / 2) = ds of all keys times this consumer's columns of the keys. Queued, not finished. */
template <typename E, int D>
__device__ inline void queue_dq(float (&acc)[D / 16][4], uint32_t ds_tile, uint32_t k_tile, int consumer) {
    constexpr int COLUMNS = D / CONSUMERS;
    const uint32_t columns = consumer * COLUMNS / BOX_COLUMNS * ROWS * ROW_BYTES + consumer * COLUMNS % BOX_COLUMNS * 2;
    const uint64_t ds = operand(ds_tile, 0), k = operand(k_tile + columns, 0);
#pragma unroll
    for (int step = 0; step < ROWS / 16; step++)
        wgmma<E, COLUMNS>::template shared<0, 1>(acc, behind(ds, step / 4 * QUERIES * ROW_BYTES + step % 4 * 32),
                                                 behind(k, step * 16 * ROW_BYTES), step > 0);
}

/* sum (64, D) += ds of this consumer's keys, turned, times the queries. Queued, not finished. */
template <typename E, int D> __device__ inline void queue_dk(float (&sum)[D / 8][4], uint32_t ds_box, uint32_t q_tile) {
    const uint64_t ds = operand(ds_box, 0), q = operand(q_tile, QUERIES * ROW_BYTES);
#pragma unroll
    for (int step = 0; step < QUERIES / 16; step++)
        wgmma<E, D>::template shared<1, 1>(sum, behind(ds, step * 16 * ROW_BYTES), behind(q, step * 16 * ROW_BYTES), 1);
}

/* dq of a tile of queries of a head from its sums, which lie as the consumers' registers held them. A warp group calls; `staged` is shared
 * memory of half their size. */
template <typename E, int D, bool RING>
__device__ inline void round_dq(const launch_attention &a, int b, const tile_pair &p, bool any, uint32_t staged) {
    const int q0 = p.tile * QUERIES, thread = (int)threadIdx.x % GROUP, lane = thread % WARP;
    const int row = thread / WARP * MMA_ROWS;
    const int64_t first = (int64_t)b * a.T + q0;
    const float4 *sums = (const float4 *)a.dq_sums + dq_tile(a, b, p) * (QUERIES * D / 4);
    float dq[1][D / 8][4];
#pragma unroll
    for (int c = 0; c < D / 8; c++) {
        const float4 x = any ? __ldcg(sums + c * GROUP + thread) : float4{0, 0, 0, 0};
        dq[0][c][0] = x.x * a.scale, dq[0][c][1] = x.y * a.scale;
        dq[0][c][2] = x.z * a.scale, dq[0][c][3] = x.w * a.scale;
    }
    if constexpr (RING)
        ring_sums<D>(a, (float *)a.dq + (first * a.H + p.head) * D, (int64_t)a.H * D, (int)a.T - q0, row, dq, lane);
    else
        store_sums<E, D, 1>((E *)a.dq + first * a.q_stride + p.head * D, a.q_stride, (int)a.T - q0, staged, row, dq,
                            lane);
}

template <typename E, int D, bool RING>
__device__ void consume(const launch_attention &a, const shared_layout<D> &in, int n_tasks, int consumer) {
    const int T = (int)a.T, lane = (int)threadIdx.x % WARP, row = (int)threadIdx.x % GROUP / WARP * MMA_ROWS;
    const float factor = a.scale * LOG2_E;
    const uint32_t dq_part = in.dq + consumer * dq_part_bytes<D>();
    ring_place<Q_STAGES> q_place;
    ring_place<DY_STAGES> dy_place;
    uint32_t dq_parity = 0, ds_stage = 0;
    for (int round = 0, i; (i = task_of_round(round)) < n_tasks; round++) {
        const key_task task = key_task_of<RING>(a, i);
        const int k0 = task.tile * ROWS + consumer * GROUP_ROWS; /* of the group */
        float dk[1][D / 8][4], dv[1][D / 8][4];
        clear(dk[0]);
        clear(dv[0]);
        barrier_wait(in.barrier(KV_FULL), round & 1);
        uint32_t held = Q_STAGES; /* stage whose queries the product before still reads; Q_STAGES: none */
        const int n_pairs = pair_count(a, task);
        for (int n = 0; n < n_pairs; n++) {
            const int q0 = pair_of(a, task, n).tile * QUERIES;
            const uint32_t q_tile = in.q + q_place.stage * tile_bytes<D>(QUERIES);
            const uint32_t dy_tile = in.dy + dy_place.stage * tile_bytes<D>(QUERIES);
            const query_statistics &of = in.statistics[q_place.stage];
            float s[QUERIES / 8][4], dp[QUERIES / 8][4], dq[D / 16][4];
            uint32_t p[QUERIES / 16][4], ds[QUERIES / 16][4];
            barrier_wait(in.barrier(Q_FULL + q_place.stage), q_place.parity);
            wgmma_begin();
            queue_product_of_rows<E, D, QUERIES>(s, in.k, ROWS, consumer * GROUP_ROWS, q_tile);
            wgmma_commit();
            wgmma_wait<1>(); /* dk of the tile before */
            if (held < Q_STAGES) release(in.barrier(Q_EMPTY + held), lane);
            held = q_place.stage;
            barrier_wait(in.barrier(DY_FULL + dy_place.stage), dy_place.parity);
            wgmma_begin();
            queue_product_of_rows<E, D, QUERIES>(dp, in.v, ROWS, consumer * GROUP_ROWS, dy_tile);
            wgmma_commit();
            wgmma_wait<1>(); /* scores */
            wgmma_settle(s);
#pragma unroll
            for (int c = 0; c < QUERIES / 8; c++) {
                const float2 lse_2 = *(const float2 *)&of.lse_2[c * 8 + lane % 4 * 2]; /* a query and its neighbour */
#pragma unroll
                for (int e = 0; e < 4; e++) s[c][e] = power_of_2(fmaf(s[c][e], factor, -(e % 2 ? lse_2.y : lse_2.x)));
            }
            const bool ends = RING ? of.least_end < k0 + GROUP_ROWS : q0 < k0 + GROUP_ROWS || q0 + QUERIES > T;
            if (ends || of.latest_start > k0 + row) {
#pragma unroll
                for (int c = 0; c < QUERIES / 8; c++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const int column = c * 8 + lane % 4 * 2 + e % 2, query = q0 + column;
                        const int key = k0 + row + e / 2 * 8 + lane / 4;
                        const bool behind = RING ? key >= of.end[column] : key > query || query >= T;
                        if (behind || key < of.start[column]) s[c][e] = 0;
                    }
            }
            pack_all<E>(p, s);
            wgmma_begin();
            queue_product_with_rows<E, D, QUERIES>(dv[0], p, dy_tile);
            wgmma_commit();
            wgmma_wait<1>(); /* dp */
            wgmma_settle(dp);
#pragma unroll
            for (int c = 0; c < QUERIES / 8; c++) {
                const float2 delta = *(const float2 *)&of.delta[c * 8 + lane % 4 * 2];
#pragma unroll
                for (int e = 0; e < 4; e++) dp[c][e] = s[c][e] * (dp[c][e] - (e % 2 ? delta.y : delta.x));
            }
            barrier_arrive(in.barrier(STATISTICS_EMPTY + q_place.stage)); /* every lane: each has read some of them */
            pack_all<E>(ds, dp);
            const uint32_t ds_tile = in.ds + ds_stage * QUERIES * ROWS * 2;
            share_ds(ds_tile + consumer * QUERIES * ROW_BYTES, row, ds, lane);
            wgmma_begin();
            queue_dq<E, D>(dq, ds_tile, in.k, consumer);
            wgmma_commit();
            queue_dk<E, D>(dk[0], ds_tile + consumer * QUERIES * ROW_BYTES, q_tile);
            wgmma_commit();
            wgmma_wait<1>(); /* dv and dq */
            wgmma_settle(dq);
            release(in.barrier(DY_EMPTY + dy_place.stage), lane);
            barrier_wait(in.barrier(DQ_EMPTY + consumer), dq_parity ^ 1);
#pragma unroll
            for (int c = 0; c < D / 16; c++)
                store_shared_16(dq_part + (c * GROUP + threadIdx.x % GROUP) * 16, *(const uint4 *)dq[c]);
            fence_bulk();
            barrier_arrive(in.barrier(DQ_FULL + dq_parity * CONSUMERS + consumer));
            dq_parity ^= 1, ds_stage ^= 1;
            q_place.advance(), dy_place.advance();
        }
        wgmma_wait<0>();
        wgmma_settle(dk[0]);
        wgmma_settle(dv[0]);
        if (held < Q_STAGES) release(in.barrier(Q_EMPTY + held), lane);
        release(in.barrier(KV_EMPTY), lane);
        scale_row<1, D>(dk, 0, 0, a.scale);
        scale_row<1, D>(dk, 0, 1, a.scale);
        const int64_t out = ((int64_t)task.b * a.T + k0) * a.kv_stride + task.g * D, value = out + (int64_t)a.G * D;
        if constexpr (RING) {
            ring_sums<D>(a, (float *)a.dkv + out, a.kv_stride, T - k0, row, dk, lane);
            ring_sums<D>(a, (float *)a.dkv + value, a.kv_stride, T - k0, row, dv, lane);
        } else { /* by way of where dq was */
            barrier_wait(in.barrier(DQ_EMPTY + consumer), dq_parity ^ 1);
            store_sums<E, D, 1>((E *)a.dkv + out, a.kv_stride, T - k0, dq_part, row, dk, lane);
            store_sums<E, D, 1>((E *)a.dkv + value, a.kv_stride, T - k0, dq_part, row, dv, lane);
            threads_meet(2 + consumer, GROUP);
        }
    }
}
#endif

/* ---- kernels and launchers --------------------------------------------------------------------------------------- */

template <typename E, int D, bool RING>
__global__ void __launch_bounds__(THREADS, 1)
    attention_wgmma_backward(const __grid_constant__ launch_attention a, const __grid_constant__ CUtensorMap queries,
                             const __grid_constant__ CUtensorMap keys, const __grid_constant__ CUtensorMap dy) {
#if WGMMA_HERE
    extern __shared__ __align__(1024) unsigned char shared[];
    const shared_layout<D> in(shared);
    const int n_tasks = (int)a.B * a.G * (((int)a.T + ROWS - 1) / ROWS);
    const int group = warp_group(), warp = (int)threadIdx.x / WARP;
    if (threadIdx.x == 0) {
        barrier_init(in.barrier(KV_FULL), 2); /* k and v */
        barrier_init(in.barrier(KV_EMPTY), CONSUMER_WARPS);
        for (int i = 0; i < Q_STAGES; i++) {
            barrier_init(in.barrier(Q_FULL + i), 1 + WARP); /* the tile, and the warp that writes its statistics */
            barrier_init(in.barrier(Q_EMPTY + i), CONSUMER_WARPS);
            barrier_init(in.barrier(STATISTICS_EMPTY + i), CONSUMERS * GROUP);
        }
        for (int i = 0; i < DY_STAGES; i++) {
            barrier_init(in.barrier(DY_FULL + i), 1);
            barrier_init(in.barrier(DY_EMPTY + i), CONSUMER_WARPS);
        }
        for (int i = 0; i < ADDERS * CONSUMERS; i++) barrier_init(in.barrier(DQ_FULL + i), GROUP);
        for (int i = 0; i < CONSUMERS; i++) barrier_init(in.barrier(DQ_EMPTY + i), 1);
        barriers_publish();
    }
    __syncthreads();
    if (group == 0) {
        registers_give<D == 64 ? 40 : 24>();
        if (warp == 0) fetch_tiles<D, RING>(a, &queries, &keys, &dy, in, n_tasks);
        else if (warp == 1) fetch_statistics<D, RING>(a, in, n_tasks);
        else add_dq<D, RING>(a, in, n_tasks, warp - 2);
    } else {
        registers_take<D == 64 ? 232 : 240>();
        consume<E, D, RING>(a, in, n_tasks, group - 1);
    }
#else
    __trap();
#endif
}

/* dq from its sums, one block per tile of queries of a head. In a ring a tile may see no key of this rank: nobody has added. */
template <typename E, int D, bool RING>
__global__ void __launch_bounds__(DQ_THREADS) attention_wgmma_dq(const __grid_constant__ launch_attention a) {
#if WGMMA_HERE
    __shared__ __align__(128) unsigned char staged[RING ? 16 : QUERIES * D * 2];
    const int n_tiles = ((int)a.T + QUERIES - 1) / QUERIES, tile = (int)(blockIdx.x % n_tiles);
    const int b = (int)(blockIdx.x / n_tiles / a.H), head = (int)(blockIdx.x / n_tiles % a.H);
    const int32_t *doc_start = a.doc_start + b * a.T;
    const bool any = !RING || end_key_tile<RING>(a, doc_start, tile) > first_key_tile<RING>(a, doc_start, tile);
    round_dq<E, D, RING>(a, b, {head, tile}, any, shared_address(staged));
#else
    __trap();
#endif
}

template <typename E, int D, bool RING>
void backward(const launch_attention *a, const attention_maps *m, cudaStream_t s) {
    int64_t n_tasks = a->B * a->G * ((a->T + ROWS - 1) / ROWS), most = a->n_multiprocessors;
    launch_kernel(attention_wgmma_backward<E, D, RING>, n_tasks < most ? n_tasks : most, THREADS, shared_bytes<D>(), s,
                  *a, m->q, m->kv, m->dy);
    launch_kernel(attention_wgmma_dq<E, D, RING>, a->B * a->H * ((a->T + QUERIES - 1) / QUERIES), DQ_THREADS, 0, s, *a);
}

template <typename E, bool RING> void by_length(const launch_attention *a, const attention_maps *m, cudaStream_t s) {
    (a->D == 64 ? backward<E, 64, RING> : backward<E, 128, RING>)(a, m, s);
}

} // namespace

extern "C" void launch_attention_wgmma_backward(const launch_attention *a, const attention_maps *m, cudaStream_t s) {
    bool ring = a->n_ranks > 0;
    if (a->type == LAUNCH_BF16) (ring ? by_length<__nv_bfloat16, true> : by_length<__nv_bfloat16, false>)(a, m, s);
    else (ring ? by_length<__half, true> : by_length<__half, false>)(a, m, s);
}
