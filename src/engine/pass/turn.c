/* turn.c - the update of a step followed by the first micro-batch of the next, as one section: SECTION_TURN.
 *
 * With optimizer states on the host, AdamW runs on its cores, layer after layer from the first, while the device is idle. The
 * next forward needs the layers in the same order. In one section the two overlap: waits come from the bytes that ops touch,
 * so a layer's forward waits only for its own parameters.
 *
 * A turn repeats UPDATE, PREPARE and MICRO in that order, over the same values at the same addresses, so they read each
 * other's results and reuse each other's free bytes. So it comes after all passes that add values, layout places nothing for
 * it, and it costs only the scalars of a second step: the update needs those of one step, the micro-batch those of the next.
 *
 * One thing differs: the micro-batch is the first of a step, so its gradients are not added. Where accumulators are on the
 * host and gradients are copied there to be added, they are copied straight into the accumulators, and the host has nothing
 * to do.
 *
 * Not with fp16, where the update decides the next loss scale, nor in a pipeline, whose MICRO is a whole step. */
#include "pass/pass.h"

#include <stdlib.h>

static bool is_pipeline(const pass_options *options) { return mesh_size(&options->mesh, AXIS_PIPELINE) > 1; }

static status check(const pass_options *options) {
    if (options->choice.precision == PRECISION_FP16)
        return ERR(ERR_INPUT,
                   "memory.overlap_update: found true with precision fp16, whose loss scale for the next step is known "
                   "only after the update; set memory.overlap_update to auto or false, or precision to bf16");
    if (options->net->z)
        return ERR(
            ERR_INPUT,
            "memory.overlap_update: found true with preference.loss kto over several micro-batches or data ranks, "
            "whose z is computed between the update and the first micro-batch; set memory.overlap_update to auto "
            "or false");
    if (is_pipeline(options))
        return ERR(ERR_INPUT,
                   "memory.overlap_update: found true with parallel.pipeline %d, expected 1: stages run all "
                   "micro-batches of a step together; set memory.overlap_update to auto or false",
                   mesh_size(&options->mesh, AXIS_PIPELINE));
    return OK;
}

static bool updates_on_host(const program *p) {
    for (size_t i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == OP_ADAMW && p->ops[i].at == TIER_HOST) return true;
    return false;
}

/* On a CPU the update and the forward would share the cores, so overlap saves nothing. */
static bool is_faster(const program *p, const pass_options *options) {
    return options->target->discrete && options->choice.precision != PRECISION_FP16 && !is_pipeline(options) &&
           updates_on_host(p);
}

static bool is_accumulation(const program *p, const op *o) {
    return o->kind == OP_ACCUMULATE &&
           program_get(p, o->in[ACCUMULATE_X])->type == program_get(p, o->out[ACCUMULATE_ACC])->type &&
           program_get(p, program_root(p, o->out[ACCUMULATE_ACC], NULL))->persistent;
}

/* Counts the uses of a value by ops, up to MANY; a use of a part counts as MANY. */
enum { COPIED_AND_ADDED = 2, MANY };
static void count_uses(const program *p, value_id v, uint8_t *n_uses) {
    if (v == NO_VALUE) return;
    n_uses[v] = (uint8_t)MIN(n_uses[v] + 1, MANY);
    for (value_id of = program_get(p, v)->view_of; of; of = program_get(p, of)->view_of) n_uses[of] = MANY;
}

/* For each value that MICRO copies only to add it to an accumulator: that accumulator; else NO_VALUE. */
static value_id *find_sums(const program *p, const op *ops, size_t n_ops) {
    value_id *sum = mem_alloc(p->n_values * sizeof *sum);
    uint8_t *n_uses = mem_alloc(p->n_values);
    bool *copied = mem_alloc(p->n_values * sizeof *copied);
    for (size_t i = 0; i < n_ops; i++) {
        const op *o = &ops[i];
        if (o->section != SECTION_MICRO) continue;
        for (int k = 0; k < op_input_count(o->kind); k++) count_uses(p, o->in[k], n_uses);
        for (int k = 0; k < op_output_count(o->kind); k++) count_uses(p, o->out[k], n_uses);
        if (o->kind == OP_COPY) copied[o->out[COPY_Y]] = true;
        if (is_accumulation(p, o)) sum[o->in[ACCUMULATE_X]] = o->out[ACCUMULATE_ACC];
    }
    for (value_id v = 0; v < p->n_values; v++)
        if (!copied[v] || n_uses[v] != COPIED_AND_ADDED) sum[v] = NO_VALUE;
    free(n_uses);
    free(copied);
    return sum;
}

static void repeat(program *p, section s, const op *ops, size_t n_ops, value_id scalars, value_id by,
                   const value_id *sum) {
    for (size_t i = 0; i < n_ops; i++) {
        if (ops[i].section != s) continue;
        op o = ops[i];
        o.section = SECTION_TURN;
        for (int k = 0; k < op_input_count(o.kind); k++)
            if (o.in[k] == scalars) o.in[k] = by;
        if (sum && o.kind == OP_ACCUMULATE && sum[o.in[ACCUMULATE_X]]) continue;
        if (sum && o.kind == OP_COPY && sum[o.out[COPY_Y]]) o.out[COPY_Y] = sum[o.out[COPY_Y]];
        program_append(p, &o);
    }
}

status pass_turn(program *p, const pass_options *options, step_interface *step) {
    bool trains = step->grads; /* evaluation and generation have no step */
    if (trains && options->choice.overlap_update == OVERLAP_TRUE) TRY(check(options));
    if (!trains || options->choice.overlap_update == OVERLAP_FALSE) return OK;
    if (options->choice.overlap_update == OVERLAP_AUTO && !is_faster(p, options)) return OK;
    value_id one = options->net->scalars;
    step->turn_scalars = program_persistent(p, "turn.scalars", DTYPE_U8, SHAPE(sizeof(step_scalars)), ROLE_INPUT);
    p->values[step->turn_scalars].tier = p->values[one].tier;
    size_t n_ops, i = 0;
    op *ops = program_take_ops(p, &n_ops);
    value_id *sum = find_sums(p, ops, n_ops);
    for (; i < n_ops && ops[i].section < SECTION_TURN; i++) program_append(p, &ops[i]);
    repeat(p, SECTION_UPDATE, ops, n_ops, one, one, NULL);
    repeat(p, SECTION_PREPARE, ops, n_ops, one, step->turn_scalars, NULL);
    repeat(p, SECTION_MICRO, ops, n_ops, one, step->turn_scalars, sum);
    for (; i < n_ops; i++) program_append(p, &ops[i]);
    free(sum);
    free(ops);
    return OK;
}
