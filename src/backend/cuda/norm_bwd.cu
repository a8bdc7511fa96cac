/* norm_bwd.cu - backward of the norms: dx row by row, and the sums for the gains in lines, one per block of rows.
 *
 *     xh = (x - mean) rstd, a = dy gamma:   dx = rstd (a - [mean(a)] - xh mean(a xh)) + dres    [LayerNorm only]
 *
 * A block goes through its rows in order. Each thread owns the same columns of every row, so the sums over rows stay in
 * its registers until the end; the next row is asked for before the sums of this one are taken, because a block has only
 * one barrier's worth of other work to hide memory behind. dx may be dy or dres: a row is read whole, by the threads that
 * write it, before any of it is written. */
#include "backend/cuda/launch_norm.h"

#include "backend/cuda/absmax.cuh"

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

/* What a thread holds of one row, as it lies in memory. */
template <int PACKS> struct row_packs {
    uint4 x[PACKS], dy[PACKS], dres[PACKS];
    float mean, rstd;
};

template <typename T, bool VECTOR, int PACKS, bool CENTERED>
DEVICE row_packs<PACKS> row_packs_load(const launch_norm_bwd_args &n, int64_t row) {
    row_packs<PACKS> r;
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        int64_t i = (int64_t)(threadIdx.x + k * blockDim.x) * pack<T>::N, at = row * n.C + i;
        r.x[k] = raw_load<VECTOR>((const T *)n.x + at, n.C - i);
        r.dy[k] = raw_load<VECTOR>((const T *)n.dy + at, n.C - i);
        if (n.dres) r.dres[k] = raw_load<VECTOR>((const T *)n.dres + at, n.C - i);
    }
    r.mean = CENTERED ? n.mean[row] : 0;
    r.rstd = n.rstd[row];
    return r;
}

static_assert(NORM_ROW_BYTES_MAX == 1024 * 4 * 16, "four packs per thread are the most");

template <typename T, bool VECTOR, int PACKS, bool CENTERED, bool AMAX>
static __global__ void __launch_bounds__(PACKS < 4 ? 512 : 1024)
    norm_bwd_kernel(launch_norm_bwd_args n, int64_t block_rows) {
    enum { N = pack<T>::N };
    __shared__ row_sums shared[2][WARP];
    __shared__ uint32_t mosts[WARP];
    uint32_t most = 0;
    int64_t first = blockIdx.x * block_rows, end = min(first + block_rows, n.n_rows);
    uint4 gamma[PACKS];
    float dgamma[PACKS][N] = {}, dbeta[PACKS][N] = {};
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        int64_t i = (int64_t)(threadIdx.x + k * blockDim.x) * N;
        gamma[k] = raw_load<VECTOR>((const T *)n.gamma + i, n.C - i);
    }
    row_packs<PACKS> next = row_packs_load<T, VECTOR, PACKS, CENTERED>(n, first);
    for (int64_t row = first; row < end; row++) {
        row_packs<PACKS> now = next;
        if (row + 1 < end) next = row_packs_load<T, VECTOR, PACKS, CENTERED>(n, row + 1);
        row_sums sum = {0, 0};
#pragma unroll
        for (int k = 0; k < PACKS; k++) { /* past the end of a row dy and gamma are 0 and add nothing */
            pack<T> x = pack_widen<T>(now.x[k]), dy = pack_widen<T>(now.dy[k]), g = pack_widen<T>(gamma[k]);
#pragma unroll
            for (int e = 0; e < N; e++) {
                float a = dy.v[e] * g.v[e], xh = (x.v[e] - now.mean) * now.rstd;
                sum.axh = fmaf(a, xh, sum.axh);
                dgamma[k][e] = fmaf(dy.v[e], xh, dgamma[k][e]);
                if (CENTERED) {
                    sum.a += a;
                    dbeta[k][e] += dy.v[e];
                }
            }
        }
        sum = block_sums<CENTERED>(sum, shared[row & 1]); /* the row before may still be read in the other half */
        float mean_a = sum.a / (float)n.C, mean_axh = sum.axh / (float)n.C;
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            int64_t i = (int64_t)(threadIdx.x + k * blockDim.x) * N;
            pack<T> x = pack_widen<T>(now.x[k]), dy = pack_widen<T>(now.dy[k]), g = pack_widen<T>(gamma[k]), dx;
#pragma unroll
            for (int e = 0; e < N; e++) {
                float xh = (x.v[e] - now.mean) * now.rstd;
                dx.v[e] = now.rstd * fmaf(xh, -mean_axh, dy.v[e] * g.v[e] - mean_a);
            }
            if (n.dres) {
                pack<T> dres = pack_widen<T>(now.dres[k]);
#pragma unroll
                for (int e = 0; e < N; e++) dx.v[e] += dres.v[e];
            }
            uint4 rounded = pack_narrow<T>(dx);
            raw_store<VECTOR>((T *)n.dx + row * n.C + i, rounded, n.C - i);
            if (AMAX) most = absmax_pack<T>(most, rounded, n.C - i);
        }
    }
    if (AMAX) absmax_give(n.amax, most, mosts);
    float *line = n.lines + blockIdx.x * n.C * (CENTERED ? 2 : 1);
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        int64_t i = (int64_t)(threadIdx.x + k * blockDim.x) * N;
#pragma unroll
        for (int e = 0; e < N; e++) {
            if (i + e >= n.C) break;
            line[i + e] = dgamma[k][e];
            if (CENTERED) line[n.C + i + e] = dbeta[k][e];
        }
    }
}

