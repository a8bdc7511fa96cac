/* prompts.c - prompts for a model to answer, all in memory: tokens, text and the other fields of their records.
 *
 * Records are read by records.c and written by chat.c, as for training and for `ralo generate`; here is only what a prompt needs
 * beside that. The split is made by record before any is skipped, so a prompt that is held out stays so when the limit of tokens
 * changes. builtin:arithmetic has more problems than fit; of those to train on, the first ARITHMETIC_MOST are taken. */
#include "data/prompts.h"
#include "data/arithmetic.h"
#include "data/examples.h"
#include "data/file_kind.h"
#include "data/record_parts.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { ARITHMETIC_MOST = 20000 }; /* all of two digits; a few megabytes */

typedef struct prompt_row {
    size_t text, n_text; /* in texts */
    size_t token, n_tokens;
    json_t *columns;
} prompt_row;

struct prompt_set {
    prompt_row *rows[2]; /* by split, in the order of the source */
    size_t capacity[2];
    int32_t *tokens; /* of all prompts, one after the other */
    size_t n_tokens, token_capacity;
    strbuf texts;
    uint64_t key; /* of the order */
    uint64_t fingerprint;
    int32_t end;
    prompts_report report;
};

/* ---- adding ---------------------------------------------------------------------------------------------------- */

/* What jansson holds for a value: its sizes as of version 2.14, with what malloc adds. Shared strings are not known here. */
static uint64_t json_bytes(const json_t *v) {
    enum { VALUE = 48, OBJECT = 240, PAIR = 80, ARRAY = 128, ELEMENT = 16 };
    uint64_t n = VALUE;
    size_t i;
    const char *key;
    json_t *part, *own = (json_t *)(uintptr_t)v;
    if (json_is_string(v)) n += json_string_length(v) + 1;
    if (json_is_array(v)) n = ARRAY;
    if (json_is_object(v)) n = OBJECT;
    json_array_foreach(own, i, part) n += ELEMENT + json_bytes(part);
    json_object_foreach(own, key, part) n += PAIR + strlen(key) + json_bytes(part);
    return n;
}

/* Takes the columns. */
static void add_prompt(prompt_set *s, split which, span text, const int32_t *tokens, size_t n, json_t *columns) {
    size_t at = s->report.n[which]++;
    s->rows[which] = array_grow(s->rows[which], &s->capacity[which], at + 1, sizeof **s->rows);
    s->rows[which][at] = (prompt_row){s->texts.length, text.length, s->n_tokens, n, columns};
    strbuf_add_bytes(&s->texts, text.text, text.length);
    s->tokens = array_grow(s->tokens, &s->token_capacity, s->n_tokens + n, sizeof *s->tokens);
    memcpy(s->tokens + s->n_tokens, tokens, n * sizeof *tokens);
    s->n_tokens += n;
    s->report.longest = MAX(s->report.longest, n);
    s->report.bytes += json_bytes(columns);
}

/* ---- builtin:arithmetic ------------------------------------------------------------------------------------------ */

static void add_problem(prompt_set *s, const arithmetic *a, split which, problem q) {
    char text[32];
    int32_t tokens[32];
    int end, n = arithmetic_text(a, q, arithmetic_answer(q), text, &end);
    for (int i = 0; i < n; i++) tokens[i] = (unsigned char)text[i];
    add_prompt(s, which, (span){text, (size_t)n}, tokens, (size_t)n,
               json_pack("{s:s%}", "answer", text + n, (size_t)(end - n)));
}

