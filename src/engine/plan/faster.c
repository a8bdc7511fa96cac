/* faster.c - one change of the settings with which a token is predicted to take less time.
 *
 * Compared are the next smaller precision (fp32, bf16, bf16_sr), larger micro-batches of the same step, and longer rows
 * where rows are short and hold as many records as go in; of about the same gains that of longer rows is named. They
 * change the numbers of a run, so the plan never takes them by itself where they were given; it says what they would
 * bring. A change is tried with the strategies that the plan has compared already: nothing moved first, then those that
 * were predicted to be fast and did not fit before. These are few (TRIES), each as quick as a candidate of the search,
 * and the best is compiled whole. Where strategies were open, the search with that change may find a still better one:
 * the time is an upper bound. */
#include "plan/search.h"

#include <math.h>

enum { TRIES = 16, BATCHES = 2, MOST_OPS = 40000 }; /* a compiled op takes some 2 us */
#define WORTH_IT 0.95                               /* predictions are not better than that */

static bool moves_nothing(const step_choice *c) {
    return !offload_any(&c->offload) && c->recompute.kind == RECOMPUTE_NONE && !c->chunk_tokens;
}

/* May it fit in a smaller precision? States may vanish (a master copy), everything else is halved at most. */
static bool may_fit(const plan *p, const plan_candidate *c) {
    if (c->fits) return true;
    uint64_t least = 0;
    for (role i = 0; i < ROLE_COUNT; i++)
        if (i != ROLE_STATE) least += c->by_role[i] / 2;
    return !p->request.device_limit || least <= p->request.device_limit;
}

/* The candidates of p in the order in which they are tried: the i-th, or NULL. Nothing moved is the first, as in the search; one
 * that takes more time than the plan cannot win. */
static const step_choice *strategy_at(const plan *p, size_t i) {
    size_t best = 0;
    double after = -1;
    for (size_t k = 0; i == 0 && k < p->n_candidates; k++)
        if (moves_nothing(&p->candidates[k].choice)) return &p->candidates[k].choice;
    if (i == 0) return &p->request.choice;
    for (size_t round = 1; round <= i; round++) {
        double found = INFINITY;
        for (size_t k = 0; k < p->n_candidates; k++) {
            const plan_candidate *c = &p->candidates[k];
            bool is_next = isfinite(c->step_s) && c->step_s > after && c->step_s < found;
            if (!is_next || moves_nothing(&c->choice) || !may_fit(p, c)) continue;
            found = c->step_s;
            best = k;
        }
        if (!(found <= p->cost.step_s)) return NULL;
        after = found;
    }
    return &p->candidates[best].choice;
}

/* What a change changes: the precision, the split of a step's rows, or their length. */
typedef struct change {
    precision precision;
    int64_t micro_batch, accumulation, seq_len;
} change;

static plan_request request_with(const plan *p, const step_choice *strategy, const change *c) {
    step_choice choice = *strategy;
    choice.precision = c->precision;
    choice.micro_batch = c->micro_batch;
    choice.accumulation = c->accumulation;
    plan_request r = plan_request_of(&p->request, &choice);
    r.seq_len = c->seq_len;
    return r;
}

/* The best strategy for a change; false: none fits. Nothing moved is taken where that fits, as the search does. */
static bool find_strategy(const plan *p, const change *c, plan_request *out) {
    double least = INFINITY;
    for (size_t i = 0; i < TRIES; i++) {
        const step_choice *strategy = strategy_at(p, i);
        if (!strategy) break;
        plan_candidate numbers;
        plan_request r = request_with(p, strategy, c);
        if (plan_evaluate(&r, &numbers) != OK) { /* this strategy does not know that precision, or the like */
            error_clear();
            continue;
        }
        if (!numbers.fits || !(numbers.step_s < least)) continue;
        least = numbers.step_s;
        *out = r;
        if (i == 0) break;
    }
    return isfinite(least);
}

static void try_change(plan *p, const change *c) {
    plan_request r;
    plan built;
    if (!find_strategy(p, c, &r)) return;
    if (plan_build(&built, &r) != OK) {
        error_clear();
        return;
    }
    double tokens = (double)plan_tokens_per_step(&built),
           least = WORTH_IT * p->cost.step_s / (double)plan_tokens_per_step(p);
    double before = p->faster.step_s > 0 ? p->faster.step_s / (double)p->faster.tokens : least;
    if (c->seq_len != p->request.seq_len)
        before = fmin(before / WORTH_IT, least); /* preferred: it loses no precision */
    if (plan_fits(&built) && built.cost.step_s / tokens < before) {
        strbuf settings;
        strbuf_init(&settings);
        plan_request asked = r; /* only what the change changes is said */
        asked.choice.precision = p->request.choice.precision;
        asked.choice.micro_batch = p->request.choice.micro_batch;
        asked.choice.accumulation = p->request.choice.accumulation;
        asked.seq_len = p->request.seq_len;
        if (p->request.open.micro_batch) { /* whoever takes the change leaves it open too */
            asked.choice.micro_batch = r.choice.micro_batch;
            asked.choice.accumulation = r.choice.accumulation;
        }
        plan_list_changes(&asked, &r, &settings);
        p->faster = (plan_faster){
            .step_s = built.cost.step_s, .tokens = plan_tokens_per_step(&built), .is_bound = p->n_candidates > 1};
        snprintf(p->faster.settings, sizeof p->faster.settings, "%s", settings.text);
        strbuf_fini(&settings);
    }
    plan_close(&built);
}

/* As many rows as were given of the length that is worth trying, in micro-batches from the largest to the smallest;
 * where their number is given, in that. */
static void try_longer_rows(plan *p) {
    enum { FEWER = 4 }; /* times fewer in the next try */
    const plan_request *r = &p->request;
    int64_t rows = r->choice.micro_batch * r->choice.accumulation;
    change c = {r->choice.precision, r->choice.micro_batch, r->choice.accumulation, r->longer_rows};
    if (!r->open.micro_batch) {
        if (c.micro_batch * c.seq_len <= INT32_MAX) try_change(p, &c);
        return;
    }
    for (int64_t n = rows; n >= 1; n /= FEWER) {
        while (rows % n) n--;
        c.micro_batch = n;
        c.accumulation = rows / n;
        if (n * c.seq_len <= INT32_MAX) try_change(p, &c);
    }
}

void plan_find_faster(plan *p) {
    const plan_request *r = &p->request;
    const step_choice *now = &r->choice;
    change c = {now->precision, now->micro_batch, now->accumulation, r->seq_len};
    p->faster = (plan_faster){0};
    bool is_training = !plan_generates(r) && !r->no_training && !r->rollout;
    if (!is_training || mesh_world(&r->mesh) > 1 || !r->hardware || p->cost.missing || !plan_fits(p)) return;
    if (p->program.n_ops > MOST_OPS) return;
    if (!r->open.precision && (now->precision == PRECISION_FP32 || now->precision == PRECISION_BF16)) {
        c.precision = now->precision == PRECISION_FP32 ? PRECISION_BF16 : PRECISION_BF16_SR;
        try_change(p, &c);
    }
    c.precision = now->precision;
    for (int n = 0; n < BATCHES && !r->open.micro_batch && c.accumulation > 1; n++) {
        int64_t rows = now->micro_batch * now->accumulation;
        do c.accumulation--;
        while (rows % c.accumulation);
        c.micro_batch = rows / c.accumulation;
        if (c.micro_batch * r->seq_len > INT32_MAX) break;
        try_change(p, &c);
    }
    if (r->longer_rows > r->seq_len) try_longer_rows(p);
}
