/* offload.c - offload parameters, gradients, optimizer states and activations to host or nvme.
 *
 * This pass only decides where values are stored and where ops on them run; localize writes the copies.
 *   params       fetched block by block, in forward and again in backward; keep_params layers keep theirs, spread over the model, so that
 *                the next layer is copied while one that stays computes
 *   reference    the parameters of a frozen reference, which a step reads once, also where the others stay
 *   grads        written into a window and stored after their block; with accumulation the finished product is copied and
 *                added where the accumulator is stored, some blocks later, so that nothing waits for the copy
 *   states       AdamW runs on the host; gradients are copied to it and parameters back. The first keep_states layers keep
 *                their states and update on the device: the next forward begins with them, so the host has more time for
 *                the others
 *                With keep_embed the embedding and its gradient stay: every micro-batch begins with the one and ends with the
 *                other, so that nothing is left to compute while they are copied
 *   activations  stored after their last forward use and fetched before the first backward use
 * Large tensors travel to and from the optimizer in slices, so that a window is never as large as the embedding. Slices are
 * cut at multiples of SLICE, which is whole blocks of the norm: no rounding and no partial sum changes.
 *
 * A value whose fetch would come before its store stays on the device: the last layers before the loss keep their
 * activations, and so do keep_layers layers, with which a long row is split between host and device. */
#include "pass/moves.h"

#include <stdlib.h>

/* Small beside a layer, and large enough that a large model does not have too many slices. */
#define BUCKET_LEAST (16ll << 20)
#define SLICES_MOST 1024
enum { SLICE = 65536 }; /* elements; every slice except the last is this long, or a multiple */
_Static_assert(SLICE % NORM_BLOCK == 0, "a slice is whole blocks of the norm");

int64_t offload_bucket(uint64_t n_params) {
    return MAX(BUCKET_LEAST, (int64_t)(n_params * sizeof(float) / SLICES_MOST));
}

bool offload_any(const offload_tiers *o) {
    return o->params != TIER_DEVICE || o->grads != TIER_DEVICE || o->states != TIER_DEVICE ||
           o->activations != TIER_DEVICE || o->reference != TIER_DEVICE;
}

bool offload_on_nvme(const offload_tiers *o) {
    return o->params == TIER_NVME || o->grads == TIER_NVME || o->states == TIER_NVME || o->activations == TIER_NVME ||
           o->reference == TIER_NVME;
}

/* Kernels use device or host memory; ops on values of nvme run on the host. */
static tier work_tier(tier stored) { return stored == TIER_NVME ? TIER_HOST : stored; }

/* The scale of an 8-bit tensor stays on the device: copying four bytes takes longer than the kernel that reads them. */
static bool is_scale(const value *a) { return a->type == DTYPE_F32 && shape_count(&a->shape) == 1; }

/* The embedding and the head belong to no layer and never count as one of the first. */
static bool keeps_state(const value *a, int64_t keep_states) {
    return a->role == ROLE_STATE && a->layer >= 0 && a->layer < keep_states;
}

/* Layers that keep their parameters stand as far apart as they can. */
static bool keeps_param(const value *a, int64_t keep_params, int64_t n_layers) {
    if (a->role != ROLE_PARAM || a->layer < 0 || a->layer >= n_layers) return false;
    return (a->layer + 1) * keep_params / n_layers > a->layer * keep_params / n_layers;
}

/* Of the embedding: parameters and gradients, not states. */
static void mark_embedding(const program *p, const net *m, const step_interface *step, bool *stays) {
    for (size_t i = 0; i < m->n_params; i++) {
        if (m->params[i].unit != 0) continue;
        if (m->params[i].value) stays[program_root(p, m->params[i].value, NULL)] = true;
        if (step->grads && step->grads[i]) stays[program_root(p, step->grads[i], NULL)] = true;
    }
}

/* The parameters of a frozen reference. Its codes and 8-bit copies are no parameters but have its prefix; what ZeRO 3 shards lies in flat
 * values with nothing that is trained. */
