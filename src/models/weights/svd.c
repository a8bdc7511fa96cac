/* svd.c - subspace iteration, then one-sided Jacobi on what W has in that subspace.
 *
 * Vectors are stored one after the other. The products with W are cut into tasks by rows or columns of W, and every number is made
 * by one task in a fixed order. The rest works on a few vectors: one thread. */
#include "weights/svd.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { EXTRA = 10, ROW_TASK = 32, COLUMN_TASK = 256, LANES = 8, SWEEPS_MOST = 60 };

typedef struct job {
    const float *w;
    int64_t n, m, l; /* l vectors */
    const double *in;
    double *out;
} job;

static double dot_row(const float *a, const double *b, int64_t n) {
    double lanes[LANES] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++) lanes[k] += (double)a[i + k] * b[i + k];
    for (int k = 0; k < LANES; k++) sum += lanes[k];
    for (; i < n; i++) sum += (double)a[i] * b[i];
    return sum;
}

static double dot(const double *a, const double *b, int64_t n) {
    double lanes[LANES] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++) lanes[k] += a[i + k] * b[i + k];
    for (int k = 0; k < LANES; k++) sum += lanes[k];
    for (; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* out = W in: in (l, m), out (l, n). */
static void times_task(void *context, int64_t task, int thread) {
    (void)thread;
    const job *j = context;
    for (int64_t i = task * ROW_TASK; i < MIN((task + 1) * ROW_TASK, j->n); i++)
        for (int64_t k = 0; k < j->l; k++) j->out[k * j->n + i] = dot_row(j->w + i * j->m, j->in + k * j->m, j->m);
}

/* out = W^T in: in (l, n), out (l, m). */
static void transposed_task(void *context, int64_t task, int thread) {
    (void)thread;
    const job *j = context;
    int64_t first = task * COLUMN_TASK, columns = MIN(j->m - first, (int64_t)COLUMN_TASK);
    for (int64_t k = 0; k < j->l; k++) {
        double sums[COLUMN_TASK] = {0};
        for (int64_t i = 0; i < j->n; i++) {
            const float *row = j->w + i * j->m + first;
            const double x = j->in[k * j->n + i];
            for (int64_t c = 0; c < columns; c++) sums[c] += x * (double)row[c];
        }
        memcpy(j->out + k * j->m + first, sums, (size_t)columns * sizeof *sums);
    }
}

static void times(pool *threads, job j, const double *in, double *out) {
    j.in = in, j.out = out;
    pool_run(threads, times_task, &j, divide_up(j.n, ROW_TASK));
}

static void times_transposed(pool *threads, job j, const double *in, double *out) {
    j.in = in, j.out = out;
    pool_run(threads, transposed_task, &j, divide_up(j.m, COLUMN_TASK));
}

static void add_scaled(double *y, double a, const double *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] += a * x[i];
}

/* l orthonormal vectors of n numbers with the same span; one that depends on those before it becomes 0. Twice: the first pass
 * leaves rounding of the size of what it took away. */
static void orthonormalize(double *y, int64_t l, int64_t n) {
    for (int64_t k = 0; k < l; k++) {
        double *own = y + k * n, before = sqrt(dot(own, own, n));
        for (int pass = 0; pass < 2; pass++)
            for (int64_t i = 0; i < k; i++) add_scaled(own, -dot(y + i * n, own, n), y + i * n, n);
        double norm = sqrt(dot(own, own, n)), scale = norm > 1e-12 * before && norm > 0 ? 1 / norm : 0;
        for (int64_t i = 0; i < n; i++) own[i] *= scale;
    }
}

static void rotate(double *a, double *b, int64_t n, double c, double s) {
    for (int64_t i = 0; i < n; i++) {
        double x = a[i], y = b[i];
        a[i] = c * x - s * y;
        b[i] = s * x + c * y;
    }
}

/* Rotates pairs of the vectors g (l, m) until all are orthogonal; q (l, n) turns with them. */
static void jacobi(double *g, int64_t l, int64_t m, double *q, int64_t n) {
    bool turned = true;
    for (int sweep = 0; sweep < SWEEPS_MOST && turned; sweep++) {
        turned = false;
        for (int64_t i = 0; i < l; i++)
            for (int64_t k = i + 1; k < l; k++) {
                double *a = g + i * m, *b = g + k * m;
                double aa = dot(a, a, m), bb = dot(b, b, m), ab = dot(a, b, m);
                if (fabs(ab) <= 1e-15 * sqrt(aa * bb)) continue;
                double zeta = (bb - aa) / (2 * ab);
                double t = (zeta < 0 ? -1 : 1) / (fabs(zeta) + sqrt(1 + zeta * zeta)), c = 1 / sqrt(1 + t * t);
                rotate(a, b, m, c, c * t);
                rotate(q + i * n, q + k * n, n, c, c * t);
                turned = true;
            }
    }
}

/* The vector with the largest norm that was not taken yet. */
static int64_t take_largest(double *norms, int64_t l) {
    int64_t best = 0;
    for (int64_t k = 1; k < l; k++)
        if (norms[k] > norms[best]) best = k;
    return best;
}

static void write_triple(const job *j, const double *q, const double *g, double norm, int64_t rank, int64_t k,
                         double *u, double *s, double *v) {
    double sign = 1, most = 0;
    for (int64_t c = 0; c < j->m; c++)
        if (fabs(g[c]) > most) most = fabs(g[c]), sign = g[c] < 0 ? -1 : 1;
    s[k] = norm;
    for (int64_t c = 0; c < j->m; c++) v[k * j->m + c] = norm > 0 ? sign * g[c] / norm : 0;
    for (int64_t i = 0; i < j->n; i++) u[i * rank + k] = sign * q[i];
}

void svd_first(pool *threads, const float *w, int64_t n, int64_t m, int64_t rank, double *u, double *s, double *v) {
    int64_t side = MIN(n, m);
    bool exact = side <= SVD_EXACT_MOST;
    job j = {.w = w, .n = n, .m = m, .l = exact ? side : MIN(side, rank + EXTRA)};
    ASSERT(rank <= j.l);
    double *g = mem_alloc((size_t)(j.l * m) * sizeof *g), *q = mem_alloc((size_t)(j.l * n) * sizeof *q);
    double *norms = mem_alloc((size_t)j.l * sizeof *norms);
    uint64_t key = rng_key(0, "svd");
    for (int64_t i = 0; i < j.l * m; i++) g[i] = rng_uniform(key, (uint64_t)i) - 0.5;
    times(threads, j, g, q);
    orthonormalize(q, j.l, n);
    for (int k = 0; k < SVD_ITERATIONS && !exact; k++) {
        times_transposed(threads, j, q, g);
        orthonormalize(g, j.l, m);
        times(threads, j, g, q);
        orthonormalize(q, j.l, n);
    }
    times_transposed(threads, j, q, g); /* W ~ q^T g */
    jacobi(g, j.l, m, q, n);
    for (int64_t k = 0; k < j.l; k++) norms[k] = sqrt(dot(g + k * m, g + k * m, m));
    for (int64_t k = 0; k < rank; k++) {
        int64_t best = take_largest(norms, j.l);
        write_triple(&j, q + best * n, g + best * m, norms[best], rank, k, u, s, v);
        norms[best] = -1;
    }
    free(g);
    free(q);
    free(norms);
}
