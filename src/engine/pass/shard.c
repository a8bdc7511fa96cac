/* shard.c - ZeRO: what each rank of the data axis keeps, and the collectives for the rest.
 *
 * In: the program of one rank, forward, backward and update. Out: the program of this rank among n, with the same arithmetic
 * on every element. Parameters and gradients become ranges of flat buckets (buckets.h):
 *
 *              parameters    gradients                         states and update
 *     ZeRO 0   as they were  whole; REDUCE_SCATTER and then    whole, on every rank
 *                            ALL_GATHER, both in place
 *     ZeRO 1   whole         whole; REDUCE_SCATTER in place    own part, then ALL_GATHER of the parameters
 *     ZeRO 2   whole         own part; REDUCE_SCATTER per      own part, then ALL_GATHER of the parameters
 *                            micro-batch from a temporary bucket
 *     ZeRO 3   own part      as 2                              own part; ALL_GATHER before each use instead
 *
 * The norm: every rank sums the squares of its own blocks and gathers those of the others to the places that they have on one
 * rank, so that CLIP reads the same numbers in the same order. Messages run on a stream of their own. Their place in the list
 * decides how long their bytes are reserved, and so what they can overlap with (moves.h). */
#include "pass/buckets.h"
#include "pass/moves.h"

#include <stdlib.h>

typedef struct sharder {
    program *p;
    const pass_options *options;
    step_interface *step;
    buckets b;
    int n, rank;
    value_id *params;      /* per bucket: all of it, or this rank's part where is_cut; NO_VALUE in stage 0 */
    value_id *grads;       /* per bucket: all of it, from stage 2 on this rank's part */
    value_id *own_grads;   /* per bucket: this rank's part */
    value_id *grad_shares; /* per parameter: of what this rank updates; NO_VALUE where that is nothing */
    size_t *param_of;      /* per value of the old table: 1 + the parameter that it, or whose gradient it is */
    size_t n_old;          /* values of that table */
} sharder;

/* A gathered bucket in use. It ends where parameters of another unit are read; later readers gather again. */
typedef struct gather_run {
    size_t bucket, first_op;
    value_id value;
} gather_run;

static int zero(const sharder *s) { return s->options->choice.shard.zero; }
static bool is_cut(const sharder *s, size_t b) { return zero(s) == 3 && b != NO_BUCKET && !s->b.list[b].small; }
static int64_t bucket_elements(const sharder *s, size_t b) { return s->b.list[b].per_rank * s->n; }

param_share shard_share(const step_interface *step, const net *m, size_t param, int index) {
    int64_t count = shape_count(&m->params[param].shape), per = step->shard_elements[param];
    if (per == 0) return (param_share){0, count};
    int64_t offset = step->shard_offset[param], begin = MAX(offset, index * per);
    int64_t end = MIN(offset + count, (index + 1) * per);
    return begin < end ? (param_share){begin - offset, end - begin} : (param_share){0, 0};
}

param_share shard_counted(const step_interface *step, const net *m, const mesh *ranks, size_t param) {
    size_t n_data = (size_t)mesh_size(ranks, AXIS_DATA);
    bool mine = step->shard_elements[param] || param % n_data == (size_t)ranks->index[AXIS_DATA];
    const net_param *q = &m->params[param];
    param_share share = q->frozen && !q->is_copy ? step->held[param] : step->updated[param];
    int64_t counted = net_param_counted(q, ranks->index[AXIS_TENSOR]);
    share.n = MIN(share.n, counted - share.first);
    return mine && ranks->index[AXIS_SEQUENCE] == 0 && share.n > 0 ? share : (param_share){0, 0};
}

/* ---- values ------------------------------------------------------------------------------------------------------- */

static int layer_of(const sharder *s, size_t b) {
    int unit = s->b.list[b].unit;
    return unit == 0 || unit > s->options->net->source.n_layers ? -1 : unit - 1;
}

static value_id add_flat(sharder *s, const char *prefix, size_t b, dtype t, int64_t n, role r) {
    char name[96], of[BUCKET_NAME_BYTES];
    snprintf(name, sizeof name, "%s.%s", prefix, bucket_name(of, &s->b.list[b], s->options->net->source.n_layers));
    value_id v = program_persistent(s->p, name, t, SHAPE(n), r);
    s->p->values[v].layer = layer_of(s, b);
    return v;
}

