/* tight.c - candidates with the least memory, for requests where none of strategy.c fits: long rows, mostly.
 *
 * Three more techniques are tried. The MLP runs in chunks of tokens (pass/chunk.c), which bounds what one layer needs beside
 * what it keeps. The host takes the activations of as many layers as it can hold and the last layers keep theirs on the
 * device, so that both memories are filled. And only every n-th layer keeps its input (recompute nested).
 *
 * They come in levels, from little to much cost in time. The search ends at the first level at which a candidate fits. Every
 * candidate is compiled with all its layers: layers differ, so nothing can be extrapolated, and the result is close to a
 * limit. */
#include "plan/search.h"

#include <stdlib.h>

enum { CHUNKS = 16, CHUNK_LEAST = 1024 }; /* products of fewer rows leave a device idle */

typedef struct level {
    recompute_policy recompute;
    int64_t chunk_tokens;
} level;

enum { LEVELS_MOST = 5 };

/* From a rank's tokens alone, never from free memory: chunks decide the order of a sum. */
static int64_t chunk_of(const plan_request *r, const plan_candidate *like) {
    int64_t N = like->choice.micro_batch * r->seq_len / like->choice.sequence;
    int64_t c = chunk_rows(MAX(divide_up(N, CHUNKS), (int64_t)CHUNK_LEAST));
    return c < N ? c : 0;
}

static size_t list_levels(const plan_request *r, const plan_candidate *like, level out[LEVELS_MOST]) {
    bool may_nest = r->choice.recompute.kind == RECOMPUTE_AUTO;
    /* 8-bit tensors have one scale for all tokens. */
    int64_t chunk =
        r->open.chunk && !precision_fp8(like->choice.precision) ? chunk_of(r, like) : r->choice.chunk_tokens;
    recompute_policy first = may_nest ? (recompute_policy){.kind = RECOMPUTE_FULL} : r->choice.recompute;
    size_t n = 0;
    out[n++] = (level){first, r->choice.chunk_tokens};
    if (chunk != r->choice.chunk_tokens) out[n++] = (level){first, chunk};
    for (int64_t k = 2; may_nest && k <= 8 && k < r->source.n_layers; k *= 2)
        out[n++] = (level){{.kind = RECOMPUTE_NESTED, .every = k}, chunk};
    return n;
}

/* params, grads, states, activations: the least device memory first. */
static const offload_tiers offload_order[] = {OFFLOAD(TIER_NVME, TIER_NVME, TIER_NVME, TIER_NVME),
                                              OFFLOAD(TIER_HOST, TIER_HOST, TIER_HOST, TIER_HOST),
                                              OFFLOAD(TIER_DEVICE, TIER_HOST, TIER_HOST, TIER_HOST),
                                              OFFLOAD(TIER_DEVICE, TIER_DEVICE, TIER_HOST, TIER_HOST),
                                              OFFLOAD(TIER_DEVICE, TIER_DEVICE, TIER_DEVICE, TIER_HOST),
                                              OFFLOAD(TIER_HOST, TIER_HOST, TIER_HOST, TIER_DEVICE),
                                              OFFLOAD(TIER_DEVICE, TIER_DEVICE, TIER_HOST, TIER_DEVICE),
                                              OFFLOAD(TIER_DEVICE, TIER_DEVICE, TIER_DEVICE, TIER_DEVICE)};

/* The search. */
typedef struct trial {
    const plan_request *r;
    const plan_candidate *like;
    plan_best *best;      /* NULL: no plan is needed */
    bool is_one_enough;   /* stop at the first candidate that fits */
    bool fits;            /* some candidate does */
    plan_candidate *list; /* candidates with final numbers */
    size_t n, capacity;
    size_t n_tried;
    uint64_t host_lasting; /* persistent host bytes of the candidate that was evaluated last */
} trial;

static uint64_t lasting_bytes(const program *g, tier at) {
    uint64_t n = 0;
    for (value_id v = 1; v < g->n_values; v++) {
        const value *a = &g->values[v];
        if (a->persistent && !a->view_of && a->tier == at) n += value_bytes(a);
    }
    return n;
}

static status evaluate(trial *t, plan_candidate *c) {
    plan p;
    c->order = t->n_tried++;
    TRY(plan_build_candidate(t->r, c, &p));
    t->host_lasting = lasting_bytes(&p.program, TIER_HOST);
    if (t->best) plan_best_offer(t->best, c, &p);
    else plan_close(&p);
    return OK;
}

