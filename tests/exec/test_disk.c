/* test_disk.c - the file behind the nvme tier: bytes go and come back, errors are named, nothing is left behind. */
#include "exec/disk.h"
#include "files.h"
#include "training.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

enum { STAGING = 5 << 20, FILE_BYTES = (9 << 20) + 100 };

static uint8_t *staging_alloc(void) {
    void *memory = NULL;
    assert_int_equal(posix_memalign(&memory, NVME_SECTOR, STAGING), 0);
    return memory;
}

static void fill(uint8_t *bytes, size_t n, uint64_t key) {
    for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)(rng_u64(key, i / 8) >> (i % 8 * 8));
}

static void transfers_of_any_length_come_back(void **state) {
    (void)state;
    char *dir = training_dir();
    uint8_t *memory = staging_alloc(), *expected = mem_alloc(STAGING);
    disk *d;
    training_must(disk_open(&d, dir, FILE_BYTES, memory, STAGING));
    print_message("%s\n", disk_method(d));
    assert_int_equal(files_in(dir), 0); /* it never had a name */
    static const size_t lengths[] = {1, 4095, 4096, 4097, 1 << 20, (1 << 20) + 1, STAGING - 4096};
    for (size_t i = 0; i < ARRAY_LENGTH(lengths); i++) {
        fill(expected, lengths[i], i);
        memcpy(memory, expected, lengths[i]);
        training_must(disk_write(d, DISK_WRITER, memory, i * NVME_SECTOR, lengths[i]));
        memset(memory, 0, STAGING);
        training_must(disk_read(d, DISK_READER, memory, i * NVME_SECTOR, lengths[i]));
        assert_memory_equal(memory, expected, lengths[i]);
    }
    disk_close(d);
    free(memory);
    free(expected);
    training_dir_remove(dir);
}

static void bytes_anywhere_leave_their_neighbours_alone(void **state) {
    (void)state;
    char *dir = training_dir();
    uint8_t *memory = staging_alloc(), *mirror = mem_alloc(FILE_BYTES), *out = mem_alloc(FILE_BYTES);
    disk *d;
    training_must(disk_open(&d, dir, FILE_BYTES, memory, STAGING));
    for (int i = 0; i < 60; i++) {
        uint64_t at = rng_below(1, (uint64_t)i, FILE_BYTES), n = rng_below(2, (uint64_t)i, FILE_BYTES - at) / 4 + 1;
        fill(mirror + at, n, (uint64_t)i + 100);
        training_must(disk_write_bytes(d, mirror + at, at, n));
    }
    training_must(disk_read_bytes(d, out, 0, FILE_BYTES)); /* what was never written is zero on both sides */
    assert_memory_equal(out, mirror, FILE_BYTES);
    training_must(disk_read_bytes(d, out, 4097, 10));
    assert_memory_equal(out, mirror + 4097, 10);
    disk_close(d);
    free(memory);
    free(mirror);
    free(out);
    training_dir_remove(dir);
}

/* The descriptor of the unnamed file: the only one that leads to a deleted file in dir. */
static int find_unnamed(const char *dir) {
    for (int fd = 3; fd < 256; fd++) {
        char link[64], target[1024];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, target, sizeof target - 1);
        if (n <= 0) continue;
        target[n] = 0;
        if (str_starts_with(target, dir) && str_ends_with(target, "(deleted)")) return fd;
    }
    return -1;
}

static void a_file_that_shrinks_is_an_error_and_not_a_hang(void **state) {
    (void)state;
    char *dir = training_dir();
    uint8_t *memory = staging_alloc();
    disk *d;
    training_must(disk_open(&d, dir, FILE_BYTES, memory, STAGING));
    int fd = find_unnamed(dir);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, 2 << 20), 0);
    assert_int_equal(disk_read(d, DISK_READER, memory, 0, STAGING - 4096), ERR_IO);
    assert_non_null(strstr(error_message(), dir));
    assert_non_null(strstr(error_message(), "ends there"));
    training_must(disk_read(d, DISK_READER, memory, 0, 1 << 20)); /* the queue is whole again */
    disk_close(d);
    free(memory);
    training_dir_remove(dir);
}

static bool is_ring(int fd) {
    char link[64], target[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, target, sizeof target - 1);
    target[MAX(n, 0)] = 0;
    return strcmp(target, "anon_inode:[io_uring]") == 0;
}

