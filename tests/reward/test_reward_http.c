/* test_reward_http.c - scores from a server that answers, is slow, breaks off, is wrong or never ends. The server is a thread of this
 * test. */
#define _GNU_SOURCE 1 /* strcasestr */
#include "reward/reward.h"
#include "files.h"
#include "http_server.h"
#include "must.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>

/* ---- the server -------------------------------------------------------------------------------------------------- */

typedef enum mode {
    RIGHT,
    SILENT,
    FAILS_TWICE,
    NOT_FOUND,
    GARBAGE,
    ONE_SHORT,
    STRANGE_SCORES,
    NOT_FINITE,
    ENDLESS,
    BREAKS_OFF,
    MOVED
} mode;

static atomic_int server_mode, n_requests;
static char url[80], authorization[128]; /* of the last request */

/* Each item's score is its column "id" and a half. */
static bool say_scores(int fd, const char *body, size_t n_bytes, size_t missing) {
    json_t *root = json_loadb(body, n_bytes, 0, NULL), *scores = json_array();
    const json_t *items = json_object_get(root, "items");
    for (size_t i = 0; i + missing < json_array_size(items); i++) {
        double id = json_number_value(json_object_get(json_array_get(items, i), "id"));
        json_array_append_new(scores, json_real(id + 0.5));
    }
    json_t *out = json_pack("{s:o}", "scores", scores);
    char *text = json_dumps(out, 0);
    bool sent = http_say(fd, "200 OK", "", text);
    free(text);
    json_decref(out);
    json_decref(root);
    return sent;
}

static bool say_without_end(int fd) {
    static char zeros[65536];
    static const char head[] = "HTTP/1.1 200 OK\r\n\r\n";
    send(fd, head, sizeof head - 1, MSG_NOSIGNAL);
    while (!http_server_ending() && send(fd, zeros, sizeof zeros, MSG_NOSIGNAL) > 0) {}
    return false;
}

static bool serve(int fd, const strbuf *in, size_t body) {
    if (!strstr(in->text, "application/json") || !str_starts_with(in->text, "POST /score ")) return false;
    const char *login = strcasestr(in->text, "\nauthorization: ");
    snprintf(authorization, sizeof authorization, "%.*s", login ? (int)strcspn(login + 16, "\r") : 0,
             login ? login + 16 : "");
    int n = atomic_fetch_add(&n_requests, 1);
    switch ((mode)atomic_load(&server_mode)) {
    case RIGHT: return say_scores(fd, in->text + body, in->length - body, 0);
    case SILENT: return http_wait_for_hangup(fd);
    case FAILS_TWICE:
        if (n < 2) return http_say(fd, n ? "503 Busy" : "500 Broken", "", "{\"scores\": [9, 9]}");
        return say_scores(fd, in->text + body, in->length - body, 0);
    case NOT_FOUND: return http_say(fd, "404 Not Found", "", "{}");
    case GARBAGE: return http_say(fd, "200 OK", "", "<html>\033[31mno\377</html>");
    case ONE_SHORT: return say_scores(fd, in->text + body, in->length - body, 1);
    case STRANGE_SCORES: return http_say(fd, "200 OK", "", "{\"scores\": [1, null, \"2\", {\"score\": 3}, true]}");
    case NOT_FINITE:
        return http_say(fd, "200 OK", "",
                        "{\"model\": \"a \\\" NaN, [\", \"scores\": [1, NaN,-Infinity, {\"score\": nan}, 3]}");
    case ENDLESS: return say_without_end(fd);
    case BREAKS_OFF: return http_break_off(fd);
    case MOVED: return http_say(fd, "302 Found", "Location: file:///etc/passwd\r\n", "");
    }
    return false;
}

static int server_open(void **state) {
    rewards *r;
    reward_options probe = {.list = "http", .url = "http://127.0.0.1:1/", .timeout = 1};
    if (rewards_open(&r, &probe) != OK) {
        print_message("%s\n", error_message());
        exit(77); /* skipped: no libcurl here */
    }
    rewards_close(r);
    if (http_server_open(serve)) return -1;
    snprintf(url, sizeof url, "%s/score", http_server_url());
    return 0;
}

static int server_close(void **state) { return http_server_close(); }

/* ---- the client -------------------------------------------------------------------------------------------------- */

enum { MOST = 150 };
static json_t *columns[MOST];
static reward_item items[MOST];
static double scores[MOST];
static reward_report report;

static reward_options options_of(mode m) {
    atomic_store(&server_mode, m);
    atomic_store(&n_requests, 0);
    return (reward_options){.list = "http", .url = url, .timeout = 20, .retries = 2};
}

