/* tokenize.c - one file through the tokenizer into its store, in pieces, on all threads.
 *
 * JSON Lines and tables: a batch of lines at a time; a task parses one line and encodes it, and the results are taken in the order
 * of the lines, so neither the tokens nor the first error depend on the threads.
 * Text: blocks that together give the ids of the whole; see blocks.c. */
#include "data/examples.h"
#include "data/file_kind.h"
#include "data/lines.h"
#include "data/source.h"
#include "data/store.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { BLOCK_BYTES = 1 << 20, OVERLAP_BYTES = 4096, BATCH_LINES = 2048, BATCH_BYTES = 8 << 20, SAY_EVERY_S = 5 };

/* ---- the job ------------------------------------------------------------------------------------------------- */

static status hash_tokenizer(const data_options *o, const tokenizer *t, XXH3_state_t *state) {
    char path[PATH_MAX], *text;
    size_t n_bytes;
    file_stamp stamp;
    if (tokenizer_is_byte(t)) return OK;
    TRY(file_stamp_get(o->tokenizer, &stamp));
    snprintf(path, sizeof path, "%s%s", o->tokenizer, stamp.is_regular ? "" : "/tokenizer.json");
    TRY(file_read_all(path, (size_t)1 << 30, &text, &n_bytes));
    ASSERT(XXH3_128bits_update(state, text, n_bytes) == XXH_OK);
    free(text);
    return OK;
}

enum { ENCODER_VERSION = 5 }; /* increase when ids change: cached tokens are then built again */

/* What changes tokens: this code, the tokenizer's file, its specials, the chat format, what is read of a record. */
static status hash_identity(tokenize_job *j) {
    const data_options *o = j->options;
    const record_options *r = &o->records;
    strbuf text;
    strbuf_init(&text);
    XXH3_state_t *state = XXH3_createState();
    ASSERT(state && XXH3_128bits_reset(state) == XXH_OK);
    status rc = hash_tokenizer(o, j->tokenizer, state);
    strbuf_printf(&text, "|encoder %d, vocab %lld, bos %d, eos %d, on %d, line %llu, columns '%s' '%s', ",
                  ENCODER_VERSION, (long long)tokenizer_vocab(j->tokenizer), tokenizer_bos(j->tokenizer),
                  tokenizer_eos(j->tokenizer), (int)o->train_on,
                  (unsigned long long)(r->max_line ? r->max_line : RECORD_MAX_LINE),
                  r->prompt_column ? r->prompt_column : "", r->response_column ? r->response_column : "");
    if (o->kind != DATA_TEXT)
        strbuf_printf(&text, "kind %d, '%s' '%s' '%s', ", (int)o->kind, r->chosen_column ? r->chosen_column : "",
                      r->rejected_column ? r->rejected_column : "", r->label_column ? r->label_column : "");
    if (r->correct_column && *r->correct_column) strbuf_printf(&text, "correct '%s', ", r->correct_column);
    if (o->token_type != TOKEN_TYPE_AUTO) strbuf_printf(&text, "ids %d, ", (int)o->token_type);
    if (o->kind == DATA_SOLUTIONS)
        strbuf_printf(&text, "task '%s', difficulty '%s', pairs %lld and %lld, seed %llu, ",
                      r->task_column ? r->task_column : "", r->difficulty_column ? r->difficulty_column : "",
                      (long long)o->pairs_per_problem, (long long)o->max_pairs, (unsigned long long)o->seed);
    chat_describe(j->chat, &text);
    ASSERT(XXH3_128bits_update(state, text.text, text.length) == XXH_OK);
    XXH128_hash_t h = XXH3_128bits_digest(state);
    j->identity = (hash128){h.low64, h.high64};
    XXH3_freeState(state);
    strbuf_fini(&text);
    return rc;
}

status tokenize_job_open(tokenize_job *j, const data_options *o, const tokenizer *t, const chat *c) {
    *j = (tokenize_job){.options = o,
                        .tokenizer = t,
                        .chat = c,
                        .block_bytes = BLOCK_BYTES,
                        .overlap_bytes = OVERLAP_BYTES,
                        .report_every_s = SAY_EVERY_S};
    strbuf_init(&j->cache_directory);
    j->cache_is_auto = o->cache && strcmp(o->cache, "auto") == 0;
    cache_directory(o->cache, &j->cache_directory);
    return hash_identity(j);
}

void tokenize_job_close(tokenize_job *j) {
    if (j->threads) pool_close(j->threads);
    strbuf_fini(&j->cache_directory);
}

static status open_threads(tokenize_job *j) {
    return j->threads ? OK : pool_open(&j->threads, j->options->n_threads, false);
}

