/* unembed.c - from hidden states to cross entropy and its gradient, and to logits for sampling.
 *
 * Tokens go in chunks whose fp32 logits fit attr.chunk_bytes: logits by a product, losses and the gradient of the logits by
 * one kernel (unembed.cu), dh by a product. dw is a sum over all tokens, and there are three ways to it:
 *
 *   stored     the gradient of all logits is kept in 16 bits where the budget holds it beside a chunk: dh and dw are one
 *              product each. 6 N V C flops, and nothing is added up outside a product.
 *   in chunks  dw is fp32, or there is but one chunk: the gradient lies on the logits it came from, and each chunk's
 *              product is added to dw, in order. 6 N V C flops; dw is read and written once per chunk.
 *   in blocks  dw has 16 bits and must be rounded once, and an fp32 copy (V, C) would cost what the chunks save: a second
 *              walk goes over blocks of the vocabulary, all tokens at once: logits again, gradient again, one product that
 *              finishes its rows of dw. 8 N V C flops, and 8 bytes per token for what the gradient needs.
 *
 * Where ranks share the vocabulary, UNEMBED_STATS ends with a few numbers per token and UNEMBED_GRAD begins with those of
 * all ranks: it computes the logits again and goes the same ways, with the states of all tokens known before.
 *
 * Without dw the chunks are the same, and its products and the walk over blocks are not there.
 *
 * Which one follows from shapes and attr alone (work_gemm.c). The device does not tell the host which tokens are trained
 * on, so a chunk without any is computed like the others; its gradient is 0. */
#include "backend/cuda/gemm.h"
#include "backend/cuda/launch_unembed.h"
#include <stddef.h>

typedef struct unembed_run {
    backend_context *c;
    unembed_plan plan;
    const void *h, *w;
    char *work;
    bool adds;        /* dw += */
    float scale;      /* of the logits; 0: 1 */
    unembed_rows all; /* of all tokens; logits and gradient are set where they are used */
} unembed_run;

static const void *element(const void *data, dtype t, int64_t i) {
    return (const char *)data + (size_t)i * dtype_bytes(t);
}
static void *element_of(void *data, dtype t, int64_t i) { return (char *)data + (size_t)i * dtype_bytes(t); }

SAME_PLACE(UNEMBED_LOSS_H, UNEMBED_LOSS_GRAD_H, UNEMBED_STATS_H, UNEMBED_GRAD_H);
SAME_PLACE(UNEMBED_LOSS_W, UNEMBED_LOSS_GRAD_W, UNEMBED_STATS_W, UNEMBED_GRAD_W);
SAME_PLACE(UNEMBED_LOSS_TARGETS, UNEMBED_LOSS_GRAD_TARGETS, UNEMBED_STATS_TARGETS, UNEMBED_GRAD_TARGETS);

static unembed_run run_make(backend_context *c, const kernel_call *k) {
    unembed_run u = {.c = c,
                     .plan = unembed_plan_make(k->program, k->op),
                     .h = k->in[UNEMBED_LOSS_H],
                     .w = k->in[UNEMBED_LOSS_W],
                     .work = k->work,
                     .adds = k->op->attr.adds,
                     .scale = k->op->attr.logits_scale};
    ASSERT(u.plan.vocab <= INT32_MAX - 65536); /* columns are counted in 32 bits, with room for a step past the end */
    u.all = (unembed_rows){.n_rows = u.plan.N,
                           .n_columns = (int32_t)u.plan.V,
                           .logits = k->work,
                           .ld = u.plan.ld,
                           .targets = k->in[UNEMBED_LOSS_TARGETS],
                           .n_vocabulary = (int32_t)u.plan.vocab,
                           .first_id = (int32_t)u.plan.first_id,
                           .softcap = k->op->attr.logits_softcap * (u.scale > 0 ? u.scale : 1),
                           .type = launch_type_of(u.plan.type)};
    return u;
}

/* Tokens first .. first + n_rows. */
static unembed_rows rows_from(const unembed_run *u, int64_t first, int64_t n_rows) {
    unembed_rows r = u->all;
    r.n_rows = n_rows;
    r.targets += first;
    if (r.losses) r.losses += first;
    if (r.weights) r.weights += first;
    if (r.argmax) r.argmax += first;
    if (r.states) r.states += first;
    return r;
}

static void product_run(const unembed_run *u, product q, const void *a, const void *b, void *out) {
    gemm_call g = {.q = q, .a = a, .b = b, .c = out, .work = u->work + u->plan.at_products};
    gemm_launch(u->c, &g);
}

static void run_logits(const unembed_run *u, const unembed_rows *r, int64_t first_row) {
    const unembed_plan *p = &u->plan;
    gemm_call g = {.q = unembed_logits_product(p, r->n_rows, r->n_columns, r->ld),
                   .a = element(u->h, p->type, first_row * p->C),
                   .b = element(u->w, p->type, r->first_column * p->C),
                   .c = r->logits,
                   .alpha = u->scale,
                   .work = u->work + p->at_products};
    gemm_launch(u->c, &g);
    if (r->softcap > 0)
        launch_cap_logits(u->c->stream, LAUNCH_F32, r->logits, r->n_rows, r->n_columns, r->ld, r->softcap);
}

