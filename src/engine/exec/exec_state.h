#pragma once
/* exec_state.h - private to exec: what a running program is made of. Made once by exec_open; a run only reads it, apart
 * from its counters. */
#include "exec/disk.h"
#include "exec/exec.h"
#include "exec/trace.h"

#include <pthread.h>
#include <stdatomic.h>

/* A stream whose ops a thread of its own runs: the copies between tiers, the messages between ranks. */
typedef struct lane {
    exec *e;
    stream stream;
    pthread_t thread;
    size_t *ops; /* indices of its ops, all sections */
    size_t first[SECTION_COUNT], end[SECTION_COUNT];
} lane;

struct exec {
    const program *program; /* borrowed: must not change while it runs */
    const backend *backend; /* of the device */
    backend_context *context;
    const backend *host; /* runs what stands beside host memory; the same as the device's on a CPU */
    backend_context *host_context;
    comm *comm;                    /* NULL: this rank is alone */
    void *arena[TIER_COUNT];       /* NULL for nvme */
    bool arena_shared[TIER_COUNT]; /* of comm and not of the backend: other ranks read it */
    bool links;                    /* messages are ops of the device's own */
    disk *disk;                    /* the nvme tier; NULL: nothing lives there */
    kernel_call *calls;            /* one per op, every pointer final; NULL where an operand lies on disk */
    uint64_t *disk_offsets;        /* per op: where in the file its operand on disk lies */
    kernel_fn *kernels;            /* one per op; NULL for messages */
    uint64_t (*reach)[TIER_COUNT]; /* per op: the end of the last byte it may touch, from each arena's start */
    size_t first_op[SECTION_COUNT], end_op[SECTION_COUNT];
    _Atomic uint64_t busy_ns[OP_COUNT];
    lane lanes[STREAM_COUNT]; /* those in use have ops */
    size_t n_lanes;
    _Atomic uint32_t *done; /* ops of each stream finished in the section that runs: own_done, or ... */
    _Atomic uint32_t own_done[STREAM_COUNT];
    uint8_t *marks;             /* ... where a device has queues; per op: who waits for it (queue.c) */
    size_t *feed;               /* likewise: the ops of each section in the order in which they are queued */
    _Atomic uint32_t n_waiting; /* threads asleep until `done` moves on */
    pthread_mutex_t lock;       /* of what follows */
    pthread_cond_t moved;       /* done, or a section to run */
    section running;
    uint64_t generation; /* one more per section that lanes take part in */
    bool stop;
    bool failed; /* a transfer failed; the rest of the section is invalid */
    error_record failure;
    _Atomic uint64_t peak[TIER_COUNT]; /* exec_read and exec_write may come from any thread */
    uint64_t n_runs, n_allocations;
    uint64_t used_at_open;        /* of the device, as its driver counts */
    trace *trace;                 /* NULL: none asked for */
    bool stamped;                 /* ops on queues are timed one by one */
    bool recorded[SECTION_COUNT]; /* by a device with queues */
    uint64_t stamped_from;        /* when moment 0 of a device's stamps was */
};

void exec_raise_peak(exec *e, tier t, uint64_t end);

/* run.c */
void exec_run_op(exec *e, size_t index);      /* on this thread, now, or queued; counted and traced */
void exec_ledger_note(exec *e, size_t index); /* in the ledger: what the op's pointers reach */

/* queue.c: a device that works on its own */
static inline bool exec_is_queued(const exec *e, stream s) {
    if (s == STREAM_COMM) return e->links;
    return e->backend->queues && (s == STREAM_COMPUTE || s == STREAM_H2D || s == STREAM_D2H);
}
status exec_queues_open(exec *e); /* after all operands are resolved: prepares and records every section */
status exec_queues_start(exec *e, section s);
status exec_queues_finish(exec *e, section s);
void exec_queue_op(exec *e, size_t index);
void exec_await_queue(exec *e, stream s, uint32_t n); /* until n ops of a queued stream are done */
status exec_lanes_open(exec *e);
void exec_lanes_close(exec *e);
void exec_note_failure(exec *e, status rc); /* keeps this thread's error for exec_check, unless one is kept already */
