/* sample.c - filters and the draw. Scores are fp32 as in transformers; sums of probabilities are doubles. */
#include "generate/sample.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

enum { HEAD = 64 }; /* candidates that top-p sorts first; four times as many each time they do not hold enough */

void sample_scratch_init(sample_scratch *w, size_t n_vocab) {
    *w = (sample_scratch){.n_vocab = n_vocab};
    w->candidates = mem_alloc(n_vocab * sizeof *w->candidates);
    w->seen = mem_alloc(n_vocab);
}

void sample_scratch_fini(sample_scratch *w) {
    free(w->candidates);
    free(w->seen);
    *w = (sample_scratch){0};
}

uint64_t sample_scratch_bytes(size_t n_vocab) { return (uint64_t)n_vocab * (sizeof(sample_candidate) + 1); }

double sample_uniform(uint64_t seed, uint64_t prompt, uint64_t index, uint64_t position) {
    uint32_t word[4];
    rng_philox(rng_key(seed, "sample"), prompt, index << 32 | (position & 0xffffffffu), word);
    return (double)(((uint64_t)word[0] << 32 | word[1]) >> 11) * 0x1p-53;
}

/* ---- order ------------------------------------------------------------------------------------------------------- */

/* Larger scores first, equal ones by id: a total order, so every selection has one result. */
static bool ranks_before(const sample_candidate *a, const sample_candidate *b) {
    return a->score != b->score ? a->score > b->score : a->id < b->id;
}
static int by_score(const void *a, const void *b) { return ranks_before(a, b) ? -1 : 1; }
static int by_id(const void *a, const void *b) {
    return ((const sample_candidate *)a)->id < ((const sample_candidate *)b)->id ? -1 : 1;
}

static void swap(sample_candidate *a, sample_candidate *b) {
    sample_candidate t = *a;
    *a = *b;
    *b = t;
}

/* Moves the k first in order to the front, in any order among themselves. Median of three: the rows that occur are close
 * to random or close to sorted, and both take linear time. */
static void select_first(sample_candidate *c, size_t n, size_t k) {
    size_t lo = 0, hi = n; /* the border k lies in [lo, hi) */
    while (hi - lo > 1) {
        size_t mid = lo + (hi - lo) / 2;
        if (ranks_before(&c[mid], &c[lo])) swap(&c[mid], &c[lo]);
        if (ranks_before(&c[hi - 1], &c[lo])) swap(&c[hi - 1], &c[lo]);
        if (ranks_before(&c[hi - 1], &c[mid])) swap(&c[hi - 1], &c[mid]);
        sample_candidate pivot = c[mid];
        size_t i = lo, j = hi - 1;
        while (true) {
            while (ranks_before(&c[i], &pivot)) i++;
            while (ranks_before(&pivot, &c[j])) j--;
            if (i >= j) break;
            swap(&c[i++], &c[j--]);
        }
        /* [lo, i) not after the pivot, [i, hi) not before it; both hold something, as c[lo] is before c[mid] */
        if (k <= i) hi = i;
        else lo = i;
    }
}

/* ---- filters ----------------------------------------------------------------------------------------------------- */

static float top_score(const sample_candidate *c, size_t n) {
    float top = -INFINITY;
    for (size_t i = 0; i < n; i++) top = fmaxf(top, c[i].score);
    return top;
}

static void penalize(sample_scratch *w, const int32_t *history, size_t n, float penalty) {
    for (size_t i = 0; i < n; i++) {
        sample_candidate *c = &w->candidates[history[i]];
        if (w->seen[history[i]]) continue;
        w->seen[history[i]] = 1;
        c->score = c->score < 0 ? c->score * penalty : c->score / penalty;
    }
    for (size_t i = 0; i < n; i++) w->seen[history[i]] = 0;
}

/* Those with at least this score move to the front. */
static size_t keep_scores(sample_candidate *c, size_t n, float least) {
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (c[i].score >= least) c[kept++] = c[i];
    return kept;
}

static size_t filter_top_k(sample_candidate *c, size_t n, size_t k) {
    if (k == 0 || k >= n) return n;
    select_first(c, n, k);
    float least = c[0].score;
    for (size_t i = 1; i < k; i++) least = fminf(least, c[i].score);
    return keep_scores(c, n, least); /* equals of the last one stay, wherever they are */
}

