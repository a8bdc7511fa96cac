/* test_data.c - rows are pure functions of their number, documents never mix, held-out problems stay held out, and
 * the loader hands out exactly the rows it says, in order, from any position. */
#include "data/data.h"
#include "exec/guard.h"
#include "files.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

enum { T_MAX = 512 };
typedef struct row {
    int32_t tokens[T_MAX], targets[T_MAX], doc[T_MAX];
} row;

static dataset *open_data(data_options o) {
    dataset *d;
    if (dataset_open(&d, &o) != OK) fail_msg("%s", error_message());
    return d;
}

static void get_row(const dataset *d, split s, uint64_t index, row *r) {
    memset(r, 0x7f, sizeof *r);
    dataset_row(d, s, index, r->tokens, r->targets, r->doc);
}

static bool rows_equal(const row *a, const row *b) { return memcmp(a, b, sizeof *a) == 0; }

/* What holds for every row of every source: documents are runs, a target is the next token of the same document or
 * absent, padding is one run at the end that trains nothing, and nothing is written behind the row. */
static void check_row(const row *r, int64_t T) {
    bool padding = false;
    for (int64_t t = 0; t < T; t++) {
        assert_in_range(r->tokens[t], 0, BYTE_VOCAB - 1);
        assert_true(r->doc[t] == t || (t > 0 && r->doc[t] == r->doc[t - 1]));
        bool ends = t + 1 < T && r->doc[t + 1] == t + 1;
        if (r->targets[t] != -1 && t + 1 < T) {
            assert_false(ends);
            assert_int_equal(r->targets[t], r->tokens[t + 1]);
        }
        if (r->tokens[t] == TOKEN_EOS) {
            assert_int_equal(r->targets[t], -1);
            assert_true(t + 1 == T || ends);
        }
        if (padding) assert_int_equal(r->tokens[t], TOKEN_PAD);
        if (r->tokens[t] == TOKEN_PAD) {
            if (!padding) assert_int_equal(r->doc[t], t);
            padding = true;
            assert_int_equal(r->targets[t], -1);
        }
    }
    for (int64_t t = T; t < T_MAX; t++) assert_int_equal(r->tokens[t], 0x7f7f7f7f);
}

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
                    assert_int_equal(r.doc[at + t], at);
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
            while (n < 64 && r.doc[n] == 0) n++;
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
                assert_true(r.doc[t] == t || r.tokens[t] == TOKEN_EOS || t == 255);
                continue;
            }
            assert_true(t > r.doc[t]);
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

/* ---- text ---------------------------------------------------------------------------------------------------- */

