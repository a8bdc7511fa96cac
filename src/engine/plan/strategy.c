/* strategy.c - search the open choices of a request for the fastest candidate that fits.
 *
 * Candidates are combinations of the open choices: precision, micro-batch against accumulation, ZeRO stage, how many data
 * ranks share a row, the rungs of recompute, and a list of offload targets. Choices of memory alone change no bit of the
 * result; ranks that share rows sum in another order, and so do ZeRO 2 and 3 against 0 and 1 where a rank has several
 * micro-batches. Time comes from the cost model; without a description of a machine, the order of the list decides.
 *
 * A deep model repeats a period of layers, often a single one. Its candidates are compiled twice with a few periods and
 * extrapolated, which is quick; the winner is then compiled with all layers, so that its bytes are exact.
 *
 * The search begins with what costs least time: nothing offloaded or recomputed, in every ZeRO stage, because a sharded
 * update may be faster. If the fastest of these fits and only memory is open, the search ends: all other techniques cost
 * time. Otherwise it adds offload and recompute. It uses the smallest number of ranks per row with which nothing must be
 * moved, since more ranks only send more. It drops a ZeRO stage that is slower and larger than another one with nothing
 * moved. If only the host is too small, it tries all combinations of offload targets, not only the list. At the end the best few
 * are varied (refine.c). */
#include "plan/search.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

enum {
    FEW_LAYERS = 8,
    MORE_LAYERS = 4,
    DEEP = 16,
    VERY_DEEP = 32,
    BATCHES_MAX = 6,
    FACTOR_MAX = 65536,
    ZERO_STAGES = 4,
    TOKENS_MAX = 1 << 28
};

/* ---- the candidates ------------------------------------------------------------------------------------------------- */

#define DEV TIER_DEVICE
#define HOST TIER_HOST
#define NVME TIER_NVME

/* From little to much cost in time, on most machines. Parameters alone are moved so that the same with states on the host may keep those
 * of some layers: between the two lies what mix.c looks for. */
static const offload_tiers offload_order[] = {
    OFFLOAD(DEV, DEV, DEV, DEV),    OFFLOAD(DEV, DEV, HOST, DEV),    OFFLOAD(DEV, HOST, HOST, DEV),
    OFFLOAD(HOST, DEV, DEV, DEV),   OFFLOAD(HOST, DEV, HOST, DEV),   OFFLOAD(HOST, HOST, HOST, DEV),
    OFFLOAD(DEV, DEV, DEV, HOST),   OFFLOAD(DEV, DEV, HOST, HOST),   OFFLOAD(DEV, HOST, HOST, HOST),
    OFFLOAD(HOST, DEV, HOST, HOST), OFFLOAD(HOST, HOST, HOST, HOST), OFFLOAD(DEV, DEV, NVME, DEV),
    OFFLOAD(DEV, HOST, NVME, DEV),  OFFLOAD(HOST, HOST, NVME, DEV),  OFFLOAD(HOST, HOST, NVME, HOST),
    OFFLOAD(NVME, NVME, NVME, DEV), OFFLOAD(NVME, NVME, NVME, HOST), OFFLOAD(NVME, NVME, NVME, NVME),
};
#undef DEV
#undef HOST
#undef NVME

static const recompute_kind rungs[] = {RECOMPUTE_NONE, RECOMPUTE_NORMS, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL};
static const precision precisions[] = {PRECISION_FP32, PRECISION_BF16};

void plan_search_append(plan_search *s, const plan_candidate *c) {
    s->list = array_grow(s->list, &s->capacity, s->n + 1, sizeof *s->list);
    s->list[s->n++] = *c;
}

static void add_candidate(plan_search *s, plan_candidate c) {
    for (size_t i = 0; i < s->n; i++)
        if (step_choice_equal(&s->list[i].choice, &c.choice, CHOICE_NONE)) return;
    c.step_s = NAN;
    c.order = s->n_tried++;
    plan_search_append(s, &c);
}

