/* exec.c - open a planned program: every address is computed once, so that a run is a loop over kernel calls (run.c).
 *
 * exec_open resolves each operand of each op (arena + offset of the root value + offsets of its views) into the
 * kernel_call that the kernel gets. Mistakes of the layout - a value without an address, one that exceeds its arena,
 * too little scratch, an op without a kernel - are refused here with the op's name, so that a run has nothing left to
 * check.
 *
 * The ledger does not rely on the layout: it takes the highest end of the pointers that kernels and copies really got.
 * The end of an op's pointers never changes, so it is computed once and a run only takes a maximum.
 *
 * The nvme tier is a file (disk.c): an operand there has an offset, not an address, and only copies may have one. */
#include "exec/exec_state.h"

#include <stdlib.h>

enum { LABEL_BYTES = 256, SCRATCH_ALIGNMENT = 64 };

static char *op_label(char buf[LABEL_BYTES], const program *p, size_t index) {
    const op *o = &p->ops[index];
    snprintf(buf, LABEL_BYTES, "op %zu (%s, section %s, layer %d)", index, op_name(o->kind), section_name(o->section),
             o->layer);
    return buf;
}

/* Where a value's bytes lie: tier and offset in its arena or file. False when it is not placed inside. */
static bool locate(const exec *e, value_id v, tier *where, uint64_t *offset) {
    size_t view_offset, n_bytes = value_bytes(program_get(e->program, v));
    const value *root = program_get(e->program, program_root(e->program, v, &view_offset));
    size_t arena_bytes = e->program->arena_bytes[root->tier];
    *where = root->tier;
    if (root->offset == VALUE_NOT_PLACED || root->offset > arena_bytes || view_offset > arena_bytes - root->offset ||
        n_bytes > arena_bytes - root->offset - view_offset)
        return false;
    *offset = root->offset + view_offset;
    return true;
}

void exec_raise_peak(exec *e, tier t, uint64_t end) {
    uint64_t seen = atomic_load_explicit(&e->peak[t], memory_order_relaxed);
    while (seen < end && !atomic_compare_exchange_weak_explicit(&e->peak[t], &seen, end, memory_order_relaxed,
                                                                memory_order_relaxed)) {}
}

/* ---- open ---------------------------------------------------------------------------------------------------- */

static status resolve_operand(exec *e, size_t index, const char *operand, value_id id, void **out) {
    const program *p = e->program;
    char label[LABEL_BYTES];
    if (id >= p->n_values)
        return ERR(ERR_BUG, "%s: operand %s is value %u, the program has %zu", op_label(label, p, index), operand, id,
                   p->n_values);
    const value *v = program_get(p, id);
    tier t;
    uint64_t offset;
    if (!locate(e, id, &t, &offset)) {
        size_t view_offset;
        const value *root = program_get(p, program_root(p, id, &view_offset));
        if (root->offset == VALUE_NOT_PLACED)
            return ERR(ERR_BUG, "%s: operand %s, value '%s', has no place in the %s arena", op_label(label, p, index),
                       operand, v->name, tier_name(t));
        return ERR(ERR_BUG, "%s: operand %s, value '%s', takes bytes %zu to %zu of the %s arena, which has %zu",
                   op_label(label, p, index), operand, v->name, root->offset + view_offset,
                   root->offset + view_offset + value_bytes(v), tier_name(t), p->arena_bytes[t]);
    }
    if (e->backend->discrete && p->ops[index].kind != OP_COPY && !op_is_comm(p->ops[index].kind) &&
        t != p->ops[index].at)
        return ERR(ERR_BUG, "%s: runs beside %s memory; operand %s, value '%s', lies in %s memory",
                   op_label(label, p, index), tier_name(p->ops[index].at), operand, v->name, tier_name(t));
    uint64_t n_bytes = value_bytes(v);
    if (t == TIER_HOST && (p->ops[index].stream == STREAM_READ || p->ops[index].stream == STREAM_WRITE))
        n_bytes = sectors_up(n_bytes); /* files move in whole sectors */
    e->reach[index][t] = MAX(e->reach[index][t], offset + n_bytes);
    if (t == TIER_NVME) {
        if (p->ops[index].kind != OP_COPY || p->ops[index].stream == STREAM_COMPUTE || e->disk_offsets[index])
            return ERR(ERR_BUG, "%s: operand %s, value '%s', lies on disk, where only a copy can reach it",
                       op_label(label, p, index), operand, v->name);
        e->disk_offsets[index] = offset;
        return OK;
    }
    *out = (uint8_t *)e->arena[t] + offset;
    return OK;
}

