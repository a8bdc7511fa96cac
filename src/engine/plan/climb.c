/* climb.c - from the best candidate of a search to a better one, a few changes at a time.
 *
 * The candidates of the list treat all layers alike, and refine.c fills the room that the best of them leave with one
 * technique at a time. What is fastest is often a combination: activations on the host but those of some layers, and
 * with the host's memory that this frees a lighter rung in others. A combination is found by prices. Every single
 * change of the best candidate is evaluated, whether it fits or not, which says what it adds to the time, the device
 * and the host. By these numbers the best sums of two changes are chosen, one that saves time and one that pays for its
 * bytes, each in as many layers as it takes; the best few are evaluated, and the walk goes on from the fastest that
 * fits until nothing is faster by MIN_GAIN.
 *
 * The walk of a deep model counts in eighths of its layers, and its candidates are estimated from models of few
 * layers; the last steps are of single layers and compiled as they are. */
#include "plan/search.h"

#include <math.h>
#include <stdlib.h>

static const double MIN_GAIN = 0.0005;
enum {
    FURTHEST = 4,      /* prefetch */
    ROUNDS = 10,       /* of the first walk */
    LAST_ROUNDS = 3,   /* of single layers */
    CHANGES_MOST = 32, /* single changes of a candidate */
    SUMS = 6,          /* sums of changes that are evaluated in a round */
    BACK = 4           /* steps back from an estimate that does not fit */
};

/* ---- changes ------------------------------------------------------------------------------------------------------- */

typedef enum knob {
    BOUNDARY, /* of a mixture of rungs: layers with the heavier one */
    HEAVIER,  /* another rung in the first layers */
    LIGHTER,  /* ... or in the last */
    KEEP_LAYERS,
    KEEP_STATES,
    KEEP_PARAMS,
    KEEP_EMBED,
    PREFETCH,
    PARAMS_TO,
    GRADS_TO,
    STATES_TO,
    ACTIVATIONS_TO
} knob;

typedef struct change {
    knob knob;
    int to;        /* rung, tier, or the new number */
    int sign;      /* of what is counted in layers */
    double layers; /* of one unit; 0: it is made once or not at all */
    /* What one unit adds. */
    double seconds, device, host;
    bool is_priced;
} change;

static bool add_count(int64_t *n, double by, int64_t most) {
    int64_t to = MIN(MAX((int64_t)llround((double)*n + by), 0), most);
    bool is_new = to != *n;
    *n = to;
    return is_new;
}

/* A mixture in which one rung has no layers is the other rung. */
static void simplify(recompute_policy *p, int64_t n_layers) {
    if (p->kind != RECOMPUTE_MIX) return;
    if (p->n_heavy <= 0) *p = (recompute_policy){.kind = p->light};
    else if (p->n_heavy >= n_layers) *p = (recompute_policy){.kind = p->heavy};
}

static bool set_tier(tier *t, int to) {
    bool is_new = *t != (tier)to;
    *t = (tier)to;
    return is_new;
}

/* Makes a change so many times; false: nothing changes. */
static bool apply(const plan_request *r, const change *by, double times, step_choice *c) {
    const int64_t L = r->source.n_layers;
    recompute_policy *p = &c->recompute;
    double layers = by->sign * times * by->layers;
    bool is_new = false;
    switch (by->knob) {
    case BOUNDARY: is_new = p->kind == RECOMPUTE_MIX && add_count(&p->n_heavy, layers, L); break;
    case HEAVIER:
        is_new = true;
        if (p->kind == RECOMPUTE_MIX) p->heavy = (recompute_kind)by->to;
        else
            *p = (recompute_policy){.kind = RECOMPUTE_MIX,
                                    .heavy = (recompute_kind)by->to,
                                    .light = p->kind,
                                    .n_heavy = llround(fabs(layers))};
        break;
    case LIGHTER:
        is_new = true;
        if (p->kind == RECOMPUTE_MIX) p->light = (recompute_kind)by->to;
        else
            *p = (recompute_policy){.kind = RECOMPUTE_MIX,
                                    .heavy = p->kind,
                                    .light = (recompute_kind)by->to,
                                    .n_heavy = L - llround(fabs(layers))};
        break;
    case KEEP_LAYERS: is_new = add_count(&c->keep_layers, layers, L); break;
    case KEEP_STATES: is_new = add_count(&c->keep_states, layers, L); break;
    case KEEP_PARAMS: is_new = add_count(&c->keep_params, layers, L); break;
    case KEEP_EMBED:
        is_new = c->keep_embed != by->to;
        c->keep_embed = by->to;
        break;
    case PREFETCH:
        is_new = c->prefetch != by->to;
        c->prefetch = by->to;
        break;
    case PARAMS_TO:
        is_new = set_tier(&c->offload.params, by->to);
        if (by->to == TIER_DEVICE) c->keep_params = r->choice.keep_params;
        break;
    case GRADS_TO: is_new = set_tier(&c->offload.grads, by->to); break;
    case STATES_TO:
        is_new = set_tier(&c->offload.states, by->to);
        if (by->to == TIER_DEVICE) c->keep_states = r->choice.keep_states;
        break;
    case ACTIVATIONS_TO:
        is_new = set_tier(&c->offload.activations, by->to);
        if (by->to == TIER_DEVICE) c->keep_layers = r->choice.keep_layers;
        break;
    }
    simplify(p, L);
    return is_new;
}

