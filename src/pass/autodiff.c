/* autodiff.c - append the backward of the training section.
 *
 * Walks the forward ops in reverse; every op kind has one function that writes its own backward. The gradient of an
 * activation is a value; the gradient of a parameter goes where the step collects it:
 *   - accumulation 1: straight into the persistent gradient;
 *   - accumulation A: into a temporary, finished over the micro-batch, then added by ACCUMULATE. A finished product is
 *     added as one number, so N micro-batches on one rank and one on each of N ranks are the same sum.
 * A tied embedding is written by the loss and completed by the embedding's backward, so with accumulation its temporary
 * (V, C) lives through the whole backward: the price of that equality, shown in the plan.
 *
 * The loss op becomes loss-and-gradient in one pass over the logits; nothing in the forward is kept for it. */
#include "pass/buckets.h"

#include <stdlib.h>

typedef struct differ {
    program *p;
    pass_context *c;
    value_id *gradient; /* of each forward value; NO_VALUE where none yet */
    value_id *pending;  /* of each parameter: the temporary not yet accumulated */
    flat_place *places; /* of each parameter */
} differ;

static value_id grad_value(differ *d, value_id of) {
    const value *v = program_get(d->p, of);
    char name[160];
    snprintf(name, sizeof name, "d.%s", v->name);
    value_id g = program_value(d->p, name, v->type, v->shape, ROLE_ACTIVATION, SECTION_MICRO);
    d->p->values[g].layer = d->p->current_layer;
    return g;
}

static op *emit(differ *d, op_kind k, const op *forward) {
    op *o = program_emit(d->p, k, SECTION_MICRO);
    o->attr = forward->attr;
    o->layer = forward->layer;
    return o;
}

/* The gradient that has arrived at v so far; the caller takes it over. */
static value_id take_gradient(differ *d, value_id v) {
    value_id g = d->gradient[v];
    d->gradient[v] = NO_VALUE;
    return g;
}

/* One more gradient arrives at v; several are summed in the order the backward meets them. */
static void give_gradient(differ *d, value_id v, value_id g, const op *forward) {
    if (d->gradient[v] == NO_VALUE) {
        d->gradient[v] = g;
        return;
    }
    value_id sum = grad_value(d, v);
    op *o = emit(d, OP_ADD, forward);
    op_in(o, 0, d->gradient[v]), op_in(o, 1, g);
    op_out(o, 0, sum);
    d->gradient[v] = sum;
}

static size_t param_index(const differ *d, value_id v) {
    const model *m = d->c->model;
    for (size_t i = 0; i < m->n_params; i++)
        if (m->params[i].value == v) return i;
    return SIZE_MAX;
}

/* Where the gradient of parameter v is to be written in this micro-batch. */
static value_id param_target(differ *d, value_id v) {
    size_t i = param_index(d, v);
    ASSERT(i != SIZE_MAX);
    if (d->c->accumulation == 1) return d->c->grads[i];
    if (d->pending[i]) return d->pending[i];
    const value *g = program_get(d->p, d->c->grads[i]);
    char name[160];
    snprintf(name, sizeof name, "fresh.%s", g->name);
    d->pending[i] = program_value(d->p, name, g->type, g->shape, ROLE_WORK, SECTION_MICRO);
    return d->pending[i];
}

/* The gradient of v is finished for this micro-batch: add it to the accumulator. */
static void param_finish(differ *d, value_id v, const op *forward) {
    size_t i = param_index(d, v);
    if (d->c->accumulation == 1 || d->pending[i] == NO_VALUE) return;
    op *o = emit(d, OP_ACCUMULATE, forward);
    o->attr.noise_key = bucket_noise_key(d->places[i].unit);
    o->attr.first_element = d->places[i].offset;
    op_in(o, 0, d->pending[i]), op_in(o, 1, d->c->model->scalars);
    op_out(o, 0, d->c->grads[i]);
    d->pending[i] = NO_VALUE;
}

/* ---- one function per op ------------------------------------------------------------------------------------------ */

static void backward_linear(differ *d, const op *f, value_id dy) {
    /* dw first: it is the last reader of x, whose bytes are then free for dx. */
    op *o = emit(d, OP_LINEAR_DW, f);
    value_id dw = param_target(d, f->in[1]);
    op_in(o, 0, dy), op_in(o, 1, f->in[0]);
    op_out(o, 0, dw);
    param_finish(d, f->in[1], f);
    value_id dx = grad_value(d, f->in[0]);
    o = emit(d, OP_LINEAR_DX, f);
    op_in(o, 0, dy), op_in(o, 1, f->in[1]);
    op_out(o, 0, dx);
    give_gradient(d, f->in[0], dx, f);
}

