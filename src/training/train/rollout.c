/* rollout.c - draw prompts, complete them with the model as it is, and reward what comes.
 *
 * A rollout is a function of the parameters, the run's seed, the step and the position in the prompts: a resumed run draws the
 * same. Numbers of a prompt in a rollout count over all ranks, so that the same completions come on any number of them.
 *
 * Dynamic sampling: prompts whose completions all have the same reward teach nothing, and are replaced. Every round takes as many
 * prompts from the walk as a rollout has, used or not, so that the position after it does not depend on who needed which. */
#include "train/rollout.h"

#include <math.h>
#include <stdlib.h>

enum { SLOTS = 16, SLOTS_DISCRETE = 64 };

int64_t rollout_max_completion(const rl_options *o, int64_t seq_len) {
    enum { USUAL = 512 };
    return o->max_completion ? o->max_completion : MAX(MIN((int64_t)USUAL, seq_len / 2), (int64_t)1);
}

double rollout_beta(const rl_options *o) {
    if (o->beta >= 0) return o->beta;
    return rl_loss_at((size_t)o->loss)->kl_in_reward ? 0.05 : 0;
}

static size_t completions_of(const rl_options *o, int n_ranks) { return (size_t)(o->prompts / n_ranks * o->k); }

uint64_t rollout_host_bytes(const rl_options *o, int64_t seq_len, int n_ranks) {
    uint64_t n = completions_of(o, n_ranks), tokens = n * (uint64_t)rollout_max_completion(o, seq_len);
    return tokens * (sizeof(int32_t) + 2 * sizeof(float) + 2 * sizeof(double)) + n * sizeof(rollout_item) +
           (uint64_t)n_ranks * n * sizeof(rollout_numbers);
}

uint64_t rollout_row_bytes(int64_t seq_len) { return (uint64_t)seq_len * (4 * sizeof(int32_t) + 5 * sizeof(float)); }

int64_t rollout_slots(const rl_options *o, bool discrete) {
    if (o->sequences) return o->sequences;
    if (o->baseline) return o->k;
    return MIN(o->prompts * o->k, (int64_t)(discrete ? SLOTS_DISCRETE : SLOTS));
}

/* ---- open, close ----------------------------------------------------------------------------------------------- */

static void make_buffers(rollout *r) {
    const plan_request *q = &r->host->plan->request;
    size_t n = (size_t)(q->choice.micro_batch * q->seq_len);
    int32_t **ints[] = {&r->tokens, &r->targets, &r->doc_start, &r->segments};
    float **floats[] = {&r->advantages, &r->old, &r->rollout, &r->losses, &r->reference};
    for (size_t i = 0; i < ARRAY_LENGTH(ints); i++) *ints[i] = mem_alloc(n * sizeof(int32_t));
    for (size_t i = 0; i < ARRAY_LENGTH(floats); i++) *floats[i] = mem_alloc(n * sizeof(float));
    r->items = mem_alloc(r->n * sizeof *r->items);
    r->all = mem_alloc((size_t)r->n_ranks * r->n * sizeof *r->all);
    r->filled = mem_alloc(r->n * sizeof *r->filled);
    r->n_segments = mem_alloc(r->n * sizeof *r->n_segments);
    r->needed = mem_alloc((size_t)r->n_ranks * r->per_rank);
}

static status open_rewards(rollout *r) {
    TRY(rewards_open(&r->rewards, &r->host->request->reward));
    if (rewards_count(r->rewards) <= ROLLOUT_SCORES) return OK;
    return ERR(ERR_INPUT, "reward.list: found %zu rewards, expected at most %d", rewards_count(r->rewards),
               ROLLOUT_SCORES);
}

