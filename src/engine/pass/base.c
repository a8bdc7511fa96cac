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
 * A program that generates over codes (model.codes, not beside training) computes with them as they are: on a GPU LINEAR_CODES in the
 * place of LINEAR and of UNEMBED_LOGITS, on a CPU LINEAR_INT8 where they are int8 (fp8 and nf4 are dequantised there before each use, as
 * above), and EMBED_INT8 in that of EMBED. There the codes of a packed weight are one tensor, of which the parts are rows.
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

/* Codes, scales and so on of a weight, or of all parts of one. */
static base_values add_codes(program *p, const net_param *q, const char *name, int64_t n_out, const base_sizes *n) {
    int layer = p->values[q->value].layer;
    base_values v = {0};
    shape codes = q->base == BASE_NF4 ? SHAPE(n->codes) : SHAPE(n_out, q->shape.dim[1]);
    v.codes = add_persistent(p, name, "codes", base_codes_type(q->base), codes, layer);
    v.scale = add_persistent(p, name, "scale", DTYPE_F32, SHAPE(n->scales), layer);
    if (n->scale_codes) v.scale_codes = add_persistent(p, name, "scale_codes", DTYPE_U8, SHAPE(n->scale_codes), layer);
    if (n->offsets) v.offset = add_persistent(p, name, "offset", DTYPE_F32, SHAPE(n->offsets), layer);
    return v;
}

static void add_codes_of_parts(program *p, const net_param *q, base_parts *to) {
    for (int k = 0; k < q->n_parts; k++) {
        char name[180];
        base_sizes n = base_sizes_of(q->base, q->parts[k].n_rows, q->shape.dim[1]);
        if (q->n_parts == 1) snprintf(name, sizeof name, "%.150s", q->name);
        else snprintf(name, sizeof name, "%.150s.%d", q->name, k);
        to->part[k] = add_codes(p, q, name, q->parts[k].n_rows, &n);
    }
}

/* A part's elements of a tensor that holds those of all parts. */
static value_id add_view(program *p, value_id of, int part, int64_t first, shape s) {
    char name[200];
    if (of == NO_VALUE) return NO_VALUE;
    size_t offset = (size_t)first * dtype_bytes(p->values[of].type);
    snprintf(name, sizeof name, "%.150s.%d", p->values[of].name, part);
    value_id v = program_view(p, name, of, offset, s);
    p->values[v].layer = p->values[of].layer;
    return v;
}

static base_values add_joined_codes(program *p, const net_param *q, base_parts *to) {
    base_sizes of[3], all = {0}, first = {0};
    for (int k = 0; k < q->n_parts; k++) {
        of[k] = base_sizes_of(q->base, q->parts[k].n_rows, q->shape.dim[1]);
        all.codes += of[k].codes, all.scales += of[k].scales;
        all.scale_codes += of[k].scale_codes, all.offsets += of[k].offsets;
    }
    base_values whole = add_codes(p, q, q->name, q->shape.dim[0], &all);
    to->part[0] = whole;
    for (int k = 0; k < q->n_parts && q->n_parts > 1; k++) {
        shape codes = q->base == BASE_NF4 ? SHAPE(of[k].codes) : SHAPE(q->parts[k].n_rows, q->shape.dim[1]);
        to->part[k] =
            (base_values){.codes = add_view(p, whole.codes, k, first.codes, codes),
                          .scale = add_view(p, whole.scale, k, first.scales, SHAPE(of[k].scales)),
                          .scale_codes = add_view(p, whole.scale_codes, k, first.scale_codes, SHAPE(of[k].scale_codes)),
                          .offset = add_view(p, whole.offset, k, first.offsets, SHAPE(of[k].offsets))};
        first.codes += of[k].codes, first.scales += of[k].scales;
        first.scale_codes += of[k].scale_codes, first.offsets += of[k].offsets;
    }
    return whole;
}

