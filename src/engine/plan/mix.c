/* mix.c - candidates between two others, one of which fits with room to spare and one of which does not: some layers as in
 * the first, the others as in the second.
 *
 * Either two rungs of recompute, the heavier one in as many layers as needed to fit, or where everything fits in as many as cost next to
 * nothing; or states on host and device, with as many layers on the device as fit. Bytes and time of a mix are close to a straight line between the two candidates. The line
 * decides which candidates to mix and in how many layers; strategy.c compiles the result and corrects it. */
#include "plan/search.h"

#include <math.h>

/* The share of layers that need the heavier rung to keep a tier within its limit. */
static double share_of(uint64_t limit, double light, double heavy) {
    if (limit == 0 || light <= (double)limit) return 0;
    return heavy < light ? (light - (double)limit) / (light - heavy) : 1;
}

static bool is_rung(const plan_candidate *c) { return c->choice.recompute.kind <= RECOMPUTE_FULL; }

/* The candidate like `like` with this rung, and with prefetch and what is kept on the device as asked; NULL: not on the list. */
static const plan_candidate *with_rung(const plan_candidate *list, size_t n, const step_choice *like,
                                       const step_choice *asked, recompute_kind rung) {
    step_choice wanted = *like;
    wanted.prefetch = asked->prefetch;
    wanted.keep_states = asked->keep_states;
    wanted.keep_params = asked->keep_params;
    wanted.keep_embed = asked->keep_embed;
    for (size_t i = 0; i < n; i++) {
        const step_choice *c = &list[i].choice;
        if (c->recompute.kind == rung && step_choice_equal(c, &wanted, CHOICE_RECOMPUTE)) return &list[i];
    }
    return NULL;
}

/* `heavy` with `light` in the other layers, its time by interpolation. The cost of longer prefetch and of kept states is only
 * known for candidates that fit; the light rung is assumed to have the same. False: all layers would be of one kind. */
