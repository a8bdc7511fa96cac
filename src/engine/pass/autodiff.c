/* autodiff.c - append the backward of the training section.
 *
 * Walks the forward ops in reverse. Each op with BACKWARD in ops.def has a function that writes its own backward. The
 * gradient of an activation is a value; the gradient of a parameter goes where the step collects it:
 *   - accumulation 1: straight into the persistent gradient;
 *   - accumulation A: into a temporary, finished over the micro-batch, then added by ACCUMULATE. A finished product is
 *     added as one number, so N micro-batches on one rank and one on each of N ranks are the same sum.
 * A tied embedding is written by the loss and completed by the embedding's backward, so with accumulation its temporary (V,
 * C) lives through the whole backward: the price of that equality, shown in the plan.
 *
 * Parameters that several tensor ranks hold (norms, biases behind a sum, kv heads) get a part of their gradient on each rank.
 * The parts are summed in rank order first, so that all later passes see an ordinary gradient. The backward of an all-gather
 * is a reduce-scatter, and the other way round.
 *
 * The backward of a pipeline stage begins with the gradient received for what the forward sent, and ends by sending the
 * gradient of what the forward received. The gradient of a tied table is summed as on one rank: the last stage writes the
 * part of the loss, keeps it, and adds the embedding's part when the first stage has sent its rows. These messages are cheap,
 * (N, C); keeping the gradient is not, (V, C) for every micro-batch between the two stages: the price of that equality again.
 *
 * Only values that lead back to a trained parameter get a gradient: a frozen weight has none, and below the first trained
 * parameter the backward ends.
 *
 * The loss op becomes loss-and-gradient in one pass over the logits; nothing in the forward is kept for it.
 *
 * Several losses (heads of multi-token prediction): the backward of a head follows its loss at once and ends at the trunk's
 * output, where the gradients of the heads are added in their order; then comes one backward of the trunk. So one head's
 * activations are alive at a time. What the heads share gets the sum, again in their order: the unembedding's gradient grows in
 * place, those of the final norm are small temporaries that are added. */
#include "pass/differ.h"

#include <stdlib.h>

static size_t *number_params(const net *m, size_t n_values) {
    size_t *param = mem_alloc(n_values * sizeof *param);
    for (size_t v = 0; v < n_values; v++) param[v] = SIZE_MAX;
    for (size_t i = 0; i < m->n_params; i++) param[m->params[i].value] = i;
    return param;
}

/* Is a parameter of an earlier chunk than the one that begins at op `at` trained? Then its stage expects a gradient. */
static bool is_trained_before(const pass_options *options, const op *ops, size_t at, size_t end) {
    while (at < end && ops[at].layer < 0) at++;
    int64_t layer = at < end ? ops[at].layer : options->net->source.n_layers;
    for (size_t i = 0; i < options->net->n_all_params; i++)
        if (!options->net->params[i].frozen && options->net->params[i].unit <= layer) return true;
    return false;
}

static void find_wanted(differ *d, const op *ops, size_t first, size_t end) {
    const net *m = d->options->net;
    for (size_t i = 0; i < m->n_params; i++) d->is_wanted[m->params[i].value] = !m->params[i].frozen;
    for (size_t i = first; i < end; i++) {
        const op *o = &ops[i];
        bool wanted = o->kind == OP_RECV && o->attr.tag != TAG_REFERENCE && is_trained_before(d->options, ops, i, end);
        for (int k = 0; k < op_input_count(o->kind); k++) wanted |= o->in[k] && d->is_wanted[o->in[k]];
        for (int k = 0; k < op_output_count(o->kind); k++)
            if (o->out[k]) d->is_wanted[o->out[k]] = wanted;
    }
}

static op *emit_between_stages(differ *d, op_kind k, const op *forward, int peer, int tag) {
    op *o = differ_emit(d, k, forward);
    o->attr.axis = AXIS_PIPELINE;
    o->attr.group_size = mesh_size(&d->options->mesh, AXIS_PIPELINE);
    o->attr.peer = peer;
    o->attr.tag = tag;
    return o;
}

/* ---- one function per op ------------------------------------------------------------------------------------------ */

static void backward_LINEAR(differ *d, const op *f, value_id dy) {
    value_id x = f->in[LINEAR_X], w = f->in[LINEAR_W];
    /* dw first: it is the last reader of x, whose bytes are then free for dx. */
    value_id dw = differ_target(d, w);
    if (dw) {
        op *o = differ_emit(d, OP_LINEAR_DW, f);
        op_in(o, LINEAR_DW_DY, dy), op_in(o, LINEAR_DW_X, x);
        op_out(o, LINEAR_DW_DW, dw);
        differ_finish(d, w, f);
    }
    if (!d->is_wanted[x]) return;
    value_id other = differ_take(d, x), dx = differ_value(d, x); /* other: of an adapter beside this layer */
    op *o = differ_emit(d, OP_LINEAR_DX, f);
    op_in(o, LINEAR_DX_DY, dy), op_in(o, LINEAR_DX_W, w), op_in(o, LINEAR_DX_ADD, other);
    op_out(o, LINEAR_DX_DX, dx);
    d->gradient[x] = dx;
}

