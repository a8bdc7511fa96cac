/* samples.c - completions of a few prompts while a run goes on: train.sample_every.
 *
 * The generator is attached to the exec of the run: same parameters, same arena, its cache on the bytes of activations. Prompts
 * come from a file, read as `ralo generate` reads them, or are the beginnings of held-out rows. They are the same at every step, and
 * completions are greedy, so that what changes is the model.
 *
 * The context is planned before any prompt is known: a row and the new tokens. A longer prompt is refused, never cut. */
#include "train/samples.h"

#include "data/prompts.h"

#include <stdlib.h>

enum { SLOTS_MOST = 16, PAGE_SIZE = 32, PREFILL = 256, PREFILL_DISCRETE = 2048 };
enum { PLAIN_PROMPT = 32 }; /* tokens: of text without a prompt of its own */
#define FILE_MOST ((size_t)64 << 20)

struct samples {
    samples_host host;
    generator *g;
    prompt *prompts;
    span *texts; /* of them */
    size_t n;
    int32_t end; /* the token that ends a turn; -1: none */
    arena memory;
};

static bool has_file(const train_options *o) { return o->sample_prompts && *o->sample_prompts; }

status samples_check(const train_request *r) {
    const train_options *o = &r->train;
    if (!o->sample_every || has_file(o) || str_starts_with(r->data.source, "builtin:") || data_evaluates(&r->data))
        return OK;
    return ERR(ERR_INPUT,
               "train.sample_prompts: found none with data.eval_fraction 0, expected a file: without it prompts are "
               "taken from held-out rows");
}

status samples_shape(train_request *r) {
    const train_options *o = &r->train;
    plan_request *p = &r->plan;
    p->generation = (generation_shape){0};
    p->generator_bytes = 0;
    if (!o->sample_every) return OK;
    TRY(samples_check(r));
    generation_shape *g = &p->generation;
    g->beside_training = true;
    g->slots = MIN(o->samples, (int64_t)SLOTS_MOST);
    g->context = MIN(p->seq_len + o->sample_tokens, model_of(&p->source)->max_positions);
    g->page_size = MIN((int64_t)PAGE_SIZE, g->context);
    g->pages = generation_pages_wanted(g);
    g->prefill_tokens = MIN(g->slots * g->context, (int64_t)(p->target.discrete ? PREFILL_DISCRETE : PREFILL));
    p->generator_bytes = generation_host_bytes(model_of(&p->source), g, p->target.n_threads);
    p->open.sequence = p->left_open.sequence = false; /* a rank generates with whole layers */
    return OK;
}

/* ---- prompts ------------------------------------------------------------------------------------------------------- */

/* Takes the ids, which are freed with the samples. */
static void add_prompt(samples *s, int32_t *ids, size_t n, span text) {
    char *copy = arena_alloc(&s->memory, text.length + 1);
    if (text.length > 0) memcpy(copy, text.text, text.length);
    s->texts[s->n] = (span){copy, text.length};
    s->prompts[s->n++] = (prompt){ids, n};
}

static status check_length(const samples *s, size_t n, const char *path, uint64_t line) {
    long long context = generator_context(s->g);
    if (n > 0 && (long long)n < context) return OK;
    return ERR(ERR_INPUT,
               "%s:%llu: the prompt has %zu tokens, expected 1 to %lld: data.seq_len and train.sample_tokens, at most "
               "the model's "
               "positions, with at least one new token",
               path, (unsigned long long)line, n, context - 1);
}

/* Its chat format is asked for where there are turns. */
static status open_chat(samples *s, chat **out) {
    TRY(generator_chat(s->g, &(chat_options){.format = CHAT_AUTO}, out));
    s->end = chat_end_of_turn(*out);
    return OK;
}

