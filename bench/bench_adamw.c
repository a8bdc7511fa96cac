/* bench_adamw.c - the optimizer's passes over memory against the bandwidth of the same machine, in the same run.
 *
 * The measure is a triad a = b + s c over arrays much larger than any cache, 12 bytes per element. An op is counted with
 * the bytes that must move: what it reads once and what it writes once. Triad and op take turns, because a shared
 * machine changes its speed; shown are the best of each and the median of the shares of the turns. A share above 100 %
 * is possible: the triad's store may first fetch the line it overwrites, AdamW has read it anyway.
 *
 *     bench_adamw [--threads N] [--rounds N] [--elements N] [--json FILE] */
#include "backend/backend.h"
#include <stdlib.h>

enum { TRIAD_TASK = 65536, MAX_ROUNDS = 1000 };

typedef struct bench {
    const backend *device;
    backend_context *context;
    int n_threads, rounds;
    size_t n;         /* elements per array */
    float *arrays[4]; /* x / p, m, v, g: also the triad's three */
    uint16_t *small;  /* the 16-bit parameter */
    FILE *json;
} bench;

typedef struct op_case {
    const char *name;
    op_kind kind;
    dtype type; /* of everything, or of the parameter with a master */
    bool master;
    double bytes; /* per element */
} op_case;

static const op_case CASES[] = {
    {"adamw fp32", OP_ADAMW, DTYPE_F32, false, 28},               /* reads g p m v, writes p m v */
    {"adamw bf16 + fp32 master", OP_ADAMW, DTYPE_BF16, true, 30}, /* reads g x m v, writes x m v and 2 bytes of p */
    {"adamw fp16 + fp32 master", OP_ADAMW, DTYPE_F16, true, 30},
    {"adamw bf16 stochastic", OP_ADAMW, DTYPE_BF16, false, 14},
    {"accumulate fp32", OP_ACCUMULATE, DTYPE_F32, false, 12},
    {"grad_sumsq fp32", OP_GRAD_SUMSQ, DTYPE_F32, false, 4},
};

static void triad_task(void *context, int64_t task, int thread) {
    const bench *b = context;
    size_t first = (size_t)task * TRIAD_TASK, end = MIN(first + TRIAD_TASK, b->n);
    float *restrict x = b->arrays[0];
    const float *restrict y = b->arrays[1], *restrict z = b->arrays[3];
    for (size_t i = first; i < end; i++) x[i] = y[i] + 3.0f * z[i];
}

static double triad_s(bench *b) {
    double start = clock_s();
    b->device->parallel(b->context, triad_task, b, (int64_t)((b->n + TRIAD_TASK - 1) / TRIAD_TASK));
    return clock_s() - start;
}

