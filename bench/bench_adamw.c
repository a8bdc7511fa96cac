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
    float *arrays[4]; /* x / p, m, v, g, each with room for fp32 */
    float *triad[3];
    uint16_t *small;  /* the 16-bit parameter beside a master */
    float *scales[2]; /* of 8-bit m and v */
    double *partials;
    const struct op_case *now; /* what the arrays are filled for */
    FILE *json;
} bench;

typedef struct op_case {
    const char *name;
    op_kind kind;
    dtype p, g, states;
    bool master;
    double bytes; /* per element */
    bool first;   /* ACCUMULATE of the first micro-batch, which adds nothing */
} op_case;

static const op_case CASES[] = {
    /* AdamW reads g x m v and writes x m v, and 2 bytes of p beside a master */
    {"adamw fp32", OP_ADAMW, DTYPE_F32, DTYPE_F32, DTYPE_F32, false, 28, false},
    {"adamw bf16 + fp32 master", OP_ADAMW, DTYPE_BF16, DTYPE_F32, DTYPE_F32, true, 30, false},
    {"adamw fp16 + fp32 master", OP_ADAMW, DTYPE_F16, DTYPE_F32, DTYPE_F32, true, 30, false},
    {"adamw bf16_sr", OP_ADAMW, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, false, 14, false},
    {"adamw fp32, bf16 states", OP_ADAMW, DTYPE_F32, DTYPE_F32, DTYPE_BF16, false, 20, false},
    {"adamw fp32, int8 states", OP_ADAMW, DTYPE_F32, DTYPE_F32, DTYPE_I8, false, 16.0625, false},
    {"adamw bf16_sr, int8 states", OP_ADAMW, DTYPE_BF16, DTYPE_BF16, DTYPE_I8, false, 10.0625, false},
    {"accumulate fp32", OP_ACCUMULATE, DTYPE_F32, DTYPE_F32, DTYPE_F32, false, 12, false},
    {"accumulate bf16", OP_ACCUMULATE, DTYPE_BF16, DTYPE_BF16, DTYPE_F32, false, 6, false},
    {"accumulate bf16, first", OP_ACCUMULATE, DTYPE_BF16, DTYPE_BF16, DTYPE_F32, false, 4, true},
    {"grad_sumsq fp32", OP_GRAD_SUMSQ, DTYPE_F32, DTYPE_F32, DTYPE_F32, false, 4, false},
    {"grad_sumsq bf16", OP_GRAD_SUMSQ, DTYPE_F32, DTYPE_BF16, DTYPE_F32, false, 2, false},
};

