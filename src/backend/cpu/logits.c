/* logits.c - hidden states to fp32 logits, only for the rows that are sampled, and what every way to sample asks of a row. */
#include "backend/cpu/gemm.h"

#include <math.h>

/* Picked rows are copied together: the product wants them behind each other. */
static size_t picked_bytes(const program *p, const op *o) {
    const value *h = program_get(p, o->in[UNEMBED_LOGITS_H]), *logits = program_get(p, o->out[UNEMBED_LOGITS_LOGITS]);
    if (!o->in[UNEMBED_LOGITS_PICK]) return 0;
    return align_up((size_t)(logits->shape.dim[0] * h->shape.dim[1]) * dtype_bytes(h->type), 64);
}

static size_t logits_work_bytes(const program *p, const op *o, int n_threads) {
    const value *logits = program_get(p, o->out[UNEMBED_LOGITS_LOGITS]), *h = program_get(p, o->in[UNEMBED_LOGITS_H]);
    return picked_bytes(p, o) +
           gemm_rows_work_bytes(logits->shape.dim[0], logits->shape.dim[1], h->shape.dim[1], h->type, n_threads);
}

const cpu_work_fn cpu_work_UNEMBED_LOGITS = logits_work_bytes;

void cpu_kernel_UNEMBED_LOGITS(backend_context *c, const kernel_call *k) {
    const value *h = call_in(k, UNEMBED_LOGITS_H), *logits = call_out(k, UNEMBED_LOGITS_LOGITS);
    int64_t C = h->shape.dim[1], V = logits->shape.dim[1], R = cpu_rows(k, logits->shape.dim[0]);
    size_t n_picked = picked_bytes(k->program, k->op), row_bytes = (size_t)C * dtype_bytes(h->type);
    const int32_t *pick = k->in[UNEMBED_LOGITS_PICK];
    for (int64_t r = 0; pick && r < R; r++) {
        ASSERT(pick[r] >= 0 && pick[r] < h->shape.dim[0]);
        memcpy((char *)k->work + (size_t)r * row_bytes,
               (const char *)k->in[UNEMBED_LOGITS_H] + (size_t)pick[r] * row_bytes, row_bytes);
    }
    gemm_call g = {.m = R,
                   .n = V,
                   .k = C,
                   .a = {pick ? k->work : k->in[UNEMBED_LOGITS_H], h->type, C, 1},
                   .b = {k->in[UNEMBED_LOGITS_W], call_in(k, UNEMBED_LOGITS_W)->type, 1, C},
                   .c = k->out[UNEMBED_LOGITS_LOGITS],
                   .c_type = DTYPE_F32,
                   .ldc = V};
    gemm_rows_run(c, &g, (char *)k->work + n_picked);
}

typedef struct top_work {
    const float *logits;
    int32_t *top;
    double *sums;
    int64_t n_vocab;
} top_work;

static void top_task(void *context, int64_t row, int thread) {
    (void)thread;
    const top_work *w = context;
    const float *x = w->logits + row * w->n_vocab;
    int64_t best = 0;
    double sum = 0;
    for (int64_t v = 1; v < w->n_vocab; v++) best = x[v] > x[best] || isnan(x[best]) ? v : best;
    for (int64_t v = 0; v < w->n_vocab; v++) sum += (double)expf(x[v] - x[best]);
    w->top[row] = (int32_t)best;
    w->sums[2 * row] = (double)x[best];
    w->sums[2 * row + 1] = (double)x[best] + log(sum);
}

void cpu_kernel_LOGITS_TOP(backend_context *c, const kernel_call *k) {
    const value *logits = call_in(k, LOGITS_TOP_LOGITS);
    top_work w = {.logits = k->in[LOGITS_TOP_LOGITS],
                  .top = k->out[LOGITS_TOP_TOP],
                  .sums = k->out[LOGITS_TOP_SUMS],
                  .n_vocab = logits->shape.dim[1]};
    pool_run(c->threads, top_task, &w, cpu_rows(k, logits->shape.dim[0]));
}
