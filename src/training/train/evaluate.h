#pragma once
/* evaluate.h - private to train: loss and exact match on held-out data with the current parameters. Each rank
 * evaluates everything, so that the numbers are those of one rank. */
#include "train/task.h"

typedef struct evaluator {
    /* Fills losses and argmax from tokens, targets and doc_start: the evaluation section of the program. */
    status (*forward)(struct evaluator *v);
    exec *e;
    const plan *p;
    const dataset *d;
    int32_t *tokens, *targets, *doc_start, *argmax; /* one micro-batch */
    float *losses;
    task_pause pause;
    void *context; /* of pause */
} evaluator;

/* Host memory of these buffers per row of a micro-batch: part of the plan. */
uint64_t evaluator_row_bytes(const plan_request *r);
void evaluator_init(evaluator *v, const task_host *h);
void evaluator_fini(evaluator *v);
/* Mean loss of the first n_rows rows of the evaluation split, over their valid tokens. */
status evaluator_loss(evaluator *v, int64_t n_rows, double *loss);
/* Exact match: share of the first n problems of which greedy decoding would give a whole right answer. It gives an answer
 * exactly if, with that answer as input, the most likely token is right at every position: one forward pass is enough. Where a
 * problem has several right answers, another one that begins with what greedy decoding gives takes the place of the one that it
 * left, and the pass is run again. NaN without problems. */
status evaluator_exact_match(evaluator *v, int64_t n, int64_t *n_done, double *share);
/* Solves a problem token by token and reports prompt, expected and generated answer to the observer. */
status evaluator_examples(evaluator *v, int64_t n, const train_observer *o);
