/* unembed.c - from hidden states to cross entropy and its gradient without ever holding (N, V).
 *
 * Tokens go in chunks whose fp32 logits fit attr.chunk_bytes. The gradient is written over the logits it came from (a
 * 16-bit one into the first half of its own row), so a chunk costs 4 V bytes per token and nothing else. All products
 * are gemm_run; between them a row is cut into segments of SEGMENT logits, so that one long row keeps every thread
 * busy and every sum has one shape: fp32 inside 1024 logits, double above.
 *
 * dw is a sum over all tokens. In fp32 it takes the chunks one after the other, in order. In 16 bits it must be rounded
 * once and an fp32 copy (V, C) would cost what the chunks save, so when there is more than one chunk a second walk goes
 * over blocks of the vocabulary, all tokens at once: logits again, gradient again, one product that finishes its rows of
 * dw. That is 8 N V C flops instead of 6. The maximum and the factor of each token are kept for it: 8 bytes per token.
 *
 * Where ranks share the vocabulary, UNEMBED_STATS ends with the maximum, the sum and the target's logit of each token, and
 * UNEMBED_GRAD begins with those of all ranks and computes the logits again: the walks are the same.
 *
 * Where dw is not asked for, its products and the second walk are not there; the chunks, and so the bits of dh, are the same.
 *
 * In 8 bits (UNEMBED8_LOSS_GRAD) h and w are widened into scratch and the walks are those of bf16: e4m3 and e5m2 numbers are bf16
 * numbers too, and scales multiply finished sums.
 *
 * The chunks follow from shapes and attr alone. A chunk in which nothing is trained on costs nothing. A target outside
 * [0, V) counts as -1. A NaN in h or w comes out as a NaN loss: the maximum steps over it, the sum does not. */
#include "backend/cpu/fp8.h"
#include "backend/cpu/gemm.h"
#include "backend/cpu/vector.h"
#include <math.h>

enum { SEGMENT = 4096, SUM_BLOCK = 1024, V_BLOCK_MIN = 64 };

/* How the work of one op is cut and where its scratch lies. */
typedef struct unembed_plan {
    int64_t N, C, V;         /* V: rows of w that are ids */
    int64_t vocab, first_id; /* of all ranks; the id of row 0 */
    dtype type;              /* of h and w */
    int64_t rows, n_chunks;  /* tokens per chunk */
    int64_t v_block;         /* vocabulary rows per step of the second walk; 0 = there is none */
    int64_t n_segments;      /* of one row of logits */
    bool gradient, has_dw;
    const float *scale;                                     /* of the logits; NULL: 1 */
    float softcap;                                          /* of the logits, scaled like them; 0: none */
    bool eight;                                             /* h and w are e4m3, the gradient of the logits e5m2 */
    size_t at_parts, at_rows, at_gemm, at_h, at_w, n_bytes; /* scratch: logits, then these */
} unembed_plan;

typedef struct segment_part { /* of one row */
    float max;
    int32_t argmax;
    double sum; /* of exp(logit - max) */
} segment_part;

typedef struct row_state { /* what softmax and its gradient need of one token */
    float max;
    float factor; /* weight * seed / sum of exp(logit - max); 0 = no gradient */
} row_state;

static size_t aligned(size_t n_bytes) { return align_up(n_bytes, 64); }

/* The last chunk may be shorter than the others, and scratch need not grow with m: ask for both. */
static size_t gemm_bytes(const unembed_plan *u, int64_t rows, dtype dh, dtype dw, int n_threads) {
    size_t n = gemm_work_bytes(rows, u->V, u->C, u->type, DTYPE_F32, n_threads);
    if (!u->gradient) return n;
    n = MAX(n, gemm_work_bytes(rows, u->C, u->V, u->type, dh, n_threads));
    if (!u->has_dw) return n;
    if (u->v_block == 0) return MAX(n, gemm_work_bytes(u->V, u->C, rows, u->type, dw, n_threads));
    for (int last = 0; last < 2; last++) {
        int64_t v = last ? u->V - (divide_up(u->V, u->v_block) - 1) * u->v_block : u->v_block;
        n = MAX(n, gemm_work_bytes(u->N, v, u->C, u->type, DTYPE_F32, n_threads));
        n = MAX(n, gemm_work_bytes(v, u->C, u->N, u->type, dw, n_threads));
    }
    return n;
}

