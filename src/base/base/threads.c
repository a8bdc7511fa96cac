/* threads.c - the one thread pool: persistent workers that claim tasks from a shared counter.
 *
 * A run is a gate. The caller writes the job, opens the gate, works itself, closes the gate when no task is left, and
 * waits for the workers that came in. A worker that was too late (still asleep, or without a core because there are
 * more threads than cores) finds the gate closed and is not waited for: a run costs what its tasks cost, never the
 * scheduling delay of a thread that had nothing to do. The job is only written while the gate is closed and nobody is
 * inside, so it needs no lock.
 *
 * Waiting spins for a few microseconds (the gap between two ops of a step) and then sleeps on a futex; with more
 * threads than cores it sleeps at once, because spinning would take the core from the thread that is waited for.
 * Workers block all signals, so Ctrl-C reaches the thread that knows what to do with it.
 * A task that starts another run is an error of the program and stops it: there is one level of threading. */
#include "base/base.h"

#include <errno.h>
#include <hwloc.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SPIN_NS 10000
#define MAX_THREADS 4096
#define GATE_OPEN 0x80000000u /* the other bits of the gate count the workers inside */

typedef struct worker {
    pool *owner;
    pthread_t id;
    int thread;
} worker;

/* Cache lines are kept apart by who writes them: all threads write `next` and `gate`, only callers `generation`. */
struct pool {
    _Alignas(64) _Atomic uint32_t generation; /* one more per run; idle workers sleep on it */
    _Atomic uint32_t n_sleeping;
    _Atomic bool stopping;
    _Alignas(64) _Atomic uint32_t gate; /* the caller sleeps on it until the last worker has left */
    _Atomic uint32_t caller_sleeps;
    _Alignas(64) _Atomic int64_t next;
    _Alignas(64) pool_fn fn;
    void *context;
    int64_t n_tasks;
    void (*enter)(void);
    void (*leave)(void);
    uint64_t spin_ns;
    int n_threads;
    _Atomic bool running;
    worker workers[]; /* n_threads - 1 */
};

static _Thread_local bool inside_task;

static void futex_wait(_Atomic uint32_t *word, uint32_t expected) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static inline void cpu_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory"); /* `yield` does nothing on most cores; isb waits some 10 ns */
#endif
}

/* Watches a word for a short time. True when it is no longer `value`. */
static bool spin_while_equal(const pool *p, _Atomic uint32_t *word, uint32_t value) {
    if (atomic_load_explicit(word, memory_order_acquire) != value) return true;
    if (p->spin_ns == 0) return false;
    for (uint64_t deadline = clock_ns() + p->spin_ns; clock_ns() < deadline;) {
        for (int i = 0; i < 8; i++) {
            cpu_relax();
            if (atomic_load_explicit(word, memory_order_acquire) != value) return true;
        }
    }
    return false;
}

static void wake_some(pool *p, int n) {
    if (n > 0 && atomic_load(&p->n_sleeping) > 0) futex_wake(&p->generation, n);
}

static bool gate_enter(pool *p) {
    uint32_t gate = atomic_load_explicit(&p->gate, memory_order_relaxed);
    while (gate & GATE_OPEN)
        if (atomic_compare_exchange_weak_explicit(&p->gate, &gate, gate + 1, memory_order_acquire,
                                                  memory_order_relaxed))
            return true;
    return false;
}

static void gate_leave(pool *p) {
    /* Sequentially consistent, like the caller's side: either it sees zero or we see it sleeping. */
    if (atomic_fetch_sub(&p->gate, 1) == 1 && atomic_load(&p->caller_sleeps)) futex_wake(&p->gate, 1);
}

static void gate_close_and_wait(pool *p) {
    uint32_t inside = atomic_fetch_and(&p->gate, ~GATE_OPEN) & ~GATE_OPEN;
    while (inside) {
        if (!spin_while_equal(p, &p->gate, inside)) {
            atomic_store(&p->caller_sleeps, 1);
            if ((inside = atomic_load(&p->gate))) futex_wait(&p->gate, inside);
            atomic_store_explicit(&p->caller_sleeps, 0, memory_order_relaxed);
        }
        inside = atomic_load_explicit(&p->gate, memory_order_acquire);
    }
}

