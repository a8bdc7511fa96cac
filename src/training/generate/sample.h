#pragma once
/* sample.h - private to generate: the next token from a row of logits, on the host. Without filters DRAW_TOKENS draws where the logits
 * are, and sample_drawn reads what it found.
 *
 * The steps and their order are those of transformers 5 (logits processors): repetition penalty; then, when sampling,
 * temperature, top-k, top-p, min-p. Ties at the border of top-k all stay; top-p keeps a token when the tokens before it
 * hold less than top_p. Nothing sorts the vocabulary: top-k is a selection, top-p sorts growing heads of it.
 *
 *     sample_scratch w;
 *     sample_scratch_init(&w, n_vocab);
 *     sample_result r = sample_draw(&w, logits, log_sum, tokens, n_tokens, &options, sample_uniform(seed, ...));
 *     sample_scratch_fini(&w);
 */
#include "generate/generate.h"

typedef struct sample_candidate {
    float score; /* after penalty and temperature */
    int32_t id;
} sample_candidate;
typedef struct sample_scratch { /* of one thread; nothing is allocated after init */
    size_t n_vocab;
    sample_candidate *candidates;
    uint8_t *seen; /* per token: stands in the sequence */
} sample_scratch;
void sample_scratch_init(sample_scratch *w, size_t n_vocab);
void sample_scratch_fini(sample_scratch *w);
uint64_t sample_scratch_bytes(size_t n_vocab);

/* In [0, 1), a function of its arguments alone. */
double sample_uniform(uint64_t seed, uint64_t prompt, uint64_t index, uint64_t position);
/* The candidates that are left, ascending by id, in w->candidates; how many. history: prompt and completion so far. */
size_t sample_filter(sample_scratch *w, const float *logits, const int32_t *history, size_t n_history,
                     const sampling_options *o);
typedef struct sample_result {
    int32_t token;          /* -1: the logits are not finite */
    double log_probability; /* under the logits as they are */
    double tempered;        /* ... divided by the temperature; greedy: as they are */
} sample_result;
/* log_sum: the log of the sum of all exp(logit), not finite when the logits are not. */
sample_result sample_draw(sample_scratch *w, const float *logits, double log_sum, const int32_t *history,
                          size_t n_history, const sampling_options *o, double uniform);
/* Does the draw depend on more than the temperature? Otherwise DRAW_TOKENS makes it where the logits are. */
static inline bool sample_filters(const sampling_options *o) {
    if (o->repetition_penalty != 1) return true;
    if (o->temperature == 0) return false;
    return o->temperature < DRAW_TEMPERATURE_LEAST || o->top_k > 0 || o->top_p < 1 || o->min_p > 0;
}
sample_result sample_drawn(const double drawn[DRAWN_COUNT]);
