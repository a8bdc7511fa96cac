/* watch.c - the thread that sees what happens to the others while this rank computes.
 *
 * Twenty times a second it looks whether the next rank of the node still lives, and in turn one more (so that a death has a
 * witness even where two die at once), whether the launcher does, what other nodes have sent, how far the messages are that a
 * device runs, and whether the first cause is known. Then it says so soon, because a launcher that sees a rank die kills the
 * others within a second. The rank itself ends where it meets the mesh the next time; one that has not left in time is ended
 * by on_overdue.
 *
 * A rank that has its node to itself dies without a witness. But its launcher sees it and asks the others to end (SIGTERM):
 * they then call the roll, and a node of which no rank answers is the one. */
#include "comm/comm_state.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* A rank that does not compute hears of a failure itself and says so: it gets a moment to. */
enum { LOOK_MS = 50, REPORT_MS = 200, ALIVE_CHECK_MS = 500, WOKE_MS = 5000 };
#define STOPPED_S 1.5

static _Atomic bool alive_check_called; /* of the process: a signal handler knows no mesh */
void comm_check_alive(void) { atomic_store(&alive_check_called, true); }

static void check_rank(comm *c, int local) {
    const seat *s = node_seat(c, local);
    if (local == c->node.index || !node_peer_is_dead(c, local) || atomic_load(&s->state) == SEAT_LEFT) return;
    char text[CAUSE_BYTES], where[512];
    snprintf(text, sizeof text,
             "%s died: it was killed or crashed (see its own messages above, if any; the kernel's log shows whether "
             "memory ran out)",
             comm_describe(c, c->node.ranks[local], where, sizeof where));
    comm_cause_set_lost(c, c->node.ranks[local], c->node.ranks[local], text);
}

static void check_launcher(comm *c) {
    char text[CAUSE_BYTES];
    if (c->launcher == 0 || getppid() == c->launcher) return;
    snprintf(text, sizeof text, "%s (pid %d on %s), which started the ranks, is gone: it was killed or crashed",
             c->launcher_name, c->launcher, c->hosts[c->rank]);
    comm_cause_set_lost(c, CAUSE_OF_LAUNCHER, LOST_LAUNCHER, text);
    c->transport->orphaned();
    c->launcher = 0;
}

/* A node that has not answered since the roll was called; -1: all have. */
static int find_missing_node(const comm *c) {
    for (int first = 0; first < c->size; first++) {
        bool answered = c->node_of[first] != first || first == c->node_of[c->rank];
        for (int r = first; r < c->size && !answered; r++)
            answered = c->node_of[r] == first && atomic_load(&node_copy(c, r)->heard_ns) >= c->alive_check_ns;
        if (!answered) return first;
    }
    return -1;
}

/* Who was stopped until the others had enough of waiting knows only that they continued without it. */
static void report_missing(comm *c, int missing) {
    char text[CAUSE_BYTES], where[512];
    bool just_woke = c->stopped_ns > 0 && clock_ns() - atomic_load(&c->woke_ns) < (uint64_t)WOKE_MS * 1000000;
    if (just_woke && (double)c->stopped_ns * 1e-9 >= c->options.timeout_s) {
        snprintf(text, sizeof text, "%s was stopped for %.0f s, and the others have ended without it",
                 state_name(c, c->rank, where, sizeof where), (double)c->stopped_ns * 1e-9);
        comm_cause_set_lost(c, c->rank, c->rank, text);
    } else {
        snprintf(text, sizeof text, "%s died, or its machine is unreachable: no rank there responds",
                 comm_describe(c, missing, where, sizeof where));
        comm_cause_set_lost(c, missing, missing, text);
    }
}

static void check_alive(comm *c) {
    uint64_t now = clock_ns();
    if (c->alive_check_ns == 0) {
        c->alive_check_ns = now;
        for (int i = 0; i < c->node.n; i++) check_rank(c, i);
    }
    atomic_store(&c->ask_until_ns, now + (uint64_t)ALIVE_CHECK_MS * 1000000);
    if (now - c->alive_check_ns < (uint64_t)ALIVE_CHECK_MS * 1000000) return;
    int missing = find_missing_node(c);
    c->alive_check_done = true;
    if (missing >= 0) report_missing(c, missing);
    else if (atomic_load(&alive_check_called) && c->options.on_asked_to_end && c->node.index == 0)
        c->options.on_asked_to_end(c->options.context);
}

