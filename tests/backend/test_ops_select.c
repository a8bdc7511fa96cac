/* test_ops_select.c - which tokens are trained on: quantiles by hand and against a sort in double, every mode, ties, tokens
 * without a target, heads further ahead, the sums of a step, and sequence ranks that share its rows. */
#include "op_harness.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>

typedef struct selecting {
    int64_t n;          /* of all ranks */
    int64_t batch;      /* rows; 0: 1 */
    int n_ranks, index; /* sequence ranks; 0: one */
    selection_options options;
    int loss, n_losses;
    uint32_t micro;
    const double *losses, *reference, *before; /* before: NULL for none */
    const int32_t *targets;
} selecting;

static op_case *select_run(const selecting *s) {
    int n_losses = MAX(s->n_losses, 1);
    int64_t n_sums = n_losses * (SUM_COUNT + SELECT_SUM_COUNT);
    double *sums = mem_alloc((size_t)n_sums * sizeof *sums);
    for (int64_t i = 0; i < n_sums; i++) sums[i] = (double)(100 + i);
    int64_t own = s->n / MAX(s->n_ranks, 1), batch = MAX(s->batch, (int64_t)1);
    op_case *c = op_case_open(OP_SELECT_TOKENS, &(op_attr){.batch = batch,
                                                           .seq_len = own / batch,
                                                           .selection = s->options,
                                                           .loss = s->loss,
                                                           .n_losses = s->n_losses,
                                                           .group_size = s->n_ranks,
                                                           .index = s->index});
    op_case_floats(c, SELECT_TOKENS_LOSSES, DTYPE_F32, SHAPE(s->n), s->losses);
    op_case_floats(c, SELECT_TOKENS_REFERENCE, DTYPE_F32, SHAPE(s->n), s->reference);
    op_case_ints(c, SELECT_TOKENS_TARGETS, SHAPE(s->n), s->targets);
    if (s->before) op_case_floats(c, SELECT_TOKENS_BEFORE, DTYPE_F32, SHAPE(own), s->before);
    op_case_bytes(c, SELECT_TOKENS_SCALARS, SHAPE((int64_t)sizeof(step_scalars)), &(step_scalars){.micro = s->micro});
    op_case_output(c, SELECT_TOKENS_WEIGHTS, DTYPE_F32, SHAPE(own));
    op_case_output_floats(c, SELECT_TOKENS_SUMS, DTYPE_F64, SHAPE(n_sums), sums);
    op_case_run(c, 2);
    free(sums);
    return c;
}

static void assert_selected(const selecting *s, const double *want, double threshold) {
    op_case *c = select_run(s);
    const double *weights = op_case_values(c, SELECT_TOKENS_WEIGHTS);
    const double *sums =
        op_case_values(c, SELECT_TOKENS_SUMS) + MAX(s->n_losses, 1) * SUM_COUNT + s->loss * SELECT_SUM_COUNT;
    double n = 0;
    for (int64_t i = 0; i < s->n; i++) {
        if (weights[i] != want[i]) fail_msg("token %d: weight %g, expected %g", (int)i, weights[i], want[i]);
        n += want[i] != 0;
    }
    assert_true(sums[SELECT_COUNT] == n && fabs(sums[SELECT_THRESHOLD] - threshold) < 1e-6 && sums[SELECT_MICROS] == 1);
    op_case_close(c);
}

/* torch.quantile of 0 .. 10 at 0.3 is 3, at 0.25 it is 2.5; 1 - 0.7 is a little more than 0.3 and still finds 3. */
static void quantiles_are_interpolated(void **state) {
    const double losses[11] = {10, 3, 7, 0, 5, 1, 9, 2, 8, 4, 6}, none[11] = {0};
    const int32_t targets[11] = {0};
    selecting s = {.n = 11, .losses = losses, .reference = none, .targets = targets};
    const double shares[] = {0.7, 0.75, 1, 0.05, 0.5}, thresholds[] = {3, 2.5, 0, 9.5, 5};
    for (size_t k = 0; k < ARRAY_LENGTH(shares); k++) {
        double want[11];
        s.options = (selection_options){.kind = SELECTION_SIGNED, .share = shares[k]};
        for (int i = 0; i < 11; i++) want[i] = losses[i] >= thresholds[k];
        assert_selected(&s, want, thresholds[k]);
    }
}

