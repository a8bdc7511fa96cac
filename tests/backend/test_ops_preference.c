/* test_ops_preference.c - PREFERENCE: five losses over whole responses and the weight of every token.
 *
 * The reference is written from the definitions, in double, without looking at the kernel's formulas; weights are compared with
 * finite differences of it. Both sides add a few dozen numbers in double, so sums agree to 1e-12; a weight is rounded to fp32
 * once, and differences with a step of 1e-4 cost at most 1e-8. */
#include "op_check.h"

#include <stdlib.h>

enum { ROWS = 4, T = 76, N = ROWS * T };
static const double beta = 0.5, smoothing = 0.2, gamma_ = 0.7, lambda = 0.3, good = 1.25, bad = 0.75;

typedef struct response {
    int row, example, part, start, n;
} response;

/* Two pairs with prompts before each response, three pairs of which one has single tokens, nothing, one pair up to the end. */
static const response pairs[] = {
    {0, 0, PREFERENCE_CHOSEN, 3, 5},     {0, 0, PREFERENCE_REJECTED, 12, 9}, {0, 1, PREFERENCE_CHOSEN, 25, 30},
    {0, 1, PREFERENCE_REJECTED, 60, 2},  {1, 0, PREFERENCE_CHOSEN, 0, 1},    {1, 0, PREFERENCE_REJECTED, 2, 1},
    {1, 1, PREFERENCE_CHOSEN, 5, 6},     {1, 1, PREFERENCE_REJECTED, 14, 6}, {1, 2, PREFERENCE_CHOSEN, 28, 8},
    {1, 2, PREFERENCE_REJECTED, 40, 33}, {3, 0, PREFERENCE_CHOSEN, 1, 35},   {3, 0, PREFERENCE_REJECTED, 37, 39}};
/* Of single responses each has another one beside it, to the same prompt. */
static const response mixed[] = {{0, 0, PREFERENCE_CHOSEN, 3, 5},     {0, 0, PREFERENCE_OTHER, 12, 9},
                                 {0, 1, PREFERENCE_REJECTED, 25, 30}, {0, 1, PREFERENCE_OTHER, 60, 2},
                                 {1, 0, PREFERENCE_REJECTED, 0, 1},   {1, 0, PREFERENCE_OTHER, 2, 1},
                                 {3, 0, PREFERENCE_CHOSEN, 1, 35},    {3, 0, PREFERENCE_OTHER, 37, 39}};
static const response all_good[] = {{0, 0, PREFERENCE_CHOSEN, 3, 5},
                                    {0, 0, PREFERENCE_OTHER, 12, 9},
                                    {1, 0, PREFERENCE_CHOSEN, 2, 4},
                                    {1, 0, PREFERENCE_OTHER, 9, 9}};
static const response all_bad[] = {{1, 0, PREFERENCE_REJECTED, 2, 4},
                                   {1, 0, PREFERENCE_OTHER, 9, 9},
                                   {1, 1, PREFERENCE_REJECTED, 20, 4},
                                   {1, 1, PREFERENCE_OTHER, 33, 40}};

typedef struct batch_case {
    preference_kind kind;
    const response *of;
    size_t n;
    double losses[N], reference[N];
    const double *z;   /* as an input; NULL: none */
    int n_ranks, rank; /* that share every row; 0: one */
} batch_case;

/* Losses of a model that is nearer (closer > 0) or farther than the reference from all responses; rounded as the op reads them. */
static batch_case make_case(preference_kind kind, const response *of, size_t n, double closer) {
    batch_case c = {.kind = kind, .of = of, .n = n};
    for (int i = 0; i < N; i++) {
        double u = (double)rng_below(31, (uint64_t)i, 1000) / 1000, v = (double)rng_below(32, (uint64_t)i, 1000) / 1000;
        c.losses[i] = (float)(0.01 + 1.5 * u);
        c.reference[i] = (float)(0.01 + 1.2 * u + 0.3 * v + closer);
    }
    return c;
}

