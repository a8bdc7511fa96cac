#pragma once
/* step.h - the values of a compiled step that the executor reads and writes.
 *
 * The passes fill it while they write the program; training, checkpoints and export read it. Arrays have an entry for each
 * parameter of the model and lie in the program's memory.
 *
 *     exec_write(e, step->inputs[micro].tokens, 0, tokens, n_bytes);
 *     exec_run(e, SECTION_MICRO);
 *     exec_run(e, SECTION_UPDATE);
 *     exec_read(e, step->clip, 0, clip, sizeof clip);
 */
#include "net/net.h"

/* The codes of one part of a weight: operands of DEQUANTIZE; NO_VALUE where the format has none. */
typedef struct base_values {
    value_id codes, scale, scale_codes, offset;
} base_values;
typedef struct base_parts {
    base_values part[3]; /* as net_param.parts */
} base_parts;

/* A run of a parameter's elements. */
typedef struct param_share {
    int64_t first, n;
} param_share;

/* Inputs of one micro-batch in a run of SECTION_MICRO. */
typedef struct micro_inputs {
    value_id tokens, targets, doc_start, doc_start_all, weights, segments, reference, scalars;
    net_loss loss[MTP_HEADS_MAX];      /* of several losses; the first has targets and weights from above */
    value_id advantages, old, rollout; /* of a policy */
    value_id spans[2];                 /* of prompts that answers share */
} micro_inputs;

typedef struct step_interface {
    int64_t micros_per_run; /* 1, or all of a step: a pipeline runs them together */
    micro_inputs *inputs;   /* of each of them */
    value_id
        turn_scalars; /* scalars of SECTION_TURN's micro-batch, whose other inputs are inputs[0]; NO_VALUE: no such section */
    value_id loss_sums, clip;
    value_id norm_partials;                          /* squared sums of gradient blocks; only passes read it */
    value_id *grads, *masters, *moments, *variances; /* grads is NULL where nothing is trained */
    value_id *moment_scales, *variance_scales;       /* of 8-bit states; NO_VALUE elsewhere */
    base_parts *base; /* of parameters with a base format, whose own value has no bytes; NULL: there are none */
    /* On many ranks these hold a part of their parameter, or are NO_VALUE where that is empty. */
    param_share *held;    /* elements that this rank stores of a parameter */
    param_share *updated; /* ... and updates: its gradient and states */
    int64_t *shard_offset,
        *shard_elements; /* ... its offset in a bucket, and the elements per rank of that; 0: not sharded */
} step_interface;

/* The elements of a parameter that rank `index` of the data axis updates. */
param_share shard_share(const step_interface *step, const net *m, size_t param, int index);
/* The elements of a parameter, and of its states, that this rank counts for where each counts once, in a checkpoint or a hash:
 * those it updates, or where every rank has all, each parameter by one of them. `ranks`: the mesh with this rank's index. */
param_share shard_counted(const step_interface *step, const net *m, const mesh *ranks, size_t param);
