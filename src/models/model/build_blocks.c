/* build_blocks.c - the ops of a block: norms, the kinds of attention, MLP, and the messages of tensor and sequence ranks. */
#include "model/builder.h"

value_id builder_value(builder *b, const char *name, dtype t, shape s) {
    char buf[2 * NAME_BYTES];
    if (b->p->current_layer < 0) snprintf(buf, sizeof buf, "%s%s", b->prefix, name);
    else snprintf(buf, sizeof buf, "%slayers.%d.%s", b->prefix, b->p->current_layer, name);
    return program_value(b->p, buf, t, s, ROLE_ACTIVATION, b->where);
}

op *builder_emit(builder *b, op_kind k) {
    op *o = program_emit(b->p, k, b->where);
    const model_config *c = b->c;
    o->rows = b->rows;
    o->attr.batch = b->batch;
    o->attr.seq_len = b->seq_len;
    o->attr.n_heads = (int)b->heads;
    o->attr.n_kv_heads = (int)b->kv_heads;
    o->attr.head_dim = (int)c->head_dim;
    o->attr.eps = (float)c->norm_eps;
    o->attr.gain_offset = b->t->gain_offset;
    return o;
}

op *builder_message(builder *b, op_kind k) {
    op *o = builder_emit(b, k);
    o->attr.axis = AXIS_TENSOR;
    o->attr.group_size = b->n_ranks;
    return o;
}

/* Rows of x, of so many tokens, from a message between the ranks; x itself where there is but one. */
static value_id exchange(builder *b, const char *name, value_id x, op_kind k, int64_t tokens) {
    if (b->n_ranks == 1) return x;
    value_id y = builder_value(b, name, b->o->compute, SHAPE(tokens, program_get(b->p, x)->shape.dim[1]));
    op *o = builder_message(b, k);
    op_in(o, MESSAGE_SENT, x);
    op_out(o, MESSAGE_RECEIVED, y);
    return y;
}

/* All tokens, from the share of every rank. */
value_id builder_gather(builder *b, const char *name, value_id x) {
    return exchange(b, name, x, OP_ALL_GATHER, n_tokens(b));
}

/* The sum of what every rank has, of this rank's share of the tokens. */
value_id builder_scatter(builder *b, const char *name, value_id x) {
    return exchange(b, name, x, OP_REDUCE_SCATTER, n_own_tokens(b));
}

value_id builder_norm(builder *b, const char *name, value_id x, norm_params n) {
    value_id y = builder_value(b, name, b->o->compute, SHAPE(n_own_tokens(b), b->c->hidden));
    builder_norm_into(b, name, x, n, y);
    return y;
}

void builder_norm_into(builder *b, const char *name, value_id x, norm_params n, value_id y) {
    char buf[NAME_BYTES];
    snprintf(buf, sizeof buf, "%s.rstd", name);
    value_id rstd = builder_value(b, buf, DTYPE_F32, SHAPE(n_own_tokens(b)));
    if (b->t->layernorm) {
        snprintf(buf, sizeof buf, "%s.mean", name);
        value_id mean = builder_value(b, buf, DTYPE_F32, SHAPE(n_own_tokens(b)));
        op *o = builder_emit(b, OP_LAYERNORM);
        op_in(o, LAYERNORM_X, x), op_in(o, LAYERNORM_GAMMA, n.gamma), op_in(o, LAYERNORM_BETA, n.beta);
        op_out(o, LAYERNORM_Y, y), op_out(o, LAYERNORM_MEAN, mean), op_out(o, LAYERNORM_RSTD, rstd);
    } else {
        op *o = builder_emit(b, OP_RMSNORM);
        op_in(o, RMSNORM_X, x), op_in(o, RMSNORM_GAMMA, n.gamma);
        op_out(o, RMSNORM_Y, y), op_out(o, RMSNORM_RSTD, rstd);
    }
}