/* The single changes of a candidate. */
typedef struct change_list {
    const plan_request *r;
    const step_choice *of;
    double unit;   /* layers */
    bool is_whole; /* candidates are compiled, not estimated: every prefetch distance is tried */
    change list[CHANGES_MOST];
    size_t n;
} change_list;

static void add_change(change_list *l, change c) {
    step_choice to = *l->of;
    ASSERT(l->n < CHANGES_MOST);
    if (apply(l->r, &c, 1, &to) && !step_choice_equal(&to, l->of, CHOICE_NONE)) l->list[l->n++] = c;
}

static void add_both_ways(change_list *l, knob k) {
    for (int sign = -1; sign <= 1; sign += 2) add_change(l, (change){.knob = k, .sign = sign, .layers = l->unit});
}

static void list_rungs(change_list *l) {
    const recompute_policy *p = &l->of->recompute;
    bool is_mix = p->kind == RECOMPUTE_MIX;
    if (l->r->choice.recompute.kind != RECOMPUTE_AUTO || (!is_mix && p->kind > RECOMPUTE_FULL)) return;
    recompute_kind heavy = is_mix ? p->heavy : p->kind, light = is_mix ? p->light : p->kind;
    double layers = is_mix ? 0 : l->unit;
    if (is_mix) add_both_ways(l, BOUNDARY);
    for (int k = RECOMPUTE_NONE; k <= RECOMPUTE_FULL; k++) {
        if (k > (int)light && k != (int)heavy)
            add_change(l, (change){.knob = HEAVIER, .to = k, .sign = 1, .layers = layers});
        if (k < (int)heavy && k != (int)light)
            add_change(l, (change){.knob = LIGHTER, .to = k, .sign = 1, .layers = layers});
    }
}

static void list_home(change_list *l, knob k, bool is_open, tier now) {
    tier last = l->r->may_nvme || offload_on_nvme(&l->r->choice.offload) ? TIER_NVME : TIER_HOST;
    for (tier t = TIER_DEVICE; is_open && t <= last; t++)
        if (t != now) add_change(l, (change){.knob = k, .to = (int)t});
}

static void list_changes(change_list *l) {
    const plan_open *open = &l->r->open;
    const step_choice *c = l->of;
    const offload_tiers *o = &c->offload;
    bool overlaps = l->r->hardware->overlap;
    list_rungs(l);
    if (open->keep_layers && o->activations != TIER_DEVICE) add_both_ways(l, KEEP_LAYERS);
    if (open->keep_states && o->states != TIER_DEVICE) add_both_ways(l, KEEP_STATES);
    if (open->keep_params && o->params != TIER_DEVICE) add_both_ways(l, KEEP_PARAMS);
    if (open->keep_embed && (o->params != TIER_DEVICE || o->grads != TIER_DEVICE))
        add_change(l, (change){.knob = KEEP_EMBED, .to = !c->keep_embed});
    for (int k = 1; k <= FURTHEST && open->prefetch && overlaps && offload_any(o); k++)
        if (l->is_whole || abs(k - c->prefetch) == 1 || k == FURTHEST)
            add_change(l, (change){.knob = PREFETCH, .to = k});
    list_home(l, PARAMS_TO, open->params, o->params);
    list_home(l, GRADS_TO, open->grads, o->grads);
    list_home(l, STATES_TO, open->states, o->states);
    list_home(l, ACTIVATIONS_TO, open->activations, o->activations);
}