/* Every token of every file is seen in its place: rebuilds the split's documents from the rows of one epoch. */
static void check_text(const char *const *names, const size_t *sizes, size_t n_files, data_options o) {
    strbuf source;
    strbuf_init(&source);
    for (size_t i = 0; i < n_files; i++) strbuf_printf(&source, "%s%s", i ? "," : "", path_of(names[i]));
    o.source = source.text;
    dataset *d = open_data(o);
    int64_t T = o.seq_len;
    for (split which = SPLIT_TRAIN; which <= SPLIT_EVAL; which++) {
        /* What must come out, file by file: bytes as the test wrote them, and EOS. */
        data_report report;
        dataset_report(d, which, &report);
        uint64_t n_expected = 0, n_documents = 0, n_pairs = 0, R = report.rows_per_epoch;
        static uint64_t expected[260][260], found[260][260]; /* (token, next) pairs with their multiplicity */
        memset(expected, 0, sizeof expected);
        memset(found, 0, sizeof found);
        for (size_t i = 0; i < n_files; i++) {
            FILE *f = fopen(path_of(names[i]), "rb");
            assert_non_null(f);
            size_t n_eval = (size_t)((double)sizes[i] * o.eval_fraction), n_train = sizes[i] - n_eval;
            size_t n = which == SPLIT_TRAIN ? n_train : n_eval;
            int32_t *tokens = mem_alloc((n + 1) * sizeof *tokens);
            fseek(f, which == SPLIT_TRAIN ? 0 : (long)n_train, SEEK_SET);
            for (size_t k = 0; k < n; k++) tokens[k] = fgetc(f);
            fclose(f);
            tokens[n] = TOKEN_EOS; /* of both parts of a file */
            for (size_t k = 0; k < n; k++) expected[tokens[k]][tokens[k + 1]]++, n_pairs++;
            n_expected += n ? n + 1 : 0;
            n_documents += n > 0;
            free(tokens);
        }
        assert_int_equal(report.n_tokens, n_expected);
        assert_int_equal(report.n_documents, n_documents);
        uint64_t n_placed = 0, n_found = 0;
        for (uint64_t i = 0; i < R; i++) {
            row r;
            get_row(d, which, R * 3 + i, &r); /* the fourth epoch */
            check_row(&r, T);
            for (int64_t t = 0; t < T; t++) {
                n_placed += r.tokens[t] != TOKEN_PAD;
                if (r.targets[t] >= 0) found[r.tokens[t]][r.targets[t]]++, n_found++;
            }
            if (!o.pack)
                for (int64_t t = 0; t < T && r.tokens[t] != TOKEN_PAD; t++) assert_int_equal(r.doc[t], 0);
        }
        assert_int_equal(n_found, n_pairs);
        assert_int_equal(n_found, report.n_trained_tokens);
        assert_memory_equal(found, expected, sizeof found);
        if (R) assert_true(fabs(report.fill - (double)n_placed / (double)(R * (uint64_t)T)) < 1e-12);
        else assert_true(report.fill == 0);
        /* A token is placed, or was the last of a document behind a full row, or was dropped and counted. */
        assert_true(n_placed + report.n_dropped_tokens <= n_expected && n_placed + n_documents >= n_expected);
    }
    dataset_close(d);
    strbuf_fini(&source);
}

static void text_rows_cover_every_pair_of_tokens_once_per_epoch(void **state) {
    static const char *const names[] = {"a.txt", "b.txt", "c.txt"};
    static const size_t size_sets[][3] = {{1000, 1, 333}, {640, 64, 63}, {63, 129, 2}, {127, 128, 129}, {200, 1, 1}};
    unsigned char bytes[1000];
    for (size_t k = 0; k < ARRAY_LENGTH(size_sets); k++) {
        for (size_t f = 0; f < 3; f++) {
            for (size_t i = 0; i < size_sets[k][f]; i++) bytes[i] = (unsigned char)rng_u64(k * 3 + f, i);
            write_bytes(path_of(names[f]), bytes, size_sets[k][f]);
        }
        for (int pack = 0; pack < 2; pack++) {
            static const double fractions[] = {0, 0.05, 0.3};
            for (int e = 0; e < 3; e++)
                check_text(names, size_sets[k], 3,
                           (data_options){.seq_len = 64, .pack = pack, .eval_fraction = fractions[e], .seed = 9});
        }
    }
}

