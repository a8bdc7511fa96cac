/* fake_backend.c - see fake_backend.h. Memory ends exactly where the arena does, so a sanitizer sees a step outside. */
#include "fake_backend.h"
#include "pass/pass.h"

#include <math.h>
#include <sched.h>
#include <stdlib.h>

struct backend_context {
    pool *threads;
};

static status fake_open(backend_context **out, const backend_options *options) {
    backend_context *c = mem_alloc(sizeof *c);
    status rc;
    TRY_GOTO(rc, pool_open(&c->threads, options->n_threads, options->bind), fail);
    *out = c;
    return OK;
fail:
    free(c);
    return rc;
}

static void fake_close(backend_context *c) {
    pool_close(c->threads);
    free(c);
}

static status fake_memory_open(backend_context *c, tier t, size_t n_bytes, void **out) {
    if (posix_memalign(out, 64, n_bytes) != 0) return ERR(ERR_FIT, "no %zu bytes", n_bytes);
    memset(*out, 0, n_bytes);
    return OK;
}

static void fake_memory_close(backend_context *c, tier t, void *memory, size_t n_bytes) { free(memory); }
static status fake_copy(backend_context *c, void *dst, const void *src, size_t n_bytes) {
    memcpy(dst, src, n_bytes);
    return OK;
}
static status fake_synchronize(backend_context *c) { return OK; }
static int fake_threads(const backend_context *c) { return pool_threads(c->threads); }

static void fake_parallel(backend_context *c, pool_fn fn, void *context, int64_t n_tasks) {
    pool_run(c->threads, fn, context, n_tasks);
}

static void fake_set_thread_hook(backend_context *c, void (*enter)(void), void (*leave)(void)) {
    pool_set_hook(c->threads, enter, leave);
}

static size_t fake_work_bytes(const program *p, const op *o, int n_threads) {
    return o->kind == OP_GELU ? FAKE_WORK_BYTES : 0;
}

void fake_allocate(void) {
    void *volatile p = malloc(24);
    free(p);
}

static void kernel_add(backend_context *c, const kernel_call *k) {
    const float *a = k->in[ADD_A], *b = k->in[ADD_B];
    float *y = k->out[ADD_Y];
    for (int64_t i = 0; i < shape_count(&call_out(k, ADD_Y)->shape); i++) y[i] = a[i] + b[i];
}

static void kernel_gelu(backend_context *c, const kernel_call *k) {
    const float *x = k->in[GELU_X];
    float *y = k->out[GELU_Y];
    memset(k->work, 0xff, FAKE_WORK_BYTES); /* NaN everywhere: scratch must not be taken for a result */
    for (int64_t i = 0; i < shape_count(&call_out(k, GELU_Y)->shape); i++) y[i] = logf(x[i]);
}

static void kernel_copy(backend_context *c, const kernel_call *k) {
    memcpy(k->out[COPY_Y], k->in[COPY_X], value_bytes(call_out(k, COPY_Y)));
}

static void kernel_cast(backend_context *c, const kernel_call *k) { fake_allocate(); }

/* Task 0 waits until another thread has done a task: without that one thread could be through before others wake. */
static void allocate_task(void *context, int64_t task, int thread) {
    _Atomic int *other = context;
    while (task == 0 && *other == 0) sched_yield();
    fake_allocate();
    if (task > 0) (*other)++;
}

static void kernel_swiglu(backend_context *c, const kernel_call *k) {
    _Atomic int other = pool_threads(c->threads) == 1; /* nobody to wait for */
    pool_run(c->threads, allocate_task, &other, FAKE_TASKS);
}

static void kernel_rope_table(backend_context *c, const kernel_call *k) {
    float *table = k->out[ROPE_TABLE_TABLE];
    for (int64_t i = 0; i < shape_count(&call_out(k, ROPE_TABLE_TABLE)->shape); i++) table[i] = 1;
}

const backend *fake_backend(void) {
    static const kernel_fn kernels[OP_COUNT] = {
        [OP_ADD] = kernel_add,   [OP_GELU] = kernel_gelu,     [OP_COPY] = kernel_copy,
        [OP_CAST] = kernel_cast, [OP_SWIGLU] = kernel_swiglu, [OP_ROPE_TABLE] = kernel_rope_table,
    };
    static const backend b = {
        .name = "fake",
        .open = fake_open,
        .close = fake_close,
        .memory_open = fake_memory_open,
        .memory_close = fake_memory_close,
        .write = fake_copy,
        .read = fake_copy,
        .synchronize = fake_synchronize,
        .threads = fake_threads,
        .parallel = fake_parallel,
        .set_thread_hook = fake_set_thread_hook,
        .work_bytes = fake_work_bytes,
        .kernels = kernels,
    };
    return &b;
}

void fake_layout(program *p) {
    for (tier t = 0; t < TIER_COUNT; t++) p->arena_bytes[t] = 0;
    for (value_id id = 1; id < p->n_values; id++) {
        value *v = &p->values[id];
        if (v->view_of) continue;
        v->offset = (p->arena_bytes[v->tier] + 63) / 64 * 64;
        p->arena_bytes[v->tier] = v->offset + value_bytes(v);
    }
    pass_waits(p, NULL, NULL); /* cannot fail */
}
