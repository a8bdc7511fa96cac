#pragma once
/* batch.h - private to train: write rows of tokens into a program and read its results, with or without sequence ranks.
 *
 * Rows are always whole and in order on this side. Each sequence rank writes its own tokens. */
#include "train/train.h"

/* The rows of one micro-batch, (B, T) each. */
typedef struct batch_rows {
    const int32_t *tokens, *targets, *doc_start;
    const float *weights; /* of each token's loss, 0 and negative ones too; NULL: 1 for every token */
    uint64_t first_row;   /* its number in the data, for messages */
    const float
        *scales; /* several losses: what each multiplies its weights by (ahead.h); NULL: evaluation, which has one */
} batch_rows;
/* Allocates nothing. A weight that is not finite is ERR_INPUT by its row and position, before anything is written; so is
 * ERR_BUG any weight for a program that was planned without token_weights. */
status batch_write(exec *e, const plan *p, const micro_inputs *to, const batch_rows *rows);
/* Writes 4 bytes for each token of whole rows to an input that every sequence rank has whole, in the order in which ranks gather
 * their tokens (select.h). */
void batch_write_all(exec *e, const plan *p, value_id v, const void *from);
/* Reads a result of the evaluation, 4 bytes for each token, in the order of the rows. */
void batch_read(exec *e, const plan *p, value_id v, void *out);