static void text_epochs_are_permutations_and_differ(void **state) {
    enum { N = 64 * 50 };
    static char bytes[N];
    for (size_t i = 0; i < N; i++) bytes[i] = (char)(i % 64 < 2 ? (i % 64 ? i / 64 % 10 : i / 640) + '0' : 'x');
    write_bytes(path_of("epochs.txt"), bytes, N);
    dataset *d = open_data((data_options){.source = path_of("epochs.txt"), .seq_len = 64, .pack = true, .seed = 4});
    dataset *other = open_data((data_options){.source = path_of("epochs.txt"), .seq_len = 64, .pack = true, .seed = 5});
    data_report report;
    dataset_report(d, SPLIT_TRAIN, &report);
    assert_int_equal(report.rows_per_epoch, 50); /* the EOS is a target of row 49, not a row of its own */
    assert_int_equal(report.n_documents, 1);
    assert_int_equal(report.n_tokens, N + 1);
    assert_int_equal(report.n_cut_tokens, N - 64);
    assert_int_equal(report.n_dropped_tokens, 0);
    int order[3][50], moved = 0, seeded = 0, in_place = 0;
    for (uint64_t e = 0; e < 3; e++) {
        bool seen[50] = {false};
        for (uint64_t i = 0; i < 50; i++) {
            row r, q;
            get_row(d, SPLIT_TRAIN, e * 50 + i, &r);
            get_row(other, SPLIT_TRAIN, e * 50 + i, &q);
            int number = (r.tokens[0] - '0') * 10 + r.tokens[1] - '0';
            assert_in_range(number, 0, 49);
            assert_false(seen[number]);
            seen[number] = true;
            order[e][i] = number;
            /* The row's last target is the first token of the text after it. */
            assert_int_equal(r.targets[63], number == 49 ? TOKEN_EOS : '0' + (number + 1) / 10);
            seeded += !rows_equal(&r, &q);
            moved += e > 0 && order[e][i] != order[e - 1][i];
            in_place += number == (int)i;
        }
    }
    assert_true(moved > 80 && seeded > 120 && in_place < 30); /* of 100, 150, 150 */
    dataset_close(d);
    dataset_close(other);
}

static void text_that_cannot_be_trained_on_is_refused(void **state) {
    char bytes[300], *two = mem_alloc(600);
    dataset *d;
    memset(bytes, 'x', sizeof bytes);
    write_bytes(path_of("small.txt"), bytes, 100);
    write_bytes(path_of("empty.txt"), bytes, 0);
    data_options o = {.source = path_of("small.txt"), .seq_len = 128, .pack = true};
    expect_error(dataset_open(&d, &o), ERR_INPUT, "small.txt|101 tokens|at least 128|seq_len");
    assert_null(d);
    o = (data_options){.source = path_of("small.txt"), .seq_len = 96, .pack = true, .eval_fraction = 0.1};
    expect_error(dataset_open(&d, &o), ERR_INPUT, "small.txt|91 tokens|11 for evaluation|at least 96");
    o = (data_options){.source = path_of("small.txt"), .seq_len = 64, .pack = true, .eval_fraction = 0.001};
    expect_error(dataset_open(&d, &o), ERR_INPUT, "small.txt|0 tokens for evaluation|0.001 of 101|at least one row");
    o = (data_options){.source = path_of("empty.txt"), .seq_len = 64, .pack = true};
    expect_error(dataset_open(&d, &o), ERR_INPUT, "empty.txt|empty file");
    o = (data_options){.source = path_of("absent.txt"), .seq_len = 64, .pack = true};
    expect_error(dataset_open(&d, &o), ERR_IO, "absent.txt|No such file");
    o = (data_options){.source = test_dir, .seq_len = 64, .pack = true};
    expect_error(dataset_open(&d, &o), ERR_INPUT, "directory");
    snprintf(two, 600, "%s,,%s", path_of("small.txt"), path_of("small.txt"));
    o = (data_options){.source = two, .seq_len = 64, .pack = true};
    expect_error(dataset_open(&d, &o), ERR_INPUT, "empty name|commas");
    free(two);
    static const struct {
        data_options o;
        const char *fragments;
    } wrong[] = {
        {{.source = NULL, .seq_len = 64}, "nothing"},
        {{.source = "", .seq_len = 64}, "nothing"},
        {{.source = "builtin:chess", .seq_len = 64}, "'builtin:chess'|builtin:arithmetic, builtin:grammar"},
        {{.source = "builtin:grammar", .seq_len = 64, .tokenizer = "bpe"}, "'bpe'"},
        {{.source = "builtin:grammar", .seq_len = 3}, "3 tokens|at least 4"},
        {{.source = "builtin:grammar", .seq_len = 1}, "1 tokens|2 to"},
        {{.source = "builtin:grammar", .seq_len = -5}, "-5 tokens"},
        {{.source = "builtin:grammar", .seq_len = INT64_MAX}, "9223372036854775807"},
        {{.source = "builtin:grammar", .seq_len = 64, .eval_fraction = 1}, "eval_fraction of 1"},
        {{.source = "builtin:grammar", .seq_len = 64, .eval_fraction = NAN}, "eval_fraction"},
        {{.source = "builtin:arithmetic", .seq_len = 64, .difficulty = 0}, "0 digits|1 to 6"},
        {{.source = "builtin:arithmetic", .seq_len = 64, .difficulty = 7}, "7 digits|1 to 6"},
        {{.source = "builtin:arithmetic", .seq_len = 9, .difficulty = 2}, "9 tokens|at least 10"},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(wrong); i++)
        expect_error(dataset_open(&d, &wrong[i].o), ERR_INPUT, wrong[i].fragments);
}