/* ---- sums of two changes ------------------------------------------------------------------------------------------- */

typedef struct sum {
    const change *a, *b; /* b: NULL, or another knob */
    double times_a, times_b;
    double seconds; /* by their prices */
} sum;

static double device_bytes(const plan_candidate *c) { return (double)c->planned[TIER_DEVICE]; }
static double host_bytes(const plan_candidate *c) { return (double)c->planned[TIER_HOST]; }

/* Do so many bytes fit? */
static bool have_room(const plan_request *r, double device, double host) {
    uint64_t planned[TIER_COUNT] = {[TIER_DEVICE] = (uint64_t)fmax(device, 0), [TIER_HOST] = (uint64_t)fmax(host, 0)};
    plan_limits limits = plan_limits_of(r);
    return plan_limits_hold(&limits, planned);
}

static double sum_device(const plan_candidate *from, const sum *s) {
    return device_bytes(from) + s->times_a * s->a->device + (s->b ? s->times_b * s->b->device : 0);
}
static double sum_host(const plan_candidate *from, const sum *s) {
    return host_bytes(from) + s->times_a * s->a->host + (s->b ? s->times_b * s->b->host : 0);
}
static bool fits_by_prices(const plan_request *r, const plan_candidate *from, const sum *s) {
    return have_room(r, sum_device(from, s), sum_host(from, s));
}

/* A change of one, or of as many layers as it may be. */
static double most_times(const plan_request *r, const change *c) {
    return c->layers > 0 ? ceil((double)r->source.n_layers / c->layers) : 1;
}

/* How often b takes `price` from bytes that are `over` a limit. */
static double times_needed(double over, double price) {
    if (over <= 0) return 1;
    return price < 0 ? ceil(over / -price) : INFINITY;
}

/* b as often as it takes until both fit; false: never. */
static bool pay(const plan_request *r, const plan_candidate *from, sum *s) {
    const uint64_t limits[] = {r->device_limit, r->host_limit, r->together_limit};
    s->times_b = 0;
    double device = sum_device(from, s), host = sum_host(from, s), times = 1;
    const double planned[] = {device, host, device + host},
                 prices[] = {s->b->device, s->b->host, s->b->device + s->b->host};
    for (size_t i = 0; i < ARRAY_LENGTH(limits); i++)
        if (limits[i]) times = fmax(times, times_needed(planned[i] - (double)limits[i], prices[i]));
    s->times_b = times;
    return times <= most_times(r, s->b) && fits_by_prices(r, from, s);
}

static void offer_sum(sum best[SUMS], size_t *n, const sum *s) {
    size_t at = *n;
    while (at > 0 && s->seconds < best[at - 1].seconds) at--;
    if (at == SUMS) return;
    *n = MIN(*n + 1, (size_t)SUMS);
    memmove(&best[at + 1], &best[at], (*n - at - 1) * sizeof *best);
    best[at] = *s;
}

/* The best of a alone (b NULL), and of a and b; false: none should fit and save time. */
static bool best_sum(const plan_request *r, const plan_candidate *from, const change *a, const change *b, sum *best) {
    *best = (sum){.seconds = from->fits ? 0 : INFINITY};
    for (double times = 1; times <= most_times(r, a); times++) {
        sum s = {.a = a, .b = b, .times_a = times, .seconds = times * a->seconds};
        if (b ? !pay(r, from, &s) : !fits_by_prices(r, from, &s)) continue;
        if (b) s.seconds += s.times_b * b->seconds;
        if (s.seconds < best->seconds) *best = s;
    }
    return best->a;
}

/* The best sums of one or two changes that should fit, the best first. */
static size_t choose_sums(const plan_request *r, const plan_candidate *from, const change_list *l, sum best[SUMS]) {
    size_t n = 0;
    sum s;
    for (size_t i = 0; i < l->n; i++) {
        if (best_sum(r, from, &l->list[i], NULL, &s)) offer_sum(best, &n, &s);
        for (size_t k = 0; k < l->n; k++)
            if (l->list[i].knob != l->list[k].knob && best_sum(r, from, &l->list[i], &l->list[k], &s))
                offer_sum(best, &n, &s);
    }
    return n;
}

/* ---- the walk ------------------------------------------------------------------------------------------------------ */

typedef struct climb {
    plan_search *s;
    plan_candidate now;
    plan_candidate list[CHANGES_MOST + 2 * SUMS];
    size_t n;
    /* All that were evaluated, which steps that lead back ask for again. */
    struct evaluated {
        plan_candidate candidate;
        plan_effort effort;
    } * known;
    size_t n_known, known_capacity;
} climb;