SAME_PLACE(UNEMBED_LOSS_H, UNEMBED_LOSS_GRAD_H, UNEMBED_STATS_H, UNEMBED_GRAD_H);
SAME_PLACE(UNEMBED_LOSS_W, UNEMBED_LOSS_GRAD_W, UNEMBED_STATS_W, UNEMBED_GRAD_W);
SAME_PLACE(UNEMBED_LOSS_TARGETS, UNEMBED_LOSS_GRAD_TARGETS, UNEMBED_STATS_TARGETS, UNEMBED_GRAD_TARGETS);
SAME_PLACE(UNEMBED_LOSS_GRAD_WEIGHTS, UNEMBED_GRAD_WEIGHTS);
SAME_PLACE(UNEMBED_LOSS_GRAD_SCALARS, UNEMBED_GRAD_SCALARS);
SAME_PLACE(UNEMBED_LOSS_GRAD_H, UNEMBED8_LOSS_GRAD_H);
SAME_PLACE(UNEMBED_LOSS_GRAD_W, UNEMBED8_LOSS_GRAD_W);
SAME_PLACE(UNEMBED_LOSS_GRAD_TARGETS, UNEMBED8_LOSS_GRAD_TARGETS);
SAME_PLACE(UNEMBED_LOSS_GRAD_WEIGHTS, UNEMBED8_LOSS_GRAD_WEIGHTS);
SAME_PLACE(UNEMBED_LOSS_GRAD_SCALARS, UNEMBED8_LOSS_GRAD_SCALARS);
SAME_PLACE(UNEMBED_LOSS_GRAD_DH, UNEMBED8_LOSS_GRAD_DH);
SAME_PLACE(UNEMBED_LOSS_GRAD_DW, UNEMBED8_LOSS_GRAD_DW);

static unembed_plan plan_make(const program *p, const op *o, int n_threads) {
    const value *h = program_get(p, o->in[UNEMBED_LOSS_H]), *w = program_get(p, o->in[UNEMBED_LOSS_W]);
    unembed_plan u = {.N = h->shape.dim[0], .C = h->shape.dim[1], .V = w->shape.dim[0], .type = h->type};
    ASSERT(h->type == w->type);
    u.eight = o->kind == OP_UNEMBED8_LOSS_GRAD;
    if (u.eight) u.type = DTYPE_BF16;
    u.vocab = u.V;
    if (o->attr.vocab > 0) u.vocab = o->attr.vocab, u.first_id = o->attr.first_id, u.V = o->attr.n_ids;
    u.gradient = op_is_loss_gradient(o->kind);
    if (o->attr.logits_scale > 0) u.scale = &o->attr.logits_scale;
    u.softcap = o->attr.logits_softcap * (u.scale ? *u.scale : 1);
    bool shared = o->kind == OP_UNEMBED_GRAD;
    int at_dh = shared ? UNEMBED_GRAD_DH : UNEMBED_LOSS_GRAD_DH;
    int at_dw = shared ? UNEMBED_GRAD_DW : UNEMBED_LOSS_GRAD_DW;
    dtype dh = u.gradient ? program_get(p, o->out[at_dh])->type : DTYPE_F32;
    u.has_dw = u.gradient && o->out[at_dw];
    dtype dw = u.has_dw ? program_get(p, o->out[at_dw])->type : DTYPE_F32;
    u.rows = op_logits_rows(p, o);
    u.n_chunks = divide_up(u.N, u.rows);
    u.n_segments = divide_up(u.V, SEGMENT);
    int64_t n_logits = u.rows * u.V;
    if (u.has_dw && dw != DTYPE_F32 && u.n_chunks > 1) {
        /* At least V_BLOCK_MIN columns: thinner products would read all of h for almost nothing. */
        u.v_block = MIN(MAX(o->attr.chunk_bytes / (4 * u.N), V_BLOCK_MIN), u.V);
        n_logits = MAX(n_logits, u.N * u.v_block);
    }
    u.at_parts = aligned((size_t)n_logits * sizeof(float));
    u.at_rows = u.at_parts + aligned((size_t)(u.rows * u.n_segments) * sizeof(segment_part));
    u.at_gemm = u.at_rows + aligned((size_t)(u.v_block ? u.N : u.rows) * sizeof(row_state));
    size_t gemm = gemm_bytes(&u, u.rows, dh, dw, n_threads);
    u.at_h = u.at_gemm + MAX(gemm, gemm_bytes(&u, u.N - (u.n_chunks - 1) * u.rows, dh, dw, n_threads));
    u.at_w = aligned(u.at_h) + (u.eight ? aligned((size_t)(u.N * u.C) * dtype_bytes(u.type)) : 0);
    u.n_bytes = u.eight ? u.at_w + (size_t)(u.V * u.C) * dtype_bytes(u.type) : u.at_h;
    u.at_h = aligned(u.at_h);
    return u;
}