/* Both matrices of an adapter are trained or neither, and xa comes from the other one. */
static void backward_LORA_UP(differ *d, const op *f, value_id dy) {
    value_id xa = f->in[LORA_UP_XA], b = f->in[LORA_UP_B], db = differ_target(d, b);
    ASSERT(!db == !d->is_wanted[xa]);
    if (db) {
        value_id dxa = differ_value(d, xa);
        op *o = differ_emit(d, OP_LORA_BWD, f);
        op_in(o, LORA_BWD_DY, dy), op_in(o, LORA_BWD_XA, xa), op_in(o, LORA_BWD_B, b);
        op_out(o, LORA_BWD_DXA, dxa), op_out(o, LORA_BWD_DB, db);
        differ_finish(d, b, f);
        differ_add(d, xa, dxa, f);
    }
    differ_add(d, f->in[LORA_UP_BASE], dy, f);
}

/* The mask follows from the step and the op's key: applied to dy it is the backward. */
static void backward_DROPOUT(differ *d, const op *f, value_id dy) {
    value_id x = f->in[DROPOUT_X];
    if (!d->is_wanted[x]) return;
    value_id dx = differ_value(d, f->out[DROPOUT_Y]);
    op *o = differ_emit(d, OP_DROPOUT, f);
    op_in(o, DROPOUT_X, dy), op_in(o, DROPOUT_SCALARS, f->in[DROPOUT_SCALARS]);
    op_out(o, DROPOUT_Y, dx);
    differ_add(d, x, dx, f);
}

static void backward_ADD_BIAS(differ *d, const op *f, value_id dy) {
    value_id db = differ_target(d, f->in[ADD_BIAS_B]);
    if (db) {
        op *o = differ_emit(d, OP_BIAS_GRAD, f);
        op_in(o, BIAS_GRAD_DY, dy);
        op_out(o, BIAS_GRAD_DB, db);
        differ_finish(d, f->in[ADD_BIAS_B], f);
    }
    differ_add(d, f->in[ADD_BIAS_X], dy, f);
}

/* The same gradient flows both ways; nothing to compute. */
static void backward_ADD(differ *d, const op *f, value_id dy) {
    differ_add(d, f->in[ADD_A], dy, f);
    differ_add(d, f->in[ADD_B], dy, f);
}

/* The kernel adds the residual gradient that was collected at x: one pass over the rows less. */
static void backward_RMSNORM(differ *d, const op *f, value_id dy) {
    value_id x = f->in[RMSNORM_X], gamma = f->in[RMSNORM_GAMMA];
    value_id residual = differ_take(d, x), dx = differ_value(d, x), dgamma = differ_target(d, gamma);
    op *o = differ_emit(d, OP_RMSNORM_BWD, f);
    op_in(o, RMSNORM_BWD_X, x), op_in(o, RMSNORM_BWD_GAMMA, gamma), op_in(o, RMSNORM_BWD_RSTD, f->out[RMSNORM_RSTD]);
    op_in(o, RMSNORM_BWD_DY, dy), op_in(o, RMSNORM_BWD_DRES, residual);
    op_out(o, RMSNORM_BWD_DX, dx), op_out(o, RMSNORM_BWD_DGAMMA, dgamma);
    differ_finish(d, gamma, f);
    differ_add(d, x, dx, f);
}

static void backward_LAYERNORM(differ *d, const op *f, value_id dy) {
    value_id x = f->in[LAYERNORM_X], gamma = f->in[LAYERNORM_GAMMA], beta = f->in[LAYERNORM_BETA];
    value_id residual = differ_take(d, x), dx = differ_value(d, x);
    value_id dgamma = differ_target(d, gamma), dbeta = differ_target(d, beta);
    op *o = differ_emit(d, OP_LAYERNORM_BWD, f);
    op_in(o, LAYERNORM_BWD_X, x), op_in(o, LAYERNORM_BWD_GAMMA, gamma);
    op_in(o, LAYERNORM_BWD_MEAN, f->out[LAYERNORM_MEAN]), op_in(o, LAYERNORM_BWD_RSTD, f->out[LAYERNORM_RSTD]);
    op_in(o, LAYERNORM_BWD_DY, dy), op_in(o, LAYERNORM_BWD_DRES, residual);
    op_out(o, LAYERNORM_BWD_DX, dx), op_out(o, LAYERNORM_BWD_DGAMMA, dgamma), op_out(o, LAYERNORM_BWD_DBETA, dbeta);
    differ_finish(d, gamma, f);
    differ_finish(d, beta, f);
    differ_add(d, x, dx, f);
}

