#pragma once
/* policy_sizes.h - where things lie in the scratch of POLICY; read by the plan and by the kernels. */
#include "program/policy.h"

#include <stddef.h>

typedef struct policy_layout {
    size_t at_sums, n_bytes; /* parts come first: one for every completion that a row may have */
} policy_layout;

POLICY_MATH policy_layout policy_layout_of(int64_t batch, int64_t seq_len) {
    policy_layout l;
    l.at_sums = (size_t)(batch * seq_len) * sizeof(policy_part);
    l.n_bytes = l.at_sums + (size_t)batch * POLICY_SUM_COUNT * sizeof(double);
    return l;
}
