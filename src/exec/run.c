/* run.c - run a section: kernels on the caller's thread, copies between tiers and messages on a thread per stream. Beside a
 * device with queues of its own (queue.c) the host's kernels have such a thread too.
 *
 * The caller's thread runs the compute and host streams in list order, which is always a valid order. A stream of copies
 * or messages that is in use has a thread (a lane) that sleeps between sections. Before an op its thread waits until the other
 * streams have finished as many ops as the program says (op.wait); after it, it counts its own. All waits point back in
 * the list, so the oldest unfinished op can always run.
 *
 * A step's micro-batches follow each other, and gradients that the host adds come last: a device with queues would wait for the host at
 * the end of each. So a MICRO ends when all streams but the host's are done, and the next one begins beside what is left (it trails). Whatever
 * else is asked of the exec waits for it. The host's ops stay in order and its count goes on; ops of the next MICRO wait for those of the last
 * one that touch the same bytes (op.wait_before). What trails waits for nothing: all that it needs is done when the section ends.
 *
 * A transfer or message that fails does not stop the section, which would leave other threads waiting: the section continues, and
 * exec_run returns the first error. */
#include "exec/exec_state.h"
#include "exec/guard.h"

#include <stdlib.h>

static bool is_lane(const exec *e, stream s) {
    if (exec_is_queued(e, s)) return false;
    return e->backend->queues || (s != STREAM_COMPUTE && s != STREAM_HOST);
}

static bool is_copy(stream s) { return s == STREAM_H2D || s == STREAM_D2H || s == STREAM_READ || s == STREAM_WRITE; }

/* ---- errors of disk and ranks ------------------------------------------------------------------------------------------ */

void exec_note_failure(exec *e, status rc) {
    if (rc == OK) return;
    pthread_mutex_lock(&e->lock);
    if (!e->failed) error_take(&e->failure);
    e->failed = true;
    pthread_mutex_unlock(&e->lock);
}

status exec_check(exec *e) {
    pthread_mutex_lock(&e->lock);
    status rc = e->failed ? error_give(&e->failure) : OK;
    e->failed = false;
    pthread_mutex_unlock(&e->lock);
    return rc;
}

/* ---- one op ---------------------------------------------------------------------------------------------------- */

static void run_copy(exec *e, size_t index) {
    const op *o = &e->program->ops[index];
    const kernel_call *call = &e->calls[index];
    size_t n_bytes = value_bytes(program_get(e->program, o->out[COPY_Y]));
    uint64_t at = e->disk_offsets[index];
    status rc = OK;
    if (o->stream == STREAM_H2D) rc = e->backend->write(e->context, call->out[COPY_Y], call->in[COPY_X], n_bytes);
    else if (o->stream == STREAM_D2H) rc = e->backend->read(e->context, call->out[COPY_Y], call->in[COPY_X], n_bytes);
    else if (o->stream == STREAM_READ) rc = disk_read(e->disk, DISK_READER, call->out[COPY_Y], at, n_bytes);
    else rc = disk_write(e->disk, DISK_WRITER, call->in[COPY_X], at, n_bytes);
    exec_note_failure(e, rc);
}

static void run_message(exec *e, size_t index) {
    int was = guard_suspend();
    exec_note_failure(e, comm_run(e->comm, &e->calls[index]));
    guard_resume(was);
}

void exec_ledger_note(exec *e, size_t index) {
    for (tier t = 0; t < TIER_COUNT; t++)
        if (e->reach[index][t]) exec_raise_peak(e, t, e->reach[index][t]);
}

void exec_run_op(exec *e, size_t index) {
    const op *o = &e->program->ops[index];
    if (exec_is_queued(e, o->stream)) {
        exec_queue_op(e, index);
        return;
    }
    uint64_t start = clock_ns();
    if (e->comm && o->stream == STREAM_COMPUTE) comm_note_op(e->comm, o);
    if (op_is_comm(o->kind)) run_message(e, index);
    else if (is_copy(o->stream)) run_copy(e, index);
    else e->kernels[index](e->host_context, &e->calls[index]);
    uint64_t end = clock_ns();
    exec_ledger_note(e, index);
    atomic_fetch_add_explicit(&e->busy_ns[o->kind], end - start, memory_order_relaxed);
    if (e->trace) trace_add(e->trace, index, start, end);
}

