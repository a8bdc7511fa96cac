/* preference.c - the C side of preference.cu. */
#include "backend/cuda/cuda.h"

#include "backend/cuda/launch_preference.h"

void cuda_kernel_PREFERENCE(backend_context *c, const kernel_call *k) {
    const op_attr *a = &k->op->attr;
    launch_preference p = {
        .options = a->preference,
        .losses = k->in[PREFERENCE_LOSSES],
        .reference = k->in[PREFERENCE_REFERENCE],
        .segments = k->in[PREFERENCE_SEGMENTS],
        .micro = (const uint32_t *)((const char *)k->in[PREFERENCE_SCALARS] + offsetof(step_scalars, micro)),
        .z = k->in[PREFERENCE_Z],
        .weights = k->out[PREFERENCE_WEIGHTS],
        .sums = k->out[PREFERENCE_SUMS],
        .rows = {a->batch, a->seq_len * MAX(a->group_size, 1), MAX(a->group_size, 1)},
        .rank = a->index,
        .work = k->work};
    launch_preference_run(c->stream, &p);
}
