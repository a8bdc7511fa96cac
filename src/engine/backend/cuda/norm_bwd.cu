/* norm_bwd.cu - backward of the norms: dx row by row, and the sums for the gains in lines, one per block of rows.
 *
 *     xh = (x - mean) rstd, a = dy gamma:   dx = rstd (a - [mean(a)] - xh mean(a xh)) + dres    [LayerNorm only]
 *
 * A block goes through its rows in order. Each thread owns the same columns of every row, so the sums over rows stay in
 * its registers until the end. Memory is busy only while enough is asked for, and registers cannot hold that much: the
 * rows ahead are copied into a ring in shared memory. A thread copies, and later reads, its own columns alone, so the
 * ring needs no barrier. dx may be dy or dres for the same reason: who writes an element has read it, and nobody else
 * reads it. */
#include "backend/cuda/launch_norm.h"

#include "backend/cuda/absmax.cuh"
#include "backend/cuda/copy_async.cuh"
#include "backend/cuda/heads.cuh"
#include "backend/cuda/launch_kernel.cuh"

/* ---- rows -------------------------------------------------------------------------------------------------------- */

struct row_sums {
    float a, axh;
};

/* Over the block, with one barrier; a is for LayerNorm only. `shared` is as for block_sum. */
template <bool CENTERED> DEVICE row_sums block_sums(row_sums s, row_sums *shared) {
    if (CENTERED) s.a = lanes_sum(s.a);
    s.axh = lanes_sum(s.axh);
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = s;
    __syncthreads();
    row_sums t = threadIdx.x % WARP < blockDim.x / WARP ? shared[threadIdx.x % WARP] : row_sums{0, 0};
    return {CENTERED ? lanes_sum(t.a) : 0, lanes_sum(t.axh)};
}

/* How a row is cut: PACKS packs per thread, STAGES rows in the ring; 0: too long for a ring, packs come from memory when
 * they are needed, twice. The largest ring takes 96 KiB, which every GPU from 8.0 on gives one block.
 * HOLD: registers suffice for gains, and for a and xh between the sums over a row and its dx; else both are computed twice. */
template <int PACKS_, int STAGES_> struct row_cut {
    enum { PACKS = PACKS_, STAGES = STAGES_, HOLD = PACKS <= 2 };
    enum { THREADS_MAX = STAGES > 0 ? 512 : 1024, BLOCKS_LEAST = PACKS == 1 ? 2 : 1 }; /* of a multiprocessor */
    static_assert(STAGES * 3 * PACKS * THREADS_MAX * 16 <= 96 << 10, "x, dy and dres of STAGES rows");
};

template <typename F> static void by_row_cut(int64_t packs, F run) {
    if (packs <= 512) run(row_cut<1, 2>{});
    else if (packs <= 1024) run(row_cut<2, 2>{});
    else if (packs <= 2048) run(row_cut<4, 1>{});
    else run(row_cut<4, 0>{});
}
static_assert(NORM_ROW_BYTES_MAX == 1024 * 4 * 16, "four packs for each of 1024 threads are the most");

enum row_operand { OF_X, OF_DY, OF_DRES };

/* Where pack k of this thread begins in its row. */
template <typename T> DEVICE int pack_column(int k) { return (int)(threadIdx.x + k * blockDim.x) * pack<T>::N; }

/* Its place in the ring. */
template <int PACKS> DEVICE uint4 *pack_place(uint4 *stage, row_operand o, int k) {
    return &stage[(o * PACKS + k) * blockDim.x + threadIdx.x];
}

/* Sets out to copy this thread's packs of one operand; past the end of the row they are 0. */
template <bool VECTOR, int PACKS, typename T>
DEVICE void packs_ask(uint4 *stage, row_operand o, const T *row, int64_t C) {
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        int i = pack_column<T>(k);
        uint4 *to = pack_place<PACKS>(stage, o, k);
        if (VECTOR) copy_async_16(shared_address(to), row + (i < C ? i : 0), i < C);
        else *to = raw_load<false>(row + i, C - i);
    }
}

template <typename T, bool VECTOR, int PACKS>
DEVICE void row_ask(const launch_norm_bwd_args &n, uint4 *stage, int64_t row) {
    packs_ask<VECTOR, PACKS>(stage, OF_X, (const T *)n.x + row * n.stride, n.C);
    packs_ask<VECTOR, PACKS>(stage, OF_DY, (const T *)n.dy + row * n.stride, n.C);
    if (n.dres) packs_ask<VECTOR, PACKS>(stage, OF_DRES, (const T *)n.dres + row * n.stride, n.C);
}