/* c with these offload targets and the first n rungs of recompute, where they are open. */
static void add_rungs(plan_search *s, plan_candidate c, const offload_tiers *h, size_t n_rungs) {
    const plan_request *r = s->r;
    c.choice.offload = plan_offload_tiers(r, h);
    if (offload_on_nvme(&c.choice.offload) && !offload_on_nvme(&r->choice.offload) && !r->may_nvme) return;
    bool recompute = r->choice.recompute.kind == RECOMPUTE_AUTO;
    for (size_t k = 0; k < (recompute ? n_rungs : 1); k++) {
        c.choice.recompute = recompute ? (recompute_policy){.kind = rungs[k]} : r->choice.recompute;
        add_candidate(s, c);
    }
}

/* ... with the first n rows of offload_order. */
static void add_offloads(plan_search *s, plan_candidate c, size_t n_offloads, size_t n_rungs) {
    for (size_t i = 0; i < n_offloads; i++) add_rungs(s, c, &offload_order[i], n_rungs);
}

/* ... with every combination of offload targets. */
static void add_all_offloads(plan_search *s, plan_candidate c) {
    static const tier all[] = {TIER_DEVICE, TIER_HOST, TIER_NVME};
    enum { N = ARRAY_LENGTH(all) };
    for (size_t i = 0; i < N * N * N * N; i++) {
        offload_tiers h = OFFLOAD(all[i % N], all[i / N % N], all[i / (N * N) % N], all[i / (N * N * N)]);
        add_rungs(s, c, &h, ARRAY_LENGTH(rungs));
    }
}

/* Nothing offloaded or recomputed beyond what was asked for. */
static void add_plain(plan_search *s, plan_candidate c) {
    bool open = s->r->open.zero && plan_ranks_open(s->r) && plan_row_ranks(s->r) > c.choice.sequence;
    for (int zero = 0; zero < (open ? ZERO_STAGES : 1); zero++) {
        /* One data rank has nothing to shard: all stages are the same. */
        c.choice.shard.zero = open ? zero : s->r->choice.shard.zero;
        add_offloads(s, c, 1, 1);
    }
}

/* The largest micro-batch first: fewer, larger products. Neither factor exceeds the range of its setting, nor a
 * micro-batch the tokens that a program may have; where no split is in range, the rows are tried as they are. Of many
 * splits some are tried, the first and the last among them: the smallest micro-batch fits if any does. */
static void add_batches(plan_search *s, plan_candidate c) {
    int64_t rows = c.choice.micro_batch * c.choice.accumulation, *times = mem_alloc(FACTOR_MAX * sizeof *times);
    int n = 0;
    for (int64_t k = 1; k <= MIN(rows, (int64_t)FACTOR_MAX); k++)
        if (rows % k == 0 && rows / k <= FACTOR_MAX && rows / k * s->r->seq_len <= TOKENS_MAX) times[n++] = k;
    for (int i = 0; i < MIN(n, (int)BATCHES_MAX); i++) {
        int at = n <= BATCHES_MAX ? i : i * (n - 1) / (BATCHES_MAX - 1);
        c.choice.micro_batch = rows / times[at];
        c.choice.accumulation = times[at];
        add_plain(s, c);
    }
    if (n == 0) add_plain(s, c);
    free(times);
}

/* All candidates with nothing moved in which `sequence` ranks share a row. */
static void list_plain(plan_search *s, int sequence) {
    const plan_request *r = s->r;
    int64_t micros = r->choice.accumulation * sequence, before = mesh_size(&r->mesh, AXIS_SEQUENCE);
    if (micros % before) return; /* fewer than one micro-batch each */
    plan_candidate c = plan_as_asked(r);
    c.choice.accumulation = micros / before;
    c.choice.sequence = sequence;
    for (size_t i = 0; i < (r->open.precision ? ARRAY_LENGTH(precisions) : 1); i++) {
        if (r->open.precision) c.choice.precision = precisions[i];
        if (r->open.micro_batch) add_batches(s, c);
        else add_plain(s, c);
    }
}

