/* bench_attention_gpu.c - forward and backward attention of a GPU alone, causal, in TFLOP/s.
 *
 *     bench_attention_gpu 4,2048,28,4,128 ...          rows, tokens of a row, heads, kv heads, head_dim
 *     bench_attention_gpu --fp8 1,16384,12,2,128 ...   the forward alone, in 16 bits and by 8-bit products, taking turns; rounding included
 *
 * With --fp8 `lse_off` and `y_off` are how far results of 8-bit products are from those of 16 bits: the largest difference of lse, and
 * ||y8 - y|| / ||y||, over the last tokens, which see the most keys. `bench/gpu attention` asks for every length from 512 to 65,536 and sets PyTorch beside it. One line of JSON per shape. Counted are the pairs that a causal mask leaves: 4 head_dim flops forward, 10 backward. Several runs are queued between
 * two waits; the best of some rounds is kept. Numbers are normal: a GPU that multiplies zeros takes less power and is faster. */
#include "backend/backend.h"
#include <math.h>
#include <stdlib.h>

enum { ROUNDS = 3, SOME = 1 << 20 };
static const double ROUND_FLOPS = 3e12; /* about 8 ms */

typedef struct attention_shape {
    int64_t B, T;
    int H, G, D;
} attention_shape;

typedef struct bench {
    const backend *b;
    backend_context *c;
} bench;

static void fail(void) {
    error_print(stderr);
    exit(1);
}

static void *open_memory(const bench *t, size_t n_bytes) {
    void *out;
    if (t->b->memory_open(t->c, TIER_DEVICE, n_bytes, &out) != OK) fail();
    return out;
}

/* bf16 numbers, the same million again and again. */
static void *open_numbers(const bench *t, size_t n_bytes, uint64_t seed) {
    void *out = open_memory(t, n_bytes);
    float *numbers = mem_alloc(SOME * sizeof *numbers);
    uint16_t *narrow = mem_alloc(SOME * sizeof *narrow);
    rng_normal_fill(seed, 0, numbers, SOME, 0, 1);
    tensor_convert(narrow, DTYPE_BF16, numbers, DTYPE_F32, SOME);
    for (size_t at = 0; at < n_bytes; at += SOME * sizeof *narrow)
        if (t->b->write(t->c, (char *)out + at, narrow, MIN(SOME * sizeof *narrow, n_bytes - at)) != OK) fail();
    free(numbers);
    free(narrow);
    return out;
}

static void *open_zeros(const bench *t, size_t n_bytes) {
    void *out = open_memory(t, n_bytes), *zeros = mem_alloc(n_bytes);
    memset(zeros, 0, n_bytes);
    if (t->b->write(t->c, out, zeros, n_bytes) != OK) fail();
    free(zeros);
    return out;
}

/* Milliseconds of one run. */
static double measure(const bench *t, const program *p, const op *o, kernel_call k, double flops) {
    size_t n_work = t->b->work_bytes(p, o, 0) + 1;
    int n_runs = (int)MIN(MAX(ROUND_FLOPS / flops, 1.0), 50.0);
    double best = 1e9;
    k.program = p, k.op = o, k.work = open_memory(t, n_work);
    for (int round = -1; round < ROUNDS; round++) { /* the first only warms */
        double start = clock_s();
        for (int i = 0; i < (round < 0 ? 1 : n_runs); i++) t->b->kernels[o->kind](t->c, &k);
        if (t->b->synchronize(t->c) != OK) fail();
        if (round >= 0) best = MIN(best, (clock_s() - start) / n_runs);
    }
    t->b->memory_close(t->c, TIER_DEVICE, k.work, n_work);
    return best * 1e3;
}

/* The forward alone, in 16 and in 8 bits, in turns: which came first has no advantage. */
enum { TURNS = 5, COMPARED = 4096 };
typedef struct forward_call {
    const op *o;
    kernel_call k;
    size_t n_work;
    double best_ms;
} forward_call;

/* Elements [first, end) of an array. */
static void *read_some(const bench *t, const void *array, int64_t first, int64_t end, size_t element_bytes) {
    size_t n_bytes = (size_t)(end - first) * element_bytes;
    void *out = mem_alloc(n_bytes);
    if (t->b->read(t->c, out, (const char *)array + (size_t)first * element_bytes, n_bytes) != OK) fail();
    return out;
}

