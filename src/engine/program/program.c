/* program.c - building and walking a program.
 *
 * Values and ops are plain arrays; passes rewrite the op list by taking it and appending a new one, so no pass ever
 * edits a list it is walking. Names live in the program's own arena and die with it. */
#include "program/program.h"

#include <stdlib.h>

static const char *const role_names[ROLE_COUNT] = {"inputs",      "params", "grads", "states",
                                                   "activations", "work",   "comm",  "cache"};
static const char *const tier_names[TIER_COUNT] = {"device", "host", "nvme", "device1", "device2", "device3"};
static const char *const stream_names[STREAM_COUNT] = {"compute", "host", "h2d", "d2h", "read", "write", "comm"};
static const char *const section_names[SECTION_COUNT] = {"start",  "loaded", "prepare", "micro", "eval",
                                                         "update", "turn",   "prefill", "decode"};

const char *role_name(role r) { return role_names[r]; }
const char *tier_name(tier t) { return tier_names[t]; }
bool tier_is_device(tier t) { return t != TIER_HOST && t != TIER_NVME; }
tier tier_of_device(int index) { return index == 0 ? TIER_DEVICE : (tier)(TIER_DEVICE_1 + index - 1); }
const char *stream_name(stream s) { return stream_names[s]; }
const char *section_name(section s) { return section_names[s]; }
bool section_of_generation(section s) { return s == SECTION_PREFILL || s == SECTION_DECODE; }
bool section_of_step(section s) { return s == SECTION_PREPARE || s == SECTION_MICRO || s == SECTION_UPDATE; }

static const char *const axis_names[AXIS_COUNT] = {"data", "tensor", "pipeline", "sequence"};

const char *axis_name(axis a) { return axis_names[a]; }
int mesh_size(const mesh *m, axis a) { return m->size[a] > 0 ? m->size[a] : 1; }

int mesh_world(const mesh *m) {
    int n = 1;
    for (axis a = 0; a < AXIS_COUNT; a++) n *= mesh_size(m, a);
    return n;
}

int mesh_rank(const mesh *m) {
    int r = m->index[AXIS_PIPELINE] * mesh_size(m, AXIS_DATA) + m->index[AXIS_DATA];
    return (r * mesh_size(m, AXIS_SEQUENCE) + m->index[AXIS_SEQUENCE]) * mesh_size(m, AXIS_TENSOR) +
           m->index[AXIS_TENSOR];
}

static const axis inner_first[AXIS_COUNT] = {AXIS_TENSOR, AXIS_SEQUENCE, AXIS_DATA, AXIS_PIPELINE};

void mesh_set_rank(mesh *m, int rank) {
    for (int i = 0; i < AXIS_COUNT; i++) {
        axis a = inner_first[i];
        m->index[a] = rank % mesh_size(m, a);
        rank /= mesh_size(m, a);
    }
}

int mesh_stride(const mesh *m, axis a) {
    int stride = 1;
    for (int i = 0; inner_first[i] != a; i++) stride *= mesh_size(m, inner_first[i]);
    return stride;
}

int64_t sequence_token(int64_t i, int rank, int n_ranks, int64_t seq_len) {
    int64_t chunk = seq_len / (2 * n_ranks);
    return i < chunk ? rank * chunk + i : (2 * n_ranks - 2 - rank) * chunk + i;
}

step_scalars step_scalars_of(uint32_t step, uint32_t micro) {
    return (step_scalars){.seed = 1,
                          .grad_unscale = 1,
                          .bias1 = 1,
                          .bias2 = 1,
                          .step = step,
                          .micro = micro,
                          .one = 1,
                          .keep = micro > 0};
}

void program_init(program *p) {
    *p = (program){.current_layer = -1};
    arena_init(&p->memory);
    p->values = array_grow(NULL, &p->values_capacity, 64, sizeof *p->values);
    p->values[0] = (value){.name = "none", .offset = VALUE_NOT_PLACED, .layer = -1};
    p->n_values = 1;
}