static void backward_add_bias(differ *d, const op *f, value_id dy) {
    value_id db = param_target(d, f->in[1]);
    op *o = emit(d, OP_BIAS_GRAD, f);
    op_in(o, 0, dy);
    op_out(o, 0, db);
    param_finish(d, f->in[1], f);
    give_gradient(d, f->in[0], dy, f);
}

/* The residual gradient that already waits at x is added inside the kernel: one pass over the rows less. */
static void backward_norm(differ *d, const op *f, value_id dy) {
    bool layernorm = f->kind == OP_LAYERNORM;
    value_id x = f->in[0], residual = take_gradient(d, x), dx = grad_value(d, x);
    value_id dgamma = param_target(d, f->in[1]), dbeta = layernorm ? param_target(d, f->in[2]) : NO_VALUE;
    op *o = emit(d, layernorm ? OP_LAYERNORM_BWD : OP_RMSNORM_BWD, f);
    int i = 0;
    op_in(o, i++, x), op_in(o, i++, f->in[1]);
    if (layernorm) op_in(o, i++, f->out[1]);
    op_in(o, i++, layernorm ? f->out[2] : f->out[1]);
    op_in(o, i++, dy), op_in(o, i++, residual);
    op_out(o, 0, dx), op_out(o, 1, dgamma);
    if (layernorm) op_out(o, 2, dbeta);
    param_finish(d, f->in[1], f);
    if (layernorm) param_finish(d, f->in[2], f);
    d->gradient[x] = dx;
}

static void backward_qk_norm(differ *d, const op *f, value_id dy) {
    value_id dx = grad_value(d, f->in[0]);
    value_id dq = param_target(d, f->in[1]), dk = param_target(d, f->in[2]);
    op *o = emit(d, OP_QK_NORM_BWD, f);
    op_in(o, 0, f->in[0]), op_in(o, 1, f->in[1]), op_in(o, 2, f->in[2]), op_in(o, 3, f->out[1]), op_in(o, 4, dy);
    op_out(o, 0, dx), op_out(o, 1, dq), op_out(o, 2, dk);
    param_finish(d, f->in[1], f);
    param_finish(d, f->in[2], f);
    give_gradient(d, f->in[0], dx, f);
}

/* A rotation's backward is the rotation back. */
static void backward_rope(differ *d, const op *f, value_id dy) {
    value_id dx = grad_value(d, f->in[0]);
    op *o = emit(d, OP_ROPE, f);
    o->attr.inverse = !f->attr.inverse;
    op_in(o, 0, dy), op_in(o, 1, f->in[1]), op_in(o, 2, f->in[2]);
    op_out(o, 0, dx);
    give_gradient(d, f->in[0], dx, f);
}

static void backward_attention(differ *d, const op *f, value_id dy) {
    value_id dx = grad_value(d, f->in[0]);
    op *o = emit(d, OP_ATTENTION_BWD, f);
    op_in(o, 0, f->in[0]), op_in(o, 1, f->in[1]), op_in(o, 2, f->out[0]), op_in(o, 3, f->out[1]), op_in(o, 4, dy);
    op_out(o, 0, dx);
    give_gradient(d, f->in[0], dx, f);
}

static void backward_activation(differ *d, const op *f, value_id dy) {
    value_id dx = grad_value(d, f->in[0]);
    op *o = emit(d, f->kind == OP_GELU ? OP_GELU_BWD : OP_SWIGLU_BWD, f);
    op_in(o, 0, f->in[0]), op_in(o, 1, dy);
    op_out(o, 0, dx);
    give_gradient(d, f->in[0], dx, f);
}

static void backward_embed(differ *d, const op *f, value_id dy) {
    value_id table = f->in[1];
    bool tied = d->c->model->config.tied;
    value_id dtable = param_target(d, table);
    op *o = emit(d, tied ? OP_EMBED_BWD_ADD : OP_EMBED_BWD, f);
    op_in(o, 0, f->in[0]), op_in(o, 1, dy);
    op_out(o, 0, dtable);
    param_finish(d, table, f);
    if (f->in[3] == NO_VALUE) return;
    value_id dpositions = param_target(d, f->in[3]);
    o = emit(d, OP_POSITION_BWD, f);
    op_in(o, 0, f->in[2]), op_in(o, 1, dy);
    op_out(o, 0, dpositions);
    param_finish(d, f->in[3], f);
}

