/* test_reward_program.c - a reward program may crash, hang, be late, write garbage or never read: every item has its own score or none, all is
 * counted, and no process is left. Programs here are lines of /bin/sh. */
#include "reward/reward.h"
#include "files.h"
#include "must.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The column "id" of a line into $id. */
#define EACH "while read -r line; do id=${line##*'\"id\":'}; id=${id%%[,\\}]*}; "
enum { MOST = 64 };

static json_t *columns[MOST];
static reward_item items[MOST];
static double scores[MOST];
static reward_report report;

static void make_items(void) {
    for (int i = 0; i < MOST; i++) {
        columns[i] = json_pack("{s:i}", "id", i);
        items[i] = (reward_item){
            .prompt = {"a \"prompt\"\n", 11}, .completion = {"c\xff", 2}, .n_tokens = i, .columns = columns[i]};
    }
}

static reward_options options_of(const char *program) {
    return (reward_options){.list = "program", .program = program, .workers = 2, .timeout = 20, .retries = 3};
}

static rewards *open_rewards(reward_options o) {
    rewards *r;
    if (rewards_open(&r, &o) != OK) fail_msg("%s", error_message());
    return r;
}

static void score(rewards *r, size_t n) { must(rewards_score(r, items, n, scores, &report)); }

static void expect_counts(uint64_t unscorable, uint64_t failed) {
    assert_int_equal(report.n_unscorable, unscorable);
    assert_int_equal(report.n_failed, failed);
}

static void expect_failure(const char *words) {
    if (!strstr(report.first_failure, words)) fail_msg("'%s' is not in: %s", words, report.first_failure);
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

static void every_item_has_its_own_score(void **state) {
    for (int64_t workers = 1; workers <= 7; workers += 3) {
        reward_options o = options_of(EACH "echo $id.5; done");
        o.workers = workers;
        rewards *r = open_rewards(o);
        for (int round = 0; round < 3; round++) { /* the programs are kept */
            score(r, MOST);
            for (int i = 0; i < MOST; i++) assert_true(scores[i] == i + 0.5);
            expect_counts(0, 0);
            assert_int_equal(report.n_restarts, 0);
        }
        rewards_close(r);
    }
}

/* Columns whose names are taken are renamed; bytes that are not UTF-8 become U+FFFD. */
static void an_item_is_one_line_of_json(void **state) {
    char command[256];
    snprintf(command, sizeof command, "while read -r line; do printf '%%s\\n' \"$line\" >>%s; echo 1; done",
             path_of("lines"));
    json_t *own = json_pack("{s:s, s:{s:[i]}}", "completion", "right", "x", "y", 1);
    reward_item item = items[3];
    item.columns = own;
    item.truncated = true;
    reward_options o = options_of(command);
    o.workers = 1;
    rewards *r = open_rewards(o);
    must(rewards_score(r, &item, 1, scores, NULL));
    item.columns = NULL;
    must(rewards_score(r, &item, 1, scores, NULL));
    rewards_close(r);
    char *text;
    size_t n;
    must(file_read_all(path_of("lines"), 4096, &text, &n));
    assert_string_equal(
        text, "{\"prompt\":\"a \\\"prompt\\\"\\n\",\"completion\":\"c\\uFFFD\",\"n_tokens\":3,\"truncated\":true,"
              "\"data_completion\":\"right\",\"x\":{\"y\":[1]}}\n"
              "{\"prompt\":\"a \\\"prompt\\\"\\n\",\"completion\":\"c\\uFFFD\",\"n_tokens\":3,\"truncated\":true}\n");
    free(text);
    json_decref(own);
}

static void null_and_objects_are_answers(void **state) {
    rewards *r = open_rewards(options_of(EACH "case $id in 0) echo null;; 1) echo '{\"score\": -2e1, \"why\": [1]}';; "
                                              "2) echo '{\"score\": null}';; *) echo ' 7 ';; esac; done"));
    score(r, 4);
    assert_true(isnan(scores[0]) && scores[1] == -20 && isnan(scores[2]) && scores[3] == 7);
    expect_counts(2, 0);
    assert_string_equal(report.first_failure, "");
    rewards_close(r);
}

/* These are answers, only no numbers: the program goes on. */
static void values_that_are_no_numbers_are_counted(void **state) {
    static const char *const bad[] = {"NaN",
                                      "nan",
                                      "-Infinity",
                                      "inf",
                                      "true",
                                      "\"5\"",
                                      "[1]",
                                      "{}",
                                      "{\"score\": \"5\"}",
                                      "1e999",
                                      "123456789012345678901234567890"};
    strbuf program;
    strbuf_init(&program);
    strbuf_add(&program, EACH "case $id in ");
    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++) strbuf_printf(&program, "%zu) echo '%s';; ", i, bad[i]);
    strbuf_add(&program, "*) echo $id;; esac; done");
    rewards *r = open_rewards(options_of(program.text));
    size_t n = ARRAY_LENGTH(bad);
    score(r, n + 2);
    for (size_t i = 0; i < n; i++) assert_true(isnan(scores[i]));
    assert_true(scores[n] == (double)n && scores[n + 1] == (double)n + 1);
    expect_counts(n, n);
    assert_int_equal(report.n_restarts, 0);
    expect_failure("program: the program answered '");
    rewards_close(r);
    reward_options o = options_of(program.text);
    o.on_error = REWARD_STOP;
    r = open_rewards(o);
    expect_error(rewards_score(r, items, n, scores, &report), ERR_RUN,
                 "reward program: the program answered|reward.on_error=stop");
    rewards_close(r);
    strbuf_fini(&program);
}

