/* test_threads.c - the clock, the machine's description and the thread pool keep their promises. */
#include "base/base.h"
#include "child.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- clock and machine --------------------------------------------------------------------------------------- */

static void test_clock_does_not_go_back(void **state) {
    uint64_t last = clock_ns();
    for (int i = 0; i < 1000; i++) {
        uint64_t now = clock_ns();
        assert_true(now >= last);
        last = now;
    }
    double seconds = clock_s();
    assert_true(fabs(seconds - (double)clock_ns() * 1e-9) < 10);
}

static int (*sign_of)(const char *, const char *);

static void *load_and_call(void *unused) {
    static const library_symbol symbols[] = {{"strcmp", &sign_of}};
    char why[400];
    bool loaded = library_load("libc.so.6", symbols, 1, why, sizeof why);
    return loaded && sign_of("a", "b") < 0 ? &sign_of : NULL;
}

/* The functions of a library that is loaded late lie in one table of the process. The thread sanitizer sees a second
 * thread write what the first one calls. */
static void test_threads_may_load_one_library(void **state) {
    enum { N = 4 };
    pthread_t threads[N];
    void *done;
    for (int i = 0; i < N; i++) assert_int_equal(pthread_create(&threads[i], NULL, load_and_call, NULL), 0);
    for (int i = 0; i < N; i++) {
        pthread_join(threads[i], &done);
        assert_non_null(done);
    }
}

static void test_machine_is_described(void **state) {
    sys_info info;
    sys_info_get(&info);
    assert_true(strlen(info.cpu_name) > 0);
    assert_string_equal(info.arch,
#if defined(__aarch64__)
                        "aarch64"
#else
                        "x86_64"
#endif
    );
    assert_true(info.n_cores >= 1 && info.n_cores <= sysconf(_SC_NPROCESSORS_CONF));
    assert_true(info.memory_total > 64u << 20);
    assert_true(info.memory_available > 0 && info.memory_available <= info.memory_total);

    enum { BYTES = 32 << 20 };
    uint64_t before = sys_rss_bytes();
    char *block = mem_alloc(BYTES);
    memset(block, 1, BYTES);
    uint64_t with = sys_rss_bytes();
    assert_true(before > 0 && with >= before + BYTES / 10 * 9); /* sanitizers add shadow memory */
    free(block);
    assert_true(sys_rss_peak_bytes() + (1 << 20) >= with); /* the kernel updates its counters in batches */
}

static void test_cores_are_counted(void **state) {
    (void)state;
    sys_cores before, after;
    sys_cores_get(&before);
    if (before.busy == 0) skip(); /* a sandbox that hides it */
    assert_true(before.own >= 0 && before.idle >= 0 && before.stolen >= 0);
    volatile double work = 0;
    do {
        for (int i = 0; i < 1000000; i++) work += i;
        sys_cores_get(&after);
    } while (after.own < before.own + 0.1);
    assert_true(after.busy > before.busy && after.idle >= before.idle && after.stolen >= before.stolen);
}

static void check_contention(sys_cores since, double others, double stolen, const char *expected) {
    char text[128];
    sys_cores before = {.own = 5, .busy = 1000, .idle = 300, .stolen = 7}, after = before;
    after.own += since.own;
    after.busy += since.busy;
    after.idle += since.idle;
    after.stolen += since.stolen;
    sys_contention c = sys_contention_between(&before, &after);
    assert_true(fabs(c.others - others) < 1e-9 && fabs(c.stolen - stolen) < 1e-9);
    assert_string_equal(sys_contention_text(text, &c), expected);
}

static void test_contention_is_what_others_had_of_busy_cores(void **state) {
    (void)state;
    check_contention((sys_cores){.own = 60, .busy = 60, .idle = 4}, 0, 0, "");
    check_contention((sys_cores){.own = 40, .busy = 60, .idle = 4}, 20.0 / 64, 0,
                     "other programs used 31 % of the CPU time");
    check_contention((sys_cores){.own = 40, .busy = 60, .idle = 60}, 0, 0, ""); /* there were cores for all */
    check_contention((sys_cores){.own = 60, .busy = 60, .idle = 60, .stolen = 20}, 0, 0.25,
                     "other virtual machines used 25 % of the CPU time");
    check_contention((sys_cores){.own = 40, .busy = 60, .stolen = 20}, 0.25, 0.25,
                     "other programs used 25 % of the CPU time, other virtual machines 25 %");
    check_contention((sys_cores){.own = 60, .busy = 60, .stolen = 1}, 0, 1.0 / 61, "");
    check_contention((sys_cores){.own = 0.1, .busy = 0.9}, 0, 0, "");          /* too short */
    check_contention((sys_cores){.own = 61, .busy = 60, .idle = 4}, 0, 0, ""); /* counted a little later */
}