/* Every element draws as in the tensor of one rank, whatever part of it this rank has: its columns of the input of a product
 * that ranks sum, its tokens of each row. */
static void place_dropout(const builder *b, op *o, int64_t columns, bool has_columns) {
    if (has_columns) o->attr.all_columns = columns * b->n_ranks, o->attr.first_column = columns * b->rank;
    if (b->n_sequence > 1) o->attr.group_size = b->n_sequence, o->attr.index = b->o->mesh.index[AXIS_SEQUENCE];
}

/* y + scale (dropout(x) A^T) B^T */
static value_id write_adapters(builder *b, const char *name, value_id x, value_id y, const projection *w) {
    char buf[NAME_BYTES];
    const shape s = program_get(b->p, y)->shape;
    if (b->lora.dropout > 0 && b->where == SECTION_MICRO) {
        snprintf(buf, sizeof buf, "%s.lora_dropout", name);
        value_id dropped = builder_value(b, buf, b->o->compute, program_get(b->p, x)->shape);
        op *o = builder_emit(b, OP_DROPOUT);
        o->attr.rate = (float)b->lora.dropout;
        o->attr.noise_key = rng_key(3, program_get(b->p, dropped)->name);
        place_dropout(b, o, program_get(b->p, x)->shape.dim[1], w->sums);
        op_in(o, DROPOUT_X, x), op_in(o, DROPOUT_SCALARS, b->m->scalars);
        op_out(o, DROPOUT_Y, dropped);
        x = dropped;
    }
    snprintf(buf, sizeof buf, "%s.lora_xa", name);
    value_id xa = builder_value(b, buf, b->o->compute, SHAPE(s.dim[0], w->n_adapted * b->lora.rank));
    op *o = builder_emit(b, OP_LINEAR);
    o->attr.adapter = true;
    op_in(o, LINEAR_X, x), op_in(o, LINEAR_W, w->lora_a);
    op_out(o, LINEAR_Y, xa);
    snprintf(buf, sizeof buf, "%s.lora", name);
    value_id z = builder_value(b, buf, b->o->compute, s);
    o = builder_emit(b, OP_LORA_UP);
    o->attr.scale = lora_scale(&b->lora);
    o->attr.n_parts = w->n_adapted;
    memcpy(o->attr.part_first, w->part_first, sizeof w->part_first);
    memcpy(o->attr.part_columns, w->part_columns, sizeof w->part_columns);
    op_in(o, LORA_UP_BASE, y), op_in(o, LORA_UP_XA, xa), op_in(o, LORA_UP_B, w->lora_b);
    op_out(o, LORA_UP_Y, z);
    return z;
}

static value_id write_bias(builder *b, const char *name, value_id y, value_id bias) {
    char buf[NAME_BYTES];
    if (bias == NO_VALUE) return y;
    snprintf(buf, sizeof buf, "%s.biased", name);
    value_id z = builder_value(b, buf, b->o->compute, program_get(b->p, y)->shape);
    op *o = builder_emit(b, OP_ADD_BIAS);
    op_in(o, ADD_BIAS_X, y), op_in(o, ADD_BIAS_B, bias);
    op_out(o, ADD_BIAS_Y, z);
    return z;
}

/* The bias directly after the product, so that they can be fused; where the product is a part of a sum, after that. */
static value_id write_linear(builder *b, const char *name, value_id x, projection w) {
    int64_t out = program_get(b->p, w.w)->shape.dim[0];
    value_id y = builder_value(b, name, b->o->compute, SHAPE(n_tokens(b), out));
    op *o = builder_emit(b, OP_LINEAR);
    op_in(o, LINEAR_X, x), op_in(o, LINEAR_W, w.w);
    op_out(o, LINEAR_Y, y);
    if (!w.sums) y = write_bias(b, name, y, w.b);
    if (w.lora_a && !b->of_reference) y = write_adapters(b, name, x, y, &w);
    if (!w.sums) return y;
    char buf[NAME_BYTES];
    snprintf(buf, sizeof buf, "%s.sum", name);
    return write_bias(b, name, builder_scatter(b, buf, y), w.b);
}

