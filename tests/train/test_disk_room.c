/* test_disk_room.c - what a run will write is known before it starts, and a disk without room for it is refused then. */
#define _GNU_SOURCE 1 /* unshare */
#include "train/disk_room.h"
#include "files.h"
#include "checkpoint/directory.h"
#include "weights/params.h"
#include "training.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- how many --------------------------------------------------------------------------------------------------- */

static void saves_follow_from_the_settings(void **state) {
    static const struct {
        int64_t steps, every, first;
        bool no_last;
        int64_t n;
    } rows[] = {
        {100, 0, 0, false, 1},    {100, 0, 0, true, 0},    {100, 10, 0, false, 10},  {100, 10, 0, true, 10},
        {105, 10, 0, false, 11},  {105, 10, 0, true, 10},  {105, 10, 47, false, 7},  {105, 10, 100, true, 0},
        {100, 10, 50, false, 5},  {100, 200, 0, false, 1}, {100, 200, 0, true, 0},   {100, 0, 60, false, 1},
        {100, 10, 100, false, 1}, {100, 10, 100, true, 0}, {100, 10, 300, false, 1},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
        train_request r = {.train = {.steps = rows[i].steps, .save_every = rows[i].every},
                           .no_last_checkpoint = rows[i].no_last};
        if (disk_room_saves(&r, rows[i].first) != rows[i].n) fail_msg("row %zu", i);
    }
}

/* A new one is whole before the oldest goes; those that are there take the places of new ones. */
static void run_keep_and_one_more_lie_there_at_once(void **state) {
    static const struct {
        int64_t n_saves, keep, n_present, n;
    } rows[] = {
        {0, 2, 0, 0}, {1, 2, 0, 1}, {2, 2, 0, 2}, {3, 2, 0, 3}, {9, 2, 0, 3}, {9, 0, 0, 9}, {9, 0, 5, 9},
        {9, 1, 0, 2}, {9, 2, 1, 2}, {9, 2, 2, 1}, {9, 2, 7, 1}, {0, 2, 2, 0}, {1, 5, 2, 1},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(rows); i++)
        if (disk_room_at_once(rows[i].n_saves, rows[i].keep, rows[i].n_present) != rows[i].n) fail_msg("row %zu", i);
}

/* ---- how large ---------------------------------------------------------------------------------------------------- */

static void compile(compiled *k, const training *t, const mesh *m, int zero) {
    compiled_request(k, t);
    k->r.plan.open = (plan_open){0};
    if (m) k->r.plan.mesh = *m;
    k->r.plan.choice.shard.zero = zero;
    compiled_plan(k);
}

static uint64_t saved_bytes(const plan *p) {
    arena memory;
    arena_init(&memory);
    size_t n;
    uint64_t sum = 0;
    checkpoint_tensor *list = params_checkpoint_tensors(p, &memory, &n);
    for (size_t i = 0; i < n; i++) sum += checkpoint_saved_bytes(&list[i]);
    free(list);
    arena_fini(&memory);
    return sum;
}

static void a_checkpoint_has_the_bytes_that_were_said(void **state) {
    for (size_t i = 0; i < ARRAY_LENGTH(training_presets); i++)
        for (precision q = 0; q < PRECISION_COUNT; q++)
            for (state_format f = STATES_AUTO; f < STATES_COUNT; f++) {
                char states[64];
                snprintf(states, sizeof states, "memory.states=%s", state_format_name(f));
                compiled k;
                compile(&k, &(training){.preset = training_presets[i], .precision = q, .more = SETTINGS(states)}, NULL,
                        0);
                uint64_t said = plan_checkpoint_bytes(&k.p), saved = saved_bytes(&k.p), small = 0;
                for (size_t j = 0; j < k.p.net.n_params && f == STATES_INT8; j++) { /* kept in fp32, or a last block */
                    uint64_t n = (uint64_t)shape_count(&k.p.net.params[j].shape);
                    small += 2 * (n < 4096 ? 3 * n : sizeof(float));
                }
                if (said > saved || saved - said > small)
                    fail_msg("%s in %s, %s: %llu said, %llu saved", training_presets[i], precision_name(q), states,
                             (unsigned long long)said, (unsigned long long)saved);
                compiled_close(&k);
            }
}