/* ---- programs that break ----------------------------------------------------------------------------------------- */

static void what_is_no_answer_is_counted_and_the_program_starts_again(void **state) {
    static const char *const bad[] = {"echo hello", "echo", "echo 1 2", "echo '{\"score\":'", "printf '\\033[31m\\n'"};
    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++) {
        char program[256];
        snprintf(program, sizeof program, EACH "if [ $id = 5 ]; then %s; else echo $id; fi; done", bad[i]);
        rewards *r = open_rewards(options_of(program));
        score(r, 12);
        for (int k = 0; k < 12; k++) assert_true(k == 5 ? isnan(scores[k]) : scores[k] == k);
        expect_counts(1, 1);
        assert_int_equal(report.n_restarts, 1);
        expect_failure("expected a number or null on one line");
        for (const char *c = report.first_failure; *c; c++) assert_true((unsigned char)*c >= 0x20);
        rewards_close(r);
    }
}

/* What it says too much may be taken for the answer to its next item. All that it said is taken back when that is seen: no wrong score
 * is left. */
static void answers_that_may_be_shifted_are_taken_back(void **state) {
    reward_options o = options_of(EACH "if [ $id = 5 ]; then printf '5\\n99\\n'; else echo $id; fi; done");
    for (int64_t workers = 1; workers <= 3; workers++) {
        o.workers = workers;
        rewards *r = open_rewards(o);
        score(r, 12);
        size_t n_missing = 0;
        for (int k = 0; k < 12; k++) {
            assert_true(isnan(scores[k]) || scores[k] == k);
            n_missing += isnan(scores[k]);
        }
        assert_true(isnan(scores[5]));
        if (workers == 1) assert_int_equal(n_missing, 6);
        expect_counts(n_missing, n_missing);
        expect_failure("more than one line");
        rewards_close(r);
    }
}