static void mark_reference(const program *p, const net *m, bool *of_reference) {
    for (size_t i = 0; i < m->n_params; i++)
        if (m->params[i].of_reference && m->params[i].value)
            of_reference[program_root(p, m->params[i].value, NULL)] = true;
    for (value_id v = 1; v < p->n_values; v++)
        if (str_starts_with(p->values[v].name, REFERENCE_PREFIX)) of_reference[v] = true;
}

static void assign_tiers(program *p, const pass_options *options, const step_interface *step) {
    const step_choice *c = &options->choice;
    const offload_tiers *o = &c->offload;
    const tier of_role[ROLE_COUNT] = {[ROLE_PARAM] = o->params, [ROLE_GRAD] = o->grads, [ROLE_STATE] = o->states};
    bool *stays = mem_alloc(p->n_values * sizeof *stays), *of_reference = mem_alloc(p->n_values * sizeof *of_reference);
    if (c->keep_embed) mark_embedding(p, options->net, step, stays);
    if (o->reference != TIER_DEVICE) mark_reference(p, options->net, of_reference);
    for (value_id v = 1; v < p->n_values; v++) {
        value *a = &p->values[v];
        if (stays[v] || (a->role == ROLE_PARAM && is_scale(a)) || keeps_state(a, c->keep_states)) continue;
        if (!of_reference[v] && keeps_param(a, c->keep_params, options->net->source.n_layers)) continue;
        tier to = of_reference[v] && a->role == ROLE_PARAM ? o->reference : of_role[a->role];
        if (a->persistent && !a->view_of && to != TIER_DEVICE) a->tier = to;
    }
    free(stays);
    free(of_reference);
}

/* ---- where the update runs, and in which slices ------------------------------------------------------------------ */

static void choose_places(program *p, const pass_options *options, const step_interface *step) {
    if (options->choice.offload.grads != TIER_DEVICE) p->values[step->norm_partials].tier = TIER_HOST;
    for (size_t i = 0; i < p->n_ops; i++) {
        value_id home = op_home(&p->ops[i]);
        if (home) p->ops[i].at = work_tier(program_tier(p, home));
    }
}

static bool has_foreign_operand(const program *p, const op *o) {
    for (int k = 0; k < op_input_count(o->kind); k++)
        if (o->in[k] && program_tier(p, o->in[k]) != o->at) return true;
    for (int k = 0; k < op_output_count(o->kind); k++)
        if (o->out[k] && program_tier(p, o->out[k]) != o->at) return true;
    return false;
}

/* The slice of v that belongs to elements [first, first + n) of a parameter. v has one entry per element, per block of the
 * norm or per block of a quantized state. Blocks are powers of two and the last may be short, so the two counts give their
 * size. */
static value_id slice_of(program *p, value_id v, int64_t total, int64_t first, int64_t n) {
    if (v == NO_VALUE) return v;
    value a = p->values[v]; /* the table may move */
    int64_t count = shape_count(&a.shape);
    int64_t per = 1;
    while (per * count < total) per *= 2;
    int64_t begin = first / per, end = MIN(divide_up(first + n, per), count);
    char name[256];
    snprintf(name, sizeof name, "%.180s[%lld].%zu", a.name, (long long)first, p->n_values);
    return program_view(p, name, v, (size_t)begin * dtype_bytes(a.type), SHAPE(end - begin));
}

static void append_sliced(program *p, const op *o, int64_t slice) {
    int elements = op_rows_input(o->kind);
    int64_t total = op_in_slices(o) ? shape_count(&program_get(p, o->in[elements])->shape) : 0;
    if (total <= slice || !has_foreign_operand(p, o)) {
        program_append(p, o);
        return;
    }
    for (int64_t first = 0; first < total; first += slice) {
        int64_t n = MIN(slice, total - first);
        op part = *o;
        part.attr.first_element += first;
        /* The other inputs belong to the step, not to the parameter: scalars, clip factor. */
        part.in[elements] = slice_of(p, o->in[elements], total, first, n);
        for (int k = 0; k < op_output_count(o->kind); k++) part.out[k] = slice_of(p, o->out[k], total, first, n);
        program_append(p, &part);
    }
}

