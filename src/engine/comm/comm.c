/* comm.c - open a mesh from its options, its set-up calls, and the first cause of a failure.
 *
 * The first cause is one record per node, in the page that the node's ranks map; the rank that writes it sends it to
 * the other nodes. Every wait checks it, so a failure anywhere ends every wait within milliseconds. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "comm/comm_state.h"

#include <sched.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

/* What ranks exchange first. */
typedef struct identity {
    char host[HOST_BYTES];
    int32_t node;
    int32_t size[AXIS_COUNT];
    uint64_t cores; /* hash of the set it may use */
} identity;

enum { SPINS = 4000 }; /* some microseconds */

/* ---- the first cause -------------------------------------------------------------------------------------------------- */

cause *comm_cause(const comm *c) { return c->node.page ? &c->node.page->cause : (cause *)&c->own_cause; }

bool comm_failed(const comm *c) { return atomic_load(&comm_cause(c)->state) != CAUSE_NONE; }

static void cause_write(comm *c, int rank, status code, int lost, const char *text) {
    cause *x = comm_cause(c);
    uint32_t none = CAUSE_NONE;
    if (!atomic_compare_exchange_strong(&x->state, &none, CAUSE_WRITING)) return;
    x->rank = rank;
    x->code = code;
    x->lost = lost;
    snprintf(x->text, sizeof x->text, "%s", text);
    atomic_store(&x->state, CAUSE_WRITTEN);
    if (c->transport && rank != CAUSE_OF_OTHER_NODE && rank != CAUSE_OF_OTHER_LAUNCHER) alerts_send_cause(c, x);
}

void comm_cause_set(comm *c, int rank, status code, const char *text) { cause_write(c, rank, code, LOST_NONE, text); }
void comm_cause_set_lost(comm *c, int rank, int lost, const char *text) { cause_write(c, rank, ERR_RUN, lost, text); }

bool comm_lost_rank(const comm *c, int *rank, int64_t *step) {
    const cause *x = comm_cause(c);
    uint32_t state = atomic_load(&x->state);
    rank_state own = {0};
    if (c->node.page) state_get(c, c->rank, &own);
    *step = own.step;
    *rank = state == CAUSE_WRITTEN && x->lost >= 0 ? x->lost : -1;
    return state == CAUSE_WRITING || (state == CAUSE_WRITTEN && x->lost != LOST_NONE);
}

bool comm_launcher_is_gone(const comm *c) {
    const cause *x = comm_cause(c);
    return atomic_load(&x->state) == CAUSE_WRITTEN &&
           (x->rank == CAUSE_OF_LAUNCHER || x->rank == CAUSE_OF_OTHER_LAUNCHER);
}