/* Where token t of a row lies when ranks have gathered theirs: by sequence_token, and not by what the kernel has. */
static int gathered_at(const batch_case *c, int row, int t) {
    if (!c->n_ranks) return row * T + t;
    int own = T / c->n_ranks;
    for (int rank = 0; rank < c->n_ranks; rank++)
        for (int i = 0; i < own; i++)
            if (sequence_token(i, rank, c->n_ranks, T) == t) return (rank * ROWS + row) * own + i;
    fail_msg("token %d is of no rank", t);
    return -1;
}

static op_case *run_case(const batch_case *c, uint32_t micro, const double *sums) {
    int n_ranks = c->n_ranks ? c->n_ranks : 1;
    op_attr a = {
        .batch = ROWS,
        .seq_len = T / n_ranks,
        .group_size = c->n_ranks,
        .index = c->rank,
        .preference = {c->kind, (float)beta, (float)smoothing, (float)gamma_, (float)lambda, (float)good, (float)bad}};
    int32_t segments[N];
    for (int i = 0; i < N; i++) segments[i] = -1;
    for (size_t i = 0; i < c->n; i++)
        for (int t = 0; t < c->of[i].n; t++)
            segments[gathered_at(c, c->of[i].row, c->of[i].start + t)] =
                PREFERENCE_PARTS * c->of[i].example + c->of[i].part;
    double losses[N], reference[N];
    for (int i = 0; i < N; i++) {
        int at = gathered_at(c, i / T, i % T);
        losses[at] = c->losses[i], reference[at] = c->reference[i];
    }
    op_case *o = op_case_open(OP_PREFERENCE, &a);
    op_case_floats(o, PREFERENCE_LOSSES, DTYPE_F32, SHAPE(N), losses);
    if (preference_compares(c->kind)) op_case_floats(o, PREFERENCE_REFERENCE, DTYPE_F32, SHAPE(N), reference);
    op_case_ints(o, PREFERENCE_SEGMENTS, SHAPE(N), segments);
    op_case_bytes(o, PREFERENCE_SCALARS, SHAPE((int64_t)sizeof(step_scalars)), &(step_scalars){.micro = micro});
    if (c->z) op_case_floats(o, PREFERENCE_Z, DTYPE_F64, SHAPE(1), c->z);
    op_case_output(o, PREFERENCE_WEIGHTS, DTYPE_F32, SHAPE(N / n_ranks));
    op_case_output_floats(o, PREFERENCE_SUMS, DTYPE_F64, SHAPE(PREFERENCE_SUM_COUNT), sums);
    op_case_run(o, 2);
    return o;
}

/* ---- the definitions ------------------------------------------------------------------------------------------- */

/* log-probability of a response under the model, or the reference. */
static double logp(const response *r, const double *losses) {
    double sum = 0;
    for (int t = 0; t < r->n; t++) sum -= losses[r->row * T + r->start + t];
    return sum;
}
static double sigma(double x) { return 1 / (1 + exp(-x)); }

static double reward(const batch_case *c, const response *r) {
    double b = (double)(float)beta, own = logp(r, c->losses), ref = logp(r, c->reference);
    return preference_compares(c->kind) ? b * (own - ref) : b * own / r->n;
}

static double pair_loss(const batch_case *c, const response *w, const response *l) {
    double b = (double)(float)beta, e = (double)(float)smoothing;
    double cw = logp(w, c->losses), cl = logp(l, c->losses), rw = logp(w, c->reference), rl = logp(l, c->reference);
    double mw = cw / w->n, ml = cl / l->n;
    switch (c->kind) {
    case PREFERENCE_DPO: {
        double h = b * ((cw - rw) - (cl - rl));
        return -(1 - e) * log(sigma(h)) - e * log(sigma(-h));
    }
    case PREFERENCE_IPO: return pow((cw - rw) / w->n - (cl - rl) / l->n - 1 / (2 * b), 2);
    case PREFERENCE_SIMPO: return -log(sigma(b * (mw - ml) - (double)(float)gamma_));
    default: {
        double odds = log(exp(mw) / (1 - exp(mw))) - log(exp(ml) / (1 - exp(ml)));
        return -mw - (double)(float)lambda * log(sigma(odds));
    }
    }
}

