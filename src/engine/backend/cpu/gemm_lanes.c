/* gemm_lanes.c - the order of lanes (gemm.h): which it is on this machine, putting a weight into it, and taking rows out.
 *
 * It is the panel of B that the kernel of the type multiplies. Where the kernel reads the type as it is stored, a product takes
 * its panels from the weight itself and packs none; where it widens 16 bits, packing is a copy in one direction. A panel is put
 * in order in memory of its own and copied back, so a model needs no room twice: one panel per thread, while it is loaded. */
#include "backend/cpu/gemm_kernels.h"

#include <stdlib.h>

gemm_lanes gemm_lanes_of(dtype type, int64_t k) {
    if (type == DTYPE_I8) return int8_lanes_of(k);
    const gemm_kernel *kernel = gemm_kernel_by_row(type);
    gemm_lanes l = {.panel = kernel->nr, .group = 1};
    if (kernel->element_bytes !=
        (int)dtype_bytes(type)) { /* twice as wide: one stream with more sums that do not wait */
        l.panel = 2 * kernel->nr;
        return l;
    }
    l.group = kernel->group ? kernel->group : kernel->kr;
    if (k % kernel->kr != 0) l.panel = 0; /* panels end in zeros, for which a weight has no room */
    return l;
}

/* Element (row, step) of a panel, behind its first. */
static int64_t place_in_panel(gemm_lanes l, int64_t row, int64_t step) {
    return step / l.group * l.group * l.panel + row * l.group + step % l.group;
}

typedef struct order_job {
    char *w, *scratch; /* a panel per thread */
    dtype type;
    int64_t k;
    gemm_lanes lanes;
} order_job;

#define MOVE(type_)                                                                    \
    do {                                                                               \
        const type_ *in = from;                                                        \
        type_ *out = to;                                                               \
        for (int64_t k = 0; k < j->k; k += l.group)                                    \
            for (int64_t row = 0; row < l.panel; row++)                                \
                for (int64_t i = 0; i < l.group; i++) *out++ = in[row * j->k + k + i]; \
    } while (0)

static void order_task(void *context, int64_t panel, int thread) {
    const order_job *j = context;
    const gemm_lanes l = j->lanes;
    size_t n_bytes = (size_t)(l.panel * j->k) * dtype_bytes(j->type);
    void *to = j->scratch + (size_t)thread * n_bytes;
    const void *from = j->w + (size_t)panel * n_bytes;
    switch (dtype_bytes(j->type)) {
    case sizeof(uint8_t): MOVE(uint8_t); break;
    case sizeof(uint16_t): MOVE(uint16_t); break;
    default: MOVE(uint32_t);
    }
    memcpy(j->w + (size_t)panel * n_bytes, to, n_bytes);
}

void gemm_lanes_order(backend_context *c, void *w, dtype type, int64_t n, int64_t k) {
    gemm_lanes l = gemm_lanes_of(type, k);
    if (l.panel == 0) return;
    order_job j = {.w = w, .type = type, .k = k, .lanes = l};
    j.scratch = mem_alloc((size_t)(c->n_threads * l.panel * k) * dtype_bytes(type));
    pool_run(c->threads, order_task, &j, n / l.panel);
    free(j.scratch);
}

void gemm_lanes_row(void *to, const void *w, dtype type, int64_t n, int64_t k, int64_t row, int64_t first,
                    int64_t count) {
    gemm_lanes l = gemm_lanes_of(type, k);
    size_t width = dtype_bytes(type);
    if (l.panel == 0 || row >= n / l.panel * l.panel) {
        memcpy(to, (const char *)w + (size_t)(row * k + first) * width, (size_t)count * width);
        return;
    }
    const char *panel = (const char *)w + (size_t)(row / l.panel * l.panel * k) * width;
    for (int64_t at = 0; at < count; at += l.group)
        memcpy((char *)to + (size_t)at * width, panel + (size_t)place_in_panel(l, row % l.panel, first + at) * width,
               (size_t)l.group * width);
}
