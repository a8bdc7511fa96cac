/* measure.c - what this machine can do at best, measured with the same kernels that train. */
#include "exec/exec.h"

#include <stdlib.h>

#define SIDE 1536 /* large enough to feed many cores, small enough for half a second on two */
#define REPEATS 4

status exec_measure_peak(const backend *b, int n_threads, bool bind, dtype t, double *flops_per_second) {
    backend_context *c;
    TRY(b->open(&c, &(backend_options){.n_threads = n_threads, .bind = bind}));
    program p;
    program_init(&p);
    value_id x = program_persistent(&p, "x", t, SHAPE(SIDE, SIDE), ROLE_INPUT);
    value_id w = program_persistent(&p, "w", t, SHAPE(SIDE, SIDE), ROLE_PARAM);
    value_id y = program_persistent(&p, "y", t, SHAPE(SIDE, SIDE), ROLE_ACTIVATION);
    op *o = program_emit(&p, OP_LINEAR, SECTION_MICRO);
    op_in(o, 0, x), op_in(o, 1, w), op_out(o, 0, y);
    size_t n = value_bytes(program_get(&p, x)), work = b->work_bytes ? b->work_bytes(&p, o, b->threads(c)) : 0;
    status rc = OK;
    void *memory = NULL;
    float *noise = mem_alloc(SIDE * SIDE * sizeof(float));
    char *rounded = mem_alloc(SIDE * SIDE * sizeof(float));
    TRY_GOTO(rc, b->memory_open(c, TIER_DEVICE, 3 * n + work + 64, &memory), done);
    rng_normal_fill(1, 0, noise, SIDE * SIDE, 0, 1);
    tensor_convert(rounded, t, noise, DTYPE_F32, SIDE * SIDE);
    b->write(c, memory, rounded, n);
    b->write(c, (char *)memory + n, rounded, n);
    kernel_call k = {.program = &p,
                     .op = o,
                     .in = {memory, (char *)memory + n},
                     .out = {(char *)memory + 2 * n},
                     .work = (char *)memory + 3 * n};
    double best = 0;
    for (int i = 0; i < REPEATS; i++) {
        uint64_t begin = clock_ns();
        b->kernels[OP_LINEAR](c, &k);
        b->synchronize(c);
        double rate = op_flops(&p, o) / ((double)(clock_ns() - begin) * 1e-9);
        best = MAX(best, rate);
    }
    *flops_per_second = best;
    b->memory_close(c, TIER_DEVICE, memory, 3 * n + work + 64);
done:
    free(noise);
    free(rounded);
    program_fini(&p);
    b->close(c);
    return rc;
}
