/* mpi.c - bytes between ranks through MPI; nothing else of MPI is used.
 *
 * MPI is only started where there is something to talk to: a run of one rank never calls it. Every call is non-blocking and
 * tested in a loop that also looks for a failed rank and the timeout, because a blocking call to a dead rank never returns.
 * Between looks the loop sleeps, longer and longer: ranks often outnumber cores, and who waits must not compute.
 *
 * Two threads come here, the one that exchanges and the watcher, one at a time under a lock: MPI_THREAD_SERIALIZED. */
#ifdef HAVE_MPI
#include "comm/comm_state.h"

#include <mpi.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* Counts of MPI are ints. */
#define MESSAGE_MOST ((size_t)1 << 30)
enum { EAGER_LOOKS = 64, PAUSE_LEAST_NS = 2000, PAUSE_MOST_NS = 500000, LOOKS_PER_ASK = 64 };

/* An alert on its way. */
enum { POSTS = 256, POSTS_PER_RANK = 8 };
typedef struct post {
    MPI_Request request;
    int to;
    bool taken;
    uint8_t bytes[ALERT_BYTES];
} post;

typedef struct mpi_state {
    MPI_Comm data, setup, alerts; /* apart, so that no message is taken for another's */
    pthread_mutex_t lock;
    MPI_Request *requests; /* room for 2 * size */
    int *peers;            /* of the requests */
    post *posts;           /* POSTS of them */
} mpi_state;

static status mpi_error(const char *what, int rc) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int n;
    MPI_Error_string(rc, text, &n);
    return ERR(ERR_RUN, "%s: %s", what, text);
}

/* What MPI reports is most often the trace of a rank that died, which says more. */
static status mpi_failed(comm *c, const char *what, int rc) {
    TRY(blame_wait_for_cause(c));
    return mpi_error(what, rc);
}

/* ---- waiting -------------------------------------------------------------------------------------------------------------- */

static void pause_polling(int look) {
    if (look < EAGER_LOOKS) return;
    long ns = (long)PAUSE_LEAST_NS << MIN((look - EAGER_LOOKS) / 16, 16);
    nanosleep(&(struct timespec){.tv_nsec = MIN(ns, (long)PAUSE_MOST_NS)}, NULL);
}