/* ---- numbers of a candidate ------------------------------------------------------------------------------------------ */

plan_candidate plan_as_asked(const plan_request *r) {
    return (plan_candidate){.choice = plan_request_complete(r).choice};
}

plan_candidate plan_chosen(const plan *p) { return (plan_candidate){.choice = p->request.choice}; }

static void set_limits(const plan_request *r, plan_candidate *c) {
    plan_limits limits = plan_limits_of(r);
    c->excess = plan_limits_excess(&limits, c->planned);
    c->fits = c->excess.device == 0 && c->excess.host == 0;
}

void plan_candidate_set_numbers(plan_candidate *c, const plan *p) {
    memcpy(c->planned, p->planned, sizeof c->planned);
    memcpy(c->by_role, p->by_role, sizeof c->by_role);
    c->step_s = p->request.hardware && !p->cost.missing ? p->cost.step_s : NAN;
    c->more_flops = p->flops_again / p->flops_per_step;
    set_limits(&p->request, c);
    c->estimated = false;
}

/* Two numbers of layers from which those of the whole model are extrapolated. They differ from each other and from the
 * model by whole periods, so that each further layer of a kind is counted at the price of that kind, and what the periods
 * leave over is in both. */
typedef struct sample {
    int64_t few, more;
} sample;

/* PLAN_IN_PARTS: both are multiples of PLAN_PARTS. False: the model has too few periods, or none. */
static bool find_sample(const plan_request *r, plan_effort effort, sample *s) {
    int64_t n = net_trunk(&r->source), period = r->source.period;
    int64_t unit = effort == PLAN_IN_PARTS ? PLAN_PARTS : 1, further = MAX(unit, (int64_t)MORE_LAYERS);
    for (s->few = FEW_LAYERS; s->few < n && (s->few < period || (n - s->few) % period); s->few += unit)
        ;
    for (s->more = s->few + further; s->more < n && (s->more - s->few) % period; s->more += unit)
        ;
    return s->more < r->source.n_layers;
}

/* What a way from `few` to `more`, of which 1 is that length, makes of two numbers. */
static double continue_line(double few, double more, double way) { return few + (more - few) * way; }
static uint64_t continue_bytes(uint64_t few, uint64_t more, double way) {
    return (uint64_t)fmax(0, continue_line((double)few, (double)more, way));
}

static int64_t at_depth(int64_t count, int64_t n, int64_t of) { return (count * n + of / 2) / of; }

/* The same candidate of a model of n layers: what is counted in layers is the same share of them. */
static plan_request with_layers(const plan_request *r, const step_choice *c, int64_t n) {
    plan_request q = plan_request_of(r, c);
    int64_t layers = net_trunk(&r->source);
    q.source.by->set_trunk(&q.source, n);
    q.choice.keep_layers = at_depth(c->keep_layers, n, layers);
    q.choice.keep_states = at_depth(c->keep_states, n, layers);
    q.choice.keep_params = at_depth(c->keep_params, n, layers);
    if (c->recompute.kind == RECOMPUTE_MIX) q.choice.recompute.n_heavy = at_depth(c->recompute.n_heavy, n, layers);
    return q;
}

static status estimate(const plan_request *r, plan_candidate *c, const sample *of) {
    plan_request q = with_layers(r, &c->choice, of->few);
    plan few, more;
    double way = (double)(net_trunk(&r->source) - of->few) / (double)(of->more - of->few);
    TRY(plan_build(&few, &q));
    q = with_layers(r, &c->choice, of->more);
    status rc = plan_build(&more, &q);
    if (rc == OK) {
        for (tier t = 0; t < TIER_COUNT; t++) c->planned[t] = continue_bytes(few.planned[t], more.planned[t], way);
        for (role k = 0; k < ROLE_COUNT; k++) c->by_role[k] = continue_bytes(few.by_role[k], more.by_role[k], way);
        c->step_s = r->hardware && !few.cost.missing ? continue_line(few.cost.step_s, more.cost.step_s, way) : NAN;
        c->more_flops = continue_line(few.flops_again, more.flops_again, way) /
                        continue_line(few.flops_per_step, more.flops_per_step, way);
        set_limits(r, c);
        c->estimated = true;
        plan_close(&more);
    }
    plan_close(&few);
    return rc;
}

