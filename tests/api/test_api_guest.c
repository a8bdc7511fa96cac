/* test_api_guest.c - the library as a guest in somebody's process: it prints nothing, and leaves signals, affinity, directory,
 * locale and other threads alone. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "api_check.h"
#include "training.h"

#include <fcntl.h>
#include <locale.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- a guest in somebody's process ------------------------------------------------------------------------------ */

typedef struct heard {
    int n;
    char last[256];
} heard;

static void on_log(void *context, ralo_log_level level, const char *line) {
    heard *h = context;
    h->n++;
    snprintf(h->last, sizeof h->last, "%d %s", (int)level, line);
}

/* A setting without effect is worth a warning. */
static void plan_with_a_warning(void) {
    ralo_settings *s = settings_of(PAIRS(TINY, "train.decay_share", "0.5"));
    ralo_plan *p;
    must(ralo_plan_open(&p, s));
    ralo_plan_close(p);
    ralo_settings_free(s);
}

static void nothing_is_printed(void **state) {
    (void)state;
    char *dir = training_dir(), path[600];
    heard h = {0};
    struct stat info;
    snprintf(path, sizeof path, "%s/printed", dir);
    int file = open(path, O_CREAT | O_RDWR, 0600), out = dup(1), err = dup(2);
    fflush(NULL);
    dup2(file, 1);
    dup2(file, 2);
    ralo_set_log(NULL, NULL);
    plan_with_a_warning();
    ralo_set_log(on_log, &h);
    plan_with_a_warning();
    ralo_set_log(NULL, NULL);
    plan_with_a_warning();
    fflush(NULL);
    dup2(out, 1);
    dup2(err, 2);
    assert_int_equal(fstat(file, &info), 0);
    assert_int_equal(info.st_size, 0);
    assert_int_equal(h.n, 1);
    assert_string_equal(h.last, "2 train.decay_share has no effect: train.schedule is not wsd");
    close(file);
    close(out);
    close(err);
    training_dir_remove(dir);
}

static void on_signal(int number) { (void)number; }

static void signals_affinity_and_directory_stay_as_they_were(void **state) {
    (void)state;
    struct sigaction mine = {.sa_handler = on_signal}, now;
    sigset_t mask_before, mask_after;
    cpu_set_t before, after;
    ralo_trainer *t;
    char *home = getcwd(NULL, 0), *later;
    sigaction(SIGINT, &mine, NULL);
    sigaction(SIGTERM, &mine, NULL);
    pthread_sigmask(SIG_SETMASK, NULL, &mask_before);
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    ralo_settings *s = settings_of(PAIRS(TINY, "run.bind", "true"));
    must(ralo_trainer_open(&t, s));
    run_to_end(t, NULL);
    for (int number = 1; number < NSIG; number++) {
        bool ours = number == SIGINT || number == SIGTERM;
        if (sigaction(number, NULL, &now) != 0 || number == SIGSEGV || number == SIGBUS || number == SIGFPE ||
            number == SIGILL || number == SIGSYS) /* a test runner may watch these */
            continue;
        assert_true(ours ? now.sa_handler == on_signal : now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN);
    }
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
    ralo_trainer_close(t);
    ralo_settings_free(s);
    pthread_sigmask(SIG_SETMASK, NULL, &mask_after);
    for (int number = 1; number < NSIG; number++)
        assert_int_equal(sigismember(&mask_before, number), sigismember(&mask_after, number));
    later = getcwd(NULL, 0);
    assert_string_equal(home, later);
    free(home);
    free(later);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
}

/* Where numbers have a comma, "0.5" is still a half, in and out. */
static void the_locale_does_not_matter(void **state) {
    (void)state;
    char *dir = training_dir(), command[800];
    snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 >/dev/null 2>&1", dir);
    if (system(command) != 0) {
        print_message("localedef or its sources not found: no other locale to try\n");
        training_dir_remove(dir);
        skip();
    }
    setenv("LOCPATH", dir, 1);
    assert_non_null(setlocale(LC_ALL, "de_DE.UTF-8"));
    assert_string_equal(localeconv()->decimal_point, ",");
    ralo_settings *s = settings_of(PAIRS(TINY, "train.lr", "0.5"));
    const char *value;
    ralo_plan *p;
    must(ralo_settings_get(s, "train.lr", &value));
    assert_string_equal(value, "0.5");
    must(ralo_plan_open(&p, s));
    assert_null(strstr(ralo_plan_text(p), ",0 MiB"));
    char text[16];
    snprintf(text, sizeof text, "%.1f", 0.5); /* the host's own numbers keep their comma */
    assert_string_equal(text, "0,5");
    ralo_plan_close(p);
    ralo_settings_free(s);
    setlocale(LC_ALL, "C");
    unsetenv("LOCPATH");
    training_dir_remove(dir);
}

typedef struct guest {
    const char *seed;
    uint64_t hash;
    char error[128];
} guest;

static void *train_and_err(void *argument) {
    guest *g = argument;
    ralo_settings *s;
    ralo_trainer *t;
    char key[32];
    snprintf(key, sizeof key, "train.no_%s", g->seed);
    s = settings_of(PAIRS(TINY, "train.seed", g->seed));
    assert_int_equal(ralo_settings_set(s, key, "1"), RALO_ERROR_INPUT);
    must(ralo_trainer_open(&t, s));
    g->hash = run_to_end(t, NULL);
    ralo_trainer_close(t);
    ralo_settings_free(s);
    snprintf(g->error, sizeof g->error, "%s", ralo_error_message());
    return NULL;
}

static void trainers_on_two_threads_do_not_meet(void **state) {
    (void)state;
    guest alone[2] = {{.seed = "1"}, {.seed = "2"}}, together[2] = {{.seed = "1"}, {.seed = "2"}};
    pthread_t ids[2];
    for (int i = 0; i < 2; i++) train_and_err(&alone[i]);
    for (int i = 0; i < 2; i++) pthread_create(&ids[i], NULL, train_and_err, &together[i]);
    for (int i = 0; i < 2; i++) pthread_join(ids[i], NULL);
    assert_true(alone[0].hash != alone[1].hash);
    for (int i = 0; i < 2; i++) {
        char key[32];
        snprintf(key, sizeof key, "'train.no_%s'", together[i].seed);
        assert_true(alone[i].hash == together[i].hash);
        assert_non_null(strstr(together[i].error, key)); /* each thread has its own last error */
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_printed),
        cmocka_unit_test(signals_affinity_and_directory_stay_as_they_were),
        cmocka_unit_test(the_locale_does_not_matter),
        cmocka_unit_test(trainers_on_two_threads_do_not_meet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
