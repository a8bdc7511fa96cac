/* test_paths.c - files and directories: read whole, written whole, made and removed, and never followed elsewhere. */
#include "base/base.h"
#include "files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void test_file_read_all(void **state) {
    char *text;
    size_t n;
    const char *path = path_of("a.txt");
    write_bytes(path, "ab\0cd", 5);
    assert_int_equal(file_read_all(path, 5, &text, &n), OK);
    assert_int_equal(n, 5);
    assert_memory_equal(text, "ab\0cd", 6); /* the sixth is the NUL that was added */
    free(text);

    assert_int_equal(file_read_all(path, 4, &text, &n), ERR_INPUT);
    assert_null(text);
    assert_non_null(strstr(error_message(), path));
    assert_non_null(strstr(error_message(), "5 bytes"));

    write_bytes(path, "", 0);
    assert_int_equal(file_read_all(path, 0, &text, &n), OK);
    assert_int_equal(n, 0);
    assert_string_equal(text, "");
    free(text);

    char *big = mem_alloc(300000);
    for (size_t i = 0; i < 300000; i++) big[i] = (char)(rng_u64(5, i) & 0xff);
    write_bytes(path, big, 300000);
    assert_int_equal(file_read_all(path, 1 << 20, &text, &n), OK);
    assert_int_equal(n, 300000);
    assert_memory_equal(text, big, 300000);
    free(text);
    free(big);

    assert_int_equal(file_read_all(path_of("absent"), 10, &text, &n), ERR_IO);
    assert_non_null(strstr(error_message(), "absent"));
    assert_non_null(strstr(error_message(), "No such file"));
    assert_int_equal(file_read_all(test_dir, 10, &text, &n), ERR_INPUT);
    assert_non_null(strstr(error_message(), "directory"));
}

