/* refine.c - variations of the best candidates of a search.
 *
 * Those of the list treat all layers alike. Room that the best of them leave on the device is filled by states or
 * activations of some layers (mix.c), and the best of all is combined with everything else (climb.c). Where nothing
 * fits unmoved, layers may go to the host's cores. And where the winner fits with every activation kept, it is made
 * smaller as far as that costs next to nothing. */
#include "plan/search.h"

#include <math.h>

/* Compiles mixtures. Their number of layers is a guess: use_less_memory changes one layer at a time until the candidate fits,
 * and returns false when no layer is left. */
static status try_mixtures(plan_search *s, const plan_candidate *mixtures, size_t n,
                           bool (*use_less_memory)(plan_candidate *c, int64_t n_layers)) {
    enum { TRIES = 6 };
    for (size_t i = 0; i < n; i++) {
        plan_candidate c = mixtures[i];
        bool left = true;
        c.order = s->n_tried++;
        c.fits = false;
        for (int k = 0; k < TRIES && !c.fits && left; k++) {
            TRY(plan_search_evaluate(s, &c));
            if (!c.fits) left = use_less_memory(&c, s->r->source.n_layers);
        }
        if (c.fits) plan_search_append(s, &c);
    }
    plan_search_sort(s);
    return OK;
}

static bool recompute_one_layer_more(plan_candidate *c, int64_t n_layers) {
    return ++c->choice.recompute.n_heavy < n_layers;
}

static bool keep_states_of_one_layer_less(plan_candidate *c, int64_t n_layers) {
    (void)n_layers;
    return --c->choice.keep_states > 0;
}

/* Free device memory may hold the states of some layers, which saves time of the host's update, ... */
static status try_kept_states(plan_search *s) {
    const plan_request *r = s->r;
    plan_candidate mixes[PLAN_MIXES];
    if (!r->open.keep_states || !r->hardware || !plan_is_one_device(r)) return OK;
    return try_mixtures(s, mixes, plan_keep_states(r, s->list, s->n, mixes), keep_states_of_one_layer_less);
}

/* ... or activations, which saves recompute. */
static status try_mixed_recompute(plan_search *s) {
    const plan_request *r = s->r;
    plan_candidate mixes[PLAN_MIXES];
    if (r->choice.recompute.kind != RECOMPUTE_AUTO || !r->hardware || !plan_is_one_device(r)) return OK;
    return try_mixtures(s, mixes, plan_mix_recompute(r, s->list, s->n, mixes), recompute_one_layer_more);
}

/* Nothing fits unmoved: the least number of the last layers on the host's cores with which the rest fits the GPU, computing nothing
 * again or whole layers. The last, because an update of theirs may go on while the next forward is in the first. */
static status try_placed_layers(plan_search *s) {
    const recompute_kind kinds[] = {RECOMPUTE_NONE, RECOMPUTE_FULL};
    const plan_request *r = s->r;
    bool again = r->choice.recompute.kind == RECOMPUTE_AUTO;
    if (!r->open.place || !r->target.discrete || !r->hardware) return OK;
    for (size_t k = 0; k < (again ? ARRAY_LENGTH(kinds) : 1); k++) {
        plan_candidate c = plan_as_asked(r), least = {0};
        if (again) c.choice.recompute.kind = kinds[k];
        for (int64_t low = 1, high = net_trunk(&r->source); low <= high;) {
            c.choice.cpu_layers = low + (high - low) / 2;
            c.order = s->n_tried++;
            TRY(plan_search_evaluate(s, &c));
            if (c.fits) least = c, high = c.choice.cpu_layers - 1;
            else low = c.choice.cpu_layers + 1;
        }
        if (least.fits) plan_search_append(s, &least);
    }
    plan_search_sort(s);
    return OK;
}

/* The fastest fits and keeps every activation: what is made again for next to no time need not be kept, although there is room. On a GPU
 * only: on cores such a step is bound by caches, which the prediction leaves out, and their memory is seldom what a run lacks. */
static status try_cheap_recompute(plan_search *s) {
    const plan_request *r = s->r;
    plan_candidate again = s->list[0], cheap;
    const step_choice *c = &again.choice;
    if (r->choice.recompute.kind != RECOMPUTE_AUTO || c->recompute.kind != RECOMPUTE_NONE || !again.fits) return OK;
    if (!r->target.discrete || !isfinite(again.step_s) || offload_any(&c->offload) || c->cpu_layers) return OK;
    again.choice.recompute.kind = RECOMPUTE_NORMS;
    again.order = s->n_tried++;
    TRY(plan_search_evaluate(s, &again));
    if (!plan_mix_cheap(r, &s->list[0], &again, plan_is_one_device(r), &cheap)) return OK;
    if (cheap.estimated) cheap.order = s->n_tried++;
    for (size_t i = 0; i < s->n; i++) /* it may have been compared already */
        if (step_choice_equal(&s->list[i].choice, &cheap.choice, CHOICE_NONE)) {
            s->list[i] = s->list[--s->n];
            break;
        }
    plan_search_append(s, &cheap);
    plan_search_sort(s);
    return OK;
}

status plan_refine(plan_search *s, bool plain_fits) {
    TRY(try_kept_states(s));
    TRY(try_mixed_recompute(s));
    TRY(plan_climb(s));
    if (!plain_fits) TRY(try_placed_layers(s));
    return try_cheap_recompute(s);
}
