/* command_eval.c - ralo eval: perplexity on a text, right answers and the loss of the responses on questions. */
#include "cli/answers.h"
#include "cli/console.h"
#include "cli/output.h"
#include "cli/questions.h"
#include "reward/reward.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Flags that do not apply to this kind of file are refused: the user would believe that they had an effect. */
static status refuse_unused_flags(const command_line *l, bool questions) {
    static const char *const for_text[] = {"last", "seq-len"};
    static const char *const for_questions[] = {
        "answer-regex",  "samples-out",     "samples",     "k",           "limit",
        "max-new",       "max-new-tokens",  "speculative", "draft-max",   "temperature",
        "top-k",         "top-p",           "min-p",       "seed",        "cache",
        "prompt-column", "response-column", "on-error",    "context",     "repetition-penalty",
        "stop",          "page-size",       "chat",        "chat-kwargs", "system"};
    const char *const *idle = questions ? for_text : for_questions;
    size_t n = questions ? ARRAY_LENGTH(for_text) : ARRAY_LENGTH(for_questions);
    for (size_t i = 0; i < n; i++)
        if (command_line_given(l, idle[i]))
            return ERR(ERR_INPUT, "eval: --%s is for %s", idle[i],
                       questions ? "text; this file is JSON Lines with questions"
                                 : "questions in JSON Lines; this file is text");
    return OK;
}

static status check(const command_line *l) {
    TRY(refuse_unused_flags(l, data_is_records(l->data)));
    if (l->k > l->samples)
        return ERR(ERR_INPUT, "eval: --k %lld with --samples %lld: expected at least as many samples", (long long)l->k,
                   (long long)l->samples);
    if (l->samples > 1 && l->sampling.temperature == 0)
        return ERR(ERR_INPUT,
                   "eval: --samples %lld without --temperature would all be the same; set --temperature above 0",
                   (long long)l->samples);
    return OK;
}

/* ---- progress ---------------------------------------------------------------------------------------------------- */

/* On a terminal one line that is redrawn; elsewhere a line at every tenth. */
typedef struct progress {
    int last_tenth;
    bool terminal;
} progress;

