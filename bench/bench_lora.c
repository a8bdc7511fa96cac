/* bench_lora.c - the ops of adapters at the shapes of a 7B, in bytes per second, beside a copy in the same run.
 *
 * On the first GPU that works, else on the CPU. LORA_UP in place, as layout lets it. Bytes are those that an op must move
 * (op_bytes); the copy reads and writes half a GiB each. */
#include "backend/backend.h"
#include <stdlib.h>

enum { N_TOKENS = 8192, ROUNDS = 5 };

typedef struct bench {
    const backend *b;
    backend_context *c;
    int n_runs; /* queued between two waits */
} bench;

static void fail(void) {
    error_print(stderr);
    exit(1);
}

/* Memory of the device with numbers of ordinary size: the same few again and again. */
static void *fill(const bench *t, size_t n_bytes) {
    enum { SOME = 1 << 20 };
    void *out;
    float *numbers = mem_alloc(SOME * sizeof *numbers);
    uint16_t *narrow = mem_alloc(SOME * sizeof *narrow);
    rng_normal_fill(1, 0, numbers, SOME, 0, 1);
    tensor_convert(narrow, DTYPE_BF16, numbers, DTYPE_F32, SOME);
    if (t->b->memory_open(t->c, TIER_DEVICE, n_bytes, &out) != OK) fail();
    for (size_t at = 0; at < n_bytes; at += SOME * sizeof *narrow)
        if (t->b->write(t->c, (char *)out + at, narrow, MIN(SOME * sizeof *narrow, n_bytes - at)) != OK) fail();
    free(numbers);
    free(narrow);
    return out;
}

/* The best of some rounds, in seconds per run. */
static double measure(const bench *t, const kernel_call *k) {
    double best = 1e9;
    for (int round = 0; round < ROUNDS; round++) {
        double start = clock_s();
        for (int i = 0; i < t->n_runs; i++) t->b->kernels[k->op->kind](t->c, k);
        if (t->b->synchronize(t->c) != OK) fail();
        best = MIN(best, (clock_s() - start) / t->n_runs);
    }
    return best;
}

typedef struct lora_bench {
    const char *name;
    int64_t out, r;
    int n_parts;
    int64_t columns[3];
} lora_bench;

static double run_op(const bench *t, program *p, op *o, double *bytes) {
    kernel_call k = {.program = p, .op = o};
    value_id all[OP_MAX_IN + OP_MAX_OUT];
    void *memory[OP_MAX_IN + OP_MAX_OUT];
    int n = 0, n_in = op_input_count(o->kind);
    for (int i = 0; i < n_in; i++) all[n++] = o->in[i];
    for (int i = 0; i < op_output_count(o->kind); i++) all[n++] = o->out[i];
    for (int i = 0; i < n; i++) memory[i] = fill(t, value_bytes(program_get(p, all[i])));
    for (int i = 0; i < n; i++) *(i < n_in ? &k.in[i] : &k.out[i - n_in]) = memory[i];
    if (o->kind == OP_LORA_UP) k.out[LORA_UP_Y] = k.in[LORA_UP_BASE];
    size_t n_work = t->b->work_bytes(p, o, 0) + 1;
    k.work = fill(t, n_work);
    double seconds = measure(t, &k);
    *bytes = op_bytes(p, o);
    for (int i = 0; i < n; i++) t->b->memory_close(t->c, TIER_DEVICE, memory[i], value_bytes(program_get(p, all[i])));
    t->b->memory_close(t->c, TIER_DEVICE, k.work, n_work);
    return seconds;
}

static double bench_copy(const bench *t) {
    program p;
    program_init(&p);
    double bytes;
    op *o = program_emit(&p, OP_COPY, SECTION_MICRO);
    shape s = SHAPE(t->b->discrete ? (int64_t)1 << 28 : (int64_t)1 << 24);
    op_in(o, COPY_X, program_persistent(&p, "x", DTYPE_BF16, s, ROLE_INPUT));
    op_out(o, COPY_Y, program_persistent(&p, "y", DTYPE_BF16, s, ROLE_INPUT));
    double seconds = run_op(t, &p, o, &bytes);
    program_fini(&p);
    return bytes / seconds;
}

static void bench_lora_op(const bench *t, const lora_bench *l, op_kind kind, double copy) {
    program p;
    program_init(&p);
    op *o = program_emit(&p, kind, SECTION_MICRO);
    int64_t R = 0;
    o->attr.scale = 2;
    o->attr.n_parts = l->n_parts;
    for (int i = 0; i < l->n_parts; i++) {
        o->attr.part_first[i] = R;
        R += o->attr.part_columns[i] = l->columns[i];
    }
    value_id wide = program_persistent(&p, "wide", DTYPE_BF16, SHAPE(N_TOKENS, l->out), ROLE_INPUT),
             small = program_persistent(&p, "small", DTYPE_BF16, SHAPE(N_TOKENS, l->n_parts * l->r), ROLE_INPUT),
             b = program_persistent(&p, "b", DTYPE_BF16, SHAPE(R, l->r), ROLE_INPUT);
    if (kind == OP_LORA_UP) {
        op_in(o, LORA_UP_BASE, wide), op_in(o, LORA_UP_XA, small), op_in(o, LORA_UP_B, b);
        op_out(o, LORA_UP_Y, wide);
    } else {
        value_id dxa = program_persistent(&p, "dxa", DTYPE_BF16, SHAPE(N_TOKENS, l->n_parts * l->r), ROLE_INPUT),
                 db = program_persistent(&p, "db", DTYPE_F32, SHAPE(R, l->r), ROLE_INPUT);
        op_in(o, LORA_BWD_DY, wide), op_in(o, LORA_BWD_XA, small), op_in(o, LORA_BWD_B, b);
        op_out(o, LORA_BWD_DXA, dxa), op_out(o, LORA_BWD_DB, db);
    }
    double bytes, seconds = run_op(t, &p, o, &bytes);
    printf("%-10s %-8s out %6d  r %3d  parts %d  %9.1f us  %8.1f GB/s  %5.1f %% of a copy\n", op_name(kind), l->name,
           (int)l->out, (int)l->r, l->n_parts, 1e6 * seconds, bytes / seconds / 1e9, 100 * bytes / seconds / copy);
    program_fini(&p);
}

int main(void) {
    static const lora_bench CASES[] = {
        {"qkv", 4608, 16, 3, {3584, 512, 512}},    {"o", 3584, 16, 1, {3584}},
        {"gate_up", 37888, 16, 2, {18944, 18944}}, {"down", 3584, 8, 1, {3584}},
        {"gate_up", 37888, 64, 2, {18944, 18944}}, {"qkv", 4608, 64, 3, {3584, 512, 512}}};
    static const op_kind KINDS[] = {OP_LORA_UP, OP_LORA_BWD};
    bench t = {0};
    if (backend_choose(DEVICE_AUTO, 0, &t.b) != OK || t.b->open(&t.c, &(backend_options){0}) != OK) fail();
    t.n_runs = t.b->discrete ? 50 : 1;
    double copy = bench_copy(&t);
    printf("adapters of a 7B, %d tokens of bf16; a copy: %.1f GB/s\n", N_TOKENS, copy / 1e9);
    for (size_t i = 0; i < ARRAY_LENGTH(CASES); i++)
        for (size_t k = 0; k < ARRAY_LENGTH(KINDS); k++) bench_lora_op(&t, &CASES[i], KINDS[k], copy);
    t.b->close(t.c);
    return 0;
}
