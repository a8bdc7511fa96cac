#pragma once
/* sum_blocks.h - how sums over all rows of a matrix are cut. C, C++ and no CUDA: the plan counts scratch with it.
 *
 * Gradients that are sums over rows are taken in two steps: blocks of rows each leave one line of fp32 sums in work, then
 * the lines are added in double and rounded once. The cut depends on the number of rows alone. */
#include <stdint.h>

/* Rows that one block sums. Long blocks leave few lines to write and read again; more than a thousand of them fill any
 * GPU. A sum in fp32 goes over at most n / 1024 rows, or 16. */
static inline int64_t sum_block_rows(int64_t n_rows) {
    int64_t rows = (n_rows + 1023) / 1024;
    return rows > 16 ? rows : 16;
}
static inline int64_t sum_block_count(int64_t n_rows) {
    return (n_rows + sum_block_rows(n_rows) - 1) / sum_block_rows(n_rows);
}

/* A bias gradient also cuts its columns, so that fewer and longer blocks of rows fill a GPU, and their lines, which are
 * all that it writes, stay few. Eight warps share a block's rows: a sum in fp32 goes over an eighth of them. */
static inline int64_t bias_block_rows(int64_t n_rows) {
    int64_t rows = (n_rows + 255) / 256;
    return rows > 64 ? rows : 64;
}
static inline int64_t bias_block_count(int64_t n_rows) {
    return (n_rows + bias_block_rows(n_rows) - 1) / bias_block_rows(n_rows);
}
