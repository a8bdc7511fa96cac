/* adapters.c - adapters inside the sums of the products beside them.
 *
 * In: a training section where LORA_UP adds an adapter to what a LINEAR wrote, and a LINEAR_DX adds what the LINEAR_DX of an adapter
 * wrote. Out: one LINEAR and one LINEAR_DX with both operands of the adapter. A kernel that has the sums in registers adds the adapter as
 * a few more steps of its sum: y = [x | xa] [w | up]^T. Before, all of y was read and written once more, and all of dx: 5 % of a
 * 7B's step.
 *
 * The sum is rounded once less, so bits change. That is why it is decided here, from the program alone and before recompute, chunk and all
 * that moves values: whatever technique of memory follows, the same ops compute. It is not done for few tokens, where a library's
 * smaller tiles are faster, nor on a processor, whose products gain nothing. */
#include "pass/pass.h"

#include <stdlib.h>

enum { TOKENS_LEAST = 1024 };

typedef struct joiner {
    const program *p;
    const op *ops;
    size_t n_ops;
    unsigned *readers; /* per value */
    size_t *writer;    /* ... and 1 + the op that writes it in the training section */
    bool *is_dropped;  /* per op: another does its work */
} joiner;

static void find_uses(joiner *j) {
    for (size_t i = 0; i < j->n_ops; i++) {
        const op *o = &j->ops[i];
        for (int k = 0; k < op_input_count(o->kind); k++) j->readers[o->in[k]]++;
        for (int k = 0; k < op_output_count(o->kind); k++)
            if (o->section == SECTION_MICRO) j->writer[o->out[k]] = i + 1;
    }
}

/* The op of this kind that writes v for `reader` alone; NULL: there is none. */
static const op *written_for(const joiner *j, value_id v, const op *reader, op_kind kind) {
    const op *o = v && j->writer[v] ? &j->ops[j->writer[v] - 1] : NULL;
    const value *a = v ? program_get(j->p, v) : NULL; /* of the shape of what the reader writes */
    bool fits = o && o->kind == kind && o->layer == reader->layer && j->readers[v] == 1 && !o->rows && !reader->rows &&
                !a->persistent;
    return fits && dtype_bytes(a->type) == 2 && a->shape.dim[0] >= TOKENS_LEAST ? o : NULL;
}

static bool join_up(joiner *j, op *o) {
    if (o->kind != OP_LORA_UP || o->section != SECTION_MICRO) return false;
    const op *linear = written_for(j, o->in[LORA_UP_BASE], o, OP_LINEAR);
    if (!linear || linear->attr.adapter || linear->in[LINEAR_XA]) return false;
    op whole = op_instead(o, OP_LINEAR);
    op_in(&whole, LINEAR_X, linear->in[LINEAR_X]), op_in(&whole, LINEAR_W, linear->in[LINEAR_W]);
    op_in(&whole, LINEAR_B, linear->in[LINEAR_B]);
    op_in(&whole, LINEAR_XA, o->in[LORA_UP_XA]), op_in(&whole, LINEAR_UP, o->in[LORA_UP_B]);
    op_out(&whole, LINEAR_Y, o->out[LORA_UP_Y]);
    j->is_dropped[linear - j->ops] = true;
    *o = whole;
    return true;
}

static bool join_dx(joiner *j, op *o) {
    if (o->kind != OP_LINEAR_DX || o->section != SECTION_MICRO || o->attr.adapter) return false;
    const op *small = written_for(j, o->in[LINEAR_DX_ADD], o, OP_LINEAR_DX);
    if (!small || !small->attr.adapter || small->in[LINEAR_DX_ADD]) return false;
    op_in(o, LINEAR_DX_ADD, NO_VALUE);
    op_in(o, LINEAR_DX_DXA, small->in[LINEAR_DX_DY]), op_in(o, LINEAR_DX_DOWN, small->in[LINEAR_DX_W]);
    j->is_dropped[small - j->ops] = true;
    return true;
}

status pass_adapters(program *p, const pass_options *options, step_interface *step) {
    if (!options->target->discrete || !step->grads) return OK;
    size_t n_ops;
    op *ops = program_take_ops(p, &n_ops), *joined = mem_alloc((n_ops + 1) * sizeof *joined);
    joiner j = {.p = p, .ops = ops, .n_ops = n_ops};
    j.readers = mem_alloc(p->n_values * sizeof *j.readers);
    j.writer = mem_alloc(p->n_values * sizeof *j.writer);
    j.is_dropped = mem_alloc((n_ops + 1) * sizeof *j.is_dropped);
    find_uses(&j);
    for (size_t i = 0; i < n_ops; i++) {
        joined[i] = ops[i];
        if (!join_up(&j, &joined[i])) join_dx(&j, &joined[i]);
    }
    for (size_t i = 0; i < n_ops; i++)
        if (!j.is_dropped[i]) program_append(p, &joined[i]);
    free(j.readers);
    free(j.writer);
    free(j.is_dropped);
    free(joined);
    free(ops);
    return OK;
}
