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
    float *mean, *rstd, eps, offset;
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
        else BY_TYPE(j->type, rmsnorm_row, y, x, j->gamma, j->offset, n, j->eps, &j->rstd[row]);
    }
}

SAME_PLACE(RMSNORM_X, LAYERNORM_X, ADD_RMSNORM_A, ADD_LAYERNORM_A);

static void norm_run(backend_context *c, const kernel_call *k, norm_job j, const value *gamma, dtype y) {
    const value *x = call_in(k, RMSNORM_X);
    j.type = x->type;
    j.eps = k->op->attr.eps;
    j.offset = k->op->attr.gain_offset;
    j.C = shape_count(&gamma->shape);
    j.n_rows = cpu_rows(k, shape_count(&x->shape) / j.C);
    j.rows_per_task = MAX((int64_t)1, NORM_TASK_ELEMENTS / j.C);
    ASSERT(gamma->type == x->type && y == x->type);
    pool_run(c->threads, norm_task, &j, divide_up(j.n_rows, j.rows_per_task));
}

void cpu_kernel_RMSNORM(backend_context *c, const kernel_call *k) {
    norm_job j = {
        .a = k->in[RMSNORM_X], .gamma = k->in[RMSNORM_GAMMA], .y = k->out[RMSNORM_Y], .rstd = k->out[RMSNORM_RSTD]};
    norm_run(c, k, j, call_in(k, RMSNORM_GAMMA), call_out(k, RMSNORM_Y)->type);
    cpu_absmax(c, k, RMSNORM_AMAX, RMSNORM_Y);
}

void cpu_kernel_LAYERNORM(backend_context *c, const kernel_call *k) {
    norm_job j = {.a = k->in[LAYERNORM_X],
                  .gamma = k->in[LAYERNORM_GAMMA],
                  .beta = k->in[LAYERNORM_BETA],
                  .y = k->out[LAYERNORM_Y],
                  .mean = k->out[LAYERNORM_MEAN],
                  .rstd = k->out[LAYERNORM_RSTD]};
    norm_run(c, k, j, call_in(k, LAYERNORM_GAMMA), call_out(k, LAYERNORM_Y)->type);
    cpu_absmax(c, k, LAYERNORM_AMAX, LAYERNORM_Y);
}

void cpu_kernel_ADD_RMSNORM(backend_context *c, const kernel_call *k) {
    norm_job j = {.a = k->in[ADD_RMSNORM_A],
                  .b = k->in[ADD_RMSNORM_B],
                  .gamma = k->in[ADD_RMSNORM_GAMMA],
                  .s = k->out[ADD_RMSNORM_S],
                  .y = k->out[ADD_RMSNORM_Y],
                  .rstd = k->out[ADD_RMSNORM_RSTD]};
    norm_run(c, k, j, call_in(k, ADD_RMSNORM_GAMMA), call_out(k, ADD_RMSNORM_Y)->type);
    cpu_absmax(c, k, ADD_RMSNORM_AMAX, ADD_RMSNORM_Y);
}

void cpu_kernel_ADD_LAYERNORM(backend_context *c, const kernel_call *k) {
    norm_job j = {.a = k->in[ADD_LAYERNORM_A],
                  .b = k->in[ADD_LAYERNORM_B],
                  .gamma = k->in[ADD_LAYERNORM_GAMMA],
                  .beta = k->in[ADD_LAYERNORM_BETA],
                  .s = k->out[ADD_LAYERNORM_S],
                  .y = k->out[ADD_LAYERNORM_Y],
                  .mean = k->out[ADD_LAYERNORM_MEAN],
                  .rstd = k->out[ADD_LAYERNORM_RSTD]};
    norm_run(c, k, j, call_in(k, ADD_LAYERNORM_GAMMA), call_out(k, ADD_LAYERNORM_Y)->type);
    cpu_absmax(c, k, ADD_LAYERNORM_AMAX, ADD_LAYERNORM_Y);
}