static value_id add_view(sharder *s, const char *name, value_id of, int64_t first, shape shape) {
    size_t width = dtype_bytes(s->p->values[of].type);
    value_id v = program_view(s->p, name, of, (size_t)first * width, shape);
    s->p->values[v].layer = s->p->values[of].layer;
    return v;
}

/* This rank's part of a bucket that is whole here. */
static value_id own_part(sharder *s, value_id whole, size_t b) {
    char name[128];
    snprintf(name, sizeof name, "own.%.100s", s->p->values[whole].name);
    int64_t per = s->b.list[b].per_rank;
    return add_view(s, name, whole, s->rank * per, SHAPE(per));
}

/* The value keeps its name in the table but has no bytes on this rank. */
static void drop_storage(value *v) {
    v->persistent = false;
    v->role = ROLE_WORK;
    v->gradient = NO_VALUE;
}

static void set_view(sharder *s, value_id v, value_id of, int64_t first) {
    value *a = &s->p->values[v];
    a->view_of = of;
    a->view_offset = (size_t)first * dtype_bytes(a->type);
}

/* Makes the value elements [first, first + n) of its tensor, and puts the range into its name. */
static void set_share(sharder *s, value_id v, param_share share, int64_t per_entry) {
    value *a = &s->p->values[v];
    a->name = arena_format(&s->p->memory, "%s[%lld:%lld]", a->name, (long long)share.first,
                           (long long)(share.first + share.n));
    a->shape = SHAPE(divide_up(share.n, per_entry));
}

/* The elements of parameter i that this rank updates, inside a whole bucket or inside this rank's part. */
static value_id share_in(sharder *s, size_t i, const char *kind, value_id bucket_value, bool own) {
    param_share share = s->step->updated[i];
    char name[200];
    snprintf(name, sizeof name, "own.%s.%.100s[%lld:%lld]", kind, s->options->net->params[i].name,
             (long long)share.first, (long long)(share.first + share.n));
    int64_t at = s->b.offset[i] + share.first - (own ? s->rank * s->b.list[s->b.bucket[i]].per_rank : 0);
    return add_view(s, name, bucket_value, at, SHAPE(share.n));
}

static void lay_params(sharder *s, size_t b) {
    const bucket *k = &s->b.list[b];
    dtype t = precision_compute(s->options->choice.precision);
    bool cut = is_cut(s, b);
    s->params[b] = add_flat(s, "params", b, t, cut ? k->per_rank : bucket_elements(s, b), ROLE_PARAM);
    s->p->values[s->params[b]].gradient = s->grads[b]; /* NO_VALUE of frozen ones */
    for (size_t j = 0; j < k->n; j++) {
        size_t i = s->b.order[k->first + j];
        value_id v = s->options->net->params[i].value;
        param_share share = shard_share(s->step, s->options->net, i, s->rank);
        if (!cut) {
            set_view(s, v, s->params[b], s->b.offset[i]);
            continue;
        }
        s->step->held[i] = share;
        if (share.n == 0) {
            drop_storage(&s->p->values[v]);
            continue;
        }
        set_view(s, v, s->params[b], s->b.offset[i] + share.first - s->rank * k->per_rank);
        set_share(s, v, share, 1);
    }
}

static void lay_grads(sharder *s, size_t b) {
    const bucket *k = &s->b.list[b];
    bool own = zero(s) >= 2;
    s->grads[b] = add_flat(s, "grads", b, precision_grad(s->options->choice.precision),
                           own ? k->per_rank : bucket_elements(s, b), ROLE_GRAD);
    bool any = !own;
    for (size_t j = 0; j < k->n; j++) {
        size_t i = s->b.order[k->first + j];
        value_id g = s->step->grads[i];
        any |= s->step->updated[i].n > 0;
        if (own) drop_storage(&s->p->values[g]); /* written into a temporary bucket, added to the part */
        else set_view(s, g, s->grads[b], s->b.offset[i]);
    }
    s->own_grads[b] = own ? s->grads[b] : own_part(s, s->grads[b], b);
    if (!any) s->p->values[s->grads[b]].role = ROLE_COMM; /* only padding, which nothing reads */
}

