/* differ.c - where the gradients of the backward go: values for those of activations; for those of parameters the persistent
 * gradient or a temporary that ACCUMULATE adds to it, sums over tensor ranks, and sums over heads that share a parameter. */
#include "pass/differ.h"

value_id differ_value(differ *d, value_id of) {
    const value *v = program_get(d->p, of);
    char name[160];
    snprintf(name, sizeof name, "d.%s", v->name);
    value_id g = program_value(d->p, name, v->type, v->shape, ROLE_ACTIVATION, SECTION_MICRO);
    d->p->values[g].layer = d->p->current_layer;
    return g;
}

op *differ_emit(differ *d, op_kind k, const op *forward) {
    op *o = program_emit(d->p, k, SECTION_MICRO);
    o->attr = forward->attr;
    o->layer = forward->layer;
    return o;
}

/* The gradient collected at v so far; the caller takes it over. */
value_id differ_take(differ *d, value_id v) {
    value_id g = d->gradient[v];
    d->gradient[v] = NO_VALUE;
    return g;
}

/* Adds one more gradient of v; several are summed in the order of the backward. */
void differ_add(differ *d, value_id v, value_id g, const op *forward) {
    if (!d->is_wanted[v]) return;
    if (d->gradient[v] == NO_VALUE) {
        d->gradient[v] = g;
        return;
    }
    value_id sum = differ_value(d, v);
    op *o = differ_emit(d, OP_ADD, forward);
    op_in(o, ADD_A, d->gradient[v]), op_in(o, ADD_B, g);
    op_out(o, ADD_Y, sum);
    d->gradient[v] = sum;
}

static value_id add_temporary(differ *d, const char *prefix, size_t i) {
    const value *g = program_get(d->p, d->step->grads[i]);
    char name[160];
    snprintf(name, sizeof name, "%s.%.120s", prefix, g->name);
    return program_value(d->p, name, g->type, g->shape, ROLE_WORK, SECTION_MICRO);
}

/* Where the whole gradient of parameter i is to be written in this micro-batch. */
static value_id whole_target(differ *d, size_t i) {
    if (d->options->n_micros == 1) return d->step->grads[i];
    if (!d->pending[i]) d->pending[i] = add_temporary(d, "fresh", i);
    return d->pending[i];
}

static bool is_shared(const net_param *p) { return p->shared_from < shape_count(&p->shape); }

/* ... or this rank's part of it. */
value_id differ_rank_target(differ *d, size_t i) {
    if (!is_shared(&d->options->net->params[i])) return whole_target(d, i);
    if (!d->parts[i]) d->parts[i] = add_temporary(d, "part", i);
    return d->parts[i];
}

/* Of the final norm, where several heads share it. */
static bool serves_heads(const differ *d, size_t i) {
    const net *m = d->options->net;
    return m->n_losses > 1 && m->params[i].unit == 1 + m->source.n_layers;
}

/* Where an op writes its part of the gradient of parameter v; NO_VALUE where v is frozen. */
value_id differ_target(differ *d, value_id v) {
    size_t i = d->param[v];
    char prefix[32];
    ASSERT(i != SIZE_MAX);
    if (!d->is_wanted[v]) return NO_VALUE;
    if (!serves_heads(d, i)) return differ_rank_target(d, i);
    snprintf(prefix, sizeof prefix, "head.%d", d->loss + 1);
    return d->of_head[i] = add_temporary(d, prefix, i);
}

static op *emit_message(differ *d, op_kind k, const op *forward) {
    op *o = differ_emit(d, k, forward);
    o->attr.axis = AXIS_TENSOR;
    o->attr.group_size = mesh_size(&d->options->mesh, AXIS_TENSOR);
    return o;
}

/* Sums the gradient over the ranks that hold the parameter. A group is all ranks of an axis: where fewer ranks hold the end
 * of a parameter, all ends are gathered and each rank adds its own. */
static void sum_parts(differ *d, size_t i, const op *forward) {
    const net_param *q = &d->options->net->params[i];
    value_id part = d->parts[i], whole = whole_target(d, i);
    int n_ranks = mesh_size(&d->options->mesh, AXIS_TENSOR);
    if (q->n_holders == n_ranks && q->shared_from == 0) {
        op *o = emit_message(d, OP_ALL_REDUCE, forward);
        op_in(o, ALL_REDUCE_X, part);
        op_out(o, ALL_REDUCE_Y, whole);
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
    op_in(o, ALL_GATHER_X, end);
    op_out(o, ALL_GATHER_Y, ends);
    o = differ_emit(d, OP_SUM_PARTS, forward);
    o->attr.first_part = q->first_holder;
    o->attr.n_parts = q->n_holders;
    op_in(o, SUM_PARTS_X, part), op_in(o, SUM_PARTS_PARTS, ends);
    op_out(o, SUM_PARTS_Y, whole);
}

/* Adds what the head at hand has written to the sum of those before it; true after the last one. */
static bool sum_heads(differ *d, size_t i, const op *forward) {
    value_id part = d->of_head[i], before = d->of_heads[i];
    bool last = d->loss == d->options->net->n_losses - 1;
    if (d->loss == 0) {
        d->of_heads[i] = part;
        return false;
    }
    char prefix[32];
    snprintf(prefix, sizeof prefix, "heads.%d", d->loss + 1);
    d->of_heads[i] = last ? differ_rank_target(d, i) : add_temporary(d, prefix, i);
    op *o = differ_emit(d, OP_ADD, forward);
    op_in(o, ADD_A, before), op_in(o, ADD_B, part);
    op_out(o, ADD_Y, d->of_heads[i]);
    return last;
}

/* The gradient of v is finished for this micro-batch: sums the parts of all ranks, and adds the result to the accumulator. */
void differ_finish(differ *d, value_id v, const op *forward) {
    size_t i = d->param[v];
    if (!d->is_wanted[v]) return;
    if (d->of_head[i] && !sum_heads(d, i, forward)) return;
    if (d->parts[i]) sum_parts(d, i, forward);
    d->parts[i] = NO_VALUE;
    if (d->options->n_micros == 1 || d->pending[i] == NO_VALUE) return;
    op *o = differ_emit(d, OP_ACCUMULATE, forward);
    o->attr.noise_key = bucket_noise_key(d->places[i].unit);
    o->attr.first_element = d->places[i].offset;
    op_in(o, ACCUMULATE_X, d->pending[i]), op_in(o, ACCUMULATE_SCALARS, d->options->net->scalars);
    op_out(o, ACCUMULATE_ACC, d->step->grads[i]);
    d->pending[i] = NO_VALUE;
}
