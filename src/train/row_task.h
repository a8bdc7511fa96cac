#pragma once
/* row_task.h - private to train: what tasks that train on the rows of the data set have in common. A task begins its own struct
 * with a row_task, made with mem_alloc, and takes these functions into its table. The only state is the position in the data. */
#include "train/evaluate.h"

typedef struct row_task {
    task_host host;
    evaluator eval;
    loader *rows; /* NULL: not begun */
} row_task;

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