static void cut_states(sharder *s, size_t i) {
    const struct {
        value_id *ids;
        int64_t per_entry;
    } groups[] = {{s->step->masters, 1},
                  {s->step->moments, 1},
                  {s->step->variances, 1},
                  {s->step->moment_scales, STATE_BLOCK},
                  {s->step->variance_scales, STATE_BLOCK}};
    for (size_t k = 0; k < ARRAY_LENGTH(groups); k++) {
        value_id *v = &groups[k].ids[i];
        if (*v == NO_VALUE) continue;
        if (s->step->updated[i].n) {
            set_share(s, *v, s->step->updated[i], groups[k].per_entry);
        } else {
            drop_storage(&s->p->values[*v]);
            *v = NO_VALUE;
        }
    }
}

static void lay_out(sharder *s) {
    const net *m = s->options->net;
    step_interface *step = s->step;
    for (size_t i = 0; i < m->n_params && zero(s) >= 1; i++) {
        if (s->b.bucket[i] == NO_BUCKET) continue;
        step->shard_offset[i] = s->b.offset[i];
        step->shard_elements[i] = s->b.list[s->b.bucket[i]].per_rank;
        if (m->params[i].frozen) continue;
        step->updated[i] = shard_share(step, m, i, s->rank);
        cut_states(s, i);
    }
    for (size_t b = 0; b < s->b.n; b++) {
        if (b < s->b.n_trained) lay_grads(s, b);
        if (zero(s) >= 1) lay_params(s, b);
    }
}

/* ---- messages ------------------------------------------------------------------------------------------------------ */

static op message(const sharder *s, op_kind k, section where, int layer) {
    op o = {.kind = k, .section = where, .layer = layer, .at = s->options->target->comm_at};
    o.attr.axis = AXIS_DATA;
    o.attr.group_size = s->n;
    return o;
}

/* Adds gradients of one micro-batch to this rank's gradients of the step, rounded as ACCUMULATE rounds. The sum of several
 * micro-batches is already complete: without scalars it is written, not added. */
static op reduction(const sharder *s, section where, size_t b, value_id from) {
    const bucket *k = &s->b.list[b];
    op o = message(s, OP_REDUCE_SCATTER, where, layer_of(s, b));
    o.attr.noise_key = bucket_noise_key(k->unit);
    o.attr.first_element = k->offset + s->rank * k->per_rank;
    o.in[REDUCE_SCATTER_X] = from;
    if (zero(s) >= 2 || s->options->n_micros == 1) o.in[REDUCE_SCATTER_SCALARS] = s->options->net->scalars;
    o.out[REDUCE_SCATTER_ACC] = s->own_grads[b];
    return o;
}

/* Gathers a bucket from the parts of all ranks. */
static op gathering(const sharder *s, section where, int layer, value_id own, value_id whole) {
    op o = message(s, OP_ALL_GATHER, where, layer);
    o.in[ALL_GATHER_X] = own;
    o.out[ALL_GATHER_Y] = whole;
    return o;
}

/* True where each micro-batch is reduced, or there is only one, whose gradients are those of the step. */
static bool reduces_in_backward(const sharder *s) {
    return zero(s) >= 2 || (s->options->n_micros == 1 && s->options->choice.shard.overlap);
}

/* ---- forward and backward ------------------------------------------------------------------------------------------ */

/* Temporary buckets for the gradients of a micro-batch: the backward writes into them instead of the gradients, and ops that
 * accumulate are removed: *n_ops is what is left. Returns the buckets; the caller frees. */