static value_id write_add(builder *b, const char *name, value_id x, value_id y) {
    value_id s = builder_value(b, name, b->o->compute, SHAPE(n_own_tokens(b), b->c->hidden));
    op *o = builder_emit(b, OP_ADD);
    op_in(o, ADD_A, x), op_in(o, ADD_B, y);
    op_out(o, ADD_Y, s);
    return s;
}

static op *emit_attention(builder *b, op_kind k) {
    op *o = builder_emit(b, k);
    double scalar = b->c->query_scalar > 0 ? b->c->query_scalar : (double)b->c->head_dim;
    o->attr.scale = 1.0f / __builtin_sqrtf((float)scalar);
    o->attr.softcap = (float)b->c->attention_softcap;
    o->attr.window = model_layer_window(b->c, b->p->current_layer);
    return o;
}

/* Keys and values of all tokens are stored before attention reads them: a token also attends to tokens of its own run. */
static void write_paged_attention(builder *b, value_id qkv, value_id y) {
    value_id cache = b->caches[b->p->current_layer];
    op *o = builder_emit(b, OP_KV_STORE);
    op_in(o, KV_STORE_QKV, qkv), op_in(o, KV_STORE_SLOTS, b->paged->slots);
    op_in(o, KV_STORE_TABLE, b->m->page_table), op_in(o, KV_STORE_DOC_START, b->doc_start);
    op_out(o, KV_STORE_CACHE, cache);
    o = emit_attention(b, OP_ATTENTION_PAGED);
    op_in(o, ATTENTION_PAGED_QKV, qkv), op_in(o, ATTENTION_PAGED_CACHE, cache);
    op_in(o, ATTENTION_PAGED_SLOTS, b->paged->slots), op_in(o, ATTENTION_PAGED_TABLE, b->m->page_table);
    op_in(o, ATTENTION_PAGED_DOC_START, b->doc_start);
    op_out(o, ATTENTION_PAGED_Y, y);
}

/* x of this rank's tokens and all heads -> all tokens and this rank's share of the heads; back: the other way. */
static value_id exchange_heads(builder *b, const char *name, value_id x, int64_t kv_heads, bool back) {
    int64_t S = b->n_sequence, N = n_tokens(b), W = (b->heads + 2 * kv_heads) * b->c->head_dim;
    const shape one_piece[2] = {SHAPE(N, W), SHAPE(N * S, W / S)}; /* of tokens, of heads */
    const op_kind order[3] = {back ? OP_TOKEN_PARTS : OP_HEAD_PARTS, OP_ALL_TO_ALL,
                              back ? OP_HEAD_PARTS : OP_TOKEN_PARTS};
    static const char *const steps[3] = {"out", "in", ""};
    for (int i = 0; i < 3; i++) {
        char buf[NAME_BYTES];
        snprintf(buf, sizeof buf, "%s%s%s", name, i < 2 ? "." : "", steps[i]);
        value_id y = builder_value(b, buf, b->o->compute, i == 2 && back ? one_piece[0] : one_piece[1]);
        op *o = builder_emit(b, order[i]);
        o->attr.n_kv_heads = (int)kv_heads;
        o->attr.n_parts = (int)S;
        o->attr.inverse = i == 2;
        if (order[i] == OP_TOKEN_PARTS) o->attr.seq_len = b->seq_len * S;
        if (order[i] == OP_ALL_TO_ALL) o->attr.axis = AXIS_SEQUENCE, o->attr.group_size = (int)S;
        SAME_PLACE(HEAD_PARTS_X, TOKEN_PARTS_X);
        SAME_PLACE(HEAD_PARTS_X, ALL_TO_ALL_X);
        SAME_PLACE(HEAD_PARTS_Y, TOKEN_PARTS_Y);
        SAME_PLACE(HEAD_PARTS_Y, ALL_TO_ALL_Y);
        op_in(o, HEAD_PARTS_X, x);
        op_out(o, HEAD_PARTS_Y, y);
        x = y;
    }
    return x;
}

