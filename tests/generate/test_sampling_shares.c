/* test_sampling_shares.c - tokens and whole sequences come as often as their probabilities say, by chi-square, with every filter.
 *
 * The probabilities are worked out here, in double and by sorting everything: temperature, then top-k, top-p and min-p. Counts are compared
 * with Pearson's statistic; bins that expect fewer than 10 are one. It has at most as many degrees of freedom as there are bins less one, d, and
 * by Laurent and Massart exceeds d + 2 sqrt(d x) + 2 x with a probability of at most exp(-x). x = 17 for all of a dozen comparisons: less than
 * 1e-6 together. Seeds are fixed, so a test that passes once passes always. */
#include "generate/sample.h"
#include "backend_choice.h"
#include "must.h"
#include "training.h"

#include <math.h>
#include <stdlib.h>

static const sampling_options filters[] = {
    {.temperature = 1, .top_p = 1},
    {.temperature = 0.5, .top_p = 1},
    {.temperature = 1.7, .top_p = 1},
    {.temperature = 1, .top_p = 1, .top_k = 5},
    {.temperature = 1, .top_p = 0.7},
    {.temperature = 1, .top_p = 1, .min_p = 0.1},
    {.temperature = 0.8, .top_p = 0.9, .top_k = 10, .min_p = 0.05},
};

/* ---- what is expected -------------------------------------------------------------------------------------------- */

typedef struct ranked {
    double score;
    int32_t id;
} ranked;

static int descending(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score ? 1 : -1) : x->id - y->id;
}

/* (n) probabilities; 0 of what is filtered out. */
static void expect(const float *logits, size_t n, const sampling_options *s, double *p) {
    ranked *all = mem_alloc(n * sizeof *all);
    for (size_t i = 0; i < n; i++) all[i] = (ranked){(double)logits[i] / s->temperature, (int32_t)i}, p[i] = 0;
    qsort(all, n, sizeof *all, descending);
    size_t left = s->top_k ? MIN((size_t)s->top_k, n) : n;
    double total = 0, before = 0, kept = 0;
    for (size_t i = 0; i < left; i++) total += exp(all[i].score - all[0].score);
    for (size_t i = 0; i < left && (i == 0 || before < s->top_p * total); i++) {
        double x = exp(all[i].score - all[0].score);
        before += x;
        if (x < s->min_p) continue;
        p[all[i].id] = x;
        kept += x;
    }
    for (size_t i = 0; i < n; i++) p[i] /= kept;
    free(all);
}

static void compare(const double *p, const uint64_t *counts, size_t n, const char *what, size_t which) {
    double draws = 0, statistic = 0, rest = 0, rest_counts = 0, d = -1;
    for (size_t i = 0; i < n; i++) draws += (double)counts[i];
    for (size_t i = 0; i < n; i++) {
        double expected = p[i] * draws, found = (double)counts[i];
        if (p[i] == 0 && counts[i] > 0) fail_msg("%s %zu: bin %zu is filtered out and was drawn", what, which, i);
        if (expected < 10) {
            rest += expected, rest_counts += found;
            continue;
        }
        statistic += (found - expected) * (found - expected) / expected;
        d++;
    }
    if (rest >= 10) statistic += (rest_counts - rest) * (rest_counts - rest) / rest, d++;
    double x = 17, bound = d + 2 * sqrt(d * x) + 2 * x;
    assert_true(d >= 2); /* else there is nothing to compare */
    if (!(statistic <= bound))
        fail_msg("%s %zu: chi-square %g of %g degrees of freedom, expected at most %g", what, which, statistic, d,
                 bound);
}

/* ---- the sampler ------------------------------------------------------------------------------------------------- */

static void tokens_come_as_often_as_they_should(void **state) {
    enum { V = 40, N = 200000 };
    float logits[V];
    double p[V];
    sample_scratch w;
    sample_scratch_init(&w, V);
    rng_normal_fill(21, 0, logits, V, 0, 1.5f);
    double sum = 0;
    for (int i = 0; i < V; i++) sum += exp((double)logits[i]);
    for (size_t f = 0; f < ARRAY_LENGTH(filters); f++) {
        uint64_t counts[V] = {0};
        sampling_options s = filters[f];
        s.repetition_penalty = 1;
        expect(logits, V, &s, p);
        for (uint64_t i = 0; i < N; i++)
            counts[sample_draw(&w, logits, log(sum), NULL, 0, &s, sample_uniform(f, i % 7, i / 7, i % 3)).token]++;
        compare(p, counts, V, "filter", f);
    }
    sample_scratch_fini(&w);
}

/* ---- the generator ----------------------------------------------------------------------------------------------- */

/* Two tokens: the second depends on the first, through the cache of a sequence that shares its prompt with thousands of others. */
static void sequences_come_as_often_as_they_should(void **state) {
    enum { N = 12000, V = 260, PROMPT = 5 };
    char *dir = training_dir();
    train_result trained;
    training t = {.preset = "test-llama",
                  .source = "builtin:arithmetic",
                  .seq_len = 32,
                  .steps = 30,
                  .dir = dir,
                  .more = SETTINGS("train.lr=0.02", "run.threads=1")};
    must(training_run(&t, &trained));
    generator *g;
    must(generator_open(
        &g, &(generator_options){
                .source = dir, .backend = backend_under_test(), .n_threads = 1, .max_sequences = 64, .page_size = 2}));
    int32_t tokens[PROMPT + 1] = {'1', '2', '+', '3', '='};
    float *logits = mem_alloc((PROMPT + 1) * V * sizeof *logits);
    double *p = mem_alloc(V * V * sizeof *p), *first = mem_alloc(V * sizeof *first);
    uint64_t *counts = mem_alloc(V * V * sizeof *counts);
    for (size_t f = 0; f < ARRAY_LENGTH(filters); f += 2) {
        sampling_options s = filters[f];
        s.max_new = 2, s.ignore_eos = true, s.repetition_penalty = 1, s.n_completions = N, s.seed = 5 + f;
        must(generator_logits(g, tokens, PROMPT, false, logits));
        expect(logits + (PROMPT - 1) * V, V, &s, first);
        memset(p, 0, V * V * sizeof *p);
        memset(counts, 0, V * V * sizeof *counts);
        for (int32_t a = 0; a < V; a++) {
            if (first[a] < 1e-6) continue; /* together less than one draw: in no bin of their own */
            tokens[PROMPT] = a;
            must(generator_logits(g, tokens, PROMPT + 1, false, logits));
            expect(logits + PROMPT * V, V, &s, p + a * V);
            for (int32_t b = 0; b < V; b++) p[a * V + b] *= first[a];
        }
        completion *c;
        must(generator_run(g, &(prompt){tokens, PROMPT}, 1, &s, NULL, &c, NULL));
        for (size_t i = 0; i < N; i++) {
            assert_int_equal(c[i].n_tokens, 2);
            if (first[c[i].tokens[0]] >= 1e-6) counts[c[i].tokens[0] * V + c[i].tokens[1]]++;
        }
        compare(p, counts, V * V, "sequences with filter", f);
        completions_free(c, N);
    }
    free(logits);
    free(p);
    free(first);
    free(counts);
    generator_close(g);
    training_dir_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(tokens_come_as_often_as_they_should),
                                       cmocka_unit_test(sequences_come_as_often_as_they_should)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
