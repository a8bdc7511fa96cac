/* bench_dequantize.c - frozen weights in fewer bits: DEQUANTIZE beside a plain copy of as many bytes, and how fast rows become codes.
 *
 *     bench_dequantize [--threads N] [--rounds N] [--json FILE] [--device cpu|cuda]
 *
 * Both ops are bound by memory, so the share of the copy's speed is the number to look at. The weight is larger than the caches; op
 * and copy take turns and the best of each is kept. GB/s counts codes, scales and numbers once. Codes are made on one thread. */
#include "backend/backend.h"
#include <stdlib.h>

typedef struct bench {
    const backend *device;
    backend_context *context;
    int n_threads, rounds, repeats;
    int64_t n_out, n_in;
    FILE *json; /* or NULL */
} bench;

/* ---- ops whose operands lie in the device's memory ---------------------------------------------------------------------- */

typedef struct bench_op {
    program program;
    kernel_call call;
} bench_op;

static void op_open(bench_op *o, op_kind kind, base_format f) {
    program_init(&o->program);
    program_emit(&o->program, kind, SECTION_MICRO)->attr.base_format = f;
    o->call = (kernel_call){.program = &o->program};
}

static void *op_memory(bench *b, const char *name, bench_op *o, dtype t, shape s, const void *contents, value_id *v) {
    void *at;
    size_t n_bytes = shape_bytes(&s, t);
    *v = program_persistent(&o->program, name, t, s, ROLE_PARAM);
    if (b->device->memory_open(b->context, TIER_DEVICE, n_bytes, &at) != OK) {
        error_print(stderr);
        exit(1);
    }
    if (contents) b->device->write(b->context, at, contents, n_bytes);
    return at;
}

static void op_input(bench *b, bench_op *o, int i, dtype t, shape s, const void *contents) {
    value_id v;
    o->call.in[i] = op_memory(b, op_input_name(o->program.ops[0].kind, i), o, t, s, contents, &v);
    op_in(&o->program.ops[0], i, v);
}

static void op_output(bench *b, bench_op *o, int i, dtype t, shape s) {
    value_id v;
    o->call.out[i] = op_memory(b, op_output_name(o->program.ops[0].kind, i), o, t, s, NULL, &v);
    op_out(&o->program.ops[0], i, v);
}

static void op_close(bench *b, bench_op *o) {
    const op *x = &o->program.ops[0];
    for (int i = 0; i < OP_MAX_IN; i++)
        if (x->in[i])
            b->device->memory_close(b->context, TIER_DEVICE, o->call.in[i], value_bytes(call_in(&o->call, i)));
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (x->out[i])
            b->device->memory_close(b->context, TIER_DEVICE, o->call.out[i], value_bytes(call_out(&o->call, i)));
    program_fini(&o->program);
}

static double seconds(bench *b, bench_op *o) {
    o->call.op = &o->program.ops[0];
    if (b->device->synchronize(b->context) != OK) exit(1);
    double start = clock_s();
    for (int i = 0; i < b->repeats; i++) b->device->kernels[o->call.op->kind](b->context, &o->call);
    if (b->device->synchronize(b->context) != OK) {
        error_print(stderr);
        exit(1);
    }
    return (clock_s() - start) / b->repeats;
}

/* ---- one format --------------------------------------------------------------------------------------------------------- */

static base_codes codes_of(bench *b, base_format f, const float *rows, int64_t n_rows, double *elements_per_s) {
    base_sizes n = base_sizes_of(f, b->n_out, b->n_in);
    base_codes to = {.codes = mem_alloc((size_t)n.codes),
                     .scale_codes = mem_alloc((size_t)n.scale_codes + 1),
                     .scale = mem_alloc((size_t)n.scales * 4),
                     .offset = mem_alloc(4)};
    quantizer q;
    double start = clock_s();
    quantizer_init(&q, &(quantizer_options){.name = "w",
                                            .format = f,
                                            .n_out = b->n_out,
                                            .n_in = b->n_in,
                                            .absmax = quantize_absmax(0, rows, n_rows * b->n_in),
                                            .to = to});
    for (int64_t r = 0; r < b->n_out; r += n_rows)
        if (quantizer_add(&q, rows, n_rows) != OK) exit(1);
    if (quantizer_finish(&q) != OK) exit(1);
    quantizer_fini(&q);
    *elements_per_s = (double)(b->n_out * b->n_in) / (clock_s() - start);
    return to;
}