static void backward_QK_NORM(differ *d, const op *f, value_id dy) {
    value_id qkv = f->in[QK_NORM_QKV], gq = f->in[QK_NORM_GQ], gk = f->in[QK_NORM_GK];
    value_id dqkv = differ_value(d, qkv), dgq = differ_target(d, gq), dgk = differ_target(d, gk);
    op *o = differ_emit(d, OP_QK_NORM_BWD, f);
    op_in(o, QK_NORM_BWD_QKV, qkv), op_in(o, QK_NORM_BWD_GQ, gq), op_in(o, QK_NORM_BWD_GK, gk);
    op_in(o, QK_NORM_BWD_RSTD, f->out[QK_NORM_RSTD]), op_in(o, QK_NORM_BWD_DY, dy);
    op_out(o, QK_NORM_BWD_DQKV, dqkv), op_out(o, QK_NORM_BWD_DGQ, dgq), op_out(o, QK_NORM_BWD_DGK, dgk);
    differ_finish(d, gq, f);
    differ_finish(d, gk, f);
    differ_add(d, qkv, dqkv, f);
}

/* The backward of a rotation is the inverse rotation. */
static void backward_ROPE(differ *d, const op *f, value_id dy) {
    value_id dx = differ_value(d, f->in[ROPE_QKV]);
    op *o = differ_emit(d, OP_ROPE, f);
    o->attr.inverse = !f->attr.inverse;
    op_in(o, ROPE_QKV, dy), op_in(o, ROPE_TABLE, f->in[ROPE_TABLE]), op_in(o, ROPE_DOC_START, f->in[ROPE_DOC_START]);
    op_out(o, ROPE_Y, dx);
    differ_add(d, f->in[ROPE_QKV], dx, f);
}

static void backward_ATTENTION(differ *d, const op *f, value_id dy) {
    value_id qkv = f->in[ATTENTION_QKV], dqkv = differ_value(d, qkv);
    op *o = differ_emit(d, OP_ATTENTION_BWD, f);
    op_in(o, ATTENTION_BWD_QKV, qkv), op_in(o, ATTENTION_BWD_DOC_START, f->in[ATTENTION_DOC_START]);
    op_in(o, ATTENTION_BWD_Y, f->out[ATTENTION_Y]), op_in(o, ATTENTION_BWD_LSE, f->out[ATTENTION_LSE]);
    op_in(o, ATTENTION_BWD_DY, dy);
    op_out(o, ATTENTION_BWD_DQKV, dqkv);
    differ_add(d, qkv, dqkv, f);
}

static value_id add_ring_value(differ *d, const char *name, int step, value_id like, dtype t, int64_t width) {
    char buf[160];
    const value *v = program_get(d->p, like);
    snprintf(buf, sizeof buf, "d.%.100s.%s.%d", v->name, name, step);
    return program_value(d->p, buf, t, SHAPE(v->shape.dim[0], width), ROLE_ACTIVATION, SECTION_MICRO);
}

/* Sends x to the next rank of the ring. The tag marks it as backward, which the data flow of keys and values does not show. */
static value_id emit_shift(differ *d, const op *f, const char *name, int step, value_id x) {
    const value v = *program_get(d->p, x);
    value_id y = add_ring_value(d, name, step, f->in[ATTENTION_RING_QKV], v.type, v.shape.dim[1]);
    op *o = differ_emit(d, OP_SHIFT, f);
    o->attr.axis = AXIS_SEQUENCE;
    o->attr.tag = TAG_BACKWARD;
    op_in(o, SHIFT_X, x);
    op_out(o, SHIFT_Y, y);
    return y;
}

/* The backward of all steps of a ring, written at the last of them. Keys and values go round once more, so that a rank keeps
 * only its own, together with their gradient: every rank adds its part, in ring order from the owner on, and one more step
 * returns it to the owner. */