/* Slices on nvme begin at a sector, those of the scales of 8-bit states too: four times the elements. */
enum { SLICE_OF_SCALES = NVME_SECTOR / sizeof(float) * STATE_BLOCK };
_Static_assert(SLICE_OF_SCALES % SLICE == 0 && SLICE % NVME_SECTOR == 0, "slices of everything begin at a sector");

static int64_t slice_least(const program *p) {
    for (size_t i = 0; i < p->n_ops; i++) {
        const op *o = &p->ops[i];
        if (o->kind != OP_ADAMW || !o->out[ADAMW_M_SCALE]) continue;
        if (program_tier(p, o->out[ADAMW_M_SCALE]) == TIER_NVME) return SLICE_OF_SCALES;
    }
    return SLICE;
}

static void slice_updates(program *p, int64_t bucket_bytes) {
    int64_t least = slice_least(p), slice = MAX(bucket_bytes / (int64_t)sizeof(float) / least, 1) * least;
    size_t n_ops;
    op *ops = program_take_ops(p, &n_ops);
    for (size_t i = 0; i < n_ops; i++) append_sliced(p, &ops[i], slice);
    free(ops);
}

/* ---- activations, and unfinished gradients -------------------------------------------------------------------------- */

static bool may_leave(const program *p, const pass_options *options, value_id v, tier *to) {
    const value *a = &p->values[v];
    const offload_tiers *o = &options->choice.offload;
    if (a->persistent || a->view_of || !tier_is_device(a->tier) || a->section != SECTION_MICRO) return false;
    if (is_scale(a)) return false;
    if (a->role == ROLE_ACTIVATION && a->layer >= net_trunk(&options->net->source) - options->choice.keep_layers)
        return false;
    /* ROLE_WORK that outlives a block: the gradient of a tied embedding between the loss and the embedding. */
    *to = a->role == ROLE_ACTIVATION ? o->activations : a->role == ROLE_WORK ? o->grads : TIER_DEVICE;
    return *to != TIER_DEVICE;
}

/* The uses of each value in a section, in the order of the ops: avoids a search of the whole list for every value. */
typedef struct use {
    size_t op;
    value_id *operand;
    size_t next; /* of the same value; 0: the last */
} use;

typedef struct use_list {
    use *uses; /* [0] is unused */
    size_t n, capacity;
    size_t *first, *last; /* of each value */
} use_list;

static void add_use(use_list *l, value_id root, size_t op, value_id *operand) {
    l->uses = array_grow(l->uses, &l->capacity, l->n + 1, sizeof *l->uses);
    l->uses[l->n] = (use){.op = op, .operand = operand};
    if (l->last[root]) l->uses[l->last[root]].next = l->n;
    else l->first[root] = l->n;
    l->last[root] = l->n++;
}

static void use_list_init(use_list *l, const program *p, op *ops, size_t n_ops) {
    *l = (use_list){.n = 1};
    l->first = mem_alloc(p->n_values * sizeof *l->first);
    l->last = mem_alloc(p->n_values * sizeof *l->last);
    for (size_t i = 0; i < n_ops; i++) {
        op *o = &ops[i];
        for (int k = 0; k < op_input_count(o->kind); k++)
            if (o->in[k]) add_use(l, program_root(p, o->in[k], NULL), i, &o->in[k]);
        for (int k = 0; k < op_output_count(o->kind); k++)
            if (o->out[k]) add_use(l, program_root(p, o->out[k], NULL), i, &o->out[k]);
    }
}

static void use_list_fini(use_list *l) {
    free(l->uses);
    free(l->first);
    free(l->last);
}

/* Around the widest gap in blocks between two uses; both 0 where all are in one block. */
typedef struct use_gap {
    size_t last_use, next_use;
} use_gap;

static use_gap widest_gap(const use_list *l, const moves *m, value_id v) {
    use_gap g = {0};
    size_t widest = 0, before = l->first[v];
    for (size_t i = before; i; before = i, i = l->uses[i].next) {
        size_t wide = m->block[l->uses[i].op] - m->block[l->uses[before].op];
        if (wide > widest) widest = wide, g = (use_gap){l->uses[before].op, l->uses[i].op};
    }
    return g;
}