/* Whatever the ranks share, and whoever writes what: the sum of their shares. */
static void ranks_write_as_many_together(void **state) {
    static const struct {
        axis a;
        int zero;
    } ways[] = {{AXIS_DATA, 0}, {AXIS_DATA, 2}, {AXIS_DATA, 3}, {AXIS_TENSOR, 0}, {AXIS_PIPELINE, 0}};
    for (size_t i = 0; i < ARRAY_LENGTH(ways); i++) {
        uint64_t sum = 0, said = 0;
        for (int rank = 0; rank < 2; rank++) {
            mesh m = {0};
            m.size[ways[i].a] = 2;
            m.index[ways[i].a] = rank;
            compiled k;
            compile(&k, &(training){.preset = "test-qwen3", .precision = PRECISION_BF16, .accumulation = 2}, &m,
                    ways[i].zero);
            sum += saved_bytes(&k.p);
            said = plan_checkpoint_bytes(&k.p);
            compiled_close(&k);
        }
        if (sum != said)
            fail_msg("way %zu: %llu said, %llu saved", i, (unsigned long long)said, (unsigned long long)sum);
    }
}

static uint64_t bytes_in(const char *dir) {
    uint64_t sum = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *entry; (entry = readdir(d));) {
        struct stat s;
        assert_int_equal(fstatat(dirfd(d), entry->d_name, &s, 0), 0);
        if (S_ISREG(s.st_mode)) sum += (uint64_t)s.st_size;
    }
    closedir(d);
    return sum;
}

static void the_files_of_a_run_are_as_large(void **state) {
    enum { HEADERS = 64 << 10 };
    train_result result;
    char out[128], setting[160];
    snprintf(out, sizeof out, "%s", path_of("model"));
    snprintf(setting, sizeof setting, "run.export=%s", out);
    training t = {.precision = PRECISION_BF16, .steps = 3, .dir = path_of("run"), .more = SETTINGS(setting)};
    training_must(dir_make(t.dir));
    training_must(training_run(&t, &result));
    compiled k;
    compile(&k, &t, NULL, 0);
    train_disk d = train_disk_of(&k.r, &k.p);
    assert_int_equal(d.n_checkpoints, 1);
    uint64_t checkpoint = bytes_in(path_of("run/checkpoints/step-00000003")), exported = bytes_in(out);
    assert_in_range(checkpoint, d.checkpoint_bytes, d.checkpoint_bytes + HEADERS);
    assert_in_range(exported, d.export_bytes, d.export_bytes + HEADERS);
    k.r.export_dir = NULL;
    assert_int_equal(train_disk_of(&k.r, &k.p).export_bytes, 0);
    compiled_close(&k);
}

/* Of every row at most its places; the rows of this source have a few fewer targets. */
static void the_numbers_of_a_frozen_model_are_counted(void **state) {
    train_result result;
    char reference[160];
    snprintf(reference, sizeof reference, "rho1.reference=%s", path_of("model"));
    training t = {.precision = PRECISION_BF16,
                  .steps = 3,
                  .dir = path_of("weighed"),
                  .more = SETTINGS("train.weighting=rho1", "rho1.reference_on=disk", reference)};
    training_must(dir_make(t.dir));
    training_must(training_run(&t, &result));
    compiled k;
    compile(&k, &t, NULL, 0);
    char *bytes;
    size_t n_found;
    training_must(file_read_all(path_of("weighed/reference.losses"), 1 << 24, &bytes, &n_found));
    free(bytes);
    uint64_t n_bytes = train_disk_of(&k.r, &k.p).numbers_bytes;
    assert_in_range(n_found, n_bytes / 2, n_bytes);
    k.r.frozen.dir = NULL;
    assert_int_equal(train_disk_of(&k.r, &k.p).numbers_bytes, 0);
    compiled_close(&k);
}