static double kto_z(const batch_case *c) {
    double kl = 0, n = 0;
    for (size_t i = 0; i < c->n; i++)
        if (c->of[i].part == PREFERENCE_OTHER) kl += logp(&c->of[i], c->losses) - logp(&c->of[i], c->reference), n++;
    return n > 0 ? fmax(0, (double)(float)beta * kl / n) : 0;
}

static double step_loss(const batch_case *c, double z, double *n_examples) {
    double sum = 0, n = 0;
    for (size_t i = 0; i < c->n; i += 2, n++) { /* two responses each */
        const response *r = &c->of[i];
        if (c->kind != PREFERENCE_KTO) sum += pair_loss(c, r, r + 1);
        else if (r->part == PREFERENCE_CHOSEN) sum += (double)(float)good * (1 - sigma(reward(c, r) - z));
        else sum += (double)(float)bad * (1 - sigma(z - reward(c, r)));
    }
    if (n_examples) *n_examples = n;
    return sum;
}

static void reference_sums(const batch_case *c, double *sums) {
    double z = c->kind == PREFERENCE_KTO ? kto_z(c) : 0;
    for (int i = 0; i < PREFERENCE_SUM_COUNT; i++) sums[i] = 0;
    sums[SUM_LOSS] = sums[SUM_WEIGHTED_LOSS] = step_loss(c, z, &sums[SUM_VALID]);
    sums[SUM_WEIGHTS] = sums[SUM_VALID];
    sums[SUM_KL] = z * sums[SUM_VALID];
    for (size_t i = 0; i < c->n; i++) {
        const response *r = &c->of[i];
        if (r->part == PREFERENCE_OTHER) continue;
        bool is_bad = r->part == PREFERENCE_REJECTED;
        sums[is_bad ? SUM_REWARD_REJECTED : SUM_REWARD_CHOSEN] += reward(c, r);
        sums[is_bad ? SUM_LOGP_REJECTED : SUM_LOGP_CHOSEN] += logp(r, c->losses);
        sums[is_bad ? SUM_REJECTED : SUM_CHOSEN] += 1;
        if (c->kind != PREFERENCE_KTO && is_bad) sums[SUM_ACCURATE] += reward(c, r - 1) > reward(c, r);
    }
}

/* ---- comparisons ----------------------------------------------------------------------------------------------- */

static const double poisoned[PREFERENCE_SUM_COUNT] = {NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN};

static void check_sums(const batch_case *c, op_case *o, const double *before) {
    double want[PREFERENCE_SUM_COUNT];
    reference_sums(c, want);
    const double *got = op_case_values(o, PREFERENCE_SUMS);
    for (int i = 0; i < PREFERENCE_SUM_COUNT; i++) {
        /* one response has a reward, of the side that it is on; the other side's is 0 */
        if (c->kind == PREFERENCE_KTO && i == SUM_ACCURATE) continue;
        double sum = want[i] + (before ? before[i] : 0);
        if (!(fabs(got[i] - sum) <= 1e-12 * (1 + fabs(sum))))
            fail_msg("%s: sum %d is %.17g, expected %.17g", preference_name(c->kind), i, got[i], sum);
    }
}

static void check_weights(batch_case *c, op_case *o) {
    double z = c->kind == PREFERENCE_KTO ? kto_z(c) : 0, step = 1e-4; /* no derivative through z */
    const double *got = op_case_values(o, PREFERENCE_WEIGHTS);
    for (int i = 0; i < N; i++) {
        static const double weights[] = {1.0 / 12, -8.0 / 12, 0, 8.0 / 12,
                                         -1.0 / 12}; /* of fourth order: orpo is steep */
        double at = c->losses[i], slope = 0;
        for (int k = -2; k <= 2; k++) {
            c->losses[i] = at + k * step;
            slope += weights[k + 2] * step_loss(c, z, NULL) / step;
        }
        c->losses[i] = at;
        check_element(got[i], slope, 1e-8, DTYPE_F32, preference_name(c->kind), (size_t)i);
    }
}