void launch_norm_bwd(cudaStream_t s, launch_type t, const launch_norm_bwd_args *a) {
    absmax_clear(s, a->amax);
    by_type(t, [&](auto zero) {
        using T = decltype(zero);
        const void *operands[] = {a->x, a->gamma, a->dy, a->dres, a->dx};
        bool whole = a->C % pack<T>::N == 0;
        for (const void *p : operands) whole = whole && aligned(p, 16);
        int64_t packs = divide_up(a->C, pack<T>::N);
        auto run = [&](auto per_thread) {
            constexpr int PACKS = decltype(per_thread)::value;
            by_flag(whole, [&](auto vector) {
                by_flag(a->mean != NULL, [&](auto centered) {
                    by_amax<T>(a->amax, [&](auto amax) {
                        launch(norm_bwd_kernel<T, decltype(vector)::value, PACKS, decltype(centered)::value,
                                               decltype(amax)::value>,
                               dim3((unsigned)sum_block_count(a->n_rows)),
                               dim3(block_threads(divide_up(packs, PACKS), 1024)), s, *a, sum_block_rows(a->n_rows));
                    });
                });
            });
        };
        if (packs <= 512) run(std::integral_constant<int, 1>{});
        else if (packs <= 1024) run(std::integral_constant<int, 2>{});
        else run(std::integral_constant<int, 4>{}); /* longer than any row of today: it spills */
    });
}

/* ---- heads ------------------------------------------------------------------------------------------------------- */

enum { HEAD_THREADS = 256 };

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
                axh = fmaf(dy.v[e] * g.v[e], xh, axh);
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
                for (int e = 0; e < N; e++) dy.v[e] = now.rstd * fmaf(x.v[e] * now.rstd, -mean_axh, dy.v[e] * g.v[e]);
            }
            pack_store<VECTOR>((T *)n.y + (first * n_heads + unit) * n.D + i, dy, n.D - i);
        }
    }
#pragma unroll
    for (int which = 0; which < 2; which++)
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            __syncthreads();
#pragma unroll
            for (int e = 0; e < N; e++) parts[(e * GROUPS + group) * LANES + lane] = dg[which][k][e];
            __syncthreads();
            for (int c = threadIdx.x; c < LANES * N; c += HEAD_THREADS) {
                int column = k * LANES * N + c;
                float total = 0;
                for (int other = 0; other < GROUPS; other++) total += parts[(c % N * GROUPS + other) * LANES + c / N];
                if (column < n.D) n.lines[(blockIdx.x * 2 + which) * (int64_t)n.D + column] = total;
            }
        }
}

void launch_qk_norm_bwd(cudaStream_t s, launch_type t, const launch_heads_args *a) {
    by_type(t, [&](auto zero) {
        using T = decltype(zero);
        const void *operands[] = {a->qkv, a->gq, a->gk, a->dy, a->y};
        bool whole = a->D % pack<T>::N == 0;
        for (const void *p : operands) whole = whole && aligned(p, 16);
        by_head_lanes(divide_up(a->D, pack<T>::N), [&](auto n_lanes, auto per_lane) {
            constexpr int LANES = decltype(n_lanes)::value, PACKS = decltype(per_lane)::value;
            by_flag(whole, [&](auto vector) {
                launch(qk_norm_bwd_kernel<T, decltype(vector)::value, LANES, PACKS>,
                       dim3((unsigned)sum_block_count(a->n_rows)), dim3(HEAD_THREADS), s, *a,
                       sum_block_rows(a->n_rows));
            });
        });
    });
}
