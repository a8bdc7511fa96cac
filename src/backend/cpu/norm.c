/* norm.c - RMSNorm and LayerNorm over rows and over heads, their backward, and gradients that are sums over rows.
 *
 * Forward: one row at a time, statistics in fp32 over fixed lanes, 16-bit rows widened on the way. The ADD_ variants
 * store the rounded sum first and normalise what they stored, so recomputing the norm from the stored sum gives the
 * same bits. LayerNorm takes the variance around the mean in a second pass over the row, which is in L1 by then.
 *
 * Backward: dgamma, dbeta and bias gradients are sums over all rows. Rows are cut into at most MAX_BLOCKS blocks by
 * their number alone; each block sums its rows in order into its own line of `work`, then the lines are added in order
 * in double and rounded once. So the sum has one shape for any number of threads.
 *
 *     xh = (x - mean) rstd, a = dy gamma:   dx = rstd (a - [mean(a)] - xh mean(a xh)) + dres    [LayerNorm only] */
#include "backend/cpu/typed.h"

#include "backend/cpu/fp8.h"
#include <math.h>

enum { TASK_ELEMENTS = 32768, MAX_BLOCKS = 128, MIN_BLOCK_ROWS = 16, COLUMNS_PER_TASK = 256, BIAS_COLUMNS = 2048 };

static int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }
static void *at(const void *data, dtype t, int64_t element) { return (char *)data + (size_t)element * dtype_bytes(t); }

/* ---- rows ---------------------------------------------------------------------------------------------------- */

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

VEC_INLINE void rmsnorm_row(dtype t, void *y, const void *x, const void *gamma, size_t n, float eps, float *rstd) {
    float r = 1.0f / sqrtf(row_moment(t, x, n, 0, true) / (float)n + eps);
    EACH_VEC(i, lanes, n,
             { typed_store(y, t, i, lanes, typed_load(x, t, i, lanes) * r * typed_load(gamma, t, i, lanes)); });
    *rstd = r;
}

VEC_INLINE void layernorm_row(dtype t, void *y, const void *x, const void *gamma, const void *beta, size_t n, float eps,
                              float *mean, float *rstd) {
    float m = row_moment(t, x, n, 0, false) / (float)n;
    float r = 1.0f / sqrtf(row_moment(t, x, n, m, true) / (float)n + eps);
    EACH_VEC(i, lanes, n, {
        vec xh = (typed_load(x, t, i, lanes) - m) * r;
        typed_store(y, t, i, lanes, vec_fma(xh, typed_load(gamma, t, i, lanes), typed_load(beta, t, i, lanes)));
    });
    *mean = m;
    *rstd = r;
}

VEC_INLINE void add_row(dtype t, void *s, const void *a, const void *b, size_t n) {
    EACH_VEC(i, lanes, n, { typed_store(s, t, i, lanes, typed_load(a, t, i, lanes) + typed_load(b, t, i, lanes)); });
}

typedef struct row_stats {
    float mean, rstd;
    bool centered; /* LayerNorm */
} row_stats;

/* dx =, dgamma +=, dbeta +=. dx may be dy or dres: the first pass only reads, the second reads what it overwrites. */
VEC_INLINE void norm_bwd_row(dtype t, void *dx, float *dgamma, float *dbeta, const void *x, const void *gamma,
                             const void *dy, const void *dres, size_t n, row_stats s) {
    vec sum_a = {0}, sum_axh = {0};
    EACH_VEC(i, lanes, n, { /* lanes past the end hold dy = 0 and gamma = 0 and add nothing */
                            vec d = typed_load(dy, t, i, lanes), a = d * typed_load(gamma, t, i, lanes);
                            vec xh = (typed_load(x, t, i, lanes) - s.mean) * s.rstd;
                            sum_axh = vec_fma(a, xh, sum_axh);
                            typed_store(dgamma, DTYPE_F32, i, lanes,
                                        vec_fma(d, xh, typed_load(dgamma, DTYPE_F32, i, lanes)));
                            if (s.centered) {
                                sum_a += a;
                                typed_store(dbeta, DTYPE_F32, i, lanes, d + typed_load(dbeta, DTYPE_F32, i, lanes));
                            }
    });
    float mean_a = s.centered ? vec_sum(sum_a) / (float)n : 0, mean_axh = vec_sum(sum_axh) / (float)n;
    EACH_VEC(i, lanes, n, {
        vec a = typed_load(dy, t, i, lanes) * typed_load(gamma, t, i, lanes);
        vec xh = (typed_load(x, t, i, lanes) - s.mean) * s.rstd;
        vec d = s.rstd * vec_fma(xh, vec_set(-mean_axh), a - mean_a);
        if (dres) d += typed_load(dres, t, i, lanes);
        typed_store(dx, t, i, lanes, d);
    });
}

