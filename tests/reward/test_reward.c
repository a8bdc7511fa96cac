/* test_reward.c - lists of rewards, and what the built-in ones give. */
#include "reward/reward.h"
#include "files.h"
#include "must.h"

#include <math.h>
#include <stdlib.h>

static reward_item item_of(const char *completion, const json_t *columns) {
    return (reward_item){
        .prompt = {"p", 1}, .completion = {completion, strlen(completion)}, .n_tokens = 3, .columns = columns};
}

static rewards *open_rewards(reward_options o) {
    rewards *r;
    if (rewards_open(&r, &o) != OK) fail_msg("%s", error_message());
    return r;
}

/* The score of one completion by one reward. */
static double score_of(reward_options o, const char *completion, const char *columns) {
    double score;
    rewards *r = open_rewards(o);
    json_t *v = columns ? json_loads(columns, 0, NULL) : NULL;
    reward_item item = item_of(completion, v);
    must(rewards_score(r, &item, 1, &score, NULL));
    rewards_close(r);
    json_decref(v);
    return score;
}

static void refuse(reward_options o, const char *words) {
    rewards *r;
    status rc = rewards_open(&r, &o);
    assert_null(r);
    expect_error(rc, ERR_INPUT, words);
}

static void lists_have_names_and_weights(void **state) {
    rewards *r = open_rewards(
        (reward_options){.list = " numeric , format : 0.25,length:-1e-1", .answer = "answer", .length = 2});
    static const char *const names[] = {"numeric", "format", "length"};
    static const double weights[] = {1, 0.25, -0.1};
    assert_int_equal(rewards_count(r), 3);
    for (size_t i = 0; i < 3; i++) {
        assert_string_equal(rewards_name(r, i), names[i]);
        assert_true(rewards_weight(r, i) == weights[i]);
    }
    assert_true(rewards_total(r, (double[]){1, 1, -0.5}) == 1 + 0.25 + -0.1 * -0.5);
    assert_true(isnan(rewards_total(r, (double[]){1, NAN, 0})));
    rewards_close(r);
    refuse((reward_options){.list = NULL}, "reward.list: found 'nothing'|exact, numeric");
    refuse((reward_options){.list = ""}, "reward.list");
    refuse((reward_options){.list = "exct"}, "found 'exct'");
    refuse((reward_options){.list = "exact,", .answer = "a"}, "found ''");
    refuse((reward_options){.list = "length,length", .length = 1}, "found length twice");
    refuse((reward_options){.list = "length:", .length = 1}, "weight ''");
    refuse((reward_options){.list = "length:x", .length = 1}, "weight 'x'");
    refuse((reward_options){.list = "length:inf", .length = 1}, "weight 'inf'");
    refuse((reward_options){.list = "length:1e999", .length = 1}, "weight '1e999'");
    refuse((reward_options){.list = "exact"}, "reward.answer: found nothing");
    refuse((reward_options){.list = "numeric", .answer = "a", .tolerance = -1}, "reward.tolerance: found -1");
    refuse((reward_options){.list = "numeric", .answer = "a", .tolerance = NAN}, "reward.tolerance");
    refuse((reward_options){.list = "length"}, "reward.length: found 0");
    refuse((reward_options){.list = "regex"}, "reward.pattern: found nothing");
    refuse((reward_options){.list = "regex", .pattern = "a("}, "reward.pattern: found 'a('|byte 2");
    refuse((reward_options){.list = "format", .pattern = "\\C"}, "reward.pattern");
    assert_non_null(strstr(reward_list_help, "; length: 0 up to reward.length tokens")); /* help has every row of the list */
}

static void exact_compares_text(void **state) {
    reward_options o = {.list = "exact", .answer = "answer"};
    assert_true(score_of(o, "280", "{\"answer\": \"280\"}") == 1);
    assert_true(score_of(o, " 280 \n", "{\"answer\": \"280\"}") == 1);
    assert_true(score_of(o, "28", "{\"answer\": \"280\"}") == 0);
    assert_true(score_of(o, "280", "{\"answer\": 280}") == 1);
    assert_true(score_of(o, "2.5", "{\"answer\": 2.5}") == 1);
    assert_true(score_of(o, "082", "{\"answer\": 82}") == 0);
    assert_true(score_of(o, "The answer is Paris.", "{\"answer\": \"Paris\"}") == 1);
    assert_true(score_of(o, "so #### 72", "{\"answer\": \"x\\n#### 72\"}") == 1);
    assert_true(score_of(o, "", "{\"answer\": \"\"}") == 1);
    assert_true(isnan(score_of(o, "1", "{\"answer\": null}")));
}

static void numeric_compares_numbers(void **state) {
    reward_options o = {.list = "numeric", .answer = "a"};
    assert_true(score_of(o, "I get 1,234.0", "{\"a\": \"work\\n#### 1234\"}") == 1);
    assert_true(score_of(o, "I get 1,234.1", "{\"a\": 1234}") == 0);
    assert_true(score_of(o, "082", "{\"a\": 82}") == 1);
    assert_true(score_of(o, "-5", "{\"a\": -5}") == 1);
    assert_true(score_of(o, "nothing", "{\"a\": 0}") == 0);
    assert_true(score_of(o, "0", "{\"a\": 0.0}") == 1);
    o.tolerance = 0.01;
    assert_true(score_of(o, "101", "{\"a\": 100}") == 1);
    assert_true(score_of(o, "101.1", "{\"a\": 100}") == 0);
    assert_true(score_of(o, "-99", "{\"a\": -100}") == 1);
    assert_true(score_of(o, "0.001", "{\"a\": 0}") == 0);
}

