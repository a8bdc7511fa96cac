/* mix.c - between two ways of which one fits with room to spare and the other does not: some layers as in the one, the others
 * as in the other.
 *
 * Two rungs of recompute, the heavier one in as many layers as it takes to fit; and states on the host or on the device, where
 * as many layers keep theirs as there is room for. Bytes and time of a mixture lie on a straight line between the two ways,
 * nearly: it says which to mix and in how many layers. What comes out of it is a guess, which strategy.c compiles and mends. */
#include "plan/search.h"

#include <math.h>

/* The share of layers that have to be heavy for a tier to hold its limit. */
static double share_of(uint64_t limit, double light, double heavy) {
    if (limit == 0 || light <= (double)limit) return 0;
    return heavy < light ? (light - (double)limit) / (light - heavy) : 1;
}

static bool is_rung(const plan_candidate *c) { return c->choice.recompute.kind <= RECOMPUTE_FULL; }

/* `like` with this rung, and with copies that run as far ahead and states that stay as was asked; NULL: not on the list. */
static const plan_candidate *with_rung(const plan_candidate *list, size_t n, const step_choice *like,
                                       const step_choice *asked, recompute_kind rung) {
    step_choice wanted = *like;
    wanted.prefetch = asked->prefetch;
    wanted.keep_states = asked->keep_states;
    for (size_t i = 0; i < n; i++) {
        const step_choice *c = &list[i].choice;
        if (c->recompute.kind == rung && step_choice_equal(c, &wanted, CHOICE_RECOMPUTE)) return &list[i];
    }
    return NULL;
}

/* heavy with `light` in the other layers, its time by the straight line. What copies further ahead cost, and what states that
 * stay do, was only found out for what fits: for the light rung it is taken to be the same. False: no layer could be light, or
 * all of them. */
static bool mixture(const plan_request *r, const plan_candidate *heavy, const plan_candidate *heavy_near,
                    const plan_candidate *light_near, plan_candidate *out) {
    const tier limited[] = {TIER_DEVICE, TIER_HOST};
    const uint64_t limits[] = {r->device_limit, r->host_limit};
    double share = 0, L = (double)r->model.n_layers;
    for (size_t i = 0; i < ARRAY_LENGTH(limited); i++) {
        double h = (double)heavy->planned[limited[i]];
        double light = (double)light_near->planned[limited[i]] + h - (double)heavy_near->planned[limited[i]];
        share = fmax(share, share_of(limits[i], light, h));
    }
    double n_heavy = ceil(share * L);
    if (n_heavy < 1 || n_heavy >= L) return false;
    *out = *heavy;
    out->step_s -= (heavy_near->step_s - light_near->step_s) * (L - n_heavy) / L;
    out->choice.recompute = (recompute_policy){.kind = RECOMPUTE_MIX,
                                               .heavy = heavy->choice.recompute.kind,
                                               .light = light_near->choice.recompute.kind,
                                               .n_heavy = (int64_t)n_heavy};
    return true;
}

/* Times of ways that were not compiled themselves are this far off. */
static const double DOUBT = 1.05;

/* c takes its place among the n best; what falls off the end is forgotten. */
static size_t insert(plan_candidate best[PLAN_MIXES], size_t n, const plan_candidate *c) {
    size_t at = n;
    while (at > 0 && c->step_s < best[at - 1].step_s) at--;
    if (at == PLAN_MIXES) return n;
    n = MIN(n + 1, (size_t)PLAN_MIXES);
    memmove(&best[at + 1], &best[at], (n - at - 1) * sizeof *best);
    best[at] = *c;
    return n;
}

size_t plan_mix(const plan_request *r, const plan_candidate *list, size_t n, plan_candidate best[PLAN_MIXES]) {
    size_t n_best = 0;
    for (size_t i = 0; i < n; i++) {
        const plan_candidate *heavy = &list[i];
        if (!heavy->fits || !is_rung(heavy)) continue;
        const plan_candidate *heavy_near = with_rung(list, n, &heavy->choice, &r->choice, heavy->choice.recompute.kind);
        for (recompute_kind k = RECOMPUTE_NONE; k < heavy->choice.recompute.kind && heavy_near; k++) {
            const plan_candidate *light = with_rung(list, n, &heavy->choice, &r->choice, k);
            plan_candidate c;
            if (light && mixture(r, heavy, heavy_near, light, &c) && c.step_s < DOUBT * list[0].step_s)
                n_best = insert(best, n_best, &c);
        }
    }
    return n_best;
}

/* ---- states that stay ------------------------------------------------------------------------------------------- */

/* Of a list on which nothing is kept yet. */
static bool same_but_prefetch(const plan_candidate *a, const plan_candidate *b) {
    return step_choice_equal(&a->choice, &b->choice, CHOICE_PREFETCH | CHOICE_KEEP_STATES);
}

/* The way with all states on the device; NULL: not on the list. */
static const plan_candidate *with_states(const plan_candidate *list, size_t n, const plan_candidate *like) {
    plan_candidate there = *like;
    there.choice.offload.states = TIER_DEVICE;
    for (size_t i = 0; i < n; i++)
        if (same_but_prefetch(&list[i], &there)) return &list[i];
    return NULL;
}

/* Of all parameters, and so of all states, those of one layer. */
static double layer_share(const model_config *model) {
    model_config one = *model, two = *model;
    one.n_layers = 1;
    two.n_layers = 2;
    return (double)(model_param_count(&two) - model_param_count(&one)) / (double)model_param_count(model);
}

/* `away` with the states of as many layers as there is room for on the device, its time by the straight line to `there`.
 * States lie where they lie for the whole of a step: what they add to a peak is their size. False: there is room for none, or
 * the host has none for the others. */
static bool kept(const plan_request *r, const plan_candidate *away, const plan_candidate *there, plan_candidate *out) {
    double share = layer_share(&r->model);
    double layer = share * ((double)there->by_role[ROLE_STATE] - (double)away->by_role[ROLE_STATE]);
    double room = (double)r->device_limit - (double)away->planned[TIER_DEVICE];
    if (layer <= 0 || room < layer) return false;
    double n = fmin(floor(room / layer), (double)r->model.n_layers);
    double host = (double)away->planned[TIER_HOST] - (away->choice.offload.states == TIER_HOST ? n * layer : 0);
    if (r->host_limit && host > (double)r->host_limit) return false;
    *out = *away;
    out->choice.keep_states = (int64_t)n;
    out->step_s -= (away->step_s - there->step_s) * share * n;
    return true;
}

size_t plan_keep(const plan_request *r, const plan_candidate *list, size_t n, plan_candidate best[PLAN_MIXES]) {
    size_t n_best = 0;
    for (size_t i = 0; i < n; i++) {
        const plan_candidate *away = &list[i];
        bool seen = false; /* with copies that run otherwise ahead, and faster */
        for (size_t k = 0; k < i && !seen; k++) seen = same_but_prefetch(&list[k], away);
        /* An update on the device would bring gradients back that live on the host. */
        if (seen || away->choice.offload.states == TIER_DEVICE || away->choice.offload.grads != TIER_DEVICE) continue;
        const plan_candidate *there = with_states(list, n, away);
        plan_candidate c;
        if (!there || there->fits || !kept(r, away, there, &c)) continue;
        if (!list[0].fits || c.step_s < DOUBT * list[0].step_s) n_best = insert(best, n_best, &c);
    }
    return n_best;
}