static size_t unembed_work_bytes(const program *p, const op *o, int n_threads) {
    return plan_make(p, o, n_threads).n_bytes;
}

const cpu_work_fn cpu_work_UNEMBED_LOSS = unembed_work_bytes;
const cpu_work_fn cpu_work_UNEMBED_LOSS_GRAD = unembed_work_bytes;
const cpu_work_fn cpu_work_UNEMBED8_LOSS_GRAD = unembed_work_bytes;
const cpu_work_fn cpu_work_UNEMBED_STATS = unembed_work_bytes;
const cpu_work_fn cpu_work_UNEMBED_GRAD = unembed_work_bytes;

/* ---- rows of logits ------------------------------------------------------------------------------------------- */

typedef struct unembed_run {
    const unembed_plan *plan;
    const int32_t *targets; /* (N) */
    const float *weights;   /* (N) or NULL */
    float seed;
    float *losses;           /* (N) */
    int32_t *argmax;         /* (N) or NULL */
    double *stats;           /* UNEMBED_STATS: (N, n_stats), in the place of losses and argmax */
    const double *all_stats; /* UNEMBED_GRAD: (n_ranks, N, n_stats) */
    int64_t n_ranks, n_stats;
    float *logits; /* (n_rows, n_columns) of the present chunk or vocabulary block */
    segment_part *parts;
    row_state *states;
    int64_t first_row, n_rows, first_column, n_columns;
    int64_t state_row; /* the token of states[0] */
    /* Of what the sums were multiplied with: NULL, or where plan->eight those of logits, dh and dw ... */
    const float *logits_scale, *dh_scale, *dw_scale;
    float e5m2_factor; /* ... and what the gradient of the logits is multiplied with before it is rounded */
} unembed_run;

static bool trained(const unembed_run *r, int64_t row) {
    int32_t t = r->targets[r->first_row + row];
    return t >= 0 && t < r->plan->vocab;
}

/* Are its logits needed? */
static bool scanned(const unembed_run *r, int64_t row) {
    return r->argmax || (r->stats && r->n_stats > STAT_ARGMAX) || trained(r, row);
}

/* A task is one segment of one row, or several whole rows where they are short. */
static int64_t rows_per_task(const unembed_run *r) { return MAX(SEGMENT / r->n_columns, 1); }
static int64_t task_count(const unembed_run *r) {
    return divide_up(r->n_rows, rows_per_task(r)) * divide_up(r->n_columns, SEGMENT);
}
typedef struct task_range {
    int64_t row, row_end, segment, from, to;
} task_range;
static task_range task_get(const unembed_run *r, int64_t task) {
    int64_t n_segments = divide_up(r->n_columns, SEGMENT);
    task_range t = {.row = task / n_segments * rows_per_task(r), .segment = task % n_segments};
    t.row_end = MIN(t.row + rows_per_task(r), r->n_rows);
    t.from = t.segment * SEGMENT;
    t.to = MIN(t.from + SEGMENT, r->n_columns);
    return t;
}

/* Up to VEC_WIDTH floats at p; those past the end read as -inf. */
static inline vec load_tail(const float *p, int64_t n) {
    if (n >= VEC_WIDTH) return vec_load(p);
    float lane[VEC_WIDTH];
    for (int i = 0; i < VEC_WIDTH; i++) lane[i] = i < n ? p[i] : -INFINITY;
    return vec_load(lane);
}

static segment_part segment_scan(const float *x, int64_t n) {
    vec top[4];
    for (int u = 0; u < 4; u++) top[u] = vec_set(-INFINITY);
    int64_t i = 0;
    for (; i + 4 * VEC_WIDTH <= n; i += 4 * VEC_WIDTH)
        for (int u = 0; u < 4; u++) top[u] = vec_max(vec_load(x + i + u * VEC_WIDTH), top[u]);
    for (; i < n; i += VEC_WIDTH) top[0] = vec_max(load_tail(x + i, n - i), top[0]);
    float max = vec_max_lane(vec_max(vec_max(top[0], top[1]), vec_max(top[2], top[3])));

    segment_part p = {.max = max};
    while (p.argmax < n - 1 && x[p.argmax] != max) p.argmax++;
    if (x[p.argmax] != max) p.argmax = 0; /* nothing but NaN */

    float base = max == -INFINITY ? 0 : max; /* -inf - -inf would make a NaN of logits that only weigh nothing */
    for (int64_t block = 0; block < n; block += SUM_BLOCK) {
        int64_t end = MIN(block + SUM_BLOCK, n);
        vec sum[4] = {vec_set(0), vec_set(0), vec_set(0), vec_set(0)};
        for (i = block; i + 4 * VEC_WIDTH <= end; i += 4 * VEC_WIDTH)
            for (int u = 0; u < 4; u++) sum[u] += vec_exp_down(vec_load(x + i + u * VEC_WIDTH) - base);
        for (; i < end; i += VEC_WIDTH) sum[0] += vec_exp_down(load_tail(x + i, end - i) - base);
        p.sum += vec_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
    }
    return p;
}