static value_id write_kv_part(builder *b, value_id qkv) {
    value_id kv = builder_value(b, "attn.kv", b->o->compute, SHAPE(n_tokens(b), 2 * b->kv_heads * b->c->head_dim));
    op *o = builder_emit(b, OP_KV_PART);
    op_in(o, KV_PART_QKV, qkv);
    op_out(o, KV_PART_KV, kv);
    return kv;
}

/* One of n steps of attention, each to other keys; *y and *lse are what the steps before gave, then what this one gives. Its attributes
 * and doc_start are the caller's. */
static op *write_ring_step(builder *b, value_id qkv, value_id kv, int step, int n, value_id *y, value_id *lse) {
    char name[NAME_BYTES];
    bool last = step == n - 1;
    value_id y_before = *y, lse_before = *lse;
    snprintf(name, sizeof name, last ? "attn.y" : "attn.y.%d", step);
    *y = builder_value(b, name, last ? b->o->compute : DTYPE_F32, SHAPE(n_tokens(b), b->heads * b->c->head_dim));
    snprintf(name, sizeof name, last ? "attn.lse" : "attn.lse.%d", step);
    *lse = builder_value(b, name, DTYPE_F32, SHAPE(b->batch, b->heads, b->seq_len));
    op *o = emit_attention(b, OP_ATTENTION_RING);
    o->attr.group_size = n;
    op_in(o, ATTENTION_RING_QKV, qkv), op_in(o, ATTENTION_RING_KV, kv);
    op_in(o, ATTENTION_RING_BEFORE, y_before), op_in(o, ATTENTION_RING_LSE_BEFORE, lse_before);
    op_out(o, ATTENTION_RING_Y, *y), op_out(o, ATTENTION_RING_LSE, *lse);
    return o;
}

/* Attention to the keys and values of every rank, one after the other, this rank's own first. The next ones are in flight
 * meanwhile. */
static value_id write_ring(builder *b, value_id qkv) {
    int S = b->n_sequence, index = b->o->mesh.index[AXIS_SEQUENCE];
    value_id kv = write_kv_part(b, qkv), y = NO_VALUE, lse = NO_VALUE;
    for (int step = 0; step < S; step++) {
        char name[NAME_BYTES];
        value_id next = NO_VALUE;
        if (step < S - 1) {
            snprintf(name, sizeof name, "attn.kv.%d", step + 1);
            next = builder_value(b, name, b->o->compute, program_get(b->p, kv)->shape);
            op *o = builder_emit(b, OP_SHIFT);
            o->attr.axis = AXIS_SEQUENCE, o->attr.group_size = S;
            op_in(o, SHIFT_X, kv);
            op_out(o, SHIFT_Y, next);
        }
        op *o = write_ring_step(b, qkv, kv, step, S, &y, &lse);
        o->attr.index = index, o->attr.peer = (index - step + S) % S;
        op_in(o, ATTENTION_RING_DOC_START, b->doc_start);
        kv = next;
    }
    return y;
}

/* Attention to the keys of a token's own document, then to those of a prompt that it shares with the document before: two steps of a
 * ring that sends nothing. */
static value_id write_spans(builder *b, value_id qkv) {
    enum { STEPS = 2 };
    value_id kv = write_kv_part(b, qkv), y = NO_VALUE, lse = NO_VALUE;
    for (int step = 0; step < STEPS; step++) {
        op *o = write_ring_step(b, qkv, kv, step, STEPS, &y, &lse);
        o->attr.spans = true, o->attr.peer = step;
        op_in(o, ATTENTION_RING_DOC_START, b->m->spans[step]);
    }
    return y;
}