/* ---- threads ------------------------------------------------------------------------------------------------- */

typedef struct counting {
    _Atomic int hits[2000];
    _Atomic int by_thread[64];
    int n_threads;
    _Atomic bool bad_thread;
} counting;

static void count_task(void *context, int64_t task, int thread) {
    counting *c = context;
    if (thread < 0 || thread >= c->n_threads) {
        atomic_store(&c->bad_thread, true);
        return;
    }
    atomic_fetch_add(&c->hits[task], 1);
    atomic_fetch_add(&c->by_thread[thread], 1);
}

static void check_counts(pool *p, int64_t n_tasks) {
    static counting c;
    memset(&c, 0, sizeof c);
    c.n_threads = pool_threads(p);
    pool_run(p, count_task, &c, n_tasks);
    assert_false(atomic_load(&c.bad_thread));
    for (int64_t i = 0; i < (int64_t)ARRAY_LENGTH(c.hits); i++) assert_int_equal(c.hits[i], i < n_tasks);
}

static void test_pool_runs_every_task_once(void **state) {
    static const int threads[] = {1, 2, 3, 16}; /* 16: more than there are cores on a small machine */
    static const int64_t tasks[] = {0, 1, 2, 3, 17, 2000};
    for (size_t t = 0; t < ARRAY_LENGTH(threads); t++) {
        pool *p;
        assert_int_equal(pool_open(&p, threads[t], t % 2 == 0), OK);
        assert_int_equal(pool_threads(p), threads[t]);
        for (size_t k = 0; k < ARRAY_LENGTH(tasks); k++)
            for (int again = 0; again < 5; again++) check_counts(p, tasks[k]);
        pool_close(p);
    }
}

static void test_tasks_begin_at_all_places_and_come_once(void **state) {
    static const int64_t n_tasks[] = {1, 2, 15, 16, 17, 113, 128, 2000}, n_places[] = {1, 2, 16, 125, 3000};
    for (size_t t = 0; t < ARRAY_LENGTH(n_tasks); t++)
        for (size_t k = 0; k < ARRAY_LENGTH(n_places); k++) {
            int64_t n = n_tasks[t], p = n_places[k], before = -1;
            bool taken[2000] = {0};
            for (int64_t i = 0; i < n; i++) {
                int64_t task = task_spread(i, n, p);
                assert_in_range(task, 0, n - 1);
                assert_false(taken[task]);
                taken[task] = true;
                if (i < p) assert_true(task - before >= MAX(n / p, 1) || i == 0); /* the places, evenly apart */
                else assert_int_equal(task, task_spread(i - p, n, p) + 1);        /* on from there */
                before = task;
            }
        }
}

typedef struct sums {
    int64_t plain[4096]; /* not atomic on purpose: each task owns its slot, pool_run orders the rest */
    int64_t round;
} sums;

static void add_round(void *context, int64_t task, int thread) {
    sums *s = context;
    s->plain[task] += s->round;
}

static void test_pool_run_orders_memory_between_runs(void **state) {
    /* Short runs in a row meet every state of the gate: late workers, spinning, asleep. Plain memory, so the thread
     * sanitizer sees any pair of runs that is not ordered. */
    static const int threads[] = {2, 5};
    for (size_t t = 0; t < ARRAY_LENGTH(threads); t++) {
        static sums s;
        memset(&s, 0, sizeof s);
        pool *p;
        int64_t total = 0;
        assert_int_equal(pool_open(&p, threads[t], false), OK);
        for (int64_t round = 1; round <= 3000; round++) {
            int64_t n_tasks = 2 + (int64_t)rng_below(8, (uint64_t)round, 7);
            s.round = round;
            pool_run(p, add_round, &s, n_tasks);
            total += round * n_tasks;
            if (round % 500 == 0) usleep(500); /* let the workers fall asleep */
        }
        for (size_t i = 0; i < ARRAY_LENGTH(s.plain); i++) total -= s.plain[i];
        assert_int_equal(total, 0);
        pool_close(p);
    }
}

typedef struct meeting {
    _Atomic int arrived;
    int expected;
} meeting;

static void meet(void *context, int64_t task, int thread) {
    meeting *m = context;
    atomic_fetch_add(&m->arrived, 1);
    for (double until = clock_s() + 20; atomic_load(&m->arrived) < m->expected && clock_s() < until;) usleep(100);
}

