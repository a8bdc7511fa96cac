/* op_cost.c - what an op costs: its arithmetic, the bytes that it moves, the bytes that it sends to other ranks, from the row
 * cost_<OP> that stands beside the op's rules (rules.h). */
#include "program/rules.h"

static const op_cost *const costs[OP_COUNT] = {
#define OP(id, in, out, inplace, scratch, summary) [OP_##id] = &cost_##id,
#include "program/ops.def"
#undef OP
};

double op_noise(const program *p, const op *o) {
    double n = 0;
    if (o->kind != OP_ADAMW && o->kind != OP_ACCUMULATE) return 0;
    if (o->kind == OP_ADAMW && o->out[ADAMW_MASTER]) return 0; /* with a master everything is rounded to nearest */
    for (int i = 0; i < op_output_count(o->kind); i++)
        if (o->out[i] && program_get(p, o->out[i])->type == DTYPE_BF16) n += count_of(p, o->out[i]);
    return n;
}

double op_flops(const program *p, const op *o) {
    const op_cost *r = costs[o->kind];
    if (r->flops) return r->flops(p, o);
    return r->per_element * count_of(p, r->is_output ? o->out[r->operand] : o->in[r->operand]);
}

double op_flops_again(const program *p, const op *o) {
    if (o->again) return op_flops(p, o);
    return o->kind == OP_SWIGLU_BWD && o->out[SWIGLU_BWD_Y] ? SWIGLU_FLOPS * count_of(p, o->in[SWIGLU_BWD_GU]) : 0;
}

double op_bytes(const program *p, const op *o) {
    double n = 0;
    for (int i = 0; i < op_input_count(o->kind); i++) n += bytes_of(p, o->in[i]);
    for (int i = 0; i < op_output_count(o->kind); i++)
        n += bytes_of(p, o->out[i]) * (op_output_updates(o->kind, i) ? 2 : 1);
    return costs[o->kind]->saved ? n - costs[o->kind]->saved(p, o) : n;
}

double op_sent(const program *p, const op *o) { return costs[o->kind]->sent ? costs[o->kind]->sent(p, o) : 0; }