static void scan_task(void *context, int64_t task, int thread) {
    (void)thread;
    const unembed_run *r = context;
    task_range t = task_get(r, task);
    for (int64_t row = t.row; row < t.row_end; row++)
        if (scanned(r, row))
            r->parts[row * r->plan->n_segments + t.segment] =
                segment_scan(r->logits + row * r->n_columns + t.from, t.to - t.from);
}

/* The segments of one row as one. */
static segment_part join_segments(const unembed_run *r, int64_t row) {
    int64_t n_segments = r->plan->n_segments;
    const segment_part *parts = r->parts + row * n_segments;
    segment_part all = {parts[0].max, parts[0].argmax, 0};
    for (int64_t s = 1; s < n_segments; s++)
        if (parts[s].max > all.max) {
            all.max = parts[s].max;
            all.argmax = (int32_t)(s * SEGMENT) + parts[s].argmax;
        }
    for (int64_t s = 0; s < n_segments; s++) /* -inf - -inf: such a segment adds its 0, or its NaN, as it is */
        all.sum += parts[s].sum * (parts[s].max == all.max ? 1 : exp((double)parts[s].max - all.max));
    return all;
}

static row_state gradient_state(const unembed_run *r, int64_t token, float max, double sum) {
    double weight = r->weights ? r->weights[token] : 1;
    return (row_state){max, (float)(weight * r->seed / sum)};
}

/* The segments of one row become its loss, its argmax and what its gradient needs. */
static void finish_task(void *context, int64_t row, int thread) {
    (void)thread;
    const unembed_run *r = context;
    int64_t token = r->first_row + row;
    row_state *state = &r->states[token - r->state_row];
    *state = (row_state){0};
    r->losses[token] = 0;
    if (!scanned(r, row)) return;
    segment_part all = join_segments(r, row);
    if (r->argmax) r->argmax[token] = all.argmax;
    if (!trained(r, row)) return;
    double logit = r->logits[row * r->n_columns + r->targets[token]];
    r->losses[token] = (float)((double)all.max + log(all.sum) - logit);
    *state = gradient_state(r, token, all.max, all.sum);
}

/* ... or what the ranks tell each other of it. */
static void stats_task(void *context, int64_t row, int thread) {
    (void)thread;
    const unembed_run *r = context;
    int64_t token = r->first_row + row, target = r->targets[token] - r->plan->first_id;
    double *stats = r->stats + token * r->n_stats;
    memset(stats, 0, (size_t)r->n_stats * sizeof *stats);
    if (!scanned(r, row)) return;
    segment_part all = join_segments(r, row);
    stats[STAT_MAX] = (double)all.max;
    stats[STAT_SUM] = all.sum;
    if (target >= 0 && target < r->n_columns) stats[STAT_TARGET] = (double)r->logits[row * r->n_columns + target];
    if (r->n_stats > STAT_ARGMAX) stats[STAT_ARGMAX] = (double)(r->plan->first_id + all.argmax);
}

/* Maximum and sum of a token over all ranks; the first of equal maxima has the lowest id. */
static void join_stats(const double *stats, int64_t n_ranks, int64_t N, int64_t n_stats, int64_t token,
                       double joined[4]) {
    memcpy(joined, stats + token * n_stats, (size_t)n_stats * sizeof *joined);
    for (int64_t i = 1; i < n_ranks; i++) {
        const double *s = stats + (i * N + token) * n_stats;
        joined[STAT_TARGET] += s[STAT_TARGET]; /* one of them has it, the others 0 */
        if (!(s[STAT_MAX] > joined[STAT_MAX])) continue;
        joined[STAT_MAX] = s[STAT_MAX];
        if (n_stats > STAT_ARGMAX) joined[STAT_ARGMAX] = s[STAT_ARGMAX];
    }
    joined[STAT_SUM] = 0;
    for (int64_t i = 0; i < n_ranks; i++) {
        const double *s = stats + (i * N + token) * n_stats;
        joined[STAT_SUM] += s[STAT_SUM] * (s[STAT_MAX] == joined[STAT_MAX] ? 1 : exp(s[STAT_MAX] - joined[STAT_MAX]));
    }
}

