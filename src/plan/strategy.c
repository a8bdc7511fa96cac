/* strategy.c - of all ways to run a step that keep what was asked, the fastest that fits.
 *
 * Candidates are the products of what is open: precision, micro-batch against accumulation, the rungs of recompute, and a
 * ladder of things that move to host or nvme. Every one that is a matter of memory alone keeps every bit of the result.
 * Time comes from the cost model; without a machine to cost on, the order of the ladder stands for it.
 *
 * A deep model is one block many times over. Its candidates are compiled with a few layers, twice, and continued as
 * straight lines, which is quick; the winner is then compiled for real, so that what is chosen fits to the byte. Where
 * the plain way fits and nothing but memory is open there is nothing to search: every technique costs time. */
#include "plan/plan.h"

#include <math.h>
#include <stdlib.h>

enum { FEW_LAYERS = 4, MORE_LAYERS = 6, DEEP = 12, RUNNERS_UP = 2, BATCHES_MAX = 6, FACTOR_MAX = 65536 };

bool plan_is_open(const plan_request *r) {
    const plan_open *o = &r->open;
    return r->recompute.kind == RECOMPUTE_AUTO || o->params || o->grads || o->states || o->activations ||
           o->keep_layers || o->chunk || o->precision || o->micro_batch;
}

/* ---- the candidates --------------------------------------------------------------------------------------------- */

#define DEV TIER_DEVICE
#define HOST TIER_HOST
#define NVME TIER_NVME
/* From what costs little to what costs much, on most machines. */
static const struct {
    tier params, grads, states, activations;
} ladder[] = {
    {DEV, DEV, DEV, DEV},    {DEV, DEV, HOST, DEV},    {DEV, HOST, HOST, DEV},   {HOST, HOST, HOST, DEV},
    {DEV, DEV, DEV, HOST},   {DEV, DEV, HOST, HOST},   {DEV, HOST, HOST, HOST},  {HOST, HOST, HOST, HOST},
    {DEV, DEV, NVME, DEV},   {DEV, HOST, NVME, DEV},   {HOST, HOST, NVME, DEV},  {HOST, HOST, NVME, HOST},
    {NVME, NVME, NVME, DEV}, {NVME, NVME, NVME, HOST}, {NVME, NVME, NVME, NVME},
};
#undef DEV
#undef HOST
#undef NVME

static const recompute_kind rungs[] = {RECOMPUTE_NONE, RECOMPUTE_NORMS, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL};
static const precision precisions[] = {PRECISION_FP32, PRECISION_BF16};

typedef struct search {
    const plan_request *r;
    plan_candidate *list;
    size_t n, capacity;
} search;

static bool same_homes(const offload_options *a, const offload_options *b) {
    return a->params == b->params && a->grads == b->grads && a->states == b->states && a->activations == b->activations;
}

static bool on_nvme(const offload_options *o) {
    return o->params == TIER_NVME || o->grads == TIER_NVME || o->states == TIER_NVME || o->activations == TIER_NVME;
}

static void add_candidate(search *s, plan_candidate c) {
    for (size_t i = 0; i < s->n; i++) {
        const plan_candidate *k = &s->list[i];
        if (k->precision == c.precision && k->micro_batch == c.micro_batch && k->recompute.kind == c.recompute.kind &&
            same_homes(&k->offload, &c.offload))
            return;
    }
    c.step_s = NAN;
    c.order = s->n;
    s->list = array_grow(s->list, &s->capacity, s->n + 1, sizeof *s->list);
    s->list[s->n++] = c;
}

static void add_homes(search *s, plan_candidate c) {
    const plan_request *r = s->r;
    const plan_open *open = &r->open;
    for (size_t i = 0; i < ARRAY_LENGTH(ladder); i++) {
        c.offload = r->offload;
        if (open->params) c.offload.params = ladder[i].params;
        if (open->grads) c.offload.grads = ladder[i].grads;
        if (open->states) c.offload.states = ladder[i].states;
        if (open->activations) c.offload.activations = ladder[i].activations;
        if (on_nvme(&c.offload) && !on_nvme(&r->offload) && !r->may_nvme) continue;
        bool recompute = r->recompute.kind == RECOMPUTE_AUTO;
        for (size_t k = 0; k < (recompute ? ARRAY_LENGTH(rungs) : 1); k++) {
            c.recompute = recompute ? (recompute_policy){.kind = rungs[k]} : r->recompute;
            add_candidate(s, c);
        }
    }
}

/* The largest micro-batch first: fewer, larger products. Neither factor goes beyond what its setting may say; where that
 * leaves no way to cut the rows, they are tried as they are. */
