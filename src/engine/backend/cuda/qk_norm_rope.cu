/* qk_norm_rope.cu - RMSNorm of the q and k heads of packed rows with the rotation behind it, and the backward of both.
 *
 * A power of two of neighbouring lanes holds a head. Each has packs of its first half and their partners of the second,
 * so that a pair is turned in the lane that normed it: the lanes exchange one sum, and memory is passed over once.
 *
 *     xh = x rstd, d = dy turned back, a = d gamma:   dx = rstd (a - xh mean(a xh)),   dgamma += d xh
 *
 * Backward, a block takes the queries of its rows, then their keys, so that one gain and one set of sums are in registers
 * at a time; the next head is asked for before this one is summed. Which lanes sum which heads follows from the shapes. */
#include "backend/cuda/launch_heads.h"

#include "backend/cuda/chain.cuh"
#include "backend/cuda/heads.cuh"

/* ---- what a lane holds of a head --------------------------------------------------------------------------------- */

template <int PACKS> struct halves { uint4 low[PACKS], high[PACKS]; /* as they lie in memory */ };

/* Of the half's packs, the k-th of this lane begins at this element. */
template <typename T, int LANES> DEVICE int pack_start(int k) {
    return (int)(threadIdx.x % LANES + k * LANES) * pack<T>::N;
}

template <typename T, bool VECTOR, int LANES, int PACKS>
DEVICE halves<PACKS> halves_load(const T *head, int half, bool there) {
    halves<PACKS> h;
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        int i = pack_start<T, LANES>(k), left = there ? half - i : 0;
        h.low[k] = raw_load<VECTOR>(head + i, left);
        h.high[k] = raw_load<VECTOR>(head + half + i, left);
    }
    return h;
}

/* Cosines and sines for those packs. */
template <typename T, int PACKS> struct turns {
    enum { QUADS = pack<T>::N / 4 };
    uint4 cosine[PACKS][QUADS], sine[PACKS][QUADS];
};

template <typename T, bool VECTOR, int LANES, int PACKS>
DEVICE turns<T, PACKS> turns_load(const float *line, int half) {
    turns<T, PACKS> t;
#pragma unroll
    for (int k = 0; k < PACKS; k++)
#pragma unroll
        for (int q = 0; q < turns<T, PACKS>::QUADS; q++) {
            int i = pack_start<T, LANES>(k) + 4 * q;
            t.cosine[k][q] = raw_load<VECTOR>(line + i, half - i);
            t.sine[k][q] = raw_load<VECTOR>(line + half + i, half - i);
        }
    return t;
}

/* Pack k of the lane; sign -1 turns back. */
template <typename T, int PACKS>
DEVICE void turn(pack<T> &low, pack<T> &high, const turns<T, PACKS> &by, int k, float sign) {
#pragma unroll
    for (int q = 0; q < turns<T, PACKS>::QUADS; q++) {
        pack<float> c = pack_widen<float>(by.cosine[k][q]), s = pack_widen<float>(by.sine[k][q]);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float l = low.v[4 * q + e], h = high.v[4 * q + e], sine = sign * s.v[e];
            low.v[4 * q + e] = fmaf(l, c.v[e], -(h * sine));
            high.v[4 * q + e] = fmaf(h, c.v[e], l * sine);
        }
    }
}

/* 32 bits: the remainder of 64 takes as long as the rest of a pack. */
DEVICE const float *row_line(const launch_turned_args &a, int64_t row) {
    int64_t position = (int64_t)((uint32_t)row % a.seq_len) - a.doc_start[row];
    if (position < 0 || position >= a.n_positions) __trap();
    return a.table + position * a.heads.D;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* Blocks along x go over the heads of a row, those of v last, along y over rows. */
template <typename T, bool VECTOR, int LANES, int PACKS>
static __global__ void __launch_bounds__(HEAD_THREADS) qk_norm_rope_kernel(launch_turned_args a) {
    enum { N = pack<T>::N };
    const launch_heads_args &n = a.heads;
    chain_enter();
    int half = n.D / 2, head = (int)((blockIdx.x * blockDim.x + threadIdx.x) / LANES);
    int n_normed = n.n_q + n.n_k, n_heads = n_normed + n.n_v;
    bool normed = head < n_normed, there = normed || (head < n_heads && n.y != n.qkv);
    int64_t held = rows_held(n.rows, n.n_rows);
    const T *gain = (const T *)(head < n.n_q ? n.gq : n.gk);
    for (int64_t row = blockIdx.y; row < held; row += gridDim.y) {
        int64_t start = (row * n_heads + head) * n.D;
        halves<PACKS> x = halves_load<T, VECTOR, LANES, PACKS>((const T *)n.qkv + start, half, there);
        turns<T, PACKS> by = turns_load<T, VECTOR, LANES, PACKS>(row_line(a, row), half);
        float square = 0;
#pragma unroll
        for (int k = 0; k < PACKS; k++) { /* lanes without a head stay for the sum, with zeros */
            pack<T> low = pack_widen<T>(x.low[k]), high = pack_widen<T>(x.high[k]);
#pragma unroll
            for (int e = 0; e < N; e++) square = fmaf(high.v[e], high.v[e], fmaf(low.v[e], low.v[e], square));
        }
        float rstd = 1.0f / sqrtf(lanes_sum<LANES>(square) / (float)n.D + n.eps);
        if (!there) continue;
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            int i = pack_start<T, LANES>(k), left = half - i;
            T *y = (T *)n.y + start + i;
            if (!normed) {
                raw_store<VECTOR>(y, x.low[k], left);
                raw_store<VECTOR>(y + half, x.high[k], left);
                continue;
            }
            pack<T> low = pack_widen<T>(x.low[k]), high = pack_widen<T>(x.high[k]);
            pack<T> g_low = pack_load<VECTOR>(gain + i, left), g_high = pack_load<VECTOR>(gain + half + i, left);
#pragma unroll
            for (int e = 0; e < N; e++) {
                low.v[e] = low.v[e] * rstd * (g_low.v[e] + n.offset);
                high.v[e] = high.v[e] * rstd * (g_high.v[e] + n.offset);
            }
            turn<T, PACKS>(low, high, by, k, 1);
            pack_store<VECTOR>(y, low, left);
            pack_store<VECTOR>(y + half, high, left);
        }
        if (normed && threadIdx.x % LANES == 0) n.rstd[row * n_normed + head] = rstd;
    }
}

