/* generate.c - open a model for generation, run prompts, close.
 *
 * All sizes are fixed when it is opened: the plan holds parameters, cache and the activations of one chunk of
 * prompts and of one decode step; the logits of one step and the sampler's scratch are beside it, and the plan
 * counts them as host memory. */
#include "generate/generate.h"
#include "generate/state.h"

#include <math.h>
#include <stdlib.h>

/* A GPU needs a few thousand tokens to be busy; what the CPU computes at once should stay in its caches. */
enum { SEQUENCES = 16, PAGE_SIZE = 32, PREFILL = 256, PREFILL_DISCRETE = 2048, CONTEXT_MOST = 4096 };

const char *stop_reason_name(stop_reason r) {
    static const char *const names[STOP_COUNT] = {"eos", "stop", "length"};
    return names[r];
}

status sampling_check(const sampling_options *s) {
    const struct {
        const char *name, *expected;
        bool right;
    } rules[] = {
        {"max_new", "at least 1", s->max_new >= 1},
        {"n_completions", "1 to 2^20", s->n_completions >= 1 && s->n_completions <= 1 << 20},
        {"temperature", "0 (greedy) to 1000", s->temperature >= 0 && s->temperature <= 1000},
        {"top_k", "0 (all) or more", s->top_k >= 0},
        {"top_p", "more than 0, at most 1", s->top_p > 0 && s->top_p <= 1},
        {"min_p", "0 to 1", s->min_p >= 0 && s->min_p <= 1},
        {"repetition_penalty", "0.01 to 100", s->repetition_penalty >= 0.01 && s->repetition_penalty <= 100},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(rules); i++)
        if (!rules[i].right) return ERR(ERR_INPUT, "sampling: %s: expected %s", rules[i].name, rules[i].expected);
    for (size_t i = 0; i < s->n_stops; i++)
        if (!s->stops[i] || !*s->stops[i]) return ERR(ERR_INPUT, "sampling: stop string %zu is empty", i + 1);
    return OK;
}

/* ---- open -------------------------------------------------------------------------------------------------------- */

/* The logits of one step and the sampler's scratch. */
uint64_t generation_host_bytes(const model_config *c, const generation_shape *g, int n_threads) {
    return (uint64_t)(g->slots * c->vocab) * sizeof(float) +
           (uint64_t)n_threads * sample_scratch_bytes((size_t)c->vocab);
}

static status choose_heads(const model_config *c, const generator_options *o, int64_t *heads) {
    *heads = 1;
    if (!o->speculative) return OK;
    if (c->mtp_heads <= 1)
        return ERR(
            ERR_INPUT,
            "%s has no prediction heads, which --speculative drafts with; expected a run with model.mtp.heads, or "
            "its export with --heads all or --heads meta",
            c->name);
    *heads = o->draft_max ? MIN(c->mtp_heads, o->draft_max + 1) : c->mtp_heads;
    return OK;
}

enum {
    INT8_COLUMNS = (1 << 17) - 1, /* a sum of so many products of bytes fits 32 bits, on CPUs and GPUs */
    NF4_COLUMNS = 1 << 16         /* scales of so many blocks have room on every GPU */
};

static status check_weights(const model_source *s, const generator_options *o) {
    base_format f = s->trained_over.format;
    const model_config *c = &s->config;
    const char *name = base_format_name(o->weights);
    int64_t widest = MAX(MAX(c->hidden, c->ffn), c->n_heads * c->head_dim);
    int64_t most = o->weights == BASE_NF4 && o->backend->discrete ? NF4_COLUMNS : INT8_COLUMNS;
    if (o->weights == BASE_COMPUTE) return OK;
    if (f != BASE_COMPUTE && f != o->weights)
        return ERR(ERR_INPUT,
                   "--weights: found %s for adapters over weights in %s (model.base), expected %s or precision: they "
                   "are used over the codes that they were trained over; leave --weights out",
                   name, base_format_name(f), base_format_name(f));
    if (s->lora.pissa)
        return ERR(ERR_INPUT,
                   "--weights: found %s for adapters that began by pissa (model.lora.init), expected precision: their "
                   "base is computed from weights that are stored as numbers; leave --weights out, or export the run "
                   "(ralo export), which gives an ordinary adapter of twice the rank",
                   name);
    if (o->backend->discrete && o->precision == PRECISION_FP32)
        return ERR(
            ERR_INPUT,
            "--weights: found %s with --precision fp32 on %s, expected --precision bf16 or fp16: a GPU multiplies "
            "weights in fewer bits with 16-bit activations; add --precision bf16",
            name, o->backend->name);
    if (o->backend->discrete && !model_rows_fit_codes(c))
        return ERR(
            ERR_INPUT,
            "--weights: found %s for %s, whose layers have rows of %lld, %lld and %lld weights, expected multiples of "
            "%d on a GPU; leave it out, or add --device cpu",
            name, c->name, (long long)c->hidden, (long long)(c->n_heads * c->head_dim), (long long)c->ffn,
            NET_CODES_UNIT);
    if (widest > most)
        return ERR(ERR_INPUT,
                   "--weights: found %s for %s with rows of %lld weights, expected at most %lld; leave it out", name,
                   c->name, (long long)widest, (long long)most);
    return OK;
}

