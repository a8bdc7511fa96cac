/* test_gemm_cache.c - choices of products kept between runs: what was kept is found, what is broken is skipped, and the
 * first of several writers decides. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "backend/cuda/gemm_cache.h"
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define PLACE "cache/ralo"
#define FILE_NAME "gemm-test.txt"
#define PATH PLACE "/" FILE_NAME

static int n_warnings;
static char last_warning[1024];
static void take_log(void *context, log_level level, const char *line) {
    if (level < LOG_WARN) return;
    n_warnings++;
    snprintf(last_warning, sizeof last_warning, "%s", line);
}

static int fresh(void **state) {
    n_warnings = 0;
    return dir_remove_all("cache");
}

static void write_file(const char *text, size_t n) {
    assert_int_equal(dir_make(PLACE), OK);
    FILE *f = fopen(PATH, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void expect(const gemm_cache *s, const char *key, uint64_t algorithm) {
    uint64_t found = 0;
    assert_true(gemm_cache_find(s, key, &found));
    assert_true(found == algorithm);
}

static void what_was_kept_is_found_by_the_next(void **state) {
    gemm_cache s;
    uint64_t kept;
    gemm_cache_open(&s, PLACE, FILE_NAME);
    assert_true(s.writable);
    assert_false(gemm_cache_find(&s, "tn 8 x 8 x 8", &kept));
    assert_true(gemm_cache_keep(&s, "tn 8 x 8 x 8", 0xfedcba9876543210u, NULL, &kept));
    assert_true(kept == 0xfedcba9876543210u);
    assert_true(gemm_cache_keep(&s, "nn 8 x 8 x 8", 7, NULL, &kept));
    gemm_cache_close(&s);
    gemm_cache_open(&s, PLACE, FILE_NAME);
    expect(&s, "tn 8 x 8 x 8", 0xfedcba9876543210u);
    expect(&s, "nn 8 x 8 x 8", 7);
    assert_int_equal(s.n_entries, 2);
    gemm_cache_close(&s);
    assert_int_equal(n_warnings, 0);
}

static void the_first_writer_decides_for_all(void **state) {
    gemm_cache one, two;
    uint64_t kept;
    gemm_cache_open(&one, PLACE, FILE_NAME);
    gemm_cache_open(&two, PLACE, FILE_NAME);
    assert_true(gemm_cache_keep(&one, "a", 1, NULL, &kept));
    assert_true(gemm_cache_keep(&two, "b", 2, NULL, &kept));
    assert_true(gemm_cache_keep(&two, "a", 3, NULL, &kept));
    assert_int_equal(kept, 1);
    assert_true(gemm_cache_keep(&one, "b", 4, NULL, &kept));
    assert_int_equal(kept, 2);
    gemm_cache_close(&one);
    gemm_cache_close(&two);
}

/* Read, found useless, measured again: that one must go, unless another process was faster. */
static void a_useless_answer_is_replaced(void **state) {
    gemm_cache one, two;
    uint64_t kept, useless = 1;
    gemm_cache_open(&one, PLACE, FILE_NAME);
    gemm_cache_open(&two, PLACE, FILE_NAME);
    assert_true(gemm_cache_keep(&one, "a", 1, NULL, &kept));
    assert_true(gemm_cache_keep(&one, "a", 2, &useless, &kept));
    assert_int_equal(kept, 2);
    assert_true(gemm_cache_keep(&two, "a", 3, &useless, &kept));
    assert_int_equal(kept, 2);
    gemm_cache_close(&one);
    gemm_cache_close(&two);
}

static void broken_lines_are_skipped_and_said(void **state) {
    static const char text[] = "# a comment\n"
                               "\n"
                               "0000000000000005 good\n"
                               "000000000000005 short\n"
                               "000000000000000G digit\n"
                               "000000000000000A capital\n"
                               "0000000000000005_space\n"
                               "0000000000000005 \n"
                               "0000000000000005 tab\there\n"
                               "00000000\0000000005 nul\n"
                               "0000000000000006 also good\n"
                               "0000000000000007 cut o";
    write_file(text, sizeof text - 1);
    gemm_cache s;
    gemm_cache_open(&s, PLACE, FILE_NAME);
    assert_int_equal(s.n_entries, 2);
    expect(&s, "good", 5);
    expect(&s, "also good", 6);
    gemm_cache_close(&s);
    assert_int_equal(n_warnings, 1);
    assert_non_null(strstr(last_warning, PATH ": line 4 and others"));
}

