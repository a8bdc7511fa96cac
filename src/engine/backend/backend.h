#pragma once
/* backend.h - what a device must be able to do: hold arenas, move bytes, run one kernel per op.
 *
 * Promises
 *   - A kernel gets pointers, the op and its values; it never allocates, never fails after open, and gives the same
 *     bits for any number of threads.
 *   - work_bytes is a pure function: the plan asks it on machines where the device is absent.
 *
 *     const backend *b = backend_cpu();
 *     backend_context *c;
 *     TRY(b->open(&c, &(backend_options){.n_threads = 2}));
 *     b->kernels[OP_GELU](c, &call);
 *     b->close(c);
 */
#include "pass/pass.h"

typedef struct backend_context backend_context;

typedef struct gpu_options {
    int index; /* which of several */
    bool tf32; /* fp32 products may be computed with 10 bits of mantissa where the device has such units */
} gpu_options;

typedef struct backend_options {
    int n_threads; /* 0: one per core */
    bool bind;     /* fix threads to cores */
    gpu_options gpu;
} backend_options;

typedef struct device_info {
    char name[64];
    int capability; /* 90: compute capability 9.0 */
    int n_multiprocessors;
    uint64_t memory, free_memory;
    int driver, runtime; /* versions: 13000 */
    uint8_t id[16];      /* the same in every process, another for every device of every machine */
} device_info;

typedef struct kernel_call {
    const program *program;
    const op *op;
    void *in[OP_MAX_IN]; /* NULL where absent */
    void *out[OP_MAX_OUT];
    void *work;          /* work_bytes of scratch, 64-byte aligned, contents undefined */
    const int32_t *rows; /* op.rows: how many leading rows hold something, in the device's memory; NULL: all */
} kernel_call;

static inline const value *call_in(const kernel_call *k, int i) { return &k->program->values[k->op->in[i]]; }
static inline const value *call_out(const kernel_call *k, int i) { return &k->program->values[k->op->out[i]]; }

typedef void (*kernel_fn)(backend_context *c, const kernel_call *k);

/* A device that works on its own: a kernel returns when its work is queued. The program's streams become queues that
 * wait for each other by counts of finished ops, as op.wait says. A section is queued once while it is recorded, and
 * then started as a whole. Counts of streams that run on the host are in memory that the device can read and wait
 * for. */
typedef struct backend_queues {
    /* Finished ops of each stream, STREAM_COUNT of them: the device writes those of its streams that `tell` was asked
     * for, the host those of its own. Set to 0 before a section starts. */
    _Atomic uint32_t *(*counts)(backend_context *c);
    void (*select)(backend_context *c, stream s); /* the queue of what is called next */
    /* The first of n ops, which follow each other on the selected queue with nothing between them, in fewer kernels: as many
     * of them as it returns, 0: none. Whatever other ops read has the same bits; what only these ops read may be left out. NULL: never. */
    size_t (*join)(backend_context *c, const kernel_call *calls, size_t n);
    /* In any direction; host memory must be pinned. */
    void (*copy)(backend_context *c, void *dst, const void *src, size_t n_bytes);
    /* The selected queue waits until n ops of stream s are done; on_host: s is one of the host's. */
    void (*wait)(backend_context *c, stream s, uint32_t n, bool on_host);
    /* The op just queued is the n-th of the selected stream; another queue waits for it, or (tell) the host does. */
    void (*mark)(backend_context *c, uint32_t n, bool tell);
    status (*record)(backend_context *c);                /* from here on nothing runs ... */
    status (*record_end)(backend_context *c, section s); /* ... and this is the section */
    void (*start)(backend_context *c, section s);        /* the recorded section, from its first op */
    bool (*failed)(backend_context *c);                  /* will it never finish? synchronize says why */
    /* For a trace: moment i on the selected queue, and after synchronize its time since moment 0 in ns. */
    void (*stamp)(backend_context *c, size_t i);
    uint64_t (*stamp_ns)(backend_context *c, size_t i);
} backend_queues;

/* Messages between ranks that have a device each, moved by the devices themselves: from one's memory to the other's, on a
 * queue. There is one group of ranks per axis. What is summed is summed as comm.h promises. */
enum { LINK_ID_BYTES = 128 };
typedef struct backend_links {
    status (*present)(void); /* is there a library that can? ERR_INPUT says what was looked for */
    /* Before the first group, by every rank where some share a device: each then counts as a host of its own, called `name`.
     * one_host: they are all on this one. */
    void (*share_devices)(const char *name, bool one_host);
    status (*make_id)(uint8_t id[LINK_ID_BYTES]); /* by one rank of a group, for all of them */
    /* By all ranks of a group; returns when all have come. */
    status (*open)(backend_context *c, axis a, const uint8_t id[LINK_ID_BYTES], int n_ranks, int index);
    /* On the selected queue: one message op, or several SENDs and RECVs of one axis that begin together, which ranks
     * need that send to each other at the same time. */
    void (*run)(backend_context *c, const kernel_call *const *calls, int n_calls);
    /* May a recorded section hold messages? Each must have been run once before: connections are made then. NULL: never. */
    status (*recordable)(bool *out);
    status (*check)(backend_context *c); /* has one failed? From any thread */
    /* Whatever waits for another rank ends soon, and nothing is sent any more. From any thread; does not wait for the device. */
    void (*abort)(backend_context *c);
    void (*close)(backend_context *c); /* all groups; when nothing is queued. No section can be started any more */
} backend_links;

