/* work_norm.c - scratch of the gradients that are sums over rows: one line per block of rows. */
#include "backend/cuda/work.h"

#include "backend/cuda/sum_blocks.h"

size_t cuda_norm_work_bytes(const program *p, const op *o) {
    int64_t n_rows, line;
    op_row_sums(p, o, &n_rows, &line);
    int64_t n_lines = o->kind == OP_BIAS_GRAD ? bias_block_count(n_rows) : sum_block_count(n_rows);
    return (size_t)(n_lines * line) * sizeof(float);
}
