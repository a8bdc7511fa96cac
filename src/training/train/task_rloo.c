/* task_rloo.c - reinforcement learning with generation inside the training program: rloo, grpo and others (advantage.h).
 *
 * Before a step the generator that is attached to this very program completes the next prompts, with the parameters as they are;
 * rewards become advantages (rollout.h), and the step trains on the completions (POLICY). With rl.updates several steps share a
 * rollout: the first takes its own log-probabilities as those of the policy that wrote it and keeps them for the others.
 *
 * A checkpoint holds a position in the prompts and no rollout, so it is made after the last update of one (may_save). */
#include "train/reference.h"
#include "train/rollout_metrics.h"
#include "train/samples.h"

#include <math.h>
#include <stdlib.h>

enum { PAGE_SIZE = 32, PREFILL = 256, PREFILL_DISCRETE = 2048 };

typedef struct rloo {
    task_host host;
    rollout rollout;
    uint64_t position; /* in the prompts, before the rollout */
    int64_t update;    /* of this rollout, from 0 */
    int64_t micro;     /* next one of the step */
    uint64_t reference_hash;
    bool said[SIGNAL_MASKED + 1];
} rloo;

static const rl_options *options_of(const rloo *t) { return &t->host.request->train.rl; }
static bool is_first(const rloo *t) { return t->update == 0; }
static bool is_last(const rloo *t) { return t->update + 1 == options_of(t)->updates; }

/* ---- before the plan ------------------------------------------------------------------------------------------- */

static policy_options policy_of(const rl_options *o, int64_t seq_len) {
    const rl_loss *l = rl_loss_at((size_t)o->loss);
    double low = o->low > 0 ? o->low : l->low, high = o->high > 0 ? o->high : o->low > 0 ? o->low : l->high;
    return (policy_options){.on = true,
                            .is_old = o->updates > 1,
                            .level = l->level,
                            .mean = l->mean,
                            .low = (float)low,
                            .high = (float)high,
                            .beta = l->kl_in_reward ? 0 : (float)rollout_beta(o),
                            .cap = (float)o->importance,
                            .length = (float)rollout_max_completion(o, seq_len),
                            .temperature = (float)o->temperature};
}

/* Sections of generation: as many sequences as asked, each as long as a row, with the longest prompt that there can be. */
static void shape_generation(train_request *r) {
    plan_request *p = &r->plan;
    generation_shape *g = &p->generation; /* that of train.sample_every, where there are samples too */
    bool discrete = p->target.discrete;
    int n_generators = r->train.sample_every ? 2 : 1;
    g->beside_training = true;
    g->slots = MAX(g->slots, rollout_slots(&r->train.rl, discrete));
    g->context = MAX(g->context, MIN(p->seq_len, model_of(&p->source)->max_positions));
    g->page_size = MIN((int64_t)PAGE_SIZE, g->context);
    g->prompts = r->train.rl.prompts;
    g->group = r->train.rl.k;
    g->shared_tokens = MIN(r->data.longest_prompt, g->context) - 1; /* the last is computed for each, for its logits */
    g->pages = generation_pages_wanted(g);
    g->prefill_tokens = MIN(g->slots * g->context, (int64_t)(discrete ? PREFILL_DISCRETE : PREFILL));
    p->generator_bytes = (uint64_t)n_generators * generation_host_bytes(model_of(&p->source), g, p->target.n_threads);
}

static status check_shape(const train_request *r) {
    const rl_options *o = &r->train.rl;
    long long most = rollout_max_completion(o, r->plan.seq_len), length = r->plan.seq_len;
    if (most >= length)
        return ERR(ERR_INPUT,
                   "rl.max_completion: found %lld with data.seq_len %lld, expected less: a row holds a prompt and its "
                   "completion; raise data.seq_len or lower rl.max_completion",
                   most, length);
    if (r->train.steps % o->updates)
        return ERR(
            ERR_INPUT,
            "train.steps: found %lld, expected a multiple of rl.updates (%lld), so that the run ends with a whole "
            "rollout",
            (long long)r->train.steps, (long long)o->updates);
    TRY(samples_check(r));
    if (r->plan.choice.overlap_update == OVERLAP_TRUE)
        return ERR(ERR_INPUT,
                   "memory.overlap_update: found true with train.task rloo, expected auto or false: completions are "
                   "generated with the parameters after the update");
    return OK;
}

