#pragma once
/* paged_device.cuh - what both kernels of paged attention share: where a token and its keys are, and how the parts of a
 * token join.
 *
 * A token's positions are cut into splits of PAGED_SPLIT from 0 on. Inside a split keys are walked in order with a running
 * maximum; splits join in order. A row's sums depend on nothing but its own q and positions: whether the splits ran side
 * by side, with whom they shared a block and how large a page is does not show in the bits.
 * Refuses, by a trap that ends the run, a slot, position or page outside its table. */
#include "backend/cuda/attention_device.cuh"

__device__ inline int64_t token_count(const launch_paged &a) { return a.rows ? min((int64_t)*a.rows, a.N) : a.N; }

/* The position of a token of a slot. */
__device__ inline int position_of(const launch_paged &a, int64_t token) {
    int64_t position = -(int64_t)a.doc_start[token];
    if (position < 0 || position >= a.pages_per_slot * a.page_size || a.slots[token] >= a.n_slots) __trap();
    return (int)position;
}

/* The first position that the token at one sees. */
__device__ inline int first_seen(const launch_paged &a, int position) { return max(position + 1 - a.window, 0); }

/* Element 0 of kv head g's key at a position of a slot; its value lies value_offset further. */
__device__ inline int64_t key_at(const launch_paged &a, int slot, int position, int g) {
    int page_size = (int)a.page_size, page = a.table[slot * a.pages_per_slot + position / page_size];
    if (page < 0 || page >= a.n_pages) __trap();
    return (((int64_t)page * 2 * a.G + g) * page_size + position % page_size) * a.D;
}
__device__ inline int64_t value_offset(const launch_paged &a) { return a.G * a.page_size * a.D; }

/* Scores are in units of log 2, so that the exponential is the machine's own. */
__device__ inline float score_scale(const launch_paged &a) { return a.scale * 1.44269504088896341f; }

/* The running softmax of a row: weights are powers of two below the maximum. */
struct softmax_state {
    float max, sum;
};

/* Joins the part of a later split to the total: both factors, for the sums of values. */
struct join_factors {
    float total, part;
};
__device__ inline join_factors join(softmax_state &total, softmax_state part) {
    float max = fmaxf(total.max, part.max), from = anchor(max);
    join_factors f = {exp2f(total.max - from), exp2f(part.max - from)};
    total.sum = fmaf(total.sum, f.total, part.sum * f.part);
    total.max = max;
    return f;
}

/* Partials: the sums of values of every (token, head, split), then their states. */
__device__ inline int64_t partial_of(const launch_paged &a, int64_t token, int head, int split, int n_splits) {
    return (token * a.H + head) * n_splits + split;
}
__device__ inline float *partial_values(const launch_paged &a, int64_t partial) { return a.partials + partial * a.D; }
__device__ inline softmax_state *partial_state(const launch_paged &a, int64_t partial, int n_splits) {
    return (softmax_state *)(a.partials + a.N * a.H * n_splits * a.D) + partial;
}

/* How rows are dealt out: `heads` query heads of a group, `parts` times, for `tokens` neighbours: at most n_rows. */
struct row_shape {
    int group, heads, parts, tokens;
};
__host__ __device__ inline row_shape row_shape_of(const launch_paged &a, int n_rows) {
    row_shape r;
    r.group = a.H / a.G;
    r.heads = r.group < n_rows ? r.group : n_rows;
    r.parts = (r.group + r.heads - 1) / r.heads;
    r.tokens = n_rows / r.heads;
    return r;
}

/* Joins the partials of every token in order; paged.cu. */
void launch_paged_join(const launch_paged *a, int n_splits, cudaStream_t s);