/* Halves of whole packs, all of them aligned. */
template <typename T> static bool is_whole(const launch_turned_args *a) {
    const void *operands[] = {a->heads.qkv, a->heads.gq, a->heads.gk, a->heads.dy, a->heads.y, a->table};
    bool whole = a->heads.D / 2 % pack<T>::N == 0;
    for (const void *p : operands) whole = whole && aligned(p, 16);
    return whole;
}

void launch_qk_norm_rope(cudaStream_t s, launch_type t, const launch_turned_args *a) {
    by_type(t, [&](auto zero) {
        using T = decltype(zero);
        const launch_heads_args *n = &a->heads;
        by_head_lanes<HEAD_PACKS_MOST / 2>(divide_up(n->D / 2, pack<T>::N), [&](auto n_lanes, auto per_lane) {
            constexpr int LANES = decltype(n_lanes)::value, PACKS = decltype(per_lane)::value;
            int64_t threads = (int64_t)(n->n_q + n->n_k + (n->y == n->qkv ? 0 : n->n_v)) * LANES;
            unsigned block = block_threads(threads, HEAD_THREADS);
            by_flag(is_whole<T>(a), [&](auto vector) {
                launch_chained(qk_norm_rope_kernel<T, decltype(vector)::value, LANES, PACKS>,
                               dim3((unsigned)divide_up(threads, block), grid_rows(n->n_rows)), dim3(block), 0, 1, s,
                               *a);
            });
        });
    });
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* What a lane needs of one head. */
template <int PACKS> struct head_in {
    halves<PACKS> x, dy;
    const float *line; /* of the table */
    float rstd;
};

template <typename T, bool VECTOR, int LANES, int PACKS>
DEVICE head_in<PACKS> head_load(const launch_turned_args &a, int64_t row, int head, bool there) {
    const launch_heads_args &n = a.heads;
    int64_t start = (row * (n.n_q + n.n_k + n.n_v) + head) * n.D;
    head_in<PACKS> h;
    h.x = halves_load<T, VECTOR, LANES, PACKS>((const T *)n.qkv + start, n.D / 2, there);
    h.dy = halves_load<T, VECTOR, LANES, PACKS>((const T *)n.dy + start, n.D / 2, there);
    h.line = there ? row_line(a, row) : a.table; /* zeros are turned by any line */
    h.rstd = there ? n.rstd[row * (n.n_q + n.n_k) + head] : 0;
    return h;
}

/* Heads first_head .. first_head + count of the rows first .. end: dx, and unless line is NULL the sums for their gain. */
template <typename T, bool VECTOR, int LANES, int PACKS>
DEVICE void heads_bwd(const launch_turned_args &a, int64_t first, int64_t end, int first_head, int count, const T *gain,
                      float *line, float *parts) {
    enum { N = pack<T>::N, GROUPS = HEAD_THREADS / LANES };
    const launch_heads_args &n = a.heads;
    int half = n.D / 2, group = threadIdx.x / LANES, head = group % count;
    int64_t row = first + group / count, turns_left = ((end - first) * count + GROUPS - 1) / GROUPS;
    halves<PACKS> gamma = halves_load<T, VECTOR, LANES, PACKS>(gain, half, true);
    float dgamma[2][PACKS][N] = {};
    head_in<PACKS> next = head_load<T, VECTOR, LANES, PACKS>(a, row, first_head + head, row < end);
    for (; turns_left > 0; turns_left--) { /* the whole warp stays for the sums */
        head_in<PACKS> now = next;
        bool there = row < end;
        T *dx = (T *)n.y + (row * (n.n_q + n.n_k + n.n_v) + first_head + head) * n.D;
        turns<T, PACKS> by = turns_load<T, VECTOR, LANES, PACKS>(now.line, half);
        row += GROUPS / count;
        head += GROUPS % count;
        if (head >= count) head -= count, row++;
        next = head_load<T, VECTOR, LANES, PACKS>(a, row, first_head + head, turns_left > 1 && row < end);

        pack<T> low[PACKS], high[PACKS]; /* d gamma */
        float axh = 0;
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            low[k] = pack_widen<T>(now.dy.low[k]);
            high[k] = pack_widen<T>(now.dy.high[k]);
            turn<T, PACKS>(low[k], high[k], by, k, -1);
            pack<T> x_low = pack_widen<T>(now.x.low[k]), x_high = pack_widen<T>(now.x.high[k]);
            pack<T> g_low = pack_widen<T>(gamma.low[k]), g_high = pack_widen<T>(gamma.high[k]);
#pragma unroll
            for (int e = 0; e < N; e++) {
                float xh_low = x_low.v[e] * now.rstd, xh_high = x_high.v[e] * now.rstd;
                dgamma[0][k][e] = fmaf(low[k].v[e], xh_low, dgamma[0][k][e]);
                dgamma[1][k][e] = fmaf(high[k].v[e], xh_high, dgamma[1][k][e]);
                low[k].v[e] *= g_low.v[e] + n.offset;
                high[k].v[e] *= g_high.v[e] + n.offset;
                axh = fmaf(high[k].v[e], xh_high, fmaf(low[k].v[e], xh_low, axh));
            }
        }
        float mean_axh = lanes_sum<LANES>(axh) / (float)n.D;
        if (!there) continue;
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            int i = pack_start<T, LANES>(k);
            pack<T> x_low = pack_widen<T>(now.x.low[k]), x_high = pack_widen<T>(now.x.high[k]);
#pragma unroll
            for (int e = 0; e < N; e++) {
                low[k].v[e] = now.rstd * fmaf(x_low.v[e] * now.rstd, -mean_axh, low[k].v[e]);
                high[k].v[e] = now.rstd * fmaf(x_high.v[e] * now.rstd, -mean_axh, high[k].v[e]);
            }
            pack_store<VECTOR>(dx + i, low[k], half - i);
            pack_store<VECTOR>(dx + half + i, high[k], half - i);
        }
    }
    float *const lines[2] = {line, line ? line + half : NULL};
    give_lines<T, LANES, PACKS>(lines, dgamma, half, parts);
}