/* Large files take minutes, once: print what the time is spent on. */
void tokenize_say_how_far(tokenize_job *j, const reader *in) {
    char done[32], all[32];
    if (clock_s() - j->reported_s < j->report_every_s) return;
    j->reported_s = clock_s();
    uint64_t at = in->packed == PACKING_NONE ? in->offset : in->n_read;
    str_format_bytes(done, at);
    if (in->stamp.is_regular && in->stamp.n_bytes > 0)
        log_info("tokenizing %s: %.0f %%, %s of %s", in->path, 100 * (double)at / (double)in->stamp.n_bytes, done,
                 str_format_bytes(all, in->stamp.n_bytes));
    else log_info("tokenizing %s: %s", in->path, done);
}

/* ---- records ------------------------------------------------------------------------------------------------- */

typedef struct batch_line {
    size_t offset, length; /* in the batch's text */
    uint64_t number, n_bytes;
    bool too_long, is_wrong;
    bool has_prompt;
    bool is_undesirable;                 /* DATA_LABELLED */
    bool is_incorrect;                   /* DATA_TEXT: not to be imitated, it has no documents */
    solution_keys keys;                  /* DATA_SOLUTIONS */
    size_t n_documents;                  /* 1; of a pair 2 */
    chat_tokens tokens[EXAMPLE_RECORDS]; /* per document */
    error_record *error;                 /* NULL: it is a record */
} batch_line;

typedef struct line_batch {
    tokenize_job *job;
    const char *path;
    strbuf text;
    batch_line *lines;
    size_t n, capacity;
    example_parser *parsers; /* one per thread */
    solution_set *solutions; /* DATA_SOLUTIONS; else NULL */
} line_batch;

static status encode_example_line(line_batch *b, batch_line *l, example_parser *p) {
    data_example e;
    TRY(example_parse(p, b->text.text + l->offset, l->length, b->path, l->number, b->job->options, &e));
    l->has_prompt = true;
    l->is_undesirable = e.is_undesirable;
    l->n_documents = e.n;
    l->keys = e.keys;
    return example_encode(b->job->chat, &e, l->tokens);
}

static status encode_line(line_batch *b, batch_line *l, example_parser *p) {
    const data_options *o = b->job->options;
    data_record r;
    line seen = {{b->text.text + l->offset, l->length}, l->number, 0, l->n_bytes, l->too_long, l->is_wrong};
    TRY(record_line_check(b->path, &seen, &o->records));
    if (o->kind != DATA_TEXT) return encode_example_line(b, l, p);
    TRY(record_parse(&p->parsers[0], b->text.text + l->offset, l->length, b->path, l->number, &o->records, &r));
    l->has_prompt = r.kind != RECORD_TEXT;
    bool imitated;
    TRY(solution_may_imitate(r.object, &o->records, b->path, l->number, &imitated));
    l->is_incorrect = !imitated;
    if (!imitated) return OK;
    l->n_documents = 1;
    return chat_encode(b->job->chat, &r, o->train_on, &l->tokens[0]);
}

static void encode_task(void *context, int64_t task, int thread) {
    line_batch *b = context;
    batch_line *l = &b->lines[task];
    if (encode_line(b, l, &b->parsers[thread]) == OK) return;
    l->error = mem_alloc(sizeof *l->error);
    error_take(l->error);
}

static status read_batch(line_batch *b, record_lines *in, bool *more) {
    b->text.length = 0;
    b->n = 0;
    while (b->n < BATCH_LINES && b->text.length < BATCH_BYTES) {
        line l;
        TRY(record_lines_next(in, &l, more));
        if (!*more) return OK;
        if (!l.too_long && record_line_is_empty(l.text.text, l.text.length)) continue;
        b->lines = array_grow(b->lines, &b->capacity, b->n + 1, sizeof *b->lines);
        b->lines[b->n++] = (batch_line){.offset = b->text.length,
                                        .length = l.text.length,
                                        .number = l.number,
                                        .n_bytes = l.n_bytes,
                                        .too_long = l.too_long,
                                        .is_wrong = l.is_wrong};
        strbuf_add_bytes(&b->text, l.text.text, l.text.length);
    }
    return OK;
}

/* A file holds texts or records with prompts: they are laid out in rows in different ways. */
static status check_kind(const line_batch *b, const batch_line *l, const token_store *s) {
    if (s->n_documents == 0 || l->has_prompt == s->has_prompts) return OK;
    return ERR(ERR_INPUT,
               "%s:%llu: found a record %s prompt in a file of records %s, expected one kind in a file; put them into "
               "two files, or leave these out with data.on_error=skip",
               b->path, (unsigned long long)l->number, l->has_prompt ? "with a" : "without",
               s->has_prompts ? "with a prompt" : "without");
}

