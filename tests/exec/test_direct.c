/* test_direct.c - the nvme tier on a file system that refuses O_DIRECT: the run says so and gives the same bits.
 *
 * Few file systems refuse it still, and none can be mounted by a test. This program has an open() of its own, which the
 * library links to, and refuses as such a file system does: with EINVAL, and after the file was made when it has a name. */
#define _GNU_SOURCE
#include "exec/disk.h"
#include "files.h"
#include "training.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool refuse; /* set while no other thread runs */
static int n_refused;

int open(const char *path, int flags, ...) {
    mode_t mode = 0;
    if (flags & (O_CREAT | O_TMPFILE)) {
        va_list more;
        va_start(more, flags);
        mode = (mode_t)va_arg(more, int);
        va_end(more);
    }
    bool refused = refuse && (flags & O_DIRECT);
    bool nameless = (flags & O_TMPFILE) == O_TMPFILE;
    int fd =
        refused && nameless ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, flags & ~(refused ? O_DIRECT : 0), mode);
    if (!refused) return fd;
    n_refused++;
    if (fd >= 0) close(fd);
    if (nameless || fd >= 0) errno = EINVAL;
    return -1;
}

static void bytes_go_through_the_page_cache_and_no_file_is_left(void **state) {
    (void)state;
    char *dir = training_dir();
    uint8_t out[5000], in[5000];
    for (size_t i = 0; i < sizeof in; i++) in[i] = (uint8_t)(i * 7);
    refuse = true, n_refused = 0;
    disk *d;
    status rc = disk_open(&d, dir, 1 << 20, NULL, 0);
    refuse = false;
    training_must(rc);
    assert_true(n_refused > 0);
    assert_non_null(strstr(disk_method(d), "page cache (no O_DIRECT on this file system)"));
    assert_int_equal(files_in(dir), 0);
    training_must(disk_write_bytes(d, in, 4097, sizeof in));
    training_must(disk_read_bytes(d, out, 4097, sizeof out));
    assert_memory_equal(out, in, sizeof in);
    disk_close(d);
    training_dir_remove(dir);
}

static uint64_t hash_of_a_run(const char *dir, bool refused) {
    char path[600];
    snprintf(path, sizeof path, "memory.nvme_path=%s", dir);
    training t = {.steps = 3,
                  .more = SETTINGS(path, "memory.offload.states=nvme", "memory.offload.params=nvme",
                                   "memory.offload.grads=nvme")};
    train_result r;
    refuse = refused, n_refused = 0;
    status rc = training_run(&t, &r);
    refuse = false;
    training_must(rc);
    assert_int_equal(n_refused > 0, refused);
    assert_int_equal(files_in(dir), 0);
    return r.param_hash;
}

static void a_run_gives_the_same_bits(void **state) {
    (void)state;
    char *dir = training_dir();
    assert_true(hash_of_a_run(dir, true) == hash_of_a_run(dir, false));
    training_dir_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_go_through_the_page_cache_and_no_file_is_left),
        cmocka_unit_test(a_run_gives_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
