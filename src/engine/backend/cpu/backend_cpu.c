/* backend_cpu.c - the host as a device: its memory, its threads, and the table of kernels.
 *
 * Device and host tier are the same RAM here, so write and read are plain copies and every kernel has finished when it
 * returns; synchronize has nothing to wait for. Arenas come from mmap with huge pages and are touched once by all
 * threads: first touch of 4 KiB pages by one thread runs at about 1 GB/s, and would otherwise land in the first step.
 * The kernels themselves live in one file per family; ops.def makes the table, so an op without a kernel, or one with
 * SCRATCH that does not say how much, does not link.
 * Refuses the nvme tier (files are not memory, the executor drives them) and x86-64 machines without AVX2, FMA and F16C,
 * for which most kernels are compiled. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/gemm.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { HUGE_PAGE = 2 << 20 };

static status cpu_open(backend_context **out, const backend_options *options) {
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c"))
        return ERR(ERR_INPUT, "this processor lacks AVX2, FMA or F16C, which the cpu backend needs on x86-64");
#endif
    backend_context *c = mem_alloc(sizeof *c);
    status rc;
    TRY_GOTO(rc, pool_open(&c->threads, options->n_threads, options->bind), fail);
    c->n_threads = pool_threads(c->threads);
    *out = c;
    return OK;
fail:
    free(c);
    return rc;
}

static void cpu_close(backend_context *c) {
    pool_close(c->threads);
    free(c);
}

static size_t round_to_huge_pages(size_t n_bytes) { return align_up(MAX(n_bytes, (size_t)1), HUGE_PAGE); }

static status cpu_memory_open(backend_context *c, tier t, size_t n_bytes, void **out) {
    if (t == TIER_NVME) return ERR(ERR_BUG, "the cpu backend holds memory, and the nvme tier is a file");
    size_t n_mapped = round_to_huge_pages(n_bytes);
    /* One huge page more, and the ends given back, so that the arena starts on a huge page. */
    uint8_t *raw = mmap(NULL, n_mapped + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) {
        char size[32], why[64];
        snprintf(why, sizeof why, "%s", strerror(errno));
        return ERR(ERR_FIT,
                   "the %s arena needs %s and the system refused: %s; this process may have a limit (ulimit -v) below "
                   "what the machine has: set memory.device and memory.host to what it may use, and the plan follows",
                   tier_name(t), str_format_bytes(size, n_bytes), why);
    }
    size_t before = (HUGE_PAGE - (uintptr_t)raw % HUGE_PAGE) % HUGE_PAGE;
    uint8_t *memory = raw + before;
    if (before > 0) munmap(raw, before);
    munmap(memory + n_mapped, HUGE_PAGE - before);
    /* Advice only: a kernel built without transparent huge pages refuses it, and small pages work too. */
    madvise(memory, n_mapped, MADV_HUGEPAGE);
    page_range all = {memory, n_mapped};
    pool_run(c->threads, page_touch, &all, page_touch_tasks(&all));
    *out = memory;
    return OK;
}

static void cpu_memory_close(backend_context *c, tier t, void *memory, size_t n_bytes) {
    if (memory) munmap(memory, round_to_huge_pages(n_bytes));
}

static status cpu_write(backend_context *c, void *device_dst, const void *host_src, size_t n_bytes) {
    memcpy(device_dst, host_src, n_bytes);
    return OK;
}

static status cpu_read(backend_context *c, void *host_dst, const void *device_src, size_t n_bytes) {
    memcpy(host_dst, device_src, n_bytes);
    return OK;
}

static status cpu_synchronize(backend_context *c) { return OK; }

static void cpu_order_weight(backend_context *c, void *data, const value *v) {
    gemm_lanes_order(c, data, v->type, v->shape.dim[0], v->shape.dim[1]);
}

static int cpu_threads(const backend_context *c) { return c->n_threads; }

static void cpu_parallel(backend_context *c, pool_fn fn, void *context, int64_t n_tasks) {
    pool_run(c->threads, fn, context, n_tasks);
}

static void cpu_set_thread_hook(backend_context *c, void (*enter)(void), void (*leave)(void)) {
    pool_set_hook(c->threads, enter, leave);
}

static size_t cpu_work_bytes(const program *p, const op *o, int n_threads) {
    static const cpu_work_fn none = NULL, *const work[OP_COUNT] = {
#define WORK_NO_SCRATCH(id) &none
#define WORK_SCRATCH(id) &cpu_work_##id
#define OP(id, in, out, inplace, scratch, ...) [OP_##id] = WORK_##scratch(id),
#define COMM_OP(...)
#include "program/ops.def"
#undef OP
                                          };
    ASSERT(work[o->kind]); /* messages are not asked for here: comm sizes theirs */
    return *work[o->kind] ? (*work[o->kind])(p, o, n_threads) : 0;
}

static const kernel_fn cpu_kernels[OP_COUNT] = {
#define OP(id, ...) [OP_##id] = cpu_kernel_##id,
#define COMM_OP(...)
#include "program/ops.def"
#undef OP
};

const backend *backend_cpu(void) {
    static const backend b = {
        .name = "cpu",
        .open = cpu_open,
        .close = cpu_close,
        .memory_open = cpu_memory_open,
        .memory_close = cpu_memory_close,
        .write = cpu_write,
        .read = cpu_read,
        .synchronize = cpu_synchronize,
        .order_weight = cpu_order_weight,
        .threads = cpu_threads,
        .parallel = cpu_parallel,
        .set_thread_hook = cpu_set_thread_hook,
        .work_bytes = cpu_work_bytes,
        .kernel_name = gemm_kernel_name,
        .kernels = cpu_kernels,
        .alignment = 64,
    };
    return &b;
}
