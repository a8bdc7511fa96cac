/* value_weights.c - advantages, their moving averages, and the weights that follow. */
#include "train/value_weights.h"

#include <math.h>

#define VARIANCE_LEAST 1e-8

void value_ema_update(value_ema *e, double mean, double deviation, int64_t warmup, double momentum) {
    int64_t c = ++e->updates;
    double keep = c <= warmup ? (double)(c - 1) / (double)warmup : 1 - momentum;
    e->mean = keep * e->mean + (1 - keep) * mean;
    e->deviation = keep * e->deviation + (1 - keep) * deviation;
}

int64_t value_response_end(const int32_t *targets, const int32_t *doc_start, int64_t T, int64_t t) {
    int32_t document = doc_start[t];
    while (t < T && targets[t] >= 0 && doc_start[t] == document) t++;
    return t;
}

static void weigh_response(const value_options *o, const float *values, int64_t n, float *out) {
    float next = 0, lambda = (float)o->lambda;
    for (int64_t t = n - 1; t >= 0; t--) {
        float delta = o->terminal && t == n - 1 ? 1 - values[t] : values[t] - (t > 0 ? values[t - 1] : 0.5f);
        out[t] = next = delta + lambda * next;
    }
}

void value_advantages(const value_options *o, const int32_t *targets, const int32_t *doc_start, int64_t T,
                      const float *values, float *out) {
    for (int64_t t = 0; t < T;) {
        if (targets[t] < 0) {
            out[t++] = 0;
            continue;
        }
        int64_t end = value_response_end(targets, doc_start, T, t);
        weigh_response(o, values + t, end - t, out + t);
        t = end;
    }
}

float value_weight(const value_options *o, const value_ema *e, float advantage) {
    double z = ((double)advantage - e->mean) / (e->deviation + 1e-8);
    float w = (float)exp(z / o->beta);
    return fminf(fmaxf(w, WEIGHT_LEAST), WEIGHT_MOST);
}

void value_sums_add(value_sums *s, const int32_t *targets, int64_t T, const float *advantages, const float *weights) {
    for (int64_t t = 0; t < T; t++) {
        if (targets[t] < 0) continue;
        double a = advantages ? (double)advantages[t] : 0, w = (double)weights[t];
        s->weight_least = s->n > 0 ? fmin(s->weight_least, w) : w;
        s->weight_most = s->n > 0 ? fmax(s->weight_most, w) : w;
        s->n += 1;
        s->advantage += a;
        s->advantage_squares += a * a;
        s->weight += w;
        s->weight_squares += w * w;
        s->weight_logs += w * log(w);
    }
}

double value_mean(double n, double sum) { return n > 0 ? sum / n : NAN; }

double value_deviation(double n, double sum, double squares) {
    if (!(n > 0)) return NAN;
    double mean = sum / n;
    return sqrt(fmax(squares / n - mean * mean, VARIANCE_LEAST));
}

/* With p = w / W: -sum p ln p = ln W - (sum w ln w) / W. */
double value_entropy(const value_sums *s) { return s->n > 0 ? log(s->weight) - s->weight_logs / s->weight : NAN; }