static void patterns_match(void **state) {
    reward_options o = {.list = "regex", .pattern = "a.b"};
    assert_true(score_of(o, "xx a\nb xx", NULL) == 1);
    assert_true(score_of(o, "ab", NULL) == 0);
    o.list = "format";
    assert_true(score_of(o, "a\nb", NULL) == 1);
    assert_true(score_of(o, "a\nb\n", NULL) == 0);
    o.pattern = NULL;
    assert_true(score_of(o, "<think>\nhm\n</think>\n<answer>4</answer>", NULL) == 1);
    assert_true(score_of(o, "<think>hm</think> 4", NULL) == 0);
    o.pattern = "\\w+ \xc3\xa4.";
    assert_true(score_of(o, "gr\xc3\xbc\xc3\x9f \xc3\xa4\xe2\x82\xac", NULL) == 1);
    assert_true(score_of(o, "gr\xff \xc3\xa4\xe2\x82\xac", NULL) == 0); /* not UTF-8 */
    assert_true(score_of(o, "", NULL) == 0);
}

static void length_is_free_and_then_costs(void **state) {
    static const int64_t tokens[] = {0, 10, 11, 15, 20, 1000000000000};
    static const double expected[] = {0, 0, -0.1, -0.5, -1, -1};
    rewards *r = open_rewards((reward_options){.list = "length", .length = 10});
    for (size_t i = 0; i < ARRAY_LENGTH(tokens); i++) {
        double score;
        reward_item item = {.n_tokens = tokens[i]};
        must(rewards_score(r, &item, 1, &score, NULL));
        assert_true(score == expected[i]);
    }
    rewards_close(r);
}

/* A nested repetition would try 2^40 ways. */
static void a_catastrophic_pattern_is_stopped(void **state) {
    reward_options o = {.list = "regex, length", .pattern = "^(a+)+$", .length = 5};
    reward_item items[] = {item_of("aaa", NULL), item_of("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", NULL)};
    double scores[4];
    reward_report report;
    rewards *r = open_rewards(o);
    must(rewards_score(r, items, 2, scores, &report));
    assert_true(scores[0] == 1 && isnan(scores[2]) && scores[1] == 0 && scores[3] == 0);
    assert_int_equal(report.n_failed, 1);
    assert_int_equal(report.n_unscorable, 1);
    assert_non_null(strstr(report.first_failure, "regex: reward.pattern could not be matched"));
    rewards_close(r);
    o.on_error = REWARD_STOP;
    r = open_rewards(o);
    expect_error(rewards_score(r, items, 2, scores, &report), ERR_RUN, "reward regex: |reward.on_error=stop");
    rewards_close(r);
}

static void a_missing_column_is_an_error_and_a_bad_one_is_counted(void **state) {
    reward_report report;
    double score;
    rewards *r = open_rewards((reward_options){.list = "numeric", .answer = "a"});
    json_t *v = json_loads("{\"b\": 1, \"c\": 2}", 0, NULL);
    reward_item item = item_of("1", v);
    expect_error(rewards_score(r, &item, 1, &score, &report), ERR_INPUT,
                 "reward.answer|prompt 'p'|no column 'a'|'b', 'c'");
    item.columns = NULL;
    expect_error(rewards_score(r, &item, 1, &score, &report), ERR_INPUT, "no column 'a'; it has none");
    static const char *const bad[] = {"[1]", "{}", "true", "\"none\"", "\"\""};
    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++) {
        json_object_set_new(v, "a", json_loads(bad[i], JSON_DECODE_ANY, NULL));
        item.columns = v;
        must(rewards_score(r, &item, 1, &score, &report));
        assert_true(isnan(score));
        assert_int_equal(report.n_failed, 1);
        assert_int_equal(report.n_unscorable, 1);
        assert_non_null(strstr(report.first_failure, "the column 'a' holds"));
    }
    json_object_set_new(v, "a", json_null());
    must(rewards_score(r, &item, 1, &score, &report));
    assert_true(isnan(score) && report.n_failed == 0 && report.n_unscorable == 1 && !*report.first_failure);
    must(rewards_score(r, &item, 0, &score, &report));
    assert_int_equal(report.n_unscorable, 0);
    json_decref(v);
    rewards_close(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_have_names_and_weights),
        cmocka_unit_test(exact_compares_text),
        cmocka_unit_test(numeric_compares_numbers),
        cmocka_unit_test(patterns_match),
        cmocka_unit_test(length_is_free_and_then_costs),
        cmocka_unit_test(a_catastrophic_pattern_is_stopped),
        cmocka_unit_test(a_missing_column_is_an_error_and_a_bad_one_is_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
