/* critic.c - values of tokens: the last layer of a value head with its gradient, and the loss of a critic.
 *
 * The layer has one output, so it is no matrix product: a dot product for each token forward, and a sum over all tokens
 * for the gradient of its weights, which goes through blocks of VALUE_BLOCK tokens that are added in order. All sums
 * are in double: the values of neighbouring tokens are subtracted from each other later. The loss has thousands of
 * numbers: one thread, in order. Sequence ranks have gathered the values of whole rows: each judges all solutions, and
 * the first of them adds to the sums. */
#include "backend/cpu/cpu.h"

#include <math.h>

static int64_t n_blocks(int64_t n_rows) { return divide_up(n_rows, VALUE_BLOCK); }

typedef struct value_job {
    dtype type;
    int64_t n_rows, width;
    bool sigmoid;
    const void *x, *w, *b;
    float *values;
    const float *dvalues;
    void *dx;
    double *lines; /* (blocks, width + 1): the sums of a block for dw, then for db; NULL: neither is asked for */
} value_job;

static void value_task(void *context, int64_t task, int thread) {
    const value_job *j = context;
    int64_t first = task * VALUE_BLOCK, end = MIN(first + VALUE_BLOCK, j->n_rows);
    double b = (double)tensor_get_f32(j->b, j->type, 0);
    for (int64_t row = first; row < end; row++) {
        double sum = 0;
        for (int64_t i = 0; i < j->width; i++)
            sum += (double)tensor_get_f32(j->x, j->type, (size_t)(row * j->width + i)) *
                   (double)tensor_get_f32(j->w, j->type, (size_t)i);
        sum += b;
        j->values[row] = (float)(j->sigmoid ? preference_sigmoid(sum) : sum);
    }
}

void cpu_kernel_VALUE(backend_context *c, const kernel_call *k) {
    const value *x = call_in(k, VALUE_X);
    value_job j = {.type = x->type,
                   .n_rows = x->shape.dim[0],
                   .width = x->shape.dim[1],
                   .sigmoid = k->op->attr.sigmoid,
                   .x = k->in[VALUE_X],
                   .w = k->in[VALUE_W],
                   .b = k->in[VALUE_B],
                   .values = k->out[VALUE_VALUES]};
    pool_run(c->threads, value_task, &j, n_blocks(j.n_rows));
}

static void put(void *data, dtype t, int64_t i, float x) {
    tensor_convert(element_at(data, t, i), t, &x, DTYPE_F32, 1);
}

/* The derivative by what the sigmoid, or nothing, is taken of. */
static double slope_of(const value_job *j, int64_t row) {
    double d = (double)j->dvalues[row], v = (double)j->values[row];
    return j->sigmoid ? d * v * (1 - v) : d;
}

static void value_bwd_task(void *context, int64_t task, int thread) {
    const value_job *j = context;
    int64_t first = task * VALUE_BLOCK, end = MIN(first + VALUE_BLOCK, j->n_rows);
    double *line = j->lines ? j->lines + task * (j->width + 1) : NULL;
    for (int64_t i = 0; line && i <= j->width; i++) line[i] = 0;
    for (int64_t row = first; row < end; row++) {
        double d = slope_of(j, row);
        for (int64_t i = 0; i < j->width; i++) {
            int64_t at = row * j->width + i;
            if (line) line[i] += d * (double)tensor_get_f32(j->x, j->type, (size_t)at);
            put(j->dx, j->type, at, (float)(d * (double)tensor_get_f32(j->w, j->type, (size_t)i)));
        }
        if (line) line[j->width] += d;
    }
}

/* Sums of all blocks from `column` on, in order, into an output that may be absent. */
static void finish(const kernel_call *k, int output, const value_job *j, int64_t column, int64_t n) {
    if (!k->out[output]) return;
    for (int64_t i = 0; i < n; i++) {
        double sum = 0;
        for (int64_t b = 0; b < n_blocks(j->n_rows); b++) sum += j->lines[b * (j->width + 1) + column + i];
        put(k->out[output], call_out(k, output)->type, i, (float)sum);
    }
}

void cpu_kernel_VALUE_BWD(backend_context *c, const kernel_call *k) {
    const value *x = call_in(k, VALUE_BWD_X);
    bool sums = k->out[VALUE_BWD_DW] || k->out[VALUE_BWD_DB];
    value_job j = {.type = x->type,
                   .n_rows = x->shape.dim[0],
                   .width = x->shape.dim[1],
                   .sigmoid = k->op->attr.sigmoid,
                   .x = k->in[VALUE_BWD_X],
                   .w = k->in[VALUE_BWD_W],
                   .values = (float *)(uintptr_t)k->in[VALUE_BWD_VALUES],
                   .dvalues = k->in[VALUE_BWD_DVALUES],
                   .dx = k->out[VALUE_BWD_DX],
                   .lines = sums ? k->work : NULL};
    pool_run(c->threads, value_bwd_task, &j, n_blocks(j.n_rows));
    finish(k, VALUE_BWD_DW, &j, 0, j.width);
    finish(k, VALUE_BWD_DB, &j, j.width, 1);
}

static size_t value_bwd_bytes(const program *p, const op *o, int n_threads) {
    const shape *x = &program_get(p, o->in[VALUE_BWD_X])->shape;
    (void)n_threads;
    return (size_t)(n_blocks(x->dim[0]) * (x->dim[1] + 1)) * sizeof(double);
}
const cpu_work_fn cpu_work_VALUE_BWD = value_bwd_bytes;

static size_t critic_bytes(const program *p, const op *o, int n_threads) {
    (void)p, (void)n_threads;
    return (size_t)(o->attr.seq_len * MAX(o->attr.group_size, 1)) * PREFERENCE_PARTS * sizeof(critic_part);
}
const cpu_work_fn cpu_work_CRITIC = critic_bytes;

void cpu_kernel_CRITIC(backend_context *c, const kernel_call *k) {
    (void)c;
    const op_attr *a = &k->op->attr;
    const float *values = k->in[CRITIC_VALUES];
    const int32_t *segments = k->in[CRITIC_SEGMENTS];
    const step_scalars *scalars = k->in[CRITIC_SCALARS];
    float *d = k->out[CRITIC_DVALUES];
    double *sums = k->out[CRITIC_SUMS], part[CRITIC_SUM_COUNT] = {0};
    int ranks = MAX(a->group_size, 1);
    preference_rows rows = {a->batch, a->seq_len * ranks, ranks};
    for (int64_t row = 0; row < a->batch; row++)
        critic_row(&a->critic, k->work, &rows, row, segments, values, (double)scalars->seed, d, part);
    for (int i = 0; i < CRITIC_SUM_COUNT; i++) {
        double sum = a->index == 0 ? part[i] : 0; /* ranks that share rows add their sums */
        sums[i] = scalars->micro == 0 ? sum : sums[i] + sum;
    }
}
