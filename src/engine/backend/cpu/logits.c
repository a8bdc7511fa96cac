/* logits.c - hidden states to fp32 logits, only for the rows that are sampled, and what every way to sample asks of a row. */
#include "backend/cpu/gemm.h"
#include "backend/cpu/vector.h"

#include <math.h>

typedef struct cap_job {
    float *x;
    int64_t n;
    float softcap;
} cap_job;
enum { CAP_ELEMENTS = 8192 };

static void cap_task(void *context, int64_t task, int thread) {
    (void)thread;
    const cap_job *j = context;
    float *x = j->x + task * CAP_ELEMENTS, tail[VEC_WIDTH] = {0};
    int64_t n = MIN((int64_t)CAP_ELEMENTS, j->n - task * CAP_ELEMENTS), i = 0;
    for (; i + VEC_WIDTH <= n; i += VEC_WIDTH) vec_store(x + i, j->softcap * vec_tanh(vec_load(x + i) / j->softcap));
    memcpy(tail, x + i, (size_t)(n - i) * sizeof *x);
    vec_store(tail, j->softcap * vec_tanh(vec_load(tail) / j->softcap));
    memcpy(x + i, tail, (size_t)(n - i) * sizeof *x);
}

void cpu_cap_logits(backend_context *c, float *logits, int64_t n, float softcap) {
    cap_job j = {logits, n, softcap};
    pool_run(c->threads, cap_task, &j, divide_up(n, CAP_ELEMENTS));
}

/* Picked rows are copied together: the product wants them behind each other. */
static size_t picked_bytes(const program *p, const op *o) {
    const value *h = program_get(p, o->in[UNEMBED_LOGITS_H]), *logits = program_get(p, o->out[UNEMBED_LOGITS_LOGITS]);
    if (!o->in[UNEMBED_LOGITS_PICK]) return 0;
    return align_up((size_t)(logits->shape.dim[0] * h->shape.dim[1]) * dtype_bytes(h->type), 64);
}

static size_t logits_work_bytes(const program *p, const op *o, int n_threads) {
    const value *logits = program_get(p, o->out[UNEMBED_LOGITS_LOGITS]), *h = program_get(p, o->in[UNEMBED_LOGITS_H]);
    return picked_bytes(p, o) + gemm_rows_work_bytes(logits->shape.dim[0], logits->shape.dim[1], h->shape.dim[1],
                                                     h->type, o->attr.lanes, n_threads);
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
                   .lanes = k->op->attr.lanes,
                   .c = k->out[UNEMBED_LOGITS_LOGITS],
                   .c_type = DTYPE_F32,
                   .ldc = V};
    gemm_rows_run(c, &g, (char *)k->work + n_picked);
    float softcap = k->op->attr.logits_softcap;
    if (softcap > 0) cpu_cap_logits(c, k->out[UNEMBED_LOGITS_LOGITS], R * V, softcap);
}

/* ---- the next token ---------------------------------------------------------------------------------------------- */

typedef struct draw_work {
    const float *logits;
    const double *draws;
    double *drawn;
    int64_t n_vocab;
} draw_work;

/* The first id at which the sum of the probabilities exceeds `uniform`. Scores are fp32 as in transformers, sums double. */
static int64_t draw_id(const float *x, int64_t n, float top, float temperature, double uniform) {
    double total = 0, sum = 0;
    int64_t last = 0; /* rounding may leave the sum a little under its target: the last that is possible */
    for (int64_t v = 0; v < n; v++) total += exp((double)(x[v] / temperature - top));
    for (int64_t v = 0; v < n; v++) {
        double p = exp((double)(x[v] / temperature - top));
        if (p == 0) continue;
        last = v;
        if ((sum += p) > uniform * total) break;
    }
    return last;
}

static double tempered_log_sum(const float *x, int64_t n, double top, double temperature) {
    double sum = 0;
    for (int64_t v = 0; v < n; v++) sum += exp(((double)x[v] - top) / temperature);
    return log(sum);
}

static void draw_task(void *context, int64_t row, int thread) {
    (void)thread;
    const draw_work *w = context;
    const float *x = w->logits + row * w->n_vocab;
    double uniform = w->draws[row * DRAW_COUNT + DRAW_UNIFORM], t = w->draws[row * DRAW_COUNT + DRAW_TEMPERATURE];
    double *out = w->drawn + row * DRAWN_COUNT, sum = 0;
    int64_t best = 0;
    for (int64_t v = 1; v < w->n_vocab; v++) best = x[v] > x[best] || isnan(x[best]) ? v : best;
    for (int64_t v = 0; v < w->n_vocab; v++) sum += (double)expf(x[v] - x[best]);
    double top = (double)x[best], log_sum = top + log(sum);
    int64_t id = best;
    if (t > 0 && isfinite(log_sum)) id = draw_id(x, w->n_vocab, x[best] / (float)t, (float)t, uniform);
    double tempered = (double)x[id] - log_sum;
    if (t > 0 && t != 1) tempered = ((double)x[id] - top) / t - tempered_log_sum(x, w->n_vocab, top, t);
    out[DRAWN_TOP] = (double)best, out[DRAWN_TOP_LOGIT] = top, out[DRAWN_LOG_SUM] = log_sum;
    out[DRAWN_TOKEN] = (double)id, out[DRAWN_LOGIT] = (double)x[id], out[DRAWN_TEMPERED] = tempered;
}

const cpu_work_fn cpu_work_DRAW_TOKENS = NULL; /* none */

void cpu_kernel_DRAW_TOKENS(backend_context *c, const kernel_call *k) {
    const value *logits = call_in(k, DRAW_TOKENS_LOGITS);
    draw_work w = {.logits = k->in[DRAW_TOKENS_LOGITS],
                   .draws = k->in[DRAW_TOKENS_DRAWS],
                   .drawn = k->out[DRAW_TOKENS_DRAWN],
                   .n_vocab = logits->shape.dim[1]};
    pool_run(c->threads, draw_task, &w, cpu_rows(k, logits->shape.dim[0]));
}
