/* attention_wgmma_fwd8.cu - causal attention inside documents for compute capability 9.0, multiplied in e4m3.
 *
 * The schedule is that of attention_wgmma_fwd.cu: one block per multiprocessor stays there and takes tiles of queries in turn, its
 * first warp group fetches, two others have 64 queries each, and s = q k^T of the next key tile is queued before p v of this one.
 *
 * A tile of keys is a block of FP8_BLOCK tokens, so its scales are single numbers: that of k goes into the factor of the exponents, and that of v
 * into what the sums so far are multiplied by anyway: they are kept in units of the scale of the last tile, and scales are powers of
 * two, so no product rounds. Probabilities are rounded times 2^8, which puts the largest at 256 of 448; the sums of a row
 * are of those that are not rounded.
 *
 * Tensor cores keep about 14 bits of a sum of 8-bit products. So p v of a tile has sums of its own, which are added to those of
 * the row in fp32: over 16,384 keys the error would otherwise grow to percents. It costs D / 2 registers and no instruction. */
#include "backend/cuda/attention_wgmma_fwd.cuh"

namespace {

using namespace attention_wgmma;

constexpr int KEYS = FP8_BLOCK, CONSUMERS = 2, QUERIES = CONSUMERS * GROUP_ROWS, STAGES = 4, SHORT_ROW = 4096;
static_assert(QUERIES == (int)FP8_BLOCK, "a tile of queries has one scale");
/* Rows of 128 bytes: of q and k a head of 128 columns, or less and what is behind it, which no product reads; of v, transposed, 128 keys. */
constexpr uint32_t rows_bytes(int n_rows) { return (uint32_t)n_rows * ROW_BYTES; }
template <int D> constexpr size_t shared_bytes() {
    return rows_bytes(QUERIES + STAGES * (KEYS + D)) + tile_bytes<D>(QUERIES) +
           forward_barriers<STAGES>::N_BARRIERS * 8;
}
static_assert(shared_bytes<128>() <= 227 << 10, "more shared memory than a block of capability 9.0 may have");

#if WGMMA_HERE

constexpr float P_EXPONENT = 8; /* probabilities are rounded times 2^8 */

template <int D> struct shared_layout : forward_barriers<STAGES> {
    uint32_t q, k, v, y; /* k, v: (stage) */
    __device__ explicit shared_layout(const void *shared) {
        q = shared_address(shared);
        k = q + rows_bytes(QUERIES);
        v = k + STAGES * rows_bytes(KEYS);
        y = v + STAGES * rows_bytes(D);
        barriers = y + tile_bytes<D>(QUERIES);
    }
};

/* One box of n_rows rows. One thread calls. */
__device__ inline void rows_fetch(uint32_t to, const CUtensorMap *map, int column, int row, int sequence, int n_rows,
                                  uint32_t barrier) {
    barrier_arrive_expecting(barrier, rows_bytes(n_rows));
    fetch_box(to, map, column, row, sequence, barrier);
}

template <int D>
__device__ void produce(const launch_attention &a, const CUtensorMap *qk, const CUtensorMap *v,
                        const shared_layout<D> &in, int n_tiles) {
    const int lane = (int)threadIdx.x % WARP;
    const int n_tasks = (int)a.B * a.H * n_tiles;
    ring_place<STAGES> place;
    for (int round = 0, i; (i = task_of_round(round)) < n_tasks; round++) {
        const tile_task task = tile_task_of(i, n_tiles, a.B, a.H);
        const int q0 = task.tile * QUERIES, g = task.head / (a.H / a.G), b = (int)task.b;
        const key_walk walk = key_walk_of<QUERIES, KEYS, false>(a, a.doc_start + task.b * a.T, q0, lane);
        if (lane == 0) {
            barrier_wait(in.barrier(in.Q_EMPTY), ~round & 1);
            rows_fetch(in.q, qk, task.head * D, q0, b, QUERIES, in.barrier(in.Q_FULL));
            for (int t = 0; t < walk.n; t++, place.advance()) {
                const int k0 = walk.first + t * KEYS, at = place.stage;
                barrier_wait(in.barrier(in.K_EMPTY + at), place.parity ^ 1);
                rows_fetch(in.k + at * rows_bytes(KEYS), qk, (a.H + g) * D, k0, b, KEYS, in.barrier(in.K_FULL + at));
                barrier_wait(in.barrier(in.V_EMPTY + at), place.parity ^ 1);
                rows_fetch(in.v + at * rows_bytes(D), v, k0, g * D, b, D, in.barrier(in.V_FULL + at));
            }
        }
        __syncwarp();
    }
}

/* Of a power of two, but one approximation more or less does not matter. */
__device__ inline float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Four numbers in e4m3, the first in the lowest byte. NaN stays NaN. */
__device__ inline uint32_t pack8(float a, float b, float c, float d) {
    uint32_t packed;
    asm("{\n"
        ".reg .b16 low, high;\n"
        "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
        "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
        "mov.b32 %0, {low, high};\n"
        "}\n"
        : "=r"(packed)
        : "f"(a), "f"(b), "f"(c), "f"(d));
    return packed;
}

/* Columns 32 step of 16 rows of accumulators, rounded: a left operand, of keys in the order in which v is transposed. */
__device__ inline void pack8_rows(uint32_t (&p)[4], const float (&w)[KEYS / 8][4], int step) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int n = 4 * step + i / 2 * 2, e = i % 2 * 2;
        p[i] = pack8(w[n][e], w[n][e + 1], w[n + 1][e], w[n + 1][e + 1]);
    }
}

