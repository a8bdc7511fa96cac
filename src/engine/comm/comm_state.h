#pragma once
/* comm_state.h - private to comm: what a mesh consists of.
 *
 * Three layers, each using only the one before it:
 *   node.c                 ranks of one node: a page they all map, memory they read of each other, who is alive, the
 *                          first cause
 *   transport              bytes between any two ranks: a table, `mpi` or none
 *   window.c, messages.c   the collectives, over memory of the node or over the transport
 * links.c is beside the last: collectives that devices run by themselves. Mesh, agreement and cause are the same.
 * launch.c watches while the ranks join, when none of this is there yet. watch.c is the thread that detects deaths and
 * failures while this rank computes; states.c keeps the state of every rank, also of other nodes, which alerts.c
 * exchanges; blame.c finds the rank that a wait is really for. */
#include "comm/comm.h"

#include <pthread.h>

/* After comm.timeout the others are asked once more, for so long. */
#define VERIFY_S 2.0
enum { CAUSE_BYTES = 1536, HOST_BYTES = 64, MAX_REGIONS = 16, NAME_BYTES = 64, NAME_WORDS = NAME_BYTES / 8 };

/* ---- shared by the ranks of a node: only fixed-size fields, no pointers ------------------------------------------- */

typedef enum cause_state { CAUSE_NONE, CAUSE_WRITING, CAUSE_WRITTEN } cause_state;
typedef struct cause {
    _Atomic uint32_t state;
    int32_t rank; /* or one of cause_origin */
    int32_t code;
    int32_t lost; /* the rank that died or does not respond, or one of cause_lost */
    char text[CAUSE_BYTES];
} cause;
enum cause_lost { LOST_NONE = -1, LOST_LAUNCHER = -2 };
/* Another node told it; the launcher of this node is gone; another node told that of its own. */
enum cause_origin { CAUSE_OF_OTHER_NODE = -1, CAUSE_OF_LAUNCHER = -2, CAUSE_OF_OTHER_LAUNCHER = -3 };

/* The state of a rank: other ranks name it in messages, and blame.c follows it. Sent between nodes as it is. */
enum waits { WAITS_FOR_NOBODY = -1, WAITS_IN_SETUP = -2, WAITS_FOR_UNKNOWN = -3 };
typedef struct rank_state {
    int32_t rank, pid;
    int64_t step;
    uint32_t computing, exchanging; /* op kind + 1; 0: nothing */
    int32_t layer, section;         /* of `computing` */
    uint32_t n_setup;               /* set-up calls begun */
    int32_t waits_for;       /* world rank, or one of `waits`: in a set-up call, for those who have begun fewer */
    uint64_t seen_ns;        /* its watcher looked last; on the way between nodes: how long ago that is */
    char tensor[NAME_BYTES]; /* of `exchanging` */
} rank_state;
/* The last state received from a rank of another node. Words: several watchers of this node write it. */
typedef struct state_copy {
    _Atomic uint64_t heard_ns; /* from the rank itself, 0: never; its state may come from others of its node */
    _Atomic uint64_t words[sizeof(rank_state) / 8];
} state_copy;

/* A rank's operand in its current collective; its group reads it between two barriers. */
typedef struct offer {
    uint32_t kind, region; /* region NO_REGION: the bytes are not in shared memory */
    uint64_t offset;       /* of what the others read */
    uint64_t n_bytes;      /* of the operand: a group with different sizes is stopped before it reads */
} offer;
#define NO_REGION UINT32_MAX
enum { OFFER_X, OFFER_Y, OFFER_COUNT };

typedef struct meeting {
    _Atomic uint32_t n_met;      /* barriers that this rank has reached; the others sleep on it */
    _Atomic uint32_t n_sleepers; /* whether to wake */
    offer offers[OFFER_COUNT];
} meeting;

/* A SEND that waits to be received. */
typedef struct parcel {
    _Atomic uint32_t n_posted, n_taken, n_sleepers;
    _Atomic int32_t to; /* world rank */
    int32_t tag;
    offer offer;
} parcel;

typedef enum seat_state { SEAT_EMPTY, SEAT_TAKEN, SEAT_LEFT } seat_state;
typedef struct seat {
    _Alignas(128) _Atomic uint32_t state;
    int32_t rank, pid;
    /* rank_state, each field by the thread that knows it; read while it is written. */
    _Atomic int64_t step;
    _Atomic uint32_t computing, exchanging;
    _Atomic int32_t layer, section;
    _Atomic uint32_t n_setup;
    _Atomic int32_t waits_for;
    _Atomic uint64_t seen_ns;
    _Atomic uint64_t tensor[NAME_WORDS];
    meeting meetings[AXIS_COUNT];
    parcel parcel;
} seat;

typedef struct node_page {
    cause cause;
    _Atomic uint64_t report_ns; /* when a rank of this node last sent states to the other nodes */
    _Atomic uint64_t ask_ns;    /* and asked for theirs */
    seat seats[];               /* by local index; after them a state_copy for every rank of the world */
} node_page;

