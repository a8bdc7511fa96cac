/* bench_heads.c - norm of q and k heads with rope behind it: the fused op against the pair, forward and backward.
 *
 * Both take turns on the same operands, larger than the caches; the best of each is kept. GB/s counts what the fused op
 * must move. The pair rotates in place, as layout lets it. */
#include "roofline.h"

typedef struct heads_case {
    int64_t n_tokens;
    int n_heads, n_kv_heads, head_dim;
    dtype type;
} heads_case;

typedef struct bench_op {
    op op;
    kernel_call call;
} bench_op;

static void *aligned_memory(size_t n_bytes) { /* as a plan places values */
    void *p = aligned_alloc(64, (n_bytes + 64) / 64 * 64);
    if (!p) abort();
    return memset(p, 0, n_bytes);
}

static void *buffer(program *p, value_id v) {
    const value *a = program_get(p, v);
    size_t n = (size_t)shape_count(&a->shape);
    char *data = aligned_memory(n * dtype_bytes(a->type));
    if (a->type == DTYPE_I32) return data; /* doc_start: every row is one document */
    float *noise = mem_alloc(n * sizeof *noise);
    rng_normal_fill(1, 0, noise, n, 0, 1);
    tensor_convert(data, a->type, noise, DTYPE_F32, n);
    free(noise);
    return data;
}

enum { QKV, GQ, GK, TABLE, DOC, RSTD, BETWEEN, Y, DY, DQKV, DGQ, DGK, N_VALUES };

static bench_op make(roofline *r, program *p, op_kind k, const op_attr *a, const value_id *v, void **data,
                     const int *in, const int *out) {
    bench_op b = {.op = {.kind = k, .attr = *a}};
    for (int i = 0; i < op_input_count(k); i++) b.op.in[i] = v[in[i]], b.call.in[i] = data[in[i]];
    for (int i = 0; i < op_output_count(k); i++) b.op.out[i] = v[out[i]], b.call.out[i] = data[out[i]];
    b.call.program = p;
    b.call.work = aligned_memory(r->device->work_bytes(p, &b.op, r->n_threads));
    return b;
}

static double run(roofline *r, bench_op *ops, int n) {
    double start = clock_s();
    for (int i = 0; i < n; i++) {
        ops[i].call.op = &ops[i].op;
        r->device->kernels[ops[i].op.kind](r->context, &ops[i].call);
    }
    return clock_s() - start;
}

/* Forward and backward: norm and rotation one after the other, and in one. */
static void make_ops(roofline *r, program *p, const op_attr *a, const value_id *v, void **data, bench_op pair[2][2],
                     bench_op fused[2]) {
    op_attr back = *a;
    back.inverse = true;
    pair[0][0] = make(r, p, OP_QK_NORM, a, v, data, (int[]){[QK_NORM_QKV] = QKV, [QK_NORM_GQ] = GQ, [QK_NORM_GK] = GK},
                      (int[]){[QK_NORM_Y] = BETWEEN, [QK_NORM_RSTD] = RSTD});
    pair[0][1] =
        make(r, p, OP_ROPE, a, v, data, (int[]){[ROPE_QKV] = BETWEEN, [ROPE_TABLE] = TABLE, [ROPE_DOC_START] = DOC},
             (int[]){[ROPE_Y] = BETWEEN});
    fused[0] = make(r, p, OP_QK_NORM_ROPE, a, v, data,
                    (int[]){[QK_NORM_ROPE_QKV] = QKV,
                            [QK_NORM_ROPE_GQ] = GQ,
                            [QK_NORM_ROPE_GK] = GK,
                            [QK_NORM_ROPE_TABLE] = TABLE,
                            [QK_NORM_ROPE_DOC_START] = DOC},
                    (int[]){[QK_NORM_ROPE_Y] = Y, [QK_NORM_ROPE_RSTD] = RSTD});
    pair[1][0] = make(r, p, OP_ROPE, &back, v, data,
                      (int[]){[ROPE_QKV] = DY, [ROPE_TABLE] = TABLE, [ROPE_DOC_START] = DOC}, (int[]){[ROPE_Y] = DY});
    pair[1][1] = make(r, p, OP_QK_NORM_BWD, a, v, data,
                      (int[]){[QK_NORM_BWD_QKV] = QKV,
                              [QK_NORM_BWD_GQ] = GQ,
                              [QK_NORM_BWD_GK] = GK,
                              [QK_NORM_BWD_RSTD] = RSTD,
                              [QK_NORM_BWD_DY] = DY},
                      (int[]){[QK_NORM_BWD_DQKV] = DQKV, [QK_NORM_BWD_DGQ] = DGQ, [QK_NORM_BWD_DGK] = DGK});
    fused[1] =
        make(r, p, OP_QK_NORM_ROPE_BWD, a, v, data,
             (int[]){[QK_NORM_ROPE_BWD_QKV] = QKV,
                     [QK_NORM_ROPE_BWD_GQ] = GQ,
                     [QK_NORM_ROPE_BWD_GK] = GK,
                     [QK_NORM_ROPE_BWD_TABLE] = TABLE,
                     [QK_NORM_ROPE_BWD_DOC_START] = DOC,
                     [QK_NORM_ROPE_BWD_RSTD] = RSTD,
                     [QK_NORM_ROPE_BWD_DY] = DY},
             (int[]){[QK_NORM_ROPE_BWD_DQKV] = DQKV, [QK_NORM_ROPE_BWD_DGQ] = DGQ, [QK_NORM_ROPE_BWD_DGK] = DGK});
}

