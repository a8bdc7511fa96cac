#pragma once
/* best.h - private to train: beside the last checkpoints of a run, the one whose evaluation was best (train.save_best).
 *
 * It lies in RUN/best, a directory like that of a run, with one checkpoint: whatever takes a run directory takes RUN/best too. What is best so
 * far is part of the state that it holds, so a resumed run goes on comparing with what is there, whichever step it resumes from.
 *
 * train.patience ends a run whose evaluations have not become better for a while. What it waits for and since when is in every checkpoint,
 * beside the step: a run that goes on from one ends at the step at which it would have ended. */
#include "train/train.h"

typedef struct best {
    const train_request *request;
    const train_observer *observer;
    const char *metric;        /* key of metrics.jsonl; NULL: nothing is compared */
    const char *dir;           /* RUN/best */
    checkpointer *checkpoints; /* NULL: none is kept */
} best;

/* Refuses a metric that no evaluation of this run reports. After the task has shaped the request. */
status best_check(const train_request *r);
/* o: as for the run's own checkpoints. Nothing happens without train.save_best. Collective. memory keeps dir. */
status best_open(best *b, const train_request *r, const train_observer *observer, const checkpoint_options *o,
                 const checkpoint_tensor *tensors, size_t n, arena *memory);
void best_close(best *b);
/* Once the state is that from which the run begins or goes on: what is best is what RUN/best holds. */
status best_begin(best *b, train_state *s);
bool best_gave_up(const best *b, const train_state *s); /* train.patience is over */
/* After an evaluation: saves if it is better than all before. Collective. */
status best_offer(best *b, exec *e, train_state *s, const train_eval_report *report);
