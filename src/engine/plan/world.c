/* world.c - the same step on N ranks that are not here: bytes per rank, and bytes sent.
 *
 * All numbers come from compiled programs: for each ZeRO stage that of the first rank, for each layout those of the first
 * rank of every pipeline stage, of which the fullest is shown. The program of a pipeline has all micro-batches of a step,
 * which repeat from some number on: only that many are compiled, and the table says so. */
#include "plan/plan.h"

#include <math.h>
#include <stdlib.h>

/* ---- contents of a compiled plan ----------------------------------------------------------------------------------- */

typedef struct contents {
    uint64_t params, grads, states; /* persistent bytes of the device */
    uint64_t inside;                /* the rest of the device's arena */
    uint64_t kept_by_layers;        /* activations of blocks that the forward leaves for the backward */
} contents;

static size_t find_loss(const program *g) {
    for (size_t i = 0; i < g->n_ops; i++)
        if (g->ops[i].section == SECTION_MICRO && op_is_loss_gradient(g->ops[i].kind)) return i;
    return g->n_ops;
}

static void count_contents(const plan *p, contents *out) {
    const program *g = &p->program;
    *out = (contents){0};
    lifetime *life = mem_alloc(g->n_values * sizeof *life);
    layout_lifetimes(g, life);
    size_t loss = find_loss(g);
    for (value_id v = 1; v < g->n_values; v++) {
        const value *a = &g->values[v];
        if (a->view_of) continue;
        uint64_t n = value_bytes(a);
        bool is_held = a->persistent && tier_is_device(a->tier); /* what is offloaded is not in the device's arena */
        if (is_held && a->role == ROLE_GRAD) out->grads += n;
        if (is_held && a->role == ROLE_STATE) out->states += n;
        if (!a->persistent && a->role == ROLE_ACTIVATION && a->layer >= 0 && a->section == SECTION_MICRO &&
            life[v].first < loss && life[v].last > loss && life[v].last != SIZE_MAX)
            out->kept_by_layers += n;
        if (is_held && a->role == ROLE_PARAM) out->params += n;
    }
    out->inside = p->planned[TIER_DEVICE] - out->params - out->grads - out->states;
    free(life);
}

/* ---- ZeRO -------------------------------------------------------------------------------------------------------- */

/* The textbook's 14 bytes: 16-bit parameter, fp32 gradient, fp32 m and v, and no fp32 master. */
static uint64_t textbook_bytes(uint64_t n_params, const uint64_t cut[3]) {
    static const uint64_t each[3] = {2, 4, 8};
    uint64_t n = 0;
    for (int i = 0; i < 3; i++) n += (n_params + cut[i] - 1) / cut[i] * each[i];
    return n;
}

/* Of a step; NAN where the machine's description lacks a number for it. */
static double predicted(plan_world *w, const plan *p) {
    if (p->cost.missing) w->missing = p->cost.missing;
    return p->request.hardware && !p->cost.missing ? p->cost.step_s : NAN;
}

static bool fits(const plan_world *w, const plan *p) {
    plan_limits limits = plan_limits_of(&w->request);
    return plan_limits_hold(&limits, p->planned);
}

/* Splits train.batch over the data ranks, rounded where that leaves a remainder: this is a table, not a run. */
static void share_rows(plan_request *r) {
    int64_t rows = r->step_rows / mesh_size(&r->mesh, AXIS_DATA);
    if (r->open.micro_batch && mesh_size(&r->mesh, AXIS_PIPELINE) > 1) { /* as a run takes them: stages must agree */
        r->open.micro_batch = false;
        r->choice.accumulation *= r->choice.micro_batch;
        r->choice.micro_batch = 1;
    }
    if (!r->step_rows) return;
    if (r->open.micro_batch) r->choice.micro_batch = MAX(rows, (int64_t)1);
    else r->choice.accumulation = MAX(rows / r->choice.micro_batch, (int64_t)1);
}

/* The program of the first rank, which has the most: padding of the last bucket is on the last ranks. */
static status compile_stage(const plan_world *w, int zero, plan *p) {
    plan_request r = w->request;
    r.device_limit = r.together_limit = 0;
    r.mesh = (mesh){.size[AXIS_DATA] = w->n_ranks};
    r.choice.shard.zero = zero;
    r.open.zero = r.open.sequence = false;
    share_rows(&r);
    return plan_choose(p, &r);
}