static value_id *redirect_gradients(sharder *s, op *ops, size_t *n_ops) {
    const net *m = s->options->net;
    size_t n_values = s->p->n_values, n = 0;
    value_id *fresh = mem_alloc(s->b.n_trained * sizeof *fresh), *instead = mem_alloc(n_values * sizeof *instead);
    value_id *written = mem_alloc(m->n_params * sizeof *written);            /* by the backward, for each parameter */
    for (size_t i = 0; i < m->n_params; i++) written[i] = s->step->grads[i]; /* NO_VALUE of a copy: no bucket has it */
    for (size_t k = 0; k < *n_ops; k++) {
        size_t i = ops[k].kind == OP_ACCUMULATE ? s->param_of[ops[k].out[ACCUMULATE_ACC]] : 0;
        if (i) written[i - 1] = ops[k].in[ACCUMULATE_X];
        else ops[n++] = ops[k];
    }
    *n_ops = n;
    dtype t = precision_grad(s->options->choice.precision);
    for (size_t b = 0; b < s->b.n_trained; b++) {
        const bucket *k = &s->b.list[b];
        char name[160], of[BUCKET_NAME_BYTES];
        snprintf(name, sizeof name, "fresh.%s", bucket_name(of, k, m->source.n_layers));
        fresh[b] = program_value(s->p, name, t, SHAPE(bucket_elements(s, b)), ROLE_COMM, SECTION_MICRO);
        s->p->values[fresh[b]].layer = layer_of(s, b);
        for (size_t j = 0; j < k->n; j++) {
            size_t i = s->b.order[k->first + j];
            snprintf(name, sizeof name, "passing.d.%.100s", m->params[i].name);
            instead[written[i]] = add_view(s, name, fresh[b], s->b.offset[i], m->params[i].shape);
        }
    }
    for (size_t k = 0; k < n; k++)
        for (int out = 0; out < op_output_count(ops[k].kind); out++) {
            value_id v = ops[k].out[out];
            if (v < n_values && instead[v]) ops[k].out[out] = instead[v];
        }
    free(written);
    free(instead);
    return fresh;
}

typedef struct finished {
    size_t bucket, op; /* the last one that writes a gradient of the bucket */
} finished;

static int by_op(const void *a, const void *b) {
    const finished *x = a, *y = b;
    if (x->op != y->op) return x->op < y->op ? -1 : 1;
    return x->bucket < y->bucket ? -1 : x->bucket > y->bucket;
}

static finished *find_finished(const sharder *s, const value_id *roots, const op *ops, size_t n_ops) {
    finished *list = mem_alloc(s->b.n_trained * sizeof *list);
    size_t *bucket_of = mem_alloc(s->p->n_values * sizeof *bucket_of); /* per root: 1 + its bucket */
    for (size_t b = 0; b < s->b.n_trained; b++) {
        list[b].bucket = b;
        bucket_of[roots[b]] = b + 1;
    }
    for (size_t i = 0; i < n_ops; i++)
        for (int k = 0; k < op_output_count(ops[i].kind); k++) {
            size_t b = ops[i].out[k] ? bucket_of[program_root(s->p, ops[i].out[k], NULL)] : 0;
            if (b) list[b - 1].op = i;
        }
    free(bucket_of);
    qsort(list, s->b.n_trained, sizeof *list, by_op);
    return list;
}

/* The pipeline pass splits a micro-batch at messages from other stages: ops must not move across one. */
static bool begins_job(const op *o) { return o->kind == OP_RECV && o->attr.axis == AXIS_PIPELINE; }

/* Finds jobs for ops in ascending order, with one walk over the list in all. */
typedef struct job_walk {
    const op *ops;
    size_t n_ops, at; /* looked at so far */
    size_t begin;     /* of the job that they end in */
} job_walk;

/* Where the job of op i begins: at the last such message up to it, or at the first op ... */
static size_t job_begin(job_walk *w, size_t i) {
    for (; w->at <= i; w->at++)
        if (begins_job(&w->ops[w->at])) w->begin = w->at;
    return w->begin;
}

/* ... and where it ends: at the first one behind op i, or at the end of the list. */
static size_t job_end(job_walk *w, size_t i) {
    if (w->at <= i) w->at = i + 1;
    while (w->at < w->n_ops && !begins_job(&w->ops[w->at])) w->at++;
    return w->at;
}

/* With overlap a temporary bucket is reduced while the next one fills, after that one's last gradient; without, they may
 * share bytes and the next one waits. */
