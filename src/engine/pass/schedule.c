/* schedule.c - give every op its stream and its scratch.
 *
 * Copies run on the stream of their direction, messages between ranks on one of their own, kernels on the compute stream, or
 * on the host's where they run there. On a machine with one stream the list order is the schedule; autodiff already writes
 * each gradient's consumer right behind its producer. */
#include "pass/pass.h"

static stream stream_of(const program *p, const op *o) {
    if (op_is_comm(o->kind)) return STREAM_COMM;
    if (o->kind != OP_COPY) return o->at == TIER_HOST ? STREAM_HOST : STREAM_COMPUTE;
    tier from = program_tier(p, o->in[COPY_X]), to = program_tier(p, o->out[COPY_Y]);
    if (from == to) return to == TIER_HOST ? STREAM_HOST : STREAM_COMPUTE;
    if (from == TIER_NVME) return STREAM_READ;
    if (to == TIER_NVME) return STREAM_WRITE;
    return tier_is_device(to) ? STREAM_H2D : STREAM_D2H;
}

status pass_schedule(program *p, const pass_options *options, step_interface *step) {
    for (size_t i = 0; i < p->n_ops; i++) p->ops[i].stream = stream_of(p, &p->ops[i]);
    return OK;
}

/* The scratch memory of a kernel depends on the machine (threads, tiles), so the target gives its size and the plan counts it
 * like any other value. */
status pass_workspace(program *p, const pass_options *options, step_interface *step) {
    const target *t = options->target;
    for (size_t i = 0; i < p->n_ops; i++) {
        const op *o = &p->ops[i];
        bool on_host = o->at == TIER_HOST && t->host_work_bytes;
        size_t n = 0;
        if (op_is_comm(o->kind)) n = t->comm_bytes ? t->comm_bytes(p, o) : 0;
        else if (t->work_bytes) n = (on_host ? t->host_work_bytes : t->work_bytes)(p, o, t->n_threads);
        if (n == 0) continue;
        char name[64];
        snprintf(name, sizeof name, "work.%zu.%s", i, op_name(o->kind));
        p->current_layer = o->layer;
        role r = op_is_comm(o->kind) ? ROLE_COMM : ROLE_WORK;
        value_id w = program_value(p, name, DTYPE_U8, SHAPE((int64_t)n), r, o->section);
        p->values[w].tier = o->at;
        p->ops[i].work = w;
    }
    p->current_layer = -1;
    return OK;
}
