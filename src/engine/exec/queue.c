/* queue.c - a device that works on its own: sections are recorded once and started as a whole.
 *
 * The compute stream and the copies to and from the device become queues of the device, and so do messages between ranks
 * where devices have links; what runs on the host or a disk stays with run.c. The waits of the program hold across both:
 * between two queues they are the device's own affair, the host waits for counts that the device writes into host memory,
 * and the device for counts the host writes there.
 *
 * A section in which device and host wait for each other is queued anew each time. Recorded it can stand still: whoever
 * starts a recording puts its parts onto queues of his own choice, and one part that waits for the host may come before the
 * very part that the host waits for. Queued by us, each stream is a queue of its own, and waits point back in the list.
 * Not in the order of the list, though: a queue has room for so many entries, and whoever puts one more waits. Where
 * thousands of copies go at the host's pace, kernels that stand after them in the list but need only the first of them
 * would not be queued before the last ones are in progress. So what needs less comes first.
 *
 * A section whose messages the device runs is recorded where the library that sends them allows it, by all ranks or by none:
 * libraries prepare a recorded message in another way than one that is queued, and both ends must do the same. What is prepared at a
 * message's first use, connections above all, a recording does not hold; so each message is sent once before. Every message is
 * counted for the host, recorded or not, so that comm sees how far they are, and can end them.
 *
 * Who wants the time of every op, for a trace or a breakdown, does not get it from a recorded section: the ops are queued one
 * by one then, with a stamp before and after each. */
#include "exec/exec_state.h"
#include "exec/guard.h"

#include <sched.h>
#include <stdlib.h>
#include <time.h>

enum { MARK_QUEUE = 1, MARK_HOST = 2 }; /* another queue, or the host, waits for this op */
enum {
    POLLS_AWAKE = 2000,
    POLL_SLEEP_NS = 20 * 1000, /* then with naps in between ... */
    POLLS_PER_CHECK = 5000
}; /* ... and a look whether the device still works */

/* ---- who waits for what ------------------------------------------------------------------------------------------ */

/* The ops of a section by stream, in order. */
typedef struct stream_ops {
    size_t *at[STREAM_COUNT], n[STREAM_COUNT];
} stream_ops;

static void stream_ops_init(stream_ops *l, const exec *e, section s) {
    size_t n_ops = e->end_op[s] - e->first_op[s];
    *l = (stream_ops){0};
    for (stream k = 0; k < STREAM_COUNT; k++) l->at[k] = mem_alloc((n_ops + 1) * sizeof *l->at[k]);
    for (size_t i = e->first_op[s]; i < e->end_op[s]; i++) {
        stream k = e->program->ops[i].stream;
        l->at[k][l->n[k]++] = i;
    }
}

static void stream_ops_fini(stream_ops *l) {
    for (stream k = 0; k < STREAM_COUNT; k++) free(l->at[k]);
}

/* The op of stream k that op o waits for. */
static size_t awaited_op(const stream_ops *l, const op *o, stream k) {
    ASSERT(o->wait[k] <= l->n[k]);
    return l->at[k][o->wait[k] - 1];
}

static void find_marks(exec *e, section s) {
    const program *p = e->program;
    stream_ops l;
    stream_ops_init(&l, e, s);
    for (size_t i = e->first_op[s]; i < e->end_op[s]; i++)
        for (stream k = 0; k < STREAM_COUNT; k++)
            if (p->ops[i].wait[k] && exec_is_queued(e, k))
                e->marks[awaited_op(&l, &p->ops[i], k)] |= exec_is_queued(e, p->ops[i].stream) ? MARK_QUEUE : MARK_HOST;
    for (size_t i = 0; i < l.n[STREAM_COMM] && e->links; i++) e->marks[l.at[STREAM_COMM][i]] |= MARK_HOST;
    stream_ops_fini(&l);
}

/* ---- in which order they are queued -------------------------------------------------------------------------------- */

typedef struct ranked_op {
    size_t op, depth;
} ranked_op;

static int by_depth(const void *a, const void *b) {
    const ranked_op *x = a, *y = b;
    if (x->depth != y->depth) return x->depth < y->depth ? -1 : 1;
    return x->op < y->op ? -1 : x->op > y->op;
}

/* By depth: the longest way of ops, those of the host among them, that must be done before. Whatever an op needs has less
 * of it and is queued already when a full queue holds up the rest: it can always run, so the queue gets room. */
