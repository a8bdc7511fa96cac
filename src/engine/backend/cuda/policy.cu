/* policy.cu - the loss of completions with advantages: from the loss of every token to its weight in the gradient.
 *
 * A warp takes a row. Its lanes load and judge 32 tokens at once; sums run in token order, so the bits are those of one thread,
 * and of the host but for exp. A few thousand numbers: two small launches. */
#include "backend/cuda/launch_policy.h"

#include "backend/cuda/policy_sizes.h"
#include "backend/cuda/typed.cuh"

enum { ALL = 0xffffffff };

DEVICE float or_nan(const float *x, int64_t i) { return x ? x[i] : __int_as_float(0x7fffffff); }

DEVICE policy_token token_of(const launch_policy &p, int64_t i) {
    return {p.losses[i], or_nan(p.old, i), or_nan(p.reference, i), or_nan(p.rollout, i), p.advantages[i]};
}

/* Sums over the tokens of every completion of a row. */
DEVICE void add_row(const launch_policy &p, policy_part *parts, int64_t row) {
    int64_t T = p.seq_len;
    int lane = threadIdx.x;
    for (int64_t i = lane; i < T; i += WARP) parts[i] = {0, 0, 0};
    __syncwarp();
    int32_t now = -1;
    policy_part sum = {0, 0, 0};
    for (int64_t t0 = 0; t0 < T; t0 += WARP) {
        int64_t t = t0 + lane;
        int32_t s = t < T ? p.segments[row * T + t] : -1;
        policy_token token = {};
        if (s >= 0) token = token_of(p, row * T + t);
        double ratio = s >= 0 ? policy_log_ratio(&token) : 0, importance = s >= 0 ? policy_log_importance(&token) : 0;
        for (int i = 0; i < WARP; i++) { /* every lane does the same sums; the first one keeps them */
            int32_t si = __shfl_sync(ALL, s, i);
            double ri = __shfl_sync(ALL, ratio, i), ci = __shfl_sync(ALL, importance, i);
            if (si < 0) continue;
            if (si != now) {
                if (now >= 0 && lane == 0) parts[now] = sum;
                __syncwarp();
                sum = parts[si];
                now = si;
            }
            sum.ratio += ri;
            sum.importance += ci;
            sum.n++;
        }
    }
    if (now >= 0 && lane == 0) parts[now] = sum;
    __syncwarp();
}

static __global__ void __launch_bounds__(WARP) weigh_rows(launch_policy p) {
    int64_t row = blockIdx.x, T = p.seq_len;
    int lane = threadIdx.x;
    policy_part *parts = (policy_part *)p.work + row * T;
    double *sums = (double *)((char *)p.work + policy_layout_of(p.batch, T).at_sums) + row * POLICY_SUM_COUNT;
    double sum[POLICY_SUM_COUNT] = {};
    int32_t last = POLICY_NONE; /* completion */
    add_row(p, parts, row);
    for (int64_t t0 = 0; t0 < T; t0 += WARP) {
        int64_t t = t0 + lane, at = row * T + t;
        int32_t s = t < T ? p.segments[at] : POLICY_NONE;
        policy_result r = {0, 0, 0, 0, 0, 0};
        if (s >= 0) {
            policy_token token = token_of(p, at);
            r = policy_judge(&p.options, &parts[s], &token);
        }
        if (t < T) p.weights[at] = (float)r.weight;
        for (int i = 0; i < WARP; i++) {
            int32_t si = __shfl_sync(ALL, s, i);
            policy_result ri;
            ri.weight = 0;
            ri.loss = __shfl_sync(ALL, r.loss, i);
            ri.kl = __shfl_sync(ALL, r.kl, i);
            ri.low = __shfl_sync(ALL, r.low, i);
            ri.high = __shfl_sync(ALL, r.high, i);
            ri.ratio = __shfl_sync(ALL, r.ratio, i);
            if (si == POLICY_COUNTED) policy_count_nothing(sum);
            if (si < 0) continue;
            policy_count(&p.options, &ri, si != last, sum);
            last = si;
        }
    }
    if (lane == 0)
        for (int i = 0; i < POLICY_SUM_COUNT; i++) sums[i] = sum[i];
}

static __global__ void add_sums(launch_policy p) {
    int i = threadIdx.x;
    if (i >= POLICY_SUM_COUNT) return;
    const double *rows = (const double *)((const char *)p.work + policy_layout_of(p.batch, p.seq_len).at_sums);
    double sum = 0;
    for (int64_t b = 0; b < p.batch; b++) sum += rows[b * POLICY_SUM_COUNT + i];
    p.sums[i] = *p.micro == 0 ? sum : p.sums[i] + sum;
}

void launch_policy_run(cudaStream_t s, const launch_policy *p) {
    weigh_rows<<<(unsigned)p->batch, WARP, 0, s>>>(*p);
    add_sums<<<1, WARP, 0, s>>>(*p);
}
