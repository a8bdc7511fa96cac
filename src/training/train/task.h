#pragma once
/* task.h - private to train: what a run is for. A task is one file, task_<name>.c, and one row of tasks.def.
 *
 * The run (run.c) opens it, asks it for the inputs of every step, and asks it after each step and at every evaluation what it
 * found; the step (step.c) knows only its step_source. Functions that may be NULL say so. All ranks make the same calls, so
 * a function may use collectives of request->comm, and returns the same status on all ranks or an error that ends the run.
 *
 * A task makes the inputs of its micro-batches itself, with batch_write and exec_write, and reads results with
 * exec_read and batch_read: values of plan->model and plan->step. What is called in a step allocates nothing. */
#include "train/step.h"

/* Called before every batch of an evaluation; `done` of n are counted already. A status other than OK ends it. */
typedef status (*task_pause)(void *context, const char *what, int64_t done, int64_t n);

/* What the run lends its task until it is closed. */
typedef struct task_host {
    const train_request *request;
    const plan *plan;
    const dataset *data;
    const train_observer *observer;
    exec *exec;
    task_pause pause;
    void *pause_context;
    char *const *description; /* of the model, as checkpoints have it; known when `begin` is called */
} task_host;

struct task {
    const char *name;           /* task_name_<id> */
    const task_metric *metrics; /* every number that it reports beside the fixed ones; NULL: none */
    size_t n_metrics;

    /* What the program must contain, before it is planned: with_eval, token_weights, normalize_by_weights, overlap_update;
     * and host_row_bytes, what the task will hold on the host per row of a micro-batch. Refuses settings that the task
     * cannot serve, by their keys. */
    status (*shape)(train_request *r);
    /* Buffers; the program holds no parameters yet. After an error there is nothing to close. */
    status (*open)(void **out, const task_host *h);
    void (*close)(void *self);
    /* What a position in the data means: the data and everything that its rows depend on, in words. A checkpoint of another
     * identity is refused. */
    const char *(*identity)(void *self, arena *memory);
    /* Its state in a checkpoint: a small object, the same on all ranks, as it is after the last step: what `next` wrote for the
     * step after that, to overlap the update, does not count. `load` gets what `save` gave, or what somebody else wrote: every
     * number has a range, and `where` opens the message about one outside of it. Both NULL: no state. */
    json_t *(*save)(void *self);
    status (*load)(void *self, const json_t *state, const char *where);
    /* May a checkpoint be made now, between two steps? Else it is made after a later one. NULL: always. */
    bool (*may_save)(const void *self);
    /* Parameters and state are those of the run: opens the data at this position. */
    status (*begin)(void *self, uint64_t position);
    step_source step;
    /* Adds metrics to the report of a step that ended well. Where the loss of the task is not the weighted sum of token losses
     * over the valid tokens, it replaces report->loss. May be NULL. */
    status (*after)(void *self, train_step_report *report);
    /* Fills the report of an evaluation, all but its step. Only where the plan has with_eval. */
    status (*evaluate)(void *self, train_eval_report *report);
    /* After the last evaluation: shows some examples to the observer. May be NULL. */
    status (*examples)(void *self);
    uint64_t (*host_bytes)(const void *self); /* that it holds, beside the data set */
};

/* Held-out rows of an evaluation: train.eval_rows, or all that there are. */
int64_t task_eval_rows(const task_host *h);
/* The first n sums of the losses of the step that ended. Those in plan->step.loss_sums are the next step's by now where the update
 * overlaps it. Call exec_check after it. */
void task_step_sums(const task_host *h, double *sums, int n);

#define TASK(id, name, help)            \
    extern const char task_name_##id[]; \
    extern const task task_##id;
#include "train/tasks.def"
#undef TASK
