#pragma once
/* policy.h - the loss of one token of a completion in reinforcement learning and its derivative, one text for host and device.
 *
 * Device code includes it too, which program.h is not for.
 *
 * A completion i has n tokens with the log-probabilities logp, those of the policy that wrote it, old, and advantages A. With
 * the ratio rho of one level (policy_level) the loss of a token is
 *
 *     c * -min(rho A, clip(rho, 1 - low, 1 + high) A)  +  beta (exp(ref - logp) - (ref - logp) - 1)
 *
 * and that of a step the sum over all tokens, each divided as policy_mean says. c = min(ratio of logp before the update to the
 * rollout's own, cap), of the same level as rho and without a gradient. Without `old` this is the first update of a fresh
 * rollout: rho is exactly 1. All log-probabilities are at the sampling temperature.
 *
 * In double: the ratio of a completion is one number out of thousands of tokens, and the two devices then differ by a rounding of
 * exp alone. */
#include "program/preference.h"

#ifdef __CUDACC__
#define POLICY_MATH static inline __host__ __device__
#else
#define POLICY_MATH static inline
#endif

typedef enum policy_level {
    POLICY_TOKEN,    /* rho of every token by itself */
    POLICY_SEQUENCE, /* exp of the sum over the completion */
    POLICY_MEAN,     /* exp of the mean over the completion */
    POLICY_LEVEL_COUNT
} policy_level;
/* What the losses of tokens are divided by; the division by what a whole step has (completions, tokens) is CLIP's. */
typedef enum policy_mean {
    POLICY_OF_COMPLETIONS, /* by the tokens of the completion, and by the completions */
    POLICY_OF_LENGTH,      /* by a constant length, and by the completions */
    POLICY_OF_TOKENS,      /* by all tokens */
    POLICY_MEAN_COUNT
} policy_mean;

typedef struct policy_options {
    bool on;     /* false: there is no such loss */
    bool is_old; /* the log-probabilities of the policy that wrote the completions are an input */
    policy_level level;
    policy_mean mean;
    float low, high;
    float beta;        /* of the KL in the loss; 0: none there */
    float cap;         /* of the importance weight; 0: no such weight */
    float length;      /* POLICY_OF_LENGTH */
    float temperature; /* of all log-probabilities */
} policy_options;

/* Segments of a row: the number of the token's completion in its row, rising from 0; POLICY_NONE; or POLICY_COUNTED: there is no
 * token here, and one more is divided by (a completion that is masked). */
enum { POLICY_NONE = -1, POLICY_COUNTED = -2 };

/* Sums of POLICY, behind those that every loss leaves (preference.h). SUM_VALID is what is divided by. */
enum {
    SUM_POLICY_TOKENS = SUM_COUNT,
    SUM_POLICY_COMPLETIONS, /* that have tokens */
    SUM_POLICY_KL,          /* exp(ref - logp) - (ref - logp) - 1, of every token */
    SUM_POLICY_LOW, /* ratios that are clipped: of every token, or of every completion where the ratio is a completion's */
    SUM_POLICY_HIGH,
    SUM_POLICY_RATIO,
    POLICY_SUM_COUNT
};

/* Minus the log-probabilities of a token, as the losses of a forward pass; NAN where there is none. */
typedef struct policy_token {
    float loss, old, reference, rollout;
    float advantage;
} policy_token;

/* Sums over the tokens of a completion. */
typedef struct policy_part {
    double ratio, importance; /* logs */
    int64_t n;
} policy_part;

typedef struct policy_result {
    double weight; /* the derivative of the loss by this token's loss */
    double loss, kl, low, high, ratio;
} policy_result;

/* NaN means NaN in every build of the kernels. */
POLICY_MATH bool policy_is_known(float x) { return x == x; }

POLICY_MATH double policy_log_ratio(const policy_token *t) {
    return policy_is_known(t->old) ? (double)t->old - (double)t->loss : 0;
}
POLICY_MATH double policy_log_importance(const policy_token *t) {
    if (!policy_is_known(t->rollout)) return 0;
    return (double)t->rollout - (double)(policy_is_known(t->old) ? t->old : t->loss);
}

POLICY_MATH void policy_add(policy_part *p, const policy_token *t) {
    p->ratio += policy_log_ratio(t);
    p->importance += policy_log_importance(t);
    p->n++;
}

/* The exponent of a ratio of this level: x of the token itself, sum of its completion. */
POLICY_MATH double policy_exponent(policy_level level, double x, double sum, double n) {
    return level == POLICY_TOKEN ? x : level == POLICY_SEQUENCE ? sum : sum / n;
}

POLICY_MATH policy_result policy_judge(const policy_options *o, const policy_part *p, const policy_token *t) {
    policy_result r = {0, 0, 0, 0, 0, 0};
    double n = (double)p->n, A = (double)t->advantage, c = 1;
    double rho = exp(policy_exponent(o->level, policy_log_ratio(t), p->ratio, n));
    double low = 1 - (double)o->low, high = 1 + (double)o->high;
    double clipped = rho < low ? low : rho > high ? high : rho;
    double share = o->mean == POLICY_OF_COMPLETIONS ? 1 / n : o->mean == POLICY_OF_LENGTH ? 1 / (double)o->length : 1;
    if (o->cap > 0) {
        c = exp(policy_exponent(o->level, policy_log_importance(t), p->importance, n));
        c = c > (double)o->cap ? (double)o->cap : c;
    }
    bool follows = rho * A <= clipped * A; /* else the minimum is the constant */
    r.loss = -c * (follows ? rho : clipped) * A * share;
    if (follows) r.weight = c * rho * A * share * (o->level == POLICY_SEQUENCE ? n : 1);
    r.ratio = rho;
    r.low = rho < low && A < 0;
    r.high = rho > high && A > 0;
    if (policy_is_known(t->reference)) {
        double d = (double)t->loss - (double)t->reference, e = exp(d); /* ref - logp */
        r.kl = e - d - 1;
        r.loss += (double)o->beta * r.kl * share;
        r.weight += (double)o->beta * (e - 1) * share;
    }
    r.weight /= (double)o->temperature; /* the logits were divided by it, and so is their gradient */
    return r;
}

/* Adds a token to sums (POLICY_SUM_COUNT); is_first: of its completion. */
POLICY_MATH void policy_count(const policy_options *o, const policy_result *r, bool is_first, double *sums) {
    bool counts = o->mean == POLICY_OF_TOKENS || is_first;
    sums[SUM_WEIGHTED_LOSS] += r->loss;
    sums[SUM_VALID] += counts;
    sums[SUM_WEIGHTS] += counts;
    sums[SUM_LOSS] += r->loss;
    sums[SUM_POLICY_TOKENS] += 1;
    sums[SUM_POLICY_COMPLETIONS] += is_first;
    sums[SUM_POLICY_KL] += r->kl;
    if (o->level != POLICY_TOKEN && !is_first) return;
    sums[SUM_POLICY_LOW] += r->low;
    sums[SUM_POLICY_HIGH] += r->high;
    sums[SUM_POLICY_RATIO] += r->ratio;
}
/* POLICY_COUNTED. */
POLICY_MATH void policy_count_nothing(double *sums) {
    sums[SUM_VALID] += 1;
    sums[SUM_WEIGHTS] += 1;
}
