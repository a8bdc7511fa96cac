/* rollout_metrics.c - rewards, lengths and differences of a rollout as metrics. */
#include "train/rollout_metrics.h"

#include <math.h>
#include <stdlib.h>

enum {
    REWARD,
    REWARD_STD,
    ZERO_STD,
    UNSCORABLE,
    FAILED,
    RESTARTS,
    KL,
    ENTROPY,
    CLIP_LOW,
    CLIP_HIGH,
    RATIO,
    LENGTH_MEAN,
    LENGTH_MIN,
    LENGTH_MAX,
    CUT,
    DIFF_MAX,
    DIFF_MEAN,
    ROLLOUT_S,
    REWARD_S,
    UPDATE_S,
    VAL_REWARD,
    VAL_PASS,
    VAL_PASS_AT_K,
    VAL_LENGTH,
    SCORES /* mean and std of every kind of reward */
};

_Static_assert((int)SCORES == (int)ROLLOUT_METRICS_FIXED && (int)ROLLOUT_METRICS <= (int)METRICS_MOST,
               "a report has room for all");

const task_metric rollout_metric_table[ROLLOUT_METRICS] = {
    [REWARD] = {"reward", "reward", "mean reward of the completions of a rollout, without the KL"},
    [REWARD_STD] = {"reward_std", NULL, "deviation of the rewards of a rollout"},
    [ZERO_STD] = {"frac_reward_zero_std", NULL, "share of prompts whose completions all have the same reward"},
    [UNSCORABLE] = {"reward_unscorable", NULL, "share of completions without a reward"},
    [FAILED] = {"reward_failed", NULL,
                "answers of reward programs and servers in a rollout that were late, lost or no number"},
    [RESTARTS] = {"reward_restarts", NULL, "reward programs that were started again in a rollout"},
    [KL] = {"kl", NULL, "KL divergence to the reference, per token"},
    [ENTROPY] = {"entropy", NULL, "of the policy, per token in nats, estimated by the tokens that were sampled"},
    [CLIP_LOW] = {"clip_ratio/low_mean", NULL,
                  "share of ratios below 1 - rl.epsilon that were clipped: of tokens, with rloo and gspo of "
                  "completions; those that rl.mask_truncated leaves out do not count"},
    [CLIP_HIGH] = {"clip_ratio/high_mean", NULL, "the same of ratios above 1 + rl.epsilon_high"},
    [RATIO] = {"ratio", NULL, "mean ratio of the policy to the one that wrote the completions; 1 in a first update"},
    [LENGTH_MEAN] = {"completions/mean_length", "length", "mean tokens of a completion"},
    [LENGTH_MIN] = {"completions/min_length", NULL, "tokens of the shortest completion"},
    [LENGTH_MAX] = {"completions/max_length", NULL, "tokens of the longest completion"},
    [CUT] = {"completions/clipped_ratio", NULL, "share of completions that reached rl.max_completion"},
    [DIFF_MAX] = {"rollout/logprob_diff_max", NULL,
                  "largest difference between a token's log-probability in the generator and in the update"},
    [DIFF_MEAN] = {"rollout/logprob_diff_mean", NULL, "mean of these differences"},
    [ROLLOUT_S] = {"time/rollout", NULL, "seconds of generating completions, on the first rank"},
    [REWARD_S] = {"time/reward", NULL, "seconds of scoring them"},
    [UPDATE_S] = {"time/update", NULL, "seconds of the rest of the step"},
    [VAL_REWARD] = {"val/reward", "reward", "mean reward of completions of held-out prompts"},
    [VAL_PASS] = {"val/pass_rate", "solved", "share of these completions with a reward of rl.pass or more"},
    [VAL_PASS_AT_K] = {"val/pass_at_k", NULL, "share of held-out prompts with such a completion among rl.eval_k"},
    [VAL_LENGTH] = {"val/completions/mean_length", NULL, "mean tokens of these completions"},
#define REWARD(id, name, help)                                   \
    {"rewards/" name "/mean", NULL, "mean of the reward " name}, \
        {"rewards/" name "/std", NULL, "deviation of the reward " name},
#include "reward/rewards.def"
#undef REWARD
};

