#pragma once
/* critic.h - the losses of a critic over solutions, correct and wrong, and their derivatives; one text for host and
 * device.
 *
 * A critic gives a value to every token: how good a solution looks after that token. Of a response only the values of
 * its own tokens count, its end token among them. In a row, the response that target t belongs to is segments[t]
 * (preference.h), and the token itself stands behind it: its value is values[t + 1]. Rows lie one behind the other, or
 * as sequence ranks have gathered them (preference_rows): sums go over a row in its own order, so they have the bits of
 * one rank. pairwise  -log sigmoid(mean value of the correct solution - mean value of the wrong one), over pairs lambda
 * G = R at the last token (1: correct, 0: wrong), before it G_t = gamma ((1 - lam) V_t+1 + lam G_t+1); the mean over
 * the tokens of (V - G)^2, or of its smooth absolute value, over solutions. G is a constant: no gradient passes
 * through. In double, in the order of tokens, as preference.h and for the same reason. */
#include "program/preference.h"

typedef enum critic_kind { CRITIC_NONE, CRITIC_PAIRWISE, CRITIC_LAMBDA, CRITIC_KIND_COUNT } critic_kind;
typedef struct critic_options {
    critic_kind kind;
    float gamma, lam; /* lambda */
    bool smooth;      /* lambda: smooth-l1 with CRITIC_BETA instead of squares */
} critic_options;
#define CRITIC_BETA 0.5
enum { VALUE_BLOCK = 256 }; /* tokens whose part of the gradient of a value head's last layer is one sum */

/* Sums of CRITIC, behind those that every loss has. SUM_VALID counts pairs, or with lambda solutions. */
enum {
    SUM_VALUE_CORRECT = SUM_COUNT, /* the mean value of every correct solution */
    SUM_VALUE_WRONG,
    SUM_CORRECT, /* how many there are */
    SUM_WRONG,
    SUM_PAIRS,
    SUM_RANKED, /* pairs whose correct solution has the larger mean value */
    CRITIC_SUM_COUNT
};

/* One response of a row. */
typedef struct critic_part {
    double sum;        /* of its values; afterwards the derivative of the loss by each of them (pairwise) */
    double next;       /* lambda: the return of the token behind the one at hand ... */
    double next_value; /* ... and its value */
    int32_t n;
    int32_t is_behind; /* is there one? */
} critic_part;

PREFERENCE_MATH double critic_error(const critic_options *o, double x, double *d) {
    if (!o->smooth) {
        *d = 2 * x;
        return x * x;
    }
    double size = x < 0 ? -x : x;
    if (size < CRITIC_BETA) {
        *d = x / CRITIC_BETA;
        return x * x / (2 * CRITIC_BETA);
    }
    *d = x < 0 ? -1 : 1;
    return size - CRITIC_BETA / 2;
}

/* The values of the targets of a row from those of its positions: the value of a target is the one behind it, after it was read. The
 * token of a target in the last place is in no row, and gets the value before it. 0 where there is no target. */
PREFERENCE_MATH void critic_target_values(int64_t T, const int32_t *targets, const float *values, float *out) {
    for (int64_t t = 0; t < T; t++) out[t] = targets[t] < 0 ? 0 : values[t + 1 < T ? t + 1 : t];
}

/* Adds a loss of one pair, or of one solution. */
PREFERENCE_MATH void critic_add_loss(double *sums, double loss) {
    sums[SUM_WEIGHTED_LOSS] += loss;
    sums[SUM_LOSS] += loss;
    sums[SUM_VALID] += 1;
    sums[SUM_WEIGHTS] += 1;
}

/* Means of the responses of a row, into parts (PREFERENCE_PARTS for every example); returns the number of examples. */
PREFERENCE_MATH int64_t critic_add_row(critic_part *parts, const preference_rows *rows, int64_t row,
                                       const int32_t *segments, const float *values) {
    int64_t n = 0;
    for (int64_t t = 0; t + 1 < rows->seq_len; t++) {
        int32_t s = segments[preference_token(rows, row, t)];
        if (s < 0) continue;
        for (; n <= s / PREFERENCE_PARTS; n++)
            for (int i = 0; i < PREFERENCE_PARTS; i++) parts[n * PREFERENCE_PARTS + i] = (critic_part){0, 0, 0, 0, 0};
        parts[s].sum += (double)values[preference_token(rows, row, t + 1)];
        parts[s].n++;
    }
    return n;
}

