#pragma once
/* step.h - private to train: the program run for one optimizer step. Knows no data and no task.
 *
 *     stepper s;
 *     TRY(stepper_init(&s, &(stepper){.plan = p, .exec = e, .options = o, .source = source, .context = c, ...}));
 *     TRY(stepper_run(&s, false, &outcome));            // micro-batches and update
 *     TRY(stepper_finish(&s, &outcome, &report));       // a fault is an error here; the state moves on
 */
#include "train/train.h"

/* Where the inputs of a step come from. All ranks make the same calls; those that may be NULL say so. */
typedef struct step_source {
    /* Before the first micro-batch of a step: may write inputs and run sections other than MICRO and UPDATE, to find
     * what `next` writes then. With it or with `ran` a program must have no SECTION_TURN. May be NULL. */
    status (*before)(void *context, int64_t step);
    /* Micro-batches of this step, after `before`: 1 to those of the plan, the same on all ranks. NULL: those of the plan. Not for
     * pipelines, which run a whole step at once. */
    int64_t (*micros)(const void *context);
    /* Writes every input of this rank's next micro-batch but its scalars. Allocates nothing. */
    status (*next)(void *context, const micro_inputs *to);
    /* Writes micro-batch `micro` of the step that began at `position` once more, to search for a fault. */
    status (*again)(void *context, uint64_t position, int64_t micro, const micro_inputs *to);
    /* After a run of SECTION_MICRO, which took micro-batches first to first + n - 1: their results are there until the next
     * run. May be NULL. */
    status (*ran)(void *context, int64_t first, int64_t n);
    /* In the data, after what `next` has written, of all ranks together. A checkpoint stores it. */
    uint64_t (*position)(const void *context);
} step_source;

typedef struct stepper {
    const plan *plan;
    exec *exec;
    const train_options *options;
    const train_observer *observer;
    comm *comm; /* NULL: there are no other ranks */
    const step_source *source;
    void *context; /* of the source */
    train_state *state;

    bool has_prepare; /* does the program have a prepare section? */
    bool is_loaded;   /* SECTION_LOADED, if there is one, has run */
    bool carried;     /* the first micro-batch of the next step has already run, in the last turn ... */
    double carried_s; /* ... and took so much of that step's time */
    double seconds;   /* spent in steps since the start of this process */
    double micro_seconds, kernel_seconds; /* of them in forward and backward alone; and there in kernels */
    uint64_t n_micro_runs;                /* in these */
    uint64_t timed_tokens, timed_steps;
    double busy_seconds[OP_COUNT];         /* in steps, by kind of op */
    uint64_t driver_read_ns, driver_bytes; /* when memory of the device was last asked for, and how much was in use */
} stepper;

/* What a step gave, before anything follows from it. */
typedef struct step_outcome {
    int64_t step;
    uint64_t first_row, next_row; /* position in the data, before and after it */
    float clip[CLIP_COUNT];
    int64_t n_micros; /* on each rank */
    double seconds;
    bool skipped; /* the program made no update: loss or gradient is not finite */
} step_outcome;

/* Completes a stepper whose borrowed fields are filled. */
status stepper_init(stepper *s);
/* Micro-batches and update. next_step_follows: nothing comes between this step and the next, so that the update may
 * overlap its first micro-batch. ERR_INPUT when all steps are done. */
status stepper_run(stepper *s, bool next_step_follows, step_outcome *out);
/* The state after the step but for its losses, and its report without metrics of a task. A step that is not finite is an error that says
 * where that began, unless it is to be skipped. */
status stepper_finish(stepper *s, const step_outcome *o, train_step_report *report);
