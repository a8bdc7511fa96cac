/* rollout_rows.c - completions of a rollout as rows of the update, what a reference thinks of them, and their advantages.
 *
 * A completion is a document of its own behind its prompt, several to a row where they fit; targets are its tokens alone. Rows are
 * filled by the number of tokens, so that the memory of an update does not depend on how many completions a prompt has, and are
 * made for one micro-batch at a time. */
#include "train/batch.h"
#include "train/rollout.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

static int64_t length_of(const rollout *r) { return r->host->plan->request.seq_len; }
static int64_t rows_of(const rollout *r) { return r->host->plan->request.choice.micro_batch; }

/* ---- places ---------------------------------------------------------------------------------------------------- */

/* The last token of a completion is a target and no input. One that is masked is only counted, where completions are. */
static int64_t places_of(const rollout *r, const rollout_item *i) {
    if (i->is_masked) return r->loss->mean == POLICY_OF_TOKENS ? 0 : 1;
    return (int64_t)(prompts_get(r->prompts, SPLIT_TRAIN, i->prompt).n_tokens + i->c.n_tokens) - 1;
}

/* Into the first row with room. */
static void place(rollout *r, rollout_item *i) {
    int64_t n = places_of(r, i), row = 0;
    i->row = -1;
    if (n == 0) return;
    while (row < r->n_rows && r->filled[row] + n > length_of(r)) row++;
    if (row == r->n_rows) r->filled[row] = 0, r->n_segments[row] = 0, r->n_rows++;
    i->row = row;
    i->at = r->filled[row];
    i->segment = i->is_masked ? POLICY_COUNTED : r->n_segments[row]++;
    r->filled[row] += n;
}

/* rl.baseline_memory: completion i is row i, so that a micro-batch of k rows is a group. */
static void place_alone(rollout *r, rollout_item *i) {
    i->row = places_of(r, i) > 0 ? r->n_rows : -1;
    i->at = 0;
    i->segment = i->is_masked ? POLICY_COUNTED : 0;
    r->n_rows++;
}

status rollout_pack(rollout *r) {
    comm *ranks = r->host->request->comm;
    bool has_tokens = false;
    r->n_rows = 0;
    for (size_t i = 0; i < r->n; i++) {
        if (r->o->baseline) place_alone(r, &r->items[i]);
        else place(r, &r->items[i]);
        has_tokens |= r->items[i].row >= 0;
    }
    uint64_t n = (uint64_t)MAX(divide_up(r->n_rows, rows_of(r)), (int64_t)1);
    if (ranks) {
        TRY(comm_most(ranks, &n));
        TRY(comm_any(ranks, has_tokens, &has_tokens));
    }
    r->n_micros = (int64_t)n;
    r->is_empty = !has_tokens && r->rank == 0;
    return OK;
}

/* ---- rows ------------------------------------------------------------------------------------------------------ */

static void clear_rows(rollout *r) {
    int64_t T = length_of(r);
    for (int64_t i = 0; i < rows_of(r) * T; i++) {
        r->tokens[i] = 0;
        r->targets[i] = -1;
        r->doc_start[i] = (int32_t)(i % T); /* a document of its own */
        r->segments[i] = POLICY_NONE;
        r->advantages[i] = 0;
        r->old[i] = r->rollout[i] = NAN;
    }
}

/* Where the first token of a completion is predicted, in the micro-batch; -1: it has no place there, or no tokens. */
static int64_t first_target(const rollout *r, const rollout_item *i, int64_t micro) {
    int64_t b = i->row - micro * rows_of(r);
    if (i->row < 0 || i->is_masked || b < 0 || b >= rows_of(r)) return -1;
    return b * length_of(r) + i->at + (int64_t)prompts_get(r->prompts, SPLIT_TRAIN, i->prompt).n_tokens - 1;
}