/* A model that never saw an end token generates until it is cut. */
static status check_end(const line_batch *b, const batch_line *l) {
    const data_options *o = b->job->options;
    int32_t end = l->has_prompt ? chat_end_of_turn(b->job->chat) : tokenizer_eos(b->job->tokenizer);
    if (end >= 0 || (o->eos_token && strcmp(o->eos_token, "none") == 0)) return OK;
    return ERR(
        ERR_INPUT,
        "%s: there is no end-of-text token for its records: %s names none (eos_token in a tokenizer_config.json beside "
        "it) and has none of the usual ones; set data.eos_token to one of its tokens, or to none to train without",
        b->path, o->tokenizer);
}

static status take_line(line_batch *b, batch_line *l, store_builder *out) {
    if (l->error) return error_give(l->error);
    if (b->solutions) return solution_set_add(b->solutions, &l->tokens[0], &l->keys, l->number);
    out->store->n_incorrect += l->is_incorrect;
    if (l->is_incorrect) return OK;
    TRY(check_kind(b, l, out->store));
    if (out->store->n_documents == 0) out->store->has_prompts = l->has_prompt;
    for (size_t i = 0; i < l->n_documents; i++) {
        TRY(store_add(out, l->tokens[i].ids, l->tokens[i].trained, l->tokens[i].n));
        store_end_document(out);
    }
    if (l->is_undesirable) store_mark_undesirable(out);
    return OK;
}

static void free_lines(line_batch *b, size_t from) {
    for (size_t i = from; i < b->n; i++) {
        for (size_t k = 0; k < EXAMPLE_RECORDS; k++) chat_tokens_free(&b->lines[i].tokens[k]);
        free(b->lines[i].error);
    }
    b->n = from;
}

static status take_batch(line_batch *b, store_builder *out, record_skips *skips) {
    bool skip = b->job->options->records.on_error == RECORDS_SKIP;
    for (size_t i = 0; i < b->n; i++) {
        if (out->store->n_documents == 0 && !b->lines[i].error && !b->lines[i].is_incorrect)
            TRY(check_end(b, &b->lines[i])); /* all would be skipped */
        status rc = take_line(b, &b->lines[i], out);
        if (rc == OK) continue;
        if (rc != ERR_INPUT || !skip) return rc;
        record_skips_add(skips);
    }
    return OK;
}

static status no_record(const char *path, const record_options *o, const token_store *s) {
    char skipped[48];
    if (s->n_incorrect)
        return ERR(ERR_INPUT,
                   "%s: found %llu records, all of which say that they are not correct (is_correct), and %llu invalid "
                   "lines, expected some that are correct: only those are imitated",
                   path, (unsigned long long)s->n_incorrect, (unsigned long long)s->n_skipped);
    return ERR(ERR_INPUT, "%s: found no record%s, expected %s", path, record_skips_text(s->n_skipped, skipped),
               record_file_expected(path, o));
}

static status tokenize_lines(tokenize_job *j, reader *in, store_builder *out) {
    status rc = OK;
    record_skips skips = {0};
    solution_set solutions = {0};
    bool are_solutions = j->options->kind == DATA_SOLUTIONS;
    record_lines lines = {0};
    TRY(open_threads(j));
    if (are_solutions) TRY(solution_set_open(&solutions, out->store->width));
    out->store->kind = j->options->kind;
    size_t n_threads = (size_t)pool_threads(j->threads);
    line_batch b = {.job = j,
                    .path = in->path,
                    .parsers = mem_alloc(n_threads * sizeof *b.parsers),
                    .solutions = are_solutions ? &solutions : NULL};
    TRY_GOTO(rc, record_lines_open(&lines, in, &j->options->records), done);
    for (bool more = true; more;) {
        TRY_GOTO(rc, read_batch(&b, &lines, &more), done);
        pool_run(j->threads, encode_task, &b, (int64_t)b.n);
        TRY_GOTO(rc, take_batch(&b, out, &skips), done);
        free_lines(&b, 0);
        tokenize_say_how_far(j, in);
    }
    out->store->n_skipped = skips.n;
    if (are_solutions && solutions.store.n_documents > 0)
        TRY_GOTO(rc, solution_set_write(&solutions, j->options, in->path, out), done);
    if (out->store->n_documents == 0) rc = no_record(in->path, &j->options->records, out->store);
done:
    record_lines_close(&lines);
    solution_set_close(&solutions);
    free_lines(&b, 0);
    for (size_t i = 0; i < n_threads; i++) example_parser_close(&b.parsers[i]);
    free(b.parsers);
    free(b.lines);
    strbuf_fini(&b.text);
    return rc;
}

/* ---- text ---------------------------------------------------------------------------------------------------- */