/* ---- streams that wait for each other -------------------------------------------------------------------------- */

static void wait_until(exec *e, stream s, uint32_t n, uint64_t generation) {
    if (atomic_load(&e->done[s]) >= n) return;
    if (exec_is_queued(e, s)) {
        exec_await_queue(e, s, n, generation);
        return;
    }
    pthread_mutex_lock(&e->lock);
    atomic_fetch_add(&e->n_waiting, 1); /* before looking again: a thread that counts after that wakes this one */
    while (atomic_load(&e->done[s]) < n && atomic_load(&e->released) < generation)
        pthread_cond_wait(&e->moved, &e->lock);
    atomic_fetch_sub(&e->n_waiting, 1);
    pthread_mutex_unlock(&e->lock);
}

uint32_t exec_count_for(const exec *e, const op *o, stream s) {
    if (s != STREAM_HOST) return o->wait[s];
    uint32_t before = atomic_load(&e->host_before);
    if (o->wait[s]) return before + o->wait[s];
    return o->wait_before && e->follows ? before - e->n_host_ops + o->wait_before : 0;
}

static void run_when_ready(exec *e, size_t index, uint64_t generation) {
    const op *o = &e->program->ops[index];
    for (stream s = 0; s < STREAM_COUNT && atomic_load(&e->released) < generation; s++) {
        uint32_t n = exec_count_for(e, o, s);
        if (n) wait_until(e, s, n, generation);
    }
    exec_run_op(e, index);
    atomic_fetch_add(&e->done[o->stream], 1);
    if (atomic_load(&e->n_waiting) == 0) return;
    pthread_mutex_lock(&e->lock);
    pthread_cond_broadcast(&e->moved);
    pthread_mutex_unlock(&e->lock);
}

static void *lane_main(void *argument) {
    lane *l = argument;
    exec *e = l->e;
    uint64_t seen = 0;
    for (;;) {
        pthread_mutex_lock(&e->lock);
        while (!e->stop && e->generation == seen) pthread_cond_wait(&e->moved, &e->lock);
        seen = l->taken = e->generation;
        section s = e->running;
        pthread_cond_broadcast(&e->moved);
        bool stop = e->stop;
        pthread_mutex_unlock(&e->lock);
        if (stop) return NULL;
        guard_arm();
        for (size_t i = l->first[s]; i < l->end[s]; i++) run_when_ready(e, l->ops[i], seen);
        guard_disarm();
    }
}

status exec_lanes_open(exec *e) {
    const program *p = e->program;
    for (stream s = 0; s < STREAM_COUNT; s++) {
        if (!is_lane(e, s)) continue;
        lane l = {.e = e, .stream = s, .ops = mem_alloc((p->n_ops + 1) * sizeof *l.ops)};
        size_t n = 0;
        for (section k = 0; k < SECTION_COUNT; k++) {
            l.first[k] = n;
            for (size_t i = e->first_op[k]; i < e->end_op[k]; i++)
                if (p->ops[i].stream == s) l.ops[n++] = i;
            l.end[k] = n;
        }
        if (n == 0) {
            free(l.ops);
            continue;
        }
        lane *kept = &e->lanes[e->n_lanes];
        *kept = l;
        if (s == STREAM_HOST) e->n_host_ops = (uint32_t)(l.end[SECTION_MICRO] - l.first[SECTION_MICRO]);
        int rc = thread_start(&kept->thread, lane_main, kept);
        if (rc != 0) {
            free(l.ops);
            return ERR(ERR_IO, "no thread for the %s stream: %s", stream_name(s), strerror(rc));
        }
        e->n_lanes++;
    }
    return OK;
}

void exec_lanes_close(exec *e) {
    pthread_mutex_lock(&e->lock);
    e->stop = true;
    pthread_cond_broadcast(&e->moved);
    pthread_mutex_unlock(&e->lock);
    for (size_t i = 0; i < e->n_lanes; i++) {
        pthread_join(e->lanes[i].thread, NULL);
        free(e->lanes[i].ops);
    }
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->moved);
}

/* ---- a section ------------------------------------------------------------------------------------------------- */

