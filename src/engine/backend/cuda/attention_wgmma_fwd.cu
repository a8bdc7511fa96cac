/* attention_wgmma_fwd.cu - causal attention inside documents for compute capability 9.0, bf16 and fp16.
 *
 * One block per multiprocessor stays there and takes tiles of queries in turn. Its first warp group fetches: q of a tile,
 * then k and v of every key tile from the first one that a document of the tile reaches to the diagonal, as far ahead as
 * there is room, across tiles. The others, two or three, have 64 queries each. They queue s = q k^T of the next key tile before p v of
 * this one, so that the tensor cores work while the exponentials of the next tile are taken. Where that is faster they queue in
 * turns (TURNS), so that one takes exponentials while another multiplies; how many there are and whether they take turns is a matter of head_dim and the
 * length of rows alone, as measured (docs/log/speed.md), and changes no bit.
 * What a block does depends on the tile alone; which block does it is arithmetic. */
#include "backend/cuda/attention_wgmma_fwd.cuh"

namespace {

using namespace attention_wgmma;

enum { KEYS = 128, STAGES = 2, SHORT_ROW = 4096 };
/* q, k and v stages, y on its way out */
template <int D, int CONSUMERS> constexpr size_t shared_bytes() {
    return boxes_bytes<D>(2 * CONSUMERS * GROUP_ROWS + 2 * STAGES * KEYS) + forward_barriers<STAGES>::N_BARRIERS * 8;
}
static_assert(shared_bytes<128, 2>() <= 227 << 10, "more shared memory than a block of capability 9.0 may have");

#if WGMMA_HERE

template <int D, int CONSUMERS> struct shared_layout : forward_barriers<STAGES> {
    static constexpr int QUERIES = CONSUMERS * GROUP_ROWS;
    uint32_t q, k, v, y; /* k, v: (stage) */
    __device__ explicit shared_layout(const void *shared) {
        q = shared_address(shared);
        k = q + boxes_bytes<D>(QUERIES);
        v = k + STAGES * boxes_bytes<D>(KEYS);
        y = v + STAGES * boxes_bytes<D>(KEYS);
        barriers = y + boxes_bytes<D>(QUERIES);
    }
};

template <int D, int CONSUMERS, bool RING>
__device__ void produce(const launch_attention &a, const CUtensorMap *queries, const CUtensorMap *keys,
                        const shared_layout<D, CONSUMERS> &in, int n_tiles) {
    constexpr int QUERIES = CONSUMERS * GROUP_ROWS;
    const int lane = (int)threadIdx.x % WARP;
    const int n_tasks = (int)a.B * a.H * n_tiles;
    ring_place<STAGES> place;
    for (int round = 0, i; (i = task_of_round(round)) < n_tasks; round++) {
        const tile_task task = tile_task_of(i, n_tiles, a.B, a.H);
        const int q0 = task.tile * QUERIES, g = task.head / (a.H / a.G), b = (int)task.b;
        const key_walk walk = key_walk_of<QUERIES, KEYS, RING>(a, a.doc_start + task.b * a.T, q0, lane);
        if (lane == 0) {
            barrier_wait(in.barrier(in.Q_EMPTY), ~round & 1);
            tile_fetch<D>(in.q, queries, task.head * D, q0, b, QUERIES, in.barrier(in.Q_FULL));
            for (int t = 0; t < walk.n; t++, place.advance()) {
                const int k0 = walk.first + t * KEYS, at = place.stage;
                barrier_wait(in.barrier(in.K_EMPTY + at), place.parity ^ 1);
                tile_fetch<D>(in.k + at * boxes_bytes<D>(KEYS), keys, key_column<D, RING>(a, g), k0, b, KEYS,
                              in.barrier(in.K_FULL + at));
                barrier_wait(in.barrier(in.V_EMPTY + at), place.parity ^ 1);
                tile_fetch<D>(in.v + at * boxes_bytes<D>(KEYS), keys, key_column<D, RING>(a, a.G + g), k0, b, KEYS,
                              in.barrier(in.V_FULL + at));
            }
        }
        __syncwarp();
    }
}

template <typename E, int D, int CONSUMERS, bool TURNS, bool RING>
__device__ void consume(const launch_attention &a, const shared_layout<D, CONSUMERS> &in, int n_tiles, int consumer) {
    constexpr int QUERIES = CONSUMERS * GROUP_ROWS;
    const int T = (int)a.T, lane = (int)threadIdx.x % WARP, row = (int)threadIdx.x % GROUP / WARP * MMA_ROWS;
    const int n_tasks = (int)a.B * a.H * n_tiles;
    const float factor = a.scale * LOG2_E;
    auto release = [&](int barrier) { /* by warp: this one has read all it will */
                                      if (lane == 0) barrier_arrive(in.barrier(barrier));
    };
    ring_place<STAGES> k_place, v_place;
    /* ptxas moves no exponential across the loop that waits for values: where it stands in front of the wait for products, they run beside
     * these. Of heads of 128 that gains 2 to 5 %, of others nothing. */
    constexpr bool AHEAD = D == 128;
    if (TURNS && consumer == CONSUMERS - 1) threads_come(1, 2 * GROUP); /* the first begins */
    for (int round = 0, i; (i = task_of_round(round)) < n_tasks; round++) {
        const tile_task task = tile_task_of(i, n_tiles, a.B, a.H);
        const int64_t base = task.b * a.T;
        const int32_t *doc_start = a.doc_start + base;
        const int tile_q0 = task.tile * QUERIES, q0 = tile_q0 + consumer * GROUP_ROWS; /* of the group */
        const key_walk walk = key_walk_of<QUERIES, KEYS, RING>(a, doc_start, tile_q0, lane);
        int query[1][2], last[1][2], start[1][2]; /* last, start: keys it sees */
        row_state state[1][2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            query[0][half] = q0 + row + half * 8 + lane / 4;
            const key_span seen = keys_seen<RING>(a, doc_start, min(query[0][half], T - 1));
            start[0][half] = seen.first, last[0][half] = RING ? seen.end - 1 : query[0][half];
            state[0][half] = {-INFINITY, 0};
        }
        const int least_last = RING ? __reduce_min_sync(0xffffffff, min(last[0][0], last[0][1])) : q0 + row;
        const int latest_start = __reduce_max_sync(0xffffffff, max(start[0][0], start[0][1]));

        float s[1][KEYS / 8][4], sum[1][D / 8][4], decay[2];
        uint32_t p[KEYS / 16][4];
        auto scores = [&]() {
            barrier_wait(in.barrier(in.K_FULL + k_place.stage), k_place.parity);
            wgmma_begin();
            queue_product_of_rows<E, D, KEYS>(s[0], in.q, QUERIES, consumer * GROUP_ROWS,
                                              in.k + k_place.stage * boxes_bytes<D>(KEYS));
            wgmma_commit();
        };
        auto await_values = [&]() { barrier_wait(in.barrier(in.V_FULL + v_place.stage), v_place.parity); };
        auto values = [&]() {
            wgmma_begin();
            queue_product_with_rows<E, D, KEYS>(sum[0], p, in.v + v_place.stage * boxes_bytes<D>(KEYS));
            wgmma_commit();
        };
        auto scores_to_weights = [&](int k0) {
            wgmma_settle(s[0]);
            release(in.K_EMPTY + k_place.stage);
            k_place.advance();
            if (k0 + KEYS - 1 > least_last || k0 < latest_start) mask_scores<1, KEYS>(s, k0, last, start, lane);
#pragma unroll
            for (int half = 0; half < 2; half++) decay[half] = softmax_row<1, KEYS>(s, 0, half, state[0][half], factor);
        };
        auto pack_weights = [&]() {
#pragma unroll
            for (int step = 0; step < KEYS / 16; step++) pack_rows<E>(p[step], s[0], step);
        };

        barrier_wait(in.barrier(in.Q_FULL), round & 1);
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) sum[0][n][e] = 0;
        if (RING && walk.n == 0) {
            release(in.Q_EMPTY);
            ring_store<E, D, 1>(a, task, query, sum, state, lane);
            continue;
        }
        scores();
        wgmma_wait<0>();
        scores_to_weights(walk.first);
        pack_weights();
        if (AHEAD) await_values();
        for (int t = 1; t < walk.n; t++) {
            if (TURNS) threads_meet(1 + consumer, 2 * GROUP);
            scores();
            if (!AHEAD) await_values();
            values();
            if (TURNS) threads_come(1 + (consumer + 1) % CONSUMERS, 2 * GROUP);
            wgmma_wait<1>();
            scores_to_weights(walk.first + t * KEYS);
            const int used = v_place.stage;
            v_place.advance();
            if (AHEAD) await_values();
            wgmma_wait<0>();
            wgmma_settle(sum[0]);
            release(in.V_EMPTY + used);
            scale_row<1, D>(sum, 0, 0, decay[0]);
            scale_row<1, D>(sum, 0, 1, decay[1]);
            pack_weights();
        }
        release(in.Q_EMPTY);
        if (!AHEAD) await_values();
        values();
        wgmma_wait<0>();
        wgmma_settle(sum[0]);
        release(in.V_EMPTY + v_place.stage);
        v_place.advance();

        if constexpr (RING) ring_store<E, D, 1>(a, task, query, sum, state, lane);
        else {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float total = quad_sum(state[0][half].sum);
                scale_row<1, D>(sum, 0, half, 1 / total);
                if (lane % 4 == 0 && query[0][half] < T)
                    a.lse[(task.b * a.H + task.head) * a.T + query[0][half]] =
                        fmaf(state[0][half].max, a.scale, logf(total));
            }
            store_sums<E, D, 1>((E *)a.y + ((base + q0) * a.H + task.head) * D, (int64_t)a.H * D, T - q0,
                                in.y + consumer * boxes_bytes<D>(GROUP_ROWS), row, sum, lane);
        }
    }
}
#endif

