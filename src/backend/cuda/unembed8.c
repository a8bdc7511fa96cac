/* unembed8.c - UNEMBED8_LOSS_GRAD: cross entropy and its gradient with products of 8 bits.
 *
 * Tokens go in chunks whose logits and gradients fit attr.chunk_bytes: fp32 logits by a product of e4m3, losses and the states of
 * rows by one kernel, the gradient in e5m2 with its transpose by another (tensor cores want both operands contiguous along the
 * sum), dh by a product. dw, a sum over all tokens, has the three ways of unembed.c:
 *
 *   stored     the transpose is kept of all tokens: dw is one product.
 *   in chunks  dw is fp32, or there is but one chunk: each chunk's product is added to dw, in order.
 *   in blocks  dw has 16 bits: a second walk over blocks of the vocabulary, all tokens at once, from the states of the first.
 *
 * Which one follows from shapes and attr alone (work_unembed8.c). */
#include "backend/cuda/unembed8.h"
#include "backend/cuda/gemm.h"
#include "backend/cuda/launch_unembed8.h"
#include <stddef.h>

typedef struct unembed8_run {
    backend_context *c;
    unembed8_plan plan;
    const uint8_t *h, *h_turned, *w, *w_turned;
    const float *h_scale, *w_scale;
    unembed8_scales *scales; /* of the gradient of the logits */
    char *work;
    uint8_t *q, *t;
    float alpha; /* of the logits; 0: 1 */
    bool adds;   /* dw += */
    unembed_rows all;
    uint16_t *dh;
    char *dw;
} unembed8_run;

static unembed8_run run_make(backend_context *c, const kernel_call *k) {
    unembed8_run u = {.c = c,
                      .plan = unembed8_plan_make(k->program, k->op),
                      .h = k->in[UNEMBED8_LOSS_GRAD_H],
                      .h_turned = k->in[UNEMBED8_LOSS_GRAD_H_TURNED],
                      .w = k->in[UNEMBED8_LOSS_GRAD_W],
                      .w_turned = k->in[UNEMBED8_LOSS_GRAD_W_TURNED],
                      .h_scale = k->in[UNEMBED8_LOSS_GRAD_H_SCALE],
                      .w_scale = k->in[UNEMBED8_LOSS_GRAD_W_SCALE],
                      .work = k->work,
                      .alpha = k->op->attr.logits_scale,
                      .adds = k->op->attr.adds,
                      .dh = k->out[UNEMBED8_LOSS_GRAD_DH],
                      .dw = k->out[UNEMBED8_LOSS_GRAD_DW]};
    ASSERT(u.plan.V <= INT32_MAX - 65536); /* columns are counted in 32 bits, with room for a step past the end */
    u.q = (uint8_t *)u.work + u.plan.at_q;
    u.t = (uint8_t *)u.work + u.plan.at_t;
    u.scales = (unembed8_scales *)(void *)(u.work + u.plan.at_scales);
    u.all = (unembed_rows){
        .n_rows = u.plan.N,
        .n_columns = (int32_t)u.plan.V,
        .logits = k->work,
        .ld = u.plan.ld,
        .targets = k->in[UNEMBED8_LOSS_GRAD_TARGETS],
        .n_vocabulary = (int32_t)u.plan.V,
        .weights = k->in[UNEMBED8_LOSS_GRAD_WEIGHTS],
        .seed = (const float *)((const char *)k->in[UNEMBED8_LOSS_GRAD_SCALARS] + offsetof(step_scalars, seed)),
        .losses = k->out[UNEMBED8_LOSS_GRAD_LOSSES],
        .states = (unembed_state *)(void *)(u.work + u.plan.at_states),
        .softcap = k->op->attr.logits_softcap * (u.alpha > 0 ? u.alpha : 1)};
    return u;
}

static unembed_rows rows_from(const unembed8_run *u, int64_t first, int64_t n_rows) {
    unembed_rows r = u->all;
    r.n_rows = n_rows;
    r.targets += first;
    r.losses += first;
    r.states += first;
    if (r.weights) r.weights += first;
    return r;
}

