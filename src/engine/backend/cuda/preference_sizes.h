#pragma once
/* preference_sizes.h - where things lie in the scratch of PREFERENCE; read by the plan and by the kernels. */
#include "program/preference.h"

#include <stddef.h>
#include <stdint.h>

typedef struct preference_layout {
    size_t at_sums, at_counts, n_bytes; /* parts come first: PREFERENCE_PARTS for every example of every row */
} preference_layout;

/* Sums of a row: those of the op, then what z is made of. */
enum { ROW_KL = PREFERENCE_SUM_COUNT, ROW_KL_COUNT, ROW_SUMS };

PREFERENCE_MATH preference_layout preference_layout_of(int64_t batch, int64_t seq_len) { /* of whole rows */
    preference_layout l;
    l.at_sums = (size_t)(batch * seq_len) * PREFERENCE_PARTS * sizeof(preference_part);
    l.at_counts = l.at_sums + (size_t)batch * ROW_SUMS * sizeof(double);
    l.n_bytes = l.at_counts + (size_t)batch * sizeof(int64_t);
    return l;
}