static void backward_ATTENTION_RING(differ *d, const op *f, value_id dy) {
    const op_attr *a = &f->attr;
    int64_t q_width = (int64_t)a->n_heads * a->head_dim, kv_width = 2 * (int64_t)a->n_kv_heads * a->head_dim;
    value_id qkv = f->in[ATTENTION_RING_QKV];
    value_id kv = add_ring_value(d, "kv", 0, qkv, program_get(d->p, qkv)->type, kv_width);
    value_id dq = add_ring_value(d, "q", 0, qkv, DTYPE_F32, q_width);
    value_id dkv = add_ring_value(d, "dkv", 0, qkv, DTYPE_F32, kv_width);
    op *o = differ_emit(d, OP_KV_PART, f);
    o->attr.tag = TAG_BACKWARD;
    op_in(o, KV_PART_QKV, qkv);
    op_out(o, KV_PART_KV, kv);
    for (int step = 0; step < a->group_size; step++) {
        bool sends = !a->spans; /* else both steps are this rank's */
        value_id next = sends && step + 1 < a->group_size ? emit_shift(d, f, "kv", step + 1, kv) : kv;
        value_id seen = a->spans ? d->options->net->spans[step] : f->in[ATTENTION_RING_DOC_START];
        o = differ_emit(d, OP_ATTENTION_RING_BWD, f);
        o->attr.peer = (a->index - step + a->group_size) % a->group_size;
        op_in(o, ATTENTION_RING_BWD_QKV, qkv), op_in(o, ATTENTION_RING_BWD_KV, kv);
        op_in(o, ATTENTION_RING_BWD_DOC_START, seen), op_in(o, ATTENTION_RING_BWD_DY, dy);
        op_in(o, ATTENTION_RING_BWD_Y, f->out[ATTENTION_RING_Y]);
        op_in(o, ATTENTION_RING_BWD_LSE, f->out[ATTENTION_RING_LSE]);
        op_out(o, ATTENTION_RING_BWD_DQ, dq), op_out(o, ATTENTION_RING_BWD_DKV, dkv);
        if (sends) dkv = emit_shift(d, f, "dkv", step + 1, dkv);
        kv = next;
    }
    value_id dx = differ_value(d, qkv);
    o = differ_emit(d, OP_QKV_JOIN, f);
    op_in(o, QKV_JOIN_Q, dq), op_in(o, QKV_JOIN_KV, dkv);
    op_out(o, QKV_JOIN_QKV, dx);
    differ_add(d, qkv, dx, f);
}

/* The last step of a ring writes the backward of all its steps, and of the ops that extract and send keys and values. */
static bool ends_ring(const op *f) { return f->attr.peer == (f->attr.index + 1) % f->attr.group_size; }

static void backward_GELU(differ *d, const op *f, value_id dy) {
    value_id x = f->in[GELU_X], dx = differ_value(d, x);
    op *o = differ_emit(d, OP_GELU_BWD, f);
    op_in(o, GELU_BWD_X, x), op_in(o, GELU_BWD_DY, dy);
    op_out(o, GELU_BWD_DX, dx);
    differ_add(d, x, dx, f);
}

static void backward_SWIGLU(differ *d, const op *f, value_id dy) {
    value_id gu = f->in[SWIGLU_GU], dgu = differ_value(d, gu);
    op *o = differ_emit(d, OP_SWIGLU_BWD, f);
    op_in(o, SWIGLU_BWD_GU, gu), op_in(o, SWIGLU_BWD_DY, dy);
    op_out(o, SWIGLU_BWD_DGU, dgu);
    differ_add(d, gu, dgu, f);
}

static void backward_VALUE(differ *d, const op *f, value_id dvalues) {
    value_id x = f->in[VALUE_X], w = f->in[VALUE_W], b = f->in[VALUE_B], dx = differ_value(d, x);
    value_id dw = differ_target(d, w), db = differ_target(d, b);
    op *o = differ_emit(d, OP_VALUE_BWD, f);
    op_in(o, VALUE_BWD_X, x), op_in(o, VALUE_BWD_W, w);
    op_in(o, VALUE_BWD_VALUES, f->out[VALUE_VALUES]), op_in(o, VALUE_BWD_DVALUES, dvalues);
    op_out(o, VALUE_BWD_DX, dx), op_out(o, VALUE_BWD_DW, dw), op_out(o, VALUE_BWD_DB, db);
    differ_finish(d, w, f);
    differ_finish(d, b, f);
    differ_add(d, x, dx, f);
}

static void backward_table(differ *d, const op *f, value_id table, value_id tokens, value_id dy) {
    const net_source *c = &d->options->net->source;
    bool tied = net_is_tied(c); /* else no unembedding has begun the gradient */
    value_id dtable = differ_target(d, table);
    if (!dtable) return;
    op *o = differ_emit(d, tied ? OP_EMBED_BWD_ADD : OP_EMBED_BWD, f);
    SAME_PLACE(EMBED_BWD_TOKENS, EMBED_BWD_ADD_TOKENS);
    SAME_PLACE(EMBED_BWD_DY, EMBED_BWD_ADD_DY);
    SAME_PLACE(EMBED_BWD_DTABLE, EMBED_BWD_ADD_DTABLE);
    o->attr.scale = d->options->net->embed_scale; /* f is the loss where another stage has the embedding */
    op_in(o, EMBED_BWD_TOKENS, tokens), op_in(o, EMBED_BWD_DY, dy);
    op_out(o, EMBED_BWD_DTABLE, dtable);
    differ_finish(d, table, f);
}

