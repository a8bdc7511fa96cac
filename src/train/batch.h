#pragma once
/* batch.h - private to train: write rows of tokens into a program and read its results, with or without sequence ranks.
 *
 * Rows are always whole and in order on this side. Each sequence rank writes its own tokens. */
#include "train/train.h"

/* One micro-batch: tokens, targets and doc_start, (B, T) each. Allocates nothing. */
void batch_write(exec *e, const plan *p, const micro_inputs *to, const int32_t *tokens, const int32_t *targets,
                 const int32_t *doc_start);
/* Reads a result of the evaluation, 4 bytes for each token, in the order of the rows. */
void batch_read(exec *e, const plan *p, value_id v, void *out);
