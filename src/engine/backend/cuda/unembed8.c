/* unembed8.c - UNEMBED8_LOSS_GRAD: cross entropy and its gradient with products of 8 bits.
 *
 * Tokens go in chunks: fp16 logits by a product of e4m3, losses and the states of rows by one kernel, the gradient in e5m2 with its
 * transpose by another (tensor cores want both operands contiguous along the sum). The gradients of several chunks are a
 * group, whose dh is one product. fp16 keeps 11 bits of a logit where e5m2 keeps 3 of its gradient; a logit beyond 65504 becomes
 * infinite, and so the loss no number. dw, a sum over all tokens, has three ways:
 *
 *   in groups  dw is fp32, or there is but one group: each group's product is added to dw, in order.
 *   stored     dw has 16 bits and the transpose is kept of all tokens: dw is one product.
 *   in blocks  dw has 16 bits: a second walk over blocks of the vocabulary, all tokens at once, from the states of the first.
 *
 * Which one follows from shapes and attr alone (op_logits8_cut). */
#include "backend/cuda/unembed8.h"
#include "backend/cuda/gemm.h"
#include "backend/cuda/launch_unembed8.h"
#include <stddef.h>

typedef struct unembed8_run {
    backend_context *c;
    unembed8_plan plan;
    const uint8_t *h, *h_turned, *w, *w_turned;
    const float *h_scale, *w_scale;
    char *work;
    float alpha;              /* of the logits; 0: 1 */
    bool adds;                /* dw += */
    launch_unembed8_args all; /* of all tokens */
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
    unembed_rows r = {
        .n_rows = u.plan.N,
        .n_columns = (int32_t)u.plan.V,
        .ld = u.plan.ld,
        .targets = k->in[UNEMBED8_LOSS_GRAD_TARGETS],
        .n_vocabulary = (int32_t)u.plan.V,
        .weights = k->in[UNEMBED8_LOSS_GRAD_WEIGHTS],
        .seed = (const float *)((const char *)k->in[UNEMBED8_LOSS_GRAD_SCALARS] + offsetof(step_scalars, seed)),
        .losses = k->out[UNEMBED8_LOSS_GRAD_LOSSES],
        .states = (unembed_state *)(void *)(u.work + u.plan.at_states),
        .softcap = k->op->attr.logits_softcap * (u.alpha > 0 ? u.alpha : 1)};
    u.all = (launch_unembed8_args){.r = r,
                                   .logits = k->work,
                                   .scales = (const unembed8_scales *)(const void *)(u.work + u.plan.at_scales),
                                   .q = (uint8_t *)u.work + u.plan.at_q,
                                   .q_ld = u.plan.q_ld,
                                   .t = (uint8_t *)u.work + u.plan.at_t,
                                   .t_ld = u.plan.t_ld};
    return u;
}

/* A chunk of the group that begins at token `group`. */
static launch_unembed8_args chunk_from(const unembed8_run *u, int64_t group, int64_t first, int64_t n_rows) {
    const unembed8_plan *p = &u->plan;
    launch_unembed8_args a = u->all;
    a.r.n_rows = n_rows;
    a.r.targets += first;
    a.r.losses += first;
    a.r.states += first;
    if (a.r.weights) a.r.weights += first;
    a.q += (first - group) * p->q_ld;
    a.t = !p->has_dw || p->cut.v_block ? NULL : a.t + (p->cut.stored ? first : first - group);
    return a;
}

static void run_logits(const unembed8_run *u, const launch_unembed8_args *a, int64_t first_row) {
    const unembed8_plan *p = &u->plan;
    const unembed_rows *r = &a->r;
    gemm_call g = {.q = unembed8_logits_product(p, r->n_rows, r->n_columns, r->ld),
                   .a = u->h + first_row * p->C,
                   .a_scale = u->h_scale,
                   .b = u->w + r->first_column * p->C,
                   .b_scale = u->w_scale,
                   .c = u->work,
                   .alpha = u->alpha,
                   .work = u->work + p->at_products};
    gemm_launch(u->c, &g);
    if (r->softcap > 0)
        launch_cap_logits(u->c->stream, LAUNCH_F16, u->work, r->n_rows, r->n_columns, r->ld, r->softcap);
}

static void run_dh(const unembed8_run *u, int64_t first_row, int64_t n_rows) {
    const unembed8_plan *p = &u->plan;
    gemm_call g = {.q = unembed8_dh_product(p, n_rows),
                   .a = u->all.q,
                   .a_scale = &u->all.scales->scale,
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
                   .a = u->all.t,
                   .a_scale = &u->all.scales->scale,
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
    const logits8_cut *cut = &p->cut;
    launch_unembed8_scales(c->stream, (unembed8_scales *)(void *)(u.work + p->at_scales), u.all.r.weights, p->N,
                           u.all.r.seed);
    for (int64_t group = 0; group < p->N; group += cut->group) {
        int64_t end = MIN(group + cut->group, p->N);
        for (int64_t first = group; first < end; first += cut->rows) {
            launch_unembed8_args a = chunk_from(&u, group, first, MIN(cut->rows, end - first));
            run_logits(&u, &a, first);
            launch_unembed8_loss(c->stream, &a);
            launch_unembed8_grad(c->stream, &a);
        }
        run_dh(&u, group, end - group);
        if (p->has_dw && !cut->stored && !cut->v_block) run_dw(&u, group, end - group, 0, p->V, u.adds || group > 0);
    }
    if (cut->stored) run_dw(&u, 0, p->N, 0, p->V, u.adds);
    launch_unembed8_args a = u.all;
    a.q = NULL, a.r.ld = p->v_ld;
    for (int64_t column = 0; cut->v_block && column < p->V; column += cut->v_block) {
        a.r.first_column = (int32_t)column;
        a.r.n_columns = (int32_t)MIN(cut->v_block, p->V - column);
        run_logits(&u, &a, 0);
        launch_unembed8_grad(c->stream, &a);
        run_dw(&u, 0, p->N, column, a.r.n_columns, u.adds);
    }
}
