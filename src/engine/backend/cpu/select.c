/* select.c - which tokens are trained on, by the quantile of their excess losses. Thousands of numbers, read five times: one
 * thread, no scratch. */
#include "backend/cpu/cpu.h"

typedef struct select_run {
    const float *losses, *reference;
    const int32_t *targets;
    selection_kind kind;
    select_tokens tokens;
    int64_t n; /* of all ranks */
    int ahead; /* the reference's loss for the target of a token is that so many tokens behind it */
} select_run;

static float excess_at(const select_run *r, int64_t i) {
    return select_excess(r->kind, r->losses[i], r->reference[select_ahead(&r->tokens, i, r->ahead)]);
}

/* The key of this rank among the valid tokens, byte by byte from the top; and the next one. */
static void find_neighbours(const select_run *r, int64_t rank, uint32_t *key, uint32_t *next) {
    uint32_t prefix = 0, mask = 0;
    int64_t left = rank, equal = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        int64_t counts[256] = {0};
        int byte = 0;
        for (int64_t i = 0; i < r->n; i++) {
            if (r->targets[i] < 0) continue;
            uint32_t k = select_key(excess_at(r, i));
            if ((k & mask) == prefix) counts[k >> shift & 255]++;
        }
        while (left >= counts[byte]) left -= counts[byte++];
        equal = counts[byte];
        prefix |= (uint32_t)byte << shift;
        mask |= 255u << shift;
    }
    *key = *next = prefix;
    if (left + 1 < equal) return;
    uint32_t above = UINT32_MAX;
    for (int64_t i = 0; i < r->n; i++) {
        if (r->targets[i] < 0) continue;
        uint32_t k = select_key(excess_at(r, i));
        if (k > prefix && k < above) above = k;
    }
    *next = above;
}

void cpu_kernel_SELECT_TOKENS(backend_context *c, const kernel_call *k) {
    (void)c;
    const op_attr *a = &k->op->attr;
    const selection_options *o = &a->selection;
    const float *before = k->in[SELECT_TOKENS_BEFORE];
    const step_scalars *scalars = k->in[SELECT_TOKENS_SCALARS];
    float *weights = k->out[SELECT_TOKENS_WEIGHTS];
    double *sums = (double *)k->out[SELECT_TOKENS_SUMS] + MAX(a->n_losses, 1) * SUM_COUNT + a->loss * SELECT_SUM_COUNT;
    double part[SELECT_SUM_COUNT] = {0};
    select_tokens tokens = {
        .own = a->batch * a->seq_len, .seq_len = a->seq_len, .n_ranks = MAX(a->group_size, 1), .index = a->index};
    int64_t first = select_first_own(&tokens);
    select_run r = {.losses = k->in[SELECT_TOKENS_LOSSES],
                    .reference = k->in[SELECT_TOKENS_REFERENCE],
                    .targets = k->in[SELECT_TOKENS_TARGETS],
                    .kind = o->kind,
                    .tokens = tokens,
                    .n = shape_count(&call_in(k, SELECT_TOKENS_LOSSES)->shape),
                    .ahead = a->loss};
    int64_t n_valid = 0;
    for (int64_t i = 0; i < r.n; i++) n_valid += r.targets[i] >= 0;
    double threshold = 0;
    if (n_valid > 0) {
        int64_t rank;
        double between;
        uint32_t key, next;
        select_rank(o->share, n_valid, &rank, &between);
        find_neighbours(&r, rank, &key, &next);
        threshold = select_threshold(key, next, between);
        if (tokens.index == 0) part[SELECT_THRESHOLD] = threshold, part[SELECT_MICROS] = 1; /* ranks are summed */
    }
    bool all = a->loss == 0 && o->first_head_all;
    for (int64_t i = 0; i < tokens.own; i++) {
        weights[i] = 0;
        if (r.targets[first + i] < 0) continue;
        float e = excess_at(&r, first + i);
        part[SELECT_EXCESS] += e;
        if (!all && !((double)e >= threshold)) continue;
        part[SELECT_COUNT] += 1;
        weights[i] = before ? before[i] : 1;
    }
    for (int i = 0; i < SELECT_SUM_COUNT; i++) sums[i] = scalars->micro == 0 ? part[i] : sums[i] + part[i];
}