static status resolve_scratch(exec *e, size_t index) {
    const program *p = e->program;
    const op *o = &p->ops[index];
    char label[LABEL_BYTES];
    const backend *b = o->at == TIER_HOST ? e->host : e->backend;
    int n_threads = e->host->threads(e->host_context);
    bool is_message = op_is_comm(o->kind);
    size_t needed = !is_message ? b->work_bytes(p, o, n_threads)
                    : e->links  ? comm_link_work_bytes(p, o)
                                : comm_work_bytes(p, o);
    if (o->work) TRY(resolve_operand(e, index, "work", o->work, &e->calls[index].work));
    size_t given = o->work ? value_bytes(program_get(p, o->work)) : 0;
    if (given < needed)
        return ERR(ERR_BUG, "%s: the plan gives %zu bytes of scratch, %s needs %zu with %d threads",
                   op_label(label, p, index), given, is_message ? "comm" : b->name, needed, n_threads);
    if ((uintptr_t)e->calls[index].work % SCRATCH_ALIGNMENT)
        return ERR(ERR_BUG, "%s: its scratch '%s' is not aligned to %d bytes", op_label(label, p, index),
                   program_get(p, o->work)->name, SCRATCH_ALIGNMENT);
    return OK;
}

static status resolve_message(exec *e, size_t index) {
    const op *o = &e->program->ops[index];
    char label[LABEL_BYTES];
    int n = e->comm ? mesh_size(comm_mesh(e->comm), o->attr.axis) : 1;
    if (o->attr.group_size != n)
        return ERR(ERR_BUG, "%s: planned for %d ranks of the %s axis, there are %d", op_label(label, e->program, index),
                   o->attr.group_size, axis_name(o->attr.axis), n);
    return OK;
}

static status resolve_op(exec *e, size_t index) {
    const program *p = e->program;
    const op *o = &p->ops[index];
    kernel_call *call = &e->calls[index];
    char label[LABEL_BYTES];
    call->program = p;
    call->op = o;
    const backend *b = o->at == TIER_HOST ? e->host : e->backend;
    e->kernels[index] = b->kernels[o->kind];
    if (op_is_comm(o->kind)) TRY(resolve_message(e, index));
    else if (!e->kernels[index])
        return ERR(
            ERR_INPUT,
            "%s: the %s backend has no kernel for it; the cpu backend has one for every op: set run.device to cpu",
            op_label(label, p, index), b->name);
    for (int i = 0; i < op_input_count(o->kind); i++) {
        if (o->in[i]) TRY(resolve_operand(e, index, op_input_name(o->kind, i), o->in[i], &call->in[i]));
        else if (!op_input_optional(o->kind, i))
            return ERR(ERR_BUG, "%s: operand %s is missing", op_label(label, p, index), op_input_name(o->kind, i));
    }
    for (int i = 0; i < op_output_count(o->kind); i++) {
        if (o->out[i]) TRY(resolve_operand(e, index, op_output_name(o->kind, i), o->out[i], &call->out[i]));
        else if (!op_output_optional(o->kind, i))
            return ERR(ERR_BUG, "%s: operand %s is missing", op_label(label, p, index), op_output_name(o->kind, i));
    }
    void *rows = NULL;
    if (o->rows) TRY(resolve_operand(e, index, "rows", o->rows, &rows));
    call->rows = rows;
    TRY(resolve_scratch(e, index));
    return OK;
}

static status open_shared(exec *e, tier t) {
    size_t n_bytes = e->program->arena_bytes[t];
    TRY(comm_memory_open(e->comm, n_bytes, &e->arena[t]));
    page_range all = {e->arena[t], n_bytes};
    exec_parallel(e, page_touch, &all, page_touch_tasks(&all));
    return OK;
}

static status open_arenas(exec *e, const char *nvme_dir) {
    const program *p = e->program;
    for (size_t i = 0; i < p->n_ops && e->comm && !e->links && comm_shares_memory(e->comm); i++)
        if (op_is_comm(p->ops[i].kind)) e->arena_shared[p->ops[i].at] = true;
    for (tier t = 0; t < TIER_COUNT; t++) {
        if (t == TIER_NVME || p->arena_bytes[t] == 0) continue;
        if (e->arena_shared[t]) TRY(open_shared(e, t));
        else if (t == TIER_HOST) TRY(e->host->memory_open(e->host_context, t, p->arena_bytes[t], &e->arena[t]));
        else TRY(e->backend->memory_open(e->context, t, p->arena_bytes[t], &e->arena[t]));
        if (t == TIER_HOST && e->backend->pin) TRY(e->backend->pin(e->context, e->arena[t], p->arena_bytes[t]));
    }
    if (p->arena_bytes[TIER_NVME] == 0) return OK;
    if (!nvme_dir)
        return ERR(ERR_INPUT, "the plan puts %zu bytes on nvme; set memory.nvme_path to a directory on that drive",
                   p->arena_bytes[TIER_NVME]);
    return disk_open(&e->disk, nvme_dir, p->arena_bytes[TIER_NVME], e->arena[TIER_HOST], p->arena_bytes[TIER_HOST]);
}