static status request_make(plan_request *r, const model_source *s, const generator_options *o) {
    const model_config *c = o->speculative ? &s->all_heads : &s->config;
    sys_info machine;
    TRY(check_weights(s, o));
    sys_info_get(&machine);
    int threads = o->n_threads ? o->n_threads : machine.n_cores;
    *r = (plan_request){.source = net_source_of(c),
                        .lora = s->lora,
                        .base = s->trained_over.format,
                        .seq_len = 1,
                        .choice = {.precision = o->precision, .micro_batch = 1, .accumulation = 1},
                        .device_limit = o->device_limit};
    r->target = backend_target(backend_kind(o->backend), threads);
    if (!r->device_limit) TRY(backend_memory_limit(o->backend, o->gpu.index, 1, &r->device_limit));
    generation_shape *g = &r->generation;
    g->weights = o->weights;
    g->lanes = !o->backend->discrete;
    g->slots = o->max_sequences ? o->max_sequences : SEQUENCES;
    g->context = o->context ? o->context : MIN(c->max_positions, (int64_t)CONTEXT_MOST);
    g->page_size = o->page_size ? o->page_size : PAGE_SIZE;
    g->prefill_tokens = o->prefill ? o->prefill : o->backend->discrete ? PREFILL_DISCRETE : PREFILL;
    if (g->context > c->max_positions)
        return ERR(ERR_INPUT,
                   "context: found %lld tokens, expected at most %lld, the positions of %s; lower it (--context), or "
                   "leave it out",
                   (long long)g->context, (long long)c->max_positions, c->name);
    if (g->slots < 1 || g->context < 1 || g->page_size < 1 || g->slots > 1 << 16)
        return ERR(
            ERR_INPUT,
            "%s: %lld sequences of %lld tokens in pages of %lld: expected at least 1 of each, at most 65536 sequences",
            c->name, (long long)g->slots, (long long)g->context, (long long)g->page_size);
    TRY(choose_heads(c, o, &g->heads));
    g->pages = generation_pages_wanted(g);
    uint64_t page = generation_page_bytes(c, g, precision_compute(o->precision));
    if (o->cache_bytes) g->pages = MIN(g->pages, (int64_t)(o->cache_bytes / page));
    if (g->pages < 1) {
        char a[32], b[32];
        return ERR(ERR_FIT, "%s: a cache of %s does not hold one page of %lld tokens, which is %s", c->name,
                   str_format_bytes(a, o->cache_bytes), (long long)g->page_size, str_format_bytes(b, page));
    }
    r->host_bytes = generation_host_bytes(c, g, threads);
    return OK;
}

/* The plan of one adapter serves several. */
status generator_plan_compile(plan *out, const generator_options *o) {
    model_source s;
    plan_request r;
    TRY(model_source_open(&s, o->source, o->n_adapters ? o->adapters[0].dir : o->adapter, o->tokenizer));
    status rc = request_make(&r, &s, o);
    if (rc == OK) rc = plan_build(out, &r);
    model_source_close(&s);
    return rc;
}

static void make_buffers(generator *g) {
    const generation_shape *s = &g->plan->request.generation;
    int64_t heads = generation_heads(s), n_rows = heads * heads * s->slots;
    size_t vocab = (size_t)model_of(&g->plan->net.source)->vocab;
    int64_t prefill = program_get(&g->plan->program, g->plan->net.prefill.inputs)->shape.dim[0];
    int64_t decode = program_get(&g->plan->program, g->plan->net.decode.inputs)->shape.dim[0];
    g->inputs = arena_alloc(&g->memory, (size_t)MAX(prefill, decode));
    g->page_row = arena_array(&g->memory, int32_t, generation_pages_per_slot(s));
    g->drawn = arena_alloc(&g->memory, (size_t)n_rows * sizeof *g->drawn);
    g->logits = mem_alloc((size_t)s->slots * vocab * sizeof *g->logits);
    g->n_scratch = exec_threads(g->e);
    g->scratch = mem_alloc((size_t)g->n_scratch * sizeof *g->scratch);
    for (int i = 0; i < g->n_scratch; i++) sample_scratch_init(&g->scratch[i], vocab);
    page_pool_init(&g->pages, (size_t)s->pages);
}

