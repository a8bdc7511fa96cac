/* strategy.c - of all ways to run a step that keep what was asked, the fastest that fits.
 *
 * Candidates are the products of what is open: precision, micro-batch against accumulation, what data ranks keep a part of
 * (ZeRO) and how many of them share a row, the rungs of recompute, and a ladder of things that move to host or nvme. Every
 * one that is a matter of memory alone keeps every bit of the result; ranks that share rows add in another order, and so do
 * stages 2 and 3 beside 0 and 1 where a rank has several micro-batches.
 * Time comes from the cost model; without a machine to cost on, the order of the ladder stands for it.
 *
 * A deep model is one block many times over. Its candidates are compiled with a few layers, twice, and continued as
 * straight lines, which is quick; the winner is then compiled for real, so that what is chosen fits to the byte.
 *
 * The search goes from what costs least: first nothing is moved or computed again, in every stage of ZeRO, because a cut
 * update may be faster than a whole one. Where the fastest of these fits and nothing but memory is open that is all: every
 * other technique costs time. Else things move. Rows are shared by no more ranks than it takes to move nothing, since more of
 * them only say more. A stage that is slower and larger than another with nothing moved is not tried any further. Where the
 * host alone has too little room every mixture of homes is tried, which are more than the ladder has. At the end the best few
 * are tried with copies that run further ahead, with states that stay in some layers, and with a lighter rung of recompute in
 * some (mix.c). */
#include "plan/search.h"

#include <math.h>
#include <stdlib.h>

enum { FEW_LAYERS = 8, MORE_LAYERS = 12, DEEP = 16, BATCHES_MAX = 6, FACTOR_MAX = 65536, ZERO_STAGES = 4 };

/* ---- the candidates ------------------------------------------------------------------------------------------------- */

#define DEV TIER_DEVICE
#define HOST TIER_HOST
#define NVME TIER_NVME

/* From what costs little to what costs much, on most machines. */
static const offload_homes ladder[] = {
    {DEV, DEV, DEV, DEV},     {DEV, DEV, HOST, DEV},    {DEV, HOST, HOST, DEV},  {HOST, DEV, HOST, DEV},
    {HOST, HOST, HOST, DEV},  {DEV, DEV, DEV, HOST},    {DEV, DEV, HOST, HOST},  {DEV, HOST, HOST, HOST},
    {HOST, DEV, HOST, HOST},  {HOST, HOST, HOST, HOST}, {DEV, DEV, NVME, DEV},   {DEV, HOST, NVME, DEV},
    {HOST, HOST, NVME, DEV},  {HOST, HOST, NVME, HOST}, {NVME, NVME, NVME, DEV}, {NVME, NVME, NVME, HOST},
    {NVME, NVME, NVME, NVME},
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
    size_t n_tried; /* with those that turned out to be no ways */
    plan_kept kept;
} search;

static void append(search *s, const plan_candidate *c) {
    s->list = array_grow(s->list, &s->capacity, s->n + 1, sizeof *s->list);
    s->list[s->n++] = *c;
}

static void add_candidate(search *s, plan_candidate c) {
    for (size_t i = 0; i < s->n; i++)
        if (step_choice_equal(&s->list[i].choice, &c.choice, CHOICE_NONE)) return;
    c.step_s = NAN;
    c.order = s->n_tried++;
    append(s, &c);
}

/* c with these homes and the first n rungs of recompute, as far as they are open. */
static void add_rungs(search *s, plan_candidate c, const offload_homes *h, size_t n_rungs) {
    const plan_request *r = s->r;
    c.choice.offload = plan_homes(r, h);
    if (offload_on_nvme(&c.choice.offload) && !offload_on_nvme(&r->choice.offload) && !r->may_nvme) return;
    bool recompute = r->choice.recompute.kind == RECOMPUTE_AUTO;
    for (size_t k = 0; k < (recompute ? n_rungs : 1); k++) {
        c.choice.recompute = recompute ? (recompute_policy){.kind = rungs[k]} : r->choice.recompute;
        add_candidate(s, c);
    }
}