static void state_task(void *context, int64_t row, int thread) {
    (void)thread;
    const unembed_run *r = context;
    int64_t token = r->first_row + row;
    row_state *state = &r->states[token - r->state_row];
    *state = (row_state){0};
    if (!trained(r, row)) return;
    double all[4];
    join_stats(r->all_stats, r->n_ranks, r->plan->N, r->n_stats, token, all);
    *state = gradient_state(r, token, (float)all[STAT_MAX], all[STAT_SUM]);
}

/* Of capped logits to that of the logits before. */
static void cap_gradient(float *gradient, const float *capped, int64_t n, float softcap) {
    for (int64_t i = 0; i < n; i++) {
        float t = capped[i] / softcap;
        gradient[i] *= 1 - t * t;
    }
}

/* logits -> factor * exp(logit - max), less weight * seed at the target: in place, 16-bit ones packed to the left. */
static void gradient_row(const unembed_run *r, int64_t row, int64_t from, int64_t to) {
    int64_t token = r->first_row + row, target = r->targets[token] - r->plan->first_id - r->first_column;
    const row_state *state = &r->states[token - r->state_row];
    dtype type = r->plan->type;
    float *x = r->logits + row * r->n_columns;
    char *out = (char *)x;
    size_t width = dtype_bytes(type);
    if (!trained(r, row) || state->factor == 0) {
        memset(out + (size_t)from * width, 0, (size_t)(to - from) * width);
        return;
    }
    float onehot = (r->weights ? r->weights[token] : 1) * r->seed;
    for (int64_t i = from; i < to; i += 64) { /* through a buffer: the narrow row lies over the wide one */
        int64_t n = MIN(to - i, (int64_t)64);
        float block[64];
        memcpy(block, x + i, (size_t)n * sizeof(float));
        for (int64_t c = n; c % VEC_WIDTH != 0; c++) block[c] = 0;
        for (int64_t c = 0; c < n; c += VEC_WIDTH)
            vec_store(block + c, vec_exp_down(vec_load(block + c) - state->max) * state->factor);
        if (target >= i && target < i + n) block[target - i] -= onehot;
        if (r->plan->softcap > 0) cap_gradient(block, x + i, n, r->plan->softcap);
        for (int64_t c = 0; c < n && r->plan->eight; c++)
            block[c] = e5m2_to_f32(f32_to_e5m2(block[c] * r->e5m2_factor));
        row_store(out + (size_t)i * width, block, type, (size_t)n);
    }
}

/* A 16-bit row is packed over its own logits from left to right, so one task has the whole of it. */
static void gradient_task(void *context, int64_t task, int thread) {
    (void)thread;
    const unembed_run *r = context;
    if (r->plan->type == DTYPE_F32) {
        task_range t = task_get(r, task);
        for (int64_t row = t.row; row < t.row_end; row++) gradient_row(r, row, t.from, t.to);
    } else {
        gradient_row(r, task, 0, r->n_columns);
    }
}

/* ---- the walks ------------------------------------------------------------------------------------------------ */

static void run_logits(backend_context *c, const unembed_run *r, const void *h, const void *w, void *work) {
    const unembed_plan *u = r->plan;
    gemm_call g = {.m = r->n_rows,
                   .n = r->n_columns,
                   .k = u->C,
                   .a = {element_at(h, u->type, r->first_row * u->C), u->type, u->C, 1},
                   .b = {element_at(w, u->type, r->first_column * u->C), u->type, 1, u->C},
                   .c = r->logits,
                   .c_type = DTYPE_F32,
                   .ldc = r->n_columns,
                   .scale = r->logits_scale};
    gemm_run(c, &g, work);
    if (u->softcap > 0) cpu_cap_logits(c, r->logits, r->n_rows * r->n_columns, u->softcap);
}

static void run_gradient(backend_context *c, unembed_run *r) {
    pool_run(c->threads, gradient_task, r, r->plan->type == DTYPE_F32 ? task_count(r) : r->n_rows);
}

/* Elements between two rows of the gradient: a 16-bit row starts where its fp32 row started. */
static int64_t gradient_stride(const unembed_run *r) {
    return r->n_columns * (int64_t)(sizeof(float) / dtype_bytes(r->plan->type));
}

