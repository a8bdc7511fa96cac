/* work_critic.c - scratch of CRITIC: the parts of every example and the sums of every row; of VALUE_BWD: sums of blocks of tokens. */
#include "backend/cuda/work.h"

#include "backend/cuda/critic_sizes.h"

static size_t critic_bytes(const program *p, const op *o) {
    (void)p;
    return critic_layout_of(o->attr.batch, o->attr.seq_len * MAX(o->attr.group_size, 1)).n_bytes;
}
const cuda_work cuda_work_CRITIC = {critic_bytes, NO_PRODUCTS};

static size_t value_bwd_bytes(const program *p, const op *o) {
    const shape *x = &program_get(p, o->in[VALUE_BWD_X])->shape;
    return value_lines_bytes(x->dim[0], x->dim[1]);
}
const cuda_work cuda_work_VALUE_BWD = {value_bwd_bytes, NO_PRODUCTS};