/* ... with the first n rows of the ladder. */
static void add_homes(search *s, plan_candidate c, size_t n_homes, size_t n_rungs) {
    for (size_t i = 0; i < n_homes; i++) add_rungs(s, c, &ladder[i], n_rungs);
}

/* ... with every row that there could be. */
static void add_all_homes(search *s, plan_candidate c) {
    static const tier all[] = {TIER_DEVICE, TIER_HOST, TIER_NVME};
    enum { N = ARRAY_LENGTH(all) };
    for (size_t i = 0; i < N * N * N * N; i++) {
        offload_homes h = {all[i % N], all[i / N % N], all[i / (N * N) % N], all[i / (N * N * N)]};
        add_rungs(s, c, &h, ARRAY_LENGTH(rungs));
    }
}

/* Nothing moved and nothing computed again, beyond what was asked for. */
static void add_plain(search *s, plan_candidate c) {
    bool open = s->r->open.zero && plan_ranks_open(s->r) && plan_row_ranks(s->r) > c.choice.sequence;
    for (int zero = 0; zero < (open ? ZERO_STAGES : 1); zero++) {
        /* One data rank has nobody to share with: any stage is the same. */
        c.choice.shard.zero = open ? zero : s->r->choice.shard.zero;
        add_homes(s, c, 1, 1);
    }
}

/* The largest micro-batch first: fewer, larger products. Neither factor goes beyond what its setting may say; where that
 * leaves no way to cut the rows, they are tried as they are. */
static void add_batches(search *s, plan_candidate c) {
    int64_t rows = c.choice.micro_batch * c.choice.accumulation;
    int n = 0;
    for (int64_t times = 1; times <= MIN(rows, (int64_t)FACTOR_MAX) && n < BATCHES_MAX; times++) {
        if (rows % times || rows / times > FACTOR_MAX) continue;
        c.choice.micro_batch = rows / times;
        c.choice.accumulation = times;
        add_plain(s, c);
        n++;
    }
    if (n == 0) add_plain(s, c);
}