/* The last numbers of lse and y: their sums went through every tile of keys. */
static void compare(const bench *t, const forward_call *exact, const forward_call *other, int64_t n_lse, int64_t n_y,
                    double *lse_off, double *y_off) {
    float *lse[2];
    uint16_t *y[2];
    const forward_call *f[2] = {exact, other};
    int64_t first_lse = MAX(n_lse - COMPARED, 0), first_y = MAX(n_y - COMPARED * 64, 0);
    for (int k = 0; k < 2; k++) {
        lse[k] = read_some(t, f[k]->k.out[ATTENTION_LSE], first_lse, n_lse, sizeof *lse[k]);
        y[k] = read_some(t, f[k]->k.out[ATTENTION_Y], first_y, n_y, sizeof *y[k]);
    }
    double off = 0, all = 0;
    *lse_off = 0;
    for (int64_t i = 0; i < n_lse - first_lse; i++) {
        double d = fabs((double)lse[1][i] - lse[0][i]);
        if (d > *lse_off || isnan(d)) *lse_off = d; /* NaN stays */
    }
    for (int64_t i = 0; i < n_y - first_y; i++) {
        double a = bf16_to_f32(y[0][i]), d = bf16_to_f32(y[1][i]) - a;
        off += d * d, all += a * a;
    }
    *y_off = sqrt(off / all);
    for (int k = 0; k < 2; k++) free(lse[k]), free(y[k]);
}

static void run_both(const bench *t, const attention_shape *a, const program *p, forward_call f[2], double flops) {
    int n_runs = (int)MIN(MAX(ROUND_FLOPS / flops, 1.0), 50.0);
    for (int k = 0; k < 2; k++) {
        f[k].n_work = t->b->work_bytes(p, f[k].o, 0) + 1;
        f[k].k.program = p, f[k].k.op = f[k].o, f[k].k.work = open_memory(t, f[k].n_work), f[k].best_ms = 1e9;
        if (t->b->prepare(t->c, &f[k].k) != OK) fail();
    }
    for (int turn = -1; turn < TURNS; turn++) /* the first only warms */
        for (int k = 0; k < 2; k++) {
            double start = clock_s();
            for (int i = 0; i < (turn < 0 ? 1 : n_runs); i++) t->b->kernels[OP_ATTENTION](t->c, &f[k].k);
            if (t->b->synchronize(t->c) != OK) fail();
            if (turn >= 0) f[k].best_ms = fmin(f[k].best_ms, (clock_s() - start) / n_runs * 1e3);
        }
    double lse_off, y_off;
    compare(t, &f[0], &f[1], a->B * a->T * a->H, a->B * a->T * a->H * a->D, &lse_off, &y_off);
    printf("{\"rows\": %d, \"tokens\": %d, \"heads\": %d, \"kv_heads\": %d, \"head_dim\": %d, \"bf16_ms\": %.4f, "
           "\"fp8_ms\": %.4f, \"bf16\": %.0f, \"fp8\": %.0f, \"lse_off\": %.4f, \"y_off\": %.4f}\n",
           (int)a->B, (int)a->T, a->H, a->G, a->D, f[0].best_ms, f[1].best_ms, 1e-9 * flops / f[0].best_ms,
           1e-9 * flops / f[1].best_ms, lse_off, y_off);
    fflush(stdout);
    for (int k = 0; k < 2; k++) t->b->memory_close(t->c, TIER_DEVICE, f[k].k.work, f[k].n_work);
}

/* What the forward reads and writes. */
typedef struct forward_values {
    value_id qkv, doc_start, y, lse;
} forward_values;

static forward_values forward_values_add(program *p, const attention_shape *a) {
    int64_t N = a->B * a->T, Q = (int64_t)(a->H + 2 * a->G) * a->D, Y = (int64_t)a->H * a->D;
    return (forward_values){.qkv = program_persistent(p, "qkv", DTYPE_BF16, SHAPE(N, Q), ROLE_ACTIVATION),
                            .doc_start = program_persistent(p, "doc_start", DTYPE_I32, SHAPE(N), ROLE_ACTIVATION),
                            .y = program_persistent(p, "y", DTYPE_BF16, SHAPE(N, Y), ROLE_ACTIVATION),
                            .lse = program_persistent(p, "lse", DTYPE_F32, SHAPE(a->B, a->H, a->T), ROLE_ACTIVATION)};
}

