/* schedule.c - continuous batching: prompts wait in line for a slot and pages, are computed in chunks, and then
 * take part in every decode step until they end.
 *
 * A sequence is let in when a slot is free and every page it can ever need, for its prompt and all new tokens, is free
 * too. It holds them from then on, so nothing can run dry halfway and nobody waits for somebody who waits. What a
 * sequence could need beyond the whole cache is refused before the first step. The price is that pages for tokens that an
 * early end never draws stand idle.
 *
 * All completions of a prompt read the same full pages of it: the first computes them, the others begin after them.
 * The last prompt token is always computed by each, since its logits are where a completion starts. Prompts are served in
 * order, so the pages kept for the next completions of a prompt are those of one prompt at a time; and the tokens of the
 * first completion come before those of the others in line, hence in the same chunk or an earlier one.
 *
 * Prompts go before decoding: a step over all slots costs little more than one over a few.
 *
 * Speculative decoding: behind its next token every sequence adds the tokens that the other heads proposed after the token before
 * (drafts), and one decode step computes them all. The first head's choice at each is what plain decoding would have computed
 * there, as long as the drafts before were its choices too: so far they are taken. Behind the last that was taken stand the next
 * drafts. Keys and values of drafts that were not taken are overwritten by the next step, before any token looks at them. */
#include "generate/state.h"
#include "generate/text.h"

#include <stdlib.h>

typedef struct sequence {
    size_t prompt, index;
    int64_t slot;
    int32_t *tokens; /* prompt and completion */
    int64_t n_prompt, n_tokens, n_most;
    int64_t n_cached; /* tokens whose keys and values are in the cache */
    int32_t *pages;
    size_t n_pages;
    int32_t drafts[MTP_HEADS_MAX]; /* speculative: what heads 2, 3 ... propose after the next token */
    double log_probability;
    float *log_probabilities; /* of the completion's tokens */
    text_stream text;
} sequence;

typedef struct scheduler {
    generator *g;
    const prompt *prompts;
    size_t n_prompts;
    const sampling_options *options;
    const generation_observer *observer;
    completion *out;
    generation_report *report;
    sequence **active; /* in the order they were let in */
    size_t n_active;
    int64_t *free_slots;
    size_t n_free_slots;
    size_t next_prompt, next_index; /* of the line */
    int32_t *kept;                  /* full pages of next_prompt, for the completions still to come */
    size_t n_kept;
    sequence **rows;   /* who gets which row of logits */
    int64_t *n_drafts; /* speculative: of each of them */
    sample_result *results;
} scheduler;

static int64_t n_heads(const scheduler *s) { return generation_heads(&s->g->plan->request.generation); }

static int64_t page_size(const scheduler *s) { return s->g->plan->request.generation.page_size; }

/* New tokens that a prompt may get: the context holds prompt and completion. */
static int64_t new_tokens(const scheduler *s, const prompt *p) {
    return MIN(s->options->max_new, generator_context(s->g) - (int64_t)p->n_tokens);
}

/* The last token drawn is never stored. */
static size_t pages_needed(const scheduler *s, const prompt *p) {
    return (size_t)divide_up((int64_t)p->n_tokens + new_tokens(s, p) - 1, page_size(s));
}

static size_t pages_shared(const scheduler *s, const prompt *p) {
    return s->options->n_completions > 1 ? (p->n_tokens - 1) / (size_t)page_size(s) : 0;
}

static uint64_t prompt_number(const scheduler *s, size_t i) {
    return s->options->numbers ? s->options->numbers[i] : s->options->first_prompt + i;
}

/* As it is counted in messages. */
static size_t prompt_name(const scheduler *s, size_t i) {
    return (s->options->numbers ? s->options->numbers[i] : i) + 1;
}

static status check_prompts(const scheduler *s) {
    int64_t context = generator_context(s->g), vocab = model_of(&s->g->plan->net.source)->vocab;
    for (size_t i = 0; i < s->n_prompts; i++) {
        const prompt *p = &s->prompts[i];
        if (p->n_tokens == 0)
            return ERR(ERR_INPUT, "prompt %zu is empty, expected at least one token", prompt_name(s, i));
        if ((int64_t)p->n_tokens >= context) {
            char advice[CONTEXT_ADVICE];
            return ERR(ERR_INPUT, "prompt %zu has %zu tokens, the context holds %lld with at least one new token; %s",
                       prompt_name(s, i), p->n_tokens, (long long)context, generator_context_advice(s->g, advice));
        }
        for (size_t k = 0; k < p->n_tokens; k++)
            if (p->tokens[k] < 0 || p->tokens[k] >= vocab)
                return ERR(ERR_INPUT, "prompt %zu: token %zu is %d, expected 0 to %lld", prompt_name(s, i), k + 1,
                           p->tokens[k], (long long)vocab - 1);
        if (pages_needed(s, p) > s->g->pages.n_pages)
            return ERR(
                ERR_FIT,
                "prompt %zu: %zu tokens and %lld new ones need %zu pages of %lld tokens, the cache has %zu; give "
                "it more bytes or ask for fewer new tokens",
                prompt_name(s, i), p->n_tokens, (long long)new_tokens(s, p), pages_needed(s, p),
                (long long)page_size(s), s->g->pages.n_pages);
    }
    return OK;
}