/* Scores of a row, to be multiplied by k_scale, -> weights 2^(P_EXPONENT + factor (k_scale s - max)); returns the decay as softmax_row. */
__device__ inline float softmax_row8(float (&s)[KEYS / 8][4], int half, row_state &state, float factor, float k_scale) {
    float top = -INFINITY;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) top = fmaxf(top, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
    top = fmaxf(state.max, quad_max(top) * k_scale);
    const float from = fmaf(anchor(top), factor, -P_EXPONENT), decay = power_of_2((state.max - anchor(top)) * factor);
    const float by = factor * k_scale;
    float total = 0;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; i++) {
            s[n][i] = power_of_2(fmaf(s[n][i], by, -from));
            total += s[n][i];
        }
    state.sum = fmaf(state.sum, decay, total);
    state.max = top;
    return decay;
}

/* Barriers by constants: by a register they cost 26 registers. */
__device__ inline void take_turn(int consumer) {
    if (consumer == 0) threads_meet(1, 2 * GROUP);
    else threads_meet(2, 2 * GROUP);
}
__device__ inline void pass_turn(int consumer) {
    if (consumer == 0) threads_come(2, 2 * GROUP);
    else threads_come(1, 2 * GROUP);
}

template <int D, bool TURNS>
__device__ void consume(const launch_attention &a, const launch_attention8 &r, const shared_layout<D> &in, int n_tiles,
                        int consumer) {
    const int T = (int)a.T, lane = (int)threadIdx.x % WARP, row = (int)threadIdx.x % GROUP / WARP * MMA_ROWS;
    const int n_tasks = (int)a.B * a.H * n_tiles;
    auto release = [&](int barrier) { /* by warp: this one has read all it will */
                                      if (lane == 0) barrier_arrive(in.barrier(barrier));
    };
    uint32_t n_scored = 0; /* tiles of keys so far; in place of two ring_place, whose registers are short here */
    if (TURNS && consumer == CONSUMERS - 1) threads_come(1, 2 * GROUP); /* the first begins */
    for (int round = 0, i; (i = task_of_round(round)) < n_tasks; round++) {
        const tile_task task = tile_task_of(i, n_tiles, a.B, a.H);
        const int64_t base = task.b * a.T;
        const int32_t *doc_start = a.doc_start + base;
        const int tile_q0 = task.tile * QUERIES, q0 = tile_q0 + consumer * GROUP_ROWS; /* of the group */
        const int g = task.head / (a.H / a.G), first_query = q0 + row + lane / 4;      /* the other is 8 behind */
        const key_walk walk = key_walk_of<QUERIES, KEYS, false>(a, doc_start, tile_q0, lane);
        const attention8_scales *scales = r.kv_scales + (task.b * a.G + g) * r.n_blocks + walk.first / KEYS;
        const float q_scale = r.q_scales[(task.b * a.H + task.head) * r.n_blocks + task.tile] * a.scale;
        const float factor = q_scale * LOG2_E;
        row_state state[2] = {{-INFINITY, 0}, {-INFINITY, 0}};
        const int latest_start =
            __reduce_max_sync(0xffffffff, max(first_key(a, doc_start, min(first_query, T - 1)),
                                              first_key(a, doc_start, min(first_query + 8, T - 1))));

        float s[1][KEYS / 8][4], part[D / 8][4], sum[1][D / 8][4], decay[2], unit;
        uint32_t p[KEYS / 32][4];
        auto scores = [&]() {
            const uint32_t at = n_scored % STAGES;
            barrier_wait(in.barrier(in.K_FULL + at), n_scored / STAGES & 1);
            wgmma_begin();
            const uint64_t q = operand(in.q + rows_bytes(consumer * GROUP_ROWS), 0),
                           k = operand(in.k + at * rows_bytes(KEYS), 0);
#pragma unroll
            for (int step = 0; step < D / 32; step++)
                wgmma8<KEYS>::shared(s[0], behind(q, step * 32), behind(k, step * 32), step > 0);
            wgmma_commit();
        };
        auto values = [&](uint32_t n_valued) {
            const uint32_t at = n_valued % STAGES;
            wgmma_begin();
            const uint64_t v = operand(in.v + at * rows_bytes(D), 0);
#pragma unroll
            for (int step = 0; step < KEYS / 32; step++)
                wgmma8<D>::registers(part, p[step], behind(v, step * 32), step > 0);
            wgmma_commit();
        };
        /* of the tile of keys from k0 on, and by how much the sums before it will be multiplied */
        auto scores_to_weights = [&](int k0, const float2 &scale, float(&next)[2]) {
            wgmma_settle(s[0]);
            release(in.K_EMPTY + (int)(n_scored % STAGES));
            n_scored++;
            if (k0 + KEYS - 1 > q0 + row || k0 < latest_start) {
                const int last[1][2] = {{first_query, first_query + 8}};
                const int start[1][2] = {{first_key(a, doc_start, min(first_query, T - 1)),
                                          first_key(a, doc_start, min(first_query + 8, T - 1))}};
                mask_scores<1, KEYS>(s, k0, last, start, lane);
            }
            const float change = unit * reciprocal(scale.y); /* the units of v, before over now */
            unit = scale.y;
#pragma unroll
            for (int half = 0; half < 2; half++)
                next[half] = softmax_row8(s[0], half, state[half], factor, scale.x) * change;
        };
        /* v of the tile whose weights are made. In front of wgmma_wait<0>, not where v is used: ptxas moves nothing across the loop of a
         * barrier; without one it waits for both products before the first exponential. */
        auto await_values = [&]() {
            const uint32_t n_valued = n_scored - 1;
            barrier_wait(in.barrier(in.V_FULL + n_valued % STAGES), n_valued / STAGES & 1);
        };
        auto pack_weights = [&]() {
#pragma unroll
            for (int step = 0; step < KEYS / 32; step++) pack8_rows(p[step], s[0], step);
        };
        auto add_part = [&](uint32_t n_valued) {
            wgmma_settle(part);
            release(in.V_EMPTY + (int)(n_valued % STAGES));
#pragma unroll
            for (int n = 0; n < D / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) sum[0][n][e] = fmaf(sum[0][n][e], decay[e / 2], part[n][e]);
        };

#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) sum[0][n][e] = 0;
        float2 scale = __ldg((const float2 *)scales);
        unit = scale.y;
        barrier_wait(in.barrier(in.Q_FULL), round & 1);
        scores();
        wgmma_wait<0>();
        scores_to_weights(walk.first, scale, decay);
        await_values();
        pack_weights();
        for (int t = 1; t < walk.n; t++) {
            float next[2];
            if (TURNS) take_turn(consumer);
            scores();
            values(n_scored - 1);
            if (TURNS) pass_turn(consumer);
            scale = __ldg((const float2 *)scales + t);
            wgmma_wait<1>();
            scores_to_weights(walk.first + t * KEYS, scale, next);
            await_values();
            wgmma_wait<0>();
            add_part(n_scored - 2);
            decay[0] = next[0], decay[1] = next[1];
            pack_weights();
        }
        release(in.Q_EMPTY);
        values(n_scored - 1);
        wgmma_wait<0>();
        add_part(n_scored - 1);

#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float total = quad_sum(state[half].sum);
            scale_row<1, D>(sum, 0, half, unit / total); /* both have P_EXPONENT in them */
            const int query = first_query + half * 8;
            if (lane % 4 == 0 && query < T)
                a.lse[(task.b * a.H + task.head) * a.T + query] =
                    fmaf(state[half].max, q_scale, logf(total * power_of_2(-P_EXPONENT)));
        }
        store_sums<__nv_bfloat16, D, 1>((__nv_bfloat16 *)a.y + ((base + q0) * a.H + task.head) * D, (int64_t)a.H * D,
                                        T - q0, in.y + consumer * tile_bytes<D>(GROUP_ROWS), row, sum, lane);
    }
}
#endif