static bool mix_recompute(const plan_request *r, const plan_candidate *heavy, const plan_candidate *heavy_near,
                          const plan_candidate *light_near, plan_candidate *out) {
    const tier limited[] = {TIER_DEVICE, TIER_HOST};
    const uint64_t limits[] = {r->device_limit, r->host_limit};
    double share = 0, L = (double)r->source.n_layers;
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

/* Interpolated times may be wrong by this factor. */
static const double ESTIMATE_ERROR = 1.05;

/* Inserts c into the sorted n best; drops the last one when the list is full. */
static size_t insert(plan_candidate best[PLAN_MIXES], size_t n, const plan_candidate *c) {
    size_t at = n;
    while (at > 0 && c->step_s < best[at - 1].step_s) at--;
    if (at == PLAN_MIXES) return n;
    n = MIN(n + 1, (size_t)PLAN_MIXES);
    memmove(&best[at + 1], &best[at], (n - at - 1) * sizeof *best);
    best[at] = *c;
    return n;
}

size_t plan_mix_recompute(const plan_request *r, const plan_candidate *list, size_t n,
                          plan_candidate best[PLAN_MIXES]) {
    size_t n_best = 0;
    for (size_t i = 0; i < n; i++) {
        const plan_candidate *heavy = &list[i];
        if (!heavy->fits || !is_rung(heavy)) continue;
        const plan_candidate *heavy_near = with_rung(list, n, &heavy->choice, &r->choice, heavy->choice.recompute.kind);
        for (recompute_kind k = RECOMPUTE_NONE; k < heavy->choice.recompute.kind && heavy_near; k++) {
            const plan_candidate *light = with_rung(list, n, &heavy->choice, &r->choice, k);
            plan_candidate c;
            if (light && mix_recompute(r, heavy, heavy_near, light, &c) && c.step_s < ESTIMATE_ERROR * list[0].step_s)
                n_best = insert(best, n_best, &c);
        }
    }
    return n_best;
}

/* ---- recompute that costs next to nothing -------------------------------------------------------------------------- */

/* A run that fits computes again what takes at most this share of the step's time, and saves at least as many times that share of the
 * device's bytes. On an H200 1 % by this prediction was 1.3 % when measured, so less than 1 % is allowed here. */
static const double CHEAP_TIME = 0.0075, CHEAP_GAIN = 5;

static uint64_t between(uint64_t kept, uint64_t again, double share) {
    return (uint64_t)((double)kept + ((double)again - (double)kept) * share);
}

bool plan_mix_cheap(const plan_request *r, const plan_candidate *kept, const plan_candidate *again, bool in_some_layers,
                    plan_candidate *out) {
    double cost = again->step_s / kept->step_s - 1, layers = (double)r->source.n_layers;
    double n = cost > CHEAP_TIME ? floor(layers * CHEAP_TIME / cost) : layers;
    double share = n / layers;
    uint64_t device = kept->planned[TIER_DEVICE];
    if (!again->fits || !isfinite(cost) || n < 1 || (share < 1 && !in_some_layers)) return false;
    *out = *again;
    for (tier t = 0; t < TIER_COUNT; t++) out->planned[t] = between(kept->planned[t], again->planned[t], share);
    for (role k = 0; k < ROLE_COUNT; k++) out->by_role[k] = between(kept->by_role[k], again->by_role[k], share);
    if (out->planned[TIER_DEVICE] >= device) return false;
    out->step_s = kept->step_s * (1 + share * cost);
    out->more_flops = share * again->more_flops;
    out->saved_bytes = device - out->planned[TIER_DEVICE];
    out->saved_for = fmax(0, share * cost);
    if (share < 1) {
        out->choice.recompute = (recompute_policy){.kind = RECOMPUTE_MIX,
                                                   .heavy = again->choice.recompute.kind,
                                                   .light = kept->choice.recompute.kind,
                                                   .n_heavy = (int64_t)n};
        out->estimated = true;
    }
    return (double)out->saved_bytes >= CHEAP_GAIN * out->saved_for * (double)device;
}

/* ---- states that stay ------------------------------------------------------------------------------------------- */

/* For a list on which no candidate has keep_states yet. */
static bool same_but_prefetch(const plan_candidate *a, const plan_candidate *b) {
    return step_choice_equal(&a->choice, &b->choice, CHOICE_PREFETCH | CHOICE_KEEP_STATES);
}

/* The same candidate with all states on the device; NULL: not on the list. */
static const plan_candidate *with_states(const plan_candidate *list, size_t n, const plan_candidate *like) {
    plan_candidate on_device = *like;
    on_device.choice.offload.states = TIER_DEVICE;
    for (size_t i = 0; i < n; i++)
        if (same_but_prefetch(&list[i], &on_device)) return &list[i];
    return NULL;
}

/* The share of one layer in all parameters, and so in all states. */
static double layer_share(const net_source *whole) {
    net_source one = *whole, two = *whole;
    whole->by->set_trunk(&one, 1);
    whole->by->set_trunk(&two, 2);
    return (double)(net_param_count(&two) - net_param_count(&one)) / (double)net_param_count(whole);
}

/* `offloaded` with the states of as many layers on the device as fit there, its time interpolated towards `on_device`. States
 * are persistent, so they add their size to any peak. False: not one layer fits, or the host cannot hold the others. */
static bool mix_states(const plan_request *r, const plan_candidate *offloaded, const plan_candidate *on_device,
                       plan_candidate *out) {
    double share = layer_share(&r->source);
    double layer = share * ((double)on_device->by_role[ROLE_STATE] - (double)offloaded->by_role[ROLE_STATE]);
    double room = (double)r->device_limit - (double)offloaded->planned[TIER_DEVICE];
    if (layer <= 0 || room < layer) return false;
    double n = fmin(floor(room / layer), (double)r->source.n_layers);
    double host =
        (double)offloaded->planned[TIER_HOST] - (offloaded->choice.offload.states == TIER_HOST ? n * layer : 0);
    if (r->host_limit && host > (double)r->host_limit) return false;
    *out = *offloaded;
    out->choice.keep_states = (int64_t)n;
    out->step_s -= (offloaded->step_s - on_device->step_s) * share * n;
    return true;
}

size_t plan_keep_states(const plan_request *r, const plan_candidate *list, size_t n, plan_candidate best[PLAN_MIXES]) {
    size_t n_best = 0;
    for (size_t i = 0; i < n; i++) {
        const plan_candidate *offloaded = &list[i];
        bool seen = false; /* the same with another prefetch, and faster */
        for (size_t k = 0; k < i && !seen; k++) seen = same_but_prefetch(&list[k], offloaded);
        /* An update on the device would have to fetch offloaded gradients. */
        if (seen || offloaded->choice.offload.states == TIER_DEVICE || offloaded->choice.offload.grads != TIER_DEVICE)
            continue;
        const plan_candidate *on_device = with_states(list, n, offloaded);
        plan_candidate c;
        if (!on_device || on_device->fits || !mix_states(r, offloaded, on_device, &c)) continue;
        if (!list[0].fits || c.step_s < ESTIMATE_ERROR * list[0].step_s) n_best = insert(best, n_best, &c);
    }
    return n_best;
}
