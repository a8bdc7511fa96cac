#pragma once
/* critic_sizes.h - where things lie in the scratch of CRITIC and VALUE_BWD; read by the plan and by the kernels. */
#include "program/critic.h"

#include <stddef.h>
#include <stdint.h>

typedef struct critic_layout {
    size_t at_sums, n_bytes; /* parts come first: PREFERENCE_PARTS for every token of every row */
} critic_layout;

PREFERENCE_MATH critic_layout critic_layout_of(int64_t batch, int64_t seq_len) {
    critic_layout l;
    l.at_sums = (size_t)(batch * seq_len) * PREFERENCE_PARTS * sizeof(critic_part);
    l.n_bytes = l.at_sums + (size_t)batch * CRITIC_SUM_COUNT * sizeof(double);
    return l;
}

/* Sums of every block of tokens, for dw and behind them for db. */
PREFERENCE_MATH int64_t value_blocks(int64_t n_rows) { return (n_rows + VALUE_BLOCK - 1) / VALUE_BLOCK; }
PREFERENCE_MATH size_t value_lines_bytes(int64_t n_rows, int64_t width) {
    return (size_t)(value_blocks(n_rows) * (width + 1)) * sizeof(double);
}