/* The rank whose message has not come, or else one that has not taken ours. */
static int find_pending(mpi_state *m, const MPI_Request *requests, int n) {
    int late = WAITS_FOR_UNKNOWN;
    pthread_mutex_lock(&m->lock);
    for (int i = 0, done; i < n && late < 0; i++)
        if (MPI_Request_get_status(requests[i], &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done) late = m->peers[i];
    pthread_mutex_unlock(&m->lock);
    return late;
}

/* waits_for: as in rank_state; WAITS_FOR_UNKNOWN: the peers of the requests */
static status finish(comm *c, const comm_wait *w, MPI_Request *requests, int n, int waits_for) {
    mpi_state *m = c->transport_state;
    bool ask = waits_for == WAITS_FOR_UNKNOWN;
    status result;
    for (int look = 0;; look++) {
        int done = 0;
        pthread_mutex_lock(&m->lock);
        int rc = MPI_Testall(n, requests, &done, MPI_STATUSES_IGNORE);
        pthread_mutex_unlock(&m->lock);
        result = rc == MPI_SUCCESS ? OK : mpi_failed(c, w->what, rc);
        if (result != OK || done) break;
        if (ask && look > EAGER_LOOKS && look % LOOKS_PER_ASK == 0) waits_for = find_pending(m, requests, n);
        if ((result = comm_wait_check(c, w, waits_for)) != OK) break;
        pause_polling(look);
    }
    state_note_wait(c, WAITS_FOR_NOBODY);
    return result;
}

/* ---- the table ------------------------------------------------------------------------------------------------------------- */

static status mpi_gather(comm *c, const void *mine, size_t n_bytes, void *all) {
    mpi_state *m = c->transport_state;
    MPI_Request request;
    comm_wait w = {"an exchange between steps", clock_ns()};
    ASSERT(n_bytes <= MESSAGE_MOST);
    if (c->node.page) atomic_fetch_add(&node_seat(c, c->node.index)->n_setup, 1);
    pthread_mutex_lock(&m->lock);
    int rc = MPI_Iallgather(mine, (int)n_bytes, MPI_BYTE, all, (int)n_bytes, MPI_BYTE, m->setup, &request);
    pthread_mutex_unlock(&m->lock);
    if (rc != MPI_SUCCESS) return mpi_failed(c, w.what, rc);
    return finish(c, &w, &request, 1, WAITS_IN_SETUP);
}

/* After a failure the caller takes its memory back, and what a rank had sent before it heard must not be written there. A
 * receive whose message has begun to come cannot be taken back and is left alone; neither can a send. */
static void forget_receives(mpi_state *m, int n) {
    int done;
    pthread_mutex_lock(&m->lock);
    for (int i = 0; i < n; i++)
        if (m->requests[i] != MPI_REQUEST_NULL && MPI_Cancel(&m->requests[i]) == MPI_SUCCESS)
            MPI_Test(&m->requests[i], &done, MPI_STATUS_IGNORE);
    pthread_mutex_unlock(&m->lock);
}

static status mpi_exchange(comm *c, const comm_wait *w, const message *ms, int n) {
    mpi_state *m = c->transport_state;
    size_t longest = 0;
    for (int i = 0; i < n; i++) longest = MAX(longest, ms[i].n_bytes);
    for (size_t at = 0; at < longest; at += MESSAGE_MOST) {
        int n_requests = 0, n_receives = 0, rc = MPI_SUCCESS;
        pthread_mutex_lock(&m->lock);
        for (int receive = 1; receive >= 0; receive--) /* receives first: what arrives finds its place */
            for (int i = 0; i < n && rc == MPI_SUCCESS; i++) {
                const message *x = &ms[i];
                if (x->receive != (bool)receive || at >= x->n_bytes) continue;
                int length = (int)MIN(x->n_bytes - at, MESSAGE_MOST);
                char *bytes = (char *)x->bytes + at;
                m->peers[n_requests] = x->peer;
                MPI_Request *r = &m->requests[n_requests++];
                *r = MPI_REQUEST_NULL;
                n_receives += receive;
                rc = receive ? MPI_Irecv(bytes, length, MPI_BYTE, x->peer, x->tag, m->data, r)
                             : MPI_Isend(bytes, length, MPI_BYTE, x->peer, x->tag, m->data, r);
            }
        pthread_mutex_unlock(&m->lock);
        status ended =
            rc == MPI_SUCCESS ? finish(c, w, m->requests, n_requests, WAITS_FOR_UNKNOWN) : mpi_failed(c, w->what, rc);
        if (ended == OK) continue;
        forget_receives(m, n_receives);
        return ended;
    }
    return OK;
}

/* A place for an alert to a rank; NULL: too many are on their way to it, or in all. */
static post *find_post(mpi_state *m, int to) {
    post *free_one = NULL;
    int n = 0;
    for (int i = 0, done; i < POSTS; i++) {
        post *p = &m->posts[i];
        if (p->taken && MPI_Test(&p->request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done) p->taken = false;
        if (!p->taken) free_one = p;
        else n += p->to == to;
    }
    return n < POSTS_PER_RANK ? free_one : NULL;
}

static void mpi_post(comm *c, int to, const void *bytes, size_t n_bytes) {
    mpi_state *m = c->transport_state;
    ASSERT(n_bytes <= ALERT_BYTES);
    pthread_mutex_lock(&m->lock);
    post *p = find_post(m, to);
    if (p) {
        memcpy(p->bytes, bytes, n_bytes);
        p->to = to;
        p->taken = MPI_Isend(p->bytes, (int)n_bytes, MPI_BYTE, to, 0, m->alerts, &p->request) == MPI_SUCCESS;
    }
    pthread_mutex_unlock(&m->lock);
}

static bool mpi_hear(comm *c, void *bytes, size_t *n_bytes, int *from) {
    mpi_state *m = c->transport_state;
    int came = 0, n = 0;
    MPI_Status s;
    pthread_mutex_lock(&m->lock);
    if (MPI_Iprobe(MPI_ANY_SOURCE, 0, m->alerts, &came, &s) != MPI_SUCCESS) came = 0;
    if (came) came = MPI_Recv(bytes, ALERT_BYTES, MPI_BYTE, s.MPI_SOURCE, 0, m->alerts, &s) == MPI_SUCCESS;
    if (came) came = MPI_Get_count(&s, MPI_BYTE, &n) == MPI_SUCCESS && n >= 0;
    pthread_mutex_unlock(&m->lock);
    *n_bytes = (size_t)n;
    *from = s.MPI_SOURCE;
    return came;
}

/* Open MPI's daemon unlinks the shared memory of its ranks when they end; without it the ranks do. What is mapped stays. */
static void mpi_orphaned(void) {
    char line[4096];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        char *path = strchr(line, '/');
        if (!path || (!strstr(path, "/vader_segment.") && !strstr(path, "/sm_segment."))) continue;
        path[strcspn(path, "\n")] = 0;
        unlink(path);
    }
    if (maps) fclose(maps);
}

static status mpi_find_node(comm *c, int *node) {
    MPI_Comm shared;
    int rc = MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, c->rank, MPI_INFO_NULL, &shared);
    *node = c->rank;
    if (rc == MPI_SUCCESS) rc = MPI_Bcast(node, 1, MPI_INT, 0, shared);
    if (rc == MPI_SUCCESS) rc = MPI_Comm_free(&shared);
    return rc == MPI_SUCCESS ? OK : mpi_error("find the ranks of this node", rc);
}

