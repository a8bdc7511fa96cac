/* test_data.c - rows are pure functions of their number, documents never mix, held-out problems stay held out, and
 * the loader hands out exactly the rows it says, in order, from any position. */
#include "exec/guard.h"
#include "files.h"
#include "rows.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

/* ---- tokenizer ----------------------------------------------------------------------------------------------- */

static void bytes_survive_the_tokenizer(void **state) {
    tokenizer *t;
    unsigned char bytes[1024];
    int32_t *tokens = NULL;
    size_t n = 0, capacity = 0;
    strbuf text;
    strbuf_init(&text);
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(i < 256 ? i : rng_u64(5, i));
    assert_int_equal(tokenizer_open(&t, "byte"), OK);
    assert_int_equal(tokenizer_vocab(t), BYTE_VOCAB);
    assert_int_equal(BYTE_VOCAB % 4, 0);
    assert_int_equal(tokenizer_eos(t), TOKEN_EOS);
    tokenizer_encode(t, (const char *)bytes, 1000, &tokens, &n, &capacity);
    tokenizer_encode(t, (const char *)bytes + 1000, 24, &tokens, &n, &capacity); /* appends */
    tokenizer_encode(t, "", 0, &tokens, &n, &capacity);
    assert_int_equal(n, sizeof bytes);
    tokenizer_decode(t, tokens, n, &text);
    assert_int_equal(text.length, sizeof bytes);
    assert_memory_equal(text.text, bytes, sizeof bytes);
    text.length = 0;
    tokenizer_decode(t, (int32_t[]){'a', TOKEN_BOS, TOKEN_EOS, TOKEN_PAD, 'b'}, 5, &text);
    assert_string_equal(text.text, "ab");
    text.length = 0;
    tokenizer_decode(t, (int32_t[]){259, -7}, 2, &text); /* ids that stand for nothing are seen */
    assert_string_equal(text.text, "\xef\xbf\xbd\xef\xbf\xbd");
    text.length = 0;
    tokenizer_decode(t, NULL, 0, &text);
    assert_string_equal(text.text, "");
    strbuf_fini(&text);
    free(tokens);
    tokenizer_close(t);
    expect_error(tokenizer_open(&t, "bpe"), ERR_INPUT, "'bpe'|'byte'");
}

/* ---- arithmetic ---------------------------------------------------------------------------------------------- */

typedef struct sum {
    int64_t a, b, answer;
    char op;
    int64_t n_prompt, n_answer; /* tokens */
} sum;

static int64_t read_number(const int32_t *tokens, int64_t n) { /* units first */
    int64_t value = 0;
    for (int64_t i = n - 1; i >= 0; i--) {
        assert_in_range(tokens[i], '0', '9');
        value = value * 10 + tokens[i] - '0';
    }
    return value;
}

/* Parses one document without looking at how it was made. Returns its length with EOS. */
static int64_t parse_document(const int32_t *tokens, int64_t n, sum *out) {
    int64_t op = 0, equals = 0, end = 0;
    while (op < n && tokens[op] >= '0' && tokens[op] <= '9') op++;
    while (equals < n && tokens[equals] != '=') equals++;
    while (end < n && tokens[end] != TOKEN_EOS) end++;
    assert_true(op > 0 && op < equals && equals + 1 < end && end < n);
    out->a = read_number(tokens, op);
    out->op = (char)tokens[op];
    out->b = read_number(tokens + op + 1, equals - op - 1);
    out->answer = read_number(tokens + equals + 1, end - equals - 1);
    out->n_prompt = equals + 1;
    out->n_answer = end - equals - 1;
    return end + 1;
}

static void check_sum(const sum *s) {
    if (s->op == '+') assert_int_equal(s->a + s->b, s->answer);
    else if (s->op == '-') assert_int_equal(s->a - s->b, s->answer);
    else if (s->op == '*') assert_int_equal(s->a * s->b, s->answer);
    else fail_msg("operator '%c'", s->op);
}

