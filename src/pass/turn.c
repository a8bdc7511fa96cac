/* turn.c - the update of a step and, behind it, the first micro-batch of the next: SECTION_TURN.
 *
 * Where optimizer states live on the host AdamW runs on its cores, layer after layer from the first, and the device has
 * nothing to do. The next forward needs these layers in the same order. As one section the two overlap by themselves: waits
 * come from the bytes that ops touch, so a layer's forward waits for its own parameters and not for the last ones.
 *
 * A turn repeats UPDATE, PREPARE and MICRO in that order, over their own values at their own places: what each of them left
 * behind the others find, what it no longer needs the others may take. So it comes behind all that add values, layout
 * has nothing to place for it, and the only bytes it costs are the scalars of a second step: the update is told of one, the
 * micro-batch of the next.
 *
 * Not with fp16, where the update decides on the next loss scale, nor in a pipeline, whose MICRO is a whole step. */
#include "pass/pass.h"

#include <stdlib.h>

static bool is_pipeline(const pass_context *c) { return mesh_size(&c->mesh, AXIS_PIPELINE) > 1; }

static status check(const pass_context *c) {
    if (c->precision == PRECISION_FP16)
        return ERR(ERR_INPUT,
                   "memory.overlap_update: found true with precision fp16, whose loss scale for the next step is known "
                   "only behind the update; set memory.overlap_update to auto or false, or precision to bf16");
    if (is_pipeline(c))
        return ERR(ERR_INPUT,
                   "memory.overlap_update: found true with parallel.pipeline %d, expected 1: stages run all "
                   "micro-batches of a step together; set memory.overlap_update to auto or false",
                   mesh_size(&c->mesh, AXIS_PIPELINE));
    return OK;
}

static bool updates_on_host(const program *p) {
    for (size_t i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == OP_ADAMW && p->ops[i].at == TIER_HOST) return true;
    return false;
}

/* On a CPU update and forward would share the cores. */
static bool helps(const program *p, const pass_context *c) {
    return c->target->discrete && c->precision != PRECISION_FP16 && !is_pipeline(c) && updates_on_host(p);
}

static void repeat(program *p, section s, const op *ops, size_t n_ops, value_id scalars, value_id by) {
    for (size_t i = 0; i < n_ops; i++) {
        if (ops[i].section != s) continue;
        op o = ops[i];
        o.section = SECTION_TURN;
        for (int k = 0; k < op_input_count(o.kind); k++)
            if (o.in[k] == scalars) o.in[k] = by;
        program_append(p, &o);
    }
}

status pass_turn(program *p, pass_context *c) {
    bool trains = c->grads; /* evaluation and generation have no step */
    if (trains && c->overlap_update == OVERLAP_TRUE) TRY(check(c));
    if (!trains || c->overlap_update == OVERLAP_FALSE) return OK;
    if (c->overlap_update == OVERLAP_AUTO && !helps(p, c)) return OK;
    value_id one = c->model->scalars;
    c->turn_scalars = program_persistent(p, "turn.scalars", DTYPE_U8, SHAPE(sizeof(step_scalars)), ROLE_INPUT);
    p->values[c->turn_scalars].tier = p->values[one].tier;
    size_t n_ops, i = 0;
    op *ops = program_take_ops(p, &n_ops);
    for (; i < n_ops && ops[i].section < SECTION_TURN; i++) program_append(p, &ops[i]);
    repeat(p, SECTION_UPDATE, ops, n_ops, one, one);
    repeat(p, SECTION_PREPARE, ops, n_ops, one, c->turn_scalars);
    repeat(p, SECTION_MICRO, ops, n_ops, one, c->turn_scalars);
    for (; i < n_ops; i++) program_append(p, &ops[i]);
    free(ops);
    return OK;
}
