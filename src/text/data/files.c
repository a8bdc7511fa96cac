/* files.c - text files and JSON Lines as a source: tokens once, then rows by number.
 *
 * Each file becomes a store of tokens (tokenize.c). The tail of a text file and the last records of a JSON Lines file
 * are the evaluation part, and training never sees a token of it, not even as a target. Every document ends with EOS
 * where the tokenizer has one; both parts of a text file do.
 *
 * Without weights all files share one row space: rows are as many as the tokens make them. With weights each file has a
 * row space of its own, and rows are drawn in blocks of 10,000 in which each file has its share exactly. One order of
 * the files, shuffled by the seed, serves all blocks. So which file row i comes from, and how many rows of it came
 * before, follows from i alone: nothing has to be remembered to resume, each file is seen whole before any of its rows
 * comes again, and a short one begins its next epoch while others are still in their first. */
#include "data/examples.h"
#include "data/file_kind.h"
#include "data/rows.h"
#include "data/solutions.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { MIXTURE_BLOCK = 10000 };

typedef struct mixture_part {
    row_space splits[2];
    uint64_t quota; /* rows of a block */
} mixture_part;

typedef struct mixture_slot {
    uint32_t part, before; /* which file, and how many rows of it come before this one in the block */
} mixture_slot;

typedef struct files_source {
    source base;
    file_entry *entries;
    token_store *stores;
    data_report (*reports)[2];     /* per file and split */
    size_t n_files, n_train_files; /* those of data.eval_source come last */
    bool is_builtin;               /* builtin:solutions: one store, and no file */
    int64_t difficulty;            /* ... of so many digits */
    mixture_part *parts;
    size_t n_parts;
    mixture_slot *slots[2]; /* (MIXTURE_BLOCK) per split; NULL: one part */
} files_source;

/* ---- rows ---------------------------------------------------------------------------------------------------- */

/* The file that row *index comes from; *index becomes the number of the row among those of the file. */
static size_t find_part(const files_source *s, split which, uint64_t *index) {
    if (!s->slots[which]) return 0;
    const mixture_slot *slot = &s->slots[which][*index % MIXTURE_BLOCK];
    *index = *index / MIXTURE_BLOCK * s->parts[slot->part].quota + slot->before;
    return slot->part;
}

static void files_row(const source *base, split which, uint64_t index, const data_row *out) {
    const files_source *s = (const files_source *)base;
    const mixture_part *p = &s->parts[find_part(s, which, &index)];
    row_pad(base, row_space_fill(&p->splits[which], index, out), out);
}

static uint64_t files_place(const source *base, split which, uint64_t index) {
    const files_source *s = (const files_source *)base;
    size_t part = find_part(s, which, &index);
    uint64_t before = 0;
    for (size_t i = 0; i < part; i++) before += s->parts[i].splits[which].n_rows;
    return before + row_space_place(&s->parts[part].splits[which], index);
}

static uint64_t files_n_places(const source *base, split which) {
    const files_source *s = (const files_source *)base;
    uint64_t n = 0;
    for (size_t i = 0; i < s->n_parts; i++) n += s->parts[i].splits[which].n_rows;
    return n;
}

static bool files_problem(const source *base, uint64_t index, strbuf *prompt, strbuf *answer) {
    const files_source *s = (const files_source *)base;
    return s->is_builtin && builtin_solutions_problem(index, s->difficulty, prompt, answer);
}

static bool files_answer(const source *base, uint64_t index, const char *begun, size_t n_begun, strbuf *answer) {
    const files_source *s = (const files_source *)base;
    return s->is_builtin && builtin_solutions_answer(index, s->difficulty, begun, n_begun, answer);
}

static uint64_t files_n_examples(const source *base, split which) {
    const files_source *s = (const files_source *)base;
    uint64_t n = 0;
    for (size_t i = 0; i < s->n_parts; i++) n += row_space_n_examples(&s->parts[i].splits[which]);
    return n;
}

static uint64_t rows_per_epoch(const files_source *s, split which) {
    uint64_t most = 0;
    if (!s->slots[which]) return s->parts[0].splits[which].n_rows;
    for (size_t i = 0; i < s->n_parts; i++) { /* until the last row of the slowest file came, in whole blocks */
        uint64_t n = s->parts[i].splits[which].n_rows, quota = s->parts[i].quota;
        most = MAX(most, (n + quota - 1) / quota * MIXTURE_BLOCK);
    }
    return most;
}