/* ---- forward ------------------------------------------------------------------------------------------------- */

typedef struct norm_job {
    dtype type;
    const void *a, *b; /* b NULL: the row is a itself, else s = a + b */
    void *s, *y;
    const void *gamma, *beta; /* beta NULL: RMSNorm */
    float *mean, *rstd, eps;
    int64_t n_rows, C, rows_per_task;
} norm_job;

static void norm_task(void *context, int64_t task, int thread) {
    const norm_job *j = context;
    int64_t first = task * j->rows_per_task, end = MIN(first + j->rows_per_task, j->n_rows);
    size_t n = (size_t)j->C;
    for (int64_t row = first; row < end; row++) {
        const void *x = at(j->a, j->type, row * j->C);
        void *y = at(j->y, j->type, row * j->C);
        if (j->b) {
            void *s = at(j->s, j->type, row * j->C);
            BY_TYPE(j->type, add_row, s, x, at(j->b, j->type, row * j->C), n);
            x = s;
        }
        if (j->beta) BY_TYPE(j->type, layernorm_row, y, x, j->gamma, j->beta, n, j->eps, &j->mean[row], &j->rstd[row]);
        else BY_TYPE(j->type, rmsnorm_row, y, x, j->gamma, n, j->eps, &j->rstd[row]);
    }
}

static void norm_run(backend_context *c, const kernel_call *k, norm_job j, const value *gamma) {
    const value *x = call_in(k, 0);
    j.type = x->type;
    j.eps = k->op->attr.eps;
    j.C = shape_count(&gamma->shape);
    j.n_rows = cpu_rows(k, shape_count(&x->shape) / j.C);
    j.rows_per_task = MAX((int64_t)1, TASK_ELEMENTS / j.C);
    ASSERT(gamma->type == x->type && call_out(k, 0)->type == x->type);
    pool_run(c->threads, norm_task, &j, divide_up(j.n_rows, j.rows_per_task));
}

void cpu_kernel_RMSNORM(backend_context *c, const kernel_call *k) {
    norm_run(c, k, (norm_job){.a = k->in[0], .gamma = k->in[1], .y = k->out[0], .rstd = k->out[1]}, call_in(k, 1));
    cpu_absmax(c, k, 2, 0);
}

void cpu_kernel_LAYERNORM(backend_context *c, const kernel_call *k) {
    norm_job j = {
        .a = k->in[0], .gamma = k->in[1], .beta = k->in[2], .y = k->out[0], .mean = k->out[1], .rstd = k->out[2]};
    norm_run(c, k, j, call_in(k, 1));
    cpu_absmax(c, k, 3, 0);
}

void cpu_kernel_ADD_RMSNORM(backend_context *c, const kernel_call *k) {
    norm_job j = {.a = k->in[0], .b = k->in[1], .gamma = k->in[2], .s = k->out[0], .y = k->out[1], .rstd = k->out[2]};
    norm_run(c, k, j, call_in(k, 2));
    cpu_absmax(c, k, 3, 1);
}

