/* files.c - files that tests write, and what is expected of readers that refuse them. */
#include "files.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <cmocka.h>

char test_dir[64];

int test_dir_open(void **state) {
    (void)state;
    snprintf(test_dir, sizeof test_dir, "/tmp/ralo-test-XXXXXX");
    return mkdtemp(test_dir) ? 0 : -1;
}

int test_dir_close(void **state) {
    (void)state;
    return dir_remove_all(test_dir) == OK ? 0 : -1;
}

const char *path_of(const char *name) {
    static char paths[4][256];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", test_dir, name);
    return path;
}

void write_bytes(const char *path, const void *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

void write_text(const char *path, const char *text) { write_bytes(path, text, strlen(text)); }

int files_in(const char *dir) {
    int n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    while (readdir(d)) n++;
    closedir(d);
    return n - 2; /* . and .. */
}

void expect_error(status rc, status code, const char *fragments) {
    char wanted[512];
    if (rc != code) print_error("got status %d: %s\n", rc, error_message());
    assert_int_equal(rc, code);
    assert_in_range(snprintf(wanted, sizeof wanted, "%s", fragments), 0, sizeof wanted - 1);
    for (char *save, *f = strtok_r(wanted, "|", &save); f; f = strtok_r(NULL, "|", &save))
        if (!strstr(error_message(), f)) fail_msg("'%s' is not in: %s", f, error_message());
}