/* The op over codes that does what `o` does over numbers. */
static op over_codes(const op *o, const net_param *param, const base_values *w, bool discrete) {
    SAME_PLACE(LINEAR_INT8_X, LINEAR_CODES_X);
    SAME_PLACE(LINEAR_INT8_CODES, LINEAR_CODES_CODES);
    SAME_PLACE(LINEAR_INT8_SCALE, LINEAR_CODES_SCALE);
    SAME_PLACE(LINEAR_INT8_Y, LINEAR_CODES_Y);
    op q = op_instead(o, o->kind == OP_EMBED ? OP_EMBED_INT8 : discrete ? OP_LINEAR_CODES : OP_LINEAR_INT8);
    if (o->kind == OP_EMBED) {
        q.in[EMBED_INT8_TOKENS] = o->in[EMBED_TOKENS], q.in[EMBED_INT8_DOC_START] = o->in[EMBED_DOC_START];
        q.in[EMBED_INT8_POSITIONS] = o->in[EMBED_POSITIONS], q.out[EMBED_INT8_X] = o->out[EMBED_X];
        q.in[EMBED_INT8_CODES] = w->codes, q.in[EMBED_INT8_SCALE] = w->scale;
        return q;
    }
    bool logits = o->kind == OP_UNEMBED_LOGITS;
    ASSERT(logits || (o->kind == OP_LINEAR && !o->in[LINEAR_XA]));
    q.in[LINEAR_CODES_CODES] = w->codes, q.in[LINEAR_CODES_SCALE] = w->scale;
    q.in[LINEAR_CODES_X] = logits ? o->in[UNEMBED_LOGITS_H] : o->in[LINEAR_X];
    q.out[LINEAR_CODES_Y] = logits ? o->out[UNEMBED_LOGITS_LOGITS] : o->out[LINEAR_Y];
    q.in[discrete ? (int)LINEAR_CODES_B : (int)LINEAR_INT8_B] = logits ? NO_VALUE : o->in[LINEAR_B];
    q.in[discrete ? (int)LINEAR_CODES_PICK : (int)LINEAR_INT8_PICK] = logits ? o->in[UNEMBED_LOGITS_PICK] : NO_VALUE;
    if (!discrete) return q;
    q.in[LINEAR_CODES_SCALE_CODES] = w->scale_codes, q.in[LINEAR_CODES_OFFSET] = w->offset;
    q.attr.base_format = param->base;
    q.attr.n_parts = param->base == BASE_INT8 ? 1 : param->n_parts; /* every row of int8 has a scale of its own */
    for (int k = 0; k < q.attr.n_parts; k++)
        q.attr.part_first[k] = param->parts[k].first_row, q.attr.part_columns[k] = param->parts[k].n_rows;
    if (param->base == BASE_INT8) q.attr.part_columns[0] = param->shape.dim[0];
    return q;
}

/* The weight as numbers, for `reader` alone. */
static value_id add_numbers(program *p, const net_param *q, const base_parts *from, const op *reader) {
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
    const net *m = options->net;
    base_format format = BASE_COMPUTE;
    for (size_t i = 0; i < m->n_params; i++) format = MAX(format, m->params[i].base);
    if (format == BASE_COMPUTE) return OK;
    step->base = arena_array(&p->memory, base_parts, m->n_params);
    const bool discrete = options->target->discrete;
    base_values *whole = mem_alloc(m->n_params * sizeof *whole); /* of those that are computed with as codes */
    size_t n_old = p->n_values, n_ops, *param_of = mem_alloc(n_old * sizeof *param_of); /* 1 + the parameter */
    for (size_t i = 0; i < m->n_params; i++) {
        const net_param *q = &m->params[i];
        if (q->base == BASE_COMPUTE) continue;
        ASSERT(q->frozen && q->shape.rank == 2 && q->cut.dim < 0);
        param_of[q->value] = i + 1;
        whole[i] = (base_values){0};
        if (net_multiplies_codes(m->codes, q->base, discrete)) whole[i] = add_joined_codes(p, q, &step->base[i]);
        else add_codes_of_parts(p, q, &step->base[i]);
    }
    op *ops = program_take_ops(p, &n_ops);
    for (size_t i = 0; i < n_ops; i++) {
        op o = ops[i];
        for (int k = 0; k < op_input_count(o.kind); k++) {
            size_t param = o.in[k] && o.in[k] < n_old ? param_of[o.in[k]] : 0;
            if (!param) continue;
            if (whole[param - 1].codes) {
                o = over_codes(&o, &m->params[param - 1], &whole[param - 1], discrete); /* an op reads one weight */
                break;
            }
            o.in[k] = add_numbers(p, &m->params[param - 1], &step->base[param - 1], &o);
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
