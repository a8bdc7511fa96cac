/* select.cu - which tokens are trained on, by the quantile of their excess losses.
 *
 * One block reads the tokens a few times: the keys around the quantile are found byte by byte from the top, by counts, which have
 * no order. So the threshold is the host's, and so are the tokens. */
#include "backend/cuda/launch_select.h"

#include "backend/cuda/typed.cuh"

enum { SELECT_THREADS = 1024 };

struct select_search {
    unsigned long long counts[256];
    unsigned long long left, equal; /* of the rank below the prefix; keys that have all of it */
    uint32_t prefix, mask, above;
    long long n_valid, rank;
    double part, threshold;
};

DEVICE float excess_at(const launch_select &p, int64_t i) {
    return select_excess(p.options.kind, p.losses[i], p.reference[select_ahead(&p.tokens, i, p.loss)]);
}

DEVICE void count_valid(const launch_select &p, select_search &s) {
    if (threadIdx.x == 0) s.counts[0] = 0;
    __syncthreads();
    unsigned long long n = 0;
    for (int64_t i = threadIdx.x; i < p.n; i += SELECT_THREADS) n += p.targets[i] >= 0;
    atomicAdd(&s.counts[0], n);
    __syncthreads();
    if (threadIdx.x == 0) {
        int64_t rank = 0;
        s.n_valid = (long long)s.counts[0];
        s.part = 0;
        if (s.n_valid > 0) select_rank(p.options.share, s.n_valid, &rank, &s.part);
        s.left = (unsigned long long)rank;
        s.prefix = s.mask = 0;
        s.above = 0xffffffffu;
    }
    __syncthreads();
}

DEVICE void find_byte(const launch_select &p, select_search &s, int shift) {
    for (int i = threadIdx.x; i < 256; i += SELECT_THREADS) s.counts[i] = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < p.n; i += SELECT_THREADS) {
        if (p.targets[i] < 0) continue;
        uint32_t k = select_key(excess_at(p, i));
        if ((k & s.mask) == s.prefix) atomicAdd(&s.counts[k >> shift & 255], 1ull);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        int byte = 0;
        while (s.left >= s.counts[byte]) s.left -= s.counts[byte++];
        s.equal = s.counts[byte];
        s.prefix |= (uint32_t)byte << shift;
        s.mask |= 255u << shift;
    }
    __syncthreads();
}

/* The smallest key above the one that was found, where that is not the next in rank too. */
DEVICE void find_above(const launch_select &p, select_search &s) {
    bool same = s.left + 1 < s.equal;
    if (!same)
        for (int64_t i = threadIdx.x; i < p.n; i += SELECT_THREADS) {
            if (p.targets[i] < 0) continue;
            uint32_t k = select_key(excess_at(p, i));
            if (k > s.prefix) atomicMin(&s.above, k);
        }
    __syncthreads();
    if (threadIdx.x == 0) s.threshold = select_threshold(s.prefix, same ? s.prefix : s.above, s.part);
    __syncthreads();
}

static __global__ void __launch_bounds__(SELECT_THREADS) select_kernel(launch_select p) {
    __shared__ select_search s;
    __shared__ double excess[SELECT_THREADS], selected[SELECT_THREADS];
    count_valid(p, s);
    if (threadIdx.x == 0) s.threshold = 0;
    __syncthreads();
    if (s.n_valid > 0) {
        for (int shift = 24; shift >= 0; shift -= 8) find_byte(p, s, shift);
        find_above(p, s);
    }
    bool all = p.loss == 0 && p.options.first_head_all;
    double sum = 0, n = 0;
    int64_t first = select_first_own(&p.tokens);
    for (int64_t i = threadIdx.x; i < p.tokens.own; i += SELECT_THREADS) {
        float weight = 0;
        if (p.targets[first + i] >= 0) {
            float e = excess_at(p, first + i);
            sum += e;
            if (all || (double)e >= s.threshold) n += 1, weight = p.before ? p.before[i] : 1.0f;
        }
        p.weights[i] = weight;
    }
    excess[threadIdx.x] = sum, selected[threadIdx.x] = n;
    for (int half = SELECT_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            excess[threadIdx.x] += excess[threadIdx.x + half];
            selected[threadIdx.x] += selected[threadIdx.x + half];
        }
    }
    if (threadIdx.x > 0) return;
    double part[SELECT_SUM_COUNT];
    part[SELECT_COUNT] = selected[0];
    part[SELECT_EXCESS] = excess[0];
    bool counts = s.n_valid > 0 && p.tokens.index == 0; /* ranks are summed */
    part[SELECT_THRESHOLD] = counts ? s.threshold : 0;
    part[SELECT_MICROS] = counts;
    for (int i = 0; i < SELECT_SUM_COUNT; i++) p.sums[i] = *p.micro == 0 ? part[i] : p.sums[i] + part[i];
}

void launch_select_run(cudaStream_t s, const launch_select *p) { select_kernel<<<1, SELECT_THREADS, 0, s>>>(*p); }