static void backward_positions(differ *d, const op *f, value_id dy) {
    value_id dpositions = differ_target(d, f->in[EMBED_POSITIONS]), doc_start = f->in[EMBED_DOC_START];
    if (!dpositions) return;
    if (f->attr.n_tokens > 0) { /* those that this rank added */
        value v = *program_get(d->p, dy);
        size_t row_bytes = value_bytes(&v) / (size_t)v.shape.dim[0], first = (size_t)f->attr.first_token;
        dy = program_view(d->p, "d.embed.own", dy, first * row_bytes, SHAPE(f->attr.n_tokens, v.shape.dim[1]));
        doc_start = program_view(d->p, "doc_start.own", doc_start, first * sizeof(int32_t), SHAPE(f->attr.n_tokens));
    }
    op *o = differ_emit(d, OP_POSITION_BWD, f);
    op_in(o, POSITION_BWD_DOC_START, doc_start), op_in(o, POSITION_BWD_DY, dy);
    op_out(o, POSITION_BWD_DTABLE, dpositions);
    differ_finish(d, f->in[EMBED_POSITIONS], f);
}

static void backward_EMBED(differ *d, const op *f, value_id dy) {
    size_t i = d->param[f->in[EMBED_TABLE]];
    bool is_copy = d->options->net->params[i].is_copy;
    if (!is_copy) backward_table(d, f, f->in[EMBED_TABLE], f->in[EMBED_TOKENS], dy);
    if (f->in[EMBED_POSITIONS]) backward_positions(d, f, dy);
    if (!is_copy || !d->is_wanted[f->in[EMBED_TABLE]]) return;
    op *o = emit_between_stages(d, OP_SEND, f, mesh_size(&d->options->mesh, AXIS_PIPELINE) - 1, TAG_EMBED);
    op_in(o, SEND_X, dy);
}

/* On the stage that trains a tied table without having the embedding: the second half of its gradient. */
static void receive_embed_gradient(differ *d, const op *loss) {
    const net *m = d->options->net;
    const value h = *program_get(d->p, loss->in[LOGITS_H]);
    value_id dy = program_value(d->p, "d.embed", h.type, h.shape, ROLE_ACTIVATION, SECTION_MICRO);
    op *o = emit_between_stages(d, OP_RECV, loss, 0, TAG_EMBED);
    op_out(o, RECV_Y, dy);
    backward_table(d, loss, loss->in[LOGITS_W], m->tokens, dy);
}

/* Another stage continues from x, and sends the gradient of x back. */
static void backward_SEND(differ *d, const op *f, value_id none) {
    ASSERT(!none);
    value_id dx = differ_value(d, f->in[SEND_X]);
    op *o = emit_between_stages(d, OP_RECV, f, f->attr.peer, TAG_BACKWARD);
    op_out(o, RECV_Y, dx);
    differ_add(d, f->in[SEND_X], dx, f);
}

static void backward_RECV(differ *d, const op *f, value_id dy) {
    op *o = emit_between_stages(d, OP_SEND, f, f->attr.peer, TAG_BACKWARD);
    op_in(o, SEND_X, dy);
}

/* The backward of an all-gather is a reduce-scatter and the other way round; an all-to-all is reversed. */
static void backward_message(differ *d, const op *f, value_id dy) {
    value_id dx = differ_value(d, f->in[MESSAGE_SENT]);
    op_kind k = f->kind == OP_ALL_GATHER ? OP_REDUCE_SCATTER : f->kind == OP_REDUCE_SCATTER ? OP_ALL_GATHER : f->kind;
    op *o = differ_emit(d, k, f);
    op_in(o, MESSAGE_SENT, dy);
    op_out(o, MESSAGE_RECEIVED, dx);
    differ_add(d, f->in[MESSAGE_SENT], dx, f);
}

static void backward_parts(differ *d, const op *f, value_id dy) {
    SAME_PLACE(HEAD_PARTS_X, TOKEN_PARTS_X);
    SAME_PLACE(HEAD_PARTS_Y, TOKEN_PARTS_Y);
    value_id dx = differ_value(d, f->in[HEAD_PARTS_X]);
    op *o = differ_emit(d, f->kind, f);
    o->attr.inverse = !f->attr.inverse;
    op_in(o, HEAD_PARTS_X, dy);
    op_out(o, HEAD_PARTS_Y, dx);
    differ_add(d, f->in[HEAD_PARTS_X], dx, f);
}

