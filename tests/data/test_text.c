/* test_text.c - text files as rows: every pair of tokens once per epoch, in another order each time, by bytes or by the
 * tokenizer of a file; texts that cannot be trained on are refused. */
#include "files.h"
#include "rows.h"

#include <math.h>
#include <stdlib.h>

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
                for (int64_t t = 0; t < T && r.tokens[t] != TOKEN_PAD; t++) assert_int_equal(r.doc_start[t], 0);
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
            for (size_t i = 0; i < size_sets[k][f]; i++) bytes[i] = (unsigned char)(1 + rng_below(k * 3 + f, i, 255));
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
    o = (data_options){.source = test_dir, .seq_len = 64, .pack = true}; /* a directory: all of its files */
    expect_error(dataset_open(&d, &o), ERR_INPUT, "empty.txt|empty file");
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
    assert_int_equal(r.doc_start[6], 0); /* the end of text belongs to the document, the padding behind it does not */
    assert_int_equal(r.doc_start[7], 7);
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
        cmocka_unit_test(text_rows_cover_every_pair_of_tokens_once_per_epoch),
        cmocka_unit_test(text_epochs_are_permutations_and_differ),
        cmocka_unit_test(text_that_cannot_be_trained_on_is_refused),
        cmocka_unit_test(an_empty_split_gives_padding_and_no_loader),
        cmocka_unit_test(text_goes_through_a_file_tokenizer),
        cmocka_unit_test(text_without_an_end_token_is_split_all_the_same),
    };
    return cmocka_run_group_tests(tests, test_dir_open, test_dir_close);
}
