#pragma once
/* exec_state.h - private to exec: what a running program is made of. Made once by exec_open; a run only reads it, apart
 * from its counters. */
#include "exec/exec.h"
#include "exec/trace.h"

#include <stdatomic.h>

struct exec {
    const program *program; /* borrowed: must not change while it runs */
    const backend *backend;
    backend_context *context;
    void *arena[TIER_COUNT];
    kernel_call *calls;            /* one per op, every pointer final */
    kernel_fn *kernels;            /* one per op */
    uint64_t (*reach)[TIER_COUNT]; /* per op: the end of the last byte it may touch, from each arena's start */
    size_t first_op[SECTION_COUNT], end_op[SECTION_COUNT];
    uint64_t busy_ns[OP_COUNT];
    _Atomic uint64_t peak[TIER_COUNT]; /* exec_read and exec_write may come from any thread */
    uint64_t n_runs, n_allocations;
    trace *trace; /* NULL: none asked for */
};

/* The bytes of a value and the tier they lie in; NULL when it is not placed inside its arena. */
uint8_t *exec_address(const exec *e, value_id v, tier *where);
void exec_raise_peak(exec *e, tier t, uint64_t end);

/* Read and write bandwidth of the disk that holds `dir`; direct: past the page cache. */
status measure_disk(const char *dir, hardware *h, bool *direct);
