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
#include "program/program.h"

typedef struct backend_context backend_context;

typedef struct backend_options {
    int n_threads; /* 0: one per core */
    bool bind;     /* fix threads to cores */
} backend_options;

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

typedef struct backend {
    const char *name;
    status (*open)(backend_context **out, const backend_options *options);
    void (*close)(backend_context *c);
    /* One block per arena, taken once; huge pages and first touch in parallel where that means something. */
    status (*memory_open)(backend_context *c, tier t, size_t n_bytes, void **out);
    void (*memory_close)(backend_context *c, tier t, void *memory, size_t n_bytes);
    void (*write)(backend_context *c, void *device_dst, const void *host_src, size_t n_bytes);
    void (*read)(backend_context *c, void *host_dst, const void *device_src, size_t n_bytes);
    void (*synchronize)(backend_context *c);
    int (*threads)(const backend_context *c);
    /* Runs host work (loading, hashing, scanning) on the backend's threads: one pool in the process. */
    void (*parallel)(backend_context *c, pool_fn fn, void *context, int64_t n_tasks);
    /* Called on each of the backend's worker threads before and after its part of a run; NULL, NULL for none. Between
     * runs only. The entry itself may be NULL where kernels use no host threads. */
    void (*set_thread_hook)(backend_context *c, void (*enter)(void), void (*leave)(void));
    size_t (*work_bytes)(const program *p, const op *o, int n_threads);
    const char *(*kernel_name)(dtype t); /* of the matrix product that serves this dtype here; for people */
    const kernel_fn *kernels;            /* OP_COUNT of them; NULL = this backend lacks the op */
} backend;

const backend *backend_cpu(void);