/* A line too many that comes when the next item is on its way is no answer to it, in the same call or in the next. */
static void lines_that_come_late_spoil_no_later_score(void **state) {
    for (int last = 5; last <= 11; last += 6) { /* of the first call, or in the middle of it */
        char program[256];
        snprintf(program, sizeof program, EACH "echo $id; if [ $id = %d ]; then sleep 0.2; echo 99; fi; done", last);
        reward_options o = options_of(program);
        o.workers = 1;
        rewards *r = open_rewards(o);
        score(r, 12);
        for (int k = 0; k < 12; k++) assert_true(isnan(scores[k]) ? k <= last : scores[k] == k);
        if (last < 11) expect_failure("more than one line");
        for (int round = 0; round < 2; round++) {
            must(rewards_score(r, items + 12, 12, scores, &report));
            for (int k = 0; k < 12; k++) assert_true(scores[k] == k + 12);
            if (round == 0 && last == 11) {
                assert_int_equal(report.n_restarts, 1);
                expect_failure("a line after its last answer");
            } else assert_int_equal(report.n_restarts, 0);
        }
        rewards_close(r);
        o.on_error = REWARD_STOP;
        r = open_rewards(o);
        status rc = rewards_score(r, items, 12, scores, &report);
        if (last == 11) {
            must(rc);
            rc = rewards_score(r, items + 12, 12, scores, &report);
        }
        expect_error(rc, ERR_RUN,
                     last == 11 ? "a line after its last answer|reward.on_error=stop" : "more than one line");
        rewards_close(r);
    }
}

static void a_banner_is_no_answer(void **state) {
    rewards *r = open_rewards(options_of("echo ready; " EACH "echo $id; done"));
    expect_error(rewards_score(r, items, 4, scores, &report), ERR_RUN,
                 "wrote a line that nobody asked for|reward.retries");
    expect_failure("wrote a line before it was asked anything");
    rewards_close(r);
}

/* The item that was lost goes to a new copy, so a program that ends now and then loses nothing. */
static void a_program_that_ends_after_some_lines_loses_nothing(void **state) {
    rewards *r = open_rewards(options_of("n=0; " EACH "echo $id; n=$((n+1)); [ $n = 3 ] && exit 0; done"));
    score(r, 30);
    for (int i = 0; i < 30; i++) assert_true(scores[i] == i);
    expect_counts(0, 0);
    assert_true(report.n_restarts >= 8);
    assert_string_equal(report.first_failure, "");
    assert_string_equal(report.first_restart, "program: the program ended with status 0");
    rewards_close(r);
}

static void an_item_that_kills_the_program_has_no_score(void **state) {
    static const char *const ends[] = {"exit 3", "kill -SEGV $$", "exec >&-; sleep 100", "printf 5; exit 0"};
    static const char *const words[] = {"ended with status 3 2 times with one item", "was killed by signal 11",
                                        "closed its", "ended with status 0"}; /* half a line is no answer */
    for (size_t i = 0; i < ARRAY_LENGTH(ends); i++) {
        char program[256];
        snprintf(program, sizeof program, EACH "if [ $id = 4 ]; then %s; fi; echo $id; done", ends[i]);
        rewards *r = open_rewards(options_of(program));
        score(r, 10);
        for (int k = 0; k < 10; k++) assert_true(k == 4 ? isnan(scores[k]) : scores[k] == k);
        expect_counts(1, 1);
        assert_int_equal(report.n_restarts, 2);
        expect_failure(words[i]);
        rewards_close(r);
    }
}

static void a_late_answer_is_of_nobody(void **state) {
    reward_options o = options_of(EACH "if [ $id = 1 ]; then sleep 3; fi; echo $id; done");
    o.timeout = 1;
    o.workers = 1;
    rewards *r = open_rewards(o);
    double start = clock_s();
    score(r, 6);
    assert_true(clock_s() - start < 60);
    for (int k = 0; k < 6; k++) assert_true(k == 1 ? isnan(scores[k]) : scores[k] == k);
    expect_counts(1, 1);
    expect_failure("no answer within 1 s");
    rewards_close(r);
    o.on_error = REWARD_STOP;
    r = open_rewards(o);
    expect_error(rewards_score(r, items, 3, scores, &report), ERR_RUN, "no answer within 1 s");
    must(rewards_score(r, items + 2, 3, scores, &report)); /* what was late is not taken for one of these */
    for (int k = 0; k < 3; k++) assert_true(scores[k] == k + 2);
    rewards_close(r);
}