static void order_by_depth(exec *e, section s) {
    size_t first = e->first_op[s], n = e->end_op[s] - first;
    size_t last[STREAM_COUNT] = {0}; /* of each stream: the depth of its last op so far */
    ranked_op *ranked = mem_alloc((n + 1) * sizeof *ranked);
    stream_ops l;
    stream_ops_init(&l, e, s);
    for (size_t i = 0; i < n; i++) {
        const op *o = &e->program->ops[first + i];
        size_t depth = last[o->stream];
        for (stream k = 0; k < STREAM_COUNT; k++)
            if (o->wait[k]) depth = MAX(depth, ranked[awaited_op(&l, o, k) - first].depth);
        ranked[i] = (ranked_op){.op = first + i, .depth = depth + 1};
        last[o->stream] = depth + 1;
    }
    qsort(ranked, n, sizeof *ranked, by_depth);
    for (size_t i = 0; i < n; i++) e->feed[first + i] = ranked[i].op;
    stream_ops_fini(&l);
    free(ranked);
}

/* ---- queueing ---------------------------------------------------------------------------------------------------- */

void exec_queue_op(exec *e, size_t index) {
    const op *o = &e->program->ops[index];
    const backend_queues *q = e->backend->queues;
    const kernel_call *call = &e->calls[index];
    q->select(e->context, o->stream);
    if (o->stream == STREAM_COMPUTE) e->kernels[index](e->context, call);
    else if (o->stream == STREAM_COMM) e->backend->links->run(e->context, &call, 1);
    else q->copy(e->context, call->out[COPY_Y], call->in[COPY_X], value_bytes(program_get(e->program, o->out[COPY_Y])));
    exec_ledger_note(e, index);
}

/* Ops from place `at` of the feed on that are behind each other in the list and on the compute stream, with no wait or mark between
 * them. */
static size_t count_unbroken(const exec *e, section s, size_t at) {
    const op *ops = &e->program->ops[e->feed[at]];
    size_t n = 1;
    while (at + n < e->end_op[s] && e->feed[at + n] == e->feed[at] + n && ops[n].stream == STREAM_COMPUTE &&
           !e->marks[e->feed[at] + n - 1]) {
        for (stream k = 0; k < STREAM_COUNT; k++)
            if (ops[n].wait[k]) return n;
        n++;
    }
    return n;
}

/* Queues the op at that place of the feed, and those behind it that the device joins to it; returns how many. */
static size_t queue_next(exec *e, section s, size_t at) {
    const backend_queues *q = e->backend->queues;
    size_t i = e->feed[at], n = 0;
    if (q->join && e->program->ops[i].stream == STREAM_COMPUTE)
        n = q->join(e->context, &e->calls[i], count_unbroken(e, s, at));
    for (size_t k = 0; k < n; k++) exec_ledger_note(e, i + k);
    if (n > 0) return n;
    exec_queue_op(e, i);
    return 1;
}

static void queue_section(exec *e, section s, bool stamped) {
    const backend_queues *q = e->backend->queues;
    uint32_t n[STREAM_COUNT] = {0};
    for (size_t at = e->first_op[s], n_done = 1; at < e->end_op[s]; at += n_done, n_done = 1) {
        size_t i = e->feed[at];
        const op *o = &e->program->ops[i];
        if (!exec_is_queued(e, o->stream)) continue;
        q->select(e->context, o->stream);
        for (stream k = 0; k < STREAM_COUNT; k++)
            if (o->wait[k]) q->wait(e->context, k, o->wait[k], !exec_is_queued(e, k));
        if (stamped) {
            q->stamp(e->context, 2 * (i - e->first_op[s]) + 1);
            exec_queue_op(e, i);
            q->stamp(e->context, 2 * (i - e->first_op[s]) + 2);
        } else n_done = queue_next(e, s, at);
        n[o->stream] += (uint32_t)n_done;
        size_t last = i + n_done - 1;
        if (e->marks[last]) q->mark(e->context, n[o->stream], e->marks[last] & MARK_HOST);
    }
}

/* Does a queue wait for the host, or the host for a queue? */
static bool waits_for_host(const exec *e, section s) {
    for (size_t i = e->first_op[s]; i < e->end_op[s]; i++) {
        const op *o = &e->program->ops[i];
        for (stream k = 0; k < STREAM_COUNT; k++)
            if (o->wait[k] && exec_is_queued(e, o->stream) != exec_is_queued(e, k)) return true;
    }
    return false;
}

static bool has_link(const exec *e, section s) {
    for (size_t i = e->first_op[s]; e->links && i < e->end_op[s]; i++)
        if (op_is_comm(e->program->ops[i].kind)) return true;
    return false;
}

/* The messages of a section, once, with whatever their operands hold: they are not yet in use. */
static status run_messages(exec *e, section s) {
    const backend_queues *q = e->backend->queues;
    uint32_t n = 0;
    atomic_store(&e->done[STREAM_COMM], 0);
    comm_links_begin(e->comm, s, &e->done[STREAM_COMM]);
    q->select(e->context, STREAM_COMM);
    for (size_t i = e->first_op[s]; i < e->end_op[s]; i++) {
        const kernel_call *call = &e->calls[i];
        if (!op_is_comm(e->program->ops[i].kind)) continue;
        e->backend->links->run(e->context, &call, 1);
        q->mark(e->context, ++n, true);
    }
    status rc = e->backend->synchronize(e->context), ended = comm_links_end(e->comm);
    return ended != OK ? ended : rc;
}