/* The replacement of v, which is `from` or a part of it, where `to` replaces `from`. */
static value_id redirected(program *p, value_id v, value_id from, value_id to) {
    size_t inside;
    if (v == from) return to;
    program_root(p, v, &inside);
    value a = p->values[v]; /* the table may move */
    char name[256];
    snprintf(name, sizeof name, "part.%zu.%.180s", p->n_values, a.name);
    value_id part = program_view(p, name, to, inside, a.shape);
    p->values[part].layer = a.layer;
    return part;
}

static void redirect(program *p, const use_list *l, size_t first_op, value_id from, value_id to) {
    for (size_t i = l->first[from]; i; i = l->uses[i].next)
        if (l->uses[i].op >= first_op) *l->uses[i].operand = redirected(p, *l->uses[i].operand, from, to);
}

static void spill_section(program *p, const pass_options *options, op *ops, size_t n_ops) {
    int prefetch = options->choice.prefetch;
    size_t n_values = p->n_values;
    moves m;
    use_list l;
    moves_open(&m, p, SECTION_MICRO, ops, n_ops, prefetch);
    use_list_init(&l, p, ops, n_ops);
    for (value_id v = 1; v < n_values; v++) {
        tier to;
        if (!l.first[v] || !may_leave(p, options, v, &to)) continue;
        use_gap gap = widest_gap(&l, &m, v);
        size_t from = m.block[gap.last_use], back = m.block[gap.next_use];
        int distance = to == TIER_NVME ? 2 * prefetch : prefetch;
        if (back <= from + 1 || moves_fetch_key(&m, back, distance) <= moves_store_key(&m, from, distance)) continue;
        value_id window = moves_spill(&m, v, to, gap.last_use, gap.next_use);
        redirect(p, &l, gap.next_use, v, window);
    }
    use_list_fini(&l);
    moves_close(&m);
}

/* Messages through host memory are not deferred: the device needs their results. */
static bool may_wait(const op *o) { return moves_serves_block(o) && !op_is_comm(o->kind); }

/* What the host adds waits for its copy: moves it some blocks later, so that it need not wait. */
static void defer_host_work(program *p, const pass_options *options, op *ops, size_t n_ops) {
    size_t prefetch = (size_t)options->choice.prefetch;
    moves m; /* for its blocks */
    moves_open(&m, p, SECTION_MICRO, ops, n_ops, 0);
    size_t next = 0; /* host ops up to here are appended */
    for (size_t i = 0; i < n_ops; i++) {
        if (!may_wait(&ops[i])) program_append(p, &ops[i]);
        bool ends = i + 1 == n_ops || m.block[i + 1] != m.block[i];
        for (; ends && next <= i && (m.block[next] + prefetch <= m.block[i] || i + 1 == n_ops); next++)
            if (may_wait(&ops[next])) program_append(p, &ops[next]);
    }
    m.n_ops = 0; /* everything is appended already */
    moves_close(&m);
}

static void rewrite_micro(program *p, const pass_options *options,
                          void (*rewrite)(program *p, const pass_options *options, op *ops, size_t n_ops)) {
    size_t n_ops, first = 0, end;
    op *ops = program_take_ops(p, &n_ops);
    for (; first < n_ops && ops[first].section != SECTION_MICRO; first++) program_append(p, &ops[first]);
    for (end = first; end < n_ops && ops[end].section == SECTION_MICRO;) end++;
    rewrite(p, options, ops + first, end - first);
    for (; end < n_ops; end++) program_append(p, &ops[end]);
    free(ops);
}

status pass_offload(program *p, const pass_options *options, step_interface *step) {
    const offload_tiers *o = &options->choice.offload;
    if (!offload_any(o)) return OK;
    assign_tiers(p, options, step);
    choose_places(p, options, step);
    slice_updates(p, options->choice.bucket_bytes);
    if (o->grads != TIER_DEVICE) rewrite_micro(p, options, defer_host_work);
    if (o->activations != TIER_DEVICE || o->grads != TIER_DEVICE) rewrite_micro(p, options, spill_section);
    return OK;
}
