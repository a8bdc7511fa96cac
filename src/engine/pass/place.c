/* place.c - put chosen layers on chosen devices of one process.
 *
 * An op runs on the device of its layer; the embedding and the head (last norm, unembedding, loss) have devices of their own.
 * A value is stored where it is written; a parameter, its gradient and its states where the parameter is first used (a tied
 * embedding: with the embedding). Values that the host writes (tokens, scalars) and reads (sums, clip factor) stay on the
 * first device. localize writes the copies between devices.
 *
 * Beside a GPU a part on the cpu runs where host memory is (TIER_HOST), by the kernels and on the stream that serve offloaded
 * states. Refused: several GPUs, which take a process each, and several cpus beside a GPU, which would share the cores. */
#include "pass/pass.h"

#include <stdlib.h>

tier place_tier(int device, const target *t) {
    if (device < PLACE_CPU) return TIER_DEVICE;
    return t->discrete ? TIER_HOST : tier_of_device(device - PLACE_CPU);
}

bool place_splits(const place_options *l, int64_t n_layers, const target *t) {
    bool any = place_tier(l->embed, t) != TIER_DEVICE || place_tier(l->head, t) != TIER_DEVICE;
    for (int64_t i = 0; i < MIN(n_layers, PLACE_LAYERS_MAX); i++) any |= place_tier(l->layers[i], t) != TIER_DEVICE;
    return any;
}

static status check_device(int device, const target *t) {
    if (device == PLACE_CUDA && !t->discrete)
        return ERR(ERR_INPUT,
                   "memory.place: found cuda with device %s, expected cpu:0 to cpu:%d; for a part on a GPU set "
                   "run.device=cuda",
                   t->name, DEVICES_MAX - 1);
    if (device > PLACE_CPU && t->discrete)
        return ERR(
            ERR_INPUT,
            "memory.place: found cpu:%d with device %s, expected cuda or cpu: beside a GPU all cores of the host "
            "are one device",
            device - PLACE_CPU, t->name);
    return OK;
}

/* An attention kernel that keeps a head in registers has a limit; the host has none. */
static status check_heads(const pass_options *options) {
    const net_source *c = &options->net->source;
    const target *t = options->target;
    if (!t->head_dim_most || c->head_dim <= t->head_dim_most) return OK;
    for (int64_t i = 0; i < c->n_layers; i++)
        if (i >= PLACE_LAYERS_MAX || place_tier(options->place.layers[i], t) == TIER_DEVICE)
            return ERR(ERR_INPUT,
                       "model.head_dim: found %lld, expected at most %lld on device %s; set run.device=cpu, or put all "
                       "layers on the cpu with memory.place",
                       (long long)c->head_dim, (long long)t->head_dim_most, t->name);
    return OK;
}

static status check(const pass_options *options) {
    const place_options *l = &options->place;
    int64_t n = options->net->source.n_layers;
    TRY(check_device(l->embed, options->target));
    TRY(check_device(l->head, options->target));
    for (int64_t i = 0; i < MIN(n, PLACE_LAYERS_MAX); i++) TRY(check_device(l->layers[i], options->target));
    if (n > PLACE_LAYERS_MAX && place_splits(l, n, options->target))
        return ERR(ERR_INPUT, "memory.place: found a model of %lld layers, expected at most %d", (long long)n,
                   PLACE_LAYERS_MAX);
    return check_heads(options);
}

static tier op_place(const op *o, const pass_options *options) {
    const place_options *l = &options->place;
    if (o->section == SECTION_START) return TIER_DEVICE;
    bool embeds = op_class_of(o->kind) == OP_CLASS_EMBEDDING;
    int device = o->layer >= 0 ? l->layers[o->layer] : embeds ? l->embed : l->head;
    return place_tier(device, options->target);
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
    const net *m = options->net;
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
    TRY(check(options));
    if (!place_splits(&options->place, options->net->source.n_layers, options->target)) return OK;
    for (size_t i = 0; i < p->n_ops; i++)
        if (p->ops[i].section != SECTION_UPDATE) p->ops[i].at = op_place(&p->ops[i], options);
    place_params(p, options, step);
    for (size_t i = 0; i < p->n_ops; i++) {
        op *o = &p->ops[i];
        if (o->section != SECTION_UPDATE || !op_in_slices(o)) {
            place_outputs(p, o);
            continue;
        }
        /* The update runs beside the gradient, and so do states; sums of all devices are added where CLIP runs. */
        o->at = program_tier(p, o->in[op_rows_input(o->kind)]);
        for (int k = 0; k < op_output_count(o->kind); k++)
            if (o->out[k] && op_output_updates(o->kind, k)) p->values[o->out[k]].tier = o->at;
    }
    return OK;
}
