/* optimizer.c - write the update section: global norm, clip, AdamW for every parameter.
 *
 * The norm is a sum of fp64 partial sums over fixed blocks; each parameter writes its own part of one value. The clip factor,
 * the division by the token count and the decision to skip a step that is not finite stay inside the program, so nothing
 * waits for the host between backward and update.
 *
 * 8-bit states are for large tensors. Norms and biases are a thousandth of a model, act on every token and have few elements
 * to average a rounding error over: tensors under SMALL elements keep fp32. */
#include "pass/buckets.h"

#include <stdlib.h>

enum { SMALL = 4096 };

static value_id add_state(program *p, const char *kind, value_id of, dtype t, shape s) {
    char name[160];
    const value *v = program_get(p, of);
    int layer = v->layer; /* v may move when a value is added */
    snprintf(name, sizeof name, "%s.%s", kind, v->name);
    value_id id = program_persistent(p, name, t, s, ROLE_STATE);
    p->values[id].layer = layer;
    return id;
}

/* master, m and v of parameter i, and the scales of 8-bit ones. */
static void add_states(program *p, const pass_options *options, step_interface *step, size_t i) {
    value_id param = options->net->params[i].value;
    shape s = program_get(p, param)->shape;
    state_format f = state_format_of(options->choice.precision, options->choice.states);
    if (f == STATES_INT8 && shape_count(&s) < SMALL) f = STATES_FP32;
    dtype m_type = f == STATES_INT8 ? DTYPE_I8 : f == STATES_BF16 ? DTYPE_BF16 : DTYPE_F32;
    if (precision_master(options->choice.precision)) step->masters[i] = add_state(p, "master", param, DTYPE_F32, s);
    step->moments[i] = add_state(p, "m", param, m_type, s);
    step->variances[i] = add_state(p, "v", param, f == STATES_INT8 ? DTYPE_U8 : m_type, s);
    if (f != STATES_INT8) return;
    shape blocks = SHAPE(divide_up(shape_count(&s), STATE_BLOCK));
    step->moment_scales[i] = add_state(p, "m_scale", param, DTYPE_F32, blocks);
    step->variance_scales[i] = add_state(p, "v_scale", param, DTYPE_F32, blocks);
}

void optimizer_count_once(op *sumsq, const net_param *q, const mesh *m) {
    sumsq->attr.counted = net_param_counted(q, m->index[AXIS_TENSOR]);
    sumsq->attr.counts_part = sumsq->attr.counted < shape_count(&q->shape);
}

/* Sequence ranks have other tokens of the same rows: gradients and losses are summed over them, once per step. */
static void sum_over_sequence(program *p, const pass_options *options, step_interface *step) {
    value_id total =
        program_persistent(p, "loss.sequence", DTYPE_F64, program_get(p, step->loss_sums)->shape, ROLE_WORK);
    for (size_t i = 0; i <= options->net->n_params; i++) {
        bool loss = i == options->net->n_params;
        if (!loss && !net_param_trained(&options->net->params[i])) continue;
        op *o = program_emit(p, OP_ALL_REDUCE, SECTION_UPDATE);
        o->layer = loss ? -1 : program_get(p, options->net->params[i].value)->layer;
        o->attr.axis = AXIS_SEQUENCE;
        o->attr.group_size = mesh_size(&options->mesh, AXIS_SEQUENCE);
        op_in(o, ALL_REDUCE_X, loss ? step->loss_sums : step->grads[i]);
        op_out(o, ALL_REDUCE_Y, loss ? total : step->grads[i]);
    }
    step->loss_sums = total;
}

static op *emit_message(program *p, const pass_options *options, op_kind k, axis a) {
    op *o = program_emit(p, k, SECTION_UPDATE);
    o->attr.axis = a;
    o->attr.group_size = mesh_size(&options->mesh, a);
    return o;
}

/* Combines the parts of a value from all stages. Each stage has zeros in the places of the others, so the sum rounds
 * nothing. */
