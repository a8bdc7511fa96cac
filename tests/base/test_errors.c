/* test_errors.c - errors keep their message and trail, asserts are on, the log writes whole lines. */
#include "base/memory.h"
#include "child.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- errors -------------------------------------------------------------------------------------------------- */

static status fail_at_depth(int depth) {
    if (depth == 0) return ERR(ERR_FIT, "%d bytes are missing", 42);
    TRY(fail_at_depth(depth - 1));
    return OK;
}

static void test_error_keeps_message_and_trail(void **state) {
    error_clear();
    assert_string_equal(error_message(), "");
    assert_int_equal(fail_at_depth(2), ERR_FIT);
    assert_int_equal(error_code(), ERR_FIT);
    assert_string_equal(error_message(), "42 bytes are missing");
    assert_int_equal(error_trail_length(), 3);
    for (int i = 0; i < 3; i++) {
        assert_true(str_starts_with(error_trail_at(i), "tests/base/test_errors.c:"));
        assert_true(str_ends_with(error_trail_at(i), " fail_at_depth"));
    }
    assert_string_not_equal(error_trail_at(0), error_trail_at(1));
    assert_string_equal(error_trail_at(3), "");
    assert_string_equal(error_trail_at(-1), "");
}

static void test_error_trail_overflow_keeps_both_ends(void **state) {
    assert_int_equal(fail_at_depth(40), ERR_FIT);
    assert_int_equal(error_trail_length(), 16);
    status rc = OK;
    TRY_GOTO(rc, fail_at_depth(40), out);
out:
    assert_int_equal(rc, ERR_FIT);
    assert_int_equal(error_trail_length(), 16);
    assert_true(str_ends_with(error_trail_at(0), " fail_at_depth"));
    assert_true(str_ends_with(error_trail_at(15), " test_error_trail_overflow_keeps_both_ends"));
}

static void test_error_message_may_be_built_from_the_previous_one(void **state) {
    ERR(ERR_INPUT, "inner");
    assert_int_equal(ERR(ERR_IO, "outer of [%s]", error_message()), ERR_IO);
    assert_string_equal(error_message(), "outer of [inner]");
    assert_int_equal(error_trail_length(), 1);

    char *longer = mem_alloc(5000);
    memset(longer, 'x', 4999);
    ERR(ERR_IO, "%s", longer);
    assert_int_equal(strlen(error_message()), sizeof((error_record *)0)->message - 1);
    free(longer);
}

static status returns_bare_code(void) { return ERR_RUN; }

static status passes_bare_code(void) {
    TRY(returns_bare_code());
    return OK;
}

static void test_error_without_message_does_not_show_an_old_one(void **state) {
    ERR(ERR_IO, "old news");
    assert_int_equal(passes_bare_code(), ERR_RUN);
    assert_null(strstr(error_message(), "old news"));
    assert_string_not_equal(error_message(), "");
}

static void *fail_on_thread(void *out) {
    assert_string_equal(error_message(), "");
    fail_at_depth(1);
    error_take(out);
    assert_string_equal(error_message(), "");
    assert_int_equal(error_code(), OK);
    return NULL;
}

static void test_error_is_per_thread_and_can_be_carried(void **state) {
    error_record carried;
    pthread_t thread;
    ERR(ERR_IO, "mine");
    assert_int_equal(pthread_create(&thread, NULL, fail_on_thread, &carried), 0);
    pthread_join(thread, NULL);
    assert_string_equal(error_message(), "mine");
    assert_int_equal(error_give(&carried), ERR_FIT);
    assert_string_equal(error_message(), "42 bytes are missing");
    assert_int_equal(error_trail_length(), 2);
}

static char *printed_error(void) {
    static char text[4096];
    memset(text, 0, sizeof text);
    FILE *f = fmemopen(text, sizeof text - 1, "w");
    assert_non_null(f);
    error_print(f);
    fclose(f);
    return text;
}