static void run_dh(const unembed_run *u, const unembed_rows *r, int64_t first_row, void *dh) {
    const unembed_plan *p = &u->plan;
    product_run(u, unembed_dh_product(p, r->n_rows, r->gradient_ld), r->gradient, u->w,
                element_of(dh, p->dh_type, first_row * p->C));
}

/* dw rows of these columns = (or +=) gradient^T h */
static void run_dw(const unembed_run *u, const unembed_rows *r, int64_t first_row, void *dw, bool accumulate) {
    const unembed_plan *p = &u->plan;
    product q = unembed_dw_product(p, r->n_rows, r->n_columns, r->gradient_ld);
    q.accumulate = accumulate;
    product_run(u, q, r->gradient, element(u->h, p->type, first_row * p->C),
                element_of(dw, p->dw_type, r->first_column * p->C));
}

static void gradient_in_place(const unembed_run *u, unembed_rows *r) {
    r->gradient = unembed_gradient_place(r->logits, r->ld, r->type);
    r->gradient_ld = unembed_gradient_ld(&u->plan, r->ld);
}

void cuda_kernel_UNEMBED_LOSS(backend_context *c, const kernel_call *k) {
    unembed_run u = run_make(c, k);
    u.all.losses = k->out[UNEMBED_LOSS_LOSSES];
    u.all.argmax = k->out[UNEMBED_LOSS_ARGMAX];
    for (int64_t first = 0; first < u.plan.N; first += u.plan.rows) {
        unembed_rows r = rows_from(&u, first, MIN(u.plan.rows, u.plan.N - first));
        run_logits(&u, &r, first);
        launch_unembed_loss(c->stream, &r);
    }
}

/* Losses and gradient of a chunk; only the gradient where the states of all tokens are known before. */
static void chunk_gradient(const unembed_run *u, const unembed_rows *r) {
    if (r->losses) launch_unembed_loss_grad(u->c->stream, r);
    else launch_unembed_grad(u->c->stream, r);
}

static void run_stored(const unembed_run *u, void *dh, void *dw) {
    const unembed_plan *p = &u->plan;
    void *stored = u->work + p->at_stored;
    for (int64_t first = 0; first < p->N; first += p->rows) {
        unembed_rows r = rows_from(u, first, MIN(p->rows, p->N - first));
        r.gradient = element_of(stored, p->type, first * p->ld);
        r.gradient_ld = p->ld;
        run_logits(u, &r, first);
        chunk_gradient(u, &r);
    }
    unembed_rows all = u->all;
    all.gradient = stored;
    all.gradient_ld = p->ld;
    run_dh(u, &all, 0, dh);
    if (p->has_dw) run_dw(u, &all, 0, dw, u->adds);
}

static void run_chunks(const unembed_run *u, void *dh, void *dw) {
    const unembed_plan *p = &u->plan;
    for (int64_t first = 0; first < p->N; first += p->rows) {
        unembed_rows r = rows_from(u, first, MIN(p->rows, p->N - first));
        gradient_in_place(u, &r);
        run_logits(u, &r, first);
        chunk_gradient(u, &r);
        run_dh(u, &r, first, dh);
        if (p->has_dw && p->v_block == 0) run_dw(u, &r, first, dw, u->adds || first > 0);
    }
    if (p->v_block == 0) return;

    unembed_rows r = u->all;
    r.ld = p->v_ld;
    gradient_in_place(u, &r);
    for (int64_t column = 0; column < p->V; column += p->v_block) {
        r.first_column = (int32_t)column;
        r.n_columns = (int32_t)MIN(p->v_block, p->V - column);
        run_logits(u, &r, 0);
        launch_unembed_grad(u->c->stream, &r);
        run_dw(u, &r, 0, dw, u->adds);
    }
}

SAME_PLACE(UNEMBED_LOSS_GRAD_WEIGHTS, UNEMBED_GRAD_WEIGHTS);
SAME_PLACE(UNEMBED_LOSS_GRAD_SCALARS, UNEMBED_GRAD_SCALARS);

static unembed_run gradient_make(backend_context *c, const kernel_call *k) {
    unembed_run u = run_make(c, k);
    u.all.weights = k->in[UNEMBED_LOSS_GRAD_WEIGHTS];
    u.all.seed = (const float *)((const char *)k->in[UNEMBED_LOSS_GRAD_SCALARS] + offsetof(step_scalars, seed));
    if (u.plan.keeps_states) u.all.states = (unembed_state *)(u.work + u.plan.at_states);
    return u;
}

