/* plan.c - compile a request and find out where its bytes are.
 *
 * The peak of a tier is exact: it is the size of the arena that layout filled. Lifetimes show what is in use at the peak: the
 * op at which the most bytes are alive, and the values alive there. */
#include "plan/search.h"
#include "plan/timeline.h"

#include <stdlib.h>
#include <string.h>

typedef struct sized_value {
    size_t n_bytes;
    value_id id;
} sized_value;

static int larger_first(const void *a, const void *b) {
    const sized_value *x = a, *y = b;
    if (x->n_bytes != y->n_bytes) return x->n_bytes > y->n_bytes ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static void sort_by_size(const program *g, value_id *ids, size_t n) {
    sized_value *list = mem_alloc((n + 1) * sizeof *list);
    for (size_t i = 0; i < n; i++) list[i] = (sized_value){value_bytes(&g->values[ids[i]]), ids[i]};
    qsort(list, n, sizeof *list, larger_first);
    for (size_t i = 0; i < n; i++) ids[i] = list[i].id;
    free(list);
}

value_id *plan_values_alive(const program *g, tier t, size_t op_index, size_t *n) {
    lifetime *life = mem_alloc(g->n_values * sizeof *life);
    value_id *out = mem_alloc(g->n_values * sizeof *out);
    *n = 0;
    plan_lifetimes(g, life);
    for (value_id v = 1; v < g->n_values; v++) {
        const value *a = &g->values[v];
        if (a->view_of || a->tier != t || life[v].first > op_index || life[v].last < op_index) continue;
        out[(*n)++] = v;
    }
    sort_by_size(g, out, *n);
    free(life);
    return out;
}

static void find_peak(plan *p) {
    const program *g = &p->program;
    plan_alive *alive = plan_alive_at_ops(g, TIER_DEVICE);
    uint64_t most = 0;
    for (size_t i = 0; i < g->n_ops; i++)
        if (plan_alive_sum(&alive[i]) > most) most = plan_alive_sum(&alive[i]), p->peak_op = i;
    memcpy(p->by_role, alive[p->peak_op].by_role, sizeof p->by_role);
    p->gap_bytes = p->planned[TIER_DEVICE] - plan_alive_sum(&alive[p->peak_op]);
    p->at_peak = plan_values_alive(g, TIER_DEVICE, p->peak_op, &p->n_at_peak);
    free(alive);
}

static void count_work(plan *p) {
    const program *g = &p->program;
    for (size_t i = 0; i < g->n_ops; i++) {
        section s = g->ops[i].section;
        double times = s == SECTION_MICRO ? plan_micro_runs(p) : 1;
        if (!section_of_step(s) && !(s == SECTION_DECODE && plan_generates(&p->request))) continue;
        double again = op_flops_again(g, &g->ops[i]);
        p->flops_again += times * again;
        p->flops_per_step += times * (op_flops(g, &g->ops[i]) - again);
        p->bytes_per_step += times * op_bytes(g, &g->ops[i]);
        p->sent_per_step += times * op_sent(g, &g->ops[i]);
    }
}

/* Bytes of parameters and states that this rank writes to a checkpoint. */
static uint64_t state_bytes(const plan *p) {
    const step_interface *s = &p->step;
    const value_id *states[] = {s->masters, s->moments, s->variances, s->moment_scales, s->variance_scales};
    uint64_t n = 0;
    for (size_t i = 0; i < p->net.n_params; i++) {
        param_share share = shard_counted(s, &p->net, &p->request.mesh, i);
        if (share.n == 0 || p->net.params[i].frozen) continue;
        n += (uint64_t)share.n * dtype_bytes(precision_compute(p->request.choice.precision));
        for (size_t k = 0; k < ARRAY_LENGTH(states); k++) {
            int64_t per = states[k] == s->moment_scales || states[k] == s->variance_scales ? STATE_BLOCK : 1;
            if (states[k][i])
                n += (uint64_t)((share.n + per - 1) / per) * dtype_bytes(p->program.values[states[k][i]].type);
        }
    }
    return n;
}

uint64_t plan_trained_params(const plan_request *r) {
    return r->lora.rank ? r->source.by->count_adapters(&r->source, &r->lora) : net_param_count(&r->source);
}

uint64_t plan_staged_bytes(const plan *p) {
    return p->request.state_copies ? p->request.state_copies * state_bytes(p) : 0;
}

uint64_t plan_checkpoint_bytes(const plan *p) {
    const plan_request *r = &p->request;
    state_format f = state_format_of(r->choice.precision, r->choice.states);
    dtype state = f == STATES_INT8 ? DTYPE_I8 : f == STATES_BF16 ? DTYPE_BF16 : DTYPE_F32;
    uint64_t n = plan_trained_params(r), scales = f == STATES_INT8 ? n / STATE_BLOCK : 0;
    size_t per_param = dtype_bytes(precision_compute(r->choice.precision)) + 2 * dtype_bytes(state);
    if (precision_master(r->choice.precision)) per_param += dtype_bytes(DTYPE_F32);
    return n * per_param + 2 * scales * dtype_bytes(DTYPE_F32);
}

static int64_t tokens_of(const plan_request *r) {
    return r->choice.micro_batch * r->seq_len / mesh_size(&r->mesh, AXIS_SEQUENCE);
}

/* Every chunk of logits reads and writes the whole fp32 gradient of the unembedding: 8 V C bytes against 6 rows V C FLOP. 384
 * rows keep that under an eighth of the time on the fastest CPU measured; a device has its own number. Chunks below 4 MiB
 * save nothing. The size never depends on free memory: the chunks decide the order of a sum. */
#define CHUNK_ROWS 384
#define CHUNK_MIN (4ll << 20)

/* A gradient of the unembedding in 16 bits is rounded once, and what chunks do not keep of the logits' gradient is computed again for it:
 * 8 N V C FLOP in the place of 6. All of that gradient is kept instead where it takes a GPU at most twice the bytes of its chunks, which is
 * so up to 7,280 tokens, or three times those of the unembedding's weight, up to 2.7 C tokens: the smaller the model, the sooner the
 * gradient of its logits is what does not fit. Also this follows from shapes, not from what is free. */
enum { STORED_CHUNKS = 2, STORED_WEIGHTS = 3 };
static int64_t stored_bytes(const plan_request *r, int64_t ids) {
    int64_t tokens = tokens_of(r);
    int64_t row = round_up(ids, LOGITS_UNIT) * (int64_t)sizeof(float), chunk = divide_up(tokens, LOGITS_CHUNKS_MOST);
    return row / 2 * tokens + row * chunk;
}

static int64_t logits_chunk(const plan_request *r) {
    int64_t rows = r->target.logits_rows ? r->target.logits_rows : CHUNK_ROWS;
    int64_t n = mesh_size(&r->mesh, AXIS_TENSOR), ids = (r->source.vocab + n - 1) / n;
    if (r->logits_chunk_bytes) return r->logits_chunk_bytes;
    if (r->target.discrete && r->choice.fp8_logits) return MAX(logits8_bytes(tokens_of(r), ids), CHUNK_MIN);
    int64_t plain = MAX(rows * ids * (int64_t)sizeof(float), CHUNK_MIN);
    precision p = r->choice.precision;
    bool rounds_once = precision_compute(p) != DTYPE_F32 && !precision_master(p) && !r->lora.rank;
    if (!r->target.discrete || !rounds_once || r->choice.micro_batch * r->seq_len <= rows) return plain;
    int64_t stored = stored_bytes(r, ids), weight = ids * r->source.hidden * (int64_t)dtype_bytes(precision_compute(p));
    return stored <= MAX(STORED_CHUNKS * plain, STORED_WEIGHTS * weight) ? MAX(stored, plain) : plain;
}

/* Micro-batches that were not compiled still have inputs on the device, from the start of the step. */
static void add_inputs_left_out(plan *p) {
    const micro_inputs *one = &p->step.inputs[0];
    const value_id inputs[] = {one->tokens,  one->targets,  one->doc_start, one->doc_start_all,
                               one->weights, one->segments, one->reference, one->scalars};
    uint64_t n = 0;
    for (size_t i = 0; i < ARRAY_LENGTH(inputs); i++)
        if (inputs[i]) n += value_bytes(program_get(&p->program, inputs[i]));
    for (int k = 1; k < p->net.n_losses; k++)
        n += value_bytes(program_get(&p->program, one->loss[k].targets)) +
             value_bytes(program_get(&p->program, one->loss[k].weights));
    n *= (uint64_t)(p->request.choice.accumulation - plan_built_micros(&p->request));
    p->planned[TIER_DEVICE] += n;
    p->by_role[ROLE_INPUT] += n;
}

/* The model and the passes over it. */
static status build_program(plan *p) {
    const plan_request *r = &p->request;
    net_options o = {.batch = r->choice.micro_batch,
                     .seq_len = r->seq_len,
                     .compute = precision_compute(r->choice.precision),
                     .with_eval = r->with_eval || plan_shares_z(r) || plan_asks_own_reference(r),
                     .no_training = r->no_training,
                     .virtual_stages = r->virtual_stages,
                     .mesh = r->mesh,
                     .ring = p->attention.kind == ATTENTION_RING,
                     .generation = r->generation,
                     .token_weights = r->token_weights,
                     .lora = r->lora,
                     .base = r->base,
                     .critic = r->critic,
                     .value_dropout = r->value_dropout,
                     .preference = r->preference,
                     .share_prompts = r->share_prompts,
                     .policy = r->policy,
                     .reference = r->reference,
                     .z_input = plan_shares_z(r),
                     .selection = r->selection,
                     .logits_chunk_bytes = r->logits_chunk_bytes};
    TRY(r->source.by->write(&p->net, &p->program, &r->source, &o));
    const pass_options options = {.target = &r->target,
                                  .net = &p->net,
                                  .choice = r->choice,
                                  .n_micros = plan_built_micros(r),
                                  .optimizer = r->optimizer,
                                  .place = plan_place(r),
                                  .mesh = r->mesh,
                                  .verify = r->verify};
    return pass_run(&p->program, &options, &p->step);
}

static void add_cost(plan *p) {
    const plan_request *r = &p->request;
    if (r->hardware) cost_program(&p->cost, &p->program, r->hardware, &r->mesh, plan_micro_runs(p));
    p->cost.step_s += plan_waiting(r) * plan_micro_runs(p) * p->cost.micro_s;
    if (r->hardware && plan_shares_z(r)) /* its rows are evaluated before the step */
        p->cost.step_s += plan_micro_runs(p) * cost_section(&p->program, SECTION_EVAL, r->hardware, &r->mesh,
                                                            p->cost.busy_s, &p->cost.missing);
}

status plan_build(plan *p, const plan_request *asked) {
    ASSERT(!plan_is_open(asked));
    *p = (plan){.request = plan_request_complete(asked), .asked = asked->choice};
    plan_request *r = &p->request;
    p->attention = plan_attention(r);
    r->logits_chunk_bytes = logits_chunk(r);
    program_init(&p->program);
    status rc = build_program(p);
    if (rc != OK) {
        plan_close(p);
        return rc;
    }
    for (tier t = 0; t < TIER_COUNT; t++) p->planned[t] = p->program.arena_bytes[t];
    find_peak(p);
    count_work(p);
    add_cost(p);
    add_inputs_left_out(p);
    p->planned[TIER_HOST] +=
        r->generator_bytes + r->host_bytes + (uint64_t)r->choice.micro_batch * r->host_row_bytes + plan_staged_bytes(p);
    return OK;
}

void plan_close(plan *p) {
    free(p->at_peak);
    free(p->candidates);
    net_fini(&p->net);
    program_fini(&p->program);
    *p = (plan){0};
}

void plan_move(plan *to, plan *from) {
    *to = *from;
    *from = (plan){0};
}

bool plan_fits(const plan *p) {
    plan_limits limits = plan_limits_of(&p->request);
    return plan_limits_hold(&limits, p->planned);
}

/* Messages between data ranks in elements, not bytes: gradients may be wider than parameters. Those of the norm and the loss
 * are too small to count. */
double plan_volume(const plan *p) {
    const program *g = &p->program;
    double n = 0;
    for (size_t i = 0; i < g->n_ops; i++) {
        const op *o = &g->ops[i];
        if (!op_is_comm(o->kind) || o->attr.axis != AXIS_DATA || !section_of_step(o->section)) continue;
        dtype t = program_get(g, op_message(o))->type;
        if (t != DTYPE_F64)
            n += (o->section == SECTION_MICRO ? plan_micro_runs(p) : 1) * op_sent(g, o) / (double)dtype_bytes(t);
    }
    double n_params = 0;
    for (size_t i = 0; i < p->net.n_params; i++) n_params += (double)shape_count(&p->net.params[i].shape);
    return n / n_params;
}

int64_t plan_tokens_per_step(const plan *p) {
    if (plan_generates(&p->request)) return p->request.generation.slots;
    return p->request.choice.micro_batch * p->request.choice.accumulation * p->request.seq_len *
           mesh_size(&p->request.mesh, AXIS_DATA);
}