static void arithmetic_rows_hold_right_answers_and_train_only_on_them(void **state) {
    for (int64_t difficulty = 1; difficulty <= 6; difficulty++) {
        int64_t T = 128, seen[3] = {0}, limit = 1, n_documents = 0;
        for (int64_t i = 0; i < difficulty; i++) limit *= 10;
        dataset *d = open_data((data_options){
            .source = "builtin:arithmetic", .seq_len = T, .pack = true, .difficulty = difficulty, .seed = 3});
        data_report report;
        dataset_report(d, SPLIT_TRAIN, &report);
        assert_int_equal(report.rows_per_epoch, 0);
        assert_true(isnan(report.entropy_per_token));
        for (uint64_t i = 0; i < 60; i++) {
            row r;
            int64_t at = 0, filled = 0;
            get_row(d, i % 2 ? SPLIT_EVAL : SPLIT_TRAIN, i, &r);
            check_row(&r, T);
            while (at < T && r.tokens[at] != TOKEN_PAD) {
                sum s;
                int64_t n = parse_document(r.tokens + at, T - at, &s);
                check_sum(&s);
                assert_true(s.a < limit && s.b < limit);
                seen[strchr("+-*", s.op) - "+-*"]++;
                for (int64_t t = 0; t < n; t++) {
                    assert_int_equal(r.doc_start[at + t], at);
                    bool trained = t >= s.n_prompt - 1 && t < n - 1; /* predicts a digit of the answer or its EOS */
                    assert_int_equal(r.targets[at + t], trained ? r.tokens[at + t + 1] : -1);
                }
                at += n;
                n_documents++;
            }
            filled += at;
            assert_true(fabs(report.fill - (double)filled / (double)T) < 1e-12);
        }
        assert_true(n_documents > 60);
        assert_true(seen[0] > n_documents / 5 && seen[1] > n_documents / 5);
        assert_int_equal(seen[2] > 0, difficulty >= 3);
        dataset_close(d);
    }
}

/* Which problems are held out, by text: a set over (op, a, b) with two digits. */
static unsigned char held[2][100][100];

static void collect_problems(const dataset *d, uint64_t *n) {
    const tokenizer *tok = dataset_tokenizer(d);
    strbuf prompt, answer;
    strbuf_init(&prompt);
    strbuf_init(&answer);
    memset(held, 0, sizeof held);
    for (*n = 0; dataset_problem(d, *n, &prompt, &answer); ++*n) {
        int32_t *tokens = NULL;
        size_t n_tokens = 0, capacity = 0;
        sum s;
        tokenizer_encode(tok, prompt.text, prompt.length, &tokens, &n_tokens, &capacity);
        tokenizer_encode(tok, answer.text, answer.length, &tokens, &n_tokens, &capacity);
        tokens = array_grow(tokens, &capacity, n_tokens + 1, sizeof *tokens);
        tokens[n_tokens++] = TOKEN_EOS;
        assert_int_equal(parse_document(tokens, (int64_t)n_tokens, &s), n_tokens);
        check_sum(&s);
        assert_int_equal(s.n_prompt, prompt.length);
        assert_int_equal(s.n_answer, answer.length);
        assert_int_equal(held[s.op == '-'][s.a][s.b], 0); /* distinct */
        held[s.op == '-'][s.a][s.b] = 1;
        free(tokens);
        prompt.length = answer.length = 0;
    }
    strbuf_fini(&prompt);
    strbuf_fini(&answer);
}

static void training_never_contains_a_held_out_problem(void **state) {
    static unsigned char seen[2][100][100];
    uint64_t n_problems, n_seen = 0;
    memset(seen, 0, sizeof seen);
    for (uint64_t seed = 0; seed < 2; seed++) {
        dataset *d = open_data((data_options){
            .source = "builtin:arithmetic", .seq_len = 256, .pack = true, .difficulty = 2, .seed = seed});
        collect_problems(d, &n_problems);
        /* A tenth of 10,000 sums and 5,050 differences; sums come in mirrored pairs, so four deviations are 230. */
        assert_in_range(n_problems, 1505 - 230, 1505 + 230);
        for (uint64_t i = 0; i < 3000; i++) {
            for (split which = SPLIT_TRAIN; which <= SPLIT_EVAL; which++) {
                row r;
                get_row(d, which, i, &r);
                for (int64_t at = 0; at < 256 && r.tokens[at] != TOKEN_PAD;) {
                    sum s;
                    at += parse_document(r.tokens + at, 256 - at, &s);
                    assert_int_equal(held[s.op == '-'][s.a][s.b], which == SPLIT_EVAL);
                    if (s.op == '+') assert_int_equal(held[0][s.b][s.a], which == SPLIT_EVAL); /* the mirror image */
                    if (which == SPLIT_TRAIN) seen[s.op == '-'][s.a][s.b] = 1;
                }
            }
        }
        dataset_close(d);
    }
    /* 150,000 draws over about 13,500 training problems reach nearly all of them. */
    for (int op = 0; op < 2; op++)
        for (int a = 0; a < 100; a++)
            for (int b = 0; b < 100; b++) n_seen += seen[op][a][b];
    assert_true(n_seen > (15050 - n_problems) * 99 / 100);
}