static void an_empty_split_gives_padding_and_no_loader(void **state) {
    char bytes[300];
    memset(bytes, 'x', sizeof bytes);
    write_bytes(path_of("all.txt"), bytes, sizeof bytes);
    dataset *d = open_data((data_options){.source = path_of("all.txt"), .seq_len = 64, .pack = true});
    data_report report;
    dataset_report(d, SPLIT_EVAL, &report);
    assert_true(report.fill == 0 && report.n_tokens == 0 && report.n_documents == 0);
    row r;
    get_row(d, SPLIT_EVAL, 3, &r);
    check_row(&r, 64);
    for (int t = 0; t < 64; t++) assert_int_equal(r.tokens[t], TOKEN_PAD);
    loader *l;
    expect_error(loader_open(&l, d, SPLIT_EVAL, 2, 0, 0, 1), ERR_INPUT, "evaluation|empty|eval_fraction");
    assert_null(l);
    expect_error(loader_open(&l, d, SPLIT_TRAIN, 0, 0, 0, 1), ERR_INPUT, "0 rows");
    expect_error(loader_open(&l, d, SPLIT_TRAIN, INT64_MAX, 0, 0, 1), ERR_INPUT, "9223372036854775807 rows");
    dataset_close(d);
}

/* ---- rows and loader ----------------------------------------------------------------------------------------- */

static const char *source_of(int k) {
    static char bytes[5000];
    if (k < 2) return k ? "builtin:grammar" : "builtin:arithmetic";
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (char)rng_u64(77, i);
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
            assert_memory_equal(a->doc, b->doc, 3 * 128 * sizeof(int32_t));
            int64_t n_valid = 0;
            for (int t = 0; t < 3 * 128; t++) n_valid += a->targets[t] >= 0;
            assert_int_equal(a->n_valid, n_valid);
            assert_int_equal(b->n_valid, n_valid);
            for (uint64_t r = 0; r < 3; r++) { /* and they are the data set's own rows */
                row x;
                get_row(d, SPLIT_TRAIN, a->first_row + r, &x);
                assert_memory_equal(x.tokens, a->tokens + r * 128, 128 * sizeof(int32_t));
                assert_memory_equal(x.targets, a->targets + r * 128, 128 * sizeof(int32_t));
                assert_memory_equal(x.doc, a->doc + r * 128, 128 * sizeof(int32_t));
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
            dataset_row(d, SPLIT_TRAIN, i, r.tokens, r.targets, r.doc);
            (void)loader_next(l);
        }
        guard_disarm();
        assert_int_equal(guard_count(), before);
        assert_int_equal(loader_host_bytes(4, 128), 3 * 3 * 4 * 128 * sizeof(int32_t));
        loader_close(l);
        dataset_close(d);
    }
}