static const plan_candidate *find_known(const climb *w, const step_choice *c, plan_effort effort) {
    for (size_t i = 0; i < w->n_known; i++)
        if (w->known[i].effort == effort && step_choice_equal(&w->known[i].candidate.choice, c, CHOICE_NONE))
            return &w->known[i].candidate;
    return NULL;
}

/* Fills in the numbers of n candidates; compiles those that are new. */
static status evaluate_all(climb *w, plan_candidate *list, size_t n, plan_effort effort) {
    plan_candidate fresh[CHANGES_MOST + 2 * SUMS];
    size_t at[CHANGES_MOST + 2 * SUMS], n_fresh = 0;
    for (size_t i = 0; i < n; i++) {
        const plan_candidate *same = find_known(w, &list[i].choice, effort);
        if (same) {
            size_t order = list[i].order;
            list[i] = *same;
            list[i].order = order;
        } else {
            at[n_fresh] = i;
            fresh[n_fresh++] = list[i];
        }
    }
    TRY(plan_search_evaluate_all(w->s, fresh, n_fresh, effort));
    w->known = array_grow(w->known, &w->known_capacity, w->n_known + n_fresh, sizeof *w->known);
    for (size_t i = 0; i < n_fresh; i++) {
        list[at[i]] = fresh[i];
        w->known[w->n_known++] = (struct evaluated){fresh[i], effort};
    }
    return OK;
}

static plan_candidate *add_candidate(climb *w, const step_choice *c) {
    for (size_t i = 0; i < w->n; i++)
        if (step_choice_equal(&w->list[i].choice, c, CHOICE_NONE)) return NULL;
    plan_candidate *out = &w->list[w->n++];
    *out = w->now;
    out->choice = *c;
    out->order = w->s->n_tried++;
    return out;
}

static double seconds_of(const plan_candidate *c) { return c->fits ? fmax(c->step_s, c->plain_s) : INFINITY; }

/* Goes to the fastest of the evaluated ones; false: none is faster than now. */
static bool take_fastest(climb *w) {
    const plan_candidate *best = &w->now;
    for (size_t i = 0; i < w->n; i++)
        if (seconds_of(&w->list[i]) < seconds_of(best)) best = &w->list[i];
    bool is_faster = seconds_of(best) < (1 - MIN_GAIN) * seconds_of(&w->now);
    if (is_faster) w->now = *best;
    return is_faster;
}

static step_choice with_sum(const climb *w, const sum *s) {
    step_choice c = w->now.choice;
    apply(w->s->r, s->a, s->times_a, &c);
    if (s->b) apply(w->s->r, s->b, s->times_b, &c);
    return c;
}

/* The share of the way from what fits to what does not at which bytes that grow evenly would fit. */
static double share_that_fits(uint64_t limit, uint64_t from, uint64_t to) {
    return limit && to > limit && limit >= from ? (double)(limit - from) / (double)(to - from) : 1;
}

/* A sum that was too large, made smaller: as far as it goes, or with more of what pays for what cannot be cut. */
static bool make_smaller(const climb *w, const plan_candidate *too_large, sum *s) {
    const plan_request *r = w->s->r;
    const uint64_t *from = w->now.planned, *to = too_large->planned;
    double share = fmin(share_that_fits(r->device_limit, from[TIER_DEVICE], to[TIER_DEVICE]),
                        share_that_fits(r->host_limit, from[TIER_HOST], to[TIER_HOST]));
    share = fmin(share, share_that_fits(r->together_limit, from[TIER_DEVICE] + from[TIER_HOST],
                                        to[TIER_DEVICE] + to[TIER_HOST]));
    if (s->a->layers > 0 && w->now.fits) {
        s->times_a = floor(s->times_a * share);
        s->times_b = ceil(s->times_b * share);
        return s->times_a > 0;
    }
    if (!s->b || s->b->layers == 0) return false;
    s->times_b = ceil(s->times_b * 1.25);
    return true;
}