static void problems_are_the_same_for_every_seed_and_bounded(void **state) {
    for (int64_t difficulty = 1; difficulty <= 6; difficulty += 5) {
        dataset *d[2];
        strbuf prompt[2], answer[2];
        for (uint64_t k = 0; k < 2; k++) {
            d[k] = open_data((data_options){
                .source = "builtin:arithmetic", .seq_len = 64, .difficulty = difficulty, .seed = k * 77});
            strbuf_init(&prompt[k]);
            strbuf_init(&answer[k]);
        }
        uint64_t i = 0;
        for (;; i++) {
            bool more[2];
            for (int k = 0; k < 2; k++) {
                prompt[k].length = answer[k].length = 0;
                more[k] = dataset_problem(d[k], i, &prompt[k], &answer[k]);
            }
            assert_int_equal(more[0], more[1]);
            if (!more[0]) break;
            assert_string_equal(prompt[0].text, prompt[1].text);
            assert_string_equal(answer[0].text, answer[1].text);
        }
        if (difficulty == 6) assert_int_equal(i, 10000);
        else assert_in_range(i, 5, 40); /* of 155 */
        for (int k = 0; k < 2; k++) {
            strbuf_fini(&prompt[k]);
            strbuf_fini(&answer[k]);
            dataset_close(d[k]);
        }
    }
}

static void unpacked_rows_hold_one_document(void **state) {
    static const char *const sources[] = {"builtin:arithmetic", "builtin:grammar"};
    for (int k = 0; k < 2; k++) {
        double filled = 0;
        dataset *d = open_data((data_options){.source = sources[k], .seq_len = 64, .difficulty = 2});
        data_report report;
        dataset_report(d, SPLIT_TRAIN, &report);
        for (uint64_t i = 0; i < 2000; i++) {
            row r;
            get_row(d, SPLIT_TRAIN, i, &r);
            check_row(&r, 64);
            int64_t n = 0;
            while (n < 64 && r.doc_start[n] == 0) n++;
            for (int64_t t = n; t < 64; t++) assert_int_equal(r.tokens[t], TOKEN_PAD);
            assert_true(n == 64 || r.tokens[n - 1] == TOKEN_EOS);
            filled += (double)n / 64;
        }
        /* arithmetic: exact; grammar: lengths from 3 to 64, so four deviations of the mean are below 0.03 */
        assert_true(fabs(filled / 2000 - report.fill) < (k ? 0.03 : 1e-9));
        dataset_close(d);
    }
}

/* ---- grammar ------------------------------------------------------------------------------------------------- */

static double plug_in_entropy(const double *counts, int n_contexts) { /* 9 outcomes each: a..h, EOS */
    double sum = 0, total = 0;
    for (int c = 0; c < n_contexts; c++) {
        double in_context = 0;
        for (int k = 0; k < 9; k++) in_context += counts[c * 9 + k];
        for (int k = 0; k < 9; k++)
            if (counts[c * 9 + k] > 0) sum -= counts[c * 9 + k] * log(counts[c * 9 + k] / in_context);
        total += in_context;
    }
    return sum / total;
}

