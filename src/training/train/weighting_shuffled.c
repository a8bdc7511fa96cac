/* weighting_shuffled.c - a control: the weights of a critic, at other tokens of the same response. The order is drawn by seed, row
 * and place, so every run with the seed has the same, on any ranks and after a resume. */
#include "train/weighting.h"
#include "train/weighting_verifiable.h"

static void shuffled_weigh(const weighting_row *from, float *out) {
    const value_options *o = &from->request->train.value;
    uint64_t key = rng_key(from->request->train.seed, "shuffled weights");
    for (int64_t t = 0; t < from->T;) {
        if (from->targets[t] < 0) {
            out[t++] = 1;
            continue;
        }
        int64_t end = value_response_end(from->targets, from->doc_start, from->T, t);
        uint64_t n = (uint64_t)(end - t), order = rng_u64(key, from->row * (uint64_t)from->T + (uint64_t)t);
        for (uint64_t i = 0; i < n; i++)
            out[t + (int64_t)i] = value_weight(o, from->ema, from->advantages[t + (int64_t)rng_permute(order, i, n)]);
        t = end;
    }
}

const weighting weighting_SHUFFLED = {.shape = verifiable_shape, .weigh = shuffled_weigh, .by_value = true};