status generator_describe(generator *g, const model_source *s) {
    tokenizer_close(g->own_tokenizer);
    free(g->eos);
    g->own_tokenizer = NULL, g->eos = NULL, g->n_eos = 0;
    TRY(model_source_tokenizer(s, &g->own_tokenizer));
    g->tokenizer = g->own_tokenizer;
    g->tokenizer_name = arena_string(&g->memory, s->tokenizer);
    g->chat = s->chat;
    g->chat_kwargs = s->chat_kwargs ? arena_string(&g->memory, s->chat_kwargs) : NULL;
    return model_source_eos(s, g->tokenizer, &g->eos, &g->n_eos);
}

static status open_from(generator *g, const model_source *s, const generator_options *o) {
    plan_request r;
    TRY(generator_describe(g, s));
    TRY(request_make(&r, s, o));
    TRY(plan_build(&g->own_plan, &r));
    g->plan = &g->own_plan;
    TRY(plan_check_fit(g->plan));
    TRY(exec_open(&g->own_exec, &g->plan->program,
                  &(exec_options){.backend = o->backend,
                                  .gpu = o->gpu,
                                  .n_threads = r.target.n_threads,
                                  .bind = o->bind,
                                  .trace_path = o->trace_path}));
    g->e = g->own_exec;
    TRY(model_source_load(s, g->e, g->plan));
    exec_order_weights(g->e);
    make_buffers(g);
    return OK;
}

static status open_several(generator *g, const generator_options *o) {
    if (o->adapter)
        return ERR(ERR_BUG, "a generator was asked for with one adapter and with several: %s, %s", o->adapter,
                   o->adapters[0].dir);
    TRY(adapters_open(g, o));
    return open_from(g, adapters_first(g), o);
}

static status open_one(generator *g, const generator_options *o) {
    model_source s;
    TRY(model_source_open(&s, arena_string(&g->memory, o->source), o->adapter, o->tokenizer));
    status rc = open_from(g, &s, o);
    model_source_close(&s);
    return rc;
}

status generator_open(generator **out, const generator_options *o) {
    status rc = OK;
    generator *g = mem_alloc(sizeof *g);
    *out = NULL;
    arena_init(&g->memory);
    TRY_GOTO(rc, o->n_adapters ? open_several(g, o) : open_one(g, o), fail);
    *out = g;
    return OK;
fail:
    generator_close(g);
    return rc;
}

static status attach(generator *g, const generator_host *h) {
    model_source s;
    if (!plan_samples(&h->plan->request))
        return ERR(ERR_INPUT,
                   "model %s: the plan has no sections of generation beside training; ask for them before it "
                   "is made (train.sample_every)",
                   model_of(&h->plan->request.source)->name);
    g->plan = h->plan;
    g->e = h->exec;
    g->tokenizer = h->tokenizer;
    g->tokenizer_name = arena_string(&g->memory, h->tokenizer_name);
    model_source_describe(&s, model_of(&h->plan->request.source), h->description);
    g->chat = s.chat;
    g->chat_kwargs = s.chat_kwargs ? arena_string(&g->memory, s.chat_kwargs) : NULL;
    status rc = model_source_eos(&s, g->tokenizer, &g->eos, &g->n_eos);
    model_source_close(&s);
    TRY(rc);
    make_buffers(g);
    return OK;
}

status generator_attach(generator **out, const generator_host *h) {
    generator *g = mem_alloc(sizeof *g);
    *out = NULL;
    arena_init(&g->memory);
    status rc = attach(g, h);
    if (rc == OK) *out = g;
    else generator_close(g);
    return rc;
}

void generator_close(generator *g) {
    if (!g) return;
    exec_close(g->own_exec);
    plan_close(&g->own_plan);
    tokenizer_close(g->own_tokenizer);
    adapters_close(g);
    for (int i = 0; i < g->n_scratch; i++) sample_scratch_fini(&g->scratch[i]);
    page_pool_fini(&g->pages);
    free(g->scratch);
    free(g->logits);
    free(g->eos);
    arena_fini(&g->memory);
    free(g);
}

const plan *generator_plan(const generator *g) { return g->plan; }
int64_t generator_context(const generator *g) { return g->plan->request.generation.context; }

const char *generator_context_advice(const generator *g, char advice[CONTEXT_ADVICE]) {
    long long positions = model_of(&g->plan->net.source)->max_positions;
    if (generator_context(g) < positions)
        snprintf(advice, CONTEXT_ADVICE, "shorten it, or raise the context (--context) to at most %lld", positions);
    else snprintf(advice, CONTEXT_ADVICE, "shorten it: the model has no more positions");
    return advice;
}