/* ---- what is there ------------------------------------------------------------------------------------------------ */

static void only_whole_checkpoints_in_a_run_are_counted(void **state) {
    checkpoint_survey s;
    training_must(checkpoint_survey_make(&s, path_of("absent")));
    assert_true(s.n == 0 && s.newest == 0 && s.leftover_bytes == 0);
    training_must(dir_make(path_of("old/checkpoints/step-00000040")));
    training_must(dir_make(path_of("old/checkpoints/step-00000300")));
    training_must(dir_make(path_of("old/checkpoints/notes")));
    training_must(dir_make(path_of("old/checkpoints/.tmp-step-00000310")));
    static const uint8_t bytes[100000];
    write_bytes(path_of("old/checkpoints/step-00000040/x"), bytes, sizeof bytes);
    training_must(checkpoint_survey_make(&s, path_of("old")));
    assert_true(s.n == 0 && s.newest == 0 && s.leftover_bytes == 0); /* directories with the right names */
    write_bytes(path_of("old/checkpoints/.tmp-step-00000310/x"), bytes, sizeof bytes);
    training_must(checkpoint_survey_make(&s, path_of("old")));
    assert_in_range(s.leftover_bytes, 1, 2 * sizeof bytes); /* a file system may compress, and rounds to blocks */

    int64_t step;
    assert_true(checkpoint_step_of("runs/a/checkpoints/step-00000040", &step) && step == 40);
    assert_true(checkpoint_step_of("step-00000300", &step) && step == 300);
    assert_false(checkpoint_step_of("runs/a", &step));
    assert_false(checkpoint_step_of("runs/step-00000300/", &step));
}

/* ---- judging ------------------------------------------------------------------------------------------------------ */

enum { ONE_DISK = 1, ANOTHER_DISK = 2 };
static disk_need need(const char *key, uint64_t n_bytes, int64_t n, uint64_t file_system, uint64_t free) {
    return (disk_need){.key = key,
                       .dir = "place",
                       .one = "a piece",
                       .many = "pieces",
                       .instead = "write none",
                       .n_bytes = n_bytes,
                       .n = n,
                       .space = {.total = 1 << 20, .free = free, .file_system = file_system}};
}

/* NULL: nothing is said. */
static void expect_warning(const disk_need *needs, size_t n, const char *said) {
    strbuf warning;
    strbuf_init(&warning);
    training_must(disk_room_check(needs, n, &warning));
    if (said ? !warning.length || !strstr(warning.text, said) : warning.length > 0)
        fail_msg("expected '%s' in '%s'", said ? said : "", warning.length ? warning.text : "");
    strbuf_fini(&warning);
}

static void what_has_no_room_is_refused(void **state) {
    disk_need needs[2] = {need("run.dir", 1000, 1, ONE_DISK, 1000), need("run.export", 500, 1, ANOTHER_DISK, 499)};
    strbuf warning;
    strbuf_init(&warning);
    expect_error(disk_room_check(needs, 2, &warning), ERR_INPUT, "run.export place|499 B|a piece|500 B|write none");
    needs[1].space.reserve = 1; /* only root has one */
    expect_warning(needs, 2, "run.export place: 499 B");
    needs[1].space.reserve = 0;
    needs[1].instead = NULL; /* said elsewhere */
    expect_warning(needs, 2, "run.export place: 499 B");
    needs[1].space.total = 0; /* does not count */
    expect_warning(needs, 2, NULL);
    needs[0].n = 0;
    needs[0].space.free = 0;
    expect_warning(needs, 2, NULL);
    assert_int_equal(warning.length, 0);
    strbuf_fini(&warning);
}