static bool within(uint64_t limit, uint64_t planned) { return limit == 0 || planned <= limit; }

/* Keeps the activations of as many layers on the device as the host cannot hold. */
static status fill_host(trial *t, plan_candidate *c) {
    const plan_request *r = t->r;
    TRY(evaluate(t, c));
    bool may_keep = r->open.keep_layers && c->choice.offload.activations != TIER_DEVICE;
    uint64_t host = c->planned[TIER_HOST], limit = r->host_limit;
    if (within(limit, host) || !may_keep || !within(r->device_limit, c->planned[TIER_DEVICE])) return OK;
    if (!within(limit, t->host_lasting)) return OK; /* persistent values alone exceed the host */
    int64_t L = r->source.n_layers;
    plan_candidate all = *c;
    all.choice.keep_layers = L;
    TRY(evaluate(t, &all));
    uint64_t least = all.planned[TIER_HOST];
    if (!within(limit, least) || least >= host) return OK;
    double share = (double)(host - limit) / (double)(host - least);
    for (int64_t k = MAX((int64_t)(share * (double)L), (int64_t)1); k <= L; k++) {
        c->choice.keep_layers = k;
        TRY(evaluate(t, c));
        if (within(limit, c->planned[TIER_HOST])) break;
    }
    return OK;
}

static status try_level(trial *t, const level *l) {
    const plan_request *r = t->r;
    plan_candidate last = {0};
    bool any = false;
    for (size_t i = 0; i < ARRAY_LENGTH(offload_order); i++) {
        plan_candidate c = *t->like;
        step_choice_copy_memory(&c.choice, &r->choice);
        c.choice.recompute = l->recompute;
        c.choice.chunk_tokens = l->chunk_tokens;
        c.choice.offload = plan_offload_tiers(r, &offload_order[i]);
        if (i == 0 && !r->may_nvme) continue; /* nvme only where the user named a directory */
        if (any && step_choice_equal(&c.choice, &last.choice, CHOICE_KEEP_LAYERS)) continue;
        TRY(fill_host(t, &c));
        t->list = array_grow(t->list, &t->capacity, t->n + 1, sizeof *t->list);
        t->list[t->n++] = last = c;
        t->fits |= c.fits;
        if (c.fits && t->is_one_enough) break;
        if (!any && !within(r->device_limit, c.planned[TIER_DEVICE])) break; /* the others need more device memory */
        any = true;
    }
    return OK;
}

status plan_list_smaller(const plan_request *r, const plan_candidate *like, size_t *n_tried, plan_best *best,
                         plan_candidate **list, size_t *n) {
    level levels[LEVELS_MOST];
    trial t = {.r = r, .like = like, .best = best, .n_tried = *n_tried};
    size_t n_levels = list_levels(r, like, levels);
    for (size_t i = 0; i < n_levels && !t.fits; i++) {
        status rc = try_level(&t, &levels[i]);
        if (rc == OK) continue;
        free(t.list);
        return rc;
    }
    *n_tried = t.n_tried;
    *list = t.list;
    *n = t.n;
    return OK;
}

status plan_can_fit(const plan_request *r, bool *fits) {
    level levels[LEVELS_MOST];
    plan_candidate like = plan_as_asked(r);
    trial t = {.r = r, .like = &like, .is_one_enough = true};
    /* The first level compiles fastest; then the last one, which fits most often if any does. */
    size_t n_levels = list_levels(r, &like, levels);
    status rc = try_level(&t, &levels[0]);
    for (size_t i = n_levels; i-- > 1 && !t.fits && rc == OK;) rc = try_level(&t, &levels[i]);
    *fits = t.fits;
    free(t.list);
    return rc;
}

status plan_fits_when_moved(const plan_request *asked, bool *fits) {
    level levels[LEVELS_MOST];
    const plan_request r = plan_request_complete(asked);
    plan_candidate like = plan_as_asked(&r), quick;
    trial t = {.r = &r, .like = &like, .is_one_enough = true};
    *fits = false;
    if (!plan_is_open(&r) || r.open.precision || plan_ranks_open(&r) || !plan_is_one_device(&r)) return OK;
    list_levels(&r, &like, levels);
    status rc = try_level(&t, &levels[0]);
    if (rc == OK && t.fits) {
        plan_request q = plan_request_of(&r, &t.list[t.n - 1].choice);
        rc = plan_evaluate(&q, &quick);
        *fits = rc == OK && quick.fits;
    }
    free(t.list);
    return rc;
}