/* Sums that should fit, and those that do not once more. */
static status try_sums(climb *w, const change_list *l, plan_effort effort) {
    sum sums[SUMS];
    plan_candidate *made[SUMS] = {0};
    size_t n = choose_sums(w->s->r, &w->now, l, sums), first = w->n;
    for (size_t i = 0; i < n; i++) {
        step_choice c = with_sum(w, &sums[i]);
        made[i] = add_candidate(w, &c);
    }
    TRY(evaluate_all(w, w->list + first, w->n - first, effort));
    first = w->n;
    for (size_t i = 0; i < n; i++) {
        if (!made[i] || made[i]->fits || !make_smaller(w, made[i], &sums[i])) continue;
        step_choice c = with_sum(w, &sums[i]);
        add_candidate(w, &c);
    }
    return evaluate_all(w, w->list + first, w->n - first, effort);
}

/* Evaluates the single changes that have no price, which gives them one. */
static status price_changes(climb *w, change_list *l, plan_effort effort) {
    change *priced[CHANGES_MOST];
    size_t n = 0;
    for (size_t i = 0; i < l->n; i++) {
        step_choice c = w->now.choice;
        if (l->list[i].is_priced) continue;
        apply(w->s->r, &l->list[i], 1, &c);
        if (add_candidate(w, &c)) priced[n++] = &l->list[i];
    }
    TRY(evaluate_all(w, w->list, w->n, effort));
    for (size_t i = 0; i < n; i++) {
        priced[i]->seconds = w->list[i].step_s - w->now.step_s;
        priced[i]->device = device_bytes(&w->list[i]) - device_bytes(&w->now);
        priced[i]->host = host_bytes(&w->list[i]) - host_bytes(&w->now);
        priced[i]->is_priced = true;
    }
    return OK;
}

static bool is_of_rungs(const change *c) { return c->knob == BOUNDARY || c->knob == HEAVIER || c->knob == LIGHTER; }

/* The prices that changes had before the last step; of recompute only if its rungs are the same. */
static void keep_prices(change_list *l, const change_list *last, bool same_rungs) {
    for (size_t i = 0; i < l->n; i++)
        for (size_t k = 0; k < last->n; k++) {
            const change *a = &l->list[i], *b = &last->list[k];
            if (a->knob == b->knob && a->to == b->to && a->sign == b->sign && a->layers == b->layers &&
                (same_rungs || !is_of_rungs(a)))
                l->list[i] = *b;
        }
}

static bool have_same_rungs(const recompute_policy *a, const recompute_policy *b) {
    return a->kind == b->kind && a->heavy == b->heavy && a->light == b->light;
}

/* In units of several layers; prices: those that were found last. Prices are kept from step to step until nothing is
 * faster by them. */
static status walk(climb *w, double unit, plan_effort effort, change_list *prices) {
    recompute_policy rungs = w->now.choice.recompute;
    prices->n = 0;
    for (int k = 0; k < ROUNDS; k++) {
        step_choice of = w->now.choice;
        change_list l = {.r = w->s->r, .of = &of, .unit = unit, .is_whole = effort == PLAN_WHOLE};
        list_changes(&l);
        keep_prices(&l, prices, have_same_rungs(&rungs, &of.recompute));
        rungs = of.recompute;
        bool is_kept = prices->n > 0;
        w->n = 0;
        TRY(price_changes(w, &l, effort));
        TRY(try_sums(w, &l, effort));
        *prices = l;
        if (take_fastest(w)) continue;
        if (!is_kept) break;
        prices->n = 0;
    }
    return OK;
}

/* The last steps change single layers, and the embedding, whose bytes are those of a few of them. */
static bool is_of_last_steps(const change *c) { return c->layers > 0 || c->knob == KEEP_EMBED; }

/* The last steps: single layers, by the prices of several. */
static status walk_by_layers(climb *w, const change_list *prices) {
    change_list l = {.r = prices->r};
    for (size_t i = 0; i < prices->n; i++) {
        change c = prices->list[i];
        if (!is_of_last_steps(&c) || !c.is_priced) continue;
        if (c.layers > 0) {
            c.seconds /= c.layers;
            c.device /= c.layers;
            c.host /= c.layers;
            c.layers = 1;
        }
        l.list[l.n++] = c;
    }
    for (int k = 0; k < LAST_ROUNDS; k++) {
        w->n = 0;
        TRY(try_sums(w, &l, PLAN_WHOLE));
        if (!take_fastest(w)) break;
    }
    return OK;
}

/* The nearest whole number of parts. */
static int64_t in_parts(int64_t layers, double unit) { return llround(round((double)layers / unit) * unit); }