static status copy_bytes(reader *in, store_builder *out) {
    for (;;) {
        span text;
        TRY(reader_peek(in, 1, &text));
        if (text.length == 0) return OK;
        TRY(store_add_bytes(out, text.text, text.length));
        reader_consume(in, text.length);
    }
}

static status tokenize_text(tokenize_job *j, reader *in, store_builder *out) {
    out->store->is_text = true;
    if (out->store->width == 1) {
        TRY(copy_bytes(in, out));
    } else {
        TRY(open_threads(j));
        TRY(tokenize_blocks(j, in, out));
    }
    if (in->offset == 0 || out->store->n_tokens == 0)
        return ERR(ERR_INPUT, "%s: found an empty file, expected text to train on", in->path);
    store_end_document(out);
    return OK;
}

/* ---- a file -------------------------------------------------------------------------------------------------- */

static status tokenize_as(tokenize_job *j, data_format format, reader *in, store_builder *out) {
    switch (format) {
    case FORMAT_TEXT: return tokenize_text(j, in, out);
    case FORMAT_TOKENS: return tokenize_ids(j, in, out);
    default: return tokenize_lines(j, in, out);
    }
}

static status build(tokenize_job *j, const char *path, data_format format, cache_slot *slot, token_store *out) {
    status rc = OK;
    reader in;
    hash128 source_hash;
    store_builder b = {0};
    bool is_text = format == FORMAT_TEXT;
    uint32_t width = store_width(j->tokenizer, is_text);
    TRY(reader_open(&in, path));
    j->reported_s = clock_s();
    TRY_GOTO(rc, data_refuse_kind(&in, &j->options->records), done);
    TRY_GOTO(rc, store_builder_open(&b, out, width, slot, width == 1 ? in.stamp.n_bytes : 0), done);
    TRY_GOTO(rc, tokenize_as(j, format, &in, &b), done);
    TRY_GOTO(rc, reader_finish(&in, &source_hash), done);
    TRY_GOTO(rc, store_builder_finish(&b), done);
    if (slot) TRY_GOTO(rc, cache_commit(slot, &in.stamp, source_hash, out), done);
done:
    store_builder_close(&b);
    if (rc != OK) *out = (token_store){0};
    reader_close(&in);
    return rc;
}

static hash128 slot_key(const tokenize_job *j, const char *path, data_format format) {
    static const char *const names[] = {[FORMAT_TEXT] = "text",
                                        [FORMAT_JSONL] = "jsonl",
                                        [FORMAT_CSV] = "csv",
                                        [FORMAT_TSV] = "tsv",
                                        [FORMAT_TOKENS] = "tokens"};
    char *absolute = realpath(path, NULL);
    strbuf text;
    strbuf_init(&text);
    strbuf_printf(&text, "%016llx%016llx|%s|%s", (unsigned long long)j->identity.high,
                  (unsigned long long)j->identity.low, names[format], absolute ? absolute : path);
    XXH128_hash_t h = XXH3_128bits(text.text, text.length);
    strbuf_fini(&text);
    free(absolute);
    return (hash128){h.low64, h.high64};
}

static status tokenize_cached(tokenize_job *j, const char *path, data_format format, const file_stamp *stamp,
                              token_store *out) {
    bool found, strict = j->options->records.on_error == RECORDS_STOP;
    cache_slot slot;
    cache_slot_init(&slot, j->cache_directory.text, slot_key(j, path, format));
    slot.kind = data_stored_kind(j->options->kind);
    status rc = cache_load(&slot, path, stamp, tokenizer_vocab(j->tokenizer), strict, out, &found);
    if (rc == OK && !found) {
        rc = cache_begin(&slot);
        if (rc == OK) rc = build(j, path, format, &slot, out);
    }
    bool in_memory = rc != OK && slot.failed && j->cache_is_auto;
    cache_slot_fini(&slot);
    if (!in_memory) return rc;
    log_warn("%s; tokens are kept in memory only", error_message());
    error_clear();
    j->cache_directory.length = 0; /* the next file need not try */
    return build(j, path, format, NULL, out);
}

/* Bytes are their own tokens: nothing is saved by keeping them twice, unless they are packed or a directory was named for it. */
static bool is_worth_keeping(const tokenize_job *j, const char *path, data_format format) {
    bool are_bytes = format == FORMAT_TEXT && tokenizer_is_byte(j->tokenizer) && !reader_is_packed(path);
    return j->cache_directory.length > 0 && !(j->cache_is_auto && are_bytes);
}

status tokenize_file(tokenize_job *j, const char *path, data_format format, token_store *out) {
    file_stamp stamp;
    TRY(file_stamp_get(path, &stamp));
    if (stamp.is_regular && is_worth_keeping(j, path, format)) return tokenize_cached(j, path, format, &stamp, out);
    return build(j, path, format, NULL, out);
}