template <bool VECTOR, typename CUT, typename T>
DEVICE uint4 row_raw(uint4 *stage, row_operand o, int k, const T *row, int64_t C) {
    if (CUT::STAGES > 0) return *pack_place<CUT::PACKS>(stage, o, k);
    return raw_load<VECTOR>(row + pack_column<T>(k), C - pack_column<T>(k));
}

/* Gains as they count; past the end of the row it does not matter what they are. */
template <bool VECTOR, typename T> DEVICE pack<T> row_gains(const launch_norm_bwd_args &n, int k) {
    pack<T> g = pack_load<VECTOR>((const T *)n.gamma + pack_column<T>(k), n.C - pack_column<T>(k));
#pragma unroll
    for (int e = 0; e < pack<T>::N; e++) g.v[e] += n.offset;
    return g;
}

/* What a thread computes of a pack of its row. */
template <typename T> struct norm_terms {
    float a[pack<T>::N], xh[pack<T>::N];
};
template <typename T>
DEVICE norm_terms<T> norm_terms_of(const pack<T> &x, const pack<T> &dy, const pack<T> &gains, float mean, float rstd) {
    norm_terms<T> t;
#pragma unroll
    for (int e = 0; e < pack<T>::N; e++) {
        t.a[e] = dy.v[e] * gains.v[e];
        t.xh[e] = (x.v[e] - mean) * rstd;
    }
    return t;
}

/* One thread's sums to their place in a line. */
template <bool VECTOR, int N> DEVICE void line_store(float *line, const float (&sum)[N], int64_t left) {
#pragma unroll
    for (int q = 0; q < N; q += 4)
        pack_store<VECTOR>(line + q, pack<float>{sum[q], sum[q + 1], sum[q + 2], sum[q + 3]}, left - q);
}

template <typename T, bool VECTOR, typename CUT, bool CENTERED, bool AMAX>
static __global__ void __launch_bounds__(CUT::THREADS_MAX, CUT::BLOCKS_LEAST)
    norm_bwd_kernel(launch_norm_bwd_args n, int64_t block_rows) {
    enum { N = pack<T>::N, PACKS = CUT::PACKS, STAGES = CUT::STAGES, HOLD = CUT::HOLD };
    extern __shared__ uint4 ring[];
    __shared__ row_sums shared[2][WARP];
    __shared__ uint32_t mosts[WARP];
    uint32_t most = 0;
    int64_t first = blockIdx.x * block_rows, end = min(first + block_rows, n.n_rows);
    int stage_packs = (n.dres ? 3 : 2) * PACKS * (int)blockDim.x;
#pragma unroll
    for (int ahead = 0; ahead < STAGES; ahead++) { /* a group for every row, also for rows that are not there */
        if (first + ahead < end) row_ask<T, VECTOR, PACKS>(n, ring + ahead * stage_packs, first + ahead);
        copy_async_commit();
    }
    pack<T> gains[HOLD ? PACKS : 1];
    norm_terms<T> terms[HOLD ? PACKS : 1];
    float dgamma[PACKS][N] = {}, dbeta[PACKS][N] = {};
#pragma unroll
    for (int k = 0; HOLD && k < PACKS; k++) gains[k] = row_gains<VECTOR, T>(n, k);
    float next_mean = CENTERED ? n.mean[first] : 0, next_rstd = n.rstd[first * n.rstd_step];
    uint4 *stage = ring;
    for (int64_t row = first; row < end; row++) {
        float mean = CENTERED ? next_mean : 0, rstd = next_rstd;
        if (row + 1 < end) {
            if (CENTERED) next_mean = n.mean[row + 1];
            next_rstd = n.rstd[(row + 1) * n.rstd_step];
        }
        const T *x_row = (const T *)n.x + row * n.stride, *dy_row = (const T *)n.dy + row * n.stride;
        auto row_terms = [&](int k, const pack<T> &dy) {
            pack<T> x = pack_widen<T>(row_raw<VECTOR, CUT>(stage, OF_X, k, x_row, n.C));
            return norm_terms_of<T>(x, dy, HOLD ? gains[HOLD ? k : 0] : row_gains<VECTOR, T>(n, k), mean, rstd);
        };
        if constexpr (STAGES > 0) copy_async_wait<STAGES - 1>();
        row_sums sum = {0, 0};
#pragma unroll
        for (int k = 0; k < PACKS; k++) { /* past the end of a row dy is 0 and adds nothing */
            pack<T> dy = pack_widen<T>(row_raw<VECTOR, CUT>(stage, OF_DY, k, dy_row, n.C));
            const norm_terms<T> &t = terms[HOLD ? k : 0] = row_terms(k, dy);
#pragma unroll
            for (int e = 0; e < N; e++) {
                sum.axh = fmaf(t.a[e], t.xh[e], sum.axh);
                dgamma[k][e] = fmaf(dy.v[e], t.xh[e], dgamma[k][e]);
                if (CENTERED) {
                    sum.a += t.a[e];
                    dbeta[k][e] += dy.v[e];
                }
            }
        }
        sum = block_sums<CENTERED>(sum, shared[row & 1]); /* the row before may still be read in the other half */
        float mean_a = CENTERED ? sum.a / (float)n.C : 0, mean_axh = sum.axh / (float)n.C;
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            if (!HOLD) terms[0] = row_terms(k, pack_widen<T>(row_raw<VECTOR, CUT>(stage, OF_DY, k, dy_row, n.C)));
            const norm_terms<T> &t = terms[HOLD ? k : 0];
            int64_t left = n.C - pack_column<T>(k);
            pack<T> dx;
#pragma unroll
            for (int e = 0; e < N; e++) dx.v[e] = rstd * fmaf(t.xh[e], -mean_axh, t.a[e] - mean_a);
            if (n.dres) {
                pack<T> dres =
                    pack_widen<T>(row_raw<VECTOR, CUT>(stage, OF_DRES, k, (const T *)n.dres + row * n.stride, n.C));
#pragma unroll
                for (int e = 0; e < N; e++) dx.v[e] += dres.v[e];
            }
            uint4 rounded = pack_narrow<T>(dx);
            raw_store<VECTOR>((T *)n.dx + row * n.stride + pack_column<T>(k), rounded, left);
            if (AMAX) most = absmax_pack<T>(most, rounded, left);
        }
        if constexpr (STAGES > 0) { /* this row's places are free: what was read of them is already written */
            if (row + STAGES < end) row_ask<T, VECTOR, PACKS>(n, stage, row + STAGES);
            copy_async_commit();
            stage = stage == ring + (STAGES - 1) * stage_packs ? ring : stage + stage_packs;
        }
    }
    if (AMAX) absmax_give(n.amax, most, mosts);
    int64_t line = blockIdx.x * n.line;
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        int i = pack_column<T>(k);
        if (n.gamma_lines) line_store<VECTOR>(n.gamma_lines + line + i, dgamma[k], n.C - i);
        if (CENTERED && n.beta_lines) line_store<VECTOR>(n.beta_lines + line + i, dbeta[k], n.C - i);
    }
}