/* MPI starts once in a process and cannot be started again, so it ends with the process: there may be another mesh. Not
 * after a failure: MPI_Finalize waits for everybody. */
static bool may_finalize;
static comm_options last_options;
static void finalize_at_exit(void) {
    if (!may_finalize) return;
    if (launch_watch_open(&last_options, "to end") != OK) error_clear();
    MPI_Finalize();
    launch_watch_close();
}

static status mpi_start(void) {
    int provided, started = 0;
    MPI_Initialized(&started);
    if (started) return OK;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS)
        return ERR(ERR_RUN, "MPI failed to start; see its own message above");
    atexit(finalize_at_exit);
    return OK;
}

static status mpi_open(comm *c, int *node) {
    int provided, launched_rank, launched_size = 0;
    TRY(mpi_start());
    may_finalize = false;
    last_options = c->options;
    if (MPI_Query_thread(&provided) != MPI_SUCCESS || provided < MPI_THREAD_SERIALIZED)
        return ERR(ERR_INPUT, "this MPI supports one thread only; ralo needs MPI_THREAD_SERIALIZED");
    MPI_Comm_rank(MPI_COMM_WORLD, &c->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &c->size);
    if (comm_launched(&launched_rank, &launched_size) && launched_size != c->size)
        return ERR(ERR_INPUT,
                   "the launcher started %d processes and MPI sees %d: the launcher belongs to another MPI than the "
                   "one that ralo was built with",
                   launched_size, c->size);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    mpi_state *m = mem_alloc(sizeof *m);
    c->transport_state = m;
    pthread_mutex_init(&m->lock, NULL);
    m->requests = mem_alloc(2 * (size_t)c->size * sizeof *m->requests);
    m->peers = mem_alloc(2 * (size_t)c->size * sizeof *m->peers);
    m->posts = mem_alloc(POSTS * sizeof *m->posts);
    MPI_Comm *const copies[] = {&m->data, &m->setup, &m->alerts};
    for (size_t i = 0; i < ARRAY_LENGTH(copies); i++) { /* they inherit the error handler */
        int rc = MPI_Comm_dup(MPI_COMM_WORLD, copies[i]);
        if (rc != MPI_SUCCESS) return mpi_error("make a communicator for ralo", rc);
    }
    return mpi_find_node(c, node);
}

/* What was posted last may still be on its way, and is then left alone with its memory. */
static bool posts_are_gone(mpi_state *m) {
    for (int i = 0, done; i < POSTS; i++)
        if (m->posts[i].taken && (MPI_Test(&m->posts[i].request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || !done))
            return false;
    return true;
}

static void mpi_close(comm *c, bool failed) {
    mpi_state *m = c->transport_state;
    if (posts_are_gone(m)) free(m->posts);
    if (!failed) {
        MPI_Comm_free(&m->data);
        MPI_Comm_free(&m->setup);
        MPI_Comm_free(&m->alerts);
    }
    may_finalize = !failed;
    pthread_mutex_destroy(&m->lock);
    free(m->requests);
    free(m->peers);
    free(m);
}

const comm_transport *comm_mpi(void) {
    static const comm_transport t = {mpi_open, mpi_close, mpi_gather, mpi_exchange, mpi_post, mpi_hear, mpi_orphaned};
    return &t;
}
#endif
