/* queued_backend.c - one thread per queue, entries in order. The queues are short, so that feeding one while it waits for
 * something that the feeder itself should do is a deadlock here as it is on a device, only sooner. */
#include "queued_backend.h"
#include "backend/apart.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { ROOM = 8 };

typedef enum entry_kind { ENTRY_KERNEL, ENTRY_COPY, ENTRY_WAIT, ENTRY_MARK, ENTRY_MESSAGE } entry_kind;
typedef struct entry {
    entry_kind kind;
    const kernel_call *call;
    void *dst;
    const void *src;
    size_t n_bytes;
    stream s;   /* wait: for this one */
    uint32_t n; /* wait, mark */
} entry;

typedef struct queue {
    backend_context *c;
    stream stream;
    pthread_t thread;
    entry *entries; /* all that were put since the last synchronize */
    size_t n, capacity, done;
} queue;

typedef struct recording {
    struct {
        stream s;
        entry e;
    } * items;
    size_t n, capacity;
} recording;

struct backend_context {
    backend_context *cpu; /* of the compute queue alone */
    queue queues[STREAM_COUNT];
    _Atomic uint32_t counts[STREAM_COUNT];
    pthread_mutex_t lock;
    pthread_cond_t moved;
    stream selected;
    bool recording, stop;
    bool embedded; /* in this section EMBED is queued already */
    recording sections[SECTION_COUNT], current;
};

static _Atomic uint64_t n_recordings, n_messages, n_recorded_messages, n_joined, n_apart;
static _Atomic uint64_t n_copies_behind_embed; /* by the thread that feeds; tests read it when that has ended */

static _Atomic bool attention_stalls;
static _Atomic uint64_t n_asked; /* whether the device has failed */

static struct {
    comm *comm;
    bool links, recordable;
    uint64_t stall_at;
    _Atomic bool aborted;
} ranks_here;

static bool is_queue(stream s) {
    if (s == STREAM_COMM) return ranks_here.links;
    return s == STREAM_COMPUTE || s == STREAM_H2D || s == STREAM_D2H;
}

/* ---- the queues' threads ------------------------------------------------------------------------------------------- */

/* A failure is comm's to know: the queue goes on, as a device's does. */
static void run_message(const kernel_call *call) {
    bool stalls = atomic_fetch_add(&n_messages, 1) + 1 == ranks_here.stall_at;
    while (stalls && !atomic_load(&ranks_here.aborted)) sched_yield();
    if (!atomic_load(&ranks_here.aborted) && comm_run(ranks_here.comm, call) != OK) error_clear();
}

static void run_kernel(backend_context *c, const kernel_call *call) {
    uint64_t before = atomic_load(&n_asked);
    if (call->op->kind == OP_ATTENTION && atomic_exchange(&attention_stalls, false))
        while (atomic_load(&n_asked) == before) sched_yield();
    backend_cpu()->kernels[call->op->kind](c->cpu, call);
}

static void run_entry(backend_context *c, const entry *e, stream own) {
    switch (e->kind) {
    case ENTRY_KERNEL: run_kernel(c, e->call); break;
    case ENTRY_COPY: memcpy(e->dst, e->src, e->n_bytes); break;
    case ENTRY_WAIT:
        while (atomic_load(&c->counts[e->s]) < e->n) sched_yield();
        break;
    case ENTRY_MARK: atomic_store(&c->counts[own], e->n); break;
    case ENTRY_MESSAGE: run_message(e->call); break;
    }
}