/* ---- coming and going -------------------------------------------------------------------------------------------- */

/* Admits the next sequence in line, if there are a slot and pages for all that it can need. */
static bool admit(scheduler *s) {
    if (s->next_prompt == s->n_prompts || s->n_free_slots == 0) return false;
    const prompt *p = &s->prompts[s->next_prompt];
    page_pool *pool = &s->g->pages;
    bool last = s->next_index + 1 == (size_t)s->options->n_completions;
    size_t needed = pages_needed(s, p);
    if (needed - s->n_kept > pool->n_free) return false;
    sequence *q = mem_alloc(sizeof *q);
    *q = (sequence){.prompt = s->next_prompt,
                    .index = s->next_index,
                    .slot = s->free_slots[--s->n_free_slots],
                    .n_prompt = (int64_t)p->n_tokens,
                    .n_tokens = (int64_t)p->n_tokens,
                    .n_most = (int64_t)p->n_tokens + new_tokens(s, p),
                    .n_cached = (int64_t)s->n_kept * page_size(s),
                    .n_pages = needed};
    q->tokens = mem_alloc((size_t)q->n_most * sizeof *q->tokens);
    memcpy(q->tokens, p->tokens, p->n_tokens * sizeof *q->tokens);
    q->log_probabilities = mem_alloc((size_t)(q->n_most - q->n_prompt) * sizeof *q->log_probabilities);
    q->pages = mem_alloc(needed * sizeof *q->pages);
    memcpy(q->pages, s->kept, s->n_kept * sizeof *q->pages);
    page_pool_share(pool, s->kept, s->n_kept);
    page_pool_take(pool, q->pages + s->n_kept, needed - s->n_kept);
    s->report->shared_tokens += (uint64_t)q->n_cached;
    s->report->prompt_tokens += p->n_tokens;
    if (s->next_index == 0 && !last) {
        s->n_kept = pages_shared(s, p);
        memcpy(s->kept, q->pages, s->n_kept * sizeof *s->kept);
        page_pool_share(pool, s->kept, s->n_kept);
    }
    if (last) {
        page_pool_drop(pool, s->kept, s->n_kept);
        s->n_kept = 0;
    }
    s->next_index = last ? 0 : s->next_index + 1;
    s->next_prompt += last;
    step_set_pages(s->g, q->slot, q->pages, q->n_pages);
    text_stream_open(&q->text, s->g->tokenizer, s->options->stops, s->options->n_stops);
    s->active[s->n_active++] = q;
    return true;
}

static void release(scheduler *s, sequence *q) {
    page_pool_drop(&s->g->pages, q->pages, q->n_pages);
    s->free_slots[s->n_free_slots++] = q->slot;
    text_stream_close(&q->text);
    free(q->tokens);
    free(q->log_probabilities);
    free(q->pages);
    free(q);
}

static void report_text(scheduler *s, sequence *q, bool ended) {
    span fresh = text_stream_new_text(&q->text, ended);
    if (fresh.length > 0 && s->observer && s->observer->on_text)
        s->observer->on_text(s->observer->context, q->prompt, q->index, fresh.text, fresh.length);
}

/* q has ended: its tokens and text become the completion; q itself is released by the caller. */
static status finish(scheduler *s, sequence *q, stop_reason why) {
    completion *c = &s->out[q->prompt * (size_t)s->options->n_completions + q->index];
    bool stopped = false;
    if (why != STOP_STRING) TRY(text_stream_end(&q->text, &stopped));
    report_text(s, q, true);
    c->stop = stopped && why == STOP_LENGTH ? STOP_STRING : why;
    c->log_probability = q->log_probability;
    c->n_tokens = (size_t)(q->n_tokens - q->n_prompt);
    c->tokens = mem_alloc(c->n_tokens * sizeof *c->tokens);
    memcpy(c->tokens, q->tokens + q->n_prompt, c->n_tokens * sizeof *c->tokens);
    c->log_probabilities = q->log_probabilities;
    q->log_probabilities = NULL;
    c->text_bytes = q->text.text.length;
    c->text = strbuf_take(&q->text.text);
    s->report->new_tokens += c->n_tokens;
    if (s->observer && s->observer->on_completion)
        s->observer->on_completion(s->observer->context, q->prompt, q->index, c);
    return OK;
}

