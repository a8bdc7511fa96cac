#pragma once
/* step.h - what a compiled step is told and what it leaves: the values that whoever runs it reads and writes.
 *
 * The passes fill it while they write the program; training, checkpoints and export read it. Arrays have an entry for each
 * parameter of the model and lie in the program's memory.
 *
 *     exec_write(e, step->inputs[micro].tokens, 0, tokens, n_bytes);
 *     exec_run(e, SECTION_MICRO);
 *     exec_run(e, SECTION_UPDATE);
 *     exec_read(e, step->clip, 0, clip, sizeof clip);
 */
#include "model/model.h"

/* A run of a parameter's elements. */
typedef struct param_share {
    int64_t first, n;
} param_share;

/* What a run of SECTION_MICRO is told of one micro-batch: those of the model, or as many. */
typedef struct micro_inputs {
    value_id tokens, targets, doc, doc_all, weights, scalars;
} micro_inputs;

typedef struct step_interface {
    int64_t micros_per_run; /* 1, or all of a step: a pipeline runs them together */
    micro_inputs *inputs;   /* of each of them */
    value_id turn_scalars;  /* of SECTION_TURN's micro-batch, which has inputs[0] else; NO_VALUE: no such section */
    value_id loss_sums, clip;
    value_id norm_partials; /* squares of the gradients' blocks, for passes that move them: nobody else reads it */
    value_id *grads, *masters, *moments, *variances; /* grads is NULL where nothing is trained */
    value_id *moment_scales, *variance_scales;       /* of 8-bit states; NO_VALUE elsewhere */
    /* On many ranks these hold a part of their parameter each, or are NO_VALUE where it is empty. */
    param_share *held;                      /* what a parameter's own value holds here */
    param_share *updated;                   /* ... and its gradient and states: what this rank updates */
    int64_t *shard_offset, *shard_elements; /* ... its place in a bucket, and each rank's run of that; 0: not cut */
} step_interface;

/* What rank `index` of the data axis updates of a parameter. */
param_share shard_share(const step_interface *step, const model *m, size_t param, int index);
/* What of a parameter, and of all that belongs to it, this rank writes to a checkpoint: what it updates, and where every
 * rank updates everything, each parameter by one of them. `ranks` has its place. */
param_share shard_saved(const step_interface *step, const model *m, const mesh *ranks, size_t param);