static void add_reductions(sharder *s, moves *m, const value_id *fresh) {
    const value_id *roots = fresh ? fresh : s->grads;
    finished *list = find_finished(s, roots, m->ops, m->n_ops);
    job_walk walk = {.ops = m->ops, .n_ops = m->n_ops};
    for (size_t k = 0; k < s->b.n_trained; k++) {
        size_t b = list[k].bucket, key = 2 * list[k].op + 1;
        if (fresh && s->options->choice.shard.overlap) {
            size_t end = 2 * job_end(&walk, list[k].op);
            key = k + 1 < s->b.n_trained ? MIN(2 * list[k + 1].op + 1, end) : end;
        }
        op o = reduction(s, SECTION_MICRO, b, roots[b]);
        moves_add(m, key, &o);
        if (zero(s) > 0) continue;
        o = gathering(s, SECTION_MICRO, layer_of(s, b), s->own_grads[b], s->grads[b]);
        moves_add(m, key, &o);
    }
    free(list);
}

/* The state of gathering over a section: which buckets are gathered, and for which readers. */
typedef struct gatherer {
    section where;
    gather_run *runs;
    size_t n_runs, capacity;
    size_t *run_of;     /* per bucket: 1 + its latest run */
    size_t *begun;      /* per bucket: in which visit that began */
    value_id *readable; /* per parameter: in the latest run of its bucket; NO_VALUE until somebody reads it */
    size_t visit;       /* visits to units so far */
    int unit;
} gatherer;

static void begin_run(sharder *s, gatherer *g, size_t b, size_t op_index) {
    const bucket *k = &s->b.list[b];
    char name[96], of[BUCKET_NAME_BYTES];
    snprintf(name, sizeof name, "gathered.%zu.%s.%s", g->n_runs, section_name(g->where),
             bucket_name(of, k, s->options->net->source.n_layers));
    dtype t = precision_compute(s->options->choice.precision);
    value_id v = program_value(s->p, name, t, SHAPE(bucket_elements(s, b)), ROLE_COMM, g->where);
    s->p->values[v].layer = layer_of(s, b);
    g->runs = array_grow(g->runs, &g->capacity, g->n_runs + 1, sizeof *g->runs);
    g->runs[g->n_runs++] = (gather_run){.bucket = b, .first_op = op_index, .value = v};
    g->run_of[b] = g->n_runs;
    g->begun[b] = g->visit;
    for (size_t j = 0; j < k->n; j++) g->readable[s->b.order[k->first + j]] = NO_VALUE;
}

/* What op `op_index` reads instead of parameter i. */
static value_id gathered(sharder *s, gatherer *g, size_t i, size_t op_index) {
    size_t b = s->b.bucket[i];
    if (s->b.list[b].unit != g->unit) g->unit = s->b.list[b].unit, g->visit++;
    if (!g->run_of[b] || g->begun[b] != g->visit) begin_run(s, g, b, op_index);
    if (g->readable[i]) return g->readable[i];
    const net_param *q = &s->options->net->params[i];
    char name[200];
    snprintf(name, sizeof name, "gathered.%zu.%s.%.100s", g->run_of[b] - 1, section_name(g->where), q->name);
    return g->readable[i] = add_view(s, name, g->runs[g->run_of[b] - 1].value, s->b.offset[i], q->shape);
}

/* Lets every reader of a sharded parameter read a gathered bucket, and writes the all-gather some buckets earlier. */
static void add_gathers(sharder *s, moves *m, section where, op *ops) {
    size_t ahead = (size_t)s->options->choice.shard.prefetch;
    gatherer g = {.where = where, .unit = -1};
    g.run_of = mem_alloc(s->b.n * sizeof *g.run_of);
    g.begun = mem_alloc(s->b.n * sizeof *g.begun);
    g.readable = mem_alloc(s->options->net->n_params * sizeof *g.readable);
    for (size_t i = 0; i < m->n_ops; i++)
        for (int k = 0; k < op_input_count(ops[i].kind); k++) {
            value_id v = ops[i].in[k];
            size_t param = v < s->n_old ? s->param_of[v] : 0;
            if (!param || v != s->options->net->params[param - 1].value || !is_cut(s, s->b.bucket[param - 1])) continue;
            ops[i].in[k] = gathered(s, &g, param - 1, i);
        }
    job_walk walk = {.ops = ops, .n_ops = m->n_ops};
    for (size_t r = 0; r < g.n_runs; r++) {
        size_t at = MAX(r < ahead ? 0 : g.runs[r - ahead].first_op, job_begin(&walk, g.runs[r].first_op));
        op o = gathering(s, where, ops[at].layer, s->params[g.runs[r].bucket], g.runs[r].value);
        moves_add(m, begins_job(&ops[at]) ? 2 * at + 1 : 2 * at, &o);
    }
    free(g.runs);
    free(g.run_of);
    free(g.begun);
    free(g.readable);
}