/* Device memory is not cleared by the system, and not every rank writes all that it reads: a pipeline stage without
 * the loss adds its own sums to the others'. Host memory and a new file come cleared from the system. */
static status clear_persistent(exec *e) {
    const program *p = e->program;
    for (value_id v = 1; v < p->n_values; v++) {
        const value *x = program_get(p, v);
        tier t;
        uint64_t at;
        if (x->persistent && !x->view_of && locate(e, v, &t, &at) && tier_is_device(t))
            TRY(e->backend->clear(e->context, (uint8_t *)e->arena[t] + at, value_bytes(x)));
    }
    return OK;
}

/* Messages with operands in device memory are sent by the device: the plan has chosen so. */
static status find_links(exec *e) {
    const program *p = e->program;
    for (size_t i = 0; i < p->n_ops && e->backend->discrete; i++)
        e->links |= op_is_comm(p->ops[i].kind) && tier_is_device(p->ops[i].at);
    if (e->links && !(e->comm && e->backend->links && e->backend->queues))
        return ERR(ERR_BUG, "the plan sends from the memory of %s, which has no links to other ranks",
                   e->backend->name);
    return OK;
}

status exec_open(exec **out, const program *p, const exec_options *o) {
    status rc = OK;
    exec *e = mem_alloc(sizeof *e);
    *out = NULL;
    e->program = p;
    e->backend = o->backend;
    e->host = o->backend->discrete ? backend_cpu() : o->backend;
    e->done = e->own_done;
    e->comm = o->comm;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->moved, NULL);
    backend_options options = {.n_threads = o->n_threads, .bind = o->bind, .gpu = o->gpu};
    TRY_GOTO(rc, e->backend->open(&e->context, &options), fail);
    e->host_context = e->context;
    if (e->host != e->backend) {
        e->host_context = NULL;
        TRY_GOTO(rc, e->host->open(&e->host_context, &options), fail);
    }
    TRY_GOTO(rc, find_links(e), fail);
    TRY_GOTO(rc, open_arenas(e, o->nvme_path), fail);
    e->calls = mem_alloc(sizeof *e->calls * MAX(p->n_ops, (size_t)1));
    e->kernels = mem_alloc(sizeof *e->kernels * MAX(p->n_ops, (size_t)1));
    e->reach = mem_alloc(sizeof *e->reach * MAX(p->n_ops, (size_t)1));
    e->disk_offsets = mem_alloc(sizeof *e->disk_offsets * MAX(p->n_ops, (size_t)1));
    for (size_t i = 0; i < p->n_ops; i++) TRY_GOTO(rc, resolve_op(e, i), fail);
    size_t longest = 0;
    for (section s = 0; s < SECTION_COUNT; s++) {
        program_section(p, s, &e->first_op[s], &e->end_op[s]);
        longest = MAX(longest, e->end_op[s] - e->first_op[s]);
    }
    e->stamped = e->backend->queues && (o->timed || o->trace_path);
    if (o->trace_path) TRY_GOTO(rc, trace_open(&e->trace, o->trace_path, p, longest), fail);
    TRY_GOTO(rc, exec_lanes_open(e), fail);
    if (e->links) TRY_GOTO(rc, comm_links_open(e->comm, e->backend, e->context, p), fail);
    if (e->backend->queues) TRY_GOTO(rc, exec_queues_open(e), fail);
    if (e->backend->discrete) TRY_GOTO(rc, clear_persistent(e), fail);
    TRY_GOTO(rc, exec_run(e, SECTION_START), fail);
    e->used_at_open = e->backend->used_bytes ? e->backend->used_bytes(e->context) : 0;
    *out = e;
    return OK;
fail:
    exec_close(e);
    return rc;
}

