/* perplexity.c - run a text, or records, through the evaluation section. Losses are fp32 per token and summed in double, in
 * order. */
#include "train/perplexity.h"

#include <math.h>
#include <stdlib.h>

enum { SEQ_LEN = 512, BATCH = 8 };
#define TEXT_MOST ((size_t)16 << 30)

typedef struct text_tokens {
    int32_t *ids;
    size_t n, capacity, n_bytes;
    int64_t T;                    /* of records: tokens of a row ... */
    int32_t *targets, *doc_start; /* ... and the rows, n / T of them, with ids; NULL: a text */
    size_t n_too_long;
} text_tokens;

/* The last share of the bytes, starting at a whole character. */
static status read_text(text_tokens *t, const perplexity_options *o, const tokenizer *tokenizer) {
    char *text;
    size_t n;
    TRY(data_read_text(o->path, TEXT_MOST, &text, &n));
    size_t first = n - (size_t)((double)n * o->last);
    while (first < n && ((unsigned char)text[first] & 0xc0) == 0x80) first++;
    t->n_bytes = n - first;
    utf8_scan scan = utf8_check(text + first, t->n_bytes);
    if (scan.n_bad > 0 && !tokenizer_is_byte(tokenizer)) { /* otherwise U+FFFD would be measured in such places */
        free(text);
        return ERR(ERR_INPUT,
                   "%s: byte %zu is not UTF-8, expected a text in UTF-8 for this tokenizer; convert the file", o->path,
                   first + scan.n_valid + 1);
    }
    int32_t bos = tokenizer_text_bos(tokenizer); /* as in training and generation */
    if (bos >= 0) {
        t->ids = array_grow(t->ids, &t->capacity, 1, sizeof *t->ids);
        t->ids[t->n++] = bos;
    }
    status rc = tokenizer_encode(tokenizer, text + first, t->n_bytes, &t->ids, &t->n, &t->capacity);
    free(text);
    TRY(rc);
    if (t->n < 2)
        return ERR(ERR_INPUT, "%s: found %zu tokens in %zu bytes, expected at least 2 to predict one", o->path, t->n,
                   t->n_bytes);
    return OK;
}

/* ---- records ----------------------------------------------------------------------------------------------------- */

/* One more document: its targets are its trained tokens. The last token is only a target. */
static void place_record(text_tokens *t, const chat_tokens *r, size_t at) {
    for (size_t i = 0; i + 1 < r->n; i++) {
        t->ids[at + i] = r->ids[i];
        t->targets[at + i] = r->trained[i + 1] ? r->ids[i + 1] : -1;
        t->doc_start[at + i] = (int32_t)(at % (size_t)t->T);
    }
}

/* Rows in the order of the records; a record that does not fit the rest of a row begins the next one. */
static status lay_out_records(text_tokens *t, const perplexity_options *o, const model_config *c) {
    size_t most = (size_t)(o->seq_len ? MIN(o->seq_len, c->max_positions) : c->max_positions), longest = 1, n_rows = 1,
           used = 0;
    for (size_t i = 0; i < o->n_records; i++) {
        size_t n = o->records[i].n - 1;
        if (o->records[i].n < 2 || n > most) continue;
        longest = MAX(longest, n);
    }
    t->T = (int64_t)longest;
    for (int pass = 0; pass < 2; pass++) {
        used = 0, n_rows = 1, t->n_too_long = 0;
        for (size_t i = 0; i < o->n_records; i++) {
            size_t n = o->records[i].n < 2 ? 0 : o->records[i].n - 1;
            t->n_too_long += n > most;
            if (n == 0 || n > most) continue;
            if (used + n > longest) n_rows++, used = 0;
            if (pass == 1) place_record(t, &o->records[i], (n_rows - 1) * longest + used);
            used += n;
        }
        if (pass == 1) break;
        t->n = n_rows * longest;
        t->ids = mem_alloc(t->n * sizeof *t->ids);
        t->targets = mem_alloc(t->n * sizeof *t->targets);
        t->doc_start = mem_alloc(t->n * sizeof *t->doc_start);
        for (size_t i = 0; i < t->n; i++) t->targets[i] = -1, t->doc_start[i] = (int32_t)(i % longest); /* padding */
    }
    if (t->n_too_long < o->n_records) return OK;
    return ERR(ERR_INPUT, "%s: found no record that fits the %zu positions of %s, expected a shorter one", o->path,
               most, c->name);
}