static void rewrite_section(sharder *s, section where, op *ops, size_t n_ops) {
    bool trains = where == SECTION_MICRO;
    value_id *fresh = trains && zero(s) >= 2 ? redirect_gradients(s, ops, &n_ops) : NULL;
    moves m; /* only for its keys, not its blocks */
    moves_open(&m, s->p, where, ops, n_ops, 0);
    if (trains && reduces_in_backward(s)) add_reductions(s, &m, fresh);
    if (zero(s) == 3) add_gathers(s, &m, where, ops);
    moves_close(&m);
    free(fresh);
}

/* ---- update --------------------------------------------------------------------------------------------------------- */

/* Squares of this rank's blocks, gathered with those of the others. Padding at the end of a bucket overlaps the first blocks
 * of the next one, which are gathered after it. Returns the blocks as one rank has them. */
static value_id write_norm(sharder *s) {
    program *p = s->p;
    int64_t total = s->b.n_norm_blocks, room = total;
    for (size_t b = 0; b < s->b.n_trained; b++)
        room = MAX(room, s->b.list[b].norm_block + bucket_elements(s, b) / NORM_BLOCK);
    p->values[s->step->norm_partials].shape = SHAPE(room);
    for (size_t b = 0; b < s->b.n_trained; b++) {
        const bucket *k = &s->b.list[b];
        char name[200], of[BUCKET_NAME_BYTES];
        snprintf(name, sizeof name, "norm.own.%s", bucket_name(of, k, s->options->net->source.n_layers));
        int64_t n_own = k->per_rank / NORM_BLOCK;
        /* Persistent, because a rank that owns nothing but padding never writes it. */
        value_id own = program_persistent(p, name, DTYPE_F64, SHAPE(n_own), ROLE_WORK);
        for (size_t j = 0; j < k->n; j++) {
            size_t i = s->b.order[k->first + j];
            param_share share = s->step->updated[i];
            if (share.n == 0) continue;
            s->grad_shares[i] = share_in(s, i, "d", s->grads[b], zero(s) >= 2);
            int64_t block = (s->b.offset[i] + share.first) / NORM_BLOCK - s->rank * n_own;
            snprintf(name, sizeof name, "norm.own.%.100s", s->options->net->params[i].name);
            value_id part = add_view(s, name, own, block, SHAPE(norm_blocks(share.n)));
            op *o = program_emit(p, OP_GRAD_SUMSQ, SECTION_UPDATE);
            o->attr.first_element = share.first;
            optimizer_count_once(o, &s->options->net->params[i], &s->options->mesh);
            op_in(o, GRAD_SUMSQ_G, s->grad_shares[i]);
            op_out(o, GRAD_SUMSQ_PARTIALS, part);
        }
        snprintf(name, sizeof name, "norm.all.%s", of);
        value_id all = add_view(s, name, s->step->norm_partials, k->norm_block, SHAPE(n_own * s->n));
        op o = gathering(s, SECTION_UPDATE, -1, own, all);
        program_append(p, &o);
    }
    return add_view(s, "norm.blocks", s->step->norm_partials, 0, SHAPE(total));
}

static value_id write_loss(sharder *s) {
    value_id total =
        program_persistent(s->p, "loss.total", DTYPE_F64, program_get(s->p, s->step->loss_sums)->shape, ROLE_WORK);
    op o = message(s, OP_ALL_REDUCE, SECTION_UPDATE, -1);
    o.in[ALL_REDUCE_X] = s->step->loss_sums;
    o.out[ALL_REDUCE_Y] = total;
    program_append(s->p, &o);
    return total;
}

