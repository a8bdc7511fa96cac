/* blame.c - find the rank that a wait is really for.
 *
 * A rank that waits too long usually waits for a rank that waits itself: with pipeline, tensor and data ranks, one rank
 * that hangs stops all others within a step. Every rank publishes the rank it waits for, so the chain can be followed
 * to its end: a rank whose watcher no longer runs (it was stopped, or its machine hangs), or one that waits for no rank
 * (it computes, or is stuck outside of comm). The state of a silent rank is old and is not followed.
 *
 * After the timeout the other nodes are asked first, and a rank that has just been stopped gets time to be seen as
 * silent: the run ends VERIFY_S after the timeout, unless the late rank arrives in the meantime. */
#include "comm/comm_state.h"

#include <time.h>

enum { CAUSE_LOOK_MS = 10 };

/* A rank that has begun fewer set-up calls; -1: none. */
static int find_late_in_setup(const comm *c, uint32_t n_setup) {
    rank_state s;
    for (int r = 0; r < c->size; r++) {
        state_get(c, r, &s);
        if (s.seen_ns > 0 && (int32_t)(s.n_setup - n_setup) < 0) return r;
    }
    return -1;
}

/* If the chain ends nowhere: a silent rank, or else one that waits for no rank. */
static int find_stalled_rank(const comm *c) {
    rank_state s;
    int standing = -1;
    for (int r = c->size - 1; r >= 0; r--) {
        state_get(c, r, &s);
        if (r == c->rank) continue;
        if (state_is_silent(&s)) return r;
        if (s.waits_for == WAITS_FOR_NOBODY) standing = r;
    }
    return standing;
}

static int next_of(const comm *c, const rank_state *s) {
    if (s->waits_for >= 0 && s->waits_for < c->size) return s->waits_for;
    return s->waits_for == WAITS_IN_SETUP ? find_late_in_setup(c, s->n_setup) : -1;
}

int blame_find(const comm *c, int waits_for, char *chain, size_t n) {
    rank_state s;
    size_t length = 0;
    state_get(c, c->rank, &s);
    s.waits_for = waits_for;
    chain[0] = 0;
    for (int steps = 0; steps <= c->size; steps++) { /* longer: they wait in a cycle */
        int next = next_of(c, &s);
        if (next < 0 || next == s.rank) break;
        if (length < n)
            length +=
                (size_t)snprintf(chain + length, n - length, steps ? ", which waits for rank %d" : "rank %d", next);
        state_get(c, next, &s);
        if (state_is_silent(&s) || s.waits_for == WAITS_FOR_NOBODY) return next;
    }
    snprintf(chain, n, "ranks that did not arrive");
    return find_stalled_rank(c);
}

static void report_timeout(comm *c, const comm_wait *w, int late, const char *chain) {
    char me[256], other[512], text[CAUSE_BYTES];
    rank_state s;
    state_name(c, c->rank, me, sizeof me);
    if (late < 0) {
        snprintf(text, sizeof text,
                 "%s has waited %.0f s (comm.timeout) in %s for %s: all ranks wait, a message between them was lost",
                 me, c->options.timeout_s, w->what, chain);
    } else {
        state_get(c, late, &s);
        snprintf(text, sizeof text, "%s %s; %s has waited %.0f s (comm.timeout) in %s for %s",
                 comm_describe(c, late, other, sizeof other),
                 state_is_silent(&s) ? "does not respond: it was stopped, or it or its machine hangs"
                                     : "keeps the others waiting: it has not reached its next collective",
                 me, c->options.timeout_s, w->what, chain);
    }
    comm_cause_set_lost(c, c->rank, late >= 0 ? late : c->rank, text);
}

/* This process has just been continued after a stop: its watcher has not run yet. */
static bool was_stopped(comm *c) {
    rank_state s;
    if (!atomic_load(&c->watching)) return false;
    state_get(c, c->rank, &s);
    return state_is_silent(&s);
}

status comm_wait_check(comm *c, const comm_wait *w, int waits_for) {
    state_note_wait(c, waits_for);
    TRY(comm_check(c));
    if (!atomic_load(&c->watching) && c->options.on_missing) return OK; /* they join: launch.c has the clock */
    uint64_t now = clock_ns(), woke = atomic_load(&c->woke_ns);
    double waited_s = (double)(now - MAX(w->start_ns, woke)) * 1e-9;
    if (waited_s < c->options.timeout_s || was_stopped(c)) return OK;
    atomic_store(&c->ask_until_ns, now + 500000000u);
    if (waited_s < c->options.timeout_s + VERIFY_S) return OK;
    char chain[256];
    int late = blame_find(c, waits_for, chain, sizeof chain);
    /* All ranks wait: the late one may just have arrived, and this rank, on a busy machine, may not have seen it
     * yet. */
    if (late < 0 && waited_s < c->options.timeout_s + 2 * VERIFY_S) return OK;
    report_timeout(c, w, late, chain);
    return comm_check(c);
}

status blame_wait_for_cause(comm *c) {
    atomic_store(&c->alive_check_wanted, true);
    for (int ms = 0; ms < BLAME_WAIT_MS; ms += CAUSE_LOOK_MS) {
        TRY(comm_check(c));
        nanosleep(&(struct timespec){.tv_nsec = CAUSE_LOOK_MS * 1000000L}, NULL);
    }
    return OK;
}