static void test_only_regular_files_are_opened(void **state) {
    int fd, ends[2];
    uint64_t n_bytes;
    char path[64], *text;
    size_t n;
    assert_int_equal(mkfifo(path_of("pipe"), 0600), 0);
    expect_error(file_open(path_of("pipe"), &fd), ERR_INPUT, "pipe is a pipe, expected a regular file");
    assert_int_equal(fd, -1);
    expect_error(file_open("/dev/null", &fd), ERR_INPUT, "is a device");
    expect_error(file_open(test_dir, &fd), ERR_INPUT, "is a directory");
    write_text(path_of("file"), "text");
    assert_int_equal(symlink("file", path_of("link")), 0);
    assert_int_equal(file_open(path_of("link"), &fd), OK);
    assert_int_equal(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
    close(fd);
    expect_error(file_open_at(AT_FDCWD, path_of("link"), "it", &fd, &n_bytes), ERR_INPUT, "it is a link");
    assert_int_equal(file_open_at(AT_FDCWD, path_of("file"), "it", &fd, &n_bytes), OK);
    assert_int_equal(n_bytes, 4);
    close(fd);
    assert_int_equal(pipe(ends), 0); /* of the caller's own, as a shell's <(command) */
    assert_int_equal(write(ends[1], "some", 4), 4);
    close(ends[1]);
    snprintf(path, sizeof path, "/dev/fd/%d", ends[0]);
    assert_int_equal(file_read_all(path, 10, &text, &n), OK);
    assert_string_equal(text, "some");
    free(text);
    close(ends[0]);
}

static void test_file_read_all_bounds_files_that_hide_their_size(void **state) {
    char *text;
    size_t n;
    assert_int_equal(file_read_all("/dev/zero", 10000, &text, &n), ERR_INPUT); /* endless */
    assert_null(text);
    assert_non_null(strstr(error_message(), "/dev/zero"));
    assert_int_equal(file_read_all("/proc/self/status", 1 << 20, &text, &n), OK); /* says it has 0 bytes */
    assert_true(n > 100 && strlen(text) == n);
    free(text);
}

static void test_what_is_printed_is_taken_or_saved(void **state) {
    memstream m;
    fprintf(memstream_open(&m), "%d", 12);
    fputs(" apples", m.out);
    char *text = memstream_take(&m), *read;
    assert_string_equal(text, "12 apples");
    free(text);
    memstream_open(&m);
    text = memstream_take(&m);
    assert_string_equal(text, "");
    free(text);

    size_t n;
    fwrite("a\0b", 1, 3, memstream_open(&m));
    assert_int_equal(memstream_save(&m, path_of("saved")), OK);
    assert_int_equal(file_read_all(path_of("saved"), 100, &read, &n), OK);
    assert_int_equal(n, 3);
    assert_memory_equal(read, "a\0b", 3);
    free(read);
    memstream_open(&m);
    assert_int_equal(memstream_save(&m, path_of("nowhere/saved")), ERR_IO);
}

static void test_dir_make_makes_parents(void **state) {
    struct stat st;
    assert_int_equal(dir_make(path_of("a/b//c/")), OK);
    assert_int_equal(stat(path_of("a/b/c"), &st), 0);
    assert_true(S_ISDIR(st.st_mode));
    assert_int_equal(dir_make(path_of("a/b")), OK);
    write_bytes(path_of("a/file"), "x", 1);
    assert_int_equal(dir_make(path_of("a/file")), ERR_IO);
    assert_int_equal(dir_make(path_of("a/file/below")), ERR_IO);
    assert_non_null(strstr(error_message(), "a/file"));
    assert_int_equal(dir_make(""), ERR_INPUT);
}

static void test_dir_remove_all_does_not_follow_links(void **state) {
    struct stat st;
    assert_int_equal(dir_make(path_of("kept")), OK);
    write_bytes(path_of("kept/precious"), "x", 1);
    assert_int_equal(dir_make(path_of("gone/deep/er")), OK);
    char name[64];
    for (int i = 0; i < 300; i++) {
        snprintf(name, sizeof name, "gone/deep/f%d", i);
        write_bytes(path_of(name), "x", 1);
    }
    assert_int_equal(symlink(path_of("kept"), path_of("gone/deep/link")), 0);
    assert_int_equal(symlink("nowhere", path_of("gone/dangling")), 0);
    assert_int_equal(dir_remove_all(path_of("gone")), OK);
    assert_int_equal(lstat(path_of("gone"), &st), -1);
    assert_int_equal(stat(path_of("kept/precious"), &st), 0);

    /* A link itself is removed, also when it is written as a directory. */
    assert_int_equal(symlink("kept", path_of("link")), 0);
    assert_int_equal(dir_remove_all(path_of("link/")), OK);
    assert_int_equal(lstat(path_of("link"), &st), -1);
    assert_int_equal(stat(path_of("kept/precious"), &st), 0);

    assert_int_equal(dir_remove_all(path_of("absent")), OK);
    assert_int_equal(dir_remove_all(path_of("absent/too")), OK);
    assert_int_equal(dir_remove_all(path_of("kept/precious")), OK); /* a file */
    assert_int_equal(stat(path_of("kept"), &st), 0);
    static const char *const refused[] = {"", "/", "//", ".", "..", "/tmp/..", "/tmp/./"};
    for (size_t i = 0; i < ARRAY_LENGTH(refused); i++) assert_int_equal(dir_remove_all(refused[i]), ERR_INPUT);
}

static void test_the_room_of_a_place_that_is_not_there_yet(void **state) {
    static const char *const from_here[][2] = {
        {"absent", "."}, {"absent/too", "."}, {"", "."}, {"..", ".."}, {"/", "/"}};
    strbuf found;
    dir_space there, above;
    for (size_t i = 0; i < ARRAY_LENGTH(from_here); i++) {
        strbuf_init(&found);
        dir_nearest(from_here[i][0], &found);
        assert_string_equal(found.text, from_here[i][1]);
        assert_int_equal(found.length, strlen(found.text));
        strbuf_fini(&found);
    }
    strbuf_init(&found);
    dir_nearest("/no-such-directory-of-ralo/below", &found);
    assert_string_equal(found.text, "/");
    strbuf_fini(&found);
    assert_int_equal(dir_make(path_of("near")), OK);
    strbuf_init(&found);
    dir_nearest(path_of("near/far/away/"), &found);
    assert_string_equal(found.text, path_of("near"));
    assert_true(dir_space_get(found.text, &there) && dir_space_get(test_dir, &above));
    assert_int_equal(there.file_system, above.file_system);
    assert_true(there.free <= there.total && there.reserve <= there.total - there.free);
    strbuf_fini(&found);
    assert_false(dir_space_get(path_of("near/far"), &there));
    assert_int_equal(errno, ENOENT);
}

/* Each removes what dead ones left, and must not take a live one's for that. */
static void test_writers_of_one_file_beside_each_other(void **state) {
    enum { ROUNDS = 60, WRITERS = 4, WRITES = 20, N = 5000 };
    char dir[] = "/tmp/ralo_base_XXXXXX", path[64], *text;
    snprintf(path, sizeof path, "%s/file", mkdtemp(dir));
    for (int round = 0; round < ROUNDS; round++) {
        pid_t writers[WRITERS];
        for (int i = 0; i < WRITERS; i++) {
            if ((writers[i] = fork()) != 0) continue;
            char bytes[N];
            memset(bytes, 'a' + i, sizeof bytes);
            for (int k = 0; k < WRITES; k++)
                if (file_write_whole(path, bytes, sizeof bytes) != OK) _exit(1);
            _exit(0);
        }
        usleep((useconds_t)round * 7);
        kill(writers[0], SIGKILL);
        for (int i = 0; i < WRITERS; i++) {
            int result;
            assert_int_equal(waitpid(writers[i], &result, 0), writers[i]);
            if (i > 0) assert_int_equal(result, 0);
        }
        size_t n;
        assert_int_equal(file_read_all(path, 1 << 20, &text, &n), OK);
        assert_int_equal(n, N);
        for (size_t k = 1; k < n; k++) assert_int_equal(text[k], text[0]);
        free(text);
    }
    assert_int_equal(file_write_whole(path, "end", 3), OK);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0); /* nothing is left of those that were killed */
}

