/* test_survey.c - rows follow the lengths of the records: all of them are held, or 99 %, at most the model's positions;
 * what would lose more than 1 % is refused by the setting that keeps it. And the eval split may be files of its own. */
#include "data/data.h"
#include "files.h"

#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <cmocka.h>

/* n records of `usual` bytes of prompt and response together, then one of `longest`; tokens: those and EOS. */
static const char *write_records(const char *name, int n, int usual, int longest) {
    const char *path = path_of(name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    for (int i = 0; i <= n; i++) {
        int bytes = i < n ? usual : longest;
        fprintf(f, "{\"prompt\": \"%04d\", \"completion\": \"%0*d\"}\n", i, bytes - 4, i);
    }
    assert_int_equal(fclose(f), 0);
    return path;
}

static data_survey survey_of(data_options o) {
    dataset *d;
    data_survey s;
    if (!o.tokenizer) o.tokenizer = "byte";
    assert_int_equal(dataset_open(&d, &o), OK);
    dataset_survey(d, &s);
    dataset_close(d);
    return s;
}

static void rows_hold_all_records_where_none_is_far_longer(void **state) {
    (void)state;
    data_survey s = survey_of((data_options){.source = write_records("even.jsonl", 999, 100, 180), .pack = true});
    assert_int_equal(s.n, 1000);
    assert_int_equal(s.min, 101);
    assert_int_equal(s.median, 101);
    assert_int_equal(s.p99, 101);
    assert_int_equal(s.max, 181);
    assert_int_equal(s.seq_len, 192); /* 180 places: the last token is only a target */
    assert_true(s.is_chosen);
    assert_int_equal(s.n_cut + s.n_dropped, 0);
    assert_int_equal(data_survey_check(&s, "even.jsonl", 0), OK);
}

static void the_last_hundredth_may_be_far_longer(void **state) {
    (void)state;
    data_survey s = survey_of((data_options){.source = write_records("odd.jsonl", 999, 64, 380), .pack = true});
    assert_int_equal(s.seq_len_most, 64);
    assert_int_equal(s.seq_len, 64); /* exactly what 64 bytes and an EOS that is only a target need */
    assert_int_equal(s.n_cut, 1);
    assert_int_equal(data_survey_check(&s, "odd.jsonl", 0), OK);
}

static void positions_are_the_most_and_what_is_lost_is_refused(void **state) {
    (void)state;
    data_options o = {.source = write_records("long.jsonl", 50, 200, 300), .pack = true, .positions = 128};
    data_survey s = survey_of(o);
    assert_int_equal(s.seq_len, 128);
    assert_int_equal(s.n_cut, 51);
    expect_error(data_survey_check(&s, "long.jsonl", 128), ERR_INPUT,
                 "long.jsonl: 51 of 51 records|row of 128 tokens|51 would be cut|the model has 128 "
                 "positions|model.max_positions=320|data.allow_cut=true");
    o.row_most = 64; /* data.seq_len_max */
    assert_int_equal(survey_of(o).seq_len, 64);
    o.row_most = 192, o.positions = 0;
    assert_int_equal(survey_of(o).seq_len, 192);
    o.row_most = 4096; /* the most, not the length */
    assert_int_equal(survey_of(o).seq_len, 320);
    o.seq_len = 150; /* as it is given, whatever the records are */
    o.positions = 0;
    s = survey_of(o);
    assert_int_equal(s.seq_len, 150);
    assert_false(s.is_chosen);
    expect_error(data_survey_check(&s, "long.jsonl", 0), ERR_INPUT, "data.seq_len=320 keeps all");
    assert_int_equal(data_survey_check(&(data_survey){.n = 100, .n_cut = 1}, "x", 0), OK);
    expect_error(data_survey_check(&(data_survey){.n = 100, .n_cut = 1, .n_dropped = 1, .unit = "records"}, "x", 0),
                 ERR_INPUT, "2 of 100");
}

static void text_has_rows_of_1024_or_what_a_small_file_fills(void **state) {
    (void)state;
    char *text = malloc(5000);
    assert_non_null(text);
    memset(text, 'a', 5000);
    write_bytes(path_of("large.txt"), text, 5000);
    write_bytes(path_of("small.txt"), text, 300);
    free(text);
    data_survey s = survey_of((data_options){.source = path_of("large.txt"), .pack = true});
    assert_int_equal(s.seq_len, 1024);
    assert_int_equal(s.n, 0);
    assert_int_equal(survey_of((data_options){.source = path_of("large.txt"), .pack = true, .positions = 200}).seq_len,
                     200);
    assert_int_equal(survey_of((data_options){.source = path_of("small.txt"), .pack = true}).seq_len, 256);
    assert_int_equal(survey_of((data_options){.source = path_of("large.txt"), .pack = true, .row_most = 2048}).seq_len,
                     2048);
}

static void pairs_and_labelled_answers_need_both_documents(void **state) {
    (void)state;
    write_text(path_of("pairs.jsonl"), "{\"prompt\": \"ab\", \"chosen\": \"cde\", \"rejected\": \"f\"}\n"
                                       "{\"prompt\": \"abc\", \"chosen\": \"d\", \"rejected\": \"fg\"}\n");
    data_survey s = survey_of((data_options){.source = path_of("pairs.jsonl"), .pack = true, .kind = DATA_PAIRS});
    assert_string_equal(s.unit, "pairs");
    assert_int_equal(s.n, 2);
    assert_int_equal(s.min, 10); /* abcde. abf. */
    assert_int_equal(s.max, 11); /* abcd. abcfg. */
    write_text(path_of("labels.jsonl"), "{\"prompt\": \"ab\", \"completion\": \"cde\", \"label\": true}\n"
                                        "{\"prompt\": \"xyz\", \"completion\": \"d\", \"label\": false}\n");
    s = survey_of((data_options){.source = path_of("labels.jsonl"), .pack = true, .kind = DATA_LABELLED});
    assert_int_equal(s.n, 2);
    assert_int_equal(s.min, 10); /* abcde. abd. */
    assert_int_equal(s.max, 12); /* xyzd. xyzcde. */
}

static void prompts_have_room_for_a_completion(void **state) {
    (void)state;
    data_options o = {.source = write_records("ask.jsonl", 20, 40, 70), .kind = DATA_PROMPTS, .completion = 100};
    data_survey s = survey_of(o);
    assert_string_equal(s.unit, "prompts");
    assert_int_equal(s.n, 21);
    assert_int_equal(s.max, 4);
    assert_int_equal(s.seq_len, 128);
    assert_int_equal(s.rows_per_epoch, 21);
}

/* Weights are for training: what is evaluated on is one list of rows beside them. */
static void a_file_to_evaluate_on_stands_beside_a_mixture(void **state) {
    (void)state;
    char source[300];
    dataset *d;
    data_report r;
    int32_t tokens[64], targets[64], doc_start[64];
    uint64_t alone, with;
    snprintf(source, sizeof source, "%s:0.9, %s:0.1", write_records("a.jsonl", 39, 30, 30),
             write_records("b.jsonl", 9, 30, 30));
    data_options o = {.source = source, .tokenizer = "byte", .seq_len = 64, .eval_fraction = 0.5};
    assert_int_equal(dataset_open(&d, &o), OK);
    alone = dataset_fingerprint(d);
    dataset_close(d);
    o.eval_source = write_records("c.jsonl", 6, 40, 50);
    assert_int_equal(dataset_open(&d, &o), OK);
    with = dataset_fingerprint(d);
    dataset_report(d, SPLIT_EVAL, &r);
    assert_int_equal(r.n_documents, 7);
    assert_int_equal(r.rows_per_epoch, 7);
    assert_int_equal(dataset_n_places(d, SPLIT_EVAL), 7);
    for (uint64_t i = 0; i < 20; i++) { /* '0' of the numbers in c.jsonl, 40 bytes at least: nothing of the others */
        dataset_row(d, SPLIT_EVAL, i, tokens, targets, doc_start);
        assert_true(targets[38] >= 0 && dataset_place(d, SPLIT_EVAL, i) < 7);
    }
    dataset_report(d, SPLIT_TRAIN, &r);
    assert_int_equal(r.n_documents, 50); /* nothing is held out */
    dataset_close(d);
    assert_true(alone != with);
    o.eval_source = "c.jsonl:1";
    expect_error(dataset_open(&d, &o), ERR_INPUT, "data.eval_source|a weight for 'c.jsonl'");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_hold_all_records_where_none_is_far_longer),
        cmocka_unit_test(the_last_hundredth_may_be_far_longer),
        cmocka_unit_test(positions_are_the_most_and_what_is_lost_is_refused),
        cmocka_unit_test(text_has_rows_of_1024_or_what_a_small_file_fills),
        cmocka_unit_test(pairs_and_labelled_answers_need_both_documents),
        cmocka_unit_test(prompts_have_room_for_a_completion),
        cmocka_unit_test(a_file_to_evaluate_on_stands_beside_a_mixture),
    };
    return cmocka_run_group_tests(tests, test_dir_open, test_dir_close);
}
