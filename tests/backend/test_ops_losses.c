/* test_ops_losses.c - several losses of one step: the unembedding's gradient is added to what losses before have left, sums of
 * each loss have their own place, and CLIP makes one loss of them. */
#include "op_harness.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>

enum { N = 33, C = 24, V = 130 };

typedef struct adding {
    dtype type, dw_type;
    int64_t chunk_bytes;
    bool trained; /* is any token? */
} adding;

static op_case *gradient_run(const adding *a, const double *before) {
    int32_t targets[N];
    for (int i = 0; i < N; i++) targets[i] = a->trained && i % 4 ? (7 * i) % V : -1;
    op_case *c = op_case_open(OP_UNEMBED_LOSS_GRAD, &(op_attr){.chunk_bytes = a->chunk_bytes, .adds = before != NULL});
    op_case_random(c, UNEMBED_LOSS_GRAD_H, a->type, SHAPE(N, C), 1.0, 21);
    op_case_random(c, UNEMBED_LOSS_GRAD_W, a->type, SHAPE(V, C), 0.5, 22);
    op_case_ints(c, UNEMBED_LOSS_GRAD_TARGETS, SHAPE(N), targets);
    op_case_bytes(c, UNEMBED_LOSS_GRAD_SCALARS, SHAPE((int64_t)sizeof(step_scalars)), &(step_scalars){.seed = 1});
    op_case_output(c, UNEMBED_LOSS_GRAD_LOSSES, DTYPE_F32, SHAPE(N));
    op_case_output(c, UNEMBED_LOSS_GRAD_DH, a->type, SHAPE(N, C));
    if (before) op_case_output_floats(c, UNEMBED_LOSS_GRAD_DW, a->dw_type, SHAPE(V, C), before);
    else op_case_output(c, UNEMBED_LOSS_GRAD_DW, a->dw_type, SHAPE(V, C));
    op_case_run(c, 2);
    return c;
}

/* dw = before + dw of the loss alone, each rounded to its type; losses and dh have the bits of the loss alone. */
static void gradients_of_losses_add_up(void **state) {
    static const adding all[] = {{DTYPE_F32, DTYPE_F32, 1 << 20, true},   {DTYPE_F32, DTYPE_F32, 4096, true},
                                 {DTYPE_BF16, DTYPE_F32, 1 << 20, true},  {DTYPE_BF16, DTYPE_F32, 4096, true},
                                 {DTYPE_BF16, DTYPE_BF16, 1 << 20, true}, {DTYPE_BF16, DTYPE_BF16, 4096, true},
                                 {DTYPE_F16, DTYPE_F32, 4096, true},      {DTYPE_F32, DTYPE_F32, 4096, false},
                                 {DTYPE_BF16, DTYPE_BF16, 4096, false}};
    for (size_t i = 0; i < ARRAY_LENGTH(all); i++) {
        double before[V * C], distance = 0, norm = 0;
        for (int k = 0; k < V * C; k++) before[k] = (double)(k % 17 - 8) / 4; /* exact in every type */
        op_case *alone = gradient_run(&all[i], NULL), *added = gradient_run(&all[i], before);
        const double *a = op_case_values(alone, UNEMBED_LOSS_GRAD_DW), *b = op_case_values(added, UNEMBED_LOSS_GRAD_DW);
        for (int k = 0; k < V * C; k++) {
            distance += (b[k] - before[k] - a[k]) * (b[k] - before[k] - a[k]);
            norm += (before[k] + a[k]) * (before[k] + a[k]);
        }
        double bound = all[i].dw_type == DTYPE_BF16 ? 0x1p-7 : 0x1p-20;
        if (!(sqrt(distance / norm) <= bound) || (!all[i].trained && distance > 0))
            fail_msg("case %zu: dw is off by %g of its norm", i, sqrt(distance / norm));
        for (int k = 0; k < N; k++)
            assert_true(op_case_values(alone, UNEMBED_LOSS_GRAD_LOSSES)[k] ==
                        op_case_values(added, UNEMBED_LOSS_GRAD_LOSSES)[k]);
        for (int k = 0; k < N * C; k++)
            assert_true(op_case_values(alone, UNEMBED_LOSS_GRAD_DH)[k] ==
                        op_case_values(added, UNEMBED_LOSS_GRAD_DH)[k]);
        op_case_close(alone);
        op_case_close(added);
    }
}