static value_id write_attention(builder *b, value_id x, const block_params *w) {
    const model_config *c = b->c;
    int64_t N = n_tokens(b), HD = b->heads * c->head_dim, Q = HD + 2 * b->kv_heads * c->head_dim;
    value_id qkv = write_linear(b, "attn.qkv", builder_gather(b, "attn.x", x), w->qkv);
    if (b->t->qk_norm) {
        value_id normed = builder_value(b, "attn.qk_norm", b->o->compute, SHAPE(N, Q));
        int64_t n_norms = b->t->wide_qk_norm ? 2 : b->heads + b->kv_heads;
        value_id rstd = builder_value(b, "attn.qk_norm.rstd", DTYPE_F32, SHAPE(N, n_norms));
        op *o = builder_emit(b, OP_QK_NORM);
        o->attr.wide = b->t->wide_qk_norm;
        op_in(o, QK_NORM_QKV, qkv), op_in(o, QK_NORM_GQ, w->q_norm), op_in(o, QK_NORM_GK, w->k_norm);
        op_out(o, QK_NORM_Y, normed), op_out(o, QK_NORM_RSTD, rstd);
        qkv = normed;
    }
    if (!b->t->learned_positions) {
        value_id turned = builder_value(b, "attn.rope", b->o->compute, SHAPE(N, Q));
        op *o = builder_emit(b, OP_ROPE);
        bool local = b->local_rope_table && model_layer_window(c, b->p->current_layer);
        op_in(o, ROPE_QKV, qkv), op_in(o, ROPE_DOC_START, b->doc_start);
        op_in(o, ROPE_TABLE, local ? b->local_rope_table : b->rope_table);
        op_out(o, ROPE_Y, turned);
        qkv = turned;
    }
    int S = b->n_sequence;
    if (b->o->share_prompts && !b->paged) return write_linear(b, "attn.out", write_spans(b, qkv), w->out);
    if (S > 1 && b->o->ring) return write_linear(b, "attn.out", write_ring(b, qkv), w->out);
    if (S > 1) qkv = exchange_heads(b, "attn.heads", qkv, b->kv_heads, false);
    value_id y = builder_value(b, "attn.y", b->o->compute, SHAPE(N * S, HD / S));
    if (b->paged) {
        write_paged_attention(b, qkv, y);
    } else {
        value_id lse = builder_value(b, "attn.lse", DTYPE_F32, SHAPE(b->batch, b->heads / S, b->seq_len * S));
        op *o = emit_attention(b, OP_ATTENTION);
        o->attr.seq_len *= S;
        o->attr.n_heads /= S;
        o->attr.n_kv_heads /= S;
        op_in(o, ATTENTION_QKV, qkv), op_in(o, ATTENTION_DOC_START, S > 1 ? b->m->doc_start_all : b->doc_start);
        op_out(o, ATTENTION_Y, y), op_out(o, ATTENTION_LSE, lse);
    }
    if (S > 1) y = exchange_heads(b, "attn.tokens", y, 0, true);
    return write_linear(b, "attn.out", y, w->out);
}

static value_id write_mlp(builder *b, value_id x, const block_params *w) {
    value_id up = write_linear(b, b->t->gelu ? "mlp.up" : "mlp.gate_up", builder_gather(b, "mlp.x", x), w->up);
    value_id y = builder_value(b, "mlp.act", b->o->compute, SHAPE(n_tokens(b), b->ffn));
    op *o = builder_emit(b, b->t->gelu ? OP_GELU : OP_SWIGLU);
    SAME_PLACE(GELU_X, SWIGLU_GU);
    SAME_PLACE(GELU_Y, SWIGLU_Y);
    o->attr.gelu_gate = b->t->gelu_gate;
    op_in(o, GELU_X, up);
    op_out(o, GELU_Y, y);
    return write_linear(b, "mlp.down", y, w->down);
}

