/* task_sft.c - next-token prediction on the rows of the data set. */
#include "train/row_task.h"

static status sft_open(void **out, const task_host *h) {
    row_task *t = mem_alloc(sizeof *t);
    row_task_init(t, h);
    *out = t;
    return OK;
}

static status sft_next(void *self, const micro_inputs *to) { return row_task_write(self, to, NULL); }

static status sft_again(void *self, uint64_t position, int64_t micro, const micro_inputs *to) {
    return row_task_write_again(self, position, micro, to, NULL);
}

const task task_SFT = {
    .name = task_name_SFT,
    .shape = row_task_shape,
    .open = sft_open,
    .close = row_task_close,
    .identity = row_task_identity,
    .begin = row_task_begin,
    .step = {.next = sft_next, .again = sft_again, .position = row_task_position},
    .evaluate = row_task_evaluate,
    .examples = row_task_examples,
    .host_bytes = row_task_host_bytes,
};
