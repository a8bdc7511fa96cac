/* preference.c - losses over pairs of responses: from the loss of every token to its weight in the gradient.
 *
 * The backward of a loss over whole responses is that of the token losses with one weight per token, so the unembedding's
 * gradient kernel serves it; only the weights are known after the losses instead of before. Thousands of numbers: one thread,
 * in order. */
#include "backend/cpu/cpu.h"

/* Most examples of a row: each has at least one token of each of its parts. */
static size_t preference_bytes(const program *p, const op *o, int n_threads) {
    (void)p, (void)n_threads;
    return (size_t)o->attr.seq_len * PREFERENCE_PARTS * sizeof(preference_part);
}
const cpu_work_fn cpu_work_PREFERENCE = preference_bytes;

typedef struct preference_call {
    const preference_options *o;
    const float *losses, *reference; /* reference: NULL where the loss has none */
    const int32_t *segments;
    float *weights;
    int64_t T;
    preference_part *parts; /* of a row: PREFERENCE_PARTS of every example */
    double sums[PREFERENCE_SUM_COUNT];
} preference_call;

/* Sums over the tokens of each response of row b; returns the number of examples. */
static int64_t add_row(const preference_call *k, int64_t b) {
    int64_t n = 0;
    for (int64_t t = b * k->T; t < (b + 1) * k->T; t++) {
        int32_t s = k->segments[t];
        if (s < 0) continue;
        ASSERT(s < k->T * PREFERENCE_PARTS);
        for (; n <= s / PREFERENCE_PARTS; n++)
            for (int part = 0; part < PREFERENCE_PARTS; part++)
                k->parts[n * PREFERENCE_PARTS + part] = (preference_part){0, 0, 0};
        preference_part *p = &k->parts[s];
        p->loss += (double)k->losses[t];
        if (k->reference) p->reference += (double)k->reference[t];
        p->n++;
    }
    return n;
}

static void add_example(preference_call *k, const preference_part *p, const preference_result *r) {
    k->sums[SUM_WEIGHTED_LOSS] += r->loss;
    k->sums[SUM_VALID] += 1;
    k->sums[SUM_WEIGHTS] += 1;
    k->sums[SUM_LOSS] += r->loss;
    k->sums[SUM_ACCURATE] += r->reward[PREFERENCE_CHOSEN] > r->reward[PREFERENCE_REJECTED];
    for (int side = 0; side < 2; side++) {
        if (!p[side].n) continue;
        k->sums[SUM_REWARD_CHOSEN + side] += r->reward[side];
        k->sums[SUM_LOGP_CHOSEN + side] -= p[side].loss;
        k->sums[SUM_CHOSEN + side] += 1;
    }
}

/* How far the policy is from the reference, from responses to other prompts. */
static double find_z(preference_call *k, int64_t n_rows) {
    double sum = 0, n = 0;
    for (int64_t b = 0; b < n_rows; b++) {
        int64_t examples = add_row(k, b);
        for (int64_t e = 0; e < examples; e++) {
            const preference_part *p = &k->parts[e * PREFERENCE_PARTS + PREFERENCE_OTHER];
            if (p->n) sum += preference_gain(p), n++;
        }
    }
    return n > 0 && sum > 0 ? (double)k->o->beta * sum / n : 0;
}

void cpu_kernel_PREFERENCE(backend_context *c, const kernel_call *call) {
    (void)c;
    const op_attr *a = &call->op->attr;
    preference_call k = {.o = &a->preference,
                         .losses = call->in[PREFERENCE_LOSSES],
                         .reference = call->in[PREFERENCE_REFERENCE],
                         .segments = call->in[PREFERENCE_SEGMENTS],
                         .weights = call->out[PREFERENCE_WEIGHTS],
                         .T = a->seq_len,
                         .parts = call->work};
    const step_scalars *scalars = call->in[PREFERENCE_SCALARS];
    bool single = k.o->kind == PREFERENCE_KTO;
    double z = single ? find_z(&k, a->batch) : 0;
    for (int64_t b = 0; b < a->batch; b++) {
        int64_t n = add_row(&k, b);
        for (int64_t e = 0; e < n; e++) {
            preference_part *p = &k.parts[e * PREFERENCE_PARTS];
            bool is_good = p[PREFERENCE_CHOSEN].n > 0;
            if (!is_good && !p[PREFERENCE_REJECTED].n) continue;
            preference_result r = single ? preference_single(k.o, &p[is_good ? 0 : 1], is_good, z)
                                         : preference_pair(k.o, &p[PREFERENCE_CHOSEN], &p[PREFERENCE_REJECTED]);
            add_example(&k, p, &r);
            k.sums[SUM_KL] += z;
            for (int side = 0; side < 2; side++) p[side].loss = r.d[side]; /* from here on: the weight of its tokens */
        }
        for (int64_t t = b * k.T; t < (b + 1) * k.T; t++) {
            int32_t s = k.segments[t];
            bool counts = s >= 0 && s % PREFERENCE_PARTS <= PREFERENCE_REJECTED;
            k.weights[t] = counts ? (float)k.parts[s].loss : 0;
        }
    }
    double *sums = call->out[PREFERENCE_SUMS];
    for (int i = 0; i < PREFERENCE_SUM_COUNT; i++) sums[i] = scalars->micro == 0 ? k.sums[i] : sums[i] + k.sums[i];
}
