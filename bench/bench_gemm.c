/* bench_gemm.c - GFLOP/s of every GEMM kernel this machine can run, beside one threaded OpenBLAS call.
 *
 * The layers of GPT-2 small with 1024 tokens (or --tokens N: few rows against a large weight), in the three directions
 * of training. The yardstick and the kernels take turns inside each round and the best round of each counts, so that a
 * machine that changes speed changes all of them: read the ratios, not the GFLOP/s.
 *
 *     bench_gemm [--threads N] [--rounds N] [--tokens N] [--kernel NAME] [--no-vocab] [--json FILE] */
#include "backend/cpu/gemm.h"
#include <cblas.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#define MAX_RUNS 32
#define TRY_S 0.03 /* of a kernel in a round: short ones run several times, since threads that slept start slowly */
#define ROUND_BUDGET_S 4.0 /* no new round of a shape after this; the vocabulary takes a second per GEMM */

typedef enum direction { FORWARD, BACKWARD_X, BACKWARD_W, DIRECTION_COUNT } direction;
static const char *const direction_names[] = {"y = x w^T", "dx = dy w", "dw = dy^T x"};

typedef struct layer {
    int64_t in, out;
} layer;
static int64_t n_tokens = 1024;
static const layer layers[] = {{768, 2304}, {768, 768}, {768, 3072}, {3072, 768}, {768, 50257}};

typedef struct runner { /* one line of the table */
    const char *kernel;
    dtype type;
    bool is_yardstick; /* OpenBLAS */
    double best_s;
} runner;

/* Huge pages, touched once: the benchmark is about the kernels, not about the first touch. */
static void *buffer_open(size_t n_bytes) {
    void *p = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        fprintf(stderr, "bench_gemm: cannot map %zu bytes\n", n_bytes);
        exit(1);
    }
    madvise(p, n_bytes, MADV_HUGEPAGE);
    memset(p, 0, n_bytes);
    return p;
}

static void fill(void *data, dtype type, int64_t n) {
    float block[4096];
    rng_normal_fill(7, 0, block, ARRAY_LENGTH(block), 0, 1);
    for (int64_t i = 0; i < n; i += (int64_t)ARRAY_LENGTH(block))
        tensor_convert((uint8_t *)data + (size_t)i * dtype_bytes(type), type, block, DTYPE_F32,
                       (size_t)MIN(n - i, (int64_t)ARRAY_LENGTH(block)));
}

static gemm_call call_make(layer l, direction d, dtype type, const void *a, const void *b, void *c) {
    gemm_call g = {.c = c, .c_type = type};
    switch (d) {
    case FORWARD:
        g.m = n_tokens, g.n = l.out, g.k = l.in;
        g.a = (gemm_operand){a, type, l.in, 1}, g.b = (gemm_operand){b, type, 1, l.in};
        break;
    case BACKWARD_X:
        g.m = n_tokens, g.n = l.in, g.k = l.out;
        g.a = (gemm_operand){a, type, l.out, 1}, g.b = (gemm_operand){b, type, l.in, 1};
        break;
    default:
        g.m = l.out, g.n = l.in, g.k = n_tokens;
        g.a = (gemm_operand){a, type, 1, l.out}, g.b = (gemm_operand){b, type, l.in, 1};
        g.c_type = DTYPE_F32;
    }
    g.ldc = g.n;
    return g;
}

static double openblas_threaded(const gemm_call *g, int n_threads) {
    openblas_set_num_threads(n_threads);
    bool a_plain = g->a.col_stride == 1, b_plain = g->b.col_stride == 1;
    double best = 1e30, begin = clock_s(), start;
    do {
        start = clock_s();
        cblas_sgemm(CblasRowMajor, a_plain ? CblasNoTrans : CblasTrans, b_plain ? CblasNoTrans : CblasTrans,
                    (blasint)g->m, (blasint)g->n, (blasint)g->k, 1.0f, g->a.data,
                    (blasint)(a_plain ? g->a.row_stride : g->a.col_stride), g->b.data,
                    (blasint)(b_plain ? g->b.row_stride : g->b.col_stride), 0.0f, g->c, (blasint)g->ldc);
        best = MIN(best, clock_s() - start);
    } while (clock_s() - begin < TRY_S);
    openblas_set_num_threads(1);
    /* Its threads go on asking for work for a while, on the cores that ours are about to use. */
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    return best;
}

/* Every kernel with every type it serves: a kernel that is forced for a type it lacks is not the one that runs. The
 * first is the yardstick. */
static int runners_list(runner *out, const char *only) {
    static const dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    int n = 0;
    out[n++] = (runner){.kernel = "OpenBLAS-mt", .type = DTYPE_F32, .is_yardstick = true};
    for (int i = 0; gemm_kernel_list(i); i++) {
        const char *name = gemm_kernel_list(i);
        if (only && strcmp(only, name) != 0) continue;
        if (!gemm_force_kernel(name)) {
            printf("%s: not on this machine\n", name);
            continue;
        }
        for (size_t t = 0; t < ARRAY_LENGTH(types); t++)
            if (strcmp(gemm_kernel_name(types[t]), name) == 0 && n < MAX_RUNS)
                out[n++] = (runner){.kernel = name, .type = types[t]};
    }
    gemm_force_kernel(NULL);
    return n;
}

typedef struct bench {
    backend_context context;
    int n_rounds, n_layers, n_runners;
    runner runners[MAX_RUNS];
    void *a, *b, *c;
    FILE *json;
} bench;

