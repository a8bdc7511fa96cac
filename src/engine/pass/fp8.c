/* fp8.c - the linear layers of the blocks as products of 8-bit numbers.
 *
 * In: a training section with forward, backward and fused biases. Out: every LINEAR of a layer, and both its gradients, as
 * LINEAR8 over e4m3 numbers. Hardware needs both operands contiguous along the summed dimension, so
 *
 *     y  = x  w^T     x, w       both as stored
 *     dx = dy w       dy, w^T    w^T made with w
 *     dw = dy^T x     dy^T, x^T  each made in the pass over the tensor that quantizes it
 *
 * A tensor has one scale, from its own largest number, or one for each of its blocks (FP8_BLOCKS), where the transpose has blocks and
 * scales of its own: no history, so a step depends only on parameters and data, and
 * stopping, resuming and running it again give the same bits. The backward keeps x^T in 8 bits instead of x, half the bytes.
 * Weights are quantized once per step, in SECTION_PREPARE, w and w^T beside the parameter: all micro-batches read them, and
 * with ZeRO 3 they are whole on every rank and the layers' parameters are gathered once per step. Frozen ones never change: they are
 * quantized once, in SECTION_LOADED.
 *
 * With choice.fp8_logits the loss is one of them: UNEMBED8_LOSS_GRAD makes logits, dh and dw of 8-bit numbers, with one scale per tensor.
 * With choice.fp8_attention so is the forward of attention, which rounds q, k and v itself: the op stays and has attr.fp8, so that what
 * copies it, as recompute does, needs to know nothing of it. Its backward stays in 16 bits.
 *
 * Adapters stay in 16 bits: their products are thin, and what they add is small beside what they are added to.
 *
 * Evaluation stays in 16 bits: it measures the parameters that are exported. So does a linear with a dimension, tokens
 * included, that is not a multiple of SIDE, which the hardware does not support: decided here, so that every device runs the
 * same program. */
#include "pass/pass.h"

#include <stdlib.h>

enum { SIDE = 16 };

/* An 8-bit tensor: as stored, transposed, and the scales of both, which are one where the tensor has one. */
typedef struct quantized {
    value_id q, t, scale, t_scale;
} quantized;

typedef struct rewriter {
    program *p;
    const net *m;
    bool power;     /* scales are powers of two */
    bool blocks;    /* ... of the blocks of a layer's tensors */
    quantized *of;  /* per value of the old table; q is NO_VALUE where there is none yet */
    size_t *writer; /* ... and 1 + the op of the new list that wrote it; 0: none has */
    bool logits;    /* the loss too */
    bool attention; /* and the forward of attention */
} rewriter;

static bool fits(const value *rows, const value *w) {
    return rows->shape.dim[0] % SIDE == 0 && w->shape.dim[0] % SIDE == 0 && w->shape.dim[1] % SIDE == 0;
}

/* Is this op one of the three products of a layer's linear that can be done in 8 bits? */
static bool is_rewritten(const program *p, const op *o) {
    if (o->section != SECTION_MICRO || o->layer < 0 || o->rows || o->attr.adapter) return false;
    switch (o->kind) {
    case OP_LINEAR: return fits(program_get(p, o->in[LINEAR_X]), program_get(p, o->in[LINEAR_W]));
    case OP_LINEAR_DX: return fits(program_get(p, o->in[LINEAR_DX_DY]), program_get(p, o->in[LINEAR_DX_W]));
    case OP_LINEAR_DW: return fits(program_get(p, o->in[LINEAR_DW_DY]), program_get(p, o->out[LINEAR_DW_DW]));
    default: return false;
    }
}

/* ---- 8-bit tensors ------------------------------------------------------------------------------------------------- */

/* Quantized weights are persistent; all else lives for a micro-batch. */
static bool of_weights(section where) { return where != SECTION_MICRO; }

