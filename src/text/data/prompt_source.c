/* prompt_source.c - a data set of prompts alone (DATA_PROMPTS): no rows, only a prompt_set and its tokenizer. */
#include "data/prompts.h"
#include "data/source.h"

#include <stdlib.h>

typedef struct prompt_source {
    source base;
    prompt_set *set;
} prompt_source;

static void no_row(const source *s, split which, uint64_t index, const data_row *out) {
    (void)s, (void)which, (void)index, (void)out;
    ASSERT(!"prompts have no rows");
}

static void report(const source *s, split which, data_report *out) {
    prompts_report r;
    prompts_report_get(((const prompt_source *)s)->set, &r);
    out->n_documents = r.n[which];
    out->n_dropped_documents = r.n_skipped;
    out->n_skipped = r.n_invalid;
}

static void close_set(source *s) {
    prompts_close(((prompt_source *)s)->set);
    free(s);
}

/* None is ever cut: rows hold the longest prompt, unless long ones are left out, and a completion. */
static void survey(prompt_source *s, const data_options *o, const prompts_report *r) {
    data_survey *v = &s->base.survey;
    size_t n = 0;
    uint64_t *lengths = mem_alloc(MAX(r->n[0] + r->n[1], 1) * sizeof *lengths);
    for (split which = SPLIT_TRAIN; which <= SPLIT_EVAL; which++)
        for (uint64_t i = 0; i < r->n[which]; i++) lengths[n++] = prompts_get(s->set, which, i).n_tokens;
    v->unit = "prompts";
    survey_lengths(v, lengths, n, o->completion, 0);
    free(lengths);
    v->is_chosen = o->seq_len == 0;
    if (!v->is_chosen) return;
    int64_t T = o->skip_long_prompts ? v->seq_len : survey_row(v->seq_len_all, 0);
    int64_t most = survey_row_most(o);
    s->base.seq_len = most ? MIN(T, most) : T;
}

static const source_kind kind = {.row = no_row, .report = report, .close = close_set};

status prompt_source_open(source **out, const data_options *o, const tokenizer *t) {
    prompt_source *s = mem_alloc(sizeof *s);
    prompt_options options = {.data = o,
                              .longest = o->seq_len ? o->longest_prompt : INT32_MAX,
                              .skip_long = o->skip_long_prompts,
                              .advice =
                                  "raise data.seq_len, lower rl.max_completion, or set rl.skip_long=true to leave "
                                  "such prompts out",
                              .advice_all = "lower rl.max_completion, or raise data.seq_len"};
    status rc = prompts_open(&s->set, t, o->tokenizer ? o->tokenizer : "byte", &options);
    if (rc != OK) {
        free(s);
        return rc;
    }
    prompts_report r;
    prompts_report_get(s->set, &r);
    s->base =
        (source){.kind = &kind, .seq_len = o->seq_len, .n_bytes = r.bytes, .fingerprint = prompts_fingerprint(s->set)};
    survey(s, o, &r);
    *out = &s->base;
    return OK;
}

const prompt_set *prompt_source_set(const source *s) { return ((const prompt_source *)s)->set; }
