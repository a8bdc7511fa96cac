/* generator.c - ralo_generator: texts in, completions out. */
#include "api/api.h"

#include <stdlib.h>
#include <string.h>

_Static_assert((int)RALO_STOP_EOS == STOP_EOS && (int)RALO_STOP_STRING == STOP_STRING &&
                   (int)RALO_STOP_LENGTH == STOP_LENGTH,
               "a reason to stop is handed out as it is");

struct ralo_generator {
    generator *generator;
    ralo_plan plan;
};

void ralo_generator_options_init(ralo_generator_options *o) {
    if (o) *o = (ralo_generator_options){.precision = "fp32", .max_sequences = 16};
}

void ralo_sampling_init(ralo_sampling *s) {
    sampling_options d = SAMPLING_DEFAULTS;
    if (s)
        *s = (ralo_sampling){.max_new = d.max_new,
                             .temperature = d.temperature,
                             .top_k = d.top_k,
                             .top_p = d.top_p,
                             .min_p = d.min_p,
                             .repetition_penalty = d.repetition_penalty,
                             .seed = d.seed,
                             .n_completions = d.n_completions};
}

static status weights_of(base_format *out, const char *name) {
    static const base_format formats[] = {BASE_INT8, BASE_FP8, BASE_NF4};
    *out = BASE_COMPUTE;
    if (!name) return OK;
    for (size_t i = 0; i < ARRAY_LENGTH(formats); i++)
        if (strcmp(base_format_name(formats[i]), name) == 0) *out = formats[i];
    if (*out != BASE_COMPUTE) return OK;
    return ERR(ERR_INPUT, "ralo_generator_open: found the weights '%.100s', expected int8, fp8 or nf4, or NULL", name);
}

static status options_of(generator_options *out, const char *source, const ralo_generator_options *o) {
    static const precision precisions[] = {PRECISION_FP32, PRECISION_BF16, PRECISION_FP16};
    size_t k = 0;
    if (!o->precision) /* a struct of zeros */
        return ERR(ERR_INPUT, "ralo_generator_open: found NULL for options->precision, expected fp32, bf16 or fp16; "
                              "ralo_generator_options_init sets it");
    while (k < ARRAY_LENGTH(precisions) && strcmp(precision_name(precisions[k]), o->precision) != 0) k++;
    if (k == ARRAY_LENGTH(precisions))
        return ERR(ERR_INPUT, "ralo_generator_open: found the precision '%.100s', expected fp32, bf16 or fp16",
                   o->precision);
    if (o->max_sequences < 1 || o->context < 0 || o->threads < 0)
        return ERR(
            ERR_INPUT,
            "ralo_generator_open: found %lld sequences, a context of %lld, %d threads; expected at least 1, 0 and "
            "0; ralo_generator_options_init sets them all",
            (long long)o->max_sequences, (long long)o->context, (int)o->threads);
    base_format weights;
    TRY(weights_of(&weights, o->weights));
    *out = (generator_options){.source = source,
                               .adapter = o->adapter,
                               .precision = precisions[k],
                               .weights = weights,
                               .max_sequences = o->max_sequences,
                               .context = o->context,
                               .cache_bytes = o->cache_bytes,
                               .device_limit = o->device_memory,
                               .n_threads = o->threads};
    return backend_choose(DEVICE_AUTO, 0, &out->backend);
}

ralo_status ralo_generator_open(ralo_generator **out, const char *source, const ralo_generator_options *options) {
    API_NEED(out);
    *out = NULL;
    API_NEED(source);
    api_call call = api_enter();
    ralo_generator_options usual;
    generator_options o;
    generator *g = NULL;
    ralo_generator_options_init(&usual);
    status rc = options_of(&o, source, options ? options : &usual);
    if (rc == OK) rc = generator_open(&g, &o);
    if (rc == OK) {
        *out = mem_alloc(sizeof **out);
        (*out)->generator = g;
        (*out)->plan = (ralo_plan){.borrowed = true, .plan = generator_plan(g)};
        api_plan_describe(&(*out)->plan);
    }
    return api_leave(call, rc);
}

void ralo_generator_close(ralo_generator *g) {
    if (!g) return;
    api_call call = api_enter();
    generator_close(g->generator);
    free(g->plan.text);
    free(g->plan.json);
    free(g);
    api_leave(call, OK);
}

const ralo_plan *ralo_generator_plan(const ralo_generator *g) { return g ? &g->plan : NULL; }

/* ---- prompts as tokens --------------------------------------------------------------------------------------------- */

/* How prompts are written; fini also after an error. */
typedef struct writer {
    const generator *g;
    const char *function;
    ralo_chat as;
    chat *format; /* NULL: texts are continued as they are */
    record_parser parser;
} writer;

static void writer_fini(writer *w) {
    chat_close(w->format);
    record_parser_close(&w->parser);
}