static void check_case(batch_case c) {
    op_case *o = run_case(&c, 0, poisoned);
    check_sums(&c, o, NULL);
    check_weights(&c, o);
    op_case_close(o);
}

static void losses_and_weights_are_those_of_the_definitions(void **state) {
    static const preference_kind kinds[] = {PREFERENCE_DPO, PREFERENCE_IPO, PREFERENCE_ORPO, PREFERENCE_SIMPO};
    static const double closer[] = {-0.2, 0, 0.2};
    for (size_t j = 0; j < ARRAY_LENGTH(closer); j++) {
        for (size_t i = 0; i < ARRAY_LENGTH(kinds); i++)
            check_case(make_case(kinds[i], pairs, ARRAY_LENGTH(pairs), closer[j]));
        check_case(make_case(PREFERENCE_KTO, mixed, ARRAY_LENGTH(mixed), closer[j]));
    }
}

/* z is 0 where the model is farther from the responses than the reference, and positive where it is nearer. */
static void z_is_never_negative(void **state) {
    batch_case far = make_case(PREFERENCE_KTO, mixed, ARRAY_LENGTH(mixed), -0.3);
    batch_case near = make_case(PREFERENCE_KTO, mixed, ARRAY_LENGTH(mixed), 0.3);
    op_case *a = run_case(&far, 0, poisoned), *b = run_case(&near, 0, poisoned);
    assert_true(op_case_values(a, PREFERENCE_SUMS)[SUM_KL] == 0);
    assert_true(op_case_values(b, PREFERENCE_SUMS)[SUM_KL] > 0);
    op_case_close(a);
    op_case_close(b);
}

/* A z that is given counts instead of that of the rows. */
static void z_may_be_given(void **state) {
    batch_case c = make_case(PREFERENCE_KTO, mixed, ARRAY_LENGTH(mixed), 0.3);
    double own = kto_z(&c), zs[] = {own, own + 2, 0};
    for (size_t i = 0; i < ARRAY_LENGTH(zs); i++) {
        double n, want = step_loss(&c, zs[i], &n);
        c.z = &zs[i];
        op_case *o = run_case(&c, 0, poisoned);
        const double *sums = op_case_values(o, PREFERENCE_SUMS);
        assert_true(fabs(sums[SUM_LOSS] - want) < 1e-12 && fabs(sums[SUM_KL] - n * zs[i]) < 1e-12); /* fp64 */
        op_case_close(o);
    }
}

/* The mean of no response is for the reader of the sums: the op has no division by their number. */
static void kto_of_one_kind_of_response_alone(void **state) {
    batch_case c = make_case(PREFERENCE_KTO, all_good, ARRAY_LENGTH(all_good), 0.1);
    op_case *o = run_case(&c, 0, poisoned);
    assert_true(op_case_values(o, PREFERENCE_SUMS)[SUM_REJECTED] == 0);
    assert_true(op_case_values(o, PREFERENCE_SUMS)[SUM_REWARD_REJECTED] == 0);
    op_case_close(o);
    check_case(c);
    check_case(make_case(PREFERENCE_KTO, all_bad, ARRAY_LENGTH(all_bad), 0.1));
}

static void rows_without_examples_have_no_part(void **state) {
    for (preference_kind k = PREFERENCE_DPO; k < PREFERENCE_KIND_COUNT; k++) {
        batch_case c = make_case(k, NULL, 0, 0);
        op_case *o = run_case(&c, 0, poisoned);
        for (int i = 0; i < PREFERENCE_SUM_COUNT; i++) assert_true(op_case_values(o, PREFERENCE_SUMS)[i] == 0);
        for (int i = 0; i < N; i++) assert_true(op_case_values(o, PREFERENCE_WEIGHTS)[i] == 0);
        op_case_close(o);
    }
}