/* Scratch: the 16-bit numbers, which a GPU never writes. */
static size_t rmsnorm8_work_bytes(const program *p, const op *o, int n_threads) {
    return (size_t)shape_count(&program_get(p, o->in[RMSNORM8_A])->shape) * sizeof(uint16_t);
}
const cpu_work_fn cpu_work_RMSNORM8 = rmsnorm8_work_bytes;

SAME_PLACE(RMSNORM8_A, RMSNORM_X);
void cpu_kernel_RMSNORM8(backend_context *c, const kernel_call *k) { /* s, rstd, q, t, scale, largest = */
    const shape *a = &call_in(k, RMSNORM8_A)->shape;
    norm_job j = {.a = k->in[RMSNORM8_A],
                  .b = k->in[RMSNORM8_B],
                  .gamma = k->in[RMSNORM8_GAMMA],
                  .s = k->out[RMSNORM8_S],
                  .y = k->work,
                  .rstd = k->out[RMSNORM8_RSTD]};
    norm_run(c, k, j, call_in(k, RMSNORM8_GAMMA), DTYPE_BF16);
    cpu_round(c, &(cpu_round_call){.x = k->work,
                                   .amax = k->in[RMSNORM8_AMAX],
                                   .power = k->op->attr.power,
                                   .q = k->out[RMSNORM8_Q],
                                   .t = k->out[RMSNORM8_T],
                                   .scale = k->out[RMSNORM8_SCALE],
                                   .largest = k->out[RMSNORM8_LARGEST],
                                   .n_rows = a->dim[0],
                                   .n_columns = a->dim[1]});
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
    if (!k->out[output]) return;
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
    float *lines; /* (blocks, line): the sums for gamma, then those for beta, where they are asked for */
    bool dgamma, dbeta;
    float offset; /* of the gains */
    int64_t n_rows, C, line, rows_per_block;
} backward_job;

static void backward_task(void *context, int64_t block, int thread) {
    const backward_job *j = context;
    int64_t first = block * j->rows_per_block, end = MIN(first + j->rows_per_block, j->n_rows), C = j->C;
    float *line = j->line ? j->lines + block * j->line : NULL;
    float *dgamma = j->dgamma ? line : NULL, *dbeta = j->dbeta ? line + j->line - C : NULL;
    if (line) memset(line, 0, (size_t)j->line * sizeof(float));
    for (int64_t row = first; row < end; row++) {
        void *dx = element_at(j->dx, j->type, row * C);
        const void *x = element_at(j->x, j->type, row * C), *dy = element_at(j->dy, j->type, row * C);
        const void *dres = j->dres ? element_at(j->dres, j->type, row * C) : NULL;
        if (j->mean) {
            row_stats s = {.mean = j->mean[row], .rstd = j->rstd[row], .centered = true};
            BY_TYPE(j->type, norm_bwd_row, dx, dgamma, dbeta, x, j->gamma, dy, dres, (size_t)C, s);
        } else {
            row_stats s = {.rstd = j->rstd[row], .offset = j->offset};
            BY_TYPE(j->type, norm_bwd_row, dx, dgamma, NULL, x, j->gamma, dy, dres, (size_t)C, s);
        }
    }
}

SAME_PLACE(RMSNORM_BWD_X, LAYERNORM_BWD_X);
SAME_PLACE(RMSNORM_BWD_GAMMA, LAYERNORM_BWD_GAMMA);
SAME_PLACE(RMSNORM_BWD_DX, LAYERNORM_BWD_DX);