static value_id add_like(program *p, const value *x, const char *suffix, dtype type, shape s, section where) {
    char name[256];
    snprintf(name, sizeof name, "%.200s.%s", x->name, suffix);
    if (of_weights(where)) return program_persistent(p, name, type, s, ROLE_PARAM);
    return program_value(p, name, type, s, ROLE_ACTIVATION, where);
}

/* The output that holds the amax of output `of`, in ops that have one; -1 in others. */
static int amax_output(op_kind k, int of) {
    int first = MAX(op_norm_output(k), 0), last = op_output_count(k) - 1;
    return of == first && strcmp(op_output_name(k, last), "amax") == 0 ? last : -1;
}

/* Lets the op that wrote v also write its amax, where it can: saves a pass over v. */
static bool request_amax(const rewriter *w, value_id v, value_id amax) {
    if (!w->writer[v]) return false;
    op *o = &w->p->ops[w->writer[v] - 1];
    for (int k = 0; k < op_output_count(o->kind); k++) {
        int at = o->out[k] == v ? amax_output(o->kind, k) : -1;
        if (at < 0) continue;
        op_out(o, at, amax);
        return true;
    }
    return false;
}

/* ... in blocks, of which no pass has to look for the largest numbers. */
static quantized quantize_blocks(const rewriter *w, value_id v, section where, int layer) {
    program *p = w->p;
    const value x = *program_get(p, v);
    int64_t n = x.shape.dim[0], m = x.shape.dim[1];
    bool square = of_weights(where);
    p->current_layer = layer;
    quantized z = {.q = add_like(p, &x, "e4m3", DTYPE_F8E4M3, x.shape, where),
                   .t = add_like(p, &x, "e4m3.t", DTYPE_F8E4M3, SHAPE(m, n), where),
                   .scale = add_like(p, &x, "e4m3.scale", DTYPE_F32, fp8_scales_shape(n, m, square), where),
                   .t_scale = add_like(p, &x, "e4m3.scale.t", DTYPE_F32, fp8_scales_shape(m, n, square), where)};
    op *o = program_emit(p, OP_QUANTIZE_BLOCKS, where);
    o->attr.square = square;
    op_in(o, QUANTIZE_BLOCKS_X, v);
    op_out(o, QUANTIZE_BLOCKS_Q, z.q), op_out(o, QUANTIZE_BLOCKS_SCALE, z.scale);
    op_out(o, QUANTIZE_BLOCKS_T, z.t), op_out(o, QUANTIZE_BLOCKS_T_SCALE, z.t_scale);
    p->current_layer = -1;
    return z;
}

/* Appends the ops that quantize v; one of a layer may be in blocks. */
static quantized quantize(const rewriter *w, value_id v, section where, int layer) {
    if (w->blocks && layer >= 0) return quantize_blocks(w, v, where, layer);
    program *p = w->p;
    const value x = *program_get(p, v);
    p->current_layer = layer;
    char name[256];
    snprintf(name, sizeof name, "%.200s.amax", x.name);
    role transient = of_weights(where) ? ROLE_WORK : ROLE_ACTIVATION;
    value_id amax = program_value(p, name, DTYPE_F32, SHAPE(1), transient, where);
    quantized z = {.q = add_like(p, &x, "e4m3", DTYPE_F8E4M3, x.shape, where),
                   .t = add_like(p, &x, "e4m3.t", DTYPE_F8E4M3, SHAPE(x.shape.dim[1], x.shape.dim[0]), where),
                   .scale = add_like(p, &x, "e4m3.scale", DTYPE_F32, SHAPE(1), where)};
    op *o;
    if (!request_amax(w, v, amax)) {
        o = program_emit(p, OP_ABSMAX, where);
        op_in(o, ABSMAX_X, v);
        op_out(o, ABSMAX_AMAX, amax);
    }
    o = program_emit(p, OP_QUANTIZE, where);
    o->attr.power = w->power;
    op_in(o, QUANTIZE_X, v), op_in(o, QUANTIZE_AMAX, amax);
    op_out(o, QUANTIZE_Q, z.q), op_out(o, QUANTIZE_T, z.t), op_out(o, QUANTIZE_SCALE, z.scale);
    p->current_layer = -1;
    z.t_scale = z.scale;
    return z;
}

