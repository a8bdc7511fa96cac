/* policy.c - the loss of completions with advantages: from the loss of every token to its weight in the gradient.
 *
 * As in preference.c, the backward is that of the token losses with one weight per token. Thousands of numbers: one thread, in
 * order. */
#include "backend/cpu/cpu.h"

/* Most completions of a row: each has at least one token. */
static size_t policy_bytes(const program *p, const op *o, int n_threads) {
    (void)p, (void)n_threads;
    return (size_t)o->attr.seq_len * sizeof(policy_part);
}
const cpu_work_fn cpu_work_POLICY = policy_bytes;

/* The inputs of all tokens. */
typedef struct policy_rows {
    const float *losses, *old, *reference, *rollout, *advantages;
} policy_rows;

static policy_token token_of(const policy_rows *r, int64_t i) {
    return (policy_token){r->losses[i], r->old ? r->old[i] : NAN, r->reference ? r->reference[i] : NAN,
                          r->rollout ? r->rollout[i] : NAN, r->advantages[i]};
}

static void add_row(policy_part *parts, const policy_rows *r, const int32_t *segments, int64_t at, int64_t T) {
    for (int64_t i = 0; i < T; i++) parts[i] = (policy_part){0, 0, 0};
    for (int64_t i = at; i < at + T; i++) {
        if (segments[i] < 0) continue;
        policy_token t = token_of(r, i);
        policy_add(&parts[segments[i]], &t);
    }
}

void cpu_kernel_POLICY(backend_context *c, const kernel_call *k) {
    (void)c;
    const op_attr *a = &k->op->attr;
    const policy_rows rows = {k->in[POLICY_LOSSES], k->in[POLICY_OLD], k->in[POLICY_REFERENCE], k->in[POLICY_ROLLOUT],
                              k->in[POLICY_ADVANTAGES]};
    const int32_t *segments = k->in[POLICY_SEGMENTS];
    const step_scalars *scalars = k->in[POLICY_SCALARS];
    float *weights = k->out[POLICY_WEIGHTS];
    double *sums = k->out[POLICY_SUMS], part[POLICY_SUM_COUNT] = {0};
    policy_part *parts = k->work; /* of a row */
    int64_t T = a->seq_len;
    for (int64_t at = 0; at < a->batch * T; at += T) {
        double row[POLICY_SUM_COUNT] = {0};
        int32_t last = POLICY_NONE; /* completion */
        add_row(parts, &rows, segments, at, T);
        for (int64_t i = at; i < at + T; i++) {
            weights[i] = 0;
            if (segments[i] == POLICY_COUNTED) policy_count_nothing(row);
            if (segments[i] < 0) continue;
            policy_token t = token_of(&rows, i);
            policy_result r = policy_judge(&a->policy, &parts[segments[i]], &t);
            weights[i] = (float)r.weight;
            policy_count(&a->policy, &r, segments[i] != last, row);
            last = segments[i];
        }
        for (int s = 0; s < POLICY_SUM_COUNT; s++) part[s] += row[s];
    }
    for (int s = 0; s < POLICY_SUM_COUNT; s++) sums[s] = scalars->micro == 0 ? part[s] : sums[s] + part[s];
}