static void test_pool_threads_all_take_part(void **state) {
    /* Each task waits for all the others, so it only ends early when every thread holds one of them: also after the
     * workers fell asleep, which walks the whole chain of wake-ups. */
    enum { THREADS = 24 };
    pool *p;
    assert_int_equal(pool_open(&p, THREADS, false), OK);
    for (int round = 0; round < 3; round++) {
        meeting m = {.expected = THREADS};
        usleep(2000);
        pool_run(p, meet, &m, THREADS);
        assert_int_equal(m.arrived, THREADS);
        double began = clock_s();
        m.arrived = 0;
        pool_run(p, meet, &m, THREADS);
        assert_true(clock_s() - began < 15); /* nobody waited for the 20 s limit */
    }
    pool_close(p);
}

static _Atomic int hooks_open, hooks_called;
static _Thread_local int hook_depth;
static _Atomic bool hook_missed;

static void hook_enter(void) {
    hook_depth++;
    atomic_fetch_add(&hooks_open, 1);
    atomic_fetch_add(&hooks_called, 1);
}

static void hook_leave(void) {
    hook_depth--;
    atomic_fetch_sub(&hooks_open, 1);
}

static void check_hook(void *context, int64_t task, int thread) {
    if (hook_depth != (thread == 0 ? 0 : 1)) atomic_store(&hook_missed, true);
    usleep(50);
}

static void test_pool_hooks_surround_the_work_of_workers(void **state) {
    pool *p;
    assert_int_equal(pool_open(&p, 3, false), OK);
    pool_set_hook(p, hook_enter, hook_leave);
    for (int round = 0; round < 20; round++) {
        pool_run(p, check_hook, NULL, 12);
        assert_int_equal(atomic_load(&hooks_open), 0); /* all left before pool_run returns */
    }
    assert_false(atomic_load(&hook_missed));
    int called = atomic_load(&hooks_called);
    assert_true(called > 0);
    pool_run(p, check_hook, NULL, 1); /* inline on the caller: no hook */
    pool_set_hook(p, NULL, NULL);
    atomic_store(&hook_missed, false);
    pool_run(p, check_hook, NULL, 12);
    assert_int_equal(atomic_load(&hooks_called), called);
    assert_int_equal(atomic_load(&hooks_open), 0);
    pool_close(p);
}

static void read_mask(void *context, int64_t task, int thread) {
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    if (thread > 0 && !sigismember(&blocked, SIGINT)) atomic_store((_Atomic bool *)context, true);
    if (thread == 0 && sigismember(&blocked, SIGINT)) atomic_store((_Atomic bool *)context, true);
    usleep(200);
}

static void test_pool_leaves_signals_to_the_caller(void **state) {
    pool *p;
    _Atomic bool wrong = false;
    assert_int_equal(pool_open(&p, 3, false), OK);
    pool_run(p, read_mask, &wrong, 30);
    assert_false(atomic_load(&wrong));
    pool_close(p);
}

static pool *nested_pool;

static void run_again(void *context, int64_t task, int thread) { pool_run(nested_pool, count_task, context, 2); }

static void nest_runs_inline(void) {
    static counting c;
    pool_open(&nested_pool, 1, false);
    pool_run(nested_pool, run_again, &c, 2);
}

static void nest_runs_threaded(void) {
    static counting c;
    pool_open(&nested_pool, 2, false);
    pool_run(nested_pool, run_again, &c, 2);
}

static void test_pool_refuses_a_run_inside_a_task(void **state) {
    assert_true(aborts(nest_runs_inline)); /* also with one thread, where it would happen to work */
    assert_true(aborts(nest_runs_threaded));
}

static void test_pool_open_counts_cores_and_refuses_nonsense(void **state) {
    pool *p;
    sys_info info;
    sys_info_get(&info);
    assert_int_equal(pool_open(&p, 0, true), OK);
    assert_int_equal(pool_threads(p), info.n_cores);
    pool_close(p);
    assert_int_equal(pool_open(&p, -1, false), ERR_INPUT);
    assert_null(p);
    assert_int_equal(pool_open(&p, 1 << 20, false), ERR_INPUT);
    assert_non_null(strstr(error_message(), "1048576"));
    pool_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_clock_does_not_go_back),
        cmocka_unit_test(test_threads_may_load_one_library),
        cmocka_unit_test(test_machine_is_described),
        cmocka_unit_test(test_cores_are_counted),
        cmocka_unit_test(test_contention_is_what_others_had_of_busy_cores),
        cmocka_unit_test(test_pool_runs_every_task_once),
        cmocka_unit_test(test_tasks_begin_at_all_places_and_come_once),
        cmocka_unit_test(test_pool_run_orders_memory_between_runs),
        cmocka_unit_test(test_pool_threads_all_take_part),
        cmocka_unit_test(test_pool_hooks_surround_the_work_of_workers),
        cmocka_unit_test(test_pool_leaves_signals_to_the_caller),
        cmocka_unit_test(test_pool_refuses_a_run_inside_a_task),
        cmocka_unit_test(test_pool_open_counts_cores_and_refuses_nonsense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
