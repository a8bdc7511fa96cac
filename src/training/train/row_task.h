#pragma once
/* row_task.h - private to train: what tasks that train on the rows of the data set have in common. A task begins its own struct
 * with a row_task, made with mem_alloc, and takes these functions into its table. The only state is the position in the data. */
#include "train/evaluate.h"

typedef struct row_task {
    task_host host;
    evaluator eval;
    loader *rows; /* NULL: not begun */
    /* Set by the task: weights of the targets of a micro-batch, and what its program is given as losses of a reference; NULL: it has
     * none. `fill` fills both for these rows, allocating nothing; NULL: there is nothing to fill. */
    status (*fill)(void *self, uint64_t first_row, const int32_t *targets, const int32_t *doc_start);
    const float *weights, *reference;
} row_task;
/* What the tokens of rows depend on, in words. */
const char *row_identity(const data_options *o, const dataset *d, arena *memory);

status row_task_shape(train_request *r);
void row_task_init(row_task *t, const task_host *h);
/* Writes the next rows, or those of a micro-batch of the step that began at `position`; scales as in batch.h. */
status row_task_write(row_task *t, const micro_inputs *to, const float *scales);
status row_task_write_again(row_task *t, uint64_t position, int64_t micro, const micro_inputs *to, const float *scales);

/* As task.h has them; self is a row_task, or begins with one. */
void row_task_close(void *self);
const char *row_task_identity(void *self, arena *memory);
status row_task_begin(void *self, uint64_t position);
uint64_t row_task_position(const void *self);
uint64_t row_task_host_bytes(const void *self);
status row_task_evaluate(void *self, train_eval_report *out);
status row_task_examples(void *self);