/* The product of one layer in one direction by one kernel, for TRY_S; its best time. */
static double kernel_threaded(bench *t, const runner *r, const gemm_call *g) {
    gemm_force_kernel(r->kernel);
    size_t n_work = gemm_work_bytes(g->m, g->n, g->k, r->type, g->c_type, t->context.n_threads);
    void *work = n_work ? buffer_open(n_work) : NULL;
    double best = 1e30, begin = clock_s(), start;
    do {
        start = clock_s();
        gemm_run(&t->context, g, work);
        best = MIN(best, clock_s() - start);
    } while (clock_s() - begin < TRY_S);
    if (work) munmap(work, n_work);
    gemm_force_kernel(NULL);
    return best;
}

static void measure(bench *t, layer l, direction d) {
    for (int i = 0; i < t->n_runners; i++) t->runners[i].best_s = 1e30;
    double start = clock_s();
    for (int round = 0; round < t->n_rounds && (round == 0 || clock_s() - start < ROUND_BUDGET_S); round++)
        for (int i = 0; i < t->n_runners; i++) {
            runner *r = &t->runners[i];
            gemm_call g = call_make(l, d, r->type, t->a, t->b, t->c);
            fill(t->a, r->type, g.m * g.k);
            fill(t->b, r->type, g.n * g.k);
            double s = r->is_yardstick ? openblas_threaded(&g, t->context.n_threads) : kernel_threaded(t, r, &g);
            r->best_s = MIN(r->best_s, s);
        }
}

static void report(const bench *t, layer l, direction d) {
    double flops = 2.0 * (double)n_tokens * (double)l.in * (double)l.out;
    char size[32];
    snprintf(size, sizeof size, "%lldx%lld", (long long)l.in, (long long)l.out);
    for (int i = 0; i < t->n_runners; i++) {
        const runner *r = &t->runners[i];
        gemm_call g = call_make(l, d, r->type, t->a, t->b, t->c);
        size_t n_work = 0;
        if (!r->is_yardstick) {
            gemm_force_kernel(r->kernel);
            n_work = gemm_work_bytes(g.m, g.n, g.k, r->type, g.c_type, t->context.n_threads);
            gemm_force_kernel(NULL);
        }
        double gflops = flops / r->best_s * 1e-9, ratio = t->runners[0].best_s / r->best_s;
        printf("%-12s %-12s %-12s %-6s %10.1f %7.3f %12zu\n", size, direction_names[d], r->kernel, dtype_name(r->type),
               gflops, ratio, n_work >> 10);
        if (t->json)
            fprintf(t->json,
                    "{\"layer\": \"%s\", \"direction\": \"%s\", \"m\": %lld, \"n\": %lld, \"k\": %lld, "
                    "\"kernel\": \"%s\", \"type\": \"%s\", \"threads\": %d, \"gflops\": %.2f, \"ratio\": %.4f, "
                    "\"scratch_bytes\": %zu}\n",
                    size, direction_names[d], (long long)g.m, (long long)g.n, (long long)g.k, r->kernel,
                    dtype_name(r->type), t->context.n_threads, gflops, ratio, n_work);
    }
    fflush(stdout);
}

int main(int argc, char **argv) {
    bench t = {.n_rounds = 5, .n_layers = ARRAY_LENGTH(layers)};
    int n_threads = 0;
    const char *json_path = NULL, *only = NULL;
    for (int i = 1; i < argc; i++) {
        const char *next = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--threads") == 0) n_threads = atoi(next), i++;
        else if (strcmp(argv[i], "--rounds") == 0) t.n_rounds = MAX(1, atoi(next)), i++;
        else if (strcmp(argv[i], "--tokens") == 0) n_tokens = MAX(1, atoi(next)), i++;
        else if (strcmp(argv[i], "--kernel") == 0) only = next, i++;
        else if (strcmp(argv[i], "--json") == 0) json_path = next, i++;
        else if (strcmp(argv[i], "--no-vocab") == 0) t.n_layers = ARRAY_LENGTH(layers) - 1;
        else {
            fprintf(stderr, "usage: bench_gemm [--threads N] [--rounds N] [--tokens N] [--kernel NAME] [--no-vocab] "
                            "[--json FILE]\n");
            return 2;
        }
    }
    if (json_path && !(t.json = fopen(json_path, "w"))) {
        fprintf(stderr, "bench_gemm: cannot write %s\n", json_path);
        return 2;
    }
    pool *threads;
    if (pool_open(&threads, n_threads, false) != OK) {
        error_print(stderr);
        return 1;
    }
    n_threads = pool_threads(threads);
    t.context = (backend_context){.threads = threads, .n_threads = n_threads};
    t.n_runners = runners_list(t.runners, only);
    printf(
        "%lld tokens, %d threads, best of %d rounds, ratio = GFLOP/s over one OpenBLAS call with %d threads (fp32)\n\n",
        (long long)n_tokens, n_threads, t.n_rounds, n_threads);
    printf("%-12s %-12s %-12s %-6s %10s %7s %12s\n", "in x out", "direction", "kernel", "type", "GFLOP/s", "ratio",
           "scratch KiB");

    const layer *largest = &layers[t.n_layers - 1];
    size_t n_most = (size_t)(MAX(largest->out, 4096) * MAX(largest->in, n_tokens)) * sizeof(float);
    t.a = buffer_open(n_most), t.b = buffer_open(n_most), t.c = buffer_open(n_most);
    for (int l = 0; l < t.n_layers; l++)
        for (int d = 0; d < DIRECTION_COUNT; d++) {
            measure(&t, layers[l], (direction)d);
            report(&t, layers[l], (direction)d);
        }
    munmap(t.a, n_most), munmap(t.b, n_most), munmap(t.c, n_most);
    if (t.json) fclose(t.json);
    pool_close(threads);
    return 0;
}
