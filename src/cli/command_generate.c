/* command_generate.c - ralo generate: completions of one or many prompts. */
#include "cli/arguments.h"
#include "cli/output.h"
#include "cli/questions.h"

#include <stdlib.h>
#include <string.h>

#define STDIN_MOST ((size_t)256 << 20)

typedef struct generate_arguments {
    generator_options model;
    sampling_options sampling;
    text_list prompts, stops, rest;
    const char *prompt_file;
    int64_t threads;
    bool json, help, plan;
} generate_arguments;

static status parse(generate_arguments *a, int argc, char **argv) {
    *a = (generate_arguments){.sampling = SAMPLING_DEFAULTS, .model.backend = backend_cpu()};
    generator_options *m = &a->model;
    sampling_options *s = &a->sampling;
    int64_t seed = 0;
    const argument_row rows[] = {
        {"model", ARG_TEXT, &m->source, 0, 0},
        {"prompt", ARG_TEXTS, &a->prompts, 0, 0},
        {"prompt-file", ARG_TEXT, &a->prompt_file, 0, 0},
        {"max-new", ARG_INTEGER, &s->max_new, 1, 1e9},
        {"temperature", ARG_REAL, &s->temperature, 0, 1000},
        {"top-k", ARG_INTEGER, &s->top_k, 0, 1e9},
        {"top-p", ARG_REAL, &s->top_p, 0, 1},
        {"min-p", ARG_REAL, &s->min_p, 0, 1},
        {"repetition-penalty", ARG_REAL, &s->repetition_penalty, 0.01, 100},
        {"stop", ARG_TEXTS, &a->stops, 0, 0},
        {"seed", ARG_INTEGER, &seed, 0, 9e15},
        {"n", ARG_INTEGER, &s->n_completions, 1, 1 << 20},
        {"ignore-eos", ARG_SWITCH, &s->ignore_eos, 0, 0},
        {"batch", ARG_INTEGER, &m->max_sequences, 1, 65536},
        {"context", ARG_INTEGER, &m->context, 2, 1e9},
        {"page-size", ARG_INTEGER, &m->page_size, 1, 65536},
        {"cache", ARG_BYTES, &m->cache_bytes, 0, 0},
        {"device-memory", ARG_BYTES, &m->device_limit, 0, 0},
        {"precision", ARG_PRECISION, &m->precision, 0, 0},
        {"threads", ARG_INTEGER, &a->threads, 1, 4096},
        {"trace", ARG_TEXT, &m->trace_path, 0, 0},
        {"plan", ARG_SWITCH, &a->plan, 0, 0},
        {"json", ARG_SWITCH, &a->json, 0, 0},
        {"help", ARG_SWITCH, &a->help, 0, 0},
    };
    TRY(arguments_parse("generate", rows, ARRAY_LENGTH(rows), argc, argv, &a->rest));
    s->seed = (uint64_t)seed;
    m->n_threads = (int)a->threads;
    s->stops = a->stops.items;
    s->n_stops = a->stops.n;
    if (a->help) return OK;
    TRY(sampling_check(s));
    for (size_t i = 0; i < a->rest.n; i++) {
        if (strcmp(a->rest.items[i], "-") != 0)
            return ERR(ERR_INPUT, "generate: found '%s', expected options; a text is given with --prompt, - is stdin",
                       a->rest.items[i]);
        text_list_add(&a->prompts, a->rest.items[i]);
    }
    if (!m->source) return ERR(ERR_INPUT, "generate: --model is missing: a Hugging Face, run or checkpoint directory");
    if (a->prompts.n == 0 && !a->prompt_file && !a->plan)
        return ERR(ERR_INPUT, "generate: found no prompt, expected --prompt TEXT, --prompt-file FILE, or - for stdin");
    if (s->n_completions > 1 && s->temperature == 0)
        return ERR(ERR_INPUT, "generate: -n %lld greedy completions are all the same; give a --temperature above 0",
                   (long long)s->n_completions);
    return OK;
}