static void *queue_main(void *argument) {
    queue *q = argument;
    backend_context *c = q->c;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (q->done == q->n && !c->stop) pthread_cond_wait(&c->moved, &c->lock);
        if (q->done == q->n) break;
        entry e = q->entries[q->done];
        pthread_mutex_unlock(&c->lock);
        run_entry(c, &e, q->stream);
        pthread_mutex_lock(&c->lock);
        q->done++;
        pthread_cond_broadcast(&c->moved);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

static void push(queue *q, const entry *e) {
    q->entries = array_grow(q->entries, &q->capacity, q->n + 1, sizeof *q->entries);
    q->entries[q->n++] = *e;
}

static void put(backend_context *c, entry e) {
    queue *q = &c->queues[c->selected];
    if (c->recording) {
        recording *r = &c->current;
        r->items = array_grow(r->items, &r->capacity, r->n + 1, sizeof *r->items);
        r->items[r->n].s = c->selected;
        r->items[r->n++].e = e;
        return;
    }
    pthread_mutex_lock(&c->lock);
    while (q->n - q->done >= ROOM) pthread_cond_wait(&c->moved, &c->lock);
    push(q, &e);
    pthread_cond_broadcast(&c->moved);
    pthread_mutex_unlock(&c->lock);
}

/* ---- the table ----------------------------------------------------------------------------------------------------- */

static _Atomic uint32_t *queued_counts(backend_context *c) { return c->counts; }
static void queued_select(backend_context *c, stream s) {
    ASSERT(is_queue(s));
    c->selected = s;
}
static void queued_kernel(backend_context *c, const kernel_call *k) {
    c->embedded |= k->op->kind == OP_EMBED;
    put(c, (entry){.kind = ENTRY_KERNEL, .call = k});
}
static bool is_of_many(op_kind k) { return k == OP_GRAD_SUMSQ || k == OP_ADAMW; }
/* As a GPU joins ops: many of one kind that touch nothing of each other, the last one first, so that one that needs another has other
 * bits; else two at a time, one after the other: what lies between them must be nothing. */
static size_t queued_join(backend_context *c, const kernel_call *calls, size_t n) {
    if (n < 2) return 0;
    if (is_of_many(calls[0].op->kind)) {
        size_t n_same = calls_apart(calls, MIN(n, (size_t)64));
        for (size_t i = n_same; i-- > 0;) queued_kernel(c, &calls[i]);
        atomic_fetch_add(&n_apart, n_same > 1 ? n_same : 0);
        return n_same;
    }
    if (is_of_many(calls[1].op->kind)) return 0;
    ASSERT(calls[1].op == calls[0].op + 1 && calls[1].op->stream == STREAM_COMPUTE);
    for (stream k = 0; k < STREAM_COUNT; k++) ASSERT(!calls[1].op->wait[k]);
    for (size_t i = 0; i < 2; i++) queued_kernel(c, &calls[i]);
    atomic_fetch_add(&n_joined, 2);
    return 2;
}
static void queued_copy(backend_context *c, void *dst, const void *src, size_t n_bytes) {
    if (c->embedded && c->selected == STREAM_D2H) atomic_fetch_add(&n_copies_behind_embed, 1);
    put(c, (entry){.kind = ENTRY_COPY, .dst = dst, .src = src, .n_bytes = n_bytes});
}
static void queued_wait(backend_context *c, stream s, uint32_t n, bool on_host) {
    ASSERT(on_host == !is_queue(s));
    put(c, (entry){.kind = ENTRY_WAIT, .s = s, .n = n});
}
static void queued_mark(backend_context *c, uint32_t n, bool tell) { put(c, (entry){.kind = ENTRY_MARK, .n = n}); }

static status queued_record(backend_context *c) {
    c->recording = true;
    return OK;
}

static status queued_record_end(backend_context *c, section s) {
    c->embedded = false;
    for (size_t i = 0; i < c->current.n; i++) /* a recording must not meet the host: see exec/queue.c */
        ASSERT(c->current.items[i].e.kind != ENTRY_WAIT || is_queue(c->current.items[i].e.s));
    c->recording = false;
    for (size_t i = 0; i < c->current.n; i++)
        if (c->current.items[i].e.kind == ENTRY_MESSAGE) {
            atomic_fetch_add(&n_recorded_messages, 1);
            atomic_store(&n_messages, 0); /* what was sent before only prepared this */
        }
    c->sections[s] = c->current;
    c->current = (recording){0};
    atomic_fetch_add(&n_recordings, 1);
    return OK;
}

static void queued_start(backend_context *c, section s) {
    pthread_mutex_lock(&c->lock);
    for (size_t i = 0; i < c->sections[s].n; i++)
        push(&c->queues[c->sections[s].items[i].s], &c->sections[s].items[i].e);
    pthread_cond_broadcast(&c->moved);
    pthread_mutex_unlock(&c->lock);
}

static status queued_synchronize(backend_context *c) {
    c->embedded = false;
    pthread_mutex_lock(&c->lock);
    for (stream s = 0; s < STREAM_COUNT; s++) {
        while (c->queues[s].done < c->queues[s].n) pthread_cond_wait(&c->moved, &c->lock);
        c->queues[s].done = c->queues[s].n = 0;
    }
    pthread_mutex_unlock(&c->lock);
    return OK;
}

/* ---- ranks --------------------------------------------------------------------------------------------------------- */

static status queued_describe(int device, device_info *out) {
    *out = (device_info){.name = "queues", .free_memory = (uint64_t)64 << 30, .id = {1}};
    if (ranks_here.links) out->id[1] = (uint8_t)comm_rank(ranks_here.comm);
    return OK;
}
static int queued_count(void) { return 1; }

static status links_present(void) { return OK; }
static status links_make_id(uint8_t id[LINK_ID_BYTES]) {
    memset(id, 1 + comm_rank(ranks_here.comm), LINK_ID_BYTES);
    return OK;
}
static status links_open(backend_context *c, axis a, const uint8_t id[LINK_ID_BYTES], int n_ranks, int index) {
    const mesh *m = comm_mesh(ranks_here.comm); /* the id must be that of the group's first rank */
    bool right = n_ranks == m->size[a] && index == m->index[a] && id[0] == 1 + comm_rank_at(ranks_here.comm, a, 0);
    return right ? OK : ERR(ERR_BUG, "links of the %s axis: another group's id, size or index", axis_name(a));
}
static void links_run(backend_context *c, const kernel_call *const *calls, int n_calls) {
    ASSERT(c->selected == STREAM_COMM);
    for (int i = 0; i < n_calls; i++) put(c, (entry){.kind = ENTRY_MESSAGE, .call = calls[i]});
}
static status links_recordable(bool *out) {
    *out = ranks_here.recordable;
    return OK;
}
static status links_check(backend_context *c) { return OK; }
static void links_abort(backend_context *c) { atomic_store(&ranks_here.aborted, true); }
static void links_close(backend_context *c) {}

void backend_queued_ranks(comm *c, bool links, bool recordable, uint64_t stall_at) {
    ranks_here.comm = c;
    ranks_here.links = links;
    ranks_here.recordable = recordable;
    ranks_here.stall_at = stall_at;
    atomic_store(&ranks_here.aborted, false);
    atomic_store(&n_messages, 0);
    atomic_store(&n_recorded_messages, 0);
}
uint64_t backend_queued_messages(void) { return atomic_load(&n_messages); }
uint64_t backend_queued_recorded_messages(void) { return atomic_load(&n_recorded_messages); }

/* ---- opening ------------------------------------------------------------------------------------------------------- */

/* A driver takes memory when a thread first asks it something. */
static bool queued_failed(backend_context *c) {
    void *volatile of_thread = malloc(64);
    free(of_thread);
    atomic_fetch_add(&n_asked, 1);
    return false;
}

void backend_queued_stall(void) { atomic_store(&attention_stalls, true); }
uint64_t backend_queued_asked(void) { return atomic_load(&n_asked); }
static void queued_stamp(backend_context *c, size_t i) {}
static uint64_t queued_stamp_ns(backend_context *c, size_t i) { return i; }

static status queued_open(backend_context **out, const backend_options *o) {
    backend_context *c = mem_alloc(sizeof *c);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->moved, NULL);
    backend_options alone = {.n_threads = o->n_threads};
    TRY(backend_cpu()->open(&c->cpu, &alone));
    for (stream s = 0; s < STREAM_COUNT; s++) {
        c->queues[s] = (queue){.c = c, .stream = s};
        if (is_queue(s)) ASSERT(pthread_create(&c->queues[s].thread, NULL, queue_main, &c->queues[s]) == 0);
    }
    *out = c;
    return OK;
}

