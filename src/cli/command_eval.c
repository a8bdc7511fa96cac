/* command_eval.c - ralo eval: perplexity on a text, right answers on questions. */
#include "cli/answers.h"
#include "cli/arguments.h"
#include "cli/output.h"
#include "cli/questions.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct eval_arguments {
    generator_options model;
    sampling_options sampling;
    text_list stops, rest;
    const char *data, *regex;
    double last;
    int64_t seq_len, samples, k, limit, threads;
    bool json, help;
} eval_arguments;

/* Options that say nothing for this kind of file are refused: they would be taken for done. */
static status refuse_idle(bool questions, int argc, char **argv) {
    static const char *const for_text[] = {"last", "seq-len"};
    static const char *const for_questions[] = {"answer-regex",       "samples", "k",       "limit", "max-new",
                                                "temperature",        "top-k",   "top-p",   "min-p", "seed",
                                                "repetition-penalty", "stop",    "context", "cache", "page-size"};
    const char *const *idle = questions ? for_text : for_questions;
    size_t n = questions ? ARRAY_LENGTH(for_text) : ARRAY_LENGTH(for_questions);
    for (size_t i = 0; i < n; i++)
        if (argument_given(idle[i], argc, argv))
            return ERR(ERR_INPUT, "eval: --%s is for %s", idle[i],
                       questions ? "texts; a .jsonl holds questions" : "questions in a .jsonl; this is a text");
    return OK;
}

static status parse(eval_arguments *a, int argc, char **argv) {
    *a = (eval_arguments){
        .sampling = SAMPLING_DEFAULTS, .model.backend = backend_cpu(), .last = 1, .samples = 1, .k = 1};
    generator_options *m = &a->model;
    sampling_options *s = &a->sampling;
    int64_t seed = 0;
    const argument_row rows[] = {
        {"model", ARG_TEXT, &m->source, 0, 0},
        {"data", ARG_TEXT, &a->data, 0, 0},
        {"last", ARG_REAL, &a->last, 0, 1},
        {"seq-len", ARG_INTEGER, &a->seq_len, 1, 1e9},
        {"answer-regex", ARG_TEXT, &a->regex, 0, 0},
        {"samples", ARG_INTEGER, &a->samples, 1, 1 << 20},
        {"k", ARG_INTEGER, &a->k, 1, 1 << 20},
        {"limit", ARG_INTEGER, &a->limit, 1, 1e9},
        {"max-new", ARG_INTEGER, &s->max_new, 1, 1e9},
        {"temperature", ARG_REAL, &s->temperature, 0, 1000},
        {"top-k", ARG_INTEGER, &s->top_k, 0, 1e9},
        {"top-p", ARG_REAL, &s->top_p, 0, 1},
        {"min-p", ARG_REAL, &s->min_p, 0, 1},
        {"repetition-penalty", ARG_REAL, &s->repetition_penalty, 0.01, 100},
        {"stop", ARG_TEXTS, &a->stops, 0, 0},
        {"seed", ARG_INTEGER, &seed, 0, 9e15},
        {"batch", ARG_INTEGER, &m->max_sequences, 1, 65536},
        {"context", ARG_INTEGER, &m->context, 2, 1e9},
        {"page-size", ARG_INTEGER, &m->page_size, 1, 65536},
        {"cache", ARG_BYTES, &m->cache_bytes, 0, 0},
        {"device-memory", ARG_BYTES, &m->device_limit, 0, 0},
        {"precision", ARG_PRECISION, &m->precision, 0, 0},
        {"threads", ARG_INTEGER, &a->threads, 1, 4096},
        {"json", ARG_SWITCH, &a->json, 0, 0},
        {"help", ARG_SWITCH, &a->help, 0, 0},
    };
    TRY(arguments_parse("eval", rows, ARRAY_LENGTH(rows), argc, argv, &a->rest));
    s->seed = (uint64_t)seed;
    s->stops = a->stops.items;
    s->n_stops = a->stops.n;
    s->n_completions = a->samples;
    m->n_threads = (int)a->threads;
    if (a->help) return OK;
    TRY(sampling_check(s));
    if (a->rest.n)
        return ERR(ERR_INPUT, "eval: found '%s', expected options; the file is given with --data", a->rest.items[0]);
    if (!m->source) return ERR(ERR_INPUT, "eval: --model is missing: a Hugging Face, run or checkpoint directory");
    if (!a->data) return ERR(ERR_INPUT, "eval: --data is missing: a text, or a .jsonl with questions and answers");
    TRY(refuse_idle(str_ends_with(a->data, ".jsonl"), argc, argv));
    if (a->k > a->samples)
        return ERR(ERR_INPUT, "eval: --k %lld of --samples %lld: expected at least as many samples", (long long)a->k,
                   (long long)a->samples);
    if (a->samples > 1 && s->temperature == 0)
        return ERR(ERR_INPUT, "eval: --samples %lld without --temperature are all the same; give one above 0",
                   (long long)a->samples);
    return OK;
}

