/* build.c - the forward of one micro-batch as ops, for every family.
 *
 * The same functions write the training section, the evaluation section and those of generation, so what is evaluated and
 * what generates is what is trained. In generation every token is a row of its own (seq_len 1) with its position in doc;
 * only attention differs: it stores keys and values in pages and looks back through them.
 * It writes the plain form (linear, bias, add, norm each on its own); the fuse pass joins what belongs together.
 * q|k|v and gate|up are packed at birth, not by a pass: packing changes the parameters, and parameters have names that
 * checkpoints and files rely on. */
#include "model/model.h"

#include <stdlib.h>

typedef struct builder {
    model *m;
    program *p;
    const model_config *c;
    const model_traits *t;
    const model_build_options *o;
    section where;
    const char *prefix; /* of activation names: "", "eval.", "prefill.", "decode." */
    size_t params_capacity;
    value_id rope_table;
    /* of the section being written */
    int64_t batch, seq_len; /* seq_len: tokens of a row that this rank has, of n_sequence that share it */
    int n_sequence;
    /* what this tensor rank has: n_ranks = 1 has everything */
    int n_ranks, rank;
    int64_t heads, kv_heads, ffn;
    int64_t first_id, n_ids;
    /* what this stage has: n_stages = 1 has everything */
    int n_stages, stage;
    int64_t *first_layer; /* of each chunk of the model, and the number of layers */
    bool is_here;         /* ... the parameters being added ... */
    int unit;             /* ... which belong to this */
    value_id tokens, doc;
    value_id rows;                   /* NO_VALUE: all rows hold something */
    const generation_section *paged; /* NULL: training or evaluation */
    value_id *caches;                /* per layer, where paged */
} builder;

/* ---- parameters ------------------------------------------------------------------------------------------------ */

/* A parameter that every tensor rank has whole. Its rows or tokens are shared, so each rank sees a part of the gradient. */
static model_param *add_param(builder *b, const char *name, shape s) {
    model *m = b->m;
    m->params = array_grow(m->params, &b->params_capacity, m->n_params + 1, sizeof *m->params);
    model_param *p = &m->params[m->n_params++];
    *p = (model_param){.name = arena_string(&m->memory, name), .init = INIT_NORMAL, .init_std = 0.02f};
    p->shape = s;
    p->cut = (param_cut){.here = s, .whole = s, .dim = -1};
    p->n_holders = b->n_ranks;
    p->shared_from = b->n_ranks > 1 ? 0 : shape_count(&s);
    p->unit = b->unit;
    p->number = m->n_params - 1;
    if (b->is_here) p->value = program_persistent(b->p, p->name, b->o->compute, s, ROLE_PARAM);
    p->decay = s.rank == 2;
    return p;
}

/* One that the ranks share: slices of the whole along a dimension, one behind the other. */
static model_param *add_cut_param(builder *b, const char *name, shape whole, int dim, const param_slice *slices,
                                  int n) {
    shape here = whole;
    if (b->n_ranks == 1) return add_param(b, name, whole);
    here.dim[dim] = slices[n - 1].at + slices[n - 1].n;
    model_param *p = add_param(b, name, here);
    p->cut = (param_cut){.here = here, .whole = whole, .dim = dim, .n_slices = n};
    memcpy(p->cut.slices, slices, (size_t)n * sizeof *slices);
    p->shared_from = shape_count(&here);
    p->first_holder = b->rank;
    p->n_holders = 1;
    return p;
}

static void add_part(builder *b, model_param *p, const char *file_name, int64_t n_rows) {
    int64_t first = p->n_parts ? p->parts[p->n_parts - 1].first_row + p->parts[p->n_parts - 1].n_rows : 0;
    p->parts[p->n_parts++] = (param_part){arena_string(&b->m->memory, file_name), first, n_rows};
}

/* "layers.3.attn.qkv.w" and "model.layers.3.self_attn.q_proj.weight" from a format with one %d for the layer. */
#define NAME_BYTES 96
static const char *layer_name(char buf[NAME_BYTES], const char *format, int layer) {
    char *out = buf, *end = buf + NAME_BYTES;
    for (const char *s = format; *s && out < end - 1; s++) {
        if (s[0] == '%' && s[1] == 'd') {
            out += snprintf(out, (size_t)(end - out), "%d", layer);
            s++;
        } else {
            *out++ = *s;
        }
    }
    *out = 0;
    return buf;
}

/* Files name biases and weights of one projection alike but for the ending. */
static void add_file_parts(builder *b, model_param *p, int layer, const char *const *formats, const int64_t *rows,
                           int n, const char *ending) {
    char buf[NAME_BYTES];
    for (int i = 0; i < n; i++) {
        layer_name(buf, formats[i], layer);
        strncat(buf, ending, sizeof buf - strlen(buf) - 1);
        add_part(b, p, buf, rows[i]);
    }
}

/* Our own names: "final_norm.g", "layers.3.attn.qkv.w". */
static const char *param_name(char buf[NAME_BYTES], int layer, const char *name, const char *ending) {
    if (layer < 0) snprintf(buf, NAME_BYTES, "%s%s", name, ending);
    else snprintf(buf, NAME_BYTES, "layers.%d.%s%s", layer, name, ending);
    return buf;
}

typedef struct projection {
    value_id w, b; /* b may be NO_VALUE */
    bool sums;     /* ranks share its columns: their products are parts of a sum */
} projection;

/* A linear layer whose rows come from n tensors in the files. Ranks share the columns of one that leads back into the
 * residual stream, and these rows of any other. */