static double fill_of(const row_space *r) {
    return r->n_rows ? (double)r->n_placed / ((double)r->n_rows * (double)r->T) : 0;
}

static void files_report(const source *base, split which, data_report *out) {
    const files_source *s = (const files_source *)base;
    for (size_t i = 0; i < s->n_files; i++) {
        const data_report *r = &s->reports[i][which];
        out->n_documents += r->n_documents;
        out->n_tokens += r->n_tokens;
        out->n_trained_tokens += r->n_trained_tokens;
        out->n_cut_tokens += r->n_cut_tokens;
        out->n_cut_documents += r->n_cut_documents;
        out->n_dropped_documents += r->n_dropped_documents;
        out->n_dropped_tokens += r->n_dropped_tokens;
        out->n_undesirable += r->n_undesirable;
        out->n_shared_tokens += r->n_shared_tokens;
        out->n_incorrect += r->n_incorrect;
        out->n_problems += r->n_problems;
        out->n_unpaired += r->n_unpaired;
        out->n_unused_pairs += r->n_unused_pairs;
        out->n_skipped += r->n_skipped;
        out->n_replaced += r->n_replaced;
        out->n_files += r->n_files;
        out->n_cached += r->n_cached;
        out->chat = MAX(out->chat, r->chat);
    }
    out->rows_per_epoch = rows_per_epoch(s, which);
    if (!s->slots[which]) out->fill = fill_of(&s->parts[0].splits[which]);
    for (size_t i = 0; s->slots[which] && i < s->n_parts; i++)
        out->fill += fill_of(&s->parts[i].splits[which]) * (double)s->parts[i].quota / MIXTURE_BLOCK;
}

static bool files_file_report(const source *base, split which, size_t file, const char **path, double *share,
                              data_report *out) {
    const files_source *s = (const files_source *)base;
    if (file >= s->n_train_files) return false;
    const mixture_part *p = &s->parts[s->n_parts > 1 ? file : 0];
    uint64_t n_placed = 0;
    for (size_t i = 0; i < s->n_train_files; i++) n_placed += s->reports[i][which].n_tokens;
    *out = s->reports[file][which];
    out->rows_per_epoch = p->splits[which].n_rows;
    out->fill = fill_of(&p->splits[which]);
    *path = s->entries[file].path;
    if (s->n_parts > 1) *share = (double)p->quota / MIXTURE_BLOCK;
    else *share = n_placed ? (double)out->n_tokens / (double)n_placed : 0;
    return true;
}

static void files_close(source *base) {
    files_source *s = (files_source *)base;
    for (size_t i = 0; s->parts && i < s->n_parts; i++)
        for (int k = 0; k < 2; k++) row_space_fini(&s->parts[i].splits[k]);
    for (size_t i = 0; s->stores && i < s->n_files; i++) store_close(&s->stores[i]);
    file_list_free(s->entries, s->n_files);
    for (int k = 0; k < 2; k++) free(s->slots[k]);
    free(s->parts);
    free(s->stores);
    free(s->reports);
    free(s);
}

/* ---- splits -------------------------------------------------------------------------------------------------- */

/* The documents of two neighbouring examples, or records: do they answer the same prompt? */
static bool same_problem(const token_store *t, uint64_t a, uint64_t b) {
    uint64_t i = store_document_begin(t, a), k = store_document_begin(t, b);
    for (; i < t->documents[a].end && k < t->documents[b].end; i++, k++) {
        bool ends = store_trained(t, i);
        if (ends != store_trained(t, k)) return false;
        if (ends) return true;
        if (store_token(t, i) != store_token(t, k)) return false;
    }
    return false;
}

/* Solutions of one problem stand together in files; all of them are held out, or none. */
static uint64_t split_between_problems(const token_store *t, uint64_t n, uint64_t n_train, uint64_t n_each) {
    uint64_t at = n_train;
    while (at > 0 && at < n && same_problem(t, (at - 1) * n_each, at * n_each)) at--;
    if (at > 0) return at;
    for (at = n_train; at < n && same_problem(t, (at - 1) * n_each, at * n_each);) at++;
    return at < n ? at : n_train;
}