static status rloo_shape(train_request *r) {
    plan_request *p = &r->plan;
    const rl_options *o = &r->train.rl;
    const rl_loss *l = rl_loss_at((size_t)o->loss);
    TRY(check_shape(r));
    double beta = rollout_beta(o);
    p->policy = policy_of(o, p->seq_len);
    p->reference = beta == 0 ? REFERENCE_NONE : lora_base_is_beginning(&p->lora) ? REFERENCE_BASE : REFERENCE_COPY;
    p->with_eval = r->train.eval_rows > 0 || (l->kl_in_reward && beta > 0);
    p->choice.overlap_update = OVERLAP_FALSE;
    p->open.sequence = p->left_open.sequence = false; /* a rank generates with whole layers */
    r->train.problems = 0;
    r->data.kind = DATA_PROMPTS;
    r->data.longest_prompt = p->seq_len - rollout_max_completion(o, p->seq_len);
    r->data.skip_long_prompts = o->skip_long;
    p->host_row_bytes = rollout_row_bytes(p->seq_len);
    p->host_bytes = rollout_host_bytes(o, p->seq_len, 1);
    shape_generation(r);
    return OK;
}

/* ---- open, close, state ---------------------------------------------------------------------------------------- */

static status rloo_open(void **out, const task_host *h) {
    rloo *t = mem_alloc(sizeof *t);
    *t = (rloo){.host = *h};
    status rc = rollout_open(&t->rollout, &t->host);
    if (rc == OK) {
        *out = t;
        return OK;
    }
    rollout_close(&t->rollout);
    free(t);
    return rc;
}

static void rloo_close(void *self) {
    rloo *t = self;
    rollout_close(&t->rollout);
    free(t);
}

/* Settings that differ from their defaults. Defaults are left out, so that checkpoints of an older ralo, which has no words for these
 * settings, can be resumed with them. */
static const char *unusual(const rloo *t, arena *memory) {
    const rl_options *o = options_of(t);
    const char *out = "";
    if (o->normalize) out = ", normalized advantages";
    if (o->clip_low > -RL_CLIP_NONE || o->clip_high < RL_CLIP_NONE)
        out = arena_format(memory, "%s, rewards clipped to %g and %g", out, o->clip_low, o->clip_high);
    if (rollout_masks_cut(&t->rollout) != t->rollout.loss->masks_truncated)
        out = arena_format(memory, "%s, truncated completions %s", out,
                           rollout_masks_cut(&t->rollout) ? "masked" : "not masked");
    if (o->importance > 0) out = arena_format(memory, "%s, importance at most %g", out, o->importance);
    if (rollout_redraws(&t->rollout) != t->rollout.loss->redraws)
        out = arena_format(memory, "%s, dynamic sampling of %lld", out, (long long)rollout_redraws(&t->rollout));
    return out;
}

static const char *rloo_identity(void *self, arena *memory) {
    const rloo *t = self;
    const train_request *r = t->host.request;
    const rl_options *o = options_of(t);
    const policy_options *p = &t->host.plan->request.policy;
    return arena_format(
        memory,
        "%s with %lld prompts x %lld, %lld updates, beta %g, clip %g and %g, temperature %g, top_p %g, top_k "
        "%lld, min_p %g, completions of %lld, rows of %lld%s, rewards %s; prompts %s as %s, %g for evaluation, "
        "%016llx",
        t->rollout.loss->name, (long long)o->prompts, (long long)o->k, (long long)o->updates, t->rollout.beta,
        (double)p->low, (double)p->high, o->temperature, o->top_p, (long long)o->top_k, o->min_p,
        (long long)t->rollout.sampling.max_new, (long long)r->data.seq_len, unusual(t, memory), r->reward.list,
        r->data.source, r->data.tokenizer ? r->data.tokenizer : "byte", r->data.eval_fraction,
        (unsigned long long)dataset_fingerprint(t->host.data));
}

static json_t *rloo_save(void *self) { return reference_save(((rloo *)self)->reference_hash); }

static status rloo_load(void *self, const json_t *state, const char *where) {
    return reference_check(&((rloo *)self)->host, state, where, "model.path, its init or rl.beta");
}

static bool rloo_may_save(const void *self) { return is_first(self); } /* the next step draws a new rollout */

static status rloo_begin(void *self, uint64_t position) {
    rloo *t = self;
    t->position = position;
    t->reference_hash = reference_hash(&t->host);
    return rollout_attach(&t->rollout, *t->host.description);
}

static uint64_t rloo_host_bytes(const void *self) {
    const rloo *t = self;
    const plan_request *q = &t->host.plan->request;
    return rollout_host_bytes(options_of(t), q->seq_len, 1) +
           (uint64_t)q->choice.micro_batch * rollout_row_bytes(q->seq_len) +
           generation_host_bytes(model_of(&q->source), &q->generation, exec_threads(t->host.exec));
}