static void modes_compare_as_they_say(void **state) {
    const double losses[4] = {1, 5, 2, 4}, reference[4] = {4, 4, 1, 0}, before[4] = {0.5, 0.5, 2, 3};
    const int32_t targets[4] = {9, 9, 9, 9};
    selecting s = {.n = 4, .losses = losses, .reference = reference, .targets = targets, .before = before};
    s.options = (selection_options){.kind = SELECTION_SIGNED, .share = 0.25}; /* -3 1 1 4: 1.75 */
    assert_selected(&s, (const double[]){0, 0, 0, 3}, 1.75);
    s.options.kind = SELECTION_ABSOLUTE; /* 3 1 1 4: 3.25 */
    assert_selected(&s, (const double[]){0, 0, 0, 3}, 3.25);
    s.options.share = 0.5; /* 2 */
    assert_selected(&s, (const double[]){0.5, 0, 0, 3}, 2);
    s.options.kind = SELECTION_DIFFICULT; /* 4 4 1 0: 2.5 */
    assert_selected(&s, (const double[]){0.5, 0.5, 0, 0}, 2.5);
    s.options = (selection_options){.kind = SELECTION_SIGNED, .share = 0.25, .first_head_all = true};
    assert_selected(&s, before, 1.75); /* all of the first head */
}