static void programs_that_always_break_end_the_run(void **state) {
    static const struct {
        const char *program, *words;
    } cases[] = {{"read -r line; exit 7", "ended with status 7, after 3 restarts in a row"},
                 {"sleep 1000", "gave no answer within 0.2 s"},
                 {EACH "echo ready; done", "answered 'ready'"},
                 {"yes", ""}, /* writes without being asked */
                 {"cat /dev/zero", ""}};
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        reward_options o = options_of(cases[i].program);
        o.timeout = i == 1 ? 0.2 : 20;
        rewards *r = open_rewards(o);
        status rc = rewards_score(r, items, MOST, scores, &report);
        expect_error(rc, ERR_RUN, "reward.program: '|reward.retries");
        expect_error(rc, ERR_RUN, cases[i].words);
        rewards_close(r);
    }
}

/* A program that never reads fills the pipe to it; one that writes a line without end fills the other. Neither stops us. */
static void full_pipes_do_not_block(void **state) {
    size_t n = (size_t)1 << 20;
    char *text = mem_alloc(n);
    memset(text, 'x', n);
    reward_item large[4];
    for (int i = 0; i < 4; i++) large[i] = (reward_item){.completion = {text, n}, .columns = columns[i]};
    reward_options o = options_of("sleep 1000");
    o.timeout = 0.3;
    o.retries = 100;
    rewards *r = open_rewards(o);
    must(rewards_score(r, large, 4, scores, &report));
    expect_counts(4, 4);
    rewards_close(r);
    r = open_rewards(options_of(EACH "echo $id; done"));
    must(rewards_score(r, large, 4, scores, &report));
    for (int i = 0; i < 4; i++) assert_true(scores[i] == i);
    rewards_close(r);
    o = options_of("read -r line; head -c 10000000 /dev/zero | tr '\\0' 9; sleep 100");
    o.retries = 100;
    r = open_rewards(o);
    score(r, 4);
    expect_counts(4, 4);
    expect_failure("a line without end");
    rewards_close(r);
    free(text);
}

static void wrong_requests_are_refused(void **state) {
    rewards *r;
    reward_options o = options_of("");
    expect_error(rewards_open(&r, &o), ERR_INPUT, "reward.program: found nothing");
    o = options_of("cat");
    o.workers = 0;
    expect_error(rewards_open(&r, &o), ERR_INPUT, "reward.workers: found 0");
    o = options_of("cat");
    o.timeout = NAN;
    expect_error(rewards_open(&r, &o), ERR_INPUT, "reward.timeout");
    o = options_of("/nowhere/at/all");
    status rc = rewards_open(&r, &o);
    bool late = rc == OK; /* it may take longer than we wait for it */
    if (late) rc = rewards_score(r, items, MOST, scores, NULL);
    expect_error(rc, late ? ERR_RUN : ERR_INPUT, "/nowhere/at/all|ended with status 127 (command not found)");
    if (late) rewards_close(r);
}

/* ---- nothing is left --------------------------------------------------------------------------------------------- */

/* Is this process there, and no zombie that only its parent has not seen yet? */
static bool is_alive(long pid) {
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *f = fopen(path, "r");
    if (!f) return false;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    const char *state = n ? strrchr(text, ')') : NULL;
    return state && state[2] != 'Z' && state[2] != 'X';
}

static size_t read_pids(const char *path, long *pids, size_t most) {
    size_t n = 0;
    FILE *f = fopen(path, "r");
    while (f && n < most && fscanf(f, "%ld", &pids[n]) == 1) n++;
    if (f) fclose(f);
    return n;
}

