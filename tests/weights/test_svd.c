/* test_svd.c - the first singular triples of matrices whose triples are known, on both ways of computing them, with the same bits for
 * any number of threads. */
#include "must.h"
#include "weights/svd.h"

#include <math.h>
#include <stdlib.h>

enum { RANK = 5 };

/* Number k of an orthonormal basis of n: cosines, as of the DCT. */
static double basis(int64_t k, int64_t i, int64_t n) {
    double pi = acos(-1);
    return k == 0 ? sqrt(1.0 / (double)n) : sqrt(2.0 / (double)n) * cos(pi * ((double)i + 0.5) * (double)k / (double)n);
}

/* W = sum of s_k u_k v_k. */
static float *make_matrix(int64_t n, int64_t m, const double *s, int64_t n_values) {
    float *w = mem_alloc((size_t)(n * m) * sizeof *w);
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < m; c++) {
            double sum = 0;
            for (int64_t k = 0; k < n_values; k++) sum += s[k] * basis(k + 1, i, n) * basis(k, c, m);
            w[i * m + c] = (float)sum;
        }
    return w;
}

typedef struct triples {
    double *u, s[RANK], *v;
} triples;

static triples run(const float *w, int64_t n, int64_t m, int n_threads) {
    pool *threads;
    triples t = {.u = mem_alloc((size_t)(n * RANK) * sizeof(double)),
                 .v = mem_alloc((size_t)(RANK * m) * sizeof(double))};
    must(pool_open(&threads, n_threads, false));
    svd_first(threads, w, n, m, RANK, t.u, t.s, t.v);
    pool_close(threads);
    return t;
}

static void triples_free(triples *t) {
    free(t->u);
    free(t->v);
}

/* fp32 rounds the numbers of W, by 6e-8 of the largest: singular values move by the norm of that, 1e-6 of the first one with room for
 * the sizes here. */
static void check(int64_t n, int64_t m, const double *s, int64_t n_values) {
    float *w = make_matrix(n, m, s, n_values);
    triples t = run(w, n, m, 2), one = run(w, n, m, 1), three = run(w, n, m, 3);
    assert_memory_equal(t.u, one.u, (size_t)(n * RANK) * sizeof(double));
    assert_memory_equal(t.v, three.v, (size_t)(RANK * m) * sizeof(double));
    assert_memory_equal(t.s, one.s, sizeof t.s);
    assert_memory_equal(t.s, three.s, sizeof t.s);
    for (int k = 0; k < RANK; k++) {
        double want = k < n_values ? s[k] : 0;
        if (fabs(t.s[k] - want) > 2e-6 * s[0] + 1e-12)
            fail_msg("(%lld, %lld), value %d: %.9g, expected %.9g", (long long)n, (long long)m, k, t.s[k], want);
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < m; c++) { /* signs go in pairs: compare the products */
            double got = 0, want = 0;
            for (int k = 0; k < RANK; k++) {
                got += t.u[i * RANK + k] * t.s[k] * t.v[k * m + c];
                want += k < n_values ? s[k] * basis(k + 1, i, n) * basis(k, c, m) : 0;
            }
            assert_true(fabs(got - want) <= 5e-6 * s[0]);
        }
    triples_free(&t);
    triples_free(&one);
    triples_free(&three);
    free(w);
}

static void triples_of_small_matrices_are_exact(void **state) {
    static const double s[] = {9, 7, 6.5, 3, 2.5, 1, 0.5, 0.1};
    check(24, 16, s, 8);
    check(13, 40, s, 8);
    check(200, 257, s, 8);
}

static void triples_of_large_matrices_are_found(void **state) {
    double s[40];
    for (int k = 0; k < 40; k++) s[k] = 10 * pow(0.85, k);
    check(300, 270, s, 40);
    check(270, 520, s, 40);
}

/* Fewer values than triples: the others are 0 and take nothing away. */
static void matrices_of_few_values_have_zeros(void **state) {
    static const double s[] = {4, 2};
    check(32, 20, s, 2);
    check(280, 300, s, 2);
    check(24, 24, (const double[]){0}, 0 + 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(triples_of_small_matrices_are_exact),
                                       cmocka_unit_test(triples_of_large_matrices_are_found),
                                       cmocka_unit_test(matrices_of_few_values_have_zeros)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