static const char *const kinds[] = {
#define REWARD(id, name, help) name,
#include "reward/rewards.def"
#undef REWARD
};

static void add(train_metrics *m, size_t row, double value) { train_metrics_add(m, &rollout_metric_table[row], value); }

rollout_checks rollout_check(const rollout *r) {
    rollout_checks c = {0};
    for (size_t i = 0; i < r->n; i++) {
        const rollout_item *x = &r->items[i];
        for (size_t k = 0; k < x->c.n_tokens; k++) {
            if (isnan(x->old[k])) continue; /* masked */
            double diff = fabs((double)x->old[k] + (double)x->c.log_probabilities[k]);
            c.diff_max = fmax(c.diff_max, diff);
            c.diff_sum += diff;
            c.surprise -= (double)x->c.log_probabilities[k];
            c.n++;
        }
    }
    return c;
}

status rollout_checks_join(rollout_checks *c, comm *ranks) {
    if (!ranks) return OK;
    int n = comm_size(ranks);
    rollout_checks *all = mem_alloc((size_t)n * sizeof *all), sum = {0};
    status rc = comm_all_gather_bytes(ranks, c, sizeof *c, all);
    for (int i = 0; i < n && rc == OK; i++) {
        sum.diff_max = fmax(sum.diff_max, all[i].diff_max);
        sum.diff_sum += all[i].diff_sum;
        sum.surprise += all[i].surprise;
        sum.n += all[i].n;
    }
    *c = sum;
    free(all);
    return rc;
}

/* One number of every completion of all ranks. */
static void column(const rollout *r, size_t offset, double *out) {
    for (size_t i = 0; i < (size_t)r->n_ranks * r->n; i++)
        out[i] = *(const double *)((const char *)&r->all[i] + offset);
}

/* Prompts whose completions all have the same reward. x: the rewards. */
static size_t count_flat(const rollout *r, const double *x) {
    size_t n_flat = 0;
    for (size_t i = 0; i < (size_t)r->n_ranks * r->n; i += r->k) n_flat += advantage_is_flat(x + i, r->k);
    return n_flat;
}

rollout_signal rollout_find_signal(const rollout *r) {
    size_t n = (size_t)r->n_ranks * r->n, compared = r->loss->advantage == ADVANTAGE_RETURN ? n : r->k;
    bool masks = rollout_masks_cut(r);
    rollout_signal signal = SIGNAL_NO_REWARD;
    double *x = mem_alloc(n * sizeof *x);
    column(r, offsetof(rollout_numbers, reward), x);
    for (size_t at = 0; at < n && signal != SIGNAL_SOME; at += compared) {
        bool flat = advantage_is_flat(x + at, compared);
        for (size_t i = at; i < at + compared && signal != SIGNAL_SOME; i++) {
            if (isnan(x[i])) continue;
            if (!flat) signal = masks && r->all[i].is_cut > 0 ? SIGNAL_MASKED : SIGNAL_SOME;
            else if (signal == SIGNAL_NO_REWARD) signal = SIGNAL_FLAT;
        }
    }
    free(x);
    return signal;
}

static void report_rewards(const rollout *r, double *x, train_metrics *m) {
    size_t n = (size_t)r->n_ranks * r->n, n_unscorable = 0;
    column(r, offsetof(rollout_numbers, reward), x);
    size_t n_flat = count_flat(r, x);
    for (size_t i = 0; i < n; i++) n_unscorable += isnan(x[i]);
    add(m, REWARD, mean_of(x, n));
    add(m, LENGTH_MEAN, NAN); /* its place on the terminal */
    add(m, REWARD_STD, std_of(x, n));
    add(m, ZERO_STD, (double)n_flat / (double)(n / r->k));
    add(m, UNSCORABLE, (double)n_unscorable / (double)n);
    add(m, FAILED, (double)r->failures.n_failed);
    add(m, RESTARTS, (double)r->failures.n_restarts);
    for (size_t f = 0; f < rewards_count(r->rewards); f++) {
        column(r, offsetof(rollout_numbers, scores) + f * sizeof(double), x);
        for (size_t k = 0; k < ARRAY_LENGTH(kinds); k++) {
            if (strcmp(kinds[k], rewards_name(r->rewards, f)) != 0) continue;
            add(m, SCORES + 2 * k, mean_of(x, n));
            add(m, SCORES + 2 * k + 1, std_of(x, n));
        }
    }
}

