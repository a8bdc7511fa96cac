/* base.c - frozen weights in fewer bits (QLoRA): codes are stored, and made into numbers right before each use.
 *
 * In: a program whose linear layers read parameters that have a base format. Out: the same, where such a parameter has no bytes
 * of its own. Its codes and scales are persistent values, and every op that reads it reads a value of its own instead, which
 * DEQUANTIZE writes directly before. So the numbers of one weight are alive at a time, in the forward, in the backward, where
 * recompute repeats the forward and in evaluation and generation. The price is a DEQUANTIZE per use.
 *
 * The parts of a packed weight (q|k|v, gate|up) are separate matrices in files, and each has codes of its own, so that they are
 * those of bitsandbytes, which quantises every matrix by itself: each writes its rows of the packed weight.
 *
 * A program that generates with weights in 8 bits (model.int8, on the CPU and not beside training) computes with the codes as
 * they are: LINEAR_INT8 in the place of LINEAR and of UNEMBED_LOGITS, EMBED_INT8 in that of EMBED, and no numbers anywhere. There
 * the codes of a packed weight are one tensor, of which the parts are rows, as every row has a scale of its own.
 *
 * It runs behind the passes that copy ops (autodiff, recompute), which see an ordinary frozen parameter, and before those that
 * move values: codes are offloaded as any parameter. Products of 8 bits (pass/fp8.c) read 8-bit numbers that are made of the weight once,
 * in SECTION_LOADED: there a step dequantises nothing, and the codes serve evaluation. */
#include "pass/pass.h"

#include <stdlib.h>

static value_id add_persistent(program *p, const char *of, const char *what, dtype t, shape s, int layer) {
    char name[200];
    snprintf(name, sizeof name, "%.150s.%s", of, what);
    value_id v = program_persistent(p, name, t, s, ROLE_PARAM);
    p->values[v].layer = layer;
    return v;
}

/* Rows of a tensor that holds all parts of a weight. */
static value_id add_rows(program *p, value_id of, const model_param *q, int part, shape s) {
    char name[200];
    size_t row_bytes = value_bytes(&p->values[of]) / (size_t)q->shape.dim[0];
    snprintf(name, sizeof name, "%.150s.%d", p->values[of].name, part);
    value_id v = program_view(p, name, of, (size_t)q->parts[part].first_row * row_bytes, s);
    p->values[v].layer = p->values[of].layer;
    return v;
}

static base_values add_joined_codes(program *p, const model_param *q, base_parts *to) {
    int layer = p->values[q->value].layer;
    base_values whole = {.codes = add_persistent(p, q->name, "codes", base_codes_type(q->base), q->shape, layer),
                         .scale = add_persistent(p, q->name, "scale", DTYPE_F32, SHAPE(q->shape.dim[0]), layer)};
    for (int k = 0; k < q->n_parts; k++) {
        int64_t n = q->parts[k].n_rows;
        to->part[k] = q->n_parts == 1
                          ? whole
                          : (base_values){.codes = add_rows(p, whole.codes, q, k, SHAPE(n, q->shape.dim[1])),
                                          .scale = add_rows(p, whole.scale, q, k, SHAPE(n))};
    }
    return whole;
}

/* The op over codes that does what `o` does over numbers. */
static op over_codes(const op *o, const base_values *w) {
    op q = op_instead(o, o->kind == OP_EMBED ? OP_EMBED_INT8 : OP_LINEAR_INT8);
    if (o->kind == OP_EMBED) {
        q.in[EMBED_INT8_TOKENS] = o->in[EMBED_TOKENS], q.in[EMBED_INT8_DOC_START] = o->in[EMBED_DOC_START];
        q.in[EMBED_INT8_POSITIONS] = o->in[EMBED_POSITIONS], q.out[EMBED_INT8_X] = o->out[EMBED_X];
        q.in[EMBED_INT8_CODES] = w->codes, q.in[EMBED_INT8_SCALE] = w->scale;
        return q;
    }
    q.in[LINEAR_INT8_CODES] = w->codes, q.in[LINEAR_INT8_SCALE] = w->scale;
    if (o->kind == OP_LINEAR) {
        q.in[LINEAR_INT8_X] = o->in[LINEAR_X], q.in[LINEAR_INT8_B] = o->in[LINEAR_B];
        q.out[LINEAR_INT8_Y] = o->out[LINEAR_Y];
    } else {
        ASSERT(o->kind == OP_UNEMBED_LOGITS);
        q.in[LINEAR_INT8_X] = o->in[UNEMBED_LOGITS_H], q.in[LINEAR_INT8_PICK] = o->in[UNEMBED_LOGITS_PICK];
        q.out[LINEAR_INT8_Y] = o->out[UNEMBED_LOGITS_LOGITS];
    }
    return q;
}

