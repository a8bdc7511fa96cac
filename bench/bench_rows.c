/* bench_rows.c - products with few rows, as a decode step has them: gemm_rows_run, over
 * weights as they are and in the order of lanes, against gemm_run on the same operands.
 *
 * The weights of several layers are walked in turn, so that they come from memory as in a real step and not from the
 * cache. They take turns; the best of each is kept. GB/s counts the weights once.
 * RALO_GEMM_KERNEL=neon measures a kernel that this machine would not choose. */
#include "roofline.h"

typedef struct rows_case {
    int64_t n, k;
    dtype type;
} rows_case;

enum { COPIES_BYTES = 256 << 20 };
enum { BY_GEMM, BY_ROWS, BY_LANES, WAYS };

static void measure(roofline *r, const rows_case *c, int64_t m) {
    size_t width = dtype_bytes(c->type), one = (size_t)(c->n * c->k) * width;
    size_t copies = MAX((size_t)COPIES_BYTES / one, (size_t)2);
    char *weights = mem_alloc(one * copies), *x = mem_alloc((size_t)(m * c->k) * width);
    char *y = mem_alloc((size_t)(m * c->n) * width);
    float *noise = mem_alloc((size_t)MAX(c->n, m) * (size_t)c->k * sizeof(float));
    rng_normal_fill(1, 0, noise, (size_t)(MAX(c->n, m) * c->k), 0, 1);
    tensor_convert(x, c->type, noise, DTYPE_F32, (size_t)(m * c->k));
    for (size_t i = 0; i < copies; i++)
        tensor_convert(weights + i * one, c->type, noise, DTYPE_F32, (size_t)(c->n * c->k));
    size_t n_work = MAX(gemm_work_bytes(m, c->n, c->k, c->type, c->type, r->n_threads),
                        gemm_rows_work_bytes(m, c->n, c->k, c->type, true, r->n_threads));
    char *work = mem_alloc(n_work + 64);
    void *aligned = (void *)(((uintptr_t)work + 63) / 64 * 64);
    double best[WAYS] = {1e9, 1e9, 1e9};
    /* Each half of the copies has its order. */
    size_t half = copies / 2;
    for (size_t i = half; i < copies; i++) gemm_lanes_order(r->context, weights + i * one, c->type, c->n, c->k);
    for (int round = 0; round < r->rounds; round++)
        for (int which = 0; which < WAYS; which++) {
            size_t first = which == BY_LANES ? half : 0, end = which == BY_LANES ? copies : half;
            double start = clock_s();
            for (size_t i = first; i < end; i++) {
                gemm_call g = {.m = m,
                               .n = c->n,
                               .k = c->k,
                               .a = {x, c->type, c->k, 1},
                               .b = {weights + i * one, c->type, 1, c->k},
                               .lanes = which == BY_LANES,
                               .c = y,
                               .c_type = c->type,
                               .ldc = c->n};
                if (which != BY_GEMM) gemm_rows_run(r->context, &g, aligned);
                else gemm_run(r->context, &g, aligned);
            }
            best[which] = MIN(best[which], (clock_s() - start) / (double)(end - first));
        }
    printf("rows %4d  %5d x %5d %-4s  gemm %8.3f ms  rows %8.3f ms  %6.1f GB/s  %5.2fx  lanes %8.3f ms  %6.1f GB/s  "
           "%5.2fx\n",
           (int)m, (int)c->n, (int)c->k, dtype_name(c->type), 1e3 * best[BY_GEMM], 1e3 * best[BY_ROWS],
           (double)one / best[BY_ROWS] / 1e9, best[BY_GEMM] / best[BY_ROWS], 1e3 * best[BY_LANES],
           (double)one / best[BY_LANES] / 1e9, best[BY_GEMM] / best[BY_LANES]);
    if (r->json)
        fprintf(r->json,
                "{\"rows\": %d, \"n\": %d, \"k\": %d, \"type\": \"%s\", \"gemm_ms\": %.4f, \"rows_ms\": %.4f, "
                "\"lanes_ms\": %.4f}\n",
                (int)m, (int)c->n, (int)c->k, dtype_name(c->type), 1e3 * best[BY_GEMM], 1e3 * best[BY_ROWS],
                1e3 * best[BY_LANES]);
    free(weights);
    free(x);
    free(y);
    free(noise);
    free(work);
}

int main(int argc, char **argv) {
    static const rows_case CASES[] = {
        {1024, 192, DTYPE_F32},   {2304, 768, DTYPE_F32},  {768, 3072, DTYPE_F32},
        {4096, 4096, DTYPE_BF16}, {2304, 768, DTYPE_BF16}, {2304, 768, DTYPE_F16},
    };
    static const int64_t ROWS[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 64};
    roofline r;
    if (!roofline_open(&r, argc, argv)) return 2;
    if (getenv("RALO_GEMM_KERNEL") && !gemm_force_kernel(getenv("RALO_GEMM_KERNEL"))) return 2;
    printf("few rows: fp32 by %s, bf16 by %s, %d threads\n", gemm_kernel_name(DTYPE_F32), gemm_kernel_name(DTYPE_BF16),
           r.n_threads);
    for (size_t i = 0; i < ARRAY_LENGTH(CASES); i++)
        for (size_t k = 0; k < ARRAY_LENGTH(ROWS); k++) measure(&r, &CASES[i], ROWS[k]);
    roofline_close(&r);
    return 0;
}