/* The reported number against an estimate that knows nothing of how the rows were made. */
static void grammar_entropy_is_what_it_reports(void **state) {
    static double by_two[64 * 9], by_one[8 * 9];
    memset(by_two, 0, sizeof by_two);
    memset(by_one, 0, sizeof by_one);
    dataset *d = open_data((data_options){.source = "builtin:grammar", .seq_len = 256, .pack = true, .seed = 11});
    data_report report;
    dataset_report(d, SPLIT_TRAIN, &report);
    double n_trained = 0, n_positions = 0;
    for (uint64_t i = 0; i < 4000; i++) {
        row r;
        get_row(d, i % 2 ? SPLIT_EVAL : SPLIT_TRAIN, i, &r);
        check_row(&r, 256);
        for (int64_t t = 0; t < 256; t++) {
            n_positions += r.tokens[t] != TOKEN_PAD;
            if (r.targets[t] == -1) {
                /* only the first symbol of a document, its EOS and the end of a row have no target */
                assert_true(r.doc_start[t] == t || r.tokens[t] == TOKEN_EOS || t == 255);
                continue;
            }
            assert_true(t > r.doc_start[t]);
            int before = r.tokens[t - 1] - 'a', last = r.tokens[t] - 'a';
            int next = r.targets[t] == TOKEN_EOS ? 8 : r.targets[t] - 'a';
            assert_true(before >= 0 && before < 8 && last >= 0 && last < 8 && next >= 0 && next < 9);
            by_two[(before * 8 + last) * 9 + next]++;
            by_one[last * 9 + next]++;
            n_trained++;
        }
    }
    assert_true(n_positions == 4000 * 256 && report.fill == 1.0);
    /* H = h(1/64) + 63/64 * 1.75 ln 2, computed here on its own. */
    assert_true(fabs(report.entropy_per_token -
                     (log(64) / 64 - 63.0 / 64 * log(63.0 / 64) + 63.0 / 64 * 1.75 * log(2))) < 1e-12);
    /* A million tokens: one deviation of the mean is below 0.001; the estimate's bias 64 * 4 / 2n is below 0.0002. */
    double two = plug_in_entropy(by_two, 64), one = plug_in_entropy(by_one, 8);
    assert_true(n_trained > 900000);
    if (fabs(two - report.entropy_per_token) > 0.004)
        fail_msg("estimated %.5f, reported %.5f nats per token", two, report.entropy_per_token);
    assert_true(one > two + 0.3); /* one symbol of memory is not enough: reaching H proves two */
    dataset_close(d);
}

/* ---- rows and loader ----------------------------------------------------------------------------------------- */

static const char *source_of(int k) {
    static char bytes[5000];
    if (k < 2) return k ? "builtin:grammar" : "builtin:arithmetic";
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (char)(1 + rng_below(77, i, 255)); /* any but zero */
    write_bytes(path_of("some.txt"), bytes, sizeof bytes);
    return path_of("some.txt");
}

static void rows_are_pure_functions_of_seed_split_and_index(void **state) {
    for (int k = 0; k < 3; k++) {
        data_options o = {
            .source = source_of(k), .seq_len = 128, .pack = true, .difficulty = 2, .eval_fraction = 0.2, .seed = 1};
        dataset *a = open_data(o), *b = open_data(o);
        o.seed = 2;
        dataset *c = open_data(o);
        int splits_differ = 0, seeds_differ = 0, rows_differ = 0;
        row x, y;
        for (uint64_t i = 0; i < 20; i++) { /* b is asked backwards, and far ahead first */
            get_row(b, SPLIT_TRAIN, ((uint64_t)1 << 40) + i, &y);
            get_row(b, SPLIT_TRAIN, 19 - i, &y);
            get_row(a, SPLIT_TRAIN, 19 - i, &x);
            assert_true(rows_equal(&x, &y));
            get_row(a, SPLIT_EVAL, 19 - i, &y);
            splits_differ += !rows_equal(&x, &y);
            get_row(c, SPLIT_TRAIN, 19 - i, &y);
            seeds_differ += !rows_equal(&x, &y);
            get_row(a, SPLIT_TRAIN, 20 - i, &y);
            rows_differ += !rows_equal(&x, &y);
        }
        assert_true(splits_differ == 20 && seeds_differ > 15 && rows_differ == 20);
        dataset_close(a);
        dataset_close(b);
        dataset_close(c);
    }
}