status plan_build_candidate(const plan_request *r, plan_candidate *c, plan *out) {
    plan_request q = plan_request_of(r, &c->choice);
    TRY(plan_build(out, &q));
    plan_candidate_set_numbers(c, out);
    return OK;
}

bool plan_is_one_device(const plan_request *r) { return !plan_is_placed(r) && mesh_size(&r->mesh, AXIS_PIPELINE) == 1; }

/* The layers of a pipeline stage do not grow linearly with those of the model. */
static bool is_deep(const plan_request *r) { return r->source.n_layers >= DEEP && plan_is_one_device(r); }

/* ... and neither do choices for only the last, the first, or every n-th layer. */
static bool is_linear_in_layers(const plan_candidate *c) {
    const step_choice *s = &c->choice;
    bool all_alike = s->keep_layers == 0 && (s->keep_states == 0 || s->offload.states == TIER_DEVICE) &&
                     (s->keep_params == 0 || s->offload.params == TIER_DEVICE);
    return all_alike && s->cpu_layers == 0 && s->recompute.kind != RECOMPUTE_NESTED &&
           s->recompute.kind != RECOMPUTE_MIX;
}

bool plan_estimates_parts(const plan_request *r) {
    return is_deep(r) && r->source.n_layers > VERY_DEEP && net_trunk(&r->source) == r->source.n_layers;
}

static bool is_long_pipeline(const plan_request *r) {
    plan_request q = *r;
    q.shorten = true;
    return plan_built_micros(&q) < r->choice.accumulation;
}

/* The numbers of a candidate, by the quickest method. *whole: it was compiled as it would run, and *out is that plan; else
 * *out holds nothing. */
static status evaluate(const plan_request *r, plan_candidate *c, plan_effort effort, plan *out, bool *whole) {
    sample s;
    bool is_enough = effort == PLAN_IN_PARTS || (effort == PLAN_QUICKLY && is_deep(r) && is_linear_in_layers(c));
    *whole = false;
    if (is_enough && find_sample(r, effort, &s)) return estimate(r, c, &s);
    plan_request q = *r;
    bool shortened = is_long_pipeline(r); /* faster, and exact except for the gaps of the layout */
    q.shorten |= shortened;
    TRY(plan_build_candidate(&q, c, out));
    c->estimated = shortened;
    *whole = q.shorten == r->shorten;
    if (!*whole) plan_close(out);
    return OK;
}

status plan_evaluate(const plan_request *r, plan_candidate *out) {
    plan p;
    bool whole;
    *out = plan_as_asked(r);
    TRY(evaluate(r, out, PLAN_QUICKLY, &p, &whole));
    if (whole) plan_close(&p);
    return OK;
}

/* ---- the choice ------------------------------------------------------------------------------------------------- */

/* Offload, recompute and prefetch as one number: of two candidates with the same time the simpler one wins. */
static int candidate_complexity(const plan_candidate *c) {
    enum { PREFETCH_END = 64 }; /* beyond what memory.prefetch takes */
    const offload_tiers *o = &c->choice.offload;
    int moved = (int)o->params + (int)o->grads + (int)o->states + (int)o->activations;
    return (moved * RECOMPUTE_COUNT + (int)c->choice.recompute.kind) * PREFETCH_END + c->choice.prefetch;
}

/* An update on the host may overlap with the next forward, and looks faster than the device's own where the device has little
 * to do. Do not rely on that: ops that wait for the host are launched one by one and not as a recorded graph, which the
 * prediction leaves out. So an offload that is not needed never counts as faster than none. */
static double compared_s(const plan_candidate *c) { return c->step_s < c->plain_s ? c->plain_s : c->step_s; }

