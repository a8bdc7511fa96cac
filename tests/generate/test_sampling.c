/* test_sampling.c - the next token from logits, its text, and whether an answer is right.
 *
 * Filters are compared with transformers' logits processors (fixtures/sampling.json, made by
 * tools/make_sampling_fixtures.py). Probabilities differ by fp32 rounding of scores up to 15: 1e-5 relative. */
#include "cli/answers.h"
#include "generate/pages.h"
#include "generate/text.h"
#include "generate/sample.h"
#include "must.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

/* ---- filters ----------------------------------------------------------------------------------------------------- */

static double number(const json_t *o, const char *key) { return json_number_value(json_object_get(o, key)); }

static void filters_leave_what_transformers_leaves(void **state) {
    json_t *root;
    must(json_read_file(TEST_FIXTURES "/sampling.json", 1 << 20, &root));
    const json_t *cases = json_object_get(root, "cases");
    assert_true(json_array_size(cases) >= 42);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i), *o = json_object_get(c, "options");
        const json_t *list = json_object_get(c, "logits"), *past = json_object_get(c, "history");
        const json_t *ids = json_object_get(c, "ids"), *probabilities = json_object_get(c, "probabilities");
        size_t n = json_array_size(list);
        float logits[64];
        int32_t history[16];
        assert_true(n <= 64 && json_array_size(past) <= 16);
        for (size_t k = 0; k < n; k++) logits[k] = (float)json_number_value(json_array_get(list, k));
        for (size_t k = 0; k < json_array_size(past); k++)
            history[k] = (int32_t)json_integer_value(json_array_get(past, k));
        sampling_options s = SAMPLING_DEFAULTS;
        s.temperature = number(o, "temperature");
        s.top_k = (int64_t)number(o, "top_k");
        s.top_p = number(o, "top_p");
        s.min_p = number(o, "min_p");
        s.repetition_penalty = number(o, "repetition_penalty");
        sample_scratch w;
        sample_scratch_init(&w, n);
        size_t left = sample_filter(&w, logits, history, json_array_size(past), &s);
        if (left != json_array_size(ids)) fail_msg("case %zu: %zu left, expected %zu", i, left, json_array_size(ids));
        double total = 0, top = -INFINITY;
        for (size_t k = 0; k < left; k++) top = w.candidates[k].score > top ? w.candidates[k].score : top;
        for (size_t k = 0; k < left; k++) total += exp(w.candidates[k].score - top);
        for (size_t k = 0; k < left; k++) {
            double p = exp(w.candidates[k].score - top) / total,
                   want = json_number_value(json_array_get(probabilities, k));
            if (w.candidates[k].id != json_integer_value(json_array_get(ids, k)) || fabs(p - want) > 1e-5 * want)
                fail_msg("case %zu: token %d with %.9g, expected %d with %.9g", i, w.candidates[k].id, p,
                         (int)json_integer_value(json_array_get(ids, k)), want);
        }
        sample_scratch_fini(&w);
    }
    json_decref(root);
}