/* All of a file of data.eval_source. */
static void add_eval_store(files_source *s, size_t file) {
    const token_store *t = &s->stores[file];
    row_space *r = &s->parts[0].splits[SPLIT_EVAL];
    bool eos = t->is_text && r->eos >= 0;
    row_space_add(r, (segment){.store = t,
                               .report = &s->reports[file][SPLIT_EVAL],
                               .n_documents = t->is_text ? 1 : t->n_documents,
                               .n_tokens = t->n_tokens + eos,
                               .adds_eos = eos});
}

/* Text is split between tokens, and each part ends with EOS. Records are split between records, and at least one of
 * several is kept where any is to be. */
static void add_store(files_source *s, size_t file, mixture_part *p, double eval_fraction) {
    const token_store *t = &s->stores[file];
    data_report *train = &s->reports[file][SPLIT_TRAIN], *eval = &s->reports[file][SPLIT_EVAL];
    uint64_t n_each = documents_per_example(t->kind), n = t->is_text ? t->n_tokens : t->n_documents / n_each;
    uint64_t n_eval = (uint64_t)((double)n * eval_fraction);
    if (!t->is_text && eval_fraction > 0 && n > 1) n_eval = MAX(n_eval, 1);
    uint64_t n_train = n - n_eval;
    bool has_solutions = t->n_problems > 0 || t->n_incorrect > 0;
    if (s->is_builtin) n_train = builtin_solutions_split(t, n_each, s->difficulty);
    else if (has_solutions && n_eval > 0) n_train = split_between_problems(t, n, n_train, n_each);
    if (has_solutions) n_eval = n - n_train;
    if (t->is_text) {
        bool eos = p->splits[SPLIT_TRAIN].eos >= 0;
        row_space_add(
            &p->splits[SPLIT_TRAIN],
            (segment){.store = t, .report = train, .n_documents = 1, .n_tokens = n_train + eos, .adds_eos = eos});
        if (n_eval == 0) return;
        row_space_add(&p->splits[SPLIT_EVAL], (segment){.store = t,
                                                        .report = eval,
                                                        .n_documents = 1,
                                                        .begin = n_train,
                                                        .n_tokens = n_eval + eos,
                                                        .adds_eos = eos});
        return;
    }
    uint64_t middle = store_document_begin(t, n_train * n_each);
    row_space_add(&p->splits[SPLIT_TRAIN],
                  (segment){.store = t, .report = train, .n_documents = n_train * n_each, .n_tokens = middle});
    row_space_add(&p->splits[SPLIT_EVAL], (segment){.store = t,
                                                    .report = eval,
                                                    .first_document = n_train * n_each,
                                                    .n_documents = n_eval * n_each,
                                                    .begin = middle,
                                                    .n_tokens = t->n_tokens - middle});
}

static status check_sizes(const files_source *s, const data_options *o, size_t part) {
    const row_space *train = &s->parts[part].splits[SPLIT_TRAIN], *eval = &s->parts[part].splits[SPLIT_EVAL];
    const char *name = s->n_parts > 1 ? s->entries[part].path : o->source;
    uint64_t n_tokens[2] = {0}, n_dropped = 0;
    for (size_t i = 0; i < s->n_train_files; i++) {
        if (s->n_parts > 1 && i != part) continue;
        for (int k = 0; k < 2; k++) n_tokens[k] += s->reports[i][k].n_tokens;
        n_dropped += s->reports[i][SPLIT_TRAIN].n_dropped_documents;
    }
    if (train->n_rows == 0 && row_space_n_examples(train) > 0)
        return row_space_none_fits(train, name, SPLIT_TRAIN, o->positions);
    if (o->eval_fraction > 0 && eval->n_rows == 0 && row_space_n_examples(eval) > 0)
        return row_space_none_fits(eval, name, SPLIT_EVAL, o->positions);
    if (train->n_rows == 0 && n_dropped > 0)
        return ERR(
            ERR_INPUT,
            "%.500s: found no record with a trained token among its first %lld (data.seq_len), expected at least "
            "one; give a larger data.seq_len, or data.train_on=all",
            name, (long long)o->seq_len);
    bool text_only = train->n_records == 0;
    if ((o->pack && text_only && n_tokens[0] < (uint64_t)o->seq_len) || train->n_rows == 0)
        return ERR(ERR_INPUT,
                   "%.500s: found %llu tokens for training (and %llu for evaluation), expected at least %lld, one row; "
                   "give more text or a smaller data.seq_len",
                   name, (unsigned long long)n_tokens[0], (unsigned long long)n_tokens[1],
                   (long long)(o->pack ? o->seq_len : 2));
    if (o->eval_fraction > 0 && eval->n_rows == 0)
        return ERR(
            ERR_INPUT,
            "%.500s: found %llu tokens for evaluation (data.eval_fraction %g of %llu), expected at least one row with "
            "a trained token; give more text, a larger data.eval_fraction, or 0 for none",
            name, (unsigned long long)n_tokens[1], o->eval_fraction, (unsigned long long)(n_tokens[0] + n_tokens[1]));
    return OK;
}

