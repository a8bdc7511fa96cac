/* dataset.c - open a source by name with its tokenizer, and answer queries about them.
 *
 * Options are checked here once; what only one kind of source knows (difficulty, file sizes) is checked where it is
 * opened. A data set is immutable: several threads may read rows at the same time. */
#include "data/prompts.h"
#include "data/solutions.h"
#include "data/source.h"

#include <math.h>
#include <stdlib.h>

enum { SEQ_LEN_MAX = 1 << 24 }; /* positions in a row are kept in 32 bits, with room for sums of them */

struct dataset {
    source *source;
    tokenizer *tokenizer;
    data_kind kind;
    bool shares_prompts;
};

static const struct {
    const char *name;
    status (*open)(source **out, const data_options *o);
    bool has_problems, has_difficulty;
    unsigned kinds; /* of data that it has: 1 << data_kind */
} builtins[] = {
    {"builtin:arithmetic", arithmetic_open, true, true, 1 << DATA_TEXT},
    {"builtin:grammar", grammar_open, false, false, 1 << DATA_TEXT},
    {"builtin:random", random_open, false, false, 1 << DATA_TEXT},
    {"builtin:preferences", preferences_open, true, true, 1 << DATA_PAIRS | 1 << DATA_LABELLED},
    {BUILTIN_SOLUTIONS, NULL, true, true, 1 << DATA_TEXT | 1 << DATA_PAIRS | 1 << DATA_SOLUTIONS},
};

bool data_source_has_difficulty(const char *source) {
    for (size_t i = 0; i < ARRAY_LENGTH(builtins); i++)
        if (strcmp(source, builtins[i].name) == 0) return builtins[i].has_difficulty;
    return false;
}

bool data_source_has_problems(const char *source) {
    for (size_t i = 0; i < ARRAY_LENGTH(builtins); i++)
        if (strcmp(source, builtins[i].name) == 0) return builtins[i].has_problems;
    return false;
}

static status unknown_builtin(const char *name) {
    strbuf known;
    strbuf_init(&known);
    for (size_t i = 0; i < ARRAY_LENGTH(builtins); i++) strbuf_printf(&known, "%s%s", i ? ", " : "", builtins[i].name);
    status rc = ERR(ERR_INPUT, "data source: found '%.200s', expected one of %s, or files", name, known.text);
    strbuf_fini(&known);
    return rc;
}

static status wrong_builtin(data_kind kind) {
    if (kind == DATA_SOLUTIONS)
        return ERR(ERR_INPUT, "data.source: found a built-in source without solutions of problems, expected "
                              "builtin:solutions, or files of JSON Lines with is_correct and task_id");
    if (kind == DATA_TEXT)
        return ERR(ERR_INPUT, "data.source: found builtin:preferences, expected a source of single answers: pairs are "
                              "for train.task=preference; builtin:arithmetic has the same problems");
    return ERR(ERR_INPUT, "data.source: found a built-in source without preferences, expected builtin:preferences, or "
                          "files of JSON Lines");
}

static status open_source(source **out, const data_options *o, const tokenizer *t) {
    if (!o->source || !o->source[0])
        return ERR(ERR_INPUT, "data source: found nothing, expected a built-in source or files");
    bool is_chosen = o->seq_len == 0;
    if (!is_chosen && (o->seq_len < 2 || o->seq_len > SEQ_LEN_MAX))
        return ERR(ERR_INPUT, "data: found rows of %lld tokens (seq_len), expected 2 to %d", (long long)o->seq_len,
                   SEQ_LEN_MAX);
    if (!(o->eval_fraction >= 0 && o->eval_fraction < 1)) /* a NaN is refused too */
        return ERR(ERR_INPUT, "data: found an eval_fraction of %g, expected 0 up to (not including) 1",
                   o->eval_fraction);
    if (data_has_eval_source(o) && str_starts_with(o->source, "builtin:"))
        return ERR(ERR_INPUT,
                   "data.eval_source: found %.200s beside %s, expected none: built-in sources have their own "
                   "rows for evaluation",
                   o->eval_source, o->source);
    if (o->kind == DATA_PROMPTS) return prompt_source_open(out, o, t);
    for (size_t i = 0; i < ARRAY_LENGTH(builtins); i++) {
        if (strcmp(o->source, builtins[i].name) != 0) continue;
        if (!tokenizer_is_byte(t))
            return ERR(ERR_INPUT,
                       "data: found the tokenizer '%.200s' with %s, expected 'byte': built-in sources are bytes",
                       o->tokenizer, o->source);
        if (!(builtins[i].kinds >> o->kind & 1)) return wrong_builtin(o->kind);
        data_options own = *o;
        if (is_chosen) own.seq_len = SEQ_LEN_BUILTIN;
        return builtins[i].open ? builtins[i].open(out, &own) : files_open(out, &own, t);
    }
    if (str_starts_with(o->source, "builtin:")) return unknown_builtin(o->source);
    return files_open(out, o, t);
}