status rollout_open(rollout *r, const task_host *h) {
    const plan_request *q = &h->plan->request;
    const rl_options *o = &h->request->train.rl;
    *r = (rollout){.host = h,
                   .o = o,
                   .loss = rl_loss_at((size_t)o->loss),
                   .beta = rollout_beta(o),
                   .prompts = dataset_prompts(h->data),
                   .n_ranks = mesh_size(&q->mesh, AXIS_DATA),
                   .rank = q->mesh.index[AXIS_DATA],
                   .all_generate = q->choice.shard.zero == 3,
                   .k = (size_t)o->k};
    r->per_rank = (size_t)(o->prompts / r->n_ranks);
    r->n = r->per_rank * r->k;
    r->end = prompts_end(r->prompts);
    r->sampling = (sampling_options){.max_new = rollout_max_completion(o, q->seq_len),
                                     .temperature = o->temperature,
                                     .top_k = o->top_k,
                                     .top_p = o->top_p,
                                     .min_p = o->min_p,
                                     .repetition_penalty = 1,
                                     .n_completions = o->k};
    if (r->end >= 0) r->sampling.ends = &r->end, r->sampling.n_ends = 1;
    prompts_report found;
    prompts_report_get(r->prompts, &found);
    if (found.n[SPLIT_TRAIN] == 0)
        return ERR(ERR_INPUT,
                   "data.source: found no prompt to train on, expected at least one; lower data.eval_fraction");
    make_buffers(r);
    return open_rewards(r);
}

status rollout_attach(rollout *r, const char *description) {
    const task_host *h = r->host;
    const char *tokenizer = h->request->data.tokenizer;
    return generator_attach(&r->g, &(generator_host){.exec = h->exec,
                                                     .plan = h->plan,
                                                     .tokenizer = dataset_tokenizer(h->data),
                                                     .tokenizer_name = tokenizer ? tokenizer : "byte",
                                                     .description = description});
}

static void drop_item(rollout_item *i) {
    free(i->c.tokens);
    free(i->c.text);
    free(i->c.log_probabilities);
    free(i->old);
    free(i->advantages);
    free(i->kl);
    *i = (rollout_item){0};
}

void rollout_close(rollout *r) {
    for (size_t i = 0; r->items && i < r->n; i++) drop_item(&r->items[i]);
    generator_close(r->g);
    rewards_close(r->rewards);
    void *const list[] = {r->items,     r->all,      r->filled,     r->n_segments, r->needed,  r->tokens, r->targets,
                          r->doc_start, r->segments, r->advantages, r->old,        r->rollout, r->losses, r->reference};
    for (size_t i = 0; i < ARRAY_LENGTH(list); i++) free(list[i]);
}

/* ---- completions ----------------------------------------------------------------------------------------------- */

/* Prompt `slot` of all ranks' in a round. */
static uint64_t position_of(const rollout *r, uint64_t first, size_t slot, int64_t round) {
    return first + (uint64_t)round * (uint64_t)r->o->prompts + slot;
}

bool rollout_masks_cut(const rollout *r) {
    return r->o->mask_truncated < 0 ? r->loss->masks_truncated : r->o->mask_truncated;
}

int64_t rollout_redraws(const rollout *r) { return r->o->redraws < 0 ? r->loss->redraws : r->o->redraws; }

/* Takes a completion over from a list. */
static void take(rollout *r, size_t slot, size_t index, uint64_t position, completion *c) {
    rollout_item *i = &r->items[(slot - (size_t)r->rank * r->per_rank) * r->k + index];
    drop_item(i);
    i->prompt = position;
    i->c = *c;
    *c = (completion){0};
    size_t n = i->c.n_tokens;
    i->old = mem_alloc(n * sizeof *i->old);
    i->advantages = mem_alloc(n * sizeof *i->advantages);
    i->kl = mem_alloc(n * sizeof *i->kl);
    for (size_t t = 0; t < n; t++) i->old[t] = NAN;
    i->is_masked = rollout_masks_cut(r) && i->c.stop == STOP_LENGTH;
}