/* Forward and gradient together. The weights are known before the step, so one pass over the logits is enough. */
static void loss_with_gradient(differ *d, const op *f) {
    const model *m = d->c->model;
    value_id dh = grad_value(d, f->in[0]), dw = param_target(d, f->in[1]);
    op *o = emit(d, OP_UNEMBED_LOSS_GRAD, f);
    op_in(o, 0, f->in[0]), op_in(o, 1, f->in[1]), op_in(o, 2, f->in[2]), op_in(o, 3, m->weights),
        op_in(o, 4, m->scalars);
    op_out(o, 0, f->out[0]), op_out(o, 1, dh), op_out(o, 2, dw);
    d->gradient[f->in[0]] = dh;
    if (!m->config.tied) param_finish(d, f->in[1], f);
    o = emit(d, OP_LOSS_REDUCE, f);
    op_in(o, 0, f->out[0]), op_in(o, 1, f->in[2]), op_in(o, 2, m->weights), op_in(o, 3, m->scalars);
    op_out(o, 0, d->c->loss_sums);
}

static status backward(differ *d, const op *f) {
    value_id dy = take_gradient(d, f->out[0]);
    if (dy == NO_VALUE) return ERR(ERR_BUG, "autodiff: no gradient reaches '%s'", d->p->values[f->out[0]].name);
    switch (f->kind) {
    case OP_LINEAR: backward_linear(d, f, dy); return OK;
    case OP_ADD_BIAS: backward_add_bias(d, f, dy); return OK;
    case OP_RMSNORM:
    case OP_LAYERNORM: backward_norm(d, f, dy); return OK;
    case OP_QK_NORM: backward_qk_norm(d, f, dy); return OK;
    case OP_ROPE: backward_rope(d, f, dy); return OK;
    case OP_ATTENTION: backward_attention(d, f, dy); return OK;
    case OP_GELU:
    case OP_SWIGLU: backward_activation(d, f, dy); return OK;
    case OP_EMBED: backward_embed(d, f, dy); return OK;
    case OP_ADD: /* the same gradient flows both ways; nothing to compute */
        give_gradient(d, f->in[0], dy, f);
        give_gradient(d, f->in[1], dy, f);
        return OK;
    default: return ERR(ERR_BUG, "autodiff: op %s has no backward", op_name(f->kind));
    }
}

static void add_grad_values(program *p, pass_context *c) {
    const model *m = c->model;
    char name[160];
    c->grads = arena_array(&p->memory, value_id, m->n_params);
    for (size_t i = 0; i < m->n_params; i++) {
        const value *v = program_get(p, m->params[i].value);
        int layer = v->layer;
        snprintf(name, sizeof name, "d.%s", v->name);
        c->grads[i] = program_persistent(p, name, precision_grad(c->precision), v->shape, ROLE_GRAD);
        p->values[c->grads[i]].layer = layer;
        p->values[m->params[i].value].gradient = c->grads[i];
    }
    c->loss_sums = program_persistent(p, "loss.sums", DTYPE_F64, SHAPE(SUM_COUNT), ROLE_WORK);
}

status pass_autodiff(program *p, pass_context *c) {
    status rc = OK;
    size_t none, n_trained;
    program_section(p, SECTION_MICRO, &none, &n_trained);
    if (none == n_trained) return OK; /* a program that only evaluates or generates: there is no loss to go back from */
    p->current_layer = -1;
    add_grad_values(p, c);
    size_t n_ops, n_before = p->n_values;
    op *ops = program_take_ops(p, &n_ops);
    differ d = {.p = p, .c = c};
    d.gradient = mem_alloc(n_before * sizeof *d.gradient);
    d.pending = mem_alloc(c->model->n_params * sizeof *d.pending);
    d.places = bucket_places(p, c->model);
    size_t i = 0, first = 0, end = 0;
    for (; i < n_ops && ops[i].section < SECTION_MICRO; i++) program_append(p, &ops[i]);
    for (first = end = i; end < n_ops && ops[end].section == SECTION_MICRO; end++) {
        if (ops[end].kind == OP_UNEMBED_LOSS) loss_with_gradient(&d, &ops[end]);
        else program_append(p, &ops[end]);
    }
    for (size_t k = end; k-- > first && rc == OK;) {
        p->current_layer = ops[k].layer;
        if (ops[k].kind != OP_UNEMBED_LOSS) rc = backward(&d, &ops[k]);
    }
    p->current_layer = -1;
    for (i = end; i < n_ops; i++) program_append(p, &ops[i]);
    free(d.gradient);
    free(d.pending);
    free(d.places);
    free(ops);
    return rc;
}