/* Of two that do not fit, the one that needs less of the memory that is short: of the device first, which nothing else can
 * replace, and where both have room there, of the host. */
static bool is_better(const plan_candidate *x, const plan_candidate *y) {
    if (x->fits != y->fits) return x->fits;
    if (x->excess.device != y->excess.device) return x->excess.device < y->excess.device;
    if (x->excess.host != y->excess.host) return x->excess.host < y->excess.host;
    if (!x->fits && x->planned[TIER_DEVICE] != y->planned[TIER_DEVICE])
        return x->planned[TIER_DEVICE] < y->planned[TIER_DEVICE];
    if (!x->saved_bytes != !y->saved_bytes)
        return x->saved_bytes; /* of the fastest, made smaller: try_cheap_recompute */
    /* Equal times may differ in the last bits of a double, by the order of the sum. */
    float s = (float)compared_s(x), t = (float)compared_s(y);
    if (s < t || s > t) return s < t;
    if (s == t && candidate_complexity(x) != candidate_complexity(y))
        return candidate_complexity(x) < candidate_complexity(y);
    if (s == t && x->planned[TIER_DEVICE] != y->planned[TIER_DEVICE])
        return x->planned[TIER_DEVICE] < y->planned[TIER_DEVICE];
    return x->order < y->order; /* also where there is no prediction */
}

static int best_first(const void *a, const void *b) { return is_better(a, b) ? -1 : 1; }
void plan_search_sort(plan_search *s) { qsort(s->list, s->n, sizeof *s->list, best_first); }

void plan_remember(plan *p, const plan_request *asked) {
    p->request.open = asked->open;
    p->asked = asked->choice;
}

static void best_close(plan_best *k) {
    if (k->any) plan_close(&k->plan);
    k->any = false;
}

void plan_best_offer(plan_best *k, const plan_candidate *c, plan *p) {
    if (k->any && !is_better(c, &k->candidate)) {
        plan_close(p);
        return;
    }
    best_close(k);
    plan_move(&k->plan, p);
    k->candidate = *c;
    k->any = true;
}

/* Evaluates c, and keeps the compiled plan if it is the best so far. */
status plan_search_evaluate(plan_search *s, plan_candidate *c) {
    plan p;
    bool whole;
    if (s->r->on_candidate) s->r->on_candidate();
    TRY(evaluate(s->r, c, PLAN_QUICKLY, &p, &whole));
    if (whole) plan_best_offer(&s->best, c, &p);
    return OK;
}

/* Compiles a candidate with all layers, or takes the plan that was kept. */
static status compile_candidate(plan_search *s, plan_candidate *c, plan *out) {
    if (!s->best.any || s->best.candidate.order != c->order) return plan_build_candidate(s->r, c, out);
    plan_move(out, &s->best.plan);
    s->best.any = false;
    plan_candidate_set_numbers(c, out);
    return OK;
}

/* Nothing on the list fits: adds the candidates of tight.c. */
static status add_smaller(plan_search *s) {
    plan_candidate *more;
    size_t n;
    if (!s->r->open.chunk && !s->r->open.keep_layers) return OK; /* neither of its techniques may be used */
    if (!plan_is_one_device(s->r)) return OK;                    /* tight.c is for one device */
    TRY(plan_list_smaller(s->r, &s->list[0], &s->n_tried, &s->best, &more, &n));
    for (size_t i = 0; i < n; i++) plan_search_append(s, &more[i]);
    free(more);
    plan_search_sort(s);
    return plan_climb(s);
}

/* Compiles the best candidate; if its exact numbers make another one the best, compiles that one, and so on. */
static status take_best(plan_search *s, plan *out) {
    bool is_widened = false;
    for (;;) {
        size_t first = s->list[0].order;
        TRY(compile_candidate(s, &s->list[0], out));
        plan_search_sort(s);
        if (s->list[0].order == first && !s->list[0].fits && !is_widened) {
            is_widened = true;
            status rc = add_smaller(s);
            if (rc != OK) {
                plan_close(out);
                return rc;
            }
        }
        if (s->list[0].order == first) break;
        plan_close(out);
    }
    plan_remember(out, s->r);
    out->candidates = s->list;
    out->n_candidates = s->n;
    return OK;
}

