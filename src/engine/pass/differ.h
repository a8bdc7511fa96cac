#pragma once
/* differ.h - private to pass: the backward that is being written, and where its gradients go. Used by autodiff.c. */
#include "pass/buckets.h"

typedef struct differ {
    program *p;
    const pass_options *options;
    step_interface *step;
    value_id *gradient; /* of each forward value; NO_VALUE where none yet */
    bool *is_wanted;    /* ... its gradient: it is, or comes from, a trained parameter */
    size_t *param;      /* of each forward value: which parameter it is; SIZE_MAX: none */
    value_id *pending;  /* of each parameter: the temporary not yet accumulated */
    value_id *parts;    /* ... and this rank's part of its gradient, where several ranks hold it */
    flat_place *places; /* of each parameter */
    int loss;           /* whose gradient is being written, of the model's */
    value_id *of_head;  /* of each parameter that heads share: what the head at hand adds to its gradient ... */
    value_id *of_heads; /* ... and the sum of those before it */
} differ;

/* A value for one more gradient of `of`. */
value_id differ_value(differ *d, value_id of);
/* An op of the backward of `forward`, with its constants. Valid until the next emit. */
op *differ_emit(differ *d, op_kind k, const op *forward);
/* The gradient collected at v so far; the caller takes it over. */
value_id differ_take(differ *d, value_id v);
/* Adds one more gradient of v; several are summed in the order of the backward. */
void differ_add(differ *d, value_id v, value_id g, const op *forward);
/* Where an op writes its part of the gradient of parameter v; NO_VALUE where v is frozen. */
value_id differ_target(differ *d, value_id v);
/* ... of parameter i, also where heads share it: the last of them finishes it. */
value_id differ_rank_target(differ *d, size_t i);
/* The gradient of v is finished for this micro-batch: sums the parts of all ranks, and adds the result to the accumulator. */
void differ_finish(differ *d, value_id v, const op *forward);
