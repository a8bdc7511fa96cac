/* attention_wgmma_bwd.cu - the backward of attention for compute capability 9.0, bf16 and fp16.
 *
 * The two kernels of attention_bwd.cu, dq by tiles of queries and dk, dv by tiles of keys, in the form of
 * attention_wgmma_fwd.cu: one block per multiprocessor that stays, one warp group that fetches ahead, two that compute 64
 * rows each. Products are queued so that the next tile's scores and this tile's last product keep the tensor cores busy
 * while exponentials are taken; a buffer is given back when the first wait after its last product has passed. */
#include "backend/cuda/attention_wgmma.cuh"

namespace {

enum { CONSUMERS = 2, ROWS = CONSUMERS * 64, THREADS = (1 + CONSUMERS) * 128, CONSUMER_WARPS = CONSUMERS * 4 };

/* dq: ROWS queries stay, tiles of DQ_KEYS keys pass. */
enum { DQ_KEYS = 64, DQ_STAGES = 3 };
enum {
    DQ_ROWS_FULL,
    DQ_ROWS_EMPTY,
    DQ_K_FULL,
    DQ_K_EMPTY = DQ_K_FULL + DQ_STAGES,
    DQ_V_FULL = DQ_K_EMPTY + DQ_STAGES,
    DQ_V_EMPTY = DQ_V_FULL + DQ_STAGES,
    DQ_BARRIERS = DQ_V_EMPTY + DQ_STAGES
};
template <int D> constexpr size_t dq_bytes() { return (3 * ROWS + 2 * DQ_STAGES * DQ_KEYS) * D * 2 + DQ_BARRIERS * 8; }

/* dk, dv: ROWS keys stay, tiles of QUERIES queries pass with their statistics. */
enum { QUERIES = 64, STAGES = 3 };
enum {
    KV_FULL,
    KV_EMPTY,
    Q_FULL,
    DY_FULL = Q_FULL + STAGES,
    EMPTY = DY_FULL + STAGES,
    STATISTICS_EMPTY = EMPTY + STAGES,
    N_BARRIERS = STATISTICS_EMPTY + STAGES
};
struct query_statistics {
    float lse_2[QUERIES], delta[QUERIES]; /* lse in units of log 2 */
    int32_t start[QUERIES], end[QUERIES]; /* keys that a query sees; end: of a ring */
    int32_t latest_start, least_end;      /* 8 bytes, for the barriers behind */
};
template <int D> constexpr size_t dkv_bytes() {
    return (3 * ROWS + 2 * STAGES * QUERIES) * D * 2 + STAGES * sizeof(query_statistics) + N_BARRIERS * 8;
}
static_assert(dq_bytes<128>() <= 227 << 10 && dkv_bytes<128>() <= 227 << 10,
              "more shared memory than a block of capability 9.0 may have");

#if WGMMA_HERE
using namespace attention_wgmma;

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

/* ---- dq --------------------------------------------------------------------------------------------------------- */

template <int D> struct dq_layout {
    uint32_t q, dy, k, v, out, barriers; /* k, v: (stage) */
    __device__ explicit dq_layout(const void *shared) {
        q = shared_address(shared);
        dy = q + tile_bytes<D>(ROWS);
        k = dy + tile_bytes<D>(ROWS);
        v = k + DQ_STAGES * tile_bytes<D>(DQ_KEYS);
        out = v + DQ_STAGES * tile_bytes<D>(DQ_KEYS);
        barriers = out + tile_bytes<D>(ROWS);
    }
    __device__ uint32_t barrier(int which) const { return barriers + which * 8; }
};

template <int D, bool RING>
__device__ void dq_produce(const launch_attention &a, const CUtensorMap *queries, const CUtensorMap *keys,
                           const CUtensorMap *dy, const dq_layout<D> &in, int n_tiles) {
    const int lane = (int)threadIdx.x % WARP;
    ring_place<DQ_STAGES> place;
    for (int round = 0, i; (i = task_of_round(round)) < (int)a.B * a.H * n_tiles; round++) {
        const tile_task task = tile_task_of(i, n_tiles, a.B, a.H);
        const int q0 = task.tile * ROWS, g = task.head / (a.H / a.G), b = (int)task.b;
        const key_walk walk = key_walk_of<ROWS, DQ_KEYS, RING>(a, a.doc_start + task.b * a.T, q0, lane);
        if (lane == 0) {
            barrier_wait(in.barrier(DQ_ROWS_EMPTY), ~round & 1);
            tile_fetch<D>(in.q, queries, task.head * D, q0, b, ROWS, in.barrier(DQ_ROWS_FULL));
            tile_fetch<D>(in.dy, dy, task.head * D, q0, b, ROWS, in.barrier(DQ_ROWS_FULL));
            for (int t = 0; t < walk.n; t++, place.advance()) {
                const int k0 = walk.first + t * DQ_KEYS, at = place.stage;
                barrier_wait(in.barrier(DQ_K_EMPTY + at), place.parity ^ 1);
                tile_fetch<D>(in.k + at * tile_bytes<D>(DQ_KEYS), keys, key_column<D, RING>(a, g), k0, b, DQ_KEYS,
                              in.barrier(DQ_K_FULL + at));
                barrier_wait(in.barrier(DQ_V_EMPTY + at), place.parity ^ 1);
                tile_fetch<D>(in.v + at * tile_bytes<D>(DQ_KEYS), keys, key_column<D, RING>(a, a.G + g), k0, b, DQ_KEYS,
                              in.barrier(DQ_V_FULL + at));
            }
        }
        __syncwarp();
    }
}

template <typename E, int D, bool RING>
__device__ void dq_consume(const launch_attention &a, const dq_layout<D> &in, int n_tiles, int consumer) {
    const int T = (int)a.T, lane = (int)threadIdx.x % WARP, row = (int)threadIdx.x % GROUP / WARP * MMA_ROWS;
    const int stride = (a.H + 2 * a.G) * D;
    const float factor = a.scale * LOG2_E;
    ring_place<DQ_STAGES> place;
    for (int round = 0, i; (i = task_of_round(round)) < (int)a.B * a.H * n_tiles; round++) {
        const tile_task task = tile_task_of(i, n_tiles, a.B, a.H);
        const int64_t base = task.b * a.T;
        const int32_t *doc_start = a.doc_start + base;
        const int tile_q0 = task.tile * ROWS, q0 = tile_q0 + consumer * GROUP_ROWS; /* of the group */
        const key_walk walk = key_walk_of<ROWS, DQ_KEYS, RING>(a, doc_start, tile_q0, lane);
        int last[2], start[2]; /* keys that a query sees */
        float lse_2[2], delta[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int query = q0 + row + half * 8 + lane / 4, there = min(query, T - 1);
            const int64_t at = (task.b * a.H + task.head) * a.T + there;
            const key_span seen = keys_seen<RING>(a, doc_start, there);
            start[half] = seen.first, last[half] = RING ? seen.end - 1 : query;
            lse_2[half] = a.lse[at] * LOG2_E;
            delta[half] = a.delta[at];
        }
        const int latest_start = __reduce_max_sync(0xffffffff, max(start[0], start[1]));
        const int least_last = RING ? __reduce_min_sync(0xffffffff, min(last[0], last[1])) : q0 + row;
        float s[DQ_KEYS / 8][4], dp[DQ_KEYS / 8][4], dq[1][D / 8][4];
        uint32_t ds[DQ_KEYS / 16][4];
        clear(dq[0]);
        barrier_wait(in.barrier(DQ_ROWS_FULL), round & 1);
        uint32_t k_held = 0; /* stage whose keys the product before still reads */
        for (int t = 0; t < walk.n; t++, place.advance()) {
            const int k0 = walk.first + t * DQ_KEYS;
            const uint32_t k_tile = in.k + place.stage * tile_bytes<D>(DQ_KEYS);
            barrier_wait(in.barrier(DQ_K_FULL + place.stage), place.parity);
            wgmma_begin();
            queue_product_of_rows<E, D, DQ_KEYS>(s, in.q, ROWS, consumer * GROUP_ROWS, k_tile);
            wgmma_commit();
            barrier_wait(in.barrier(DQ_V_FULL + place.stage), place.parity);
            wgmma_begin();
            queue_product_of_rows<E, D, DQ_KEYS>(dp, in.dy, ROWS, consumer * GROUP_ROWS,
                                                 in.v + place.stage * tile_bytes<D>(DQ_KEYS));
            wgmma_commit();
            wgmma_wait<1>(); /* scores, and with them dq of the tile before */
            wgmma_settle(s);
            if (t > 0) release(in.barrier(DQ_K_EMPTY + k_held), lane);
            k_held = place.stage;
#pragma unroll
            for (int n = 0; n < DQ_KEYS / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) s[n][e] = power_of_2(fmaf(s[n][e], factor, -lse_2[e / 2]));
            wgmma_wait<0>();
            wgmma_settle(dp);
            release(in.barrier(DQ_V_EMPTY + place.stage), lane);
#pragma unroll
            for (int n = 0; n < DQ_KEYS / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) dp[n][e] = s[n][e] * (dp[n][e] - delta[e / 2]);
            if (k0 + DQ_KEYS - 1 > least_last || k0 < latest_start) {
#pragma unroll
                for (int n = 0; n < DQ_KEYS / 8; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const int key = k0 + n * 8 + lane % 4 * 2 + e % 2;
                        if (key > last[e / 2] || key < start[e / 2]) dp[n][e] = 0;
                    }
            }
            pack_all<E>(ds, dp);
            wgmma_begin();
            queue_product_with_rows<E, D, DQ_KEYS>(dq[0], ds, k_tile);
            wgmma_commit();
        }
        release(in.barrier(DQ_ROWS_EMPTY), lane);
        wgmma_wait<0>();
        wgmma_settle(dq[0]);
        if (!RING || walk.n > 0) release(in.barrier(DQ_K_EMPTY + k_held), lane);
        scale_row<1, D>(dq, 0, 0, a.scale);
        scale_row<1, D>(dq, 0, 1, a.scale);
        if constexpr (RING)
            ring_sums<D>(a, (float *)a.dq + ((base + q0) * a.H + task.head) * D, (int64_t)a.H * D, T - q0, row, dq,
                         lane);
        else
            store_sums<E, D, 1>((E *)a.dq + (base + q0) * stride + task.head * D, stride, T - q0,
                                in.out + consumer * tile_bytes<D>(GROUP_ROWS), row, dq, lane);
    }
}

/* ---- dk, dv ----------------------------------------------------------------------------------------------------- */

template <int D> struct dkv_layout {
    uint32_t k, v, q, dy, out, barriers; /* q, dy: (stage) */
    query_statistics *statistics;        /* (stage) */
    __device__ explicit dkv_layout(unsigned char *shared) {
        k = shared_address(shared);
        v = k + tile_bytes<D>(ROWS);
        q = v + tile_bytes<D>(ROWS);
        dy = q + STAGES * tile_bytes<D>(QUERIES);
        out = dy + STAGES * tile_bytes<D>(QUERIES);
        statistics = (query_statistics *)(shared + (3 * ROWS + 2 * STAGES * QUERIES) * D * 2);
        barriers = shared_address(statistics + STAGES);
    }
    __device__ uint32_t barrier(int which) const { return barriers + which * 8; }
};

/* A tile of keys of a kv head and the queries that see it: tiles from its own position to the last document that reaches
 * it, of every head of the group in turn. The first tiles of keys walk longest and come first. */
struct key_task {
    int b, g, k0, first, n_tiles; /* first: of the queries */
};

/* The first query of a ring whose span of keys ends behind `key` (ends), or begins at it or behind; T: none. Both grow with the query. */
template <bool ENDS> __device__ inline int first_query(const launch_attention &a, const int32_t *doc_start, int key) {
    int low = 0, high = (int)a.T;
    while (low < high) {
        const int middle = (low + high) / 2;
        const key_span seen = keys_seen<true>(a, doc_start, middle);
        if (ENDS ? seen.end > key : seen.first >= key) high = middle;
        else low = middle + 1;
    }
    return low;
}

template <bool RING> __device__ inline key_task key_task_of(const launch_attention &a, int task, int lane) {
    const int pairs = (int)a.B * a.G, pair = task % pairs;
    key_task t = {pair / a.G, pair % a.G, task / pairs * ROWS, 0, 0};
    const int32_t *doc_start = a.doc_start + t.b * a.T;
    if (RING) {
        const int first = first_query<true>(a, doc_start, t.k0), end = first_query<false>(a, doc_start, t.k0 + ROWS);
        t.first = first / QUERIES * QUERIES;
        t.n_tiles = first < end ? (end - t.first + QUERIES - 1) / QUERIES : 0;
        return t;
    }
    t.first = t.k0;
    int last = -1;
    /* Most often the very last query that could does. */
    for (int end = min((int)a.T, t.k0 + ROWS - 1 + a.window); last < 0; end -= 4 * WARP) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int q = end - 1 - lane - i * WARP;
            if (q >= t.k0 && first_key(a, doc_start, q) < t.k0 + ROWS) last = max(last, q);
        }
        last = __reduce_max_sync(0xffffffff, last);
    }
    t.n_tiles = (last - t.k0) / QUERIES + 1;
    return t;
}