template <int D, bool TURNS>
__global__ void __launch_bounds__((1 + CONSUMERS) * GROUP, 1)
    attention_wgmma_forward8(const __grid_constant__ launch_attention a, const __grid_constant__ launch_attention8 r,
                             const __grid_constant__ CUtensorMap qk, const __grid_constant__ CUtensorMap v) {
#if WGMMA_HERE
    extern __shared__ __align__(1024) unsigned char shared[];
    const shared_layout<D> in(shared);
    const int n_tiles = (int)r.n_blocks, group = warp_group();
    if (threadIdx.x == 0) in.init(CONSUMERS * GROUP / WARP);
    __syncthreads();
    if (group == 0) {
        registers_give<24>();
        if (threadIdx.x < WARP) produce<D>(a, &qk, &v, in, n_tiles);
    } else {
        registers_take<240>();
        consume<D, TURNS>(a, r, in, n_tiles, group - 1);
    }
#else
    __trap();
#endif
}

template <int D, bool TURNS>
void forward(const launch_attention *a, const launch_attention8 *r, const attention8_maps *m, cudaStream_t s) {
    int64_t n_tasks = a->B * a->H * r->n_blocks;
    int64_t n_blocks = n_tasks < a->n_multiprocessors ? n_tasks : a->n_multiprocessors;
    launch_kernel(attention_wgmma_forward8<D, TURNS>, n_blocks, (1 + CONSUMERS) * GROUP, shared_bytes<D>(), s, *a, *r,
                  m->qk, m->v);
}

template <int D>
void by_length(const launch_attention *a, const launch_attention8 *r, const attention8_maps *m, cudaStream_t s) {
    (a->T > SHORT_ROW ? forward<D, false> : forward<D, true>)(a, r, m, s);
}

} // namespace

extern "C" void launch_attention_wgmma8(const launch_attention *a, const launch_attention8 *r, const attention8_maps *m,
                                        cudaStream_t s) {
    if (a->D == 64) by_length<64>(a, r, m, s);
    else if (a->D == 96) by_length<96>(a, r, m, s);
    else by_length<128>(a, r, m, s);
}
