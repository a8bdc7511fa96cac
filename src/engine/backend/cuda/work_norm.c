/* work_norm.c - scratch of the gradients that are sums over rows: one line per block of rows. */
#include "backend/cuda/work.h"

#include "backend/cuda/sum_blocks.h"

static size_t norm_bytes(const program *p, const op *o) {
    int64_t n_rows, line;
    op_row_sums(p, o, &n_rows, &line);
    return (size_t)(sum_block_count(n_rows) * line) * sizeof(float);
}

static size_t bias_bytes(const program *p, const op *o) {
    int64_t n_rows, line;
    op_row_sums(p, o, &n_rows, &line);
    return (size_t)(bias_block_count(n_rows) * line) * sizeof(float);
}

const cuda_work cuda_work_BIAS_GRAD = {bias_bytes, NO_PRODUCTS};
const cuda_work cuda_work_RMSNORM_BWD = {norm_bytes, NO_PRODUCTS};
const cuda_work cuda_work_LAYERNORM_BWD = {norm_bytes, NO_PRODUCTS};
const cuda_work cuda_work_QK_NORM_BWD = {norm_bytes, NO_PRODUCTS};
const cuda_work cuda_work_QK_NORM_ROPE_BWD = {norm_bytes, NO_PRODUCTS};