/* A tokenizer of four letters, one merge and an end of text: "abab" is two tokens. */
static void text_goes_through_a_file_tokenizer(void **state) {
    static const char json[] =
        "{\"added_tokens\":[{\"id\":5,\"content\":\"<|endoftext|>\",\"special\":true,\"normalized\":false,"
        "\"lstrip\":false,\"rstrip\":false,\"single_word\":false}],\"model\":{\"type\":\"BPE\",\"vocab\":"
        "{\"a\":0,\"b\":1,\"c\":2,\"d\":3,\"ab\":4},\"merges\":[\"a b\"]}}";
    const char *tokens_path = path_of("tokenizer.json"), *text_path = path_of("letters.txt");
    write_bytes(tokens_path, json, sizeof json - 1);
    write_bytes(text_path, "ababcdcd", 8);
    data_options o = {.source = text_path, .tokenizer = tokens_path, .seq_len = 8, .pack = false, .seed = 1};
    dataset *d = open_data(o);
    static const int32_t want[] = {4, 4, 2, 3, 2, 3, 5, 5}, targets[] = {4, 2, 3, 2, 3, 5, -1, -1};
    row r;
    get_row(d, SPLIT_TRAIN, 0, &r);
    assert_memory_equal(r.tokens, want, sizeof want);
    assert_memory_equal(r.targets, targets, sizeof targets);
    assert_int_equal(r.doc[6], 0); /* the end of text belongs to the document, the padding behind it does not */
    assert_int_equal(r.doc[7], 7);
    data_report report;
    dataset_report(d, SPLIT_TRAIN, &report);
    assert_int_equal(report.n_tokens, 7);
    assert_true(dataset_host_bytes(d) <= dataset_host_bytes_at_most(&o) + 4096); /* arrays grow in steps */
    dataset_close(d);
    o.source = "builtin:grammar";
    dataset *none;
    expect_error(dataset_open(&none, &o), ERR_INPUT, "built-in sources are bytes");
}

/* Where a tokenizer has no end of text, the parts of a file have nothing between them but the split. */
static void text_without_an_end_token_is_split_all_the_same(void **state) {
    static const char json[] = "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]}}";
    const char *tokens_path = path_of("tokenizer.json"), *text_path = path_of("halves.txt");
    char text[100];
    memset(text, 'a', 60);
    memset(text + 60, 'b', 40); /* these are kept for evaluation */
    write_bytes(tokens_path, json, sizeof json - 1);
    write_bytes(text_path, text, sizeof text);
    for (int pack = 0; pack < 2; pack++) {
        dataset *d = open_data((data_options){.source = text_path,
                                              .tokenizer = tokens_path,
                                              .seq_len = 8,
                                              .pack = pack,
                                              .eval_fraction = 0.4,
                                              .seed = 1});
        for (split which = SPLIT_TRAIN; which <= SPLIT_EVAL; which++) {
            int64_t n_targets = 0;
            data_report report;
            dataset_report(d, which, &report);
            for (uint64_t i = 0; i < report.rows_per_epoch; i++) {
                row r;
                get_row(d, which, i, &r);
                for (int k = 0; k < 8; k++) {
                    n_targets += r.targets[k] >= 0;
                    if (r.targets[k] >= 0) assert_int_equal(r.targets[k], which);
                    if (r.targets[k] >= 0) assert_int_equal(r.tokens[k], which);
                }
            }
            assert_int_equal(n_targets, which == SPLIT_TRAIN ? 59 : 39);
        }
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
        cmocka_unit_test(text_rows_cover_every_pair_of_tokens_once_per_epoch),
        cmocka_unit_test(text_epochs_are_permutations_and_differ),
        cmocka_unit_test(text_that_cannot_be_trained_on_is_refused),
        cmocka_unit_test(an_empty_split_gives_padding_and_no_loader),
        cmocka_unit_test(rows_are_pure_functions_of_seed_split_and_index),
        cmocka_unit_test(a_loader_opened_at_row_k_continues_exactly),
        cmocka_unit_test(a_borrowed_batch_stays_as_it_is),
        cmocka_unit_test(loaders_close_at_any_moment),
        cmocka_unit_test(rows_and_batches_allocate_nothing),
        cmocka_unit_test(text_goes_through_a_file_tokenizer),
        cmocka_unit_test(text_without_an_end_token_is_split_all_the_same),
    };
    return cmocka_run_group_tests(tests, test_dir_open, test_dir_close);
}