static const quantized *quantized_of(rewriter *w, value_id v, const op *reader) {
    quantized *z = &w->of[v];
    if (z->q == NO_VALUE) *z = quantize(w, v, SECTION_MICRO, reader->layer);
    return z;
}

/* ---- the rewrite --------------------------------------------------------------------------------------------------- */

static void append_product(rewriter *w, const op *old, value_id x, value_id x_scale, value_id weight,
                           value_id weight_scale) {
    op o = *old; /* and what it writes */
    SAME_PLACE(LINEAR8_Y, LINEAR_Y);
    SAME_PLACE(LINEAR8_Y, LINEAR_DX_DX);
    SAME_PLACE(LINEAR8_Y, LINEAR_DW_DW);
    o.kind = OP_LINEAR8;
    memset(o.in, 0, sizeof o.in);
    op_in(&o, LINEAR8_X, x), op_in(&o, LINEAR8_X_SCALE, x_scale);
    op_in(&o, LINEAR8_W, weight), op_in(&o, LINEAR8_W_SCALE, weight_scale);
    if (old->kind == OP_LINEAR) op_in(&o, LINEAR8_B, old->in[LINEAR_B]);
    o.attr.over_tokens = old->kind == OP_LINEAR_DW;
    program_append(w->p, &o);
}

/* The adapter's gradient that was appended last, if `add` is nothing else: it is taken out again, to add to the product. */
static bool take_adapter(rewriter *w, value_id add, op *out) {
    const op *last = w->p->n_ops ? &w->p->ops[w->p->n_ops - 1] : NULL;
    if (!last || last->kind != OP_LINEAR_DX || !last->attr.adapter || last->in[LINEAR_DX_ADD] ||
        last->out[LINEAR_DX_DX] != add)
        return false;
    *out = *last;
    w->p->n_ops--;
    w->writer[add] = 0;
    return true;
}

/* dx = product + what an adapter gives, which adds to the product where it lies: two passes over dx fewer than by ADD. */
static void append_product_and_adapter(rewriter *w, const op *old, op *adapter, const quantized *dy,
                                       const quantized *weight) {
    op product = *old;
    product.out[LINEAR_DX_DX] = adapter->out[LINEAR_DX_DX];
    append_product(w, &product, dy->q, dy->scale, weight->t, weight->t_scale);
    op_in(adapter, LINEAR_DX_ADD, product.out[LINEAR_DX_DX]), op_out(adapter, LINEAR_DX_DX, old->out[LINEAR_DX_DX]);
    program_append(w->p, adapter);
}

/* dx = add + product. LINEAR8 adds nothing, so the product is a value of its own. */
static void append_product_and_add(rewriter *w, const op *old, value_id dy, value_id dy_scale, value_id weight,
                                   value_id weight_scale) {
    const value dx = *program_get(w->p, old->out[LINEAR_DX_DX]);
    op product = *old;
    product.out[LINEAR_DX_DX] = add_like(w->p, &dx, "product", dx.type, dx.shape, SECTION_MICRO);
    w->p->values[product.out[LINEAR_DX_DX]].layer = old->layer;
    append_product(w, &product, dy, dy_scale, weight, weight_scale);
    op *o = program_emit(w->p, OP_ADD, SECTION_MICRO);
    o->layer = old->layer;
    op_in(o, ADD_A, old->in[LINEAR_DX_ADD]), op_in(o, ADD_B, product.out[LINEAR_DX_DX]);
    op_out(o, ADD_Y, old->out[LINEAR_DX_DX]);
}

static void note_outputs(rewriter *w, const op *o) {
    for (int k = 0; k < op_output_count(o->kind); k++)
        if (o->out[k] && o->section == SECTION_MICRO) w->writer[o->out[k]] = w->p->n_ops;
}