/* What a refused transfer left in its queue must not be met by the next one: there is room for 16 pieces. */
static void a_queue_that_the_kernel_refuses_is_an_error_each_time(void **state) {
    (void)state;
    char *dir = training_dir();
    uint8_t *memory = staging_alloc();
    disk *d;
    int n_rings = 0, nothing = open("/dev/null", O_RDWR);
    training_must(disk_open(&d, dir, FILE_BYTES, memory, STAGING));
    for (int fd = 3; fd < 256; fd++)
        if (is_ring(fd)) assert_int_equal(dup2(nothing, fd), fd), n_rings++;
    for (int i = 0; i < 5 && n_rings > 0; i++) {
        assert_int_equal(disk_write(d, DISK_WRITER, memory, 0, STAGING), ERR_IO);
        assert_non_null(strstr(error_message(), dir));
        assert_int_equal(disk_read(d, DISK_READER, memory, 0, STAGING), ERR_IO);
    }
    training_must(disk_write_bytes(d, memory, 1, 10)); /* goes another way */
    disk_close(d);
    close(nothing);
    free(memory);
    training_dir_remove(dir);
}

static void space_is_checked_before_anything_runs(void **state) {
    (void)state;
    char *dir = training_dir();
    disk *d;
    assert_int_equal(disk_open(&d, dir, 1ull << 60, NULL, 0), ERR_FIT);
    assert_non_null(strstr(error_message(), "free"));
    assert_int_equal(disk_open(&d, "/nonexistent/nvme", 4096, NULL, 0), ERR_INPUT);
    assert_non_null(strstr(error_message(), "/nonexistent/nvme"));
    signal(SIGXFSZ, SIG_IGN); /* a limit on file size is as good as a full disk */
    struct rlimit before, small = {1 << 20, 1 << 20};
    getrlimit(RLIMIT_FSIZE, &before);
    small.rlim_max = before.rlim_max;
    setrlimit(RLIMIT_FSIZE, &small);
    assert_int_equal(disk_open(&d, dir, FILE_BYTES, NULL, 0), ERR_FIT);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_non_null(strstr(error_message(), "choose another directory"));
    assert_int_equal(files_in(dir), 0);
    training_dir_remove(dir);
}

static const char *shrink_dir;
static void shrink_file(void *context, const train_step_report *r) {
    const int64_t *step = context;
    if (r->step == *step) assert_int_equal(ftruncate(find_unnamed(shrink_dir), 0), 0);
}

/* Whatever a drive does in the middle of a run: the run ends with its name, no thread waits for ever. Steps were made, so the
 * request was right (ERR_RUN). */
static void a_run_whose_disk_fails_ends_with_the_cause(void **state) {
    (void)state;
    char *dir = training_dir(), path[600];
    shrink_dir = dir;
    snprintf(path, sizeof path, "memory.nvme_path=%s", dir);
    train_observer o = {.on_step = shrink_file, .context = &(int64_t){2}};
    training t = {.steps = 6,
                  .observer = &o,
                  .more = SETTINGS(path, "memory.offload.states=nvme", "memory.offload.params=nvme",
                                   "memory.offload.grads=nvme")};
    train_result r;
    assert_int_equal(training_run(&t, &r), ERR_RUN);
    assert_non_null(strstr(error_message(), dir));
    training_dir_remove(dir);
}

/* Behind the last step no section runs any more that would find it out: evaluation, checkpoint and hash must. */
static void what_a_disk_has_lost_is_not_kept(void **state) {
    (void)state;
    static const char *const settings[] = {"run.keep=2", "train.save_every=3", "train.eval_rows=2"};
    for (size_t i = 0; i < ARRAY_LENGTH(settings); i++) {
        char *dir = training_dir(), *run = training_dir(), path[600], newest[600];
        shrink_dir = dir;
        snprintf(path, sizeof path, "memory.nvme_path=%s", dir);
        train_observer o = {.on_step = shrink_file, .context = &(int64_t){3}};
        training t = {.steps = 3,
                      .observer = &o,
                      .dir = run,
                      .more = SETTINGS(path, settings[i], "memory.offload.states=nvme", "memory.offload.params=nvme")};
        train_result r;
        assert_int_equal(training_run(&t, &r), ERR_RUN);
        assert_non_null(strstr(error_message(), dir));
        if (i == 0) assert_non_null(strstr(error_message(), "the checkpoint of step 3 was not written"));
        training_must(checkpoint_find_newest(run, newest, sizeof newest));
        assert_string_equal(newest, ""); /* and none is there */
        t.dir = NULL;                    /* nothing is saved, and the hash is all that is left */
        assert_int_equal(training_run(&t, &r), ERR_RUN);
        training_dir_remove(dir);
        training_dir_remove(run);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transfers_of_any_length_come_back),
        cmocka_unit_test(bytes_anywhere_leave_their_neighbours_alone),
        cmocka_unit_test(a_file_that_shrinks_is_an_error_and_not_a_hang),
        cmocka_unit_test(a_queue_that_the_kernel_refuses_is_an_error_each_time),
        cmocka_unit_test(space_is_checked_before_anything_runs),
        cmocka_unit_test(a_run_whose_disk_fails_ends_with_the_cause),
        cmocka_unit_test(what_a_disk_has_lost_is_not_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