static void arguments_fini(generate_arguments *a) {
    text_list_fini(&a->prompts);
    text_list_fini(&a->stops);
    text_list_fini(&a->rest);
}

static void print_usage(void) {
    puts("ralo generate --model DIR [--prompt TEXT]... [--prompt-file FILE] [-]\n"
         "  --model DIR             a Hugging Face directory, a run or a checkpoint\n"
         "  --prompt TEXT           may be repeated; - (or --prompt -) reads one from stdin\n"
         "  --prompt-file FILE      one prompt per line; .jsonl: {\"prompt\": ...} per line\n"
         "  --max-new N             most new tokens (128)\n"
         "  --temperature T         0: the most likely token (the default); else sampling\n"
         "  --top-k K --top-p P --min-p P --repetition-penalty R   as transformers defines them\n"
         "  --stop TEXT             ends a completion, is not part of it; may be repeated\n"
         "  --ignore-eos            go on after the end-of-text token\n"
         "  --seed S                of the sampling (0)\n"
         "  -n K                    completions per prompt (1)\n"
         "  --batch N               sequences computed at once (as many as there are, at most 32)\n"
         "  --context N             most tokens of prompt and completion (the model's positions, at most 4096)\n"
         "  --page-size N           tokens per page of the cache (32)\n"
         "  --cache SIZE            most bytes for keys and values (every sequence can fill its context)\n"
         "  --device-memory SIZE    most bytes in all (what the machine has)\n"
         "  --precision P           fp32 (the default), bf16, fp16\n"
         "  --threads N  --trace FILE  --json\n"
         "  --plan                  show where every byte would live, and stop\n"
         "One prompt and one completion: the text goes to stdout as it comes.");
}

static status collect_prompts(const generate_arguments *a, questions *q) {
    for (size_t i = 0; i < a->prompts.n; i++) {
        const char *text = a->prompts.items[i];
        if (strcmp(text, "-") != 0) {
            questions_add(q, text, strlen(text));
            continue;
        }
        char *input;
        size_t n;
        TRY(file_read_all("/dev/stdin", STDIN_MOST, &input, &n));
        questions_add(q, input, n);
        free(input);
    }
    if (a->prompt_file) TRY(questions_read(q, a->prompt_file, false));
    return OK;
}

/* ---- output ------------------------------------------------------------------------------------------------------ */

static void stream_text(void *context, size_t prompt, size_t index, const char *text, size_t n_bytes) {
    fwrite(text, 1, n_bytes, stdout);
    fflush(stdout);
}

static void print_texts(const completion *c, size_t n_prompts, int64_t n_each) {
    for (size_t i = 0; i < n_prompts * (size_t)n_each; i++) {
        printf("--- prompt %zu", i / (size_t)n_each + 1);
        if (n_each > 1) printf(", completion %zu", i % (size_t)n_each + 1);
        printf(" (%s after %zu tokens)\n", stop_reason_name(c[i].stop), c[i].n_tokens);
        fwrite(c[i].text, 1, c[i].text_bytes, stdout);
        putchar('\n');
    }
}

static json_t *ids_json(const int32_t *ids, size_t n) {
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_integer(ids[i]));
    return list;
}