static void run_forwards(const bench *t, const attention_shape *a) {
    int64_t N = a->B * a->T, Q = (int64_t)(a->H + 2 * a->G) * a->D, Y = (int64_t)a->H * a->D;
    program p;
    program_init(&p);
    forward_values v = forward_values_add(&p, a);
    size_t qkv_bytes = (size_t)(N * Q) * 2, y_bytes = (size_t)(N * Y) * 2, lse_bytes = (size_t)(N * a->H) * 4;
    forward_call f[2] = {0};
    void *numbers = open_numbers(t, qkv_bytes, 1), *starts = open_zeros(t, (size_t)N * 4);
    for (int k = 0; k < 2; k++) {
        op *o = program_emit(&p, OP_ATTENTION, SECTION_MICRO);
        o->attr = (op_attr){.batch = a->B,
                            .seq_len = a->T,
                            .n_heads = a->H,
                            .n_kv_heads = a->G,
                            .head_dim = a->D,
                            .scale = 0.125f,
                            .fp8 = k == 1};
        op_in(o, ATTENTION_QKV, v.qkv), op_in(o, ATTENTION_DOC_START, v.doc_start);
        op_out(o, ATTENTION_Y, v.y), op_out(o, ATTENTION_LSE, v.lse);
        f[k].k.in[ATTENTION_QKV] = numbers, f[k].k.in[ATTENTION_DOC_START] = starts;
        f[k].k.out[ATTENTION_Y] = open_memory(t, y_bytes), f[k].k.out[ATTENTION_LSE] = open_memory(t, lse_bytes);
    }
    for (int k = 0; k < 2; k++) f[k].o = &p.ops[k];
    run_both(t, a, &p, f, 4.0 * a->D * (double)a->B * a->H * ((double)a->T * (double)(a->T + 1) / 2));
    for (int k = 0; k < 2; k++) {
        t->b->memory_close(t->c, TIER_DEVICE, f[k].k.out[ATTENTION_Y], y_bytes);
        t->b->memory_close(t->c, TIER_DEVICE, f[k].k.out[ATTENTION_LSE], lse_bytes);
    }
    t->b->memory_close(t->c, TIER_DEVICE, numbers, qkv_bytes);
    t->b->memory_close(t->c, TIER_DEVICE, starts, (size_t)N * 4);
    program_fini(&p);
}

