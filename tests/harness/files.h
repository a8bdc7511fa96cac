#pragma once
/* files.h - a directory of the test's own, files in it, and errors that must say something.
 *
 *     write_text(path_of("bad.json"), "{");
 *     expect_error(json_read_file(path_of("bad.json"), 1000, &root), ERR_INPUT, "bad.json:1:|end of file");
 *     ...
 *     return cmocka_run_group_tests(tests, test_dir_open, test_dir_close); */
#include "base/base.h"

extern char test_dir[64];

/* Setup and teardown of a test or of a group of tests: test_dir names a fresh directory, then it goes with all in it. */
int test_dir_open(void **state);
int test_dir_close(void **state);
const char *path_of(const char *name); /* in test_dir; good until the fourth call after this one */

void write_bytes(const char *path, const void *bytes, size_t n);
void write_text(const char *path, const char *text);
int files_in(const char *dir); /* hidden ones too: temporary files may be */

/* This code, and an error message that holds every fragment (separated by '|'). */
void expect_error(status rc, status code, const char *fragments);