/* Is there a candidate with another ZeRO stage and nothing moved that is no slower and no larger? */
static bool is_dominated(const plan_search *s, size_t n_plain, const plan_candidate *c) {
    for (size_t i = 0; i < n_plain; i++) {
        const plan_candidate *k = &s->list[i];
        if (!step_choice_equal(&k->choice, &c->choice, CHOICE_SHARD)) continue;
        uint64_t a = k->planned[TIER_DEVICE], b = c->planned[TIER_DEVICE];
        bool better = k->step_s < c->step_s || a < b || k->order < c->order;
        if (k->step_s <= c->step_s && a <= b && better) return true;
    }
    return false;
}

/* Candidates know nothing of each other, so that they are evaluated side by side; which of them is best does not depend on who was
 * evaluated first. */
typedef struct evaluation {
    plan_search *s;
    plan_candidate *list;
    plan_effort effort;
    status *results;
    pthread_mutex_t best; /* guards s->best and on_candidate */
} evaluation;

static void evaluate_task(void *context, int64_t task, int thread) {
    evaluation *e = context;
    plan_candidate *c = &e->list[task];
    plan p;
    bool whole;
    status rc = e->results[task] = evaluate(e->s->r, c, e->effort, &p, &whole);
    if (rc != OK) error_clear(); /* of this thread */
    pthread_mutex_lock(&e->best);
    if (e->s->r->on_candidate) e->s->r->on_candidate();
    if (rc == OK && whole) plan_best_offer(&e->s->best, c, &p);
    pthread_mutex_unlock(&e->best);
}

static status evaluate_list(plan_search *s, plan_candidate *list, size_t n, plan_effort effort, status *results) {
    pool *threads = NULL;
    TRY(pool_open(&threads, 0, false));
    evaluation e = {s, list, effort, results, PTHREAD_MUTEX_INITIALIZER};
    pool_run(threads, evaluate_task, &e, (int64_t)n);
    pool_close(threads);
    return OK;
}

status plan_search_evaluate_all(plan_search *s, plan_candidate *list, size_t n, plan_effort effort) {
    status *results = mem_alloc((n + 1) * sizeof *results), rc = evaluate_list(s, list, n, effort, results);
    for (size_t i = 0; i < n && rc == OK; i++)
        if (results[i] != OK) rc = plan_search_evaluate(s, &list[i]); /* says why */
    free(results);
    return rc;
}

/* Evaluates the candidates from `first` on. Drops those for which the model cannot be split, or whose micro-batch a
 * kernel does not take, which the builder reports; where neither mesh nor micro-batch is open, that is an error. */
static status evaluate_from(plan_search *s, size_t first) {
    size_t n = first;
    status *results = mem_alloc((s->n - first + 1) * sizeof *results);
    status rc = evaluate_list(s, s->list + first, s->n - first, PLAN_QUICKLY, results);
    for (size_t i = first; i < s->n && rc == OK; i++) {
        status result = results[i - first];
        if (result == OK) s->list[n++] = s->list[i];
        else if (result != ERR_INPUT || !(plan_ranks_open(s->r) || s->r->open.micro_batch))
            rc = plan_search_evaluate(s, &s->list[i]); /* says why */
    }
    free(results);
    if (rc == OK) s->n = n;
    return rc;
}

/* Parameters and states must lie somewhere: where device and host together cannot hold them, no candidate like c fits. Only asked
 * where one fits already, so that such candidates could not win. */
static bool is_hopeless(const plan_search *s, const plan_candidate *c) {
    const plan_request *r = s->r;
    bool any_fits = false;
    for (size_t i = 0; i < s->n && !any_fits; i++) any_fits = s->list[i].fits;
    uint64_t least = c->by_role[ROLE_PARAM] + c->by_role[ROLE_STATE];
    return any_fits && !r->may_nvme && !offload_on_nvme(&r->choice.offload) && r->device_limit && r->host_limit &&
           least > r->device_limit + r->host_limit;
}