static void print_json(const generator *g, const questions *q, const prompt *prompts, const completion *c,
                       int64_t n_each, const generation_report *r) {
    json_t *root = json_object(), *list = json_array();
    for (size_t i = 0; i < q->n * (size_t)n_each; i++) {
        size_t p = i / (size_t)n_each;
        json_array_append_new(list, json_pack("{s:o, s:o, s:o, s:o, s:s, s:f}", "prompt",
                                              json_text(q->items[p].prompt, q->items[p].n_prompt), "prompt_tokens",
                                              ids_json(prompts[p].tokens, prompts[p].n_tokens), "tokens",
                                              ids_json(c[i].tokens, c[i].n_tokens), "text",
                                              json_text(c[i].text, c[i].text_bytes), "stop",
                                              stop_reason_name(c[i].stop), "log_probability", c[i].log_probability));
    }
    json_object_set_new(root, "completions", list);
    double seconds = r->prefill_seconds + r->decode_seconds;
    json_object_set_new(root, "tokens_per_second", json_real(seconds > 0 ? (double)r->new_tokens / seconds : 0));
    json_object_set_new(root, "prefill_seconds", json_real(r->prefill_seconds));
    json_object_set_new(root, "decode_seconds", json_real(r->decode_seconds));
    json_object_set_new(root, "shared_tokens", json_integer((json_int_t)r->shared_tokens));
    json_object_set_new(root, "strategy", plan_strategy_json(generator_plan(g)));
    json_object_set_new(root, "memory", memory_json(generator_plan(g), &r->memory));
    json_dumpf(root, stdout, JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9));
    putchar('\n');
    json_decref(root);
}

static void print_summary(const generator *g, const generation_report *r) {
    char a[32], b[32];
    double seconds = r->prefill_seconds + r->decode_seconds;
    fprintf(stderr,
            "generated %llu tokens after %llu of prompts (%llu of them shared) in %.2f s: %.1f tokens/s\n"
            "memory    device %s planned, %s used\n",
            (unsigned long long)r->new_tokens, (unsigned long long)r->prompt_tokens,
            (unsigned long long)r->shared_tokens, seconds, seconds > 0 ? (double)r->new_tokens / seconds : 0,
            str_format_bytes(a, generator_plan(g)->planned[TIER_DEVICE]),
            str_format_bytes(b, r->memory.peak[TIER_DEVICE]));
}

/* ---- run --------------------------------------------------------------------------------------------------------- */

static status generate(generate_arguments *a, const questions *q) {
    status rc = OK;
    generator *g = NULL;
    completion *c = NULL;
    generation_report r;
    int64_t n_each = a->sampling.n_completions;
    size_t n = q->n * (size_t)n_each;
    bool streams = n == 1 && !a->json;
    if (!a->model.max_sequences) a->model.max_sequences = (int64_t)MIN(n, (size_t)32);
    TRY(generator_open(&g, &a->model));
    prompt *prompts = mem_alloc(q->n * sizeof *prompts);
    generation_observer observer = {.on_text = streams ? stream_text : NULL};
    TRY_GOTO(rc, questions_encode(q, g, prompts), done);
    TRY_GOTO(rc, generator_run(g, prompts, q->n, &a->sampling, &observer, &c, &r), done);
    if (a->json) print_json(g, q, prompts, c, n_each, &r);
    else if (!streams) print_texts(c, q->n, n_each);
    else if (c[0].text_bytes == 0 || c[0].text[c[0].text_bytes - 1] != '\n') putchar('\n');
    fflush(stdout);
    print_summary(g, &r);
done:
    completions_free(c, n);
    questions_free_prompts(prompts, q->n);
    generator_close(g);
    return rc;
}

static status show_plan(const generate_arguments *a) {
    plan p;
    TRY(generator_plan_compile(&p, &a->model));
    plan_print(&p, stderr);
    status rc = plan_check_fit(&p);
    if (a->json) {
        json_t *root = json_pack("{s:s, s:o, s:o}", "model", p.request.model.name, "strategy", plan_strategy_json(&p),
                                 "memory", plan_memory_json(&p));
        json_dumpf(root, stdout, JSON_PRESERVE_ORDER);
        putchar('\n');
        json_decref(root);
    }
    plan_close(&p);
    return rc;
}

status command_generate(int argc, char **argv) {
    generate_arguments a;
    questions q;
    questions_init(&q);
    status rc = parse(&a, argc, argv);
    if (rc == OK && a.help) print_usage();
    else if (rc == OK && a.plan) rc = show_plan(&a);
    else if (rc == OK && (rc = collect_prompts(&a, &q)) == OK) rc = generate(&a, &q);
    questions_fini(&q);
    arguments_fini(&a);
    return rc;
}
