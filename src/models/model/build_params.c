/* build_params.c - the parameters of every family: their shapes, their names in files, and the part that this rank has. */
#include "model/builder.h"

#include <stdlib.h>

/* A parameter that every tensor rank holds whole. The ranks share its tokens, so each computes a part of the gradient. */
static net_param *add_param(builder *b, const char *name, shape s) {
    net *m = b->m;
    m->params = array_grow(m->params, &b->params_capacity, m->n_params + 1, sizeof *m->params);
    net_param *p = &m->params[m->n_params++];
    *p = (net_param){.name = arena_format(&m->memory, "%s%s", b->of_reference ? REFERENCE_PREFIX : "", name),
                     .of_reference = b->of_reference,
                     .init = INIT_NORMAL,
                     .init_std = 0.02f};
    p->shape = s;
    p->cut = (param_cut){.here = s, .whole = s, .dim = -1};
    p->n_holders = b->n_ranks;
    p->shared_from = b->n_ranks > 1 ? 0 : shape_count(&s);
    p->unit = b->unit;
    p->number = m->n_params - 1;
    if (b->is_here) p->value = program_persistent(b->p, p->name, b->o->compute, s, ROLE_PARAM);
    p->decay = s.rank == 2;
    p->of_other_head = b->unit > model_main_layers(b->c) && b->unit <= b->c->n_layers;
    p->frozen = b->lora.rank > 0 || b->of_reference || b->m->codes != BASE_COMPUTE; /* an adapter says otherwise */
    return p;
}

/* One that the ranks share: slices of the whole along a dimension, one behind the other. */
static net_param *add_cut_param(builder *b, const char *name, shape whole, int dim, const param_slice *slices, int n) {
    shape here = whole;
    if (b->n_ranks == 1) return add_param(b, name, whole);
    here.dim[dim] = slices[n - 1].at + slices[n - 1].n;
    net_param *p = add_param(b, name, here);
    p->cut = (param_cut){.here = here, .whole = whole, .dim = dim, .n_slices = n};
    memcpy(p->cut.slices, slices, (size_t)n * sizeof *slices);
    p->shared_from = shape_count(&here);
    p->first_holder = b->rank;
    p->n_holders = 1;
    return p;
}

static param_part *add_part(builder *b, net_param *p, const char *file_name, int64_t n_rows) {
    int64_t first = p->n_parts ? p->parts[p->n_parts - 1].first_row + p->parts[p->n_parts - 1].n_rows : 0;
    param_part *part = &p->parts[p->n_parts++];
    *part = (param_part){.file_name = arena_string(&b->m->memory, file_name), .first_row = first, .n_rows = n_rows};
    return part;
}