static void a_loader_opened_at_row_k_continues_exactly(void **state) {
    for (int k = 0; k < 3; k++) {
        dataset *d = open_data((data_options){
            .source = source_of(k), .seq_len = 128, .pack = true, .difficulty = 2, .eval_fraction = 0.2, .seed = 6});
        loader *whole, *resumed;
        assert_int_equal(loader_open(&whole, d, SPLIT_TRAIN, 3, 0, 0, 1), OK);
        assert_int_equal(loader_position(whole), 0); /* although batches are made ahead */
        for (int i = 0; i < 5; i++) (void)loader_next(whole);
        assert_int_equal(loader_position(whole), 15);
        usleep(2000); /* time to run ahead: the position must not move */
        assert_int_equal(loader_position(whole), 15);
        assert_int_equal(loader_open(&resumed, d, SPLIT_TRAIN, 3, loader_position(whole), 0, 1), OK);
        for (int i = 0; i < 40; i++) {
            const batch *a = loader_next(whole), *b = loader_next(resumed);
            assert_int_equal(a->first_row, 15 + 3 * i);
            assert_int_equal(b->first_row, a->first_row);
            assert_memory_equal(a->tokens, b->tokens, 3 * 128 * sizeof(int32_t));
            assert_memory_equal(a->targets, b->targets, 3 * 128 * sizeof(int32_t));
            assert_memory_equal(a->doc_start, b->doc_start, 3 * 128 * sizeof(int32_t));
            int64_t n_valid = 0;
            for (int t = 0; t < 3 * 128; t++) n_valid += a->targets[t] >= 0;
            assert_int_equal(a->n_valid, n_valid);
            assert_int_equal(b->n_valid, n_valid);
            for (uint64_t r = 0; r < 3; r++) { /* and they are the data set's own rows */
                row x;
                get_row(d, SPLIT_TRAIN, a->first_row + r, &x);
                assert_memory_equal(x.tokens, a->tokens + r * 128, 128 * sizeof(int32_t));
                assert_memory_equal(x.targets, a->targets + r * 128, 128 * sizeof(int32_t));
                assert_memory_equal(x.doc_start, a->doc_start + r * 128, 128 * sizeof(int32_t));
            }
        }
        assert_int_equal(loader_position(whole), loader_position(resumed));
        loader_close(whole);
        loader_close(resumed);
        dataset_close(d);
    }
}

static void a_borrowed_batch_stays_as_it_is(void **state) {
    dataset *d = open_data((data_options){.source = "builtin:grammar", .seq_len = 64, .pack = true, .seed = 1});
    loader *l;
    int32_t copy[2 * 64];
    assert_int_equal(loader_open(&l, d, SPLIT_TRAIN, 2, 10, 0, 1), OK);
    for (int i = 0; i < 20; i++) {
        const batch *b = loader_next(l);
        memcpy(copy, b->tokens, sizeof copy);
        usleep(500); /* the loader fills the rest of the ring meanwhile */
        assert_memory_equal(copy, b->tokens, sizeof copy);
        assert_int_equal(b->first_row, 10 + 2 * i);
    }
    loader_close(l);
    dataset_close(d);
}

static void loaders_close_at_any_moment(void **state) {
    dataset *d =
        open_data((data_options){.source = "builtin:arithmetic", .seq_len = 64, .pack = true, .difficulty = 2});
    for (int i = 0; i < 60; i++) {
        loader *l;
        assert_int_equal(loader_open(&l, d, SPLIT_TRAIN, 8, (uint64_t)i, 0, 1), OK);
        for (int k = 0; k < i % 7; k++) (void)loader_next(l);
        if (i % 3 == 0) usleep(300);
        loader_close(l);
    }
    loader_close(NULL);
    dataset_close(d);
}

static void rows_and_batches_allocate_nothing(void **state) {
    if (!guard_present()) skip(); /* the counting malloc is not linked in */
    for (int k = 0; k < 3; k++) {
        dataset *d = open_data((data_options){.source = source_of(k), .seq_len = 128, .pack = true, .difficulty = 2});
        loader *l;
        row r;
        assert_int_equal(loader_open(&l, d, SPLIT_TRAIN, 4, 0, 0, 1), OK);
        uint64_t before = guard_count();
        guard_arm();
        for (uint64_t i = 0; i < 20; i++) {
            dataset_row(d, SPLIT_TRAIN, i, r.tokens, r.targets, r.doc_start);
            (void)loader_next(l);
        }
        guard_disarm();
        assert_int_equal(guard_count(), before);
        assert_int_equal(loader_host_bytes(4, 128), 3 * 3 * 4 * 128 * sizeof(int32_t));
        loader_close(l);
        dataset_close(d);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_survive_the_tokenizer),
        cmocka_unit_test(arithmetic_rows_hold_right_answers_and_train_only_on_them),
        cmocka_unit_test(training_never_contains_a_held_out_problem),
        cmocka_unit_test(problems_are_the_same_for_every_seed_and_bounded),
        cmocka_unit_test(unpacked_rows_hold_one_document),
        cmocka_unit_test(grammar_entropy_is_what_it_reports),
        cmocka_unit_test(rows_are_pure_functions_of_seed_split_and_index),
        cmocka_unit_test(a_loader_opened_at_row_k_continues_exactly),
        cmocka_unit_test(a_borrowed_batch_stays_as_it_is),
        cmocka_unit_test(loaders_close_at_any_moment),
        cmocka_unit_test(rows_and_batches_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, test_dir_open, test_dir_close);
}