static void long_lines_and_long_files_are_refused(void **state) {
    enum { LONG = 8 << 20 };
    char *text = mem_alloc(LONG);
    memset(text, 'x', LONG);
    memcpy(text, "0000000000000005 ", 17);
    text[17 + GEMM_KEY_MOST] = '\n'; /* just short enough */
    write_file(text, 18 + GEMM_KEY_MOST);
    gemm_cache s;
    gemm_cache_open(&s, PLACE, FILE_NAME);
    assert_int_equal(s.n_entries, 1);
    assert_int_equal(strlen(s.entries[0].key), GEMM_KEY_MOST);
    gemm_cache_close(&s);

    text[17 + GEMM_KEY_MOST] = 'x';
    text[18 + GEMM_KEY_MOST] = '\n';
    write_file(text, 19 + GEMM_KEY_MOST);
    gemm_cache_open(&s, PLACE, FILE_NAME);
    assert_int_equal(s.n_entries, 0);
    gemm_cache_close(&s);

    n_warnings = 0;
    write_file(text, LONG);
    gemm_cache_open(&s, PLACE, FILE_NAME);
    assert_int_equal(s.n_entries, 0);
    assert_int_equal(n_warnings, 1);
    uint64_t kept;
    assert_true(gemm_cache_keep(&s, "a", 1, NULL, &kept)); /* and replaced by one that can be read */
    gemm_cache_close(&s);
    gemm_cache_open(&s, PLACE, FILE_NAME);
    expect(&s, "a", 1);
    gemm_cache_close(&s);
    free(text);
}

static void nowhere_to_keep_is_no_error(void **state) {
    gemm_cache s;
    uint64_t kept;
    gemm_cache_open(&s, "", FILE_NAME);
    assert_false(s.writable);
    assert_false(gemm_cache_keep(&s, "a", 1, NULL, &kept));
    assert_int_equal(n_warnings, 0); /* it was asked for */
    gemm_cache_close(&s);

    FILE *f = fopen("cache", "w"); /* a file where the directory should be */
    assert_non_null(f);
    fclose(f);
    gemm_cache_open(&s, PLACE, FILE_NAME);
    assert_false(s.writable);
    assert_int_equal(n_warnings, 1);
    assert_non_null(strstr(last_warning, "XDG_CACHE_HOME"));
    assert_false(gemm_cache_keep(&s, "a", 1, NULL, &kept));
    gemm_cache_close(&s);
    assert_int_equal(unlink("cache"), 0);
}

static void a_place_that_stops_being_writable_is_said_once(void **state) {
    gemm_cache s;
    uint64_t kept;
    gemm_cache_open(&s, PLACE, FILE_NAME);
    assert_int_equal(mkdir(PATH, 0700), 0); /* rename cannot put a file there */
    assert_false(gemm_cache_keep(&s, "a", 1, NULL, &kept));
    int said = n_warnings;
    assert_true(said >= 1);
    assert_false(gemm_cache_keep(&s, "b", 1, NULL, &kept));
    assert_int_equal(n_warnings, said);
    gemm_cache_close(&s);
    assert_int_equal(rmdir(PATH), 0);
}

static void a_lock_that_is_never_freed_is_not_waited_for(void **state) {
    gemm_cache s;
    uint64_t kept;
    gemm_cache_open(&s, PLACE, FILE_NAME);
    int other = open(PATH ".lock", O_RDWR | O_CLOEXEC);
    assert_true(other >= 0 && flock(other, LOCK_EX) == 0);
    assert_false(gemm_cache_keep(&s, "a", 1, NULL, &kept));
    assert_int_equal(n_warnings, 1);
    close(other);
    gemm_cache_close(&s);
}

static void the_default_place_follows_the_environment(void **state) {
    char here[4096];
    assert_non_null(getcwd(here, sizeof here - 16));
    strcat(here, "/cache");
    gemm_cache s;
    uint64_t kept;
    setenv("XDG_CACHE_HOME", here, 1);
    gemm_cache_open(&s, NULL, FILE_NAME);
    assert_true(gemm_cache_keep(&s, "a", 1, NULL, &kept));
    assert_int_equal(access(PATH, R_OK), 0);
    gemm_cache_close(&s);
}

int main(void) {
    log_set_sink(take_log, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(what_was_kept_is_found_by_the_next, fresh),
        cmocka_unit_test_setup(the_first_writer_decides_for_all, fresh),
        cmocka_unit_test_setup(a_useless_answer_is_replaced, fresh),
        cmocka_unit_test_setup(broken_lines_are_skipped_and_said, fresh),
        cmocka_unit_test_setup(long_lines_and_long_files_are_refused, fresh),
        cmocka_unit_test_setup(nowhere_to_keep_is_no_error, fresh),
        cmocka_unit_test_setup(a_place_that_stops_being_writable_is_said_once, fresh),
        cmocka_unit_test_setup(a_lock_that_is_never_freed_is_not_waited_for, fresh),
        cmocka_unit_test_setup(the_default_place_follows_the_environment, fresh),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
