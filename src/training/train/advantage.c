/* advantage.c - what the rewards of completions say of each of them, and the table of losses that read it.
 *
 * Formulas are those of TRL 1.16 (rloo_trainer.py, grpo_trainer.py) for the rows that it has, of OpenRLHF for reinforce++. */
#include "train/advantage.h"

#include <math.h>

static const rl_loss losses[] = {
    {"rloo", ADVANTAGE_LEAVE_ONE_OUT, POLICY_SEQUENCE, POLICY_OF_COMPLETIONS, 0.2, 0.2, true, false, 0},
    {"grpo", ADVANTAGE_GROUP_STD, POLICY_TOKEN, POLICY_OF_COMPLETIONS, 0.2, 0.2, false, false, 0},
    {"dr_grpo", ADVANTAGE_GROUP_MEAN, POLICY_TOKEN, POLICY_OF_LENGTH, 0.2, 0.2, false, false, 0},
    {"dapo", ADVANTAGE_GROUP_STD, POLICY_TOKEN, POLICY_OF_TOKENS, 0.2, 0.28, false, true, 3},
    {"reinforce++", ADVANTAGE_RETURN, POLICY_TOKEN, POLICY_OF_TOKENS, 0.2, 0.2, true, false, 0},
    {"reinforce++_baseline", ADVANTAGE_RETURN_MEAN, POLICY_TOKEN, POLICY_OF_TOKENS, 0.2, 0.2, true, false, 0},
    {"gspo", ADVANTAGE_GROUP_STD, POLICY_MEAN, POLICY_OF_COMPLETIONS, 3e-4, 4e-4, false, false, 0},
};

const rl_loss *rl_loss_at(size_t i) { return i < ARRAY_LENGTH(losses) ? &losses[i] : NULL; }

static const double SMALL = 1e-4, LEAST_VARIANCE = 1e-8;

double mean_of(const double *x, size_t n) {
    double from = NAN, sum = 0, count = 0;
    for (size_t i = 0; i < n; i++) {
        if (isnan(x[i])) continue;
        if (count == 0) from = x[i];
        sum += x[i] - from;
        count++;
    }
    return from + (count ? sum / count : 0);
}

double std_of(const double *x, size_t n) {
    double mean = mean_of(x, n), squares = 0, count = 0;
    for (size_t i = 0; i < n; i++)
        if (!isnan(x[i])) squares += (x[i] - mean) * (x[i] - mean), count++;
    return count == 0 ? NAN : count == 1 ? 0 : sqrt(squares / (count - 1));
}

bool advantage_is_flat(const double *r, size_t k) {
    double first = NAN;
    for (size_t i = 0; i < k; i++) {
        if (isnan(first)) first = r[i];
        if (!isnan(r[i]) && r[i] != first) return false;
    }
    return true;
}

/* Of one group. */
static void of_group(advantage_kind kind, const double *r, size_t k, double *out) {
    double n = 0, std = std_of(r, k);
    for (size_t i = 0; i < k; i++) n += !isnan(r[i]);
    for (size_t i = 0; i < k; i++) {
        double above = 0; /* the sum of the differences to all others */
        out[i] = 0;
        if (isnan(r[i])) continue;
        for (size_t j = 0; j < k; j++)
            if (!isnan(r[j])) above += r[i] - r[j];
        if (kind == ADVANTAGE_RETURN) out[i] = r[i];
        else if (n < 2) continue;
        else if (kind == ADVANTAGE_LEAVE_ONE_OUT) out[i] = above / (n - 1);
        else if (kind == ADVANTAGE_GROUP_STD) out[i] = above / n / (std + SMALL);
        else out[i] = above / n;
    }
}

void advantage_groups(advantage_kind kind, const double *rewards, size_t n_groups, size_t k, double *out) {
    for (size_t g = 0; g < n_groups; g++) of_group(kind, rewards + g * k, k, out + g * k);
}

void advantage_normalize(double *a, const double *rewards, size_t n) {
    moments m = {0};
    bool begun = false;
    for (size_t i = 0; i < n; i++) {
        if (isnan(rewards[i])) continue;
        if (!begun) m.from = a[i], begun = true;
        moments_add(&m, &a[i], 1);
    }
    double mean = m.from + m.sum / m.n;
    double std = m.n > 1 ? sqrt(fmax(m.squares - m.sum * m.sum / m.n, 0) / (m.n - 1)) : 0;
    for (size_t i = 0; i < n; i++)
        if (!isnan(rewards[i])) a[i] = (a[i] - mean) / (std + SMALL);
}

void advantage_returns(double base, const double *kl, size_t n, double beta, double *out) {
    double sum = 0;
    for (size_t t = n; t-- > 0;) {
        if (beta > 0) sum += kl[t];
        out[t] = base - beta * sum;
    }
}

void moments_add(moments *m, const double *x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        double d = x[i] - m->from;
        m->n++;
        m->sum += d;
        m->squares += d * d;
    }
}

void moments_join(moments *m, const moments *other) {
    m->n += other->n;
    m->sum += other->sum;
    m->squares += other->squares;
}

void moments_apply(const moments *m, double *x, size_t n) {
    if (m->n == 0) return;
    double shift = m->sum / m->n, variance = fmax(m->squares / m->n - shift * shift, LEAST_VARIANCE);
    for (size_t i = 0; i < n; i++) x[i] = (x[i] - m->from - shift) / sqrt(variance);
}
