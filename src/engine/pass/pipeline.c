/* pipeline.c - the step of one pipeline stage: all its micro-batches in one section.
 *
 * In: the section of one micro-batch at this stage, forward and backward, with its messages to other stages. Out: the same
 * ops for every micro-batch, in the order of pipeline_order.c, so that SECTION_MICRO runs once per step. Every micro-batch
 * has its own activations, and their lifetimes in the list decide how many are alive at once: layout packs them like any
 * other values, and no other pass, nor exec, handles micro-batches in flight. Gradients are added in the order of the
 * micro-batches, as on one rank. Inputs of a step (tokens, targets, scalars ...) are there for all micro-batches from the
 * start.
 *
 * It comes after shard: messages between data ranks are part of a job, like kernels. */
#include "pass/pipeline.h"

#include <stdlib.h>

typedef struct unroller {
    program *p;
    const pass_options *options;
    step_interface *step;
    pipeline_shape shape;
    const op *ops; /* of one micro-batch */
    size_t n_ops;
    size_t *job_begin; /* of each job; and the end */
    pipeline_job *jobs;
    int n_jobs;
    size_t n_old;     /* values of one micro-batch's program */
    value_id *inputs; /* per old value: what holds it for all micro-batches; NO_VALUE: it is no input of one */
    value_id *copies; /* per micro-batch and old value; NO_VALUE: not made yet */
} unroller;

static bool is_between_stages(const op *o, op_kind k) { return o->kind == k && o->attr.axis == AXIS_PIPELINE; }

/* ---- values ---------------------------------------------------------------------------------------------------------- */

static value_id micro_view(unroller *u, value_id all, value_id of, int64_t micro) {
    char name[200];
    const value v = *program_get(u->p, of);
    snprintf(name, sizeof name, "micro.%lld.%.160s", (long long)micro, v.name);
    return program_view(u->p, name, all, (size_t)micro * value_bytes(&v), v.shape);
}

static value_id make_copy(unroller *u, value_id v, int64_t micro);

/* The copy of v for one micro-batch. */
static value_id copy_of(unroller *u, value_id v, int64_t micro) {
    if (v == NO_VALUE) return v;
    value_id *copy = &u->copies[(size_t)micro * u->n_old + v];
    if (*copy == NO_VALUE) *copy = make_copy(u, v, micro);
    return *copy;
}

static value_id make_copy(unroller *u, value_id v, int64_t micro) {
    const value old = *program_get(u->p, v);
    value_id root = program_root(u->p, v, NULL), copy;
    bool is_input = u->inputs[root] != NO_VALUE;
    char name[200];
    if (micro == 0 || (program_get(u->p, root)->persistent && !is_input)) return v;
    if (v == root && is_input) return micro_view(u, u->inputs[v], v, micro);
    snprintf(name, sizeof name, "micro.%lld.%.160s", (long long)micro, old.name);
    if (old.view_of) copy = program_view(u->p, name, copy_of(u, old.view_of, micro), old.view_offset, old.shape);
    else copy = program_value(u->p, name, old.type, old.shape, old.role, old.section);
    value *made = program_get(u->p, copy);
    made->type = old.type;
    made->layer = old.layer;
    made->alignment = old.alignment;
    return copy;
}

/* Widens an input of one micro-batch to hold those of all micro-batches. */
static void widen_input(unroller *u, value_id v) {
    if (v == NO_VALUE) return;
    char name[64];
    const value old = *program_get(u->p, v);
    snprintf(name, sizeof name, "step.%.50s", old.name);
    u->inputs[v] =
        program_persistent(u->p, name, old.type, SHAPE(u->shape.n_micros * shape_count(&old.shape)), ROLE_INPUT);
}

static micro_inputs inputs_of_model(const net *m) {
    micro_inputs all = {.tokens = m->tokens,
                        .targets = m->targets,
                        .doc_start = m->doc_start,
                        .doc_start_all = m->doc_start_all,
                        .weights = m->weights,
                        .segments = m->segments,
                        .reference = m->reference,
                        .advantages = m->advantages,
                        .old = m->old,
                        .rollout = m->rollout,
                        .spans = {m->spans[0], m->spans[1]},
                        .scalars = m->scalars};
    memcpy(all.loss, m->loss, sizeof all.loss);
    return all;
}

static void widen_inputs(unroller *u) {
    const micro_inputs one = inputs_of_model(u->options->net);
    const value_id list[] = {one.tokens,    one.targets,  one.doc_start, one.doc_start_all, one.weights,
                             one.reference, one.segments, one.spans[0],  one.spans[1],      one.scalars};
    int n_losses = u->options->net->n_losses;
    for (size_t i = 0; i < ARRAY_LENGTH(list); i++) widen_input(u, list[i]);
    for (int k = 1; k < n_losses; k++) widen_input(u, one.loss[k].targets), widen_input(u, one.loss[k].weights);
    for (int64_t m = 0; m < u->shape.n_micros; m++) {
        u->step->inputs[m] = (micro_inputs){.tokens = copy_of(u, one.tokens, m),
                                            .targets = copy_of(u, one.targets, m),
                                            .doc_start = copy_of(u, one.doc_start, m),
                                            .doc_start_all = copy_of(u, one.doc_start_all, m),
                                            .weights = copy_of(u, one.weights, m),
                                            .reference = copy_of(u, one.reference, m),
                                            .segments = copy_of(u, one.segments, m),
                                            .spans = {copy_of(u, one.spans[0], m), copy_of(u, one.spans[1], m)},
                                            .scalars = copy_of(u, one.scalars, m)};
        for (int k = 0; k < n_losses; k++)
            u->step->inputs[m].loss[k] =
                (net_loss){copy_of(u, one.loss[k].targets, m), copy_of(u, one.loss[k].weights, m)};
    }
}

