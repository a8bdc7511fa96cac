/* watch.c - the thread that sees what happens to the others while this rank computes.
 *
 * Twenty times a second it looks whether the next rank of the node still lives (each watches one, the last the first, so
 * every death has a witness), whether another node has sent a cause, how far the messages are that a device runs, and
 * whether the first cause is known. Then it says so soon, because a launcher that sees a rank die kills the others within a
 * second. The rank itself ends where it meets the mesh the next time; one that has not left in time is ended by on_overdue. */
#include "comm/comm_state.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* A rank that does not compute hears of a failure itself and says so: it gets a moment to. */
enum { LOOK_MS = 50, TELL_MS = 200 };

static void look_at_neighbour(comm *c) {
    int next = (c->node.index + 1) % c->node.n;
    const seat *s = node_seat(c, next);
    if (next == c->node.index || !node_peer_is_dead(c, next) || atomic_load(&s->state) == SEAT_LEFT) return;
    char text[CAUSE_BYTES], where[512];
    snprintf(text, sizeof text,
             "%s died: it was killed or crashed (its own messages, if any, stand above; the kernel's log "
             "tells when memory ran out)",
             comm_describe(c, c->node.ranks[next], where, sizeof where));
    comm_cause_set(c, c->node.ranks[next], ERR_RUN, text);
}

static void look_at_other_nodes(comm *c) {
    cause x;
    if (c->transport->hear(c, &x)) comm_cause_set(c, -1, (status)x.code, x.text);
}

static void *watch_main(void *argument) {
    comm *c = argument;
    bool told = false;
    uint64_t failed_ns = 0; /* when it was seen */
    struct pollfd wake = {.fd = c->wake_fd, .events = POLLIN};
    while (!atomic_load(&c->closing)) {
        if (!comm_failed(c)) look_at_neighbour(c);
        if (!comm_failed(c)) look_at_other_nodes(c);
        links_look(c);
        if (comm_failed(c) && !failed_ns) failed_ns = clock_ns();
        uint64_t since_ms = failed_ns ? (clock_ns() - failed_ns) / 1000000 : 0;
        if (since_ms >= TELL_MS && !told) {
            told = true;
            bool own = comm_check(c) == OK || comm_cause(c)->rank == c->rank; /* what failed here is told here */
            if (c->options.on_failure && !own) c->options.on_failure(c->options.context, error_message());
        }
        if ((double)since_ms > COMM_GRACE_S * 1e3 && c->options.on_overdue) c->options.on_overdue(c->options.context);
        poll(&wake, 1, LOOK_MS);
    }
    return NULL;
}

status watch_open(comm *c) {
    sigset_t all, before;
    if ((c->wake_fd = eventfd(0, EFD_CLOEXEC)) < 0) return ERR(ERR_IO, "eventfd: %s", strerror(errno));
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before); /* Ctrl-C belongs to the thread that trains */
    int rc = pthread_create(&c->watcher, NULL, watch_main, c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0) return ERR(ERR_IO, "no thread to watch the other ranks: %s", strerror(rc));
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