/* dw rows of these columns = (or +=) gradient^T h */
static void run_dw(backend_context *c, const unembed_run *r, const void *h, void *dw, dtype dw_type, bool accumulate,
                   void *work) {
    const unembed_plan *u = r->plan;
    gemm_call g = {.m = r->n_columns,
                   .n = u->C,
                   .k = r->n_rows,
                   .a = {r->logits, u->type, 1, gradient_stride(r)},
                   .b = {element_at(h, u->type, r->first_row * u->C), u->type, u->C, 1},
                   .c = (char *)dw + (size_t)(r->first_column * u->C) * dtype_bytes(dw_type),
                   .c_type = dw_type,
                   .ldc = u->C,
                   .scale = r->dw_scale,
                   .accumulate = accumulate && dw_type == DTYPE_F32};
    if (accumulate && dw_type != DTYPE_F32)
        g.add = g.c, g.ld_add = g.ldc; /* of losses before this one: rounded once more */
    gemm_run(c, &g, work);
}

static void run_dh(backend_context *c, const unembed_run *r, const void *w, void *dh, dtype dh_type, void *work) {
    const unembed_plan *u = r->plan;
    gemm_call g = {.m = r->n_rows,
                   .n = u->C,
                   .k = u->V,
                   .a = {r->logits, u->type, gradient_stride(r), 1},
                   .b = {w, u->type, u->C, 1},
                   .c = (char *)dh + (size_t)(r->first_row * u->C) * dtype_bytes(dh_type),
                   .c_type = dh_type,
                   .ldc = u->C,
                   .scale = r->dh_scale};
    gemm_run(c, &g, work);
}

static unembed_run run_make(const unembed_plan *u, const kernel_call *k) {
    char *work = k->work;
    return (unembed_run){.plan = u,
                         .logits_scale = u->scale,
                         .targets = k->in[UNEMBED_LOSS_TARGETS],
                         .logits = k->work,
                         .parts = (segment_part *)(work + u->at_parts),
                         .states = (row_state *)(work + u->at_rows)};
}

/* Points the run at chunk i; false when nothing in it is trained on. */
static bool run_chunk(unembed_run *r, int64_t i) {
    r->first_row = i * r->plan->rows;
    r->n_rows = MIN(r->plan->rows, r->plan->N - r->first_row);
    r->n_columns = r->plan->V;
    r->state_row = r->plan->v_block ? 0 : r->first_row;
    for (int64_t row = 0; row < r->n_rows; row++)
        if (trained(r, row)) return true;
    return false;
}

void cpu_kernel_UNEMBED_LOSS(backend_context *c, const kernel_call *k) {
    unembed_plan u = plan_make(k->program, k->op, c->n_threads);
    unembed_run r = run_make(&u, k);
    void *gemm_work = (char *)k->work + u.at_gemm;
    r.losses = k->out[UNEMBED_LOSS_LOSSES];
    r.argmax = k->out[UNEMBED_LOSS_ARGMAX];
    for (int64_t i = 0; i < u.n_chunks; i++) {
        if (!run_chunk(&r, i) && !r.argmax) {
            memset(r.losses + r.first_row, 0, (size_t)r.n_rows * sizeof(float));
            continue;
        }
        run_logits(c, &r, k->in[UNEMBED_LOSS_H], k->in[UNEMBED_LOSS_W], gemm_work);
        pool_run(c->threads, scan_task, &r, task_count(&r));
        pool_run(c->threads, finish_task, &r, r.n_rows);
    }
}

void cpu_kernel_UNEMBED_STATS(backend_context *c, const kernel_call *k) {
    unembed_plan u = plan_make(k->program, k->op, c->n_threads);
    unembed_run r = run_make(&u, k);
    void *gemm_work = (char *)k->work + u.at_gemm;
    r.stats = k->out[UNEMBED_STATS_STATS];
    r.n_stats = call_out(k, UNEMBED_STATS_STATS)->shape.dim[1];
    for (int64_t i = 0; i < u.n_chunks; i++) {
        if (run_chunk(&r, i) || r.n_stats > STAT_ARGMAX) {
            run_logits(c, &r, k->in[UNEMBED_STATS_H], k->in[UNEMBED_STATS_W], gemm_work);
            pool_run(c->threads, scan_task, &r, task_count(&r));
        }
        pool_run(c->threads, stats_task, &r, r.n_rows);
    }
}