SAME_PLACE(UNEMBED8_LOSS_GRAD_TARGETS, UNEMBED_LOSS_GRAD_TARGETS);
SAME_PLACE(UNEMBED8_LOSS_GRAD_WEIGHTS, UNEMBED_LOSS_GRAD_WEIGHTS);
SAME_PLACE(UNEMBED8_LOSS_GRAD_SCALARS, UNEMBED_LOSS_GRAD_SCALARS);
SAME_PLACE(UNEMBED8_LOSS_GRAD_LOSSES, UNEMBED_LOSS_GRAD_LOSSES);
SAME_PLACE(UNEMBED8_LOSS_GRAD_DH, UNEMBED_LOSS_GRAD_DH);
SAME_PLACE(UNEMBED8_LOSS_GRAD_DW, UNEMBED_LOSS_GRAD_DW);

static void append_loss(rewriter *w, const op *old) {
    const quantized h = *quantized_of(w, old->in[UNEMBED_LOSS_GRAD_H], old);
    const quantized weight = *quantized_of(w, old->in[UNEMBED_LOSS_GRAD_W], old);
    op o = *old; /* targets, weights, scalars and what it writes */
    o.kind = OP_UNEMBED8_LOSS_GRAD;
    op_in(&o, UNEMBED8_LOSS_GRAD_H, h.q), op_in(&o, UNEMBED8_LOSS_GRAD_H_SCALE, h.scale);
    op_in(&o, UNEMBED8_LOSS_GRAD_W, weight.q), op_in(&o, UNEMBED8_LOSS_GRAD_W_SCALE, weight.scale);
    op_in(&o, UNEMBED8_LOSS_GRAD_W_TURNED, weight.t);
    if (old->out[UNEMBED_LOSS_GRAD_DW]) op_in(&o, UNEMBED8_LOSS_GRAD_H_TURNED, h.t);
    program_append(w->p, &o);
    note_outputs(w, &o);
}

static void rewrite(rewriter *w, const op *o) {
    if (w->logits && o->kind == OP_UNEMBED_LOSS_GRAD) {
        append_loss(w, o);
        return;
    }
    if (!is_rewritten(w->p, o)) {
        op same = *o;
        same.attr.fp8 = w->attention && o->kind == OP_ATTENTION && o->section == SECTION_MICRO;
        program_append(w->p, &same);
        note_outputs(w, &same);
        return;
    }
    const quantized *x, *dy, *weight;
    op adapter;
    switch (o->kind) {
    case OP_LINEAR:
        x = quantized_of(w, o->in[LINEAR_X], o), weight = quantized_of(w, o->in[LINEAR_W], o);
        append_product(w, o, x->q, x->scale, weight->q, weight->scale);
        break;
    case OP_LINEAR_DX: {
        bool adapted = take_adapter(w, o->in[LINEAR_DX_ADD], &adapter);
        dy = quantized_of(w, o->in[LINEAR_DX_DY], o), weight = quantized_of(w, o->in[LINEAR_DX_W], o);
        if (adapted) append_product_and_adapter(w, o, &adapter, dy, weight);
        else if (o->in[LINEAR_DX_ADD]) append_product_and_add(w, o, dy->q, dy->scale, weight->t, weight->t_scale);
        else append_product(w, o, dy->q, dy->scale, weight->t, weight->t_scale);
        break;
    }
    default: /* LINEAR_DW */
        dy = quantized_of(w, o->in[LINEAR_DW_DY], o), x = quantized_of(w, o->in[LINEAR_DW_X], o);
        append_product(w, o, dy->t, dy->t_scale, x->t, x->t_scale);
    }
}

static bool is_frozen(const net *m, value_id weight) {
    for (size_t i = 0; i < m->n_params; i++)
        if (m->params[i].value == weight) return m->params[i].frozen && !m->params[i].is_copy;
    return false;
}

