#pragma once
/* comm.h - many ranks as one mesh: collectives as ops, agreement before the first step, and a common end.
 *
 * Promises
 *   - Sums are made in rank order, in fp32 (fp64 for fp64), and rounded once: the same bits every run, through any
 *     transport, and the same as one rank that adds the same parts in the same order.
 *   - Every call can fail and none waits forever. When a rank fails, dies or keeps the others waiting longer than the
 *     timeout, or the launcher dies, the first cause is recorded once, and every call of every rank returns it from
 *     then on. A timeout names the rank that all wait for, not one that waits itself.
 *   - One rank needs no MPI: the mesh of one (`self`) copies.
 *
 * World rank = ((pp * DP + dp) * SP + sp) * TP + tp: tensor ranks are nearest to each other. The group of an axis is
 * the ranks that differ in that index only, in its order.
 *
 *     comm *c;
 *     TRY(comm_open(&c, &(comm_options){.size[AXIS_TENSOR] = 2, .timeout_s = 600}));
 *     TRY(comm_agree(c, "settings", yaml));
 *     TRY(exec_open(&e, &plan.program, &(exec_options){.backend = b, .comm = c}));
 *     ...
 *     if (rc != OK) comm_fail(c, rc, error_message());
 *     comm_close(c); */
#include "backend/backend.h"

#include <stdatomic.h>

typedef struct comm comm;

typedef enum transport {
    TRANSPORT_AUTO, /* mpi where a launcher (mpirun, srun) started this process, else self */
    TRANSPORT_SELF,
    TRANSPORT_MPI,
} transport;

typedef struct comm_options {
    transport transport;
    int size[AXIS_COUNT]; /* of the mesh; 0: 1, and for the data axis what the others leave of the world */
    double timeout_s;     /* longest wait for another rank; 0: COMM_TIMEOUT_S */
    bool messages_only;   /* ranks of one node do not read each other's tensors */
    /* Another rank failed first. Called on a thread of comm. */
    void (*on_failure)(void *context, status code, const char *cause);
    void (*on_overdue)(void *context); /* COMM_GRACE_S later this rank has still not closed */
    /* Ranks are missing where all join or end, in a call of MPI that cannot be left, and timeout_s is over. rank:
     * which; -1: not known. Called on a thread of comm; must end the process. NULL: such a call waits forever. */
    void (*on_missing)(void *context, int rank, const char *cause);
    /* comm_check_alive was called and no rank is missing. Called on the first rank of each node. */
    void (*on_asked_to_end)(void *context);
    void *context;
} comm_options;
#define COMM_TIMEOUT_S 600.0
#define COMM_GRACE_S 5.0

/* What the launcher's environment says about this process; false if no launcher started it. */
bool comm_launched(int *rank, int *size);
int comm_launched_place(void); /* its number among the processes of this node; 0 if unknown */
/* Collective. A world that the mesh does not fill is refused (ERR_INPUT). */
status comm_open(comm **out, const comm_options *o);
/* After success: waits for the other ranks. After a failure: waits up to COMM_GRACE_S so that they learn of it. NULL
 * is allowed. */
void comm_close(comm *c);

int comm_rank(const comm *c); /* in the world */
int comm_size(const comm *c);
const mesh *comm_mesh(const comm *c);
int comm_rank_at(const comm *c, axis a, int index); /* world rank of a member of this rank's group */
int comm_node_size(const comm *c);                  /* ranks on this node */
/* Cores that this rank may use, shared fairly with ranks that may use the same: half a core where two share one. */
double comm_cores(const comm *c);

/* ---- set-up: small, collective over the world, from the thread that trains, not while a section runs -------------- */

status comm_barrier(comm *c);
status comm_all_gather_bytes(comm *c, const void *mine, size_t n_bytes, void *all);
status comm_broadcast(comm *c, void *bytes, size_t n_bytes, int from);
/* Is it set on any rank? A signal to one rank makes all ranks stop after the same step. */
status comm_any(comm *c, bool mine, bool *any);
/* The same text on every rank, or ERR_INPUT on all of them, naming the lowest rank that differs from rank 0 and the first
 * line in which it does. `what` says what the text is: "settings", "program". */
