/* weighting_random.c - a control: weights that say nothing of their tokens, with the mean and the spread of those of a critic.
 *
 * Log-normal with mean 1.328 and standard deviation 0.981, clamped like a critic's. Drawn by row and position, so every run with the
 * seed draws the same, on any ranks and after a resume. */
#include "train/weighting.h"

#include <math.h>

static const double MEAN = 1.328, DEVIATION = 0.981;

static status random_shape(train_request *r) {
    r->plan.token_weights = true;
    return OK;
}

static void random_weigh(const weighting_row *from, float *out) {
    int64_t T = from->T;
    double variance = log1p(DEVIATION * DEVIATION / (MEAN * MEAN)), mu = log(MEAN) - variance / 2;
    uint64_t key = rng_key(from->request->train.seed, "random weights");
    rng_normal_fill(key, from->row * (uint64_t)T, out, (size_t)T, (float)mu, (float)sqrt(variance));
    for (int64_t t = 0; t < T; t++) out[t] = fminf(fmaxf(expf(out[t]), WEIGHT_LEAST), WEIGHT_MOST);
}

const weighting weighting_RANDOM = {.shape = random_shape, .weigh = random_weigh};
