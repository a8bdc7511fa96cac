/* preference.cu - losses over pairs of responses: from the loss of every token to its weight in the gradient.
 *
 * A warp takes a row. Its lanes load 32 tokens at once; the sums over a response run in token order, so the bits are those of
 * one thread, and of the host but for exp and log. A few thousand numbers: three small launches, of which the second waits for
 * z, which is over all rows. */
#include "backend/cuda/launch_preference.h"

#include "backend/cuda/preference_sizes.h"
#include "backend/cuda/typed.cuh"

struct row_work {
    preference_part *parts; /* of this row */
    double *sums;           /* ROW_SUMS of every row */
    int64_t *counts;        /* examples of every row */
};

DEVICE row_work work_of(const launch_preference &p, int64_t row) {
    preference_layout l = preference_layout_of(p.rows.batch, p.rows.seq_len);
    char *base = (char *)p.work;
    return {(preference_part *)base + row * p.rows.seq_len * PREFERENCE_PARTS, (double *)(base + l.at_sums),
            (int64_t *)(base + l.at_counts)};
}

/* Sums over the tokens of every response of a row. */
static __global__ void __launch_bounds__(WARP) add_rows(launch_preference p) {
    int64_t row = blockIdx.x, T = p.rows.seq_len, n = 0;
    int lane = threadIdx.x;
    row_work w = work_of(p, row);
    int32_t last = -1;
    for (int64_t t = lane; t < T; t += WARP) last = max(last, p.segments[preference_token(&p.rows, row, t)]);
    n = __reduce_max_sync(0xffffffff, last) / PREFERENCE_PARTS + (__any_sync(0xffffffff, last >= 0) ? 1 : 0);
    for (int64_t i = lane; i < n * PREFERENCE_PARTS; i += WARP) w.parts[i] = {0, 0, 0};
    __syncwarp();
    int32_t now = -1;
    preference_part sum = {0, 0, 0};
    for (int64_t t0 = 0; t0 < T; t0 += WARP) {
        int64_t t = t0 + lane, at = t < T ? preference_token(&p.rows, row, t) : 0;
        int32_t s = t < T ? p.segments[at] : -1;
        float loss = t < T ? p.losses[at] : 0, reference = t < T && p.reference ? p.reference[at] : 0;
        for (int i = 0; i < WARP; i++) { /* every lane does the same sums; the first one keeps them */
            int32_t si = __shfl_sync(0xffffffff, s, i);
            float li = __shfl_sync(0xffffffff, loss, i), ri = __shfl_sync(0xffffffff, reference, i);
            if (si < 0) continue;
            if (si != now) {
                if (now >= 0 && lane == 0) w.parts[now] = sum;
                __syncwarp();
                sum = w.parts[si];
                now = si;
            }
            sum.loss += (double)li;
            sum.reference += (double)ri;
            sum.n++;
        }
    }
    if (lane != 0) return;
    if (now >= 0) w.parts[now] = sum;
    preference_gains gains = {0, 0};
    preference_add_gains(&gains, w.parts, n);
    w.sums[row * ROW_SUMS + ROW_KL] = gains.sum;
    w.sums[row * ROW_SUMS + ROW_KL_COUNT] = gains.n;
    w.counts[row] = n;
}

DEVICE double find_z(const launch_preference &p, const row_work &w) {
    preference_gains gains = {0, 0};
    if (p.z) return *p.z;
    for (int64_t b = 0; b < p.rows.batch; b++)
        gains.sum += w.sums[b * ROW_SUMS + ROW_KL], gains.n += w.sums[b * ROW_SUMS + ROW_KL_COUNT];
    return preference_z(&p.options, gains);
}

/* The loss of every example of a row, and the weights of its tokens. */
static __global__ void __launch_bounds__(WARP) weigh_rows(launch_preference p) {
    int64_t row = blockIdx.x, own = p.rows.seq_len / p.rows.n_ranks;
    row_work w = work_of(p, row);
    if (threadIdx.x == 0) {
        double sums[PREFERENCE_SUM_COUNT] = {};
        preference_judge(&p.options, w.parts, w.counts[row], find_z(p, w), sums);
        for (int i = 0; i < PREFERENCE_SUM_COUNT; i++) w.sums[row * ROW_SUMS + i] = sums[i];
    }
    __syncwarp();
    for (int64_t t = threadIdx.x; t < own; t += WARP) {
        int32_t s = p.segments[(p.rank * p.rows.batch + row) * own + t];
        bool counts = s >= 0 && s % PREFERENCE_PARTS <= PREFERENCE_REJECTED;
        p.weights[row * own + t] = counts ? (float)w.parts[s].loss : 0;
    }
}

static __global__ void add_sums(launch_preference p) {
    int i = threadIdx.x;
    if (i >= PREFERENCE_SUM_COUNT) return;
    row_work w = work_of(p, 0);
    double sum = 0;
    for (int64_t b = 0; b < p.rows.batch && p.rank == 0; b++) sum += w.sums[b * ROW_SUMS + i];
    p.sums[i] = *p.micro == 0 ? sum : p.sums[i] + sum;
}

void launch_preference_run(cudaStream_t s, const launch_preference *p) {
    add_rows<<<(unsigned)p->rows.batch, WARP, 0, s>>>(*p);
    weigh_rows<<<(unsigned)p->rows.batch, WARP, 0, s>>>(*p);
    add_sums<<<1, WARP, 0, s>>>(*p);
}
