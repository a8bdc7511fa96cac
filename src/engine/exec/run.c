/* run.c - run a section: kernels on the caller's thread, copies between tiers and messages on a thread per stream. Beside a
 * device with queues of its own (queue.c) the host's kernels have such a thread too.
 *
 * The caller's thread runs the compute and host streams in list order, which is always a valid order. A stream of copies
 * or messages that is in use has a thread (a lane) that sleeps between sections. Before an op its thread waits until the other
 * streams have finished as many ops as the program says (op.wait); after it, it counts its own. All waits point back in
 * the list, so the oldest unfinished op can always run.
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

static void wait_until(exec *e, stream s, uint32_t n) {
    if (atomic_load(&e->done[s]) >= n) return;
    if (exec_is_queued(e, s)) {
        exec_await_queue(e, s, n);
        return;
    }
    pthread_mutex_lock(&e->lock);
    atomic_fetch_add(&e->n_waiting, 1); /* before looking again: a thread that counts after that wakes this one */
    while (atomic_load(&e->done[s]) < n) pthread_cond_wait(&e->moved, &e->lock);
    atomic_fetch_sub(&e->n_waiting, 1);
    pthread_mutex_unlock(&e->lock);
}

static void run_when_ready(exec *e, size_t index) {
    const op *o = &e->program->ops[index];
    for (stream s = 0; s < STREAM_COUNT; s++)
        if (o->wait[s]) wait_until(e, s, o->wait[s]);
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
        seen = e->generation;
        section s = e->running;
        bool stop = e->stop;
        pthread_mutex_unlock(&e->lock);
        if (stop) return NULL;
        guard_arm();
        for (size_t i = l->first[s]; i < l->end[s]; i++) run_when_ready(e, l->ops[i]);
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
    e->running = s;
    e->generation++;
    pthread_cond_broadcast(&e->moved);
    pthread_mutex_unlock(&e->lock);
    return true;
}

static void run_beside_lanes(exec *e, section s) {
    for (size_t i = e->first_op[s]; i < e->end_op[s]; i++)
        if (!is_lane(e, e->program->ops[i].stream)) run_when_ready(e, i);
}

static void wait_for_lanes(exec *e, section s) {
    for (size_t i = 0; i < e->n_lanes; i++)
        wait_until(e, e->lanes[i].stream, (uint32_t)(e->lanes[i].end[s] - e->lanes[i].first[s]));
}

static void run_here(exec *e, section s) {
    guard_arm();
    if (start_lanes(e, s)) {
        run_beside_lanes(e, s);
        wait_for_lanes(e, s);
    } else {
        for (size_t i = e->first_op[s]; i < e->end_op[s]; i++) exec_run_op(e, i);
    }
    guard_disarm();
}

/* This thread only fills the queues: they may be full until a lane has done what a queue waits for. The guard
 * ignores allocations inside the driver. */
static status run_queued(exec *e, section s) {
    start_lanes(e, s);
    status rc = exec_queues_start(e, s);
    wait_for_lanes(e, s);
    TRY(rc);
    return exec_queues_finish(e, s);
}

status exec_run(exec *e, section s) {
    status rc = OK;
    uint64_t allocations_before = guard_count();
    if (e->trace) trace_reserve(e->trace, e->end_op[s] - e->first_op[s]);
    for (stream k = 0; k < STREAM_COUNT; k++) atomic_store(&e->done[k], 0);
    if (e->host->set_thread_hook) e->host->set_thread_hook(e->host_context, guard_arm, guard_disarm);
    if (e->backend->queues) rc = run_queued(e, s);
    else run_here(e, s);
    if (e->host->set_thread_hook) e->host->set_thread_hook(e->host_context, NULL, NULL);
    e->n_allocations += guard_count() - allocations_before;
    e->n_runs++;
    if (e->trace) trace_flush_if_due(e->trace);
    TRY(rc);
    return exec_check(e);
}