static void claim_tasks(pool *p, int thread) {
    int64_t n_tasks = p->n_tasks, task;
    inside_task = true;
    while ((task = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed)) < n_tasks)
        p->fn(p->context, task, thread);
    inside_task = false;
}

/* Returns when a run newer than *seen was announced; true when this thread had to be woken for it. */
static bool wait_for_run(pool *p, uint32_t *seen) {
    bool slept = false;
    while (!spin_while_equal(p, &p->generation, *seen)) {
        slept = true;
        atomic_fetch_add(&p->n_sleeping, 1);
        if (atomic_load(&p->generation) == *seen) futex_wait(&p->generation, *seen);
        atomic_fetch_sub(&p->n_sleeping, 1);
    }
    *seen = atomic_load_explicit(&p->generation, memory_order_acquire);
    return slept;
}

static void *worker_main(void *argument) {
    worker *w = argument;
    pool *p = w->owner;
    uint32_t seen = 0;
    for (;;) {
        bool slept = wait_for_run(p, &seen);
        if (atomic_load(&p->stopping)) return NULL;
        if (!gate_enter(p)) continue;
        /* Waking is a system call per sleeper: the woken help to wake, so that 64 threads start in six steps. */
        if (slept && atomic_load_explicit(&p->next, memory_order_relaxed) < p->n_tasks) wake_some(p, 2);
        if (p->enter) p->enter();
        claim_tasks(p, w->thread);
        if (p->leave) p->leave();
        gate_leave(p);
    }
}

void pool_run(pool *p, pool_fn fn, void *context, int64_t n_tasks) {
    ASSERT(!inside_task); /* a task may not start a run */
    if (n_tasks <= 1 || p->n_threads == 1) {
        inside_task = true;
        for (int64_t task = 0; task < n_tasks; task++) fn(context, task, 0);
        inside_task = false;
        return;
    }
    ASSERT(!atomic_exchange_explicit(&p->running, true, memory_order_acquire)); /* one run at a time */
    p->fn = fn;
    p->context = context;
    p->n_tasks = n_tasks;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    atomic_store_explicit(&p->gate, GATE_OPEN, memory_order_release);
    atomic_fetch_add(&p->generation, 1);
    wake_some(p, (int)MIN(n_tasks - 1, (int64_t)MIN(p->n_threads - 1, 4)));
    claim_tasks(p, 0);
    gate_close_and_wait(p);
    atomic_store_explicit(&p->running, false, memory_order_release);
}

void pool_set_hook(pool *p, void (*enter)(void), void (*leave)(void)) {
    ASSERT(!atomic_load(&p->running));
    p->enter = enter;
    p->leave = leave;
}

int pool_threads(const pool *p) { return p->n_threads; }

static void pool_stop(pool *p, int n_started) {
    atomic_store(&p->stopping, true);
    atomic_fetch_add(&p->generation, 1);
    futex_wake(&p->generation, INT32_MAX);
    for (int i = 0; i < n_started; i++) pthread_join(p->workers[i].id, NULL);
    free(p);
}

void pool_close(pool *p) {
    if (!p) return;
    ASSERT(!atomic_load(&p->running));
    pool_stop(p, p->n_threads - 1);
}

/* Worker t goes to the t-th core this process may use, around again when there are more threads than cores. The
 * caller's thread is put on the first core and then let go: it stays there while the others are busy, but the threads
 * it starts later (loader, writers, MPI) would inherit a binding and all crowd on that core.
 * Containers and some kernels refuse; the pool then runs unbound, which costs speed and changes no result. */