static void queued_close(backend_context *c) {
    pthread_mutex_lock(&c->lock);
    c->stop = true;
    pthread_cond_broadcast(&c->moved);
    pthread_mutex_unlock(&c->lock);
    for (stream s = 0; s < STREAM_COUNT; s++) {
        if (is_queue(s)) pthread_join(c->queues[s].thread, NULL);
        free(c->queues[s].entries);
    }
    for (section s = 0; s < SECTION_COUNT; s++) free(c->sections[s].items);
    backend_cpu()->close(c->cpu);
    free(c);
}

/* A device gives out memory as somebody left it; as any number type this is one of ordinary size. */
enum { LEFT_BEHIND = 0x40 };
static status queued_memory_open(backend_context *c, tier t, size_t n_bytes, void **out) {
    ASSERT(tier_is_device(t)); /* host memory is the host's */
    TRY(backend_cpu()->memory_open(c->cpu, t, n_bytes, out));
    memset(*out, LEFT_BEHIND, n_bytes);
    return OK;
}
static void queued_memory_close(backend_context *c, tier t, void *memory, size_t n_bytes) {
    backend_cpu()->memory_close(c->cpu, t, memory, n_bytes);
}
static status queued_move(backend_context *c, void *dst, const void *src, size_t n_bytes) {
    memcpy(dst, src, n_bytes);
    return OK;
}
static status queued_clear(backend_context *c, void *dst, size_t n_bytes) {
    memset(dst, 0, n_bytes);
    return OK;
}