/* ---- steps ----------------------------------------------------------------------------------------------------- */

/* The completions of the first prompts, for whoever watches. */
static void show_completions(const rloo *t, int64_t step) {
    const rollout *r = &t->rollout;
    const train_observer *o = t->host.observer;
    const char *names[ROLLOUT_SCORES];
    size_t n_rewards = rewards_count(r->rewards), n = MIN((size_t)options_of(t)->log_prompts, r->per_rank) * r->k;
    if (!o->on_completion) return;
    for (size_t f = 0; f < n_rewards; f++) names[f] = rewards_name(r->rewards, f);
    for (size_t i = 0; i < n; i++) {
        const rollout_item *x = &r->items[i];
        const rollout_numbers *y = &rollout_own(r)[i];
        o->on_completion(o->context, &(train_completion){.step = step,
                                                         .prompt = prompts_get(r->prompts, SPLIT_TRAIN, x->prompt).text,
                                                         .completion = {x->c.text, x->c.text_bytes},
                                                         .stop = x->c.stop,
                                                         .n_rewards = n_rewards,
                                                         .reward_names = names,
                                                         .rewards = y->scores,
                                                         .reward = y->reward,
                                                         .advantage = x->advantages[0]});
    }
}

/* Equal and masked rewards are said once each: a hard task may begin so, and frac_reward_zero_std and clipped_ratio have the share of every
 * step. */
static void warn_if_nothing_is_taught(rloo *t, int64_t step) {
    rollout_signal signal = rollout_find_signal(&t->rollout);
    if (signal == SIGNAL_SOME || t->said[signal]) return;
    t->said[signal] = signal != SIGNAL_NO_REWARD;
    const char *taught =
                   t->rollout.beta > 0 ? "teaches nothing but to stay near the reference (rl.beta)" : "teaches nothing",
               *see = options_of(t)->log_prompts > 0 ? "see completions.jsonl" : "rl.log_prompts=1 would show some";
    const char *why = "all completions of each prompt have the same reward";
    if (signal == SIGNAL_NO_REWARD) why = "no completion has a reward";
    if (signal == SIGNAL_MASKED)
        why = "all completions that have another reward than the rest reached rl.max_completion and are not trained on "
              "(rl.mask_truncated)";
    const char *then = "";
    if (signal == SIGNAL_FLAT)
        then = " The task may be too hard or too easy for the model, or the reward finds no answer.";
    if (signal == SIGNAL_MASKED) then = " Raise rl.max_completion.";
    train_say(t->host.observer, "step %lld: %s, so the step %s.%s (%s)", (long long)step, why, taught, then, see);
}

static status rloo_before(void *self, int64_t step) {
    rloo *t = self;
    t->micro = 0;
    if (!is_first(t)) return OK;
    TRY(rollout_draw(&t->rollout, t->position, step));
    TRY(rollout_pack(&t->rollout));
    TRY(rollout_compare(&t->rollout));
    TRY(rollout_weigh(&t->rollout));
    warn_if_nothing_is_taught(t, step);
    show_completions(t, step);
    return OK;
}

static int64_t rloo_micros(const void *self) { return ((const rloo *)self)->rollout.n_micros; }

static status rloo_next(void *self, const micro_inputs *to) {
    rloo *t = self;
    return rollout_write(&t->rollout, t->micro++, is_first(t), to);
}

static status rloo_again(void *self, uint64_t position, int64_t micro, const micro_inputs *to) {
    (void)position; /* the rollout is still there */
    rloo *t = self;
    return rollout_write(&t->rollout, micro, is_first(t), to);
}

static status rloo_ran(void *self, int64_t first, int64_t n) {
    rloo *t = self;
    for (int64_t i = first; i < first + n && is_first(t); i++) rollout_keep(&t->rollout, i);
    return OK;
}

static uint64_t rloo_position(const void *self) {
    const rloo *t = self;
    return is_last(t) ? t->rollout.next_position : t->position;
}

static status rloo_after(void *self, train_step_report *report) {
    rloo *t = self;
    double sums[POLICY_SUM_COUNT];
    rollout_checks checks = rollout_check(&t->rollout);
    exec_read(t->host.exec, t->host.plan->step.loss_sums, 0, sums, sizeof sums);
    TRY(exec_check(t->host.exec));
    if (is_first(t)) TRY(rollout_checks_join(&checks, t->host.request->comm));
    rollout_report(&t->rollout, sums, is_first(t) ? &checks : NULL, report);
    if (is_last(t)) t->position = t->rollout.next_position;
    t->update = is_last(t) ? 0 : t->update + 1;
    return OK;
}

/* ---- evaluation ------------------------------------------------------------------------------------------------ */