static void what_has_no_room_together_is_a_warning(void **state) {
    disk_need needs[2] = {need("run.dir", 1000, 3, ONE_DISK, 3000), need("run.export", 500, 1, ONE_DISK, 3000)};
    expect_warning(needs, 1, NULL);
    needs[0].n = 4;
    expect_warning(needs, 1,
                   "run.dir place: 2.9 KiB are free there, the run will need 3.9 KiB at once: 4 pieces of 1000 B;");
    needs[0].n = 3;
    expect_warning(needs, 2, "at once: 3 pieces of 1000 B, a piece of 500 B;");
    needs[1].space.file_system = ANOTHER_DISK;
    expect_warning(needs, 2, NULL);
    needs[0].n_bytes = 3000; /* more than can be counted */
    needs[0].n = INT64_MAX;
    expect_warning(needs, 2, "run.dir");
}

/* ---- a disk that is small for real -------------------------------------------------------------------------------- */

static char last_line[512];
static void keep_line(void *context, log_level level, const char *line) {
    snprintf(last_line, sizeof last_line, "%s", line);
}

/* test-llama in fp32: 1.4 MiB. In a process of its own, so each answer is a number. */
enum { RIGHT, NO_MOUNT, NOT_REFUSED, NOT_WARNED, REFUSED, LEFTOVERS_COUNT, WARNED };
static int try_sizes(const char *dir, const train_request *r, const plan *p) {
    char path[256];
    static uint8_t bytes[1 << 20];
    if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return NO_MOUNT;
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) return NO_MOUNT;
    if (mount("tmpfs", dir, "tmpfs", 0, "size=1m") != 0) return NO_MOUNT;
    snprintf(path, sizeof path, "%s/not/yet", dir);
    if (train_check_disk(r, p, path) != ERR_INPUT || !strstr(error_message(), path)) return NOT_REFUSED;
    if (mount("tmpfs", dir, "tmpfs", MS_REMOUNT, "size=2m") != 0) return NO_MOUNT;
    last_line[0] = 0;
    if (train_check_disk(r, p, path) != OK) return REFUSED;
    if (!strstr(last_line, "3 checkpoints of 1.4 MiB")) return NOT_WARNED;
    snprintf(path, sizeof path, "%s/run/checkpoints/.tmp-step-00000002", dir);
    if (dir_make(path) != OK) return NO_MOUNT;
    strncat(path, "/x", sizeof path - strlen(path) - 1);
    write_bytes(path, bytes, sizeof bytes);
    snprintf(path, sizeof path, "%s/run", dir);
    if (train_check_disk(r, p, path) != OK) return LEFTOVERS_COUNT; /* they go before the first save */
    if (mount("tmpfs", dir, "tmpfs", MS_REMOUNT, "size=8m") != 0) return NO_MOUNT;
    last_line[0] = 0;
    return train_check_disk(r, p, path) != OK ? REFUSED : last_line[0] ? WARNED : RIGHT;
}

static void a_small_disk_is_told_before_the_run(void **state) {
    compiled k;
    compile(&k, &(training){.steps = 9, .more = SETTINGS("train.save_every=1", "run.keep=2")}, NULL, 0);
    training_must(dir_make(path_of("small")));
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) { /* a small file system of its own, seen by this process only */
        log_set_sink(keep_line, NULL);
        _exit(try_sizes(path_of("small"), &k.r, &k.p));
    }
    int how;
    waitpid(child, &how, 0);
    compiled_close(&k);
    assert_true(WIFEXITED(how));
    if (WEXITSTATUS(how) == NO_MOUNT) {
        print_message("needs the right to mount a tmpfs\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(how), RIGHT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saves_follow_from_the_settings),
        cmocka_unit_test(run_keep_and_one_more_lie_there_at_once),
        cmocka_unit_test(a_checkpoint_has_the_bytes_that_were_said),
        cmocka_unit_test(ranks_write_as_many_together),
        cmocka_unit_test(the_files_of_a_run_are_as_large),
        cmocka_unit_test(the_numbers_of_a_frozen_model_are_counted),
        cmocka_unit_test(only_whole_checkpoints_in_a_run_are_counted),
        cmocka_unit_test(what_has_no_room_is_refused),
        cmocka_unit_test(what_has_no_room_together_is_a_warning),
        cmocka_unit_test(a_small_disk_is_told_before_the_run),
    };
    return cmocka_run_group_tests(tests, test_dir_open, test_dir_close);
}