static void measure(roofline *r, const heads_case *c) {
    program p;
    program_init(&p);
    int64_t N = c->n_tokens, D = c->head_dim, Q = (c->n_heads + 2 * c->n_kv_heads) * D, T = MIN(N, (int64_t)1024);
    int64_t normed = c->n_heads + c->n_kv_heads;
    op_attr a = {.batch = N / T,
                 .seq_len = T,
                 .n_heads = c->n_heads,
                 .n_kv_heads = c->n_kv_heads,
                 .head_dim = c->head_dim,
                 .eps = 1e-6f};
    const shape rows = SHAPE(N, Q), gain = SHAPE(D);
    const struct {
        dtype type;
        shape shape;
    } kinds[N_VALUES] = {[QKV] = {c->type, rows},       [GQ] = {c->type, gain},
                         [GK] = {c->type, gain},        [TABLE] = {DTYPE_F32, SHAPE(T, D)},
                         [DOC] = {DTYPE_I32, SHAPE(N)}, [RSTD] = {DTYPE_F32, SHAPE(N, normed)},
                         [BETWEEN] = {c->type, rows},   [Y] = {c->type, rows},
                         [DY] = {c->type, rows},        [DQKV] = {c->type, rows},
                         [DGQ] = {DTYPE_F32, gain},     [DGK] = {DTYPE_F32, gain}};
    value_id v[N_VALUES];
    void *data[N_VALUES];
    for (int i = 0; i < N_VALUES; i++) {
        char name[8];
        snprintf(name, sizeof name, "%d", i);
        v[i] = program_value(&p, name, kinds[i].type, kinds[i].shape, ROLE_ACTIVATION, SECTION_MICRO);
        data[i] = buffer(&p, v[i]);
    }
    bench_op pair[2][2], fused[2];
    make_ops(r, &p, &a, v, data, pair, fused);
    for (int backward = 0; backward < 2; backward++) {
        double best[2] = {1e9, 1e9}, bytes = op_bytes(&p, &fused[backward].op);
        for (int round = 0; round < r->rounds; round++) {
            best[0] = MIN(best[0], run(r, pair[backward], 2));
            best[1] = MIN(best[1], run(r, &fused[backward], 1));
        }
        const char *way = backward ? "backward" : "forward";
        printf("%5d tokens  %2d + %d heads of %3d %-4s  %-8s  pair %8.3f ms  fused %8.3f ms  %6.1f GB/s  %5.2fx\n",
               (int)N, c->n_heads, c->n_kv_heads, c->head_dim, dtype_name(c->type), way, 1e3 * best[0], 1e3 * best[1],
               bytes / best[1] / 1e9, best[0] / best[1]);
        if (r->json)
            fprintf(r->json,
                    "{\"tokens\": %d, \"heads\": %d, \"kv_heads\": %d, \"head_dim\": %d, \"type\": \"%s\", \"way\": "
                    "\"%s\", "
                    "\"pair_ms\": %.4f, \"fused_ms\": %.4f}\n",
                    (int)N, c->n_heads, c->n_kv_heads, c->head_dim, dtype_name(c->type), way, 1e3 * best[0],
                    1e3 * best[1]);
        for (int i = 0; i < 2; i++) free(pair[backward][i].call.work);
        free(fused[backward].call.work);
    }
    for (int i = 0; i < N_VALUES; i++) free(data[i]);
    program_fini(&p);
}

int main(int argc, char **argv) {
    static const heads_case CASES[] = {{4096, 16, 8, 128, DTYPE_BF16},
                                       {4096, 16, 8, 128, DTYPE_F32},
                                       {4096, 16, 8, 128, DTYPE_F16},
                                       {4096, 4, 2, 32, DTYPE_BF16}};
    roofline r;
    if (!roofline_open(&r, argc, argv)) return 2;
    printf("heads: norm and rope, %d threads\n", r.n_threads);
    for (size_t i = 0; i < ARRAY_LENGTH(CASES); i++) measure(&r, &CASES[i]);
    roofline_close(&r);
    return 0;
}
