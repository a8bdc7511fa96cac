/* links.c - messages that devices run by themselves, between ranks that have one each.
 *
 * A message over links is an op on a queue of the device. No thread of this process waits for the other ranks in it, so
 * the watcher checks the first cause and the clock instead. It reads how many messages the device has counted as done.
 * If that does not change for longer than the timeout, or a cause is known, or a message has failed, it aborts all
 * messages; the queue then runs to its end with invalid numbers, and the thread that waits for the section gets the
 * cause. It also keeps this rank's state in the node's page, which the messages of other ranks name.
 *
 * A device that computes for longer than the timeout between two messages would be taken for one that waits: with
 * steps of seconds and a timeout of minutes that does not happen. */
#include "comm/comm_state.h"

#include <stdlib.h>

/* ---- open and close -------------------------------------------------------------------------------------------------- */

static bool communicates_on(const program *p, axis a) {
    for (size_t i = 0; i < p->n_ops; i++)
        if (op_is_comm(p->ops[i].kind) && p->ops[i].attr.axis == a) return true;
    return false;
}

/* Ids of all groups, each made by the first rank of its group and picked by the others. */
static status open_groups(comm *c, const program *p) {
    typedef uint8_t link_id[LINK_ID_BYTES];
    const backend_links *t = c->links.table;
    link_id mine[AXIS_COUNT] = {0}, *all = mem_alloc((size_t)c->size * sizeof mine);
    status rc = OK;
    for (axis a = 0; a < AXIS_COUNT && rc == OK; a++)
        if (c->mesh.index[a] == 0 && communicates_on(p, a)) rc = t->make_id(mine[a]);
    if (rc != OK) comm_fail(c, rc, error_message()); /* the others stand in the exchange */
    if (rc == OK) rc = comm_all_gather_bytes(c, mine, sizeof mine, all);
    for (axis a = 0; a < AXIS_COUNT && rc == OK; a++) {
        if (!communicates_on(p, a)) continue;
        int first = comm_rank_at(c, a, 0);
        rc = t->open(c->links.device, a, all[first * AXIS_COUNT + (int)a], mesh_size(&c->mesh, a), c->mesh.index[a]);
        if (rc != OK) comm_fail(c, rc, error_message());
    }
    free(all);
    return rc;
}

static void set_opening(comm *c, bool on) {
    pthread_mutex_lock(&c->links.lock);
    c->links.opening = on;
    c->links.since_ns = clock_ns();
    pthread_mutex_unlock(&c->links.lock);
}

status comm_links_open(comm *c, const backend *b, backend_context *device, const program *p) {
    link_state *l = &c->links;
    ASSERT(!l->table && b->links);
    pthread_mutex_lock(&l->lock);
    l->table = b->links;
    l->device = device;
    l->program = p;
    l->aborted = false;
    l->failed_ns = 0;
    pthread_mutex_unlock(&l->lock);
    set_opening(c, true);
    status rc = open_groups(c, p);
    set_opening(c, false);
    state_note_wait(c, WAITS_FOR_NOBODY);
    if (rc != OK) comm_links_close(c);
    return rc;
}

void comm_links_close(comm *c) {
    link_state *l = &c->links;
    pthread_mutex_lock(&l->lock);
    const backend_links *table = l->table;
    l->table = NULL;
    pthread_mutex_unlock(&l->lock); /* closing may wait for the others, and the watcher must not wait with it */
    if (!table) return;
    if (comm_failed(c)) table->abort(l->device); /* then nobody comes */
    table->close(l->device);
}

/* ---- a section --------------------------------------------------------------------------------------------------------- */

/* The n-th message of the section, from 0; NULL: there are fewer. */
static const op *message_at(const link_state *l, uint32_t n) {
    const program *p = l->program;
    size_t i, end;
    for (program_section(p, l->section, &i, &end); i < end; i++)
        if (op_is_comm(p->ops[i].kind) && n-- == 0) return &p->ops[i];
    return NULL;
}

static void count_traffic(comm *c, const op *o) {
    const program *p = c->links.program;
    value_id sent = o->in[MESSAGE_SENT], received = o->out[MESSAGE_RECEIVED];
    const value *x = sent ? program_get(p, sent) : NULL, *y = received ? program_get(p, received) : NULL;
    collective k = {.kind = o->kind,
                    .n = c->mesh.size[o->attr.axis],
                    .index = c->mesh.index[o->attr.axis],
                    .x_bytes = x ? value_bytes(x) : 0,
                    .y_bytes = y ? value_bytes(y) : 0,
                    .type = (x ? x : y)->type};
    c->traffic.received += collective_bytes_taken(&k);
}