/* All candidates in which `sequence` ranks share a row. *fits: one with nothing moved fits; with `enough` the search then
 * ends. It also ends where all of them fit and nobody wants to compare: what is moved never counts as faster than the same with
 * nothing moved (compared_s), so it cannot win. */
static status search_rows(plan_search *s, int sequence, bool enough, bool *fits) {
    size_t first = s->n;
    list_plain(s, sequence);
    TRY(evaluate_from(s, first));
    size_t n_plain = s->n;
    *fits = false;
    bool all_fit = n_plain > first;
    for (size_t i = first; i < n_plain; i++) *fits |= s->list[i].fits, all_fit &= s->list[i].fits;
    if (*fits && (enough || (all_fit && !s->r->compare && s->r->hardware))) return OK;
    for (size_t i = first; i < n_plain; i++) {
        plan_candidate c = s->list[i];
        c.plain_s = c.fits ? c.step_s : 0;
        if (!is_dominated(s, n_plain, &c) && !is_hopeless(s, &c))
            add_offloads(s, c, ARRAY_LENGTH(offload_order), ARRAY_LENGTH(rungs));
    }
    return evaluate_from(s, n_plain);
}

/* Candidates fit the device but none the host: offload_order moves several kinds of values together. Moving fewer, or some to
 * nvme, may fit. All other choices are those of the candidate that needs least. */
static status try_all_offloads(plan_search *s) {
    uint64_t limit = s->r->device_limit;
    const plan_candidate *best = &s->list[0];
    if (best->fits || (limit && best->planned[TIER_DEVICE] > limit)) return OK;
    size_t n = s->n;
    add_all_offloads(s, *best);
    TRY(evaluate_from(s, n));
    plan_search_sort(s);
    return OK;
}

static status search_all(plan *p, const plan_request *r, bool plain_is_enough, bool *searched) {
    plan_search s = {.r = r};
    status rc = OK;
    int asked = mesh_size(&r->mesh, AXIS_SEQUENCE), all = plan_row_ranks(r);
    bool open = r->open.sequence && plan_ranks_open(r), fits = false;
    for (int n = open ? 1 : asked; n <= (open ? all : asked) && !fits; n++)
        if (all % n == 0) TRY_GOTO(rc, search_rows(&s, n, plain_is_enough, &fits), fail);
    *searched = !(plain_is_enough && fits);
    if (s.n == 0) { /* the error of all of them is the error of the one that was asked for */
        plan_candidate c;
        plan_request q = *r;
        q.open = (plan_open){0};
        q.choice.recompute.kind = RECOMPUTE_NONE;
        rc = plan_evaluate(&q, &c);
        ASSERT(rc != OK);
        goto fail;
    }
    plan_search_sort(&s);
    TRY_GOTO(rc, try_all_offloads(&s), fail);
    TRY_GOTO(rc, plan_refine(&s, fits), fail);
    TRY_GOTO(rc, take_best(&s, p), fail);
    best_close(&s.best);
    return OK;
fail:
    best_close(&s.best);
    free(s.list);
    return rc;
}

status plan_choose(plan *p, const plan_request *asked) {
    if (!plan_is_open(asked)) return plan_build(p, asked);
    if (asked->open.place && mesh_world(&asked->mesh) > 1)
        return ERR(ERR_INPUT, "memory.place: found auto in a run of %d ranks, expected none: each rank has one device",
                   mesh_world(&asked->mesh));
    plan_request q = plan_request_complete(asked), *r = &q;
    bool searched, only_memory = !r->open.precision && !r->open.micro_batch;
    TRY(search_all(p, r, only_memory && !r->compare, &searched));
    /* Deep models are estimated: the candidate with nothing moved may fit by estimate and not when compiled. */
    if (searched || plan_fits(p)) return OK;
    plan_close(p);
    return search_all(p, r, false, &searched);
}