/* Completions of the prompts that are needed: this rank's, or with ZeRO 3 all. */
static status generate(rollout *r, uint64_t first, int64_t step, int64_t round) {
    size_t own = (size_t)r->rank * r->per_rank, all = (size_t)r->n_ranks * r->per_rank;
    size_t from = r->all_generate ? 0 : own, to = r->all_generate ? all : own + r->per_rank, n = 0, before = 0;
    prompt *list = mem_alloc((to - from) * sizeof *list);
    size_t *slots = mem_alloc((to - from) * sizeof *slots);
    for (size_t s = 0; s < from; s++) before += r->needed[s];
    for (size_t s = from; s < to; s++) {
        if (!r->needed[s]) continue;
        prompt_record p = prompts_get(r->prompts, SPLIT_TRAIN, position_of(r, first, s, round));
        slots[n] = s;
        list[n++] = (prompt){p.tokens, p.n_tokens};
    }
    uint64_t key = rng_key(r->host->request->train.seed, "rollout");
    r->sampling.seed = rng_u64(rng_u64(key, (uint64_t)step), (uint64_t)round);
    r->sampling.first_prompt = before;
    completion *c = NULL;
    generation_report report;
    status rc = n ? generator_run(r->g, list, n, &r->sampling, NULL, &c, &report) : OK;
    for (size_t i = 0; rc == OK && i < n * r->k; i++) {
        size_t slot = slots[i / r->k];
        if (slot >= own && slot < own + r->per_rank) take(r, slot, i % r->k, position_of(r, first, slot, round), &c[i]);
    }
    if (rc == OK && n) r->new_tokens += report.new_tokens;
    completions_free(c, n * r->k);
    free(list);
    free(slots);
    return rc;
}

/* ---- rewards --------------------------------------------------------------------------------------------------- */

status rollout_score(rollout *r, const rollout_scored *s, double *scores, double *totals) {
    size_t n_rewards = rewards_count(r->rewards);
    reward_item *items = mem_alloc(MAX(s->n, (size_t)1) * sizeof *items);
    for (size_t i = 0; i < s->n; i++) {
        prompt_record p = prompts_get(r->prompts, s->which, s->positions[i]);
        const completion *c = s->completions[i];
        items[i] = (reward_item){.prompt = p.text,
                                 .completion = {c->text, c->text_bytes},
                                 .n_tokens = (int64_t)c->n_tokens,
                                 .truncated = c->stop == STOP_LENGTH,
                                 .columns = p.columns};
    }
    status rc = rewards_score(r->rewards, items, s->n, scores, &r->report);
    for (size_t i = 0; rc == OK && i < s->n; i++) {
        double x = rewards_total(r->rewards, scores + i * n_rewards);
        totals[i] = isnan(x) ? x : fmin(fmax(x, r->o->clip_low), r->o->clip_high);
    }
    free(items);
    return rc;
}

static void say_failures(const rollout *r, const char *when, int64_t step, const rollout_failures *f) {
    char where[32] = "";
    if (f->n_failed == 0 && f->n_restarts == 0) return;
    if (r->n_ranks > 1) snprintf(where, sizeof where, ", rank %d", f->rank);
    train_say(r->host->observer, "%s %lld%s: %llu rewards failed, %llu restarts%s%s", when, (long long)step, where,
              (unsigned long long)f->n_failed, (unsigned long long)f->n_restarts, *f->first ? ": " : "", f->first);
}

static void add_failures(rollout_failures *to, const reward_report *p) {
    bool is_worse = to->n_failed == 0 && p->n_failed > 0; /* than a restart that lost nothing */
    to->n_failed += p->n_failed;
    to->n_restarts += p->n_restarts;
    if (!*to->first || is_worse)
        memcpy(to->first, *p->first_failure ? p->first_failure : p->first_restart, sizeof to->first);
}