/* Where looks are far apart this process itself was stopped, and its waits were not the others' fault. Not for the pauses of a
 * busy machine, which would put off the timeout again and again. */
static void check_clock(comm *c) {
    uint64_t now = clock_ns(), stopped = (uint64_t)(MAX(c->options.timeout_s / 2, STOPPED_S) * 1e9);
    if (c->looked_ns > 0 && now - c->looked_ns > stopped) {
        c->stopped_ns = now - c->looked_ns;
        atomic_store(&c->woke_ns, now);
    }
    c->looked_ns = now;
    state_note_life(c);
}

static void check_others(comm *c, uint64_t look) {
    check_clock(c);
    if (!comm_failed(c)) check_rank(c, (c->node.index + 1) % c->node.n);
    if (!comm_failed(c)) check_rank(c, (int)(look % (uint64_t)c->node.n));
    if (!comm_failed(c)) check_launcher(c);
    alerts_hear(c);
    if (!atomic_load(&c->leaving)) alerts_report(c);
    if (!comm_failed(c) && !c->alive_check_done &&
        (atomic_load(&alive_check_called) || atomic_load(&c->alive_check_wanted)))
        check_alive(c);
    if (clock_ns() < atomic_load(&c->ask_until_ns)) alerts_ask(c);
}

static void *watch_main(void *argument) {
    comm *c = argument;
    bool reported = false;
    uint64_t failed_ns = 0; /* when it was seen */
    struct pollfd wake = {.fd = c->wake_fd, .events = POLLIN};
    for (uint64_t look = 0; !atomic_load(&c->closing); look++) {
        check_others(c, look);
        links_look(c);
        if (comm_failed(c) && !failed_ns) failed_ns = clock_ns();
        uint64_t since_ms = failed_ns ? (clock_ns() - failed_ns) / 1000000 : 0;
        if (since_ms >= REPORT_MS && !reported) {
            reported = true;
            bool own = comm_check(c) == OK ||
                       comm_cause(c)->rank == c->rank; /* a failure of this rank is reported elsewhere */
            if (c->options.on_failure && !own) c->options.on_failure(c->options.context, error_code(), error_message());
        }
        if ((double)since_ms > COMM_GRACE_S * 1e3 && c->options.on_overdue) c->options.on_overdue(c->options.context);
        poll(&wake, 1, LOOK_MS);
    }
    return NULL;
}

/* The parent: mpirun, its daemon, slurmstepd, or a script between. 1 and 0: nobody whose end could be seen. */
static void find_launcher(comm *c) {
    char path[64];
    int pid = getppid();
    c->launcher = pid > 1 && c->size > 1 ? pid : 0;
    snprintf(c->launcher_name, sizeof c->launcher_name, "the launcher");
    snprintf(path, sizeof path, "/proc/%d/comm", pid);
    FILE *f = c->launcher ? fopen(path, "r") : NULL;
    if (f && fgets(c->launcher_name, sizeof c->launcher_name, f)) c->launcher_name[strcspn(c->launcher_name, "\n")] = 0;
    if (f) fclose(f);
}

status watch_open(comm *c) {
    find_launcher(c);
    if ((c->wake_fd = eventfd(0, EFD_CLOEXEC)) < 0) return ERR(ERR_IO, "eventfd: %s", strerror(errno));
    int rc = thread_start(&c->watcher, watch_main, c);
    if (rc != 0) return ERR(ERR_IO, "start the thread that watches the other ranks: %s", strerror(rc));
    c->watching = true;
    return OK;
}

void watch_close(comm *c) {
    if (c->watching) {
        eventfd_write(c->wake_fd, 1); /* it would wake by itself, a little later */
        pthread_join(c->watcher, NULL);
    }
    if (c->wake_fd >= 0) close(c->wake_fd);
    c->watching = false;
    c->wake_fd = -1;
}