static void print_usage(void) {
    puts("ralo eval --model DIR --data FILE\n"
         "  --model DIR             a Hugging Face directory, a run or a checkpoint\n"
         "  --batch N --precision fp32|bf16|fp16 --device-memory SIZE --threads N --json\n"
         "A text: loss, perplexity and bits per byte, over windows that do not overlap\n"
         "  --last SHARE            only this share of its end, as 0.05\n"
         "  --seq-len N             tokens per window (512, or the model's positions)\n"
         "A .jsonl of {\"question\", \"answer\"} or {\"prompt\", \"completion\"}: share of right answers\n"
         "  --answer-regex RE       what counts of answer and completion: last match, first group (PCRE2)\n"
         "  --samples N --k K       N tries per question: exact match and pass@K, without bias\n"
         "  --limit N               only the first N questions\n"
         "  --max-new N --temperature T --top-k K --top-p P --min-p P --repetition-penalty R --stop TEXT --seed S\n"
         "  --context N --page-size N --cache SIZE     as in ralo generate");
}

/* ---- progress ---------------------------------------------------------------------------------------------------- */

/* One line that is written over on a terminal; elsewhere a line at every tenth. */
typedef struct progress {
    int last_tenth;
    bool terminal;
} progress;

static void progress_print(progress *p, uint64_t done, uint64_t all, const char *text) {
    int tenth = (int)(done * 10 / all);
    if (p->terminal) fprintf(stderr, "\r%3d %%  %s%s", (int)(done * 100 / all), text, done == all ? "\n" : "");
    else if (tenth > p->last_tenth) fprintf(stderr, "%3d %%  %s\n", (int)(done * 100 / all), text);
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

static void print_text_json(const eval_arguments *a, const perplexity_report *r, json_t *memory) {
    json_t *root =
        json_pack("{s:s, s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:o}", "model", a->model.source, "data", a->data,
                  "bytes", (json_int_t)r->n_bytes, "tokens", (json_int_t)r->n_tokens, "seq_len", (json_int_t)r->seq_len,
                  "loss", r->loss, "perplexity", r->perplexity, "bits_per_byte", r->bits_per_byte, "tokens_per_second",
                  r->seconds > 0 ? (double)r->n_predicted / r->seconds : 0.0, "memory", memory);
    json_dumpf(root, stdout, JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(12));
    putchar('\n');
    json_decref(root);
}

static status eval_text(const eval_arguments *a) {
    text_eval t = {.progress.terminal = isatty(STDERR_FILENO)};
    perplexity_options o = {.source = a->model.source,
                            .path = a->data,
                            .last = a->last,
                            .seq_len = a->seq_len,
                            .batch = a->model.max_sequences,
                            .precision = a->model.precision,
                            .device_limit = a->model.device_limit,
                            .n_threads = a->model.n_threads,
                            .backend = a->model.backend};
    perplexity_observer observer = {&t, on_plan, on_windows};
    perplexity_report r;
    status rc = perplexity_measure(&o, &observer, &r);
    if (rc == OK) {
        char x[32], y[32];
        fprintf(stderr,
                "text      %s: %llu tokens of %llu bytes in windows of %lld, %.1f tokens/s\n"
                "loss      %.6f nats per token, perplexity %.4f, %.4f bits per byte\n"
                "memory    device %s planned, %s used\n",
                a->data, (unsigned long long)r.n_tokens, (unsigned long long)r.n_bytes, (long long)r.seq_len,
                r.seconds > 0 ? (double)r.n_predicted / r.seconds : 0, r.loss, r.perplexity, r.bits_per_byte,
                str_format_bytes(x, t.planned), str_format_bytes(y, r.memory.peak[TIER_DEVICE]));
        if (a->json) {
            memory_json_add(t.memory, &r.memory, t.host);
            print_text_json(a, &r, json_incref(t.memory));
        }
    }
    json_decref(t.memory);
    return rc;
}

/* ---- questions --------------------------------------------------------------------------------------------------- */

typedef struct question_eval {
    const questions *q;
    const answer_rule *rule;
    span *references;
    int64_t *n_right; /* per question */
    int64_t samples;
    uint64_t done, right;
    progress progress;
} question_eval;

static void on_completion(void *context, size_t prompt, size_t index, const completion *c) {
    question_eval *e = context;
    span got;
    char line[96];
    uint64_t all = e->q->n * (uint64_t)e->samples;
    bool right = answer_find(e->rule, c->text, c->text_bytes, &got) && answer_equal(got, e->references[prompt]);
    e->n_right[prompt] += right;
    e->right += right;
    e->done++;
    snprintf(line, sizeof line, "answer %llu/%llu  right %.1f %%", (unsigned long long)e->done, (unsigned long long)all,
             100.0 * (double)e->right / (double)e->done);
    progress_print(&e->progress, e->done, all, line);
}

/* The answers to compare with, found before anything is asked. */
static status find_references(question_eval *e, const char *path) {
    for (size_t i = 0; i < e->q->n; i++)
        if (!answer_find(e->rule, e->q->items[i].answer, strlen(e->q->items[i].answer), &e->references[i]))
            return ERR(ERR_INPUT, "%s:%zu: the answer has nothing that --answer-regex matches: '%.80s'", path,
                       e->q->items[i].line, e->q->items[i].answer);
    return OK;
}

static double mean_pass(const question_eval *e, int64_t k) {
    double sum = 0;
    for (size_t i = 0; i < e->q->n; i++) sum += pass_at_k(e->samples, e->n_right[i], k);
    return sum / (double)e->q->n;
}

static void print_questions(const eval_arguments *a, const generator *g, const question_eval *e,
                            const generation_report *r) {
    double seconds = r->prefill_seconds + r->decode_seconds, rate = seconds > 0 ? (double)r->new_tokens / seconds : 0;
    double exact = (double)e->right / (double)e->done;
    char x[32], y[32];
    fprintf(stderr, "questions %s: %zu, %lld sample%s each, %.1f tokens/s\nright     exact match %.2f %%", a->data,
            e->q->n, (long long)e->samples, e->samples == 1 ? "" : "s", rate, 100 * exact);
    if (e->samples > 1) fprintf(stderr, ", pass@%lld %.2f %%", (long long)a->k, 100 * mean_pass(e, a->k));
    fprintf(stderr, "\nmemory    device %s planned, %s used\n",
            str_format_bytes(x, generator_plan(g)->planned[TIER_DEVICE]),
            str_format_bytes(y, r->memory.peak[TIER_DEVICE]));
    if (!a->json) return;
    json_t *root =
        json_pack("{s:s, s:s, s:I, s:I, s:f, s:I, s:f, s:I, s:f, s:o}", "model", a->model.source, "data", a->data,
                  "problems", (json_int_t)e->q->n, "samples", (json_int_t)e->samples, "exact_match", exact, "k",
                  (json_int_t)a->k, "pass_at_k", mean_pass(e, a->k), "tokens", (json_int_t)r->new_tokens,
                  "tokens_per_second", rate, "memory", memory_json(generator_plan(g), &r->memory));
    json_dumpf(root, stdout, JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(12));
    putchar('\n');
    json_decref(root);
}

static status ask(eval_arguments *a, question_eval *e) {
    status rc = OK;
    generator *g = NULL;
    completion *c = NULL;
    generation_report r;
    size_t n = e->q->n * (size_t)e->samples;
    generation_observer observer = {.context = e, .on_completion = on_completion};
    if (!a->model.max_sequences) a->model.max_sequences = (int64_t)MIN(n, (size_t)32);
    TRY(generator_open(&g, &a->model));
    prompt *prompts = mem_alloc(e->q->n * sizeof *prompts);
    TRY_GOTO(rc, questions_encode(e->q, g, prompts), done);
    TRY_GOTO(rc, generator_run(g, prompts, e->q->n, &a->sampling, &observer, &c, &r), done);
    print_questions(a, g, e, &r);
done:
    completions_free(c, n);
    questions_free_prompts(prompts, e->q->n);
    generator_close(g);
    return rc;
}

static status eval_questions(eval_arguments *a) {
    status rc = OK;
    questions q;
    answer_rule *rule = NULL;
    question_eval e = {.q = &q, .samples = a->samples, .progress.terminal = isatty(STDERR_FILENO)};
    questions_init(&q);
    TRY_GOTO(rc, answer_rule_open(&rule, a->regex), done);
    TRY_GOTO(rc, questions_read(&q, a->data, true), done);
    if (a->limit) q.n = MIN(q.n, (size_t)a->limit);
    e.rule = rule;
    e.references = mem_alloc(q.n * sizeof *e.references);
    e.n_right = mem_alloc(q.n * sizeof *e.n_right);
    TRY_GOTO(rc, find_references(&e, a->data), done);
    rc = ask(a, &e);
done:
    free(e.references);
    free(e.n_right);
    answer_rule_close(rule);
    questions_fini(&q);
    return rc;
}

status command_eval(int argc, char **argv) {
    eval_arguments a;
    status rc = parse(&a, argc, argv);
    if (rc == OK && a.help) print_usage();
    else if (rc == OK) rc = str_ends_with(a.data, ".jsonl") ? eval_questions(&a) : eval_text(&a);
    text_list_fini(&a.stops);
    text_list_fini(&a.rest);
    return rc;
}
