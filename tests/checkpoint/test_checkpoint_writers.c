/* test_checkpoint_writers.c - checkpoints that are kept, replaced and left over; writers that are killed, and full disks. */
#define _GNU_SOURCE 1 /* unshare */
#include "checkpoint_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- keep, replace, leftovers -------------------------------------------------------------------------------- */

static void only_the_newest_are_kept(void **state) {
    world w;
    world_init(&w, 1);
    save_steps(&w, 2, 1, 5);
    assert_int_equal(count_in_run("step-"), 2);
    assert_int_equal(count_in_run(".tmp"), 0);
    expect_loads(&w, 4);
    expect_loads(&w, 5);
    save_steps(&w, 0, 6, 7); /* 0 keeps all */
    assert_int_equal(count_in_run("step-"), 4);
    save_steps(&w, 1, 6, 6); /* what was just written is never the one that goes, and later steps are not touched */
    assert_int_equal(count_in_run("step-"), 2);
    expect_loads(&w, 6);
    expect_loads(&w, 7);
    world_fini(&w);
}

static void what_is_saved_replaces_all_others_where_one_is_asked_for(void **state) {
    world w;
    world_init(&w, 1);
    save_steps(&w, 0, 3, 5);
    checkpointer *c;
    checkpoint_options o = {.run_dir = run_dir, .keep = 1, .only_one = true, .identity = IDENTITY};
    assert_int_equal(checkpointer_open(&c, &o, w.tensors, N_TENSORS), OK);
    for (int64_t step = 4; step >= 2; step--) { /* later steps go too */
        save_or_die(c, &w, step);
        assert_int_equal(count_in_run("step-"), 1);
        assert_int_equal(newest_step(), step);
        expect_loads(&w, step);
    }
    checkpointer_close(c);
    world_fini(&w);
}

/* Each kill between publishing a checkpoint and removing an older one leaves one more. */
static void what_killed_runs_left_goes_when_one_continues(void **state) {
    world w;
    world_init(&w, 1);
    save_steps(&w, 0, 4, 7);
    checkpointer *c = open_or_die(&w, 2);
    checkpointer_prune(c, 6); /* 7 is of a later attempt */
    checkpointer_close(c);
    assert_int_equal(count_in_run("step-"), 3);
    for (int64_t step = 5; step <= 7; step++) expect_loads(&w, step);
    world_fini(&w);
}

static void one_that_is_not_whole_is_not_counted(void **state) {
    world w;
    checkpoint_survey found;
    world_init(&w, 1);
    save_steps(&w, 0, 1, 4);
    flip(step_path(4, "checkpoint.json"), 100, 1);
    flip(step_path(2, "checkpoint.json"), 100, 1);
    if (checkpoint_survey_make(&found, run_dir) != OK) fail_msg("%s", error_message());
    assert_int_equal(found.n, 2);
    assert_int_equal(found.newest, 3);
    save_steps(&w, 2, 5, 5); /* keeps 5 and 3; 4 may be looked at, 2 and 1 are older than what is kept */
    expect_loads(&w, 5);
    expect_loads(&w, 3);
    assert_true(path_exists(step_path(4, "")));
    assert_int_equal(count_in_run("step-"), 3);
    save_steps(&w, 2, 6, 6);
    expect_loads(&w, 5);
    expect_loads(&w, 6);
    assert_int_equal(count_in_run("step-"), 2);
    world_fini(&w);
}

