/* lanes.c - weights that a program only reads, in the order in which the processor's products take them.
 *
 * In: a program that generates and does not train, on the CPU (model.lanes). Out: the same, where LINEAR, UNEMBED_LOGITS, EMBED and
 * those over codes say of their weight that it is in the order of lanes. No value changes its size: whoever loads the program puts the weights into
 * that order when they are complete (exec_order_weights), and nothing may read them otherwise from then on.
 *
 * A weight that any other op reads or writes stays as it is: adapters, which are changed while the program is open, vectors,
 * position tables, and what DEQUANTIZE writes. Runs behind base, so that codes are seen as such. */
#include "pass/pass.h"

#include <stdlib.h>

/* The input of an op that may be in the order of lanes; -1: none. A product of training has no rows of its own. */
static int weight_input(const op *o) {
    return o->attr.adapter || (o->kind == OP_LINEAR && !o->rows) ? -1 : op_lanes_input(o->kind);
}

static bool may_be(const program *p, value_id v) {
    const value *x = program_get(p, v);
    return x->persistent && x->role == ROLE_PARAM && x->shape.rank == 2 && program_root(p, v, NULL) == v;
}

status pass_lanes(program *p, const pass_options *options, step_interface *step) {
    (void)step;
    if (!options->net->lanes) return OK;
    bool *is_read_otherwise = mem_alloc(p->n_values * sizeof *is_read_otherwise);
    for (size_t i = 0; i < p->n_ops; i++) {
        const op *o = &p->ops[i];
        for (int k = 0; k < op_input_count(o->kind); k++)
            if (o->in[k] && k != weight_input(o)) is_read_otherwise[program_root(p, o->in[k], NULL)] = true;
        for (int k = 0; k < op_output_count(o->kind); k++)
            if (o->out[k]) is_read_otherwise[program_root(p, o->out[k], NULL)] = true;
    }
    for (size_t i = 0; i < p->n_ops; i++) {
        op *o = &p->ops[i];
        int k = weight_input(o);
        o->attr.lanes = k >= 0 && may_be(p, o->in[k]) && !is_read_otherwise[o->in[k]];
    }
    free(is_read_otherwise);
    return OK;
}