static void progress_print(progress *p, uint64_t done, uint64_t all, const char *text) {
    int tenth = (int)(done * 10 / all);
    char line[128];
    snprintf(line, sizeof line, "%3d %%  %s", (int)(done * 100 / all), text);
    if (p->terminal) console_redraw(line, done == all);
    else if (tenth > p->last_tenth) fprintf(stderr, "%s\n", line);
    p->last_tenth = MAX(p->last_tenth, tenth);
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

typedef struct text_eval {
    progress progress;
    json_t *memory; /* of the plan, while it is there */
    uint64_t planned, host;
} text_eval;

static void on_plan(void *context, const plan *p) {
    text_eval *t = context;
    t->memory = plan_memory_json(p);
    t->planned = p->planned[TIER_DEVICE];
    t->host = p->request.host_bytes;
}

static void on_windows(void *context, uint64_t done, uint64_t all, double loss) {
    text_eval *t = context;
    char line[96];
    snprintf(line, sizeof line, "window %llu/%llu  loss %.4f", (unsigned long long)done, (unsigned long long)all, loss);
    progress_print(&t->progress, done, all, line);
}

static void print_text_json(const command_line *l, const perplexity_report *r, json_t *memory) {
    json_t *root = json_pack(
        "{s:o, s:o, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:o}", "model", json_name(l->generation.source), "data",
        json_name(l->data), "bytes", (json_int_t)r->n_bytes, "tokens", (json_int_t)r->n_tokens, "seq_len",
        (json_int_t)r->seq_len, "loss", r->loss, "perplexity", r->perplexity, "bits_per_byte", r->bits_per_byte,
        "tokens_per_second", r->seconds > 0 ? (double)r->n_predicted / r->seconds : 0.0, "memory", memory);
    json_print(root, "eval text", 12);
}

static perplexity_options perplexity_of(const command_line *l) {
    return (perplexity_options){.source = l->generation.source,
                                .adapter = l->generation.adapter,
                                .tokenizer = l->generation.tokenizer,
                                .path = l->data,
                                .last = l->last,
                                .seq_len = l->seq_len,
                                .batch = l->generation.max_sequences,
                                .precision = l->generation.precision,
                                .device_limit = l->generation.device_limit,
                                .n_threads = l->generation.n_threads,
                                .backend = l->generation.backend,
                                .gpu = l->generation.gpu};
}

static status eval_text(const command_line *l) {
    text_eval t = {.progress.terminal = isatty(STDERR_FILENO)};
    perplexity_options o = perplexity_of(l);
    perplexity_observer observer = {&t, on_plan, on_windows};
    perplexity_report r;
    status rc = perplexity_measure(&o, &observer, &r);
    if (rc == OK) {
        char x[32], y[32];
        fprintf(report_stream(l->json),
                "text      %s: %llu tokens of %llu bytes in windows of %lld, %.1f tokens/s\n"
                "loss      %.6f nats per token, perplexity %.4f, %.4f bits per byte\n"
                "memory    device %s planned, %s used\n",
                l->data, (unsigned long long)r.n_tokens, (unsigned long long)r.n_bytes, (long long)r.seq_len,
                r.seconds > 0 ? (double)r.n_predicted / r.seconds : 0, r.loss, r.perplexity, r.bits_per_byte,
                str_format_bytes(x, t.planned), str_format_bytes(y, r.memory.peak[TIER_DEVICE]));
        if (l->json) {
            memory_json_add(t.memory, &r.memory, t.host);
            print_text_json(l, &r, json_incref(t.memory));
        }
    }
    json_decref(t.memory);
    return rc;
}

/* ---- questions --------------------------------------------------------------------------------------------------- */

typedef enum compared { COMPARED_WHOLE, COMPARED_MARKED, COMPARED_REGEX } compared;
static const char *const compared_names[] = {"whole", "marked", "regex"};

typedef struct question_eval {
    questions *q;
    const answer_rule *rule;
    compared compared;
    asked asked;
    int64_t *n_right; /* per question */
    int64_t samples;
    uint64_t done, right;
    progress progress;
    FILE *kept;     /* --samples-out; NULL: none */
    int kept_errno; /* the first write that failed; 0: none did */
    uint64_t n_kept;
    /* Of the generator, which is closed before the loss is measured: only one model is in memory at a time. */
    generation_report report;
    size_t n_cut;
    uint64_t planned;
    json_t *memory;
    perplexity_report loss;
} question_eval;

/* One line for --samples-out. */
static void keep_completion(question_eval *e, size_t prompt, size_t index, const completion *c, const span *got,
                            bool right) {
    const question *q = &e->q->items[prompt];
    span asked = question_text(q);
    json_t *line = json_pack("{s:o, s:I, s:I, s:o, s:o, s:o, s:o, s:b, s:s}", "file", json_name(q->record.path), "line",
                             (json_int_t)q->record.line, "sample", (json_int_t)index, "prompt",
                             json_text(asked.text, asked.length), "completion", json_text(c->text, c->text_bytes),
                             "expected", json_text(q->expected.text, q->expected.length), "answer",
                             got ? json_text(got->text, got->length) : json_null(), "right", right, "stop",
                             stop_reason_name(c->stop));
    /* Whole lines, whatever becomes of the program; none after one that could not be written. */
    if (json_dumpf(line, e->kept, JSON_COMPACT | JSON_PRESERVE_ORDER) != 0 || fputc('\n', e->kept) == EOF ||
        fflush(e->kept) != 0)
        e->kept_errno = errno;
    else e->n_kept++;
    json_decref(line);
}

static void on_completion(void *context, size_t prompt, size_t index, const completion *c) {
    question_eval *e = context;
    span got;
    char line[96];
    uint64_t all = e->q->n * (uint64_t)e->samples;
    bool found = answer_find(e->rule, c->text, c->text_bytes, &got);
    bool right = found && answer_equal(got, e->q->items[prompt].expected);
    if (e->kept && !e->kept_errno) keep_completion(e, prompt, index, c, found ? &got : NULL, right);
    e->n_right[prompt] += right;
    e->right += right;
    e->done++;
    snprintf(line, sizeof line, "answer %llu/%llu  right %.1f %%", (unsigned long long)e->done, (unsigned long long)all,
             100.0 * (double)e->right / (double)e->done);
    progress_print(&e->progress, e->done, all, line);
}

/* Solutions that end in a marked answer are right by that answer: no model writes the way to it word by word. */
static bool all_marked(const questions *q) {
    bool marked = q->n > 0;
    for (size_t i = 0; i < q->n && marked; i++) answer_extract(q->items[i].answer, &marked);
    return marked;
}

/* The answers to compare with, found before anything is asked. */
static status find_references(questions *q, const answer_rule *rule) {
    for (size_t i = 0; i < q->n; i++) {
        question *item = &q->items[i];
        if (!answer_find(rule, item->answer.text, item->answer.length, &item->expected))
            return ERR(ERR_INPUT, "%s:%llu: --answer-regex matches nothing in the answer: '%.80s'", item->record.path,
                       (unsigned long long)item->record.line, item->answer.text);
    }
    return OK;
}

static double mean_pass(const question_eval *e, int64_t k) {
    double sum = 0;
    for (size_t i = 0; i < e->q->n; i++) sum += pass_at_k(e->samples, e->n_right[i], k);
    return sum / (double)e->q->n;
}

static void print_questions(const command_line *l, const question_eval *e) {
    const generation_report *r = &e->report;
    double seconds = r->prefill_seconds + r->decode_seconds, rate = seconds > 0 ? (double)r->new_tokens / seconds : 0;
    double exact = (double)e->right / (double)e->done;
    char x[32], y[32], skipped[48];
    FILE *out = report_stream(l->json);
    fprintf(out,
            "questions %s: %zu, chat %s%s, %lld sample%s each, %zu cut by --max-new %lld, %.1f "
            "tokens/s\n"
            "right     exact match %.2f %% of %s",
            l->data, e->q->n, chat_format_name(e->asked.chat), skipped_text(skipped, e->q->skips.n),
            (long long)e->samples, e->samples == 1 ? "" : "s", e->n_cut, (long long)l->sampling.max_new, rate,
            100 * exact,
            e->compared == COMPARED_REGEX    ? "what --answer-regex finds"
            : e->compared == COMPARED_MARKED ? "the marked answers (####, \\boxed{}, <answer>, \"the answer is\")"
                                             : "the whole answers; --answer-regex compares a part");
    if (e->samples > 1) fprintf(out, ", pass@%lld %.2f %%", (long long)l->k, 100 * mean_pass(e, l->k));
    fprintf(out, "\nloss      %.6f nats per token of the %llu tokens of the right answers, perplexity %.4f",
            e->loss.loss, (unsigned long long)e->loss.n_predicted, e->loss.perplexity);
    if (e->loss.n_too_long)
        fprintf(out, "; %llu longer than the model's positions are left out", (unsigned long long)e->loss.n_too_long);
    fprintf(out, "\nmemory    device %s planned, %s used\n", str_format_bytes(x, e->planned),
            str_format_bytes(y, r->memory.peak[TIER_DEVICE]));
    if (!l->json) return;
    json_t *root =
        json_pack("{s:o, s:o, s:s, s:I, s:I, s:I, s:I, s:s, s:f, s:I, s:f, s:o, s:I, s:I, s:f, s:o}", "model",
                  json_name(l->generation.source), "data", json_name(l->data), "chat", chat_format_name(e->asked.chat),
                  "problems", (json_int_t)e->q->n, "skipped", (json_int_t)e->q->skips.n, "samples",
                  (json_int_t)e->samples, "cut", (json_int_t)e->n_cut, "compared", compared_names[e->compared],
                  "exact_match", exact, "k", (json_int_t)l->k, "pass_at_k", mean_pass(e, l->k), "loss",
                  json_real_or_null(e->loss.loss), "loss_tokens", (json_int_t)e->loss.n_predicted, "tokens",
                  (json_int_t)r->new_tokens, "tokens_per_second", rate, "memory", json_incref(e->memory));
    json_print(root, "eval questions", 12);
}

/* A completion that may not be as long as the right answer can never be right: without --max-new the longest of them decides. */
static int64_t longest_answer(const asked *a) {
    int64_t longest = 0;
    for (size_t i = 0; i < a->n; i++)
        longest = MAX(longest, (int64_t)a->records[i].n - (int64_t)a->prompts[i].n_tokens);
    return longest;
}

static status answer_questions(command_line *l, question_eval *e) {
    status rc = OK;
    generator *g = NULL;
    completion *c = NULL;
    size_t n = e->q->n * (size_t)e->samples;
    generation_observer observer = {.context = e, .on_completion = on_completion};
    if (!l->generation.max_sequences) l->generation.max_sequences = (int64_t)MIN(n, (size_t)32);
    TRY(generator_open(&g, &l->generation));
    TRY_GOTO(rc, questions_encode(e->q, g, l, &e->asked), done);
    n = e->q->n * (size_t)e->samples; /* some may have been left out */
    if (!command_line_given(l, "max-new") && !command_line_given(l, "max-new-tokens"))
        l->sampling.max_new = MAX(l->sampling.max_new, longest_answer(&e->asked));
    e->n_right = mem_alloc(e->q->n * sizeof *e->n_right);
    TRY_GOTO(rc, generator_run(g, e->asked.prompts, e->q->n, &l->sampling, &observer, &c, &e->report), done);
    e->n_cut = completions_cut(g, c, n, l->sampling.max_new);
    e->planned = generator_plan(g)->planned[TIER_DEVICE];
    e->memory = memory_json(generator_plan(g), &e->report.memory);
done:
    completions_free(c, n);
    generator_close(g);
    return rc;
}

/* What training would count on these records: the tokens of the answers, with the prompts before them. */
static status measure_answers(const command_line *l, question_eval *e) {
    perplexity_options o = perplexity_of(l);
    o.records = e->asked.records;
    o.n_records = e->asked.n;
    o.batch = 0;
    return perplexity_measure(&o, NULL, &e->loss);
}

/* A new file: a name that is given twice, such as that of the data, must not cost what it holds. */
static status open_kept(const char *path, FILE **out) {
    if (!path) return OK;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0 && errno == EEXIST)
        return ERR(ERR_INPUT, "--samples-out: %s exists, expected a new file; choose another name", path);
    if (fd < 0) return ERR(ERR_IO, "--samples-out: open %s: %s", path, strerror(errno));
    *out = fdopen(fd, "w");
    if (*out) return OK;
    close(fd);
    return ERR(ERR_IO, "--samples-out: open %s: %s", path, strerror(errno));
}

