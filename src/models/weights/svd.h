#pragma once
/* svd.h - private to weights: the first singular triples of a matrix.
 *
 * W (n, m) ~ u diag(s) v with u (n, rank), v (rank, m), s in descending order; computed in double, with the same bits for any
 * number of threads and on any machine. Exact where the smaller side has at most SVD_EXACT_MOST numbers; of larger matrices by
 * subspace iteration (SVD_ITERATIONS), whose triples are exact where the singular values fall off and as good a subspace where
 * they do not. Signs: the largest number of each row of v is positive. rank is at most the smaller side. */
#include "base/base.h"

enum { SVD_EXACT_MOST = 256, SVD_ITERATIONS = 16 };
void svd_first(pool *threads, const float *w, int64_t n, int64_t m, int64_t rank, double *u, double *s, double *v);