static void add_batches(search *s, plan_candidate c) {
    int64_t rows = c.micro_batch * c.accumulation;
    int n = 0;
    for (int64_t times = 1; times <= MIN(rows, (int64_t)FACTOR_MAX) && n < BATCHES_MAX; times++) {
        if (rows % times || rows / times > FACTOR_MAX) continue;
        c.micro_batch = rows / times;
        c.accumulation = times;
        add_homes(s, c);
        n++;
    }
    if (n == 0) add_homes(s, c);
}

static void list_candidates(search *s) {
    const plan_request *r = s->r;
    plan_candidate c = {.precision = r->precision,
                        .micro_batch = r->micro_batch,
                        .accumulation = r->accumulation,
                        .chunk_tokens = r->chunk_tokens};
    for (size_t i = 0; i < (r->open.precision ? ARRAY_LENGTH(precisions) : 1); i++) {
        if (r->open.precision) c.precision = precisions[i];
        if (r->open.micro_batch) add_batches(s, c);
        else add_homes(s, c);
    }
}

/* ---- what each needs -------------------------------------------------------------------------------------------- */

static plan_request request_of(const plan_request *r, const plan_candidate *c) {
    plan_request q = *r;
    q.open = (plan_open){0};
    q.precision = c->precision;
    q.micro_batch = c->micro_batch;
    q.accumulation = c->accumulation;
    q.recompute = c->recompute;
    q.offload = c->offload;
    q.chunk_tokens = c->chunk_tokens;
    return q;
}

static void take_numbers(plan_candidate *c, const plan *p) {
    memcpy(c->planned, p->planned, sizeof c->planned);
    memcpy(c->by_role, p->by_role, sizeof c->by_role);
    c->step_s = p->request.hardware && !p->cost.missing ? p->cost.step_s : NAN;
    c->more_flops = p->flops_again / p->flops_per_step;
    c->fits = plan_fits(p);
    c->estimated = false;
}

static double continue_line(double few, double more, int64_t layers) {
    return few + (more - few) / (MORE_LAYERS - FEW_LAYERS) * (double)(layers - FEW_LAYERS);
}

static uint64_t continue_bytes(uint64_t few, uint64_t more, int64_t layers) {
    return (uint64_t)fmax(0, continue_line((double)few, (double)more, layers));
}

static bool limits_hold(const plan_request *r, const uint64_t planned[TIER_COUNT]) {
    plan p = {.request = *r};
    memcpy(p.planned, planned, sizeof p.planned);
    return plan_fits(&p);
}

static status estimate(const plan_request *r, plan_candidate *c) {
    plan_request q = request_of(r, c);
    plan few, more;
    int64_t layers = r->model.n_layers;
    q.model.n_layers = FEW_LAYERS;
    TRY(plan_compile(&few, &q));
    q.model.n_layers = MORE_LAYERS;
    status rc = plan_compile(&more, &q);
    if (rc == OK) {
        for (tier t = 0; t < TIER_COUNT; t++) c->planned[t] = continue_bytes(few.planned[t], more.planned[t], layers);
        for (role k = 0; k < ROLE_COUNT; k++) c->by_role[k] = continue_bytes(few.by_role[k], more.by_role[k], layers);
        c->step_s = r->hardware && !few.cost.missing ? continue_line(few.cost.step_s, more.cost.step_s, layers) : NAN;
        c->more_flops = continue_line(few.flops_again, more.flops_again, layers) /
                        continue_line(few.flops_per_step, more.flops_per_step, layers);
        c->fits = limits_hold(r, c->planned);
        c->estimated = true;
        plan_close(&more);
    }
    plan_close(&few);
    return rc;
}

status plan_measure(const plan_request *r, plan_candidate *c, plan *out) {
    plan_request q = request_of(r, c);
    TRY(plan_compile(out, &q));
    take_numbers(c, out);
    return OK;
}

/* A stage of a pipeline is not a straight line in the layers of the model. */
static bool is_deep(const plan_request *r) {
    return r->model.n_layers >= DEEP && r->place.n_devices <= 1 && mesh_size(&r->mesh, AXIS_PIPELINE) == 1;
}

/* ... nor are layers of which only the last keep something, or every n-th. */
static bool is_line(const plan_candidate *c) {
    return c->offload.keep_layers == 0 && c->recompute.kind != RECOMPUTE_NESTED;
}

/* Micro-batches after which a pipeline only repeats itself: as many as are in flight at the first stage, and one. */
static int64_t few_micros(const plan_request *r) {
    int S = mesh_size(&r->mesh, AXIS_PIPELINE);
    return r->virtual_stages > 1 ? 2 * S : S + 1;
}

