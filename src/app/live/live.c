/* live.c - one thread that reads the files of the run and, as its child, the server's.
 *
 * Both are nicer than the run: where cores are few, steps come first. Signals are blocked in them: handlers run on the caller's threads. */
#define _GNU_SOURCE 1 /* gettid */
#include "live/live.h"
#include "live/server.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { POLL_MS = 500, NICENESS = 10 };

struct live {
    board board;
    gate gate;
    gate_address address;
    server *server;
    char *url;
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    bool started, closing;
    int socket;
    status rc; /* of the start, and what it says */
    error_record error;
};

status live_check(const live_options *o) {
    gate_address address;
    gate g;
    TRY(server_check());
    TRY(gate_parse_address(o->listen, &address));
    return gate_init(&g, &address, o->token);
}

static status listen_at(gate_address *a, int *out) {
    int one = 1, fd = socket(a->socket.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return ERR(ERR_IO, "live page: socket: %s", strerror(errno));
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (a->socket.ss_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&a->socket, a->n_bytes) != 0 || listen(fd, 512) != 0 ||
        getsockname(fd, (struct sockaddr *)&a->socket, &a->n_bytes) != 0) {
        status rc = ERR(ERR_IO, "live page: %s port %u: %s%s", a->host, a->port, strerror(errno),
                        errno == EADDRINUSE ? "; give another port, or 0 for one that is free" : "");
        close(fd);
        return rc;
    }
    a->port = ntohs(a->socket.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a->socket)->sin6_port
                                                    : ((struct sockaddr_in *)&a->socket)->sin_port);
    *out = fd;
    return OK;
}

static char *make_url(const live *l) {
    const gate_address *a = &l->address;
    bool is_any = strcmp(a->host, "0.0.0.0") == 0 || strcmp(a->host, "::") == 0,
         is_ipv6 = a->socket.ss_family == AF_INET6;
    bool brackets = is_ipv6 && !is_any;
    strbuf url;
    strbuf_init(&url);
    strbuf_printf(&url, "http://%s%s%s:%u/?token=%s", brackets ? "[" : "", is_any ? l->gate.machine : a->host,
                  brackets ? "]" : "", a->port, l->gate.token);
    return strbuf_take(&url);
}

/* ---- the thread --------------------------------------------------------------------------------------------------- */

static bool wait_for_close(live *l, long ms) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += ms * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&l->lock);
    while (!l->closing && pthread_cond_timedwait(&l->changed, &l->lock, &until) == 0) {}
    bool closing = l->closing;
    pthread_mutex_unlock(&l->lock);
    return closing;
}

static void *live_thread(void *context) {
    live *l = context;
    setpriority(PRIO_PROCESS, (id_t)gettid(), getpriority(PRIO_PROCESS, (id_t)gettid()) + NICENESS);
    pthread_mutex_lock(&l->lock);
    l->rc = server_open(&l->server, l->socket, l->address.socket.ss_family == AF_INET6, &l->board, &l->gate);
    if (l->rc != OK) error_take(&l->error);
    l->started = true;
    bool failed = l->rc != OK;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    if (failed) return NULL;
    while (!wait_for_close(l, board_poll(&l->board) ? 1 : POLL_MS)) server_tick(l->server);
    while (board_poll(&l->board)) {}
    pthread_mutex_lock(&l->board.lock);
    stream_put(&l->board.stream, "end", "{}");
    stream_end(&l->board.stream);
    pthread_mutex_unlock(&l->board.lock);
    server_close(l->server);
    return NULL;
}

static status start_thread(live *l) {
    int failed = thread_start(&l->thread, live_thread, l);
    if (failed) {
        close(l->socket);
        return ERR(ERR_IO, "live page: thread: %s", strerror(failed));
    }
    pthread_mutex_lock(&l->lock);
    while (!l->started) pthread_cond_wait(&l->changed, &l->lock);
    status rc = l->rc;
    pthread_mutex_unlock(&l->lock);
    if (rc == OK) return OK;
    pthread_join(l->thread, NULL);
    return error_give(&l->error);
}

static void live_free(live *l) {
    board_close(&l->board);
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
    free(l->url);
    free(l);
}

status live_open(live **out, const live_options *o) {
    live *l = mem_alloc(sizeof *l);
    l->board.dir = -1;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&l->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&l->lock, NULL);
    status rc;
    TRY_GOTO(rc, gate_parse_address(o->listen, &l->address), fail);
    TRY_GOTO(rc, server_check(), fail);
    TRY_GOTO(rc, board_open(&l->board, o->run_dir, o->name, server_wake, NULL), fail);
    TRY_GOTO(rc, listen_at(&l->address, &l->socket), fail);
    rc = gate_init(&l->gate, &l->address, o->token); /* with the port that was chosen */
    if (rc != OK) close(l->socket);
    if (rc == OK) l->url = make_url(l);
    if (rc == OK) rc = start_thread(l);
    if (rc == OK) {
        *out = l;
        return OK;
    }
    error_trail(rc, __FILE__, __LINE__, __func__);
fail:
    live_free(l);
    return rc;
}

status live_follow(live *l, const char *run_dir, const char *name) { return board_follow(&l->board, run_dir, name); }

const char *live_url(const live *l) { return l->url; }

void live_close(live *l) {
    if (!l) return;
    pthread_mutex_lock(&l->lock);
    l->closing = true;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    live_free(l);
}