static value_id join_stages(program *p, const pass_options *options, const char *name, value_id own) {
    if (mesh_size(&options->mesh, AXIS_PIPELINE) == 1) return own;
    const value v = *program_get(p, own);
    value_id all = program_value(p, name, v.type, v.shape, ROLE_WORK, SECTION_UPDATE);
    op *o = emit_message(p, options, OP_ALL_REDUCE, AXIS_PIPELINE);
    op_in(o, ALL_REDUCE_X, own);
    op_out(o, ALL_REDUCE_Y, all);
    return all;
}

/* The input of CLIP: the partial sums of all stages, or one sum per tensor rank. */
static value_id sum_over_ranks(program *p, const pass_options *options, const step_interface *step) {
    value_id partials = join_stages(p, options, "norm.stages", step->norm_partials);
    int n = mesh_size(&options->mesh, AXIS_TENSOR);
    if (n == 1) return partials;
    value_id own = program_value(p, "norm.rank", DTYPE_F64, SHAPE(1), ROLE_WORK, SECTION_UPDATE);
    value_id all = program_value(p, "norm.ranks", DTYPE_F64, SHAPE(n), ROLE_WORK, SECTION_UPDATE);
    op *o = program_emit(p, OP_NORM_SUM, SECTION_UPDATE);
    op_in(o, NORM_SUM_PARTIALS, partials);
    op_out(o, NORM_SUM_SUM, own);
    o = emit_message(p, options, OP_ALL_GATHER, AXIS_TENSOR);
    op_in(o, ALL_GATHER_X, own);
    op_out(o, ALL_GATHER_Y, all);
    return all;
}

/* Sends a tied table from the stage that updated it to the stage with the embedding. */
static void send_table(program *p, const pass_options *options) {
    const net *m = options->net;
    int last = mesh_size(&options->mesh, AXIS_PIPELINE) - 1, stage = options->mesh.index[AXIS_PIPELINE];
    if (!net_trains_tied(m) || last == 0 || (stage != 0 && stage != last)) return;
    op *o = emit_message(p, options, stage == 0 ? OP_RECV : OP_SEND, AXIS_PIPELINE);
    o->attr.peer = stage == 0 ? last : 0;
    o->attr.tag = TAG_TABLE;
    value_id table = m->params[0].value; /* the first that either of them has */
    if (stage == 0) op_out(o, RECV_Y, table);
    else op_in(o, SEND_X, table);
}

static status refuse_cut_blocks(const pass_options *options) {
    int n_tensor = mesh_size(&options->mesh, AXIS_TENSOR);
    bool is_int8 = state_format_of(options->choice.precision, options->choice.states) == STATES_INT8;
    if (!is_int8 || n_tensor == 1) return OK;
    return ERR(ERR_INPUT,
               "memory.states: found int8 with parallel.tensor %d: blocks of 8-bit states would be cut between "
               "ranks; set fp32 or bf16",
               n_tensor);
}

static void make_norm_and_clip(program *p, const net *m, int64_t n_blocks, step_interface *step) {
    step->norm_partials = program_value(p, "norm.partials", DTYPE_F64, SHAPE(n_blocks), ROLE_WORK, SECTION_UPDATE);
    if (m->n_params < m->n_all_params) p->values[step->norm_partials].persistent = true; /* others' places stay zero */
    /* A turn restarts the sums: tasks read them here. */
    bool reports = m->n_losses > 1 || m->selection.kind || m->weights || m->loss_sums;
    int64_t n_reported = reports ? shape_count(&program_get(p, step->loss_sums)->shape) : 0;
    step->clip = program_persistent(p, "clip", DTYPE_F32, SHAPE(CLIP_COUNT + n_reported), ROLE_WORK);
}

/* The squared norm of a parameter's gradient, into its blocks of norm.partials from `block` on. */
static void emit_norm(program *p, const pass_options *options, const step_interface *step, size_t i, int64_t block) {
    const net_param *param = &options->net->params[i];
    char name[160];
    snprintf(name, sizeof name, "norm.%s", param->name);
    value_id part = program_view(p, name, step->norm_partials, (size_t)block * sizeof(double),
                                 SHAPE(norm_blocks(shape_count(&param->shape))));
    op *o = program_emit(p, OP_GRAD_SUMSQ, SECTION_UPDATE);
    optimizer_count_once(o, param, &options->mesh);
    op_in(o, GRAD_SUMSQ_G, step->grads[i]);
    op_out(o, GRAD_SUMSQ_PARTIALS, part);
}