static status score(const reward_options *o, size_t n) {
    rewards *r;
    must(rewards_open(&r, o));
    for (size_t i = 0; i < n; i++) {
        columns[i] = json_pack("{s:i}", "id", (int)i);
        items[i] = (reward_item){.prompt = {"p", 1}, .completion = {"c\xff", 2}, .columns = columns[i]};
    }
    status rc = rewards_score(r, items, n, scores, &report);
    for (size_t i = 0; i < n; i++) json_decref(columns[i]);
    rewards_close(r);
    return rc;
}

static void expect_none(size_t n, const char *words) {
    for (size_t i = 0; i < n; i++) assert_true(isnan(scores[i]));
    assert_int_equal(report.n_failed, n);
    assert_int_equal(report.n_unscorable, n);
    if (!strstr(report.first_failure, words)) fail_msg("'%s' is not in: %s", words, report.first_failure);
    for (const char *c = report.first_failure; *c; c++) assert_true((unsigned char)*c >= 0x20);
}

static void scores_come_back_in_order(void **state) {
    reward_options o = options_of(RIGHT);
    must(score(&o, MOST));
    for (int i = 0; i < MOST; i++) assert_true(scores[i] == i + 0.5);
    assert_int_equal(atomic_load(&n_requests), 3); /* batches of 64 */
    assert_int_equal(report.n_failed, 0);
    must(score(&o, 0));
}

static void an_error_that_may_pass_is_tried_again(void **state) {
    reward_options o = options_of(FAILS_TWICE);
    must(score(&o, 2));
    assert_true(scores[0] == 0.5 && scores[1] == 1.5);
    assert_int_equal(atomic_load(&n_requests), 3);
    o = options_of(FAILS_TWICE);
    o.retries = 1;
    must(score(&o, 2));
    expect_none(2, "http: the server gave status 503");
    assert_int_equal(atomic_load(&n_requests), 2);
}

static void a_silent_server_costs_its_time(void **state) {
    reward_options o = options_of(SILENT);
    o.timeout = 0.2;
    o.retries = 1;
    must(score(&o, 3));
    expect_none(3, "http: the server gave no answer: ");
    o = options_of(SILENT);
    o.timeout = 0.2;
    o.retries = 0;
    o.on_error = REWARD_STOP;
    expect_error(score(&o, 3), ERR_RUN, "reward http: the server gave no answer|reward.on_error=stop");
}

static void wrong_answers_are_counted(void **state) {
    static const struct {
        mode m;
        const char *words;
        int n_requests;
    } cases[] = {{NOT_FOUND, "status 404, expected 200", 1},    {MOVED, "status 302", 1},
                 {GARBAGE, "expected {\"scores\": [...]}", 1},  {ONE_SHORT, "4 scores, expected 5", 1},
                 {ENDLESS, "an answer of more than 16 MiB", 1}, {BREAKS_OFF, "no answer: ", 3}};
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        reward_options o = options_of(cases[i].m);
        must(score(&o, 5));
        expect_none(5, cases[i].words);
        assert_int_equal(atomic_load(&n_requests), cases[i].n_requests);
    }
}

static void single_scores_may_be_missing_or_wrong(void **state) {
    reward_options o = options_of(STRANGE_SCORES);
    must(score(&o, 5));
    assert_true(scores[0] == 1 && isnan(scores[1]) && isnan(scores[2]) && scores[3] == 3 && isnan(scores[4]));
    assert_int_equal(report.n_unscorable, 3);
    assert_int_equal(report.n_failed, 2);
    assert_non_null(strstr(report.first_failure, "the server gave the score '2'"));
}

/* Python's json writes what JSON has no word for: each costs its own completion alone. */
static void scores_that_are_not_finite_are_their_own(void **state) {
    reward_options o = options_of(NOT_FINITE);
    must(score(&o, 5));
    assert_true(scores[0] == 1 && isnan(scores[1]) && isnan(scores[2]) && isnan(scores[3]) && scores[4] == 3);
    assert_int_equal(report.n_failed, 3);
    assert_non_null(strstr(report.first_failure, "the server gave the score 'NaN', expected a finite number"));
}