static status close_kept(const char *path, const question_eval *e) {
    if (fclose(e->kept) == 0 && !e->kept_errno) return OK;
    return ERR(ERR_RUN, "--samples-out: write %s: %s; %llu of %llu completions are in it", path,
               strerror(e->kept_errno ? e->kept_errno : errno), (unsigned long long)e->n_kept,
               (unsigned long long)e->done);
}

static status eval_questions(command_line *l) {
    status rc = OK;
    questions q;
    answer_rule *rule = NULL;
    question_eval e = {.q = &q, .samples = l->samples, .progress.terminal = isatty(STDERR_FILENO)};
    questions_init(&q);
    TRY_GOTO(rc, answer_rule_open(&rule, l->answer_regex), done);
    TRY_GOTO(rc, questions_read(&q, l->data, &l->records, true, (size_t)l->limit), done);
    e.rule = rule;
    e.compared = l->answer_regex ? COMPARED_REGEX : all_marked(&q) ? COMPARED_MARKED : COMPARED_WHOLE;
    if (e.compared == COMPARED_MARKED) answer_rule_expect_marks(rule);
    TRY_GOTO(rc, find_references(&q, rule), done);
    TRY_GOTO(rc, open_kept(l->samples_out, &e.kept), done);
    TRY_GOTO(rc, answer_questions(l, &e), done);
    TRY_GOTO(rc, measure_answers(l, &e), done);
    print_questions(l, &e);
done:
    if (e.kept && rc == OK) rc = close_kept(l->samples_out, &e);
    else if (e.kept) fclose(e.kept);
    json_decref(e.memory);
    asked_fini(&e.asked);
    free(e.n_right);
    answer_rule_close(rule);
    questions_fini(&q);
    return rc;
}

status command_eval(command_line *l) {
    TRY(check(l));
    TRY(generation_from_flags(l));
    l->sampling.n_completions = l->samples;
    TRY(sampling_check(&l->sampling));
    return data_is_records(l->data) ? eval_questions(l) : eval_text(l);
}