/* ---- the program -------------------------------------------------------------------------------------------------- */

static status make_request(plan_request *r, const model_source *s, const perplexity_options *o, const text_tokens *t) {
    const model_config *c = &s->config;
    bool records = t->targets != NULL;
    int64_t asked = records ? t->T : o->seq_len, n_rows;
    sys_info machine;
    sys_info_get(&machine);
    *r = (plan_request){
        .source = net_source_of(c),
        .lora = s->lora,
        .base = s->trained_over.format,
        .seq_len = asked ? asked : MIN(c->max_positions, (int64_t)SEQ_LEN),
        .choice = {.precision = o->precision, .micro_batch = o->batch ? o->batch : BATCH, .accumulation = 1},
        .with_eval = true,
        .no_training = true,
        .device_limit = o->device_limit};
    if (r->seq_len < 1 || r->seq_len > c->max_positions)
        return ERR(ERR_INPUT, "%s: windows of %lld tokens, expected 1 to %lld, the model's positions", c->name,
                   (long long)r->seq_len, (long long)c->max_positions);
    /* No more windows at once than there are. */
    n_rows = records ? (int64_t)t->n / t->T : ((int64_t)t->n - 2) / r->seq_len + 1;
    r->choice.micro_batch = MIN(r->choice.micro_batch, n_rows);
    r->target = backend_target(backend_kind(o->backend), o->n_threads ? o->n_threads : machine.n_cores);
    if (!r->device_limit) TRY(backend_memory_limit(o->backend, o->gpu.index, 1, &r->device_limit));
    r->host_bytes = (uint64_t)t->n * (records ? 3 : 1) * sizeof(int32_t) +
                    4 * (uint64_t)(r->choice.micro_batch * r->seq_len) * sizeof(int32_t);
    return OK;
}

/* One micro-batch of windows: tokens, the token after each, and one document per window. */
typedef struct windows {
    int32_t *tokens, *targets, *doc_start;
    float *losses;
    size_t n;
} windows;

static void fill_rows(windows *w, const text_tokens *t, size_t first) {
    for (size_t i = 0; i < w->n; i++) {
        bool there = first + i < t->n;
        w->tokens[i] = there ? t->ids[first + i] : 0;
        w->targets[i] = there ? t->targets[first + i] : -1;
        w->doc_start[i] = there ? t->doc_start[first + i] : (int32_t)(i % (size_t)t->T);
    }
}

static void fill_windows(windows *w, const text_tokens *t, size_t first) {
    for (size_t i = 0; i < w->n; i++) {
        bool there = first + i + 1 < t->n;
        w->tokens[i] = there ? t->ids[first + i] : 0;
        w->targets[i] = there ? t->ids[first + i + 1] : -1;
    }
}