static void report_lengths(const rollout *r, double *x, train_metrics *m) {
    size_t n = (size_t)r->n_ranks * r->n;
    double least = INFINITY, most = 0;
    column(r, offsetof(rollout_numbers, length), x);
    for (size_t i = 0; i < n; i++) least = fmin(least, x[i]), most = fmax(most, x[i]);
    m->list[1].value = mean_of(x, n);
    add(m, LENGTH_MIN, least);
    add(m, LENGTH_MAX, most);
    column(r, offsetof(rollout_numbers, is_cut), x);
    add(m, CUT, mean_of(x, n));
}

/* Per token, over all completions that are trained on: of others it is not known. */
static double kl_of_rollout(const rollout *r) {
    double kl = 0, tokens = 0;
    bool masks = rollout_masks_cut(r);
    for (size_t i = 0; i < (size_t)r->n_ranks * r->n; i++)
        if (!(masks && r->all[i].is_cut > 0)) kl += r->all[i].kl, tokens += r->all[i].length;
    return kl / tokens;
}

void rollout_report(const rollout *r, const double *sums, const rollout_checks *c, train_step_report *report) {
    train_metrics *m = &report->metrics;
    size_t n = (size_t)r->n_ranks * r->n;
    double *x = mem_alloc(n * sizeof *x);
    double ratios = r->loss->level == POLICY_TOKEN ? sums[SUM_POLICY_TOKENS] : sums[SUM_POLICY_COMPLETIONS];
    report_rewards(r, x, m);
    report_lengths(r, x, m);
    if (r->beta > 0)
        add(m, KL, (r->loss->kl_in_reward ? kl_of_rollout(r) : sums[SUM_POLICY_KL] / sums[SUM_POLICY_TOKENS]));
    add(m, CLIP_LOW, sums[SUM_POLICY_LOW] / ratios);
    add(m, CLIP_HIGH, sums[SUM_POLICY_HIGH] / ratios);
    add(m, RATIO, sums[SUM_POLICY_RATIO] / ratios);
    if (c) {
        add(m, ENTROPY, c->surprise / c->n);
        add(m, DIFF_MAX, c->n > 0 ? c->diff_max : NAN);
        add(m, DIFF_MEAN, c->diff_sum / c->n);
        add(m, ROLLOUT_S, r->times.rollout_s);
        add(m, REWARD_S, r->times.reward_s);
    }
    add(m, UPDATE_S, report->step_ms / 1e3 - (c ? r->times.rollout_s + r->times.reward_s : 0));
    free(x);
}

void rollout_report_eval(const double *totals, size_t n_prompts, size_t k, double pass, double mean_length,
                         train_metrics *m) {
    size_t n_passed = 0, n_solved = 0;
    for (size_t p = 0; p < n_prompts; p++) {
        bool solved = false;
        for (size_t i = 0; i < k; i++) {
            bool passes = totals[p * k + i] >= pass; /* NAN does not */
            n_passed += passes;
            solved |= passes;
        }
        n_solved += solved;
    }
    add(m, VAL_REWARD, mean_of(totals, n_prompts * k));
    add(m, VAL_PASS, (double)n_passed / (double)(n_prompts * k));
    if (k > 1) add(m, VAL_PASS_AT_K, (double)n_solved / (double)n_prompts);
    add(m, VAL_LENGTH, mean_length);
}
