/* links.c - messages between GPUs of ranks that have one each, by NCCL.
 *
 * NCCL moves bytes and nothing else. Its reductions add in an order of their own choice, so a sum is an exchange of parts
 * and a kernel of ours that adds them in rank order (rank_sum.cu): the bits of every other transport. Parts come into the
 * op's scratch, in as many turns as that needs.
 *
 * One communicator per axis. All messages of a rank are queued on one stream in the order of the program, so two
 * communicators never wait for each other.
 *
 * A message to a rank that is gone never ends by itself. Whoever watches the ranks (comm) calls abort, which may come while
 * the thread that feeds the queue is inside NCCL: it gets ABORT_PATIENCE_MS to come out, because a communicator that is
 * aborted is gone; if it does not come out, NCCL is what holds it, and only aborting helps.
 *
 * NCCL first tells its kernels to end, then waits for the device and for every graph that holds messages of the communicator to be
 * destroyed. So each communicator is aborted by a thread of its own: the kernels of one may stand behind those of another,
 * and the graphs are destroyed by links_close, after the device has run dry. */
#include "backend/cuda/links.h"
#include "backend/cuda/check.h"
#include "backend/cuda/launch_rank_sum.h"
#include "backend/cuda/nccl_abi.h"
#include "backend/cuda/queues.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#define LIBRARY "libnccl.so.2"
enum { ABORT_PATIENCE_MS = 1000 };
/* The first NCCL whose communicators outlive the graphs that hold their messages, aborted ones too. */
enum { RECORDABLE_VERSION = 21400 };
_Static_assert(sizeof(nccl_id) == LINK_ID_BYTES, "an id is handed round as it is");

/* ---- the library --------------------------------------------------------------------------------------------------- */

#define DECLARE(name, arguments) int(*name) arguments;
static struct {
    pthread_once_t once;
    bool found;
    error_record why;
    NCCL_FUNCTIONS(DECLARE)
    const char *(*GetErrorString)(int result);
} nccl = {.once = PTHREAD_ONCE_INIT};

static status find_library(void) {
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return ERR(ERR_INPUT,
                   "NCCL (" LIBRARY
                   ") does not load: %s; install it (libnccl2), name its folder in LD_LIBRARY_PATH, or "
                   "set comm.transport to mpi",
                   dlerror());
    struct {
        const char *name;
        void *place;
    } symbols[] = {
#define SYMBOL(name, arguments) {"nccl" #name, &nccl.name},
        NCCL_FUNCTIONS(SYMBOL){"ncclGetErrorString", &nccl.GetErrorString},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(symbols); i++) {
        void *symbol = dlsym(library, symbols[i].name);
        if (!symbol)
            return ERR(ERR_INPUT,
                       LIBRARY " has no %s: it is older than NCCL 2.7; install a newer one, or set comm.transport to "
                               "mpi",
                       symbols[i].name);
        memcpy(symbols[i].place, &symbol, sizeof symbol);
    }
    return OK;
}

static void load_library(void) {
    nccl.found = find_library() == OK;
    if (!nccl.found) error_take(&nccl.why);
}

static status links_present(void) {
    pthread_once(&nccl.once, load_library);
    return nccl.found ? OK : error_give(&nccl.why);
}

/* NCCL refuses two ranks of one host on one GPU. Ranks of different hosts it connects over sockets, wherever they run. What the user
 * has set stays. */
static void links_share_devices(const char *name, bool one_host) {
    setenv("NCCL_HOSTID", name, 0);
    if (one_host) setenv("NCCL_SOCKET_IFNAME", "lo", 0);
}

static status links_recordable(bool *out) {
    int version = 0;
    const char *wish = getenv("RALO_NCCL_GRAPHS");
    TRY(links_present());
    if (wish && strcmp(wish, "on") != 0 && strcmp(wish, "off") != 0)
        return ERR(ERR_INPUT, "RALO_NCCL_GRAPHS: found %s, expected on or off", wish);
    *out = nccl.GetVersion(&version) == NCCL_OK && version >= RECORDABLE_VERSION && !(wish && strcmp(wish, "off") == 0);
    return OK;
}