/* The v heads of rows first .. end, where dx is not dy. */
template <typename T, bool VECTOR> DEVICE void copy_v(const launch_heads_args &n, int64_t first, int64_t end) {
    enum { N = pack<T>::N };
    int normed = (n.n_q + n.n_k) * n.D, width = normed + n.n_v * n.D;
    for (int64_t row = first; row < end; row++)
        for (int i = normed + (int)threadIdx.x * N; i < width; i += HEAD_THREADS * N)
            raw_store<VECTOR>((T *)n.y + row * width + i,
                              raw_load<VECTOR>((const T *)n.dy + row * width + i, width - i), width - i);
}

template <typename T, bool VECTOR, int LANES, int PACKS>
static __global__ void __launch_bounds__(HEAD_THREADS, PACKS == 1 ? 2 : 1)
    qk_norm_rope_bwd_kernel(launch_turned_args a, int64_t block_rows) {
    __shared__ float parts[HEAD_THREADS * pack<T>::N];
    const launch_heads_args &n = a.heads;
    int64_t first = blockIdx.x * block_rows, end = min(first + block_rows, n.n_rows);
#pragma unroll 1
    for (int key = 0; key < 2; key++) {
        float *lines = key ? n.k_lines : n.q_lines;
        heads_bwd<T, VECTOR, LANES, PACKS>(a, first, end, key ? n.n_q : 0, key ? n.n_k : n.n_q,
                                           (const T *)(key ? n.gk : n.gq), lines ? lines + blockIdx.x * n.line : NULL,
                                           parts);
    }
    if (n.y != n.dy) copy_v<T, VECTOR>(n, first, end);
}

void launch_qk_norm_rope_bwd(cudaStream_t s, launch_type t, const launch_turned_args *a) {
    by_type(t, [&](auto zero) {
        using T = decltype(zero);
        int64_t n_rows = a->heads.n_rows;
        by_head_lanes<HEAD_PACKS_MOST / 2>(divide_up(a->heads.D / 2, pack<T>::N), [&](auto n_lanes, auto per_lane) {
            constexpr int LANES = decltype(n_lanes)::value, PACKS = decltype(per_lane)::value;
            by_flag(is_whole<T>(a), [&](auto vector) {
                launch(qk_norm_rope_bwd_kernel<T, decltype(vector)::value, LANES, PACKS>,
                       dim3((unsigned)sum_block_count(n_rows)), dim3(HEAD_THREADS), s, *a, sum_block_rows(n_rows));
            });
        });
    });
}