/* ---- opening ------------------------------------------------------------------------------------------------- */

/* What a store says of itself; rows add the rest. */
static void begin_reports(files_source *s, size_t file, chat_format chat) {
    const token_store *store = &s->stores[file];
    s->base.n_bytes += store->heap_bytes;
    for (int k = 0; k < 2; k++)
        s->reports[file][k] = (data_report){.entropy_per_token = NAN,
                                            .n_files = 1,
                                            .n_incorrect = store->n_incorrect,
                                            .n_problems = store->n_problems,
                                            .n_unpaired = store->n_unpaired,
                                            .n_unused_pairs = store->n_unused_pairs,
                                            .n_skipped = store->n_skipped,
                                            .n_replaced = store->n_replaced,
                                            .n_cached = store->from_cache,
                                            .chat = store->has_prompts ? chat : CHAT_AUTO};
    if (file >= s->n_train_files) s->reports[file][SPLIT_TRAIN] = (data_report){.entropy_per_token = NAN};
}

static status read_files(files_source *s, const data_options *o, const tokenizer *t, const char *tokenizer_name) {
    status rc = OK;
    chat *c = NULL;
    bool any_prompts = false;
    tokenize_job job = {0};
    TRY(chat_open(
        &c, t, tokenizer_name,
        &(chat_options){.format = o->chat, .kwargs = o->chat_kwargs, .train_on_newline = o->train_on_newline}));
    TRY_GOTO(rc, tokenize_job_open(&job, o, t, c), done);
    for (size_t i = 0; i < s->n_files; i++) {
        token_store *store = &s->stores[i];
        TRY_GOTO(rc, data_check_file(i < s->n_train_files ? "data.source" : "data.eval_source", s->entries[i].path),
                 done);
        if (o->kind != DATA_TEXT && !data_is_record_file(o, s->entries[i].path))
            TRY_GOTO(rc,
                     ERR(ERR_INPUT,
                         "data.source: found a file without records, %s, expected JSON Lines or a table with the keys "
                         "%s (.jsonl, "
                         ".csv, or data.format)",
                         s->entries[i].path,
                         o->kind == DATA_PAIRS       ? "prompt, chosen and rejected"
                         : o->kind == DATA_SOLUTIONS ? "instruction, output, is_correct and task_id"
                                                     : "prompt, completion and label"),
                     done);
        TRY_GOTO(rc, tokenize_file(&job, s->entries[i].path, data_file_format(o, s->entries[i].path), store), done);
        begin_reports(s, i, chat_format_of(c));
        any_prompts |= store->has_prompts;
    }
    any_prompts &= !o->is_survey;
    if (any_prompts && chat_lacks_end(c))
        log_warn(
            "the tokenizer's chat template writes no special token after an answer: a model trained with it does not "
            "learn to stop");
    if (any_prompts && chat_writes_date(c))
        log_warn("the tokenizer's chat template writes today's date (strftime_now): the tokens differ every day, and a "
                 "run cannot resume on another day; many templates take a fixed date: "
                 "data.chat_kwargs={\"date_string\": \"26 Jul 2024\"}");
done:
    tokenize_job_close(&job);
    chat_close(c);
    return rc;
}

