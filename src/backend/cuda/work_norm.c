/* work_norm.c - scratch of the gradients that are sums over rows: one line per block of rows. */
#include "backend/cuda/work.h"

#include "backend/cuda/sum_blocks.h"

size_t cuda_norm_work_bytes(const program *p, const op *o) {
    int64_t n_rows, line;
    op_row_sums(p, o, &n_rows, &line);
    return (size_t)(sum_block_count(n_rows) * line) * sizeof(float);
}
