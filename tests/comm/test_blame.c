/* test_blame.c - when a wait is over, and whom it accuses: the clock of one rank, without processes. */
#include "comm/comm_state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>

/* Far less than the age of a machine that has just started: its clock begins at 0. */
#define LONG_AGO 20.0
#define SECONDS_AGO(s) (clock_ns() - (uint64_t)((s)*1e9))
#define TIMEOUT_S 1.0

/* Two ranks of one node; this is rank 0. Their watchers have just looked. */
typedef struct pair {
    comm c;
    int node_of[2], local_of[2], ranks[2];
    char hosts[2][HOST_BYTES];
} pair;

static void pair_init(pair *p) {
    *p = (pair){.c = {.size = 2, .options = {.timeout_s = TIMEOUT_S}, .watching = true},
                .local_of = {0, 1},
                .ranks = {0, 1},
                .hosts = {"here", "here"}};
    p->c.node_of = p->node_of;
    p->c.local_of = p->local_of;
    p->c.hosts = p->hosts;
    p->c.node = (node){.n = 2, .ranks = p->ranks, .page = mem_alloc(sizeof(node_page) + 2 * sizeof(seat))};
    for (int r = 0; r < 2; r++) {
        seat *s = node_seat(&p->c, r);
        s->rank = r;
        s->pid = 100 + r;
        atomic_store(&s->waits_for, WAITS_FOR_NOBODY);
        atomic_store(&s->seen_ns, clock_ns());
    }
}

/* A wait for rank 1 that began so many seconds ago. */
static status wait_of(pair *p, double began_s) {
    comm_wait w = {"an exchange", SECONDS_AGO(began_s)};
    atomic_store(&node_seat(&p->c, 0)->seen_ns, clock_ns());
    return comm_wait_check(&p->c, &w, 1);
}

static void a_wait_is_over_when_the_others_could_answer_after_the_timeout(void **state) {
    pair p;
    pair_init(&p);
    assert_int_equal(wait_of(&p, 0.1), OK);
    assert_int_equal(wait_of(&p, TIMEOUT_S + VERIFY_S / 2), OK);
    assert_true(atomic_load(&p.c.ask_until_ns) > clock_ns()); /* they are asked now */
    assert_int_equal(wait_of(&p, TIMEOUT_S + VERIFY_S + 0.1), ERR_RUN);
    assert_non_null(strstr(error_message(), "rank 1 (pid 101 on here) keeps the others waiting"));
    assert_non_null(strstr(error_message(), "waited 1 s (comm.timeout) in an exchange for rank 1"));
    free(p.c.node.page);
}

/* Ctrl-Z and fg: nobody was late, however long all of them stood still. */
static void time_in_which_this_process_was_stopped_does_not_count(void **state) {
    pair p;
    pair_init(&p);
    atomic_store(&p.c.woke_ns, SECONDS_AGO(0.5));
    assert_int_equal(wait_of(&p, LONG_AGO), OK);
    atomic_store(&p.c.woke_ns, SECONDS_AGO(TIMEOUT_S + VERIFY_S + 0.1)); /* but the time after it does */
    assert_int_equal(wait_of(&p, LONG_AGO), ERR_RUN);
    free(p.c.node.page);
}

/* Between the signal that continues it and the first look of its watcher, which notes when it woke. */
static void a_process_that_was_just_continued_accuses_nobody(void **state) {
    pair p;
    pair_init(&p);
    comm_wait w = {"an exchange", SECONDS_AGO(LONG_AGO)};
    atomic_store(&node_seat(&p.c, 0)->seen_ns, SECONDS_AGO(LONG_AGO - 1));
    assert_int_equal(comm_wait_check(&p.c, &w, 1), OK);
    assert_int_equal(wait_of(&p, LONG_AGO), ERR_RUN);
    free(p.c.node.page);
}

/* Rank 1 was stopped while it waited for this rank: what it had published is old, and it is the one. */
static void a_rank_that_is_silent_is_the_end_of_the_chain(void **state) {
    pair p;
    pair_init(&p);
    atomic_store(&node_seat(&p.c, 1)->waits_for, 0);
    atomic_store(&node_seat(&p.c, 1)->seen_ns, SECONDS_AGO(LONG_AGO));
    assert_int_equal(wait_of(&p, 100), ERR_RUN);
    assert_non_null(strstr(error_message(), "rank 1 (pid 101 on here) does not respond"));
    free(p.c.node.page);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wait_is_over_when_the_others_could_answer_after_the_timeout),
        cmocka_unit_test(time_in_which_this_process_was_stopped_does_not_count),
        cmocka_unit_test(a_process_that_was_just_continued_accuses_nobody),
        cmocka_unit_test(a_rank_that_is_silent_is_the_end_of_the_chain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