status comm_check(comm *c) {
    const cause *x = comm_cause(c);
    if (!comm_failed(c)) return OK;
    /* A rank that was killed while writing leaves the record unfinished; a living one finishes it within a moment. */
    for (int i = 0; i < 100 && atomic_load(&x->state) == CAUSE_WRITING; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (atomic_load(&x->state) != CAUSE_WRITTEN)
        return ERR(ERR_RUN, "a rank on this node died while reporting its error");
    bool known = x->code > OK && x->code <= ERR_BUG;
    return ERR(known ? (status)x->code : ERR_RUN, "%.*s", CAUSE_BYTES - 1, x->text);
}

void comm_fail(comm *c, status code, const char *message) {
    char text[CAUSE_BYTES], where[512];
    if (!c || code == OK) return;
    if (c->size > 1) snprintf(text, sizeof text, "%s: %s", state_name(c, c->rank, where, sizeof where), message);
    else snprintf(text, sizeof text, "%s", message);
    comm_cause_set(c, c->rank, code, text);
}

/* ---- open and close ---------------------------------------------------------------------------------------------------- */

static status resolve_mesh(comm *c, const identity *all) {
    mesh *m = &c->mesh;
    int others = 1, rest = c->rank;
    for (int r = 0; r < c->size; r++)
        if (memcmp(all[r].size, all[0].size, sizeof all[0].size) != 0)
            return ERR(ERR_INPUT,
                       "rank %d (%s) and rank 0 were given different meshes; every rank needs the same settings", r,
                       all[r].host);
    for (axis a = 0; a < AXIS_COUNT; a++) {
        m->size[a] = MAX(c->options.size[a], 1);
        if (a != AXIS_DATA) others *= m->size[a];
    }
    if (c->options.size[AXIS_DATA] == 0) m->size[AXIS_DATA] = MAX(c->size / others, 1);
    if (mesh_world(m) != c->size)
        return ERR(
            ERR_INPUT,
            "%d ranks do not make a mesh of data %d x tensor %d x pipeline %d x sequence %d = %d ranks; start as many "
            "(--ranks %d)",
            c->size, m->size[AXIS_DATA], m->size[AXIS_TENSOR], m->size[AXIS_PIPELINE], m->size[AXIS_SEQUENCE],
            mesh_world(m), mesh_world(m));
    static const axis inner_first[AXIS_COUNT] = {AXIS_TENSOR, AXIS_SEQUENCE, AXIS_DATA, AXIS_PIPELINE};
    for (int i = 0; i < AXIS_COUNT; i++) {
        axis a = inner_first[i];
        m->index[a] = rest % m->size[a];
        rest /= m->size[a];
    }
    return OK;
}

static void place_ranks(comm *c, const identity *all) {
    for (int r = 0, n; r < c->size; r++) {
        memcpy(c->hosts[r], all[r].host, HOST_BYTES);
        c->hosts[r][HOST_BYTES - 1] = 0;
        c->node_of[r] = all[r].node;
        n = 0;
        for (int k = 0; k < r; k++) n += all[k].node == all[r].node;
        c->local_of[r] = n;
        c->device_of[r] = r;
    }
    sys_info machine;
    int sharing = 0;
    sys_info_get(&machine);
    for (int r = 0; r < c->size; r++) sharing += all[r].node == all[c->rank].node && all[r].cores == all[c->rank].cores;
    c->cores = (double)machine.n_cores / sharing;
    c->spins = machine.n_cores >= sharing ? SPINS : 0;
    for (axis a = 0; a < AXIS_COUNT; a++) {
        c->group_is_local[a] = true;
        for (int i = 0; i < c->mesh.size[a]; i++)
            c->group_is_local[a] &=
                !c->options.messages_only && c->node_of[comm_rank_at(c, a, i)] == c->node_of[c->rank];
    }
}

static uint64_t own_cores(void) {
    cpu_set_t set;
    CPU_ZERO(&set);
    return sched_getaffinity(0, sizeof set, &set) == 0 ? XXH3_64bits(&set, sizeof set) : 0;
}

/* Ranks that exchange messages also map a page of their node if they can: it tells who is alive and where every rank
 * is. In separate containers they cannot, and each counts as a node of its own. */
static status open_node(comm *c, identity *all) {
    status rc = node_open(c, c->node_of);
    if (rc == OK || !c->options.messages_only || comm_failed(c)) return rc;
    error_clear();
    node_close(c);
    for (int r = 0; r < c->size; r++) all[r].node = r;
    place_ranks(c, all);
    return node_open(c, c->node_of);
}

static status open_ranks(comm *c) {
    identity mine = {.node = c->rank}, *all;
    status rc;
    int node;
    TRY(c->transport->open(c, &node));
    size_t n = (size_t)c->size;
    c->node_of = mem_alloc(n * sizeof *c->node_of);
    c->local_of = mem_alloc(n * sizeof *c->local_of);
    c->device_of = mem_alloc(n * sizeof *c->device_of);
    c->hosts = mem_alloc(n * sizeof *c->hosts);
    c->messages = mem_alloc(2 * n * sizeof *c->messages);
    c->parts = mem_alloc(n * sizeof *c->parts);
    if (gethostname(mine.host, HOST_BYTES - 1) != 0) snprintf(mine.host, HOST_BYTES, "unknown host");
    mine.node = node;
    mine.cores = own_cores();
    for (axis a = 0; a < AXIS_COUNT; a++) mine.size[a] = c->options.size[a];
    all = mem_alloc(n * sizeof *all);
    TRY_GOTO(rc, c->transport->gather(c, &mine, sizeof mine, all), done);
    TRY_GOTO(rc, resolve_mesh(c, all), done);
    place_ranks(c, all);
    TRY_GOTO(rc, open_node(c, all), done);
    TRY_GOTO(rc, watch_open(c), done);
done:
    free(all);
    return rc;
}

static uint32_t n_opened; /* meshes of this process, by one thread: opening is collective */

status comm_open(comm **out, const comm_options *o) {
    int rank = 0, size = 1;
    bool launched = comm_launched(&rank, &size);
    *out = NULL;
    comm *c = mem_alloc(sizeof *c);
    c->options = *o;
    if (c->options.timeout_s <= 0) c->options.timeout_s = COMM_TIMEOUT_S;
    c->size = 1;
    c->generation = n_opened++;
    pthread_mutex_init(&c->links.lock, NULL);
    c->node.page_fd = c->wake_fd = -1;
    bool mpi = o->transport == TRANSPORT_MPI || (o->transport == TRANSPORT_AUTO && launched && size > 1);
    status rc = OK;
    if (mpi && !(c->transport = comm_mpi())) {
        rc = ERR(ERR_INPUT,
                 "%d ranks need MPI, and this ralo was built without: install libopenmpi-dev and build again", size);
    } else if (mpi) {
        rc = launch_watch_open(&c->options, "to join");
        if (rc == OK) rc = open_ranks(c);
        launch_watch_close();
    } else {
        identity alone = {.host = "this host"};
        c->node_of = mem_alloc(sizeof *c->node_of);
        c->local_of = mem_alloc(sizeof *c->local_of);
        c->device_of = mem_alloc(sizeof *c->device_of);
        c->hosts = mem_alloc(sizeof *c->hosts);
        c->node.n = 1;
        for (axis a = 0; a < AXIS_COUNT; a++) alone.size[a] = o->size[a];
        rc = resolve_mesh(c, &alone);
        if (rc == OK) place_ranks(c, &alone);
    }
    if (rc != OK) {
        if (c->hosts) comm_fail(c, rc, error_message());
        error_record record;
        error_take(&record);
        comm_close(c);
        return error_give(&record);
    }
    *out = c;
    return OK;
}

/* Is there a rank on this node that has not reported yet? */
static bool may_still_report(const comm *c, int local) {
    rank_state s;
    state_get(c, c->node.ranks[local], &s);
    return atomic_load(&node_seat(c, local)->state) != SEAT_LEFT && !state_is_silent(&s) &&
           !node_peer_is_dead(c, local);
}

/* No rank exits before all ranks of this node have reported what they know: a launcher that sees a rank exit kills
 * the others. */
static void wait_for_reports(comm *c) {
    uint64_t start = clock_ns();
    atomic_store(&node_seat(c, c->node.index)->state, SEAT_LEFT);
    for (int i = 0; i < c->node.n; i++)
        while (may_still_report(c, i) && (double)(clock_ns() - start) < COMM_GRACE_S * 1e9)
            nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
}

void comm_close(comm *c) {
    if (!c) return;
    bool failed = comm_failed(c);
    atomic_store(&c->leaving, true);
    if (c->transport && !failed && c->watching && comm_barrier(c) != OK) failed = true;
    atomic_store(&c->closing, true);
    watch_close(c);
    if (!failed && c->node.page) alerts_hear(c); /* the last reports */
    if (failed && c->node.page) wait_for_reports(c);
    node_close(c);
    if (c->transport && c->transport_state) c->transport->close(c, failed);
    pthread_mutex_destroy(&c->links.lock);
    free(c->node_of);
    free(c->local_of);
    free(c->device_of);
    free(c->hosts);
    free(c->messages);
    free(c->parts);
    free(c);
}

/* ---- who is who ---------------------------------------------------------------------------------------------------------- */

int comm_rank(const comm *c) { return c->rank; }
int comm_size(const comm *c) { return c->size; }
const mesh *comm_mesh(const comm *c) { return &c->mesh; }
int comm_node_size(const comm *c) { return c->node.n; }
double comm_cores(const comm *c) { return c->cores; }

int comm_rank_at(const comm *c, axis a, int index) {
    mesh m = c->mesh;
    m.index[a] = index;
    return mesh_rank(&m);
}

/* ---- set-up --------------------------------------------------------------------------------------------------------------- */

status comm_all_gather_bytes(comm *c, const void *mine, size_t n_bytes, void *all) {
    TRY(comm_check(c));
    if (c->transport) return c->transport->gather(c, mine, n_bytes, all);
    memcpy(all, mine, n_bytes);
    return OK;
}

status comm_barrier(comm *c) {
    uint8_t here = 1, *all = mem_alloc((size_t)c->size);
    status rc = comm_all_gather_bytes(c, &here, 1, all);
    free(all);
    return rc;
}

status comm_broadcast(comm *c, void *bytes, size_t n_bytes, int from) {
    ASSERT(from >= 0 && from < c->size);
    if (!c->transport) return OK;
    TRY(comm_check(c));
    comm_wait w = {"a broadcast", clock_ns()};
    if (c->rank != from) {
        message m = {bytes, n_bytes, from, COMM_TAG_BROADCAST, true};
        return c->transport->exchange(c, &w, &m, 1);
    }
    int n = 0;
    for (int r = 0; r < c->size; r++)
        if (r != from) c->messages[n++] = (message){bytes, n_bytes, r, COMM_TAG_BROADCAST, false};
    return c->transport->exchange(c, &w, c->messages, n);
}

status comm_any(comm *c, bool mine, bool *any) {
    uint8_t flag = mine, *all = mem_alloc((size_t)c->size);
    status rc = comm_all_gather_bytes(c, &flag, 1, all);
    *any = false;
    for (int r = 0; rc == OK && r < c->size; r++) *any |= all[r] != 0;
    free(all);
    return rc;
}