PREFERENCE_MATH void critic_judge_pairs(const critic_options *o, critic_part *parts, int64_t n_examples, double *sums) {
    for (int64_t e = 0; e < n_examples; e++) {
        critic_part *c = &parts[e * PREFERENCE_PARTS + PREFERENCE_CHOSEN],
                    *r = &parts[e * PREFERENCE_PARTS + PREFERENCE_REJECTED];
        double mean_c = c->n ? c->sum / c->n : 0, mean_r = r->n ? r->sum / r->n : 0, h = mean_c - mean_r;
        if (c->n) sums[SUM_VALUE_CORRECT] += mean_c, sums[SUM_CORRECT] += 1;
        if (r->n) sums[SUM_VALUE_WRONG] += mean_r, sums[SUM_WRONG] += 1;
        bool is_pair = c->n && r->n;
        if (is_pair) sums[SUM_PAIRS] += 1, sums[SUM_RANKED] += h > 0;
        if (o->kind != CRITIC_PAIRWISE) continue;
        double slope = is_pair ? preference_sigmoid(-h) : 0;
        if (is_pair) critic_add_loss(sums, -preference_log_sigmoid(h));
        if (c->n) c->sum = -slope / c->n;
        if (r->n) r->sum = slope / r->n;
    }
}

/* Back to front, so that the return of the next token is known. */
PREFERENCE_MATH void critic_judge_returns(const critic_options *o, critic_part *parts, const preference_rows *rows,
                                          int64_t row, const int32_t *segments, const float *values, double seed,
                                          float *d, double *loss) {
    double gamma = (double)o->gamma, lam = (double)o->lam;
    for (int64_t t = rows->seq_len - 1; t-- > 0;) {
        int32_t s = segments[preference_token(rows, row, t)];
        int64_t behind = preference_token(rows, row, t + 1);
        if (s < 0) continue;
        critic_part *p = &parts[s];
        double value = (double)values[behind], slope;
        double target = p->is_behind ? gamma * ((1 - lam) * p->next_value + lam * p->next)
                                     : (double)(s % PREFERENCE_PARTS == PREFERENCE_CHOSEN);
        *loss += critic_error(o, value - target, &slope) / p->n;
        if (d) d[behind] = (float)(slope / p->n * seed);
        p->next = target, p->next_value = value, p->is_behind = 1;
    }
}

/* The whole of a row: adds to sums (CRITIC_SUM_COUNT), and writes the derivatives by the values, times seed, where d is not NULL.
 * segments, values, d: of all rows. parts: PREFERENCE_PARTS for every token of a row. */
PREFERENCE_MATH void critic_row(const critic_options *o, critic_part *parts, const preference_rows *rows, int64_t row,
                                const int32_t *segments, const float *values, double seed, float *d, double *sums) {
    int64_t n = critic_add_row(parts, rows, row, segments, values), T = rows->seq_len;
    for (int64_t t = 0; d && t < T; t++) d[preference_token(rows, row, t)] = 0;
    critic_judge_pairs(o, parts, n, sums);
    if (o->kind == CRITIC_PAIRWISE) {
        for (int64_t t = 0; d && t + 1 < T; t++) {
            int32_t s = segments[preference_token(rows, row, t)];
            if (s >= 0) d[preference_token(rows, row, t + 1)] = (float)(parts[s].sum * seed);
        }
        return;
    }
    double loss = 0, n_solutions = 0;
    for (int64_t i = 0; i < n * PREFERENCE_PARTS; i++) n_solutions += parts[i].n > 0;
    critic_judge_returns(o, parts, rows, row, segments, values, seed, d, &loss);
    sums[SUM_WEIGHTED_LOSS] += loss;
    sums[SUM_LOSS] += loss;
    sums[SUM_VALID] += n_solutions;
    sums[SUM_WEIGHTS] += n_solutions;
}