static projection add_projection(builder *b, int layer, const char *name, const char *const *files, const int64_t *rows,
                                 int n, int64_t in, bool bias, const param_slice *slices, int n_slices) {
    char buf[NAME_BYTES];
    int64_t out = 0;
    for (int i = 0; i < n; i++) out += rows[i];
    bool into_residual = !slices;
    projection r = {.sums = into_residual && b->n_ranks > 1};
    param_slice columns = {0, b->rank * (in / b->n_ranks), in / b->n_ranks};
    param_name(buf, layer, name, ".w");
    model_param *w = into_residual ? add_cut_param(b, buf, SHAPE(out, in), 1, &columns, 1)
                                   : add_cut_param(b, buf, SHAPE(out, in), 0, slices, n_slices);
    w->transposed = b->t->transposed_files;
    if (into_residual && b->t->scaled_residual_init)
        w->init_std = 0.02f / __builtin_sqrtf(2.0f * (float)b->c->n_layers);
    add_file_parts(b, w, layer, files, rows, n, ".weight");
    r.w = w->value;
    if (bias) {
        param_name(buf, layer, name, ".b");
        model_param *bp =
            into_residual ? add_param(b, buf, SHAPE(out)) : add_cut_param(b, buf, SHAPE(out), 0, slices, n_slices);
        bp->init = INIT_ZERO;
        add_file_parts(b, bp, layer, files, rows, n, ".bias");
        r.b = bp->value;
    }
    return r;
}

/* Fewer kv heads than ranks: several ranks have the same one, each for its own query heads. */
static void share_kv(builder *b, size_t first_param) {
    int64_t holders = b->n_ranks / b->c->n_kv_heads;
    for (size_t i = first_param; i < b->m->n_params && holders > 1; i++) {
        model_param *p = &b->m->params[i];
        p->shared_from = shape_count(&p->shape) / p->shape.dim[0] * b->heads * b->c->head_dim;
        p->first_holder = (int)(b->rank / holders * holders);
        p->n_holders = (int)holders;
    }
}

static projection add_qkv(builder *b, int layer, const char *const *files, const int64_t *rows, int n) {
    const model_config *c = b->c;
    int64_t D = c->head_dim, q = b->heads * D, kv = b->kv_heads * D;
    int64_t first_kv = b->rank * c->n_kv_heads / b->n_ranks * D, k_rows = c->n_heads * D,
            v_rows = k_rows + c->n_kv_heads * D;
    const param_slice slices[3] = {{0, b->rank * q, q}, {q, k_rows + first_kv, kv}, {q + kv, v_rows + first_kv, kv}};
    size_t first_param = b->m->n_params;
    projection r = add_projection(b, layer, "attn.qkv", files, rows, n, c->hidden, b->t->qkv_bias, slices, 3);
    share_kv(b, first_param);
    return r;
}

static value_id add_gain(builder *b, int layer, const char *name, const char *file_format, const char *ending,
                         param_init init, int64_t n) {
    char buf[NAME_BYTES], file[NAME_BYTES];
    model_param *p = add_param(b, param_name(buf, layer, name, init == INIT_ONE ? ".g" : ".b"), SHAPE(n));
    p->init = init;
    layer_name(file, file_format, layer);
    strncat(file, ending, sizeof file - strlen(file) - 1);
    add_part(b, p, file, n);
    return p->value;
}

typedef struct norm_params {
    value_id gamma, beta;
} norm_params;

static norm_params add_norm(builder *b, int layer, const char *name, const char *file_format) {
    norm_params n = {.gamma = add_gain(b, layer, name, file_format, ".weight", INIT_ONE, b->c->hidden)};
    if (b->t->layernorm) n.beta = add_gain(b, layer, name, file_format, ".bias", INIT_ZERO, b->c->hidden);
    return n;
}

/* ---- activations and ops ----------------------------------------------------------------------------------------- */

static value_id activation(builder *b, const char *name, dtype t, shape s) {
    char buf[2 * NAME_BYTES];
    if (b->p->current_layer < 0) snprintf(buf, sizeof buf, "%s%s", b->prefix, name);
    else snprintf(buf, sizeof buf, "%slayers.%d.%s", b->prefix, b->p->current_layer, name);
    return program_value(b->p, buf, t, s, ROLE_ACTIVATION, b->where);
}

static op *emit(builder *b, op_kind k) {
    op *o = program_emit(b->p, k, b->where);
    const model_config *c = b->c;
    o->rows = b->rows;
    o->attr.batch = b->batch;
    o->attr.seq_len = b->seq_len;
    o->attr.n_heads = (int)b->heads;
    o->attr.n_kv_heads = (int)b->kv_heads;
    o->attr.head_dim = (int)c->head_dim;
    o->attr.eps = (float)c->norm_eps;
    return o;
}

static int64_t n_tokens(const builder *b) { return b->batch * b->seq_len; }
/* Between two pairs of products a rank has a share of the tokens. */
static int64_t n_own_tokens(const builder *b) { return n_tokens(b) / b->n_ranks; }

static op *emit_message(builder *b, op_kind k) {
    op *o = emit(b, k);
    o->attr.axis = AXIS_TENSOR;
    o->attr.group_size = b->n_ranks;
    return o;
}

/* All tokens, from the share of every rank. */
static value_id write_gather(builder *b, const char *name, value_id x) {
    if (b->n_ranks == 1) return x;
    value_id y = activation(b, name, b->o->compute, SHAPE(n_tokens(b), program_get(b->p, x)->shape.dim[1]));
    op *o = emit_message(b, OP_ALL_GATHER);
    op_in(o, 0, x);
    op_out(o, 0, y);
    return y;
}