static void emit_clip(program *p, const pass_options *options, const step_interface *step) {
    const net *m = options->net;
    value_id squares = sum_over_ranks(p, options, step), sums = join_stages(p, options, "loss.stages", step->loss_sums);
    op *o = program_emit(p, OP_CLIP, SECTION_UPDATE);
    o->attr.clip = options->optimizer.clip;
    o->attr.normalize_by_weights = options->optimizer.normalize_by_weights;
    if (m->n_losses > 1) o->attr.n_losses = m->n_losses;
    op_in(o, CLIP_PARTIALS, squares), op_in(o, CLIP_SUMS, sums), op_in(o, CLIP_SCALARS, m->scalars);
    op_out(o, CLIP_CLIP, step->clip);
}

static void emit_adamw(program *p, const pass_options *options, const step_interface *step, size_t i) {
    const net *m = options->net;
    const net_param *param = &m->params[i];
    op *o = program_emit(p, OP_ADAMW, SECTION_UPDATE);
    o->layer = program_get(p, param->value)->layer;
    o->attr.beta1 = options->optimizer.beta1;
    o->attr.beta2 = options->optimizer.beta2;
    o->attr.eps = options->optimizer.eps;
    o->attr.weight_decay = param->decay ? options->optimizer.weight_decay : 0;
    if (param->of_value_head) o->attr.lr_scale = options->optimizer.head_lr_scale;
    o->attr.noise_key = rng_key(2, param->name);
    op_in(o, ADAMW_G, step->grads[i]), op_in(o, ADAMW_CLIP, step->clip), op_in(o, ADAMW_SCALARS, m->scalars);
    op_out(o, ADAMW_P, param->value), op_out(o, ADAMW_MASTER, step->masters[i]);
    op_out(o, ADAMW_M, step->moments[i]), op_out(o, ADAMW_V, step->variances[i]);
    op_out(o, ADAMW_M_SCALE, step->moment_scales[i]), op_out(o, ADAMW_V_SCALE, step->variance_scales[i]);
}

status pass_optimizer(program *p, const pass_options *options, step_interface *step) {
    const net *m = options->net;
    size_t n = m->n_params;
    step->masters = arena_array(&p->memory, value_id, n);
    step->moments = arena_array(&p->memory, value_id, n);
    step->variances = arena_array(&p->memory, value_id, n);
    step->moment_scales = arena_array(&p->memory, value_id, n);
    step->variance_scales = arena_array(&p->memory, value_id, n);
    TRY(refuse_cut_blocks(options));
    if (!step->grads) return OK; /* nothing is trained: no parameter has a master, m or v */
    p->current_layer = -1;
    size_t n_ops, next = 0;
    op *ops = program_take_ops(p, &n_ops); /* generation comes behind the update */
    for (; next < n_ops && ops[next].section < SECTION_UPDATE; next++) program_append(p, &ops[next]);
    int64_t n_blocks;
    flat_place *places = bucket_places(m, &n_blocks); /* the order of the sum, on one rank as on many */
    make_norm_and_clip(p, m, n_blocks, step);
    if (mesh_size(&options->mesh, AXIS_SEQUENCE) > 1) sum_over_sequence(p, options, step);
    for (size_t i = 0; i < n; i++) {
        if (!net_param_trained(&m->params[i])) continue;
        add_states(p, options, step, i);
        emit_norm(p, options, step, i, places[i].block);
    }
    free(places);
    emit_clip(p, options, step);
    for (size_t i = 0; i < n; i++)
        if (net_param_trained(&m->params[i])) emit_adamw(p, options, step, i);
    send_table(p, options);
    for (; next < n_ops; next++) program_append(p, &ops[next]);
    free(ops);
    return OK;
}