typedef struct held_out {
    size_t n, k; /* prompts; completions of each */
    completion **lists;
    size_t n_lists;
    const completion **completions; /* (n k), in the lists */
    uint64_t *positions;
    double *scores, *totals, n_tokens;
} held_out;

/* As many prompts at once as there are slots, so that a run can be stopped between them. */
static status complete_held_out(rloo *t, held_out *h) {
    rollout *r = &t->rollout;
    sampling_options s = r->sampling;
    size_t most = (size_t)t->host.plan->request.generation.slots;
    prompt *list = mem_alloc(most * sizeof *list);
    status rc = OK;
    s.n_completions = (int64_t)h->k;
    s.seed = rng_key(t->host.request->train.seed, "rollout.eval");
    if (h->k == 1) s.temperature = 0;
    for (size_t first = 0; first < h->n && rc == OK; first += most) {
        size_t n = MIN(most, h->n - first);
        for (size_t i = 0; i < n; i++) {
            prompt_record p = prompts_get(r->prompts, SPLIT_EVAL, first + i);
            list[i] = (prompt){p.tokens, p.n_tokens};
        }
        s.first_prompt = first;
        rc = t->host.pause(t->host.pause_context, "prompt", (int64_t)first, (int64_t)h->n);
        if (rc == OK) rc = generator_run(r->g, list, n, &s, NULL, &h->lists[h->n_lists], NULL);
        if (rc != OK) break;
        for (size_t i = 0; i < n * h->k; i++) {
            h->completions[first * h->k + i] = &h->lists[h->n_lists][i];
            h->positions[first * h->k + i] = first + i / h->k;
            h->n_tokens += (double)h->lists[h->n_lists][i].n_tokens;
        }
        h->n_lists++;
    }
    free(list);
    return rc;
}

/* The first rank asks for rewards, for all. */
static status score_held_out(rloo *t, held_out *h, int64_t step) {
    comm *ranks = t->host.request->comm;
    size_t n = h->n * h->k;
    if (!ranks || comm_rank(ranks) == 0) {
        rollout_scored s = {h->positions, SPLIT_EVAL, h->completions, n};
        TRY(rollout_score(&t->rollout, &s, h->scores, h->totals));
        rollout_say_eval_failures(&t->rollout, step);
    }
    return ranks ? comm_broadcast(ranks, h->totals, n * sizeof *h->totals, 0) : OK;
}

static void drop_held_out(held_out *h, size_t most) {
    for (size_t i = 0; i < h->n_lists; i++) completions_free(h->lists[i], MIN(most, h->n - i * most) * h->k);
    free(h->lists);
    free((void *)h->completions);
    free(h->positions);
    free(h->scores);
    free(h->totals);
}

static status rloo_evaluate(void *self, train_eval_report *out) {
    rloo *t = self;
    prompts_report found;
    prompts_report_get(t->rollout.prompts, &found);
    held_out h = {.n = (size_t)MIN((uint64_t)t->host.request->train.eval_rows, found.n[SPLIT_EVAL]),
                  .k = (size_t)options_of(t)->eval_k};
    if (h.n == 0) return OK;
    size_t n = h.n * h.k;
    h.lists = mem_alloc(h.n * sizeof(completion *));
    h.completions = mem_alloc(n * sizeof(completion *));
    h.positions = mem_alloc(n * sizeof *h.positions);
    h.scores = mem_alloc(n * rewards_count(t->rollout.rewards) * sizeof *h.scores);
    h.totals = mem_alloc(n * sizeof *h.totals);
    status rc = complete_held_out(t, &h);
    if (rc == OK) rc = score_held_out(t, &h, out->step);
    if (rc == OK) rollout_report_eval(h.totals, h.n, h.k, options_of(t)->pass, h.n_tokens / (double)n, &out->metrics);
    drop_held_out(&h, (size_t)t->host.plan->request.generation.slots);
    return rc;
}

const task task_RLOO = {
    .name = task_name_RLOO,
    .metrics = rollout_metric_table,
    .n_metrics = ROLLOUT_METRICS,
    .shape = rloo_shape,
    .open = rloo_open,
    .close = rloo_close,
    .identity = rloo_identity,
    .save = rloo_save,
    .load = rloo_load,
    .may_save = rloo_may_save,
    .begin = rloo_begin,
    .step = {.before = rloo_before,
             .micros = rloo_micros,
             .next = rloo_next,
             .again = rloo_again,
             .ran = rloo_ran,
             .position = rloo_position},
    .after = rloo_after,
    .evaluate = rloo_evaluate,
    .host_bytes = rloo_host_bytes,
};