/* Where the loss at hand writes, or adds, its part of the unembedding's gradient; NO_VALUE where that is frozen. */
static value_id unembed_target(differ *d, value_id w) {
    ASSERT(d->param[w] != SIZE_MAX);
    return d->is_wanted[w] ? differ_rank_target(d, d->param[w]) : NO_VALUE;
}

/* After the last loss. A tied table is finished by the embedding. */
static void unembed_finish(differ *d, value_id w, const op *f) {
    const net *m = d->options->net;
    if (d->loss == m->n_losses - 1 && !m->source.tied) differ_finish(d, w, f);
}

static void reduce_loss(differ *d, const op *f, value_id losses, value_id targets, value_id weights) {
    const net *m = d->options->net;
    op *o = differ_emit(d, OP_LOSS_REDUCE, f);
    if (m->n_losses > 1) o->attr.loss = d->loss, o->attr.n_losses = m->n_losses;
    op_in(o, LOSS_REDUCE_LOSSES, losses), op_in(o, LOSS_REDUCE_TARGETS, targets);
    op_in(o, LOSS_REDUCE_WEIGHTS, weights), op_in(o, LOSS_REDUCE_SCALARS, m->scalars);
    op_out(o, LOSS_REDUCE_SUMS, d->step->loss_sums);
}

/* Forward and gradient together. The weights are known before the step, so one pass over the logits is enough. */
static void loss_with_gradient(differ *d, const op *f) {
    const net *m = d->options->net;
    value_id h = f->in[UNEMBED_LOSS_H], w = f->in[UNEMBED_LOSS_W], targets = f->in[UNEMBED_LOSS_TARGETS];
    value_id losses = f->out[UNEMBED_LOSS_LOSSES], dh = differ_value(d, h), dw = unembed_target(d, w);
    op *o = differ_emit(d, OP_UNEMBED_LOSS_GRAD, f);
    o->attr.adds = d->loss > 0;
    op_in(o, UNEMBED_LOSS_GRAD_H, h), op_in(o, UNEMBED_LOSS_GRAD_W, w), op_in(o, UNEMBED_LOSS_GRAD_TARGETS, targets);
    op_in(o, UNEMBED_LOSS_GRAD_WEIGHTS, m->loss[d->loss].weights), op_in(o, UNEMBED_LOSS_GRAD_SCALARS, m->scalars);
    op_out(o, UNEMBED_LOSS_GRAD_LOSSES, losses);
    op_out(o, UNEMBED_LOSS_GRAD_DH, dh), op_out(o, UNEMBED_LOSS_GRAD_DW, dw);
    differ_add(d, h, dh, f);
    unembed_finish(d, w, f);
    reduce_loss(d, f, losses, targets, m->loss[d->loss].weights);
}

/* The losses of a frozen reference have none. */
static bool has_gradient(const differ *d, const op *loss) {
    return d->is_wanted[loss->in[LOGITS_H]] || d->is_wanted[loss->in[LOGITS_W]];
}

/* The op that ends a loss of several: the one that makes weights of tokens from their losses, or where ranks meet. */
static op_kind last_of_loss(const net *m) {
    if (m->advantages) return OP_POLICY;
    return m->segments ? OP_PREFERENCE : m->selection.kind ? OP_SELECT_TOKENS : OP_UNEMBED_JOIN;
}

/* Where ranks share the vocabulary, the forward ends with the combined statistics of all ranks, and the gradient begins with
 * them; so it does where `last`, the op that ends the loss, makes the weights of tokens from their losses. */
static void gradient_of_shared_loss(differ *d, const op *stats, const op *join, const op *last) {
    const net *m = d->options->net;
    value_id h = stats->in[UNEMBED_STATS_H], w = stats->in[UNEMBED_STATS_W], weights = m->loss[d->loss].weights;
    SAME_PLACE(PREFERENCE_WEIGHTS, POLICY_WEIGHTS, SELECT_TOKENS_WEIGHTS);
    if (last->kind != OP_UNEMBED_JOIN) weights = last->out[PREFERENCE_WEIGHTS];
    if (last->kind == OP_UNEMBED_JOIN || last->kind == OP_SELECT_TOKENS)
        reduce_loss(d, join, join->out[UNEMBED_JOIN_LOSSES], join->in[UNEMBED_JOIN_TARGETS], weights);
    value_id dh = differ_value(d, h), dw = unembed_target(d, w);
    op *o = differ_emit(d, OP_UNEMBED_GRAD, stats);
    o->attr.adds = d->loss > 0;
    op_in(o, UNEMBED_GRAD_H, h), op_in(o, UNEMBED_GRAD_W, w);
    op_in(o, UNEMBED_GRAD_TARGETS, stats->in[UNEMBED_STATS_TARGETS]), op_in(o, UNEMBED_GRAD_WEIGHTS, weights);
    op_in(o, UNEMBED_GRAD_SCALARS, m->scalars), op_in(o, UNEMBED_GRAD_STATS, join->in[UNEMBED_JOIN_STATS]);
    op_out(o, UNEMBED_GRAD_DH, dh), op_out(o, UNEMBED_GRAD_DW, dw);
    differ_add(d, h, dh, stats);
    unembed_finish(d, w, stats);
}

