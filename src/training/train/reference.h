#pragma once
/* reference.h - private to train: the frozen copy that a task compares with, in its part of a checkpoint.
 *
 * No checkpoint holds the copy: it is where the run began. Its hash is kept, so that a model directory that has changed is an
 * error, not another reference. */
#include "train/task.h"

uint64_t reference_hash(const task_host *h); /* 0 where the plan has no copy */
json_t *reference_save(uint64_t hash);
status reference_read(const json_t *state, const char *where, uint64_t *hash); /* what reference_save wrote */
/* now: the hash of what is compared with now. settings: as below. */
status reference_compare(uint64_t now, const json_t *state, const char *where, const char *settings);
/* The copy is loaded already. settings: what may have changed, in words. */
status reference_check(const task_host *h, const json_t *state, const char *where, const char *settings);