static base_values add_codes(program *p, const model_param *q, int part) {
    char name[180];
    int64_t n_out = q->parts[part].n_rows, n_in = q->shape.dim[1];
    int layer = p->values[q->value].layer;
    base_sizes n = base_sizes_of(q->base, n_out, n_in);
    if (q->n_parts == 1) snprintf(name, sizeof name, "%.150s", q->name);
    else snprintf(name, sizeof name, "%.150s.%d", q->name, part);
    base_values v = {0};
    shape codes = q->base == BASE_NF4 ? SHAPE(n.codes) : SHAPE(n_out, n_in);
    v.codes = add_persistent(p, name, "codes", base_codes_type(q->base), codes, layer);
    v.scale = add_persistent(p, name, "scale", DTYPE_F32, SHAPE(n.scales), layer);
    if (n.scale_codes) v.scale_codes = add_persistent(p, name, "scale_codes", DTYPE_U8, SHAPE(n.scale_codes), layer);
    if (n.offsets) v.offset = add_persistent(p, name, "offset", DTYPE_F32, SHAPE(n.offsets), layer);
    return v;
}

/* The weight as numbers, for `reader` alone. */
static value_id add_numbers(program *p, const model_param *q, const base_parts *from, const op *reader) {
    const value v = p->values[q->value];
    char name[200];
    snprintf(name, sizeof name, "numbers.%zu.%.150s", p->n_values, q->name);
    value_id w = program_value(p, name, v.type, v.shape, ROLE_WORK, reader->section);
    p->values[w].layer = reader->layer;
    for (int k = 0; k < q->n_parts; k++) {
        const base_values *b = &from->part[k];
        value_id rows = w;
        if (q->n_parts > 1) {
            size_t row_bytes = (size_t)v.shape.dim[1] * dtype_bytes(v.type);
            snprintf(name, sizeof name, "rows.%zu.%.150s.%d", p->n_values, q->name, k);
            rows = program_view(p, name, w, (size_t)q->parts[k].first_row * row_bytes,
                                SHAPE(q->parts[k].n_rows, v.shape.dim[1]));
            p->values[rows].layer = reader->layer;
        }
        op o = {.kind = OP_DEQUANTIZE, .section = reader->section, .layer = reader->layer, .again = reader->again};
        o.at = reader->at;
        o.attr.base_format = q->base;
        o.in[DEQUANTIZE_CODES] = b->codes, o.in[DEQUANTIZE_SCALE] = b->scale;
        o.in[DEQUANTIZE_SCALE_CODES] = b->scale_codes, o.in[DEQUANTIZE_OFFSET] = b->offset;
        o.out[DEQUANTIZE_W] = rows;
        program_append(p, &o);
    }
    return w;
}

/* Keeps the name and shape of the parameter; nothing reads or writes it any more. */
static void drop_storage(value *v) {
    v->persistent = false;
    v->role = ROLE_WORK;
}

status pass_base(program *p, const pass_options *options, step_interface *step) {
    const model *m = options->model;
    base_format format = BASE_COMPUTE;
    for (size_t i = 0; i < m->n_params; i++) format = MAX(format, m->params[i].base);
    if (format == BASE_COMPUTE) return OK;
    step->base = arena_array(&p->memory, base_parts, m->n_params);
    base_values *whole = m->int8 ? mem_alloc(m->n_params * sizeof *whole) : NULL;
    size_t n_old = p->n_values, n_ops, *param_of = mem_alloc(n_old * sizeof *param_of); /* 1 + the parameter */
    for (size_t i = 0; i < m->n_params; i++) {
        const model_param *q = &m->params[i];
        if (q->base == BASE_COMPUTE) continue;
        ASSERT(q->frozen && q->shape.rank == 2 && q->cut.dim < 0);
        param_of[q->value] = i + 1;
        if (whole) whole[i] = add_joined_codes(p, q, &step->base[i]);
        else
            for (int k = 0; k < q->n_parts; k++) step->base[i].part[k] = add_codes(p, q, k);
    }
    op *ops = program_take_ops(p, &n_ops);
    for (size_t i = 0; i < n_ops; i++) {
        op o = ops[i];
        for (int k = 0; k < op_input_count(o.kind); k++) {
            size_t param = o.in[k] && o.in[k] < n_old ? param_of[o.in[k]] : 0;
            if (param && !whole) o.in[k] = add_numbers(p, &m->params[param - 1], &step->base[param - 1], &o);
            if (param && whole) {
                o = over_codes(&o, &whole[param - 1]); /* an op reads one weight */
                break;
            }
        }
        program_append(p, &o);
    }
    for (size_t i = 0; i < m->n_params; i++)
        if (m->params[i].base != BASE_COMPUTE) drop_storage(&p->values[m->params[i].value]);
    free(ops);
    free(whole);
    free(param_of);
    return OK;
}