/* Ties at the threshold are all selected; tokens without a target are neither counted nor selected; head k looks k - 1 further. */
static void ties_gaps_and_heads(void **state) {
    const double losses[6] = {2, 2, 2, 9, 1, 50}, reference[6] = {0, 7, 0, 0, 1, 0};
    const int32_t targets[6] = {1, 1, 1, -1, 1, -1};
    selecting s = {.n = 6, .losses = losses, .reference = reference, .targets = targets};
    s.options = (selection_options){.kind = SELECTION_SIGNED, .share = 0.5}; /* 2 -5 2 . 0 . : 1 */
    assert_selected(&s, (const double[]){1, 0, 1, 0, 0, 0}, 1);
    s.loss = 1, s.n_losses = 3; /* -5 2 2 . 1 . : 1.5 */
    assert_selected(&s, (const double[]){0, 1, 1, 0, 0, 0}, 1.5);
    s.options.share = 0.34; /* the largest two are the same */
    assert_selected(&s, (const double[]){0, 1, 1, 0, 0, 0}, 1.98);
    s.options.share = 0.3;
    assert_selected(&s, (const double[]){0, 1, 1, 0, 0, 0}, 2);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void many_tokens_as_a_sort_selects(void **state) {
    enum { N = 5003 };
    static double losses[N], reference[N], sorted[N], want[N];
    static int32_t targets[N];
    int64_t n = 0;
    for (int64_t i = 0; i < N; i++) {
        losses[i] = (double)(float)(8 * rng_uniform(1, (uint64_t)i));
        reference[i] = (double)(float)(8 * rng_uniform(2, (uint64_t)i));
        targets[i] = rng_uniform(3, (uint64_t)i) < 0.1 ? -1 : 1;
        if (targets[i] >= 0) sorted[n++] = (double)((float)losses[i] - (float)reference[i]);
    }
    qsort(sorted, (size_t)n, sizeof *sorted, ascending);
    for (double share = 0.1; share < 1; share += 0.15) {
        double at = (1 - share) * (double)(n - 1);
        int64_t below = (int64_t)floor(at);
        double threshold = sorted[below] + (sorted[below + 1] - sorted[below]) * (at - (double)below);
        for (int64_t i = 0; i < N; i++)
            want[i] = targets[i] >= 0 && (double)((float)losses[i] - (float)reference[i]) >= threshold;
        assert_selected(&(selecting){.n = N,
                                     .losses = losses,
                                     .reference = reference,
                                     .targets = targets,
                                     .options = {.kind = SELECTION_SIGNED, .share = share}},
                        want, threshold);
    }
}

/* Micro-batches add up; one without targets adds nothing. */
static void sums_go_on(void **state) {
    const double losses[2] = {3, 1}, reference[2] = {1, 2};
    for (int none = 0; none < 2; none++) {
        const int32_t targets[2] = {none ? -1 : 1, none ? -1 : 1};
        selecting s = {.n = 2,
                       .losses = losses,
                       .reference = reference,
                       .targets = targets,
                       .micro = 1,
                       .options = {.kind = SELECTION_SIGNED, .share = 0.5}};
        op_case *c = select_run(&s);
        const double *sums = op_case_values(c, SELECT_TOKENS_SUMS);
        const double added[SELECT_SUM_COUNT] = {1, 1, 0.5, 1};
        for (int i = 0; i < SUM_COUNT; i++) assert_true(sums[i] == 100 + i);
        for (int i = 0; i < SELECT_SUM_COUNT; i++) assert_true(sums[SUM_COUNT + i] == 104 + i + (none ? 0 : added[i]));
        op_case_close(c);
    }
}

/* Of rows of T tokens, in the order in which sequence ranks gather them: x[b][t] to y[rank][b][i]. */
static void gather_tokens(const double *x, int64_t batch, int64_t T, int n_ranks, double *y) {
    for (int rank = 0; rank < n_ranks; rank++)
        for (int64_t b = 0; b < batch; b++)
            for (int64_t i = 0; i < T / n_ranks; i++) *y++ = x[b * T + sequence_token(i, rank, n_ranks, T)];
}

/* Ranks that share rows select the tokens that one rank selects, with the same threshold, and their sums are its sums. A head that
 * looks further ahead finds the reference's loss in another rank's part of the row. */
static void sequence_ranks_select_as_one(void **state) {
    enum { B = 3, T = 48, N = B * T, HEADS = 3 };
    double losses[N], reference[N], before[N], marks[N], moved[4][N];
    int32_t targets[N], moved_targets[N];
    for (int i = 0; i < N; i++) {
        losses[i] = (double)(float)(8 * rng_uniform(1, (uint64_t)i));
        reference[i] = (double)(float)(8 * rng_uniform(2, (uint64_t)i));
        before[i] = 1 + i;
    }
    for (int n_ranks = 2; n_ranks <= 4; n_ranks++)
        for (int loss = 0; loss < HEADS; loss++) {
            for (int i = 0; i < N; i++) marks[i] = targets[i] = i % T + loss < T && i % 7 ? 1 : -1;
            selecting one = {.n = N, .batch = B, .losses = losses, .reference = reference, .before = before};
            one.targets = targets, one.loss = loss, one.n_losses = HEADS;
            one.options = (selection_options){.kind = SELECTION_SIGNED, .share = 0.6};
            op_case *c = select_run(&one);
            double sums[SELECT_SUM_COUNT] = {0};
            const double *of_one = op_case_values(c, SELECT_TOKENS_SUMS) + HEADS * SUM_COUNT + loss * SELECT_SUM_COUNT;
            const double *from[4] = {losses, reference, marks, op_case_values(c, SELECT_TOKENS_WEIGHTS)};
            for (int k = 0; k < 4; k++) gather_tokens(from[k], B, T, n_ranks, moved[k]);
            for (int i = 0; i < N; i++) moved_targets[i] = (int32_t)moved[2][i];
            for (int rank = 0; rank < n_ranks; rank++) {
                double own[N];
                selecting s = one;
                gather_tokens(before, B, T, n_ranks, own);
                s.losses = moved[0], s.reference = moved[1], s.targets = moved_targets;
                s.n_ranks = n_ranks, s.index = rank, s.before = own + rank * (N / n_ranks);
                op_case *r = select_run(&s);
                const double *weights = op_case_values(r, SELECT_TOKENS_WEIGHTS);
                for (int i = 0; i < N / n_ranks; i++) assert_true(weights[i] == moved[3][rank * (N / n_ranks) + i]);
                const double *of_rank =
                    op_case_values(r, SELECT_TOKENS_SUMS) + HEADS * SUM_COUNT + loss * SELECT_SUM_COUNT;
                for (int i = 0; i < SELECT_SUM_COUNT; i++) sums[i] += of_rank[i];
                op_case_close(r);
            }
            assert_true(sums[SELECT_COUNT] == of_one[SELECT_COUNT] &&
                        sums[SELECT_THRESHOLD] == of_one[SELECT_THRESHOLD]);
            assert_true(sums[SELECT_MICROS] == 1 && fabs(sums[SELECT_EXCESS] - of_one[SELECT_EXCESS]) < 1e-9);
            op_case_close(c);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantiles_are_interpolated),
        cmocka_unit_test(modes_compare_as_they_say),
        cmocka_unit_test(ties_gaps_and_heads),
        cmocka_unit_test(many_tokens_as_a_sort_selects),
        cmocka_unit_test(sums_go_on),
        cmocka_unit_test(sequence_ranks_select_as_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
