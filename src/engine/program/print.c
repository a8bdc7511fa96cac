/* print.c - a program as text, one op per line, and a hash of what it computes. */
#include "program/program.h"

static void print_value(const program *p, value_id id, const char *label, bool updates, FILE *out) {
    const value *v = program_get(p, id);
    char buf[64];
    fprintf(out, " %s%s=%s:%s%s", label, updates ? "+" : "", v->name, dtype_name(v->type),
            shape_format(buf, &v->shape));
    if (v->offset != VALUE_NOT_PLACED) fprintf(out, "@%s+%zu", tier_name(v->tier), v->offset);
}

void program_print(const program *p, FILE *out) {
    section at = SECTION_COUNT;
    for (size_t i = 0; i < p->n_ops; i++) {
        const op *o = &p->ops[i];
        if (o->section != at) fprintf(out, "section %s\n", section_name(at = o->section));
        fprintf(out, "  %5zu %-8s %-18s", i, stream_name(o->stream), op_name(o->kind));
        for (int k = 0; k < op_output_count(o->kind); k++)
            if (o->out[k]) print_value(p, o->out[k], op_output_name(o->kind, k), op_output_updates(o->kind, k), out);
        fputs(" <-", out);
        for (int k = 0; k < op_input_count(o->kind); k++)
            if (o->in[k]) print_value(p, o->in[k], op_input_name(o->kind, k), false, out);
        if (o->rows) print_value(p, o->rows, "rows", false, out);
        if (o->work) print_value(p, o->work, "work", false, out);
        for (stream k = 0; k < STREAM_COUNT; k++)
            if (o->wait[k]) fprintf(out, " wait %s:%u", stream_name(k), o->wait[k]);
        fputc('\n', out);
    }
}

static uint64_t mix(uint64_t h, uint64_t x) {
    h ^= x + 0x9e3779b97f4a7c15ull + (h << 6) + (h >> 2);
    h *= 0xff51afd7ed558ccdull;
    return h ^ (h >> 33);
}

static uint64_t mix_comm(uint64_t h, const program *p, const op *o) {
    const value *v = program_get(p, op_message(o));
    h = mix(h, (uint64_t)o->kind << 32 | (uint64_t)o->attr.axis << 16 | (uint64_t)v->type << 8 | o->section);
    h = mix(h, (uint64_t)o->attr.group_size << 32 | (uint32_t)o->attr.tag);
    return mix(h, (uint64_t)shape_count(&v->shape));
}

uint64_t program_comm_hash(const program *p) {
    uint64_t h = 0;
    for (size_t i = 0; i < p->n_ops; i++)
        if (op_is_comm(p->ops[i].kind)) h = mix_comm(h, p, &p->ops[i]);
    return h;
}

static uint64_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* The constants of adapters and DROPOUT decide what is computed from which columns: equal operands do not say it. */
static uint64_t mix_adapter(uint64_t h, const op *o) {
    const op_attr *a = &o->attr;
    h = mix(mix(h, bits_of(a->rate)), a->noise_key);
    if (op_dropout_in_rows(o))
        h = mix(mix(h, (uint64_t)a->all_columns << 32 | (uint64_t)a->first_column), (uint64_t)a->index);
    if (o->kind == OP_DROPOUT) return h;
    h = mix(h, bits_of(a->scale));
    for (int i = 0; i < a->n_parts; i++) h = mix(mix(h, (uint64_t)a->part_first[i]), (uint64_t)a->part_columns[i]);
    return h;
}

static bool is_adapter(const op *o) { return o->attr.n_parts > 0 || o->kind == OP_DROPOUT; }

uint64_t program_hash(const program *p) {
    uint64_t h = p->n_ops;
    for (size_t i = 0; i < p->n_ops; i++) {
        const op *o = &p->ops[i];
        h = mix(h, (uint64_t)o->kind << 16 | (uint64_t)o->at << 8 | o->section);
        h = mix(h, (uint64_t)o->attr.first_element);
        if (op_is_comm(o->kind)) h = mix_comm(h, p, o);
        if (is_adapter(o)) h = mix_adapter(h, o);
        if (o->attr.window || o->attr.softcap > 0) h = mix(mix(h, (uint64_t)o->attr.window), bits_of(o->attr.softcap));
        if (o->attr.logits_softcap > 0) h = mix(h, bits_of(o->attr.logits_softcap));
        if (o->attr.gain_offset > 0 || o->attr.wide || o->attr.gelu_gate)
            h = mix(h, bits_of(o->attr.gain_offset) << 2 | (uint64_t)o->attr.wide << 1 | o->attr.gelu_gate);
        if (o->attr.power) h = mix(h, 1);
        if (o->attr.square) h = mix(h, 2);
        if (o->attr.fp8) h = mix(h, 3);
        if (o->rows) h = mix(h, o->rows);
        for (int k = 0; k < OP_MAX_IN; k++) h = mix(h, o->in[k]);
        for (int k = 0; k < OP_MAX_OUT; k++) h = mix(h, o->out[k]);
    }
    for (value_id v = 1; v < p->n_values; v++) {
        const value *a = &p->values[v];
        h = mix(h, (uint64_t)a->type << 16 | (uint64_t)a->role << 8 | a->tier);
        for (int k = 0; k < a->shape.rank; k++) h = mix(h, (uint64_t)a->shape.dim[k]);
    }
    return h;
}