/* ---- the backward of each op ------------------------------------------------------------------------------------------ */

#define backward_HEAD_PARTS backward_parts
#define backward_TOKEN_PARTS backward_parts
#define backward_ALL_GATHER backward_message
#define backward_ALL_TO_ALL backward_message
#define backward_REDUCE_SCATTER backward_message

/* Writes the backward of f; dy is the gradient of its first output. NULL: the op has no backward. */
typedef void (*backward_fn)(differ *d, const op *f, value_id dy);
static void write_nothing(differ *d, const op *f, value_id dy) { (void)d, (void)f, (void)dy; }

#define WRITTEN_BACKWARD(id) backward_##id
#define WRITTEN_NOTHING_BACK(id) write_nothing
#define WRITTEN_NO_BACKWARD(id) NULL
static const backward_fn backwards[OP_COUNT] = {
#define OP(id, in, out, inplace, scratch, class, traits, backward, summary) [OP_##id] = WRITTEN_##backward(id),
#include "program/ops.def"
#undef OP
};

static status backward(differ *d, const op *f) {
    if (!d->is_wanted[op_main_value(f)]) return OK; /* no trained parameter before it, as in all of a reference */
    backward_fn write = backwards[f->kind];
    if (!write) return ERR(ERR_BUG, "autodiff: op %s has no backward", op_name(f->kind));
    if (write == write_nothing || (f->kind == OP_ATTENTION_RING && !ends_ring(f))) return OK;
    value_id y = *f->out, dy = y ? differ_take(d, y) : NO_VALUE; /* complete: all readers of y come after f */
    if (y && !dy) return ERR(ERR_BUG, "autodiff: no gradient reaches '%s'", d->p->values[y].name);
    write(d, f, dy);
    return OK;
}

/* A gradient that no op has used would be missing from its source. */
static status check_taken(const differ *d, size_t n_values) {
    for (size_t v = 0; v < n_values; v++)
        if (d->gradient[v] != NO_VALUE)
            return ERR(ERR_BUG, "autodiff: the gradient of '%s' goes nowhere", d->p->values[v].name);
    return OK;
}

static void add_grad_values(program *p, const pass_options *options, step_interface *step) {
    const net *m = options->net;
    char name[160];
    step->grads = arena_array(&p->memory, value_id, m->n_params);
    for (size_t i = 0; i < m->n_params; i++) {
        const value *v = program_get(p, m->params[i].value);
        int layer = v->layer;
        if (!net_param_trained(&m->params[i])) continue;
        snprintf(name, sizeof name, "d.%s", v->name);
        step->grads[i] = program_persistent(p, name, precision_grad(options->choice.precision), v->shape, ROLE_GRAD);
        p->values[step->grads[i]].layer = layer;
        p->values[m->params[i].value].gradient = step->grads[i];
    }
    step->loss_sums = m->loss_sums;
    if (!step->loss_sums)
        step->loss_sums = program_persistent(p, "loss.sums", DTYPE_F64, SHAPE(SUM_COUNT * m->n_losses), ROLE_WORK);
}

/* The backward of ops [begin, end), last to first. */
static status walk_back(differ *d, const op *ops, size_t begin, size_t end) {
    status rc = OK;
    for (size_t k = end; k-- > begin && rc == OK;) {
        d->p->current_layer = ops[k].layer;
        rc = backward(d, &ops[k]);
    }
    d->p->current_layer = -1;
    return rc;
}

/* Where the ops of the head begin whose loss is op `loss`: before that come the final norm and one layer. */
static size_t head_begin(const op *ops, size_t loss) {
    size_t at = loss;
    while (ops[at - 1].layer < 0) at--;
    for (int layer = ops[at - 1].layer; at > 0 && ops[at - 1].layer == layer;) at--;
    return at;
}

/* CRITIC has written the gradient of all values. Tensor and sequence ranks have gathered them, and each takes that of
 * its own: what ALL_GATHER's backward would send it is there already. Returns the first op that the backward does not
 * begin with. */