/* The update of each parameter as one rank alone would run it; the caller frees. */
static const op **find_updates(const sharder *s, const op *ops, size_t n_ops) {
    const op **update = mem_alloc((s->options->net->n_params + 1) * sizeof *update);
    for (size_t i = 0; i < n_ops; i++)
        if (ops[i].kind == OP_ADAMW) update[s->param_of[ops[i].out[ADAMW_P]] - 1] = &ops[i];
    return update;
}

static void write_adamw(sharder *s, const op *const *update, size_t b) {
    const bucket *k = &s->b.list[b];
    for (size_t j = 0; j < k->n; j++) {
        size_t i = s->b.order[k->first + j];
        if (s->step->updated[i].n == 0) continue;
        ASSERT(update[i]);
        op o = *update[i];
        o.attr.first_element = s->step->updated[i].first;
        op_in(&o, ADAMW_G, s->grad_shares[i]);
        op_out(&o, ADAMW_P, share_in(s, i, "p", s->params[b], is_cut(s, b))),
            op_out(&o, ADAMW_MASTER, s->step->masters[i]);
        op_out(&o, ADAMW_M, s->step->moments[i]), op_out(&o, ADAMW_V, s->step->variances[i]);
        op_out(&o, ADAMW_M_SCALE, s->step->moment_scales[i]), op_out(&o, ADAMW_V_SCALE, s->step->variance_scales[i]);
        program_append(s->p, &o);
    }
    if (is_cut(s, b)) return;
    op o = gathering(s, SECTION_UPDATE, layer_of(s, b), own_part(s, s->params[b], b), s->params[b]);
    program_append(s->p, &o);
}

/* A table for another stage is gathered first where this rank has a part of it. */
static void write_table(sharder *s, op o) {
    moves m;
    moves_open(&m, s->p, SECTION_UPDATE, &o, 1, 0);
    if (zero(s) == 3) add_gathers(s, &m, SECTION_UPDATE, &o);
    moves_close(&m);
}

static bool is_over_sequence(const op *o) { return o->kind == OP_ALL_REDUCE && o->attr.axis == AXIS_SEQUENCE; }

/* Sums the loss and every gradient over sequence ranks; where a rank keeps a part of the gradients, only that. */
static void sum_over_sequence(sharder *s, const op *ops, size_t n_ops) {
    const op *last = NULL;
    for (size_t i = 0; i < n_ops; i++) {
        if (!is_over_sequence(&ops[i])) continue;
        last = &ops[i]; /* the loss stands behind the gradients */
        if (zero(s) == 0 || program_get(s->p, ops[i].in[ALL_REDUCE_X])->type == DTYPE_F64)
            program_append(s->p, &ops[i]);
    }
    for (size_t b = 0; b < s->b.n_trained && last && zero(s) >= 1; b++) {
        char name[128];
        snprintf(name, sizeof name, "summed.%.100s", s->p->values[s->own_grads[b]].name);
        op o = *last;
        o.layer = layer_of(s, b);
        o.in[ALL_REDUCE_X] = s->own_grads[b];
        o.out[ALL_REDUCE_Y] = add_view(s, name, s->own_grads[b], 0, SHAPE(s->b.list[b].per_rank)); /* in its place */
        program_append(s->p, &o);
    }
}

static void rewrite_update(sharder *s, const op *ops, size_t n_ops) {
    for (size_t b = 0; b < s->b.n_trained && !reduces_in_backward(s); b++) {
        op o = reduction(s, SECTION_UPDATE, b, s->grads[b]);
        program_append(s->p, &o);
        if (zero(s) > 0) continue;
        o = gathering(s, SECTION_UPDATE, layer_of(s, b), s->own_grads[b], s->grads[b]);
        program_append(s->p, &o);
    }
    sum_over_sequence(s, ops, n_ops);
    value_id total = write_loss(s), blocks = zero(s) >= 1 ? write_norm(s) : s->step->norm_partials;
    size_t end = n_ops; /* after the rewritten ops: a table for another stage is sent last */
    if (end && op_is_comm(ops[end - 1].kind) && ops[end - 1].attr.tag == TAG_TABLE) end--;
    for (size_t i = 0; i < end; i++) {
        op o = ops[i];
        if (is_over_sequence(&o)) continue;
        if (zero(s) >= 1 && op_in_slices(&o)) continue; /* written again for the part of this rank */
        for (int k = 0; k < op_input_count(o.kind); k++) {
            if (o.in[k] == s->step->norm_partials) o.in[k] = blocks;
            if (o.in[k] == s->step->loss_sums) o.in[k] = total;
        }
        program_append(s->p, &o);
    }
    s->step->loss_sums = total;
    const op **update = zero(s) >= 1 ? find_updates(s, ops, n_ops) : NULL;
    for (size_t b = 0; b < s->b.n_trained && update; b++) write_adamw(s, update, b);
    free(update);
    if (end < n_ops) write_table(s, ops[end]);
}