/* The sum of what every rank has, of this rank's share of the tokens. */
static value_id write_scatter(builder *b, const char *name, value_id x) {
    if (b->n_ranks == 1) return x;
    value_id y = activation(b, name, b->o->compute, SHAPE(n_own_tokens(b), program_get(b->p, x)->shape.dim[1]));
    op *o = emit_message(b, OP_REDUCE_SCATTER);
    op_in(o, 0, x);
    op_out(o, 0, y);
    return y;
}

static value_id write_norm(builder *b, const char *name, value_id x, norm_params n) {
    char buf[NAME_BYTES];
    value_id y = activation(b, name, b->o->compute, SHAPE(n_own_tokens(b), b->c->hidden));
    snprintf(buf, sizeof buf, "%s.rstd", name);
    value_id rstd = activation(b, buf, DTYPE_F32, SHAPE(n_own_tokens(b)));
    if (b->t->layernorm) {
        snprintf(buf, sizeof buf, "%s.mean", name);
        value_id mean = activation(b, buf, DTYPE_F32, SHAPE(n_own_tokens(b)));
        op *o = emit(b, OP_LAYERNORM);
        op_in(o, 0, x), op_in(o, 1, n.gamma), op_in(o, 2, n.beta);
        op_out(o, 0, y), op_out(o, 1, mean), op_out(o, 2, rstd);
    } else {
        op *o = emit(b, OP_RMSNORM);
        op_in(o, 0, x), op_in(o, 1, n.gamma);
        op_out(o, 0, y), op_out(o, 1, rstd);
    }
    return y;
}

static value_id write_linear(builder *b, const char *name, value_id x, projection w) {
    int64_t out = program_get(b->p, w.w)->shape.dim[0];
    value_id y = activation(b, name, b->o->compute, SHAPE(n_tokens(b), out));
    op *o = emit(b, OP_LINEAR);
    op_in(o, 0, x), op_in(o, 1, w.w);
    op_out(o, 0, y);
    char buf[NAME_BYTES];
    if (w.sums) {
        snprintf(buf, sizeof buf, "%s.sum", name);
        y = write_scatter(b, buf, y);
    }
    if (w.b == NO_VALUE) return y;
    snprintf(buf, sizeof buf, "%s.biased", name);
    value_id z = activation(b, buf, b->o->compute, program_get(b->p, y)->shape);
    o = emit(b, OP_ADD_BIAS);
    op_in(o, 0, y), op_in(o, 1, w.b);
    op_out(o, 0, z);
    return z;
}

static value_id write_add(builder *b, const char *name, value_id x, value_id y) {
    value_id s = activation(b, name, b->o->compute, SHAPE(n_own_tokens(b), b->c->hidden));
    op *o = emit(b, OP_ADD);
    op_in(o, 0, x), op_in(o, 1, y);
    op_out(o, 0, s);
    return s;
}

typedef struct block_params {
    norm_params norm1, norm2;
    projection qkv, out, up, down;
    value_id q_norm, k_norm;
} block_params;

static block_params add_block(builder *b, int layer) {
    const model_config *c = b->c;
    const model_traits *t = b->t;
    int64_t C = c->hidden, HD = c->n_heads * c->head_dim, GD = c->n_kv_heads * c->head_dim, F = b->ffn;
    const param_slice ffn[2] = {{0, b->rank * F, F}, {F, c->ffn + b->rank * F, F}}; /* up alone, or gate|up */
    block_params r = {0};
    if (c->family == FAMILY_GPT2) {
        r.norm1 = add_norm(b, layer, "norm1", "transformer.h.%d.ln_1");
        r.qkv = add_qkv(b, layer, (const char *[]){"transformer.h.%d.attn.c_attn"}, (int64_t[]){HD + 2 * GD}, 1);
        r.out = add_projection(b, layer, "attn.out", (const char *[]){"transformer.h.%d.attn.c_proj"}, (int64_t[]){C},
                               1, HD, t->other_bias, NULL, 0);
        r.norm2 = add_norm(b, layer, "norm2", "transformer.h.%d.ln_2");
        r.up = add_projection(b, layer, "mlp.up", (const char *[]){"transformer.h.%d.mlp.c_fc"}, (int64_t[]){c->ffn}, 1,
                              C, t->other_bias, ffn, 1);
        r.down = add_projection(b, layer, "mlp.down", (const char *[]){"transformer.h.%d.mlp.c_proj"}, (int64_t[]){C},
                                1, c->ffn, t->other_bias, NULL, 0);
        return r;
    }
    r.norm1 = add_norm(b, layer, "norm1", "model.layers.%d.input_layernorm");
    r.qkv = add_qkv(b, layer,
                    (const char *[]){"model.layers.%d.self_attn.q_proj", "model.layers.%d.self_attn.k_proj",
                                     "model.layers.%d.self_attn.v_proj"},
                    (int64_t[]){HD, GD, GD}, 3);
    if (t->qk_norm) {
        r.q_norm =
            add_gain(b, layer, "attn.q_norm", "model.layers.%d.self_attn.q_norm", ".weight", INIT_ONE, c->head_dim);
        r.k_norm =
            add_gain(b, layer, "attn.k_norm", "model.layers.%d.self_attn.k_norm", ".weight", INIT_ONE, c->head_dim);
    }
    r.out = add_projection(b, layer, "attn.out", (const char *[]){"model.layers.%d.self_attn.o_proj"}, (int64_t[]){C},
                           1, HD, t->other_bias, NULL, 0);
    r.norm2 = add_norm(b, layer, "norm2", "model.layers.%d.post_attention_layernorm");
    r.up = add_projection(b, layer, "mlp.gate_up",
                          (const char *[]){"model.layers.%d.mlp.gate_proj", "model.layers.%d.mlp.up_proj"},
                          (int64_t[]){c->ffn, c->ffn}, 2, C, t->other_bias, ffn, 2);
    r.down = add_projection(b, layer, "mlp.down", (const char *[]){"model.layers.%d.mlp.down_proj"}, (int64_t[]){C}, 1,
                            c->ffn, t->other_bias, NULL, 0);
    return r;
}