/* Sections that hold messages are recorded if every rank can. */
static status agree_on_messages(exec *e) {
    bool recordable = false, hindered;
    if (e->backend->links->recordable) TRY(e->backend->links->recordable(&recordable));
    for (section s = 0; s < SECTION_COUNT; s++) {
        bool messages = has_link(e, s);
        TRY(comm_any(e->comm, messages && !(recordable && e->recorded[s]), &hindered));
        if (!messages) continue;
        e->recorded[s] = !hindered;
        if (e->recorded[s]) TRY(run_messages(e, s));
    }
    return OK;
}

static bool any_queued(const exec *e, section s) {
    for (size_t i = e->first_op[s]; i < e->end_op[s]; i++)
        if (exec_is_queued(e, e->program->ops[i].stream)) return true;
    return false;
}

/* ---- sections ---------------------------------------------------------------------------------------------------- */

status exec_queues_open(exec *e) {
    const program *p = e->program;
    const backend_queues *q = e->backend->queues;
    e->marks = mem_alloc(MAX(p->n_ops, (size_t)1));
    e->feed = mem_alloc((p->n_ops + 1) * sizeof *e->feed);
    for (size_t i = 0; i < p->n_ops; i++) e->feed[i] = i;
    e->done = q->counts(e->context);
    for (section s = 0; s < SECTION_COUNT; s++) find_marks(e, s);
    for (size_t i = 0; i < p->n_ops; i++)
        if (e->backend->prepare && p->ops[i].stream == STREAM_COMPUTE)
            TRY(e->backend->prepare(e->context, &e->calls[i]));
    for (section s = 0; s < SECTION_COUNT; s++)
        e->recorded[s] = any_queued(e, s) && !waits_for_host(e, s) && !e->stamped;
    if (e->links) TRY(agree_on_messages(e));
    for (section s = 0; s < SECTION_COUNT; s++) {
        if (!e->recorded[s]) {
            order_by_depth(e, s);
            continue;
        }
        TRY(q->record(e->context));
        queue_section(e, s, false);
        TRY(q->record_end(e->context, s));
    }
    return OK;
}

status exec_queues_start(exec *e, section s) {
    const backend_queues *q = e->backend->queues;
    if (!any_queued(e, s)) return OK;
    if (has_link(e, s)) comm_links_begin(e->comm, s, &e->done[STREAM_COMM]);
    if (e->recorded[s]) q->start(e->context, s);
    else if (!e->stamped) queue_section(e, s, false);
    if (!e->stamped) return OK;
    TRY(e->backend->synchronize(e->context));
    e->stamped_from = clock_ns();
    q->select(e->context, STREAM_COMPUTE);
    q->stamp(e->context, 0);
    queue_section(e, s, true);
    return OK;
}

status exec_queues_finish(exec *e, section s) {
    status rc = e->backend->synchronize(e->context);
    if (has_link(e, s)) { /* where another rank failed, that is why this device did */
        status ended = comm_links_end(e->comm);
        if (ended != OK) rc = ended;
    }
    TRY(rc);
    if (!e->stamped) return OK;
    for (size_t i = e->first_op[s]; i < e->end_op[s]; i++) {
        const op *o = &e->program->ops[i];
        if (!exec_is_queued(e, o->stream)) continue;
        uint64_t start = e->backend->queues->stamp_ns(e->context, 2 * (i - e->first_op[s]) + 1);
        uint64_t end = e->backend->queues->stamp_ns(e->context, 2 * (i - e->first_op[s]) + 2);
        atomic_fetch_add_explicit(&e->busy_ns[o->kind], end - start, memory_order_relaxed);
        if (e->trace) trace_add(e->trace, i, e->stamped_from + start, e->stamped_from + end);
    }
    return OK;
}

/* What a driver allocates when a thread first asks it something is not the step's. */
static bool device_failed(const exec *e) {
    int was = guard_suspend();
    bool failed = e->backend->queues->failed(e->context);
    guard_resume(was);
    return failed;
}

void exec_await_queue(exec *e, stream s, uint32_t n) {
    for (uint64_t polls = 0; atomic_load_explicit(&e->done[s], memory_order_acquire) < n; polls++) {
        if (polls < POLLS_AWAKE) {
            sched_yield();
            continue;
        }
        nanosleep(&(struct timespec){.tv_nsec = POLL_SLEEP_NS}, NULL);
        /* A failed device never advances its counts; what follows is invalid, and exec_run returns the cause. */
        if (polls % POLLS_PER_CHECK == 0 && device_failed(e)) return;
    }
}