/* Against sorting everything, on rows longer than any head that top-p sorts, with many ties. */
static int descending(const void *a, const void *b) {
    const sample_candidate *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static void partial_selection_equals_a_full_sort(void **state) {
    enum { V = 5000 };
    float *logits = mem_alloc(V * sizeof *logits);
    sample_candidate *all = mem_alloc(V * sizeof *all);
    bool *expected = mem_alloc(V * sizeof *expected);
    sample_scratch w;
    sample_scratch_init(&w, V);
    for (uint64_t round = 0; round < 60; round++) {
        double spread = round % 3 == 0 ? 0.5 : 4;
        rng_normal_fill(round, 0, logits, V, 0, (float)spread);
        if (round % 2)
            for (int i = 0; i < V; i++) logits[i] = roundf(logits[i] * 2) / 2;
        sampling_options s = SAMPLING_DEFAULTS;
        s.temperature = 1;
        s.top_k = round % 4 == 0 ? 0 : (int64_t)rng_below(round, 1, V);
        s.top_p = round % 5 == 0 ? 1 : rng_uniform(round, 2) + 1e-6;
        s.min_p = round % 7 ? 0 : 0.1 * rng_uniform(round, 3);
        for (int i = 0; i < V; i++) all[i] = (sample_candidate){logits[i], i};
        qsort(all, V, sizeof *all, descending);
        size_t n = V, kept = 0;
        while (s.top_k && (int64_t)n > s.top_k && all[n - 1].score < all[s.top_k - 1].score) n--;
        double total = 0, before = 0;
        for (size_t i = 0; i < n; i++) total += exp((double)(all[i].score - all[0].score));
        memset(expected, 0, V * sizeof *expected);
        for (size_t i = 0; i < n; i++) {
            double p = exp((double)(all[i].score - all[0].score));
            if (i > 0 && s.top_p < 1 && before >= s.top_p * total) break;
            before += p;
            if (p >= s.min_p) expected[all[i].id] = true, kept++;
        }
        size_t left = sample_filter(&w, logits, NULL, 0, &s);
        if (left != kept) fail_msg("round %d: %zu left, expected %zu", (int)round, left, kept);
        for (size_t i = 0; i < left; i++) {
            assert_true(expected[w.candidates[i].id]);
            assert_true(i == 0 || w.candidates[i].id > w.candidates[i - 1].id);
        }
    }
    sample_scratch_fini(&w);
    free(logits);
    free(all);
    free(expected);
}

static void draws_follow_the_probabilities_and_the_counter_alone(void **state) {
    enum { V = 6, N = 20000 };
    const float logits[V] = {0, 1, 2, -INFINITY, 0.5f, -3};
    sample_scratch w;
    sample_scratch_init(&w, V);
    sampling_options s = SAMPLING_DEFAULTS;
    s.temperature = 1;
    double count[V] = {0}, total = 0;
    for (int i = 0; i < V; i++) total += exp((double)logits[i]);
    for (uint64_t i = 0; i < N; i++) {
        sample_result r = sample_draw(&w, logits, log(total), NULL, 0, &s, sample_uniform(7, 1, 2, i));
        assert_in_range(r.token, 0, V - 1);
        count[r.token]++;
        assert_true(fabs(r.log_probability - (logits[r.token] - log(total))) < 1e-6);
    }
    for (int i = 0; i < V; i++) { /* five standard deviations of a count */
        double p = exp((double)logits[i]) / total;
        assert_true(fabs(count[i] - N * p) <= 5 * sqrt(N * p * (1 - p)));
    }
    assert_true(count[3] == 0);
    assert_true(sample_uniform(7, 1, 2, 3) == sample_uniform(7, 1, 2, 3));
    assert_true(sample_uniform(7, 1, 2, 3) != sample_uniform(8, 1, 2, 3));
    assert_true(sample_uniform(7, 1, 2, 3) != sample_uniform(7, 2, 2, 3));
    assert_true(sample_uniform(7, 1, 2, 3) != sample_uniform(7, 1, 3, 3));
    assert_true(sample_uniform(7, 1, 2, 3) != sample_uniform(7, 1, 2, 4));
    s.temperature = 0;
    assert_int_equal(sample_draw(&w, logits, log(total), NULL, 0, &s, 0.99).token, 2);
    const int32_t past[] = {2, 2,
                            0}; /* 2 / 1.5 = 1.33, still first; / 2.5 = 0.8, behind 1; the second 2 counts nothing */
    s.repetition_penalty = 1.5;
    assert_int_equal(sample_draw(&w, logits, log(total), past, 3, &s, 0).token, 2);
    s.repetition_penalty = 2.5;
    assert_int_equal(sample_draw(&w, logits, log(total), past, 3, &s, 0).token, 1);
    assert_int_equal(sample_draw(&w, logits, NAN, NULL, 0, &s, 0).token, -1);
    assert_int_equal(sample_draw(&w, logits, -INFINITY, NULL, 0, &s, 0).token, -1);
    double drawn[DRAWN_COUNT] = {[DRAWN_TOKEN] = 2, [DRAWN_LOGIT] = 2, [DRAWN_LOG_SUM] = 3, [DRAWN_TEMPERED] = -4};
    assert_int_equal(sample_drawn(drawn).token, 2);
    assert_true(sample_drawn(drawn).log_probability == -1 && sample_drawn(drawn).tempered == -4);
    drawn[DRAWN_LOG_SUM] = NAN;
    assert_int_equal(sample_drawn(drawn).token, -1);
    sample_scratch_fini(&w);
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

/* Pushes bytes one by one; what was told, with a bar between two tellings; '!' at the end when a stop was found. */
static char *told(const tokenizer *t, const char *text, const char *const *stops, size_t n_stops) {
    text_stream s;
    strbuf out;
    bool stopped = false;
    strbuf_init(&out);
    strbuf_add(&out, "");
    text_stream_open(&s, t, stops, n_stops);
    for (const char *c = text; *c && !stopped; c++) {
        must(text_stream_push(&s, (unsigned char)*c, &stopped));
        span news = text_stream_new_text(&s, stopped);
        strbuf_add_bytes(&out, news.text, news.length);
        strbuf_add(&out, "|");
    }
    bool late = false;
    if (!stopped) must(text_stream_end(&s, &late));
    span news = text_stream_new_text(&s, true);
    strbuf_add_bytes(&out, news.text, news.length);
    if (stopped || late) strbuf_add(&out, "!");
    text_stream_close(&s);
    return strbuf_take(&out);
}

static void stop_strings_are_found_across_tokens_and_never_told(void **state) {
    static const struct {
        const char *text, *stops[3], *want;
    } cases[] = {
        {"abc", {NULL}, "a|b|c|"},
        {"abcde", {"cd", NULL}, "a|b|||!"},    /* c waits, then both are cut */
        {"abcxe", {"cd", NULL}, "a|b||cx|e|"}, /* c waits and turns out to be text */
        {"aab", {"ab", NULL}, "|a||!"},        /* the second a begins it again */
        {"xab", {"abc", NULL}, "x|||ab"},      /* the end: nothing follows any more */
        {"hello end", {"lo e", "end", NULL}, "h|e||l||||!"},
        {"zzabcd", {"cd", "abcd", NULL}, "z|z|||||!"}, /* both end with d: the one that begins first cuts */
    };
    tokenizer *t;
    must(tokenizer_open(&t, "byte"));
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        size_t n = 0;
        while (cases[i].stops[n]) n++;
        char *got = told(t, cases[i].text, cases[i].stops, n);
        /* Where the bars stand within what waits is not promised; the text and the stop are. */
        strbuf plain[2];
        for (int k = 0; k < 2; k++) {
            strbuf_init(&plain[k]);
            strbuf_add(&plain[k], "");
            for (const char *c = k ? cases[i].want : got; *c; c++)
                if (*c != '|') strbuf_add_bytes(&plain[k], c, 1);
        }
        if (strcmp(plain[0].text, plain[1].text) != 0)
            fail_msg("'%s': told '%s', expected '%s'", cases[i].text, got, cases[i].want);
        strbuf_fini(&plain[0]);
        strbuf_fini(&plain[1]);
        free(got);
    }
    /* Nothing is told that a later byte takes back, and what cannot be a stop is told at once. */
    char *got = told(t, "abcxe", (const char *const[]){"cd"}, 1);
    assert_string_equal(got, "a|b||cx|e|");
    free(got);
    tokenizer_close(t);
}

/* ---- pages ------------------------------------------------------------------------------------------------------- */

static void a_page_is_free_when_its_last_reader_leaves(void **state) {
    page_pool p;
    int32_t a[3], b[2];
    page_pool_init(&p, 5);
    page_pool_take(&p, a, 3);
    page_pool_take(&p, b, 2);
    assert_int_equal(p.n_free, 0);
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 2; k++) assert_int_not_equal(a[i], b[k]);
    page_pool_share(&p, a, 2);
    page_pool_drop(&p, a, 3);
    assert_int_equal(p.n_free, 1);
    page_pool_drop(&p, a, 2);
    assert_int_equal(p.n_free, 3);
    page_pool_drop(&p, b, 2);
    assert_int_equal(p.n_free, 5);
    page_pool_fini(&p);
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

static void an_answer_is_the_last_match(void **state) {
    static const struct {
        const char *rule, *text, *want; /* want NULL: none */
    } cases[] = {
        {NULL, "  42\n", "42"},
        {NULL, "", ""},
        {"#### (-?[\\d,]+)", "so 3\n#### 18", "18"},
        {"#### (-?[\\d,]+)", "#### 1\nno, #### 2 ", "2"},
        {"#### (-?[\\d,]+)", "18", NULL},
        {"\\d+", "a 1 b 22 c", "22"},
        {"(x)|y", "x y", "y"}, /* the group is not in the last match: all of it */
        {"^answer: (.*)$", "first\nanswer: yes \nrest", "yes"},
        {"", "abc", ""},
        {"\\w*", "ab \xff\xfe cd", ""},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        answer_rule *r;
        span got;
        must(answer_rule_open(&r, cases[i].rule));
        bool found = answer_find(r, cases[i].text, strlen(cases[i].text), &got);
        if (found != (cases[i].want != NULL) ||
            (found && !answer_equal(got, (span){cases[i].want, strlen(cases[i].want)})))
            fail_msg("'%s' in '%s': found '%.*s'", cases[i].rule ? cases[i].rule : "(none)", cases[i].text,
                     found ? (int)got.length : 4, found ? got.text : "none");
        answer_rule_close(r);
    }
    answer_rule *r;
    assert_int_equal(answer_rule_open(&r, "((a)"), ERR_INPUT);
    assert_non_null(strstr(error_message(), "((a)"));
    /* A hostile expression ends; what it costs is bounded by steps. */
    span got;
    char text[4096];
    memset(text, 'a', sizeof text);
    must(answer_rule_open(&r, "(a+)+(a+)+(a+)+b"));
    assert_false(answer_find(r, text, sizeof text, &got));
    answer_rule_close(r);
}

/* By drawing every subset of k out of n. */
static double pass_by_counting(int n, int c, int k) {
    int subsets = 0, with = 0;
    for (int set = 0; set < 1 << n; set++) {
        if (__builtin_popcount((unsigned)set) != k) continue;
        subsets++;
        with += (set & ((1 << c) - 1)) != 0;
    }
    return (double)with / subsets;
}

static void pass_at_k_counts_subsets(void **state) {
    for (int n = 1; n <= 10; n++)
        for (int c = 0; c <= n; c++)
            for (int k = 1; k <= n; k++) assert_true(fabs(pass_at_k(n, c, k) - pass_by_counting(n, c, k)) < 1e-12);
}

/* However small: the probabilities are those of the quotients, and nothing overflows. */
static void small_temperatures_sharpen_and_never_overflow(void **state) {
    static const double temperatures[] = {1e-3, 9.9e-4, 5e-4, 1e-10, 1e-40, 1e-300, 5e-324};
    const float logits[] = {-3e38f, 0.999f, 1, -INFINITY, 1, 0.9985f};
    enum { N = 6 };
    for (size_t i = 0; i < ARRAY_LENGTH(temperatures); i++) {
        sampling_options s = SAMPLING_DEFAULTS;
        s.max_new = 1;
        s.temperature = temperatures[i];
        must(sampling_check(&s));
        for (int k = 0; k < 2; k++) { /* without a filter, then with filters that leave everything likely */
            if (k) s.top_k = 5, s.top_p = 0.999, s.min_p = 1e-9;
            sample_scratch w;
            sample_scratch_init(&w, N);
            size_t left = sample_filter(&w, logits, NULL, 0, &s);
            double total = 0;
            for (size_t c = 0; c < N; c++) total += exp(((double)logits[c] - 1) / s.temperature);
            for (size_t c = 0; c < left; c++) assert_true(isfinite(w.candidates[c].score) || s.temperature >= 1e-3);
            double shares[N] = {0};
            for (int d = 0; d < 1000; d++)
                shares[sample_draw(&w, logits, 1.7, NULL, 0, &s, (d + 0.5) / 1000).token] += 0.001;
            for (size_t c = 0; c < N; c++)
                assert_true(fabs(shares[c] - exp(((double)logits[c] - 1) / s.temperature) / total) <
                            0.0021 + 0.001 * k);
            sample_scratch_fini(&w);
        }
    }
    sampling_options s = SAMPLING_DEFAULTS;
    s.max_new = 1;
    for (int i = 0; i < 3; i++) {
        s.temperature = (double[]){-1e-9, 1001, NAN}[i];
        assert_int_equal(sampling_check(&s), ERR_INPUT);
    }
    error_clear();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_temperatures_sharpen_and_never_overflow),
        cmocka_unit_test(filters_leave_what_transformers_leaves),
        cmocka_unit_test(partial_selection_equals_a_full_sort),
        cmocka_unit_test(draws_follow_the_probabilities_and_the_counter_alone),
        cmocka_unit_test(stop_strings_are_found_across_tokens_and_never_told),
        cmocka_unit_test(a_page_is_free_when_its_last_reader_leaves),
        cmocka_unit_test(an_answer_is_the_last_match),
        cmocka_unit_test(pass_at_k_counts_subsets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