status generator_encode(const generator *g, const char *text, size_t n_bytes, int32_t **tokens, size_t *n,
                        size_t *capacity) {
    utf8_scan scan = utf8_check(text, n_bytes);
    if (scan.n_bad > 0 && !tokenizer_is_byte(g->tokenizer))
        return ERR(ERR_INPUT, "byte %zu is not UTF-8, which is needed by the tokenizer %s", scan.n_valid + 1,
                   g->tokenizer_name);
    /* The byte tokenizer trains without BOS; a tokenizer.json defines what comes before a text. */
    unsigned flags = tokenizer_is_byte(g->tokenizer) ? 0 : ENCODE_ADD_SPECIALS;
    return tokenizer_encode_with(g->tokenizer, text, n_bytes, flags, tokens, n, capacity);
}

status generator_chat(const generator *g, const chat_options *wanted, chat **out) {
    chat_options o = *wanted;
    if (o.format == CHAT_AUTO) o.format = g->chat;
    bool may_render = o.format == CHAT_AUTO || o.format == CHAT_TEMPLATE;
    if (!o.kwargs && may_render) o.kwargs = g->chat_kwargs;
    return chat_open(out, g->tokenizer, g->tokenizer_name, &o);
}

/* ---- run --------------------------------------------------------------------------------------------------------- */

void completions_free(completion *list, size_t n) {
    for (size_t i = 0; list && i < n; i++) {
        free(list[i].tokens);
        free(list[i].text);
        free(list[i].log_probabilities);
    }
    free(list);
}

status generator_run(generator *g, const prompt *prompts, size_t n_prompts, const sampling_options *s,
                     const generation_observer *observer, completion **out, generation_report *report) {
    generation_report ignored;
    if (!report) report = &ignored;
    *report = (generation_report){0};
    *out = NULL;
    TRY(sampling_check(s));
    if (generation_heads(&g->plan->request.generation) > 1 && (s->temperature > 0 || sample_filters(s)))
        return ERR(
            ERR_INPUT,
            "speculative decoding is greedy: found %s, expected %s; leave it out, or decode without --speculative",
            s->temperature > 0 ? "a temperature above 0" : "a repetition penalty",
            s->temperature > 0 ? "temperature 0" : "none");
    size_t n = n_prompts * (size_t)s->n_completions;
    completion *list = mem_alloc(MAX(n, (size_t)1) * sizeof *list);
    status rc = generation_run(g, prompts, n_prompts, s, observer, list, report);
    exec_ledger(g->e, &report->memory);
    if (rc == OK) *out = list;
    else completions_free(list, n);
    return rc;
}

status generator_logits(generator *g, const int32_t *tokens, size_t n, bool token_by_token, float *out) {
    int64_t size = g->plan->request.generation.page_size, vocab = model_of(&g->plan->net.source)->vocab;
    size_t slots = (size_t)g->plan->request.generation.slots;
    size_t n_pages = (size_t)divide_up((int64_t)n, size);
    if (n == 0 || (int64_t)n > generator_context(g))
        return ERR(ERR_INPUT, "logits of %zu tokens: expected 1 to %lld, the context", n,
                   (long long)generator_context(g));
    if (n_pages > g->pages.n_free)
        return ERR(ERR_FIT, "logits of %zu tokens: they need %zu pages, the cache has %zu", n, n_pages,
                   g->pages.n_free);
    for (size_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= vocab)
            return ERR(ERR_INPUT, "logits: token %zu is %d, expected 0 to %lld", i + 1, tokens[i],
                       (long long)vocab - 1);
    status rc = OK;
    int32_t *pages = mem_alloc(n_pages * sizeof *pages);
    page_pool_take(&g->pages, pages, n_pages);
    step_set_pages(g, 0, pages, n_pages);
    for (size_t at = 0; at < n;) {
        step_begin(g, token_by_token ? SECTION_DECODE : SECTION_PREFILL);
        size_t first = at, end = token_by_token ? at + 1 : n;
        for (; at < end && at - first < slots && step_room(g) > 0 && step_pick_room(g) > 0; at++) {
            step_add(g, tokens[at], 0, (int64_t)at);
            step_pick(g, 1, 0, 0);
        }
        TRY_GOTO(rc, step_run(g, true), done);
        memcpy(out + first * (size_t)vocab, step_logits(g, 0), (at - first) * (size_t)vocab * sizeof *out);
    }
done:
    page_pool_drop(&g->pages, pages, n_pages);
    free(pages);
    return rc;
}
