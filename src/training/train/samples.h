#pragma once
/* samples.h - private to train: completions of a few prompts while a run goes on.
 *
 *     TRY(samples_shape(&request));          // before the plan: sections of generation beside training
 *     samples *s;
 *     TRY(samples_open(&s, &(samples_host){...}));
 *     TRY(samples_run(s, step));             // between two steps; the parameters stay as they are
 *     samples_close(s);
 */
#include "train/train.h"

typedef struct samples_host { /* borrowed until it is closed */
    const train_request *request;
    const plan *plan;
    const dataset *data;
    const train_observer *observer;
    exec *exec;
    const char *description; /* of the model, as checkpoints have it */
} samples_host;

typedef struct samples samples;
/* With train.sample_every: what the program must contain and what will be held on the host. Else nothing. */
status samples_shape(train_request *r);
status samples_check(const train_request *r); /* is there anything to take prompts from? Part of the shape */
/* Attaches a generator and encodes the prompts. A prompt without room for one new token is an error that names it. */
status samples_open(samples **out, const samples_host *h);
void samples_close(samples *s);
generator *samples_generator(samples *s);
/* All ranks generate the same completions, because they may gather parameters; those with an observer tell it. */
status samples_run(samples *s, int64_t step);
uint64_t samples_host_bytes(const samples *s);
