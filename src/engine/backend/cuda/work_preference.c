/* work_preference.c - scratch of PREFERENCE: the parts of every example, and sums of every row. */
#include "backend/cuda/work.h"

#include "backend/cuda/preference_sizes.h"

static size_t preference_bytes(const program *p, const op *o) {
    (void)p;
    return preference_layout_of(o->attr.batch, o->attr.seq_len * MAX(o->attr.group_size, 1)).n_bytes;
}
const cuda_work cuda_work_PREFERENCE = {preference_bytes, NO_PRODUCTS};
