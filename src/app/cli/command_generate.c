/* command_generate.c - ralo generate: completions of one or many prompts. */
#include "cli/console.h"
#include "cli/groups.h"
#include "cli/output.h"

#include <stdlib.h>
#include <string.h>

#define STDIN_MOST ((size_t)256 << 20)

/* Flags that do not apply to these prompts are refused: the user would believe that they had an effect. */
static status refuse_unused_flags(const command_line *l) {
    static const char *const for_records[] = {"prompt-column", "on-error"};
    if (l->prompt_file && data_is_records(l->prompt_file)) return OK;
    for (size_t i = 0; i < ARRAY_LENGTH(for_records); i++)
        if (command_line_given(l, for_records[i]))
            return ERR(ERR_INPUT, "generate: --%s is for a --prompt-file of JSON Lines (.jsonl, .json, .ndjson)",
                       for_records[i]);
    return OK;
}

static status check(const command_line *l) {
    const sampling_options *s = &l->sampling;
    const char *from = l->arguments[0];
    if (from && strcmp(from, "-") != 0)
        return ERR(ERR_INPUT, "generate: found '%.100s', expected a flag; give text with --prompt, or - for stdin",
                   from);
    if (l->prompts.n == 0 && !l->prompt_file && !from && !l->plan)
        return ERR(ERR_INPUT, "generate: found no prompt, expected --prompt TEXT, --prompt-file FILE, or - for stdin");
    if (l->timeline && !l->plan)
        return ERR(ERR_INPUT, "generate: --timeline %.200s draws a plan; add --plan", l->timeline);
    if (l->timeline) TRY(plan_timeline_check(l->timeline));
    if (s->n_completions > 1 && s->temperature == 0)
        return ERR(ERR_INPUT, "generate: -n %lld greedy completions would all be the same; set --temperature above 0",
                   (long long)s->n_completions);
    return refuse_unused_flags(l);
}

static status add_prompt(questions *q, const char *text) {
    if (strcmp(text, "-") != 0) {
        questions_add(q, text, strlen(text));
        return OK;
    }
    char *input;
    size_t n;
    TRY(file_read_all("/dev/stdin", STDIN_MOST, &input, &n));
    questions_add(q, input, n);
    free(input);
    return OK;
}

static status collect_prompts(const command_line *l, questions *q) {
    for (size_t i = 0; i < l->prompts.n; i++) TRY(add_prompt(q, l->prompts.items[i]));
    if (l->arguments[0]) TRY(add_prompt(q, l->arguments[0]));
    if (l->prompt_file) TRY(questions_read(q, l->prompt_file, &l->records, false, 0));
    return OK;
}

/* ---- output ------------------------------------------------------------------------------------------------------ */

static void print_answer(const ended_answer *a) {
    printf("--- prompt %zu", a->prompt + 1);
    if (a->adapter) printf(", adapter %s", a->adapter);
    if (a->n_each > 1) printf(", completion %lld", (long long)a->index + 1);
    printf(" (%s after %zu tokens)\n", stop_reason_name(a->completion->stop), a->completion->n_tokens);
    console_write_text(a->completion->text, a->completion->text_bytes);
    putchar('\n');
    fflush(stdout);
}

static json_t *ids_json(const int32_t *ids, size_t n) {
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_integer(ids[i]));
    return list;
}

/* Tokens of a sequence that one decode step gave it, on average. */
static double tokens_per_pass(const generation_report *r) {
    return r->verified ? 1 + (double)r->accepted / (double)r->verified : 1;
}

static double acceptance(const generation_report *r) {
    return r->drafted ? (double)r->accepted / (double)r->drafted : 0;
}

static json_t *speculative_json(const generation_report *r) {
    return json_pack("{s:I, s:I, s:f, s:I, s:f}", "drafted", (json_int_t)r->drafted, "accepted",
                     (json_int_t)r->accepted, "acceptance", acceptance(r), "passes", (json_int_t)r->verified,
                     "tokens_per_pass", tokens_per_pass(r));
}

static json_t *completion_json(const answer *a, const completion *c) {
    span text = question_text(a->question);
    json_t *one = json_pack("{s:o, s:o, s:o, s:o, s:s, s:f}", "prompt", json_text(text.text, text.length),
                            "prompt_tokens", ids_json(a->prompt.tokens, a->prompt.n_tokens), "tokens",
                            ids_json(c->tokens, c->n_tokens), "text", json_text(c->text, c->text_bytes), "stop",
                            stop_reason_name(c->stop), "log_probability", c->log_probability);
    if (a->adapter) json_object_set_new(one, "adapter", json_string(a->adapter));
    return one;
}

/* As --weights has them, or model.base of the adapters. */
static const char *weights_name(const plan *p) {
    const plan_request *r = &p->request;
    base_format f = r->generation.weights != BASE_COMPUTE ? r->generation.weights : r->base;
    return f == BASE_COMPUTE ? "precision" : base_format_name(f);
}

