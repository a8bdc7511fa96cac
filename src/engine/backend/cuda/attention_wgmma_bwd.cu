/* attention_wgmma_bwd.cu - the backward of attention for compute capability 9.0, bf16 and fp16.
 *
 * One block per multiprocessor stays there and takes tiles of 128 keys in turn; tiles of 64 queries pass. Two warp groups have 64 keys
 * each and sum dk and dv in registers. ds goes through shared memory to both, and each multiplies it with the keys for half of the columns
 * of dq. So scores are computed once: five products per pair of tiles. Of the first warp group one warp fetches tiles, one what the queries
 * bring along, and two take turns to add dq to fp32 sums in memory: with one, the steps of an addition (wait for the turn, add, wait until
 * it is there, pass the turn on) took longer than the products.
 *
 * Every sum is made in one order: attention_schedule.h says which block takes which tiles of keys, and when they add to dq; a count per tile of queries
 * says whose turn it is. The sums are rounded by a kernel behind, or, in short rows, by the block that adds last (ENDS): in long ones that costs
 * the products more than it saves. Where tiles are few, blocks have some heads of a group each, and dk and dv go from one to the next, in the order of heads. */
#include "backend/cuda/attention_wgmma.cuh"

namespace {

using namespace attention_wgmma;

enum { CONSUMERS = 2, ROWS = ATTENTION_KEY_ROWS, THREADS = (1 + CONSUMERS) * 128, CONSUMER_WARPS = CONSUMERS * 4 };
enum {
    QUERIES = ATTENTION_DQ_ROWS,
    Q_STAGES = 3,
    DY_STAGES = 2,
    DS_STAGES = 2,
    ADDERS = 2,
    DQ_THREADS = 128,
    ENDS_UP_TO = 2048 /* tokens of a row whose dq is rounded by who adds last */
};
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
    SUMS_FULL = DQ_EMPTY + CONSUMERS,        /* (who adds): the sums so far lie where dq goes */
    SUMS_EMPTY = SUMS_FULL + ADDERS,         /* (who adds): they may come */
    N_BARRIERS = SUMS_EMPTY + ADDERS
};
struct query_statistics {
    float lse_2[QUERIES], delta[QUERIES]; /* lse in units of log 2 */
    int32_t start[QUERIES], end[QUERIES]; /* keys that a query sees; end: of a ring */
    int32_t latest_start, least_end;
    int32_t ends_dq, unused; /* a dq_end; 16 bytes, for the barriers behind */
};
/* What a tile of keys does with its part of dq: hand it on to be added, or, the last one, add it to the sums, if there are any, and round. */
enum dq_end { DQ_ADD, DQ_END_ALONE, DQ_END_SUMS };
/* Columns of dq that a consumer computes. Of 96 the second one has 32 and computes 64: an operand cannot begin inside of a half and end in the next. */
template <int D> constexpr int dq_columns() { return D == 64 ? 32 : 64; }
template <int D> constexpr uint32_t dq_part_bytes() { return QUERIES * dq_columns<D>() * (uint32_t)sizeof(float); }
template <int D> __device__ constexpr uint32_t dq_used_bytes(int consumer) {
    return consumer + 1 < CONSUMERS ? dq_part_bytes<D>() : QUERIES * D * (uint32_t)sizeof(float) - dq_part_bytes<D>();
}
template <int D> constexpr size_t tiles_bytes() {
    return boxes_bytes<D>(2 * ROWS + (Q_STAGES + DY_STAGES) * QUERIES) + DS_STAGES * QUERIES * ROWS * 2 +
           CONSUMERS * dq_part_bytes<D>();
}
template <int D> constexpr size_t shared_bytes() {
    return tiles_bytes<D>() + Q_STAGES * sizeof(query_statistics) + N_BARRIERS * 8;
}
static_assert(shared_bytes<128>() <= 227 << 10, "more shared memory than a block of capability 9.0 may have");

#if WGMMA_HERE