/* Memory that a rank opened for the others to read. */
typedef struct region {
    bool taken;
    int fd; /* -1: a rank that has nothing to share */
    size_t n_bytes;
    uint8_t *mine;
} region;

typedef struct node {
    int n, index; /* ranks here, this one's place among them */
    int *ranks;   /* world ranks, rising */
    int page_fd;  /* each rank its own description: locks belong to it */
    size_t page_bytes;
    node_page *page;
    state_copy *copies; /* by world rank, in the page */
    region regions[MAX_REGIONS];
    const uint8_t *(*peers)[MAX_REGIONS]; /* by local index: where a peer's regions are mapped here */
    size_t (*peer_bytes)[MAX_REGIONS];
} node;

/* ---- transport ---------------------------------------------------------------------------------------------------- */

typedef struct message {
    void *bytes; /* only read where it is sent */
    size_t n_bytes;
    int peer, tag; /* world rank */
    bool receive;
} message;

/* A wait for other ranks, in words: "ALL_GATHER of 'x'". */
typedef struct comm_wait {
    const char *what;
    uint64_t start_ns;
} comm_wait;

typedef struct comm_transport {
    status (*open)(comm *c, int *node);  /* rank and size; node: the lowest rank on this one's node */
    void (*close)(comm *c, bool failed); /* failed: without waiting for anybody */
    /* All-gather over the world, for set-up. */
    status (*gather)(comm *c, const void *mine, size_t n_bytes, void *all);
    /* All at once; returns when all are done. At most 2 * size. */
    status (*exchange)(comm *c, const comm_wait *w, const message *ms, int n);
    /* Small messages beside all others, at most ALERT_BYTES; neither call waits. post: dropped if too many are in
     * flight. hear: true when one came, from a rank. */
    void (*post)(comm *c, int to, const void *bytes, size_t n_bytes);
    bool (*hear)(comm *c, void *bytes, size_t *n_bytes, int *from);
    void (*orphaned)(void); /* the launcher died: cleans up what it would have */
} comm_transport;
enum { ALERT_BYTES = 4000 }; /* sent without a handshake by every MPI */
/* Tags of messages: collectives have their axis, SEND and RECV AXIS_COUNT + attr.tag. */
enum { COMM_TAG_BROADCAST = 1 << 20 };
const comm_transport *comm_mpi(void); /* NULL where it was built without MPI */

/* ---- links ---------------------------------------------------------------------------------------------------------- */

/* Messages that a device runs. The training thread begins and ends sections, the watcher observes them. */
typedef struct link_state {
    pthread_mutex_t lock;
    const backend_links *table; /* NULL: none are open */
    backend_context *device;
    const program *program;
    bool opening, running;
    section section;
    _Atomic uint32_t *done;
    uint32_t n, seen;   /* messages of the section; how many were over when the watcher last looked */
    uint64_t since_ns;  /* when that changed last */
    uint64_t failed_ns; /* when the watcher first saw that a message has failed; 0: none has */
    bool aborted;
} link_state;

/* ---- a mesh --------------------------------------------------------------------------------------------------------- */

struct comm {
    comm_options options;
    const comm_transport *transport; /* NULL: self */
    void *transport_state;
    int rank, size;
    mesh mesh;
    int *node_of;              /* by rank: the lowest rank on its node */
    int *local_of;             /* by rank: its index on its node */
    int *device_of;            /* by rank: the lowest rank on its device; itself where that is not known */
    char (*hosts)[HOST_BYTES]; /* by rank */
    node node;
    link_state links;
    bool group_is_local[AXIS_COUNT];
    comm_traffic traffic;
    double cores;        /* of this node that are this rank's: half a core where two ranks share one */
    int spins;           /* looks before a sleep, where every rank has a core */
    message *messages;   /* room for 2 * size */
    const void **parts;  /* room for size: where the operands of a group lie */
    cause own_cause;     /* of a mesh of one, which has no page */
    uint32_t generation; /* meshes opened before in this process: alerts of those are dropped */
    int launcher;        /* pid of the parent; 0: not known */
    char launcher_name[NAME_BYTES];
    pthread_t watcher;
    _Atomic bool watching;
    uint64_t looked_ns;       /* the watcher, last */
    _Atomic uint64_t woke_ns; /* when this process last ran again after it had been stopped */
    uint64_t stopped_ns;      /* for how long it had */
    _Atomic bool leaving;     /* no more reports: one after the last barrier would go to the next mesh */
    _Atomic bool closing;
    _Atomic uint64_t ask_until_ns;   /* until then the watcher asks the other nodes where their ranks are */
    _Atomic bool alive_check_wanted; /* MPI has reported a failure */
    uint64_t alive_check_ns;         /* when it began to ask all ranks whether they are alive; 0: it has not */
    bool alive_check_done;
    int wake_fd; /* ends the watcher's sleep */
};

