/* optimizer.c - write the update section: global norm, clip, AdamW for every parameter.
 *
 * The norm is a sum of fp64 partial sums over fixed blocks, each parameter writing its own part of one value; the clip
 * factor, the division by the token count and the decision to skip a step that is not finite stay inside the program,
 * so nothing waits for the host between backward and update. */
#include "pass/pass.h"

static value_id add_state(program *p, const char *kind, const value *v, dtype t) {
    char name[160];
    shape s = v->shape; /* v may move when a value is added */
    int layer = v->layer;
    snprintf(name, sizeof name, "%s.%s", kind, v->name);
    value_id id = program_persistent(p, name, t, s, ROLE_STATE);
    p->values[id].layer = layer;
    return id;
}

static int64_t norm_blocks(const program *p, value_id g) {
    return (shape_count(&program_get(p, g)->shape) + NORM_BLOCK - 1) / NORM_BLOCK;
}

status pass_optimizer(program *p, pass_context *c) {
    const model *m = c->model;
    size_t n = m->n_params;
    c->masters = arena_array(&p->memory, value_id, n);
    c->moments = arena_array(&p->memory, value_id, n);
    c->variances = arena_array(&p->memory, value_id, n);
    if (!c->grads) return OK; /* nothing is trained: no parameter has a master, m or v */
    p->current_layer = -1;
    int64_t n_blocks = 0;
    for (size_t i = 0; i < n; i++) {
        value_id param = m->params[i].value;
        if (precision_master(c->precision)) c->masters[i] = add_state(p, "master", program_get(p, param), DTYPE_F32);
        c->moments[i] = add_state(p, "m", program_get(p, param), precision_state(c->precision));
        c->variances[i] = add_state(p, "v", program_get(p, param), precision_state(c->precision));
        n_blocks += norm_blocks(p, c->grads[i]);
    }
    c->norm_partials = program_value(p, "norm.partials", DTYPE_F64, SHAPE(n_blocks), ROLE_WORK, SECTION_UPDATE);
    c->clip = program_persistent(p, "clip", DTYPE_F32, SHAPE(CLIP_COUNT), ROLE_WORK);
    int64_t at = 0;
    for (size_t i = 0; i < n; i++) {
        char name[160];
        int64_t blocks = norm_blocks(p, c->grads[i]);
        snprintf(name, sizeof name, "norm.%s", m->params[i].name);
        value_id part = program_view(p, name, c->norm_partials, (size_t)at * sizeof(double), SHAPE(blocks));
        op *o = program_emit(p, OP_GRAD_SUMSQ, SECTION_UPDATE);
        op_in(o, 0, c->grads[i]);
        op_out(o, 0, part);
        at += blocks;
    }
    op *o = program_emit(p, OP_CLIP, SECTION_UPDATE);
    o->attr.clip = c->optimizer.clip;
    o->attr.normalize_by_weights = c->optimizer.normalize_by_weights;
    op_in(o, 0, c->norm_partials), op_in(o, 1, c->loss_sums), op_in(o, 2, m->scalars);
    op_out(o, 0, c->clip);
    for (size_t i = 0; i < n; i++) {
        o = program_emit(p, OP_ADAMW, SECTION_UPDATE);
        o->layer = program_get(p, m->params[i].value)->layer;
        o->attr.beta1 = c->optimizer.beta1;
        o->attr.beta2 = c->optimizer.beta2;
        o->attr.eps = c->optimizer.eps;
        o->attr.weight_decay = m->params[i].decay ? c->optimizer.weight_decay : 0;
        o->attr.noise_key = rng_key(2, m->params[i].name);
        op_in(o, 0, c->grads[i]), op_in(o, 1, c->clip), op_in(o, 2, m->scalars);
        op_out(o, 0, m->params[i].value), op_out(o, 1, c->masters[i]);
        op_out(o, 2, c->moments[i]), op_out(o, 3, c->variances[i]);
    }
    return OK;
}