void exec_close(exec *e) {
    if (!e) return;
    exec_lanes_close(e);
    if (e->links && e->comm) comm_links_close(e->comm);
    trace_close(e->trace);
    disk_close(e->disk);
    const program *p = e->program;
    if (e->arena[TIER_HOST] && e->backend->unpin) e->backend->unpin(e->context, e->arena[TIER_HOST]);
    for (tier t = 0; t < TIER_COUNT; t++) {
        if (!e->arena[t]) continue;
        if (e->arena_shared[t]) comm_memory_close(e->comm, e->arena[t], p->arena_bytes[t]);
        else if (t == TIER_HOST) e->host->memory_close(e->host_context, t, e->arena[t], p->arena_bytes[t]);
        else e->backend->memory_close(e->context, t, e->arena[t], p->arena_bytes[t]);
    }
    if (e->host_context && e->host_context != e->context) e->host->close(e->host_context);
    if (e->context) e->backend->close(e->context);
    free(e->marks);
    free(e->feed);
    free(e->calls);
    free(e->kernels);
    free(e->reach);
    free(e->disk_offsets);
    free(e);
}

/* ---- bytes in and out ------------------------------------------------------------------------------------------ */

/* The address of a part of a value, counted by the ledger. A part outside the value is a bug of the caller and stops
 * here: it would overwrite a neighbour. */
static uint64_t part_offset(exec *e, value_id v, size_t byte_offset, size_t n_bytes, tier *t) {
    uint64_t at;
    size_t total = value_bytes(program_get(e->program, v));
    ASSERT(locate(e, v, t, &at) && byte_offset <= total && n_bytes <= total - byte_offset);
    exec_raise_peak(e, *t, at + byte_offset + n_bytes);
    return at + byte_offset;
}

void exec_write(exec *e, value_id v, size_t byte_offset, const void *src, size_t n_bytes) {
    tier t;
    uint64_t at = part_offset(e, v, byte_offset, n_bytes, &t);
    if (t == TIER_NVME) exec_note_failure(e, disk_write_bytes(e->disk, src, at, n_bytes));
    else if (t == TIER_HOST) memcpy((uint8_t *)e->arena[t] + at, src, n_bytes);
    else exec_note_failure(e, e->backend->write(e->context, (uint8_t *)e->arena[t] + at, src, n_bytes));
}

void exec_read(exec *e, value_id v, size_t byte_offset, void *dst, size_t n_bytes) {
    tier t;
    uint64_t at = part_offset(e, v, byte_offset, n_bytes, &t);
    status rc = OK;
    if (t == TIER_NVME) rc = disk_read_bytes(e->disk, dst, at, n_bytes);
    else if (t == TIER_HOST) memcpy(dst, (uint8_t *)e->arena[t] + at, n_bytes);
    else rc = e->backend->read(e->context, dst, (uint8_t *)e->arena[t] + at, n_bytes);
    if (rc != OK) memset(dst, 0, n_bytes);
    exec_note_failure(e, rc);
}

void exec_order_weights(exec *e) {
    const program *p = e->program;
    bool *is_done = mem_alloc(p->n_values * sizeof *is_done);
    for (size_t i = 0; i < p->n_ops; i++) {
        int k = op_lanes_input(p->ops[i].kind);
        if (!p->ops[i].attr.lanes || is_done[p->ops[i].in[k]]) continue;
        e->backend->order_weight(e->context, e->calls[i].in[k], program_get(p, p->ops[i].in[k]));
        is_done[p->ops[i].in[k]] = true;
    }
    free(is_done);
}

bool exec_is_host_accessible(const exec *e, value_id v) {
    tier t;
    uint64_t at;
    return locate(e, v, &t, &at) && (t == TIER_HOST || (tier_is_device(t) && !e->backend->discrete));
}

const char *exec_disk_method(const exec *e) { return e->disk ? disk_method(e->disk) : NULL; }

int exec_threads(const exec *e) { return e->host->threads(e->host_context); }

void exec_parallel(exec *e, pool_fn fn, void *context, int64_t n_tasks) {
    e->host->parallel(e->host_context, fn, context, n_tasks);
}

void exec_ledger(const exec *e, ledger *out) {
    *out = (ledger){.n_runs = e->n_runs, .n_allocations = e->n_allocations};
    for (tier t = 0; t < TIER_COUNT; t++) {
        out->planned[t] = e->program->arena_bytes[t];
        out->peak[t] = atomic_load_explicit(&e->peak[t], memory_order_relaxed);
    }
}

bool exec_driver_memory(const exec *e, uint64_t *context, uint64_t *in_use) {
    uint64_t arena = e->program->arena_bytes[TIER_DEVICE];
    *in_use = e->backend->used_bytes ? e->backend->used_bytes(e->context) : 0;
    *context = e->used_at_open > arena ? e->used_at_open - arena : 0;
    return e->backend->used_bytes;
}

bool exec_is_timed(const exec *e) { return !e->backend->queues || e->stamped; }

double exec_busy_seconds(const exec *e, op_kind k) {
    return (double)atomic_load_explicit(&e->busy_ns[k], memory_order_relaxed) * 1e-9;
}