/* One warp: tiles. */
template <int D, bool RING>
__device__ void dkv_produce(const launch_attention &a, const CUtensorMap *queries, const CUtensorMap *keys,
                            const CUtensorMap *dy, const dkv_layout<D> &in, int n_tasks) {
    const int lane = (int)threadIdx.x % WARP, group = a.H / a.G;
    ring_place<STAGES> place;
    for (int round = 0, i; (i = task_of_round(round)) < n_tasks; round++) {
        const key_task task = key_task_of<RING>(a, i, lane);
        if (lane == 0) {
            barrier_wait(in.barrier(KV_EMPTY), ~round & 1);
            tile_fetch<D>(in.k, keys, key_column<D, RING>(a, task.g), task.k0, task.b, ROWS, in.barrier(KV_FULL));
            tile_fetch<D>(in.v, keys, key_column<D, RING>(a, a.G + task.g), task.k0, task.b, ROWS, in.barrier(KV_FULL));
            for (int head = task.g * group; head < (task.g + 1) * group; head++)
                for (int t = 0; t < task.n_tiles; t++, place.advance()) {
                    const int q0 = task.first + t * QUERIES, at = place.stage;
                    barrier_wait(in.barrier(EMPTY + at), place.parity ^ 1);
                    tile_fetch<D>(in.q + at * tile_bytes<D>(QUERIES), queries, head * D, q0, task.b, QUERIES,
                                  in.barrier(Q_FULL + at));
                    tile_fetch<D>(in.dy + at * tile_bytes<D>(QUERIES), dy, head * D, q0, task.b, QUERIES,
                                  in.barrier(DY_FULL + at));
                }
        }
        __syncwarp();
    }
}