/* Thousands of tokens, a logarithm each: one thread. */
void cpu_kernel_UNEMBED_JOIN(backend_context *c, const kernel_call *k) {
    (void)c;
    const shape *s = &call_in(k, UNEMBED_JOIN_STATS)->shape;
    const int32_t *targets = k->in[UNEMBED_JOIN_TARGETS];
    float *losses = k->out[UNEMBED_JOIN_LOSSES];
    int32_t *argmax = k->out[UNEMBED_JOIN_ARGMAX];
    for (int64_t token = 0; token < s->dim[1]; token++) {
        double all[4];
        join_stats(k->in[UNEMBED_JOIN_STATS], s->dim[0], s->dim[1], s->dim[2], token, all);
        bool valid = targets[token] >= 0 && targets[token] < k->op->attr.vocab;
        losses[token] = valid ? (float)(all[STAT_MAX] + log(all[STAT_SUM]) - all[STAT_TARGET]) : 0;
        if (argmax) argmax[token] = (int32_t)all[STAT_ARGMAX];
    }
}

/* dh =, dw = or += where it is asked for, and losses = unless ranks share them: then the numbers of each token are known before. */
static void run_loss_gradient(backend_context *c, const kernel_call *k, unembed_run *r, const void *h, const void *w,
                              void *dh, dtype dh_type, void *dw, dtype dw_type) {
    const unembed_plan *u = r->plan;
    const step_scalars *scalars = k->in[UNEMBED_LOSS_GRAD_SCALARS];
    void *gemm_work = (char *)k->work + u->at_gemm;
    r->weights = k->in[UNEMBED_LOSS_GRAD_WEIGHTS];
    r->seed = scalars->seed;

    bool adds = k->op->attr.adds, any = false; /* something was trained on, so dw has been started */
    for (int64_t i = 0; i < u->n_chunks; i++) {
        if (!run_chunk(r, i)) {
            if (r->losses) memset(r->losses + r->first_row, 0, (size_t)r->n_rows * sizeof(float));
            memset((char *)dh + (size_t)(r->first_row * u->C) * dtype_bytes(dh_type), 0,
                   (size_t)(r->n_rows * u->C) * dtype_bytes(dh_type));
            memset(r->states + (r->first_row - r->state_row), 0, (size_t)r->n_rows * sizeof(row_state));
            continue;
        }
        run_logits(c, r, h, w, gemm_work);
        if (r->all_stats) {
            pool_run(c->threads, state_task, r, r->n_rows);
        } else {
            pool_run(c->threads, scan_task, r, task_count(r));
            pool_run(c->threads, finish_task, r, r->n_rows);
        }
        run_gradient(c, r);
        run_dh(c, r, w, dh, dh_type, gemm_work);
        if (u->has_dw && !u->v_block) run_dw(c, r, h, dw, dw_type, adds || any, gemm_work);
        any = true;
    }
    if (!any && dw && !adds) memset(dw, 0, (size_t)(u->V * u->C) * dtype_bytes(dw_type));
    if (!any || !u->v_block) return;

    r->first_row = r->state_row = 0;
    r->n_rows = u->N;
    for (r->first_column = 0; r->first_column < u->V; r->first_column += u->v_block) {
        r->n_columns = MIN(u->v_block, u->V - r->first_column);
        run_logits(c, r, h, w, gemm_work);
        run_gradient(c, r);
        run_dw(c, r, h, dw, dw_type, adds, gemm_work);
    }
}

void cpu_kernel_UNEMBED_LOSS_GRAD(backend_context *c, const kernel_call *k) {
    unembed_plan u = plan_make(k->program, k->op, c->n_threads);
    unembed_run r = run_make(&u, k);
    r.losses = k->out[UNEMBED_LOSS_GRAD_LOSSES];
    run_loss_gradient(c, k, &r, k->in[UNEMBED_LOSS_GRAD_H], k->in[UNEMBED_LOSS_GRAD_W], k->out[UNEMBED_LOSS_GRAD_DH],
                      call_out(k, UNEMBED_LOSS_GRAD_DH)->type, k->out[UNEMBED_LOSS_GRAD_DW],
                      call_out(k, UNEMBED_LOSS_GRAD_DW)->type);
}

/* No |dlogit| is larger; not finite where a weight or the seed is not. */
static float dlogits_bound(const unembed_run *r, const step_scalars *scalars) {
    uint32_t most = 0, bits;
    float bound = 1;
    for (int64_t i = 0; i < r->plan->N && r->weights; i++) { /* as bits: infinity and NaN are above all numbers */
        memcpy(&bits, &r->weights[i], sizeof bits);
        most = MAX(most, bits & 0x7fffffffu);
    }
    if (r->weights) memcpy(&bound, &most, sizeof bound);
    bound *= fabsf(scalars->seed);
    return bound < 0x1p-100f ? 0x1p-100f : bound; /* NaN stays */
}

