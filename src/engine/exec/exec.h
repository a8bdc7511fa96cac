#pragma once
/* exec.h - runs a planned program: arenas opened once, ops in order, nothing allocated in between.
 *
 * Promises
 *   - After exec_open no memory is allocated: the arenas are exactly as large as the layout said.
 *   - Persistent values begin as zeros, in every tier.
 *   - The ledger counts from the pointers that kernels really got, so planned == peak is a measurement.
 *   - While a section runs the allocation guard is armed on every thread that takes part.
 *   - Copies between tiers and messages between ranks run on threads of their own, or on queues of the device,
 *     overlapped with kernels, and wait where the program says so.
 *
 *     exec *e;
 *     TRY(exec_open(&e, &plan.program, &(exec_options){.backend = backend_cpu(), .n_threads = 2}));
 *     exec_write(e, m->tokens, 0, tokens, n_bytes);
 *     TRY(exec_run(e, SECTION_MICRO));
 *     exec_read(e, loss_sums, 0, sums, sizeof sums);
 *     exec_close(e); */
#include "backend/backend.h"
#include "comm/comm.h"
#include "exec/disk.h" /* also used to measure the drive */

typedef struct exec exec;
typedef struct exec_options {
    const backend *backend;
    int n_threads; /* 0: one per core */
    bool bind;
    gpu_options gpu;
    const char *trace_path; /* Chrome trace format; NULL = none */
    bool timed; /* exec_busy_seconds is asked for; a device with queues gets its ops one by one then, as for a trace */
    const char *nvme_path; /* directory for the nvme tier; NULL: the program must not use it */
    comm *comm;            /* the other ranks, borrowed; NULL: the program must not send */
} exec_options;

typedef struct ledger {
    uint64_t planned[TIER_COUNT];
    uint64_t peak[TIER_COUNT]; /* highest byte any kernel or copy has touched, from the arena's start */
    uint64_t n_runs;           /* sections run */
    uint64_t n_allocations;    /* malloc and friends called while a section ran: must be 0 */
} ledger;

status exec_open(exec **out, const program *p, const exec_options *o); /* also runs SECTION_START */
void exec_close(exec *e);
/* Runs the section and waits for all its streams. Kernels do not fail; a disk may (ERR_IO), and so may a device
 * (ERR_RUN) or another rank; the results of the section are then invalid. */
status exec_run(exec *e, section s);
/* From any thread, also from a task of exec_parallel; two threads must not access the same bytes if one writes. */
void exec_write(exec *e, value_id v, size_t byte_offset, const void *src, size_t n_bytes);
void exec_read(exec *e, value_id v, size_t byte_offset, void *dst, size_t n_bytes);
/* Once, when the parameters are complete: those that ops want in the order of lanes (op_attr.lanes) are put into it, in place. They
 * cannot be read or written by name from then on. */
void exec_order_weights(exec *e);
/* Is it in memory that host threads reach? Then many of them may access parts of it at once, and small parts are
 * cheap. */
bool exec_is_host_accessible(const exec *e, value_id v);
/* Failures of exec_write and exec_read, of values on nvme or in device memory, are reported here or at the next run:
 * check before using what was read. */
status exec_check(exec *e);
const char *exec_disk_method(const exec *e); /* how the nvme tier is reached, in words; NULL: it is not used */
int exec_threads(const exec *e);
/* Host work (initial values, hashing, checks) on the backend's threads. */
void exec_parallel(exec *e, pool_fn fn, void *context, int64_t n_tasks);
void exec_ledger(const exec *e, ledger *out);
/* For a device with its own memory, as its driver counts: what was in use beside the arenas when it was opened
 * (context, libraries, recorded sections), and everything in use now. False if device memory is host memory. */
bool exec_driver_memory(const exec *e, uint64_t *context, uint64_t *in_use);
double exec_busy_seconds(const exec *e, op_kind k); /* time spent in kernels of this kind so far; of a device with
                                                     * queues only where it is timed or traced */
bool exec_is_timed(const exec *e);                  /* is it all of them? */

/* After a loss that is not finite: runs the section again on the same inputs and names the first op whose output is
 * not finite. */
typedef struct exec_fault {
    bool found;
    size_t op_index;
    value_id value;
    int64_t element;
    float number;
    uint64_t seen_ns; /* when; of several ranks, who was first */
} exec_fault;
void exec_find_fault(exec *e, section s, exec_fault *out);