void cpu_kernel_ADD_LAYERNORM(backend_context *c, const kernel_call *k) {
    norm_job j = {.a = k->in[0],
                  .b = k->in[1],
                  .gamma = k->in[2],
                  .beta = k->in[3],
                  .s = k->out[0],
                  .y = k->out[1],
                  .mean = k->out[2],
                  .rstd = k->out[3]};
    norm_run(c, k, j, call_in(k, 2));
    cpu_absmax(c, k, 4, 1);
}

/* ---- sums over rows ------------------------------------------------------------------------------------------ */

static int64_t block_rows(int64_t n_rows) { return MAX((int64_t)MIN_BLOCK_ROWS, divide_up(n_rows, MAX_BLOCKS)); }
static int64_t block_count(int64_t n_rows) { return divide_up(n_rows, block_rows(n_rows)); }

typedef struct finish_job {
    const float *lines; /* (n_blocks, line) */
    int64_t n_blocks, line, n;
    void *out;
    dtype type;
} finish_job;

static void finish_task(void *context, int64_t task, int thread) {
    const finish_job *j = context;
    int64_t first = task * COLUMNS_PER_TASK;
    size_t n = (size_t)MIN((int64_t)COLUMNS_PER_TASK, j->n - first);
    double sum[COLUMNS_PER_TASK] = {0};
    float rounded[COLUMNS_PER_TASK];
    for (int64_t b = 0; b < j->n_blocks; b++) {
        const float *line = j->lines + b * j->line + first;
        for (size_t i = 0; i < n; i++) sum[i] += line[i];
    }
    for (size_t i = 0; i < n; i++) rounded[i] = (float)sum[i];
    typed_row_store(at(j->out, j->type, first), rounded, j->type, n);
}

/* Adds n columns of all lines, starting at `column`, into one output. */
static void finish_sums(backend_context *c, const kernel_call *k, int output, int64_t n_blocks, int64_t line,
                        int64_t column) {
    const value *v = call_out(k, output);
    finish_job j = {.lines = (const float *)k->work + column,
                    .n_blocks = n_blocks,
                    .line = line,
                    .n = shape_count(&v->shape),
                    .out = k->out[output],
                    .type = v->type};
    pool_run(c->threads, finish_task, &j, divide_up(j.n, COLUMNS_PER_TASK));
}

typedef struct backward_job {
    dtype type;
    const void *x, *gamma, *dy, *dres;
    const float *mean, *rstd;
    void *dx;
    float *lines;
    int64_t n_rows, C, line, rows_per_block;
} backward_job;

static void backward_task(void *context, int64_t block, int thread) {
    const backward_job *j = context;
    int64_t first = block * j->rows_per_block, end = MIN(first + j->rows_per_block, j->n_rows), C = j->C;
    float *dgamma = j->lines + block * j->line, *dbeta = dgamma + C;
    memset(dgamma, 0, (size_t)j->line * sizeof(float));
    for (int64_t row = first; row < end; row++) {
        void *dx = at(j->dx, j->type, row * C);
        const void *x = at(j->x, j->type, row * C), *dy = at(j->dy, j->type, row * C);
        const void *dres = j->dres ? at(j->dres, j->type, row * C) : NULL;
        if (j->mean) {
            row_stats s = {.mean = j->mean[row], .rstd = j->rstd[row], .centered = true};
            BY_TYPE(j->type, norm_bwd_row, dx, dgamma, dbeta, x, j->gamma, dy, dres, (size_t)C, s);
        } else {
            row_stats s = {.rstd = j->rstd[row]};
            BY_TYPE(j->type, norm_bwd_row, dx, dgamma, NULL, x, j->gamma, dy, dres, (size_t)C, s);
        }
    }
}

static int64_t backward_run(backend_context *c, const kernel_call *k, backward_job j, int lines_per_block) {
    const value *x = call_in(k, 0), *gamma = call_in(k, 1);
    j.type = x->type;
    j.C = shape_count(&gamma->shape);
    j.n_rows = shape_count(&x->shape) / j.C;
    j.line = lines_per_block * j.C;
    j.rows_per_block = block_rows(j.n_rows);
    j.lines = k->work;
    ASSERT(gamma->type == x->type && call_out(k, 0)->type == x->type);
    int64_t n_blocks = block_count(j.n_rows);
    pool_run(c->threads, backward_task, &j, n_blocks);
    return n_blocks;
}

