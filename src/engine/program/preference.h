#pragma once
/* preference.h - the loss of one example of a preference and its derivatives, one text for host and device.
 *
 * Device code includes it too, which program.h is not for.
 *
 * In double: an example is one number out of thousands of tokens, and the two devices then differ by a rounding of exp and log
 * alone. Means are taken over the tokens of a response, so the derivative by each of its tokens is divided by their number. */
#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDACC__
#define PREFERENCE_MATH static inline __host__ __device__
#else
#include <math.h>
#define PREFERENCE_MATH static inline
#endif

/* Losses over pairs of responses, and over single ones that are good or bad (kto). c, r: log-probabilities of the chosen and the
 * rejected response, less those of the reference where there is one; a bar is a mean per token.
 *     dpo    h = beta (c - r), -(1 - e) log sigmoid(h) - e log sigmoid(-h)
 *     ipo    (c_bar - r_bar - 1 / (2 beta))^2
 *     orpo   -c_bar - lambda log sigmoid(log odds of c_bar - log odds of r_bar); no reference
 *     simpo  -log sigmoid(beta (c_bar - r_bar) - gamma); no reference
 *     kto    lambda_good (1 - sigmoid(beta c - z)), lambda_bad (1 - sigmoid(z - beta r)); z = max(0, beta mean c) over responses
 *            to other prompts */
typedef enum preference_kind {
    PREFERENCE_NONE,
    PREFERENCE_DPO,
    PREFERENCE_IPO,
    PREFERENCE_ORPO,
    PREFERENCE_SIMPO,
    PREFERENCE_KTO,
    PREFERENCE_KIND_COUNT
} preference_kind;
typedef struct preference_options {
    preference_kind kind;
    float beta, smoothing;         /* smoothing: e of dpo */
    float gamma;                   /* simpo */
    float lambda;                  /* orpo */
    float lambda_good, lambda_bad; /* kto */
} preference_options;
#ifndef __CUDACC__
const char *preference_name(preference_kind k);
#endif
PREFERENCE_MATH bool preference_compares(preference_kind k) { /* with a reference */
    return k == PREFERENCE_DPO || k == PREFERENCE_IPO || k == PREFERENCE_KTO;
}
/* A token's part in a row: PREFERENCE_PARTS * example + part; -1 where there is no target. */
enum { PREFERENCE_CHOSEN, PREFERENCE_REJECTED, PREFERENCE_OTHER, PREFERENCE_PARTS = 4 };

/* What every loss leaves of a step: the sums that CLIP and reports are made of. */
enum { SUM_WEIGHTED_LOSS, SUM_VALID, SUM_WEIGHTS, SUM_LOSS, SUM_COUNT };
/* Sums of PREFERENCE, behind these: over examples; SUM_VALID counts examples there. */
enum {
    SUM_REWARD_CHOSEN = SUM_COUNT, /* beta times the log-probability over the reference's */
    SUM_REWARD_REJECTED,
    SUM_ACCURATE, /* pairs whose chosen response has the larger reward */
    SUM_LOGP_CHOSEN,
    SUM_LOGP_REJECTED,
    SUM_CHOSEN, /* kto: good and bad ones; pairs: both count all */
    SUM_REJECTED,
    SUM_KL, /* kto: z of every micro-batch, times its examples */
    PREFERENCE_SUM_COUNT
};

/* Of one part of an example: sums over its tokens of the loss, which is minus the log-probability. */
typedef struct preference_part {
    double loss, reference;
    int n;
} preference_part;

typedef struct preference_result {
    double loss;
    double d[2];      /* by the sum of the token losses of the chosen and of the rejected response */
    double reward[2]; /* 0 of a part that is not there */
} preference_result;

PREFERENCE_MATH double preference_sigmoid(double x) {
    if (x >= 0) return 1 / (1 + exp(-x));
    double e = exp(x);
    return e / (1 + e);
}

