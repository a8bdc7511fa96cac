/* gemm_openblas.c - fp32 GEMM: one single-threaded OpenBLAS call per tile of C.
 *
 * Our pool is the one level of threading, so OpenBLAS is held at one thread. Every call packs its own operands: tiles
 * are as large as possible while there are still enough of them, and near square, where packing is least. Their cut
 * depends on m and n only, so the bits do not depend on the number of threads.
 * OpenBLAS maps one buffer per thread that calls it, on that thread's first call, and keeps it; that memory is not in
 * our scratch. */
#include "backend/cpu/gemm_kernels.h"
#include <cblas.h>
#include <limits.h>
#include <pthread.h>

#define TILE_MAX 512
#define TILE_MIN 128
#define TILE_UNIT 32 /* whole register tiles of any OpenBLAS kernel */
#define TASKS_WANTED 16

static pthread_once_t once = PTHREAD_ONCE_INIT;
static void openblas_setup(void) { openblas_set_num_threads(1); }

typedef struct tiles {
    const gemm_call *g;
    int64_t rows, cols; /* of one tile */
    int64_t n_across;
} tiles;

/* n in equal pieces of at most `most`, each a multiple of TILE_UNIT. */
static int64_t even(int64_t n, int64_t most) {
    int64_t size = divide_up(n, divide_up(n, most));
    return round_up(size, TILE_UNIT);
}

static tiles tiles_cut(const gemm_call *g) {
    int64_t rows = TILE_MAX, cols = TILE_MAX;
    while (divide_up(g->m, even(g->m, rows)) * divide_up(g->n, even(g->n, cols)) < TASKS_WANTED) {
        if (even(g->m, rows) >= even(g->n, cols) && even(g->m, rows) > TILE_MIN) rows = even(g->m, rows) - TILE_UNIT;
        else if (even(g->n, cols) > TILE_MIN) cols = even(g->n, cols) - TILE_UNIT;
        else break;
    }
    tiles t = {g, even(g->m, rows), even(g->n, cols), 0};
    t.n_across = divide_up(g->n, t.cols);
    return t;
}

static void tile_task(void *context, int64_t task, int thread) {
    const tiles *t = context;
    const gemm_call *g = t->g;
    int64_t i = task / t->n_across * t->rows, j = task % t->n_across * t->cols;
    int64_t m = MIN(t->rows, g->m - i), n = MIN(t->cols, g->n - j);
    float *c = (float *)g->c + i * g->ldc + j;
    bool a_plain = g->a.col_stride == 1, b_plain = g->b.col_stride == 1;
    const float *a = (const float *)g->a.data + i * g->a.row_stride,
                *b = (const float *)g->b.data + j * g->b.col_stride;
    /* OpenBLAS clears C in a pass of its own before it adds into it; a bias written there instead costs nothing. */
    if (g->bias) {
        const uint8_t *from = (const uint8_t *)g->bias + (size_t)j * dtype_bytes(g->bias_type);
        for (int64_t y = 0; y < m; y++) {
            float *row = c + y * g->ldc;
            if (!g->accumulate) tensor_convert(row, DTYPE_F32, from, g->bias_type, (size_t)n);
            else
                for (int64_t x = 0; x < n; x++) row[x] += tensor_get_f32(from, g->bias_type, (size_t)x);
        }
    }
    if (g->add && g->add != g->c)
        for (int64_t y = 0; y < m; y++) {
            const float *from = (const float *)g->add + (i + y) * g->ld_add + j;
            memcpy(c + y * g->ldc, from, (size_t)n * sizeof *c);
        }
    /* A stride may be smaller than cblas allows only where there is a single row, and then it is never used. */
    cblas_sgemm(CblasRowMajor, a_plain ? CblasNoTrans : CblasTrans, b_plain ? CblasNoTrans : CblasTrans, (blasint)m,
                (blasint)n, (blasint)g->k, g->scale ? *g->scale : 1.0f, a,
                (blasint)(a_plain ? MAX(g->a.row_stride, g->k) : MAX(g->a.col_stride, m)), b,
                (blasint)(b_plain ? MAX(g->b.row_stride, n) : MAX(g->b.col_stride, g->k)),
                g->accumulate || g->bias || g->add ? 1.0f : 0.0f, c, (blasint)MAX(g->ldc, n));
}

void gemm_openblas_run(backend_context *c, const gemm_call *g) {
    ASSERT(g->c_type == DTYPE_F32);
    ASSERT(!g->add || (!g->bias && !g->accumulate && (g->add != g->c || g->ld_add == g->ldc)));
    ASSERT(g->k <= INT_MAX && g->ldc <= INT_MAX && MAX(g->a.row_stride, g->a.col_stride) <= INT_MAX &&
           MAX(g->b.row_stride, g->b.col_stride) <= INT_MAX);
    pthread_once(&once, openblas_setup);
    tiles t = tiles_cut(g);
    pool_run(c->threads, tile_task, &t, divide_up(g->m, t.rows) * t.n_across);
}
