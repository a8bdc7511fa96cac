#pragma once
/* advantage.h - private to train: the losses of reinforcement learning as rows of one table, and advantages from rewards.
 *
 * Pure functions in double. A reward is a number, or NAN: unscorable. Completions of a prompt are a group, one behind the
 * other.
 *
 *     const rl_loss *l = rl_loss_at(kind);
 *     advantage_groups(l->advantage, rewards, n_groups, k, advantages);      rloo, grpo, dr_grpo, dapo, gspo
 *     advantage_normalize(advantages, rewards, n);                           where asked
 *
 *     advantage_returns(base, kl, n_tokens, beta, out);                      reinforce++: one number for every token
 *     moments_add(&m, out, n_tokens);                                        ... over all completions and ranks
 *     moments_apply(&m, out, n_tokens);
 *
 * Equal rewards of a group have advantages of exactly 0, whatever they are: differences are taken before sums. */
#include "program/program.h"

typedef enum advantage_kind {
    ADVANTAGE_LEAVE_ONE_OUT, /* r - mean of the others */
    ADVANTAGE_GROUP_STD,     /* (r - mean) / (std + 1e-4), the std of a sample */
    ADVANTAGE_GROUP_MEAN,    /* r - mean */
    ADVANTAGE_RETURN,        /* of every token: what is still to come; less mean, over std, of all tokens of the step */
    ADVANTAGE_RETURN_MEAN,   /* the same of r - mean of the group */
    ADVANTAGE_KIND_COUNT
} advantage_kind;

typedef struct rl_loss {
    const char *name;
    advantage_kind advantage;
    policy_level level;
    policy_mean mean;
    double low, high;     /* of the clipping, where none is given */
    bool kl_in_reward;    /* else in the loss */
    bool masks_truncated; /* completions that reached their limit have no loss, unless asked otherwise */
    int64_t redraws;      /* groups whose rewards are equal are drawn again so often, unless asked otherwise */
} rl_loss;
const rl_loss *rl_loss_at(size_t i); /* in the order of the setting rl.loss; NULL past the end */
static inline bool advantage_is_of_tokens(advantage_kind k) {
    return k == ADVANTAGE_RETURN || k == ADVANTAGE_RETURN_MEAN;
}

/* Of n_groups groups of k; 0 where a reward is NAN, and where no other one of its group is scorable. RETURN, RETURN_MEAN: the
 * reward itself, less the mean of its group. */
void advantage_groups(advantage_kind kind, const double *rewards, size_t n_groups, size_t k, double *out);
/* (a - mean) / (std + 1e-4) over those whose reward is not NAN, the std of a sample; the others stay 0. */
void advantage_normalize(double *a, const double *rewards, size_t n);
/* Token t of a completion gets base - beta * sum of kl from t on. kl: NULL where beta is 0. */
void advantage_returns(double base, const double *kl, size_t n, double beta, double *out);

/* Mean and deviation of many numbers, added in parts. `from` is any number near them: where all are equal to it, the mean is it
 * exactly. */
typedef struct moments {
    double from, n, sum, squares; /* of the differences to from */
} moments;
void moments_add(moments *m, const double *x, size_t n);
void moments_join(moments *m, const moments *other); /* with the same `from` */
/* (x - mean) / std, the variance of a population and at least 1e-8. */
void moments_apply(const moments *m, double *x, size_t n);

/* Numbers that are not NAN: mean, and std of a sample; NAN of none, std 0 of one. */
double mean_of(const double *x, size_t n);
double std_of(const double *x, size_t n);
/* Are all rewards of a group that are not NAN the same? So it is where there are none. */
bool advantage_is_flat(const double *rewards, size_t k);