uint64_t dataset_host_bytes(const dataset *d) { return d->source->n_bytes; }

uint64_t dataset_host_bytes_at_most(const data_options *o) {
    if (strcmp(o->source, BUILTIN_SOLUTIONS) == 0) return builtin_solutions_bytes(o);
    if (str_starts_with(o->source, "builtin:")) return 0;
    return files_host_bytes_at_most(o);
}

status dataset_open(dataset **out, const data_options *o) {
    status rc = OK;
    dataset *d = mem_alloc(sizeof *d);
    *out = NULL;
    TRY_GOTO(rc, tokenizer_open(&d->tokenizer, o->tokenizer), fail);
    TRY_GOTO(rc, tokenizer_set_eos(d->tokenizer, o->eos_token), fail);
    TRY_GOTO(rc, open_source(&d->source, o, d->tokenizer), fail);
    d->kind = o->kind;
    d->shares_prompts = o->share_prompts;
    *out = d;
    return OK;
fail:
    dataset_close(d);
    return rc;
}

void dataset_close(dataset *d) {
    if (!d) return;
    if (d->source) d->source->kind->close(d->source);
    if (d->tokenizer) tokenizer_close(d->tokenizer);
    free(d);
}

const tokenizer *dataset_tokenizer(const dataset *d) { return d->tokenizer; }

void dataset_report(const dataset *d, split s, data_report *out) {
    *out = (data_report){.entropy_per_token = NAN};
    d->source->kind->report(d->source, s, out);
}

void dataset_row(const dataset *d, split s, uint64_t index, int32_t *tokens, int32_t *targets, int32_t *doc_start) {
    dataset_row_get(d, s, index, &(data_row){.tokens = tokens, .targets = targets, .doc_start = doc_start});
}

void dataset_row_get(const dataset *d, split s, uint64_t index, const data_row *out) {
    int64_t T = d->source->seq_len;
    for (int64_t t = 0; out->segments && t < T; t++) out->segments[t] = -1;
    for (int64_t t = 0; out->shared && t < T; t++) out->shared[t] = 0;
    for (int64_t i = 0; out->examples && i < data_example_slots(T); i++) out->examples[i] = -1;
    d->source->kind->row(d->source, s, index, out);
}

uint64_t dataset_n_examples(const dataset *d, split s) {
    return d->source->kind->n_examples ? d->source->kind->n_examples(d->source, s) : 0;
}

uint64_t dataset_place(const dataset *d, split s, uint64_t index) {
    return d->source->kind->place ? d->source->kind->place(d->source, s, index) : index;
}

uint64_t dataset_n_places(const dataset *d, split s) {
    return d->source->kind->n_places ? d->source->kind->n_places(d->source, s) : 0;
}

data_kind dataset_kind(const dataset *d) { return d->kind; }
bool dataset_shares_prompts(const dataset *d) { return d->shares_prompts; }

const prompt_set *dataset_prompts(const dataset *d) {
    ASSERT(d->kind == DATA_PROMPTS);
    return prompt_source_set(d->source);
}

bool dataset_problem(const dataset *d, uint64_t index, strbuf *prompt, strbuf *answer) {
    if (!d->source->kind->problem) return false;
    return d->source->kind->problem(d->source, index, prompt, answer);
}

bool dataset_answer(const dataset *d, uint64_t index, const char *begun, size_t n_begun, strbuf *answer) {
    return d->source->kind->answer && d->source->kind->answer(d->source, index, begun, n_begun, answer);
}

bool dataset_file_report(const dataset *d, split s, size_t file, const char **path, double *share, data_report *out) {
    if (!d->source->kind->file_report) return false;
    return d->source->kind->file_report(d->source, s, file, path, share, out);
}

uint64_t dataset_fingerprint(const dataset *d) { return d->source->fingerprint; }

void dataset_survey(const dataset *d, data_survey *out) {
    data_report r[2];
    *out = d->source->survey;
    out->seq_len = d->source->seq_len;
    for (split s = SPLIT_TRAIN; s <= SPLIT_EVAL; s++) {
        dataset_report(d, s, &r[s]);
        if (out->n == 0 || d->kind == DATA_PROMPTS) continue; /* prompts are left out only where that is asked for */
        out->n_cut += r[s].n_cut_documents;
        out->n_dropped += r[s].n_dropped_documents;
    }
    if (out->n) out->n_trained = r[SPLIT_TRAIN].n_documents;
    if (out->n && d->kind != DATA_PROMPTS) out->n_trained -= MIN(r[SPLIT_TRAIN].n_dropped_documents, out->n_trained);
    out->rows_per_epoch = d->kind == DATA_PROMPTS ? r[SPLIT_TRAIN].n_documents : r[SPLIT_TRAIN].rows_per_epoch;
}

int64_t dataset_seq_len(const dataset *d) { return d->source->seq_len; }