static status add_record(samples *s, const chat *c, const data_record *r) {
    chat_tokens tokens = {0};
    span last = r->kind == RECORD_TEXT   ? r->text
                : r->kind == RECORD_PAIR ? r->prompt
                                         : r->messages[r->n_messages - 1].content;
    status rc = chat_encode_prompt(c, r, &tokens);
    free(tokens.trained);
    if (rc == OK) rc = check_length(s, tokens.n, r->path, r->line);
    if (rc == OK) add_prompt(s, tokens.ids, tokens.n, last);
    else free(tokens.ids);
    return rc;
}

static status read_records(samples *s, const char *path, size_t most) {
    record_options o = s->host.request->data.records;
    o.may_lack_response = true;
    records *file;
    chat *c = NULL;
    TRY(records_open(&file, path, &o));
    status rc = open_chat(s, &c);
    for (uint64_t i = 0; rc == OK && i < records_count(file) && s->n < most; i++) {
        data_record r;
        rc = records_get(file, i, &r);
        if (rc == OK) rc = add_record(s, c, &r);
    }
    chat_close(c);
    records_close(file);
    return rc;
}

static status add_line(samples *s, span text, const char *path, uint64_t line) {
    int32_t *ids = NULL;
    size_t n = 0, capacity = 0;
    status rc = generator_encode(s->g, text.text, text.length, &ids, &n, &capacity);
    if (rc != OK) rc = ERR(rc, "%s:%llu: %s", path, (unsigned long long)line, error_message());
    if (rc == OK) rc = check_length(s, n, path, line);
    if (rc == OK) add_prompt(s, ids, n, text);
    else free(ids);
    return rc;
}

static status read_lines(samples *s, const char *path, size_t most) {
    status rc = OK;
    char *text;
    size_t n;
    uint64_t line = 1;
    TRY(data_read_text(path, FILE_MOST, &text, &n));
    for (size_t at = 0; at < n && s->n < most && rc == OK; line++) {
        const char *end = memchr(text + at, '\n', n - at);
        size_t next = end ? (size_t)(end - text) + 1 : n, length = (end ? next - 1 : n) - at;
        while (length > 0 && text[at + length - 1] == '\r') length--;
        if (length > 0) rc = add_line(s, (span){text + at, length}, path, line);
        at = next;
    }
    free(text);
    return rc;
}

/* The beginning of a row: what comes before the first token that is trained on; of plain text, where all are, a few tokens of its
 * first document. 0: no room is left for a new token. */
static size_t prompt_length(const samples *s, const int32_t *targets, const int32_t *doc_start, int64_t seq_len) {
    int64_t n = 0, first = 0;
    while (n < seq_len && doc_start[n] == 0) n++;
    while (first < n && targets[first] < 0) first++;
    if (first == 0) return (size_t)MIN(MAX(n / 2, (int64_t)1), (int64_t)PLAIN_PROMPT);
    return first < n && first + 1 < generator_context(s->g) ? (size_t)first + 1 : 0;
}

static status add_row(samples *s, const int32_t *tokens, size_t n) {
    strbuf text;
    strbuf_init(&text);
    strbuf_add(&text, "");
    int32_t *ids = mem_alloc(n * sizeof *ids);
    memcpy(ids, tokens, n * sizeof *ids);
    status rc = tokenizer_decode(dataset_tokenizer(s->host.data), ids, n, &text);
    if (rc == OK) add_prompt(s, ids, n, (span){text.text, text.length});
    else free(ids);
    strbuf_fini(&text);
    return rc;
}

static status take_rows(samples *s, size_t most) {
    status rc = OK;
    int64_t T = s->host.plan->request.seq_len;
    int32_t *row = mem_alloc(3 * (size_t)T * sizeof *row);
    data_report report = {.chat = CHAT_AUTO};
    dataset_report(s->host.data, SPLIT_EVAL, &report);
    for (uint64_t i = 0; i < 4 * most && s->n < most && rc == OK; i++) {
        dataset_row(s->host.data, SPLIT_EVAL, i, row, row + T, row + 2 * T);
        size_t n = prompt_length(s, row + T, row + 2 * T, T);
        if (n > 0) rc = add_row(s, row, n);
    }
    free(row);
    if (rc != OK || report.chat == CHAT_AUTO) return rc;
    chat *c; /* for the token that ends a turn */
    TRY(open_chat(s, &c));
    chat_close(c);
    return OK;
}

