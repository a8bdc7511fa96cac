/* preference.c - losses over pairs of responses: from the loss of every token to its weight in the gradient.
 *
 * The backward of a loss over whole responses is that of the token losses with one weight per token, so the unembedding's
 * gradient kernel serves it; only the weights are known after the losses instead of before. Thousands of numbers: one thread,
 * in order. Sequence ranks have gathered the losses of whole rows: each judges all examples, writes the weights of its own
 * tokens, and the first of them adds to the sums, which ranks add up. */
#include "backend/cpu/cpu.h"

/* Most examples of a row: each has at least one token of each of its parts. */
static size_t preference_bytes(const program *p, const op *o, int n_threads) {
    (void)p, (void)n_threads;
    return (size_t)(o->attr.seq_len * MAX(o->attr.group_size, 1)) * PREFERENCE_PARTS * sizeof(preference_part);
}
const cpu_work_fn cpu_work_PREFERENCE = preference_bytes;

void cpu_kernel_PREFERENCE(backend_context *c, const kernel_call *k) {
    (void)c;
    const op_attr *a = &k->op->attr;
    const preference_options *o = &a->preference;
    const float *losses = k->in[PREFERENCE_LOSSES], *reference = k->in[PREFERENCE_REFERENCE];
    const int32_t *segments = k->in[PREFERENCE_SEGMENTS];
    const step_scalars *scalars = k->in[PREFERENCE_SCALARS];
    float *weights = k->out[PREFERENCE_WEIGHTS];
    double *sums = k->out[PREFERENCE_SUMS], part[PREFERENCE_SUM_COUNT] = {0};
    preference_part *parts = k->work; /* of a row */
    const double *given_z = k->in[PREFERENCE_Z];
    preference_gains gains = {0, 0};
    int64_t own = a->seq_len, first = a->index * a->batch * own;
    preference_rows rows = {a->batch, own * MAX(a->group_size, 1), MAX(a->group_size, 1)};
    for (int64_t row = 0; row < a->batch && o->kind == PREFERENCE_KTO && !given_z; row++) {
        int64_t n = preference_add_row(parts, &rows, row, segments, losses, reference);
        preference_add_gains(&gains, parts, n);
    }
    double z = given_z ? *given_z : preference_z(o, gains);
    for (int64_t row = 0; row < a->batch; row++) {
        int64_t n = preference_add_row(parts, &rows, row, segments, losses, reference);
        preference_judge(o, parts, n, z, part);
        for (int64_t i = row * own; i < (row + 1) * own; i++) {
            int32_t s = segments[first + i];
            bool counts = s >= 0 && s % PREFERENCE_PARTS <= PREFERENCE_REJECTED;
            weights[i] = counts ? (float)parts[s].loss : 0;
        }
    }
    for (int i = 0; i < PREFERENCE_SUM_COUNT; i++) {
        double sum = a->index == 0 ? part[i] : 0;
        sums[i] = scalars->micro == 0 ? sum : sums[i] + sum;
    }
}