static void wrong_requests_are_refused(void **state) {
    rewards *r;
    static const char *const bad[] = {NULL, "", "ftp://x/", "file:///etc/passwd", "127.0.0.1:80"};
    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++)
        expect_error(rewards_open(&r, &(reward_options){.list = "http", .url = bad[i], .timeout = 1}), ERR_INPUT,
                     "reward.url: found");
    expect_error(rewards_open(&r, &(reward_options){.list = "http", .url = url}), ERR_INPUT, "reward.timeout: found 0");
    static const char *const logins[] = {"http://u:secret@h/",
                                         "u:secret@h",
                                         "ftp://u:secret@h",
                                         "http:///u:secret@h",
                                         "https://h/score?key=secret",
                                         "https://h/score#secret",
                                         "http://h\\secret"};
    for (size_t i = 0; i < ARRAY_LENGTH(logins); i++) {
        expect_error(rewards_open(&r, &(reward_options){.list = "http", .url = logins[i], .timeout = 1}), ERR_INPUT,
                     "reward.url: found an address with|RALO_REWARD_TOKEN");
        assert_null(strstr(error_message(), "secret"));
    }
    reward_options o = options_of(RIGHT);
    o.url = "http://127.0.0.1:1/score"; /* nobody listens */
    o.retries = 0;
    must(score(&o, 2));
    expect_none(2, "no answer: ");
}

/* Whatever server a config names. */
static void a_login_goes_only_to_the_server_of_the_environment(void **state) {
    static const char *const others[] = {NULL, "http://127.0.0.1:1/score", "https://elsewhere/"};
    rewards *r;
    reward_options o = options_of(RIGHT);
    setenv("RALO_REWARD_TOKEN", "very-secret", 1);
    for (size_t i = 0; i < ARRAY_LENGTH(others); i++) {
        if (others[i]) setenv("RALO_REWARD_URL", others[i], 1);
        expect_error(rewards_open(&r, &o), ERR_INPUT, "reward.url: found http://127.0.0.1:|RALO_REWARD_URL");
        assert_null(strstr(error_message(), "secret"));
    }
    assert_int_equal(atomic_load(&n_requests), 0);
    setenv("RALO_REWARD_URL", http_server_url(), 1);
    must(score(&o, 2));
    assert_string_equal(authorization, "Bearer very-secret");
    o = options_of(MOVED); /* a redirect is not followed, so nobody else gets it */
    must(score(&o, 2));
    assert_int_equal(atomic_load(&n_requests), 1);
    unsetenv("RALO_REWARD_TOKEN");
    setenv("RALO_REWARD_USERNAME", "anna", 1);
    setenv("RALO_REWARD_PASSWORD", "very-secret", 1);
    o = options_of(RIGHT);
    must(score(&o, 2));
    assert_string_equal(authorization, "Basic YW5uYTp2ZXJ5LXNlY3JldA==");
    unsetenv("RALO_REWARD_USERNAME");
    unsetenv("RALO_REWARD_PASSWORD");
    unsetenv("RALO_REWARD_URL");
    must(score(&o, 2));
    assert_string_equal(authorization, "");
}

/* A run must not go on to its end without a single score. */
static void a_server_that_is_gone_ends_the_run(void **state) {
    rewards *r;
    reward_options o = options_of(NOT_FOUND);
    json_t *own = json_pack("{s:i}", "id", 0);
    reward_item item = {.prompt = {"p", 1}, .completion = {"c", 1}, .columns = own};
    must(rewards_open(&r, &o));
    for (int i = 0; i < 2; i++) must(rewards_score(r, &item, 1, scores, &report));
    atomic_store(&server_mode, RIGHT); /* an answer begins the count anew */
    must(rewards_score(r, &item, 1, scores, &report));
    assert_true(scores[0] == 0.5);
    atomic_store(&server_mode, NOT_FOUND);
    for (int i = 0; i < 2; i++) must(rewards_score(r, &item, 1, scores, &report));
    must(rewards_score(r, &item, 0, scores, &report)); /* nothing to score says nothing about the server */
    expect_error(rewards_score(r, &item, 1, scores, &report), ERR_RUN,
                 "reward.url: |gave no score 3 times in a row: |status 404, expected 200");
    rewards_close(r);
    json_decref(own);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_come_back_in_order),
        cmocka_unit_test(a_login_goes_only_to_the_server_of_the_environment),
        cmocka_unit_test(an_error_that_may_pass_is_tried_again),
        cmocka_unit_test(a_silent_server_costs_its_time),
        cmocka_unit_test(wrong_answers_are_counted),
        cmocka_unit_test(single_scores_may_be_missing_or_wrong),
        cmocka_unit_test(scores_that_are_not_finite_are_their_own),
        cmocka_unit_test(wrong_requests_are_refused),
        cmocka_unit_test(a_server_that_is_gone_ends_the_run),
    };
    return cmocka_run_group_tests(tests, server_open, server_close);
}