/* Ordinary numbers: a square root or a division of zero may be faster. Runs before every case. */
static void fill_task(void *context, int64_t task, int thread) {
    const bench *b = context;
    size_t first = (size_t)task * TRIAD_TASK, end = MIN(first + TRIAD_TASK, b->n);
    for (size_t i = first; i < end; i++) {
        float r = (float)(i % 1021) * 1e-3f + 1e-3f;
        b->arrays[0][i] = r;
        b->arrays[1][i] = 0.01f * r;
        b->arrays[2][i] = 1e-4f * r;
        b->arrays[3][i] = 0.1f * r;
        b->small[i] = f32_to_bf16(r);
    }
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(bench *b, const op_case *c, double *partials) {
    b->device->parallel(b->context, fill_task, b, (int64_t)((b->n + TRIAD_TASK - 1) / TRIAD_TASK));
    program p;
    program_init(&p);
    op *o = program_emit(&p, c->kind, SECTION_UPDATE);
    o->attr = (op_attr){.eps = 1e-8f, .beta1 = 0.9f, .beta2 = 0.95f, .weight_decay = 0.1f, .noise_key = 7};
    float clip[CLIP_COUNT] = {[CLIP_FACTOR] = 0.5f};
    step_scalars s = {.lr = 1e-6f, .bias1 = 0.19f, .bias2 = 0.0975f, .step = 2, .micro = 1};
    kernel_call call = {.program = &p, .op = o};
    shape flat = SHAPE((int64_t)b->n);
    dtype state = c->master ? DTYPE_F32 : c->type;
    op_in(o, 0, program_persistent(&p, "g", state, flat, ROLE_GRAD));
    call.in[0] = b->arrays[3];
    if (c->kind == OP_ADAMW) {
        op_in(o, 1, program_persistent(&p, "clip", DTYPE_F32, SHAPE(CLIP_COUNT), ROLE_WORK));
        op_in(o, 2, program_persistent(&p, "scalars", DTYPE_U8, SHAPE(sizeof s), ROLE_INPUT));
        op_out(o, 0, program_persistent(&p, "p", c->type, flat, ROLE_PARAM));
        if (c->master) op_out(o, 1, program_persistent(&p, "master", DTYPE_F32, flat, ROLE_STATE));
        op_out(o, 2, program_persistent(&p, "m", state, flat, ROLE_STATE));
        op_out(o, 3, program_persistent(&p, "v", state, flat, ROLE_STATE));
        call.in[1] = clip, call.in[2] = &s;
        call.out[0] = c->type == DTYPE_F32 ? (void *)b->arrays[0] : b->small;
        call.out[1] = c->master ? b->arrays[0] : NULL;
        call.out[2] = b->arrays[1], call.out[3] = b->arrays[2];
    } else if (c->kind == OP_ACCUMULATE) {
        op_in(o, 1, program_persistent(&p, "scalars", DTYPE_U8, SHAPE(sizeof s), ROLE_INPUT));
        op_out(o, 0, program_persistent(&p, "acc", state, flat, ROLE_GRAD));
        call.in[1] = &s, call.out[0] = b->arrays[0];
    } else {
        op_out(o, 0,
               program_persistent(&p, "partials", DTYPE_F64, SHAPE((int64_t)((b->n + NORM_BLOCK - 1) / NORM_BLOCK)),
                                  ROLE_WORK));
        call.out[0] = partials;
    }

    double best = 1e30, best_triad = 1e30, shares[MAX_ROUNDS];
    for (int round = -1; round < b->rounds; round++) { /* the first only warms */
        double triad = triad_s(b), start = clock_s();
        b->device->kernels[c->kind](b->context, &call);
        double t = clock_s() - start;
        if (round < 0) continue;
        best = MIN(best, t);
        best_triad = MIN(best_triad, triad);
        shares[round] = c->bytes / t / (12 / triad);
    }
    qsort(shares, (size_t)b->rounds, sizeof *shares, compare);
    double n = (double)b->n, rate = c->bytes * n / best * 1e-9, peak = 12 * n / best_triad * 1e-9;
    double median = shares[b->rounds / 2];
    printf("%-26s %9.3f ms %7.3f ns/element %7.2f GB/s   triad %7.2f GB/s   best/best %5.1f %%   median %5.1f %%\n",
           c->name, best * 1e3, best / n * 1e9, rate, peak, 100 * rate / peak, 100 * median);
    fflush(stdout);
    if (b->json)
        fprintf(b->json,
                "{\"what\": \"%s\", \"threads\": %d, \"elements\": %zu, \"ms\": %.4f, \"gb_per_s\": %.3f, "
                "\"triad_gb_per_s\": %.3f, \"share\": %.4f, \"share_median\": %.4f}\n",
                c->name, b->n_threads, b->n, best * 1e3, rate, peak, rate / peak, median);
    program_fini(&p);
}

int main(int argc, char **argv) {
    bench b = {.device = backend_cpu(), .rounds = 15, .n = 32 << 20};
    int threads = 0;
    for (int i = 1; i < argc; i++) {
        bool has_value = i + 1 < argc;
        if (has_value && !strcmp(argv[i], "--threads")) {
            threads = atoi(argv[++i]);
        } else if (has_value && !strcmp(argv[i], "--rounds")) {
            b.rounds = atoi(argv[++i]);
        } else if (has_value && !strcmp(argv[i], "--elements")) {
            b.n = strtoull(argv[++i], NULL, 10);
        } else if (has_value && !strcmp(argv[i], "--json")) {
            if (!(b.json = fopen(argv[++i], "w"))) {
                fprintf(stderr, "cannot write %s\n", argv[i]);
                return 2;
            }
        } else {
            fprintf(stderr, "usage: %s [--threads N] [--rounds N] [--elements N] [--json FILE]\n", argv[0]);
            return 2;
        }
    }
    b.rounds = MIN(MAX(b.rounds, 1), (int)MAX_ROUNDS);
    b.n = MAX(b.n, (size_t)1);
    if (b.device->open(&b.context, &(backend_options){.n_threads = threads}) != OK) {
        error_print(stderr);
        return 1;
    }
    b.n_threads = b.device->threads(b.context);
    size_t array_bytes = (b.n * sizeof(float) + 4095) / 4096 * 4096, n_blocks = (b.n + NORM_BLOCK - 1) / NORM_BLOCK;
    size_t n_bytes = 5 * array_bytes + n_blocks * sizeof(double);
    char *memory;
    if (b.device->memory_open(b.context, TIER_DEVICE, n_bytes, (void **)&memory) != OK) {
        error_print(stderr);
        return 3;
    }
    for (int i = 0; i < 4; i++) b.arrays[i] = (float *)(memory + (size_t)i * array_bytes);
    b.small = (uint16_t *)(memory + 4 * array_bytes);
    printf("%zu elements, %d threads, %d rounds\n", b.n, b.n_threads, b.rounds);
    for (size_t i = 0; i < ARRAY_LENGTH(CASES); i++) measure(&b, &CASES[i], (double *)(memory + 5 * array_bytes));
    b.device->memory_close(b.context, TIER_DEVICE, memory, n_bytes);
    b.device->close(b.context);
    if (b.json) fclose(b.json);
    return 0;
}