/* Quantizes the weights that are frozen, or those of a step, in the order in which the forward reads them. */
static void quantize_weights(rewriter *w, const op *ops, size_t n_ops, bool frozen) {
    for (size_t i = 0; i < n_ops; i++) {
        value_id weight = NO_VALUE;
        if (ops[i].kind == OP_LINEAR && is_rewritten(w->p, &ops[i])) weight = ops[i].in[LINEAR_W];
        if (ops[i].kind == OP_UNEMBED_LOSS_GRAD && w->logits) weight = ops[i].in[UNEMBED_LOSS_GRAD_W];
        if (weight && !w->of[weight].q && is_frozen(w->m, weight) == frozen)
            w->of[weight] = quantize(w, weight, frozen ? SECTION_LOADED : SECTION_PREPARE, ops[i].layer);
    }
}

/* A value that lasts has bytes even if no op uses it; this one does not last any more. */
static void drop_output(program *p, value_id *out) {
    p->values[*out].persistent = false;
    *out = NO_VALUE;
}

/* A frozen weight has no gradient, and a frozen model reads no transposes: what nothing reads is not made. */
static void drop_unread(program *p) {
    bool *is_read = mem_alloc(p->n_values * sizeof *is_read);
    for (size_t i = 0; i < p->n_ops; i++)
        for (int k = 0; k < op_input_count(p->ops[i].kind); k++) is_read[p->ops[i].in[k]] = true;
    for (size_t i = 0; i < p->n_ops; i++) {
        value_id *out = p->ops[i].out;
        if (p->ops[i].kind == OP_QUANTIZE) {
            if (!is_read[out[QUANTIZE_Q]]) drop_output(p, &out[QUANTIZE_Q]);
            if (!is_read[out[QUANTIZE_T]]) drop_output(p, &out[QUANTIZE_T]);
        } else if (p->ops[i].kind == OP_QUANTIZE_BLOCKS) {
            if (!is_read[out[QUANTIZE_BLOCKS_Q]]) {
                drop_output(p, &out[QUANTIZE_BLOCKS_Q]);
                drop_output(p, &out[QUANTIZE_BLOCKS_SCALE]);
            }
            if (!is_read[out[QUANTIZE_BLOCKS_T]]) {
                drop_output(p, &out[QUANTIZE_BLOCKS_T]);
                drop_output(p, &out[QUANTIZE_BLOCKS_T_SCALE]);
            }
        }
    }
    free(is_read);
}

/* Logits in 8 bits were asked for by name: what cannot have them is an error. */
static status check_logits(const program *p, const net *m) {
    const char *weighs = m->selection.kind ? "train.weighting rho1"
                         : m->advantages   ? "train.task rloo"
                         : m->segments     ? "train.task preference"
                                           : NULL;
    for (size_t i = 0; i < p->n_ops; i++) {
        const op *o = &p->ops[i];
        if (o->kind == OP_UNEMBED_GRAD && weighs)
            return ERR(ERR_INPUT,
                       "train.fp8.logits: found true with %s, which weighs tokens by their losses and so computes the "
                       "logits twice, expected weights that are known before the step; set it to false",
                       weighs);
        if (o->kind == OP_UNEMBED_GRAD)
            return ERR(ERR_INPUT,
                       "train.fp8.logits is true and tensor ranks share the vocabulary; set parallel.tensor to "
                       "1 or train.fp8.logits to false");
        if (o->kind == OP_CRITIC)
            return ERR(ERR_INPUT, "train.fp8.logits is true and train.task critic has no logits; set it to false");
        if (o->kind != OP_UNEMBED_LOSS_GRAD) continue;
        const value *h = program_get(p, o->in[UNEMBED_LOSS_GRAD_H]), *w = program_get(p, o->in[UNEMBED_LOSS_GRAD_W]);
        if (!fits(h, w))
            return ERR(
                ERR_INPUT,
                "train.fp8.logits: found %lld tokens of a micro-batch, a vocabulary of %lld and a hidden size of "
                "%lld, expected multiples of %d; set it to false",
                (long long)h->shape.dim[0], (long long)w->shape.dim[0], (long long)w->shape.dim[1], SIDE);
    }
    return OK;
}