/* A step of many micro-batches holds no more than one of few, but for its inputs, and takes so many times as long. */
static status estimate_pipeline(const plan_request *r, plan_candidate *c) {
    plan_request q = request_of(r, c);
    plan few;
    q.accumulation = few_micros(r);
    TRY(plan_compile(&few, &q));
    take_numbers(c, &few);
    double micro_s = few.cost.micro_s / (double)q.accumulation * (double)r->accumulation;
    c->step_s = isfinite(c->step_s) ? micro_s * (1 + plan_waiting(r)) + few.cost.update_s : NAN;
    c->estimated = true;
    plan_close(&few);
    return OK;
}

static bool is_long(const plan_request *r) {
    return mesh_size(&r->mesh, AXIS_PIPELINE) > 1 && r->accumulation > few_micros(r);
}

static status weigh(const plan_request *r, plan_candidate *c) {
    if (is_deep(r) && is_line(c)) return estimate(r, c);
    if (is_long(r)) return estimate_pipeline(r, c);
    plan p;
    TRY(plan_measure(r, c, &p));
    plan_close(&p);
    return OK;
}

status plan_weigh(const plan_request *r, plan_candidate *out) {
    *out = (plan_candidate){.precision = r->precision,
                            .micro_batch = r->micro_batch,
                            .accumulation = r->accumulation,
                            .recompute = r->recompute,
                            .offload = r->offload,
                            .chunk_tokens = r->chunk_tokens};
    return weigh(r, out);
}

/* ---- the choice ------------------------------------------------------------------------------------------------- */

static bool is_better(const plan_candidate *x, const plan_candidate *y) {
    if (x->fits != y->fits) return x->fits;
    if (!x->fits && x->planned[TIER_DEVICE] != y->planned[TIER_DEVICE])
        return x->planned[TIER_DEVICE] < y->planned[TIER_DEVICE];
    if (x->step_s < y->step_s || x->step_s > y->step_s) return x->step_s < y->step_s;
    return x->order < y->order; /* also where there is no prediction */
}

static int best_first(const void *a, const void *b) { return is_better(a, b) ? -1 : 1; }
static void sort_candidates(plan_candidate *list, size_t n) { qsort(list, n, sizeof *list, best_first); }

static void adopt(plan *p, const plan_request *r, plan_candidate *list, size_t n) {
    p->request.open = r->open;
    p->request.recompute = r->recompute; /* what was asked; the passes know what it became */
    p->request.offload = r->offload;
    p->request.chunk_tokens = r->chunk_tokens;
    p->candidates = list;
    p->n_candidates = n;
}

/* Nothing on the list fits: what tight.c has beside it. */
static status add_tighter(search *s) {
    plan_candidate *more;
    size_t n;
    if (!s->r->open.chunk && !s->r->open.keep_layers) return OK; /* the last resort was not asked for */
    if (mesh_size(&s->r->mesh, AXIS_PIPELINE) > 1 || s->r->place.n_devices > 1) return OK; /* not searched so deep */
    TRY(plan_tighten(s->r, &s->list[0], &more, &n));
    s->list = array_grow(s->list, &s->capacity, s->n + n, sizeof *s->list);
    for (size_t i = 0; i < n; i++) {
        s->list[s->n] = more[i];
        s->list[s->n].order = s->n;
        s->n++;
    }
    free(more);
    sort_candidates(s->list, s->n);
    return OK;
}

/* Compiles the best; where the real numbers make another one the best, that one, and so on. */
static status take_best(search *s, plan *out) {
    bool is_widened = false;
    for (;;) {
        size_t first = s->list[0].order;
        TRY(plan_measure(s->r, &s->list[0], out));
        sort_candidates(s->list, s->n);
        if (s->list[0].order == first && !s->list[0].fits && !is_widened) {
            is_widened = true;
            status rc = add_tighter(s);
            if (rc != OK) plan_close(out);
            if (rc != OK) return rc;
        }
        if (s->list[0].order == first) break;
        plan_close(out);
    }
    adopt(out, s->r, s->list, s->n);
    return OK;
}

status plan_search(plan *p, const plan_request *r) {
    search s = {.r = r};
    status rc = OK;
    list_candidates(&s);
    bool only_memory = !r->open.precision && !r->open.micro_batch;
    if (only_memory && !r->compare) {
        TRY_GOTO(rc, plan_measure(r, &s.list[0], p), fail);
        if (s.list[0].fits) {
            adopt(p, r, s.list, 1);
            return OK;
        }
        plan_close(p);
    }
    for (size_t i = 0; i < s.n; i++) TRY_GOTO(rc, weigh(r, &s.list[i]), fail);
    sort_candidates(s.list, s.n);
    TRY_GOTO(rc, take_best(&s, p), fail);
    return OK;
fail:
    free(s.list);
    return rc;
}

/* ---- in words --------------------------------------------------------------------------------------------------- */