static void saving_a_step_again_replaces_it(void **state) {
    world w;
    world_init(&w, 1);
    save_steps(&w, 1, 5, 5);
    flip(step_path(5, "checkpoint.json"), 50, 1); /* the reason why a run comes by here again */
    assert_int_equal(newest_step(), 0);
    save_steps(&w, 1, 5, 5);
    expect_loads(&w, 5);
    assert_int_equal(count_in_run(".tmp"), 0);

    /* File systems that cannot swap two names. */
    char dir[128], path[256];
    snprintf(dir, sizeof dir, "%s/checkpoints", run_dir);
    snprintf(path, sizeof path, "%s/.tmp-x", dir);
    assert_int_equal(rename(step_path(5, ""), path), 0);
    save_steps(&w, 0, 6, 6); /* its open removes .tmp-x */
    assert_false(path_exists(path));
    assert_int_equal(rename(step_path(6, ""), path), 0);
    assert_int_equal(dir_make(step_path(6, "full")), OK);
    assert_int_equal(checkpoint_publish(dir, ".tmp-x", "step-00000006", false), OK);
    expect_loads(&w, 6);
    assert_int_equal(count_in_run(".old"), 0);
    assert_int_equal(count_in_run(".tmp"), 0);
    /* Killed between the two renames: the old one is brought back. */
    snprintf(path, sizeof path, "%s/.old-step-00000006", dir);
    assert_int_equal(rename(step_path(6, ""), path), 0);
    assert_int_equal(newest_step(), 0);
    checkpointer_close(open_or_die(&w, 0));
    expect_loads(&w, 6);
    world_fini(&w);
}

static void a_directory_has_one_writer(void **state) {
    world w;
    world_init(&w, 1);
    checkpointer *first = open_or_die(&w, 0), *second;
    checkpoint_options o = {.run_dir = run_dir, .identity = IDENTITY};
    assert_int_equal(checkpointer_open(&second, &o, w.tensors, N_TENSORS), ERR_INPUT);
    assert_null(second);
    assert_non_null(strstr(error_message(), "another running"));
    checkpointer_close(first);
    checkpointer_close(open_or_die(&w, 0));
    /* Who begins a run and had looked before the other one saved looks again, once nobody else writes. */
    save_steps(&w, 0, 3, 3);
    o.fresh = true;
    assert_int_equal(checkpointer_open(&second, &o, w.tensors, N_TENSORS), ERR_INPUT);
    assert_null(second);
    assert_non_null(strstr(error_message(), "step-00000003"));
    o.fresh = false;
    assert_int_equal(checkpointer_open(&second, &o, w.tensors, N_TENSORS), OK);
    checkpointer_close(second);
    world_fini(&w);
}

/* ---- killed writers, full disks ------------------------------------------------------------------------------ */

/* Saves step after step from where the directory stands until it is killed. */
static void save_forever(int ready) {
    world w;
    world_init(&w, 1);
    checkpointer *c = open_or_die(&w, 2);
    int64_t step = newest_step() + 1;
    if (write(ready, "", 1) != 1) _exit(1);
    for (;; step++) {
        world_fill(&w, (uint64_t)step);
        train_state s = state_of(step);
        if (checkpointer_save(c, w.e, &s) != OK) _exit(1);
    }
}

static void a_killed_writer_loses_nothing(void **state) {
    world w;
    int64_t last = 0, n_leftovers = 0;
    for (int round = 0; round < 12; round++) {
        int ready[2];
        assert_int_equal(pipe(ready), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) save_forever(ready[1]);
        char byte;
        close(ready[1]);
        assert_int_equal(read(ready[0], &byte, 1), 1);
        close(ready[0]);
        if (round == 0)
            while (newest_step() == 0) usleep(1000);
        if (round % 2 == 0) usleep((useconds_t)rng_below(21, (uint64_t)round, 60000));
        else /* at a moment when a directory is half written, however slow the machine */
            for (int i = 0; i < 20000 && count_in_run(".tmp") == 0; i++) usleep(200);
        kill(child, SIGKILL);
        int how;
        waitpid(child, &how, 0);
        assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
        n_leftovers += count_in_run(".tmp");
        int64_t step = newest_step();
        assert_true(step >= last && step > 0); /* what was once whole stays, or a newer one is */
        last = step;
        world_init(&w, 1); /* threads come after the fork */
        expect_loads(&w, step);
        world_fini(&w);
    }
    assert_true(n_leftovers > 0); /* else the kills never came in the middle, and this test proved nothing */
    world_init(&w, 1);
    checkpointer_close(open_or_die(&w, 2));
    assert_int_equal(count_in_run(".tmp"), 0);
    expect_loads(&w, last);
    world_fini(&w);
}