static bool all_gone(const long *pids, size_t n) {
    for (int wait = 0; wait < 1000; wait++) {
        size_t alive = 0;
        for (size_t i = 0; i < n; i++) alive += is_alive(pids[i]);
        if (alive == 0) return true;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    return false;
}

/* Writes its own number, the reader of its life pipe is a child of it; it has a child that ignores the end of its input. */
static const char *program_with_children(const char *pids) {
    static char text[512];
    snprintf(text, sizeof text,
             "trap '' TERM HUP INT; sleep 1000 & echo $$ >>%s; echo $! >>%s; " EACH "echo $id; done; sleep 1000", pids,
             pids);
    return text;
}

static void no_process_outlives_close(void **state) {
    long pids[64];
    const char *path = path_of("pids_close");
    reward_options o = options_of(program_with_children(path));
    o.workers = 3;
    rewards *r = open_rewards(o);
    score(r, 20);
    size_t n = read_pids(path, pids, 64);
    assert_int_equal(n, 6);
    for (size_t i = 0; i < n; i++) assert_true(is_alive(pids[i]));
    rewards_close(r);
    assert_true(all_gone(pids, n));
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* none of ours, not even a zombie */
}

/* The process is killed while it waits for an answer that never comes. */
static void no_process_outlives_its_parent(void **state) {
    long pids[64];
    const char *path = path_of("pids_kill");
    write_text(path, "");
    pid_t child = fork();
    if (child == 0) {
        reward_options o = options_of(program_with_children(path));
        o.workers = 2;
        rewards *r;
        if (rewards_open(&r, &o) != OK || rewards_score(r, items, 20, scores, &report) != OK) _exit(1);
        raise(SIGKILL);
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFSIGNALED(how));
    size_t n = read_pids(path, pids, 64);
    assert_int_equal(n, 4);
    assert_true(all_gone(pids, n));
}

/* The host's handling of SIGPIPE, its mask and its files stay as they are. */
static int n_pipes;
static void count_pipe(int signal) { n_pipes++; }

static int open_files(void) { return files_in("/proc/self/fd"); }

static void the_host_notices_nothing(void **state) {
    struct sigaction own = {.sa_handler = count_pipe}, before;
    sigset_t mask;
    sigaction(SIGPIPE, &own, &before);
    int n_files = open_files();
    rewards *r = open_rewards(options_of("n=0; " EACH "echo $id; n=$((n+1)); [ $n = 2 ] && exit 0; done"));
    score(r, 40);
    rewards_close(r);
    assert_int_equal(n_pipes, 0);
    pthread_sigmask(SIG_BLOCK, NULL, &mask);
    assert_false(sigismember(&mask, SIGPIPE));
    sigpending(&mask);
    assert_false(sigismember(&mask, SIGPIPE));
    assert_int_equal(open_files(), n_files);
    sigaction(SIGPIPE, &before, NULL);
}

static int open_all(void **state) {
    make_items();
    return test_dir_open(state);
}

static int close_all(void **state) {
    for (int i = 0; i < MOST; i++) json_decref(columns[i]);
    return test_dir_close(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_item_has_its_own_score),
        cmocka_unit_test(an_item_is_one_line_of_json),
        cmocka_unit_test(null_and_objects_are_answers),
        cmocka_unit_test(values_that_are_no_numbers_are_counted),
        cmocka_unit_test(what_is_no_answer_is_counted_and_the_program_starts_again),
        cmocka_unit_test(answers_that_may_be_shifted_are_taken_back),
        cmocka_unit_test(lines_that_come_late_spoil_no_later_score),
        cmocka_unit_test(a_banner_is_no_answer),
        cmocka_unit_test(a_program_that_ends_after_some_lines_loses_nothing),
        cmocka_unit_test(an_item_that_kills_the_program_has_no_score),
        cmocka_unit_test(a_late_answer_is_of_nobody),
        cmocka_unit_test(programs_that_always_break_end_the_run),
        cmocka_unit_test(full_pipes_do_not_block),
        cmocka_unit_test(wrong_requests_are_refused),
        cmocka_unit_test(no_process_outlives_close),
        cmocka_unit_test(no_process_outlives_its_parent),
        cmocka_unit_test(the_host_notices_nothing),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
