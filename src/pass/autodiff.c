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
 * What tensor ranks share (norms, biases behind a sum, kv heads) gets a part of its gradient on each: the parts are summed in
 * rank order before anything else happens to them, so that all later passes see a gradient like any other. The backward of
 * a gather is the scatter of a sum, and the other way round.
 *
 * Of a pipeline's stage the backward begins where the forward sent something away, with its gradient coming back, and ends
 * where it received something. The gradient of a tied table is that of one rank: the last stage writes the loss's part, keeps
 * it, and adds the embedding's when the first stage has sent the rows of it. Sending those is cheap, (N, C); what is kept for
 * so long is not, (V, C) for every micro-batch between the two stages: the price of that equality again.
 *
 * The loss op becomes loss-and-gradient in one pass over the logits; nothing in the forward is kept for it. */
#include "pass/buckets.h"

#include <stdlib.h>

typedef struct differ {
    program *p;
    pass_context *c;
    value_id *gradient; /* of each forward value; NO_VALUE where none yet */
    size_t *param;      /* of each forward value: which parameter it is; SIZE_MAX: none */
    value_id *pending;  /* of each parameter: the temporary not yet accumulated */
    value_id *parts;    /* ... and what this rank sees of it, where several share it */
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

static size_t *number_params(const model *m, size_t n_values) {
    size_t *param = mem_alloc(n_values * sizeof *param);
    for (size_t v = 0; v < n_values; v++) param[v] = SIZE_MAX;
    for (size_t i = 0; i < m->n_params; i++) param[m->params[i].value] = i;
    return param;
}

static value_id add_temporary(differ *d, const char *prefix, size_t i) {
    const value *g = program_get(d->p, d->c->grads[i]);
    char name[160];
    snprintf(name, sizeof name, "%s.%.120s", prefix, g->name);
    return program_value(d->p, name, g->type, g->shape, ROLE_WORK, SECTION_MICRO);
}

/* Where the whole gradient of parameter i is to be written in this micro-batch. */
static value_id whole_target(differ *d, size_t i) {
    if (d->c->n_micros == 1) return d->c->grads[i];
    if (!d->pending[i]) d->pending[i] = add_temporary(d, "fresh", i);
    return d->pending[i];
}

static bool is_shared(const model_param *p) { return p->shared_from < shape_count(&p->shape); }

/* Where an op is to write what it finds of the gradient of parameter v. */
static value_id param_target(differ *d, value_id v) {
    size_t i = d->param[v];
    ASSERT(i != SIZE_MAX);
    if (!is_shared(&d->c->model->params[i])) return whole_target(d, i);
    if (!d->parts[i]) d->parts[i] = add_temporary(d, "part", i);
    return d->parts[i];
}

static op *emit_message(differ *d, op_kind k, const op *forward) {
    op *o = emit(d, k, forward);
    o->attr.axis = AXIS_TENSOR;
    o->attr.group_size = mesh_size(&d->c->mesh, AXIS_TENSOR);
    return o;
}

static op *emit_between_stages(differ *d, op_kind k, const op *forward, int peer, int tag) {
    op *o = emit(d, k, forward);
    o->attr.axis = AXIS_PIPELINE;
    o->attr.group_size = mesh_size(&d->c->mesh, AXIS_PIPELINE);
    o->attr.peer = peer;
    o->attr.tag = tag;
    return o;
}

/* The sum over those that hold it. A group is all ranks of an axis: where fewer hold the end of a parameter, all ends are
 * gathered and each rank adds its own. */
static void sum_parts(differ *d, size_t i, const op *forward) {
    const model_param *q = &d->c->model->params[i];
    value_id part = d->parts[i], whole = whole_target(d, i);
    int n_ranks = mesh_size(&d->c->mesh, AXIS_TENSOR);
    if (q->n_holders == n_ranks && q->shared_from == 0) {
        op *o = emit_message(d, OP_ALL_REDUCE, forward);
        op_in(o, 0, part);
        op_out(o, 0, whole);
        return;
    }
    char name[160];
    dtype t = program_get(d->p, part)->type;
    int64_t n = shape_count(&q->shape) - q->shared_from;
    snprintf(name, sizeof name, "end.%.120s", program_get(d->p, part)->name);
    value_id end = program_view(d->p, name, part, (size_t)q->shared_from * dtype_bytes(t), SHAPE(n));
    snprintf(name, sizeof name, "ends.%.120s", program_get(d->p, part)->name);
    value_id ends = program_value(d->p, name, t, SHAPE(n_ranks, n), ROLE_COMM, SECTION_MICRO);
    op *o = emit_message(d, OP_ALL_GATHER, forward);
    op_in(o, 0, end);
    op_out(o, 0, ends);
    o = emit(d, OP_SUM_PARTS, forward);
    o->attr.first_part = q->first_holder;
    o->attr.n_parts = q->n_holders;
    op_in(o, 0, part), op_in(o, 1, ends);
    op_out(o, 0, whole);
}

/* The gradient of v is finished for this micro-batch: sum what others have of it, add it to the accumulator. */
static void param_finish(differ *d, value_id v, const op *forward) {
    size_t i = d->param[v];
    if (d->parts[i]) sum_parts(d, i, forward);
    d->parts[i] = NO_VALUE;
    if (d->c->n_micros == 1 || d->pending[i] == NO_VALUE) return;
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

static value_id add_ring_value(differ *d, const char *name, int step, value_id like, dtype t, int64_t width) {
    char buf[160];
    const value *v = program_get(d->p, like);
    snprintf(buf, sizeof buf, "d.%.100s.%s.%d", v->name, name, step);
    return program_value(d->p, buf, t, SHAPE(v->shape.dim[0], width), ROLE_ACTIVATION, SECTION_MICRO);
}

/* One rank on. The tag says that it is backward: of keys and values the data flow does not show it. */
static value_id shift_on(differ *d, const op *f, const char *name, int step, value_id x) {
    const value v = *program_get(d->p, x);
    value_id y = add_ring_value(d, name, step, f->in[0], v.type, v.shape.dim[1]);
    op *o = emit(d, OP_SHIFT, f);
    o->attr.axis = AXIS_SEQUENCE;
    o->attr.tag = TAG_BACKWARD;
    op_in(o, 0, x);
    op_out(o, 0, y);
    return y;
}

/* The backward of all steps of a ring, written where the last of them is met. Keys and values go round once more, so that
 * none but the rank's own are kept, and their gradient goes with them: every rank adds its part, in the order of the ring
 * from the owner on, and one step more brings it home. */
static void backward_ring(differ *d, const op *f, value_id dy) {
    const op_attr *a = &f->attr;
    int64_t q_width = (int64_t)a->n_heads * a->head_dim, kv_width = 2 * (int64_t)a->n_kv_heads * a->head_dim;
    value_id qkv = f->in[0], kv = add_ring_value(d, "kv", 0, qkv, program_get(d->p, qkv)->type, kv_width);
    value_id dq = add_ring_value(d, "q", 0, qkv, DTYPE_F32, q_width);
    value_id dkv = add_ring_value(d, "dkv", 0, qkv, DTYPE_F32, kv_width);
    op *o = emit(d, OP_KV_PART, f);
    o->attr.tag = TAG_BACKWARD;
    op_in(o, 0, qkv);
    op_out(o, 0, kv);
    for (int step = 0; step < a->group_size; step++) {
        value_id next = step + 1 < a->group_size ? shift_on(d, f, "kv", step + 1, kv) : NO_VALUE;
        o = emit(d, OP_ATTENTION_RING_BWD, f);
        o->attr.peer = (a->index - step + a->group_size) % a->group_size;
        op_in(o, 0, qkv), op_in(o, 1, kv), op_in(o, 2, f->in[2]), op_in(o, 3, f->out[0]), op_in(o, 4, f->out[1]);
        op_in(o, 5, dy);
        op_out(o, 0, dq), op_out(o, 1, dkv);
        dkv = shift_on(d, f, "dkv", step + 1, dkv);
        kv = next;
    }
    value_id dx = grad_value(d, qkv);
    o = emit(d, OP_QKV_JOIN, f);
    op_in(o, 0, dq), op_in(o, 1, dkv);
    op_out(o, 0, dx);
    give_gradient(d, qkv, dx, f);
}

/* Steps of a ring but the last, whose backward is that of all. */
static bool is_inside_ring(const op *f) {
    if (f->kind == OP_ATTENTION_RING) return f->attr.peer != (f->attr.index + 1) % f->attr.group_size;
    return f->kind == OP_SHIFT || f->kind == OP_KV_PART;
}

static void backward_activation(differ *d, const op *f, value_id dy) {
    value_id dx = grad_value(d, f->in[0]);
    op *o = emit(d, f->kind == OP_GELU ? OP_GELU_BWD : OP_SWIGLU_BWD, f);
    op_in(o, 0, f->in[0]), op_in(o, 1, dy);
    op_out(o, 0, dx);
    give_gradient(d, f->in[0], dx, f);
}

static void backward_table(differ *d, const op *f, value_id table, value_id tokens, value_id dy) {
    bool tied = d->c->model->config.tied;
    value_id dtable = param_target(d, table);
    op *o = emit(d, tied ? OP_EMBED_BWD_ADD : OP_EMBED_BWD, f);
    op_in(o, 0, tokens), op_in(o, 1, dy);
    op_out(o, 0, dtable);
    param_finish(d, table, f);
}

static void backward_positions(differ *d, const op *f, value_id dy) {
    value_id dpositions = param_target(d, f->in[3]), doc = f->in[2];
    if (f->attr.n_tokens > 0) { /* those that this rank added */
        value v = *program_get(d->p, dy);
        size_t row_bytes = value_bytes(&v) / (size_t)v.shape.dim[0], first = (size_t)f->attr.first_token;
        dy = program_view(d->p, "d.embed.own", dy, first * row_bytes, SHAPE(f->attr.n_tokens, v.shape.dim[1]));
        doc = program_view(d->p, "doc.own", doc, first * sizeof(int32_t), SHAPE(f->attr.n_tokens));
    }
    op *o = emit(d, OP_POSITION_BWD, f);
    op_in(o, 0, doc), op_in(o, 1, dy);
    op_out(o, 0, dpositions);
    param_finish(d, f->in[3], f);
}

static void backward_embed(differ *d, const op *f, value_id dy) {
    size_t i = d->param[f->in[1]];
    bool is_copy = d->c->model->params[i].is_copy;
    if (!is_copy) backward_table(d, f, f->in[1], f->in[0], dy);
    if (f->in[3]) backward_positions(d, f, dy);
    if (!is_copy) return;
    op *o = emit_between_stages(d, OP_SEND, f, mesh_size(&d->c->mesh, AXIS_PIPELINE) - 1, TAG_EMBED);
    op_in(o, 0, dy);
}

/* On the stage that trains a tied table without having the embedding: the second half of its gradient. */
static void receive_embed_gradient(differ *d, const op *loss) {
    const model *m = d->c->model;
    const value h = *program_get(d->p, loss->in[0]);
    value_id dy = program_value(d->p, "d.embed", h.type, h.shape, ROLE_ACTIVATION, SECTION_MICRO);
    op *o = emit_between_stages(d, OP_RECV, loss, 0, TAG_EMBED);
    op_out(o, 0, dy);
    backward_table(d, loss, loss->in[1], m->tokens, dy);
}

/* Another stage goes on from x, and sends back the gradient that it has. */
static void backward_send(differ *d, const op *f) {
    value_id dx = grad_value(d, f->in[0]);
    op *o = emit_between_stages(d, OP_RECV, f, f->attr.peer, TAG_BACKWARD);
    op_out(o, 0, dx);
    give_gradient(d, f->in[0], dx, f);
}

static void backward_receive(differ *d, const op *f, value_id dy) {
    op *o = emit_between_stages(d, OP_SEND, f, f->attr.peer, TAG_BACKWARD);
    op_in(o, 0, dy);
}

/* Of a gather the sum's scatter, of that a gather; what was sent to others comes back from them. */
static void backward_message(differ *d, const op *f, value_id dy) {
    value_id dx = grad_value(d, f->in[0]);
    op_kind k = f->kind == OP_ALL_GATHER ? OP_REDUCE_SCATTER : f->kind == OP_REDUCE_SCATTER ? OP_ALL_GATHER : f->kind;
    op *o = emit(d, k, f);
    op_in(o, 0, dy);
    op_out(o, 0, dx);
    give_gradient(d, f->in[0], dx, f);
}

static void backward_parts(differ *d, const op *f, value_id dy) {
    value_id dx = grad_value(d, f->in[0]);
    op *o = emit(d, f->kind, f);
    o->attr.inverse = !f->attr.inverse;
    op_in(o, 0, dy);
    op_out(o, 0, dx);
    give_gradient(d, f->in[0], dx, f);
}

static void reduce_loss(differ *d, const op *f, value_id losses, value_id targets) {
    const model *m = d->c->model;
    op *o = emit(d, OP_LOSS_REDUCE, f);
    op_in(o, 0, losses), op_in(o, 1, targets), op_in(o, 2, m->weights), op_in(o, 3, m->scalars);
    op_out(o, 0, d->c->loss_sums);
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
    reduce_loss(d, f, f->out[0], f->in[2]);
}

/* Where ranks share the vocabulary the forward ends with the numbers of all of them; the gradient begins with these. */
static void gradient_of_shared_loss(differ *d, const op *stats, const op *join) {
    const model *m = d->c->model;
    reduce_loss(d, join, join->out[0], join->in[1]);
    value_id dh = grad_value(d, stats->in[0]), dw = param_target(d, stats->in[1]);
    op *o = emit(d, OP_UNEMBED_GRAD, stats);
    op_in(o, 0, stats->in[0]), op_in(o, 1, stats->in[1]), op_in(o, 2, stats->in[2]), op_in(o, 3, m->weights);
    op_in(o, 4, m->scalars), op_in(o, 5, join->in[0]);
    op_out(o, 0, dh), op_out(o, 1, dw);
    d->gradient[stats->in[0]] = dh;
    if (!m->config.tied) param_finish(d, stats->in[1], stats);
}

static status backward(differ *d, const op *f) {
    if (f->kind == OP_SEND) {
        backward_send(d, f);
        return OK;
    }
    if (is_inside_ring(f)) return OK;
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
    case OP_ATTENTION_RING: backward_ring(d, f, dy); return OK;
    case OP_GELU:
    case OP_SWIGLU: backward_activation(d, f, dy); return OK;
    case OP_EMBED: backward_embed(d, f, dy); return OK;
    case OP_HEAD_PARTS:
    case OP_TOKEN_PARTS: backward_parts(d, f, dy); return OK;
    case OP_ALL_GATHER:
    case OP_ALL_TO_ALL:
    case OP_REDUCE_SCATTER: backward_message(d, f, dy); return OK;
    case OP_RECV: backward_receive(d, f, dy); return OK;
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
        if (m->params[i].is_copy) continue;
        snprintf(name, sizeof name, "d.%s", v->name);
        c->grads[i] = program_persistent(p, name, precision_grad(c->choice.precision), v->shape, ROLE_GRAD);
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
    d.param = number_params(c->model, n_before);
    d.pending = mem_alloc(c->model->n_params * sizeof *d.pending);
    d.parts = mem_alloc(c->model->n_params * sizeof *d.parts);
    int64_t n_blocks;
    d.places = bucket_places(c->model, &n_blocks);
    size_t i = 0, first = 0, end = 0, loss = SIZE_MAX; /* the first op of it; it writes its own gradient */
    for (; i < n_ops && ops[i].section < SECTION_MICRO; i++) program_append(p, &ops[i]);
    for (first = end = i; end < n_ops && ops[end].section == SECTION_MICRO; end++) {
        if (ops[end].kind == OP_UNEMBED_LOSS || ops[end].kind == OP_UNEMBED_STATS) loss = end;
        if (ops[end].kind == OP_UNEMBED_LOSS) loss_with_gradient(&d, &ops[end]);
        else program_append(p, &ops[end]);
        if (ops[end].kind == OP_UNEMBED_JOIN) gradient_of_shared_loss(&d, &ops[loss], &ops[end]);
    }
    for (size_t k = MIN(loss, end); k-- > first && rc == OK;) {
        p->current_layer = ops[k].layer;
        rc = backward(&d, &ops[k]);
    }
    p->current_layer = -1;
    bool has_embedding = c->mesh.index[AXIS_PIPELINE] == 0;
    if (rc == OK && loss != SIZE_MAX && c->model->config.tied && !has_embedding) receive_embed_gradient(&d, &ops[loss]);
    for (i = end; i < n_ops; i++) program_append(p, &ops[i]);
    free(d.gradient);
    free(d.param);
    free(d.pending);
    free(d.parts);
    free(d.places);
    free(ops);
    return rc;
}