/* log sigmoid(x), without overflow and without losing small numbers. */
PREFERENCE_MATH double preference_log_sigmoid(double x) { return x >= 0 ? -log1p(exp(-x)) : x - log1p(exp(x)); }

/* How much likelier than for the reference a response is, in nats. */
PREFERENCE_MATH double preference_gain(const preference_part *p) { return p->reference - p->loss; }

/* log(p / (1 - p)) of p = exp(x); x is at most a hair below 0, where a certain response has rounded to 0. */
PREFERENCE_MATH double preference_log_odds(double x) { return x - log(-expm1(x < -1e-12 ? x : -1e-12)); }

PREFERENCE_MATH preference_result preference_pair(const preference_options *o, const preference_part *c,
                                                  const preference_part *r) {
    preference_result out = {0, {0, 0}, {0, 0}};
    double n_c = c->n, n_r = r->n, beta = (double)o->beta;
    if (o->kind == PREFERENCE_DPO) {
        double e = (double)o->smoothing, h = beta * (preference_gain(c) - preference_gain(r));
        double slope = (1 - e) * preference_sigmoid(-h) - e * preference_sigmoid(h); /* minus dL/dh */
        out.loss = -(1 - e) * preference_log_sigmoid(h) - e * preference_log_sigmoid(-h);
        out.d[0] = slope * beta, out.d[1] = -slope * beta;
    } else if (o->kind == PREFERENCE_IPO) {
        double h = preference_gain(c) / n_c - preference_gain(r) / n_r - 1 / (2 * beta);
        out.loss = h * h;
        out.d[0] = -2 * h / n_c, out.d[1] = 2 * h / n_r;
    } else if (o->kind == PREFERENCE_SIMPO) {
        double h = beta * (r->loss / n_r - c->loss / n_c) - (double)o->gamma, slope = preference_sigmoid(-h) * beta;
        out.loss = -preference_log_sigmoid(h);
        out.d[0] = slope / n_c, out.d[1] = -slope / n_r;
    } else { /* orpo */
        double c_bar = -c->loss / n_c, r_bar = -r->loss / n_r, lambda = (double)o->lambda;
        double h = preference_log_odds(c_bar) - preference_log_odds(r_bar), slope = lambda * preference_sigmoid(-h);
        out.loss = -c_bar - lambda * preference_log_sigmoid(h);
        out.d[0] = (1 - slope / expm1(c_bar < -1e-12 ? c_bar : -1e-12)) / n_c;
        out.d[1] = slope / expm1(r_bar < -1e-12 ? r_bar : -1e-12) / n_r;
    }
    bool compares =
        preference_compares(o->kind); /* with it, rewards are over whole responses, of ipo too, as TRL has them */
    double per_c = compares ? 1 : n_c, per_r = compares ? 1 : n_r;
    out.reward[0] = beta * (compares ? preference_gain(c) : -c->loss) / per_c;
    out.reward[1] = beta * (compares ? preference_gain(r) : -r->loss) / per_r;
    return out;
}

/* A good response, or a bad one; z: how far the policy is from the reference, no gradient passes through it. */
PREFERENCE_MATH preference_result preference_single(const preference_options *o, const preference_part *p, bool is_good,
                                                    double z) {
    preference_result out = {0, {0, 0}, {0, 0}};
    double beta = (double)o->beta, reward = beta * preference_gain(p),
           lambda = (double)(is_good ? o->lambda_good : o->lambda_bad);
    double s = preference_sigmoid(is_good ? reward - z : z - reward);
    int side = is_good ? 0 : 1;
    out.loss = lambda * (1 - s);
    out.d[side] = (is_good ? 1 : -1) * lambda * beta * s * (1 - s);
    out.reward[side] = reward;
    return out;
}

/* The tokens of a micro-batch as sequence ranks have gathered them: those of one rank behind the other, of every row the two runs
 * that sequence_token of program.h gives it. Sums go over a row in its own order, so they have the bits of one rank. */