static void triad_task(void *context, int64_t task, int thread) {
    const bench *b = context;
    size_t first = (size_t)task * TRIAD_TASK, end = MIN(first + TRIAD_TASK, b->n);
    float *restrict x = b->triad[0];
    const float *restrict y = b->triad[1], *restrict z = b->triad[2];
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
    const op_case *c = b->now;
    size_t first = (size_t)task * TRIAD_TASK, end = MIN(first + TRIAD_TASK, b->n);
    for (size_t i = first; i < end; i++) {
        float r = (float)(i % 1021) * 1e-3f + 1e-3f;
        for (int a = 0; a < 3; a++) b->triad[a][i] = r;
        tensor_set_f32(b->arrays[0], c->master ? DTYPE_F32 : c->p, i, r);
        tensor_set_f32(b->arrays[3], c->g, i, 0.1f * r);
        if (c->master) tensor_set_f32(b->small, c->p, i, r);
        if (c->states == DTYPE_I8) {
            ((uint8_t *)b->arrays[1])[i] = (uint8_t)i;
            ((uint8_t *)b->arrays[2])[i] = (uint8_t)(i * 7);
            b->scales[0][i / STATE_BLOCK] = b->scales[1][i / STATE_BLOCK] = 1e-6f;
        } else {
            tensor_set_f32(b->arrays[1], c->states, i, 0.01f * r);
            tensor_set_f32(b->arrays[2], c->states, i, 1e-4f * r);
        }
    }
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

SAME_PLACE(ADAMW_G, ACCUMULATE_X, GRAD_SUMSQ_G);

static void measure(bench *b, const op_case *c) {
    b->now = c;
    b->device->parallel(b->context, fill_task, b, (int64_t)((b->n + TRIAD_TASK - 1) / TRIAD_TASK));
    program p;
    program_init(&p);
    op *o = program_emit(&p, c->kind, SECTION_UPDATE);
    o->attr = (op_attr){.eps = 1e-8f, .beta1 = 0.9f, .beta2 = 0.95f, .weight_decay = 0.1f, .noise_key = 7};
    float clip[CLIP_COUNT] = {[CLIP_FACTOR] = 0.5f};
    step_scalars s = {.lr = 1e-6f, .bias1 = 0.19f, .bias2 = 0.0975f, .step = 2, .micro = c->first ? 0 : 1};
    kernel_call call = {.program = &p, .op = o};
    shape flat = SHAPE((int64_t)b->n), norm_blocks = SHAPE((int64_t)((b->n + NORM_BLOCK - 1) / NORM_BLOCK)),
          state_blocks = SHAPE((int64_t)((b->n + STATE_BLOCK - 1) / STATE_BLOCK));
    op_in(o, ADAMW_G, program_persistent(&p, "g", c->g, flat, ROLE_GRAD));
    call.in[ADAMW_G] = b->arrays[3];
    if (c->kind == OP_ADAMW) {
        op_in(o, ADAMW_CLIP, program_persistent(&p, "clip", DTYPE_F32, SHAPE(CLIP_COUNT), ROLE_WORK));
        op_in(o, ADAMW_SCALARS, program_persistent(&p, "scalars", DTYPE_U8, SHAPE(sizeof s), ROLE_INPUT));
        op_out(o, ADAMW_P, program_persistent(&p, "p", c->p, flat, ROLE_PARAM));
        if (c->master) op_out(o, ADAMW_MASTER, program_persistent(&p, "master", DTYPE_F32, flat, ROLE_STATE));
        op_out(o, ADAMW_M, program_persistent(&p, "m", c->states, flat, ROLE_STATE));
        op_out(o, ADAMW_V, program_persistent(&p, "v", c->states == DTYPE_I8 ? DTYPE_U8 : c->states, flat, ROLE_STATE));
        call.in[ADAMW_CLIP] = clip, call.in[ADAMW_SCALARS] = &s;
        call.out[ADAMW_P] = c->master ? (void *)b->small : b->arrays[0];
        call.out[ADAMW_MASTER] = c->master ? b->arrays[0] : NULL;
        call.out[ADAMW_M] = b->arrays[1], call.out[ADAMW_V] = b->arrays[2];
        if (c->states == DTYPE_I8) {
            op_out(o, ADAMW_M_SCALE, program_persistent(&p, "m_scale", DTYPE_F32, state_blocks, ROLE_STATE));
            op_out(o, ADAMW_V_SCALE, program_persistent(&p, "v_scale", DTYPE_F32, state_blocks, ROLE_STATE));
            call.out[ADAMW_M_SCALE] = b->scales[0], call.out[ADAMW_V_SCALE] = b->scales[1];
        }
    } else if (c->kind == OP_ACCUMULATE) {
        op_in(o, ACCUMULATE_SCALARS, program_persistent(&p, "scalars", DTYPE_U8, SHAPE(sizeof s), ROLE_INPUT));
        op_out(o, ACCUMULATE_ACC, program_persistent(&p, "acc", c->p, flat, ROLE_GRAD));
        call.in[ACCUMULATE_SCALARS] = &s, call.out[ACCUMULATE_ACC] = b->arrays[0];
    } else {
        op_out(o, GRAD_SUMSQ_PARTIALS, program_persistent(&p, "partials", DTYPE_F64, norm_blocks, ROLE_WORK));
        call.out[GRAD_SUMSQ_PARTIALS] = b->partials;
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
    size_t array_bytes = (b.n * sizeof(float) + 4095) / 4096 * 4096, n_blocks = (b.n + STATE_BLOCK - 1) / STATE_BLOCK;
    size_t scale_bytes = (n_blocks * sizeof(float) + 4095) / 4096 * 4096, n_bytes = 8 * array_bytes + 3 * scale_bytes;
    char *memory;
    if (b.device->memory_open(b.context, TIER_DEVICE, n_bytes, (void **)&memory) != OK) {
        error_print(stderr);
        return 3;
    }
    for (int i = 0; i < 4; i++) b.arrays[i] = (float *)(memory + (size_t)i * array_bytes);
    for (int i = 0; i < 3; i++) b.triad[i] = (float *)(memory + (size_t)(4 + i) * array_bytes);
    b.small = (uint16_t *)(memory + 7 * array_bytes);
    for (int i = 0; i < 2; i++) b.scales[i] = (float *)(memory + 8 * array_bytes + (size_t)i * scale_bytes);
    b.partials = (double *)(memory + 8 * array_bytes + 2 * scale_bytes); /* fewer than the scales */
    printf("%zu elements, %d threads, %d rounds\n", b.n, b.n_threads, b.rounds);
    for (size_t i = 0; i < ARRAY_LENGTH(CASES); i++) measure(&b, &CASES[i]);
    b.device->memory_close(b.context, TIER_DEVICE, memory, n_bytes);
    b.device->close(b.context);
    if (b.json) fclose(b.json);
    return 0;
}
