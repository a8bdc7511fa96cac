/* work_policy.c - scratch of POLICY: the completions of every row, and sums of every row. */
#include "backend/cuda/work.h"

#include "backend/cuda/policy_sizes.h"

static size_t policy_bytes(const program *p, const op *o) {
    (void)p;
    return policy_layout_of(o->attr.batch, o->attr.seq_len).n_bytes;
}
const cuda_work cuda_work_POLICY = {policy_bytes, NO_PRODUCTS};