static void pool_bind(pool *p) {
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology) != 0) return;
    hwloc_bitmap_t allowed = hwloc_bitmap_alloc(), mine = hwloc_bitmap_alloc(), before = hwloc_bitmap_alloc();
    int n_cores = 0, n_bound = 0;
    hwloc_obj_t core = NULL, *cores = NULL;
    if (hwloc_topology_load(topology) != 0 || hwloc_get_cpubind(topology, allowed, HWLOC_CPUBIND_PROCESS) != 0 ||
        hwloc_get_cpubind(topology, before, HWLOC_CPUBIND_THREAD) != 0) {
        log_debug("threads are not bound: the topology of this machine cannot be read");
        goto done;
    }
    cores = mem_alloc(sizeof(*cores) * (size_t)MAX(hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE), 1));
    while ((core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core)))
        if (hwloc_bitmap_intersects(core->cpuset, allowed)) cores[n_cores++] = core;
    for (int thread = 0; thread < p->n_threads && n_cores > 0; thread++) {
        hwloc_bitmap_and(mine, cores[thread % n_cores]->cpuset, allowed);
        int rc = thread == 0 ? hwloc_set_cpubind(topology, mine, HWLOC_CPUBIND_THREAD)
                             : hwloc_set_thread_cpubind(topology, p->workers[thread - 1].id, mine, 0);
        n_bound += rc == 0;
        if (thread == 0 && rc == 0) hwloc_set_cpubind(topology, before, HWLOC_CPUBIND_THREAD);
    }
    log_debug("%d of %d threads bound to %d cores", n_bound, p->n_threads, n_cores);
done:
    free(cores);
    hwloc_bitmap_free(allowed);
    hwloc_bitmap_free(mine);
    hwloc_bitmap_free(before);
    hwloc_topology_destroy(topology);
}

int thread_start(pthread_t *out, void *(*run)(void *), void *context) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* a thread inherits the mask */
    int why = pthread_create(out, NULL, run, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return why;
}

status pool_open(pool **out, int n_threads, bool bind) {
    *out = NULL;
    if (n_threads < 0 || n_threads > MAX_THREADS)
        return ERR(ERR_INPUT, "%d threads: give 1 to %d, or 0 for one per core", n_threads, MAX_THREADS);
    sys_info machine;
    sys_info_get(&machine);
    if (n_threads == 0) n_threads = machine.n_cores;

    size_t n_bytes = sizeof(pool) + sizeof(worker) * (size_t)(n_threads - 1);
    n_bytes = align_up(n_bytes, 64);
    pool *p = aligned_alloc(64, n_bytes);
    if (!p) return ERR(ERR_FIT, "no memory for a pool of %d threads", n_threads);
    memset(p, 0, n_bytes);
    p->n_threads = n_threads;
    p->spin_ns = n_threads <= machine.n_cores ? SPIN_NS : 0;

    int why = 0, n_started = 0;
    for (; n_started < n_threads - 1 && why == 0; n_started += why == 0) {
        worker *w = &p->workers[n_started];
        w->owner = p;
        w->thread = n_started + 1;
        why = thread_start(&w->id, worker_main, w);
    }
    if (why != 0) {
        pool_stop(p, n_started);
        return ERR(ERR_IO, "start thread %d of %d: %s", n_started + 1, n_threads, strerror(why));
    }
    if (bind) pool_bind(p);
    *out = p;
    return OK;
}

/* ---- first touch ----------------------------------------------------------------------------------------------- */

enum { TOUCH_BYTES = 2 << 20, PAGE_BYTES = 4096, TOUCH_PASSES = 16 };

int64_t page_touch_tasks(const page_range *r) { return divide_up((int64_t)r->n_bytes, TOUCH_BYTES); }

/* Writes, not reads: a read would map the shared zero page. The pages are fresh, so writing zero changes nothing. */
void page_touch(void *context, int64_t task, int thread) {
    const page_range *r = context;
    volatile uint8_t *bytes = r->memory;
    int64_t n = page_touch_tasks(r), page = task_spread(task, n, divide_up(n, TOUCH_PASSES));
    size_t begin = (size_t)page * TOUCH_BYTES, end = MIN(begin + TOUCH_BYTES, r->n_bytes);
    for (size_t i = begin; i < end; i += PAGE_BYTES) bytes[i] = 0;
}
