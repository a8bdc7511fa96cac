/* mix.c - between two rungs of recompute: the heavier one in as many layers as it takes to fit, a lighter one in the others.
 *
 * A rung for all layers fits with room to spare, most often, and the next lighter one does not. Bytes and time of a mixture
 * lie on a straight line between the two, nearly: it says which two rungs to mix, with things in which places, and in how
 * many layers. What comes out of it is a guess, which strategy.c compiles and mends. */
#include "plan/plan.h"

#include <math.h>

/* The share of layers that have to be heavy for a tier to hold its limit. */
static double share_of(uint64_t limit, double light, double heavy) {
    if (limit == 0 || light <= (double)limit) return 0;
    return heavy < light ? (light - (double)limit) / (light - heavy) : 1;
}

/* The same way but for the rung, and for how far copies run ahead. */
static bool same_homes(const plan_candidate *a, const plan_candidate *b) {
    return a->precision == b->precision && a->micro_batch == b->micro_batch && a->zero == b->zero &&
           a->sequence == b->sequence && a->chunk_tokens == b->chunk_tokens &&
           a->offload.keep_layers == b->offload.keep_layers && offload_same_homes(&a->offload, &b->offload);
}

static bool is_rung(const plan_candidate *c) { return c->recompute.kind <= RECOMPUTE_FULL; }

/* The way with this rung, and copies as far ahead as was asked; NULL: not on the list. */
static const plan_candidate *with_rung(const plan_candidate *list, size_t n, const plan_candidate *like, int prefetch,
                                       recompute_kind rung) {
    for (size_t i = 0; i < n; i++)
        if (list[i].recompute.kind == rung && list[i].offload.prefetch == prefetch && same_homes(&list[i], like))
            return &list[i];
    return NULL;
}

/* heavy with `light` in the other layers, its time by the straight line. What copies further ahead cost was only found out
 * for what fits: for the light rung they are taken to cost the same. False: no layer could be light, or all of them. */
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
    out->recompute = (recompute_policy){.kind = RECOMPUTE_MIX,
                                        .heavy = heavy->recompute.kind,
                                        .light = light_near->recompute.kind,
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
        int near = r->offload.prefetch;
        const plan_candidate *heavy_near = with_rung(list, n, heavy, near, heavy->recompute.kind);
        for (recompute_kind k = RECOMPUTE_NONE; k < heavy->recompute.kind && heavy_near; k++) {
            const plan_candidate *light = with_rung(list, n, heavy, near, k);
            plan_candidate c;
            if (light && mixture(r, heavy, heavy_near, light, &c) && c.step_s < DOUBT * list[0].step_s)
                n_best = insert(best, n_best, &c);
        }
    }
    return n_best;
}
