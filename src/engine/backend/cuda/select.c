/* select.c - the C side of select.cu. */
#include "backend/cuda/cuda.h"

#include "backend/cuda/launch_select.h"

void cuda_kernel_SELECT_TOKENS(backend_context *c, const kernel_call *k) {
    const op_attr *a = &k->op->attr;
    double *sums = k->out[SELECT_TOKENS_SUMS];
    launch_select p = {
        .options = a->selection,
        .losses = k->in[SELECT_TOKENS_LOSSES],
        .reference = k->in[SELECT_TOKENS_REFERENCE],
        .targets = k->in[SELECT_TOKENS_TARGETS],
        .tokens = {.own = a->batch * a->seq_len,
                   .seq_len = a->seq_len,
                   .n_ranks = MAX(a->group_size, 1),
                   .index = a->index},
        .before = k->in[SELECT_TOKENS_BEFORE],
        .micro = (const uint32_t *)((const char *)k->in[SELECT_TOKENS_SCALARS] + offsetof(step_scalars, micro)),
        .weights = k->out[SELECT_TOKENS_WEIGHTS],
        .sums = sums + MAX(a->n_losses, 1) * SUM_COUNT + a->loss * SELECT_SUM_COUNT,
        .n = shape_count(&call_in(k, SELECT_TOKENS_LOSSES)->shape),
        .loss = a->loss};
    launch_select_run(c->stream, &p);
}