static void the_first_micro_batch_restarts_the_sums(void **state) {
    double before[PREFERENCE_SUM_COUNT];
    for (int i = 0; i < PREFERENCE_SUM_COUNT; i++) before[i] = 3.5 * i - 7;
    for (preference_kind k = PREFERENCE_DPO; k < PREFERENCE_KTO; k++) {
        batch_case c = make_case(k, pairs, ARRAY_LENGTH(pairs), 0.05);
        op_case *first = run_case(&c, 0, before), *next = run_case(&c, 1, before);
        check_sums(&c, first, NULL);
        check_sums(&c, next, before);
        check_equal_bits(first, PREFERENCE_WEIGHTS, next, PREFERENCE_WEIGHTS, N, "weights");
        op_case_close(first);
        op_case_close(next);
    }
}

/* Ranks that share rows judge whole responses: each has the bits of one rank at its tokens, and the sums are the first one's. */
static void sequence_ranks_judge_as_one_rank(void **state) {
    enum { RANKS = 2, OWN = N / RANKS };
    for (preference_kind k = PREFERENCE_DPO; k < PREFERENCE_KIND_COUNT; k++) {
        bool single = k == PREFERENCE_KTO;
        batch_case c = make_case(k, single ? mixed : pairs, single ? ARRAY_LENGTH(mixed) : ARRAY_LENGTH(pairs), 0.2);
        op_case *whole = run_case(&c, 0, poisoned);
        for (int rank = 0; rank < RANKS; rank++) {
            c.n_ranks = RANKS, c.rank = rank;
            op_case *part = run_case(&c, 0, poisoned);
            for (int i = 0; i < N; i++) {
                int at = gathered_at(&c, i / T, i % T) - rank * OWN;
                if (at >= 0 && at < OWN)
                    assert_true(op_case_values(part, PREFERENCE_WEIGHTS)[at] ==
                                op_case_values(whole, PREFERENCE_WEIGHTS)[i]);
            }
            for (int i = 0; i < PREFERENCE_SUM_COUNT; i++)
                assert_true(op_case_values(part, PREFERENCE_SUMS)[i] ==
                            (rank ? 0 : op_case_values(whole, PREFERENCE_SUMS)[i]));
            op_case_close(part);
        }
        op_case_close(whole);
    }
}

/* Responses that are certain, impossible or equal give finite losses and weights. */
static void extremes_stay_finite(void **state) {
    static const double extremes[][2] = {{0, 0}, {0, 1e4}, {1e4, 0}, {1e4, 1e4}};
    for (preference_kind k = PREFERENCE_DPO; k < PREFERENCE_KIND_COUNT; k++)
        for (size_t j = 0; j < ARRAY_LENGTH(extremes); j++) {
            bool single = k == PREFERENCE_KTO;
            batch_case c = make_case(k, single ? mixed : pairs, single ? ARRAY_LENGTH(mixed) : ARRAY_LENGTH(pairs), 0);
            for (size_t i = 0; i < c.n; i++)
                for (int t = 0; t < c.of[i].n; t++) {
                    int at = c.of[i].row * T + c.of[i].start + t;
                    c.losses[at] = extremes[j][c.of[i].part == PREFERENCE_CHOSEN ? 0 : 1];
                    c.reference[at] = extremes[j][c.of[i].part == PREFERENCE_CHOSEN ? 1 : 0];
                }
            op_case *o = run_case(&c, 0, poisoned);
            for (int i = 0; i < PREFERENCE_SUM_COUNT; i++) assert_true(isfinite(op_case_values(o, PREFERENCE_SUMS)[i]));
            for (int i = 0; i < N; i++) assert_true(isfinite(op_case_values(o, PREFERENCE_WEIGHTS)[i]));
            op_case_close(o);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_and_weights_are_those_of_the_definitions),
        cmocka_unit_test(z_is_never_negative),
        cmocka_unit_test(z_may_be_given),
        cmocka_unit_test(kto_of_one_kind_of_response_alone),
        cmocka_unit_test(rows_without_examples_have_no_part),
        cmocka_unit_test(the_first_micro_batch_restarts_the_sums),
        cmocka_unit_test(sequence_ranks_judge_as_one_rank),
        cmocka_unit_test(extremes_stay_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