static void print_json(const generator *g, const groups *of, const answer *all, size_t n_prompts, int64_t n_each) {
    json_t *root = json_object(), *list = json_array();
    const generation_report *r = &of->report;
    for (size_t i = 0; i < n_prompts * (size_t)n_each; i++) {
        const answer *a = &all[i / (size_t)n_each];
        json_array_append_new(list, completion_json(a, &a->completions[i % (size_t)n_each]));
    }
    json_object_set_new(root, "completions", list);
    if (of->chat != CHAT_AUTO) json_object_set_new(root, "chat", json_string(chat_format_name(of->chat)));
    json_object_set_new(root, "skipped", json_integer((json_int_t)of->n_skipped));
    double seconds = r->prefill_seconds + r->decode_seconds;
    json_object_set_new(root, "tokens_per_second", json_real(seconds > 0 ? (double)r->new_tokens / seconds : 0));
    json_object_set_new(root, "weights", json_string(weights_name(generator_plan(g))));
    json_object_set_new(root, "prefill_seconds", json_real(r->prefill_seconds));
    json_object_set_new(root, "decode_seconds", json_real(r->decode_seconds));
    json_object_set_new(root, "shared_tokens", json_integer((json_int_t)r->shared_tokens));
    if (generator_plan(g)->request.generation.heads > 1) json_object_set_new(root, "speculative", speculative_json(r));
    json_object_set_new(root, "strategy", plan_strategy_json(generator_plan(g)));
    json_object_set_new(root, "memory", memory_json(generator_plan(g), &r->memory));
    json_print(root, "generate", 9);
}

static void print_summary(const generator *g, const groups *of, size_t n_prompts) {
    char a[32], b[32], skipped[48];
    size_t n_cut = 0;
    const generation_report *r = &of->report;
    double seconds = r->prefill_seconds + r->decode_seconds;
    if (of->chat != CHAT_AUTO)
        fprintf(stderr, "prompts   %zu, chat %s%s\n", n_prompts, chat_format_name(of->chat),
                skipped_text(skipped, of->n_skipped));
    for (size_t i = 0; i < of->n; i++) {
        n_cut += of->items[i].n_cut;
        if (of->items[i].adapter && of->items[i].q.n)
            fprintf(stderr, "adapter   %s: %zu prompt%s\n", of->items[i].adapter, of->items[i].q.n,
                    of->items[i].q.n == 1 ? "" : "s");
    }
    fprintf(stderr, "generated %llu token%s after %llu prompt token%s", (unsigned long long)r->new_tokens,
            r->new_tokens == 1 ? "" : "s", (unsigned long long)r->prompt_tokens, r->prompt_tokens == 1 ? "" : "s");
    if (r->shared_tokens) fprintf(stderr, " (%llu of them shared)", (unsigned long long)r->shared_tokens);
    fprintf(stderr, " in %.2f s: %.1f tokens/s\n", seconds, seconds > 0 ? (double)r->new_tokens / seconds : 0);
    if (generator_plan(g)->request.generation.heads > 1)
        fprintf(stderr, "drafts    %llu of %llu accepted (%.1f %%): %.2f tokens per pass instead of 1\n",
                (unsigned long long)r->accepted, (unsigned long long)r->drafted, 100 * acceptance(r),
                tokens_per_pass(r));
    if (n_cut)
        fprintf(stderr, "cut       %zu completion%s stopped at --max-new or the context, not by the model\n", n_cut,
                n_cut == 1 ? "" : "s");
    fprintf(stderr, "memory    device %s planned, %s used\n",
            str_format_bytes(a, generator_plan(g)->planned[TIER_DEVICE]),
            str_format_bytes(b, r->memory.peak[TIER_DEVICE]));
}

/* ---- run --------------------------------------------------------------------------------------------------------- */

/* What was not told while it was made. */
static void print_rest(const generator *g, const groups *of, const command_line *l) {
    size_t n;
    int64_t n_each = l->sampling.n_completions;
    answer *all = groups_answers(of, n_each, &n);
    if (l->json) print_json(g, of, all, n, n_each);
    else if (of->streams &&
             (all->completions->text_bytes == 0 || all->completions->text[all->completions->text_bytes - 1] != '\n'))
        putchar('\n');
    fflush(stdout);
    print_summary(g, of, n);
    free(all);
}

static status generate(command_line *l, const questions *q) {
    status rc = OK;
    groups of;
    generator *g = NULL;
    size_t n = q->n * (size_t)l->sampling.n_completions;
    if (!l->generation.max_sequences) l->generation.max_sequences = (int64_t)MIN(n, (size_t)32);
    TRY(groups_make(&of, q, l));
    TRY_GOTO(rc, generator_open(&g, &l->generation), done);
    TRY_GOTO(rc, groups_run(&of, g, l, l->json ? NULL : &(groups_observer){console_write_text, print_answer}), done);
    print_rest(g, &of, l);
done:
    groups_fini(&of);
    generator_close(g);
    return rc;
}

static status show_plan(const command_line *l) {
    plan p;
    TRY(generator_plan_compile(&p, &l->generation));
    FILE *out = report_stream(l->json);
    plan_print_answer(&p, &(plan_outlook){0}, out);
    plan_print(&p, out);
    fflush(stdout);
    status rc = OK;
    if (l->timeline) TRY_GOTO(rc, plan_timeline_write(&p, l->timeline), done);
    rc = plan_check_fit(&p);
    if (l->json) {
        json_t *root =
            json_pack("{s:o, s:s, s:o, s:o}", "model", json_name(model_of(&p.request.source)->name), "weights",
                      weights_name(&p), "strategy", plan_strategy_json(&p), "memory", plan_memory_json(&p));
        if (l->timeline) json_object_set_new(root, "timeline", json_text(l->timeline, strlen(l->timeline)));
        json_print(root, "generate plan", ALL_DIGITS);
    }
done:
    plan_close(&p);
    return rc;
}

status command_generate(command_line *l) {
    questions q;
    TRY(check(l));
    TRY(adapters_from_flags(l));
    TRY(generation_from_flags(l));
    TRY(sampling_check(&l->sampling));
    if (l->plan) return show_plan(l);
    questions_init(&q);
    status rc = collect_prompts(l, &q);
    if (rc == OK) rc = generate(l, &q);
    questions_fini(&q);
    return rc;
}