static bool start_lanes(exec *e, section s) {
    bool any = false;
    for (size_t i = 0; i < e->n_lanes; i++) any |= e->lanes[i].first[s] < e->lanes[i].end[s];
    if (!any) return false;
    pthread_mutex_lock(&e->lock);
    for (size_t i = 0; e->follows && i < e->n_lanes; i++) /* one section at a time is handed out */
        while (e->lanes[i].taken != e->generation) pthread_cond_wait(&e->moved, &e->lock);
    e->running = s;
    e->generation++;
    pthread_cond_broadcast(&e->moved);
    pthread_mutex_unlock(&e->lock);
    return true;
}

static void run_beside_lanes(exec *e, section s) {
    for (size_t i = e->first_op[s]; i < e->end_op[s]; i++)
        if (!is_lane(e, e->program->ops[i].stream)) run_when_ready(e, i, e->generation);
}

/* With `trail` the host's lane needs only be done with what earlier runs have left it. */
static void wait_for_lanes(exec *e, section s, bool trail) {
    for (size_t i = 0; i < e->n_lanes; i++) {
        const lane *l = &e->lanes[i];
        uint32_t n = (uint32_t)(l->end[s] - l->first[s]);
        if (l->stream == STREAM_HOST) n = atomic_load(&e->host_before) + (trail ? 0 : n);
        wait_until(e, l->stream, n, UINT64_MAX);
    }
}

static void run_here(exec *e, section s) {
    guard_arm();
    if (start_lanes(e, s)) {
        run_beside_lanes(e, s);
        wait_for_lanes(e, s, false);
    } else {
        for (size_t i = e->first_op[s]; i < e->end_op[s]; i++) exec_run_op(e, i);
    }
    guard_disarm();
}

/* This thread only fills the queues: they may be full until a lane has done what a queue waits for. The guard
 * ignores allocations inside the driver. */
static status run_queued(exec *e, section s) {
    bool trail = e->trails && s == SECTION_MICRO;
    start_lanes(e, s);
    status rc = exec_queues_start(e, s);
    wait_for_lanes(e, s, trail);
    if (rc == OK) rc = exec_queues_finish(e, s);
    if (!trail) return rc;
    pthread_mutex_lock(&e->lock); /* who waits for another stream of this section need not look at its count any more */
    atomic_store(&e->released, e->generation);
    pthread_cond_broadcast(&e->moved);
    pthread_mutex_unlock(&e->lock);
    atomic_store(&e->trailing, true);
    if (rc != OK) exec_settle(e);
    return rc;
}

void exec_await_host(exec *e) {
    if (atomic_load(&e->trailing)) wait_until(e, STREAM_HOST, atomic_load(&e->host_before) + e->n_host_ops, UINT64_MAX);
}

static void set_hooks(exec *e, void (*enter)(void), void (*leave)(void)) {
    if (e->host->set_thread_hook) e->host->set_thread_hook(e->host_context, enter, leave);
}

static void count_allocations(exec *e) {
    uint64_t now = guard_count();
    e->n_allocations += now - e->allocations_seen;
    e->allocations_seen = now;
}

void exec_settle(exec *e) {
    if (!atomic_load(&e->trailing)) return;
    exec_await_host(e);
    atomic_store(&e->trailing, false);
    set_hooks(e, NULL, NULL);
    count_allocations(e);
}

/* Counts from zero, or, beside what trails, goes on counting the host's ops. */
static void begin_counts(exec *e, section s) {
    e->follows = atomic_load(&e->trailing) && s == SECTION_MICRO;
    if (!e->follows) exec_settle(e);
    atomic_store(&e->trailing, false);
    for (stream k = 0; k < STREAM_COUNT; k++)
        if (k != STREAM_HOST || !e->follows) atomic_store(&e->done[k], 0);
    atomic_store(&e->host_before, e->follows ? atomic_load(&e->host_before) + e->n_host_ops : 0);
}

status exec_run(exec *e, section s) {
    status rc = OK;
    begin_counts(e, s);
    if (!e->follows) {
        e->allocations_seen = guard_count();
        set_hooks(e, guard_arm, guard_disarm);
    }
    if (e->trace) trace_reserve(e->trace, e->end_op[s] - e->first_op[s]);
    if (e->backend->queues) rc = run_queued(e, s);
    else run_here(e, s);
    if (!atomic_load(&e->trailing)) set_hooks(e, NULL, NULL);
    count_allocations(e);
    e->n_runs++;
    e->n_beside_host += e->follows;
    if (e->trace) trace_flush_if_due(e->trace);
    TRY(rc);
    return exec_check(e);
}
