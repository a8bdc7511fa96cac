/* norm.c - RMSNorm and LayerNorm over rows, their backward, and gradients that are sums over rows.
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
#include "backend/cpu/norm.h"

#include "backend/cpu/fp8.h"

enum { MAX_BLOCKS = 128, MIN_BLOCK_ROWS = 16, COLUMNS_PER_TASK = 256, BIAS_COLUMNS = 2048 };

/* ---- rows ---------------------------------------------------------------------------------------------------- */

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
        const void *x = element_at(j->a, j->type, row * j->C);
        void *y = element_at(j->y, j->type, row * j->C);
        if (j->b) {
            void *s = element_at(j->s, j->type, row * j->C);
            BY_TYPE(j->type, add_row, s, x, element_at(j->b, j->type, row * j->C), n);
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
    j.rows_per_task = MAX((int64_t)1, NORM_TASK_ELEMENTS / j.C);
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

int64_t cpu_sum_block_rows(int64_t n_rows) { return MAX((int64_t)MIN_BLOCK_ROWS, divide_up(n_rows, MAX_BLOCKS)); }
int64_t cpu_sum_block_count(int64_t n_rows) { return divide_up(n_rows, cpu_sum_block_rows(n_rows)); }

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
    typed_row_store(element_at(j->out, j->type, first), rounded, j->type, n);
}

void cpu_finish_sums(backend_context *c, const kernel_call *k, int output, int64_t n_blocks, int64_t line,
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
        void *dx = element_at(j->dx, j->type, row * C);
        const void *x = element_at(j->x, j->type, row * C), *dy = element_at(j->dy, j->type, row * C);
        const void *dres = j->dres ? element_at(j->dres, j->type, row * C) : NULL;
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
    j.rows_per_block = cpu_sum_block_rows(j.n_rows);
    j.lines = k->work;
    ASSERT(gamma->type == x->type && call_out(k, 0)->type == x->type);
    int64_t n_blocks = cpu_sum_block_count(j.n_rows);
    pool_run(c->threads, backward_task, &j, n_blocks);
    return n_blocks;
}

void cpu_kernel_RMSNORM_BWD(backend_context *c, const kernel_call *k) {
    backward_job j = {
        .x = k->in[0], .gamma = k->in[1], .rstd = k->in[2], .dy = k->in[3], .dres = k->in[4], .dx = k->out[0]};
    int64_t n_blocks = backward_run(c, k, j, 1), C = shape_count(&call_in(k, 1)->shape);
    cpu_finish_sums(c, k, 1, n_blocks, C, 0);
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
    cpu_finish_sums(c, k, 1, n_blocks, 2 * C, 0);
    cpu_finish_sums(c, k, 2, n_blocks, 2 * C, C);
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
        BY_TYPE(j->type, bias_row, sum, element_at(j->dy, j->type, row * j->C + column), n);
}

void cpu_kernel_BIAS_GRAD(backend_context *c, const kernel_call *k) {
    const value *dy = call_in(k, 0);
    bias_job j = {.type = dy->type, .dy = k->in[0], .lines = k->work, .C = shape_count(&call_out(k, 0)->shape)};
    j.n_rows = shape_count(&dy->shape) / j.C;
    j.rows_per_block = cpu_sum_block_rows(j.n_rows);
    j.n_chunks = divide_up(j.C, BIAS_COLUMNS);
    int64_t n_blocks = cpu_sum_block_count(j.n_rows);
    pool_run(c->threads, bias_task, &j, n_blocks * j.n_chunks);
    cpu_finish_sums(c, k, 0, n_blocks, j.C, 0);
}

size_t cpu_norm_work_bytes(const program *p, const op *o, int n_threads) {
    int64_t n_rows, line;
    op_row_sums(p, o, &n_rows, &line);
    if (o->kind == OP_QK_NORM_ROPE_BWD) line += o->attr.head_dim; /* one head beside each line */
    return (size_t)(cpu_sum_block_count(n_rows) * line) * sizeof(float);
}