void cpu_kernel_UNEMBED8_LOSS_GRAD(backend_context *c, const kernel_call *k) { /* as UNEMBED_LOSS_GRAD */
    unembed_plan u = plan_make(k->program, k->op, c->n_threads);
    unembed_run r = run_make(&u, k);
    uint16_t *h = (void *)((char *)k->work + u.at_h), *w = (void *)((char *)k->work + u.at_w);
    float h_scale = *(const float *)k->in[UNEMBED8_LOSS_GRAD_H_SCALE];
    float w_scale = *(const float *)k->in[UNEMBED8_LOSS_GRAD_W_SCALE];
    r.losses = k->out[UNEMBED8_LOSS_GRAD_LOSSES];
    r.weights = k->in[UNEMBED8_LOSS_GRAD_WEIGHTS];
    float bound = dlogits_bound(&r, k->in[UNEMBED8_LOSS_GRAD_SCALARS]);
    float logits = h_scale * w_scale * (u.scale ? *u.scale : 1), dh = bound * 0x1p-15f * w_scale,
          dw = bound * 0x1p-15f * h_scale;
    r.e5m2_factor = 0x1p15f / bound;
    r.logits_scale = &logits, r.dh_scale = &dh, r.dw_scale = &dw;
    cpu_widen_e4m3(c, h, k->in[UNEMBED8_LOSS_GRAD_H], u.N * u.C);
    cpu_widen_e4m3(c, w, k->in[UNEMBED8_LOSS_GRAD_W], u.V * u.C);
    run_loss_gradient(c, k, &r, h, w, k->out[UNEMBED8_LOSS_GRAD_DH], DTYPE_BF16, k->out[UNEMBED8_LOSS_GRAD_DW],
                      u.has_dw ? call_out(k, UNEMBED8_LOSS_GRAD_DW)->type : DTYPE_F32);
}

void cpu_kernel_UNEMBED_GRAD(backend_context *c, const kernel_call *k) {
    unembed_plan u = plan_make(k->program, k->op, c->n_threads);
    unembed_run r = run_make(&u, k);
    const shape *stats = &call_in(k, UNEMBED_GRAD_STATS)->shape;
    const value *dw = call_out(k, UNEMBED_GRAD_DW);
    r.all_stats = k->in[UNEMBED_GRAD_STATS];
    r.n_ranks = stats->dim[0];
    r.n_stats = stats->dim[2];
    run_loss_gradient(c, k, &r, k->in[UNEMBED_GRAD_H], k->in[UNEMBED_GRAD_W], k->out[UNEMBED_GRAD_DH],
                      call_out(k, UNEMBED_GRAD_DH)->type, k->out[UNEMBED_GRAD_DW], dw->type);
    if (!u.has_dw) return;
    size_t row_bytes = (size_t)u.C * dtype_bytes(dw->type);
    memset((char *)k->out[UNEMBED_GRAD_DW] + (size_t)u.V * row_bytes, 0,
           (size_t)(dw->shape.dim[0] - u.V) * row_bytes); /* padding */
}

/* ---- loss of the step ----------------------------------------------------------------------------------------- */

/* sums = or += those of this micro-batch, which are finished first: then adding over micro-batches and over ranks is
 * the same sum. Thousands of numbers: one thread, in order. */
void cpu_kernel_LOSS_REDUCE(backend_context *c, const kernel_call *k) {
    (void)c;
    const float *losses = k->in[LOSS_REDUCE_LOSSES], *weights = k->in[LOSS_REDUCE_WEIGHTS];
    const int32_t *targets = k->in[LOSS_REDUCE_TARGETS];
    const step_scalars *scalars = k->in[LOSS_REDUCE_SCALARS];
    double *sums = (double *)k->out[LOSS_REDUCE_SUMS] + k->op->attr.loss * SUM_COUNT, part[SUM_COUNT] = {0};
    int64_t N = shape_count(&call_in(k, LOSS_REDUCE_LOSSES)->shape);
    for (int64_t i = 0; i < N; i++) {
        if (targets[i] < 0) continue;
        double weight = weights ? weights[i] : 1;
        part[SUM_WEIGHTED_LOSS] += weight * losses[i];
        part[SUM_VALID] += 1;
        part[SUM_WEIGHTS] += weight;
        part[SUM_LOSS] += losses[i];
    }
    for (int i = 0; i < SUM_COUNT; i++) sums[i] = scalars->micro == 0 ? part[i] : sums[i] + part[i];
}