static void fill_item(rollout *r, const rollout_item *i, int64_t micro, bool is_first) {
    int64_t b = i->row - micro * rows_of(r), at = b * length_of(r) + i->at, first = first_target(r, i, micro);
    if (i->row < 0 || b < 0 || b >= rows_of(r)) return;
    if (i->is_masked) {
        r->segments[at] = POLICY_COUNTED;
        return;
    }
    prompt_record p = prompts_get(r->prompts, SPLIT_TRAIN, i->prompt);
    for (int64_t t = at; t < first + (int64_t)i->c.n_tokens; t++) {
        r->tokens[t] = t <= first ? p.tokens[t - at] : i->c.tokens[t - first - 1];
        r->doc_start[t] = (int32_t)i->at;
        if (t < first) continue;
        int64_t k = t - first;
        r->targets[t] = i->c.tokens[k];
        r->segments[t] = i->segment;
        r->advantages[t] = (float)i->advantages[k];
        r->rollout[t] = -i->c.log_probabilities[k];
        if (!is_first) r->old[t] = i->old[k];
    }
}

static void fill_rows(rollout *r, int64_t micro, bool is_first) {
    clear_rows(r);
    for (size_t i = 0; i < r->n; i++) fill_item(r, &r->items[i], micro, is_first);
    if (r->is_empty && micro == 0) r->segments[0] = POLICY_COUNTED;
}

static status write_tokens(rollout *r, const micro_inputs *to, int64_t micro) {
    return batch_write(r->host->exec, r->host->plan, to,
                       &(batch_rows){r->tokens, r->targets, r->doc_start, .first_row = (uint64_t)(micro * rows_of(r))});
}

status rollout_write(rollout *r, int64_t micro, bool is_first, const micro_inputs *to) {
    exec *e = r->host->exec;
    size_t n = (size_t)(rows_of(r) * length_of(r)) * sizeof(float);
    fill_rows(r, micro, is_first);
    TRY(write_tokens(r, to, micro));
    exec_write(e, to->segments, 0, r->segments, n);
    exec_write(e, to->advantages, 0, r->advantages, n);
    if (to->old) exec_write(e, to->old, 0, r->old, n);
    if (to->rollout) exec_write(e, to->rollout, 0, r->rollout, n);
    return OK;
}

void rollout_keep(rollout *r, int64_t micro) {
    exec_read(r->host->exec, r->host->plan->net.losses, 0, r->losses,
              (size_t)(rows_of(r) * length_of(r)) * sizeof *r->losses);
    for (size_t i = 0; i < r->n; i++) {
        rollout_item *x = &r->items[i];
        int64_t first = first_target(r, x, micro);
        for (size_t k = 0; first >= 0 && k < x->c.n_tokens; k++) x->old[k] = r->losses[first + (int64_t)k];
    }
}

/* ---- the reference --------------------------------------------------------------------------------------------- */

/* The KL of a completion by its own tokens: logp - ref, summed (k1). */
status rollout_compare(rollout *r) {
    const net *m = &r->host->plan->net;
    if (!r->loss->kl_in_reward || r->beta == 0) return OK;
    for (size_t i = 0; i < r->n; i++)
        for (size_t k = 0; k < r->items[i].c.n_tokens; k++) r->items[i].kl[k] = 0;
    for (int64_t micro = 0; micro < r->n_micros; micro++) {
        fill_rows(r, micro, true);
        TRY(write_tokens(r, &r->host->plan->step.inputs[0], micro));
        TRY(exec_run(r->host->exec, SECTION_EVAL));
        TRY(exec_check(r->host->exec));
        batch_read(r->host->exec, r->host->plan, m->eval_losses, r->losses);
        batch_read(r->host->exec, r->host->plan, m->eval_reference, r->reference);
        for (size_t i = 0; i < r->n; i++) {
            rollout_item *x = &r->items[i];
            int64_t first = first_target(r, x, micro);
            for (size_t k = 0; first >= 0 && k < x->c.n_tokens; k++) {
                int64_t at = first + (int64_t)k;
                x->kl[k] = (double)r->reference[at] - (double)r->losses[at];
            }
        }
    }
    for (size_t i = 0; i < r->n; i++) {
        rollout_numbers *x = &rollout_own(r)[i];
        x->kl = 0;
        for (size_t k = 0; k < r->items[i].c.n_tokens; k++) x->kl += r->items[i].kl[k];
        x->total = x->reward - r->beta * x->kl;
    }
    return OK;
}