void cpu_kernel_RMSNORM_BWD(backend_context *c, const kernel_call *k) {
    backward_job j = {
        .x = k->in[0], .gamma = k->in[1], .rstd = k->in[2], .dy = k->in[3], .dres = k->in[4], .dx = k->out[0]};
    int64_t n_blocks = backward_run(c, k, j, 1), C = shape_count(&call_in(k, 1)->shape);
    finish_sums(c, k, 1, n_blocks, C, 0);
    cpu_absmax(c, k, 2, 0);
}

void cpu_kernel_LAYERNORM_BWD(backend_context *c, const kernel_call *k) {
    backward_job j = {.x = k->in[0],
                      .gamma = k->in[1],
                      .mean = k->in[2],
                      .rstd = k->in[3],
                      .dy = k->in[4],
                      .dres = k->in[5],
                      .dx = k->out[0]};
    int64_t n_blocks = backward_run(c, k, j, 2), C = shape_count(&call_in(k, 1)->shape);
    finish_sums(c, k, 1, n_blocks, 2 * C, 0);
    finish_sums(c, k, 2, n_blocks, 2 * C, C);
    cpu_absmax(c, k, 3, 0);
}

typedef struct bias_job {
    dtype type;
    const void *dy;
    float *lines;
    int64_t n_rows, C, rows_per_block, n_chunks;
} bias_job;

VEC_INLINE void bias_row(dtype t, float *sum, const void *dy, size_t n) {
    EACH_VEC(i, lanes, n, {
        typed_store(sum, DTYPE_F32, i, lanes, typed_load(sum, DTYPE_F32, i, lanes) + typed_load(dy, t, i, lanes));
    });
}

/* A block of rows times a chunk of columns that stays in L1. */
static void bias_task(void *context, int64_t task, int thread) {
    const bias_job *j = context;
    int64_t block = task / j->n_chunks, column = task % j->n_chunks * BIAS_COLUMNS;
    int64_t first = block * j->rows_per_block, end = MIN(first + j->rows_per_block, j->n_rows);
    size_t n = (size_t)MIN((int64_t)BIAS_COLUMNS, j->C - column);
    float *sum = j->lines + block * j->C + column;
    memset(sum, 0, n * sizeof *sum);
    for (int64_t row = first; row < end; row++)
        BY_TYPE(j->type, bias_row, sum, at(j->dy, j->type, row * j->C + column), n);
}

void cpu_kernel_BIAS_GRAD(backend_context *c, const kernel_call *k) {
    const value *dy = call_in(k, 0);
    bias_job j = {.type = dy->type, .dy = k->in[0], .lines = k->work, .C = shape_count(&call_out(k, 0)->shape)};
    j.n_rows = shape_count(&dy->shape) / j.C;
    j.rows_per_block = block_rows(j.n_rows);
    j.n_chunks = divide_up(j.C, BIAS_COLUMNS);
    int64_t n_blocks = block_count(j.n_rows);
    pool_run(c->threads, bias_task, &j, n_blocks * j.n_chunks);
    finish_sums(c, k, 0, n_blocks, j.C, 0);
}

/* ---- heads --------------------------------------------------------------------------------------------------- */

typedef struct heads_job {
    dtype type;
    const op_attr *attr;
    const void *qkv, *gq, *gk, *dy;
    void *out; /* y, or dqkv */
    float *rstd, *lines;
    int64_t n_rows, width, rows_per_task;
} heads_job;