static size_t gradient_of_values(differ *d, const op *ops, size_t critic) {
    value_id dvalues = ops[critic].out[CRITIC_DVALUES], values = ops[critic].in[CRITIC_VALUES];
    size_t at = critic;
    for (; ops[at - 1].kind == OP_ALL_GATHER; at--) {
        const op *gather = &ops[at - 1];
        char name[64];
        values = gather->in[ALL_GATHER_X];
        int64_t n = shape_count(&program_get(d->p, values)->shape);
        size_t first = (size_t)(d->options->mesh.index[gather->attr.axis] * n);
        snprintf(name, sizeof name, "d.values.%s", axis_name(gather->attr.axis));
        dvalues = program_view(d->p, name, dvalues, first * sizeof(float), SHAPE(n));
    }
    d->gradient[values] = dvalues;
    return at;
}

/* The forward with the gradient of every loss behind it, and of several losses the backward of each head. The backward of
 * ops before *rest is not written yet. Returns in *loss the last of them; NULL: this stage has none. */
static status write_losses(differ *d, const op *ops, size_t first, size_t end, size_t *rest, const op **loss) {
    const net *m = d->options->net;
    size_t at = SIZE_MAX,
           join = SIZE_MAX; /* the first op of the loss, which writes its own gradient; where ranks meet */
    *rest = end, *loss = NULL;
    for (size_t i = first; i < end; i++) {
        const op *o = &ops[i];
        bool is_loss = op_class_of(o->kind) == OP_CLASS_LOGITS, done = false;
        if (is_loss && has_gradient(d, o)) at = i;
        if (o->kind == OP_UNEMBED_LOSS && at == i) loss_with_gradient(d, o), done = true;
        else program_append(d->p, o);
        if (o->kind == OP_CRITIC) *rest = gradient_of_values(d, ops, i); /* the last op of its section */
        if (o->kind == OP_UNEMBED_JOIN && at != SIZE_MAX) join = i;
        if (o->kind == last_of_loss(m) && join != SIZE_MAX)
            gradient_of_shared_loss(d, &ops[at], &ops[join], o), done = true;
        if (!done) continue;
        *loss = &ops[at];
        if (m->n_losses > 1) {
            size_t begin = head_begin(ops, at);
            TRY(walk_back(d, ops, begin, at));
            if (d->loss == 0) *rest = begin;
        } else {
            *rest = at;
        }
        if (d->loss + 1 < m->n_losses) d->loss++;
        at = join = SIZE_MAX;
    }
    return OK;
}

status pass_autodiff(program *p, const pass_options *options, step_interface *step) {
    status rc = OK;
    size_t none, n_trained;
    program_section(p, SECTION_MICRO, &none, &n_trained);
    if (none == n_trained) return OK; /* a program that only evaluates or generates: there is no loss to go back from */
    p->current_layer = -1;
    add_grad_values(p, options, step);
    size_t n_ops, n_before = p->n_values;
    op *ops = program_take_ops(p, &n_ops);
    differ d = {.p = p, .options = options, .step = step};
    d.gradient = mem_alloc(n_before * sizeof *d.gradient);
    d.is_wanted = mem_alloc(n_before * sizeof *d.is_wanted);
    d.param = number_params(options->net, n_before);
    d.pending = mem_alloc(options->net->n_params * sizeof *d.pending);
    d.parts = mem_alloc(options->net->n_params * sizeof *d.parts);
    int64_t n_blocks;
    d.places = bucket_places(options->net, &n_blocks);
    d.of_head = mem_alloc(options->net->n_params * sizeof *d.of_head);
    d.of_heads = mem_alloc(options->net->n_params * sizeof *d.of_heads);
    size_t first = 0, end, rest;
    const op *loss;
    for (; first < n_ops && ops[first].section < SECTION_MICRO; first++) program_append(p, &ops[first]);
    for (end = first; end < n_ops && ops[end].section == SECTION_MICRO;) end++;
    find_wanted(&d, ops, first, end);
    rc = write_losses(&d, ops, first, end, &rest, &loss);
    if (rc == OK) rc = walk_back(&d, ops, first, rest);
    bool has_embedding = options->mesh.index[AXIS_PIPELINE] == 0;
    if (rc == OK && loss && net_is_tied(&options->net->source) && !has_embedding && d.is_wanted[loss->in[LOGITS_W]])
        receive_embed_gradient(&d, loss);
    if (rc == OK) rc = check_taken(&d, n_before);
    for (size_t i = end; i < n_ops; i++) program_append(p, &ops[i]);
    free(d.of_head);
    free(d.of_heads);
    free(d.gradient);
    free(d.is_wanted);
    free(d.param);
    free(d.pending);
    free(d.parts);
    free(d.places);
    free(ops);
    return rc;
}
