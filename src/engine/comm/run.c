/* run.c - an op of the program as a collective of its group. */
#include "comm/comm_state.h"

/* Scratch for parts that arrive as messages: a good part of a megabyte from every rank of a small group, and one element
 * from every rank of the largest. */
#define WORK_LEAST ((size_t)64 << 10)
#define WORK_MOST ((size_t)2 << 20)

size_t comm_work_bytes(const program *p, const op *o) {
    if (!op_sums_ranks(o->kind) || o->attr.group_size < 2) return 0;
    return MIN(MAX(value_bytes(program_get(p, o->in[MESSAGE_SENT])), WORK_LEAST), WORK_MOST);
}

/* A device sums in one turn what it can, because each turn waits for all ranks. */
#define LINK_WORK_MOST ((size_t)64 << 20)

size_t comm_link_work_bytes(const program *p, const op *o) {
    if (!op_sums_ranks(o->kind) || o->attr.group_size < 2) return 0;
    const value *x = program_get(p, o->in[MESSAGE_SENT]);
    size_t n_ranks = (size_t)o->attr.group_size, element = dtype_bytes(x->type);
    size_t blocks = (value_bytes(x) / element + n_ranks * NORM_BLOCK - 1) / (n_ranks * NORM_BLOCK); /* of each rank */
    size_t most = LINK_WORK_MOST / (n_ranks * NORM_BLOCK * element);
    return n_ranks * MAX(MIN(blocks, most), (size_t)1) * NORM_BLOCK * element;
}

part_sum reduce_sum(comm *c, const collective *k) {
    const step_scalars *s = k->scalars;
    return (part_sum){.parts = c->parts,
                      .n_parts = k->n,
                      .type = k->type,
                      .out = k->y,
                      .from_out = s && s->micro > 0,
                      .noise = k->type == DTYPE_BF16 ? s : NULL,
                      .op = k->op};
}

void reduce_slice(const collective *k, int index, size_t *first, size_t *n) {
    size_t count = k->x_bytes / dtype_bytes(k->type), i = (size_t)index, ranks = (size_t)k->n;
    *first = count / ranks * i + MIN(i, count % ranks);
    *n = count / ranks + (i < count % ranks);
}

/* A group of one: what the others bring is nothing. */
static void run_alone(comm *c, const collective *k) {
    if (k->kind == OP_REDUCE_SCATTER) {
        const void *part = k->x;
        part_sum s = reduce_sum(c, k);
        s.parts = &part;
        part_sum_run(&s, 0, k->y_bytes / dtype_bytes(k->type));
    } else if (k->x != k->y) {
        memcpy(k->y, k->x, k->y_bytes);
    }
}

uint64_t collective_bytes_taken(const collective *k) {
    uint64_t others = (uint64_t)k->n - 1;
    size_t first, n;
    switch (k->kind) {
    case OP_ALL_GATHER: return others * k->x_bytes;
    case OP_REDUCE_SCATTER: return others * k->y_bytes;
    case OP_ALL_TO_ALL: return others * (k->x_bytes / (uint64_t)k->n);
    case OP_SHIFT: return k->x_bytes;
    case OP_ALL_REDUCE:
        reduce_slice(k, k->index, &first, &n);
        return others * n * dtype_bytes(k->type) + k->y_bytes - n * dtype_bytes(k->type);
    default: return k->kind == OP_RECV ? k->y_bytes : 0;
    }
}

static status run_among(comm *c, const collective *k) {
    bool done = false;
    bool local = op_is_one_to_one(k->kind) ? !c->options.messages_only && c->node_of[k->peer] == c->node_of[c->rank]
                                           : c->group_is_local[k->axis];
    TRY(comm_check(c));
    if (local) TRY(window_run(c, k, &done));
    if (!done) TRY(messages_run(c, k));
    *(done ? &c->traffic.read : &c->traffic.received) += collective_bytes_taken(k);
    return OK;
}

comm_traffic comm_traffic_so_far(const comm *c) { return c->traffic; }

status comm_run(comm *c, const kernel_call *call) {
    const op *o = call->op;
    const value *x = o->in[MESSAGE_SENT] ? call_in(call, MESSAGE_SENT) : NULL;
    const value *y = o->out[MESSAGE_RECEIVED] ? call_out(call, MESSAGE_RECEIVED) : NULL;
    const char *tensor = y ? y->name : x->name;
    char what[160];
    collective k = {.kind = o->kind,
                    .axis = o->attr.axis,
                    .n = c->mesh.size[o->attr.axis],
                    .index = c->mesh.index[o->attr.axis],
                    .x = call->in[MESSAGE_SENT],
                    .y = call->out[MESSAGE_RECEIVED],
                    .x_bytes = x ? value_bytes(x) : 0,
                    .y_bytes = y ? value_bytes(y) : 0,
                    .type = (x ? x : y)->type,
                    .scalars = o->kind == OP_REDUCE_SCATTER ? call->in[REDUCE_SCATTER_SCALARS] : NULL,
                    .op = o,
                    .work = call->work,
                    .work_bytes = o->work ? value_bytes(&call->program->values[o->work]) : 0,
                    .wait = {what, clock_ns()}};
    snprintf(what, sizeof what, "%s of '%s'", op_name(o->kind), tensor);
    if (o->attr.group_size != k.n)
        return ERR(ERR_BUG, "%s: the program is for %d ranks on the %s axis, the mesh has %d", what, o->attr.group_size,
                   axis_name(k.axis), k.n);
    if (k.n == 1) {
        run_alone(c, &k);
        return OK;
    }
    if (op_is_one_to_one(o->kind)) k.peer = comm_rank_at(c, k.axis, o->attr.peer), k.tag = o->attr.tag;
    state_note_exchange(c, (uint32_t)o->kind + 1, tensor);
    status rc = run_among(c, &k);
    state_note_exchange(c, 0, NULL);
    if (rc != OK) comm_fail(c, rc, error_message());
    return rc;
}