void program_fini(program *p) {
    free(p->values);
    free(p->ops);
    arena_fini(&p->memory);
    *p = (program){0};
}

static value_id add_value(program *p, value v) {
    p->values = array_grow(p->values, &p->values_capacity, p->n_values + 1, sizeof *p->values);
    v.name = arena_string(&p->memory, v.name);
    v.offset = VALUE_NOT_PLACED;
    v.layer = p->current_layer;
    p->values[p->n_values] = v;
    return (value_id)p->n_values++;
}

value_id program_value(program *p, const char *name, dtype t, shape s, role r, section where) {
    return add_value(p, (value){.name = name, .type = t, .shape = s, .role = r, .section = where});
}

value_id program_persistent(program *p, const char *name, dtype t, shape s, role r) {
    return add_value(p, (value){.name = name, .type = t, .shape = s, .role = r, .persistent = true});
}

value_id program_generation_value(program *p, const char *name, dtype t, shape s, role r) {
    return add_value(
        p, (value){.name = name, .type = t, .shape = s, .role = r, .section = SECTION_PREFILL, .of_generation = true});
}

value_id program_view(program *p, const char *name, value_id of, size_t byte_offset, shape s) {
    value v = *program_get(p, of);
    ASSERT(byte_offset + shape_bytes(&s, v.type) <= value_bytes(&v));
    v.name = name;
    v.shape = s;
    v.view_of = of;
    v.view_offset = byte_offset;
    v.gradient = NO_VALUE;
    return add_value(p, v);
}

op *program_append(program *p, const op *o) {
    p->ops = array_grow(p->ops, &p->ops_capacity, p->n_ops + 1, sizeof *p->ops);
    p->ops[p->n_ops] = *o;
    return &p->ops[p->n_ops++];
}

op *program_emit(program *p, op_kind kind, section where) {
    return program_append(p, &(op){.kind = kind, .section = where, .layer = p->current_layer});
}

void op_in(op *o, int i, value_id v) {
    ASSERT(i < op_input_count(o->kind));
    o->in[i] = v;
}

void op_out(op *o, int i, value_id v) {
    ASSERT(i < op_output_count(o->kind));
    o->out[i] = v;
}

op op_instead(const op *o, op_kind kind) {
    op other = *o;
    other.kind = kind;
    memset(other.in, 0, sizeof other.in);
    memset(other.out, 0, sizeof other.out);
    return other;
}

value *program_get(const program *p, value_id id) {
    ASSERT(id != NO_VALUE && id < p->n_values);
    return &p->values[id];
}

size_t value_bytes(const value *v) { return shape_bytes(&v->shape, v->type); }

value_id program_root(const program *p, value_id id, size_t *byte_offset) {
    size_t at = 0;
    while (p->values[id].view_of != NO_VALUE) {
        at += p->values[id].view_offset;
        id = p->values[id].view_of;
    }
    if (byte_offset) *byte_offset = at;
    return id;
}

tier program_tier(const program *p, value_id id) { return p->values[program_root(p, id, NULL)].tier; }

value_id program_find(const program *p, const char *name) {
    for (value_id id = 1; id < p->n_values; id++)
        if (strcmp(p->values[id].name, name) == 0) return id;
    return NO_VALUE;
}

void program_section(const program *p, section s, size_t *first, size_t *end) {
    size_t i = 0;
    while (i < p->n_ops && p->ops[i].section != s) i++;
    *first = i;
    while (i < p->n_ops && p->ops[i].section == s) i++;
    *end = i;
}

op *program_take_ops(program *p, size_t *n_ops) {
    op *ops = p->ops;
    *n_ops = p->n_ops;
    p->ops = NULL;
    p->n_ops = p->ops_capacity = 0;
    /* The list that is appended next is seldom shorter: growing it from nothing would copy it ten times. */
    p->ops = array_grow(p->ops, &p->ops_capacity, *n_ops + *n_ops / 4, sizeof *p->ops);
    return ops;
}