/* So was attention in 8 bits. */
static status check_attention(const program *p, const target *t) {
    for (size_t i = 0; i < p->n_ops; i++) {
        const op *o = &p->ops[i];
        if (o->section != SECTION_MICRO) continue;
        if (o->kind == OP_ATTENTION_RING)
            return ERR(
                ERR_INPUT,
                "train.fp8.attention: found true with %s, which has 16-bit kernels alone, expected attention over "
                "whole rows; set it to false",
                o->attr.spans ? "prompts that are shared" : "keys that go round a ring of sequence ranks");
        if (o->kind != OP_ATTENTION) continue;
        if (o->attr.softcap > 0)
            return ERR(
                ERR_INPUT,
                "train.fp8.attention: found true with a model that caps its attention scores at %g, expected one "
                "that does not; set it to false",
                (double)o->attr.softcap);
        if (t->discrete && o->attr.head_dim != 64 && o->attr.head_dim != 96 && o->attr.head_dim != 128)
            return ERR(
                ERR_INPUT,
                "train.fp8.attention: found true with heads of %d dimensions, expected 64, 96 or 128 on a GPU; set "
                "it to false",
                o->attr.head_dim);
    }
    return OK;
}

/* So were scales of blocks: no block may be cut. */
static status check_sides(const program *p) {
    for (size_t i = 0; i < p->n_ops; i++) {
        const op *o = &p->ops[i];
        if (o->kind != OP_LINEAR || o->section != SECTION_MICRO || o->layer < 0 || o->attr.adapter) continue;
        const value *x = program_get(p, o->in[LINEAR_X]), *w = program_get(p, o->in[LINEAR_W]);
        if (!o->rows && x->shape.dim[0] % FP8_BLOCK == 0 && w->shape.dim[0] % FP8_BLOCK == 0 &&
            w->shape.dim[1] % FP8_BLOCK == 0)
            continue;
        return ERR(ERR_INPUT,
                   "train.fp8.scales is block: found %lld tokens of a micro-batch and %s with %lld outputs and %lld "
                   "inputs on a rank, expected multiples of %d, which a block is long; set train.fp8.scales to power, "
                   "or choose other widths, data.seq_len, train.micro_batch or parallel.tensor",
                   (long long)x->shape.dim[0], w->name, (long long)w->shape.dim[0], (long long)w->shape.dim[1],
                   FP8_BLOCK);
    }
    return OK;
}

status pass_fp8(program *p, const pass_options *options, step_interface *step) {
    if (!precision_fp8(options->choice.precision) || !step->grads) return OK;
    size_t n_ops, i = 0;
    if (options->choice.fp8_logits) TRY(check_logits(p, options->net));
    if (options->choice.fp8_attention) TRY(check_attention(p, options->target));
    if (options->choice.fp8_scales == FP8_BLOCKS) TRY(check_sides(p));
    rewriter w = {.p = p,
                  .m = options->net,
                  .power = options->choice.fp8_scales != FP8_EXACT,
                  .blocks = options->choice.fp8_scales == FP8_BLOCKS,
                  .logits = options->choice.fp8_logits,
                  .attention = options->choice.fp8_attention,
                  .of = mem_alloc(p->n_values * sizeof *w.of)};
    w.writer = mem_alloc(p->n_values * sizeof *w.writer);
    op *ops = program_take_ops(p, &n_ops);
    for (; i < n_ops && ops[i].section < SECTION_LOADED; i++) program_append(p, &ops[i]);
    quantize_weights(&w, ops, n_ops, true);
    quantize_weights(&w, ops, n_ops, false);
    for (; i < n_ops; i++) rewrite(&w, &ops[i]);
    drop_unread(p);
    free(ops);
    free(w.writer);
    free(w.of);
    return OK;
}
