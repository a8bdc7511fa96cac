#pragma once
/* norm.h - rows of norms, and sums over all rows, for the files that norm rows and heads.
 *
 * A gradient that is a sum over rows goes through `work`: block b of the rows leaves a line of fp32 sums there, then
 * cpu_finish_sums adds the lines in order, in double, and rounds once. */
#include "backend/cpu/typed.h"

#include "backend/cpu/cpu.h"
#include <math.h>

enum { NORM_TASK_ELEMENTS = 32768 }; /* of the rows that one task norms */

int64_t cpu_sum_block_rows(int64_t n_rows); /* rows of one block */
int64_t cpu_sum_block_count(int64_t n_rows);
size_t cpu_sums_work_bytes(const program *p, const op *o, int n_threads); /* of the lines of all blocks */
/* Adds the columns of all lines, starting at `column`, into one output; nothing where it is absent. */
void cpu_finish_sums(backend_context *c, const kernel_call *k, int output, int64_t n_blocks, int64_t line,
                     int64_t column);

/* sum of (x - center), or of its squares: four sums of VEC_WIDTH lanes, because one would wait for its own latency. */
VEC_INLINE float row_moment(dtype t, const void *x, size_t n, float center, bool squared) {
    vec sum[4] = {{0}};
    size_t i = 0;
    for (; i + 4 * VEC_WIDTH <= n; i += 4 * VEC_WIDTH)
        for (size_t u = 0; u < 4; u++) {
            vec d = typed_load(x, t, i + u * VEC_WIDTH, VEC_WIDTH) - center;
            sum[u] = squared ? vec_fma(d, d, sum[u]) : sum[u] + d;
        }
    for (; i + VEC_WIDTH <= n; i += VEC_WIDTH) {
        vec d = typed_load(x, t, i, VEC_WIDTH) - center;
        sum[0] = squared ? vec_fma(d, d, sum[0]) : sum[0] + d;
    }
    float total = vec_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
    float end[VEC_WIDTH];
    vec_store(end, typed_load(x, t, i, n - i) - center);
    for (size_t e = 0; e < n - i; e++) total += squared ? end[e] * end[e] : end[e];
    return total;
}

/* Gains are gamma + offset. */
VEC_INLINE void rmsnorm_row(dtype t, void *y, const void *x, const void *gamma, float offset, size_t n, float eps,
                            float *rstd) {
    float r = 1.0f / sqrtf(row_moment(t, x, n, 0, true) / (float)n + eps);
    EACH_VEC(i, lanes, n, {
        typed_store(y, t, i, lanes, typed_load(x, t, i, lanes) * r * (typed_load(gamma, t, i, lanes) + offset));
    });
    *rstd = r;
}

typedef struct row_stats {
    float mean, rstd;
    bool centered; /* LayerNorm */
    float offset;  /* of the gains */
} row_stats;

/* dx =, dgamma +=, dbeta +=, each of the two unless it is NULL. dx may be dy or dres: the first pass only reads, the second
 * reads what it overwrites. */
VEC_INLINE void norm_bwd_row(dtype t, void *dx, float *dgamma, float *dbeta, const void *x, const void *gamma,
                             const void *dy, const void *dres, size_t n, row_stats s) {
    vec sum_a = {0}, sum_axh = {0};
    EACH_VEC(i, lanes, n, { /* lanes past the end hold dy = 0 and add nothing */
                            vec d = typed_load(dy, t, i, lanes), a = d * (typed_load(gamma, t, i, lanes) + s.offset);
                            vec xh = (typed_load(x, t, i, lanes) - s.mean) * s.rstd;
                            sum_axh = vec_fma(a, xh, sum_axh);
                            if (dgamma)
                                typed_store(dgamma, DTYPE_F32, i, lanes,
                                            vec_fma(d, xh, typed_load(dgamma, DTYPE_F32, i, lanes)));
                            if (s.centered) sum_a += a;
                            if (dbeta)
                                typed_store(dbeta, DTYPE_F32, i, lanes, d + typed_load(dbeta, DTYPE_F32, i, lanes));
    });
    float mean_a = s.centered ? vec_sum(sum_a) / (float)n : 0, mean_axh = vec_sum(sum_axh) / (float)n;
    EACH_VEC(i, lanes, n, {
        vec a = typed_load(dy, t, i, lanes) * (typed_load(gamma, t, i, lanes) + s.offset);
        vec xh = (typed_load(x, t, i, lanes) - s.mean) * s.rstd;
        vec d = s.rstd * vec_fma(xh, vec_set(-mean_axh), a - mean_a);
        if (dres) d += typed_load(dres, t, i, lanes);
        typed_store(dx, t, i, lanes, d);
    });
}