static void run_logits(const unembed8_run *u, const unembed_rows *r, int64_t first_row) {
    const unembed8_plan *p = &u->plan;
    gemm_call g = {.q = unembed8_logits_product(p, r->n_rows, r->n_columns, r->ld),
                   .a = u->h + first_row * p->C,
                   .a_scale = u->h_scale,
                   .b = u->w + r->first_column * p->C,
                   .b_scale = u->w_scale,
                   .c = r->logits,
                   .alpha = u->alpha,
                   .work = u->work + p->at_products};
    gemm_launch(u->c, &g);
    if (r->softcap > 0) launch_cap_logits(u->c->stream, r->logits, r->n_rows, r->n_columns, r->ld, r->softcap);
}

static void run_dlogits(const unembed8_run *u, const unembed_rows *r, uint8_t *q, uint8_t *t) {
    launch_dlogits_args a = {.r = *r, .scales = u->scales, .q = q, .q_ld = u->plan.q_ld, .t = t, .t_ld = u->plan.t_ld};
    launch_dlogits(u->c->stream, &a);
}

static void run_dh(const unembed8_run *u, int64_t first_row, int64_t n_rows) {
    const unembed8_plan *p = &u->plan;
    gemm_call g = {.q = unembed8_dh_product(p, n_rows),
                   .a = u->q,
                   .a_scale = &u->scales->scale,
                   .b = u->w_turned,
                   .b_scale = u->w_scale,
                   .c = u->dh + first_row * p->C,
                   .work = u->work + p->at_products};
    gemm_launch(u->c, &g);
}

/* dw rows of n_columns from first_column on = (or +=) of these tokens. */
static void run_dw(const unembed8_run *u, int64_t first_row, int64_t n_rows, int64_t first_column, int64_t n_columns,
                   bool accumulate) {
    const unembed8_plan *p = &u->plan;
    gemm_call g = {.q = unembed8_dw_product(p, n_rows, n_columns),
                   .a = u->t,
                   .a_scale = &u->scales->scale,
                   .b = u->h_turned + first_row,
                   .b_scale = u->h_scale,
                   .c = u->dw + (size_t)(first_column * p->C) * dtype_bytes(p->dw_type),
                   .work = u->work + p->at_products};
    g.q.accumulate = accumulate;
    gemm_launch(u->c, &g);
}

/* losses =, dh =, dw = or += where it is asked for */
void cuda_kernel_UNEMBED8_LOSS_GRAD(backend_context *c, const kernel_call *k) {
    unembed8_run u = run_make(c, k);
    const unembed8_plan *p = &u.plan;
    launch_unembed8_scales(c->stream, u.scales, u.all.weights, p->N, u.all.seed);
    for (int64_t first = 0; first < p->N; first += p->rows) {
        unembed_rows r = rows_from(&u, first, MIN(p->rows, p->N - first));
        uint8_t *t = !p->has_dw || p->v_block ? NULL : u.t + (p->stored ? first : 0);
        run_logits(&u, &r, first);
        launch_unembed_loss(c->stream, &r);
        run_dlogits(&u, &r, u.q, t);
        run_dh(&u, first, r.n_rows);
        if (t && !p->stored) run_dw(&u, first, r.n_rows, 0, p->V, u.adds || first > 0);
    }
    if (p->stored) run_dw(&u, 0, p->N, 0, p->V, u.adds);
    unembed_rows r = u.all;
    r.ld = p->v_ld;
    for (int64_t column = 0; p->v_block && column < p->V; column += p->v_block) {
        r.first_column = (int32_t)column;
        r.n_columns = (int32_t)MIN(p->v_block, p->V - column);
        run_logits(&u, &r, 0);
        run_dlogits(&u, &r, NULL, u.t);
        run_dw(&u, 0, p->N, column, r.n_columns, u.adds);
    }
}