/* Keys and values of all tokens are stored before any of them looks back: a token sees those of its own run too. */
static void write_paged_attention(builder *b, value_id qkv, value_id y, float scale) {
    value_id cache = b->caches[b->p->current_layer];
    op *o = emit(b, OP_KV_STORE);
    op_in(o, 0, qkv), op_in(o, 1, b->paged->slots), op_in(o, 2, b->m->page_table), op_in(o, 3, b->doc);
    op_out(o, 0, cache);
    o = emit(b, OP_ATTENTION_PAGED);
    o->attr.scale = scale;
    op_in(o, 0, qkv), op_in(o, 1, cache), op_in(o, 2, b->paged->slots), op_in(o, 3, b->m->page_table);
    op_in(o, 4, b->doc);
    op_out(o, 0, y);
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
        value_id y = activation(b, buf, b->o->compute, i == 2 && back ? one_piece[0] : one_piece[1]);
        op *o = emit(b, order[i]);
        o->attr.n_kv_heads = (int)kv_heads;
        o->attr.n_parts = (int)S;
        o->attr.inverse = i == 2;
        if (order[i] == OP_TOKEN_PARTS) o->attr.seq_len = b->seq_len * S;
        if (order[i] == OP_ALL_TO_ALL) o->attr.axis = AXIS_SEQUENCE, o->attr.group_size = (int)S;
        op_in(o, 0, x);
        op_out(o, 0, y);
        x = y;
    }
    return x;
}

static float attention_scale(const model_config *c) { return 1.0f / __builtin_sqrtf((float)c->head_dim); }

/* Keys and values of every rank in turn, this one's own first. The next are on their way while these are looked at. */
static value_id write_ring(builder *b, value_id qkv) {
    int S = b->n_sequence, index = b->o->mesh.index[AXIS_SEQUENCE];
    int64_t N = n_tokens(b), D = b->c->head_dim;
    value_id kv = activation(b, "attn.kv", b->o->compute, SHAPE(N, 2 * b->kv_heads * D));
    value_id y = NO_VALUE, lse = NO_VALUE;
    op *o = emit(b, OP_KV_PART);
    op_in(o, 0, qkv);
    op_out(o, 0, kv);
    for (int step = 0; step < S; step++) {
        char name[NAME_BYTES];
        bool last = step == S - 1;
        value_id next = NO_VALUE, y_before = y, lse_before = lse;
        if (!last) {
            snprintf(name, sizeof name, "attn.kv.%d", step + 1);
            next = activation(b, name, b->o->compute, program_get(b->p, kv)->shape);
            o = emit(b, OP_SHIFT);
            o->attr.axis = AXIS_SEQUENCE, o->attr.group_size = S;
            op_in(o, 0, kv);
            op_out(o, 0, next);
        }
        snprintf(name, sizeof name, last ? "attn.y" : "attn.y.%d", step);
        y = activation(b, name, last ? b->o->compute : DTYPE_F32, SHAPE(N, b->heads * D));
        snprintf(name, sizeof name, last ? "attn.lse" : "attn.lse.%d", step);
        lse = activation(b, name, DTYPE_F32, SHAPE(b->batch, b->heads, b->seq_len));
        o = emit(b, OP_ATTENTION_RING);
        o->attr.scale = attention_scale(b->c);
        o->attr.group_size = S, o->attr.index = index, o->attr.peer = (index - step + S) % S;
        op_in(o, 0, qkv), op_in(o, 1, kv), op_in(o, 2, b->doc), op_in(o, 3, y_before), op_in(o, 4, lse_before);
        op_out(o, 0, y), op_out(o, 1, lse);
        kv = next;
    }
    return y;
}

static value_id write_attention(builder *b, value_id x, const block_params *w) {
    const model_config *c = b->c;
    int64_t N = n_tokens(b), HD = b->heads * c->head_dim, Q = HD + 2 * b->kv_heads * c->head_dim;
    value_id qkv = write_linear(b, "attn.qkv", write_gather(b, "attn.x", x), w->qkv);
    if (b->t->qk_norm) {
        value_id normed = activation(b, "attn.qk_norm", b->o->compute, SHAPE(N, Q));
        value_id rstd = activation(b, "attn.qk_norm.rstd", DTYPE_F32, SHAPE(N, b->heads + b->kv_heads));
        op *o = emit(b, OP_QK_NORM);
        op_in(o, 0, qkv), op_in(o, 1, w->q_norm), op_in(o, 2, w->k_norm);
        op_out(o, 0, normed), op_out(o, 1, rstd);
        qkv = normed;
    }
    if (!b->t->learned_positions) {
        value_id turned = activation(b, "attn.rope", b->o->compute, SHAPE(N, Q));
        op *o = emit(b, OP_ROPE);
        op_in(o, 0, qkv), op_in(o, 1, b->rope_table), op_in(o, 2, b->doc);
        op_out(o, 0, turned);
        qkv = turned;
    }
    int S = b->n_sequence;
    if (S > 1 && b->o->ring) return write_linear(b, "attn.out", write_ring(b, qkv), w->out);
    if (S > 1) qkv = exchange_heads(b, "attn.heads", qkv, b->kv_heads, false);
    value_id y = activation(b, "attn.y", b->o->compute, SHAPE(N * S, HD / S));
    float scale = attention_scale(c);
    if (b->paged) {
        write_paged_attention(b, qkv, y, scale);
    } else {
        value_id lse = activation(b, "attn.lse", DTYPE_F32, SHAPE(b->batch, b->heads / S, b->seq_len * S));
        op *o = emit(b, OP_ATTENTION);
        o->attr.scale = scale;
        o->attr.seq_len *= S;
        o->attr.n_heads /= S;
        o->attr.n_kv_heads /= S;
        op_in(o, 0, qkv), op_in(o, 1, S > 1 ? b->m->doc_all : b->doc);
        op_out(o, 0, y), op_out(o, 1, lse);
    }
    if (S > 1) y = exchange_heads(b, "attn.tokens", y, 0, true);
    return write_linear(b, "attn.out", y, w->out);
}