static void test_error_print_shows_the_trail_on_wish_and_for_bugs(void **state) {
    unsetenv("RALO_TRAIL");
    fail_at_depth(1);
    assert_string_equal(printed_error(), "error: 42 bytes are missing\n");
    setenv("RALO_TRAIL", "1", 1);
    assert_non_null(strstr(printed_error(), " fail_at_depth\n"));
    unsetenv("RALO_TRAIL");
    ERR(ERR_BUG, "impossible");
    assert_non_null(strstr(printed_error(), "test_error_print_shows_the_trail"));
    error_clear();
    assert_string_equal(printed_error(), "");
}

static int need_more_than_there_is(void) {
    mem_exit_when_refused(error_exit_code(ERR_RUN));
    if (!mem_is_there((size_t)16 << 20) || mem_is_there((size_t)256 << 20)) return 5;
    mem_alloc((size_t)256 << 20);
    return 6;
}

static void test_a_program_without_memory_ends_with_1(void **state) {
    int code = with_little_memory((size_t)64 << 20, need_more_than_there_is);
    assert_true(code == 1 || code == SKIPPED);
}

static void test_exit_codes(void **state) {
    assert_int_equal(error_exit_code(OK), 0);
    assert_int_equal(error_exit_code(ERR_RUN), 1);
    assert_int_equal(error_exit_code(ERR_INPUT), 2);
    assert_int_equal(error_exit_code(ERR_IO), 2);
    assert_int_equal(error_exit_code(ERR_FIT), 3);
    assert_int_equal(error_exit_code(ERR_INTERRUPTED), 130);
    assert_int_equal(error_exit_code(ERR_BUG), 1);
}

static void break_an_invariant(void) {
    volatile int one = 1;
    ASSERT(one == 2);
}

static void keep_an_invariant(void) {
    volatile int one = 1;
    ASSERT(one == 1);
}

static void test_assert_is_on(void **state) {
    assert_true(aborts(break_an_invariant));
    assert_false(aborts(keep_an_invariant));
}

/* ---- log ----------------------------------------------------------------------------------------------------- */

/* What `say` writes to stderr. The pipe takes it whole: every case stays under PIPE_BUF. */
static char *capture_stderr(void (*say)(void)) {
    static char text[8192];
    int ends[2], kept = dup(STDERR_FILENO);
    assert_int_equal(pipe(ends), 0);
    fflush(stderr);
    dup2(ends[1], STDERR_FILENO);
    say();
    dup2(kept, STDERR_FILENO);
    close(kept);
    close(ends[1]);
    size_t length = 0;
    for (ssize_t n; (n = read(ends[0], text + length, sizeof text - 1 - length)) > 0;) length += (size_t)n;
    close(ends[0]);
    text[length] = 0;
    return text;
}

static void say_three(void) {
    log_debug("hidden");
    errno = EXDEV;
    log_info("%d lines\nin one\n", 2);
    assert_int_equal(errno, EXDEV);
    log_warn("careful");
}

static void say_long(void) {
    char text[6000];
    memset(text, 'y', sizeof text - 1);
    text[sizeof text - 1] = 0;
    log_error("%s", text);
}

static void test_log_writes_one_line_per_call(void **state) {
    log_set_level(LOG_INFO);
    assert_string_equal(capture_stderr(say_three), "2 lines in one\nwarning: careful\n");
    log_set_level(LOG_WARN);
    assert_string_equal(capture_stderr(say_three), "warning: careful\n");
    log_set_level(LOG_INFO);
    char *line = capture_stderr(say_long);
    assert_true(str_starts_with(line, "error: yyy"));
    assert_true(str_ends_with(line, "y...\n"));
    assert_true(strlen(line) <= 4096);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_error_keeps_message_and_trail),
        cmocka_unit_test(test_error_trail_overflow_keeps_both_ends),
        cmocka_unit_test(test_error_message_may_be_built_from_the_previous_one),
        cmocka_unit_test(test_error_without_message_does_not_show_an_old_one),
        cmocka_unit_test(test_error_is_per_thread_and_can_be_carried),
        cmocka_unit_test(test_error_print_shows_the_trail_on_wish_and_for_bugs),
        cmocka_unit_test(test_a_program_without_memory_ends_with_1),
        cmocka_unit_test(test_exit_codes),
        cmocka_unit_test(test_assert_is_on),
        cmocka_unit_test(test_log_writes_one_line_per_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