static backward_job backward_run(backend_context *c, const kernel_call *k, backward_job j) {
    const value *x = call_in(k, RMSNORM_BWD_X), *gamma = call_in(k, RMSNORM_BWD_GAMMA);
    j.type = x->type;
    j.offset = k->op->attr.gain_offset;
    j.C = shape_count(&gamma->shape);
    j.n_rows = shape_count(&x->shape) / j.C;
    j.line = (j.dgamma + j.dbeta) * j.C;
    j.rows_per_block = cpu_sum_block_rows(j.n_rows);
    j.lines = k->work;
    ASSERT(gamma->type == x->type && call_out(k, RMSNORM_BWD_DX)->type == x->type);
    pool_run(c->threads, backward_task, &j, cpu_sum_block_count(j.n_rows));
    return j;
}

void cpu_kernel_RMSNORM_BWD(backend_context *c, const kernel_call *k) {
    backward_job j = {.x = k->in[RMSNORM_BWD_X],
                      .gamma = k->in[RMSNORM_BWD_GAMMA],
                      .rstd = k->in[RMSNORM_BWD_RSTD],
                      .dy = k->in[RMSNORM_BWD_DY],
                      .dres = k->in[RMSNORM_BWD_DRES],
                      .dx = k->out[RMSNORM_BWD_DX],
                      .dgamma = k->out[RMSNORM_BWD_DGAMMA]};
    j = backward_run(c, k, j);
    cpu_finish_sums(c, k, RMSNORM_BWD_DGAMMA, cpu_sum_block_count(j.n_rows), j.line, 0);
    cpu_absmax(c, k, RMSNORM_BWD_AMAX, RMSNORM_BWD_DX);
}

void cpu_kernel_LAYERNORM_BWD(backend_context *c, const kernel_call *k) {
    backward_job j = {.x = k->in[LAYERNORM_BWD_X],
                      .gamma = k->in[LAYERNORM_BWD_GAMMA],
                      .mean = k->in[LAYERNORM_BWD_MEAN],
                      .rstd = k->in[LAYERNORM_BWD_RSTD],
                      .dy = k->in[LAYERNORM_BWD_DY],
                      .dres = k->in[LAYERNORM_BWD_DRES],
                      .dx = k->out[LAYERNORM_BWD_DX],
                      .dgamma = k->out[LAYERNORM_BWD_DGAMMA],
                      .dbeta = k->out[LAYERNORM_BWD_DBETA]};
    j = backward_run(c, k, j);
    cpu_finish_sums(c, k, LAYERNORM_BWD_DGAMMA, cpu_sum_block_count(j.n_rows), j.line, 0);
    cpu_finish_sums(c, k, LAYERNORM_BWD_DBETA, cpu_sum_block_count(j.n_rows), j.line, j.line - j.C);
    cpu_absmax(c, k, LAYERNORM_BWD_AMAX, LAYERNORM_BWD_DX);
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
    const value *dy = call_in(k, BIAS_GRAD_DY);
    bias_job j = {.type = dy->type,
                  .dy = k->in[BIAS_GRAD_DY],
                  .lines = k->work,
                  .C = shape_count(&call_out(k, BIAS_GRAD_DB)->shape)};
    j.n_rows = shape_count(&dy->shape) / j.C;
    j.rows_per_block = cpu_sum_block_rows(j.n_rows);
    j.n_chunks = divide_up(j.C, BIAS_COLUMNS);
    int64_t n_blocks = cpu_sum_block_count(j.n_rows);
    pool_run(c->threads, bias_task, &j, n_blocks * j.n_chunks);
    cpu_finish_sums(c, k, BIAS_GRAD_DB, n_blocks, j.C, 0);
}

size_t cpu_sums_work_bytes(const program *p, const op *o, int n_threads) {
    int64_t n_rows, line;
    op_row_sums(p, o, &n_rows, &line);
    return (size_t)(cpu_sum_block_count(n_rows) * line) * sizeof(float);
}

const cpu_work_fn cpu_work_RMSNORM_BWD = cpu_sums_work_bytes;
const cpu_work_fn cpu_work_LAYERNORM_BWD = cpu_sums_work_bytes;
const cpu_work_fn cpu_work_BIAS_GRAD = cpu_sums_work_bytes;
