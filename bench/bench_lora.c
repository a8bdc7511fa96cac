/* bench_lora.c - the ops of adapters at the shapes of a 7B, in bytes per second, beside a copy in the same run; on a GPU also all products of
 * one layer with adapters behind them or inside their sums.
 *
 * On the first GPU that works, else on the CPU. LORA_UP in place, as layout lets it. Bytes are those that an op must move
 * (op_bytes); the copy reads and writes half a GiB each. The products run in turns of SLICE_S, of which the last second counts: a GPU at its
 * limit of power needs a moment for its clock, and a short run of one product alone is faster than it is in a step. */
#include "backend/backend.h"
#include <stdlib.h>

enum { N_TOKENS = 8192, ROUNDS = 5, TURNS = 3, RANK = 16 };
static const double SLICE_S = 1.6, COUNTED_S = 1;

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

/* ---- the products of a layer ------------------------------------------------------------------------------------------ */

typedef struct layer_linear {
    const char *name;
    int64_t out, in;
    int n_parts;
    int64_t columns[3];
} layer_linear;

enum { OPS_MOST = 16 };
typedef struct layer_products {
    program p;
    kernel_call calls[OPS_MOST];
    size_t n;
} layer_products;

static value_id add(program *p, const char *what, const layer_linear *l, shape s) {
    char name[64];
    snprintf(name, sizeof name, "%s.%s.%zu", what, l->name, p->n_values);
    return program_persistent(p, name, DTYPE_BF16, s, ROLE_INPUT);
}

static void emit_forward(program *p, const layer_linear *l, bool inside) {
    int64_t R = 0;
    op_attr a = {.scale = 2, .n_parts = l->n_parts};
    for (int i = 0; i < l->n_parts; i++) {
        a.part_first[i] = R;
        R += a.part_columns[i] = l->columns[i];
    }
    value_id x = add(p, "read", l, SHAPE(N_TOKENS, l->in)), w = add(p, "w", l, SHAPE(l->out, l->in));
    value_id y = add(p, "made", l, SHAPE(N_TOKENS, l->out)), xa = add(p, "xa", l, SHAPE(N_TOKENS, l->n_parts * RANK));
    value_id up = add(p, "up", l, SHAPE(R, RANK));
    op *o = program_emit(p, OP_LINEAR, SECTION_MICRO);
    op_in(o, LINEAR_X, x), op_in(o, LINEAR_W, w), op_out(o, LINEAR_Y, y);
    if (inside) o->attr = a, op_in(o, LINEAR_XA, xa), op_in(o, LINEAR_UP, up);
    if (inside) return;
    o = program_emit(p, OP_LORA_UP, SECTION_MICRO);
    o->attr = a;
    op_in(o, LORA_UP_BASE, y), op_in(o, LORA_UP_XA, xa), op_in(o, LORA_UP_B, up), op_out(o, LORA_UP_Y, y);
}

static void emit_backward(program *p, const layer_linear *l, bool inside) {
    int64_t R = l->n_parts * RANK;
    value_id dy = add(p, "read", l, SHAPE(N_TOKENS, l->out)), w = add(p, "w", l, SHAPE(l->out, l->in));
    value_id dx = add(p, "made", l, SHAPE(N_TOKENS, l->in)), dxa = add(p, "dxa", l, SHAPE(N_TOKENS, R));
    value_id down = add(p, "down", l, SHAPE(R, l->in));
    op *o;
    if (!inside) {
        o = program_emit(p, OP_LINEAR_DX, SECTION_MICRO);
        o->attr.adapter = true;
        op_in(o, LINEAR_DX_DY, dxa), op_in(o, LINEAR_DX_W, down), op_out(o, LINEAR_DX_DX, dx);
    }
    o = program_emit(p, OP_LINEAR_DX, SECTION_MICRO);
    op_in(o, LINEAR_DX_DY, dy), op_in(o, LINEAR_DX_W, w), op_out(o, LINEAR_DX_DX, dx);
    if (inside) op_in(o, LINEAR_DX_DXA, dxa), op_in(o, LINEAR_DX_DOWN, down);
    else op_in(o, LINEAR_DX_ADD, dx);
}

/* What is read and what is made lies in the same place for all; every product has weights of its own. */
static void products_open(const bench *t, layer_products *l, const layer_linear *linears, size_t n, bool inside,
                          void *read, void *made) {
    program_init(&l->p);
    for (size_t i = 0; i < n; i++) emit_forward(&l->p, &linears[i], inside);
    for (size_t i = n; i-- > 0;) emit_backward(&l->p, &linears[i], inside);
    void **memory = mem_alloc(l->p.n_values * sizeof *memory);
    size_t work_bytes = 0;
    for (value_id v = 1; v < l->p.n_values; v++) {
        const value *a = program_get(&l->p, v);
        memory[v] = str_starts_with(a->name, "read")   ? read
                    : str_starts_with(a->name, "made") ? made
                                                       : fill(t, value_bytes(a));
    }
    l->n = l->p.n_ops;
    for (size_t i = 0; i < l->n; i++) work_bytes = MAX(work_bytes, t->b->work_bytes(&l->p, &l->p.ops[i], 0) + 1);
    void *work = fill(t, work_bytes);
    for (size_t i = 0; i < l->n; i++) {
        const op *o = &l->p.ops[i];
        kernel_call *k = &l->calls[i];
        *k = (kernel_call){.program = &l->p, .op = o, .work = work};
        for (int j = 0; j < op_input_count(o->kind); j++) k->in[j] = o->in[j] ? memory[o->in[j]] : NULL;
        for (int j = 0; j < op_output_count(o->kind); j++) k->out[j] = memory[o->out[j]];
        if (t->b->prepare(t->c, k) != OK) fail();
    }
    free(memory); /* the device's goes with the process */
}

/* Milliseconds of a layer in the last second of a slice. */
static double products_run(const bench *t, const layer_products *l) {
    double begin = clock_s(), from = 0;
    int n = 0;
    while (from == 0 || clock_s() - from < COUNTED_S) {
        if (from == 0 && clock_s() - begin >= SLICE_S - COUNTED_S) from = clock_s();
        for (int round = 0; round < 4; round++)
            for (size_t i = 0; i < l->n; i++) t->b->kernels[l->calls[i].op->kind](t->c, &l->calls[i]);
        if (t->b->synchronize(t->c) != OK) fail();
        n += from > 0 ? 4 : 0;
    }
    return 1e3 * (clock_s() - from) / n;
}

static void bench_products(const bench *t) {
    static const layer_linear LINEARS[] = {{"qkv", 4608, 3584, 3, {3584, 512, 512}},
                                           {"o", 3584, 3584, 1, {3584}},
                                           {"gate_up", 37888, 3584, 2, {18944, 18944}},
                                           {"down", 3584, 18944, 1, {3584}}};
    static layer_products ways[2];
    size_t most = (size_t)N_TOKENS * 37888 * 2;
    void *read = fill(t, most), *made = fill(t, most);
    for (int inside = 0; inside < 2; inside++)
        products_open(t, &ways[inside], LINEARS, ARRAY_LENGTH(LINEARS), inside, read, made);
    for (int turn = 0; turn < TURNS; turn++)
        for (int inside = 0; inside < 2; inside++)
            printf("products of a layer, forward and dx, rank %d, adapters %s: %.3f ms\n", RANK,
                   inside ? "inside their sums" : "behind them", products_run(t, &ways[inside]));
    for (int inside = 0; inside < 2; inside++) program_fini(&ways[inside].p);
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
    if (t.b->discrete) bench_products(&t);
    t.b->close(t.c);
    return 0;
}