/* Of data without rows: the held-out prompts as they are. */
static void take_prompts(samples *s, size_t most) {
    const prompt_set *set = dataset_prompts(s->host.data);
    prompts_report report;
    prompts_report_get(set, &report);
    for (uint64_t i = 0; i < report.n[SPLIT_EVAL] && s->n < most; i++) {
        prompt_record p = prompts_get(set, SPLIT_EVAL, i);
        int32_t *ids = mem_alloc(p.n_tokens * sizeof *ids);
        memcpy(ids, p.tokens, p.n_tokens * sizeof *ids);
        add_prompt(s, ids, p.n_tokens, p.text);
    }
    s->end = prompts_end(set);
}

static status find_prompts(samples *s) {
    const train_options *o = &s->host.request->train;
    size_t most = (size_t)o->samples;
    s->prompts = arena_array(&s->memory, prompt, most);
    s->texts = arena_array(&s->memory, span, most);
    if (!has_file(o) && dataset_kind(s->host.data) == DATA_PROMPTS) take_prompts(s, most);
    else if (!has_file(o)) TRY(take_rows(s, most));
    else if (data_is_records(o->sample_prompts)) TRY(read_records(s, o->sample_prompts, most));
    else TRY(read_lines(s, o->sample_prompts, most));
    if (s->n > 0) return OK;
    return ERR(ERR_INPUT, "train.sample_prompts: found no prompt in %s, expected at least one",
               has_file(o) ? o->sample_prompts : "the held-out rows");
}

/* ---- open, run, close ------------------------------------------------------------------------------------------------ */

status samples_open(samples **out, const samples_host *h) {
    samples *s = mem_alloc(sizeof *s);
    *s = (samples){.host = *h, .end = -1};
    arena_init(&s->memory);
    const char *tokenizer = h->request->data.tokenizer;
    generator_host host = {.exec = h->exec,
                           .plan = h->plan,
                           .tokenizer = dataset_tokenizer(h->data),
                           .tokenizer_name = tokenizer ? tokenizer : "byte",
                           .description = h->description};
    status rc = generator_attach(&s->g, &host);
    if (rc == OK) rc = find_prompts(s);
    if (rc == OK) *out = s;
    else samples_close(s);
    return rc;
}

void samples_close(samples *s) {
    if (!s) return;
    generator_close(s->g);
    for (size_t i = 0; i < s->n; i++) free((void *)s->prompts[i].tokens);
    arena_fini(&s->memory);
    free(s);
}

generator *samples_generator(samples *s) { return s ? s->g : NULL; }

status samples_run(samples *s, int64_t step) {
    const train_observer *o = s->host.observer;
    sampling_options how = SAMPLING_DEFAULTS;
    how.max_new = s->host.request->train.sample_tokens;
    if (s->end >= 0) how.ends = &s->end, how.n_ends = 1;
    completion *c;
    TRY(generator_run(s->g, s->prompts, s->n, &how, NULL, &c, NULL));
    for (size_t i = 0; i < s->n && o->on_sample; i++)
        o->on_sample(o->context, &(train_sample){.step = step,
                                                 .index = i,
                                                 .prompt = s->texts[i],
                                                 .completion = {c[i].text, c[i].text_bytes},
                                                 .stop = c[i].stop});
    completions_free(c, s->n);
    return OK;
}

uint64_t samples_host_bytes(const samples *s) {
    const plan *p = s->host.plan;
    return generation_host_bytes(model_of(&p->request.source), &p->request.generation, exec_threads(s->host.exec));
}
