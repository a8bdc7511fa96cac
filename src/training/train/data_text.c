/* data_text.c - the data of a run in words, and warnings about it: what `ralo train` prints and the library tells before the first
 * step. */
#include "train/train.h"

#include <math.h>
#include <string.h>

static const char *plural(uint64_t n) { return n == 1 ? "" : "s"; }

/* What is trained and what is held out. records: else the file is one text. */
static void print_counts(const data_report *r, const data_report *held_out, bool records, FILE *out) {
    char a[32], b[32];
    const char *unit = r->n_problems ? "pair" : records ? "record" : "document";
    records |= r->n_problems > 0;
    fprintf(out, ": %llu %s%s to train", (unsigned long long)r->n_documents, unit, plural(r->n_documents));
    if (records && held_out->n_documents) fprintf(out, ", %llu held out", (unsigned long long)held_out->n_documents);
    fprintf(out, "; %s tokens", str_format_count(a, (double)r->n_tokens));
    str_format_count(b, (double)r->n_trained_tokens);
    if (strcmp(a, b) != 0) fprintf(out, ", %s in the loss", b); /* a text's first token has none before it */
    if (r->n_shared_tokens)
        fprintf(out, ", %s of prompts not repeated", str_format_count(a, (double)r->n_shared_tokens));
    if (r->chat != CHAT_AUTO) fprintf(out, "; chat %s", chat_format_name(r->chat));
}

/* What happened to tokens and records that are not in the rows. */
static void print_losses(const data_report *r, FILE *out) {
    if (r->n_cut_documents)
        fprintf(out, "; %llu record%s end", (unsigned long long)r->n_cut_documents,
                r->n_cut_documents == 1 ? " loses its" : "s lose their");
    if (r->n_dropped_documents)
        fprintf(out, "; %llu record%s dropped", (unsigned long long)r->n_dropped_documents,
                r->n_dropped_documents == 1 ? " is" : "s are");
    if (r->n_dropped_tokens) fprintf(out, " (%llu tokens)", (unsigned long long)r->n_dropped_tokens);
    if (r->n_incorrect)
        fprintf(out, "; %llu record%s left out as not correct", (unsigned long long)r->n_incorrect,
                r->n_incorrect == 1 ? " is" : "s are");
    if (r->n_skipped)
        fprintf(out, "; %llu invalid line%s skipped", (unsigned long long)r->n_skipped,
                r->n_skipped == 1 ? " is" : "s are");
    if (r->n_cached && r->n_cached == r->n_files) fputs("; from the cache", out);
    if (r->n_replaced)
        fprintf(out, "; %llu place%s not UTF-8 and replaced", (unsigned long long)r->n_replaced,
                r->n_replaced == 1 ? " is" : "s are");
}

/* "          records of 12 to 612 tokens ..." */
static void print_lengths(const dataset *d, const train_request *q, FILE *out) {
    data_survey s;
    strbuf text;
    strbuf_init(&text);
    dataset_survey(d, &s);
    s.is_chosen = q->survey.is_chosen;
    data_survey_describe(&s, &text);
    if (text.length) fprintf(out, "          %s\n", text.text);
    strbuf_fini(&text);
}

static void print_prompts(const train_request *q, const data_report *r, const data_report *held_out, FILE *out) {
    double steps = (double)r->n_documents * (double)q->train.rl.updates / (double)q->train.rl.prompts;
    fprintf(out, "data      %s: %llu prompts per epoch = %.1f steps, %llu held out\n", q->data.source,
            (unsigned long long)r->n_documents, steps, (unsigned long long)held_out->n_documents);
}

/* Each of several files. */
static void print_files(const dataset *d, FILE *out) {
    data_report r, held_out;
    const char *path;
    double share;
    for (size_t i = 0; dataset_file_report(d, SPLIT_TRAIN, i, &path, &share, &r); i++) {
        dataset_file_report(d, SPLIT_EVAL, i, &path, &(double){0}, &held_out);
        fprintf(out, "          %4.1f %%  %s", 100 * share, path);
        print_counts(&r, &held_out, data_is_records(path), out);
        print_losses(&r, out);
        fputc('\n', out);
    }
}