/* "layers.3.attn.qkv.w" and "model.layers.3.self_attn.q_proj.weight" from a format with one %d for the layer. */
const char *builder_layer_name(char buf[NAME_BYTES], const char *format, int layer) {
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

/* "model.layers.%d.mlp" of a head after the first is "model.extra_heads.%d.mlp" in files that hold it. */
static void extra_head_format(char buf[NAME_BYTES], const char *format) {
    const char *number = strstr(format, ".%d"), *word = number;
    while (word > format && word[-1] != '.') word--;
    snprintf(buf, NAME_BYTES, "%.*sextra_heads%s", (int)(word - format), format, number);
}

/* A tensor of the files. Where they are those of the ordinary model, every head is its last layer there; adapters always are,
 * and always as Hugging Face has them. */
static void add_file_part(builder *b, net_param *p, int layer, const char *format, const char *ending, int module,
                          int64_t rows) {
    char buf[NAME_BYTES], extra[NAME_BYTES];
    bool interleaved = false;
    int main = (int)model_main_layers(b->c), last = main - 1;
    const char *meta = b->c->meta_files && !p->adapter ? meta_tensor_name(format, &interleaved) : NULL;
    if (meta) format = meta; /* what Meta has no name for keeps its own */
    if (layer > last && b->c->file_heads > 1 && !p->adapter) {
        extra_head_format(extra, format);
        builder_layer_name(buf, extra, layer - main);
    } else {
        builder_layer_name(buf, format, MIN(layer, last));
    }
    strncat(buf, ending, sizeof buf - strlen(buf) - 1);
    param_part *part = add_part(b, p, buf, rows);
    part->module = module;
    if (interleaved) part->interleaved = b->c->head_dim;
}

/* Files name biases and weights of one projection alike but for the ending. */
static void add_file_parts(builder *b, net_param *p, int layer, const char *const *formats, const int64_t *rows, int n,
                           const char *ending) {
    for (int i = 0; i < n; i++) add_file_part(b, p, layer, formats[i], ending, i, rows[i]);
}

/* Our own names: "final_norm.g", "layers.3.attn.qkv.w". */
static const char *param_name(char buf[NAME_BYTES], int layer, const char *name, const char *ending) {
    if (layer < 0) snprintf(buf, NAME_BYTES, "%s%s", name, ending);
    else snprintf(buf, NAME_BYTES, "layers.%d.%s%s", layer, name, ending);
    return buf;
}

/* A linear layer whose rows come from n tensors in the files, each a module that may have an adapter. */
typedef struct projection_spec {
    const char *name;         /* our own: "attn.qkv" */
    lora_module first;        /* module of the first tensor; those of the others follow it */
    const char *const *files; /* (n) names of the tensors ... */
    const int64_t *rows;      /* (n) ... and the rows of each */
    int n;
    int64_t in; /* columns */
    bool bias;
    /* Rows of this tensor rank; NULL: it leads back into the residual stream, and ranks share its columns. */
    const param_slice *slices;
    int n_slices;
} projection_spec;

static bool has_adapter(const builder *b, const projection_spec *s, int i) {
    return (b->lora.modules >> s->first & 1u << i) != 0;
}

/* The rows of B on this rank: those of W's slices that belong to adapted modules. Also says which columns of the layer's
 * output belong to each module. Returns the number of slices. */
static int adapted_slices(const builder *b, const projection_spec *s, int64_t all_rows, projection *r,
                          param_slice *out) {
    const param_slice whole = {0, 0, all_rows}, *slices = s->slices ? s->slices : &whole;
    int n_out = 0, n_slices = s->slices ? s->n_slices : 1;
    int64_t at = 0, first_row = 0, skipped = 0; /* in B; of the module in W; rows of W before it without an adapter */
    for (int i = 0; i < s->n; first_row += s->rows[i++]) {
        if (!has_adapter(b, s, i)) {
            skipped += s->rows[i];
            continue;
        }
        int64_t *first = &r->part_first[r->n_adapted], *columns = &r->part_columns[r->n_adapted];
        *first = -1, *columns = 0;
        for (int k = 0; k < n_slices; k++) {
            if (slices[k].from < first_row || slices[k].from >= first_row + s->rows[i]) continue;
            if (*first < 0) *first = slices[k].at;
            out[n_out++] = (param_slice){at, slices[k].from - skipped, slices[k].n};
            at += slices[k].n, *columns += slices[k].n;
        }
        r->n_adapted++;
    }
    return n_out;
}

/* Adapters of a projection's modules. Where ranks share its rows, each has those rows of B, and all of A; where they share its
 * columns, those columns of A, and all of B: what each makes is a part of the same sum as the part of its W. */
static void add_adapters(builder *b, int layer, const projection_spec *s, projection *r) {
    char buf[NAME_BYTES];
    int64_t rank = b->lora.rank, in = s->in, out = 0, all = 0, a_rows[3], b_rows[3];
    const char *a_files[3];
    int n_adapted = 0, module[3];
    for (int i = 0; i < s->n; i++) {
        all += s->rows[i];
        if (!has_adapter(b, s, i)) continue;
        module[n_adapted] = i;
        a_files[n_adapted] = s->files[i], a_rows[n_adapted] = rank, b_rows[n_adapted++] = s->rows[i];
        out += s->rows[i];
    }
    if (!n_adapted) return;
    const param_slice columns = {0, b->rank * (in / b->n_ranks), in / b->n_ranks};
    param_slice own[3];
    int n_own = adapted_slices(b, s, all, r, own);
    shape a_shape = SHAPE(n_adapted * rank, in), b_shape = SHAPE(out, rank);
    param_name(buf, layer, s->name, ".lora_a");
    net_param *a = s->slices ? add_param(b, buf, a_shape) : add_cut_param(b, buf, a_shape, 1, &columns, 1);
    a->frozen = false, a->beside_base = true, a->adapter = ADAPTER_A;
    a->init = INIT_UNIFORM, a->init_std = 1.0f / __builtin_sqrtf((float)in); /* kaiming_uniform(a = sqrt(5)) */
    add_file_parts(b, a, layer, a_files, a_rows, n_adapted, ".lora_A.weight");
    r->lora_a = a->value;
    param_name(buf, layer, s->name, ".lora_b");
    net_param *w = s->slices ? add_cut_param(b, buf, b_shape, 0, own, n_own) : add_param(b, buf, b_shape);
    w->frozen = false, w->beside_base = true, w->adapter = ADAPTER_B;
    w->init = INIT_ZERO;
    add_file_parts(b, w, layer, a_files, b_rows, n_adapted, ".lora_B.weight");
    for (int i = 0; i < n_adapted; i++) w->parts[i].module = module[i];
    r->lora_b = w->value;
}

static projection add_projection(builder *b, int layer, const projection_spec *s) {
    char buf[NAME_BYTES];
    int64_t in = s->in, out = 0;
    for (int i = 0; i < s->n; i++) out += s->rows[i];
    bool into_residual = !s->slices;
    projection r = {.sums = into_residual && b->n_ranks > 1};
    param_slice columns = {0, b->rank * (in / b->n_ranks), in / b->n_ranks};
    param_name(buf, layer, s->name, ".w");
    net_param *w = into_residual ? add_cut_param(b, buf, SHAPE(out, in), 1, &columns, 1)
                                 : add_cut_param(b, buf, SHAPE(out, in), 0, s->slices, s->n_slices);
    w->transposed = b->t->transposed_files;
    if (into_residual && b->t->scaled_residual_init)
        w->init_std = 0.02f / __builtin_sqrtf(2.0f * (float)b->c->n_layers);
    add_file_parts(b, w, layer, s->files, s->rows, s->n, ".weight");
    w->base = b->base;
    r.w = w->value;
    if (s->bias) {
        param_name(buf, layer, s->name, ".b");
        net_param *bp = into_residual ? add_param(b, buf, SHAPE(out))
                                      : add_cut_param(b, buf, SHAPE(out), 0, s->slices, s->n_slices);
        bp->init = INIT_ZERO;
        add_file_parts(b, bp, layer, s->files, s->rows, s->n, ".bias");
        r.b = bp->value;
    }
    if (b->lora.rank && !b->of_reference) add_adapters(b, layer, s, &r);
    return r;
}

/* Fewer kv heads than ranks: several ranks have the same one, each for its own query heads. */
static void share_kv(builder *b, size_t first_param) {
    int64_t holders = b->n_ranks / b->c->n_kv_heads;
    for (size_t i = first_param; i < b->m->n_params && holders > 1; i++) {
        net_param *p = &b->m->params[i];
        int64_t q_rows = b->heads * b->c->head_dim;
        if (p->adapter == ADAPTER_A) continue; /* every rank has all of it */
        if (p->adapter == ADAPTER_B && b->t->names->qkv[1] && !(b->lora.modules & 1u << LORA_MODULE_QKV)) q_rows = 0;
        p->shared_from = shape_count(&p->shape) / p->shape.dim[0] * MIN(q_rows, p->shape.dim[0]);
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
    projection r = add_projection(b, layer,
                                  &(projection_spec){.name = "attn.qkv",
                                                     .first = LORA_MODULE_QKV,
                                                     .files = files,
                                                     .rows = rows,
                                                     .n = n,
                                                     .in = c->hidden,
                                                     .bias = b->t->qkv_bias,
                                                     .slices = slices,
                                                     .n_slices = ARRAY_LENGTH(slices)});
    share_kv(b, first_param);
    return r;
}

/* A gain, which begins as 1 with the family's offset, or the shift beside it. */
static value_id add_gain(builder *b, int layer, const char *name, const char *file_format, const char *ending,
                         param_init init, int64_t n) {
    char buf[NAME_BYTES];
    net_param *p = add_param(b, param_name(buf, layer, name, init == INIT_ONE ? ".g" : ".b"), SHAPE(n));
    p->init = init == INIT_ONE && b->t->gain_offset == 1 ? INIT_ZERO : init;
    add_file_part(b, p, layer, file_format, ending, 0, n);
    return p->value;
}

/* Without a name in files the family has no such norm. */
static norm_params add_norm(builder *b, int layer, const char *name, const char *file_format) {
    if (!file_format) return (norm_params){0};
    norm_params n = {.gamma = add_gain(b, layer, name, file_format, ".weight", INIT_ONE, b->c->hidden)};
    if (b->t->layernorm) n.beta = add_gain(b, layer, name, file_format, ".bias", INIT_ZERO, b->c->hidden);
    return n;
}

static block_params add_block(builder *b, int layer) {
    const model_config *c = b->c;
    const model_traits *t = b->t;
    const tensor_names *names = t->names;
    int64_t C = c->hidden, HD = c->n_heads * c->head_dim, GD = c->n_kv_heads * c->head_dim, F = b->ffn;
    const param_slice ffn[2] = {{0, b->rank * F, F}, {F, c->ffn + b->rank * F, F}}; /* up alone, or gate|up */
    bool is_packed = !names->qkv[1];
    int n_up = t->gelu ? 1 : 2;
    bool is_packed_up = !t->gelu && !names->up[1];
    block_params r = {0};
    r.norm1 = add_norm(b, layer, "norm1", names->norm1);
    r.qkv = is_packed ? add_qkv(b, layer, names->qkv, (int64_t[]){HD + 2 * GD}, 1)
                      : add_qkv(b, layer, names->qkv, (int64_t[]){HD, GD, GD}, 3);
    if (t->qk_norm) {
        bool wide = t->wide_qk_norm;
        r.q_norm = add_gain(b, layer, "attn.q_norm", names->q_norm, ".weight", INIT_ONE, wide ? HD : c->head_dim);
        r.k_norm = add_gain(b, layer, "attn.k_norm", names->k_norm, ".weight", INIT_ONE, wide ? GD : c->head_dim);
    }
    r.out = add_projection(b, layer,
                           &(projection_spec){.name = "attn.out",
                                              .first = LORA_MODULE_OUT,
                                              .files = &names->out,
                                              .rows = &C,
                                              .n = 1,
                                              .in = HD,
                                              .bias = t->other_bias});
    r.norm1_after = add_norm(b, layer, "norm1_after", names->norm1_after);
    r.norm2 = add_norm(b, layer, "norm2", names->norm2);
    r.up =
        add_projection(b, layer,
                       &(projection_spec){.name = t->gelu ? "mlp.up" : "mlp.gate_up",
                                          .first = LORA_MODULE_UP,
                                          .files = names->up,
                                          .rows = is_packed_up ? (int64_t[]){2 * c->ffn} : (int64_t[]){c->ffn, c->ffn},
                                          .n = is_packed_up ? 1 : n_up,
                                          .in = C,
                                          .bias = t->other_bias,
                                          .slices = ffn,
                                          .n_slices = n_up});
    r.down = add_projection(b, layer,
                            &(projection_spec){.name = "mlp.down",
                                               .first = LORA_MODULE_DOWN,
                                               .files = &names->down,
                                               .rows = &C,
                                               .n = 1,
                                               .in = c->ffn,
                                               .bias = t->other_bias});
    r.norm2_after = add_norm(b, layer, "norm2_after", names->norm2_after);
    return r;
}

/* A table of the vocabulary: each rank has as many rows, the last may have padding behind its own. */
static net_param *add_table(builder *b, const char *name, const char *file_name) {
    const model_config *c = b->c;
    int64_t n = divide_up(c->vocab, b->n_ranks);
    const param_slice own = {0, b->first_id, n};
    net_param *p = add_cut_param(b, name, SHAPE(c->vocab, c->hidden), 0, &own, 1);
    if (b->n_ranks > 1) p->cut.slices[0].n = b->n_ids;
    add_file_parts(b, p, -1, &file_name, &c->vocab, 1, ".weight");
    if (b->m->codes != BASE_COMPUTE) p->base = BASE_INT8;
    return p;
}

void builder_sort_params(builder *b) {
    net *m = b->m;
    net_param *all = mem_alloc(m->n_params * sizeof *all);
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

/* Trained whole, also where the decoder has adapters: it begins as nothing. */
static net_param *add_value_param(builder *b, const char *name, shape s) {
    net_param *p = add_param(b, name, s);
    p->of_value_head = true;
    p->beside_base = b->lora.rank > 0;
    p->frozen = false;
    return p;
}

/* First values as torch.nn.Linear has them; zeros in the last layer, so that all values begin equal. */
static void add_value_layer(builder *b, value_params *to, int layer, const char *name, const char *file, int64_t out,
                            int64_t in) {
    char buf[NAME_BYTES];
    bool last = layer == VALUE_LAYERS - 1;
    net_param *p = add_value_param(b, param_name(buf, -1, name, ".w"), SHAPE(out, in));
    p->init = last ? INIT_ZERO : INIT_UNIFORM, p->init_std = 1.0f / __builtin_sqrtf((float)in);
    snprintf(buf, sizeof buf, "%s.weight", file);
    add_part(b, p, buf, out);
    to->w[layer] = p->value;
    p = add_value_param(b, param_name(buf, -1, name, ".b"), SHAPE(out));
    p->init = INIT_ZERO;
    snprintf(buf, sizeof buf, "%s.bias", file);
    add_part(b, p, buf, out);
    to->b[layer] = p->value;
}

/* A single layer is called as transformers' ForTokenClassification calls it. */
static void add_value_head(builder *b, value_params *to) {
    int64_t C = b->c->hidden;
    if (b->c->value_head != VALUE_HEAD_MLP) {
        add_value_layer(b, to, VALUE_LAYERS - 1, "value.out", "score", 1, C);
        return;
    }
    add_value_layer(b, to, 0, "value.fc1", "value_head.fc1", C / 4, C);
    add_value_layer(b, to, 1, "value.fc2", "value_head.fc2", C / 8, C / 4);
    add_value_layer(b, to, 2, "value.out", "value_head.out", 1, C / 8);
}

/* Parameters in reading order: embedding, blocks, final norm, unembedding. Of a tied table the last stage has the one that
 * is trained, because there its gradient begins. */
void builder_add_params(builder *b, outer_params *w) {
    const model_config *c = b->c;
    const tensor_names *names = b->t->names;
    bool first = b->stage == 0, last = b->stage == b->n_stages - 1;
    b->is_here = first || (last && model_is_tied(c));
    net_param *embed = add_table(b, "embed.w", names->embed);
    embed->is_copy = model_is_tied(c) && first && !last;
    w->embed = w->unembed = embed->value;
    b->is_here = first;
    if (b->t->learned_positions) {
        net_param *positions = add_param(b, "positions.w", SHAPE(c->max_positions, c->hidden));
        add_file_parts(b, positions, -1, &names->positions, &c->max_positions, 1, ".weight");
        w->positions = positions->value;
    }
    int chunk = 0;
    int64_t n_layers = b->of_reference ? model_main_layers(c) : c->n_layers; /* a reference is an ordinary model */
    for (int l = 0; l < n_layers; l++) {
        if (l == b->first_layer[chunk + 1]) chunk++;
        b->is_here = chunk % b->n_stages == b->stage;
        b->unit = 1 + l;
        b->p->current_layer = l;
        w->blocks[l] = add_block(b, l);
    }
    b->is_here = last;
    b->unit = 1 + (int)c->n_layers;
    b->p->current_layer = -1;
    w->final_norm = add_norm(b, -1, "final_norm", names->final_norm);
    if (c->value_head) {
        w->unembed = NO_VALUE;
        add_value_head(b, &w->value);
    } else if (!c->tied) {
        w->unembed = add_table(b, "unembed.w", names->unembed)->value;
    }
}

/* Adds parameters for a stage that does not exist, so that no program is needed; layers are alike, so one is enough. Counts
 * those of the model, or those that are trained beside it. */
static uint64_t count_params(const model_config *c, const lora_options *lora, bool adapters) {
    model_config one = *c;
    one.n_layers = 1;
    one.mtp_heads = 0;
    net m = {0};
    program none = {0};
    block_params block;
    outer_params w = {.blocks = &block};
    int64_t first_layer[] = {0, 1};
    builder b = {.m = &m,
                 .p = &none,
                 .c = &one,
                 .t = model_family_traits(c->family),
                 .lora = *lora,
                 .n_ranks = 1,
                 .heads = c->n_heads,
                 .kv_heads = c->n_kv_heads,
                 .ffn = c->ffn,
                 .n_ids = c->vocab,
                 .n_stages = 2,
                 .stage = -1,
                 .first_layer = first_layer};
    uint64_t n = 0;
    arena_init(&m.memory);
    builder_add_params(&b, &w);
    builder_sort_params(&b);
    for (size_t i = 0; i < m.n_all_params; i++)
        if (m.params[i].beside_base == adapters)
            n += (uint64_t)shape_count(&m.params[i].shape) * (uint64_t)(m.params[i].unit == 1 ? c->n_layers : 1);
    net_fini(&m);
    return n;
}

uint64_t model_param_count(const model_config *c) { return count_params(c, &(lora_options){0}, false); }
uint64_t lora_param_count(const model_config *c, const lora_options *o) { return count_params(c, o, true); }