/* Each takes the directories that others are making for those of dead writers, until they are locked. */
static void test_makers_of_directories_beside_each_other(void **state) {
    enum { MAKERS = 4, TIMES = 400 };
    pid_t children[MAKERS];
    for (int k = 0; k < MAKERS; k++) {
        children[k] = fork();
        assert_true(children[k] >= 0);
        if (children[k] > 0) continue;
        strbuf name;
        strbuf_init(&name);
        for (int i = 0; i < TIMES; i++) {
            int fd;
            if (temporary_make(path_of("place"), true, &name, &fd) != OK) _exit(1);
            if (rmdir(name.text) != 0) _exit(2);
            close(fd);
        }
        _exit(0);
    }
    for (int k = 0; k < MAKERS; k++) {
        int status;
        assert_int_equal(waitpid(children[k], &status, 0), children[k]);
        assert_int_equal(status, 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_file_read_all, test_dir_open, test_dir_close),
        cmocka_unit_test_setup_teardown(test_only_regular_files_are_opened, test_dir_open, test_dir_close),
        cmocka_unit_test(test_file_read_all_bounds_files_that_hide_their_size),
        cmocka_unit_test_setup_teardown(test_what_is_printed_is_taken_or_saved, test_dir_open, test_dir_close),
        cmocka_unit_test_setup_teardown(test_dir_make_makes_parents, test_dir_open, test_dir_close),
        cmocka_unit_test_setup_teardown(test_dir_remove_all_does_not_follow_links, test_dir_open, test_dir_close),
        cmocka_unit_test_setup_teardown(test_the_room_of_a_place_that_is_not_there_yet, test_dir_open, test_dir_close),
        cmocka_unit_test(test_writers_of_one_file_beside_each_other),
        cmocka_unit_test_setup_teardown(test_makers_of_directories_beside_each_other, test_dir_open, test_dir_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