static value_id write_mlp(builder *b, value_id x, const block_params *w) {
    value_id up = write_linear(b, b->t->gelu ? "mlp.up" : "mlp.gate_up", write_gather(b, "mlp.x", x), w->up);
    value_id y = activation(b, "mlp.act", b->o->compute, SHAPE(n_tokens(b), b->ffn));
    op *o = emit(b, b->t->gelu ? OP_GELU : OP_SWIGLU);
    op_in(o, 0, up);
    op_out(o, 0, y);
    return write_linear(b, "mlp.down", y, w->down);
}

typedef struct outer_params {
    value_id embed, positions, unembed;
    norm_params final_norm;
    block_params *blocks;
} outer_params;

/* A table of the vocabulary: each rank has as many rows, the last may have padding behind its own. */
static model_param *add_table(builder *b, const char *name, const char *file_name) {
    const model_config *c = b->c;
    int64_t n = (c->vocab + b->n_ranks - 1) / b->n_ranks;
    const param_slice own = {0, b->first_id, n};
    model_param *p = add_cut_param(b, name, SHAPE(c->vocab, c->hidden), 0, &own, 1);
    if (b->n_ranks > 1) p->cut.slices[0].n = b->n_ids;
    add_part(b, p, file_name, c->vocab);
    return p;
}

/* What a rank has first, in reading order both. */
static void put_own_first(model *m) {
    model_param *all = mem_alloc(m->n_params * sizeof *all);
    size_t n = 0;
    m->n_all_params = m->n_params;
    for (size_t i = 0; i < m->n_all_params; i++)
        if (m->params[i].value) all[n++] = m->params[i];
    m->n_params = n;
    for (size_t i = 0; i < m->n_all_params; i++)
        if (!m->params[i].value) all[n++] = m->params[i];
    memcpy(m->params, all, n * sizeof *all);
    free(all);
}

/* Parameters in reading order: embedding, blocks, final norm, unembedding. Of a tied table the last stage has the one that
 * is trained, because there its gradient begins. */