void comm_links_begin(comm *c, section s, _Atomic uint32_t *done) {
    link_state *l = &c->links;
    size_t i, end;
    pthread_mutex_lock(&l->lock);
    l->section = s;
    l->done = done;
    l->n = l->seen = 0;
    for (program_section(l->program, s, &i, &end); i < end; i++) {
        if (!op_is_comm(l->program->ops[i].kind)) continue;
        count_traffic(c, &l->program->ops[i]);
        l->n++;
    }
    l->since_ns = clock_ns();
    l->running = true;
    pthread_mutex_unlock(&l->lock);
}

static const char *tensor_of(const link_state *l, const op *o) {
    return program_get(l->program, op_main_value(o))->name;
}

/* For the messages of other ranks: what this one is in; NULL: nothing. */
static void note_message(comm *c, const op *o) {
    state_note_exchange(c, o ? (uint32_t)o->kind + 1 : 0, o ? tensor_of(&c->links, o) : NULL);
    if (!o) state_note_wait(c, WAITS_FOR_NOBODY);
}

status comm_links_end(comm *c) {
    link_state *l = &c->links;
    pthread_mutex_lock(&l->lock);
    l->running = false;
    note_message(c, NULL);
    status rc = l->table->check(l->device);
    pthread_mutex_unlock(&l->lock);
    if (rc == OK) return comm_check(c);
    error_record failure; /* most often the echo of a rank that died, which its witness will name */
    error_take(&failure);
    TRY(blame_wait_for_cause(c));
    comm_fail(c, error_give(&failure), error_message());
    return comm_check(c);
}

/* ---- the watcher --------------------------------------------------------------------------------------------------------- */

/* Of the ranks of the message's group, one that is not in it. */
static int find_late(const comm *c, const op *o, const char *tensor) {
    rank_state s;
    if (op_is_one_to_one(o->kind)) return comm_rank_at(c, o->attr.axis, o->attr.peer);
    for (int i = 0; i < c->mesh.size[o->attr.axis]; i++) {
        int rank = comm_rank_at(c, o->attr.axis, i);
        state_get(c, rank, &s);
        if (rank == c->rank || s.seen_ns == 0) continue;
        if (s.exchanging != (uint32_t)o->kind + 1 || strncmp(s.tensor, tensor, NAME_BYTES - 1) != 0) return rank;
    }
    return WAITS_FOR_UNKNOWN;
}

static void check_clock(comm *c) {
    link_state *l = &c->links;
    char what[160] = "the opening of NCCL's communicators";
    uint32_t done = l->running ? atomic_load(l->done) : 0;
    if (!l->opening && done >= l->n) {
        note_message(c, NULL);
        return;
    }
    int late = WAITS_FOR_UNKNOWN;
    if (!l->opening) {
        const op *o = message_at(l, done);
        const char *tensor = tensor_of(l, o);
        snprintf(what, sizeof what, "%s of '%s'", op_name(o->kind), tensor);
        note_message(c, o);
        late = find_late(c, o, tensor);
    }
    if (done != l->seen) {
        l->seen = done;
        l->since_ns = clock_ns();
    }
    comm_wait w = {what, l->since_ns};
    if (comm_wait_check(c, &w, late) != OK) error_clear(); /* it is written down now */
}

/* A message has failed: of a rank that died there will be a better cause in a moment. */
static void note_failure(comm *c) {
    link_state *l = &c->links;
    if (!l->failed_ns) l->failed_ns = clock_ns();
    atomic_store(&c->alive_check_wanted, true);
    if (clock_ns() - l->failed_ns >= (uint64_t)BLAME_WAIT_MS * 1000000) comm_fail(c, ERR_RUN, error_message());
    error_clear();
}

void links_look(comm *c) {
    link_state *l = &c->links;
    pthread_mutex_lock(&l->lock);
    if (l->table && !l->aborted) {
        if (!l->opening && l->table->check(l->device) != OK) note_failure(c);
        if (!comm_failed(c) && (l->opening || l->running)) check_clock(c);
        if (comm_failed(c) && !l->opening) { /* while it opens there is nothing yet that could be ended */
            l->aborted = true;
            l->table->abort(l->device);
        }
    }
    pthread_mutex_unlock(&l->lock);
}
