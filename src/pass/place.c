/* place.c - put chosen layers on chosen devices of one process.
 *
 * An op runs on the device of its layer; the embedding and the head (last norm, unembedding, loss) have devices of their own.
 * A value is stored where it is written; a parameter, its gradient and its states where the parameter is first used (a tied
 * embedding: with the embedding). Values that the host writes (tokens, scalars) and reads (sums, clip factor) stay on the
 * first device. localize writes the copies between devices. */
#include "pass/pass.h"

#include <stdlib.h>

static bool is_embedding_op(op_kind k) {
    return k == OP_EMBED || k == OP_EMBED_BWD || k == OP_EMBED_BWD_ADD || k == OP_POSITION_BWD;
}

static tier op_place(const op *o, const place_options *l) {
    if (o->section == SECTION_START) return TIER_DEVICE;
    if (o->layer >= 0) return tier_of_device(l->layers[o->layer]);
    return tier_of_device(is_embedding_op(o->kind) ? l->embed : l->head);
}

static void place_outputs(program *p, const op *o) {
    for (int k = 0; k < op_output_count(o->kind); k++) {
        if (!o->out[k]) continue;
        value *v = &p->values[program_root(p, o->out[k], NULL)];
        if (!v->persistent) v->tier = o->at;
    }
}

/* The device of each parameter: that of the first op that reads it. */
static void place_params(program *p, const pass_options *options, const step_interface *step) {
    const model *m = options->model;
    bool *known = mem_alloc(p->n_values * sizeof *known);
    for (size_t i = 0; i < p->n_ops; i++)
        for (int k = 0; k < op_input_count(p->ops[i].kind); k++) {
            value_id v = p->ops[i].in[k];
            if (!v || known[v] || p->values[v].role != ROLE_PARAM) continue;
            known[v] = true;
            p->values[v].tier = p->ops[i].at;
        }
    free(known);
    for (size_t i = 0; i < m->n_params; i++)
        if (step->grads[i]) p->values[step->grads[i]].tier = p->values[m->params[i].value].tier;
}

status pass_place(program *p, const pass_options *options, step_interface *step) {
    const place_options *l = &options->place;
    if (l->n_devices <= 1) return OK;
    if (l->n_devices > DEVICES_MAX)
        return ERR(ERR_INPUT, "memory.place: found %d devices, expected at most %d", l->n_devices, DEVICES_MAX);
    if (options->target->n_devices && l->n_devices > options->target->n_devices)
        return ERR(
            ERR_INPUT,
            "memory.place: found cpu:%d with device %s, expected all layers on device 0: one process drives one "
            "GPU (several GPUs: one rank each, parallel.pipeline); leave memory.place out, or set run.device=cpu",
            l->n_devices - 1, options->target->name);
    if (options->model->config.n_layers > PLACE_LAYERS_MAX)
        return ERR(ERR_INPUT, "memory.place: found a model of %lld layers, expected at most %d",
                   (long long)options->model->config.n_layers, PLACE_LAYERS_MAX);
    for (size_t i = 0; i < p->n_ops; i++)
        if (p->ops[i].section != SECTION_UPDATE) p->ops[i].at = op_place(&p->ops[i], l);
    place_params(p, options, step);
    for (size_t i = 0; i < p->n_ops; i++) {
        op *o = &p->ops[i];
        if (o->kind == OP_GRAD_SUMSQ) {
            o->at = program_tier(p, o->in[GRAD_SUMSQ_G]);
            continue; /* the sums of all devices are added where CLIP runs */
        }
        if (o->kind == OP_ADAMW) {
            o->at = program_tier(p, o->in[ADAMW_G]);
            for (int k = ADAMW_MASTER; k < op_output_count(o->kind); k++)
                if (o->out[k]) p->values[o->out[k]].tier = o->at;
        }
        place_outputs(p, o);
    }
    return OK;
}