/* ---- sampling ---------------------------------------------------------------------------------------------------- */

static double uniform_of(const scheduler *s, const sequence *q) {
    return sample_uniform(s->options->seed, prompt_number(s, q->prompt), q->index,
                          (uint64_t)(q->n_tokens - q->n_prompt));
}

/* Asks for the token behind the one added last. With filters the host draws it, from the logits. */
static void pick_next(const scheduler *s, const sequence *q) {
    bool drawn_here = sample_filters(s->options);
    step_pick(s->g, n_heads(s), uniform_of(s, q), drawn_here ? 0 : s->options->temperature);
}

static void sample_task(void *context, int64_t row, int thread) {
    scheduler *s = context;
    const sequence *q = s->rows[row];
    const generator *g = s->g;
    const double *drawn = g->drawn[row * n_heads(s)];
    if (!sample_filters(s->options)) s->results[row] = sample_drawn(drawn);
    else
        s->results[row] = sample_draw(&g->scratch[thread], step_logits(g, row), drawn[DRAWN_LOG_SUM], q->tokens,
                                      (size_t)q->n_tokens, s->options, uniform_of(s, q));
}

static bool is_eos(const scheduler *s, int32_t token) {
    const sampling_options *o = s->options;
    if (o->ignore_eos) return false;
    for (size_t i = 0; i < s->g->n_eos; i++)
        if (s->g->eos[i] == token) return true;
    for (size_t i = 0; i < o->n_ends; i++)
        if (o->ends[i] == token) return true;
    return false;
}

/* q's next token has been drawn. *ended: q has become a completion. */
static status take_token(scheduler *s, sequence *q, const sample_result *r, bool *ended) {
    bool stopped = false;
    *ended = true;
    if (r->token < 0)
        return ERR(ERR_RUN,
                   "prompt %zu: the logits of new token %lld are not finite: the weights or the precision are bad",
                   prompt_name(s, q->prompt), (long long)(q->n_tokens - q->n_prompt + 1));
    q->log_probabilities[q->n_tokens - q->n_prompt] = (float)r->tempered;
    q->tokens[q->n_tokens++] = r->token;
    q->log_probability += r->log_probability;
    if (is_eos(s, r->token)) return finish(s, q, STOP_EOS);
    TRY(text_stream_push(&q->text, r->token, &stopped));
    if (stopped) return finish(s, q, STOP_STRING);
    if (q->n_tokens == q->n_most) return finish(s, q, STOP_LENGTH);
    report_text(s, q, false);
    *ended = false;
    return OK;
}

static void free_sequence(scheduler *s, const sequence *q) {
    size_t i = 0;
    while (s->active[i] != q) i++;
    memmove(&s->active[i], &s->active[i + 1], (s->n_active - i - 1) * sizeof(sequence *));
    s->n_active--;
}

/* What the heads after the first propose in the rows of one token. */
static void take_drafts(const scheduler *s, sequence *q, int64_t row) {
    for (int64_t k = 1; k < n_heads(s); k++) q->drafts[k - 1] = (int32_t)s->g->drawn[row * n_heads(s) + k][DRAWN_TOP];
}