void launch_norm_bwd(cudaStream_t s, launch_type t, const launch_norm_bwd_args *a) {
    absmax_clear(s, a->amax);
    by_type(t, [&](auto zero) {
        using T = decltype(zero);
        const void *operands[] = {a->x, a->gamma, a->dy, a->dres, a->dx, a->gamma_lines, a->beta_lines};
        bool whole = a->C % pack<T>::N == 0 && a->stride % pack<T>::N == 0;
        for (const void *p : operands) whole = whole && aligned(p, 16);
        int64_t packs = divide_up(a->C, pack<T>::N);
        by_row_cut(packs, [&](auto cut) {
            using CUT = decltype(cut);
            unsigned threads = block_threads(divide_up(packs, CUT::PACKS), CUT::THREADS_MAX);
            size_t ring_bytes = (size_t)CUT::STAGES * (a->dres ? 3 : 2) * CUT::PACKS * threads * sizeof(uint4);
            by_flag(whole, [&](auto vector) {
                by_flag(a->mean != NULL, [&](auto centered) {
                    by_amax<T>(a->amax, [&](auto amax) {
                        launch_kernel(norm_bwd_kernel<T, decltype(vector)::value, CUT, decltype(centered)::value,
                                                      decltype(amax)::value>,
                                      sum_block_count(a->n_rows), (int)threads, ring_bytes, s, *a,
                                      sum_block_rows(a->n_rows));
                    });
                });
            });
        });
    });
}

/* ---- heads ------------------------------------------------------------------------------------------------------- */

/* What a lane holds of one head, as it lies in memory. */
template <int PACKS> struct head_packs {
    uint4 x[PACKS], dy[PACKS];
    float rstd; /* 0 for a value head, which adds nothing to the sums */
};