static void add_params(builder *b, outer_params *w) {
    const model_config *c = b->c;
    bool gpt2 = c->family == FAMILY_GPT2, first = b->stage == 0, last = b->stage == b->n_stages - 1;
    b->is_here = first || (last && c->tied);
    model_param *embed = add_table(b, "embed.w", gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight");
    embed->is_copy = c->tied && first && !last;
    w->embed = w->unembed = embed->value;
    b->is_here = first;
    if (b->t->learned_positions) {
        model_param *positions = add_param(b, "positions.w", SHAPE(c->max_positions, c->hidden));
        add_part(b, positions, "transformer.wpe.weight", c->max_positions);
        w->positions = positions->value;
    }
    int chunk = 0;
    for (int l = 0; l < c->n_layers; l++) {
        if (l == b->first_layer[chunk + 1]) chunk++;
        b->is_here = chunk % b->n_stages == b->stage;
        b->unit = 1 + l;
        b->p->current_layer = l;
        w->blocks[l] = add_block(b, l);
    }
    b->is_here = last;
    b->unit = 1 + (int)c->n_layers;
    b->p->current_layer = -1;
    w->final_norm = add_norm(b, -1, "final_norm", gpt2 ? "transformer.ln_f" : "model.norm");
    if (!c->tied) w->unembed = add_table(b, "unembed.w", "lm_head.weight")->value;
    put_own_first(b->m);
}

/* An op on this rank's part of the vocabulary; nothing is said where that is all of it. */
static op *emit_on_vocabulary(builder *b, op_kind k) {
    op *o = emit(b, k);
    if (b->n_ranks == 1) return o;
    o->attr.vocab = b->c->vocab;
    o->attr.first_id = b->first_id;
    o->attr.n_ids = b->n_ids;
    return o;
}

/* Each rank has the rows of its own ids, and zeros; positions are added by the rank that keeps the token, so that no sum
 * has more than two numbers that are not zero, in any order the same bits. */
static value_id write_embed(builder *b, const outer_params *w) {
    value_id x = activation(b, "embed", b->o->compute, SHAPE(n_tokens(b), b->c->hidden));
    op *o = emit_on_vocabulary(b, OP_EMBED);
    op_in(o, 0, b->tokens), op_in(o, 1, w->embed);
    if (w->positions) op_in(o, 2, b->doc), op_in(o, 3, w->positions);
    if (b->n_ranks > 1) o->attr.n_tokens = n_own_tokens(b), o->attr.first_token = b->rank * n_own_tokens(b);
    op_out(o, 0, x);
    return write_scatter(b, "embed.sum", x);
}

static op *emit_between_stages(builder *b, op_kind k, int peer, int tag) {
    op *o = emit(b, k);
    o->attr.axis = AXIS_PIPELINE;
    o->attr.group_size = b->n_stages;
    o->attr.peer = peer;
    o->attr.tag = tag;
    return o;
}

/* The hidden states that a chunk begins with. */
static value_id write_entry(builder *b, const outer_params *w, int chunk) {
    char name[NAME_BYTES];
    if (chunk == 0) return write_embed(b, w);
    snprintf(name, sizeof name, "chunk.%d.x", chunk);
    value_id x = activation(b, name, b->o->compute, SHAPE(n_own_tokens(b), b->c->hidden));
    op *o = emit_between_stages(b, OP_RECV, (chunk - 1) % b->n_stages, TAG_FORWARD);
    op_out(o, 0, x);
    return x;
}

static value_id write_layers(builder *b, const outer_params *w, int64_t first, int64_t end, value_id x) {
    for (int l = (int)first; l < end; l++) {
        const block_params *k = &w->blocks[l];
        b->p->current_layer = l;
        value_id y = write_norm(b, "norm1", x, k->norm1);
        x = write_add(b, "residual1", x, write_attention(b, y, k));
        y = write_norm(b, "norm2", x, k->norm2);
        x = write_add(b, "residual2", x, write_mlp(b, y, k));
    }
    b->p->current_layer = -1;
    return x;
}

/* Embedding, blocks, final norm: the last hidden states (N, C). On a stage that does not have the last of them: NO_VALUE. */
static value_id write_hidden(builder *b, const outer_params *w) {
    value_id x = NO_VALUE;
    int n = b->m->n_chunks;
    for (int k = b->stage; k < n; k += b->n_stages) {
        x = write_layers(b, w, b->first_layer[k], b->first_layer[k + 1], write_entry(b, w, k));
        if (k == n - 1) break;
        op *o = emit_between_stages(b, OP_SEND, (k + 1) % b->n_stages, TAG_FORWARD);
        op_in(o, 0, x);
    }
    if (b->stage != (n - 1) % b->n_stages) return NO_VALUE;
    return write_gather(b, "final_norm.all", write_norm(b, "final_norm", x, w->final_norm));
}

/* Ranks that share the vocabulary tell each other a few numbers per token, never a logit. */
static void write_shared_loss(builder *b, const outer_params *w, value_id h, value_id losses, value_id argmax) {
    int64_t N = n_tokens(b), n = argmax ? STAT_ARGMAX + 1 : STAT_TARGET + 1;
    value_id own = activation(b, "stats", DTYPE_F64, SHAPE(N, n));
    value_id all = activation(b, "stats.all", DTYPE_F64, SHAPE(b->n_ranks, N, n));
    op *o = emit_on_vocabulary(b, OP_UNEMBED_STATS);
    o->attr.chunk_bytes = b->o->logits_chunk_bytes;
    op_in(o, 0, h), op_in(o, 1, w->unembed), op_in(o, 2, b->m->targets);
    op_out(o, 0, own);
    o = emit_message(b, OP_ALL_GATHER);
    op_in(o, 0, own);
    op_out(o, 0, all);
    o = emit_on_vocabulary(b, OP_UNEMBED_JOIN);
    op_in(o, 0, all), op_in(o, 1, b->m->targets);
    op_out(o, 0, losses), op_out(o, 1, argmax);
}

/* Results of the tokens of every sequence rank, one rank behind the other. Persistent: nothing in the program reads them. */
static value_id write_all_tokens(builder *b, const char *name, value_id x) {
    if (b->n_sequence == 1) return x;
    dtype t = program_get(b->p, x)->type;
    value_id y = program_persistent(b->p, name, t, SHAPE(n_tokens(b) * b->n_sequence), ROLE_ACTIVATION);
    op *o = emit(b, OP_ALL_GATHER);
    o->attr.axis = AXIS_SEQUENCE;
    o->attr.group_size = b->n_sequence;
    op_in(o, 0, x);
    op_out(o, 0, y);
    return y;
}

/* Results of an evaluation, on every stage. Persistent where nothing in the program reads them. */
static value_id write_answer(builder *b, const char *name, dtype t, value_id x) {
    int last = b->n_stages - 1;
    value_id y = x ? write_all_tokens(b, name, x)
                   : program_persistent(b->p, name, t, SHAPE(n_tokens(b) * b->n_sequence), ROLE_ACTIVATION);
    for (int i = 0; i < last && b->stage == last; i++) {
        op *o = emit_between_stages(b, OP_SEND, i, TAG_ANSWER);
        op_in(o, 0, y);
    }
    if (b->stage == last) return y;
    op *o = emit_between_stages(b, OP_RECV, last, TAG_ANSWER);
    op_out(o, 0, y);
    return y;
}

static void write_loss(builder *b, const outer_params *w, value_id h, value_id losses, value_id argmax) {
    if (b->n_ranks > 1) {
        write_shared_loss(b, w, h, losses, argmax);
        return;
    }
    op *o = emit(b, OP_UNEMBED_LOSS);
    o->attr.chunk_bytes = b->o->logits_chunk_bytes;
    op_in(o, 0, h), op_in(o, 1, w->unembed), op_in(o, 2, b->m->targets);
    op_out(o, 0, losses), op_out(o, 1, argmax);
}

static void write_training(builder *b, const outer_params *w) {
    b->where = SECTION_MICRO, b->prefix = "";
    value_id h = write_hidden(b, w);
    if (h == NO_VALUE) return;
    b->m->losses = activation(b, "losses", DTYPE_F32, SHAPE(n_tokens(b)));
    write_loss(b, w, h, b->m->losses, NO_VALUE);
}

static void write_evaluation(builder *b, const outer_params *w) {
    b->where = SECTION_EVAL, b->prefix = "eval.";
    value_id h = write_hidden(b, w), losses = NO_VALUE, argmax = NO_VALUE;
    if (h) {
        losses = activation(b, "losses", DTYPE_F32, SHAPE(n_tokens(b)));
        argmax = activation(b, "argmax", DTYPE_I32, SHAPE(n_tokens(b)));
        write_loss(b, w, h, losses, argmax);
    }
    b->m->eval_losses = write_answer(b, "eval.losses.all", DTYPE_F32, losses);
    b->m->eval_argmax = write_answer(b, "eval.argmax.all", DTYPE_I32, argmax);
}

static void add_inputs(builder *b) {
    model *m = b->m;
    int64_t N = n_tokens(b);
    m->tokens = program_persistent(b->p, "tokens", DTYPE_I32, SHAPE(N), ROLE_INPUT);
    m->targets = program_persistent(b->p, "targets", DTYPE_I32, SHAPE(N), ROLE_INPUT);
    m->doc = program_persistent(b->p, "doc", DTYPE_I32, SHAPE(N), ROLE_INPUT);
    if (b->n_sequence > 1 && !b->o->ring)
        m->doc_all = program_persistent(b->p, "doc.all", DTYPE_I32, SHAPE(N * b->n_sequence), ROLE_INPUT);
    if (b->o->token_weights) m->weights = program_persistent(b->p, "weights", DTYPE_F32, SHAPE(N), ROLE_INPUT);
    m->scalars = program_persistent(b->p, "scalars", DTYPE_U8, SHAPE(sizeof(step_scalars)), ROLE_INPUT);
}

/* ---- generation ------------------------------------------------------------------------------------------------ */

int64_t generation_pages_per_slot(const generation_shape *g) { return (g->context + g->page_size - 1) / g->page_size; }

uint64_t generation_page_bytes(const model_config *c, int64_t page_size, dtype compute) {
    return (uint64_t)(2 * c->n_layers * c->n_kv_heads * page_size * c->head_dim) * dtype_bytes(compute);
}

static status check_generation(const model_config *c, const generation_shape *g, const mesh *m) {
    int ranks = mesh_size(m, AXIS_TENSOR) * mesh_size(m, AXIS_SEQUENCE) * mesh_size(m, AXIS_PIPELINE);
    if (ranks > 1) return ERR(ERR_INPUT, "model %s: generation by %d ranks that share it, expected 1", c->name, ranks);
    const struct {
        const char *name;
        int64_t found, most;
    } limits[] = {{"sequences", g->slots, 1 << 16},
                  {"page_size", g->page_size, 1 << 16},
                  {"pages", g->pages, 1 << 30},
                  {"prefill_tokens", g->prefill_tokens, 1 << 20},
                  {"context", g->context, c->max_positions}};
    for (size_t i = 0; i < ARRAY_LENGTH(limits); i++)
        if (limits[i].found < 1 || limits[i].found > limits[i].most)
            return ERR(ERR_INPUT, "model %s: generation with %s %lld, expected 1 to %lld%s", c->name, limits[i].name,
                       (long long)limits[i].found, (long long)limits[i].most,
                       limits[i].found > c->max_positions ? ", the positions the model has" : "");
    return OK;
}

static value_id add_input(builder *b, const char *section, const char *name, int64_t n) {
    char buf[NAME_BYTES];
    snprintf(buf, sizeof buf, "%s%s", section, name);
    return program_persistent(b->p, buf, DTYPE_I32, SHAPE(n), ROLE_INPUT);
}

static generation_section add_section_inputs(builder *b, const char *prefix, int64_t n, int64_t n_pick) {
    generation_section s = {.tokens = add_input(b, prefix, "tokens", n),
                            .doc = add_input(b, prefix, "doc", n),
                            .slots = add_input(b, prefix, "slots", n),
                            .n_tokens = add_input(b, prefix, "n_tokens", 1)};
    if (n_pick) s.pick = add_input(b, prefix, "pick", n_pick), s.n_pick = add_input(b, prefix, "n_pick", 1);
    return s;
}

static void write_generation(builder *b, const outer_params *w, section where, const char *prefix,
                             generation_section *s) {
    b->where = where, b->prefix = prefix;
    b->batch = program_get(b->p, s->tokens)->shape.dim[0], b->seq_len = 1;
    b->tokens = s->tokens, b->doc = s->doc, b->rows = s->n_tokens, b->paged = s;
    value_id h = write_hidden(b, w);
    int64_t n = s->pick ? program_get(b->p, s->pick)->shape.dim[0] : b->batch;
    s->logits = activation(b, "logits", DTYPE_F32, SHAPE(n, b->c->vocab));
    op *o = emit(b, OP_UNEMBED_LOGITS);
    if (s->pick) o->rows = s->n_pick;
    op_in(o, 0, h), op_in(o, 1, w->unembed), op_in(o, 2, s->pick);
    op_out(o, 0, s->logits);
    s->top = activation(b, "top", DTYPE_I32, SHAPE(n));
    s->top_sums = activation(b, "top_sums", DTYPE_F64, SHAPE(n, 2));
    o = emit(b, OP_LOGITS_TOP);
    if (s->pick) o->rows = s->n_pick;
    op_in(o, 0, s->logits);
    op_out(o, 0, s->top), op_out(o, 1, s->top_sums);
}

static void add_caches(builder *b, const generation_shape *g) {
    const model_config *c = b->c;
    for (int l = 0; l < c->n_layers; l++) {
        char name[NAME_BYTES];
        b->p->current_layer = l;
        b->caches[l] = program_persistent(b->p, layer_name(name, "layers.%d.cache", l), b->o->compute,
                                          SHAPE(g->pages, 2 * c->n_kv_heads, g->page_size, c->head_dim), ROLE_CACHE);
    }
    b->p->current_layer = -1;
}

static void build_generation(builder *b, const outer_params *w) {
    const generation_shape *g = &b->o->generation;
    model *m = b->m;
    m->page_table =
        program_persistent(b->p, "page_table", DTYPE_I32, SHAPE(g->slots, generation_pages_per_slot(g)), ROLE_INPUT);
    m->prefill = add_section_inputs(b, "prefill.", g->prefill_tokens, MIN(g->slots, g->prefill_tokens));
    m->decode = add_section_inputs(b, "decode.", g->slots, 0);
    b->caches = arena_array(&m->memory, value_id, b->c->n_layers);
    add_caches(b, g);
    write_generation(b, w, SECTION_PREFILL, "prefill.", &m->prefill);
    write_generation(b, w, SECTION_DECODE, "decode.", &m->decode);
}

/* ---- the whole ------------------------------------------------------------------------------------------------- */

static void add_rope_table(builder *b, int64_t n_positions) {
    if (b->t->learned_positions) return;
    b->rope_table = program_persistent(b->p, "rope.table", DTYPE_F32, SHAPE(n_positions, b->c->head_dim), ROLE_INPUT);
    op *t = emit(b, OP_ROPE_TABLE);
    t->attr.seq_len = n_positions;
    t->attr.rope = b->c->rope;
    op_out(t, 0, b->rope_table);
}

static void build_training(builder *b, const outer_params *w) {
    b->tokens = b->m->tokens, b->doc = b->m->doc;
    if (!b->o->no_training) write_training(b, w);
    if (b->o->with_eval) write_evaluation(b, w);
}

static status check_training(const model_config *c, const model_build_options *o) {
    if (o->batch < 1 || o->seq_len < 1 || o->batch * o->seq_len > (1 << 28))
        return ERR(ERR_INPUT, "model %s: micro-batch of %lld x %lld tokens, expected 1 to 2^28 in all", c->name,
                   (long long)o->batch, (long long)o->seq_len);
    if (o->seq_len > c->max_positions)
        return ERR(ERR_INPUT, "model %s: seq_len %lld is longer than the %lld positions it has; lower data.seq_len",
                   c->name, (long long)o->seq_len, (long long)c->max_positions);
    int n = mesh_size(&o->mesh, AXIS_TENSOR), S = mesh_size(&o->mesh, AXIS_SEQUENCE);
    TRY(model_cut_check(c, n));
    if (S > 1 && o->seq_len % (2 * S))
        return ERR(
            ERR_INPUT,
            "parallel.sequence: rows of %lld tokens cannot be shared by %d ranks; set data.seq_len to a multiple "
            "of %d",
            (long long)o->seq_len, S, 2 * S);
    if (o->batch * o->seq_len / S % n)
        return ERR(ERR_INPUT,
                   "parallel.tensor: a micro-batch of %lld x %lld tokens cannot be shared by %d ranks; change "
                   "train.micro_batch or data.seq_len",
                   (long long)o->batch, (long long)o->seq_len / S, n);
    if (!o->ring && !model_heads_divide(c, &o->mesh))
        return ERR(
            ERR_INPUT,
            "parallel.sequence: %lld heads and %lld kv heads%s cannot be shared by %d ranks; set a divisor of both, or "
            "parallel.attention=ring",
            (long long)c->n_heads / n, (long long)MAX(c->n_kv_heads / n, (int64_t)1),
            n > 1 ? " of each tensor rank" : "", S);
    return model_stages_check(c, mesh_size(&o->mesh, AXIS_PIPELINE), MAX(o->virtual_stages, 1));
}

/* What this rank has of the model: its share of every layer of its stage. */
static void share_model(builder *b, const mesh *m) {
    const model_config *c = b->c;
    b->n_ranks = mesh_size(m, AXIS_TENSOR);
    b->rank = m->index[AXIS_TENSOR];
    b->n_sequence = mesh_size(m, AXIS_SEQUENCE);
    b->seq_len /= b->n_sequence;
    b->heads = c->n_heads / b->n_ranks;
    b->kv_heads = MAX(c->n_kv_heads / b->n_ranks, (int64_t)1);
    b->ffn = c->ffn / b->n_ranks;
    int64_t n = (c->vocab + b->n_ranks - 1) / b->n_ranks;
    b->first_id = b->rank * n;
    b->n_ids = MIN(n, c->vocab - b->first_id);
    b->n_stages = mesh_size(m, AXIS_PIPELINE);
    b->stage = m->index[AXIS_PIPELINE];
    b->m->n_chunks = b->n_stages * MAX(b->o->virtual_stages, 1);
    b->first_layer = arena_array(&b->m->memory, int64_t, b->m->n_chunks + 1);
    model_stages_cut(c, b->o->seq_len, b->m->n_chunks, b->first_layer);
}

status model_build(model *m, program *p, const model_config *c, const model_build_options *o) {
    bool generates = o->generation.slots > 0;
    TRY(model_config_check(c));
    if (generates) TRY(check_generation(c, &o->generation, &o->mesh));
    else TRY(check_training(c, o));
    *m = (model){.config = *c};
    arena_init(&m->memory);
    builder b = {.m = m, .p = p, .c = &m->config, .t = model_family_traits(c->family), .o = o, .where = SECTION_START};
    b.batch = o->batch, b.seq_len = o->seq_len;
    share_model(&b, &o->mesh);
    outer_params w = {.blocks = mem_alloc((size_t)c->n_layers * sizeof(block_params))};
    if (!generates) add_inputs(&b);
    add_params(&b, &w);
    add_rope_table(&b, generates ? o->generation.context : o->seq_len);
    if (generates) build_generation(&b, &w);
    else build_training(&b, &w);
    free(w.blocks);
    return OK;
}

void model_fini(model *m) {
    free(m->params);
    arena_fini(&m->memory);
    *m = (model){0};
}