/* ---- advantages ------------------------------------------------------------------------------------------------ */

/* Numbers of all ranks, in their order. */
static status gather(rollout *r) {
    comm *ranks = r->host->request->comm;
    if (!ranks) return OK;
    rollout_numbers *mine = mem_alloc(r->n * sizeof *mine);
    memcpy(mine, rollout_own(r), r->n * sizeof *mine);
    status rc = comm_all_gather_bytes(ranks, mine, r->n * sizeof *mine, r->all);
    free(mine);
    return rc;
}

static bool is_counted(const rollout *r, size_t i) {
    return !r->items[i].is_masked && !isnan(rollout_own(r)[i].reward);
}

/* One number for every token: what is still to come, over all tokens of the step. */
static status weigh_returns(rollout *r, const double *base, const double *all) {
    comm *ranks = r->host->request->comm;
    moments m = {0}, *parts = mem_alloc((size_t)r->n_ranks * sizeof *parts);
    size_t n_all = (size_t)r->n_ranks * r->n;
    for (size_t i = n_all; i-- > 0;)
        if (!isnan(r->all[i].reward)) m.from = all[i]; /* the first, the same on all ranks */
    for (size_t i = 0; i < r->n; i++) {
        rollout_item *x = &r->items[i];
        if (!is_counted(r, i)) continue;
        advantage_returns(base[i], x->kl, x->c.n_tokens, r->beta, x->advantages);
        moments_add(&m, x->advantages, x->c.n_tokens);
    }
    status rc = OK;
    if (ranks) rc = comm_all_gather_bytes(ranks, &m, sizeof m, parts);
    else parts[0] = m;
    m = (moments){.from = m.from};
    for (int i = 0; i < r->n_ranks && rc == OK; i++) moments_join(&m, &parts[i]);
    for (size_t i = 0; i < r->n && rc == OK; i++)
        if (is_counted(r, i)) moments_apply(&m, r->items[i].advantages, r->items[i].c.n_tokens);
    free(parts);
    return rc;
}

/* The update takes them as fp32. Every rank has all of them, and so finds the same. */
static status check_size(const double *advantages, const double *rewards, size_t n) {
    double largest = 0;
    bool fits = true;
    for (size_t i = 0; i < n; i++) {
        if (fabs(rewards[i]) > fabs(largest)) largest = rewards[i];
        fits = fits && fabs(advantages[i]) <= FLT_MAX;
    }
    if (fits && fabs(largest) <= FLT_MAX) return OK; /* divided by a deviation that is infinite they would all be 0 */
    return ERR(ERR_RUN,
               "found a reward of %g, expected rewards, and differences of them, that fit fp32 (up to 3.4e38); check "
               "the reward, or set rl.reward_clip, for example to [-10, 10]",
               largest);
}

status rollout_weigh(rollout *r) {
    TRY(gather(r));
    size_t n = (size_t)r->n_ranks * r->n, own = (size_t)r->rank * r->n;
    bool of_tokens = advantage_is_of_tokens(r->loss->advantage); /* their KL is that of single tokens */
    double *rewards = mem_alloc(n * sizeof *rewards), *a = mem_alloc(n * sizeof *a);
    for (size_t i = 0; i < n; i++) rewards[i] = of_tokens ? r->all[i].reward : r->all[i].total;
    advantage_groups(r->loss->advantage, rewards, n / r->k, r->k, a);
    if (r->o->normalize && !of_tokens) advantage_normalize(a, rewards, n);
    for (size_t i = 0; i < r->n; i++)
        for (size_t k = 0; k < r->items[i].c.n_tokens; k++) r->items[i].advantages[k] = a[own + i];
    for (size_t i = 0; i < r->n && of_tokens; i++)
        for (size_t k = 0; k < r->items[i].c.n_tokens; k++) r->items[i].advantages[k] = 0;
    status rc = check_size(a, rewards, n);
    if (rc == OK && of_tokens) rc = weigh_returns(r, a + own, a);
    free(rewards);
    free(a);
    return rc;
}