status comm_agree(comm *c, const char *what, const char *text);

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* Memory that the ranks of this node read directly, so that collectives need no copy of it; fresh pages, zero. Opened and
 * closed by all ranks in the same order, sizes may differ, 0 takes part and gets NULL. Only where ranks share memory. */
bool comm_shares_memory(const comm *c);
status comm_memory_open(comm *c, size_t n_bytes, void **out);
void comm_memory_close(comm *c, void *memory, size_t n_bytes);

/* Scratch for messages of other ranks. A pure function, used by the plan; 0 for all other ops. */
size_t comm_work_bytes(const program *p, const op *o);
/* Runs ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, ALL_TO_ALL, SHIFT, SEND or RECV of host memory; from one thread, in
 * the order of the program. Never allocates. A SEND returns when its bytes were received: the program orders sends
 * and receives so that it cannot deadlock. */
status comm_run(comm *c, const kernel_call *k);
/* Bytes that this rank has received in comm_run so far: read from others' memory, and as messages. */
typedef struct comm_traffic {
    uint64_t read, received;
} comm_traffic;
comm_traffic comm_traffic_so_far(const comm *c);
/* Where this rank is, for the messages of the others. */
void comm_note_step(comm *c, int64_t step);
void comm_note_op(comm *c, const op *o);

/* ---- devices ------------------------------------------------------------------------------------------------------- */

/* How messages between ranks with devices of their own travel: by MPI through host memory, or by links (backend_links) from
 * device to device, which needs a device for every rank. The setting comm.transport. */
typedef enum device_transport {
    DEVICE_TRANSPORT_AUTO = -1,
    DEVICE_TRANSPORT_MPI,
    DEVICE_TRANSPORT_NCCL
} device_transport;
typedef struct comm_devices {
    int n_sharing; /* ranks on this rank's device, this one included */
    bool links;
} comm_devices;
/* Collective. ERR_INPUT if links were requested but are not possible: names the ranks that share a device, or what
 * is missing where. */
status comm_find_devices(comm *c, const backend *b, int device, device_transport wanted, comm_devices *out);
/* Minimum, maximum or sum of each rank's value, over all ranks or those on this rank's device (comm_find_devices).
 * Collective. */
status comm_least(comm *c, uint64_t *x);
status comm_most(comm *c, uint64_t *x);
status comm_device_sum(comm *c, uint64_t *x);
int comm_device_sharing(const comm *c); /* n_sharing */

/* Scratch of a message that goes over links, in device memory; as comm_work_bytes. */
size_t comm_link_work_bytes(const program *p, const op *o);
/* Collective: opens the groups of the axes that the program communicates on. One program at a time has links. */
status comm_links_open(comm *c, const backend *b, backend_context *device, const program *p);
void comm_links_close(comm *c);
/* Until comm_links_end the device runs the messages of this section by itself; `done` counts the finished ones. A
 * wait longer than the timeout, a failed message or a failed rank aborts them all: the queue continues, and
 * comm_check returns the cause. */
void comm_links_begin(comm *c, section s, _Atomic uint32_t *done);
status comm_links_end(comm *c);

/* ---- the end ------------------------------------------------------------------------------------------------------- */

/* Tells the mesh that this rank failed, unless another failed first. From any thread. */
void comm_fail(comm *c, status code, const char *message);
status comm_check(comm *c); /* OK, or the first cause */
/* Did a rank die, or does one no longer respond, so that the same run started again may get further? false: a rank has reported an
 * error, or nothing has failed. rank: which; -1: the launcher, or not known. step: the one that this rank had begun. */
bool comm_lost_rank(const comm *c, int *rank, int64_t *step);
bool comm_launcher_is_gone(const comm *c); /* the launcher died, so output of this process may be lost */
/* The launcher sent SIGTERM, as it does when a rank has died: the open mesh finds out which. Safe in a signal
 * handler. */
void comm_check_alive(void);