template <int D> struct shared_layout {
    uint32_t k, v, q, dy, ds, dq, barriers; /* q, dy, ds: (stage); dq: (consumer) */
    query_statistics *statistics;           /* (stage of q) */
    __device__ explicit shared_layout(unsigned char *shared) {
        k = shared_address(shared);
        v = k + boxes_bytes<D>(ROWS);
        q = v + boxes_bytes<D>(ROWS);
        dy = q + Q_STAGES * boxes_bytes<D>(QUERIES);
        ds = dy + DY_STAGES * boxes_bytes<D>(QUERIES);
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

/* A tile of keys of a kv head and the tiles of queries that see it, of some heads of its group. */
struct key_task {
    int b, g, part, tile, first, end; /* tiles of queries [first, end); of the part-th heads */
};
/* The i-th pair that they make: from the last tile to the first, all heads of each. */
struct tile_pair {
    int head, tile; /* of queries */
};
__device__ inline tile_pair pair_of(const key_schedule &s, const key_task &t, int i) {
    return {(t.g * s.n_parts + t.part) * s.heads + i % s.heads, t.end - 1 - i / s.heads};
}
__device__ inline int pair_count(const key_schedule &s, const key_task &t) { return max(t.end - t.first, 0) * s.heads; }

/* The next task of this block, if there is one; `at` counts. */
template <bool RING>
__device__ inline bool next_task(const launch_attention &a, const key_schedule &s, int &at, key_task &t) {
    key_place place;
    if (!attention_next_tile(&s, (int)blockIdx.x, &at, &place)) return false;
    at++;
    t.tile = place.tile, t.part = place.unit % s.n_parts;
    t.b = place.unit / s.n_parts / a.G, t.g = place.unit / s.n_parts % a.G;
    const int n_tiles = ((int)a.T + QUERIES - 1) / QUERIES;
    const int32_t *doc_start = a.doc_start + t.b * a.T;
    t.first = 0, t.end = n_tiles;
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
    return true;
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
                            const CUtensorMap *dy, const shared_layout<D> &in, const key_schedule &s) {
    const int lane = (int)threadIdx.x % WARP;
    ring_place<Q_STAGES> q_place;
    ring_place<DY_STAGES> dy_place;
    key_task task;
    for (int round = 0, at = 0; next_task<RING>(a, s, at, task); round++) {
        if (lane == 0) {
            const int n_pairs = pair_count(s, task), k0 = task.tile * ROWS;
            barrier_wait(in.barrier(KV_EMPTY), ~round & 1);
            tile_fetch<D>(in.k, keys, key_column<D, RING>(a, task.g), k0, task.b, ROWS, in.barrier(KV_FULL));
            tile_fetch<D>(in.v, keys, key_column<D, RING>(a, a.G + task.g), k0, task.b, ROWS, in.barrier(KV_FULL));
            for (int n = 0; n < n_pairs; n++, q_place.advance(), dy_place.advance()) {
                const tile_pair pair = pair_of(s, task, n);
                barrier_wait(in.barrier(Q_EMPTY + q_place.stage), q_place.parity ^ 1);
                tile_fetch<D>(in.q + q_place.stage * boxes_bytes<D>(QUERIES), queries, pair.head * D,
                              pair.tile * QUERIES, task.b, QUERIES, in.barrier(Q_FULL + q_place.stage));
                barrier_wait(in.barrier(DY_EMPTY + dy_place.stage), dy_place.parity ^ 1);
                tile_fetch<D>(in.dy + dy_place.stage * boxes_bytes<D>(QUERIES), dy, pair.head * D, pair.tile * QUERIES,
                              task.b, QUERIES, in.barrier(DY_FULL + dy_place.stage));
            }
        }
        __syncwarp();
    }
}

/* Another: what the queries of a tile bring along; they need not lie where the TMA unit could fetch them. */
template <int D, bool ENDS, bool RING>
__device__ void fetch_statistics(const launch_attention &a, const shared_layout<D> &in, const key_schedule &s) {
    const int T = (int)a.T, lane = (int)threadIdx.x % WARP;
    ring_place<Q_STAGES> place;
    key_task task;
    for (int at = 0; next_task<RING>(a, s, at, task);) {
        const int n_pairs = pair_count(s, task);
        for (int n = 0; n < n_pairs; n++, place.advance()) {
            const tile_pair pair = pair_of(s, task, n);
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
            if (lane == 0) {
                of.latest_start = latest, of.least_end = least_end, of.ends_dq = DQ_ADD;
                if (ENDS) {
                    const int first = start[0] / ROWS, last = min(pair.tile * QUERIES + QUERIES, T) - 1;
                    const int before = attention_adds_before(&s, task.tile, first, last / ROWS + 1);
                    if (before == last / ROWS - first) of.ends_dq = before > 0 ? DQ_END_SUMS : DQ_END_ALONE;
                }
            }
            barrier_arrive(in.barrier(Q_FULL + place.stage));
        }
    }
}

/* Two in turn: dq of every other pair on to the sums, when the tiles of keys before have added theirs. For the last one the sums come here instead. */
template <int D, bool ENDS, bool RING>
__device__ void add_dq(const launch_attention &a, const shared_layout<D> &in, const key_schedule &s, int adder) {
    uint32_t parity = 0, sums_parity = 0;
    int next = adder; /* pair of the task that this one adds */
    key_task task;
    for (int at = 0; next_task<RING>(a, s, at, task);) {
        const int32_t *doc_start = a.doc_start + task.b * a.T;
        const int n_pairs = pair_count(s, task);
        if (threadIdx.x % WARP == 0) {
            for (int n = next; n < n_pairs; n += ADDERS, parity ^= 1) {
                const tile_pair pair = pair_of(s, task, n);
                const int first = first_key_tile<RING>(a, doc_start, pair.tile);
                const int end = end_key_tile<RING>(a, doc_start, pair.tile);
                const int before = attention_adds_before(&s, task.tile, first, end);
                const int64_t tile = dq_tile(a, task.b, pair);
                float *to = a.dq_sums + tile * (QUERIES * D);
                if (before > 0) turn_await(a.turns + tile, before);
                if (ENDS && before == end - first - 1) {
                    if (before > 0) {
                        for (int c = 0; c < CONSUMERS; c++) barrier_wait(in.barrier(DQ_EMPTY + c), ~adder & 1);
                        barrier_wait(in.barrier(SUMS_EMPTY + adder), sums_parity);
                        barrier_arrive_expecting(in.barrier(SUMS_FULL + adder), QUERIES * D * sizeof(float));
                        copy_bulk(in.dq, to, QUERIES * D * sizeof(float), in.barrier(SUMS_FULL + adder));
                        sums_parity ^= 1;
                    }
                    for (int c = 0; c < CONSUMERS; c++) {
                        barrier_wait(in.barrier(DQ_FULL + adder * CONSUMERS + c), parity);
                        barrier_arrive(in.barrier(DQ_EMPTY + c));
                    }
                    continue;
                }
#pragma unroll
                for (int c = 0; c < CONSUMERS; c++, to += QUERIES * dq_columns<D>()) {
                    const uint32_t part = in.dq + c * dq_part_bytes<D>();
                    barrier_wait(in.barrier(DQ_FULL + adder * CONSUMERS + c), parity);
                    if (before > 0) add_bulk(to, part, dq_used_bytes<D>(c));
                    else store_bulk(to, part, dq_used_bytes<D>(c));
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

/* acc (64, dq_columns) = ds of all keys times this consumer's columns of the keys. Queued, not finished. */
template <typename E, int D>
__device__ inline void queue_dq(float (&acc)[dq_columns<D>() / 8][4], uint32_t ds_tile, uint32_t k_tile, int consumer) {
    constexpr int COLUMNS = dq_columns<D>();
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

/* dq of this consumer's columns, the last part of which it has in registers: with the sums of the others, if any, which lie as its
 * registers do, rounded. */
template <typename E, int D>
__device__ inline void end_dq(const launch_attention &a, int b, const tile_pair &p, int consumer,
                              float (&dq)[dq_columns<D>() / 8][4], uint32_t sums, bool any) {
    const int thread = (int)threadIdx.x % GROUP, lane = thread % WARP;
    const int query = p.tile * QUERIES + thread / WARP * MMA_ROWS + lane / 4;
    E *row =
        (E *)a.dq + ((int64_t)b * a.T + query) * a.q_stride + p.head * D + consumer * dq_columns<D>() + lane % 4 * 2;
#pragma unroll
    for (int c = 0; c < dq_columns<D>() / 8; c++) {
        const uint4 x = any ? load_shared_16(sums + (c * GROUP + thread) * 16) : uint4{0, 0, 0, 0};
        dq[c][0] += __uint_as_float(x.x), dq[c][1] += __uint_as_float(x.y);
        dq[c][2] += __uint_as_float(x.z), dq[c][3] += __uint_as_float(x.w);
    }
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (query + half * 8 < a.T)
#pragma unroll
            for (int c = 0; c < dq_columns<D>() / 8; c++)
                if (D % dq_columns<D>() == 0 || consumer * dq_columns<D>() + c * 8 < D)
                    *(uint32_t *)(row + half * 8 * a.q_stride + c * 8) =
                        pack<E>(dq[c][2 * half] * a.scale, dq[c][2 * half + 1] * a.scale);
}

/* dk or dv of some heads of the group joins those of the heads before; false: more heads follow. A warp group calls. */
template <int D> __device__ inline void join_sums(float4 *sums, float (&sum)[D / 8][4], bool before, bool more) {
    const int thread = (int)threadIdx.x % GROUP;
#pragma unroll
    for (int c = 0; c < D / 8; c++) {
        float4 x = before ? __ldcg(sums + c * GROUP + thread) : float4{0, 0, 0, 0};
        x.x += sum[c][0], x.y += sum[c][1], x.z += sum[c][2], x.w += sum[c][3];
        if (more) __stcg(sums + c * GROUP + thread, x);
        sum[c][0] = x.x, sum[c][1] = x.y, sum[c][2] = x.z, sum[c][3] = x.w;
    }
}

template <typename E, int D, bool ENDS, bool RING>
__device__ void consume(const launch_attention &a, const shared_layout<D> &in, const key_schedule &schedule,
                        int consumer) {
    const int T = (int)a.T, lane = (int)threadIdx.x % WARP, row = (int)threadIdx.x % GROUP / WARP * MMA_ROWS;
    const float factor = a.scale * LOG2_E;
    const uint32_t dq_part = in.dq + consumer * dq_part_bytes<D>();
    ring_place<Q_STAGES> q_place;
    ring_place<DY_STAGES> dy_place;
    uint32_t dq_turn = 0, ds_stage = 0, sums_parity = 0; /* dq_turn: who adds; sums_parity: a bit for each of them */
    key_task task;
    for (int round = 0, at = 0; next_task<RING>(a, schedule, at, task); round++) {
        const int k0 = task.tile * ROWS + consumer * GROUP_ROWS; /* of the group */
        float dk[1][D / 8][4], dv[1][D / 8][4];
        clear(dk[0]);
        clear(dv[0]);
        barrier_wait(in.barrier(KV_FULL), round & 1);
        uint32_t held = Q_STAGES; /* stage whose queries the product before still reads; this: none */
        const int n_pairs = pair_count(schedule, task);
        for (int n = 0; n < n_pairs; n++) {
            const int q0 = pair_of(schedule, task, n).tile * QUERIES;
            const uint32_t q_tile = in.q + q_place.stage * boxes_bytes<D>(QUERIES);
            const uint32_t dy_tile = in.dy + dy_place.stage * boxes_bytes<D>(QUERIES);
            const query_statistics &of = in.statistics[q_place.stage];
            float s[QUERIES / 8][4], dp[QUERIES / 8][4], dq[dq_columns<D>() / 8][4];
            uint32_t p[QUERIES / 16][4], ds[QUERIES / 16][4];
            barrier_wait(in.barrier(Q_FULL + q_place.stage), q_place.parity);
            const int ends_dq = ENDS ? of.ends_dq : DQ_ADD;
            /* Every thread: dk and dv of the task before lay there, each thread's own part. */
            if (ends_dq == DQ_END_SUMS) barrier_arrive(in.barrier(SUMS_EMPTY + dq_turn));
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
            barrier_wait(in.barrier(DQ_EMPTY + consumer), ~dq_turn & 1);
            if (ends_dq == DQ_ADD) {
#pragma unroll
                for (int c = 0; c < dq_columns<D>() / 8; c++)
                    store_shared_16(dq_part + (c * GROUP + threadIdx.x % GROUP) * 16, *(const uint4 *)dq[c]);
            } else {
                if (ends_dq == DQ_END_SUMS) {
                    barrier_wait(in.barrier(SUMS_FULL + dq_turn), sums_parity >> dq_turn & 1);
                    sums_parity ^= 1u << dq_turn;
                }
                end_dq<E, D>(a, task.b, pair_of(schedule, task, n), consumer, dq, dq_part, ends_dq == DQ_END_SUMS);
            }
            fence_bulk();
            barrier_arrive(in.barrier(DQ_FULL + dq_turn * CONSUMERS + consumer));
            dq_turn ^= 1, ds_stage ^= 1;
            q_place.advance(), dy_place.advance();
        }
        wgmma_wait<0>();
        wgmma_settle(dk[0]);
        wgmma_settle(dv[0]);
        if (held < Q_STAGES) release(in.barrier(Q_EMPTY + held), lane);
        release(in.barrier(KV_EMPTY), lane);
        if (!RING && schedule.n_parts > 1) {
            const int64_t at_sums =
                (((int64_t)task.b * a.G + task.g) * schedule.n_tiles + task.tile) * CONSUMERS + consumer;
            int32_t *turn = a.dkv_turns + at_sums;
            float4 *sums = (float4 *)a.dkv_sums + at_sums * (2 * GROUP_ROWS * D / 4);
            const bool more = task.part + 1 < schedule.n_parts;
            if (task.part > 0) {
                if (threadIdx.x % GROUP == 0) turn_await(turn, task.part);
                threads_meet(2 + consumer, GROUP);
            }
            join_sums<D>(sums, dk[0], task.part > 0, more);
            join_sums<D>(sums + GROUP_ROWS * D / 4, dv[0], task.part > 0, more);
            if (more) {
                __threadfence();
                threads_meet(2 + consumer, GROUP);
                if (threadIdx.x % GROUP == 0) turn_pass(turn, task.part + 1);
                continue;
            }
        }
        scale_row<1, D>(dk, 0, 0, a.scale);
        scale_row<1, D>(dk, 0, 1, a.scale);
        const int64_t out = ((int64_t)task.b * a.T + k0) * a.kv_stride + task.g * D, value = out + (int64_t)a.G * D;
        if constexpr (RING) {
            ring_sums<D>(a, (float *)a.dkv + out, a.kv_stride, T - k0, row, dk, lane);
            ring_sums<D>(a, (float *)a.dkv + value, a.kv_stride, T - k0, row, dv, lane);
        } else { /* by way of where dq was */
            barrier_wait(in.barrier(DQ_EMPTY + consumer), ~dq_turn & 1);
            store_sums<E, D, 1>((E *)a.dkv + out, a.kv_stride, T - k0, dq_part, row, dk, lane);
            store_sums<E, D, 1>((E *)a.dkv + value, a.kv_stride, T - k0, dq_part, row, dv, lane);
            fence_bulk(); /* sums may come there next */
        }
    }
}
#endif

/* ---- kernels and launchers --------------------------------------------------------------------------------------- */

template <typename E, int D, bool ENDS, bool RING>
__global__ void __launch_bounds__(THREADS, 1)
    attention_wgmma_backward(const __grid_constant__ launch_attention a, const __grid_constant__ CUtensorMap queries,
                             const __grid_constant__ CUtensorMap keys, const __grid_constant__ CUtensorMap dy,
                             const __grid_constant__ key_schedule schedule) {
#if WGMMA_HERE
    extern __shared__ __align__(1024) unsigned char shared[];
    const shared_layout<D> in(shared);
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
        for (int i = 0; i < ADDERS; i++) {
            barrier_init(in.barrier(SUMS_FULL + i), 1);
            barrier_init(in.barrier(SUMS_EMPTY + i), CONSUMERS * GROUP);
        }
        barriers_publish();
    }
    __syncthreads();
    if (group == 0) {
        registers_give<D == 128 ? 24 : 40>();
        if (warp == 0) fetch_tiles<D, RING>(a, &queries, &keys, &dy, in, schedule);
        else if (warp == 1) fetch_statistics<D, ENDS, RING>(a, in, schedule);
        else add_dq<D, ENDS, RING>(a, in, schedule, warp - 2);
    } else {
        registers_take<D == 128 ? 240 : 232>();
        consume<E, D, ENDS, RING>(a, in, schedule, group - 1);
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
    const int n_tiles = ((int)a.T + QUERIES - 1) / QUERIES, tile = (int)(blockIdx.x % n_tiles), q0 = tile * QUERIES;
    const int b = (int)(blockIdx.x / n_tiles / a.H), head = (int)(blockIdx.x / n_tiles % a.H);
    const int thread = (int)threadIdx.x, lane = thread % WARP, row = thread / WARP * MMA_ROWS;
    const int32_t *doc_start = a.doc_start + b * a.T;
    const bool any = !RING || end_key_tile<RING>(a, doc_start, tile) > first_key_tile<RING>(a, doc_start, tile);
    const float4 *sums = (const float4 *)a.dq_sums + dq_tile(a, b, {head, tile}) * (QUERIES * D / 4);
    float dq[1][D / 8][4];
#pragma unroll
    for (int c = 0; c < D / 8; c++) {
        const float4 x = any ? __ldcg(sums + c * GROUP + thread) : float4{0, 0, 0, 0};
        dq[0][c][0] = x.x * a.scale, dq[0][c][1] = x.y * a.scale;
        dq[0][c][2] = x.z * a.scale, dq[0][c][3] = x.w * a.scale;
    }
    const int64_t first = (int64_t)b * a.T + q0;
    if constexpr (RING)
        ring_sums<D>(a, (float *)a.dq + (first * a.H + head) * D, (int64_t)a.H * D, (int)a.T - q0, row, dq, lane);
    else
        store_sums<E, D, 1>((E *)a.dq + first * a.q_stride + head * D, a.q_stride, (int)a.T - q0,
                            shared_address(staged), row, dq, lane);
#else
    __trap();
#endif
}

template <typename E, int D, bool ENDS, bool RING>
void backward(const launch_attention *a, const attention_maps *m, cudaStream_t s) {
    const key_schedule schedule =
        attention_schedule_on(attention_schedule_of(a->B, a->T, a->H, a->G, RING), a->n_multiprocessors);
    launch_kernel(attention_wgmma_backward<E, D, ENDS, RING>, schedule.width * schedule.units, THREADS,
                  shared_bytes<D>(), s, *a, m->q, m->kv, m->dy, schedule);
    if (!ENDS)
        launch_kernel(attention_wgmma_dq<E, D, RING>, a->B * a->H * ((a->T + QUERIES - 1) / QUERIES), DQ_THREADS, 0, s,
                      *a);
}

template <typename E, int D> void by_rows(const launch_attention *a, const attention_maps *m, cudaStream_t s) {
    if (a->n_ranks > 0) backward<E, D, false, true>(a, m, s);
    else (a->T <= ENDS_UP_TO ? backward<E, D, true, false> : backward<E, D, false, false>)(a, m, s);
}

template <typename E> void by_length(const launch_attention *a, const attention_maps *m, cudaStream_t s) {
    (a->D == 64 ? by_rows<E, 64> : a->D == 96 ? by_rows<E, 96> : by_rows<E, 128>)(a, m, s);
}

} // namespace

extern "C" void launch_attention_wgmma_backward(const launch_attention *a, const attention_maps *m, cudaStream_t s) {
    (a->type == LAUNCH_BF16 ? by_length<__nv_bfloat16> : by_length<__half>)(a, m, s);
}