static void run_shape(const bench *t, const attention_shape *a) {
    int64_t N = a->B * a->T, Q = (int64_t)(a->H + 2 * a->G) * a->D, Y = (int64_t)a->H * a->D;
    op_attr attr = {
        .batch = a->B, .seq_len = a->T, .n_heads = a->H, .n_kv_heads = a->G, .head_dim = a->D, .scale = 0.125f};
    program p;
    program_init(&p);
    forward_values v = forward_values_add(&p, a);
    value_id dy = program_persistent(&p, "dy", DTYPE_BF16, SHAPE(N, Y), ROLE_ACTIVATION);
    value_id dqkv = program_persistent(&p, "dqkv", DTYPE_BF16, SHAPE(N, Q), ROLE_ACTIVATION);
    program_emit(&p, OP_ATTENTION, SECTION_MICRO);
    program_emit(&p, OP_ATTENTION_BWD, SECTION_MICRO);
    op *forward = &p.ops[0], *backward = &p.ops[1];
    forward->attr = backward->attr = attr;
    op_in(forward, ATTENTION_QKV, v.qkv), op_in(forward, ATTENTION_DOC_START, v.doc_start);
    op_out(forward, ATTENTION_Y, v.y), op_out(forward, ATTENTION_LSE, v.lse);
    op_in(backward, ATTENTION_BWD_QKV, v.qkv), op_in(backward, ATTENTION_BWD_DOC_START, v.doc_start);
    op_in(backward, ATTENTION_BWD_Y, v.y), op_in(backward, ATTENTION_BWD_LSE, v.lse);
    op_in(backward, ATTENTION_BWD_DY, dy), op_out(backward, ATTENTION_BWD_DQKV, dqkv);

    size_t qkv_bytes = (size_t)(N * Q) * 2, y_bytes = (size_t)(N * Y) * 2, lse_bytes = (size_t)(N * a->H) * 4,
           starts_bytes = (size_t)N * 4;
    kernel_call f = {0}, b = {0};
    f.in[ATTENTION_QKV] = b.in[ATTENTION_BWD_QKV] = open_numbers(t, qkv_bytes, 1);
    f.in[ATTENTION_DOC_START] = b.in[ATTENTION_BWD_DOC_START] = open_zeros(t, starts_bytes);
    f.out[ATTENTION_Y] = open_memory(t, y_bytes), b.in[ATTENTION_BWD_Y] = f.out[ATTENTION_Y];
    f.out[ATTENTION_LSE] = open_memory(t, lse_bytes), b.in[ATTENTION_BWD_LSE] = f.out[ATTENTION_LSE];
    b.in[ATTENTION_BWD_DY] = open_numbers(t, y_bytes, 2);
    b.out[ATTENTION_BWD_DQKV] = open_memory(t, qkv_bytes);
    double pairs = (double)a->B * a->H * ((double)a->T * (double)(a->T + 1) / 2), flops = 2.0 * a->D * pairs;
    double forward_ms = measure(t, &p, forward, f, 2 * flops), backward_ms = measure(t, &p, backward, b, 5 * flops);
    printf("{\"rows\": %d, \"tokens\": %d, \"heads\": %d, \"kv_heads\": %d, \"head_dim\": %d, \"forward_ms\": %.4f, "
           "\"backward_ms\": %.4f, \"forward\": %.0f, \"backward\": %.0f}\n",
           (int)a->B, (int)a->T, a->H, a->G, a->D, forward_ms, backward_ms, 2e-9 * flops / forward_ms,
           5e-9 * flops / backward_ms);
    fflush(stdout);
    t->b->memory_close(t->c, TIER_DEVICE, (void *)f.in[ATTENTION_QKV], qkv_bytes);
    t->b->memory_close(t->c, TIER_DEVICE, (void *)f.in[ATTENTION_DOC_START], starts_bytes);
    t->b->memory_close(t->c, TIER_DEVICE, f.out[ATTENTION_Y], y_bytes);
    t->b->memory_close(t->c, TIER_DEVICE, f.out[ATTENTION_LSE], lse_bytes);
    t->b->memory_close(t->c, TIER_DEVICE, (void *)b.in[ATTENTION_BWD_DY], y_bytes);
    t->b->memory_close(t->c, TIER_DEVICE, b.out[ATTENTION_BWD_DQKV], qkv_bytes);
    program_fini(&p);
}

static bool parse_shape(const char *text, attention_shape *a) {
    long long B, T;
    char behind;
    if (sscanf(text, "%lld,%lld,%d,%d,%d%c", &B, &T, &a->H, &a->G, &a->D, &behind) != 5) return false;
    a->B = B, a->T = T;
    return B > 0 && T > 0 && a->H > 0 && a->G > 0 && a->H % a->G == 0 && a->D > 0;
}

int main(int argc, char **argv) {
    bench t = {0};
    bool both = argc > 1 && !strcmp(argv[1], "--fp8");
    for (int i = 1 + both; i < argc; i++) {
        attention_shape a;
        if (parse_shape(argv[i], &a)) continue;
        fprintf(stderr, "%s: expected rows,tokens,heads,kv_heads,head_dim, all above 0, heads a multiple of kv_heads\n",
                argv[i]);
        return 2;
    }
    if (backend_choose(DEVICE_CUDA, 0, &t.b) != OK || t.b->open(&t.c, &(backend_options){0}) != OK) fail();
    for (int i = 1 + both; i < argc; i++) {
        attention_shape a;
        if (parse_shape(argv[i], &a)) (both ? run_forwards : run_shape)(&t, &a);
    }
    t.b->close(t.c);
    return 0;
}