static status fill_stage(plan_world *w, int zero) {
    static const char *const names[WORLD_STAGES] = {"DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3"};
    plan p;
    contents in;
    uint64_t N = (uint64_t)w->n_ranks;
    const uint64_t cut[3] = {zero >= 3 ? N : 1, zero >= 2 ? N : 1, zero >= 1 ? N : 1};
    TRY(compile_stage(w, zero, &p));
    count_contents(&p, &in);
    plan_world_stage *s = &w->stages[zero];
    *s = (plan_world_stage){.name = names[zero],
                            .fits = fits(w, &p),
                            .bytes = {.params = in.params,
                                      .grads = in.grads,
                                      .states = in.states,
                                      .window = p.by_role[ROLE_COMM],
                                      .activations = in.inside - p.by_role[ROLE_COMM],
                                      .total = p.planned[TIER_DEVICE]},
                            .volume = plan_volume(&p) * (double)N / (double)(N - 1),
                            .volume_bytes = p.sent_per_step,
                            .comm_s = isfinite(predicted(w, &p)) ? p.cost.busy_s[STREAM_COMM] : NAN};
    if (precision_master(p.request.choice.precision)) s->textbook = textbook_bytes(w->n_params, cut);
    plan_close(&p);
    return OK;
}

/* ---- tensor, pipeline, sequence ---------------------------------------------------------------------------------- */

/* One stage of a layout: the program of its first rank. */
static status compile_layout(const plan_world *w, const plan_world_layout *l, int stage, plan *p) {
    plan_request r = w->request;
    r.device_limit = r.together_limit = 0; /* compiled whatever its size: the table shows what fits */
    r.mesh = (mesh){.size = {[AXIS_DATA] = l->data,
                             [AXIS_TENSOR] = l->tensor,
                             [AXIS_PIPELINE] = l->pipeline,
                             [AXIS_SEQUENCE] = l->sequence},
                    .index = {[AXIS_PIPELINE] = stage}};
    r.choice.shard.zero = l->zero;
    r.open.zero = r.open.sequence = false;
    r.shorten = true;
    share_rows(&r);
    return plan_choose(p, &r);
}

static status fill_layout(plan_world *w, plan_world_layout *l) {
    l->step_s = NAN;
    l->fits = true;
    for (int stage = 0; stage < l->pipeline; stage++) {
        plan p;
        contents in;
        status rc = compile_layout(w, l, stage, &p);
        if (rc == ERR_INPUT) { /* this layout is not possible, and the builder says why */
            snprintf(l->why_not, sizeof l->why_not, "%s", error_message());
            error_clear();
            return OK;
        }
        if (rc != OK) return rc;
        count_contents(&p, &in);
        if (p.planned[TIER_DEVICE] > l->bytes.total)
            l->bytes = (plan_world_share){.params = in.params,
                                          .grads = in.grads,
                                          .states = in.states,
                                          .window = p.by_role[ROLE_COMM],
                                          .activations = in.inside - p.by_role[ROLE_COMM],
                                          .total = p.planned[TIER_DEVICE]};
        l->fits &= fits(w, &p);
        l->micro_batch = p.request.choice.micro_batch, l->accumulation = p.request.choice.accumulation;
        l->built_micros = plan_built_micros(&p.request);
        l->step_s = fmax(l->step_s, predicted(w, &p));
        l->bubble = plan_bubble(&p.request);
        plan_close(&p);
    }
    return OK;
}

static void name_layout(plan_world_layout *l) {
    const struct {
        const char *name;
        int n;
    } parts[] = {{"DP", l->data}, {"TP", l->tensor}, {"PP", l->pipeline}, {"SP", l->sequence}};
    size_t at = 0;
    for (size_t k = 0; k < ARRAY_LENGTH(parts); k++)
        if (parts[k].n > 1)
            at +=
                (size_t)snprintf(l->name + at, sizeof l->name - at, "%s%s%d", at ? " " : "", parts[k].name, parts[k].n);
}

/* Data parallel; mostly tensor parallel; mostly pipeline parallel; both with sequence parallel. For 8 ranks: DP8; TP4 PP2;
 * TP2 PP4; TP2 PP2 SP2. No axis is wider than a usual node; further ranks become data ranks and, where the ZeRO stage is
 * open, shard the states, which needs no extra messages. */