/* comm.c */
cause *comm_cause(const comm *c);
bool comm_failed(const comm *c);
/* Records the first cause and sends it to the other nodes, unless there is one. rank: whose it is, or one of
 * cause_origin. */
void comm_cause_set(comm *c, int rank, status code, const char *text);
/* The same where a rank, or the launcher, died or does not respond. */
void comm_cause_set_lost(comm *c, int rank, int lost, const char *text);

/* states.c */
void state_note_exchange(comm *c, uint32_t exchanging, const char *tensor); /* op kind + 1; 0: it is over */
void state_note_wait(comm *c, int waits_for);
void state_note_life(comm *c);                                     /* the watcher's, every time it runs */
void state_get(const comm *c, int rank, rank_state *out);          /* of any rank; seen_ns 0: never heard of */
void state_put(comm *c, const rank_state *s);                      /* of a rank of another node, as it came */
bool state_is_silent(const rank_state *s);                         /* its watcher does not run */
char *state_name(const comm *c, int rank, char *out, size_t n);    /* "rank 2 (pid 71 on a), step 3" */
char *comm_describe(const comm *c, int rank, char *out, size_t n); /* with what it was doing */

/* blame.c */
/* Called now and then in every loop that waits: returns the first cause, or the timeout, which then becomes the
 * cause. waits_for: as in rank_state, published for the others. The caller ends with state_note_wait(c,
 * WAITS_FOR_NOBODY). */
status comm_wait_check(comm *c, const comm_wait *w, int waits_for);
/* Follows who waits for whom from this rank to the one that all wait for; -1: not found. chain: ", which waits for ..." */
int blame_find(const comm *c, int waits_for, char *chain, size_t n);
/* A message failed: asks all ranks whether they are alive, and gives the watchers time to find who died. OK: nobody did. */
enum { BLAME_WAIT_MS = 1500 };
status blame_wait_for_cause(comm *c);

/* alerts.c: between nodes, by the watcher; a cause by whoever sets it */
void alerts_send_cause(comm *c, const cause *x);
void alerts_report(comm *c); /* the states of this node, now and then, to one rank of every other node */
void alerts_ask(comm *c);    /* all ranks of other nodes for the states of their node */
void alerts_hear(comm *c);

/* launch.c: a call of MPI that cannot be left lies between open and close. what: all ranks are waited for "to join". */
status launch_watch_open(const comm_options *o, const char *what);
void launch_watch_close(void);

/* node.c */
status node_open(comm *c, const int *node_of);
void node_close(comm *c);
bool node_peer_is_dead(const comm *c, int local);
seat *node_seat(const comm *c, int local);
seat *node_seat_of(const comm *c, int rank);                              /* NULL: on another node */
const uint8_t *node_peer_bytes(const comm *c, int local, const offer *o); /* NULL: not inside a region */
void node_offer(const comm *c, const void *bytes, size_t n_bytes, op_kind kind, offer *out);
state_copy *node_copy(const comm *c, int rank); /* of a rank of another node */
void futex_wake_all(_Atomic uint32_t *word);
void futex_wait_ms(_Atomic uint32_t *word, uint32_t seen, int ms);

/* links.c */
void links_look(comm *c); /* the watcher's part */

/* watch.c */
status watch_open(comm *c);
void watch_close(comm *c);

/* sum.c: out[i] = start + parts[0][i] + parts[1][i] + ... in this order, fp32 (fp64 for fp64), rounded once. */
typedef struct part_sum {
    const void **parts; /* each begins with the element that is summed first */
    int n_parts;
    dtype type;
    void *out;
    bool from_out; /* begin with what out holds */
    /* A bf16 accumulator: its noise, and the op that says whose. NULL: rounded to nearest. */
    const step_scalars *noise;
    const op *op;
} part_sum;
void part_sum_run(const part_sum *s, size_t first, size_t n); /* elements first .. first + n of out */

/* window.c, messages.c */
typedef struct collective {
    op_kind kind;
    axis axis;
    int n, index;  /* of the group */
    int peer, tag; /* world rank; SEND, RECV */
    const void *x;
    void *y;
    size_t x_bytes, y_bytes;
    dtype type;
    const step_scalars *scalars; /* REDUCE_SCATTER into an accumulator */
    const op *op;
    void *work;
    size_t work_bytes;
    comm_wait wait;
} collective;
status window_run(comm *c, const collective *k, bool *taken); /* taken false: an operand is not shared, send it */
status messages_run(comm *c, const collective *k);
uint64_t collective_bytes_taken(const collective *k); /* what the other ranks have of the result */
part_sum reduce_sum(comm *c, const collective *k);    /* REDUCE_SCATTER of c->parts into y */
void reduce_slice(const collective *k, int index, size_t *first,
                  size_t *n); /* elements of ALL_REDUCE that a rank sums */