/* Head `unit` of the rows that start at `first`, or nothing. */
template <typename T, bool VECTOR, int LANES, int PACKS>
DEVICE head_packs<PACKS> head_packs_load(const launch_heads_args &n, int64_t first, int64_t unit, bool there) {
    int n_normed = n.n_q + n.n_k, n_heads = n_normed + n.n_v, head = (int)(unit % n_heads);
    int64_t start = (first * n_heads + unit) * n.D;
    head_packs<PACKS> h;
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        int i = (int)(threadIdx.x % LANES + k * LANES) * pack<T>::N;
        h.x[k] = raw_load<VECTOR>((const T *)n.qkv + start + i, there ? n.D - i : 0);
        h.dy[k] = raw_load<VECTOR>((const T *)n.dy + start + i, there ? n.D - i : 0);
    }
    h.rstd = there && head < n_normed ? n.rstd[(first + unit / n_heads) * n_normed + head] : 0;
    return h;
}

/* LANES lanes take one head after another out of the block's rows, whichever they are: the sums for gq and gk are kept
 * apart. At the end the groups of lanes are added in order. */
template <typename T, bool VECTOR, int LANES, int PACKS>
static __global__ void __launch_bounds__(HEAD_THREADS) qk_norm_bwd_kernel(launch_heads_args n, int64_t block_rows) {
    enum { N = pack<T>::N, GROUPS = HEAD_THREADS / LANES };
    __shared__ float parts[HEAD_THREADS * N];
    int group = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    int n_normed = n.n_q + n.n_k, n_heads = n_normed + n.n_v;
    int64_t first = blockIdx.x * block_rows, units = min(block_rows, n.n_rows - first) * n_heads;
    float dg[2][PACKS][N] = {};
    head_packs<PACKS> next = head_packs_load<T, VECTOR, LANES, PACKS>(n, first, group, group < units);
    for (int64_t turn = 0; turn < units; turn += GROUPS) { /* the whole warp stays for the sums */
        int64_t unit = turn + group;
        int head = (int)(unit % n_heads);
        head_packs<PACKS> now = next;
        next = head_packs_load<T, VECTOR, LANES, PACKS>(n, first, unit + GROUPS, unit + GROUPS < units);
        const T *gain = (const T *)(head < n.n_q ? n.gq : n.gk);
        float axh = 0;
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            int i = (lane + k * LANES) * N;
            pack<T> x = pack_widen<T>(now.x[k]), dy = pack_widen<T>(now.dy[k]),
                    g = pack_load<VECTOR>(gain + i, n.D - i);
#pragma unroll
            for (int e = 0; e < N; e++) {
                float xh = x.v[e] * now.rstd;
                axh = fmaf(dy.v[e] * (g.v[e] + n.offset), xh, axh);
                if (head < n.n_q) dg[0][k][e] = fmaf(dy.v[e], xh, dg[0][k][e]);
                else dg[1][k][e] = fmaf(dy.v[e], xh, dg[1][k][e]);
            }
        }
        float mean_axh = lanes_sum<LANES>(axh) / (float)n.D;
        if (unit >= units) continue;
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            int i = (lane + k * LANES) * N;
            pack<T> x = pack_widen<T>(now.x[k]), dy = pack_widen<T>(now.dy[k]);
            if (head < n_normed) {
                pack<T> g = pack_load<VECTOR>(gain + i, n.D - i);
#pragma unroll
                for (int e = 0; e < N; e++)
                    dy.v[e] = now.rstd * fmaf(x.v[e] * now.rstd, -mean_axh, dy.v[e] * (g.v[e] + n.offset));
            }
            pack_store<VECTOR>((T *)n.y + (first * n_heads + unit) * n.D + i, dy, n.D - i);
        }
    }
    float *const lines[2] = {n.q_lines ? n.q_lines + blockIdx.x * n.line : NULL,
                             n.k_lines ? n.k_lines + blockIdx.x * n.line : NULL};
    give_lines<T, LANES, PACKS>(lines, dg, n.D, parts);
}

void launch_qk_norm_bwd(cudaStream_t s, launch_type t, const launch_heads_args *a) {
    by_type(t, [&](auto zero) {
        using T = decltype(zero);
        const void *operands[] = {a->qkv, a->gq, a->gk, a->dy, a->y};
        bool whole = a->D % pack<T>::N == 0;
        for (const void *p : operands) whole = whole && aligned(p, 16);
        by_head_lanes<HEAD_PACKS_MOST>(divide_up(a->D, pack<T>::N), [&](auto n_lanes, auto per_lane) {
            constexpr int LANES = decltype(n_lanes)::value, PACKS = decltype(per_lane)::value;
            by_flag(whole, [&](auto vector) {
                launch(qk_norm_bwd_kernel<T, decltype(vector)::value, LANES, PACKS>,
                       dim3((unsigned)sum_block_count(a->n_rows)), dim3(HEAD_THREADS), s, *a,
                       sum_block_rows(a->n_rows));
            });
        });
    });
}
