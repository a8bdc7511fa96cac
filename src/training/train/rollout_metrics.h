#pragma once
/* rollout_metrics.h - private to train: the numbers that train.task rloo reports, by the names that TRL has. */
#include "train/rollout.h"

/* What the first update of a rollout gave beside its loss: over this rank's tokens. */
typedef struct rollout_checks {
    double diff_max, diff_sum, surprise,
        n; /* |update's log-probability - generator's|; minus the generator's; tokens */
} rollout_checks;

enum {
    ROLLOUT_METRICS_FIXED = 24,
    ROLLOUT_METRICS = ROLLOUT_METRICS_FIXED /* and two of every kind of reward */
#define REWARD(id, name, help) +2
#include "reward/rewards.def"
#undef REWARD
};
extern const task_metric rollout_metric_table[ROLLOUT_METRICS];
rollout_checks rollout_check(const rollout *r); /* after rollout_keep of all micro-batches */
status rollout_checks_join(rollout_checks *c, comm *ranks);
/* What the rewards of a rollout, of all ranks, say: nothing where no completion has one, where each has that of all it is compared with (of
 * its prompt, or of the whole step), or where those that have another reached their limit and are not trained on. */
typedef enum rollout_signal { SIGNAL_SOME, SIGNAL_NO_REWARD, SIGNAL_FLAT, SIGNAL_MASKED } rollout_signal;
rollout_signal rollout_find_signal(const rollout *r);
/* sums: of POLICY, over all ranks. checks: NULL where this is no first update. */
void rollout_report(const rollout *r, const double *sums, const rollout_checks *checks, train_step_report *report);
/* Of held-out prompts: totals (n_prompts, k), tokens of all completions. */
void rollout_report_eval(const double *totals, size_t n_prompts, size_t k, double pass, double mean_length,
                         train_metrics *out);