typedef struct preference_rows {
    int64_t batch, seq_len; /* of whole rows */
    int n_ranks;            /* 1: rows lie one behind the other */
} preference_rows;
/* Where token t of a row lies. */
PREFERENCE_MATH int64_t preference_token(const preference_rows *r, int64_t row, int64_t t) {
    if (r->n_ranks == 1) return row * r->seq_len + t;
    int64_t own = r->seq_len / r->n_ranks, run = own / 2, chunk = t / run;
    bool front = chunk < r->n_ranks;
    int64_t rank = front ? chunk : 2 * r->n_ranks - 1 - chunk;
    return (rank * r->batch + row) * own + (front ? 0 : run) + t % run;
}

/* Sums over the tokens of each response of a row, into PREFERENCE_PARTS parts for every example; returns the number of examples.
 * segments, losses, reference: of all rows; reference: NULL where the loss has none. */
PREFERENCE_MATH int64_t preference_add_row(preference_part *parts, const preference_rows *rows, int64_t row,
                                           const int32_t *segments, const float *losses, const float *reference) {
    int64_t n = 0;
    for (int64_t t = 0; t < rows->seq_len; t++) {
        int64_t at = preference_token(rows, row, t);
        int32_t s = segments[at];
        if (s < 0) continue;
        for (; n <= s / PREFERENCE_PARTS; n++)
            for (int i = 0; i < PREFERENCE_PARTS; i++) parts[n * PREFERENCE_PARTS + i] = (preference_part){0, 0, 0};
        preference_part *p = &parts[s];
        p->loss += (double)losses[at];
        if (reference) p->reference += (double)reference[at];
        p->n++;
    }
    return n;
}

/* What z is made of: the gains of a row's responses to other prompts, and how many there are. */
typedef struct preference_gains {
    double sum, n;
} preference_gains;
PREFERENCE_MATH void preference_add_gains(preference_gains *g, const preference_part *parts, int64_t n_examples) {
    for (int64_t e = 0; e < n_examples; e++) {
        const preference_part *p = &parts[e * PREFERENCE_PARTS + PREFERENCE_OTHER];
        if (p->n) g->sum += preference_gain(p), g->n++;
    }
}
PREFERENCE_MATH double preference_z(const preference_options *o, preference_gains g) {
    return o->kind == PREFERENCE_KTO && g.n > 0 && g.sum > 0 ? (double)o->beta * g.sum / g.n : 0;
}

/* Adds the examples of a row to sums (PREFERENCE_SUM_COUNT). part.loss of its responses becomes the weight of their tokens. */
PREFERENCE_MATH void preference_judge(const preference_options *o, preference_part *parts, int64_t n_examples, double z,
                                      double *sums) {
    for (int64_t e = 0; e < n_examples; e++) {
        preference_part *p = &parts[e * PREFERENCE_PARTS];
        bool is_good = p[PREFERENCE_CHOSEN].n > 0;
        if (!is_good && !p[PREFERENCE_REJECTED].n) continue;
        preference_result r =
            o->kind == PREFERENCE_KTO
                ? preference_single(o, &p[is_good ? PREFERENCE_CHOSEN : PREFERENCE_REJECTED], is_good, z)
                : preference_pair(o, &p[PREFERENCE_CHOSEN], &p[PREFERENCE_REJECTED]);
        sums[SUM_WEIGHTED_LOSS] += r.loss;
        sums[SUM_VALID] += 1;
        sums[SUM_WEIGHTS] += 1;
        sums[SUM_LOSS] += r.loss;
        sums[SUM_ACCURATE] += r.reward[PREFERENCE_CHOSEN] > r.reward[PREFERENCE_REJECTED];
        sums[SUM_KL] += z;
        for (int side = 0; side < 2; side++) {
            if (!p[side].n) continue;
            sums[SUM_REWARD_CHOSEN + side] += r.reward[side];
            sums[SUM_LOGP_CHOSEN + side] -= p[side].loss;
            sums[SUM_CHOSEN + side] += 1;
            p[side].loss = r.d[side];
        }
    }
}