#define CHECK(cond)                                                                  \
    do {                                                                             \
        if (!(cond)) {                                                               \
            fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #cond, error_message()); \
            _exit(1);                                                                \
        }                                                                            \
    } while (0)

/* The error comes with the next call, the temporary directory is gone, the checkpoint before is whole, and when there
 * is room again saving works again. */
static void expect_recovery(void (*fill_disk)(void), void (*free_disk)(void), const char *reason) {
    world w;
    world_init(&w, 1);
    checkpointer *c = open_or_die(&w, 1);
    save_or_die(c, &w, 1);
    train_state s = state_of(2);
    fill_disk();
    CHECK(checkpointer_save(c, w.e, &s) == OK); /* only copied so far */
    CHECK(checkpointer_wait(c) == ERR_IO);
    CHECK(strstr(error_message(), "step 2") && strstr(error_message(), reason));
    CHECK(count_in_run(".tmp") == 0);
    CHECK(newest_step() == 1);
    expect_loads(&w, 1);
    CHECK(checkpointer_wait(c) == OK); /* said once */
    CHECK(checkpointer_save(c, w.e, &s) == OK);
    CHECK(checkpointer_save(c, w.e, &s) == ERR_IO); /* the next save hears of it too */
    free_disk();
    save_or_die(c, &w, 3);
    expect_loads(&w, 3);
    CHECK(count_in_run("step-") == 1);
    checkpointer_close(c);

    background = false; /* at once: save itself says so */
    c = open_or_die(&w, 1);
    fill_disk();
    s.step = 4;
    CHECK(checkpointer_save(c, w.e, &s) == ERR_IO);
    CHECK(strstr(error_message(), "step 4") && strstr(error_message(), reason));
    CHECK(count_in_run(".tmp") == 0);
    free_disk();
    save_or_die(c, &w, 5);
    checkpointer_close(c);
    world_fini(&w);
}

static void limit_files(void) { setrlimit(RLIMIT_FSIZE, &(struct rlimit){3000, RLIM_INFINITY}); }
static void unlimit_files(void) { setrlimit(RLIMIT_FSIZE, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY}); }

static void a_failed_write_is_reported_and_cleaned_up(void **state) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGXFSZ, SIG_IGN);
        expect_recovery(limit_files, unlimit_files, strerror(EFBIG));
        _exit(0);
    }
    int how;
    waitpid(child, &how, 0);
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
}

static void fill_disk(void) {
    char path[128], block[4096] = {0};
    snprintf(path, sizeof path, "%s/ballast", run_dir);
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    while (write(fd, block, sizeof block) > 0) {}
    close(fd);
}

static void free_disk(void) {
    char path[128];
    snprintf(path, sizeof path, "%s/ballast", run_dir);
    unlink(path);
}

static void a_full_disk_is_reported_and_cleaned_up(void **state) {
    enum { NO_MOUNT = 77 };
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) { /* a small file system of its own, seen by this process only */
        if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) _exit(NO_MOUNT);
        if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) _exit(NO_MOUNT);
        if (mount("tmpfs", run_dir, "tmpfs", 0, "size=512k") != 0) _exit(NO_MOUNT);
        expect_recovery(fill_disk, free_disk, strerror(ENOSPC));
        _exit(0);
    }
    int how;
    waitpid(child, &how, 0);
    assert_true(WIFEXITED(how));
    if (WEXITSTATUS(how) == NO_MOUNT) {
        print_message("needs the right to mount a tmpfs\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(how), 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_run_dir, remove_run_dir)
int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_killed_writer_loses_nothing), /* those that fork come first, before any thread */
        TEST(a_failed_write_is_reported_and_cleaned_up),
        TEST(a_full_disk_is_reported_and_cleaned_up),
        TEST(only_the_newest_are_kept),
        TEST(what_is_saved_replaces_all_others_where_one_is_asked_for),
        TEST(what_killed_runs_left_goes_when_one_continues),
        TEST(one_that_is_not_whole_is_not_counted),
        TEST(saving_a_step_again_replaces_it),
        TEST(a_directory_has_one_writer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