static heads_job heads_make(const kernel_call *k) {
    const op_attr *a = &k->op->attr;
    const value *qkv = call_in(k, 0);
    heads_job j = {.type = qkv->type,
                   .attr = a,
                   .qkv = k->in[0],
                   .gq = k->in[1],
                   .gk = k->in[2],
                   .out = k->out[0],
                   .width = (a->n_heads + 2 * a->n_kv_heads) * (int64_t)a->head_dim};
    j.n_rows = shape_count(&qkv->shape) / j.width;
    ASSERT(call_in(k, 1)->type == j.type && call_in(k, 2)->type == j.type && call_out(k, 0)->type == j.type);
    return j;
}

static void copy_v(const heads_job *j, const void *from, int64_t row) {
    const op_attr *a = j->attr;
    int64_t v = row * j->width + (a->n_heads + a->n_kv_heads) * (int64_t)a->head_dim;
    if (from != j->out)
        memcpy(at(j->out, j->type, v), at(from, j->type, v),
               (size_t)a->n_kv_heads * (size_t)a->head_dim * dtype_bytes(j->type));
}

static void qk_norm_task(void *context, int64_t task, int thread) {
    const heads_job *j = context;
    const op_attr *a = j->attr;
    int64_t first = task * j->rows_per_task, end = MIN(first + j->rows_per_task, j->n_rows), D = a->head_dim;
    int64_t n_normed = a->n_heads + a->n_kv_heads;
    for (int64_t row = first; row < end; row++) {
        for (int64_t h = 0; h < n_normed; h++) {
            int64_t e = row * j->width + h * D;
            BY_TYPE(j->type, rmsnorm_row, at(j->out, j->type, e), at(j->qkv, j->type, e),
                    h < a->n_heads ? j->gq : j->gk, (size_t)D, a->eps, &j->rstd[row * n_normed + h]);
        }
        copy_v(j, j->qkv, row);
    }
}

void cpu_kernel_QK_NORM(backend_context *c, const kernel_call *k) {
    heads_job j = heads_make(k);
    j.rstd = k->out[1];
    j.n_rows = cpu_rows(k, j.n_rows);
    j.rows_per_task = MAX((int64_t)1, TASK_ELEMENTS / j.width);
    pool_run(c->threads, qk_norm_task, &j, divide_up(j.n_rows, j.rows_per_task));
}

static void qk_norm_bwd_task(void *context, int64_t block, int thread) {
    const heads_job *j = context;
    const op_attr *a = j->attr;
    int64_t first = block * j->rows_per_task, end = MIN(first + j->rows_per_task, j->n_rows), D = a->head_dim;
    int64_t n_normed = a->n_heads + a->n_kv_heads;
    float *dgq = j->lines + block * 2 * D, *dgk = dgq + D;
    memset(dgq, 0, (size_t)(2 * D) * sizeof(float));
    for (int64_t row = first; row < end; row++) {
        for (int64_t h = 0; h < n_normed; h++) {
            int64_t e = row * j->width + h * D;
            bool query = h < a->n_heads;
            row_stats s = {.rstd = j->rstd[row * n_normed + h]};
            BY_TYPE(j->type, norm_bwd_row, at(j->out, j->type, e), query ? dgq : dgk, NULL, at(j->qkv, j->type, e),
                    query ? j->gq : j->gk, at(j->dy, j->type, e), NULL, (size_t)D, s);
        }
        copy_v(j, j->dy, row);
    }
}

void cpu_kernel_QK_NORM_BWD(backend_context *c, const kernel_call *k) {
    heads_job j = heads_make(k);
    j.rstd = k->in[3];
    j.dy = k->in[4];
    j.lines = k->work;
    j.rows_per_task = block_rows(j.n_rows);
    int64_t n_blocks = block_count(j.n_rows), D = k->op->attr.head_dim;
    pool_run(c->threads, qk_norm_bwd_task, &j, n_blocks);
    finish_sums(c, k, 1, n_blocks, 2 * D, 0);
    finish_sums(c, k, 2, n_blocks, 2 * D, D);
}

size_t cpu_norm_work_bytes(const program *p, const op *o, int n_threads) {
    int64_t n_rows, line;
    op_row_sums(p, o, &n_rows, &line);
    return (size_t)(block_count(n_rows) * line) * sizeof(float);
}