static status nccl_error(int result, const char *what) {
    int version = 0;
    nccl.GetVersion(&version);
    return ERR(ERR_RUN, "NCCL %d.%d.%d: %s: %s; NCCL_DEBUG=WARN in the environment makes it say more", version / 10000,
               version % 10000 / 100, version % 100, what, nccl.GetErrorString(result));
}

/* ---- groups ---------------------------------------------------------------------------------------------------------- */

typedef struct link_group {
    _Atomic(nccl_group) nccl; /* NULL: not opened, or aborted */
    int n, index;
    int device;
    nccl_group ending; /* handed to the thread that aborts it; NULL: there is none */
    pthread_t aborter;
} link_group;

struct links {
    link_group groups[AXIS_COUNT];
    _Atomic bool aborted;
    _Atomic bool inside; /* the thread that feeds the queue is in a call of NCCL's */
    _Atomic int failed;  /* the first result that was no success */
};

static status links_make_id(uint8_t id[LINK_ID_BYTES]) {
    nccl_id made;
    TRY(links_present());
    int result = nccl.GetUniqueId(&made);
    if (result != NCCL_OK) return nccl_error(result, "ncclGetUniqueId");
    memcpy(id, made.bytes, LINK_ID_BYTES);
    return OK;
}

static status links_open(backend_context *c, axis a, const uint8_t id[LINK_ID_BYTES], int n_ranks, int index) {
    nccl_id theirs;
    nccl_group group;
    TRY(links_present());
    if (!c->links) c->links = mem_alloc(sizeof *c->links);
    ASSERT(a < AXIS_COUNT && !atomic_load(&c->links->groups[a].nccl));
    memcpy(theirs.bytes, id, LINK_ID_BYTES);
    CUDA_TRY(cudaSetDevice(c->device));
    int result = nccl.CommInitRank(&group, n_ranks, theirs, index);
    if (result != NCCL_OK) return nccl_error(result, "ncclCommInitRank");
    c->links->groups[a].n = n_ranks;
    c->links->groups[a].index = index;
    c->links->groups[a].device = c->device;
    atomic_store(&c->links->groups[a].nccl, group);
    return OK;
}

void links_close(backend_context *c) {
    struct links *l = c->links;
    if (!l) return;
    queues_forget_sections(c); /* NCCL waits until they are gone */
    for (axis a = 0; a < AXIS_COUNT; a++) {
        nccl_group group = atomic_exchange(&l->groups[a].nccl, NULL);
        if (l->groups[a].ending) pthread_join(l->groups[a].aborter, NULL);
        if (group) nccl.CommDestroy(group);
    }
    free(l);
    c->links = NULL;
}

static void *abort_group(void *argument) {
    link_group *g = argument;
    cudaSetDevice(g->device); /* this thread never chose one */
    nccl.CommAbort(g->ending);
    return NULL;
}