/* Whole numbers of rows per block; the file with the largest weight gets what rounding leaves. */
static status share_out(files_source *s, const data_options *o) {
    double sum = 0;
    size_t heaviest = 0;
    uint64_t left = MIXTURE_BLOCK;
    s->parts[0].quota = MIXTURE_BLOCK;
    if (s->n_parts == 1) return OK;
    for (size_t i = 0; i < s->n_parts; i++) sum += s->entries[i].weight;
    for (size_t i = 0; i < s->n_parts; i++) {
        double share = s->entries[i].weight / sum;
        if (!(share * MIXTURE_BLOCK >= 1))
            return ERR(ERR_INPUT,
                       "data source '%.500s': found a share of %g for '%s', expected at least 1/%d of all weights",
                       o->source, share, s->entries[i].path, MIXTURE_BLOCK);
        s->parts[i].quota = (uint64_t)(share * MIXTURE_BLOCK + 1e-6);
        left -= s->parts[i].quota;
        if (s->entries[i].weight > s->entries[heaviest].weight) heaviest = i;
    }
    s->parts[heaviest].quota += left;
    return OK;
}

static void shuffle_block(files_source *s, split which, uint64_t key) {
    uint32_t *seen = mem_alloc(s->n_parts * sizeof *seen);
    mixture_slot *slots = s->slots[which] = mem_alloc(MIXTURE_BLOCK * sizeof *slots);
    uint64_t slot = 0;
    for (uint32_t i = 0; i < s->n_parts; i++)
        for (uint64_t k = 0; k < s->parts[i].quota; k++) slots[rng_permute(key, slot++, MIXTURE_BLOCK)].part = i;
    for (uint64_t i = 0; i < MIXTURE_BLOCK; i++) slots[i].before = seen[slots[i].part]++;
    free(seen);
}

/* Lengths of all records, and from them the tokens of a row where they are not given. */
static void survey(files_source *s, const data_options *o) {
    static const char *const units[] = {
        [DATA_TEXT] = "records", [DATA_PAIRS] = "pairs", [DATA_LABELLED] = "examples", [DATA_SOLUTIONS] = "pairs"};
    data_survey *v = &s->base.survey;
    uint64_t n = 0, n_text = 0;
    for (size_t i = 0; i < s->n_parts; i++) {
        n_text += s->parts[i].splits[SPLIT_TRAIN].n_text_tokens;
        for (int k = 0; k < 2; k++) n += row_space_n_lengths(&s->parts[i].splits[k]);
    }
    uint64_t at = 0, *lengths = mem_alloc(MAX(n, 1) * sizeof *lengths);
    for (size_t i = 0; i < s->n_parts; i++)
        for (int k = 0; k < 2; k++) {
            row_space_lengths(&s->parts[i].splits[k], lengths + at);
            at += row_space_n_lengths(&s->parts[i].splits[k]);
        }
    v->unit = units[o->kind];
    survey_lengths(v, lengths, n, o->kind == DATA_TEXT ? -1 : 0, survey_row_most(o));
    free(lengths);
    v->is_chosen = o->seq_len == 0;
    int64_t T = o->seq_len;
    if (!T && n_text > 0) T = survey_text_row(n > 0 ? UINT64_MAX : n_text, o);
    if (!o->seq_len && n > 0) T = MAX(T, v->seq_len);
    s->base.seq_len = T;
    for (size_t i = 0; i < s->n_parts; i++)
        for (int k = 0; k < 2; k++) s->parts[i].splits[k].T = T;
}