static status writer_init(writer *w, const generator *g, const char *function, int32_t as) {
    *w = (writer){.g = g, .function = function, .as = (ralo_chat)as};
    if (as < RALO_CHAT_NONE || as > RALO_CHAT_RECORD)
        return ERR(ERR_INPUT, "%s: found %d for sampling->chat, expected a ralo_chat; ralo_sampling_init sets it",
                   function, (int)as);
    if (as == RALO_CHAT_NONE) return OK;
    TRY(generator_chat(g, &(chat_options){.format = CHAT_AUTO}, &w->format));
    if (chat_format_of(w->format) != CHAT_NONE) return OK;
    return ERR(ERR_INPUT,
               "%s: the model has no chat format: neither a chat template nor control tokens; continue texts "
               "(RALO_CHAT_NONE)",
               function);
}

static status encode_turns(writer *w, const char *text, size_t number, chat_tokens *out) {
    data_record r = {.kind = RECORD_PAIR, .path = w->function, .line = number, .prompt = {text, strlen(text)}};
    utf8_scan scan = utf8_check(text, r.prompt.length);
    if (scan.n_bad)
        return ERR(ERR_INPUT, "%s: prompt %zu: byte %zu is not UTF-8, expected UTF-8 in a conversation", w->function,
                   number - 1, scan.n_valid + 1);
    if (w->as == RALO_CHAT_RECORD)
        TRY(record_parse(&w->parser, text, r.prompt.length, w->function, number,
                         &(record_options){.may_lack_response = true}, &r));
    return chat_encode_prompt(w->format, &r, out);
}

static status encode(writer *w, const char *const *texts, size_t n, prompt *out) {
    for (size_t i = 0; i < n; i++) {
        chat_tokens tokens = {0};
        if (!texts[i]) return ERR(ERR_INPUT, "%s: found NULL for prompt %zu", w->function, i);
        status rc = w->format
                        ? encode_turns(w, texts[i], i + 1, &tokens)
                        : generator_encode(w->g, texts[i], strlen(texts[i]), &tokens.ids, &tokens.n, &tokens.capacity);
        free(tokens.trained);
        out[i] = (prompt){tokens.ids, tokens.n};
        TRY(rc);
    }
    return OK;
}

/* The texts and tokens go over; the list that held them goes. */
static ralo_completion *take(completion *list, size_t n) {
    ralo_completion *out = mem_alloc(MAX(n, (size_t)1) * sizeof *out);
    for (size_t i = 0; i < n; i++) {
        out[i] = (ralo_completion){.text = list[i].text,
                                   .n_bytes = list[i].text_bytes,
                                   .tokens = list[i].tokens,
                                   .n_tokens = list[i].n_tokens,
                                   .log_probability = list[i].log_probability,
                                   .stop = (ralo_stop)list[i].stop};
        free(list[i].log_probabilities);
    }
    free(list);
    return out;
}

status api_generate(generator *g, const char *function, const char *const *texts, size_t n,
                    const ralo_sampling *sampling, ralo_completion **out, size_t *n_out) {
    status rc;
    ralo_sampling usual;
    ralo_sampling_init(&usual);
    const ralo_sampling *s = sampling ? sampling : &usual;
    *out = NULL;
    *n_out = 0;
    if (n == 0) return ERR(ERR_INPUT, "%s: found no prompt, expected some", function);
    TRY(api_need(function, "prompts", texts));
    completion *list = NULL;
    sampling_options o = {.max_new = s->max_new,
                          .temperature = s->temperature,
                          .top_k = s->top_k,
                          .top_p = s->top_p,
                          .min_p = s->min_p,
                          .repetition_penalty = s->repetition_penalty,
                          .seed = s->seed,
                          .n_completions = s->n_completions,
                          .stops = s->stops,
                          .n_stops = s->n_stops,
                          .ignore_eos = s->ignore_eos != 0};
    if (s->n_stops && !s->stops) return ERR(ERR_INPUT, "%s: found NULL for %zu stops", function, s->n_stops);
    TRY(sampling_check(&o));
    writer w;
    prompt *prompts = mem_alloc(n * sizeof *prompts);
    TRY_GOTO(rc, writer_init(&w, g, function, s->chat), done);
    int32_t end = w.format ? chat_end_of_turn(w.format) : -1;
    if (end >= 0) o.ends = &end, o.n_ends = 1;
    TRY_GOTO(rc, encode(&w, texts, n, prompts), done);
    TRY_GOTO(rc, generator_run(g, prompts, n, &o, NULL, &list, NULL), done);
    *n_out = n * (size_t)s->n_completions;
    *out = take(list, *n_out);
done:
    writer_fini(&w);
    for (size_t i = 0; i < n; i++) free((int32_t *)prompts[i].tokens);
    free(prompts);
    return rc;
}

ralo_status ralo_generator_generate(ralo_generator *g, const char *const *prompts, size_t n_prompts,
                                    const ralo_sampling *sampling, ralo_completion **out, size_t *n_out) {
    API_NEED(out);
    API_NEED(n_out);
    *out = NULL;
    *n_out = 0;
    API_NEED(g);
    api_call call = api_enter();
    return api_leave(call, api_generate(g->generator, __func__, prompts, n_prompts, sampling, out, n_out));
}

void ralo_completions_free(ralo_completion *completions, size_t n) {
    for (size_t i = 0; completions && i < n; i++) {
        free(completions[i].text);
        free(completions[i].tokens);
    }
    free(completions);
}