typedef struct backend {
    const char *name;
    status (*open)(backend_context **out, const backend_options *options);
    void (*close)(backend_context *c);
    /* One block per arena, taken once; huge pages and first touch in parallel where that means something. */
    status (*memory_open)(backend_context *c, tier t, size_t n_bytes, void **out);
    void (*memory_close)(backend_context *c, tier t, void *memory, size_t n_bytes);
    /* They return when the bytes have arrived, or an error, and may be called from several threads at once. */
    status (*write)(backend_context *c, void *device_dst, const void *host_src, size_t n_bytes);
    status (*read)(backend_context *c, void *host_dst, const void *device_src, size_t n_bytes);
    status (*clear)(backend_context *c, void *device_dst, size_t n_bytes); /* of a discrete device */
    status (*synchronize)(backend_context *c); /* until all is done that was queued; what went wrong with it */
    const backend_queues *queues;              /* NULL: a kernel has run when it returns */
    const backend_links *links;                /* NULL: messages between ranks are the host's business */
    /* Makes host memory accessible for the device's copies; NULL if not needed. */
    status (*pin)(backend_context *c, void *memory, size_t n_bytes);
    void (*unpin)(backend_context *c, void *memory);
    /* Prepares an op: what must be chosen or measured before its first run; overwrites its outputs. May be NULL. */
    status (*prepare)(backend_context *c, const kernel_call *k);
    /* Puts a weight (n, k) into the order of op_attr.lanes, in place; NULL: no such order here. */
    void (*order_weight)(backend_context *c, void *data, const value *v);
    /* The rest only where kernels run on host threads. */
    int (*threads)(const backend_context *c);
    /* Runs host work (loading, hashing, scanning) on the backend's threads: one pool in the process. */
    void (*parallel)(backend_context *c, pool_fn fn, void *context, int64_t n_tasks);
    /* Called on each of the backend's worker threads before and after its part of a run; NULL, NULL for none. Between
     * runs only. */
    void (*set_thread_hook)(backend_context *c, void (*enter)(void), void (*leave)(void));
    size_t (*work_bytes)(const program *p, const op *o, int n_threads);
    const char *(*kernel_name)(dtype t); /* of the matrix product that serves this dtype here; for people */
    const kernel_fn *kernels;            /* OP_COUNT of them; NULL = this backend lacks the op */
    size_t alignment;                    /* of every value */
    bool discrete;                       /* has memory of its own: the host's is another tier for real */
    /* What the device has and is, where `discrete`; callable without open. ERR_INPUT names what is missing. */
    status (*describe)(int device, device_info *out);
    int (*count)(void);                               /* of such devices */
    uint64_t (*used_bytes)(const backend_context *c); /* of the device, as its driver counts; where `discrete` */
} backend;

const backend *backend_cpu(void);

/* The CUDA backend is a library of its own (libralo-cuda.so), searched beside the program and in the system's
 * library path, or at $RALO_CUDA_PLUGIN (none: not searched). ERR_INPUT says what is missing: the library, a driver,
 * a GPU, or a version that matches. */
status backend_cuda(const backend **out);
size_t cuda_work_bytes(const program *p, const op *o, int n_threads); /* for plans, with or without that library */
enum { CUDA_ALIGNMENT = 256, CUDA_HEAD_DIM_MOST = 256 };

/* ---- device.c: which of them, and what a plan must know of it -------------------------------------------------------- */

typedef enum device_kind { DEVICE_CPU, DEVICE_CUDA, DEVICE_AUTO = -1 } device_kind;
/* auto: the first GPU that works, else the CPU. A device that was requested by name must exist. */
status backend_choose(device_kind wish, int gpu, const backend **out);
/* An NVIDIA driver runs here, whether ralo can use it or not. root: "" but in tests. */
bool backend_gpu_is_there(const char *root);
target backend_target(device_kind k, int n_threads);
device_kind backend_kind(const backend *b);
/* The GPU of a process if run.gpu is not given: processes of a node take GPUs in turn. */
int backend_gpu_of(int process);
/* Bytes of a device that each of n processes on it may plan with if the user gave no limit: their share of what is
 * free, less what others need. */
status backend_memory_limit(const backend *b, int gpu, int n_processes, uint64_t *out);