static status sample_rows(scheduler *s, int64_t n) {
    status rc = OK;
    exec_parallel(s->g->e, sample_task, s, n);
    for (int64_t i = 0; i < n && rc == OK; i++) {
        bool ended;
        take_drafts(s, s->rows[i], i);
        rc = take_token(s, s->rows[i], &s->results[i], &ended);
        if (!ended || rc != OK) continue;
        free_sequence(s, s->rows[i]);
        release(s, s->rows[i]);
    }
    return rc;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static bool is_prefilling(const sequence *q) { return q->n_cached < q->n_prompt; }

static status prefill(scheduler *s) {
    generator *g = s->g;
    int64_t n_rows = 0;
    step_begin(g, SECTION_PREFILL);
    for (size_t i = 0; i < s->n_active && step_room(g) > 0 && step_pick_room(g) > 0; i++) {
        sequence *q = s->active[i];
        if (!is_prefilling(q)) continue;
        for (; q->n_cached < q->n_prompt && step_room(g) > 0; q->n_cached++)
            step_add(g, q->tokens[q->n_cached], q->slot, q->n_cached);
        if (is_prefilling(q)) break;
        pick_next(s, q);
        s->rows[n_rows++] = q;
    }
    TRY(step_run(g, sample_filters(s->options)));
    s->report->prefill_steps++;
    return sample_rows(s, n_rows);
}

static status decode(scheduler *s) {
    generator *g = s->g;
    step_begin(g, SECTION_DECODE);
    for (size_t i = 0; i < s->n_active; i++) {
        sequence *q = s->active[i];
        step_add(g, q->tokens[q->n_cached], q->slot, q->n_cached);
        pick_next(s, q);
        q->n_cached++;
        s->rows[i] = q;
    }
    TRY(step_run(g, sample_filters(s->options)));
    s->report->decode_steps++;
    return sample_rows(s, (int64_t)s->n_active);
}

/* ---- speculative decoding ---------------------------------------------------------------------------------------- */

/* Drafts that may be stored: the last token drawn never is. */
static int64_t draft_count(const scheduler *s, const sequence *q) {
    return MIN(n_heads(s) - 1, q->n_most - 1 - q->n_tokens);
}

/* Takes the first head's choices from `row` on, up to the first that is not the draft behind it. */
static status take_verified(scheduler *s, sequence *q, int64_t row, int64_t n_drafts, bool *ended) {
    const generator *g = s->g;
    for (int64_t k = 0; k <= n_drafts; k++) {
        sample_result r = sample_drawn(g->drawn[(row + k) * n_heads(s)]);
        bool right = k < n_drafts && g->tokens[row + k + 1] == r.token;
        s->report->accepted += right;
        take_drafts(s, q, row + k);
        TRY(take_token(s, q, &r, ended));
        if (*ended || !right) break;
    }
    q->n_cached = q->n_tokens - 1;
    return OK;
}

static status verify(scheduler *s) {
    generator *g = s->g;
    size_t n = s->n_active;
    int64_t row = 0;
    status rc = OK;
    step_begin(g, SECTION_DECODE);
    for (size_t i = 0; i < n; i++) {
        sequence *q = s->rows[i] = s->active[i];
        int64_t n_drafts = s->n_drafts[i] = draft_count(s, q);
        for (int64_t k = 0; k <= n_drafts; k++) {
            step_add(g, k ? q->drafts[k - 1] : q->tokens[q->n_cached], q->slot, q->n_cached + k);
            step_pick(g, n_heads(s), 0, 0);
        }
        s->report->drafted += (uint64_t)n_drafts;
    }
    TRY(step_run(g, false));
    s->report->decode_steps++;
    s->report->verified += n;
    for (size_t i = 0; i < n && rc == OK; row += 1 + s->n_drafts[i++]) {
        bool ended = false;
        rc = take_verified(s, s->rows[i], row, s->n_drafts[i], &ended);
        if (!ended || rc != OK) continue;
        free_sequence(s, s->rows[i]);
        release(s, s->rows[i]);
    }
    return rc;
}

static status run(scheduler *s) {
    while (true) {
        while (admit(s)) {}
        if (s->n_active == 0) break;
        bool prompts_first = false;
        for (size_t i = 0; i < s->n_active; i++) prompts_first |= is_prefilling(s->active[i]);
        double start = clock_s();
        status rc = prompts_first ? prefill(s) : n_heads(s) > 1 ? verify(s) : decode(s);
        *(prompts_first ? &s->report->prefill_seconds : &s->report->decode_seconds) += clock_s() - start;
        TRY(rc);
    }
    ASSERT(s->next_prompt == s->n_prompts); /* with nothing active all pages are free, and one sequence fits them */
    return OK;
}

status generation_run(generator *g, const prompt *prompts, size_t n_prompts, const sampling_options *options,
                      const generation_observer *observer, completion *out, generation_report *report) {
    const generation_shape *shape = &g->plan->request.generation;
    scheduler s = {.g = g,
                   .prompts = prompts,
                   .n_prompts = n_prompts,
                   .options = options,
                   .observer = observer,
                   .out = out,
                   .report = report};
    TRY(check_prompts(&s));
    size_t slots = (size_t)shape->slots;
    s.active = mem_alloc(slots * sizeof(sequence *));
    s.rows = mem_alloc(slots * sizeof(sequence *));
    s.results = mem_alloc(slots * sizeof *s.results);
    s.n_drafts = mem_alloc(slots * sizeof *s.n_drafts);
    s.free_slots = mem_alloc(slots * sizeof *s.free_slots);
    s.kept = mem_alloc((size_t)generation_pages_per_slot(shape) * sizeof *s.kept);
    for (; s.n_free_slots < slots; s.n_free_slots++)
        s.free_slots[s.n_free_slots] = (int64_t)(slots - 1 - s.n_free_slots);
    status rc = run(&s);
    while (s.n_active > 0) release(&s, s.active[--s.n_active]); /* after an error */
    page_pool_drop(&g->pages, s.kept, s.n_kept);
    ASSERT(g->pages.n_free == g->pages.n_pages);
    free(s.active);
    free(s.rows);
    free(s.results);
    free(s.n_drafts);
    free(s.free_slots);
    free(s.kept);
    return rc;
}