template <typename E, int D, int CONSUMERS, bool TURNS, bool RING>
__global__ void __launch_bounds__((1 + CONSUMERS) * GROUP, 1)
    attention_wgmma_forward(const __grid_constant__ launch_attention a, const __grid_constant__ CUtensorMap queries,
                            const __grid_constant__ CUtensorMap keys) {
#if WGMMA_HERE
    extern __shared__ __align__(1024) unsigned char shared[];
    constexpr int QUERIES = CONSUMERS * GROUP_ROWS;
    const shared_layout<D, CONSUMERS> in(shared);
    const int n_tiles = ((int)a.T + QUERIES - 1) / QUERIES, group = warp_group();
    if (threadIdx.x == 0) in.init(CONSUMERS * GROUP / WARP);
    __syncthreads();
    if (group == 0) {
        registers_give<CONSUMERS == 3 ? 32 : 24>();
        if (threadIdx.x < WARP) produce<D, CONSUMERS, RING>(a, &queries, &keys, in, n_tiles);
    } else {
        registers_take<CONSUMERS == 3 ? 160 : 240>();
        consume<E, D, CONSUMERS, TURNS, RING>(a, in, n_tiles, group - 1);
    }
#else
    __trap();
#endif
}

template <typename E, int D, int CONSUMERS, bool TURNS, bool RING>
void forward(const launch_attention *a, const attention_maps *m, cudaStream_t s) {
    constexpr int QUERIES = CONSUMERS * GROUP_ROWS;
    int64_t n_tasks = a->B * a->H * ((a->T + QUERIES - 1) / QUERIES);
    int64_t n_blocks = n_tasks < a->n_multiprocessors ? n_tasks : a->n_multiprocessors;
    launch_kernel(attention_wgmma_forward<E, D, CONSUMERS, TURNS, RING>, n_blocks, (1 + CONSUMERS) * GROUP,
                  shared_bytes<D, CONSUMERS>(), s, *a, m->q, m->kv);
}

template <typename E, bool RING> void by_length(const launch_attention *a, const attention_maps *m, cudaStream_t s) {
    const bool is_long = a->T > SHORT_ROW;
    if (a->D == 96) forward<E, 96, 2, false, RING>(a, m, s);
    else if (a->D == 128) (is_long ? forward<E, 128, 2, false, RING> : forward<E, 128, 2, true, RING>)(a, m, s);
    else (is_long ? forward<E, 64, 3, true, RING> : forward<E, 64, 2, false, RING>)(a, m, s);
}

} // namespace

extern "C" void launch_attention_wgmma(const launch_attention *a, const attention_maps *m, cudaStream_t s) {
    bool ring = a->n_ranks > 0;
    if (a->type == LAUNCH_BF16) (ring ? by_length<__nv_bfloat16, true> : by_length<__nv_bfloat16, false>)(a, m, s);
    else (ring ? by_length<__half, true> : by_length<__half, false>)(a, m, s);
}