/* The sums of the second of three losses; the others keep theirs. */
static void every_loss_has_its_sums(void **state) {
    enum { LOSSES = 3 };
    const double losses[4] = {1.5, 2.25, 100, 0.5}, weights[4] = {1, 0.5, 7, 2};
    const int32_t targets[4] = {3, 0, -1, 9};
    const double part[SUM_COUNT] = {3.625, 3, 3.5, 4.25};
    for (uint32_t micro = 0; micro < 2; micro++) {
        double before[LOSSES * SUM_COUNT];
        for (int i = 0; i < LOSSES * SUM_COUNT; i++) before[i] = 10 + i;
        op_case *c = op_case_open(OP_LOSS_REDUCE, &(op_attr){.loss = 1, .n_losses = LOSSES});
        op_case_floats(c, LOSS_REDUCE_LOSSES, DTYPE_F32, SHAPE(4), losses);
        op_case_ints(c, LOSS_REDUCE_TARGETS, SHAPE(4), targets);
        op_case_floats(c, LOSS_REDUCE_WEIGHTS, DTYPE_F32, SHAPE(4), weights);
        op_case_bytes(c, LOSS_REDUCE_SCALARS, SHAPE((int64_t)sizeof(step_scalars)), &(step_scalars){.micro = micro});
        op_case_output_floats(c, LOSS_REDUCE_SUMS, DTYPE_F64, SHAPE(LOSSES * SUM_COUNT), before);
        op_case_run(c, 2);
        const double *sums = op_case_values(c, LOSS_REDUCE_SUMS);
        for (int i = 0; i < LOSSES * SUM_COUNT; i++) {
            bool mine = i / SUM_COUNT == 1;
            assert_true(sums[i] == (mine ? part[i % SUM_COUNT] + (micro ? before[i] : 0) : before[i]));
        }
        op_case_close(c);
    }
}

/* Divided by the tokens of the first loss; the sums of all stand behind. */
static void clip_makes_one_loss_of_all(void **state) {
    enum { LOSSES = 2 };
    const double sums[LOSSES * SUM_COUNT] = {30, 10, 5, 25, 7, 8, 4, 6}, partials[1] = {1600};
    step_scalars s = {.grad_unscale = 1};
    op_case *c = op_case_open(OP_CLIP, &(op_attr){.n_losses = LOSSES});
    op_case_floats(c, CLIP_PARTIALS, DTYPE_F64, SHAPE(1), partials);
    op_case_floats(c, CLIP_SUMS, DTYPE_F64, SHAPE(LOSSES * SUM_COUNT), sums);
    op_case_bytes(c, CLIP_SCALARS, SHAPE((int64_t)sizeof s), &s);
    op_case_output(c, CLIP_CLIP, DTYPE_F32, SHAPE(CLIP_COUNT + LOSSES * SUM_COUNT));
    op_case_run(c, 2);
    const double *clip = op_case_values(c, CLIP_CLIP);
    assert_true(clip[CLIP_NORM] == 4 && clip[CLIP_FACTOR] == (double)0.1f && clip[CLIP_LOSS] == (double)3.7f);
    for (int i = 0; i < LOSSES * SUM_COUNT; i++) assert_true(clip[CLIP_COUNT + i] == sums[i]);
    op_case_close(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_of_losses_add_up),
        cmocka_unit_test(every_loss_has_its_sums),
        cmocka_unit_test(clip_makes_one_loss_of_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