uint64_t backend_queued_copies_behind_embed(void) { return atomic_load(&n_copies_behind_embed); }
uint64_t backend_queued_apart(void) { return atomic_load(&n_apart); }
uint64_t backend_queued_recordings(void) { return atomic_load(&n_recordings); }
uint64_t backend_queued_joined(void) { return atomic_load(&n_joined); }

const backend *backend_queued(void) {
    static const backend_queues queues = {queued_counts, queued_select, queued_join,   queued_copy,
                                          queued_wait,   queued_mark,   queued_record, queued_record_end,
                                          queued_start,  queued_failed, queued_stamp,  queued_stamp_ns};
    static const backend_links links = {.present = links_present,
                                        .make_id = links_make_id,
                                        .open = links_open,
                                        .run = links_run,
                                        .recordable = links_recordable,
                                        .check = links_check,
                                        .abort = links_abort,
                                        .close = links_close};
    static kernel_fn kernels[OP_COUNT];
    static backend b;
    for (op_kind k = 0; k < OP_COUNT; k++)
        if (backend_cpu()->kernels[k]) kernels[k] = queued_kernel;
    b = (backend){.name = "queued",
                  .open = queued_open,
                  .close = queued_close,
                  .memory_open = queued_memory_open,
                  .memory_close = queued_memory_close,
                  .write = queued_move,
                  .read = queued_move,
                  .clear = queued_clear,
                  .synchronize = queued_synchronize,
                  .queues = &queues,
                  .links = &links,
                  .work_bytes = backend_cpu()->work_bytes,
                  .kernels = kernels,
                  .alignment = backend_cpu()->alignment,
                  .discrete = true,
                  .describe = queued_describe,
                  .count = queued_count};
    return &b;
}