static status fill_layouts(plan_world *w) {
    enum { WIDEST = 8 };
    int n = w->n_ranks, half = MIN(n / 2, WIDEST), quarter = MIN(n / 4, WIDEST);
    const int cuts[WORLD_LAYOUTS][3] = {{1, 1, 1}, {half, 2, 1}, {2, half, 1}, {2, 2, quarter}};
    for (int i = 0; i < WORLD_LAYOUTS; i++) {
        plan_world_layout l = {.tensor = cuts[i][0], .pipeline = cuts[i][1], .sequence = cuts[i][2]};
        int cut = l.tensor * l.pipeline * l.sequence;
        if (cut < 1 || n % cut || (n <= 2 * WIDEST && i > 0 && cut != n)) continue;
        l.data = n / cut;
        l.zero = i > 0 && l.data > 1 && w->request.open.zero ? 1 : w->request.choice.shard.zero;
        bool known = false;
        for (int k = 0; k < w->n_layouts; k++)
            known |= w->layouts[k].tensor == l.tensor && w->layouts[k].pipeline == l.pipeline &&
                     w->layouts[k].sequence == l.sequence;
        if (known) continue;
        name_layout(&l);
        TRY(fill_layout(w, &l));
        w->layouts[w->n_layouts++] = l;
    }
    return OK;
}

/* ---- the ladder -------------------------------------------------------------------------------------------------- */

static status fill_ladder(plan_world *w) {
    plan_request r = w->request;
    plan p;
    r.open.micro_batch = r.open.precision = false; /* each row says them */
    r.device_limit = r.together_limit =
        0; /* no limit: each row is compiled as named, and only its verdict says whether it fits */
    int64_t rows = r.choice.micro_batch * r.choice.accumulation;
    const struct {
        const char *name;
        precision precision;
        int64_t micro_batch;
        recompute_kind recompute;
    } compiled[WORLD_LADDER_ROWS - 1] = {{"base: fp32", PRECISION_FP32, rows, RECOMPUTE_NONE},
                                         {"mixed precision: bf16", PRECISION_BF16, rows, RECOMPUTE_NONE},
                                         {"+ accumulation", PRECISION_BF16, 1, RECOMPUTE_NONE},
                                         {"+ recompute of every block", PRECISION_BF16, 1, RECOMPUTE_FULL}};
    for (size_t i = 0; i < ARRAY_LENGTH(compiled); i++) {
        /* One row cannot be split into micro-batches. */
        bool is_known = i > 0 && compiled[i].precision == compiled[i - 1].precision &&
                        compiled[i].micro_batch == compiled[i - 1].micro_batch &&
                        compiled[i].recompute == compiled[i - 1].recompute;
        r.choice.precision = compiled[i].precision;
        r.choice.micro_batch = compiled[i].micro_batch;
        r.choice.accumulation = rows / r.choice.micro_batch;
        r.choice.recompute = (recompute_policy){.kind = compiled[i].recompute};
        if (is_known) w->ladder[i] = w->ladder[i - 1];
        else {
            TRY(plan_choose(&p, &r));
            w->ladder[i] = (plan_world_ladder_row){
                .bytes = p.planned[TIER_DEVICE], .fits = fits(w, &p), .step_s = predicted(w, &p)};
            plan_close(&p);
        }
        snprintf(w->ladder[i].name, sizeof w->ladder[i].name, "%s, %lld x %lld", compiled[i].name,
                 (long long)r.choice.micro_batch, (long long)r.choice.accumulation);
    }
    plan_world_ladder_row *sharded = &w->ladder[WORLD_LADDER_ROWS - 1];
    plan_world of = *w;
    of.request = r;
    of.request.step_rows = 0; /* the rows of the lines above */
    TRY(compile_stage(&of, 2, &p));
    *sharded =
        (plan_world_ladder_row){.bytes = p.planned[TIER_DEVICE], .fits = fits(w, &p), .step_s = predicted(w, &p)};
    plan_close(&p);
    snprintf(sharded->name, sizeof sharded->name, "+ sharding: ZeRO-2 on %d ranks", w->n_ranks);
    return OK;
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

status plan_world_compile(plan_world *w, const plan_request *r, int n_ranks) {
    plan p;
    contents c;
    ASSERT(n_ranks >= 2);
    *w = (plan_world){.n_ranks = n_ranks, .request = *r, .n_params = net_param_count(&r->source)};
    w->request.device_limit = w->request.together_limit = 0; /* compiled whatever its size; the tables show what fits */
    w->request.compare = false;                              /* compile only what was asked: the tables compare */
    w->request.mesh = (mesh){0};                             /* each table sets its own */
    w->request.choice.sequence = 0;
    w->request.virtual_stages = 1;
    TRY(plan_choose(&p, &w->request));
    count_contents(&p, &c);
    int64_t n_tokens = p.request.choice.micro_batch * r->seq_len;
    plan_close(&p);
    w->request.device_limit = r->device_limit;
    w->request.together_limit = r->together_limit;
    w->kept_per_layer_token = (double)c.kept_by_layers / (double)(r->source.n_layers * n_tokens);
    for (int zero = 0; zero < WORLD_STAGES; zero++) TRY(fill_stage(w, zero));
    TRY(fill_layouts(w));
    return fill_ladder(w);
}