/* ---- the pass ------------------------------------------------------------------------------------------------------- */

static void share_whole(program *p, const pass_options *options, step_interface *step) {
    size_t n = options->net->n_params;
    step->held = arena_array(&p->memory, param_share, n);
    step->updated = arena_array(&p->memory, param_share, n);
    step->shard_offset = arena_array(&p->memory, int64_t, n);
    step->shard_elements = arena_array(&p->memory, int64_t, n);
    for (size_t i = 0; i < n; i++) {
        const net_param *q = &options->net->params[i];
        step->held[i] = (param_share){0, shape_count(&q->shape)};
        if (net_param_trained(q)) step->updated[i] = step->held[i];
    }
}

static status check(const pass_options *options) {
    const shard_options *o = &options->choice.shard;
    if (o->zero < 0 || o->zero > 3) return ERR(ERR_INPUT, "parallel.zero: found %d, expected 0 to 3", o->zero);
    if (o->prefetch < 0) return ERR(ERR_INPUT, "parallel.prefetch: found %d, expected 0 or more", o->prefetch);
    if (place_splits(&options->place, options->net->source.n_layers, options->target))
        return ERR(ERR_INPUT,
                   "memory.place: found several devices in a run of %d ranks, expected one device for each rank",
                   mesh_world(&options->mesh));
    return OK;
}

status pass_shard(program *p, const pass_options *options, step_interface *step) {
    share_whole(p, options, step);
    int n = mesh_size(&options->mesh, AXIS_DATA);
    if (mesh_world(&options->mesh) == 1) return OK;
    TRY(check(options));
    for (size_t i = 0; i < p->n_ops; i++) /* those of the model: what a transport cannot reach goes through the host */
        if (op_is_comm(p->ops[i].kind)) p->ops[i].at = options->target->comm_at;
    if (n == 1 || !step->grads) return OK;
    sharder s = {.p = p, .options = options, .step = step, .n = n, .rank = options->mesh.index[AXIS_DATA]};
    size_t n_ops;
    op *ops = program_take_ops(p, &n_ops);
    buckets_init(&s.b, options);
    s.params = mem_alloc(s.b.n * sizeof *s.params);
    s.grads = mem_alloc(s.b.n * sizeof *s.grads);
    s.own_grads = mem_alloc(s.b.n * sizeof *s.own_grads);
    s.grad_shares = mem_alloc(options->net->n_params * sizeof *s.grad_shares);
    s.n_old = p->n_values;
    s.param_of = mem_alloc(s.n_old * sizeof *s.param_of);
    for (size_t i = 0; i < options->net->n_params; i++)
        if (!options->net->params[i].is_copy) {
            s.param_of[options->net->params[i].value] = i + 1;
            if (step->grads[i]) s.param_of[step->grads[i]] = i + 1;
        }
    lay_out(&s);
    for (size_t first = 0, end; first < n_ops; first = end) {
        section where = ops[first].section;
        for (end = first; end < n_ops && ops[end].section == where;) end++;
        if (where == SECTION_UPDATE) rewrite_update(&s, ops + first, end - first);
        else rewrite_section(&s, where, ops + first, end - first);
    }
    free(s.grad_shares);
    free(ops);
    free(s.params);
    free(s.grads);
    free(s.own_grads);
    free(s.param_of);
    buckets_fini(&s.b);
    return OK;
}
