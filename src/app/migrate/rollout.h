#pragma once
/* rollout.h - private to the dialects: GRPO and RLOO as TRL spells them, at the top of a file or in a map of it. */
#include "migrate/trainer.h"

typedef struct rollout_keys {
    const char *prefix;                      /* "trl." or "" */
    const foreign_item *rows, *accumulation; /* completions of a device's micro-batch, and micro-batches */
    int64_t usual_rows;
} rollout_keys;
/* train.task, rl.* and reward.list. */
status rollout_translate(foreign_reader *r, const rollout_keys *k);