/* Another: what the queries of a tile bring along; they need not lie where the TMA unit could fetch them. */
template <int D, bool RING>
__device__ void dkv_statistics(const launch_attention &a, const dkv_layout<D> &in, int n_tasks) {
    const int T = (int)a.T, lane = (int)threadIdx.x % WARP, group = a.H / a.G;
    ring_place<STAGES> place;
    for (int round = 0, i; (i = task_of_round(round)) < n_tasks; round++) {
        const key_task task = key_task_of<RING>(a, i, lane);
        for (int head = task.g * group; head < (task.g + 1) * group; head++)
            for (int t = 0; t < task.n_tiles; t++, place.advance()) {
                query_statistics &of = in.statistics[place.stage];
                float lse_2[2], delta[2];
                int start[2], end[2];
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int query = task.first + t * QUERIES + lane + half * WARP, q = min(query, T - 1);
                    const int64_t at = (task.b * a.H + head) * a.T + q;
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

template <typename E, int D, bool RING>
__device__ void dkv_consume(const launch_attention &a, const dkv_layout<D> &in, int n_tasks, int consumer) {
    const int T = (int)a.T, lane = (int)threadIdx.x % WARP, row = (int)threadIdx.x % GROUP / WARP * MMA_ROWS;
    const int group = a.H / a.G;
    const float factor = a.scale * LOG2_E;
    ring_place<STAGES> place;
    for (int round = 0, i; (i = task_of_round(round)) < n_tasks; round++) {
        const key_task task = key_task_of<RING>(a, i, lane);
        const int k0 = task.k0 + consumer * GROUP_ROWS; /* of the group */
        float s[QUERIES / 8][4], dp[QUERIES / 8][4], dk[1][D / 8][4], dv[1][D / 8][4];
        uint32_t p[QUERIES / 16][4], ds[QUERIES / 16][4];
        clear(dk[0]);
        clear(dv[0]);
        barrier_wait(in.barrier(KV_FULL), round & 1);
        uint32_t held = STAGES; /* stage whose queries the product before still reads; STAGES: none */
        for (int left = group * task.n_tiles, q0 = task.first; left > 0; left--, place.advance()) {
            const uint32_t q_tile = in.q + place.stage * tile_bytes<D>(QUERIES);
            const uint32_t dy_tile = in.dy + place.stage * tile_bytes<D>(QUERIES);
            const query_statistics &of = in.statistics[place.stage];
            barrier_wait(in.barrier(Q_FULL + place.stage), place.parity);
            wgmma_begin();
            queue_product_of_rows<E, D, QUERIES>(s, in.k, ROWS, consumer * GROUP_ROWS, q_tile);
            wgmma_commit();
            wgmma_wait<1>(); /* dk of the tile before */
            if (held < STAGES) release(in.barrier(EMPTY + held), lane);
            held = place.stage;
            barrier_wait(in.barrier(DY_FULL + place.stage), place.parity);
            wgmma_begin();
            queue_product_of_rows<E, D, QUERIES>(dp, in.v, ROWS, consumer * GROUP_ROWS, dy_tile);
            wgmma_commit();
            wgmma_wait<1>(); /* scores */
            wgmma_settle(s);
#pragma unroll
            for (int n = 0; n < QUERIES / 8; n++) {
                const int column = n * 8 + lane % 4 * 2; /* one query and its neighbour, two keys of each */
                const float2 lse_2 = *(const float2 *)&of.lse_2[column];
#pragma unroll
                for (int e = 0; e < 4; e++) s[n][e] = power_of_2(fmaf(s[n][e], factor, -(e % 2 ? lse_2.y : lse_2.x)));
            }
            const bool ends = RING ? of.least_end < k0 + GROUP_ROWS : q0 < k0 + GROUP_ROWS || q0 + QUERIES > T;
            if (ends || of.latest_start > k0 + row) {
#pragma unroll
                for (int n = 0; n < QUERIES / 8; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const int column = n * 8 + lane % 4 * 2 + e % 2, query = q0 + column;
                        const int key = k0 + row + e / 2 * 8 + lane / 4;
                        const bool behind = RING ? key >= of.end[column] : key > query || query >= T;
                        if (behind || key < of.start[column]) s[n][e] = 0;
                    }
            }
            wgmma_wait<0>(); /* dp */
            wgmma_settle(dp);
#pragma unroll
            for (int n = 0; n < QUERIES / 8; n++) {
                const float2 delta = *(const float2 *)&of.delta[n * 8 + lane % 4 * 2];
#pragma unroll
                for (int e = 0; e < 4; e++) dp[n][e] = s[n][e] * (dp[n][e] - (e % 2 ? delta.y : delta.x));
            }
            barrier_arrive(in.barrier(STATISTICS_EMPTY + place.stage)); /* every lane: each has read some of them */
            pack_all<E>(p, s);
            pack_all<E>(ds, dp);
            wgmma_begin();
            queue_product_with_rows<E, D, QUERIES>(dv[0], p, dy_tile);
            wgmma_commit();
            queue_product_with_rows<E, D, QUERIES>(dk[0], ds, q_tile);
            wgmma_commit();
            wgmma_wait<1>(); /* dv: with p still in use, registers would not suffice for the next tile */
            q0 += QUERIES;
            if (q0 == task.first + task.n_tiles * QUERIES) q0 = task.first; /* the next head */
        }
        wgmma_wait<0>();
        wgmma_settle(dk[0]);
        wgmma_settle(dv[0]);
        if (held < STAGES) release(in.barrier(EMPTY + held), lane);
        release(in.barrier(KV_EMPTY), lane);
        scale_row<1, D>(dk, 0, 0, a.scale);
        scale_row<1, D>(dk, 0, 1, a.scale);
        const uint32_t tile = in.out + consumer * tile_bytes<D>(GROUP_ROWS);
        const int64_t out = (task.b * a.T + k0) * a.kv_stride + task.g * D, value = out + (int64_t)a.G * D;
        if constexpr (RING) {
            ring_sums<D>(a, (float *)a.dkv + out, a.kv_stride, T - k0, row, dk, lane);
            ring_sums<D>(a, (float *)a.dkv + value, a.kv_stride, T - k0, row, dv, lane);
        } else {
            store_sums<E, D, 1>((E *)a.dkv + out, a.kv_stride, T - k0, tile, row, dk, lane);
            store_sums<E, D, 1>((E *)a.dkv + value, a.kv_stride, T - k0, tile, row, dv, lane);
        }
    }
}
#endif

/* ---- kernels and launchers -------------------------------------------------------------------------------------- */

template <typename E, int D, bool RING>
__global__ void __launch_bounds__(THREADS, 1)
    attention_wgmma_dq(const __grid_constant__ launch_attention a, const __grid_constant__ CUtensorMap queries,
                       const __grid_constant__ CUtensorMap keys, const __grid_constant__ CUtensorMap dy) {
#if WGMMA_HERE
    extern __shared__ __align__(1024) unsigned char shared[];
    const dq_layout<D> in(shared);
    const int n_tiles = ((int)a.T + ROWS - 1) / ROWS, group = (int)threadIdx.x / GROUP;
    if (threadIdx.x == 0) {
        barrier_init(in.barrier(DQ_ROWS_FULL), 2); /* q and dy */
        barrier_init(in.barrier(DQ_ROWS_EMPTY), CONSUMER_WARPS);
        for (int i = 0; i < DQ_STAGES; i++) {
            barrier_init(in.barrier(DQ_K_FULL + i), 1);
            barrier_init(in.barrier(DQ_K_EMPTY + i), CONSUMER_WARPS);
            barrier_init(in.barrier(DQ_V_FULL + i), 1);
            barrier_init(in.barrier(DQ_V_EMPTY + i), CONSUMER_WARPS);
        }
        barriers_publish();
    }
    __syncthreads();
    if (group == 0) {
        registers_give<24>();
        if (threadIdx.x < WARP) dq_produce<D, RING>(a, &queries, &keys, &dy, in, n_tiles);
    } else {
        registers_take<240>();
        dq_consume<E, D, RING>(a, in, n_tiles, group - 1);
    }
#else
    __trap();
#endif
}

template <typename E, int D, bool RING>
__global__ void __launch_bounds__(THREADS, 1)
    attention_wgmma_dkv(const __grid_constant__ launch_attention a, const __grid_constant__ CUtensorMap queries,
                        const __grid_constant__ CUtensorMap keys, const __grid_constant__ CUtensorMap dy) {
#if WGMMA_HERE
    extern __shared__ __align__(1024) unsigned char shared[];
    const dkv_layout<D> in(shared);
    const int n_tasks = (int)a.B * a.G * (((int)a.T + ROWS - 1) / ROWS);
    const int group = (int)threadIdx.x / GROUP, warp = (int)threadIdx.x / WARP;
    if (threadIdx.x == 0) {
        barrier_init(in.barrier(KV_FULL), 2); /* k and v */
        barrier_init(in.barrier(KV_EMPTY), CONSUMER_WARPS);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(in.barrier(Q_FULL + i), 1 + WARP); /* the tile, and the warp that writes its statistics */
            barrier_init(in.barrier(DY_FULL + i), 1);
            barrier_init(in.barrier(EMPTY + i), CONSUMER_WARPS);
            barrier_init(in.barrier(STATISTICS_EMPTY + i), CONSUMERS * GROUP);
        }
        barriers_publish();
    }
    __syncthreads();
    if (group == 0) {
        registers_give<40>();
        if (warp == 0) dkv_produce<D, RING>(a, &queries, &keys, &dy, in, n_tasks);
        else if (warp == 1) dkv_statistics<D, RING>(a, in, n_tasks);
    } else {
        registers_take<232>();
        dkv_consume<E, D, RING>(a, in, n_tasks, group - 1);
    }
#else
    __trap();
#endif
}

template <typename E, int D, bool RING>
void backward(const launch_attention *a, const attention_maps *m, cudaStream_t s) {
    int64_t n_tiles = (a->T + ROWS - 1) / ROWS, most = a->n_multiprocessors;
    int64_t n_dq = a->B * a->H * n_tiles, n_dkv = a->B * a->G * n_tiles;
    launch_kernel(attention_wgmma_dq<E, D, RING>, n_dq < most ? n_dq : most, THREADS, dq_bytes<D>(), s, *a, m->q, m->kv,
                  m->dy);
    launch_kernel(attention_wgmma_dkv<E, D, RING>, n_dkv < most ? n_dkv : most, THREADS, dkv_bytes<D>(), s, *a, m->q,
                  m->kv, m->dy);
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