static status run_windows(exec *e, const plan *p, const text_tokens *t, const perplexity_observer *observer,
                          perplexity_report *out) {
    status rc = OK;
    const net *m = &p->net;
    size_t n = (size_t)(p->request.choice.micro_batch * p->request.seq_len), bytes = n * sizeof(int32_t);
    windows w = {mem_alloc(bytes), mem_alloc(bytes), mem_alloc(bytes), mem_alloc(bytes), n};
    bool records = t->targets != NULL;
    uint64_t T = (uint64_t)p->request.seq_len, all = records ? t->n / T : (t->n - 2) / T + 1, done = 0;
    double sum = 0;
    exec_write(e, m->doc_start, 0, w.doc_start, bytes); /* zeros: a window is one document */
    for (size_t at = 0; at + !records < t->n; at += n) {
        if (records) fill_rows(&w, t, at);
        else fill_windows(&w, t, at);
        if (records) exec_write(e, m->doc_start, 0, w.doc_start, bytes);
        exec_write(e, m->tokens, 0, w.tokens, bytes);
        exec_write(e, m->targets, 0, w.targets, bytes);
        TRY_GOTO(rc, exec_run(e, SECTION_EVAL), done);
        exec_read(e, m->eval_losses, 0, w.losses, bytes);
        TRY_GOTO(rc, exec_check(e), done);
        for (size_t i = 0; i < n; i++)
            if (w.targets[i] >= 0) sum += w.losses[i], out->n_predicted++;
        done = MIN(all, done + (uint64_t)p->request.choice.micro_batch);
        if (observer && observer->on_windows && out->n_predicted > 0)
            observer->on_windows(observer->context, done, all, sum / (double)out->n_predicted);
    }
    out->loss = sum / (double)out->n_predicted;
    out->perplexity = exp(out->loss);
    out->bits_per_byte = records ? NAN : sum / M_LN2 / (double)t->n_bytes;
    out->n_too_long = t->n_too_long;
done:
    free(w.tokens);
    free(w.targets);
    free(w.doc_start);
    free(w.losses);
    return rc;
}

static status measure(const perplexity_options *o, const model_source *s, const perplexity_observer *observer,
                      perplexity_report *out) {
    status rc = OK;
    tokenizer *tokenizer = NULL;
    text_tokens t = {0};
    plan_request r;
    plan p = {0};
    exec *e = NULL;
    TRY(model_source_tokenizer(s, &tokenizer));
    TRY_GOTO(rc, o->records ? lay_out_records(&t, o, &s->config) : read_text(&t, o, tokenizer), done);
    TRY_GOTO(rc, make_request(&r, s, o, &t), done);
    TRY_GOTO(rc, plan_build(&p, &r), done);
    if (observer && observer->on_plan) observer->on_plan(observer->context, &p);
    TRY_GOTO(rc, plan_check_fit(&p), done);
    TRY_GOTO(rc,
             exec_open(&e, &p.program,
                       &(exec_options){
                           .backend = o->backend, .gpu = o->gpu, .n_threads = r.target.n_threads, .bind = o->bind}),
             done);
    TRY_GOTO(rc, model_source_load(s, e, &p), done);
    double start = clock_s();
    TRY_GOTO(rc, run_windows(e, &p, &t, observer, out), done);
    out->seconds = clock_s() - start;
    out->n_bytes = t.n_bytes;
    out->n_tokens = t.n;
    out->seq_len = r.seq_len;
    exec_ledger(e, &out->memory);
    if (!isfinite(out->loss)) rc = ERR(ERR_RUN, "%s: the loss on %s is not finite", s->dir, o->path);
done:
    exec_close(e);
    plan_close(&p);
    free(t.ids);
    free(t.targets);
    free(t.doc_start);
    tokenizer_close(tokenizer);
    return rc;
}

status perplexity_measure(const perplexity_options *o, const perplexity_observer *observer, perplexity_report *out) {
    model_source s;
    *out = (perplexity_report){0};
    if (!(o->last > 0 && o->last <= 1))
        return ERR(ERR_INPUT, "share of the text: found %g, expected more than 0, at most 1", o->last);
    TRY(model_source_open(&s, o->source, o->adapter, o->tokenizer));
    status rc =
        s.config.value_head
            ? ERR(ERR_INPUT, "%s is a critic: it gives values to tokens and predicts none; expected a language model",
                  s.dir)
            : measure(o, &s, observer, out);
    model_source_close(&s);
    return rc;
}