/* Tensor ranks have different tokens here: each draws for its own. */
static value_id write_value_dropout(builder *b, const char *name, value_id x) {
    if (b->o->value_dropout == 0 || b->where != SECTION_MICRO) return x;
    const shape s = program_get(b->p, x)->shape;
    value_id y = builder_value(b, name, b->o->compute, s);
    op *o = builder_emit(b, OP_DROPOUT);
    o->attr.rate = (float)b->o->value_dropout;
    o->attr.noise_key = rng_key(3, program_get(b->p, y)->name);
    o->attr.first_element = b->rank * shape_count(&s);
    place_dropout(b, o, s.dim[1], false);
    op_in(o, DROPOUT_X, x), op_in(o, DROPOUT_SCALARS, b->m->scalars);
    op_out(o, DROPOUT_Y, y);
    return y;
}

static value_id write_value_layer(builder *b, const char *name, value_id x, value_id w, value_id bias) {
    char buf[NAME_BYTES];
    value_id y = builder_value(b, name, b->o->compute, SHAPE(n_own_tokens(b), program_get(b->p, w)->shape.dim[0]));
    op *o = builder_emit(b, OP_LINEAR);
    op_in(o, LINEAR_X, x), op_in(o, LINEAR_W, w);
    op_out(o, LINEAR_Y, y);
    y = write_bias(b, name, y, bias);
    snprintf(buf, sizeof buf, "%s.act", name);
    value_id z = builder_value(b, buf, b->o->compute, program_get(b->p, y)->shape);
    o = builder_emit(b, OP_GELU);
    op_in(o, GELU_X, y);
    op_out(o, GELU_Y, z);
    snprintf(buf, sizeof buf, "%s.dropout", name);
    return write_value_dropout(b, buf, z);
}

value_id builder_values(builder *b, const value_params *w, value_id h) {
    static const char *const names[VALUE_LAYERS - 1] = {"value.fc1", "value.fc2"};
    for (int i = 0; i < VALUE_LAYERS - 1 && w->w[i]; i++) h = write_value_layer(b, names[i], h, w->w[i], w->b[i]);
    value_id values = builder_value(b, "values", DTYPE_F32, SHAPE(n_own_tokens(b)));
    op *o = builder_emit(b, OP_VALUE);
    o->attr.sigmoid = b->c->value_head == VALUE_HEAD_SIGMOID;
    op_in(o, VALUE_X, h), op_in(o, VALUE_W, w->w[VALUE_LAYERS - 1]), op_in(o, VALUE_B, w->b[VALUE_LAYERS - 1]);
    op_out(o, VALUE_VALUES, values);
    if (b->n_ranks == 1) return values;
    value_id all = builder_value(b, "values.all", DTYPE_F32, SHAPE(n_tokens(b)));
    o = builder_message(b, OP_ALL_GATHER);
    op_in(o, ALL_GATHER_X, values);
    op_out(o, ALL_GATHER_Y, all);
    return all;
}

/* x itself where the family has no norm here. */
static value_id write_norm(builder *b, const char *name, value_id x, norm_params n) {
    return n.gamma ? builder_norm(b, name, x, n) : x;
}

value_id builder_layers(builder *b, const outer_params *w, int64_t first, int64_t end, value_id x) {
    for (int l = (int)first; l < end; l++) {
        const block_params *k = &w->blocks[l];
        b->p->current_layer = l;
        value_id y = write_attention(b, write_norm(b, "norm1", x, k->norm1), k);
        x = write_add(b, "residual1", x, write_norm(b, "norm1_after", y, k->norm1_after));
        y = write_mlp(b, write_norm(b, "norm2", x, k->norm2), k);
        x = write_add(b, "residual2", x, write_norm(b, "norm2_after", y, k->norm2_after));
    }
    b->p->current_layer = -1;
    return x;
}