static status lay_out(files_source *s, const data_options *o, const tokenizer *t) {
    static const char *const purposes[2] = {"data.text.train", "data.text.eval"};
    s->n_parts = s->entries[0].weight > 0 ? s->n_train_files : 1;
    s->parts = mem_alloc(s->n_parts * sizeof *s->parts);
    for (size_t i = 0; i < s->n_parts; i++)
        for (int k = 0; k < 2; k++) {
            uint64_t key = rng_key(o->seed, purposes[k]);
            row_space_init(&s->parts[i].splits[k], o->seq_len, o->pack, tokenizer_eos(t), i ? rng_u64(key, i) : key);
            s->parts[i].splits[k].kind = data_stored_kind(o->kind);
            s->parts[i].splits[k].share_prompts = o->share_prompts;
        }
    for (size_t i = 0; i < s->n_train_files; i++) add_store(s, i, &s->parts[s->n_parts > 1 ? i : 0], data_held_out(o));
    for (size_t i = s->n_train_files; i < s->n_files; i++) add_eval_store(s, i);
    TRY(share_out(s, o));
    survey(s, o);
    data_options laid_out = *o;
    laid_out.seq_len = s->base.seq_len;
    laid_out.eval_fraction = data_held_out(o);
    if (s->n_parts > 1) {
        shuffle_block(s, SPLIT_TRAIN, rng_key(o->seed, "data.mixture.train"));
        if (!data_has_eval_source(o)) shuffle_block(s, SPLIT_EVAL, rng_key(o->seed, "data.mixture.eval"));
    }
    for (size_t i = 0; i < s->n_parts; i++) {
        for (int k = 0; k < 2; k++) {
            if (i > 0)
                s->parts[i].splits[k].first_example =
                    s->parts[i - 1].splits[k].first_example + row_space_n_examples(&s->parts[i - 1].splits[k]);
            TRY(row_space_lay_out(&s->parts[i].splits[k]));
            s->base.n_bytes += s->parts[i].splits[k].n_heap_bytes;
        }
        TRY(check_sizes(s, &laid_out, i));
    }
    if (data_has_eval_source(o) && s->parts[0].splits[SPLIT_EVAL].n_rows == 0)
        return ERR(
            ERR_INPUT,
            "data.eval_source %.500s: found no row of %lld tokens (data.seq_len) with a trained token, expected at "
            "least one; give more text, or a larger data.seq_len",
            o->eval_source, (long long)laid_out.seq_len);
    return OK;
}

static uint64_t fingerprint_of(const files_source *s) {
    XXH3_state_t *state = XXH3_createState();
    ASSERT(state && XXH3_64bits_reset(state) == XXH_OK);
    for (size_t i = 0; i < s->n_files; i++) {
        uint64_t facts[] = {s->stores[i].hash.low, s->stores[i].hash.high,
                            s->stores[i].is_text + 2 * (uint64_t)s->stores[i].kind, s->stores[i].has_prompts,
                            s->n_parts > 1 && i < s->n_train_files ? s->parts[i].quota : i >= s->n_train_files};
        ASSERT(XXH3_64bits_update(state, facts, sizeof facts) == XXH_OK);
    }
    uint64_t hash = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    return hash;
}

/* Those of data.source, then those of data.eval_source. */
static status find_files(files_source *s, const data_options *o) {
    TRY(file_list_parse(o->source, &s->entries, &s->n_files));
    s->n_train_files = s->n_files;
    if (!data_has_eval_source(o)) return OK;
    file_entry *more = NULL;
    size_t n = 0, capacity = s->n_files;
    status rc = file_list_parse_eval(o->eval_source, &more, &n);
    if (rc == OK) {
        s->entries = array_grow(s->entries, &capacity, s->n_files + n, sizeof *s->entries);
        memcpy(s->entries + s->n_files, more, n * sizeof *more);
        s->n_files += n;
        free(more); /* the names are the source's now */
        return OK;
    }
    file_list_free(more, n);
    return rc;
}

status files_open(source **out, const data_options *o, const tokenizer *t) {
    static const source_kind kind = {.row = files_row,
                                     .report = files_report,
                                     .problem = files_problem,
                                     .answer = files_answer,
                                     .close = files_close,
                                     .file_report = files_file_report,
                                     .n_examples = files_n_examples,
                                     .place = files_place,
                                     .n_places = files_n_places};
    status rc = OK;
    files_source *s = mem_alloc(sizeof *s);
    /* Padding is never trained on and never attended to: any id of the vocabulary works. */
    int32_t pad = tokenizer_is_byte(t) ? TOKEN_PAD : MAX(tokenizer_eos(t), 0);
    s->base = (source){.kind = &kind, .seq_len = o->seq_len, .pack = o->pack, .pad = pad};
    s->is_builtin = strcmp(o->source, BUILTIN_SOLUTIONS) == 0;
    s->difficulty = o->difficulty;
    if (s->is_builtin) {
        s->entries = mem_alloc(sizeof *s->entries);
        s->entries[0].path = mem_string(o->source);
        s->n_files = s->n_train_files = 1;
    } else {
        TRY_GOTO(rc, find_files(s, o), fail);
        TRY_GOTO(rc, example_options_check(o), fail);
    }
    s->stores = mem_alloc(s->n_files * sizeof *s->stores);
    s->reports = mem_alloc(s->n_files * sizeof *s->reports);
    if (s->is_builtin) {
        TRY_GOTO(rc, builtin_solutions_make(o, &s->stores[0]), fail);
        begin_reports(s, 0, CHAT_NONE);
    } else {
        TRY_GOTO(rc, read_files(s, o, t, o->tokenizer), fail);
    }
    TRY_GOTO(rc, lay_out(s, o, t), fail);
    s->base.fingerprint = fingerprint_of(s);
    *out = &s->base;
    return OK;
fail:
    files_close(&s->base);
    return rc;
}