/* All plain ways in which `sequence` ranks share a row. */
static void list_plain(search *s, int sequence) {
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

/* ---- what each needs -------------------------------------------------------------------------------------------- */

plan_candidate plan_as_asked(const plan_request *r) { return (plan_candidate){.choice = plan_settled(r).choice}; }

plan_candidate plan_chosen(const plan *p) { return (plan_candidate){.choice = p->request.choice}; }

void plan_numbers(plan_candidate *c, const plan *p) {
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
    plan_limits limits = plan_limits_of(r);
    return plan_limits_hold(&limits, planned);
}

static status estimate(const plan_request *r, plan_candidate *c) {
    plan_request q = plan_request_of(r, &c->choice);
    plan few, more;
    int64_t layers = r->model.n_layers;
    q.model.n_layers = FEW_LAYERS;
    TRY(plan_build(&few, &q));
    q.model.n_layers = MORE_LAYERS;
    status rc = plan_build(&more, &q);
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
    plan_request q = plan_request_of(r, &c->choice);
    TRY(plan_build(out, &q));
    plan_numbers(c, out);
    return OK;
}

static bool is_one_device(const plan_request *r) {
    return r->place.n_devices <= 1 && mesh_size(&r->mesh, AXIS_PIPELINE) == 1;
}

/* A stage of a pipeline is not a straight line in the layers of the model. */
static bool is_deep(const plan_request *r) { return r->model.n_layers >= DEEP && is_one_device(r); }

/* ... nor are layers of which only the last or the first n keep something, or every n-th. */
static bool is_line(const plan_candidate *c) {
    const step_choice *s = &c->choice;
    bool all_alike = s->keep_layers == 0 && (s->keep_states == 0 || s->offload.states == TIER_DEVICE);
    return all_alike && s->recompute.kind != RECOMPUTE_NESTED && s->recompute.kind != RECOMPUTE_MIX;
}

static bool is_long(const plan_request *r) {
    plan_request q = *r;
    q.shorten = true;
    return plan_built_micros(&q) < r->choice.accumulation;
}

/* The numbers of a candidate, as soon as they can be had. *whole: it was compiled as it would be taken, and *out is that plan;
 * else *out holds nothing. */
static status weigh(const plan_request *r, plan_candidate *c, plan *out, bool *whole) {
    *whole = false;
    if (is_deep(r) && is_line(c)) return estimate(r, c);
    plan_request q = *r;
    bool shortened = is_long(r); /* exact but for how it is packed, and sooner */
    q.shorten |= shortened;
    TRY(plan_measure(&q, c, out));
    c->estimated = shortened;
    *whole = q.shorten == r->shorten;
    if (!*whole) plan_close(out);
    return OK;
}

status plan_weigh(const plan_request *r, plan_candidate *out) {
    plan p;
    bool whole;
    *out = plan_as_asked(r);
    TRY(weigh(r, out, &p, &whole));
    if (whole) plan_close(&p);
    return OK;
}

/* ---- the choice ------------------------------------------------------------------------------------------------- */

/* What moves and what is computed again, as one number: of two ways that take the same time the simpler one is taken. */
static int machinery(const plan_candidate *c) {
    enum { PREFETCH_END = 64 }; /* beyond what memory.prefetch takes */
    const offload_homes *o = &c->choice.offload;
    int moved = (int)o->params + (int)o->grads + (int)o->states + (int)o->activations;
    return (moved * RECOMPUTE_COUNT + (int)c->choice.recompute.kind) * PREFETCH_END + c->choice.prefetch;
}

/* An update on the host may hide behind the next forward, and where a device has next to nothing to do that looks faster
 * than its own. It is not to be relied on: what meets the host is fed op by op and not started as a recording, which is no
 * part of the prediction. So what moves without need counts as no faster than what stays. */
static double counted_s(const plan_candidate *c) { return c->step_s < c->plain_s ? c->plain_s : c->step_s; }

static bool is_better(const plan_candidate *x, const plan_candidate *y) {
    if (x->fits != y->fits) return x->fits;
    if (!x->fits && x->planned[TIER_DEVICE] != y->planned[TIER_DEVICE])
        return x->planned[TIER_DEVICE] < y->planned[TIER_DEVICE];
    /* Sums of the same times differ in the last bits of a double. */
    float s = (float)counted_s(x), t = (float)counted_s(y);
    if (s < t || s > t) return s < t;
    if (s == t && machinery(x) != machinery(y)) return machinery(x) < machinery(y);
    if (s == t && x->planned[TIER_DEVICE] != y->planned[TIER_DEVICE])
        return x->planned[TIER_DEVICE] < y->planned[TIER_DEVICE];
    return x->order < y->order; /* also where there is no prediction */
}

static int best_first(const void *a, const void *b) { return is_better(a, b) ? -1 : 1; }
static void sort_candidates(plan_candidate *list, size_t n) { qsort(list, n, sizeof *list, best_first); }

void plan_remember(plan *p, const plan_request *asked) {
    p->request.open = asked->open;
    p->asked = asked->choice;
}

static void kept_close(plan_kept *k) {
    if (k->any) plan_close(&k->plan);
    k->any = false;
}

void plan_kept_offer(plan_kept *k, const plan_candidate *c, plan *p) {
    if (k->any && !is_better(c, &k->way)) {
        plan_close(p);
        return;
    }
    kept_close(k);
    plan_move(&k->plan, p);
    k->way = *c;
    k->any = true;
}

/* Weighs c; what was compiled for that is not thrown away where it may be what is taken. */
static status weigh_and_keep(search *s, plan_candidate *c) {
    plan p;
    bool whole;
    TRY(weigh(s->r, c, &p, &whole));
    if (whole) plan_kept_offer(&s->kept, c, &p);
    return OK;
}

/* A candidate with the numbers of a step that runs, and the plan of that. */
static status compile_candidate(search *s, plan_candidate *c, plan *out) {
    if (!s->kept.any || s->kept.way.order != c->order) return plan_measure(s->r, c, out);
    plan_move(out, &s->kept.plan);
    s->kept.any = false;
    plan_numbers(c, out);
    return OK;
}

/* Nothing on the list fits: what tight.c has beside it. */
static status add_tighter(search *s) {
    plan_candidate *more;
    size_t n;
    if (!s->r->open.chunk && !s->r->open.keep_layers) return OK; /* the last resort was not asked for */
    if (!is_one_device(s->r)) return OK;                         /* not searched so deep */
    TRY(plan_tighten(s->r, &s->list[0], &s->n_tried, &s->kept, &more, &n));
    for (size_t i = 0; i < n; i++) append(s, &more[i]);
    free(more);
    sort_candidates(s->list, s->n);
    return OK;
}

/* Compiles the best; where the real numbers make another one the best, that one, and so on. */
static status take_best(search *s, plan *out) {
    bool is_widened = false;
    for (;;) {
        size_t first = s->list[0].order;
        TRY(compile_candidate(s, &s->list[0], out));
        sort_candidates(s->list, s->n);
        if (s->list[0].order == first && !s->list[0].fits && !is_widened) {
            is_widened = true;
            status rc = add_tighter(s);
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

/* Copies that run further ahead take memory, and time only where they run beside kernels: worth a try for the few that are
 * best without it. */
static status look_further_ahead(search *s) {
    enum { TRIED = 3, FURTHEST = 3 };
    const plan_request *r = s->r;
    if (!r->open.prefetch || !r->hardware || !r->hardware->overlap) return OK;
    for (size_t i = 0, n = MIN(s->n, (size_t)TRIED); i < n; i++) {
        plan_candidate c = s->list[i];
        if (!c.fits || !offload_any(&c.choice.offload)) continue;
        while (c.choice.prefetch < FURTHEST) {
            c.choice.prefetch++;
            c.order = s->n_tried++;
            TRY(weigh_and_keep(s, &c));
            append(s, &c);
        }
    }
    sort_candidates(s->list, s->n);
    return OK;
}

/* Compiles mixtures. In how many layers they are the one or the other is a guess: give_way changes one layer, for less
 * memory, until they fit or it says that no layer is left. */
static status try_mixtures(search *s, const plan_candidate *mixtures, size_t n,
                           bool (*give_way)(plan_candidate *c, int64_t n_layers)) {
    enum { TRIES = 6 };
    for (size_t i = 0; i < n; i++) {
        plan_candidate c = mixtures[i];
        bool left = true;
        c.order = s->n_tried++;
        c.fits = false;
        for (int k = 0; k < TRIES && !c.fits && left; k++) {
            TRY(weigh_and_keep(s, &c));
            if (!c.fits) left = give_way(&c, s->r->model.n_layers);
        }
        if (c.fits) append(s, &c);
    }
    sort_candidates(s->list, s->n);
    return OK;
}

static bool one_more_heavy(plan_candidate *c, int64_t n_layers) { return ++c->choice.recompute.n_heavy < n_layers; }

static bool one_less_kept(plan_candidate *c, int64_t n_layers) {
    (void)n_layers;
    return --c->choice.keep_states > 0;
}

/* What a way leaves of the memory may save the host some of the update ... */
static status keep_states(search *s) {
    const plan_request *r = s->r;
    plan_candidate ways[PLAN_MIXES];
    if (!r->open.keep_states || !r->hardware || !is_one_device(r)) return OK;
    return try_mixtures(s, ways, plan_keep(r, s->list, s->n, ways), one_less_kept);
}

/* ... and the device some of what it computes again. */
static status mix_rungs(search *s) {
    const plan_request *r = s->r;
    plan_candidate mixes[PLAN_MIXES];
    if (r->choice.recompute.kind != RECOMPUTE_AUTO || !r->hardware || !is_one_device(r)) return OK;
    return try_mixtures(s, mixes, plan_mix(r, s->list, s->n, mixes), one_more_heavy);
}

/* Is another plain way like it, but for the stage of ZeRO, no slower and no larger? */
static bool is_dominated(const search *s, size_t n_plain, const plan_candidate *c) {
    for (size_t i = 0; i < n_plain; i++) {
        const plan_candidate *k = &s->list[i];
        if (!step_choice_equal(&k->choice, &c->choice, CHOICE_SHARD)) continue;
        uint64_t a = k->planned[TIER_DEVICE], b = c->planned[TIER_DEVICE];
        bool better = k->step_s < c->step_s || a < b || k->order < c->order;
        if (k->step_s <= c->step_s && a <= b && better) return true;
    }
    return false;
}

/* A way that the model cannot be cut for is none: that is known when it is built. Where ranks are as asked it is an error. */
static status weigh_from(search *s, size_t first) {
    size_t n = first;
    for (size_t i = first; i < s->n; i++) {
        status rc = weigh_and_keep(s, &s->list[i]);
        if (rc == OK) s->list[n++] = s->list[i];
        else if (rc != ERR_INPUT || !plan_ranks_open(s->r)) return rc;
        else error_clear();
    }
    s->n = n;
    return OK;
}

/* All ways in which `sequence` ranks share a row. *fits: with nothing moved; where that is enough, nothing is. */
static status search_rows(search *s, int sequence, bool enough, bool *fits) {
    size_t first = s->n;
    list_plain(s, sequence);
    TRY(weigh_from(s, first));
    size_t n_plain = s->n;
    *fits = false;
    for (size_t i = first; i < n_plain; i++) *fits |= s->list[i].fits;
    if (*fits && enough) return OK;
    for (size_t i = first; i < n_plain; i++) {
        plan_candidate c = s->list[i];
        c.plain_s = c.fits ? c.step_s : 0;
        if (!is_dominated(s, n_plain, &c)) add_homes(s, c, ARRAY_LENGTH(ladder), ARRAY_LENGTH(rungs));
    }
    return weigh_from(s, n_plain);
}

/* Where ways fit the device and none the host too: the ladder moves things to it together; fewer of them, or others on a drive,
 * may be what it has room for. For the rest of the way the one that needs least is taken. */
static status spread_homes(search *s) {
    uint64_t limit = s->r->device_limit;
    const plan_candidate *best = &s->list[0];
    if (best->fits || (limit && best->planned[TIER_DEVICE] > limit)) return OK;
    size_t n = s->n;
    add_all_homes(s, *best);
    TRY(weigh_from(s, n));
    sort_candidates(s->list, s->n);
    return OK;
}

static status search_all(plan *p, const plan_request *r, bool plain_is_enough, bool *searched) {
    search s = {.r = r};
    status rc = OK;
    int asked = mesh_size(&r->mesh, AXIS_SEQUENCE), all = plan_row_ranks(r);
    bool open = r->open.sequence && plan_ranks_open(r), fits = false;
    for (int n = open ? 1 : asked; n <= (open ? all : asked) && !fits; n++)
        if (all % n == 0) TRY_GOTO(rc, search_rows(&s, n, plain_is_enough, &fits), fail);
    *searched = !(plain_is_enough && fits);
    if (s.n == 0) { /* what is wrong with all of them is wrong with the one that was asked for */
        plan_candidate c;
        plan_request q = *r;
        q.open = (plan_open){0};
        q.choice.recompute.kind = RECOMPUTE_NONE;
        rc = plan_weigh(&q, &c);
        ASSERT(rc != OK);
        goto fail;
    }
    sort_candidates(s.list, s.n);
    TRY_GOTO(rc, spread_homes(&s), fail);
    TRY_GOTO(rc, look_further_ahead(&s), fail);
    TRY_GOTO(rc, keep_states(&s), fail);
    TRY_GOTO(rc, mix_rungs(&s), fail);
    TRY_GOTO(rc, take_best(&s, p), fail);
    kept_close(&s.kept);
    return OK;
fail:
    kept_close(&s.kept);
    free(s.list);
    return rc;
}

status plan_choose(plan *p, const plan_request *asked) {
    if (!plan_is_open(asked)) return plan_build(p, asked);
    plan_request q = plan_settled(asked), *r = &q;
    bool searched, only_memory = !r->open.precision && !r->open.micro_batch;
    TRY(search_all(p, r, only_memory && !r->compare, &searched));
    /* Deep models are estimated: the plain way may fit by little there and not when it is compiled. */
    if (searched || plan_fits(p)) return OK;
    plan_close(p);
    return search_all(p, r, false, &searched);
}
