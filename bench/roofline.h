#pragma once
/* roofline.h - for bench programs: time an op against what the fp32 GEMM of the same program reaches in the same run.
 *
 * A virtual machine changes its speed from one second to the next, so op and GEMM take turns and the best of each is
 * kept; the share of both is the number to compare, not the GFLOP/s alone. */
#include "backend/cpu/gemm.h"
#include <stdlib.h>

typedef struct roofline {
    const backend *device;
    backend_context *context;
    int n_threads, rounds;
    FILE *json; /* or NULL */
    float *gemm_data;
    void *gemm_work;
} roofline;

enum { ROOFLINE_GEMM = 768 };

/* Arguments: [--threads N] [--rounds N] [--json FILE]. False after a message when they are wrong. */
static inline bool roofline_open(roofline *r, int argc, char **argv) {
    *r = (roofline){.device = backend_cpu(), .rounds = 5};
    int threads = 0;
    for (int i = 1; i < argc; i++) {
        bool has_value = i + 1 < argc;
        if (has_value && !strcmp(argv[i], "--threads")) {
            threads = atoi(argv[++i]);
        } else if (has_value && !strcmp(argv[i], "--rounds")) {
            r->rounds = atoi(argv[++i]);
        } else if (has_value && !strcmp(argv[i], "--json")) {
            if (!(r->json = fopen(argv[++i], "w"))) {
                fprintf(stderr, "cannot write %s\n", argv[i]);
                return false;
            }
        } else {
            fprintf(stderr, "usage: %s [--threads N] [--rounds N] [--json FILE]\n", argv[0]);
            return false;
        }
    }
    r->rounds = MAX(r->rounds, 1);
    if (r->device->open(&r->context, &(backend_options){.n_threads = threads}) != OK) {
        error_print(stderr);
        return false;
    }
    r->n_threads = r->device->threads(r->context);
    int64_t n = ROOFLINE_GEMM;
    r->gemm_data = mem_alloc((size_t)(3 * n * n) * sizeof(float));
    r->gemm_work = mem_alloc(gemm_work_bytes(n, n, n, DTYPE_F32, DTYPE_F32, r->n_threads) + 64);
    rng_normal_fill(1, 0, r->gemm_data, (size_t)(2 * n * n), 0, 1);
    return true;
}

static inline void roofline_close(roofline *r) {
    r->device->close(r->context);
    free(r->gemm_data);
    free(r->gemm_work);
    if (r->json) fclose(r->json);
}

static inline double roofline_gemm_s(roofline *r) {
    int64_t n = ROOFLINE_GEMM;
    float *a = r->gemm_data, *b = a + n * n, *c = b + n * n;
    gemm_call g = {.m = n,
                   .n = n,
                   .k = n,
                   .a = {a, DTYPE_F32, n, 1},
                   .b = {b, DTYPE_F32, n, 1},
                   .c = c,
                   .c_type = DTYPE_F32,
                   .ldc = n};
    void *aligned = (void *)(((uintptr_t)r->gemm_work + 63) / 64 * 64);
    double start = clock_s();
    gemm_run(r->context, &g, aligned);
    return clock_s() - start;
}

/* One op with its values, filled and placed. */
typedef struct roofline_op {
    program program;
    kernel_call call;
    arena memory;
} roofline_op;

static inline void roofline_op_open(roofline_op *o, op_kind kind, const op_attr *attr) {
    program_init(&o->program);
    arena_init(&o->memory);
    program_emit(&o->program, kind, SECTION_MICRO)->attr = *attr;
    o->call = (kernel_call){.program = &o->program};
}

/* Declares input or output i; returns its bytes, zeroed. */
static inline void *roofline_op_value(roofline_op *o, bool output, int i, dtype t, shape s) {
    char name[8];
    snprintf(name, sizeof name, "%s%d", output ? "out" : "in", i);
    value_id v = program_persistent(&o->program, name, t, s, ROLE_ACTIVATION);
    char *raw = arena_alloc(&o->memory, shape_bytes(&s, t) + 64);
    void *data = raw + (64 - (uintptr_t)raw % 64) % 64;
    if (output) op_out(&o->program.ops[0], i, v), o->call.out[i] = data;
    else op_in(&o->program.ops[0], i, v), o->call.in[i] = data;
    return data;
}

static inline void *roofline_op_random(roofline_op *o, int i, dtype t, shape s, float scale, uint64_t seed) {
    void *data = roofline_op_value(o, false, i, t, s);
    size_t n = (size_t)shape_count(&s);
    float *f = mem_alloc(n * sizeof(float));
    rng_normal_fill(seed, 0, f, n, 0, scale);
    tensor_convert(data, t, f, DTYPE_F32, n);
    free(f);
    return data;
}

static inline void roofline_op_close(roofline_op *o) {
    program_fini(&o->program);
    arena_fini(&o->memory);
}

/* Runs it, prints one line, writes one JSON line. */
static inline void roofline_op_measure(roofline *r, roofline_op *o, const char *what, double flops) {
    o->call.op = &o->program.ops[0];
    size_t n_work = r->device->work_bytes(&o->program, o->call.op, r->n_threads);
    char *work = mem_alloc(n_work + 64);
    o->call.work = work + (64 - (uintptr_t)work % 64) % 64;
    kernel_fn kernel = r->device->kernels[o->call.op->kind];
    double best = 1e30, best_gemm = 1e30, n = ROOFLINE_GEMM;
    for (int round = -1; round < r->rounds; round++) { /* the first only warms */
        double gemm_s = roofline_gemm_s(r), start = clock_s();
        kernel(r->context, &o->call);
        double s = clock_s() - start;
        if (round < 0) continue;
        best = MIN(best, s);
        best_gemm = MIN(best_gemm, gemm_s);
    }
    double gflops = flops / best * 1e-9, peak = 2 * n * n * n / best_gemm * 1e-9;
    printf("%-52s %9.2f ms %8.1f GFLOP/s   gemm %7.1f   %5.1f %%   work %8.2f MiB\n", what, best * 1e3, gflops, peak,
           100 * gflops / peak, (double)n_work / (1 << 20));
    fflush(stdout);
    if (r->json)
        fprintf(r->json,
                "{\"what\": \"%s\", \"threads\": %d, \"ms\": %.4f, \"gflops\": %.2f, \"gemm_gflops\": %.2f, "
                "\"share\": %.4f, \"work_bytes\": %zu}\n",
                what, r->n_threads, best * 1e3, gflops, peak, gflops / peak, n_work);
    free(work);
}