/* What a chat format adds to a record, at most, in tokens. */
enum { CHAT_ADDS = 64 };

/* A record of JSON has at least 12 bytes ({"text":"x"}), of which one of 31 and more has a chat format; one of a table has a line. */
static uint64_t file_bytes_at_most(const data_options *o, const char *path) {
    data_format format = data_file_format(o, path);
    bool text = format == FORMAT_TEXT, table = format == FORMAT_CSV || format == FORMAT_TSV;
    bool bytes = !o->tokenizer || strcmp(o->tokenizer, "byte") == 0;
    bool cached = o->cache && *o->cache && !(bytes && text && strcmp(o->cache, "auto") == 0 && !reader_is_packed(path));
    uint64_t n_bytes = 0, n_lines = 0;
    if (reader_measure(path, &n_bytes, table ? &n_lines : NULL) != OK) return 0;
    bool ids = format == FORMAT_TOKENS; /* of two bytes; a document has two of them and more */
    uint64_t n_records = text ? 0 : table ? n_lines + 1 : n_bytes / (ids ? 4 : 12) + 1;
    uint64_t width = bytes ? (text ? 1 : 2) : sizeof(int32_t);
    uint64_t n_tokens = text ? n_bytes : ids ? n_bytes / 2 + 1 : 4 * n_bytes + (table ? CHAT_ADDS * n_records : 0);
    uint64_t tables = n_records * (sizeof(uint32_t) + sizeof(uint64_t));
    /* {"chosen":"ab","rejected":"ac"}: a pair is longer and has two documents, each with the prompt; a labelled answer
     * has a further table. */
    if (o->kind == DATA_PAIRS) n_tokens *= 2;
    if (o->kind == DATA_SOLUTIONS) /* each may be in that many pairs */
        n_tokens *= (uint64_t)(o->pairs_per_problem ? o->pairs_per_problem : PAIRS_PER_PROBLEM);
    if (o->kind == DATA_LABELLED) tables += n_records * sizeof(uint32_t);
    return tables + (cached ? 0 : n_tokens * width + n_records * sizeof(store_document));
}

bool data_source_has_records(const data_options *o) {
    bool found = false;
    file_entry *entries;
    size_t n;
    if (str_starts_with(o->source, "builtin:")) return false;
    if (file_list_parse(o->source, &entries, &n) == OK)
        for (size_t i = 0; i < n; i++) found |= data_is_record_file(o, entries[i].path);
    error_clear(); /* as below */
    file_list_free(entries, n);
    return found;
}

static uint64_t list_bytes_at_most(const data_options *o, const char *list) {
    uint64_t total = 0;
    file_entry *entries;
    size_t n;
    if (file_list_parse(list, &entries, &n) == OK) {
        for (size_t i = 0; i < n; i++) {
            file_stamp stamp;
            if (file_stamp_get(entries[i].path, &stamp) == OK && stamp.is_regular)
                total += file_bytes_at_most(o, entries[i].path);
        }
    }
    error_clear(); /* files that cannot be read are reported when they are opened */
    file_list_free(entries, n);
    return total;
}

uint64_t files_host_bytes_at_most(const data_options *o) {
    return list_bytes_at_most(o, o->source) + (data_has_eval_source(o) ? list_bytes_at_most(o, o->eval_source) : 0);
}