static void round_to_parts(const plan_request *r, double unit, step_choice *c) {
    c->keep_layers = in_parts(c->keep_layers, unit);
    c->keep_states = in_parts(c->keep_states, unit);
    c->keep_params = in_parts(c->keep_params, unit);
    if (c->recompute.kind == RECOMPUTE_MIX) c->recompute.n_heavy = in_parts(c->recompute.n_heavy, unit);
    simplify(&c->recompute, r->source.n_layers);
}

/* Between two choices that differ in numbers of layers: `to` at share 1. Where the rungs differ, those of `to`. */
static step_choice between(const plan_request *r, const step_choice *from, const step_choice *to, double share) {
    const int64_t L = r->source.n_layers;
    step_choice c = *to;
    c.keep_layers = from->keep_layers + llround(share * (double)(to->keep_layers - from->keep_layers));
    c.keep_states = from->keep_states + llround(share * (double)(to->keep_states - from->keep_states));
    c.keep_params = from->keep_params + llround(share * (double)(to->keep_params - from->keep_params));
    const recompute_policy *a = &from->recompute, *b = &to->recompute;
    if (b->kind != RECOMPUTE_MIX) return c;
    int64_t n = b->n_heavy;
    if (a->kind == RECOMPUTE_MIX && a->heavy == b->heavy && a->light == b->light) n = a->n_heavy;
    if (a->kind == b->heavy) n = L;
    if (a->kind == b->light) n = 0;
    c.recompute.n_heavy = n + llround(share * (double)(b->n_heavy - n));
    simplify(&c.recompute, L);
    return c;
}

/* An estimate of the peak is too small where the layers of a deep model have it elsewhere than a few of them. Compiles
 * the candidate, and some between `from`, which fits, and it. */
static status step_back(climb *w, const step_choice *from) {
    const step_choice to = w->now.choice;
    w->n = 0;
    for (int k = BACK; k >= 0; k--) {
        step_choice c = between(w->s->r, from, &to, (double)k / BACK);
        add_candidate(w, &c);
    }
    TRY(evaluate_all(w, w->list, w->n, PLAN_WHOLE));
    w->now.fits = false;
    take_fastest(w);
    return OK;
}

/* Of a deep model: the walk is estimated, its end compiled, and the last steps have prices of their own. */
static status climb_parts(climb *w, const step_choice *from, double unit) {
    change_list prices;
    round_to_parts(w->s->r, unit, &w->now.choice);
    TRY(evaluate_all(w, &w->now, 1, PLAN_IN_PARTS));
    TRY(walk(w, unit, PLAN_IN_PARTS, &prices));
    TRY(step_back(w, from));
    if (!w->now.fits) return OK;
    change_list l = {.r = w->s->r, .of = &w->now.choice, .unit = fmax(unit / 2, 1)}, of_last = {.r = w->s->r};
    list_changes(&l);
    for (size_t i = 0; i < l.n; i++)
        if (is_of_last_steps(&l.list[i])) of_last.list[of_last.n++] = l.list[i];
    w->n = 0;
    TRY(price_changes(w, &of_last, PLAN_WHOLE));
    take_fastest(w);
    return walk_by_layers(w, &of_last);
}

static status climb_whole(climb *w, double unit) {
    change_list prices;
    TRY(evaluate_all(w, &w->now, 1, PLAN_WHOLE));
    TRY(walk(w, unit, PLAN_WHOLE, &prices));
    return unit > 1 ? walk_by_layers(w, &prices) : OK;
}

status plan_climb(plan_search *s) {
    const plan_request *r = s->r;
    const plan_candidate *best = &s->list[0];
    if (!r->hardware || !plan_is_one_device(r) || !best->fits || !isfinite(best->step_s)) return OK;
    bool computes_again = r->choice.recompute.kind == RECOMPUTE_AUTO && best->choice.recompute.kind != RECOMPUTE_NONE;
    if (!offload_any(&best->choice.offload) && !computes_again) return OK; /* nothing is faster than what stays */
    double unit = fmax((double)r->source.n_layers / PLAN_PARTS, 1);
    climb w = {.s = s, .now = *best};
    step_choice from = best->choice;
    w.now.order = s->n_tried++;
    status rc = plan_estimates_parts(r) ? climb_parts(&w, &from, unit) : climb_whole(&w, unit);
    free(w.known);
    TRY(rc);
    if (!w.now.fits || step_choice_equal(&w.now.choice, &from, CHOICE_NONE)) return OK;
    plan_search_append(s, &w.now);
    plan_search_sort(s);
    return OK;
}