/* What went wrong outside, on any rank: said once for every rollout, and counted over all ranks. */
static status join_failures(rollout *r, int64_t step) {
    comm *ranks = r->host->request->comm;
    rollout_failures *all = mem_alloc((size_t)r->n_ranks * sizeof *all), sum = {0};
    r->failures.rank = r->rank;
    all[0] = r->failures;
    status rc = ranks ? comm_all_gather_bytes(ranks, &r->failures, sizeof r->failures, all) : OK;
    for (int i = 0; rc == OK && i < r->n_ranks; i++) {
        say_failures(r, "step", step, &all[i]);
        sum.n_failed += all[i].n_failed;
        sum.n_restarts += all[i].n_restarts;
    }
    r->failures = sum;
    free(all);
    return rc;
}

void rollout_say_eval_failures(const rollout *r, int64_t step) {
    rollout_failures f = {.rank = r->rank};
    add_failures(&f, &r->report);
    say_failures(r, "evaluation after step", step, &f);
}

/* Rewards of this rank's completions of needed prompts, into its numbers. */
static status score_needed(rollout *r) {
    size_t own = (size_t)r->rank * r->per_rank, n = 0, n_rewards = rewards_count(r->rewards);
    const completion **list = mem_alloc(r->n * sizeof *list);
    uint64_t *positions = mem_alloc(r->n * sizeof *positions);
    size_t *index = mem_alloc(r->n * sizeof *index);
    double *scores = mem_alloc(r->n * n_rewards * sizeof *scores), *totals = mem_alloc(r->n * sizeof *totals);
    for (size_t i = 0; i < r->n; i++) {
        if (!r->needed[own + i / r->k]) continue;
        list[n] = &r->items[i].c;
        positions[n] = r->items[i].prompt;
        index[n++] = i;
    }
    status rc = rollout_score(r, &(rollout_scored){positions, SPLIT_TRAIN, list, n}, scores, totals);
    for (size_t i = 0; rc == OK && i < n; i++) {
        rollout_numbers *x = rollout_own(r) + index[i];
        *x = (rollout_numbers){.reward = totals[i],
                               .total = totals[i],
                               .length = (double)list[i]->n_tokens,
                               .is_cut = list[i]->stop == STOP_LENGTH};
        memcpy(x->scores, scores + i * n_rewards, n_rewards * sizeof *scores);
    }
    free((void *)list);
    free(positions);
    free(index);
    free(scores);
    free(totals);
    return rc;
}

/* Which prompts of all ranks are to be replaced: those whose completions have one reward. */
static status find_needed(rollout *r, bool *any) {
    size_t own = (size_t)r->rank * r->per_rank;
    double *group = mem_alloc(r->k * sizeof *group);
    for (size_t p = 0; p < r->per_rank; p++) {
        for (size_t i = 0; i < r->k; i++) group[i] = rollout_own(r)[p * r->k + i].reward;
        r->needed[own + p] = advantage_is_flat(group, r->k);
    }
    free(group);
    comm *ranks = r->host->request->comm;
    uint8_t *mine = mem_alloc(r->per_rank);
    memcpy(mine, r->needed + own, r->per_rank);
    status rc = ranks ? comm_all_gather_bytes(ranks, mine, r->per_rank, r->needed) : OK;
    free(mine);
    *any = false;
    for (size_t s = 0; s < (size_t)r->n_ranks * r->per_rank; s++) *any |= r->needed[s];
    return rc;
}

status rollout_draw(rollout *r, uint64_t position, int64_t step) {
    int64_t redraws = rollout_redraws(r), round = 0;
    bool any = true;
    memset(r->needed, 1, (size_t)r->n_ranks * r->per_rank);
    r->times = (rollout_times){0};
    r->failures = (rollout_failures){0};
    r->new_tokens = 0;
    for (; any && round <= redraws; round++) {
        double begin = clock_s();
        TRY(generate(r, position, step, round));
        double generated = clock_s();
        r->times.rollout_s += generated - begin;
        TRY(score_needed(r));
        r->times.reward_s += clock_s() - generated;
        add_failures(&r->failures, &r->report);
        any = redraws > 0;
        if (any) TRY(find_needed(r, &any));
    }
    r->next_position = position + (uint64_t)(round * r->o->prompts);
    return join_failures(r, step);
}