static void describe(const plan *p, const plan_candidate *c, strbuf *out) {
    static const char *const names[] = {"params", "grads", "states", "activations"};
    const tier homes[] = {c->offload.params, c->offload.grads, c->offload.states, c->offload.activations};
    if (p->request.open.precision) strbuf_printf(out, "%s, ", precision_name(c->precision));
    if (p->request.open.micro_batch)
        strbuf_printf(out, "micro-batch %lld x %lld, ", (long long)c->micro_batch, (long long)c->accumulation);
    strbuf_printf(out, "recompute ");
    recompute_write(&c->recompute, out);
    bool moved = false;
    for (tier t = TIER_HOST; t <= TIER_NVME; t++) {
        bool first = true;
        for (size_t i = 0; i < ARRAY_LENGTH(names); i++) {
            if (homes[i] != t) continue;
            strbuf_printf(out, "%s%s", first ? ", " : " + ", names[i]);
            first = false;
            moved = true;
        }
        if (!first) strbuf_printf(out, " on %s", tier_name(t));
    }
    if (!moved) strbuf_add(out, ", nothing offloaded");
    if (c->offload.keep_layers)
        strbuf_printf(out, " but for those of the last %lld layers", (long long)c->offload.keep_layers);
    if (c->chunk_tokens) strbuf_printf(out, ", MLP in chunks of %lld tokens", (long long)c->chunk_tokens);
}

void plan_print_candidates(const plan *p, FILE *out) {
    if (p->n_candidates == 0) return;
    const plan_candidate *best = &p->candidates[0];
    size_t n_fit = 0;
    for (size_t i = 0; i < p->n_candidates; i++) n_fit += p->candidates[i].fits;
    if (p->n_candidates == 1) {
        bool is_plain = !offload_any(&best->offload) && best->recompute.kind == RECOMPUTE_NONE && !best->chunk_tokens;
        if (best->fits && is_plain) fputs("strategy  nothing moved: it all fits\n", out);
        return;
    }
    fprintf(out, "strategy  auto: of %zu ways %zu fit%s\n", p->n_candidates, n_fit,
            n_fit ? "; the fastest of them, and the next" : "; the smallest of them");
    for (size_t i = 0; i < MIN(p->n_candidates, (size_t)1 + RUNNERS_UP); i++) {
        const plan_candidate *c = &p->candidates[i];
        char a[32], b[32];
        strbuf text;
        if (!c->fits && i > 0) break;
        strbuf_init(&text);
        describe(p, c, &text);
        fprintf(out, "  %zu. %s\n     device %s, host %s", i + 1, text.text,
                str_format_bytes(a, c->planned[TIER_DEVICE]), str_format_bytes(b, c->planned[TIER_HOST]));
        if (c->planned[TIER_NVME]) fprintf(out, ", nvme %s", str_format_bytes(a, c->planned[TIER_NVME]));
        if (isfinite(c->step_s)) fprintf(out, ", predicted %s", str_format_seconds(a, c->step_s));
        if (i > 0 && isfinite(c->step_s) && best->step_s > 0)
            fprintf(out, " (%+.1f %%)", 100 * (c->step_s / best->step_s - 1));
        fputs(c->fits ? "\n" : ", does not fit\n", out);
        strbuf_fini(&text);
    }
}

json_t *plan_candidates_json(const plan *p) {
    json_t *array = json_array();
    for (size_t i = 0; i < p->n_candidates; i++) {
        const plan_candidate *c = &p->candidates[i];
        json_t *one = json_object(), *memory = json_object(), *roles = json_object();
        strbuf policy;
        strbuf_init(&policy);
        recompute_write(&c->recompute, &policy);
        json_object_set_new(one, "precision", json_string(precision_name(c->precision)));
        json_object_set_new(one, "micro_batch", json_integer(c->micro_batch));
        json_object_set_new(one, "accumulation", json_integer(c->accumulation));
        json_object_set_new(one, "recompute", json_string(policy.text));
        json_object_set_new(one, "offload", plan_homes_json(&c->offload));
        json_object_set_new(one, "keep_layers", json_integer(c->offload.keep_layers));
        json_object_set_new(one, "chunk_tokens", json_integer(c->chunk_tokens));
        for (tier t = TIER_DEVICE; t <= TIER_NVME; t++)
            json_object_set_new(memory, tier_name(t), json_integer((json_int_t)c->planned[t]));
        for (role k = 0; k < ROLE_COUNT; k++)
            json_object_set_new(roles, role_name(k), json_integer((json_int_t)c->by_role[k]));
        json_object_set_new(memory, "by_role", roles);
        json_object_set_new(one, "memory", memory);
        json_object_set_new(one, "step_ms", isfinite(c->step_s) ? json_real(1e3 * c->step_s) : json_null());
        json_object_set_new(one, "fits", json_boolean(c->fits));
        json_object_set_new(one, "estimated", json_boolean(c->estimated));
        json_array_append_new(array, one);
        strbuf_fini(&policy);
    }
    return array;
}
