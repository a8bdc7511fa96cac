#pragma once
/* frozen.h - private to train: numbers per token of another model, computed before a run and kept in its directory.
 *
 * The model (request->frozen) may have any sizes and family, but the vocabulary of the run. It is planned and run as a program
 * of its own that is closed before the memory of training is opened: a run needs the larger of the two, not their sum.
 *
 *     TRY(frozen_check(r, p));                                   // before anything is written
 *     TRY(frozen_prepare(&(frozen_job){r, p, d, o, pause, c}));  // before exec_open of the run
 *     TRY(frozen_file_open(&f, r, p, d));                        // then steps read their rows
 *     TRY(frozen_file_row(f, d, row, targets, marks, T, numbers)); */
#include "train/numbers_file.h"
#include "train/task.h"

typedef struct frozen_job {
    const train_request *request;
    const plan *plan; /* of the run */
    const dataset *data;
    const train_observer *observer;
    task_pause pause;
    void *context;
} frozen_job;

/* ERR_INPUT where the model cannot serve this run, ERR_FIT where its program has no room. */
status frozen_check(const train_request *r, const plan *p);
/* Leaves the file of this run in run_dir; one that is there and right is kept. Ranks share the rows. */
status frozen_prepare(const frozen_job *j);
/* Of a run that was prepared. */
status frozen_file_open(numbers_file **out, const train_request *r, const plan *p, const dataset *d);
/* One number for each target of training row `row`, 0 elsewhere. marks: (T) int32 of scratch. Allocates nothing. */
status frozen_file_row(const numbers_file *f, const dataset *d, uint64_t row, const int32_t *targets, int32_t *marks,
                       int64_t T, float *numbers);
/* 0: the run has no such file. */
uint64_t frozen_disk_bytes(const train_request *r, const plan *p);