static void links_abort(backend_context *c) {
    struct links *l = c->links;
    if (!l || atomic_exchange(&l->aborted, true)) return;
    for (int ms = 0; ms < ABORT_PATIENCE_MS && atomic_load(&l->inside); ms++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    for (axis a = 0; a < AXIS_COUNT; a++) {
        link_group *g = &l->groups[a];
        g->ending = atomic_exchange(&g->nccl, NULL);
        /* Without a thread it is left to hang: the process is about to end, which ends it too. */
        if (g->ending && pthread_create(&g->aborter, NULL, abort_group, g) != 0) g->ending = NULL;
    }
}

static status links_check(backend_context *c) {
    struct links *l = c->links;
    if (!l || atomic_load(&l->aborted)) return OK; /* why it was aborted is known to whoever did */
    int failed = atomic_load(&l->failed);
    for (axis a = 0; a < AXIS_COUNT && !failed; a++) {
        nccl_group group = atomic_load(&l->groups[a].nccl);
        int result = NCCL_OK;
        if (!group) continue;
        failed = nccl.CommGetAsyncError(group, &result);
        if (!failed && result != NCCL_IN_PROGRESS) failed = result;
    }
    return failed ? nccl_error(failed, "a message between GPUs") : OK;
}

/* ---- one op ----------------------------------------------------------------------------------------------------------- */

/* An op taken apart. */
typedef struct link_call {
    const kernel_call *k;
    link_group *group;
    nccl_group nccl;
    cudaStream_t stream;
    struct links *links;
    const char *x;
    char *y, *work;
    size_t x_bytes, y_bytes, work_bytes, element;
} link_call;

static void note(struct links *l, int result) {
    int none = 0;
    if (result != NCCL_OK && result != NCCL_IN_PROGRESS) atomic_compare_exchange_strong(&l->failed, &none, result);
}

static void send(const link_call *l, int peer, const char *bytes, size_t n) {
    if (n > 0) note(l->links, nccl.Send(bytes, n, NCCL_BYTES, peer, l->nccl, l->stream));
}
static void receive(const link_call *l, int peer, char *bytes, size_t n) {
    if (n > 0) note(l->links, nccl.Recv(bytes, n, NCCL_BYTES, peer, l->nccl, l->stream));
}

static void all_to_all(const link_call *l) {
    size_t part = l->x_bytes / (size_t)l->group->n;
    note(l->links, nccl.GroupStart());
    for (int i = 0; i < l->group->n; i++) {
        send(l, i, l->x + (size_t)i * part, part);
        receive(l, i, l->y + (size_t)i * part, part);
    }
    note(l->links, nccl.GroupEnd());
}

static void shift(const link_call *l) {
    int n = l->group->n, me = l->group->index;
    note(l->links, nccl.GroupStart());
    send(l, (me + 1) % n, l->x, l->x_bytes);
    receive(l, (me + n - 1) % n, l->y, l->y_bytes);
    note(l->links, nccl.GroupEnd());
}

/* The slice of x that a rank sums, in elements: its part of REDUCE_SCATTER, its share of ALL_REDUCE. */
static void slice_of(const link_call *l, int index, size_t *first, size_t *n) {
    size_t count = l->x_bytes / l->element, ranks = (size_t)l->group->n, i = (size_t)index;
    *first = count / ranks * i + MIN(i, count % ranks);
    *n = count / ranks + (i < count % ranks);
}

SAME_PLACE(ALL_GATHER_X, REDUCE_SCATTER_X, ALL_REDUCE_X, ALL_TO_ALL_X);
SAME_PLACE(ALL_GATHER_X, SHIFT_X, SEND_X);
SAME_PLACE(ALL_GATHER_Y, REDUCE_SCATTER_ACC, ALL_REDUCE_Y, ALL_TO_ALL_Y);
SAME_PLACE(ALL_GATHER_Y, SHIFT_Y, RECV_Y);

static void sum_parts(const link_call *l, size_t first, size_t at, size_t n, size_t stride, char *out) {
    const op *o = l->k->op;
    dtype type = call_in(l->k, ALL_GATHER_X)->type;
    launch_rank_sum a = {.out = out,
                         .mine = l->x + (first + at) * l->element,
                         .others = l->work,
                         .n = (int64_t)n,
                         .stride = (int64_t)stride,
                         .n_parts = l->group->n,
                         .own = l->group->index,
                         .scalars = o->kind == OP_REDUCE_SCATTER ? l->k->in[REDUCE_SCATTER_SCALARS] : NULL};
    if (type == DTYPE_F64) {
        launch_rank_sum_f64(l->stream, &a);
    } else if (type == DTYPE_BF16 && a.scalars) {
        a.noise = (launch_noise){
            .key = o->attr.noise_key, .first_element = o->attr.first_element + (int64_t)at, .block = RNG_NOISE_BLOCK};
        ASSERT(a.noise.first_element % PART_ALIGNMENT == 0);
        launch_rank_sum_noisy(l->stream, &a);
    } else {
        launch_rank_sum_typed(l->stream, launch_type_of(type), &a);
    }
}

/* Everybody's slices, turn by turn, into the scratch of whoever sums them; out: where this rank's sum goes. Turns are
 * counted alike on every rank: slices differ by an element. */
static void sum_slices(const link_call *l, char *out) {
    int n_ranks = l->group->n, me = l->group->index;
    size_t mine_first, mine, longest, none, turn;
    slice_of(l, me, &mine_first, &mine);
    slice_of(l, 0, &none, &longest); /* the first have the element more */
    turn = n_ranks == 1 ? longest : l->work_bytes / (size_t)n_ranks / l->element / NORM_BLOCK * NORM_BLOCK;
    ASSERT(turn > 0 || longest == 0); /* comm_link_work_bytes gives a block for every rank */
    for (size_t at = 0; at < longest; at += turn) {
        size_t n = at < mine ? MIN(turn, mine - at) : 0;
        note(l->links, nccl.GroupStart());
        for (int i = 0; i < n_ranks; i++) {
            size_t first, count;
            if (i == me) continue;
            slice_of(l, i, &first, &count);
            send(l, i, l->x + (first + at) * l->element, (at < count ? MIN(turn, count - at) : 0) * l->element);
            receive(l, i, l->work + (size_t)i * turn * l->element, n * l->element);
        }
        note(l->links, nccl.GroupEnd());
        if (n > 0) sum_parts(l, mine_first, at, n, turn, out + at * l->element);
    }
}

static void all_reduce(const link_call *l) {
    size_t first, n;
    slice_of(l, l->group->index, &first, &n);
    char *own = l->y + first * l->element;
    sum_slices(l, own);
    note(l->links, nccl.GroupStart());
    for (int i = 0; i < l->group->n; i++) {
        size_t their_first, their_n;
        if (i == l->group->index) continue;
        slice_of(l, i, &their_first, &their_n);
        send(l, i, own, n * l->element);
        receive(l, i, l->y + their_first * l->element, their_n * l->element);
    }
    note(l->links, nccl.GroupEnd());
}

static void run_call(const link_call *l) {
    switch (l->k->op->kind) {
    case OP_ALL_GATHER: note(l->links, nccl.AllGather(l->x, l->y, l->x_bytes, NCCL_BYTES, l->nccl, l->stream)); break;
    case OP_ALL_TO_ALL: all_to_all(l); break;
    case OP_SHIFT: shift(l); break;
    case OP_REDUCE_SCATTER: sum_slices(l, l->y); break;
    case OP_ALL_REDUCE: all_reduce(l); break;
    case OP_SEND: send(l, l->k->op->attr.peer, l->x, l->x_bytes); break;
    default: ASSERT(l->k->op->kind == OP_RECV); receive(l, l->k->op->attr.peer, l->y, l->y_bytes);
    }
}

static link_call call_make(backend_context *c, const kernel_call *k) {
    const op *o = k->op;
    /* RECV has no x, and SEND no y. */
    const value *x = o->in[ALL_GATHER_X] ? call_in(k, ALL_GATHER_X) : NULL;
    const value *y = o->out[ALL_GATHER_Y] ? call_out(k, ALL_GATHER_Y) : NULL;
    link_group *group = &c->links->groups[o->attr.axis];
    return (link_call){.k = k,
                       .group = group,
                       .nccl = atomic_load(&group->nccl),
                       .stream = c->stream,
                       .links = c->links,
                       .x = k->in[ALL_GATHER_X],
                       .y = k->out[ALL_GATHER_Y],
                       .work = k->work,
                       .x_bytes = x ? value_bytes(x) : 0,
                       .y_bytes = y ? value_bytes(y) : 0,
                       .work_bytes = o->work ? value_bytes(&k->program->values[o->work]) : 0,
                       .element = dtype_bytes((x ? x : y)->type)};
}

static void links_run(backend_context *c, const kernel_call *const *calls, int n_calls) {
    struct links *l = c->links;
    atomic_store(&l->inside, true); /* before looking: abort waits for whoever has come in */
    if (!atomic_load(&l->aborted)) {
        if (n_calls > 1) note(l, nccl.GroupStart());
        for (int i = 0; i < n_calls; i++) {
            link_call one = call_make(c, calls[i]);
            ASSERT(one.nccl && calls[i]->op->attr.group_size == one.group->n);
            run_call(&one);
        }
        if (n_calls > 1) note(l, nccl.GroupEnd());
    }
    atomic_store(&l->inside, false);
}

const backend_links *links_table(void) {
    static const backend_links t = {.present = links_present,
                                    .share_devices = links_share_devices,
                                    .make_id = links_make_id,
                                    .open = links_open,
                                    .run = links_run,
                                    .recordable = links_recordable,
                                    .check = links_check,
                                    .abort = links_abort,
                                    .close = links_close};
    return &t;
}