void train_data_print(const dataset *d, const train_request *q, const plan *p, FILE *out) {
    data_report r, held_out;
    double epochs = train_epochs(d, p, q->train.steps);
    dataset_report(d, SPLIT_TRAIN, &r);
    dataset_report(d, SPLIT_EVAL, &held_out);
    if (dataset_kind(d) == DATA_PROMPTS) {
        print_prompts(q, &r, &held_out, out);
        print_lengths(d, q, out);
        return;
    }
    fprintf(out, "data      %s", q->data.source);
    if (r.rows_per_epoch) {
        print_counts(&r, &held_out, data_source_has_records(&q->data), out);
        if (data_has_eval_source(&q->data)) fprintf(out, "; evaluated on %s", q->data.eval_source);
        fprintf(out, "\n          %llu row%s of %lld tokens per epoch = %.1f steps, %.1f %% full",
                (unsigned long long)r.rows_per_epoch, plural(r.rows_per_epoch), (long long)q->data.seq_len,
                (double)q->train.steps / epochs, 100 * r.fill);
        print_losses(&r, out);
    } else {
        fprintf(out, ": endless, rows of %lld tokens", (long long)q->data.seq_len);
    }
    if (r.n_problems)
        fprintf(out, "\n          pairs of %llu problems; %llu have no pair (no correct solution, or no wrong one)",
                (unsigned long long)(r.n_problems - r.n_unpaired), (unsigned long long)r.n_unpaired);
    if (r.n_unused_pairs)
        fprintf(out, "; %llu pairs are left out (data.max_pairs)", (unsigned long long)r.n_unused_pairs);
    if (isfinite(r.entropy_per_token)) fprintf(out, ", entropy %.4f nats per token", r.entropy_per_token);
    fputc('\n', out);
    print_lengths(d, q, out);
    if (r.n_files > 1) print_files(d, out);
}

/* ---- warnings -------------------------------------------------------------------------------------------------------- */

/* Warns from one record in a hundred: fewer are odd long ones, more is data that the user believes to train on. */
static void warn_of_short_rows(const data_report *r, data_kind kind, long long seq_len) {
    uint64_t longer = r->n_cut_documents + r->n_dropped_documents;
    if (longer * 100 < r->n_documents || longer == 0) return;
    if (kind != DATA_TEXT) {
        log_warn("%llu of %llu examples are longer than a row of %lld tokens and are dropped; a larger data.seq_len "
                 "keeps them",
                 (unsigned long long)longer, (unsigned long long)r->n_documents, seq_len);
        return;
    }
    log_warn("%llu of %llu records are longer than a row of %lld tokens: %llu are cut at its end, %llu are dropped "
             "because their response begins after it; a larger data.seq_len keeps them",
             (unsigned long long)longer, (unsigned long long)r->n_documents, seq_len,
             (unsigned long long)r->n_cut_documents, (unsigned long long)r->n_dropped_documents);
}

/* Fine-tuning sees a small set often: after some epochs the model knows it by heart. */
static void warn_of_epochs(const train_request *r, double epochs) {
    enum { MANY = 10 };
    if (!r->pretrained || epochs <= MANY) return;
    double three = 3 * (double)r->train.steps / epochs;
    if (three < 0.5) {
        log_warn(
            "train.steps %lld are %.1f epochs of this data, and a pretrained model usually learns it by heart after a "
            "few: a single step is %.1f of them; give more data, or a smaller train.batch",
            (long long)r->train.steps, epochs, epochs / (double)r->train.steps);
        return;
    }
    log_warn(
        "train.steps %lld are %.1f epochs of this data; a pretrained model usually learns it by heart after a few: "
        "%lld steps are 3 epochs",
        (long long)r->train.steps, epochs, (long long)fmax(1, round(three)));
}

/* Where no chat format marks the turns, nothing tells the model where a prompt ends. */
static void warn_of_glued_pairs(const train_request *q, const dataset *d, const data_report *r) {
    if (r->chat != CHAT_NONE || !data_pairs_are_glued(&q->data)) return;
    chat *c = NULL; /* as data.chat=auto has it */
    bool opened =
        chat_open(&c, dataset_tokenizer(d), q->data.tokenizer, &(chat_options){.kwargs = q->data.chat_kwargs}) == OK;
    bool has_format = opened && chat_format_of(c) != CHAT_NONE;
    if (!opened) error_clear();
    chat_close(c);
    log_warn("%s: prompt and response follow each other without a separator; %s, or end the prompts with a newline",
             q->data.chat == CHAT_NONE ? "data.chat is none" : "the tokenizer has no chat template",
             has_format ? "set data.chat=auto" : "put a chat_template.jinja into the tokenizer's directory");
}

static void warn_of_prompts(const train_request *q, const data_report *r) {
    if (r->n_dropped_documents)
        log_warn("%llu prompts leave no room for a completion in rows of %lld tokens and are left out (rl.skip_long)",
                 (unsigned long long)r->n_dropped_documents, (long long)q->data.seq_len);
    if (r->n_skipped)
        log_warn("%llu lines that are no records were skipped (data.on_error)", (unsigned long long)r->n_skipped);
}

void train_data_warn(const dataset *d, const train_request *q, const plan *p) {
    data_report r;
    dataset_report(d, SPLIT_TRAIN, &r);
    if (dataset_kind(d) == DATA_PROMPTS) {
        warn_of_prompts(q, &r);
        return;
    }
    warn_of_short_rows(&r, dataset_kind(d), q->data.seq_len);
    warn_of_glued_pairs(q, d, &r);
    warn_of_epochs(q, train_epochs(d, p, q->train.steps));
}