static void measure(bench *b, base_format f, const float *rows, int64_t n_rows) {
    double rate;
    base_codes from = codes_of(b, f, rows, n_rows, &rate);
    base_sizes n = base_sizes_of(f, b->n_out, b->n_in);
    for (dtype t = DTYPE_F32; t <= DTYPE_F16; t++) {
        bench_op o, copy;
        op_open(&o, OP_DEQUANTIZE, f);
        op_input(b, &o, DEQUANTIZE_CODES, base_codes_type(f), f == BASE_NF4 ? SHAPE(n.codes) : SHAPE(b->n_out, b->n_in),
                 from.codes);
        op_input(b, &o, DEQUANTIZE_SCALE, DTYPE_F32, SHAPE(n.scales), from.scale);
        if (f == BASE_NF4) {
            op_input(b, &o, DEQUANTIZE_SCALE_CODES, DTYPE_U8, SHAPE(n.scale_codes), from.scale_codes);
            op_input(b, &o, DEQUANTIZE_OFFSET, DTYPE_F32, SHAPE(1), from.offset);
        }
        op_output(b, &o, DEQUANTIZE_W, t, SHAPE(b->n_out, b->n_in));
        double n_bytes = op_bytes(&o.program, &o.program.ops[0]), best[2] = {1e9, 1e9};
        op_open(&copy, OP_COPY, f);
        op_input(b, &copy, COPY_X, DTYPE_U8, SHAPE((int64_t)n_bytes / 2), NULL);
        op_output(b, &copy, COPY_Y, DTYPE_U8, SHAPE((int64_t)n_bytes / 2));
        for (int round = -1; round < b->rounds; round++) { /* the first only warms */
            double s = seconds(b, &o), c = seconds(b, &copy);
            if (round >= 0) best[0] = MIN(best[0], s), best[1] = MIN(best[1], c);
        }
        printf("%-4s to %-4s  %8.3f ms  %7.1f GB/s   copy %7.1f GB/s   %5.1f %%   codes %6.1f M/s\n",
               base_format_name(f), dtype_name(t), 1e3 * best[0], n_bytes / best[0] * 1e-9, n_bytes / best[1] * 1e-9,
               100 * best[1] / best[0], rate * 1e-6);
        fflush(stdout);
        if (b->json)
            fprintf(b->json,
                    "{\"format\": \"%s\", \"type\": \"%s\", \"ms\": %.4f, \"bytes\": %.0f, \"copy_ms\": %.4f}\n",
                    base_format_name(f), dtype_name(t), 1e3 * best[0], n_bytes, 1e3 * best[1]);
        op_close(b, &o);
        op_close(b, &copy);
    }
    free(from.codes);
    free(from.scale_codes);
    free(from.scale);
    free(from.offset);
}

static bool bench_open(bench *b, int argc, char **argv) {
    int threads = 0;
    *b = (bench){.device = backend_cpu(), .rounds = 5, .repeats = 1, .n_out = 4096, .n_in = 8192};
    for (int i = 1; i < argc; i += 2) {
        bool has_value = i + 1 < argc;
        if (has_value && !strcmp(argv[i], "--threads")) {
            threads = atoi(argv[i + 1]);
        } else if (has_value && !strcmp(argv[i], "--rounds")) {
            b->rounds = atoi(argv[i + 1]);
        } else if (has_value && !strcmp(argv[i], "--json") && (b->json = fopen(argv[i + 1], "w"))) {
            continue;
        } else if (has_value && !strcmp(argv[i], "--device")) {
            if (!strcmp(argv[i + 1], "cpu")) continue;
            b->n_out = 16384, b->repeats = 20;
            if (backend_choose(DEVICE_CUDA, 0, &b->device) != OK) return error_print(stderr), false;
        } else {
            fprintf(stderr, "usage: %s [--threads N] [--rounds N] [--json FILE] [--device cpu|cuda]\n", argv[0]);
            return false;
        }
    }
    b->rounds = MAX(b->rounds, 1);
    if (b->device->open(&b->context, &(backend_options){.n_threads = threads}) != OK) return error_print(stderr), false;
    b->n_threads = b->device->threads ? b->device->threads(b->context) : 0;
    return true;
}

int main(int argc, char **argv) {
    enum { ROWS = 64 };
    bench b;
    if (!bench_open(&b, argc, argv)) return 2;
    float *rows = mem_alloc((size_t)(ROWS * b.n_in) * sizeof *rows);
    rng_normal_fill(1, 0, rows, (size_t)(ROWS * b.n_in), 0, 0.02f);
    printf("dequantize (%d, %d): %s, %d threads\n", (int)b.n_out, (int)b.n_in, b.device->name, b.n_threads);
    for (base_format f = BASE_FP8; f < BASE_FORMAT_COUNT; f++) measure(&b, f, rows, ROWS);
    b.device->close(b.context);
    if (b.json) fclose(b.json);
    free(rows);
    return 0;
}