static void run_gradient(const unembed_run *u, void *dh, void *dw) {
    if (u->plan.stored) run_stored(u, dh, dw);
    else run_chunks(u, dh, dw);
}

/* losses =, dh =, dw = or += where it is asked for */
void cuda_kernel_UNEMBED_LOSS_GRAD(backend_context *c, const kernel_call *k) {
    unembed_run u = gradient_make(c, k);
    u.all.losses = k->out[UNEMBED_LOSS_GRAD_LOSSES];
    run_gradient(&u, k->out[UNEMBED_LOSS_GRAD_DH], k->out[UNEMBED_LOSS_GRAD_DW]);
}

/* ---- ranks that share the vocabulary ------------------------------------------------------------------------------ */

_Static_assert((int)LAUNCH_STAT_MAX == STAT_MAX && (int)LAUNCH_STAT_SUM == STAT_SUM &&
                   (int)LAUNCH_STAT_TARGET == STAT_TARGET && (int)LAUNCH_STAT_ARGMAX == STAT_ARGMAX,
               "the numbers of a row of logits");

void cuda_kernel_UNEMBED_STATS(backend_context *c, const kernel_call *k) {
    unembed_run u = run_make(c, k);
    int64_t n_stats = call_out(k, UNEMBED_STATS_STATS)->shape.dim[1];
    for (int64_t first = 0; first < u.plan.N; first += u.plan.rows) {
        unembed_rows r = rows_from(&u, first, MIN(u.plan.rows, u.plan.N - first));
        run_logits(&u, &r, first);
        launch_unembed_stats(c->stream, &r, (double *)k->out[UNEMBED_STATS_STATS] + first * n_stats, (int)n_stats);
    }
}

void cuda_kernel_UNEMBED_JOIN(backend_context *c, const kernel_call *k) {
    const shape *stats = &call_in(k, UNEMBED_JOIN_STATS)->shape;
    unembed_rows r = {.n_rows = stats->dim[1],
                      .targets = k->in[UNEMBED_JOIN_TARGETS],
                      .n_vocabulary = (int32_t)k->op->attr.vocab,
                      .losses = k->out[UNEMBED_JOIN_LOSSES],
                      .argmax = k->out[UNEMBED_JOIN_ARGMAX]};
    ASSERT(!r.argmax || stats->dim[2] > STAT_ARGMAX);
    launch_unembed_join(c->stream, &r, k->in[UNEMBED_JOIN_STATS], (int)stats->dim[0], (int)stats->dim[2]);
}

/* dh =, dw =, the rows of dw that are padding 0; dw may be absent */
void cuda_kernel_UNEMBED_GRAD(backend_context *c, const kernel_call *k) {
    unembed_run u = gradient_make(c, k);
    const shape *stats = &call_in(k, UNEMBED_GRAD_STATS)->shape;
    const value *dw = call_out(k, UNEMBED_GRAD_DW);
    launch_unembed_states(c->stream, &u.all, k->in[UNEMBED_GRAD_STATS], (int)stats->dim[0], (int)stats->dim[2]);
    run_gradient(&u, k->out[UNEMBED_GRAD_DH], k->out[UNEMBED_GRAD_DW]);
    if (!u.plan.has_dw) return;
    int64_t used = u.plan.V * u.plan.C;
    cudaMemsetAsync(element_of(k->out[UNEMBED_GRAD_DW], dw->type, used), 0,
                    (size_t)(shape_count(&dw->shape) - used) * dtype_bytes(dw->type), c->stream);
}

/* ---- logits for sampling ------------------------------------------------------------------------------------------ */

/* logits = ; rows that op.rows leaves out are computed too, from whatever row they pick. */
void cuda_kernel_UNEMBED_LOGITS(backend_context *c, const kernel_call *k) {
    const value *h = call_in(k, UNEMBED_LOGITS_H);
    gemm_call g = {.q = logits_product(k->program, k->op),
                   .a = k->in[UNEMBED_LOGITS_H],
                   .b = k->in[UNEMBED_LOGITS_W],
                   .c = k->out[UNEMBED_LOGITS_LOGITS]};
    g.work = (char *)k->work + logits_picked_bytes(k->program, k->op);
    if (k->in[UNEMBED_LOGITS_PICK]) {
        launch_gather_rows(c->stream, k->work, k->in[UNEMBED_LOGITS_H], k->in[UNEMBED_LOGITS_PICK], g.q.m,
                           h->shape.dim[0], g.q.k * (int64_t)dtype_bytes(h->type));
        g.a = k->work;
    }
    gemm_launch(c, &g);
    float softcap = k->op->attr.logits_softcap;
    const shape *s = &call_out(k, UNEMBED_LOGITS_LOGITS)->shape;
    if (softcap > 0)
        launch_cap_logits(c->stream, LAUNCH_F32, k->out[UNEMBED_LOGITS_LOGITS], s->dim[0], s->dim[1], s->dim[1],
                          softcap);
}