/* All problems have one length, so one is too long if all are. */
static status add_problems(prompt_set *s, const prompt_options *o) {
    source *base;
    data_options own = *o->data;
    own.seq_len = MAX(own.seq_len, 3 * own.difficulty + 4); /* prompts are in no row */
    TRY(arithmetic_open(&base, &own));
    const arithmetic *a = (const arithmetic *)base;
    int64_t n_prompt = 2 * own.difficulty + 2;
    status rc = OK;
    if (n_prompt > o->longest)
        rc = ERR(ERR_INPUT, "builtin:arithmetic: the prompts have %lld tokens, expected at most %lld%s%s",
                 (long long)n_prompt, (long long)o->longest, o->advice ? "; " : "", o->advice ? o->advice : "");
    problem *trained = NULL;
    size_t n = rc == OK ? arithmetic_collect(a, SPLIT_TRAIN, ARITHMETIC_MOST, &trained) : 0;
    for (size_t i = 0; i < n; i++) add_problem(s, a, SPLIT_TRAIN, trained[i]);
    for (size_t i = 0; i < a->n_held_out && rc == OK; i++) add_problem(s, a, SPLIT_EVAL, a->held_out[i]);
    free(trained);
    arithmetic_close(base);
    s->end = TOKEN_EOS;
    return rc;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

typedef struct reading {
    prompt_set *set;
    const prompt_options *options;
    const tokenizer *t;
    const chat *chat;
    chat_tokens tokens;
    strbuf text;
} reading;

/* A prompt is as the model gets it: of a conversation, with everything that the chat format writes. */
static status find_text(reading *s, const data_record *r, span *out) {
    bool plain = r->kind == RECORD_PAIR && chat_format_of(s->chat) == CHAT_NONE;
    *out = r->kind == RECORD_TEXT ? r->text : r->prompt;
    if (plain || r->kind == RECORD_TEXT) return OK;
    s->text.length = 0;
    strbuf_add(&s->text, "");
    TRY(tokenizer_decode_with(s->t, s->tokens.ids, s->tokens.n, DECODE_KEEP_SPECIALS, &s->text));
    *out = (span){s->text.text, s->text.length};
    return OK;
}

static status find_columns(const data_record *r, json_t **out) {
    json_t *columns = json_copy(r->object);
    for (size_t i = 0; i < ARRAY_LENGTH(r->prompt_keys); i++)
        if (r->prompt_keys[i]) json_object_del(columns, r->prompt_keys[i]);
    *out = columns;
    if (!r->has_rounded_numbers || !json_has_number(columns)) return OK;
    json_decref(columns);
    *out = NULL;
    return ERR(ERR_INPUT,
               "%s:%llu: found an integer of more than 64 bits, expected a smaller one; write it as a string" SKIP_HINT,
               r->path, (unsigned long long)r->line);
}

static status check_length(reading *s, const data_record *r, bool *skip) {
    const prompt_options *o = s->options;
    *skip = false;
    if (s->tokens.n == 0)
        return ERR(ERR_INPUT, "%s:%llu: found an empty prompt, expected at least one token" SKIP_HINT, r->path,
                   (unsigned long long)r->line);
    if ((int64_t)s->tokens.n <= o->longest) return OK;
    *skip = o->skip_long;
    if (!*skip)
        return ERR(ERR_INPUT, "%s:%llu: the prompt has %zu tokens, expected at most %lld%s%s", r->path,
                   (unsigned long long)r->line, s->tokens.n, (long long)o->longest, o->advice ? "; " : "",
                   o->advice ? o->advice : "");
    s->set->report.n_skipped++;
    return OK;
}

static status add_record(reading *s, const data_record *r, split which) {
    bool skip;
    span text;
    json_t *columns;
    s->tokens.n = 0;
    TRY(chat_encode_prompt(s->chat, r, &s->tokens));
    TRY(check_length(s, r, &skip));
    if (skip) return OK;
    TRY(find_text(s, r, &text));
    TRY(find_columns(r, &columns));
    add_prompt(s->set, which, text, s->tokens.ids, s->tokens.n, columns);
    return OK;
}

/* A prompt that is too long is no invalid record: data.on_error does not skip it. */
static bool may_skip(const reading *s, status rc) {
    bool too_long = (int64_t)s->tokens.n > s->options->longest;
    return rc == ERR_INPUT && !too_long && s->options->data->records.on_error == RECORDS_SKIP;
}

static status read_file(reading *s, const char *path, bool only_eval) {
    record_options o = s->options->data->records;
    o.may_lack_response = o.ignores_response = true;
    records *file;
    TRY(records_open(&file, path, &o));
    record_skips skips = {records_skipped(file)};
    double held_out = data_held_out(s->options->data);
    uint64_t n = records_count(file), n_eval = (uint64_t)((double)n * held_out);
    if (held_out > 0 && n > 1) n_eval = MAX(n_eval, 1);
    if (only_eval) n_eval = n;
    status rc = OK;
    for (uint64_t i = 0; i < n && rc == OK; i++) {
        data_record r;
        rc = records_get(file, i, &r);
        if (rc != OK) break;
        rc = add_record(s, &r, i < n - n_eval ? SPLIT_TRAIN : SPLIT_EVAL);
        if (rc == OK || !may_skip(s, rc)) continue;
        record_skips_add(&skips);
        rc = OK;
    }
    s->set->report.n_invalid += skips.n;
    records_close(file);
    return rc;
}

static status check_files(const data_options *o, const char *setting, const file_entry *entries, size_t n) {
    for (size_t i = 0; i < n; i++) {
        TRY(data_check_file(setting, entries[i].path));
        if (!data_is_record_file(o, entries[i].path))
            return ERR(ERR_INPUT,
                       "data.source: found a text file, %s, expected prompts as JSON Lines or a table (.jsonl, .csv, "
                       "or data.format)",
                       entries[i].path);
        if (entries[i].weight > 0)
            return ERR(ERR_INPUT,
                       "data.source: found a weight for %s, expected none: every prompt is used once in an epoch",
                       entries[i].path);
    }
    return OK;
}

static status read_eval_files(reading *s) {
    const data_options *d = s->options->data;
    file_entry *entries = NULL;
    size_t n = 0;
    status rc = file_list_parse_eval(d->eval_source, &entries, &n);
    if (rc == OK) rc = check_files(d, "data.eval_source", entries, n);
    for (size_t i = 0; i < n && rc == OK; i++) rc = read_file(s, entries[i].path, true);
    file_list_free(entries, n);
    return rc;
}

static status read_files(prompt_set *set, const tokenizer *t, const char *tokenizer_name, const prompt_options *o) {
    const data_options *d = o->data;
    reading s = {.set = set, .options = o, .t = t};
    file_entry *entries = NULL;
    size_t n = 0;
    chat *c = NULL;
    status rc = OK;
    TRY_GOTO(rc, file_list_parse(d->source, &entries, &n), done);
    TRY_GOTO(rc, check_files(d, "data.source", entries, n), done);
    TRY_GOTO(rc, chat_open(&c, t, tokenizer_name, &(chat_options){.format = d->chat, .kwargs = d->chat_kwargs}), done);
    s.chat = c;
    set->end = chat_end_of_turn(c);
    for (size_t i = 0; i < n; i++) TRY_GOTO(rc, read_file(&s, entries[i].path, false), done);
    if (data_has_eval_source(d)) TRY_GOTO(rc, read_eval_files(&s), done);
done:
    chat_close(c);
    chat_tokens_free(&s.tokens);
    strbuf_fini(&s.text);
    file_list_free(entries, n);
    return rc;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static status check_options(const tokenizer *t, const prompt_options *o) {
    const data_options *d = o->data;
    if (!d->source || !*d->source)
        return ERR(ERR_INPUT, "data.source: found nothing, expected builtin:arithmetic or files of JSON Lines");
    if (!(d->eval_fraction >= 0 && d->eval_fraction < 1)) /* a NaN is refused too */
        return ERR(ERR_INPUT, "data.eval_fraction: found %g, expected 0 up to (not including) 1", d->eval_fraction);
    TRY(example_columns_check(&(data_options){.records = d->records}));
    if (!str_starts_with(d->source, "builtin:")) return OK;
    if (strcmp(d->source, "builtin:arithmetic") != 0)
        return ERR(ERR_INPUT,
                   "data.source: found %.200s, expected builtin:arithmetic or files of JSON Lines: other "
                   "built-in sources have no prompts with an answer to find",
                   d->source);
    if (tokenizer_is_byte(t)) return OK;
    return ERR(ERR_INPUT,
               "data: found another tokenizer than 'byte' with %s, expected 'byte': built-in sources are bytes",
               d->source);
}

static status check_sizes(const prompt_set *s, const prompt_options *o) {
    const prompts_report *r = &s->report;
    bool lacks_eval = data_evaluates(o->data) && r->n[SPLIT_EVAL] == 0;
    if (r->n[SPLIT_TRAIN] > 0 && !lacks_eval) return OK;
    /* More of the same length would be skipped too. */
    if (r->n_skipped > 0 && r->n[SPLIT_TRAIN] == 0)
        return ERR(ERR_INPUT,
                   "%.500s: found no prompt for training of at most %lld tokens (%llu have more and are skipped, %llu "
                   "lines are no records), expected at least one%s%s",
                   o->data->source, (long long)o->longest, (unsigned long long)r->n_skipped,
                   (unsigned long long)r->n_invalid, o->advice_all ? "; " : "", o->advice_all ? o->advice_all : "");
    return ERR(ERR_INPUT,
               "%.500s: found %llu prompts for training and %llu for evaluation (%llu have more than %lld tokens and "
               "are skipped, %llu lines are no records), expected at least one of each; give more prompts%s",
               o->data->source, (unsigned long long)r->n[SPLIT_TRAIN], (unsigned long long)r->n[SPLIT_EVAL],
               (unsigned long long)r->n_skipped, (long long)o->longest, (unsigned long long)r->n_invalid,
               lacks_eval ? ", or set data.eval_fraction=0 for no evaluation" : "");
}

static void hash_bytes(XXH3_state_t *state, const void *bytes, size_t n) {
    ASSERT(XXH3_64bits_update(state, bytes, n) == XXH_OK);
}

/* Lengths before contents: "ab", "c" is another set than "a", "bc". */
static uint64_t fingerprint_of(const prompt_set *s) {
    XXH3_state_t *state = XXH3_createState();
    ASSERT(state && XXH3_64bits_reset(state) == XXH_OK);
    for (split which = SPLIT_TRAIN; which <= SPLIT_EVAL; which++) {
        hash_bytes(state, &s->report.n[which], sizeof s->report.n[which]);
        for (size_t i = 0; i < s->report.n[which]; i++) {
            const prompt_row *r = &s->rows[which][i];
            char *columns = json_dumps(r->columns, JSON_COMPACT | JSON_SORT_KEYS);
            if (!columns) mem_refused(0);
            uint64_t sizes[2] = {r->n_tokens, strlen(columns)};
            hash_bytes(state, sizes, sizeof sizes);
            hash_bytes(state, s->tokens + r->token, r->n_tokens * sizeof *s->tokens);
            hash_bytes(state, columns, strlen(columns));
            free(columns);
        }
    }
    uint64_t hash = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    return hash;
}

status prompts_open(prompt_set **out, const tokenizer *t, const char *tokenizer_name, const prompt_options *o) {
    status rc = OK;
    prompt_set *s = mem_alloc(sizeof *s);
    *out = NULL;
    s->key = rng_key(o->data->seed, "data.prompts.train");
    TRY_GOTO(rc, check_options(t, o), fail);
    TRY_GOTO(rc,
             str_starts_with(o->data->source, "builtin:") ? add_problems(s, o) : read_files(s, t, tokenizer_name, o),
             fail);
    TRY_GOTO(rc, check_sizes(s, o), fail);
    s->report.bytes += sizeof *s + s->texts.capacity + s->token_capacity * sizeof *s->tokens +
                       (s->capacity[0] + s->capacity[1]) * sizeof **s->rows;
    s->fingerprint = fingerprint_of(s);
    *out = s;
    return OK;
fail:
    prompts_close(s);
    return rc;
}

void prompts_close(prompt_set *s) {
    if (!s) return;
    for (int which = 0; which < 2; which++) {
        for (size_t i = 0; i < s->report.n[which]; i++) json_decref(s->rows[which][i].columns);
        free(s->rows[which]);
    }
    free(s->tokens);
    strbuf_fini(&s->texts);
    free(s);
}

void prompts_report_get(const prompt_set *s, prompts_report *out) { *out = s->report; }
uint64_t prompts_fingerprint(const prompt_set *s) { return s->fingerprint; }
int32_t prompts_end(const prompt_set *s) { return s->end; }

prompt_record prompts_get(const prompt_set *s, split which, uint64_t position) {
    uint64_t n = s->report.n[which];
    ASSERT(n > 0);
    uint64_t i = position % n;
    if (which == SPLIT_TRAIN) i = rng_permute(rng_u64(s->key, position / n), i, n);
    const prompt_row *r = &s->rows[which][i];
    return (prompt_record){{s->texts.text + r->text, r->n_text}, s->tokens + r->token, r->n_tokens, r->columns};
}