static size_t filter_top_p(sample_candidate *c, size_t n, double p) {
    if (p >= 1) return n;
    float top = top_score(c, n);
    double total = 0, held = 0;
    for (size_t i = 0; i < n; i++) total += exp((double)(c[i].score - top));
    for (size_t done = 0, head = HEAD; done < n; head *= 4) {
        size_t end = MIN(done + head, n);
        if (end < n) select_first(c + done, n - done, end - done);
        qsort(c + done, end - done, sizeof *c, by_score);
        for (; done < end; done++) {
            if (done > 0 && held >= p * total) return done;
            held += exp((double)(c[done].score - top));
        }
    }
    return n;
}

static size_t filter_min_p(sample_candidate *c, size_t n, double p) {
    if (p <= 0) return n;
    float top = top_score(c, n);
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (exp((double)(c[i].score - top)) >= p) c[kept++] = c[i];
    return kept;
}

/* Scores divided by the temperature, as transformers does in fp32. Below 0.001 the quotients may leave the range of fp32;
 * then the differences to the largest are divided, in double, which are the same probabilities. */
static void apply_temperature(sample_candidate *c, size_t n, double temperature) {
    if (temperature >= DRAW_TEMPERATURE_LEAST) {
        for (size_t i = 0; i < n; i++) c[i].score /= (float)temperature;
        return;
    }
    double top = top_score(c, n);
    for (size_t i = 0; i < n; i++) c[i].score = (float)fmax(((double)c[i].score - top) / temperature, -FLT_MAX);
}

size_t sample_filter(sample_scratch *w, const float *logits, const int32_t *history, size_t n_history,
                     const sampling_options *o) {
    sample_candidate *c = w->candidates;
    size_t n = w->n_vocab;
    for (size_t i = 0; i < n; i++) c[i] = (sample_candidate){logits[i], (int32_t)i};
    if (o->repetition_penalty != 1) penalize(w, history, n_history, (float)o->repetition_penalty);
    if (o->temperature == 0) return n;
    if (o->temperature != 1) apply_temperature(c, n, o->temperature);
    size_t left = filter_top_k(c, n, (size_t)o->top_k);
    left = filter_top_p(c, left, o->top_p);
    left = filter_min_p(c, left, o->min_p);
    if (left < n) qsort(c, left, sizeof *c, by_id);
    return left;
}

/* ---- the draw ---------------------------------------------------------------------------------------------------- */

static int32_t draw(const sample_candidate *c, size_t n, double uniform) {
    float top = top_score(c, n);
    double total = 0, sum = 0;
    int32_t last = c[0].id; /* rounding may leave the sum a little under its target: the last that is possible */
    for (size_t i = 0; i < n; i++) total += exp((double)(c[i].score - top));
    for (size_t i = 0; i < n; i++) {
        double p = exp((double)(c[i].score - top));
        if (p == 0) continue;
        last = c[i].id;
        if ((sum += p) > uniform * total) return last;
    }
    return last;
}

static int32_t largest(const sample_candidate *c, size_t n) {
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (c[i].score > c[best].score) best = i;
    return c[best].id;
}

sample_result sample_drawn(const double drawn[DRAWN_COUNT]) {
    double log_sum = drawn[DRAWN_LOG_SUM];
    if (!isfinite(log_sum)) return (sample_result){-1, NAN, NAN};
    return (sample_result){(int32_t)drawn[DRAWN_TOKEN], drawn[DRAWN_LOGIT] - log_sum, drawn[DRAWN_TEMPERED]};
}

/* Of a token under the logits divided by the temperature. */
static double tempered(const sample_scratch *w, const float *logits, int32_t token, double temperature) {
    float top = -INFINITY;
    double sum = 0;
    for (size_t i = 0; i < w->n_vocab; i++) top = fmaxf(top, logits[i]);
    for (size_t i = 0; i < w->n_vocab; i++) sum += exp(((double)logits[i] - (double)top) / temperature);
    return ((double)logits[token] - (double)top) / temperature - log(sum);
}

sample_result sample_draw(sample_scratch *w, const float *logits, double log_sum, const int32_t *history,
                          size_t n_history, const sampling_options *o, double uniform) {
    if (!isfinite(log_sum)) return (sample_result){-1, NAN, NAN};
    size_t n = sample_filter(w, logits, history, n_history, o);
    int32_t token = o->temperature == 0 ? largest(w->candidates, n) : draw(w->candidates, n, uniform);
    double plain = (double)logits[token] - log_sum, t = o->temperature;
    return (sample_result){token, plain, t == 0 || t == 1 ? plain : tempered(w, logits, token, t)};
}
