#pragma once
/* value_weights.h - private to train: weights of tokens from the values that a critic gives them.
 *
 * A response is a run of trained tokens of one document. v_t is the value after its token t, v_-1 = 0.5 the value before any:
 *     delta_t = v_t - v_(t-1)              what token t changed
 *     A_t = delta_t + lambda A_(t+1)       with what comes after it, fp32
 *     w_t = clamp(exp((A_t - mean) / (deviation + 1e-8) / beta), 0.1, 3)
 * mean and deviation are moving averages over the steps before this one, of the advantages of all tokens of a step. */
#include "train/train.h"

/* Weights of tokens, from a critic or random, stay between these. */
#define WEIGHT_LEAST 0.1f
#define WEIGHT_MOST 3.0f

/* Moving averages of the advantages of a step. */
typedef struct value_ema {
    int64_t updates;
    double mean, deviation;
} value_ema;
enum { VALUE_WARMUP = 10 };
#define VALUE_MOMENTUM 0.1
static inline value_ema value_ema_start(void) { return (value_ema){0, 0, 1}; }
/* Update c = 1, 2, ...: the first `warmup` keep (c - 1) / warmup of what was, later ones 1 - momentum. */
void value_ema_update(value_ema *e, double mean, double deviation, int64_t warmup, double momentum);

/* values: of every target, by the place of the target in a row of T; 0 is written where there is no target. */
void value_advantages(const value_options *o, const int32_t *targets, const int32_t *doc_start, int64_t T,
                      const float *values, float *out);
float value_weight(const value_options *o, const value_ema *e, float advantage);

/* Statistics of the tokens of a step, added in the order of its rows. */
typedef struct value_sums {
    double n;
    double advantage, advantage_squares;
    double weight, weight_squares, weight_logs, weight_least, weight_most; /* logs: of w ln w */
} value_sums;
/* advantages NULL: there are none. */
void value_sums_add(value_sums *s, const int32_t *targets, int64_t T, const float *advantages, const float *weights);
double value_mean(double n, double sum);                      /* NaN of none */
double value_deviation(double n, double sum, double squares); /* population; the variance is at least 1e-8 */
double value_entropy(const value_sums *s);                    /* of the weights as shares of their sum, in nats */
/* The end of the response that begins at target t. */
int64_t value_response_end(const int32_t *targets, const int32_t *doc_start, int64_t T, int64_t t);