/* Last, when no op uses the values of one micro-batch any more. */
static void narrow_inputs(unroller *u) {
    for (value_id v = 1; v < u->n_old; v++)
        if (u->inputs[v]) u->p->values[v].view_of = u->inputs[v];
}

/* ---- ops -------------------------------------------------------------------------------------------------------------- */

/* A job begins with its message, or two, where a reference passes the stages beside the model; the first job begins with the
 * section. */
static status find_jobs(unroller *u) {
    int n = 0;
    u->n_jobs = pipeline_jobs(&u->shape, u->options->mesh.index[AXIS_PIPELINE], u->jobs);
    for (size_t i = 0; i < u->n_ops; i++) {
        bool second = i > 0 && is_between_stages(&u->ops[i - 1], OP_RECV) && u->ops[i - 1].attr.tag == TAG_REFERENCE;
        if (i > 0 && (!is_between_stages(&u->ops[i], OP_RECV) || second)) continue;
        if (n < u->n_jobs) u->job_begin[n] = i;
        n++;
    }
    u->job_begin[u->n_jobs] = u->n_ops;
    if (n != u->n_jobs)
        return ERR(ERR_BUG, "pipeline: a micro-batch of stage %d has %d messages to begin with, expected %d",
                   u->options->mesh.index[AXIS_PIPELINE], n, u->n_jobs);
    return OK;
}

static void append_copy(unroller *u, const op *o, int64_t micro) {
    op copy = *o;
    for (int k = 0; k < op_input_count(o->kind); k++) copy.in[k] = copy_of(u, o->in[k], micro);
    for (int k = 0; k < op_output_count(o->kind); k++) copy.out[k] = copy_of(u, o->out[k], micro);
    program_append(u->p, &copy);
}

static status append_entry(unroller *u, const pipeline_entry *e) {
    int j = 0;
    size_t n = 0; /* messages of the model */
    while (u->jobs[j].kind != e->job.kind || u->jobs[j].chunk != e->job.chunk) j++;
    for (size_t i = u->job_begin[j]; i < u->job_begin[j + 1]; i++) {
        const op *o = &u->ops[i];
        pipeline_act act = is_between_stages(o, OP_RECV)   ? ACT_RECV
                           : is_between_stages(o, OP_SEND) ? ACT_SEND
                                                           : ACT_RUN;
        if (act != e->act) continue;
        append_copy(u, o, e->micro);
        n += act == ACT_RUN || o->attr.tag != TAG_REFERENCE;
    }
    if (e->act != ACT_RUN && n != 1)
        return ERR(ERR_BUG, "pipeline: chunk %d %s %zu messages of a micro-batch, expected 1", e->job.chunk,
                   e->act == ACT_SEND ? "sends" : "receives", n);
    return OK;
}

static status unroll(unroller *u) {
    size_t n;
    TRY(find_jobs(u));
    status rc = OK;
    pipeline_entry *order = pipeline_order(&u->shape, u->options->mesh.index[AXIS_PIPELINE], &n);
    for (size_t i = 0; i < n && rc == OK; i++) rc = append_entry(u, &order[i]);
    free(order);
    return rc;
}

static status check(const pass_options *options, const pipeline_shape *s) {
    if (s->n_chunks > s->n_stages && s->n_micros % s->n_stages)
        return ERR(ERR_INPUT,
                   "parallel.virtual_stages: found %d with %lld micro-batches per step, expected a multiple of the %d "
                   "stages, as interleaving needs; change train.accumulation or set parallel.virtual_stages=1",
                   s->n_chunks / s->n_stages, (long long)options->n_micros, s->n_stages);
    return OK;
}

status pass_pipeline(program *p, const pass_options *options, step_interface *step) {
    const net *m = options->net;
    step->micros_per_run = 1;
    step->inputs = arena_array(&p->memory, micro_inputs, MAX(options->n_micros, (int64_t)1));
    step->inputs[0] = inputs_of_model(m);
    unroller u = {.p = p, .options = options, .step = step, .n_old = p->n_values};
    u.shape =
        (pipeline_shape){mesh_size(&options->mesh, AXIS_PIPELINE), m->n_chunks, options->n_micros, net_trains_tied(m)};
    if (u.shape.n_stages == 1 || !step->grads) return OK;
    TRY(check(options, &u.shape));
    size_t n_ops, first, end, n_jobs_most = 2 * (size_t)m->n_chunks + 1;
    program_section(p, SECTION_MICRO, &first, &end);
    op *ops = program_take_ops(p, &n_ops);
    u.ops = ops + first;
    u.n_ops = end - first;
    u.jobs = mem_alloc(n_jobs_most * sizeof *u.jobs);
    u.job_begin = mem_alloc((n_jobs_most + 1) * sizeof *u.job_begin);
    u.inputs = mem_alloc(u.n_old * sizeof *u.inputs);
    u.copies = mem_alloc(u.n_old * (size_t)options->n_micros * sizeof *u.copies);
    for (size_t i = 0; i < first; i++) program_append(p, &ops[i]);
    widen_inputs(&u);
    status rc = unroll(&u);
    narrow_inputs(&u);
    for (size_t i = end; i < n_ops; i++) program_append(p, &ops[i]);
    step->micros_per_run = options->n_micros;
    free(u.copies);
    free(u.inputs);
    free(u.job_begin);
    free(u.jobs);
    free(ops);
    return rc;
}
